"""Asking a server without any network: whatever bytes a client may send, as they are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import uvicorn
from anyio.from_thread import BlockingPortal
from starlette.types import ASGIApp, Message

from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper

HOST = "127.0.0.1:8470"


@contextmanager
def serving(keeper: Doorkeeper) -> Iterator[str]:
    """Run a server on a free port of this machine, and give its address."""
    server = uvicorn.Server(uvicorn.Config(make_app(keeper), port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        object.__setattr__(keeper.settings, "url", url)
        yield url
    finally:
        server.should_exit = True
        thread.join(20.0)


@dataclass(frozen=True)
class Answered:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Somebody who asks a server."""

    portal: BlockingPortal
    app: ASGIApp

    def ask(
        self, method: str, target: str, *, body: bytes = b"", **headers: str | None
    ) -> Answered:
        """Send a request; `_` in a header's name stands for `-`, and None for no such header."""
        path, _, query = target.partition("?")
        given = {"host": HOST, **headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("latin-1", "replace"),
            "query_string": query.encode("utf-8"),
            "root_path": "",
            "headers": [
                (name.lower().replace("_", "-").encode(), value.encode("latin-1"))
                for name, value in given.items()
                if value is not None
            ],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8470),
            "state": {},
        }
        return self.portal.call(self._run, scope, body)

    def get(self, target: str, **headers: str | None) -> Answered:
        return self.ask("GET", target, **headers)

    async def _run(self, scope: dict[str, Any], body: bytes) -> Answered:
        parts = [body[place : place + 65536] for place in range(0, len(body), 65536)] or [b""]
        sent: list[Message] = []

        async def receive() -> Message:
            if not parts:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        whole = b"".join(message.get("body", b"") for message in sent[1:])
        return Answered(sent[0]["status"], headers, whole)
