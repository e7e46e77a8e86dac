"""A stand-in for the providers of live signals: an HTTP server on this machine.

It answers as they do, from one made-up intensity that everybody can compute: `truth`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

# Ten minutes into an hour.
NOW = 1_731_679_800.0

TOKEN = "em-5ecret-token"
USER, PASSWORD = "ada-5ecret", "correct 5ecret horse"
SESSION = "wt-5ecret-session"

Reply = tuple[int, dict[str, str], bytes]


def truth(instant: float) -> float:
    """The intensity at a moment, in g/kWh or lb/MWh: another one every five minutes."""
    return float(50 + int(instant // 300) * 7919 % 400)


def stamp(instant: float) -> str:
    return f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%MZ}"


def parsed(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@dataclass
class StandIn:
    """What the server does.

    Attributes:
        now: What time it is there; None for what the clock says.
        overrides: A part of a path → what to answer instead.
        delay_s: How long it takes to answer.
        asked: The paths it was asked for.
        forecast_for_free: Whether Electricity Maps gives this token a forecast.
    """

    now: float | None = None
    overrides: dict[str, Callable[[], Reply]] = field(default_factory=dict)
    delay_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    forecast_for_free: bool = True
    url: str = ""
    gone: threading.Event = field(default_factory=threading.Event)

    def reply(self, path: str, headers: Any) -> Reply:
        self.asked.append(path)
        if self.delay_s:
            self.gone.wait(self.delay_s)
        for part, answer in self.overrides.items():
            if part in path:
                return answer()
        now = time.time() if self.now is None else self.now
        parts = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if "/carbon-intensity/" in path:
            return self._electricity_maps(parts.path, query, headers, now)
        if parts.path == "/login" or parts.path.startswith("/v3/"):
            return self._watttime(parts.path, query, headers, now)
        return self._gb(parts.path.strip("/").split("/"), now)

    def _gb(self, words: list[str], now: float) -> Reply:
        region = int(words[-1]) if words[0] == "regional" else None
        begin, end = words[-4:-2] if region else words[-2:]
        start = parsed(begin) // 1800 * 1800
        stop = start + 48 * 3600 if end == "fw48h" else parsed(end)
        records = []
        # The API tells of the half-hour before, too.
        step = start - 1800
        while step < stop:
            intensity: dict[str, Any] = {"forecast": truth(step) + 7, "index": "moderate"}
            if region is None:
                intensity["actual"] = truth(step) if step + 1800 <= now else None
            records.append({"from": stamp(step), "to": stamp(step + 1800), "intensity": intensity})
            step += 1800
        if region is None:
            return said({"data": records})
        return said({"data": {"regionid": region, "shortname": "London", "data": records}})

    def _electricity_maps(
        self, path: str, query: dict[str, str], headers: Any, now: float
    ) -> Reply:
        if headers.get("auth-token") != TOKEN:
            return said({"error": f"Invalid auth-token {headers.get('auth-token')}"}, 401)
        hour = now // 3600 * 3600

        def record(instant: float, **more: Any) -> dict[str, Any]:
            text = f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%M:%S.000Z}"
            return {"zone": query["zone"], "carbonIntensity": truth(instant), "datetime": text,
                    "emissionFactorType": "lifecycle", **more}  # fmt: skip

        if path.endswith("history"):
            rows = [record(hour - 3600 * back, isEstimated=back == 1) for back in range(24, 0, -1)]
            return said({"zone": query["zone"], "history": rows})
        if path.endswith("latest"):
            return said(record(hour, isEstimated=True))
        if not self.forecast_for_free:
            return said({"error": "Not part of your plan"}, 403)
        ahead = [record(hour + 3600 * hours) for hours in range(25)]
        return said({"zone": query["zone"], "forecast": ahead})

    def _watttime(self, path: str, query: dict[str, str], headers: Any, now: float) -> Reply:
        if path == "/login":
            pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            good = headers.get("Authorization") == f"Basic {pair}"
            return said({"token": SESSION}) if good else said({"detail": "Unauthorized"}, 401)
        if headers.get("Authorization") != f"Bearer {SESSION}":
            return said({"detail": "bad session"}, 401)
        if path.endswith("historical"):
            start, stop = parsed(query["start"]), parsed(query["end"])
        else:
            start, stop = now, now + 3600 * int(query["horizon_hours"])
        step = start // 300 * 300
        rows = []
        while step < stop:
            rows.append({"point_time": datetime.fromtimestamp(step, UTC).isoformat(),
                         "value": truth(step)})  # fmt: skip
            step += 300
        meta = {"region": query["region"], "signal_type": query["signal_type"],
                "units": "lbs_co2_per_mwh"}  # fmt: skip
        return said({"data": rows, "meta": meta})


def said(document: Any, status: int = 200, **headers: str) -> Reply:
    """A reply with JSON in it."""
    return status, headers, json.dumps(document).encode()


@contextmanager
def stand_in(now: float | None = None) -> Iterator[StandIn]:
    """Run the server for as long as the context lasts."""
    state = StandIn(now=now)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = state.reply(self.path, self.headers)
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # whoever asked has lost patience

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.gone.set()
        server.shutdown()
        thread.join()
        server.server_close()
