"""`lowtide grid`: look at a grid's curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.options import AsJson, How, Parsable
from lowtide.cli.output import print_json, print_parsable, say

if TYPE_CHECKING:
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
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Draw a grid's carbon intensity or price over time."""
    from lowtide.cli.chart import draw
    from lowtide.cli.inputs import read_how, read_moment, refuse_how
    from lowtide.cli.plan import signal_document
    from lowtide.errors import FileProblem, UnknownName
    from lowtide.formats import read_signal
    from lowtide.grids import GRID_NAMES, synthetic_grid
    from lowtide.grids.providers import PROVIDERS, names_a_zone
    from lowtide.units import format_iso, format_time

    note = ""
    first = None if begin is None else read_moment("--from", begin)
    if source in GRID_NAMES:
        refuse_how(how, "a synthetic grid")
        made = synthetic_grid(
            source,
            start="2024-07-01T00:00Z" if first is None else first,
            days=7 if days is None else days,
            seed=seed or 0,
        )
        kinds = {"average": made.average, "marginal": made.marginal, "price": made.price}
        signal = kinds.get(kind or "average")
        if signal is None:
            raise UnknownName("kind of signal", str(kind), kinds)
    elif names_a_zone(source):
        _refuse({"--days": days, "--seed": seed}, f"{source} is a provider's zone")
        signal, note = _live(source, first, kind, how)
    elif not Path(source).exists():
        raise FileProblem(
            f"{source!r} is neither a file nor a synthetic grid ({', '.join(GRID_NAMES)}) nor a "
            f"zone of a provider ({', '.join(PROVIDERS.names())})",
            path=source,
        )
    else:
        _refuse({"--days": days, "--kind": kind, "--seed": seed}, f"{source} is a file")
        signal = read_signal(source, **read_how(how))
    if begin is not None or end is not None:
        since = signal.start if first is None else first
        until = signal.end if end is None else read_moment("--to", end, relative_to=since)
        signal = signal.window(since, until)
    if image is not None:
        from lowtide.page.looks import save_image, signal_chart

        save_image(signal_chart(signal), image)
    if as_json:
        document = {**signal_document(signal), "note": note, "values": signal.values.tolist()}
        print_json(document)
    elif parsable:
        header = ("datetime", signal.unit, "synthetic")
        print_parsable(
            header,
            [
                [format_iso(start), f"{value:.10g}", "yes" if signal.synthetic else "no"]
                for start, value in zip(signal.edges[:-1], signal.values, strict=True)
            ],
        )
    else:
        say(f"{signal.label}: {format_time(signal.start)} to {format_time(signal.end)}")
        print(draw(signal))
        values = signal.values
        low = float(signal.edges[int(values.argmin())])
        high = float(signal.edges[int(values.argmax())])
        say(
            f"mean {signal.mean():.4g} {signal.unit}, lowest {values.min():.4g} at "
            f"{format_time(low)}, highest {values.max():.4g} at {format_time(high)}"
        )
        for told in filter(None, (signal.caveat, note)):
            say(told)
        if image is not None:
            print(f"drawn in {image}")


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


def _live(
    source: str, begin: float | None, kind: str | None, how: list[str] | None
) -> tuple[Signal, str]:
    """Return what a provider knows, by default from yesterday on, and what to say of it."""
    import time

    from lowtide.cli.inputs import load_live
    from lowtide.errors import UnknownName

    found = {each.signal.kind: each for each in load_live(source, since=begin, how=how)}
    chosen = found.get(kind or next(iter(found)))
    if chosen is None:
        raise UnknownName(f"kind of signal of {source}", str(kind), found)
    signal, now = chosen.signal, time.time()
    if begin is None and signal.end > now - _BACK_S:
        signal = signal.window(max(signal.start, now - _BACK_S), signal.end)
    return signal, chosen.note(now)
