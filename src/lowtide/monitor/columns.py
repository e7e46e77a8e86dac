"""From things that were read one by one to the columns of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lowtide.monitor.kernel_files import Problems
from lowtide.monitor.quantities import JOB, names_of
from lowtide.monitor.snapshot import COLUMNS, FloatArray, Unit


class Counted(Protocol):
    """Something that was read: a control group, or processes that count together."""

    @property
    def unit(self) -> Unit:
        """Whose use it is."""

    @property
    def cpu_s(self) -> float:
        """CPU time so far."""

    @property
    def gone(self) -> bool:
        """Whether it is no more."""

    @property
    def ended_at(self) -> float:
        """When it ended, by a clock that nobody sets; NaN while it is there."""

    @property
    def cpus(self) -> frozenset[int] | None:
        """Which CPUs it is kept to; None where it may use all of them."""

    @property
    def loose(self) -> bool:
        """Whether no control group counts it, but each of its processes."""

    @property
    def allocates(self) -> bool:
        """Whether what is kept for the job is kept for as long as it is there."""


# Parts of one job that began within this time of each other are the same start of it.
_SAME_S = 10.0
# What only grows, and goes on from where it stood when a part of a job is no more.
GROWING = names_of("kernel")
_READ = {each.name: attrgetter(each.source) for each in JOB if each.name in COLUMNS}


@dataclass(slots=True, eq=False)
class _Whole:
    """A job that was read in several parts, at once or one after the other.

    Several slurmd of a cluster on one host have a group each for the same job. Processes of a job
    may be outside of its group: the shell of an allocation, what came by ssh, what a user's systemd
    started. Such strays add the CPU time that they use and nothing else, since all that is kept for
    the job is its group's, which comes and goes while they stay, and stays while they go.

    Attributes:
        unit: What the job has been known by from the beginning.
        parts: Those that are there.
        ended: Parts that were in the last snapshot for the last time.
        left: What those had come to that are no more, for each of `GROWING`.
        before_s: CPU time of strays that is not for the job to add, by their identity.
        grouped: Whether it ever had a group.
    """

    unit: Unit
    parts: list[Counted] = field(default_factory=list)
    ended: list[Counted] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    before_s: dict[int, float] = field(default_factory=dict)
    grouped: bool = False

    def bury(self, parts: Sequence[Counted]) -> None:
        """Keep what parts came to that are no more."""
        for part in parts:
            for name in GROWING:
                if name == "cpu_s" or not (part.loose and self.grouped):
                    value = _READ[name](part)
                    value -= self.before_s.get(id(part), 0.0) if name == "cpu_s" else 0.0
                    self.left[name] = _sum_of_known(self.left.get(name, math.nan), value)
            self.before_s.pop(id(part), None)

    def has_any(self, parts: Sequence[Counted]) -> bool:
        """Return whether any of some parts was a part of it at the last snapshot."""
        mine = {id(part) for part in self.parts}
        return any(id(part) in mine for part in parts)

    def may_have(self, parts: Sequence[Counted]) -> bool:
        """Return whether some parts may be of its cluster."""
        clusters = {part.unit.cluster for part in parts} - {""}
        return not self.unit.cluster or clusters <= {self.unit.cluster}

    def shown(self, parts: Sequence[Counted]) -> Unit:
        """Return the unit as its group knows it by now, with the identity that it has."""
        best = min(parts, key=lambda each: (each.gone, each.loose)).unit
        own = self.unit
        return replace(best, started=own.started, sluid=own.sluid, slurmd=own.slurmd)


@dataclass(slots=True)
class Jobs:
    """Which parts make which job, remembered from snapshot to snapshot.

    A job keeps the identity that it was first seen with for as long as any part of it is there. A
    part that comes when all others went is another start of it, unless it began when they did: a
    job may have been known by a process before it had a group. Jobs of several clusters may have
    one number, and nothing else in common.

    Attributes:
        problems: Where to name what cannot be told apart.
    """

    problems: Problems = field(default_factory=Problems)
    _wholes: dict[str, list[_Whole]] = field(default_factory=dict, init=False)
    # What was in the last snapshot, and the key of those that were there under another's.
    _seen: dict[int, Counted] = field(default_factory=dict, init=False)
    _keys: dict[int, str] = field(default_factory=dict, init=False)
    _begun: bool = field(default=False, init=False)

    def follow(self, rows: Sequence[Counted]) -> dict[int, _Whole]:
        """Return the job of each part that is not all of its job, by the part's identity."""
        single: dict[str, Counted] = {}
        several: dict[str, list[Counted]] = {}
        wholes, self._wholes = self._wholes, {}
        for row in rows:
            unit = row.unit
            if unit.source == "slurm":
                first = single.setdefault(unit.job_id, row)
                if first is not row or unit.job_id in wholes:
                    parts = several.setdefault(unit.job_id, [first])
                    if first is not row:
                        parts.append(row)
        found: dict[int, _Whole] = {}
        for number, parts in several.items():
            left = wholes.get(number, [])
            for mine in self._told_apart(number, parts):
                # One that has lost all its parts may go on with others.
                fitting = [each for each in left if each.has_any(mine)] or [
                    each for each in left if not each.has_any(parts) and each.may_have(mine)
                ]
                whole = fitting[0] if fitting else None
                if whole is not None or len(mine) > 1:
                    self._join(number, mine, whole, found)
                left = [each for each in left if each is not whole]
        self._seen = {id(row): row for row in single.values()}
        self._seen |= {id(part): part for parts in several.values() for part in parts}
        self._keys = {part: whole.unit.key for part, whole in found.items()}
        self._begun = True
        return found

    def _told_apart(self, number: str, parts: list[Counted]) -> list[list[Counted]]:
        """Return the parts of each cluster's job of a number."""
        jobs: dict[str, list[Counted]] = {}
        for part in parts:
            if part.unit.cluster:
                jobs.setdefault(part.unit.cluster, []).append(part)
        for part in parts:
            if not part.unit.cluster:
                fitting = [name for name, others in jobs.items() if _has_user(part, others)]
                jobs.setdefault(fitting[0] if fitting else f"/{len(jobs)}", []).append(part)
        for mine in jobs.values():
            known = [each for each in mine if id(each) in self._seen and not each.loose]
            places = sorted({each.unit.slurmd or each.unit.node_name for each in known})
            if len(places) > 1 and not all(each.unit.cluster for each in known):
                self.problems.name(
                    "clusters",
                    f"job {number} has control groups of {' and '.join(places)}, and nobody says "
                    "whether these are of one cluster: they count as one job; run as root, so that "
                    "the environment of its processes can be read",
                )
        return list(jobs.values())

    def _join(
        self, number: str, parts: list[Counted], whole: _Whole | None, found: dict[int, _Whole]
    ) -> None:
        if whole is None:
            whole = _Whole(self._identity(parts))
        else:
            whole.bury(whole.ended)
        key, began = whole.unit.key, whole.unit.started
        known = [part for part in parts if self._key(part) == key]
        # What is neither there nor has ended is counted by another from now on.
        here = {id(part) for part in parts}
        whole.bury([part for part in whole.parts if id(part) not in here])
        stays = any(not part.gone for part in known)
        goes_on = stays or any(
            not part.gone and (not known or abs(part.unit.started - began) <= _SAME_S)
            for part in parts
        )
        mine: list[Counted] = []
        others: list[Counted] = []
        for part in parts:
            near = abs(part.unit.started - began) <= _SAME_S
            later = part.unit.started >= began - _SAME_S
            joins = part in known or near or (goes_on if not part.gone else stays and later)
            (mine if joins else others).append(part)
        whole.grouped = whole.grouped or any(not part.loose for part in mine)
        for part in mine:
            # What it used before anybody looked, or as a unit of its own, is not to be added.
            if part.loose and (not self._begun or (id(part) in self._seen and part not in known)):
                whole.before_s[id(part)] = part.cpu_s
        whole.ended = [part for part in mine if part.gone]
        whole.parts = [part for part in mine if not part.gone]
        found |= {id(part): whole for part in mine}
        if whole.parts:
            self._wholes.setdefault(number, []).append(whole)
        elif len(others) > 1:
            self._join(number, others, None, found)

    def _key(self, part: Counted) -> str:
        """Return what a part was last known by; empty for one that is new."""
        return self._keys.get(id(part), part.unit.key) if id(part) in self._seen else ""

    def _identity(self, parts: Sequence[Counted]) -> Unit:
        """Return what a job is known by: what it was before, else its beginning."""
        return min(
            parts,
            key=lambda each: (
                id(each) not in self._seen,
                each.gone,
                id(each) in self._seen and each.loose,
                each.unit.started,
            ),
        ).unit


