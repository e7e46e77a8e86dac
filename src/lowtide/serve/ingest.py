"""Taking pieces from nodes: each once, in order, and only what can be true.

A piece is written whole or not at all, in one transaction with its number. What a node could not
have seen is set aside with the reason, and the node goes on: it is for people to look at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.errors import InvalidInput, StoreProblem
from lowtide.monitor.snapshot import JobFacts, Unit
from lowtide.serve.ledger import settle
from lowtide.serve.plausible import TRACE_S, Implausible, check_piece, facts_of, totals_of
from lowtide.serve.schema import incarnations, quarantine, unit_now
from lowtide.serve.schema import jobs as rows_of
from lowtide.store.codec import decode, pack_tick, unpack_tick
from lowtide.store.compaction import chunk_row, consolidate
from lowtide.store.database import Database
from lowtide.store.layout import COUNTED, NODE, PLACE, TOTALS, UNIT, pack_numbers, unpack_numbers
from lowtide.store.matching import SHARED_SOURCES, attach, place_facts, refresh
from lowtide.store.pieces import MOST_TEXT, ChunkPart, FactsPart, Piece, UnitPart, unseal
from lowtide.store.tables import (
    chunks,
    clean,
    hosts,
    in_parts,
    insert_row,
    jobs,
    origins,
    phases,
    synthetic_grids,
    ticks,
    units,
)
from lowtide.store.totals import nothing_yet

# How much of a counter may be lost to rounding.
_FELL = 1e-9
_OF_CHUNK = ("resolution", "begins", "ends", "points", "body")
# Any number, as long as no other program on the server has the same.
_LOCK = 0x6C6F7777
_NODE_KEY = "node"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a node is told.

    Attributes:
        seq: The highest number up to which the centre has every piece.
        taken: Whether the node may go on with the next; False where another is wanted.
        reason: Why the piece was set aside; empty where it was not.
    """

    seq: int
    taken: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOrigin:
    """Who sends a piece, and which of theirs it is.

    Attributes:
        cluster: The cluster of the node whose token came with it.
        host: That node.
        incarnation: Which of its stores it comes from.
        seq: Its number, 1 for the first of an incarnation.
        tells_all: Whether this node may tell facts of jobs that run elsewhere.
    """

    cluster: str
    host: str
    incarnation: str
    seq: int
    tells_all: bool = False

    @property
    def named(self) -> dict[str, str]:
        """What it is known by, but for its number."""
        return {"cluster": self.cluster, "host": self.host, "incarnation": self.incarnation}


def receive(database: Database, sender: PieceOrigin, body: bytes, *, now: float) -> Receipt:
    """Take a piece, unless it is here already.

    Args:
        now: The present moment, epoch seconds.
    """
    with database.reading() as connection:
        known = _standing(connection, sender)
    if (answer := _in_turn(known, sender.seq)) is not None:
        return answer
    try:
        piece = check_piece(unseal(body), cluster=sender.cluster, host=sender.host, now=now)
        with database.writing() as connection:
            known = _standing(connection, sender, lock=True)
            if (answer := _in_turn(known, sender.seq)) is not None:
                return answer
            family = _note(connection, sender, known, piece, now)
            _Applied(connection, piece, sender, family, now).write(is_first=known is None)
    except StoreProblem as error:
        # A store that does not answer is no fault of the piece; one that refuses a value is.
        if not isinstance(error.__cause__, sa.exc.DataError | sa.exc.IntegrityError):
            raise
        return _set_aside(database, sender, body, str(error), now)
    except InvalidInput as error:
        return _set_aside(database, sender, body, str(error), now)
    except Exception as error:  # noqa: BLE001 - no piece may keep those behind it from being taken
        return _set_aside(database, sender, body, f"{type(error).__name__}: {error}", now)
    return Receipt(sender.seq, taken=True)


def _standing(connection: sa.Connection, sender: PieceOrigin, *, lock: bool = False) -> Any:
    if lock and connection.dialect.name == "postgresql":
        # Two that bring pieces of one host take turns, the first time as well.
        key = sa.func.hashtext(f"{sender.cluster}/{sender.host}")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK, key)))
    mine = (incarnations.c[name] == value for name, value in sender.named.items())
    return connection.execute(sa.select(incarnations).where(*mine)).first()


def _in_turn(known: Any, seq: int) -> Receipt | None:
    """Return the answer to a piece that is here, or not in its turn; None where it is."""
    last = 0 if known is None else int(known.seq)
    if seq == last + 1:
        return None
    return Receipt(last, taken=seq <= last)


