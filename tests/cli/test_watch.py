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
from pathlib import Path

import pytest

from support.commands import run

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
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as got:
                    page = got.read().decode()
            except OSError:
                continue
        assert "lowtide_node_power_watts" in page
        assert "ceems_compute_units" in page
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


def test_one_job_is_followed_closely_until_it_ends(tmp_path: Path) -> None:
    from lowtide.formats.recordings import read_recordings

    work = "import time; end = time.time() + 5\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", work], start_new_session=True) as job:
        done = subprocess.run(
            [LOWTIDE, "watch", "--fast", str(job.pid), "-o", str(tmp_path / "followed")],
            timeout=60,
            capture_output=True,
            text=True,
            check=True,
        )
    assert "next: lowtide learn" in done.stdout
    (run_of_it,) = read_recordings(tmp_path / "followed")[0].runs
    assert run_of_it.power == "estimated"
    assert run_of_it.step_s == pytest.approx(0.1, abs=0.05)
    assert 1.0 < run_of_it.duration_s < 8.0
    assert run_of_it.columns["cpus_busy"].mean() > 0.1


def test_a_job_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = run(capsys, "watch", "--fast", "no-such-job", "-o", str(tmp_path / "followed"))
    assert answer.code == 2
    assert "no-such-job" in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fast", "1", "--once"], "leave out --once"),
        (["-o", "x"], "add --fast"),
        (["--no-store", "--store", "x"], "--no-store keeps nothing"),
        (["--insecure"], "nothing does: add --listen"),
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
        "job", "kind", "user", "CPUs", "memory", "GPUs", "power", "energy", "CO2e", "name",
    ]  # fmt: skip
    assert [line.split()[0] for line in table[-3:]] == ["idle", "unattributed", "node"]
    columns = run(capsys, "node", "-P").out.splitlines()
    assert columns[0].split("|")[:3] == ["job", "kind", "user"]
    assert all(line.count("|") == 9 for line in columns)
