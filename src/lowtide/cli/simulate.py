"""`lowtide simulate`: one run of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import (
    LEFT_OUT,
    Data,
    ExperimentFile,
    RepeatSignal,
    Settings,
    read_settings,
)
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    Written,
    print_rows,
    progress,
    require_table,
    say,
    say_all,
)

if TYPE_CHECKING:
    from lowtide.simulator import Simulation

# What is told together, and in which words. What a run says besides comes last.
_GROUPS: Mapping[str, Mapping[str, str]] = {
    "jobs": {
        "jobs": "jobs",
        **{key: f"left out: jobs {words}" for key, words in LEFT_OUT.items()},
        "deadline_misses": "missed deadlines",
        "missed_share": "share of jobs that missed theirs",
        "max_late_s": "the latest by",
        "mean_starts": "starts per job",
        "makespan_s": "first arrival to last end",
        "users": "users",
        "fairness": "fairness of slowdowns among users (1 is even)",
        "users_worse_off": "users who emit or pay more than under the baseline",
    },
    "energy": {
        "assumed_power_w_per_cpu": "assumed watts per CPU, of the nodes",
        "wasted_energy_j": "energy of jobs that failed",
        "energy_delay_js": "energy times mean time to the end, J·s",
        "marginal_carbon_g": "CO2e of jobs by marginal intensity",
        "baseline_marginal_carbon_g": "the same by the baseline",
        "marginal_saving": "saving by marginal intensity",
        "cost_saving": "saving of cost",
        "decided_by": "decided by",
        "power_intensity_correlation": "correlation of power and intensity",
    },
    "queue": {"mean_queue": "mean length", "max_queue": "longest"},
    "machines": {
        "utilisation": "utilisation",
        "idle_energy_j": "energy of being on, used or not",
        "boot_energy_j": "energy of booting and shutting down",
        "off_energy_j": "energy of being off",
        "machine_cost": "cost of machines, in the currency of their prices",
    },
}
# What a run came to: keys of the policy's, then of the baseline's, under the same heading.
_AMOUNTS = ("energy_j", "carbon_g", "cost")
_PARTS = {"jobs": "", "nodes": "node_", "in all": "total_"}
_TOLD_BESIDE = (
    *(
        f"{of}{part}{what}"
        for of in ("", "baseline_")
        for part in _PARTS.values()
        for what in _AMOUNTS
    ),
    *("currency", "imputed_share", "baseline", "baseline_amount", "saving", "jobs_saving"),
)
_SPREADS = {"wait_s": "wait", "slowdown": "slowdown", "job_saving": "saving per job"}
_QUANTILES = {"mean": "mean", "p05": "5 %", "median": "median", "p95": "95 %"}
_QUANTILES |= {"p99": "99 %", "max": "most"}


def simulate(
    file: ExperimentFile,
    settings: Settings = None,
    data: Data = None,
    jobs_table: Annotated[
        Path | None,
        typer.Option("--jobs-table", help="Write every job as a row: .parquet or .csv."),
    ] = None,
    time_table: Annotated[
        Path | None,
        typer.Option(
            "--time-table",
            help="Write every step of the signal as a row, with utilisation, queue, power and "
            "carbon so far: .parquet or .csv.",
        ),
    ] = None,
    repeat_signal: RepeatSignal = False,
    form: Form = TABLE,
) -> None:
    """Simulate one run of an experiment.

    An experiment of several runs is refused until --set leaves one: lowtide sweep runs them all.
    """
    from lowtide.cli.plan import signal_document
    from lowtide.files import write_table
    from lowtide.studies.experiment import Experiment
    from lowtide.studies.run import assumptions, check_runs, queue_use, simulate_run

    said = read_settings(settings, repeat_signal=repeat_signal)
    require_table(jobs_table)
    require_table(time_table)
    experiment = Experiment.load(file, data=data, settings=said)
    run = experiment.only_run(file)
    check_runs([run], experiment)
    with progress("reading", paced=True) as bar:
        simulation = simulate_run(
            run.parameters,
            begin=lambda count: bar.reach(0, count, "deciding"),
            advance=bar.advance,
        )
    told_of_queue = queue_use(run.parameters, simulation)
    summary = {**assumptions(run.parameters), **simulation.summary()}
    told = {"synthetic": _synthetic(simulation), **told_of_queue, **summary}

    def show() -> None:
        _tell(simulation, summary)
        if not all(told_of_queue.values()):
            say(f"[queue] played no part: {simulation.policy} {_alone(run.parameters)}.")

    form.print(
        told.items(),
        columns=(
            Column("name", read=lambda pair: pair[0]),
            Column("value", read=lambda pair: pair[1]),
        ),
        document=lambda: {
            "parameters": run.shown,
            "synthetic": told["synthetic"],
            "signal": signal_document(simulation.used_signal),
            **told,
            "by_user": simulation.by_user(),
        },
        show=show,
        digits=None,
    )
    written = Written()
    written.add(jobs_table, lambda path: write_table(path, simulation.table()))
    written.add(time_table, lambda path: write_table(path, simulation.timeline()))
    if form.for_people:
        say_all(f"written: {path}" for path in written.paths)
    written.settle()


def _alone(parameters: Mapping[str, Any]) -> str:
    """Return why a policy asks nobody how to serve the queue."""
    from lowtide.policies.policy import POLICIES

    if hasattr(POLICIES.load(str(parameters["policy"]["name"])), "decide_queue"):
        return "decides itself which of the jobs that wait runs when"
    return "buys machines as jobs need them, and none queues"


def _synthetic(simulation: Simulation) -> bool:
    from lowtide.grid import deciding_signal

    return deciding_signal(simulation.signal).synthetic


def _tell(simulation: Simulation, summary: dict[str, Any]) -> None:
    from lowtide.grid import deciding_signal
    from lowtide.units import format_count

    signal = deciding_signal(simulation.signal)
    of = f" ({signal.source})" if signal.source and not signal.zone else ""
    where = f"on {signal.label}{of}" + "; the grid is synthetic" * signal.synthetic
    queue = f", queue {simulation.discipline}" if simulation.discipline else ""
    say(f"{format_count(len(simulation), 'job')} by {simulation.policy}{queue}, {where}.")
    if caveat := simulation.used_signal.caveat:
        say(f"Of the grid's signal in the time of the run, {caveat}.")
    spread = [f"{part}_{name}" for name in _SPREADS for part in _QUANTILES]
    told = {key for keys in _GROUPS.values() for key in keys} | {*_TOLD_BESIDE, *spread}
    groups = {**_GROUPS, "more": {key: key for key in summary if key not in told}}
    rows = []
    for group, keys in groups.items():
        there = {key: name for key, name in keys.items() if key in summary}
        if any(summary[key] is not None for key in there):
            rows += [
                {
                    "of": group if number == 0 else "",
                    "what": name,
                    "comes to": _format(key, summary),
                }
                for number, (key, name) in enumerate(there.items())
            ]
    print()
    print_rows(*_amounts(simulation, summary))
    print()
    print_rows([Column(key, key) for key in ("of", "what", "comes to")], rows)
    print()
    quantiles = [
        {"of": words, **{part: _format(f"{part}_{name}", summary) for part in _QUANTILES}}
        for name, words in _SPREADS.items()
        if f"mean_{name}" in summary
    ]
    columns = [Column(part, heading, str) for part, heading in _QUANTILES.items()]
    print_rows([Column("of", "per job"), *columns], quantiles)


def _amounts(
    simulation: Simulation, summary: Mapping[str, Any]
) -> tuple[list[Column], list[dict[str, str]]]:
    """Return what jobs, nodes and both came to, beside the same under the baseline.

    A saving stands beside the two numbers that it is told of.
    """
    from lowtide.units import ENERGIES, MASSES, MISSING, format_alike, format_number, format_percent

    def money(values: Sequence[float | None]) -> list[str]:
        return [
            MISSING if value is None else f"{format_number(value)} {simulation.currency}"
            for value in values
        ]

    ways: dict[str, tuple[str, Callable[[Sequence[float | None]], list[str]]]] = {
        "energy_j": ("energy", partial(format_alike, scales=ENERGIES)),
        "carbon_g": ("CO2e", partial(format_alike, scales=MASSES)),
        "cost": ("cost of electricity", money),
    }
    compared = simulation.baseline is not None
    has_nodes = simulation.node_spans is not None and bool(summary["node_energy_j"])
    parts = _PARTS if has_nodes else {"jobs": ""}
    rows = []
    for what, (name, words) in ways.items():
        if summary[what] is None:
            continue
        ours = [summary[f"{part}{what}"] for part in parts.values()]
        theirs = [summary[f"baseline_{part}{what}"] for part in parts.values()] if compared else []
        texts = words([*ours, *theirs])
        for number, part in enumerate(parts):
            row = {"what": name if number == 0 else "", "of": part, "ours": texts[number]}
            if compared:
                against = theirs[number]
                saved = 1 - ours[number] / against if against and against > 0 else None
                row |= {"theirs": texts[len(ours) + number], "saved": format_percent(saved)}
            rows.append(row)
    columns = [Column("what", "what"), Column("of", "of")]
    columns.append(Column("ours", f"by {simulation.policy}"))
    if compared:
        columns.append(Column("theirs", f"by {simulation.baseline_policy}"))
        columns.append(Column("saved", "saving"))
    return columns, rows


def _format(key: str, summary: Mapping[str, Any]) -> str:
    """Return a number of a run in the unit that its key names."""
    from lowtide.units import format_quantity

    value = summary[key]
    if key in _GROUPS["queue"] and isinstance(value, float):
        number = f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
        return f"{number} {'job' if number == '1' else 'jobs'}"
    return format_quantity(key, value)
