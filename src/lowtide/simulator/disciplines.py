"""Whose turn it is when there are fewer machines than jobs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from lowtide.errors import InvalidInput, UnknownName, guess_at
from lowtide.policies.policy import SeesQueue, name_of
from lowtide.registry import Registry, is_place

if TYPE_CHECKING:
    from lowtide.simulator.events import QueueEvent
    from lowtide.simulator.scheduling import QueueView


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """First come, first served: nobody starts before those who came earlier."""

    name: ClassVar[str] = "fifo"

    def on(self, event: QueueEvent, view: QueueView) -> None:  # noqa: ARG002 - whatever has happened
        """Start whose turn it is."""
        while (first := view.first) is not None and view.start(first):
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """The highest priority first, then first come, first served; what runs is not stopped."""

    name: ClassVar[str] = "priority"

    def on(self, event: QueueEvent, view: QueueView) -> None:  # noqa: ARG002 - whatever has happened
        """Start whose turn it is."""
        for job in sorted(view.queue, key=lambda row: -view.jobs.priority[row]):
            if not view.start(job):
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Easy:
    """First come, first served, but others may go ahead that do not delay the first in the queue.

    The first in the queue is promised its nodes at the moment at which it will fit at the latest,
    going by what users requested. Another job that fits now may start if it will be over by then
    (going by its request), or leaves enough for the first in the queue.
    """

    name: ClassVar[str] = "easy"

    def on(self, event: QueueEvent, view: QueueView) -> None:  # noqa: ARG002 - whatever has happened
        """Start whose turn it is, and who may go ahead."""
        while (first := view.first) is not None and view.start(first):
            pass
        if first is None or (at := view.promise(first)) is None:
            return
        for job in view.queue[1:]:
            if view.fits(job) and view.now + view.lasts_s(job) <= at:
                view.start(job)
            elif (nodes := view.beside(first, job, at)) is not None:
                view.start(job, nodes or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """Everybody runs for a while, then goes to the end of the queue if somebody waits.

    Attributes:
        quantum_s: How long a turn is, startup included.
        context_s: How much longer a job that was stopped holds its CPUs before it starts again.
    """

    quantum_s: float = 1800.0
    context_s: float = 0.0

    name: ClassVar[str] = "round_robin"

    def __post_init__(self) -> None:
        _check_turns((self.quantum_s,), self.context_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Round robin in levels: who uses up a turn goes down a level, and higher levels go first.

    Attributes:
        quanta_s: How long a turn is in each level, from the highest to the lowest.
        context_s: How much longer a job that was stopped holds its CPUs before it starts again.
        boost_s: How often all jobs are lifted to the highest level; None for never.
    """

    quanta_s: tuple[float, ...] = (600.0, 3600.0, 21600.0)
    context_s: float = 0.0
    boost_s: float | None = None

    name: ClassVar[str] = "feedback"

    def __post_init__(self) -> None:
        # A list, as a TOML file gives it, is as good.
        object.__setattr__(self, "quanta_s", tuple(self.quanta_s))
        _check_turns(self.quanta_s, self.context_s)
        if self.boost_s is not None and not 0 < self.boost_s < math.inf:
            raise InvalidInput(f"boost_s is longer than 0 s, not {self.boost_s!r}")


@dataclass(frozen=True, slots=True)
class OwnDiscipline:
    """A scheduler of somebody's own that serves the queue.

    Attributes:
        scheduler: Whoever it is.
    """

    scheduler: SeesQueue

    @property
    def name(self) -> str:
        """What it is called: as its class is."""
        return name_of(self.scheduler)

    def on(self, event: QueueEvent, view: QueueView) -> None:
        """Leave it to the scheduler."""
        self.scheduler.on(event, view)


Discipline: TypeAlias = Fifo | Priority | Easy | RoundRobin | Feedback | OwnDiscipline

DISCIPLINES: Mapping[str, type[Fifo | Priority | Easy | RoundRobin | Feedback]] = {
    kind.name: kind for kind in (Fifo, Priority, Easy, RoundRobin, Feedback)
}
# Those of other packages, and the same as anyone would register them.
REGISTERED: Registry[Callable[..., SeesQueue]] = Registry(
    "lowtide.disciplines", "discipline", methods=("on",)
)
# Those that stop jobs by themselves.
TAKING_TURNS = (RoundRobin, Feedback)


def make_discipline(discipline: str | Discipline | SeesQueue, **parameters: Any) -> Discipline:
    """Return a discipline from a name or an object.

    Args:
        discipline: One of `fifo`, `priority`, `easy`, `round_robin`, `feedback`, or an object;
            also a scheduler of your own, or the place of its class, such as `./mine.py:Mine`.

    >>> make_discipline("round_robin", quantum_s=600)
    RoundRobin(quantum_s=600, context_s=0.0)
    """
    if not isinstance(discipline, str):
        if parameters:
            raise InvalidInput(f"give {', '.join(parameters)} to the discipline object itself")
        if isinstance(discipline, Discipline):
            return discipline
        if isinstance(discipline, SeesQueue):
            return OwnDiscipline(discipline)
        raise InvalidInput(
            f"a discipline is one of {', '.join(DISCIPLINES)}, or has a method on, unlike "
            f"{discipline!r}"
        )
    kind = discipline_kind(discipline)
    known = tuple(inspect.signature(kind).parameters)
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"discipline {discipline!r} takes no {name}{guess_at(name, known)}"
                + (f": it takes {', '.join(known)}" if known else ", nor any other parameter")
            )
    return make_discipline(kind(**parameters))


def discipline_kind(name: str) -> Callable[..., Discipline | SeesQueue]:
    """Return what makes the disciplines of a name.

    Args:
        name: One of `DISCIPLINES`, one that a package registered, or the place of a class.
    """
    if name in DISCIPLINES:
        return DISCIPLINES[name]
    if name not in REGISTERED.names() and not is_place(name):
        raise UnknownName("discipline", name, {*DISCIPLINES, *REGISTERED.names()})
    return REGISTERED.load(name)


def _check_turns(quanta_s: tuple[float, ...], context_s: float) -> None:
    if not quanta_s or not all(0 < quantum_s < math.inf for quantum_s in quanta_s):
        given = ", ".join(f"{quantum_s!r}" for quantum_s in quanta_s) or "none"
        raise InvalidInput(f"a turn is longer than 0 s and ends some time, but given is {given}")
    if not 0 <= context_s < math.inf:
        raise InvalidInput(f"context_s is a number of at least 0, not {context_s!r}")
