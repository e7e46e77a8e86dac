"""The names of another system: what its exporter says of the same node, and nothing else."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import UnknownName
from lowtide.meters import Roots
from lowtide.meters.rapl import read_counters
from lowtide.monitor.metrics import Exposition
from lowtide.watching.service import open_watch
from support.snapshots import render, tick, unit
from support.trees import NODE, write, write_group, write_legacy, write_unified

RAPL = """
sys/class/powercap/intel-rapl:0/name = package-0
sys/class/powercap/intel-rapl:0/energy_uj = 258218293244
sys/class/powercap/intel-rapl:0/max_energy_range_uj = 262143328850
sys/class/powercap/intel-rapl:0:0/name = dram
sys/class/powercap/intel-rapl:0:0/energy_uj = 24468409791
sys/class/powercap/intel-rapl:0:0/max_energy_range_uj = 65712999613
sys/class/powercap/intel-rapl:1/name = package-1
sys/class/powercap/intel-rapl:1/energy_uj = 130570505826
sys/class/powercap/intel-rapl:1/max_energy_range_uj = 262143328850
"""
COUNTS = [("package", "/sys/rapl:0", 11.0), ("package", "/sys/rapl:1", 22.0)]


def lines(page: str) -> dict[tuple[str, ...], float]:
    """Return what the page says by metric and by what tells its lines apart."""
    found = {}
    for name, labels, value in re.findall(r"^ceems_(\w+)\{(.*)\} (\S+)(?: \d+)?$", page, re.M):
        told = dict(re.findall(r'(\w+)="(.*?)"', labels))
        which = [told[each] for each in ("uuid", "mode", "index", "country_code") if each in told]
        assert (name, *which) not in found
        found[(name, *which)] = float(value)
    return found


def watched(root: Path) -> str:
    """Return the page about a tree of the kernel's files."""
    roots = Roots(procfs=root / "proc", sysfs=root / "sys")
    with open_watch(
        meters=["rapl"], roots=roots, cgroupfs=root / "cgroup", idle_w=60.0, host="n1"
    ) as opened:
        assert opened.watcher.tick() is None
        time.sleep(0.02)
        seen = opened.watcher.tick()
    assert seen is not None
    page = Exposition(compat=("ceems",), rapl=read_counters(roots))
    return page.render(seen).whole.decode()


