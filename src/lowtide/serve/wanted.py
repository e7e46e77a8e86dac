"""Which jobs are asked for, and what their rows have to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from lowtide.errors import InvalidInput, UnknownName
from lowtide.hindsight.waste import LEAST_S, ZOMBIE_S
from lowtide.serve.schema import is_renamed, jobs
from lowtide.states import STATES

# SQLite refuses to look for much more.
_LONGEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs are asked for; empty means all that may be seen.

    Attributes:
        start: Those that ran after this moment, epoch seconds.
        end: Those that ran before this moment.
        name: Those whose name begins so.
        job: Those with this number, as users type it.
        began: Only those that have begun.
        suspect: Only those that may have wasted something; what they did, their course says.
    """

    users: Sequence[str] = ()
    accounts: Sequence[str] = ()
    partitions: Sequence[str] = ()
    clusters: Sequence[str] = ()
    states: Sequence[str] = ()
    host: str = ""
    name: str = ""
    job: str = ""
    start: float | None = None
    end: float | None = None
    began: bool = False
    suspect: bool = False

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in STATES:
                raise UnknownName("state", state, STATES)
        if max(map(len, (self.host, self.name, self.job))) > _LONGEST:
            raise InvalidInput(f"jobs are looked for by {_LONGEST} characters at most")

    def rules(self) -> Iterator[sa.ColumnElement[bool]]:
        """Yield what a row has to be."""
        for column, values in (
            (jobs.c.user, self.users),
            (jobs.c.account, self.accounts),
            (jobs.c.partition, self.partitions),
            (jobs.c.cluster, self.clusters),
            (jobs.c.state, self.states),
        ):
            if values:
                yield column.in_(list(values))
        if self.host:
            yield jobs.c.hosts.contains(f",{self.host},", autoescape=True)
        if self.name:
            yield jobs.c.name.startswith(self.name, autoescape=True)
        if self.job:
            renamed = sa.and_(is_renamed, jobs.c.shown_id == self.job)
            yield sa.or_(jobs.c.job_id == self.job, renamed)
        if self.start is not None:
            yield jobs.c.over >= self.start
        if self.end is not None:
            yield sa.func.coalesce(jobs.c.started, jobs.c.submitted, 0.0) <= self.end
        if self.began:
            yield jobs.c.started.is_not(None)
        if self.suspect:
            of = jobs.c
            yield of.elapsed_s >= LEAST_S
            yield sa.or_(
                of.peak_cpus * 2 <= of.cpus,
                of.peak_cpus > of.cpus,
                of.peak_memory_bytes * 2 <= of.memory_bytes,
                of.time_limit_s >= 2 * of.elapsed_s,
                sa.and_(of.gpus > 0, of.gpu_busy_s < 0.9 * of.gpus * of.seen_s),
                # An hour in which nothing is done: of a longer job little is left over.
                sa.and_(of.seen_s >= 3600.0, of.cpu_s < of.cpus * (of.seen_s - 3600.0)),
                of.last_seen > of.ended + ZOMBIE_S,
                of.hosts.like(",%,%,"),
            )
