"""A tick, as people and programs read it: the jobs, what is idle, what nobody is charged with."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lowtide.cli.output import (
    make_table,
    print_json,
    print_json_line,
    print_parsable,
    print_table,
)
from lowtide.units import format_energy, format_mass

if TYPE_CHECKING:
    from lowtide.monitor.tick import Tick

HEADER = ("job", "kind", "user", "CPUs", "memory", "GPUs", "power", "energy", "CO2e", "name")
_GIB = 2**30


@contextmanager
def showing(*, as_json: bool, parsable: bool, once: bool) -> Iterator[Callable[[Tick], None]]:
    """Show ticks: a table that renews itself on a terminal, one after the other elsewhere.

    Args:
        as_json: Print JSON, a document per line where there are many.
        parsable: Print columns.
        once: Whether there is one tick only.
    """
    import shutil

    if as_json:
        if once:
            yield lambda tick: print_json(document_of(tick))
        else:
            yield lambda tick: print_json_line(document_of(tick))
    elif parsable:
        yield lambda tick: print_parsable(HEADER, table_of(tick))
    elif once:
        yield lambda tick: print_table(HEADER, table_of(tick))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False, markup=False, emoji=False)
        with Live(console=console, screen=False, auto_refresh=False) as live:

            def renew(tick: Tick) -> None:
                lines = shutil.get_terminal_size().lines
                rows = table_of(tick, most=lines - 8)
                live.update(make_table(HEADER, rows), refresh=True)

            yield renew
    else:
        yield lambda _: None


def table_of(tick: Tick, *, most: int | None = None) -> list[list[str]]:
    """Return the rows of a table: jobs by what they draw, then what is not a job's, then the node.

    Args:
        tick: What happened.
        most: How many jobs to show; None for all.
    """
    order = sorted(
        range(len(tick.units)),
        key=lambda place: (-_or_zero(float(tick.shares.power_w[place])), tick.units[place].key),
    )
    shown = order if most is None else order[: max(most, 0)]
    rows = [_job_row(tick, place) for place in shown]
    if len(shown) < len(order):
        hidden = order[len(shown) :]
        watts = sum(_or_zero(float(tick.shares.power_w[place])) for place in hidden)
        rows.append([f"{len(hidden)} more", "", "", "", "", "", _watts(tick, watts), "", "", ""])
    shares = tick.shares
    for name, watts, joules in (
        ("idle", shares.idle_w, tick.idle_energy_j),
        ("unattributed", shares.unattributed_w, tick.unattributed_energy_j),
        ("node", shares.node_w, tick.node_energy_j),
    ):
        rows.append(
            [name, "", "", "", "", "", _watts(tick, watts), format_energy(_known(joules)), "", ""]
        )
    return rows


def document_of(tick: Tick) -> dict[str, Any]:
    """Return a tick as JSON holds it.

    Args:
        tick: What happened.
    """
    columns = (
        "cpu_s",
        "cpus_busy",
        "memory_bytes",
        "read_bytes",
        "written_bytes",
        "gpus_busy",
        "gpu_memory_bytes",
        "reserved_cpus",
        "reserved_bytes",
        "reserved_gpus",
        "energy_j",
        "measured_j",
        "carbon_g",
        "marginal_g",
        "embodied_g",
    )
    return {
        "host": tick.host,
        "since": tick.since,
        "time": tick.time,
        "power": "measured" if tick.shares.measured else "estimated",
        "node_w": tick.shares.node_w,
        "idle_w": tick.shares.idle_w,
        "unattributed_w": tick.shares.unattributed_w,
        "node_energy_j": tick.node_energy_j,
        "idle_energy_j": tick.idle_energy_j,
        "unattributed_energy_j": tick.unattributed_energy_j,
        "intensity_g_per_kwh": tick.intensity_g_per_kwh,
        "jobs": [
            {
                "job_id": unit.job_id,
                "source": unit.source,
                "user": unit.user,
                "name": unit.name,
                "started": unit.started,
                "power_w": float(tick.shares.power_w[place]),
                "gpu_w": float(tick.shares.gpu_w[place]),
                **{name: float(getattr(tick, name)[place]) for name in columns},
            }
            for place, unit in enumerate(tick.units)
        ],
        "problems": list(tick.problems),
    }


def _job_row(tick: Tick, place: int) -> list[str]:
    unit = tick.units[place]
    return [
        unit.job_id,
        unit.source,
        unit.user or "---",
        _of(tick.cpus_busy[place], tick.reserved_cpus[place]),
        _memory(float(tick.memory_bytes[place])),
        _of(tick.gpus_busy[place], tick.reserved_gpus[place]) if tick.gpus else "---",
        _watts(tick, float(tick.shares.power_w[place])),
        format_energy(_known(float(tick.energy_j[place]))),
        format_mass(_known(float(tick.carbon_g[place]))),
        unit.name,
    ]


def _watts(tick: Tick, watts: float) -> str:
    if math.isnan(watts):
        return "---"
    return f"{'' if tick.shares.measured else '~'}{watts:.1f} W"


def _of(used: float, kept: float) -> str:
    """Return what is used, of what is kept for it where that is known."""
    if math.isnan(used):
        return "---"
    return f"{used:.2f}" if math.isnan(kept) else f"{used:.2f}/{kept:g}"


def _memory(held_bytes: float) -> str:
    return "---" if math.isnan(held_bytes) else f"{held_bytes / _GIB:.2f} GiB"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
