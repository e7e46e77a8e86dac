"""What jobs and nodes did over time, read from chunks and from the ticks since.

Many jobs are read together: a question for each takes longer than the answers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from lowtide.store.columns import NODE, UNIT, Layout
from lowtide.store.courses import Courses, courses, summed
from lowtide.store.encoding import decode
from lowtide.store.newest import Newest
from lowtide.store.records import Series
from lowtide.store.tables import chunks, in_parts, units

# Values of jobs are read together up to so many.
_POINTS = 50_000
# So are those of so many nodes.
_NODES = 20


class Histories:
    """What was seen in a stretch of time, as of one moment.

    Args:
        start: Only what was later than this moment, epoch seconds.
    """

    def __init__(
        self, connection: sa.Connection, *, start: float | None = None, end: float | None = None
    ) -> None:
        self._connection = connection
        self._newest = Newest(connection)
        self._start, self._end = start, end

    def of_jobs(self, jobs: Sequence[int]) -> Iterator[Series]:
        """Yield what each of many jobs used, on all its hosts together."""
        for part in self._batches(jobs):
            mine, found = self._read_jobs(part)
            for job in part:
                yield summed([found.of(unit) for unit, _ in mine[job]], UNIT)

    def of_parts(self, jobs: Sequence[int]) -> Iterator[Courses]:
        """Yield what many jobs used, many together; the owners are the jobs."""
        for part in self._batches(jobs):
            mine, found = self._read_jobs(part)
            if all(len(pairs) == 1 for pairs in mine.values()):
                yield found.renamed({pairs[0][0]: job for job, pairs in mine.items()})
            else:
                # Those that ran on several hosts are summed one by one.
                yield Courses.joined(
                    {job: summed([found.of(unit) for unit, _ in mine[job]], UNIT) for job in part},
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
