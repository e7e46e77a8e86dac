from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from lowtide.monitor.metrics import Exposition, OwnUse, own_use
from support.nightly import drawn
from support.snapshots import GIB, render, tick, tick_of_everything, unit, units


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


class TestParts:
    def test_nothing_in_the_part_of_the_node_tells_of_a_job(self) -> None:
        page = Exposition(compat=("ceems",)).render(tick_of_everything(), own=own_use())
        for label in (b"job_id=", b"user=", b'uuid="1"', b'name="say'):
            assert label not in page.node
            assert label in page.jobs
        assert b"lowtide_node_power_watts" in page.node
        assert b"lowtide_jobs_shown" not in page.node
        assert not set(read(page.node)) & set(read(page.jobs))

    def test_counters_carry_the_time_of_the_tick_and_gauges_none(self) -> None:
        shown = Exposition(compat=("ceems",))
        shown.render(tick([unit("gone")], time=999.0))
        page = shown.render(tick_of_everything(), own=own_use()).whole
        found = {"counter": set(), "gauge": set()}
        for each in text_string_to_metric_families(page.decode()):
            found[each.type] |= {sample.timestamp for sample in each.samples}
        assert found == {"counter": {1000.0}, "gauge": {None}}


class TestOwnNames:
    def test_every_column_is_there_with_its_value(self) -> None:
        at = tick_of_everything()
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
        assert job(page, "received_bytes_total") == [500.0]
        assert job(page, "sent_bytes_total", job_id="2") == [70.0]
        for resource, waited in (("cpu", [1.5, 0.0]), ("memory", [0.25]), ("io", [0.25, 0.25])):
            assert job(page, "pressure_seconds_total", resource=resource) == waited

    def test_what_is_lacking_is_said_of_those_that_lack_it(self) -> None:
        page = render(tick_of_everything())
        assert job(page, "unmetered_seconds_total") == [30.0]
        assert job(page, "unpriced_energy_joules_total", job_id="2") == [12.5]
        assert b'lowtide_node_unmetered_seconds_total{host="n1"} 30.000 1000000\n' in page
        whole = render(tick(units(3)))
        assert job(whole, "unmetered_seconds_total") == []
        assert job(whole, "unpriced_energy_joules_total") == []

    def test_who_holds_which_gpu(self) -> None:
        found = read(render(tick_of_everything()))
        [(labels, share)] = [
            (dict(labels), value)
            for (name, labels), value in found.items()
            if name == "lowtide_gpu_holder"
        ]
        assert share == 0.75
        assert labels == {
            "host": "n1",
            "source": "slurm",
            "job_id": "1",
            "user": "ann",
            "gpu": "gpu-0",
            "uuid": "GPU-gpu-0",
        }

    def test_a_page_is_no_longer_than_what_is_known(self) -> None:
        at = tick(units(100), cpu_wait_s=np.nan, io_wait_s=np.nan)
        lines = [line for line in render(at).decode().splitlines() if "lowtide_job_" in line]
        assert sum(not line.startswith("#") for line in lines) == 15 * 100

    def test_only_holders_of_gpus_have_lines_about_them(self) -> None:
        page = render(tick_of_everything())
        assert job(page, "gpu_power_watts") == [60.0]
        assert job(page, "gpus_busy") == [0.5]
        assert job(page, "gpu_memory_bytes") == [GIB]
        assert job(page, "reserved_gpus") == [1.0]

    def test_the_node_adds_up(self) -> None:
        found = {
            name: value
            for (name, labels), value in read(render(tick_of_everything())).items()
            if len(labels) == 1
        }
        watts = sum(job(render(tick_of_everything()), "power_watts"))
        parts = (
            found["lowtide_node_idle_power_watts"] + found["lowtide_node_unattributed_power_watts"]
        )
        assert watts + parts == pytest.approx(found["lowtide_node_power_watts"])
        assert found["lowtide_node_energy_joules_total"] == 9000.0
        assert found["lowtide_node_power_measured"] == 1
        assert found["lowtide_node_cpus"] == 64
        assert found["lowtide_problems"] == found["lowtide_problems_total"] == 1
        assert found["lowtide_tick_length_seconds"] == 10
        assert found["lowtide_rejected_readings_total"] == 4
        assert found["lowtide_node_dram_energy_joules_total"] == 3.0
        assert found["lowtide_pue_ratio"] == 1.25
        assert found["lowtide_node_measured_power_watts"] == found["lowtide_node_power_watts"]
        sockets = {
            dict(labels)["socket"]: value
            for (name, labels), value in read(render(tick_of_everything())).items()
            if name == "lowtide_node_socket_energy_joules_total"
        }
        assert sockets == {"0": 11.0, "1": 22.0}

    def test_the_grid_has_two_intensities_and_the_node_its_emissions(self) -> None:
        kinds = {
            (name, dict(labels)["kind"]): value
            for (name, labels), value in read(render(tick_of_everything())).items()
            if {key for key, _ in labels} == {"host", "kind"}
        }
        assert kinds == {
            ("lowtide_intensity_grams_per_kwh", "average"): 250.0,
            ("lowtide_intensity_grams_per_kwh", "marginal"): 700.0,
            ("lowtide_node_emissions_grams_total", "average"): 9.0,
            ("lowtide_node_idle_emissions_grams_total", "average"): 6.0,
            ("lowtide_node_unattributed_emissions_grams_total", "average"): 1.25,
        }

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
        page = (
            Exposition(compat=("ceems",)).render(tick_of_everything(), own=own_use()).whole.decode()
        )
        assert not re.search(r"[{,](job|instance)=", page)

    def test_its_own_cost_is_shown(self) -> None:
        page = Exposition().render(tick(), own=OwnUse(cpu_s=1.25, resident_bytes=5e7)).whole
        assert b'lowtide_watch_cpu_seconds_total{host="n1"} 1.250 1000000\n' in page
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
        assert b'problems_total{host="n1"} 3 1000000\n' in page.render(tick(problems=("c",))).whole


