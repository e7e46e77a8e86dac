"""What was known of a signal at a moment."""

import re
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from lowtide.errors import InvalidSignal, InvalidTime
from lowtide.forecast import Forecast
from lowtide.signal import Signal


def curve(*values, start=0, step_s="1h", **kwargs):
    return Signal.from_values(values, start=start, step_s=step_s, **kwargs)


def test_lead_counts_from_the_issue():
    forecast = Forecast(issued="2024-07-01T00:00Z", signal=curve(300, start="2024-07-01T00:00Z"))
    assert forecast.issued == 1719792000.0
    assert forecast.lead_s(1719792000.0 + 60) == 60.0
    assert (forecast.lower, forecast.upper) == (None, None)


def test_a_band_lies_around_the_signal_and_may_touch_it():
    forecast = Forecast(
        issued=0, signal=curve(300, 100), lower=curve(250, 100), upper=curve(300, 150)
    )
    assert replace(forecast, lower=None).upper is forecast.upper


@pytest.mark.parametrize(
    "band",
    [
        curve(300),
        curve(300, 100, start=60),
        curve(300, 100, step_s="30m"),
        curve(300, 100, kind="marginal"),
    ],
)
@pytest.mark.parametrize("side", ["lower", "upper"])
def test_a_band_has_the_kind_and_steps_of_the_signal(band, side):
    with pytest.raises(InvalidSignal, match=f"{side} band must have the signal's kind and steps"):
        Forecast(issued=0, signal=curve(300, 100), **{side: band})


@pytest.mark.parametrize(("side", "value"), [("lower", 101), ("upper", 99)])
def test_a_band_on_the_wrong_side_is_refused(side, value):
    message = re.escape(f"a forecast's {side} band lies on the wrong side")
    with pytest.raises(InvalidSignal, match=message):
        Forecast(issued=0, signal=curve(300, 100), **{side: curve(300, value)})


def test_it_is_frozen_and_wants_a_zone():
    with pytest.raises(InvalidTime, match="no time zone"):
        Forecast(issued="2024-07-01T00:00", signal=curve(1))
    with pytest.raises(FrozenInstanceError):
        Forecast(issued=0, signal=curve(1)).issued = 5.0


def test_leads_and_errors_are_per_step():
    forecast = Forecast(issued=1800, signal=curve(300, 120, 50))
    assert forecast.leads_s.tolist() == [-1800.0, 1800.0, 5400.0]
    errors = forecast.relative_errors(curve(300, 100, 0, 400))
    assert errors[:2].tolist() == pytest.approx([0.0, 0.2])
    assert np.isnan(errors[2])


@pytest.mark.parametrize(
    "other",
    [curve(1, 2, 3, kind="marginal"), curve(1, 2, 3, step_s="30m"), curve(1, 2, 3, start=-60)],
)
def test_errors_are_against_the_same_steps(other):
    with pytest.raises(InvalidSignal, match="a forecast is compared with a signal"):
        Forecast(issued=0, signal=curve(1, 2)).relative_errors(other)
