"""What stands in the fields of Slurm's records: states, numbers, times and how programs ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from lowtide.errors import InvalidInput
from lowtide.states import STATES, read_state
from lowtide.units import parse_duration

_NOTHING = frozenset(
    ("", "(null)", "n/a", "none", "unknown", "none assigned", "not_set", "invalid")
)
_ENDLESS = frozenset(("unlimited", "infinite", "partition_limit"))
# Signals have numbers up to this; Slurm gives greater ones for reasons of its own, such as 125 for
# a job that ran out of memory.
_LAST_SIGNAL = 64


def choose_state(states: Iterable[Any]) -> str | None:
    """Return the state that says how the job stands; newer releases add flags around it.

    >>> choose_state(["COMPLETING", "COMPLETED"]), choose_state(["REQUEUED", "PENDING"])
    ('COMPLETED', 'PENDING')
    """
    names = [str(state) for state in states if state]
    plain = (name for name in names if name.lower() in STATES and name != "REQUEUED")
    return next(plain, next((name for name in names if read_state(name)), None))


def read_text(value: Any) -> str | None:
    """Return a text, None for all the words Slurm has for nothing."""
    text = "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)
    return None if text.strip().lower() in _NOTHING else text.strip()


def read_number(value: Any) -> float | None:
    """Return a number, None where there is none."""
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def read_instant(value: Any) -> float | None:
    """Return a time as epoch seconds, None where it has not come."""
    if isinstance(value, str) and (text := read_text(value)) and not text.isdigit():
        raise InvalidInput(
            f"{text!r} is a local time without its zone: run the command with "
            "SLURM_TIME_FORMAT=%s, which gives epoch seconds"
        )
    # Slurm writes 0 for a time that has not come.
    return read_number(value) or None


def read_limit(value: Any) -> float | None:
    """Return how long a job may run, in seconds; None where that has no limit.

    Args:
        value: Seconds, or a text such as `1-00:00:00`, in which a number alone counts minutes.
    """
    if not isinstance(value, str):
        return read_number(value)
    text = read_text(value)
    if text is None or text.lower() in _ENDLESS:
        return None
    return parse_duration(text, bare_unit_s=60.0)


def status_of_pair(text: str | None) -> int | None:
    """Return the exit status of `3:0`; of `0:9`, which a signal ended, what a shell would say.

    >>> status_of_pair("3:0"), status_of_pair("0:9"), status_of_pair("0:125")
    (3, 137, None)
    """
    match = re.fullmatch(r"(\d+):(\d+)", text or "")
    return None if match is None else exit_status(int(match[1]), int(match[2]))


def status_of_wait(status: int) -> int | None:
    """Return the exit status in what `wait` returns."""
    return exit_status(status >> 8 & 0xFF, status & 0x7F)


def exit_status(code: int | None, signal: int) -> int | None:
    """Return what a shell would say of how a program ended, None where nobody knows.

    Args:
        signal: The signal that ended it, 0 for none.
    """
    if not signal:
        return code
    return 128 + signal if signal <= _LAST_SIGNAL else None
