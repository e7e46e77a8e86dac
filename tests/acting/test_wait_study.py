"""The margin for the queue: what it misses where others compete, at three loads."""

from __future__ import annotations

import csv
import random

import pytest

from lowtide import read_signal
from lowtide.grids import synthetic_grid
from support.wait_study import LineJob, WaitStudy, drawn_jobs, study

HOUR_S = 3600.0
DAYS = 9
GRID = synthetic_grid("windy", start=0, days=DAYS + 8, seed=1).average


def crowd(seed: int) -> list[LineJob]:
    """Jobs that come in bursts, most of them short and small, a few long and large."""
    source = random.Random(seed)
    arrivals, lengths, cpus = [], [], []
    for _ in range(100 * DAYS):
        at = source.uniform(0, DAYS * 86_400.0)
        size = source.choice([1, 1, 1, 2, 4, 8, 16])
        length = min(source.lognormvariate(7.5, 1.2), 20_000.0)
        for _ in range(source.choice([1, 1, 1, 2, 2, 20 if size == 1 else 1])):
            arrivals.append(at + source.uniform(0.0, 300.0))
            lengths.append(length * source.uniform(0.5, 1.5))
            cpus.append(size)
    return drawn_jobs(arrivals, lengths, cpus, seed=seed)


JOBS = crowd(4)
USED = sum(job.length_s * job.cpus for job in JOBS) / (DAYS * 86_400.0)


def missed(load: float, rule: str, jobs: list[LineJob] = JOBS) -> float:
    cpus = max(round(USED / load), 16)
    found = study(jobs, GRID, WaitStudy(cpus=cpus, slack_s=6 * HOUR_S, rule=rule))
    assert found.load == pytest.approx(load, abs=0.12)
    return found.missed / found.jobs


@pytest.mark.parametrize("load", [0.5, 0.74])
def test_the_margin_keeps_deadlines_in_a_crowded_queue(load):
    at_once = missed(load, "at once")
    assert missed(load, "7 days, estimate") <= at_once + 0.005
    # The field's rule, to start as late as the deadline allows, does not.
    assert missed(load, "none") > at_once + 0.01


def test_where_all_is_full_a_boost_does_what_no_margin_can():
    at_once = missed(0.86, "at once")
    assert missed(0.86, "7 days, boost") <= at_once + 0.005
    assert missed(0.86, "none") > at_once


def test_a_thousand_jobs_at_once_before_they_have_to_begin_are_outrun_by_a_boost():
    # An hour before a flexible job has to begin that came when there was nobody: by then it waits.
    first = next(job for job in JOBS if job.flexible and job.arrival > 4 * 86_400.0)
    at = first.arrival + 5 * HOUR_S
    one = LineJob(arrival=at, length_s=HOUR_S, limit_s=2 * HOUR_S, cpus=1)
    burst = sorted([*JOBS, *[one] * 1000], key=lambda job: job.arrival)
    late = {rule: missed(0.5, rule, burst) for rule in ("at once", "none", "7 days, boost")}
    assert late["7 days, boost"] <= late["at once"] + 0.005
    assert late["none"] > late["at once"]
    # They do hold others up: who came at once, and does not go first, is late more often.
    assert late["at once"] > missed(0.5, "at once")


def test_a_queue_by_hand():
    # Two CPUs. The first takes both for an hour, the second has to wait, the third is put before it
    # by backfill only if its limit lets the second start in time.
    def job(arrival, hours, cpus, limit_h=None):
        limit_s = (limit_h or hours) * HOUR_S
        return LineJob(
            arrival=arrival, length_s=hours * HOUR_S, limit_s=limit_s, cpus=cpus, flexible=True
        )

    jobs = [job(0.0, 2.0, 1), job(1.0, 1.0, 2), job(2.0, 1.0, 1), job(3.0, 1.0, 1, limit_h=9.0)]
    for slack_s, late in ((1.9 * HOUR_S, 2), (2 * HOUR_S, 1), (3 * HOUR_S, 0)):
        found = study(jobs, GRID, WaitStudy(cpus=2, slack_s=slack_s, rule="at once"))
        assert found.missed == late


def test_the_default_rule_on_a_real_clusters_jobs_misses_no_more_than_at_once(data):
    with data("traces/scorelab.csv").open() as file:
        rows = list(csv.DictReader(file))
    jobs = drawn_jobs(
        *([float(row[name]) for row in rows] for name in ("arrival_time", "length")),
        [int(row["cpus"]) for row in rows],
    )
    signal = read_signal(str(data("carbon/DE.csv")))
    signal = signal.window(signal.start, signal.start + 120 * 86_400.0)
    print(f"\n{len(jobs)} jobs of a real cluster on 700 CPUs, six hours of slack")
    late = {}
    for rule in ("at once", "7 days, estimate"):
        found = study(jobs, signal, WaitStudy(cpus=700, slack_s=6 * HOUR_S, rule=rule))
        late[rule] = found.missed / found.jobs
        told = f"{found.missed} of {found.jobs} late ({late[rule]:.1%})"
        print(f"{rule:18} load {found.load:.0%}  {told}  carbon {found.change:+.1%}")
        assert found.load == pytest.approx(0.74, abs=0.02)
    assert late["7 days, estimate"] <= late["at once"] + 0.005
