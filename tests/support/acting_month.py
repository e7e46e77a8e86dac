"""A month of jobs that are looked after, with all that goes wrong: what it saves, and what is late.

Every miss is given a cause. What the queue, a failed node or a controller that was down took cannot
be promised; anything else is a fault of ours.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lowtide.accounting import integrate
from lowtide.acting.backend import PENDING, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.judge import Situation, judge
from lowtide.acting.promise import Loops
from lowtide.acting.tag import Tag, decode, encode
from lowtide.acting.waits import WaitModel
from lowtide.signal import Signal
from support.simulated_queue import Faults, SimulatedBackend, SimulatedJob

HOUR_S = 3600.0
DAYS = 30
_POWER_W = 1000.0
_STARTUP_S, _STOP_S = 300.0, 60.0
# How long the queue takes where it takes any time: in the middle, how far it spreads, at most.
_MEDIAN_S, _SPREAD, _LONGEST_S = 1500.0, 1.3, 20 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """What a month is like.

    Attributes:
        seed: Of jobs, waits and faults.
        jobs: How many are submitted.
        margin_s: W, as it is said to be.
        waits: The share of starts that have to wait in the queue.
        faults: What goes wrong.
        dead: When no driver lives, seconds after the beginning; each that follows knows nothing.
        foretold: Whether there are forecasts.
        deaf: The share of jobs that do not hear that they are asked to stop.
        defers: Whether jobs are deferred at all.
        turn_s: Time between two turns of the driver.
    """

    seed: int = 0
    jobs: int = 600
    margin_s: float = 6 * HOUR_S
    waits: float = 0.3
    faults: Faults = field(default_factory=Faults)
    dead: Sequence[tuple[float, float]] = ()
    foretold: bool = True
    deaf: float = 0.0
    defers: bool = True
    turn_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthOutcome:
    """What became of a month.

    Attributes:
        jobs: How many jobs there were.
        missed: How many were not done in time, by cause: `queue`, `node`, `outage` or `driver`.
        carbon_g: What all emitted.
        at_once_g: What they would have, each started on arrival without any wait.
        starts: How often jobs were started.
    """

    jobs: int
    missed: Counter[str]
    carbon_g: float
    at_once_g: float
    starts: int

    @property
    def change(self) -> float:
        """By what share more was emitted than at once; below 0 where some was saved."""
        return self.carbon_g / self.at_once_g - 1.0


def all_faults(seed: int) -> tuple[Faults, float]:
    """Return the faults of a bad month, and the share of deaf jobs."""
    source = random.Random(seed)
    begins = sorted(source.uniform(0, DAYS * 86_400.0) for _ in range(6))
    outages = [(begin, begin + source.uniform(300.0, 7200.0)) for begin in begins]
    return Faults(lost=0.02, fails_every_s=400 * HOUR_S, outages=outages), 0.05


def live(month: Month, signal: Signal) -> MonthOutcome:
    """Let a month pass.

    Args:
        signal: What a kWh emits, for the month and two weeks beyond.
    """
    source = random.Random(month.seed)
    start = signal.start
    backend = SimulatedBackend(
        clock=start,
        seed=month.seed + 1,
        wait_s=lambda drawn: _wait_s(drawn, month.waits),
        faults=replace(
            month.faults, outages=[(start + a, start + b) for a, b in month.faults.outages]
        ),
    )
    arrivals = sorted(source.uniform(0, DAYS * 86_400.0) for _ in range(month.jobs))
    known = signal if month.foretold and month.defers else None
    driver: Driver | None = None
    clock, end = 0.0, (DAYS + 10) * 86_400.0
    deadlines: dict[str, float] = {}
    at_once_g = 0.0
    while clock < end:
        dead = not month.defers or any(a <= clock < b for a, b in month.dead)
        if dead:
            driver = None
        else:
            # One that is started anew knows nothing of what was before.
            driver = driver or _driver(backend, known, month)
            driver.turn()
        clock += month.turn_s
        while arrivals and arrivals[0] < clock:
            backend.advance(start + arrivals.pop(0))
            # Who would stop it lives or does not: that is seen when it is handed in.
            powers = frozenset(() if dead else ("stop",))
            number, deadline, alone_g = _submit(backend, known, month, source, signal, powers)
            deadlines[number] = deadline
            at_once_g += alone_g
        backend.advance(start + clock)
    missed = Counter(
        _cause(backend.jobs[number], deadline, month, backend)
        for number, deadline in deadlines.items()
        if (backend.jobs[number].ended or np.inf) > deadline + 1.0
    )
    jobs = [backend.jobs[number] for number in deadlines]
    return MonthOutcome(
        jobs=month.jobs,
        missed=missed,
        carbon_g=sum(_grams(job, signal) for job in jobs),
        at_once_g=at_once_g,
        starts=sum(len(job.runs) for job in jobs),
    )


def _driver(backend: SimulatedBackend, known: Signal | None, month: Month) -> Driver:
    model = WaitModel(unknown_s=month.margin_s)
    return Driver(backend=backend, forecast=lambda _: known, waits=model)


def _submit(
    backend: SimulatedBackend,
    known: Signal | None,
    month: Month,
    source: random.Random,
    signal: Signal,
    powers: frozenset[str],
) -> tuple[str, float, float]:
    """Submit one job; return its number, its deadline and what it would emit at once."""
    now = backend.clock
    work_s = source.uniform(1.0, 8.0) * HOUR_S
    # From its arrival to its deadline: the run lies within.
    window_s = source.uniform(8.0, 30.0) * HOUR_S
    saves, deaf = source.random() < 0.5, source.random() < month.deaf
    run_s = work_s + _STARTUP_S
    tag = Tag(
        token=f"m{len(backend.jobs)}",
        deadline=now + max(window_s, run_s),
        arrival=now,
        run_s=run_s,
        startup_s=_STARTUP_S,
        stop_s=_STOP_S,
        wait_s=month.margin_s,
        interruptible=saves,
    )
    seen = Seen(id="", state=PENDING, comment=encode(tag))
    situation = Situation(now=now, signal=known, wait_s=lambda *_: month.margin_s, powers=powers)
    verdict = judge(seen, situation)
    for move in verdict.moves if verdict else ():
        seen = replace(seen, comment=move.comment or seen.comment, begin=move.at)
    job = SimulatedJob(
        seen=seen, work_s=work_s, startup_s=_STARTUP_S, stop_s=_STOP_S, saves=saves, deaf=deaf
    )
    alone = integrate(_POWER_W, np.array([now]), np.array([now + run_s]), signal)
    return backend.submit(job), tag.deadline, float(alone[0])


def _wait_s(source: random.Random, share: float) -> float:
    waits, drawn = source.random() < share, source.lognormvariate(np.log(_MEDIAN_S), _SPREAD)
    return min(drawn, _LONGEST_S) if waits else 0.0


def _cause(job: SimulatedJob, deadline: float, month: Month, backend: SimulatedBackend) -> str:
    """Return what kept a job from being done in time."""
    if job.failures:
        return "node"
    tag, _ = decode(job.seen.comment)
    # Whose deadline left less room than the margin was promised nothing.
    room_s = 0.0 if tag is None else tag.deadline - tag.arrival - tag.run_s
    if job.longest_wait_s > min(month.margin_s, room_s):
        return "queue"
    late_s = (job.ended or np.inf) - deadline
    down_s = sum(end - begin for begin, end in backend.faults.outages)
    return "outage" if late_s <= down_s and down_s > Loops().spare_s else "driver"


def _grams(job: SimulatedJob, signal: Signal) -> float:
    begin = np.array([run.start for run in job.runs])
    worked_s = np.array([run.work_s + run.lost_s for run in job.runs])
    stops_s = np.array([_STOP_S] * (len(job.runs) - 1) + [0.0])
    return float(integrate(_POWER_W, begin, begin + _STARTUP_S + worked_s + stops_s, signal).sum())
