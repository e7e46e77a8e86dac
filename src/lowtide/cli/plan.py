"""`lowtide plan` and `lowtide demo`: when a job runs under a policy, what it comes to, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import JobOptions, Seed, Tz, placed
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    print_page_table,
    print_rows,
    say,
    say_all,
    waiting,
    warn,
)
from lowtide.units import (
    MISSING,
    format_hours,
    format_iso,
    format_mass,
    format_minute,
    format_number,
    format_percent,
)

if TYPE_CHECKING:
    from lowtide.cli.inputs import Window, Zone
    from lowtide.forecasting.backtest import Regret
    from lowtide.policies import Plan, Policy
    from lowtide.policies.explain import Explanation
    from lowtide.profile import PowerProfile
    from lowtide.signal import Signal
    from lowtide.studies.comparison import Comparison


@placed(profile="deadline", epochs="profile", forecast="grid", seed="name", how="seed")
def plan(
    *,
    asked: JobOptions,
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
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the cleanest schedule (JSON) here.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why the cleanest schedule is as it is.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    tz: Tz = None,
    form: Form = TABLE,
) -> None:
    """Plan one job, beside running it at once.

    A file that does not cover now is refused unless --now or --arrival says from when to count.
    With --forecast what the file says until now is enough; where it goes on, what the plan comes to
    is told by that, and what not knowing it cost.
    """
    from lowtide.cli.inputs import Zone, kept_surely, load_profile, load_window
    from lowtide.errors import InvalidInput
    from lowtide.job import Job
    from lowtide.policies.explain import explain as explained
    from lowtide.studies.comparison import compare

    if explain and form.parsable:
        raise InvalidInput("-P has one line per policy and no room for --explain: use --json")
    watts = load_profile(asked)
    zone = Zone.named(tz)
    window = kept_surely(load_window(asked), watts, asked)
    job = Job(
        id=name,
        arrival=window.arrival,
        deadline=window.deadline,
        profile=watts,
        interruptible=interruptible,
        max_starts=max_starts,
        min_run_s=min_run,
    )
    named = policy or ["exact"]
    policies = [*(["run_now"] if "run_now" not in named else []), *named]
    signal = window.signal if window.truth is None else window.truth
    with waiting("planning"):
        deciding = [_with_forecast(each, window) for each in policies]
        result = compare(job, signal, deciding)
        best = result.cleanest
        made_by = next(
            each for each, made in zip(deciding, result.plans, strict=True) if made is best
        )
        decider = None if isinstance(made_by, str) else made_by
        why = explained(best, job, signal, policy=decider) if explain else None
        regrets = _regrets(result, window)
    if output is not None:
        best.schedule.dump(output, about=f"{best}; {result.note}")
    if report is not None:
        about = f"{watts!r}"[1:-1]
        result.write_report(report, title=f"Plan of job {name}", about=about)
    if asked.sure and watts.spread is not None:
        asked_for = window.deadline + watts.spread.late_s(watts.run_s)
        late_s = best.schedule.end_if(watts.spread.duration[1]) - asked_for
        if late_s > 1:
            # What starts take again is not known before there is a plan.
            warn(
                f"with what its further starts take, a run may end {format_hours(late_s)} after "
                f"the deadline ({100 * watts.spread.level:.0f} %): ask for one so much earlier"
            )
    if not form.for_people:
        if form.parsable and window.caution:
            warn(window.caution)
        document = {
            **comparison_document(result),
            "now": format_iso(window.now),
            "note": window.note,
            **({} if why is None else {"explanation": asdict(why)}),
            **forecast_document(window, regrets),
        }
        form.print(result.plans, columns=plan_columns(watts), document=document)
        return
    _show(result, window, regrets, zone)
    if why is not None:
        print()
        show_explanation(why, unit=_unit(result), zone=zone)
    for what, path in (("schedule", output), ("report", report)):
        if path is not None:
            print(f"{what} written to {path}")


def _unit(result: Comparison) -> str:
    """Return what plans are counted in."""
    return result.signal.currency if result.signal.kind == "price" else "g"


def _show(result: Comparison, window: Window, regrets: Sequence[Regret], zone: Zone) -> None:
    """Print the plans over the curve, as a table, and the best of them in full."""
    from lowtide.cli.chart import draw
    from lowtide.cli.inputs import done_between

    job, best = result.job, result.cleanest
    say_all((window.note, result.note))
    print()
    marks = [
        (each.policy, [(run[0].start, run[-1].end) for run in each.schedule.runs])
        for each in result.plans
    ]
    print(draw(result.signal.window(job.arrival, job.deadline), marks=marks, tz=zone.tz))
    print()
    print_page_table(result.table(zone.name, zone.tz))
    print()
    for each in result.plans:
        if each.note:
            say(f"{each.policy}: {each.note}")
    say_all(regret.words() for regret in regrets)
    print(f"{best.policy}:")
    print(best.schedule.told(zone.tz, zone.name))
    if (told := zone.told(best.schedule.start)).endswith("here)"):
        say(f"It starts {told}.")
    if job.profile.spread is not None:
        say(done_between(job.profile, best, zone))
    say_all((_decided(best, result),))


def _decided(best: Plan, result: Comparison) -> str:
    """Return at which moments it was decided, and what others could gain; empty for nothing."""
    how = "without losing work" if best.step_s is None else f"every {format_hours(best.step_s)}"
    if best.resolution_gap and best.lower_bound is not None:
        least = best.lower_bound - best.resolution_gap
        told = (
            f"costs less than {least:.4g} {_unit(result)}"
            if result.signal.kind == "price"
            else f"emits less than {format_mass(least)}"
        )
        return f"Decided {how}: no schedule at all {told}."
    if best.policy != "exact" or best.resolution_gap is not None:
        return ""
    if best.step_s is None:
        return (
            f"Decided {how}. What that could gain, as restarts are cheaper than the first start, "
            "would take too long to find."
        )
    return (
        f"Decided {how}. What other moments would gain is not known for a job that draws more "
        "while suspended than at other times."
    )


def _with_forecast(name: str, window: Window) -> str | Policy:
    """Return a policy that knows what was foreseen, where that is what is planned on.

    As long as nothing has come, what is foreseen now is all that policies that look again have.
    """
    from lowtide.forecast import Perfect, Replay
    from lowtide.policies.policy import make_policy
    from lowtide.policies.rolling import looking_again
    from lowtide.policies.wrappers import Forecasted

    if window.forecast is None or window.forecasts is None:
        return name
    again = looking_again(name, window.forecasts if window.truth else Perfect())
    if again is not None:
        return make_policy(name, **again)[1]
    if window.truth is None or name == "run_now":
        return name
    return Forecasted(name, Replay([window.forecast]))


def _regrets(result: Comparison, window: Window) -> list[Regret]:
    """Return what plans made with a forecast lost by it, where what came is known."""
    if window.truth is None or window.forecast is None:
        return []
    from lowtide.forecasting.backtest import regret_of

    truth, model = window.truth, window.forecast.signal.source
    return [
        regret_of(result.job, each, truth, model=model)
        for each in result.plans
        if each.policy != "run_now"
    ]


def forecast_document(window: Window, regrets: Sequence[Regret]) -> dict[str, Any]:
    """Return what was foreseen and what that cost; nothing where no forecast was asked for."""
    if window.forecast is None:
        return {}
    made = window.forecast
    ahead = slice(int((made.leads_s <= 0.0).sum()), None)

    def told(signal: Signal | None) -> list[float] | None:
        return None if signal is None else signal.values[ahead].tolist()

    return {
        "forecast": {
            "issued": format_iso(made.issued),
            "source": made.signal.source,
            "start": format_iso(float(made.signal.edges[ahead][0])),
            "step_s": made.signal.step_s,
            "values": told(made.signal),
            "lower": told(made.lower),
            "upper": told(made.upper),
        },
        "regret": [each.document() for each in regrets],
    }


def show_explanation(reasons: Explanation, *, unit: str, zone: Zone) -> None:
    """Print what the parts of a plan cost, and what other choices would have."""
    print_rows(
        (
            Column(
                "start", f"start ({zone.name})", lambda instant: format_minute(instant, zone.tz)
            ),
            Column("end", f"end ({zone.name})", lambda instant: format_minute(instant, zone.tz)),
            Column("work_s", "work"),
            Column("amount", unit, format_number),
            Column("overhead", "overhead", format_number),
            Column("mean", f"{unit}/kWh", format_number),
        ),
        reasons.blocks,
    )
    print()
    others = {
        "this plan": reasons.total,
        "starting now, never stopping": reasons.run_now,
        "the best single start": reasons.uninterrupted,
        "one start fewer": reasons.one_start_fewer,
        "one start more": reasons.one_start_more,
        "without knowing the phases": reasons.blind_to_phases,
    }
    print_rows(
        (
            Column("", "what", read=lambda pair: pair[0]),
            Column("", unit, format_number, lambda pair: pair[1]),
            Column("", "against this plan", _against(reasons.total), lambda pair: pair[1]),
        ),
        others.items(),
    )
    blind = reasons.blind_to_phases
    worth = None if blind is None else blind - reasons.total
    share = worth / blind if worth is not None and blind is not None and blind > 0 else None
    print()
    say(
        f"Knowing the phases is worth {format_number(worth)} {unit} ({format_percent(share)}); "
        f"being suspended costs {format_number(max(reasons.suspended, 0.0))} {unit}."
    )


def _against(total: float) -> Callable[[float], str]:
    return lambda amount: f"{100 * (amount / total - 1):+.1f} %" if total > 0 else MISSING


def signal_document(signal: Signal) -> dict[str, Any]:
    """Return what a signal is, without its values."""
    return {
        "label": signal.label,
        "kind": signal.kind,
        "basis": signal.basis,
        "zone": signal.zone,
        "unit": signal.unit,
        "source": signal.source,
        "synthetic": signal.synthetic,
        "filled": signal.filled,
        "estimated": signal.estimated,
        "imputed_share": signal.imputed,
        "start": format_iso(signal.start),
        "end": format_iso(signal.end),
        "step_s": signal.step_s,
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan with its spans and footprints."""
    return {
        "policy": plan.policy,
        "start": format_iso(plan.schedule.start),
        "end": format_iso(plan.schedule.end),
        "saving": plan.saving,
        "lower_bound": plan.lower_bound,
        "lower_bound_g": plan.lower_bound_g,
        "synthetic": plan.synthetic,
        "step_s": plan.step_s,
        "resolution_gap": plan.resolution_gap,
        "resolution_gap_g": plan.resolution_gap_g,
        "note": plan.note,
        "footprint": asdict(plan.footprint),
        "baseline": asdict(plan.baseline),
        "spans": [
            {
                "kind": span.kind,
                "start": format_iso(span.start),
                "end": format_iso(span.end),
                "duration_s": span.duration_s,
                "progress_s": span.progress_s,
            }
            for span in plan.schedule.spans
        ],
    }


