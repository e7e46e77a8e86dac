"""Machines as they are: nodes that break down, widths by the hour, plans that must fit."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import numpy as np

import lowtide as lt
from cluster_queues import HOUR, curve, queue
from lowtide.errors import Infeasible, InvalidSchedule
from lowtide.market import plan_elastic
from lowtide.market.rolling import ClusterPolicy
from lowtide.simulator.outages import Failures

ELASTIC_LOADS = (0.7, 0.85)
# The gap of widths by the hour, and within how many CPU seconds.
_ELASTIC, _ELASTIC_S = 0.015, 60.0
# How fast a job is at how many times its nodes: as Amdahl has it, with 3 % that is not parallel.
_CURVE = {float(n): 1 / (0.03 + 0.97 / n) for n in (2, 4)}
_FUZZED = 1000


def elastic_line(zone: str, load: float, *, seed: int = 0) -> bool:
    """Print what it is worth that jobs change their width by the hour."""
    signal = curve(zone)
    jobs, nodes = queue(200, load, signal.start, seed=seed)
    # Jobs that could change it: they may be stopped anywhere, and start at no cost.
    some = np.arange(len(jobs)) % 2 == 0
    watts = jobs.energy_j / jobs.run_s
    flat = replace(
        jobs,
        profile=np.where(some, -1, jobs.profile),
        power=np.where(some, watts, jobs.power),
        interruptible=np.where(some, 1, jobs.interruptible),
    )
    cluster = lt.Cluster(nodes=nodes, cpus_per_node=1)
    clock = process_time()
    wide = plan_elastic(
        flat, cluster, signal, elastic=_CURVE, wait=0, gap=0.002, seconds=0.9 * _ELASTIC_S
    )
    took_s = process_time() - clock
    one = lt.plan_cluster(flat, cluster, signal, wait=0, gap=0.002, effort=0.2)
    gap = np.inf if wide.gap_g is None else wide.gap_g
    print(
        f"{zone:<12}{len(jobs):>8,} jobs {load:>4.0%} {nodes:>6,} nodes, {wide.changing.size} "
        f"change their width: gap {gap:.3%} (wanted {_ELASTIC:.1%}) in {took_s:.1f} s (wanted "
        f"{_ELASTIC_S:g}); {1 - wide.amount / one.amount:.2%} less than at one width, of which "
        f"{1 - wide.lower_bound_g / one.amount:.2%} is possible; late {wide.late.size}",
        flush=True,
    )
    return gap <= _ELASTIC and took_s <= _ELASTIC_S


def breaking_line(zone: str, load: float, *, seed: int = 0) -> bool:
    """Print how many deadlines that EASY meets are missed online where nodes break down."""
    signal = curve(zone)
    jobs, nodes = queue(1_000, load, signal.start, seed=seed)
    rng = np.random.default_rng(seed)
    # Users ask for up to twice as long as it takes, as far as that lets them be in time.
    asked_s = np.minimum(jobs.run_s * rng.uniform(1, 2, len(jobs)), jobs.deadline - jobs.arrival)
    jobs = replace(jobs, requested_s=np.maximum(asked_s, jobs.run_s))
    begin = signal.start
    cluster = lt.Cluster(
        nodes=nodes,
        cpus_per_node=1,
        away=[(begin + 50 * HOUR, begin + 62 * HOUR, max(nodes // 10, 1))],
        failures=Failures(every_s=30 * 24 * HOUR, repair_s=4 * HOUR, seed=seed),
    )
    text, missed = f"{zone:<12}{len(jobs):>8,} jobs {load:>4.0%} {nodes:>6,} nodes", {}
    amounts = {}
    for name, policy in (("EASY", "run_now"), ("online", ClusterPolicy())):
        ran = lt.simulate(
            jobs,
            signal,
            policy=policy,
            cluster=cluster,
            discipline="easy",
            baseline=None,
            repeat_signal=True,
        )
        missed[name], amounts[name] = ran.missed, float(ran.tally.amount.sum())
        hit = np.count_nonzero(np.bincount(ran.stretches.job, weights=ran.stretches.lost_s) > 1)
        text += f"; {name} late {np.count_nonzero(ran.missed)}, {hit} jobs lost work"
    extra = int(np.count_nonzero(missed["online"] & ~missed["EASY"]))
    text += f"; late that EASY has in time {extra} (wanted 0); saves "
    print(text + f"{1 - amounts['online'] / amounts['EASY']:.1%}", flush=True)
    return extra == 0


def referee_line() -> bool:
    """Print how many plans of fuzzed clusters the simulator could not carry out."""
    clock, wrong, refused = process_time(), 0, 0
    grid = curve("DE")
    for seed in range(_FUZZED):
        rng = np.random.default_rng([seed, 71])
        count, begin = int(rng.integers(4, 20)), grid.start
        jobs, nodes = queue(count, 0.6, begin, seed=seed, days=1)
        hours = rng.integers(0, 30, 2)
        few = lt.Signal.from_values(
            rng.integers(max(nodes // 2, 1), nodes + 1, 90), start=begin, step_s=HOUR, kind="nodes"
        )
        cluster = lt.Cluster(
            nodes=nodes,
            cpus_per_node=1,
            idle_power_w=float(rng.choice([0.0, 80.0])),
            off_after_s=float(rng.choice([600.0, 7200.0])) if seed % 3 == 0 else None,
            boot_s=120.0 if seed % 3 == 0 else 0.0,
            boot_j=9e3 if seed % 3 == 0 else 0.0,
            away=[(begin + a * HOUR, begin + (a + 3) * HOUR, 1) for a in hours]
            if nodes > 1
            else (),
            capacity=few if seed % 4 == 1 else None,
        )
        if seed % 2:
            gpus = rng.choice([1, 2, 4, 8], count).astype(float)
            jobs = replace(jobs, gpus=gpus, cpus=np.ones(count), nodes=np.ones(count))
            cluster = replace(cluster, cpus_per_node=64, gpus_per_node=8)
        cap_w = None
        if seed % 5 == 2:
            idle_w = cluster.nodes * cluster.idle_power_w
            cap_w = idle_w + float(jobs.peak_w.max() + cluster.idle_power_w) * 1.5
        try:
            plan = lt.plan_cluster(
                jobs, cluster, grid, power_cap=cap_w, effort=0.005, compare=False
            )
            wrong += plan.lower_bound_g > plan.amount * (1 + 1e-9)
        except Infeasible:
            # Somebody could not be in time even if it were alone.
            refused += 1
        except InvalidSchedule as error:
            wrong += 1
            print(f"seed {seed}: {error}")
    took_s = process_time() - clock
    print(
        f"{_FUZZED:,} fuzzed clusters: {wrong} plans that the machines cannot run (wanted 0), "
        f"{refused} refused as somebody could never be in time; {took_s:.0f} s",
        flush=True,
    )
    return not wrong
