"""Answering questions about jobs: what the chunks hold, and the ticks since on top.

A list of a hundred thousand jobs is columns rather than objects: that is the difference between a
tenth of a second and several.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from lowtide.monitor.snapshot import FloatArray
from lowtide.states import NOT_OVER
from lowtide.store.layout import FACT, FACTS, PLACE, TOTALS, as_numbers, padded, unpack_numbers
from lowtide.store.records import HostRecord, JobRecord
from lowtide.store.tables import hosts, in_parts, jobs, origins, present, split, ticks, units

# What a short list shows needs; finding out how running jobs stand; and what there is besides.
_SHORT = ("user", "state", "facts", "totals")
_STANDING = ("id", "hosts", "ends")
_FURTHER = ("job_id", "source", "account", "partition", "name", "comment", "nodes", "cluster")
_PACKED = {"facts": FACTS, "totals": TOTALS}
# Rows that are unpacked together.
_AT_ONCE = 5000
_SEEN = tuple(
    name
    for name in PLACE
    if name not in ("memory_byte_s", "looks", "unwatched_cpu_s", "seen_end")
    and "reserved" not in name
)
# A host whose last tick is older than so many intervals, and than this, is not being watched.
_MISSED = 3
_QUIET_S = 60.0
# Schedulers tell of moments in whole seconds.
_WHOLE_S = 1.0
_RUNNING = ("running", "suspended")
# What means more than itself in a shell's pattern, or in LIKE.
_PATTERN = re.compile(r"\*|\?|\[!?\]?[^]]*\]|[\\%_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which jobs to look for; empty means all.

    Attributes:
        users: Of these users.
        start: Those that ran after this moment.
        end: Those that ran before this moment.
        ids: Those with these numbers; an array's number stands for all its elements.
        states: Those that stand so.
        hosts: Those that ran on these hosts.
        accounts: Those that these pay for.
        partitions: Those in these partitions.
        names: Those that are called so; `*`, `?` and `[…]` stand for others, as in a shell.
        sources: Those found there, of `monitor.snapshot.SOURCES`.
        clusters: Those of these clusters.
    """

    users: Sequence[str] = ()
    start: float | None = None
    end: float | None = None
    ids: Sequence[str] = ()
    states: Sequence[str] = ()
    hosts: Sequence[str] = ()
    accounts: Sequence[str] = ()
    partitions: Sequence[str] = ()
    names: Sequence[str] = ()
    sources: Sequence[str] = ()
    clusters: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """Many jobs, in columns, as they stood at one moment.

    Attributes:
        columns: Texts as the database holds them, None where not known.
        facts: The numbers among the facts, a row per job.
        totals: What each has used, a row per job.
        states: How each stands; None where not known.
    """

    columns: Mapping[str, Sequence[Any]]
    facts: FloatArray
    totals: FloatArray
    states: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.totals)

    def text(self, name: str) -> Sequence[str | None]:
        """Return a column of texts.

        Args:
            name: Which one; `shown_id` is what users type.
        """
        return self.columns[name]

    def number(self, name: str) -> FloatArray:
        """Return a column of facts that are numbers, NaN where not known.

        Args:
            name: One of `layout.FACTS`; where no fact says when a job `ended`, it is when it was
                seen to.
        """
        told = self.facts[:, FACT[name]]
        return np.where(np.isnan(told), self.total("seen_end"), told) if name == "ended" else told

    def total(self, name: str) -> FloatArray:
        """Return a column of what was used.

        Args:
            name: One of `layout.TOTALS`; `cpu_s` is all CPU time that is known of, and
                `watched_cpu_s` the part of it that was used while it was watched.
        """
        if name == "cpu_s":
            return self.total("watched_cpu_s") + np.nan_to_num(self.total("unwatched_cpu_s"))
        return self.totals[:, PLACE["cpu_s" if name == "watched_cpu_s" else name]]

    def asked(self, name: str) -> FloatArray:
        """Return what was asked for, or else what is kept.

        Args:
            name: `cpus`, `memory_bytes` or `gpus`.
        """
        facts = self.number(name)
        kept = self.total("reserved_bytes" if name == "memory_bytes" else f"reserved_{name}")
        return np.where(np.isnan(facts), kept, facts)

    @property
    def elapsed_s(self) -> FloatArray:
        """How long each ran; unknown where it was seen once, and nobody knows its end."""
        ended, started = self.number("ended"), self.number("started")
        known = (self.number("told") == 1) | (self.total("looks") >= 2) | ~np.isnan(ended)
        end = np.where(np.isnan(ended), self.total("last_seen"), ended)
        waiting = np.array([state == "pending" for state in self.states], dtype=bool)
        return np.where(known & ~waiting, np.maximum(end - started, 0.0), np.nan)

    def per_second(self, name: str) -> FloatArray:
        """Return what was used on average while it was watched.

        Args:
            name: One of `layout.TOTALS` that is a sum.
        """
        seen = self.total("seen_s")
        if name == "cpu_s":
            name = "watched_cpu_s"
        return self.total(name) / np.where(seen > 0, seen, np.nan)

    @property
    def mean_power_w(self) -> FloatArray:
        """What each drew on average while a meter or an estimate told, as `records.metered_s`."""
        seen_s = self.total("seen_s")
        unwatched_s = np.nan_to_num(np.maximum(self.elapsed_s - seen_s, 0.0))
        blind_s = np.nan_to_num(np.maximum(self.total("unmetered_s") - unwatched_s, 0.0))
        told_s = seen_s - np.minimum(blind_s, seen_s)
        return self.total("energy_j") / np.where(told_s > 0, told_s, np.nan)

    @property
    def cpu_efficiency(self) -> FloatArray:
        """The share of its CPUs that each kept busy."""
        return _share(self.per_second("cpu_s"), self.asked("cpus"))

    @property
    def memory_efficiency(self) -> FloatArray:
        """The share of its memory that each ever held."""
        return _share(self.total("peak_memory_bytes"), self.asked("memory_bytes"))

    @property
    def gpu_efficiency(self) -> FloatArray:
        """The share of its GPUs that each kept busy."""
        return _share(self.per_second("gpu_busy_s"), self.asked("gpus"))

    def chosen(self, which: npt.NDArray[Any]) -> JobTable:
        """Return some of the jobs, or all in another order."""
        places = np.flatnonzero(which) if which.dtype == bool else which
        listed = places.tolist()
        return JobTable(
            columns={
                name: [column[place] for place in listed] for name, column in self.columns.items()
            },
            facts=self.facts[places],
            totals=self.totals[places],
            states=[self.states[place] for place in listed],
        )

    def everything(self) -> dict[str, Sequence[Any]]:
        """Return the fields of the jobs' records, in columns."""
        numbers: dict[str, FloatArray] = {
            name: self.number(name) for name in ("submitted", "started", "ended", "time_limit_s")
        }
        numbers |= {name: self.asked(name) for name in ("cpus", "memory_bytes", "gpus")}
        numbers |= {name: self.total(name) for name in (*_SEEN, "watched_cpu_s")}
        nowhere = np.array([not hosts for hosts in self.columns["hosts"]], dtype=bool)
        numbers["nodes_asked"] = np.where(nowhere, self.number("nodes_asked"), np.nan)
        numbers["elapsed_s"] = self.elapsed_s
        numbers["mean_memory_bytes"] = self.per_second("memory_byte_s")
        codes = {name: self.number(name).tolist() for name in ("exit_code", "restarts")}
        given: dict[str, Sequence[Any]] = {
            **{name: self.columns[name] for name in (*_FURTHER, "shown_id", "user")},
            **{name: column.tolist() for name, column in numbers.items()},
            **{
                name: [None if math.isnan(code) else int(code) for code in column]
                for name, column in codes.items()
            },
            "number": self.columns["id"],
            "state": self.states,
            "looks": np.nan_to_num(self.total("looks")).astype(int).tolist(),
            "hosts": [
                split(seen or told)
                for seen, told in zip(self.columns["hosts"], self.columns["nodes"], strict=True)
            ],
        }
        return {field.name: given[field.name] for field in fields(JobRecord)}

    def records(self) -> list[JobRecord]:
        """Return the jobs as objects."""
        columns = self.everything()
        rows = zip(*columns.values(), strict=True)
        return [JobRecord(**dict(zip(columns, row, strict=True))) for row in rows]

    def parts(self, size: int) -> Iterator[JobTable]:
        """Yield the jobs in parts, for those who have no room for objects of all."""
        for first in range(0, len(self), size):
            yield self.chosen(np.arange(first, min(first + size, len(self))))


