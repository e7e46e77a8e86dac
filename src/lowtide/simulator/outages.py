"""Nodes that come and go: maintenance, capacity that follows a signal, and nodes that break down.

What is known in advance is a number of nodes that are away, those with the highest numbers: nobody
is started who would still run when they go. Which node breaks down when is drawn, node by node, so
that it is the same under every policy; nobody knows of it before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.signal import Signal
from lowtide.steps import Steps
from lowtide.units import DurationLike, format_time, parse_duration, parse_time, require_number


class Away(NamedTuple):
    """Nodes that are not there for a time.

    Attributes:
        begin: From when.
        end: Until when.
        nodes: How many; those with the highest numbers.
    """

    begin: float
    end: float
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often nodes break down, and for how long they are then away.

    What a job that runs there has done since its last checkpoint is lost, and it queues again,
    before all others; one without checkpoints begins anew. A node breaks down neither while a job
    on it starts nor while one is being stopped.

    Attributes:
        every_s: For how long a node runs on average before it breaks down.
        repair_s: How long it takes to repair it.
        seed: What is drawn by chance.
    """

    every_s: DurationLike
    repair_s: DurationLike
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("every_s", "repair_s"):
            seconds = require_number(parse_duration(getattr(self, name)), name, least=0.0)
            if not seconds > 0:
                raise InvalidInput(f"{name} of failures is longer than 0 s, not {seconds:g} s")
            object.__setattr__(self, name, seconds)

    def of_node(self, node: int, begin: float) -> Iterator[tuple[float, float]]:
        """Yield when a node breaks down, and when it is there again, without end.

        >>> first = next(Failures(every_s="30d", repair_s="4h").of_node(0, 0.0))
        >>> first[1] - first[0]
        14400.0
        """
        rng, now = np.random.default_rng([self.seed, node]), begin
        every_s, repair_s = float(self.every_s), float(self.repair_s)  # type: ignore[arg-type]
        while True:
            down = now + float(rng.exponential(every_s))
            now = down + repair_s
            yield down, now


def require_away(rows: Sequence[Sequence[object]], nodes: int) -> tuple[Away, ...]:
    """Return nodes that are away, told as rows of begin, end and how many; refuse what is none.

    Args:
        nodes: How many there are.
    """
    try:
        made = tuple(
            Away(parse_time(a), parse_time(b), int(n))  # type: ignore[arg-type, call-overload]
            for a, b, n in rows
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            "nodes that are not there are said as (begin, end, how many), such as "
            f"('2024-07-02T06:00Z', '2024-07-02T18:00Z', 100), not {rows!r}"
        ) from None
    for each in made:
        if not each.end > each.begin or not 0 < each.nodes <= nodes:
            raise InvalidInput(
                f"from 1 to {nodes} nodes may be away from one moment to a later one, not "
                f"{each.nodes} from {format_time(each.begin)} to {format_time(each.end)}"
            )
    return made


def below(capacity: Signal, nodes: int) -> tuple[Away, ...]:
    """Return which nodes are away where there are only as many as a signal says.

    Args:
        capacity: How many nodes there are at each moment; before and after it all of them.
        nodes: How many there are at most.

    >>> few = Signal.from_values([4, 1.5, 9], start=0, step_s=10, kind="nodes")
    >>> below(few, 4)
    (Away(begin=10.0, end=20.0, nodes=3),)
    """
    if not isinstance(capacity, Signal) or capacity.kind != "nodes":
        raise InvalidInput(
            "capacity is a signal of kind 'nodes': how many there are at each moment, not "
            f"{getattr(capacity, 'kind', capacity)!r}"
        )
    gone = nodes - np.minimum(np.floor(capacity.values + 1e-9), nodes).astype(np.int64)
    edges = capacity.edges
    first = np.flatnonzero(np.diff(gone, prepend=-1))
    last = np.append(first[1:], gone.size)
    return tuple(
        Away(float(edges[a]), float(edges[b]), int(gone[a]))
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
        if gone[a] > 0
    )


def apart(away: Sequence[Away], nodes: int) -> tuple[Away, ...]:
    """Return the same nodes away in spans of which no two overlap; what overlaps adds up.

    >>> apart([Away(0.0, 2.0, 1), Away(1.0, 3.0, 1)], 9)[1]
    Away(begin=1.0, end=2.0, nodes=2)
    """
    if not away:
        return ()
    begin, end, count = (np.array(each, dtype=np.float64) for each in zip(*away, strict=True))
    steps = Steps.of_spans(begin, end, count)
    return tuple(
        Away(float(a), float(b), min(int(n), nodes))
        for a, b, n in zip(steps.times[:-1], steps.times[1:], steps.values[:-1], strict=True)
        if n > 0
    )


class Gone:
    """How many nodes are away over time, as is known in advance."""

    def __init__(self, away: Sequence[Away]) -> None:
        spans = sorted(away)
        self.ends = [each.end for each in spans]
        edges = sorted({edge for each in spans for edge in each[:2]})
        there = Steps.of_spans(*(np.array(x, dtype=float) for x in zip(*spans, strict=True)))
        self._edges = np.array([-math.inf, *edges])
        self._count = np.append(0, there.at(self._edges[1:])).astype(np.int64)

    def changes(self, begin: float, end: float) -> Iterator[tuple[float, int]]:
        """Yield moments of a span at which other numbers are away, its first among them."""
        first = int(np.searchsorted(self._edges, begin, side="right")) - 1
        last = int(np.searchsorted(self._edges, end, side="left"))
        for place in range(first, last):
            yield max(float(self._edges[place]), begin), int(self._count[place])

    def most(self, begin: float, end: float) -> int:
        """Return how many nodes are away at most within a span.

        >>> gone = Gone([Away(10.0, 20.0, 3)])
        >>> gone.most(0.0, 10.0), gone.most(0.0, 11.0), gone.most(20.0, 99.0)
        (0, 3, 0)
        """
        return max(count for _, count in self.changes(begin, max(end, np.nextafter(begin, 1e300))))
