"""One tick as one row: everything that was seen at a moment, whole, so that a kill loses no more.

Nothing is rounded here: what jobs have used in all is counted from these rows.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.monitor.snapshot import FloatArray
from lowtide.store.columns import NODE, UNIT

_HEADER = struct.Struct("<BI")
_VERSION = 1
_WIDTH = len(UNIT.names)
# For a node every rate is a difference to the tick before, which only the writer knows.
_NODE_WIDTH = len(NODE.names)


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
    """

    since: float
    time: float
    units: npt.NDArray[np.int64]
    counters: FloatArray
    gauges: FloatArray
    node: FloatArray


def pack(look: Look) -> bytes:
    """Return a tick in bytes, its times left out.

    Args:
        look: The tick.
    """
    table = np.hstack([look.counters, look.gauges]).T
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
    return _HEADER.pack(_VERSION, look.units.size) + zlib.compress(body, 1)


def unpack(since: float, time: float, blob: bytes) -> Look:
    """Return the tick that `pack` packed.

    Args:
        since: When the tick before was.
        time: When the tick was.
        blob: What it returned.
    """
    try:
        version, count = _HEADER.unpack_from(blob)
        if version != _VERSION:
            raise InvalidInput(f"tick of version {version}: only {_VERSION} can be read")
        data = memoryview(zlib.decompress(blob[_HEADER.size :]))
        units = np.frombuffer(data, "<i8", count)
        node = np.frombuffer(data, "<f8", _NODE_WIDTH, 8 * count)
        place = 8 * (count + _NODE_WIDTH)
        flags = (_WIDTH + 7) // 8
        same = np.unpackbits(np.frombuffer(data, np.uint8, flags, place), count=_WIDTH) == 1
        alike = np.frombuffer(data, "<f8", int(same.sum()), place + flags)
        rest = np.frombuffer(data, "<f8", -1, place + flags + alike.nbytes)
        table = np.empty((_WIDTH, count))
        table[same] = alike[:, None]
        table[~same] = rest.reshape(int((~same).sum()), count)
    except (struct.error, zlib.error, ValueError) as error:
        raise InvalidInput(f"a tick of the store is damaged: {error}") from None
    width = len(UNIT.counters)
    return Look(
        since=since,
        time=time,
        units=units.astype(np.int64),
        counters=table[:width].T,
        gauges=table[width:].T,
        node=node,
    )
