"""What jobs did, and their nodes meanwhile: of long ones that go on, brought together so far.

A job of 32 nodes that has run for a day has nine thousand chunks. The centre brings them together
while they come, and whoever looks reads what came since besides. It is what reading all of it
shows: as soon as anything is otherwise of the time of which that is kept, it is not used.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.hindsight.job import NODE_COLUMNS, NodeUse, SeenJob, seen_of
from lowtide.monitor.snapshot import PRESSURES, FloatArray
from lowtide.serve.drawing import JOB_PANELS
from lowtide.serve.node_views import Span, within
from lowtide.serve.schema import courses, jobs
from lowtide.store import JobRecord, Series
from lowtide.store.bulk import among, put_rows
from lowtide.store.database import Database
from lowtide.store.layout import UNIT
from lowtide.store.series import Histories, summed
from lowtide.store.tables import chunks, hosts, phases, units

_LOG = logging.getLogger(__name__)
# Of what is packed below: what another has packed is brought together anew.
_VERSION = 1
# What pages and phases are made of.
_COLUMNS = (
    *(name for name, *_ in JOB_PANELS),
    *(f"{kind}_wait_s" for kind in PRESSURES),
    "gpu_memory_bytes",
)
# A row has about so many steps, and is written anew until then.
_STEPS = 1_000
# What is not older than this is read as it is: it comes by the ten minutes.
_LEAST_S = 300.0
_TRACE_S = 1e-3
# From a moment on a step is read that ended there.
_BEFORE_S = 1.0


@dataclass(slots=True, kw_only=True)
class _SoFar:
    """What a job did up to a moment.

    Attributes:
        until: Up to when; a step ends there.
        series: The columns of `_COLUMNS`.
        nodes: What its nodes did, by their numbers as hosts.
        reached: Up to when each of its units was seen until then.
    """

    until: float = -math.inf
    series: Series = field(default_factory=lambda: Series.nothing(_COLUMNS))
    nodes: Mapping[int, NodeUse] = field(default_factory=dict)
    reached: Mapping[int, float] = field(default_factory=dict)


class _Packed(msgspec.Struct):
    times: bytes
    step_s: bytes
    columns: dict[str, bytes]
    nodes: dict[int, dict[str, Any]]
    reached: dict[int, float]


def seen(database: Database, record: JobRecord) -> SeenJob:
    """Return what was seen of a job.

    Args:
        database: The centre, held to what whoever asks may see; they were given the job.
    """
    with database.reading() as connection:
        names = _hosts(connection, record)
        known = _kept(connection, record)
        found = _later(connection, record, known, names)
        document = sa.select(phases.c.document).where(phases.c.job == record.number)
        kept = connection.execute(document).scalar()
    nodes = [found.nodes[host] for host in _in_order(record, names) if host in found.nodes]
    return seen_of(record, found.series, nodes, kept)


def behind(connection: sa.Connection, record: JobRecord) -> tuple[Series, list[Series]]:
    """Return what a job used over time, and what its nodes did while it was on them."""
    names = _hosts(connection, record)
    histories = Histories(connection, hosts=list(names))
    parts = histories.of_units(record.number)
    series = summed(parts, UNIT)
    if not len(series):
        return series, []
    ran_on = _in_order(record, names)
    meanwhile = Histories(
        connection,
        start=float(series.starts[0]),
        end=float(series.times[-1]),
        hosts=ran_on,
    )
    nodes = meanwhile.of_nodes([(names[host][1], host) for host in ran_on])
    spans = _spans_of(parts)
    return series, [within(node, spans[host]) for host, node in zip(ran_on, nodes, strict=True)]


def _spans_of(parts: Sequence[tuple[int, int, Series]]) -> dict[int, list[Span]]:
    """Return when a job was on each of its nodes, by their numbers as hosts.

    Of the rest of the time the node is not its user's to know, whenever other nodes say that it
    ran there.
    """
    found: dict[int, list[Span]] = defaultdict(list)
    for _, host, part in parts:
        if len(part):
            found[host].append((float(part.starts[0]), float(part.times[-1])))
    return found


def keep_courses(database: Database, records: Sequence[JobRecord], *, over: float) -> int:
    """Bring together what jobs that go on did so far; return of how many there was more.

    Args:
        over: When to leave the rest for the next time, by the clock that only goes forward.
    """
    done = 0
    for record in records:
        if time.monotonic() >= over:
            break
        try:
            done += _extend(database, record)
        except StoreProblem:
            raise
        except Exception as error:  # noqa: BLE001 - no job may keep others from being read
            _LOG.info("what job %s did cannot be read: %s", record.shown_id, error)
    with database.writing() as connection:
        # Those that are over are kept as they are shown, and those that are gone not at all.
        goes_on = sa.select(jobs.c.number).where(
            jobs.c.number == courses.c.job, sa.not_(jobs.c.settled)
        )
        connection.execute(sa.delete(courses).where(sa.not_(goes_on.exists())))
    return done


def _extend(database: Database, record: JobRecord) -> bool:
    """Bring together what is in chunks of all nodes of a job by now."""
    with database.reading() as connection:
        names = _hosts(connection, record)
        known = _kept(connection, record)
        sealed = _sealed(connection, [node for _, node in names.values()], known.until)
        if sealed - known.until < _LEAST_S:
            return False
        found = _later(connection, record, known, names, sealed=sealed)
        if found.until <= known.until:
            return False
        stands = _stands(connection, record, found.until)
        mine = courses.c.job == record.number
        ends = connection.execute(sa.select(courses.c.until).where(mine)).scalars()
        begins = _last_of(sorted(ends), known.series)
        body = _pack(found, found.series.times > begins + _TRACE_S)
    with database.writing() as connection:
        connection.execute(sa.delete(courses).where(mine, courses.c.until > begins))
        row = {"job": record.number, "until": found.until, "stands": stands, "body": body}
        put_rows(connection, courses, [row])
    return True


def _last_of(ends: Sequence[float], known: Series) -> float:
    """Return from when on a row is to be written, which goes on until it is long enough."""
    edges = [-math.inf, *(ends if len(known) else ())]
    if len(edges) > 1:
        before, last = edges[-2:]
        size = np.count_nonzero((known.times > before + _TRACE_S) & (known.times <= last))
        return before if size < _STEPS else last
    return edges[0]


def _hosts(connection: sa.Connection, record: JobRecord) -> dict[int, tuple[str, int]]:
    """Return the hosts on which a job was seen: what each is called, and its number as a unit."""
    its_own = units.alias()
    question = (
        sa.select(hosts.c.id, hosts.c.name, its_own.c.id.label("node"))
        .join(units, units.c.host == hosts.c.id)
        .join(its_own, (its_own.c.host == hosts.c.id) & its_own.c.job.is_(None))
        .where(units.c.job == record.number)
        .order_by(hosts.c.id)
    )
    return {row.id: (row.name, row.node) for row in connection.execute(question)}


def _in_order(record: JobRecord, names: Mapping[int, tuple[str, int]]) -> list[int]:
    """Return hosts, as `_hosts` gives them, in the order of the job's."""
    order = {name: place for place, name in enumerate(record.hosts)}
    found = [(order[name], host) for host, (name, _) in names.items() if name in order]
    return [host for _, host in sorted(found)]


