"""The queue planned again at every step, by somebody who knows no job before it arrives.

Each time the jobs that are there are planned together, from the last prices; what is decided is
the time up to the next step, or to the moment at which a node breaks down. A job that runs goes on,
or is stopped where its rules allow. Jobs that can no longer be in time are given as little more
time as lets them be placed, and hurry. Jobs of another time, such as yesterday's, stand for those
that will yet come: room is left for them, at what they would emit in the dirtiest hour, and they
never run. What was planned the last time is where the next plan begins, if what it
comes to is less than that of a new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.forecast import ForecastModel
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.market.instance import Instance, make_instance
from lowtide.market.last_plan import LastPlan
from lowtide.market.layout import Standing
from lowtide.market.placing import Board, improve, rebuilt, urgency
from lowtide.market.prices import Auction, Prices
from lowtide.market.stand_ins import DAY_S, HELD, joined, those_of_another_time, those_of_history
from lowtide.policies.exact import Exact
from lowtide.policies.policy import Decision
from lowtide.precedence import in_order, links_of
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.events import QueueEvent
from lowtide.simulator.outages import Away
from lowtide.simulator.queueing import Queued
from lowtide.simulator.scheduling import QueueView
from lowtide.simulator.serving import run_scheduler
from lowtide.simulator.simulation import reaching
from lowtide.units import JOULES_PER_KWH, DurationLike, parse_duration
from lowtide.workload import IntArray, Workload

# How often prices are tried, from those of the last plan and where somebody found no place; how
# many steps are searched, and by which share of what jobs cost a plan may be worse that is kept.
_PASSES, _FEW_PASSES = 60, 3
_STEPS = 1500
_HEAT = 0.01
# An hour of delay of a late job counts as this share of what it would emit in the dirtiest hours:
# much more would take room from those who can still be in time.
_HURRY = 0.1
# So many times as long is searched where somebody found no place.
_LONGER = 5
# Leaving a stand-in without room counts so many times what it would emit in the dirtiest hour.
_REFUSED = 1.0
# How much later, in steps, a job may be that found no place, and how often that is doubled.
_LATER = 2
_TRIES = 14


class _Run(NamedTuple):
    """A run that was planned: from when, how much work, and whether it is one under way."""

    begin: float
    work_s: float
    goes_on: bool


@dataclass(slots=True)
class _Live:
    """A job that has arrived, and where it stands."""

    row: int
    job: Job
    deadline: float
    done_s: float = 0.0
    ran_s: float = 0.0
    starting_s: float = 0.0
    running: bool = False
    starts: int = 0
    held_until: float = -math.inf
    done_at: float = math.inf
    is_new: bool = True

    def rest(self) -> PowerProfile:
        """Return what is left of it; a startup that is under way is part of that."""
        profile = self.job.profile
        work: list[Phase] = []
        if self.running:
            before = self.starts - 1
            done_s = profile.starting_s(before) - self.starting_s
            work += _from(profile.starting(before), done_s)
        work += _from(profile.work, self.done_s)
        return replace(profile, work=tuple(work))


def _from(phases: tuple[Phase, ...], done_s: float) -> list[Phase]:
    """Return what is left of phases when so much of them is done."""
    left, at = [], 0.0
    for phase in phases:
        rest_s = at + phase.duration_s - max(done_s, at)
        if rest_s > TIME_TOLERANCE_S:
            left.append(replace(phase, duration_s=rest_s))
        at += phase.duration_s
    return left


@dataclass(frozen=True, kw_only=True)
class ClusterPolicy:
    """Plan the queue together, again and again, knowing no job before it arrives.

    How long a job runs it goes by what its user requested.

    Attributes:
        step_s: How often to plan; by default at every step of the signal.
        wait: What an hour of delay counts, as a share of what an hour of a job does.
        stand_ins: Who stands for jobs that will yet come: `history`, those of the last day, or of
            as much of it as has passed, which come again and again; or `none`.
        phantoms: Others that do, such as those of the last weeks: jobs of weeks before the first
            job come again at the same hours of the week, each for a part of one where there are
            several weeks; others at their own times. None for none.
        horizon_s: How far ahead they are looked at.
        forecasts: What is foreseen of the signal at each step; None for all of it.
        effort: How long to search each time, 1 for as long as usual.
        seed: What is drawn by chance.
        risk: Where nodes break down: a job that is hit with a greater chance than this keeps, if it
            can, as much time before its deadline as doing again what it would lose takes.
    """

    stops_jobs: ClassVar[bool] = True
    minds_failures: ClassVar[bool] = True
    step_s: DurationLike | None = None
    wait: float = 0.005
    stand_ins: str = "history"
    phantoms: Workload | None = None
    horizon_s: DurationLike = "4d"
    forecasts: ForecastModel | None = None
    effort: float = 1.0
    seed: int = 0
    risk: float = 0.01

    def __post_init__(self) -> None:
        if self.stand_ins not in ("history", "none"):
            raise InvalidInput(f"stand_ins are of 'history' or 'none', not {self.stand_ins!r}")

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for a job that has the machines to itself: to the optimum."""
        return Exact().decide(job, signal)

    def decide_queue(self, jobs: Workload, signal: Signal, cluster: Cluster) -> Queued:
        """Decide for all jobs of a queue, each from its arrival on, and lay them on the machines.

        Args:
            jobs: The jobs, each known from its arrival on.
            signal: What a kWh counts.
            cluster: The machines.
        """
        step_s = signal.step_s if self.step_s is None else parse_duration(self.step_s)
        return run_scheduler(jobs, cluster, Replanning(self, jobs, signal, cluster, step_s))


