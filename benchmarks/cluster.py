"""How near to the proven least a whole queue is planned, how fast, and what others come to.

Jobs have the lengths, widths and hours of the week of a published trace where LOWTIDE_DATA has
one, else drawn alike; power, phases, slack and how they may be stopped are drawn with a seed. Each
line is one queue for a week, with what was wanted beside what came out.

    kernel      how many plans of single jobs a second, at prices
    small       20 to 60 jobs beside what HiGHS proves: bound ≤ optimum ≤ plan
    plans       200 to 10,000 jobs on hourly slots: the gap to the bound, CPU seconds, what is saved
                against EASY and at most, who is late under plan, EASY and two published policies
    large       100,000 jobs, and the memory they take
    fine        10,000 jobs on slots of 15 minutes
    continuous  real arrivals and lengths, to the second; the bound holds for any moment
    fair        what it costs that no user emits more than under EASY
    shared      jobs of 1 to 8 GPUs on nodes with 8, node by node
    online      which share of what all knowledge would save is saved by whoever knows no job before
                it arrives, and knows four earlier weeks (drawn apart); with errors of the forecast;
                where nobody knows more than the last days; and where all are known: what not
                knowing them costs; `others` adds other policies
    wait        what is kept of the saving where waiting counts as much as it does by default, and
                3 % of what jobs emit, in four weeks of 2022; any zone there is may be named
    breaking    online where nodes break down, some are away and jobs end early: deadlines that EASY
                meets and the plan misses
    elastic     jobs that change their width by the hour, against one width for each
    referee     fuzzed clusters, shared and whole, away and capped: plans that do not fit
    events      how many events a scheduler in Python is told of in a second
    replan      how long one plan of 130, 1,000 and 2,000 waiting jobs takes
    compile     CPU seconds of compiling from an empty cache

    python benchmarks/cluster.py                      everything, about an hour
    python benchmarks/cluster.py small fine           some of it; no line takes three minutes
    python benchmarks/cluster.py plans DE 1000 85     of one grid, one size and one load
    python benchmarks/cluster.py online DE 95 seed=7  of other jobs than those it was settled on
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

import numpy as np

import lowtide as lt
from cluster_machines import ELASTIC_LOADS, breaking_line, elastic_line, referee_line
from cluster_oracle import solve_whole
from cluster_queues import DAYS, HOUR, MONDAY, curve, earlier_weeks, folder, queue
from lowtide.forecast import LeadScaled
from lowtide.market.booking import Booked, Booking
from lowtide.market.instance import make_instance
from lowtide.market.planner import Clock, solve
from lowtide.market.prices import Auction
from lowtide.market.rolling import ClusterPolicy, Replanning
from lowtide.policies.policy import Policy
from lowtide.simulator.serving import run_scheduler
from simulate import with_a_scheduler

__all__ = ["HOUR", "MONDAY", "curve", "queue"]

ZONES = ("US-CAL-CISO", "DE")
POLICIES = ("carbon_time", "oracle")
# Jobs, the gap that is wanted, and within how many CPU seconds.
BARS = {200: (0.015, 10.0), 1_000: (0.005, 20.0), 10_000: (0.0015, 10.0), 100_000: (0.0015, 60.0)}
LOADS = (0.5, 0.7, 0.85, 0.95)
FINE, CONTINUOUS = (0.003, 60.0), (0.01, 60.0)
PLANS_A_SECOND, MOST_MB, COMPILE_S = 300_000, 2000, 10.0
FAIR = 0.002
# What is to be kept of the saving where waiting counts as it does by default, and when.
KEPT = 0.9
WEEKS = tuple(f"2022-{day}T00:00Z" for day in ("01-10", "03-07", "08-15", "11-07"))
# Shared nodes: the gap, and within how many CPU seconds.
SHARED = (0.015, 30.0)
# Waiting jobs, and how many seconds planning them once may take.
REPLANS = {130: 0.1, 1_000: 1.0, 2_000: 1.0}
# How wrong a forecast is a day ahead.
FORECAST_ERROR = 0.1
# Small queues: how far above the optimum at most and in the middle, within how many CPU seconds.
SMALL, SMALL_MIDDLE, SMALL_S = 0.007, 0.0005, 10.0
# The least share of the best linear bound, and of what all knowledge would save.
NEAR_LINEAR, ONLINE = 0.9999, 0.8
# How many weeks of the past are known to whoever plans online.
PAST_WEEKS = 4


def line(
    zone: str,
    count: int,
    load: float,
    *,
    step_h: float = 1.0,
    bar: tuple[float, float] | None = None,
    others: bool = True,
    seed: int = 0,
) -> bool:
    """Print one queue; return whether it is within its bar."""
    signal = curve(zone)
    jobs, nodes = queue(count, load, signal.start, step_h=step_h, seed=seed)
    cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
    wanted, within_s = bar or BARS[count]
    clock = process_time()
    plan = lt.plan_cluster(
        jobs, cluster, signal, wait=0, gap=min(wanted, 0.001), seconds=0.9 * within_s, compare=False
    )
    took_s = process_time() - clock
    gap = np.inf if plan.gap is None else plan.gap
    text = f"{zone:<12}{count:>8,} jobs {load:>4.0%} {nodes:>6,} nodes  gap {gap:7.3%} "
    text += f"(wanted {wanted:.2%}) in {took_s:5.1f} s (wanted {within_s:g}), {plan.passes} passes"
    good = gap <= wanted and took_s <= within_s and not plan.late
    if others:
        easy = lt.simulate(
            jobs, signal, cluster=cluster, discipline="easy", baseline=None, repeat_signal=True
        )
        against = float(easy.tally.amount.sum())
        text += f"; saves {1 - plan.amount / against:6.1%} of EASY (at most "
        most = np.nan if plan.lower_bound_g is None else 1 - plan.lower_bound_g / against
        text += f"{most:.1%}); late {len(plan.late)} / {easy.missed.sum()}"
        for policy in POLICIES:
            other = lt.simulate(
                jobs,
                signal,
                policy=policy,
                cluster=cluster,
                discipline="easy",
                baseline=None,
                repeat_signal=True,
            )
            saved = 1 - float(other.tally.amount.sum()) / against
            text += f" / {policy} {saved:.1%}, {other.missed.sum()}"
    print(text, flush=True)
    return good


def small_lines(zone: str) -> bool:
    """Print small queues beside what HiGHS proves of them; return whether they are near enough."""
    signal, above = curve(zone), []
    good = True
    for seed, count in enumerate((20, 30, 40, 50, 60, 60)):
        load = 0.7 + 0.05 * seed
        jobs, nodes = queue(count, load, signal.start, seed=seed, days=2 + seed % 2)
        cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
        clock = process_time()
        plan = lt.plan_cluster(
            jobs, cluster, signal, wait=0, gap=1e-6, seconds=0.8 * SMALL_S, compare=False
        )
        took_s = process_time() - clock
        clock = process_time()
        known = solve_whole(plan.planned_on, seconds=120.0)
        theirs_s = process_time() - clock
        more = plan.counted / known.best - 1
        above.append(more)
        linear = plan.lower_bound / known.relaxed
        holds = plan.lower_bound <= known.best * (1 + 1e-6) and plan.counted >= known.proven * (
            1 - 1e-6
        )
        good &= bool(holds) and more <= SMALL and linear >= NEAR_LINEAR and took_s <= SMALL_S
        print(
            f"{zone:<12}{count:>8,} jobs {load:>4.0%} {nodes:>6,} nodes  {more:7.3%} above the "
            f"optimum (wanted {SMALL:.2%}) in {took_s:.1f} s (wanted {SMALL_S:g}; HiGHS "
            f"{theirs_s:.1f} s, gap {1 - known.proven / known.best:.3%}); bound {linear:.6f} of "
            f"the linear one (wanted {NEAR_LINEAR}), {1 - plan.lower_bound / known.best:.3%} below "
            f"the optimum; bound ≤ optimum ≤ plan: {'yes' if holds else 'NO'}",
            flush=True,
        )
    middle = float(np.median(above))
    print(f"{zone:<12}in the middle {middle:.3%} above the optimum (wanted {SMALL_MIDDLE:.2%})")
    return good and middle <= SMALL_MIDDLE


def continuous_line(zone: str, count: int, load: float, *, seed: int = 0) -> bool:
    """Print a queue of real arrivals and lengths, and a bound for plans at any moment."""
    wanted, within_s = CONTINUOUS
    signal = curve(zone)
    jobs, nodes = queue(count, load, signal.start, step_h=0.0, seed=seed)
    clock = process_time()
    plan = lt.plan_cluster(
        jobs,
        lt.Cluster(nodes=nodes, cpus_per_node=1),
        signal,
        wait=0,
        step="5m",
        gap=0.002,
        seconds=0.85 * within_s,
        compare=False,
    )
    planned_s = process_time() - clock
    bound = plan.any_moment_bound_g
    took_s = process_time() - clock
    gap = np.inf if bound is None else 1 - bound / plan.amount
    print(
        f"{zone:<12}{count:>8,} jobs {load:>4.0%} {nodes:>6,} nodes, to the second, on slots of "
        f"{plan.step_s / 60:g} min: gap {gap:.3%} for any moment (wanted {wanted:.2%}) in "
        f"{took_s:.1f} s (wanted {within_s:g}; the plan {planned_s:.1f}), on the slots "
        f"{plan.gap or 0.0:.3%}; late {len(plan.late)}",
        flush=True,
    )
    return gap <= wanted and took_s <= within_s and not plan.late


def kernel_line(zone: str) -> bool:
    """Print how many single jobs are planned a second."""
    signal = curve(zone)
    jobs, nodes = queue(10_000, 0.85, signal.start)
    instance = make_instance(jobs, lt.Cluster(nodes=nodes, cpus_per_node=1), signal)
    auction, passes = Auction(instance), 40
    auction.advance()
    clock = process_time()
    for _ in range(passes):
        auction.advance()
    rate = passes * len(jobs) / (process_time() - clock)
    print(f"{zone:<12}{rate:>10,.0f} plans a second (wanted {PLANS_A_SECOND:,})", flush=True)
    return rate >= PLANS_A_SECOND


def fair_line(zone: str, load: float, *, seed: int = 0) -> bool:
    """Print what it costs that nobody emits more than under EASY."""
    signal = curve(zone)
    jobs, nodes = queue(1_000, load, signal.start, seed=seed)
    cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
    plain, fair = (
        lt.plan_cluster(jobs, cluster, signal, wait=0, effort=0.2, seconds=60.0, fair=how)
        for how in (None, "users")
    )
    worse = [
        sum(
            theirs is not None and ours > theirs * (1 + 1e-6)
            for ours, theirs in each.users().values()
        )
        for each in (plain, fair)
    ]
    more = fair.amount / plain.amount - 1
    print(
        f"{zone:<12}{1_000:>8,} jobs {load:>4.0%}: fair costs {more:.3%} (wanted {FAIR:.1%}); "
        f"users above EASY {worse[1]} (wanted 0), without it {worse[0]}; late {len(fair.late)}",
        flush=True,
    )
    return more <= FAIR and not worse[1]


def shared_line(zone: str, load: float, *, seed: int = 0) -> bool:
    """Print a queue of jobs that share nodes; one run that has no room would raise."""
    signal = curve(zone)
    jobs, _ = queue(1_000, load, signal.start, seed=seed)
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 2, 4, 8], len(jobs), p=[0.4, 0.3, 0.2, 0.1]).astype(float)
    ones = np.ones(len(jobs))
    jobs = replace(jobs, gpus=gpus, cpus=ones, nodes=ones)
    nodes = int(np.ceil((gpus * jobs.run_s).sum() / (8 * DAYS * 24 * HOUR * load)))
    cluster = lt.Cluster(nodes=nodes, cpus_per_node=64, gpus_per_node=8)
    clock = process_time()
    plan = lt.plan_cluster(jobs, cluster, signal, wait=0, seconds=SHARED[1], compare=False)
    took_s = process_time() - clock
    # What the same search comes to where room in sum is as good as room on a node.
    summed = solve(plan.planned_on, gap=0.005, effort=1.0, clock=Clock(SHARED[1]), seed=0)
    print(
        f"{zone:<12}{1_000:>8,} jobs {load:>4.0%} {nodes:>6,} nodes of 8 GPUs: gap "
        f"{plan.gap:.3%} (wanted {SHARED[0]:.1%}) in {took_s:.1f} s (wanted {SHARED[1]:g}), "
        f"{plan.counted / summed.total - 1:.3%} of it for packing; late {len(plan.late)}; all on "
        "nodes with room",
        flush=True,
    )
    return plan.gap <= SHARED[0] and not plan.late


def wait_lines(zone: str, loads: tuple[float, ...], *, seed: int = 0) -> bool:
    """Print what is kept of the saving where waiting counts."""
    good = True
    for begin in WEEKS:
        signal = curve(zone, begin)
        for load in loads:
            jobs, nodes = queue(200, load, signal.start, seed=seed)
            cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
            plans = [
                lt.plan_cluster(jobs, cluster, signal, wait=wait, gap=0.001, effort=0.05)
                for wait in (0.0, None, 0.03)
            ]
            free, usual, much = (plan.saving or 0.0 for plan in plans)
            hours = [float(plan.simulation.wait_s.mean()) / HOUR for plan in plans]
            good &= usual >= KEPT * free
            print(
                f"{zone:<12}{begin[:10]} {load:>4.0%}: saves {free:.1%} where waiting is free; "
                f"kept by default {usual / free:.0%} (wanted {KEPT:.0%}), at 3 % "
                f"{much / free:.0%}; mean wait {hours[0]:.1f}, {hours[1]:.1f} and {hours[2]:.1f} h",
                flush=True,
            )
    return good


class _Timed(Replanning):
    """Replanning that notes how long each plan takes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.took_s: list[float] = []

    def _plan(self, now: float) -> list[list[Any]]:
        clock = process_time()
        made = super()._plan(now)
        self.took_s.append(process_time() - clock)
        return list(made)


