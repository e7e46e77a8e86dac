"""Files in and out: signals, job traces, recordings; each format in a file of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.formats.jobs import read_jobs, write_jobs
    from lowtide.formats.recording_writer import RecordingWriter, write_recording
    from lowtide.formats.recordings import read_recordings
    from lowtide.formats.signals import read_signal, write_signal

__all__ = [
    "RecordingWriter",
    "read_jobs",
    "read_recordings",
    "read_signal",
    "write_jobs",
    "write_recording",
    "write_signal",
]

# Where each name lives. Names are fetched when first asked for: what parses Slurm's words must not
# cost a watch on every node the memory of a library for tables.
_HOMES = {
    "RecordingWriter": "recording_writer",
    "read_jobs": "jobs",
    "read_recordings": "recordings",
    "read_signal": "signals",
    "write_jobs": "jobs",
    "write_recording": "recording_writer",
    "write_signal": "signals",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
