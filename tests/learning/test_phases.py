"""Phases: the published fit to the digit, known phases from made-up runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.formats.recordings import read_recordings
from lowtide.learning import learn
from lowtide.learning.phase_model import PhaseModel
from lowtide.learning.phases import PhaseFinder
from lowtide.learning.series import RunSeries, common_step_s
from lowtide.recording import Recording
from support.recordings import PHASES, make_run, make_runs, unequal_run


def find(recording: Recording, *, events: bool, **how: object) -> PhaseModel:
    series = [RunSeries.of(run) for run in recording]
    finder = PhaseFinder(step_s=common_step_s(series), events=events, **how)  # type: ignore[arg-type]
    return finder.find(series)


def test_the_published_fit_to_the_digit(data: Callable[[str], Path]) -> None:
    golden = json.loads(data("goldens/power/roberta_fit.json").read_text())
    runs = [run for each in read_recordings(data("power/roberta")) for run in each]
    full = Recording(runs=tuple(run for run in runs if run.kind == "full"))
    model = find(full, events=True, method="published")
    assert len(model.names) == len(golden["phases"])
    for seconds, watts, wanted in zip(
        model.duration_s, model.power_w, golden["phases"], strict=True
    ):
        assert seconds == pytest.approx(wanted["duration_s"], abs=1e-6)
        assert watts == pytest.approx(wanted["power_W"], abs=1e-6)
    spread = np.diff(model.edges_s, axis=1).std(axis=0)
    wanted_spread = [phase["duration_std_s"] for phase in golden["phases"]]
    np.testing.assert_allclose(spread, wanted_spread, atol=1e-6)
    assert float(model.duration_s @ model.power_w) / 1000 == pytest.approx(
        golden["model_energy_kJ"], abs=1e-6
    )


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_known_phases_are_found(events: bool, count: int) -> None:
    model = find(make_runs(count), events=events)
    assert len(model.names) == len(PHASES)
    np.testing.assert_allclose(model.power_w, [watts for _, watts in PHASES], atol=8)
    truth = [
        np.diff([*(event.time for event in run.events if "saved" not in event.label), run.end])
        for run in make_runs(count)
    ]
    np.testing.assert_allclose(np.diff(model.edges_s, axis=1), truth, atol=0.21)
    assert sum(model.checkpoints) == (3 if events else 0)


def test_a_lagging_meter_moves_the_edges_between_marks() -> None:
    late = find(make_runs(4, lag_s=0.6), events=True)
    assert late.lag_s == pytest.approx(0.6, abs=0.051)
    np.testing.assert_allclose(late.power_w[1:-1], [watts for _, watts in PHASES][1:-1], atol=12)


def test_stretches_between_marks_are_cut_where_power_changes() -> None:
    sparse = [
        make_run(f"r{i}", seed=i, labels=("import", *("",) * 10, "bye"), marked=False)
        for i in range(3)
    ]
    assert len(find(Recording(runs=tuple(sparse)), events=False).names) == len(PHASES)
    names = ("a", "b", "c")
    two_levels = [
        make_run(f"r{i}", [(4, 60), (5, 300), (4, 60)], labels=names, seed=i) for i in range(3)
    ]
    marked = find(Recording(runs=tuple(two_levels)), events=True)
    assert (marked.names, marked.parts) == (names, (1, 1, 1))


def test_a_run_that_was_not_learned_from_is_aligned() -> None:
    model = find(make_runs(4), events=False)
    other = make_run("other", seed=77)
    found = model.locate(RunSeries.of(other))
    assert found is not None
    edges = found[0]
    truth = [event.time - other.start for event in other.events if "saved" not in event.label]
    np.testing.assert_allclose(edges[:-1], truth, atol=0.11)
    assert edges[-1] == pytest.approx(other.duration_s)
    by_marks = find(make_runs(4), events=True)
    assert by_marks.locate(RunSeries.of(make_run("mute", marked=False))) is None
    marked = by_marks.locate(RunSeries.of(other))
    assert marked is not None
    np.testing.assert_allclose(marked[0][:-1], truth, atol=0.11)


def test_energy_is_kept_whatever_the_phases() -> None:
    runs = make_runs(5)
    mean_j = np.mean([run.energy_j() for run in runs])
    for events in (True, False):
        model = find(runs, events=events)
        assert float(model.duration_s @ model.power_w) == pytest.approx(mean_j, rel=1e-9)


def test_the_published_way_needs_events() -> None:
    with pytest.raises(InvalidInput, match="the published way needs events"):
        find(make_runs(2), events=False, method="published")


@pytest.mark.parametrize("counts", [(4, 5, 4), (6, 6, 6), (5,)])
@pytest.mark.parametrize("end_s", [0, 3])
@pytest.mark.parametrize("startup_s", [25, 60, 300])
def test_the_first_epoch_is_found_where_only_its_end_is_marked(
    startup_s: float, end_s: float, counts: tuple[int, ...]
) -> None:
    # However long the startup before it is: nothing says where it began.
    runs = [
        unequal_run(number, epochs, startup_s, end_s, "end") for number, epochs in enumerate(counts)
    ]
    learned = learn(Recording(runs=tuple(runs)), validated=False)
    assert learned.fit.model.epochs == counts
    assert learned.fit.model.marks is not None
    assert learned.profile.startup_s == pytest.approx(startup_s, abs=0.5)


@pytest.mark.parametrize("marked", ["begin", "end"])
@pytest.mark.parametrize(("startup_s", "end_s"), [(10, 3), (10, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize(
    "counts", [(3, 5), (2, 8, 20), (4, 5, 4), (4, 5, 2, 4), (5, 5, 4, 6, 5), (2, 2), (20, 8, 2)]
)
def test_an_end_that_nobody_marks_is_as_long_whatever_the_epochs(
    counts: tuple[int, ...], startup_s: float, end_s: float, marked: str
) -> None:
    runs = [
        unequal_run(number, epochs, startup_s, end_s, marked)
        for number, epochs in enumerate(counts)
    ]
    learned = learn(Recording(runs=tuple(runs)), validated=False)
    times = np.bincount(counts)
    common = np.flatnonzero(times == times.max())
    model, usual = learned.fit.model, int(common[(common.size - 1) // 2])
    assert model.epochs == counts
    assert learned.profile.startup_s == pytest.approx(startup_s, abs=0.3)
    assert learned.profile.run_s == pytest.approx(startup_s + 20 * usual + end_s, abs=0.3)
    # A run of any number of epochs is laid out with one end. (What ends the first epoch does not
    # tell its beginning from the startup, so that a run of that alone is not laid out.)
    for epochs in (2 if marked == "end" else 1, usual, 30):
        row = model.row(epochs)
        seconds = learned.fit.duration_s[row].sum()
        assert seconds == pytest.approx(startup_s + 20 * epochs + end_s, abs=0.5)
