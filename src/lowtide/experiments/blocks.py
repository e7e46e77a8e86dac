"""What the jobs that arrived in each day or week of a run came to.

One trace under one policy is one run, and a run by itself says nothing of chance. Its weeks do: had
others like them come, how far would the sum have moved? So a sweep keeps, beside the numbers of
each run, their sums by day of arrival, or by week where a run is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.accounting import integrate
from lowtide.errors import FormatError
from lowtide.signal import FloatArray, Signal, carbon_and_price

if TYPE_CHECKING:
    import polars as pl

    from lowtide.simulator import Simulation
    from lowtide.simulator.queueing import NodeSpans

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]

TABLE = "blocks.parquet"
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
#: So many blocks let chance be told; runs of fewer weeks are kept by days.
LEAST_BLOCKS = 20
# Weeks begin on Mondays, and the first day of 1970 was a Thursday.
_MONDAY_S = 4 * DAY_S

#: What is summed. `amount` is what savings are told of, the nodes' share of it included.
SUMS = ("jobs", "wait_s", "carbon_g", "cost", "amount", "baseline_amount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The days or weeks of a run in which jobs arrived.

    Attributes:
        step_s: How long a block is: a day or a week.
        number: Which each is, counted from the first Monday of 1970.
        sums: What its jobs came to, by name; what is not known is left out.
    """

    step_s: float
    number: IntArray
    sums: Mapping[str, FloatArray]

    def by_weeks(self) -> Blocks:
        """Return the same by weeks."""
        if self.step_s == WEEK_S:
            return self
        weeks, place = np.unique(self.number // 7, return_inverse=True)
        sums = {name: _added(place, each) for name, each in self.sums.items()}
        return Blocks(step_s=WEEK_S, number=weeks, sums=sums)


def block_sums(simulation: Simulation) -> dict[str, Any]:
    """Return what jobs came to by the day or week of their arrival, as plain lists.

    What nodes drew counts in the block in which they drew it, the last one after that.
    """
    arrival = simulation.jobs.arrival
    long = float(np.ptp(arrival)) >= LEAST_BLOCKS * WEEK_S
    step_s = WEEK_S if long else DAY_S
    numbers, place = np.unique(
        np.floor((arrival - _MONDAY_S) / step_s).astype(np.int64), return_inverse=True
    )

    def summed(values: FloatArray | float | None) -> FloatArray | None:
        if values is None:
            return None
        return _added(place, np.broadcast_to(values, place.shape))

    tally, before = simulation.tally, simulation.baseline
    amount = summed(tally.amount)
    theirs = None if before is None else summed(before.amount)
    cluster = simulation.cluster
    if cluster is not None and cluster.draws_power and theirs is not None:
        carbon, price = carbon_and_price(simulation.signal)
        counted = price if carbon is None else carbon
        edges = _MONDAY_S + step_s * numbers[1:].astype(np.float64)
        for total, spans in (
            (amount, simulation.node_spans),
            (theirs, simulation.baseline_node_spans),
        ):
            if spans is not None and counted is not None and total is not None:
                total += cluster.pue * _by_time(spans, edges, counted)
    sums = {
        "jobs": summed(1.0),
        "wait_s": summed(simulation.wait_s),
        "carbon_g": summed(tally.carbon_g),
        "cost": summed(tally.cost),
        "amount": amount,
        "baseline_amount": theirs,
    }
    known = {name: each.tolist() for name, each in sums.items() if each is not None}
    return {"step_s": step_s, "number": numbers.tolist(), **known}


def blocks_table(blocks: Iterable[tuple[str, Mapping[str, Any]]]) -> pl.DataFrame:
    """Return the blocks of many runs, a row for each.

    Args:
        blocks: The id of each run, and its blocks as plain lists.
    """
    import polars as pl

    every = list(blocks)
    lengths = [len(each["number"]) for _, each in every]
    columns: dict[str, Any] = {
        "id": [name for (name, _), count in zip(every, lengths, strict=True) for _ in range(count)],
        "step_s": np.repeat([float(each["step_s"]) for _, each in every], lengths),
        "number": [number for _, each in every for number in each["number"]],
    }
    for name in SUMS:
        columns[name] = [
            value
            for (_, each), count in zip(every, lengths, strict=True)
            for value in each.get(name, [None] * count)
        ]
    kinds = {"id": pl.String, "step_s": pl.Float64, "number": pl.Int64}
    return pl.DataFrame(
        columns, schema={name: kinds.get(name, pl.Float64) for name in columns}, strict=False
    )


def read_blocks(folder: Path) -> dict[str, Blocks]:
    """Return the blocks of each run of a study by its id; none where the sweep kept none."""
    import polars as pl

    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        table = pl.read_parquet(path).sort("id", "number")
        number, step_s = table["number"].to_numpy(), table["step_s"].to_numpy()
        # Whole columns, cut where the next run begins: a study may have a hundred thousand runs.
        columns = {key: table[key].cast(pl.Float64).to_numpy() for key in SUMS}
        ends = np.flatnonzero(np.diff(table["id"].rle_id().to_numpy(), append=-1)) + 1
        names = table["id"].to_list()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise FormatError(f"not a table of blocks: {error}", path=path) from error
    found = {}
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        own = {key: each[begin:end] for key, each in columns.items()}
        found[str(names[begin])] = Blocks(
            step_s=float(step_s[begin]),
            number=number[begin:end],
            sums={key: each for key, each in own.items() if not np.isnan(each).any()},
        )
    return found


def _by_time(spans: NodeSpans, edges: FloatArray, signal: Signal) -> FloatArray:
    """Return what nodes drew came to between edges; before the first and after the last too."""
    # Brings the simulator, which whoever only reads results does without.
    from lowtide.simulator.results import Series

    if not spans.begin.size:
        return np.zeros(edges.size + 1)
    drawn = Series.of_spans(spans.begin, spans.end, spans.power_w)
    inside = edges[(edges > drawn.times[0]) & (edges < drawn.times[-1])]
    times = np.union1d(drawn.times, inside)
    came_to = integrate(drawn.at(times[:-1]), times[:-1], times[1:], signal)
    place = np.searchsorted(edges, times[:-1], side="right")
    return _added(place, came_to, count=edges.size + 1)


def _added(place: IntArray, values: FloatArray, count: int = 0) -> FloatArray:
    return np.bincount(place, weights=values, minlength=count).astype(np.float64)
