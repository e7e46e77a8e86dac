"""Files damaged at random: whatever a reader is given, it reads it or raises a LowtideError, soon.

Sound files are damaged in bits, bytes, cells, lines and values that make readers stumble. Warnings
are errors in all tests: a number that overflows in silence is one here. Thousands of files per
format in CI; with LOWTIDE_NIGHTLY=1 fifty thousand.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.errors import LowtideError
from support.nightly import IS_NIGHT, drawn

COUNT = drawn(1_000, 50_000)
# The slowest single file: nothing may be laid out that a few bytes ask for.
MOST_CPU_S = 5.0

NASTY = (
    "1e308", "-1e308", "1e-320", "nan", "-nan", "inf", "-1", "0", "-0", "1e20", "9" * 400,
    "9" * 5000, "1.7e9", "99999999999999", "2147483648", "9223372036854775808", "true", "null",
    "None", '""', "''", "[]", "{}", "[[]]", "[1]", '{"a": 1}', "\u2028", "\x1c", "\x0b", "\u00a0",
    "\ufeff", "\u0660", "²", "½", "+82", "+82:00", "2024-13-40", "2024-02-30T25:61:61Z",
    "0000-00-00", "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2024-03-31T02:30",
    "2024-07-01T06:00+02:00", "2024-07-01T06:00Z", "-2024-07-01", "1-1", "1-00:00:00", "::", ":",
    ",", ";", "\t", '"', "'", "#", "# kind: occupancy", "# step_s: 1e-300", "# step_s: 0", "|",
    "||", "=", "/", "../../etc", "g/kWh", "per_kwh", "unit", "100000000", "repeat = 100000000",
    "1" + "0" * 30, "0x10", "1_000", "١", "\r", "\r\n", "\n\n", "\\", "\\u0000", "é", "\ud7ff",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Target:
    """A format: sound files of it, the name a reader wants, and the reader.

    What is read as two files is one here, cut at a line of `---`: either part may be damaged.
    """

    seeds: tuple[str | bytes, ...]
    name: str
    read: Callable[[Path], Any]
    second: str | None = None
    begin: Callable[[Path], None] | None = None


class Desk:
    """Where damaged files are laid, one over the other.

    They stay open: to make a file anew takes more time than most readers do.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self.path = folder / target.name
        self._second = folder / target.second if target.second else None
        self._files: dict[Path, int] = {}
        if target.begin is not None:
            target.begin(folder)

    def lay(self, data: bytes) -> None:
        """Make this the file, or the two, that the reader will find."""
        if self._second is not None:
            data, cut, rest = data.partition(b"---\n")
            if cut:
                self._write(self._second, rest)
            else:
                self._remove(self._second)
        self._write(self.path, data)

    def _write(self, path: Path, data: bytes) -> None:
        if path not in self._files:
            path.parent.mkdir(exist_ok=True)
            self._files[path] = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(self._files[path], data, 0)
        os.ftruncate(self._files[path], len(data))

    def _remove(self, path: Path) -> None:
        if path in self._files:
            os.close(self._files.pop(path))
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close what is open."""
        for file in self._files.values():
            os.close(file)


def damaged(seed: str | bytes, rng: random.Random) -> bytes:
    """Return a file that was damaged in one to four ways."""
    data = seed.encode() if isinstance(seed, str) else seed
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(WAYS)(data, rng)
    return data


def _spot(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _spot(data, rng)]


def _drop(data: bytes, rng: random.Random) -> bytes:
    at = _spot(data, rng)
    return data[:at] + data[at + rng.randrange(1, 12) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _spot(data, rng)
    return data[:at] + rng.choice(NASTY).encode() + data[at:]


def _twice(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    return b"\n".join([*lines[: at + 1], *lines[rng.randrange(len(lines)) :]])[:20_000]


def _swap(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def _value(data: bytes, rng: random.Random) -> bytes:
    """Put something nasty in place of a cell, a value or a word."""
    edges = [at for at, byte in enumerate(data) if byte in b',;| \n\t:="[]{}']
    if len(edges) < 2:
        return _insert(data, rng)
    at = rng.randrange(len(edges) - 1)
    return data[: edges[at] + 1] + rng.choice(NASTY).encode() + data[edges[at + 1] :]


def _json(data: bytes, rng: random.Random) -> bytes:
    """Put something nasty in place of a value in JSON, which stays JSON."""
    try:
        document = json.loads(data)
    except ValueError:
        return _value(data, rng)
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict | list):
            for key, inner in list(node.items() if isinstance(node, dict) else enumerate(node)):
                spots.append((node, key))
                walk(inner)

    walk(document)
    if not spots:
        return _value(data, rng)
    node, key = rng.choice(spots)
    node[key] = rng.choice(
        (None, True, -1, 0, 1e308, 10**30, 10**400, 1e-320, "", "x", [], {}, [[]], [1], {"a": 1})
    )
    return json.dumps(document).encode()


WAYS = (_flip, _cut, _drop, _insert, _twice, _swap, _value, _value, _value, _json, _json)


def assert_sound(folder: Path, target: Target) -> None:
    """See that the reader takes what was not damaged."""
    with closing(Desk(folder, target)) as desk:
        for seed in target.seeds:
            desk.lay(seed.encode() if isinstance(seed, str) else seed)
            target.read(desk.path)


def assert_read_or_refused(folder: Path, name: str, target: Target) -> None:
    """Damage its files over and over: each is read, or refused in words, and soon."""
    first = 1_000_000 if IS_NIGHT else 0
    with closing(Desk(folder, target)) as desk:
        for number in range(first, first + COUNT):
            rng = random.Random(f"{name} {number}")
            data = damaged(rng.choice(target.seeds), rng)
            desk.lay(data)
            begin = time.process_time()
            try:
                target.read(desk.path)
            except LowtideError as error:
                assert str(error).strip(), (number, data)
            except Exception as error:
                raise AssertionError(f"file {number} of {name}: {data[:2000]!r}") from error
            assert time.process_time() - begin < MOST_CPU_S, (number, data)
