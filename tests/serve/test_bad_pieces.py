"""Pieces that cannot be true are set aside with the reason, and nothing of them is counted."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard

from lowtide.serve import schema
from lowtide.serve.ingest import receive
from lowtide.store import tables
from lowtide.store.database import Database
from lowtide.store.layout import PLACE, TOTALS, pack_numbers, unpack_numbers
from lowtide.store.outbox import Parcel
from lowtide.store.pieces import MOST_BYTES, FactsPart, Piece, seal, unseal
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

Change = Callable[[Piece], Piece]
KEPT = (schema.jobs, schema.usage_hour, schema.unit_now, tables.chunks, tables.ticks, tables.units)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with centre(str(tmp_path / "centre.sqlite")) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, database: Database) -> Node:
    """A node whose next piece is one of chunks, and the one after it one of ticks."""
    made = Node(tmp_path / "n1.sqlite", tells_all=False)
    made.put_facts([facts(1, state="running", started=START, user="ada", nodes=("n1",))])
    for _ in range(30):
        made.tick([unit(1), unit(2, user="bob")])
    assert not any(answer.reason for answer in made.push(database))
    for _ in range(40):
        made.tick([unit(1), unit(2, user="bob")])
    return made


def _with(**values: object) -> Change:
    return lambda piece: msgspec.structs.replace(piece, **values)


def _in(name: str, /, **values: object) -> Change:
    """Change the first of a list of parts."""

    def change(piece: Piece) -> Piece:
        first, *rest = getattr(piece, name)
        return msgspec.structs.replace(
            piece, **{name: [msgspec.structs.replace(first, **values), *rest]}
        )

    return change


def _totals(name: str, value: float) -> Change:
    def change(piece: Piece) -> Piece:
        numbers = unpack_numbers([piece.units[0].totals], TOTALS)[0].copy()
        numbers[PLACE[name]] = value
        return _in("units", totals=pack_numbers(numbers))(piece)

    return change


def _bomb(piece: Piece) -> Piece:
    body = struct.pack("<BBI", 1, 3, 100) + zlib.compress(bytes(200_000_000), 9)[2:-4]
    return _in("chunks", body=body)(piece)


CHUNKS: dict[str, tuple[Change, str]] = {
    "another host": (_with(host="n2"), "tells of itself"),
    "another cluster": (_with(cluster="jura"), "tells of itself"),
    "the future": (_in("chunks", ends=START + 1e6), "no moment"),
    "before all time": (_in("chunks", begins=-1.0), "no moment"),
    "no time": (_in("chunks", ends=float("nan")), "no moment"),
    "backwards": (_in("chunks", begins=START + 650.0, ends=START + 600.0), "ends after"),
    "a unit that nobody named": (_with(units=[]), "names every unit"),
    "a unit twice": (lambda p: _with(units=[*p.units, *p.units])(p), "once"),
    "a number of units": (_in("units", number=-4), "a unit has a number"),
    "an unknown source": (_in("units", source="pbs"), "a unit has a number"),
    "a name of ten megabytes": (_in("units", name="x" * 10_000_000), "at most"),
    "a long name": (_in("units", name="x" * 2000), "at most 1000 letters"),
    "an exploding chunk": (_bomb, "bytes of values"),
    "a damaged chunk": (_in("chunks", body=b"\x01\x03nonsense"), "damaged"),
    "an empty chunk": (_in("chunks", body=b""), "damaged"),
    "more values than there are": (_in("chunks", points=7), "as many values"),
    "endless values": (_in("chunks", points=1 << 40), "few values"),
    "an odd step": (_in("chunks", resolution=-60), "few values"),
    "a counter that fell": (_totals("energy_j", 1.0), "does not become less"),
    "endless energy": (_totals("energy_j", float("inf")), "neither endless"),
    "negative energy": (_totals("energy_j", -5.0), "neither endless"),
    "seen tomorrow": (_totals("last_seen", START + 1e6), "no moment"),
    "looks beyond counting": (_totals("looks", 1e12), "so often"),
    "facts of another kind": (
        _with(facts=[FactsPart({"source": "slurm", "job_id": "1", "root": "yes"}, ["n1"])]),
        "nothing is known as root",
    ),
    "a fact of another type": (
        _with(facts=[FactsPart({"source": "slurm", "job_id": "1", "user": 5.0}, ["n1"])]),
        "no float",
    ),
    "an exit code beyond all": (
        _with(facts=[FactsPart({"source": "slurm", "job_id": "1", "exit_code": 1e30}, ["n1"])]),
        "exit_code",
    ),
    "a job that becomes another's": (
        _with(facts=[FactsPart({"source": "slurm", "job_id": "1", "user": "eve"}, ["n1"])]),
        "stays its user's",
    ),
    "less energy than its jobs": (
        lambda p: _with(chunks=[c for c in p.chunks if c.unit != p.units[0].number])(p),
        "make the whole",
    ),
}  # fmt: skip
BODIES = {
    "nothing": (b"", "no piece"),
    "noise": (bytes(range(256)), "no piece"),
    "another thing": (zstandard.compress(b"\x93\x01\x02\x03"), "no piece"),
    "an exploding body": (zstandard.compress(bytes(50 * MOST_BYTES)), "at most"),
    "too much": (bytes(1_000_001), "at most"),
}


def _next(node: Node) -> Parcel:
    parcel = node.outbox.next(now=node.watcher.time)
    assert parcel is not None
    return parcel


def _refused(database: Database, node: Node, body: bytes, reason: str) -> None:
    """Send a piece that is set aside, and look that all else is as it was."""
    before = [rows(database, table) for table in KEPT]
    parcel = _next(node)
    answer = receive(database, node.sender(parcel), body, now=node.watcher.time)
    assert reason in answer.reason, answer.reason
    assert (answer.taken, answer.seq) == (True, parcel.seq)
    assert [rows(database, table) for table in KEPT] == before
    [row] = rows(database, schema.quarantine)
    assert (row["reason"], row["body"], row["seq"]) == (answer.reason, body, parcel.seq)
    node.outbox.acknowledge(parcel)
    # What comes after it is taken.
    for _ in range(61):
        node.tick([unit(1), unit(2, user="bob")])
    assert not any(answer.reason for answer in node.push(database))


@pytest.mark.parametrize("what", CHUNKS)
def test_a_piece_that_cannot_be_true_is_set_aside(
    database: Database, node: Node, what: str
) -> None:
    change, reason = CHUNKS[what]
    piece = unseal(_next(node).body)
    assert piece.chunks
    _refused(database, node, seal(change(piece)), reason)


@pytest.mark.parametrize("what", BODIES)
def test_what_is_no_piece_is_set_aside(database: Database, node: Node, what: str) -> None:
    _refused(database, node, *BODIES[what])


def test_energy_of_ticks_has_to_add_up(database: Database, node: Node) -> None:
    node.push(database)
    node.tick([unit(1)])
    piece = unseal(_next(node).body)
    assert piece.ticks
    numbers = unpack_numbers([piece.units[0].now], TOTALS)[0].copy()
    numbers[PLACE["energy_j"]] += 5000.0
    change = _in("units", now=pack_numbers(numbers))
    _refused(database, node, seal(change(piece)), "make the whole")


def test_facts_of_jobs_elsewhere_are_not_taken_from_a_node(database: Database, node: Node) -> None:
    known = {"source": "slurm", "job_id": "77", "user": "eve", "state": "running"}
    piece = unseal(_next(node).body)
    told = _with(facts=[FactsPart(known, ["n9"])])(piece)
    parcel = _next(node)
    answer = receive(database, node.sender(parcel), seal(told), now=node.watcher.time)
    assert not answer.reason
    assert {row["job_id"] for row in rows(database, schema.jobs)} == {"1", "2"}


def test_whatever_happens_to_a_body_nothing_else_does(database: Database, node: Node) -> None:
    """Bytes that were changed on the way, drawn: set aside or told off, and never an error."""
    chance = random.Random(3)
    parcel = _next(node)
    before = [rows(database, table) for table in KEPT]
    for number in range(drawn(60, 3000)):
        body = bytearray(parcel.body)
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        if chance.random() < 0.3:
            del body[chance.randrange(len(body)) :]
        if bytes(body) == parcel.body:
            continue
        sender = node.sender(Parcel(f"drawn-{number}", 1, b""))
        assert receive(database, sender, bytes(body), now=node.watcher.time).reason
    assert [rows(database, table) for table in KEPT] == before


def test_values_inside_a_piece_are_not_believed(database: Database, node: Node) -> None:
    """Whole pieces with wrong insides, drawn: the digest is right, and the rest is anything."""
    chance = random.Random(5)
    piece = unseal(_next(node).body)
    for number in range(drawn(60, 3000)):
        part = chance.randrange(len(piece.chunks))
        body = bytearray(piece.chunks[part].body)
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        chunks = list(piece.chunks)
        chunks[part] = msgspec.structs.replace(chunks[part], body=bytes(body))
        sender = node.sender(Parcel(f"drawn-{number}", 1, b""))
        answer = receive(database, sender, seal(_with(chunks=chunks)(piece)), now=node.watcher.time)
        assert answer.taken
    for row in rows(database, schema.jobs):
        assert np.isfinite(row["energy_j"])
