"""A line between a program and a server that can be made to hang."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType
from typing import Self


class Line:
    """Forwards connections on loopback until it is told to hang.

    Args:
        port: The server's port.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._through = threading.Event()
        self._through.set()
        self._over = False
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self._thread = threading.Thread(target=self._work, daemon=True)

    def hang(self) -> None:
        """Let nothing through from now on; connections stay open."""
        self._through.clear()

    def go_on(self) -> None:
        """Let everything through again."""
        self._through.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        self._through.set()
        self._thread.join()

    def _work(self) -> None:
        ends: dict[socket.socket, socket.socket] = {}
        while not self._over:
            self._through.wait()
            ready, _, _ = select.select([self._door, *ends], [], [], 0.05)
            if not self._through.is_set():
                continue
            for end in ready:
                if end is self._door:
                    near, _ = self._door.accept()
                    far = socket.create_connection(("127.0.0.1", self._port))
                    ends |= {near: far, far: near}
                elif end in ends:
                    self._pass_on(ends, end)
        for end in (self._door, *ends):
            end.close()

    def _pass_on(self, ends: dict[socket.socket, socket.socket], end: socket.socket) -> None:
        try:
            said = end.recv(1 << 16)
            if said:
                ends[end].sendall(said)
                return
        except OSError:
            pass
        other = ends.pop(end)
        ends.pop(other)
        for each in (end, other):
            each.close()
