"""A study folder as a sweep leaves it, made up: the numbers follow a known law."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

# What each policy reaches of the saving there is to be had, and of the wait that is allowed.
POLICIES = {
    "run_now": (0.0, 0.0),
    "lowest_slot": (0.45, 0.3),
    "wait_awhile": (0.7, 0.42),
    "oracle": (0.8, 0.4),
    "exact": (1.0, 0.47),
}
GRIDS = {"sunny": 0.45, "windy": 0.3, "nuclear": 0.12, "coal": 0.05}
WAITS = {"6h": 0.4, "12h": 0.7, "24h": 1.0, "48h": 1.2}
LENGTHS = {"1h": 1.0, "4h": 0.8, "16h": 0.35}


def write_study(
    folder: Path,
    *,
    policies: Sequence[str] = tuple(POLICIES),
    grids: Sequence[str] = tuple(GRIDS),
    waits: Sequence[str] = tuple(WAITS),
    lengths: Sequence[str] = tuple(LENGTHS),
    seeds: Sequence[int] = (0, 1),
    failures: Mapping[int, str] | None = None,
    report: Mapping[str, Any] | None = None,
    savings: bool = True,
) -> Path:
    """Write the table, the manifest and the record of each run; return the folder."""
    rng = np.random.default_rng(5)
    rows = []
    every = product(grids, waits, lengths, policies, seeds)
    for number, (grid, wait, length, policy, seed) in enumerate(every):
        varied = {
            "grid.synthetic": grid,
            "workload.wait": wait,
            "workload.lengths.length": length,
            "policy.name": policy,
            "run.seed": seed,
        }
        reached, waited = POLICIES[policy]
        saving = reached * GRIDS[grid] * WAITS[wait] * LENGTHS[length]
        # The jobs and the weather are the same for all policies of a seed.
        saving *= 1 + 0.05 * (-1) ** seed + 0.02 * rng.normal() * (policy != "run_now")
        wait_s = 3600 * float(wait.removesuffix("h")) * waited * (1 + 0.03 * rng.normal())
        row: dict[str, Any] = {
            **varied,
            "synthetic": True,
            "jobs": 24,
            "energy_j": 4e9,
            "carbon_g": 5e5 * (1 - saving),
            "mean_wait_s": wait_s,
            "p95_wait_s": 2 * wait_s,
            "mean_slowdown": 1 + wait_s / 7200,
            "mean_starts": 1.0,
            "deadline_misses": 0,
            "baseline": "run_now",
            "saving": saving,
            "status": "done",
            "reason": None,
        }
        if not savings:
            del row["baseline"], row["saving"]
        if number in (failures or {}):
            numbers = list(row)[len(varied) : -2]
            row |= dict.fromkeys(numbers) | {"status": "failed", "reason": failures[number]}
        parameters = {
            "grid": {"synthetic": grid, "start": "2023-07-01T00:00Z", "days": 8},
            "workload": {
                "duration": "3d",
                "arrivals": {"kind": "periodic", "period": "3h"},
                "lengths": {"kind": "constant", "length": length},
                "jobs": {"kind": "constant", "power_w": 300},
                "wait": wait,
                "interruptible": "anywhere",
            },
            "policy": {"name": policy},
            "cluster": {},
            "queue": {},
            "forecast": {},
            "run": {"seed": seed},
        }
        name = hashlib.sha256(json.dumps(parameters).encode()).hexdigest()[:16]
        record = {"id": name, "parameters": parameters, "varied": varied, "row": row}
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        (folder / "runs" / f"{name}.json").write_text(json.dumps(record))
        rows.append({"id": name, **row})
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(folder / "table.parquet")
    manifest = {
        "format": "lowtide study 1",
        "title": "A made-up study",
        "about": "Numbers that follow a known law.",
        "report": report or {},
        "versions": {"lowtide": "0.1.0", "numpy": "2.0.0"},
        "seeds": list(seeds),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
