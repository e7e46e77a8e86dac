"""Where the runs of a sweep are run: in processes here, on Dask, or on Dask on Slurm."""

from __future__ import annotations

from lowtide.experiments.engines.choice import ENGINES, make_engine
from lowtide.experiments.engines.engine import Engine, Outcome, RunFunction, Task
from lowtide.experiments.engines.local import Local
from lowtide.experiments.engines.on_dask import OnDask
from lowtide.experiments.engines.on_slurm import OnSlurm

__all__ = [
    "ENGINES",
    "Engine",
    "Local",
    "OnDask",
    "OnSlurm",
    "Outcome",
    "RunFunction",
    "Task",
    "make_engine",
]
