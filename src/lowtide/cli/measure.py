"""`lowtide measure` and `lowtide mark`: run a program, write down what it draws and is doing."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import GridName, SignalFile, require_one_grid
from lowtide.cli.output import TABLE, Column, Form, forget_unwritten, print_rows, remark, say, warn
from lowtide.files import given_environment

if TYPE_CHECKING:
    from lowtide.formats.recording_writer import RecordingWriter
    from lowtide.measuring import Recorder, Sampler
    from lowtide.measuring.callbacks import Step
    from lowtide.measuring.sampler import Sample
    from lowtide.measuring.tasks import Companions, SlurmTask
    from lowtide.recording import Recording, Run, Unmeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is run, how often, where it is stopped, and what of its output is an event."""

    repeat: Annotated[int, typer.Option(min=1, help="How often to run it.")] = 1
    cooldown: Annotated[float, typer.Option(min=0.0, help="Seconds to wait between runs.")] = 10.0
    idle: Annotated[
        float, typer.Option(min=0.0, help="Seconds of idle time to measure before and after.")
    ] = 5.0
    experiment: Annotated[
        str,
        typer.Option(
            help="What to do: full, stop-resume, kill-resume, startup (until a mark), idle."
        ),
    ] = "full"
    stop_after_mark: Annotated[
        str | None, typer.Option(help="The mark at which a run is stopped or killed.")
    ] = None
    stop_delay: Annotated[float, typer.Option(min=0.0, help="Seconds after that mark.")] = 0.0
    resume: Annotated[
        str | None, typer.Option(help="The command that resumes.  [default: the same]")
    ] = None
    before: Annotated[
        str, typer.Option(help="A shell command to run first, unmeasured: 'rm -rf checkpoints'.")
    ] = ""
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            help="LABEL=REGEX: a line of output that matches is an event; {} in the label stands "
            "for the first group.",
        ),
    ] = None

    def steps(self, command: list[str]) -> list[tuple[str, Step]]:
        """Return what is run, by name, in the order of time."""
        import shlex

        from lowtide.measuring.callbacks import plan

        return plan(
            self.experiment,
            command,
            repeat=self.repeat,
            resume=shlex.split(self.resume) if self.resume else (),
            stop_mark=self.stop_after_mark,
            stop_delay_s=self.stop_delay,
            before=self.before,
        )


def measure(
    *,
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run, after --: -- python train.py")
    ] = None,
    meter: Annotated[
        list[str] | None,
        typer.Option(
            "--meter",
            help="A meter to read, such as rapl, nvml, external:meter.csv; repeat for more."
            "  [default: all that work here; lowtide doctor lists them]",
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between samples.")] = 0.1,
    runs: RunOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The folder to write, which tasks of a Slurm step and elements of an array share."
            "  [default: recording-DATE-TIME-HOST-JOB-PROCESS, or recording-JOB for many tasks]",
        ),
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(
            help="The program's GPUs: numbers or identities (0,1 or GPU-8f6e), all, none.  "
            "[default: those that CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or Slurm let it see]"
        ),
    ] = "",
    share: Annotated[
        str,
        typer.Option(
            help="Whose power to show on a machine that others use too: the program's (process) "
            "or all of it (node). Both are kept."
        ),
    ] = "process",
    warmup: Annotated[int, typer.Option(min=0, help="How often to run it before, unmeasured.")] = 0,
    live: Annotated[
        bool, typer.Option("--live", help="Show the watts while it runs, on a terminal's stderr.")
    ] = False,
    signal: SignalFile = None,
    grid: GridName = None,
    form: Form = TABLE,
) -> None:
    """Run a program and record what it draws and uses.

    Without any meter the power is estimated from CPU use, and everything says so. The recording is
    whole at every moment: a kill loses at most the last ten seconds. With --json or -P, what the
    program prints goes to stderr. With --signal or --grid, what each run emitted or cost is told.
    """
    # Libraries leave words for themselves there when they are imported.
    environment = given_environment()
    from lowtide.measuring import Recorder
    from lowtide.measuring.tasks import Clocks, Companions, SlurmTask

    steps = runs.steps(command or [])
    patterns = [_pattern(each) for each in runs.event or []]
    priced_by = grid_of(signal, grid)
    # What --before makes is not there yet.
    if not runs.before:
        _refuse_what_cannot_run(steps)
    task = SlurmTask.of(environment)
    # On each machine one of many tasks reads the meters; the others look at GPUs of their own.
    companions = Companions(task=task) if task is not None and task.tasks > 1 else None
    # What one says for all, the others need not say again.
    silent = companions is not None and not companions.lead()
    shown = not (silent and form.for_people)
    watts = _LiveWatts() if live and sys.stderr.isatty() else None

    def tell(text: str) -> None:
        if watts is not None:
            watts.wipe()
        if shown:
            remark(text)

    sampler = _open_sampler(meter or [], companions, only_gpus=silent, share=share, gpus=gpus)
    try:
        writer = _writer(task, out)
        recorder = Recorder(
            writer=writer,
            sampler=sampler,
            interval_s=interval,
            idle_s=runs.idle if runs.experiment != "idle" else max(runs.idle, 1.0),
            patterns=patterns,
            to_stderr=not form.for_people,
            environment=environment,
            clocks=Clocks(part=writer.folder, prefix=task.prefix, now=sampler.now)
            if task is not None and task.nodes > 1
            else None,
            say=tell,
            watch=None if watts is None else watts.show,
        )
        if sampler.names:
            tell(f"Reading {'; '.join(sampler.names)} every {interval:g} s")
        try:
            with recorder.heeding_signals():
                _warm_up(recorder, command or [], warmup)
                status, missed = _run_steps(recorder, steps, runs.cooldown, tell)
        finally:
            hangs = recorder.close()
            if watts is not None:
                watts.wipe()
        if recorder.interrupted:
            remark(f"Interrupted; what was measured until then is in {writer.folder}")
            status = 128 + recorder.interrupted
    finally:
        sampler.close()
    _hand_over(recorder, hangs, task, priced_by, shown=shown, form=form)
    if missed:
        warn(f"{missed}. Nothing more was run: name a mark that comes, with --stop-after-mark")
    forget_unwritten()
    if missed:
        raise typer.Exit(1)
    if status:
        # As shells do: what a signal ended has 128 and its number.
        raise typer.Exit(128 - status if status < 0 else status)


