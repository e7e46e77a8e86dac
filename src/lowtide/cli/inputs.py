"""From options to signals, profiles and jobs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide.cli.output import waiting
from lowtide.errors import InvalidInput, UnknownName
from lowtide.formats import read_signal
from lowtide.grid import Grid
from lowtide.grids import GRID_NAMES, synthetic_grid
from lowtide.grids.feed import Retrieved
from lowtide.grids.live import fetch_named
from lowtide.grids.providers import PROVIDERS, names_a_zone
from lowtide.profile import PowerProfile
from lowtide.samples import sample_names, sample_profile
from lowtide.signal import Signal
from lowtide.units import TimeLike, format_time, parse_duration, parse_time

HOW = ("basis", "column", "format", "gaps", "kind", "tz", "unit", "zone")


def load_profile(profile: str | None, power_w: float | None, time_text: str | None) -> PowerProfile:
    """Return the profile that a job's options describe.

    Args:
        profile: A file, or the name of a sample.
        power_w: What the job draws, if it is constant.
        time_text: How long it works then.
    """
    if profile is not None:
        if power_w is not None or time_text is not None:
            raise InvalidInput("a profile says power and time itself: leave out --power and -t")
        return sample_profile(profile) if profile in sample_names() else PowerProfile.load(profile)
    if time_text is None or power_w is None:
        raise InvalidInput("say what the job draws: --profile FILE, or -t 6:00:00 --power 300")
    return PowerProfile.constant(power_w, parse_time_limit(time_text))


def parse_time_limit(text: str) -> float:
    """Return seconds from a time as sbatch takes it: a number alone is minutes.

    Args:
        text: The time.
    """
    return parse_duration(text, bare_unit_s=60.0)


def read_how(how: list[str] | None) -> dict[str, str]:
    """Return what `--how KEY=VALUE` says, as `read_signal` takes it.

    Args:
        how: The options as they were given.
    """
    said: dict[str, str] = {}
    for each in how or []:
        key, equals, value = each.partition("=")
        if not equals or not value:
            raise InvalidInput(f"--how takes KEY=VALUE, such as gaps=hold, not {each!r}")
        if key not in HOW:
            raise UnknownName("key of --how", key, HOW)
        said[key] = value
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a job is planned on.

    Attributes:
        signal: The signal, or the grid.
        arrival: When the job may start.
        deadline: When it must be done.
        note: What the user should know of how these came about; empty if nothing.
    """

    signal: Signal | Grid
    arrival: float
    deadline: float
    note: str = ""


def load_window(
    file: Path | None,
    grid: str | None,
    arrival: str | None,
    deadline: str,
    *,
    seed: int,
    how: list[str] | None,
) -> Window:
    """Return the signal to plan on, and from when to when.

    Args:
        file: A signal file.
        grid: Or a provider's zone, or the name of a synthetic grid.
        arrival: When the job may start; by default now, or the first moment of a file of the past.
        deadline: When it must be done.
        seed: Which weather a synthetic grid has.
        how: How to read the file.
    """
    if (file is None) == (grid is None):
        raise InvalidInput(
            "say which grid the job runs on: --signal FILE, or --grid with a provider's zone (gb, "
            "electricitymaps:DE, ...) or a synthetic one (sunny, windy, nuclear, coal)"
        )
    now = float(math.floor(time.time()))
    begin = now if arrival in (None, "now") else parse_time(str(arrival))
    if grid is not None and names_a_zone(grid):
        return _live_window(grid, begin, parse_time(deadline, relative_to=begin), now, how)
    if grid is not None:
        if grid not in GRID_NAMES:
            raise UnknownName("grid", grid.partition(":")[0], [*GRID_NAMES, *PROVIDERS.names()])
        refuse_how(how, "a synthetic grid")
        end = parse_time(deadline, relative_to=begin)
        midnight = begin - begin % 86400
        days = max(math.ceil((end - midnight) / 86400), 1)
        made = synthetic_grid(grid, start=midnight, days=days, seed=seed)
        return Window(signal=made, arrival=begin, deadline=end)
    signal = read_signal(str(file), **read_how(how))
    note = ""
    if arrival is None and not signal.covers(now, now):
        begin = signal.start
        note = (
            f"The file covers {format_time(signal.start)} to {format_time(signal.end)}, not now: "
            "counting from its first moment."
        )
    end = parse_time(deadline, relative_to=begin)
    return Window(signal=signal, arrival=begin, deadline=end, note=note)


def _live_window(grid: str, begin: float, end: float, now: float, how: list[str] | None) -> Window:
    found = load_live(grid, since=min(begin, now), how=how)
    signals = {each.signal.kind: each.signal for each in found}
    note = " ".join(each.note(now) for each in found)
    average, marginal = signals.get("average"), signals.get("marginal")
    signal = marginal if average is None else Grid(average=average, marginal=marginal)
    if signal is None:
        raise InvalidInput(f"{grid} tells no carbon intensity")
    for each in found:
        each.signal.require(begin, end, what=str(each.name))
    return Window(signal=signal, arrival=begin, deadline=end, note=note)


def load_live(grid: str, *, since: TimeLike | None, how: list[str] | None) -> Sequence[Retrieved]:
    """Return what providers know of the zones that a name lists, and tell of problems.

    Args:
        grid: The name, such as `gb:13`.
        since: The first moment that is needed.
        how: What to do with gaps, if anything.
    """
    said = read_how(how)
    gaps = said.pop("gaps", "refuse")
    refuse_how(list(said), "a provider")
    with waiting(f"asking for {grid}"):
        found = fetch_named(grid, since=since, gaps=gaps)
    for each in found:
        for problem in each.problems:
            print(f"lowtide: {problem}", file=sys.stderr)
    return found


def refuse_how(how: list[str] | None, what: str) -> None:
    """Refuse `--how` where there is no file that it could be about.

    Args:
        how: The options as they were given.
        what: What is used instead of a file.
    """
    if how:
        raise InvalidInput(f"--how says how to read a file, and {what} is none: leave it out")
