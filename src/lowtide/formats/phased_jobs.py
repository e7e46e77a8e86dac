"""Traces that say what their jobs draw over time: PM100, and the tables of carbs.

PM100 is a table of jobs as Parquet, with the power of every job sampled each 20 s. What carbs runs
is a table between bars, in which `type` and `args` say which phases a job goes through.
"""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from lowtide.changepoints import find_changes, noise_variance, price_of_a_change
from lowtide.errors import FormatError, InvalidInput, LowtideError
from lowtide.formats import jobs
from lowtide.formats.jobs import ZONELESS, JobReader, is_date, says_zone, seconds_only, waits
from lowtide.formats.source import Source
from lowtide.formats.table_reader import MOST, ParquetSheet, Sheet
from lowtide.formats.times import instants
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FloatArray
from lowtide.states import status_code
from lowtide.trace import Trace
from lowtide.units import format_count

# PM100: seconds between samples, and what they may be called, the whole job's first.
_SAMPLED_S = 20.0
# What Slurm calls endless.
_NO_LIMIT = 2.0**32 - 2
# What Slurm counts on each node of Marconi100: 32 cores, and four threads on each.
_NODE_CPUS = 128
_POWERS = ("node_power_consumption", "power_consumption")
# By what a trace calls them; a later release says cores where the first said CPUs.
_PM100 = {
    "cpus": ("num_cores_alloc", "num_cpus_alloc"),
    "gpus": ("num_gpus_alloc",),
    "nodes": ("num_nodes_alloc",),
    "requested_cpus": ("num_cores_req", "num_cpus_req"),
    "priority": ("priority",),
}
_PM100_TEXTS = {
    "id": "job_id",
    "user": "user_id",
    "group": "group_id",
    "partition": "partition",
    "queue": "qos",
}


def _recognises_pm100(source: Source) -> bool:
    sheet = Sheet.of(source)
    if not isinstance(sheet, ParquetSheet) or not {"job_id", "submit_time"} <= set(sheet.headings):
        return False
    return "run_time" in sheet.headings or {"start_time", "end_time"} <= set(sheet.headings)


def _read_pm100(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "PM100")
    sheet = Sheet.of(source)
    if not isinstance(sheet, ParquetSheet):
        raise FormatError(
            "PM100 is a Parquet file, and this is none: name job_table.parquet as it was fetched",
            path=source.path,
        )
    for needed in ("job_id", "submit_time"):
        sheet.find(needed)
    notes: list[str] = []
    arrival = _instants(sheet, "submit_time", notes)
    sheet.require("submit_time", np.isfinite(arrival), "a time is missing: leave the job out")
    columns: dict[str, Any] = {"arrival": arrival, "length_s": _ran(sheet, notes)}
    if "start_time" in sheet.headings:
        columns["wait_s"] = waits(arrival, _instants(sheet, "start_time", notes), notes)
    for name, headings in _PM100.items():
        there = [heading for heading in headings if heading in sheet.headings][:1]
        for heading in there:
            _, (values,) = sheet.read(numbers=[heading])
            sheet.require_sane(heading, values)
            columns[name] = values
    if "cpus" not in columns and "nodes" in columns:
        columns["cpus"] = _NODE_CPUS * columns["nodes"]
        notes.append(f"each node counts as {_NODE_CPUS} CPUs, as Slurm counted on Marconi100")
    if "time_limit" in sheet.headings:
        _, (minutes,) = sheet.read(numbers=["time_limit"])
        limited = (minutes > 0) & (minutes < _NO_LIMIT)
        columns["requested_s"] = np.where(limited, 60.0 * minutes, np.nan)
    for name, heading in _PM100_TEXTS.items():
        if heading in sheet.headings:
            (texts,), _ = sheet.read(texts=[heading])
            columns[name] = np.array(texts.to_list(), dtype=object)
    if "job_state" in sheet.headings:
        (states,), _ = sheet.read(texts=["job_state"])
        columns["status"] = [status_code(state) for state in states.to_list()]
    profiles: list[PowerProfile] = []
    for heading in [name for name in _POWERS if name in sheet.headings][:1]:
        places, watts = [], []
        sampled = sheet.lists(heading)
        if absurd := _absurd(sampled):
            notes.append(
                f"{format_count(absurd, 'sample')} of power below 0, or beyond all that a job "
                "draws: the one before holds on"
            )
        for samples, length_s in zip(sampled.to_list(), columns["length_s"].tolist(), strict=True):
            made = sampled_profile(samples or (), _SAMPLED_S, length_s)
            plain = made is None or len(made.work) == 1
            places.append(-1 if plain else len(profiles))
            watts.append(np.nan if made is None else made.energy_j / made.work_s)
            profiles += [] if plain or made is None else [made]
        columns |= {"power_w": watts, "profile": places}
    return Trace(
        columns=columns, source=f"PM100, {source.path.name}", profiles=profiles, notes=notes
    )


