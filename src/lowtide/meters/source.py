"""Meters in use: which ones, read how, and what of them counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.errors import InvalidInput, LowtideError
from lowtide.meters.estimate import Estimate
from lowtide.meters.external import External
from lowtide.meters.hwmon import Hwmon
from lowtide.meters.meter import METERS, Channel, Meter, Reading, Roots
from lowtide.meters.redfish import Redfish
from lowtide.meters.utilisation import UtilisationModel

# A slow meter is asked again so long after its last answer.
_PAUSE_S = 0.5
# What a slow meter said so many turns ago, and so many seconds at least, is no longer so.
_STALE_TURNS = 3
_LEAST_STALE_S = 3.0


def choose_meters(said: Sequence[str], roots: Roots | None = None) -> list[Meter]:
    """Return the meters that were asked for, or all that this machine offers.

    Args:
        said: Names, each maybe with more after a colon (`external:meter.csv`); empty for all that
            work here, and an estimate where none does.
        roots: Where the kernel's files are.
    """
    roots = roots or Roots()
    found: list[Meter] = [_named(each, roots) for each in said]
    if not said:
        for name in METERS.names():
            kind = METERS.load(name)
            if kind.measured and kind.find(roots).state == "works":
                found.append(_made(kind, roots))
    names = frozenset(meter.name for meter in found)
    for meter in found:
        if isinstance(meter, Hwmon):
            meter.beside = names
    return found or [Estimate(roots=roots)]


def _named(text: str, roots: Roots) -> Meter:
    name, _, more = text.partition(":")
    kind = METERS.load(name)
    if kind is External:
        return External(source=more)
    if kind is Redfish and more:
        return Redfish(address=more)
    if kind is Estimate and more:
        return Estimate(model=UtilisationModel.load(more), roots=roots)
    if more:
        raise InvalidInput(f"meter {name} takes nothing after its name, unlike {text!r}")
    return _made(kind, roots)


def _made(kind: type[Meter], roots: Roots) -> Meter:
    fields = getattr(kind, "__dataclass_fields__", {})
    return kind(**({"roots": roots} if "roots" in fields else {}))


@dataclass(slots=True)
class Source:
    """A meter in use, read by itself where it is slow, and what it said last.

    Attributes:
        meter: The meter.
        channels: What it sees.
        last: The last reading that said anything.
        silent_since: Since when it says nothing; None while it does.
        problem: Why it does not answer, in words; empty while it does.
    """

    meter: Meter
    channels: tuple[Channel, ...]
    last: Reading | None = None
    silent_since: float | None = None
    problem: str = ""
    # What a slow meter said last, or why it did not; when, and how long that holds.
    _newest: tuple[Reading | None, str, float, float] | None = field(default=None, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def begin(self) -> None:
        """Read a slow meter beside the others, so that none waits for it."""
        if self.meter.slow:
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def read(self) -> Reading | None:
        """Return the newest reading, None where the meter does not answer; `problem` says why."""
        if self._thread is None:
            reading, problem = self._ask()
        elif self._newest is None:
            return None
        else:
            reading, problem, at_s, holds_s = self._newest
            if reading is not None and time.monotonic() - at_s > holds_s:
                reading, problem = None, f"it has not answered for over {holds_s:.0f} s"
        self.problem = problem
        return reading

    def end(self) -> None:
        """Let go of the meter."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self.meter.close()

    def _listen(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            asked_s = time.monotonic()
            said = self._ask()
            turn_s = _PAUSE_S + time.monotonic() - asked_s
            self._newest = (*said, asked_s, max(_STALE_TURNS * turn_s, _LEAST_STALE_S))

    def _ask(self) -> tuple[Reading | None, str]:
        try:
            return self.meter.sample(), ""
        except LowtideError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001
            # Meters meet half an answer, a field that holds words, a driver that is unloaded. No
            # list of errors is complete, and one that is missed would end the thread, so that the
            # last value stood for all that came after it.
            return None, f"{type(error).__name__}: {error}"


def counted(channels: Sequence[Channel]) -> list[bool]:
    """Return which channels make up what was drawn in all, so that nothing is counted twice.

    A node's meter sees everything. Else the platform's counter stands for packages and memory, and
    GPUs are added to either. Channels of other kinds are parts of something, and not added. A
    counter that says nothing is no channel: its meter leaves it out.

    Args:
        channels: The channels of all meters.

    >>> counted([Channel(name="package-0", domain="package"), Channel(name="node", domain="node")])
    [False, True]
    """
    domains = [channel.domain for channel in channels]
    if "node" in domains:
        first = domains.index("node")
        return [place == first for place in range(len(domains))]
    parts = ("psys", "gpu") if "psys" in domains else ("package", "dram", "gpu")
    return [domain in parts for domain in domains]
