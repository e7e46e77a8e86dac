"""What planning a queue together is worth on limited machines: the study of that page.

Every cell is a week of jobs with the lengths, widths and hours of a published trace, on as many
nodes as make up a load. One thing is varied at a time from a base (California, May, 70 % load, jobs
that may wait as drawn, stops as drawn, a perfect forecast), in several draws of the jobs; and cells
in which everything is drawn at once say how far that carries. In each cell:

    all known    `plan_cluster`: what is saved against EASY backfilling, what could be at most (the
                 proven bound), and how many are late
    online       nobody known before it arrives: `cluster_plan`, with what is foreseen of the grid
    booked       a published start policy that looks at the machines: `booked` carbon_time
    carbon_time  that policy as published, which decides as if the machines were empty; then EASY

    python benchmarks/limited_machines.py FOLDER            the study of the page: 16 CPU minutes
    python benchmarks/limited_machines.py FOLDER small      a few cells of few jobs
    python benchmarks/limited_machines.py FOLDER load jobs=1000 seed=1,2,3    some, of more jobs

examples/limited-machines.toml sweeps a small version. A sweep cannot say all of this: no policy of
the test bed knows all jobs, and a bound is no number of a run. Cells that FOLDER has are not
computed again, so the study may be cut short, and goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import lowtide as lt
from cluster import HOUR, MONDAY, curve, queue
from lowtide.files import write_whole
from lowtide.forecast import ForecastModel, LeadScaled, Persistence
from lowtide.job import INTERRUPTIBLE
from lowtide.market.booking import Booked
from lowtide.market.rolling import ClusterPolicy
from lowtide.page.looks import BLUE, INK, NEUTRAL, PINK, WIDTH, YELLOW, alt, inline, save_image

FloatArray = npt.NDArray[np.float64]

# What each axis is varied over; the base is the first of each.
AXES: Mapping[str, tuple[Any, ...]] = {
    "load": (0.7, 0.5, 0.85, 0.95),
    "forecast": ("perfect", "10 % wrong", "30 % wrong", "the day before"),
    "slack": (1.0, 0.5, 2.0),
    "flexible": (1.0, 0.25, 0.5),
    "stops": ("as drawn", "never", "anywhere"),
    "zone": ("US-CAL-CISO", "DE", "GB", "FR", "AUS-NSW"),
    "season": (MONDAY, "2022-01-10T00:00Z", "2022-08-15T00:00Z", "2022-11-07T00:00Z"),
}
TITLES = {
    "load": "load of the machines",
    "forecast": "what is foreseen of the grid, errors a day ahead",
    "slack": "time to wait",
    "flexible": "share of jobs that can wait",
    "stops": "how jobs may be stopped",
    "zone": "zone",
    "season": "week that begins on",
}
WHO = {"plan": "all known", "online": "online", "booked": "booked", "start": "carbon_time"}
COLOURS = (BLUE, YELLOW, PINK, NEUTRAL)
JOBS, SEEDS, DRAWN = 200, (31, 32), 12
# How long plans of whole queues are searched for, and those of few jobs.
EFFORT, SMALL_EFFORT = 0.3, 0.02
SMALL_JOBS, SMALL = 30, {"load": (0.7, 0.5), "forecast": ("perfect", "30 % wrong")}
# Whose seeds lie here is drawn in everything.
FIRST_DRAWN = 1000


def foreseen(name: str, seed: int) -> ForecastModel | None:
    """Return who foresees the grid; None where all of it is known."""
    if name == "perfect":
        return None
    if name == "the day before":
        return Persistence()
    return LeadScaled(relative_error=float(name.split()[0]) / 100, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One queue, and what is foreseen of its grid."""

    load: float = 0.7
    slack: float = 1.0
    flexible: float = 1.0
    stops: str = "as drawn"
    zone: str = "US-CAL-CISO"
    season: str = MONDAY
    forecast: str = "perfect"


BASE = Cell()


