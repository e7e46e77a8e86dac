"""`lowtide when`: when to start a job, what waiting saves, and the least it comes to by then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import (
    Arrival,
    AsJson,
    Deadline,
    GridName,
    How,
    Now,
    Parsable,
    Power,
    Profile,
    Seed,
    SignalFile,
    Time,
    Tz,
)
from lowtide.cli.output import print_json, print_parsable, print_table, say, waiting
from lowtide.cli.plan import signal_document
from lowtide.errors import InvalidInput
from lowtide.units import format_duration, format_iso, format_minute, format_percent

if TYPE_CHECKING:
    from lowtide.cli.inputs import Zone
    from lowtide.job import Job
    from lowtide.policies.tradeoff import Tradeoff
    from lowtide.signal import Signal

_EXTRA_H = (0, 1, 2, 3, 6, 12, 24, 48, 96, 168)
_COLUMNS = 66
# Finish times that lie closer together than this are not drawn: a time axis tells seconds.
_DRAWN_S = 1.0


def when(
    deadline: Deadline,
    time: Time = None,
    power: Power = None,
    profile: Profile = None,
    arrival: Arrival = None,
    now: Now = None,
    signal: SignalFile = None,
    grid: GridName = None,
    seed: Seed = 0,
    how: How = None,
    tradeoff: Annotated[
        bool,
        typer.Option("--tradeoff", help="Say the least it can emit for every finish time."),
    ] = False,
    interruptible: Annotated[
        str | None,
        typer.Option(
            help="With --tradeoff: where it may be stopped: never, anywhere, checkpoints."
            "  [default: never]"
        ),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="With --tradeoff: also draw it into this .png or .svg.")
    ] = None,
    tz: Tz = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Say when to start a job and what waiting saves.

    The job is not stopped once it runs. Savings are relative and need no watts; with --power or
    --profile the emissions are told too. A file that does not cover now is refused unless --now or
    --arrival says from when to count.
    """
    from lowtide.cli.chart import draw
    from lowtide.cli.inputs import Zone, load_profile, load_window, parse_time_limit
    from lowtide.cli.plan import signal_document
    from lowtide.errors import InvalidInput
    from lowtide.job import Job
    from lowtide.profile import PowerProfile
    from lowtide.signal import deciding_signal
    from lowtide.studies.comparison import starts_by_patience
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

    knows_power = profile is not None or power is not None
    if knows_power:
        watts = load_profile(profile, power, time)
    elif time is None:
        raise InvalidInput("say how long the job works: -t 6:00:00, or give its --profile")
    else:
        watts = PowerProfile.constant(1000.0, parse_time_limit(time))
    zone = Zone.named(tz)
    window = load_window(signal, grid, arrival, deadline, now=now, seed=seed, how=how)
    job = Job(id="1", arrival=window.arrival, deadline=window.deadline, profile=watts)
    shown = deciding_signal(window.signal)
    if tradeoff:
        show_tradeoff(
            replace(job, interruptible=interruptible or "never"),
            shown,
            knows_power=knows_power,
            note=window.note,
            zone=zone,
            image=image,
            as_json=as_json,
            parsable=parsable,
        )
        return
    if interruptible is not None or image is not None:
        raise InvalidInput("--interruptible and --image go with --tradeoff")
    options = starts_by_patience(job, shown)
    best = options[-1]
    if as_json:
        print_json(
            {
                "signal": signal_document(shown.window(job.arrival, job.deadline)),
                "now": format_iso(window.now),
                "arrival": format_iso(job.arrival),
                "deadline": format_iso(job.deadline),
                "note": window.note,
                "knows_power": knows_power,
                "options": [option.document(knows_power=knows_power) for option in options],
                "best": best.document(knows_power=knows_power),
            }
        )
        return
    if parsable:
        documents = [option.document(knows_power=knows_power) for option in options]
        print_parsable(
            list(documents[0]),
            [
                [
                    "" if value is None else value if isinstance(value, str) else f"{value:.10g}"
                    for value in document.values()
                ]
                for document in documents
            ],
        )
        return
    header = [
        *("may wait", f"start ({zone.name})", f"done ({zone.name})"),
        *(f"mean {shown.unit}", "saving"),
    ]
    price = shown.kind == "price"
    paid = [option.plan.footprint for option in options]
    grams = format_alike([each.carbon_g for each in paid], MASSES)
    if knows_power:
        header.insert(4, f"cost, {shown.currency}" if price else "CO2e")
    rows = []
    for option, mass in zip(options, grams, strict=True):
        row = [
            format_duration(option.patience_s),
            format_minute(option.plan.schedule.start, zone.tz),
            format_minute(option.plan.schedule.end, zone.tz),
            format_number(option.mean),
            format_percent(option.plan.saving),
        ]
        if knows_power:
            row.insert(4, format_number(option.plan.footprint.cost) if price else mass)
        rows.append(row)
    curve = shown.window(job.arrival, job.deadline)
    if window.note:
        say(window.note)
    say(f"{shown.label}: {format_time(curve.start, zone.tz)} to {format_time(curve.end, zone.tz)}")
    if curve.caveat:
        say(curve.caveat)
    run = (best.plan.schedule.start, best.plan.schedule.end)
    print(draw(curve, marks=[("best", [run])], tz=zone.tz))
    print()
    print_table(header, rows)
    print()
    wait_s = best.plan.schedule.start - job.arrival
    if wait_s < 1:
        say(f"Start at {zone.told(job.arrival)}, without waiting: no later start is cleaner.")
    else:
        say(
            f"Start {zone.told(best.plan.schedule.start)}, {format_duration(wait_s)} after "
            f"{format_time(job.arrival, zone.tz)}: {format_number(best.mean)} {shown.unit} instead "
            f"of {format_number(options[0].mean)}, saves {format_percent(best.plan.saving)}."
        )


