"""The loop that carries plans out: look, judge, move. It keeps nothing that it could not lose.

Each turn begins with one look at all jobs. A driver that was just started, or whose memory was
lost, does the same as one that never ended. Trouble with one job is no trouble of the others, and a
backend that does not answer is asked again at the next turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lowtide.acting.backend import Backend, Look, Seen
from lowtide.acting.herd import herd_of
from lowtide.acting.judge import Judgement, Move, Rules, Situation, judge
from lowtide.acting.promise import Loops
from lowtide.acting.tag import Tag, decode
from lowtide.acting.waits import WaitModel
from lowtide.errors import LowtideError, Refused, Unreachable
from lowtide.profile import PowerProfile
from lowtide.signal import Signal

if TYPE_CHECKING:
    from lowtide.acting.supposed import Supposition
    from lowtide.acting.together import Together

# How often it is looked how well waits were foretold: that takes longer than a turn may.
_CALIBRATE_S = 3600.0
# How long it is let be before nodes that could not be reserved are asked for again.
_RESERVE_S = 1800.0
# How long moves go on by one look: a controller may take a second for each of thousands.
_FRESH_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A move that was tried.

    Attributes:
        verdict: Of which job, and why.
        move: The move.
        problem: Why it was not done; empty where it was, as far as is known.
    """

    verdict: Judgement
    move: Move
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn saw and did.

    Attributes:
        now: When it was, by the backend's clock.
        verdicts: How each job stands.
        deeds: What was tried.
        problems: What went wrong besides, in words.
        reached: Whether the backend answered: without that nothing is known of any job.
        signal: What was expected of the grid.
        loops: What the scheduler's loops take.
        backlog_s: Of places with jobs in line, how long these take.
        is_whole: Whether all was tried: what it saw may have become too old for that.
    """

    now: float
    verdicts: Sequence[Judgement] = ()
    deeds: Sequence[Deed] = ()
    problems: Sequence[str] = ()
    reached: bool = True
    signal: Signal | None = None
    loops: Loops = field(default_factory=Loops)
    backlog_s: Mapping[str, float] = field(default_factory=dict)
    is_whole: bool = True


def _latest(verdict: Judgement) -> float:
    return math.inf if verdict.promise is None else verdict.promise.latest


def _rank(seen: Seen) -> tuple[float, float, str]:
    tag, _ = decode(seen.comment)
    return (math.inf, 0.0, seen.id) if tag is None else (tag.deadline, tag.arrival, tag.token)


def _unknown(_: Tag) -> PowerProfile | None:
    return None


@dataclass(slots=True, kw_only=True)
class Driver:
    """Carries plans out on a backend.

    Attributes:
        backend: Who runs the jobs.
        forecast: Returns what is expected of the grid from a moment on, None where nothing is;
            it may fail.
        profile: Returns the profile of a job, None where it is not known.
        waits: How long jobs wait.
        loops: What the scheduler's loops take; None for what the backend says.
        rules: How eagerly jobs are moved.
        dry: Whether to judge alone, and move nothing.
        together: Plans jobs of a partition together; None for each alone.
        supposition: Counts what jobs without a tag would save; None for nobody.
    """

    backend: Backend
    forecast: Callable[[float], Signal | None]
    profile: Callable[[Tag], PowerProfile | None] = _unknown
    waits: WaitModel = field(default_factory=WaitModel)
    loops: Loops | None = None
    rules: Rules = field(default_factory=Rules)
    dry: bool = False
    together: Together | None = None
    supposition: Supposition | None = None
    _signal: Signal | None = field(default=None, init=False)
    _plans: dict[object, tuple[object, ...]] = field(default_factory=dict, init=False)
    _trusted: dict[str, tuple[float, bool]] = field(default_factory=dict, init=False)
    _unreserved: dict[str, float] = field(default_factory=dict, init=False)

    def turn(self) -> Turn:
        """Look at all jobs once, and move those that do not stand as they should."""
        try:
            look = self.backend.look()
        except (Unreachable, Refused) as error:
            return Turn(now=self.backend.now(), problems=(str(error),), reached=False)
        problems: list[str] = []
        signal = self._expected(look.now, problems)
        self.waits.see(look.now, look.waits)
        loops = self.loops or look.loops or Loops()

        def wait_s(seen: Seen, tag: Tag) -> float | None:
            return self._wait_s(seen, tag, look)

        situation = Situation(
            now=look.now,
            signal=signal,
            wait_s=wait_s,
            profile=self.profile,
            loops=loops,
            rules=self.rules,
            powers=self.backend.can(),
            closed=look.closed,
            taken=look.taken,
            plans=self._plans,  # type: ignore[arg-type]
            herd=herd_of(look, loops, wait_s),
        )
        verdicts = self._judged(look, situation, problems)
        if self.supposition is not None:
            try:
                self.supposition.take(look.others, situation)
            except LowtideError as error:
                problems.append(str(error))
        if self.together is not None and signal is not None:
            joint, unplanned = self.together.begins(verdicts, look, signal)
            problems += unplanned
            if joint:
                herd = herd_of(look, loops, wait_s)
                verdicts = self._judged(look, replace(situation, joint=joint, herd=herd), [])
        deeds: list[Deed] = []
        is_whole, since = True, self.backend.now()
        # Who has to begin first comes first.
        for verdict in () if self.dry else sorted(verdicts, key=_latest):
            if verdict.moves and self.backend.now() - since > _FRESH_S:
                # What was seen so long ago may have been changed by its user since.
                is_whole = False
                break
            if not self._carry_out(verdict, deeds):
                # Who does not answer now would take as long for each of the others.
                problems.append(deeds[-1].problem)
                break
        return Turn(
            now=look.now,
            verdicts=verdicts,
            deeds=deeds,
            problems=problems,
            signal=signal,
            loops=situation.loops,
            backlog_s=look.backlog_s,
            is_whole=is_whole,
        )

    def _judged(self, look: Look, situation: Situation, problems: list[str]) -> list[Judgement]:
        """Return how each job stands; trouble with one is no trouble of the others."""
        verdicts = {}
        # Who comes first does not depend on who asks.
        for seen in sorted(look.jobs, key=_rank) if situation.herd else look.jobs:
            try:
                verdict = judge(seen, situation)
            except LowtideError as error:
                problems.append(f"{seen.id}: {error}")
                continue
            if verdict is None:
                continue
            verdicts[seen.id] = verdict
            for move in verdict.moves:
                if situation.herd and move.kind == "begin" and move.at is not None:
                    situation.herd.settle(seen, move.at)
        return [verdicts[seen.id] for seen in look.jobs if seen.id in verdicts]

    def _carry_out(self, verdict: Judgement, deeds: list[Deed]) -> bool:
        """Try the moves of a job; return whether the backend answers."""
        for move in verdict.moves:
            refused = self._unreserved.get(verdict.seen.id, -math.inf)
            if move.kind == "reserve" and 0 <= self.backend.now() - refused < _RESERVE_S:
                continue
            try:
                self._do(verdict.seen, move)
            except Refused as error:
                # It has started meanwhile, or is gone: the next look tells. Where nodes cannot be
                # kept free they cannot be a minute later either.
                if move.kind == "reserve":
                    self._unreserved[verdict.seen.id] = self.backend.now()
                deeds.append(Deed(verdict=verdict, move=move, problem=str(error)))
                return True
            except Unreachable as error:
                deeds.append(Deed(verdict=verdict, move=move, problem=str(error)))
                return False
            deeds.append(Deed(verdict=verdict, move=move))
        return True

    def _do(self, seen: Seen, move: Move) -> None:
        if move.kind == "begin":
            self.backend.begin(seen, move.at or 0.0, move.comment or seen.comment)
        elif move.kind == "note":
            self.backend.note(seen, move.comment)
        elif move.kind == "boost":
            self.backend.boost(seen)
        elif move.kind == "reserve":
            self.backend.reserve(seen, move.at or 0.0)
        elif move.kind == "release":
            # That it was done is written first: should this die between, it is not done again.
            self.backend.note(seen, move.comment)
            self.backend.release(seen)
        else:
            # When to go on is written first: whoever is stopped reads it.
            self.backend.note(seen, move.comment)
            self.backend.stop(seen)

    def _expected(self, now: float, problems: list[str]) -> Signal | None:
        """Return what is expected of the grid; where nobody says, what was expected last."""
        try:
            signal = self.forecast(now)
        except LowtideError as error:
            problems.append(str(error))
            signal = None
        if signal is not None and signal is not self._signal:
            self._signal = signal
            self._plans.clear()
        return self._signal

    def _wait_s(self, seen: Seen, tag: Tag, look: Look) -> float | None:
        """Return W of a job; None where its class must not be deferred."""
        now = look.now
        at, trusted = self._trusted.get(seen.kind, (now - _CALIBRATE_S, True))
        if not 0 <= now - at < _CALIBRATE_S:
            trusted = self.waits.is_trusted(seen.kind, now)
            self._trusted[seen.kind] = now, trusted
        if not trusted:
            return None
        wait_s = self.waits.wait_s(seen.kind, now, unknown_s=tag.wait_s)
        return max(wait_s, look.backlog_s.get(seen.where, 0.0))
