"""Whatever goes wrong, in whatever order: no promise is broken, nobody else's job touched.

The oracle is written out here by hand: a begin inside the backend no later than
deadline − R − W − σ is what keeps a deadline once nobody is left to look after it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lowtide.acting.backend import PENDING, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.judge import Situation, judge
from lowtide.acting.promise import Loops
from lowtide.acting.tag import Tag, decode, encode
from lowtide.acting.waits import WaitModel
from lowtide.errors import ProviderProblem
from lowtide.signal import Signal
from support.nightly import drawn
from support.simulated_queue import Faults, SimulatedBackend, SimulatedJob

HOUR_S = 3600.0
START = 1_700_000_000.0
LOOPS = Loops()
WAIT_S = 2 * HOUR_S
# A forecast every test can tell clean hours from: each day has a clean and a dirty half.
DAYS = 8


class Death(BaseException):
    """The driver is killed: nothing of it goes on, no handler runs."""


@dataclass
class Mortal:
    """A backend whose caller dies at the n-th request."""

    backend: SimulatedBackend
    lives: int

    def __getattr__(self, name):
        asked = getattr(self.backend, name)
        if name in ("now", "can"):
            return asked

        def ask(*given):
            self.lives -= 1
            if self.lives < 0:
                raise Death
            return asked(*given)

        return ask


def grid(seed: int) -> Signal:
    """A grid of its own for each seed: it falls, rises, or is one day like the other."""
    random = Random(seed)
    slope = random.choice([-1.0, 0.0, 1.0])
    values = [
        500.0 + slope * hour - 300.0 * (hour % 24 in range(8, 16)) * (slope == 0) + random.random()
        for hour in range(24 * DAYS)
    ]
    return Signal.from_values(values, start=START, step_s="1h")


@dataclass
class Told:
    """What a test knows of a job, whatever the driver thinks."""

    tag: Tag
    limit_s: float | None
    feasible: bool
    touched: bool = False
    by_hand: tuple[float, int] | None = None


class Acting(RuleBasedStateMachine):
    faults = Faults(lost=0.1, halved=0.1, unsaved=0.2)

    @initialize(
        seed=st.integers(0, 99), slacks=st.lists(st.floats(0.0, 30.0), min_size=2, max_size=2)
    )
    def begin(self, seed, slacks):
        self.backend = SimulatedBackend(
            clock=START,
            seed=seed,
            # The queue is as slow as it was said to be at worst, or as fast as can be.
            wait_s=lambda random: random.choice([0.0, 600.0, WAIT_S]),
            faults=self.faults,
            can_crash=True,
            powers=frozenset(("stop", "boost", "reserve")[: 1 + seed % 3]),
        )
        self.jobs: dict[str, Told] = {}
        self.gone: dict[str, Told] = {}
        self.strangers: dict[str, Seen] = {}
        self.outages_s = 0.0
        self.known: Signal | None = grid(seed)
        self.breaks = False
        self.drivers = [self.make(), self.make()]
        for number, slack in enumerate(slacks):
            self.submit_one(
                work=2.0,
                startup=0.1,
                slack=slack,
                ck=number > 0,
                deaf=False,
                limited=None,
                shorter=0.9,
            )

    def make(self, backend=None) -> Driver:
        return Driver(
            backend=backend or self.backend,
            forecast=self.foretell,
            waits=WaitModel(unknown_s=WAIT_S),
            loops=LOOPS,
        )

    def foretell(self, _now):
        if self.breaks:
            raise ProviderProblem("nobody answers")
        return self.known

    @rule(
        work=st.floats(0.2, 9.0),
        startup=st.sampled_from([0.0, 0.1]),
        slack=st.floats(-1.0, 30.0),
        ck=st.booleans(),
        deaf=st.booleans(),
        limited=st.sampled_from([None, 1.2, 0.5]),
        shorter=st.floats(0.3, 1.0),
    )
    def submit(self, **job):
        self.submit_one(**job)

    def submit_one(self, *, work, startup, slack, ck, deaf, limited, shorter):
        now, work_s, startup_s = self.backend.clock, work * HOUR_S, startup * HOUR_S
        if now > START + (DAYS - 4) * 86400:
            return
        run_s = work_s + startup_s
        limit_s = None if limited is None else limited * run_s
        tag = Tag(
            token=f"t{len(self.jobs)}",
            deadline=now + run_s + WAIT_S + LOOPS.total_s + slack * HOUR_S,
            arrival=now,
            run_s=run_s,
            startup_s=startup_s,
            stop_s=30.0,
            wait_s=WAIT_S,
            interruptible=ck,
        )
        seen = Seen(id="", state=PENDING, comment=encode(tag, "mine"), limit_s=limit_s)
        verdict = judge(seen, self.situation())
        for move in verdict.moves:
            begin = None if move.at is None or move.at <= now else move.at
            seen = replace(seen, begin=begin, comment=move.comment)
        job = SimulatedJob(
            seen=seen,
            work_s=work_s * shorter,
            startup_s=startup_s,
            stop_s=30.0,
            saves=ck,
            deaf=deaf,
        )
        number = self.backend.submit(job)
        tag = decode(seen.comment)[0]
        # What its limit ends is over in time, and not done.
        ended = limit_s is not None and limit_s < run_s and (not ck or deaf)
        feasible = self.latest(tag, limit_s) >= now and not ended
        self.jobs[number] = Told(tag=tag, limit_s=limit_s, feasible=feasible)

    def situation(self):
        signal = None if self.breaks else self.known
        return Situation(
            now=self.backend.clock, signal=signal, wait_s=lambda *_: WAIT_S, loops=LOOPS
        )

    def latest(self, tag: Tag, limit_s: float | None) -> float:
        """S by hand, for a job that has to be started from what it has saved."""
        left_s = max(tag.run_s - tag.startup_s - tag.progress_s, 0.0)
        rest_s = left_s + tag.startup_s
        pauses_s = 0.0
        if limit_s is not None and rest_s > limit_s:
            if not tag.interruptible:
                # Done or not, it is over then.
                return tag.deadline - limit_s - WAIT_S - LOOPS.total_s
            each_s = limit_s - tag.startup_s - 120.0
            if each_s <= 0:
                return -float("inf")
            more = -(-left_s // each_s) - 1
            pauses_s = more * (tag.startup_s + 30.0 + WAIT_S + LOOPS.total_s)
        return tag.deadline - rest_s - pauses_s - WAIT_S - LOOPS.total_s

    @rule(comment=st.sampled_from(["", "lt1:", "lt1:{}", 'lt1:{"id":"x","dl":1}', "hello"]))
    def somebody_else_submits(self, comment):
        seen = Seen(id="", state=PENDING, comment=comment, begin=self.backend.clock + 9e5)
        number = self.backend.submit(SimulatedJob(seen=seen, work_s=60.0))
        # After a crash numbers are given again.
        self.jobs.pop(number, None)
        self.strangers[number] = self.backend.jobs[number].seen

    @rule(hours=st.sampled_from([0.001, 0.02, 0.1, 0.5, 2.0, 7.0, 26.0]))
    def time_passes(self, hours):
        self.backend.advance(self.backend.clock + hours * HOUR_S)

    @rule(who=st.integers(0, 1))
    def a_driver_takes_its_turn(self, who):
        self.drivers[who].turn()

    @rule(turns=st.integers(2, 30), minutes=st.sampled_from([1.0, 5.0, 20.0]))
    def a_driver_works_for_a_while(self, turns, minutes):
        for _ in range(turns):
            self.drivers[0].turn()
            self.backend.advance(self.backend.clock + 60 * minutes)

    @rule(who=st.integers(0, 1))
    def a_driver_forgets_everything(self, who):
        self.drivers[who] = self.make()

    @rule(lives=st.integers(0, 6))
    def a_driver_dies_at_some_request(self, lives):
        with contextlib.suppress(Death):
            self.make(Mortal(self.backend, lives)).turn()

    @rule()
    def the_controller_crashes(self):
        before = set(self.backend.jobs)
        self.backend.crash()
        for told in self.jobs.values():
            # Moved or not: it may have forgotten.
            told.by_hand = None
        for number in before - set(self.backend.jobs):
            # It was never submitted, as far as anybody knows; its number is another's soon.
            self.jobs.pop(number, None)
            self.strangers.pop(number, None)

    @rule(seconds=st.sampled_from([10.0, 1800.0]))
    def the_controller_does_not_answer(self, seconds):
        now = self.backend.clock
        outages = (*self.backend.faults.outages, (now, now + seconds))
        self.backend.faults = replace(self.backend.faults, outages=outages)
        self.outages_s += seconds

    @rule(how=st.sampled_from(["none", "broken", "other", "short", "past"]), seed=st.integers(0, 9))
    def the_forecast_changes(self, how, seed):
        self.breaks = how == "broken"
        now = self.backend.clock
        self.known = grid(seed)
        if how == "none":
            self.known = None
        if how == "short":
            self.known = self.known.window(now, now + 2 * HOUR_S) if now < START + 8e4 else None
        if how == "past" and now > START + 2 * HOUR_S:
            self.known = self.known.window(START, START + HOUR_S)

    @precondition(lambda self: self.jobs)
    @rule(pick=st.integers(0, 99))
    def squeue_lies(self, pick):
        try:
            then = self.backend.look()
        except OSError:
            return
        self.backend.advance(self.backend.clock + 60.0 * (pick % 7))
        self.backend.stale = replace(then, now=self.backend.clock)
        self.drivers[pick % 2].turn()
        self.backend.stale = None

    @precondition(lambda self: self.jobs)
    @rule(pick=st.integers(0, 99), what=st.sampled_from(["hold", "cancel", "move", "now", "text"]))
    def a_user_changes_a_job(self, pick, what):
        number = sorted(self.jobs)[pick % len(self.jobs)]
        job = self.backend.jobs[number]
        if job.ended is not None:
            return
        if what == "text":
            self.backend.change(number, comment=f"see {job.seen.comment} there")
            return
        if job.seen.state != PENDING and what != "cancel":
            return
        told = self.jobs[number]
        told.touched, told.by_hand = True, None
        if what == "cancel":
            self.backend.cancel(number)
        elif what == "hold":
            self.backend.change(number, held=True, why="JobHeldUser")
        elif what == "now":
            self.backend.change(number, begin=self.backend.clock, why="None")
        else:
            tag = decode(job.seen.comment)[0]
            at = self.backend.clock + 7 * HOUR_S
            settled = tag is not None and tag.restarts == job.seen.restarts
            away = settled and all(abs(at - (b or 0)) > 120 for b in (tag.begin, tag.before))
            self.backend.change(number, begin=at)
            # Until a driver has seen a requeue, whose begin it is cannot be told.
            told.by_hand = (at, job.seen.restarts) if away else None
            self.drivers[pick % 2].turn()

    @invariant()
    def begins_inside_the_backend_keep_the_promise(self):
        for number, told in getattr(self, "jobs", {}).items():
            job = self.backend.jobs[number]
            if told.touched or job.seen.state != PENDING or job.seen.begin is None:
                continue
            tag = decode(job.seen.comment)[0]
            latest = self.latest(tag, told.limit_s)
            soon = (job.seen.submitted or 0.0) + LOOPS.requeue_s
            # To be told at its begin that it has come may take the place of the scheduler's look.
            assert job.seen.begin <= max(latest + LOOPS.pass_s, soon) + 1.0

    @invariant()
    def nothing_that_was_promised_is_missed(self):
        for number, told in getattr(self, "jobs", {}).items():
            job = self.backend.jobs[number]
            if told.touched or not told.feasible:
                continue
            ended = self.backend.clock if job.ended is None else job.ended
            assert ended <= told.tag.deadline + self.outages_s + 1.0
            if job.ended is not None:
                assert job.outcome == "completed"

    @invariant()
    def nobody_elses_job_is_touched(self):
        for number, seen in getattr(self, "strangers", {}).items():
            now = self.backend.jobs[number].seen
            assert (now.comment, now.begin) == (seen.comment, seen.begin)

    @invariant()
    def what_a_user_moved_stays_there(self):
        for number, told in getattr(self, "jobs", {}).items():
            seen = self.backend.jobs[number].seen
            if told.by_hand is not None and seen.state == PENDING and not seen.held:
                assert seen.restarts != told.by_hand[1] or seen.begin == told.by_hand[0]

    @rule()
    def what_was_done_is_not_done_again(self):
        faults = self.backend.faults
        self.backend.faults = replace(faults, lost=0.0, halved=0.0)
        self.make().turn()
        assert not self.make().turn().deeds
        self.backend.faults = faults


def test_whatever_goes_wrong():
    run_state_machine_as_test(
        Acting,
        settings=settings(
            max_examples=drawn(60, 600),
            stateful_step_count=35,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class Doomed:
    """A backend whose caller is killed at the n-th move, before it was done or right after."""

    def __init__(self, backend, fatal=None, *, after=False):
        self.backend, self.fatal, self.after, self.moves = backend, fatal, after, 0

    def __getattr__(self, name):
        asked = getattr(self.backend, name)
        if name in ("now", "can", "look"):
            return asked

        def move(*given):
            fatal = self.moves == self.fatal
            self.moves += 1
            if fatal and not self.after:
                raise Death
            asked(*given)
            if fatal:
                raise Death

        return move


def three_days(fatal=None, *, after=False):
    """Let jobs that wait, are stopped and come back be driven; return them and how many moves."""
    values = [100.0 if hour % 12 in (3, 4, 5) else 500.0 for hour in range(24 * DAYS)]
    signal = Signal.from_values(values, start=START, step_s="1h")
    backend = SimulatedBackend(clock=START, seed=1)
    for number, (work, ck) in enumerate([(5.0, True), (2.0, False), (4.0, True)]):
        tag = Tag(
            token=f"d{number}",
            deadline=START + 60 * HOUR_S,
            arrival=START,
            run_s=work * HOUR_S,
            stop_s=30.0,
            wait_s=0.0,
            interruptible=ck,
            max_starts=20,
        )
        # Submitted as if nobody had planned them: all is left to the driver.
        begin = START + 30.0
        seen = Seen(id="", state=PENDING, comment=encode(replace(tag, begin=begin)), begin=begin)
        backend.submit(SimulatedJob(seen=seen, work_s=0.95 * work * HOUR_S, stop_s=30.0, saves=ck))
    doomed = Doomed(backend, fatal, after=after)

    def new():
        return Driver(backend=doomed, forecast=lambda _: signal, waits=WaitModel(unknown_s=0.0))

    driver = new()
    while backend.clock < START + 66 * HOUR_S:
        try:
            driver.turn()
        except Death:
            driver = new()
        backend.advance(backend.clock + 600.0)
    return list(backend.jobs.values()), doomed.moves


def test_a_driver_killed_at_every_move_loses_nothing_and_doubles_nothing():
    jobs, moves = three_days()
    assert moves > 8
    assert sum(len(job.runs) for job in jobs) > len(jobs), "nothing was ever stopped"
    for fatal in range(moves):
        for after in (False, True):
            for job in three_days(fatal, after=after)[0]:
                assert job.outcome == "completed"
                assert job.ended <= START + 60 * HOUR_S
                assert sum(run.work_s for run in job.runs) <= job.work_s + 60.0 * len(job.runs)
                assert not any(run.lost_s for run in job.runs)
