"""Planning many jobs gives what planning them one by one gives."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.policies import Plan, exact
from support.nightly import drawn

HOUR = 3600.0
CASES = drawn(10, 300)


def some_jobs(count: int) -> tuple[list[lt.Job], lt.Signal]:
    """Jobs of several kinds: on the hour and off it, sharing a profile and not."""
    rng = np.random.default_rng(1)
    signal = lt.Signal.from_values(rng.uniform(50, 500, 24 * 14), start=0, step_s=HOUR)
    shared = lt.PowerProfile(
        startup=[lt.Phase(name="s", duration_s=HOUR / 2, power_w=100)],
        work=[lt.Phase(name="w", duration_s=HOUR, power_w=float(p)) for p in (200, 600, 200, 500)],
    )
    epochs = lt.PowerProfile.ml(epochs=5, train=("50m", 600), save=("7m", 120), startup=("9m", 90))
    jobs = []
    for number in range(count):
        hour = int(rng.integers(0, 24 * 10))
        kind = ("anywhere", "anywhere", "checkpoints", "never")[number % 4]
        profile = shared if number % 4 < 2 else epochs
        off = 0.0 if number % 8 != 1 else 17.25
        jobs.append(
            lt.Job(
                id=str(number),
                arrival=hour * HOUR + off,
                deadline=f"+{int(rng.integers(10, 60))}h",
                profile=profile,
                interruptible=kind,
                max_starts=2 if number % 16 == 0 else None,
            )
        )
    return jobs, signal


def same(one: Plan, other: Plan) -> bool:
    return (
        one.schedule.starts == other.schedule.starts
        and one.footprint.carbon_g == pytest.approx(other.footprint.carbon_g, rel=1e-9)
        and one.lower_bound_g == pytest.approx(other.lower_bound_g, rel=1e-9)
        and one.policy == other.policy
    )


def test_equals_one_by_one() -> None:
    jobs, signal = some_jobs(60)
    plans = lt.plan_many(jobs, signal)
    assert len(plans) == len(jobs)
    for job, made, amount, at_once in zip(jobs, plans, plans.amount, plans.baseline, strict=True):
        made.schedule.check(job)
        alone = lt.plan(job, signal)
        assert same(made, alone), job
        assert amount == pytest.approx(alone.footprint.carbon_g, rel=1e-9)
        assert at_once == pytest.approx(alone.baseline.carbon_g, rel=1e-9)
    assert plans.saving == pytest.approx([each.saving for each in plans])


@settings(max_examples=CASES)
@given(st.integers(0, 100_000))
def test_says_what_planning_alone_says_in_every_field(seed: int) -> None:
    # Coarser steps of its own choosing come about in the same ways as fine ones, and sooner.
    with mock.patch.object(exact, "STATES_PER_SECOND", 3e6):
        compare_in_every_field(np.random.default_rng(seed))


def compare_in_every_field(rng: np.random.Generator) -> None:
    """Plan jobs together and alone, and compare."""
    start = float(rng.choice([0.0, 1.7e9]))
    step_s = float(rng.choice([900.0, 3600.0]))
    is_price = rng.random() < 0.5
    values = rng.integers(-3 if is_price else 0, 6, 40) * (0.1 if is_price else 100.0)
    kind, unit = ("price", "EUR/kWh") if is_price else ("average", "g/kWh")
    signal = lt.Signal.from_values(values, start=start, step_s=step_s, kind=kind, unit=unit)

    def phases(most: int, *, checkpoint: bool = False) -> list[lt.Phase]:
        return [
            lt.Phase(
                name="p",
                duration_s=float(rng.choice([900.0, 1800.0, 3600.0, 0.25])),
                power_w=float(rng.choice([0.0, 10.0, 500.0])),
                checkpoint=checkpoint,
            )
            for _ in range(most)
        ]

    profile = lt.PowerProfile(
        startup=phases(int(rng.integers(0, 2))),
        work=phases(int(rng.integers(1, 4)), checkpoint=True),
        stop=phases(int(rng.integers(0, 2))) if rng.random() < 0.3 else [],
        suspended_power_w=float(rng.choice([0.0, 0.0, 50.0])),
        restart=phases(int(rng.integers(0, 3))) if rng.random() < 0.35 else None,
    )
    jobs = []
    for number in range(6):
        arrival = start + step_s * int(rng.integers(0, 8)) + float(rng.choice([0.0, 0.0, 0.001]))
        slack_s = float(rng.choice([0.0, 1e-6, 900.0, 3600.0, 7200.0, 1234.5]))
        deadline = arrival + profile.run_s + slack_s
        if deadline > signal.end:
            continue
        kinds = ["anywhere", "anywhere", "never"] + ["checkpoints"] * (profile.restart is not None)
        kind = "anywhere" if profile.stop else str(rng.choice(kinds))
        jobs.append(
            lt.Job(
                id=str(number),
                arrival=arrival,
                deadline=deadline,
                profile=profile,
                interruptible=kind,
                max_starts=2 if rng.random() < 0.2 else None,
            )
        )
    plans = lt.plan_many(jobs, signal, workers=1)
    for job, made, amount, at_once in zip(jobs, plans, plans.amount, plans.baseline, strict=True):
        alone = lt.plan(job, signal)
        scale = 1e-9 * max(abs(alone.footprint.amount), abs(alone.baseline.amount))
        near = partial(pytest.approx, rel=1e-9, abs=scale)
        for name in ("lower_bound", "lower_bound_g", "resolution_gap", "resolution_gap_g"):
            one, other = getattr(made, name), getattr(alone, name)
            assert one == (None if other is None else near(other)), name
        for name in ("policy", "synthetic", "step_s", "note"):
            assert getattr(made, name) == getattr(alone, name), name
        assert made.schedule.starts == alone.schedule.starts
        assert made.footprint.energy_j == pytest.approx(alone.footprint.energy_j, rel=1e-9)
        for one, other in (
            (made.footprint.amount, alone.footprint.amount),
            (made.baseline.amount, alone.baseline.amount),
            (amount, alone.footprint.amount),
            (at_once, alone.baseline.amount),
        ):
            assert one == near(other)


def test_processes_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, signal = some_jobs(24)
    monkeypatch.setattr("lowtide.policies.bulk._WORTH_PROCESSES", 2)
    shared_out = lt.plan_many(jobs, signal, workers=2)
    here = lt.plan_many(jobs, signal, workers=1)
    assert all(same(one, other) for one, other in zip(shared_out, here, strict=True))


def test_other_policies_and_slices() -> None:
    jobs, signal = some_jobs(12)
    plans = lt.plan_many(jobs, signal, policy="oracle")
    assert [each.policy for each in plans[2:5]] == ["oracle"] * 3
    assert plans[-1].schedule == lt.plan(jobs[-1], signal, policy="oracle").schedule
    with pytest.raises(IndexError, match="plan 12 of 12"):
        plans[12]
    assert "12 jobs" in repr(plans)


def test_shows_progress_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    jobs, signal = some_jobs(8)
    lt.plan_many(jobs, signal, progress=True)
    said = capfd.readouterr()
    assert "planning" in said.err
    assert said.out == ""


def test_no_jobs_no_plans() -> None:
    assert list(lt.plan_many([], lt.Signal.from_values([1.0], start=0, step_s=HOUR))) == []


def test_equal_profiles_are_one_whether_shared_or_not() -> None:
    rng = np.random.default_rng(2)
    # A year in steps of five minutes: laid out whole for each profile it would take a second.
    signal = lt.Signal.from_values(rng.uniform(50, 500, 12 * 8760), start=0, step_s=300)

    def profile(power_w: float) -> lt.PowerProfile:
        return lt.PowerProfile(
            startup=[lt.Phase(name="s", duration_s=300, power_w=100)],
            work=[lt.Phase(name="w", duration_s=3600, power_w=power_w)],
        )

    hours = rng.integers(0, 8700, 40)
    made = {}
    for name, power_w in (("equal", lambda number: 300.0), ("own", lambda number: 300.0 + number)):
        jobs = [
            lt.Job(
                id=str(number),
                arrival=HOUR * int(hour),
                deadline="+6h",
                profile=profile(power_w(number)),
                interruptible="anywhere",
            )
            for number, hour in enumerate(hours)
        ]
        plans = made[name] = lt.plan_many(jobs, signal, workers=1)
        assert plans.amount == pytest.approx(
            [lt.plan(job, signal).footprint.carbon_g for job in jobs], rel=1e-9
        )
        # All went through the kernel, however many profiles there are.
        assert not plans._made


def test_jobs_off_the_signals_step_are_planned_together_on_a_step_that_loses_something() -> None:
    rng = np.random.default_rng(3)
    signal = lt.Signal.from_values(rng.uniform(50, 500, 24 * 20), start=0, step_s=HOUR)
    profile = lt.PowerProfile(
        startup=[lt.Phase(name="s", duration_s=700, power_w=100)],
        work=[lt.Phase(name="w", duration_s=5000, power_w=float(p)) for p in (200, 600, 300)],
    )
    jobs = [
        lt.Job(
            id=str(number),
            arrival=float(arrival),
            deadline="+20h",
            profile=profile if number % 2 else lt.PowerProfile.constant(300, "3h"),
            interruptible="anywhere",
        )
        for number, arrival in enumerate(np.round(rng.uniform(0, 24 * 18 * HOUR, 60)))
    ]
    policy = exact.Exact(step_s=HOUR)
    plans = lt.plan_many(jobs, signal, policy=policy, workers=1)
    assert len(plans._made) < 5
    for job, made, amount in zip(jobs, plans, plans.amount, strict=True):
        alone = lt.plan(job, signal, policy=policy)
        assert same(made, alone), job
        assert (made.step_s, made.policy) == (HOUR, "exact")
        assert made.resolution_gap == pytest.approx(alone.resolution_gap, rel=1e-9, abs=1e-9)
        assert amount == pytest.approx(alone.footprint.carbon_g, rel=1e-9)


def test_the_cheapest_moments_are_best_where_nothing_else_counts() -> None:
    rng = np.random.default_rng(7)
    values = rng.integers(-100, 500, 24 * 20)
    signal = lt.Signal.from_values(values, start=0, step_s=HOUR, kind="price", unit="EUR/MWh")
    jobs = [
        lt.Job(
            id=str(number),
            arrival=float(arrival),
            deadline=f"+{20 * 3600 + number}s",
            profile=lt.PowerProfile.constant(300, 10_000.7 + number),
            interruptible="anywhere",
        )
        for number, arrival in enumerate(np.round(rng.uniform(0, 24 * 18 * HOUR, 40), 1))
    ]
    # No step that divides all of this is quick enough: one is looked for that loses something.
    plans = lt.plan_many(jobs, signal, workers=1)
    for number, (job, amount, at_once) in enumerate(
        zip(jobs, plans.amount, plans.baseline, strict=True)
    ):
        edges = np.array(sorted({job.arrival, job.deadline, *np.arange(0, 24 * 20 * HOUR, HOUR)}))
        edges = edges[(edges >= job.arrival) & (edges <= job.deadline)]
        prices = signal.integral(edges[:-1], edges[1:]) / np.diff(edges)
        order = np.argsort(prices)
        before_s = np.cumsum(np.diff(edges)[order]) - np.diff(edges)[order]
        used_s = np.clip(job.profile.work_s - before_s, 0, np.diff(edges)[order])
        least = float(np.sum(used_s * prices[order])) * 300 / 3.6e6
        assert amount == pytest.approx(least, rel=1e-9, abs=1e-9)
        alone = lt.plan(job, signal)
        alone.schedule.check(job)
        assert (alone.step_s, alone.resolution_gap) == (None, 0.0)
        assert alone.footprint.amount == pytest.approx(least, rel=1e-9, abs=1e-9)
        assert plans[number].schedule.starts == alone.schedule.starts
        assert plans[number].resolution_gap == 0.0
        assert at_once == pytest.approx(alone.baseline.amount, rel=1e-9, abs=1e-9)
    # A step that was asked for is kept, and a stop that costs anything needs one.
    assert lt.plan(jobs[0], signal, step_s=600).step_s == 600
    paid = replace(jobs[0], profile=replace(jobs[0].profile, suspended_power_w=1.0))
    assert lt.plan(paid, signal).step_s is not None


def test_progress_is_told_while_the_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(
        "lowtide.policies.bulk._bar", lambda shown, total: nullcontext(steps.append)
    )
    monkeypatch.setattr("lowtide.policies.bulk._MOST_AT_ONCE", 5)
    jobs, signal = some_jobs(60)
    shared = [job for job in jobs if job.interruptible == "anywhere"]
    lt.plan_many(shared, signal, workers=1)
    assert sum(steps) == len(shared)
    assert steps[:3] == [5, 5, 5]


@pytest.mark.parametrize("workers", [0, -1])
def test_there_is_at_least_one_worker(workers: int) -> None:
    jobs, signal = some_jobs(2)
    with pytest.raises(InvalidInput, match=f"at least one worker, not {workers}"):
        lt.plan_many(jobs, signal, workers=workers)


def test_nothing_to_save_is_no_warning() -> None:
    free = lt.Signal.from_values([0.0] * 9, start=0, step_s=HOUR)
    job = lt.Job(id="a", arrival=0, deadline="+9h", profile=lt.PowerProfile.constant(100, "2h"))
    assert repr(lt.plan_many([], free)) == "<Plans: 0 jobs>"
    assert repr(lt.plan_many([job], free)) == "<Plans: 1 job>"
