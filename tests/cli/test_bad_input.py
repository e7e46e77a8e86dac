"""Bad input gets one line that says the rule, the value and the cure; exit code 2; no traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.formats import write_signal
from support.commands import run

HEADER = "datetime,carbon_intensity_g_per_kwh"
PLAN = ("plan", "--signal", "day.csv", "--now", "start", "--power", "100")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a day of signal, and files that are wrong in one way each."""
    monkeypatch.chdir(tmp_path)
    day = lt.Signal.from_values([300.0] * 24, start="2024-07-01T00:00Z", step_s="1h")
    write_signal(day, tmp_path / "day.csv")
    stamps = [f"2024-07-01T{hour:02}:00:00Z" for hour in range(6)]

    def write(name: str, *rows: str, header: str = HEADER) -> None:
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n")

    write("negative.csv", *(f"{stamp},{-1 if stamp == stamps[3] else 5}" for stamp in stamps))
    write("duplicate.csv", *(f"{stamp},5" for stamp in [*stamps[:3], stamps[2], *stamps[3:]]))
    write("backward.csv", *(f"{stamp},5" for stamp in [*stamps[:4], stamps[1], *stamps[4:]]))
    write("naive.csv", *(f"{stamp[:-1]},5" for stamp in stamps))
    write(
        "mixed.csv", *(f"{stamp},5" for stamp in stamps[:3]), *(f"{s[:-1]},5" for s in stamps[3:])
    )
    write("gap.csv", *(f"{stamp},5" for stamp in [*stamps[:2], *stamps[3:]]))
    write("hours.csv", "0,1.5,4", "1,2,1", "2,0.5,1", header="arrival_time,length,cpus")
    write("columns.csv", "1,2", header="foo,bar")
    write(
        "strange.csv", *(f"{stamp},5" for stamp in stamps), header="datetime,intensity_mg_per_kwh"
    )
    write("huge.csv", *(f"{stamp},1e300" for stamp in stamps))
    (tmp_path / "tz=UTC").mkdir()
    (tmp_path / "tz=UTC" / "negative.csv").write_text((tmp_path / "negative.csv").read_text())
    (tmp_path / "broken.json").write_text('{"history": [')
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "bad.toml").write_text('work = [{ name = "a", duration_s = 5, power_w = -3 }]')
    (tmp_path / "key.toml").write_text('wrok = [{ name = "a", duration_s = 5, power_w = 3 }]')
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*PLAN, "-t", "3:30:00", "--deadline", "+3h"), "leaves 3 h for a job that needs 3.5 h"),
        ((*PLAN, "-t", "60", "--deadline", "+30h"), "ends 6 h too early"),
        ((*PLAN, "-t", "60", "--deadline", "+3"), "has no unit"),
        ((*PLAN, "-t", "soon", "--deadline", "+3h"), "cannot read duration 'soon'"),
        ((*PLAN, "-t", "60", "--deadline", "2024-07-01T05:00 o'clock"), "cannot read the time"),
        (
            (*PLAN, "--grid", "windy", "-t", "60", "--deadline", "+3h"),
            "what runs is on one grid: give --signal day.csv or --grid windy, not both",
        ),
        (
            ("when", "-t", "60", "--deadline", "+3h", "--grid", "windy", "--now", "start"),
            "--now start is the first moment of a file",
        ),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--tz", "Berlin"), "unknown time zone 'Berlin'"),
        (("when", "-t", "60", "--deadline", "+3h", "--signal", "day.csv"), "--now start for its"),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--policy", "orcale"), "did you mean 'oracle'?"),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--policy", "x"), "known are"),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--interruptible", "no"), "checkpoints"),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--max-starts", "0"), "at least 1"),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--min-run", "2h"), "min_run_s"),
        ((*PLAN, "-t", "60", "--deadline", "+3h", "--profile", "h200"), "leave out --power"),
        ((*PLAN, "--deadline", "+3h"), "say what the job draws"),
        (("plan", "-t", "60", "--power", "1", "--deadline", "+3h"), "--signal FILE, or --grid"),
        (
            ("plan", "-t", "60", "--power", "-1", "--deadline", "+3h", "--grid", "coal"),
            "0 W or more",
        ),
        (
            ("plan", "-t", "60", "--power", "nan", "--deadline", "+3h", "--grid", "coal"),
            "0 W or more",
        ),
        (("plan", "--profile", "bad.toml", "--deadline", "+3h", "--grid", "coal"), "0 W or more"),
        (("plan", "--profile", "key.toml", "--deadline", "+3h", "--grid", "coal"), "'wrok'"),
        (("plan", "--profile", "no.toml", "--deadline", "+3h", "--grid", "coal"), "no such file"),
        (("when", "-t", "60", "--deadline", "+3h", "--grid", "windi"), "did you mean 'windy'?"),
        (("when", "--deadline", "+3h", "--grid", "windy"), "say how long"),
        (("grid", "nowhere"), "neither a file nor a synthetic grid"),
        (("grid", "sunny", "--kind", "cheap"), "known are average, marginal, price"),
        (("grid", "sunny", "--image", "curve.pdf"), ".png or .svg"),
        (("grid", "sunny", "--days", "-1"), "days"),
        (("grid", "negative.csv"), "line 5"),
        (("grid", "duplicate.csv"), "line 5"),
        (("grid", "backward.csv"), "line 6"),
        (("grid", "naive.csv"), "time zone"),
        (("grid", "mixed.csv"), "line 5"),
        (("grid", "gap.csv"), "--how gaps="),
        (("grid", "gap.csv", "--how", "gaps=guess"), "interpolate"),
        (("grid", "gap.csv", "--how", "gap=hold"), "did you mean 'gaps'?"),
        (("grid", "gap.csv", "--how", "hold"), "KEY=VALUE"),
        (("grid", "strange.csv"), "unit 'mg/kwh' is not known"),
        (("grid", "day.csv", "--kind", "price"), "leave it out, or say --how kind=..."),
        (("grid", "day.csv", "--days", "3"), "is a file: leave it out, or say --from and --to"),
        (("grid", "sunny", "--how", "gaps=hold"), "--how says how to read a file"),
        (("convert", "hours.csv", "out.swf", "--how", "tz=UTC"), "says nothing about a job trace"),
        (("convert", "day.csv", "out.csv", "--time-unit", "h"), "says nothing about a signal"),
        (("grid", "huge.csv"), "0 to 100,000 g/kWh"),
        (("grid", "tz=UTC/negative.csv"), "lowtide: tz=UTC/negative.csv, line 5"),
        (("grid", "columns.csv"), "columns.csv"),
        (("grid", "broken.json"), "broken.json"),
        (("grid", "empty.csv"), "empty"),
        (("grid", "binary.csv"), "binary.csv"),
        (("convert", "hours.csv", "out.swf"), "--time-unit="),
        (("grid", "columns.csv"), "say which with --how format="),
        (("convert", "columns.csv", "out.swf"), "columns.csv"),
        (("convert", "day.csv", "out.xyz"), ".swf"),
        (("convert", "missing.csv", "out.swf"), "no such file"),
    ],
)
def test_bad_input_teaches(
    arguments: tuple[str, ...], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, *arguments)
    assert answer.code == 2
    assert says in answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.err.startswith("lowtide: ")
    assert not list(files.glob("out.*"))


