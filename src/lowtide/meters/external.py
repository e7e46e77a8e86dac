"""Meters outside the machine: a wall meter that writes a CSV, answers HTTP, or is in Prometheus."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import time
import urllib.parse
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, ClassVar

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters.meter import BaseMeter, Channel, Found, Reading, Roots, checked

_CHANNEL = Channel(name="node", domain="node")
# A value older than this is no longer what is drawn now, however seldom the file grows.
_STALE_S = 30.0
# Else it holds for so many times as long as lines took to come lately, and so many seconds at
# least; the second stands for the first where only one line has come.
_STALE_TURNS = 3
_LEAST_STALE_S = 5.0
_REMEMBERED = 5
# What pinpoint writes are milliwatts, and at its end two times, in epoch seconds.
_PINPOINT = "pinpoint:"
_EPOCH = 1e9


@dataclass(slots=True, kw_only=True)
class External(BaseMeter):
    """A meter that something else reads, found by what `source` names.

    - `meter.csv`: a file that grows, one line per reading: `unix seconds, watts` or `watts`; what
      stands there when it is opened is passed over. A file that is cut or replaced is followed.
    - `pinpoint:measurements.csv`: the same as pinpoint writes it, whole milliwatts line by line.
    - `http://host/path#a.b.0`: a JSON document, and the way to the watts in it after the `#`.
    - `prometheus:http://host:9090?query=...`: an instant query whose first result is in watts, such
      as `sum(node_power_watts) by (rack)`; spaces may be written as such.

    Attributes:
        source: Where it is.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "external"
    slow: ClassVar[bool] = True
    source: str = ""
    timeout_s: float = 2.0
    _file: IO[bytes] | None = field(default=None, init=False)
    _last: tuple[float, float] = field(default=(0.0, math.nan), init=False)
    _rest: bytes = field(default=b"", init=False)
    _came_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - is wherever the user says
        """Say how such a meter is named: there is nothing to look for."""
        return Found(
            meter=cls.name,
            state="absent",
            what="is used when named",
            cure="--meter external:meter.csv, external:pinpoint:measurements.csv, "
            "external:http://host/path#key, external:prometheus:http://host:9090?query=...",
        )

    def open(self) -> tuple[Channel, ...]:
        """Open the file at its end, or ask the address once."""
        if not self.source:
            raise InvalidInput("say where the meter is: external:FILE.csv or external:http://...")
        if self._remote:
            self.sample()
            return (_CHANNEL,)
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise MeterProblem(f"cannot read the meter's file {self._path}: {error}") from None
        self._file.seek(0, 2)
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Return the newest reading; NaN where it has grown stale."""
        now = time.time()
        if self._remote:
            return checked(now, [_CHANNEL], [self._ask()])
        moment = time.monotonic()
        if self._file is not None:
            self._take(self._file.read(), now, moment)
            if self._begin_anew(self._file):
                self._take(self._file.read(), now, moment)
        at, watts = self._last
        fresh = now - at < _STALE_S and self._goes_on(moment)
        return checked(now, [_CHANNEL], [watts if fresh else math.nan])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _remote(self) -> bool:
        return self.source.startswith(("http://", "https://", "prometheus:"))

    @property
    def _path(self) -> Path:
        return Path(self.source.removeprefix(_PINPOINT))

    def _goes_on(self, moment: float) -> bool:
        """Return whether the last line came as lately as lines of this meter do."""
        if not self._came_s:
            return False
        longest_s = max((later - sooner for sooner, later in pairwise(self._came_s)), default=0.0)
        holds_s = max(_STALE_TURNS * longest_s, _LEAST_STALE_S)
        return moment - self._came_s[-1] < min(holds_s, _STALE_S)

    def _begin_anew(self, file: IO[bytes]) -> bool:
        """Go to the beginning of a file that was cut, or open the one in its place."""
        try:
            there = self._path.stat()
        except OSError:
            # Between two files there is none.
            return False
        if there.st_ino == os.fstat(file.fileno()).st_ino:
            if there.st_size >= file.tell():
                return False
            file.seek(0)
        else:
            file.close()
            self._file = self._path.open("rb")
        self._rest = b""
        return True

    def _take(self, more: bytes, now: float, moment: float) -> None:
        # The last line may be half written.
        *lines, self._rest = (self._rest + more).split(b"\n")
        before = self._last
        for line in (each.decode(errors="replace") for each in lines):
            cells = [cell.strip() for cell in line.split(",")]
            try:
                numbers = [float(cell) for cell in cells[:2]]
            except ValueError:
                continue
            if self.source.startswith(_PINPOINT):
                if len(numbers) == 1 and numbers[0] < _EPOCH:
                    self._last = (now, numbers[0] / 1000.0)
            else:
                self._last = (now, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
        if self._last is not before:
            self._came_s.append(moment)

    def _ask(self) -> float:
        if self.source.startswith("prometheus:"):
            base, _, query = self.source.removeprefix("prometheus:").partition("?")
            address = f"{base.rstrip('/')}/api/v1/query?{'&'.join(map(_quoted, query.split('&')))}"
            path = "data.result.0.value.1"
        else:
            address, _, path = self.source.partition("#")
            address = address.replace(" ", "%20")
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https"):
            raise InvalidInput(
                f"a meter's address begins with http:// or https://, not {address!r}"
            )
        try:
            with urllib.request.urlopen(address, timeout=self.timeout_s) as answer:  # noqa: S310
                document = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise MeterProblem(f"the meter at {address} does not answer: {error}") from None
        return look_up(document, path)


def _quoted(parameter: str) -> str:
    """Return a parameter of an address as it may stand there, unless it does already."""
    name, _, value = parameter.partition("=")
    if re.search(r"%[0-9A-Fa-f]{2}", value):
        return parameter
    return f"{name}={urllib.parse.quote(value, safe='')}"


def look_up(document: Any, path: str) -> float:
    """Return the number at a way such as `a.b.0` through a document.

    Args:
        document: What JSON holds.
        path: Keys and places, with dots between them; empty for the document itself.
    """
    value = document
    for key in filter(None, path.split(".")):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise MeterProblem(f"the meter's answer has no {key!r} on the way {path!r}") from None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise MeterProblem(f"the meter's answer has no number at {path!r}: {value!r}") from None
