"""Real programs, measured."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.formats.recording_folder import read
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.marks import EVENTS_VARIABLE, RUN_VARIABLE, mark
from lowtide.measuring import Recorder, Sampler, Step
from lowtide.measuring.callbacks import plan
from lowtide.measuring.program import StartedProgram
from lowtide.measuring.recorder import machine_facts
from lowtide.meters import Reading
from lowtide.monitor.processes import ProcessTree, children_of, read_stat
from support.meters import tree
from support.steady import Steady, python

pytestmark = pytest.mark.alone


def record(folder: Path, *steps: tuple[str, Step], meter: Steady | None = None, **options):
    sampler = Sampler(meters=[meter or Steady()])
    sampler.open()
    try:
        with RecordingWriter(folder) as writer:
            recorder = Recorder(
                writer=writer, sampler=sampler, interval_s=0.02, **{"idle_s": 0.2, **options}
            )
            status = [recorder.run(name, step) for name, step in steps]
    finally:
        sampler.close()
    return read(folder), status


def test_a_run_has_samples_events_and_facts(tmp_path: Path) -> None:
    code = (
        "import time, lowtide\n"
        "time.sleep(0.2); lowtide.mark('epoch_1'); time.sleep(0.2)\n"
        "lowtide.mark('saved', checkpoint=True); time.sleep(0.1)"
    )
    recording, status = record(tmp_path / "r", ("full_0", Step(kind="full", command=python(code))))
    run = recording["full_0"]
    assert status == [0]
    assert (run.kind, run.power, run.exit_status) == ("full", "measured", 0)
    assert [(event.label, event.checkpoint) for event in run.events] == [
        ("epoch_1", False),
        ("saved", True),
    ]
    assert all(run.start < event.time < run.end for event in run.events)
    assert run.mean_w == pytest.approx(100.0)
    assert run.energy_j() == pytest.approx(100 * run.duration_s)
    assert run.idle().size >= 5
    assert run.machine["cpus"] == os.cpu_count()
    assert 0 < run.machine["sampling_cpu_share"] < 0.5
    assert np.nanmax(run.columns["processes"]) >= 1


def test_what_the_children_use_counts(tmp_path: Path) -> None:
    burn = "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    recording, _ = record(tmp_path / "r", ("full_0", Step(kind="full", command=python(code))))
    run = recording["full_0"]
    assert np.nanmax(run.columns["cpus_busy"]) > 0.3
    assert np.nanmax(run.columns["processes"]) >= 2


def test_output_can_be_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import time\nfor n in (1, 2): print('Epoch', n, flush=True); time.sleep(0.05)"
    step = Step(kind="full", command=python(code))
    patterns = [(re.compile(r"Epoch (\d+)"), "epoch_{}")]
    recording, _ = record(tmp_path / "r", ("full_0", step), patterns=patterns)
    assert [event.label for event in recording["full_0"].events] == ["epoch_1", "epoch_2"]
    assert "Epoch 2" in capfd.readouterr().out


def test_stop_and_resume(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    done = tmp_path / "done"
    code = (
        f"import pathlib, time, lowtide\nplace = pathlib.Path({str(done)!r})\n"
        "first = int(place.read_text()) if place.exists() else 0\n"
        "for n in range(first, 4):\n"
        "    lowtide.mark(f'epoch_{n}'); time.sleep(0.1); place.write_text(str(n + 1))\n"
    )
    steps = plan("stop-resume", python(code), stop_mark="epoch_2", before=f"rm -f {done}")
    recording, status = record(folder, *steps, idle_s=0.1)
    stop, resume = recording["stop_0"], recording["resume_after_stop_0"]
    assert (stop.kind, resume.kind, stop.pair) == ("stop", "resume", resume.pair)
    assert status == [-signal.SIGTERM, 0]
    assert "ended by SIGTERM" in stop.notes
    assert [event.label for event in resume.events] == ["epoch_2", "epoch_3"]


def test_a_mark_of_an_earlier_run_stops_no_later_one(tmp_path: Path) -> None:
    code = (
        "import time, lowtide\nlowtide.mark('a')\ntime.sleep(0.3)\nlowtide.mark('b')\ntime.sleep(9)"
    )
    resume = python("import lowtide; lowtide.mark('b')")
    steps = plan("stop-resume", python(code), resume=resume, stop_mark="b", repeat=2)
    recording, status = record(tmp_path / "r", *steps, idle_s=0.1)
    assert status == [-signal.SIGTERM, 0, -signal.SIGTERM, 0]
    for name in ("stop_0", "stop_1"):
        assert [event.label for event in recording[name].events][:2] == ["a", "b"]


def test_time_between_runs_belongs_to_none(tmp_path: Path) -> None:
    step = Step(kind="full", command=["sleep", "0.2"])
    pause = Step(kind="full", command=["sleep", "0.2"], before="sleep 0.5")
    recording, _ = record(tmp_path / "r", ("a", step), ("b", pause))
    assert recording["b"].times[0] - recording["a"].times[-1] > 0.4


def test_a_kill_takes_the_children_along(tmp_path: Path) -> None:
    code = (
        "import subprocess, time, lowtide\n"
        "child = subprocess.Popen(['sleep', '77'])\n"
        "lowtide.mark('ready'); time.sleep(60)"
    )
    steps = plan("kill-resume", python(code), resume=["true"], stop_mark="ready", stop_delay_s=0.1)
    recording, status = record(tmp_path / "r", *steps, idle_s=0.1)
    assert status == [-signal.SIGKILL, 0]
    left = subprocess.run(["pgrep", "-f", "^sleep 77$"], capture_output=True, check=False)
    assert left.stdout == b""
    assert recording["kill_0"].kind == "kill"


def test_what_a_program_does_while_it_stops_is_measured(tmp_path: Path) -> None:
    gauge = tmp_path / "gauge"
    gauge.write_text("100")
    code = (
        "import signal, sys, time, lowtide, pathlib\n"
        f"gauge = pathlib.Path({str(gauge)!r})\n"
        "def save(*_):\n"
        "    gauge.write_text('900'); time.sleep(0.8); gauge.write_text('100'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); lowtide.mark('ready'); time.sleep(20)"
    )
    steps = plan("stop-resume", python(code), resume=["true"], stop_mark="ready")
    recording, status = record(tmp_path / "r", *steps, meter=Steady(gauge=gauge), idle_s=0.1)
    run = recording["stop_0"]
    assert status[0] == 0
    assert run.gaps == ()
    expected_j = 100 * (run.duration_s - 0.8) + 900 * 0.8
    assert run.energy_j() == pytest.approx(expected_j, rel=0.1)


ALIVE = "import time, pathlib, sys\nwhile True: pathlib.Path(sys.argv[1]).touch(); time.sleep(0.05)"


def alive(beat: Path) -> bool:
    """Return whether somebody keeps touching a file."""
    beat.unlink(missing_ok=True)
    time.sleep(0.3)
    return beat.exists()


@pytest.mark.parametrize("deaf", [False, True])
def test_a_stop_reaches_every_process(tmp_path: Path, deaf: bool) -> None:
    beat = tmp_path / "beat"
    child = ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" * deaf) + ALIVE
    script = (
        f'{sys.executable} -c "$CHILD" {beat} & while [ ! -e {beat} ]; do sleep 0.05; done; '
        f"{sys.executable} -c 'import lowtide; lowtide.mark(\"ready\")'; wait"
    )
    command = ["env", f"CHILD={child}", "bash", "-c", script]
    steps = plan("stop-resume", command, resume=["sleep", "0.2"], stop_mark="ready")
    recording, status = record(tmp_path / "r", *steps, idle_s=0.1, patience_s=0.5)
    assert status == [-signal.SIGTERM, 0]
    assert not alive(beat)
    killed = "what did not stop within 0.5 s was killed"
    assert (killed in recording["stop_0"].notes) is deaf
    # It ended when the last of it did.
    took_s = recording["stop_0"].end - recording["stop_0"].events[-1].time
    assert (took_s > 0.4) is deaf


def test_orphans_count_and_do_not_outlive_the_run(tmp_path: Path) -> None:
    burn = "import time\nend = time.time() + 30\nwhile time.time() < end: pass"
    zombies = "for i in 1 2 3; do (true &); done"
    script = f"(setsid {sys.executable} -c '{burn}' &); {zombies}; sleep 1.5"
    step = Step(kind="full", command=["bash", "-c", script])
    before = set(children_of(os.getpid()))
    recording, status = record(tmp_path / "r", ("full_0", step))
    run = recording["full_0"]
    assert status == [0]
    assert np.nanmax(run.columns["cpus_busy"]) > 0.2
    assert "the program left processes behind, which were told to stop" in run.notes
    # Neither running nor waiting to be waited for.
    assert set(children_of(os.getpid())) <= before
    # What the orphan used is the program's and not the recorder's.
    assert run.machine["sampling_cpu_share"] < 0.3


def test_what_tools_and_threads_use_is_the_recorders(tmp_path: Path) -> None:
    @dataclass
    class Tool(Steady):
        """A meter that asks a tool, beside the others."""

        name: ClassVar[str] = "tool"
        slow: ClassVar[bool] = True

        def sample(self) -> Reading:
            burn = "import time\nwhile time.process_time() < 0.15: pass"
            subprocess.run(python(burn), check=True)
            return super().sample()

    step = Step(kind="full", command=["sleep", "1.5"])
    recording, _ = record(tmp_path / "r", ("full_0", step), meter=Tool())
    assert recording["full_0"].machine["sampling_cpu_share"] > 0.1


def test_many_children_cost_little() -> None:
    script = "for i in $(seq 40); do sleep 9 & done; wait"
    program = StartedProgram.start(["bash", "-c", script], environment=os.environ)
    try:
        time.sleep(0.5)
        spent, clock = time.thread_time(), time.monotonic()
        while time.monotonic() < clock + 1.5:
            usage = program.tree.usage()
            time.sleep(0.1)
        share = (time.thread_time() - spent) / (time.monotonic() - clock)
    finally:
        program.kill()
        program.close()
    assert usage.processes == 41
    assert share < 0.008


def test_marks_and_samples_share_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        """A clock that is an hour fast when the recording begins, and is set right then."""

        readings = 0

        def __getattr__(self, name: str):
            return getattr(time, name)

        def time(self) -> float:
            self.readings += 1
            return time.time() + (3600 if self.readings == 1 else 0)

    monkeypatch.setattr("lowtide.measuring.sampler.time", Later())
    code = "import time, lowtide\ntime.sleep(0.2); lowtide.mark('a'); time.sleep(0.2)"
    recording, _ = record(tmp_path / "r", ("full_0", Step(kind="full", command=python(code))))
    run = recording["full_0"]
    (event,) = run.events
    assert run.start < event.time < run.end
    assert [note for note in run.notes if "clock was set by -3600" in note] == list(run.notes)
    assert len(run.notes) == 1


def test_a_mark_that_never_comes_is_told(tmp_path: Path) -> None:
    steps = plan("startup", python("import lowtide; lowtide.mark('go')"), stop_mark="ready")
    recording, status = record(tmp_path / "r", *steps)
    assert status == [0]
    (note,) = recording["startup_0"].notes
    assert note == "the program ended before the mark 'ready' came; marks seen: go"
    late = plan("startup", python("import lowtide; lowtide.mark('go')"), stop_mark="go")
    late = [(name, replace(step, stop_delay_s=5.0)) for name, step in late]
    recording, _ = record(tmp_path / "s", *late)
    (note,) = recording["startup_0"].notes
    assert note == "the program ended before it could be stopped at 'go'; marks seen: go"


def test_programs_that_fail_are_kept(tmp_path: Path) -> None:
    said: list[str] = []
    recording, status = record(
        tmp_path / "r",
        ("a", Step(kind="full", command=["no-such-program"])),
        ("b", Step(kind="full", command=["sh", "-c", "sleep 0.2; exit 3"])),
        say=said.append,
    )
    assert status == [127, 3]
    assert "could not be started" in recording["a"].notes[0]
    assert recording["b"].exit_status == 3
    assert any("no-such-program" in each for each in said)


def test_a_meter_that_vanishes_is_marked_not_filled(tmp_path: Path) -> None:
    meter = Steady(silent_after=20)
    step = Step(kind="full", command=["sleep", "0.3"])
    recording, _ = record(tmp_path / "r", ("full_0", step), meter=meter)
    run = recording["full_0"]
    assert any("fell silent" in note for note in run.notes)
    assert run.times.size <= 21
    # When the program ended is known all the same.
    assert run.exit_status == 0
    assert not any("cut short" in note for note in run.notes)
    assert run.duration_s == pytest.approx(0.3, abs=0.15)
    assert run.missing_s > 0.05
    assert run.energy_j() == pytest.approx(100 * (run.duration_s - run.missing_s))


def test_a_meter_that_is_silent_for_a_moment_leaves_a_gap(tmp_path: Path) -> None:
    meter = Steady(silent_after=20, back_after=30)
    step = Step(kind="full", command=["sleep", "0.7"])
    recording, _ = record(tmp_path / "r", ("full_0", step), meter=meter)
    run = recording["full_0"]
    (gap,) = run.gaps
    assert 0.1 < gap[1] - gap[0] < 0.4
    assert run.energy_j() == pytest.approx(100 * (run.duration_s - gap[1] + gap[0]))
    assert any("no power was read for 0." in note for note in run.notes)


def test_values_that_cannot_be_are_one_note(tmp_path: Path) -> None:
    meter = Steady(absurd=True)
    step = Step(kind="full", command=["sleep", "0.3"])
    recording, status = record(tmp_path / "r", ("full_0", step), meter=meter)
    (run,) = recording.unmeasured
    assert status == [run.exit_status] == [0]
    absurd = [note for note in run.notes if "cannot draw" in note]
    assert len(absurd) == 1
    assert re.search(r"read 200000\d W.* \(\d+ times, at worst 2\.?\d*e\+06\)", absurd[0])
    assert "meter steady never answered" in run.notes
    assert "cannot draw" in recording.notes[0]


def test_idle_time(tmp_path: Path) -> None:
    recording, status = record(tmp_path / "r", ("idle_0", Step(kind="idle")))
    assert status == [None]
    assert recording["idle_0"].kind == "idle"
    assert recording["idle_0"].idle().mean() == 100.0


def test_plans_need_what_they_need() -> None:
    assert len(plan("full", ["true"], repeat=3)) == 3
    assert [name for name, _ in plan("idle", [], repeat=2)] == ["idle_0", "idle_1"]
    with pytest.raises(InvalidInput, match="--stop-after-mark"):
        plan("stop-resume", ["true"])
    with pytest.raises(InvalidInput, match="say what to run"):
        plan("full", [])
    with pytest.raises(InvalidInput, match="one of full, stop-resume"):
        plan("half", ["true"])


def test_a_recording_survives_a_kill(tmp_path: Path) -> None:
    """Kill the recorder itself, hard, and read what is there."""
    folder = tmp_path / "r"
    code = (
        "from lowtide.formats.recording_writer import RecordingWriter\n"
        "from lowtide.measuring import Recorder, Sampler, Step\n"
        "from lowtide.meters.source import choose_meters\n"
        "s = Sampler(meters=choose_meters(['estimate'])); s.open()\n"
        f"w = RecordingWriter({str(folder)!r}, flush_s=0.3)\n"
        "r = Recorder(writer=w, sampler=s, interval_s=0.02, idle_s=0.2)\n"
        "r.run('full_0', Step(kind='full', command=['sleep', '30']))\n"
    )
    recorder = subprocess.Popen(python(code))
    deadline = time.monotonic() + 30
    while len(list(folder.glob("samples-*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    recorder.kill()
    recorder.wait()
    subprocess.run(["pkill", "-f", "^sleep 30$"], check=False)
    run = read(folder)["full_0"]
    assert run.times.size > 20
    assert any("cut short" in note for note in run.notes)
    assert run.power == "estimated"


def test_marks_do_nothing_where_nobody_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(EVENTS_VARIABLE, raising=False)
    assert mark("a") is False
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "none" / "events.csv"))
    assert mark("a") is False
    events = tmp_path / "events.csv"
    events.write_text("time,run,event,checkpoint\n")
    monkeypatch.setenv(EVENTS_VARIABLE, str(events))
    monkeypatch.setenv(RUN_VARIABLE, "full_0")
    assert mark('say "hi",\nthere', checkpoint=True) is True
    line = events.read_text().splitlines()[1]
    assert line.endswith(',full_0,"say ""hi"", there",1')


def test_marking_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, lowtide; lowtide.mark('x')\n"
        "heavy = {'numpy', 'polars', 'typer', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run(python(code), check=True)


def test_names_of_processes_may_hold_anything() -> None:
    line = "7 (a) (b c) S 1 2 3 0 -1 4 0 0 0 0 50 25 10 15 20 0 1 0 300 0 2 0"
    stat = read_stat(line)
    assert (stat.name, stat.parent, stat.group) == ("a) (b c", 1, 2)
    assert stat.cpu_s == pytest.approx(100 / os.sysconf("SC_CLK_TCK"))


def test_a_tree_of_processes(tmp_path: Path) -> None:
    tree = {
        10: ("S 1 10 10", [20, 30], "read_bytes: 5\nwrite_bytes: 7\n"),
        20: ("S 10 10 10", [], "read_bytes: 1\nwrite_bytes: 1\n"),
        30: ("S 10 10 10", [40], ""),
        40: ("S 30 10 10", [], ""),
        50: ("S 1 50 50", [], ""),
    }
    for pid, (head, children, io) in tree.items():
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)))
        (folder / "io").write_text(io)
        (folder / "stat").write_text(f"{pid} (p) {head} 0 -1 4 0 0 0 0 100 0 0 0 20 0 1 0 3 0 2 0")
    found = ProcessTree(root=10, procfs=tmp_path)
    usage = found.usage()
    assert sorted(found.pids) == [10, 20, 30, 40]
    assert usage.processes == 4
    assert usage.cpu_s == pytest.approx(400 / os.sysconf("SC_CLK_TCK"))
    assert (usage.read_bytes, usage.written_bytes) == (6.0, 8.0)
    assert usage.memory_bytes == 8 * os.sysconf("SC_PAGE_SIZE")
    found.close()


def test_facts_name_no_machine() -> None:
    text = json.dumps(machine_facts())
    assert os.uname().nodename not in text or len(os.uname().nodename) < 3
    assert "cpus" in text


def test_threads_of_a_core_are_counted(tmp_path: Path) -> None:
    cpus = "sys/devices/system/cpu"
    files = {f"{cpus}/smt/active": "1\n"}
    files |= {f"{cpus}/cpu{n}/topology/core_cpus_list": f"{n % 2},{n % 2 + 2}\n" for n in range(4)}
    facts = machine_facts(tree(tmp_path, files))
    assert (facts["smt_active"], facts["threads_per_core"]) == ("1", 2)
    assert "threads_per_core" not in machine_facts(tree(tmp_path / "none", {}))
