"""`lowtide grid`: look at a grid's curve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.options import AsJson, How, Parsable, Seed
from lowtide.cli.output import print_json, print_parsable


def grid(
    source: Annotated[
        str,
        typer.Argument(help="A file, or a synthetic grid: sunny, windy, nuclear, coal."),
    ],
    begin: Annotated[str | None, typer.Option("--from", help="First moment to show.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Last moment, or +48h.")] = None,
    days: Annotated[int, typer.Option(help="Days of a synthetic grid.")] = 7,
    kind: Annotated[
        str, typer.Option(help="Of a synthetic grid: average, marginal or price.")
    ] = "average",
    seed: Seed = 0,
    how: How = None,
    image: Annotated[
        Path | None, typer.Option(help="Also draw it into this .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Draw a grid's carbon intensity or price over time."""
    from lowtide.cli.chart import draw
    from lowtide.cli.documents import signal_document
    from lowtide.cli.inputs import read_how
    from lowtide.formats import read_signal
    from lowtide.grids import GRID_NAMES, synthetic_grid
    from lowtide.units import format_iso, format_time

    if source in GRID_NAMES:
        from lowtide.errors import UnknownName

        start = begin or "2024-07-01T00:00Z"
        signals = synthetic_grid(source, start=start, days=days, seed=seed)
        if kind not in ("average", "marginal", "price"):
            raise UnknownName("kind of signal", kind, ("average", "marginal", "price"))
        signal = getattr(signals, kind)
    else:
        if not Path(source).exists():
            from lowtide.errors import FileProblem

            raise FileProblem(
                f"{source!r} is neither a file nor a synthetic grid ({', '.join(GRID_NAMES)})",
                path=source,
            )
        signal = read_signal(source, **read_how(how))
    whole = signal
    if begin is not None or end is not None:
        signal = signal.window(begin or signal.start, end or signal.end)
    if image is not None:
        from lowtide.experiments.figures import save_image, signal_chart

        save_image(signal_chart(signal), image)
    if as_json:
        print_json({**signal_document(signal), "values": signal.values.tolist()})
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
        print(f"{signal.label}: {format_time(signal.start)} to {format_time(signal.end)}")
        print(draw(signal))
        values = signal.values
        low = float(signal.edges[int(values.argmin())])
        high = float(signal.edges[int(values.argmax())])
        print(
            f"mean {signal.mean():.4g} {signal.unit}, lowest {values.min():.4g} at "
            f"{format_time(low)}, highest {values.max():.4g} at {format_time(high)}"
        )
        if whole.filled:
            print(f"{whole.filled} of {len(whole)} steps were missing and are filled")
        if image is not None:
            print(f"drawn in {image}")