def cells(
    axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], drawn: int
) -> Iterator[tuple[Cell, int]]:
    """Yield every cell with its seed: the base, those beside it, those in which all is drawn."""
    for seed in seeds:
        yield BASE, seed
    for name, values in axes.items():
        for seed in seeds:
            for value in values:
                if value != getattr(BASE, name):
                    yield replace(BASE, **{name: value}), seed
    for seed in range(FIRST_DRAWN, FIRST_DRAWN + drawn):
        rng = np.random.default_rng(seed)
        picked = {name: AXES[name][int(rng.integers(len(AXES[name])))] for name in AXES}
        yield Cell(**picked), seed


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


@lru_cache(maxsize=16)
def without_forecasts(cell: Cell, count: int, seed: int) -> dict[str, Any]:
    """Return what comes out where nobody asks what is foreseen of the grid."""
    signal, jobs, cluster = jobs_of(cell, count, seed)
    effort = EFFORT if count > SMALL_JOBS else SMALL_EFFORT
    plan = lt.plan_cluster(jobs, cluster, signal, wait=0, gap=0.002, effort=effort)
    assert plan.easy is not None
    against = float(plan.easy.tally.amount.sum())
    row: dict[str, Any] = {
        "nodes": cluster.nodes,
        "easy_g": against,
        "easy_late": int(plan.easy.missed.sum()),
        "easy_wait_h": float(plan.easy.wait_s.mean()) / HOUR,
        "most": plan.most_saving,
        "plan": plan.saving,
        "plan_late": len(plan.late),
        "plan_wait_h": float(plan.simulation.wait_s.mean()) / HOUR,
        "must_be_late": plan.least_late,
    }
    for name, ran in (
        ("booked", simulated(signal, jobs, cluster, Booked(start="carbon_time"))),
        ("start", simulated(signal, jobs, cluster, "carbon_time")),
    ):
        row |= came_to(name, ran, against)
    return row


def simulated(signal: lt.Signal, jobs: Any, cluster: lt.Cluster, policy: Any) -> Any:
    """Run a policy on the machines; a start policy queues under EASY."""
    return lt.simulate(
        jobs,
        signal,
        policy=policy,
        cluster=cluster,
        discipline="easy" if isinstance(policy, str) else None,
        baseline=None,
        repeat_signal=True,
    )


def came_to(name: str, ran: Any, against: float) -> dict[str, Any]:
    """Return what a policy saved, how many of its jobs were late, and how long they waited."""
    return {
        name: 1 - float(ran.tally.amount.sum()) / against,
        f"{name}_late": int(ran.missed.sum()),
        f"{name}_wait_h": float(ran.wait_s.mean()) / HOUR,
    }


def measured(cell: Cell, count: int, seed: int) -> dict[str, Any]:
    """Return what comes out in a cell."""
    clock = process_time()
    row = without_forecasts(replace(cell, forecast=BASE.forecast), count, seed)
    signal, jobs, cluster = jobs_of(cell, count, seed)
    online = ClusterPolicy(forecasts=foreseen(cell.forecast, seed))
    ran = simulated(signal, jobs, cluster, online)
    return {**row, **came_to("online", ran, row["easy_g"]), "cpu_s": process_time() - clock}


def known_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells that a file has, as they were measured; none where there is no file."""
    return pl.read_csv(path, infer_schema_length=None).to_dicts() if path.exists() else []


def study(
    folder: Path, axes: Mapping[str, Sequence[Any]], count: int, seeds: Sequence[int], drawn: int
) -> pl.DataFrame:
    """Measure all cells, draw the figures, and return the table; what is known is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    known_at = folder / "cells.csv"
    rows = known_cells(known_at)
    keys = [each.name for each in fields(Cell)] + ["jobs", "seed"]
    known = {tuple(row[key] for key in keys) for row in rows}
    wanted = list(cells(axes, seeds, drawn))
    for number, (cell, seed) in enumerate(wanted, 1):
        key = {**asdict(cell), "jobs": count, "seed": seed}
        if tuple(key.values()) in known:
            continue
        rows.append({**key, **measured(cell, count, seed)})
        print(f"{number}/{len(wanted)}", rows[-1], flush=True)
        write_whole(known_at, pl.DataFrame(rows).write_csv().encode())
    asked = {(*asdict(cell).values(), count, seed) for cell, seed in wanted}
    table = pl.DataFrame([row for row in rows if tuple(row[key] for key in keys) in asked])
    figures = {axis: figure(table, axis) for axis in axes}
    if drawn:
        figures["drawn"] = scatter(table)
    for name, chart in figures.items():
        for suffix in ("png", "svg"):
            save_image(chart, folder / f"limited-machines-{name}.{suffix}")
    return table


