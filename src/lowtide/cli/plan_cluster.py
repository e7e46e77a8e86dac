"""`lowtide plan-cluster`: a whole queue on limited machines, planned together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import Data, RepeatSignal, Settings, read_settings
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    Written,
    print_rows,
    require_figure,
    require_table,
    say,
    say_all,
    staged,
)

if TYPE_CHECKING:
    from lowtide.cli.inputs import Zone
    from lowtide.market.cluster_plan import ClusterPlan
    from lowtide.market.explaining import Quote
    from lowtide.signal import Signal

_STAGES = ("laying out", "EASY", "prices", "placing", "searching", "late jobs", "nodes", "proving")
_SHOWN_LATE = 10
_SHOWN_MOVED = 5


def plan_cluster(
    file: Annotated[
        Path,
        typer.Argument(help="An experiment with [workload], [grid] and [cluster], a TOML file."),
    ],
    settings: Settings = None,
    data: Data = None,
    gap: Annotated[
        float, typer.Option(help="How near to the proven bound is near enough, as a share.")
    ] = 0.005,
    wait: Annotated[
        str | None,
        typer.Option(
            help="What an hour of delay counts: a share of what an hour of the job emits, or "
            "'3 g/node-h'; 0 for nothing.  [default: a fortieth of what waiting up to a day would "
            "save]"
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            help="How long a slot is, on which jobs start and stop: 1h, 15m.  [default: one that "
            "loses nothing, or the finest that is quick]"
        ),
    ] = None,
    elastic: Annotated[
        str | None,
        typer.Option(
            help="How many times as fast jobs are at how many times their nodes: 0.5:0.52,2:1.9. "
            "Each runs at one of these widths."
        ),
    ] = None,
    by_hour: Annotated[
        bool,
        typer.Option(
            "--by-hour", help="With --elastic: jobs may change their width from hour to hour."
        ),
    ] = False,
    fair: Annotated[
        str | None, typer.Option(help="users: no user's jobs emit more than under EASY.")
    ] = None,
    effort: Annotated[
        float, typer.Option(help="How long to search, 1 for as long as usual; counted in steps.")
    ] = 1.0,
    seconds: Annotated[
        float | None,
        typer.Option(help="CPU seconds after which the best plan so far is taken."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(help="Say why this job runs when it does, and what more time is worth."),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="Draw carbon, prices, nodes held and who runs when: .png or .svg."),
    ] = None,
    jobs_table: Annotated[
        Path | None,
        typer.Option("--jobs-table", help="Write every job as a row: .parquet or .csv."),
    ] = None,
    repeat_signal: RepeatSignal = False,
    tz: Annotated[
        str | None,
        typer.Option(
            "--tz", help="Zone of the times that are shown.  [default: UTC]", metavar="ZONE"
        ),
    ] = None,
    form: Form = TABLE,
) -> None:
    """Plan a whole queue together, with a proof of its worth.

    Deadlines come first, then carbon. Prices say what a node-hour is worth at each moment: what
    one more would save. The plan is carried out by the simulator, and told against EASY.
    """
    from lowtide.cli.inputs import Zone
    from lowtide.cli.plan_sites import plan_at_sites, plan_by_hour
    from lowtide.errors import InvalidInput
    from lowtide.files import write_table
    from lowtide.market import plan_cluster as plan_queue
    from lowtide.simulator.simulation import reaching
    from lowtide.studies.experiment import Experiment
    from lowtide.studies.run import check_runs, deciding, inputs_of, planned_with

    said = read_settings(settings, repeat_signal=repeat_signal)
    require_table(jobs_table)
    require_figure(image)
    zone = Zone.named(tz)
    experiment = Experiment.load(file, data=data, settings=said)
    run = experiment.only_run(file)
    check_runs([run], experiment)
    rules = run.parameters["run"]
    if by_hour and (elastic is None or run.parameters["sites"]):
        raise InvalidInput(
            "--by-hour says that jobs change their width, which --elastic says how: give that, and "
            "one site"
        )
    if run.parameters["sites"] or elastic is not None:
        options = {"gap": gap, "wait": _wait(wait), "step": step, "effort": effort}
        options |= {"seconds": seconds, "seed": int(rules.get("seed", 0))}
        for name, value in (
            ("--fair", fair),
            ("--explain", explain),
            ("--image", image if by_hour else None),
            ("run.decide or run.weights", deciding(rules)),
            ("cluster.power_cap", planned_with(run.parameters) or None),
        ):
            if value is not None:
                raise InvalidInput(f"{name} is for one site and one width: leave it out")
        if by_hour:
            plan_by_hour(run, options, str(elastic), jobs_table, form)
        else:
            plan_at_sites(run, options, elastic, jobs_table, image, form)
        return
    jobs, signal, cluster = inputs_of(run.parameters)
    if cluster is None:
        raise InvalidInput(
            f"{file} says nothing of machines: a queue is planned together where there are only "
            "so many; add [cluster] with nodes and cpus_per_node"
        )
    known = reaching(
        signal, float(jobs.deadline.max()), repeat=bool(rules.get("repeat_signal", False))
    )
    by = deciding(rules)
    with staged("planning", _STAGES) as doing:
        plan = plan_queue(
            jobs,
            cluster,
            known,
            gap=gap,
            wait=_wait(wait),
            step=step,
            fair=fair,
            effort=effort,
            seconds=seconds,
            seed=int(rules.get("seed", 0)),
            oversized=str(rules.get("oversized", "refuse")),
            doing=doing,
            **planned_with(run.parameters),
            **({"decide": by} if isinstance(by, str) else {"weights": by}),
        )
    quote = None if explain is None else plan.quote(explain)
    form.print(
        _runs(plan),
        columns=_COLUMNS,
        document=lambda: _document(plan, run.shown, quote),
        show=lambda: _show(plan, quote, zone),
    )
    written = Written()
    written.add(image, lambda path: _draw(plan, path))
    written.add(jobs_table, lambda path: write_table(path, plan.simulation.table()))
    if form.for_people:
        say_all(f"written: {path}" for path in written.paths)
    written.settle()


def _draw(plan: ClusterPlan, path: Path) -> None:
    from lowtide.page.looks import save_image
    from lowtide.studies.together import plan_chart

    save_image(plan_chart(plan), path)


def _wait(said: str | None) -> float | str | None:
    try:
        return None if said is None else float(said)
    except ValueError:
        return said


_COLUMNS = (
    Column("id"),
    Column("user"),
    Column("run"),
    Column("start"),
    Column("end"),
    Column("work_s"),
    Column("nodes"),
    Column("carbon_g"),
    Column("cost"),
    Column("deadline"),
    Column("late_s"),
)


def _runs(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return every run of every job, for programs."""
    from lowtide.units import format_iso

    jobs, tally = plan.jobs, plan.tally
    begin, end = plan.simulation.runs
    late = {each.row: each.by_s for each in plan.late}
    rows, number, before = [], 0, -1
    for place, row in enumerate(plan.stretches.job.tolist()):
        number = number + 1 if row == before else 1
        before = row
        user = jobs.user[row]
        rows.append(
            {
                "id": str(jobs.id[row]),
                "user": None if user is None else str(user),
                "run": number,
                "start": format_iso(float(begin[place])),
                "end": format_iso(float(end[place])),
                "work_s": float(plan.stretches.work_s[place]),
                "nodes": int(jobs.nodes[row]),
                "carbon_g": None if tally.carbon_g is None else float(tally.carbon_g[row]),
                "cost": None if tally.cost is None else float(tally.cost[row]),
                "deadline": format_iso(float(jobs.deadline[row])),
                "late_s": late.get(row, 0.0),
            }
        )
    return rows


