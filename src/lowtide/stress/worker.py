"""A process that bears one part of a load: `python -m lowtide.stress.worker`.

It is told what to do by a line of JSON, answers with a line once it is ready, is told when to start
by another, and in the end answers with what it did. It lives no longer than the process that told
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowtide.errors import FileProblem
from lowtide.stress.loads import Load, keep_level, make_load

# prctl: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker is told.

    Attributes:
        part: What to load, one of `plan.PARTS`.
        core: The only CPU core to run on, None for any.
        step_s: How long each step lasts.
        shares: How busy to be in each step, from 0 to 1.
        folder: Where the disk load writes.
        parent: The process that it shall not outlive.
    """

    part: str
    core: int | None
    step_s: float
    shares: list[float]
    folder: str
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker did.

    Attributes:
        worked_s: Seconds for which it was busy in each step.
        late_s: How long after its time each step ended.
        done: What was done in all: operations of CPU and GPU, bytes of memory and disk.
        cpu_s: CPU time that the steps took.
    """

    worked_s: list[float]
    late_s: list[float]
    done: float
    cpu_s: float


def carry_out(orders: Orders, load: Load, start: float) -> WorkerReport:
    """Keep the levels of all steps.

    Args:
        start: When the first step begins, by the monotonic clock, which all processes share.
    """
    worked_s, late_s, done = [], [], 0.0
    used_s = time.process_time()
    for number, share in enumerate(orders.shares):
        # Ends are counted from the start: a step that ends late leaves the next one the less time.
        end = start + (number + 1) * orders.step_s
        worked, did = keep_level(load, share, start=start + number * orders.step_s, end=end)
        worked_s.append(round(worked, 6))
        late_s.append(round(time.monotonic() - end, 6))
        done += did
    return WorkerReport(
        worked_s=worked_s, late_s=late_s, done=done, cpu_s=time.process_time() - used_s
    )


def main() -> None:
    """Do as standard input says."""
    # The kernel ends this process with its parent; where it cannot, the pipe's end does.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    orders = Orders(**json.loads(sys.stdin.readline()))
    if os.getppid() != orders.parent:
        return
    if orders.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {orders.core})
    try:
        load = make_load(orders.part, folder=Path(orders.folder))
        _answer({"ready": True})
        if not (start := sys.stdin.readline()):
            return
        threading.Thread(target=_end_with_pipe, daemon=True).start()
        report = carry_out(orders, load, float(start))
    except FileProblem as error:
        _answer({"problem": str(error), "path": str(error.path)})
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        _answer({"problem": str(error) or type(error).__name__})
    else:
        _answer(asdict(report))


def _end_with_pipe() -> None:
    sys.stdin.read()
    os._exit(1)


def _answer(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
    # Nothing is left to be cleaned up, and unloading a GPU's library takes seconds.
    sys.stdout.flush()
    os._exit(0)
