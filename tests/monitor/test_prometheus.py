"""A real Prometheus scrapes the exporter, and what it answers is compared with what was put in."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lowtide.monitor.exporter import Exporter, load_token
from lowtide.monitor.metrics import Exposition, own_use
from lowtide.monitor.tick import Tick
from support.needs import is_missing
from support.prometheus import Prometheus, missing_programs, running_prometheus
from support.snapshots import GIB, gpu, tick, unit

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/lowtide.rules.yml"
DASHBOARD = ROOT / "deploy/grafana/lowtide.json"

# What the two jobs and the one that is soon over draw.
POWER_W = np.array([120.25, 60.5, 30.0])
IDLE_W, UNATTRIBUTED_W = 40.0, 9.25
GRAMS_PER_J = 300 / 3.6e6
SHORT_J = 15.0


@pytest.fixture(scope="module", autouse=True)
def needs_prometheus() -> None:
    if missing := missing_programs():
        is_missing(f"needs apt-get install prometheus: no {', '.join(missing)}")


def at(began: float, now: float, *, short: bool) -> Tick:
    """The node after some time: every counter follows from constant power."""
    jobs = [unit("41", user="ann", name="train"), unit("42_1", user="bob", source="container")]
    if short:
        jobs.append(unit("43", user="bob"))
    count = len(jobs)
    elapsed_s = now - began
    energy_j = POWER_W[:count] * elapsed_s
    if short:
        energy_j[2] = SHORT_J
    node_w = float(POWER_W[:count].sum()) + IDLE_W + UNATTRIBUTED_W
    made = tick(
        jobs,
        time=now,
        power_w=POWER_W[:count],
        idle_w=IDLE_W,
        unattributed_w=UNATTRIBUTED_W,
        energy_j=energy_j,
        measured_j=energy_j,
        cpu_s=np.array([4.0, 2.0, 0.0])[:count] * elapsed_s,
        cpus_busy=np.array([4.0, 2.0, 1.0])[:count],
        reserved_cpus=np.array([8.0, np.nan, 1.0])[:count],
        gpus_busy=np.array([0.5, 0.0, 0.0])[:count],
        gpu_memory_bytes=np.array([GIB, 0.0, 0.0])[:count],
        reserved_gpus=np.array([1.0, 0.0, 0.0])[:count],
        gpu_w=np.array([50.0, 0.0, 0.0])[:count],
        carbon_g=energy_j * GRAMS_PER_J,
        marginal_g=energy_j * 2 * GRAMS_PER_J,
        node_energy_j=node_w * elapsed_s,
        idle_energy_j=IDLE_W * elapsed_s,
        unattributed_energy_j=UNATTRIBUTED_W * elapsed_s,
        intensity_g_per_kwh=300.0,
        marginal_g_per_kwh=600.0,
        node_carbon_g=node_w * elapsed_s * GRAMS_PER_J,
        idle_carbon_g=IDLE_W * elapsed_s * GRAMS_PER_J,
        unattributed_carbon_g=UNATTRIBUTED_W * elapsed_s * GRAMS_PER_J,
        received_bytes=np.array([np.nan, 1000.0, np.nan])[:count] * elapsed_s,
        sent_bytes=np.array([np.nan, 500.0, np.nan])[:count] * elapsed_s,
        system_s=np.array([1.0, np.nan, 0.0])[:count] * elapsed_s,
        gpus=(gpu("gpu-0", {0: 1.0}, busy=0.5),),
        rejected=3,
    )
    spent = {"user": 6.0, "system": 1.0, "idle": 55.0, "iowait": 2.0}
    node = dataclasses.replace(
        made.node,
        busy_s=7.0 * elapsed_s,
        mode_s={name: share * elapsed_s for name, share in spent.items()},
    )
    return dataclasses.replace(
        made, node=node, package_energy_j=(50.0 * elapsed_s,), dram_energy_j=10.0 * elapsed_s
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has scraped for some seconds, and goes on."""
    over = threading.Event()
    began = time.time()

    def feed(exporter: Exporter) -> None:
        page = Exposition(compat=("ceems",), zone="DE")
        ticks = 0
        while not over.is_set():
            # The short job is there for one tick, right at the second.
            now = time.time()
            state = at(began, now, short=ticks == 1)
            watts = {"package": 50.0, "dram": 10.0}
            page.rapl = [(kind, kind, drawn * (now - began)) for kind, drawn in watts.items()]
            exporter.publish(page.render(state, own=own_use()))
            ticks += 1
            over.wait(0.05)

    with Exporter(address="127.0.0.1:0", open_to_all=True) as exporter:
        feeding = threading.Thread(target=feed, args=[exporter])
        feeding.start()
        target = place(exporter)
        folder = tmp_path_factory.mktemp("prometheus")
        try:
            with running_prometheus(folder, [target], rules=RULES) as server:
                wait_for(server, "count_over_time(up[10s]) > 17")
                wait_for(server, "user:lowtide_job_energy_joules:last1h")
                yield server
        finally:
            over.set()
            feeding.join()


