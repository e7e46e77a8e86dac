"""`lowtide when` and `lowtide tradeoff`: when to start a job, and what waiting saves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import JobOptions, Tz
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    Written,
    print_rows,
    require_figure,
    say,
    say_all,
    waiting,
    warn,
)
from lowtide.cli.plan import signal_document
from lowtide.errors import InvalidInput
from lowtide.units import (
    MASSES,
    format_alike,
    format_duration,
    format_iso,
    format_minute,
    format_number,
    format_percent,
    format_time,
)

if TYPE_CHECKING:
    from lowtide.cli.inputs import Window, Zone
    from lowtide.job import Job
    from lowtide.policies.tradeoff import Tradeoff
    from lowtide.signal import Signal
    from lowtide.studies.comparison import Option

_EXTRA_H = (0, 1, 2, 3, 6, 12, 24, 48, 96, 168)
_COLUMNS = 66
# Finish times that lie closer together than this are not drawn: a time axis tells seconds.
_DRAWN_S = 1.0


def when(
    *,
    asked: JobOptions,
    tz: Tz = None,
    form: Form = TABLE,
) -> None:
    """Say when to start a job and what waiting saves.

    The job is not stopped once it runs. Savings are relative and need no watts; with --power or
    --profile the emissions are told too. A file that does not cover now is refused unless --now or
    --arrival says from when to count; with --forecast what it says until now is enough.
    """
    from lowtide.cli.inputs import Zone, sure_fields
    from lowtide.cli.plan import forecast_document, signal_document
    from lowtide.studies.comparison import starts_by_patience
    from lowtide.units import (
        format_iso,
    )

    job, window, signal, knows_power = _asked_for(asked)
    zone = Zone.named(tz)
    options = starts_by_patience(job, signal)
    documents = [
        option.document(knows_power=knows_power)
        | sure_fields(job.profile, option.plan, knows_power=knows_power)
        for option in options
    ]

    def show() -> None:
        _show(options, job, signal, window.note, zone, knows_power)
        say_all(regret.words() for regret in regrets)

    if form.parsable and window.caution:
        warn(window.caution)
    regrets = []
    if window.truth is not None:
        from lowtide.forecasting.backtest import regret_of

        best = replace(options[-1].plan, policy="the best start")
        regrets = [regret_of(job, best, window.truth, model=signal.source)]
    form.print(
        [each | {"synthetic": int(each["synthetic"])} for each in documents],
        document={
            "signal": signal_document(signal.window(job.arrival, job.deadline)),
            "now": format_iso(window.now),
            "arrival": format_iso(job.arrival),
            "deadline": format_iso(job.deadline),
            "note": window.note,
            "knows_power": knows_power,
            "options": documents,
            "best": documents[-1],
            **forecast_document(window, regrets),
        },
        show=show,
    )


def tradeoff(
    *,
    asked: JobOptions,
    interruptible: Annotated[
        str, typer.Option(help="Where it may be stopped: never, anywhere, checkpoints.")
    ] = "never",
    image: Annotated[
        Path | None, typer.Option(help="Also draw it into this .png or .svg file.")
    ] = None,
    tz: Tz = None,
    form: Form = TABLE,
) -> None:
    """Say the least that a job can emit for every finish time.

    The knee is where waiting longer begins to save little. Savings are relative and need no watts;
    with --power or --profile the emissions are told too.
    """
    from lowtide.cli.inputs import Zone
    from lowtide.policies.tradeoff import tradeoff as every_finish

    job, window, signal, knows_power = _asked_for(asked)
    job, zone = replace(job, interruptible=interruptible), Zone.named(tz)
    require_figure(image)
    with waiting("planning for every finish"):
        every = every_finish(job, signal)
    unit = signal.currency if signal.kind == "price" else "g"
    if not knows_power:
        # Nobody knows its watts.
        every, unit = _in_percent(every), "% of run_now"
    written = Written()
    if image is not None:
        from lowtide.page.looks import save_image, tradeoff_chart

        what = "cost" if signal.kind == "price" else "CO2e"
        chart = tradeoff_chart(every, unit=unit, what=what, of=signal.label)
        written.add(image, partial(save_image, chart))
    earliest, latest = float(every.finish[0]), float(every.finish[-1])
    knee = float(every.finish[every.knee])
    ladder = {earliest + 3600 * hours for hours in _EXTRA_H if earliest + 3600 * hours < latest}

    def saving(finish: float) -> float | None:
        return 1 - every.by(finish) / every.baseline if every.baseline > 0 else None

    columns = (
        Column("finish", read=format_iso),
        Column("", f"done by ({zone.name})", lambda at: format_minute(at, zone.tz), float),
        Column("", "later by", format_duration, lambda finish: finish - earliest),
        Column("amount", f"least {unit}", lambda least: f"{least:.4g}", every.by),
        Column("saving", "saving", read=saving),
        Column("knee", "", lambda is_knee: "knee" * is_knee, lambda finish: finish == knee),
        Column("synthetic", read=lambda _: every.synthetic),
    )
    rows = sorted(ladder | {knee, latest})

    def show() -> None:
        say_all((window.note,))
        _draw(every, signal, unit, knee, zone)
        print()
        print_rows(columns, rows)
        print()
        say(
            f"Done by {zone.told(knee)}: saves {format_percent(saving(knee))}; "
            f"by {zone.told(latest)}: {format_percent(saving(latest))}."
        )

    form.print(
        rows,
        columns=columns,
        document=lambda: {
            "signal": signal_document(signal.window(job.arrival, job.deadline)),
            "note": window.note,
            "unit": unit,
            **_document(every),
        },
        show=show,
    )
    written.settle()


def _asked_for(asked: JobOptions) -> tuple[Job, Window, Signal, bool]:
    """Return the job, where it runs, the signal that decides, and whether its watts are known."""
    from lowtide.cli.inputs import kept_surely, load_profile, load_window, parse_time_limit
    from lowtide.grid import deciding_signal
    from lowtide.job import Job
    from lowtide.profile import PowerProfile

    knows_power = asked.profile is not None or asked.power is not None
    if knows_power:
        watts = load_profile(asked)
    elif asked.time is None:
        raise InvalidInput("say how long the job works: -t 6:00:00, or give its --profile")
    else:
        watts = PowerProfile.constant(1000.0, parse_time_limit(asked.time))
    window = kept_surely(load_window(asked), watts, asked)
    job = Job(id="1", arrival=window.arrival, deadline=window.deadline, profile=watts)
    return job, window, deciding_signal(window.signal), knows_power


def _show(
    options: list[Option], job: Job, signal: Signal, note: str, zone: Zone, knows_power: bool
) -> None:
    from lowtide.cli.chart import draw
    from lowtide.cli.inputs import done_between

    price, best = signal.kind == "price", options[-1]
    grams = format_alike([option.plan.footprint.carbon_g for option in options], MASSES)
    amounts = {
        id(option): format_number(option.plan.footprint.cost) if price else mass
        for option, mass in zip(options, grams, strict=True)
    }
    counted = Column(
        "", f"cost, {signal.currency}" if price else "CO2e", read=lambda each: amounts[id(each)]
    )

    def minute(instant: float) -> str:
        return format_minute(instant, zone.tz)

    curve = signal.window(job.arrival, job.deadline)
    begin, end = format_time(curve.start, zone.tz), format_time(curve.end, zone.tz)
    say_all((note, f"{signal.label}: {begin} to {end}", curve.caveat))
    schedule = best.plan.schedule
    print(draw(curve, marks=[("best", [(schedule.start, schedule.end)])], tz=zone.tz))
    print()
    print_rows(
        (
            Column("patience_s", "may wait"),
            Column("", f"start ({zone.name})", minute, lambda each: each.plan.schedule.start),
            Column("", f"done ({zone.name})", minute, lambda each: each.plan.schedule.end),
            Column("mean", f"mean {signal.unit}", format_number),
            *([counted] if knows_power else []),
            Column("", "saving", format_percent, lambda each: each.plan.saving),
        ),
        options,
    )
    print()
    wait_s = schedule.start - job.arrival
    if wait_s < 1:
        say(f"Start at {zone.told(job.arrival)}, without waiting: no later start is cleaner.")
    else:
        say(
            f"Start {zone.told(schedule.start)}, {format_duration(wait_s)} after "
            f"{format_time(job.arrival, zone.tz)}: {format_number(best.mean)} {signal.unit} "
            f"instead of {format_number(options[0].mean)}, saves "
            f"{format_percent(best.plan.saving)}."
        )
    if job.profile.spread is not None:
        say(done_between(job.profile, best.plan, zone))


def _draw(every: Tradeoff, signal: Signal, unit: str, knee: float, zone: Zone) -> None:
    import numpy as np

    from lowtide.cli.chart import draw_curve

    earliest, latest = float(every.finish[0]), float(every.finish[-1])
    edges = np.linspace(earliest, latest, _COLUMNS + 1)[1:]
    drawn = np.array([every.by(float(edge)) for edge in edges])
    drawn_in = unit
    if every.baseline > 0:
        say(f"Saving by finish time, {signal.label}, against running at once")
        drawn, drawn_in = 100 * (1 - drawn / every.baseline), "%"
    else:
        say(f"Least by finish time, {signal.label}; running at once comes to nothing to save from")
    if latest - earliest < _DRAWN_S:
        say("The deadline leaves the job no time to wait: there is one finish, and nothing to draw")
    else:
        marks = [("knee", [(knee, knee)])]
        print(draw_curve(drawn, earliest, latest, drawn_in, marks=marks, tz=zone.tz))


def _in_percent(every: Tradeoff) -> Tradeoff:
    if every.baseline <= 0:
        raise InvalidInput(
            "running at once comes to nothing, so there is nothing to tell percentages of: say "
            "--power W, or give the --profile"
        )
    return replace(every, amount=100 * every.amount / every.baseline, baseline=100.0)


def _document(every: Tradeoff) -> dict[str, Any]:
    return {
        "baseline": every.baseline,
        "step_s": every.step_s,
        "synthetic": every.synthetic,
        "knee": format_iso(float(every.finish[every.knee])),
        "curve": [
            {"finish": format_iso(finish), "amount": amount, "saving": saving}
            for finish, amount, saving in zip(
                every.finish.tolist(), every.amount.tolist(), every.saving.tolist(), strict=True
            )
        ],
    }
