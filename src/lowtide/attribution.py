"""From the power of a node to the power of each job on it.

Whatever the readings are, the jobs, what is idle and what nobody can be charged for add up to the
node: watts are handed out, never made. The concept page says why each part goes where it goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from lowtide.errors import UnknownName
from lowtide.monitor.snapshot import FloatArray, GpuCounts, Snapshot, Unit
from lowtide.monitor.tick import Shares

RULES = ("conserving", "ceems")

# What runs for a user who asked for it. The rest of a node are its services.
_JOBS = ("slurm", "container")
# How far apart the clock of a snapshot and the start of a unit may be.
_SLACK_S = 1.0
# Less than this share of the node is rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePower:
    """What a node and its parts drew on average between two snapshots, NaN for what is not known.

    Attributes:
        node_w: All of it, GPUs included; NaN where no meter sees the whole node, and then its known
            parts are the node.
        package_w: Each CPU socket, in the order of their numbers.
        dram_w: Memory, where it is not part of the sockets.
        gpu_w: Each GPU by the name that it has in the snapshot.
        rest_w: What a model estimates for all that no meter sees, where the node has no meter;
            NaN where nobody estimates that.
        idle_w: What the model says the node without its GPUs draws when nothing runs; NaN where
            there is no model.
        lacks: Whether a meter of the node, its sockets or its memory was silent, or the estimate:
            then more was drawn than is known.
        passed_s: The time that it was drawn in, by the clock of the meters; NaN where that is the
            time between the snapshots.
        measured: Whether meters measured it, `rest_w` aside; otherwise a model estimated it.
        answers: The meters, and whether each said something new within the last minute.
    """

    node_w: float = math.nan
    package_w: tuple[float, ...] = ()
    dram_w: float = math.nan
    gpu_w: Mapping[str, float] = field(default_factory=dict)
    rest_w: float = math.nan
    idle_w: float = math.nan
    lacks: bool = False
    passed_s: float = math.nan
    measured: bool
    answers: Mapping[str, bool] = field(default_factory=dict)

    @property
    def total_w(self) -> float:
        """What is shared out: the node by its own meter, else its known parts together."""
        return _cut(self).node_w

    @property
    def base_w(self) -> float:
        """What is left of it without GPUs and memory: sockets, board, fans, losses."""
        return _cut(self).base_w

    @property
    def sees(self) -> tuple[str, ...]:
        """What meters saw: all of the node, or which kinds of its parts."""
        if not self.measured or _is_power(self.node_w):
            return ("node",) if self.measured else ()
        kinds = {
            "package": self.package_w,
            "dram": (self.dram_w,),
            "gpu": tuple(self.gpu_w.values()),
        }
        return tuple(kind for kind, watts in kinds.items() if any(map(_is_power, watts)))

    @property
    def meters(self) -> str:
        """What was seen: powers are compared only where this is the same."""
        packages = {f"package-{place}": watts for place, watts in enumerate(self.package_w)}
        parts = {"node": self.node_w, **packages, "dram": self.dram_w, **self.gpu_w}
        if not _is_power(self.node_w):
            parts["rest"] = self.rest_w
        seen = sorted(name for name, watts in parts.items() if _is_power(watts))
        return " ".join(["measured" if self.measured else "estimated", *seen])


def share_out(
    before: Snapshot,
    after: Snapshot,
    power: NodePower,
    *,
    rules: str = "conserving",
    idle_w: float | None = None,
) -> Shares:
    """Share the power of a node out over what ran on it between two snapshots.

    Args:
        after: The node at the end; the answer has a place for each of its units.
        rules: `conserving`, or `ceems` for those of another system, which do not add up.
        idle_w: What the node without GPUs and memory (`NodePower.base_w`) draws when nothing runs;
            None where that is not known.
    """
    if rules not in RULES:
        raise UnknownName("rules of attribution", rules, RULES)
    parts = _cut(power)
    if math.isnan(parts.node_w):
        unknown = np.full(len(after.units), np.nan)
        return Shares(
            node_w=math.nan,
            power_w=unknown,
            gpu_w=unknown,
            idle_w=math.nan,
            unattributed_w=math.nan,
            measured_w=unknown,
            node_measured_w=math.nan,
            measured=power.measured,
            sees=power.sees,
        )
    if rules == "ceems":
        return _ceems(before, after, power, parts)
    return _conserving(before, after, power, parts, idle_w)


def hide_unknown(before: Snapshot, after: Snapshot, shares: Shares) -> Shares:
    """Take back what was shared out to whom nobody can tell what they drew.

    CPU time says whose the power of CPUs is. Of whom it is not known, and of all where nobody knows
    how busy the node was, the share is unknown; what they drew is somebody's, and nobody's.
    """
    load_is_unknown = math.isnan(after.node.busy_s - before.node.busy_s)
    unknown = np.isnan(after.cpu_s) | load_is_unknown
    if not unknown.any():
        return shares
    return replace(
        shares,
        power_w=np.where(unknown, np.nan, shares.power_w),
        measured_w=np.where(unknown, np.nan, shares.measured_w),
        unattributed_w=shares.unattributed_w + float(np.nansum(shares.power_w[unknown])),
    )


def is_job(unit: Unit) -> bool:
    """Return whether a unit is a job: services and groups of processes are not."""
    return unit.source in _JOBS


def cpu_used(before: Snapshot, after: Snapshot) -> FloatArray:
    """Return the CPU time that each unit used between two snapshots.

    A counter that went back counts as no use, and nobody uses more than the node has. A unit that
    was not there before has used all it shows, if it has started since; otherwise it is not known
    when it did, and it is left out.
    """
    earlier_s = before.cpu_s
    if before.units != after.units:
        places = _places(before.units, after.units)
        # A place of -1 reads the unknown at the end.
        earlier_s = np.append(before.cpu_s, np.nan)[places]
        for new in np.flatnonzero(places < 0):
            if after.units[new].started >= after.time_of(before) - _SLACK_S:
                earlier_s[new] = 0.0
    most_s = max(after.seconds_after(before), 0.0) * max(after.node.cpus, 0)
    return np.minimum(_known(after.cpu_s - earlier_s), most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The same power as in `NodePower`, made to add up; 0 for what is not seen by itself."""

    node_w: float
    package_w: tuple[float, ...]
    dram_w: float
    gpu_w: dict[str, float]
    rest_w: float

    @property
    def base_w(self) -> float:
        return max(self.node_w - self.dram_w - sum(self.gpu_w.values()), 0.0)

    @property
    def base_measured(self) -> float:
        """The share of the base that meters saw."""
        base_w = self.base_w
        return max(1.0 - self.rest_w / base_w, 0.0) if base_w > 0 else float(self.rest_w <= 0)


