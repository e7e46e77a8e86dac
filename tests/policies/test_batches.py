"""Planning many jobs gives what planning them one by one gives."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt

HOUR = 3600.0


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


def same(one: lt.Plan, other: lt.Plan) -> bool:
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


def test_processes_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, signal = some_jobs(24)
    monkeypatch.setattr("lowtide.policies.batches._WORTH_PROCESSES", 2)
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
