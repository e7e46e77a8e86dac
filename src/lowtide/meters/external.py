"""Meters outside the machine: a wall meter that writes a CSV, answers HTTP, or is in Prometheus."""

from __future__ import annotations

import json
import math
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked

_CHANNEL = Channel(name="node", domain="node")
# A value older than this is no longer what is drawn now.
_STALE_S = 30.0
# What pinpoint writes are milliwatts, and at its end two times, in epoch seconds.
_PINPOINT = "pinpoint:"
_EPOCH = 1e9


@dataclass(slots=True, kw_only=True)
class External:
    """A meter that something else reads, found by what `source` names.

    - `meter.csv`: a file that grows, one line per reading: `unix seconds, watts` or `watts`; what
      stands there when it is opened is passed over.
    - `pinpoint:measurements.csv`: the same as pinpoint writes it, whole milliwatts line by line.
    - `http://host/path#a.b.0`: a JSON document, and the way to the watts in it after the `#`.
    - `prometheus:http://host:9090?query=...`: an instant query whose first result is in watts.

    Attributes:
        source: Where it is.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "external"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = True
    source: str = ""
    timeout_s: float = 2.0
    _file: IO[str] | None = field(default=None, init=False)
    _last: tuple[float, float] = field(default=(0.0, math.nan), init=False)
    _rest: str = field(default="", init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - is wherever the user says
        """Say how such a meter is named: there is nothing to look for.

        Args:
            roots: Not looked at.
        """
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
            path = Path(self.source.removeprefix(_PINPOINT))
            self._file = path.open(encoding="utf-8")
        except OSError as error:
            raise MeterProblem(f"cannot read the meter's file {path}: {error}") from None
        self._file.seek(0, 2)
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Return the newest reading; NaN where it has grown stale."""
        now = time.time()
        if self._remote:
            return checked(now, [_CHANNEL], [self._ask()])
        self._take_lines(now)
        at, watts = self._last
        return checked(now, [_CHANNEL], [watts if now - at < _STALE_S else math.nan])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _remote(self) -> bool:
        return self.source.startswith(("http://", "https://", "prometheus:"))

    def _take_lines(self, now: float) -> None:
        if self._file is None:
            return
        # The last line may be half written.
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
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

    def _ask(self) -> float:
        if self.source.startswith("prometheus:"):
            base, _, query = self.source.removeprefix("prometheus:").partition("?")
            address = f"{base.rstrip('/')}/api/v1/query?{query}"
            path = "data.result.0.value.1"
        else:
            address, _, path = self.source.partition("#")
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https"):
            raise InvalidInput(
                f"a meter's address begins with http:// or https://, not {address!r}"
            )
        try:
            with urllib.request.urlopen(address, timeout=self.timeout_s) as answer:  # noqa: S310
                document = json.load(answer)
        except (OSError, ValueError) as error:
            raise MeterProblem(f"the meter at {address} does not answer: {error}") from None
        return look_up(document, path)


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