def test_the_values_of_a_real_node_come_out_as_the_kernel_has_them(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    write(tmp_path, RAPL)
    group = write_unified(tmp_path / "cgroup")
    write_group(group / "system.slice/slurmstepd.scope/job_1009248")
    write_group(group / "system.slice/node1_slurmstepd.scope/job_3009248")
    write_group(group / "system.slice/cron.service")
    page = watched(tmp_path)
    found = lines(page)
    assert found["compute_units",] == 2
    for job in ("1009248", "3009248"):
        assert found["compute_unit_cpu_user_seconds_total", job] == 60375.292848
        assert found["compute_unit_cpu_system_seconds_total", job] == 115.777503
        assert found["compute_unit_cpus", job] == 2
        assert found["compute_unit_memory_total_bytes", job] == 4294967296
    assert found["rapl_package_joules_total", "0"] == 258218.293244
    assert found["rapl_package_joules_total", "1"] == 130570.505826
    assert found["rapl_dram_joules_total", "0"] == 24468.409791
    spent = {"user": 10.0, "nice": 2.0, "system": 3.0, "idle": 900.0, "iowait": 0.5}
    for mode, seconds in spent.items():
        assert found["cpu_seconds_total", mode] == seconds
    assert set(re.findall(r'uuid="(.*?)"', page)) == {"1009248", "3009248"}
    # Where several of Slurm's nodes are on one machine their groups say which it is.
    assert set(re.findall(r'cgrouphostname="(.*?)".*uuid="(.*?)"', page)) == {
        ("", "1009248"),
        ("node1", "3009248"),
    }
    paths = re.findall(r'index="0",path="(.*?)"', page)
    assert [path.removeprefix(str(tmp_path)) for path in paths] == [
        "/sys/class/powercap/intel-rapl:0",
        "/sys/class/powercap/intel-rapl:0:0",
    ]


def test_version_1_does_not_tell_user_from_system_time(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    write(tmp_path, RAPL)
    write_legacy(tmp_path / "cgroup", "/slurm_n7/uid_1000/job_5", usage_s=84.0)
    page = watched(tmp_path)
    found = lines(page)
    assert found["compute_unit_cpu_user_seconds_total", "5"] == 84.0
    assert found["compute_unit_cpu_system_seconds_total", "5"] == 0.0
    assert 'cgrouphostname="n7"' in page


def test_names_and_labels_are_theirs() -> None:
    page = Exposition(compat=("ceems",), rapl=[*COUNTS, ("dram", "/sys/rapl:0:0", 3.0)])
    found = re.findall(
        r"^(ceems_\w+)\{(.*)\} ", page.render(tick([unit("1")])).whole.decode(), re.M
    )
    of_unit = ("manager", "hostname", "cgrouphostname", "uuid")
    wanted: set[tuple[str, tuple[str, ...]]] = {
        ("ceems_compute_units", ("manager", "hostname")),
        ("ceems_cpu_seconds_total", ("hostname", "mode")),
        ("ceems_cpu_count", ("hostname",)),
        ("ceems_meminfo_MemTotal_bytes", ("hostname",)),
        ("ceems_meminfo_MemAvailable_bytes", ("hostname",)),
        ("ceems_rapl_package_joules_total", ("hostname", "index", "path")),
        ("ceems_rapl_dram_joules_total", ("hostname", "index", "path")),
        ("ceems_emissions_gCo2_kWh", ("provider", "provider_name", "country_code", "country")),
    }
    for name in (
        "cpu_user_seconds_total",
        "cpu_system_seconds_total",
        "cpus",
        "memory_used_bytes",
        "memory_total_bytes",
    ):
        wanted.add((f"ceems_compute_unit_{name}", of_unit))
    assert {(name, tuple(re.findall(r'(\w+)="', labels))) for name, labels in found} == wanted


def test_values() -> None:
    at = tick(
        [unit("1"), unit("2")],
        cpu_s=[100.0, 50.0],
        system_s=np.array([10.0, np.nan]),
        reserved_bytes=[1e9, np.nan],
    )
    found = lines(Exposition(compat=("ceems",), rapl=COUNTS, zone="DE").render(at).whole.decode())
    assert found["compute_unit_cpu_user_seconds_total", "1"] == 90.0
    assert found["compute_unit_cpu_system_seconds_total", "1"] == 10.0
    assert found["compute_unit_cpu_user_seconds_total", "2"] == 50.0
    assert found["compute_unit_cpu_system_seconds_total", "2"] == 0.0
    assert found["compute_unit_cpus", "1"] == at.reserved_cpus[0]
    assert found["compute_unit_memory_total_bytes", "1"] == 1e9
    assert found["compute_unit_memory_total_bytes", "2"] == at.node.memory_bytes
    assert found["rapl_package_joules_total", "1"] == 22.0
    assert found["emissions_gCo2_kWh", "DE"] == at.intensity_g_per_kwh
    assert found["cpu_count",] == 64
    assert found["cpu_seconds_total", "user"] == at.node.busy_s


@pytest.mark.parametrize(
    ("meter", "names"),
    [
        ("ipmi", {"ipmi_dcmi_power_current_watts", "ipmi_dcmi_current_watts"}),
        ("redfish", {"redfish_power_current_watts", "redfish_current_watts"}),
        ("cray", {"cray_pm_counters_power_watts"}),
        ("rapl", set()),
    ],
)
def test_the_power_of_the_node_has_the_name_of_its_meter(meter: str, names: set[str]) -> None:
    at = tick([unit("1")])
    at = replace(at, meters={"rapl": True, meter: True}, shares=replace(at.shares, sees=("node",)))
    found = lines(render(at, compat=("ceems",)).decode())
    watts = {name for (name, *_), value in found.items() if value == at.shares.node_w}
    assert watts == names
    # Nobody measured all of it, or the meter is silent.
    for other in (
        replace(at, shares=replace(at.shares, sees=("package",))),
        replace(at, meters={meter: False}),
    ):
        assert "current_watts" not in render(other, compat=("ceems",)).decode()
        assert "pm_counters" not in render(other, compat=("ceems",)).decode()


def test_only_jobs_of_slurm_are_compute_units() -> None:
    sources = ("slurm", "systemd", "container", "process", "slurm")
    at = tick([unit(place, source=source) for place, source in enumerate(sources)])
    page = render(at, compat=("ceems",)).decode()
    assert set(re.findall(r'uuid="(.*?)"', page)) == {"0", "4"}
    counted = re.findall(r"^ceems_compute_units(.*)$", page, re.M)
    assert counted == ['{manager="slurm",hostname="n1"} 2']
    # A node without jobs has none, which is known.
    alone = render(tick([unit("cron", source="systemd")]), compat=("ceems",))
    assert b'ceems_compute_units{manager="slurm",hostname="n1"} 0\n' in alone
    assert b"ceems_compute_unit_" not in alone


def test_they_are_there_only_if_asked_for() -> None:
    assert b"ceems" not in render(tick([unit("1")]))
    with pytest.raises(UnknownName, match="known are ceems"):
        render(tick(), compat=("cems",))


def test_threads_of_a_core_are_there_for_their_ratios_and_unknown_where_nobody_says() -> None:
    at = tick([unit("1")])
    for threads, told in ((2.0, ["2"]), (float("nan"), [])):
        other = replace(at, node=replace(at.node, threads_per_core=threads))
        page = render(other, compat=("ceems",)).decode()
        assert re.findall(r"^ceems_cpu_per_core_count\{.*\} (\S+)$", page, re.M) == told
