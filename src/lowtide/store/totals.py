"""What units have used over their lives, carried on from tick to tick.

The same function carries on what the database holds and what a reader adds to it in memory, so both
come to the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from lowtide.monitor.snapshot import FloatArray
from lowtide.store.codec import Look, Points, unpack_tick
from lowtide.store.layout import COUNTED, NODE, PLACE, TOTALS, UNIT, unpack_numbers
from lowtide.store.tables import in_parts, ticks, units

_GAUGE = {name: place for place, name in enumerate(UNIT.gauges)}
_CPU = UNIT.counters.index("cpu_s")
_ENERGY = UNIT.counters.index("energy_j")
_GPU_W = UNIT.gauges.index("gpu_w")
_NODE_COUNTERS = len(NODE.counters)
_PARTIAL = [
    PLACE[name]
    for name in (
        *("energy_j", "measured_j", "carbon_g"),
        *("unmetered_s", "unpriced_j", "unwatched_cpu_s"),
    )
]


# The start of a process is known to this, so nothing that was seen took less.
_LEAST_S = 0.01
# What was drawn in less than this says nothing about the most that is ever drawn.
_PEAK_S = 1.0


def nothing_yet() -> FloatArray:
    """Return the totals of a unit that nobody has looked at."""
    totals = np.full(len(TOTALS), np.nan)
    totals[COUNTED] = 0.0
    for name in ("looks", "seen_s", "memory_byte_s", "gpu_busy_s", "gpu_j"):
        totals[PLACE[name]] = 0.0
    return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Successive ticks of one host, sorted by unit.

    Attributes:
        units: The units that were seen, each once, ascending.
        first: Where the rows of each begin.
        since: When each row begins.
        time: When it ends.
        whole_s: How long the tick was, which is more where a unit came or went in it.
        ended: When the unit ended, NaN where it goes on.
        counters: What was used so far.
        gauges: What was held.
        node: The node's own values.
    """

    units: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    since: FloatArray
    time: FloatArray
    whole_s: FloatArray
    ended: FloatArray
    counters: FloatArray
    gauges: FloatArray
    node: Points

    @classmethod
    def of(
        cls,
        looks: Sequence[Look],
        *,
        started: Mapping[int, float],
        node_base: FloatArray,
    ) -> Tail:
        """Sort ticks by unit.

        Args:
            started: When units began; of those that nobody had looked at before.
        """
        units = np.concatenate([look.units for look in looks])
        lengths = [look.units.size for look in looks]
        since = np.repeat([look.since for look in looks], lengths)
        time = np.repeat([look.time for look in looks], lengths)
        counters = np.vstack([look.counters for look in looks])
        gauges = np.vstack([look.gauges for look in looks])
        ended = np.concatenate([look.ended for look in looks])
        order = np.argsort(units, kind="stable")
        units, since, time, ended = units[order], since[order], time[order], ended[order]
        whole_s = np.maximum(time - since, 0.0)
        # Nor with the time after its end.
        time = np.where(np.isnan(ended), time, np.clip(ended, since, time))
        names, first = np.unique(units, return_index=True)
        for name, place in zip(names.tolist(), first.tolist(), strict=True):
            # A job that began between two ticks is not charged with the time before.
            if (began := started.get(name)) is not None:
                latest = time[place] - (0.0 if np.isnan(ended[place]) else _LEAST_S)
                since[place] = max(min(began, latest), since[place])
                since[place] = min(since[place], time[place])
        gauges = gauges[order]
        # Power is told for the whole tick, and was drawn while the unit was there.
        with np.errstate(divide="ignore", invalid="ignore"):
            gauges[:, _GPU_W] *= np.where(time > since, whole_s / (time - since), 1.0)
        node = np.stack([look.node for look in looks])
        return cls(
            units=names,
            first=first.astype(np.int64),
            since=since,
            time=time,
            whole_s=whole_s,
            ended=ended,
            counters=counters[order],
            gauges=gauges,
            node=Points(
                since=np.array([look.since for look in looks]),
                time=np.array([look.time for look in looks]),
                base=node_base,
                counters=node[:, :_NODE_COUNTERS],
                gauges=node[:, _NODE_COUNTERS:],
            ),
        )

    def points(self, place: int, base: FloatArray) -> Points:
        """Return the values of one unit.

        Args:
            place: Which of `units`.
        """
        last = self.first[place + 1] if place + 1 < self.first.size else self.time.size
        rows = slice(int(self.first[place]), int(last))
        return Points(
            since=self.since[rows],
            time=self.time[rows],
            base=base,
            counters=self.counters[rows],
            gauges=self.gauges[rows],
        )

    def carried_on(self, totals: FloatArray) -> FloatArray:
        """Return what the units have used, with these ticks.

        Args:
            totals: What they had used before, a row for each of `units`.
        """
        if not self.units.size:
            return totals
        result = totals.copy()
        first = self.first
        last = np.append(first[1:], self.time.size) - 1
        length = np.maximum(self.time - self.since, 0.0)
        lengths = totals[:, PLACE["seen_s"]] + np.add.reduceat(length, first)
        seen_s = np.repeat(lengths, last - first + 1)
        before = np.empty_like(self.counters)
        before[1:] = self.counters[:-1]
        before[first] = totals[:, COUNTED]
        with np.errstate(divide="ignore", invalid="ignore"):
            # Where no time passed there is no rate, and where little did, hardly one.
            least_s = np.fmax(length, np.minimum(self.whole_s, np.minimum(_PEAK_S, seen_s)))
            rates = (self.counters - before) / np.where(length > 0, least_s, np.nan)[:, None]

        def put(name: str, values: FloatArray) -> None:
            result[:, PLACE[name]] = values

        def most(name: str, values: FloatArray) -> None:
            here = np.fmax.reduceat(values, first)
            put(name, np.fmax(totals[:, PLACE[name]], here))

        def added(name: str, values: FloatArray) -> None:
            put(name, totals[:, PLACE[name]] + np.add.reduceat(values, first))

        def integral(gauge: str) -> FloatArray:
            # What is held in no time is nothing, known or not.
            return np.where(length > 0, self.gauges[:, _GAUGE[gauge]] * length, 0.0)

        put(
            "first_seen",
            np.fmin(totals[:, PLACE["first_seen"]], np.minimum.reduceat(self.time, first)),
        )
        most("last_seen", self.time)
        added("looks", np.ones(self.time.size))
        added("seen_s", length)
        put("seen_end", self.ended[last])
        result[:, COUNTED] = self._last_known(last, totals)
        added("memory_byte_s", integral("memory_bytes"))
        added("gpu_busy_s", integral("gpus_busy"))
        added("gpu_j", integral("gpu_w"))
        most("peak_cpus", rates[:, _CPU])
        most("peak_power_w", rates[:, _ENERGY])
        most("peak_memory_bytes", self.gauges[:, _GAUGE["memory_bytes"]])
        most("peak_gpus", self.gauges[:, _GAUGE["gpus_busy"]])
        most("peak_gpu_memory_bytes", self.gauges[:, _GAUGE["gpu_memory_bytes"]])
        for name in ("reserved_cpus", "reserved_bytes", "reserved_gpus"):
            most(name, self.gauges[:, _GAUGE[name]])
        return result

    def _last_known(self, last: npt.NDArray[np.int64], totals: FloatArray) -> FloatArray:
        """Return what the counters came to: what is not known now stays as it was known last."""
        final = self.counters[last]
        if not np.isnan(final).any():
            return final
        rows = np.where(np.isnan(self.counters), -1, np.arange(self.time.size)[:, None])
        known = np.maximum.accumulate(rows, axis=0)[last]
        # What nobody ever knew stays unknown.
        never = totals[:, PLACE["looks"]] == 0
        before = np.where(never[:, None], np.nan, totals[:, COUNTED])
        here = np.take_along_axis(self.counters, np.maximum(known, 0), axis=0)
        return np.where(known >= self.first[:, None], here, before)


