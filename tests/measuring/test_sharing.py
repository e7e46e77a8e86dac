"""On a shared machine, the program's power is what it used, and never more than the machine's."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import UnknownName
from lowtide.formats.recording_folder import read
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.measuring import Recorder, Sampler, Step, sharing
from lowtide.measuring.sharing import GpuPower, Sharing
from lowtide.meters import Roots
from support.steady import Steady, python

pytestmark = pytest.mark.alone

CPUS = 4
IDLE_W, EACH_W = 50.0, 40.0


class Machine:
    """A machine of four CPUs, whose clocks are turned by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
        self.root, self.now_s, self.busy_s, self.used_s = root, 100.0, 0.0, 0.0
        monkeypatch.setattr(sharing.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(sharing.time, "process_time", lambda: 0.0)
        self.write()
        self.sharing = Sharing(
            share="process", roots=Roots(procfs=root, sysfs=root), environment=environment
        )

    def write(self) -> None:
        ticks = round(self.busy_s * os.sysconf("SC_CLK_TCK"))
        lines = [f"cpu {ticks} 0 0 0 0 0 0 0", *(f"cpu{n} 0 0 0 0" for n in range(CPUS))]
        (self.root / "stat").write_text("\n".join(lines) + "\n")

    def go(
        self,
        seconds: float,
        *,
        others: float = 0.0,
        program: float | None = None,
        gpus: Sequence[GpuPower] = (),
    ) -> list[tuple[float, float]]:
        """Let time pass; return the machine's power and the program's, sample by sample."""
        found = []
        for _ in range(round(10 * seconds)):
            self.now_s += 0.1
            self.busy_s += 0.1 * (others + (program or 0.0))
            self.used_s += 0.1 * (program or 0.0)
            self.write()
            self.sharing.look(None if program is None else self.used_s)
            total_w = IDLE_W + EACH_W * (others + (program or 0.0))
            total_w += sum(gpu.power_w for gpu in gpus)
            program_w = self.sharing.program_w(total_w, gpus, runs=program is not None)
            found.append((total_w, program_w))
        return found


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_alone_it_bears_all(machine: Machine) -> None:
    machine.go(3)
    for busy in (0.0, 1.0, 4.0):
        assert all(ours == total for total, ours in machine.go(2, program=busy))
    assert machine.sharing.notes() == []


@pytest.mark.parametrize("others", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("program", [0.0, 0.5, 2.0])
def test_what_others_use_is_taken_off(machine: Machine, others: float, program: float) -> None:
    machine.go(3)
    found = machine.go(4, others=others, program=program)
    assert all(0 <= ours <= total for total, ours in found)
    # Once the time that is compared has passed, it is the floor and what it uses.
    _, ours = found[-1]
    assert ours == pytest.approx(IDLE_W + EACH_W * program, rel=0.02)
    (note,) = machine.sharing.notes()
    assert f"{100 * others / CPUS:.0f} % busy by others than the program" in note


def test_a_machine_that_never_was_idle(machine: Machine) -> None:
    before = machine.go(3, others=2.0)
    # What it would draw without the others, nobody knows.
    assert all(math.isnan(ours) for _, ours in before)
    total_w, ours = machine.go(3, others=2.0, program=1.0)[-1]
    assert ours == pytest.approx(total_w / 3, rel=0.02)
    first, second = machine.sharing.notes()
    assert first == "the machine was 50 % busy before the start"
    assert "at least" in second
    machine.sharing.restart()
    assert machine.sharing.notes() == []


def test_a_reservation_bears_its_part_of_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(CPUS))
    machine = Machine(tmp_path, monkeypatch, SLURM_JOB_ID="7", SLURM_CPUS_ON_NODE="1")
    machine.go(3)
    _, ours = machine.go(3, program=1.0)[-1]
    assert ours == pytest.approx(IDLE_W / CPUS + EACH_W, rel=0.02)


def test_gpus_of_others_are_taken_off_the_node(machine: Machine) -> None:
    gpus = [
        GpuPower(name="a", power_w=300.0, share=1.0),
        GpuPower(name="b", power_w=200.0, share=0.25),
        GpuPower(name="c", power_w=100.0, share=0.0),
    ]
    machine.go(2, gpus=gpus)
    assert machine.go(2, program=0.0, gpus=gpus)[-1] == (650.0, pytest.approx(IDLE_W + 350))
    busy = machine.go(3, others=2.0, program=1.0, gpus=gpus)[-1]
    assert busy == (770.0, pytest.approx(IDLE_W + EACH_W + 350, rel=0.02))


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ("process", "b was shared: 60 % of what it drew is taken off, by who ran on it"),
        ("node", "b was shared: 60 % of what it drew was for others, and is in the power"),
    ],
)
def test_a_gpu_that_is_shared_is_noted(machine: Machine, share: str, words: str) -> None:
    machine.sharing.share = share
    alone = GpuPower(name="a", power_w=300.0, share=1.0)
    away = GpuPower(name="c", power_w=100.0, share=0.0, given=False)

    def shared(watts: float, part: float) -> list[GpuPower]:
        return [alone, GpuPower(name="b", power_w=watts, share=part), away]

    machine.go(2, gpus=shared(100.0, 0.0))
    assert machine.sharing.notes() == []
    # Joules count, not moments: 100 of 100 W, then 200 of 400 W.
    machine.go(2, program=0.0, gpus=shared(100.0, 0.0))
    machine.go(2, program=0.0, gpus=shared(400.0, 0.5))
    (note,) = machine.sharing.notes()
    assert note.startswith(words)
    machine.sharing.restart()
    assert machine.sharing.notes() == []


