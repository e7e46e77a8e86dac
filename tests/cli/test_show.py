"""`lowtide show`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.cli.output import print_page_table
from lowtide.formats.sonar import read_ticks
from lowtide.page.page import Table
from lowtide.store import Store
from support import ticks
from support.commands import run
from support.snapshots import unit
from support.watched import FACTS, START, course, daily, write_store


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one job that was watched to its end."""
    path = tmp_path_factory.mktemp("watched") / "store.sqlite"
    write_store(path)
    return path


@pytest.fixture(autouse=True)
def inside(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWTIDE_STORE", str(kept))
    monkeypatch.setenv("COLUMNS", "80")
    return


def test_people_see_charts_tables_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "show", "4711")
    assert (answer.code, answer.err) == (0, "")
    out = answer.out
    assert out.startswith("Job 4711 (training) of ada on n1: completed.\n")
    for part in (
        "ran 07:00:00",
        "█",
        "   cores ╵04 Jul",
        "mean/asked",
        "Will it scale? cannot tell",
        "Drew 2.25 kWh (measured): 321.4 W on average",
        "phase 2      2  02:00:00  400 W",
        "1-00:00:00",
        "too early for waits of 2-00:00:00, which need it up to 2024-07-06 07:00 UTC: name it with",
    ):
        assert part in out, part
    assert all(len(line) <= 80 for line in out.splitlines() if "█" in line)


def test_programs_get_everything(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "show", "4711", "--json").out)
    assert document["job"]["power"] == "measured"
    assert document["uses"]["cpus"]["peak_of_asked"] == 0.5
    assert document["uses"]["gpu_memory_bytes"]["peak_of_asked"] == 0.25
    assert [phase["times"] for phase in document["phases"]] == [1, 2, 2]
    assert (document["phases_from"], document["pue"]) == ("samples", 1.0)
    assert document["at_once"] == pytest.approx(document["job"]["carbon_g"], rel=1e-3)
    assert (document["job"]["unmetered_s"], document["job"]["unpriced_j"]) == (0.0, 0.0)
    savings = [each["saving"] for each in document["waiting"]]
    assert len(savings) == 2
    assert 0 < savings[0] < savings[1] < 1
    assert len(document["series"]["times"]) == len(document["series"]["power_w"]) == 42
    lines = run(capsys, "show", "4711", "-P").out.splitlines()
    assert lines[0].startswith("job|what|asked|node|mean|peak")
    assert lines[1].split("|")[:5] == ["4711", "cpus", "16", "64", "8"]


def test_stopping_saves_no_less_than_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    def saved(*words: str) -> float:
        answer = run(capsys, "show", "4711", "--wait", "12h", *words, "--json")
        return float(json.loads(answer.out)["waiting"][0]["saving"])

    assert saved("--interruptible", "anywhere") >= saved() > 0


def test_a_page_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "show", "4711", "--html", "job.html")
    assert answer.out.endswith("written: job.html\n")
    page = Path("job.html").read_text()
    for part in ("What it used over time", "Will it scale?", "What waiting would have saved"):
        assert part in page
    assert page.count('<div class="chart"></div>') >= 2
    # On a phone charts are as wide as the page, and wide tables move in a box of their own.
    assert "fitted(charts[number], place.clientWidth)" in page
    assert page.count('<div class="wide"><table>') == 4
    assert "src=" not in page.split("<script>")[0]