def column(table: pl.DataFrame, name: str) -> FloatArray:
    """Return a column of numbers."""
    return table[name].to_numpy().astype(float)


def beside_base(table: pl.DataFrame, axis: str) -> pl.DataFrame:
    """Return the cells that differ from the base in one axis at most, in the order of the axis."""
    others = [each.name for each in fields(Cell) if each.name != axis]
    some = table.filter(
        pl.col("seed") < FIRST_DRAWN, *(pl.col(name) == getattr(BASE, name) for name in others)
    )
    order = {value: place for place, value in enumerate(sorted(AXES[axis], key=_rank))}
    return some.sort(pl.col(axis).replace_strict(order, default=len(order)), "seed")


def figure(table: pl.DataFrame, axis: str) -> Any:
    """Return what is saved and who is late over one axis; lines go from draw to draw."""
    some = beside_base(table, axis).with_columns(
        **{f"{who}_late": 100 * pl.col(f"{who}_late") / pl.col("jobs") for who in (*WHO, "easy")}
    )
    groups = [
        (_short(axis, value), part) for (value,), part in some.group_by(axis, maintain_order=True)
    ]
    order = [name for name, _ in groups]
    named = [*WHO.values(), "EASY"]
    colour = alt.Color(
        "who:N",
        title=None,
        sort=named,
        scale=alt.Scale(domain=named, range=[*COLOURS, INK]),
    )

    def panel(keys: Mapping[str, str], title: str, scale: float, height: int) -> Any:
        rows = [
            {
                "at": name,
                "who": who,
                "mean": scale * column(part, key).mean(),
                "low": scale * column(part, key).min(),
                "high": scale * column(part, key).max(),
                "most": 100 * column(part, "most").mean(),
            }
            for name, part in groups
            for key, who in keys.items()
        ]
        base = alt.Chart(inline(rows)).encode(
            x=alt.X("at:N", title=TITLES[axis], sort=order, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("who:N", sort=list(keys.values())),
        )
        bars = base.mark_bar(opacity=0.85).encode(y=alt.Y("mean:Q", title=title), color=colour)
        spread = base.mark_rule(color=INK, strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
        parts = [bars, spread]
        if "plan" in keys:
            most = base.mark_tick(color=INK, thickness=2).encode(y="most:Q")
            parts.append(most.transform_filter("datum.who == 'all known'"))
        return alt.layer(*parts).properties(width=WIDTH, height=height)

    late = {f"{who}_late": name for who, name in {**WHO, "easy": "EASY"}.items()}
    title = TITLES[axis][0].upper() + TITLES[axis][1:]
    return alt.vconcat(
        panel(WHO, "saved against EASY, %", 100, 190), panel(late, "late jobs, %", 1, 110)
    ).properties(title=f"{title}: what is saved (tick: at most), and who is late")


def scatter(table: pl.DataFrame) -> Any:
    """Return what is saved online over what all knowledge saves, where everything is drawn."""
    some = table.filter(pl.col("seed") >= FIRST_DRAWN)
    rows = [
        {
            "plan": 100 * row["plan"],
            "saved": 100 * row[who],
            "who": WHO[who],
            "load": f"{row['load']:.0%}",
        }
        for row in some.iter_rows(named=True)
        for who in ("online", "booked", "start")
    ]
    names = [WHO[who] for who in ("online", "booked", "start")]
    points = (
        alt.Chart(inline(rows), width=WIDTH, height=320)
        .mark_point(size=60, filled=True, opacity=0.8)
        .encode(
            x=alt.X("plan:Q", title="saved where all is known, %"),
            y=alt.Y("saved:Q", title="saved by who does not, %"),
            color=alt.Color("who:N", title=None, scale=alt.Scale(domain=names, range=COLOURS[1:])),
            shape=alt.Shape("load:N", title="load"),
        )
    )
    far = max(row["plan"] for row in rows)
    ends = inline([{"plan": 0, "saved": 0}, {"plan": far, "saved": far}])
    line = alt.Chart(ends).mark_line(color=INK, strokeDash=[4, 3]).encode(x="plan:Q", y="saved:Q")
    return alt.layer(line, points).properties(title="Everything drawn at once: a point is a queue")


def _short(axis: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g} times" if axis == "slack" else f"{100 * value:g} %"
    return str(value).split("T00")[0]


def _rank(value: Any) -> tuple[float, str]:
    return (value, "") if isinstance(value, float) else (0.0, "")


def told(table: pl.DataFrame, axis: str) -> str:
    """Return the table of an axis for the page: means over the draws, and from least to most."""
    head = ["all known", "at most", "online", "booked", "carbon_time"]
    everybody = " / ".join((*WHO.values(), "EASY"))
    lines = [f"| {TITLES[axis]} | {' | '.join(head)} | online keeps | late: {everybody} |"]
    lines.append("|---|" + "--:|" * (len(head) + 1) + "---|")
    for (value,), part in beside_base(table, axis).group_by(axis, maintain_order=True):
        keys = ("plan", "most", "online", "booked", "start")
        cells = " | ".join(_spread(column(part, key)) for key in keys)
        kept = column(part, "online").sum() / column(part, "plan").sum()
        late = " / ".join(str(part[f"{who}_late"].sum()) for who in (*WHO, "easy"))
        lines.append(f"| {_short(axis, value)} | {cells} | {kept:.0%} | {late} |")
    return "\n".join(lines)


def _spread(values: FloatArray) -> str:
    low, mean, high = (100 * float(each) for each in (values.min(), values.mean(), values.max()))
    return f"{mean:.1f} % ({low:.1f} to {high:.1f})" if len(values) > 1 else f"{mean:.1f} %"


def told_drawn(table: pl.DataFrame) -> str:
    """Return the table of cells in which all is drawn: by each value of each axis."""
    some = table.filter(pl.col("seed") >= FIRST_DRAWN)
    lines = ["| | cells | all known | online keeps | booked keeps | late: online | EASY |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    names = ("plan", "online", "booked", "online_late", "easy_late", "jobs")
    parts = [("all", some)] + [
        (f"{TITLES[axis]}: {_short(axis, value)}", some.filter(pl.col(axis) == value))
        for axis in AXES
        for value in sorted(AXES[axis], key=_rank)
    ]
    for name, part in parts:
        if not len(part):
            continue
        total = {name: column(part, name).sum() for name in names}
        plan, jobs = total["plan"], total["jobs"]
        kept = " | ".join(f"{total[who] / plan:.0%}" for who in ("online", "booked"))
        late = " | ".join(f"{total[f'{who}_late'] / jobs:.1%}" for who in ("online", "easy"))
        lines.append(f"| {name} | {len(part)} | {100 * plan / len(part):.1f} % | {kept} | {late} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the study and print its tables."""
    if not arguments:
        print(__doc__)
        return 2
    small = "small" in arguments
    axes = SMALL if small else AXES
    some = {name: values for name, values in axes.items() if name in arguments}
    asked = some or ({} if "drawn" in arguments else axes)
    drawn = DRAWN if "drawn" in arguments or not (small or some) else 0
    numbers = dict(each.split("=") for each in arguments if "=" in each)
    count = int(numbers.get("jobs", SMALL_JOBS if small else JOBS))
    seeds = [int(each) for each in numbers["seed"].split(",")] if "seed" in numbers else SEEDS
    drawn = int(numbers.get("drawn", drawn))
    table = study(Path(arguments[0]), asked, count, seeds, drawn)
    for axis in asked:
        print(told(table, axis), end="\n\n")
    if drawn:
        print(told_drawn(table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
