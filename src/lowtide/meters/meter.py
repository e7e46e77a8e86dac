"""What a meter is, and where meters are found by name.

A meter is opened once and then read again and again. It has channels (a CPU socket, a GPU, the
whole node), and each reading says what every channel draws, or how much energy it has counted, or
both. What cannot be read is NaN: a meter never makes up a number.
"""

from __future__ import annotations

import atexit
import math
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.files import read_or_empty
from lowtide.registry import Registry

# Nothing that a channel can be draws more than this: a reading beyond it is an error of the meter.
MOST_W = {"node": 200_000.0, "package": 3000.0, "dram": 2000.0, "psys": 20_000.0, "gpu": 5000.0}
_MOST_OTHER_W = 200_000.0

# Counters are renewed up to so much late, and count then what belongs to the time before.
_LATE_S = 0.1

STATES = ("works", "no permission", "no answer", "constant 0", "absent")

# Tools that run just now; those that still do at the end are ended with the program.
RUNNING: set[subprocess.Popen[str]] = set()


class NoAnswer(MeterProblem):
    """A meter is there, and says nothing."""


class ToolFailed(MeterProblem):
    """A tool ended with an error.

    Attributes:
        tool: The tool.
        said: The last that it said.
    """

    def __init__(self, command: Sequence[str], said: str) -> None:
        super().__init__(f"{' '.join(command)} failed: {said or 'no message'}")
        self.tool, self.said = command[0], said


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the kernel's files are; elsewhere for trees that were recorded.

    Attributes:
        sysfs: Where /sys is.
        procfs: Where /proc is.
    """

    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")

    @property
    def is_here(self) -> bool:
        """Whether they are this machine's, if mounted elsewhere: then its drivers and tools fit."""
        if self == Roots():
            return True
        boot = "sys/kernel/random/boot_id"
        if self.procfs == Roots().procfs:
            # The tree of /sys is another one.
            return False
        said = read_or_empty(str(self.procfs / boot))
        return bool(said) and said == read_or_empty(f"/proc/{boot}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One thing that a meter sees.

    Attributes:
        name: What it is called, unique within the meter: `package-0`, `gpu-1`.
        domain: What it covers: "node" (everything that the others see parts of), "package",
            "dram", "psys", "gpu" or "other".
    """

    name: str
    domain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a meter read at one moment, one entry per channel, NaN for what is not known.

    Attributes:
        power_w: What each channel drew.
        energy_j: What each had counted since the meter was opened.
        problems: What was wrong with it, in words, such as a value that cannot be.
        rejected: How many values of it made no sense, and were left out.
    """

    time: float
    power_w: tuple[float, ...]
    energy_j: tuple[float, ...] = ()
    problems: tuple[str, ...] = ()
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What this machine offers of one kind of meter.

    Attributes:
        meter: The kind of meter.
        state: One of `STATES`.
        what: What was found, in words.
        cure: What to do where it does not work.
    """

    meter: str
    state: str
    what: str = ""
    cure: str = ""


@runtime_checkable
class Meter(Protocol):
    """Anything that says what a machine or a part of it draws.

    Attributes:
        name: The kind of meter.
        measured: Whether it measures; a model that estimates does not.
        means: Whether its power is the mean since the last reading, not that of the moment.
        slow: Whether a reading may take long, so that it is to be read beside the others.
    """

    name: ClassVar[str]
    measured: ClassVar[bool]
    means: ClassVar[bool]
    slow: ClassVar[bool]

    @classmethod
    def find(cls, roots: Roots) -> Found:
        """Say whether this machine has such a meter, without keeping anything open.

        Args:
            roots: Where the kernel's files are.
        """
        ...

    def open(self) -> tuple[Channel, ...]:
        """Get ready to be read, and say which channels there are."""
        ...

    def sample(self) -> Reading:
        """Read all channels once."""
        ...

    def close(self) -> None:
        """Let go of whatever was opened."""
        ...


class BaseMeter(ABC):
    """What most meters have in common; each may say otherwise."""

    __slots__ = ()
    name: ClassVar[str]
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - most that need no file are asked
        """Say whether this machine has such a meter, by trying it."""
        return tried(cls())

    @abstractmethod
    def open(self) -> tuple[Channel, ...]:
        """Get ready to be read, and say which channels there are."""

    @abstractmethod
    def sample(self) -> Reading:
        """Read all channels once."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of whatever was opened."""


METERS: Registry[type[Meter]] = Registry("lowtide.meters", "meter")


def plausible(channel: Channel, power_w: float) -> tuple[float, str]:
    """Return a power, or NaN and why it cannot be."""
    most_w = MOST_W.get(channel.domain, _MOST_OTHER_W)
    if math.isnan(power_w) or 0 <= power_w <= most_w:
        return power_w, ""
    return math.nan, f"{channel.name} read {power_w:g} W, which a {channel.domain} cannot draw"


def checked(
    time: float,
    channels: Sequence[Channel],
    power_w: Sequence[float],
    energy_j: Sequence[float] = (),
    problems: Sequence[str] = (),
    resets: Sequence[Channel] = (),
) -> Reading:
    """Return a reading without the powers that cannot be.

    Args:
        problems: What else was wrong with it.
        resets: What has a counter that was reset since the reading before.
    """
    pairs = [plausible(channel, watts) for channel, watts in zip(channels, power_w, strict=True)]
    wrong = [f"{problem}; left out" for _, problem in pairs if problem]
    wrong += [
        f"the energy counter of {channel.name} was reset: what was drawn since the reading before "
        "is not known"
        for channel in resets
    ]
    return Reading(
        time=time,
        power_w=tuple(watts for watts, _ in pairs),
        energy_j=tuple(energy_j) or (math.nan,) * len(pairs),
        problems=(*wrong, *problems),
        rejected=len(wrong),
    )


@dataclass(slots=True)
class Counter:
    """Joules since a counter was first read, whatever wraps and resets it goes through.

    Attributes:
        unit_j: What one count is.
        wraps_at: The count after which it starts from 0 again; None if it never does.
        most_w: More than this is not drawn: a count that would mean more is no count of energy.
        was_reset: Whether the last reading showed that the counter was reset or jumped, so that
            what was drawn before it is not known.
    """

    unit_j: float
    wraps_at: float | None = None
    most_w: float = math.inf
    was_reset: bool = field(default=False, init=False)
    _last: tuple[float, float] | None = field(default=None, init=False)
    _total: float = field(default=0.0, init=False)

    def add(self, count: float, time_s: float) -> float:
        """Take in a new reading; return the joules since the first.

        A count below the last one has wrapped if the power that this means can be drawn. Else the
        counter was reset: what it has counted since is added, and what it had counted until then
        is lost. A leap upwards that means too much power is left out.

        Args:
            count: What the counter shows; NaN where it could not be read.
            time_s: When, in seconds by a clock that nobody sets.
        """
        self.was_reset = False
        if math.isnan(count):
            return math.nan
        if self._last is not None:
            before, since_s = self._last
            most = math.inf
            if self.most_w < math.inf:
                most = self.most_w * (time_s - since_s + _LATE_S) / self.unit_j
            step = count - before
            if step < 0 and self.wraps_at and step + self.wraps_at <= most:
                step += self.wraps_at
            if not 0 <= step <= most:
                self.was_reset = True
                step = count if step < 0 and count <= most else 0.0
            self._total += step
        self._last = (count, time_s)
        return self._total * self.unit_j


def silent(name: str, error: NoAnswer) -> Found:
    """Say that a meter is there and does not answer."""
    return Found(
        meter=name,
        state="no answer",
        what=str(error),
        cure="run it by hand to see why, or name the meters to read with --meter",
    )


def tried(meter: Meter) -> Found:
    """Say whether a meter works, by opening it and reading it once."""
    try:
        channels = meter.open()
        watts = meter.sample().power_w
        meter.close()
    except NoAnswer as error:
        return silent(meter.name, error)
    except (MeterProblem, MissingExtra) as error:
        return Found(meter=meter.name, state="absent", what=str(error))
    names = ", ".join(channel.name for channel in channels)
    if all(math.isnan(each) for each in watts):
        return Found(meter=meter.name, state="constant 0", what=f"{names}: no power reading")
    return Found(meter=meter.name, state="works", what=names)


def run_tool(
    command: Sequence[str],
    *,
    timeout_s: float = 5.0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return what a command prints; never wait longer than the timeout.

    Args:
        environment: The variables it finds; by default those of this process.
    """
    if shutil.which(command[0]) is None:
        raise MeterProblem(f"{command[0]} is not installed")
    try:
        tool = subprocess.Popen(  # noqa: S603 - the commands are the meters' own
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        # It may be gone since it was looked for, or be no program.
        raise MeterProblem(f"{command[0]} cannot be run: {error.strerror}") from None
    RUNNING.add(tool)
    try:
        printed, complained = tool.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # What it started itself may hold its output open: nobody waits for that.
        tool.kill()
        tool.wait()
        for pipe in (tool.stdout, tool.stderr):
            if pipe is not None:
                pipe.close()
        raise NoAnswer(f"{command[0]} did not answer within {timeout_s:g} s") from None
    finally:
        RUNNING.discard(tool)
    if tool.returncode:
        raise ToolFailed(command, "".join((complained or printed).strip().splitlines()[-1:]))
    return printed


@atexit.register
def _end_tools() -> None:
    """End the tools that are still waited for elsewhere: none outlives the program."""
    for tool in tuple(RUNNING):
        tool.kill()


def read_number(path: Path) -> float:
    """Return the number in a file of the kernel; NaN where there is none to read."""
    try:
        return float(path.read_text().strip())
    except (OSError, ValueError):
        return math.nan
