"""Whether a change helped: runs before beside runs after, and what of the difference may be chance.

Repeated runs tell by how much runs of the same program differ anyway. Of one run nobody knows that,
and so no interval is told.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lowtide.learning.intervals import Interval, welch
from lowtide.serve.drawing import known, percent_change
from lowtide.serve.viewer import Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.units import (
    ENERGIES,
    MASSES,
    MISSING,
    format_alike,
    format_duration,
    format_number,
    format_percent,
)

if TYPE_CHECKING:
    from lowtide.hindsight.phases import JobPhases

# Of how many runs each side may be.
MOST_RUNS = 12
# Among how many jobs of the same name those are looked for that are like one.
_SEARCHED = 100
METHOD = (
    "Each side of a comparison is one run or several. Of several the mean is told with its 95 % "
    "interval by Student's t, from how the runs differ among each other. The difference of both "
    "sides has its 95 % interval by Welch's test, which does not take both to vary alike; where "
    "that holds 0, the difference may be chance. Both take runs to be independent, and figures of "
    "runs to be about normal; of two or three they are wide. Where a side is one run, or a run "
    "stands on both, no interval of the difference is told. Even of runs that are alike one figure "
    "in twenty looks as if it were no chance. A phase is compared among the runs in which one of "
    "its name was found; where these are fewer than the runs, their number stands beside it."
)
_NO_BREAK = "\u00a0"
# What writes values of one kind, all in one unit.
_Write = Callable[[Sequence[float | None]], list[str]]


def _each(write: Callable[[float | None], str]) -> _Write:
    return lambda values: [write(value) for value in values]


_ENERGY: _Write = partial(format_alike, scales=ENERGIES)
_SHOWN: tuple[tuple[str, str, _Write], ...] = (
    ("energy", "energy_j", _ENERGY),
    ("CO2e", "carbon_g", partial(format_alike, scales=MASSES)),
    ("ran", "elapsed_s", _each(format_duration)),
    ("power on average, W", "mean_power_w", _each(format_number)),
    ("cores busy on average", "mean_cpus", _each(format_number)),
    ("cores used", "cpu_efficiency", _each(format_percent)),
    ("memory used", "memory_efficiency", _each(format_percent)),
    ("GPUs used", "gpu_efficiency", _each(format_percent)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One quantity of both sides, in words.

    Attributes:
        first: The mean of the first side, with its interval where there is one.
        difference: By how much the second differs, with its interval where there is one.
        verdict: Whether that may be chance; empty where nobody can tell.
        change: The same in percent of the first.
    """

    label: str
    first: str
    second: str
    difference: str
    verdict: str
    change: str


def compared(first: Sequence[VisibleJob], second: Sequence[VisibleJob]) -> list[ComparedRow]:
    """Return what the runs of two sides came to beside each other.

    Args:
        first: The runs before.
        second: The runs after.
    """
    is_apart = not {each.ref for each in first} & {each.ref for each in second}
    one, other = ([each.record for each in side] for side in (first, second))
    return [
        _row(
            label,
            [getattr(each, name) for each in one],
            [getattr(each, name) for each in other],
            write,
            is_apart=is_apart,
        )
        for label, name, write in _SHOWN
    ]


def compared_phases(
    first: Mapping[str, Mapping[str, float]], second: Mapping[str, Mapping[str, float]]
) -> list[ComparedRow]:
    """Return the energy of the phases of two sides, as far as these have the same names.

    Args:
        first: The energy by phase of each run before, joules, by the run's `ref`.
        second: The same of each run after.
    """
    names = dict.fromkeys(name for side in (first, second) for run in side.values() for name in run)
    return [
        _row(
            name,
            [run.get(name, math.nan) for run in first.values()],
            [run.get(name, math.nan) for run in second.values()],
            _ENERGY,
            is_apart=not first.keys() & second.keys(),
        )
        for name in names
    ]


def energy_by_phase(phases: JobPhases | None) -> dict[str, float]:
    """Return what each phase of a job drew, joules."""
    sums: dict[str, float] = defaultdict(float)
    for each in () if phases is None else phases.found:
        sums[each.name] += each.times * each.duration_s * each.power_w
    return dict(sums)


def runs_like(viewer: Viewer, found: VisibleJob) -> list[str]:
    """Return runs that seem to be of the same program as one, the last first, itself among them.

    They are of the same user, partition, name and size, and went through.
    """
    of = found.record
    if not of.name or not of.user:
        return [found.ref]
    wanted = Wanted(users=[of.user], name=of.name, states=["completed"])
    alike = [
        each.ref
        for each in viewer.jobs(wanted, most=_SEARCHED)
        if _size(each) == _size(found) and each.ref != found.ref
    ]
    return [found.ref, *alike[: MOST_RUNS - 1]]


def _size(found: VisibleJob) -> tuple[object, ...]:
    of = found.record
    asked = [known(each) for each in (of.cpus, of.gpus, of.memory_bytes)]
    return of.name, of.partition, of.account, len(of.hosts), *asked


def _row(
    label: str,
    first: Sequence[float],
    second: Sequence[float],
    write: _Write,
    *,
    is_apart: bool,
) -> ComparedRow:
    given = (first, second)
    sides = [[each for each in side if not math.isnan(each)] for side in given]
    means = [Interval.of(side) if side else None for side in sides]
    one, two = (math.nan if mean is None else mean.value for mean in means)
    test = welch(sides[1], sides[0]) if all(sides) else None
    half = None if test is None or not is_apart else test.half
    low, high = (None, None) if half is None else (two - one - half, two - one + half)
    told = [mean.half if mean is not None else None for mean in means]
    texts = [
        # Lines break before an interval, and not within a figure.
        each.replace(" ", _NO_BREAK)
        for each in write([known(one), told[0], known(two), told[1], known(two - one), low, high])
    ]
    difference = f"+{texts[4]}" if two > one and texts[4] != MISSING else texts[4]
    verdict = ""
    if half is not None:
        difference += f" ({texts[5]} to{_NO_BREAK}{texts[6]})"
        verdict = "beyond chance" if abs(two - one) > half else "may be chance"
    return ComparedRow(
        label=label,
        first=_side(texts[0], texts[1], given[0], sides[0]),
        second=_side(texts[2], texts[3], given[1], sides[1]),
        difference=difference,
        verdict=verdict,
        change=percent_change(one, two),
    )


def _side(mean: str, half: str, given: Sequence[float], there: Sequence[float]) -> str:
    """Return a mean with its interval, and of how many runs it is where that is not all."""
    text = mean if half == MISSING else f"{mean} ±{_NO_BREAK}{half}"
    return f"{text}, of {len(there)}" if 0 < len(there) < len(given) else text