def read_hosts(connection: sa.Connection) -> list[HostRecord]:
    """Return the hosts that are or were watched."""
    latest = (
        sa.select(ticks.c.host, sa.func.max(ticks.c.id).label("id"))
        .group_by(ticks.c.host)
        .subquery()
    )
    last = sa.select(ticks.c.host, ticks.c.since, ticks.c.time).join(
        latest, ticks.c.id == latest.c.id
    )
    tails = {host: (since, time) for host, since, time in connection.execute(last)}
    question = (
        sa.select(hosts, units.c.id.label("node_unit"))
        .join(units, (units.c.host == hosts.c.id) & units.c.job.is_(None))
        .order_by(hosts.c.name)
    )
    found = []
    for row in connection.execute(question):
        known = math.nan if row.last_time is None else row.last_time
        since, time = tails.get(row.id, (math.nan, known))
        found.append(
            HostRecord(
                number=row.id,
                name=row.name,
                node_unit=row.node_unit,
                last_time=time,
                interval_s=time - since if row.interval_s is None else row.interval_s,
            )
        )
    return found


def read_jobs(
    connection: sa.Connection, question: Question, *, now: float, whole: bool = True
) -> JobTable:
    """Return jobs as they stand.

    Args:
        connection: A connection.
        question: Which ones.
        whole: Whether to read everything, or only what a short list shows.
    """
    known_hosts = read_hosts(connection)
    newer, stale_s = _newer_totals(connection, known_hosts)
    watched = _watched(known_hosts, now)
    # Whether a job still runs is a question only where somebody watches.
    names = (*_SHORT, *(_STANDING if whole or newer or watched else ()), *(_FURTHER * whole))
    if question.names and "name" not in names:
        names = (*names, "name")
    columns: dict[str, list[Any]] = {name: [] for name in ("shown_id", *names)}
    numbers = {name: bytearray() for name in _PACKED}
    # Part by part, so that what was unpacked makes room for what comes.
    asked = _select(names, question, stale_s, watched, origins in present(connection))
    for rows in connection.execute(asked).partitions(_AT_ONCE):
        for name, values in zip(columns, zip(*rows, strict=True), strict=True):
            if name in numbers:
                numbers[name] += padded(values, _PACKED[name])
            else:
                columns[name].extend(values)
    facts, totals = (as_numbers(numbers[name], kinds) for name, kinds in _PACKED.items())
    if newer:
        for place, number in enumerate(columns["id"]):
            if (fresh := newer.get(number)) is not None:
                totals[place] = fresh
                columns["ends"][place] = max(columns["ends"][place], fresh[PLACE["last_seen"]])
    texts = {name: column for name, column in columns.items() if name not in numbers}
    return filtered(as_they_stand(texts, facts, totals, known_hosts, now=now), question, stale_s)


