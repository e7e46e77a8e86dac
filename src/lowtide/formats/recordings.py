"""Recordings in: our own folders, and measurements as others left them, told by their content."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lowtide.errors import FileProblem, FormatError
from lowtide.formats import pinpoint, recording_folder, samples_and_events
from lowtide.recording import Recording

_LOOKED_FOR = (
    "a recording of lowtide's own (manifest.json), a pinpoint folder (measurements.csv, one number "
    "per line), tables of samples (time and a power in watts or an energy counter), or folders of "
    "these"
)


def read_recordings(paths: Path | str | Iterable[Path | str]) -> list[Recording]:
    """Read measured runs from folders and files, whatever of the known formats they are.

    Args:
        paths: One or more folders or files. A folder may hold recordings in folders of their own.
    """
    several = [paths] if isinstance(paths, Path | str) else list(paths)
    given = [Path(path) for path in several]
    tables = [path for path in given if path.is_file()]
    kinds = {path: samples_and_events.table_of(path) for path in tables}
    events = [path for path, kind in kinds.items() if kind == "events"]
    recordings: list[Recording] = []
    used: set[Path] = set()
    for path in given:
        if path.is_dir():
            recordings += _read_folder(path)
        elif not path.exists():
            raise FileProblem(f"no such file or folder: {path}", path=path)
        elif kinds[path] == "samples":
            beside = samples_and_events.events_beside(path)
            if beside is None and len(events) == 1:
                beside = events[0]
            recordings.append(samples_and_events.read(path, events=beside))
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
    return recordings


def _read_folder(folder: Path) -> list[Recording]:
    if recording_folder.recognises(folder):
        return [recording_folder.read(folder)]
    if pinpoint.recognises(folder):
        return [pinpoint.read(folder)]
    found: list[Recording] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if recording_folder.recognises(path):
                found.append(recording_folder.read(path))
            elif pinpoint.recognises(path):
                found.append(pinpoint.read(path))
        elif _is_samples(path):
            found.append(samples_and_events.read(path))
    if not found:
        raise FormatError(f"nothing was measured here. Looked for: {_LOOKED_FOR}", path=folder)
    return found


def _is_samples(path: Path) -> bool:
    named = path.name.endswith((".csv", ".csv.gz"))
    return named and samples_and_events.table_of(path) == "samples"
