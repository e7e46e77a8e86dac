"""Jobs of the past, in columns.

A trace says what ran when and for how long; it seldom says what it drew or how long it could
have waited. So a `Trace` is not yet a list of jobs to plan: `Trace.jobs` makes one once the
missing facts are given. What it does say of a job goes before what is said for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidTrace, UnknownName
from lowtide.job import INTERRUPTIBLE, Job, Resources
from lowtide.profile import PowerProfile
from lowtide.states import STATUSES
from lowtide.units import DurationLike, TimeLike, parse_duration, parse_time

Column = npt.NDArray[Any]

# What a trace may hold. Numbers are float64 with NaN for unknown; texts are objects with None for
# unknown, or whole numbers where the trace numbers its jobs and users.
NUMBERS = (
    "arrival",
    "length_s",
    "cpus",
    "gpus",
    "nodes",
    "wait_s",
    "requested_s",
    "requested_cpus",
    "requested_memory_bytes",
    "memory_bytes",
    "cpu_time_s",
    "suspended_s",
    "energy_j",
    "priority",
    "preceding",
    "think_s",
    "power_w",
    "deadline",
    "slack_s",
)
TEXTS = (
    *("id", "user", "group", "account", "executable", "name", "queue", "partition"),
    *("interruptible", "after"),
)
# Places in lists: in `states.STATUSES`, and in the profiles of the trace.
PLACES = ("status", "profile")
# Those that are instants, and move with the trace.
_INSTANTS = ("arrival", "deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """One row of a trace; None where the trace does not say.

    Attributes:
        id: What the job is called.
        arrival: When it was submitted: seconds since the trace's origin, or the epoch.
        length_s: How long it ran.
        cpus: CPU cores it held.
        gpus: GPUs it held.
        nodes: Nodes it held.
        user: Whose it was.
        status: How it ended.
    """

    id: str
    arrival: float
    length_s: float | None
    cpus: float | None
    gpus: float | None
    nodes: float | None
    user: str | None
    status: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trace:
    """Columns of equal length, one row per job, ordered by arrival, then as they came.

    Attributes:
        columns: `arrival` and any of the columns named in this module. `wait_s` is how long a job
            did wait, `slack_s` how much later than at once it may be done, `power_w` what it draws
            in the mean, `after` the ids of those that come before it, between blanks, and
            `profile` its place in `profiles`, −1 for none.
        header: What the file said of itself.
        source: Where it comes from, in words.
        profiles: What jobs with phases draw.
        notes: What a reader of the file should know: what was left out, or taken for granted.
    """

    columns: Mapping[str, Column]
    header: Mapping[str, str]
    source: str
    profiles: tuple[PowerProfile, ...]
    notes: tuple[str, ...]

    def __init__(
        self,
        *,
        columns: Mapping[str, npt.ArrayLike],
        header: Mapping[str, str] | None = None,
        source: str = "",
        profiles: Sequence[PowerProfile] = (),
        notes: Sequence[str] = (),
    ) -> None:
        arrays: dict[str, Column] = {}
        for name, values in columns.items():
            if name in NUMBERS:
                arrays[name] = _own(values, np.float64)
            elif name in PLACES:
                arrays[name] = _own(values, np.int8 if name == "status" else np.int64)
            elif name in TEXTS:
                arrays[name] = _own(values, None)
            else:
                raise UnknownName("trace column", name, (*NUMBERS, *TEXTS, *PLACES))
        if "arrival" in arrays and "id" not in arrays:
            # Jobs keep their numbers when others are left out.
            arrays["id"] = np.arange(1, arrays["arrival"].size + 1)
        if "arrival" not in arrays:
            raise InvalidTrace("a trace needs an arrival for every job")
        arrival = arrays["arrival"]
        if any(array.shape != (arrival.size,) for array in arrays.values()):
            raise InvalidTrace("all columns of a trace have one entry per job")
        if not np.all(np.isfinite(arrival)):
            row = int(np.flatnonzero(~np.isfinite(arrival))[0])
            raise InvalidTrace(f"job {row + 1} of the trace has no arrival")
        if "status" in arrays and not np.all(
            (arrays["status"] >= 0) & (arrays["status"] < len(STATUSES))
        ):
            raise InvalidTrace(f"a status is a place in a list of {len(STATUSES)}, from 0 on")
        if "profile" in arrays and not np.all(
            (arrays["profile"] >= -1) & (arrays["profile"] < len(profiles))
        ):
            raise InvalidTrace(f"a job's profile is -1 or one of the {len(profiles)} of the trace")
        if "length_s" in arrays and np.any(arrays["length_s"] < 0):
            row = int(np.flatnonzero(arrays["length_s"] < 0)[0])
            raise InvalidTrace(
                f"job {row + 1} of the trace ran {arrays['length_s'][row]:g} s: "
                "lengths are 0 or more"
            )
        if np.any(np.diff(arrival) < 0):
            order = np.argsort(arrival, kind="stable")
            arrays = {name: array[order] for name, array in arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        object.__setattr__(self, "columns", MappingProxyType(arrays))
        object.__setattr__(self, "header", MappingProxyType(dict(header or {})))
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "profiles", tuple(profiles))
        object.__setattr__(self, "notes", tuple(notes))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a mapping cannot cross processes; what is in it can.
        told = (dict(self.header), self.source, self.profiles, self.notes)
        return _remake, (dict(self.columns), *told)

    def __len__(self) -> int:
        return int(self.columns["arrival"].size)

    def __repr__(self) -> str:
        return f"<Trace: {len(self)} jobs, {', '.join(self.columns)}; {self.source}>"

    def column(self, name: str) -> Column:
        """Return a column, all unknown (NaN or None) where the trace does not have it."""
        if name in self.columns:
            return self.columns[name]
        if name in NUMBERS:
            return np.full(len(self), np.nan)
        if name == "status":
            return np.zeros(len(self), dtype=np.int8)
        if name == "profile":
            return np.full(len(self), -1)
        if name in TEXTS:
            return np.full(len(self), None, dtype=object)
        raise UnknownName("trace column", name, (*NUMBERS, *TEXTS, *PLACES))

    @property
    def arrival(self) -> Column:
        """When each job was submitted."""
        return self.columns["arrival"]

    @property
    def length_s(self) -> Column:
        """How long each job ran."""
        return self.column("length_s")

    @property
    def cpus(self) -> Column:
        """CPU cores each job held."""
        return self.column("cpus")

    def __getitem__(self, row: int) -> TracedJob:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a trace with {len(self)} jobs")
        row %= len(self)

        def number(name: str) -> float | None:
            value = self.columns[name][row] if name in self.columns else np.nan
            return None if np.isnan(value) else float(value)

        def text(name: str) -> str | None:
            value = self.columns[name][row] if name in self.columns else None
            return None if value is None else str(value)

        return TracedJob(
            id=text("id") or str(row + 1),
            arrival=float(self.arrival[row]),
            length_s=number("length_s"),
            cpus=number("cpus"),
            gpus=number("gpus"),
            nodes=number("nodes"),
            user=text("user"),
            status=STATUSES[int(self.column("status")[row])],
        )

    def __iter__(self) -> Iterator[TracedJob]:
        return (self[row] for row in range(len(self)))

    def select(self, rows: npt.NDArray[np.bool_] | slice) -> Trace:
        """Return a trace of some of the jobs.

        Args:
            rows: A truth value per job, or a slice.

        >>> trace = Trace(columns={"arrival": [0, 5], "length_s": [60, 0]})
        >>> len(trace.select(trace.length_s > 0))
        1
        """
        return self._with({name: array[rows] for name, array in self.columns.items()})

    def shifted(self, start: TimeLike) -> Trace:
        """Return the trace with its first arrival moved to an instant."""
        by = parse_time(start) - float(self.arrival[0]) if len(self) else 0.0
        moved = {name: self.columns[name] + by for name in _INSTANTS if name in self.columns}
        return self._with({**self.columns, **moved})

    def _with(self, columns: Mapping[str, Column]) -> Trace:
        return _remake(dict(columns), dict(self.header), self.source, self.profiles, self.notes)

    def watts(self, power_w_per_cpu: float, power_w_per_gpu: float = 0.0) -> Column:
        """Return what each job draws: what the trace says, else by the CPUs and GPUs it holds."""
        cpus, gpus = (np.nan_to_num(self.column(name)) for name in ("cpus", "gpus"))
        said = self.column("power_w")
        return np.where(np.isnan(said), power_w_per_cpu * cpus + power_w_per_gpu * gpus, said)

    def due(self, run_s: Column, wait_s: Column | float, soonest: Column | None = None) -> Column:
        """Return when each job must be done: its deadline, else its slack, else what all may wait.

        Args:
            run_s: How long each takes.
            wait_s: How much later than at once those may be done of which the trace says nothing.
            soonest: When each could begin at once; by default as it arrives.
        """
        slack_s, deadline = self.column("slack_s"), self.column("deadline")
        waiting_s = np.where(np.isnan(slack_s), wait_s, slack_s)
        begin = self.arrival if soonest is None else soonest
        return np.where(np.isnan(deadline), begin + run_s + waiting_s, deadline)

    def stops(self, otherwise: Column | str) -> Column:
        """Return how each job may be stopped, as its place in `job.INTERRUPTIBLE`.

        Args:
            otherwise: How those may be of which the trace says nothing.
        """
        places = {name: place for place, name in enumerate(INTERRUPTIBLE)}
        if isinstance(otherwise, str):
            otherwise = np.full(len(self), places[otherwise])
        if "interruptible" not in self.columns:
            return otherwise
        said = self.columns["interruptible"].tolist()
        for row, name in enumerate(said):
            if name is not None and name not in places:
                raise InvalidTrace(
                    f"job {row + 1} of the trace may be stopped {name!r}: known are "
                    f"{', '.join(places)}"
                )
        told = [places.get(name, -1) for name in said]
        return np.where(np.array(told) < 0, otherwise, told)

    def jobs(
        self,
        *,
        power_w_per_cpu: float,
        wait: DurationLike,
        interruptible: str = "never",
    ) -> list[Job]:
        """Return jobs that can be planned, with what the trace says of each.

        Args:
            power_w_per_cpu: What a job draws per CPU it holds, where the trace says nothing else.
            wait: How much later than at once each may be done, likewise.
            interruptible: How each may be stopped, likewise.

        >>> trace = Trace(columns={"arrival": [0], "length_s": [3600], "cpus": [4]})
        >>> trace.jobs(power_w_per_cpu=10, wait="24h")[0].profile.energy_j
        144000.0
        """
        if interruptible not in INTERRUPTIBLE:
            raise UnknownName("way to stop a job", interruptible, INTERRUPTIBLE)
        usable = (self.length_s > 0) & (self.cpus > 0)
        if not usable.all():
            row = int(np.flatnonzero(~usable)[0])
            raise InvalidTrace(
                f"{np.count_nonzero(~usable)} of {len(self)} jobs have no length or no CPUs, the "
                f"first in row {row + 1}: leave them out with "
                "trace.select((trace.length_s > 0) & (trace.cpus > 0))"
            )
        gpus, nodes, priority = (self.column(name) for name in ("gpus", "nodes", "priority"))
        profiles = [
            PowerProfile.constant(watts, length_s) if place < 0 else self.profiles[place]
            for place, watts, length_s in zip(
                self.column("profile").tolist(),
                self.watts(power_w_per_cpu).tolist(),
                self.length_s.tolist(),
                strict=True,
            )
        ]
        due = self.due(np.array([each.run_s for each in profiles]), parse_duration(wait))
        stops = self.stops(interruptible)
        return [
            Job(
                id=each.id,
                arrival=each.arrival,
                deadline=float(due[row]),
                profile=profiles[row],
                interruptible=INTERRUPTIBLE[int(stops[row])],
                priority=0.0 if np.isnan(priority[row]) else float(priority[row]),
                resources=Resources(
                    cpus=math.ceil(self.cpus[row]),
                    gpus=0 if np.isnan(gpus[row]) else math.ceil(gpus[row]),
                    nodes=1 if np.isnan(nodes[row]) else int(nodes[row]),
                ),
            )
            for row, each in enumerate(self)
        ]


def _own(values: npt.ArrayLike, kind: npt.DTypeLike | None) -> Column:
    """Return an array nobody else can change: read-only ones are taken as they are."""
    array = np.asarray(values, dtype=kind)
    return array.copy() if array.flags.writeable and array is values else array


def _remake(
    columns: dict[str, Column],
    header: dict[str, str],
    source: str,
    profiles: tuple[PowerProfile, ...],
    notes: tuple[str, ...],
) -> Trace:
    return Trace(columns=columns, header=header, source=source, profiles=profiles, notes=notes)
