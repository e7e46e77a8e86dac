"""`lowtide plan`: when a job runs under a policy, and what that comes to."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import lowtide
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


def plan(
    deadline: Deadline,
    profile: Profile = None,
    time: Time = None,
    power: Power = None,
    arrival: Arrival = None,
    now: Now = None,
    signal: SignalFile = None,
    grid: GridName = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy to plan with; give it again to compare.  [default: exact]"),
    ] = None,
    interruptible: Annotated[
        str, typer.Option(help="Where the job may be stopped: never, anywhere or checkpoints.")
    ] = "never",
    max_starts: Annotated[int | None, typer.Option(help="How often it may be started.")] = None,
    min_run: Annotated[
        str, typer.Option(help="How much work each start must do, e.g. 30m.")
    ] = "0s",
    name: Annotated[str, typer.Option(help="What to call the job.")] = "1",
    seed: Seed = 0,
    how: How = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the cleanest schedule (JSON) here.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why the cleanest schedule is as it is.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    tz: Tz = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Plan one job, beside what running it at once would come to.

    A file that does not cover now is refused unless --now or --arrival says from when to count.
    """
    from lowtide.cli.chart import draw
    from lowtide.cli.documents import PLAN_COLUMNS, comparison_document, plan_columns
    from lowtide.cli.inputs import Zone, load_profile, load_window
    from lowtide.errors import InvalidInput
    from lowtide.job import Job
    from lowtide.studies.comparison import compare
    from lowtide.units import format_hours, format_iso, format_mass

    if explain and parsable:
        raise InvalidInput("-P has one line per policy and no room for --explain: use --json")
    watts = load_profile(profile, power, time)
    zone = Zone.named(tz)
    window = load_window(signal, grid, arrival, deadline, now=now, seed=seed, how=how)
    job = Job(
        id=name,
        arrival=window.arrival,
        deadline=window.deadline,
        profile=watts,
        interruptible=interruptible,
        max_starts=max_starts,
        min_run_s=min_run,
    )
    asked = policy or ["exact"]
    policies = [*(["run_now"] if "run_now" not in asked else []), *asked]
    with waiting("planning"):
        result = compare(job, window.signal, policies)
        best = result.cleanest
        why = lowtide.explain(best, job, window.signal) if explain else None
    if output is not None:
        best.schedule.dump(output, about=f"{best}; {result.note}")
    if report is not None:
        about = f"{watts!r}"[1:-1]
        result.write_report(report, title=f"Plan of job {name}", about=about)
    if as_json:
        document = {
            **comparison_document(result),
            "now": format_iso(window.now),
            "note": window.note,
        }
        if why is not None:
            document["explanation"] = asdict(why)
        print_json(document)
        return
    if parsable:
        print_parsable(PLAN_COLUMNS, [plan_columns(each) for each in result.plans])
        return
    if window.note:
        say(window.note)
    say(result.note)
    print()
    marks = [
        (each.policy, [(run[0].start, run[-1].end) for run in each.schedule.runs])
        for each in result.plans
    ]
    print(draw(result.signal.window(job.arrival, job.deadline), marks=marks, tz=zone.tz))
    print()
    print_table(result.headings(zone.name), result.rows(zone.tz))
    print()
    for each in result.plans:
        if each.note:
            say(f"{each.policy}: {each.note}")
    print(f"{best.policy}:")
    print(best.schedule.told(zone.tz, zone.name))
    if (told := zone.told(best.schedule.start)).endswith("here)"):
        say(f"It starts {told}.")
    price = result.signal.kind == "price"
    unit = result.signal.currency if price else "g"
    if best.resolution_gap and best.lower_bound is not None:
        least = best.lower_bound - best.resolution_gap
        told = (
            f"costs less than {least:.4g} {unit}"
            if price
            else f"emits less than {format_mass(least)}"
        )
        say(f"Decided every {format_hours(best.step_s or 0.0)}: no schedule at all {told}.")
    elif best.policy == "exact" and best.resolution_gap is None:
        say(
            f"Decided every {format_hours(best.step_s or 0.0)}. What other moments would gain is "
            "not known for a job that draws more while suspended than at other times."
        )
    if why is not None:
        from lowtide.cli.explanation import show_explanation

        print()
        show_explanation(why, unit=unit, zone=zone)
    for what, path in (("schedule", output), ("report", report)):
        if path is not None:
            print(f"{what} written to {path}")