class Replanning:
    """A queue over time, planned again at every step: a scheduler that carries its plans out."""

    def __init__(
        self, policy: ClusterPolicy, jobs: Workload, signal: Signal, cluster: Cluster, step_s: float
    ) -> None:
        self.policy, self.jobs, self.signal, self.cluster = policy, jobs, signal, cluster
        self.step_s = step_s
        self.links = links_of(jobs)
        self.begun = float(jobs.arrival[0]) if len(jobs) else 0.0
        self.known: dict[int, _Live] = {}
        self.live: list[_Live] = []
        self.broken: tuple[Away, ...] = ()
        self._until = self._seen = -math.inf
        self._due: list[tuple[float, int, bool]] = []
        self.prices: tuple[float, Prices] | None = None
        self.last: LastPlan | None = None
        mean = float(np.abs(signal.values).mean())
        self.wait = policy.wait * mean * jobs.energy_j / jobs.run_s / JOULES_PER_KWH
        dearest = float(np.abs(signal.values).max()) * cluster.pue
        whole_g = dearest * np.maximum(jobs.peak_w, 1e-3) * jobs.run_s / JOULES_PER_KWH
        self.hurry = _HURRY * whole_g / 3600
        self.spare_s = _spare_s(jobs, cluster, policy.risk)

    def on(self, event: QueueEvent, view: QueueView) -> None:
        """Plan what is there where it is time to, and carry out what was planned."""
        now = view.now
        if event.kind == "down":
            self._until = -math.inf
        elif now <= self._seen:
            # All of an instant has happened before the first event of it is told.
            return
        self._seen = now
        self._look(view)
        if now >= self._until - TIME_TOLERANCE_S or self._cannot_wait():
            self._replan(view)
        self._carry_out(view)

    def _cannot_wait(self) -> bool:
        """Return whether somebody has come who would be late if planned at the next step."""
        latest = self.jobs.latest_start
        return any(each.is_new and latest[each.row] < self._until for each in self.live)

    def _look(self, view: QueueView) -> None:
        """Take note of who is there, and where each stands."""
        now, before = view.now, len(self.known)
        self._meet(now)
        queue, stopping = set(view.queue), view.stopping
        for each in self.live:
            row = each.row
            run = view.running.get(row)
            each.is_new = each.is_new or row >= before
            each.starts, each.done_s = view.starts(row), view.done_s(row)
            each.running, each.ran_s, each.starting_s = run is not None, 0.0, 0.0
            each.held_until = stopping.get(row, -math.inf)
            if run is not None:
                worked_s = now - run.work_from
                each.ran_s, each.starting_s = max(worked_s, 0.0), max(-worked_s, 0.0)
                each.done_s += each.ran_s
            elif each.starts and row not in queue and row not in stopping:
                each.done_at = now
        self.live = [each for each in self.live if each.done_at > now]

    def _replan(self, view: QueueView) -> None:
        """Plan what is there, and note what is to be done up to the next step."""
        now = view.now
        self._due.clear()
        self._until = self._edge(now) + self.step_s
        if not self.live:
            return
        self.broken = tuple(Away(now, until, 1) for until in view.broken_nodes.values())
        for each, runs in zip(self.live, self._plan(now), strict=True):
            each.is_new = False
            if each.running and not (runs and runs[0].goes_on):
                self._due.append((now, each.row, False))
            starting_s = each.starting_s
            for number, run in enumerate(runs):
                if run.begin >= self._until - TIME_TOLERANCE_S:
                    break
                if not run.goes_on:
                    self._due.append((run.begin, each.row, True))
                    before = each.starts + number - runs[0].goes_on
                    starting_s = each.job.profile.starting_s(before)
                end = run.begin + starting_s + run.work_s
                starting_s = 0.0
                if number + 1 < len(runs) and end < self._until - TIME_TOLERANCE_S:
                    self._due.append((end, each.row, False))
        # Who is stopped makes way for those who start then.
        self._due.sort(key=lambda due: (due[0], due[2]))
        for when in {*(each[0] for each in self._due), self._until}:
            if when > now:
                view.wake(when)

    def _carry_out(self, view: QueueView) -> None:
        """Start and stop those whose time has come; who finds no room is tried again."""
        later: list[tuple[float, int, bool]] = []
        for when, row, starts in self._due:
            if when > view.now + TIME_TOLERANCE_S:
                later.append((when, row, starts))
            elif not starts:
                if row in view.running and view.may_stop(row):
                    view.stop(row)
            elif row not in view.running and not (row in view.queue and view.start(row)):
                later.append((when, row, starts))
        self._due = later

    def _meet(self, now: float) -> None:
        """Get to know the jobs that have arrived."""
        for row in range(len(self.known), len(self.jobs)):
            if self.jobs.arrival[row] > now + TIME_TOLERANCE_S:
                break
            job = self.jobs.job(row)
            self.known[row] = _Live(
                row=row, job=_as_requested(self.jobs, row), deadline=job.deadline
            )
            self.live.append(self.known[row])

    def _edge(self, instant: float) -> float:
        steps = math.floor((instant - self.signal.start) / self.step_s + 1e-9)
        return self.signal.start + steps * self.step_s

    def _plan(self, now: float) -> list[list[_Run]]:
        """Plan what is there, and return the runs of each."""
        for tries in range(_TRIES):
            instance, real = self._instance(now)
            auction = Auction(instance)
            auction.begin_with(self._last_prices(instance))
            for _ in range(_PASSES if tries == 0 else _FEW_PASSES):
                if not auction.advance():
                    break
            board = self._place(instance, auction, real)
            late = np.flatnonzero(~board.placed & real)
            if not late.size:
                break
            for place in late.tolist():
                own = self.live[int(instance.jobs.id[place])]
                own.deadline = max(own.deadline, now) + _LATER * self.step_s * 2.0**tries
        self.prices = (instance.origin, auction.prices)
        self.last = LastPlan(board, self._names(instance))
        found: list[list[_Run]] = [[] for _ in self.live]
        for place in np.flatnonzero(board.placed & real).tolist():
            number = int(instance.jobs.id[place])
            found[number] = _runs(instance, board, place, self.live[number])
        return found

    def _instance(self, now: float) -> tuple[Instance, npt.NDArray[np.bool_]]:
        """Return what is left of the queue from now on, and which of its jobs are real."""
        live, policy = self.live, self.policy
        ahead_s = parse_duration(policy.horizon_s)
        ghosts, each_for = (
            those_of_history(self.jobs, now, ahead_s, self.step_s, guessed=self._guessed())
            if policy.phantoms is None and policy.stand_ins == "history"
            else those_of_another_time(policy.phantoms, now, ahead_s, self.begun)
        )
        profiles = [each.rest() for each in live]
        running = np.array([each.running for each in live])
        waits = [self._waits_for(each, now) for each in live]
        arrival = np.array(
            [max(each.held_until, wait[0]) for each, wait in zip(live, waits, strict=True)]
        )
        due = np.array([each.deadline for each in live])
        kept_s = self.spare_s[[each.row for each in live]]
        work_s = np.array([each.work_s for each in profiles])
        rows = np.array([each.row for each in live])
        soonest = arrival + work_s + np.array([each.startup_s for each in profiles])
        due = np.where(kept_s > 0, np.minimum(due, np.maximum(due - kept_s, soonest)), due)
        left = np.array([_starts_left(each) for each in live])
        parts = [
            Workload(
                id=np.arange(len(live)),
                arrival=arrival,
                deadline=np.maximum(
                    due, arrival + work_s + np.array([each.startup_s for each in profiles])
                ),
                profile=np.arange(len(live)),
                profiles=profiles,
                interruptible=self.jobs.interruptible[rows],
                max_starts=left,
                min_run_s=np.minimum(self.jobs.min_run_s[rows], work_s),
                after=[wait[1] or None for wait in waits],
                think_s=self.jobs.think_s[rows],
                **{name: getattr(self.jobs, name)[rows] for name in HELD},
            )
        ]
        jobs = parts[0] if ghosts is None else joined(parts[0], ghosts)
        number = jobs.id.astype(np.int64)
        real = number >= 0
        count = len(jobs)

        def spread(values: list[Any], other: Any) -> Any:
            column = np.full(count, other)
            column[real] = np.array(values)[number[real]]
            return column

        standing = Standing(
            running=spread(running.tolist(), False),
            begun=spread([each.starts > 0 and not each.running for each in live], False),
            fixed_s=spread([_fixed_s(each, self.step_s) for each in live], 0.0),
            stops_now=spread([_may_stop(each) for each in live], False),
            deadline=np.where(real, spread(due.tolist(), 0.0), jobs.deadline),
        )
        late = np.array([each.deadline > each.job.deadline + TIME_TOLERANCE_S for each in live])
        own_wait = np.where(late, self.hurry[rows], self.wait[rows])
        wait = np.where(real, own_wait[np.maximum(number, 0)], 0.0)
        end = float(jobs.deadline.max())
        signal = reaching(self.signal, end, repeat=True)
        assert isinstance(signal, Signal)  # noqa: S101 - one signal remains one
        if self.policy.forecasts is not None:
            signal = self.policy.forecasts.forecast(signal, now, end - now).signal
        cluster = self.cluster
        if self.broken:
            cluster = replace(cluster, away=(*cluster.away, *self.broken))
        instance = make_instance(
            jobs, cluster, signal, step_s=self.step_s, wait=wait, standing=standing
        )
        if not real.all():
            # A job that may come is worth more than what it would emit in the dirtiest hour: had
            # it no room, it would be late.
            dearest = float(np.abs(np.diff(instance.energy)).max()) * 3600 / self.step_s
            rows = instance.queue.jobs
            worst = jobs.energy_j / JOULES_PER_KWH * dearest
            rows["leave"][~real] = _REFUSED * each_for * worst[~real]
            # One that stands for a part of a job, or for several, holds and emits as much.
            rows["weight"][~real] = each_for
            instance.queue.need[~real] *= each_for
        return instance, real

    def _guessed(self) -> dict[int, Job]:
        """Return those that are there and may be done sooner than their users said, as they said.

        Stand-ins of them are no shorter: nobody knows yet how long they run.
        """
        jobs, rows = self.jobs, [each.row for each in self.live]
        sooner = jobs.requested_s[rows] - jobs.run_s[rows] > TIME_TOLERANCE_S
        return {each.row: each.job for each, may in zip(self.live, sooner, strict=True) if may}

    def _waits_for(self, each: _Live, now: float) -> tuple[float, tuple[str, ...]]:
        """Return from when on a job can run, and whom of those that are there it waits for."""
        soonest, names = now, []
        if each.starts or not self.links.before.size:
            return soonest, ()
        for place in np.flatnonzero(self.links.after == each.row).tolist():
            other = self.known.get(int(self.links.before[place]))
            if other is None:
                # Somebody who is yet to come keeps it waiting for now.
                soonest = max(soonest, now + self.step_s)
            elif other.done_at < math.inf:
                soonest = max(soonest, other.done_at + float(self.links.gap_s[place]))
            else:
                names.append(str(self.live.index(other)))
        return soonest, tuple(names)

    def _last_prices(self, instance: Instance) -> Prices | None:
        """Return the last prices, moved to where this instance begins."""
        if self.prices is None:
            return None
        origin, prices = self.prices
        shift = round((instance.origin - origin) / instance.step_s)
        if prices.rent.shape[0] != len(instance.resources):
            return None
        # Beyond what was looked at then, a day is like the one before it.
        day = max(round(DAY_S / instance.step_s), 1)
        at = np.arange(instance.slots) + shift
        beyond = np.maximum(at - (prices.power.size - 1), 0)
        at -= np.minimum(day * np.ceil(beyond / day).astype(np.int64), at)
        return Prices(rent=prices.rent[:, at], power=prices.power[at])

    def _place(self, instance: Instance, auction: Auction, real: npt.NDArray[np.bool_]) -> Board:
        """Place those that must go on, then the others, then those that may come.

        No more of those that are there are left out than if all ran as soon as they can, by their
        arrivals or by their deadlines.
        """
        order = self._order(instance, urgency(instance), real)
        board = self._empty(instance).insert(order, auction.prices.tariff(instance))
        missing = int(np.count_nonzero(~board.placed & real))
        if missing:
            for key in (instance.jobs.arrival, instance.jobs.deadline):
                tried = self._at_once(instance, auction, self._order(instance, key, real), real)
                left = int(np.count_nonzero(~tried.placed & real))
                board, missing = (tried, left) if left < missing else (board, missing)
        again = self._as_before(instance, auction, real)
        if again is not None and again.total < board.total:
            board, missing = again, 0
        steps = round(_STEPS * self.policy.effort)
        if steps < 1 or len(instance) < 2:
            return board
        mean = float(np.abs(board.cost[board.placed]).mean()) if board.placed.any() else 1.0
        # Who found no place is worth looking longer for.
        steps *= _LONGER if missing else 1
        found = improve(
            auction,
            board,
            steps=steps,
            seed=self.policy.seed,
            is_enough=lambda _: False,
            heat=_HEAT * mean,
        )
        return found if np.count_nonzero(~found.placed & real) <= missing else board

    def _names(self, instance: Instance) -> IntArray:
        """Return what each job is known by from one plan to the next, stand-ins too."""
        number = instance.jobs.id.astype(np.int64)
        rows = np.array([each.row for each in self.live])
        return np.where(number >= 0, rows[np.maximum(number, 0)], number)

    def _as_before(
        self, instance: Instance, auction: Auction, real: npt.NDArray[np.bool_]
    ) -> Board | None:
        """Return a board on which jobs run as was planned last, and those that came are fitted in.

        Where stand-ins are in the way of somebody they are placed anew; None if that is no help.
        """
        if self.last is None:
            return None
        tariff = auction.prices.tariff(instance)
        order = self._order(instance, urgency(instance), real)
        delay, holds = self.last.delays(instance, self._names(instance))
        for kept in (holds, holds & real):
            board = self._empty(instance)
            board.delay[:], board.placed[:] = delay, kept
            if board.as_it_says(tariff).fits:
                board.insert(order[~kept[order]], tariff)
                if board.placed[real].all():
                    return board
        return None

    def _empty(self, instance: Instance) -> Board:
        """Return a board on which nothing is held but by stops that are under way."""
        board = Board.empty(instance)
        for number, each in enumerate(self.live):
            if each.held_until > instance.origin:
                last = math.ceil((each.held_until - instance.origin) / self.step_s - 1e-9)
                row = np.flatnonzero(instance.jobs.id == number)[0]
                board.room.free[:, :last] -= instance.queue.need[row][:, None]
        return board

    def _order(self, instance: Instance, key: Any, real: npt.NDArray[np.bool_]) -> IntArray:
        """Return who is placed first: those that must go on, that run, that are there, by a key."""
        rows, parts = instance.queue.jobs, instance.queue.parts
        must = rows["running"] & ~parts["stop"][rows["part"]]
        rank = np.empty(len(instance))
        rank[np.lexsort((key, ~rows["running"], ~must, ~real))] = np.arange(len(instance))
        return in_order(rank, instance.links)

    def _at_once(
        self, instance: Instance, auction: Auction, order: IntArray, real: npt.NDArray[np.bool_]
    ) -> Board:
        """Return a board on which all that are there run as soon as they can, in an order."""
        rows = instance.queue.jobs.copy()
        rows["weight"], rows["wait"] = 0.0, 1.0
        soon = replace(instance, queue=instance.queue._replace(jobs=rows))
        nothing = Prices.nothing(instance).tariff(instance)
        there = real[order]
        found = self._empty(soon).insert(order[there], nothing)
        told = rebuilt(instance, found.delay, found.placed, auction.prices)
        board = replace(told, room=found.room)
        return board.insert(order[~there], auction.prices.tariff(instance))


