"""Telling a centre what was watched, beside the watching: a centre that is away holds nothing up.

A piece is sent until the centre says that it has it. Until then it stays in the node's store, and
so does all that comes after it, for weeks if need be. Who finds nobody waits longer each time, and
each node for another time, so that a centre that comes back is not run over.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote, urlsplit

from lowtide.errors import InvalidInput, LowtideError, Once
from lowtide.store.outbox import Outbox, Parcel

EVERY_S = 60.0
_TIMEOUT_S = 30.0
# How long to wait for a centre that is away, at first and at most.
_SOONEST_S, _LATEST_S = 5.0, 600.0
# How long the end waits for what is being sent.
_LAST_S = 5.0
_MOST_ANSWER_BYTES = 65536
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class CentreAddress:
    """Where a centre is, and which cluster of its the node is in.

    Attributes:
        host: Its host.
        path: What stands before the paths of its doors.
    """

    host: str
    port: int | None
    is_encrypted: bool
    path: str
    cluster: str

    @classmethod
    def read(cls, text: str) -> CentreAddress:
        """Read an address as `lowtide serve node-token` prints it: `https://centre/CLUSTER`.

        >>> CentreAddress.read("https://centre.example.org/alps").cluster
        'alps'
        """
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        path, _, cluster = parts.path.rstrip("/").rpartition("/")
        if parts.scheme not in ("http", "https") or not parts.hostname or not cluster:
            raise InvalidInput(
                f"a centre is named as https://HOST/CLUSTER, not {text}: lowtide serve node-token "
                "prints it"
            )
        if parts.username or parts.query or parts.fragment:
            raise InvalidInput("the address of a centre holds no password: the token is in a file")
        is_encrypted = parts.scheme == "https"
        if not is_encrypted and parts.hostname not in _LOOPBACK:
            raise InvalidInput(
                f"what users did is not sent in the clear: name the centre as https://, not {text}"
            )
        return cls(parts.hostname, port, is_encrypted, path, cluster)


@dataclass(slots=True, kw_only=True)
class Pusher:
    """Sends what a store has still to tell, in a thread of its own.

    Attributes:
        outbox: What is to be told.
        centre: To whom.
        host: The node's name.
        token: By which the centre knows the node.
        say: Told what goes wrong, each thing once.
        every_s: How often.
    """

    outbox: Outbox
    centre: CentreAddress
    host: str
    token: str
    say: Callable[[str], None]
    every_s: float = EVERY_S
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _said: Once = field(default_factory=Once, init=False)
    _failed: int = field(default=0, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.outbox.cluster = self.centre.cluster
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def push(self) -> float:
        """Send all that there is, and return after how many seconds to come again."""
        while not self._over.is_set():
            parcel = self.outbox.next()
            if parcel is None:
                break
            try:
                status, wait_s, told = self._send(parcel)
            except (OSError, http.client.HTTPException) as error:
                return self._later(f"the centre {self.centre.host} does not answer: {error}")
            seq = told.get("seq")
            if status == 200 and isinstance(seq, int) and seq >= parcel.seq:
                self._failed = 0
                if told.get("set_aside"):
                    self._tell(f"the centre set a piece aside: {told['set_aside']}")
                if seq > parcel.seq:
                    self._tell("this store was put back to an earlier state: it goes on from there")
                    self.outbox.begin_anew(from_the_first=False)
                else:
                    self.outbox.acknowledge(parcel)
            elif status == 409 and isinstance(seq, int) and seq < parcel.seq:
                self._tell("the centre was put back to an earlier state: all is told once more")
                self.outbox.begin_anew(from_the_first=True)
            elif status in (401, 403, 404):
                self._tell(
                    f"the centre {self.centre.host} does not take the token for {self.host} in "
                    f"{self.centre.cluster}: make another with lowtide serve node-token"
                )
                return _LATEST_S * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            else:
                words = str(told.get("error", ""))[:200]
                problem = f"the centre {self.centre.host} answers {status}: {words}"
                return max(self._later(problem), wait_s)
        return self.every_s

    def _later(self, problem: str) -> float:
        """Return how long to wait after something failed: longer each time."""
        self._tell(f"{problem}; what was watched is kept here until it does")
        wait_s = min(_SOONEST_S * 2.0**self._failed, _LATEST_S)
        self._failed = min(self._failed + 1, 20)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def _work(self) -> None:
        # Nodes that are started together do not come together.
        wait_s = min(self.every_s, EVERY_S) * random.random()  # noqa: S311 - no secret
        while not self._over.wait(wait_s):
            try:
                wait_s = self.push()
            except (LowtideError, OSError) as error:
                wait_s = self._later(str(error))

    def _send(self, parcel: Parcel) -> tuple[int, float, dict[str, Any]]:
        """Send a piece; return the status, how long to wait at least, and what was answered."""
        connection: http.client.HTTPConnection
        if self.centre.is_encrypted:
            connection = http.client.HTTPSConnection(
                self.centre.host,
                self.centre.port,
                timeout=_TIMEOUT_S,
                context=ssl.create_default_context(),
            )
        else:
            connection = http.client.HTTPConnection(
                self.centre.host, self.centre.port, timeout=_TIMEOUT_S
            )
        named = (self.centre.cluster, self.host, parcel.incarnation, str(parcel.seq))
        path = "/".join(quote(name, safe="") for name in named)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/zstd"}
        try:
            connection.request("PUT", f"{self.centre.path}/ingest/v1/{path}", parcel.body, headers)
            response = connection.getresponse()
            body = response.read(_MOST_ANSWER_BYTES)
        finally:
            connection.close()
        try:
            told = json.loads(body)
        except ValueError:
            told = None
        return response.status, _seconds(response.headers.get("Retry-After")), _table(told)

    def _tell(self, problem: str) -> None:
        if self._said.is_new(problem):
            self.say(problem)


def _table(told: Any) -> dict[str, Any]:
    return told if isinstance(told, dict) else {}


def _seconds(text: str | None) -> float:
    try:
        wait_s = float(text or 0.0)
    except ValueError:
        return 0.0
    return min(max(wait_s, 0.0), _LATEST_S) if math.isfinite(wait_s) else 0.0
