"""`lowtide grid`: look at a grid's curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import How
from lowtide.cli.output import TABLE, Column, Form, say, say_all

if TYPE_CHECKING:
    from lowtide.grids.resolve import Resolved
    from lowtide.signal import Signal

_BACK_S = 86_400.0


def grid(
    source: Annotated[
        str,
        typer.Argument(
            help="A file, a provider's zone (gb, gb:13, electricitymaps:DE, "
            "watttime:CAISO_NORTH), or a synthetic grid: sunny, windy, nuclear, coal."
        ),
    ],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", help="First moment to show.  [default: all, or a day back of a provider]"
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Last moment, or +48h.")] = None,
    days: Annotated[
        int | None, typer.Option(help="Days of a synthetic grid.  [default: 7]")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Of a grid that has several: average, marginal or price.  [default: average]"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which weather the synthetic grid has.  [default: 0]")
    ] = None,
    how: How = None,
    image: Annotated[
        Path | None, typer.Option(help="Also draw it into this .png or .svg file.")
    ] = None,
    form: Form = TABLE,
) -> None:
    """Draw a grid's carbon intensity or price over time."""
    from lowtide.cli.chart import draw
    from lowtide.cli.inputs import find_grid, read_moment
    from lowtide.cli.plan import signal_document
    from lowtide.grids.resolve import kind_of
    from lowtide.units import format_iso, format_time

    first = None if begin is None else read_moment("--from", begin)
    of = kind_of(source, files=True)
    weather: dict[str, Any] = {}
    if of == "synthetic":
        weather = {"days": 7 if days is None else days, "seed": seed or 0}
    elif of == "zone":
        _refuse({"--days": days, "--seed": seed}, f"{source} is a provider's zone")
    else:
        _refuse({"--days": days, "--kind": kind, "--seed": seed}, f"{source} is a file")
    signal, note = _chosen(find_grid(source, of, since=first, how=how, **weather), kind, first)
    if begin is not None or end is not None:
        since = signal.start if first is None else first
        until = signal.end if end is None else read_moment("--to", end, relative_to=since)
        signal = signal.window(since, until)
    if image is not None:
        from lowtide.page.looks import save_image, signal_chart

        save_image(signal_chart(signal), image)

    def show() -> None:
        say(f"{signal.label}: {format_time(signal.start)} to {format_time(signal.end)}")
        print(draw(signal))
        values = signal.values
        low = float(signal.edges[int(values.argmin())])
        high = float(signal.edges[int(values.argmax())])
        say(
            f"mean {signal.mean():.4g} {signal.unit}, lowest {values.min():.4g} at "
            f"{format_time(low)}, highest {values.max():.4g} at {format_time(high)}"
        )
        say_all((signal.caveat, note))
        if image is not None:
            print(f"drawn in {image}")

    form.print(
        zip(signal.edges.tolist(), signal.values.tolist(), strict=False),
        columns=(
            Column("datetime", read=lambda step: format_iso(step[0])),
            Column(signal.unit, read=lambda step: step[1]),
            Column("synthetic", read=lambda _: signal.synthetic),
        ),
        document=lambda: {
            **signal_document(signal),
            "note": note,
            "values": signal.values.tolist(),
        },
        show=show,
    )


def _refuse(options: Mapping[str, object], what: str) -> None:
    """Refuse options that are about synthetic grids only."""
    from lowtide.errors import InvalidInput

    for option, given in options.items():
        if given is not None:
            instead = {"--kind": "--how kind=...", "--days": "--from and --to"}.get(option)
            raise InvalidInput(
                f"{option} is for synthetic grids, and {what}: leave it out"
                + (f", or say {instead}" if instead else "")
            )


def _chosen(found: Resolved, kind: str | None, begin: float | None) -> tuple[Signal, str]:
    """Return the signal of a kind, of a provider by default from yesterday on, and its note."""
    import time

    from lowtide.errors import UnknownName

    signal = found.signals.get(kind or next(iter(found.signals)))
    if signal is None:
        of = f" of {found.name}" if found.retrieved else ""
        raise UnknownName(f"kind of signal{of}", str(kind), found.signals)
    now = time.time()
    if found.retrieved and begin is None and signal.end > now - _BACK_S:
        signal = signal.window(max(signal.start, now - _BACK_S), signal.end)
    told = [each.note(now) for each in found.retrieved if each.signal.kind == signal.kind]
    return signal, "".join(told)
