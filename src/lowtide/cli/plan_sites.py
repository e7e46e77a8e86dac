"""`lowtide plan-cluster` at several sites, or widths: where each job runs, when and how wide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.cli.output import Column, Form, print_rows, say, staged

if TYPE_CHECKING:
    from lowtide.market import ElasticPlan, SitesPlan
    from lowtide.studies.experiment import StudyRun

_STAGES = ("laying out", "prices", "placing", "searching", "late jobs", "carrying out")


def plan_at_sites(
    run: StudyRun,
    options: Mapping[str, Any],
    elastic: str | None,
    jobs_table: Path | None,
    image: Path | None,
    form: Form,
) -> None:
    """Plan the queue of a run at its sites, and tell it.

    Args:
        options: What the planner is told besides.
        elastic: How fast jobs are by how wide they are, as it was said.
    """
    from lowtide.grid import deciding_signal
    from lowtide.market import Site, plan_sites
    from lowtide.simulator.simulation import reaching
    from lowtide.studies.run import inputs_of, sites_of

    jobs, signal, cluster = inputs_of(run.parameters)
    sites = sites_of(run.parameters)
    if not sites and cluster is not None:
        sites = {"cluster": Site(cluster=cluster, signal=deciding_signal(signal))}
    until, repeat = float(jobs.deadline.max()), bool(run.parameters["run"].get("repeat_signal"))
    sites = {
        name: Site(
            **{key: getattr(site, key) for key in site.__dataclass_fields__ if key != "signal"},
            signal=deciding_signal(reaching(site.signal, until, repeat=repeat)),
        )
        for name, site in sites.items()
    }
    with staged("planning", _STAGES) as doing:
        plan = plan_sites(jobs, sites, elastic=_widths(elastic), doing=doing, **options)
    form.print(
        _rows(plan),
        columns=_COLUMNS,
        document=lambda: {"parameters": dict(run.shown), **plan.summary(), "runs": _rows(plan)},
        show=lambda: _show(plan),
    )
    _write(jobs_table, _rows(plan), form)
    if image is not None:
        from lowtide.page.looks import save_image

        save_image(plan.chart(), image)
        if form.for_people:
            say(f"written: {image}")


def _write(path: Path | None, rows: list[dict[str, Any]], form: Form) -> None:
    """Write a table of jobs, where one was asked for."""
    if path is not None:
        import polars as pl

        from lowtide.files import write_table

        write_table(path, pl.DataFrame(rows))
        if form.for_people:
            say(f"written: {path}")


def plan_by_hour(
    run: StudyRun, options: Mapping[str, Any], elastic: str, jobs_table: Path | None, form: Form
) -> None:
    """Plan the queue of a run, whose jobs change their width by the hour, and tell it.

    Args:
        options: What the planner is told besides.
        elastic: How fast jobs are by how wide they are, as it was said.
    """
    from lowtide.errors import InvalidInput
    from lowtide.market import plan_elastic
    from lowtide.simulator.simulation import reaching
    from lowtide.studies.run import inputs_of
    from lowtide.units import format_duration

    jobs, signal, cluster = inputs_of(run.parameters)
    if cluster is None:
        raise InvalidInput("widths are of nodes: add [cluster] with nodes and cpus_per_node")
    repeat = bool(run.parameters["run"].get("repeat_signal"))
    known = reaching(signal, float(jobs.deadline.max()), repeat=repeat)
    with staged("planning", (*_STAGES, "nodes", "proving")) as doing:
        plan = plan_elastic(
            jobs, cluster, known, elastic=_widths(elastic) or {}, doing=doing, **options
        )

    def show() -> None:
        say(f"{plan}.")
        for row in plan.late[:10].tolist():
            say(f"Job {plan.jobs.id[row]} is late.")
        columns = (
            Column("", "times its nodes", "{:g}".format, itemgetter(0)),
            Column("", "for so long", lambda hours: format_duration(3600 * hours), itemgetter(1)),
        )
        if hours_at := plan.hours_at():
            print()
            print_rows(columns, hours_at.items())

    rows = _rows_by_hour(plan)
    form.print(
        rows,
        columns=_COLUMNS_BY_HOUR,
        document=lambda: {"parameters": dict(run.shown), **plan.summary(), "runs": rows},
        show=show,
    )
    _write(jobs_table, rows, form)


_COLUMNS_BY_HOUR = tuple(Column(name) for name in ("id", "user", "nodes", "start", "end"))


def _rows_by_hour(plan: ElasticPlan) -> list[dict[str, Any]]:
    """Return from when to when each job has how many nodes."""
    from lowtide.units import format_iso

    jobs = plan.jobs
    rows: list[dict[str, Any]] = []
    for row in range(len(plan)):
        steps = plan.nodes_of_row(row)
        for begin, end, nodes in zip(steps.times, steps.times[1:], steps.values, strict=False):
            if nodes > 0:
                rows.append(
                    {
                        "id": str(jobs.id[row]),
                        "user": None if jobs.user[row] is None else str(jobs.user[row]),
                        "nodes": round(float(nodes)),
                        "start": format_iso(float(begin)),
                        "end": format_iso(float(end)),
                    }
                )
    return rows


def _widths(said: str | None) -> dict[float, float] | None:
    """Return how fast jobs are by how wide they are, from `0.5:0.52,2:1.9`."""
    from lowtide.errors import InvalidInput

    if said is None:
        return None
    try:
        pairs = [each.split(":") for each in said.split(",")]
        return {float(width): float(speed) for width, speed in pairs}
    except ValueError:
        raise InvalidInput(
            "--elastic says how many times as fast jobs are at how many times their nodes, such "
            f"as 0.5:0.52,2:1.9, not {said!r}"
        ) from None


_COLUMNS = tuple(
    Column(name)
    for name in ("id", "user", "site", "width", "start", "end", "amount", "deadline", "late_s")
)


def _rows(plan: SitesPlan) -> list[dict[str, Any]]:
    """Return every job: where, how wide and when it runs, and what it comes to."""
    from lowtide.units import format_iso

    jobs = plan.jobs
    return [
        {
            "id": str(jobs.id[row]),
            "user": None if jobs.user[row] is None else str(jobs.user[row]),
            "site": plan.site[row],
            "width": float(plan.width[row]),
            "start": format_iso(float(plan.start[row])),
            "end": format_iso(float(plan.end[row])),
            "amount": float(plan.amount_of[row]),
            "deadline": format_iso(float(jobs.deadline[row])),
            "late_s": max(float(plan.end[row] - jobs.deadline[row]), 0.0),
        }
        for row in range(len(plan))
    ]


def _show(plan: SitesPlan) -> None:
    """Tell people: the plan, and what each site has of it."""
    from lowtide.units import format_count, format_mass, format_number

    price = next(iter(plan.sites.values())).signal

    def told(amount: float) -> str:
        if price.kind == "price":
            return f"{format_number(amount)} {price.currency}"
        return format_mass(amount)

    say(f"{plan}.")
    print()

    def one_more(name: str) -> float:
        return plan.worth(next(each for each in plan.resources if each.endswith(f" at {name}")))

    print_rows(
        (
            Column("name", "site"),
            Column("nodes", "machines", lambda count: format_count(count, "node")),
            Column("jobs", "jobs"),
            Column("amount", "jobs come to", told),
            Column("nodes_amount", "nodes come to", told),
            Column("", "one more is worth", told, lambda site: one_more(site["name"])),
        ),
        [{"name": name, **each} for name, each in plan.summary()["sites"].items()],
    )
    if len(widths := Counter(sorted(plan.width.tolist()))) > 1:
        print()
        columns = (
            Column("", "times its nodes", "{:g}".format, itemgetter(0)),
            Column("", "jobs", read=itemgetter(1)),
        )
        print_rows(columns, widths.items())
    for row in plan.late[:10].tolist():
        say(f"Job {plan.jobs.id[row]} is late, at {plan.site[row]}.")
