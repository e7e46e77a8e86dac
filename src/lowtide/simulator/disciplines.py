"""Whose turn it is when there are fewer machines than jobs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, TypeAlias

from lowtide.errors import InvalidInput, UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """First come, first served: nobody starts before those who came earlier."""

    name: ClassVar[str] = "fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """The highest priority first, then first come, first served; what runs is not stopped."""

    name: ClassVar[str] = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Easy:
    """First come, first served, but others may go ahead that do not delay the first in the queue.

    The first in the queue is promised its nodes at the moment at which it will fit at the latest,
    going by what users requested. Another job that fits now may start if it will be over by then
    (going by its request), or leaves enough for the first in the queue.
    """

    name: ClassVar[str] = "easy"


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


Discipline: TypeAlias = Fifo | Priority | Easy | RoundRobin | Feedback

DISCIPLINES: Mapping[str, type[Discipline]] = {
    kind.name: kind for kind in (Fifo, Priority, Easy, RoundRobin, Feedback)
}


def make_discipline(discipline: str | Discipline, **parameters: Any) -> Discipline:
    """Return a discipline from a name or an object.

    Args:
        discipline: One of `fifo`, `priority`, `easy`, `round_robin`, `feedback`, or an object.

    >>> make_discipline("round_robin", quantum_s=600)
    RoundRobin(quantum_s=600, context_s=0.0)
    """
    if not isinstance(discipline, str):
        if not isinstance(discipline, Discipline):
            raise InvalidInput(
                f"a discipline is one of {', '.join(DISCIPLINES)}, unlike {discipline!r}"
            )
        if parameters:
            raise InvalidInput(f"give {', '.join(parameters)} to the discipline object itself")
        return discipline
    if discipline not in DISCIPLINES:
        raise UnknownName("discipline", discipline, DISCIPLINES)
    kind = DISCIPLINES[discipline]
    known = tuple(inspect.signature(kind).parameters)
    for name in parameters:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidInput(
                f"discipline {discipline!r} takes no {name}{guess}"
                + (f": it takes {', '.join(known)}" if known else ", nor any other parameter")
            )
    return kind(**parameters)


def _check_turns(quanta_s: tuple[float, ...], context_s: float) -> None:
    if not quanta_s or not all(0 < quantum_s < math.inf for quantum_s in quanta_s):
        given = ", ".join(f"{quantum_s!r}" for quantum_s in quanta_s) or "none"
        raise InvalidInput(f"a turn is longer than 0 s and ends some time, but given is {given}")
    if not 0 <= context_s < math.inf:
        raise InvalidInput(f"context_s is a number of at least 0, not {context_s!r}")