def place(exporter: Exporter) -> str:
    return exporter.url.removeprefix("http://").removesuffix("/metrics")


def wait_for(server: Prometheus, expression: str) -> None:
    end = time.monotonic() + 20
    while not server.query(expression):
        assert time.monotonic() < end, f"no answer to {expression}"
        time.sleep(0.1)


def by(server: Prometheus, label: str, expression: str) -> dict[str, float]:
    return {labels.get(label, ""): value for labels, value in server.query(expression)}


def test_scrapes_succeed_and_no_sample_is_lost(prometheus: Prometheus) -> None:
    # The very first scrape may come before the first page.
    assert prometheus.query("up")[0][1] == 1
    scraped = prometheus.query("scrape_samples_scraped")[0][1]
    assert scraped > 60
    assert prometheus.query("scrape_samples_post_metric_relabeling")[0][1] == scraped


def test_power_is_what_was_put_in(prometheus: Prometheus) -> None:
    found = by(prometheus, "job_id", "lowtide_job_power_watts")
    assert found == {"41": 120.25, "42_1": 60.5}
    [(labels, _)] = prometheus.query('lowtide_job_power_watts{job_id="41"}')
    assert labels["user"] == "ann"
    assert labels["source"] == "slurm"
    # This one is the scraper's, so nothing had to be renamed.
    assert labels["job"] == "lowtide"
    assert not [name for name in labels if name.startswith("exported_")]


def test_jobs_and_idle_and_unattributed_make_the_node(prometheus: Prometheus) -> None:
    # Counters of one scrape are of one moment, whatever the moment is.
    [(_, off)] = prometheus.query(
        "(sum(lowtide_job_energy_joules_total{job_id!='43'})"
        " + sum(lowtide_node_idle_energy_joules_total)"
        " + sum(lowtide_node_unattributed_energy_joules_total))"
        " / sum(lowtide_node_energy_joules_total) - 1"
    )
    assert abs(off) < 1e-4
    [(_, ratio)] = prometheus.query("host:lowtide_power_balance:ratio")
    assert ratio == pytest.approx(1, abs=1e-9)


def test_counters_grow_as_the_power_says(prometheus: Prometheus) -> None:
    found = by(prometheus, "job_id", 'rate(lowtide_job_energy_joules_total{job_id!="43"}[3s])')
    assert found == pytest.approx({"41": 120.25, "42_1": 60.5}, rel=0.1)
    # Two counters of the same scrapes are off by the same times.
    [(_, grams_per_j)] = prometheus.query(
        'rate(lowtide_job_emissions_grams_total{job_id="41",kind="average"}[3s])'
        ' / ignoring(kind) rate(lowtide_job_energy_joules_total{job_id="41"}[3s])'
    )
    assert grams_per_j == pytest.approx(GRAMS_PER_J, rel=1e-3)
    assert by(prometheus, "job_id", "rate(lowtide_job_cpu_seconds_total[3s]) > 0") == pytest.approx(
        {"41": 4.0, "42_1": 2.0}, rel=0.1
    )


def test_a_job_that_was_over_before_the_first_scrape_is_charged(prometheus: Prometheus) -> None:
    assert by(prometheus, "job_id", "lowtide_job_energy_joules_total")["43"] == SHORT_J
    assert "43" not in by(prometheus, "job_id", "lowtide_job_power_watts")
    [(_, missed)] = prometheus.query('increase(lowtide_job_energy_joules_total{job_id="43"}[1h])')
    assert missed == 0
    per_user = by(prometheus, "user", "user:lowtide_job_energy_joules:last1h")
    bob_j = by(prometheus, "job_id", "max_over_time(lowtide_job_energy_joules_total[1h])")
    assert per_user["bob"] == pytest.approx(bob_j["42_1"] + SHORT_J, rel=0.2)
    assert per_user["bob"] > SHORT_J + 60.5


