"""`lowtide when`: when to start a job, and what waiting saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

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
from lowtide.cli.output import print_json, print_parsable, print_table, say


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
    from lowtide.cli.documents import signal_document
    from lowtide.cli.inputs import Zone, load_profile, load_window, parse_time_limit
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
        from lowtide.cli.tradeoff import show_tradeoff

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
