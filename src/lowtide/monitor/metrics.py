"""The page of metrics that a scraper reads: what the node and every job use, draw and emit.

Energy that was measured has a counter of its own beside the counter of all energy. A label would
have been the other way, but a label that changes while a job runs makes another series of it, and
counters start again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowtide.errors import UnknownName
from lowtide.monitor.prometheus import (
    MetricSeries,
    RaplCount,
    alone,
    ceems_labels,
    ceems_node,
    ceems_units,
    counter,
    gauge,
    is_compute_unit,
    labels,
)
from lowtide.monitor.quantities import JOB, NODE, Quantity, value_of
from lowtide.monitor.snapshot import FloatArray, Unit
from lowtide.monitor.tick import Tick

COUNTERS = tuple(each for each in JOB if each.grows and each.metric_name)
GAUGES = tuple(each for each in JOB if not each.grows and each.metric_name)


_OF_NODE = tuple(each for each in NODE if each.metric_name)


def _values(quantity: Quantity, tick: Tick) -> FloatArray:
    found = tick.column(quantity.name)
    return np.where(tick.reserved_gpus > 0, found, np.nan) if quantity.is_of_gpus else found


def _families(found: Iterable[tuple[Quantity, MetricSeries]], *, at: float) -> Iterator[str]:
    """Yield metrics, those of one name together."""
    together: dict[str, tuple[Quantity, list[MetricSeries]]] = {}
    for quantity, series in found:
        together.setdefault(quantity.metric_name, (quantity, []))[1].append(series)
    for name, (quantity, lines) in together.items():
        if quantity.grows:
            yield counter(name, quantity.what, *lines, at=at)
        else:
            yield gauge(name, quantity.what, *lines)


def node_page(tick: Tick) -> str:
    """Return the metrics of the node."""
    return "".join([*_node(tick), *_grid(tick), *_meters(tick), *_gpus(tick)])


def _node(tick: Tick) -> Iterator[str]:
    of = labels(host=tick.host)
    lines = (
        (each, alone(of, value_of(tick, each.source), more=each.label, digits=each.digits))
        for each in _OF_NODE
    )
    yield from _families(lines, at=tick.time)
    what = "1 if meters measured all of it, otherwise 0."
    yield gauge("lowtide_node_power_measured", what, alone(of, tick.shares.measured, digits=0))
    sockets = [labels(host=tick.host, socket=str(n)) for n in range(len(tick.package_energy_j))]
    yield counter(
        "lowtide_node_socket_energy_joules_total",
        "What each CPU socket drew since watching began.",
        MetricSeries(labels=sockets, values=np.array(tick.package_energy_j, dtype=np.float64)),
        at=tick.time,
    )
    drawn, what = "lowtide_node_dram_energy_joules_total", "What memory drew since watching began."
    yield counter(drawn, what, alone(of, tick.dram_energy_j), at=tick.time)


def _grid(tick: Tick) -> Iterator[str]:
    yield gauge(
        "lowtide_intensity_grams_per_kwh",
        "What a kilowatt-hour emits now.",
        MetricSeries(
            labels=[labels(host=tick.host, kind=kind) for kind in ("average", "marginal")],
            values=np.array([tick.intensity_g_per_kwh, tick.marginal_g_per_kwh]),
        ),
    )
    made_up = alone(labels(host=tick.host), float(tick.synthetic), digits=0)
    what = "1 where the intensity, and all grams with it, come from a model and not from a grid."
    yield gauge("lowtide_grid_synthetic", what, made_up)
    what = "What the building draws for each watt of the node's."
    yield gauge("lowtide_pue_ratio", what, alone(labels(host=tick.host), tick.pue))


def _meters(tick: Tick) -> Iterator[str]:
    of = [labels(host=tick.host, meter=name) for name in tick.meters]
    answered = np.array([*tick.meters.values()], dtype=np.float64)
    what = "1 if the meter said something new within the last minute, otherwise 0."
    yield gauge("lowtide_meter_answers", what, MetricSeries(labels=of, values=answered, digits=0))


def _gpus(tick: Tick) -> Iterator[str]:
    cards = [labels(host=tick.host, gpu=gpu.name, uuid=gpu.uuid) for gpu in tick.gpus]
    for name, what, found, digits in (
        ("busy_ratio", "How busy the GPU is.", [gpu.busy for gpu in tick.gpus], 3),
        ("memory_bytes", "Memory in use.", [gpu.memory_bytes for gpu in tick.gpus], 0),
        ("memory_size_bytes", "All its memory.", [gpu.total_bytes for gpu in tick.gpus], 0),
    ):
        values = np.array(found, dtype=np.float64)
        series = MetricSeries(labels=cards, values=values, digits=digits)
        yield gauge(f"lowtide_gpu_{name}", what, series)


COMPATIBLE = ("ceems",)

# A service that runs every hour goes on in its series. So what has ended is remembered for longer
# than it is shown; not all of it, or a node with a million jobs would need memory for each.
_MOST_REMEMBERED = 1000
# Less than this of what a job lacks is rounding.
_LACKS = 5e-4


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """What is told of a tick, by whom it is about.

    A page of a thousand jobs is two megabytes, and to lay it out in one piece takes memory anew
    each time, a tenth of what it takes to write it. So it stays in pieces until somebody asks.

    Attributes:
        node: The machine itself, which anybody may read.
        pieces: Who runs what on it, which not everybody may, in order.
    """

    node: bytes
    pieces: tuple[bytes, ...]

    @property
    def jobs(self) -> bytes:
        """What not everybody may read, in one piece."""
        return b"".join(self.pieces)

    @property
    def whole(self) -> bytes:
        """All of it."""
        return b"".join((self.node, *self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """What went by some name and is over: until when it is shown, and where its counters are."""

    until: float
    since: float
    counters: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """The labels of a unit as they stand in the page: on most lines, with its name, for CEEMS."""

    job: str
    named: str
    ceems: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What is shown of the units, and stays the same as long as none comes or goes.

    Attributes:
        labels: The series, each with the labels of a unit.
        places: The unit that speaks for each: the youngest of that name.
        series: For each unit its series; None where each has one of its own.
        before: What others of that name had counted before, a row per counter; None for nothing.
        since: From when on each counts.
        compute_units: The units that CEEMS would show, and their labels there.
        facts: What never changes, as text.
    """

    labels: list[str]
    places: npt.NDArray[np.intp]
    series: npt.NDArray[np.intp] | None
    before: FloatArray | None
    since: list[float]
    compute_units: tuple[npt.NDArray[np.intp], list[str]]
    facts: str

    def together(self, values: FloatArray) -> FloatArray:
        """Return one value per series: the sum over the units that have its labels.

        Args:
            values: One per unit, in the last axis.
        """
        if self.series is None:
            return values
        known = ~np.isnan(values.T)
        sums, counts = np.zeros((2, len(self.labels), *values.shape[:-1]))
        np.add.at(sums, self.series, np.where(known, values.T, 0.0))
        np.add.at(counts, self.series, known)
        return np.where(counts > 0, sums, np.nan).T


