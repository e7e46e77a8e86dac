"""Job traces in and out: what a format has to do, and the two functions that people call.

A format is a module (or any object) with the two functions of `JobFormat`, registered under the
entry-point group `lowtide.job_formats`. One that can also write has `render`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from lowtide import files
from lowtide.errors import InvalidInput
from lowtide.formats.signals import unrecognised
from lowtide.formats.source import Source
from lowtide.registry import Registry
from lowtide.trace import Trace
from lowtide.units import TimeLike

TIME_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}


class JobFormat(Protocol):
    """One way of writing job traces into a file."""

    def recognises(self, source: Source) -> bool:
        """Return whether the content looks like this format."""
        ...

    def read(self, source: Source, time_unit: str | None) -> Trace:
        """Read the jobs."""
        ...


@runtime_checkable
class JobWriter(Protocol):
    """A format that can be written too."""

    def render(self, trace: Trace) -> str:
        """Return the file's content."""
        ...


FORMATS: Registry[JobFormat] = Registry("lowtide.job_formats", "job format")


def read_jobs(
    path: Path | str,
    *,
    format: str | None = None,  # noqa: A002 - the word everyone uses for it
    time_unit: str | None = None,
    start: TimeLike | None = None,
) -> Trace:
    """Read a job trace; the format is told by the content.

    Args:
        path: The file, plain or gzip.
        format: Which format it is, where it should not be told by its content.
        time_unit: What a plain table counts time in: `s` (the default), `min` or `h`.
        start: Move the first arrival to this instant.
    """
    if time_unit is not None and time_unit not in TIME_UNITS_S:
        raise InvalidInput(f"time_unit is one of {', '.join(TIME_UNITS_S)}, not {time_unit!r}")
    source = Source.open(path)
    trace = _format_of(source, format).read(source, time_unit)
    return trace if start is None else trace.shifted(start)


def write_jobs(trace: Trace, path: Path | str, *, format: str = "swf") -> None:  # noqa: A002
    """Write a job trace.

    Args:
        format: The format to write, by default SWF.
    """
    writer = FORMATS.load(format)
    if not isinstance(writer, JobWriter):
        able = [name for name in FORMATS.names() if isinstance(FORMATS.load(name), JobWriter)]
        raise InvalidInput(
            f"job format {format!r} can only be read: formats that can be written are "
            f"{', '.join(able)}"
        )
    files.write_whole(path, writer.render(trace))


def seconds_only(time_unit: str | None, what: str) -> None:
    """Refuse a time unit for a format that has its own."""
    if time_unit not in (None, "s"):
        raise InvalidInput(f"{what} counts in seconds: leave out time_unit={time_unit!r}")


def _format_of(source: Source, name: str | None) -> JobFormat:
    if name is not None:
        return FORMATS.load(name)
    for known in FORMATS.names():
        candidate = FORMATS.load(known)
        if candidate.recognises(source):
            return candidate
    raise unrecognised(source, "job trace", FORMATS.names())
