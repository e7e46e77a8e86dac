"""A load plan: which part of the machine is how busy in which step, saved as TOML.

The courses that levels take over the steps follow none of each other. A shape draws one part at a
time. Of several draws the one is kept that goes least with the parts before it, and draws go on
until every correlation is below the limit.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lowtide.errors import FormatError, InvalidInput, UnknownName, guess_at
from lowtide.files import read_text, write_whole
from lowtide.signal import FloatArray
from lowtide.units import DurationLike, parse_duration

# What can be loaded, in the order of columns.
PARTS = ("cpu", "memory", "disk", "gpu")
# Work and rest alternate some forty times a second; a shorter step has no level to speak of.
SHORTEST_STEP_S = 0.1
_MOST_STEPS = 1_000_000

_KEYS = ("shape", "seed", "step_s", "cores", "parts", "levels")
_HEAD = "# A load plan for `lowtide stress run`: a row per step, levels in percent."

# What counts as independent.
MOST_CORRELATION = 0.2
# What is accepted stays below it in two digits as well.
_ACCEPTED = 0.19
# So many draws are compared, and so many are made before giving up.
_COMPARED = 32
_MOST_DRAWS = 4096
# A staircase has so many levels: 0, 25, 50, 75 and 100 %.
_STAIRS = 5

# Returns levels from 0 to 1 over a number of steps; told which part it is, counted from 0.
Shape = Callable[[int, int, np.random.Generator], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadPlan:
    """Levels of load over steps of equal length.

    Attributes:
        shape: The course that the levels take, one of `SHAPES`.
        seed: Which of the possible plans of that shape it is.
        step_s: How long each step lasts.
        parts: What is loaded, of `PARTS`.
        levels: In percent, a row per step and a column per part.
        cores: How many CPU cores are loaded; None means all that the machine offers.
    """

    shape: str
    seed: int
    step_s: float
    parts: tuple[str, ...]
    levels: FloatArray
    cores: int | None = None

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def duration_s(self) -> float:
        """How long the whole plan lasts."""
        return len(self) * self.step_s

    def of(self, part: str) -> FloatArray:
        """Return the levels of one part, in percent."""
        return self.levels[:, self.parts.index(part)]

    def without(self, parts: Sequence[str]) -> LoadPlan:
        """Return the plan with some parts left alone.

        Args:
            parts: Of `PARTS`; those that the plan does not have are left out of it already.
        """
        for part in parts:
            if part not in PARTS:
                raise UnknownName("part", part, PARTS)
        kept = tuple(part for part in self.parts if part not in parts)
        if not kept:
            raise InvalidInput(
                f"without {', '.join(self.parts)} there is nothing left to load: make a plan with "
                "other parts"
            )
        return replace(self, parts=kept, levels=np.column_stack([self.of(part) for part in kept]))

    def correlations(self) -> dict[tuple[str, str], float]:
        """Return the correlation of every two parts, NaN where a level never changes."""
        return {
            (one, other): correlation(self.of(one), self.of(other))
            for one, other in combinations(self.parts, 2)
        }

    def label(self, number: int) -> str:
        """Return what a recording calls a step: `step_3 cpu=50 gpu=12.5`.

        Args:
            number: Which step, counted from 0.
        """
        row = zip(self.parts, self.levels[number], strict=True)
        return " ".join([f"step_{number}", *(f"{part}={level:g}" for part, level in row)])

    def toml(self) -> str:
        """Return the plan as it is saved."""
        lines = [_HEAD, f'shape = "{self.shape}"', f"seed = {self.seed}"]
        lines.append(f"step_s = {self.step_s!r}")
        if self.cores is not None:
            lines.append(f"cores = {self.cores}")
        lines.append("parts = [" + ", ".join(f'"{part}"' for part in self.parts) + "]")
        lines.append("levels = [")
        lines += (f"  [{', '.join(map(repr, row))}]," for row in self.levels.tolist())
        return "\n".join([*lines, "]"]) + "\n"

    def dump(self, path: Path | str) -> None:
        """Save the plan; the same plan is always the same bytes."""
        path = Path(path)
        if path.suffix != ".toml":
            raise InvalidInput(f"a load plan is a .toml file, not {path.name!r}")
        write_whole(path, self.toml())

    @classmethod
    def load(cls, path: Path | str) -> LoadPlan:
        """Read a plan that was saved."""
        text = read_text(path)
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            found = re.search(r"at line (\d+)", str(error))
            # A file that was cut off ends in the midst of its last line.
            line = int(found[1]) if found else text.rstrip("\n").count("\n") + 1
            raise FormatError(f"not valid TOML: {error}", path=path, line=line) from error
        try:
            return _read(document)
        except _Fault as fault:
            raise FormatError(str(fault), path=path, line=_line(text, fault)) from fault


class _Fault(Exception):
    """Something in a document is wrong: a key, or a row of its levels."""

    def __init__(self, message: str, *, key: str, row: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.row = row


def make_plan(
    shape: str,
    ranges: Mapping[str, tuple[float, float]],
    *,
    duration: DurationLike = 60.0,
    step: DurationLike = 0.5,
    seed: int = 0,
    cores: int | None = None,
) -> LoadPlan:
    """Draw a load plan; the same arguments give the same plan.

    Args:
        shape: The course of the levels, one of `SHAPES`.
        ranges: For each part its lowest and its highest level, in percent.
        duration: How long it lasts; what is left over after whole steps is left out.
        step: How long each step lasts, at least `SHORTEST_STEP_S`.
        cores: How many CPU cores are loaded; None means all that the machine offers.

    >>> print(make_plan("ramp", {"cpu": (0, 100)}, duration="2s", seed=1).toml(), end="")
    # A load plan for `lowtide stress run`: a row per step, levels in percent.
    shape = "ramp"
    seed = 1
    step_s = 0.5
    parts = ["cpu"]
    levels = [
      [0.0],
      [100.0],
      [100.0],
      [0.0],
    ]
    """
    step_s, duration_s = parse_duration(step), parse_duration(duration)
    if fault := _step_fault(step_s):
        raise InvalidInput(fault)
    # A duration that is a whole number of steps stays so in binary fractions.
    steps = math.floor(duration_s / step_s + 1e-9)
    if steps < 1:
        raise InvalidInput(
            f"a plan of {duration_s:g} s is shorter than its step of {step_s:g} s: make it longer, "
            "or its steps shorter"
        )
    if steps > _MOST_STEPS:
        raise InvalidInput(
            f"{steps:,} steps are more than {_MOST_STEPS:,}: make the plan shorter, or its steps "
            "longer"
        )
    if seed < 0:
        raise InvalidInput(f"a seed is 0 or more, not {seed}")
    if cores is not None and cores < 1:
        raise InvalidInput(f"the CPU load needs at least 1 core, not {cores}")
    if not ranges:
        raise InvalidInput(f"a plan has at least one part of {', '.join(PARTS)}")
    for part, (low, high) in ranges.items():
        if part not in PARTS:
            raise UnknownName("part", part, PARTS)
        if not 0 <= low <= high <= 100:
            raise InvalidInput(
                f"levels of {part} go from a lower to a higher one between 0 and 100 %, not from "
                f"{low:g} to {high:g}"
            )
    parts = tuple(part for part in PARTS if part in ranges)
    return LoadPlan(
        shape=shape,
        seed=seed,
        step_s=step_s,
        parts=parts,
        levels=draw_levels(shape, [ranges[part] for part in parts], steps, seed=seed),
        cores=cores,
    )


def _step_fault(step_s: float) -> str:
    """Say what is wrong with the length of a step, nothing if it will do."""
    if math.isfinite(step_s) and step_s >= SHORTEST_STEP_S:
        return ""
    return (
        f"a step lasts at least {SHORTEST_STEP_S:g} s, not {step_s:g} s: a level is a mixture of "
        "work and rest in slices of 25 ms, and a shorter step has too few of them"
    )


def _read(document: Mapping[str, Any]) -> LoadPlan:
    """Make a plan of what stands in a file."""
    for key in document:
        if key not in _KEYS:
            guess = guess_at(key, _KEYS)
            raise _Fault(f"unknown key {key!r}{guess}: known are {', '.join(_KEYS)}", key=key)
    for key in _KEYS:
        if key not in document and key != "cores":
            raise _Fault(f"a load plan has {key}: make it anew, lowtide stress plan", key=key)
    shape, seed, step_s = document["shape"], document["seed"], document["step_s"]
    if shape not in SHAPES:
        raise _Fault(str(UnknownName("shape", str(shape), SHAPES)), key="shape")
    if not _is_whole(seed) or seed < 0:
        raise _Fault(f"a seed is a whole number, 0 or more, not {seed!r}", key="seed")
    if not _is_number(step_s) or _step_fault(step_s):
        fault = _step_fault(step_s) if _is_number(step_s) else f"{step_s!r} is no number of seconds"
        raise _Fault(fault, key="step_s")
    cores = document.get("cores")
    if cores is not None and (not _is_whole(cores) or cores < 1):
        raise _Fault(f"cores is a whole number, 1 or more, not {cores!r}", key="cores")
    parts = document["parts"]
    if not isinstance(parts, list) or not parts or len(set(map(str, parts))) < len(parts):
        raise _Fault(f"parts is a list of different names, not {parts!r}", key="parts")
    for part in parts:
        if part not in PARTS:
            raise _Fault(str(UnknownName("part", str(part), PARTS)), key="parts")
    return LoadPlan(
        shape=shape,
        seed=seed,
        step_s=float(step_s),
        parts=tuple(parts),
        levels=_levels(document["levels"], parts),
        cores=cores,
    )


def _levels(rows: Any, parts: Sequence[str]) -> FloatArray:
    if not isinstance(rows, list) or not rows:
        raise _Fault("levels is a list with a row for each step", key="levels")
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(parts):
            raise _Fault(
                f"a row has a level for each of {', '.join(parts)}, not {row!r}",
                key="levels",
                row=number,
            )
        for part, level in zip(parts, row, strict=True):
            if not _is_number(level) or not 0 <= level <= 100:
                raise _Fault(
                    f"a level is a number from 0 to 100 %, and that of {part} is {level!r}",
                    key="levels",
                    row=number,
                )
    return np.array(rows, dtype=float)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # Whole numbers of hundreds of digits are none to reckon with.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 10**300


def _line(text: str, fault: _Fault) -> int | None:
    """Return the line of a file in which something is wrong, None where it is not there."""
    lines = text.splitlines()
    key = re.compile(rf"\s*\"?{re.escape(fault.key)}\"?\s*=")
    first = next((number for number, line in enumerate(lines, 1) if key.match(line)), None)
    if first is None or fault.row is None:
        return first
    # Rows stand one to a line, as they were written.
    rows = [number for number, line in enumerate(lines, 1) if re.match(r"\s*\[", line)]
    rows = [number for number in rows if number > first]
    return rows[fault.row] if fault.row < len(rows) else first


def _ramp(steps: int, part: int, rng: np.random.Generator) -> FloatArray:
    """Rise and fall evenly, each part twice as often as the one before it."""
    # Triangles whose frequencies differ by a power of two are orthogonal whatever their phases.
    phase = rng.random() if part else 0.0
    place = (2.0**part * np.arange(steps) / max(steps - 1, 1) + phase) % 1.0
    return 1.0 - np.abs(2.0 * place - 1.0)


def _steps(steps: int, part: int, rng: np.random.Generator) -> FloatArray:
    """Hold one level after another, each part changing within what the one before it holds."""
    stairs = min(_STAIRS, steps)
    blocks = min(stairs ** (part + 1), steps)
    cycles = [rng.permutation(stairs) for _ in range(-(-blocks // stairs))]
    levels: FloatArray = np.concatenate(cycles)[:blocks] / (stairs - 1)
    held: FloatArray = levels[np.arange(steps) * blocks // steps]
    return held


def _random(steps: int, _part: int, rng: np.random.Generator) -> FloatArray:
    """Draw every level by itself, from anywhere."""
    return rng.random(steps)


def _latin(steps: int, _part: int, rng: np.random.Generator) -> FloatArray:
    """Visit as many evenly spaced levels as there are steps, each once, in any order."""
    return rng.permutation(steps) / max(steps - 1, 1)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"ramp": _ramp, "steps": _steps, "random": _random, "latin": _latin}
)


def draw_levels(
    shape: str, ranges: Sequence[tuple[float, float]], steps: int, *, seed: int
) -> FloatArray:
    """Return levels in percent, a row per step and a column per part.

    Every part reaches both ends of its range. No two parts correlate by `MOST_CORRELATION` or more.

    Args:
        shape: One of `SHAPES`.
        ranges: The lowest and the highest level of each part, in percent.

    >>> draw_levels("latin", [(0, 100)], 5, seed=1).ravel().tolist()
    [100.0, 0.0, 25.0, 50.0, 75.0]
    """
    if shape not in SHAPES:
        raise UnknownName("shape", shape, SHAPES)
    if steps < 2 and any(low < high for low, high in ranges):
        raise InvalidInput(
            "a part reaches its lowest and its highest level in 2 steps or more, and here is "
            f"{steps}: make the plan longer, or its steps shorter"
        )
    chosen: list[FloatArray] = []
    for part, (low, high) in enumerate(ranges):
        rng = np.random.default_rng([seed, part])
        best, least = None, np.inf
        for number in range(_MOST_DRAWS):
            drawn = _spread(SHAPES[shape](steps, part, rng), low, high)
            if drawn is None:
                continue
            most = _dependence(drawn, chosen)
            if most < least:
                best, least = drawn, most
            if least == 0.0 or (number >= _COMPARED and least < _ACCEPTED):
                break
        if best is None or least >= _ACCEPTED:
            raise InvalidInput(
                f"{steps} steps of the shape {shape} are too few for {len(ranges)} parts that do "
                f"not go together (a correlation of {MOST_CORRELATION:g} is too much): make the "
                "plan longer, its steps shorter, or leave out a part"
            )
        chosen.append(best)
    return np.column_stack(chosen)


def correlation(one: FloatArray, other: FloatArray) -> float:
    """Return Pearson's correlation, NaN where one of them never changes.

    >>> round(correlation(np.array([0.0, 1.0, 2.0]), np.array([5.0, 3.0, 1.0])), 6)
    -1.0
    """
    first, second = one - one.mean(), other - other.mean()
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / size if size > 0 else np.nan


def _dependence(drawn: FloatArray, others: Sequence[FloatArray]) -> float:
    """Return the largest correlation, whatever its sign; a level that never changes has none."""
    found = (abs(correlation(drawn, other)) for other in others)
    return max((each for each in found if not np.isnan(each)), default=0.0)


def _spread(levels: FloatArray, low: float, high: float) -> FloatArray | None:
    """Stretch levels to the whole range in tenths of a percent, None if they are all the same."""
    if low == high:
        return np.full(levels.size, float(low))
    bottom, top = levels.min(), levels.max()
    if bottom == top:
        return None
    spread = np.round(low + (high - low) * (levels - bottom) / (top - bottom), 1)
    # An end that is no tenth of a percent is reached all the same.
    return np.where(levels == bottom, low, np.where(levels == top, high, spread))
