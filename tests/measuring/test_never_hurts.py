"""Whatever goes wrong with the measuring, the program runs to its end and its exit code counts."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from lowtide import files
from lowtide.errors import FileProblem, MeterProblem
from lowtide.formats import recording_folder, recording_writer
from lowtide.formats.recording_folder import read
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.marks import append_line
from lowtide.measuring import Recorder, Sampler, Step, sampler
from lowtide.measuring.folders import folder_name, new_folder
from lowtide.meters import Reading
from support.steady import Steady, python

pytestmark = pytest.mark.alone

LOWTIDE = [sys.executable, "-c", "from lowtide.cli import main; main()"]
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.ENOENT)
# It says when it is told to end, and ends with a code of its own.
PROGRAM = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(99))\n"
    "for n in range(8): print('line', n, flush=True); time.sleep(0.08)\n"
    "sys.exit(7)"
)


def record_with(
    writer: RecordingWriter, meter: Any = None, program: str = PROGRAM, **options: Any
) -> tuple[int | None, list[str]]:
    warned: list[str] = []
    sampler = Sampler(meters=[meter or Steady()])
    sampler.open()
    recorder = Recorder(
        writer=writer,
        sampler=sampler,
        interval_s=0.02,
        idle_s=0.1,
        warn=warned.append,
        **options,
    )
    try:
        status = recorder.run("full_0", Step(kind="full", command=python(program)))
        writer.close()
    finally:
        sampler.close()
    return status, warned


def failing(action: Callable[..., Any], chance: Callable[[], bool], number: int) -> Any:
    def fail(*words: Any, **options: Any) -> Any:
        if chance():
            cause = OSError(number, os.strerror(number))
            if action is append_line:
                raise cause
            raise FileProblem(f"cannot write: {cause.strerror}", path="x") from cause
        return action(*words, **options)

    return fail


@pytest.mark.parametrize("seed", range(6))
def test_a_disk_that_fails_now_and_then_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(recording_writer, "_AGAIN_S", 0.01)
    monkeypatch.setattr(recording_writer, "_SELDOM_S", 0.05)
    writer = RecordingWriter(tmp_path / "r", flush_s=0.05)
    appended: list[float] = []
    append = writer.append
    monkeypatch.setattr(
        writer, "append", lambda *words: (appended.append(words[0]), append(*words))
    )
    broken = [True]

    def chance() -> bool:
        return broken[0] and rng.random() < 0.6

    number = ERRNOS[seed % len(ERRNOS)]
    for place, name in ((files, "write_whole"), (recording_folder, "append_line")):
        monkeypatch.setattr(place, name, failing(getattr(place, name), chance, number))
    patterns = [(re.compile(r"line (\d)"), "line_{}")]
    warned: list[str] = []
    sampler = Sampler(meters=[Steady()])
    sampler.open()
    recorder = Recorder(
        writer=writer,
        sampler=sampler,
        interval_s=0.02,
        idle_s=0.1,
        warn=warned.append,
        patterns=patterns,
    )
    status = recorder.run("full_0", Step(kind="full", command=python(PROGRAM)))
    broken[0] = False
    writer.close()
    assert status == 7
    assert writer.unwritten == ""
    run = read(tmp_path / "r")["full_0"]
    assert run.exit_status == 7
    # Every sample and every event is there, once.
    assert run.times.tolist() == appended
    assert [event.label for event in run.events] == [f"line_{n}" for n in range(8)]
    assert run.energy_j() == pytest.approx(100 * run.duration_s)
    # Once of each kind, however often it happened.
    assert len(warned) == 1
    assert os.strerror(number) in warned[0]
    assert any("was kept in memory" in note for note in run.notes)


METHODS = ("begin", "append", "start", "end", "mark", "describe", "note", "flush", "_save")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), KeyError("x"), MemoryError()])
def test_a_writer_that_breaks_in_any_place_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    writer = RecordingWriter(tmp_path / "r", flush_s=0.05)
    monkeypatch.setattr(writer, method, broken)
    monkeypatch.setattr(writer, "close", lambda: None)
    program = "import sys, time; time.sleep(0.15); sys.exit(7)"
    status, warned = record_with(writer, program=program)
    assert status == 7
    assert warned or method in ("flush", "mark", "note")
    assert len(warned) == len(set(warned))


@dataclass
class Broken(Steady):
    """A meter that raises anything, or says nonsense."""

    says: Any = None

    def sample(self) -> Reading:
        self.readings += 1
        if self.readings < 8 or self.says is None:
            return super().sample()
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "says",
    [
        ZeroDivisionError("x"),
        RecursionError("deep"),
        AttributeError("driver gone"),
        OSError(errno.EIO, "I/O"),
        "fifty",
        Reading(time=0.0, power_w=(1.0, 2.0), energy_j=()),
        Reading(time=0.0, power_w=("many",), energy_j=(math.nan,)),  # type: ignore[arg-type]
        Reading(time=0.0, power_w=(-3.0,), energy_j=(math.nan,)),
        Reading(time=0.0, power_w=(math.inf,), energy_j=(math.nan,)),
    ],
    ids=repr,
)
def test_a_meter_may_break_in_any_way(tmp_path: Path, says: Any) -> None:
    program = "import sys, time; time.sleep(0.3); sys.exit(7)"
    status, _ = record_with(RecordingWriter(tmp_path / "r"), Broken(says=says), program)
    assert status == 7
    run = read(tmp_path / "r")["full_0"]
    assert np.isfinite(run.power_w).all()
    assert run.notes


@pytest.mark.parametrize(
    "place", ["sampler.sample", "program.poll", "program.is_over", "tree.usage"]
)
def test_an_error_of_our_own_ends_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from lowtide.measuring.program import StartedProgram
    from lowtide.monitor.processes import ProcessTree

    kind, _, name = place.partition(".")
    owner = {"sampler": Sampler, "program": StartedProgram, "tree": ProcessTree}[kind]
    method, calls = getattr(owner, name), [0]

    def breaks(self: Any, *words: Any) -> Any:
        calls[0] += 1
        if 3 <= calls[0] <= 5:
            raise RuntimeError("a bug")
        return method(self, *words)

    monkeypatch.setattr(owner, name, breaks)
    done = tmp_path / "done"
    program = (
        "import sys, time, pathlib; time.sleep(0.4)\n"
        f"pathlib.Path({str(done)!r}).touch(); sys.exit(7)"
    )
    status, _ = record_with(RecordingWriter(tmp_path / "r"), program=program)
    assert (status, done.exists()) == (7, True)


def test_a_folder_that_vanishes_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "_AGAIN_S", 0.01)
    folder = tmp_path / "r"
    writer = RecordingWriter(folder, flush_s=0.1)
    program = (
        "import shutil, sys, time, lowtide\n"
        "lowtide.mark('early'); time.sleep(0.5)\n"
        f"shutil.rmtree({str(folder)!r}, True); time.sleep(0.5); until = time.monotonic() + 20\n"
        "while not lowtide.mark('late') and time.monotonic() < until: time.sleep(0.05)\n"
        "sys.exit(7)"
    )
    status, warned = record_with(writer, program=program)
    assert status == 7
    run = read(folder)["full_0"]
    assert run.sampled > 10
    # Marks that are set once it is there again are kept, and that earlier ones are lost is said.
    assert [event.label for event in run.events] == ["late"]
    assert any("events.csv vanished, with the marks in it" in note for note in run.notes)
    assert any("vanished" in note for note in run.notes)
    assert any("vanished" in text for text in warned)


def test_what_waits_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_writer, "_MOST_CELLS", 4000)
    monkeypatch.setattr(recording_writer, "_PART_ROWS", 50)
    told: list[str] = []
    broken = [True]
    write = failing(files.write_whole, lambda: broken[0], errno.ENOSPC)
    writer = RecordingWriter(tmp_path / "r", flush_s=1.0)
    writer.be_patient(told.append)
    monkeypatch.setattr(files, "write_whole", write)
    writer.begin("a", kind="full")
    writer.start(0.0)
    rng = np.random.default_rng(1)
    watts = rng.uniform(10, 500, 3000)
    for place, power_w in enumerate(watts):
        writer.append(place / 10, float(power_w), {"x_w": float(power_w), "x_j": float(place)})
        assert sum(each.frame.height * 5 for each in writer._parts) <= 4000
    broken[0] = False
    writer.end(300.0, exit_status=0)
    writer.close()
    run = read(tmp_path / "r")["a"]
    assert run.energy_j() == pytest.approx(watts.sum() / 10, rel=0.01)
    assert 300 < run.times.size < 900
    assert not run.gaps
    assert any("brought together" in note for note in run.notes)
    assert any("brought together" in text for text in told)


def test_a_limit_on_the_size_of_files_is_no_reason_to_die(tmp_path: Path) -> None:
    """The kernel's own limit stands in for a quota: every write fails that goes beyond."""
    code = (
        "import resource, sys\n"
        "from lowtide.formats import recording_writer\n"
        "import polars\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))\n"
        "sys.argv = ['lowtide', 'measure', '--idle', '0.2', '--meter', 'estimate', '-o', 'rec',"
        " '--', 'sh', '-c', 'sleep 1.2; exit 7']\n"
        "from lowtide.cli import main; main()"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        python(code), cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3000
    assert done.returncode == 7, done.stderr
    assert "File too large" in done.stderr
    assert "The program goes on" in done.stderr
    # What cannot be kept anywhere is at least told.
    assert "what is not there is lost" in done.stderr
    (row,) = [line for line in done.stderr.splitlines() if line.startswith("full_0  ")]
    energy = row.split()[2]
    assert float(energy) > 0
    # Where mounting is allowed, a real file system of a few kilobytes.
    fill_a_disk(tmp_path)


def fill_a_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        return
    try:
        script = f"sleep 0.4; cat /dev/zero > {disk}/filler; sleep 1; exit 7"
        words = ["measure", "--idle", "0.2", "--json", "-o", str(disk / "rec"), "--", "sh", "-c"]
        done = subprocess.run(
            [*LOWTIDE, *words, script], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 7, done.stderr
        assert "No space left on device" in done.stderr
        answer = json.loads(done.stdout)
        elsewhere = Path(answer["folder"])
        assert elsewhere != disk / "rec"
        (run,) = read(elsewhere)
        assert run.energy_j() == pytest.approx(answer["runs"][0]["energy_j"])
        assert run.missing_s == 0
        shutil.rmtree(elsewhere)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("options", [[], ["--event", r"e_{}=line (\d+)"], ["--json"]])
def test_a_kill_of_the_recorder_does_not_take_the_program_along(
    tmp_path: Path, options: list[str]
) -> None:
    code = (
        "import pathlib, sys, time\n"
        "for n in range(15): print('line', n, flush=True); time.sleep(0.1)\n"
        "print('to stderr', file=sys.stderr); pathlib.Path('done').touch()"
    )
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as sink, err.open("wb") as errors:
        measuring = subprocess.Popen(
            [*LOWTIDE, "measure", "--idle", "0", "-o", "rec", *options, "--", *python(code)],
            cwd=tmp_path,
            stdout=sink,
            stderr=errors,
        )
    deadline = time.monotonic() + 30
    printed = err if options == ["--json"] else out
    while printed.read_text().count("line") < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    measuring.send_signal(signal.SIGKILL)
    measuring.wait()
    while not (tmp_path / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    assert (tmp_path / "done").exists()
    lines = [f"line {n}" for n in range(15)]
    assert [line for line in printed.read_text().splitlines() if "line" in line] == lines
    assert "to stderr" in err.read_text()
    assert read(tmp_path / "rec").unmeasured or read(tmp_path / "rec").runs


def test_a_relay_that_is_killed_is_replaced(tmp_path: Path) -> None:
    code = "import time\nfor n in range(20): print('line', n, flush=True); time.sleep(0.06)"
    measuring = subprocess.Popen(
        [
            *LOWTIDE,
            "measure",
            "--idle",
            "0",
            "-o",
            "rec",
            "--event",
            r"e=line 1\d",
            "--",
            *python(code),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert measuring.stdout is not None
    assert measuring.stdout.readline() == "line 0\n"
    children = Path(f"/proc/{measuring.pid}/task/{measuring.pid}/children").read_text().split()
    relays = [
        int(pid) for pid in children if b"relay.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    time.sleep(0.2)
    os.kill(relays[0], signal.SIGKILL)
    out, _ = measuring.communicate(timeout=30)
    assert measuring.returncode == 0
    assert "line 19" in out
    recording = read(tmp_path / "rec")
    (run,) = (*recording, *recording.unmeasured)
    assert len(run.events) >= 8


def test_measurements_that_begin_together_have_folders_of_their_own(tmp_path: Path) -> None:
    words = ["measure", "--idle", "0.1", "--meter", "estimate", "--", "sleep", "0.3"]
    together = [
        subprocess.Popen(
            [*LOWTIDE, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for _ in range(5)
    ]
    for each in together:
        _, said = each.communicate(timeout=60)
        assert each.returncode == 0, said
    folders = sorted(tmp_path.glob("recording-*"))
    assert len(folders) == 5
    for folder in folders:
        run = read(folder)["full_0"]
        assert run.exit_status == 0
        assert run.duration_s == pytest.approx(0.3, abs=0.6)
        assert run.energy_j() > 0


def test_a_folder_is_one_measurements_alone(tmp_path: Path) -> None:
    claim = (
        "import sys\nfrom lowtide.formats.recording_writer import RecordingWriter\n"
        "from lowtide.errors import FileProblem\n"
        "import polars\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: RecordingWriter(sys.argv[1]).begin('a')\n"
        "except FileProblem as error: print(error); sys.exit(2)"
    )
    together = [
        subprocess.Popen(
            [*python(claim), str(tmp_path / "rec")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for each in together:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    answers = []
    for each in together:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in together:
        said, _ = each.communicate(timeout=30)
        answers.append((each.returncode, said))
    assert sorted(code for code, _ in answers) == [0, 2, 2, 2, 2, 2]
    assert all("holds a recording already" in said for code, said in answers if code)


def test_folders_are_called_by_job_and_process(tmp_path: Path) -> None:
    def named(**environment: str) -> str:
        return folder_name(environment, host="node 7.site", pid=5, moment=0.0).split("-", 3)[3]

    assert named() == "node_7-5"
    assert named(SLURM_JOB_ID="12", SLURM_STEP_ID="0", SLURM_PROCID="1") == "node_7-12.0.1-5"
    array = {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    assert named(SLURM_JOB_ID="13", **array) == "node_7-10_3-5"
    first, second = new_folder(tmp_path), new_folder(tmp_path)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()
    with pytest.raises(FileProblem, match="with -o"):
        new_folder(tmp_path / "nowhere")


HANGING = (
    "import os, sys, threading, time\n"
    "from lowtide import files\n"
    "from lowtide.measuring import recorder, sampler\n"
    "from lowtide.meters import source\n"
    "from support.steady import Steady\n"
    "recorder._PATIENCE_S, recorder._CLOSE_S, sampler._LET_GO_S = 0.4, 0.6, 0.3\n"
    "began = time.monotonic()\n"
    "def hang(): threading.Event().wait()\n"
    "class Hangs(Steady):\n"
    "    name = 'hangs'\n"
    "    def sample(self):\n"
    "        if time.monotonic() > began + float(os.environ['READ_HANGS_S']): hang()\n"
    "        return super().sample()\n"
    "    def close(self): hang()\n"
    "write, first = files.write_whole, []\n"
    "def write_whole(path, *words):\n"
    "    if 'away' in str(path):\n"
    # From the first write on: a busy machine takes seconds to get there.
    "        first.append(time.monotonic())\n"
    "        if first[-1] > first[0] + float(os.environ['WRITE_HANGS_S']): hang()\n"
    "    write(path, *words)\n"
    "files.write_whole = write_whole\n"
    "source.choose_meters = lambda *_, **__: [Hangs(), Steady()]\n"
    "from lowtide.cli import main; main()"
)


def hanging(tmp_path: Path, *words: str, read_s: float = 99.0, write_s: float = 99.0) -> Any:
    (tmp_path / "tmp").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "TMPDIR": str(tmp_path / "tmp"),
        "READ_HANGS_S": str(read_s),
        "WRITE_HANGS_S": str(write_s),
    }
    options = ["measure", "--idle", "0.2", "--share", "node", "-o", "away/rec", *words]
    return subprocess.Popen(
        [*python(HANGING), *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("read_s", [0.0, 0.9])
def test_a_meter_that_hangs_for_ever_keeps_nobody(tmp_path: Path, read_s: float) -> None:
    measuring = hanging(tmp_path, "--", "sh", "-c", "sleep 1.5; exit 7", read_s=read_s)
    out, said = measuring.communicate(timeout=20)
    assert measuring.returncode == 7, said
    assert "meter hangs did not answer within 0.4 s" in said
    assert "full_0" in said
    assert out == ""
    recording = read(tmp_path / "away/rec")
    (run,) = (*recording, *recording.unmeasured)
    assert run.exit_status == 7
    assert any("meter hangs did not answer" in note for note in run.notes)
    # The other meter is read on; what the one that hangs would have said is not filled in.
    samples = pl.read_parquet(next((tmp_path / "away/rec").glob("*.parquet")))
    assert samples["steady.node_w"].is_not_nan().sum() > 8
    assert samples["hangs.node_w"].is_nan().sum() > 5


class Stuck(Steady):
    """A meter whose driver never comes back while it is opened."""

    name = "stuck"

    def open(self) -> Any:
        threading.Event().wait()


def test_a_meter_that_hangs_while_it_is_opened_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_OPEN_S", 2.0)
    reading = Sampler(meters=[Stuck(), Steady()], named=False)
    reading.open()
    (why,) = reading.left_out
    assert "meter stuck did not answer within 2 s" in why
    with RecordingWriter(tmp_path / "r") as writer:
        recorder = Recorder(writer=writer, sampler=reading, interval_s=0.02, idle_s=0.1)
        # Every run says so, not the first alone.
        for name in ("full_0", "full_1"):
            assert recorder.run(name, Step(kind="full", command=python("exit(7)"))) == 7
    reading.close()
    recording = read(tmp_path / "r")
    for run in (*recording, *recording.unmeasured):
        assert why in run.notes


def test_where_no_meter_opens_power_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise OSError("the driver is gone")

    monkeypatch.setattr(Steady, "open", broken)
    reading = Sampler(meters=[Steady()], named=False)
    reading.open()
    assert [each.partition(" ")[0] for each in reading.names] == ["estimate"]
    assert not reading.measured
    assert reading.left_out == ["meter steady is left out: the driver is gone"]
    reading.close()


def test_a_meter_that_was_named_has_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_NAMED_S", 0.2)
    with pytest.raises(MeterProblem, match=r"meter stuck did not answer within 0\.2 s"):
        Sampler(meters=[Stuck()]).open()


@pytest.mark.parametrize("hangs", [{"read_s": 0.6}, {"write_s": 1.5}])
def test_signals_reach_a_program_whatever_hangs(tmp_path: Path, hangs: dict[str, float]) -> None:
    trap = "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    measuring = hanging(tmp_path, "--", "sh", "-c", trap, **hangs)
    assert measuring.stdout.readline() == "ready\n"
    time.sleep(1.2)
    measuring.send_signal(signal.SIGTERM)
    out, said = measuring.communicate(timeout=20)
    assert "told" in out, said
    assert measuring.returncode == 128 + signal.SIGTERM


def test_a_disk_that_hangs_for_ever_keeps_nobody(tmp_path: Path) -> None:
    words = [
        "--json",
        "--event",
        r"e_{}=line (\d+)",
        "--",
        *python(PROGRAM.replace("range(8)", "range(25)")),
    ]
    # Soon enough for the first samples, a second after they began: where only the last write hangs,
    # all events are where they belong.
    measuring = hanging(tmp_path, *words, write_s=0.5)
    out, said = measuring.communicate(timeout=20)
    assert measuring.returncode == 7, said
    assert "writing to away/rec hangs" in said
    assert "the rest is in" in said
    answer = json.loads(out)
    assert Path(answer["folder"]).parent == tmp_path / "tmp"
    (row,) = answer["runs"]
    assert row["exit_status"] == 7
    # What could not be written is there, to the last sample and event.
    (run,) = read(Path(answer["folder"]))
    assert run.events[-1].label == "e_24"
    assert run.times[-1] > run.end - 0.3
    assert run.energy_j() == pytest.approx(row["energy_j"])
    assert run.energy_j() == pytest.approx(100 * (run.duration_s - run.missing_s))
