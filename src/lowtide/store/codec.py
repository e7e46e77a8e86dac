"""Ticks and chunks in bytes.

A tick is one row, whole, so that a kill loses no more. Nothing in it is rounded: what jobs have
used in all is counted from these rows.

A chunk is many values of one job in few bytes. Times are kept to the millisecond, counters to the
quantum of their column, gauges to 13 binary digits. Counters are rounded where they stand, not
where they grow, so that rounding never adds up: what a chunk says was used is wrong by a quantum at
most, however many values it has.

What is left after that are small whole numbers: how much faster a counter grew than before, and
by how much a gauge changed. Their bytes are set apart, first all lowest ones, then all second
ones, so that the many zeros stand together, and are packed with deflate.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.monitor.snapshot import FloatArray
from lowtide.store.layout import LAYOUTS, NODE, UNIT, Layout, widened

_TICK_HEADER = struct.Struct("<BI")
# What the layouts of each version are, of units and of the node. For a node every rate is a
# difference to the tick before, which only the writer knows. Since version 4 a tick says itself
# which layouts it has.
_TICK_LAYOUTS = {1: (1, 2), 2: (3, 4), 3: (3, 4)}
_LAYOUT_NUMBERS = struct.Struct("<BB")
_TICK_VERSION = 4
# Since then a tick says when units ended in it, in a column after the others.
_SAYS_ENDS = 3
_WIDTH = len(UNIT.names) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a tick found, as the store keeps it until it is brought into chunks.

    Attributes:
        since: When the tick before was, epoch seconds.
        time: When this one is.
        units: The numbers of the units that were seen.
        counters: What each has used so far, whoever watched it; a row per unit.
        gauges: What each holds; a row per unit.
        node: The node's counters and gauges.
        ended: When each ended, NaN for those that go on.
    """

    since: float
    time: float
    units: npt.NDArray[np.int64]
    counters: FloatArray
    gauges: FloatArray
    node: FloatArray
    ended: FloatArray


def pack_tick(look: Look) -> bytes:
    """Return a tick in bytes, its times left out."""
    table = np.hstack([look.counters, look.gauges, look.ended[:, None]]).T
    # Most columns of most nodes say the same of all: no GPU, no signal, nothing known.
    plain = np.ascontiguousarray(table).view(np.uint64)
    same = (plain == plain[:, :1]).all(axis=1) if look.units.size else np.ones(_WIDTH, dtype=bool)
    first = table[:, 0] if look.units.size else np.zeros(_WIDTH)
    parts = (
        look.units.astype("<i8"),
        look.node.astype("<f8"),
        np.packbits(same),
        first[same].astype("<f8"),
        table[~same].astype("<f8"),
    )
    body = b"".join(part.tobytes() for part in parts)
    header = _TICK_HEADER.pack(_TICK_VERSION, look.units.size)
    return header + _LAYOUT_NUMBERS.pack(UNIT.number, NODE.number) + zlib.compress(body, 1)


def unpack_tick(since: float, time: float, blob: bytes) -> Look:
    """Return the tick that `pack` packed."""
    try:
        version, count = _TICK_HEADER.unpack_from(blob)
        if not 1 <= version <= _TICK_VERSION:
            raise InvalidInput(f"tick of version {version}: only up to {_TICK_VERSION} can be read")
        begins, numbers = _TICK_HEADER.size, _TICK_LAYOUTS.get(version)
        if numbers is None:
            numbers = _LAYOUT_NUMBERS.unpack_from(blob, begins)
            begins += _LAYOUT_NUMBERS.size
        unit, node = (LAYOUTS[number][0] for number in numbers)
        says_ends = version >= _SAYS_ENDS
        width, node_width = len(unit.names) + says_ends, len(node.names)
        data = memoryview(zlib.decompress(blob[begins:]))
        units = np.frombuffer(data, "<i8", count)
        of_node = np.frombuffer(data, "<f8", node_width, 8 * count)
        place = 8 * (count + node_width)
        flags = (width + 7) // 8
        same = np.unpackbits(np.frombuffer(data, np.uint8, flags, place), count=width) == 1
        alike = np.frombuffer(data, "<f8", int(same.sum()), place + flags)
        rest = np.frombuffer(data, "<f8", -1, place + flags + alike.nbytes)
        table = np.empty((width, count))
        table[same] = alike[:, None]
        table[~same] = rest.reshape(int((~same).sum()), count)
    except (struct.error, zlib.error, KeyError, ValueError) as error:
        raise InvalidInput(f"a tick of the store is damaged: {error}") from None
    ended = table[-1].copy() if says_ends else np.full(count, np.nan)
    columns = widened(table[: len(unit.names)].T, unit.names, UNIT.names)
    counted = len(UNIT.counters)
    return Look(
        since=since,
        time=time,
        units=units.astype(np.int64),
        counters=columns[:, :counted],
        gauges=columns[:, counted:],
        node=widened(of_node, node.names, NODE.names),
        ended=ended,
    )