def show_tradeoff(
    job: Job,
    signal: Signal,
    *,
    knows_power: bool,
    note: str,
    zone: Zone,
    image: Path | None,
    as_json: bool,
    parsable: bool,
) -> None:
    """Print the trade-off of a job, with the knee marked.

    Args:
        knows_power: Whether the job's watts are known; else everything is told in percent of
            running at once.
        image: Where to draw it, if anywhere.
        as_json: Whether to print JSON.
    """
    import numpy as np

    from lowtide.cli.chart import draw_curve
    from lowtide.policies.tradeoff import tradeoff

    with waiting("planning for every finish"):
        every = tradeoff(job, signal)
    unit = signal.currency if signal.kind == "price" else "g"
    if not knows_power:
        every, unit = _in_percent(every), "% of run_now"
    if image is not None:
        from lowtide.page.looks import save_image, tradeoff_chart

        what = "cost" if signal.kind == "price" else "CO2e"
        save_image(tradeoff_chart(every, unit=unit, what=what, of=signal.label), image)
    if as_json:
        print_json(
            {
                "signal": signal_document(signal.window(job.arrival, job.deadline)),
                "note": note,
                "unit": unit,
                **_document(every),
            }
        )
        return
    earliest = float(every.finish[0])
    knee = float(every.finish[every.knee])
    latest = float(every.finish[-1])
    ladder = {earliest + 3600 * hours for hours in _EXTRA_H if earliest + 3600 * hours < latest}
    rows = []
    for finish in sorted(ladder | {knee, latest}):
        least = every.by(finish)
        saving = 1 - least / every.baseline if every.baseline > 0 else None
        rows.append((finish, least, saving))
    if parsable:
        print_parsable(
            ("finish", "amount", "saving", "knee", "synthetic"),
            [
                [
                    format_iso(finish),
                    f"{least:.10g}",
                    "" if saving is None else f"{saving:.10g}",
                    "yes" if finish == knee else "no",
                    "yes" if every.synthetic else "no",
                ]
                for finish, least, saving in rows
            ],
        )
        return
    if note:
        say(note)
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
    print()
    print_table(
        (f"done by ({zone.name})", "later by", f"least {unit}", "saving", ""),
        [
            [
                format_minute(finish, zone.tz),
                format_duration(finish - earliest),
                f"{least:.4g}",
                format_percent(saving),
                "knee" if finish == knee else "",
            ]
            for finish, least, saving in rows
        ],
    )
    print()
    at_knee = 1 - every.by(knee) / every.baseline if every.baseline > 0 else None
    at_end = 1 - every.by(latest) / every.baseline if every.baseline > 0 else None
    say(
        f"Done by {zone.told(knee)}: saves {format_percent(at_knee)}; "
        f"by {zone.told(latest)}: {format_percent(at_end)}."
    )


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
