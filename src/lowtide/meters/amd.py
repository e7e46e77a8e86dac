"""AMD GPUs by `amd-smi` or `rocm-smi`: what they draw, how busy and full they are, who runs there.

The JSON of the tools differs by version. They take up to a second to answer, so whoever watches
asks them beside everything else: what they said last holds until they say more, or for too long.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lowtide.errors import MeterProblem
from lowtide.files import read_or_empty
from lowtide.meters.meter import BaseMeter, Channel, Reading, checked, run_tool
from lowtide.monitor.gpus import DRM_MAJOR, GpuProcess, GpuReading, check

# For each tool what it is asked: how much each GPU draws; and what lists them, how busy and full
# they are, and what runs on them.
POWER = {
    "amd-smi": ("amd-smi", "metric", "--power", "--json"),
    "rocm-smi": ("rocm-smi", "--showpower", "--json"),
}
USE = {
    "amd-smi": (
        ("amd-smi", "list", "--json"),
        ("amd-smi", "metric", "--usage", "--mem-usage", "--json"),
        ("amd-smi", "process", "--json"),
    ),
    "rocm-smi": (
        ("rocm-smi", "--showbus", "--showuniqueid", "--json"),
        ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--json"),
    ),
}
# How long after an answer they are asked again, and how long one holds.
_PAUSE_S = 5.0
# Where they are installed and know of no GPU they are asked less and less.
_MOST_PAUSE_S = 600.0
_STALE_S = 60.0
_BYTES = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30}
_AMD_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
_ROCM_KEYS = ("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")


@dataclass(slots=True, kw_only=True)
class Amd(BaseMeter):
    """Each AMD GPU's power.

    Attributes:
        timeout_s: How long the tool may take.
    """

    name: ClassVar[str] = "amd"
    slow: ClassVar[bool] = True
    timeout_s: float = 5.0
    _command: tuple[str, ...] = field(default=(), init=False)
    _channels: tuple[Channel, ...] = field(default=(), init=False)

    def open(self) -> tuple[Channel, ...]:
        """Find the tool and the GPUs."""
        self._command = command = POWER[find_tool()]
        powers = read_powers(run_tool(command, timeout_s=self.timeout_s))
        if not powers:
            raise MeterProblem(f"{command[0]} shows no GPU")
        self._channels = tuple(Channel(name=name, domain="gpu") for name in powers)
        return self._channels

    def sample(self) -> Reading:
        """Read all GPUs."""
        now = time.time()
        powers = read_powers(run_tool(self._command, timeout_s=self.timeout_s))
        watts = [powers.get(channel.name, math.nan) for channel in self._channels]
        return checked(now, self._channels, watts)


def find_tool() -> str:
    """Return which of the tools is installed."""
    tool = next((each for each in POWER if shutil.which(each)), None)
    if tool is None:
        raise MeterProblem("neither amd-smi nor rocm-smi is installed")
    return tool


def read_powers(text: str) -> dict[str, float]:
    """Return the watts of each GPU in what either tool prints.

    Args:
        text: JSON of `amd-smi metric --power` or `rocm-smi --showpower`.
    """
    return {name: _watts(card) for name, card in read_cards(text).items()}


def read_cards(text: str) -> dict[str, dict[str, Any]]:
    """Return what either tool says of each GPU, by the GPU's name.

    Args:
        text: JSON of `amd-smi` or `rocm-smi`.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise MeterProblem(f"the GPU tool printed no JSON: {error}") from None
    if isinstance(document, dict) and "gpu_data" in document:
        document = document["gpu_data"]
    if isinstance(document, list):
        gpus = [(place, each) for place, each in enumerate(document) if isinstance(each, dict)]
        return {f"gpu-{each.get('gpu', place)}": each for place, each in gpus}
    if not isinstance(document, dict):
        raise MeterProblem(f"the GPU tool printed no list of GPUs, but {text.strip()!r:.80}")
    return {
        f"gpu-{card.removeprefix('card')}": values
        for card, values in document.items()
        if card.startswith("card") and isinstance(values, dict)
    }


def first_number(values: Iterable[Any]) -> float:
    """Return the first of some values that is a number, NaN where none is: others say `N/A`.

    Args:
        values: Numbers, words that begin with one, or documents that have one as their `value`.
    """
    plain = [each.get("value") if isinstance(each, dict) else each for each in values]
    numbers = [re.match(r"\s*(\d+(?:\.\d+)?)", str(each)) for each in plain]
    return next((float(match[1]) for match in numbers if match), math.nan)


def _watts(card: dict[str, Any]) -> float:
    power = card.get("power")
    inner = [power.get(key) for key in _AMD_KEYS] if isinstance(power, dict) else []
    return first_number([*inner, *(card.get(key) for key in _ROCM_KEYS)])


