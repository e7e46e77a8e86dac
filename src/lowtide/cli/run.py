"""`lowtide run`: run a program here when the grid is clean, and say what that came to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import marked
from lowtide.cli.deferring import NO_FORECAST, FinishBy, forecaster, read_finish, worth
from lowtide.cli.options import Profile, Time, UsualGridOptions
from lowtide.cli.output import TABLE, Column, Form, forget_unwritten, say, warn
from lowtide.errors import InvalidInput, Once
from lowtide.files import given_environment
from lowtide.units import format_duration, format_iso, format_number, format_percent, format_time

if TYPE_CHECKING:
    import signal as signals
    from contextlib import AbstractContextManager

    from lowtide.acting.driver import Driver
    from lowtide.acting.local import LocalBackend
    from lowtide.acting.reckoning import Reckoning
    from lowtide.acting.tag import Tag
    from lowtide.measuring import Recorder
    from lowtide.measuring.program import StartedProgram
    from lowtide.profile import PowerProfile
    from lowtide.recording import Run
    from lowtide.signal import Signal

_LOOK_S = 0.2


def run(
    *,
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run, after --: -- python train.py")
    ] = None,
    finish_by: FinishBy = None,
    length: Time = None,
    profile: Profile = None,
    where: UsualGridOptions,
    pause: Annotated[
        bool,
        typer.Option("--pause", help="Pause it in dirty hours; it keeps its memory meanwhile."),
    ] = False,
    pause_gpu: Annotated[
        bool,
        typer.Option(
            "--pause-gpu",
            help="Pause it, and move what it has on NVIDIA GPUs to the host meanwhile, so that "
            "they stand idle: with a driver from 570 on.",
        ),
    ] = False,
    save_on: Annotated[
        str | None,
        typer.Option(
            help="Stop it in dirty hours with this signal, USR1 for example: it saves, exits with "
            "75, and the same command goes on later.",
            metavar="SIGNAL",
        ),
    ] = None,
    min_run: Annotated[
        str, typer.Option(help="How long it works at least before it is stopped.")
    ] = "30m",
    meter: Annotated[
        list[str] | None,
        typer.Option(
            "--meter", help="A meter to read; repeat for more.  [default: all that work here]"
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between samples.")] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The recording to write.  [default: recording-DATE-...]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say when it would run, and run nothing.")
    ] = False,
    form: Form = TABLE,
) -> None:
    """Run a program on this machine when the grid is clean.

    It waits, runs and is measured, and is done by --finish-by: with -t or --profile that says how
    long it takes. Without a time to be done by, without a forecast or with any doubt it runs now.
    With --json or -P, what the program prints goes to stderr.
    """
    environment = given_environment()
    from lowtide.measuring.program import refusal

    if not command:
        raise InvalidInput("say what to run: lowtide run --finish-by +12h -- python train.py")
    if (pause or pause_gpu) and save_on:
        raise InvalidInput("a program is paused or saves: give --pause or --save-on, not both")
    if (refused := refusal(command)) is not None:
        warn(f"{refused[1]}. Nothing was run")
        raise typer.Exit(refused[0])
    job = _Job(
        finish_by=finish_by,
        length=length,
        profile=profile,
        pauses=pause or pause_gpu,
        saves=save_on is not None,
    )
    forecast = forecaster(where, until=job.deadline)
    backend, driver = job.prepared(forecast, _signal_named(save_on), min_run)
    if pause_gpu:
        _pause_gpus(backend, driver)
    job.planned(driver, forecast(time.time()))
    if dry_run:
        _tell(job, None, form=form)
        return
    shown = _Shown(job, backend, command)
    with shown.kept():
        status = _carry_out(
            job, backend, driver, shown, command, environment, meter, interval, out, form
        )
    if status:
        raise typer.Exit(128 - status if status < 0 else status)


class _Job:
    """What was asked for, and what was planned."""

    def __init__(
        self,
        *,
        finish_by: str | None,
        length: str | None,
        profile: str | None,
        pauses: bool,
        saves: bool,
    ) -> None:
        from dataclasses import replace

        from lowtide.acting.experience import LONGER
        from lowtide.cli.inputs import named_profile, parse_time_limit
        from lowtide.profile import PowerProfile

        self.now = time.time()
        self.deadline = read_finish(finish_by, self.now)
        if profile is not None and length is not None:
            raise InvalidInput("a profile says how long it takes itself: leave out -t")
        self.profile: PowerProfile | None = None
        self.run_s = 0.0
        if profile is not None:
            self.profile = named_profile(profile)
            self.run_s = LONGER * self.profile.run_s
        elif length is not None:
            self.run_s = parse_time_limit(length)
            self.profile = PowerProfile.constant(1000.0, self.run_s)
        self.knows_power = profile is not None
        if pauses and self.profile is not None:
            # It keeps its memory, and goes on where it stood.
            self.profile = replace(self.profile, restart=(), stop=())
        self.stops = pauses or saves
        self.begin = self.now
        self.why = ""
        self.reckoning: Reckoning | None = None
        self.signal: Signal | None = None
        self.missing_s: float | None = None
        self.is_late = False
        self.latest: float | None = None
        self.troubles: list[str] = []

    def prepared(
        self,
        forecast: Callable[[float], Signal | None],
        with_signal: signals.Signals | None,
        min_run: str,
    ) -> tuple[LocalBackend, Driver]:
        """Return the program's backend and its driver."""
        from lowtide.acting.driver import Driver
        from lowtide.acting.judge import Rules
        from lowtide.acting.local import LocalBackend
        from lowtide.acting.promise import Loops
        from lowtide.acting.tag import Tag, new_token
        from lowtide.acting.waits import WaitModel
        from lowtide.units import parse_duration

        known = self.profile
        tag = Tag(
            token=new_token(),
            # A job that need not be done by any time is due now.
            deadline=self.now if self.deadline is None else self.deadline,
            arrival=self.now,
            run_s=self.run_s,
            startup_s=known.startup_s if known else 0.0,
            stop_s=known.stop_s if known else 0.0,
            wait_s=0.0,
            interruptible=self.stops,
            max_starts=1000,
        )
        backend = LocalBackend(tag=tag, with_signal=with_signal)
        driver = Driver(
            backend=backend,
            forecast=forecast,
            profile=self._known,
            waits=WaitModel(unknown_s=0.0),
            # It is looked at each second, and what is done at the last moment is nearly late.
            loops=Loops(
                pass_s=1.0, requeue_s=0.0, kill_s=0.0, spare_s=min(60.0, 0.01 * self.run_s)
            ),
            rules=Rules.on_this_machine(self.run_s, parse_duration(min_run)),
        )
        return backend, driver

    def _known(self, _: Tag) -> PowerProfile | None:
        return self.profile

    def learn_pauses(self, runs: Sequence[Run], pauses: Sequence[tuple[float, float]]) -> None:
        """Learn what the program drew while it was paused, where its profile does not say."""
        from dataclasses import replace

        from lowtide.acting.reckoning import paused_and_running_w

        if self.profile is None or self.profile.suspended_power_w:
            return
        paused_w, running_w = paused_and_running_w(runs, pauses)
        # Without a profile all is told in shares of what it draws while it runs.
        scale = 1.0 if self.knows_power else self.profile.work[0].power_w / running_w
        self.profile = replace(self.profile, suspended_power_w=scale * max(paused_w, 0.0))
        if self.knows_power and paused_w >= 0.01 * running_w:
            warn(
                f"paused, it drew {paused_w:.4g} W, and was planned as if it drew nothing: write "
                f"suspended_power_w = {paused_w:.4g} into its profile"
            )

    def planned(self, driver: Driver, signal: Signal | None) -> None:
        """Let the driver decide when to begin, and say so."""
        from lowtide.acting.reckoning import Reckoning, amount
        from lowtide.schedule import Stretch

        (verdict,) = driver.turn().verdicts
        self.signal = signal
        begins = [move.at for move in verdict.moves if move.at is not None]
        self.begin = max(begins[0] if begins else self.now, self.now)
        self.latest = None if verdict.promise is None else verdict.promise.latest
        self.why = verdict.why
        if self.deadline is None:
            self.why = "no --finish-by: it runs now"
        elif self.profile is None:
            self.why = "neither -t nor --profile says how long it takes: it runs now"
        elif self.now + self.profile.run_s > self.deadline:
            late = format_duration(self.now + self.profile.run_s - self.deadline)
            self.why = f"it takes longer than is left, and will be late by {late}: it runs now"
        elif signal is None:
            self.why = f"{NO_FORECAST}: it runs now"
        if self.profile is None or signal is None:
            return
        work_s = self.profile.work_s
        plan = verdict.plan or (Stretch(start=self.now, work_s=work_s),)
        self.reckoning = Reckoning(
            planned=amount(self.profile, plan, signal),
            at_once=amount(self.profile, [Stretch(start=self.now, work_s=work_s)], signal),
        )