def _refuse_what_cannot_run(steps: Sequence[tuple[str, Step]]) -> None:
    """End as a shell does where there is no such program, before anything is run or kept."""
    from lowtide.measuring.program import refusal

    for words in {tuple(step.command): None for _, step in steps if step.command}:
        if (refused := refusal(words)) is not None:
            warn(f"{refused[1]}. Nothing was run or kept")
            raise typer.Exit(refused[0])


def _open_sampler(
    named: list[str], companions: Companions | None, *, only_gpus: bool, share: str, gpus: str
) -> Sampler:
    """Return what reads the meters, and say which it does without.

    Args:
        named: The meters that were asked for; empty for all that work here.
        only_gpus: Whether another task on this machine reads the rest.
    """
    from lowtide.measuring import Sampler
    from lowtide.meters.source import choose_meters, gpu_meters

    left_out: list[str] = []
    choose = partial(choose_meters, named, tell=left_out.append)
    sampler = Sampler(
        # What was named has to open for all of them, or for none.
        meters=gpu_meters() if only_gpus and not named else choose(),
        share=share,
        gpus=gpus.strip(),
        named=bool(named),
        left_out=left_out,
        companions=companions,
        successor=choose,
    )
    sampler.open()
    for text in sampler.left_out:
        warn(text)
    return sampler


def _warm_up(recorder: Recorder, command: list[str], times: int) -> None:
    for number in range(times if command else 0):
        remark(f"warm-up {number + 1} of {times}, not measured")
        if (ended := recorder.warm_up(command)) and not recorder.interrupted:
            warn(f"the warm-up exited with {ended}; the runs are measured all the same")


def _run_steps(
    recorder: Recorder,
    steps: Sequence[tuple[str, Step]],
    cooldown_s: float,
    tell: Callable[[str], None],
) -> tuple[int | None, str]:
    """Run all steps; return how the last ended, and what mark never came, if one did not."""
    status: int | None = 0
    for number, (name, step) in enumerate(steps):
        if number:
            recorder.rest(cooldown_s)
        if recorder.interrupted:
            break
        tell(f"{name} ({number + 1} of {len(steps)})")
        status = recorder.run(name, step)
        if status:
            tell(f"{name} exited with {status}; its recording is kept")
        if recorder.missed:
            return status, f"{name} was not stopped: {recorder.missed}"
        if step.stop_mark and not recorder.interrupted:
            # That it was ended is what was asked for.
            status = 0
    return status, ""


