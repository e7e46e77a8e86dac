"""Jobs in columns."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidJob, InvalidTrace
from lowtide.job import Job, Resources
from lowtide.profile import Phase, PowerProfile
from lowtide.states import STATUSES
from lowtide.trace import Trace
from lowtide.workload import Workload
from support.strategies import cases

HOUR = 3600.0


@given(st.lists(cases(), min_size=1, max_size=5))
def test_jobs_come_back_as_they_went_in(drawn) -> None:
    jobs = sorted((job for job, _ in drawn), key=lambda job: job.arrival)
    back = list(Workload.from_jobs(jobs))
    for job, other in zip(jobs, back, strict=True):
        assert (other.arrival, other.deadline) == (job.arrival, job.deadline)
        assert other.interruptible == job.interruptible
        assert (other.max_starts, other.min_run_s) == (job.max_starts, job.min_run_s)
        assert other.profile.energy_j == pytest.approx(job.profile.energy_j, rel=1e-12)
        assert other.profile.checkpoints_s == job.profile.checkpoints_s
        assert other.profile.work_s == job.profile.work_s


@given(st.lists(cases(), min_size=1, max_size=5))
def test_columns_say_what_the_jobs_say(drawn) -> None:
    jobs = sorted((job for job, _ in drawn), key=lambda job: job.arrival)
    columns = Workload.from_jobs(jobs)
    for name in ("startup_s", "restart_s", "work_s", "run_s", "energy_j"):
        want = [getattr(job.profile, name) for job in jobs]
        assert getattr(columns, name) == pytest.approx(want, rel=1e-12)
    assert columns.slack_s == pytest.approx([job.slack_s for job in jobs], abs=1e-5)
    assert columns.latest_start == pytest.approx([job.latest_start for job in jobs], abs=1e-5)
    peaks = [
        max(phase.power_w for group in ("startup", "restart", "work", "stop")
            if group != "restart" or job.interruptible != "never"
            for phase in getattr(job.profile, group) or ())
        for job in jobs
    ]  # fmt: skip
    assert columns.peak_w == pytest.approx(peaks)


def test_arrivals_are_put_in_order_and_ties_stay() -> None:
    jobs = Workload(arrival=[5, 1, 5, 0], deadline=99, work_s=10, id=["a", "b", "c", "d"])
    assert jobs.id.tolist() == ["d", "b", "a", "c"]
    assert jobs.deadline.tolist() == [99.0] * 4


def test_columns_have_names() -> None:
    jobs = Workload(arrival=[0, 0], deadline=99, work_s=10, priority=[1, 2])
    assert [job.priority for job in jobs] == [1.0, 2.0]
    assert Workload.from_jobs(list(jobs)).priority.tolist() == [1.0, 2.0]
    assert jobs.left_out == {}
    with pytest.raises(TypeError, match="prioritie"):
        Workload(arrival=[0], deadline=99, work_s=10, prioritie=1)
    with pytest.raises(InvalidJob, match="has no priority that is a number"):
        Workload(arrival=[0], deadline=99, work_s=10, priority=np.nan)


def test_a_factor_scales_a_profile() -> None:
    profile = PowerProfile(
        startup=[Phase(name="s", duration_s=60, power_w=100)],
        work=[Phase(name="w", duration_s=600, power_w=200, checkpoint=True)],
        stop=[Phase(name="z", duration_s=30, power_w=50)],
        suspended_power_w=10,
    )
    jobs = Workload(arrival=[0], deadline=[9999], power=2.0, profile=0, profiles=[profile])
    job = jobs.job(0)
    assert job.profile.energy_j == 2 * profile.energy_j == jobs.energy_j[0]
    assert (job.profile.suspended_power_w, job.profile.stop[0].power_w) == (20.0, 100.0)
    assert job.profile.checkpoints_s == profile.checkpoints_s
    assert jobs.peak_w[0] == 400.0


def test_a_trace_becomes_jobs() -> None:
    trace = Trace(
        columns={
            "arrival": [0, 10, 20],
            "length_s": [100, 0, 50],
            "cpus": [4, 1, 2],
            "gpus": [np.nan, 0, 1],
            "requested_s": [500, 1, np.nan],
            "priority": [3, 0, np.nan],
            "status": [STATUSES.index("completed"), 0, STATUSES.index("failed")],
        },
        source="a log",
    )
    jobs = Workload.from_trace(trace, wait="1h", power_w_per_cpu=10, power_w_per_gpu=300)
    assert len(jobs) == 2
    assert jobs.power.tolist() == [40.0, 320.0]
    assert jobs.slack_s == pytest.approx([HOUR, HOUR])
    assert jobs.requested_s.tolist() == [500.0, 50.0]
    assert [STATUSES[each] for each in jobs.status] == ["completed", "failed"]
    assert jobs.priority.tolist() == [3.0, 0.0]
    # Who never ran is not here, and is counted.
    assert jobs.left_out == jobs.take(slice(0, 1)).shifted(9.0).left_out == {"never_ran": 1}
    by_job = Workload.from_trace(trace, wait=[60.0, 0.0, 30.0])
    assert by_job.slack_s == pytest.approx([60.0, 30.0])


def test_rows_of_a_trace_may_name_a_profile() -> None:
    profile = PowerProfile.ml(epochs=2, train=("10m", 500), startup=("1m", 80))
    trace = Trace(
        columns={
            "arrival": [0, 1],
            "length_s": [100, 100],
            "cpus": [1, 1],
            "name": np.array(["train", "other"], dtype=object),
        }
    )
    jobs = Workload.from_trace(trace, wait=0, power_w_per_cpu=5, profiles={"train": profile})
    assert jobs.energy_j.tolist() == [profile.energy_j, 500.0]
    assert jobs.deadline[0] == profile.run_s
    assert jobs.job(0).profile is profile


def test_jobs_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidJob, match=r"job 2 \(row 2\) has no work to do, and 1 more"):
        Workload(arrival=[0, 1, 2], deadline=99, work_s=[1, 0, 0])
    with pytest.raises(InvalidJob, match="cannot be done by its deadline"):
        Workload(arrival=[0], deadline=[5], work_s=[9])
    with pytest.raises(InvalidJob, match="one of the 0 given"):
        Workload(arrival=[0], deadline=[5], work_s=[1], profile=[0])
    trace = Trace(columns={"arrival": [0], "length_s": [5], "cpus": [0]})
    with pytest.raises(InvalidTrace, match="held no CPU and no GPU"):
        Workload.from_trace(trace, wait=0)


def test_parts_shifts_and_other_processes() -> None:
    jobs = Workload.from_jobs(
        [
            Job(
                id=str(n),
                arrival=100.0 * n,
                deadline="+5h",
                profile=PowerProfile.constant(10 * n, "1h"),
                resources=Resources(cpus=n, memory_bytes=5.0),
            )
            for n in range(1, 5)
        ]
    )
    assert jobs.take(jobs.cpus > 2).id.tolist() == ["3", "4"]
    moved = jobs.shifted(1e9)
    assert moved.arrival[0] == 1e9
    assert moved.slack_s == pytest.approx(jobs.slack_s)
    other = pickle.loads(pickle.dumps(jobs))
    assert other.memory_bytes.tolist() == [5.0] * 4
    assert other.power.tolist() == jobs.power.tolist()
