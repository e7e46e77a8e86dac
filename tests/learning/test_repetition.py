"""What repeats, and what every start repeats."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.learning.phase_model import PhaseModel
from lowtide.learning.phases import PhaseFinder
from lowtide.learning.repetition import Block, find_block, find_structure
from lowtide.learning.series import RunSeries, common_step_s
from lowtide.recording import Recording, Run
from support.recordings import EPOCH, EXIT, STARTUP, labels_of, make_run, make_runs

PREPARE = (5.0, 250.0)


def find(recording: Recording, *, events: bool) -> PhaseModel:
    series = [RunSeries.of(run) for run in recording]
    return PhaseFinder(step_s=common_step_s(series), events=events).find(series)


def resumed(count: int, *, first: int) -> list[RunSeries]:
    phases = (*STARTUP, *EPOCH * (4 - first), *EXIT)
    labels = labels_of(range(first, 4))
    return [
        RunSeries.of(make_run(f"again_{i}", phases, labels=labels, seed=90 + i, kind="resume"))
        for i in range(count)
    ]


@pytest.mark.parametrize("events", [True, False])
def test_epochs_are_a_block_and_what_comes_before_is_startup(events: bool) -> None:
    structure = find_structure(find(make_runs(4), events=events), [])
    assert structure.block == Block(first=2, length=3, count=3)
    assert structure.startup == 2
    assert "a resumed run would make sure" in structure.why


@pytest.mark.parametrize("events", [True, False])
def test_a_resumed_run_tells_startup_from_work(events: bool) -> None:
    # Preparing the data is done once and kept: by position it would count as startup.
    phases = (*STARTUP, PREPARE, *EPOCH * 3, *EXIT)
    labels = list(labels_of((1, 2, 3)))
    labels.insert(2, "prepare")
    runs = make_runs(4, phases=phases, labels=labels)
    model = find(runs, events=events)
    assert find_structure(model, []).startup == 3
    compared = find_structure(model, resumed(2, first=2))
    assert compared.startup == 2
    assert compared.block == Block(first=3, length=3, count=3)
    assert "resumed runs began with" in compared.why


def test_a_warm_up_that_resumed_runs_have_too_is_startup() -> None:
    warm = (1.0, 150.0)

    def run(name: str, epochs: range, seed: int, kind: str) -> object:
        first = (EPOCH[0][0] + warm[0], EPOCH[0][1])
        phases = [*STARTUP, first, *EPOCH[1:], *EPOCH * (len(epochs) - 1), *EXIT]
        made = make_run(name, phases, labels=labels_of(epochs), seed=seed, kind=kind, jitter=0.0)
        power_w = np.array(made.power_w)
        begin = made.start + 7.0
        power_w[(made.times >= begin) & (made.times < begin + warm[0])] = warm[1]
        return type(made)(
            id=name,
            times=made.times,
            power_w=power_w,
            start=made.start,
            end=made.end,
            events=made.events,
            kind=kind,
        )

    full = Recording(runs=tuple(run(f"f{i}", range(1, 4), i, "full") for i in range(3)))  # type: ignore[misc]
    again = RunSeries.of(run("again", range(2, 4), 9, "resume"))  # type: ignore[arg-type]
    model = find(full, events=True)
    assert model.parts[2] == 2
    for given in ([], [again]):
        structure = find_structure(model, given)
        assert structure.startup == 3
        assert structure.block == Block(first=3, length=3, count=3)


def test_labels_without_numbers_leave_it_to_position() -> None:
    labels = ("import", "load", *("train", "eval", "save") * 3, "bye")
    model = find(make_runs(3, labels=labels), events=True)
    rest = (*STARTUP, *EPOCH * 2, *EXIT)
    said = ("import", "load", *("train", "eval", "save") * 2, "bye")
    again = RunSeries.of(make_run("again", rest, labels=said, seed=91, kind="resume"))
    structure = find_structure(model, [again])
    assert structure.startup == 2


def test_a_slow_first_epoch_is_work_outside_the_block() -> None:
    phases = (*STARTUP, (8.0, 390.0), *EPOCH[1:], *EPOCH * 3, *EXIT)
    model = find(
        make_runs(4, phases=phases, labels=labels_of(range(1, 5)), jitter=0.005), events=True
    )
    structure = find_structure(model, [])
    assert structure.block == Block(first=5, length=3, count=3)
    assert structure.startup == 2


@pytest.mark.parametrize("split", [False, True])
def test_a_block_cut_in_its_middle_leaves_no_work_in_the_startup(split: bool) -> None:
    # A meter that lags smears the edges: the block that is found begins with the saving.
    train, save, ramp = (6.7, 680.0), (2.4, 140.0), (0.5, 405.0)
    first = [(5.8, 683.0), (1.1, 640.0)] if split else [(6.9, 676.0)]
    phases = (*STARTUP, *first, *(ramp, save, ramp, train) * 4, ramp, save)
    model = find(make_runs(4, phases=phases, labels=[]), events=False)
    block = find_block(model)
    assert block is not None
    structure = find_structure(model, [])
    startup_s = float(model.duration_s[: structure.startup].sum())
    assert startup_s == pytest.approx(sum(seconds for seconds, _ in STARTUP), abs=0.5)


def test_resumed_runs_that_share_no_mark_share_what_comes_before_the_first() -> None:
    def quiet(run: Run) -> Run:
        # Nothing is said until the first epoch, whose number differs in a resumed run.
        return Run(
            id=run.id,
            times=run.times,
            power_w=run.power_w,
            start=run.start,
            end=run.end,
            kind=run.kind,
            events=[event for event in run.events if event.label not in ("import", "load")],
        )

    runs = Recording(runs=tuple(quiet(run) for run in make_runs(4)), source="made up")
    again = [RunSeries.of(quiet(series.run)) for series in resumed(2, first=2)]
    structure = find_structure(find(runs, events=True), again)
    assert structure.startup == 2
    assert "resumed runs began with" in structure.why


def test_nothing_repeats() -> None:
    phases = ((4.0, 60.0), (5.0, 300.0), (3.0, 150.0))
    model = find(make_runs(3, phases=phases, labels=("a", "b", "c")), events=True)
    structure = find_structure(model, [])
    assert (structure.startup, structure.block) == (0, None)
    assert "all is taken as work" in structure.why
    assert find_block(model) is None


def test_epochs_that_differ_are_no_block() -> None:
    phases = [*STARTUP]
    for seconds in (4.0, 6.0, 9.0):
        phases += [(seconds, 400.0), (2.0, 200.0), (3.0, 120.0)]
    model = find(make_runs(4, phases=(*phases, *EXIT), jitter=0.001), events=True)
    assert find_block(model) is None
