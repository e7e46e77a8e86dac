"""`lowtide node`: what runs here now, what it draws, what is idle, what nobody is charged with."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import (
    is_estimated,
    lacks_grams,
    mark_notes,
    marks_for,
    marks_in,
    tells_of_model,
)
from lowtide.cli.options import NodeOptions
from lowtide.cli.output import (
    SYNTHETIC,
    TABLE,
    Column,
    Form,
    cells_of,
    fit_table,
    make_table,
    print_json_line,
    print_rows,
    say_all,
)
from lowtide.units import GIB, MISSING, format_count

if TYPE_CHECKING:
    from rich.table import Table

    from lowtide.monitor.tick import Tick


def node(
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Renew it until interrupted.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks with --follow.")
    ] = 2.0,
    asked: NodeOptions,
    form: Form = TABLE,
) -> None:
    """Show what each job on this node draws now.

    It looks at the node for a second and keeps nothing. A ~ marks what is estimated, a > what was
    more, because a part of it is not known.
    """
    from lowtide.cli.watch import checked_interval, opened, run

    with (
        opened(asked, interval_s=checked_interval(interval, 2.0)) as (_, service),
        showing(form=form, once=not follow) as show,
    ):
        service.sinks = [show]
        run(service, ticks=None if follow else 1)


@contextmanager
def showing(*, form: Form, once: bool, quiet: bool = False) -> Iterator[Callable[[Tick], None]]:
    """Show ticks: a table that renews itself on a terminal, one after the other elsewhere.

    Args:
        form: JSON has a document per line where there are many.
        once: Whether there is one tick only.
        quiet: Whether a table is for terminals only: what serves and keeps has no other reader.
    """
    for_people = form.for_people
    if for_people and not once and sys.stdout.isatty():
        with _renewing() as renew:
            yield renew
        return

    def shown(tick: Tick) -> None:
        if for_people and quiet and not once:
            return
        if form.as_json and not once:
            print_json_line(document_of(tick))
        else:
            form.print(
                rows_of(tick) if form.parsable else (),
                columns=COLUMNS,
                document=lambda: document_of(tick),
                show=lambda: _show_table(tick),
            )
        if for_people and not once:
            print()
        # Whoever reads it wants it now, and a reader who has gone is to be noticed now.
        sys.stdout.flush()

    yield shown


@contextmanager
def _renewing() -> Iterator[Callable[[Tick], None]]:
    import shutil

    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, screen=False, auto_refresh=False) as live:

        def renew(tick: Tick) -> None:
            notes = notes_of(tick)
            size = shutil.get_terminal_size()
            rows = rows_of(tick, most=size.lines - 8 - len(notes))
            table = _fit(shown_columns(tick), rows, size.columns)
            live.update(Group(table, *map(Text, notes)), refresh=True)

        yield renew


def _fit(columns: Sequence[Column], rows: list[dict[str, Any]], room: int) -> Table:
    """Return a table without what there is no room for."""
    for leave in ("", "kind", "name", "user", "memory"):
        columns = [column for column in columns if column.heading != leave]
        if (table := fit_table(*cells_of(columns, rows), room)) is not None:
            return table
    return make_table(*cells_of(columns, rows))


def _show_table(tick: Tick) -> None:
    print_rows(shown_columns(tick), rows_of(tick))
    say_all(_remarks(tick))


def shown_columns(tick: Tick) -> list[Column]:
    """Return the columns of the table: those of GPUs only where any are known to be."""
    has_gpus = tick.gpus or tick.gpus_unread
    return [each for each in COLUMNS if has_gpus or each.heading not in ("GPUs", "on GPU")]


def rows_of(tick: Tick, *, most: int | None = None) -> list[dict[str, Any]]:
    """Return the rows: jobs by what they draw, then what is not a job's, then the node.

    Args:
        most: How many jobs there are at most, the others being told as one; None for all.
    """
    from lowtide.monitor.quantities import TOLD

    held, order, now = _held(tick), _order(tick), tick.shares.measured
    shown = order if most is None else order[: max(most, 0)]
    rows: list[dict[str, Any]] = []
    for place in shown:
        unit, watts = tick.units[place], float(tick.shares.power_w[place])
        energies = float(tick.measured_j[place]), float(tick.energy_j[place])
        measured = None if math.isnan(watts) else "measured"
        rows.append(
            {
                **{name: float(getattr(tick, name)[place]) for name in TOLD},
                "job_id": unit.job_id,
                "source": unit.source,
                "user": unit.user or None,
                "gpus": held.get(place, []),
                "power_w": watts,
                "power": "estimated" if _is_estimated(tick, place) else measured,
                "estimated": _is_partly(*energies, now),
                "name": unit.name,
            }
        )
    if hidden := order[len(shown) :]:
        rows.append(
            {
                "job_id": f"{len(hidden)} more",
                "power_w": sum(_or_zero(float(tick.shares.power_w[place])) for place in hidden),
                "power": "estimated" * any(_is_estimated(tick, place) for place in hidden),
            }
        )
    for name, watts, joules, grams in _rest(tick):
        rows.append(
            {
                "job_id": name,
                "power_w": watts,
                "energy_j": joules,
                "carbon_g": grams,
                "unmetered_s": tick.node_unmetered_s,
                "unpriced_j": tick.node_unpriced_j,
                "power": _word_for_power(tick),
                "estimated": not now,
            }
        )
    # Nothing is told where a row has none of it, as what is no job's has no user.
    every = dict.fromkeys((column.key for column in COLUMNS), "") | {"synthetic": tick.synthetic}
    return [every | row for row in rows]


def notes_of(tick: Tick) -> list[str]:
    """Return what belongs below the table: what its marks mean, and what was left out."""
    _, cells = cells_of(shown_columns(tick), rows_of(tick))
    return [*mark_notes(marks_in(cells)), *_remarks(tick)]


def _remarks(tick: Tick) -> list[str]:
    notes = [f"{SYNTHETIC}."] if tick.synthetic else []
    if tick.rejected:
        notes.append(
            f"{format_count(tick.rejected, 'reading')} made no sense, and were left out."
            if tick.rejected > 1
            else "1 reading made no sense, and was left out."
        )
    return notes


def document_of(tick: Tick) -> dict[str, Any]:
    """Return a tick as JSON holds it."""
    from lowtide.monitor.quantities import TOLD

    held = _held(tick)
    return {
        "host": tick.host,
        "since": tick.since,
        "time": tick.time,
        "power": _word_for_power(tick),
        "sees": list(tick.shares.sees),
        "node_measured_w": tick.shares.node_measured_w,
        "gpu_power_w": dict(tick.shares.cards_w),
        **{f"{name}_w": watts for name, watts, _, _ in _rest(tick)},
        **{f"{name}_energy_j": joules for name, _, joules, _ in _rest(tick)},
        **{f"{name}_carbon_g": grams for name, _, _, grams in _rest(tick)},
        "node_unmetered_s": tick.node_unmetered_s,
        "node_unpriced_j": tick.node_unpriced_j,
        "intensity_g_per_kwh": tick.intensity_g_per_kwh,
        "synthetic": tick.synthetic,
        "marginal_g_per_kwh": tick.marginal_g_per_kwh,
        "pue": tick.pue,
        "gpus": [
            {
                "name": gpu.name,
                "uuid": gpu.uuid,
                "busy": gpu.busy,
                "memory_bytes": gpu.memory_bytes,
                "total_bytes": gpu.total_bytes,
                "share": gpu.share,
                "holders": [
                    {
                        "job_id": tick.units[place].job_id,
                        "source": tick.units[place].source,
                        "share": share,
                    }
                    for place, share in gpu.holders.items()
                ],
            }
            for gpu in tick.gpus
        ],
        "jobs": [
            {
                "job_id": unit.job_id,
                "source": unit.source,
                "user": unit.user,
                "name": unit.name,
                "started": unit.started,
                "power_w": float(tick.shares.power_w[place]),
                "measured_w": float(tick.shares.measured_w[place]),
                "gpu_w": float(tick.shares.gpu_w[place]),
                "gpus": held.get(place, []),
                **{name: float(getattr(tick, name)[place]) for name in TOLD},
            }
            for place, unit in enumerate(tick.units)
        ],
        "rejected": tick.rejected,
        "problems": list(tick.problems),
    }


def _order(tick: Tick) -> list[int]:
    return sorted(
        range(len(tick.units)),
        key=lambda place: (-_or_zero(float(tick.shares.power_w[place])), tick.units[place].key),
    )


def _held(tick: Tick) -> dict[int, list[str]]:
    """Return the names of the GPUs that each unit holds, by its place."""
    held: dict[int, list[str]] = {}
    for gpu in tick.gpus:
        for place in gpu.holders:
            held.setdefault(place, []).append(gpu.name)
    return held


def _rest(tick: Tick) -> tuple[tuple[str, float, float, float], ...]:
    """Return what is no job's, and the node: its name, watts, joules and grams."""
    shares = tick.shares
    return (
        ("idle", shares.idle_w, tick.idle_energy_j, tick.idle_carbon_g),
        (
            "unattributed",
            shares.unattributed_w,
            tick.unattributed_energy_j,
            tick.unattributed_carbon_g,
        ),
        ("node", shares.node_w, tick.node_energy_j, tick.node_carbon_g),
    )


