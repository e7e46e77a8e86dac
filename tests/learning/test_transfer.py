"""A profile on a machine that the program never ran on: made-up machines whose truth is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.formats.recording_writer import write_recording
from lowtide.learning import learn
from lowtide.learning.transfer import on_machine
from lowtide.learning.utilisation import learn_utilisation
from lowtide.meters.estimate import FEATURES
from lowtide.meters.power_model import Band, Feature, Linear, UtilisationModel
from lowtide.profile import PowerProfile
from lowtide.recording import Event, Recording, Run
from support.commands import run as command

# Name, seconds, share of the CPUs and of the GPU that are busy.
PHASES = [("load", 15.0, 0.6, 0.05)]
for _ in range(4):
    PHASES += [("train", 25.0, 0.3, 0.9), ("save", 8.0, 0.15, 0.1)]
PHASES += [("finish", 6.0, 0.5, 0.0)]


@dataclass(frozen=True)
class Machine:
    """What it draws idle, by its CPUs and by its GPU, and how far that is from a line."""

    idle_w: float = 80.0
    cpu_w: float = 150.0
    gpu_w: float = 400.0
    bend: float = 1.0

    def watts(self, cpu, gpu):
        return self.idle_w + self.cpu_w * cpu**self.bend + self.gpu_w * gpu**self.bend

    def energy_j(self, phases=PHASES):
        return sum(seconds * self.watts(cpu, gpu) for _, seconds, cpu, gpu in phases)


def recorded(machine, phases=PHASES, *, runs=3, seed=0, step_s=0.25, noise=0.01, hidden=0.0):
    """Runs with what was drawn and used: use as counters tell it, with noise of its own."""
    made = []
    for number in range(runs):
        rng = np.random.default_rng([seed, number])
        own_s = np.array([each[1] for each in phases]) * np.exp(0.01 * rng.standard_normal())
        edges_s = np.concatenate(([0.0], np.cumsum(own_s)))
        times_s = np.arange(0.0, edges_s[-1], step_s)
        place = np.minimum(np.searchsorted(edges_s, times_s, side="right") - 1, len(phases) - 1)
        cpu, gpu = (
            np.clip(np.array(share)[place] * (1 + noise * rng.standard_normal(place.size)), 0, 1)
            for share in ([each[2] for each in phases], [each[3] for each in phases])
        )
        power_w = machine.watts(cpu, gpu) * (1 + noise * rng.standard_normal(place.size))
        cpu = np.where(np.arange(cpu.size) < hidden * cpu.size, np.nan, cpu)
        start = 1.7e9 + 1e4 * number
        made.append(
            Run(
                id=f"full_{number}",
                times=start + times_s,
                power_w=power_w,
                start=start,
                end=start + float(edges_s[-1]),
                kind="full",
                columns={FEATURES["cpu"]: cpu, FEATURES["gpu"]: gpu},
                events=[
                    Event(time=start + float(at), label=name)
                    for (name, *_), at in zip(phases, edges_s, strict=False)
                ],
            )
        )
    return Recording(runs=tuple(made), source=f"made up {seed}")


def line_of(machine, *, half_w=None):
    """The straight line of a machine, and how far off it may be."""
    return UtilisationModel(
        features=(Feature(name="cpu", low=0.0, high=1.0), Feature(name="gpu", low=0.0, high=1.0)),
        form=Linear(base_w=machine.idle_w, per_unit_w=(machine.cpu_w, machine.gpu_w)),
        source="made up",
        band=None if half_w is None else Band(half_w=half_w, level=0.9, runs=9),
        average_s=1.0,
    )


def drawn_machine(rng):
    return Machine(
        idle_w=rng.uniform(20, 300),
        cpu_w=rng.uniform(20, 400),
        gpu_w=rng.uniform(50, 900),
        bend=rng.uniform(0.7, 1.3),
    )


def test_a_machine_whose_model_is_right_is_told_rightly():
    here, there = Machine(), Machine(idle_w=200.0, cpu_w=60.0, gpu_w=900.0)
    learned = learn(recorded(here), validated=False)
    moved = on_machine(learned, line_of(there, half_w=10.0))
    assert learned.profile.energy_j == pytest.approx(here.energy_j(), rel=0.02)
    assert moved.profile.energy_j == pytest.approx(there.energy_j(), rel=0.02)
    assert moved.profile.run_s == pytest.approx(learned.profile.run_s)
    assert moved.power == "estimated"
    for phase, (_, _, cpu, gpu) in zip(
        (*moved.profile.startup, *moved.profile.work), PHASES, strict=True
    ):
        # A sample holds for up to a step beyond the edge of a phase.
        assert phase.power_w == pytest.approx(there.watts(cpu, gpu), rel=0.08)
    assert any(note.startswith("~") for note in moved.notes)
    assert any("say how many times as fast" in note for note in moved.notes)


def test_generated_machines_lie_within_what_is_said():
    """The model is a line, the machine is not, and the band is what that costs."""
    rng = np.random.default_rng(4)
    held, off = [], []
    for seed in range(25):
        here, there = drawn_machine(rng), drawn_machine(rng)
        phases = [
            (name, seconds * rng.uniform(0.5, 2), rng.uniform(0, 1), rng.uniform(0, 1))
            for name, seconds, *_ in PHASES[:4]
        ]
        cpu, gpu = rng.uniform(0, 1, (2, 400))
        errors_w = np.abs(line_of(there).form.base_w + there.cpu_w * cpu + there.gpu_w * gpu)
        errors_w = np.abs(errors_w - there.watts(cpu, gpu))
        model = line_of(there, half_w=float(np.quantile(errors_w, 0.9)))
        learned = learn(recorded(here, phases, seed=seed), validated=False)
        moved = on_machine(learned, model).profile
        truth_j = there.energy_j(phases)
        low, high = (share * moved.energy_j for share in moved.spread.energy)
        held.append(low <= truth_j <= high)
        off.append(abs(moved.energy_j / truth_j - 1))
    assert np.mean(held) >= 0.85
    assert np.median(off) < 0.08


def test_a_learned_model_of_a_machine_serves():
    """Both machines are measured: the program on one, a sweep of loads on the other."""
    here, there = Machine(), Machine(idle_w=150.0, cpu_w=300.0, gpu_w=250.0)
    rng = np.random.default_rng(1)
    sweep = [(f"load {n}", 20.0, *rng.uniform(0, 1, 2)) for n in range(6)]
    model = learn_utilisation([recorded(there, sweep, runs=2, seed=9)], rung="ridge").model
    moved = on_machine(learn(recorded(here), validated=False), model)
    assert moved.profile.energy_j == pytest.approx(there.energy_j(), rel=0.03)
    low, high = moved.profile.spread.energy
    assert low < 1 < high


def test_a_faster_machine_takes_less_time_and_energy():
    learned = learn(recorded(Machine()), validated=False)
    there = line_of(Machine(idle_w=100.0), half_w=5.0)
    as_fast, twice = (on_machine(learned, there, speed=speed).profile for speed in (1.0, 2.0))
    assert twice.run_s == pytest.approx(as_fast.run_s / 2, rel=1e-4)
    assert twice.energy_j == pytest.approx(as_fast.energy_j / 2, rel=1e-4)
    assert twice.spread.energy == as_fast.spread.energy


def test_a_restart_is_moved_as_its_startup_is():
    whole = recorded(Machine())
    phases = [("load", 20.0, 0.6, 0.05), *PHASES[3:]]
    resumed = replace(
        recorded(Machine(), phases, runs=1, seed=3).runs[0], id="again", kind="resume"
    )
    learned = learn(Recording(runs=(*whole.runs, resumed), source="x"), validated=False)
    assert learned.profile.restart is not None
    there = Machine(idle_w=300.0)
    (phase,) = on_machine(learned, line_of(there)).profile.restart
    assert phase.duration_s == pytest.approx(20.0, rel=0.1)
    assert phase.power_w == pytest.approx(there.watts(0.6, 0.05), rel=0.05)


def test_what_cannot_be_told_is_refused_or_said():
    learned = learn(recorded(Machine()), validated=False)
    moved = on_machine(learned, line_of(Machine()))
    assert moved.profile.spread is None
    assert any("how far off that is nobody has found out" in note for note in moved.notes)
    beyond = replace(line_of(Machine()), features=(Feature(name="cpu", low=0.0, high=0.2),) * 2)
    beyond = replace(beyond, features=(beyond.features[0], Feature(name="gpu", low=0.0, high=1.0)))
    assert any("cpu is above" in note for note in on_machine(learned, beyond).notes)
    for wrong, message in (
        ({"speed": 0.0}, "more than 0"),
        ({"features": ["cpu=nothing", "gpu"]}, "no column 'nothing'"),
        ({"features": ["cpu"]}, "the model goes by gpu"),
    ):
        with pytest.raises(InvalidInput, match=message):
            on_machine(learned, line_of(Machine()), **wrong)
    silent = learn(recorded(Machine(), hidden=0.8), validated=False)
    with pytest.raises(InvalidInput, match="half of it is needed"):
        on_machine(silent, line_of(Machine()))
    partly = on_machine(learn(recorded(Machine(), hidden=0.2), validated=False), line_of(Machine()))
    assert partly.profile.energy_j > 0


def test_on_the_command_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    there = Machine(idle_w=200.0, gpu_w=100.0)
    write_recording(recorded(Machine()), tmp_path / "runs")
    line_of(there, half_w=12.0).dump("other.json")
    words = ("learn", "runs", "--machine", "other.json")
    shown = command(capsys, *words, "-o", "p.toml")
    assert shown.code == 0, shown.err
    assert "~" in shown.out and "on another machine, by its model (made up)" in shown.out
    assert PowerProfile.load("p.toml").energy_j == pytest.approx(there.energy_j(), rel=0.03)
    assert "another machine" in (tmp_path / "p.toml").read_text()
    said = json.loads(command(capsys, *words, "--speed", "2", "--json").out)
    assert said["power"] == "estimated"
    for wrong, rule in (
        (("learn", "runs", "--speed", "2"), "belongs to --machine"),
        ((*words, "--speed", "0"), "more than 0"),
        ((*words, "--baseline", "excluded"), "idle"),
        ((*words, "--image", "a.png"), "none ran on --machine"),
        ((*words, "--utilisation"), "No such option: --machine"),
        ((*words, "--check", "p.toml"), "No such option: --machine"),
        ((*words, "--average", "3"), "No such option: --average"),
        (("learn", "runs", "--machine", "nowhere.json"), "nowhere.json"),
        (("learn", "h200", "--machine", "other.json"), "--features"),
    ):
        answer = command(capsys, *wrong)
        assert answer.code == 2, (wrong, answer)
        assert rule in answer.err, (wrong, answer.err)
