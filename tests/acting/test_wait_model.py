"""How long queues take: against the obvious way to count, with those who still wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.acting.waits import (
    DAY_S,
    LEAST_WAITS,
    UNKNOWN_WAIT_S,
    Wait,
    WaitModel,
    backtest,
    class_of,
    from_rows,
    said_s,
)
from lowtide.errors import InvalidInput

NOW = 20 * DAY_S


@st.composite
def histories(draw, most=150):
    """Waits of one class, some of which are not over; many, so that something can be said."""
    count = draw(st.integers(0, most))
    random = draw(st.randoms(use_true_random=False))
    waits = []
    for number in range(count):
        eligible = random.choice([random.uniform(0, NOW), float(random.randrange(0, 20)) * DAY_S])
        waited = random.choice([0.0, 60.0, random.expovariate(1 / 3600), 9 * DAY_S])
        started = eligible + waited if eligible + waited <= NOW else None
        waits.append(Wait(kind="a", eligible=eligible, started=started, id=str(number)))
    return waits


def plainly(waits, at):
    over = [w for w in waits if w.started is not None and at - 7 * DAY_S <= w.started <= at]
    # What is less than a day old tells of an hour, however many there are.
    old = sum(w.started <= at - DAY_S for w in over)
    still = [w for w in waits if w.eligible <= at and (w.started is None or w.started > at)]
    longest = max([w.started - w.eligible for w in over] + [at - w.eligible for w in still] + [0.0])
    return longest, old


@given(histories())
def test_it_says_the_longest_wait_of_a_week_with_those_who_wait(waits):
    longest, count = plainly(waits, NOW)
    assert said_s(waits, NOW) == (longest if count >= LEAST_WAITS else max(longest, UNKNOWN_WAIT_S))
    model = WaitModel()
    model.learn(waits)
    assert model.wait_s("a", NOW) == said_s(waits, NOW)
    assert model.wait_s("b", NOW) == UNKNOWN_WAIT_S
    assert model.wait_s("b", NOW, unknown_s=60.0) == 60.0


@given(histories(most=250))
def test_how_often_it_was_wrong_is_what_asking_at_each_moment_tells(waits):
    told = []
    for wait in sorted(waits, key=lambda each: each.eligible):
        longest, count = plainly(waits, wait.eligible)
        waited = (NOW if wait.started is None else wait.started) - wait.eligible
        if count >= LEAST_WAITS and (wait.started is not None or waited > longest):
            told.append((waited, longest))
    assert sorted(backtest(waits, NOW)) == sorted(told)


def steady(count, waited, *, since, every=600.0):
    return [
        Wait(
            kind="a",
            eligible=since + k * every,
            started=since + k * every + waited,
            id=f"{since}{k}",
        )
        for k in range(count)
    ]


def test_a_burst_is_seen_while_it_lasts_and_a_class_that_was_wrong_too_often_is_not_trusted():
    calm = steady(200, 60.0, since=NOW - 5 * DAY_S)
    model = WaitModel()
    model.learn(calm)
    assert model.wait_s("a", NOW) == 60.0
    assert model.is_trusted("a", NOW)
    # One that has waited for an hour and does still.
    model.learn([Wait(kind="a", eligible=NOW - 3600.0, id="stuck")])
    assert model.wait_s("a", NOW) == 3600.0
    model.learn([Wait(kind="a", eligible=NOW - 3600.0, started=NOW + 60.0, id="stuck")])
    assert model.wait_s("a", NOW + 120.0) == 3660.0
    # Ever longer waits: each is longer than any before.
    growing = [
        Wait(kind="a", eligible=NOW + k * 9e3, started=NOW + k * 9e3 + 3700.0 + 60 * k, id=f"g{k}")
        for k in range(12)
    ]
    model.learn(growing)
    later = NOW + 12 * 9e3
    calibration = model.calibration("a", later)
    assert calibration.late > 0.02 * calibration.said
    assert not model.is_trusted("a", later)


def test_who_has_left_the_queue_does_not_wait_and_old_waits_are_forgotten():
    model = WaitModel()
    model.learn([Wait(kind="a", eligible=0.0, id="gone"), *steady(80, 60.0, since=NOW - 2e5)])
    model.settle(NOW, [])
    assert model.wait_s("a", NOW) == 60.0
    model.settle(NOW + 9 * DAY_S, [])
    assert model.kinds == []


def test_a_quiet_hour_says_nothing_of_a_week_however_many_run():
    model = WaitModel()
    model.learn(steady(5000, 0.0, since=NOW - 3600.0, every=0.5))
    assert model.wait_s("a", NOW) == UNKNOWN_WAIT_S
    model.learn(steady(60, 30.0, since=NOW - 3 * DAY_S))
    assert model.wait_s("a", NOW) == 30.0


def test_who_starts_and_ends_between_two_looks_has_waited_all_the_same():
    model = WaitModel()
    past = steady(80, 60.0, since=NOW - 2e5)
    model.learn(past)
    short = Wait(kind="a", eligible=NOW - 7200.0, id="short")
    model.see(NOW, [*past, short])
    # Five minutes later it is gone: it had waited for two hours when it was last seen.
    model.see(NOW + 300.0, past)
    assert model.wait_s("a", NOW + 300.0) == 7200.0
    # It was only held for a while, and waits again; then it starts.
    model.see(NOW + 600.0, [*past, short])
    assert model.wait_s("a", NOW + 600.0) == 7800.0
    model.see(NOW + 900.0, [*past, replace(short, started=NOW + 700.0)])
    assert model.wait_s("a", NOW + 900.0) == 7900.0


def test_what_is_told_again_is_no_news():
    model = WaitModel()
    wait = Wait(kind="a", eligible=0.0, id="1")
    assert model.learn([wait]) == [wait]
    assert model.learn([wait]) == []
    over = Wait(kind="a", eligible=0.0, started=5.0, id="1")
    assert model.learn([over]) == [over]
    assert model.learn([over, wait]) == []


def test_classes_part_sizes_and_gpus():
    kinds = {class_of("main", cpus, 0) for cpus in (1, 2, 8, 9, 64, 65, 512, 513, 10**6)}
    assert kinds == {f"main/{s}" for s in ("1", "2-8", "9-64", "65-512", "513+")}
    assert class_of("main", 4, 1) != class_of("main", 4, 0)


def test_nobody_starts_before_being_eligible():
    with pytest.raises(InvalidInput, match="once it is eligible"):
        Wait(kind="a", eligible=5.0, started=4.0)


def test_rows_that_make_no_sense_are_left_out():
    good = {"kind": "a", "eligible": 1, "started": 2.0, "id": "x"}
    bad = [{}, {**good, "eligible": "1"}, {**good, "started": 0}, {**good, "kind": None}]
    assert from_rows([good, *bad, {**good, "eligible": float("nan")}]) == [
        Wait(kind="a", eligible=1.0, started=2.0, id="x")
    ]
