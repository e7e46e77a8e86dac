"""Telling a recording what the program is doing. Needs nothing but the standard library.

`lowtide measure` names the file for events in the environment of the program it runs; a mark is
one line at its end. Without such a file a mark does nothing, so that programs can keep theirs.
"""

from __future__ import annotations

import csv
import io
import os
import time

# Where the events of the recording go, and which run they belong to.
EVENTS_VARIABLE = "LOWTIDE_EVENTS"
RUN_VARIABLE = "LOWTIDE_RUN"


def mark(label: str, *, checkpoint: bool = False) -> bool:
    """Say that something begins now; return whether anybody is recording.

    Args:
        label: What begins: `epoch_1`, `evaluate`. The phase it names lasts until the next mark.
        checkpoint: Whether a later start can resume from here.

    >>> mark("epoch_1")
    False
    """
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return False
    line = io.StringIO()
    run = os.environ.get(RUN_VARIABLE, "")
    words = " ".join(str(label).split())
    csv.writer(line, lineterminator="\n").writerow(
        [repr(time.time()), run, words, "1" if checkpoint else "0"]
    )
    # One unbuffered write of one line in append mode: lines of two writers never mix. A program
    # must not fail because it is being watched, so a file that is gone is no error.
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return False
    try:
        os.write(file, line.getvalue().encode())
    finally:
        os.close(file)
    return True
