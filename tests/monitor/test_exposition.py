from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lowtide.errors import UnknownName
from lowtide.monitor.exposition import Exposition, OwnUse, own_use, render
from lowtide.monitor.tick import Tick
from support.snapshots import GIB, gpu, tick, unit, units


def read(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read a page as a stranger does; a series that stands twice fails."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for each in text_string_to_metric_families(page.decode()):
        for sample in each.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def job(page: bytes, name: str, /, **labels: str) -> list[float]:
    wanted = set(labels.items())
    return [
        value
        for (metric, found), value in read(page).items()
        if metric == f"lowtide_job_{name}" and wanted <= found
    ]


def of_everything() -> Tick:
    """A tick that has all there is."""
    jobs = [unit("1", user="ann", name='say "hi"\n', started=5.0), unit("2", source="container")]
    return dataclasses.replace(
        tick(
            jobs,
            power_w=[100.25, 50.0],
            gpu_w=[60.0, 0.0],
            gpus_busy=[0.5, 0.0],
            gpu_memory_bytes=[GIB, 0.0],
            reserved_gpus=[1.0, 0.0],
            carbon_g=[1.5, 0.25],
            marginal_g=[2.5, np.nan],
            embodied_g=[0.125, 0.5],
            gpus=(gpu("gpu-0", {0: 1.0}, busy=0.5),),
            problems=("no RAPL",),
        ),
        package_energy_j=(11.0, 22.0),
        dram_energy_j=3.0,
    )


class TestOwnNames:
    def test_every_column_is_there_with_its_value(self) -> None:
        at = of_everything()
        page = render(at)
        columns = {
            "power_watts": at.shares.power_w,
            "cpus_busy": at.cpus_busy,
            "memory_bytes": at.memory_bytes,
            "reserved_cpus": at.reserved_cpus,
            "reserved_memory_bytes": at.reserved_bytes,
            "energy_joules_total": at.energy_j,
            "measured_energy_joules_total": at.measured_j,
            "cpu_seconds_total": at.cpu_s,
            "read_bytes_total": at.read_bytes,
            "written_bytes_total": at.written_bytes,
        }
        for name, values in columns.items():
            for each, value in zip(at.units, values, strict=True):
                labels = {"host": "n1", "source": each.source, "job_id": each.job_id}
                assert job(page, name, **labels, user=each.user) == pytest.approx([value])
        for kind, values in (("average", at.carbon_g), ("embodied", at.embodied_g)):
            assert job(page, "emissions_grams_total", kind=kind) == pytest.approx(values)
        assert job(page, "emissions_grams_total", kind="marginal") == [2.5]
        assert job(page, "info", name='say "hi"\n') == [1]
        assert job(page, "start_time_seconds", job_id="1") == [5.0]

    def test_only_holders_of_gpus_have_lines_about_them(self) -> None:
        page = render(of_everything())
        assert job(page, "gpu_power_watts") == [60.0]
        assert job(page, "gpus_busy") == [0.5]
        assert job(page, "gpu_memory_bytes") == [GIB]
        assert job(page, "reserved_gpus") == [1.0]

    def test_the_node_adds_up(self) -> None:
        found = {
            name: value
            for (name, labels), value in read(render(of_everything())).items()
            if len(labels) == 1
        }
        watts = sum(job(render(of_everything()), "power_watts"))
        parts = (
            found["lowtide_node_idle_power_watts"] + found["lowtide_node_unattributed_power_watts"]
        )
        assert watts + parts == pytest.approx(found["lowtide_node_power_watts"])
        assert found["lowtide_node_energy_joules_total"] == 9000.0
        assert found["lowtide_node_power_measured"] == 1
        assert found["lowtide_node_cpus"] == 64
        assert found["lowtide_problems"] == found["lowtide_problems_total"] == 1
        assert found["lowtide_tick_length_seconds"] == 10

    def test_an_estimate_says_so(self) -> None:
        page = render(tick(units(1), measured=False, measured_j=0.0))
        assert b'lowtide_node_power_measured{host="n1"} 0\n' in page
        assert job(page, "measured_energy_joules_total") == [0.0]
        assert job(page, "energy_joules_total") == [1000.0]

    def test_what_is_not_known_is_left_out_and_never_0(self) -> None:
        page = render(tick(units(1), power_w=np.nan, carbon_g=np.nan, intensity_g_per_kwh=math.nan))
        assert job(page, "power_watts") == []
        assert job(page, "emissions_grams_total", kind="average") == []
        assert b"lowtide_intensity" not in page
        assert b"nan" not in page.lower()

    def test_no_label_is_called_job(self) -> None:
        page = Exposition(compat=("ceems",)).render(of_everything(), own=own_use()).decode()
        assert not re.search(r"[{,](job|instance)=", page)

    def test_its_own_cost_is_shown(self) -> None:
        page = Exposition().render(tick(), own=OwnUse(cpu_s=1.25, resident_bytes=5e7))
        assert b'lowtide_watch_cpu_seconds_total{host="n1"} 1.250\n' in page
        assert b'lowtide_watch_resident_bytes{host="n1"} 50000000\n' in page
        used = own_use()
        assert used.cpu_s > 0
        assert 1e6 < used.resident_bytes < 1e11

    def test_a_node_without_jobs_has_a_page(self) -> None:
        assert job(render(tick()), "power_watts") == []
        assert b"lowtide_node_power_watts" in render(tick())

    def test_problems_are_counted_up(self) -> None:
        page = Exposition()
        page.render(tick(problems=("a", "b")))
        assert b'problems_total{host="n1"} 3\n' in page.render(tick(problems=("c",)))


class TestComingAndGoing:
    def test_a_job_that_is_over_keeps_its_counters_for_a_while(self) -> None:
        shown = Exposition(keep_s=300)
        shown.render(tick([unit("1"), unit("2")], time=1000))
        page = shown.render(tick([unit("2")], time=1010))
        assert job(page, "energy_joules_total", job_id="1") == [1000.0]
        assert job(page, "cpu_seconds_total", job_id="1") == [100.0]
        assert job(page, "emissions_grams_total", job_id="1", kind="average") == [0.5]
        assert job(page, "power_watts", job_id="1") == []
        assert job(page, "memory_bytes", job_id="1") == []
        assert job(shown.render(tick([unit("2")], time=1309)), "energy_joules_total", job_id="1")
        page = shown.render(tick([unit("2")], time=1310))
        assert b'job_id="1"' not in page
        assert job(page, "energy_joules_total", job_id="2") == [1000.0]

    def test_a_number_used_again_is_one_series(self) -> None:
        shown = Exposition()
        shown.render(tick([unit("1", started=0)], energy_j=500.0))
        page = shown.render(tick([unit("1", started=900)], energy_j=7.0, time=1010))
        assert job(page, "energy_joules_total", job_id="1") == [7.0]

    def test_of_two_with_the_same_number_the_younger_is_shown(self) -> None:
        jobs = [unit("1", started=50), unit("1", started=10), unit("2")]
        page = render(tick(jobs, energy_j=[5.0, 6.0, 7.0]), compat=("ceems",))
        assert job(page, "energy_joules_total", job_id="1") == [5.0]
        assert job(page, "energy_joules_total", job_id="2") == [7.0]

    def test_a_user_learned_later_ends_no_job(self) -> None:
        shown = Exposition()
        shown.render(tick([unit("1")], energy_j=5.0))
        page = shown.render(tick([unit("1", user="ann")], energy_j=6.0))
        assert job(page, "energy_joules_total") == [6.0]

    def test_series_do_not_pile_up(self) -> None:
        shown = Exposition(keep_s=60)
        sizes = [
            len(shown.render(tick([unit(f"{number:04}")], time=10.0 * number)))
            for number in range(100, 200)
        ]
        assert sizes[-1] == sizes[20]
        assert len(shown._written) == 1
        assert len(shown._ended) == 6

    def test_a_page_that_remembers_is_as_one_that_does_not(self) -> None:
        shown = Exposition()
        at = of_everything()
        shown.render(at)
        again = dataclasses.replace(at, problems=())
        assert read(shown.render(again)) | {} == {
            **read(render(again)),
            ("lowtide_problems_total", frozenset({("host", "n1")})): 1.0,
        }


class TestCeems:
    def names(self) -> set[tuple[str, tuple[str, ...]]]:
        page = render(of_everything(), compat=("ceems",)).decode()
        found = re.findall(r"^(ceems_\w+)\{(.*)\} ", page, re.M)
        return {(name, tuple(re.findall(r'(\w+)="', labels))) for name, labels in found}

    def test_names_and_labels_are_theirs(self) -> None:
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
        assert self.names() == wanted

    def test_values(self) -> None:
        at = of_everything()
        found: dict[Any, float] = read(Exposition(compat=("ceems",), zone="DE").render(at))
        theirs = {
            (
                name,
                dict(labels).get("uuid")
                or dict(labels).get("index")
                or dict(labels).get("country_code"),
            ): value
            for (name, labels), value in found.items()
            if name.startswith("ceems_")
        }
        assert theirs["ceems_compute_unit_cpu_user_seconds_total", "1"] == at.cpu_s[0]
        assert theirs["ceems_compute_unit_cpu_system_seconds_total", "1"] == 0
        assert theirs["ceems_compute_unit_cpus", "2"] == at.reserved_cpus[1]
        assert theirs["ceems_compute_unit_memory_total_bytes", "2"] == at.reserved_bytes[1]
        assert theirs["ceems_rapl_package_joules_total", "1"] == 22.0
        assert theirs["ceems_rapl_dram_joules_total", "0"] == 3.0
        assert theirs["ceems_emissions_gCo2_kWh", "DE"] == at.intensity_g_per_kwh
        assert theirs["ceems_cpu_count", None] == 64

    def test_they_are_there_only_if_asked_for(self) -> None:
        assert b"ceems" not in render(of_everything())
        with pytest.raises(UnknownName, match="known are ceems"):
            render(of_everything(), compat=("cems",))


def test_the_page_of_docs_names_every_metric(root: Path) -> None:
    text = (root / "docs/howto/prometheus.md").read_text(encoding="utf-8")
    page = Exposition(compat=("ceems",)).render(of_everything(), own=own_use()).decode()
    for name in re.findall(r"^# TYPE (\w+)", page, re.M):
        assert f"`{name}`" in text, name