@dataclass(slots=True, kw_only=True)
class Exposition:
    """A page that is written anew at every tick, and remembers what it needs for that.

    A job that is over stays for a while with its last counters, so that a scraper that comes by
    now and then learns how they ended; what it draws and holds is gone at once. Whatever goes by
    its name and number later counts on from there: a counter that fell without a restart of the
    watcher would lose what it had counted in between.

    Attributes:
        compat: Names of other systems to write besides, of `COMPATIBLE`.
        zone: Where on the grid the node is, empty where not known; for CEEMS.
        rapl: The energy counters of sockets and memory as they are now; for CEEMS.
        keep_s: How long a job that is over is shown.
    """

    compat: Sequence[str] = ()
    zone: str = ""
    rapl: Sequence[RaplCount] = ()
    keep_s: float = 300.0
    _units: tuple[Unit, ...] = field(default=(), init=False)
    _counters: FloatArray = field(default_factory=lambda: np.empty((len(COUNTERS), 0)), init=False)
    # The cluster whose jobs bear no label that says so.
    _home: str = field(default="", init=False)
    _written: dict[Unit, _Labels] = field(default_factory=dict, init=False)
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _shown: _Shown | None = field(default=None, init=False)
    _ended: dict[str, _Ended] = field(default_factory=dict, init=False)
    _steady: dict[str, tuple[MetricSeries, str]] = field(default_factory=dict, init=False)
    _problems: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name in self.compat:
            if name not in COMPATIBLE:
                raise UnknownName("names to be compatible with", name, COMPATIBLE)

    def render(self, tick: Tick, *, own: OwnUse | None = None) -> MetricsPage:
        """Return the page for a tick.

        Args:
            own: What watching costs, where it is to be shown.
        """
        shown = self._follow(tick)
        self._problems += len(tick.problems)
        node = [node_page(tick), *self._watch(tick, own)]
        if "ceems" in self.compat:
            node.append(ceems_node(tick, rapl=self.rapl, zone=self.zone))
        jobs = self._of_jobs(tick, shown)
        return MetricsPage(
            node="".join(node).encode(), pieces=tuple(text.encode() for text in jobs)
        )

    def _of_jobs(self, tick: Tick, shown: _Shown) -> Iterator[str]:
        """Yield what not everybody may read."""
        there = alone(labels(host=tick.host), 1, digits=0)
        yield gauge("lowtide_jobs_shown", "1 where this page tells of jobs.", there)
        yield self._holders(tick)
        yield shown.facts
        yield from self._gauges(tick, shown)
        yield from self._counts(tick, shown)
        if "ceems" in self.compat:
            yield ceems_units(tick, *shown.compute_units)

    def _follow(self, tick: Tick) -> _Shown:
        """Keep labels and what has ended in step with the units that there are."""
        if self._shown is None or self._units != tick.units:
            self._bury(tick)
            self._units = tick.units
            known = self._written
            named = [unit.cluster for unit in tick.units if unit.cluster]
            self._home = tick.cluster or self._home or min(named, default="")
            self._written = {
                unit: known.get(unit) or _write_labels(tick.host, unit, self._home)
                for unit in tick.units
            }
            self._since = {
                unit.key: self._since.get(unit.key, max(unit.started, tick.since))
                for unit in tick.units
            }
            self._shown = self._show()
        self._counters = np.stack([_values(each, tick) for each in COUNTERS])
        if len(self._ended) > _MOST_REMEMBERED:
            self._forget(tick.time)
        return self._shown

    def _bury(self, tick: Tick) -> None:
        """Remember where the counters ended of those that are no more."""
        keys = {unit.key for unit in tick.units}
        for place, unit in enumerate(self._units):
            if unit.key not in keys:
                name, since = self._written[unit].job, self._since[unit.key]
                # A copy: a part of the table would keep all of it in memory.
                counters = self._counters[:, place].copy()
                # Whoever ended last is last.
                former = self._ended.pop(name, None)
                if former is not None:
                    since = min(since, former.since)
                    counters = _plus(former.counters, counters)
                self._ended[name] = _Ended(
                    until=tick.time + self.keep_s, since=since, counters=counters
                )

    def _show(self) -> _Shown:
        """Return how the units are shown.

        A scraper refuses a page that says two things about one series, so that units with the same
        labels share one: a service that was started again, for example.
        """
        units = self._units
        written = [self._written[unit] for unit in units]
        chosen: dict[str, int] = {}
        since: dict[str, float] = {}
        for place, each in enumerate(written):
            if units[place].started >= units[chosen.setdefault(each.job, place)].started:
                chosen[each.job] = place
            since[each.job] = min(since.get(each.job, math.inf), self._since[units[place].key])
        before = None
        if any(name in self._ended for name in chosen):
            before = np.full((len(COUNTERS), len(chosen)), np.nan)
            for place, name in enumerate(chosen):
                if former := self._ended.get(name):
                    before[:, place] = former.counters
                    since[name] = min(since[name], former.since)
        series = {name: place for place, name in enumerate(chosen)}
        places = [*chosen.values()]
        computing = [place for place in places if is_compute_unit(units[place])]
        return _Shown(
            labels=list(chosen),
            places=np.array(places, dtype=np.intp),
            series=None
            if len(places) == len(units)
            else np.array([series[each.job] for each in written], dtype=np.intp),
            before=before,
            since=[since[name] for name in chosen],
            compute_units=(
                np.array(computing, dtype=np.intp),
                [written[place].ceems for place in computing],
            ),
            facts=_facts([(units[place], written[place]) for place in places]),
        )

    def _forget(self, now: float) -> None:
        shown = {each.job for each in self._written.values()}
        spare = [
            name for name, each in self._ended.items() if each.until <= now and name not in shown
        ]
        for name in spare[: len(self._ended) - _MOST_REMEMBERED]:
            del self._ended[name]

    def _gauges(self, tick: Tick, shown: _Shown) -> Iterator[str]:
        for each in GAUGES:
            values, name = _values(each, tick), each.metric_name
            # What is kept for a name is not kept twice, though two of that name may use it.
            values = values[shown.places] if each.is_reservation else shown.together(values)
            series = MetricSeries(labels=shown.labels, values=values, digits=each.digits)
            write = self._once if each.is_reservation else gauge
            yield write(name, each.what, series)

    def _once(self, name: str, what: str, series: MetricSeries) -> str:
        """Return a gauge that hardly ever changes, written only when it does."""
        before, said = self._steady.get(name, (None, ""))
        if (
            before is None
            or before.labels != series.labels
            or not np.array_equal(before.values, series.values, equal_nan=True)
        ):
            said = gauge(name, what, series)
            self._steady[name] = series, said
        return said

    def _counts(self, tick: Tick, shown: _Shown) -> Iterator[str]:
        """Yield the counters, of what is there and of what ended lately."""
        there = set(shown.labels) if self._ended else ()
        ended = {
            name: each
            for name, each in self._ended.items()
            if each.until > tick.time and name not in there
        }
        names = [*shown.labels, *ended]
        counts = shown.together(self._counters)
        if shown.before is not None:
            counts = _plus(shown.before, counts)
        if ended:
            last = np.stack([each.counters for each in ended.values()], axis=1)
            counts = np.concatenate([counts, last], axis=1)
        since = np.array([*shown.since, *(each.since for each in ended.values())])
        what = "From when on the job's energy is counted."
        begun = MetricSeries(labels=names, values=since)
        yield self._once("lowtide_job_counted_since_seconds", what, begun)
        known = (
            np.where(values > _LACKS, values, np.nan) if each.lack else values
            for each, values in zip(COUNTERS, counts, strict=True)
        )
        lines = (
            (each, MetricSeries(labels=names, values=values, more=each.label, digits=each.digits))
            for each, values in zip(COUNTERS, known, strict=True)
        )
        yield from _families(lines, at=tick.time)

    def _holders(self, tick: Tick) -> str:
        """Return which job holds which GPU, and which share of its use is the job's."""
        found: dict[str, float] = {}
        for gpu in tick.gpus:
            card = labels(gpu=gpu.name, uuid=gpu.uuid)[1:]
            for place, share in gpu.holders.items():
                name = f"{self._written[tick.units[place]].job},{card}"
                found[name] = found.get(name, 0.0) + share
        what = "The job's share of the GPU that it holds."
        series = MetricSeries(
            labels=list(found), values=np.array([*found.values()], dtype=np.float64)
        )
        return gauge("lowtide_gpu_holder", what, series)

    def _watch(self, tick: Tick, own: OwnUse | None) -> Iterator[str]:
        """Yield how watching itself is going."""
        of = labels(host=tick.host)
        rejected = "Readings that made no sense and were left out."
        for name, what, value, digits in (
            ("tick_time_seconds", "When the node was last read.", tick.time, 3),
            ("tick_length_seconds", "The time it is about.", tick.time - tick.since, 3),
            ("problems", "Things that went wrong this time.", len(tick.problems), 0),
        ):
            yield gauge(f"lowtide_{name}", what, alone(of, value, digits=digits))
        for name, what, value in (
            ("problems_total", "Things that went wrong so far.", self._problems),
            ("rejected_readings_total", rejected, tick.rejected),
        ):
            yield counter(f"lowtide_{name}", what, alone(of, value, digits=0), at=tick.time)
        if own is not None:
            spent = alone(of, own.cpu_s)
            what = "CPU time that watching took."
            yield counter("lowtide_watch_cpu_seconds_total", what, spent, at=tick.time)
            what = "Memory that watching holds."
            held = alone(of, own.resident_bytes, digits=0)
            yield gauge("lowtide_watch_resident_bytes", what, held)


