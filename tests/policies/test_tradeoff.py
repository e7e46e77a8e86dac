"""The whole trade-off against planning for each finish by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidTime
from lowtide.policies.exact import Exact


@settings(max_examples=25)
@given(st.integers(0, 5000), st.sampled_from(["never", "checkpoints", "anywhere"]))
def test_every_finish_costs_what_planning_for_it_costs(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    signal = lt.Signal.from_values(rng.uniform(10, 500, 20), start=0, step_s=3600)
    work = [
        lt.Phase(
            name="w",
            duration_s=1800.0 * rng.integers(1, 4),
            power_w=float(rng.uniform(50, 700)),
            checkpoint=True,
        )
        for _ in range(4)
    ]
    startup = lt.Phase(name="s", duration_s=1800, power_w=80)
    # As the first start, longer or not at all; not so cheap that it pays to lose work for it.
    restart = [None, None, [replace(startup, power_w=90)] * 2, []][int(rng.integers(4))]
    profile = lt.PowerProfile(startup=[startup], restart=restart, work=work)
    job = lt.Job(id="a", arrival=0, deadline=signal.end, profile=profile, interruptible=kind)
    job = replace(job, min_run_s=0.0 if restart else 1.0)
    every = lt.tradeoff(job, signal)
    assert np.all(np.diff(every.amount) <= 1e-9)
    assert np.all(np.diff(every.finish) >= 0)
    for extra_s in (0.0, 1800.0, 5400.0, 9 * 1800.0, job.slack_s):
        finish = job.arrival + profile.run_s + extra_s
        alone = lt.plan(replace(job, deadline=finish), signal).footprint.carbon_g
        assert every.by(finish) == pytest.approx(alone, rel=1e-9)
    assert every.by(job.deadline) == pytest.approx(lt.plan(job, signal).footprint.carbon_g)


def test_in_continuous_time_it_is_exact_between_steps() -> None:
    signal = lt.Signal.from_values([400, 300, 100], start=0, step_s=3600)
    job = lt.Job(id="a", arrival=0, deadline=10800, profile=lt.PowerProfile.constant(1000, "1h"))
    every = lt.tradeoff(job, signal)
    assert every.step_s is None
    assert every.baseline == 400
    assert [every.by(f"+{minutes}m") for minutes in (0, 15, 60, 90, 120)] == pytest.approx(
        [400, 375, 300, 200, 100]
    )
    assert every.saving[-1] == pytest.approx(0.75)
    with pytest.raises(InvalidTime, match="at the earliest it is done"):
        every.by(1800)


def test_the_knee_is_where_patience_stops_paying() -> None:
    signal = lt.Signal.from_values([500, 500, 100, 100, 100, 90, 90], start=0, step_s=3600)
    job = lt.Job(id="a", arrival=0, deadline=7 * 3600, profile=lt.PowerProfile.constant(1000, "1h"))
    every = lt.tradeoff(job, signal)
    assert every.finish[every.knee] == 3 * 3600


def test_a_flat_curve_has_its_knee_at_once() -> None:
    signal = lt.Signal.from_values([200] * 5, start=0, step_s=3600)
    job = lt.Job(id="a", arrival=0, deadline=18000, profile=lt.PowerProfile.constant(1000, "1h"))
    assert lt.tradeoff(job, signal).knee == 0


@pytest.mark.parametrize("step_s", [3600, None])
def test_from_a_ragged_arrival_finishes_go_with_what_they_cost(step_s: int | None) -> None:
    signal = lt.Signal.from_values([500, 500, 100, *[500] * 5], start=0, step_s=3600)
    job = lt.Job(
        id="a",
        arrival=1800,
        deadline=8 * 3600,
        profile=lt.PowerProfile.constant(1000, "1h"),
        interruptible="anywhere",
    )
    every = lt.tradeoff(job, signal, step_s=step_s)
    # Done by 02:30 half of it is dirty; by 03:00 it can wait for the clean hour.
    assert every.by("+1h") == pytest.approx(300)
    assert every.by("+90m") == pytest.approx(100)
    assert (every.finish[0], every.amount[0]) == (9000.0 - 3600.0, pytest.approx(500))


@settings(max_examples=30)
@given(st.integers(0, 5000), st.sampled_from([600.0, 1800.0, 3600.0]))
def test_a_ragged_arrival_is_never_promised_more_than_there_is(seed: int, step_s: float) -> None:
    rng = np.random.default_rng(seed)
    signal = lt.Signal.from_values(rng.uniform(10, 500, 16), start=0, step_s=3600)
    profile = lt.PowerProfile(
        startup=[lt.Phase(name="s", duration_s=60.0 * rng.integers(1, 30), power_w=80)],
        work=[lt.Phase(name="w", duration_s=60.0 * rng.integers(30, 300), power_w=300)],
    )
    job = lt.Job(
        id="a",
        arrival=60.0 * rng.integers(0, 90),
        deadline=signal.end,
        profile=profile,
        interruptible="anywhere",
    )
    every = lt.tradeoff(job, signal, step_s=step_s)
    assert np.all(np.diff(every.amount) <= 0)
    assert np.all(np.diff(every.finish) >= 0)
    # At the earliest there is one way only.
    assert every.finish[0] == pytest.approx(job.arrival + profile.run_s)
    assert every.amount[0] == pytest.approx(every.baseline)
    truth = lt.tradeoff(job, signal, step_s=60)
    for finish in np.linspace(every.finish[0], job.deadline, 15).tolist():
        assert every.by(finish) >= truth.by(finish) * (1 - 1e-9)
    best = lt.plan(job, signal, policy=Exact(step_s=step_s)).footprint.carbon_g
    assert every.by(job.deadline) >= best * (1 - 1e-9)


@pytest.mark.parametrize("epoch", [0.0, 1.7e9])
@pytest.mark.parametrize("kind", ["never", "checkpoints", "anywhere"])
@pytest.mark.parametrize("slack_s", [0.0, 1e-7, 1e-6, 1.1e-6, 1e-5, 1e-3, 1.0])
def test_hardly_any_slack_leaves_a_short_frontier(slack_s: float, kind: str, epoch: float) -> None:
    signal = lt.Signal.from_values([300, 100, 50], start=epoch, step_s=3600)
    phases = [lt.Phase(name="w", duration_s=3600, power_w=1000, checkpoint=True)] * 2
    job = lt.Job(
        id="a",
        arrival=epoch,
        deadline=epoch + 7200 + slack_s,
        profile=lt.PowerProfile(work=phases),
        interruptible=kind,
    )
    every = lt.tradeoff(job, signal)
    assert every.baseline == 400
    assert every.finish[0] == epoch + 7200
    assert every.finish[-1] <= job.deadline
    # An hour later saves 250 g; on a grid it can be less than a step later that it may be done.
    lost_s = 1e-6 if every.step_s is None else every.step_s
    assert every.amount[-1] == pytest.approx(400 - 250 / 3600 * slack_s, abs=0.07 * lost_s)
    assert every.by(job.deadline) == every.amount[-1]
    assert every.knee == 0
    assert len(every.finish) == len(every.amount) == len(every.saving)
    if slack_s == 0:
        assert every.amount.tolist() == [400]
