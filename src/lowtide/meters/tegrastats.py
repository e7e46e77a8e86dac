"""tegrastats: what NVIDIA Jetson boards print about themselves.

The lines differ from one JetPack to the next: `VDD_IN 2532/2532` in milliwatts, now and mean;
later `VDD_IN 2532mW/2532mW`, a date in front, clocks as lists (`@[114]`). A part of a line that
is not understood is counted and named, not dropped without a word.

Most boards have a rail that feeds everything else. The AGX boards have none, but several that come
from the supply side by side, and what they draw together is what the board draws. Which ones these
are is told by NVIDIA's design guide of AGX Xavier (sections 5.2 and 5.6.2: GPU, CPU, SOC, CV, VDDRQ
and, beside them, SYS5V) and, for AGX Orin, on NVIDIA's forum ("Jetson AGX Orin INA3221 power
monitor layout"): VIN_SYS_5V0 comes from a supply of its own, and feeds VDDQ_VDD2_1V8AO in turn,
which is not to be added. The carrier board is in none of them.
"""

from __future__ import annotations

import math
import queue
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import MeterProblem, Once
from lowtide.meters.meter import RUNNING, BaseMeter, Channel, Found, Reading, Roots, checked

_RAIL = re.compile(r"\b([A-Z][A-Z0-9_]*)\s+(-?\d+)(?:mW)?/-?\d+(?:mW)?(?![\w.])")
# "No connection": what these channels read means nothing.
_UNUSED = "NC"
# The rail that feeds the whole board: Xavier NX, TX2, Orin NX and Nano; Nano; AGX Thor.
_WHOLE = ("VDD_IN", "POM_5V_IN", "VIN")
# Where there is none, those that come from the supply side by side: AGX Xavier, Orin, Thor.
_INPUTS = (
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
    ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),
)
# What their sum is called.
_BOARD = "board"
# A tool that has printed nothing for so many intervals, and so many seconds at least, hangs.
_SILENT_INTERVALS = 5
_LEAST_SILENT_S = 1.0
# What a board shows of itself: how busy GPU and memory controller are, their clocks, and heat.
_BUSY = re.compile(r"\b(GR3D|EMC)(?:_FREQ)? (\d+)%(?:@\[?(\d+(?:,\d+)*))?")
_CORES = re.compile(r"\b(?:CPU|cpu) \[([^\]]*)\](?:@(\d+))?")
_HEAT = re.compile(r"\b([A-Za-z0-9_]+)@(-?\d+(?:\.\d+)?)C\b")
# A sensor of the PMIC's that always shows 100, and the junction, which is the hottest place.
_STUCK, _JUNCTION = "pmic", "tj"
# What is switched off shows -256.
_COLDEST_C = -60.0
_USES = {"GR3D": ("gpu", "gpu_clock"), "EMC": ("emc", "emc_clock")}
# Parts that say something other than power, and are known to.
_OTHER = (
    re.compile(r"^\d{2}-\d{2}-\d{4} \d{2}:\d{2}:\d{2}\s*"),
    re.compile(r"\b(?:RAM|SWAP|IRAM) \d+/\d+[MkG]?B ?\((?:lfb (?:\d+x)?|cached )\d+[MkG]?B\)"),
    re.compile(r"\b(?:CPU|cpu) \[[^\]]*\](?:@\d+)?"),
    re.compile(r"\bMTS fg \d+% bg \d+%"),
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
        use: How busy and how fast GPU, memory controller and CPU were, and how hot the board was,
            by the names of `estimate.FEATURES`.
    """

    rails_w: dict[str, float]
    unknown: tuple[str, ...]
    use: dict[str, float] = field(default_factory=dict)


def read_line(text: str) -> Line:
    """Return what a line says.

    >>> read_line("RAM 2448/7771MB (lfb 1x4MB) VDD_IN 4880mW/4880mW VDD_SOC 1440mW/1440mW").rails_w
    {'VDD_IN': 4.88, 'VDD_SOC': 1.44}
    """
    rails = [match for match in _RAIL.finditer(text) if match[1] != _UNUSED]
    rails_w = {match[1]: int(match[2]) / 1000 for match in rails}
    rest = _RAIL.sub(" ", text)
    for known in _OTHER:
        rest = known.sub(" ", rest)
    return Line(rails_w=rails_w, unknown=tuple(rest.split()), use=_use(text))


def _use(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for match in _BUSY.finditer(text):
        share, clock = _USES[match[1]]
        if int(match[2]) <= 100:
            found[share] = int(match[2]) / 100
        if match[3]:
            # A GPU of several clusters has a clock for each.
            found[clock] = max(float(each) for each in match[3].split(","))
    if cores := _CORES.search(text):
        clocks = [float(each) for each in re.findall(r"%@(\d+)", cores[1])] or (
            [float(cores[2])] if cores[2] else []
        )
        if clocks:
            found["cpu_clock"] = sum(clocks) / len(clocks)
    heat = {name.lower(): float(value) for name, value in _HEAT.findall(text)}
    heat = {name: c for name, c in heat.items() if name != _STUCK and c > _COLDEST_C}
    if heat:
        found["temperature"] = heat.get(_JUNCTION, max(heat.values()))
    return found


@dataclass(slots=True, kw_only=True)
class Tegrastats(BaseMeter):
    """A Jetson board's power rails; the one that feeds the whole board is the node.

    Where there is no such rail, a channel `board` adds up those that it is fed by.

    Attributes:
        interval_s: How often the tool prints.
        unknown: How many parts of lines were not understood so far.
    """

    name: ClassVar[str] = "tegrastats"
    interval_s: float = 0.1
    unknown: int = 0
    _tool: subprocess.Popen[str] | None = field(default=None, init=False)
    _listener: threading.Thread | None = field(default=None, init=False)
    _lines: queue.SimpleQueue[tuple[float, str]] = field(
        default_factory=queue.SimpleQueue, init=False
    )
    _parts: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _channels: tuple[Channel, ...] = field(default=(), init=False)
    _last: tuple[float, Line] | None = field(default=None, init=False)
    _strange: dict[str, None] = field(default_factory=dict, init=False)
    _told: Once = field(default_factory=Once, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a tool, not the kernel
        """Say whether this is a Jetson board."""
        if shutil.which("tegrastats") is None:
            return Found(meter=cls.name, state="absent", what="no Jetson board")
        meter = cls()
        try:
            channels = meter.open()
        except MeterProblem as error:
            # Without a line it may want to be root; with one it has said what there is.
            if meter._last is None:
                return Found(
                    meter=cls.name, state="no permission", what=str(error), cure="use sudo"
                )
            return Found(meter=cls.name, state="absent", what=str(error))
        finally:
            meter.close()
        what = ", ".join(channel.name for channel in channels)
        if meter._strange:
            what += f" ({meter._not_understood(meter._strange)})"
        return Found(meter=cls.name, state="works", what=what)

    def open(self) -> tuple[Channel, ...]:
        """Start the tool and wait for its first line."""
        if shutil.which("tegrastats") is None:
            raise MeterProblem("tegrastats is not installed: it belongs to Jetson boards")
        self._tool = subprocess.Popen(  # noqa: S603 - the meter's own tool
            ["tegrastats", "--interval", str(max(int(1000 * self.interval_s), 1))],  # noqa: S607
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        RUNNING.add(self._tool)
        self._listener = threading.Thread(target=self._listen, args=(self._tool,), daemon=True)
        self._listener.start()
        try:
            self._take(self._lines.get(timeout=5))
        except queue.Empty:
            self.close()
            raise MeterProblem("tegrastats printed nothing for 5 s") from None
        rails = list(self._last[1].rails_w) if self._last is not None else []
        self._parts = {rail: (rail,) for rail in rails}
        whole = next((rail for rail in _WHOLE if rail in rails), "")
        if not whole:
            inputs = next((each for each in _INPUTS if set(each) <= set(rails)), None)
            if inputs is None:
                self.close()
                raise MeterProblem(
                    "tegrastats shows no power rail on this board"
                    if not rails
                    else f"tegrastats shows the rails {', '.join(rails)}, and it is not known "
                    "which of them feed the whole board"
                )
            whole = _BOARD
            self._parts = {_BOARD: inputs} | self._parts
        self._channels = tuple(
            Channel(name=name, domain="node" if name == whole else "other") for name in self._parts
        )
        return self._channels

    def sample(self) -> Reading:
        """Return the newest line that was printed; NaN where the tool has ended or hangs."""
        now = time.time()
        self._catch_up()
        problems = []
        # The first line, which told the rails, had strange parts as well.
        if new := [part for part in self._strange if self._told.is_new(part)]:
            problems.append(self._not_understood(new))
        rails_w: dict[str, float] = {}
        if self._last is not None and self._prints():
            rails_w = self._last[1].rails_w
        elif self._last is not None and self._tool is not None and self._tool.poll() is None:
            problems.append(f"tegrastats has printed nothing for over {self._silent_s:g} s")
        powers = [
            sum(rails_w.get(rail, math.nan) for rail in rails) for rails in self._parts.values()
        ]
        return checked(now, self._channels, powers, problems=problems)

    def use(self) -> dict[str, float]:
        """Return what the newest line shows beside power, nothing where the tool ended or hangs."""
        self._catch_up()
        return dict(self._last[1].use) if self._last is not None and self._prints() else {}

    def close(self) -> None:
        """End the tool."""
        if self._tool is not None:
            self._tool.terminate()
            self._tool.wait(timeout=5)
            RUNNING.discard(self._tool)
            if self._listener is not None:
                self._listener.join(timeout=5)
            if self._tool.stdout is not None:
                self._tool.stdout.close()
            self._tool = None

    @property
    def _silent_s(self) -> float:
        return max(_SILENT_INTERVALS * self.interval_s, _LEAST_SILENT_S)

    def _prints(self) -> bool:
        """Return whether the tool runs and has printed something lately."""
        if self._last is None or self._tool is None or self._tool.poll() is not None:
            return False
        return time.monotonic() - self._last[0] <= self._silent_s

    def _listen(self, tool: subprocess.Popen[str]) -> None:
        if tool.stdout is not None:
            for text in tool.stdout:
                self._lines.put((time.monotonic(), text))

    def _catch_up(self) -> None:
        while not self._lines.empty():
            self._take(self._lines.get())

    def _take(self, printed: tuple[float, str]) -> None:
        at_s, text = printed
        line = read_line(text)
        self._last = (at_s, line)
        self.unknown += len(line.unknown)
        # Numbers change from line to line: what is strange is named once.
        self._strange |= dict.fromkeys(re.sub(r"\d+", "#", part) for part in line.unknown)

    def _not_understood(self, parts: Iterable[str]) -> str:
        return f"parts of a line that are not understood: {' '.join(parts)}"
