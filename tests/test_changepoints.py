"""Change points against brute force, an independent implementation, and known truth."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.changepoints import (
    find_changes,
    noise_variance,
    price_of_a_change,
    wandering_noise,
)


def cost(trace: np.ndarray, edges: tuple[int, ...], price: float) -> float:
    apart = sum(float(((trace[a:b] - trace[a:b].mean()) ** 2).sum()) for a, b in pairwise(edges))
    return apart + price * (len(edges) - 2)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9), st.sampled_from([0.3, 1.7, 6.1, 40.3]))
def test_no_other_cut_is_cheaper(values: list[int], price: float) -> None:
    trace = np.array(values, dtype=float)
    inner = range(1, trace.size)
    best = min(
        cost(trace, (0, *cuts, trace.size), price)
        for count in range(trace.size)
        for cuts in combinations(inner, count)
    )
    found = tuple(int(edge) for edge in find_changes(trace, price))
    assert cost(trace, found, price) == pytest.approx(best, abs=1e-9)


def test_the_same_changes_as_ruptures() -> None:
    ruptures = pytest.importorskip("ruptures")
    rng = np.random.default_rng(3)
    for _ in range(20):
        levels = rng.uniform(50, 300, rng.integers(1, 12))
        trace = np.repeat(levels, rng.integers(3, 60, levels.size)) + rng.normal(0, 15, 1)
        trace = trace + 15 * rng.standard_normal(trace.size)
        price = price_of_a_change(noise_variance(trace, 0.1), trace.size)
        theirs = ruptures.KernelCPD("linear", min_size=1).fit(trace[:, None]).predict(pen=price)
        assert find_changes(trace, price)[1:].tolist() == theirs


def test_known_changes_are_found_and_no_others() -> None:
    rng = np.random.default_rng(0)
    levels = np.repeat([60.0, 110.0, 400.0, 200.0, 120.0], [80, 60, 120, 40, 60])
    for _ in range(20):
        trace = levels + 20 * rng.standard_normal(levels.size)
        edges = find_changes(trace, price_of_a_change(noise_variance(trace, 0.1), trace.size))
        assert np.abs(edges - [0, 80, 140, 260, 300, 360]).max() <= 3


def test_noise_alone_has_no_changes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        trace = 100 + 10 * rng.standard_normal(600)
        edges = find_changes(trace, price_of_a_change(noise_variance(trace, 0.1), trace.size))
        assert edges.tolist() == [0, 600]


def test_correlated_noise_is_not_taken_for_changes() -> None:
    # Noise that lasts half a second: differences between neighbours would see a third of it.
    rng = np.random.default_rng(0)
    found = []
    for _ in range(20):
        trace = 100 + 10 * np.convolve(rng.standard_normal(604), np.ones(5) / 5**0.5, "valid")
        windows = noise_variance(trace, 0.1)
        differences = float(np.median(np.diff(trace) ** 2)) / (2 * 0.455)
        counts = [
            find_changes(trace, price_of_a_change(noise, trace.size)).size - 2
            for noise in (windows, differences)
        ]
        found.append(counts)
    by_windows, by_differences = np.mean(found, axis=0)
    assert by_windows < by_differences / 2


@pytest.mark.parametrize("trace", [[5.0], [5.0, 5.0], [0.0] * 30, [5.0] * 7])
def test_constant_and_tiny_traces(trace: list[float]) -> None:
    values = np.array(trace)
    price = price_of_a_change(noise_variance(values, 0.1), values.size)
    assert find_changes(values, price).tolist() == [0, len(trace)]


def test_noise_of_coarse_samples_is_not_underrated() -> None:
    # A watcher looks every 10 s: windows of two seconds would hold a single value.
    rng = np.random.default_rng(3)
    levels_w = np.where(np.arange(4320) // 300 % 2 == 0, 400.0, 250.0)
    power_w = levels_w + rng.normal(0.0, 8.0, levels_w.size)
    noise = noise_variance(power_w, 10.0)
    assert noise == pytest.approx(64.0, rel=0.2)
    edges = find_changes(power_w, price_of_a_change(noise, power_w.size))
    assert edges.tolist() == [*range(0, 4320, 300), 4320]


@pytest.mark.parametrize("flicker_w", [0.0, 2.0])
def test_changes_of_level_are_no_noise(flicker_w: float) -> None:
    # Short phases, read by a meter that rounds: most readings are those before.
    rng = np.random.default_rng(0)
    levels_w = np.tile(np.repeat([400.0, 200.0, 80.0], [9, 5, 4]), 12)
    power_w = levels_w + flicker_w * (rng.random(levels_w.size) < 0.1)
    noise, lasting = wandering_noise(power_w, 1.0)
    assert noise * lasting <= max(flicker_w, 1.0) ** 2
    # Nor is noise that most readings show mistaken for changes.
    noisy = levels_w + 10 * rng.standard_normal(levels_w.size)
    assert 7 <= np.sqrt(wandering_noise(noisy, 1.0)[0]) <= 14