def test_rules_are_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = yaml.safe_load(RULES.read_text())
    names = [
        rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule
    ]
    assert len(names) == 7
    for name in names:
        assert prometheus.query(name), name
    assert prometheus.rule_problems() == []
    assert prometheus.alerts() == []
    assert by(prometheus, "user", "user:lowtide_job_cpu_use:ratio") == {"ann": 0.5}
    assert prometheus.query("cluster:lowtide_node_power_watts:sum")[0][1] == pytest.approx(230.0)


def test_their_names_answer_their_queries(prometheus: Prometheus) -> None:
    expression = (
        "(rate(ceems_compute_unit_cpu_user_seconds_total[3s])"
        " + rate(ceems_compute_unit_cpu_system_seconds_total[3s]))"
        " / on (hostname) group_left ()"
        ' sum by (hostname) (rate(ceems_cpu_seconds_total{mode!~"idle|iowait|steal"}[3s]))'
        " * on (hostname) group_left ()"
        " sum by (hostname) (rate(ceems_rapl_package_joules_total[3s]))"
    )
    # A container is none of Slurm's jobs, and they count nothing else.
    assert by(prometheus, "uuid", expression) == pytest.approx({"41": 50 * 4 / 7}, rel=0.1)


def test_their_rules_find_one_partner_for_each_series(prometheus: Prometheus) -> None:
    """What they charge a job by a node's meter and RAPL, matched by instance as they match it."""
    rapl = {
        name: f"sum by (instance) (rate(ceems_rapl_{name}_joules_total[3s]))"
        for name in ("package", "dram")
    }
    power = "lowtide_node_power_watts"
    used = "ceems_compute_unit_memory_used_bytes"

    def share(part: str) -> str:
        whole = f"({rapl['package']} + {rapl['dram']})"
        return f"0.9 * {power} * on (instance) group_left () ({rapl[part]} / {whole})"

    expression = (
        f"{share('package')} * on (instance) group_right ()"
        " ((rate(ceems_compute_unit_cpu_user_seconds_total[3s])"
        " + rate(ceems_compute_unit_cpu_system_seconds_total[3s]))"
        " / on (instance) group_left () sum by (instance)"
        ' (rate(ceems_cpu_seconds_total{mode!~"idle|iowait|steal"}[3s])))'
        f" + {share('dram')} * on (instance) group_right ()"
        f" ({used} / on (instance) group_left ()"
        " (ceems_meminfo_MemTotal_bytes - on (instance) ceems_meminfo_MemAvailable_bytes))"
        f" + 0.1 * {power} * on (instance) group_right ()"
        f" ({used} / ({used} * on (instance) group_left () ceems_compute_units))"
    )
    node_w = 230.0
    charged_w = 0.9 * node_w * (50 / 60 * 4 / 7 + 10 / 60 / 56) + 0.1 * node_w
    assert by(prometheus, "uuid", expression) == pytest.approx({"41": charged_w}, rel=0.1)
    assert prometheus.query("ceems_compute_units")[0][1] == 1
    used_share = (
        "100 * (rate(ceems_compute_unit_cpu_user_seconds_total[3s])"
        " + rate(ceems_compute_unit_cpu_system_seconds_total[3s]))"
        " / (ceems_compute_unit_cpus > 0)"
    )
    assert by(prometheus, "uuid", used_share) == pytest.approx({"41": 50.0}, rel=0.1)
    intensity = by(prometheus, "country_code", "ceems_emissions_gCo2_kWh")
    assert intensity == {"DE": 300.0}


def test_who_holds_which_gpu_and_what_that_gpu_does(prometheus: Prometheus) -> None:
    [(labels, busy)] = prometheus.query(
        "lowtide_gpu_holder * on (host, gpu, uuid) group_left () lowtide_gpu_busy_ratio"
    )
    assert (labels["job_id"], labels["user"], labels["gpu"], busy) == ("41", "ann", "gpu-0", 0.5)


