"""Jobs that wait for the same clean hours: what they take of their nodes before another may start.

Each alone would begin at the cleanest moment, and be told the same queue as if nobody else did. So
whoever waits is told to wait for those as well that begin before it has to have started: what is
left of them at its begin, if the CPUs of its place work them off in the order of their begins, and
all that begin while it stands in line, whoever of them goes first. And nobody is given a begin by
which a promise that another was given before could not be kept. A job is in the way of all who may
have one of its nodes, with all of its work: nobody knows on which of its nodes it will run.

All follows from one look, so that everybody who asks gets the same answer. Jobs are laid on the
place's CPUs, and GPUs, without gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lowtide.acting.backend import PENDING, RUNNING, Look, Seen
from lowtide.acting.places import Room, meetings
from lowtide.acting.promise import Loops, Promise, promise_of
from lowtide.acting.tag import Tag, decode

# How closely a begin is looked for; what is left over for clocks that are read in whole seconds and
# turns that come late, wherever one job is laid behind another.
_STEPS, _OFF_S, _SPARE_S = 40, 1.0, 120.0
_HOUR_S = 3600.0
# Of more than so many in a place all count, whenever they begin.
_MANY = 500
# Later than any deadline, and no infinity: with those nothing can be reckoned.
_NEVER = 1e11
_Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one job is going to take of a place.

    Attributes:
        id: Which job it is.
        begin: From when on it may start.
        work: CPU seconds and GPU seconds that it takes.
        size: CPUs and GPUs that it needs at once.
        nodes: On how many nodes.
        run_s: How long it takes.
        until: By when it has to have started; now of one that runs, never of one with no deadline.
        latest: S, were nobody else deferred; -inf where it was promised nothing.
        rank: Who comes first where not all can keep their promise.
        price: By how much S is earlier for each second of a longer queue.
        waits_s: How long it waits from its begin on at most, were nobody else deferred.
    """

    id: str
    begin: float
    work: tuple[float, float]
    size: tuple[float, float]
    nodes: float = 1.0
    run_s: float = 1.0
    until: float = _NEVER
    latest: float = -math.inf
    rank: tuple[float, float, str] = (math.inf, math.inf, "")
    price: float = 1.0
    waits_s: float = _NEVER

    def beside(self, room: Room) -> Claim:
        """Return what it may take of a place that is not its own: there it is promised nothing."""
        have = (room.cpus, room.gpus)
        share = [min(have[k] / self.size[k], 1.0) if self.size[k] else 1.0 for k in (0, 1)]
        work = (self.work[0] * share[0], self.work[1] * share[1])
        size = (self.size[0] * share[0], self.size[1] * share[1])
        return replace(self, work=work, size=size, latest=-math.inf)