def _document(
    plan: ClusterPlan, parameters: Mapping[str, Any], quote: Quote | None
) -> dict[str, Any]:
    from dataclasses import asdict

    from lowtide.cli.plan import signal_document
    from lowtide.grid import deciding_signal
    from lowtide.units import format_iso

    signal = deciding_signal(plan.simulation.signal)
    edges = plan.edges
    hours = plan.step_s / 3600
    easy_held = None if plan.easy is None else plan.held(plan.easy)
    explained = None
    if quote is not None:
        explained = asdict(quote)
        explained |= {"start": format_iso(quote.start), "end": format_iso(quote.end)}
    return {
        "parameters": dict(parameters),
        "synthetic": signal.synthetic,
        "signal": signal_document(plan.simulation.used_signal),
        **plan.summary(),
        "late_jobs": [
            {"id": str(plan.jobs.id[each.row]), "late_s": each.by_s, "full": each.full}
            for each in plan.late
        ],
        "users": [
            {"user": name, "amount": ours, "easy_amount": theirs}
            for name, (ours, theirs) in plan.users().items()
        ],
        "moved": [
            {
                **asdict(each),
                "alone": format_iso(each.alone),
                "start": format_iso(each.start),
                "to": list(each.to),
            }
            for each in plan.moved()
        ],
        "paid": {
            name: {"amount": ours, "easy_amount": theirs}
            for name, (ours, theirs) in plan.paid().items()
        },
        "worth": {name: plan.worth(name) for name in plan.resources},
        "prices": [
            {
                "time": format_iso(float(edges[slot])),
                **{
                    f"{name}_per_h": float(plan.prices.rent[place, slot] / hours)
                    for place, name in enumerate(plan.resources)
                },
                "held": float(held),
                "easy_held": None if easy_held is None else float(easy_held[slot]),
            }
            for slot, held in enumerate(plan.held())
        ],
        "runs": _runs(plan),
        "explained": explained,
    }


