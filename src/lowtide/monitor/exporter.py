"""A small web server with one page: the metrics as they were last written.

Whoever asks gets the bytes that are there; nobody makes the node be read. So a scraper that asks
every second costs no more than its answer, and one that is slow keeps nobody waiting.
"""

from __future__ import annotations

import gzip
import ipaddress
import socket
import socketserver
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from lowtide.errors import InvalidInput
from lowtide.monitor.text_format import CONTENT_TYPE

# A scraper takes milliseconds. One that takes longer is let go, and more than this at once are
# turned away, so that nobody can fill the node's memory with connections.
_PATIENCE_S = 10.0
_MOST_AT_ONCE = 32


class _Page:
    """Some bytes and when they came; compressed once, and only if somebody asks for that."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain
        self.made = time.monotonic()

    @cached_property
    def compressed(self) -> bytes:
        # The quickest level makes it six times smaller, the best one seven times.
        return gzip.compress(self.plain, compresslevel=1, mtime=0)


@dataclass(slots=True, kw_only=True)
class Exporter:
    """A server of the page that was last published, in threads of its own.

    Attributes:
        address: Where it listens: `127.0.0.1:9470`, `[::1]:9470`; port 0 is any that is free.
        insecure: Whether it may listen where other machines can ask, without encryption.
        stale_s: From which age on the page counts as stale, and `/health` says so.
    """

    address: str = "127.0.0.1:9470"
    insecure: bool = False
    stale_s: float = 60.0
    _page: _Page | None = field(default=None, init=False)
    _server: _Server | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def open(self) -> None:
        """Begin to listen."""
        host, port = _parse(self.address)
        family, place = _resolve(self.address, host, port)
        if not self.insecure and not ipaddress.ip_address(place[0]).is_loopback:
            raise InvalidInput(
                f"{self.address} can be reached from other machines, and what jobs do would go "
                "over the network unencrypted to whoever asks: listen on "
                f"127.0.0.1:{port} behind a reverse proxy with TLS, or say --insecure where the "
                "network itself is trusted"
            )
        try:
            self._server = _Server(family, place, self)
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {self.address}: {error.strerror or error}. Another program may "
                f"have that port (ss -ltnp sport = :{port} names it), or the address is not this "
                "machine's: choose another"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="exporter",
            daemon=True,
        )
        self._thread.start()

    def publish(self, page: bytes) -> None:
        """Serve this page from now on.

        Args:
            page: The metrics, as `Exposition.render` writes them.
        """
        self._page = _Page(page)

    @property
    def url(self) -> str:
        """Where the page is, with the port that was chosen."""
        if self._server is None:
            raise InvalidInput("the exporter is opened before it is asked where it listens")
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/metrics"

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._thread is not None:
            self._thread.join()
        self._server = self._thread = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def answer(self, path: str, *, compress: bool) -> tuple[HTTPStatus, dict[str, str], bytes]:
        """Return what a request is answered: status, headers and body.

        Args:
            path: What was asked for, without its query.
            compress: Whether the asker can read gzip.
        """
        page, plain = self._page, {"Content-Type": "text/plain; charset=utf-8"}
        if path not in ("/metrics", "/health"):
            return HTTPStatus.NOT_FOUND, plain, b"here are /metrics and /health\n"
        if page is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, b"nothing was measured yet\n"
        if path == "/metrics":
            headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
            if compress:
                return HTTPStatus.OK, {**headers, "Content-Encoding": "gzip"}, page.compressed
            return HTTPStatus.OK, headers, page.plain
        age_s = time.monotonic() - page.made
        if age_s > self.stale_s:
            said = f"stale: the last tick was {age_s:.0f} s ago\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, said.encode()
        return HTTPStatus.OK, plain, b"ok\n"


class _Server(ThreadingHTTPServer):
    """A thread per connection, a few at most."""

    daemon_threads = True
    # Closing must not wait for somebody who reads slowly.
    block_on_close = False
    request_queue_size = 64

    def __init__(self, family: socket.AddressFamily, place: Any, exporter: Exporter) -> None:
        self.address_family = family
        self.exporter = exporter
        self.free = threading.BoundedSemaphore(_MOST_AT_ONCE)
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        # The parent would look up the name of the address, which may wait for a dead name server.
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a scraper that hangs up or takes too long: that is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Server
    server_version = "lowtide"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def _send(self, *, with_body: bool) -> None:
        compress = "gzip" in self.headers.get("Accept-Encoding", "")
        path = self.path.partition("?")[0]
        status, headers, body = self.server.exporter.answer(path, compress=compress)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet: a line per scrape would be thousands a day."""


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(
            f"an address to listen on is a host and a port, unlike {address!r}: say 127.0.0.1:9470"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _resolve(address: str, host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {address}: {host} is no address of this machine "
            f"({error.strerror}): say 127.0.0.1:{port}"
        ) from None
    family, *_, place = found[0]
    return family, place