def _note(
    connection: sa.Connection, sender: PieceOrigin, known: Any, piece: Piece | None, now: float
) -> str:
    """Write down that a piece is here; return under which name its units are known."""
    values: dict[str, Any] = {"seq": sender.seq, "received": now}
    if piece is not None:
        values["skew_s"] = piece.made - now
    of = incarnations.c
    mine = [of[name] == value for name, value in sender.named.items()]
    if known is not None:
        connection.execute(sa.update(incarnations).where(*mine).values(values))
        return str(known.family)
    family = sender.incarnation
    if piece is not None and piece.continues:
        earlier = (*mine[:2], of.incarnation == piece.continues)
        before = connection.execute(sa.select(of.family).where(*earlier)).scalar()
        family = before or piece.continues
    row = {"skew_s": 0.0, **sender.named, "family": family, **values}
    connection.execute(sa.insert(incarnations), row)
    return family


def _set_aside(
    database: Database, sender: PieceOrigin, body: bytes, reason: str, now: float
) -> Receipt:
    """Keep a piece that cannot be true, with the reason."""
    reason = clean(reason)[:MOST_TEXT]
    with database.writing() as connection:
        known = _standing(connection, sender, lock=True)
        if (answer := _in_turn(known, sender.seq)) is not None:
            return answer
        _note(connection, sender, known, None, now)
        row = {**sender.named, "seq": sender.seq, "received": now, "reason": reason, "body": body}
        connection.execute(sa.insert(quarantine), row)
    return Receipt(sender.seq, taken=True, reason=reason)


def take_facts(database: Database, facts: Sequence[JobFacts], *, now: float) -> None:
    """Take what the cluster's own Slurm tells of jobs, wherever they run.

    Args:
        now: The present moment, epoch seconds.
    """
    for part in in_parts(facts):
        with database.writing() as connection:
            named, gone = _placed(connection, part)
            settle(connection, named | gone, now=now, since={}, anew=named if gone else ())


def _placed(connection: sa.Connection, facts: Sequence[JobFacts]) -> tuple[set[int], set[int]]:
    """Bring facts to jobs; return the jobs they are about, and those that are no more."""
    place_facts(connection, facts)
    named: set[int] = set()
    gone: set[int] = set()
    for some in in_parts(sorted({clean(each.job_id) for each in facts})):
        there = sa.select(jobs.c.id).where(jobs.c.job_id.in_(some))
        with_row = sa.select(rows_of.c.number).where(rows_of.c.job_id.in_(some))
        named |= set(connection.execute(there).scalars())
        gone |= set(connection.execute(with_row).scalars())
    return named, gone - named