def _sealed(connection: sa.Connection, nodes: Sequence[int], after: float) -> float:
    """Return up to when there are chunks of all nodes."""
    question = (
        sa.select(sa.func.max(chunks.c.ends))
        .where(among(connection, (chunks.c.unit,), nodes), chunks.c.begins >= after)
        .group_by(chunks.c.unit)
    )
    found = connection.execute(question).scalars().all() if nodes else []
    return min(found) if len(found) == len(nodes) and found else -math.inf


def _stands(connection: sa.Connection, record: JobRecord, until: float) -> str:
    """Return what tells what there is of a job up to a moment from anything else there ever was.

    Numbers of jobs and of units that are gone may be given again.
    """
    of = chunks.c
    mine = sa.select(units.c.id).where(units.c.job == record.number)
    question = sa.select(
        sa.func.count(), sa.func.sum(of.points), sa.func.min(of.id), sa.func.max(of.id)
    ).where(of.unit.in_(mine), of.begins < until)
    ids = connection.execute(mine.order_by(units.c.id)).scalars().all()
    there = [None if each is None else int(each) for each in connection.execute(question).one()]
    whose = (record.number, record.source, record.job_id, record.cluster, record.user)
    named = repr((_VERSION, whose, record.started, ids, there, until))
    return hashlib.sha256(named.encode()).hexdigest()


def _kept(connection: sa.Connection, record: JobRecord) -> _SoFar:
    """Return what is kept of a job, nothing where any of that is otherwise by now."""
    mine = sa.select(courses).where(courses.c.job == record.number).order_by(courses.c.until)
    rows = connection.execute(mine).all()
    if not rows or rows[-1].stands != _stands(connection, record, rows[-1].until):
        return _SoFar()
    parts = [msgspec.msgpack.decode(zlib.decompress(row.body), type=_Packed) for row in rows]
    last = parts[-1]
    return _SoFar(
        until=rows[-1].until,
        series=Series(
            times=_numbers([part.times for part in parts]),
            step_s=_numbers([part.step_s for part in parts]),
            columns={name: _numbers([part.columns[name] for part in parts]) for name in _COLUMNS},
        ),
        nodes={host: NodeUse(**use) for host, use in last.nodes.items()},
        reached=last.reached,
    )