def replan_lines(zone: str) -> bool:
    """Print how long planning so many waiting jobs once more takes."""
    signal, good = curve(zone), True
    for count, within_s in REPLANS.items():
        jobs, nodes = queue(count, 0.5, signal.start, days=1)
        # All come in the first hour, and wait.
        early_s = jobs.arrival - signal.start
        jobs = replace(jobs, arrival=jobs.arrival - early_s, deadline=jobs.deadline - early_s)
        cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
        loop = _Timed(ClusterPolicy(), jobs, signal, cluster, HOUR)
        run_scheduler(jobs, cluster, loop)
        # As long as most of them wait.
        took = loop.took_s[:5]
        middle = float(np.median(took))
        good &= middle <= within_s
        print(
            f"{zone:<12}{count:>8,} waiting jobs: {middle:.3f} s in the middle, {max(took):.3f} s "
            f"at most (wanted {within_s:g})",
            flush=True,
        )
    return good


def compile_lines() -> bool:
    """Print how long compiling takes where nothing was compiled before."""
    good = True
    code = (
        "import sys; import lowtide as lt; from lowtide.compiled import compiling_s; "
        "hour = lt.PowerProfile.constant(1000, '1h'); n = int(sys.argv[1]); "
        "grid = lt.synthetic_grid('sunny', start='2024-07-01T00:00Z', days=3, seed=1); "
        "jobs = [lt.Job(id=str(k), arrival='2024-07-01T00:00Z', deadline='+1d', profile=hour) "
        "for k in range(n)]; "
        "lt.plan_cluster(jobs, lt.Cluster(nodes=n, cpus_per_node=1), grid, effort=0.01); "
        "print(compiling_s())"
    )
    for count in (50, 2_500):
        with tempfile.TemporaryDirectory() as empty:
            own = {**os.environ, "LOWTIDE_CACHE": empty, "XDG_CACHE_HOME": empty}
            told = subprocess.run(
                [sys.executable, "-c", code, str(count)], env=own, check=True, capture_output=True
            )
        took_s = float(told.stdout)
        good &= took_s <= COMPILE_S
        print(f"{count:,} jobs: {took_s:.1f} s of compiling (wanted {COMPILE_S:g})", flush=True)
    return good