def _show(plan: ClusterPlan, quote: Quote | None, zone: Zone) -> None:
    """Tell people: the plan, what time on the machines is worth, who is late, and why."""
    from dataclasses import replace

    from lowtide.cli.chart import draw
    from lowtide.grid import carbon_and_price
    from lowtide.market.cluster_plan import amount_in_words, one_of
    from lowtide.units import (
        format_duration,
        format_mass,
        format_number,
        format_percent,
        format_time,
    )

    told = amount_in_words(plan)
    signal = plan.ruling
    cost = carbon_and_price(plan.simulation.signal)[1]

    def money(amount: float) -> str:
        return f"{format_number(amount)} {'' if cost is None else cost.currency}"

    say(f"{plan}.")
    say_all(
        (
            f"On {signal.label}" + ("; the grid is synthetic." if signal.synthetic else "."),
            plan.simulation.used_signal.caveat,
        )
    )
    exactly = "at any moment" if plan.lossless else f"on steps of {format_duration(plan.step_s)}"
    cut = plan.planned_on.cut
    if cut > 1:
        exactly += f", and stops them only after every {format_duration(cut * plan.step_s)} of work"
    say(
        f"The bounds hold for every plan that starts and stops jobs {exactly}"
        + (", in which nobody is later than here. " if plan.late else ". ")
        + {
            "gap": "The plan is as near to them as was asked for.",
            "effort": "A longer search (--effort) may come nearer.",
            "seconds": "Time was up (--seconds): a longer search may come nearer.",
        }[plan.stopped]
        + "".join(f" There was no time for {each}." for each in plan.left_out)
    )
    summary = plan.summary()
    any_moment = summary["any_moment_bound_g"]
    if any_moment is not None and not plan.lossless:
        share = format_percent(max(1 - any_moment / plan.amount, 0.0) if plan.amount else 0.0)
        say(
            f"At whatever moments jobs start and stop, no plan comes to less than "
            f"{told(any_moment)}: {share} less than this one, waiting apart."
        )
    print()
    beside = {
        "emissions or cost": (told, plan.amount, summary["easy_amount"]),
        "late jobs": (str, summary["late"], summary["easy_late"]),
        "mean wait": (format_duration, summary["mean_wait_s"], summary["easy_mean_wait_s"]),
        "starts per job": ("{:.2f}".format, summary["mean_starts"], 1.0),
        "saving": (format_percent, plan.saving, ""),
        "saving of the best possible plan, at most": (format_percent, plan.most_saving, ""),
    }
    rows = [
        {"what": what, "words": words, "plan": ours, "EASY": theirs}
        for what, (words, ours, theirs) in beside.items()
    ]
    paid = plan.paid()
    for name, (ours, theirs) in (paid if len(paid) > 1 else {}).items():
        words = money if name == "price" else format_mass
        rows.append({"what": f"jobs by {name}", "words": words, "plan": ours, "EASY": theirs})
    for row in rows:
        row |= {
            key: row["words"](row[key]) for key in ("plan", "EASY") if row[key] not in (None, "")
        }
    print_rows([Column(key, key) for key in ("what", "plan", "EASY")], rows)
    unit = _unit(plan, signal)
    for name in plan.scarce:
        price = plan.prices.rent[plan.resources.index(name)] * 3600 / plan.step_s
        one = one_of(name)
        if price.any():
            print()
            say(f"What an hour of one {one} is worth{f', {unit}' if unit else ''}")
            by_hour = replace(plan.price(name), values=price)
            print(draw(by_hour, unit=unit, tz=zone.tz))
            print()
            print_rows(*_days(plan, name, price, zone, unit))
        say(f"One more {one} for the whole time would save about {told(plan.worth(name))}.")
    _show_moved(plan, zone)
    if plan.late:
        say("Prices count, beside what jobs emit or cost, what it takes that nobody is later yet.")
    for each in plan.late[:_SHOWN_LATE]:
        say(
            f"Job {plan.jobs.id[each.row]} is done {format_duration(each.by_s)} late: "
            f"{each.full:.0%} of the time up to its deadline the machines are full."
        )
    if len(plan.late) > _SHOWN_LATE:
        say(f"{len(plan.late) - _SHOWN_LATE} more are late: --json names all.")
    if quote is not None:
        print()
        say(
            f"Job {quote.id} runs from {format_time(quote.start, zone.tz)} to "
            f"{format_time(quote.end, zone.tz)}. {quote.why}"
        )
        if quote.hour_worth is not None:
            say(f"One more hour of deadline would be worth {told(quote.hour_worth)} to it.")


