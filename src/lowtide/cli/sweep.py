"""`lowtide sweep` and `lowtide report`: every run of an experiment, and what they found."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide import interruption
from lowtide.cli.options import (
    LEFT_OUT,
    Data,
    ExperimentFile,
    RepeatSignal,
    Settings,
    read_settings,
    read_slurm,
)
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    print_page_table,
    print_rows,
    progress,
    say,
    tracked,
)

if TYPE_CHECKING:
    import polars as pl

    from lowtide.studies.engines import Outcome
    from lowtide.studies.experiment import StudyRun
    from lowtide.studies.folder import ResultFolder

# Sweeps above this are asked about: a value too many in a list is soon a day too many.
MOST_RUNS = 2000
_REASONS_SHOWN = 5
# What the table at the end shows, and in which words. What a saving is told of stands with it:
# jobs and nodes together, under the policy and under the baseline.
_MEANS = {
    "saving": "saving",
    "total_carbon_g": "CO2e in all",
    "baseline_total_carbon_g": "by the baseline",
    "carbon_g": "CO2e of jobs",
    "node_carbon_g": "of nodes",
    "total_cost": "cost in all",
    "baseline_total_cost": "cost by the baseline",
    "total_energy_j": "energy in all",
    "energy_j": "of jobs",
    "mean_wait_s": "mean wait",
    "p95_wait_s": "95 % wait less than",
    "deadline_misses": "missed",
}
_LONG_S = 5.0
_WORTH_TELLING_S = 60.0


def sweep(
    file: ExperimentFile,
    workers: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            min=1,
            help="How many runs at the same time; 1 runs all in this process. [default: one per "
            "core, 4 on Slurm]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Folder for the results; what it has already is not run again. [default: "
            "FILE-results]",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Where runs are run: local (processes), dask or slurm.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Scheduler of a running Dask cluster, such as tcp://node1:8786."),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            help="What Slurm jobs get: cores=1, memory=2GB, walltime=01:00:00, queue=NAME, "
            "account=NAME, host=NAME of this machine. May be given again.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Lay the file's [full] over it.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help=f"Do not ask about more than {MOST_RUNS:,} runs.")
    ] = False,
    settings: Settings = None,
    data: Data = None,
    repeat_signal: RepeatSignal = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what failed before.")
    ] = False,
    form: Form = TABLE,
) -> None:
    """Run every combination of an experiment's parameters.

    Each run is kept as it finishes. A sweep that was ended in the midst goes on when it is started
    again with the same folder. Exits with 1 if runs failed.
    """
    from time import perf_counter

    from lowtide.studies.engines import make_engine
    from lowtide.studies.experiment import Experiment
    from lowtide.studies.folder import ResultFolder
    from lowtide.studies.run import check_runs, run_row

    said = read_settings(settings, repeat_signal=repeat_signal)
    experiment = Experiment.load(file, full=full, data=data, settings=said)
    folder = Path(f"{file.stem}-results") if out is None else out
    runner = make_engine(
        engine, workers=workers, address=address, slurm=read_slurm(slurm), folder=folder
    )
    people = form.for_people
    with ResultFolder.opened(folder, experiment) as results:
        missing = results.missing(retry_failed=retry_failed)
        check_runs(missing, experiment)
        if people:
            _announce(results, len(missing))
        if len(missing) > MOST_RUNS and not yes:
            _ask(missing, run_row, workers)
        clock = perf_counter()
        with _keeping(results), _progress(len(missing)) as told:
            results.carry_out(missing, runner, run_row, told)
        took_s = perf_counter() - clock
        groups = _groups(results) if form.parsable else None
        form.print(
            [] if groups is None else [*map(_spelt, groups.to_dicts())],
            columns=None if groups is None else [*map(Column, groups.columns)],
            document=lambda: _document(results, len(missing), took_s),
            show=lambda: _tell(results, len(missing), took_s),
            digits=None,
        )
        if results.failed:
            raise typer.Exit(1)


def _spelt(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with truth as Python has it, which scripts know from before."""
    return {key: str(each) if isinstance(each, bool) else each for key, each in row.items()}


def _announce(results: ResultFolder, missing: int) -> None:
    from lowtide.units import format_count

    over = ", ".join(f"{key} ({len(each)})" for key, each in results.experiment.varied.items())
    before = len(results.runs) - missing
    print(
        f"{results.experiment.title}: {format_count(len(results.runs), 'run')}"
        + f" over {over}" * bool(over)
        + f", {before} of them done before" * bool(before)
    )
    if results.left_out:
        say(
            f"{results.path} has {format_count(results.left_out, 'run')} of this experiment before "
            "it was changed: kept, but not in the table."
        )