def test_emissions_add_up_to_the_node(prometheus: Prometheus) -> None:
    [(_, off)] = prometheus.query(
        "(sum(lowtide_job_emissions_grams_total{job_id!='43',kind='average'})"
        " + sum(lowtide_node_idle_emissions_grams_total)"
        " + sum(lowtide_node_unattributed_emissions_grams_total))"
        " / sum(lowtide_node_emissions_grams_total) - 1"
    )
    assert abs(off) < 1e-3
    found = by(prometheus, "kind", "lowtide_intensity_grams_per_kwh")
    assert found == {"average": 300.0, "marginal": 600.0}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_dashboard_finds_something(prometheus: Prometheus, query: str) -> None:
    for name, value in {
        "$__rate_interval": "3s",
        "$__range_s": "60",
        "$__range": "1m",
        "$host": ".*",
        "$user": "ann|bob",
    }.items():
        query = query.replace(name, value)
    assert "$" not in query
    found = prometheus.query(query)
    assert found
    assert all(np.isfinite(value) for _, value in found)


def test_every_variable_of_the_dashboard_finds_something(prometheus: Prometheus) -> None:
    found = {}
    for each in dashboard()["templating"]["list"]:
        if each["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", each["definition"])
            assert match
            assert each["query"]["query"] == each["definition"]
            series = match[1].replace("$host", ".*")
            found[each["name"]] = prometheus.label_values(match[2], series)
    assert found == {"host": ["n1"], "user": ["ann", "bob"]}


def test_panels_do_not_overlap_and_ask_the_chosen_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"


def promtool(*words: str, text: bytes = b"") -> str:
    done = subprocess.run(
        ["promtool", *words], input=text, capture_output=True, timeout=20, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_the_page_has_nothing_that_a_linter_minds() -> None:
    page = Exposition().render(at(0.0, 1.0, short=True), own=own_use()).whole
    assert promtool("check", "metrics", text=page) == ""


def test_the_example_configuration_is_valid(tmp_path: Path) -> None:
    load_token(tmp_path / "token")
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    config = config.replace("/var/lib/lowtide/token\n", f"{tmp_path / 'token'}\n")
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / RULES.name).write_text(RULES.read_text())
    said = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert "17 rules found" in said


LABELS = '{host="n1",source="slurm",job_id="%s",user="%s"}'
HOUR = "user:lowtide_job_energy_joules:last1h"


def series(
    job_id: str, user: str, values: str, metric: str = "energy_joules_total"
) -> dict[str, str]:
    return {"series": f"lowtide_job_{metric}{LABELS % (job_id, user)}", "values": values}


def run_rules(folder: Path, **test: Any) -> None:
    """Let promtool evaluate the rules over made-up hours, a scrape each minute."""
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", **test}],
    }
    path = folder / "rules_test.yml"
    path.write_text(yaml.safe_dump(case))
    assert "SUCCESS" in promtool("test", "rules", str(path))


def hours_of_everyone() -> list[dict[str, str]]:
    since = "counted_since_seconds"
    return [
        # 600 J a minute all the time; one of 3 s with 500 J in minute 100.
        series("1", "ann", "0+600x150"),
        series("1", "ann", "0x150", since),
        series("2", "bob", "_x99 500x5 _x50"),
        series("2", "bob", "_x99 5990x5 _x50", since),
        # Begun in minute 90, 60 J a minute.
        series("3", "eve", "_x90 0+60x60"),
        series("3", "eve", "_x90 5460x60", since),
        # The watcher was started again in minute 90, and counted 300 J until the next scrape.
        series("4", "jim", "0+600x90 300+600x60"),
        series("4", "jim", "0x90 5430x60", since),
        # A job of a week; nobody scraped from minute 80 to 100, and it went on meanwhile.
        series("5", "kim", "6048000+600x80 _x20 6108600+600x50"),
        series("5", "kim", "0x80 _x20 0x50", since),
        # Another one; nobody scraped where the hour begins.
        series("6", "lea", "6048000+600x50 _x20 6090600+600x80"),
        series("6", "lea", "0x50 _x20 0x80", since),
    ]


# From the first scrape in the hour on, and half a minute before it.
HOURLY_J = {"ann": 36000, "bob": 500, "eve": 1800, "jim": 35700, "kim": 36000, "lea": 600 * 49.5}


