"""Where nothing can be kept, verbs do what they can: jobs are run, and what was found is told."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from lowtide.acting.tag import decode
from lowtide.formats.recording_writer import RecordingWriter
from support.commands import run
from support.users import run_as

# Stand in for Slurm: an empty queue, and a controller that takes every job.
PROGRAMS = {
    "squeue": "exit 0",
    "sinfo": "echo 'main* 0/8/0/8'",
    "scontrol": "cat taken 2>/dev/null; exit 0",
    "scancel": "exit 0",
    "sbatch": """
for word; do [ "$word" = --test-only ] && exit 0; done
printf '%s\\n' "$@" > taken
echo 42
""",
}
QUEUE = """
[grid]
synthetic = "windy"
days = 4
[workload]
duration = "6h"
wait = "6h"
interruptible = "anywhere"
arrivals = { kind = "periodic", period = "1h" }
lengths = "1h"
jobs = { kind = "constant", power_w = 400 }
[cluster]
cpus_per_node = 1
"""
WORDS = ("--finish-by", "+30h", "--grid", "windy", "--no-check")


@pytest.fixture(params=["file", "full"])
def journal(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A place where no file can be made: below something that is no folder, or on a full disk."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "train.sh").write_text("#!/bin/bash\ntrue\n")
    place = tmp_path / "acting"
    if request.param == "file":
        place.write_text("")
    else:

        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("lowtide.files.os.fsync", no_room)
        monkeypatch.setattr("lowtide.files.Path.replace", no_room)
    monkeypatch.setenv("LOWTIDE_ACTING", str(place))
    return place


def test_a_job_is_submitted(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*WORDS, "--profile", "h200-day", "--json", "train.sh")
    answer = run(capsys, "sbatch", *words)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["job_id"] == "42"
    # Its promise is whole, only its profile is not known to whoever moves it.
    assert f"cannot write {journal}" in answer.err and "constant" in answer.err
    comment = next(line for line in Path("taken").read_text().splitlines() if "lt1:" in line)
    tag = decode(comment.removeprefix("--comment="))[0]
    assert tag is not None
    assert (tag.profile, tag.begin is not None) == ("", True)


@pytest.mark.parametrize("words", [("queue",), ("queue", "waits"), ("drive", "--once")])
def test_jobs_are_looked_after(
    words: tuple[str, ...], journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, *words, "--grid", "windy", "--json")
    assert answer.code == 0, answer.err
    assert "lowtide's own" not in answer.err
    json.loads(answer.out)


def test_a_script_that_cannot_be_wrapped_is_named_with_the_cure(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", no_room)
    answer = run(capsys, "sbatch", *WORDS, "--saves", "-t", "60", "train.sh")
    assert answer.code == 2
    assert "TMPDIR" in answer.err and not Path("taken").exists()


def test_what_was_computed_is_told_where_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "x"
    job = ("-t", "60", "--power", "300", "--deadline", "+4h", "--grid", "windy")
    queue, sites = str(tmp_path / "queue.toml"), str(tmp_path / "sites.toml")
    Path(queue).write_text(f"{QUEUE}nodes = 4\n")
    Path(sites).write_text(f"{QUEUE}[sites.a]\nnodes = 2\n[sites.b]\nnodes = 2\n")
    table = ("--effort", "0.05", "--jobs-table", f"{below}.csv")
    by_hour = ("--elastic", "0.5:0.6", "--by-hour")
    for words in (
        ("learn", "h200", "-o", f"{below}.toml", "--image", f"{below}.png"),
        ("tradeoff", *job, "--image", f"{below}.png"),
        ("plan-cluster", queue, *table, "--image", f"{below}.png"),
        ("plan-cluster", queue, *table, *by_hour),
        ("plan-cluster", sites, *table),
        ("recording", "show", "h200", "--run", "full_0", "--image", f"{below}.png"),
    ):
        told = run(capsys, *words)
        assert told.code == 2
        assert f"cannot write {below}" in told.err
        # Of jobs that keep their width nothing is told but the plan.
        assert len(told.out.splitlines()) > (0 if "--by-hour" in words else 4), words
        assert str(below) not in told.out


@pytest.mark.parametrize(
    "words",
    [
        ("learn", "h200", "--image", "x.pdf"),
        ("learn", "h200", "-o", "x.csv"),
        ("model", "h200", "--image", "x.pdf"),
        ("tradeoff", "-t", "60", "--deadline", "+4h", "--grid", "windy", "--image", "x.pdf"),
    ],
)
def test_files_of_no_known_kind_are_refused_before_anything_is_computed(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object, **__: object) -> None:
        raise AssertionError("it was computed before")

    for name in ("learning.learn", "learning.utilisation.learn_utilisation"):
        monkeypatch.setattr(f"lowtide.{name}", computed)
    monkeypatch.setattr(sys.modules["lowtide.policies.tradeoff"], "tradeoff", computed)
    told = run(capsys, *words)
    assert (told.code, told.out) == (2, "")
    assert "x." in told.err and "computed" not in told.err


@pytest.mark.parametrize("words", [("--meter", "nosuch"), ("-o", "file/x"), ("-o", "kept")])
def test_a_program_that_waits_is_refused_what_it_cannot_have_before_it_does(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waited(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    RecordingWriter("kept")
    before = sorted(Path("kept").iterdir())
    module = sys.modules["lowtide.cli.run"]
    monkeypatch.setattr(module._Turns, "wait", waited)
    told = run(capsys, "run", *words, "--", "touch", "ran")
    assert told.code == 2, told.err
    assert not Path("ran").exists()
    assert sorted(Path("kept").iterdir()) == before
    # Whoever gives up waiting finds the folder as it was.
    assert run(capsys, "run", "-o", "other", "--", "touch", "ran").code == 130
    assert not Path("other").exists()


def test_who_may_not_look_at_folders_of_his_own_is_told_what_he_asks(common: Path) -> None:
    """As with a home that a site has closed: nothing can be read there, nor written."""
    (common / "closed").mkdir(mode=0o700)
    programs = common / "bin"
    programs.mkdir(mode=0o755)
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = {
        "LOWTIDE_ACTING": str(common / "closed" / "acting"),
        "PATH": f"{programs}:/usr/bin:/bin",
    }
    for words, code, told in (
        (("queue", "--json"), 0, '"jobs"'),
        (("drive", "--once", "--grid", "windy"), 0, "is not kept"),
        (("drive", "--once", "--signal", "closed/grid.csv"), 2, "closed/grid.csv"),
    ):
        done = run_as(65534, ["-m", "lowtide", *words], environment, common)
        said = done.stdout + done.stderr
        assert (done.returncode, told in said, "lowtide's own" in said) == (code, True, False), said
