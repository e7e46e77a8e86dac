"""From options to signals, profiles and jobs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from lowtide.cli.moments import local_echo, parse_moment
from lowtide.cli.options import HOW
from lowtide.cli.output import waiting
from lowtide.errors import InvalidInput, NotCovered, UnknownName
from lowtide.formats import read_signal
from lowtide.formats.times import check_zone
from lowtide.grids import GRID_NAMES, synthetic_grid
from lowtide.grids.live import Retrieved, fetch_named
from lowtide.grids.providers import PROVIDERS, names_a_zone
from lowtide.profile import PowerProfile
from lowtide.samples import sample_names, sample_profile
from lowtide.signal import Grid, Signal
from lowtide.units import (
    TimeLike,
    format_hours,
    format_iso,
    format_time,
    parse_duration,
    parse_time,
)


def load_profile(profile: str | None, power_w: float | None, time_text: str | None) -> PowerProfile:
    """Return the profile that a job's options describe.

    Args:
        power_w: What the job draws, if it is constant.
    """
    if profile is not None:
        if power_w is not None or time_text is not None:
            raise InvalidInput("a profile says power and time itself: leave out --power and -t")
        return sample_profile(profile) if profile in sample_names() else PowerProfile.load(profile)
    if time_text is None or power_w is None:
        raise InvalidInput("say what the job draws: --profile FILE, or -t 6:00:00 --power 300")
    return PowerProfile.constant(power_w, parse_time_limit(time_text))


def parse_time_limit(text: str) -> float:
    """Return seconds from a time as sbatch takes it: a number alone is minutes."""
    return parse_duration(text, bare_unit_s=60.0)


def read_how(how: list[str] | None) -> dict[str, str]:
    """Return what `--how KEY=VALUE` says, as `read_signal` takes it."""
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
        now: What was taken for now.
        arrival: When the job may start.
        deadline: When it must be done.
        note: What the user should know of how these came about; empty if nothing.
    """

    signal: Signal | Grid
    now: float
    arrival: float
    deadline: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """In which zone times are told to people.

    Attributes:
        name: What stands in headings.
        tz: The zone; None for this machine's.
    """

    name: str = "UTC"
    tz: tzinfo | None = UTC

    @classmethod
    def named(cls, name: str | None) -> Zone:
        """Return the zone that `--tz` names.

        Args:
            name: An IANA name, or `local`; None for UTC.
        """
        if name is None:
            return cls()
        if name == "local":
            return cls(name="local", tz=None)
        check_zone(name)
        return cls(name=name, tz=ZoneInfo(name))

    def told(self, instant: float) -> str:
        """Return an instant in this zone, and in this machine's where that is another.

        Args:
            instant: Epoch seconds.
        """
        told, here = format_time(instant, self.tz), format_time(instant, None)
        # The day is said again only where it is another.
        same_day = told[:10] == here[:10]
        return told if told == here else f"{told} ({here[11:] if same_day else here} here)"


