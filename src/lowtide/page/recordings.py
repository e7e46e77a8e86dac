"""A figure of measured runs: what was drawn and used, what was marked, and what was lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowtide.page.looks import (
    BLUE,
    GREEN,
    INK,
    NEUTRAL,
    PALE,
    RED,
    WIDTH,
    YELLOW,
    alt,
    inline,
)
from lowtide.recording import Recording, Run
from lowtide.signal import FloatArray
from lowtide.units import format_energy, format_hours

# So many points of a run are drawn at most, each the mean of what it stands for.
_POINTS = 1200
_HEIGHT, _USE_HEIGHT = 200, 90
# Words of marks that lie nearer than this, in pixels, would run into each other: one is written.
_WORDS_APART = 12
_TIME = "s after the program's start"
# What of a program's and a machine's use is shown, as a share.
_USES = (
    ("machine.cpu_share", "CPUs of the machine", BLUE),
    ("machine.gpu_share", "GPUs", GREEN),
    ("machine.memory_share", "memory", NEUTRAL),
)
# Of another's table: what its name says is a use, and its values a share or percent. So many.
_NAMED_USE = re.compile(r"util|busy|usage|percent|share", re.IGNORECASE)
_COLOURS = (BLUE, GREEN, NEUTRAL, YELLOW)
# A letter of a mark's words, in pixels, and how much of the panel's height words may take.
_LETTER, _MOST_WORDS = 5.2, 0.45


def recording_chart(recording: Recording, runs: Sequence[str] = ()) -> Any:
    """Draw the runs of a recording, below each other.

    Args:
        runs: Which of them, by name; all unless told.
    """
    shown = [run for run in recording if not runs or run.id in runs]
    uses = _uses(list(recording))
    return alt.vconcat(*(_run_chart(run, uses) for run in shown), spacing=24)


def _uses(runs: Sequence[Run]) -> Mapping[str, tuple[str, str, float]]:
    """Return which columns tell of use: what each is called, its colour, what makes it percent."""
    named = {column: (name, colour, 100.0) for column, name, colour in _USES}
    columns = dict.fromkeys(column for run in runs for column in run.columns)
    own = {column: named[column] for column in columns if column in named}
    if own:
        return own
    found: dict[str, tuple[str, str, float]] = {}
    for column in filter(_NAMED_USE.search, columns):
        values = np.concatenate([run.columns[column] for run in runs if column in run.columns])
        known = values[np.isfinite(values)]
        # Which of both it is all runs tell together: one may be idle.
        if known.size and known.min() >= 0 and known.max() <= 100 and len(found) < len(_COLOURS):
            percent = 100.0 if known.max() <= 1 else 1.0
            found[column] = (column, _COLOURS[len(found)], percent)
    return found


def _run_chart(run: Run, named: Mapping[str, tuple[str, str, float]]) -> Any:
    base = alt.Chart(
        inline(_rows(run, run.power_w, "power")),
        width=WIDTH,
        height=_HEIGHT,
        title=f"{run.id}: {format_energy(run.energy_j())} {run.power} in "
        f"{format_hours(run.duration_s)}"
        + (f", {format_hours(run.missing_s)} lost" if run.missing_s else ""),
    )
    # Room for words above the curve.
    longest = max((len(event.label) for event in run.events), default=0)
    words = min((longest * _LETTER + 10) / _HEIGHT, _MOST_WORDS) if longest else 0.05
    top = max(float(run.power_w.max()), 1.0) / (1 - words)
    within = [float(run.times[0] - run.start), float(max(run.times[-1], run.end) - run.start)]
    x = alt.X("at:Q", title=_TIME, scale=alt.Scale(domain=within, nice=False))
    line = base.mark_line(interpolate="step-after", color=BLUE, strokeWidth=1.2).encode(
        x=x, y=alt.Y("value:Q", title="power, W", scale=alt.Scale(domain=[0, top], nice=True))
    )
    layers = [*_lost(run, x), line, *_marks(run)]
    own = {column: each for column, each in named.items() if column in run.columns}
    uses = [
        row
        for column, (name, _, percent) in own.items()
        for row in _rows(run, percent * np.asarray(run.columns[column]), name)
    ]
    chart = alt.LayerChart(layer=layers)
    if not uses:
        return chart
    colours = {name: colour for name, colour, _ in own.values()}
    use = (
        alt.Chart(inline(uses), width=WIDTH, height=_USE_HEIGHT)
        .mark_line(interpolate="step-after", strokeWidth=1.2)
        .encode(
            x=x,
            y=alt.Y("value:Q", title="in use, %", scale=alt.Scale(domain=[0, 100], clamp=True)),
            color=alt.Color(
                "what:N",
                title=None,
                scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                legend=alt.Legend(orient="bottom"),
            ),
        )
    )
    return alt.vconcat(chart, use, spacing=6)


def _rows(run: Run, values: FloatArray, what: str) -> list[dict[str, Any]]:
    """Return a curve as rows, a mean for each of some samples; nothing where none were taken."""
    every = max(-(-run.times.size // _POINTS), 1)
    rows: list[dict[str, Any]] = []
    lost = {int(np.searchsorted(run.times, begin, side="left")) for begin, _ in run.gaps}
    for first in range(0, run.times.size, every):
        part = values[first : first + every]
        known = part[np.isfinite(part)]
        # A line that is broken here does not lead across what nobody measured.
        if any(first <= place < first + every for place in lost) and rows:
            rows.append({"at": rows[-1]["at"], "value": None, "what": what})
        mean = float(known.mean()) if known.size else None
        rows.append({"at": float(run.times[first] - run.start), "value": mean, "what": what})
    return rows


def _lost(run: Run, x: Any) -> list[Any]:
    """Return pale stretches where nothing was measured."""
    rows = [
        {"at": begin - run.start, "until": end - run.start, "what": "not measured"}
        for begin, end in run.gaps
    ]
    if not rows:
        return []
    pale = alt.Chart(inline(rows)).mark_rect(color=PALE, opacity=0.5)
    return [pale.encode(x=x, x2="until:Q", tooltip=["what:N"])]


def _fitting(label: str) -> str:
    """Return as much of a mark as there is room for: its beginning and its end."""
    most = int((_MOST_WORDS * _HEIGHT - 10) / _LETTER)
    return label if len(label) <= most else f"{label[: most // 2]}…{label[1 + most // 2 - most :]}"


def _marks(run: Run) -> list[Any]:
    """Return where the program began and ended, and what it said in between."""
    ends = [{"at": 0.0, "label": "start"}, {"at": run.duration_s, "label": "end"}]
    span_s = max(float(run.times[-1]), run.end) - float(run.times[0])
    said: list[dict[str, Any]] = []
    written_s = -np.inf
    for event in run.events:
        at_s = event.time - run.start
        apart = at_s - written_s >= _WORDS_APART / WIDTH * span_s
        written_s = at_s if apart else written_s
        said.append(
            {
                "at": at_s,
                "label": event.label,
                "written": _fitting(event.label) if apart else "",
                "checkpoint": "checkpoint" if event.checkpoint else "mark",
            }
        )
    # A checkpoint often lies where something else begins: it is drawn over that.
    said.sort(key=lambda row: row["checkpoint"] == "checkpoint")
    x = alt.X("at:Q", title=_TIME)
    dashed = alt.Chart(inline(ends)).mark_rule(strokeDash=[4, 3], color=INK)
    layers = [dashed.encode(x=x, tooltip=["label:N"])]
    if not said:
        return layers
    base = alt.Chart(inline(said)).encode(x=x)
    rules = base.mark_rule(strokeWidth=0.8, opacity=0.7).encode(
        color=alt.condition("datum.checkpoint == 'checkpoint'", alt.value(GREEN), alt.value(RED)),
        tooltip=["label:N", "checkpoint:N", alt.Tooltip("at:Q", format=".1f", title=_TIME)],
    )
    words = base.mark_text(angle=270, align="right", baseline="top", dx=-4, dy=2, fontSize=9)
    return [*layers, rules, words.encode(y=alt.value(0), text="written:N")]
