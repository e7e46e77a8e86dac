"""Who looks, and what they may see: the only way to rows.

Whatever a page or a program is told comes from a `Viewer`, which adds to every question whose rows
may answer it. On PostgreSQL the server holds the same rule by itself, should a question ever lack
it. What is not theirs and what is not there look the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import sqlalchemy as sa

from lowtide.errors import InvalidInput, UnknownName
from lowtide.hindsight.job import Hindsight, look_back
from lowtide.hindsight.waste import LEAST_S, ZOMBIE_S
from lowtide.serve.ledger import HOUR_S, parts_of
from lowtide.serve.schema import (
    BETWEEN,
    COUNTED,
    DIMENSIONS,
    LEADS,
    MEMBER,
    READER,
    SEES,
    SUMMED,
    USAGE,
    WHO,
    accounts,
    audit,
    incarnations,
    jobs,
    quarantine,
)
from lowtide.states import NOT_OVER, STATES
from lowtide.store import JobRecord, Retention, Series, Store
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.records import HostRecord
from lowtide.store.series import Histories
from lowtide.store.tables import split

Role = Literal["user", "support", "admin", "owner"]
# Who sees all; the owner of a machine looks at what is theirs, the others are written down.
_ALL: tuple[Role, ...] = ("support", "admin", "owner")
_LOGGED: tuple[Role, ...] = ("support", "admin")
MOST_ROWS = 500
# By what jobs may be put in order; beside it their end, and what tells two apart.
ORDERS = ("over", "energy_j", "carbon_g", "elapsed_s", "started")
_RECORD = tuple(field.name for field in fields(JobRecord))
# For how long a job that nobody hears of is said to run.
_SILENT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs are asked for; empty means all that may be seen.

    Attributes:
        start: Those that ran after this moment, epoch seconds.
        end: Those that ran before this moment.
        name: Those whose name begins so.
        job: Those with this number, as users type it.
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
    suspect: bool = False

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in STATES:
                raise UnknownName("state", state, STATES)

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
            yield sa.or_(jobs.c.job_id == self.job, jobs.c.shown_id == self.job)
        if self.start is not None:
            yield jobs.c.over >= self.start
        if self.end is not None:
            yield sa.func.coalesce(jobs.c.started, jobs.c.submitted, 0.0) <= self.end
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
    """

    role: Role = "user"
    leads: frozenset[str] = frozenset()
    member: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks.

    Attributes:
        database: The centre.
        user: Who it is.
        rights: What they are to others.
        now: The present moment, epoch seconds.
    """

    database: Database = field(repr=False)
    user: str
    rights: Rights
    now: float

    @property
    def sees_all(self) -> bool:
        """Whether everybody's jobs may be seen."""
        return self.rights.role in _ALL

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
        with self._reading() as connection:
            rows = connection.execute(question.where(self._mine()).limit(most)).mappings()
            found = [self._found(dict(row)) for row in rows]
        self._note({each.record.user or "" for each in found}, "jobs")
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
        question = sa.select(jobs.c.number, jobs.c.ref, jobs.c.user).where(*rules, self._mine())
        with self._reading() as connection:
            if after:
                place = sa.select(jobs.c.number).where(jobs.c.ref == after, self._mine())
                number = connection.execute(place).scalar()
                if number is None:
                    raise InvalidInput("after is what the list before gave as next")
                question = question.where(jobs.c.number > number)
            rows = connection.execute(question.order_by(jobs.c.number).limit(most)).all()
        self._note({row.user or "" for row in rows}, "jobs")
        return {row.number: row.ref for row in rows}

    def job(self, ref: str) -> VisibleJob | None:
        """Return a job; None where there is none such that may be seen."""
        row = self._row(ref)
        if row is None:
            return None
        self._note({row["user"] or ""}, f"job {row['shown_id']}")
        return self._found(row)

    def course(
        self, ref: str, *, start: float | None = None, end: float | None = None
    ) -> Series | None:
        """Return what a job used over time; None where there is none such that may be seen."""
        row = self._row(ref)
        if row is None:
            return None
        # The row was given: what follows asks for that job alone.
        with self.database.reading() as connection:
            ran_on = [each.number for each in self._hosts(connection, split(row["hosts"]))]
            known = Histories(connection, start=start, end=end, hosts=ran_on)
            return next(known.of_jobs([row["number"]]))

    def look_back(self, ref: str) -> tuple[VisibleJob, Hindsight] | None:
        """Return everything that is known of a job; None where there is none such to be seen."""
        found = self.job(ref)
        if found is None:
            return None
        return found, look_back(Store(self.database, Retention()), found.record)

    def behind(self, found: VisibleJob) -> tuple[Series, list[Series]]:
        """Return what a job that was found used over time, and what its nodes did meanwhile."""
        record = found.record
        with self.database.reading() as connection:
            ran_on = self._hosts(connection, record.hosts)
            known = Histories(connection, hosts=[each.number for each in ran_on])
            series = next(known.of_jobs([record.number]))
            if not len(series):
                return series, []
            meanwhile = Histories(
                connection,
                start=float(series.starts[0]),
                end=float(series.times[-1]),
                hosts=[each.number for each in ran_on],
            )
            order = {name: place for place, name in enumerate(record.hosts)}
            ran_on = sorted(ran_on, key=lambda each: order[each.name])
            return series, list(
                meanwhile.of_nodes([(each.node_unit, each.number) for each in ran_on])
            )

    def node_courses(self, *, start: float) -> dict[str, Series]:
        """Return what all nodes did since a moment; nobody's name is in it."""
        with self.database.reading() as connection:
            known = read_hosts(connection)
            histories = Histories(connection, start=start, hosts=[each.number for each in known])
            wanted = [(each.node_unit, each.number) for each in known]
            return dict(zip([each.name for each in known], histories.of_nodes(wanted), strict=True))

    def accounts(self) -> list[str]:
        """Return the accounts of which sums may be seen, as `CLUSTER/ACCOUNT`."""
        if not self.sees_all:
            return sorted(self.rights.leads | self.rights.member)
        with self.database.reading() as connection:
            named = connection.execute(sa.select(accounts.c.cluster, accounts.c.account)).all()
            used = connection.execute(
                sa.select(USAGE[86400].c.cluster, USAGE[86400].c.account).distinct()
            ).all()
        return sorted({f"{row.cluster}/{row.account}" for row in (*named, *used) if row.account})

    def usage(
        self, by: str, *, start: float, end: float, wanted: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return what was used between two moments, summed up by one thing.

        Those who lead nothing are told sums of the accounts that they are in, and of themselves;
        what is below that is nobody's but theirs.

        Args:
            by: One of `DIMENSIONS`, `hour` or `day`.
            start: A full hour, epoch seconds.
            end: A full hour.
            wanted: What the jobs have to be, by `DIMENSIONS`.
        """
        if by not in (*DIMENSIONS, "hour", "day"):
            raise UnknownName("--by", by, (*DIMENSIONS, "hour", "day"))
        if start % HOUR_S or end % HOUR_S or not 0 <= start < end:
            raise InvalidInput("usage is told from one full hour to a later one")
        of = {name: value for name, value in (wanted or {}).items() if name in DIMENSIONS}
        sums: dict[Any, dict[str, Any]] = {}
        with self._reading() as connection:
            for table, first, last in _stretches(start, end, hourly=by == "hour"):
                key = table.c.begins if by in ("hour", "day") else table.c[by]
                question = (
                    sa.select(key, *(sa.func.sum(table.c[name]) for name in (*COUNTED, *SUMMED)))
                    .where(table.c.begins >= first, table.c.begins < last)
                    .where(*(table.c[name] == value for name, value in of.items()))
                    .where(self._counted(table, by, of))
                    .group_by(key)
                )
                for group, *values in connection.execute(question):
                    name = _day(group) if by == "day" else group
                    _add(sums, name, dict(zip((*COUNTED, *SUMMED), values, strict=True)))
        # Of those that go on a member is told the sum alone, and the server would hold back rows.
        going = sa.select(jobs).where(sa.not_(jobs.c.settled), jobs.c.last_seen >= start)
        going = going.where(*(jobs.c[name] == value for name, value in of.items()))
        with self.database.reading() as connection:
            for row in connection.execute(going.where(self._counted(jobs, by, of))).mappings():
                _add_going(sums, dict(row), by, start, end)
        for here in sums.values():
            for name, lacking in (("energy_j", "without_energy"), ("carbon_g", "without_carbon")):
                # Where nobody knows of any job, the sum is not 0.
                if here[lacking] and not here[name]:
                    here[name] = None
        return [{by: group, **sums[group]} for group in sorted(sums)]

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes, and when each was last heard of."""
        with self.database.reading() as connection:
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

        Nobody's name is in it: how many jobs it had, and what all of them drew.
        """
        with self.database.reading() as connection:
            known = [each for each in read_hosts(connection) if each.name == name]
            if not known:
                return None
            histories = Histories(connection, start=start, end=end, hosts=[known[0].number])
            return histories.of_node(known[0].node_unit, known[0].number)

    def health(self) -> dict[str, Any]:
        """Return how the centre fares; what was set aside is told to those who see all."""
        with self.database.reading() as connection:
            count = sa.select(sa.func.count()).select_from(quarantine)
            aside = connection.execute(count).scalar_one() if self.sees_all else None
            last = sa.select(
                quarantine.c.host, quarantine.c.received, quarantine.c.reason
            ).order_by(quarantine.c.id.desc())
            rows = connection.execute(last.limit(50)).all() if self.sees_all else []
        nodes = self.nodes()
        silent = [each["name"] for each in nodes if self._is_silent(each)]
        return {
            "nodes": len(nodes),
            "silent": silent,
            "set_aside": aside,
            "pieces": [
                {"host": row.host, "received": row.received, "reason": row.reason} for row in rows
            ],
        }

    def looks(self) -> list[dict[str, Any]]:
        """Return who looked at this user's jobs, the last first."""
        question = sa.select(audit).where(audit.c.owner == self.user).order_by(audit.c.id.desc())
        with self._reading() as connection:
            return [
                {"time": row.time, "viewer": row.viewer, "role": row.role, "what": row.what}
                for row in connection.execute(question.limit(200))
            ]

    def all_looks(self) -> list[dict[str, Any]]:
        """Return who of the staff looked at whose jobs, the last first; for those who see all."""
        if not self.sees_all:
            return []
        question = sa.select(audit).order_by(audit.c.id.desc()).limit(MOST_ROWS)
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(question).mappings()]

    def _is_silent(self, node: Mapping[str, Any]) -> bool:
        return not self.now - node["last_time"] <= max(3 * node["interval_s"], _SILENT_S)

    def _hosts(self, connection: sa.Connection, names: Sequence[str]) -> list[HostRecord]:
        return [each for each in read_hosts(connection) if each.name in names]

    def _row(self, ref: str) -> Mapping[str, Any] | None:
        question = sa.select(jobs).where(jobs.c.ref == ref, self._mine())
        with self._reading() as connection:
            row = connection.execute(question).mappings().first()
            return None if row is None else dict(row)

    def _mine(self) -> sa.ColumnElement[bool]:
        """Return whose rows may be seen."""
        if self.sees_all:
            return sa.true()
        return sa.or_(jobs.c.user == self.user, _among(jobs, self.rights.leads))

    def _counted(
        self, table: sa.Table, by: str, wanted: Mapping[str, str]
    ) -> sa.ColumnElement[bool]:
        """Return whose jobs may be counted in sums."""
        if self.sees_all:
            return sa.true()
        mine = sa.or_(table.c.user == self.user, _among(table, self.rights.leads))
        # A member is told of the account as a whole, and of no part of it that is another's.
        whole = by == "account" and wanted.keys() <= {"account", "cluster"}
        return sa.or_(mine, _among(table, self.rights.member)) if whole else mine

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """Give a connection that, on a server, is held to what may be seen."""
        with self.database.reading() as connection:
            if not self.database.is_file:
                connection.exec_driver_sql(f"SET LOCAL ROLE {READER}")
                connection.exec_driver_sql("SET LOCAL statement_timeout = '5s'")
                settings = {
                    SEES: "all" if self.sees_all else "own",
                    WHO: self.user,
                    LEADS: BETWEEN.join(sorted(self.rights.leads)),
                    MEMBER: BETWEEN.join(sorted(self.rights.member)),
                }
                said = [sa.func.set_config(name, value, True) for name, value in settings.items()]
                connection.execute(sa.select(*said))
            yield connection

    def _found(self, row: Mapping[str, Any]) -> VisibleJob:
        values = {name: row[name] for name in _RECORD}
        values["hosts"] = split(row["hosts"])
        for each in fields(JobRecord):
            if str(each.type) == "float" and values[each.name] is None:
                values[each.name] = math.nan
        quiet_s = self.now - (row["last_seen"] or -math.inf)
        if row["state"] in NOT_OVER[1:] and quiet_s > _SILENT_S and row["last_seen"]:
            # Nobody has heard of it for a while, nor of its end.
            values["state"] = None
        return VisibleJob(row["ref"], row["over"], JobRecord(**values))

    def _note(self, owners: set[str], what: str) -> None:
        """Write down that somebody of the staff looked at others' jobs."""
        if self.rights.role not in _LOGGED:
            return
        named = {"time": self.now, "viewer": self.user, "role": self.rights.role, "what": what}
        rows = [{**named, "owner": owner} for owner in sorted(owners - {self.user, ""})]
        if rows:
            with self.database.writing() as connection:
                connection.execute(sa.insert(audit), rows)


