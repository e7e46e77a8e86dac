"""Carrying a load plan out: processes that start together, keep time, and leave nothing behind.

What became of it: levels asked for and reached, and how punctual its steps were.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from lowtide.errors import FileProblem, InvalidInput, LowtideError
from lowtide.marks import mark
from lowtide.signal import FloatArray
from lowtide.stress.loads import gpu_cure, gpu_library
from lowtide.stress.plan import LoadPlan
from lowtide.stress.worker import Orders, WorkerReport

# The job that a process belongs to, in its environment.
JOB_VARIABLE = "LOWTIDE_JOB_ID"
# The mark that ends the last step.
END_MARK = "stress_end"
# One process seldom draws all that the memory gives; one in four cores does, with room to spare.
_CORES_PER_COPYING = 4
# Importing a GPU's library can take long; nothing else does.
_READY_S = 120.0
# How long after the last step answers are waited for.
_ANSWER_S = 1.0
_LOOK_S = 0.5
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")

# What each part's work is counted in.
UNITS = {"cpu": "operations", "memory": "bytes", "disk": "bytes", "gpu": "operations"}


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A process that bears a part, as seen from here."""

    part: str
    process: subprocess.Popen[bytes]
    input: IO[bytes]
    output: IO[bytes]

    def tell(self, line: str) -> None:
        # One that has ended says why in its answer.
        with suppress(BrokenPipeError):
            self.input.write(line.encode() + b"\n")
            self.input.flush()

    def answer(self, until: float) -> dict[str, Any] | None:
        """Return what it says next, None if it says nothing until then."""
        left_s = max(until - time.monotonic(), 0.0)
        if not select.select([self.output], [], [], left_s)[0]:
            return None
        line = self.output.readline()
        if not line:
            raise LowtideError(
                f"a process of the {self.part} load ended by itself (exit status "
                f"{self.process.wait()}): something on this machine has killed it"
            )
        answer: dict[str, Any] = json.loads(line)
        if "path" in answer:
            raise FileProblem(answer["problem"], path=answer["path"])
        if "problem" in answer:
            raise LowtideError(answer["problem"])
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()
        with suppress(BrokenPipeError):
            self.input.close()


