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

from lowtide.changepoints import find_changes, noise_variance, price_of_a_change
from lowtide.errors import FormatError, InvalidInput, LowtideError
from lowtide.formats.jobs import JobReader, is_date, says_zone, seconds_only
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
_ZONELESS = "times have no zone: they are taken as they stand, as if in UTC"
# What Slurm calls endless.
_NO_LIMIT = 2.0**32 - 2
_POWERS = ("node_power_consumption", "power_consumption")
# By what a trace calls them; a later release says cores where the first said CPUs.
_PM100 = {
    "length_s": ("run_time",),
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
    needed = {"job_id", "submit_time", "run_time"}
    return isinstance(sheet, ParquetSheet) and needed <= set(sheet.headings)


def _read_pm100(source: Source, time_unit: str | None) -> Trace:
    seconds_only(time_unit, "PM100")
    sheet = Sheet.of(source)
    if not isinstance(sheet, ParquetSheet):
        raise FormatError("PM100 is a Parquet file, and this is none", path=source.path)
    for needed in ("job_id", "submit_time", "run_time"):
        sheet.find(needed)
    notes: list[str] = []
    arrival = _instants(sheet, "submit_time", notes)
    sheet.require("submit_time", np.isfinite(arrival), "a time is missing")
    columns: dict[str, Any] = {"arrival": arrival}
    if "start_time" in sheet.headings:
        waited_s = _instants(sheet, "start_time", notes) - arrival
        if early := int(np.count_nonzero(waited_s < 0)):
            notes.append(
                f"{format_count(early, 'job')} said to start before it was submitted: how long "
                "that waited is unknown"
            )
        columns["wait_s"] = np.where(waited_s >= 0, waited_s, np.nan)
    for name, headings in _PM100.items():
        there = [heading for heading in headings if heading in sheet.headings][:1]
        for heading in there:
            _, (values,) = sheet.read(numbers=[heading])
            sheet.require_sane(heading, values)
            columns[name] = values
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
        for samples, length_s in zip(
            sheet.lists(heading).to_list(), columns["length_s"].tolist(), strict=True
        ):
            made = sampled_profile(samples or (), _SAMPLED_S, length_s)
            plain = made is None or len(made.work) == 1
            places.append(-1 if plain else len(profiles))
            watts.append(np.nan if made is None else made.energy_j / made.work_s)
            profiles += [] if plain or made is None else [made]
        columns |= {"power_w": watts, "profile": places}
    return Trace(
        columns=columns, source=f"PM100, {source.path.name}", profiles=profiles, notes=notes
    )


def _instants(sheet: Sheet, heading: str, notes: list[str]) -> FloatArray:
    """Return instants, NaN where a job has none; those without a zone are taken for UTC."""
    (texts,), _ = sheet.read(texts=[heading])
    known = texts.is_not_null().to_numpy()
    if not known.any():
        return np.full(known.size, np.nan)
    first = texts[int(known.argmax())]
    if is_date(first) and not says_zone(first) and _ZONELESS not in notes:
        notes.append(_ZONELESS)
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
    rows: list[dict[str, Any]] = []
    profiles: list[PowerProfile] = []
    known: dict[tuple[str, str, str], int] = {}
    try:
        next(reader)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(headings):
                raise FormatError(
                    f"this line has {len(cells)} cells under {len(headings)} headings",
                    path=source.path,
                    line=reader.line_num,
                )
            row = dict(zip(headings, (cell.strip() for cell in cells), strict=True))
            numbers = {name: _number(source, reader.line_num, name, row[name]) for name in _CARBS}
            said = (row.get(kind or "", ""), row.get("args", ""), row["length"])
            if said[0] and said[1] and said not in known:
                try:
                    made = _carbs_profile(said[0], said[1], numbers["length"])
                except LowtideError as error:
                    raise FormatError(
                        str(error), path=source.path, line=reader.line_num, column="args"
                    ) from error
                known[said] = len(profiles)
                profiles.append(made)
            rows.append({**numbers, "profile": known.get(said, -1)})
    except csv.Error as error:
        raise FormatError(
            f"not a readable table ({error})", path=source.path, line=reader.line_num
        ) from None
    if not rows:
        raise FormatError("there is a heading and no row below it", path=source.path)
    columns = {
        "arrival": [row["arrival_time"] for row in rows],
        "length_s": [row["length"] for row in rows],
        "cpus": [row["cpus"] for row in rows],
    }
    if profiles:
        columns["profile"] = [row["profile"] for row in rows]
    return Trace(columns=columns, source=f"carbs, {source.path.name}", profiles=profiles)


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
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"args are no literal of numbers, lists and tables ({error})") from None
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
