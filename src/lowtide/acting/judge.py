"""What is seen of a job, what should be, and the few moves that differ: a pure function.

Whoever asks twice gets the same answer, whoever asks after a move gets no further move, and two who
ask at once agree. In doubt a job runs now: without a forecast, without a promise that can be kept,
with a plan that cannot be made. Nothing here knows how to hold a job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lowtide.acting.backend import PENDING, RUNNING, SUSPENDED, Seen
from lowtide.acting.herd import Herd
from lowtide.acting.promise import Loops, Promise, promise_of
from lowtide.acting.tag import Tag, decode, encode
from lowtide.errors import InvalidInput, LowtideError
from lowtide.job import Job
from lowtide.policies.exact import Exact
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import State, Stretch
from lowtide.signal import Signal
from lowtide.units import format_duration, format_time

# Any power does where only the shape of a plan is asked for.
_ANY_W = 1000.0
# A plan that is renewed within the hour need not be fine.
_TIME_BUDGET_S = 0.02
# Windows are planned to the last of these before their end, so that a plan serves for a while.
_PLANNED_TO_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How eagerly jobs are moved.

    Attributes:
        settle_s: What is due within this is left alone.
        least_move_s: A begin is moved by at least this, unless the promise asks for it.
        least_run_s: A job that was started works for at least this before it is stopped.
        least_pause_s: A stop that would be shorter than this is none.
        patience_s: How long a job that was asked to stop may take to.
        most_asked: How often it is asked before it counts as deaf.
        hand_s: A begin that is further than this from those that were written was moved by hand.
    """

    settle_s: float = 60.0
    least_move_s: float = 300.0
    least_run_s: float = 1800.0
    least_pause_s: float = 900.0
    patience_s: float = 300.0
    most_asked: int = 2
    hand_s: float = 60.0

    @classmethod
    @lru_cache(maxsize=64)
    def of_least_run(cls, least_run_s: float) -> Rules:
        """Return rules for a job that says how long it works at least: all else goes along.

        >>> Rules.of_least_run(1800.0) == Rules()
        True
        """
        return cls(
            settle_s=min(60.0, max(least_run_s / 30, 1.0)),
            least_move_s=min(300.0, max(least_run_s / 6, 1.0)),
            least_run_s=least_run_s,
            least_pause_s=min(900.0, least_run_s / 2),
        )

    @classmethod
    def on_this_machine(cls, run_s: float, least_run_s: float) -> Rules:
        """Return rules where nobody else is asked: moves cost nothing, however short the job."""
        return cls(
            settle_s=min(60.0, 0.01 * run_s),
            least_move_s=min(60.0, 0.01 * run_s),
            least_run_s=least_run_s,
            least_pause_s=min(60.0, least_run_s),
            patience_s=60.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What there is to know besides the job.

    Attributes:
        now: What time it is by the backend's clock.
        signal: What is expected of the grid; None where nothing is known.
        wait_s: W of a job; None where its class must not be deferred.
        profile: The profile of a tag; None where it is not known any more.
        loops: What the scheduler's loops take.
        rules: How eagerly jobs are moved.
        powers: What the backend can do, as `Backend.can` says.
        closed: When the backend starts nothing, from when to when.
        taken: When most nodes of a place are kept for others.
        plans: Plans made before on the same signal: a cache, and no more than that.
        joint: When jobs that are planned with others had better begin, by their numbers.
        herd: What jobs that are deferred leave to each other; None where nobody looks at that.
    """

    now: float
    signal: Signal | None
    wait_s: Callable[[Seen, Tag], float | None]
    profile: Callable[[Tag], PowerProfile | None] = lambda _: None
    loops: Loops = field(default_factory=Loops)
    rules: Rules = field(default_factory=Rules)
    powers: frozenset[str] = frozenset(("stop",))
    closed: Sequence[tuple[float, float]] = ()
    taken: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    plans: MutableMapping[object, tuple[Stretch, ...]] = field(default_factory=dict)
    joint: Mapping[str, float] = field(default_factory=dict)
    herd: Herd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One thing to be asked of the backend.

    Attributes:
        kind: `begin`, `stop`, `note`, `boost`, `reserve` or `release`.
        comment: What is to stand beside the job from now on; empty where that stays.
        at: The begin, of `begin` and of the restart after a `stop`.
    """

    kind: str
    comment: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How a job stands, and what is to be done.

    Attributes:
        seen: The job.
        tag: What it carries.
        what: In a word: `waits`, `due`, `runs`, `stopping`, `held`, `suspended`, `yours`, `over`.
        why: The reason, for people.
        promise: Its promise; None where it has none.
        plan: How a job that waits should run from here on; empty where nothing is planned.
        moves: What is to be asked of the backend, in this order.
    """

    seen: Seen
    tag: Tag
    what: str
    why: str
    promise: Promise | None = None
    plan: tuple[Stretch, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wish:
    """When a job should begin, why, and what it does then."""

    at: float
    why: str
    plan: tuple[Stretch, ...] = ()


def judge(seen: Seen, situation: Situation) -> Judgement | None:
    """Return how a job stands and what is to be done; None for a job that carries no tag.

    Args:
        seen: The job; one that has no time of submission is about to be submitted.
    """
    tag, text = decode(seen.comment)
    if tag is None:
        return None
    say = _Saying(seen=seen, tag=tag, text=text)
    if tag.min_run_s is not None:
        situation = replace(situation, rules=Rules.of_least_run(tag.min_run_s))
    if seen.state == SUSPENDED:
        return say("suspended", "somebody suspended it: it is left alone")
    if seen.state not in (PENDING, RUNNING):
        return say("over", "it has ended, or is about to")
    if tag.users_own:
        return say("yours", "its begin was moved by hand: it is left alone")
    if seen.state == RUNNING:
        return _judge_running(say, situation)
    if seen.held:
        return _judge_held(say)
    return _judge_pending(say, situation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saying:
    """A job about which something is to be said."""

    seen: Seen
    tag: Tag
    text: str

    def __call__(
        self,
        what: str,
        why: str,
        *moves: Move,
        promise: Promise | None = None,
        plan: tuple[Stretch, ...] = (),
    ) -> Judgement:
        return Judgement(
            seen=self.seen,
            tag=self.tag,
            what=what,
            why=why,
            promise=promise,
            plan=plan,
            moves=moves,
        )

    def move(self, kind: str, *, at: float | None = None, **changes: object) -> tuple[Move, ...]:
        """Return a move with the tag changed; none where the comment has no room for it."""
        try:
            comment = encode(replace(self.tag, **changes), self.text)  # type: ignore[arg-type]
        except InvalidInput:
            return ()
        return (Move(kind=kind, comment=comment, at=at),)


def _judge_pending(say: _Saying, situation: Situation) -> Judgement:
    seen, tag, now, rules = say.seen, say.tag, situation.now, situation.rules
    begin = now if seen.begin is None else max(seen.begin, now)
    # Before it is submitted, and once it was requeued, its begin is nobody's decision.
    told = seen.submitted is not None and tag.restarts == seen.restarts
    if told and begin > now + rules.settle_s and _is_moved(tag, begin, rules):
        why = f"its begin was moved by hand to {format_time(begin)}: it is left alone"
        return say("yours", why, *say.move("note", users_own=True))
    if told and begin <= now:
        if seen.begin is not None and _is_early(tag, seen.begin, rules):
            return _released(say)
        return _judge_due(say, situation)
    wait_s = situation.wait_s(seen, tag)
    promise = _promise(say, situation, wait_s)
    wish = _wish(say, situation, promise, deferrable=wait_s is not None)
    # What is about to begin anyway is left alone, as long as the promise is kept.
    near = (told and begin <= now + rules.settle_s) or abs(wish.at - begin) < rules.least_move_s
    reserved = told and seen.reserved is not None and abs(seen.reserved - begin) <= rules.hand_s
    # Where others come first it stays where it is.
    if (near or reserved) and begin <= max(promise.latest, now, wish.at):
        moves = () if told else say.move("note", before=tag.begin, **_anew(seen, begin))
        if told and not reserved and _may_reserve(say, situation, begin):
            moves = (Move(kind="reserve", at=begin),)
        why = f"nodes are reserved for it from {format_time(begin)} on" if reserved else wish.why
        return say("waits", why, *moves, promise=promise, plan=wish.plan)
    moves = say.move(
        "begin",
        at=wish.at,
        before=seen.begin,
        wait_s=promise.wait_s - promise.beside_s,
        **_anew(seen, wish.at),
    )
    what = "due" if wish.at <= now else "waits"
    moves = moves or (Move(kind="begin", at=wish.at),)
    return say(what, wish.why, *moves, promise=promise, plan=wish.plan)


def _anew(seen: Seen, begin: float) -> dict[str, Any]:
    """Return what a tag says of a job that is to begin: how often it was asked before is over."""
    return {"begin": begin, "restarts": seen.restarts, "asked": 0, "asked_at": None}


def _released(say: _Saying) -> Judgement:
    """Leave a job to its user who has let it begin before its time: it is not stopped either."""
    why = "it was let begin earlier by hand: it is left alone"
    return say("yours", why, *say.move("note", users_own=True))


def _may_reserve(say: _Saying, situation: Situation, begin: float) -> bool:
    """Return whether nodes may be kept free for a job from its begin on.

    Those of one that is stopped would stand idle until it goes on.
    """
    ahead = begin > situation.now + situation.rules.settle_s
    return "reserve" in situation.powers and ahead and not say.tag.interruptible


def _judge_held(say: _Saying) -> Judgement:
    """Leave a job to whoever holds it; one that nobody has held on purpose is let go, once."""
    why = f"held ({say.seen.why or 'nobody says why'}): it waits for a release"
    if not say.seen.stuck:
        return say("held", why)
    if say.tag.released:
        return say("held", f"held again by its backend ({say.seen.why}): see why, then release it")
    moves = say.move("release", released=True)
    return say("held", f"held by its backend ({say.seen.why}): it is let go once", *moves)


def _judge_due(say: _Saying, situation: Situation) -> Judgement:
    """Say of a job whose begin has come that it waits for its turn, and help where that is due."""
    seen, now = say.seen, situation.now
    promise = _promise(say, situation, situation.wait_s(seen, say.tag))
    moves: list[Move] = []
    if seen.why == "BeginTime" and now - (seen.begin or now) <= situation.loops.pass_s:
        # The scheduler has not looked yet: to be told of it makes it look. Later than that it has,
        # and a new begin would cost the job its age in the queue.
        moves += say.move("begin", at=now)
    if "boost" in situation.powers and not seen.is_next:
        # Who gave way gets ahead. Whose deadline was too early to be promised did not, and waits as
        # long as its class does first: nobody gets ahead by a deadline that is early.
        submitted = seen.submitted or now
        said_s = promise.wait_s if say.tag.wait_s is None else say.tag.wait_s
        promised = promise.latest + promise.wait_s - said_s >= submitted or seen.restarts
        # Whose begin was taken back as a queue grew has waited for it until then.
        gave_way = max(_written(say.tag), default=submitted) > submitted + situation.rules.hand_s
        fair = submitted if promised or gave_way else submitted + promise.wait_s
        if now >= max(promise.latest, fair):
            moves.append(Move(kind="boost"))
    return say("due", "its begin has come: it waits for its turn", *moves, promise=promise)


def _judge_running(say: _Saying, situation: Situation) -> Judgement:
    seen, tag, now, rules = say.seen, say.tag, situation.now, situation.rules
    if not tag.interruptible or tag.deaf or "stop" not in situation.powers:
        why = "it did not stop when it was asked" if tag.deaf else "it runs to its end"
        return say("runs", why)
    told = tag.restarts == seen.restarts
    asked = tag.asked if told else 0
    if told and not asked and seen.started is not None and _is_early(tag, seen.started, rules):
        return _released(say)
    if asked and now < (tag.asked_at or now) + rules.patience_s + tag.stop_s:
        return say("stopping", "it was asked to save and leave")
    if asked >= rules.most_asked:
        why = "it did not stop when it was asked, and runs to its end"
        return say("runs", why, *say.move("note", deaf=True))
    if seen.started is None or seen.started > now:
        return say("runs", "nobody says since when it runs")
    wait_s = situation.wait_s(seen, tag)
    ran_s = now - seen.started
    promise = _promise(say, situation, wait_s, ran_s=ran_s)
    if wait_s is None or situation.signal is None or _closes(say, situation):
        return say("runs", "nothing is known that would be worth a stop", promise=promise)
    if seen.restarts + 1 >= tag.max_starts:
        return say("runs", "it has used up its starts", promise=promise)
    if not promise.survives_stop(now, tag.stop_s):
        return say("runs", "a stop would endanger its deadline", promise=promise)
    again = _pause(say, situation, promise, ran_s)
    if again is None:
        return say("runs", "now is as clean as it gets for it", promise=promise)
    moves = say.move(
        "stop",
        at=again,
        begin=again,
        before=tag.begin,
        restarts=seen.restarts,
        wait_s=promise.wait_s - promise.beside_s,
        asked=asked + 1,
        asked_at=now,
    )
    return say("stopping", f"it goes on at {format_time(again)}", *moves, promise=promise)


def _closes(say: _Saying, situation: Situation) -> bool:
    """Return whether a job that waits may come to wait for the end of some maintenance."""
    taken = situation.taken.get(say.seen.where, ())
    return any(a < say.tag.deadline and b > situation.now for a, b in (*situation.closed, *taken))


def _written(tag: Tag) -> list[float]:
    return [each for each in (tag.begin, tag.before) if each is not None]


def _is_moved(tag: Tag, begin: float, rules: Rules) -> bool:
    """Return whether a begin is one that nobody here has written."""
    # Submitted without a begin, it has one now.
    return all(abs(each - begin) > rules.hand_s for each in _written(tag))


def _is_early(tag: Tag, at: float, rules: Rules) -> bool:
    """Return whether something came before every begin that was written here."""
    return at + rules.hand_s < min(_written(tag), default=-math.inf)


def _promise(
    say: _Saying, situation: Situation, wait_s: float | None, *, ran_s: float = 0.0
) -> Promise:
    known_s = wait_s if wait_s is not None else say.tag.wait_s or 0.0
    herd = situation.herd
    return promise_of(
        say.tag,
        limit_s=say.seen.limit_s,
        wait_s=known_s,
        loops=situation.loops,
        killed_at=say.seen.killed_at,
        ran_s=ran_s,
        beside_s=0.0 if herd is None else herd.beside_s(say.seen, say.tag, known_s),
    )


def _wish(say: _Saying, situation: Situation, promise: Promise, *, deferrable: bool) -> _Wish:
    """Return when a pending job should begin: as planned, no later than is safe, else now."""
    now, signal, tag = situation.now, situation.signal, say.tag
    if not deferrable:
        return _Wish(now, "how long its class waits was foretold too badly: it runs now")
    if say.tag.run_s <= 0:
        return _Wish(now, "nobody says how long it takes: it runs now")
    herd = situation.herd
    if promise.latest <= now:
        begin = None if herd is None else herd.kind_begin(say.seen, tag, promise, now)
        if begin is not None and begin > now and say.seen.submitted is not None:
            return _Wish(begin, "others that wait have to begin first")
        return _Wish(now, "its deadline leaves no room to wait: it runs now")
    if signal is None:
        return _Wish(now, "there is no forecast: it runs now")
    if _closes(say, situation):
        return _Wish(now, "nodes are reserved before it has to be done: it runs now")
    stretches = _planned(say, situation, promise)
    if not stretches:
        return _Wish(now, "no plan could be made: it runs now")
    at = min(situation.joint.get(say.seen.id, stretches[0].start), promise.latest)
    if herd is not None and say.seen.id in situation.joint:
        at = herd.safe_begin(say.seen, tag, promise, at)
    elif herd is not None:
        found = herd.kind_begin(say.seen, tag, promise, at)
        if found is None:
            return _Wish(now, "others that wait need the same nodes: it runs now", stretches)
        at = found
    if at <= now + situation.rules.settle_s:
        stops = "" if len(stretches) == 1 else ", with stops in dirtier hours"
        return _Wish(now, f"now is as clean as it gets for it{stops}", stretches)
    return _Wish(at, _planned_for(at, round(promise.latest - at)), stretches)


@lru_cache(maxsize=1 << 15)
def _planned_for(at: float, room_s: int) -> str:
    return f"planned for {format_time(at)}, {format_duration(room_s)} before it has to"


def _pause(say: _Saying, situation: Situation, promise: Promise, ran_s: float) -> float | None:
    """Return when a running job should begin again if it is stopped now; None if it should not."""
    tag, now = say.tag, situation.now
    if ran_s < tag.startup_s + situation.rules.least_run_s:
        return None
    stretches = _planned(say, situation, promise, ran_s=ran_s)
    if (
        len(stretches) < 2
        or stretches[0].start + stretches[0].work_s > now + situation.rules.settle_s
    ):
        return None
    again = min(stretches[1].start, promise.latest)
    pause_s = again - now - tag.stop_s
    return again if pause_s >= situation.rules.least_pause_s else None


def _planned(
    say: _Saying, situation: Situation, promise: Promise, *, ran_s: float | None = None
) -> tuple[Stretch, ...]:
    """Return what is best from here on; nothing where no plan can be made."""
    tag, seen, signal, now = say.tag, say.seen, situation.signal, situation.now
    if signal is None:
        return ()
    profile = situation.profile(tag) or _constant(tag.run_s, tag.startup_s, tag.stop_s)
    work_s, startup_s = profile.work_s, profile.startup_s
    done_s = min(tag.progress_s, work_s)
    if ran_s is not None:
        done_s += max(ran_s - startup_s, 0.0)
    if done_s >= work_s - 1.0:
        return ()
    # What it takes at most beyond what is expected is kept free behind the plan.
    rest_s = work_s - done_s + startup_s
    end = promise.latest + rest_s
    # Plans look no further than the forecast does.
    end = min(end, signal.end)
    whole = end - end % _PLANNED_TO_S
    end = whole if whole - now > rest_s + _PLANNED_TO_S else end
    if end - now < rest_s or now < signal.start:
        return ()
    running = ran_s is not None
    # Jobs that wait and are alike are planned once: a new forecast finds thousands of them.
    key = (
        *(tag.profile, tag.run_s, tag.startup_s, tag.stop_s, tag.progress_s),
        *(tag.interruptible, tag.deaf, tag.max_starts, seen.restarts),
        *(situation.rules.least_run_s, "stop" in situation.powers, end),
        (seen.id, seen.submitted, tag.token) if running else None,
    )
    known = situation.plans.get(key)
    if known is not None and _holds(known, now, running=running):
        return known
    try:
        planned = _plan(say, situation, signal, profile, end=end, done_s=done_s, ran_s=ran_s)
    except LowtideError:
        # Whatever it is that cannot be planned: it runs now.
        planned = ()
    situation.plans[key] = planned
    return planned


def _holds(plan: tuple[Stretch, ...], now: float, *, running: bool) -> bool:
    """Return whether a plan made before is still what a new one would be."""
    if not plan:
        return True
    if running:
        return plan[0].start + plan[0].work_s >= now - _PLANNED_TO_S
    return plan[0].start >= now


def _plan(
    say: _Saying,
    situation: Situation,
    signal: Signal,
    profile: PowerProfile,
    *,
    end: float,
    done_s: float,
    ran_s: float | None,
) -> tuple[Stretch, ...]:
    tag, seen, now = say.tag, say.seen, situation.now
    left_s = profile.work_s - done_s
    running = ran_s is not None
    starts = max(seen.restarts + int(running), int(done_s > 0))
    stops = tag.interruptible and "stop" in situation.powers and not tag.deaf
    # What has begun and is not to be stopped again has one more start, and works through.
    most = tag.max_starts if stops else 0
    whole = not (stops or starts)
    job = Job(
        id=seen.id,
        arrival=min(now, end - profile.run_s),
        deadline=end,
        profile=replace(profile, stop=()) if whole else profile,
        interruptible="never" if whole else "anywhere",
        max_starts=max(most, starts + int(not running)),
        min_run_s=min(situation.rules.least_run_s, left_s) if stops else left_s,
    )
    state = State(
        now=now,
        progress_s=done_s,
        running=running,
        starts=starts,
        ran_s=None if ran_s is None else min(max(ran_s - profile.startup_s, 0.0), done_s),
    )
    planner = Exact(time_budget_s=_TIME_BUDGET_S)
    return tuple(planner.optimise(job, signal, state=state).stretches)


@lru_cache(maxsize=1 << 12)
def _constant(run_s: float, startup_s: float, stop_s: float) -> PowerProfile:
    """Return a profile of constant power that takes as long as a tag says."""

    def phases(name: str, duration_s: float) -> tuple[Phase, ...]:
        phase = Phase(name=name, duration_s=duration_s, power_w=_ANY_W) if duration_s else None
        return () if phase is None else (phase,)

    return PowerProfile(
        startup=phases("startup", startup_s),
        work=phases("work", max(run_s - startup_s, 1.0)),
        stop=phases("stop", stop_s),
    )
