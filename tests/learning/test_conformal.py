"""Intervals of data in groups."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.learning import learn
from lowtide.learning.intervals import coverage, half_width_w, next_one, supported_level
from lowtide.recording import Recording, Run


def errors_of(rng: np.random.Generator, runs: int, windows: int = 40) -> list[np.ndarray]:
    """Errors of runs that are each off by something of their own, besides noise."""
    return [np.abs(3 * rng.standard_normal() + rng.standard_normal(windows)) for _ in range(runs)]


@pytest.mark.parametrize("runs", [9, 19, 39])
def test_intervals_hold_for_a_new_run_as_often_as_they_say(runs: int) -> None:
    rng = np.random.default_rng(runs)
    held = []
    for _ in range(400):
        half_w = half_width_w(errors_of(rng, runs), 0.9)
        held.append(np.mean(errors_of(rng, 1)[0] <= half_w))
    standard_error = np.std(held) / 20
    # At least what was promised; with more runs no more than that by much.
    assert np.mean(held) > 0.9 - 2 * standard_error
    if runs >= 19:
        assert np.mean(held) < 0.9 + 1 / (runs + 1) + 2 * standard_error


def test_windows_taken_for_independent_would_promise_too_much() -> None:
    """The plain quantile over all windows of three runs holds too seldom for new runs."""
    rng = np.random.default_rng(1)
    plain, grouped = [], []
    for _ in range(400):
        some, new = errors_of(rng, 3), errors_of(rng, 1)[0]
        plain.append(np.mean(new <= np.quantile(np.concatenate(some), 0.9)))
        level = supported_level(0.9, 3)
        grouped.append(np.mean(new <= half_width_w(some, level)))
    assert np.mean(plain) < 0.85
    assert np.mean(grouped) > level == 0.75


def test_every_run_weighs_the_same() -> None:
    short, long = np.array([10.0]), np.full(999, 1.0)
    # Two runs and one to come: half of the weight of what is known lies on the short one.
    assert half_width_w([short, long], 1 / 3) == 1.0
    assert half_width_w([short, long], 2 / 3) == 10.0


def test_few_runs_support_no_high_level() -> None:
    assert supported_level(0.9, 9) == 0.9
    assert supported_level(0.9, 8) == pytest.approx(8 / 9)
    assert supported_level(0.5, 2) == 0.5
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        supported_level(90, 3)


def test_coverage_is_measured_on_runs_left_out() -> None:
    rng = np.random.default_rng(5)
    found = coverage(errors_of(rng, 60), 0.9)
    assert found is not None
    assert found.level == 0.9
    assert found.mean == pytest.approx(0.9, abs=0.06)
    assert found.least < found.mean
    assert coverage(errors_of(rng, 2), 0.9) is None
    few = coverage(errors_of(rng, 4), 0.9)
    assert few is not None
    assert few.level == 0.75


DRAWN = {
    "normal": lambda rng, size: 1 + 0.02 * rng.standard_normal(size),
    "lopsided": lambda rng, size: np.exp(0.3 * rng.standard_normal(size)),
    "with outliers": lambda rng, size: 1 + 0.01 * rng.standard_t(3, size),
    "within bounds": lambda rng, size: rng.uniform(0.9, 1.1, size),
}


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("runs", [2, 5, 9, 18, 40])
def test_the_next_run_lies_between_the_ends_as_often_as_they_say(runs: int, drawn: str) -> None:
    rng = np.random.default_rng(runs)
    values = DRAWN[drawn](rng, (1200, runs + 1))
    held = []
    for *known, unseen in values.tolist():
        ends = next_one(known)
        assert ends is not None
        held.append(ends[0] <= unseen <= ends[1])
    # Few are taken to be normal, and the wider of two intervals holds a little more often.
    error = 2.5 * np.sqrt(0.09 / len(held))
    low, high = (0.9, 0.93) if drawn == "normal" else (0.88, 0.95)
    assert low - error <= np.mean(held) <= high + error


@pytest.mark.parametrize("runs", [9, 19, 40])
def test_one_programs_interval_hangs_less_on_its_outermost_runs(runs: int) -> None:
    """Counting alone would leave an unlucky program with a narrower one."""
    rng = np.random.default_rng(runs)
    of_each: dict[str, list[float]] = {"counted": [], "next_one": []}
    for _ in range(400):
        known, unseen = rng.standard_normal(runs), rng.standard_normal(400)
        apart = np.sort(np.abs(known - known.mean())) * runs / (runs - 1)
        half = apart[int(np.ceil(0.9 * (runs + 1) - 1e-9)) - 1]
        of_each["counted"].append(float(np.mean(np.abs(unseen - known.mean()) <= half)))
        low, high = next_one(known.tolist()) or (0.0, 0.0)
        of_each["next_one"].append(float(np.mean((low <= unseen) & (unseen <= high))))
    unlucky = {name: np.quantile(each, 0.05) for name, each in of_each.items()}
    assert unlucky["next_one"] > unlucky["counted"]


def test_one_value_tells_nothing_of_the_next() -> None:
    assert next_one([1.0]) is None
    assert next_one([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize("runs", [2, 3, 5, 12])
def test_a_profiles_spread_is_that_of_its_runs(runs: int) -> None:
    """Student's t over what runs came to, which needs no leaving out: nothing counts twice."""
    lengths_s = np.linspace(98.0, 102.0, runs).tolist()
    measured = [
        Run(
            id=f"{length_s}",
            times=np.arange(0.0, length_s, 0.5),
            power_w=np.full(np.arange(0.0, length_s, 0.5).size, watts),
            end=length_s,
            kind="full",
        )
        for length_s, watts in zip(lengths_s, np.linspace(205.0, 195.0, runs), strict=True)
    ]
    learned = learn(Recording(runs=measured), validated=False)
    profile = learned.profile
    # None of them is another program, though all are flat and no two draw the same.
    assert len(learned.fit.model.runs) == runs
    assert profile.spread is not None
    for ends, values in (
        (profile.spread.duration, [run.duration_s / profile.run_s for run in measured]),
        (profile.spread.energy, [run.energy_j() / profile.energy_j for run in measured]),
    ):
        assert ends == pytest.approx(next_one(values) or (), abs=2e-3)
