"""One schedule, fully accounted: PUE by the hour, price, embodied carbon and SCI."""

import lowtide as lt

grid = lt.synthetic_grid("nuclear", days=2, seed=1)
job = lt.Job(
    id="md42",
    arrival="2024-07-01T00:00Z",
    deadline="+36h",
    profile=lt.PowerProfile.ml(epochs=5, train=("1h", 660), save=("5m", 120), startup=("10m", 90)),
)
best = lt.plan(job, grid)
pue = lt.Signal.from_values(
    [1.2] * 8 + [1.3] * 12 + [1.2] * 28, start="2024-07-01T00:00Z", step_s="1h", kind="pue"
)
# Assumed for the example: take your own machine's figure from its maker.
server = lt.Embodied(total_g=1_300_000, lifetime_s="1461d", share=0.25)
paid = lt.footprint(best.schedule, job, grid, pue=pue, embodied=server)

print(best.schedule)
print(f"energy of the job   {paid.energy_j / 3.6e6:8.3f} kWh, before PUE")
print(f"operational carbon  {paid.carbon_g:8.1f} g, PUE included")
print(f"cost                {paid.cost:8.3f} EUR, PUE included")
print(f"embodied carbon     {paid.embodied_g:8.1f} g, kept apart")
print(f"SCI                 {paid.sci_g(units=5):8.1f} g per epoch")
for name, part in paid.by_phase.items():
    print(f"  {name:<16} {part.duration_s / 60:6.0f} min {part.carbon_g:7.1f} g")