def test_starts_of_a_job_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path / "two.sqlite") as store:
        for tick in course(unit(5, started=START), hours=1.0, step_s=600.0, cpus=2.0):
            store.append(tick)
        again = replace(FACTS, job_id="5", shown_id="5", state="pending", restarts=1)
        store.put_facts(
            [
                replace(FACTS, job_id="5", shown_id="5", state="failed", exit_code=3),
                replace(again, started=START + 9e4, ended=None, state="running", exit_code=None),
                replace(FACTS, job_id="6", shown_id="60_1"),
                replace(FACTS, job_id="7", shown_id="60_2"),
                # The last element to start has the number of its array.
                replace(FACTS, job_id="70", shown_id="70_1"),
            ]
        )
    words = ("--store", str(tmp_path / "two.sqlite"))
    last = run(capsys, "show", "5", *words)
    # Nobody watches its host any more: whether it still runs is not known.
    assert "how it ended is not known" in last.out.splitlines()[0]
    assert "It was started 2 times: --start 1, 2 shows each." in last.out
    first = run(capsys, "show", "5", "--start", "1", *words)
    assert "failed, exit status 3" in first.out
    for wrong, said in (
        (("show", "5", "--start", "3"), "was started 2 times"),
        (("show", "60"), "an array of 2 jobs: show one of 60_1, 60_2; lowtide jobs -j 60 lists"),
        (("show", "70"), "70 is an array of 1 job: show one of 70_1"),
        (("show", "99"), "no job 99 was seen"),
        (("show", "5", "--how", "gaps=hold"), "leave it out"),
        (("show", "5", "--wait", "soon"), "cannot read duration"),
        (("show", "5", "--interruptible", "foo"), "known are anywhere, never"),
        (("show", "5", "--grid", "moon"), "unknown grid 'moon'"),
        (("show", "5", "--grid", "windy", "--signal", "DE.csv"), "not both"),
        (("show", "5", "--html", "new/x.html"), "there is no folder new"),
    ):
        answer = run(capsys, *wrong, *words)
        assert (answer.code, answer.out) == (2, "")
        assert said in answer.err
    assert not Path("new").exists()
    # A step is shown as its job, and the number of an element's own is enough.
    assert run(capsys, "show", "5.batch", *words).out == last.out
    assert "Job 60_2 " in run(capsys, "show", "7", *words).out
    # A job that was never seen is shown as far as it is known.
    assert "---" in run(capsys, "show", "60_1", *words).out


def test_jobs_of_one_number_of_two_clusters_are_no_starts_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "two.sqlite")
    with Store.open(place) as store:
        store.put_facts(
            [
                replace(FACTS, job_id="5", shown_id="5", cluster=name, account=name)
                for name in ("alpha", "beta")
            ]
        )
    shown = [run(capsys, "show", "5", "--start", number, "--store", place) for number in "12"]
    for answer in shown:
        assert "Clusters alpha, beta have such a job: --start 1, 2 shows each." in answer.out
        assert "was started" not in answer.out
    listed = run(
        capsys, "jobs", "-j", "5", "-M", "Beta", "-S", "2024-01-01", "--json", "--store", place
    )
    assert [job["cluster"] for job in json.loads(listed.out)] == ["beta"]


def test_samples_of_another_monitor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"v=0.13.0,time=2024-03-01T{9 + at // 12:02}:{at % 12 * 5:02}:00+00:00,host=n7,user=bob,"
        f"cores=64,cmd=md,job=7,pid=70,cputime_sec={300 * at},rssanonkib=1048576"
        for at in range(24)
    ]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    with Store.open(tmp_path / "logs.sqlite") as store:
        for tick in read_ticks([tmp_path / "log.csv"]):
            store.append(tick)
    out = run(capsys, "show", "7", "--store", str(tmp_path / "logs.sqlite")).out
    assert "Will it scale? cannot tell: never above 1 of 64 cores, but how busy its node" in out
    assert "What it drew and emitted is not known." in out
    assert "No phases" in out


def test_a_grid_goes_on_where_the_watcher_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    start = now - now % 600 - 8 * 3600
    with Store.open(tmp_path / "today.sqlite") as store:
        for tick in course(
            unit(5, started=start), hours=1.0, step_s=60.0, intensity=lambda _: 400.0, start=start
        ):
            store.append(tick)
    words = ("show", "5", "--store", str(tmp_path / "today.sqlite"))
    alone = run(capsys, *words).out
    assert "not at all" in alone
    assert "too early for waits of 06:00:00, 1-00:00:00, 2-00:00:00" in alone
    document = json.loads(run(capsys, *words, "--grid", "windy", "--json").out)
    assert [each["wait_s"] / 3600 for each in document["waiting"]] == [6, 24, 48]
    assert all(each["synthetic"] for each in document["waiting"])
    assert document["at_once"] == pytest.approx(document["job"]["carbon_g"], rel=1e-3)
    assert "from then on the one named" in document["notes"][0]


