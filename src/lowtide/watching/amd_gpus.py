"""AMD GPUs: how busy and how full each is, and who runs on it, by `amd-smi` or `rocm-smi`.

The tools take up to a second to answer and are asked beside everything else: what they said last
holds until they say more, or for too long.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowtide.errors import MeterProblem
from lowtide.files import read_or_empty
from lowtide.meters.amd import first_number, read_cards
from lowtide.meters.meter import run_tool
from lowtide.monitor.gpus import DRM_MAJOR, GpuProcess, GpuReading, check

# For each tool what lists the GPUs, how busy and full they are, and what runs on them.
COMMANDS = {
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
        tool = next((each for each in COMMANDS if shutil.which(each)), None)
        if tool is None:
            raise MeterProblem("neither amd-smi nor rocm-smi is installed")
        self._thread = threading.Thread(target=self._listen, args=(tool,), daemon=True)
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
            said = [self._ask(command) for command in COMMANDS[tool]]
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
    return int(numbers[0]) if numbers and numbers[0].isdigit() else -1


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
    return (int(number) if number.isdigit() else 0, name)
