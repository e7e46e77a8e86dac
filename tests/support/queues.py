"""Small queues drawn at random, and slow but obvious ways to plan them together."""

from __future__ import annotations

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from lowtide.accounting import Stretches, footprint
from lowtide.job import INTERRUPTIBLE, Job, Resources
from lowtide.market.instance import Instance, make_instance
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import Signal
from lowtide.simulator import Cluster
from lowtide.workload import Workload

STEP_S = 3600.0


def draw_job(
    rng: np.random.Generator, name: str, *, real=False, most=4, widest=3, plain=False
) -> Job:
    """Return a job of a few hours, with any mix of rules; `real` ones keep to no steps."""

    def length(low, high):
        hours = rng.uniform(low + 0.1, high) if real else rng.integers(max(low, 1), high + 1)
        return float(hours) * STEP_S

    kind = str(rng.choice(INTERRUPTIBLE))
    work = [
        Phase(
            name=f"w{number}",
            duration_s=length(0, 2),
            power_w=float(rng.integers(100, 900)),
            checkpoint=bool(rng.random() < 0.7),
        )
        for number in range(int(rng.integers(1, most)))
    ]
    startup = [Phase(name="up", duration_s=length(0, 1), power_w=150.0)] * int(rng.integers(0, 2))
    restart = None
    if rng.random() < 0.3:
        restart = [Phase(name="load", duration_s=length(0, 1), power_w=90.0)]
        restart *= int(rng.integers(0, 3))
    stop = []
    if kind != "never" and not plain and rng.random() < 0.3:
        stop = [Phase(name="save", duration_s=length(0, 1), power_w=80.0)]
    profile = PowerProfile(
        startup=startup,
        restart=restart,
        work=work,
        stop=stop,
        suspended_power_w=float(rng.choice([0.0, 0.0, 20.0])),
    )
    arrival = float(rng.integers(0, 5)) * STEP_S + (rng.uniform(0, STEP_S) if real else 0.0)
    slack_s = float(rng.integers(0, 6)) * STEP_S + (rng.uniform(0, STEP_S) if real else 0.0)
    min_run_s = 0.0
    if kind != "never" and not plain and rng.random() < 0.3:
        min_run_s = min(float(rng.integers(1, 3)) * STEP_S, profile.work_s)
    nodes = int(rng.integers(1, widest + 1))
    return Job(
        id=name,
        arrival=arrival,
        deadline=arrival + profile.run_s + slack_s,
        profile=profile,
        interruptible=kind,
        max_starts=None if plain or rng.random() < 0.6 else int(rng.integers(1, 4)),
        min_run_s=min_run_s,
        resources=Resources(cpus=nodes, nodes=nodes),
    )


def draw_signal(rng: np.random.Generator, hours: int = 40) -> Signal:
    return Signal.from_values(rng.integers(20, 600, hours), start=0, step_s=STEP_S)


def draw_instance(rng: np.random.Generator, count: int, nodes: int, **how) -> Instance:
    """Return a queue on a few nodes that nobody shares."""
    wait = float(rng.choice([0.0, 0.002]))
    step_s = how.pop("step_s", STEP_S)
    jobs = [draw_job(rng, f"j{number}", **how) for number in range(count)]
    return make_instance(
        Workload.from_jobs(jobs),
        Cluster(nodes=nodes, cpus_per_node=1),
        draw_signal(rng),
        step_s=step_s,
        wait=wait,
    )


def every_way(instance: Instance, row: int, *, finer: int | None = None) -> list[list[Stretch]]:
    """Return every way to run a job that starts and stops on slots, each with at least one.

    With `finer` on so many times as many moments, from its arrival on.
    """
    job, step_s = instance.jobs.job(row), instance.step_s / (finer or 1)
    cut_s = step_s if finer else step_s * instance.cut
    profile, found = job.profile, []
    work_s, up_s, again_s = profile.work_s, profile.startup_s, profile.restart_s
    if job.interruptible == "anywhere":
        points = [cut_s * n for n in range(1, int(np.ceil(work_s / cut_s - 1e-9)))]
    elif job.interruptible == "checkpoints":
        points = [each for each in profile.checkpoints_s if each < work_s - 1e-6]
    else:
        points = []
    limit = 1 if job.interruptible == "never" else job.max_starts or 10**6
    base = float(instance.window[0][row] if finer else instance.base[row])

    def go_on(done_s, free, runs):
        if len(runs) == limit:
            return
        delay = 0
        while True:
            # Work lies on the slots, and each start as long before it as it takes.
            lead_s = again_s if runs else up_s
            start = base + up_s - lead_s + done_s + delay * step_s
            if start + lead_s + (work_s - done_s) > instance.window[1][row] + 1e-6:
                return
            delay += 1
            if start < free - 1e-6:
                continue
            for until_s in [*(p for p in points if p > done_s + 1e-6), work_s]:
                if until_s - done_s < job.min_run_s - 1e-6:
                    continue
                run = Stretch(start=start, work_s=until_s - done_s)
                if until_s == work_s:
                    found.append([*runs, run])
                else:
                    end = start + lead_s + run.work_s
                    go_on(until_s, end + profile.stop_s, [*runs, run])

    go_on(0.0, -np.inf, [])
    return [way for way in found if _is_stopped(way, up_s, again_s, profile.stop_s)]