def _pause_gpus(backend: LocalBackend, driver: Driver) -> None:
    """Have a program taken off its GPUs when it is paused."""
    from dataclasses import replace

    from lowtide.acting.gpu_pause import TAKES, Cuda, GpuPause

    backend.gpus = GpuPause(cuda=Cuda())
    driver.loops = TAKES
    # Much memory takes long: who is still at it is not asked again.
    driver.rules = replace(driver.rules, patience_s=600.0)


def _carry_out(
    job: _Job,
    backend: LocalBackend,
    driver: Driver,
    shown: _Shown,
    command: list[str],
    environment: dict[str, str],
    meter: list[str] | None,
    interval: float,
    out: Path | None,
    form: Form,
) -> int | None:
    """Wait, run and measure; return how the program ended."""
    from lowtide.errors import LowtideError
    from lowtide.formats.recording_writer import RecordingWriter
    from lowtide.measuring import Recorder, Sampler, Step
    from lowtide.measuring.folders import new_writer
    from lowtide.meters.source import choose_meters

    # What was named and cannot be had is refused now, and not after hours of waiting.
    if meter:
        choose_meters(meter)
    writer = None if out is None else RecordingWriter(out)
    every_s = min(60.0, max(_LOOK_S, 0.01 * job.run_s))
    turns = _Turns(driver, backend, every_s, shown.tell)
    warn(_words(job))
    try:
        turns.wait()
    except BaseException:
        if writer is not None:
            writer.withdraw()
        raise
    left_out: list[str] = []
    sampler = Sampler(meters=choose_meters(meter or [], tell=left_out.append), left_out=left_out)
    try:
        sampler.open()
    except LowtideError as error:
        warn(f"{error}; it runs, and is not measured by that")
        sampler = Sampler(meters=choose_meters([]), left_out=left_out)
        sampler.open()
    status: int | None = None
    try:
        recorder = Recorder(
            writer=writer or new_writer(tell=warn),
            sampler=sampler,
            interval_s=interval,
            idle_s=0.0,
            to_stderr=not form.for_people,
            environment=environment,
            attend=turns.attend,
            say=warn,
        )
        backend.prepare()
        try:
            with recorder.heeding_signals():
                for number in range(backend.tag.max_starts):
                    kind = "full" if number == 0 else "resume"
                    status = recorder.run(f"run_{number}", Step(kind=kind, command=command))
                    if not backend.ended(status) or recorder.interrupted:
                        break
                    warn(f"saved; goes on at {format_time(backend.begin_at)}")
                    turns.wait(lambda: bool(recorder.interrupted))
                    if recorder.interrupted:
                        break
        finally:
            backend.close()
            if hangs := recorder.close():
                warn(f"the recording is not whole: {hangs}")
        if recorder.interrupted:
            status = 128 + recorder.interrupted
    finally:
        sampler.close()
    try:
        _reckon(job, backend, recorder, driver, status)
        _tell(job, recorder, form=form, status=status)
    except Exception as error:  # noqa: BLE001 - how the program ended is passed on all the same
        warn(f"what it came to cannot be shown: {error}")
    forget_unwritten()
    return status