def load_window(
    file: Path | None,
    grid: str | None,
    arrival: str | None,
    deadline: str,
    *,
    now: str | None = None,
    seed: int,
    how: list[str] | None,
) -> Window:
    """Return the signal to plan on, and from when to when.

    A file that says nothing of now is refused, unless it was said from when to count: an answer
    about a time that is long past looks like any other.

    Args:
        grid: Or a provider's zone, or the name of a synthetic grid.
        arrival: When the job may start; by default now.
        deadline: When it must be done.
        now: What to take for now, by default what the clock says; `start` for the first moment of
            the file.
    """
    if file is not None and grid is not None:
        raise InvalidInput(
            f"a job runs on one grid: give --signal {file} or --grid {grid}, not both"
        )
    if file is None and grid is None:
        raise InvalidInput(
            "say which grid the job runs on: --signal FILE, or --grid with a provider's zone (gb, "
            "electricitymaps:DE, ...) or a synthetic one (sunny, windy, nuclear, coal)"
        )
    if grid is not None and not names_a_zone(grid) and grid not in GRID_NAMES:
        raise UnknownName("grid", grid.partition(":")[0], [*GRID_NAMES, *PROVIDERS.names()])
    if grid is not None and now == "start":
        raise InvalidInput("--now start is the first moment of a file: give --signal FILE with it")
    signal = None if file is None else read_signal(str(file), **read_how(how))
    clock = float(math.floor(time.time()))
    notes = []
    if signal is not None and now == "start":
        present = signal.start
        notes.append(f"Now is taken for {format_time(present)}, the first moment of the file.")
    elif now is not None:
        present = parse_moment(now, now=clock)
        notes += [local_echo("--now", now, present)]
        notes.append(f"Now is taken for {format_time(present)}, as --now says.")
    else:
        present = clock
    begin = present if arrival is None else _moment("--arrival", arrival, present, present, notes)
    if now is None and arrival is not None and begin < clock:
        notes.append("--arrival is past: this tells what would have been best.")
    if signal is not None and arrival in (None, "now"):
        _require_now(signal, begin, Path(str(file)).name, said=now is not None)
    end = _moment("--deadline", deadline, present, begin, notes)
    note = " ".join(filter(None, notes))
    if grid is not None and names_a_zone(grid):
        return _live_window(grid, begin, end, present, how, note)
    known: Signal | Grid
    if signal is not None:
        known = signal
    else:
        refuse_how(how, "a synthetic grid")
        midnight = begin - begin % 86400
        days = max(math.ceil((end - midnight) / 86400), 1)
        known = synthetic_grid(str(grid), start=midnight, days=days, seed=seed)
    return Window(signal=known, now=present, arrival=begin, deadline=end, note=note)


def read_moment(option: str, text: str, *, relative_to: float | None = None) -> float:
    """Return the moment that an option of a verb without a clock of its own names.

    Args:
        relative_to: What `+48h` counts from.
    """
    notes: list[str] = []
    now = float(math.floor(time.time()))
    moment = _moment(option, text, now, now if relative_to is None else relative_to, notes)
    for note in filter(None, notes):
        print(f"lowtide: {note}", file=sys.stderr)
    return moment


def _moment(option: str, text: str, now: float, relative_to: float, notes: list[str]) -> float:
    if text.strip().startswith("+"):
        return parse_time(text, relative_to=relative_to)
    moment = parse_moment(text, now=now)
    notes.append(local_echo(option, text, moment))
    return moment


def _require_now(signal: Signal, now: float, name: str, *, said: bool) -> None:
    """Refuse a file that says nothing of now."""
    if signal.covers(now, now) and now < signal.end:
        return
    span = f"{name} covers {format_time(signal.start)} to {format_time(signal.end)}"
    if now < signal.start:
        lack = f"begins {format_hours(signal.start - now)} after now"
        cure = f"--arrival {format_iso(signal.start)} for a job that may start then, or "
    else:
        lack, cure = f"ended {format_hours(now - signal.end)} before now", ""
    source = "as --now says" if said else "by the clock"
    raise NotCovered(
        f"{span}: it {lack} ({format_time(now)} {source}), and says nothing of when to start. Get "
        f"one that covers now, or say when now is: {cure}--now start for its first moment, "
        f"--now {format_iso(signal.start)} or any other"
    )


def _live_window(
    grid: str, begin: float, end: float, now: float, how: list[str] | None, note: str
) -> Window:
    found = load_live(grid, since=min(begin, now), how=how)
    signals = {each.signal.kind: each.signal for each in found}
    note = " ".join(filter(None, (note, *(each.note(now) for each in found))))
    average, marginal = signals.get("average"), signals.get("marginal")
    signal = marginal if average is None else Grid(average=average, marginal=marginal)
    if signal is None:
        raise InvalidInput(f"{grid} tells no carbon intensity")
    for each in found:
        each.signal.require(begin, end, what=str(each.name))
    return Window(signal=signal, now=now, arrival=begin, deadline=end, note=note)


def load_live(grid: str, *, since: TimeLike | None, how: list[str] | None) -> Sequence[Retrieved]:
    """Return what providers know of the zones that a name lists, and tell of problems.

    Args:
        grid: The name, such as `gb:13`.
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
    """Refuse `--how` where there is no file that it could be about."""
    if how:
        raise InvalidInput(f"--how says how to read a file, and {what} is none: leave it out")
