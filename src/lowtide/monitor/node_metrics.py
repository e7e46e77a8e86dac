"""What the page of metrics says about the node itself and its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowtide.monitor.text_format import Series, alone, counter, gauge, labels
from lowtide.monitor.tick import Tick


def node_page(tick: Tick) -> str:
    """Return the metrics of the node."""
    return "".join([*_now(tick), *_so_far(tick), *_grid(tick), *_meters(tick), *_gpus(tick)])


def _now(tick: Tick) -> Iterator[str]:
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
        (
            "measured_power_watts",
            "The part of it that meters measured; the rest is estimated.",
            shares.node_measured_w,
        ),
        ("power_measured", "1 if meters measured all of it, otherwise 0.", shares.measured),
        ("cpus", "Hardware threads.", node.cpus),
        ("memory_bytes", "All memory.", node.memory_bytes),
        ("available_memory_bytes", "Memory that could still be had.", node.available_bytes),
    ):
        digits = 3 if name.endswith("watts") else 0
        yield gauge(f"lowtide_node_{name}", what, alone(of, value, digits=digits))


def _so_far(tick: Tick) -> Iterator[str]:
    of, node = labels(host=tick.host), tick.node
    for name, what, value in (
        ("energy_joules", "What the node drew since watching began.", tick.node_energy_j),
        ("idle_energy_joules", "The part of it that was idle.", tick.idle_energy_j),
        (
            "unattributed_energy_joules",
            "The part of it that nobody is charged with.",
            tick.unattributed_energy_j,
        ),
        (
            "unmetered_seconds",
            "Time in which nobody could tell what the node drew: its energy lacks that.",
            tick.node_unmetered_s,
        ),
        (
            "unpriced_energy_joules",
            "Energy whose emissions nobody can tell: the node's grams lack that.",
            tick.node_unpriced_j,
        ),
        ("cpu_seconds", "CPU time in use since boot.", node.busy_s),
        ("read_bytes", "Read from storage since boot.", node.read_bytes),
        ("written_bytes", "Written to storage since boot.", node.written_bytes),
        ("received_bytes", "Received over the network since boot.", node.received_bytes),
        ("sent_bytes", "Sent over the network since boot.", node.sent_bytes),
    ):
        digits = 0 if name.endswith("bytes") else 3
        one = alone(of, value, digits=digits)
        yield counter(f"lowtide_node_{name}_total", what, one, at=tick.time)
    sockets = [labels(host=tick.host, socket=str(n)) for n in range(len(tick.package_energy_j))]
    yield counter(
        "lowtide_node_socket_energy_joules_total",
        "What each CPU socket drew since watching began.",
        Series(labels=sockets, values=np.array(tick.package_energy_j, dtype=np.float64)),
        at=tick.time,
    )
    drawn, what = "lowtide_node_dram_energy_joules_total", "What memory drew since watching began."
    yield counter(drawn, what, alone(of, tick.dram_energy_j), at=tick.time)
    waited = [labels(host=tick.host, resource=name) for name in node.pressure_s]
    yield counter(
        "lowtide_node_pressure_seconds_total",
        "Time since boot in which something waited for it.",
        Series(labels=waited, values=np.array([*node.pressure_s.values()], dtype=np.float64)),
        at=tick.time,
    )


def _grid(tick: Tick) -> Iterator[str]:
    average = labels(host=tick.host, kind="average")
    for name, what, value in (
        ("", "What the node emitted since watching began, PUE included.", tick.node_carbon_g),
        ("idle_", "The part of it that was idle.", tick.idle_carbon_g),
        (
            "unattributed_",
            "The part of it that nobody is charged with.",
            tick.unattributed_carbon_g,
        ),
    ):
        metric = f"lowtide_node_{name}emissions_grams_total"
        yield counter(metric, what, alone(average, value, digits=6), at=tick.time)
    yield gauge(
        "lowtide_intensity_grams_per_kwh",
        "What a kilowatt-hour emits now.",
        Series(
            labels=[average, labels(host=tick.host, kind="marginal")],
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
    yield gauge("lowtide_meter_answers", what, Series(labels=of, values=answered, digits=0))


def _gpus(tick: Tick) -> Iterator[str]:
    cards = [labels(host=tick.host, gpu=gpu.name, uuid=gpu.uuid) for gpu in tick.gpus]
    for name, what, found, digits in (
        ("busy_ratio", "How busy the GPU is.", [gpu.busy for gpu in tick.gpus], 3),
        ("memory_bytes", "Memory in use.", [gpu.memory_bytes for gpu in tick.gpus], 0),
        ("memory_size_bytes", "All its memory.", [gpu.total_bytes for gpu in tick.gpus], 0),
    ):
        values = np.array(found, dtype=np.float64)
        series = Series(labels=cards, values=values, digits=digits)
        yield gauge(f"lowtide_gpu_{name}", what, series)
