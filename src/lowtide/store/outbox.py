"""What a node has not told its centre yet.

The store itself is what waits: chunks that the centre has not acknowledged stay as they are, for
weeks if need be. A piece is made when the one before it is acknowledged, and is kept until it is,
so that whatever is sent again is the same to the last byte. What stands here goes with the file: a
store that is made anew is another incarnation.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.monitor.snapshot import ELSEWHERE
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.layout import FACT, FACTS, pack_numbers, unpack_numbers
from lowtide.store.matching import SHARED_SOURCES
from lowtide.store.pieces import (
    MOST_TEXT,
    VERSION,
    ChunkPart,
    FactsPart,
    Piece,
    TickPart,
    UnitPart,
    seal,
)
from lowtide.store.records import DAY_S, HostRecord
from lowtide.store.tables import (
    chunks,
    clean,
    in_parts,
    jobs,
    origins,
    phases,
    present,
    pushed_facts,
    pushing,
    split,
    synthetic_grids,
    ticks,
    units,
    unsent,
)
from lowtide.store.totals import read_tail, read_ticks

# How much goes into a piece: well below what a centre takes, whatever else there is in it.
_BODY_BYTES = 500_000
_UNITS = 1000
_FACTS = 500
# Facts of jobs that ended longer ago change no more.
_SETTLED_S = 3 * DAY_S
_TEXTS = ("shown_id", "state", "user", "account", "partition", "name", "comment")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A piece on its way: its number, and its bytes."""

    incarnation: str
    seq: int
    body: bytes


class Outbox:
    """What is told to a centre, piece by piece.

    Args:
        database: The node's store, a file.
        host: The node's name.
    """

    def __init__(self, database: Database, host: str) -> None:
        if not database.is_file:
            raise StoreProblem(
                f"the store {database.name} is on a server, which others read already: watch into "
                "a file with --store PATH, and push from there",
                where=database.name,
            )
        self._database = database
        self._host = clean(host)
        self.cluster = ""
        with database.writing() as connection:
            for table in (pushing, pushed_facts):
                table.create(connection, checkfirst=True)
            if connection.execute(sa.select(pushing.c.id)).first() is None:
                newest = connection.execute(sa.select(sa.func.max(chunks.c.id))).scalar() or 0
                connection.execute(
                    sa.insert(pushing).values(
                        id=1, incarnation=secrets.token_hex(8), continues="", first=newest,
                        **_NOTHING_SENT,
                    )
                )  # fmt: skip

    def next(self, *, now: float | None = None) -> Parcel | None:
        """Return the piece that is to be sent; None while there is nothing new."""
        with self._database.reading() as connection:
            state = connection.execute(sa.select(pushing)).one()
            if state.body is not None:
                return Parcel(state.incarnation, state.seq + 1, state.body)
            host = next((each for each in read_hosts(connection) if each.name == self._host), None)
            if host is None:
                return None
            sent = {row.job: row for row in connection.execute(sa.select(pushed_facts))}
            built = Draft(connection, state, host, cluster=self.cluster, now=now, sent=sent)
            if built.is_empty:
                return None
        body = seal(built.piece)
        with self._database.writing() as connection:
            connection.execute(
                sa.update(pushing).values(
                    body=body, next_chunk=built.last_chunk, next_tick=built.last_tick
                )
            )
            # They are known to be sent only with the piece itself, which is kept from here on.
            for row in built.digests:
                theirs = pushed_facts.c.job == row["job"]
                connection.execute(sa.delete(pushed_facts).where(theirs))
                if row["digest"] is not None:
                    connection.execute(sa.insert(pushed_facts), row)
        return Parcel(state.incarnation, state.seq + 1, body)

    def acknowledge(self, parcel: Parcel) -> None:
        """Take note that the centre has a piece, and all before it."""
        mine = (pushing.c.incarnation == parcel.incarnation) & (pushing.c.seq == parcel.seq - 1)
        with self._database.writing() as connection:
            connection.execute(
                sa.update(pushing)
                .where(mine)
                .values(
                    seq=parcel.seq,
                    chunk=pushing.c.next_chunk,
                    tick=pushing.c.next_tick,
                    body=None,
                )
            )

    def begin_anew(self, *, from_the_first: bool) -> None:
        """Go on as another incarnation: this store or the centre was put back to an earlier state.

        Args:
            from_the_first: Whether to tell everything once more, since the centre has lost some;
                it leaves out what it has.
        """
        with self._database.writing() as connection:
            state = connection.execute(sa.select(pushing)).one()
            values: dict[str, Any] = {
                "incarnation": secrets.token_hex(8),
                "continues": state.incarnation,
                "seq": 0,
                "body": None,
            }
            if from_the_first:
                newest = connection.execute(sa.select(sa.func.max(chunks.c.id))).scalar() or 0
                values |= {"first": newest, **_NOTHING_SENT}
            connection.execute(sa.update(pushing).values(values))
            connection.execute(sa.delete(pushed_facts))


