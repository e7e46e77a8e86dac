"""The accounting of many jobs is that of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.accounting import Stretches, footprint, tally
from lowtide.grid import Grid
from lowtide.job import Job
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import Signal
from lowtide.workload import Workload
from support.oracles import rounding_j
from support.strategies import cases, valid_stretches

HOUR = 3600.0


@st.composite
def runs(draw):
    job, signal = draw(cases())
    return job, signal, draw(valid_stretches(job))


def columns(per_job) -> Stretches:
    flat = [(row, each) for row, stretches in enumerate(per_job) for each in stretches]
    return Stretches(
        job=np.array([row for row, _ in flat]),
        start=np.array([each.start for _, each in flat]),
        work_s=np.array([each.work_s for _, each in flat]),
        lost_s=np.array([each.lost_s for _, each in flat]),
    )


@given(runs(), st.sampled_from([1.0, 1.3]))
def test_a_job_of_many_is_a_job(run, pue) -> None:
    job, signal, stretches = run
    schedule = Schedule.from_stretches(job, stretches)
    want = footprint(schedule, job, signal, pue=pue)
    got = tally(Workload.from_jobs([job]), columns([stretches]), signal, pue=pue)
    slip_j = rounding_j(job.profile)
    slip_g = pue * slip_j * float(np.abs(signal.values).max()) / 3.6e6
    assert got.energy_j[0] == pytest.approx(want.energy_j, rel=1e-9, abs=1e-9 + slip_j)
    assert got.carbon_g[0] == pytest.approx(want.carbon_g, rel=1e-9, abs=1e-9 + slip_g)
    assert got.end[0] == pytest.approx(schedule.end, abs=1e-6)
    assert got.start[0] == schedule.start
    assert got.cost is None


def test_many_phases_are_laid_out_bit_by_bit(monkeypatch) -> None:
    phases = [Phase(name="p", duration_s=60 + place, power_w=place) for place in range(40)]
    profiles = [PowerProfile(work=phases[:count]) for count in (40, 7, 23)]
    jobs = Workload(arrival=np.arange(9.0), deadline=1e6, profile=[0, 1, 2] * 3, profiles=profiles)
    signal = Signal.from_values(np.arange(300.0), start=0, step_s=HOUR)
    ran = Stretches.one_each(jobs, jobs.arrival + 5)
    at_once = tally(jobs, ran, signal)
    monkeypatch.setattr("lowtide.accounting._CELLS", 10)
    bit_by_bit = tally(jobs, ran, signal)
    assert np.array_equal(at_once.carbon_g, bit_by_bit.carbon_g)
    assert np.allclose(at_once.energy_j, jobs.energy_j)


@given(st.lists(runs(), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_jobs_do_not_mix(drawn, chance) -> None:
    signal = Signal.from_values([chance.uniform(0, 500) for _ in range(60)], start=0, step_s=HOUR)
    moved = []
    for job, _, stretches in drawn:
        if job.deadline - job.arrival < 40 * HOUR:
            by = chance.uniform(0, 5 * HOUR) - job.arrival
            moved.append((job, stretches, by))
    if not moved:
        return
    jobs, per_job = [], []
    for job, stretches, by in sorted(moved, key=lambda each: each[0].arrival + each[2]):
        jobs.append(replace(job, arrival=job.arrival + by, deadline=job.deadline + by))
        per_job.append([replace(each, start=each.start + by) for each in stretches])
    price = Signal.from_values(signal.values / 1000, start=0, step_s=HOUR, kind="price",
                               unit="EUR/kWh")  # fmt: skip
    got = tally(Workload.from_jobs(jobs), columns(per_job), Grid(average=signal, price=price))
    for row, (job, stretches) in enumerate(zip(jobs, per_job, strict=True)):
        want = footprint(Schedule.from_stretches(job, stretches), job, signal, price=price)
        assert got.energy_j[row] == pytest.approx(want.energy_j, rel=1e-9, abs=1e-9)
        assert got.carbon_g[row] == pytest.approx(want.carbon_g, rel=1e-9, abs=1e-6)
        assert got.cost[row] == pytest.approx(want.cost, rel=1e-9, abs=1e-9)


@given(runs())
def test_stretches_come_back_from_schedules(run) -> None:
    job, _, stretches = run
    schedule = Schedule.from_stretches(job, stretches)
    jobs = Workload.from_jobs([job])
    again = Schedule.from_stretches(job, Stretches.of_schedules(jobs, [schedule]).of(0))
    assert [span.kind for span in again.spans] == [span.kind for span in schedule.spans]
    for span, other in zip(schedule.spans, again.spans, strict=True):
        assert other.start == pytest.approx(span.start, abs=1e-6)
        assert other.duration_s == pytest.approx(span.duration_s, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_short_phases_late_in_a_year_keep_their_digits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal = Signal.from_values(rng.uniform(10, 500, 24 * 400), start=1.7e9, step_s=3600)
    short_s = float(rng.choice([1.1e-3, 0.013, 2.7]))
    work = [
        Phase(name="w", duration_s=short_s, power_w=float(power), checkpoint=True)
        for power in rng.uniform(5, 700, 2000)
    ]
    profile = PowerProfile(
        startup=[Phase(name="s", duration_s=short_s / 3, power_w=90)],
        work=work,
        stop=[Phase(name="z", duration_s=short_s / 7, power_w=900)],
        suspended_power_w=0.001,
    )
    arrival = signal.start + 380 * 86400 + float(rng.uniform(0, 3600))
    job = Job(
        id="a",
        arrival=arrival,
        deadline=arrival + 15 * 86400,
        profile=profile,
        interruptible="checkpoints",
    )
    # Half at once, half after ten days.
    half_s = profile.work_edges_s[1000]
    halves = [
        Stretch(start=arrival, work_s=half_s),
        Stretch(start=arrival + 864000, work_s=profile.work_s - half_s),
    ]
    schedule = Schedule.from_stretches(job, halves)
    alone = footprint(schedule, job, signal)
    jobs = Workload.from_jobs([job])
    many = tally(jobs, Stretches.of_schedules(jobs, [schedule]), signal)
    assert many.energy_j[0] == pytest.approx(alone.energy_j, rel=1e-10)
    assert many.carbon_g[0] == pytest.approx(alone.carbon_g, rel=1e-10)
    worked_j = sum(phase.energy_j for name, phase in alone.by_phase.items() if name == "work/w")
    assert worked_j == pytest.approx(sum(phase.energy_j for phase in work), rel=1e-10)


def test_startups_of_odd_lengths_round_no_instants():
    # Epoch seconds tell times apart to 0.2 µs: counted from there, the two would differ.
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s=791.7485, power_w=0)],
        work=[Phase(name="work", duration_s=300, power_w=83)],
    )
    job = Job(id="j", arrival=1.72e9, deadline="+1h", profile=profile)
    signal = Signal.from_values([0, 0, 0, 400], start=1.72e9, step_s=900)
    stretches = [Stretch(start=1.72e9 + 1800, work_s=300)]
    schedule = Schedule.from_stretches(job, stretches)
    got = tally(Workload.from_jobs([job]), columns([stretches]), signal)
    assert got.carbon_g is not None
    assert got.carbon_g[0] == footprint(schedule, job, signal).carbon_g
