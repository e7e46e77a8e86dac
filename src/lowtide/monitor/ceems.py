"""The same figures under the names that CEEMS gives them, for dashboards that ask for those.

Its compute units are the jobs of a resource manager, and their number divides what all of them
share. So services, containers and processes of nobody's are left out here: with them every figure
that is computed per job would be another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowtide.monitor.snapshot import Unit
from lowtide.monitor.text_format import Series, family, labels, single
from lowtide.monitor.tick import Tick

# Their queries match one series of the number of units per host, so that there is one manager.
_MANAGER = "slurm"

# What a counter of RAPL counts for (`package`, `dram`), where it is, and its joules.
RaplCount = tuple[str, str, float]


def is_compute_unit(unit: Unit) -> bool:
    """Say whether CEEMS would show a unit.

    Args:
        unit: The unit.
    """
    return unit.source == _MANAGER


def ceems_labels(host: str, unit: Unit) -> str:
    """Return the labels of a job.

    Args:
        host: The node's name.
        unit: The job.
    """
    return labels(manager=_MANAGER, hostname=host, cgrouphostname=unit.node_name, uuid=unit.job_id)


def ceems_page(
    tick: Tick,
    places: npt.NDArray[np.intp],
    names: Sequence[str],
    *,
    rapl: Sequence[RaplCount] = (),
    zone: str = "",
) -> str:
    """Return a tick as CEEMS would have it.

    Args:
        tick: What happened.
        places: Which units to show.
        names: The labels of each of them.
        rapl: The counters of sockets and memory.
        zone: Where on the grid the node is, empty where not known.
    """
    grams = labels(provider="lowtide", provider_name="lowtide", country_code=zone, country=zone)
    intensity = tick.intensity_g_per_kwh
    return "".join(
        [
            _units(tick, places, names),
            _node(tick),
            *(_rapl(tick.host, kind, rapl) for kind in ("package", "dram")),
            single("ceems_emissions_gCo2_kWh", "gauge", "Intensity.", grams, intensity),
        ]
    )


def _units(tick: Tick, places: npt.NDArray[np.intp], names: Sequence[str]) -> str:
    of = labels(manager=_MANAGER, hostname=tick.host)
    parts = [
        single(
            "ceems_compute_units", "gauge", "Jobs on the node.", of, float(len(places)), digits=0
        )
    ]
    cpu_s = tick.cpu_s
    system_s = 0.0 * cpu_s
    if tick.system_s is not None:
        # Where the two are not told apart all of it is under `user`: their queries add them up.
        system_s = np.where(np.isnan(tick.system_s), system_s, tick.system_s)
    # Without a limit of its own a job may have all memory.
    limit = np.where(np.isnan(tick.reserved_bytes), tick.node.memory_bytes, tick.reserved_bytes)
    for name, kind, what, values, digits in (
        (
            "cpu_user_seconds_total",
            "counter",
            "CPU time outside of the kernel.",
            cpu_s - system_s,
            6,
        ),
        ("cpu_system_seconds_total", "counter", "CPU time in the kernel.", system_s, 6),
        ("cpus", "gauge", "CPUs kept for the job.", tick.reserved_cpus, 3),
        ("memory_used_bytes", "gauge", "Memory that the job holds.", tick.memory_bytes, 0),
        ("memory_total_bytes", "gauge", "Memory that the job may have.", limit, 0),
    ):
        series = Series(labels=names, values=values[places], digits=digits)
        parts.append(family(f"ceems_compute_unit_{name}", kind, what, series))
    return "".join(parts)


def _node(tick: Tick) -> str:
    of, node = labels(hostname=tick.host), tick.node
    # Where modes are not told apart all that is in use is under `user`.
    spent = node.mode_s or {"user": node.busy_s}
    modes = Series(
        labels=[labels(hostname=tick.host, mode=name) for name in spent],
        values=np.array([*spent.values()], dtype=np.float64),
    )
    total, left = "ceems_meminfo_MemTotal_bytes", "ceems_meminfo_MemAvailable_bytes"
    return "".join(
        [
            family("ceems_cpu_seconds_total", "counter", "CPU time by what it went to.", modes),
            single("ceems_cpu_count", "gauge", "Hardware threads.", of, node.cpus, digits=0),
            single(total, "gauge", "All memory.", of, node.memory_bytes, digits=0),
            single(left, "gauge", "Memory to be had.", of, node.available_bytes, digits=0),
        ]
    )


def _rapl(host: str, kind: str, counts: Sequence[RaplCount]) -> str:
    found = [(path, joules) for each, path, joules in counts if each == kind]
    series = Series(
        labels=[
            labels(hostname=host, index=str(place), path=path)
            for place, (path, _) in enumerate(found)
        ],
        values=np.array([joules for _, joules in found], dtype=np.float64),
        digits=6,
    )
    what = "Energy as the kernel counts it, from 0 again when the counter is full."
    return family(f"ceems_rapl_{kind}_joules_total", "counter", what, series)
