"""`lowtide trace`: what a job trace is like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import (
    GridOptions,
    Tz,
)
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    Written,
    print_page_table,
    require_figure,
    say,
    say_all,
    waiting,
)

if TYPE_CHECKING:
    from lowtide.cli.inputs import Zone
    from lowtide.signal import Signal
    from lowtide.studies.portrait import Portrait
    from lowtide.trace import Trace

_DAY_S = 86_400.0


def trace(
    *,
    file: Annotated[Path, typer.Argument(help="The trace; its format is recognised.")],
    time_unit: Annotated[
        str | None, typer.Option(help="Unit of times in a plain job table: s, min, h or ms.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="When the first job of a trace shall arrive.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--format", help="The trace's format, where it is not recognised."),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(help="How many CPUs there are: tells utilisation.")
    ] = None,
    asked: GridOptions,
    tz: Tz = None,
    html: Annotated[
        Path | None, typer.Option(help="Write all of it as one HTML page.", metavar="FILE")
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="Draw arrivals and CPUs held beside the grid: .png or .svg."),
    ] = None,
    form: Form = TABLE,
) -> None:
    """Tell what a job trace is like, beside a grid's curve.

    Arrivals by hour and weekday, how long, wide and patient jobs are, how they ended, what their
    users asked for, and how many CPUs they held. With --signal or --grid, what a kWh emits then.
    """
    from lowtide.cli.inputs import Zone
    from lowtide.errors import InvalidInput
    from lowtide.formats import read_jobs
    from lowtide.studies.portrait import Portrait

    require_figure(image)
    if asked.signal is not None and asked.grid is not None:
        raise InvalidInput("a trace is shown beside one grid: give --signal or --grid, not both")
    zone = Zone.named(tz)
    with waiting(f"reading {file.name}"):
        found = read_jobs(file, format=layout, time_unit=time_unit, start=start)
    portrait = Portrait(trace=found, signal=_signal(asked, found), tz=zone.tz, cpus=cpus)
    written = Written()
    written.add(html, lambda path: portrait.page().write(path))
    if image is not None:
        from lowtide.page.looks import save_image

        written.add(image, lambda path: save_image(portrait.chart(), path))

    def show() -> None:
        _show(portrait, zone)
        say_all(f"written: {path}" for path in written.paths)

    form.print(
        _rows(portrait),
        columns=[
            Column(key, read=lambda row, key=key: row.get(key))  # type: ignore[misc]
            for key in _KEYS
        ],
        document=lambda: _document(portrait),
        show=show,
    )
    written.settle()


# What stands in a row for scripts: of a number as a whole, a quantity, a state, an hour or a day.
_KEYS = (
    *("part", "name", "value", "jobs", "share", "core_h", "held_cpus", "intensity"),
    *("known", "mean", "p05", "median", "p95", "p99", "max", "core_share"),
)


def _signal(asked: GridOptions, trace: Trace) -> Signal | None:
    """Return the curve to show beside the trace, None where none was asked for."""
    from lowtide.cli.inputs import find_grid, refuse_how
    from lowtide.grid import deciding_signal
    from lowtide.grids.resolve import kind_of

    name = asked.grid if asked.signal is None else str(asked.signal)
    if name is None:
        refuse_how(asked.how, "a trace alone: --signal or --grid names a grid")
        return None
    first, last = float(trace.arrival[0]), float(trace.arrival[-1])
    kind = "file" if asked.signal is not None else kind_of(name, files=False)
    weather: dict[str, Any] = {}
    if kind == "synthetic":
        days = min(max(int((last - first) / _DAY_S) + 2, 7), 366)
        weather = {"days": days, "seed": asked.seed}
    return deciding_signal(find_grid(name, kind, since=first, how=asked.how, **weather).grid)


def _rows(portrait: Portrait) -> list[dict[str, Any]]:
    """Return all numbers, a row each."""
    from dataclasses import asdict

    rows = [
        {"part": "trace", "name": name, "value": value}
        for name, value in portrait.summary().items()
    ]
    rows += [{"part": "job", "name": key, **parts} for key, parts in portrait.spreads.items()]
    rows += [
        {"part": key, **asdict(each)} for key, kinds in portrait.classes.items() for each in kinds
    ]
    rows += [
        {"part": "state", "name": state, "jobs": jobs, "core_h": core_h}
        for state, jobs, core_h in portrait.states
    ]
    for part, slots in (("hour", portrait.hours), ("weekday", portrait.weekdays)):
        rows += [{"part": part, **asdict(slot)} for slot in slots]
    return rows


def _document(portrait: Portrait) -> dict[str, Any]:
    from lowtide.cli.plan import signal_document
    from lowtide.units import format_iso

    told = portrait.document()
    if portrait.dated:
        told["start"] = format_iso(told["start"])
    signal = portrait.signal
    return {**told, "signal": None if signal is None else signal_document(signal)}


def _show(portrait: Portrait, zone: Zone) -> None:
    """Tell people."""
    from lowtide.units import format_count, format_duration, format_number, format_percent

    told, (first, last) = portrait.summary(), portrait.span
    users = f" of {format_count(told['users'], 'user')}" if told["users"] else ""
    when = f", {zone.told(first)} to {zone.told(last)}" if portrait.dated else ""
    say(
        f"{portrait.trace.source}: {format_count(told['jobs'], 'job')}{users} in "
        f"{format_duration(last - first)}{when}."
    )
    for count, words in (
        (told["never_ran"], "never ran"),
        (
            told["length_unknown"],
            f"{'has' if told['length_unknown'] == 1 else 'have'} no known length",
        ),
    ):
        if count:
            say(f"{format_count(count, 'job')} of them {words}.")
    say_all(f"{note[0].upper()}{note[1:]}." for note in portrait.notes)
    print()
    print_page_table(portrait.spread_table())
    print()
    print_page_table(portrait.state_table())
    print()
    name = f"hour ({zone.name})" if portrait.dated else "hour of the trace"
    print_page_table(portrait.slot_table(name, portrait.hours))
    print()
    print_page_table(portrait.slot_table("weekday", portrait.weekdays))
    if told["mean_held_cpus"] is not None:
        share = "" if told["utilisation"] is None else f", {format_percent(told['utilisation'])}"
        of = "" if portrait.cpus is None else f" of {portrait.cpus:g} CPUs"
        say(
            f"Held: {format_number(told['mean_held_cpus'])} CPUs in the mean{share}{of}, "
            f"{format_number(told['peak_held_cpus'])} at most."
        )
    if portrait.signal is not None:
        say(
            f"Beside it: {portrait.signal.label}"
            + ("; the grid is synthetic." if portrait.signal.synthetic else ".")
        )
        if told["held_intensity_correlation"] is not None:
            say(
                "CPUs held and what a kWh counts go together by "
                f"{told['held_intensity_correlation']:+.2f} (correlation, hour by hour)."
            )
