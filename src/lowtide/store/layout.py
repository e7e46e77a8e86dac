"""What the store keeps of every job and node: which columns, and how finely.

A counter only grows, so what was used in between is a difference, and leaving out values in
between loses nothing. A gauge is what was so on average since the value before.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from lowtide.monitor import quantities
from lowtide.monitor.quantities import Quantity
from lowtide.monitor.snapshot import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of one kind of thing that is watched.

    Attributes:
        number: What it is called in the database; never used again for other columns.
        counters: Names of what only grows.
        quanta: How finely each is kept in chunks, in its own unit.
        gauges: Names of what goes up and down; they are kept to four digits in chunks.
    """

    number: int
    counters: tuple[str, ...]
    quanta: tuple[float, ...]
    gauges: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, counters first."""
        return self.counters + self.gauges


def _layout(number: int, known: Sequence[Quantity]) -> Layout:
    """Return which quantities are kept with a layout: its own, behind those of earlier ones."""
    kept = sorted(
        (each for each in known if 0 < each.layout <= number), key=lambda each: each.layout
    )
    counters = [each for each in kept if each.is_counter]
    return Layout(
        number=number,
        counters=tuple(each.column for each in counters),
        quanta=tuple(each.finest for each in counters),
        gauges=tuple(each.column for each in kept if not each.is_counter),
    )


def _layouts(known: Sequence[Quantity]) -> list[Layout]:
    """Return all layouts that there ever were of one kind of thing, today's last."""
    return [_layout(number, known) for number in sorted({each.layout for each in known} - {0})]


_UNITS, _NODES = _layouts(quantities.JOB), _layouts(quantities.NODE)
FIRST_UNIT, UNIT = _UNITS[0], _UNITS[-1]
FIRST_NODE, NODE = _NODES[0], _NODES[-1]
# Every layout that a database may hold, and the one that has its columns today.
LAYOUTS = {each.number: (each, UNIT) for each in _UNITS}
LAYOUTS |= {each.number: (each, NODE) for each in _NODES}
# With this layout came the last of the totals that stand before `seen_end`.
_SECOND = LAYOUTS[3][0].counters

# What is known of a unit over its whole life, in the order in which the database holds it. New
# ones may only be added at the end: older rows are read with NaN for them.
TOTALS = (
    "first_seen",
    "last_seen",
    "looks",
    "seen_s",
    *FIRST_UNIT.counters,
    "memory_byte_s",
    "gpu_busy_s",
    "gpu_j",
    "peak_cpus",
    "peak_memory_bytes",
    "peak_gpus",
    "peak_gpu_memory_bytes",
    "peak_power_w",
    "reserved_cpus",
    "reserved_bytes",
    "reserved_gpus",
    *_SECOND[len(FIRST_UNIT.counters) :],
    "seen_end",
    *UNIT.counters[len(_SECOND) :],
)
# The bytes behind the numbers of a row; rows of the first lowtide have none.
CHECKSUM_BYTES = 4
PLACE = {name: place for place, name in enumerate(TOTALS)}
# The numbers among the facts of a job, in the same way. `told` is 1 where facts, and not only the
# age of a unit, say when it began.
FACTS = (
    *("started", "ended", "cpus", "memory_bytes", "gpus", "told", "submitted", "time_limit_s"),
    *("exit_code", "restarts", "nodes_asked"),
)
FACT = {name: place for place, name in enumerate(FACTS)}
# Where the counters of a unit are among its totals.
COUNTED = np.array([PLACE[name] for name in UNIT.counters])


def widened(table: FloatArray, old: tuple[str, ...], new: tuple[str, ...]) -> FloatArray:
    """Return values of older columns in those of today, NaN for what is new.

    Args:
        table: The values; the last axis are the columns.
    """
    if old == new:
        return table
    wide = np.full((*table.shape[:-1], len(new)), np.nan)
    wide[..., _places(old, new)] = table
    return wide


@cache
def _places(old: tuple[str, ...], new: tuple[str, ...]) -> npt.NDArray[np.intp]:
    return np.array([new.index(name) for name in old])


def pack_numbers(values: FloatArray) -> bytes:
    """Return totals or facts as the database holds them: the numbers, and a checksum of them.

    Args:
        values: One for each of `TOTALS` or `FACTS`.
    """
    numbers = values.astype("<f8").tobytes()
    return numbers + checksum(numbers)


def checksum(numbers: bytes) -> bytes:
    """Return what stands behind packed numbers, so that damage to them can be told."""
    return zlib.crc32(numbers).to_bytes(CHECKSUM_BYTES, "little")


def unpack_numbers(blobs: Sequence[bytes | None], names: tuple[str, ...]) -> FloatArray:
    """Return the totals or facts of many, a row for each; all NaN for what nobody knows.

    Args:
        names: `TOTALS` or `FACTS`.
    """
    return as_numbers(padded(blobs, names), names)


def padded(blobs: Sequence[bytes | None], names: tuple[str, ...]) -> bytes:
    """Return the totals or facts of many one after the other, all of the same length.

    Args:
        names: `TOTALS` or `FACTS`.
    """
    width = 8 * len(names)
    unknown = np.full(len(names), np.nan).tobytes()
    # This leaves out the checksum, and what a newer lowtide knows besides.
    joined = b"".join([unknown if blob is None else blob[:width] for blob in blobs])
    if len(joined) != width * len(blobs):
        # Rows of an older lowtide know less.
        known = [(blob or b"")[: len(blob or b"") // 8 * 8] for blob in blobs]
        joined = b"".join([(numbers + unknown[len(numbers) :])[:width] for numbers in known])
    return joined


def as_numbers(joined: bytes | bytearray, names: tuple[str, ...]) -> FloatArray:
    """Return what `padded` returned as numbers; they can be changed if they are in a bytearray.

    Args:
        names: `TOTALS` or `FACTS`.
    """
    return np.frombuffer(joined, dtype="<f8").reshape(-1, len(names))
