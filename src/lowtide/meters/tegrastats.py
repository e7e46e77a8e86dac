"""tegrastats: what NVIDIA Jetson boards print about themselves.

The lines differ from one JetPack to the next: `VDD_IN 2532/2532` in milliwatts, now and mean;
later `VDD_IN 2532mW/2532mW`, a date in front, clocks as lists (`@[114]`). A part of a line that
is not understood is counted, not dropped without a word.
"""

from __future__ import annotations

import math
import queue
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked

_RAIL = re.compile(r"\b((?:VDD|VIN|POM|NC|CPU|GPU|SYS)_[A-Z0-9_]+)\s+(\d+)(?:mW)?/(\d+)(?:mW)?")
# The rail that feeds the whole board, by board.
_WHOLE = ("VDD_IN", "POM_5V_IN", "VIN_SYS_5V0", "SYS_VIN_HV")
# Parts that say something other than power, and are known to.
_OTHER = (
    re.compile(r"^\d{2}-\d{2}-\d{4} \d{2}:\d{2}:\d{2}\s*"),
    re.compile(r"\b(?:RAM|SWAP|IRAM) \d+/\d+[MkG]?B ?\((?:lfb \d+x\d+[MkG]?B|cached \d+[MkG]?B)\)"),
    re.compile(r"\bCPU \[[^\]]*\]"),
    re.compile(r"\b[A-Za-z0-9_]+@-?\d+(?:\.\d+)?C\b"),
    re.compile(r"\b[A-Z0-9_]+ \d+%(?:@(?:\d+|\[[^\]]*\]))?"),
    re.compile(r"\b[A-Z0-9_]+ (?:off|@?\d+(?:\.\d+)?|@\[[^\]]*\])(?=\s|$)"),
    re.compile(r"\b[A-Z0-9_]+@(?:\d+|\[[^\]]*\])"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of tegrastats.

    Attributes:
        rails_w: What each rail drew at that moment.
        unknown: The parts of the line that were not understood.
    """

    rails_w: dict[str, float]
    unknown: tuple[str, ...]


def read_line(text: str) -> Line:
    """Return what a line says.

    Args:
        text: The line.

    >>> read_line("RAM 2448/7771MB (lfb 1x4MB) VDD_IN 4880mW/4880mW VDD_SOC 1440mW/1440mW").rails_w
    {'VDD_IN': 4.88, 'VDD_SOC': 1.44}
    """
    rails_w = {match[1]: int(match[2]) / 1000 for match in _RAIL.finditer(text)}
    rest = _RAIL.sub(" ", text)
    for known in _OTHER:
        rest = known.sub(" ", rest)
    return Line(rails_w=rails_w, unknown=tuple(rest.split()))


@dataclass(slots=True, kw_only=True)
class Tegrastats:
    """A Jetson board's power rails; the one that feeds the whole board is the node.

    Attributes:
        interval_s: How often the tool prints.
        unknown: How many parts of lines were not understood so far.
    """

    name: ClassVar[str] = "tegrastats"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    interval_s: float = 0.1
    unknown: int = 0
    _tool: subprocess.Popen[str] | None = field(default=None, init=False)
    _listener: threading.Thread | None = field(default=None, init=False)
    _lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, init=False)
    _rails: tuple[str, ...] = field(default=(), init=False)
    _channels: tuple[Channel, ...] = field(default=(), init=False)
    _last: Line | None = field(default=None, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a tool, not the kernel
        """Say whether this is a Jetson board.

        Args:
            roots: Not looked at.
        """
        if shutil.which("tegrastats") is None:
            return Found(meter=cls.name, state="absent", what="no Jetson board")
        meter = cls()
        try:
            channels = meter.open()
        except MeterProblem as error:
            return Found(meter=cls.name, state="no permission", what=str(error), cure="use sudo")
        finally:
            meter.close()
        return Found(
            meter=cls.name, state="works", what=", ".join(channel.name for channel in channels)
        )

    def open(self) -> tuple[Channel, ...]:
        """Start the tool and wait for its first line."""
        if shutil.which("tegrastats") is None:
            raise MeterProblem("tegrastats is not installed: it belongs to Jetson boards")
        self._tool = subprocess.Popen(  # noqa: S603 - the meter's own tool
            ["tegrastats", "--interval", str(max(int(1000 * self.interval_s), 1))],  # noqa: S607
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(self._tool,), daemon=True)
        self._listener.start()
        try:
            line = read_line(self._lines.get(timeout=5))
        except queue.Empty:
            self.close()
            raise MeterProblem("tegrastats printed nothing for 5 s") from None
        if not line.rails_w:
            self.close()
            raise MeterProblem("tegrastats shows no power rail on this board")
        self._last = line
        self.unknown += len(line.unknown)
        self._rails = tuple(line.rails_w)
        self._channels = tuple(
            Channel(name=rail, domain="node" if rail in _WHOLE else "other") for rail in self._rails
        )
        return self._channels

    def sample(self) -> Reading:
        """Return the newest line that was printed."""
        now = time.time()
        while not self._lines.empty():
            self._last = read_line(self._lines.get())
            self.unknown += len(self._last.unknown)
        gone = self._tool is None or self._tool.poll() is not None
        rails_w = {} if gone or self._last is None else self._last.rails_w
        return checked(now, self._channels, [rails_w.get(rail, math.nan) for rail in self._rails])

    def close(self) -> None:
        """End the tool."""
        if self._tool is not None:
            self._tool.terminate()
            self._tool.wait(timeout=5)
            if self._listener is not None:
                self._listener.join(timeout=5)
            if self._tool.stdout is not None:
                self._tool.stdout.close()
            self._tool = None

    def _listen(self, tool: subprocess.Popen[str]) -> None:
        if tool.stdout is not None:
            for text in tool.stdout:
                self._lines.put(text)
