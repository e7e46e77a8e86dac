"""Where the runs of a sweep are run: in processes here, on Dask, or on Dask on Slurm.

An engine runs many runs and tells of each as it ends; being ended in the midst loses nothing that
is done. Here each worker has a pipe of its own and answers in order, so it is always known which
run a worker that died was at. It is told its next run while it is still at one, so it need not
wait for us.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from lowtide import compiled
from lowtide.errors import InvalidInput, LowtideError, UnknownName
from lowtide.interruption import is_interrupt
from lowtide.registry import place_of
from lowtide.units import format_count

# How often a run is tried again whose worker died: machines fail, and so do programs.
RETRIES = 2

RunFunction = Callable[[dict[str, Any]], dict[str, Any]]


class Task(NamedTuple):
    """A run that is to be run."""

    id: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        row: Its numbers; None if it failed.
        reason: Why it failed; empty if it did not.
        wall_s: How long it took; None where nobody was left to tell.
        attempts: How often it was begun.
    """

    id: str
    row: dict[str, Any] | None = None
    reason: str = ""
    wall_s: float | None = None
    attempts: int = 1


Outcomes = Generator[Outcome, None, None]


class Engine(Protocol):
    """Anything that runs many runs."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def run(self, function: RunFunction, tasks: Sequence[Task]) -> Outcomes:
        """Run every task, and yield how each ended, as it ends.

        A run that raises has failed. One whose worker dies is tried again, and has failed if its
        workers keep dying; the others go on. A KeyboardInterrupt thrown in brings out what is
        finished, and then ends it. When it has ended no worker is left.

        Args:
            function: Turns the parameters of a run into its numbers; it can be imported.
            tasks: The runs, each id once.
        """
        ...


def attempt(function: RunFunction, task: Task, attempts: int = 1) -> Outcome:
    """Run one run here; whatever it raises is how it ended.

    Args:
        attempts: Which attempt this is, counted from 1.
    """
    clock = perf_counter()
    row, reason = None, ""
    try:
        row = function(task.parameters)
    except LowtideError as error:
        reason = str(error)
    except (Exception, SystemExit) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        where = place_of(error)
        reason = f"{'' if where is None else f'{where}: '}{type(error).__name__}: {error}"
    wall_s = perf_counter() - clock
    return Outcome(id=task.id, row=row, reason=reason, wall_s=wall_s, attempts=attempts)


ENGINES = ("local", "dask", "slurm")

_SLURM_WORKERS = 4
# What can be said of the jobs that are workers on Slurm.
SLURM_KEYS = ("account", "cores", "host", "memory", "queue", "walltime")


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    address: str | None = None,
    slurm: Mapping[str, str] | None = None,
    folder: Path | str = ".",
) -> Engine:
    """Return an engine by its name.

    Args:
        name: `local`, `dask` or `slurm`.
        workers: How many runs at the same time; None for what the engine takes by default.
        address: The scheduler of a Dask cluster that is already there.
        slurm: What Slurm's jobs shall have: cores, memory, walltime, queue, account, host.
        folder: Where Slurm's workers find their keys and leave their logs meanwhile.

    >>> make_engine("local", workers=2)
    Local(workers=2, retries=2, name='local')
    """
    # Engines on Dask are built on this module.
    from lowtide.studies.dask import OnDask, OnSlurm

    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if address is not None and name != "dask":
        raise InvalidInput(f"--address is for --engine dask, not {name}: leave it out")
    if slurm and name != "slurm":
        raise InvalidInput(f"--slurm is for --engine slurm, not {name}: leave it out")
    if name == "local":
        return Local(workers=workers)
    if name == "dask":
        return OnDask(workers=workers, address=address)
    said = dict(slurm or {})
    for key in said:
        if key not in SLURM_KEYS:
            raise UnknownName("key of --slurm", key, SLURM_KEYS)
    cores = said.pop("cores", "1")
    if not cores.isdecimal():
        raise InvalidInput(f"--slurm cores is a whole number, not {cores!r}")
    engine = OnSlurm(
        workers=_SLURM_WORKERS if workers is None else workers,
        cores=int(cores),
        folder=Path(folder),
    )
    return replace(engine, **said)  # type: ignore[arg-type]


# A worker holds the run it is at and the next one.
_AT_HAND = 2
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Processes on this machine.

    Attributes:
        workers: How many; 1 runs everything in this process, None takes a worker per core.
        retries: How often a run is tried again whose process died.
    """

    workers: int | None = None
    retries: int = RETRIES
    name: str = field(default="local", init=False)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InvalidInput(f"a sweep needs at least 1 worker, not {self.workers}")

    def run(self, function: RunFunction, tasks: Sequence[Task]) -> Outcomes:
        """Run every task, and yield how each ended, as it ends."""
        workers = count_cores() if self.workers is None else self.workers
        if workers == 1:
            return (attempt(function, task) for task in tasks)
        return _in_processes(function, tasks, min(workers, len(tasks)), self.retries)


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Let processes and threads that are begun meanwhile not hear Ctrl-C.

    A terminal sends it to every process; when to stop is for the first one to say.
    """
    # Where multiprocessing begins this helper of its own accord, it lets Ctrl-C in again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A process that runs one run after the other."""

    def __init__(self, function: RunFunction) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, function), daemon=True
        )
        with deaf_to_interrupts():
            self.process.start()
        theirs.close()
        self.ready = False
        self.tasks: deque[Task] = deque()

    def give(self, task: Task, attempts: int) -> None:
        """Hand over a run; if the worker is dead, that is found out when its answer is awaited."""
        self.tasks.append(task)
        with suppress(OSError):
            self.pipe.send((task, attempts))

    def answers(self) -> Iterator[Outcome]:
        """Yield what it has answered by now."""
        while self.pipe.poll():
            try:
                outcome = self.pipe.recv()
            except (EOFError, OSError):
                # No more can come of it; a process that only lost its pipe is as good as dead.
                self.process.join(_PATIENCE_S)
                self.process.kill()
                self.process.join()
                return
            if outcome is None:
                self.ready = True
                continue
            if isinstance(outcome, str):
                compiled.tell(outcome)
                continue
            self.tasks.popleft()
            yield outcome

    def end(self) -> None:
        """End the process, whatever it is at."""
        self.pipe.close()
        self.process.terminate()
        self.process.join(_PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection, function: RunFunction) -> None:
    """Answer one run after the other until there are no more; this is what a worker does."""
    compiled.tell = pipe.send
    try:
        pipe.send(None)
        while True:
            task, attempts = pipe.recv()
            outcome = attempt(function, task, attempts)
            try:
                pipe.send(outcome)
            except (TypeError, AttributeError, ValueError) as error:
                reason = f"its numbers cannot be sent back: {error}"
                pipe.send(Outcome(id=task.id, reason=reason, attempts=attempts))
    except (EOFError, OSError):
        return  # whoever asked is gone


