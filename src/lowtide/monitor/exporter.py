"""A small web server with one page: the metrics as they were last written.

Whoever asks gets the bytes that are there; nobody makes the node be read. So a scraper that asks
every second costs no more than its answer, and one that is slow keeps nobody waiting.

Who runs what is not for everybody who can reach a port, and on loopback that is every user of the
node. So anybody is told of the node alone; of jobs whoever shows the token, or may open the socket
file, or everybody where the operator has said so.
"""

from __future__ import annotations

import gzip
import hmac
import ipaddress
import os
import secrets
import socket
import socketserver
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from lowtide.errors import FileProblem, InvalidInput
from lowtide.monitor.metrics import MetricsPage
from lowtide.monitor.prometheus import CONTENT_TYPE

# A scraper takes milliseconds. One that takes longer is let go, and more than this at once are
# turned away, so that nobody can fill the node's memory with connections.
_PATIENCE_S = 10.0
_MOST_AT_ONCE = 32
_UNIX = "unix:"
# Who may open a socket file: whoever runs the watcher, and its group.
SOCKET_MODE = 0o660
_TOKEN_MODE = 0o640
# A token that was made up by hand and is shorter than this can be guessed.
_SHORTEST_TOKEN = 16
_NODE_ALONE = (
    b"# This page tells of the node alone. Of jobs it tells whoever shows the token of\n"
    b"# lowtide watch --token-file, or everybody with --open.\n"
)


