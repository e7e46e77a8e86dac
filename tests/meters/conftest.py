"""Tools and servers that meters ask, made up."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of made-up tools, found before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, object]]]:
    """A server on loopback that answers with what a test puts in."""
    answers: dict[str, object] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            found = HTTPStatus.NOT_FOUND if answer is None else HTTPStatus.OK
            self.send_response(answer if isinstance(answer, HTTPStatus) else found)
            self.end_headers()
            if answer is not None and not isinstance(answer, HTTPStatus):
                self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()
