"""Running a program while its power is written down.

A plan of steps is run one after the other: whole runs, runs that are stopped or killed at a mark
and then resumed, idle time. Whatever happens to the program, the recording stays.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from lowtide.errors import InvalidInput
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.marks import EVENTS_VARIABLE, RUN_VARIABLE
from lowtide.measuring.machine import machine_facts
from lowtide.measuring.sampler import Sampler
from lowtide.monitor.processes import ProcessTree

# How long a program that was told to stop may take to.
_STOP_S = 30.0
# prctl: orphans of the program become children of this process, and so stay in its tree.
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of a plan.

    Attributes:
        kind: One of `recording.KINDS`.
        command: What is run; empty for idle time.
        pair: What it shares with the run it belongs to.
        stop_mark: The mark at which it is ended before its time.
        stop_delay_s: How long after that mark.
        with_signal: How it is ended: SIGTERM to stop, SIGKILL to kill.
        before: A shell command that is run first, unmeasured: to remove checkpoints, for example.
    """

    kind: str
    command: Sequence[str] = ()
    pair: str | None = None
    stop_mark: str | None = None
    stop_delay_s: float = 0.0
    with_signal: signal.Signals = signal.SIGTERM
    before: str = ""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Measures the steps of a plan.

    Attributes:
        writer: Where samples and events go.
        sampler: The meters, open.
        interval_s: Time between samples.
        idle_s: Idle time that is measured before and after each run.
        patterns: Regular expressions on the program's output, each with the label of its event;
            where one has a group, that is put in place of `{}` in the label.
        say: Told what happens, line by line.
    """

    writer: RecordingWriter
    sampler: Sampler
    interval_s: float = 0.1
    idle_s: float = 30.0
    patterns: Sequence[tuple[re.Pattern[str], str]] = ()
    say: Callable[[str], None] = print
    _next: float = field(default=0.0, init=False)
    _seen: int = field(default=0, init=False)

    def run(
        self, name: str, step: Step, *, facts: Mapping[str, object] | None = None
    ) -> int | None:
        """Measure one run; return the program's exit status, None for idle time.

        Args:
            name: What the run is called.
            step: What is to be run.
            facts: More to keep about the machine.
        """
        if step.before:
            subprocess.run(step.before, shell=True, check=False)  # noqa: S602 - the user's own words
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
        self._next = time.monotonic()
        spent_s, clock = self.sampler.cpu_s, time.monotonic()
        status: int | None = None
        try:
            if step.kind == "idle":
                self.writer.start(self.sampler.now())
                self._sample_for(self.idle_s)
                self.writer.end(self.sampler.now())
            else:
                self._sample_for(self.idle_s)
                status = self._run_program(name, step)
                self._sample_for(self.idle_s)
        finally:
            took = time.monotonic() - clock
            share = (self.sampler.cpu_s - spent_s) / took if took > 0 else 0.0
            self.writer.describe({"sampling_cpu_share": round(share, 5)})
            for note in self.sampler.notes:
                self.writer.note(note)
            self.sampler.notes.clear()
        return status

    def _run_program(self, name: str, step: Step) -> int:
        adopt_orphans()
        environment = {
            **os.environ,
            EVENTS_VARIABLE: str((self.writer.folder / "events.csv").resolve()),
            RUN_VARIABLE: name,
            "PYTHONUNBUFFERED": "1",
        }
        heard = bool(self.patterns)
        pipe = subprocess.PIPE if heard else None
        started = self.sampler.now()
        try:
            program = subprocess.Popen(  # noqa: S603 - what the user asked to run
                list(step.command), env=environment, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            self.writer.start(started)
            self.writer.note(f"the program could not be started: {error.strerror}")
            self.writer.end(self.sampler.now(), exit_status=127)
            self.say(f"{step.command[0]}: {error.strerror}")
            return 127
        self.writer.start(started)
        listeners = self._listen(program) if heard else []
        tree = ProcessTree(root=program.pid)
        try:
            status = self._until_end(name, program, tree, step)
        except KeyboardInterrupt:
            # The terminal has told the program too; it gets a while to end by itself.
            self.writer.note("interrupted by the user")
            status = _ended(program, signal.SIGINT)
            self.writer.end(self.sampler.now(), exit_status=status)
            raise
        finally:
            tree.close()
            for listener in listeners:
                listener.join(timeout=2)
            for pipe_end in (program.stdout, program.stderr):
                if pipe_end is not None:
                    pipe_end.close()
        self.writer.end(self.sampler.now(), exit_status=status)
        if status < 0:
            self.writer.note(f"ended by {signal.Signals(-status).name}")
        return status

    def _until_end(
        self, name: str, program: subprocess.Popen[bytes], tree: ProcessTree, step: Step
    ) -> int:
        stop_at: float | None = None
        while program.poll() is None:
            self._take(tree)
            if step.stop_mark and stop_at is None and self._marked(name, step.stop_mark):
                stop_at = time.monotonic() + step.stop_delay_s
            if stop_at is not None and time.monotonic() >= stop_at:
                self.writer.mark(self.sampler.now(), f"{step.kind} by {step.with_signal.name}")
                return _ended(program, step.with_signal)
            self._wait()
        if step.stop_mark and stop_at is None:
            self.writer.note(f"the program ended before the mark {step.stop_mark!r} came")
        return program.returncode

    def _marked(self, run: str, label: str) -> bool:
        """Return whether a run has set a mark since this was last asked."""
        path = self.writer.folder / "events.csv"
        with path.open("rb") as file:
            file.seek(self._seen)
            text = file.read()
        # What follows the last line's end is being written.
        whole = text[: text.rfind(b"\n") + 1]
        self._seen += len(whole)
        # Other runs of the recording set marks of the same name.
        rows = csv.reader(whole.decode(errors="replace").splitlines())
        return any(row[1:3] == [run, label] for row in rows)

    def _listen(self, program: subprocess.Popen[bytes]) -> list[threading.Thread]:
        """Pass the program's output on, and mark what the patterns find in it."""

        def copy(source: IO[bytes], sink: IO[str]) -> None:
            for line in source:
                text = line.decode(errors="replace")
                sink.write(text)
                sink.flush()
                for pattern, label in self.patterns:
                    if match := pattern.search(text):
                        found = match.group(1) if pattern.groups else ""
                        self.writer.mark(self.sampler.now(), label.replace("{}", found))

        threads = []
        for source, sink in ((program.stdout, sys.stdout), (program.stderr, sys.stderr)):
            if source is not None:
                threads.append(threading.Thread(target=copy, args=(source, sink), daemon=True))
                threads[-1].start()
        return threads

    def _sample_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._take(None)
            self._wait()

    def _take(self, tree: ProcessTree | None) -> None:
        sample = self.sampler.sample(tree)
        if sample is not None:
            self.writer.append(sample.time, sample.power_w, sample.columns)

    def _wait(self) -> None:
        """Wait for the next sample's time; one that was missed is not made up for."""
        self._next += self.interval_s
        left = self._next - time.monotonic()
        if left > 0:
            time.sleep(left)
        else:
            self._next = time.monotonic()


