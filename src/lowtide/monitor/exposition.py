"""The page of metrics that a scraper reads: what every job on the node uses, draws and emits.

Energy that was measured has a counter of its own beside the counter of all energy. A label would
have been the other way, but a label that changes while a job runs makes another series of it, and
counters start again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowtide.errors import UnknownName
from lowtide.monitor.ceems import ceems_labels, ceems_page
from lowtide.monitor.snapshot import Unit
from lowtide.monitor.text_format import Series, family, labels, single
from lowtide.monitor.tick import Tick

COMPATIBLE = ("ceems",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A metric with one line per job; those of one name stand together.

    Attributes:
        name: What it is called, `lowtide_job_` left out.
        what: What it is, in words.
        of: The column of the tick, or of its shares.
        digits: Decimals.
        more: A label that its lines have besides.
        holders_only: Whether only jobs with GPUs have it.
    """

    name: str
    what: str
    of: str
    digits: int = 3
    more: str = ""
    holders_only: bool = False


_GRAMS = "Emissions charged to the job, PUE included."

_COUNTERS = (
    _Column(name="energy_joules_total", what="Energy charged to the job.", of="energy_j"),
    _Column(
        name="measured_energy_joules_total",
        what="The part of the job's energy that was measured; the rest is estimated.",
        of="measured_j",
    ),
    _Column(name="cpu_seconds_total", what="CPU time that the job used.", of="cpu_s"),
    _Column(name="read_bytes_total", what="Read from storage.", of="read_bytes", digits=0),
    _Column(name="written_bytes_total", what="Written to storage.", of="written_bytes", digits=0),
    _Column(
        name="emissions_grams_total", what=_GRAMS, of="carbon_g", digits=6, more='kind="average"'
    ),
    _Column(
        name="emissions_grams_total", what=_GRAMS, of="marginal_g", digits=6, more='kind="marginal"'
    ),
    _Column(
        name="emissions_grams_total", what=_GRAMS, of="embodied_g", digits=6, more='kind="embodied"'
    ),
)

