"""The text that Prometheus reads (exposition format 0.0.4), written a column at a time.

A thousand jobs make a page of nineteen thousand lines. So the labels of a job are written once and
kept, and each metric is one join over all jobs, not a call per line. Most of the time would go into
the digits of numbers: of many, all are taken apart at once, three digits at a time.

Counters carry the moment at which they were read. A scraper that takes them for values of the
moment at which it asks would see a constant load go up and down with the time between the two.
Gauges carry none: a scraper forgets a gauge at once when it leaves the page, but keeps what has a
time for another five minutes, and the power of jobs that are over would be added up with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from lowtide.monitor.snapshot import FloatArray, Unit
from lowtide.monitor.tick import Tick

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# What a terminal or a parser may trip over; the format itself has escapes for three of them.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f\\"\ud800-\udfff]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
# Whole numbers below this are exact, and so is what is left of them after a division.
_EXACT = 2.0**52
# Fewer numbers than this are written sooner one by one.
_MANY = 50
# Three digits as they stand behind others, behind the point, and at the end and further to the
# front of a whole number; in the last two from 1000 on where others precede them.
_PLAIN, _PADDED = [str(number) for number in range(1000)], [f"{n:03}" for n in range(1000)]
_BEHIND = np.array(_PADDED, dtype=object)
_POINTED = np.array([f".{digits}" for digits in _PADDED], dtype=object)
_LAST = np.array([*_PLAIN, *_PADDED], dtype=object)
_FURTHER = np.array(["", *_PLAIN[1:], *_PADDED], dtype=object)


def escape(value: str) -> str:
    r"""Return a label's value as it may stand between quotes.

    >>> print(escape('a "quoted" name\n'))
    a \"quoted\" name\n
    >>> print(escape("\x1b[31m"))  # no escape of the format, so its number is written out
    \\x1b[31m
    """
    return _UNSAFE.sub(_escaped, value)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPES.get(character) or rf"\\x{ord(character):02x}"


def labels(**values: str) -> str:
    """Return labels up to where more may follow: an opened brace that the line closes.

    >>> labels(host="n1", job_id="42")
    '{host="n1",job_id="42"'
    """
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """Some lines of one metric.

    Attributes:
        labels: The labels of each line, as `labels` makes them.
        values: The value of each; lines without a finite one are left out.
        more: A label that all of them have besides, such as `kind="average"`.
        digits: Decimals.
    """

    labels: Sequence[str]
    values: FloatArray
    more: str = ""
    digits: int = 3


def gauge(name: str, help_text: str, *series: MetricSeries) -> str:
    """Return a metric that tells of now, with its heading; nothing where it has no lines."""
    return _family(name, "gauge", help_text, series, stamp="")


def counter(name: str, help_text: str, *series: MetricSeries, at: float) -> str:
    """Return a metric that only grows, with its heading; nothing where it has no lines.

    Args:
        at: When it had these values, epoch seconds.
    """
    return _family(name, "counter", help_text, series, stamp=f" {round(at * 1000)}")


def alone(of: str, value: float, *, more: str = "", digits: int = 3) -> MetricSeries:
    """Return the line of a metric that has one line.

    Args:
        of: Its labels, as `labels` makes them.
    """
    return MetricSeries(labels=[of], values=np.array([value]), more=more, digits=digits)


def _family(
    name: str, kind: str, help_text: str, series: Sequence[MetricSeries], *, stamp: str
) -> str:
    body = "".join(_lines(name, each, stamp) for each in series)
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n{body}" if body else ""


def _lines(name: str, series: MetricSeries, stamp: str) -> str:
    values, found = series.values, series.labels
    known = np.isfinite(values)
    if not known.all():
        values, found = values[known], list(compress(found, known))
    if not len(found):
        return ""
    numbers = _written(values, series.digits)
    step = 3 + len(numbers)
    closing = f",{series.more}}} " if series.more else "} "
    pieces = [closing] * (step * len(found))
    pieces[::step] = found
    for place, each in enumerate(numbers, 2):
        pieces[place::step] = each
    pieces[step - 1 :: step] = [f"{stamp}\n{name}"] * len(found)
    pieces[-1] = f"{stamp}\n"
    return name + "".join(pieces)


def _written(values: FloatArray, digits: int) -> list[list[str]]:
    """Return the digits of numbers in one or more pieces, each as a list over all numbers.

    Args:
        digits: Decimals; rounded as formatting does, to the nearest of what the number really is.
    """
    scale = 10.0**digits
    if (
        len(values) < _MANY
        or digits % 3
        or np.signbit(values).any()
        or (values >= _EXACT / scale).any()
    ):
        if digits == 0:
            return [[str(round(value)) for value in values.tolist()]]
        return [[f"{value:.{digits}f}" for value in values.tolist()]]
    scaled = values * scale
    rest = np.rint(scaled)
    # Where the product is half a step off, it may itself have been rounded to there.
    for place in np.flatnonzero(np.abs(np.abs(scaled - rest) - 0.5) <= scaled * 2.0**-52):
        rest[place] = float(f"{values[place]:.{digits}f}".replace(".", ""))
    rest = rest.astype(np.int64)
    pieces = []
    tables = [_BEHIND] * (digits // 3 - 1) + [_POINTED] * (digits > 0)
    for table in tables:
        rest, last = np.divmod(rest, 1000)
        pieces.append(table[last].tolist())
    table = _LAST
    while True:
        rest, last = np.divmod(rest, 1000)
        more = rest > 0
        pieces.append(table[last + 1000 * more].tolist())
        if not more.any():
            return pieces[::-1]
        table = _FURTHER


# The same figures under the names that CEEMS gives them, for dashboards that ask for those.
#
# Its compute units are the jobs of a resource manager, and their number divides what all of them
# share. So services, containers and processes of nobody's are left out here: with them every figure
# that is computed per job would be another one.

# Their queries match one series of the number of units per host, so that there is one manager.
_MANAGER = "slurm"

# The names that CEEMS gives the power of a whole node, by the meter that measured it: today's, and
# those of its earlier releases, which rules that were made with them ask for.
_HOST_POWER = {
    "ipmi": ("ceems_ipmi_dcmi_power_current_watts", "ceems_ipmi_dcmi_current_watts"),
    "redfish": ("ceems_redfish_power_current_watts", "ceems_redfish_current_watts"),
    "cray": ("ceems_cray_pm_counters_power_watts",),
}

# What a counter of RAPL counts for (`package`, `dram`), where it is, and its joules.
RaplCount = tuple[str, str, float]


def is_compute_unit(unit: Unit) -> bool:
    """Say whether CEEMS would show a unit."""
    return unit.source == _MANAGER


def ceems_labels(host: str, unit: Unit, cluster: str = "") -> str:
    """Return the labels of a job.

    Args:
        cluster: Its cluster, where that is another than the machine's.
    """
    name = unit.node_name or cluster
    return labels(manager=_MANAGER, hostname=host, cgrouphostname=name, uuid=unit.job_id)


def ceems_node(tick: Tick, *, rapl: Sequence[RaplCount] = (), zone: str = "") -> str:
    """Return what CEEMS would say of the node.

    Args:
        zone: Where on the grid the node is, empty where not known.
    """
    grams = labels(provider="lowtide", provider_name="lowtide", country_code=zone, country=zone)
    intensity = alone(grams, tick.intensity_g_per_kwh)
    return "".join(
        [
            _node(tick),
            _host_power(tick),
            *(_rapl(tick, kind, rapl) for kind in ("package", "dram")),
            gauge("ceems_emissions_gCo2_kWh", "Intensity.", intensity),
        ]
    )


def ceems_units(tick: Tick, places: npt.NDArray[np.intp], names: Sequence[str]) -> str:
    """Return what CEEMS would say of the jobs."""
    count = alone(labels(manager=_MANAGER, hostname=tick.host), float(len(places)), digits=0)
    parts = [gauge("ceems_compute_units", "Jobs on the node.", count)]
    cpu_s = tick.cpu_s
    # Where the two are not told apart all of it is under `user`: their queries add them up.
    system_s = np.where(np.isnan(tick.system_s), 0.0 * cpu_s, tick.system_s)
    # Without a limit of its own a job may have all memory.
    limit = np.where(np.isnan(tick.reserved_bytes), tick.node.memory_bytes, tick.reserved_bytes)
    for name, what, values in (
        ("cpu_user_seconds_total", "CPU time outside of the kernel.", cpu_s - system_s),
        ("cpu_system_seconds_total", "CPU time in the kernel.", system_s),
    ):
        series = MetricSeries(labels=names, values=values[places], digits=6)
        parts.append(counter(f"ceems_compute_unit_{name}", what, series, at=tick.time))
    for name, what, values, digits in (
        ("cpus", "CPUs kept for the job.", tick.reserved_cpus, 3),
        ("memory_used_bytes", "Memory that the job holds.", tick.memory_bytes, 0),
        ("memory_total_bytes", "Memory that the job may have.", limit, 0),
    ):
        series = MetricSeries(labels=names, values=values[places], digits=digits)
        parts.append(gauge(f"ceems_compute_unit_{name}", what, series))
    return "".join(parts)


def _node(tick: Tick) -> str:
    of, node = labels(hostname=tick.host), tick.node
    # Where modes are not told apart all that is in use is under `user`.
    spent = node.mode_s or {"user": node.busy_s}
    modes = MetricSeries(
        labels=[labels(hostname=tick.host, mode=name) for name in spent],
        values=np.array([*spent.values()], dtype=np.float64),
    )
    what = "CPU time by what it went to."
    return counter("ceems_cpu_seconds_total", what, modes, at=tick.time) + "".join(
        gauge(f"ceems_{name}", said, alone(of, value, digits=0))
        for name, said, value in (
            ("cpu_count", "Hardware threads.", node.cpus),
            ("cpu_per_core_count", "Hardware threads in a core.", node.threads_per_core),
            ("meminfo_MemTotal_bytes", "All memory.", node.memory_bytes),
            ("meminfo_MemAvailable_bytes", "Memory to be had.", node.available_bytes),
        )
    )


def _host_power(tick: Tick) -> str:
    """Return the power of the node by the name of the meter that measured all of it."""
    if "node" not in tick.shares.sees:
        return ""
    one = alone(labels(hostname=tick.host), tick.shares.node_w)
    meter = next((each for each in _HOST_POWER if tick.meters.get(each)), "")
    return "".join(gauge(name, "What the node draws.", one) for name in _HOST_POWER.get(meter, ()))


def _rapl(tick: Tick, kind: str, counts: Sequence[RaplCount]) -> str:
    found = [(path, joules) for each, path, joules in counts if each == kind]
    series = MetricSeries(
        labels=[
            labels(hostname=tick.host, index=str(place), path=path)
            for place, (path, _) in enumerate(found)
        ],
        values=np.array([joules for _, joules in found], dtype=np.float64),
        digits=6,
    )
    what = "Energy as the kernel counts it, from 0 again when the counter is full."
    return counter(f"ceems_rapl_{kind}_joules_total", what, series, at=tick.time)
