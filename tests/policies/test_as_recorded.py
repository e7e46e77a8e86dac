"""What happened, as a policy: jobs start when their trace says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput, InvalidSchedule
from lowtide.formats import read_jobs
from lowtide.simulator import Cluster
from lowtide.workload import Workload

GRID = lt.Signal.from_values([300, 100, 200, 400] * 6, start=0, step_s="1h")


def recorded(seed: int, count: int = 30) -> Workload:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, 8 * 3600, count))
    work_s = rng.uniform(60, 2 * 3600, count)
    return Workload(
        arrival=arrival,
        deadline=arrival + work_s + rng.uniform(0, 3 * 3600, count),
        work_s=work_s,
        power=rng.uniform(50, 500, count),
        waited_s=rng.uniform(0, 3 * 3600, count),
        nodes=1,
    )


@pytest.mark.parametrize("seed", range(3))
def test_jobs_start_when_they_did(seed: int) -> None:
    jobs = recorded(seed)
    done = lt.simulate(jobs, GRID, policy="as_recorded", baseline=None)
    assert np.array_equal(done.tally.start, jobs.arrival + jobs.waited_s)
    # Grams by the hour, by hand.
    for row in range(len(jobs)):
        at, left, grams = done.tally.start[row], jobs.work_s[row], 0.0
        while left > 0:
            span = min(left, 3600 - at % 3600)
            grams += jobs.power[row] * span / 3.6e6 * GRID.values[int(at // 3600)]
            at, left = at + span, left - span
        assert done.tally.carbon_g[row] == pytest.approx(grams)
    late = done.tally.end > jobs.deadline + 1e-6
    assert done.summary()["deadline_misses"] == late.sum() > 0


def test_on_machines_starts_are_carried_out_as_they_stand() -> None:
    jobs = recorded(1)
    wide = Cluster(nodes=len(jobs), cpus_per_node=1)
    done = lt.simulate(jobs, GRID, policy="as_recorded", cluster=wide, baseline="as_recorded")
    assert np.array_equal(done.tally.start, jobs.arrival + jobs.waited_s)
    assert done.summary()["saving"] == 0
    with pytest.raises(InvalidSchedule):
        lt.simulate(jobs, GRID, policy="as_recorded", cluster=Cluster(nodes=1, cpus_per_node=1))


def test_a_baseline_that_happened(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_time,length,cpus,waited\n0,3600,1,0\n0,3600,1,10800\n")
    jobs = Workload.from_trace(read_jobs(path), wait="6h", power_w_per_cpu=1000)
    done = lt.simulate(jobs, GRID, policy="oracle", baseline="as_recorded")
    # Recorded at 300 and at 400 g/kWh; the cleanest hour has 100.
    assert done.summary()["saving"] == pytest.approx(1 - 200 / 700)
    assert done.summary()["baseline"] == "as_recorded"


def test_what_was_not_recorded_is_refused() -> None:
    jobs = lt.Workload(arrival=[0, 1], deadline=8e4, work_s=60, id=["a", "b"])
    with pytest.raises(InvalidInput, match="of job a that is not known"):
        lt.simulate(jobs, GRID, policy="as_recorded")
    half = lt.Workload(arrival=[0, 1], deadline=8e4, work_s=60, id=["a", "b"], waited_s=[5, np.nan])
    with pytest.raises(InvalidInput, match="of job b that is not known"):
        lt.simulate(half, GRID, policy="as_recorded")
    with pytest.raises(InvalidInput, match="job a is of none"):
        lt.plan(jobs.job(0), GRID, policy="as_recorded")
