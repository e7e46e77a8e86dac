"""Hypothesis strategies: signals, profiles, jobs with a window that fits, and valid schedules."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from lowtide.job import Job
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import Signal

STARTS = (0.0, -86400.0, 1.72e9, 1_719_792_000.0, 1_719_792_000.25, 1_719_792_000.1)
STEPS_S = (1.0, 0.5, 7.3, 60.0, 300.0, 3600 / 7, 900.0, 1800.0, 3600.0, 86400.0)
COARSE_S = (60.0, 300.0, 3600 / 7, 900.0, 1800.0, 3600.0)

intensities = st.one_of(
    st.sampled_from([0.0, 50.0, 100.0, 400.0]),
    st.integers(0, 900).map(float),
    st.floats(0.0, 1000.0, allow_subnormal=False),
)
prices = st.one_of(st.integers(-20, 80).map(lambda x: x / 100), st.floats(-0.5, 1.0))
ratios = st.one_of(st.sampled_from([1.0, 1.25, 2.0]), st.floats(1.0, 2.5))
watts = st.one_of(
    st.just(0.0), st.integers(1, 700).map(float), st.floats(0.1, 700.0, allow_subnormal=False)
)
seconds = st.one_of(
    st.sampled_from([300.0, 600.0, 900.0, 1800.0, 3600.0]),
    st.floats(1.0, 4000.0).map(lambda x: round(x, 4)),
    st.floats(1.0, 4000.0),
)
names = st.sampled_from(["load", "train", "evaluate", "save", "solve"])


@st.composite
def signals(draw, *, kind="average", steps=STEPS_S, starts=STARTS, min_size=1, max_size=40):
    """Signals of a kind on all sorts of steps, at all sorts of times."""
    value = {"price": prices, "pue": ratios}.get(kind, intensities)
    return Signal.from_values(
        draw(st.lists(value, min_size=min_size, max_size=max_size)),
        start=draw(st.sampled_from(starts)),
        step_s=draw(st.sampled_from(steps)),
        kind=kind,
        unit="EUR/kWh" if kind == "price" else "g/kWh",
    )


@st.composite
def phases(draw, *, checkpoint=False, name=names, duration=seconds, power=watts):
    """One phase, in which a checkpoint may end where that is allowed."""
    return Phase(
        name=draw(name),
        duration_s=draw(duration),
        power_w=draw(power),
        checkpoint=draw(st.booleans()) if checkpoint else False,
    )


def restarts(one):
    """Restarts: two times in three as the startup, else shorter, longer or nothing at all."""
    return st.none() | st.none() | st.lists(one, max_size=3)


@st.composite
def profiles(
    draw, *, name=names, duration=seconds, power=watts, startup=True, stop=True, restart=True
):
    """Profiles with and without startup, restart, stop, suspended power and checkpoints."""
    one = phases(name=name, duration=duration, power=power)
    work = phases(checkpoint=True, name=name, duration=duration, power=power)
    return PowerProfile(
        startup=draw(st.lists(one, max_size=2)) if startup else [],
        work=draw(st.lists(work, min_size=1, max_size=5)),
        restart=draw(restarts(one)) if startup and restart else None,
        stop=draw(st.lists(one, max_size=1)) if stop else [],
        suspended_power_w=draw(st.sampled_from([0.0, 0.0, 5.0, 12.5])),
    )


@st.composite
def cases(draw, *, profile=None, interruptible=None, kind="average", steps=COARSE_S):
    """A job and a signal that covers its window."""
    profile = draw(profile if profile is not None else profiles())
    run_s = profile.run_s
    slack_s = draw(
        st.one_of(
            st.just(0.0),
            st.sampled_from([600.0, 1800.0, 7200.0, 21600.0]),
            st.floats(0.0, 3.0).map(lambda x: x * run_s),
        )
    )
    window_s = run_s + slack_s
    fine_enough = [step for step in steps if window_s / step <= 60] or [max(steps)]
    step_s = draw(st.sampled_from(fine_enough))
    start = draw(st.sampled_from(STARTS))
    into_s = draw(st.sampled_from([0.0, 0.5, 1.0, 0.37])) * step_s
    spare = draw(st.integers(0, 2))
    size = math.ceil((into_s + window_s) / step_s + 1e-6) + spare
    value = prices if kind == "price" else intensities
    signal = Signal.from_values(
        draw(st.lists(value, min_size=size, max_size=size)),
        start=start,
        step_s=step_s,
        kind=kind,
        unit="EUR/kWh" if kind == "price" else "g/kWh",
    )
    arrival = start + into_s
    job = Job(
        id="j",
        arrival=arrival,
        deadline=arrival + window_s,
        profile=profile,
        interruptible=draw(
            st.sampled_from(["never", "anywhere", "checkpoints"])
            if interruptible is None
            else st.just(interruptible)
        ),
        max_starts=draw(st.sampled_from([None, None, 1, 2, 3])),
        min_run_s=draw(st.sampled_from([0.0, 0.0, 0.1, 0.4])) * profile.work_s,
    )
    return job, signal


@st.composite
def valid_stretches(draw, job: Job):
    """Starts and stops that keep all rules of a job, lost work included."""
    profile = job.profile
    limit = 1 if job.interruptible == "never" else job.max_starts or 4
    if job.interruptible == "anywhere":
        point = st.floats(0.02, 0.98).map(lambda share: share * profile.work_s)
    else:
        point = st.sampled_from([0.0, *profile.checkpoints_s])
    stops = sorted(draw(st.lists(point, max_size=limit - 1)))

    slack_s, kept_s, pieces = max(job.slack_s, 0.0), 0.0, []
    least_s = max(job.min_run_s, 0.5)
    for stop in stops:
        work_s = stop - kept_s
        lost_s = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])) * min(600.0, profile.work_s - stop)
        extra_s = profile.restart_s + lost_s + profile.stop_s
        gap_s = draw(st.sampled_from([1.0, 60.0, 1234.5]))
        if work_s < least_s or profile.work_s - stop < least_s:
            continue
        if 0 < work_s < 1e-3 or extra_s + gap_s > slack_s:
            continue
        slack_s -= extra_s + gap_s
        pieces.append((work_s, lost_s, extra_s - profile.restart_s - lost_s + gap_s))
        kept_s = stop
    pieces.append((profile.work_s - kept_s, 0.0, 0.0))

    at = job.arrival + draw(st.sampled_from([0.0, 0.5, 1.0])) * slack_s
    stretches = []
    for work_s, lost_s, after_s in pieces:
        stretches.append(Stretch(start=at, work_s=work_s, lost_s=lost_s))
        lead_s = profile.startup_s if len(stretches) == 1 else profile.restart_s
        at += lead_s + work_s + lost_s + after_s
    return stretches


@st.composite
def scheduled(draw, **kwargs):
    """A job, a signal, and a valid schedule of the job."""
    job, signal = draw(cases(**kwargs))
    return job, signal, Schedule.from_stretches(job, draw(valid_stretches(job)))


def halved(signal: Signal) -> Signal:
    """Return the same signal on steps of half the length."""
    return replace(
        signal,
        values=[value for value in signal.values.tolist() for _ in range(2)],
        step_s=signal.step_s / 2,
    )
