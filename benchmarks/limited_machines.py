"""What planning a queue together is worth on limited machines: the study of that page.

Every cell is a week of jobs with the lengths, widths and hours of a published trace, on as many
nodes as make up a load. One thing is varied at a time from a base (California, May, 70 % load,
jobs that may wait as drawn, stops as drawn, a perfect forecast). In each cell:

    plan       everything known: what is saved against EASY backfilling, what could be at most (the
               proven bound), and how many are late
    online     nobody known before it arrives: `cluster_plan`, with what is foreseen of the grid
    booked     a published start policy that looks at the machines: `booked` carbon_time

    python benchmarks/limited_machines.py FOLDER            the study: a table, figures, all cells
    python benchmarks/limited_machines.py FOLDER small      a few cells of few jobs
    python benchmarks/limited_machines.py FOLDER load jobs=100 seed=11   one axis of other jobs

A sweep of experiments cannot say this: no policy of the test bed knows all jobs, and a bound is no
number of a run. Cells that FOLDER has are not computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import altair as alt
import numpy as np
import polars as pl

import lowtide as lt
from cluster import HOUR, MONDAY, curve, queue
from lowtide.files import write_whole
from lowtide.forecast import LeadScaled
from lowtide.job import INTERRUPTIBLE
from lowtide.market.booking import Booked
from lowtide.market.rolling import ClusterPolicy
from lowtide.page.looks import save_image
from lowtide.policies.policy import Policy

# What each axis is varied over; the base is the first cell of all.
AXES: Mapping[str, tuple[Any, ...]] = {
    "load": (0.7, 0.5, 0.85, 0.95),
    "error": (0.0, 0.1, 0.3),
    "zone": ("US-CAL-CISO", "DE", "GB", "PL"),
    "season": (MONDAY, "2022-01-10T00:00Z", "2022-08-15T00:00Z"),
    "stops": ("as drawn", "never", "anywhere"),
    "slack": (1.0, 0.5, 2.0),
    "flexible": (1.0, 0.25, 0.5),
}
TITLES = {
    "load": "load of the machines",
    "slack": "times as much time to wait",
    "flexible": "share of jobs that can wait",
    "stops": "how jobs may be stopped",
    "zone": "zone",
    "season": "week that begins on",
    "error": "error of the forecast a day ahead",
}
JOBS, SEEDS = 300, (11, 12)
SMALL_JOBS, SMALL = 30, {"load": (0.7, 0.95), "error": (0.0, 0.3)}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One queue, and what is foreseen of its grid."""

    load: float = 0.7
    slack: float = 1.0
    flexible: float = 1.0
    stops: str = "as drawn"
    zone: str = "US-CAL-CISO"
    season: str = MONDAY
    error: float = 0.0


def cells(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Cell]]:
    """Yield every cell, and which axis it is one of."""
    for name, values in axes.items():
        for value in values:
            yield name, replace(Cell(), **{name: value})


def jobs_of(cell: Cell, count: int, seed: int) -> tuple[lt.Signal, Any, lt.Cluster]:
    """Return the grid, the jobs and the machines of a cell."""
    signal = curve(cell.zone, cell.season)
    jobs, nodes = queue(count, cell.load, signal.start, seed=seed)
    rng = np.random.default_rng([seed, 5])
    waits_s = jobs.slack_s * cell.slack * (rng.random(count) < cell.flexible)
    # On whole hours, and by the end of the week and three days, as the others are.
    end = float(jobs.deadline.max())
    due = jobs.arrival + jobs.run_s + np.round(waits_s / HOUR) * HOUR
    jobs = replace(jobs, deadline=np.maximum(np.minimum(due, end), jobs.arrival + jobs.run_s))
    if cell.stops != "as drawn":
        kind = INTERRUPTIBLE.index(cell.stops)
        jobs = replace(jobs, interruptible=np.full(count, kind))
    return signal, jobs, lt.Cluster(nodes=nodes, cpus_per_node=1)


def measured(cell: Cell, count: int, seed: int) -> dict[str, Any]:
    """Return what comes out in a cell."""
    signal, jobs, cluster = jobs_of(cell, count, seed)
    clock = process_time()
    plan = lt.plan_cluster(jobs, cluster, signal, wait=0, gap=0.002, effort=0.1)
    assert plan.easy is not None
    against = float(plan.easy.tally.amount.sum())
    row: dict[str, Any] = {
        "saved": plan.saving,
        "most": plan.most_saving,
        "gap": plan.gap_g,
        "late": len(plan.late),
        "must_be_late": plan.least_late,
        "easy_late": int(plan.easy.missed.sum()),
        "wait_h": float(plan.simulation.wait_s.mean()) / 3600,
    }
    models = LeadScaled(relative_error=cell.error, seed=seed) if cell.error else None
    policies: dict[str, Policy] = {
        "online": ClusterPolicy(forecasts=models),
        "booked": Booked(start="carbon_time"),
    }
    for name, policy in policies.items():
        ran = lt.simulate(
            jobs, signal, policy=policy, cluster=cluster, baseline=None, repeat_signal=True
        )
        row[name] = 1 - float(ran.tally.amount.sum()) / against
        row[f"{name}_late"] = int(ran.missed.sum())
    return {**row, "cpu_s": process_time() - clock}