def _ask(missing: Sequence[StudyRun], function: Callable[..., Any], workers: int | None) -> None:
    """Ask whether a large sweep is meant, saying how long it may take."""
    from lowtide.errors import InvalidInput
    from lowtide.studies.engines import Task, attempt, count_cores
    from lowtide.units import format_hours

    shortest_s = float("inf")
    # The first run also compiles and reads; the second tells better, unless the first is long.
    for run in missing[:2]:
        outcome = attempt(function, Task(run.id, run.parameters))
        if outcome.row is None:
            raise InvalidInput(f"the first of {len(missing):,} runs fails: {outcome.reason}")
        shortest_s = min(shortest_s, outcome.wall_s or 0.0)
        if shortest_s > _LONG_S:
            break
    at_once = workers or count_cores()
    long = format_hours(shortest_s * len(missing) / at_once)
    what = f"{len(missing):,} runs may take about {long}, {at_once} at a time"
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"{what}. Go on?", abort=True, err=True)
        return
    raise InvalidInput(
        f"{what}: say --yes if that is meant, or sweep over fewer values (--set KEY=VALUE)"
    )


@contextmanager
def _keeping(results: ResultFolder) -> Iterator[None]:
    """Say what is kept and how to go on where a sweep ends before its time."""
    from lowtide.errors import FileProblem, LowtideError

    # As it was said: with another --data or --set it would be another sweep.
    again = shlex.join(["lowtide", *sys.argv[1:]])

    def kept() -> str:
        return (
            f"{len(results.records)} of {len(results.runs)} runs are kept in {results.path}, and "
            f"`{again}` continues"
        )

    interruption.last_words = kept
    try:
        yield
    except KeyboardInterrupt:
        print(f"lowtide: interrupted: {kept()}", file=sys.stderr)
        raise typer.Exit(130) from None
    except FileProblem as error:
        raise FileProblem(f"{error}; {kept()}", path=error.path) from error
    except LowtideError as error:
        raise LowtideError(f"{error}; {kept()}", arguments=error.arguments) from error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    failed = 0
    with progress("running", total, paced=True) as bar:

        def told(outcome: Outcome) -> None:
            nonlocal failed
            failed += outcome.row is None
            bar.say(f"{failed} failed" if failed else "running")
            bar.advance()

        yield told


def _tell(results: ResultFolder, ran: int, took_s: float) -> None:
    from lowtide.units import format_count, format_duration

    failed = results.failed
    done = len(results.records) - len(failed)
    took = f" in {format_duration(took_s)}" * (took_s >= _WORTH_TELLING_S)
    print(f"{done} done, {len(failed)} failed; {ran} run now{took}.")
    if done:
        print()
        print_rows(*_in_words(_groups(results), _currency(results)))
        for remark in _remarks(results):
            print()
            say(remark)
    if failed:
        print()
        reasons = Counter(record["reason"] for record in failed)
        print(f"{format_count(len(failed), 'run')} failed (--retry-failed runs them again):")
        for reason, count in reasons.most_common(_REASONS_SHOWN):
            say(f"  {count} × {reason}")
        if len(reasons) > _REASONS_SHOWN:
            print(f"  and {len(reasons) - _REASONS_SHOWN} other reasons")
    print()
    print(f"results: {results.path}/table.parquet, manifest.json")
    print(f"next:    lowtide report {results.path}")


def _currency(results: ResultFolder) -> str:
    """Return what runs pay electricity in, where all agree."""
    table = results.table()
    found = table["currency"].drop_nulls().unique().to_list() if "currency" in table.columns else []
    return str(found[0]) if len(found) == 1 else "in several currencies" * bool(found)


def _remarks(results: ResultFolder) -> Iterator[str]:
    """Yield what the grid is, what was left out of the runs, and what they take for granted."""
    from lowtide.studies.folder import ASSUMED, imputed_words, queue_words
    from lowtide.units import format_count, format_number

    table = results.table()
    if "synthetic" in table.columns and (made_up := int(table["synthetic"].sum())):
        which = "all runs" if made_up == len(table) else f"{made_up} of {len(table)} runs"
        yield f"synthetic: the grids of {which}; so are their emissions"
    if told := imputed_words(table):
        yield f"imputed: {told}"
    if told := queue_words(table):
        yield f"queue: {told}"
    for key, words in LEFT_OUT.items():
        if key in table.columns:
            counts = [int(count) for count in table[key].drop_nulls()]
            fewest, most = min(counts), format_count(max(counts), "job")
            how_many = most if fewest == max(counts) else f"{fewest} to {most}"
            yield f"left out: {how_many} {words}, in {len(counts)} of {len(table)} runs"
    for key in (key for key in table.columns if key.startswith(ASSUMED)):
        values = ", ".join(format_number(value) for value in table[key].drop_nulls().unique())
        yield f"assumed: {key.removeprefix(ASSUMED)} = {values}, from what the nodes draw"


