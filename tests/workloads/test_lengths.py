"""Lengths: their distributions, against known moments and distribution functions."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from lowtide.errors import InvalidInput, InvalidTime, UnknownName
from lowtide.trace import Trace
from lowtide.workloads import draws
from lowtide.workloads.checks import build

N = 100_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ks_statistic(values: np.ndarray, cdf: Callable[[float], float]) -> float:
    """Kolmogorov and Smirnov's distance times √n; above 1.95 in 1 of 1,000 true cases."""
    ordered = np.sort(values)
    expected = np.array([cdf(each) for each in ordered.tolist()])
    steps = np.arange(ordered.size + 1) / ordered.size
    distance = max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    return math.sqrt(ordered.size) * float(distance)


def test_lognormal_has_its_log_moments():
    logs = np.log(draws.lognormal(median="2h", sigma=1.2)(N, rng(1)))
    # Four standard errors: σ/√n of the mean, σ/√(2n) of the deviation.
    assert abs(logs.mean() - math.log(7200)) < 4 * 1.2 / math.sqrt(N)
    assert abs(logs.std() - 1.2) < 4 * 1.2 / math.sqrt(2 * N)
    normal = NormalDist(math.log(7200), 1.2)
    assert ks_statistic(logs, normal.cdf) < 1.95


def test_lognormal_within_limits_keeps_its_shape_there():
    drawn = draws.lognormal(median="2h", sigma=1.2, low="1h", high="1d")(N, rng(2))
    assert drawn.min() >= 3600
    assert drawn.max() <= 86_400
    normal = NormalDist(math.log(7200), 1.2)
    low, high = normal.cdf(math.log(3600)), normal.cdf(math.log(86_400))
    assert ks_statistic(drawn, lambda x: (normal.cdf(math.log(x)) - low) / (high - low)) < 1.95
    # Nothing piles up at a limit.
    assert np.count_nonzero(drawn == 3600) == 0


def test_limits_leave_other_jobs_as_they_were():
    free = draws.lognormal(median="2h", sigma=1.2)(1000, rng(3))
    cut = draws.lognormal(median="2h", sigma=1.2, high="4h")(1000, rng(3))
    fits = free <= 4 * 3600
    assert 0 < fits.sum() < 1000
    assert np.array_equal(cut[fits], free[fits])


def test_loguniform_is_even_in_its_logarithm():
    drawn = draws.loguniform(low="10m", high="10h")(N, rng(4))
    assert ks_statistic(drawn, lambda x: math.log(x / 600) / math.log(60)) < 1.95
    assert draws.loguniform(low=5, high=5)(2, rng()).tolist() == [5.0, 5.0]


def test_constant():
    assert draws.constant(length="1h30m")(3, rng()).tolist() == [5400.0] * 3
    assert draws.lognormal(median=60, sigma=0)(2, rng()).tolist() == [60.0, 60.0]


def test_from_a_trace_each_length_is_as_likely_as_in_it():
    trace = Trace(columns={"arrival": [0, 1, 2, 3, 4], "length_s": [10, 10, 20, 0, 30]})
    drawn = draws.from_trace(trace=trace)(N, rng(5))
    for length, share in ((10, 0.5), (20, 0.25), (30, 0.25)):
        assert abs((drawn == length).mean() - share) < 4 * math.sqrt(share * (1 - share) / N)
    assert set(drawn) == {10.0, 20.0, 30.0}


def test_from_a_real_trace(data):
    path = data("traces/pai_1k.csv")
    own = [float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]
    drawn = draws.from_trace(trace=str(path))(N, rng(6))
    assert set(drawn) <= set(own)
    mean, deviation = np.mean(own), np.std(own)
    assert abs(drawn.mean() - mean) < 4 * deviation / math.sqrt(N)


def test_from_a_file_in_other_units(tmp_path: Path):
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_time,length,cpus\n0,2,1\n")
    assert draws.from_trace(trace=path, time_unit="h")(2, rng()).tolist() == [7200.0, 7200.0]


@pytest.mark.parametrize("name", ["constant", "lognormal", "loguniform", "from_trace"])
def test_every_kind_crosses_to_another_process(name):
    parameters = {
        "constant": {"length": 5},
        "lognormal": {"median": 5, "sigma": 1, "high": 9},
        "loguniform": {"low": 5, "high": 9},
        "from_trace": {"trace": Trace(columns={"arrival": [0], "length_s": [5]})},
    }
    made = draws.LENGTHS[name](**parameters[name])
    again = pickle.loads(pickle.dumps(made))
    assert made(9, rng(7)).tobytes() == again(9, rng(7)).tobytes()


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"kind": "lognormal", "sigma": 1}, InvalidInput, "lognormal lengths need 'median'"),
        ({"kind": "lognormal", "median": "2h", "sigma": -1}, InvalidInput, "sigma .* from 0 up"),
        ({"kind": "lognormal", "median": 0, "sigma": 1}, InvalidTime, "median is more than 0"),
        (
            {"kind": "lognormal", "median": "2", "sigma": 1},
            InvalidTime,
            "median: duration '2' has no unit",
        ),
        (
            {"kind": "lognormal", "median": "1h", "sigma": 0.1, "low": "1d"},
            InvalidInput,
            "fewer than 1 in 1,000 lengths with median 1 h and sigma 0.1 lie between low and high",
        ),
        (
            {"kind": "lognormal", "median": "1h", "sigma": 1, "low": "2h", "high": "1h"},
            InvalidInput,
            "lie between low and high",
        ),
        (
            {"kind": "lognormal", "median": "1h", "sigma": 0, "high": "30m"},
            InvalidInput,
            "lie between low and high",
        ),
        (
            {"kind": "loguniform", "low": "2h", "high": "1h"},
            InvalidInput,
            "low is at most high, but '2h' is longer than '1h'",
        ),
        ({"kind": "constant", "length": -5}, InvalidTime, "length is more than 0, not -5"),
        (
            {"kind": "from_trace", "trace": Trace(columns={"arrival": [0]}, source="x")},
            InvalidInput,
            "no job of x has a length to draw from",
        ),
        (
            {"kind": "lognormal", "medain": "2h", "sigma": 1},
            UnknownName,
            r"unknown key of lognormal lengths 'medain' \(did you mean 'median'\?\)",
        ),
        (
            {"kind": "log-normal"},
            UnknownName,
            r"unknown kind of lengths 'log-normal' \(did you mean 'lognormal'\?\)",
        ),
        ({"kind": ["a"]}, UnknownName, "unknown kind of lengths"),
        ({"median": "2h"}, InvalidInput, "lengths is a table with a kind, one of constant, from_"),
        ([], InvalidInput, "lengths is a table with a kind"),
    ],
)
def test_refused(table, error, message):
    with pytest.raises(error, match=message):
        build(table, draws.LENGTHS, "lengths")
