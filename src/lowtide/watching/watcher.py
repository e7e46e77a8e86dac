"""The step that is taken again and again: read, share out, add up.

A snapshot says what has been counted so far, the meters what was drawn since the last one. Power is
shared out over what ran, becomes grams, and is added to what each job has come to. Whatever cannot
be read is unknown for that step, and the next one goes on.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lowtide.attribution import IdleFloor, NodePower, cpu_used, share_out
from lowtide.monitor.snapshot import PRESSURES, FloatArray, Snapshot, Unit
from lowtide.monitor.tick import Shares, Tick
from lowtide.watching.emissions import Emissions

# What each unit counts itself, and what is added up for it.
_COUNTED = (
    *("cpu_s", "read_bytes", "written_bytes", "received_bytes", "sent_bytes"),
    *("cpu_wait_s", "memory_wait_s", "io_wait_s"),
)
_ADDED = (
    *("energy_j", "measured_j", "carbon_g", "marginal_g", "embodied_g"),
    *("unmetered_s", "unpriced_j"),
)


class Reader(Protocol):
    """Whatever yields snapshots of a node."""

    def read(self) -> Snapshot:
        """Read everything once."""
        ...


class Power(Protocol):
    """Whatever says what a node draws.

    Attributes:
        problems: What went wrong since it was last emptied, in words.
    """

    problems: list[str]

    def read(self) -> NodePower:
        """Return what was drawn since this was last called."""
        ...


@dataclass(slots=True)
class _Accounts:
    """What units had counted when they were first seen, and what they have come to since."""

    units: tuple[Unit, ...] = ()
    first: FloatArray = field(default_factory=lambda: np.empty((len(_COUNTED), 0)))
    added: FloatArray = field(default_factory=lambda: np.empty((len(_ADDED), 0)))

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
        self.units = snapshot.units


def _counted(snapshot: Snapshot) -> FloatArray:
    """Return what each unit has counted so far, a row for each of `_COUNTED`."""
    unknown = np.full(len(snapshot.units), np.nan)
    network = (snapshot.received_bytes, snapshot.sent_bytes)
    waits = [unknown] * len(PRESSURES) if snapshot.pressure_s is None else snapshot.pressure_s.T
    return np.stack(
        [
            snapshot.cpu_s,
            snapshot.read_bytes,
            snapshot.written_bytes,
            *(unknown if each is None else each for each in network),
            *waits,
        ]
    )


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
    """

    reader: Reader
    power: Power
    emissions: Emissions = field(default_factory=Emissions)
    rules: str = "conserving"
    idle_w: float | None = None
    floor: IdleFloor = field(default_factory=IdleFloor)
    host: str = field(default_factory=platform.node)
    _before: Snapshot | None = field(default=None, init=False)
    _accounts: _Accounts = field(default_factory=_Accounts, init=False)
    _node_j: FloatArray = field(default_factory=lambda: np.full(3, np.nan), init=False)
    _node_g: FloatArray = field(default_factory=lambda: np.full(3, np.nan), init=False)
    _packages_j: FloatArray = field(default_factory=lambda: np.empty(0), init=False)
    _dram_j: FloatArray = field(default_factory=lambda: np.array(np.nan), init=False)

    def tick(self) -> Tick | None:
        """Take a step; return what happened since the last one, None at the first."""
        after = self.reader.read()
        power = self.power.read()
        before, self._before = self._before, after
        if before is None or after.time <= before.time:
            self._accounts.follow(after, watched_since=math.inf)
            return None
        self._accounts.follow(after, watched_since=before.time)
        self.floor.see(before, after, power)
        idle_w = self.floor.at(power) if self.idle_w is None else self.idle_w
        shares = share_out(before, after, power, rules=self.rules, idle_w=idle_w)
        passed_s = after.time - before.time
        self._dram_j = _sum(self._dram_j, np.array(power.dram_w * passed_s))
        packages_j = np.array(power.package_w) * passed_s
        if packages_j.shape != self._packages_j.shape:
            self._packages_j = np.full(packages_j.shape, np.nan)
        self._packages_j = _sum(self._packages_j, packages_j)
        problems = (*after.problems, *self.power.problems, *self.emissions.problems(after.time))
        self.power.problems.clear()
        return self._made(before, after, shares, problems)

    def _made(
        self, before: Snapshot, after: Snapshot, shares: Shares, problems: tuple[str, ...]
    ) -> Tick:
        passed_s = after.time - before.time
        average = self.emissions.average(before.time, after.time)
        marginal = self.emissions.marginal(before.time, after.time)
        drawn_j = shares.power_w * passed_s
        reserved = np.minimum(_known(after.reserved_cpus) / max(after.node.cpus, 1), 1.0)
        steps = np.stack(
            [
                drawn_j,
                drawn_j if shares.measured else 0.0 * drawn_j,
                self.emissions.emitted_g(drawn_j, average),
                self.emissions.emitted_g(drawn_j, marginal),
                self.emissions.made_g(reserved, passed_s),
                np.where(np.isnan(drawn_j), passed_s, 0.0),
                drawn_j if math.isnan(average) else 0.0 * drawn_j,
            ]
        )
        used = np.maximum(_counted(after) - self._accounts.first, 0.0)
        added = self._accounts.added = _sum(self._accounts.added, steps)
        node_w = np.array([shares.node_w, shares.idle_w, shares.unattributed_w])
        node_j = node_w * passed_s
        self._node_j = _sum(self._node_j, node_j)
        self._node_g = _sum(self._node_g, self.emissions.emitted_g(node_j, average))
        busy = cpu_used(before, after) / passed_s
        gpus_busy, gpu_bytes, gpus_held = _gpus(after)
        return Tick(
            host=self.host,
            since=before.time,
            time=after.time,
            node=after.node,
            units=after.units,
            **dict(zip(_COUNTED, used, strict=True)),
            cpus_busy=np.where(np.isnan(after.cpu_s), np.nan, busy),
            memory_bytes=after.memory_bytes,
            gpus_busy=gpus_busy,
            gpu_memory_bytes=gpu_bytes,
            reserved_cpus=after.reserved_cpus,
            reserved_bytes=after.reserved_bytes,
            reserved_gpus=gpus_held,
            shares=shares,
            **dict(zip(_ADDED, added, strict=True)),
            node_energy_j=float(self._node_j[0]),
            idle_energy_j=float(self._node_j[1]),
            unattributed_energy_j=float(self._node_j[2]),
            package_energy_j=tuple(self._packages_j.tolist()),
            dram_energy_j=float(self._dram_j),
            node_carbon_g=float(self._node_g[0]),
            idle_carbon_g=float(self._node_g[1]),
            unattributed_carbon_g=float(self._node_g[2]),
            intensity_g_per_kwh=average,
            marginal_g_per_kwh=marginal,
            gpus=after.gpus,
            rejected=after.rejected,
            problems=problems,
        )


def _gpus(snapshot: Snapshot) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how many GPUs each unit keeps busy, what memory it holds there, and how many it has.

    A GPU that several hold is shared by their use of it; an instance is a part of its GPU.
    """
    busy, held_bytes, held = np.zeros((3, len(snapshot.units)))
    for gpu in snapshot.gpus:
        for place, share in gpu.holders.items():
            busy[place] += 0.0 if math.isnan(gpu.busy) else gpu.busy * share
            held_bytes[place] += 0.0 if math.isnan(gpu.memory_bytes) else gpu.memory_bytes * share
            held[place] += 1.0
    return busy, held_bytes, held


def _known(values: FloatArray) -> FloatArray:
    return np.where(np.isnan(values), 0.0, values)


def _sum(total: FloatArray, step: FloatArray) -> FloatArray:
    """Return a total with a step added: an unknown step adds nothing, and never known stays so."""
    return np.where(np.isnan(step), total, _known(total) + step)
