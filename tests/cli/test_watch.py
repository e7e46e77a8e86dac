"""`lowtide watch` and `lowtide node`, on recorded trees and on this very machine."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.cli.watch import _serving
from lowtide.grids import synthetic_grid
from lowtide.meters import Roots
from lowtide.monitor.exporter import Exporter
from lowtide.monitor.metrics import Exposition
from support.commands import run
from support.faces import assert_keys_as_kept
from support.lines import Line
from support.snapshots import tick

pytestmark = pytest.mark.alone

LOWTIDE = Path(sys.executable).with_name("lowtide")


def parts_of(tick: dict[str, object]) -> float:
    jobs = tick["jobs"]
    assert isinstance(jobs, list)
    return math.fsum([tick["idle_w"], tick["unattributed_w"], *(job["power_w"] for job in jobs)])


def test_one_sample_of_this_machine() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], start_new_session=True
    ) as busy:
        begin = time.monotonic()
        done = subprocess.run(
            [LOWTIDE, "watch", "--once", "--json", "--grid", "windy", "--pue", "1.2"],
            capture_output=True,
            text=True,
            check=True,
        )
        took = time.monotonic() - begin
        busy.kill()
    tick = json.loads(done.stdout)
    assert took < 10, "two seconds where nothing else runs"
    assert parts_of(tick) == pytest.approx(tick["node_w"], rel=1e-9)
    (job,) = (job for job in tick["jobs"] if job["job_id"] == str(busy.pid))
    assert job["cpus_busy"] > 0.1
    assert job["power_w"] > 0
    assert job["carbon_g"] == pytest.approx(
        1.2 * job["energy_j"] / 3.6e6 * tick["intensity_g_per_kwh"]
    )


def test_it_is_kept_served_and_ends_when_told_to(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = tmp_path / "kept" / "store.sqlite"
    watch = subprocess.Popen(
        [
            *(LOWTIDE, "watch", "--interval", "0.3", "--store", str(store)),
            *("--listen", f"127.0.0.1:{port}", "--compat", "ceems"),
            *("--token-file", str(tmp_path / "token")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        page = ""
        end = time.monotonic() + 20
        while "lowtide_job_power_watts" not in page and time.monotonic() < end:
            time.sleep(0.2)
            try:
                token = (tmp_path / "token").read_text().strip()
                asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
                with urllib.request.urlopen(asked, timeout=5) as got:
                    others = got.read().decode()
                asked.add_header("Authorization", f"Bearer {token}")
                with urllib.request.urlopen(asked, timeout=5) as got:
                    page = got.read().decode()
            except OSError:
                continue
        assert "lowtide_node_power_watts" in page
        assert "ceems_compute_units" in page
        # Whoever has no token is told of the node alone.
        assert "lowtide_node_power_watts" in others
        assert "job_id=" not in others
        assert "uuid=" not in others
    finally:
        watch.send_signal(signal.SIGTERM)
        said, complained = watch.communicate(timeout=20)
    assert watch.returncode == 0
    assert said == ""
    assert "Traceback" not in complained
    assert store.exists()


def test_a_kill_costs_the_last_tick_at_most(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    said = tmp_path / "ticks.json"
    with said.open("w") as output:
        watch = subprocess.Popen(
            [LOWTIDE, "watch", "--interval", "0.2", "--json", "--store", str(store)], stdout=output
        )
    end = time.monotonic() + 20
    while said.read_text().count("\n") < 6 and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(watch.pid, signal.SIGKILL)
    watch.wait()
    # The last line may be half written.
    ticks = [json.loads(line) for line in said.read_text().split("\n")[:-1]]
    assert len(ticks) >= 6
    from lowtide.store import Store

    with Store.open(store, readonly=True) as kept:
        (host,) = kept.hosts()
        series = kept.node_series(host.name)
    # What was shown had been kept before.
    assert series.times[-1] >= ticks[-1]["time"] - 1e-3
    assert len(series) >= len(ticks) - 1


def followed(folder: Path, *ways: tuple[str, ...]) -> list[str]:
    """Follow a busy job in several ways for some seconds; return what each printed."""
    job = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    places = [folder / str(number) for number in range(len(ways))]
    following = [
        subprocess.Popen(
            [LOWTIDE, "watch", "follow", str(job.pid), "-o", str(place), *way],
            stdout=subprocess.PIPE,
            text=True,
        )
        for place, way in zip(places, ways, strict=True)
    ]
    try:
        end = time.monotonic() + 60
        while not all(place.exists() for place in places) and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(3.0)
    finally:
        job.kill()
        job.wait()
    said = [each.communicate(timeout=60)[0] for each in following]
    assert {each.returncode for each in following} == {0}
    return said


def test_one_job_is_followed_closely_until_it_ends(tmp_path: Path) -> None:
    from lowtide.formats.recordings import read_recordings

    (words,) = followed(tmp_path, ())
    assert "next: lowtide learn" in words
    (run_of_it,) = read_recordings(tmp_path / "0")[0].runs
    assert run_of_it.power == "estimated"
    assert run_of_it.step_s == pytest.approx(0.1, abs=0.05)
    assert 1.0 < run_of_it.duration_s < 8.0
    assert run_of_it.columns["cpus_busy"].mean() > 0.1


def test_what_was_followed_is_told_to_scripts_and_programs(tmp_path: Path) -> None:
    said, columns = followed(tmp_path, *((form, "--interval", "0.5") for form in ("--json", "-P")))
    told, lines = json.loads(said), columns.splitlines()
    assert_keys_as_kept("verbs/watch follow.txt", told, lines[0])
    assert told["folder"] == str(tmp_path / "0")
    assert told["runs"][0]["run"] == lines[1].split("|")[0]
    assert told["runs"][0]["energy_j"] > 0


def test_a_job_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for way in ("follow", "--fast"):
        answer = run(capsys, "watch", way, "no-such-job", "-o", str(tmp_path / "followed"))
        assert answer.code == 2
        assert "no-such-job" in answer.err
    assert list(tmp_path.iterdir()) == [], "so that it can be tried again"


def test_a_state_folder_that_cannot_be_made_is_said_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [LOWTIDE, "watch", "--store", str(tmp_path / "file" / "lowtide" / "store.sqlite")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "cannot make the folder" in done.stderr
    assert "--store or LOWTIDE_STORE" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fast", "1", "--once"], "No such option: --once"),
        (["-o", "x"], "No such option: -o"),
        (["--no-store", "--store", "x"], "--no-store keeps nothing"),
        (["--insecure"], "nothing is: add --listen"),
        (["--token-file", "x"], "nothing is: add --listen"),
        (["--open"], "nothing is: add --listen"),
        (["--open", "--token-file", "x", "--listen", "127.0.0.1:0"], "leave out --token-file"),
        (["--once", "--open"], "No such option: --open"),
        (["--compat", "ceems"], "nothing is: add --listen"),
        (["--once", "--listen", "127.0.0.1:0"], "No such option: --listen"),
        (["--once", "--store", "x"], "No such option: --store"),
        (["--fast", "1", "--listen", "127.0.0.1:0"], "No such option: --listen"),
        (["--interval", "nan"], "--interval is a number of seconds, such as 5, not nan"),
        (["--interval", "inf"], "not inf"),
        (["--push", "https://c/alps"], "give both --push and --push-token-file"),
        (
            ["--push", "https://c/alps", "--push-token-file", "x", "--no-store"],
            "leave out --no-store",
        ),
        (["--once", "--idle-power", "nan"], "an idle node draws 0 W or more, not nan W"),
        (["--once", "--marginal", "x.csv"], "goes with the average intensity in --signal"),
        (["--once", "--grid", "gb", "--marginal", "x.csv"], "AVERAGE+MARGINAL"),
        (["--once", "--how", "tz=UTC"], "add --signal"),
        (["--once", "--rules", "fair"], "fair"),
        (["--once", "--meter", "raple"], "rapl"),
        (["--once", "--grid", "windy", "--signal", "x.csv"], "one grid"),
        (["--no-store", "--listen", "0.0.0.0:9470"], "TLS"),
        (["--no-store", "--listen", "127.0.0.1"], "127.0.0.1"),
        (["--compat", "grafana", "--no-store", "--listen", "127.0.0.1:0"], "ceems"),
    ],
)
def test_what_makes_no_sense_is_said(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    answer = run(capsys, "watch", *options)
    assert answer.code == 2
    assert message in answer.err


def test_node_shows_a_table_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "node").out.splitlines()
    assert table[0].split() == [
        "job", "kind", "user", "CPUs", "memory", "power", "energy", "CO2e", "name",
    ]  # fmt: skip
    rest = [line.split()[0] for line in table]
    assert rest[rest.index("idle") :][:3] == ["idle", "unattributed", "node"]
    columns = run(capsys, "node", "-P").out.splitlines()
    header = columns[0].split("|")
    assert header[:4] == ["job_id", "source", "user", "cpus_busy"]
    rows = [dict(zip(header, line.split("|"), strict=True)) for line in columns[1:]]
    assert float(rows[-1]["power_w"]) > 0
    assert {row["power"] for row in rows} <= {"measured", "estimated", "part", ""}


def test_following_a_node_into_a_pipe_prints_one_table_after_the_other(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as output:
        node = subprocess.Popen([LOWTIDE, "node", "--follow", "--interval", "0.3"], stdout=output)
    end = time.monotonic() + 20
    while said.read_text().count("\nnode ") < 2 and time.monotonic() < end:
        time.sleep(0.1)
    node.send_signal(signal.SIGINT)
    assert node.wait(timeout=10) == 0
    assert said.read_text().count("unattributed") >= 2


@pytest.mark.parametrize("verb", [["watch", "--once"], ["watch", "--once", "--json"], ["node"]])
def test_a_reader_who_has_seen_enough_ends_it_in_silence(verb: list[str]) -> None:
    reading, writing = os.pipe()
    watch = subprocess.Popen([LOWTIDE, *verb], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    os.close(reading)
    assert watch.communicate(timeout=30)[1] == ""


def test_marginal_emissions_from_a_table(tmp_path: Path) -> None:
    both = tmp_path / "both.csv"
    hours = [time.time() // 3600 * 3600 + 3600 * n for n in range(-1, 3)]
    lines = [f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(hour))},200,700" for hour in hours]
    both.write_text(
        "\n".join(["datetime,average_intensity_g_per_kwh,marginal_intensity_g_per_kwh", *lines])
    )
    done = subprocess.run(
        [
            *(LOWTIDE, "watch", "--once", "--json", "--how", "kind=average"),
            *("--signal", both, "--marginal", both),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    tick = json.loads(done.stdout)
    assert (tick["intensity_g_per_kwh"], tick["marginal_g_per_kwh"]) == (200, 700)
    for job in tick["jobs"]:
        assert job["marginal_g"] == pytest.approx(3.5 * job["carbon_g"])
    together = math.fsum(
        [
            tick["idle_carbon_g"],
            tick["unattributed_carbon_g"],
            *(job["carbon_g"] for job in tick["jobs"]),
        ]
    )
    assert together == pytest.approx(tick["node_carbon_g"], rel=1e-9)


def test_the_zone_is_shown_once_a_provider_has_answered(tmp_path: Path) -> None:
    grid = synthetic_grid("windy", start=0.0, days=1)
    watcher = SimpleNamespace(emissions=SimpleNamespace(grid=None))
    exporter = Exporter(address="127.0.0.1:0")
    page = Exposition(compat=("ceems",))
    with _serving(page, exporter, watcher, Roots(sysfs=tmp_path)) as publish:  # type: ignore[arg-type]
        for zone in ("", "GB"):
            publish(tick())
            _, _, body = exporter.answer("/metrics", compress=False)
            assert f'country_code="{zone}"'.encode() in body
            watcher.emissions.grid = replace(grid, average=replace(grid.average, zone="GB"))


def test_a_second_watch_of_the_same_node_into_one_store_is_refused(tmp_path: Path) -> None:
    store, said = tmp_path / "store.sqlite", tmp_path / "ticks.json"
    command = [LOWTIDE, "watch", "--interval", "0.3", "--json", "--store", str(store)]
    with said.open("w") as output:
        first = subprocess.Popen(command, stdout=output)
    try:
        wait_for_ticks(said, 1)
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        assert second.returncode == 2
        assert f"watched already into {store}, by process {first.pid}" in second.stderr
        assert second.stdout == ""
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=20) == 0
    # Whoever comes after it may watch.
    third = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert third.stdout is not None
    assert third.stdout.readline()
    third.send_signal(signal.SIGTERM)
    assert third.communicate(timeout=20)[1] == ""


def test_a_server_that_hangs_holds_up_neither_ticks_nor_the_end(
    tmp_path: Path, postgres: str
) -> None:
    said = tmp_path / "ticks.json"
    port = int(postgres.rpartition(":")[2].partition("/")[0])
    with Line(port) as line:
        store = postgres.replace(f":{port}/", f":{line.port}/")
        with said.open("w") as output:
            watch = subprocess.Popen(
                [LOWTIDE, "watch", "--interval", "0.2", "--json", "--store", store],
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
            )
        wait_for_ticks(said, 3)
        line.hang()
        begin = time.monotonic()
        wait_for_ticks(said, said.read_text().count("\n") + 8)
        assert time.monotonic() - begin < 4, "1.6 s where nothing is held up"
        begin = time.monotonic()
        watch.send_signal(signal.SIGTERM)
        complained = watch.communicate(timeout=30)[1]
        assert time.monotonic() - begin < 10
    assert watch.returncode == 0
    assert "ticks could not be kept" in complained
    assert "Traceback" not in complained


def wait_for_ticks(said: Path, count: int) -> None:
    end = time.monotonic() + 20
    while said.read_text().count("\n") < count and time.monotonic() < end:
        time.sleep(0.05)
    assert said.read_text().count("\n") >= count
