"""Which part of a measurement is the idle machine, before a program and after it.

A meter that was switched on early sees the idle machine first: a steady, low power that rises when
the program begins. A program that waits for its data looks the same. So a quiet stretch is taken
for idle time only where something besides its shape says so:

- there is one at either end, and both draw the same;
- it draws what this machine draws in a measurement of itself alone, without a program.

What is left is counted as the program's, and said. Nothing after the first event, or before the
last, is ever idle time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lowtide.changepoints import find_changes, noise_variance, price_of_a_change
from lowtide.recording import Event
from lowtide.signal import FloatArray

# When power rises is known this well; scripts pause for whole seconds, which is rounded to.
_EXACT_S = 0.1
_COARSE_S = 0.25
# Power is looked at in bins of this length, and in so many of them at a time.
_BIN_S = 0.25
_BINS = 600
# A rise by less than such a share, or by less than so many standard errors, is none. Idle machines
# wander by a few per cent: the most cautious share at which something tells idle time counts.
_RISES = (0.02, 0.05, 0.1)
_SURE = 3.0
# Idle time is this long at least, and this after a machine has calmed down, within so much.
_LEAST_S = 3.0
_LEAST_AFTER_FALL_S = 8.0
_CALMING_S = 12.0
# Idle machines draw no more than so many times the least that is ever drawn, its 5 % quantile.
_LOWEST = 1.1
# A blip within idle time is at most this long, and idle time goes on after it for as long as above.
_BLIP_S = 1.2
# A machine that has just been busy wanders by this share before it is steady.
_WANDERS = 0.15
# Levels at either end that differ by less than this share are the same.
_SAME = 0.02
_WHOSE = r"((the|program|run|job|process|script|main|all)\W*)*"
_OF_WHAT = r"(\W*(of|the|program|run|job|process|script|main))*\W*\d*"
_THE_START = re.compile(
    rf"{_WHOSE}(start(ed|ing|s)?|begin(ning|s)?|began|launch(ed|es|ing)?){_OF_WHAT}"
)
_THE_END = re.compile(
    rf"{_WHOSE}(exit(ed|ing|s)?|end(ed|s)?|bye|done|finish(ed)?|quit|over|stop(ped)?|"
    rf"terminated?|completed?|idle){_OF_WHAT}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A steady stretch of low power at one end of a measurement.

    Attributes:
        seconds: How long it lasts.
        level_w: What it draws.
        error_w: The standard error of that.
        sharp_s: How exactly it is known when it ends, where it ends in a clear rise.
        doubt_s: How much of it may belong to what follows: where a small rise begins is not sharp.
        fell: Whether more was drawn at first: by a machine that calms down, or a program.
        rose: Whether power has risen before: a program may have begun.
        last_w: What its last part draws.
    """

    seconds: float
    level_w: float
    error_w: float
    sharp_s: float
    doubt_s: float
    fell: bool
    rose: bool
    last_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """How much before a program, and after it, is not the program's.

    Attributes:
        before_s: From the first sample until the program begins.
        after_s: From the program's end until the last sample.
        notes: What was left out and why, or what may be idle time and was kept.
    """

    before_s: float
    after_s: float
    notes: tuple[str, ...]


def find_idle_time(
    power_w: FloatArray,
    step_s: float,
    events: Sequence[Event] = (),
    *,
    on: float = 0.0,
    before_s: float | None = None,
    after_s: float | None = None,
    known_w: Sequence[float] = (),
) -> IdleTime:
    """Tell the idle machine from the program.

    Args:
        before_s: The idle time before the program, if it is known.
        after_s: The idle time after it, if it is known.
        known_w: What the machine drew without a program, in measurements of their own.
    """
    length_s = power_w.size * step_s
    until_first_s = max(events[0].time - on, 0.0) if events else length_s
    since_last_s = max(on + length_s - events[-1].time, 0.0) if events else length_s
    width = max(round(_BIN_S / step_s), 1)
    most_w = _LOWEST * float(np.quantile(_binned(power_w, width), 0.05))
    leads = [] if before_s is not None else find_quiet(power_w, step_s)
    leads = [quiet for quiet in leads if quiet.level_w <= most_w]
    trails = [] if after_s is not None else find_quiet(power_w[::-1], step_s)
    # Backwards, a fall is a rise: a program that ends busy.
    trails = [quiet for quiet in trails if quiet.level_w <= most_w and not quiet.fell]
    notes = []
    if before_s is None:
        before_s, note = _idle_s(
            leads, until_first_s, trails, since_last_s, known_w, where="before"
        )
        notes.append(note)
    if after_s is None:
        if says_the_end(events):
            after_s = since_last_s
            notes.append(
                "no idle time was found after the program"
                if since_last_s < 0.5
                else f"the program ends with its last event, {events[-1].label!r}; the "
                f"{since_last_s:.0f} s after it are left out"
            )
        else:
            after_s, note = _idle_s(
                trails, since_last_s, leads, until_first_s, known_w, where="after"
            )
            notes.append(note)
    return IdleTime(before_s=before_s, after_s=after_s, notes=tuple(notes))