def _hand_over(
    recorder: Recorder,
    hangs: str,
    task: SlurmTask | None,
    grid: str | None,
    *,
    shown: bool,
    form: Form,
) -> None:
    """Print what was recorded; what could not be written where it belongs is kept elsewhere.

    Whatever becomes of that, how the program ended is passed on.

    Args:
        hangs: Why the recording is not whole, empty where it is.
        grid: What says what a kWh emits, None where nobody asked.
        shown: Whether this is for anybody to read: of many tasks on a machine, one tells.
    """
    from lowtide.formats.recording_writer import write_recording
    from lowtide.measuring.folders import kept_elsewhere

    try:
        if hangs:
            elsewhere = kept_elsewhere(recorder.writer.folder.name, recorder.escape)
            where = f"the rest is in {elsewhere}" if elsewhere else "the rest is lost"
            warn(f"the recording is not whole: {hangs}; {where}")
        # What was kept elsewhere is written by another.
        writer, folder = recorder.writer, recorder.writer.folder
        recording = writer.recording()
        if writer.unwritten:
            elsewhere = kept_elsewhere(folder.name, partial(write_recording, recording))
            where = f"all of it is in {elsewhere}" if elsewhere else "what is not there is lost"
            warn(f"the recording is not whole: {writer.unwritten}; {where}")
            folder = elsewhere or folder
        if shown:
            part_of = task if writer.part else None
            show = partial(_show, folder=folder, task=part_of)
            tell_runs(recording, folder, grid, form=form, show=show)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - rich exits where nobody reads
        warn(f"the recording cannot be shown: {error}")


def _writer(task: SlurmTask | None, out: Path | None) -> RecordingWriter:
    """Return where to write: a part of the job's recording, or one of this measurement's own."""
    from lowtide.errors import FileProblem
    from lowtide.formats.recording_writer import RecordingWriter
    from lowtide.measuring.folders import new_writer, part_writer

    if task is not None:
        try:
            return part_writer(task, out)
        except FileProblem as problem:
            if out is not None:
                raise
            warn(f"{problem}. This part of the recording has a folder of its own")
    return new_writer(tell=warn) if out is None else RecordingWriter(out)


def grid_of(signal: Path | None, grid: str | None) -> str | None:
    """Return what says what a kWh emits; refuse what can not, before anything is run."""
    from lowtide.grids.resolve import kind_of

    require_one_grid(signal, grid)
    if signal is None and grid is None:
        return None
    name = str(signal if grid is None else grid)
    kind_of(name, files=grid is None)
    return name


class _LiveWatts:
    """What is drawn now, at the left of a terminal's line; gone before words of ours."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, sample: Sample) -> None:
        """Show the watts; what the program prints stands behind them."""
        print(f"\r{sample.power_w:8.1f} W ", end="", file=sys.stderr, flush=True)
        self._shown = True

    def wipe(self) -> None:
        """Empty the line again, if anything is there."""
        if self._shown:
            # Where the terminal is gone, nobody has to see it.
            with suppress(OSError, ValueError):
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._shown = False


def tell_runs(
    recording: Recording,
    folder: Path,
    grid: str | None = None,
    *,
    form: Form,
    show: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Print what is known of each run of a recording.

    Args:
        grid: What says what a kWh emits, None where nobody asked.
        show: What prints it for people.
    """
    rows = run_rows(recording, grid)
    form.print(
        rows,
        columns=[Column(name) for name in rows[0] if name != "notes"] if rows else (),
        document={"folder": str(folder), "runs": rows, "notes": list(recording.notes)},
        show=lambda: show(rows),
        digits=None,
    )


def run_rows(recording: Recording, where: str | None = None) -> list[dict[str, Any]]:
    """Return what is known of each run of a recording, in the order of time.

    Args:
        where: Which grid says what a kWh emitted or cost; None where nobody asked.
    """
    runs = sorted((*recording, *recording.unmeasured), key=lambda run: run.start or math.inf)
    rows = [_row(run) for run in runs]
    if where is None:
        return rows
    from lowtide.measuring.payment import Paid, pay
    from lowtide.recording import Run

    for run, row in zip(runs, rows, strict=True):
        paid = pay(run, where) if isinstance(run, Run) else Paid()
        row |= {"carbon_g": paid.carbon_g, "cost": paid.cost, "currency": paid.currency or None}
        row |= {"synthetic": paid.synthetic, "notes": [*row["notes"], *paid.notes]}
    return rows


def _row(run: Run | Unmeasured) -> dict[str, Any]:
    from lowtide.recording import Run

    known = run if isinstance(run, Run) else None
    over = run.start is not None and run.end is not None
    return {
        "run": run.id,
        "kind": run.kind,
        "duration_s": (run.end or 0.0) - (run.start or 0.0) if over else None,
        "energy_j": known and known.energy_j(),
        "mean_w": known and known.mean_w,
        "missing_s": known and known.missing_s,
        # What is not known was not measured.
        "power": run.power if known and not math.isnan(known.energy_j()) else None,
        "share": run.machine.get("share", "node"),
        "node_energy_j": known and _node_energy_j(known),
        "events": len(run.events),
        "exit_status": run.exit_status,
        "sampled": 0 if known is None else known.sampled,
        "sampling_cpu_share": run.machine.get("sampling_cpu_share"),
        "notes": list(run.notes),
    }


