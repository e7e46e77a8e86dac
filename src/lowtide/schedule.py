"""What a job does when.

A `Schedule` is a row of spans without gaps: every start is a `startup` span, then `work`; a stop
on demand may add a `stop` span; then the job is `suspended` until the next start, which is a
`restart` span where the profile says that it differs from the first. Work that a stop between
checkpoints throws away is `lost`: it is paid for and done again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import files
from lowtide.errors import InvalidInput, InvalidSchedule
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.profile import PowerProfile
from lowtide.units import (
    DurationLike,
    TimeLike,
    format_duration,
    format_hours,
    format_html,
    format_percent,
    format_time,
    parse_duration,
    parse_time,
)

# What a start does before its work: the first, and others where the profile tells them apart.
STARTING = ("startup", "restart")
SPAN_KINDS = (*STARTING, "work", "lost", "stop", "suspended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time in which a job does one thing.

    Attributes:
        kind: `startup`, `restart`, `work`, `lost`, `stop` or `suspended`.
        start: The instant it begins.
        duration_s: How long it lasts, more than 0.
        progress_s: Work done, in seconds, when it begins.
    """

    kind: str
    start: float
    duration_s: float
    progress_s: float

    def __post_init__(self) -> None:
        if self.kind not in SPAN_KINDS:
            raise InvalidSchedule(
                f"unknown kind of span {self.kind!r}: known are {', '.join(SPAN_KINDS)}"
            )
        numbers = (self.start, self.duration_s, self.progress_s)
        if any(isinstance(each, bool) or not isinstance(each, Real) for each in numbers):
            raise InvalidSchedule(f"a span's times are numbers of seconds, unlike those of {self}")
        known = all(map(math.isfinite, numbers))
        if not (known and self.duration_s > 0 and self.progress_s >= 0):
            raise InvalidSchedule(
                f"a span lasts longer than 0 s from a known time on, unlike {self}"
            )

    @property
    def end(self) -> float:
        """The instant it ends."""
        return self.start + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One start of a job and what it runs before it stops: what a planner decides.

    Attributes:
        start: The instant at which the startup begins.
        work_s: Work done and kept.
        lost_s: Work done after that and thrown away by the stop.
    """

    start: float
    work_s: float
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class State:
    """Where a job stands when it is planned anew.

    Attributes:
        now: The instant.
        progress_s: Work done: all of it while running, what is kept while stopped.
        running: Whether it runs at this moment.
        starts: How often it was started so far; by default once if it has begun.
        ran_s: Work done since the last start, of a job that runs: short of `min_run_s` it must
            not be stopped. By default all progress if it was started once; if it was started
            more often, None, which is taken for long enough.

    >>> State(now="2026-01-01T12:00Z", progress_s="90m", running=True)
    State(now=1767268800.0, progress_s=5400.0, running=True, starts=1, ran_s=5400.0)
    """

    now: float
    progress_s: float
    running: bool
    starts: int
    ran_s: float | None

    def __init__(
        self,
        *,
        now: TimeLike,
        progress_s: DurationLike = 0.0,
        running: bool = False,
        starts: int | None = None,
        ran_s: DurationLike | None = None,
    ) -> None:
        done_s = parse_duration(progress_s)
        if not isinstance(running, bool | np.bool_):
            raise InvalidInput(f"running says whether the job runs, True or False, not {running!r}")
        running = bool(running)
        # A job that runs, or has done some work, was started at least once.
        least = int(running or done_s > 0)
        begun = least if starts is None else starts
        if isinstance(begun, bool) or not isinstance(begun, int | np.integer) or begun < least:
            raise InvalidInput(
                f"starts is a whole number of at least {least}"
                + (" for a job that has begun" if least else "")
                + f", not {begun!r}"
            )
        ran = None if ran_s is None else parse_duration(ran_s)
        if running and ran is None and begun == 1:
            ran = done_s
        if ran is not None and not (running and 0 <= ran <= done_s + TIME_TOLERANCE_S):
            raise InvalidInput(
                f"ran_s is what a running job has done since its last start, from 0 to "
                f"{done_s:g} s of progress, not {ran:g} s"
                + ("" if running else " of a stopped job")
            )
        for name, value in (
            ("now", parse_time(now)),
            ("progress_s", done_s),
            ("running", running),
            ("starts", int(begun)),
            ("ran_s", ran),
        ):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The spans of one job, in order and without gaps.

    Attributes:
        job_id: Whose schedule it is.
        spans: What the job does when.
    """

    job_id: str
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.spans:
            raise InvalidSchedule(f"job {self.job_id}: a schedule has at least one span")

    @classmethod
    def from_stretches(
        cls, job: Job, stretches: Iterable[Stretch], *, state: State | None = None
    ) -> Schedule:
        """Lay out the spans of a job that is started as the stretches say.

        Every stop runs the stop phases, whether it keeps all work or not. Stretches
        that follow each other at once in a job that stops and starts again in no time are one.

        Args:
            job: The job.
            stretches: Its starts, in order; the first goes on with a run that is under way.
            state: Where the job stands, for the rest of one that has begun. What it does from
                then on is laid out, a wait for its next start included.

        >>> from lowtide.profile import PowerProfile
        >>> job = Job(id="a", arrival=0, deadline="+9h", profile=PowerProfile.constant(100, "2h"),
        ...           interruptible="anywhere")
        >>> halves = [Stretch(start=0.0, work_s=3600.0), Stretch(start=7200.0, work_s=3600.0)]
        >>> [span.kind for span in Schedule.from_stretches(job, halves).spans]
        ['work', 'suspended', 'work']
        """
        profile = job.profile
        state = state or State(now=job.arrival)
        spans: list[Span] = []
        done = state.progress_s

        def add(kind: str, start: float, duration_s: float) -> float:
            if duration_s > 0:
                spans.append(Span(kind=kind, start=start, duration_s=duration_s, progress_s=done))
            return start + duration_s

        free = state.now if state.starts and not state.running else None
        for number, stretch in enumerate(stretches):
            if number:
                last = spans[-1] if spans else None
                if (
                    last is not None
                    and last.kind == "work"
                    and not (profile.starting(1) or profile.stop or stretch.lost_s)
                    and abs(stretch.start - last.end) <= TIME_TOLERANCE_S
                ):
                    spans[-1] = replace(last, duration_s=last.duration_s + stretch.work_s)
                    done += stretch.work_s
                    ran_until = spans[-1].end
                    continue
                free = add("stop", ran_until, profile.stop_s)
            if free is not None:
                wait_s = stretch.start - free
                if wait_s < -TIME_TOLERANCE_S:
                    raise InvalidSchedule(
                        f"job {job.id}: a start at {format_time(stretch.start)} comes before the "
                        f"last run has ended at {format_time(free)}"
                    )
                if wait_s > TIME_TOLERANCE_S:
                    add("suspended", free, wait_s)
            now = stretch.start
            if number or not state.running:
                before = state.starts + number
                now = add(start_kind(profile, before), now, profile.starting_s(before))
            now = add("work", now, stretch.work_s)
            done += stretch.work_s
            ran_until = add("lost", now, stretch.lost_s)
        return cls(job_id=job.id, spans=tuple(spans))

    @classmethod
    def uninterrupted(cls, job: Job, start: float) -> Schedule:
        """Lay out one run without a stop.

        Args:
            job: The job.
            start: The instant at which its startup begins.
        """
        return cls.from_stretches(job, [Stretch(start=start, work_s=job.profile.work_s)])

    @property
    def start(self) -> float:
        """The instant of the first start."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """The instant at which the job is done."""
        return self.spans[-1].end

    @property
    def runs(self) -> tuple[tuple[Span, ...], ...]:
        """The spans of each start, without the suspended ones between them."""
        runs: list[list[Span]] = []
        begins = True
        for span in self.spans:
            if span.kind == "suspended":
                begins = True
                continue
            if not runs or span.kind in STARTING or (begins and span.kind != "stop"):
                runs.append([])
            runs[-1].append(span)
            # Nothing but a stop or a new start can follow lost work, even without a pause.
            begins = span.kind in ("stop", "lost")
        return tuple(tuple(run) for run in runs)

    @property
    def starts(self) -> int:
        """How often the job is started."""
        return len(self.runs)

    def rest(self, state: State) -> Schedule | None:
        """Return what is left of this schedule, None if it does not lead through a state.

        Args:
            state: Where the job stands.
        """
        now, near = state.now, TIME_TOLERANCE_S
        begun = sum(run[0].start < now - near for run in self.runs)
        if not state.starts:
            return self if not begun else None
        spans = [span for span in self.spans if span.end > now + near]
        if not spans or begun != state.starts:
            return None
        first = spans[0]
        into_s = max(now - first.start, 0.0)
        done_s = first.progress_s + (into_s if first.kind == "work" else 0.0)
        if abs(done_s - state.progress_s) > 2 * near:
            return None
        # A job that runs is at work, or about to be stopped; one that does not is suspended.
        if into_s > near:
            expected = {"work"} if state.running else {"suspended"}
        else:
            expected = {"work", "suspended", *(("stop",) if state.running else STARTING)}
        if first.kind not in expected:
            return None
        left_s = first.end - now
        spans[0] = replace(first, start=now, duration_s=left_s, progress_s=state.progress_s)
        return replace(self, spans=tuple(spans))

    @property
    def busy_s(self) -> float:
        """How long the job runs, suspension not counted."""
        return sum(span.duration_s for span in self.spans if span.kind != "suspended")

    def end_if(self, share: float) -> float:
        """Return when the job is done if all it does takes so many times as long as planned.

        It runs when the schedule says, so what is not done when it is stopped is left for the next
        start, and what is done early may spare one. The last start runs until the job is done.

        >>> from lowtide.profile import PowerProfile
        >>> job = Job(id="a", arrival=0, deadline="+9h", profile=PowerProfile.constant(100, "2h"),
        ...           interruptible="anywhere")
        >>> halves = [Stretch(start=0.0, work_s=3600.0), Stretch(start=7200.0, work_s=3600.0)]
        >>> schedule = Schedule.from_stretches(job, halves)
        >>> schedule.end_if(1.1), schedule.end_if(0.5)
        (11520.0, 3600.0)
        """
        left_s = share * sum(span.duration_s for span in self.spans if span.kind == "work")
        *earlier, final = self.runs
        for run in earlier:
            spent_s = dict.fromkeys(SPAN_KINDS, 0.0)
            for span in run:
                spent_s[span.kind] += span.duration_s
            setup_s = sum(spent_s[kind] for kind in STARTING)
            room_s = setup_s + spent_s["work"] - share * setup_s
            if left_s <= room_s:
                return run[0].start + share * setup_s + left_s
            left_s -= max(room_s, 0.0)
        setup_s = sum(span.duration_s for span in final if span.kind in STARTING)
        return final[0].start + share * setup_s + left_s

    def _repr_html_(self) -> str:
        return format_html(str(self))

    def __str__(self) -> str:
        return self.told()

    def told(self, tz: tzinfo | None = UTC, zone: str = "UTC") -> str:
        """Return the spans as a table for people.

        Args:
            tz: The zone of its times, None for this machine's.
            zone: What the headings call that zone.
        """
        total = max(
            (_progress_after(span) for span in self.spans if span.kind == "work"), default=0.0
        )
        start, end = f"start ({zone})", f"end ({zone})"
        wide = max(20, len(start))
        rows = [f"{start:<{wide}} {end:<{wide}} {'elapsed':>12}  {'what':<10} done"]
        rows += [
            f"{_second(span.start, tz):<{wide}} {_second(span.end, tz):<{wide}} "
            f"{format_duration(span.duration_s):>12}  {span.kind:<10} "
            f"{format_percent(_progress_after(span) / total if total else None)}"
            for span in self.spans
        ]
        return "\n".join(rows)

    def check(self, job: Job) -> None:
        """Raise `InvalidSchedule` unless the job could run this way, by all its rules.

        Args:
            job: Whose schedule it claims to be.
        """
        profile, tolerance = job.profile, TIME_TOLERANCE_S

        def demand(holds: bool, rule: str) -> None:
            if not holds:
                raise InvalidSchedule(f"job {job.id}: {rule}")

        demand(
            self.start >= job.arrival - tolerance,
            f"it starts at {format_time(self.start)}, before its arrival "
            f"at {format_time(job.arrival)}",
        )
        demand(
            self.end <= job.deadline + tolerance,
            f"it ends at {format_time(self.end)}, after its deadline "
            f"at {format_time(job.deadline)}",
        )
        done = 0.0
        for before, after in zip(self.spans, self.spans[1:], strict=False):
            demand(
                abs(before.end - after.start) <= tolerance,
                f"its spans leave a gap or overlap at {format_time(before.end)}",
            )
            done += before.duration_s if before.kind == "work" else 0.0
            demand(
                abs(after.progress_s - done) <= tolerance,
                f"{after.kind} at {format_time(after.start)} claims {after.progress_s:g} s of "
                f"progress, and there are {done:g} s",
            )
        demand(self.spans[0].kind != "suspended", "it begins suspended, before any start")
        demand(self.spans[0].progress_s <= tolerance, "it begins with work already done")
        demand(self.spans[-1].kind == "work", f"it ends in {self.spans[-1].kind}, not in work")
        limit = 1 if job.interruptible == "never" else job.max_starts
        demand(
            limit is None or self.starts <= limit,
            f"it is started {self.starts} times, and may be {limit} times",
        )
        demand(self.job_id == job.id, f"it is the schedule of job {self.job_id}")
        kept = 0.0
        runs = self.runs
        whole_s = {
            "startup": profile.startup_s,
            "restart": profile.restart_s,
            "stop": profile.stop_s,
        }
        for number, run in enumerate(runs, start=1):
            last = number == len(runs)
            kinds = [span.kind for span in run]
            expected = [start_kind(profile, number - 1)] if profile.starting(number - 1) else []
            killed = "lost" in kinds
            if not killed or "work" in kinds:
                expected.append("work")
            if killed:
                expected.append("lost")
            if not last and profile.stop:
                expected.append("stop")
            demand(kinds == expected, f"start {number} runs {kinds}, not {expected}")
            did = 0.0
            for span in run:
                whole = whole_s.get(span.kind)
                demand(
                    whole is None or abs(span.duration_s - (whole or 0.0)) <= tolerance,
                    f"{span.kind} at {format_time(span.start)} is not its whole length",
                )
                demand(
                    span.kind != "lost" or kept + span.duration_s <= profile.work_s + tolerance,
                    f"it loses more work at {format_time(span.start)} than there is",
                )
                if span.kind == "work":
                    kept += span.duration_s
                    did += span.duration_s
            demand(
                did >= job.min_run_s - tolerance,
                f"start {number} does {format_hours(did)} of work, less than min_run_s = "
                f"{format_hours(job.min_run_s)}",
            )
            if not last and job.interruptible == "checkpoints":
                at_checkpoint = [0.0, *profile.checkpoints_s]
                demand(
                    min(abs(kept - point) for point in at_checkpoint) <= tolerance,
                    f"it stops after {kept:g} s of work, which is no checkpoint",
                )
        demand(
            abs(kept - profile.work_s) <= tolerance,
            f"it does {format_hours(kept)} of {format_hours(profile.work_s)} of work",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers that `from_dict` reads back."""
        return {
            "job_id": self.job_id,
            "spans": [
                {
                    "kind": span.kind,
                    "start": span.start,
                    "duration_s": span.duration_s,
                    "progress_s": span.progress_s,
                }
                for span in self.spans
            ],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Schedule:
        """Return the schedule that a mapping describes.

        Args:
            document: `job_id` and `spans`, as `to_dict` writes them.
        """
        try:
            spans = tuple(Span(**span) for span in document["spans"])
            return cls(job_id=str(document["job_id"]), spans=spans)
        except (KeyError, TypeError, OverflowError) as error:
            raise InvalidSchedule(
                "a schedule has job_id and spans of kind, start, duration_s and progress_s"
            ) from error

    @classmethod
    def load(cls, path: Path | str) -> Schedule:
        """Read a schedule from the JSON file that `dump` wrote.

        Args:
            path: The file.
        """
        return cls.from_dict(files.read_document(path, "json"))

    def dump(self, path: Path | str, *, about: str = "") -> None:
        """Write the schedule as JSON; it reads back equal.

        Args:
            path: The file.
            about: How it was made; kept in the file.
        """
        document = ({"about": about} if about else {}) | self.to_dict()
        files.write_whole(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def start_kind(profile: PowerProfile, before: int) -> str:
    """Return the kind of span that a start begins with that so many others came before."""
    return STARTING[before > 0 and profile.restart is not None]


def _progress_after(span: Span) -> float:
    return span.progress_s + (span.duration_s if span.kind == "work" else 0.0)


def _second(instant: float, tz: tzinfo | None) -> str:
    return format_time(instant, tz).rpartition(" ")[0]