def _as_requested(jobs: Workload, row: int) -> Job:
    """Return a job as long as its user said it would run: how long it really does nobody knows."""
    job = jobs.job(row)
    more_s = float(jobs.requested_s[row] - jobs.run_s[row])
    if more_s <= TIME_TOLERANCE_S:
        return job
    last = job.profile.work[-1]
    longer = replace(last, duration_s=last.duration_s + more_s)
    profile = replace(job.profile, work=(*job.profile.work[:-1], longer))
    return replace(job, profile=profile, deadline=max(job.deadline, job.arrival + profile.run_s))


def _spare_s(jobs: Workload, cluster: Cluster, risk: float) -> FloatArray:
    """Return how much time each job keeps for doing again what a break-down takes from it."""
    spare_s = np.zeros(len(jobs))
    if cluster.failures is None:
        return spare_s
    hit = jobs.nodes * jobs.run_s / float(cluster.failures.every_s)  # type: ignore[arg-type]
    for row in np.flatnonzero(hit > risk).tolist():
        job = jobs.job(row)
        points = job.profile.checkpoints_s if job.interruptible == "checkpoints" else ()
        edges = [0.0, *points, job.profile.work_s]
        spare_s[row] = max(np.diff(edges)) + job.profile.restart_s
    return spare_s