def _cut(power: NodePower) -> _Parts:
    """Bring the parts below the whole: a slow meter of the node may lag behind the quick ones."""
    package_w = tuple(watts if _is_power(watts) else math.nan for watts in power.package_w)
    seen = [watts for watts in package_w if not math.isnan(watts)]
    dram_w = power.dram_w if _is_power(power.dram_w) else 0.0
    gpu_w = {name: watts for name, watts in power.gpu_w.items() if _is_power(watts)}
    parts_w = math.fsum([*seen, dram_w, *gpu_w.values()])
    node_w, rest_w, scale = power.node_w, 0.0, 1.0
    if not _is_power(node_w):
        rest_w = power.rest_w if _is_power(power.rest_w) else 0.0
        known = [*seen, *gpu_w.values(), power.dram_w, power.rest_w]
        node_w = parts_w + rest_w if any(map(_is_power, known)) else math.nan
    elif parts_w > node_w:
        scale = node_w / parts_w
    return _Parts(
        node_w=node_w,
        package_w=tuple(watts * scale for watts in package_w),
        dram_w=dram_w * scale,
        gpu_w={name: watts * scale for name, watts in gpu_w.items()},
        rest_w=rest_w,
    )


def _conserving(
    before: Snapshot, after: Snapshot, power: NodePower, parts: _Parts, idle_w: float | None
) -> Shares:
    cpus = max(after.node.cpus, 0)
    used_s = cpu_used(before, after)
    # Clocks of the node and of its groups differ a little: together its units are never more.
    busy_s = max(_busy(before, after), float(used_s.sum()))
    there = presence(before, after)
    reserved = _over(_known(after.reserved_cpus) * there, cpus)

    gpu_w, idle_gpus_w = _by_holders(after, parts.gpu_w)
    seen_w, not_used_w = gpu_w.copy(), idle_gpus_w
    if 0 < after.node.memory_bytes < math.inf:
        memory = _over(_known(after.memory_bytes) * there, after.node.memory_bytes)
        seen_w += parts.dram_w * memory
        not_used_w += parts.dram_w * max(1.0 - float(memory.sum()), 0.0)

    if idle_w is None or not _is_power(idle_w):
        most_s = max(after.seconds_after(before) * cpus, busy_s)
        base_w = parts.base_w * _at_least(used_s, busy_s, most_s, reserved)
    else:
        floor_w = min(idle_w, parts.base_w)
        not_used_w += floor_w * max(1.0 - float(reserved.sum()), 0.0)
        base_w = floor_w * reserved + _by_use(after, parts, floor_w, used_s, busy_s)

    power_w = seen_w + base_w
    left_w = parts.node_w - float(power_w.sum()) - not_used_w
    return Shares(
        node_w=parts.node_w,
        power_w=power_w,
        gpu_w=gpu_w,
        idle_w=not_used_w,
        # Rounding may leave less than nothing; more than rounding would be an error of the rules.
        unattributed_w=left_w if left_w > _ROUNDING * parts.node_w else 0.0,
        **_lacking(after, power),
        **_measured(power, parts, power_w, seen_w + parts.base_measured * base_w),
    )