class _Body:
    """Some bytes; compressed once, and only if somebody asks for that."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    @cached_property
    def compressed(self) -> bytes:
        # The quickest level makes it six times smaller, the best one seven times.
        return gzip.compress(self.plain, compresslevel=1, mtime=0)


class _Published:
    """A page as it is served: to anybody, and to whoever may know of jobs."""

    def __init__(self, page: MetricsPage) -> None:
        self.made = time.monotonic()
        self.node = _Body(_NODE_ALONE + page.node)
        self._page = page

    @cached_property
    def whole(self) -> _Body:
        return _Body(self._page.whole)


@dataclass(slots=True, kw_only=True)
class Exporter:
    """A server of the page that was last published, in threads of its own.

    Attributes:
        address: Where it listens: `127.0.0.1:9470`, `[::1]:9470`; port 0 is any that is free;
            `unix:/run/lowtide/metrics.sock` is a socket file for those who may open it.
        insecure: Whether it may listen where other machines can ask, without encryption.
        token: Whoever shows this is told of jobs; empty for nobody.
        open_to_all: Whether everybody is told of jobs.
        stale_s: From which age on the page counts as stale, and `/health` says so.
    """

    address: str = "127.0.0.1:9470"
    insecure: bool = False
    token: str = field(default="", repr=False)
    open_to_all: bool = False
    stale_s: float = 60.0
    _page: _Published | None = field(default=None, init=False)
    _server: _Server | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def open(self) -> None:
        """Begin to listen."""
        self._server = self._on_file() if self.path else self._on_port()
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="exporter",
            daemon=True,
        )
        self._thread.start()

    @property
    def path(self) -> str:
        """The socket file that it listens on; empty where it is a port."""
        return self.address.removeprefix(_UNIX) if self.address.startswith(_UNIX) else ""

    @property
    def tells_of_jobs(self) -> bool:
        """Whether anybody at all is told of jobs."""
        return bool(self.path or self.token or self.open_to_all)

    def _on_file(self) -> _Server:
        clear_socket(self.path)
        try:
            return _Server(socket.AF_UNIX, self.path, self)
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {self.address}: {error.strerror or error}. Name a file in a "
                "folder that is there and that this user may write to, at most 100 letters long"
            ) from None

    def _on_port(self) -> _Server:
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
            return _Server(family, place, self)
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {self.address}: {error.strerror or error}. Another program may "
                f"have that port (ss -ltnp sport = :{port} names it), or the address is not this "
                "machine's: choose another"
            ) from None

    def publish(self, page: MetricsPage) -> None:
        """Serve this page from now on.

        Args:
            page: The metrics, as `Exposition.render` writes them.
        """
        self._page = _Published(page)

    @property
    def url(self) -> str:
        """Where the page is, with the port that was chosen."""
        if self._server is None:
            raise InvalidInput("the exporter is opened before it is asked where it listens")
        if self.path:
            return self.address
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/metrics"

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            if self.path:
                Path(self.path).unlink(missing_ok=True)
        if self._thread is not None:
            self._thread.join()
        self._server = self._thread = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(
        self, path: str, *, compress: bool, shown: str | None = None
    ) -> tuple[HTTPStatus, dict[str, str], bytes]:
        """Return what a request is answered: status, headers and body.

        Args:
            compress: Whether the asker can read gzip.
            shown: The asker's header `Authorization`; None without one.
        """
        page, plain = self._page, {"Content-Type": "text/plain; charset=utf-8"}
        if path not in ("/metrics", "/health"):
            return HTTPStatus.NOT_FOUND, plain, b"here are /metrics and /health\n"
        if page is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, b"nothing was measured yet\n"
        if path == "/metrics":
            known = self._is_token(shown)
            if shown is not None and not known:
                # A scraper with another token would otherwise lose the jobs without a word.
                refused = {**plain, "WWW-Authenticate": "Bearer"}
                return HTTPStatus.UNAUTHORIZED, refused, b"that is not the token of this page\n"
            body = page.whole if known or self.path or self.open_to_all else page.node
            headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding, Authorization"}
            if compress:
                return HTTPStatus.OK, {**headers, "Content-Encoding": "gzip"}, body.compressed
            return HTTPStatus.OK, headers, body.plain
        age_s = time.monotonic() - page.made
        if age_s > self.stale_s:
            said = f"stale: the last tick was {age_s:.0f} s ago\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, said.encode()
        return HTTPStatus.OK, plain, b"ok\n"

    def _is_token(self, shown: str | None) -> bool:
        """Return whether a header `Authorization` has the token, in a time that tells nothing."""
        kind, _, value = (shown or "").partition(" ")
        same = hmac.compare_digest(value.strip().encode(), self.token.encode())
        return same and bool(self.token) and kind.lower() == "bearer"


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
        if self.address_family == socket.AF_UNIX:
            # Nobody can connect yet: that takes a socket that listens.
            Path(self.exporter.path).chmod(SOCKET_MODE)
            self.server_name, self.server_port = "localhost", 0
            return
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
        shown = self.headers.get("Authorization")
        status, headers, body = self.server.exporter.answer(path, compress=compress, shown=shown)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet: a line per scrape would be thousands a day."""


def load_token(path: Path) -> str:
    """Return the token in a file; make one up where there is no such file.

    Args:
        path: The file. Its group may read it, so that a scraper can; others may not.
    """
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _TOKEN_MODE)
    except FileExistsError:
        pass
    except OSError as error:
        raise FileProblem(f"cannot keep a token in {path}: {error.strerror}", path=path) from None
    else:
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    try:
        others = path.stat().st_mode & 0o007
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileProblem(f"cannot read the token in {path}: {error}", path=path) from None
    if others:
        raise InvalidInput(
            f"everybody on this machine may read the token in {path}: take that away with "
            f"chmod o= {path}, and let those who scrape be in the file's group"
        )
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise InvalidInput(
            f"{path} holds no token: that is one word of {_SHORTEST_TOKEN} letters or more. Remove "
            "the file, and one is made up"
        )
    return token


def clear_socket(path: str) -> None:
    """Remove the socket file of a watcher that was killed; leave one alone that answers."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
        except OSError:
            return
        else:
            raise InvalidInput(f"another program listens on {path} already: name another file")


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(
            f"an address to listen on is a host and a port or a socket file, unlike {address!r}: "
            "say 127.0.0.1:9470, or unix:/run/lowtide/metrics.sock"
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
