"""`lowtide show`: one job, looked back at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.jobs import opened
from lowtide.cli.options import (
    GridOptions,
    ReadPlace,
    require_one_grid,
)
from lowtide.cli.output import SYNTHETIC, TABLE, Form, print_page_table, say, say_all, waiting
from lowtide.cli.queue import acted_document

if TYPE_CHECKING:
    from lowtide.acting.book import BookPage
    from lowtide.hindsight import Hindsight
    from lowtide.hindsight.job import Beyond
    from lowtide.monitor.verdicts import Use
    from lowtide.signal import Signal
    from lowtide.store import JobRecord, Store

_CURVES = (
    ("cpus_busy", "cores", 1.0),
    ("memory_bytes", "GiB", 2.0**30),
    ("gpus_busy", "GPUs", 1.0),
    ("power_w", "W", 1.0),
)
# Where a job without marks may be stopped: it has no checkpoints that anybody knows of.
_STOPS = ("never", "anywhere")
_DAY_S = 86400.0
# So many elements of an array are named.
_NAMED = 20


def show(
    *,
    job: Annotated[str, typer.Argument(help="The job: its number, or 4711_3, or a unit's name.")],
    start: Annotated[
        int | None,
        typer.Option(
            help="Which start of it, from 1 on: jobs are requeued, numbers used again.  [default: "
            "the last]",
            metavar="N",
        ),
    ] = None,
    asked: GridOptions,
    wait: Annotated[
        list[str] | None,
        typer.Option(
            help="How long it might have waited, may be given again.  [default: 6h, 24h, 48h]"
        ),
    ] = None,
    interruptible: Annotated[
        str, typer.Option(help="Where it might have been stopped: never or anywhere.")
    ] = "never",
    html: Annotated[
        Path | None, typer.Option(help="Write all of it as one HTML page.", metavar="FILE")
    ] = None,
    store: ReadPlace = None,
    form: Form = TABLE,
) -> None:
    """Look back at a job: use, energy, and what waiting saves.

    Phases are found in what the job drew, and planned again on the grid's signal: the file named
    with --signal, or what was known when its node was watched, and after that --grid.
    """
    from lowtide.cli.inputs import read_how, refuse_how
    from lowtide.errors import InvalidInput, UnknownName
    from lowtide.formats import read_signal
    from lowtide.hindsight import look_back
    from lowtide.hindsight.job import WAITS_S
    from lowtide.hindsight.words import hindsight_document
    from lowtide.library import Library
    from lowtide.units import parse_duration

    if interruptible not in _STOPS:
        raise UnknownName("way to stop a job that was watched", interruptible, _STOPS)
    if html is not None and not html.parent.is_dir():
        raise InvalidInput(f"there is no folder {html.parent} to write {html.name} into: make it")
    if asked.signal is None:
        refuse_how(asked.how, "what was watched")
    require_one_grid(asked.signal, asked.grid)
    curve = None if asked.signal is None else read_signal(str(asked.signal), **read_how(asked.how))
    waits_s = [parse_duration(each) for each in wait] if wait else WAITS_S
    with opened(store) as kept:
        record, others = _chosen(kept, job, start)
        made_up = any(
            host in record.hosts and begins < record.last_seen and ends > record.first_seen
            for host, begins, ends in kept.synthetic()
        )
        with waiting(f"looking back at job {job}"):
            told = look_back(
                kept,
                record,
                signal=curve,
                beyond=_beyond(asked.grid, asked.seed, record.first_seen),
                waits_s=waits_s,
                interruptible=interruptible,
                library=Library(),
            )
    acted = _acted(record)
    if html is not None:
        from lowtide.hindsight.page import write_page

        write_page(told, html)

    def show() -> None:
        _print(told, others)
        if acted is not None:
            say(_as_planned(acted))
        if made_up:
            say(f"{SYNTHETIC}: so it was watched.")
        if told.signal is not None and told.signal.synthetic:
            say(f"Waiting is planned on {told.signal.label}: a synthetic grid, not a real one.")
        if html is not None:
            print(f"written: {html}")

    form.print(
        _use_rows(told),
        document=lambda: {
            **hindsight_document(told),
            "synthetic": made_up,
            "acted": None if acted is None else acted_document(acted),
        },
        show=show,
        digits=15,
    )


def _acted(record: JobRecord) -> BookPage | None:
    """Return what was planned for a job that lowtide sbatch has submitted; None for any other."""
    from lowtide.acting.journal import Journal
    from lowtide.acting.tag import decode

    if record.source != "slurm":
        return None
    page = Journal.of_user().book.find(record.shown_id, record.first_seen)
    tag, _ = decode(record.comment)
    return None if page is None or (tag is not None and tag.token != page.token) else page


def _as_planned(page: BookPage) -> str:
    """Return plan, replay and measurement of a job in words."""
    from lowtide.units import format_number, format_percent

    known = page.reckoning
    parts = [
        f"{name} {'---' if value is None else f'{format_number(value)} {page.unit}'}"
        for name, value in (
            ("planned", known.planned),
            ("replayed", known.replayed),
            ("measured", known.measured),
        )
    ]
    if known.saving is not None:
        parts.append(f"saved {format_percent(known.saving)} against its submission")
    return f"Over all its starts: {', '.join(parts)}."


def _beyond(grid: str | None, seed: int, seen: float) -> Beyond | None:
    """Return who says what a grid does after the time in which it was watched."""
    if grid is None:
        return None
    from lowtide.cli.inputs import find_grid
    from lowtide.grids.resolve import kind_of

    kind = kind_of(grid)

    def known(begin: float, end: float) -> Signal:
        if kind == "zone":
            return find_grid(grid, kind, since=begin).average
        # The weather follows from the day on which it begins, as it does for the watcher.
        return find_grid(grid, kind, since=seen, until=end + _DAY_S, seed=seed).average

    return known


def _chosen(store: Store, job: str, start: int | None) -> tuple[JobRecord, list[JobRecord]]:
    """Return the start of a job that is meant, and the other starts."""
    from lowtide.cli.jobs import ids_of
    from lowtide.errors import InvalidInput
    from lowtide.units import format_count

    # A step is part of its job.
    (wanted,) = ids_of([job]) or [job]
    found = store.jobs(ids=[wanted])
    exact = [record for record in found if wanted == record.shown_id]
    elements = list(
        dict.fromkeys(
            record.shown_id for record in found if record.shown_id.startswith(f"{wanted}_")
        )
    )
    if elements and not exact:
        more = f" and {len(elements) - _NAMED} more" if len(elements) > _NAMED else ""
        raise InvalidInput(
            f"{job} is an array of {format_count(len(elements), 'job')}: show one of "
            f"{', '.join(elements[:_NAMED])}{more}; lowtide jobs -j {wanted} lists them all"
        )
    exact = exact or [record for record in found if wanted == record.job_id]
    if not exact:
        raise InvalidInput(
            f"no job {job} was seen: look for it with lowtide jobs, or name another --store than "
            f"{store.name}"
        )
    exact.sort(key=lambda record: (record.started, record.number))
    if start is not None and not 1 <= start <= len(exact):
        raise InvalidInput(f"job {job} was started {len(exact)} times: --start is from 1 to that")
    record = exact[-1 if start is None else start - 1]
    return record, [each for each in exact if each is not record]


def _print(told: Hindsight, others: list[JobRecord]) -> None:
    from lowtide.hindsight.words import (
        as_expected,
        drawn,
        headline,
        phase_table,
        use_table,
        waiting_table,
    )

    say_all(headline(told))
    if others:
        starts = ", ".join(str(number + 1) for number in range(len(others) + 1))
        clusters = sorted({each.cluster for each in (told.record, *others)} - {""})
        if len(clusters) > 1:
            say(f"Clusters {', '.join(clusters)} have such a job: --start {starts} shows each.")
        else:
            say(f"It was started {len(others) + 1} times: --start {starts} shows each.")
    for curve in _curves(told):
        print()
        print(curve)
    print()
    print_page_table(use_table(told.behaviour))
    print()
    for verdict in told.verdicts:
        say(f"{verdict.question} {verdict.answer}: {verdict.evidence}.")
    print()
    say_all((*drawn(told.record), as_expected(told)))
    if told.phases is not None:
        print()
        say("Phases found in what it drew:")
        print_page_table(phase_table(told.phases.found))
    print()
    print_page_table(waiting_table(told))
    say_all(told.notes)


def _curves(told: Hindsight) -> list[str]:
    """Return what was used over time, drawn; what was never used is left out."""
    import shutil

    import numpy as np

    from lowtide.cli.chart import draw_curve
    from lowtide.hindsight.job import binned

    series = told.series
    if len(series) < 2:
        return []
    begin, end = float(series.starts[0]), float(series.times[-1])
    room = max(min(shutil.get_terminal_size((80, 24)).columns - 10, 120), 10)
    edges = np.linspace(begin, end, room + 1)
    drawn = []
    for name, unit, size in _CURVES:
        values = binned(series, name, edges) / size
        if np.nan_to_num(values).max() > 0:
            drawn.append(draw_curve(values, begin, end, unit, height=4))
    return drawn


def _use_rows(told: Hindsight) -> list[dict[str, Any]]:
    """Return what scripts get of each thing that a job uses."""
    from lowtide.hindsight.words import USES

    rows = []
    for name, held in USES.items():
        use: Use = getattr(told.behaviour, held)
        rows.append(
            {
                "job": told.record.shown_id,
                "what": name,
                **{key: getattr(use, key) for key in ("asked", "node", "mean", "peak")},
                "mean_of_asked": use.share("mean", "asked"),
                "peak_of_asked": use.share("peak", "asked"),
            }
        )
    return rows
