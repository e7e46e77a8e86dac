"""AMD GPUs: power by `amd-smi` or `rocm-smi`, whose JSON differs by version."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked, run_tool, tried

COMMANDS = (("amd-smi", "metric", "--power", "--json"), ("rocm-smi", "--showpower", "--json"))
_AMD_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
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
        """Say whether there are AMD GPUs."""
        return tried(cls())

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