_GAUGES = (
    _Column(name="power_watts", what="Power charged to the job.", of="power_w"),
    _Column(name="cpus_busy", what="CPUs that the job keeps busy.", of="cpus_busy"),
    _Column(name="memory_bytes", what="Memory that the job holds.", of="memory_bytes", digits=0),
    _Column(name="reserved_cpus", what="CPUs kept for the job.", of="reserved_cpus"),
    _Column(
        name="reserved_memory_bytes",
        what="Memory kept for the job.",
        of="reserved_bytes",
        digits=0,
    ),
    _Column(
        name="gpu_power_watts",
        what="The part of the job's power that its GPUs draw.",
        of="gpu_w",
        holders_only=True,
    ),
    _Column(
        name="gpus_busy", what="GPUs that the job keeps busy.", of="gpus_busy", holders_only=True
    ),
    _Column(
        name="gpu_memory_bytes",
        what="Memory that the job holds on GPUs.",
        of="gpu_memory_bytes",
        digits=0,
        holders_only=True,
    ),
    _Column(
        name="reserved_gpus", what="GPUs that the job holds.", of="reserved_gpus", holders_only=True
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnUse:
    """What watching itself costs.

    Attributes:
        cpu_s: CPU time so far.
        resident_bytes: Memory held now.
    """

    cpu_s: float
    resident_bytes: float


def own_use() -> OwnUse:
    """Return what this process has used so far."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    resident = float(found[0]) * 1024 if found else math.nan
    return OwnUse(cpu_s=time.process_time(), resident_bytes=resident)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A job that is over: until when it is shown, and where its counters ended."""

    until: float
    counters: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """The labels of a unit as they stand in the page: on most lines, with its name, for CEEMS."""

    job: str
    named: str
    ceems: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What is shown of the units: their places in the tick, labels, and what never changes."""

    places: npt.NDArray[np.intp]
    labels: list[str]
    ceems: list[str]
    facts: str


@dataclass(slots=True, kw_only=True)
class Exposition:
    """A page that is written anew at every tick, and remembers what it needs for that.

    A job that is over stays for a while with its last counters, so that a scraper that comes by
    now and then learns how they ended; what it draws and holds is gone at once.

    Attributes:
        compat: Names of other systems to write besides, of `COMPATIBLE`.
        zone: Where on the grid the node is, empty where not known.
        keep_s: How long a job that is over is shown.
    """

    compat: Sequence[str] = ()
    zone: str = ""
    keep_s: float = 300.0
    _last: Tick | None = field(default=None, init=False)
    _written: dict[Unit, _Labels] = field(default_factory=dict, init=False)
    _shown: _Shown | None = field(default=None, init=False)
    _ended: dict[str, _Ended] = field(default_factory=dict, init=False)
    _problems: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name in self.compat:
            if name not in COMPATIBLE:
                raise UnknownName("names to be compatible with", name, COMPATIBLE)

    def render(self, tick: Tick, *, own: OwnUse | None = None) -> bytes:
        """Return the page for a tick.

        Args:
            tick: What happened last.
            own: What watching costs, where it is to be shown.
        """
        shown = self._follow(tick)
        self._problems += len(tick.problems)
        parts = [*_node(tick), *self._watch(tick, own), shown.facts, *self._jobs(tick, shown)]
        if "ceems" in self.compat:
            parts.append(ceems_page(tick, shown.places, shown.ceems, zone=self.zone))
        return "".join(parts).encode()

    def _follow(self, tick: Tick) -> _Shown:
        """Keep labels and what has ended in step with the units that there are."""
        last, self._last = self._last, tick
        if self._shown is None or last is None or last.units != tick.units:
            known = self._written
            self._written = {
                unit: known.get(unit) or _write_labels(tick.host, unit) for unit in tick.units
            }
            self._shown = _show(tick.units, [self._written[unit] for unit in tick.units])
            keys = {unit.key for unit in tick.units}
            for place, unit in enumerate(last.units if last is not None else ()):
                if last is not None and unit.key not in keys:
                    counters = tuple(float(getattr(last, each.of)[place]) for each in _COUNTERS)
                    self._ended[known[unit].job] = _Ended(tick.time + self.keep_s, counters)
            # A number that is used again goes on in the same series.
            for name in self._shown.labels:
                self._ended.pop(name, None)
        for name in [name for name, ended in self._ended.items() if ended.until <= tick.time]:
            del self._ended[name]
        return self._shown

    def _jobs(self, tick: Tick, shown: _Shown) -> Iterator[str]:
        holds = tick.reserved_gpus[shown.places] > 0
        for each in _GAUGES:
            column = getattr(tick.shares if each.of.endswith("_w") else tick, each.of)
            values = column[shown.places]
            if each.holders_only:
                values = np.where(holds, values, np.nan)
            series = Series(labels=shown.labels, values=values, digits=each.digits)
            yield family(f"lowtide_job_{each.name}", "gauge", each.what, series)
        names = [*shown.labels, *self._ended]
        ended = np.array([each.counters for each in self._ended.values()])
        ended = ended.reshape(-1, len(_COUNTERS))
        together: dict[str, list[Series]] = {}
        for place, each in enumerate(_COUNTERS):
            values = np.concatenate([getattr(tick, each.of)[shown.places], ended[:, place]])
            series = Series(labels=names, values=values, more=each.more, digits=each.digits)
            together.setdefault(each.name, []).append(series)
        said = {each.name: each.what for each in _COUNTERS}
        for name, found in together.items():
            yield family(f"lowtide_job_{name}", "counter", said[name], *found)

    def _watch(self, tick: Tick, own: OwnUse | None) -> Iterator[str]:
        """Yield how watching itself is going."""
        of = labels(host=tick.host)
        for name, kind, what, value in (
            ("tick_time_seconds", "gauge", "When the page was made.", tick.time),
            ("tick_length_seconds", "gauge", "The time it is about.", tick.time - tick.since),
            ("problems", "gauge", "Things that went wrong this time.", len(tick.problems)),
            ("problems_total", "counter", "Things that went wrong so far.", self._problems),
        ):
            digits = 3 if name.endswith("seconds") else 0
            yield single(f"lowtide_{name}", kind, what, of, value, digits=digits)
        if own is not None:
            what = "CPU time that watching took."
            yield single("lowtide_watch_cpu_seconds_total", "counter", what, of, own.cpu_s)
            what = "Memory that watching holds."
            yield single(
                "lowtide_watch_resident_bytes", "gauge", what, of, own.resident_bytes, digits=0
            )


def render(tick: Tick, *, compat: Sequence[str] = ()) -> bytes:
    """Return the page of metrics for one tick.

    Args:
        tick: What happened.
        compat: Names of other systems to write besides, of `COMPATIBLE`.
    """
    return Exposition(compat=compat).render(tick)


def _write_labels(host: str, unit: Unit) -> _Labels:
    # Never a label `job`: a scraper has one of that name.
    job = labels(host=host, source=unit.source, job_id=unit.job_id, user=unit.user)
    named = f"{job},{labels(name=unit.name)[1:]}"
    return _Labels(job=job, named=named, ceems=ceems_labels(host, unit))


def _show(units: Sequence[Unit], written: Sequence[_Labels]) -> _Shown:
    """Return what stays the same as long as no unit comes or goes.

    A scraper refuses a page that says two things about one series: of two units with the same
    labels the younger is shown.
    """
    chosen: dict[str, int] = {}
    for place, each in enumerate(written):
        if units[place].started >= units[chosen.setdefault(each.job, place)].started:
            chosen[each.job] = place
    places = [*chosen.values()]
    # What it is called and when it began stand once, not on every line.
    called = Series(
        labels=[written[place].named for place in places], values=np.ones(len(places)), digits=0
    )
    started = np.array([units[place].started for place in places], dtype=np.float64)
    begun = Series(labels=list(chosen), values=started)
    return _Shown(
        places=np.array(places, dtype=np.intp),
        labels=list(chosen),
        ceems=[written[place].ceems for place in places],
        facts=family("lowtide_job_info", "gauge", "What the job is called.", called)
        + family("lowtide_job_start_time_seconds", "gauge", "When the job began.", begun),
    )


def _node(tick: Tick) -> Iterator[str]:
    of = labels(host=tick.host)
    shares, node = tick.shares, tick.node
    for name, what, value in (
        ("power_watts", "What the node draws, PUE left out.", shares.node_w),
        ("idle_power_watts", "The part of it that nobody has reserved.", shares.idle_w),
        (
            "unattributed_power_watts",
            "The part of it that nobody can be charged with.",
            shares.unattributed_w,
        ),
        ("power_measured", "1 if a meter measured it, 0 if it is estimated.", shares.measured),
        ("cpus", "Hardware threads.", node.cpus),
        ("memory_bytes", "All memory.", node.memory_bytes),
        ("available_memory_bytes", "Memory that could still be had.", node.available_bytes),
    ):
        digits = 3 if name.endswith("watts") else 0
        yield single(f"lowtide_node_{name}", "gauge", what, of, value, digits=digits)
    for name, what, value in (
        ("energy_joules", "What the node drew since watching began.", tick.node_energy_j),
        ("idle_energy_joules", "The part of it that was idle.", tick.idle_energy_j),
        (
            "unattributed_energy_joules",
            "The part of it that nobody is charged with.",
            tick.unattributed_energy_j,
        ),
        ("cpu_seconds", "CPU time in use since boot.", node.busy_s),
        ("read_bytes", "Read from storage since boot.", node.read_bytes),
        ("written_bytes", "Written to storage since boot.", node.written_bytes),
        ("received_bytes", "Received over the network since boot.", node.received_bytes),
        ("sent_bytes", "Sent over the network since boot.", node.sent_bytes),
    ):
        digits = 0 if name.endswith("bytes") else 3
        yield single(f"lowtide_node_{name}_total", "counter", what, of, value, digits=digits)
    waited = [labels(host=tick.host, resource=name) for name in node.pressure_s]
    yield family(
        "lowtide_node_pressure_seconds_total",
        "counter",
        "Time since boot in which something waited for it.",
        Series(labels=waited, values=np.array([*node.pressure_s.values()], dtype=np.float64)),
    )
    yield family(
        "lowtide_intensity_grams_per_kwh",
        "gauge",
        "What a kilowatt-hour emits now.",
        Series(
            labels=[labels(host=tick.host, kind="average")],
            values=np.array([tick.intensity_g_per_kwh]),
        ),
    )
    cards = [labels(host=tick.host, gpu=gpu.name, uuid=gpu.uuid) for gpu in tick.gpus]
    for name, what, found, digits in (
        ("busy_ratio", "How busy the GPU is.", [gpu.busy for gpu in tick.gpus], 3),
        ("memory_bytes", "Memory in use.", [gpu.memory_bytes for gpu in tick.gpus], 0),
        ("memory_size_bytes", "All its memory.", [gpu.total_bytes for gpu in tick.gpus], 0),
    ):
        values = np.array(found, dtype=np.float64)
        series = Series(labels=cards, values=values, digits=digits)
        yield family(f"lowtide_gpu_{name}", "gauge", what, series)
