"""From options to signals, profiles and jobs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.cli.moments import local_echo, parse_moment
from lowtide.cli.options import HOW, JobOptions, usual_grid
from lowtide.cli.output import waiting, warn
from lowtide.errors import InvalidInput, NotCovered, UnknownName
from lowtide.grid import Grid, deciding_signal
from lowtide.grids.resolve import Resolved, kind_of, resolve
from lowtide.profile import PowerProfile
from lowtide.samples import sample_names, sample_profile
from lowtide.signal import Signal
from lowtide.units import (
    TimeLike,
    format_energy,
    format_hours,
    format_iso,
    format_time,
    parse_duration,
    parse_time,
    time_zone,
)

if TYPE_CHECKING:
    from lowtide.forecast import Forecast
    from lowtide.forecasting.auto import Auto
    from lowtide.policies import Plan

_DAY_S = 86_400.0
# How much of a synthetic grid lies before now where forecasts are made of it.
HISTORY_S = 60 * _DAY_S
# How far ahead of what is known anything is foreseen.
_REACH_S = 7 * _DAY_S


def load_profile(asked: JobOptions) -> PowerProfile:
    """Return the profile that a job's options describe."""
    if asked.profile is not None:
        if asked.power is not None or asked.time is not None:
            raise InvalidInput("a profile says power and time itself: leave out --power and -t")
        profile = named_profile(asked.profile, epochs=asked.epochs)
        beyond = _beyond(profile, asked)
        if profile.spread is None or beyond <= 1:
            return profile
        return replace(profile, spread=profile.spread.widened(beyond))
    if asked.epochs is not None:
        raise InvalidInput("--epochs says how often a profile repeats: give --profile with it")
    if asked.time is None or asked.power is None:
        raise InvalidInput("say what the job draws: --profile FILE, or -t 6:00:00 --power 300")
    return PowerProfile.constant(asked.power, parse_time_limit(asked.time))


def _beyond(profile: PowerProfile, asked: JobOptions) -> float:
    """Return how much less is known of a run that is longer than any: 1 for one that is not.

    Ten times as long is twice as uncertain: whatever slows a program down has ten times the time.
    """
    if asked.epochs is None:
        return 1.0
    return max(1 + math.log10(profile.run_s / named_profile(str(asked.profile)).run_s), 1.0)


def named_profile(
    name: str, *, epochs: int | None = None, library: Path | None = None
) -> PowerProfile:
    """Return the profile of a name: a file's, one that comes with lowtide, or a program's.

    Args:
        epochs: How many epochs it is to have; by default as many as it has.
        library: Where the library is; by default the usual one.
    """
    if name in sample_names():
        return sample_profile(name, epochs=epochs)
    if name.endswith((".toml", ".json")) or Path(name).is_file():
        return PowerProfile.load(name, epochs=epochs)
    from lowtide.library import Library

    return Library(library).find(name).with_epochs(epochs)


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
        caution: The part of it that says how far the plan is to be believed.
        forecast: What was foreseen now, where that is what is planned on.
        forecasts: What foresaw it.
        truth: What came instead, where it has come already.
    """

    signal: Signal | Grid
    now: float
    arrival: float
    deadline: float
    note: str = ""
    caution: str = ""
    forecast: Forecast | None = None
    forecasts: Auto | None = None
    truth: Signal | None = None


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
        return cls(name=name, tz=time_zone(name))

    def told(self, instant: float) -> str:
        """Return an instant in this zone, and in this machine's where that is another."""
        told, here = format_time(instant, self.tz), format_time(instant, None)
        # The day is said again only where it is another.
        same_day = told[:10] == here[:10]
        return told if told == here else f"{told} ({here[11:] if same_day else here} here)"


