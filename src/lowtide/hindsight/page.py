"""A job on one page that needs no network: use over time, phases, and what waiting saves."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.hindsight.job import Hindsight, binned
from lowtide.hindsight.words import drawn, headline, phase_rows, use_rows, waiting_rows
from lowtide.page.page import Section, write_report
from lowtide.profile import PowerProfile
from lowtide.schedule import Schedule
from lowtide.units import format_duration, format_time

if TYPE_CHECKING:
    import altair as alt

_WIDTH = 760
_HEIGHT = 110
# So many points of a curve are drawn at most.
_POINTS = 600
_USED = "#0072B2"
_ASKED = "#D55E00"
_PHASES = "#E69F00"
_GIB = 2.0**30
_LEGEND = (
    " Dashed: what it asked for. Yellow: phases found in what it drew. Gaps are times without data."
)


def write_page(told: Hindsight, path: Path | str) -> None:
    """Write the page."""
    # Says how to get it where it is missing.
    from lowtide.page import charts

    note, *times = headline(told)
    sections = [
        Section(
            heading="What it used over time",
            text=" ".join(times) + _LEGEND,
            chart=_use_chart(told),
        ),
        _section("What it asked for and what it used", *use_rows(told.behaviour)),
        Section(
            heading="What that says",
            header=("question", "answer", "evidence"),
            rows=[[each.question, each.answer, each.evidence] for each in told.verdicts],
        ),
        Section(heading="What it drew and emitted", text=" ".join(drawn(told.record))),
    ]
    if told.phases is not None:
        heading = "Phases found in what it drew"
        sections.append(_section(heading, *phase_rows(told.phases.found)))
    saved: Any = None
    if told.waiting and told.signal is not None and told.phases is not None:
        deadline = told.arrival + told.phases.profile.run_s + told.waiting[-1].wait_s
        schedules: dict[str, Schedule] = {
            f"up to {format_duration(each.wait_s)}": each.plan.schedule for each in told.waiting
        }
        saved = charts.schedules_chart(
            told.signal.window(told.arrival, deadline), schedules, deadline=deadline
        )
    header, rows = waiting_rows(told)
    sections.append(
        Section(
            heading="What waiting would have saved",
            text=" ".join(told.notes),
            header=header,
            rows=rows,
            chart=saved,
        )
    )
    write_report(
        path,
        title=f"Job {told.record.shown_id}",
        note=note,
        sections=sections,
        footer=f"Made by lowtide {version('lowtide')}. Last seen "
        f"{format_time(told.record.last_seen)}; times are UTC.",
    )


def _section(heading: str, header: tuple[str, ...], rows: list[list[str]]) -> Section:
    return Section(heading=heading, header=header, rows=rows)


def _use_chart(told: Hindsight) -> alt.VConcatChart | None:
    """Draw use, and power with its phases, one above the other on one axis of time."""
    import altair as alt

    behaviour = told.behaviour
    asked = {
        "cpus_busy": ("cores", 1.0, behaviour.cpus.asked),
        "memory_bytes": ("memory, GiB", _GIB, behaviour.memory.asked),
        "gpus_busy": ("GPUs", 1.0, behaviour.gpus.asked),
        "gpu_memory_bytes": ("GPU memory, GiB", _GIB, behaviour.gpu_memory.asked),
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
    import altair as alt

    from lowtide.page.charts import time_axis

    series = told.series
    begin, end = float(series.starts[0]), float(series.times[-1])
    edges = np.linspace(begin, end, min(len(series), _POINTS) + 1)
    values = binned(series, name, edges) / size
    known = [None if np.isnan(value) else float(value) for value in values]
    rows = [
        {"time": 1000 * time, "value": value}
        for time, value in zip(edges.tolist(), [*known, known[-1]], strict=True)
    ]
    base = alt.Chart(alt.InlineData(values=rows), width=_WIDTH, height=_HEIGHT).encode(
        x=time_axis("time", labels=last, span_s=end - begin), y=alt.Y("value:Q", title=unit)
    )
    layers: list[Any] = [
        base.mark_area(interpolate="step-after", color=_USED, opacity=0.25),
        base.mark_line(interpolate="step-after", color=_USED, strokeWidth=1.2),
    ]
    if asked > 0:
        level = alt.Chart(alt.InlineData(values=[{"value": asked / size, "what": "asked for"}]))
        layers.append(
            level.mark_rule(color=_ASKED, strokeDash=[5, 3]).encode(
                y="value:Q", tooltip=["what:N", "value:Q"]
            )
        )
    if name == "power_w" and told.phases is not None:
        found = alt.Chart(alt.InlineData(values=_phase_steps(told.phases.profile, begin)))
        layers.append(
            found.mark_line(interpolate="step-after", color=_PHASES, strokeWidth=2).encode(
                x=time_axis("time", labels=last, span_s=end - begin), y="value:Q"
            )
        )
    return alt.LayerChart(layer=layers)


def _phase_steps(profile: PowerProfile, begin: float) -> list[dict[str, float]]:
    phases = (*profile.startup, *profile.work)
    edges = begin + np.cumsum([0.0, *(phase.duration_s for phase in phases)])
    power_w = [phase.power_w for phase in phases]
    return [
        {"time": 1000 * float(time), "value": power}
        for time, power in zip(edges, [*power_w, power_w[-1]], strict=True)
    ]
