"""Recordings in: our own folders, and measurements as others left them, told by their content."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from lowtide.errors import FileProblem, FormatError, InvalidInput
from lowtide.formats import pinpoint, recording_folder, recording_parts, samples_and_events
from lowtide.recording import Recording
from lowtide.units import DurationLike, parse_duration

_LOOKED_FOR = (
    "a recording of lowtide's own (manifest.json), a pinpoint folder (measurements.csv, one number "
    "per line), tables of samples (time and a power in watts or an energy counter), or folders of "
    "these"
)


def read_recordings(
    paths: Path | str | Iterable[Path | str],
    *,
    idle_before: DurationLike | None = None,
    idle_after: DurationLike | None = None,
) -> list[Recording]:
    """Read measured runs from folders and files, whatever of the known formats they are.

    Args:
        paths: One or more folders or files. A folder may hold recordings in folders of their own.
        idle_before: How long the idle machine was measured before each program, in pinpoint
            folders and tables of samples; by default this is found out.
    """
    idle_s = [
        None if given is None else parse_duration(given, bare_unit_s=1.0)
        for given in (idle_before, idle_after)
    ]
    if any(seconds is not None and seconds < 0 for seconds in idle_s):
        raise InvalidInput("idle time around a program is 0 s or more")
    several = [paths] if isinstance(paths, Path | str) else list(paths)
    given = [Path(path) for path in several]
    folders = [path for path in given if path.is_dir()]
    inner = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir()]
    pinpointed = partial(
        pinpoint.read,
        idle_before_s=idle_s[0],
        idle_after_s=idle_s[1],
        known_w=pinpoint.idle_powers_w([*folders, *inner]),
    )
    tabled = partial(samples_and_events.read, idle_before_s=idle_s[0], idle_after_s=idle_s[1])
    tables = [path for path in given if path.is_file()]
    kinds = {path: samples_and_events.table_of(path) for path in tables}
    events = [path for path, kind in kinds.items() if kind == "events"]
    recordings: list[Recording] = []
    used: set[Path] = set()
    for path in given:
        if path.is_dir():
            recordings += _read_folder(path, pinpointed, tabled)
        elif not path.exists():
            raise FileProblem(f"no such file or folder: {path}", path=path)
        elif kinds[path] == "samples":
            beside = samples_and_events.events_beside(path)
            if beside is None and len(events) == 1:
                beside = events[0]
            recordings.append(tabled(path, events=beside))
            used |= {beside} if beside is not None else set()
        elif kinds[path] is None:
            raise FormatError(f"this is no recording. Looked for: {_LOOKED_FOR}", path=path)
    if lonely := [path for path in events if path not in used]:
        raise FormatError(
            "this is a table of events: name the table of samples it belongs to as well",
            path=lonely[0],
        )
    if not recordings:
        raise FormatError("name at least one recording", path=".")
    if idle_s != [None, None] and not any(
        each.source.startswith(("pinpoint, ", "samples, ")) for each in recordings
    ):
        raise InvalidInput(
            "the idle time around a program is told for pinpoint folders and tables of samples, "
            "and there is none here: leave it out"
        )
    return recordings


def _read_folder(
    folder: Path,
    pinpointed: Callable[[Path], Recording],
    tabled: Callable[[Path], Recording],
) -> list[Recording]:
    if (own := _read_own(folder)) is not None:
        return [own]
    if pinpoint.recognises(folder):
        return [pinpointed(folder)]
    found: list[Recording] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if (own := _read_own(path)) is not None:
                found.append(own)
            elif pinpoint.recognises(path):
                found.append(pinpointed(path))
        elif _is_samples(path):
            found.append(tabled(path))
    if not found:
        raise FormatError(f"nothing was measured here. Looked for: {_LOOKED_FOR}", path=folder)
    return found


def _read_own(folder: Path) -> Recording | None:
    """Read a recording of lowtide's own, of one process or of many; None where it is neither."""
    if recording_folder.recognises(folder):
        return recording_folder.read(folder)
    return recording_parts.read(folder) if recording_parts.recognises(folder) else None


def _is_samples(path: Path) -> bool:
    named = path.name.endswith((".csv", ".csv.gz"))
    return named and samples_and_events.table_of(path) == "samples"
