"""Which job a unit or a fact belongs to.

A number alone says little: it is used again after a requeue or when the counter starts over. So
jobs are told apart by when they began. Facts say when exactly; a control group is made a little
later, and on further nodes of a job perhaps only when its first step starts there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.monitor.facts import ELSEWHERE, UNKNOWN, JobFacts
from lowtide.monitor.snapshot import FloatArray, Unit
from lowtide.store.columns import FACT, FACTS, PLACE, TOTALS, pack_numbers, unpack_numbers
from lowtide.store.tables import (
    clean,
    in_parts,
    insert_row,
    jobs,
    joined,
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

_TEXTS = ("shown_id", "state", "user", "account", "partition", "name", "comment")


@dataclass(frozen=True, slots=True)
class _Job:
    """A row of the table of jobs, kept in step with what is written there.

    Attributes:
        row: The row, `facts` left out.
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
        row = dict.fromkeys(jobs.c.keys()) | {"hosts": "", "nodes": ""} | dict(texts)
        facts = np.full(len(FACTS), np.nan)
        for name, number in numbers.items():
            facts[FACT[name]] = number
        del row["id"]
        row |= _span(facts, None, seen)
        row |= {"facts": pack_numbers(facts)}
        return cls(row | {"id": insert_row(connection, jobs, row)}, facts)

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
        other = {name: value for name, value in numbers.items() if self.number(name) != value}
        if not news and not other:
            return
        for name, value in other.items():
            self.facts[FACT[name]] = value
        self.row.update(news)
        values = {**news, **_span(self.facts, self.row["totals"], seen)}
        update_row(connection, jobs, self.id, {**values, "facts": pack_numbers(self.facts)})

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


def attach(connection: sa.Connection, host: str, found: Sequence[Unit], time: float) -> list[int]:
    """Return the jobs that units seen for the first time belong to, made where need be.

    Args:
        connection: A transaction.
        host: Where they were seen.
        found: The units.
        time: When they were seen.
    """
    known = _jobs_of(connection, [(unit.source, clean(unit.job_id)) for unit in found])
    numbers = []
    for unit in found:
        named = known[unit.source, clean(unit.job_id)]
        fitting = [job for job in named if _fits(unit.started, host, job)]
        if fitting:
            job = min(fitting, key=lambda each: _distance(unit.started, each))
            start = unit.started if job.started is None else job.started
            hosts = joined([*split(job.hosts), host])
            job.change(connection, {"hosts": hosts}, {"started": start}, seen=time)
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
                },
                {"started": unit.started},
                seen=time,
            )
            named.append(job)
        numbers.append(job.id)
    return numbers


def place_facts(connection: sa.Connection, facts: Sequence[JobFacts]) -> None:
    """Bring facts to the jobs they are about; what nobody has seen yet becomes a job of its own.

    Args:
        connection: A transaction.
        facts: The facts; what they do not know leaves what is known alone.
    """
    known = _jobs_of(connection, [(fact.source, clean(fact.job_id)) for fact in facts])
    for fact in facts:
        named = known[fact.source, clean(fact.job_id)]
        if fact.state in (UNKNOWN, ELSEWHERE):
            _take_back(connection, fact, named)
            continue
        shared = fact.source in SHARED_SOURCES or not fact.nodes
        job, others = _choose(
            fact, [each for each in named if shared or each.home in ("", *fact.nodes)]
        )
        texts, numbers = _known(fact)
        if job is None:
            who = {"source": fact.source, "job_id": clean(fact.job_id)}
            home = "" if shared else clean(fact.nodes[0])
            named.append(_Job.made(connection, {**who, "home": home, **texts}, numbers))
            continue
        for other in others:
            _absorb(connection, job, other)
            named.remove(other)
        job.change(connection, texts, numbers)


def waiting(connection: sa.Connection, source: str) -> list[tuple[str, float | None]]:
    """Return the jobs that were last known to wait, and when they were submitted.

    Args:
        connection: A connection.
        source: Those found there.
    """
    question = sa.select(jobs.c.job_id, jobs.c.facts).where(
        jobs.c.state == "pending", jobs.c.source == source
    )
    rows = connection.execute(question.order_by(jobs.c.id)).all()
    submitted = unpack_numbers([row.facts for row in rows], FACTS)[:, FACT["submitted"]]
    return [
        (row.job_id, None if math.isnan(when) else when)
        for row, when in zip(rows, submitted.tolist(), strict=True)
    ]