def presence(before: Snapshot, after: Snapshot) -> FloatArray:
    """Return the share of the time between two snapshots in which each unit was there."""
    since, passed_s = after.time_of(before), after.seconds_after(before)
    if not passed_s > 0:
        return np.ones(len(after.units))
    begins = np.array([unit.started for unit in after.units]) - since
    ends = np.full(len(after.units), passed_s)
    if after.ended is not None:
        ends = np.where(np.isnan(after.ended), passed_s, after.ended - since)
    ends = np.clip(ends, 0.0, passed_s)
    share: FloatArray = (ends - np.clip(begins, 0.0, ends)) / passed_s
    return share


class _Lacking(TypedDict):
    lacking: frozenset[int]
    node_lacks: bool


def _lacking(after: Snapshot, power: NodePower) -> _Lacking:
    """Say whose power lacks a part: of those who hold a GPU that is not known, and else of all."""
    if _is_power(power.node_w):
        return _Lacking(lacking=frozenset(), node_lacks=False)
    silent = [name for name, watts in power.gpu_w.items() if not _is_power(watts)]
    if power.lacks:
        return _Lacking(lacking=frozenset(range(len(after.units))), node_lacks=True)
    holders = {
        place for name in silent for gpu, _ in _instances(after.gpus, name) for place in gpu.holders
    }
    return _Lacking(lacking=frozenset(holders), node_lacks=bool(silent))


class _Measured(TypedDict):
    cards_w: Mapping[str, float]
    measured_w: FloatArray
    node_measured_w: float
    measured: bool
    sees: tuple[str, ...]


def _measured(
    power: NodePower, parts: _Parts, power_w: FloatArray, seen_w: FloatArray
) -> _Measured:
    """Say what of the power was measured, given what meters saw of each unit's."""
    if not power.measured:
        return _Measured(
            cards_w=parts.gpu_w,
            measured_w=np.zeros_like(power_w),
            node_measured_w=0.0,
            measured=False,
            sees=(),
        )
    return _Measured(
        cards_w=parts.gpu_w,
        measured_w=power_w if parts.rest_w <= 0 else np.minimum(seen_w, power_w),
        node_measured_w=parts.node_w - parts.rest_w,
        measured=not _is_power(power.rest_w) or _is_power(power.node_w),
        sees=power.sees,
    )


def _at_least(used_s: FloatArray, busy_s: float, most_s: float, reserved: FloatArray) -> FloatArray:
    """Return what share each is charged where idle and dynamic power cannot be told apart.

    With all of it idle a unit would bear its reservation, with all of it dynamic its share of the
    busy time, so the lesser is its in any case; and so is its use of all that the CPUs could do.
    """
    if busy_s <= 0:
        return np.zeros_like(used_s)
    return np.maximum(np.minimum(reserved, used_s / busy_s), used_s / most_s)


