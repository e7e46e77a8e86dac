"""Values per job and how long jobs may wait."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from lowtide.errors import InvalidInput, InvalidTime, UnknownName
from lowtide.workloads.checks import number
from lowtide.workloads.draws import read_draw, read_wait

N = 100_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def drawn(value: object, count: int = N, **options: bool) -> np.ndarray:
    return read_draw(value, "cpus", number, **options)(count, rng())


def test_one_value():
    assert drawn(4, 3).tolist() == [4.0, 4.0, 4.0]


def test_choices_come_as_often_as_their_weights_say():
    weights = {1: 0.5, 2: 0.3, 4: 0.2, 8: 0.0}
    values = drawn({"choices": list(weights), "weights": [5, 3, 2, 0]})
    for value, share in weights.items():
        tolerance = 4 * math.sqrt(share * (1 - share) / N)
        assert abs((values == value).mean() - share) <= tolerance
    even = drawn({"choices": [1, 2]})
    assert abs((even == 1).mean() - 0.5) < 4 * math.sqrt(0.25 / N)


def test_other_weights_move_only_as_many_jobs_as_they_must():
    before = drawn({"choices": [1, 2], "weights": [0.5, 0.5]})
    after = drawn({"choices": [1, 2], "weights": [0.6, 0.4]})
    assert abs((before != after).mean() - 0.1) < 4 * math.sqrt(0.09 / N)


def test_spread_values_are_lognormal():
    logs = np.log(drawn({"kind": "lognormal", "median": 2.0, "sigma": 0.5}, spread=True))
    assert abs(logs.mean() - math.log(2)) < 4 * 0.5 / math.sqrt(N)
    assert abs(logs.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * N)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("4", InvalidInput, "cpus is a number from 0 up, not '4'"),
        ({"choices": []}, InvalidInput, r"choices of cpus is a list of at least one, not \[\]"),
        ({"choices": "12"}, InvalidInput, "choices of cpus is a list"),
        ({"choices": [1, -2]}, InvalidInput, "cpus is a number from 0 up, not -2"),
        ({"choices": [1], "weights": [1, 2]}, InvalidInput, "a number per choice, 1 in all"),
        ({"choices": [1], "weights": [-1]}, InvalidInput, "a weight of cpus is a number from 0 up"),
        ({"choices": [1, 2], "weights": [0, 0]}, InvalidInput, "weights of cpus are all 0"),
        ({"choices": [1], "weight": [1]}, UnknownName, "key of cpus 'weight'.*'weights'"),
        ({"kind": "lognormal"}, InvalidInput, r"one value, or \{choices = .*\}, not"),
    ],
)
def test_values_refused(value, error, message):
    with pytest.raises(error, match=message):
        drawn(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "normal"}, "or {kind = 'lognormal', median = ..., sigma = ...}, not"),
        ({"kind": "lognormal", "sigma": 1}, "median of cpus is a number from 0 up, not None"),
        ({"kind": "lognormal", "median": 1}, "sigma of cpus is a number from 0 up, not None"),
    ],
)
def test_spreads_refused(value, message):
    with pytest.raises(InvalidInput, match=message):
        drawn(value, spread=True)


RUNS = np.array([600.0, 7199.9, 7200.0, 86_400.0])


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"wait": "24h"}, [86_400.0] * 4),
        ({"wait": 0}, [0.0] * 4),
        ({"slack": 2.0}, [1200.0, 14399.8, 14400.0, 172_800.0]),
        (
            {"queues": {"short": {"below": "2h", "wait": "6h"}, "long": {"wait": "24h"}}},
            [21600.0, 21600.0, 86400.0, 86400.0],
        ),
        (
            {
                "queues": {
                    "rest": {"wait": "3h"},
                    "day": {"below": "1d", "wait": "2h"},
                    "short": {"below": "2h", "wait": "1h"},
                }
            },
            [3600.0, 3600.0, 7200.0, 10800.0],
        ),
        ({"queues": {"all": {"wait": "1h"}}}, [3600.0] * 4),
    ],
)
def test_waits(document, expected):
    assert np.allclose(read_wait(document)(RUNS, rng()), expected)


def test_waits_may_be_chosen_or_spread():
    many = np.full(N, 3600.0)
    chosen = read_wait({"wait": {"choices": ["6h", "24h"]}})(many, rng())
    assert set(chosen) == {21_600.0, 86_400.0}
    spread = read_wait({"wait": {"kind": "lognormal", "median": "12h", "sigma": 1}})(many, rng())
    assert abs(np.log(spread).mean() - math.log(43_200)) < 4 / math.sqrt(N)
    slack = read_wait({"slack": {"choices": [1, 3]}})(many, rng())
    assert set(slack) == {3600.0, 10_800.0}


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({}, InvalidInput, "how long jobs may wait: give one of wait, slack, queues, not none"),
        ({"wait": "1h", "slack": 1}, InvalidInput, "not wait and slack"),
        ({"wait": "-1h"}, InvalidTime, "wait: cannot read duration '-1h'"),
        ({"wait": -1}, InvalidTime, "wait is 0 or more, not -1"),
        ({"slack": "2h"}, InvalidInput, "slack is a number from 0 up, not '2h'"),
        ({"queues": "2h"}, InvalidInput, "queues is a table of queues, such as"),
        ({"queues": {}}, InvalidInput, "queues is a table of queues, such as"),
        (
            {"queues": {"a": {"below": 5}}},
            InvalidInput,
            "queue 'a' is a table with wait, and below",
        ),
        ({"queues": {"a": {"wait": 5, "belo": 5}}}, UnknownName, "key of queue 'a' 'belo'"),
        ({"queues": {"a": {"below": "x", "wait": 5}}}, InvalidTime, "below of queue 'a': cannot"),
        ({"queues": {"a": {"below": 5, "wait": "x"}}}, InvalidTime, "wait of queue 'a': cannot"),
        ({"queues": {"a": {"below": 5, "wait": 5}}}, InvalidInput, "but for one, which has none"),
        ({"queues": {"a": {"wait": 5}, "b": {"wait": 5}}}, InvalidInput, "but for one"),
        (
            {
                "queues": {
                    "a": {"below": 5, "wait": 5},
                    "b": {"below": 5, "wait": 6},
                    "c": {"wait": 5},
                }
            },
            InvalidInput,
            "a 'below' of its own",
        ),
    ],
)
def test_waits_refused(document, error, message):
    with pytest.raises(error, match=message):
        read_wait(document)


def test_whole_numbers():
    whole = partial(number, whole=True)
    assert read_draw(np.int64(3), "nodes", whole)(1, rng()).tolist() == [3.0]
    with pytest.raises(InvalidInput, match=r"nodes is a whole number from 0 up, not 1\.5"):
        read_draw(1.5, "nodes", whole)
