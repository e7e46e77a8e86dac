"""A table of samples and a table of events beside it, each with a column `run`.

Samples have `time` in epoch seconds, or as ISO 8601 with its zone, and a power in watts or an
energy counter; what else is numeric is kept. Events are `time,run,event`, and may have
`checkpoint`. The events of `full_samples.csv.gz` are found in `full_events.csv`. A run's kind is
told by its name: `full_0`, `stop_0`, `abort_0`, `stop_0_resumed`, `idle`. A counter that wraps is
followed where its range stands beside it, in a column such as `max_energy_range_uj`.

A program runs from an event that says that it starts to one that says that it ends. Where none
says so, it runs from the first sample to the last, less what is sure to be the idle machine
(`idle_time`); what was left out is noted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.counters import RowArray, follow_counter, power_from_counter
from lowtide.formats.idle_time import find_idle_time, says_the_end, says_the_start
from lowtide.formats.source import Source
from lowtide.formats.table_reader import Sheet
from lowtide.formats.times import instants
from lowtide.recording import Event, Recording, Run, power_trouble, told_together
from lowtide.signal import FloatArray

_COUNTER = re.compile(r"energy.*_(uj|mj|j|kj)$")
_RANGE = re.compile(r"^max_.*energy.*range.*_(uj|mj|j|kj)$")
_POWER = re.compile(r"(^power|_power|power_).*_(uw|mw|w|kw)$|^(uw|mw|w|kw|watts?)$")
_SCALES = {"u": 1e-6, "m": 1e-3, "k": 1e3}
_STAMP = re.compile(r"\s*\d{4}-\d{2}-\d{2}[T ]\d")
_ZONED = re.compile(r"(Z|[+-]\d{2}:?\d{2})\s*$")
_RESUMED = re.compile(r"[_ -]?(resumed?|continued?|resumption)$")
# What lies outside of a program for less than this is not told.
_WORTH_TELLING_S = 0.5
# Samples so uneven are not searched for idle time.
_MOST_UNEVEN = 20
# Beyond this, numbers are slips: microjoules of a year stay far below.
_MOST = 1e24
_KINDS = (
    ("idle", ("idle", "sleep")),
    ("kill", ("kill", "abort", "crash")),
    ("stop", ("stop", "suspend", "preempt")),
    ("startup", ("startup",)),
    ("full", ("full", "unstopped", "uninterrupted")),
)


def table_of(path: Path) -> str | None:
    """Return whether a file is a table of `samples` or of `events`, None where of neither."""
    sheet = Sheet.of(Source.open(path))
    if sheet is None or "time" not in sheet.headings:
        return None
    if "event" in sheet.headings:
        return "events"
    return "samples" if _power_columns(sheet) else None


def events_beside(path: Path) -> Path | None:
    """Return the events that belong to a table of samples by its name, if they are there."""
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    for name in (stem.replace("samples", "events"), f"{stem}_events"):
        for suffix in (".csv", ".csv.gz"):
            beside = path.with_name(name + suffix)
            if beside != path and beside.is_file():
                return beside
    return None


def read(
    path: Path | str,
    *,
    events: Path | None = None,
    idle_before_s: float | None = None,
    idle_after_s: float | None = None,
) -> Recording:
    """Read samples, and the events that belong to them.

    Args:
        events: The table of events, where it is not found by its name.
        idle_before_s: How long the idle machine was measured before each program; by default this
            is found out.
    """
    path = Path(path)
    sheet = Sheet.of(Source.open(path))
    if sheet is None or not (columns := _power_columns(sheet)):
        raise FormatError("this is no table of samples with a time and a power", path=path)
    power = _choose(sheet, columns)
    texts = ["run"] if "run" in sheet.headings else []
    further = [
        name
        for name in dict.fromkeys(sheet.headings)
        if name not in ("time", "run", power) and not _COUNTER.search(name.lower())
    ]
    ranges = [name for name in sheet.headings if _RANGE.search(name.lower())]
    names, times, numbers = _read_timed(
        sheet, "time", texts=texts, numbers=[power, *further, *ranges[:1]]
    )
    readings = numbers[0]
    range_j = _range_j(ranges[0], numbers.pop()) if ranges else None
    for name, column in (("time", times), (power, readings)):
        if (wild := np.isinf(column) | (np.abs(column) > _MOST)).any():
            raise sheet.place(name).error(
                "no time, power or energy is that large", int(wild.argmax())
            )
    if np.isnan(times).any():
        raise sheet.place("time").error("a time is missing", int(np.isnan(times).argmax()))
    beside = events or events_beside(path)
    said = {} if beside is None else _read_events(beside)
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    labels = names[0].to_list() if names else [_only(list(said), stem)] * times.size
    measured = []
    for name in dict.fromkeys(labels):
        rows = np.flatnonzero(np.array([label == name for label in labels]))
        if name is None:
            raise sheet.place("run").error("a sample belongs to a run", int(rows[0]))
        _check_order(sheet, times, rows)
        when, power_w, kept, notes = _power(
            sheet, power, range_j, times[rows], readings[rows], rows
        )
        beside_power = {
            further_name: values[rows][kept]
            for further_name, values in zip(further, numbers[1:], strict=True)
        }
        measured.append((str(name), when, power_w, beside_power, notes))
    known_w = [
        float(np.median(power_w))
        for name, _, power_w, *_ in measured
        if told_by_name(name)[0] == "idle" and power_w.size
    ]
    runs = []
    told: list[tuple[str, str]] = []
    for name, when, power_w, beside_power, notes in measured:
        marks = said.get(name, [])
        start, end, cut = _program_time(
            name, when, power_w, marks, (idle_before_s, idle_after_s), known_w
        )
        told += [(each, name) for each in cut]
        runs.append(
            _run(name, when, power_w, (start, end), beside_power, marks, path, power, notes)
        )
    return Recording(
        runs=tuple(runs),
        source=f"samples, {path.name}",
        notes=tuple(
            f"{note} ({f'run {names[0]}' if len(names) == 1 else f'{len(names)} runs'})"
            for note, names in told_together(told)
        ),
    )


def _program_time(
    name: str,
    times: FloatArray,
    power_w: FloatArray,
    events: Sequence[Event],
    idle_s: tuple[float | None, float | None],
    known_w: Sequence[float],
) -> tuple[float | None, float | None, list[str]]:
    """Return when a program began and ended, None where with the samples, and what was cut.

    Args:
        idle_s: The idle time before and after it, as far as it is known.
        known_w: What the machine drew without a program.
    """
    if times.size < 2:
        return None, None, []
    step_s = float(np.median(np.diff(times)))
    over = float(times[-1]) + step_s
    if told_by_name(name)[0] == "idle":
        # All of it is the idle machine; what is meant is between its events, where it has some.
        # Who begins to measure with an event gets the first sample a moment later.
        inside = [each.time for each in events if times[0] - 10 * step_s <= each.time <= over]
        return (inside[0], inside[-1], []) if len(inside) > 1 else (None, None, [])
    before_s, after_s = idle_s
    notes = []
    # An event that lies elsewhere was told by another clock, and ends nothing.
    if before_s is None and says_the_start(events) and times[0] <= events[0].time < over:
        before_s = events[0].time - float(times[0])
        if before_s >= _WORTH_TELLING_S:
            notes.append(
                f"the program starts with its event {events[0].label!r}: the {before_s:.1f} s "
                "before it are left out"
            )
    if after_s is None and says_the_end(events) and times[0] < events[-1].time <= over:
        after_s = over - events[-1].time
        if after_s >= _WORTH_TELLING_S:
            notes.append(
                f"the program ends with its last event, {events[-1].label!r}: the {after_s:.1f} s "
                "after it are left out"
            )
    if before_s is None or after_s is None:
        count = round((over - float(times[0])) / step_s)
        if count <= _MOST_UNEVEN * times.size:
            grid = times[0] + step_s * np.arange(count)
            held_w = power_w[np.searchsorted(times, grid + 1e-6 * step_s, side="right") - 1]
            # An end that only another clock tells is none.
            heard = [each for each in events if times[0] <= each.time <= over]
            found = find_idle_time(
                held_w,
                step_s,
                heard,
                on=float(times[0]),
                before_s=before_s,
                after_s=after_s,
                known_w=known_w,
            )
            before_s, after_s = found.before_s, found.after_s
            notes += [each for each in found.notes if not each.startswith("no idle time")]
    start = float(times[0]) + before_s if before_s else None
    return start, over - after_s if after_s else None, notes


def told_by_name(name: str) -> tuple[str | None, str | None]:
    """Return what kind of run a name tells of, and what it shares with its pair.

    >>> told_by_name("stop_0_resumed"), told_by_name("abort_0"), told_by_name("full_2")
    (('resume', 'stop_0'), ('kill', 'abort_0'), ('full', None))
    """
    plain = name.lower()
    if match := _RESUMED.search(plain):
        return "resume", name[: match.start()]
    for kind, words in _KINDS:
        if any(word in plain for word in words):
            return kind, name if kind in ("stop", "kill") else None
    return None, None


def _run(
    name: str,
    times: FloatArray,
    power_w: FloatArray,
    between: tuple[float | None, float | None],
    columns: dict[str, FloatArray],
    events: list[Event],
    path: Path,
    meter: str,
    notes: list[str],
) -> Run:
    kind, pair = told_by_name(name)
    try:
        return Run(
            id=name,
            times=times,
            power_w=power_w,
            start=between[0],
            end=between[1],
            kind=kind,
            pair=pair,
            columns=columns,
            events=events,
            meters=(meter,),
            notes=notes,
        )
    except InvalidInput as error:
        raise FormatError(str(error), path=path) from error


def _power_columns(sheet: Sheet) -> list[str]:
    found = [
        name
        for name in sheet.headings
        if _COUNTER.search(name.lower()) and not _RANGE.search(name.lower())
    ]
    return found + [name for name in sheet.headings if _POWER.search(name.lower())]


def _choose(sheet: Sheet, columns: list[str]) -> str:
    """Return the column that says best what was drawn: ours, a counter, the quickest gauge."""
    if "power_w" in columns:
        return "power_w"
    counters = [name for name in columns if _COUNTER.search(name.lower())]
    gauges = [name for name in columns if name not in counters]
    for found in (counters, gauges, [name for name in gauges if "inst" in name.lower()]):
        if len(found) == 1:
            return found[0]
    raise FormatError(
        f"which of {', '.join(columns)} is the power? Name the one that counts power_w",
        path=sheet.source.path,
    )


def _scale(column: str) -> float:
    """Return how many watts or joules a column's unit is."""
    unit = column.lower().rpartition("_")[2]
    return _SCALES.get(unit[0] if len(unit) == 2 else "", 1.0)


