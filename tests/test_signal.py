"""Piecewise-constant series."""

import html
import re
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidSignal, InvalidTime, InvalidUnit, NotCovered
from lowtide.signal import Signal
from support.oracles import exact_integral, value_at
from support.strategies import halved, signals

HOUR = 3600.0
shares = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0.0, 1.0))


def hourly(*values, **kwargs):
    return Signal.from_values(values, start=0, step_s="1h", **kwargs)


def close(signal, exact):
    """Equal to 1e-9 relative, or to a microsecond's worth: epoch seconds tell no less apart."""
    return pytest.approx(float(exact), rel=1e-9, abs=1e-6 * float(np.abs(signal.values).max()))


def clipped(signal, instant):
    return min(max(instant, signal.start), signal.end)


@given(st.data(), signals())
def test_integral_equals_the_sum_over_steps(data, signal):
    a, b = sorted(signal.start + data.draw(shares) * len(signal) * signal.step_s for _ in range(2))
    a, b = clipped(signal, a), clipped(signal, b)
    assert signal.integral(a, b) == close(signal, exact_integral(signal, a, b))
    assert signal.integral(b, a) == close(signal, -signal.integral(a, b))


@given(signals())
def test_integral_over_the_whole_span(signal):
    total = sum(Fraction(value) for value in signal.values.tolist()) * Fraction(signal.step_s)
    assert signal.integral(signal.start, signal.end) == close(signal, total)
    assert signal.integral(signal.start, signal.start) == 0.0
    assert signal.integral(signal.end, signal.end) == 0.0


@pytest.mark.parametrize("start", [0.0, 1.72e9])
@pytest.mark.parametrize("length_s", [1e-3, 0.05, 1.0, 59.9])
@pytest.mark.parametrize("hour", [0, 1, 5000, 8759])
def test_a_very_short_stretch_of_a_very_long_signal(start, length_s, hour):
    rng = np.random.default_rng(7)
    year = Signal.from_values(rng.uniform(20, 900, 8760), start=start, step_s=HOUR)
    for offset_s in (0.0, 1234.5, HOUR - length_s / 2):
        a = start + hour * HOUR + offset_s
        b = min(a + length_s, year.end)
        assert year.integral(a, b) == close(year, exact_integral(year, a, b))


def test_offsets_from_an_origin_keep_digits_that_epoch_seconds_lose():
    curve = Signal.from_values([300.0, 100.0], start=1.72e9, step_s=HOUR)
    got = curve.integral(np.array([10.0]), np.array([10.0 + 1e-7]), origin=1.72e9)
    assert got[0] == pytest.approx(300.0 * 1e-7, rel=1e-6)


@given(signals(max_size=20))
def test_integral_is_additive(signal):
    edges = np.minimum(signal.edges, signal.end)
    parts = signal.integral(edges[:-1], edges[1:])
    assert parts.sum() == close(signal, signal.integral(signal.start, signal.end))


