"""Writing down what one host shows, tick by tick.

A tick is one row and one commit: a kill loses no more than the tick that was being written. What
a tick counts begins when its watcher first saw a unit; what the database holds begins when anybody
first did. So when watching begins anew, everything is counted on from where it stood. What a unit
did while nobody watched is kept apart: its CPU time where its control group counted it, and how
long nobody could tell what it drew.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.monitor import quantities
from lowtide.monitor.snapshot import FloatArray, Unit
from lowtide.monitor.tick import Tick
from lowtide.store.codec import Look, pack_tick
from lowtide.store.compaction import consolidate
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.layout import COUNTED, NODE, PLACE, TOTALS, UNIT, pack_numbers, unpack_numbers
from lowtide.store.matching import attach
from lowtide.store.tables import (
    clean,
    hosts,
    in_parts,
    insert_row,
    jobs,
    origins,
    synthetic_grids,
    ticks,
    units,
)
from lowtide.store.totals import nothing_yet

# When ticks are brought into chunks: so many at least, after so long at least, or at most.
CHUNK_TICKS = 60
CHUNK_LEAST_S = 60.0
CHUNK_MOST_S = 600.0

NODE_KEY = "node"

_WIDTH = len(UNIT.counters)
_CPU = UNIT.counters.index("cpu_s")
_ENERGY = UNIT.counters.index("energy_j")
_UNMETERED = UNIT.counters.index("unmetered_s")
_UNWATCHED = UNIT.counters.index("unwatched_cpu_s")
# What the kernel counts for each unit, and what always tells that a watcher begins anew.
_BY_KERNEL = np.isin(UNIT.counters, quantities.COUNTED)
_ADDED_UP = [_ENERGY, _UNMETERED]
_NODE_QUANTITIES = {each.column: each for each in quantities.NODE}
_NODE_ENERGY = NODE.counters.index("energy_j")
_NODE_MEASURED = NODE.counters.index("measured_j")
_NODE_RATES = np.array([_NODE_QUANTITIES[name].origin == "kernel" for name in NODE.gauges])
_NODE_JUDGED = [_NODE_ENERGY, NODE.counters.index("unmetered_s")]
# Who looks every now and then, by clocks that tick apart, misses nothing in so little time.
_NO_GAP_S = 1.0
# A unit that was not seen for so long is forgotten here; the database knows it still.
_FORGET_S = 86400.0


@dataclass(frozen=True, slots=True)
class _Standing:
    """Where the counters of units stand: what the watcher said, and what all said together."""

    units: tuple[Unit, ...] = ()
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    offset: FloatArray = field(default_factory=lambda: np.empty((0, _WIDTH)))
    said: FloatArray = field(default_factory=lambda: np.empty((0, _WIDTH)))
    total: FloatArray = field(default_factory=lambda: np.empty((0, _WIDTH)))


@dataclass(frozen=True, slots=True)
class _Gone:
    """The same for one unit that the last tick did not have."""

    number: int
    offset: FloatArray
    said: FloatArray
    total: FloatArray
    time: float

    def back_at(self, since: float) -> _Gone:
        """Return it as it is when somebody watches it again: what it drew meanwhile is unknown."""
        gap_s = since - self.time
        if not gap_s > _NO_GAP_S:
            return self
        offset = self.offset.copy()
        offset[_UNMETERED] += gap_s
        return replace(self, offset=offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Everything that is remembered from tick to tick; replaced once a tick is committed."""

    host: int
    node_unit: int
    standing: _Standing = field(default_factory=_Standing)
    gone: dict[str, _Gone] = field(default_factory=dict)
    node_offset: FloatArray
    node_said: FloatArray
    node_total: FloatArray
    time: float | None = None
    node_read: FloatArray = field(default_factory=lambda: np.full(len(NODE.gauges), math.nan))
    tail: int = 0
    tail_since: float = math.inf