def _range_j(column: str, values: FloatArray) -> float | None:
    """Return the range of the counter, which is the same in all rows that have it."""
    known = values[np.isfinite(values)]
    return float(known[0]) * _scale(column) if known.size and known[0] > 0 else None


def _power(
    sheet: Sheet,
    column: str,
    range_j: float | None,
    times: FloatArray,
    readings: FloatArray,
    rows: RowArray,
) -> tuple[FloatArray, FloatArray, RowArray, list[str]]:
    """Return times, watts, which of the samples are kept, and what happened to the counter."""
    scaled = readings * _scale(column)
    notes = []
    if _COUNTER.search(column.lower()):
        known = ~np.isnan(scaled)
        try:
            energy_j, resets = follow_counter(scaled[known], range_j)
            ticks, power_w, kept = power_from_counter(times[known], energy_j)
        except InvalidInput as error:
            raise sheet.place(column).error(str(error), int(rows[0])) from None
        # What was drawn from the last tick before a reset to the first after it is not known.
        whole = np.ones(kept.size, dtype=bool)
        for row in resets:
            whole[np.flatnonzero(kept < row)[-1:]] = False
        ticks, power_w, kept = ticks[whole], power_w[whole], kept[whole]
        kept = np.flatnonzero(known)[kept]
        notes = [
            f"the energy counter {column} was reset before {times[known][row]:.3f}: that sample is "
            "left out"
            for row in resets
        ]
    else:
        ticks, power_w, kept = times, scaled, np.arange(times.size)
    if trouble := power_trouble(power_w):
        raise sheet.place(column).error(trouble[1], int(rows[kept[trouble[0]]]))
    return ticks, power_w, kept, notes


