"""AMD GPUs: power by `amd-smi` or `rocm-smi`, whose JSON differs by version."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked, run_tool

COMMANDS = (("amd-smi", "metric", "--power", "--json"), ("rocm-smi", "--showpower", "--json"))
_ROCM_KEYS = ("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")


@dataclass(slots=True, kw_only=True)
class Amd:
    """Each AMD GPU's power.

    Attributes:
        timeout_s: How long the tool may take.
    """

    name: ClassVar[str] = "amd"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = True
    timeout_s: float = 5.0
    _command: tuple[str, ...] = field(default=(), init=False)
    _channels: tuple[Channel, ...] = field(default=(), init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a tool, not the kernel
        """Say whether there are AMD GPUs.

        Args:
            roots: Not looked at.
        """
        try:
            channels = cls().open()
        except MeterProblem as error:
            return Found(meter=cls.name, state="absent", what=str(error))
        return Found(
            meter=cls.name, state="works", what=", ".join(channel.name for channel in channels)
        )

    def open(self) -> tuple[Channel, ...]:
        """Find the tool and the GPUs."""
        command = next((each for each in COMMANDS if shutil.which(each[0])), None)
        if command is None:
            raise MeterProblem("neither amd-smi nor rocm-smi is installed")
        self._command = command
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

    def close(self) -> None:
        """Nothing is kept open."""


def read_powers(text: str) -> dict[str, float]:
    """Return the watts of each GPU in what either tool prints.

    Args:
        text: JSON of `amd-smi metric --power` or `rocm-smi --showpower`.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise MeterProblem(f"the GPU tool printed no JSON: {error}") from None
    if isinstance(document, dict) and "gpu_data" in document:
        document = document["gpu_data"]
    if isinstance(document, list):
        return {f"gpu-{each.get('gpu', place)}": _amd(each) for place, each in enumerate(document)}
    found = {}
    for card, values in document.items():
        if card.startswith("card"):
            watts = next((values[key] for key in _ROCM_KEYS if key in values), math.nan)
            found[f"gpu-{card.removeprefix('card')}"] = _number(watts)
    return found


def _amd(gpu: dict[str, Any]) -> float:
    power = gpu.get("power", {})
    for key in ("socket_power", "current_socket_power", "average_socket_power"):
        value = power.get(key)
        value = value.get("value") if isinstance(value, dict) else value
        if value not in (None, "N/A"):
            return _number(value)
    return math.nan


def _number(value: Any) -> float:
    match = re.match(r"\s*(\d+(?:\.\d+)?)", str(value))
    return float(match[1]) if match else math.nan
