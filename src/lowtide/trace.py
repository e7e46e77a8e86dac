"""Jobs of the past, in columns.

A trace says what ran when and for how long; it seldom says what it drew or how long it could
have waited. So a `Trace` is not yet a list of jobs to plan: `Trace.jobs` makes one once the
missing facts are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidTrace, UnknownName
from lowtide.job import Job, Resources
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
)
TEXTS = ("id", "user", "group", "account", "executable", "name", "queue", "partition")


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
        columns: `arrival` and any of the columns named in this module.
        header: What the file said of itself.
        source: Where it comes from, in words.
    """

    columns: Mapping[str, Column]
    header: Mapping[str, str]
    source: str

    def __init__(
        self,
        *,
        columns: Mapping[str, npt.ArrayLike],
        header: Mapping[str, str] | None = None,
        source: str = "",
    ) -> None:
        arrays: dict[str, Column] = {}
        for name, values in columns.items():
            if name in NUMBERS:
                arrays[name] = _own(values, np.float64)
            elif name == "status":
                arrays[name] = _own(values, np.int8)
            elif name in TEXTS:
                arrays[name] = _own(values, None)
            else:
                raise UnknownName("trace column", name, (*NUMBERS, *TEXTS, "status"))
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

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a mapping cannot cross processes; what is in it can.
        return _remake, (dict(self.columns), dict(self.header), self.source)

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
        if name in TEXTS:
            return np.full(len(self), None, dtype=object)
        raise UnknownName("trace column", name, (*NUMBERS, *TEXTS, "status"))

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
        kept = {name: array[rows] for name, array in self.columns.items()}
        return Trace(columns=kept, header=self.header, source=self.source)

    def shifted(self, start: TimeLike) -> Trace:
        """Return the trace with its first arrival moved to an instant."""
        by = parse_time(start) - float(self.arrival[0]) if len(self) else 0.0
        moved = {**self.columns, "arrival": self.arrival + by}
        return Trace(columns=moved, header=self.header, source=self.source)

    def jobs(
        self,
        *,
        power_w_per_cpu: float,
        wait: DurationLike,
        interruptible: str = "never",
    ) -> list[Job]:
        """Return jobs of constant power that can be planned.

        Args:
            power_w_per_cpu: What a job draws per CPU it holds.
            wait: How much later than at once each may be done.

        >>> trace = Trace(columns={"arrival": [0], "length_s": [3600], "cpus": [4]})
        >>> trace.jobs(power_w_per_cpu=10, wait="24h")[0].profile.energy_j
        144000.0
        """
        wait_s = parse_duration(wait)
        usable = (self.length_s > 0) & (self.cpus > 0)
        if not usable.all():
            row = int(np.flatnonzero(~usable)[0])
            raise InvalidTrace(
                f"{np.count_nonzero(~usable)} of {len(self)} jobs have no length or no CPUs, the "
                f"first in row {row + 1}: leave them out with "
                "trace.select((trace.length_s > 0) & (trace.cpus > 0))"
            )
        gpus, nodes = self.column("gpus"), self.column("nodes")
        return [
            Job(
                id=row.id,
                arrival=row.arrival,
                deadline=row.arrival + length_s + wait_s,
                profile=PowerProfile.constant(power_w_per_cpu * cpus, length_s),
                interruptible=interruptible,
                resources=Resources(
                    cpus=math.ceil(cpus),
                    gpus=0 if np.isnan(gpu) else int(gpu),
                    nodes=1 if np.isnan(node) else int(node),
                ),
            )
            for row, length_s, cpus, gpu, node in zip(
                self, self.length_s.tolist(), self.cpus.tolist(), gpus, nodes, strict=True
            )
        ]


def _own(values: npt.ArrayLike, kind: npt.DTypeLike | None) -> Column:
    """Return an array nobody else can change: read-only ones are taken as they are."""
    array = np.asarray(values, dtype=kind)
    return array.copy() if array.flags.writeable and array is values else array


def _remake(columns: dict[str, Column], header: dict[str, str], source: str) -> Trace:
    return Trace(columns=columns, header=header, source=source)