def _write_labels(host: str, unit: Unit, home: str) -> _Labels:
    # Never a label `job`: a scraper has one of that name.
    job = labels(host=host, source=unit.source, job_id=unit.job_id, user=unit.user)
    other = unit.cluster if unit.cluster != home else ""
    if other:
        # Another cluster on this machine counts its jobs by itself.
        job = f"{job},{labels(cluster=other)[1:]}"
    named = f"{job},{labels(name=unit.name)[1:]}"
    return _Labels(job=job, named=named, ceems=ceems_labels(host, unit, other))


def _facts(shown: Sequence[tuple[Unit, _Labels]]) -> str:
    """Return what a job is called and when it began: once, not on every line."""
    called = MetricSeries(
        labels=[written.named for _, written in shown], values=np.ones(len(shown)), digits=0
    )
    started = np.array([unit.started for unit, _ in shown], dtype=np.float64)
    begun = MetricSeries(labels=[written.job for _, written in shown], values=started)
    return gauge("lowtide_job_info", "What the job is called.", called) + gauge(
        "lowtide_job_start_time_seconds", "When the job began.", begun
    )


def _plus(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return a sum in which what is not known counts as nothing, unless all of it is unknown."""
    return np.where(np.isnan(second), first, np.where(np.isnan(first), second, first + second))