_NOTHING_SENT: Mapping[str, Any] = {
    "seq": 0,
    "chunk": 0,
    "tick": 0,
    "next_chunk": 0,
    "next_tick": 0,
    "body": None,
}


class Draft:
    """A piece that is being made, of one moment of the store.

    Args:
        state: How far the pieces before went, as a row of `pushing`.
        cluster: The cluster of the host, empty where not known.
        now: The present moment, epoch seconds; by default it is.
        sent: What was told of the facts of jobs so far, as rows of `pushed_facts`.

    Attributes:
        digests: What is told of facts with this piece; a digest of None for a job that is gone.
        last_chunk: The chunk up to which all is told with this piece.
        last_tick: The tick up to which all is told.
        is_empty: Whether there is nothing to tell.
        piece: The piece.
    """

    def __init__(
        self,
        connection: sa.Connection,
        state: Any,
        host: HostRecord,
        *,
        cluster: str,
        now: float | None,
        sent: Mapping[int, Any],
    ) -> None:
        self._connection = connection
        self._host = host
        self._now = time.time() if now is None else now
        self._sent = sent
        self.digests: list[dict[str, Any]] = []
        self.last_chunk, self.last_tick = int(state.chunk), int(state.tick)
        taken, more = self._chunks(state)
        self._later = self._waiting(state, taken)
        numbers = {row.unit for row in taken} - {host.node_unit}
        looks: list[TickPart] = []
        now_of: dict[int, bytes] = {}
        if taken:
            self.last_chunk, self.last_tick = taken[-1].id, 0
        elif not more:
            looks, now_of = self._ticks()
            numbers |= now_of.keys()
        facts = self._facts(numbers)
        numbers |= {part.unit for part in facts} - {0}
        node_totals = self._totals([host.node_unit]).get(host.node_unit)
        begins = [row.begins for row in taken] + [look.since for look in looks]
        self.is_empty = not (taken or looks or facts)
        self.piece = Piece(
            version=VERSION,
            host=host.name,
            cluster=cluster,
            made=self._now,
            continues=state.continues,
            units=self._units(numbers, now_of, {row.unit for row in taken}),
            chunks=[
                ChunkPart(
                    0 if row.unit == host.node_unit else row.unit,
                    row.resolution, row.begins, row.ends, row.points, row.body,
                )
                for row in taken
            ],
            ticks=looks,
            facts=facts,
            node_totals=None if host.node_unit in self._later else node_totals,
            interval_s=host.interval_s,
            last_time=self._last_time(),
            synthetic=self._synthetic(min(begins, default=math.inf)),
        )  # fmt: skip

    def _chunks(self, state: Any) -> tuple[list[Any], bool]:
        """Return the next chunks, as many as fit, and whether more wait behind them."""
        rows = self._connection.execute(
            sa.select(chunks)
            .where(unsent(state), chunks.c.unit.in_(self._mine()))
            .order_by(chunks.c.id)
            .limit(_UNITS + 1)
        ).all()
        fitting, size, whole = 0, 0, 0
        for place, row in enumerate(rows[:_UNITS], 1):
            size += len(row.body)
            if fitting and size > _BODY_BYTES:
                break
            fitting = place
            # The node's own chunk is the last of those that were made together.
            whole = place if row.unit == self._host.node_unit else whole
        if fitting < len(rows):
            fitting = whole or fitting
        return list(rows[:fitting]), fitting < len(rows)

    def _waiting(self, state: Any, taken: Sequence[Any]) -> set[int]:
        """Return the units of which further chunks wait."""
        found: set[int] = set()
        for part in in_parts(sorted({row.unit for row in taken})):
            question = sa.select(chunks.c.unit).where(
                unsent(state), chunks.c.id > taken[-1].id, chunks.c.unit.in_(part)
            )
            found |= set(self._connection.execute(question.distinct()).scalars())
        return found

    def _mine(self) -> sa.Select[tuple[int]]:
        return sa.select(units.c.id).where(units.c.host == self._host.number)

    def _ticks(self) -> tuple[list[TickPart], dict[int, bytes]]:
        """Return the ticks since the last piece, and what units have used by now."""
        rows = self._connection.execute(
            sa.select(ticks)
            .where(ticks.c.host == self._host.number, ticks.c.id > self.last_tick)
            .order_by(ticks.c.id)
        ).all()
        kept: list[Any] = []
        size = 0
        for row in rows:
            size += len(row.body)
            if kept and size > _BODY_BYTES:
                break
            kept.append(row)
        if not kept:
            return [], {}
        self.last_tick = kept[-1].id
        _, looks = read_ticks(self._connection, self._host.number)
        looks = [look for look in looks if look.time <= kept[-1].time] or looks
        tail, before, _ = read_tail(self._connection, looks, self._host.node_unit)
        after = [pack_numbers(row) for row in tail.carried_on(before)]
        return (
            [TickPart(row.since, row.time, row.body) for row in kept],
            dict(zip(tail.units.tolist(), after, strict=True)),
        )

    def _units(
        self, numbers: set[int], now_of: Mapping[int, bytes], sent: set[int]
    ) -> list[UnitPart]:
        parts = []
        for some in in_parts(sorted(numbers)):
            question = (
                sa.select(
                    *(units.c.id, units.c.key, units.c.started, units.c.totals, jobs.c.source),
                    *(jobs.c.job_id, jobs.c.user, jobs.c.name, origins.c.sluid, origins.c.cluster),
                )
                .join(jobs, units.c.job == jobs.c.id)
                .outerjoin(origins, origins.c.job == jobs.c.id)
                .where(units.c.id.in_(some))
                .order_by(units.c.id)
            )
            for row in self._connection.execute(question):
                # Totals go with the last of a unit's chunks, and below what ticks add to them.
                tells = (row.id in sent or row.id in now_of) and row.id not in self._later
                parts.append(
                    UnitPart(
                        number=row.id,
                        key=row.key,
                        source=row.source,
                        job_id=row.job_id,
                        started=row.started,
                        user=(row.user or "")[:MOST_TEXT],
                        name=(row.name or "")[:MOST_TEXT],
                        sluid=row.sluid or "",
                        cluster=row.cluster or "",
                        totals=row.totals if tells else None,
                        now=now_of.get(row.id),
                    )
                )
        return parts

    def _totals(self, numbers: Sequence[int]) -> dict[int, bytes]:
        question = sa.select(units.c.id, units.c.totals).where(units.c.id.in_(numbers))
        return {row.id: row.totals for row in self._connection.execute(question)}

    def _last_time(self) -> float:
        """Return when the last tick was that is in a chunk."""
        question = sa.select(sa.func.max(chunks.c.ends)).where(
            chunks.c.unit == self._host.node_unit, chunks.c.id <= self.last_chunk
        )
        last = self._connection.execute(question).scalar()
        return math.nan if last is None else float(last)

    def _synthetic(self, since: float) -> list[tuple[float, float]]:
        if synthetic_grids not in present(self._connection):
            return []
        noted = synthetic_grids.c
        question = sa.select(noted.begins, noted.ends).where(
            noted.host == self._host.number, noted.ends >= since
        )
        return [(row.begins, row.ends) for row in self._connection.execute(question)]

    def _facts(self, numbers: set[int]) -> list[FactsPart]:
        """Return what is known of jobs that are told of now, and of others where it has changed."""
        recent = jobs.c.ends >= self._now - _SETTLED_S
        told = sa.select(units.c.job).where(units.c.id.in_(sorted(numbers)[:_UNITS]))
        rows = self._connection.execute(
            sa.select(jobs, origins.c.sluid, origins.c.cluster, phases.c.document)
            .outerjoin(origins, origins.c.job == jobs.c.id)
            .outerjoin(phases, phases.c.job == jobs.c.id)
            .where(sa.or_(recent, jobs.c.state == "pending", jobs.c.id.in_(told)))
            .order_by(jobs.c.id)
        ).all()
        sent = self._sent
        parts: list[FactsPart] = []
        for row in rows:
            known = _known(row)
            digest = crc32(repr((sorted(known.items()), row.nodes, row.document)).encode())
            before = sent.get(row.id)
            if (before is not None and before.digest == digest) or len(parts) >= _FACTS:
                continue
            if row.source not in SHARED_SOURCES and row.document is None:
                continue
            parts.append(
                FactsPart(known, list(split(row.nodes)), self._unit_of(row.id), row.document)
            )
            named = {"job": row.id, "job_id": row.job_id, "cluster": row.cluster or ""}
            self.digests.append({**named, "digest": digest, "waits": row.state == "pending"})
        here = {row.id for row in rows}
        for row in sent.values():
            # It waited, and went where nobody watches.
            if row.waits and row.job not in here:
                known = {"source": "slurm", "job_id": row.job_id, "state": ELSEWHERE}
                known |= {"cluster": row.cluster} if row.cluster else {}
                parts.append(FactsPart(known, []))
                self.digests.append({"job": row.job, "digest": None})
        return parts

    def _unit_of(self, job: int) -> int:
        question = sa.select(sa.func.max(units.c.id)).where(
            units.c.job == job, units.c.host == self._host.number
        )
        return int(self._connection.execute(question).scalar() or 0)


def _known(row: Any) -> dict[str, str | float]:
    """Return what a row of jobs knows, under the names of `JobFacts`."""
    texts = {name: getattr(row, name) for name in (*_TEXTS, "sluid", "cluster")}
    known: dict[str, str | float] = {"source": row.source, "job_id": row.job_id}
    known |= {name: text[:MOST_TEXT] for name, text in texts.items() if text}
    numbers = unpack_numbers([row.facts], FACTS)[0]
    told = numbers[FACT["told"]] == 1
    for name, place in FACT.items():
        # When a group was made is no fact of when its job began.
        if name != "told" and not math.isnan(numbers[place]) and (told or name != "started"):
            known[name] = float(numbers[place])
    return known
