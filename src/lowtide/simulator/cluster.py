"""The machines: how many there are, what each holds, draws and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput, InvalidJob
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.outages import Away, Failures, apart, below, require_away
from lowtide.units import TimeLike, format_count, require_number
from lowtide.workload import Workload

# CPUs, GPUs and watts are counted in about millionths where they are shared out: parts of them
# then add up to no more than the whole, and nothing is lost to rounding.
_UNIT = 2**20

# What a stopped job may go on holding, in the order in which nodes count it.
KEEPABLE = ("cpus", "gpus", "memory")

# What GAIA (Hanafy et al., *Going Green for Less Green*, 2024) pays for an hour of a CPU.
ON_DEMAND_PRICE = 0.0624
SPOT_PRICE = 0.01248
RESERVED_PRICE = 0.02496


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines of one kind, and how they are paid for.

    A node that is on draws `idle_power_w`, whether or not it is used. What jobs draw comes on
    top. A node that is off draws `off_power_w`; on its way it draws what booting and shutting
    down take, evenly over the time that they take.

    Prices are those of GAIA: a CPU-hour on demand, a fifth of it on spot, and 0.4 of it reserved,
    paid used or not.

    Attributes:
        nodes: How many there are.
        cpus_per_node: CPU cores of each.
        gpus_per_node: GPUs of each.
        memory_bytes_per_node: Memory of each; by default nobody runs out of it.
        idle_power_w: What a node that is on draws without any job.
        peak_power_w: What it draws with all CPUs busy; None where nobody knows.
        off_power_w: What it draws when it is off.
        boot_s: How long switching on takes.
        boot_j: What that draws.
        shutdown_s: How long switching off takes.
        shutdown_j: What that draws.
        off_after_s: How long a node is idle before it is switched off; None for never.
        power_cap_w: What nodes and jobs may draw together; None for any amount.
        pue: Power usage effectiveness of the site.
        keeps: What a stopped job goes on holding on its nodes, any of `cpus`, `gpus` and `memory`:
            it then goes on where it was. By default nothing.
        away: When nodes are not there, as is known in advance: `(begin, end, how many)`.
        capacity: How many nodes there are at each moment, a signal of kind `nodes`; before and
            after it all of them. By default always all.
        failures: How often nodes break down; by default never.
        reserved_cpus: CPUs that are paid for all the time.
        on_demand_price: What a CPU-hour costs that is bought when it is needed.
        spot_price: What it costs on spare capacity.
        reserved_price: What an hour of a reserved CPU costs.

    >>> Cluster(nodes=4, cpus_per_node=64, idle_power_w=120, peak_power_w=440).power_w_per_cpu
    5.0
    """

    nodes: int
    cpus_per_node: int
    gpus_per_node: int = 0
    memory_bytes_per_node: float = math.inf
    idle_power_w: float = 0.0
    peak_power_w: float | None = None
    off_power_w: float = 0.0
    boot_s: float = 0.0
    boot_j: float = 0.0
    shutdown_s: float = 0.0
    shutdown_j: float = 0.0
    off_after_s: float | None = None
    power_cap_w: float | None = None
    pue: float = 1.0
    keeps: tuple[str, ...] = ()
    away: Sequence[tuple[TimeLike, TimeLike, int]] = ()
    capacity: Signal | None = None
    failures: Failures | None = None
    reserved_cpus: int = 0
    on_demand_price: float = ON_DEMAND_PRICE
    spot_price: float = SPOT_PRICE
    reserved_price: float = RESERVED_PRICE

    def __post_init__(self) -> None:
        for name, least in (
            ("nodes", 1),
            ("cpus_per_node", 1),
            ("gpus_per_node", 0),
            ("reserved_cpus", 0),
        ):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not whole or value < least:
                raise InvalidInput(f"{name} is a whole number of at least {least}, not {value!r}")
        for name in (
            *("idle_power_w", "peak_power_w", "off_power_w", "power_cap_w"),
            *("boot_s", "boot_j", "shutdown_s", "shutdown_j", "off_after_s"),
            *("on_demand_price", "spot_price", "reserved_price"),
        ):
            if (value := getattr(self, name)) is not None:
                require_number(value, name, least=0.0)
        memory = require_number(self.memory_bytes_per_node, "memory_bytes_per_node", finite=False)
        if not memory > 0:
            raise InvalidInput(f"memory_bytes_per_node is more than 0, not {memory!r}")
        require_number(self.pue, "pue", least=1.0)
        # A list, as a TOML file gives it, is as good.
        object.__setattr__(self, "keeps", require_kept(self.keeps))
        object.__setattr__(self, "away", require_away(self.away, self.nodes))
        if self.failures is not None and self.keeps:
            raise InvalidInput(
                "what stopped jobs keep on a node that breaks down is lost, which is not "
                "simulated: leave out keeps or failures"
            )
        self.gone()
        self._check_power()

    def _check_power(self) -> None:
        if self.peak_power_w is not None and self.peak_power_w < self.idle_power_w:
            raise InvalidInput(
                f"a node draws {self.peak_power_w:g} W at its peak, less than the "
                f"{self.idle_power_w:g} W when it is idle: raise peak_power_w"
            )
        if self.off_power_w > self.idle_power_w:
            raise InvalidInput(
                f"a node draws {self.off_power_w:g} W when it is off, more than the "
                f"{self.idle_power_w:g} W when it is idle: lower off_power_w"
            )
        for verb in ("boot", "shutdown"):
            if getattr(self, f"{verb}_j") and not getattr(self, f"{verb}_s"):
                raise InvalidInput(
                    f"{verb}_j is drawn over the time {verb}_s, which is 0 s: give {verb}_s"
                )
        if self.power_cap_w is not None and self.shutdown_power_w > self.idle_power_w:
            # Nobody decides when an idle node goes off, so nobody could keep the cap for it.
            raise InvalidInput(
                f"a node draws {self.shutdown_power_w:g} W while it shuts down, more than the "
                f"{self.idle_power_w:g} W when it is idle, which a power cap does not foresee: "
                "lower shutdown_j or leave out power_cap_w"
            )

    def gone(self) -> tuple[Away, ...]:
        """Return which nodes are away when, as is known in advance: no two spans overlap."""
        follows = () if self.capacity is None else below(self.capacity, self.nodes)
        away = cast("tuple[Away, ...]", self.away)
        return apart([*away, *follows], self.nodes)

    @property
    def comes_and_goes(self) -> bool:
        """Whether nodes are ever away, or break down."""
        return bool(self.away) or self.capacity is not None or self.failures is not None

    @property
    def cpus(self) -> int:
        """How many CPUs there are on all nodes together."""
        return self.nodes * self.cpus_per_node

    @property
    def boot_power_w(self) -> float:
        """What a node draws while it boots."""
        return self.boot_j / self.boot_s if self.boot_s else 0.0

    @property
    def shutdown_power_w(self) -> float:
        """What a node draws while it shuts down."""
        return self.shutdown_j / self.shutdown_s if self.shutdown_s else 0.0

    @property
    def draws_power(self) -> bool:
        """Whether nodes draw anything of their own, whatever jobs draw."""
        return any((self.idle_power_w, self.off_power_w, self.boot_j, self.shutdown_j))

    @property
    def power_w_per_cpu(self) -> float:
        """What a busy CPU draws on top of an idle node, for jobs that know no watts."""
        if self.peak_power_w is None:
            raise InvalidInput(
                "what a CPU draws is told from idle_power_w and peak_power_w: give peak_power_w"
            )
        return (self.peak_power_w - self.idle_power_w) / self.cpus_per_node

    def check_fits(self, jobs: Workload) -> None:
        """Raise `InvalidJob` for jobs that could never run here, even if they were alone.

        Args:
            jobs: What is to be run.
        """
        for good, what, amount in self._demands(jobs):
            if good.all():
                continue
            row, more = int(np.argmin(good)), int(np.count_nonzero(~good)) - 1
            others = f"; so do {format_count(more, 'other job')}" if more else ""
            raise InvalidJob(
                f"job {jobs.id[row]} (row {row + 1}) {what.format(f'{amount[row]:g}')}{others}: "
                f"{self._cure(jobs, row)}leave out what does not fit (run.oversized = 'drop' in "
                "an experiment, oversized='drop' in Python)"
            )

    def _cure(self, jobs: Workload, row: int) -> str:
        """Return what may help a job that does not fit, besides leaving it out."""
        wide = self.spread(jobs.take(np.array([row])))
        if wide.nodes[0] == jobs.nodes[row] or not self.fitting(wide).all():
            return "give the cluster more, or "
        return (
            f"say on how many nodes it runs (a column nodes), let jobs take as many as they need, "
            f"here {wide.nodes[0]:g} (run.oversized = 'spread' in an experiment, "
            "oversized='spread' in Python), or "
        )

    def spread(self, jobs: Workload) -> Workload:
        """Return jobs that each have as many nodes as what they ask for in all takes.

        Only jobs of a single node that it does not fit on are changed.

        Args:
            jobs: What is to be run.
        """
        nodes = np.ones(len(jobs))
        for column, most in (
            (jobs.cpus, self.cpus_per_node),
            (jobs.gpus, self.gpus_per_node),
            (jobs.memory_bytes, self.memory_bytes_per_node),
        ):
            if 0 < most < math.inf:
                nodes = np.maximum(nodes, np.ceil(column / most))
        return replace(jobs, nodes=np.where(jobs.nodes == 1, nodes, jobs.nodes))

    def fitting(self, jobs: Workload) -> npt.NDArray[np.bool_]:
        """Return which jobs could run here if they were alone.

        Args:
            jobs: What is to be run.
        """
        fits = np.ones(len(jobs), dtype=np.bool_)
        for good, _, _ in self._demands(jobs):
            fits &= good
        return fits

    def _demands(self, jobs: Workload) -> Iterator[tuple[npt.NDArray[np.bool_], str, FloatArray]]:
        """Yield which jobs keep to each limit, what those do that do not, and how much it is."""
        nodes = jobs.nodes
        yield (nodes >= 1) & (nodes == np.floor(nodes)), "asks for {} nodes", nodes
        yield nodes <= self.nodes, f"asks for {{}} nodes of {self.nodes}", nodes
        for column, most, unit in (
            (jobs.cpus, self.cpus_per_node, "CPUs"),
            (jobs.gpus, self.gpus_per_node, "GPUs"),
            (jobs.memory_bytes, self.memory_bytes_per_node, "bytes of memory"),
        ):
            each = column / nodes
            good = (each >= 0) & (each <= most)
            yield good, f"asks for {{}} {unit} on a node that has {most:g}", each
        if self.power_cap_w is not None:
            total_w = jobs.peak_w + self._least_power_w(nodes)
            what = f"takes the cluster to {{}} W, above its power cap of {self.power_cap_w:g} W"
            yield total_w <= self.power_cap_w, what, total_w

    def _least_power_w(self, used: FloatArray) -> FloatArray:
        """Return what the nodes draw at least, for each number of nodes that are used."""
        if self.off_after_s is None:
            return np.full(used.shape, self.nodes * self.idle_power_w)
        waking_w = max(self.idle_power_w, self.boot_power_w)
        return used * waking_w + (self.nodes - used) * self.off_power_w


def require_kept(keeps: object) -> tuple[str, ...]:
    """Return what stopped jobs go on holding, and refuse what none could."""
    names = tuple(keeps) if isinstance(keeps, list | tuple) else (keeps,)
    for name in names:
        if name not in KEEPABLE:
            raise InvalidInput(
                f"a stopped job may go on holding {', '.join(KEEPABLE)}, not {name!r}"
            )
    return tuple(str(name) for name in names)


def whole_units(amount: FloatArray) -> npt.NDArray[np.int64]:
    """Return CPUs, GPUs or watts in whole small units, rounded down."""
    return np.floor(amount * _UNIT).astype(np.int64)
