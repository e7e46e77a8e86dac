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
from lowtide.store.columns import FIRST_NODE, FIRST_UNIT, NODE, UNIT, widened

_HEADER = struct.Struct("<BI")
# What the columns of each version are. For a node every rate is a difference to the tick before,
# which only the writer knows.
_VERSIONS = {1: (FIRST_UNIT, FIRST_NODE), 2: (UNIT, NODE), 3: (UNIT, NODE)}
_VERSION = 3
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


def pack(look: Look) -> bytes:
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
    return _HEADER.pack(_VERSION, look.units.size) + zlib.compress(body, 1)


def unpack(since: float, time: float, blob: bytes) -> Look:
    """Return the tick that `pack` packed."""
    try:
        version, count = _HEADER.unpack_from(blob)
        if version not in _VERSIONS:
            raise InvalidInput(f"tick of version {version}: only up to {_VERSION} can be read")
        unit, node = _VERSIONS[version]
        says_ends = version >= _SAYS_ENDS
        width, node_width = len(unit.names) + says_ends, len(node.names)
        data = memoryview(zlib.decompress(blob[_HEADER.size :]))
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
    except (struct.error, zlib.error, ValueError) as error:
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