@dataclass(slots=True)
class Columns:
    """One place per unit, though a unit may have been read in several parts.

    Attributes:
        rows: What was read.
        jobs: What is remembered of jobs that were read in parts.
        units: The units.
        places: For each row the place of its unit.
    """

    rows: Sequence[Counted]
    jobs: Jobs = field(default_factory=Jobs)
    units: list[Unit] = field(default_factory=list, init=False)
    places: list[int] = field(default_factory=list, init=False)
    # Jobs in parts, with the rows of each, by place; and which rows are strays of a group's job.
    _wholes: dict[int, tuple[_Whole, list[int]]] = field(default_factory=dict, init=False)
    _strays: npt.NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros(0, dtype=np.bool_), init=False
    )

    def __post_init__(self) -> None:
        whole_of = self.jobs.follow(self.rows)
        at_place: dict[int, int] = {}
        keys: dict[str, int] = {}
        for number, row in enumerate(self.rows):
            place = len(self.units)
            if (whole := whole_of.get(id(row))) is not None:
                place = at_place.setdefault(id(whole), place)
                self._wholes.setdefault(place, (whole, []))[1].append(number)
            elif row.gone:
                # What has ended is no part of another that goes by its number now.
                keys = keys or {each.key: at for at, each in enumerate(self.units)}
                place = keys.setdefault(row.unit.key, place)
            self.places.append(place)
            if place == len(self.units):
                self.units.append(row.unit)
            elif row.unit.started < self.units[place].started:
                self.units[place] = row.unit
        self._strays = np.zeros(len(self.rows), dtype=np.bool_)
        for place, (whole, numbers) in self._wholes.items():
            self.units[place] = whole.shown([self.rows[number] for number in numbers])
            for number in numbers:
                self._strays[number] = whole.grouped and self.rows[number].loose

    @property
    def loose(self) -> frozenset[int]:
        """The places of units that no control group counts, nor ever did."""
        grouped = {place for place, (whole, _) in self._wholes.items() if whole.grouped}
        loose = [self.places[number] for number, row in enumerate(self.rows) if row.loose]
        return frozenset(loose) - grouped

    def column(self, name: str) -> FloatArray:
        """Return one entry per unit, the sum of its parts.

        Args:
            name: One of the attributes of what was read that only grow.
        """
        values = self._values(name)
        if self._is_plain:
            return values
        for whole, numbers in self._wholes.values() if name == "cpu_s" else ():
            for number in numbers:
                values[number] -= whole.before_s.get(id(self.rows[number]), 0.0)
        return self._added(name, values, left_out=None if name == "cpu_s" else self._strays)

    def reserved(self, name: str) -> FloatArray:
        """Return what is kept for each unit: by its groups, else by the shell of an allocation.

        Args:
            name: `reserved_cpus` or `reserved_bytes`.
        """
        values = self._values(name)
        if self._is_plain:
            return values
        left_out = self._strays.copy()
        for _, numbers in self._wholes.values():
            strays = [number for number in numbers if self._strays[number]]
            groups = [number for number in numbers if not self._strays[number]]
            there = [number for number in groups if not self.rows[number].gone]
            holding = [number for number in strays if self.rows[number].allocates]
            if there or holding:
                # What was kept by a group that is no more is kept by what is there.
                left_out[[number for number in groups if self.rows[number].gone]] = True
            if holding and np.isnan(values[there]).all():
                left_out[holding[0]] = False
        return self._added(name, values, left_out=left_out)

    def ended_at(self) -> FloatArray | None:
        """Return when each unit ended, NaN for those that are there; None where all are."""
        if not self._gone().any():
            return None
        ended_at = np.full(len(self.units), -np.inf)
        np.fmax.at(ended_at, self.places, [row.ended_at for row in self.rows])
        return np.where(self._lives(), np.nan, ended_at)

    def all(self) -> dict[str, FloatArray]:
        """Return the columns of a snapshot."""
        found = {name: self.column(name) for name in GROWING}
        for name in names_of("held"):
            kept = name.startswith("reserved_")
            found[name] = self.reserved(name) if kept else self.held(name)
        return found

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

    def held(self, name: str) -> FloatArray:
        """Return what each unit holds, or held in the end.

        Args:
            name: `memory_bytes` or `processes`.
        """
        values = self._values(name)
        if self._is_plain:
            return values
        # What a part held that is no more says nothing about a unit that is there.
        left_out = self._gone() & self._lives()[self.places]
        for _, numbers in self._wholes.values():
            strays = [number for number in numbers if self._strays[number]]
            if strays and not left_out[[n for n in numbers if n not in strays]].all():
                left_out[strays] = True
        return self._added(name, values, left_out=left_out)

    @property
    def _is_plain(self) -> bool:
        """Whether each unit was read in one part: what its row says is all there is to say."""
        return len(self.units) == len(self.rows) and not self._wholes

    def _values(self, name: str) -> FloatArray:
        return np.fromiter(map(_READ[name], self.rows), np.float64, count=len(self.rows))

    def _gone(self) -> npt.NDArray[np.bool_]:
        return np.array([row.gone for row in self.rows], dtype=np.bool_)

    def _lives(self) -> npt.NDArray[np.bool_]:
        """Return for each unit whether any of its parts is there."""
        lives = np.zeros(len(self.units), dtype=np.bool_)
        np.logical_or.at(lives, self.places, ~self._gone())
        return lives

    def _added(
        self, name: str, values: FloatArray, *, left_out: npt.NDArray[np.bool_] | None
    ) -> FloatArray:
        """Return the sums of what is known, with what parts came to that are no more."""
        if left_out is not None:
            values[left_out] = np.nan
        known = ~np.isnan(values)
        sums = np.zeros(len(self.units))
        told = np.zeros(len(self.units), dtype=np.int64)
        np.add.at(sums, self.places, np.where(known, values, 0.0))
        np.add.at(told, self.places, known)
        sums = np.where(told > 0, sums, np.nan)
        for place, (whole, _) in self._wholes.items():
            if name in whole.left:
                sums[place] = _sum_of_known(sums[place], whole.left[name])
        return sums


def _has_user(part: Counted, others: Sequence[Counted]) -> bool:
    """Return whether a part may be of a job by whose it is; root may be in any."""
    users = {each.unit.user for each in (part, *others) if not each.loose} - {"", "root", "0"}
    return part.loose or len(users) < 2


def _sum_of_known(one: float, other: float) -> float:
    """Return a sum of what is known, NaN where neither is."""
    return other if math.isnan(one) else one if math.isnan(other) else one + other
