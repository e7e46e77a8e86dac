"""What would be saved if jobs could wait: counted before anybody moves one.

An operator who wants to know what deferring is worth at a site supposes that each job of its queue
might be done some hours later than at once. Every job is planned as if it had been handed in with
that deadline, with the same margin for the queue, and nothing is done. What comes out is by plan,
on the forecast of then and by time limits: more than a site will save, and never counted as saved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lowtide.acting.backend import PENDING, RUNNING, Seen
from lowtide.acting.judge import Situation, judge
from lowtide.acting.reckoning import amount
from lowtide.acting.tag import Tag, encode, new_token
from lowtide.errors import LowtideError
from lowtide.files import read_document, write_whole
from lowtide.profile import PowerProfile
from lowtide.schedule import Stretch

# For how long a job counts, and how many are kept at most.
_KEPT_S = 8 * 86_400.0
_MOST = 200_000
# What a CPU is taken to draw: shares alone are told, by CPU hours.
_CPU_W = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupposedJob:
    """A job that might have waited.

    Attributes:
        kind: The class that it waits with.
        arrival: When it was handed in.
        cpu_hours: CPUs times the hours of its limit.
        planned: What its plan comes to, by weight of its CPUs.
        at_once: What running at its arrival would.
    """

    kind: str
    arrival: float
    cpu_hours: float
    planned: float
    at_once: float


@dataclass(slots=True, kw_only=True)
class Supposition:
    """Supposes that every job could be done later.

    Attributes:
        path: Where it is kept what that would save.
        slack_s: How much later than at once a job might be done.
    """

    path: Path
    slack_s: float
    _known: dict[str, SupposedJob] | None = field(default=None, init=False)

    def take(self, jobs: Iterable[Seen], situation: Situation) -> int:
        """Plan jobs that were not seen before; return how many these were."""
        if self._known is None:
            self._known = dict(_read(self.path))
        signal, now = situation.signal, situation.now
        news = 0
        for job in jobs:
            key = f"{job.id}/{job.submitted or 0.0:.0f}"
            if key in self._known or signal is None or not self._may_wait(job, now):
                continue
            arrival = now if job.state == PENDING else job.started or now
            found = self._planned(job, arrival, situation)
            if found is not None:
                self._known[key] = found
                news += 1
        if news:
            kept = {k: v for k, v in self._known.items() if v.arrival >= now - _KEPT_S}
            self._known = dict(list(kept.items())[-_MOST:])
            rows = {key: asdict(each) for key, each in self._known.items()}
            write_whole(self.path, json.dumps(rows), lasting=False)
        return news

    def _may_wait(self, job: Seen, now: float) -> bool:
        """Return whether a job came lately, and nothing but the queue decides when it starts."""
        came = job.submitted is not None and now - job.submitted <= 3600.0
        free = not job.held and job.why not in ("Dependency", "DependencyNeverSatisfied")
        # One that has a begin of its own waits as it is.
        ahead = job.begin is not None and job.begin > now
        return came and free and not ahead and job.state in (PENDING, RUNNING) and bool(job.limit_s)

    def _planned(self, job: Seen, arrival: float, situation: Situation) -> SupposedJob | None:
        limit_s = job.limit_s or 0.0
        tag = Tag(
            token=new_token(),
            deadline=arrival + limit_s + self.slack_s,
            arrival=arrival,
            run_s=limit_s,
        )
        new = replace(job, state=PENDING, submitted=None, begin=None, comment=encode(tag))
        cpus = max(job.cpus or 1.0, 1.0)
        profile = PowerProfile.constant(_CPU_W * cpus, limit_s)
        once = [Stretch(start=situation.now, work_s=profile.work_s)]
        try:
            verdict = judge(new, situation)
        except LowtideError:
            return None
        if verdict is None or situation.signal is None:
            return None
        at_once = amount(profile, once, situation.signal)
        planned = amount(profile, verdict.plan or once, situation.signal)
        if at_once is None or planned is None:
            return None
        return SupposedJob(
            kind=job.kind,
            arrival=arrival,
            cpu_hours=cpus * limit_s / 3600.0,
            planned=planned,
            at_once=at_once,
        )


def would_save(path: Path, *, since: float) -> list[dict[str, Any]]:
    """Return what waiting would save by class, and of all, from what was supposed.

    Args:
        since: From when on jobs count, by their arrival.
    """
    jobs = [each for _, each in _read(path) if each.arrival >= since]
    rows = [_row(kind, [each for each in jobs if each.kind == kind]) for kind in _kinds(jobs)]
    return [*rows, _row("all", jobs)] if jobs else []


def _kinds(jobs: Sequence[SupposedJob]) -> list[str]:
    return sorted({each.kind for each in jobs})


def _row(kind: str, jobs: Sequence[SupposedJob]) -> dict[str, Any]:
    at_once = sum(each.at_once for each in jobs)
    return {
        "kind": kind,
        "jobs": len(jobs),
        "deferred": sum(each.planned < each.at_once for each in jobs),
        "cpu_hours": sum(each.cpu_hours for each in jobs),
        "saving": 1.0 - sum(each.planned for each in jobs) / at_once if at_once else None,
    }


def _read(path: Path) -> list[tuple[str, SupposedJob]]:
    """Return what was kept; nothing of what makes no sense."""
    try:
        rows = read_document(path, "json")
    except LowtideError:
        return []
    found = []
    for key, row in rows.items() if isinstance(rows, dict) else ():
        try:
            job = SupposedJob(**row)
        except TypeError:
            continue
        numbers = (job.arrival, job.cpu_hours, job.planned, job.at_once)
        if isinstance(job.kind, str) and all(isinstance(each, int | float) for each in numbers):
            found.append((str(key), job))
    return found