def _groups(results: ResultFolder) -> pl.DataFrame:
    """Return the means over runs for each policy, or each value of the first parameter."""
    import polars as pl

    table, varied = results.table(), list(results.experiment.varied)
    key = "policy.name" if "policy.name" in varied or not varied else varied[0]
    if key not in table.columns:
        table = table.with_columns(pl.lit(None, pl.String).alias(key))
    # Of what no run knows there is no column of numbers: nodes, say, or the cost.
    means = [
        name
        for name in (*_MEANS, "imputed_share")
        if name in table and table[name].dtype.is_numeric()
    ]
    return (
        table.filter(pl.col("status") == "done")
        .group_by(key, maintain_order=True)
        .agg(
            pl.len().alias("runs"),
            pl.col(means).mean(),
            *([pl.col("synthetic").any()] if "synthetic" in table.columns else []),
        )
    )


def _in_words(groups: pl.DataFrame, currency: str) -> tuple[list[Column], list[dict[str, str]]]:
    """Return the groups for people: a column has one unit, and none that another has too."""
    from lowtide.units import format_quantities

    shown = groups.drop("synthetic", "imputed_share", strict=False)
    if "total_carbon_g" in shown.columns:
        shown = shown.drop("total_cost", "baseline_total_cost", strict=False)
    for whole, part in (("total_carbon_g", "carbon_g"), ("total_energy_j", "energy_j")):
        if whole in shown.columns and (shown[whole] == shown[part]).all():
            # Without nodes of their own jobs are all there is.
            shown = shown.drop(part, "node_carbon_g", strict=False)

    texts = {
        name: [str(each) for each in shown[name]]
        if shown[name].dtype.is_integer()
        else format_quantities(name, shown[name].to_list())
        for name in shown.columns
    }
    columns = []
    for name in texts:
        heading = _MEANS.get(name, name)
        paid = f", {currency}" if heading.startswith("cost") and currency else ""
        columns.append(Column(name, heading + paid, str))
    return columns, [
        dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)
    ]


def _document(results: ResultFolder, ran: int, took_s: float) -> dict[str, Any]:
    failed, table = results.failed, results.table()
    return {
        "synthetic": bool(table["synthetic"].any()) if "synthetic" in table.columns else None,
        "currency": _currency(results) or None,
        "title": results.experiment.title,
        "folder": str(results.path),
        "runs": len(results.runs),
        "done": len(results.records) - len(failed),
        "failed": len(failed),
        "left_out": results.left_out,
        "ran": ran,
        "wall_s": took_s,
        "reasons": dict(Counter(record["reason"] for record in failed).most_common()),
        "groups": _groups(results).to_dicts(),
    }


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that lowtide sweep wrote.", metavar="DIR")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The page.  [default: report.html in the folder]"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the figures as SVG, PNG and CSV.  [default: figures in the folder]"
        ),
    ] = None,
    no_figures: Annotated[
        bool, typer.Option("--no-figures", help="Write the page alone, which has them all.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Policy of the study to tell savings against.  [default: that of the runs]",
            metavar="POLICY",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option("-j", "--jobs", min=1, help="How many processes simulate and draw.")
    ] = 1,
    form: Form = TABLE,
) -> None:
    """Write what a sweep found as a page, with every figure.

    Each question is answered in a sentence: which policy does best, what it costs in waiting,
    what the saving depends on. The page needs no network.
    """
    from lowtide.errors import InvalidInput
    from lowtide.studies.analysis import policy_numbers
    from lowtide.studies.policies import policies_table
    from lowtide.studies.report import write_study_report
    from lowtide.studies.study import read_study

    if no_figures and figures is not None:
        raise InvalidInput("--figures and --no-figures exclude each other: leave one out")
    study = read_study(folder, baseline=baseline)
    written = write_study_report(
        study, out, figures=figures, images=not no_figures, workers=workers, track=tracked
    )
    if not form.for_people:
        numbers = policy_numbers(study)
        document = {
            "title": study.title,
            "grids": study.grids,
            "runs": len(study),
            "failed": study.failed.height,
            "answers": [
                {"question": section.question, "answer": section.answer}
                for section in written.sections
            ],
            "policies": numbers,
            "report": str(written.path.resolve()),
            "figures": [str(path.resolve()) for path in written.figures],
        }
        form.print(numbers, document=document)
        return
    # The page has them all; a terminal has room for these.
    carbon = "total_carbon_g" if study.has_nodes and not study.told_of else "carbon_g"
    table = policies_table(study, ("saving", carbon, "mean_wait_s"))
    failed = f", {study.failed.height} more failed" if study.failed.height else ""
    say(f"{study.title}: {len(study)} runs{failed}, {study.grids}.")
    print()
    print_page_table(table)
    for section in written.sections:
        print()
        say(section.question)
        say(section.answer)
    print()
    print(f"report:  {written.path.resolve()}")
    if written.figures:
        print(f"figures: {written.figures[0].parent.resolve()}/*.svg, *.png, *.csv")