@given(st.data(), signals())
def test_many_at_once_equal_one_at_a_time(data, signal):
    drawn = [signal.start + data.draw(shares) * len(signal) * signal.step_s for _ in range(6)]
    times = np.minimum(drawn, signal.end)
    a, b = times[:3], times[3:]
    assert signal.integral(a, b).tolist() == [
        signal.integral(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    inside = times[times < signal.end]
    assume(inside.size and np.all((inside - signal.start) / signal.step_s < len(signal)))
    assert signal.at(inside).tolist() == [signal.at(x) for x in inside.tolist()]


def test_arrays_keep_their_shape_and_broadcast():
    curve = hourly(300, 100)
    assert curve.integral(np.zeros((2, 3)), np.full((2, 3), HOUR)).shape == (2, 3)
    assert curve.integral(np.array([0.0, HOUR]), np.array([7200.0])).tolist() == [1.44e6, 3.6e5]
    assert curve.integral(np.array([]), np.array([])).size == 0


def test_arrays_longer_than_a_cache_chunk():
    curve = hourly(300, 100, 200)
    a = np.linspace(0, 5000, 50_001)
    b = a + 3000.0
    got = curve.integral(a, b)
    for i in (0, 16_383, 16_384, 32_768, 50_000):
        assert got[i] == pytest.approx(float(exact_integral(curve, a[i], b[i])), rel=1e-12)


@given(st.data(), signals())
def test_at_looks_up_the_step(data, signal):
    i = data.draw(st.integers(0, len(signal) - 1))
    share = data.draw(st.sampled_from([0.01, 0.5, 0.99]))
    instant = signal.start + (i + share) * signal.step_s
    assert signal.at(instant) == float(value_at(signal, instant)) == signal.values[i]


@given(signals())
def test_a_step_begins_at_its_edge(signal):
    assert signal.at(signal.edges[:-1]).tolist() == signal.values.tolist()


def test_the_end_belongs_to_no_step():
    with pytest.raises(NotCovered, match="ends at 1970-01-01 02:00 UTC, and has no value there"):
        hourly(300, 100).at(7200.0)


@given(signals(steps=(60.0, 900.0, 3600.0)))
def test_halving_the_steps_changes_nothing(signal):
    fine = halved(signal)
    third = signal.start + (signal.end - signal.start) / 3
    assert fine.end == signal.end
    assert fine.integral(third, fine.end) == close(signal, signal.integral(third, signal.end))
    assert fine.mean() == pytest.approx(signal.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("begin", "end", "lack"),
    [
        (-1800.0, 3600.0, "begins 30 min too late"),
        (0.0, 10800.0, "ends 1 h too early"),
        (7200.5, 7201.0, "ends 1 s too early"),
        (-7200.0, 86400.0, "begins 2 h too late"),
    ],
)
def test_outside_the_span_it_says_what_lacks(begin, end, lack):
    curve = hourly(300, 100)
    with pytest.raises(NotCovered) as caught:
        curve.integral(begin, end)
    message = str(caught.value)
    assert message.startswith("the signal covers 1970-01-01 00:00 UTC to 1970-01-01 02:00 UTC")
    assert lack in message
    assert message.endswith("get a longer signal or move the window")
    assert isinstance(caught.value, LookupError)
    assert not curve.covers(begin, end)
    for ask in (curve.mean, curve.window):
        with pytest.raises(NotCovered, match=lack):
            ask(begin, end)


def test_one_instant_of_many_outside_is_enough():
    with pytest.raises(NotCovered):
        hourly(300, 100).integral(np.array([0.0, 0.0]), np.array([10.0, 7300.0]))
    with pytest.raises(NotCovered):
        hourly(300, 100).at(np.array([-1.0, 10.0]))


@pytest.mark.parametrize("instant", [1.72e12, -1e12, 1e18])
def test_times_that_no_calendar_holds_are_not_covered_either(instant):
    # Milliseconds since the epoch, taken for seconds, lie in the year 56474.
    with pytest.raises(NotCovered, match="the signal covers"):
        hourly(300, 100).at(instant)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_time_must_be_finite(bad):
    with pytest.raises(InvalidTime, match="finite"):
        hourly(300).integral(0.0, bad)
    with pytest.raises(InvalidTime, match="finite"):
        hourly(300).at(bad)


def test_mean_takes_times_in_every_form():
    curve = Signal.from_values([300, 100], start="2024-07-01T00:00Z", step_s="1h")
    assert curve.mean() == 200.0
    assert curve.mean("2024-07-01T00:30Z", "+1h") == 200.0
    assert curve.mean("2024-07-01T00:00Z", "+90m") == pytest.approx(700 / 3)
    with pytest.raises(InvalidTime, match="a mean needs an end after 2024-07-01 00:00 UTC"):
        curve.mean("2024-07-01T00:00Z", "2024-07-01T00:00Z")


@given(st.data(), signals(min_size=2))
def test_window_holds_the_steps_that_touch_it(data, signal):
    i = data.draw(st.integers(0, len(signal) - 1))
    j = data.draw(st.integers(i + 1, len(signal)))
    low, high = data.draw(st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.3, 0.3)]))
    a = signal.start + (i + low) * signal.step_s
    b = signal.start + (j - high) * signal.step_s
    part = signal.window(a, b)
    assert part.values.tolist() == signal.values[i:j].tolist()
    assert part.start == signal.start + i * signal.step_s
    assert replace(part, values=signal.values, start=signal.start).label == signal.label
    assert part.integral(max(a, part.start), min(b, part.end)) == close(
        signal, signal.integral(a, b)
    )