def _pack(found: _SoFar, rows: np.ndarray[Any, np.dtype[np.bool_]]) -> bytes:
    """Return some steps in bytes, and what nodes did from the first of all on."""
    packed = _Packed(
        times=found.series.times[rows].tobytes(),
        step_s=found.series.step_s[rows].tobytes(),
        columns={name: found.series.columns[name][rows].tobytes() for name in _COLUMNS},
        nodes={host: asdict(use) for host, use in found.nodes.items()},
        reached=dict(found.reached),
    )
    return zlib.compress(msgspec.msgpack.encode(packed), 1)


def _numbers(parts: Sequence[bytes]) -> FloatArray:
    return np.frombuffer(b"".join(parts), dtype=np.float64)


def _later(
    connection: sa.Connection,
    record: JobRecord,
    known: _SoFar,
    names: Mapping[int, tuple[str, int]],
    *,
    sealed: float = math.inf,
) -> _SoFar:
    """Return what a job did up to a moment, of which that up to an earlier one is known.

    Args:
        names: Its hosts, as `_hosts` gives them.
        sealed: Up to when all of its nodes have told everything.
    """
    is_first = not len(known.series)
    histories = Histories(
        connection, start=None if is_first else known.until - _BEFORE_S, hosts=list(names)
    )
    parts = [
        (unit, host, _with_hole(part, known.reached.get(unit, math.inf)))
        for unit, host, part in histories.of_units(record.number)
    ]
    series = summed(parts, UNIT)
    rows = (series.starts >= known.until - _TRACE_S) & (series.times <= sealed + _TRACE_S)
    if math.isfinite(sealed) and rows.any():
        # The last may go on when more is known.
        rows[np.flatnonzero(rows)[-1]] = False
    until = float(series.times[rows][-1]) if rows.any() else known.until
    joined = _joined(known.series, series, rows)
    if not len(joined):
        return known
    after = known.until
    if is_first:
        # Of nodes nothing is wanted of the time before.
        after = float(joined.starts[0])
        histories = Histories(connection, start=after, end=until, hosts=list(names))
    wanted = [(node, host) for host, (_, node) in names.items()]
    spans = _spans_of(parts)
    nodes = dict(known.nodes)
    for host, node in zip(names, histories.of_nodes(wanted), strict=True):
        # Each of its steps counts once, in the part of the time in which it ends.
        inside = (node.times > after + _TRACE_S) & (node.starts < until)
        if math.isfinite(sealed):
            inside &= node.times <= until + _TRACE_S
        use = NodeUse.of(within(_chosen(node, inside), spans[host]))
        nodes[host] = nodes[host] + use if host in nodes else use
    reached = dict(known.reached)
    for unit, _, part in parts:
        before = part.times[part.times <= until + _TRACE_S]
        if before.size:
            reached[unit] = float(before[-1])
    return _SoFar(until=until, series=joined, nodes=nodes, reached=reached)


def _with_hole(part: Series, reached: float) -> Series:
    """Return the later course of a unit with the time since it was seen before, which is a hole."""
    if not len(part) or part.starts[0] - reached <= _TRACE_S:
        return part
    return Series(
        times=np.insert(part.times, 0, part.starts[0]),
        step_s=np.insert(part.step_s, 0, part.starts[0] - reached),
        columns={name: np.insert(column, 0, np.nan) for name, column in part.columns.items()},
    )


def _chosen(node: Series, rows: np.ndarray[Any, np.dtype[np.bool_]]) -> Series:
    """Return some steps of a node, of the columns that are added up."""
    return Series(
        times=node.times[rows],
        step_s=node.step_s[rows],
        columns={name: node.columns[name][rows] for name in NODE_COLUMNS},
    )


def _joined(before: Series, later: Series, rows: np.ndarray[Any, np.dtype[np.bool_]]) -> Series:
    """Return steps and some of later ones, of the columns that are kept."""
    if not len(before) and rows.all():
        return later
    return Series(
        times=np.append(before.times, later.times[rows]),
        step_s=np.append(before.step_s, later.step_s[rows]),
        columns={
            name: np.append(before.columns[name], later.columns[name][rows]) for name in _COLUMNS
        },
    )
