"""From options to signals, profiles and jobs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import InvalidInput, UnknownName
from lowtide.formats import read_signal
from lowtide.grid import Grid
from lowtide.grids import synthetic_grid
from lowtide.profile import PowerProfile
from lowtide.samples import sample_names, sample_profile
from lowtide.signal import Signal
from lowtide.units import format_time, parse_duration, parse_time

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
        grid: Or the name of a synthetic grid.
        arrival: When the job may start; by default now, or the first moment of a file of the past.
        deadline: When it must be done.
        seed: Which weather a synthetic grid has.
        how: How to read the file.
    """
    if (file is None) == (grid is None):
        raise InvalidInput(
            "say which grid the job runs on: --signal FILE, or --grid sunny|windy|nuclear|coal"
        )
    now = float(math.floor(time.time()))
    begin = now if arrival in (None, "now") else parse_time(str(arrival))
    if grid is not None:
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


def refuse_how(how: list[str] | None, what: str) -> None:
    """Refuse `--how` where there is no file that it could be about.

    Args:
        how: The options as they were given.
        what: What is used instead of a file.
    """
    if how:
        raise InvalidInput(f"--how says how to read a file, and {what} is none: leave it out")
