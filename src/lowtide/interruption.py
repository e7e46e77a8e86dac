"""Being ended in the midst, without losing what is done, and even within compiled code.

Python acts on a signal once the main thread is back from what it calls. Compiled kernels let other
threads run meanwhile, so one of those sees whether the main thread does come back, and ends the
process if it does not. Verbs that mean something else by Ctrl-C have handlers of their own, and
are left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import sleep
from types import FrameType
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long the main thread has to come back.
_GRACE_S = 0.4
# What there is to say besides, such as how to go on.
last_words: Callable[[], str] = str


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


def end_at_once() -> None:
    """Have Ctrl-C end this process at once, whatever it is at."""
    if threading.current_thread() is not threading.main_thread():
        return
    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    main = threading.get_ident()
    threading.Thread(target=_watch, args=(hears, main), daemon=True, name="interrupts").start()


def _watch(hears: int, main: int) -> None:
    while heard := os.read(hears, 64):
        if signal.SIGINT not in heard:
            continue
        before = _place(main)
        sleep(_GRACE_S)
        # Whoever has another handler means something else by it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _place(main) == before:
            # A bar hides the cursor.
            show = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
            words = last_words()
            os.write(2, f"{show}lowtide: interrupted{words and f': {words}'}\n".encode())
            os._exit(130)


def _place(thread: int) -> tuple[int, int]:
    """Return where a thread is: the same for as long as it does not come back from a call."""
    frame = sys._current_frames()[thread]
    return id(frame), frame.f_lasti