@dataclass(slots=True, kw_only=True)
class AmdGpus:
    """All AMD GPUs of the node, listed anew at every turn.

    Attributes:
        sysfs: Where /sys is.
        timeout_s: How long a tool may take.
    """

    sysfs: Path = Path("/sys")
    timeout_s: float = 5.0
    _newest: tuple[float, list[GpuReading]] = field(default=(-math.inf, []), init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _asked: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._listen, args=(find_tool(),), daemon=True)
        self._thread.start()

    def read(self) -> list[GpuReading]:
        """Return all GPUs as they were last seen; none where the tools have not answered lately."""
        at_s, readings = self._newest
        return readings if time.monotonic() - at_s < _STALE_S else []

    def wait(self, within_s: float) -> None:
        """Wait for the first answer: without it what runs now has an unknown beginning for ever."""
        self._asked.wait(within_s)

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        self._asked.set()

    def _listen(self, tool: str) -> None:
        pause_s = _PAUSE_S
        while True:
            said = [self._ask(command) for command in USE[tool]]
            if any(said):
                self._newest = (time.monotonic(), read_gpus(said, self.sysfs))
            self._asked.set()
            pause_s = _PAUSE_S if any(said) else min(2 * pause_s, _MOST_PAUSE_S)
            if self._stop.wait(pause_s):
                return

    def _ask(self, command: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return what a tool says of each GPU; nothing where it does not know the question."""
        try:
            return read_cards(run_tool(command, timeout_s=self.timeout_s))
        except MeterProblem:
            return {}


def read_gpus(said: list[dict[str, dict[str, Any]]], sysfs: Path) -> list[GpuReading]:
    """Return the GPUs as a tool's answers tell them.

    Args:
        said: What the tool said of each GPU, an answer per question.
    """
    cards: dict[str, dict[str, Any]] = {}
    for answer in said:
        for name, card in answer.items():
            cards[name] = cards.get(name, {}) | card
    return [_read(name, cards[name], sysfs) for name in sorted(cards, key=_number)]


def _read(name: str, card: dict[str, Any], sysfs: Path) -> GpuReading:
    device = sysfs / "bus/pci/devices" / str(card.get("bdf") or card.get("PCI Bus", "-")).lower()
    usage, memory = _inner(card, "usage"), _inner(card, "mem_usage")
    total_bytes = _size(memory.get("total_vram"), first_number([card.get("VRAM Total Memory (B)")]))
    busy, memory_bytes, rejected = check(
        name,
        busy=first_number([usage.get("gfx_activity"), card.get("GPU use (%)")]) / 100,
        memory_bytes=_size(
            memory.get("used_vram"), first_number([card.get("VRAM Total Used Memory (B)")])
        ),
        total_bytes=total_bytes,
    )
    return GpuReading(
        name=name,
        uuid=_identity(card, device),
        major=DRM_MAJOR,
        minor=_minor(device),
        busy=busy,
        memory_bytes=memory_bytes,
        total_bytes=total_bytes,
        # Not every tool tells of processes.
        processes=tuple(_processes(card)) if "process_list" in card else None,
        rejected=rejected,
    )


def _processes(card: dict[str, Any]) -> list[GpuProcess]:
    found = []
    listed = card.get("process_list")
    for each in listed if isinstance(listed, list) else ():
        # Where there is none, the tool says so in words.
        info = each.get("process_info") if isinstance(each, dict) else None
        if not isinstance(info, dict) or math.isnan(pid := first_number([info.get("pid")])):
            continue
        held = _inner(info, "memory_usage").get("vram_mem") or info.get("mem_usage")
        found.append(GpuProcess(pid=int(pid), memory_bytes=_size(held, math.nan)))
    return found


def _identity(card: dict[str, Any], device: Path) -> str:
    """Return the identity by which ROCR_VISIBLE_DEVICES names a GPU, else the tool's own."""
    unique = read_or_empty(str(device / "unique_id")).decode(errors="replace").strip()
    unique = unique or str(card.get("Unique ID", "")).removeprefix("0x")
    return f"GPU-{unique}" if unique.isalnum() else str(card.get("uuid", ""))


def _minor(device: Path) -> int:
    """Return the number of a card's device for computing: /dev/dri/renderD128 is 128."""
    try:
        names = sorted(each.name for each in (device / "drm").iterdir())
    except OSError:
        return -1
    numbers = [name.removeprefix("renderD") for name in names if name.startswith("renderD")]
    return int(numbers[0]) if numbers and numbers[0].isdecimal() else -1


def _inner(card: dict[str, Any], key: str) -> dict[str, Any]:
    inner = card.get(key)
    return inner if isinstance(inner, dict) else {}


def _size(said: Any, otherwise: float) -> float:
    """Return bytes, whatever their unit."""
    unit = _BYTES.get(str(said.get("unit", "B")), math.nan) if isinstance(said, dict) else 1.0
    size = first_number([said]) * unit
    return otherwise if math.isnan(size) else size


def _number(name: str) -> tuple[int, str]:
    number = name.removeprefix("gpu-")
    return (int(number) if number.isdecimal() else 0, name)