def load_window(asked: JobOptions) -> Window:
    """Return the signal to plan on, and from when to when.

    A file that says nothing of now is refused, unless it was said from when to count: an answer
    about a time that is long past looks like any other.
    """
    asked = replace(asked, grid=usual_grid(asked.signal, asked.grid))
    file, name, now, arrival = asked.signal, asked.grid, asked.now, asked.arrival
    if file is None and name is None:
        raise InvalidInput(
            "say which grid the job runs on: --signal FILE, or --grid with a provider's zone (gb, "
            "electricitymaps:DE, ...) or a synthetic one (sunny, windy, nuclear, coal), or set "
            "LOWTIDE_GRID"
        )
    kind = "file" if name is None else kind_of(name)
    if name is not None and now == "start":
        raise InvalidInput("--now start is the first moment of a file: give --signal FILE with it")
    signal = None
    if file is not None:
        # What reads files takes as much memory as all the rest.
        from lowtide.formats import read_signal

        signal = read_signal(str(file), **read_how(asked.how))
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
    if signal is not None and arrival in (None, "now") and asked.forecast is None:
        _require_now(signal, begin, Path(str(file)).name, said=now is not None)
    end = _moment("--deadline", asked.deadline, present, begin, notes)
    known: Signal | Grid
    if asked.forecast is not None:
        return _foreseen(asked, kind, signal, present, (begin, end), notes)
    if signal is not None:
        known = signal
    elif kind == "zone":
        found = find_grid(str(name), kind, since=min(begin, present), how=asked.how)
        known = found.grid
        notes.append(found.note(present))
        for each in found.retrieved:
            each.signal.require(begin, end, what=str(each.name))
    else:
        known = find_grid(
            str(name), kind, since=begin, until=end, how=asked.how, seed=asked.seed
        ).grid
    note = " ".join(filter(None, notes))
    return Window(signal=known, now=present, arrival=begin, deadline=end, note=note)


def kept_surely(window: Window, profile: PowerProfile, asked: JobOptions) -> Window:
    """Return a window whose deadline leaves time for a run that takes as long as it may.

    What is left is what a run takes beyond what the profile says; with `--sure` alone. That
    nobody has seen a run of so many epochs is said, too.
    """
    if (beyond := _beyond(profile, asked)) > 1:
        wider = f", and its interval is taken {beyond:.2g} times as wide" if profile.spread else ""
        told = f"{asked.epochs} epochs are more than were ever measured{wider}."
        window = _cautioned(window, told)
    if not asked.sure:
        return window
    if profile.spread is None:
        raise InvalidInput(
            "--sure needs a profile that says how much runs differ: learn it from two runs or "
            "more (lowtide learn RECORDING -o PROFILE)"
        )
    late_s = profile.spread.late_s(profile.run_s)
    told = (
        f"Planned to be done {format_hours(late_s)} before the deadline: so late may a run be "
        f"({100 * profile.spread.level:.0f} %)."
    )
    return replace(_cautioned(window, told), deadline=window.deadline - late_s)


def _cautioned(window: Window, told: str) -> Window:
    """Return a window of which something more is to be known."""
    note, caution = (" ".join(filter(None, (each, told))) for each in (window.note, window.caution))
    return replace(window, note=note, caution=caution)


def sure_fields(profile: PowerProfile, plan: Plan, *, knows_power: bool = True) -> dict[str, Any]:
    """Return between when a plan is done and what it draws, None where nobody knows how much."""
    spread = profile.spread
    if spread is None:
        return dict.fromkeys(("done_low", "done_high", "energy_low", "energy_high"))
    ends = (format_iso(plan.schedule.end_if(share)) for share in spread.duration)
    drawn_j = (share * plan.footprint.energy_j if knows_power else None for share in spread.energy)
    return dict(
        zip(("done_low", "done_high", "energy_low", "energy_high"), (*ends, *drawn_j), strict=True)
    )


def done_between(profile: PowerProfile, plan: Plan, zone: Zone) -> str:
    """Return between when a plan is done and what it draws, nothing where nobody knows."""
    if (spread := profile.spread) is None:
        return ""
    early, late = (plan.schedule.end_if(share) for share in spread.duration)
    first, last = format_time(early, zone.tz), format_time(late, zone.tz)
    # The day is said once, and so is the zone.
    last = last[11:] if first[:10] == last[:10] else last
    first = first.removesuffix(f" {last.rpartition(' ')[2]}")
    low, high = (format_energy(share * plan.footprint.energy_j) for share in spread.energy)
    return f"Done between {first} and {last}, with {low} to {high} ({100 * spread.level:.0f} %)."


