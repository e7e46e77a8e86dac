"""A job on one page that needs no network: use over time, phases, and what waiting saves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.hindsight.job import Hindsight, binned
from lowtide.hindsight.words import drawn, headline, phase_table, use_table, waiting_table
from lowtide.page.looks import (
    BLUE,
    RED,
    WIDTH,
    YELLOW,
    alt,
    inline,
    make_figure,
    schedules_chart,
    stamped,
    time_axis,
)
from lowtide.page.page import Figure, Page, Section, Table
from lowtide.profile import PowerProfile
from lowtide.schedule import Schedule
from lowtide.units import GIB, format_duration, format_time

_HEIGHT = 110
# So many points of a curve are drawn at most.
_POINTS = 600
_LEGEND = (
    "Dashed: what it asked for. Yellow: phases found in what it drew. Gaps are times without data."
)


def write_page(told: Hindsight, path: Path | str) -> None:
    """Write the page."""
    lead, *times = headline(told)
    used = _use_chart(told)
    sections = [
        Section(
            question="What it used over time",
            answer=" ".join(times),
            notes=[_LEGEND],
            parts=[] if used is None else [make_figure("use", used)],
        ),
        Section(question="What it asked for and what it used", parts=[use_table(told.behaviour)]),
        Section(
            question="What that says",
            parts=[
                Table(
                    header=("question", "answer", "evidence"),
                    rows=[[each.question, each.answer, each.evidence] for each in told.verdicts],
                )
            ],
        ),
        Section(question="What it drew and emitted", answer=" ".join(drawn(told.record))),
    ]
    if told.phases is not None:
        found = phase_table(told.phases.found)
        sections.append(Section(question="Phases found in what it drew", parts=[found]))
    saved: list[Table | Figure] = [waiting_table(told)]
    if told.waiting and told.signal is not None and told.phases is not None:
        deadline = told.arrival + told.phases.profile.run_s + told.waiting[-1].wait_s
        schedules: dict[str, Schedule] = {
            f"up to {format_duration(each.wait_s)}": each.plan.schedule for each in told.waiting
        }
        window = told.signal.window(told.arrival, deadline)
        chart = schedules_chart(window, schedules, deadline=deadline)
        saved.append(make_figure("waiting", chart))
    sections.append(
        Section(question="What waiting would have saved", answer=" ".join(told.notes), parts=saved)
    )
    Page(
        title=f"Job {told.record.shown_id}",
        lead=[lead],
        sections=sections,
        footer=f"Last seen {format_time(told.record.last_seen)}; times are UTC.",
    ).write(path)


def _use_chart(told: Hindsight) -> alt.VConcatChart | None:
    """Draw use, and power with its phases, one above the other on one axis of time."""
    behaviour = told.behaviour
    asked = {
        "cpus_busy": ("cores", 1.0, behaviour.cpus.asked),
        "memory_bytes": ("memory, GiB", GIB, behaviour.memory.asked),
        "gpus_busy": ("GPUs", 1.0, behaviour.gpus.asked),
        "gpu_memory_bytes": ("GPU memory, GiB", GIB, behaviour.gpu_memory.asked),
        "power_w": (f"W ({told.record.power})", 1.0, math.nan),
    }
    used = [name for name in asked if np.nan_to_num(told.series.columns[name]).any()]
    if not used:
        return None
    panels = [_panel(told, name, *asked[name], last=name == used[-1]) for name in used]
    return alt.vconcat(
        *panels, spacing=6, resolve=alt.Resolve(scale=alt.ScaleResolveMap(x="shared"))
    )


def _panel(
    told: Hindsight, name: str, unit: str, size: float, asked: float, *, last: bool
) -> alt.LayerChart:
    series = told.series
    begin, end = float(series.starts[0]), float(series.times[-1])
    edges = np.linspace(begin, end, min(len(series), _POINTS) + 1)
    values = binned(series, name, edges) / size
    known = [None if np.isnan(value) else float(value) for value in values]
    x = time_axis("time", labels=last, span_s=end - begin)
    base = alt.Chart(inline(stamped(edges, known)), width=WIDTH, height=_HEIGHT).encode(
        x=x, y=alt.Y("value:Q", title=unit)
    )
    layers: list[Any] = [
        base.mark_area(interpolate="step-after", color=BLUE, opacity=0.25),
        base.mark_line(interpolate="step-after", color=BLUE, strokeWidth=1.2),
    ]
    if asked > 0:
        level = alt.Chart(inline([{"value": asked / size, "what": "asked for"}]))
        layers.append(
            level.mark_rule(color=RED, strokeDash=[5, 3]).encode(
                y="value:Q", tooltip=["what:N", "value:Q"]
            )
        )
    if name == "power_w" and told.phases is not None:
        found = alt.Chart(inline(_phase_steps(told.phases.profile, begin)))
        layers.append(
            found.mark_line(interpolate="step-after", color=YELLOW, strokeWidth=2).encode(
                x=x, y="value:Q"
            )
        )
    return alt.LayerChart(layer=layers)


def _phase_steps(profile: PowerProfile, begin: float) -> list[dict[str, Any]]:
    phases = (*profile.startup, *profile.work)
    edges = begin + np.cumsum([0.0, *(phase.duration_s for phase in phases)])
    return stamped(edges, [phase.power_w for phase in phases])
