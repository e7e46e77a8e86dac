"""All registered policies on one job, which may be stopped at its checkpoints."""

import lowtide as lt
from lowtide.policies import POLICIES

profile = lt.PowerProfile.ml(epochs=12, train=("50m", 660), save=("10m", 120), startup=("15m", 100))
job = lt.Job(
    id="train",
    arrival="2024-07-01T08:00Z",
    deadline="+3d",
    profile=profile,
    interruptible="checkpoints",
    max_starts=4,
)
grid = lt.synthetic_grid("windy", days=5, seed=4)

print(profile)
print(f"{'policy':<12} {'starts':>6} {'kWh':>7} {'g CO2e':>8} {'EUR':>6} {'saving':>7}")
for name in POLICIES.names():
    if name == "as_recorded":
        continue  # It needs a trace that says when jobs began.
    best = lt.plan(job, grid, policy=name)
    best.schedule.check(job)
    paid = best.footprint
    print(
        f"{name:<12} {paid.starts:>6} {paid.energy_j / 3.6e6:>7.2f} {paid.carbon_g:>8.1f} "
        f"{paid.cost:>6.3f} {best.saving:>7.1%}"
    )
print(f"no schedule of this job emits less than {lt.plan(job, grid).lower_bound_g:.1f} g")