class _Shown:
    """How the job stands, where lowtide queue looks for it."""

    def __init__(self, job: _Job, backend: LocalBackend, command: list[str]) -> None:
        import os
        import sys

        from lowtide.acting.journal import Journal
        from lowtide.acting.local_jobs import LocalJob, again

        told = "" if job.deadline is None else format_iso(job.deadline)
        self.backend, self.jobs = backend, Journal.of_user().local
        self.job = LocalJob(
            token=backend.tag.token,
            pid=os.getpid(),
            name=Path(command[0]).name,
            arrival=job.now,
            deadline=job.deadline,
            begin=job.begin,
            latest=job.latest,
            what="waits",
            why=job.why,
            again=again(sys.argv[1:], Path.cwd(), job.deadline, told),
        )

    def kept(self) -> AbstractContextManager[None]:
        """Show it for as long as this lasts."""
        return self.jobs.kept(self.job)

    def tell(self) -> None:
        """Show how it stands now, where that has changed."""
        from dataclasses import replace

        backend = self.backend
        what = "paused" if backend.is_paused else "runs" if backend.runs_now else "waits"
        begin = self.job.begin if what == "runs" else backend.begin_at
        job = replace(self.job, what=what, begin=begin)
        if job != self.job:
            self.job = job
            self.jobs.put(job)