def as_they_stand(
    columns: Mapping[str, Sequence[Any]],
    facts: FloatArray,
    totals: FloatArray,
    known_hosts: list[HostRecord],
    *,
    now: float,
) -> JobTable:
    """Return jobs with what facts and looks say together.

    Args:
        columns: Texts as the database holds them.
        facts: The numbers among the facts, a row per job.
        totals: What each has used; they are changed.
        known_hosts: The hosts that the jobs may run on.
    """
    watched = _watched(known_hosts, now)
    _count_what_nobody_saw(facts, totals, known_hosts)
    _cut_at_the_end(facts, totals)
    # Who was seen on no GPU while some of them could not be read may have used one.
    unread = np.isnan(totals[:, PLACE["gpu_busy_s"]])
    for name in ("peak_gpus", "peak_gpu_memory_bytes"):
        totals[unread & (totals[:, PLACE[name]] == 0), PLACE[name]] = np.nan
    return JobTable(
        columns=columns,
        facts=facts,
        totals=totals,
        states=_states(columns, totals, watched) if known_hosts else columns["state"],
    )


def _count_what_nobody_saw(facts: FloatArray, totals: FloatArray, known: list[HostRecord]) -> None:
    """Count the time for which a job went on after it was last seen: its energy lacks that."""
    longest = max((host.interval_s for host in known if host.interval_s > 0), default=0.0)
    after_s = facts[:, FACT["ended"]] - totals[:, PLACE["last_seen"]]
    # The end of a job always lies between two looks.
    late = after_s > max(_MISSED * longest, _QUIET_S)
    totals[late, PLACE["unmetered_s"]] = (
        np.nan_to_num(totals[late, PLACE["unmetered_s"]]) + after_s[late]
    )


