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
from lowtide.monitor.text_format import Series, alone, counter, gauge, labels
from lowtide.monitor.tick import Tick

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


def ceems_labels(host: str, unit: Unit) -> str:
    """Return the labels of a job."""
    return labels(manager=_MANAGER, hostname=host, cgrouphostname=unit.node_name, uuid=unit.job_id)


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
    system_s = 0.0 * cpu_s
    if tick.system_s is not None:
        # Where the two are not told apart all of it is under `user`: their queries add them up.
        system_s = np.where(np.isnan(tick.system_s), system_s, tick.system_s)
    # Without a limit of its own a job may have all memory.
    limit = np.where(np.isnan(tick.reserved_bytes), tick.node.memory_bytes, tick.reserved_bytes)
    for name, what, values in (
        ("cpu_user_seconds_total", "CPU time outside of the kernel.", cpu_s - system_s),
        ("cpu_system_seconds_total", "CPU time in the kernel.", system_s),
    ):
        series = Series(labels=names, values=values[places], digits=6)
        parts.append(counter(f"ceems_compute_unit_{name}", what, series, at=tick.time))
    for name, what, values, digits in (
        ("cpus", "CPUs kept for the job.", tick.reserved_cpus, 3),
        ("memory_used_bytes", "Memory that the job holds.", tick.memory_bytes, 0),
        ("memory_total_bytes", "Memory that the job may have.", limit, 0),
    ):
        series = Series(labels=names, values=values[places], digits=digits)
        parts.append(gauge(f"ceems_compute_unit_{name}", what, series))
    return "".join(parts)


def _node(tick: Tick) -> str:
    of, node = labels(hostname=tick.host), tick.node
    # Where modes are not told apart all that is in use is under `user`.
    spent = node.mode_s or {"user": node.busy_s}
    modes = Series(
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
    series = Series(
        labels=[
            labels(hostname=tick.host, index=str(place), path=path)
            for place, (path, _) in enumerate(found)
        ],
        values=np.array([joules for _, joules in found], dtype=np.float64),
        digits=6,
    )
    what = "Energy as the kernel counts it, from 0 again when the counter is full."
    return counter(f"ceems_rapl_{kind}_joules_total", what, series, at=tick.time)
