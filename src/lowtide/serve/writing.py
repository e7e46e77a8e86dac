"""Pieces that can be true become rows: those of many nodes together, in one transaction.

A statement for each row of each piece would cost more than the rows. So each table is read and
written once for all pieces; what happens now and then, a job that begins or is told of, is done
piece by piece.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.monitor.snapshot import FloatArray, JobFacts, Unit
from lowtide.serve.ledger import settle
from lowtide.serve.plausible import TRACE_S, Implausible, facts_of, sums_of
from lowtide.serve.schema import jobs as rows_of
from lowtide.serve.schema import unit_now
from lowtide.store.bulk import among, insert_rows, put_rows, update_rows
from lowtide.store.codec import Look, decode, pack_tick
from lowtide.store.compaction import chunk_row, consolidate
from lowtide.store.layout import COUNTED, NODE, PLACE, TOTALS, UNIT, pack_numbers, unpack_numbers
from lowtide.store.matching import SHARED_SOURCES, attach, place_facts, refresh
from lowtide.store.pieces import ChunkPart, FactsPart, Piece, UnitPart
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
_NODE_KEY = "node"


@dataclass(slots=True, kw_only=True)
class Told:
    """A piece on its way into the tables.

    Attributes:
        looks: Its ticks.
        cluster: The cluster of the node whose token came with it.
        family: Under which name the node's units are known.
        tells_all: Whether this node may tell facts of jobs that run elsewhere.
        is_first: Whether it is the first of an incarnation.
        host: The host, as the store has it.
        units: The store's numbers of the units, by those that the piece has; 0 is the node.
    """

    piece: Piece
    looks: Sequence[Look]
    cluster: str
    family: str
    tells_all: bool
    is_first: bool
    host: Any = None
    units: dict[int, int] = field(default_factory=dict)

    @property
    def continues(self) -> bool:
        """Whether it goes on where another incarnation was."""
        return bool(self.piece.continues)

    def key(self, part: UnitPart) -> str:
        """Return by what a unit is known on its host."""
        # What another incarnation of the node's store counted was counted apart from this.
        return f"{clean(part.key)}#{self.family}"

    @property
    def keys(self) -> dict[str, UnitPart]:
        """The units that it tells of."""
        return {self.key(part): part for part in self.piece.units}


def write(connection: sa.Connection, told: Sequence[Told], *, now: float) -> None:
    """Bring what pieces tell into the tables, and jobs and sums up to date.

    Args:
        told: Pieces of different hosts.
    """
    if told:
        _Writing(connection, told, now).write()


def placed(connection: sa.Connection, facts: Sequence[JobFacts]) -> tuple[set[int], set[int]]:
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


class _Writing:
    """Pieces that are being written."""

    def __init__(self, connection: sa.Connection, told: Sequence[Told], now: float) -> None:
        self._connection = connection
        self._told = told
        self._now = now
        # The jobs of units, and from when on units may have used what their jobs' rows lack.
        self._owners: dict[int, int] = {}
        self._since: dict[int, float] = {}
        # Units whose sums are others than before.
        self._changed: set[int] = set()

    def write(self) -> None:
        self._locate()
        for each in self._told:
            if each.is_first:
                # What an earlier one told in ticks is in no chunk that this one will send.
                consolidate(self._connection, each.host.id, each.host.node)
        known = self._match_units()
        self._write_chunks()
        self._write_ticks()
        self._write_totals(known)
        self._write_hosts()
        named, gone, anew = self._place_facts()
        if named or gone:
            # Some may be parts of other jobs now.
            self._owners = self._owners_of(sorted(self._owners))
        owners = self._owners
        refresh(self._connection, sorted({owners[unit] for unit in self._changed}))
        since: dict[int, float] = defaultdict(lambda: math.inf)
        for unit, job in owners.items():
            since[job] = min(since[job], self._since.get(unit, math.inf))
        settle(
            self._connection,
            {*owners.values(), *named, *gone},
            now=self._now,
            since=since,
            anew=anew,
        )

    def _locate(self) -> None:
        """Find the hosts, and the nodes as units; make those that are new."""
        names = {clean(each.piece.host) for each in self._told}
        known = self._hosts(sorted(names))
        for name in sorted(names - known.keys()):
            host = insert_row(self._connection, hosts, {"name": name})
            empty = pack_numbers(np.zeros(len(NODE.counters)))
            node = {"host": host, "key": _NODE_KEY, "started": 0.0, "totals": empty}
            insert_row(self._connection, units, node)
        if names - known.keys():
            known = self._hosts(sorted(names))
        for each in self._told:
            each.host = known[clean(each.piece.host)]
            each.units[0] = each.host.node

    def _hosts(self, names: Sequence[str]) -> dict[str, Any]:
        question = (
            sa.select(hosts, units.c.id.label("node"), units.c.totals)
            .join(units, (units.c.host == hosts.c.id) & (units.c.key == _NODE_KEY))
            .where(among(self._connection, (hosts.c.name,), names))
        )
        return {row.name: row for row in self._connection.execute(question)}

    def _match_units(self) -> dict[int, Any]:
        """Find the units that pieces tell of, make those that are new; return their rows."""
        wanted = [(each.host.id, key) for each in self._told for key in each.keys]
        known = self._known(wanted)
        made: list[tuple[int, str]] = []
        for each in self._told:
            new = [(k, part) for k, part in each.keys.items() if (each.host.id, k) not in known]
            if not new:
                continue
            numbers = attach(
                self._connection,
                clean(each.piece.host),
                [_unit(part) for _, part in new],
                max([tick.time for tick in each.piece.ticks], default=each.piece.made),
                cluster=each.piece.cluster,
            )
            empty = pack_numbers(nothing_yet())
            of = {"host": each.host.id, "totals": empty}
            insert_rows(
                self._connection,
                units,
                [
                    {**of, "key": key, "job": job, "started": part.started}
                    for (key, part), job in zip(new, numbers, strict=True)
                ],
            )
            made += [(each.host.id, key) for key, _ in new]
        fresh = self._known(made)
        known |= fresh
        self._changed = {row.id for row in fresh.values()}
        for each in self._told:
            for key, part in each.keys.items():
                each.units[part.number] = known[each.host.id, key].id
        rows = {row.id: row for row in known.values()}
        self._owners = {number: row.job for number, row in rows.items()}
        return rows

    def _known(self, wanted: Sequence[tuple[int, str]]) -> dict[tuple[int, str], Any]:
        found: dict[tuple[int, str], Any] = {}
        for some in in_parts(wanted):
            of = units.c
            question = (
                sa.select(of.id, of.host, of.key, of.job, of.totals, unit_now.c.totals.label("now"))
                .outerjoin(unit_now, unit_now.c.unit == of.id)
                .where(among(self._connection, (of.host, of.key), some))
            )
            found |= {(row.host, row.key): row for row in self._connection.execute(question)}
        return found

    def _write_chunks(self) -> None:
        sent = [each for each in self._told if each.piece.chunks]
        rows = [
            row
            for each in sent
            for part in each.piece.chunks
            if (row := self._chunk_row(each, part)) is not None
        ]
        insert_rows(self._connection, chunks, rows)
        if sent:
            # Ticks until then are in chunks now.
            theirs = among(self._connection, (ticks.c.host,), [each.host.id for each in sent])
            self._connection.execute(sa.delete(ticks).where(theirs))

    def _chunk_row(self, each: Told, part: ChunkPart) -> dict[str, Any] | None:
        """Return a chunk as a row; None where an earlier incarnation told all that is in it."""
        unit = each.units[part.unit]
        row = {"unit": unit, **{name: getattr(part, name) for name in _OF_CHUNK}}
        if not each.continues:
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

    def _write_ticks(self) -> None:
        rows: list[dict[str, Any]] = []
        for each in self._told:
            for look in each.looks:
                numbers = [each.units[unit] for unit in look.units.tolist()]
                body = pack_tick(replace(look, units=np.array(numbers, dtype=np.int64)))
                times = {"since": look.since, "time": look.time}
                rows.append({"host": each.host.id, **times, "body": body})
        insert_rows(self._connection, ticks, rows)

    def _write_totals(self, known: dict[int, Any]) -> None:
        told = [
            (known[each.units[part.number]], part, each.continues)
            for each in self._told
            for part in each.piece.units
            if part.totals is not None
        ]
        sealed, latest = [], []
        if told:
            rows = [row for row, _, _ in told]
            continues = np.array([goes_on for _, _, goes_on in told])
            stood = unpack_numbers([row.now for row in rows], TOTALS)
            sums = self._grown(
                [row.totals for row in rows], [p.totals for _, p, _ in told], continues
            )
            uses = self._grown(
                [row.now for row in rows],
                [part.totals if part.now is None else part.now for _, part, _ in told],
                continues,
            )
            for place, (row, part, _) in enumerate(told):
                packed = pack_numbers(sums[place])
                if packed != row.totals:
                    sealed.append({"id": row.id, "totals": packed})
                latest.append({"unit": row.id, "totals": pack_numbers(uses[place])})
                last = float(stood[place, PLACE["last_seen"]])
                self._since[row.id] = part.started if math.isnan(last) else last
        self._changed |= {row["id"] for row in sealed}
        put_rows(self._connection, unit_now, latest)
        for each in self._told:
            after = each.piece.node_totals
            if after is not None and after != each.host.totals:
                sums_of([after], NODE.counters)
                sealed.append({"id": each.host.node, "totals": after})
        update_rows(self._connection, units, ("id",), sealed)

    def _grown(
        self,
        before: Sequence[bytes | None],
        after: Sequence[bytes | None],
        continues: np.ndarray[Any, np.dtype[np.bool_]],
    ) -> FloatArray:
        """Return what was used by now: counters do not fall, unless a store was put back."""
        old, new = unpack_numbers(before, TOTALS), unpack_numbers(after, TOTALS).copy()
        fell = new[:, COUNTED] < old[:, COUNTED] * (1 - _FELL)
        refused = fell & ~continues[:, None]
        if refused.any():
            name = UNIT.counters[int(np.flatnonzero(refused.any(axis=0))[0])]
            raise Implausible(f"what was used does not become less, and {name} did")
        for place in np.flatnonzero(fell.any(axis=1)):
            new[place, COUNTED] = np.fmax(old[place, COUNTED], new[place, COUNTED])
        return new

    def _place_facts(self) -> tuple[set[int], set[int], set[int]]:
        """Bring facts to jobs, piece by piece: each is judged by what those before have told.

        Return the jobs they are about, those that are no more, and those that these are now.
        """
        named: set[int] = set()
        gone: set[int] = set()
        anew: set[int] = set()
        for each in self._told:
            facts = [
                facts_of(part, each.piece.cluster or each.cluster)
                for part in each.piece.facts
                if _may_tell(each, part)
            ]
            facts = [fact for fact in facts if fact.source in SHARED_SOURCES]
            if facts:
                self._check_owners(each, facts)
                theirs, lost = placed(self._connection, facts)
                named |= theirs
                gone |= lost
                anew |= theirs if lost else set()
            for part in each.piece.facts:
                if part.phases is not None and part.unit:
                    self._put_phases(each.units[part.unit], clean(part.phases))
        return named - gone, gone, anew

    def _check_owners(self, each: Told, facts: Sequence[JobFacts]) -> None:
        """Refuse that a node gives a job to somebody else."""
        if each.tells_all:
            return
        names = sorted({clean(fact.job_id) for fact in facts})
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

    def _owners_of(self, numbers: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for some in in_parts(numbers):
            mine = among(self._connection, (units.c.id,), some)
            question = sa.select(units.c.id, units.c.job).where(mine)
            found |= {row.id: row.job for row in self._connection.execute(question)}
        return found

    def _write_hosts(self) -> None:
        rows = []
        for each in self._told:
            interval_s = each.piece.interval_s
            if not (math.isfinite(interval_s) and interval_s > 0):
                interval_s = each.host.interval_s
            last = max(_ends(each), default=each.host.last_time)
            rows.append({"id": each.host.id, "last_time": last, "interval_s": interval_s})
            for begins, ends in each.piece.synthetic:
                noted = synthetic_grids.c
                same = (noted.host == each.host.id) & (noted.begins == begins)
                self._connection.execute(sa.delete(synthetic_grids).where(same))
                row = {"host": each.host.id, "begins": begins, "ends": ends}
                self._connection.execute(sa.insert(synthetic_grids), row)
        update_rows(self._connection, hosts, ("id",), rows)


def _ends(each: Told) -> Iterator[float]:
    yield from (part.ends for part in each.piece.chunks)
    yield from (part.time for part in each.piece.ticks)


def _may_tell(each: Told, part: FactsPart) -> bool:
    """Return whether a job has to do with this node: of others it is not asked."""
    return each.tells_all or part.unit != 0 or each.piece.host in part.nodes


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
