"""The book of jobs that were handed in: what was planned for each, how it ran, what it came to.

A file for each job, by its token, in the journal's folder. It is history and no more: no promise
depends on it, and a page that is lost or spoilt costs its figures alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from lowtide.acting.backend import PENDING, RUNNING, Seen
from lowtide.acting.reckoning import Reckoning
from lowtide.acting.tag import Tag, decode
from lowtide.errors import LowtideError
from lowtide.files import read_document, write_whole
from lowtide.schedule import Stretch

DAY_S = 86_400.0
# For how long a job is kept after it was handed in.
_KEPT_S = 400 * DAY_S
# A wait that is shorter is none.
_NOTABLE_S = 60.0
# No amount, moment or count of a job is larger.
_MOST = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """One start of a job, as it was seen.

    Attributes:
        task: Which element of an array it was; the job's number else.
        start: When it was.
        progress_s: Work that was saved by then.
    """

    task: str
    start: float
    progress_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BookPage:
    """A job that was handed in. None where something is not known, or not yet.

    Attributes:
        token: Tells it from every other job.
        job_id: Its number.
        name: What it is called.
        user: Whose it is.
        arrival: When it was handed in.
        deadline: By when it was to be done.
        program: Which runs it is compared with, as `experience` has it.
        profile: By which name the profile that it was planned by is kept; empty for none.
        unit: Of all amounts: `g`, or a currency.
        tasks: How many elements it has.
        planned: What the plan at its submission came to.
        planned_at_once: What running at its submission would have, by the same forecast.
        begun: Its starts, as they were seen.
        missing: How many looks in a row it was in no queue, and nobody knew of its end.
        ended: When it was over.
        outcome: How, one of `states.STATES`, or `lost` where there are accounts without it, or
            `unknown` where nobody keeps any; empty while it is not.
        replayed: What its profile comes to at the starts that came, on the grid that came.
        measured: What was measured.
        at_once: What it would have come to at its submission, on the grid that came.
        power: Whether that was `measured` or `estimated`.
        energy_ratio: What it drew, as a share of what its profile says.
        duration_ratio: How long it ran, as a share of that.
        energy_scale: By what its profile had been changed before, as earlier runs had taught.
        duration_scale: The same of how long it takes.
        told: Which notices were sent.
        kind: The class that it waited with; empty where nobody has seen it.
        wait_s: W: how long it was said to wait at most; None where nobody says.
        run_s: R: how long it was said to take at most; None where nobody says.
        queued_s: How long it was seen to wait for its turn, at least.
        held: Whether somebody was seen to hold it.
        script: Which jobs it behaves like when it is asked to stop, as `experience` has it.
        deaf: Whether it was seen not to stop when it was asked.
        stop_s: How long it took at most to save and leave; None where it was not seen to.
        begun_anew: Whether it was seen to begin again without having been asked to stop.
    """

    token: str
    job_id: str
    arrival: float
    deadline: float
    name: str = ""
    user: str = ""
    program: str = ""
    profile: str = ""
    unit: str = "g"
    tasks: int = 1
    planned: float | None = None
    planned_at_once: float | None = None
    begun: tuple[Begun, ...] = ()
    missing: int = 0
    ended: float | None = None
    outcome: str = ""
    replayed: float | None = None
    measured: float | None = None
    at_once: float | None = None
    power: str | None = None
    energy_ratio: float | None = None
    duration_ratio: float | None = None
    energy_scale: float = 1.0
    duration_scale: float = 1.0
    told: tuple[str, ...] = ()
    kind: str = ""
    wait_s: float | None = None
    run_s: float | None = None
    queued_s: float = 0.0
    held: bool = False
    begun_anew: bool = False
    script: str = ""
    deaf: bool = False
    stop_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return bool(self.outcome)

    @property
    def in_time(self) -> bool | None:
        """Whether it was done by its deadline; None while that is not known."""
        if self.outcome != "completed" or self.ended is None:
            return None if self.outcome in ("", "lost", "unknown", "cancelled") else False
        return self.ended <= self.deadline

    @property
    def reckoning(self) -> Reckoning:
        """Plan, replay and measurement."""
        return Reckoning(
            planned=self.planned,
            replayed=self.replayed,
            measured=self.measured,
            at_once=self.planned_at_once if self.at_once is None else self.at_once,
            counts=not self.is_over or self.in_time is True,
        )

    @property
    def gap(self) -> float | None:
        """By what share more was measured than its profile says of the same starts."""
        if self.measured is None or not self.replayed:
            return None
        return self.measured / self.replayed - 1.0

    @property
    def ran_s(self) -> float | None:
        """For how long it has worked in all its starts; None where that was not seen."""
        if self.ended is None or len(self.stretches) != 1:
            return None
        (starts,) = self.stretches
        return sum(each.work_s for each in starts) + self.ended - starts[-1].start

    def seen(self, job: Seen, tag: Tag, now: float) -> BookPage:
        """Return the page with what a look tells of the job."""
        page = replace(self, missing=0, outcome="", ended=None) if self.missing else self
        progress_s = tag.progress_s
        said: dict[str, Any] = {
            "deaf": tag.deaf,
            "kind": job.kind,
            "wait_s": tag.wait_s,
            "run_s": tag.run_s or None,
            "held": page.held or job.held,
            "begun_anew": page.begun_anew or (job.restarts > tag.restarts and not tag.asked),
        }
        if job.state == PENDING and job.begin is not None and not job.held:
            waited_s = now - job.begin
            # A page is not written anew at every look.
            if waited_s > max(1.25 * page.queued_s, _NOTABLE_S):
                said["queued_s"] = waited_s
        if job.state == PENDING and tag.asked_at is not None and job.submitted is not None:
            # Its requeue counts as a submission: that is when it had saved.
            took_s = job.submitted - tag.asked_at
            if job.restarts > tag.restarts and took_s >= 0:
                said["stop_s"] = max(took_s, page.stop_s or 0.0)
        if any(getattr(page, name) != value for name, value in said.items()):
            page = replace(page, **said)
        if job.state != RUNNING or job.started is None:
            return page
        found = Begun(task=job.id, start=job.started, progress_s=progress_s)
        known = any(each.task == found.task and each.start == found.start for each in self.begun)
        return page if known else replace(page, begun=(*page.begun, found))

    @property
    def stretches(self) -> list[list[Stretch]]:
        """The starts of each element as far as they were seen, with the work that each did.

        What the last of them did is not known, and taken for nothing.
        """
        tasks: dict[str, list[Begun]] = {}
        for each in sorted(self.begun, key=lambda begun: begun.start):
            tasks.setdefault(each.task, []).append(each)
        return [
            [
                Stretch(start=each.start, work_s=max(after.progress_s - each.progress_s, 0.0))
                for each, after in zip(starts, [*starts[1:], starts[-1]], strict=True)
            ]
            for starts in tasks.values()
        ]


class Book:
    """All pages, below a folder.

    Args:
        folder: Where they are; it is made when something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, BookPage] = {}

    def put(self, page: BookPage) -> None:
        """Keep a page, in place of what was known of the job."""
        if self._known.get(page.token) != page:
            text = json.dumps(asdict(page), separators=(",", ":"))
            write_whole(self.folder / f"{page.token}.json", text, lasting=False)
            self._known[page.token] = page

    def pages(self, *, now: float, newer_s: float = _KEPT_S) -> list[BookPage]:
        """Return all pages that can be read, oldest job first; those that are too old are removed.

        Args:
            newer_s: How long ago the job was handed in at most.
        """
        found = []
        try:
            paths = sorted(self.folder.glob("*.json"))
        except OSError:
            return []
        for path in paths:
            page = self._known.get(path.stem) or read_page(path)
            if page is None:
                continue
            if page.arrival < now - _KEPT_S:
                with suppress(OSError):
                    path.unlink()
                continue
            self._known[page.token] = page
            if page.arrival >= now - newer_s:
                found.append(page)
        return sorted(found, key=lambda page: (page.arrival, page.token))

    def find(self, job_id: str, at: float) -> BookPage | None:
        """Return the page of a job by its number: that handed in last before a moment."""
        number = job_id.partition("_")[0]
        pages = [
            page
            for page in self.pages(now=at)
            if page.job_id == number and page.arrival <= at + 60.0
        ]
        return pages[-1] if pages else None

    def see(self, jobs: Iterable[Seen], *, now: float) -> list[BookPage]:
        """Take in a look at the queue; return the pages of jobs that are in it no more.

        What carries a tag and has no page, since another machine has handed it in, gets one.
        """
        present: dict[str, BookPage] = {}
        known = {page.token: page for page in self.pages(now=now)}
        for job in jobs:
            tag, _ = decode(job.comment)
            if tag is None:
                continue
            page = present.get(tag.token) or known.get(tag.token)
            if page is None:
                page = BookPage(
                    token=tag.token,
                    job_id=job.id.partition("_")[0],
                    name=job.name,
                    user=job.user,
                    arrival=tag.arrival,
                    deadline=tag.deadline,
                    profile=tag.profile,
                    kind=job.kind,
                )
            present[tag.token] = page.seen(job, tag, now)
        for page in present.values():
            self.put(page)
        return [page for token, page in known.items() if token not in present and not page.is_over]


