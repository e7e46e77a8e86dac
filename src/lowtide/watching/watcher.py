"""The step that is taken again and again: read, share out, add up.

A snapshot says what has been counted so far, the meters what was drawn since the last one. Power is
shared out over what ran, becomes grams, and is added to what each job has come to. Whatever cannot
be read is unknown for that step, and the next one goes on.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lowtide.attribution import (
    IdleFloor,
    NodePower,
    cpu_used,
    hide_unknown,
    presence,
    share_out,
)
from lowtide.errors import InvalidInput
from lowtide.monitor.quantities import ADDED, COUNTED
from lowtide.monitor.snapshot import FloatArray, Snapshot, Unit
from lowtide.monitor.tick import Shares, Tick
from lowtide.watching.emissions import Emissions


class Reader(Protocol):
    """Whatever yields snapshots of a node."""

    def read(self) -> Snapshot:
        """Read everything once."""
        ...


class Power(Protocol):
    """Whatever says what a node draws.

    Attributes:
        problems: What went wrong since it was last emptied, in words.
        rejected: How many readings made no sense so far, and were left out.
    """

    problems: list[str]
    rejected: int

    def read(self) -> NodePower:
        """Return what was drawn since this was last called."""
        ...


@dataclass(slots=True)
class _Accounts:
    """What units had counted when they were first seen, and what they have come to since.

    Attributes:
        units: The units.
        first: What they had counted.
        added: What they have come to.
        owed: What the whole node would have been charged with for just being kept while nobody
            knew how much of it is kept for a job: energy, and what making the node emitted.
        is_kept: Which are jobs of Slurm, that keep a part of the node in any case.
    """

    units: tuple[Unit, ...] = ()
    first: FloatArray = field(default_factory=lambda: np.empty((len(COUNTED), 0)))
    added: FloatArray = field(default_factory=lambda: np.empty((len(ADDED), 0)))
    owed: FloatArray = field(default_factory=lambda: np.empty((2, 0)))
    is_kept: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    def follow(self, snapshot: Snapshot, *, watched_since: float) -> None:
        """Begin to count for units that were not there before, and drop those that are gone."""
        if snapshot.units == self.units:
            return
        stood = {unit.key: place for place, unit in enumerate(self.units)}
        places = np.array([stood.get(unit.key, -1) for unit in snapshot.units], dtype=np.intp)
        # What began while the node was watched is counted from 0, all else from now on.
        young = [unit.started >= watched_since - 1.0 for unit in snapshot.units]
        now = np.where(young, 0.0, _counted(snapshot))
        self.first = np.where(places < 0, now, _taken(self.first, places))
        self.added = np.where(places < 0, np.nan, _taken(self.added, places))
        self.owed = np.where(places < 0, 0.0, _taken(self.owed, places))
        self.is_kept = np.array([unit.source == "slurm" for unit in snapshot.units], dtype=np.bool_)
        self.units = snapshot.units

    def used(self, snapshot: Snapshot) -> FloatArray:
        """Return what each unit has used since it was first seen, a row for each of `COUNTED`."""
        counted = _counted(snapshot)
        # What was not told at first, such as waits, is counted from when it was first told.
        self.first = np.where(np.isnan(self.first), counted, self.first)
        return np.maximum(counted - self.first, 0.0)


def _counted(snapshot: Snapshot) -> FloatArray:
    """Return what each unit has counted so far, a row for each of `COUNTED`."""
    return np.stack([getattr(snapshot, name) for name in COUNTED])


def _taken(table: FloatArray, places: npt.NDArray[np.intp]) -> FloatArray:
    """Return columns of a table in another order; anything for those at -1."""
    return table[:, places] if table.shape[1] else np.full((len(table), places.size), np.nan)


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Turns snapshots and power into ticks.

    Attributes:
        reader: Where snapshots come from.
        power: What says how much was drawn since it was last asked.
        emissions: How energy becomes grams.
        rules: How power is shared out, of `attribution.RULES`.
        idle_w: What the node draws when nothing runs; None to learn it.
        floor: What has been learned of that.
        host: The node's name.
        cluster: Which cluster the node is of, empty where not known or none.
    """

    reader: Reader
    power: Power
    emissions: Emissions = field(default_factory=Emissions)
    rules: str = "conserving"
    idle_w: float | None = None
    floor: IdleFloor = field(default_factory=IdleFloor)
    host: str = field(default_factory=platform.node)
    cluster: str = ""
    _before: Snapshot | None = field(default=None, init=False)
    _untold: list[str] = field(default_factory=list, init=False)
    _accounts: _Accounts = field(default_factory=_Accounts, init=False)
    _node_j: FloatArray = field(default_factory=lambda: np.full(3, np.nan), init=False)
    _node_g: FloatArray = field(default_factory=lambda: np.full(3, np.nan), init=False)
    _node_unmetered_s: float = field(default=0.0, init=False)
    _node_unpriced_j: float = field(default=0.0, init=False)
    _packages_j: FloatArray = field(default_factory=lambda: np.empty(0), init=False)
    _dram_j: FloatArray = field(default_factory=lambda: np.array(np.nan), init=False)

    def __post_init__(self) -> None:
        if self.idle_w is not None and not 0 <= self.idle_w < math.inf:
            raise InvalidInput(f"an idle node draws 0 W or more, not {self.idle_w:g} W")

    def tick(self) -> Tick | None:
        """Take a step; return what happened since the last one, None at the first."""
        after = self.reader.read()
        power = self.power.read()
        before, self._before = self._before, after
        # What may not be read shows at the first look, which makes no tick, and is named once.
        self._untold += after.problems
        if before is None or after.seconds_after(before) <= 0:
            self._accounts.follow(after, watched_since=math.inf)
            return None
        self._accounts.follow(after, watched_since=after.time_of(before))
        self.floor.see(before, after, power)
        idle_w = self.floor.at(power) if math.isnan(power.idle_w) else power.idle_w
        idle_w = idle_w if self.idle_w is None else self.idle_w
        shares = share_out(before, after, power, rules=self.rules, idle_w=idle_w)
        # Power is energy over the time between two readings of the meters, so that multiplied by
        # the same time it is what their counters moved by.
        drawn_s = power.passed_s if power.passed_s > 0 else after.seconds_after(before)
        shares = self._charge_late(before, after, shares, drawn_s, idle_w)
        shares = hide_unknown(before, after, shares)
        self._dram_j = _sum(self._dram_j, np.array(power.dram_w * drawn_s))
        packages_j = np.array(power.package_w) * drawn_s
        if packages_j.shape != self._packages_j.shape:
            self._packages_j = np.full(packages_j.shape, np.nan)
        self._packages_j = _sum(self._packages_j, packages_j)
        problems = (*self._untold, *self.power.problems, *self.emissions.problems(after.time))
        self._untold.clear()
        self.power.problems.clear()
        return self._made(before, after, shares, drawn_s, problems, power.answers)

    def _charge_late(
        self,
        before: Snapshot,
        after: Snapshot,
        shares: Shares,
        drawn_s: float,
        idle_w: float | None,
    ) -> Shares:
        """Charge jobs for the time before it was known how much of the node is kept for them.

        Slurm makes the group of a job first and limits it then. What was idle meanwhile was the
        job's, so it is taken from what is idle now, and no step shares out more than was drawn.
        """
        owed, kept = self._accounts.owed, after.reserved_cpus / max(after.node.cpus, 1)
        late = self._accounts.is_kept & np.isnan(kept)
        if late.any():
            floor_w = 0.0 if idle_w is None or math.isnan(idle_w) else min(idle_w, shares.node_w)
            there = np.where(late, presence(before, after), 0.0)
            owed[0] += there * (0.0 if math.isnan(floor_w) else floor_w) * drawn_s
            owed[1] += there * after.seconds_after(before)
        due_j = np.where(np.isnan(kept), 0.0, np.minimum(kept, 1.0) * owed[0])
        # Other rules charge nobody for what is kept.
        if self.rules != "conserving" or not due_j.any() or not shares.idle_w * drawn_s > 0:
            return shares
        paid_w = due_j * min(1.0, shares.idle_w * drawn_s / float(due_j.sum())) / drawn_s
        owed[0] = np.where(
            due_j > 0, owed[0] * (1 - paid_w * drawn_s / np.fmax(due_j, 1e-300)), owed[0]
        )
        measured = shares.node_measured_w / shares.node_w if shares.node_w > 0 else 0.0
        return replace(
            shares,
            power_w=shares.power_w + paid_w,
            measured_w=shares.measured_w + paid_w * measured,
            idle_w=shares.idle_w - float(paid_w.sum()),
        )

    def _made(
        self,
        before: Snapshot,
        after: Snapshot,
        shares: Shares,
        drawn_s: float,
        problems: tuple[str, ...],
        meters: Mapping[str, bool],
    ) -> Tick:
        passed_s = after.seconds_after(before)
        since = after.begins(before)
        average = self.emissions.average(since, after.time)
        marginal = self.emissions.marginal(since, after.time)
        drawn_j = shares.power_w * drawn_s
        kept = np.minimum(_known(after.reserved_cpus) / max(after.node.cpus, 1), 1.0)
        # As above: what is known now was so before.
        late_s = np.where(kept > 0, self._accounts.owed[1], 0.0)
        self._accounts.owed[1] -= late_s
        steps = {
            "energy_j": drawn_j,
            "measured_j": shares.measured_w * drawn_s,
            "carbon_g": self.emissions.emitted_g(drawn_j, average),
            "marginal_g": self.emissions.emitted_g(drawn_j, marginal),
            "embodied_g": self.emissions.made_g(
                kept * (presence(before, after) + late_s / passed_s), passed_s
            ),
            "unmetered_s": np.where(
                np.isnan(drawn_j) | _at(shares.lacking, drawn_j.size), passed_s, 0.0
            ),
            "unpriced_j": drawn_j if math.isnan(average) else 0.0 * drawn_j,
        }
        columns = dict(zip(COUNTED, self._accounts.used(after), strict=True))
        added = self._accounts.added = _sum(
            self._accounts.added, np.stack([steps[name] for name in ADDED])
        )
        node_w = np.array([shares.node_w, shares.idle_w, shares.unattributed_w])
        node_j = node_w * drawn_s
        self._node_j = _sum(self._node_j, node_j)
        self._node_g = _sum(self._node_g, self.emissions.emitted_g(node_j, average))
        if math.isnan(shares.node_w) or shares.node_lacks:
            self._node_unmetered_s += passed_s
        if math.isnan(average) and not math.isnan(shares.node_w):
            self._node_unpriced_j += float(node_j[0])
        busy = cpu_used(before, after) / passed_s
        gpus_busy, gpu_bytes, gpus_held = _gpus(after)
        # Nor does anybody know what a GPU drew for those of whom nobody knows whether they hold it.
        shares = replace(shares, gpu_w=np.where(np.isnan(gpus_held), np.nan, shares.gpu_w))
        return Tick(
            host=self.host,
            cluster=self.cluster,
            since=since,
            skipped_s=max(since - before.time, 0.0),
            time=after.time,
            node=after.node,
            units=after.units,
            **columns | {"cpu_s": _since_it_began(after, columns["cpu_s"])},
            watched_cpu_s=columns["cpu_s"],
            cpus_busy=np.where(np.isnan(after.cpu_s), np.nan, busy),
            memory_bytes=after.memory_bytes,
            gpus_busy=gpus_busy,
            gpu_memory_bytes=gpu_bytes,
            reserved_cpus=after.reserved_cpus,
            reserved_bytes=after.reserved_bytes,
            reserved_gpus=gpus_held,
            shares=shares,
            **dict(zip(ADDED, added, strict=True)),
            node_energy_j=float(self._node_j[0]),
            idle_energy_j=float(self._node_j[1]),
            unattributed_energy_j=float(self._node_j[2]),
            package_energy_j=tuple(self._packages_j.tolist()),
            dram_energy_j=float(self._dram_j),
            node_carbon_g=float(self._node_g[0]),
            idle_carbon_g=float(self._node_g[1]),
            unattributed_carbon_g=float(self._node_g[2]),
            node_unmetered_s=self._node_unmetered_s,
            node_unpriced_j=self._node_unpriced_j,
            intensity_g_per_kwh=average,
            marginal_g_per_kwh=marginal,
            pue=self.emissions.pue,
            synthetic=self.emissions.synthetic,
            gpus=after.gpus,
            gpus_unread=after.gpus_unread,
            meters=meters,
            system_s=after.system_s,
            ended=after.ended,
            rejected=after.rejected + self.power.rejected,
            problems=problems,
        )