def last_known(values: FloatArray) -> FloatArray:
    """Return values with every unknown one as the known one before it; NaN before the first."""
    rows = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    filled: FloatArray = np.take_along_axis(values, np.maximum.accumulate(rows, axis=0), axis=0)
    return filled


def together(rows: FloatArray, hosts: Sequence[int]) -> FloatArray:
    """Return the totals of a job from those of its units.

    What was used is summed, and so are peaks, though hosts need not reach theirs together. A job is
    seen while any of its units is. Units of one host were there one after the other: the group of
    a job may be made anew for each of its steps.
    """
    if len(set(hosts)) < len(hosts):
        of = np.asarray(hosts)
        rows = np.stack([_in_turn(rows[of == host]) for host in dict.fromkeys(hosts)])
    if len(rows) == 1:
        return np.asarray(rows[0])
    joined: FloatArray = rows.sum(axis=0)
    # Where these lack a part, `unmetered_s` and `unpriced_j` say so.
    known = rows[:, _PARTIAL]
    joined[_PARTIAL] = np.where(np.isnan(known).all(axis=0), np.nan, np.nansum(known, axis=0))
    # Where it goes on somewhere, it is not over.
    for name in ("last_seen", "looks", "seen_s", "seen_end"):
        joined[PLACE[name]] = rows[:, PLACE[name]].max()
    # As long as it lacks one host, it lacks a part.
    joined[PLACE["unmetered_s"]] = np.fmax.reduce(rows[:, PLACE["unmetered_s"]])
    joined[PLACE["first_seen"]] = rows[:, PLACE["first_seen"]].min()
    return joined


def _in_turn(rows: FloatArray) -> FloatArray:
    """Return the totals of units that were there one after the other."""
    if len(rows) == 1:
        return np.asarray(rows[0])
    known = np.isnan(rows).all(axis=0)
    joined: FloatArray = np.where(known, np.nan, np.nansum(rows, axis=0))
    last = rows[np.argmax(np.nan_to_num(rows[:, PLACE["last_seen"]]))]
    for name, place in PLACE.items():
        if name.startswith(("peak_", "reserved_")) or name == "last_seen":
            joined[place] = np.fmax.reduce(rows[:, place])
    joined[PLACE["first_seen"]] = np.fmin.reduce(rows[:, PLACE["first_seen"]])
    joined[PLACE["seen_end"]] = last[PLACE["seen_end"]]
    return joined


