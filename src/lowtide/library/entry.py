"""One program of the library: its profile, how sure that is, and which runs it comes from."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import files
from lowtide.errors import FormatError, LowtideError
from lowtide.learning.likeness import COMPARED, PLACES
from lowtide.library.programs import Program
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray
from lowtide.units import format_iso, parse_time

# More watts, or CPUs, than any job has.
_MOST_USE = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the next run is expected to come to.

    Attributes:
        value: What the profile says.
        low: What it is at least, so often as `level` says; None where runs tell nothing of that.
        high: What it is at most.
        level: How often a run lies within.
        runs: How many runs that rests on.
        error: How far off single runs were that it was not made from, on average, as a share; None
            where there are none.
    """

    value: float
    low: float | None = None
    high: float | None = None
    level: float | None = None
    runs: int = 1
    error: float | None = None

    def holds(self, value: float) -> bool | None:
        """Return whether a run lies within; None where that cannot be told."""
        if self.low is None or self.high is None or math.isnan(value):
            return None
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """A program that is known, and what it is expected to do.

    Attributes:
        name: What it is called in the library.
        text: The profile as TOML, with the phases that repeat as a block.
        energy_j: What a run is expected to draw.
        duration_s: How long a run is expected to take.
        use: Where its energy goes, as `use_of` says.
        runs: How many runs it rests on.
        learned_from: How many of them its phases come from: the newest.
        since: When the first of them began.
        until: When the last of them began.
        power: `measured` or `estimated`.
        drift: How newer runs differ from what was expected of them; empty where they do not.
        notes: What else a reader should know.
    """

    name: str
    program: Program
    profile: PowerProfile
    text: str
    energy_j: Expectation
    duration_s: Expectation
    use: FloatArray
    runs: int
    learned_from: int
    since: float
    until: float
    power: str
    drift: str = ""
    notes: tuple[str, ...] = ()

    def with_epochs(self, epochs: int | None) -> PowerProfile:
        """Return its profile with another number of epochs; None for those it has."""
        if epochs is None:
            return self.profile
        return PowerProfile.from_dict(tomllib.loads(self.text), epochs=epochs)

    def document(self) -> dict[str, Any]:
        """Return what is known of it besides its phases, as plain lists and numbers."""
        return {
            "profile": self.name,
            **asdict(self.program),
            "runs": self.runs,
            "learned_from": self.learned_from,
            "since": format_iso(self.since),
            "until": format_iso(self.until),
            "power": self.power,
            "energy_j": asdict(self.energy_j),
            "duration_s": asdict(self.duration_s),
            "drift": self.drift,
            "notes": list(self.notes),
        }

    def toml(self) -> str:
        """Return the file: a profile like any other, and a table that says whose it is."""
        table = self.document()
        del table["profile"]
        expected = {
            key: {name: _rounded(value) for name, value in table.pop(key).items()}
            for key in ("energy_j", "duration_s")
        }
        used = {
            name: [_rounded(value) for value in row]
            for name, row in zip(COMPARED, self.use.tolist(), strict=True)
            if not any(map(math.isnan, row))
        }
        tables = {
            "program": table,
            **{f"program.{key}": value for key, value in expected.items()},
            "program.use": used,
        }
        lines = [self.text.rstrip("\n")]
        for name, values in tables.items():
            lines += ["", f"[{name}]"]
            lines += [
                f"{key} = {files.toml_value(value)}"
                for key, value in values.items()
                if value is not None
            ]
        return "\n".join(lines) + "\n"


def read_entry(path: Path) -> Entry:
    """Read a program from its file."""
    text = files.read_text(path)
    document = files.parse_document(text, path, "toml")
    try:
        profile = PowerProfile.from_dict(document)
        table = document["program"]
        return Entry(
            name=path.stem,
            program=Program(
                user=str(table.get("user", "")),
                name=str(table.get("name", "")),
                nodes=_count(table, "nodes"),
                cpus=_number(table, "cpus") if "cpus" in table else None,
                gpus=_number(table, "gpus") if "gpus" in table else None,
            ),
            profile=profile,
            text=text[: text.index("\n[program]")],
            energy_j=_expectation(table["energy_j"]),
            duration_s=_expectation(table["duration_s"]),
            use=_use(table.get("use", {})),
            runs=_count(table, "runs"),
            learned_from=_count(table, "learned_from"),
            since=parse_time(table["since"]),
            until=parse_time(table["until"]),
            power=str(table["power"]),
            drift=str(table.get("drift", "")),
            notes=tuple(map(str, table.get("notes", ()))),
        )
    except (
        *(KeyError, TypeError, ValueError, AttributeError, OverflowError),
        LowtideError,
    ) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(
            f"no program of the library: {why}. Remove it, and learn it again", path=path
        ) from None


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _expectation(table: Mapping[str, Any]) -> Expectation:
    known = {key: _number(table, key) for key in table if key != "runs"}
    return Expectation(**known, runs=_count(table, "runs"))


def _number(table: Mapping[str, Any], key: str) -> float:
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is a number, not {value!r}")
    return float(value)


def _count(table: Mapping[str, Any], key: str) -> int:
    value = _number(table, key)
    if value < 1 or value != int(value):
        raise ValueError(f"{key} is a whole number from 1 on, not {value:g}")
    return int(value)


def _use(table: Mapping[str, Any]) -> FloatArray:
    blank = [math.nan] * PLACES.size
    use = np.array([table.get(name, blank) for name in COMPARED], dtype=np.float64)
    if use.shape != (len(COMPARED), PLACES.size):
        raise ValueError(f"use has {PLACES.size} numbers for each quantity")
    if (np.abs(use) > _MOST_USE).any():
        raise ValueError(f"use is {_MOST_USE:g} at most")
    return use
