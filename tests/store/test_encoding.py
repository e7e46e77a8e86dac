"""Chunks and ticks: what goes in comes out, as finely as is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.store.codec import GAUGE_ERROR, Look, Points, decode, encode, join, roll_up
from lowtide.store.codec import pack_tick as pack
from lowtide.store.codec import unpack_tick as unpack
from lowtide.store.layout import NODE, UNIT, Layout
from support.nightly import drawn


@st.composite
def some_points(draw: st.DrawFn, layout: Layout) -> Points:
    """Values of all sizes and signs, some unknown, at times that stand still or go back."""
    count = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    unknown = draw(st.sampled_from([0.0, 0.3, 1.0]))

    def table(rows: int, columns: int, most: float) -> np.ndarray:
        values = rng.choice([-1.0, 1.0], (rows, columns)) * most ** rng.uniform(
            -1, 1, (rows, columns)
        )
        values[rng.random(values.shape) < 0.2] = 0.0
        values[rng.random(values.shape) < unknown] = np.nan
        return values

    steps = rng.choice([0.0, 1e-3, 10.0, 12345.678], count)
    ends = 1.7e9 + np.cumsum(steps + rng.choice([0.0, 0.0, 30.5, -7200.0], count))
    return Points(
        since=ends - steps,
        time=ends,
        base=table(1, len(layout.counters), 1e12)[0],
        counters=table(count, len(layout.counters), 1e12),
        gauges=table(count, len(layout.gauges), 1e30),
    )


def growing(count: int, *, step_s: float = 10.0, seed: int = 1) -> Points:
    rng = np.random.default_rng(seed)
    ends = 1.7e9 + np.cumsum(np.full(count, step_s))
    used = rng.uniform(0, 500, (count, len(UNIT.counters)))
    return Points(
        since=ends - step_s,
        time=ends,
        base=np.zeros(len(UNIT.counters)),
        counters=np.cumsum(used, axis=0),
        gauges=rng.uniform(0, 1e9, (count, len(UNIT.gauges))),
    )


@pytest.mark.parametrize("layout", [UNIT, NODE], ids=["unit", "node"])
@settings(max_examples=drawn(30, 600))
@given(data=st.data())
def test_what_goes_in_comes_out_as_finely_as_is_said(layout: Layout, data: st.DataObject) -> None:
    points = data.draw(some_points(layout))
    found_layout, found = decode(encode(points, layout))
    assert found_layout is layout
    assert np.abs(found.time - points.time).max() <= 0.00051
    assert np.abs(found.since - points.since).max() <= 0.00051
    quanta = np.array(layout.quanta)
    for name in ("base", "counters"):
        before, after = getattr(points, name), getattr(found, name)
        assert np.array_equal(np.isnan(before), np.isnan(after))
        # Half a quantum, and what a double itself cannot tell apart.
        allowed = 0.5 * quanta + 1e-15 * np.abs(np.nan_to_num(before))
        assert (np.nan_to_num(np.abs(after - before)) <= 1.001 * allowed).all()
    assert np.array_equal(np.isnan(points.gauges), np.isnan(found.gauges))
    error = np.abs(np.nan_to_num(found.gauges) - np.nan_to_num(points.gauges))
    assert (error <= 1.001 * GAUGE_ERROR * np.abs(np.nan_to_num(points.gauges))).all()


def test_small_whole_numbers_are_kept_exactly() -> None:
    points = growing(5)
    points.gauges[:] = np.arange(5)[:, None] * 64.0
    assert np.array_equal(decode(encode(points, UNIT))[1].gauges, points.gauges)


def test_a_reading_beyond_all_measure_is_unknown() -> None:
    points = growing(3)
    points.counters[1, 0] = np.inf
    points.counters[2, 0] = 1e40
    found = decode(encode(points, UNIT))[1]
    assert np.isnan(found.counters[1:, 0]).all()
    assert found.counters[0, 0] == pytest.approx(points.counters[0, 0], abs=1e-4)


def test_rounding_does_not_add_up() -> None:
    # A million values of a third of a millijoule: rounded one by one nothing would be left.
    points = growing(1000)
    points.counters[:] = np.cumsum(np.full((1000, len(UNIT.counters)), 1e-3 / 3), axis=0)
    found = decode(encode(points, UNIT))[1]
    energy = UNIT.counters.index("energy_j")
    assert found.counters[-1, energy] == pytest.approx(points.counters[-1, energy], abs=5.1e-4)


def test_even_pure_noise_takes_less_than_four_bytes_per_value() -> None:
    points = growing(1440, step_s=60.0)
    assert len(encode(points, UNIT)) / (len(points) * len(UNIT.names)) < 4.0


@pytest.mark.parametrize("damage", ["cut", "version", "layout", "bits"])
def test_a_damaged_chunk_is_refused(damage: str) -> None:
    blob = encode(growing(60), UNIT)
    bad = {
        "cut": blob[: len(blob) // 2],
        "version": b"\x09" + blob[1:],
        "layout": blob[:1] + b"\x63" + blob[2:],
        "bits": blob[:40] + bytes(255 - byte for byte in blob[40:60]) + blob[60:],
    }[damage]
    with pytest.raises(InvalidInput, match="chunk"):
        decode(bad)


@settings(max_examples=drawn(30, 600))
@given(points=some_points(UNIT), step_s=st.sampled_from([60.0, 3600.0]))
def test_rolling_up_loses_nothing_that_was_used(points: Points, step_s: float) -> None:
    rolled = roll_up(points, step_s)
    assert len(rolled) <= len(points)
    assert np.array_equal(rolled.counters[-1], points.counters[-1], equal_nan=True)
    assert np.array_equal(rolled.base, points.base, equal_nan=True)
    # Every value that is left is one that was there.
    assert np.isin(rolled.time, points.time).all()
    assert np.isin(rolled.since, points.since).all()


def test_rolling_up_keeps_means_over_time() -> None:
    points = growing(60)
    points.gauges[7] = np.nan
    rolled = roll_up(points, 60.0)
    # Minutes begin in the middle of ten seconds' steps only where the clock has it so.
    known = ~np.isnan(points.gauges[:, 0])
    length = points.time - points.since
    bucket = np.ceil(points.time / 60.0)
    for place, end in enumerate(rolled.time):
        mine = (bucket == np.ceil(end / 60.0)) & known
        mean = np.average(points.gauges[mine], axis=0, weights=length[mine])
        assert rolled.gauges[place] == pytest.approx(mean)


def test_rolling_up_leaves_holes_open() -> None:
    points = growing(12)
    late = Points(
        since=points.since + 25.0,
        time=points.time + 25.0,
        base=points.counters[-1],
        counters=points.counters + points.counters[-1],
        gauges=points.gauges,
    )
    both = roll_up(join([points[:3], late[3:]]), 60.0)
    lengths = both.time - both.since
    assert lengths.sum() == pytest.approx(120.0)


@given(count=st.integers(0, 20), data=st.data())
@settings(max_examples=drawn(20, 400))
def test_a_tick_is_kept_to_the_last_bit(count: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def table(width: int) -> np.ndarray:
        values = rng.choice([0.0, -0.0, np.nan, np.inf, 1 / 3, 5e-324], (count, width))
        # A column that says the same of all is kept once.
        values[:, rng.random(width) < 0.5] = rng.choice([0.0, -0.0, np.nan, 1e300])
        return values

    look = Look(
        since=1.0,
        time=2.5,
        units=np.arange(count) + 2**40,
        counters=table(len(UNIT.counters)),
        gauges=table(len(UNIT.gauges)),
        node=np.linspace(0, 1, len(NODE.names)),
        ended=table(1)[:, 0],
    )
    found = unpack(1.0, 2.5, pack(look))
    for name in ("units", "counters", "gauges", "node", "ended"):
        assert getattr(found, name).tobytes() == getattr(look, name).tobytes(), name


def test_a_damaged_tick_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tick"):
        unpack(0.0, 1.0, b"\x01\x00\x00\x00\x00nonsense")
