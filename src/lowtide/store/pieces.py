"""Pieces: what a node tells its centre, a few minutes of its store at a time.

A piece speaks for itself: it names every unit that it tells of, so that one that is set aside
leaves those after it readable. Values travel as the store packs them, ticks until they are brought
into chunks and chunks from then on. What comes over a network is read within limits, whatever it
claims to be.
"""

from __future__ import annotations

import hashlib
import io

from lowtide.errors import InvalidInput, MissingExtra

try:
    import msgspec
    import zstandard
except ImportError:
    raise MissingExtra("telling a centre what was watched", extra="push") from None

# What a body may be at most, packed and unpacked.
MOST_PACKED_BYTES = 1_000_000
MOST_BYTES = 4_000_000
# How long a name may be; Slurm's and the kernel's are shorter.
MOST_TEXT = 1000
_MOST_WINDOW_BYTES = 8 << 20
_LEVEL = 3
VERSION = 1


class UnitPart(msgspec.Struct, frozen=True, array_like=True):
    """What a piece tells of a unit.

    Attributes:
        number: The node's own number for it, by which chunks and ticks name it.
        key: What tells it from everything else that ever ran on the node.
        totals: What it has used by the end of its chunks; None where the piece does not hold the
            last of them.
        now: What it has used by the last tick; None where it is in no tick.
    """

    number: int
    key: str
    source: str
    job_id: str
    started: float
    user: str = ""
    name: str = ""
    sluid: str = ""
    cluster: str = ""
    totals: bytes | None = None
    now: bytes | None = None


class ChunkPart(msgspec.Struct, frozen=True, array_like=True):
    """A chunk as the node's store has it; `unit` is 0 for the node itself."""

    unit: int
    resolution: int
    begins: float
    ends: float
    points: int
    body: bytes


class TickPart(msgspec.Struct, frozen=True, array_like=True):
    """A tick as the node's store has it."""

    since: float
    time: float
    body: bytes


class FactsPart(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a job besides what it uses: the fields of `JobFacts`, and its phases.

    Attributes:
        unit: One of its units in this piece; 0 where nobody has seen it.
        phases: The phases that were found in its course, as JSON text.
    """

    known: dict[str, str | float]
    nodes: list[str]
    unit: int = 0
    phases: str | None = None


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What happened on a node since the piece before.

    Attributes:
        made: When it was made, by the node's clock.
        continues: The incarnation before this one, where the node's store was put back to an
            earlier state, or the centre was; empty for most.
        node_totals: What the node's counters stood at after its last chunk; None while further
            chunks wait.
        interval_s: How long ticks are; NaN before anybody knows.
        last_time: When the last tick was that is in a chunk; NaN before the first.
        synthetic: When grams were those of a synthetic grid.
    """

    version: int
    host: str
    cluster: str
    made: float
    continues: str
    units: list[UnitPart]
    chunks: list[ChunkPart]
    ticks: list[TickPart]
    facts: list[FactsPart]
    node_totals: bytes | None
    interval_s: float
    last_time: float
    synthetic: list[tuple[float, float]]


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    digest: bytes
    content: bytes


def seal(piece: Piece) -> bytes:
    """Return a piece as it travels."""
    content = msgspec.msgpack.encode(piece)
    sealed = _Sealed(hashlib.sha256(content).digest(), content)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(sealed))


def unseal(body: bytes) -> Piece:
    """Return the piece that `seal` sealed; refuse what is anything else.

    Args:
        body: What came, not longer than `MOST_PACKED_BYTES`.
    """
    if len(body) > MOST_PACKED_BYTES:
        raise InvalidInput(f"a piece has at most {MOST_PACKED_BYTES} bytes, not {len(body)}")
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
    try:
        # What a body says of its own size is not believed.
        with unpacker.stream_reader(io.BytesIO(body)) as reader:
            data = reader.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InvalidInput(f"a piece has at most {MOST_BYTES} bytes once it is unpacked")
        sealed = msgspec.msgpack.decode(data, type=_Sealed)
        if hashlib.sha256(sealed.content).digest() != sealed.digest:
            raise InvalidInput("a piece is damaged: its digest is that of other bytes")
        piece = msgspec.msgpack.decode(sealed.content, type=Piece)
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(f"no piece of lowtide's: {error}") from None
    if piece.version != VERSION:
        raise InvalidInput(
            f"a piece of version {piece.version}: this lowtide reads version {VERSION}; run the "
            "same on the nodes and the centre"
        )
    return piece
