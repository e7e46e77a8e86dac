"""What jobs and nodes did over time, from chunks and the ticks since to a series to be drawn."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from lowtide.monitor.quantities import JOB
from lowtide.monitor.quantities import NODE as OF_NODE
from lowtide.monitor.snapshot import FloatArray
from lowtide.store.codec import Points, decode
from lowtide.store.layout import NODE, UNIT, Layout
from lowtide.store.records import Series
from lowtide.store.tables import chunks, in_parts, units
from lowtide.store.totals import Newest, last_known

IntArray = npt.NDArray[np.int64]

# Of so many hosts at most every look is a step of their sum.
_FEW_HOSTS = 4
# That of more has steps of a round length that begin at round moments.
_ROUND_S = np.array([1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600], dtype=float)
# Rounding leaves a trace of time where there is none.
_TRACE_S = 1e-3

# What a counter is called where its growth is divided by time; others are shown per step only.
# What is drawn comes first.
_RATES = {
    layout.number: {
        each.name: each.rate
        for each in sorted(known, key=lambda each: each.origin != "added")
        if each.rate and each.is_counter
    }
    for layout, known in ((UNIT, JOB), (NODE, OF_NODE))
}


def names_of(layout: Layout) -> tuple[str, ...]:
    """Return the columns that a series has."""
    return (*_RATES[layout.number].values(), *layout.gauges, *layout.counters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Courses:
    """The courses of many things of one kind, one after the other.

    Attributes:
        layout: Which columns are kept.
        owners: Whose each step is, ascending.
        times: When it ended, ascending for each owner.
        step_s: How long it was.
        columns: One value per step, as in `Series`.
    """

    layout: Layout
    owners: IntArray
    times: FloatArray
    step_s: FloatArray
    columns: Mapping[str, FloatArray]

    def of(self, owner: int) -> Series:
        """Return the course of one."""
        first, last = np.searchsorted(self.owners, [owner, owner + 1])
        rows = slice(int(first), int(last))
        return Series(
            times=self.times[rows],
            step_s=self.step_s[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    @classmethod
    def joined(cls, series: Mapping[int, Series], layout: Layout) -> Courses:
        """Put courses one after the other."""
        parts = list(series.values())
        lengths = [len(part) for part in parts]
        names = names_of(layout)
        return cls(
            layout=layout,
            owners=np.repeat(np.array(list(series), dtype=np.int64), lengths),
            times=np.concatenate([part.times for part in parts]),
            step_s=np.concatenate([part.step_s for part in parts]),
            columns={
                name: np.concatenate([part.columns[name] for part in parts]) for name in names
            },
        )

    def renamed(self, names: Mapping[int, int]) -> Courses:
        """Return them as those of others."""
        known, place = np.unique(self.owners, return_inverse=True)
        owners = np.array([names[each] for each in known.tolist()], dtype=np.int64)
        return replace(self, owners=owners[place])


def courses(
    owners: Sequence[int], parts: Sequence[Points], layout: Layout, *, start: float, end: float
) -> Courses:
    """Return values as courses: each sorted by time, with holes filled by NaN.

    Args:
        parts: The values, in stretches that each know what their counters stood at before.
    """
    owner, time, length, table = _steps(owners, parts, layout)
    chosen = (time > start) & (time - length < end)
    # Clocks are set back now and then between two watchers.
    order = np.lexsort((time, owner))
    order = order[chosen[order]]
    owner, time, length, table = owner[order], time[order], length[order], table[order]
    follows = np.zeros(owner.size, dtype=bool)
    follows[1:] = owner[1:] == owner[:-1]
    before = np.append(-np.inf, time[:-1])
    begins = time - length
    begins = np.where(follows, np.maximum(begins, before), begins)
    hole = np.flatnonzero(follows & (begins - before > 1e-3))
    ends = np.insert(time, hole, begins[hole])
    begins = np.insert(begins, hole, before[hole])
    owner = np.insert(owner, hole, owner[hole])
    table = np.insert(table, hole, np.nan, axis=0)
    steps = ends - begins
    kept = steps > 0
    return Courses(
        layout=layout,
        owners=owner[kept],
        times=ends[kept],
        step_s=steps[kept],
        columns=_columns(steps[kept], table[kept], layout),
    )


def summed(parts: Sequence[tuple[int, int, Series]], layout: Layout) -> Series:
    """Return the series of a job that runs on several hosts: what it used on all of them.

    Before a host first saw it and after the last time it did, the job used nothing there. In a
    hole in between nobody knows, and the sum is unknown, too. The steps of a part of the time are
    those of the whole: but for the first and the last they do not depend on where it begins.

    Args:
        parts: Its units, each with its number, its host's, and its course; those without any
            are of its hosts as well.
    """
    are_many = len({host for _, host, _ in parts}) > _FEW_HOSTS
    courses = [part for *_, part in parts if len(part)]
    if not courses:
        return Series.nothing(names_of(layout))
    if len(courses) == 1 and not are_many:
        return courses[0]
    edges = np.unique(np.concatenate([part.edges for part in courses]))
    if are_many:
        # Hundreds of hosts look at moments of their own: no step need be shorter than theirs.
        usual_s = float(np.median(max(courses, key=len).step_s))
        grid = _round_moments(edges[0], edges[-1], usual_s)
        table = sum(_onto(part, grid, layout) for part in courses)
        return _series(grid[1:], np.diff(grid), np.asarray(table), layout)
    # Rounding must not make steps of its own.
    edges = edges[np.append(np.diff(edges) > _TRACE_S, True)]
    steps = np.diff(edges)
    middles = (edges[:-1] + edges[1:]) / 2
    table = np.zeros((steps.size, len(layout.counters) + len(layout.gauges)))
    for part in courses:
        place = np.searchsorted(part.times, middles)
        inside = (middles > part.starts[0]) & (place < len(part))
        place = np.minimum(place, len(part) - 1)
        for number, name in enumerate(layout.names):
            values = part.columns[name][place]
            if number < len(layout.counters):
                values = values * (steps / part.step_s[place])
            table[:, number] += np.where(inside, values, 0.0)
    return _series(edges[1:], steps, table, layout)


def _round_moments(first: float, last: float, step_s: float) -> FloatArray:
    """Return two moments, and between them those that are a multiple of about a step."""
    round_s = _ROUND_S[np.abs(np.log(_ROUND_S / step_s)).argmin()]
    inside = round_s * np.arange(first // round_s + 1, -(-last // round_s))
    inside = inside[(inside - first > _TRACE_S) & (last - inside > _TRACE_S)]
    return np.concatenate(([first], inside, [last]))


def _onto(part: Series, edges: FloatArray, layout: Layout) -> FloatArray:
    """Return what a host used and held between other edges, nothing before and after its time."""
    own = part.edges
    lengths = np.diff(own)
    values = np.column_stack([part.columns[name] for name in layout.names])
    gauges = slice(len(layout.counters), None)
    amounts = np.nan_to_num(values)
    amounts[:, gauges] *= lengths[:, None]
    unknown = np.isnan(values)
    # Up to each edge of the others, as if what is used in a step were used evenly.
    moments = np.clip(edges, own[0], own[-1])
    place = np.clip(np.searchsorted(own, moments, side="right") - 1, 0, lengths.size - 1)
    share = ((moments - own[place]) / lengths[place])[:, None]

    def between(each: FloatArray) -> FloatArray:
        upto = np.vstack([np.zeros_like(each[:1]), np.cumsum(each, axis=0)])
        return np.diff(upto[place] + share * each[place], axis=0)

    table = between(amounts)
    table[:, gauges] /= np.diff(edges)[:, None]
    if unknown.any():
        table[between(unknown * lengths[:, None]) > _TRACE_S] = np.nan
    return table


def _steps(
    owners: Sequence[int], parts: Sequence[Points], layout: Layout
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return whose steps are, when they ended, how long they were, and what was used and held."""
    if not parts:
        empty = np.empty(0)
        return np.empty(0, dtype=np.int64), empty, empty, np.empty((0, len(layout.names)))
    time = np.concatenate([part.time for part in parts])
    length = time - np.concatenate([part.since for part in parts])
    counters = np.vstack([part.counters for part in parts])
    gauges = np.vstack([part.gauges for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    # A look that comes at once has no step of its own: what it counted goes to the next.
    real = length > 0
    if not real.all():
        time, length, counters, gauges, part_of = (
            each[real] for each in (time, length, counters, gauges, part_of)
        )
    first = np.searchsorted(part_of, np.arange(len(parts)))
    # A counter that nobody knew began at 0; one that was not known for a while goes on from where
    # it stood. As every part begins with a known row, none is taken from the part before.
    bases = np.nan_to_num(np.stack([part.base for part in parts]))
    stood = last_known(np.insert(counters, first, bases, axis=0))
    place = np.arange(time.size) + part_of + 1
    used = np.where(np.isnan(counters), np.nan, stood[place] - stood[place - 1])
    whose = np.asarray(owners, dtype=np.int64)[part_of]
    return whose, time, length, np.hstack([used, gauges])


def _columns(steps: FloatArray, table: FloatArray, layout: Layout) -> dict[str, FloatArray]:
    columns = {name: table[:, place] for place, name in enumerate(layout.names)}
    rates = {rate: columns[name] / steps for name, rate in _RATES[layout.number].items()}
    return {name: (rates | columns)[name] for name in names_of(layout)}


def _series(ends: FloatArray, steps: FloatArray, table: FloatArray, layout: Layout) -> Series:
    return Series(times=ends, step_s=steps, columns=_columns(steps, table, layout))


# Values of jobs are read together up to so many.
_POINTS = 50_000
# So are those of so many nodes.
_NODES = 20


class Histories:
    """What was seen in a stretch of time, as of one moment.

    Args:
        start: Only what was later than this moment, epoch seconds.
        hosts: The only ones that are asked about, where that is known.
    """

    def __init__(
        self,
        connection: sa.Connection,
        *,
        start: float | None = None,
        end: float | None = None,
        hosts: Sequence[int] | None = None,
    ) -> None:
        self._connection = connection
        self._newest = Newest(connection, hosts=hosts)
        self._start, self._end = start, end

    def of_jobs(self, jobs: Sequence[int]) -> Iterator[Series]:
        """Yield what each of many jobs used, on all its hosts together."""
        for part in self._batches(jobs):
            mine, found = self._read_jobs(part)
            for job in part:
                yield summed([(*each, found.of(each[0])) for each in mine[job]], UNIT)

    def of_units(self, job: int) -> list[tuple[int, int, Series]]:
        """Return what a job used, apart for each unit: its number, its host's, and its course."""
        mine, found = self._read_jobs([job])
        return [(unit, host, found.of(unit)) for unit, host in mine[job]]

    def of_parts(self, jobs: Sequence[int]) -> Iterator[Courses]:
        """Yield what many jobs used, many together; the owners are the jobs."""
        for part in self._batches(jobs):
            mine, found = self._read_jobs(part)
            if all(len(pairs) == 1 for pairs in mine.values()):
                yield found.renamed({pairs[0][0]: job for job, pairs in mine.items()})
            else:
                # Those that ran on several hosts are summed one by one.
                yield Courses.joined(
                    {
                        job: summed([(*each, found.of(each[0])) for each in mine[job]], UNIT)
                        for job in part
                    },
                    UNIT,
                )

    def of_node(self, unit: int, host: int) -> Series:
        """Return what a node did."""
        return next(self.of_nodes([(unit, host)]))

    def of_nodes(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Series]:
        """Yield what each of many nodes did.

        Args:
            wanted: The numbers that each has as a unit and as a host.
        """
        # Few enough that there is room for months of each.
        for first in range(0, len(wanted), _NODES):
            part = wanted[first : first + _NODES]
            found = self._read(part, NODE)
            yield from (found.of(unit) for unit, _ in part)

    def _batches(self, jobs: Sequence[int]) -> Iterator[list[int]]:
        """Yield as many jobs together as there is room for their values."""
        for part in in_parts(jobs):
            points = dict.fromkeys(part, 0)
            counted = (
                sa.select(units.c.job, sa.func.sum(chunks.c.points))
                .join(chunks, chunks.c.unit == units.c.id)
                .where(units.c.job.in_(part))
                .group_by(units.c.job)
            )
            points |= {job: int(count) for job, count in self._connection.execute(counted)}
            batch: list[int] = []
            held = 0
            for job in part:
                if batch and held + points[job] > _POINTS:
                    yield batch
                    batch, held = [], 0
                batch.append(job)
                held += points[job]
            yield batch

    def _read_jobs(self, jobs: Sequence[int]) -> tuple[dict[int, list[tuple[int, int]]], Courses]:
        """Return the units and hosts of jobs, and the courses of all those units."""
        mine: dict[int, list[tuple[int, int]]] = defaultdict(list)
        rows = self._connection.execute(
            sa.select(units.c.job, units.c.id, units.c.host)
            .where(units.c.job.in_(jobs))
            .order_by(units.c.id)
        )
        for job, unit, host in rows:
            mine[job].append((unit, host))
        return mine, self._read([each for pairs in mine.values() for each in pairs], UNIT)

    def _read(self, wanted: Sequence[tuple[int, int]], layout: Layout) -> Courses:
        owners: list[int] = []
        parts = []
        for some in in_parts([unit for unit, _ in wanted]):
            question = (
                sa.select(chunks.c.unit, chunks.c.body)
                .where(chunks.c.unit.in_(some))
                .order_by(chunks.c.unit, chunks.c.begins)
            )
            if self._start is not None:
                question = question.where(chunks.c.ends >= self._start)
            if self._end is not None:
                question = question.where(chunks.c.begins <= self._end)
            for unit, body in self._connection.execute(question).all():
                owners.append(unit)
                parts.append(decode(body)[1])
        for unit, host in wanted:
            late = (
                self._newest.of_node(host) if layout is NODE else self._newest.of_unit(unit, host)
            )
            owners += [unit] * len(late)
            parts += late
        return courses(
            owners,
            parts,
            layout,
            start=-math.inf if self._start is None else self._start,
            end=math.inf if self._end is None else self._end,
        )
