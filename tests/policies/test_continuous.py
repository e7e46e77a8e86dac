"""Many checkpoints: only where V can matter is it kept, and the best plan stays the best."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.policies import continuous, explain, gridded
from lowtide.policies.exact import Exact, Optimum
from lowtide.policies.problem import Problem, make_problem

HOUR = 3600.0


def drawn(seed: int, *, checkpoints: int = 40) -> Problem | None:
    """Draw a job with checkpoints and every rule that there is, on a signal nowhere below 0."""
    rng = np.random.default_rng(seed)
    step_s, steps = float(rng.choice([300, 900, 3600])), int(rng.integers(4, 40))
    kinds = (rng.uniform(0, 500, steps), 100 * rng.integers(1, 5, steps), np.full(steps, 70.0))
    start = float(rng.choice([0, 1.7e9]))
    signal = lt.Signal.from_values(
        kinds[rng.choice(3, p=[0.6, 0.3, 0.1])], start=start, step_s=step_s
    )
    work_s = (signal.end - start) * rng.uniform(0.1, 0.6)
    count = int(rng.integers(4, checkpoints))
    share = rng.uniform(0.2, 1, count) if rng.integers(2) else np.ones(count)
    power_w = rng.uniform(50, 500, count) if rng.integers(2) else np.full(count, 200.0)

    def phases(power_w: float) -> list[lt.Phase]:
        return [
            lt.Phase(name=f"p{i}", duration_s=rng.uniform(1, 600), power_w=rng.uniform(0, power_w))
            for i in range(rng.integers(3))
        ]

    profile = lt.PowerProfile(
        startup=phases(300),
        work=[
            lt.Phase(
                name="w", duration_s=each_s, power_w=watts, checkpoint=bool(rng.random() < 0.9)
            )
            for each_s, watts in zip(work_s * share / share.sum(), power_w, strict=True)
        ],
        stop=phases(300),
        suspended_power_w=float(rng.choice([0, 0, 0, 20])),
    )
    arrival = start + float(rng.choice([0, rng.uniform(0, step_s)]))
    given: dict[str, Any] = {}
    if rng.random() < 0.3:
        low = rng.uniform(start, signal.end)
        given["forbidden"] = [(low, low + rng.uniform(60, work_s))]
    if rng.random() < 0.3:
        rent = rng.uniform(0, 0.02, steps)
        given["occupancy"] = lt.Signal.from_values(
            rent, start=start, step_s=step_s, kind="occupancy"
        )
    if rng.random() < 0.3:
        given["wait"] = 10 ** rng.uniform(-5, -2)
    try:
        job = lt.Job(
            id="a",
            arrival=arrival,
            deadline=arrival + rng.uniform(0.7, 1) * (signal.end - arrival),
            profile=profile,
            interruptible="checkpoints",
            max_starts=int(rng.integers(1, 6)) if rng.integers(2) else None,
            min_run_s=float(rng.choice([0, 0, work_s / 10, work_s / 30])),
        )
        if rng.integers(2):
            done_s = float(rng.choice([0, *profile.checkpoints_s]))
            now = arrival + rng.random() * (job.deadline - arrival - work_s)
            running, starts = bool(rng.integers(2)), int(rng.integers(1, 3))
            given["state"] = lt.State(now=now, progress_s=done_s, running=running, starts=starts)
        problem = make_problem(job, signal, **given)
    except lt.LowtideError:
        return None
    return problem if problem.slack_s > 1 else None


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_what_is_left_out_is_no_part_of_the_best_plan(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "_MANY", 3)
    monkeypatch.setattr(continuous, "_FINER", 2)
    pruned = 0
    for seed in range(first, first + 40):
        problem = drawn(seed)
        if problem is None:
            continue
        whole = continuous.solve(problem, whole=True)
        best = continuous.solve(problem)
        pruned += not best.by_delay[0].size
        assert best.cost == pytest.approx(whole.cost, rel=1e-11), seed
        # Where several plans are as good another may be found; the accounting says how good it is.
        if best.cost < math.inf:
            job, state = problem.job, problem.state
            found = Optimum(problem=problem, solution=best, step_s=None, asked=None)
            schedule = lt.Schedule.from_stretches(job, found.stretches, state=state)
            planner = Exact(wait=problem.wait, occupancy=problem.occupancy)
            paid = planner.amount(schedule, job, problem.energy, state=state)
            assert paid == pytest.approx(whole.cost, abs=1e-7 * problem.largest), seed
        if whole.by_starts:
            number = seed % len(whole.by_starts)
            told = continuous.solve(problem, counted=number).by_starts[number]
            assert told == pytest.approx(whole.by_starts[number], rel=1e-11), seed
    assert pruned > 10


def test_no_way_on_costs_less_than_its_bound() -> None:
    close = 0
    for seed in range(60):
        problem = drawn(seed)
        if problem is None or problem.state.starts or not continuous._prunable(problem):
            continue
        rng = np.random.default_rng(seed)
        limit = problem.starts_left
        step_s = problem.work_s / rng.uniform(5, 60)
        rest = gridded.Rest(problem, step_s, 1 if limit is None else limit + 1)
        for _ in range(8):
            progress_s = float(rng.choice([0.0, *problem.checkpoints_s]))
            delay_s = rng.uniform(0, problem.slack_s)
            left = 0 if limit is None else int(rng.integers(limit))
            # From there on, as the planner itself would go on.
            state = lt.State(
                now=problem.base + progress_s + delay_s,
                progress_s=progress_s,
                running=True,
                starts=1 if limit is None else limit - left,
                ran_s=0.0 if progress_s == 0 else None,
            )
            there = replace(problem, state=state)
            cost = continuous.solve(there).cost + problem.wait * delay_s
            bound = rest.at(progress_s, left)[int(delay_s / step_s)]
            assert bound <= cost + 1e-9 * problem.largest, seed
            close += cost < math.inf and bound > 0.8 * cost
    # It is a bound that is worth having.
    assert close > 50


def long_job(count: int, days: int = 3, **rules: Any) -> tuple[lt.Job, lt.Signal]:
    signal = lt.synthetic_grid("windy", days=days, seed=1).average
    rng = np.random.default_rng(0)
    work = [
        lt.Phase(name="w", duration_s=days * 8 * HOUR / count, power_w=watts, checkpoint=True)
        for watts in rng.choice([100.0, 150.0, 200.0, 300.0], count)
    ]
    profile = lt.PowerProfile(startup=[lt.Phase(name="s", duration_s=300, power_w=150)], work=work)
    return lt.Job(
        id="a",
        arrival=signal.start,
        deadline=signal.end,
        profile=profile,
        interruptible="checkpoints",
        **rules,
    ), signal


@pytest.mark.parametrize("rules", [{}, {"max_starts": 3, "min_run_s": HOUR}])
def test_many_checkpoints_take_a_fraction_of_the_work_and_the_memory(
    rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Noted(continuous._Planner):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(continuous, "_Planner", Noted)
    problem = make_problem(*long_job(600, **rules))
    whole = continuous.solve(problem, whole=True)
    (planner,) = [each for each in made if each.effort]
    made.clear()
    best = continuous.solve(problem)
    assert best.cost == pytest.approx(whole.cost, rel=1e-11)
    # Counted, not timed. With ten thousand checkpoints it is a tenth of either.
    assert sum(each.effort for each in made) < planner.effort / 2
    assert sum(each.kept_bytes for each in made) < planner.kept_bytes / 2


def test_plans_with_many_checkpoints_are_explained_and_traded_off() -> None:
    job, signal = long_job(200)
    best = lt.plan(job, signal)
    told = lt.explain(best, job, signal)
    more = replace(job, max_starts=best.schedule.starts + 1)
    of_all = Exact().optimise(more, signal, whole=True).solution.by_starts
    assert told.one_start_more == pytest.approx(of_all[-1], rel=1e-11)
    assert lt.tradeoff(job, signal).amount[-1] == pytest.approx(best.footprint.carbon_g, rel=1e-9)


def tiny_job(seed: int, *, count: int = 2000, days: float = 2, each_s: float = 1.1e-3) -> Problem:
    """Draw next to no work, late in a year: running integrals are far larger than what it costs."""
    rng = np.random.default_rng(seed)
    signal = lt.Signal.from_values(rng.uniform(50, 500, 8760), start=0, step_s=HOUR)
    work = [lt.Phase(name="w", duration_s=each_s, power_w=200, checkpoint=True)] * count
    profile = lt.PowerProfile(startup=[lt.Phase(name="s", duration_s=1, power_w=100)], work=work)
    arrival = 3e7 if seed == 0 else rng.uniform(1e7, 3e7)
    job = lt.Job(
        id="a",
        arrival=arrival,
        deadline=arrival + days * 24 * HOUR,
        profile=profile,
        interruptible="checkpoints",
    )
    return make_problem(job, signal)


@pytest.mark.parametrize(
    ("seed", "rules"),
    [
        (0, {}),
        (0, {"days": 5}),
        (1, {"count": 200, "each_s": 2e-3}),
        (2, {"count": 300, "days": 20}),
        (3, {"count": 400, "each_s": 0.01}),
        (4, {"count": 500, "days": 7}),
        (5, {"count": 700, "days": 1}),
    ],
)
def test_rounding_leaves_a_way_to_run_little_work_late_in_a_year(
    seed: int, rules: dict[str, Any]
) -> None:
    problem = tiny_job(seed, **rules)
    whole = continuous.solve(problem, whole=True)
    best = continuous.solve(problem)
    # Each is rounded by itself, at every checkpoint.
    rounding = continuous._rounding(problem, problem.checkpoints_s.size)
    assert rounding < 0.01 * whole.cost
    assert best.cost == pytest.approx(whole.cost, rel=1e-9, abs=rounding)


def test_where_too_much_was_left_out_everything_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "_MANY", 3)
    monkeypatch.setattr(continuous, "_rounding", lambda problem, points: 0.0)
    problem = make_problem(*long_job(40))
    whole = continuous.solve(problem, whole=True)
    # A bound that is none.
    monkeypatch.setattr(gridded.Rest, "at", lambda self, *_: np.full(9, 2 * whole.cost))
    best = continuous.solve(problem)
    assert best.cost == pytest.approx(whole.cost, rel=1e-11)
    assert best.starts == whole.starts


def test_what_would_take_far_longer_than_the_plan_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    class Noted(continuous._Planner):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    def effort() -> float:
        total = sum(each.effort for each in made)
        made.clear()
        return total

    monkeypatch.setattr(continuous, "_Planner", Noted)
    monkeypatch.setattr(explain, "_LEAST_S", 0.0)
    job, signal = long_job(300, days=15)
    best = lt.plan(job, signal)
    planned = effort()
    assert best.schedule.starts > 8
    told = lt.explain(best, job, signal)
    # Many numbers of starts are not told apart, one is; counted, not timed.
    assert told.total == pytest.approx(best.footprint.carbon_g)
    assert told.uninterrupted is not None and told.uninterrupted > told.total
    assert told.one_start_fewer is None and told.one_start_more is None
    most = 2 * planned + 3 * max(3 * planned, 0.3 * continuous._KNOTS_PER_SECOND)
    assert effort() < most
    # Who waits for them gets them.
    patient = lt.explain(best, job, signal, policy=Exact(time_budget_s=100))
    assert told.total <= patient.one_start_fewer and told.total <= patient.one_start_more
    assert effort() > most