class _Place:
    """The claims on one place as columns, and how fast it works them off."""

    def __init__(self, claims: Sequence[Claim], room: Room) -> None:
        self.claims, self.room = claims, room
        self.place = {each.id: number for number, each in enumerate(claims)}
        self.begin = np.array([each.begin for each in claims])
        # What nobody has promised anything for may stand in line for ever, as far as is known.
        self._until = np.array([each.until for each in claims])
        self._run_s = np.array([each.run_s for each in claims])
        self._latest = np.array([each.latest for each in claims])
        order = sorted(range(len(claims)), key=lambda number: claims[number].rank)
        self._rank = np.argsort(np.array(order, dtype=int))
        self._price = np.array([each.price for each in claims])
        self._waits_s = np.array([each.waits_s for each in claims])
        self._work_s = [_seconds(claims, room, kind) for kind in (0, 1)]
        self.total_s = float(max(each.sum() for each in self._work_s))
        self._alike = [_alike_s(claims, room, kind) for kind in (0, 1)]
        self._needs = [np.array([each.size[kind] > 0 for each in claims]) for kind in (0, 1)]
        self._waits: _Numbers | None = None

    def own_s(self, number: int) -> float:
        """Return how long the place takes for one job."""
        return float(min(each[number] for each in self._work_s if each.any()))

    def settle(self, number: int, at: float) -> None:
        """Let a job begin at another moment."""
        self.begin[number], self._waits = at, None

    def wait_s(self, number: int, begin: float | None = None) -> float:
        """Return for how long a job has others in its way, from another begin on where named."""
        if begin is not None:
            return float(self._in_the_way(self._moved(number, begin))[number])
        if self._waits is None:
            self._waits = self._in_the_way(self.begin)
        return float(self._waits[number])

    def fits(self, number: int, at: float, *, first: bool = False) -> bool:
        """Return whether all others still have their promise if one job begins at a moment.

        Args:
            first: Whether those alone are looked at who come before it.
        """
        held = self._latest > -math.inf
        rank = self._rank[number]
        held &= (self._rank < rank) if first else (self._rank != rank)
        if not held.any() or (self._room(self.total_s, self.begin)[held] >= 0).all():
            return True
        without = self._room(self._in_the_way(self._moved(number, _NEVER)), self.begin)
        moved = self._moved(number, at)
        room = self._room(self._in_the_way(moved), moved)
        # Nor is it made worse where it is late already.
        return not (held & (room < _SPARE_S) & (room < without - _OFF_S)).any()

    def _moved(self, number: int, begin: float) -> _Numbers:
        moved = self.begin.copy()
        moved[number] = begin
        return moved

    def _room(self, beside_s: _Numbers | float, begin: _Numbers) -> _Numbers:
        """Return how much later each could begin if others are in its way for so long."""
        return self._latest - self._price * beside_s - begin

    def _in_the_way(self, begin: _Numbers) -> _Numbers:
        """Return for how long each job, from its begin on, has others in its way at most."""
        found = self._in_line(begin, self._until)
        # Who has to have started that late has waited for as long as it may by an earlier moment.
        until = np.minimum(self._until, begin + self._waits_s + found)
        return np.minimum(found, self._in_line(begin, until))

    def _in_line(self, begin: _Numbers, until: _Numbers) -> _Numbers:
        """Return the same if each stands in line until a moment at most.

        What is left of those that begin no later, and all of those that begin while it might still
        stand in line.
        """
        order = np.argsort(begin, kind="stable")
        at = begin[order]
        # Who begins at the same moment may go first.
        last = np.searchsorted(at, at, side="right")
        later = np.maximum(np.searchsorted(at, until[order], side="left"), last)
        found = np.zeros(len(at))
        for kind, own_s in enumerate(self._work_s):
            if not own_s.any():
                continue
            done = np.concatenate([[0.0], np.cumsum(own_s[order])])
            left_s = self._not_over(begin, until, own_s)[order]
            if (more_s := self._alike[kind]) is not None:
                left_s = np.minimum(left_s, _in_turns(at, own_s[order]) + more_s)
            seconds = np.zeros(len(at))
            seconds[order] = left_s + done[later] - done[last]
            found = np.maximum(found, np.where(self._needs[kind], seconds, 0.0))
        return found

    def _not_over(self, begin: _Numbers, until: _Numbers, own_s: _Numbers) -> _Numbers:
        """Return what may be left of others at the begin of each, if all keep their promises."""
        until = np.maximum(until, begin)
        over = until + self._run_s
        rate = own_s / self._run_s
        # All of it until it has to have started, less and less from then on.
        left_s: _Numbers = (
            _sum_to(begin, own_s, begin)
            - _sum_to(until, own_s, begin)
            + _sum_to(until, rate * over, begin)
            - begin * _sum_to(until, rate, begin)
            - _sum_to(over, rate * over, begin)
            + begin * _sum_to(over, rate, begin)
            - own_s
        )
        return left_s


def _sum_to(at: _Numbers, amounts: _Numbers, to: _Numbers) -> _Numbers:
    """Return the sum of the amounts that come no later than each of some moments."""
    order = np.argsort(at, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(amounts[order])])
    found: _Numbers = sums[np.searchsorted(at[order], to, side="right")]
    return found


def _in_turns(at: _Numbers, own_s: _Numbers) -> _Numbers:
    """Return what is left of others at the begin of each, had all of the place one job a time.

    Args:
        at: When they begin, in order.
    """
    first, last = (np.searchsorted(at, at, side=side) for side in ("left", "right"))
    done = np.concatenate([[0.0], np.cumsum(own_s)])
    # What nobody has done while nobody was there is lost.
    level = done[:-1] - at
    left_s = (level - np.minimum.accumulate(level))[first]
    found: _Numbers = left_s + done[last] - done[first] - own_s
    return found


