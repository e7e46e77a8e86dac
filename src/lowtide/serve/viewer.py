"""Who looks, and what they may see: the only way to rows.

Whatever a page or a program is told comes from a `Viewer`, which adds to every question whose rows
may answer it. On PostgreSQL the server holds the same rule by itself (`serve.guards`), should a
question ever lack it. What is not theirs and what is not there look the same. Whenever the staff
is given somebody's row, or a sum that is one user's, it is written down whose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import sqlalchemy as sa

from lowtide.errors import InvalidInput, UnknownName
from lowtide.hindsight.job import Hindsight, SeenJob, look_at, look_back
from lowtide.serve.audit import write_look
from lowtide.serve.guards import for_viewer
from lowtide.serve.job_courses import behind, seen
from lowtide.serve.kept_looks import kept_look
from lowtide.serve.node_idle import OwnNodes, own_nodes_of
from lowtide.serve.node_views import QUARTER_S, NodeNow, Span, last_quarter, now_of, within
from lowtide.serve.schema import (
    accounts,
    audit,
    incarnations,
    jobs,
    members,
    quarantine,
    unit_now,
    usage_month,
)
from lowtide.serve.sums import among, usage
from lowtide.serve.waiting import QueueState, queue_of
from lowtide.serve.wanted import Wanted
from lowtide.states import NOT_OVER
from lowtide.store import JobRecord, Retention, Series, Store
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.layout import PLACE, TOTALS, unpack_numbers
from lowtide.store.records import HostRecord
from lowtide.store.series import Histories
from lowtide.store.tables import hosts, split, units

Role = Literal["user", "support", "admin", "owner"]
# Who sees all; the owner of a machine looks at what is theirs, the others are written down.
_ALL: tuple[Role, ...] = ("support", "admin", "owner")
_LOGGED: tuple[Role, ...] = ("support", "admin")
MOST_ROWS = 500
# By what jobs may be put in order; beside it their end, and what tells two apart.
ORDERS = ("over", "energy_j", "carbon_g", "elapsed_s", "started")
_RECORD = tuple(field.name for field in fields(JobRecord))
_DAY_S = 86400.0
# For how long a job that nobody hears of is said to run.
_SILENT_S = 180.0
# What programs and pages ask again by themselves is written down once in so long a time.
_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class VisibleJob:
    """A job that may be seen.

    Attributes:
        ref: What it is called in addresses.
        over: When it was over, infinity while it is not.
        record: The job.
    """

    ref: str
    over: float
    record: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What somebody is to others.

    Attributes:
        leads: The accounts whose jobs they may see, as `CLUSTER/ACCOUNT`, those below included.
        member: The accounts whose sums they may see.
        knows: The accounts whose jobs they may see by other means than they came with.
    """

    role: Role = "user"
    leads: frozenset[str] = frozenset()
    member: frozenset[str] = frozenset()
    knows: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks.

    Attributes:
        database: The centre.
        user: Who it is.
        rights: What they are to others.
        least_users: So many others have to be in a sum that is told to somebody who may not see
            what each of them did.
        opens_totals: Whether everybody is told what all nodes do together, however few use them.
        only: The `ref` of the one job that may be seen, by a link to it; empty for no such limit.
    """

    database: Database = field(repr=False)
    user: str
    rights: Rights
    now: float
    least_users: int = 5
    opens_totals: bool = False
    only: str = ""

    @property
    def seen(self) -> Database:
        """The centre, which on a server gives what this viewer may see and nothing else."""
        rights = self.rights
        return for_viewer(
            self.database,
            user=self.user,
            sees_all=self.sees_all,
            leads=rights.leads,
            member=rights.member,
            knows=rights.leads | rights.knows,
            only=self.only,
        )

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Give a connection that, on a server, is held to what may be seen."""
        return self.seen.reading()

    @property
    def sees_all(self) -> bool:
        """Whether everybody's jobs may be seen."""
        return self.rights.role in _ALL

    @property
    def is_noted(self) -> bool:
        """Whether it is written down when they are given what is others'."""
        return self.rights.role in _LOGGED

    def jobs(
        self,
        wanted: Wanted,
        *,
        order: str = "over",
        after: tuple[float, str] | None = None,
        most: int = 50,
    ) -> list[VisibleJob]:
        """Return jobs, the last to end or the largest first.

        Args:
            after: Where the list before ended: what its last job had of what the order is by, and
                its `ref`.
            most: How many.
        """
        if order not in ORDERS:
            raise UnknownName("order", order, ORDERS)
        if not 1 <= most <= MOST_ROWS:
            raise InvalidInput(f"a list has 1 to {MOST_ROWS} jobs, not {most}")
        by = jobs.c.over if order == "over" else sa.func.coalesce(jobs.c[order], -1.0)
        question = sa.select(jobs).where(*wanted.rules()).order_by(by.desc(), jobs.c.ref.desc())
        if after is not None:
            place = sa.tuple_(by, jobs.c.ref) < sa.tuple_(*map(sa.literal, after))
            question = question.where(place)
        with self.reading() as connection:
            rows = connection.execute(question.where(self.may_see(jobs)).limit(most)).mappings()
            found = [self.found(dict(row)) for row in rows]
        self.note({each.record.user or "" for each in found}, "jobs")
        return found

    def numbers(
        self, rules: Sequence[sa.ColumnElement[bool]], *, after: str = "", most: int
    ) -> dict[int, str]:
        """Return the store's numbers of jobs that may be seen, each with its `ref`, in order.

        They are for asking the store of these jobs, and are not told: they count everybody's.

        Args:
            rules: What a row of `schema.jobs` has to be.
            after: The `ref` of the job behind which the list goes on.
        """
        question = sa.select(jobs.c.number, jobs.c.ref, jobs.c.user).where(
            *rules, self.may_see(jobs)
        )
        with self.reading() as connection:
            if after:
                place = sa.select(jobs.c.number).where(jobs.c.ref == after, self.may_see(jobs))
                number = connection.execute(place).scalar()
                if number is None:
                    raise InvalidInput("after is what the list before gave as next")
                question = question.where(jobs.c.number > number)
            rows = connection.execute(question.order_by(jobs.c.number).limit(most)).all()
        self.note({row.user or "" for row in rows}, "jobs")
        return {row.number: row.ref for row in rows}

    def job(self, ref: str) -> VisibleJob | None:
        """Return a job; None where there is none such that may be seen."""
        row = self._row(ref)
        if row is None:
            return None
        self.note({row["user"] or ""}, f"job {row['shown_id'] or row['job_id']}")
        return self.found(row)

    def course(
        self, ref: str, *, start: float | None = None, end: float | None = None
    ) -> Series | None:
        """Return what a job used over time; None where there is none such that may be seen."""
        row = self._row(ref)
        if row is None:
            return None
        self.note({row["user"] or ""}, f"course of job {row['shown_id'] or row['job_id']}")
        # The row was given: what follows asks for that job alone.
        with self.reading() as connection:
            ran_on = [each.number for each in self._hosts(connection, split(row["hosts"]))]
            known = Histories(connection, start=start, end=end, hosts=ran_on)
            return next(known.of_jobs([row["number"]]))

    def phases(self, ref: str) -> str | None:
        """Return the phases that were found in a job, as JSON; None where there are none."""
        row = self._row(ref)
        if row is None:
            return None
        return Store(self.seen, Retention()).phases_of_many([row["number"]]).get(row["number"])

    def look_back(self, ref: str) -> tuple[VisibleJob, Hindsight] | None:
        """Return everything that is known of a job; None where there is none such to be seen."""
        found = self.job(ref)
        return None if found is None else (found, self.looked_back(found))

    def looked_back(self, found: VisibleJob) -> Hindsight:
        """Return everything that is known of a job that was found."""
        record = found.record
        told = kept_look(self.seen, record) or seen(self.seen, record)
        return look_back(Store(self.seen, Retention()), record, seen=told, cure="")

    def seen_of(self, found: VisibleJob) -> SeenJob:
        """Return what was seen of a job that was found, while it ran."""
        kept = kept_look(self.seen, found.record)
        return look_at(Store(self.seen, Retention()), found.record) if kept is None else kept

    def behind(self, found: VisibleJob) -> tuple[Series, list[Series]]:
        """Return what a job that was found used over time, and what its nodes did meanwhile."""
        with self.reading() as connection:
            return behind(connection, found.record)

    def cluster_courses(self) -> dict[str, Series] | None:
        """Return what all nodes did of late; None where that is not to be told.

        Who does not see all is told it of the last full quarter of an hour, if enough others had
        jobs in it: what one of them drew is in no difference of two such sums.
        """
        start, end = self.now - QUARTER_S, None
        if not self.sees_all:
            start, end = last_quarter(self.now)
            if not self.opens_totals and self._others(start, end) < self.least_users:
                return None
        with self.reading() as connection:
            known = read_hosts(connection)
            numbers = [each.number for each in known]
            histories = Histories(connection, start=start, end=end, hosts=numbers)
            wanted = [(each.node_unit, each.number) for each in known]
            found = [
                series if end is None else within(series, [(start, end)])
                for series in histories.of_nodes(wanted)
            ]
        return dict(zip([each.name for each in known], found, strict=True))

    def own_nodes(self, named: str, names: Sequence[str]) -> OwnNodes | None:
        """Return what a project came to with its own nodes, as `serve.node_idle` tells it."""
        return own_nodes_of(self, named, names)

    def queue(self) -> QueueState:
        """Return what waits in the queue, by partition, as `serve.waiting` tells it."""
        return queue_of(self)

    def accounts(self) -> list[str]:
        """Return the accounts of which sums may be seen, as `CLUSTER/ACCOUNT`."""
        if not self.sees_all:
            return sorted(self.rights.leads | self.rights.member)
        with self.reading() as connection:
            named = connection.execute(sa.select(accounts.c.cluster, accounts.c.account)).all()
            of = usage_month.c
            used = connection.execute(sa.select(of.cluster, of.account).distinct()).all()
        return sorted({f"{row.cluster}/{row.account}" for row in (*named, *used) if row.account})

    def usage(
        self, by: str, *, start: float, end: float, wanted: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return what was used between two moments, summed up by one thing.

        What may be seen is in every sum. Of an account that somebody is in and does not lead they
        are told what `serve.sums` says; such a sum is marked `partial`.

        Args:
            by: One of `DIMENSIONS`, `hour` or `day`.
            start: A full hour, epoch seconds.
            end: A full hour.
            wanted: What the jobs have to be, by `DIMENSIONS`.
        """
        return usage(self, by, start=start, end=end, wanted=wanted or {})

    def going(self, connection: sa.Connection, accounts: frozenset[str]) -> list[Mapping[str, Any]]:
        """Return the jobs that go on in accounts that the viewer is in, for sums of these."""
        if self.database.is_file:
            question: sa.Executable = sa.select(jobs).where(
                sa.not_(jobs.c.settled), among(jobs, accounts)
            )
        else:
            question = sa.text("SELECT * FROM lowtide_going()")
        rows = map(dict, connection.execute(question).mappings())
        return [row for row in rows if f"{row['cluster']}/{row['account']}" in accounts]

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes, and when each was last heard of."""
        with self.reading() as connection:
            known = {row.host: row for row in connection.execute(
                sa.select(incarnations).order_by(incarnations.c.received)
            )}  # fmt: skip
            found = read_hosts(connection)
        return [
            {
                "name": each.name,
                "cluster": known[each.name].cluster if each.name in known else "",
                "last_time": each.last_time,
                "interval_s": each.interval_s,
                "skew_s": known[each.name].skew_s if each.name in known else math.nan,
            }
            for each in found
        ]

    def node_course(self, name: str, *, start: float, end: float | None = None) -> Series | None:
        """Return what a node did over time; None where there is none such.

        Who does not see all is told of the time in which jobs ran there that they may see, and
        besides that only what is nobody's.
        """
        series = self._course_of(name, start, end)
        if series is None or self.rights.role == "owner":
            return series
        until = self.now if end is None else end
        if self.sees_all:
            owners = {user for user, _ in self._seen_on(name, start, until)}
            self.note(owners, f"node {name}", every_s=_AGAIN_S)
            return series
        return within(series, [span for _, span in self._seen_on(name, start, until)])

    def grid_course(self, name: str, *, start: float) -> Series | None:
        """Return what is known of the grid by a node; None where there is none such."""
        series = self._course_of(name, start, None)
        return None if series is None else within(series, [])

    def node_now(self, name: str) -> NodeNow | None:
        """Return what a node did in the last quarter of an hour; None where there is none such."""
        return self.nodes_now([name]).get(name)

    def nodes_now(self, names: Sequence[str]) -> dict[str, NodeNow]:
        """Return what nodes did in the last quarter of an hour, of those that there are."""
        span = last_quarter(self.now)
        with self.reading() as connection:
            known = self._hosts(connection, names)
            numbers = [each.number for each in known]
            histories = Histories(connection, start=span[0], end=span[1], hosts=numbers)
            found = list(histories.of_nodes([(each.node_unit, each.number) for each in known]))
        return {
            each.name: now_of(each.name, series, span)
            for each, series in zip(known, found, strict=True)
        }

    def _course_of(self, name: str, start: float, end: float | None) -> Series | None:
        with self.reading() as connection:
            known = self._hosts(connection, (name,))
            if not known:
                return None
            histories = Histories(connection, start=start, end=end, hosts=[known[0].number])
            return histories.of_node(known[0].node_unit, known[0].number)

    def _seen_on(self, name: str, start: float, end: float) -> list[tuple[str, Span]]:
        """Return whose jobs that may be seen were on a node, and when.

        Only what the node itself saw counts: whoever is root on another node may have that one tell
        of jobs wherever and whenever they like.
        """
        of = sa.func.coalesce(unit_now.c.totals, units.c.totals)
        question = (
            sa.select(jobs.c.user, units.c.started, of)
            .join(units, units.c.job == jobs.c.number)
            .join(hosts, hosts.c.id == units.c.host)
            .outerjoin(unit_now, unit_now.c.unit == units.c.id)
            .where(self.may_see(jobs), hosts.c.name == name, jobs.c.over >= start)
        )
        with self.reading() as connection:
            rows = connection.execute(question).all()
        totals = unpack_numbers([used for *_, used in rows], TOTALS)
        seen = totals[:, [PLACE["first_seen"], PLACE["last_seen"]]].tolist()
        # It is first seen at the end of the first step in which it ran.
        spans = [
            (user or "", (started if 0 < started < first else first, last))
            for (user, started, _), (first, last) in zip(rows, seen, strict=True)
        ]
        return [each for each in spans if each[1][0] <= end and each[1][1] >= start]

    def _others(self, start: float, end: float) -> int:
        """Return how many had jobs between two moments that the viewer may not know."""
        if self.database.is_file:
            begins = sa.func.coalesce(jobs.c.started, jobs.c.first_seen)
            question = sa.select(sa.func.count(jobs.c.user.distinct())).where(
                jobs.c.last_seen >= start,
                begins <= end,
                sa.not_(sa.func.coalesce(self.may_know(jobs), sa.false())),
                # Whom a node alone names may be nobody.
                jobs.c.user.in_(sa.select(members.c.user)),
            )
        else:
            question = sa.select(sa.func.lowtide_people(start, end))
        with self.reading() as connection:
            return int(connection.execute(question).scalar_one())

    def health(self) -> dict[str, Any]:
        """Return how the centre fares; what was set aside is told to those who see all."""
        with self.reading() as connection:
            count = sa.select(sa.func.count()).select_from(quarantine)
            aside = connection.execute(count).scalar_one() if self.sees_all else None
            of = quarantine.c
            last = sa.select(of.host, of.received, of.reason).order_by(of.id.desc())
            rows = connection.execute(last.limit(50)).all() if self.sees_all else []
        nodes = self.nodes()
        return {
            "nodes": len(nodes),
            "silent": [each["name"] for each in nodes if self._is_silent(each)],
            "set_aside": aside,
            "pieces": [
                {"host": row.host, "received": row.received, "reason": row.reason} for row in rows
            ],
            "meters": self._meters() if self.sees_all else [],
        }

    def _meters(self) -> list[dict[str, Any]]:
        """Return the nodes that could not measure all of what jobs drew there in the last day."""
        of = jobs.c
        summed = [of[name] for name in ("energy_j", "measured_j", "unmetered_s", "unpriced_j")]
        question = (
            sa.select(of.hosts, *(sa.func.coalesce(sa.func.sum(each), 0.0) for each in summed))
            # Of several nodes nobody could say which it was.
            .where(of.over >= self.now - _DAY_S, of.hosts.like(",_%,"), ~of.hosts.like(",%,%,"))
            .group_by(of.hosts)
            .order_by(of.hosts)
        )
        with self.reading() as connection:
            rows = connection.execute(question).all()
        return [
            {
                "host": split(where)[0],
                "measured": measured_j / energy_j if energy_j > 0 else None,
                "unmetered_s": unmetered_s,
                "priced": 1 - unpriced_j / energy_j if energy_j > 0 else None,
            }
            for where, energy_j, measured_j, unmetered_s, unpriced_j in rows
            if unmetered_s > 0 or max(energy_j - measured_j, unpriced_j) > 1e-3 * energy_j
        ]

    def looks(self) -> list[dict[str, Any]]:
        """Return who looked at this user's jobs, the last first."""
        question = sa.select(audit).where(audit.c.owner == self.user).order_by(audit.c.id.desc())
        with self.reading() as connection:
            return [
                {"time": row.time, "viewer": row.viewer, "role": row.role, "what": row.what}
                for row in connection.execute(question.limit(200))
            ]

    def all_looks(self) -> list[dict[str, Any]]:
        """Return who of the staff looked at whose jobs, the last first; for those who see all."""
        if not self.sees_all:
            return []
        question = sa.select(audit).order_by(audit.c.id.desc()).limit(MOST_ROWS)
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(question).mappings()]

    def _is_silent(self, node: Mapping[str, Any]) -> bool:
        return not self.now - node["last_time"] <= max(3 * node["interval_s"], _SILENT_S)

    def _hosts(self, connection: sa.Connection, names: Sequence[str]) -> list[HostRecord]:
        wanted = set(names)
        return [each for each in read_hosts(connection) if each.name in wanted]

    def _row(self, ref: str) -> Mapping[str, Any] | None:
        question = sa.select(jobs).where(jobs.c.ref == ref, self.may_see(jobs))
        with self.reading() as connection:
            row = connection.execute(question).mappings().first()
            return None if row is None else dict(row)

    def may_see(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """Return whose rows of jobs, or of sums over jobs, may be seen."""
        if self.only:
            mine = table.c.user == self.user
            return sa.and_(mine, table.c.ref == self.only) if table is jobs else sa.false()
        if self.sees_all:
            return sa.true()
        return sa.or_(table.c.user == self.user, among(table, self.rights.leads))

    def may_know(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """Return whose rows may be seen by this viewer, however they come.

        What is told of others is told without these: or else it, less what they see by another
        token, would be what one of the others did.
        """
        known = self.rights.leads | self.rights.knows
        return sa.or_(table.c.user == self.user, among(table, known))

    def found(self, row: Mapping[str, Any]) -> VisibleJob:
        """Return a job that may be seen, from its row."""
        values = {name: row[name] for name in _RECORD}
        values["hosts"] = split(row["hosts"])
        values["shown_id"] = row["shown_id"] or row["job_id"]
        for each in fields(JobRecord):
            if str(each.type) == "float" and values[each.name] is None:
                values[each.name] = math.nan
        quiet_s = self.now - (row["last_seen"] or -math.inf)
        if row["state"] in NOT_OVER[1:] and quiet_s > _SILENT_S and row["last_seen"]:
            # Nobody has heard of it for a while, nor of its end.
            values["state"] = None
        return VisibleJob(row["ref"], row["over"], JobRecord(**values))

    def note(
        self, owners: set[str], what: str, *, every_s: float = 0.0, of_nobody: bool = False
    ) -> None:
        """Write down that somebody of the staff looked at what is others'.

        Args:
            of_nobody: Whether it is written down, for the staff to read, if it is nobody's, too.
            every_s: For how long the same look is not written down again.
        """
        if not self.is_noted:
            return
        whose = owners - {self.user, ""} | ({""} if of_nobody else set())
        write_look(
            self.database, self.user, self.rights.role, what, whose, now=self.now, every_s=every_s
        )
