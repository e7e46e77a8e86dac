"""Ctrl-C where Python cannot hear it: within compiled code that runs for long.

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
from collections.abc import Callable
from time import sleep

# How long the main thread has to come back.
_GRACE_S = 0.4

# What there is to say besides, such as how to go on.
last_words: Callable[[], str] = str


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
