"""What can be true of what a node tells: moments, names, sizes, and energy that adds up."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.monitor.snapshot import SOURCES, FloatArray, JobFacts
from lowtide.store.codec import Look, Points, decode, unpack_tick
from lowtide.store.layout import NODE, PLACE, TOTALS, UNIT, unpack_numbers
from lowtide.store.pieces import MOST_TEXT, ChunkPart, FactsPart, Piece

# How far a node's clock may be ahead.
AHEAD_S = 300.0
# How exactly the parts of a node's energy come to the whole; chunks round each to a quantum.
_SAME = 1e-6
_LEAST_J = 1e-3
# What is more than this is no amount of anything.
_MOST = 1e24
_MOST_LOOKS = 1e9
_MOST_CODE = 2**31 - 1
_MOST_NODES = 20_000
# What the values of a piece may take, and those of a chunk; a chunk of hours spans a month.
_MOST_INFLATED_BYTES = 64_000_000
_MOST_POINTS = 20_000
_COARSEST_S = 86400
# What stands before what is deflated, in a chunk and in a tick.
_CHUNK_HEAD, _TICK_HEAD = 6, 7
_MOMENTS = ("submitted", "started", "ended")
_SEEN = ("first_seen", "last_seen", "seen_end")
_ENERGY = UNIT.counters.index("energy_j")
_OF_NODE = [NODE.counters.index(name) for name in ("energy_j", "idle_j", "unattributed_j")]
_QUANTUM_J = UNIT.quanta[_ENERGY]
_FACTS = {field.name: str(field.type) for field in fields(JobFacts)}
# Times are kept to the millisecond.
TRACE_S = 1e-3


class Implausible(InvalidInput):
    """A piece tells of what cannot have been."""


def check_piece(piece: Piece, *, cluster: str, host: str, now: float) -> list[Look]:
    """Refuse a piece that cannot be true, as far as it can be told by itself; return its ticks."""
    if piece.host != host or piece.cluster not in ("", cluster):
        raise Implausible(
            f"a node tells of itself: the token is that of {host}, and the piece tells of "
            f"{piece.host[:MOST_TEXT]}"
        )
    moments = [moment for part in piece.chunks for moment in (part.begins, part.ends)]
    moments += [moment for part in piece.ticks for moment in (part.since, part.time)]
    moments += [moment for pair in piece.synthetic for moment in pair]
    moments += [part.started for part in piece.units]
    for told in piece.facts:
        numbers = (told.known.get(name) for name in _MOMENTS)
        moments += [number for number in numbers if isinstance(number, float)]
    blobs = [blob for part in piece.units for blob in (part.totals, part.now) if blob is not None]
    seen = sums_of(blobs)[:, [PLACE[name] for name in _SEEN]]
    moments += seen[~np.isnan(seen)].tolist()
    if any(not (0 <= moment <= now + AHEAD_S) for moment in moments):
        raise Implausible(
            f"a node tells of what was: no moment is before 1970 or more than {AHEAD_S:g} s ahead"
        )
    if any(part.ends < part.begins for part in piece.chunks):
        raise Implausible("a stretch of time ends after it begins")
    for part in piece.units:
        if part.number <= 0 or part.source not in SOURCES or not part.key or not part.job_id:
            raise Implausible("a unit has a number, a key, a source and the name of a job")
        if max(map(len, (part.key, part.job_id, part.user, part.name, part.sluid))) > MOST_TEXT:
            raise Implausible(f"a name has at most {MOST_TEXT} letters")
    if len({part.number for part in piece.units}) < len(piece.units):
        raise Implausible("a unit is in a piece once")
    known = {part.number for part in piece.units} | {0}
    told_of = {each.unit for each in piece.chunks} | {each.unit for each in piece.facts}
    if not told_of <= known:
        raise Implausible("a piece names every unit that it tells of")
    _check_sizes(piece)
    looks = _looks(piece, known)
    _check_energy(piece, [_unpacked(part) for part in piece.chunks], looks)
    return looks


def _check_sizes(piece: Piece) -> None:
    """Refuse what would become far larger than it is once it is unpacked."""
    left = _MOST_INFLATED_BYTES
    packed = [(part.body, _CHUNK_HEAD, -zlib.MAX_WBITS) for part in piece.chunks]
    packed += [(part.body, _TICK_HEAD, zlib.MAX_WBITS) for part in piece.ticks]
    for body, head, bits in packed:
        try:
            inflater = zlib.decompressobj(bits)
            left -= len(inflater.decompress(body[head:], left))
        except zlib.error as error:
            raise Implausible(f"values are damaged: {error}") from None
        if left <= 0 or inflater.unconsumed_tail:
            raise Implausible(f"a piece holds at most {_MOST_INFLATED_BYTES} bytes of values")


def _unpacked(part: ChunkPart) -> Points:
    if not 0 <= part.resolution <= _COARSEST_S or not 0 < part.points <= _MOST_POINTS:
        raise Implausible("a chunk has a few values, of a step that is known")
    layout, points = decode(part.body)
    if layout is not (UNIT if part.unit else NODE):
        raise Implausible("a chunk has the columns of what it tells of")
    moments = (points.since, points.time)
    if len(points) != part.points or not len(points):
        raise Implausible("a chunk holds as many values as it says, and at least one")
    if not all(np.isfinite(each).all() for each in moments) or (
        points.since.min() < part.begins - 1 or points.time.max() > part.ends + 1
    ):
        raise Implausible("the values of a chunk lie in the time that it says")
    return points


def _looks(piece: Piece, known: set[int]) -> list[Look]:
    looks = [unpack_tick(part.since, part.time, part.body) for part in piece.ticks]
    for look in looks:
        if not set(look.units.tolist()) <= known:
            raise Implausible("a piece names every unit that it tells of")
        if np.isinf(look.counters).any() or np.isinf(look.gauges).any():
            raise Implausible("what was used is a number, and not infinite")
    return looks


def sums_of(blobs: Sequence[bytes | None], names: tuple[str, ...] = TOTALS) -> FloatArray:
    """Return sums that a node keeps, a row for each, as far as they can be sums of anything."""
    rows: FloatArray = unpack_numbers(blobs, names)
    if (np.abs(rows) > _MOST).any() or (rows < 0).any():
        raise Implausible("what was used is neither endless nor less than nothing")
    if names is TOTALS and (rows[:, PLACE["looks"]] > _MOST_LOOKS).any():
        raise Implausible("nobody looks so often")
    return rows


def _check_energy(piece: Piece, points: Sequence[Points], looks: Sequence[Look]) -> None:
    """Refuse energy that does not add up: jobs, what is idle and what is nobody's make the node."""
    for place, whole in enumerate(piece.chunks):
        if whole.unit or whole.resolution:
            continue
        inside = [
            points[other]
            for other, part in enumerate(piece.chunks)
            if part.unit
            and part.begins >= whole.begins - TRACE_S
            and part.ends <= whole.ends + TRACE_S
        ]
        theirs = sum(_grown(each)[_ENERGY] for each in inside)
        node, *rest = _grown(points[place])[_OF_NODE]
        _check_sum(node, theirs + sum(rest), (len(inside) + 3) * _QUANTUM_J)
    if looks and piece.node_totals is not None:
        before = np.nan_to_num(sums_of([piece.node_totals], NODE.counters)[0])[_OF_NODE]
        after = np.nan_to_num(looks[-1].node[_OF_NODE], nan=0.0)
        node, *rest = after - before
        seen = [part for part in piece.units if part.now is not None]
        energy = [
            np.nansum(sums_of(blobs)[:, PLACE["energy_j"]])
            for blobs in ([part.now for part in seen], [part.totals for part in seen])
        ]
        theirs = float(energy[0] - energy[1])
        _check_sum(float(node), theirs + float(sum(rest)), 0.0)


