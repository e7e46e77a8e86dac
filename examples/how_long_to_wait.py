"""How long to wait for a job, what its plan is worth, and the same for a week of them."""

import lowtide as lt

profile = lt.PowerProfile.ml(epochs=8, train=("70m", 660), save=("10m", 120), startup=("20m", 150))
grid = lt.synthetic_grid("windy", days=12, seed=4)
job = lt.Job(
    id="train",
    arrival="2024-07-01T08:00Z",
    deadline="+3d",
    profile=profile,
    interruptible="checkpoints",
)

every = lt.tradeoff(job, grid)
for later in ("+0h", "+24h", "+48h", "+60h"):
    print(f"done {later:>4} later than at once: {every.by(later):7.1f} g at least")
knee = (every.finish[every.knee] - every.finish[0]) / 3600
print(f"the knee is {knee:.1f} h later: saves {every.saving[every.knee]:.1%}")

best = lt.plan(job, grid)
why = lt.explain(best, job, grid)
print(f"{best.schedule.starts} starts: {why.total:.1f} g, proven least")
print(f"one start: {why.uninterrupted:.1f} g; at once: {why.run_now:.1f} g")
print(f"without knowing the phases: {why.blind_to_phases:.1f} g")

week = [
    lt.Job(
        id=f"day {day}",
        arrival=job.arrival + 86400 * day,
        deadline="+3d",
        profile=profile,
        interruptible="checkpoints",
    )
    for day in range(7)
]
plans = lt.plan_many(week, grid)
print(f"a week: {plans.amount.sum():.0f} g instead of {plans.baseline.sum():.0f} g")
