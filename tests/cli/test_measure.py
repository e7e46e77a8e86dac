"""`lowtide measure` and `lowtide mark`, as a shell sees them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.cli import main
from lowtide.formats.recording_folder import read
from lowtide.meters import source
from support.steady import Steady

pytestmark = pytest.mark.alone

LOWTIDE = [sys.executable, "-c", "from lowtide.cli import main; main()"]


def lowtide(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOWTIDE, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("no-such-program", 127, "nothing of that name is on the PATH"),
        ("./no-such-program", 127, "there is no such file"),
        ("here.sh", 127, "say ./here.sh"),
        ("./here.sh", 126, "chmod +x"),
        ("./folder", 126, "it is a folder"),
    ],
)
def test_what_is_no_program_is_refused_at_once(
    tmp_path: Path, program: str, code: int, words: str
) -> None:
    (tmp_path / "here.sh").write_text("#!/bin/sh\n")
    (tmp_path / "folder").mkdir()
    begun = time.monotonic()
    done = lowtide("measure", "--idle", "30", "-o", "rec", "--", program, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
    assert time.monotonic() - begun < 20
    assert not (tmp_path / "rec").exists()


def test_what_is_to_resume_is_looked_for_before_the_start(tmp_path: Path) -> None:
    words = ["measure", "--experiment", "stop-resume", "--stop-after-mark", "a", "-o", "rec"]
    done = lowtide(*words, "--resume", "no-such -x", "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 127
    assert not (tmp_path / "ran").exists()


def test_what_is_made_first_may_be_missing_before(tmp_path: Path) -> None:
    make = "printf '#!/bin/sh\\nsleep 0.3; exit 5\\n' > made; chmod +x made"
    words = ["measure", "--idle", "0", "--before", make, "-o", "rec"]
    assert lowtide(*words, "--", "./made", cwd=tmp_path).returncode == 5
    words = ["measure", "--idle", "30", "--before", "true", "-o", "other"]
    begun = time.monotonic()
    assert lowtide(*words, "--", "./never", cwd=tmp_path).returncode == 127
    assert time.monotonic() - begun < 20


def test_a_program_that_a_signal_ended_has_the_code_of_shells(tmp_path: Path) -> None:
    script = "sleep 0.2; kill -9 $$"
    done = lowtide("measure", "--idle", "0", "-o", "r", "--", "sh", "-c", script, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["--experiment", "idle"], []),
        (["--experiment", "startup", "--stop-after-mark", "a"], ["a"]),
        ([], ["exit 3"]),
        ([], ["true"]),
    ],
)
def test_the_next_step_that_is_offered_works(
    tmp_path: Path, words: list[str], program: list[str]
) -> None:
    mark = f"{sys.executable} -c 'import lowtide; lowtide.mark(\"a\")'"
    script = [f"sleep 0.5; {mark if each == 'a' else each}; sleep 0.5" for each in program]
    script = [each.replace("exit 3; sleep 0.5", "exit 3") for each in script]
    what = ["--", "sh", "-c", *script] if script else []
    done = lowtide("measure", "--idle", "1", "-o", "rec", *words, *what, cwd=tmp_path)
    assert "Kept in rec" in done.stderr
    offered = "next: lowtide learn rec" in done.stderr
    assert offered == (lowtide("learn", "rec", cwd=tmp_path).returncode == 0)
    assert offered == (program == ["true"])


@pytest.mark.parametrize("how", ["--json", "-P"])
def test_stdout_holds_the_document_alone(tmp_path: Path, how: str) -> None:
    words = ["measure", "--idle", "0", how, "--before", "echo before", "--event", "h=hello"]
    done = lowtide(*words, "-o", "rec", "--", "sh", "-c", "echo hello; sleep 0.3", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["before", "hello"]
    if how == "--json":
        (run,) = json.loads(done.stdout)["runs"]
        assert (run["events"], run["exit_status"], run["missing_s"]) == (1, 0, 0)
    else:
        assert [line.split("|")[0] for line in done.stdout.splitlines()] == ["run", "full_0"]


def test_without_patterns_stdout_holds_the_document_alone(tmp_path: Path) -> None:
    done = lowtide("measure", "--idle", "0", "--json", "-o", "r", "--", "echo", "hi", cwd=tmp_path)
    assert done.stderr == "hi\n"
    (run,) = json.loads(done.stdout)["runs"]
    assert run["energy_j"] is None


@pytest.mark.parametrize("options", [[], ["--event", "nothing=never said"]])
def test_stdout_is_the_programs_byte_by_byte(tmp_path: Path, options: list[str]) -> None:
    wanted = bytes(range(256)) * 400 + b"\xff\x00no line end"
    (tmp_path / "data").write_bytes(wanted)
    words = ["measure", "--idle", "0", *options, "-o", "rec", "--", "cat", "data"]
    done = subprocess.run([*LOWTIDE, *words], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == wanted
    assert b"Kept in rec" in done.stderr


def test_a_stop_that_never_came_resumes_nothing(tmp_path: Path) -> None:
    mark = f"{sys.executable} -c 'import lowtide; lowtide.mark(\"epoch_1\")'"
    words = ["measure", "--idle", "0.2", "--experiment", "stop-resume", "-o", "rec"]
    done = lowtide(*words, "--stop-after-mark", "epoch_2", "--", "sh", "-c", mark, cwd=tmp_path)
    assert done.returncode == 1
    assert "before the mark 'epoch_2' came; marks seen: epoch_1" in done.stderr
    assert [run.id for run in read(tmp_path / "rec")] == ["stop_0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_reaches_the_program(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        "def end(*_): pathlib.Path('told').touch(); sys.exit(5)\n"
        f"signal.signal({int(number)}, end); pathlib.Path('ready').touch(); time.sleep(30)"
    )
    command = [*LOWTIDE, "measure", "--idle", "0.3", "-o", "rec", "--", sys.executable, "-c", code]
    measuring = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(measuring.pid, number)
    _, said = measuring.communicate(timeout=30)
    assert measuring.returncode == 128 + number
    assert (tmp_path / "told").exists()
    run = read(tmp_path / "rec")["full_0"]
    assert run.exit_status == 5
    assert run.sampled >= 2
    assert f"the measurement was ended by {number.name}" in run.notes
    assert b"full_0" in said


def test_a_kill_after_two_seconds_leaves_a_readable_recording(tmp_path: Path) -> None:
    command = [*LOWTIDE, "measure", "--idle", "0.2", "-o", "rec", "--", "sleep", "4"]
    measuring = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    manifest, deadline = tmp_path / "rec" / "manifest.json", time.monotonic() + 30
    while not manifest.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(2)
    measuring.kill()
    measuring.wait()
    run = read(tmp_path / "rec")["full_0"]
    assert run.times.size >= 8
    assert any("cut short" in note for note in run.notes)


def test_output_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    code = "for n in range(4000): print('x' * 60)\nprint('epoch 1')"
    words = ["measure", "--idle", "0.2", "--event", r"e_{}=epoch (\d)?", "-o", "rec"]
    measuring = subprocess.Popen(
        [*LOWTIDE, *words, "--", sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert measuring.stdout is not None
    measuring.stdout.readline()
    measuring.stdout.close()
    measuring.wait(timeout=30)
    recording = read(tmp_path / "rec")
    (run,) = (*recording, *recording.unmeasured)
    assert run.exit_status == 0
    assert [event.label for event in run.events] == ["e_1"]


def test_listening_to_five_million_lines_costs_little(tmp_path: Path) -> None:
    def spent_s(folder: str, *options: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = ["measure", "--meter", "estimate", "--idle", "0", "-o", folder, *options, "--"]
        with (tmp_path / "out").open("wb") as sink:
            done = subprocess.run(
                [*LOWTIDE, *words, "seq", "1", "5000000"], cwd=tmp_path, stdout=sink, check=True
            )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0
        assert (tmp_path / "out").read_bytes().count(b"\n") >= 5_000_000
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    plain_s = spent_s("plain")
    heard_s = spent_s("heard", "--event", r"n_{}=^(\d+)00000$")
    recording = read(tmp_path / "heard")
    (run,) = (*recording, *recording.unmeasured)
    assert [event.label for event in run.events] == [f"n_{n}" for n in range(1, 51)]
    assert heard_s < 1.5 * plain_s


def test_the_share_and_the_gpus_are_checked_before_the_start(tmp_path: Path) -> None:
    for option, value in (("--share", "half"), ("--gpus", "GPU-none")):
        words = ["measure", "--meter", "estimate", option, value, "-o", "r", "--", "touch", "ran"]
        done = lowtide(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert value in done.stderr
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "r").exists()


def test_an_empty_mark_is_refused(tmp_path: Path) -> None:
    done = lowtide("mark", "", cwd=tmp_path)
    assert done.returncode == 2
    assert "a mark says what begins, such as epoch_1" in done.stderr


def test_power_that_is_not_known_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As where no GPU is the program's, and there is no other meter.
    monkeypatch.setattr(source, "choose_meters", lambda *_, **__: [Steady(absurd=True)])
    shown = {}
    for option in ("--json", "-P", "--share=node"):
        words = ["measure", "--idle", "0.1", "-o", str(tmp_path / option), option]
        monkeypatch.setattr(sys, "argv", ["lowtide", *words, "--", "sleep", "0.2"])
        with contextlib.suppress(SystemExit):
            main()
        said = capsys.readouterr()
        shown[option] = said.out or said.err
    (row,) = json.loads(shown["--json"])["runs"]
    assert (row["energy_j"], row["power"]) == (None, None)
    header, line = (each.split("|") for each in shown["-P"].splitlines())
    assert dict(zip(header, line, strict=True))["power"] == ""
    assert shown["--share=node"].splitlines()[1].split()[2:5] == ["---", "---", "---"]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("2>/dev/full", 0),
        ("2>/dev/full", 7),
        ("2>&-", 7),
        ("<&- >&- 2>&-", 7),
        ("2>&1 | true", 0),
        ("2>&1 | true", 7),
        ("--json >/dev/full", 7),
    ],
)
def test_whoever_cannot_be_told_the_exit_code_is_the_programs(
    tmp_path: Path, told: str, code: int
) -> None:
    option = "--json" if "--json" in told else ""
    measure = f"measure --idle 0 --meter estimate -o rec {option}"
    program = f"sh -c 'echo ran > ran; exit {code}'"
    line = f'"$0" -c "$1" {measure} -- {program} {told.removeprefix("--json")}'
    shell = ["bash", "-c", f'{line}; exit "${{PIPESTATUS[0]}}"', *LOWTIDE[::2]]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert done.returncode == code, done
    recording = read(tmp_path / "rec")
    assert [run.exit_status for run in (*recording, *recording.unmeasured)] == [code]


def test_where_no_folder_can_be_made_the_program_runs_all_the_same(tmp_path: Path) -> None:
    words = ["measure", "--idle", "0", "--meter", "estimate"]
    program = ["--", "sh", "-c", "echo ran; exit 7"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def measured(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LOWTIDE, *words, *options, *program],
            cwd="/proc",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    done = measured()
    (folder,) = tmp_path.glob("recording-*")
    assert (done.returncode, done.stdout) == (7, "ran\n")
    assert f"this recording goes to {folder}\n" in done.stderr
    recording = read(folder)
    assert [run.exit_status for run in (*recording, *recording.unmeasured)] == [7]
    # Who names a folder is told before anything is run.
    refused = measured("-o", "rec")
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.parametrize(
    ("options", "given", "added"),
    [
        ([], {}, {}),
        (["--event", "a=b"], {}, {"PYTHONUNBUFFERED": "1"}),
        (["--event", "a=b"], {"PYTHONUNBUFFERED": ""}, {}),
    ],
)
def test_a_program_finds_its_environment_as_it_was(
    tmp_path: Path, options: list[str], given: dict[str, str], added: dict[str, str]
) -> None:
    unset = ("HOME", "PYTHONUNBUFFERED")
    before = {name: value for name, value in os.environ.items() if name not in unset} | given
    words = ["measure", "--idle", "0", "--meter", "estimate", "-o", "rec", *options]
    done = subprocess.run(
        [*LOWTIDE, *words, "--", "env", "-0"],
        cwd=tmp_path,
        env=before,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    own = {name for name in found if name.startswith("LOWTIDE_")} - set(before)
    assert len(own) == 3
    assert {name: value for name, value in found.items() if name not in own} == before | added


@pytest.mark.parametrize("live", [True, False])
def test_watts_are_shown_on_a_terminal_if_asked_for(tmp_path: Path, live: bool) -> None:
    # A meter of one's own is a plug-in; the estimate is always there, and stands for any.
    ours, theirs = pty.openpty()
    words = ["measure", "--idle", "0", "--interval", "0.1", "-o", "rec", "-P"]
    words += ["--live"] if live else []
    with subprocess.Popen(
        [*LOWTIDE, *words, "--", "sleep", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as program:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):
            # The terminal is gone once the program is.
            while part := os.read(ours, 4096):
                said += part
        os.close(ours)
        assert program.stdout is not None
        table = program.stdout.read().decode()
    assert program.returncode == 0
    shown = re.findall(rb"\r +(\d+\.\d|nan) W ", said)
    assert bool(shown) is live
    # The last watts are gone from the line before anything else is said there.
    assert (said.rpartition(b" W ")[2].startswith(b"\r\x1b[K")) is live
    # What scripts read stays as it is.
    assert [line.split("|")[0] for line in table.splitlines()] == ["run", "full_0"]