@dataclass(slots=True)
class Herd:
    """The jobs that one look has shown, and what they leave to each other.

    Attributes:
        jobs: All that carry a tag, and others of which it is known when they begin.
        rooms: What there is of each place.
        now: When that was.
        loops: What the scheduler's loops take.
        wait_s: W of a job for all who are not deferred; None where its class is not.
    """

    jobs: Iterable[Seen]
    rooms: Mapping[str, Room]
    now: float
    loops: Loops
    wait_s: Callable[[Seen, Tag], float | None]
    _places: dict[str, _Place] = field(default_factory=dict, init=False)
    _met: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        found: dict[str, list[Claim]] = {}
        for seen in self.jobs if self.rooms else ():
            own = seen.where
            claim = self._claim(seen) if own in self.rooms else None
            if claim is None:
                continue
            for name in self._meets(own):
                there = claim if name == own else claim.beside(self.rooms[name])
                found.setdefault(name, []).append(there)
        self._places = {name: _Place(claims, self.rooms[name]) for name, claims in found.items()}

    def beside_s(self, seen: Seen, tag: Tag, wait_s: float) -> float:
        """Return how much longer a job may wait because of those that are deferred as it is.

        Args:
            wait_s: W as it is without them.
        """
        if seen.submitted is not None and seen.state == PENDING and _is_due(seen, self.now):
            # Who stands in line already is not deferred any more.
            return 0.0
        found, claim = self._find(seen, tag, wait_s)
        if claim is None or len(found[0][0].claims) == 1:
            return 0.0
        place, number = found[0]
        if len(place.claims) > _MANY:
            # To look at each for each would take minutes.
            return place.total_s - place.own_s(number)
        if seen.submitted is None or seen.state == RUNNING:
            return self._at_latest(place, number, claim)
        known_s = place.wait_s(number)
        if claim.latest - claim.price * known_s >= place.begin[number] - _OFF_S:
            return known_s
        # That begin is not safe: an earlier one may be.
        return self._at_latest(place, number, claim)

    def kind_begin(self, seen: Seen, tag: Tag, promise: Promise, at: float) -> float | None:
        """Return a begin that keeps what others were promised; None where there is none.

        That is the last before the one that is best, or else the first behind it. A job that waits
        stays where it is, unless it has to go and nobody else who comes first is late by that.

        Args:
            at: When it had better begin.
        """
        at = self.safe_begin(seen, tag, promise, at)
        found, _ = self._find(seen, tag, promise.wait_s - promise.beside_s)

        def fits(begin: float, *, first: bool = False) -> bool:
            return all(place.fits(number, begin, first=first) for place, number in found)

        if fits(at):
            return at
        place, number = found[0]
        if seen.submitted is not None:
            begin = place.begin[number]
            has_to = begin > promise.latest + _OFF_S
            return at if has_to and fits(at, first=True) else float(begin)
        if fits(self.now):
            return _last(self.now, at, fits)
        # Behind those that have to have started by then.
        until = {each.until for place, _ in found for each in place.claims}
        return next(
            (each for each in sorted(until) if at < each <= promise.latest and fits(each)), None
        )

    def safe_begin(self, seen: Seen, tag: Tag, promise: Promise, at: float) -> float:
        """Return the last moment no later than another at which a job that waits is safe itself.

        Its promise was reckoned where it stands. Later than that others may be in its way who are
        not by then, and earlier nobody is who would not be for as much longer.
        """
        found, claim = self._find(seen, tag, promise.wait_s - promise.beside_s)
        if claim is None or seen.submitted is None:
            return at
        place, number = found[0]
        begin = float(place.begin[number])
        if at <= begin or len(place.claims) > _MANY:
            return at
        return _last(begin, at, lambda moment: _keeps(place, number, claim, moment))

    def settle(self, seen: Seen, at: float) -> None:
        """Take a job for begun at another moment from now on."""
        for name in self._meets(seen.where):
            place = self._places.get(name)
            if place is not None and (number := place.place.get(seen.id)) is not None:
                place.settle(number, max(at, self.now))

    def _meets(self, own: str) -> tuple[str, ...]:
        """Return the places where jobs of one may run: their own first, none that nobody knows."""
        if own not in self._met:
            self._met[own] = tuple(meetings(self.rooms, own)) if own in self.rooms else ()
        return self._met[own]

    def _find(
        self, seen: Seen, tag: Tag, wait_s: float
    ) -> tuple[list[tuple[_Place, int]], Claim | None]:
        """Return where a job has claims, and that on its own place, which is the first.

        One that is about to be submitted gets them.
        """
        names = self._meets(seen.where)
        own = self._places.get(names[0]) if names else None
        if own is not None and seen.id in own.place:
            places = [self._places[name] for name in names]
            return [(each, each.place[seen.id]) for each in places], own.claims[own.place[seen.id]]
        claim = self._claim(seen, tag, wait_s) if names else None
        if claim is None:
            return [], None
        found = []
        for name in names:
            there = claim if name == names[0] else claim.beside(self.rooms[name])
            known = self._places[name].claims if name in self._places else ()
            found.append((_Place([*known, there], self.rooms[name]), len(known)))
        return found, claim

    def _at_latest(self, place: _Place, number: int, claim: Claim) -> float:
        """Return how long others are in the way of a job that begins as late as it may."""
        at = self.now
        if claim.latest > self.now and _keeps(place, number, claim, self.now):
            at = _last(self.now, claim.latest, lambda begin: _keeps(place, number, claim, begin))
        return place.wait_s(number, at)

    def _claim(
        self, seen: Seen, tag: Tag | None = None, wait_s: float | None = None
    ) -> Claim | None:
        """Return what a job is going to take; None where it takes nothing that is known."""
        if seen.held or seen.state not in (PENDING, RUNNING):
            return None
        tag = tag or decode(seen.comment)[0]
        begin = max(seen.begin or self.now, self.now)
        size = (max(seen.cpus or 1.0, 1.0), seen.gpus or 0.0)
        ran_s = max(self.now - (seen.started or self.now), 0.0)
        if tag is None:
            # Somebody else's, of which it is known when it begins and not by when it has to.
            run_s, until = seen.limit_s if begin > self.now else None, _NEVER
            rank = (math.inf, begin, seen.id)
        else:
            alone = self._promise(seen, tag, 0.0, ran_s)
            run_s, rank = alone.run_s, (tag.deadline, tag.arrival, tag.token)
            until = self.now if seen.state == RUNNING else alone.latest
        if run_s is None or not 0 < run_s < math.inf:
            return None
        work_s = seen.tasks * run_s
        claim = Claim(
            id=seen.id,
            begin=begin,
            work=(work_s * size[0], work_s * size[1]),
            size=size,
            nodes=max(seen.nodes or 1.0, 1.0),
            run_s=run_s,
            until=until,
            rank=rank,
        )
        if tag is None or tag.users_own or (seen.state == RUNNING and wait_s is None):
            return claim
        known_s = self.wait_s(seen, tag) if wait_s is None else wait_s
        if known_s is None:
            return claim
        latest = self._promise(seen, tag, known_s, ran_s).latest
        later = self._promise(seen, tag, known_s + _HOUR_S, ran_s).latest
        waits_s = _NEVER if seen.state == RUNNING else known_s + self.loops.total_s
        price = (latest - later) / _HOUR_S
        return replace(claim, latest=latest, price=price, waits_s=waits_s)

    def _promise(self, seen: Seen, tag: Tag, wait_s: float, ran_s: float) -> Promise:
        return promise_of(
            tag,
            limit_s=seen.limit_s,
            wait_s=wait_s,
            loops=self.loops,
            killed_at=seen.killed_at,
            ran_s=ran_s,
        )


