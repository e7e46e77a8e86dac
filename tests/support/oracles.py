"""Slow and obviously right: what the fast code is compared with.

Nothing here calls lowtide's arithmetic. Spans, phases and signals are read as plain numbers and
added up in exact fractions, or slot by slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, pairwise

from lowtide.job import Job
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Span
from lowtide.signal import Signal

JOULES_PER_KWH = 3_600_000


def exact_integral(signal: Signal, begin: float | Fraction, end: float | Fraction) -> Fraction:
    """Integrate a signal by adding up the part of every step that lies between two instants."""
    total = Fraction(0)
    start, step = Fraction(signal.start), Fraction(signal.step_s)
    first = max(math.floor((Fraction(begin) - start) / step), 0)
    for i in range(first, len(signal)):
        low = max(start + i * step, Fraction(begin))
        high = min(start + (i + 1) * step, Fraction(end))
        if start + i * step >= end:
            break
        if high > low:
            total += Fraction(float(signal.values[i])) * (high - low)
    return total


def value_at(signal: Signal, instant: float | Fraction) -> Fraction:
    """Look a value up by walking through the steps."""
    start, step = Fraction(signal.start), Fraction(signal.step_s)
    for i, value in enumerate(signal.values.tolist()):
        if start + i * step <= instant < start + (i + 1) * step:
            return Fraction(value)
    raise LookupError(instant)


@dataclass
class Sums:
    """What a schedule comes to, exactly."""

    energy_j: Fraction = Fraction(0)
    carbon_g: Fraction = Fraction(0)
    cost: Fraction = Fraction(0)
    energy_by_part: dict[str, Fraction] = field(default_factory=dict)
    carbon_by_part: dict[str, Fraction] = field(default_factory=dict)


def pieces_of(span: Span, profile: PowerProfile) -> Iterator[tuple[str, Fraction, Fraction, float]]:
    """Yield the part's name, begin, end and watts of each phase that a span runs through."""
    begin = Fraction(span.start)
    if span.kind == "suspended":
        yield "suspended", begin, begin + Fraction(span.duration_s), profile.suspended_power_w
        return
    phases: Sequence[Phase] = {
        "startup": profile.startup,
        "restart": profile.restart or (),
        "work": profile.work,
        "lost": profile.work,
        "stop": profile.stop,
    }[span.kind]
    low = Fraction(span.progress_s) if span.kind in ("work", "lost") else Fraction(0)
    high = low + Fraction(span.duration_s)
    at = Fraction(0)
    for phase in phases:
        a, b = max(at, low), min(at + Fraction(phase.duration_s), high)
        if b > a:
            yield f"{span.kind}/{phase.name}", begin + a - low, begin + b - low, phase.power_w
        at += Fraction(phase.duration_s)


def account(
    schedule: Schedule,
    profile: PowerProfile,
    carbon: Signal,
    *,
    pue: float | Signal = 1.0,
    price: Signal | None = None,
) -> Sums:
    """Add up a schedule phase by phase and, where PUE varies, PUE step by PUE step."""
    sums = Sums()
    for span in schedule.spans:
        for part, begin, end, power_w in pieces_of(span, profile):
            energy = Fraction(power_w) * (end - begin)
            grams = _charge(power_w, begin, end, carbon, pue)
            sums.energy_j += energy
            sums.carbon_g += grams
            if price is not None:
                sums.cost += _charge(power_w, begin, end, price, pue)
            for by_part, amount in ((sums.energy_by_part, energy), (sums.carbon_by_part, grams)):
                by_part[part] = by_part.get(part, Fraction(0)) + amount
    return sums


def rounding_j(profile: PowerProfile) -> float:
    """Return what epoch seconds, told apart to 0.2 µs only, may do to the energy of starts."""
    starts = (*profile.startup, *(profile.restart or ()))
    phases = (*starts, *profile.work, *profile.stop)
    return 1e-6 * max(profile.suspended_power_w, *(phase.power_w for phase in phases))


def _charge(
    power_w: float, begin: Fraction, end: Fraction, signal: Signal, pue: float | Signal
) -> Fraction:
    if not isinstance(pue, Signal):
        factor = Fraction(power_w) * Fraction(pue) / JOULES_PER_KWH
        return factor * exact_integral(signal, begin, end)
    start, step = Fraction(pue.start), Fraction(pue.step_s)
    inner = (start + i * step for i in range(len(pue) + 1))
    cuts = [begin, *(edge for edge in inner if begin < edge < end), end]
    return sum(
        (
            _charge(power_w, a, b, signal, float(value_at(pue, (a + b) / 2)))
            for a, b in pairwise(cuts)
        ),
        Fraction(0),
    )


def run_cost(profile: PowerProfile, signal: Signal, start: float | Fraction) -> float:
    """Return grams of one uninterrupted run, a phase at a time."""
    at, parts = Fraction(start), []
    for phase in (*profile.startup, *profile.work):
        end = at + Fraction(phase.duration_s)
        parts.append(Fraction(phase.power_w) * exact_integral(signal, at, end))
        at = end
    return float(sum(parts) / JOULES_PER_KWH)


def every_bend(job: Job, signal: Signal) -> list[Fraction]:
    """Return all starts at which some change of power meets some edge of the signal, in order."""
    earliest = Fraction(job.arrival)
    latest = max(Fraction(job.latest_start), earliest)
    offsets = [Fraction(0)]
    for phase in (*job.profile.startup, *job.profile.work):
        offsets.append(offsets[-1] + Fraction(phase.duration_s))
    edges = [Fraction(signal.start) + i * Fraction(signal.step_s) for i in range(len(signal) + 1)]
    meets = {edge - offset for edge in edges for offset in offsets}
    return sorted({earliest, latest, *(at for at in meets if earliest < at < latest)})


@dataclass
class SlotRun:
    """What a pattern of on and off slots comes to."""

    objective: float = 0.0
    energy: float = 0.0
    starts: int = 0
    done: int = 0
    lost: int = 0


def simulate_slots(
    on: Sequence[int],
    carbon: Sequence[float],
    startup_w: Sequence[float],
    work_w: Sequence[float],
    checkpoints: Sequence[int] | None,
) -> SlotRun:
    """Go through the slots one by one: off, starting or working; a stop falls back.

    Args:
        on: Whether the job runs in each slot.
        carbon: What a watt in each slot costs.
        startup_w: Power of each slot of a start.
        work_w: Power of each slot of work.
        checkpoints: Progress that a stop keeps; None keeps all.
    """
    run, warm = SlotRun(), 0
    for slot, busy in enumerate(on):
        before = on[slot - 1] if slot else 0
        if not busy:
            if before and checkpoints is not None and run.done < len(work_w):
                kept = max([0, *(point for point in checkpoints if point <= run.done)])
                run.lost += run.done - kept
                run.done = kept
            continue
        if not before:
            run.starts += 1
            warm = 0
        if warm < len(startup_w):
            power = startup_w[warm]
            warm += 1
        else:
            power = work_w[run.done]
            run.done += 1
        run.energy += power
        run.objective += power * carbon[slot]
    return run


def cheapest_choice(carbon: Sequence[float], k: int) -> float:
    """Return the least sum of k slots by trying every choice of them."""
    return min(sum(carbon[i] for i in chosen) for chosen in combinations(range(len(carbon)), k))