def _starts_left(each: _Live) -> int:
    """Return how often a job may still be started, one that runs counted once; 0 for any."""
    most = each.job.max_starts
    return 0 if most is None else most - each.starts + each.running


def _fixed_s(each: _Live, step_s: float) -> float:
    """Return how much of its work a running job must do before it may be stopped."""
    if not each.running:
        return 0.0
    # A start in which nothing was done would be in vain.
    least_s = max(each.job.min_run_s - each.ran_s, 0.0 if each.ran_s > 0 else step_s)
    rest_s = each.job.profile.work_s - each.done_s
    return each.starting_s + min(least_s, rest_s)


def _may_stop(each: _Live) -> bool:
    """Return whether a running job may be stopped where it stands."""
    if not each.running or each.starting_s > 0 or each.ran_s <= 0:
        return False
    # The start after this one has to do as much, too.
    shorter_s = min(each.ran_s, each.job.profile.work_s - each.done_s)
    if shorter_s < each.job.min_run_s - TIME_TOLERANCE_S or _starts_left(each) == 1:
        return False
    if each.job.interruptible == "anywhere":
        return True
    points = each.job.profile.checkpoints_s
    at = any(abs(each.done_s - point) <= TIME_TOLERANCE_S for point in points)
    return each.job.interruptible == "checkpoints" and at


def _runs(instance: Instance, board: Board, place: int, each: _Live) -> list[_Run]:
    """Return the runs of a job as a board has them."""
    row, parts, step_s = instance.queue.jobs[place], instance.queue.parts, instance.step_s
    first, last = int(row["part"]), int(row["end"])
    delay, base = board.delay, float(instance.base[place])
    progress_s = instance.progress_s
    runs: list[_Run] = []
    start = first
    for part in range(first, last):
        if part + 1 < last and delay[part + 1] == delay[part]:
            continue
        goes_on = bool(row["running"]) and start == first and delay[first] == 0
        work_s = float(progress_s[part + 1] - progress_s[start])
        begin = base + delay[start] * step_s
        if goes_on:
            work_s -= each.starting_s
        elif start > first or row["running"]:
            begin += (parts["at"][start] - row["begin"] - row["restart_t"]) * step_s
        runs.append(_Run(begin, work_s, goes_on))
        start = part + 1
    return runs