def carry_out(
    plan: LoadPlan,
    *,
    job_id: str | None = None,
    folder: Path | str | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> StressOutcome:
    """Load this machine as a plan says; return what was reached.

    Every step begins with a mark. However this ends, no process of the load is left.

    Args:
        job_id: The job that all processes belong to; by default that of the environment, or one
            made of the time.
        folder: Where the disk load writes; by default the system's folder for temporary files.
        told: Called at the beginning of each step with its number, counted from 0.
    """
    job_id = choose_job_id(os.environ) if job_id is None else check_job_id(job_id)
    folder = Path(tempfile.gettempdir() if folder is None else folder)
    cores = offered_cores(plan)
    if "gpu" in plan.parts and gpu_library() is None:
        raise InvalidInput(gpu_cure("neither torch nor CuPy is installed"))
    places: dict[str, list[int | None]] = {part: [None] for part in plan.parts}
    if "cpu" in places:
        places["cpu"] = list(cores)
    if "memory" in places:
        places["memory"] = [None] * max(len(cores) // _CORES_PER_COPYING, 1)
    workers: list[_Worker] = []
    try:
        with _interrupts_waiting():
            for part, on in places.items():
                workers += (_start(plan, part, core, folder, job_id) for core in on)
        ready = time.monotonic() + _READY_S
        for worker in workers:
            if worker.answer(ready) is None:
                raise LowtideError(f"the {worker.part} load is not ready after {_READY_S:g} s")
        # Late enough for the last of them to have heard of it.
        start = time.monotonic() + 0.05 + 0.001 * len(workers)
        began = time.time() + start - time.monotonic()
        for worker in workers:
            worker.tell(repr(start))
        end = start + plan.duration_s
        try:
            for number in range(len(plan)):
                _wait(start + number * plan.step_s, workers)
                mark(plan.label(number))
                told(number)
            _wait(end, workers)
        finally:
            mark(END_MARK)
        answers = [(worker.part, worker.answer(end + _ANSWER_S)) for worker in workers]
    finally:
        for worker in workers:
            worker.end()
    reports = [(part, None if said is None else WorkerReport(**said)) for part, said in answers]
    late_s = [report.late_s for _, report in reports if report is not None]
    return StressOutcome(
        job_id=job_id,
        plan=plan,
        start=began,
        parts=tuple(
            gather(part, plan, [report for of, report in reports if of == part])
            for part in plan.parts
        ),
        late_s=np.max(late_s, axis=0) if late_s else np.full(len(plan), np.nan),
        notes=tuple(_notes(plan, folder, [part for part, said in reports if said is None])),
    )


def offered_cores(plan: LoadPlan) -> list[int]:
    """Return the CPU cores that a plan loads here."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    if plan.cores is not None and plan.cores > len(cores):
        raise InvalidInput(
            f"the plan loads {plan.cores} cores, and this process may use {len(cores)}: make one "
            f"for this machine, lowtide stress plan --cores {len(cores)}"
        )
    return cores[: plan.cores]


def choose_job_id(environment: Mapping[str, str]) -> str:
    """Return the id of the job that this process runs in, or a new one made of the time.

    >>> choose_job_id({"SLURM_JOB_ID": "4711"})
    '4711'
    """
    for name in (JOB_VARIABLE, "SLURM_JOB_ID"):
        if environment.get(name):
            return environment[name]
    return f"stress-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"


def check_job_id(job_id: str) -> str:
    """Return a job id if it can be one."""
    if not re.fullmatch(r"[\w.:+-]+", job_id, flags=re.ASCII):
        raise InvalidInput(
            f"a job id is made of letters, digits and any of . _ : + -, not {job_id!r}"
        )
    return job_id


def _start(plan: LoadPlan, part: str, core: int | None, folder: Path, job_id: str) -> _Worker:
    try:
        process = subprocess.Popen(
            # -P: a file in the current folder is not taken for a library.
            [sys.executable, "-P", "-m", "lowtide.stress.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                JOB_VARIABLE: job_id,
                # A worker is one core's load: its library shall not start threads of its own.
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
            },
        )
    except OSError as error:
        raise LowtideError(
            f"a process of the {part} load cannot be started: {error.strerror} ({sys.executable})"
        ) from None
    worker = _Worker(
        part=part,
        process=process,
        input=cast(IO[bytes], process.stdin),
        output=cast(IO[bytes], process.stdout),
    )
    orders = Orders(
        part=part,
        core=core,
        step_s=plan.step_s,
        shares=(plan.of(part) / 100.0).tolist(),
        folder=str(folder),
        parent=os.getpid(),
    )
    worker.tell(json.dumps(asdict(orders)))
    return worker


@contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """Hold Ctrl-C back, here until all are started, and in what is started for good.

    The terminal sends it to all processes, and it is this one that ends the others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(until: float, workers: list[_Worker]) -> None:
    """Wait for a time, looking now and then whether a worker has something to say."""
    while (left_s := until - time.monotonic()) > 0:
        for worker in workers:
            worker.answer(0.0)
        time.sleep(min(left_s, _LOOK_S))


def _notes(plan: LoadPlan, folder: Path, silent: list[str]) -> Iterator[str]:
    for part in silent:
        yield f"a process of the {part} load gave no answer after the end and was killed"
    if "disk" in plan.parts and (kind := _file_system(folder)) in _IN_MEMORY:
        yield f"{folder} is kept in memory ({kind}): the disk load reached no disk, see --folder"


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is on, empty where that cannot be told."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found, kind = -1, ""
    for line in mounts.splitlines():
        _, point, name, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= found:
            found, kind = len(point), name
    return kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartOutcome:
    """What one part was asked for, and what it reached.

    Attributes:
        part: One of `plan.PARTS`.
        workers: How many processes bore it: one per core for `cpu`.
        asked: Levels in percent, step by step.
        got: Levels reached, NaN where a worker gave no answer.
        asked_s: Seconds of work that the levels come to, all workers together: of CPU time for
            `cpu` and `memory`, of waiting for the device for `disk` and `gpu`.
        got_s: Seconds of work done.
        cpu_s: CPU time that the part's processes took.
        done: What was done in those seconds, in `UNITS`.
    """

    part: str
    workers: int
    asked: FloatArray
    got: FloatArray
    asked_s: float
    got_s: float
    cpu_s: float
    done: float

    @property
    def off(self) -> float:
        """By how many percentage points a step is off, on average."""
        return float(np.abs(self.got - self.asked).mean())

    @property
    def rate(self) -> float:
        """What was done per second of work, NaN where nothing was."""
        return self.done / self.got_s if self.got_s > 0 else np.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StressOutcome:
    """What became of a load plan.

    Attributes:
        job_id: The job that all processes of the load belonged to.
        plan: What was carried out.
        start: When the first step began.
        parts: What became of each part.
        late_s: How long after its time each step ended, by the latest of all processes.
        notes: What is worth knowing beside.
    """

    job_id: str
    plan: LoadPlan
    start: float
    parts: tuple[PartOutcome, ...]
    late_s: FloatArray
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the outcome as a JSON document."""
        return {
            "job_id": self.job_id,
            "start": self.start,
            "steps": len(self.plan),
            "step_s": self.plan.step_s,
            "parts": {
                each.part: {
                    "workers": each.workers,
                    "asked_mean": float(each.asked.mean()),
                    "got_mean": float(each.got.mean()),
                    "mean_error": each.off,
                    "asked_s": each.asked_s,
                    "got_s": each.got_s,
                    "cpu_s": each.cpu_s,
                    "done": each.done,
                    "unit": UNITS[each.part],
                    "asked": each.asked.tolist(),
                    "got": each.got.tolist(),
                }
                for each in self.parts
            },
            "median_late_s": float(np.median(self.late_s)),
            "max_late_s": float(self.late_s.max()),
            "late_s": self.late_s.tolist(),
            "notes": list(self.notes),
        }


def gather(part: str, plan: LoadPlan, reports: Sequence[WorkerReport | None]) -> PartOutcome:
    """Put together what the workers of one part did.

    Args:
        reports: What each did, None for one that gave no answer.
    """
    asked = plan.of(part)
    unknown = np.full(len(plan), np.nan)
    worked_s = np.array([unknown if each is None else each.worked_s for each in reports])
    known = [each for each in reports if each is not None]
    whole = len(known) == len(reports)
    return PartOutcome(
        part=part,
        workers=len(reports),
        asked=asked,
        got=100.0 * worked_s.mean(axis=0) / plan.step_s,
        asked_s=float(asked.sum()) / 100.0 * plan.step_s * len(reports),
        got_s=float(worked_s.sum()),
        cpu_s=sum(each.cpu_s for each in known) if whole else np.nan,
        done=sum(each.done for each in known) if whole else np.nan,
    )