def _is_estimated(tick: Tick, place: int) -> bool:
    """Say whether a model had a part in what a job is charged with now."""
    measured_w, watts = float(tick.shares.measured_w[place]), float(tick.shares.power_w[place])
    return _is_partly(measured_w, watts, tick.shares.measured)


def _is_partly(measured: float, whole: float, now: bool) -> bool:
    """Say whether only a part is measured; of nothing at all, what holds for the node now."""
    return is_estimated(whole, measured) if whole > 0 else whole == 0 and not now


def _word_for_power(tick: Tick) -> str:
    """Return whether the node's power was `measured`, `estimated`, or each in `part`."""
    if tick.shares.measured:
        return "measured"
    return "part" if tick.shares.node_measured_w > 0 else "estimated"


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)


def _of(row: dict[str, Any], what: str) -> str:
    """Return what is used, of what is kept for it where that is known."""
    used, kept = row[f"{what}_busy"], row[f"reserved_{what}"]
    if used == "":
        return ""
    text = MISSING if math.isnan(used) else f"{used:.2f}"
    return text if math.isnan(kept) or (math.isnan(used) and not kept) else f"{text}/{kept:g}"


def _power_marks(row: dict[str, Any]) -> str:
    return marks_for(estimated=tells_of_model(row["power"]))


