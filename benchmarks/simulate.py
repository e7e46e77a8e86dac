"""How fast many jobs are simulated, against plain Python and plainly written SimPy.

Every line prints what was measured, the baseline of the same run, and the ratio. The jobs are
those of the traces under LOWTIDE_DATA where they are there, else drawn at random alike.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import simpy

import lowtide as lt
from lowtide.policies.policy import make_policy
from lowtide.signal import FloatArray, Signal
from lowtide.simulator import Cluster, make_discipline, simulate
from lowtide.simulator.events import QueueEvent
from lowtide.simulator.queueing import run_queue
from lowtide.simulator.scheduling import QueueView
from lowtide.simulator.serving import run_scheduler
from lowtide.workload import Workload

HOUR = 3600.0
YEAR_S = 366 * 86400.0
START = 1_704_067_200.0
START_POLICIES = ("run_now", "latest", "lowest_slot", "lowest_window", "oracle", "carbon_time")
STOP_POLICIES = ("wait_awhile", "threshold")
TEN_POLICIES = (*START_POLICIES, *STOP_POLICIES, "reserved_first", "spot_reserved")


def year() -> Signal:
    """A year of hourly intensity, and a month to finish in."""
    return lt.synthetic_grid("windy", start=START, days=400, seed=1).average


def spread_jobs(count: int, seed: int = 1) -> Workload:
    """Jobs over a year as clouds have them: many of minutes, some of a day."""
    rng = np.random.default_rng(seed)
    work_s = np.clip(rng.lognormal(np.log(1800), 1.8, count), 60, 86400)
    arrival = START + np.sort(rng.uniform(0, YEAR_S, count))
    wait_s = np.where(work_s < 2 * HOUR, 6 * HOUR, 24 * HOUR)
    cpus = rng.choice([1, 2, 4, 8, 16], count).astype(float)
    return Workload(
        arrival=arrival,
        deadline=arrival + work_s + wait_s,
        work_s=work_s,
        power=10 * cpus,
        cpus=cpus,
        interruptible=1,
        requested_s=work_s * rng.uniform(1, 4, count),
        source="drawn at random",
    )


def traces() -> dict[str, Workload]:
    """The published traces that are there, their jobs stretched over the year."""
    folder = Path(os.environ.get("LOWTIDE_DATA", "../shared/data")) / "traces"
    found = {}
    for path in sorted(folder.glob("*-100k_seconds.csv.gz")):
        trace = lt.read_jobs(path)
        wait_s = np.where(trace.length_s < 2 * HOUR, 6 * HOUR, 24 * HOUR)
        jobs = Workload.from_trace(
            trace.select(trace.cpus > 0), wait=wait_s[trace.cpus > 0], interruptible="anywhere"
        )
        inside = jobs.deadline - jobs.arrival[0] < YEAR_S
        found[path.name.split("-100k")[0]] = jobs.take(inside).shifted(START)
    return found or {"drawn at random": spread_jobs(100_000)}


def timed(call: object, repeats: int = 2) -> float:
    """Return the shortest of some runs, in seconds."""
    shortest = np.inf
    for _ in range(repeats):
        clock = perf_counter()
        call()  # type: ignore[operator]
        shortest = min(shortest, perf_counter() - clock)
    return shortest


def plain_best_start(jobs: Workload, signal: Signal, rows: range) -> list[float]:
    """The best start of each job at arrival + k·1 h, as one would write it down in Python."""
    values, step_s, first = signal.values.tolist(), signal.step_s, signal.start
    starts = []
    for row in rows:
        arrival, length_s = float(jobs.arrival[row]), float(jobs.work_s[row])
        best, best_start = float("inf"), arrival
        for k in range(int(float(jobs.slack_s[row]) // 3600) + 1):
            begin = arrival + k * 3600
            end, at, total = begin + length_s, begin, 0.0
            while at < end:
                step = int((at - first) / step_s)
                until = min(first + (step + 1) * step_s, end)
                total += values[step] * (until - at)
                at = until
            if total < best:
                best, best_start = total, begin
        starts.append(best_start)
    return starts


def without_limits(signal: Signal) -> bool:
    """Start-time policies, stop policies and the optimum, on one core."""
    good = True
    for name, jobs in traces().items():
        some = range(0, len(jobs), max(len(jobs) // 1000, 1))
        plain_s = timed(lambda jobs=jobs, some=some: plain_best_start(jobs, signal, some), 1)
        plain_rate = len(some) / plain_s
        for policy in (*START_POLICIES, *STOP_POLICIES):
            simulate(jobs.take(slice(0, 100)), signal, policy=policy, baseline=None)
            took_s = timed(
                lambda jobs=jobs, policy=policy: simulate(
                    jobs, signal, policy=policy, baseline=None
                )
            )
            rate = len(jobs) / took_s
            wanted = 50_000 if policy in STOP_POLICIES else 200_000
            print(
                f"{name:<18} {policy:<14} {rate:12,.0f} jobs/s (wanted {wanted:,}); "
                f"plain Python {plain_rate:,.0f}/s: {rate / plain_rate:,.0f}x"
                + (" (wanted 300x)" if policy in START_POLICIES else "")
            )
            good &= policy in STOP_POLICIES or rate / plain_rate > 100
        part = jobs.take(slice(0, 5000))
        part = Workload(
            arrival=part.arrival,
            deadline=part.arrival + part.work_s + 24 * HOUR,
            work_s=part.work_s,
            power=part.power,
            interruptible=1,
        )
        _, exact = make_policy("exact", step_s=HOUR)
        took_s = timed(
            lambda part=part, exact=exact: simulate(part, signal, policy=exact, baseline=None), 1
        )
        rate = len(part) / took_s
        print(f"{name:<18} {'exact, hourly':<14} {rate:12,.0f} jobs/s (wanted 5,000)")
    return good


def in_simpy(jobs: Workload, cpus: int) -> FloatArray:
    """First come, first served on so many CPUs, written plainly with SimPy."""
    env = simpy.Environment()
    free = simpy.Container(env, capacity=cpus, init=cpus)
    ends = np.empty(len(jobs))

    def source() -> Generator[simpy.Event, None, None]:
        line = simpy.Resource(env, capacity=1)
        for row in range(len(jobs)):
            yield env.timeout(max(float(jobs.arrival[row]) - env.now, 0))
            env.process(serve(row, line))

    def serve(row: int, line: simpy.Resource) -> Generator[simpy.Event, None, None]:
        with line.request() as turn:
            yield turn
            yield free.get(int(jobs.cpus[row]))
        yield env.timeout(float(jobs.work_s[row]))
        yield free.put(int(jobs.cpus[row]))
        ends[row] = env.now

    env.process(source())
    env.run()
    return ends


def with_limits() -> bool:
    """First come, first served and backfilling at 1,000 nodes, and how the cost grows."""
    jobs = spread_jobs(100_000).shifted(0.0)
    # A thousand nodes that are busy: the year's jobs in ten days.
    dense = Workload(
        arrival=jobs.arrival / 120,
        deadline=jobs.arrival / 120 + 100 * YEAR_S,
        work_s=jobs.work_s,
        power=jobs.power,
        cpus=jobs.cpus,
        requested_s=jobs.requested_s,
    )
    cluster = Cluster(nodes=1000, cpus_per_node=16)
    pool = Cluster(nodes=1, cpus_per_node=4000)
    good = True
    for name, wanted in (("fifo", 300_000), ("easy", 30_000)):
        discipline = make_discipline(name)
        run_queue(dense.take(slice(0, 100)), dense.arrival[:100], cluster, discipline)
        took_s = timed(
            lambda discipline=discipline: run_queue(dense, dense.arrival, cluster, discipline)
        )
        print(
            f"1,000 nodes        {name:<14} {len(dense) / took_s:12,.0f} jobs/s (wanted {wanted:,})"
        )
    fifo = make_discipline("fifo")
    few = dense.take(slice(0, 20_000))
    ours_s = timed(lambda: run_queue(few, few.arrival, pool, fifo))
    clock = perf_counter()
    theirs = in_simpy(few, 4000)
    simpy_s = perf_counter() - clock
    queued = run_queue(few, few.arrival, pool, fifo)
    same = np.allclose(queued.stretches.start + few.work_s, theirs)
    print(
        f"one pool           {'fifo':<14} {len(few) / ours_s:12,.0f} jobs/s; SimPy "
        f"{len(few) / simpy_s:,.0f}/s: {simpy_s / ours_s:,.0f}x (wanted 20x); same ends: {same}"
    )
    good &= bool(same) and simpy_s / ours_s > 10
    counts = (10_000, 100_000, 1_000_000)
    seconds = []
    for count in counts:
        many = spread_jobs(count)
        squeezed = (many.arrival - START) / 120 * (count / 100_000)
        grown = Workload(
            arrival=squeezed,
            deadline=squeezed + 1e9,
            work_s=many.work_s,
            power=many.power,
            cpus=many.cpus,
        )
        seconds.append(timed(lambda grown=grown: run_queue(grown, grown.arrival, cluster, fifo), 1))
    per = [took / (count * np.log(count)) for took, count in zip(seconds, counts, strict=True)]
    power = np.polyfit(np.log(counts), np.log(seconds), 1)[0]
    told = ", ".join(f"{n:,}: {took:.3f} s" for n, took in zip(counts, seconds, strict=True))
    print(
        f"growth, fifo: {told}; grows as n^{power:.2f}; "
        f"per n log n {per[-1] / per[0]:.2f} of the smallest"
    )
    return good


class InOrder:
    """A scheduler as anybody would write it: first come, first served."""

    def __init__(self) -> None:
        self.events = 0

    def on(self, event: QueueEvent, view: QueueView) -> None:  # noqa: ARG002 - whatever has happened
        """Start whose turn it is."""
        self.events += 1
        while (first := view.first) is not None and view.start(first):
            pass


def with_a_scheduler() -> bool:
    """Jobs on limited machines under a scheduler in Python, against the kernel of the same rule."""
    jobs = spread_jobs(20_000)
    squeezed, good = (jobs.arrival - START) / 600, True
    wanted = 20_000
    for what, wide in (("whole nodes", True), ("shared nodes", False)):
        many = Workload(
            arrival=squeezed,
            deadline=squeezed + 1e9,
            work_s=jobs.work_s,
            power=jobs.power,
            cpus=jobs.cpus,
            nodes=jobs.cpus if wide else 1,
        )
        nodes, cpus = (4000, 1) if wide else (250, 16)
        cluster = Cluster(nodes=nodes, cpus_per_node=cpus)
        own = InOrder()
        clock = process_time()
        seen = run_scheduler(many, cluster, own)
        took_s = process_time() - clock
        kernel = run_queue(many, many.arrival, cluster, "fifo")
        kernel_s = timed(lambda many=many, on=cluster: run_queue(many, many.arrival, on, "fifo"), 1)
        same = bool(np.array_equal(seen.stretches.start, kernel.stretches.start))
        print(
            f"a scheduler        {what:<14} {own.events / took_s:12,.0f} events/s (wanted "
            f"{wanted:,}), {took_s / kernel_s:,.0f}x the kernel's time; same starts: {same}"
        )
        good &= same and own.events / took_s > wanted / 2
    return good


def _one_policy(policy: str) -> float:
    jobs = spread_jobs(1_000_000, seed=2)
    signal = year()
    cluster = Cluster(nodes=1, cpus_per_node=1, reserved_cpus=200)
    clock = perf_counter()
    bought = policy in ("reserved_first", "spot_reserved")
    simulate(
        Workload(
            arrival=jobs.arrival,
            deadline=jobs.deadline,
            work_s=jobs.work_s,
            power=jobs.power,
            cpus=jobs.cpus,
            interruptible=0 if bought else 1,
        ),
        signal,
        policy=policy,
        cluster=cluster if bought else None,
        baseline=None,
    ).summary()
    return perf_counter() - clock


def a_million() -> None:
    """A million jobs under ten policies, on two cores."""
    clock = perf_counter()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_one_policy, TEN_POLICIES))
    took_s = perf_counter() - clock
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"1,000,000 jobs × {len(TEN_POLICIES)} policies on 2 cores: {took_s:.1f} s (wanted 120 s), "
        f"largest process {peak_mb:,.0f} MB (wanted 4,000 MB in all)"
    )


def main() -> int:
    """Print the figures; return 1 if a ratio is below its floor."""
    signal = year()
    good = without_limits(signal)
    good &= with_limits()
    good &= with_a_scheduler()
    a_million()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