def known_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells that a file has, as they were measured; none where there is no file."""
    if not path.exists():
        return []
    return pl.read_csv(path, schema_overrides={"value": pl.String}).to_dicts()


def study(
    folder: Path, axes: Mapping[str, tuple[Any, ...]], count: int, seeds: tuple[int, ...]
) -> pl.DataFrame:
    """Measure all cells, draw the figures, and return the table; what is known is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    known_at = folder / "cells.csv"
    rows = known_cells(known_at)
    found: dict[tuple[Cell, int], dict[str, Any]] = {}
    for seed in seeds:
        for axis, cell in cells(axes):
            key = {"axis": axis, "value": str(getattr(cell, axis)), "seed": seed, "jobs": count}
            if any(all(row[k] == v for k, v in key.items()) for row in rows):
                continue
            if (cell, seed) not in found:
                found[cell, seed] = measured(cell, count, seed)
            rows.append({**key, **found[cell, seed]})
            print(axis, key["value"], seed, {k: v for k, v in rows[-1].items() if k not in key})
            write_whole(known_at, pl.DataFrame(rows).write_csv().encode())
    table = pl.DataFrame(rows)
    for axis in axes:
        save_image(figure(table, axis), folder / f"limited-machines-{axis}.svg")
    return table


def summed(table: pl.DataFrame) -> pl.DataFrame:
    """Return the means over the seeds, in the order of the axes."""
    shares = ("saved", "most", "gap", "online", "booked")
    counts = ("late", "easy_late", "online_late", "booked_late")
    return table.group_by("axis", "value", maintain_order=True).agg(
        *(pl.col(name).mean() for name in shares), *(pl.col(name).sum() for name in counts)
    )


def figure(table: pl.DataFrame, axis: str) -> Any:
    """Return what is saved over one axis, the bound as a line above."""
    named = {"saved": "all known", "online": "online", "booked": "booked carbon_time"}
    some = summed(table).filter(pl.col("axis") == axis)
    rows = [
        {"at": _short(row["value"]), "who": who, "saved": 100 * row[key], "most": 100 * row["most"]}
        for row in some.iter_rows(named=True)
        for key, who in named.items()
    ]
    base = alt.Chart(alt.InlineData(values=rows))
    order = [_short(value) for value in sorted(some["value"].to_list(), key=_rank)]
    x = alt.X("at:N", title=TITLES[axis], sort=order, axis=alt.Axis(labelAngle=0))
    bars = base.mark_bar().encode(
        x=x,
        xOffset=alt.XOffset("who:N", sort=list(named.values())),
        y=alt.Y("saved:Q", title="saved against EASY, %"),
        color=alt.Color(
            "who:N",
            title=None,
            sort=list(named.values()),
            scale=alt.Scale(domain=list(named.values()), range=["#1b6b93", "#4fc0d0", "#c5c5c5"]),
        ),
    )
    most = base.mark_tick(color="black", thickness=2, width=46).encode(x=x, y="most:Q")
    return (bars + most).properties(width=90 * len(order), height=180)


def _short(value: str) -> str:
    return value.split("T00")[0]


def _rank(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def told(table: pl.DataFrame) -> str:
    """Return the table of the page."""
    lines = ["| varied | to | all known | at most | online | booked | late: plan / EASY / online |"]
    lines.append("|---|---|--:|--:|--:|--:|---|")
    for row in summed(table).iter_rows(named=True):
        shares = " | ".join(f"{100 * row[k]:.1f} %" for k in ("saved", "most", "online", "booked"))
        late = " / ".join(str(row[k]) for k in ("late", "easy_late", "online_late"))
        lines.append(f"| {row['axis']} | {_short(row['value'])} | {shares} | {late} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the study and print its table."""
    if not arguments:
        print(__doc__)
        return 2
    axes = SMALL if "small" in arguments else AXES
    asked = {name: values for name, values in axes.items() if name in arguments} or axes
    count = SMALL_JOBS if "small" in arguments else JOBS
    count = next((int(each[5:]) for each in arguments if each.startswith("jobs=")), count)
    seeds = next(((int(each[5:]),) for each in arguments if each.startswith("seed=")), SEEDS)
    print(told(study(Path(arguments[0]), asked, count, seeds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
