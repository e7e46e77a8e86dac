"""Many jobs in columns: what is simulated.

A `Workload` holds what a list of jobs would, a thousand times faster: a hundred thousand jobs are
a dozen arrays. A job draws either constant power (`profile` is −1) or what a profile says, times
its `power` factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidJob, InvalidTrace, UnknownName
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S, Job, Resources, require_jobs
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FloatArray
from lowtide.states import STATUSES
from lowtide.trace import Trace
from lowtide.units import DurationLike, format_count, format_hours, parse_duration

IntArray = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

_COMPLETED = STATUSES.index("completed")
_WHOLE = ("profile", "interruptible", "max_starts", "status")
# What is said once for all jobs.
_SHARED = ("profiles", "source", "left_out")
# What profiles say of each job: kept, as it is asked for again and again.
_OF_PROFILES = ("startup_s", "restart_s")


def _column(name: str, values: npt.ArrayLike, kind: Any, count: int | None) -> Any:
    """Return a column of a workload, a value alone as that of every job.

    Args:
        values: What was given: one for all, or one for each.
        kind: What its values must be, None for anything.
        count: How many jobs there are, None where this column says it.
    """
    try:
        given = np.asarray(values, dtype=kind)
    except (TypeError, ValueError):
        raise InvalidJob(f"{name} of a workload are numbers, one per job, not {values!r}") from None
    if count is None:
        if given.ndim != 1:
            raise InvalidJob(f"{name} of a workload is a list, one value per job, not {values!r}")
        return given
    if given.ndim > 1 or (given.ndim == 1 and given.size not in (1, count)):
        raise InvalidJob(
            f"{name} has {given.size} values for {format_count(count, 'job')} (so many arrivals "
            "were given): give one for each, or one for all"
        )
    return np.broadcast_to(given, count)


def _after(given: Sequence[Sequence[str] | str | None] | None, count: int) -> Column:
    """Return whom each job waits for, as names; one value for all where that is nobody."""
    nobody = np.array(None, dtype=object)
    if given is None or all(each is None for each in given):
        return np.broadcast_to(nobody, count)
    if len(given) != count:
        raise InvalidJob(f"after has {len(given)} values for {format_count(count, 'job')}")
    column = np.full(count, None, dtype=object)
    for row, each in enumerate(given):
        names = (each,) if isinstance(each, str) else tuple(str(name) for name in each or ())
        column[row] = names or None
    return column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Workload:
    """Jobs in columns, ordered by arrival, then as they came.

    Attributes:
        id: What each is called.
        arrival: The instant from which it may run.
        deadline: The instant at which it must be done.
        work_s: How much work it is.
        power: Watts of a job of constant power; else what its profile's powers are multiplied by.
        profile: Its place in `profiles`, −1 for constant power without startup.
        interruptible: Its place in `job.INTERRUPTIBLE`: never, anywhere, checkpoints.
        min_run_s: How much work each start must do.
        max_starts: How often it may be started, 0 for any number.
        cpus: CPU cores it holds while it runs, on all its nodes together.
        gpus: GPUs, likewise.
        nodes: On how many nodes it runs.
        memory_bytes: Memory, likewise.
        requested_s: How long its user said it would run; never less than it does.
        priority: The higher, the sooner its turn, where a discipline looks at it.
        status: Its place in `states.STATUSES`: how it ends.
        user: Whose it is.
        after: The ids of those that must be done before it starts, None for nobody. Whoever is not
            among these jobs counts as done.
        think_s: How long after the last of them it may start at the soonest.
        waited_s: How long it waited for its start when it was recorded, NaN where that is not
            known; None where it is not known of any.
        startup_s: How long its first start takes.
        restart_s: How long each start after the first takes.
        profiles: What jobs with phases draw.
        source: Where the jobs come from, in words.
        left_out: How many jobs of there are not here, by the reason: `never_ran` for rows of a
            trace without a length, `oversized` for jobs that fit on no machine of a simulation.
    """

    id: Column
    arrival: FloatArray
    deadline: FloatArray
    work_s: FloatArray
    power: FloatArray
    profile: IntArray
    interruptible: IntArray
    min_run_s: FloatArray
    max_starts: IntArray
    cpus: FloatArray
    gpus: FloatArray
    nodes: FloatArray
    memory_bytes: FloatArray
    requested_s: FloatArray
    priority: FloatArray
    status: IntArray
    user: Column
    after: Column
    think_s: FloatArray
    waited_s: FloatArray | None
    startup_s: FloatArray = field(init=False)
    restart_s: FloatArray = field(init=False)
    profiles: tuple[PowerProfile, ...]
    source: str
    left_out: Mapping[str, int]

    def __init__(
        self,
        *,
        arrival: npt.ArrayLike,
        deadline: npt.ArrayLike,
        work_s: npt.ArrayLike | None = None,
        power: npt.ArrayLike = 1.0,
        profile: npt.ArrayLike = -1,
        interruptible: npt.ArrayLike = 0,
        min_run_s: npt.ArrayLike = 0.0,
        max_starts: npt.ArrayLike = 0,
        cpus: npt.ArrayLike = 1.0,
        gpus: npt.ArrayLike = 0.0,
        nodes: npt.ArrayLike = 1.0,
        memory_bytes: npt.ArrayLike = 0.0,
        requested_s: npt.ArrayLike | None = None,
        priority: npt.ArrayLike = 0.0,
        status: npt.ArrayLike = _COMPLETED,
        id: npt.ArrayLike | None = None,  # noqa: A002 - the word everyone uses for it
        user: npt.ArrayLike | None = None,
        after: Sequence[Sequence[str] | str | None] | None = None,
        think_s: npt.ArrayLike = 0.0,
        waited_s: npt.ArrayLike | None = None,
        profiles: Sequence[PowerProfile] = (),
        source: str = "",
        left_out: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        when: FloatArray = _column("arrival", arrival, np.float64, None)
        count = when.size
        places: IntArray = _column("profile", profile, np.int64, count)
        if np.any((places < -1) | (places >= len(profiles))):
            raise InvalidJob(f"a job's profile is -1 or one of the {len(profiles)} given")
        if work_s is None:
            lengths = np.array([*(each.work_s for each in profiles), np.nan])
            work_s = lengths[places]
        columns: dict[str, Any] = {
            "id": np.arange(1, count + 1) if id is None else np.asarray(id),
            "arrival": when,
            "deadline": deadline,
            "work_s": work_s,
            "power": power,
            "profile": places,
            "interruptible": interruptible,
            "min_run_s": min_run_s,
            "max_starts": max_starts,
            "cpus": cpus,
            "gpus": gpus,
            "nodes": nodes,
            "memory_bytes": memory_bytes,
            "priority": priority,
            "status": status,
            "user": np.full(count, None, dtype=object) if user is None else np.asarray(user),
            "after": _after(after, count),
            "think_s": think_s,
        }
        if waited_s is not None:
            columns["waited_s"] = waited_s
        columns["startup_s"] = np.array([*(each.startup_s for each in profiles), 0.0])[places]
        columns["restart_s"] = np.array([*(each.restart_s for each in profiles), 0.0])[places]
        run_s = columns["startup_s"] + _column("work_s", work_s, np.float64, count)
        columns["requested_s"] = (
            run_s
            if requested_s is None
            else np.fmax(_column("requested_s", requested_s, np.float64, count), run_s)
        )
        order = None if np.all(np.diff(when) >= 0) else np.argsort(when, kind="stable")
        object.__setattr__(self, "waited_s", None)
        for name, values in columns.items():
            kind = (
                None
                if name in ("id", "user", "after")
                else np.int64
                if name in _WHOLE
                else np.float64
            )
            given = np.asarray(values)
            column = _column(name, values, kind, count)
            if order is not None:
                column = column[order]
            elif given.flags.writeable and given.size == count:
                column = column.copy()
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        object.__setattr__(self, "profiles", tuple(profiles))
        object.__setattr__(self, "source", source)
        # A plain mapping, as a read-only view of one cannot cross processes.
        object.__setattr__(self, "left_out", dict(left_out))
        self._check()

    def _check(self) -> None:
        self._demand(np.isfinite(self.arrival), "has no arrival")
        self._demand((self.work_s > 0) & np.isfinite(self.work_s), "has no work to do")
        self._demand((self.power >= 0) & np.isfinite(self.power), "draws no known power")
        self._demand(
            (self.interruptible >= 0) & (self.interruptible < len(INTERRUPTIBLE)),
            f"may be stopped in none of the ways {', '.join(INTERRUPTIBLE)}",
        )
        slack_s = self.slack_s
        in_time = slack_s >= -TIME_TOLERANCE_S
        what = "cannot be done by its deadline"
        first = int(np.argmin(in_time)) if in_time.size else 0
        if not in_time.all() and np.isfinite(slack_s[first]):
            needs, short = format_hours(self.run_s[first]), format_hours(-slack_s[first])
            what += f": it needs {needs}, and has {short} less than that"
        self._demand(in_time, what)
        enough = self.min_run_s <= self.work_s + TIME_TOLERANCE_S
        self._demand(enough, "has less work than min_run_s asks for")
        self._demand(np.isfinite(self.priority), "has no priority that is a number")
        self._demand(
            (self.think_s >= 0) & np.isfinite(self.think_s), "starts before those that it waits for"
        )

    def _demand(self, good: npt.NDArray[np.bool_], what: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            more = int(np.count_nonzero(~good)) - 1
            others = f", and {more} more" if more else ""
            raise InvalidJob(f"job {self.id[row]} (row {row + 1}) {what}{others}")

    @classmethod
    def from_jobs(cls, jobs: Sequence[Job], *, source: str = "") -> Workload:
        """Return the workload of a list of jobs.

        Args:
            jobs: The jobs; those that share a profile object share it here.
            source: Where they come from, in words.
        """
        jobs = require_jobs(jobs)
        known = {job.id for job in jobs}
        for job in jobs:
            missing = [name for name in job.after if name not in known]
            if missing:
                raise UnknownName(f"job that {job.id} waits for", missing[0], known)
        profiles: dict[int, int] = {}
        kept: list[PowerProfile] = []
        places, power, work_s = [], [], []
        for job in jobs:
            each = job.profile
            others = (each.startup, each.restart, each.stop, each.suspended_power_w)
            plain = len(each.work) == 1 and not (any(others) or each.work[0].checkpoint)
            if plain:
                places.append(-1)
                power.append(each.work[0].power_w)
            else:
                place = profiles.setdefault(id(each), len(kept))
                if place == len(kept):
                    kept.append(each)
                places.append(place)
                power.append(1.0)
            work_s.append(each.work_s)
        asked = [job.resources for job in jobs]
        return cls(
            id=np.array([job.id for job in jobs], dtype=object),
            arrival=[job.arrival for job in jobs],
            deadline=[job.deadline for job in jobs],
            work_s=work_s,
            power=power,
            profile=places,
            profiles=kept,
            interruptible=[INTERRUPTIBLE.index(job.interruptible) for job in jobs],
            min_run_s=[job.min_run_s for job in jobs],
            max_starts=[job.max_starts or 0 for job in jobs],
            cpus=[each.cpus for each in asked],
            gpus=[each.gpus for each in asked],
            nodes=[each.nodes for each in asked],
            memory_bytes=[each.memory_bytes or 0.0 for each in asked],
            priority=[job.priority for job in jobs],
            after=[job.after or None for job in jobs],
            think_s=[job.think_s for job in jobs],
            source=source,
        )

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        *,
        wait: DurationLike | npt.ArrayLike | None = None,
        power_w_per_cpu: float = 1.0,
        power_w_per_gpu: float = 0.0,
        interruptible: str = "never",
        profiles: Mapping[str, PowerProfile] | None = None,
        dependencies: bool | None = None,
    ) -> Workload:
        """Return the jobs of a trace, with what it does not say.

        What it says of a job itself, by a column, goes before what is said here for all. Jobs that
        never ran (no length) are left out and counted in `left_out`; jobs without CPUs and GPUs
        are refused.

        Args:
            trace: What ran.
            wait: How much later than at once each may be done: one duration, or one per job; None
                where the trace has a deadline or a slack for every job.
            power_w_per_cpu: What a job draws per CPU it holds.
            power_w_per_gpu: What it draws besides per GPU.
            interruptible: How each may be stopped.
            profiles: Profiles by name, for rows whose `name` is one of them: such a job draws
                what the profile says, whatever else the trace says of it.
            dependencies: Whether a job waits for the one that preceded it, and for as long after
                it as its user thought (`after`, or `preceding`, and `think_s` of the trace). None
                for those that its column `after` names, and nobody else.

        >>> trace = Trace(columns={"arrival": [0], "length_s": [3600], "cpus": [4]})
        >>> Workload.from_trace(trace, power_w_per_cpu=10, wait="24h").energy_j
        array([144000.])
        """
        if interruptible not in INTERRUPTIBLE:
            raise UnknownName("way to stop a job", interruptible, INTERRUPTIBLE)
        ran = trace.length_s > 0
        never_ran = int(np.count_nonzero(~ran))
        if wait is None:
            wait_s: FloatArray | float = np.nan
        elif isinstance(wait, str | int | float):
            wait_s = parse_duration(wait)
        else:
            wait_s = np.asarray(wait, np.float64)[ran]
        trace = trace if ran.all() else trace.select(ran)
        named = profiles or {}
        kept = (*trace.profiles, *named.values())
        places: IntArray = np.array(trace.column("profile"), np.int64)
        by_name = {name: len(trace.profiles) + place for place, name in enumerate(named)}
        for row, name in enumerate(trace.column("name") if named else ()):
            places[row] = by_name.get(name, places[row])
        cpus, gpus = (np.nan_to_num(trace.column(name)) for name in ("cpus", "gpus"))
        idle = (cpus + gpus <= 0) & (places < 0)
        if idle.any():
            row = int(np.argmax(idle))
            raise InvalidTrace(
                f"{format_count(int(idle.sum()), 'job')} of the trace held no CPU and no GPU, the "
                f"first is {trace[row].id}: take those rows out of the file, or out of the trace "
                "with trace.select(trace.cpus > 0)"
            )
        lengths = np.array([*(each.work_s for each in kept), np.nan])
        startup_s = np.array([*(each.startup_s for each in kept), 0.0])[places]
        work_s = np.where(places < 0, trace.length_s, lengths[places])
        due = trace.due(startup_s + work_s, wait_s)
        if np.isnan(due).any():
            raise InvalidTrace(
                f"the trace does not say how long job {trace[int(np.isnan(due).argmax())].id} may "
                "wait: say it for all with wait, or for each in a column deadline or wait"
            )
        nodes = trace.column("nodes")
        memory = np.fmax(trace.column("requested_memory_bytes"), trace.column("memory_bytes"))
        links: dict[str, Any] = {}
        if dependencies or (dependencies is None and any(trace.column("after"))):
            first = [None if np.isnan(n) else f"{n:.0f}" for n in trace.column("preceding")]
            others = [None if not each else each.split() for each in trace.column("after")]
            first = first if dependencies else [None] * len(first)
            links["after"] = [own or one for own, one in zip(others, first, strict=True)]
            links["think_s"] = np.maximum(np.nan_to_num(trace.column("think_s")), 0.0)
        return cls(
            id=trace.column("id"),
            user=trace.column("user"),
            arrival=trace.arrival,
            deadline=due,
            work_s=work_s,
            power=np.where(places < 0, trace.watts(power_w_per_cpu, power_w_per_gpu), 1.0),
            profile=places,
            profiles=kept,
            interruptible=trace.stops(interruptible),
            cpus=cpus,
            gpus=gpus,
            nodes=np.where(np.isnan(nodes), 1.0, nodes),
            memory_bytes=np.nan_to_num(memory),
            requested_s=trace.column("requested_s"),
            priority=np.nan_to_num(trace.column("priority")),
            status=trace.column("status"),
            waited_s=trace.columns.get("wait_s"),
            source=trace.source,
            left_out={"never_ran": never_ran} if never_ran else {},
            **links,
        )

    def __len__(self) -> int:
        return int(self.arrival.size)

    def __repr__(self) -> str:
        return f"<Workload: {format_count(len(self), 'job')}; {self.source}>"

    @property
    def has_links(self) -> bool:
        """Whether any job waits for another."""
        # What nobody said is one value for all of them.
        return self.after.strides != (0,) and any(each is not None for each in self.after)

    @property
    def run_s(self) -> FloatArray:
        """How long each takes when it is never stopped."""
        return self.startup_s + self.work_s

    @property
    def slack_s(self) -> FloatArray:
        """How much later than at once each may be done."""
        return self.deadline - self.arrival - self.run_s

    @property
    def latest_start(self) -> FloatArray:
        """The last instant at which each may be started and still be done in time."""
        return self.arrival + np.maximum(self.slack_s, 0.0)

    @property
    def energy_j(self) -> FloatArray:
        """What each draws when it is never stopped."""
        of_profile = np.array([*(each.energy_j for each in self.profiles), 0.0])[self.profile]
        return np.where(self.profile < 0, self.power * self.work_s, self.power * of_profile)

    @property
    def peak_w(self) -> FloatArray:
        """The most that each draws; one that is never stopped is never started again."""

        def peak_w(each: PowerProfile, *, again: bool) -> float:
            starts = (*each.startup, *each.starting(1)) if again else each.startup
            return max(phase.power_w for phase in (*starts, *each.work, *each.stop))

        most = np.array(
            [
                [*(peak_w(each, again=again) for each in self.profiles), 1.0]
                for again in (False, True)
            ]
        )
        stopped = self.interruptible != INTERRUPTIBLE.index("never")
        peaks: FloatArray = self.power * most[stopped.astype(np.intp), self.profile]
        return peaks

    def take(self, rows: npt.NDArray[np.bool_] | IntArray | slice) -> Workload:
        """Return a workload of some of the jobs.

        Args:
            rows: A truth value per job, places, or a slice.
        """
        if isinstance(rows, np.ndarray) and rows.dtype != bool and rows.size and rows[0] >= 0:
            # Rows that follow each other are a view: those who decide batch by batch copy nothing.
            first = int(rows[0])
            if np.array_equal(rows, np.arange(first, first + rows.size)):
                rows = slice(first, first + rows.size)
        arrival = self.arrival[rows]
        part = object.__new__(type(self))
        # What holds for every job holds for some: nothing is checked again.
        order = None if np.all(arrival[1:] >= arrival[:-1]) else np.argsort(arrival, kind="stable")
        object.__setattr__(part, "waited_s", None)
        for name in (*self._names(), *_OF_PROFILES):
            if getattr(self, name) is None:
                continue
            column = getattr(self, name)[rows]
            column = column if order is None else column[order]
            column.flags.writeable = False
            object.__setattr__(part, name, column)
        for name in _SHARED:
            object.__setattr__(part, name, getattr(self, name))
        return part

    def unlinked(self) -> Workload:
        """Return the jobs as if none waited for another."""
        return replace(self, after=_after(None, len(self)))

    def shifted(self, start: float) -> Workload:
        """Return the workload with its first arrival moved to an instant.

        Args:
            start: When the first job shall arrive.
        """
        by = start - float(self.arrival[0]) if len(self) else 0.0
        return replace(self, arrival=self.arrival + by, deadline=self.deadline + by)

    def job(self, row: int) -> Job:
        """Return one job.

        Args:
            row: Which.
        """
        place, power = int(self.profile[row]), float(self.power[row])
        if place < 0:
            profile = PowerProfile.constant(power, float(self.work_s[row]))
        elif power == 1.0:
            profile = self.profiles[place]
        else:
            profile = _scaled(self.profiles[place], power)
        return Job(
            id=str(self.id[row]),
            arrival=float(self.arrival[row]),
            deadline=float(self.deadline[row]),
            profile=profile,
            interruptible=INTERRUPTIBLE[int(self.interruptible[row])],
            max_starts=int(self.max_starts[row]) or None,
            min_run_s=float(self.min_run_s[row]),
            priority=float(self.priority[row]),
            after=self.after[row] or (),
            think_s=float(self.think_s[row]),
            resources=Resources(
                cpus=int(np.ceil(self.cpus[row])),
                gpus=int(np.ceil(self.gpus[row])),
                nodes=int(self.nodes[row]),
                memory_bytes=float(self.memory_bytes[row]),
            ),
        )

    def __iter__(self) -> Iterator[Job]:
        return (self.job(row) for row in range(len(self)))

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.__slots__ if name not in _SHARED + _OF_PROFILES)


def _scaled(profile: PowerProfile, factor: float) -> PowerProfile:
    def times(phases: tuple[Phase, ...]) -> list[Phase]:
        return [replace(phase, power_w=factor * phase.power_w) for phase in phases]

    return PowerProfile(
        startup=times(profile.startup),
        restart=None if profile.restart is None else times(profile.restart),
        work=times(profile.work),
        stop=times(profile.stop),
        suspended_power_w=factor * profile.suspended_power_w,
    )
