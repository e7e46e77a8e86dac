"""`lowtide stress plan` and `lowtide stress run`: load this machine by a plan that is saved."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.examples import epilog
from lowtide.cli.options import grouped
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    print_rows,
    progress,
    say,
    say_all,
)
from lowtide.units import MISSING, format_percent

if TYPE_CHECKING:
    from lowtide.signal import FloatArray
    from lowtide.stress.plan import LoadPlan
    from lowtide.stress.run import PartOutcome, StressOutcome

stress = typer.Typer(
    name="stress",
    help="Load this machine by a plan, to learn what it draws.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_COLUMNS = 70
# What the longest lateness is measured against.
_LATE_S = 0.2


@stress.command(epilog=epilog("stress plan"))
@grouped
def plan(
    shape: Annotated[
        str, typer.Option(help="The course of the levels: ramp, steps, random or latin.")
    ] = "latin",
    duration: Annotated[str, typer.Option(help="How long it lasts: 60s, 10m.")] = "60s",
    step: Annotated[str, typer.Option(help="How long a level is held, 0.1s at least.")] = "0.5s",
    seed: Annotated[int, typer.Option(help="Which of the possible plans.")] = 0,
    cpu: Annotated[
        str | None,
        typer.Option(
            help="Levels of the CPU cores in percent, such as 0-100.  [default: 0-100, if no "
            "other part is named]",
            metavar="LOW-HIGH",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Share of the time that memory is copied.", metavar="LOW-HIGH"),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(help="Share of the time that a disk is written to.", metavar="LOW-HIGH"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Share of the time that GPUs multiply matrices.", metavar="LOW-HIGH"),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(help="How many CPU cores to load.  [default: all that the machine offers]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Save the plan: a .toml file.")
    ] = None,
    form: Form = TABLE,
) -> None:
    """Draw a plan of levels, from end to end and not together.

    The same seed gives the same plan, to the byte. Nothing is loaded yet: lowtide stress run.
    """
    from lowtide.stress.plan import make_plan

    asked = {"cpu": cpu, "memory": memory, "disk": disk, "gpu": gpu}
    if not any(asked.values()):
        asked["cpu"] = "0-100"
    made = make_plan(
        shape,
        {part: _range(part, text) for part, text in asked.items() if text is not None},
        duration=_seconds(duration),
        step=_seconds(step),
        seed=seed,
        cores=cores,
    )
    if out is not None:
        made.dump(out)
    form.print(
        made.parts,
        columns=_plan_columns(made),
        document=lambda: _plan_document(made, out),
        show=lambda: _show_plan(made, out),
    )


@stress.command(epilog=epilog("stress run"))
@grouped
def run(
    file: Annotated[Path, typer.Argument(help="The plan, as lowtide stress plan -o wrote it.")],
    job_id: Annotated[
        str | None,
        typer.Option(
            help="The job that all processes belong to.  [default: LOWTIDE_JOB_ID or SLURM_JOB_ID, "
            "if one is set, or a new one]"
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="A part to leave alone, such as gpu; may be given again."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the disk load writes.  [default: the system's temporary folder]"),
    ] = None,
    form: Form = TABLE,
) -> None:
    """Load this machine as a plan says, and say what was reached.

    Below lowtide measure, every step is marked in the recording with its levels. However it ends,
    no process of the load stays.
    """
    import os

    from lowtide.interruption import by_signals
    from lowtide.stress.plan import LoadPlan
    from lowtide.stress.run import carry_out, check_job_id, choose_job_id

    loaded = LoadPlan.load(file).without(without or [])
    job = choose_job_id(os.environ) if job_id is None else check_job_id(job_id)
    if form.for_people:
        print(f"job {job}: {_extent(loaded)}", flush=True)
    begun = 0

    def told(number: int) -> None:
        nonlocal begun
        begun = number + 1
        bar.advance()

    try:
        # Ten pictures a second would be a load of their own.
        with by_signals(), progress("loading", len(loaded), refresh_per_second=2) as bar:
            outcome = carry_out(loaded, job_id=job, folder=folder, told=told)
    except KeyboardInterrupt:
        print(
            f"lowtide: interrupted in step {begun} of {len(loaded)}: the load is gone",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    form.print(
        outcome.parts,
        columns=_outcome_columns(outcome),
        document=outcome.document,
        show=lambda: _show_outcome(outcome),
        digits=6,
    )


def _seconds(text: str) -> float:
    """Read a duration; a number alone is seconds."""
    from lowtide.units import parse_duration

    return parse_duration(text, bare_unit_s=1.0)


def _range(part: str, text: str) -> tuple[float, float]:
    """Read a range of levels: 0-100, 20-80, or 50 for one that never changes."""
    import re

    from lowtide.errors import InvalidInput

    number = r"\s*(\d+(?:\.\d*)?)\s*%?\s*"
    found = re.fullmatch(rf"{number}(?:-{number})?", text)
    if found is None:
        raise InvalidInput(
            f"--{part} takes a lowest and a highest level between 0 and 100 %, such as 0-100 or "
            f"20-80, not {text!r}"
        )
    low = float(found[1])
    return low, low if found[2] is None else float(found[2])


def _extent(plan: LoadPlan) -> str:
    from lowtide.units import format_count, format_hours

    steps = f"{format_count(len(plan), 'step')} of {plan.step_s:g} s"
    return f"{steps}, {format_hours(plan.duration_s)}: {', '.join(plan.parts)}"


def _plan_columns(plan: LoadPlan) -> list[Column]:
    found = {frozenset(pair): value for pair, value in plan.correlations().items()}

    def percent(level: float) -> str:
        return format_percent(level / 100)

    def correlation(other: str) -> Column:
        return Column(
            "",
            f"r with {other}",
            # Adding 0 leaves no "-0.00".
            lambda value: f"{round(value, 2) + 0.0:.2f}",
            lambda part: "" if part == other else found[frozenset((part, other))],
        )

    return [
        Column("part", "part", read=str),
        Column("lowest", "lowest", percent, lambda part: float(plan.of(part).min())),
        Column("highest", "highest", percent, lambda part: float(plan.of(part).max())),
        Column("mean", "mean", percent, lambda part: float(plan.of(part).mean())),
        *(correlation(other) for other in (plan.parts if len(plan.parts) > 1 else ())),
        Column("largest_correlation", read=lambda part: _largest_correlation(plan, part)),
    ]


def _show_plan(plan: LoadPlan, out: Path | None) -> None:
    import os

    from lowtide.units import format_count

    say(f"{plan.shape}, seed {plan.seed}: {_extent(plan)}")
    for part in plan.parts:
        print(f"{part:>7} {_sparkline(plan.of(part))}")
    print_rows(_plan_columns(plan), plan.parts)
    here = os.cpu_count() or 1
    if plan.cores is not None and plan.cores > here:
        say(f"For another machine: this one has {format_count(here, 'core')}, not {plan.cores}.")
    if out is None:
        say("Not saved: add -o plan.toml")
    else:
        say(f"Saved in {out}; next: lowtide stress run {out}")


def _sparkline(levels: FloatArray) -> str:
    """Draw levels in one line, each column the mean of its steps."""
    import shutil

    import numpy as np

    room = max(shutil.get_terminal_size((80, 24)).columns - 8, 10)
    columns = min(levels.size, room, _MOST_COLUMNS)
    means = [float(each.mean()) for each in np.array_split(levels, columns)]
    return "".join(_BLOCKS[min(int(mean / 100 * len(_BLOCKS)), len(_BLOCKS) - 1)] for mean in means)


def _plan_document(plan: LoadPlan, out: Path | None) -> dict[str, Any]:
    return {
        "file": None if out is None else str(out),
        "shape": plan.shape,
        "seed": plan.seed,
        "steps": len(plan),
        "step_s": plan.step_s,
        "duration_s": plan.duration_s,
        "cores": plan.cores,
        "parts": {
            part: {
                "lowest": float(plan.of(part).min()),
                "highest": float(plan.of(part).max()),
                "mean": float(plan.of(part).mean()),
                "levels": plan.of(part).tolist(),
            }
            for part in plan.parts
        },
        "correlations": [
            {"parts": list(pair), "correlation": value}
            for pair, value in plan.correlations().items()
        ],
    }


def _largest_correlation(plan: LoadPlan, part: str) -> str | None:
    found = [abs(value) for pair, value in plan.correlations().items() if part in pair]
    known = [value for value in found if not math.isnan(value)]
    return f"{max(known):.4g}" if known else None


def _outcome_columns(outcome: StressOutcome) -> list[Column]:
    def seconds(value: float) -> str:
        return f"{value:.2f} s"

    def rate(each: PartOutcome) -> str:
        unit = {"cpu": "Gop/s", "gpu": "Gop/s"}.get(each.part, "GB/s")
        return MISSING if math.isnan(each.rate) else f"{each.rate / 1e9:.3g} {unit}"

    def percent(level: float) -> str:
        return format_percent(level / 100)

    return [
        Column("job_id", read=lambda _: outcome.job_id),
        Column("part", "part"),
        Column("workers", "processes"),
        Column("asked", "asked", percent, lambda each: float(each.asked.mean())),
        Column("got", "got", percent, lambda each: float(each.got.mean())),
        Column("mean_error", "off by", "{:.1f} points".format, lambda each: float(each.off)),
        Column("asked_s", "work asked", seconds, lambda each: float(each.asked_s)),
        Column("got_s", "work done", seconds, lambda each: float(each.got_s)),
        Column("", "rate", read=rate),
        Column("max_late_s", read=lambda _: float(outcome.late_s.max())),
    ]


def _show_outcome(outcome: StressOutcome) -> None:
    import numpy as np

    print_rows(_outcome_columns(outcome), outcome.parts)
    late = outcome.late_s
    say(
        f"Steps of {outcome.plan.step_s:g} s ended {1000 * float(np.median(late)):.1f} ms late in "
        f"the median, {1000 * float(late.max()):.1f} ms at most."
    )
    if (count := int((late > _LATE_S).sum())) > 0:
        say(f"{count} of {late.size} steps ended more than {_LATE_S:g} s late: the machine is busy")
    say_all(outcome.notes)
