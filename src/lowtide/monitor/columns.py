"""From things that were read one by one to the columns of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lowtide.monitor.snapshot import FloatArray, Unit


class Counted(Protocol):
    """Something that was read: a control group, or processes that count together."""

    @property
    def unit(self) -> Unit:
        """Whose use it is."""

    @property
    def cpu_s(self) -> float:
        """CPU time so far."""

    @property
    def memory_bytes(self) -> float:
        """Memory that it holds."""

    @property
    def read_bytes(self) -> float:
        """Read from storage so far."""

    @property
    def written_bytes(self) -> float:
        """Written to storage so far."""

    @property
    def processes(self) -> float:
        """How many processes it has."""

    @property
    def gone(self) -> bool:
        """Whether it is no more."""

    @property
    def ended_at(self) -> float:
        """When it ended, by a clock that nobody sets; NaN while it is there."""

    @property
    def reserved_cpus(self) -> float:
        """CPUs that are kept for it."""

    @property
    def reserved_bytes(self) -> float:
        """Memory that is kept for it."""

    @property
    def cpus(self) -> frozenset[int] | None:
        """Which CPUs it is kept to; None where it may use all of them."""

    @property
    def pressure_s(self) -> tuple[float, ...]:
        """For how long it waited for each of `snapshot.PRESSURES`."""

    @property
    def system_s(self) -> float:
        """The part of its CPU time that was spent in the kernel."""


# Parts of one job that began within this time of each other are the same start of it.
_SAME_S = 10.0


@dataclass(slots=True)
class Columns:
    """One place per unit, though a unit may have been read in several parts.

    Several slurmd on one host have a group each for the same job.

    Attributes:
        rows: What was read.
        units: The units.
        places: For each row the place of its unit.
    """

    rows: Sequence[Counted]
    units: list[Unit] = field(default_factory=list, init=False)
    places: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        known: dict[str, int] = {}
        keys: dict[str, int] = {}
        for row in self.rows:
            unit = row.unit
            place = len(self.units)
            if row.gone:
                # What has ended is no part of another that goes by its number now, unless that is
                # the same: a job may have been known by a process before it had a group.
                keys = keys or {each.key: at for at, each in enumerate(self.units)}
                at = known.get(unit.job_id) if unit.source == "slurm" else None
                if at is None or abs(self.units[at].started - unit.started) > _SAME_S:
                    at = keys.setdefault(unit.key, place)
                place = at
            elif unit.source == "slurm":
                place = known.setdefault(unit.job_id, place)
            self.places.append(place)
            if place == len(self.units):
                self.units.append(unit)
            elif unit.started < self.units[place].started:
                self.units[place] = unit

    def column(self, name: str) -> FloatArray:
        """Return one entry per unit, the sum of its parts.

        Args:
            name: One of the attributes of what was read.
        """
        return self._added(np.array([getattr(row, name) for row in self.rows], dtype=np.float64))

    def memory_bytes(self) -> FloatArray:
        """Return the memory that each unit holds, or held in the end."""
        held = np.array([row.memory_bytes for row in self.rows], dtype=np.float64)
        # What a part held that is no more says nothing about a unit that is there.
        held[self._gone() & self._lives()[self.places]] = 0.0
        return self._added(held)

    def ended_at(self) -> FloatArray | None:
        """Return when each unit ended, NaN for those that are there; None where all are."""
        if not self._gone().any():
            return None
        ended_at = np.full(len(self.units), -np.inf)
        np.fmax.at(ended_at, self.places, [row.ended_at for row in self.rows])
        return np.where(self._lives(), np.nan, ended_at)

    def pressures(self) -> FloatArray | None:
        """Return the pressure on each unit, None where nothing is known."""
        if not self.rows:
            return None
        found = self._added(np.array([row.pressure_s for row in self.rows], dtype=np.float64))
        return None if np.isnan(found).all() else found

    def system_s(self) -> FloatArray | None:
        """Return the CPU time that was spent in the kernel, None where nothing is known."""
        found = np.array([row.system_s for row in self.rows], dtype=np.float64)
        known = ~np.isnan(found)
        if not known.any():
            return None
        # A part that does not tell is one that has just begun, or is long over.
        tells = self._added(known.astype(np.float64)) > 0
        return np.where(tells, self._added(np.where(known, found, 0.0)), np.nan)

    def socket_shares(self, sockets: dict[int, int]) -> FloatArray | None:
        """Return how each unit's CPUs lie on the sockets, None where there is but one.

        Args:
            sockets: The socket of each CPU.
        """
        count = len(set(sockets.values()))
        if count < 2:
            return None
        shares = np.full((len(self.units), count), np.nan)
        seen: dict[frozenset[int], FloatArray] = {}
        for row, place in zip(self.rows, self.places, strict=True):
            if row.cpus is not None:
                if row.cpus not in seen:
                    on = [sockets[cpu] for cpu in row.cpus if cpu in sockets]
                    counts = np.bincount(on, minlength=count) if on else np.full(count, np.nan)
                    seen[row.cpus] = counts / max(len(on), 1)
                shares[place] = seen[row.cpus]
        return shares

    def _gone(self) -> npt.NDArray[np.bool_]:
        return np.array([row.gone for row in self.rows], dtype=np.bool_)

    def _lives(self) -> npt.NDArray[np.bool_]:
        """Return for each unit whether any of its parts is there."""
        lives = np.zeros(len(self.units), dtype=np.bool_)
        np.logical_or.at(lives, self.places, ~self._gone())
        return lives

    def _added(self, values: FloatArray) -> FloatArray:
        if len(self.units) == len(self.rows):
            return values
        sums = np.zeros((len(self.units), *values.shape[1:]))
        np.add.at(sums, self.places, values)
        return sums