def online_line(zone: str, count: int, load: float, *, seed: int = 0, others: bool) -> bool:
    """Print what is saved by whoever knows no job before it arrives.

    Shares are of what all knowledge saves where waiting counts as much as online: not at all, or as
    by default.
    """
    signal = curve(zone)
    jobs, nodes = queue(count, load, signal.start, seed=seed)
    cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
    told = {
        wait: lt.plan_cluster(jobs, cluster, signal, wait=wait, gap=0.005, seconds=20.0)
        for wait in (0.0, ClusterPolicy().wait)
    }
    easy = told[0.0].easy
    assert easy is not None
    against, late = float(easy.tally.amount.sum()), int(easy.missed.sum())
    saving = {wait: 1 - float(each.tally.amount.sum()) / against for wait, each in told.items()}
    text = f"{zone:<12}{count:>8,} jobs {load:>4.0%} {nodes:>6,} nodes  all known saves "
    text += " and with waiting counted ".join(f"{each:.1%}" for each in saving.values())
    text += f", EASY late {late};"
    good = True
    past = earlier_weeks(count, load, signal.start, weeks=PAST_WEEKS, seed=seed)
    free = ClusterPolicy(phantoms=past, wait=0)
    policies: dict[str, Policy] = {
        "online": ClusterPolicy(phantoms=past),
        "where waiting is free": free,
        f"with forecasts {FORECAST_ERROR:.0%} wrong a day ahead": replace(
            free, forecasts=LeadScaled(relative_error=FORECAST_ERROR)
        ),
        "with jobs of the last days alone": ClusterPolicy(),
        "told who will come": ClusterPolicy(phantoms=jobs),
    }
    if others:
        policies |= {
            "without stand-ins": ClusterPolicy(stand_ins="none"),
            "booking": Booking(),
            "booked carbon_time": Booked(start="carbon_time"),
            "booked oracle": Booked(start="oracle"),
        }
    for name, policy in policies.items():
        clock = process_time()
        ran = lt.simulate(
            jobs, signal, policy=policy, cluster=cluster, baseline=None, repeat_signal=True
        )
        took_s = process_time() - clock
        saved = 1 - float(ran.tally.amount.sum()) / against
        missed = int(ran.missed.sum())
        # Policies of others know nothing of what waiting counts.
        share = saved / saving[policy.wait if isinstance(policy, ClusterPolicy) else 0.0]
        text += f" {name} {saved:.1%} ({share:.0%}), late {missed}, {took_s:.0f} s;"
        if name == "online" or policy is free:
            text += f" (wanted {ONLINE:.0%} and late ≤ {late});"
            good &= share >= ONLINE and missed <= late
    print(text, flush=True)
    return good


