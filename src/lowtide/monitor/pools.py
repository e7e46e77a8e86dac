"""What groups used that ended before they could be read again.

When a group is removed, its counters go with it, and so would what it used since they were last
read: all of a job that came and went between two ticks. But its ancestors keep counting what it
used. What an ancestor counts beyond its living groups has grown by just what those that ended had
used in all.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import Layout
from lowtide.monitor.group_counts import Group
from lowtide.monitor.kernel_files import NONSENSE

# How often a pool and its groups are read until nothing came in between: what they used meanwhile
# is little, or the reading took about as long as it keeps a CPU busy.
_TRIES = 4
_STEADY_S, _AT_ONCE_S = 0.005, 0.001


@dataclass(slots=True)
class Pools:
    """The outermost groups, which outlive those in them.

    Attributes:
        layout: Where the hierarchies are.
    """

    layout: Layout
    _rests_s: dict[str, float] = field(default_factory=dict, init=False)
    _is_new: bool = field(default=True, init=False)

    def settle(
        self, living: Iterable[Group], ended: Iterable[Group], now: float, all_cpus: int
    ) -> None:
        """Give groups that ended what they used since they were last read.

        Args:
            now: Seconds by a clock that nobody sets.
            all_cpus: How many CPUs the node has: nobody can have used more.
        """
        lives: dict[str, list[Group]] = {}
        for group in living:
            if group.pool:
                lives.setdefault(group.pool, []).append(group)
        gone: dict[str, list[Group]] = {}
        for group in ended:
            if group.pool:
                gone.setdefault(group.pool, []).append(group)
        # At first also those without a group in them: they have counted others before.
        known = self._folders() if self._is_new else self._rests_s
        for pool in {*known, *lives, *gone}:
            rest_s = self._rest(pool, lives.get(pool, ()))
            if math.isnan(rest_s):
                self._rests_s.pop(pool, None)
                continue
            if pool in gone and not self._is_new:
                # One that came since the last time had counted nothing then.
                used_s = rest_s - self._rests_s.get(pool, 0.0)
                _share_out(used_s, gone[pool], now, all_cpus)
            self._rests_s[pool] = rest_s
        self._is_new = False

    def forget(self) -> None:
        """Begin anew, since groups count otherwise than before."""
        self._rests_s.clear()
        self._is_new = True

    def _rest(self, pool: str, living: Sequence[Group]) -> float:
        """Return what a pool counts beyond its living groups; NaN where it is no more.

        They go on while they are read, one after the other: the pool is read before and after them,
        and all of it again where the machine was too busy to let it be read at once.
        """
        rest_s, least_s = math.nan, math.inf
        for _ in range(_TRIES):
            clock, used = time.perf_counter(), time.thread_time()
            before_s = self._read(pool)
            counted_s = [each.count_now() for each in living]
            after_s = self._read(pool)
            took_s = time.perf_counter() - clock
            if after_s - before_s < least_s:
                least_s = after_s - before_s
                known_s = math.fsum(each for each in counted_s if not math.isnan(each))
                rest_s = (before_s + after_s) / 2 - known_s
            at_once = took_s < 2 * (time.thread_time() - used) + _AT_ONCE_S
            if at_once or least_s <= _STEADY_S or math.isnan(after_s):
                break
        return rest_s

    def _folders(self) -> Iterator[str]:
        for folder in {place.folder for place in self.layout.cpu_places}:
            with suppress(OSError), os.scandir(folder) as entries:
                yield from [each.path for each in entries if each.is_dir()]

    def _read(self, pool: str) -> float:
        for place in self.layout.cpu_places:
            if pool.startswith(place.folder + "/"):
                try:
                    return place.parse(read_or_empty(f"{pool}/{place.file}"))
                except NONSENSE:
                    continue
        return math.nan


def _share_out(used_s: float, ended: list[Group], now: float, all_cpus: int) -> None:
    """Share out what groups had used in all, by how busy each was when it was last read.

    What they would not have used at that goes to those of which nothing is known, where there are
    any: to jobs that came and went unread.
    """
    known_s = sum(0.0 if math.isnan(each.cpu_s) else each.cpu_s for each in ended)
    left_s = used_s - known_s
    if left_s <= 0:
        return
    unread_s = [each.unread_s for each in ended]
    unknown = [math.isnan(each.rate) for each in ended]
    expected_s = [
        0.0 if guess else each.rate * passed_s
        for each, guess, passed_s in zip(ended, unknown, unread_s, strict=True)
    ]
    # Nobody knows how many CPUs the others kept busy: one each.
    guessed_s = [passed_s * guess for guess, passed_s in zip(unknown, unread_s, strict=True)]
    beyond_s = left_s - sum(expected_s)
    if beyond_s > 0 and any(unknown):
        beyond = _divide(beyond_s, guessed_s, unknown)
        shares_s = [
            at_last_s + more_s for at_last_s, more_s in zip(expected_s, beyond, strict=True)
        ]
    else:
        weights_s = [known + guess for known, guess in zip(expected_s, guessed_s, strict=True)]
        shares_s = _divide(left_s, weights_s, [True] * len(ended))
    for each, share_s in zip(ended, shares_s, strict=True):
        read = each.began if math.isnan(each.cpu_read) else each.cpu_read
        before_s = 0.0 if math.isnan(each.cpu_s) else each.cpu_s
        each.cpu_s = before_s + min(share_s, (now - read) * all_cpus)


def _divide(whole_s: float, weights: list[float], takes: list[bool]) -> list[float]:
    """Return the parts of a whole by weight, or even ones for those that take where all are 0."""
    total = sum(weights)
    if total > 0:
        return [whole_s * weight / total for weight in weights]
    return [whole_s * each / sum(takes) for each in takes]