def _ran(sheet: Sheet, notes: list[str]) -> FloatArray:
    """Return how long jobs ran, by their start and end where nothing else says it."""
    if "run_time" in sheet.headings:
        _, (ran_s,) = sheet.read(numbers=["run_time"])
        sheet.require_sane("run_time", ran_s)
        return ran_s
    for heading in ("start_time", "end_time"):
        sheet.find(heading)
    ran_s = _instants(sheet, "end_time", notes) - _instants(sheet, "start_time", notes)
    sheet.require("end_time", ~(ran_s < 0), "the job ends before it starts: mend one of the times")
    return ran_s


def _absurd(samples: pl.Series) -> int:
    """Return how many samples are no power that anything draws."""
    watts = samples.explode()
    return int(((watts < 0) | (watts > MOST)).sum())


def _instants(sheet: Sheet, heading: str, notes: list[str]) -> FloatArray:
    """Return instants, NaN where a job has none; those without a zone are taken for UTC."""
    (texts,), _ = sheet.read(texts=[heading])
    known = texts.is_not_null().to_numpy()
    if not known.any():
        return np.full(known.size, np.nan)
    first = texts[int(known.argmax())]
    if is_date(first) and not says_zone(first) and ZONELESS not in notes:
        notes.append(ZONELESS)
    # Rows without a time are filled for the reader, so that it counts rows as the file has them.
    moments = instants(texts.fill_null(first), sheet.place(heading), tz="UTC")
    return np.where(known, moments, np.nan)


def sampled_profile(
    samples_w: Sequence[float | None], step_s: float, length_s: float
) -> PowerProfile | None:
    """Return the levels of a sampled job as phases that draw as much; None where nothing is known.

    Each sample holds until the next, the last until the end; those after the end are left out.
    Where one is missing, the one before it holds on.

    Args:
        samples_w: Watts, None or NaN where they are not known.
        step_s: How far samples are apart.
        length_s: How long the job ran.

    >>> made = sampled_profile([100.0] * 30 + [300.0] * 30, 20.0, 1200.0)
    >>> [(phase.duration_s, phase.power_w) for phase in made.work]
    [(600.0, 100.0), (600.0, 300.0)]
    """
    watts = np.array([np.nan if each is None else each for each in samples_w], np.float64)
    known = np.flatnonzero((watts >= 0) & (watts <= MOST))
    if not (known.size and length_s > 0):
        return None
    # The last known before each; before the first, the first.
    before = np.searchsorted(known, np.arange(watts.size), side="right") - 1
    watts = watts[known[np.maximum(before, 0)]]
    begins_s = step_s * np.arange(watts.size)
    watts, begins_s = watts[begins_s < length_s], begins_s[begins_s < length_s]
    lasting_s = np.diff(begins_s, append=length_s)
    edges = np.array([0, watts.size])
    if watts.size > 1:
        edges = find_changes(watts, price_of_a_change(noise_variance(watts, step_s), watts.size))
    energy_j = np.add.reduceat(watts * lasting_s, edges[:-1])
    spans_s = np.add.reduceat(lasting_s, edges[:-1])
    return PowerProfile(
        work=[
            Phase(name=f"level {place}", duration_s=span_s, power_w=joules / span_s)
            for place, (span_s, joules) in enumerate(
                zip(spans_s.tolist(), energy_j.tolist(), strict=True), 1
            )
        ]
    )


PM100 = JobReader(_recognises_pm100, _read_pm100)

# carbs: what its tables have, and how long a literal may be that is to be read.
_CARBS = ("arrival_time", "length", "cpus")
_LONGEST = 1_000_000
_MOST_PHASES = 100_000
# How far the phases of a job may be from its length, in seconds and as a share: some round it.
_NEAR_S, _NEAR = 1.0, 0.01