class HostWriter:
    """Writes what one host shows."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = clean(name)
        self._state: _State | None = None

    def append(self, tick: Tick) -> None:
        """Write down a tick. If that fails, nothing of it is written."""
        state = self._state
        # One that is given again was kept: what comes after it failed, and is tried again.
        if state is None or state.time != tick.time:
            with self._database.writing() as connection:
                state, look = self._count(connection, state or self._begin(connection), tick)
                row = {"host": state.host, "since": look.since, "time": look.time}
                connection.execute(sa.insert(ticks), {**row, "body": pack_tick(look)})
                if tick.synthetic:
                    _note_synthetic(connection, row)
            self._state = state
        age = tick.time - state.tail_since
        if age >= CHUNK_MOST_S or (state.tail >= CHUNK_TICKS and age >= CHUNK_LEAST_S):
            self.consolidate()

    def consolidate(self) -> None:
        """Bring the ticks since the last time into chunks."""
        if self._state is None or not self._state.tail:
            return
        with self._database.writing() as connection:
            consolidate(connection, self._state.host, self._state.node_unit)
        now = self._state.time or 0.0
        kept = {key: each for key, each in self._state.gone.items() if now - each.time < _FORGET_S}
        self._state = replace(self._state, tail=0, tail_since=math.inf, gone=kept)

    def _begin(self, connection: sa.Connection) -> _State:
        """Look up the host, and put what a watcher before this one left behind in order."""
        host = connection.execute(
            sa.select(hosts.c.id).where(hosts.c.name == self._name)
        ).scalar_one_or_none()
        if host is None:
            host = insert_row(connection, hosts, {"name": self._name})
            connection.execute(
                sa.insert(units).values(
                    host=host,
                    key=NODE_KEY,
                    started=0.0,
                    totals=pack_numbers(np.zeros(len(NODE.counters))),
                )
            )
        node_unit = connection.execute(
            sa.select(units.c.id).where(units.c.host == host, units.c.key == NODE_KEY)
        ).scalar_one()
        consolidate(connection, host, node_unit)
        stood = connection.execute(
            sa.select(units.c.totals).where(units.c.id == node_unit)
        ).scalar_one()
        # What an older lowtide did not count begins now.
        total = np.nan_to_num(unpack_numbers([stood], NODE.counters)[0])
        return _State(
            host=host,
            node_unit=node_unit,
            node_offset=total,
            node_said=np.zeros(len(NODE.counters)),
            node_total=total,
        )

    def _count(self, connection: sa.Connection, state: _State, tick: Tick) -> tuple[_State, Look]:
        before = state.standing
        gone = state.gone
        # Where a tick could not be written, the next one tells of its time, too. One that takes no
        # time comes after a time in which nobody watched.
        since = min(tick.since, tick.time)
        if state.time is not None and tick.since < tick.time:
            since = min(since, state.time + tick.skipped_s)
        if tick.units != before.units:
            before, gone = self._aligned(connection, state, tick, since)
        said = _said(tick)
        offset, shown, total = _counted_on(before.offset, before.said, before.total, said)
        if tick.watched_cpu_s is not None:
            # What its group counted and no watcher saw.
            unseen = np.fmax(total[:, _UNWATCHED], tick.cpu_s - total[:, _CPU])
            shown[:, _UNWATCHED] = total[:, _UNWATCHED] = unseen
        node_read, node, node_said, node_offset, node_shown, node_total = _node(tick, state)
        gauges = np.stack([tick.column(name) for name in UNIT.gauges], axis=1)
        grew = np.asarray((shown > before.total).any(axis=1))
        look = Look(
            since=since,
            time=tick.time,
            units=before.numbers,
            counters=shown,
            gauges=gauges,
            node=np.concatenate([node_shown, node]),
            ended=_ends(tick, since, grew),
        )
        return (
            replace(
                state,
                standing=_Standing(tick.units, before.numbers, offset, said, total),
                gone=gone,
                node_offset=node_offset,
                node_said=node_said,
                node_total=node_total,
                time=tick.time,
                node_read=node_read,
                tail=state.tail + 1,
                tail_since=min(state.tail_since, since),
            ),
            look,
        )

    def _aligned(
        self, connection: sa.Connection, state: _State, tick: Tick, since: float
    ) -> tuple[_Standing, dict[str, _Gone]]:
        """Bring what stands into the order of the tick's units; look up those that are new."""
        old = state.standing
        known = dict(state.gone)
        for place, unit in enumerate(old.units):
            rows = (old.offset[place], old.said[place], old.total[place])
            known[clean(unit.key)] = _Gone(int(old.numbers[place]), *rows, state.time or 0.0)
        keys = [clean(unit.key) for unit in tick.units]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidInput(f"a unit is in a tick once, and {twice} is there twice")
        new = [unit for unit, key in zip(tick.units, keys, strict=True) if key not in known]
        known |= self._looked_up(connection, state.host, new, tick, resuming=state.time is None)
        stayed = {clean(unit.key) for unit in old.units}
        mine = [known.pop(key) if key in stayed else known.pop(key).back_at(since) for key in keys]
        if not mine:
            return _Standing(), known
        return (
            _Standing(
                tick.units,
                np.array([each.number for each in mine], dtype=np.int64),
                np.stack([each.offset for each in mine]),
                np.stack([each.said for each in mine]),
                np.stack([each.total for each in mine]),
            ),
            known,
        )

    def _looked_up(
        self,
        connection: sa.Connection,
        host: int,
        new: Sequence[Unit],
        tick: Tick,
        *,
        resuming: bool,
    ) -> dict[str, _Gone]:
        found = self._known(connection, host, [clean(unit.key) for unit in new])
        strangers = [unit for unit in new if clean(unit.key) not in found]
        if resuming and strangers:
            other = known_as(connection, host, strangers, taken=found.keys(), cluster=tick.cluster)
            stood = self._known(connection, host, list(other.values()))
            found |= {key: stood[name] for key, name in other.items()}
            strangers = [unit for unit in strangers if clean(unit.key) not in found]
        if not strangers:
            return found
        numbers = attach(connection, self._name, strangers, tick.time, cluster=tick.cluster)
        empty = pack_numbers(nothing_yet())
        rows = [
            {
                "host": host,
                "key": clean(unit.key),
                "job": job,
                "started": unit.started,
                "totals": empty,
            }
            for unit, job in zip(strangers, numbers, strict=True)
        ]
        connection.execute(sa.insert(units), rows)
        return found | self._known(connection, host, [clean(unit.key) for unit in strangers])

    def _known(self, connection: sa.Connection, host: int, keys: Sequence[str]) -> dict[str, _Gone]:
        found = {}
        for part in in_parts(keys):
            for key, number, started, blob in connection.execute(
                sa.select(units.c.key, units.c.id, units.c.started, units.c.totals).where(
                    units.c.host == host, units.c.key.in_(part)
                )
            ):
                stood = unpack_numbers([blob], TOTALS)[0]
                # What was never known counts from now on.
                total = np.nan_to_num(stood[COUNTED])
                last = float(np.fmax(stood[PLACE["last_seen"]], started))
                found[key] = _Gone(number, total, np.zeros(_WIDTH), total, last)
        return found


