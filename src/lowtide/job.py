"""What is to be run, within which time, and how it may be stopped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lowtide.errors import DeadlineTooEarly, InvalidJob
from lowtide.profile import PowerProfile
from lowtide.units import (
    DurationLike,
    TimeLike,
    format_hours,
    format_time,
    parse_duration,
    parse_time,
    require_number,
)

INTERRUPTIBLE = ("never", "anywhere", "checkpoints")

# Epoch seconds tell times apart to 0.2 µs only; a job may miss its window by less than this.
TIME_TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job holds while it runs.

    Attributes:
        cpus: CPU cores.
        gpus: GPUs.
        nodes: Nodes.
        memory_bytes: Memory, None where it is unknown.
    """

    cpus: int = 1
    gpus: int = 0
    nodes: int = 1
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("cpus", 0), ("gpus", 0), ("nodes", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidJob(
                    f"{name} must be a whole number of at least {least}, not {value!r}"
                )
        if self.memory_bytes is not None:
            require_number(
                self.memory_bytes, "memory_bytes", least=0.0, finite=False, error=InvalidJob
            )


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Job:
    """One job.

    Attributes:
        id: What it is called.
        arrival: The instant from which it may run.
        deadline: The instant at which it must be done.
        profile: What it draws, and with it how long it takes.
        interruptible: Whether it may be stopped `never`, `anywhere`, or at `checkpoints` only.
        max_starts: How often it may be started, None for any number.
        min_run_s: How much work each start must at least do and keep.
        resources: What it holds while it runs.
        priority: The higher, the sooner its turn in a queue that looks at it; what is planned for
            the job alone does not depend on it.
        after: The ids of jobs that must be done before it starts, where many are planned or run.
        think_s: How long after the last of them it may start at the soonest.

    >>> job = Job(id="md42", arrival="2024-07-01T00:00Z", deadline="+36h",
    ...           profile=PowerProfile.constant(300, "6h"))
    >>> job.slack_s / 3600
    30.0
    """

    id: str
    arrival: float
    deadline: float
    profile: PowerProfile
    interruptible: str
    max_starts: int | None
    min_run_s: float
    resources: Resources
    priority: float
    after: tuple[str, ...]
    think_s: float

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the word everyone uses for it
        arrival: TimeLike,
        deadline: TimeLike,
        profile: PowerProfile,
        interruptible: str = "never",
        max_starts: int | None = None,
        min_run_s: DurationLike = 0.0,
        resources: Resources | None = None,
        priority: float = 0.0,
        after: Iterable[str] = (),
        think_s: DurationLike = 0.0,
    ) -> None:
        begin = parse_time(arrival)
        names = (after,) if isinstance(after, str) else tuple(str(each) for each in after)
        for name, value in (
            ("id", str(id)),
            ("arrival", begin),
            ("deadline", parse_time(deadline, relative_to=begin)),
            ("profile", profile),
            ("interruptible", interruptible),
            ("max_starts", max_starts),
            ("min_run_s", parse_duration(min_run_s)),
            ("resources", resources or Resources()),
            ("priority", priority),
            ("after", names),
            ("think_s", parse_duration(think_s)),
        ):
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if not isinstance(self.profile, PowerProfile):
            raise InvalidJob(f"job {self.id}: profile is a PowerProfile, not {self.profile!r}")
        if self.interruptible not in INTERRUPTIBLE:
            raise InvalidJob(
                f"job {self.id}: interruptible is one of {', '.join(INTERRUPTIBLE)}, "
                f"not {self.interruptible!r}"
            )
        if self.max_starts is not None and (
            isinstance(self.max_starts, bool)
            or not isinstance(self.max_starts, int)
            or self.max_starts < 1
        ):
            raise InvalidJob(
                f"job {self.id}: max_starts is a whole number of at least 1, "
                f"not {self.max_starts!r}"
            )
        if not isinstance(self.resources, Resources):
            raise InvalidJob(f"job {self.id}: resources are Resources, not {self.resources!r}")
        if not isinstance(self.priority, int | float) or not math.isfinite(self.priority):
            raise InvalidJob(f"job {self.id}: priority is a number, not {self.priority!r}")
        if self.id in self.after:
            raise InvalidJob(f"job {self.id} waits for itself: take it out of after")
        if self.think_s < 0:
            raise InvalidJob(f"job {self.id}: think_s is 0 or more, not {self.think_s:g}")
        if self.min_run_s < 0:
            raise InvalidJob(f"job {self.id}: min_run_s is 0 or more, not {self.min_run_s:g}")
        if self.min_run_s > self.profile.work_s + TIME_TOLERANCE_S:
            raise InvalidJob(
                f"job {self.id}: min_run_s asks for {format_hours(self.min_run_s)} of work at "
                f"every start, but there are only {format_hours(self.profile.work_s)}: lower it"
            )
        # What is more than the work by rounding alone asks for all of it.
        object.__setattr__(self, "min_run_s", min(self.min_run_s, self.profile.work_s))
        if self.slack_s < -TIME_TOLERANCE_S:
            available = self.deadline - self.arrival
            startup = self.profile.startup_s
            parts = (
                f" ({format_hours(startup)} startup + {format_hours(self.profile.work_s)} work)"
                if startup
                else ""
            )
            earliest = math.ceil(self.arrival + self.profile.run_s)
            leaves = f"leaves {format_hours(available)} for a job that"
            if available <= 0:
                leaves = f"does not come after its arrival, {format_time(self.arrival)}, and it"
            raise DeadlineTooEarly(
                f"job {self.id}: deadline {format_time(self.deadline)} {leaves} needs "
                f"{format_hours(self.profile.run_s)}{parts}: "
                f"move the deadline to {format_time(earliest)} or later",
                available_s=available,
                needed_s=self.profile.run_s,
            )

    @property
    def slack_s(self) -> float:
        """How long the job can wait in all: from arrival to deadline, less one whole run."""
        return self.deadline - self.arrival - self.profile.run_s

    @property
    def latest_start(self) -> float:
        """The last instant at which it can start and still be done in time."""
        return self.arrival + max(self.slack_s, 0.0)


def require_job(job: object) -> None:
    """Refuse what is no job, where one is to be planned or run."""
    if isinstance(job, Job):
        return
    if isinstance(job, list | tuple):
        raise InvalidJob(
            f"one Job is planned at a time, not a {type(job).__name__} of {len(job)}: use "
            "plan_many for each by itself, or simulate for many that share machines"
        )
    given = "None" if job is None else f"a {type(job).__name__}"
    raise InvalidJob(
        f"what is planned or run is a Job, not {given}: make one with Job(id=..., arrival=..., "
        "deadline=..., profile=...), and give it before the signal"
    )


def require_jobs(jobs: object) -> list[Job]:
    """Return jobs as a list, and refuse what is none."""
    if not isinstance(jobs, Iterable) or isinstance(jobs, str | bytes | Mapping):
        given = "one Job" if isinstance(jobs, Job) else f"a {type(jobs).__name__}"
        raise InvalidJob(f"jobs are a list of Job, not {given}: write [job, ...]")
    listed = list(jobs)
    for job in listed:
        require_job(job)
    return listed
