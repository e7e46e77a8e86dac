"""What is known of a zone, as it grows answer by answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FormatError, InvalidInput, NotCovered
from lowtide.formats.signals import Series
from lowtide.formats.source import Place
from lowtide.grids import history as histories
from lowtide.grids.gb import GbCarbonIntensity
from lowtide.grids.history import ESTIMATE, FORECAST, MEASURED, History, collect, fits, merge
from lowtide.grids.providers import Part, ZoneName
from lowtide.signal import ESTIMATED, FILLED

NAME = ZoneName(provider="gb", zone="GB")
PLACE = Place(path=Path("answer"))
NAN = float("nan")


def part(
    values: dict[float, float],
    *,
    forecast: bool = False,
    marks: list[int] | None = None,
    step_s: float | None = 1.0,
    unit: str = "g/kWh",
    kind: str = "average",
    basis: str = "direct",
) -> Part:
    series = Series(
        times=np.array(list(values), dtype=np.float64),
        values=np.array(list(values.values()), dtype=np.float64),
        place=PLACE,
        unit=unit,
        source="",
        kind=kind,
        basis=basis,
        step_s=step_s,
        marks=None if marks is None else np.array(marks, dtype=np.uint8),
    )
    return Part(series=series, forecast=forecast)


def history(*parts: Part, now: float = 0.0) -> History:
    return collect(parts, name=NAME, provider=GbCarbonIntensity(), now=now)[0]


def rows(known: History) -> dict[float, tuple[float, int, float]]:
    return {
        float(time): (float(value), int(state), float(retrieved))
        for time, value, state, retrieved in zip(
            known.times, known.values, known.states, known.retrieved, strict=True
        )
    }


answers = st.lists(
    st.tuples(
        st.booleans(),
        st.dictionaries(st.integers(0, 8).map(float), st.integers(0, 500), min_size=1),
    ),
    min_size=1,
    max_size=6,
)


@given(answers)
def test_merging_is_what_a_ledger_would_say(told: list[tuple[bool, dict[float, int]]]) -> None:
    ledger: dict[float, tuple[float, int, float]] = {}
    known = None
    for now, (forecast, values) in enumerate(told):
        new = history(part(values, forecast=forecast), now=float(now))
        known = new if known is None else merge(known, new)
        for time, value in values.items():
            before = ledger.get(time)
            if forecast and before is not None and before[1] != FORECAST:
                continue
            ledger[time] = (float(value), FORECAST if forecast else MEASURED, float(now))
    assert known is not None
    assert rows(known) == ledger
    assert np.all(np.diff(known.times) > 0)


def test_a_fact_beats_a_forecast_whichever_comes_first() -> None:
    come, expected = part({0: 5, 1: NAN}), part({0: 9, 1: 8, 2: 7}, forecast=True)
    for parts in ((come, expected), (expected, come)):
        assert rows(history(*parts, now=3.0)) == {
            0: (5, MEASURED, 3),
            1: (8, FORECAST, 3),
            2: (7, FORECAST, 3),
        }


def test_units_and_estimates() -> None:
    known = history(part({0: 1000, 1: 900}, unit="lb/MWh", marks=[ESTIMATED, 0]))
    assert known.values == pytest.approx([453.59237, 408.233133])
    assert known.states.tolist() == [ESTIMATE, MEASURED]


def test_the_signal_is_the_unbroken_stretch_around_now() -> None:
    known = history(part({0: 1, 1: 2, 5: 3, 6: 4, 7: 5, 20: 6}))
    for now, values in (
        (-3.0, [1, 2]),
        (0.5, [1, 2]),
        (4.0, [1, 2]),
        (5.0, [3, 4, 5]),
        (9.0, [3, 4, 5]),
        (99.0, [6]),
    ):
        assert known.signal(now).values.tolist() == values
    assert not known.signal(9.0).covers(9.0, 9.0)


def test_gaps_are_refused_until_a_policy_is_named() -> None:
    known = history(part({0: 1, 1: 2, 2: 4, 3: 4, 5: 6, 6: 6}))
    with pytest.raises(FormatError, match=r"gb:GB: .*1 of 6 steps are missing.*gaps='hold'"):
        known.signal(5.5, since=1.5)
    assert known.signal(5.5, since=1.5, gaps="hold").values.tolist() == [2, 4, 4, 4, 6, 6]
    assert known.signal(5.5, since=1.5, gaps="interpolate").values.tolist() == [2, 4, 4, 5, 6, 6]
    # Nothing is made up outside of what was told.
    assert known.signal(5.5, since=-9.0, gaps="hold").start == 0
    assert known.signal(5.5, since=5.0).values.tolist() == [6, 6]
    assert known.signal(5.5, since=77.0).values.tolist() == [6, 6]


def test_where_estimates_and_forecasts_begin() -> None:
    marks = [ESTIMATED, 0, 0, ESTIMATED]
    known = history(
        part({0: 1, 60: 1, 120: 1, 180: 1}, marks=marks, step_s=60),
        part({180: 2, 240: 2}, forecast=True, step_s=60),
    )
    signal = known.signal(100.0)
    assert known.caveat(signal) == (
        "estimated from 1970-01-01 00:03 UTC on, a forecast from 1970-01-01 00:04 UTC on"
    )
    assert signal.estimated == 3
    assert known.caveat(signal.window(0.0, 180.0)) == ""
    everything = history(part({0: 1, 60: 2}, forecast=True, step_s=60))
    assert everything.caveat(everything.signal(0.0)) == "a forecast from 1970-01-01 00:00 UTC on"


def test_until_when_nothing_more_is_to_come() -> None:
    assert history(part({0: 1, 1: 2, 2: 3})).settled_until == 3.0
    # What was expected of the past and told afterwards is the last word on it.
    assert history(part({0: 1, 1: 2, 9: 3}, forecast=True), now=5.0).settled_until == 2.0
    assert history(part({5: 1}, forecast=True), now=0.0).settled_until is None


def test_a_value_between_the_steps_is_left_out() -> None:
    known, problems = collect(
        [part({0: 1, 60: 2}, step_s=None), part({147: 5}, step_s=None)],
        name=NAME,
        provider=GbCarbonIntensity(),
        now=0.0,
    )
    assert known.times.tolist() == [0, 60]
    assert len(problems) == 1
    assert "1970-01-01 00:02:27 UTC is left out" in problems[0]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part({0: NAN, 1: NAN})], "no value"),
        ([part({0: 5}, step_s=None)], "one value alone"),
        ([part({0: 5, 1: -1})], "0 to 100,000 g/kWh.*-1"),
        ([part({0: 5, 1: 1e6})], "0 to 100,000 g/kWh"),
        ([part({0: 5, 1: 6}, basis="guess")], "unknown basis"),
    ],
)
def test_what_could_be_no_signal_is_refused(parts: list[Part], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        history(*parts)


def test_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tells marginal intensity where average"):
        history(part({0: 1, 1: 2}, kind="marginal"))


def test_what_fits() -> None:
    old = history(part({0: 1, 60: 2}, step_s=60))
    assert fits(old, history(part({600: 1}, step_s=60)))
    assert not fits(old, history(part({600: 1}, step_s=30)))
    assert not fits(old, history(part({630: 1}, step_s=60)))
    assert not fits(old, history(part({600: 1}, step_s=60, basis="lifecycle")))


def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "_LONGEST", 3)
    known = merge(history(part({0: 1, 1: 2})), history(part({2: 3, 3: 4})))
    assert known.times.tolist() == [1, 2, 3]


def test_a_round_trip_through_json() -> None:
    known = history(part({0: 1.25, 1: 2}), part({2: 3}, forecast=True), now=7.0)
    again = History.from_document(NAME, json.loads(json.dumps(known.document())))
    assert rows(again) == rows(known)
    assert (again.title, again.area, again.step_s) == (known.title, known.area, known.step_s)


@pytest.mark.parametrize(
    "change",
    [
        {"times": [0, 0]},
        {"times": [1, 0]},
        {"values": [1]},
        {"values": [1, None]},
        {"values": [1, -5]},
        {"step_s": 0},
        {"kind": "cheap"},
        {"times": [], "values": [], "states": [], "retrieved": []},
    ],
)
def test_a_document_that_is_none(change: dict[str, object]) -> None:
    document = history(part({0: 1, 1: 2})).document() | change
    with pytest.raises((ValueError, TypeError, IndexError)):
        History.from_document(NAME, document)


@given(answers, st.integers(0, 9))
def test_what_came_is_all_that_was_told_of_steps_once_they_had_begun(
    told: list[tuple[bool, dict[float, int]]], now: int
) -> None:
    known = None
    for moment, (forecast, values) in enumerate(told):
        new = history(part(values, forecast=forecast), now=2.0 * moment)
        known = new if known is None else merge(known, new)
    assert known is not None
    came = {
        time: (value, state)
        for time, (value, state, retrieved) in rows(known).items()
        if time <= now and (state != FORECAST or retrieved >= time)
    }
    if not came:
        with pytest.raises(NotCovered, match="has told nothing yet of what came"):
            known.settled(float(now))
        return
    signal = known.settled(float(now))
    assert (signal.start, signal.end) == (min(came), max(came) + 1.0)
    marks = np.zeros(len(signal)) if signal.marks is None else signal.marks
    held = 0.0
    for place, (value, mark) in enumerate(zip(signal.values, marks, strict=True)):
        held, state = came.get(signal.start + place, (held, -1))
        assert value == held
        assert mark == {MEASURED: 0, -1: FILLED}.get(state, ESTIMATED)
