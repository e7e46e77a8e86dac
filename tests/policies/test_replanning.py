"""Planning anew from where a plan has led costs no more than following the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidJob
from lowtide.policies.exact import Exact
from lowtide.schedule import Schedule, Span, State
from support.nightly import drawn

HOUR = 3600.0
CASES = drawn(30, 1500)
# What epoch seconds can be told apart by, and a little more.
ROUNDING_S = 3e-7


def drawn_case(seed: int, epoch: float) -> tuple[lt.Job, lt.Signal, Exact]:
    """Draw a job with any mix of rules, a signal and forbidden windows."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["never", "anywhere", "checkpoints"]))
    whole = rng.random() < 0.5

    def phases(count: int, *, checkpoint: bool = False) -> list[lt.Phase]:
        return [
            lt.Phase(
                name="p",
                duration_s=300.0 * rng.integers(1, 9) if whole else float(rng.uniform(200, 2500)),
                power_w=float(rng.choice([50.0, 200.0, 700.0])),
                checkpoint=checkpoint and rng.random() < 0.8,
            )
            for _ in range(count)
        ]

    profile = lt.PowerProfile(
        startup=phases(int(rng.integers(0, 2))),
        work=phases(int(rng.integers(1, 6)), checkpoint=True),
        stop=phases(int(rng.integers(0, 2))) if kind != "never" else [],
        suspended_power_w=float(rng.choice([0.0, 0.0, 20.0])),
        restart=phases(int(rng.integers(0, 3))) if rng.random() < 0.35 else None,
    )
    hours = int(np.ceil(profile.run_s / HOUR)) + int(rng.integers(1, 10))
    signal = lt.Signal.from_values(
        rng.choice([20.0, 100.0, 300.0, 500.0, 900.0], hours + 1), start=epoch, step_s=HOUR
    )
    arrival = epoch if whole else epoch + float(rng.uniform(0, HOUR))
    job = lt.Job(
        id="j",
        arrival=arrival,
        deadline=epoch + hours * HOUR,
        profile=profile,
        interruptible=kind,
        max_starts=int(rng.integers(1, 4)) if rng.random() < 0.3 else None,
        min_run_s=float(rng.uniform(0, 0.6)) * profile.work_s if rng.random() < 0.3 else 0.0,
    )
    step_s = float(rng.choice([600.0, 900.0, 1000.0])) if rng.random() < 0.3 else None
    # Now and then the windows touch what would be run without them, so that it just fits.
    free = Exact(step_s=step_s).decide(job, signal).schedule
    edges = [span.start for span in free.spans] + [free.end]
    windows = []
    for _ in range(int(rng.integers(0, 4))):
        low = epoch + HOUR * rng.uniform(0, hours) if rng.random() < 0.5 else rng.choice(edges)
        length_s = HOUR * rng.choice([0.25, 0.5, 1.0, rng.uniform(0.1, 2)])
        windows.append((low, low + length_s) if rng.random() < 0.6 else (low - length_s, low))
    return job, signal, Exact(forbidden=windows, step_s=step_s, time_budget_s=0.003)


def after(schedule: Schedule, now: float) -> tuple[State, Schedule | None]:
    """Return where a job stands that has followed a schedule, and what is left of that.

    Nothing can be decided in the midst of a start or a stop, so then it is after it.
    """
    for span in schedule.spans:
        if span.kind in ("startup", "restart", "stop") and span.start <= now < span.end:
            now = span.end
    ahead = [span for span in schedule.spans if span.end > now]
    if not ahead:
        return State(now=now), None
    first = ahead[0]
    if now < first.start:
        return State(now=now), schedule
    starts = [run for run in schedule.runs if run[0].start <= now]
    started = (
        first.kind in ("startup", "restart", "work") and first.start == now and len(starts[-1]) > 0
    )
    running = first.kind == "work" and (not started or first is not starts[-1][0])
    if not running and started:
        starts = starts[:-1]
    done_s = first.progress_s + (now - first.start if running else 0.0)
    ran_s = None
    if running:
        begun = next(span for span in starts[-1] if span.kind == "work")
        ran_s = done_s - begun.progress_s
    state = State(now=now, progress_s=done_s, running=running, starts=len(starts), ran_s=ran_s)
    cut = Span(kind=first.kind, start=now, duration_s=first.end - now, progress_s=done_s)
    return state, replace(schedule, spans=(cut, *ahead[1:]))


@pytest.mark.parametrize("epoch", [0.0, 1.7e9])
@settings(max_examples=CASES)
@given(st.integers(0, 1_000_000))
def test_planning_anew_costs_no_more_than_going_on(epoch: float, seed: int) -> None:
    job, signal, planner = drawn_case(seed, epoch)
    try:
        made = planner.decide(job, signal)
    except InvalidJob:
        return
    schedule = made.schedule
    schedule.check(job)
    for span in schedule.spans:
        for low, high in planner.windows if span.kind != "suspended" else ():
            assert span.end <= low + ROUNDING_S or span.start >= high - ROUNDING_S
    total = lt.footprint(schedule, job, signal).carbon_g
    assert made.lower_bound == pytest.approx(total, rel=1e-12)
    rng = np.random.default_rng(seed)
    moments = [job.arrival, *rng.uniform(job.arrival, schedule.end, 3).tolist()]
    moments += [float(rng.choice([span.start for span in schedule.spans]))]
    for now in moments:
        state, left = after(schedule, now)
        if left is None or job.profile.work_s - state.progress_s < 1e-3:
            continue
        following = lt.footprint(left, job, signal).carbon_g
        anew = planner.decide(job, signal, state=state)
        paid = lt.footprint(anew.schedule, job, signal).carbon_g
        assert paid <= following + 1e-9 * total, (now, state)
        assert anew.lower_bound == pytest.approx(paid, rel=1e-9, abs=1e-9 * total)
        assert anew.schedule.end <= job.deadline + 1e-6