def refresh(connection: sa.Connection, numbers: Sequence[int]) -> None:
    """Sum up what the units of jobs have used.

    Args:
        connection: A transaction.
        numbers: The jobs.
    """
    changes = []
    for part in in_parts(sorted(numbers)):
        # Hosts that sum up the same job take turns, in the same order.
        rows = connection.execute(
            sa.select(jobs.c.id, jobs.c.facts)
            .where(jobs.c.id.in_(part))
            .order_by(jobs.c.id)
            .with_for_update()
        ).all()
        seen = defaultdict(list)
        for job, blob in connection.execute(
            sa.select(units.c.job, units.c.totals).where(units.c.job.in_(part)).order_by(units.c.id)
        ):
            seen[job].append(blob)
        facts = unpack_numbers([row.facts for row in rows], FACTS)
        for row, known in zip(rows, facts, strict=True):
            if blobs := seen.get(row.id):
                blob = pack_numbers(together(unpack_numbers(blobs, TOTALS)))
                changes.append({"number": row.id, "totals": blob, **_span(known, blob)})
    if changes:
        connection.execute(
            sa.update(jobs)
            .where(jobs.c.id == sa.bindparam("number"))
            .values({name: sa.bindparam(name) for name in ("totals", "begins", "ends")}),
            changes,
        )


def _jobs_of(
    connection: sa.Connection, numbers: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], list[_Job]]:
    found: dict[tuple[str, str], list[_Job]] = defaultdict(list)
    for part in in_parts(sorted({number for _, number in numbers})):
        # As above: taking turns.
        question = sa.select(jobs).where(jobs.c.job_id.in_(part)).order_by(jobs.c.id)
        for row in connection.execute(question.with_for_update()).mappings():
            found[row["source"], row["job_id"]].append(_Job.read(dict(row)))
    return found


def _fits(began: float, host: str, job: _Job) -> bool:
    """Return whether a unit on a host can be a part of a job."""
    if job.home not in ("", host) or f",{host}," in job.hosts:
        # The same host saw that start of it already: this is another one.
        return False
    if job.started is None:
        return job.ended is None
    if not job.start_is_fact:
        return abs(began - job.started) <= _APART_S
    end = float("inf") if job.ended is None else job.ended + _EARLY_S
    if f",{host}," not in job.nodes:
        end = min(end, job.started + _LATE_S)
    return job.started - _EARLY_S <= began <= end


def _distance(began: float, job: _Job) -> float:
    return float("inf") if job.started is None else abs(began - job.started)


def _choose(fact: JobFacts, named: list[_Job]) -> tuple[_Job | None, list[_Job]]:
    """Return the job that a fact is about, and jobs that turn out to be parts of it."""
    waiting = next((job for job in named if job.started is None), None)
    if fact.started is None:
        if waiting is not None or fact.state == "pending" or not named:
            return waiting, []
        return max(named, key=lambda job: job.started or 0.0), []
    start = fact.started
    told = [
        job
        for job in named
        if job.start_is_fact and job.started is not None and abs(job.started - start) <= _SAME_S
    ]
    told_of = _Job(
        {"home": "", "hosts": "", "nodes": joined(fact.nodes)},
        np.array([start, math.nan if fact.ended is None else fact.ended, *[math.nan] * 3, 1.0]),
    )
    seen = sorted(
        (
            job
            for job in named
            if not job.start_is_fact
            and job.started is not None
            and all(_fits(job.started, host, told_of) for host in split(job.hosts))
        ),
        key=lambda job: _distance(start, job),
    )
    chosen = [*told, *seen, *([waiting] if waiting else [])]
    if not chosen:
        return None, []
    job, others, taken = chosen[0], [], set(split(chosen[0].hosts))
    for other in seen:
        if other is not job and not taken & set(split(other.hosts)):
            others.append(other)
            taken |= set(split(other.hosts))
    return job, others


def _take_back(connection: sa.Connection, fact: JobFacts, named: list[_Job]) -> None:
    """Let a job wait no more: nobody knows what became of it, or nobody here has to do with it."""
    for job in [each for each in named if each.row["state"] == "pending" and each.started is None]:
        if fact.state == UNKNOWN or job.hosts:
            job.change(connection, {"state": None}, {})
        else:
            connection.execute(sa.delete(jobs).where(jobs.c.id == job.id))
            named.remove(job)


def _absorb(connection: sa.Connection, job: _Job, other: _Job) -> None:
    connection.execute(sa.update(units).where(units.c.job == other.id).values(job=job.id))
    connection.execute(sa.delete(phases).where(phases.c.job == other.id))
    connection.execute(sa.delete(jobs).where(jobs.c.id == other.id))
    refresh(connection, [job.id])
    totals = connection.execute(sa.select(jobs.c.totals).where(jobs.c.id == job.id)).scalar_one()
    job.row["totals"] = totals
    job.change(connection, {"hosts": joined([*split(job.hosts), *split(other.hosts)])}, {})


def _known(fact: JobFacts) -> tuple[dict[str, str], dict[str, float]]:
    """Return what a fact knows: texts and numbers."""
    texts = {name: clean(getattr(fact, name) or "") for name in _TEXTS}
    texts["nodes"] = joined(fact.nodes)
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