def _carbs_headings(source: Source) -> tuple[list[str], str]:
    """Return the headings of a table of carbs and what stands between them; none if it is none."""
    first = source.head.lstrip().split("\n", 1)[0].strip()
    separator = max("|,;\t", key=first.count)
    headings = [cell.strip() for cell in first.split(separator)]
    ours = set(headings) >= set(_CARBS) and (separator == "|" or "args" in headings)
    return (headings, separator) if ours else ([], separator)


def _recognises_carbs(source: Source) -> bool:
    return not source.is_parquet and bool(_carbs_headings(source)[0])


def _read_carbs(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "carbs")
    headings, separator = _carbs_headings(source)
    if not headings:
        raise FormatError(
            f"a table of carbs has {'|'.join(_CARBS)} and may have type and args",
            path=source.path,
            line=1,
        )
    kind = next((name for name in ("type", "name") if name in headings), None)
    reader = csv.reader(io.StringIO(source.text, newline=""), delimiter=separator)
    filled = (cells for cells in reader if any(cell.strip() for cell in cells))
    # All but type and args is a plain table, in which a row stays on its line.
    others = [name for name in headings if name not in (*_CARBS, kind, "args", "profile")]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    arrivals: list[float] = []
    places: list[int] = []
    unlike = 0
    profiles: list[PowerProfile] = []
    known: dict[tuple[str, str, str], int] = {}
    try:
        next(filled)
        table.write("\n" * (reader.line_num - 1))
        writer.writerow([*_CARBS, *others])
        line = reader.line_num
        for cells in filled:
            table.write("\n" * (reader.line_num - line - 1))
            line = reader.line_num
            if len(cells) != len(headings):
                raise FormatError(
                    f"this line has {len(cells)} cells under {len(headings)} headings",
                    path=source.path,
                    line=line,
                )
            row = dict(zip(headings, (cell.strip() for cell in cells), strict=True))
            numbers = {name: _number(source, line, name, row[name]) for name in _CARBS}
            said = (row.get(kind or "", ""), row.get("args", ""), row["length"])
            if said[0] and said[1] and said not in known:
                try:
                    made = _carbs_profile(said[0], said[1], numbers["length"])
                except LowtideError as error:
                    raise FormatError(
                        str(error), path=source.path, line=line, column="args"
                    ) from error
                known[said] = len(profiles)
                profiles.append(made)
            place = known.get(said, -1)
            whole_s = numbers["length"] if place < 0 else profiles[place].run_s
            unlike += abs(whole_s - numbers["length"]) > max(_NEAR_S, _NEAR * whole_s)
            writer.writerow([row[name] for name in (*_CARBS, *others)])
            arrivals.append(numbers["arrival_time"])
            places.append(place)
    except csv.Error as error:
        raise FormatError(
            f"not a readable table ({error})", path=source.path, line=reader.line_num
        ) from None
    if not places:
        raise FormatError("there is a heading and no row below it", path=source.path)
    told = jobs.read(Source(path=source.path, data=table.getvalue().encode()), "s")
    notes = list(told.notes)
    if unlike:
        notes.append(
            f"{format_count(unlike, 'job')} whose phases do not add up to the length: the phases "
            "count"
        )
    columns = dict(told.columns)
    if profiles:
        # A trace is in order of arrival.
        columns["profile"] = np.array(places)[np.argsort(arrivals, kind="stable")]
    return Trace(
        columns=columns, source=f"carbs, {source.path.name}", profiles=profiles, notes=notes
    )


