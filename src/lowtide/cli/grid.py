"""`lowtide grid` and `lowtide grid backtest`: a grid's curve, and how well it can be foreseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lowtide.cli.options import GridName, How, Seed
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    print_rows,
    progress,
    say,
    say_all,
)
from lowtide.units import format_iso

if TYPE_CHECKING:
    from lowtide.forecast import ForecastModel, Replay
    from lowtide.forecasting.backtest import LeadError, Regret
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
    from lowtide.units import format_time

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


def backtest(
    signal: Annotated[
        list[Path] | None,
        typer.Option("--signal", help="File with a history; may be given again for more zones."),
    ] = None,
    grid: GridName = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="First moment to test at.  [default: half way through]"),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Where the test ends.  [default: where it all ends]")
    ] = None,
    moments: Annotated[
        int, typer.Option(min=1, help="At how many moments to test, spread evenly.")
    ] = 24,
    time: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--time",
            help="How long a job works that is planned at each; may be given again."
            "  [default: 4:00:00, 8:00:00 and 16:00:00]",
        ),
    ] = None,
    within: Annotated[
        str, typer.Option(help="How long after its arrival such a job must be done.")
    ] = "48h",
    interruptible: Annotated[
        str, typer.Option(help="Where it may be stopped: never or anywhere.")
    ] = "never",
    seed: Seed = 0,
    how: How = None,
    form: Form = TABLE,
) -> None:
    """Say how wrong forecasts made of a history have been.

    Moments of the past are taken for now. Errors are told by lead time for each way of foreseeing,
    for all of them weighed by recent error (auto), and for what a provider foresaw where its cache
    has kept that. Regret is what a plan made with a forecast emits more than one that knows what
    comes.
    """
    from lowtide.cli.inputs import parse_time_limit, read_moment
    from lowtide.errors import InvalidInput, NotCovered
    from lowtide.forecasting.backtest import MODELS, able, lead_errors, regrets
    from lowtide.forecasting.backtest import moments as spread
    from lowtide.job import INTERRUPTIBLE
    from lowtide.units import parse_duration

    if interruptible not in INTERRUPTIBLE[:2]:
        raise InvalidInput(
            f"--interruptible is never or anywhere here, as the jobs have no checkpoints, not "
            f"{interruptible!r}"
        )
    lengths_s = [parse_time_limit(each) for each in time or ("4:00:00", "8:00:00", "16:00:00")]
    within_s = parse_duration(within)
    if max(lengths_s) >= within_s:
        raise InvalidInput(
            f"a job that works for {max(lengths_s) / 3600:g} h cannot wait within "
            f"{within_s / 3600:g} h: say a longer --within, or a shorter -t"
        )
    since = None if begin is None else read_moment("--from", begin)
    until = None if end is None else read_moment("--to", end, relative_to=since)
    tested = []
    for name, history, recorded in _histories(signal, grid, how, seed):
        every: dict[str, ForecastModel] = {**MODELS, **recorded}
        first = since
        for each in recorded.values():
            # Before its first forecast there is nothing to compare with.
            first = max(since or 0.0, each.forecasts[0].issued)
        at = spread(history, moments, ahead_s=within_s, since=first, until=until)
        models, out = able(history, at[0], every)
        if "auto" not in models:
            raise NotCovered(out[-1])
        with progress(f"testing on {name}", 2 * len(at)) as bar:
            errors = lead_errors(history, at, models, advance=bar.advance)
            lost = regrets(
                history,
                at,
                models,
                lengths_s=lengths_s,
                within_s=within_s,
                interruptible=interruptible,
                advance=bar.advance,
            )
        tested.append(_Tested(name, history, at, errors, lost, out))
    form.print(
        [(each, row) for each in tested for row in (*each.errors, *each.regrets)],
        columns=_TESTED_COLUMNS,
        document=lambda: {"zones": [each.document() for each in tested]},
        show=lambda: _show_tested(tested),
    )


class _Tested(NamedTuple):
    """What came of testing forecasts on one history."""

    name: str
    history: Signal
    at: Sequence[float]
    errors: Sequence[LeadError]
    regrets: Sequence[Regret]
    out: Sequence[str]

    def document(self) -> dict[str, Any]:
        return {
            "zone": self.name,
            "unit": self.history.unit,
            "start": format_iso(self.history.start),
            "end": format_iso(self.history.end),
            "imputed_share": self.history.imputed,
            "from": format_iso(self.at[0]),
            "to": format_iso(self.at[-1]),
            "moments": len(self.at),
            "left_out": list(self.out),
            "errors": [asdict(each) for each in self.errors],
            "regret": [each.document() for each in self.regrets],
        }


def _cell(row: tuple[_Tested, LeadError | Regret], *, key: str) -> Any:
    return getattr(row[1], key, None)


# A row is of an error or of a regret, and has nothing of the other.
_TESTED_COLUMNS = (
    Column("zone", read=lambda row: row[0].name),
    *(
        Column(key, read=partial(_cell, key=key))
        for key in (
            *("model", "lead_h", "error", "relative", "bias", "covered", "steps"),
            *("plan", "jobs", "at_once", "foreseen", "perfect", "saving", "possible", "kept"),
            "regret",
        )
    ),
)


def _histories(
    paths: list[Path] | None, grid: str | None, how: list[str] | None, seed: int
) -> Iterator[tuple[str, Signal, dict[str, Replay]]]:
    """Yield the histories to test on, and what providers foresaw of them."""
    import time

    from lowtide.cli.inputs import HISTORY_S, find_grid, read_how
    from lowtide.errors import InvalidInput
    from lowtide.formats import read_signal
    from lowtide.grid import deciding_signal
    from lowtide.grids.resolve import kind_of

    if not paths and grid is None:
        raise InvalidInput(
            "say which history to test on: --signal FILE, or --grid with a provider's zone or a "
            "synthetic grid"
        )
    for path in paths or ():
        yield path.name, read_signal(path, **read_how(how)), {}
    if grid is None:
        return
    kind, now = kind_of(grid), time.time()
    if kind == "synthetic":
        made = find_grid(grid, kind, since=now - HISTORY_S, until=now, how=how, seed=seed)
        yield grid, deciding_signal(made.grid), {}
        return
    found = find_grid(grid, kind, how=how, settled=True)
    history = deciding_signal(found.grid)
    yield grid, history, _recorded(found, history)


def _recorded(found: Resolved, history: Signal) -> dict[str, Replay]:
    """Return what a provider foresaw of a history, as far as the cache has kept it."""
    from lowtide.forecast import Replay
    from lowtide.grids.cache import Cache

    name = next(each.name for each in found.retrieved if each.signal is history)
    kept = Cache().forecasts(name, history)
    return {name.provider: Replay(kept)} if kept else {}


def _show_tested(tested: Sequence[_Tested]) -> None:
    from lowtide.units import format_hours, format_number, format_percent, format_time

    for number, each in enumerate(tested):
        if number:
            print()
        span = f"{format_time(each.at[0])} to {format_time(each.at[-1])}"
        say(f"{each.name}, {each.history.label}: {len(each.at)} moments from {span}")
        say_all((each.history.caveat, *each.out))
        leads = sorted({row.lead_h for row in each.errors})
        say(f"Mean absolute error up to each lead, {each.history.unit}:")
        rows: dict[str, dict[Any, str | None]] = {}
        for row in each.errors:
            told = rows.setdefault(row.model, {"model": row.model, **dict.fromkeys(leads)})
            told[row.lead_h] = format_number(row.error)
        band = {
            row.lead_h: f"{row.covered:.0%}"
            for row in each.errors
            if row.model == "auto" and row.covered is not None
        }
        print_rows(
            (
                Column("model", "model"),
                *(Column("", format_hours(3600 * lead), read=itemgetter(lead)) for lead in leads),
            ),
            [*rows.values(), {"model": "in auto's band", **dict.fromkeys(leads), **band}],
        )
        say(f"What {each.regrets[0].jobs} jobs come to, {each.history.unit}:")
        print_rows(
            (
                Column("model", "model"),
                Column("plan", "plan"),
                Column("at_once", "at once", format_number),
                Column("foreseen", "planned", format_number),
                Column("perfect", "perfect", format_number),
                Column("saving", "saving"),
                Column("possible", "possible", format_percent),
                Column("kept", "kept", format_percent),
                Column("regret", "regret", format_number),
            ),
            each.regrets,
        )