def _among(table: sa.Table, accounts: frozenset[str]) -> sa.ColumnElement[bool]:
    """Return whether a row is of some accounts."""
    pairs = [tuple(each.split("/", 1)) for each in sorted(accounts)]
    if not pairs:
        return sa.false()
    return sa.tuple_(table.c.cluster, table.c.account).in_(pairs)


def _stretches(
    start: float, end: float, *, hourly: bool
) -> Iterator[tuple[sa.Table, float, float]]:
    """Yield which sums make up a stretch of time: whole days, and hours before and after."""
    day = 86400
    first, last = -(-start // day) * day, end // day * day
    if hourly or first >= last:
        yield USAGE[HOUR_S], start, end
        return
    yield USAGE[HOUR_S], start, first
    yield USAGE[day], first, last
    yield USAGE[HOUR_S], last, end


def _day(moment: float) -> int:
    return int(moment // 86400 * 86400)


def _add(sums: dict[Any, dict[str, Any]], group: Any, values: Mapping[str, float]) -> None:
    here = sums.setdefault(group, dict.fromkeys((*COUNTED, *SUMMED), 0))
    for name, value in values.items():
        here[name] += value


def _add_going(
    sums: dict[Any, dict[str, Any]], row: dict[str, Any], by: str, start: float, end: float
) -> None:
    """Add a job that goes on, which the sums have not yet."""
    parts = parts_of(row)
    for hour, used in parts.items():
        moment = hour * HOUR_S
        if start <= moment < end:
            last = hour == max(parts)
            counts = {
                "parts": 1,
                "jobs": int(last),
                "without_energy": int(last and row["energy_j"] is None),
                "without_carbon": int(last and row["carbon_g"] is None),
            }
            times = {"hour": moment, "day": _day(moment)}
            group = times[by] if by in times else row[by] or ""
            _add(sums, group, {**counts, **dict(zip(SUMMED, used.tolist(), strict=True))})