def test_where_no_meter_sees_cpus_nothing_of_theirs_is_taken_off(machine: Machine) -> None:
    for sees_cpus in (True, False):
        machine.sharing.restart()
        machine.sharing.sees_cpus = sees_cpus
        machine.go(2, others=2.0)
        machine.go(2, others=2.0, program=1.0)
        assert ("taken off" in machine.sharing.notes()[-1]) == sees_cpus
        assert ("the meters see GPUs alone" in machine.sharing.notes()[-1]) != sees_cpus


def record(folder: Path, share: str | None) -> None:
    sampler = Sampler(meters=[Steady()], share=share)
    sampler.open()
    with RecordingWriter(folder) as writer:
        recorder = Recorder(writer=writer, sampler=sampler, interval_s=0.05, idle_s=0.3)
        step = Step(kind="full", command=["sleep", "1" if share else "0.2"])
        recorder.run("full_0", step)
        recorder.run("idle_0", Step(kind="idle"))
    sampler.close()


def test_either_power_can_be_read_afterwards(tmp_path: Path) -> None:
    burn = "import time\nend = time.time() + 12\nwhile time.time() < end: pass"
    busy = [subprocess.Popen(python(burn)) for _ in range(os.cpu_count() or 1)]
    try:
        for share in ("process", "node", None):
            record(tmp_path / str(share), share)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    ours, all_of_it = read(tmp_path / "process"), read(tmp_path / "node")
    assert all_of_it["full_0"].mean_w == pytest.approx(100.0)
    # It slept: of the power of a machine that others keep busy next to nothing is its own.
    (run,) = [each for each in (*ours, *ours.unmeasured) if each.id == "full_0"]
    assert run.mean_w < 30
    assert run.machine["share"] == "process"
    assert np.allclose(run.node_w, 100.0)
    assert any("busy by others" in note for note in run.notes)
    assert read(tmp_path / "process", share="node")["full_0"].mean_w == pytest.approx(100.0)
    assert read(tmp_path / "node", share="process")["full_0"].mean_w < 30
    # Of the idle machine it is the machine's that is asked for.
    assert ours["idle_0"].mean_w == pytest.approx(100.0)
    plain = read(tmp_path / "None", share="process")["full_0"]
    assert plain.mean_w == pytest.approx(100.0)
    assert "node_w" not in plain.columns
    with pytest.raises(UnknownName, match="share"):
        read(tmp_path / "node", share="half")
    with pytest.raises(UnknownName, match="share"):
        Sampler(meters=[Steady()], share="half").open()
