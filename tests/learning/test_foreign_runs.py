"""Runs that do not belong together: named, left out, never averaged in silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowtide.learning import Learned, learn
from lowtide.recording import Recording, Run
from support.programs import draw_program
from support.recordings import EPOCH, STARTUP, make_run, make_runs

# Another program on the same machine: other levels, and the same levels for other times.
OTHERS = {
    "levels": (*STARTUP, *((9.0, 320.0), (4.0, 260.0)) * 4),
    "times": (*STARTUP, *((21.0, 400.0), (7.0, 200.0)) * 3),
    "one level": ((60.0, 400.0),),
}


def learned(runs: list[Run], **how: object) -> Learned:
    return learn(Recording(runs=tuple(runs)), validated=False, **how)  # type: ignore[arg-type]


def named(found: Learned) -> list[str]:
    return [note for note in found.notes if "left out" in note]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("places", [(0,), (5,), (0, 3)])
def test_another_program_is_left_out_wherever_it_is(other: str, places: tuple[int, ...]) -> None:
    alone = make_runs(4, marked=False)
    runs = list(alone)
    for seed, place in enumerate(places):
        foreign = make_run(
            f"foreign_{seed}", OTHERS[other], labels=(), seed=20 + seed, marked=False
        )
        runs.insert(place, foreign)
    found = learned(runs)
    assert sorted(note.split()[1] for note in named(found)) == [
        f"foreign_{seed}" for seed in range(len(places))
    ]
    assert found.profile.energy_j == pytest.approx(learn(alone).profile.energy_j, rel=1e-3)
    assert found.epochs == 3


@pytest.mark.parametrize("seed", [11, 12, 13, 14])
def test_runs_of_one_program_are_all_used(seed: int) -> None:
    program = draw_program(seed, marked=False)
    found = learned(list(program.recording(seed)))
    assert named(found) == []
    assert len(found.series) == len(program.epochs)


def test_runs_of_unequal_epochs_are_one_program() -> None:
    runs = [
        make_run(f"r{count}", (*STARTUP, *EPOCH * count), labels=(), seed=count, marked=False)
        for count in (3, 4, 5, 8)
    ]
    found = learned(runs)
    assert named(found) == []
    assert found.fit.model.epochs == (3, 4, 5, 8)


def moved(run: Run, by_s: float) -> Run:
    """A run whose marks were set by a clock that goes ahead by so much."""
    return replace(
        run, events=tuple(replace(event, time=event.time + by_s) for event in run.events)
    )


@pytest.mark.parametrize("by_s", [-600.0, -14.0, 13.0, 240.0])
def test_marks_by_another_clock_are_not_believed(by_s: float) -> None:
    runs = list(make_runs(4))
    truth = learned(runs[1:])
    found = learned([moved(runs[0], by_s), *runs[1:]])
    (why,) = named(found)
    assert "full_0" in why
    assert "clock" in why or "lacks marks" in why
    assert found.profile.startup_s == pytest.approx(truth.profile.startup_s, abs=0.2)
    assert found.profile.energy_j == pytest.approx(truth.profile.energy_j, rel=1e-6)


def test_if_no_clock_can_be_believed_power_decides() -> None:
    found = learned([moved(run, 13.0) for run in make_runs(4)])
    assert found.fit.model.marks is None
    assert any("told by power alone" in note for note in found.notes)
    assert found.epochs == 3
    assert found.profile.startup_s == pytest.approx(7.0, abs=0.5)


def test_marks_that_contradict_each_other_are_not_believed() -> None:
    runs = list(make_runs(4))
    swap = {"epoch_1": "epoch_3", "epoch_3": "epoch_1"}
    events = tuple(
        replace(event, label=swap.get(event.label[:7], event.label[:7]) + event.label[7:])
        for event in runs[2].events
    )
    found = learned([*runs[:2], replace(runs[2], events=events), runs[3]])
    (why,) = named(found)
    assert "run full_2 says" in why
    assert "contradict each other" in why


def test_a_loss_that_falls_contradicts_nothing() -> None:
    runs = []
    rng = np.random.default_rng(3)
    for run in make_runs(4):
        first = run.events[0]
        said = [
            replace(first, time=run.start + float(at), label=f"loss {rng.integers(100)}")
            for at in rng.uniform(1, run.duration_s, 3)
        ]
        runs.append(replace(run, events=tuple(sorted((*run.events, *said), key=lambda e: e.time))))
    assert named(learned(runs)) == []


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("each", [1, 2])
def test_of_two_programs_with_as_many_runs_one_is_learned(each: int, marked: bool) -> None:
    for seed in range(7_000_000, 7_000_006):
        one, other = (draw_program(seed + by, marked=marked) for by in (0, 100))
        if marked:
            # What both say is the same: only what they draw tells them apart.
            names = [
                replace(part, name=name.name)
                for part, name in zip(other.epoch, one.epoch, strict=False)
            ]
            other = replace(other, epoch=tuple(names), style=one.style, said=one.said)
        own = list(replace(one, epochs=one.epochs[:1] * each).recording(seed))
        foreign = list(replace(other, epochs=other.epochs[:1] * each).recording(seed + 1))
        found = learned([*own, *(replace(run, id=f"foreign_{run.id}") for run in foreign)])
        assert [note.split()[1] for note in named(found)] == [f"foreign_{run.id}" for run in own]
        assert found.profile.energy_j == pytest.approx(
            np.mean([run.energy_j() for run in own]), rel=0.05
        )


@pytest.mark.parametrize("slower", [0.5, 2.0, 2.9])
@pytest.mark.parametrize("counts", [(3, 1), (1, 1), (3, 3)])
def test_who_says_the_same_at_another_pace_is_left_out(
    counts: tuple[int, int], slower: float
) -> None:
    drawn = replace(draw_program(7_000_001), said="epochs", missing=0.0, extra=0.0)
    paced = tuple(replace(part, seconds=slower * part.seconds) for part in drawn.epoch)
    own = list(replace(drawn, epochs=(5,) * counts[0]).recording(1))
    others = replace(drawn, epochs=(5,) * counts[1], epoch=paced).recording(2)
    found = learned([*own, *(replace(run, id=f"paced_{run.id}") for run in others)])
    assert all(note.startswith("run paced_full") for note in named(found))
    assert len(named(found)) == counts[1]
    assert "for an epoch where others take" in named(found)[0]
    assert found.fit.model.epochs == (5,) * counts[0]


def test_what_only_other_programs_say_is_not_told_of_this_one() -> None:
    runs = list(make_runs(4))
    other = make_run("other", OTHERS["times"], labels=("solve 1", "write", "solve 2"), seed=9)
    found = learned([*runs, other])
    assert len(named(found)) == 1
    assert not any("now and then" in note for note in found.notes)


def test_a_silent_run_among_marked_ones_is_left_out() -> None:
    runs = list(make_runs(4))
    found = learned([*runs[:3], replace(runs[3], events=())])
    (why,) = named(found)
    assert "full_3 lacks marks" in why
    assert found.fit.model.marks is not None


def test_a_run_of_another_length_does_not_stretch_the_others() -> None:
    # Nothing repeats that would tell why one of five takes nearly twice as long.
    runs = [
        make_run(f"r{seed}", ((5.0, 60.0), (30.0, 400.0)), labels=(), seed=seed, marked=False)
        for seed in range(4)
    ]
    long = make_run("long", ((5.0, 60.0), (60.0, 400.0)), labels=(), seed=9, marked=False)
    found = learned([*runs, long])
    assert found.profile.run_s == pytest.approx(35.0, rel=0.03)
    assert any("nothing that repeats to tell why: long" in note for note in found.notes)
    # How much runs differ is not made less by that.
    assert found.profile.spread is not None
    assert found.profile.spread.duration[1] > 1.5
