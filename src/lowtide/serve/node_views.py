"""What somebody is told of a node on which others' jobs run, too.

Over time a node with one job on it is that job. So who does not see all is told of a node's past
only while jobs ran there that they may see, when they share it anyway; besides that its sizes, and
the grid's intensity, which are nobody's. What it does now is told as one sum, of the last full
quarter of an hour and to two figures: asking often tells no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.store import Series

# What all those on a node draw is told in stretches of this length.
QUARTER_S = 900.0
# What is the same whatever runs on a node.
OF_NOBODY = (
    *("cpus", "memory_bytes", "gpus", "gpu_memory_total_bytes"),
    *("intensity_g_per_kwh", "marginal_g_per_kwh", "pue"),
)
_TRACE_S = 1e-3
Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """What a node did of late.

    Attributes:
        begins: From when on it is told, epoch seconds.
        ends: Up to when.
        busy: Whether anything ran; None where nobody watched.
        power_w: What it drew on average, to two figures; NaN where nobody knows.
    """

    name: str
    begins: float
    ends: float
    busy: bool | None
    power_w: float


def last_quarter(now: float) -> Span:
    """Return the last quarter of an hour that is over.

    >>> last_quarter(1_700_000_000.0)
    (1699998300.0, 1699999200.0)
    """
    ends = now // QUARTER_S * QUARTER_S
    return ends - QUARTER_S, ends


def now_of(name: str, series: Series, span: Span) -> NodeNow:
    """Return what a node did in a stretch of time, as everybody is told it."""
    inside = _inside(series, [span])
    jobs, power_w = (series.columns[each][inside] for each in ("jobs", "power_w"))
    step_s = series.step_s[inside]
    known = ~np.isnan(power_w)
    ran = jobs[~np.isnan(jobs)]
    mean_w = math.nan
    if known.any():
        mean_w = float(f"{np.average(power_w[known], weights=step_s[known]):.2g}")
    return NodeNow(
        name=name,
        begins=span[0],
        ends=span[1],
        busy=bool((ran > 0).any()) if ran.size else None,
        power_w=mean_w,
    )


def within(series: Series, spans: Iterable[Span]) -> Series:
    """Return what a node did within some stretches of time; outside them what is nobody's.

    A step that is only in part within one is not told: it has others' part in it.
    """
    outside = ~_inside(series, merged(spans))
    columns = {
        name: column if name in OF_NOBODY else np.where(outside, np.nan, column)
        for name, column in series.columns.items()
    }
    return Series(times=series.times, step_s=series.step_s, columns=columns)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return stretches of time that do not overlap, ascending.

    >>> merged([(5.0, 9.0), (1.0, 3.0), (2.0, 4.0)])
    [(1.0, 4.0), (5.0, 9.0)]
    """
    found: list[Span] = []
    for begins, ends in sorted(spans):
        if found and begins <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ends))
        elif ends > begins:
            found.append((begins, ends))
    return found


def _inside(series: Series, spans: Sequence[Span]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which steps lie within one of some stretches that do not overlap."""
    if not spans or not len(series):
        return np.zeros(len(series), dtype=bool)
    begins, ends = np.array(spans).T
    place = np.searchsorted(begins, series.starts + _TRACE_S, side="right") - 1
    found = (place >= 0) & (series.times <= ends[np.maximum(place, 0)] + _TRACE_S)
    return np.asarray(found, dtype=bool)
