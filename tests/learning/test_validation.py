"""Leaving one run out: by hand, and against floors that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from lowtide.learning import learn
from lowtide.learning.series import RunSeries
from lowtide.learning.validation import Prediction, Score, predicted_w, validate
from lowtide.recording import Run
from support.recordings import make_runs


@dataclass
class Mean:
    """Learns one phase: mean length, mean power."""

    duration_s: np.ndarray
    power_w: np.ndarray

    def predict(self, series: RunSeries) -> Prediction:
        own_s = np.array([0.0, series.length_s])
        return Prediction(duration_s=self.duration_s, power_w=self.power_w, own_edges_s=own_s)


def mean(series: Sequence[RunSeries]) -> Mean:
    seconds = np.mean([each.length_s for each in series])
    joules = np.mean([each.energy_j for each in series])
    return Mean(np.array([seconds]), np.array([joules / seconds]))


def constant(name: str, watts: float, seconds: int) -> RunSeries:
    times = np.arange(0, seconds, 1.0)
    return RunSeries.of(Run(id=name, times=times, power_w=np.full(times.size, watts)))


def test_by_hand() -> None:
    # 100 W for 40 s and 130 W for 40 s predict each other: off by 30 W, 30 % and -23 %.
    validation = validate([constant("a", 100, 40), constant("b", 130, 40)], mean)
    assert validation is not None
    for name in ("absolute", "aligned", "1 s", "10 s", "30 s"):
        view = validation.view(name)
        assert view.rmse_w is not None
        assert view.mae_w is not None
        assert view.rmse_w.per_run == pytest.approx((30.0, 30.0))
        assert view.mae_w.value == pytest.approx(30.0)
    assert validation.energy_error.per_run == pytest.approx((0.3, 100 / 130 - 1))
    assert validation.absolute_energy_error.value == pytest.approx((0.3 + 30 / 130) / 2)
    assert validation.energy_error.error == pytest.approx((0.3 + 30 / 130) / 2)


def test_past_its_end_a_profile_draws_nothing() -> None:
    # 20 s predict 40 s: right for half of the time, 100 W too low for the rest.
    validation = validate([constant("a", 100, 20), constant("b", 100, 40)], mean)
    assert validation is not None
    absolute = validation.view("absolute").rmse_w
    assert absolute is not None
    assert absolute.per_run == pytest.approx((0.0, 100 * math.sqrt(0.5)))
    thirty = validation.view("30 s")
    assert thirty.rmse_w is not None
    assert len(thirty.rmse_w.per_run) == 1


def test_one_run_cannot_be_validated() -> None:
    assert validate([constant("a", 100, 40)], mean) is None


def test_runs_too_short_for_an_average_have_none() -> None:
    validation = validate([constant("a", 100, 5), constant("b", 100, 5)], mean)
    assert validation is not None
    assert validation.view("10 s").rmse_w is None
    assert validation.view("1 s").rmse_w is not None


def test_prediction_is_stepwise() -> None:
    drawn = predicted_w(np.array([2.0, 3.0]), np.array([10.0, 20.0]), np.array([0, 1.9, 2, 4.9, 5]))
    assert drawn.tolist() == [10.0, 10.0, 20.0, 20.0, 0.0]


@pytest.mark.parametrize("events", [True, False])
def test_aligned_error_is_the_noise_and_no_less(events: bool) -> None:
    validation = learn(make_runs(6, noise_w=8.0), events=events).validation
    assert validation is not None
    aligned, absolute = validation.view("aligned"), validation.view("absolute")
    assert aligned.rmse_w is not None
    assert absolute.rmse_w is not None
    assert absolute.constant_rmse_w is not None
    # Edges are found to a step: a sample or two on the wrong side is 300 W off.
    assert 8.0 * 0.98 < aligned.rmse_w.value < 8.0 * 2.5
    assert aligned.rmse_w.value < absolute.rmse_w.value < absolute.constant_rmse_w.value


def test_without_drift_absolute_time_is_as_good_as_aligned() -> None:
    validation = learn(make_runs(5, jitter=0.0, noise_w=8.0)).validation
    assert validation is not None
    absolute = validation.view("absolute").rmse_w
    assert absolute is not None
    assert absolute.value == pytest.approx(8.0, rel=0.3)


def test_a_score_is_told_with_its_error() -> None:
    assert str(Score.of([1.0, 2.0])) == "1.5 ± 0.5"
    assert str(Score.of([1.0])) == "1.0 ± ---"
