"""How much later than at once jobs may be done: a time, a multiple of their run, or by queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray
from lowtide.workloads.checks import check_keys, number, one_of, seconds
from lowtide.workloads.choices import Draw, read_draw

# Takes how long each job runs when it is never stopped, and returns how long each may wait.
Wait = Callable[[FloatArray, np.random.Generator], FloatArray]

WAIT_KEYS = ("wait", "slack", "queues")


def read_wait(document: Mapping[str, Any]) -> Wait:
    """Return how long jobs may wait, from the one key of a workload that says it.

    Args:
        document: A workload with `wait`, `slack` or `queues`.

    >>> queues = {"short": {"below": "2h", "wait": "6h"}, "long": {"wait": "24h"}}
    >>> wait = read_wait({"queues": queues})
    >>> wait(np.array([7199.0, 7200.0]), np.random.default_rng(0)).tolist()
    [21600.0, 86400.0]
    """
    said = one_of({key: document.get(key) for key in WAIT_KEYS}, "how long jobs may wait")
    if said == "wait":
        return partial(_wait, draw=read_draw(document["wait"], "wait", _seconds, spread=True))
    if said == "slack":
        return partial(_slack, draw=read_draw(document["slack"], "slack", number, spread=True))
    return _read_queues(document["queues"])


def _seconds(value: object, what: str) -> float:
    return seconds(value, what, positive=False)


def _read_queues(queues: object) -> Wait:
    if not isinstance(queues, Mapping) or not queues:
        raise InvalidInput(
            "queues is a table of queues, such as {short = {below = '2h', wait = '6h'}, "
            f"long = {{wait = '24h'}}}}, not {queues!r}"
        )
    limits: list[tuple[float, float]] = []
    for name, queue in queues.items():
        what = f"queue {name!r}"
        if not isinstance(queue, Mapping) or "wait" not in queue:
            raise InvalidInput(f"{what} is a table with wait, and below unless it takes the rest")
        check_keys(queue, ("below", "wait"), what)
        below_s = seconds(queue["below"], f"below of {what}") if "below" in queue else np.inf
        limits.append((below_s, _seconds(queue["wait"], f"wait of {what}")))
    limits.sort()
    below = np.array([limit for limit, _ in limits])
    if below[-1] < np.inf or np.unique(below).size < below.size:
        raise InvalidInput(
            "each queue has a 'below' of its own, but for one, which has none and takes all "
            "longer jobs"
        )
    waits = np.array([wait_s for _, wait_s in limits])
    return partial(_queued, below_s=below[:-1], wait_s=waits)


def _wait(run_s: FloatArray, rng: np.random.Generator, *, draw: Draw) -> FloatArray:
    return draw(run_s.size, rng)


def _slack(run_s: FloatArray, rng: np.random.Generator, *, draw: Draw) -> FloatArray:
    return run_s * draw(run_s.size, rng)


def _queued(
    run_s: FloatArray, _: np.random.Generator, *, below_s: FloatArray, wait_s: FloatArray
) -> FloatArray:
    waits: FloatArray = wait_s[np.searchsorted(below_s, run_s, side="right")]
    return waits