SECTIONS = (
    *("kernel", "small", "plans", "large", "fine", "continuous"),
    *("fair", "shared", "online", "breaking", "elastic", "referee"),
    *("wait", "events", "replan", "compile"),
)


def main(arguments: list[str]) -> int:
    """Print the figures; return 1 if one is beyond its bar."""
    asked = [each for each in SECTIONS if each in arguments] or list(SECTIONS)
    there = {each.stem for each in (folder() / "carbon").glob("*.csv")} | set(ZONES)
    zones = [each for each in arguments if each in there] or ZONES
    sizes = [size for size in BARS if str(size) in arguments] or (200, 1_000, 10_000)
    loads = [load for load in LOADS if f"{load * 100:g}" in arguments]
    seed = next((int(each[5:]) for each in arguments if each.startswith("seed=")), 0)
    some = loads or (0.85,)
    if asked != ["compile"]:
        line(ZONES[0], 200, 0.5, others=False)  # Compile, where that has not been done.
    lines: list[Callable[[], bool]] = []
    for section in asked:
        for zone in zones:
            if section == "kernel":
                lines.append(partial(kernel_line, zone))
            elif section == "small":
                lines.append(partial(small_lines, zone))
            elif section == "plans":
                lines += [
                    partial(line, zone, count, load, seed=seed)
                    for count in sizes
                    for load in loads or LOADS
                ]
            elif section == "large":
                lines += [
                    partial(line, zone, 100_000, load, others=False, seed=seed) for load in some
                ]
            elif section == "fine":
                lines += [
                    partial(
                        line, zone, 10_000, load, step_h=0.25, bar=FINE, others=False, seed=seed
                    )
                    for load in some
                ]
            elif section == "continuous":
                lines += [partial(continuous_line, zone, 10_000, load, seed=seed) for load in some]
            elif section == "fair":
                lines += [partial(fair_line, zone, load, seed=seed) for load in some]
            elif section == "shared":
                lines += [partial(shared_line, zone, load, seed=seed) for load in some]
            elif section == "online":
                lines += [
                    partial(online_line, zone, 1_000, load, seed=seed, others="others" in arguments)
                    for load in loads or LOADS[1:]
                ]
            elif section == "breaking":
                lines += [
                    partial(breaking_line, zone, load, seed=seed) for load in loads or (0.5, 0.7)
                ]
            elif section == "elastic":
                lines += [
                    partial(elastic_line, zone, load, seed=seed) for load in loads or ELASTIC_LOADS
                ]
            elif section == "wait":
                lines.append(partial(wait_lines, zone, tuple(some), seed=seed))
            elif section == "replan":
                lines.append(partial(replan_lines, zone))
    alone = {"referee": referee_line, "events": with_a_scheduler, "compile": compile_lines}
    lines += [each for name, each in alone.items() if name in asked]
    # One that misses does not keep the others from being told.
    good = [each() for each in lines]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"largest memory {peak_mb:,.0f} MB (wanted {MOST_MB:,} MB)")
    return int(not (all(good) and peak_mb <= MOST_MB))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
