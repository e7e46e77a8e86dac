"""`lowtide recording`: look at what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.examples import epilog
from lowtide.cli.model import IdleAfter, IdleBefore
from lowtide.cli.options import GridName, SignalFile, grouped
from lowtide.cli.output import TABLE, Column, Form, Written, print_rows, say, say_all

if TYPE_CHECKING:
    from lowtide.recording import Recording, Run, Unmeasured

recording = typer.Typer(
    name="recording",
    help="Look at recordings of measured programs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_MOST_MARKS = 40
_COLUMNS = 66


@recording.command(epilog=epilog("recording show"))
@grouped
def show(
    folder: Annotated[
        str,
        typer.Argument(
            help="A recording: a folder of lowtide measure, of pinpoint, a table of samples, or "
            "h200, which comes with lowtide."
        ),
    ],
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Show this run alone; may be given again.")
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="Draw power, use, marks and lost time into this .png or .svg."),
    ] = None,
    idle_before: IdleBefore = None,
    idle_after: IdleAfter = None,
    signal: SignalFile = None,
    grid: GridName = None,
    form: Form = TABLE,
) -> None:
    """Show what a recording holds: power, marks, lost time."""
    from lowtide.cli.measure import grid_of, run_rows

    where = grid_of(signal, grid)
    found = _read(folder, run, idle_before, idle_after)
    rows = [row for each in found for row in run_rows(each, where)]
    marks = [
        {"run": each.id, "time_s": event.time - each.start, "mark": event.label,
         "checkpoint": event.checkpoint}
        for part in found for each in part for event in each.events
    ]  # fmt: skip
    lost = [
        {"run": each.id, "from_s": begin - each.start, "to_s": end - each.start}
        for part in found
        for each in part
        for begin, end in each.gaps
    ]
    written = Written()
    written.add(image, partial(_draw, found))

    def show() -> None:
        _show(found, rows, marks, lost)
        for path in written.paths:
            print(f"drawn in {path}")

    form.print(
        rows,
        columns=[Column(name) for name in rows[0] if name != "notes"],
        document={"recording": folder, "runs": rows, "marks": marks, "lost": lost},
        show=show,
        digits=None,
    )
    written.settle()


def _read(
    folder: str, wanted: list[str] | None, idle_before: str | None, idle_after: str | None
) -> list[Recording]:
    """Return a recording, or several in one folder, with the runs that are asked for."""
    from lowtide.errors import UnknownName
    from lowtide.formats.recordings import read_recordings
    from lowtide.recording import Recording
    from lowtide.samples import sample_recording, sample_recordings

    sample = folder in sample_recordings() and not Path(folder).exists()
    found = read_recordings(
        sample_recording(folder) if sample else folder,
        idle_before=idle_before,
        idle_after=idle_after,
    )
    if not wanted:
        return found
    known = [
        name for each in found for part in (each.runs, each.unmeasured) for name in _names(part)
    ]
    for name in wanted:
        if name not in known:
            raise UnknownName("run", name, known)
    return [
        Recording(
            runs=tuple(part for part in each.runs if part.id in wanted),
            source=each.source,
            notes=each.notes,
            unmeasured=tuple(part for part in each.unmeasured if part.id in wanted),
        )
        for each in found
        if any(name in wanted for part in (each.runs, each.unmeasured) for name in _names(part))
    ]


def _names(runs: Iterable[Run | Unmeasured]) -> list[str]:
    return [run.id for run in runs]


def _draw(found: list[Recording], image: Path) -> None:
    from lowtide.errors import InvalidInput
    from lowtide.page.looks import alt, save_image
    from lowtide.page.recordings import recording_chart

    charts = [recording_chart(each) for each in found if len(each)]
    if not charts:
        raise InvalidInput("no run of this recording was measured: there is nothing to draw")
    save_image(alt.vconcat(*charts) if len(charts) > 1 else charts[0], image)


def _show(
    found: list[Recording],
    rows: list[dict[str, Any]],
    marks: list[dict[str, Any]],
    lost: list[dict[str, Any]],
) -> None:
    import numpy as np

    from lowtide.cli.chart import draw_curve
    from lowtide.cli.measure import show_runs

    show_runs(rows)
    for each in found:
        for run in each:
            print()
            edges = np.linspace(run.start, run.end, _COLUMNS + 1)
            drawn = np.array(
                [
                    run.energy_j(first, last) / (last - first)
                    for first, last in pairwise(edges.tolist())
                ]
            )
            stretches = [("marks", [(event.time, event.time) for event in run.events])]
            stretches += [("lost", list(run.gaps))] if run.gaps else []
            say(f"{run.id}, power over time")
            print(draw_curve(drawn, run.start, run.end, "W", marks=stretches))
    if marks:
        print()
        print_rows(
            (
                Column("run", "run"),
                Column("time_s", "after", "{:.2f} s".format),
                Column("mark", "mark"),
                Column("checkpoint", "", lambda is_one: "checkpoint" * is_one),
            ),
            marks[:_MOST_MARKS],
        )
    more = len(marks) - _MOST_MARKS
    say_all(
        [
            f"and {more} more marks" if more > 0 else "",
            *(f"{each['run']}: not measured from {each['from_s']:.1f} to {each['to_s']:.1f} s"
              for each in lost),
            *(f"{row['run']}: {note}" for row in rows for note in row["notes"]),
            *(note for each in found for note in each.notes),
        ]
    )  # fmt: skip
