"""The text that Prometheus reads (exposition format 0.0.4), written a column at a time.

A thousand jobs make a page of nineteen thousand lines. So the labels of a job are written once and
kept, and each metric is one join over all jobs, not a call per line. Most of the time would go into
the digits of numbers: of many, all are taken apart at once, three digits at a time.

Counters carry the moment at which they were read. A scraper that takes them for values of the
moment at which it asks would see a constant load go up and down with the time between the two.
Gauges carry none: a scraper forgets a gauge at once when it leaves the page, but keeps what has a
time for another five minutes, and the power of jobs that are over would be added up with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from lowtide.monitor.snapshot import FloatArray

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# What a terminal or a parser may trip over; the format itself has escapes for three of them.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f\\"\ud800-\udfff]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
# Whole numbers below this are exact, and so is what is left of them after a division.
_EXACT = 2.0**52
# Fewer numbers than this are written sooner one by one.
_MANY = 50
# Three digits as they stand behind others, behind the point, and at the end and further to the
# front of a whole number; in the last two from 1000 on where others precede them.
_PLAIN, _PADDED = [str(number) for number in range(1000)], [f"{n:03}" for n in range(1000)]
_BEHIND = np.array(_PADDED, dtype=object)
_POINTED = np.array([f".{digits}" for digits in _PADDED], dtype=object)
_LAST = np.array([*_PLAIN, *_PADDED], dtype=object)
_FURTHER = np.array(["", *_PLAIN[1:], *_PADDED], dtype=object)


def escape(value: str) -> str:
    r"""Return a label's value as it may stand between quotes.

    >>> print(escape('a "quoted" name\n'))
    a \"quoted\" name\n
    >>> print(escape("\x1b[31m"))  # no escape of the format, so its number is written out
    \\x1b[31m
    """
    return _UNSAFE.sub(_escaped, value)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPES.get(character) or rf"\\x{ord(character):02x}"


def labels(**values: str) -> str:
    """Return labels up to where more may follow: an opened brace that the line closes.

    >>> labels(host="n1", job_id="42")
    '{host="n1",job_id="42"'
    """
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Some lines of one metric.

    Attributes:
        labels: The labels of each line, as `labels` makes them.
        values: The value of each; lines without a finite one are left out.
        more: A label that all of them have besides, such as `kind="average"`.
        digits: Decimals.
    """

    labels: Sequence[str]
    values: FloatArray
    more: str = ""
    digits: int = 3


def gauge(name: str, help_text: str, *series: Series) -> str:
    """Return a metric that tells of now, with its heading; nothing where it has no lines."""
    return _family(name, "gauge", help_text, series, stamp="")


def counter(name: str, help_text: str, *series: Series, at: float) -> str:
    """Return a metric that only grows, with its heading; nothing where it has no lines.

    Args:
        at: When it had these values, epoch seconds.
    """
    return _family(name, "counter", help_text, series, stamp=f" {round(at * 1000)}")


def alone(of: str, value: float, *, digits: int = 3) -> Series:
    """Return the line of a metric that has one line.

    Args:
        of: Its labels, as `labels` makes them.
    """
    return Series(labels=[of], values=np.array([value]), digits=digits)


def _family(name: str, kind: str, help_text: str, series: Sequence[Series], *, stamp: str) -> str:
    body = "".join(_lines(name, each, stamp) for each in series)
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n{body}" if body else ""


def _lines(name: str, series: Series, stamp: str) -> str:
    values, found = series.values, series.labels
    known = np.isfinite(values)
    if not known.all():
        values, found = values[known], list(compress(found, known))
    if not len(found):
        return ""
    numbers = _written(values, series.digits)
    step = 3 + len(numbers)
    closing = f",{series.more}}} " if series.more else "} "
    pieces = [closing] * (step * len(found))
    pieces[::step] = found
    for place, each in enumerate(numbers, 2):
        pieces[place::step] = each
    pieces[step - 1 :: step] = [f"{stamp}\n{name}"] * len(found)
    pieces[-1] = f"{stamp}\n"
    return name + "".join(pieces)


def _written(values: FloatArray, digits: int) -> list[list[str]]:
    """Return the digits of numbers in one or more pieces, each as a list over all numbers.

    Args:
        digits: Decimals; rounded as formatting does, to the nearest of what the number really is.
    """
    scale = 10.0**digits
    if (
        len(values) < _MANY
        or digits % 3
        or np.signbit(values).any()
        or (values >= _EXACT / scale).any()
    ):
        if digits == 0:
            return [[str(round(value)) for value in values.tolist()]]
        return [[f"{value:.{digits}f}" for value in values.tolist()]]
    scaled = values * scale
    rest = np.rint(scaled)
    # Where the product is half a step off, it may itself have been rounded to there.
    for place in np.flatnonzero(np.abs(np.abs(scaled - rest) - 0.5) <= scaled * 2.0**-52):
        rest[place] = float(f"{values[place]:.{digits}f}".replace(".", ""))
    rest = rest.astype(np.int64)
    pieces = []
    tables = [_BEHIND] * (digits // 3 - 1) + [_POINTED] * (digits > 0)
    for table in tables:
        rest, last = np.divmod(rest, 1000)
        pieces.append(table[last].tolist())
    table = _LAST
    while True:
        rest, last = np.divmod(rest, 1000)
        more = rest > 0
        pieces.append(table[last + 1000 * more].tolist())
        if not more.any():
            return pieces[::-1]
        table = _FURTHER