class _Applied:
    """A piece that is being written."""

    def __init__(
        self, connection: sa.Connection, piece: Piece, sender: PieceOrigin, family: str, now: float
    ) -> None:
        self._connection = connection
        self._piece = piece
        self._sender = sender
        self._family = family
        self._now = now
        self._continues = bool(piece.continues)
        self._host, self._node = self._located()
        self._units = {0: self._node}
        self._jobs: set[int] = set()
        # From when on units may have used what their jobs' rows do not have yet.
        self._since: dict[int, float] = {}

    def write(self, *, is_first: bool) -> None:
        """Bring everything into the tables.

        Args:
            is_first: Whether it is the first piece of an incarnation.
        """
        if is_first:
            # What an earlier one told in ticks is in no chunk that this one will send.
            consolidate(self._connection, self._host, self._node)
        self._match_units()
        last = max(self._write_chunks(), self._write_ticks())
        self._write_totals()
        named, gone = self._place_facts()
        self._write_host(last)
        owners = self._owners()
        refresh(self._connection, sorted(set(owners.values())))
        since: dict[int, float] = defaultdict(lambda: math.inf)
        for unit, job in owners.items():
            since[job] = min(since[job], self._since.get(unit, math.inf))
        settle(
            self._connection,
            {*owners.values(), *named, *gone},
            now=self._now,
            since=since,
            anew=named if gone else (),
        )

    def _located(self) -> tuple[int, int]:
        """Return the numbers of the host, and of the node as a unit; made where need be."""
        name = clean(self._piece.host)
        question = sa.select(hosts.c.id).where(hosts.c.name == name)
        host = self._connection.execute(question).scalar()
        if host is None:
            host = insert_row(self._connection, hosts, {"name": name})
            empty = pack_numbers(np.zeros(len(NODE.counters)))
            node = {"host": host, "key": _NODE_KEY, "started": 0.0, "totals": empty}
            insert_row(self._connection, units, node)
        of_node = sa.select(units.c.id).where(units.c.host == host, units.c.key == _NODE_KEY)
        return int(host), int(self._connection.execute(of_node).scalar_one())

    def _key(self, part: UnitPart) -> str:
        # What another incarnation of the node's store counted was counted apart from this.
        return f"{clean(part.key)}#{self._family}"

    def _match_units(self) -> None:
        parts = {self._key(part): part for part in self._piece.units}
        known = self._known(list(parts))
        new = [part for key, part in parts.items() if key not in known]
        if new:
            numbers = attach(
                self._connection,
                clean(self._piece.host),
                [_unit(part) for part in new],
                max([each.time for each in self._piece.ticks], default=self._piece.made),
                cluster=self._piece.cluster,
            )
            rows = [
                {
                    "host": self._host,
                    "key": self._key(part),
                    "job": job,
                    "started": part.started,
                    "totals": pack_numbers(nothing_yet()),
                }
                for part, job in zip(new, numbers, strict=True)
            ]
            self._connection.execute(sa.insert(units), rows)
            known = self._known(list(parts))
        self._units |= {parts[key].number: number for key, number in known.items()}

    def _known(self, keys: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for some in in_parts(keys):
            question = sa.select(units.c.key, units.c.id).where(
                units.c.host == self._host, units.c.key.in_(some)
            )
            found |= {row.key: row.id for row in self._connection.execute(question)}
        return found

    def _write_chunks(self) -> float:
        parts = self._piece.chunks
        if not parts:
            return -math.inf
        rows = [row for part in parts if (row := self._chunk_row(part)) is not None]
        if rows:
            self._connection.execute(sa.insert(chunks), rows)
        # Ticks until then are in chunks now.
        self._connection.execute(sa.delete(ticks).where(ticks.c.host == self._host))
        return max(part.ends for part in parts)

    def _chunk_row(self, part: ChunkPart) -> dict[str, Any] | None:
        """Return a chunk as a row; None where an earlier incarnation told all that is in it."""
        unit = self._units[part.unit]
        row = {"unit": unit, **{name: getattr(part, name) for name in _OF_CHUNK}}
        if not self._continues:
            return row
        question = sa.select(sa.func.max(chunks.c.ends)).where(
            chunks.c.unit == unit,
            chunks.c.begins < part.ends - TRACE_S,
            chunks.c.ends > part.begins + TRACE_S,
        )
        until = self._connection.execute(question).scalar()
        if until is None:
            return row
        layout, points = decode(part.body)
        first = int(np.searchsorted(points.time, until + TRACE_S))
        if first == len(points):
            return None
        return chunk_row(unit, points[first:], layout, resolution=part.resolution)

    def _write_ticks(self) -> float:
        rows: list[dict[str, Any]] = []
        for part in self._piece.ticks:
            look = unpack_tick(part.since, part.time, part.body)
            mapped = np.array([self._units[each] for each in look.units.tolist()], dtype=np.int64)
            body = pack_tick(replace(look, units=mapped))
            rows.append({"host": self._host, "since": part.since, "time": part.time, "body": body})
        if not rows:
            return -math.inf
        self._connection.execute(sa.insert(ticks), rows)
        return max(part.time for part in self._piece.ticks)

    def _write_totals(self) -> None:
        told = {
            self._units[part.number]: part for part in self._piece.units if part.totals is not None
        }
        sealed, now = [], []
        for some in in_parts(sorted(told)):
            question = (
                sa.select(units.c.id, units.c.totals, unit_now.c.totals.label("now"))
                .outerjoin(unit_now, unit_now.c.unit == units.c.id)
                .where(units.c.id.in_(some))
            )
            for row in self._connection.execute(question).all():
                part = told[row.id]
                latest = part.now if part.now is not None else part.totals
                before = unpack_numbers([row.now], TOTALS)[0]
                sealed.append({"number": row.id, "totals": self._grown(row.totals, part.totals)})
                now.append({"unit": row.id, "totals": self._grown(row.now, latest)})
                last = before[PLACE["last_seen"]]
                self._since[row.id] = part.started if math.isnan(last) else float(last)
            self._connection.execute(sa.delete(unit_now).where(unit_now.c.unit.in_(some)))
        if sealed:
            change = sa.update(units).where(units.c.id == sa.bindparam("number"))
            self._connection.execute(change.values(totals=sa.bindparam("totals")), sealed)
            self._connection.execute(sa.insert(unit_now), now)
        if self._piece.node_totals is not None:
            totals_of(self._piece.node_totals, NODE.counters)
            node = {"number": self._node, "totals": self._piece.node_totals}
            change = sa.update(units).where(units.c.id == sa.bindparam("number"))
            self._connection.execute(change.values(totals=sa.bindparam("totals")), [node])

    def _grown(self, before: bytes | None, after: bytes | None) -> bytes:
        """Return what was used by now: counters do not fall, unless a store was put back."""
        old, new = unpack_numbers([before], TOTALS)[0], totals_of(after).copy()
        fell = new[COUNTED] < old[COUNTED] * (1 - _FELL)
        if fell.any() and not self._continues:
            name = UNIT.counters[int(np.flatnonzero(fell)[0])]
            raise Implausible(f"what was used does not become less, and {name} did")
        if fell.any():
            new[COUNTED] = np.fmax(old[COUNTED], new[COUNTED])
        return pack_numbers(new)

    def _place_facts(self) -> tuple[set[int], set[int]]:
        """Bring facts to jobs; return the jobs they are about, and those that are no more."""
        facts = [
            facts_of(part, self._piece.cluster or self._sender.cluster)
            for part in self._piece.facts
            if self._may_tell(part)
        ]
        facts = [each for each in facts if each.source in SHARED_SOURCES]
        self._check_owners(facts)
        named, gone = _placed(self._connection, facts)
        for part in self._piece.facts:
            if part.phases is not None and part.unit:
                self._put_phases(self._units[part.unit], clean(part.phases))
        return named, gone

    def _may_tell(self, part: FactsPart) -> bool:
        """Return whether a job has to do with this node: of others it is not asked."""
        return self._sender.tells_all or part.unit != 0 or self._piece.host in part.nodes

    def _check_owners(self, facts: Sequence[JobFacts]) -> None:
        """Refuse that a node gives a job to somebody else."""
        if self._sender.tells_all:
            return
        names = sorted({clean(each.job_id) for each in facts})
        theirs: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
        for some in in_parts(names):
            question = sa.select(jobs.c.job_id, jobs.c.user, jobs.c.account, origins.c.cluster)
            question = question.outerjoin(origins, origins.c.job == jobs.c.id)
            for row in self._connection.execute(question.where(jobs.c.job_id.in_(some))):
                theirs[row.job_id, row.cluster or ""].add((row.user or "", row.account or ""))
        for fact in facts:
            known = theirs[clean(fact.job_id), clean(fact.cluster or "")]
            says = (clean(fact.user or ""), clean(fact.account or ""))
            if known and not any(
                all(
                    not mine or not said or mine == said
                    for mine, said in zip(of, says, strict=True)
                )
                for of in known
            ):
                raise Implausible(
                    f"a job stays its user's and its account's: job {fact.job_id} is not "
                    f"{fact.user}'s"
                )

    def _put_phases(self, unit: int, document: str) -> None:
        owner = sa.select(units.c.job).where(units.c.id == unit)
        job = self._connection.execute(owner).scalar()
        self._connection.execute(sa.delete(phases).where(phases.c.job == job))
        self._connection.execute(sa.insert(phases).values(job=job, document=document))

    def _owners(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for some in in_parts(sorted(set(self._units.values()) - {self._node})):
            question = sa.select(units.c.id, units.c.job).where(units.c.id.in_(some))
            found |= {row.id: row.job for row in self._connection.execute(question)}
        return found

    def _write_host(self, last: float) -> None:
        piece = self._piece
        values: dict[str, float] = {}
        if math.isfinite(last):
            values["last_time"] = last
        if math.isfinite(piece.interval_s) and piece.interval_s > 0:
            values["interval_s"] = piece.interval_s
        if values:
            mine = sa.update(hosts).where(hosts.c.id == self._host)
            self._connection.execute(mine.values(values))
        for begins, ends in piece.synthetic:
            noted = synthetic_grids.c
            same = (noted.host == self._host) & (noted.begins == begins)
            self._connection.execute(sa.delete(synthetic_grids).where(same))
            row = {"host": self._host, "begins": begins, "ends": ends}
            self._connection.execute(sa.insert(synthetic_grids), row)


def _unit(part: UnitPart) -> Unit:
    return Unit(
        source=part.source,
        job_id=part.job_id,
        started=part.started,
        user=part.user,
        name=part.name,
        sluid=part.sluid,
        cluster=part.cluster,
    )
