"""Phases: the published fit to the digit, known phases from made-up runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.formats.recordings import read_recordings
from lowtide.learning.phase_model import PhaseModel
from lowtide.learning.phases import PhaseFinder
from lowtide.learning.series import RunSeries, common_step_s
from lowtide.recording import Recording
from support.recordings import PHASES, make_run, make_runs


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