class TestComingAndGoing:
    def test_a_job_that_is_over_keeps_its_counters_for_a_while(self) -> None:
        shown = Exposition(keep_s=300)
        shown.render(tick([unit("1"), unit("2")], time=1000))
        page = shown.render(tick([unit("2")], time=1010)).whole
        assert job(page, "energy_joules_total", job_id="1") == [1000.0]
        assert job(page, "cpu_seconds_total", job_id="1") == [100.0]
        assert job(page, "emissions_grams_total", job_id="1", kind="average") == [0.5]
        assert job(page, "power_watts", job_id="1") == []
        assert job(page, "memory_bytes", job_id="1") == []
        assert job(
            shown.render(tick([unit("2")], time=1309)).whole, "energy_joules_total", job_id="1"
        )
        page = shown.render(tick([unit("2")], time=1310)).whole
        assert b'job_id="1"' not in page
        assert job(page, "energy_joules_total", job_id="2") == [1000.0]

    def test_a_number_used_again_counts_on(self) -> None:
        shown = Exposition(keep_s=60)
        shown.render(tick([unit("1", started=0)], energy_j=500.0))
        page = shown.render(tick([unit("1", started=900)], energy_j=7.0, time=1010)).whole
        assert job(page, "energy_joules_total", job_id="1") == [507.0]
        assert job(page, "start_time_seconds", job_id="1") == [900.0]
        # The same after it was off the page: no run of a service is lost to those after it.
        assert job(shown.render(tick(time=1020)).whole, "energy_joules_total") == [507.0]
        assert job(shown.render(tick(time=1200)).whole, "energy_joules_total") == []
        page = shown.render(tick([unit("1", started=1300)], energy_j=7.0, time=1310)).whole
        assert job(page, "energy_joules_total") == [514.0]
        page = shown.render(tick([unit("1", started=1300)], energy_j=9.0, time=1320)).whole
        assert job(page, "energy_joules_total") == [516.0]

    @settings(max_examples=drawn(25, 500))
    @given(
        st.lists(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), unique=True, max_size=4),
            max_size=12,
        )
    )
    def test_counters_of_a_name_never_fall_and_lose_nothing(
        self, runs: list[list[tuple[str, int]]]
    ) -> None:
        """Any coming and going: a series is the sum over all that ever went by its name."""
        shown = Exposition()
        spent: dict[tuple[str, int], float] = {}
        ended: set[tuple[str, int]] = set()
        seen: set[tuple[str, int]] = set()
        for number, run in enumerate(runs):
            there = [each for each in run if each not in ended]
            ended |= seen - set(there)
            seen |= set(there)
            for each in there:
                spent[each] = spent.get(each, 0.0) + 10.0
            page = shown.render(
                tick(
                    [unit(name, started=float(start)) for name, start in there],
                    energy_j=[spent[each] for each in there],
                    time=10.0 * number,
                )
            ).whole
            shown_j = {
                dict(labels)["job_id"]: value
                for (metric, labels), value in read(page).items()
                if metric == "lowtide_job_energy_joules_total"
            }
            assert shown_j == {
                name: sum(joules for (each, _), joules in spent.items() if each == name)
                for name, _ in seen
            }

    def test_two_with_the_same_number_are_one_series(self) -> None:
        jobs = [unit("1", started=50), unit("1", started=10), unit("2")]
        page = render(
            tick(
                jobs,
                energy_j=[5.0, 6.0, 7.0],
                power_w=[1.0, 2.0, 4.0],
                carbon_g=[np.nan, 1.0, np.nan],
                reserved_cpus=[2.0, 4.0, 8.0],
            ),
            compat=("ceems",),
        )
        assert job(page, "energy_joules_total", job_id="1") == [11.0]
        assert job(page, "power_watts") == [3.0, 4.0]
        assert job(page, "emissions_grams_total", kind="average") == [1.0]
        # The younger speaks for both.
        assert job(page, "start_time_seconds", job_id="1") == [50.0]
        assert job(page, "reserved_cpus") == [2.0, 8.0]

    def test_counters_say_since_when_they_count(self) -> None:
        shown = Exposition(keep_s=300)
        jobs = [unit("1", started=500), unit("2", started=995)]
        page = shown.render(tick(jobs, time=1000)).whole
        # What began before the watcher did is counted from the first look on.
        assert job(page, "counted_since_seconds") == [990.0, 995.0]
        page = shown.render(tick([unit("2", started=1005)], time=1010)).whole
        assert job(page, "counted_since_seconds", job_id="1") == [990.0]
        assert job(page, "counted_since_seconds", job_id="2") == [995.0]
        assert job(page, "start_time_seconds") == [1005.0]

    def test_a_user_learned_later_ends_no_job(self) -> None:
        shown = Exposition()
        shown.render(tick([unit("1")], energy_j=5.0))
        page = shown.render(tick([unit("1", user="ann")], energy_j=6.0)).whole
        assert job(page, "energy_joules_total") == [6.0]

    def test_series_do_not_pile_up(self) -> None:
        shown = Exposition(keep_s=60)
        sizes = [
            len(shown.render(tick([unit(f"{number:04}")], time=10.0 * number)).whole)
            for number in range(100, 200)
        ]
        assert sizes[-1] == sizes[20]
        assert len(shown._written) == len(shown._since) == 1

    def test_what_is_remembered_of_those_that_ended_has_a_limit(self) -> None:
        shown = Exposition(keep_s=60)
        for number in range(30):
            shown.render(tick(units(100), time=100.0 * number))
            others = [unit(f"{number}-{each}") for each in range(100)]
            shown.render(tick(others, time=100.0 * number + 50))
        assert 1000 <= len(shown._ended) <= 1200
        assert all(each.counters.base is None for each in shown._ended.values())
        # Those that are there again have lost nothing, however long ago they began.
        page = shown.render(tick(units(100), time=3000.0)).whole
        assert job(page, "energy_joules_total", job_id="0") == [31 * 1000.0]

    def test_a_page_that_remembers_is_as_one_that_does_not(self) -> None:
        shown = Exposition()
        at = tick_of_everything()
        shown.render(at)
        again = dataclasses.replace(at, problems=())
        assert read(shown.render(again).whole) | {} == {
            **read(render(again)),
            ("lowtide_problems_total", frozenset({("host", "n1")})): 1.0,
        }


def test_the_page_of_docs_names_every_metric(root: Path) -> None:
    text = (root / "docs/howto/prometheus.md").read_text(encoding="utf-8")
    rapl = [("package", "/sys/0", 1.0), ("dram", "/sys/0:0", 1.0)]
    shown = Exposition(compat=("ceems",), rapl=rapl)
    page = shown.render(tick_of_everything(), own=own_use()).whole.decode()
    for name in re.findall(r"^# TYPE (\w+)", page, re.M):
        assert f"`{name}`" in text, name
