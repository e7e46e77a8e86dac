"""Being ended in the midst, without losing what is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def by_signals() -> Iterator[None]:
    """Let Ctrl-C, a request to end and a terminal that is closed be a KeyboardInterrupt."""
    # One that is ignored, as below nohup, stays so.
    which = [number for number in _STOPS if signal.getsignal(number) != signal.SIG_IGN]
    with _handled(which, signal.default_int_handler):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Let what must not be left half done be finished before a signal takes effect."""
    came: list[int] = []
    with _handled(_STOPS, lambda number, _: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)


@contextmanager
def unchanged() -> Iterator[None]:
    """Keep the handlers of signals as they are, whatever is imported meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _handled(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], Any]
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python gives signals to the main thread alone.
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error came of an interrupt, which compiled code turns into others."""
    seen: list[BaseException] = []
    while error not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.append(error)
        before = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or before or error
    return False
