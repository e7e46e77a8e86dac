"""Folders that pinpoint left: one reading per line, and what the program said beside it.

`measurements.csv` holds whole milliwatts, one per line, about 20 a second; its last two lines are
the epoch seconds at which the meter was switched on and off. `events.csv` holds `time, label`.
The meter may have been switched on before the program and off after it, and nothing says by how
much: `idle_time` tells. What a run was is told by its folder's name:
`roberta_full_…`, `roberta_stop_after_saving_epoch_2_5_…`, `roberta_continue_after_saving_2_5_…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lowtide import files
from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.idle_time import find_idle_time
from lowtide.formats.source import is_number
from lowtide.recording import Event, Recording, Run, power_trouble
from lowtide.signal import FloatArray

# Clocks show more than this since 2001, and no machine draws a megawatt in milliwatts.
_EPOCH = 1e9
_SAMPLES = "measurements.csv"
_EVENTS = "events.csv"
# An event may be off by this: programs write times down a little later or earlier.
_CLOCKS_S = 0.5
_STAMP = re.compile(r"_\d{10}$")


def recognises(path: Path) -> bool:
    """Return whether a folder holds a run of pinpoint."""
    samples = path / _SAMPLES
    if not samples.is_file():
        return False
    with samples.open("rb") as file:
        first = file.readline(100)
    return re.fullmatch(rb"-?\d*\.?\d*(nan)?\s*", first.lower()) is not None


def read(
    path: Path | str,
    *,
    idle_before_s: float | None = None,
    idle_after_s: float | None = None,
    known_w: Sequence[float] = (),
) -> Recording:
    """Read one run.

    Args:
        idle_before_s: How long the idle machine was measured before the program was started; by
            default this is found out.
        known_w: What the machine drew without a program, as `idle_powers_w` finds it.
    """
    folder = Path(path)
    readings = _readings(folder / _SAMPLES)
    on, off = map(float, readings[-2:])
    power_w = readings[:-2] / 1000.0
    step_s = (off - on) / power_w.size
    events = _events(folder / _EVENTS)
    _check_within(
        events, on, off, folder, "the meter's", "the clocks of meter and program may differ"
    )
    kind, pair = told_by_name(folder.name)
    if kind == "idle":
        # All of it is the idle machine; what is meant is between its events, where it has some.
        start, end = (events[0].time, events[-1].time) if len(events) >= 2 else (on, off)
        notes: tuple[str, ...] = ()
    else:
        idle = find_idle_time(
            power_w,
            step_s,
            events,
            on=on,
            before_s=idle_before_s,
            after_s=idle_after_s,
            known_w=known_w,
        )
        start, end = on + idle.before_s, off - idle.after_s
        notes = idle.notes
        if not start < end:
            raise FormatError(
                f"the program ran for {end - start:.1f} s by that: {off - on:.1f} s were measured, "
                f"{idle.before_s:g} s of them idle before it and {idle.after_s:g} s after it",
                path=folder / _SAMPLES,
            )
        _check_within(
            events, start, end, folder, "the program's", "name less --idle-before or --idle-after"
        )
    try:
        run = Run(
            id=folder.name,
            times=on + np.arange(power_w.size) * step_s,
            power_w=power_w,
            start=start,
            end=end,
            kind=kind,
            pair=pair,
            events=events,
            meters=("pinpoint",),
        )
    except InvalidInput as error:
        raise FormatError(str(error), path=folder / _SAMPLES) from error
    return Recording(runs=(run,), source=f"pinpoint, {folder.name}", notes=notes)


def idle_powers_w(folders: Iterable[Path]) -> list[float]:
    """Return what was drawn in those measurements that are of the idle machine alone.

    Args:
        folders: Folders, of pinpoint or not.
    """
    idle = [each for each in folders if told_by_name(each.name)[0] == "idle" and recognises(each)]
    # A median: what the machine did by itself for a moment does not count.
    return [float(np.median(run.idle())) for each in idle for run in read(each)]


def _check_within(
    events: Sequence[Event], start: float, end: float, folder: Path, whose: str, cure: str
) -> None:
    """Refuse events outside the time that was measured, or in which the program ran."""
    for number, event in enumerate(events):
        outside_s = max(start - event.time, event.time - end)
        if outside_s > _CLOCKS_S:
            where = "before" if event.time < start else "after"
            raise FormatError(
                f"event {number + 1}, {event.label!r}, lies {outside_s:.1f} s {where} {whose} "
                f"time, {start:.3f} to {end:.3f}: {cure}",
                path=folder / _EVENTS,
            )


def told_by_name(name: str) -> tuple[str | None, str | None]:
    """Return what kind of run a folder's name tells of, and what it shares with its pair.

    >>> told_by_name("roberta_continue_after_not_saving_2_5_0714031531")
    ('resume', 'roberta_stop_without_saving_2_5')
    >>> told_by_name("roberta_stop_without_saving_epoch_2_5_0714031113")
    ('kill', 'roberta_stop_without_saving_2_5')
    """
    plain = _STAMP.sub("", name)
    pair = plain.replace("continue", "stop").replace("after_not_saving", "without_saving")
    pair = pair.replace("epoch_", "")
    if "continue" in plain:
        return "resume", pair
    if "stop" in plain:
        return ("kill" if "without_saving" in plain else "stop"), pair
    if "sleep" in plain or "idle" in plain:
        return "idle", None
    return ("full" if "full" in plain else None), None


def _readings(path: Path) -> FloatArray:
    lines = files.read_text(path).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) < 4:
        raise FormatError(
            f"{len(lines)} lines are too few: readings in milliwatts, one per line, then the epoch "
            "seconds of start and end",
            path=path,
        )
    try:
        readings = np.array(lines, dtype=np.float64)
    except ValueError:
        row = next(row for row, line in enumerate(lines) if not is_number(line))
        raise FormatError(
            f"{lines[row].strip()!r} is not a number of milliwatts", path=path, line=row + 1
        ) from None
    on, off = readings[-2:]
    if not _EPOCH < on < off < 10 * _EPOCH:
        raise FormatError(
            f"the last two lines are epoch seconds of start and end, not {lines[-2]} and "
            f"{lines[-1]}: the measurement may have been cut short",
            path=path,
            line=len(lines) - 1,
        )
    if trouble := power_trouble(readings[:-2] / 1000.0):
        raise FormatError(trouble[1], path=path, line=trouble[0] + 1)
    return readings


def _events(path: Path) -> list[Event]:
    if not path.is_file():
        return []
    events: list[Event] = []
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        time, comma, label = line.partition(",")
        if not comma or not is_number(time) or not label.strip():
            raise FormatError(f"an event is 'time, label', not {line!r}", path=path, line=number)
        if events and float(time) < events[-1].time:
            raise FormatError(
                f"{time.strip()} comes before the event above it", path=path, line=number
            )
        events.append(Event(time=float(time), label=label.strip()))
    return events