def test_nothing_is_left_behind_when_writing_fails(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "taken").mkdir()
    answer = run(capsys, *PLAN, "-t", "60", "--deadline", "+3h", "-o", "taken")
    assert answer.code == 2
    assert "cannot write taken" in answer.err
    assert sorted(files.glob(".taken*")) == []


def test_wrong_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "plan", "--wrong")
    assert answer.code == 2
    assert "--wrong" in answer.err


def test_an_error_of_our_own_shows_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: object, **__: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("lowtide.cli.chart.draw", fall)
    monkeypatch.delenv("LOWTIDE_DEBUG", raising=False)
    answer = run(capsys, "grid", "sunny")
    assert answer.code == 1
    assert "RuntimeError: oops" in answer.err
    assert "Traceback" not in answer.err
    monkeypatch.setenv("LOWTIDE_DEBUG", "1")
    assert "Traceback" in run(capsys, "grid", "sunny").err


def test_a_scheduler_of_ones_own_that_breaks_is_told_from_an_error_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOWTIDE_DEBUG", raising=False)
    Path("broken.py").write_text(
        "class Broken:\n    def on(self, event, view):\n        raise KeyError('oops')\n"
    )
    Path("queue.toml").write_text(
        '[grid]\nsynthetic = "sunny"\ndays = 3\n[cluster]\nnodes = 1\ncpus_per_node = 1\n'
        '[workload]\nduration = "4h"\nwait = "6h"\nlengths = "1h"\n'
        'arrivals = { kind = "periodic", period = "1h" }\n'
        'jobs = { kind = "constant", power_w = 400 }\n'
        '[sweep]\npolicy.name = ["broken.py:Broken"]\n'
    )
    answer = run(capsys, "simulate", "queue.toml")
    assert answer.code == 2
    assert answer.err.startswith("lowtide: broken.py, line 3, in on: KeyError: 'oops'. ")
    assert "lowtide's own" not in answer.err
    answer = run(capsys, "sweep", "queue.toml", "-o", "results", "-j", "1")
    assert answer.code == 1
    assert "1 × broken.py, line 3, in on: KeyError: 'oops'" in answer.out + answer.err


def test_interrupting_ends_quietly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowtide.cli.chart.draw", interrupt)
    answer = run(capsys, "grid", "sunny")
    assert answer.code == 130
    assert sys.argv
