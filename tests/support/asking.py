"""Asking a server without any network: whatever bytes a client may send, as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from anyio.from_thread import BlockingPortal
from starlette.types import ASGIApp, Message

HOST = "127.0.0.1:8470"


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