def _check_order(sheet: Sheet, times: FloatArray, rows: RowArray) -> None:
    back = np.flatnonzero(np.diff(times[rows]) <= 0)
    if back.size:
        row = int(rows[back[0] + 1])
        raise sheet.place("time").error(
            f"{times[row]:.6f} does not come after the sample before it: sort the samples of each "
            "run and leave out repetitions",
            row,
        )


def _read_events(path: Path) -> dict[str, list[Event]]:
    sheet = Sheet.of(Source.open(path))
    if sheet is None:
        raise FormatError("this is no table of events: time,run,event", path=path)
    columns = [sheet.find("run"), sheet.find("event")]
    if "checkpoint" in sheet.headings:
        columns.append("checkpoint")
    texts, times, _ = _read_timed(sheet, sheet.find("time"), texts=columns)
    said: dict[str, list[Event]] = {}
    flags = texts[2] if len(texts) > 2 else pl.Series([None] * times.size, dtype=pl.String)
    for row, (time, run, label, flag) in enumerate(
        zip(times.tolist(), texts[0], texts[1], flags, strict=True)
    ):
        if not np.isfinite(time) or run is None or label is None:
            raise sheet.place("event").error("an event needs a time, a run and a label", row)
        before = said.setdefault(run, [])
        if before and time < before[-1].time:
            raise sheet.place("time").error(
                f"{time:.6f} comes before the event above it of run {run}", row
            )
        checkpoint = (flag or "").strip().lower() in ("1", "true", "yes")
        before.append(Event(time=time, label=label, checkpoint=checkpoint))
    return said


def _read_timed(
    sheet: Sheet, time: str, *, texts: Sequence[str], numbers: Sequence[str] = ()
) -> tuple[list[pl.Series], FloatArray, list[FloatArray]]:
    """Read columns, and the times beside them: epoch seconds, or ISO 8601 with a zone."""
    if not _STAMP.match(first := sheet.first(time) or ""):
        words, (times, *values) = sheet.read(texts=texts, numbers=[time, *numbers])
        return words, times, values
    (stamps, *words), values = sheet.read(texts=[time, *texts], numbers=numbers)
    if not _ZONED.search(first):
        raise sheet.place(time).error(
            f"{first.strip()!r} does not say its time zone: write {first.strip()}Z if it is UTC, "
            "or the offset, such as +02:00, behind each",
            0,
        )
    return words, instants(stamps, sheet.place(time), tz=None), values


def _only(names: list[str], otherwise: str) -> str:
    return names[0] if len(names) == 1 else otherwise
