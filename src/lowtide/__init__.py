"""lowtide: know what batch jobs draw and emit, and run them when the grid is clean.

```python
import lowtide as lt

grid = lt.synthetic_grid("windy", seed=1)
job = lt.Job(id="md42", arrival="2024-07-01T00:00Z", deadline="+36h",
             profile=lt.PowerProfile.constant(300, "6h"))
best = lt.plan(job, grid)
print(best.schedule, best.footprint.carbon_g, best.saving)
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.accounting import Embodied, Footprint, footprint
    from lowtide.errors import LowtideError
    from lowtide.forecast import Forecast
    from lowtide.formats import read_jobs, read_signal
    from lowtide.grid import Grid
    from lowtide.grids import synthetic_grid
    from lowtide.job import Job, Resources
    from lowtide.learning import learn
    from lowtide.market import plan_cluster
    from lowtide.marks import mark
    from lowtide.measuring.inline import measure
    from lowtide.policies import plan
    from lowtide.policies.bulk import plan_many
    from lowtide.policies.explain import explain
    from lowtide.policies.tradeoff import tradeoff
    from lowtide.profile import Phase, PowerProfile
    from lowtide.schedule import Schedule, State
    from lowtide.signal import Signal
    from lowtide.simulator import Cluster, simulate
    from lowtide.workload import Workload

__all__ = [
    "Cluster",
    "Embodied",
    "Footprint",
    "Forecast",
    "Grid",
    "Job",
    "LowtideError",
    "Phase",
    "PowerProfile",
    "Resources",
    "Schedule",
    "Signal",
    "State",
    "Workload",
    "explain",
    "footprint",
    "learn",
    "mark",
    "measure",
    "plan",
    "plan_cluster",
    "plan_many",
    "read_jobs",
    "read_signal",
    "simulate",
    "synthetic_grid",
    "tradeoff",
]

# Where each public name lives. Names are fetched when first asked for, so that importing lowtide,
# and with it `lowtide --help`, does not wait for NumPy.
_HOMES = {
    "Cluster": "simulator",
    "Embodied": "accounting",
    "Footprint": "accounting",
    "Forecast": "forecast",
    "Grid": "grid",
    "Job": "job",
    "LowtideError": "errors",
    "Phase": "profile",
    "PowerProfile": "profile",
    "Resources": "job",
    "Schedule": "schedule",
    "Signal": "signal",
    "State": "schedule",
    "Workload": "workload",
    "explain": "policies.explain",
    "footprint": "accounting",
    "learn": "learning",
    "mark": "marks",
    "measure": "measuring.inline",
    "plan": "policies",
    "plan_cluster": "market",
    "plan_many": "policies.bulk",
    "read_jobs": "formats",
    "read_signal": "formats",
    "simulate": "simulator",
    "synthetic_grid": "grids",
    "tradeoff": "policies.tradeoff",
}


def __getattr__(name: str) -> Any:
    if name == "load_ipython_extension":
        # Notebooks ask for it by this name; it is for nobody else.
        from lowtide.measuring.inline import load_ipython_extension

        return load_ipython_extension
    if name not in _HOMES:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    value = getattr(import_module(f"lowtide.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