def find_quiet(power_w: FloatArray, step_s: float) -> list[Quiet]:
    """Return the steady stretch of low power that a trace begins with, the most cautious first.

    There is more than one where it is open which small rise ends it, and none where there is no
    such stretch.

    >>> rng = np.random.default_rng(0)
    >>> trace = np.repeat([50.0, 59.0, 51.0, 250.0], [400, 100, 160, 900]) + rng.normal(0, 3, 1560)
    >>> [quiet] = find_quiet(trace, 0.05)
    >>> round(quiet.seconds), round(quiet.level_w), quiet.fell
    (20, 50, False)
    """
    width = max(round(_BIN_S / step_s), 1)
    while True:
        seen, bin_s = power_w[: width * _BINS], width * step_s
        bins = _binned(seen, width)
        if bins.size * bin_s < _LEAST_S or bins.size < 4:
            return []
        few = max(round(4 * _LEAST_S / bin_s), 8)
        # The idle machine may be calmer than the busy one: what is noise here decides.
        noise = min(noise_variance(bins, bin_s), noise_variance(bins[:few], bin_s))
        edges = find_changes(bins, price_of_a_change(noise, bins.size))
        found: dict[float, Quiet] = {}
        for rise in _RISES:
            quiet = _first_rise(bins, edges.tolist(), noise, rise, seen, width, step_s)
            if quiet is not None:
                found.setdefault(quiet.seconds, quiet)
        if found or width * _BINS >= power_w.size:
            return list(found.values())
        # Nothing rises for so long: look at more, and less closely.
        width *= 4


def _binned(power_w: FloatArray, width: int) -> FloatArray:
    """Return means of so many samples each; fewer than one bin's samples are one bin."""
    whole = power_w.size // width * width
    means: FloatArray = (
        (power_w[:whole] if whole else power_w)
        .reshape(-1, width if whole else power_w.size)
        .mean(axis=1)
    )
    return means


def _first_rise(
    bins: FloatArray,
    edges: list[int],
    noise: float,
    rise: float,
    power_w: FloatArray,
    width: int,
    step_s: float,
) -> Quiet | None:
    bin_s = width * step_s
    levels = [float(bins[a:b].mean()) for a, b in pairwise(edges)]
    first, fell, rose, place = 0, False, False, 1
    while place < len(levels):
        begin, edge = edges[first], edges[place]
        level = float(bins[begin:edge].mean())
        count = edges[place + 1] - edge
        least = max(rise * level, _SURE * math.sqrt(noise * (1 / (edge - begin) + 1 / count)))
        if levels[place] < level - least:
            first, fell = place, True
        elif levels[place] > level + least:
            back = place + 1 < len(levels) and abs(levels[place + 1] - level) <= least
            if (
                back
                and count * bin_s <= _BLIP_S
                and count < edge - begin
                and (edges[place + 2] - edges[place + 1]) * bin_s >= _LEAST_S
            ):
                place += 2
                continue
            if begin * bin_s > _CALMING_S:
                return None
            if (edge - begin) * bin_s < (_LEAST_AFTER_FALL_S if fell else _LEAST_S - bin_s):
                # Too short to be told idle by: look for a steadier stretch after it.
                rose = rose or levels[place] > (1 + _WANDERS) * level
                first, fell, place = place, True, place + 1
                continue
            sharp = _sharpened(power_w, (begin * width, edge * width), count * width, width)
            doubt_s = 8 * noise / (levels[place] - level) ** 2 * bin_s + step_s
            return Quiet(
                seconds=sharp * step_s,
                level_w=level,
                error_w=math.sqrt(noise / (edge - begin)),
                sharp_s=max(_EXACT_S, min(step_s, _COARSE_S)),
                doubt_s=min(doubt_s, _LEAST_S),
                fell=fell,
                rose=rose,
                last_w=levels[place - 1],
            )
        place += 1
    return None


