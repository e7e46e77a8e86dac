"""The same figures under the names that CEEMS gives them, for dashboards that ask for those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowtide.monitor.snapshot import Unit
from lowtide.monitor.text_format import Series, family, labels, single
from lowtide.monitor.tick import Tick


def ceems_labels(host: str, unit: Unit) -> str:
    """Return the labels of a job.

    Args:
        host: The node's name.
        unit: The job.
    """
    return labels(manager=unit.source, hostname=host, cgrouphostname="", uuid=unit.job_id)


def ceems_page(
    tick: Tick, places: npt.NDArray[np.intp], names: Sequence[str], *, zone: str = ""
) -> str:
    """Return a tick as CEEMS would have it.

    Its exporter tells user from system time; here all CPU time of a job is under `user`, and
    `system` is 0, since their queries add the two.

    Args:
        tick: What happened.
        places: Which units to show.
        names: The labels of each of them.
        zone: Where on the grid the node is, empty where not known.
    """
    return "".join([_units(tick, places, names), _node(tick), _energy(tick, zone)])


def _units(tick: Tick, places: npt.NDArray[np.intp], names: Sequence[str]) -> str:
    found = Counter(unit.source for unit in tick.units)
    parts = [
        family(
            "ceems_compute_units",
            "gauge",
            "Jobs on the node.",
            Series(
                labels=[labels(manager=name, hostname=tick.host) for name in found],
                values=np.array([*found.values()], dtype=np.float64),
                digits=0,
            ),
        )
    ]
    # Without a limit of its own a job may have all memory.
    limit = np.where(np.isnan(tick.reserved_bytes), tick.node.memory_bytes, tick.reserved_bytes)
    for name, kind, what, values, digits in (
        ("cpu_user_seconds_total", "counter", "CPU time, system time included.", tick.cpu_s, 3),
        ("cpu_system_seconds_total", "counter", "Counted as user time.", tick.cpu_s * 0, 3),
        ("cpus", "gauge", "CPUs kept for the job.", tick.reserved_cpus, 3),
        ("memory_used_bytes", "gauge", "Memory that the job holds.", tick.memory_bytes, 0),
        ("memory_total_bytes", "gauge", "Memory that the job may have.", limit, 0),
    ):
        series = Series(labels=names, values=values[places], digits=digits)
        parts.append(family(f"ceems_compute_unit_{name}", kind, what, series))
    return "".join(parts)


def _node(tick: Tick) -> str:
    of, node = labels(hostname=tick.host), tick.node
    busy = labels(hostname=tick.host, mode="user")
    what = "CPU time in use, of all modes but idle, iowait and steal."
    total, left = "ceems_meminfo_MemTotal_bytes", "ceems_meminfo_MemAvailable_bytes"
    return "".join(
        [
            single("ceems_cpu_seconds_total", "counter", what, busy, node.busy_s),
            single("ceems_cpu_count", "gauge", "Hardware threads.", of, node.cpus, digits=0),
            single(total, "gauge", "All memory.", of, node.memory_bytes, digits=0),
            single(left, "gauge", "Memory to be had.", of, node.available_bytes, digits=0),
        ]
    )


def _energy(tick: Tick, zone: str) -> str:
    sockets = [
        labels(hostname=tick.host, index=str(place), path="")
        for place in range(len(tick.package_energy_j))
    ]
    packages = Series(labels=sockets, values=np.array(tick.package_energy_j, dtype=np.float64))
    memory = labels(hostname=tick.host, index="0", path="")
    country = labels(provider="lowtide", provider_name="lowtide", country_code=zone, country=zone)
    rapl, what = "ceems_rapl_package_joules_total", "Energy of the CPU sockets."
    dram, intensity = "ceems_rapl_dram_joules_total", "ceems_emissions_gCo2_kWh"
    return "".join(
        [
            family(rapl, "counter", what, packages),
            single(dram, "counter", "Energy of memory.", memory, tick.dram_energy_j),
            single(intensity, "gauge", "Intensity.", country, tick.intensity_g_per_kwh),
        ]
    )