def _number(source: Source, line: int, name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not 0 <= value <= MOST:
        raise FormatError(
            f"a number of 0 or more is needed here, not {cell!r}",
            path=source.path,
            line=line,
            column=name,
        )
    return value


def _carbs_profile(kind: str, text: str, length_s: float) -> PowerProfile:
    """Return what a job of carbs draws; its length is that of one whole run, startup included.

    Args:
        kind: How `args` are meant.
        text: A literal of Python: watts, phases, or startup and work by name.
    """
    if kind not in _KINDS:
        raise InvalidInput(f"unknown type {kind!r}: known are {', '.join(_KINDS)}")
    if len(text) > _LONGEST:
        raise InvalidInput(f"args have {len(text)} characters, and {_LONGEST} at most are read")
    try:
        args = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise InvalidInput(
            "args are no literal of numbers, texts, lists and tables, as Python writes them: "
            f"{text[:40]!r}"
        ) from None
    return _KINDS[kind](args, length_s)


def _constant(args: Any, length_s: float) -> PowerProfile:
    return PowerProfile.constant(_value(args, "the power"), length_s)


def _phases(args: Any, _length_s: float) -> PowerProfile:
    startup, work = _groups(args)
    return PowerProfile(startup=startup, work=work)


def _periodic(args: Any, length_s: float) -> PowerProfile:
    startup, work = _groups(_without_length(args))
    left_s = length_s - sum(phase.duration_s for phase in startup)
    if left_s <= 0:
        raise InvalidInput(f"the startup alone takes longer than the job's {length_s:g} s")
    if left_s > _MOST_PHASES * sum(phase.duration_s for phase in work) / len(work):
        raise InvalidInput(f"the job would have more than {_MOST_PHASES} phases")
    return PowerProfile.periodic(work, left_s, startup=startup)


def _averaged(made: Callable[[Any, float], PowerProfile]) -> Callable[[Any, float], PowerProfile]:
    return lambda args, length_s: made(args, length_s).averaged()


def _ml(args: Any, _length_s: float) -> PowerProfile:
    if not isinstance(args, Mapping):
        raise InvalidInput(f"args of a job of type ml are a table, not {args!r}")
    parts = {}
    for part in ("start", "training", "evaluate", "save"):
        keys = [f"{part}_{what}" for what in ("duration", "power")]
        if missing := [key for key in keys if key not in args]:
            raise InvalidInput(f"args of a job of type ml need {missing[0]}")
        duration_s, power_w = (_value(args[key], key) for key in keys)
        parts[part] = (duration_s, power_w)
    epochs = _value(args.get("epochs"), "epochs")
    if not 1 <= epochs <= _MOST_PHASES or epochs % 1:
        raise InvalidInput(f"epochs are a whole number from 1 to {_MOST_PHASES}, not {epochs:g}")
    given = {part: pair for part, pair in parts.items() if pair[0] > 0}
    if "training" not in given:
        raise InvalidInput("training_duration is more than 0")
    return PowerProfile.ml(
        epochs=int(epochs),
        train=given["training"],
        evaluate=given.get("evaluate"),
        save=given.get("save"),
        startup=given.get("start"),
    )


_KINDS: Mapping[str, Callable[[Any, float], PowerProfile]] = {
    "constant": _constant,
    "phases": _phases,
    "constant-from-phases": _averaged(_phases),
    "mocked-constant-from-phases": _averaged(_phases),
    "periodic-phases": _periodic,
    "constant-from-periodic-phases": _averaged(_periodic),
    "ml": _ml,
}


def _without_length(args: Any) -> Any:
    """Return phases that come with the job's length behind them, which the table says as well."""
    pair = isinstance(args, list | tuple) and len(args) == 2
    return args[0] if pair and isinstance(args[0], Mapping) and "work" in args[0] else args


def _groups(args: Any) -> tuple[list[Phase], list[Phase]]:
    """Return startup and work; a list alone is work."""
    if isinstance(args, Mapping) and "work" in args:
        startup, work = args.get("startup", ()), args["work"]
    else:
        startup, work = (), args
    groups = []
    for name, rows in (("startup", startup), ("work", work)):
        if not isinstance(rows, list | tuple):
            raise InvalidInput(f"{name} is a list of phases, not {rows!r}")
        phases = []
        for row in rows:
            if not isinstance(row, Mapping):
                raise InvalidInput(f"a phase has a duration and a power, unlike {row!r}")
            duration_s = _value(row.get("duration"), "the duration of a phase")
            power_w = _value(row.get("power"), "the power of a phase")
            if duration_s:
                saves = row.get("is_checkpoint") is True
                called = str(row.get("name") or name)
                phases.append(
                    Phase(name=called, duration_s=duration_s, power_w=power_w, checkpoint=saves)
                )
        groups.append(phases)
    if not groups[1]:
        raise InvalidInput("a job has at least one phase of work")
    return groups[0], groups[1]


def _value(value: Any, what: str) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        number = float(value) if good else np.nan
    except OverflowError:
        number = np.inf
    if not 0 <= number <= MOST:
        raise InvalidInput(f"{what} is a number of 0 or more, not {value!r}"[:200])
    return number


CARBS = JobReader(_recognises_carbs, _read_carbs)
