"""Queues to plan: jobs of a published trace's week, or drawn alike, and a grid to plan them on."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np

import lowtide as lt
from lowtide.market.stand_ins import joined
from lowtide.signal import Signal
from lowtide.workload import Workload

HOUR = 3600.0
DAYS, TAIL_H = 7, 72
MONDAY = "2022-05-02T00:00Z"


def folder() -> Path:
    """Return where the real data are."""
    return Path(os.environ.get("LOWTIDE_DATA", "../shared/data"))


def curve(zone: str, begin: str = MONDAY) -> Signal:
    """A week of a real grid and three days to finish in; a synthetic one where there is none."""
    path = folder() / "carbon" / f"{zone}.csv"
    if not path.exists():
        kind = "sunny" if zone != "DE" else "windy"
        return lt.synthetic_grid(kind, start=begin, days=DAYS + 14, seed=1).average
    return lt.read_signal(path).window(begin, f"+{DAYS * 24 + 14 * 24}h")


def shapes(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hours after Monday, lengths in seconds and CPUs of so many jobs."""
    path = folder() / "traces" / "pai-100k_seconds.csv.gz"
    if not path.exists():
        return (
            rng.uniform(0, 24 * DAYS, count),
            np.clip(rng.lognormal(np.log(5400), 1.0, count), 1800, 86400),
            rng.choice([1, 2, 4, 8, 16], count).astype(float),
        )
    trace = lt.read_jobs(path)
    good = np.flatnonzero((trace.length_s >= 0.5 * HOUR) & (trace.length_s <= 24 * HOUR))
    pick = np.sort(rng.choice(good, count, replace=count > good.size))
    after_h = (trace.arrival[pick] - trace.arrival.min()) % (DAYS * 86400) / HOUR
    return after_h, trace.length_s[pick], trace.column("cpus")[pick]


def queue(
    count: int, load: float, begin: float, *, seed: int = 0, step_h: float = 1.0, days: int = DAYS
) -> tuple[Workload, int]:
    """Return jobs, and on how many nodes they make up a load.

    Args:
        step_h: What lengths and arrivals are rounded to; 0 for seconds.
    """
    rng = np.random.default_rng(seed)
    after_h, length_s, cpus = shapes(count, rng)
    after_h = after_h * days / DAYS
    step_h = step_h or 1 / 3600
    steps = np.maximum(np.round(length_s / HOUR / step_h), 1).astype(int)
    widths = np.array([1, 2, 4, 8, 16])
    width = widths[np.minimum(np.searchsorted(widths, cpus), widths.size - 1)].astype(float)
    kind = rng.choice(3, count, p=[0.4, 0.3, 0.3])
    slack_h = rng.choice([3, 6, 24, 48], count, p=[0.2, 0.3, 0.35, 0.15])
    kw = rng.uniform(0.25, 0.7, count)
    starts_up = (steps * step_h >= 3) & ((kind > 0) | (rng.random(count) < 0.3))
    need = float((width * (steps * step_h + starts_up)).sum())
    nodes = max(int(np.ceil(need / (24 * days * load))), 1)
    width = np.minimum(width, max(nodes // 4, 1))
    need = float((width * (steps * step_h + starts_up)).sum())
    nodes = max(int(np.ceil(need / (24 * days * load))), int(width.max()))
    profiles = []
    for row in range(count):
        watts = 1000 * kw[row] * width[row]
        up = [lt.Phase(name="up", duration_s=HOUR, power_w=0.4 * watts)] * bool(starts_up[row])
        whole_s = float(steps[row]) * step_h * HOUR
        if kind[row] == 2:
            every_s = float(rng.integers(1, 5)) * HOUR
            cuts = [*np.arange(0.0, whole_s, every_s), whole_s]
            work = [
                lt.Phase(
                    name=f"w{number}",
                    duration_s=b - a,
                    power_w=watts * float(rng.uniform(0.75, 1.25)),
                    checkpoint=True,
                )
                for number, (a, b) in enumerate(pairwise(cuts))
            ]
        elif rng.random() < 0.5 and steps[row] > 1:
            half_s = float(steps[row] // 2) * step_h * HOUR
            work = [
                lt.Phase(name="first", duration_s=half_s, power_w=1.2 * watts),
                lt.Phase(name="second", duration_s=whole_s - half_s, power_w=0.7 * watts),
            ]
        else:
            work = [lt.Phase(name="work", duration_s=whole_s, power_w=watts)]
        profiles.append(lt.PowerProfile(startup=up, work=work))
    arrival = begin + np.floor(after_h / step_h + 1e-6) * step_h * HOUR
    run_s = np.array([each.run_s for each in profiles])
    end = begin + (24 * DAYS + TAIL_H) * HOUR
    # 0 is never, 1 anywhere, 2 checkpoints, as in `job.INTERRUPTIBLE`.
    jobs = Workload(
        arrival=arrival,
        deadline=np.maximum(np.minimum(arrival + run_s + slack_h * HOUR, end), arrival + run_s),
        profile=np.arange(count),
        profiles=profiles,
        interruptible=kind,
        cpus=width,
        nodes=width,
        user=rng.integers(0, 40, count).astype(str),
    )
    return jobs, nodes


def earlier_weeks(count: int, load: float, begin: float, *, weeks: int, seed: int) -> Workload:
    """Return the jobs of so many weeks before an instant, each week drawn by itself."""
    drawn = []
    for number in range(1, weeks + 1):
        # Numbers that no queue is drawn with.
        own = 1_000_000 + 1000 * seed + number
        jobs, _ = queue(count, load, begin, seed=own)
        ago_s = number * DAYS * 24 * HOUR
        drawn.append(replace(jobs, arrival=jobs.arrival - ago_s, deadline=jobs.deadline - ago_s))
    return reduce(joined, reversed(drawn))