def test_a_window_that_ends_with_a_step_of_odd_length_takes_no_more_than_that_step():
    curve = Signal.from_values([1, 2, 3, 4], start=1720000000.0, step_s=7.3)
    part = curve.window(curve.start, curve.start + 3 * 7.3)
    assert part.values.tolist() == [1, 2, 3]


def test_a_window_needs_an_end():
    with pytest.raises(InvalidTime, match="a window needs an end after 1970-01-01 01:00 UTC"):
        hourly(300, 100).window(3600, 3600)


@pytest.mark.parametrize(
    ("unit", "given_value", "kept"),
    [("lb/MWh", 1000.0, 453.59237), ("kg/MWh", 300.0, 300.0), ("t/MWh", 0.3, 300.0)],
)
def test_intensities_are_kept_in_g_per_kwh(unit, given_value, kept):
    curve = hourly(given_value, unit=unit)
    assert curve.values[0] == pytest.approx(kept, rel=1e-15)
    assert curve.unit == "g/kWh"


def test_prices_are_kept_per_kwh_and_may_be_negative():
    curve = hourly(80.0, -20.0, kind="price", unit="EUR/MWh")
    assert curve.values.tolist() == pytest.approx([0.08, -0.02], rel=1e-15)
    assert (curve.unit, curve.basis) == ("EUR/kWh", None)


def test_pue_is_a_plain_ratio():
    curve = hourly(1.2, kind="pue")
    assert (curve.unit, curve.basis) == ("1", None)


@pytest.mark.parametrize(
    ("values", "kwargs", "error", "message"),
    [
        ([], {}, InvalidSignal, "at least one value"),
        ([[1.0]], {}, InvalidSignal, "at least one value"),
        (["x"], {}, InvalidSignal, "must all be numbers"),
        ([None], {}, InvalidSignal, "is nan"),
        ([1.0], {"step_s": 0}, InvalidSignal, "step must be longer than 0 s, not 0"),
        ([1.0], {"step_s": -5}, InvalidSignal, "step must be longer than 0 s"),
        ([1.0], {"step_s": np.nan}, InvalidTime, "finite"),
        ([1.0], {"start": np.inf}, InvalidTime, "finite"),
        ([1.0], {"start": "2024-07-01T00:00"}, InvalidTime, "no time zone"),
        ([1.0], {"kind": "mean"}, InvalidSignal, "known are average, marginal, price, pue"),
        ([1.0], {"basis": "wtw"}, InvalidSignal, "unknown basis 'wtw': known are lifecycle"),
        ([1.0], {"unit": "EUR/kWh"}, InvalidUnit, "unknown unit of carbon intensity"),
        ([1.0], {"kind": "price"}, InvalidUnit, "unknown unit of price 'g/kWh'"),
        ([0.9], {"kind": "pue"}, InvalidSignal, "PUE must be from 1 to 100"),
        (
            [1.0, -2.0],
            {},
            InvalidSignal,
            "from 0 to 100,000 g/kWh, but step 1 (from 1970-01-01 01:00 UTC)",
        ),
        ([1.0, np.nan], {}, InvalidSignal, "step 1 (from 1970-01-01 01:00 UTC) is nan"),
        ([np.nan, 1.0, np.nan], {}, InvalidSignal, "and 1 more are like it: mend the data"),
        ([np.inf], {"kind": "price", "unit": "EUR/kWh"}, InvalidSignal, "a price must be from"),
    ],
)
def test_what_makes_no_signal_is_refused(values, kwargs, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Signal.from_values(values, **({"start": 0, "step_s": HOUR} | kwargs))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"kind": "price", "unit": "EUR/MWh"}, InvalidUnit, "use Signal.from_values to convert"),
        ({"kind": "pue", "unit": "%"}, InvalidUnit, "kept in 1"),
        ({"unit": "lb/MWh"}, InvalidUnit, "use Signal.from_values"),
        ({"kind": "x"}, InvalidSignal, "unknown kind"),
        ({"start": np.nan}, InvalidTime, "start must be finite"),
        ({"step_s": np.inf}, InvalidSignal, "step must be longer"),
    ],
)
def test_the_plain_constructor_converts_nothing(kwargs, error, message):
    with pytest.raises(error, match=message):
        Signal(**({"values": [1.0], "start": 0.0, "step_s": HOUR} | kwargs))


