"""The store: everything that was watched, kept in one database.

```python
with Store.open() as store:
    for job in store.jobs(users=["ada"]):
        print(job.shown_id, job.energy_j)
```
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import sqlalchemy as sa

from lowtide.errors import InvalidInput, StoreProblem, UnknownName
from lowtide.store.database import Database, default_place
from lowtide.store.jobs import JobTable, Question, read_hosts, read_jobs
from lowtide.store.records import HostRecord, JobRecord, Retention, Series, gaps_in
from lowtide.store.tables import (
    bring_up_to_date,
    check_version,
    chunks,
    hosts,
    in_parts,
    phases,
    present,
    size_bytes,
    synthetic_grids,
)

if TYPE_CHECKING:
    from lowtide.monitor.snapshot import JobFacts, Unit
    from lowtide.monitor.tick import Tick
    from lowtide.store.compaction import Pruned
    from lowtide.store.damage import Check
    from lowtide.store.outbox import Outbox
    from lowtide.store.series import Courses
    from lowtide.store.writer import HostWriter

# How often the writer looks for what is old, and how much of it is done at once.
_TIDY_S = 3600.0
_TIDY_CHUNKS = 2000


class Store:
    """An open store. Open it once and keep it: a store that is opened anew counts anew.

    Attributes:
        has_all_hosts: Whether `hosts` are all that there are, so that their sum means anything.
    """

    has_all_hosts: bool = True

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention
        self._writers: dict[str, HostWriter] = {}
        self._tidied = -math.inf

    @classmethod
    def open(
        cls,
        where: str | Path | None = None,
        *,
        readonly: bool = False,
        retention: Retention | None = None,
    ) -> Self:
        """Open a store, made or brought up to date where need be.

        Args:
            where: A path, a `sqlite:` or `postgresql:` address, or None for the usual place.
            readonly: Whether nothing shall be written, not even a file made.
        """
        place = default_place(reading=readonly) if where is None else where
        database = Database(place, readonly=readonly)
        try:
            if readonly:
                check_version(database)
            else:
                bring_up_to_date(database)
        except BaseException:
            database.close()
            raise
        return cls(database, retention or Retention())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Where it is, without any password."""
        return self._database.name

    def close(self) -> None:
        """Put ticks in order and let go of the database."""
        try:
            for writer in self._writers.values():
                writer.consolidate()
        except StoreProblem:
            # The ticks are safe where they are; whoever opens the store next does it.
            pass
        finally:
            self._writers.clear()
            self._database.close()

    def append(self, tick: Tick) -> None:
        """Keep a tick. It is whole in the database when this returns.

        Args:
            tick: What was found. Its counters count on from what the store holds already, unless
                this very store was given the tick before.
        """
        # Here and below: a list of jobs comes sooner without what it does not need.
        from lowtide.store.compaction import roll_up_old
        from lowtide.store.writer import HostWriter

        if not math.isfinite(tick.time) or not math.isfinite(tick.since):
            raise InvalidInput(f"a tick has a time, not {tick.since} to {tick.time}")
        writer = self._writers.get(tick.host)
        if writer is None:
            writer = self._writers[tick.host] = HostWriter(self._database, tick.host)
        writer.append(tick)
        if tick.time - self._tidied >= _TIDY_S:
            self._tidied = tick.time
            roll_up_old(self._database, self._retention, now=tick.time, most=_TIDY_CHUNKS)

    @contextmanager
    def claim(self, host: str) -> Iterator[None]:
        """Hold a host while it is watched, so that no other process counts it a second time.

        Args:
            host: Its name. A `StoreProblem` names who holds it already.
        """
        from lowtide.store.database import claimed

        with claimed(self._database, host):
            yield

    def last_look(self, host: str) -> tuple[float, dict[Unit, float]] | None:
        """Return when a host was last looked at, and the CPU time of what ran there.

        Args:
            host: Its name; None comes back where it was never looked at.
        """
        from lowtide.store.writer import last_look

        return last_look(self._database, host)

    def put_facts(self, facts: Iterable[JobFacts]) -> None:
        """Keep what is known of jobs besides what they use, whether they were seen or not.

        Args:
            facts: The facts; what they leave open stays as it is.
        """
        from lowtide.store.matching import place_facts

        with self._database.writing() as connection:
            place_facts(connection, list(facts))

    def waiting(self, source: str, *, cluster: str = "") -> list[tuple[str, float | None]]:
        """Return the numbers of jobs last known to wait, and when they were submitted.

        Args:
            source: Where they were found, one of `monitor.snapshot.SOURCES`.
        """
        from lowtide.store.matching import waiting

        with self._database.reading() as connection:
            return waiting(connection, source, cluster=cluster)

    def put_phases(self, record: JobRecord, document: str | None) -> None:
        """Keep the phases that were found in a job's course.

        Args:
            document: The phases as JSON text; None to forget them.
        """
        with self._database.writing() as connection:
            connection.execute(sa.delete(phases).where(phases.c.job == record.number))
            if document is not None:
                connection.execute(sa.insert(phases).values(job=record.number, document=document))

    def synthetic(self) -> list[tuple[str, float, float]]:
        """Return when which host's grams were those of a synthetic grid."""
        with self._database.reading() as connection:
            if synthetic_grids not in present(connection):
                return []
            question = sa.select(hosts.c.name, synthetic_grids.c.begins, synthetic_grids.c.ends)
            rows = connection.execute(question.join(hosts, hosts.c.id == synthetic_grids.c.host))
            return [(row.name, row.begins, row.ends) for row in rows]

    def phases(self, record: JobRecord) -> str | None:
        """Return the phases that were found in a job's course, as JSON text."""
        return self.phases_of_many([record.number]).get(record.number)

    def phases_of_many(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the phases that were found in jobs, as JSON text by the store's numbers."""
        found: dict[int, str] = {}
        with self._database.reading() as connection:
            for part in in_parts(numbers if phases in present(connection) else ()):
                question = sa.select(phases.c.job, phases.c.document)
                rows = connection.execute(question.where(phases.c.job.in_(part))).all()
                found |= {row.job: row.document for row in rows}
        return found

    def jobs(
        self,
        *,
        users: Sequence[str] = (),
        start: float | None = None,
        end: float | None = None,
        ids: Sequence[str] = (),
        states: Sequence[str] = (),
        hosts: Sequence[str] = (),
        clusters: Sequence[str] = (),
        now: float | None = None,
    ) -> list[JobRecord]:
        """Return jobs, in the order in which they were first heard of.

        Args:
            start: Only those that ran after this moment, epoch seconds.
            ids: Only those with these numbers; an array's number stands for all its elements.
            now: The present moment; by default it is.
        """
        question = Question(
            users=users,
            start=start,
            end=end,
            ids=ids,
            states=states,
            hosts=hosts,
            clusters=clusters,
        )
        return self.table(question, now=now).records()

    def table(
        self, question: Question, *, now: float | None = None, whole: bool = True
    ) -> JobTable:
        """Return jobs in columns, for those who want many of them fast.

        Args:
            now: The present moment; by default it is.
            whole: Whether to read everything, or only what a short list shows.
        """
        moment = time.time() if now is None else now
        with self._database.reading() as connection:
            return read_jobs(connection, question, now=moment, whole=whole)

    def hosts(self) -> list[HostRecord]:
        """Return the hosts that are or were watched."""
        with self._database.reading() as connection:
            return read_hosts(connection)

    def series(
        self, record: JobRecord, *, start: float | None = None, end: float | None = None
    ) -> Series:
        """Return what a job used over time, on all its hosts together.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        return next(self.many_series([record], start=start, end=end))

    def many_series(
        self, records: Iterable[JobRecord], *, start: float | None = None, end: float | None = None
    ) -> Iterator[Series]:
        """Yield what many jobs used over time, one after the other, as of one moment.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        from lowtide.store.series import Histories

        numbers = [record.number for record in records]
        with self._database.reading() as connection:
            yield from Histories(connection, start=start, end=end).of_jobs(numbers)

    def courses(
        self, numbers: Sequence[int], *, start: float | None = None, end: float | None = None
    ) -> Iterator[Courses]:
        """Yield what many jobs used over time, many together, as of one moment.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        from lowtide.store.series import Histories

        with self._database.reading() as connection:
            yield from Histories(connection, start=start, end=end).of_parts(numbers)

    def node_series(
        self, host: str, *, start: float | None = None, end: float | None = None
    ) -> Series:
        """Return what a node did over time.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        return next(self.many_node_series([host], start=start, end=end))

    def many_node_series(
        self, hosts: Sequence[str], *, start: float | None = None, end: float | None = None
    ) -> Iterator[Series]:
        """Yield what many nodes did over time, one after the other, as of one moment.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        from lowtide.store.series import Histories

        with self._database.reading() as connection:
            known = {each.name: each for each in read_hosts(connection)}
            for host in hosts:
                if host not in known:
                    raise UnknownName("host", host, known)
            wanted = [(known[host].node_unit, known[host].number) for host in hosts]
            yield from Histories(connection, start=start, end=end).of_nodes(wanted)

    def gaps(
        self, host: str, *, start: float | None = None, end: float | None = None
    ) -> tuple[tuple[float, float], ...]:
        """Return when nobody watched a host: stretches of more than two intervals.

        Args:
            start: Look from this moment on; by default from the first tick.
            end: Look up to this moment; by default up to the last tick.
        """
        series = self.node_series(host, start=start, end=end)
        interval = next((each.interval_s for each in self.hosts() if each.name == host), math.nan)
        return gaps_in(series, interval, start=start, end=end)

    def outbox(self, host: str) -> Outbox:
        """Return what this store has still to tell a centre of a host.

        Args:
            host: Its name.
        """
        from lowtide.store.outbox import Outbox

        return Outbox(self._database, host)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        most_bytes: int | None = None,
        now: float | None = None,
    ) -> Pruned:
        """Roll up what is due, delete what is too old or too much, and give the room back.

        Args:
            most_bytes: Delete the oldest until the store takes no more room than this.
            now: The present moment; by default it is.
        """
        from lowtide.store.compaction import prune

        moment = time.time() if now is None else now
        with self._database.taking_long():
            for writer in self._writers.values():
                writer.consolidate()
            return prune(
                self._database,
                self._retention,
                now=moment,
                older_than_s=older_than_s,
                most_bytes=most_bytes,
            )

    def check(self) -> Check:
        """Read everything, and return what is wrong."""
        from lowtide.store.damage import check

        with self._database.taking_long():
            return check(self._database)

    def export(
        self, folder: Path | str, *, start: float | None = None, end: float | None = None
    ) -> dict[str, int]:
        """Write everything as Parquet files, and return how many rows of each kind.

        Args:
            folder: Where to; it is made if need be.
            start: Only jobs and values after this moment, epoch seconds.
        """
        from lowtide.store.exporting import export

        with self._database.taking_long():
            return export(self, Path(folder), start=start, end=end)

    def sizes(self) -> dict[str, int]:
        """Return how much there is: rows of each table, values, and bytes in all."""
        with self._database.reading() as connection:
            sizes = {
                table.name: int(
                    connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                )
                for table in present(connection)
            }
            points = connection.execute(
                sa.select(chunks.c.resolution, sa.func.sum(chunks.c.points)).group_by(
                    chunks.c.resolution
                )
            )
            sizes |= {f"points_{resolution}": int(count) for resolution, count in points}
            sizes["bytes"] = size_bytes(self._database, connection)
        return sizes
