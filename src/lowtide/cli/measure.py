"""`lowtide measure`: run a program and write down what it draws."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.options import AsJson, Parsable
from lowtide.cli.output import print_json, print_parsable, print_table, say


def measure(
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
    repeat: Annotated[int, typer.Option(min=1, help="How often to run it.")] = 1,
    cooldown: Annotated[float, typer.Option(min=0.0, help="Seconds to wait between runs.")] = 10.0,
    idle: Annotated[
        float, typer.Option(min=0.0, help="Seconds of idle time to measure before and after.")
    ] = 5.0,
    experiment: Annotated[
        str,
        typer.Option(
            help="What to do: full, stop-resume, kill-resume, startup (until a mark), idle."
        ),
    ] = "full",
    stop_after_mark: Annotated[
        str | None, typer.Option(help="The mark at which a run is stopped or killed.")
    ] = None,
    stop_delay: Annotated[float, typer.Option(min=0.0, help="Seconds after that mark.")] = 0.0,
    resume: Annotated[
        str | None, typer.Option(help="The command that resumes.  [default: the same]")
    ] = None,
    before: Annotated[
        str, typer.Option(help="A shell command to run first, unmeasured: 'rm -rf checkpoints'.")
    ] = "",
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            help="LABEL=REGEX: a line of output that matches is an event; {} in the label stands "
            "for the first group.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder to write.  [default: recording-DATE-TIME]"),
    ] = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Run a program, measure what it draws and uses, and keep it as a recording.

    Without any meter the power is estimated from CPU use, and everything says so. The recording is
    whole at every moment: a kill loses at most the last ten seconds.
    """
    import shlex
    import time

    from lowtide.formats.recording_folder import read as read_recording
    from lowtide.formats.recording_writer import RecordingWriter
    from lowtide.measuring import Recorder, Sampler, choose_meters
    from lowtide.measuring.recorder import plan

    steps = plan(
        experiment,
        command or [],
        repeat=repeat,
        resume=shlex.split(resume) if resume else (),
        stop_mark=stop_after_mark,
        stop_delay_s=stop_delay,
        before=before,
    )
    patterns = [_pattern(each) for each in event or []]
    sampler = Sampler(meters=choose_meters(meter or []))
    sampler.open()
    folder = out or Path(f"recording-{time.strftime('%Y%m%d-%H%M%S')}")
    status: int | None = 0
    try:
        with RecordingWriter(folder) as writer:
            recorder = Recorder(
                writer=writer,
                sampler=sampler,
                interval_s=interval,
                idle_s=idle if experiment != "idle" else max(idle, 1.0),
                patterns=patterns,
                say=_tell,
            )
            _tell(f"Reading {'; '.join(sampler.names)} every {interval:g} s")
            for number, (name, step) in enumerate(steps):
                if number:
                    time.sleep(cooldown)
                _tell(f"{name} ({number + 1} of {len(steps)})")
                status = recorder.run(name, step)
                if status:
                    _tell(f"{name} exited with {status}; its recording is kept")
    except KeyboardInterrupt:
        _tell(f"Interrupted; what was measured until then is in {folder}")
        status = 130
    finally:
        sampler.close()
    recording = read_recording(folder)
    rows = [
        {
            "run": run.id,
            "kind": run.kind,
            "duration_s": run.duration_s,
            "energy_j": run.energy_j(),
            "mean_w": run.mean_w,
            "power": run.power,
            "events": len(run.events),
            "exit_status": run.exit_status,
            "sampling_cpu_share": run.machine.get("sampling_cpu_share"),
            "notes": list(run.notes),
        }
        for run in recording
    ]
    if as_json:
        print_json({"folder": str(folder), "runs": rows})
    elif parsable:
        header = [name for name in rows[0] if name != "notes"]
        print_parsable(
            header,
            [["" if row[name] is None else str(row[name]) for name in header] for row in rows],
        )
    else:
        _show(rows, folder)
    if status:
        raise typer.Exit(status if 0 < status < 256 else 1)


def _tell(text: str) -> None:
    """Say how it goes, to people: stdout belongs to the program and the result."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


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


def _show(rows: list[dict[str, object]], folder: Path) -> None:
    from lowtide.units import format_duration, format_energy

    print_table(
        ("run", "elapsed", "energy", "mean W", "power", "events", "exit"),
        [
            [
                str(row["run"]),
                format_duration(float(str(row["duration_s"]))),
                format_energy(float(str(row["energy_j"]))),
                f"{float(str(row['mean_w'])):.1f}",
                str(row["power"]),
                str(row["events"]),
                "---" if row["exit_status"] is None else str(row["exit_status"]),
            ]
            for row in rows
        ],
    )
    for row in rows:
        for note in row["notes"] if isinstance(row["notes"], list) else []:
            say(f"{row['run']}: {note}")
    say(f"Kept in {folder}; next: lowtide learn {folder}")