def _is_stopped(way, up_s, again_s, stop_s) -> bool:
    """Return whether every start but the first follows a pause, or takes a restart of its own."""
    if again_s + stop_s > 0:
        return True
    lead_s = [up_s] + [again_s] * (len(way) - 1)
    ends = [each.start + lead + each.work_s for each, lead in zip(way, lead_s, strict=True)]
    return all(b.start > end + 1e-6 for end, b in zip(ends, way[1:], strict=False))


def amount(instance: Instance, row: int, way: list[Stretch]) -> float:
    """Return what a way counts, by the one accounting."""
    job = instance.jobs.job(row)
    schedule = Schedule.from_stretches(job, way)
    waited_s = schedule.end - job.arrival - job.profile.run_s
    paid = footprint(schedule, job, instance.signal, pue=instance.cluster.pue)
    return paid.amount + float(instance.wait[row]) * waited_s


def held(instance: Instance, row: int, way: list[Stretch]) -> list[tuple[float, float]]:
    """Return from when to when a way holds its nodes."""
    profile = instance.jobs.job(row).profile
    spans = []
    for number, run in enumerate(way):
        last = number == len(way) - 1
        stop_s = 0.0 if last else profile.stop_s
        lead_s = profile.starting_s(number)
        spans.append((run.start, run.start + lead_s + run.work_s + stop_s))
    return spans


def use(instance: Instance, row: int, way: list[Stretch]) -> np.ndarray:
    """Return how much of each slot a way holds, for one unit."""
    edges = instance.edges
    total = np.zeros(instance.slots)
    for begin, end in held(instance, row, way):
        total += np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
    return total / instance.step_s


def best_together(instance: Instance, ways=None, *, leave=None) -> float:
    """Return the least that a queue can count, every way of every job at hand (HiGHS)."""
    ways = ways or [every_way(instance, row) for row in range(len(instance))]
    costs, rows, columns, values = [], [], [], []
    slots, count = instance.slots, len(instance)
    need = instance.queue.need[:, 0]
    for row in range(count):
        out = instance.queue.jobs["leave"][row] if leave is None else leave
        for way in [None, *ways[row]]:
            column = len(costs)
            rows.append(row)
            columns.append(column)
            values.append(1.0)
            costs.append(
                out if way is None else amount(instance, row, way) if leave is None else 0.0
            )
            if way is not None:
                # As a plan counts it: a slot that is touched is held.
                touched = np.ceil(use(instance, row, way) - 1e-7)
                at = np.flatnonzero(touched)
                rows.extend(count + at)
                columns.extend([column] * at.size)
                values.extend(need[row] * touched[at])
    # Whoever waits for another runs only beside ways of it that are over by then.
    first = np.cumsum([0, *(1 + len(each) for each in ways)])
    more, links = 0, instance.links
    for a, b, gap_s in zip(links.before, links.after, links.gap_s, strict=True):
        for place, way in enumerate(ways[b]):
            row = count + slots + more
            over = [
                first[a] + 1 + other
                for other, each in enumerate(ways[a])
                if held(instance, a, each)[-1][1] + gap_s <= way[0].start + 1e-6
            ]
            rows.extend([row] * (1 + len(over)))
            columns.extend([first[b] + 1 + place, *over])
            values.extend([1.0] + [-1.0] * len(over))
            more += 1
    matrix = coo_array((values, (rows, columns)), shape=(count + slots + more, len(costs)))
    low = np.concatenate((np.ones(count), np.full(slots + more, -np.inf)))
    high = np.concatenate((np.ones(count), instance.room[0], np.zeros(more)))
    solved = milp(
        np.array(costs),
        integrality=np.ones(len(costs)),
        bounds=(0, 1),
        constraints=LinearConstraint(matrix.tocsr(), low, high),
        options={"mip_rel_gap": 0.0},
    )
    assert solved.success, solved.message
    return float(solved.fun)


def stretches_of(ways: list[list[Stretch]]) -> Stretches:
    """Return ways of all jobs in columns."""
    rows = [(row, run) for row, way in enumerate(ways) for run in way]
    return Stretches(
        job=np.array([row for row, _ in rows]),
        start=np.array([run.start for _, run in rows]),
        work_s=np.array([run.work_s for _, run in rows]),
        lost_s=np.zeros(len(rows)),
    )
