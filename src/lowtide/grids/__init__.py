"""Where signals come from when no file holds them: synthetic grids and emission factors."""

from __future__ import annotations

from lowtide.grids.models import (
    EMISSION_FACTORS_G_PER_KWH,
    GRID_NAMES,
    GRIDS,
    GridModel,
    Plant,
    emission_factor,
)
from lowtide.grids.synthetic import GridRun, synthetic_grid, synthetic_run

__all__ = [
    "EMISSION_FACTORS_G_PER_KWH",
    "GRIDS",
    "GRID_NAMES",
    "GridModel",
    "GridRun",
    "Plant",
    "emission_factor",
    "synthetic_grid",
    "synthetic_run",
]
