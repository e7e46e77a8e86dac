"""What an engine is: something that runs many runs and tells of each as it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from lowtide.errors import LowtideError
from lowtide.interruption import is_interrupt

# How often a run is tried again whose worker died: machines fail, and so do programs.
RETRIES = 2

RunFunction = Callable[[dict[str, Any]], dict[str, Any]]


class Task(NamedTuple):
    """A run that is to be run.

    Attributes:
        id: What it is called.
        parameters: What its function is given.
    """

    id: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        id: Which run.
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
        reason = f"{type(error).__name__}: {error}"
    wall_s = perf_counter() - clock
    return Outcome(id=task.id, row=row, reason=reason, wall_s=wall_s, attempts=attempts)