def _since_it_began(snapshot: Snapshot, watched_s: FloatArray) -> FloatArray:
    """Return the CPU time of each unit, as far back as it is counted.

    A control group counts all that ever ran in it. A process also counts those that it waited for,
    which may have been other units, so outside of groups only what was watched is known.
    """
    alone = {place for place, unit in enumerate(snapshot.units) if unit.source == "process"}
    loose = _at(alone | snapshot.loose, len(snapshot.units))
    return np.where(loose, watched_s, np.fmax(snapshot.cpu_s, watched_s))


def _gpus(snapshot: Snapshot) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how many GPUs each unit keeps busy, what memory it holds there, and how many it has.

    A GPU that several hold is shared by their use of it; an instance is a part of its GPU. Whoever
    holds a GPU whose use is not known uses nobody knows how much, and so does everybody who is not
    seen on one while somebody uses another, and nobody knows who.
    """
    busy, held_bytes, held = np.zeros((3, len(snapshot.units)))
    for gpu in snapshot.gpus:
        for place, share in gpu.holders.items():
            busy[place] += gpu.busy * gpu.share * share
            held_bytes[place] += gpu.memory_bytes * share
            held[place] += gpu.share
    if not all(gpu.users_known for gpu in snapshot.gpus):
        alone = held == 0
        busy[alone] = held_bytes[alone] = held[alone] = np.nan
    return busy, held_bytes, held


def _at(places: Iterable[int], count: int) -> npt.NDArray[np.bool_]:
    """Return where some places are among so many."""
    marked = np.zeros(count, dtype=np.bool_)
    marked[list(places)] = True
    return marked


def _known(values: FloatArray) -> FloatArray:
    return np.where(np.isnan(values), 0.0, values)


def _sum(total: FloatArray, step: FloatArray) -> FloatArray:
    """Return a total with a step added: an unknown step adds nothing, and never known stays so."""
    return np.where(np.isnan(step), total, _known(total) + step)
