"""Which job a unit or a fact belongs to.

A number alone says little: it is used again after a requeue or when the counter starts over. So
jobs are told apart by when they began. Facts say when exactly; a control group is made a little
later, and on further nodes of a job perhaps only when its first step starts there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.monitor.snapshot import ELSEWHERE, UNKNOWN, FloatArray, JobFacts, Unit
from lowtide.states import NOT_OVER
from lowtide.store.layout import FACT, FACTS, PLACE, TOTALS, pack_numbers, unpack_numbers
from lowtide.store.tables import (
    clean,
    in_parts,
    insert_row,
    jobs,
    joined,
    origins,
    phases,
    split,
    units,
    update_row,
)
from lowtide.store.totals import together

# Numbers of these mean the same on every host.
SHARED_SOURCES = frozenset(("slurm",))

# By how much two clocks and two programs may disagree about a start, seconds.
_SAME_S = 2.0
_EARLY_S = 60.0
# How much later than a job its group may be made where nobody says which nodes it has.
_LATE_S = 3600.0
# By how much hosts may differ in when a job began that nobody told facts about.
_APART_S = 120.0
# How long before a start of a job another one may have been.
_FARTHEST_S = 30 * 86400.0
# After these Slurm starts a job over, perhaps at once and on other nodes.
_AGAIN = frozenset(("requeued", "preempted", "node_fail", "boot_fail"))

# What tells jobs of one number apart besides their start.
_ORIGIN = ("cluster", "sluid")
_TEXTS = ("shown_id", "state", "user", "account", "partition", "name", "comment")


@dataclass(frozen=True, slots=True)
class _Job:
    """A row of the table of jobs, kept in step with what is written there.

    Attributes:
        row: The row, `facts` left out, with its `cluster` and `sluid`, empty where not known.
        facts: The numbers among its facts.
    """

    row: dict[str, Any]
    facts: FloatArray

    @classmethod
    def read(cls, row: dict[str, Any]) -> _Job:
        return cls(row, unpack_numbers([row["facts"]], FACTS)[0].copy())

    @classmethod
    def made(
        cls,
        connection: sa.Connection,
        texts: Mapping[str, str | None],
        numbers: Mapping[str, float],
        *,
        seen: float | None = None,
    ) -> _Job:
        """Insert a job of which some is known, and that was perhaps just seen."""
        of = {name: texts.get(name) or "" for name in _ORIGIN}
        given = {name: text for name, text in texts.items() if name not in _ORIGIN}
        row = dict.fromkeys(jobs.c.keys()) | {"hosts": "", "nodes": ""} | given
        facts = np.full(len(FACTS), np.nan)
        for name, number in numbers.items():
            facts[FACT[name]] = number
        del row["id"]
        row |= _span(facts, None, seen)
        row |= {"facts": pack_numbers(facts)}
        number = insert_row(connection, jobs, row)
        if any(of.values()):
            connection.execute(sa.insert(origins), {"job": number, **of})
        return cls(row | of | {"id": number}, facts)

    def change(
        self,
        connection: sa.Connection,
        texts: Mapping[str, str | None],
        numbers: Mapping[str, float],
        *,
        seen: float | None = None,
    ) -> None:
        """Write what is new; where nothing is, nothing is written."""
        news = {name: text for name, text in texts.items() if self.row[name] != text}
        of = {name: news.pop(name) for name in _ORIGIN if name in news}
        if of:
            known = any(self.row[name] for name in _ORIGIN)
            self.row.update(of)
            values = {name: self.row[name] for name in _ORIGIN}
            if known:
                theirs = sa.update(origins).where(origins.c.job == self.id)
                connection.execute(theirs.values(values))
            else:
                connection.execute(sa.insert(origins), {"job": self.id, **values})
        other = {name: value for name, value in numbers.items() if self.number(name) != value}
        if not news and not other:
            return
        for name, value in other.items():
            self.facts[FACT[name]] = value
        self.row.update(news)
        spans = _span(self.facts, self.row["totals"], seen)
        packed = {"facts": pack_numbers(self.facts)}
        update_row(connection, jobs, self.id, {**news, **spans, **packed})

    def number(self, name: str) -> float | None:
        value = float(self.facts[FACT[name]])
        return None if math.isnan(value) else value

    @property
    def id(self) -> int:
        return int(self.row["id"])

    @property
    def started(self) -> float | None:
        return self.number("started")

    @property
    def ended(self) -> float | None:
        return self.number("ended")

    @property
    def start_is_fact(self) -> bool:
        return self.number("told") == 1

    @property
    def home(self) -> str:
        return str(self.row["home"])

    @property
    def hosts(self) -> str:
        return str(self.row["hosts"])

    @property
    def nodes(self) -> str:
        return str(self.row["nodes"])


def attach(
    connection: sa.Connection, host: str, found: Sequence[Unit], time: float, *, cluster: str = ""
) -> list[int]:
    """Return the jobs that units seen for the first time belong to, made where need be.

    Args:
        cluster: The cluster of units that name none, empty where not known.
    """
    known = _Known.read(connection, {name for unit in found for name in _names(unit)})
    cluster = clean(cluster)
    numbers = []
    for unit in found:
        # A machine may have nodes of several clusters.
        of = (clean(unit.cluster) or cluster) if unit.source in SHARED_SOURCES else ""
        named = known.find(unit.source, _names(unit), of)
        # Each start has a name of its own where Slurm gives it one.
        fitting = [job for job in named if unit.sluid and job.row["sluid"] == clean(unit.sluid)]
        fitting = fitting or [
            job for job in named if not _differ(unit, job) and _fits(unit.started, host, job)
        ]
        if fitting:
            job = min(fitting, key=lambda each: _distance(unit.started, each))
            start = unit.started if job.started is None else job.started
            texts = {"hosts": joined([*split(job.hosts), host])}
            texts |= {name: text for name, text in _origin(unit.sluid, of).items() if text}
            job.change(connection, texts, {"started": start}, seen=time)
        else:
            job = _Job.made(
                connection,
                {
                    "source": unit.source,
                    "job_id": clean(unit.job_id),
                    "home": "" if unit.source in SHARED_SOURCES else host,
                    "hosts": joined([host]),
                    "user": clean(unit.user) or None,
                    "name": clean(unit.name) or None,
                    **_origin(unit.sluid, of),
                },
                {"started": unit.started},
                seen=time,
            )
            known.add(job)
        numbers.append(job.id)
    return numbers


def place_facts(connection: sa.Connection, facts: Sequence[JobFacts]) -> None:
    """Bring facts to the jobs they are about; what nobody has seen yet becomes a job of its own.

    Args:
        facts: The facts; what they do not know leaves what is known alone.
    """
    known = _Known.read(connection, {name for fact in facts for name in _names(fact)})
    for fact in facts:
        named = known.find(fact.source, _names(fact), clean(fact.cluster or ""))
        if fact.state in (UNKNOWN, ELSEWHERE):
            for gone in _take_back(connection, fact, named):
                known.remove(gone)
            continue
        shared = fact.source in SHARED_SOURCES or not fact.nodes
        job, others = _choose(
            fact, [each for each in named if shared or each.home in ("", *fact.nodes)]
        )
        for earlier in _requeued(fact, named, (job, *others)):
            earlier.change(connection, {"state": "requeued"}, {})
        texts, numbers = _known(fact)
        if job is None:
            who = {"source": fact.source, "job_id": clean(fact.job_id)}
            home = "" if shared else clean(fact.nodes[0])
            known.add(_Job.made(connection, {**who, "home": home, **texts}, numbers))
            continue
        for other in others:
            _absorb(connection, job, other)
            known.remove(other)
        if fact.state == "pending" and job.started is not None:
            # That it waited is known by what was told before it began.
            texts = {name: text for name, text in texts.items() if not job.row[name]}
            numbers = {name: each for name, each in numbers.items() if job.number(name) is None}
        elif job.row["job_id"] != clean(fact.job_id):
            # So far it was known by the name of its group.
            texts["job_id"] = clean(fact.job_id)
        job.change(connection, texts, numbers)
        known.add(job)


def drop_old_waits(connection: sa.Connection) -> None:
    """Drop jobs that are said to wait, and that are there a second time since they began."""
    question = sa.select(jobs.c.job_id).where(jobs.c.state == "pending", jobs.c.hosts == "")
    names = set(connection.execute(question).scalars())
    known = _Known.read(connection, names)
    for name in sorted(names):
        for source in SHARED_SOURCES:
            for job in known.find(source, (name,), ""):
                named = known.find(source, (name,), job.row["cluster"])
                begun = [each for each in named if each.started is not None]
                if job.started is None and any(_waited(job, each) for each in begun):
                    _delete(connection, job)


def waiting(
    connection: sa.Connection, source: str, *, cluster: str = ""
) -> list[tuple[str, float | None]]:
    """Return the jobs that were last known to wait, and when they were submitted.

    Args:
        cluster: Those of this cluster, and of none that is known; empty for all.
    """
    question = (
        sa.select(jobs.c.job_id, jobs.c.facts)
        .outerjoin(origins, origins.c.job == jobs.c.id)
        .where(jobs.c.state == "pending", jobs.c.source == source)
    )
    if cluster:
        theirs = sa.func.coalesce(origins.c.cluster, "")
        question = question.where(theirs.in_(["", clean(cluster)]))
    rows = connection.execute(question.order_by(jobs.c.id)).all()
    submitted = unpack_numbers([row.facts for row in rows], FACTS)[:, FACT["submitted"]]
    return [
        (row.job_id, None if math.isnan(when) else when)
        for row, when in zip(rows, submitted.tolist(), strict=True)
    ]


def refresh(connection: sa.Connection, numbers: Sequence[int]) -> None:
    """Sum up what the units of jobs have used."""
    changes = []
    for part in in_parts(sorted(numbers)):
        # Hosts that sum up the same job take turns, in the same order.
        rows = connection.execute(
            sa.select(jobs.c.id, jobs.c.facts)
            .where(jobs.c.id.in_(part))
            .order_by(jobs.c.id)
            .with_for_update()
        ).all()
        seen, where = defaultdict(list), defaultdict(list)
        for job, host, blob in connection.execute(
            sa.select(units.c.job, units.c.host, units.c.totals)
            .where(units.c.job.in_(part))
            .order_by(units.c.id)
        ):
            seen[job].append(blob)
            where[job].append(host)
        facts = unpack_numbers([row.facts for row in rows], FACTS)
        for row, known in zip(rows, facts, strict=True):
            if blobs := seen.get(row.id):
                blob = pack_numbers(together(unpack_numbers(blobs, TOTALS), where[row.id]))
                changes.append({"number": row.id, "totals": blob, **_span(known, blob)})
    if changes:
        connection.execute(
            sa.update(jobs)
            .where(jobs.c.id == sa.bindparam("number"))
            .values({name: sa.bindparam(name) for name in ("totals", "begins", "ends")}),
            changes,
        )


@dataclass(slots=True)
class _Known:
    """Jobs by what they are known by: a number, and perhaps the name of a group."""

    by_name: dict[tuple[str, str], list[_Job]]

    @classmethod
    def read(cls, connection: sa.Connection, names: Collection[str]) -> _Known:
        """Read all jobs that go by some names."""
        known = cls(defaultdict(list))
        for part in in_parts(sorted(names)):
            named = sa.select(origins.c.job).where(origins.c.sluid.in_(part))
            # As above: taking turns.
            question = (
                sa.select(jobs, *(origins.c[name] for name in _ORIGIN))
                .outerjoin(origins, origins.c.job == jobs.c.id)
                .where(sa.or_(jobs.c.job_id.in_(part), jobs.c.id.in_(named)))
                .order_by(jobs.c.id)
                .with_for_update(of=jobs)
            )
            for row in connection.execute(question).mappings():
                known.add(_Job.read({**row, **{name: row[name] or "" for name in _ORIGIN}}))
        return known

    def add(self, job: _Job) -> None:
        for name in {job.row["job_id"], job.row["sluid"]} - {""}:
            named = self.by_name[job.row["source"], name]
            if all(each.id != job.id for each in named):
                named.append(job)

    def remove(self, job: _Job) -> None:
        for named in self.by_name.values():
            named[:] = [each for each in named if each.id != job.id]

    def find(self, source: str, names: Iterable[str], cluster: str) -> list[_Job]:
        """Return the jobs of some names; whose cluster is not known may be of any."""
        found = {job.id: job for name in names for job in self.by_name[source, name]}
        return [job for job in found.values() if not cluster or job.row["cluster"] in ("", cluster)]


def _names(told: Unit | JobFacts) -> list[str]:
    """Return what something may be known by."""
    return list(dict.fromkeys(clean(each) for each in (told.job_id, told.sluid) if each))


def _origin(sluid: str | None, cluster: str | None) -> dict[str, str]:
    return {"cluster": clean(cluster or ""), "sluid": clean(sluid or "")}


def _differ(told: Unit | JobFacts, job: _Job) -> bool:
    """Return whether Slurm has two names for two starts."""
    return bool(told.sluid and job.row["sluid"]) and clean(told.sluid or "") != job.row["sluid"]


def _fits(began: float, host: str, job: _Job) -> bool:
    """Return whether a unit on a host can be a part of a job."""
    if job.home not in ("", host) or f",{host}," in job.hosts:
        # The same host saw that start of it already: this is another one.
        return False
    if job.started is None:
        return job.ended is None
    if not job.start_is_fact:
        return abs(began - job.started) <= _APART_S
    named = f",{host}," in job.nodes
    late_s = _EARLY_S
    if job.row["state"] in _AGAIN:
        # What begins soon after is its next start, above all where it was not.
        late_s = _SAME_S if named or not job.nodes else 0.0
    end = float("inf") if job.ended is None else job.ended + late_s
    if not named:
        end = min(end, job.started + _LATE_S)
    return job.started - _EARLY_S <= began <= end


def _distance(began: float, job: _Job) -> float:
    return float("inf") if job.started is None else abs(began - job.started)


def _choose(fact: JobFacts, named: list[_Job]) -> tuple[_Job | None, list[_Job]]:
    """Return the job that a fact is about, and jobs that turn out to be parts of it."""
    waits = [job for job in named if job.started is None]
    begun = [job for job in named if job.started is not None]
    same = [job for job in begun if fact.sluid and job.row["sluid"] == clean(fact.sluid)]
    if fact.started is None:
        if fact.state == "pending":
            before = same or [job for job in begun if _told_before(fact, job)]
            if before:
                # It was asked for before it began.
                job = max(before, key=lambda each: each.started or 0.0)
                return job, [each for each in waits if _submitted_at(each, fact.submitted)]
        if waits or fact.state == "pending" or not named:
            return (waits[0] if waits else None), []
        return max(named, key=lambda job: job.started or 0.0), []
    start = fact.started
    told = [
        job
        for job in begun
        if job.start_is_fact
        and not _differ(fact, job)
        and abs((job.started or 0.0) - start) <= _SAME_S
    ]
    told_of = _Job(
        {"home": "", "hosts": "", "nodes": joined(fact.nodes), "state": fact.state},
        np.array([start, math.nan if fact.ended is None else fact.ended, *[math.nan] * 3, 1.0]),
    )
    seen = sorted(
        (
            job
            for job in begun
            if not job.start_is_fact
            and not _differ(fact, job)
            and all(_fits(job.started or 0.0, host, told_of) for host in split(job.hosts))
        ),
        key=lambda job: _distance(start, job),
    )
    mine = [job for job in waits if _is_wait_of(job, fact)]
    # What waits where nobody knows of any start is what has begun, whenever it was submitted.
    chosen = [*same, *told, *seen, *(mine or ([] if told or seen or same else waits))]
    if not chosen:
        return None, []
    job, taken = chosen[0], set(split(chosen[0].hosts))
    others = []
    for other in dict.fromkeys(each.id for each in chosen[1:] if each.id != job.id):
        part = next(each for each in chosen if each.id == other)
        # On one host they come one after the other, all of them while the job ran: without the
        # last word of Slurm it may be another start.
        if not taken & set(split(part.hosts)) or _ran_meanwhile(fact, part):
            others.append(part)
            taken |= set(split(part.hosts))
    return job, others


def _told_before(fact: JobFacts, job: _Job) -> bool:
    """Return whether a job that has begun is the one that is said to wait."""
    began = job.started or 0.0
    if fact.asked is not None and fact.asked <= began:
        return True
    submitted = job.number("submitted")
    if fact.submitted is None or (fact.restarts or 0) > (job.number("restarts") or 0):
        return False
    if submitted is not None:
        return _submitted_at(job, fact.submitted)
    return fact.submitted <= began + _SAME_S


def _is_wait_of(job: _Job, fact: JobFacts) -> bool:
    """Return whether a job that waits is the one that is said to have begun."""
    if fact.sluid and job.row["sluid"]:
        return bool(job.row["sluid"] == clean(fact.sluid))
    submitted = job.number("submitted")
    if (job.number("restarts") or 0) > (fact.restarts or 0) and fact.restarts is not None:
        return False
    if submitted is not None and fact.submitted is not None:
        return _submitted_at(job, fact.submitted)
    return submitted is None or submitted <= (fact.started or 0.0) + _SAME_S


def _waited(job: _Job, begun: _Job) -> bool:
    """Return whether a job that is said to wait is another that has begun."""
    again = (job.number("restarts") or 0) > (begun.number("restarts") or 0)
    return not again and _submitted_at(job, begun.number("submitted"))


def _submitted_at(job: _Job, time: float | None) -> bool:
    submitted = job.number("submitted")
    return submitted is not None and time is not None and abs(submitted - time) <= _SAME_S


def _requeued(fact: JobFacts, named: list[_Job], its: Collection[_Job | None]) -> list[_Job]:
    """Return earlier starts of a job of which nobody told how they ended: it was requeued since.

    There were as many as it has restarts; those before are of another job with its number.
    """
    again = fact.submitted if fact.started is None else fact.started
    if not fact.restarts or again is None:
        return []
    theirs = {job.id for job in its if job is not None}
    earlier = [
        job
        for job in named
        if job.id not in theirs
        and again - _FARTHEST_S < (job.started or -math.inf) < again - _SAME_S
        and (job.number("restarts") or 0) < fact.restarts
    ]
    earlier.sort(key=lambda job: job.started or 0.0)
    return [
        job
        for job in earlier[-fact.restarts :]
        if job.row["state"] in (None, *NOT_OVER) and job.ended is None
    ]


def _ran_meanwhile(fact: JobFacts, job: _Job) -> bool:
    """Return whether a part that began later did so while the job ran, by what was told since."""
    began = job.started or 0.0
    if fact.started is None or began < fact.started - _SAME_S:
        return False
    if fact.ended is not None:
        return began <= fact.ended + _SAME_S
    return fact.asked is not None and began + _SAME_S <= fact.asked


def _take_back(connection: sa.Connection, fact: JobFacts, named: list[_Job]) -> list[_Job]:
    """Let a job wait no more: nobody knows what became of it, or nobody here has to do with it.

    Return those that are not there any more.
    """
    gone = []
    for job in [each for each in named if each.row["state"] == "pending" and each.started is None]:
        if fact.state == UNKNOWN or job.hosts:
            job.change(connection, {"state": None}, {})
        else:
            _delete(connection, job)
            gone.append(job)
    return gone


def _delete(connection: sa.Connection, job: _Job) -> None:
    for table in (phases, origins):
        connection.execute(sa.delete(table).where(table.c.job == job.id))
    connection.execute(sa.delete(jobs).where(jobs.c.id == job.id))


def _absorb(connection: sa.Connection, job: _Job, other: _Job) -> None:
    connection.execute(sa.update(units).where(units.c.job == other.id).values(job=job.id))
    _delete(connection, other)
    refresh(connection, [job.id])
    totals = connection.execute(sa.select(jobs.c.totals).where(jobs.c.id == job.id)).scalar_one()
    job.row["totals"] = totals
    texts = {"hosts": joined([*split(job.hosts), *split(other.hosts)])}
    texts |= {name: job.row[name] or other.row[name] for name in _ORIGIN}
    job.change(connection, texts, {})


def _known(fact: JobFacts) -> tuple[dict[str, str], dict[str, float]]:
    """Return what a fact knows: texts and numbers."""
    texts = {name: clean(getattr(fact, name) or "") for name in _TEXTS}
    texts |= {"nodes": joined(fact.nodes), **_origin(fact.sluid, fact.cluster)}
    given = {name: getattr(fact, name) for name in FACTS if name != "told"}
    numbers = {
        name: float(number)
        for name, number in given.items()
        if number is not None and not math.isnan(number)
    }
    if "started" in numbers:
        numbers["told"] = 1.0
    return {name: text for name, text in texts.items() if text}, numbers


def _span(
    facts: FloatArray, totals: bytes | None, seen: float | None = None
) -> dict[str, float | None]:
    """Return from when to when a job has to do with anything."""
    first = float(facts[FACT["started"]])
    known = [float(facts[FACT[name]]) for name in ("started", "ended", "submitted")]
    known += [] if seen is None else [seen]
    if totals is not None:
        row = unpack_numbers([totals], TOTALS)[0]
        known += [float(row[PLACE["first_seen"]]), float(row[PLACE["last_seen"]])]
    moments = [each for each in known if not math.isnan(each)]
    return {
        "begins": min(moments, default=None) if math.isnan(first) else first,
        "ends": max(moments, default=None),
    }