def plan(
    experiment: str,
    command: Sequence[str],
    *,
    repeat: int = 1,
    resume: Sequence[str] = (),
    stop_mark: str | None = None,
    stop_delay_s: float = 0.0,
    before: str = "",
) -> list[tuple[str, Step]]:
    """Return the named runs of an experiment.

    Args:
        experiment: `full`, `stop-resume`, `kill-resume`, `startup` or `idle`.
        command: What is run.
        repeat: How often the whole is repeated.
        resume: What is run to resume; by default the same command.
        stop_mark: The mark at which a run is ended before its time.
        stop_delay_s: How long after that mark.
        before: A shell command that is run before each run but resumptions.
    """
    known = ("full", "stop-resume", "kill-resume", "startup", "idle")
    if experiment not in known:
        raise InvalidInput(f"an experiment is one of {', '.join(known)}, not {experiment!r}")
    if experiment not in ("full", "idle") and not stop_mark:
        raise InvalidInput(f"{experiment} needs to know where to stop: --stop-after-mark NAME")
    if experiment != "idle" and not command:
        raise InvalidInput("say what to run: lowtide measure -- python train.py")
    steps: list[tuple[str, Step]] = []
    for number in range(repeat):
        if experiment == "idle":
            steps.append((f"idle_{number}", Step(kind="idle")))
            continue
        if experiment == "full":
            steps.append((f"full_{number}", Step(kind="full", command=command, before=before)))
            continue
        kind = {"stop-resume": "stop", "kill-resume": "kill", "startup": "startup"}[experiment]
        pair = None if kind == "startup" else f"{kind}_{number}"
        first = Step(
            kind=kind,
            command=command,
            pair=pair,
            stop_mark=stop_mark,
            stop_delay_s=stop_delay_s,
            with_signal=signal.SIGKILL if kind == "kill" else signal.SIGTERM,
            before=before,
        )
        steps.append((f"{kind}_{number}", first))
        if pair is not None:
            again = Step(kind="resume", command=resume or command, pair=pair)
            steps.append((f"resume_after_{pair}", again))
    return steps


def adopt_orphans() -> None:
    """Make orphans of the programs run here children of this process, where the kernel can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _ended(program: subprocess.Popen[bytes], how: signal.Signals) -> int:
    """End a program and all its children; return its exit status."""
    tree = ProcessTree(root=program.pid)
    tree.usage()
    tree.close()
    if how is not signal.SIGINT:
        for pid in tree.pids if how is signal.SIGKILL else [program.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
    try:
        return program.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        for pid in tree.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return program.wait()