def plan_columns(profile: PowerProfile) -> tuple[Column, ...]:
    """Return the columns of plans of a job with a profile."""
    from lowtide.cli.inputs import sure_fields

    def told(key: str) -> Column:
        return Column(key, read=lambda plan: sure_fields(profile, plan)[key])

    return (*_PLAN_COLUMNS, *map(told, ("done_low", "done_high", "energy_low", "energy_high")))


_PLAN_COLUMNS = (
    Column("policy"),
    Column("start", read=lambda plan: format_iso(plan.schedule.start)),
    Column("end", read=lambda plan: format_iso(plan.schedule.end)),
    *(
        Column(key, read=attrgetter(f"footprint.{key}"))
        for key in ("wait_s", "starts", "energy_j", "carbon_g", "cost")
    ),
    Column("saving"),
    Column("synthetic"),
)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the plans of one job, and what they were planned on."""
    from lowtide.cli.inputs import sure_fields

    job = comparison.job
    return {
        "job": {
            "id": job.id,
            "arrival": format_iso(job.arrival),
            "deadline": format_iso(job.deadline),
            "interruptible": job.interruptible,
            "profile": job.profile.to_dict(),
        },
        "signal": signal_document(comparison.signal),
        "plans": [
            plan_document(plan) | sure_fields(job.profile, plan) for plan in comparison.plans
        ],
    }


def demo(
    grid: Annotated[
        str, typer.Option(help="Synthetic grid: sunny, windy, nuclear, coal.")
    ] = "windy",
    seed: Seed = 4,
    out: Annotated[Path, typer.Option(help="Folder for the report and its figures.")] = Path(
        "lowtide-demo"
    ),
    form: Form = TABLE,
) -> None:
    """Plan a measured job five ways, and write a report.

    The grid is a synthetic week. The report is one HTML file, with figures beside it.
    """
    from lowtide.studies.comparison import ABOUT, run_demo

    result = run_demo(grid, seed=seed)
    report = out / "report.html"
    result.write_report(report, title="A day of training, five ways", about=ABOUT)
    images = result.write_images(out)

    def show() -> None:
        say(result.note)
        print()
        print_page_table(result.table())
        print()
        say("Policies decide as published; repeated startups and lost work are paid for.")
        print(f"report:  {report.resolve()}")
        print(f"figures: {out.resolve()}/*.png, *.svg")

    form.print(
        result.plans,
        columns=plan_columns(result.job.profile),
        document=lambda: {
            **comparison_document(result),
            "report": str(report.resolve()),
            "figures": [str(image.resolve()) for image in images],
        },
        show=show,
    )