IntArray = npt.NDArray[np.int64]

# Largest relative error of a gauge.
GAUGE_ERROR = 2.0**-13
# A counter beyond this many quanta is no reading, and kept as unknown.
MOST_QUANTA = 2.0**60

_HEADER = struct.Struct("<BBI")
_VERSION = 1
# A float32 has 23 binary digits after its first; of these 12 are kept.
_DROPPED = 11
_NAN_CODE = 0x7FC00000 >> _DROPPED
_MOST_GAUGE = float(np.finfo(np.float32).max) * (1 - GAUGE_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Successive values of one job or node, an entry or a row for each.

    Attributes:
        since: When what each value tells of began, epoch seconds.
        time: When it ended.
        base: What the counters stood at before the first.
        counters: What they stood at at `time`, NaN where that is not known.
        gauges: What was so from `since` to `time`, NaN where that is not known.
    """

    since: FloatArray
    time: FloatArray
    base: FloatArray
    counters: FloatArray
    gauges: FloatArray

    def __len__(self) -> int:
        return self.time.size

    def __getitem__(self, chosen: slice) -> Points:
        first = chosen.indices(len(self))[0]
        return Points(
            since=self.since[chosen],
            time=self.time[chosen],
            base=self.counters[first - 1] if first else self.base,
            counters=self.counters[chosen],
            gauges=self.gauges[chosen],
        )


def encode(points: Points, layout: Layout) -> bytes:
    """Return values in few bytes."""
    count = len(points)
    ends = _milliseconds(points.time)
    begins = _milliseconds(points.since)
    # The course of time is one more counter; what is missing between two values is told apart.
    time = np.concatenate([begins[:1], ends])[:, None]
    missing = np.zeros(count, dtype=np.int64)
    missing[1:] = begins[1:] - ends[:-1]
    known, counted = _quantised(np.vstack([points.base, points.counters]), layout)
    steps = np.hstack([time, counted])
    steps[2:] -= 2 * steps[1:-1] - steps[:-2]
    steps[1:2] -= steps[:1]
    levels = np.hstack([missing[:, None], _codes(points.gauges)])
    levels[1:] -= levels[:-1].copy()
    numbers = np.concatenate([steps.T.ravel(), levels.T.ravel()])
    # Signs go to the lowest bit, so that small numbers of either sign have few bytes.
    unsigned = ((numbers << 1) ^ (numbers >> 63)).astype("<u8")
    planes = unsigned.view(np.uint8).reshape(-1, 8).T.tobytes()
    packed = zlib.compress(planes + np.packbits(known).tobytes(), 6, -15)
    return _HEADER.pack(_VERSION, layout.number, count) + packed


def decode(blob: bytes) -> tuple[Layout, Points]:
    """Return the values that `encode` packed, and which columns they have: those of today."""
    try:
        version, number, count = _HEADER.unpack_from(blob)
        layout, today = LAYOUTS[number]
        if version != _VERSION:
            raise InvalidInput(f"chunk of version {version}: only {_VERSION} can be read")
        width = len(layout.counters)
        stepped = (count + 1) * (width + 1)
        total = stepped + count * (len(layout.gauges) + 1)
        data = zlib.decompress(blob[_HEADER.size :], -15)
        planes = np.frombuffer(data, dtype=np.uint8, count=8 * total).reshape(8, total)
        bits = np.unpackbits(
            np.frombuffer(data, dtype=np.uint8, offset=8 * total), count=(count + 1) * width
        )
    except (struct.error, zlib.error, KeyError, ValueError) as error:
        raise InvalidInput(f"a chunk of the store is damaged: {error}") from None
    unsigned = np.ascontiguousarray(planes.T).view("<u8").ravel()
    numbers = (unsigned >> 1).astype(np.int64) ^ -(unsigned & 1).astype(np.int64)
    steps = numbers[:stepped].reshape(width + 1, count + 1).T
    steps = np.concatenate([steps[:1], np.cumsum(steps[1:], axis=0)])
    steps = np.cumsum(steps, axis=0)
    levels = np.cumsum(numbers[stepped:].reshape(-1, count).T, axis=0)
    time = steps[1:, 0]
    since = steps[:-1, 0] + levels[:, 0]
    counted = steps[:, 1:] * np.array(layout.quanta)
    counted[bits.reshape(-1, width) == 0] = np.nan
    counted = widened(counted, layout.counters, today.counters)
    gauges = _values(levels[:, 1:])
    later = np.full((count, len(today.gauges) - len(layout.gauges)), np.nan)
    return today, Points(
        since=since / 1000.0,
        time=time / 1000.0,
        base=counted[0],
        counters=counted[1:],
        gauges=np.hstack([gauges, later]),
    )


def join(parts: list[Points]) -> Points:
    """Return successive stretches of values as one."""
    if len(parts) == 1:
        return parts[0]
    return Points(
        since=np.concatenate([part.since for part in parts]),
        time=np.concatenate([part.time for part in parts]),
        base=parts[0].base,
        counters=np.vstack([part.counters for part in parts]),
        gauges=np.vstack([part.gauges for part in parts]),
    )


def roll_up(points: Points, step_s: float) -> Points:
    """Return fewer values: one for each step of time in which something was seen.

    Counters stand where they stood at the end of the step, so what was used in all is the same to
    the last bit. Gauges become means over time. A step in which watching paused is cut there.
    """
    bucket = np.ceil(points.time / step_s)
    begins = np.ones(len(points), dtype=bool)
    # Half a millisecond is what rounding does to times.
    begins[1:] = (np.diff(bucket) != 0) | (np.abs(points.since[1:] - points.time[:-1]) > 5e-4)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(points)) - 1
    weight = np.maximum(points.time - points.since, 0.0)
    # Steps without any length count alike.
    weight += np.where(np.add.reduceat(weight, first) > 0, 0.0, 1.0).repeat(last - first + 1)
    known = ~np.isnan(points.gauges)
    weights = known * weight[:, None]
    with np.errstate(invalid="ignore"):
        means = np.add.reduceat(
            np.where(known, points.gauges, 0.0) * weights, first, axis=0
        ) / np.add.reduceat(weights, first, axis=0)
    return Points(
        since=points.since[first],
        time=points.time[last],
        base=points.base,
        counters=points.counters[last],
        gauges=means,
    )


def _milliseconds(seconds: FloatArray) -> IntArray:
    return np.rint(seconds * 1000.0).astype(np.int64)


def _quantised(values: FloatArray, layout: Layout) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Return which values are known, and all in quanta: the unknown as the known one before."""
    scaled = values / np.array(layout.quanta)
    # A comparison with NaN is false, so that NaN is unknown, too.
    known = np.abs(scaled) < MOST_QUANTA
    if known.all():
        return known, np.rint(scaled).astype(np.int64)
    rows = np.where(known, np.arange(len(values))[:, None], 0)
    latest = np.maximum.accumulate(rows, axis=0)
    filled = np.take_along_axis(np.where(known, scaled, 0.0), latest, axis=0)
    return known, np.rint(filled).astype(np.int64)


def _codes(gauges: FloatArray) -> IntArray:
    """Return gauges as whole numbers: their first binary digits with sign and exponent."""
    narrow = np.clip(gauges, -_MOST_GAUGE, _MOST_GAUGE).astype(np.float32)
    bits = narrow.view(np.uint32).astype(np.int64)
    return np.where(np.isnan(gauges), _NAN_CODE, (bits + (1 << (_DROPPED - 1))) >> _DROPPED)


def _values(codes: IntArray) -> FloatArray:
    bits: Any = (codes << _DROPPED).astype(np.uint32)
    return np.ascontiguousarray(bits).view(np.float32).astype(np.float64)