def _by_use(
    after: Snapshot, parts: _Parts, floor_w: float, used_s: FloatArray, busy_s: float
) -> FloatArray:
    """Return what each bears of the power above the floor, by CPU time, per socket if possible."""
    dynamic_w = parts.base_w - floor_w
    packages_w = np.array(parts.package_w)
    where = after.socket_shares
    sockets = packages_w.size
    if where is None or sockets < 2 or where.shape != (used_s.size, sockets):
        return dynamic_w * _over(used_s, busy_s)
    if np.isnan(packages_w).any():
        return dynamic_w * _over(used_s, busy_s)
    where = np.where(np.isfinite(where) & (where > 0), where, 0.0)
    sums = where.sum(axis=1, keepdims=True)
    spread = np.divide(where, sums, out=np.full_like(where, 1 / sockets), where=sums > 0)
    # Sockets are alike, so an idle one draws what the least busy one draws, at most.
    above_w = packages_w - min(float(packages_w.min()), floor_w / sockets)
    if above_w.sum() <= 0:
        above_w = np.ones(sockets)
    times_s = used_s[:, None] * spread
    busy_times_s = times_s.sum(axis=0) + (busy_s - used_s.sum()) / sockets
    socket_w = dynamic_w * above_w / above_w.sum()
    per_s = np.divide(socket_w, busy_times_s, out=np.zeros(sockets), where=busy_times_s > 0)
    shared: FloatArray = times_s @ per_s
    return shared


def _by_holders(after: Snapshot, gpu_w: Mapping[str, float]) -> tuple[FloatArray, float]:
    """Return what the GPUs of each unit drew, and what those drew that nobody holds or uses."""
    shared = np.zeros(len(after.units))
    idle_w = 0.0
    for name, card_w in gpu_w.items():
        for gpu, share in _instances(after.gpus, name):
            holders = {at: part for at, part in gpu.holders.items() if 0 <= at < shared.size}
            if not gpu.holders and gpu.busy <= 0:
                idle_w += card_w * share
            elif holders:
                places = np.fromiter(holders, dtype=np.intp)
                parts = _known(np.fromiter(holders.values(), dtype=np.float64))
                if parts.sum() <= 0:
                    parts = np.full(places.size, 1 / len(gpu.holders))
                shared[places] += card_w * share * _over(parts, 1.0)
    return shared, idle_w


def _instances(gpus: Sequence[GpuCounts], name: str) -> Iterator[tuple[GpuCounts, float]]:
    """Yield the GPU of that name, or its instances, each with its share of the card's power."""
    found = [gpu for gpu in gpus if gpu.name.startswith(f"{name}/")]
    found = found or [gpu for gpu in gpus if gpu.name == name][:1]
    sizes = _known(np.array([gpu.total_bytes for gpu in found]))
    if sizes.size and not sizes.all():
        sizes = np.ones(len(found))
    busy = np.array([gpu.busy for gpu in found])
    use = sizes * _known(busy)
    # How busy an instance is, is often not known: then its size has to do.
    weights = use if use.sum() > 0 and not np.isnan(busy).any() else sizes
    yield from zip(found, (weights / weights.sum()).tolist() if found else (), strict=True)


def _ceems(before: Snapshot, after: Snapshot, power: NodePower, parts: _Parts) -> Shares:
    """Share out as CEEMS does: a tenth per job alike, the rest by use, no idle and no remainder."""
    used_s = cpu_used(before, after)
    busy_s = _busy(before, after)
    by_cpu = used_s / busy_s if busy_s > 0 else np.zeros_like(used_s)
    memory_bytes = after.node.memory_bytes
    by_memory = _known(after.memory_bytes)
    by_memory = by_memory / memory_bytes if memory_bytes > 0 else np.zeros_like(used_s)
    package_w = float(np.nansum(parts.package_w))
    gpu_w, _ = _by_holders(after, parts.gpu_w)
    if not _is_power(power.node_w) and parts.rest_w <= 0:
        power_w = package_w * by_cpu + parts.dram_w * by_memory
    else:
        # GPUs are their holders', so they are not shared out again.
        node_w = parts.node_w - sum(parts.gpu_w.values())
        both_w = package_w + parts.dram_w
        dram = parts.dram_w / both_w if both_w > 0 else 0.0
        power_w = 0.9 * node_w * ((1 - dram) * by_cpu + dram * by_memory)
        # Services are no jobs there: they bear what they use, and nothing of the tenth.
        jobs = np.array([is_job(unit) for unit in after.units], dtype=np.float64)
        power_w += 0.1 * node_w * jobs / max(jobs.sum(), 1.0)
    seen_w = gpu_w + parts.base_measured * power_w
    power_w = power_w + gpu_w
    return Shares(
        node_w=parts.node_w,
        power_w=power_w,
        gpu_w=gpu_w,
        idle_w=math.nan,
        unattributed_w=math.nan,
        **_lacking(after, power),
        **_measured(power, parts, power_w, seen_w),
    )