def _node_energy_j(run: Run) -> float:
    """Return what the whole machine drew while the program ran."""
    return replace(run, power_w=run.node_w).energy_j()


def _pattern(text: str) -> tuple[re.Pattern[str], str]:

    from lowtide.errors import InvalidInput

    label, equals, regex = text.partition("=")
    if not equals or not label or not regex:
        raise InvalidInput(
            f"--event takes LABEL=REGEX, such as 'epoch_{{}}=Epoch (\\d+)', not {text!r}"
        )
    try:
        return re.compile(regex), label
    except re.error as error:
        raise InvalidInput(
            f"--event {label}: {regex!r} is no regular expression: {error}"
        ) from None


def _show(rows: list[dict[str, Any]], folder: Path, task: SlurmTask | None) -> None:
    """Print what each run came to.

    Args:
        task: Whose part of the recording this is, None where it is all of it.
    """
    # Stdout is the program's, and may be a file that holds nothing else: x.gz, a picture.
    with redirect_stdout(sys.stderr):
        show_runs(rows)
        for row in rows:
            for note in row["notes"]:
                say(f"{row['run']}: {note}")
        if task is None:
            say(f"Kept in {folder}" + _next_step(rows, folder))
            return
        who = "element" if task.tasks == 1 else "task"
        say(
            f"Kept in {folder}, the part of this {'machine' if task.tasks > 1 else who}; once "
            f"every {who} is over: lowtide learn {folder.parent}"
        )


def show_runs(rows: list[dict[str, Any]]) -> None:
    """Print what each run came to, as a table."""
    from lowtide.certainty import marks_for
    from lowtide.units import format_number

    def lacking(row: dict[str, Any]) -> str:
        # Where nothing was measured at all, nothing is known of what lacks either.
        return marks_for(partial=(row["missing_s"] or 0) > 0)

    def at_least(key: str, heading: str, show: Callable[[float], str] | None = None) -> Column:
        """Return a column that says of what part of the time is lacking."""
        return Column(key, heading, show, marks=lacking)

    paid = []
    if any(row.get("carbon_g") is not None for row in rows):
        paid.append(at_least("carbon_g", "CO2e"))
    if any(row.get("cost") is not None for row in rows):
        currency = next(row["currency"] for row in rows if row["cost"] is not None)
        paid.append(at_least("cost", f"cost, {currency}", format_number))
    print_rows(
        (
            Column("run", "run"),
            Column("duration_s", "elapsed"),
            at_least("energy_j", "energy"),
            Column("mean_w", "mean W", "{:.1f}".format),
            *paid,
            Column("power", "power"),
            Column("events", "events"),
            Column("exit_status", "exit"),
        ),
        rows,
    )
    if paid and any(row["synthetic"] for row in rows):
        say("The grid is synthetic: no kWh of it was ever drawn.")


def _next_step(rows: list[dict[str, Any]], folder: Path) -> str:
    """Return what can be done with a recording; nothing where nothing can."""
    known = [row for row in rows if row["energy_j"] is not None and row["energy_j"] > 0]
    if any(_is_learnable(row) for row in known):
        return f"; next: lowtide learn {folder}"
    kinds = {row["kind"] for row in known}
    if not kinds:
        return ""
    if kinds == {"idle"}:
        return "; it has the idle machine alone: lowtide measure -- PROGRAM measures a program"
    if kinds & {"stop", "kill", "resume", "startup"}:
        return (
            "; to learn from it takes an uninterrupted run as well: lowtide measure -o full -- "
            f"PROGRAM, then lowtide learn full {folder}"
        )
    return "; a profile is learned from a run that ends by itself, with exit code 0"


def _is_learnable(row: dict[str, Any]) -> bool:
    """Return whether `lowtide learn` takes a run for an uninterrupted one."""
    return (
        row["kind"] == "full"
        and row["exit_status"] in (None, 0)
        and row["sampled"] > 1
        and not any(note.startswith("cut short") for note in row["notes"])
    )


def mark(
    name: Annotated[str, typer.Argument(help="What begins now, such as epoch_1.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="A later start can resume from here.")
    ] = False,
    form: Form = TABLE,
) -> None:
    """Mark a moment of a program that `lowtide measure` runs.

    Outside of one nothing is marked, so that scripts can keep their marks.
    """
    from lowtide.marks import mark as set_mark

    marked = set_mark(name, checkpoint=checkpoint)
    facts = {"mark": name, "checkpoint": checkpoint, "marked": marked}
    words = f"marked {name}" if marked else f"nobody is recording: {name} was not marked"
    form.print(
        [facts],
        columns=(Column("mark"), Column("marked")),
        document=facts,
        show=lambda: print(words),
    )