def test_a_signal_cannot_be_changed():
    values = np.array([300.0, 100.0])
    curve = Signal.from_values(values, start=0, step_s=HOUR)
    values[0] = 0.0
    assert curve.values[0] == 300.0
    with pytest.raises(ValueError, match="read-only"):
        curve.values[0] = 0.0
    with pytest.raises(FrozenInstanceError):
        curve.start = 5.0
    curve.edges[0] = 99.0
    assert curve.edges[0] == 0.0


def test_labels_and_repr_say_what_it_is():
    curve = hourly(300, 100, zone="DE", synthetic=True, marks=np.array([1, 0]))
    assert curve.label == "average carbon intensity, DE (synthetic)"
    assert repr(curve) == (
        "<Signal: average carbon intensity, DE (synthetic), 1970-01-01 00:00 UTC to "
        "1970-01-01 02:00 UTC, 2 steps of 1 h, 100 to 300 g/kWh; 1 of 2 steps filled in>"
    )
    assert hourly(1, kind="price", unit="EUR/kWh").label == "electricity price"
    assert hourly(1, kind="pue").label == "PUE"
    assert len(curve) == 2


@pytest.mark.parametrize("step_s", [1e-3, 0.1, 3600.0])
@pytest.mark.parametrize("start", [1.7e9 + 0.1234567, 1_719_792_000.1])
def test_rounding_of_epoch_seconds_does_not_lead_out_of_the_span(start, step_s):
    curve = Signal.from_values([100.0] * 100, start=start, step_s=step_s)
    tick = np.spacing(start)
    for ticks in (-2, -1, 0, 1, 2):
        assert curve.covers(curve.start + ticks * tick, curve.end + ticks * tick)
        length_s = curve.end - curve.start
        assert curve.integral(curve.start, curve.end + ticks * tick) == pytest.approx(
            100 * (length_s + ticks * tick), rel=1e-12
        )
    assert not curve.covers(curve.start - 1e-5 - 1e-8 * step_s, curve.end)
    assert not curve.covers(curve.start, curve.end + 1e-5 + 1e-8 * step_s)


def test_near_zero_the_span_ends_where_it_ends():
    curve = Signal.from_values([100.0] * 3, start=0, step_s=1e-3)
    assert not curve.covers(0.0, 0.003 + 1e-9)


def test_a_signal_passes_through_a_data_frame() -> None:
    curve = lt.Signal.from_values([300, 100, 200], start="2024-07-01T00:00Z", step_s="15m")
    frame = pl.DataFrame(curve.columns())
    times = frame["time"].to_numpy()
    again = lt.Signal.from_values(frame["value"], start=times[0], step_s=times[1] - times[0])
    assert (again.start, again.step_s) == (curve.start, curve.step_s)
    assert again.values.tolist() == curve.values.tolist()


def test_notebooks_show_what_is_printed_and_nothing_of_it_is_markup() -> None:
    curve = lt.Signal.from_values([300, 100], start=0, step_s="1h", zone="<b>&")
    job = lt.Job(id="a", arrival=0, deadline="+2h", profile=lt.PowerProfile.constant(300, "1h"))
    best = lt.plan(job, curve)
    shown = curve._repr_html_()
    assert "&lt;b&gt;&amp;" in shown and "<b>" not in shown
    for each in (best, best.schedule, best.footprint):
        page = each._repr_html_()
        assert html.unescape(page).startswith(f"<pre>{each}") and page.endswith("</pre>")
