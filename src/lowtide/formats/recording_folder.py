"""Our own recordings on disk: a folder that is whole at every moment of being written.

```
manifest.json            what each run is: kind, pair, start, end, meters, machine, notes
samples-0001.parquet     samples in parts: run, time, power_w and further columns
samples-0001-0090.parquet   parts 1 to 90 joined, once the recording is closed
events.csv               time,run,event,checkpoint; a line is added whenever something happens
```

Every part and every manifest is written beside its place and renamed, so a kill at any moment
loses at most the samples that were not flushed. A joined part makes the parts it covers void,
whether or not they could still be removed.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide import files
from lowtide.errors import FileProblem, FormatError, InvalidInput, UnknownName
from lowtide.formats.counters import counter_factor
from lowtide.marks import append_line
from lowtide.recording import Event, Recording, Run, Unmeasured, reach_s
from lowtide.signal import FloatArray

if TYPE_CHECKING:
    import polars as pl

FORMAT = "lowtide recording"
VERSION = 1
MANIFEST = "manifest.json"
EVENTS = "events.csv"
EVENT_HEADINGS = "time,run,event,checkpoint"
_PART = re.compile(r"samples-(\d+)(?:-(\d+))?\.parquet")
_OWN = ("run", "time", "power_w")
# The columns that keep all of the machine's power, and the program's part of it.
_SHARES = {"node": "node_w", "process": "program_w"}
# A counter that differs more from the power beside it counts something else.
_COUNTER_OFF = 0.05
# What lacks less than this lacks nothing, as figures are shown.
_LEAST_MISSING_S = 0.05
_CUT_SHORT = "cut short: the end of the program is not in the recording"


def recognises(path: Path) -> bool:
    """Return whether a folder holds a recording of ours."""
    return (path / MANIFEST).is_file() and FORMAT in files.read_text(path / MANIFEST)[:200]


def read(path: Path | str, *, share: str | None = None) -> Recording:
    """Read what is whole of a recording.

    Args:
        share: Whose power is read where both were kept: the program's (`process`) or all of the
            machine's (`node`); by default the one that the measurement was asked for.
    """
    if share not in (None, *_SHARES):
        raise UnknownName("share of the machine's power", str(share), _SHARES)
    folder = Path(path)
    entries = _read_manifest(folder / MANIFEST)
    frame, notes = read_samples(folder)
    events = read_events(folder / EVENTS, notes)
    column = _SHARES.get(share or "", "")
    if frame is not None and column in frame.columns:
        import polars as pl

        frame = frame.with_columns(pl.coalesce(column, "power_w").alias("power_w"))
    return put_together(entries, frame, events, notes, folder)


def put_together(
    entries: Sequence[dict[str, Any]],
    frame: pl.DataFrame | None,
    events: Mapping[str, list[Event]],
    notes: Iterable[str],
    folder: Path,
) -> Recording:
    """Return the recording that its parts make.

    Args:
        frame: The samples of all, None where there are none.
    """
    runs, unmeasured, notes = [], [], list(notes)
    for entry in entries:
        name = entry["id"]
        rows = None if frame is None else frame.filter(frame["run"] == name)
        made = None if rows is None else _run(entry, rows, events.get(name, []), folder)
        if made is None:
            unmeasured.append(_unmeasured(entry, events.get(name, [])))
            why = "; ".join(unmeasured[-1].notes)
            notes.append(f"run {name} has fewer than two samples and is left out ({why})")
        else:
            runs.append(made)
    if not entries:
        raise FormatError(
            "this recording has no run: it was cut short before the first began", path=folder
        )
    return Recording(
        runs=tuple(runs), source=folder.name, notes=tuple(notes), unmeasured=tuple(unmeasured)
    )


def _unmeasured(entry: dict[str, Any], events: list[Event]) -> Unmeasured:
    notes = list(entry["notes"])
    if entry["end"] is None:
        notes.append(_CUT_SHORT)
    elif not notes:
        notes.append(f"the program ended with {entry['exit_status']} after {_ran(entry)}")
    return Unmeasured(
        id=entry["id"],
        start=entry["start"],
        end=entry["end"],
        kind=entry["kind"],
        pair=entry["pair"],
        events=tuple(events),
        power=entry["power"],
        meters=tuple(entry["meters"]),
        machine=entry["machine"],
        exit_status=entry["exit_status"],
        notes=tuple(notes),
    )


def _ran(entry: dict[str, Any]) -> str:
    return f"{entry['end'] - entry['start']:.2f} s" if entry["start"] is not None else "a while"


def _run(
    entry: dict[str, Any], frame: pl.DataFrame, events: list[Event], folder: Path
) -> Run | None:
    read = (frame["power_w"].is_not_nan() & frame["power_w"].is_not_null()).to_numpy()
    if read.sum() < 2:
        return None
    start, end = entry["start"], entry["end"]
    silent = _silences(frame["time"].to_numpy(), read, start, end)
    frame = frame.filter(read)
    notes = list(entry["notes"])
    if end is None:
        notes.append(_CUT_SHORT)
    further = [name for name in frame.columns if name not in _OWN and not _is_empty(frame[name])]
    times = frame["time"].to_numpy()
    columns = {name: frame[name].fill_null(math.nan).to_numpy() for name in further}
    power_w = frame["power_w"].to_numpy()
    # A counter goes on while its power is not read, so it tells nothing about what was read.
    whole = all(over - begin <= reach_s(times) for begin, over in silent)
    off_w = np.zeros(times.size)
    for name in entry.get("counted", ()) if whole else ():
        watts, joules = columns.get(f"{name}_w"), columns.get(f"{name}_j")
        if watts is None or joules is None:
            continue
        factor = counter_factor(times, watts, joules)
        if abs(factor - 1.0) <= _COUNTER_OFF:
            off_w += (factor - 1.0) * watts
        elif not math.isnan(factor):
            notes.append(
                f"{name}: its counter says {factor:.2f} times what its power comes to; power is "
                "kept as it was read"
            )
    if off_w.any():
        # Where only a part is the program's, that is off by the same part.
        node_w = columns.get("node_w", power_w)
        each_w = {name: columns[name] for name in _SHARES.values() if name in columns}
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = {name: watts / node_w for name, watts in {**each_w, "": power_w}.items()}
        power_w = power_w + off_w * np.where(node_w > 0, parts.pop(""), 1.0)
        for name, part in parts.items():
            columns[name] = columns[name] + off_w * np.where(node_w > 0, part, 1.0)
    try:
        run = Run(
            id=entry["id"],
            times=times,
            power_w=power_w,
            start=start,
            end=end,
            kind=entry["kind"],
            pair=entry["pair"],
            columns=columns,
            events=events,
            power=entry["power"],
            meters=entry["meters"],
            machine=entry["machine"],
            exit_status=entry["exit_status"],
            notes=notes,
            silent=silent,
        )
    except InvalidInput as error:
        raise FormatError(str(error), path=folder) from error
    lacking = (
        f"no power was read for {run.missing_s:.1f} s of the {run.duration_s:.1f} s that the "
        "program ran: its energy is that of the rest"
    )
    # One sample that came late is nothing to tell, unless it is much of the run.
    misses = run.missing_s > max(_LEAST_MISSING_S, min(run.step_s, 0.01 * run.duration_s))
    return replace(run, notes=(*notes, lacking)) if misses and lacking not in notes else run


def _silences(
    times: FloatArray, read: npt.NDArray[np.bool_], start: float | None, end: float | None
) -> list[tuple[float, float]]:
    """Return the stretches without power: samples that have none, and programs without samples."""
    step_s, reach = float(np.median(np.diff(times))), reach_s(times)
    last = float(times[-1]) + step_s
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for time, answered in zip(times.tolist(), read.tolist(), strict=True):
        if answered and begin is not None:
            found.append((begin, time))
            begin = None
        elif not answered and begin is None:
            begin = time
    # When the program ran is known by itself: samples that are missing then are missing.
    over = last if end is None else max(last, end)
    if start is not None and start >= over:
        over = start + step_s
    if begin is not None:
        found.append((begin, over))
    elif over > last + reach or over > (end or last):
        found.append((last, over))
    if start is not None and start < times[0] - reach:
        if read[0]:
            found.insert(0, (start, float(times[0])))
        else:
            found[0] = (start, found[0][1])
    return found


def _is_empty(column: pl.Series) -> bool:
    # Parts of other runs may have columns that this one was measured without.
    return column.null_count() == column.len()


def _read_manifest(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(files.read_text(path))
        entries = document["runs"]
        version = document["version"]
        needed = ("id", "kind", "pair", "start", "end", "exit_status", "power", "meters")
        whole = all(key in entry for entry in entries for key in (*needed, "machine", "notes"))
        timed = all(
            entry[key] is None or (isinstance(entry[key], int | float) and abs(entry[key]) < 1e15)
            for entry in entries
            for key in ("start", "end")
            if key in entry
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not the manifest of a recording ({error!r})", path=path) from error
    if not timed:
        raise FormatError("start and end of a run are epoch seconds", path=path)
    if version != VERSION:
        raise FormatError(
            f"this recording has version {version}, and this lowtide reads {VERSION}", path=path
        )
    if not whole:
        raise FormatError(f"each run needs {', '.join(needed)}, machine and notes", path=path)
    for entry in entries:
        for key in ("meters", "notes"):
            if not isinstance(entry[key], list) or not all(isinstance(e, str) for e in entry[key]):
                raise FormatError(
                    f"{key} of a run are a list of texts, not {entry[key]}", path=path
                )
        if not isinstance(entry["machine"], dict):
            raise FormatError(
                f"the machine of a run is an object, not {entry['machine']}", path=path
            )
        machine = entry["machine"]
        # Early recordings have whether threads share cores under the name of how many do.
        if isinstance(machine.get("threads_per_core"), str):
            machine["smt_active"] = machine.pop("threads_per_core")
    return list(entries)


def read_events(path: Path, notes: list[str]) -> dict[str, list[Event]]:
    """Return the events of each run; lines that make no sense are left out and noted."""
    if not path.is_file():
        return {}
    # What follows the last line's end was being written when the writer was killed.
    text = files.read_bytes(path).decode(errors="replace").rpartition("\n")[0]
    found: dict[str, list[Event]] = {}
    rows = csv.reader(io.StringIO(text, newline=""))
    next(rows, None)
    while True:
        cells: list[str] = []
        try:
            cells = next(rows)
            if not cells:
                continue
            time, run, label, checkpoint = cells
            event = Event(time=float(time), label=label, checkpoint=checkpoint == "1")
        except StopIteration:
            return found
        except (ValueError, csv.Error) as error:
            notes.append(
                f"{path.name}, line {rows.line_num} is left out: an event is {EVENT_HEADINGS}, not "
                f"{','.join(cells)!r} ({error})"
            )
        else:
            found.setdefault(run, []).append(event)


def read_samples(folder: Path) -> tuple[pl.DataFrame | None, list[str]]:
    """Return the samples of all runs, and which parts could not be read."""
    import polars as pl

    frames, notes = [], []
    for part in valid_parts(folder):
        try:
            frame = pl.read_parquet(part)
        except (pl.exceptions.PolarsError, OSError) as error:
            notes.append(f"{part.name} cannot be read and is left out ({error})")
            continue
        if missing := [name for name in _OWN if name not in frame.columns]:
            raise FormatError(f"samples lack {', '.join(missing)}", path=part)
        frames.append(frame)
    return (pl.concat(frames, how="diagonal") if frames else None), notes


def valid_parts(folder: Path) -> list[Path]:
    """Return the parts in order, without those that a joined part covers."""
    found = []
    for path in folder.iterdir():
        if match := _PART.fullmatch(path.name):
            first = int(match[1])
            found.append((first, int(match[2] or first), path))
    joined = [(first, last) for first, last, _ in found if last > first]
    return [
        path
        for first, last, path in sorted(found)
        if not any(
            low <= first and last <= high and (low, high) != (first, last) for low, high in joined
        )
    ]


def append_event(folder: Path | str, run: str, event: Event) -> None:
    """Add a line to a recording's events; other processes may do so too."""
    path = Path(folder) / EVENTS
    try:
        append_line(
            str(path),
            time_s=event.time,
            run=run,
            label=event.label,
            checkpoint=event.checkpoint,
        )
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}", path=path) from error