def _foreseen(
    asked: JobOptions,
    kind: str,
    signal: Signal | None,
    now: float,
    window: tuple[float, float],
    notes: list[str],
) -> Window:
    """Return what is planned on where that is a forecast of what is known until now.

    Args:
        signal: The file's, where there is one.
        window: From when to when the job may run.
    """
    from lowtide.forecasting.auto import make_forecasts

    begin, end = window
    model = make_forecasts(str(asked.forecast))
    if signal is None:
        found = find_grid(
            str(asked.grid),
            kind,
            since=begin - HISTORY_S if kind == "synthetic" else None,
            until=end,
            how=asked.how,
            settled=True,
            **({"seed": asked.seed} if kind == "synthetic" else {}),
        )
        signal = deciding_signal(found.grid)
        notes.append(found.note(now))
    issued = min(now, signal.end)
    _require_history(signal, now)
    if end <= now:
        raise InvalidInput(
            f"--forecast is about what is yet to come, and the deadline, {format_time(end)}, is "
            f"past: leave it out, or say when now is with --now {format_iso(begin)}"
        )
    with waiting("foreseeing"):
        forecast = model.forecast(signal, issued, end - issued)
        notes += model.about(signal, issued)
    return Window(
        signal=forecast.signal,
        now=now,
        arrival=begin,
        deadline=end,
        note=" ".join(filter(None, notes)),
        forecast=forecast,
        forecasts=model,
        truth=signal if signal.covers(begin, end) else None,
    )


def _require_history(signal: Signal, now: float) -> None:
    """Refuse a history that begins after now, or ended too long ago to foresee anything from."""
    span = f"the history covers {format_time(signal.start)} to {format_time(signal.end)}"
    long_s = signal.end - signal.start
    if signal.start <= now <= signal.end + _REACH_S:
        return
    if now < signal.start:
        why = f"begins {format_hours(signal.start - now)} after now"
        moment = signal.start + _DAY_S
    else:
        why = (
            f"ended {format_hours(now - signal.end)} before now; forecasts reach "
            f"{format_hours(_REACH_S)} ahead of what is known"
        )
        moment = signal.end - min(_DAY_S, long_s - _DAY_S)
    # What is shorter than a day foresees nothing, whenever now is.
    cure = f", or say when now is with --now {format_iso(moment)}" if long_s >= _DAY_S else ""
    raise NotCovered(f"{span} and {why}: get one that covers the day before now{cure}")


def find_grid(
    name: str,
    kind: str,
    *,
    since: TimeLike | None = None,
    until: float | None = None,
    how: list[str] | None = None,
    settled: bool = False,
    **weather: Any,
) -> Resolved:
    """Return the grid that a name stands for, and tell of what providers could not say.

    Args:
        kind: What `kind_of` says of the name.
        settled: Whether of a zone all that ever came is asked for, and nothing that was expected.
        weather: What else a synthetic grid takes.
    """
    if kind == "synthetic":
        refuse_how(how, "a synthetic grid")
        return resolve(name, kind=kind, since=since, until=until, **weather)
    said = read_how(how)
    if kind == "file":
        return resolve(name, kind=kind, how=said)
    refuse_how([key for key in said if key != "gaps"], "a provider")
    with waiting(f"asking for {name}"):
        found = resolve(name, kind=kind, since=since, how=said, settled=settled)
    for each in found.retrieved:
        for problem in each.problems:
            warn(problem)
    return found


def read_moment(option: str, text: str, *, relative_to: float | None = None) -> float:
    """Return the moment that an option of a verb without a clock of its own names.

    Args:
        relative_to: What `+48h` counts from.
    """
    notes: list[str] = []
    now = float(math.floor(time.time()))
    moment = _moment(option, text, now, now if relative_to is None else relative_to, notes)
    for note in filter(None, notes):
        warn(note)
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


def refuse_how(how: list[str] | None, what: str) -> None:
    """Refuse `--how` where there is no file that it could be about."""
    if how:
        raise InvalidInput(f"--how says how to read a file, and {what} is none: leave it out")