def _in_processes(
    function: RunFunction, tasks: Sequence[Task], count: int, retries: int
) -> Outcomes:
    waiting, deaths = deque(tasks), Counter[str]()
    workers: list[_Worker] = []
    left = len(tasks)
    proven = False
    try:
        workers += [_Worker(function) for _ in range(count)]
        while left:
            for worker in workers:
                while worker.ready and waiting and len(worker.tasks) < _AT_HAND:
                    task = waiting.popleft()
                    worker.give(task, deaths[task.id] + 1)
            heard = set(wait([sign for each in workers for sign in _signs(each)]))
            for worker in [each for each in workers if not heard.isdisjoint(_signs(each))]:
                for outcome in worker.answers():
                    left -= 1
                    yield outcome
                proven = proven or worker.ready
                if worker.process.is_alive():
                    continue
                if not proven:
                    raise LowtideError(
                        f"worker processes cannot begin, {_manner(worker.process)}: a script that "
                        'sweeps does so below if __name__ == "__main__":'
                    )
                workers.remove(worker)
                failed = _bury(worker, waiting, deaths, retries)
                if failed is not None:
                    left -= 1
                    yield failed
                if left:
                    workers.append(_Worker(function))
    except KeyboardInterrupt:
        # What has been finished is not lost.
        for worker in workers:
            yield from worker.answers()
        raise
    finally:
        for worker in workers:
            worker.end()


def _signs(worker: _Worker) -> tuple[Any, ...]:
    """Return what tells that a worker has answered or died."""
    return worker.pipe, worker.process.sentinel


def _bury(
    worker: _Worker, waiting: deque[Task], deaths: Counter[str], retries: int
) -> Outcome | None:
    """Give back what a dead worker had at hand; return how its run ended if it ends here."""
    worker.process.join()
    worker.pipe.close()
    at = worker.tasks.popleft() if worker.tasks else None
    waiting.extendleft(reversed(worker.tasks))
    if at is None:
        return None
    deaths[at.id] += 1
    if deaths[at.id] <= retries:
        waiting.append(at)
        return None
    times = format_count(deaths[at.id], "time")
    reason = f"its process died {times}, at last {_manner(worker.process)}"
    return Outcome(id=at.id, reason=reason, attempts=deaths[at.id])


def _manner(process: BaseProcess) -> str:
    """Return how a process ended."""
    code = process.exitcode or 0
    if code >= 0:
        return f"by exit code {code}"
    name = signal.Signals(-code).name
    hint = ": is there enough memory?" if -code == signal.SIGKILL else ""
    return f"by {name}{hint}"
