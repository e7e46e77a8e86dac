"""Telling a recording what the program is doing. Needs nothing but the standard library.

`lowtide measure` names the file for events in the environment of the program it runs; a mark is
one line at its end. Without such a file a mark does nothing, so that programs can keep theirs.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import time

from lowtide.errors import InvalidInput

# Where the events of the recording go, and which run they belong to.
EVENTS_VARIABLE = "LOWTIDE_EVENTS"
RUN_VARIABLE = "LOWTIDE_RUN"
# What the recorder's clock shows more than the machine's steady one, and which machine that is.
CLOCK_VARIABLE = "LOWTIDE_CLOCK"
_BOOT = "/proc/sys/kernel/random/boot_id"


def mark(label: str, *, checkpoint: bool = False) -> bool:
    """Say that something begins now; return whether anybody is recording.

    Args:
        label: What begins: `epoch_1`, `evaluate`. The phase it names lasts until the next mark.
        checkpoint: Whether a later start can resume from here.

    >>> mark("epoch_1")
    False
    """
    if not str(label).strip():
        raise InvalidInput(f"a mark says what begins, such as epoch_1, and {label!r} says nothing")
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return False
    # A program must not fail because it is being watched: a file that is gone is no error.
    try:
        append_line(
            path,
            time_s=_now(),
            run=os.environ.get(RUN_VARIABLE, ""),
            label=str(label),
            checkpoint=checkpoint,
        )
    except OSError:
        return False
    return True


def append_line(path: str, *, time_s: float, run: str, label: str, checkpoint: bool) -> None:
    """Add an event to a file of events that is there; others may do so at the same time.

    Args:
        time_s: When, in epoch seconds.
        label: What happened; blanks and line ends become one blank each.
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(
        [repr(time_s), run, " ".join(label.split()), "1" if checkpoint else "0"]
    )
    # One unbuffered write of one line in append mode: lines of two writers never mix.
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        whole = line.getvalue().encode(errors="replace")
        if os.write(file, whole) < len(whole):
            # A disk that is almost full takes what fits, and says nothing.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def clock_words(offset_s: float) -> str:
    """Return what programs are to be told about the recorder's clock, by `CLOCK_VARIABLE`."""
    return f"{offset_s!r} {_boot()}"


def _now() -> float:
    """Return the time by the recorder's clock, which goes on where the machine's is set."""
    offset, _, boot = os.environ.get(CLOCK_VARIABLE, "").partition(" ")
    # A program may start others elsewhere, and the steady clock of another machine tells nothing.
    if not boot or boot != _boot():
        return time.time()
    try:
        return time.monotonic() + float(offset)
    except ValueError:
        return time.time()


def _boot() -> str:
    """Return what names this start of this machine's kernel, empty where there is no such thing."""
    try:
        with open(_BOOT) as file:  # noqa: PTH123 - pathlib would be one more import for programs
            return file.read().strip()
    except OSError:
        return ""
