"""Running a program while its power is written down.

A plan of steps is run one after the other: whole runs, runs that are stopped or killed at a mark
and then resumed, idle time. Whatever happens to the program, the recording stays.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from lowtide.formats.recording_writer import RecordingWriter
from lowtide.marks import CLOCK_VARIABLE, EVENTS_VARIABLE, RUN_VARIABLE, clock_words
from lowtide.measuring.machine import machine_facts
from lowtide.measuring.output import Listener
from lowtide.measuring.program import Program, own_cpu_s, prepare, terminal_tells
from lowtide.measuring.sampler import Sampler
from lowtide.measuring.steps import Step
from lowtide.monitor.processes import ProcessTree

# What ends a measurement early, and is told to the program.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# However seldom samples are taken, the end of the program is seen this soon.
_LOOK_S = 0.1
# What a program leaves behind may end by itself for so long.
_LINGER_S = 0.5
_NOT_FOUND = 127


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
        say: Told what happens, line by line.
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
    say: Callable[[str], None] = print
    interrupted: signal.Signals | None = field(default=None, init=False)
    missed: str = field(default="", init=False)
    _hurried: bool = field(default=False, init=False)
    _next: float = field(default=0.0, init=False)
    _read: int = field(default=0, init=False)
    _marks: list[str] = field(default_factory=list, init=False)
    _program_s: float = field(default=0.0, init=False)

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
        """Measure one run; return the program's exit status, None where none was run.

        Args:
            name: What the run is called.
            step: What is to be run.
            facts: More to keep about the machine.
        """
        if step.before:
            prepare(step.before, to_stderr=self.to_stderr, stopped=lambda: bool(self.interrupted))
        self.writer.begin(
            name,
            kind=step.kind,
            pair=step.pair,
            power="measured" if self.sampler.measured else "estimated",
            meters=self.sampler.names,
            counted=self.sampler.counted,
            machine={**machine_facts(), **(facts or {})},
        )
        self.sampler.restart()
        self._marks.clear()
        self.missed, self._program_s = "", 0.0
        clock, spent_s = time.monotonic(), own_cpu_s()
        self._next = clock
        status: int | None = None
        try:
            if step.kind == "idle":
                self.writer.start(self.sampler.now())
                self._sample_for(self.idle_s)
                self.writer.end(self.sampler.now())
            else:
                self._sample_for(self.idle_s)
                if not self.interrupted:
                    status = self._run_program(name, step)
                self._sample_for(self.idle_s)
        finally:
            # All that this process does meanwhile, and the tools it asks, serve the sampling.
            spent_s = own_cpu_s() - spent_s - self._program_s
            share = max(spent_s, 0.0) / (time.monotonic() - clock)
            self.writer.describe({"sampling_cpu_share": round(share, 5)})
            if self.interrupted:
                self.writer.note(f"the measurement was ended by {self.interrupted.name}")
            self.sampler.conclude()
            self._tell_troubles(counts=True)
        return status

    def rest(self, seconds: float) -> None:
        """Wait without measuring, unless the measurement is to end.

        Args:
            seconds: How long.
        """
        until = time.monotonic() + seconds
        while not self.interrupted and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))

    def _run_program(self, name: str, step: Step) -> int | None:
        environment = {
            **os.environ,
            EVENTS_VARIABLE: str((self.writer.folder / "events.csv").resolve()),
            RUN_VARIABLE: name,
            CLOCK_VARIABLE: clock_words(self.sampler.clock_offset_s),
            "PYTHONUNBUFFERED": "1",
        }
        listener = None
        if self.patterns:
            listener = Listener(
                patterns=self.patterns,
                heard=lambda label: self.writer.mark(self.sampler.now(), label),
            )
        started = self.sampler.now()
        try:
            program = Program.start(
                step.command, environment=environment, listener=listener, to_stderr=self.to_stderr
            )
        except OSError as error:
            self.writer.start(started)
            self.writer.note(f"the program could not be started: {error.strerror}")
            self.writer.end(self.sampler.now(), exit_status=_NOT_FOUND)
            self.say(f"{step.command[0]}: {error.strerror}")
            return _NOT_FOUND
        self.writer.start(started)
        stopped = False
        try:
            stopped = self._follow(name, program, step)
        finally:
            # Whatever happened, nothing of the program goes on.
            program.kill()
            self._program_s = program.tree.buried_s
            self._take(program.tree)
            self.writer.end(self.sampler.now(), exit_status=program.status)
            program.close()
        for trouble in listener.troubles if listener else ():
            self.writer.note(trouble)
        if program.status is not None and program.status < 0:
            self.writer.note(f"ended by {_signal_name(-program.status)}")
        if step.stop_mark and not stopped and not self.interrupted:
            self._miss(name, step.stop_mark)
        return program.status

    def _follow(self, name: str, program: Program, step: Step) -> bool:
        """Sample until nothing of a program is left; return whether it was stopped at its mark."""
        stop_at = lonely_since = told = None
        stopped = False
        while program.poll() is None or not program.is_over():
            self._take(program.tree)
            now = time.monotonic()
            if step.stop_mark and stop_at is None and self._marked(name, step.stop_mark):
                stop_at = now + step.stop_delay_s
            if program.status is not None:
                lonely_since = lonely_since or now
            if self.interrupted and told is not self.interrupted:
                told = self.interrupted
                alone = told is signal.SIGINT and terminal_tells()
                program.ask(None if alone else told, patience_s=self.patience_s)
            elif program.status is None and stop_at is not None and now >= stop_at and not stopped:
                stopped = True
                self.writer.mark(self.sampler.now(), f"{step.kind} by {step.with_signal.name}")
                program.ask(step.with_signal, patience_s=self.patience_s)
            elif lonely_since and now >= lonely_since + _LINGER_S and not program.asked:
                self.writer.note("the program left processes behind, which were told to stop")
                program.ask(signal.SIGTERM, patience_s=self.patience_s)
            if program.insist(hurried=self._hurried):
                self.writer.note(f"what did not stop within {self.patience_s:g} s was killed")
            if program.is_stuck:
                self.writer.note("what cannot be killed is left behind")
                break
            self._wait(program)
        return stopped

    def _miss(self, name: str, label: str) -> None:
        """Say why a run was not stopped, and what was marked instead."""
        came = self._marked(name, label) or label in self._marks
        seen = ", ".join(dict.fromkeys(self._marks)) or "none"
        what = "it could be stopped at" if came else "the mark"
        self.missed = f"the program ended before {what} {label!r}{'' if came else ' came'}"
        self.missed += f"; marks seen: {seen}"
        self.writer.note(self.missed)

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

    def _take(self, tree: ProcessTree | None) -> None:
        sample = self.sampler.sample(tree)
        if sample is not None:
            self.writer.append(sample.time, sample.power_w, sample.columns)
        self._tell_troubles()

    def _tell_troubles(self, *, counts: bool = False) -> None:
        for text, earlier in self.sampler.troubles.news(counts=counts):
            self.writer.note(text, instead_of=earlier)

    def _wait(self, program: Program | None = None) -> None:
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