@dataclass(slots=True, kw_only=True)
class IdleFloor:
    """What a node draws when nothing runs, learned while it is watched.

    It is a low quantile of `NodePower.base_w` at times when hardly any CPU was busy, and of
    whatever is lower still; old times fade. Meters that see different parts have floors of their
    own.

    Attributes:
        quantile: Which share of the idle readings lies below the floor.
        idle_share: Up to which share of its CPUs busy a node counts as idle.
        least_s: Shorter times are left out: the kernel counts CPU time in hundredths of a second.
        known: For each set of meters: how many readings, the floor in watts, how far they lie from
            it on average. Keep this and hand it over at the next start.
    """

    quantile: float = 0.1
    idle_share: float = 0.05
    least_s: float = 1.0
    known: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def see(self, before: Snapshot, after: Snapshot, power: NodePower) -> None:
        """Learn from what was drawn between two snapshots."""
        elapsed_s = after.seconds_after(before)
        base_w = power.base_w
        busy_s = after.node.busy_s - before.node.busy_s
        if elapsed_s < self.least_s or not _is_power(base_w) or math.isnan(busy_s):
            return
        idle = 0 <= busy_s <= self.idle_share * elapsed_s * after.node.cpus
        if power.meters not in self.known:
            if idle:
                self.known[power.meters] = (1.0, base_w, 0.0)
            return
        seen, floor_w, spread_w = self.known[power.meters]
        if not idle and base_w >= floor_w:
            return
        # Early readings count for much, later ones for a fiftieth each, so that the floor follows.
        seen += 1
        gain = max(1 / seen, 0.02)
        spread_w += gain * (abs(base_w - floor_w) - spread_w)
        floor_w += 2 * gain * spread_w * (self.quantile - (base_w < floor_w))
        self.known[power.meters] = (seen, max(floor_w, 0.0), spread_w)

    def at(self, power: NodePower) -> float | None:
        """Return the floor for these meters in watts, None where the node was never idle."""
        found = self.known.get(power.meters)
        return None if found is None else found[1]


def _busy(before: Snapshot, after: Snapshot) -> float:
    """Return the CPU time that the whole node used; 0 where the counter went back or is silent."""
    used_s = after.node.busy_s - before.node.busy_s
    return used_s if _is_power(used_s) else 0.0


def _places(before: Sequence[Unit], after: Sequence[Unit]) -> npt.NDArray[np.intp]:
    """Return where each unit stood before, -1 for new ones."""
    # Most are the very same objects, and to find those costs less than to ask all for their keys.
    stood = {id(unit): place for place, unit in enumerate(before)}
    places = [stood.pop(id(unit), -1) for unit in after]
    if stood and -1 in places:
        keys = {before[place].key: place for place in stood.values()}
        for new, unit in enumerate(after):
            if places[new] < 0:
                places[new] = keys.get(unit.key, -1)
    return np.array(places, dtype=np.intp)


def _is_power(watts: float) -> bool:
    return 0 <= watts < math.inf


def _known(values: FloatArray) -> FloatArray:
    """Return the values with 0 for what is not known or cannot be."""
    return np.where(np.isfinite(values) & (values > 0), values, 0.0)


def _over(parts: FloatArray, whole: float) -> FloatArray:
    """Return each part's share of the whole; parts that come to more are brought down to it."""
    total = max(float(parts.sum()), whole if _is_power(whole) else 0.0)
    return parts / total if total > 0 else np.zeros_like(parts)