def _grown(points: Points) -> FloatArray:
    """Return by how much counters grew."""
    known = np.vstack([np.nan_to_num(points.base), points.counters])
    grown: FloatArray = np.fmax.reduce(known, axis=0) - known[0]
    return grown


def _check_sum(node_j: float, parts_j: float, rounding_j: float) -> None:
    if abs(node_j - parts_j) > _SAME * max(node_j, parts_j) + _LEAST_J + rounding_j:
        raise Implausible(
            f"the parts of a node's energy make the whole: {parts_j:.6g} J are told of jobs and "
            f"of nobody, and {node_j:.6g} J of the node"
        )


def facts_of(part: FactsPart, cluster: str) -> JobFacts:
    """Return facts, as far as they are of the right kinds."""
    known: dict[str, Any] = {}
    for name, value in part.known.items():
        kind = _FACTS.get(name)
        if kind is None or name in ("nodes", "asked"):
            raise Implausible(f"nothing is known as {name[:MOST_TEXT]} of jobs")
        if kind.startswith("str") != isinstance(value, str):
            raise Implausible(f"{name} of a job is no {type(value).__name__}")
        if isinstance(value, str):
            if len(value) > MOST_TEXT:
                raise Implausible(f"a name has at most {MOST_TEXT} letters")
        elif not math.isfinite(value):
            raise Implausible(f"{name} of a job is a number, not {value}")
        elif abs(value) > (_MOST_CODE if kind.startswith("int") else _MOST):
            raise Implausible(f"{name} of a job is no {value:g}")
        known[name] = int(value) if kind.startswith("int") else value
    if known.get("source") not in SOURCES or not known.get("job_id"):
        raise Implausible("facts name the job that they are about")
    if len(part.nodes) > _MOST_NODES or any(len(name) > MOST_TEXT for name in part.nodes):
        raise Implausible(f"a job has at most {_MOST_NODES} nodes")
    known["cluster"] = known.get("cluster") or cluster
    return JobFacts(nodes=tuple(part.nodes), **known)
