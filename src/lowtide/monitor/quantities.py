"""Everything that is watched, a line for each: the one table that all others are made from.

Snapshots, ticks, what the store keeps and how finely, the page of metrics, series, columns and JSON
take their names from here. To watch one more thing, add its line and set it where the kernel's file
is read; what the store is to keep gets the next number of a layout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

Class = TypeVar("Class", bound=type)

# Names end with their unit. For each unit: what metrics call it, and how finely it is kept.
_UNITS = {
    "s": ("seconds", 1e-3),
    "bytes": ("bytes", 1.0),
    "j": ("joules", 1e-3),
    "g": ("grams", 1e-6),
    "w": ("watts", 1e-3),
}


@dataclass(frozen=True)
class Quantity:
    """One thing that is watched.

    Attributes:
        name: What it is called in ticks, in the store and in JSON; it ends with its unit.
        what: What it is, in words.
        layout: Since which layout of the store it is kept; 0 for what is not. Jobs and nodes share
            one count: the next is one more than the largest there is.
        origin: Who knows it. Of jobs, the `kernel` counts it, it is `held` at the moment, `gpus` or
            the sharing out of `power` say it, the watcher has `added` it up, or something else is
            `made` of others. Of nodes, the `kernel` counts it, and its growth is kept; or the
            `tick` has it.
        scope: `job` or `node`.
        grows: Whether it is a counter; all else goes up and down.
        quantum: How finely the store keeps a counter; None for what suits its unit.
        heading: The column of `lowtide jobs` that shows it; empty without one.
        metric: What metrics call it, its unit left out; None for its name, empty for no metric.
        label: A label that the lines of that metric have besides.
        rate: What its growth in a second is called, where that is a quantity of its own.
        path: Where it is in what was read; None for its name.
        lack: Whether it says what others lack, so that whoever lacks nothing needs no line.
    """

    name: str
    what: str
    layout: int = 0
    origin: str = "kernel"
    scope: str = "job"
    grows: bool = False
    quantum: float | None = None
    heading: str = ""
    metric: str | None = None
    label: str = ""
    rate: str = ""
    path: str | None = None
    lack: bool = False

    @cached_property
    def unit(self) -> str:
        """The unit that its name ends with: `s`, `bytes`, `j`, `g`, `w`; else empty."""
        end = self.name.rpartition("_")[2]
        return end if end in _UNITS else ""

    @property
    def source(self) -> str:
        """Where it is in what was read."""
        return self.name if self.path is None else self.path

    @property
    def finest(self) -> float:
        """How finely the store keeps it, if it is a counter."""
        return _UNITS.get(self.unit, ("", 1.0))[1] if self.quantum is None else self.quantum

    @cached_property
    def digits(self) -> int:
        """With how many decimals metrics write it: what is counted one by one has none."""
        if self.unit == "bytes" or (not self.unit and (self.grows or self.scope == "node")):
            return 0
        return 6 if self.unit == "g" else 3

    @cached_property
    def metric_name(self) -> str:
        """What metrics call it, with its unit; empty without a metric."""
        plain = self.name.removesuffix(f"_{self.unit}") if self.metric is None else self.metric
        unit, total = _UNITS.get(self.unit, ("",))[0], "total" if self.grows else ""
        parts = (f"lowtide_{self.scope}", plain, unit, total)
        return "_".join(part for part in parts if part) if plain else ""

    @property
    def is_of_gpus(self) -> bool:
        """Whether only jobs with GPUs have it."""
        return "gpu" in self.name

    @property
    def is_reservation(self) -> bool:
        """Whether it says what is kept for a job, used or not."""
        return self.name.startswith("reserved_")

    @property
    def column(self) -> str:
        """What the store calls it: of what the kernel counts for a node it keeps the growth."""
        return self.rate if self.scope == "node" and self.origin == "kernel" else self.name

    @property
    def is_counter(self) -> bool:
        """Whether the store keeps it as a counter."""
        return self.grows and self.column == self.name


def _counted(name: str, what: str, layout: int = 0, **more: Any) -> Quantity:
    """Return what the kernel counts for a job."""
    return Quantity(name, what, layout, "kernel", grows=True, **more)


def _added(name: str, what: str, layout: int, **more: Any) -> Quantity:
    """Return what the watcher adds up for a job."""
    return Quantity(name, what, layout, "added", grows=True, **more)


def _waited(name: str, heading: str) -> Quantity:
    what = "Time in which something of the job waited for it."
    more = {"label": f'resource="{name}"', "path": f"limits.{name}_wait_s"}
    return _counted(f"{name}_wait_s", what, 3, metric="pressure", heading=heading, **more)


def _emitted(name: str, heading: str, kind: str) -> Quantity:
    what, label = "Emissions charged to the job, PUE included.", f'kind="{kind}"'
    return _added(name, what, 1, metric="emissions", heading=heading, label=label)


def _moved(name: str, what: str, layout: int, heading: str, of: str = "") -> Quantity:
    return _counted(name, what, layout, heading=heading, rate=f"{name}_per_s", path=f"{of}{name}")


# Of jobs. What the store began to keep together stays in this order there.
JOB = (
    _counted("cpu_s", "CPU time that the job used.", 1, quantum=1e-4, rate="cpus_busy"),
    _counted("system_s", "The part of it that was spent in the kernel.", metric=""),
    Quantity("cpus_busy", "CPUs that the job keeps busy.", origin="made"),
    Quantity("processes", "How many processes the job has.", origin="held", metric=""),
    Quantity("memory_bytes", "Memory that the job holds.", 1, "held"),
    _moved("read_bytes", "Read from storage.", 1, "Read"),
    _moved("written_bytes", "Written to storage.", 1, "Written"),
    _moved(
        "received_bytes", "Received over a network of the job's own.", 3, "Received", "traffic."
    ),
    _moved("sent_bytes", "Sent over a network of the job's own.", 3, "Sent", "traffic."),
    _waited("cpu", "CPUWait"),
    _waited("memory", "MemWait"),
    _waited("io", "IOWait"),
    _counted("major_faults", "Pages that had to be read from storage.", 5, heading="MajFaults"),
    Quantity("gpus_busy", "GPUs that the job keeps busy.", 1, "gpus"),
    Quantity("gpu_memory_bytes", "Memory that the job holds on GPUs.", 1, "gpus"),
    Quantity("power_w", "Power charged to the job.", origin="power"),
    Quantity(
        "gpu_w", "The part of the job's power that its GPUs draw.", 1, "power", metric="gpu_power"
    ),
    Quantity("reserved_cpus", "CPUs kept for the job.", 1, "held"),
    Quantity("reserved_bytes", "Memory kept for the job.", 1, "held", metric="reserved_memory"),
    Quantity("reserved_gpus", "GPUs that the job holds.", 1, "gpus"),
    _added("energy_j", "Energy charged to the job.", 1, rate="power_w"),
    _added(
        "measured_j",
        "The part of the job's energy that was measured; the rest is estimated.",
        1,
        metric="measured_energy",
    ),
    _emitted("carbon_g", "CO2e", "average"),
    _emitted("marginal_g", "MarginalCO2e", "marginal"),
    _emitted("embodied_g", "EmbodiedCO2e", "embodied"),
    _added(
        "unmetered_s",
        "Time in which nobody could tell what the job drew: its energy lacks that.",
        3,
        lack=True,
    ),
    _added(
        "unpriced_j",
        "Energy whose emissions nobody can tell: the job's grams lack that.",
        3,
        metric="unpriced_energy",
        lack=True,
    ),
    # CPU time that a control group counted while nobody watched is told apart: nobody knows when.
    Quantity(
        "unwatched_cpu_s",
        "CPU time from while nobody watched.",
        3,
        "made",
        grows=True,
        quantum=1e-4,
        metric="",
    ),
)


def _node(name: str, what: str, layout: int = 0, path: str | None = None, **more: Any) -> Quantity:
    """Return what a tick says of the node."""
    return Quantity(name, what, layout, "tick", "node", path=path, **more)


def _sum(name: str, what: str, layout: int, path: str, **more: Any) -> Quantity:
    """Return what is added up for the node."""
    return _node(name, what, layout, path, grows=True, **more)


def _rate(name: str, what: str, rate: str, **more: Any) -> Quantity:
    """Return what the kernel counts for the node."""
    more = {"path": f"node.{name}"} | more
    return Quantity(name, what, 2, "kernel", "node", grows=True, rate=rate, **more)


def _stalled(name: str) -> Quantity:
    what, label = "Time since boot in which something waited for it.", f'resource="{name}"'
    more = {"metric": "pressure", "label": label, "path": f"node.pressure_s.{name}"}
    return _rate(f"{name}_wait_s", what, f"{name}_pressure", **more)


_AVERAGE = 'kind="average"'
_IDLE, _NOBODYS = "The part of it that was idle.", "The part of it that nobody is charged with."
# Of the node: where in a tick each is.
NODE = (
    _node("node_w", "What the node draws, PUE left out.", path="shares.node_w", metric="power"),
    _node(
        "idle_w",
        "The part of it that nobody has reserved.",
        path="shares.idle_w",
        metric="idle_power",
    ),
    _node(
        "unattributed_w",
        "The part of it that nobody can be charged with.",
        path="shares.unattributed_w",
        metric="unattributed_power",
    ),
    _node(
        "measured_w",
        "The part of it that meters measured; the rest is estimated.",
        path="shares.node_measured_w",
        metric="measured_power",
    ),
    _sum(
        "energy_j", "What the node drew since watching began.", 2, "node_energy_j", rate="power_w"
    ),
    _sum("idle_j", _IDLE, 2, "idle_energy_j", metric="idle_energy", rate="idle_w"),
    _sum(
        "unattributed_j",
        _NOBODYS,
        2,
        "unattributed_energy_j",
        metric="unattributed_energy",
        rate="unattributed_w",
    ),
    # The store adds this up, from what was measured at each tick.
    _sum("measured_j", "The part of it that was measured.", 2, "", metric=""),
    _sum(
        "carbon_g",
        "What the node emitted since watching began, PUE included.",
        4,
        "node_carbon_g",
        metric="emissions",
        label=_AVERAGE,
    ),
    _sum("idle_g", _IDLE, 4, "idle_carbon_g", metric="idle_emissions", label=_AVERAGE),
    _sum(
        "unattributed_g",
        _NOBODYS,
        4,
        "unattributed_carbon_g",
        metric="unattributed_emissions",
        label=_AVERAGE,
    ),
    _sum(
        "unmetered_s",
        "Time in which nobody could tell what the node drew: its energy lacks that.",
        4,
        "node_unmetered_s",
    ),
    _sum(
        "unpriced_j",
        "Energy whose emissions nobody can tell: the node's grams lack that.",
        4,
        "node_unpriced_j",
        metric="unpriced_energy",
    ),
    _node("cpus", "Hardware threads.", 2, "node.cpus"),
    _rate("busy_s", "CPU time in use since boot.", "cpus_busy", metric="cpu"),
    _node("cpus_reserved", "CPUs kept for jobs.", 2, metric=""),
    _node("memory_bytes", "All memory.", 2, "node.memory_bytes"),
    _node(
        "available_bytes",
        "Memory that could still be had.",
        path="node.available_bytes",
        metric="available_memory",
    ),
    _node("memory_used_bytes", "Memory in use.", 2, metric=""),
    _rate("read_bytes", "Read from storage since boot.", "read_bytes_per_s"),
    _rate("written_bytes", "Written to storage since boot.", "written_bytes_per_s"),
    _rate("received_bytes", "Received over the network since boot.", "received_bytes_per_s"),
    _rate("sent_bytes", "Sent over the network since boot.", "sent_bytes_per_s"),
    _stalled("cpu"),
    _stalled("memory"),
    _stalled("io"),
    _node("gpus", "GPUs, instances as parts of one.", 2, "gpu_count", metric=""),
    _node("gpus_busy", "GPUs that are busy.", 2, "cards_busy", metric=""),
    _node("gpu_memory_bytes", "Memory in use on GPUs.", 2, "cards_bytes", metric=""),
    _node("gpu_memory_total_bytes", "All memory of GPUs.", 2, "cards_total_bytes", metric=""),
    _node("intensity_g_per_kwh", "What a kilowatt-hour emits.", 2, metric=""),
    _node("jobs", "What runs on the node.", 2, "unit_count", metric=""),
    _node("marginal_g_per_kwh", "What one more kilowatt-hour emits.", 4, metric=""),
    _node("pue", "What the building draws for each watt of the node's.", 4, metric=""),
)


def value_of(made: Any, path: str) -> float:
    """Return what is at some path; NaN where nothing is known of it."""
    for name in path.split("."):
        made = made.get(name, math.nan) if type(made) is dict else getattr(made, name)
    return float(made)


def names_of(*origins: str) -> tuple[str, ...]:
    """Return the names of what is known of jobs from somewhere."""
    return tuple(each.name for each in JOB if each.origin in origins)


# What the kernel counts for each job and a tick counts on, and what the watcher adds up.
COUNTED = tuple(each.name for each in JOB if each.origin == "kernel" and each.layout)
ADDED = names_of("added")
# What programs are told of each job.
TOLD = tuple(each.name for each in JOB if each.metric_name and each.origin != "power")


if TYPE_CHECKING:

    class Quantities:
        """A value, or a column of them, for each of some quantities, besides what is declared."""

        __dataclass_fields__: ClassVar[dict[str, Any]]

        def __init__(self, **values: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:

    class Quantities:
        """A value, or a column of them, for each of some quantities, besides what is declared."""

        __slots__ = ()


def with_columns(
    *names: str, kind: str = "FloatArray", default: object = None, after: str = ""
) -> Callable[[Class], Class]:
    """Return what makes a frozen dataclass of a class, with a field for each quantity besides.

    Args:
        kind: Their type, in words.
        default: What the fields are where nothing is given.
        after: Behind which field they stand; by default behind all.
    """

    def made(declared: Class) -> Class:
        ours = dict.fromkeys(names, kind)
        fields: dict[str, Any] = {}
        for field, its_kind in declared.__annotations__.items():
            fields |= {field: its_kind} | (ours if field == after else {})
        declared.__annotations__ = fields | ours
        for name in names:
            setattr(declared, name, default)
        as_dataclass: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
        return cast(Class, as_dataclass(declared))

    return made


def fill_unknown(made: Quantities, names: tuple[str, ...], count: int) -> None:
    """Fill in columns that nobody gave: unknown for all units."""
    for name in names:
        if getattr(made, name) is None:
            object.__setattr__(made, name, np.full(count, math.nan))