def _unit(plan: ClusterPlan, signal: Signal) -> str:
    """Return in what it is told what time is worth; nothing for grams and money together."""
    if signal.kind == "price":
        return signal.currency
    return "g" if plan.weights is None else ""


def _show_moved(plan: ClusterPlan, zone: Zone) -> None:
    """Tell who made room for whom."""
    from lowtide.market.cluster_plan import amount_in_words
    from lowtide.units import format_time

    told = amount_in_words(plan)
    rows = [
        {
            "id": each.id,
            "alone": format_time(each.alone, zone.tz),
            "start": format_time(each.start, zone.tz),
            "more": told(each.more),
            "to": ", ".join(each.to) or None,
        }
        for each in plan.moved(_SHOWN_MOVED)
    ]
    if rows:
        print()
        say("Who made most room for others")
        heads = ("job", "alone it would start", "starts", "comes to more by", "there run")
        print_rows([Column(*pair) for pair in zip(rows[0], heads, strict=True)], rows)


def _days(
    plan: ClusterPlan, name: str, price: Any, zone: Zone, unit: str
) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    """Return what an hour of one of a resource is worth, day by day."""
    from datetime import UTC, datetime

    from lowtide.market.cluster_plan import one_of
    from lowtide.units import format_number

    one = one_of(name)
    held, there = plan.held(resource=name), plan.capacity(name)
    days: dict[str, list[int]] = {}
    moments = []
    for slot, instant in enumerate(plan.edges[:-1].tolist()):
        when = datetime.fromtimestamp(instant, UTC).astimezone(zone.tz)
        moments.append(when)
        days.setdefault(f"{when:%a %d %b}", []).append(slot)
    rows = []
    for day, slots in days.items():
        dearest = max(slots, key=lambda slot: price[slot])
        rows.append(
            {
                "day": day,
                "free": sum(price[slot] < 5e-3 for slot in slots) * plan.step_s / 3600,
                "dearest": moments[dearest] if price[dearest] >= 5e-3 else None,
                "then": float(price[dearest]),
                "mean": float(price[slots].mean()),
                "held": held[slots].sum() / max(there[slots].sum(), 1e-9),
            }
        )
    columns = (
        Column("day", f"day ({zone.name})"),
        Column("free", "free", "{:.3g} h".format),
        Column("dearest", "dearest at", "{:%H:%M}".format),
        Column("then", f"{unit or 'worth'} a {one}-hour then", format_number),
        Column("mean", "mean", format_number),
        Column("held", "held", lambda share: f"{100 * share:.0f} %"),
    )
    return columns, rows