def herd_of(look: Look, loops: Loops, wait_s: Callable[[Seen, Tag], float | None]) -> Herd | None:
    """Return the jobs of a look as they leave room to each other; None where no room is told."""
    if not look.rooms:
        return None
    return Herd([*look.jobs, *look.ahead], look.rooms, look.now, loops, wait_s)


def _keeps(place: _Place, number: int, claim: Claim, begin: float) -> bool:
    """Return whether a job keeps its own promise that begins at a moment."""
    beside_s = place.wait_s(number, begin)
    return not beside_s or begin + _SPARE_S <= claim.latest - claim.price * beside_s


def _seconds(claims: Sequence[Claim], room: Room, kind: int) -> _Numbers:
    """Return how long a place takes for each job, were it alone there.

    While a job stands in line that needs several nodes, those that are free may be one too few.
    """
    have = (room.cpus, room.gpus)[kind]
    if not have:
        return np.zeros(len(claims))
    spread = max(each.size[kind] * (each.nodes - 1) / each.nodes for each in claims)
    on_one = max(each.size[kind] / each.nodes for each in claims)
    works = max(have - spread, on_one, 1.0)
    return np.array([each.work[kind] for each in claims]) / works


def _alike_s(claims: Sequence[Claim], room: Room, kind: int) -> float | None:
    """Return how much longer than one by one jobs of one size take where several run at once.

    Those that began before may end at a time. None where they are not of one size, since those that
    fit may then be started before others.
    """
    sizes = {each.size[kind] for each in claims if each.size[kind]}
    have = (room.cpus, room.gpus)[kind]
    if len(sizes) != 1 or not have:
        return None
    return max(1.0 - sizes.pop() / have, 0.0) * max(each.run_s for each in claims)


def _is_due(seen: Seen, now: float) -> bool:
    return seen.state == PENDING and (seen.begin or now) <= now


def _last(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Return the last moment up to another at which something holds that holds at the first."""
    if holds(high):
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
