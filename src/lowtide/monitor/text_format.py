"""The text that Prometheus reads (exposition format 0.0.4), written a column at a time.

A thousand jobs make a page of fifteen thousand lines. So the labels of a job are written once and
kept, and each metric is one join and one formatting over all jobs, not a call per line.

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
_LARGEST_WHOLE = 2.0**63


def escape(value: str) -> str:
    r"""Return a label's value as it may stand between quotes.

    Args:
        value: Any text.

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

    Args:
        values: The labels, in order.

    >>> labels(host="n1", job_id="42")
    '{host="n1",job_id="42"'
    """
    inside = ",".join(f'{name}="{escape(value)}"' for name, value in values.items())
    # Lines are made by formatting, where a % would begin a field.
    return "{" + inside.replace("%", "%%")


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
    """Return a metric that tells of now, with its heading; nothing where it has no lines.

    Args:
        name: What it is called.
        help_text: What it is, in words.
        series: Its lines.
    """
    return _family(name, "gauge", help_text, series, stamp="")


def counter(name: str, help_text: str, *series: Series, at: float) -> str:
    """Return a metric that only grows, with its heading; nothing where it has no lines.

    Args:
        name: What it is called.
        help_text: What it is, in words.
        series: Its lines.
        at: When it had these values, epoch seconds.
    """
    return _family(name, "counter", help_text, series, stamp=f" {round(at * 1000)}")


def alone(of: str, value: float, *, digits: int = 3) -> Series:
    """Return the line of a metric that has one line.

    Args:
        of: Its labels, as `labels` makes them.
        value: Its value.
        digits: Decimals.
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
    end = f",{series.more}}}" if series.more else "}"
    # Whole numbers are formatted three times as fast as others, but must fit into 64 bits.
    whole = series.digits == 0 and bool((np.abs(values) < _LARGEST_WHOLE).all())
    line = f"{end} %d{stamp}\n" if whole else f"{end} %.{series.digits}f{stamp}\n"
    template = f"{name}{f'{line}{name}'.join(found)}{line}"
    return template % tuple((np.rint(values).astype(np.int64) if whole else values).tolist())