def by_class(pages: Iterable[BookPage]) -> list[dict[str, Any]]:
    """Return what ended jobs came to by class and unit, each gap over the jobs that have both ends.

    From plan to replay it is queue, scheduler and forecast that were off, from replay to measured
    the profile. Saved is what was measured alone.
    """
    groups: dict[tuple[str, str], list[BookPage]] = {}
    for page in pages:
        if page.is_over:
            groups.setdefault((page.kind, page.unit), []).append(page)
    rows = []
    for (kind, unit), found in sorted(groups.items()):
        saved = [(page.measured, page.reckoning.saved) for page in found]
        known = [(used, less) for used, less in saved if used is not None and less is not None]
        less, used = sum(less for _, less in known), sum(used for used, _ in known)
        rows.append(
            {
                "kind": kind or None,
                "jobs": len(found),
                "in_time": sum(page.in_time is True for page in found),
                "late": sum(page.in_time is False for page in found),
                "measured_jobs": len(known),
                "planned": _total(page.planned for page in found),
                "replayed": _total(page.replayed for page in found),
                "measured": _total(page.measured for page in found),
                "unit": unit,
                "plan_gap": _gap((page.planned, page.replayed) for page in found),
                "profile_gap": _gap((page.replayed, page.measured) for page in found),
                "saved": less if known else None,
                "saving": less / (less + used) if known and less + used else None,
            }
        )
    return rows