def _energy_marks(row: dict[str, Any]) -> str:
    return marks_for(partial=row["unmetered_s"] > 0, estimated=row["estimated"])


def _mass_marks(row: dict[str, Any]) -> str:
    lacks = lacks_grams(row["energy_j"], row["unmetered_s"], row["unpriced_j"])
    return marks_for(partial=lacks, estimated=row["estimated"])


# What people and programs get of each job; what is no job's has some of them alone.
COLUMNS = (
    Column("job_id", "job"),
    Column("source", "kind"),
    Column("user", "user"),
    Column("cpus_busy"),
    Column("reserved_cpus"),
    Column("", "CPUs", read=partial(_of, what="cpus")),
    Column("memory_bytes", "memory", lambda held_bytes: f"{held_bytes / GIB:.2f} GiB"),
    Column("gpus_busy"),
    Column("reserved_gpus"),
    Column("", "GPUs", read=partial(_of, what="gpus")),
    Column(
        "gpus",
        "on GPU",
        lambda held: ", ".join(name.removeprefix("gpu-") for name in held) or MISSING,
    ),
    Column("power_w", "power", "{:.1f} W".format, marks=_power_marks),
    Column("energy_j", "energy", marks=_energy_marks),
    Column("carbon_g", "CO2e", marks=_mass_marks),
    Column("unmetered_s"),
    Column("unpriced_j"),
    Column("power"),
    Column("name", "name"),
    Column("synthetic"),
)