def test_what_is_lacking_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ticks = [
        replace(tick, unmetered_s=0.0 * tick.energy_j + 90.0, unpriced_j=tick.energy_j / 2)
        for tick in course(unit(5, started=START), hours=1.0, step_s=600.0, intensity=daily)
    ]
    with Store.open(tmp_path / "part.sqlite") as store:
        for tick in ticks:
            store.append(tick)
    out = run(capsys, "show", "5", "--store", str(tmp_path / "part.sqlite")).out
    assert "Drew at least 0.15 kWh (measured)" in out
    assert "What it drew in 00:01:30 of its time nobody can tell." in out
    assert "Emitted at least" in out
    assert "What 270 kJ of that energy emitted nobody can tell: the grid was not known." in out


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_tables_fit_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    header = ("what", "amount", "why")
    rows = [["memory", "35.7 GiB", "it held as much as it had asked for, and then some more"]]
    print_page_table(Table(header=header, rows=rows))
    out = re.sub("\x1b\\[[0-9]*m", "", capsys.readouterr().out)
    assert "35.7 GiB" in out
    assert "memory" in out
    assert all(len(line.rstrip()) <= columns for line in out.splitlines())
    wide = [["memory", *["1234567 GiB"] * 8]]
    header = ("", *[f"column{number}" for number in range(8)])
    print_page_table(Table(header=header, rows=wide))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (2 if columns == 200 else 9)
    assert "1234567 GiB" in lines[1]


def test_gpus_that_nobody_read_are_not_said_to_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm gave it four GPUs, and the watcher could read none."""
    watcher = ticks.Watcher()
    job = ticks.unit(7)
    with Store.open(tmp_path / "store.sqlite") as store:
        for _ in range(12):
            store.append(watcher.tick([job], step_s=900.0))
        ended = ticks.START + 12 * 900
        store.put_facts(
            [ticks.facts(7, state="completed", started=ticks.START, ended=ended, gpus=4.0)]
        )
    place = ("--store", str(tmp_path / "store.sqlite"))
    (row,) = json.loads(run(capsys, "jobs", "-j", "7", "--json", *place).out)
    assert (row["gpus"], row["gpu_efficiency"], row["peak_gpus"]) == (4.0, None, None)
    out = run(capsys, "show", "7", *place).out
    assert "no GPU" not in out
    assert "0 % of the GPUs" not in out
    assert "Does it waste GPUs? cannot tell: what it used of its GPUs is not known." in out


def test_four_hundred_nodes_fit_into_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tuple(f"n{number:03}" for number in range(1, 61))
    job = ticks.unit(7)
    with Store.open(tmp_path / "store.sqlite") as store:
        for number, name in enumerate(names):
            watcher = ticks.Watcher(host=name, time=ticks.START + 0.1 * number, power_w=1700.0)
            for _ in range(8):
                store.append(watcher.tick([job], cpus=32.0))
        store.put_facts([ticks.facts(7, state="completed", cpus=64.0 * 60, nodes=names)])
        [record] = store.jobs(ids=["7"])
        series = store.series(record)
    # All that was used is there, whenever each host ticks, in hardly more steps than one has.
    assert np.nansum(series.columns["energy_j"]) == pytest.approx(60 * 8 * 17000.0, rel=1e-6)
    assert np.nansum(series.columns["cpu_s"]) == pytest.approx(60 * 8 * 320.0, rel=1e-6)
    assert len(series) <= 40
    out = run(capsys, "show", "7", "--store", str(tmp_path / "store.sqlite")).out
    assert "on n[001-060]:" in out
    assert "e+0" not in out
    assert "3,840" in out
    listed = run(
        capsys, "jobs", "-j", "7", "-o", "NodeList", "--store", str(tmp_path / "store.sqlite")
    ).out
    assert "n[001-060]" in listed