def _total(amounts: Iterable[float | None]) -> float | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


def _gap(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Return by what share more the second comes to than the first, where both are known."""
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    first = sum(a for a, _ in known)
    return sum(b for _, b in known) / first - 1.0 if first else None


def read_page(path: Path) -> BookPage | None:
    """Return a page; None where it cannot be read or makes no sense."""
    try:
        said = read_document(path, "json")
        known = {each.name for each in fields(BookPage)}
        values: dict[str, Any] = {key: said[key] for key in known & said.keys()}
        values["begun"] = tuple(Begun(**each) for each in values.get("begun", ()))
        values["told"] = tuple(map(str, values.get("told", ())))
        page = BookPage(**values)
    except (LowtideError, TypeError, AttributeError):
        return None
    return page if page.token == path.stem and _makes_sense(page) else None


def _makes_sense(page: BookPage) -> bool:
    rows: list[BookPage | Begun] = [page, *page.begun]
    for row in rows:
        for each in fields(row):
            value, kind = getattr(row, each.name), str(each.type)
            if kind.startswith("tuple") or (value is None and "None" in kind):
                continue
            if "str" in kind:
                fits = isinstance(value, str)
            else:
                whole = isinstance(value, int) or "float" in kind
                fits = isinstance(value, int | float) and whole and abs(value) < _MOST
            if not fits:
                return False
    return min(page.energy_scale, page.duration_scale) > 0
