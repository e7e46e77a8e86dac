"""Running a program while its power is written down.

A plan of steps is run one after the other: whole runs, runs that are stopped or killed at a mark
and then resumed, idle time. Whatever happens to the program, the recording stays.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from lowtide.files import read_or_empty
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.marks import CLOCK_VARIABLE, EVENTS_VARIABLE, RUN_VARIABLE, clock_words
from lowtide.measuring.callbacks import Step
from lowtide.measuring.output import Listener
from lowtide.measuring.program import (
    NOT_A_PROGRAM,
    NOT_FOUND,
    StartedProgram,
    own_cpu_s,
    prepare,
    refusal,
    terminal_tells,
)
from lowtide.measuring.sampler import Sample, Sampler, busy_share
from lowtide.measuring.tasks import Clocks
from lowtide.measuring.worker import Hung, Worker
from lowtide.meters import Roots
from lowtide.monitor.node import count_threads_per_core, memory_of
from lowtide.monitor.processes import ProcessTree

# What ends a measurement early, and is told to the program.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# However seldom samples are taken, the end of the program is seen this soon.
_LOOK_S = 0.1
# What a program leaves behind may end by itself for so long.
_LINGER_S = 0.5
# Sampling that takes more of a core than this is noted, unless it is over before it matters.
_MOST_SHARE, _LEAST_SPENT_S = 0.05, 0.1
# How long reading the meters and writing may take before the program is followed without.
_PATIENCE_S = 3.0
# How long the last of it may take to be written, and longer by so much for each part to be joined.
_CLOSE_S, _JOIN_S = 5.0, 0.05
# So many samples of the idle machine are looked at to tell whether it is.
_MOST_IDLE = 1000
# Samples that a hanging disk keeps waiting: some hundred megabytes.
_MOST_WAITING = 200_000

T = TypeVar("T")


def _to_stderr(text: str) -> None:
    with suppress(OSError, ValueError):
        print(f"lowtide: {text}", file=sys.stderr, flush=True)


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Measures the steps of a plan.

    Attributes:
        writer: Where samples and events go.
        sampler: The meters, open.
        interval_s: Time between samples.
        idle_s: Idle time that is measured before and after each run.
        patience_s: How long a program that was told to stop may take to.
        patterns: Regular expressions on the program's output, each with the label of its event;
            where one has a group, that is put in place of `{}` in the label.
        to_stderr: Whether what the program prints goes to stderr, because stdout is taken.
        environment: What programs find in theirs; by default what is in that of this process.
        clocks: Compares this machine's clock with those of other parts of the recording; None where
            there are none.
        attend: Called with the running program at every sample, for whoever pauses it.
        say: Told what happens, line by line.
        warn: Told what went wrong with the measuring itself, each thing once.
        watch: Told every sample while a program runs.
        interrupted: The signal that ended the measurement early, None if none did.
        missed: Why the last run was not stopped where it was to be; empty if it was.
    """

    writer: RecordingWriter
    sampler: Sampler
    interval_s: float = 0.1
    idle_s: float = 30.0
    patience_s: float = 30.0
    patterns: Sequence[tuple[re.Pattern[str], str]] = ()
    to_stderr: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clocks: Clocks | None = None
    attend: Callable[[StartedProgram], None] | None = None
    say: Callable[[str], None] = print
    warn: Callable[[str], None] = _to_stderr
    watch: Callable[[Sample], None] | None = None
    interrupted: signal.Signals | None = field(default=None, init=False)
    missed: str = field(default="", init=False)
    _hurried: bool = field(default=False, init=False)
    _next: float = field(default=0.0, init=False)
    _read: int = field(default=0, init=False)
    _marks: list[str] = field(default_factory=list, init=False)
    _program_s: float = field(default=0.0, init=False)
    _heard: deque[str] = field(default_factory=deque, init=False)
    _failures: set[str] = field(default_factory=set, init=False)
    # Meters and disks may hang for ever: neither signals nor the program's end wait for them.
    _reading: Worker = field(default_factory=Worker, init=False)
    _writing: Worker = field(default_factory=Worker, init=False)
    _left_out: int = field(default=0, init=False)
    _idle: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST_IDLE), init=False)

    def __post_init__(self) -> None:
        # A disk that is full must not stop a program that has nothing to do with it.
        self.writer.be_patient(self.warn)

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Have Ctrl-C and requests to end stop the program first, within this context."""

        def heed(number: int, _: FrameType | None) -> None:
            # Who asks twice does not want to wait.
            self._hurried = self.interrupted is not None
            self.interrupted = signal.Signals(number)

        before = {number: signal.signal(number, heed) for number in _ENDS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(
        self, name: str, step: Step, *, facts: Mapping[str, object] | None = None
    ) -> int | None:
        """Measure one run; return the program's exit status, None where none was run."""
        if step.before:
            prepare(
                step.before,
                environment=self.environment,
                to_stderr=self.to_stderr,
                stopped=lambda: bool(self.interrupted),
            )
        self._failures.clear()
        machine = self._safely("looking at the machine", machine_facts) or {}
        power = "measured" if self.sampler.measured else "estimated"
        meters, counted = self.sampler.names, self.sampler.counted
        machine = {**machine, **self.sampler.facts, **(facts or {})}
        self._write(
            "beginning the run",
            lambda: self.writer.begin(
                name,
                kind=step.kind,
                pair=step.pair,
                power=power,
                meters=meters,
                counted=counted,
                machine=machine,
            ),
        )
        self.sampler.restart(whole=step.kind == "idle")
        self._idle.clear()
        self._marks.clear()
        self._heard.clear()
        self.missed, self._program_s = "", 0.0
        clock, spent_s = time.monotonic(), own_cpu_s()
        self._next = clock
        status: int | None = None
        try:
            if step.kind == "idle":
                self._start(self.sampler.now())
                self._sample_for(self.idle_s)
                self._end(None)
            elif step.before and (refused := refusal(step.command)) is not None:
                # What was to make it has not: there is nothing to wait for.
                self._start(self.sampler.now())
                status = self._refuse(*refused)
            else:
                self._sample_for(self.idle_s)
                self._check_idle()
                if not self.interrupted:
                    status = self._run_program(name, step)
                self._sample_for(self.idle_s)
        finally:
            # All that this process does meanwhile, and the tools it asks, serve the sampling.
            spent_s = max(own_cpu_s() - spent_s - self._program_s, 0.0)
            share = spent_s / (time.monotonic() - clock)
            self._write(
                "describing the run",
                lambda: self.writer.describe({"sampling_cpu_share": round(share, 5)}),
            )
            if share > _MOST_SHARE and spent_s > _LEAST_SPENT_S:
                self._note(
                    f"the measuring itself took {100 * share:.0f} % of a core: less with a longer "
                    "--interval, fewer meters, or an --event that fewer lines match"
                )
            if self.interrupted:
                self._note(f"the measurement was ended by {self.interrupted.name}")
            self._safely("summing up", self.sampler.conclude)
            self._tell_troubles(counts=True)
            self._settle()
        return status

    def close(self) -> str:
        """Write what is left; return why that hangs, empty where it does not."""
        patience_s = _CLOSE_S + _JOIN_S * self.writer.parts
        with suppress(Hung):
            self._writing.do(
                lambda: self._safely("ending the recording", lambda: self.writer.close()),
                patience_s=patience_s,
            )
            self._writing.stop()
            return ""
        return (
            f"writing to {self.writer.folder} hangs, for {self._writing.busy_s:.0f} s by now; it "
            "has what was written before"
        )

    def escape(self, folder: Path) -> None:
        """Write what a hanging disk keeps waiting elsewhere, where `writer` then is."""
        self.writer = self.writer.elsewhere(folder)
        for action in self._writing.left():
            action()
        self.writer.close()

    def rest(self, seconds: float) -> None:
        """Wait without measuring, unless the measurement is to end."""
        until = time.monotonic() + seconds
        while not self.interrupted and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))

    def _run_program(self, name: str, step: Step) -> int | None:
        environment = {
            **self.environment,
            EVENTS_VARIABLE: self._events_path(),
            RUN_VARIABLE: name,
            CLOCK_VARIABLE: clock_words(self.sampler.clock_offset_s),
        }
        listener = None
        if self.patterns:
            # Into a pipe Python writes blocks: lines would be heard long after they were printed.
            environment.setdefault("PYTHONUNBUFFERED", "1")
            listener = Listener(
                patterns=self.patterns, heard=lambda label: self._hear(label, listener)
            )
        started = self.sampler.now()
        try:
            program = StartedProgram.start(
                step.command, environment=environment, listener=listener, to_stderr=self.to_stderr
            )
        except OSError as error:
            self._start(started)
            missing = isinstance(error, FileNotFoundError)
            return self._refuse(
                NOT_FOUND if missing else NOT_A_PROGRAM, f"{step.command[0]}: {error.strerror}"
            )
        self._start(started)
        stopped = False
        try:
            stopped = self._follow(name, program, step)
        except Exception as error:  # noqa: BLE001 - trouble of our own is none of the program's
            self._fail("following the program", error)
            self._outlast(program)
        except BaseException:
            program.kill()
            raise
        # Nothing that it left behind goes on.
        self._safely("ending what was left", program.kill)
        self._program_s = program.tree.buried_s
        self._take(program.tree)
        self._end(program.status)
        self._safely("letting go of the program", program.close)
        for trouble in listener.troubles if listener else ():
            self._note(trouble)
        if program.status is not None and program.status < 0:
            self._note(f"ended by {_signal_name(-program.status)}")
        if step.stop_mark and not stopped and not self.interrupted:
            self._miss(name, step.stop_mark)
        return program.status

    def _refuse(self, status: int, why: str) -> int:
        """Keep why a program could not be started."""
        self._note(f"the program could not be started: {why}")
        self._end(status)
        self.say(why)
        return status

    def _outlast(self, program: StartedProgram) -> None:
        """Wait for a program that can no longer be measured, and tell it what it is to be told."""
        told = None
        while True:
            try:
                if program.poll() is not None:
                    return
                if self.interrupted is not None and (told is None or self._hurried):
                    told = self.interrupted
                    program.tell(signal.SIGKILL if self._hurried else told)
            except Exception as error:  # noqa: BLE001
                self._fail("waiting for the program", error)
            time.sleep(_LOOK_S)

    def _follow(self, name: str, program: StartedProgram, step: Step) -> bool:
        """Sample until nothing of a program is left; return whether it was stopped at its mark."""
        stop_at = lonely_since = told = None
        stopped = False
        while program.poll() is None or not program.is_over():
            self._take(program.tree)
            if (attend := self.attend) is not None and program.status is None:
                self._safely("attending to the program", lambda: attend(program))
            now = time.monotonic()
            if step.stop_mark and stop_at is None and self._has_marked(name, step.stop_mark):
                stop_at = now + step.stop_delay_s
            if program.status is not None:
                lonely_since = lonely_since or now
            if self.interrupted and told is not self.interrupted:
                told = self.interrupted
                alone = told is signal.SIGINT and terminal_tells()
                program.ask(None if alone else told, patience_s=self.patience_s)
            elif program.status is None and stop_at is not None and now >= stop_at and not stopped:
                stopped = True
                self._mark(self.sampler.now(), f"{step.kind} by {step.with_signal.name}")
                program.ask(step.with_signal, patience_s=self.patience_s)
            elif lonely_since and now >= lonely_since + _LINGER_S and not program.asked:
                self._note("the program left processes behind, which were told to stop")
                program.ask(signal.SIGTERM, patience_s=self.patience_s)
            if program.insist(hurried=self._hurried):
                self._note(f"what did not stop within {self.patience_s:g} s was killed")
            if program.is_stuck:
                self._note("what cannot be killed is left behind")
                break
            self._wait(program)
        return stopped

    def _miss(self, name: str, label: str) -> None:
        """Say why a run was not stopped, and what was marked instead."""
        came = self._has_marked(name, label) or label in self._marks
        seen = ", ".join(dict.fromkeys(self._marks)) or "none"
        what = "it could be stopped at" if came else "the mark"
        self.missed = f"the program ended before {what} {label!r}{'' if came else ' came'}"
        self.missed += f"; marks seen: {seen}"
        self._note(self.missed)

    def _has_marked(self, run: str, label: str) -> bool:
        # What was heard may not be on disk yet.
        heard = [self._heard.popleft() for _ in range(len(self._heard))]
        self._marks.extend(heard)
        read = False
        with suppress(Hung):
            read = self._writing.do(
                lambda: bool(self._safely("reading marks", lambda: self._marked(run, label))),
                patience_s=_PATIENCE_S,
            )
        return read or label in heard

    def _events_path(self) -> str:
        path = self.writer.folder / "events.csv"
        try:
            return str(self._writing.do(path.resolve, patience_s=_PATIENCE_S))
        except (Hung, OSError):
            return str(path.absolute())

    def _marked(self, run: str, label: str) -> bool:
        """Return whether a run has set a mark since this was last asked."""
        path = self.writer.folder / "events.csv"
        with path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        # What follows the last line's end is being written.
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        # Other runs of the recording set marks of the same name.
        rows = csv.reader(whole.decode(errors="replace").splitlines())
        new = [row[2] for row in rows if len(row) > 2 and row[1] == run]
        self._marks.extend(new)
        return label in new

    def _sample_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.interrupted:
            self._take(None)
            self._wait()

    def warm_up(self, command: Sequence[str]) -> int:
        """Run a program to its end, unmeasured; return how it ended."""
        return prepare(
            shlex.join(command),
            environment=self.environment,
            to_stderr=self.to_stderr,
            stopped=lambda: bool(self.interrupted),
        )

    def _check_idle(self) -> None:
        """Say at once that the machine is busy while it should be idle; its notes do in the end."""
        busy = busy_share(self._idle)
        if busy is not None:
            self.say(busy)

    def _take(self, tree: ProcessTree | None) -> None:
        sample = self._safely("sampling", lambda: self._sampled(tree))
        if sample is not None and tree is None:
            self._idle.append(sample)
        elif sample is not None and (watch := self.watch) is not None:
            self._safely("showing the power", lambda: watch(sample))
        if sample is not None and self._writing.waiting > _MOST_WAITING:
            self._left_out += 1
        elif sample is not None:
            self._write(
                "keeping samples",
                lambda: self.writer.append(sample.time, sample.power_w, sample.columns),
            )
        if self.sampler.took_over:
            self.sampler.took_over = False
            self._describe_meters()
        leads = self.sampler.companions is not None and self.sampler.companions.leads
        if self.clocks is not None and leads and self.clocks.is_due(time.monotonic()):
            self._write("comparing clocks", self.clocks.compare)
        if self._writing.busy_s > _PATIENCE_S:
            self._complain(
                f"writing to {self.writer.folder} hangs; the program goes on, and what is measured "
                "is kept in memory"
            )
        self._tell_troubles()

    def _describe_meters(self) -> None:
        """Say what is measured from now on: another task of the machine measured it until now."""
        power = "measured" if self.sampler.measured else "estimated"
        meters, counted, facts = self.sampler.names, self.sampler.counted, self.sampler.facts
        self._write(
            "describing the meters",
            lambda: self.writer.measured_by(
                power=power, meters=meters, counted=counted, facts=facts
            ),
        )

    def _sampled(self, tree: ProcessTree | None) -> Sample | None:
        try:
            return self._reading.do(lambda: self.sampler.sample(tree), patience_s=_PATIENCE_S)
        except Hung:
            name = self.sampler.set_aside()
        if name:
            # Who hangs there finds out once it comes back; the others are read by somebody else.
            self._reading.stop()
            self._reading = Worker()
            self._complain(
                f"meter {name} did not answer within {_PATIENCE_S:g} s; the program goes on, and "
                "nothing is filled in until it does"
            )
        else:
            self._complain(
                f"sampling did not come back within {_PATIENCE_S:g} s; the program goes on, and "
                "nothing is measured until it does"
            )
        return None

    def _settle(self) -> None:
        """Wait until all is written, unless that hangs."""
        if self._left_out:
            self._note(f"{self._left_out} samples were left out while writing hung")
            self._left_out = 0
        with suppress(Hung):
            self._writing.do(lambda: None, patience_s=_PATIENCE_S)

    def _write(self, what: str, action: Callable[[], None]) -> None:
        """Have the writer do something, after all that it was asked to do before."""
        self._writing.post(lambda: self._safely(what, action))

    def _tell_troubles(self, *, counts: bool = False) -> None:
        for text, earlier in self.sampler.troubles.news(counts=counts):
            self._note(text, instead_of=earlier)

    def _start(self, moment: float) -> None:
        self._write("noting the start", lambda: self.writer.start(moment))

    def _end(self, status: int | None) -> None:
        moment = self.sampler.now()
        self._write("noting the end", lambda: self.writer.end(moment, exit_status=status))

    def _mark(self, moment: float, label: str) -> None:
        self._write("keeping events", lambda: self.writer.mark(moment, label))

    def _note(self, text: str, *, instead_of: str | None = None) -> None:
        self._write("keeping notes", lambda: self.writer.note(text, instead_of=instead_of))

    def _hear(self, label: str, listener: Listener | None) -> None:
        """Keep what the program was heard to say, at the time when it was said."""
        said_s = time.monotonic() if listener is None else listener.at_s
        self._heard.append(label)
        self._mark(said_s + self.sampler.clock_offset_s, label)

    def _safely(self, what: str, action: Callable[[], T]) -> T | None:
        """Do something whose failure is none of the program's business."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - no list of what may go wrong is complete
            self._fail(what, error)
            return None

    def _fail(self, what: str, error: Exception) -> None:
        """Tell once of a run what went wrong with the measuring."""
        text = f"{what} failed ({type(error).__name__}: {error}); the program goes on"
        self._complain(text, f"{what} {type(error).__name__} {getattr(error, 'errno', '')}")

    def _complain(self, text: str, kind: str = "") -> None:
        """Tell once of a run that something of a kind went wrong, by default in these words."""
        if (kind or text) in self._failures:
            return
        self._failures.add(kind or text)
        with suppress(Exception):
            self.warn(text)
        # Where notes cannot be kept either, this fails in the same way, and is not told again.
        self._note(text)

    def _wait(self, program: StartedProgram | None = None) -> None:
        """Wait for the next sample's time; one that was missed is not made up for."""
        self._next += self.interval_s
        while (left := self._next - time.monotonic()) > 0:
            pause_s = min(left, _LOOK_S)
            if program is None:
                time.sleep(pause_s)
            elif program.wait(pause_s):
                break
            if self.interrupted:
                break
        else:
            if left > -self.interval_s:
                return
        self._next = time.monotonic()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def machine_facts(roots: Roots | None = None) -> dict[str, Any]:
    """Return what kind of machine this is, and how its clocks are set; no names, no addresses."""
    roots = roots or Roots()
    memory = memory_of(read_or_empty(f"{roots.procfs}/meminfo"))
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(roots),
        "memory_bytes": int(memory["MemTotal"]) if "MemTotal" in memory else None,
        "python": platform.python_version(),
    }
    settings = roots.sysfs / "devices" / "system" / "cpu"
    for name, path in {
        "governor": settings / "cpu0" / "cpufreq" / "scaling_governor",
        "lowest_khz": settings / "cpu0" / "cpufreq" / "scaling_min_freq",
        "highest_khz": settings / "cpu0" / "cpufreq" / "scaling_max_freq",
        "turbo_off": settings / "intel_pstate" / "no_turbo",
        "boost": settings / "cpufreq" / "boost",
        "smt_active": settings / "smt" / "active",
    }.items():
        text = _line(path)
        if text:
            facts[name] = text
    facts["threads_per_core"] = count_threads_per_core(roots.sysfs)
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _cpu_model(roots: Roots) -> str:
    try:
        lines = (roots.procfs / "cpuinfo").read_text().splitlines()
    except (OSError, ValueError):
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return ""


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""