def _said(tick: Tick) -> FloatArray:
    """Return what a watcher says that units used since it first saw them, a row for each."""
    columns = {"unwatched_cpu_s": np.zeros(len(tick.units))}
    if tick.watched_cpu_s is not None:
        columns["cpu_s"] = tick.watched_cpu_s
    return np.stack(
        [columns[name] if name in columns else tick.column(name) for name in UNIT.counters], axis=1
    )


def _ends(tick: Tick, since: float, grew: npt.NDArray[np.bool_]) -> FloatArray:
    """Return when units ended in a tick, NaN for those that go on."""
    if tick.ended is None:
        return np.full(len(tick.units), np.nan)
    # What used anything in this tick did not end before it, whatever was found when.
    before = np.where(grew, tick.time, since)
    inside = np.where(tick.ended > since, np.minimum(tick.ended, tick.time), before)
    return np.where(np.isnan(tick.ended), np.nan, inside)


def _counted_on(
    offset: FloatArray, said: FloatArray, total: FloatArray, says: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what to add to what a watcher says, what was used so far, and what is known of it.

    A counter that falls to less than half began anew, and is counted on from where it stood. One
    that falls by less is a reading that wavers, and is held. One that is not known now stays where
    it was known last. What a watcher adds up itself falls only when it begins anew with all of
    them; what the kernel counts may fall alone, and then says nothing about the others.
    """
    fell: npt.NDArray[np.bool_] = np.less(says, 0.5 * said)
    anew = fell[:, _ADDED_UP].any(axis=1)
    fell[:, ~_BY_KERNEL] = False
    fell |= np.asarray(anew)[:, None]
    if fell.any():
        offset = np.where(fell, total, offset)
    used = offset + says
    # The larger of the two, and unknown where the new one is.
    shown = np.where(used < total, total, used)
    return offset, shown, np.where(np.isnan(shown), total, shown)


def _node(
    tick: Tick, state: _State
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what is read of the node, its gauges, and where its counters stand."""
    shares = tick.shares
    said = np.array([_read_node(tick, name) for name in NODE.counters])
    anew = bool((said[_NODE_JUDGED] < 0.5 * state.node_said[_NODE_JUDGED]).any())
    offset = state.node_total if anew else state.node_offset
    shown = offset + said
    drawn = shown[_NODE_ENERGY] - state.node_total[_NODE_ENERGY]
    known = shares.node_measured_w / shares.node_w if shares.node_w > 0 else 0.0
    measured = drawn * min(known, 1.0)
    shown[_NODE_MEASURED] = state.node_total[_NODE_MEASURED] + (
        0.0 if math.isnan(measured) else max(measured, 0.0)
    )
    shown = np.where(shown < state.node_total, state.node_total, shown)
    total = np.where(np.isnan(shown), state.node_total, shown)
    said = np.where(np.isnan(said), state.node_said, said)
    passed = math.nan if state.time is None else tick.time - state.time - tick.skipped_s

    gauges = np.array([_read_node(tick, name) for name in NODE.gauges])
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = (gauges - state.node_read) / passed
    # A counter that fell was reset by a reboot.
    rates[~((rates >= 0) & (passed > 0))] = math.nan
    return gauges, np.where(_NODE_RATES, rates, gauges), said, offset, shown, total


def _read_node(tick: Tick, name: str) -> float:
    """Return what a tick says of the node; NaN for what is added up here."""
    source = _NODE_QUANTITIES[name].source
    return quantities.value_of(tick, source) if source else math.nan


def _note_synthetic(connection: sa.Connection, row: Mapping[str, float]) -> None:
    """Note that the grams of a tick are those of a synthetic grid, in one row with those before."""
    noted = synthetic_grids.c
    goes_on = sa.and_(noted.host == row["host"], noted.ends >= row["since"] - _NO_GAP_S)
    if not connection.execute(
        sa.update(synthetic_grids).where(goes_on).values(ends=row["time"])
    ).rowcount:
        entry = {"host": row["host"], "begins": row["since"], "ends": row["time"]}
        connection.execute(sa.insert(synthetic_grids), entry)


# Where a host was left: what ran there at its last tick, so that others can go on from it.

# Times are kept to the millisecond.
_SAME_S = 2e-3
# By how much a start may differ that is known by the age of a process.
_AGE_S = 2.0


def last_look(database: Database, host: str) -> tuple[float, dict[Unit, float]] | None:
    """Return when a host was last looked at, and the CPU time of what ran there; None if never."""
    with database.writing() as connection:
        known = next((each for each in read_hosts(connection) if each.name == clean(host)), None)
        if known is None:
            return None
        consolidate(connection, known.number, known.node_unit)
        last = known.last_time
        rows = connection.execute(
            sa.select(
                jobs.c.source,
                jobs.c.job_id,
                jobs.c.user,
                jobs.c.name,
                units.c.started,
                units.c.totals,
            )
            .join(jobs, units.c.job == jobs.c.id)
            .where(units.c.host == known.number, jobs.c.ends >= last - _SAME_S)
            .order_by(units.c.id)
        ).all()
    totals = unpack_numbers([row.totals for row in rows], TOTALS)
    found = {}
    for row, total in zip(rows, totals, strict=True):
        if _was_there(total, last):
            unit = Unit(
                source=row.source,
                job_id=row.job_id,
                started=row.started,
                user=row.user or "",
                name=row.name or "",
            )
            parts = (total[PLACE["cpu_s"]], total[PLACE["unwatched_cpu_s"]])
            found[unit] = float(sum(part for part in parts if part >= 0))
    return last, found


def known_as(
    connection: sa.Connection,
    host: int,
    found: Sequence[Unit],
    *,
    taken: Container[str],
    cluster: str = "",
) -> dict[str, str]:
    """Return by which key units are known that were there at the last look of another watcher.

    What counts by its processes is known by the oldest of them, which may have ended since.

    Args:
        connection: A transaction; all ticks are in chunks.
        cluster: The cluster of units that name none, empty where not known.
    """
    last = connection.execute(sa.select(hosts.c.last_time).where(hosts.c.id == host)).scalar_one()
    if last is None:
        return {}
    there: dict[tuple[str, str], list[Any]] = {}
    for part in in_parts(sorted({clean(unit.job_id) for unit in found})):
        for row in connection.execute(
            sa.select(
                *(jobs.c.source, jobs.c.job_id, units.c.key, units.c.started, units.c.totals),
                sa.func.coalesce(origins.c.cluster, "").label("cluster"),
            )
            .join(jobs, units.c.job == jobs.c.id)
            .outerjoin(origins, origins.c.job == jobs.c.id)
            .where(units.c.host == host, jobs.c.job_id.in_(part), jobs.c.ends >= last - _SAME_S)
            .order_by(units.c.id)
        ):
            if _was_there(unpack_numbers([row.totals], TOTALS)[0], last) and row.key not in taken:
                there.setdefault((row.source, row.job_id), []).append(row)
    named = {}
    for unit in found:
        stood = there.get((unit.source, clean(unit.job_id)), [])
        of = ("", clean(unit.cluster) or clean(cluster))
        known = next((row for row in reversed(stood) if not of[1] or row.cluster in of), None)
        if known is None:
            continue
        # Who began after the last look may be another start of it.
        latest = max(last, known.started + _AGE_S)
        if known.started - _AGE_S <= unit.started <= latest:
            named[clean(unit.key)] = known.key
            stood.remove(known)
    return named


def _was_there(total: FloatArray, last: float) -> bool:
    """Return whether a unit went on at the last look."""
    return bool(total[PLACE["last_seen"]] >= last - _SAME_S) and math.isnan(
        total[PLACE["seen_end"]]
    )
