"""IPMI DCMI: what the node's management controller says the node draws."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, field
from typing import ClassVar

from lowtide.errors import MeterProblem
from lowtide.meters.meter import (
    BaseMeter,
    Channel,
    Found,
    NoAnswer,
    Reading,
    Roots,
    ToolFailed,
    checked,
    run_tool,
    silent,
)

# The first of these that is installed is used; the words before the watts differ.
COMMANDS = (
    ("ipmitool", "dcmi", "power", "reading"),
    ("ipmi-dcmi", "--get-system-power-statistics"),
)
_WATTS = re.compile(
    r"^\s*(?:Instantaneous power reading|Current Power)\s*:\s*(\d+(?:\.\d+)?)\s*Watts",
    re.MULTILINE | re.IGNORECASE,
)
_CHANNEL = Channel(name="node", domain="node")
_NO_DEVICE = "No such file or directory"
_CURE = "run as root, or allow your user: sudo setfacl -m u:$USER:rw /dev/ipmi0"


@dataclass(slots=True, kw_only=True)
class Ipmi(BaseMeter):
    """The node's power by `ipmitool dcmi power reading` or `ipmi-dcmi`.

    Controllers answer slowly and often repeat the same value for seconds.

    Attributes:
        timeout_s: How long the tool may take.
    """

    name: ClassVar[str] = "ipmi"
    slow: ClassVar[bool] = True
    timeout_s: float = 5.0
    _command: tuple[str, ...] = field(default=(), init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a tool, not the kernel
        """Say whether a management controller answers."""
        command = _installed()
        if command is None:
            return Found(meter=cls.name, state="absent", what="neither ipmitool nor ipmi-dcmi")
        try:
            watts = read_watts(run_tool(command))
        except NoAnswer as error:
            return silent(cls.name, error)
        except MeterProblem as error:
            if isinstance(error, ToolFailed) and _NO_DEVICE in error.said:
                return Found(meter=cls.name, state="absent", what=str(error))
            return Found(meter=cls.name, state="no permission", what=str(error), cure=_CURE)
        if not watts > 0:
            return Found(meter=cls.name, state="constant 0", what=command[0])
        return Found(meter=cls.name, state="works", what=f"node, {watts:g} W now")

    def open(self) -> tuple[Channel, ...]:
        """Find the tool and ask it once."""
        command = _installed()
        if command is None:
            raise MeterProblem("IPMI needs ipmitool or ipmi-dcmi (FreeIPMI): install one")
        self._command = command
        self.sample()
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Ask the controller."""
        now = time.time()
        return checked(
            now, [_CHANNEL], [read_watts(run_tool(self._command, timeout_s=self.timeout_s))]
        )


def read_watts(text: str) -> float:
    """Return the watts in what a tool printed.

    Args:
        text: The output of one of `COMMANDS`.
    """
    match = _WATTS.search(text)
    if match is None:
        raise MeterProblem("the management controller says nothing of power (no DCMI)")
    return float(match[1])


def _installed() -> tuple[str, ...] | None:
    return next((command for command in COMMANDS if shutil.which(command[0])), None)