def _cut_at_the_end(facts: FloatArray, totals: FloatArray) -> None:
    """Leave the time after a job's end out of that in which it was seen."""
    late_s = totals[:, PLACE["last_seen"]] - facts[:, FACT["ended"]]
    # An end that was seen is known better than one that is told in whole seconds.
    least_s = np.where(np.isnan(totals[:, PLACE["seen_end"]]), 0.0, _WHOLE_S)
    seen_s = totals[:, PLACE["seen_s"]]
    cut = np.flatnonzero((late_s > least_s) & (late_s < seen_s))
    left = 1 - late_s[cut] / seen_s[cut]
    # What was held on average stays as it was.
    for name in ("seen_s", "memory_byte_s", "gpu_busy_s"):
        totals[cut, PLACE[name]] *= left


def _newer_totals(
    connection: sa.Connection, known: list[HostRecord]
) -> tuple[dict[int, FloatArray], float]:
    """Return what jobs have used by now whose rows are behind, and by how much time they are."""
    if not connection.execute(sa.select(ticks.c.id).limit(1)).all():
        return {}, 0.0
    # Mostly nobody watches while a list is read, and the list comes sooner without these.
    from lowtide.store.totals import read_tail, read_ticks, together

    fresh: dict[int, FloatArray] = {}
    touched: set[int] = set()
    behind_s = 0.0
    for host in known:
        _, looks = read_ticks(connection, host.number)
        if not looks:
            continue
        behind_s = max(behind_s, looks[-1].time - looks[0].since)
        tail, before, owners = read_tail(connection, looks, host.node_unit)
        fresh |= dict(zip(tail.units.tolist(), tail.carried_on(before), strict=True))
        touched |= set(owners.values())
    parts: dict[int, list[FloatArray]] = defaultdict(list)
    where: dict[int, list[int]] = defaultdict(list)
    for part in in_parts(sorted(touched)):
        for number, job, host_of, blob in connection.execute(
            sa.select(units.c.id, units.c.job, units.c.host, units.c.totals)
            .where(units.c.job.in_(part))
            .order_by(units.c.id)
        ):
            row = fresh.get(number)
            where[job].append(host_of)
            parts[job].append(unpack_numbers([blob], TOTALS)[0] if row is None else row)
    return {job: together(np.stack(rows), where[job]) for job, rows in parts.items()}, behind_s


def _select(
    names: Sequence[str],
    question: Question,
    stale_s: float,
    watched: Mapping[str, float],
    has_origins: bool,
) -> sa.Select[tuple[Any, ...]]:
    shown = sa.func.coalesce(jobs.c.shown_id, jobs.c.job_id)
    # An older store knows of no clusters.
    told = sa.func.coalesce(origins.c.cluster, "") if has_origins else sa.literal("")
    chosen = (told if name == "cluster" else jobs.c[name] for name in names)
    asked = sa.select(shown, *chosen).order_by(jobs.c.id)
    # Looking up the cluster of each of many jobs takes a while.
    if has_origins and ("cluster" in names or question.clusters):
        asked = asked.outerjoin(origins, origins.c.job == jobs.c.id)
    return narrowed(asked, question, stale_s=stale_s, cluster=told, is_watched=bool(watched))