def test_energy_of_the_last_hour_is_right_over_restarts_and_gaps(tmp_path: Path) -> None:
    run_rules(
        tmp_path,
        input_series=hours_of_everyone(),
        promql_expr_test=[
            {
                "expr": f"round({HOUR})",
                "eval_time": "120m",
                "exp_samples": [
                    {"labels": f'{{user="{user}"}}', "value": joules}
                    for user, joules in HOURLY_J.items()
                ],
            }
        ],
    )


def test_the_dashboard_counts_energy_as_the_rules_do(tmp_path: Path) -> None:
    [query] = [each for each in queries() if "min_over_time(lowtide_job_energy" in each]
    for name, value in {
        "$__range_s": "3600",
        "$__range": "1h",
        "$host": ".*",
        "$user": ".*",
    }.items():
        query = query.replace(name, value)
    run_rules(
        tmp_path,
        input_series=hours_of_everyone(),
        promql_expr_test=[
            {
                "expr": f"round(3.6e6 * ({query}))",
                "eval_time": "120m",
                "exp_samples": [
                    {"labels": f'{{user="{user}"}}', "value": joules}
                    for user, joules in HOURLY_J.items()
                ],
            }
        ],
    )


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    def alert(name: str, minute: int, summary: str = "", **more: str) -> dict[str, Any]:
        fires = {
            "exp_labels": {"severity": "warning", "host": "n1"} | more,
            "exp_annotations": {"summary": summary},
        }
        return {
            "eval_time": f"{minute}m",
            "alertname": name,
            "exp_alerts": [fires] if summary else [],
        }

    def node(metric: str, values: str) -> dict[str, str]:
        return {"series": f'lowtide_{metric}{{host="n1"}}', "values": values}

    run_rules(
        tmp_path,
        input_series=[
            node("node_power_watts", "100x150"),
            node("node_idle_power_watts", "60x150"),
            node("node_unattributed_power_watts", "30x150"),
            series("1", "ann", "10x120 5x30", "power_watts"),
            node("tick_time_seconds", "0+60x130 7800x20 _x60"),
            node("jobs_shown", "1x150"),
            {"series": 'lowtide_meter_answers{host="n1",meter="ipmi"}', "values": "1x100 0x50"},
            {"series": 'lowtide_meter_answers{host="n1",meter="rapl"}', "values": "1x150"},
            # A minute without a word of each from minute 60 on; all grams lack from 80 on.
            node("node_unmetered_seconds_total", "0x60 0+60x60 3600x30"),
            node("node_energy_joules_total", "0+6000x150"),
            node("node_unpriced_energy_joules_total", "0x80 0+6000x70"),
            node("node_emissions_grams_total", "0+1x80 80x70"),
            {"series": 'up{job="lowtide",instance="n1:9470"}', "values": "1x140 0x20"},
        ],
        promql_expr_test=[
            {
                "expr": "host:lowtide_power_balance:ratio",
                "eval_time": "100m",
                "exp_samples": [
                    {"labels": 'host:lowtide_power_balance:ratio{host="n1"}', "value": 1}
                ],
            },
        ],
        alert_rule_test=[
            alert("LowtideUnbalanced", 120),
            alert(
                "LowtideUnbalanced",
                130,
                "the power of the jobs on n1 does not add up to the node's",
            ),
            alert("LowtideStale", 130),
            alert("LowtideStale", 136, "lowtide watch on n1 has not read the node for 6m 0s"),
            alert("LowtideMeterSilent", 100),
            alert("LowtideMeterSilent", 110, "the meter ipmi of n1 says nothing", meter="ipmi"),
            alert("LowtideUnmetered", 60),
            alert("LowtideUnmetered", 100, "the energy of n1 lacks 30m 0s of the last half hour"),
            alert("LowtideUnpriced", 80),
            alert(
                "LowtideUnpriced",
                150,
                "nobody can tell what 100% of the energy of n1 emitted in the last hour",
            ),
            alert("LowtideGone", 150),
            alert(
                "LowtideGone",
                170,
                "nothing has come from lowtide watch on n1 since 1970-01-01 02:10:00 +0000 UTC",
            ),
            alert("LowtideAbsent", 150),
            alert("LowtideClockAhead", 150),
            alert("LowtideJobsHidden", 130),
        ],
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """A server that scrapes pages of several kinds, as it takes five seconds to begin at all."""

    server: Prometheus
    watcher: subprocess.Popen[bytes]
    steady: list[str]


STEADY_W, STEADY_S = 700.0, 0.4


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    over, began = threading.Event(), time.time()

    def feed(exporter: Exporter, ratio: float) -> None:
        page = Exposition()
        while not over.wait(STEADY_S / ratio):
            now = time.time()
            drawn = tick((), time=now, node_energy_j=STEADY_W * (now - began))
            exporter.publish(page.render(dataclasses.replace(drawn, host="steady")))

    folder = tmp_path_factory.mktemp("others")
    # The waits of the rules would make this a test of minutes; what they are is tested above.
    quick = yaml.safe_load(RULES.read_text())
    for rule in quick["groups"][1]["rules"]:
        rule["for"] = "0s"
    rules = folder / "quick.rules.yml"
    rules.write_text(yaml.safe_dump(quick))
    token = load_token(folder / "token")
    shown = {"authorization": {"credentials_file": str(folder / "token")}}
    every = f"{round(STEADY_S * 1000)}ms"
    slower = {"scrape_interval": every, "scrape_timeout": every}
    with ExitStack() as opened:
        # Pages that change less often than they are scraped, as often, and more often.
        steady = []
        for ratio in (2 / 3, 1.0, 3 / 2):
            exporter = opened.enter_context(Exporter(address="127.0.0.1:0"))
            feeding = threading.Thread(target=feed, args=[exporter, ratio])
            opened.callback(feeding.join)
            feeding.start()
            steady.append(place(exporter))
        opened.callback(over.set)
        known = {}
        for host in ("untold", "told"):
            exporter = opened.enter_context(Exporter(address="127.0.0.1:0", token=token))
            state = dataclasses.replace(at(0.0, time.time(), short=False), host=host)
            exporter.publish(Exposition().render(state))
            known[host] = place(exporter)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            watched = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "lowtide", "watch", "--no-store", "--interval", "0.5"]
        watcher = subprocess.Popen([*command, "--listen", watched], start_new_session=True)
        opened.callback(watcher.wait)
        opened.callback(watcher.kill)
        server = opened.enter_context(
            running_prometheus(
                folder,
                [watched],
                rules=rules,
                more=[([known["untold"]], {}), ([known["told"]], shown), (steady, slower)],
            )
        )
        yield Others(server=server, watcher=watcher, steady=steady)


