"""`lowtide node`: what runs here now, what it draws, what is idle, what nobody is charged with."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import is_estimated, lacks_grams, mark_notes, marked, marks_in
from lowtide.cli.options import NodeOptions
from lowtide.cli.output import (
    SYNTHETIC,
    TABLE,
    Column,
    Form,
    fit_table,
    make_table,
    print_json_line,
    print_table,
    say_all,
)
from lowtide.units import GIB, MISSING, format_count, format_energy, format_mass

if TYPE_CHECKING:
    from rich.table import Table

    from lowtide.monitor.tick import Tick

HEADER = (
    *("job", "kind", "user", "CPUs", "memory", "GPUs", "on GPU", "power", "energy", "CO2e"),
    "name",
)
# What programs get of each job in columns, where what is no job's has some of them alone.
PARSABLE = tuple(
    map(
        Column,
        (
            *("job_id", "source", "user", "cpus_busy", "reserved_cpus", "memory_bytes"),
            *("gpus_busy", "reserved_gpus", "gpus", "power_w", "energy_j", "carbon_g"),
            *("unmetered_s", "unpriced_j", "power", "name", "synthetic"),
        ),
    )
)


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
                columns_of(tick) if form.parsable else (),
                columns=PARSABLE,
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
            rows = table_of(tick, most=size.lines - 8 - len(notes))
            table = _fit(header_of(tick), rows, size.columns)
            live.update(Group(table, *map(Text, notes)), refresh=True)

        yield renew


def _fit(header: list[str], rows: list[list[str]], room: int) -> Table:
    """Return a table without what there is no room for."""
    for leave in ("", "kind", "name", "user", "memory"):
        kept = [place for place, name in enumerate(header) if name != leave]
        header = [header[place] for place in kept]
        rows = [[row[place] for place in kept] for row in rows]
        if (table := fit_table(header, rows, room)) is not None:
            return table
    return make_table(header, rows)


def _show_table(tick: Tick) -> None:
    print_table(header_of(tick), table_of(tick))
    say_all(notes_of(tick))


def header_of(tick: Tick) -> list[str]:
    """Return the names of the table's columns: those of GPUs only where any are known to be."""
    return _shown(tick, HEADER)


def table_of(tick: Tick, *, most: int | None = None) -> list[list[str]]:
    """Return the rows of a table: jobs by what they draw, then what is not a job's, then the node.

    Args:
        most: How many jobs to show; None for all.
    """
    order = _order(tick)
    shown = order if most is None else order[: max(most, 0)]
    held = _held(tick)
    rows = [_job_row(tick, place, held) for place in shown]
    if len(shown) < len(order):
        hidden = order[len(shown) :]
        watts = sum(_or_zero(float(tick.shares.power_w[place])) for place in hidden)
        estimated = any(_is_estimated(tick, place) for place in hidden)
        rows.append([f"{len(hidden)} more", *[""] * 6, _watts(watts, estimated), "", "", ""])
    lacks_power, lacks_grid = _node_lacks(tick)
    estimated = not tick.shares.measured
    for name, watts, joules, grams in _rest(tick):
        energy = marked(format_energy(_known(joules)), partial=lacks_power, estimated=estimated)
        mass = marked(format_mass(_known(grams)), partial=lacks_grid, estimated=estimated)
        rows.append([name, *[""] * 6, _watts(watts, estimated), energy, mass, ""])
    return [_shown(tick, row) for row in rows]


def notes_of(tick: Tick) -> list[str]:
    """Return what belongs below the table: what its marks mean, and what was left out."""
    notes = mark_notes(marks_in(table_of(tick)))
    if tick.synthetic:
        notes.append(f"{SYNTHETIC}.")
    if tick.rejected:
        notes.append(
            f"{format_count(tick.rejected, 'reading')} made no sense, and were left out."
            if tick.rejected > 1
            else "1 reading made no sense, and was left out."
        )
    return notes


def columns_of(tick: Tick) -> list[dict[str, Any]]:
    """Return the rows for programs: jobs, then what is no job's."""
    from lowtide.monitor.quantities import TOLD

    held = _held(tick)
    rows = []
    for place in _order(tick):
        unit, watts = tick.units[place], float(tick.shares.power_w[place])
        measured = None if math.isnan(watts) else "measured"
        rows.append(
            {
                **{name: float(getattr(tick, name)[place]) for name in TOLD},
                "job_id": unit.job_id,
                "source": unit.source,
                "user": unit.user,
                "gpus": held.get(place, []),
                "power_w": watts,
                "power": "estimated" if _is_estimated(tick, place) else measured,
                "name": unit.name,
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
            }
        )
    every = dict.fromkeys(column.key for column in PARSABLE) | {"synthetic": tick.synthetic}
    return [every | row for row in rows]


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


def _job_row(tick: Tick, place: int, held: dict[int, list[str]]) -> list[str]:
    unit = tick.units[place]
    lacks_power, lacks_grid = _lacks(tick, place)
    joules, grams = float(tick.energy_j[place]), float(tick.carbon_g[place])
    estimated = _is_partly(float(tick.measured_j[place]), joules, tick.shares.measured)
    return [
        unit.job_id,
        unit.source,
        unit.user or MISSING,
        _of(tick.cpus_busy[place], tick.reserved_cpus[place]),
        _memory(float(tick.memory_bytes[place])),
        _of(tick.gpus_busy[place], tick.reserved_gpus[place]),
        ", ".join(name.removeprefix("gpu-") for name in held.get(place, ())) or MISSING,
        _watts(float(tick.shares.power_w[place]), _is_estimated(tick, place)),
        marked(format_energy(_known(joules)), partial=lacks_power, estimated=estimated),
        marked(format_mass(_known(grams)), partial=lacks_grid, estimated=estimated),
        unit.name,
    ]


def _shown(tick: Tick, row: Sequence[str]) -> list[str]:
    return [
        cell
        for name, cell in zip(HEADER, row, strict=True)
        if tick.gpus or tick.gpus_unread or name not in ("GPUs", "on GPU")
    ]


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


def _lacks(tick: Tick, place: int) -> tuple[bool, bool]:
    """Say whether a job's energy lacks a part, and whether its grams do."""
    joules, grams = float(tick.energy_j[place]), float(tick.carbon_g[place])
    return _partial(joules, grams, float(tick.unmetered_s[place]), float(tick.unpriced_j[place]))


def _node_lacks(tick: Tick) -> tuple[bool, bool]:
    return _partial(
        tick.node_energy_j, tick.node_carbon_g, tick.node_unmetered_s, tick.node_unpriced_j
    )


def _partial(
    joules: float, grams: float, unmetered_s: float, unpriced_j: float
) -> tuple[bool, bool]:
    lacks_grid = lacks_grams(joules, unmetered_s, unpriced_j)
    return unmetered_s > 0 and not math.isnan(joules), lacks_grid and not math.isnan(grams)


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


def _watts(watts: float, estimated: bool) -> str:
    text = MISSING if math.isnan(watts) else f"{watts:.1f} W"
    return marked(text, estimated=estimated)


def _of(used: float, kept: float) -> str:
    """Return what is used, of what is kept for it where that is known."""
    text = MISSING if math.isnan(used) else f"{used:.2f}"
    return text if math.isnan(kept) or (math.isnan(used) and not kept) else f"{text}/{kept:g}"


def _memory(held_bytes: float) -> str:
    return MISSING if math.isnan(held_bytes) else f"{held_bytes / GIB:.2f} GiB"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