# What is newest: the ticks that are in no chunk yet.

# So many hosts are read together.
_AT_ONCE = 100


def read_ticks(connection: sa.Connection, host: int) -> tuple[int, list[Look]]:
    """Return the ticks of a host that are not in chunks yet, and the number of the last."""
    return _ticks_of(connection, [host])[host]


def _ticks_of(connection: sa.Connection, hosts: Sequence[int]) -> dict[int, tuple[int, list[Look]]]:
    """Return the same of several hosts."""
    of = ticks.c
    found: dict[int, tuple[int, list[Look]]] = {host: (0, []) for host in hosts}
    question = sa.select(of.id, of.host, of.since, of.time, of.body).where(of.host.in_(hosts))
    for row in connection.execute(question.order_by(of.id)):
        looks = found[row.host][1]
        looks.append(unpack_tick(row.since, row.time, row.body))
        found[row.host] = row.id, looks
    return found


def read_tail(
    connection: sa.Connection, looks: list[Look], node_unit: int
) -> tuple[Tail, FloatArray, dict[int, int]]:
    """Return ticks sorted by unit, what those units had used before, and their jobs."""
    return _tail_of(looks, node_unit, _rows_of(connection, [looks], [node_unit]))


def _rows_of(
    connection: sa.Connection, many: Sequence[list[Look]], nodes: Sequence[int]
) -> dict[int, Any]:
    """Return the rows of the units that are in ticks of several hosts, and of these themselves."""
    seen = [look.units for looks in many for look in looks]
    wanted = np.unique(np.concatenate([*seen, nodes])).tolist()
    of = units.c
    rows: dict[int, Any] = {}
    for part in in_parts(wanted):
        question = sa.select(of.id, of.job, of.started, of.totals).where(of.id.in_(part))
        rows |= {row.id: row for row in connection.execute(question)}
    return rows


def _tail_of(
    looks: list[Look], node_unit: int, rows: Mapping[int, Any]
) -> tuple[Tail, FloatArray, dict[int, int]]:
    seen = np.unique(np.concatenate([look.units for look in looks])).tolist()
    node = unpack_numbers([rows[node_unit].totals], NODE.counters)[0]
    before = unpack_numbers([rows[number].totals for number in seen], TOTALS)
    new = {
        number: rows[number].started
        for number, totals in zip(seen, before, strict=True)
        if totals[PLACE["looks"]] == 0
    }
    tail = Tail.of(looks, started=new, node_base=node)
    return tail, before, {number: rows[number].job for number in seen}


class Newest:
    """What no chunk holds yet, of any unit, as of one moment; every host's is read once.

    Args:
        hosts: The only ones that are asked about; None for any.
    """

    def __init__(self, connection: sa.Connection, *, hosts: Sequence[int] | None = None) -> None:
        self.connection = connection
        self._wanted = hosts
        self._hosts: dict[int, tuple[Tail, FloatArray] | None] = {}
        self._nodes: dict[int, int] | None = None

    def of_node(self, host: int) -> list[Points]:
        """Return the values of a node."""
        read = self._tail(host)
        return [] if read is None else [read[0].node]

    def of_unit(self, unit: int, host: int) -> list[Points]:
        """Return the values of a unit."""
        read = self._tail(host)
        if read is None:
            return []
        tail, before = read
        place = int(np.searchsorted(tail.units, unit))
        if place == tail.units.size or tail.units[place] != unit:
            return []
        return [tail.points(place, before[place, COUNTED])]

    def _tail(self, host: int) -> tuple[Tail, FloatArray] | None:
        if self._nodes is None:
            # Those that have ticks: of the others there is nothing to ask, host by host.
            with_ticks = sa.select(ticks.c.host).distinct()
            if self._wanted is not None:
                with_ticks = with_ticks.where(ticks.c.host.in_(self._wanted))
            found = self.connection.execute(
                sa.select(units.c.host, units.c.id).where(
                    units.c.job.is_(None), units.c.host.in_(with_ticks)
                )
            )
            self._nodes = {row.host: row.id for row in found}
        if host not in self._hosts:
            # With it those that are likely to be asked for next: for each alone takes longer.
            asked = list(self._nodes) if self._wanted is not None else [host]
            some = [each for each in asked if each not in self._hosts and each != host]
            self._read([host, *some[:_AT_ONCE]])
        return self._hosts[host]

    def _read(self, hosts: Sequence[int]) -> None:
        nodes = self._nodes or {}
        found = _ticks_of(self.connection, [host for host in hosts if host in nodes])
        late = {host: looks for host, (_, looks) in found.items() if looks}
        numbers = [nodes[host] for host in late]
        rows = _rows_of(self.connection, list(late.values()), numbers) if late else {}
        for host in hosts:
            known = late.get(host)
            self._hosts[host] = None if known is None else _tail_of(known, nodes[host], rows)[:2]
