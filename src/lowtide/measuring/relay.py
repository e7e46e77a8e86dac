"""Passes a program's output on from a process of its own, with a copy for whoever listens.

A program that writes into a pipe is killed once nobody holds the other end. So that end is held by
this small process, in a session of its own: the listener may be killed, and the program goes on
and is seen to its end. It is run as a script by `output.py`, and needs the standard library alone.

Each copy goes with a head: which stream, when it was read by the steady clock, how many bytes of
output before it were not copied because the listener was too far behind, and how many follow.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import threading
import time
from collections import deque

HEAD = struct.Struct("=Bdqq")
_CHUNK = 1 << 20
# A listener that is further behind than this misses something; the program never waits for it.
_MOST_BYTES = 1 << 26


class Copies:
    """What the listener has still to be given."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._waiting: deque[tuple[int, float, int, bytes]] = deque()
        self._bytes = self._lost = 0
        self._over = self._gone = False
        self._changed = threading.Condition()

    def put(self, stream: int, read_s: float, data: bytes) -> None:
        """Keep a piece of output until it is taken; leave it out where too much waits already."""
        with self._changed:
            if self._gone:
                return
            if self._bytes + len(data) > _MOST_BYTES:
                self._lost += len(data)
                return
            self._waiting.append((stream, read_s, self._lost, data))
            self._bytes += len(data)
            self._lost = 0
            self._changed.notify()

    def finish(self) -> None:
        """Say that nothing more comes."""
        with self._changed:
            if self._lost and not self._gone:
                self._waiting.append((0, time.monotonic(), self._lost, b""))
            self._over = True
            self._changed.notify()

    def hand_over(self) -> None:
        """Give the listener everything, until there is no more or it is gone."""
        while True:
            with self._changed:
                while not (self._waiting or self._over):
                    self._changed.wait()
                if not self._waiting:
                    return
                stream, read_s, lost, data = self._waiting.popleft()
            try:
                write_all(self._handle, HEAD.pack(stream, read_s, lost, len(data)) + data)
            except OSError:
                with self._changed:
                    self._gone = True
                    self._waiting.clear()
                return
            with self._changed:
                self._bytes -= len(data)


def write_all(handle: int, data: bytes) -> None:
    """Write a piece to its end."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(handle, rest) :]
        except BlockingIOError:
            # Whoever shares it may have asked not to wait; that it is full does not mean gone.
            room = select.poll()
            room.register(handle, select.POLLOUT)
            room.poll()


def pass_on(stream: int, source: int, sink: int, copies: Copies) -> None:
    """Pass one stream on until it ends, whether or not anybody reads it."""
    heeded = True
    while True:
        try:
            data = os.read(source, _CHUNK)
        except OSError:
            return
        if not data:
            return
        read_s = time.monotonic()
        if heeded:
            try:
                write_all(sink, data)
            except OSError:
                # Nobody reads it any more: that must not stop the program.
                heeded = False
        copies.put(stream, read_s, data)


def main(words: list[str]) -> None:
    """Pass streams on until all have ended.

    Args:
        words: Where the copies go, then the source and the sink of each stream: `5 3:1 4:2`.
    """
    # Who is told to end is the program: its last words are still passed on.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    copies = Copies(int(words[0]))
    pairs = [[int(each) for each in word.split(":")] for word in words[1:]]
    passing = [
        threading.Thread(target=pass_on, args=(stream, source, sink, copies))
        for stream, (source, sink) in enumerate(pairs)
    ]
    handing = threading.Thread(target=copies.hand_over, daemon=True)
    for thread in (handing, *passing):
        thread.start()
    for thread in passing:
        thread.join()
    copies.finish()
    handing.join()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