def narrowed(
    asked: sa.Select[Any],
    question: Question,
    *,
    stale_s: float,
    cluster: sa.ColumnElement[Any],
    is_watched: bool,
) -> sa.Select[Any]:
    """Return what is asked of jobs, of those alone that a question may mean.

    Args:
        stale_s: By how much time rows may be behind what was seen.
        cluster: What says which cluster a job is of.
        is_watched: Whether somebody watches, so that what waits does so now.
    """
    if question.start is not None:
        waits = [jobs.c.state == "pending"] if is_watched else []
        asked = asked.where(sa.or_(jobs.c.ends >= question.start - stale_s, *waits))
    if question.end is not None:
        asked = asked.where(jobs.c.begins <= question.end)
    for column, wanted in (
        (jobs.c.user, question.users),
        (jobs.c.account, question.accounts),
        (jobs.c.partition, question.partitions),
        (jobs.c.source, question.sources),
        (cluster, question.clusters),
    ):
        if wanted:
            asked = asked.where(column.in_(wanted))
    if question.names:
        # Databases differ in what they take for the same: these are at least all that are meant.
        alike = (_PATTERN.sub(_wider, name) for name in question.names)
        asked = asked.where(sa.or_(*(jobs.c.name.like(each, escape="\\") for each in alike)))
    if question.ids:
        asked = asked.where(sa.or_(*by_id(jobs, question.ids)))
    if question.hosts:
        asked = asked.where(
            sa.or_(
                *(
                    column.contains(f",{host},", autoescape=True)
                    for host in question.hosts
                    for column in (jobs.c.hosts, jobs.c.nodes)
                )
            )
        )
    return asked


def _wider(found: re.Match[str]) -> str:
    """Return what stands in LIKE for a part of a shell's pattern."""
    return {"*": "%", "?": "_"}.get(found[0], "_" if found[0].startswith("[") else f"\\{found[0]}")


def by_id(table: sa.Table, ids: Sequence[str]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield what tells jobs by what users type: any of it does.

    Args:
        table: Has `job_id` and `shown_id`.
    """
    yield table.c.job_id.in_(ids)
    yield table.c.shown_id.in_(ids)
    # What stands before the elements: 4_ of 4_12 and of 4_[1-3].
    array = sa.func.rtrim(table.c.shown_id, "0123456789[]-,:%")
    yield array.in_([f"{each}_" for each in ids])


def _watched(known: list[HostRecord], now: float) -> dict[str, float]:
    """Return the hosts that are being watched, and when each was last looked at."""
    return {
        host.name: host.last_time
        for host in known
        if now - host.last_time <= max(_MISSED * host.interval_s, _QUIET_S)
    }


def _states(
    columns: Mapping[str, Sequence[Any]], totals: FloatArray, watched: Mapping[str, float]
) -> Sequence[str | None]:
    """Return how jobs stand: as facts have it, or else by whether they are there to be seen.

    Facts are as old as the watcher that asked for them: where nobody watches any more, nobody
    knows whether a job still waits or runs.
    """
    states: list[str | None] = list(columns["state"])
    if not watched:
        return [None if state in NOT_OVER else state for state in states]
    last_times = set(watched.values())
    over = ~np.isnan(totals[:, PLACE["seen_end"]])
    last_seen = np.where(over, -math.inf, totals[:, PLACE["last_seen"]]).tolist()
    for place, state in enumerate(states):
        if state is None:
            if last_seen[place] in last_times:
                states[place] = "running"
        elif state in _RUNNING:
            where = split(columns["hosts"][place])
            # It was seen, and no host that is being watched shows it any more: it is over, somehow.
            if where and all(last_seen[place] < watched.get(host, math.inf) for host in where):
                states[place] = None
    return states


def filtered(table: JobTable, question: Question, stale_s: float) -> JobTable:
    """Leave out what only seemed to fit: how a job stands is known after the ticks were read."""
    wanted = np.ones(len(table), dtype=bool)
    if question.states:
        wanted &= np.array([state in question.states for state in table.states], dtype=bool)
    if question.names:
        named = [
            name is not None and any(fnmatchcase(name, each) for each in question.names)
            for name in table.text("name")
        ]
        wanted &= np.array(named, dtype=bool)
    if question.start is not None and stale_s > 0:
        ends = np.array(table.columns["ends"], dtype=float)
        wanted &= (ends >= question.start) | np.array(
            [state == "pending" for state in table.states], dtype=bool
        )
    return table if wanted.all() else table.chosen(wanted)


def _share(used: FloatArray, asked: FloatArray) -> FloatArray:
    return used / np.where(asked > 0, asked, np.nan)