def _sharpened(power_w: FloatArray, stretch: tuple[int, int], after: int, width: int) -> int:
    """Return the sample at which power rises, near where the bins say so."""
    begin, edge = stretch
    low, high = max(edge - 2 * width, begin + 1), min(edge + 2 * width, edge + after - 1)
    before_w = power_w[begin : max(edge - width, begin + 1)].mean()
    after_w = power_w[edge + width : edge + max(after, width + 1)][: 4 * width]
    if not after_w.size or high <= low:
        return edge
    # Samples nearer to the lower level are idle: the best cut of those around the edge.
    near = power_w[low:high]
    gain = np.cumsum((near - after_w.mean()) ** 2 - (near - before_w) ** 2)
    best = int(np.argmax(np.concatenate(([0.0], gain))))
    return low + best


def says_the_start(events: Sequence[Event]) -> bool:
    """Return whether the first event says that the program begins."""
    return _says(events, 0, _THE_START)


def says_the_end(events: Sequence[Event]) -> bool:
    """Return whether the last event says that the program ends."""
    return _says(events, -1, _THE_END)


def _says(events: Sequence[Event], place: int, what: re.Pattern[str]) -> bool:
    """Return whether one event says so; what is said twice does not."""
    labels = [event.label.replace("_", " ").strip().lower() for event in events]
    return bool(labels) and bool(what.fullmatch(labels[place])) and labels.count(labels[place]) == 1


def _idle_s(
    quiets: Sequence[Quiet],
    room_s: float,
    others: Sequence[Quiet],
    other_room_s: float,
    known_w: Sequence[float],
    *,
    where: str,
) -> tuple[float, str]:
    """Return how much of one end is idle time, by the other end or what is known, and say so."""
    if not quiets:
        return 0.0, f"no idle time was found {where} the program"
    fitting = [quiet for quiet in quiets if not quiet.rose and quiet.seconds <= room_s + _BIN_S]
    known = [quiet for quiet in fitting if _is_known(quiet, known_w)]
    alike = [
        quiet
        for quiet in fitting
        if not quiet.fell
        and any(
            abs(quiet.level_w - other.level_w) <= _apart_w(quiet, other)
            and not other.fell
            and _LEAST_S <= other.seconds <= other_room_s + _BIN_S
            for other in others
        )
    ]
    if known or alike:
        quiet = max(known, key=lambda each: each.seconds) if known else alike[0]
        why = "the machine drew the same without a program" if known else "both ends draw the same"
        seconds = min(_pause_s(quiet), room_s)
        return seconds, (
            f"{seconds:.0f} s of idle time {where} the program are left out: they draw "
            f"{quiet.level_w:.0f} W, and {why}; --idle-{where} 0 keeps them"
        )
    quiet = quiets[0]
    seconds = min(quiet.seconds, room_s)
    if seconds < _LEAST_S - _BIN_S:
        # The program speaks at once: what is quiet there is its own.
        return 0.0, f"no idle time was found {where} the program"
    which = "first" if where == "before" else "last"
    return 0.0, (
        f"the {which} {seconds:.1f} s draw a steady {quiet.level_w:.0f} W: idle time or a "
        f"quiet part of the program. Nothing tells which, so they are counted as the program's; "
        f"--idle-{where} {seconds:.1f} leaves them out"
    )


def _is_known(quiet: Quiet, known_w: Sequence[float]) -> bool:
    """Return whether all of a stretch draws what the machine did without a program."""
    room_w = _SURE * quiet.error_w
    return bool(known_w) and all(
        min(known_w) - room_w <= level_w <= max(known_w) + room_w
        for level_w in (quiet.level_w, quiet.last_w)
    )


def _pause_s(quiet: Quiet) -> float:
    """Return how long a stretch is sure to be idle."""
    whole_s = float(round(quiet.seconds))
    if abs(quiet.seconds - whole_s) <= quiet.sharp_s:
        return whole_s
    return max(quiet.seconds - quiet.doubt_s, 0.0)


def _apart_w(quiet: Quiet, other: Quiet) -> float:
    return max(_SAME * quiet.level_w, _SURE * math.hypot(quiet.error_w, other.error_w))