class _Turns:
    """The driver's turns, taken beside whatever else is done."""

    def __init__(
        self, driver: Driver, backend: LocalBackend, every_s: float, tell: Callable[[], None]
    ) -> None:
        self.driver, self.backend, self.every_s = driver, backend, every_s
        self._tell = tell
        self._next = time.monotonic() + every_s
        self._program: StartedProgram | None = None
        self._once = Once()
        self._troubles = 0

    def wait(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until the program is due."""
        while not self.backend.is_due and not is_over():
            self._tell()
            self._turn()
            left_s = self.backend.begin_at - time.time()
            time.sleep(min(_LOOK_S, max(left_s, 0.01)))

    def attend(self, program: StartedProgram) -> None:
        """Look after a program that runs, or is paused."""
        if program is not self._program:
            self._program = program
            self.backend.started(program)
        # Whatever becomes of the rest, what is paused goes on when its time has come.
        paused = self.backend.is_paused
        self.backend.attend()
        while self._troubles < len(self.backend.troubles):
            warn(self.backend.troubles[self._troubles])
            self._troubles += 1
        if program.asked:
            return
        self._turn()
        self._tell()
        if paused and not self.backend.is_paused:
            warn("goes on")
        elif not paused and self.backend.is_paused:
            warn(f"paused until {format_time(self.backend.begin_at)}")

    def _turn(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.every_s
        turn = self.driver.turn()
        deaf = [deed.verdict.why for deed in turn.deeds if deed.verdict.what == "runs"]
        for problem in (*turn.problems, *(deed.problem for deed in turn.deeds), *deaf):
            if problem and self._once.is_new(problem):
                warn(problem)


def _signal_named(name: str | None) -> signals.Signals | None:
    import signal as signals

    if name is None:
        return None
    word = name.upper().removeprefix("SIG")
    known = [each for each in signals.Signals if each.name == f"SIG{word}"]
    if not known or known[0] in (signals.SIGKILL, signals.SIGSTOP):
        raise InvalidInput(f"--save-on takes a signal that a program can hear, not {name!r}: USR1")
    return known[0]


def _words(job: _Job) -> str:
    """Return when it begins, why, and what that is worth."""
    wait_s = job.begin - job.now
    when = f"begins {format_time(job.begin)}, in {format_duration(wait_s)}" if wait_s > 1 else ""
    unit = None
    if job.knows_power and job.signal is not None:
        unit = job.signal.currency if job.signal.kind == "price" else "g"
    value = worth(job.reckoning, unit, "running now") if job.reckoning else ""
    return "; ".join(filter(None, (when, job.why, value)))


def _reckon(
    job: _Job, backend: LocalBackend, recorder: Recorder, driver: Driver, status: int | None
) -> None:
    from dataclasses import replace

    from lowtide.acting.reckoning import Reckoning, amount, measured

    # The grid as it came to be, as far as is known by now.
    signal = driver.forecast(time.time()) or job.signal
    job.troubles = backend.troubles
    if signal is None:
        return
    known = job.reckoning or Reckoning()
    recording = recorder.writer.recording()
    # What a start drew that nobody measured is not known: the sum of the others is not the job's.
    lacks = recording.unmeasured or any(math.isnan(run.energy_j()) for run in recording)
    runs = [] if lacks else recording.runs
    job.missing_s = sum(run.missing_s for run in runs) if runs else None
    if backend.pauses and runs:
        job.learn_pauses(runs, backend.pauses)
    replayed = amount(job.profile, backend.runs, signal) if job.profile else None
    job.signal = signal
    ended = max((run.end for run in recording.runs), default=time.time())
    job.is_late = job.deadline is not None and ended > job.deadline
    job.reckoning = replace(
        known,
        replayed=replayed,
        measured=measured(runs, signal),
        counts=not status and not job.is_late,
    )


def _tell(job: _Job, recorder: Recorder | None, *, form: Form, status: int | None = None) -> None:
    """Print plan, replay and measurement beside each other."""
    known, unit = job.reckoning, ""
    if job.signal is not None:
        unit = job.signal.currency if job.signal.kind == "price" else "g"
    # Without known watts only shares can be told.
    scale = known is not None and not job.knows_power
    row: dict[str, Any] = {
        "begin": format_iso(job.begin),
        "finish_by": None if job.deadline is None else format_iso(job.deadline),
        "why": job.why,
        "planned": None if known is None or scale else known.planned,
        "replayed": None if known is None or scale else known.replayed,
        "at_once": None if known is None or scale else known.at_once,
        "measured": None if known is None else known.measured,
        "unit": unit,
        "planned_saving": None if known is None else known.planned_saving,
        "saving": None if known is None else known.saving,
        "exit_status": status,
        "folder": None if recorder is None else str(recorder.writer.folder),
        "synthetic": job.signal is not None and job.signal.synthetic,
        "missing_s": job.missing_s,
        "pause_problem": "; ".join(job.troubles) or None,
    }

    def show() -> None:
        if recorder is None:
            say(_words(job))
            return
        lacks = {"measured": bool(job.missing_s)}
        parts = [
            f"{name.replace('_', ' ')} "
            f"{marked(format_number(row[name]), partial=lacks.get(name, False))} {unit}"
            for name in ("planned", "replayed", "measured", "at_once")
            if row[name] is not None
        ]
        if row["saving"] is not None:
            parts.append(f"saved {format_percent(row['saving'])} against running at once")
        elif job.is_late:
            parts.append("it was late: no saving is counted")
        elif row["exit_status"]:
            parts.append("it failed: no saving is counted")
        if row["synthetic"]:
            parts.append("on a synthetic grid")
        warn("; ".join([*parts, f"kept in {row['folder']}"]))

    form.print([row], columns=[Column(name) for name in row], document=row, show=show, digits=None)