def test_prometheus_sees_jobs_by_the_token_alone(others: Others) -> None:
    hosts = '{host=~"untold|told"}'
    wait_for(others.server, f"count(lowtide_node_power_watts{hosts}) == 2")
    jobs = f"count by (host) (lowtide_job_power_watts{hosts})"
    assert by(others.server, "host", jobs) == {"told": 2.0}
    balance = f"host:lowtide_power_balance:ratio{hosts}"
    wait_for(others.server, balance)
    assert set(by(others.server, "host", balance)) == {"told"}


def test_a_watcher_that_was_killed_raises_an_alarm(others: Others) -> None:
    up = 'up{job="lowtide"}'
    wait_for(others.server, f"lowtide_tick_time_seconds * on (instance) group_left () {up} > 0")
    assert "LowtideGone" not in others.server.alerts()
    others.watcher.kill()
    wait_for(others.server, 'ALERTS{alertname="LowtideDown"}')
    wait_for(others.server, 'ALERTS{alertname="LowtideGone"}')


def test_a_constant_load_is_constant_however_often_it_is_scraped(others: Others) -> None:
    counter = 'lowtide_node_energy_joules_total{host="steady"}'
    count = f"count(count_over_time({counter}[1m]) > 9)"
    wait_for(others.server, f"{count} == {len(others.steady)}")
    # The rate at every tenth of a second of the last three, between two readings each.
    rates = f"irate({counter}[3s])[3s:100ms]"
    least, most, counts = (
        by(others.server, "instance", f"{what}_over_time({rates})")
        for what in ("min", "max", "count")
    )
    assert set(counts) == set(others.steady)
    assert min(counts.values()) > 22
    expected = dict.fromkeys(others.steady, STEADY_W)
    assert least == pytest.approx(expected, rel=0.02)
    assert most == pytest.approx(expected, rel=0.02)
