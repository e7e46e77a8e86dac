"""The centre's books: a row for each job, and sums over jobs that always equal their rows.

What a job used is spread over the hours in which it did, as its course has it, and the parts come
to the whole. Sums by hour, day and month have a job once it is over, and are changed in the
transaction that changes its row; whoever asks for sums adds the jobs that go on.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.monitor.snapshot import FloatArray
from lowtide.serve.schema import (
    COUNTED,
    DIMENSIONS,
    SUMMED,
    USAGE,
    make_partitions,
    month_of,
    take_turns,
    unit_now,
)
from lowtide.serve.schema import jobs as rows_of
from lowtide.states import NOT_OVER
from lowtide.store.bulk import among, insert_rows, put_rows, update_rows
from lowtide.store.database import Database
from lowtide.store.jobs import JobTable, Question, as_they_stand, narrowed
from lowtide.store.layout import FACTS, PLACE, TOTALS, as_numbers, padded, unpack_numbers
from lowtide.store.matching import SHARED_SOURCES
from lowtide.store.records import HostRecord
from lowtide.store.series import Histories
from lowtide.store.tables import hosts, in_parts, jobs, joined, origins, split, units
from lowtide.store.totals import together

HOUR_S = 3600
# Of a job that nobody says the end of, and that was not seen for so long, nothing more will come.
STALE_S = 2 * 86400.0
_STALE_AT_ONCE = 500
# By how much the store's rows of jobs may be behind what nodes have told in ticks.
BEHIND_S = 7200.0
_HEADER = struct.Struct("<qI")
_REF_SIGNS = 15
# A row that keeps these stays where it lies, and in all indexes.
_STAYS = ("number", "over", "ref", "user", "account", "job_id", "shown_id")
_TEXTS = ("job_id", "source", "user", "state", "account", "partition", "name", "comment", "hosts")

# A sum from which so many times as much is taken as is left is added up anew.
_FAR_LARGER = 1e4

# Hours since the epoch, and what was used in each, in the order of `SUMMED`.
Hours = dict[int, FloatArray]
# By hour and by `DIMENSIONS`.
_Changes = dict[tuple[Any, ...], FloatArray]


def pack_hours(hours: Hours, *, level: int = 6) -> bytes | None:
    """Return the parts of a job by hour in bytes; None where one hour has it all.

    Args:
        level: How hard to pack; what is packed again in a minute need not be smallest.
    """
    if len(hours) < 2:
        return None
    first = min(hours)
    table = np.zeros((max(hours) - first + 1, len(SUMMED)))
    for hour, values in hours.items():
        table[hour - first] = values
    return _HEADER.pack(first, len(table)) + zlib.compress(table.T.astype("<f8").tobytes(), level)


def unpack_hours(blob: bytes) -> Hours:
    """Return what `pack_hours` packed."""
    try:
        first, count = _HEADER.unpack_from(blob)
        data = zlib.decompress(blob[_HEADER.size :])
        table = np.frombuffer(data, "<f8").reshape(len(SUMMED), count).T
    except (struct.error, zlib.error, ValueError) as error:
        raise InvalidInput(f"the hours of a job are damaged: {error}") from None
    return {first + place: row.copy() for place, row in enumerate(table) if row.any()}


def parts_of(row: Mapping[str, Any]) -> Hours:
    """Return what a job used by hour, from its row."""
    if row["hours"] is not None:
        return unpack_hours(row["hours"])
    return {_hour(_moment(row)): _whole(row)}


def settle(
    connection: sa.Connection,
    numbers: Iterable[int],
    *,
    now: float,
    since: Mapping[int, float],
    anew: Container[int] = (),
) -> None:
    """Bring the rows of jobs up to date, and with them the sums.

    Args:
        numbers: The store's numbers of the jobs; those that are gone lose their rows.
        since: From when on they may have used anything that their rows do not have yet.
        anew: Jobs that became one with others: their whole course says when they used what.
    """
    wanted = sorted(set(numbers))
    changes: _Changes = defaultdict(lambda: np.zeros(len(COUNTED) + len(SUMMED)))
    # What is taken out of sums, by the same names.
    taken: _Changes = defaultdict(lambda: np.zeros(len(SUMMED)))
    for part in in_parts(wanted):
        mine = among(connection, (rows_of.c.number,), part)
        old = {
            row["number"]: dict(row)
            for row in connection.execute(sa.select(rows_of).where(mine)).mappings()
        }
        new = _rows(connection, part, now)
        stayed, made, moved = [], [], []
        for number in part:
            before, row = old.get(number), new.get(number)
            if before is not None and before["settled"]:
                _add(changes, before, -1)
                _note(taken, before)
            if row is not None:
                known = None if number in anew else before
                row["ref"] = ref_of(row) if before is None else before["ref"]
                hours = _spread(connection, known, row, since.get(number, math.inf))
                row["hours"] = pack_hours(hours, level=6 if row["settled"] else 1)
                if row["settled"]:
                    _add(changes, row, 1)
                if before is not None and all(before[name] == row[name] for name in _STAYS):
                    stayed.append((before, row))
                    continue
                made.append(row)
            if before is not None:
                moved.append(number)
        _replace(connection, stayed, made, moved)
    for table, begin_of in USAGE.items():
        _write(connection, table, begin_of, changes)
        _mend(connection, table, begin_of, taken)


def _replace(
    connection: sa.Connection,
    stayed: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    made: Sequence[dict[str, Any]],
    moved: Sequence[int],
) -> None:
    """Write rows of jobs: what changed of those that stay, and others whole."""
    if moved:
        connection.execute(sa.delete(rows_of).where(among(connection, (rows_of.c.number,), moved)))
    if made and connection.dialect.name == "postgresql":
        found = (month_of(row["over"]) for row in made)
        make_partitions(connection, [month for month in found if month is not None])
    insert_rows(connection, rows_of, made)
    news = [
        name
        for name in rows_of.c.keys()  # noqa: SIM118 - these are no keys of a mapping
        if any(row[name] != before[name] for before, row in stayed)
    ]
    if news:
        keys = ("number", "over")
        changed = [{name: row[name] for name in (*keys, *news)} for _, row in stayed]
        update_rows(connection, rows_of, keys, changed)


def close_stale(database: Database, *, now: float) -> int:
    """Settle jobs of which nobody has heard for long; return how many that were."""
    question = (
        sa.select(rows_of.c.number)
        .where(sa.not_(rows_of.c.settled), rows_of.c.last_seen < now - STALE_S)
        .order_by(rows_of.c.number)
        .limit(_STALE_AT_ONCE)
    )
    with database.writing() as connection:
        take_turns(connection, "books")
        numbers = connection.execute(question).scalars().all()
        settle(connection, numbers, now=now, since={})
    return len(numbers)


def last_end(database: Database, cluster: str) -> float | None:
    """Return when the last job of a cluster ended that is known to have; None before the first."""
    latest = sa.select(sa.func.max(rows_of.c.ended)).where(rows_of.c.cluster == cluster)
    with database.reading() as connection:
        found = connection.execute(latest).scalar()
    return None if found is None else float(found)


def standing(
    connection: sa.Connection,
    numbers: Sequence[int],
    *,
    now: float,
    question: Question | None = None,
) -> JobTable | None:
    """Return jobs as they stand by their last ticks, whole; None where there are none.

    Args:
        numbers: The store's numbers of them.
        question: Of them those that it may mean; None for all.
    """
    cluster = sa.func.coalesce(origins.c.cluster, "")
    asked = (
        sa.select(
            sa.func.coalesce(jobs.c.shown_id, jobs.c.job_id).label("shown_id"),
            *(jobs.c[name] for name in ("id", *_TEXTS, "nodes", "ends", "facts", "totals")),
            cluster.label("cluster"),
        )
        .outerjoin(origins, origins.c.job == jobs.c.id)
        .where(among(connection, (jobs.c.id,), numbers))
        .order_by(jobs.c.id)
    )
    if question is not None:
        asked = narrowed(asked, question, stale_s=BEHIND_S, cluster=cluster, is_watched=True)
    found = connection.execute(asked).mappings().all()
    if not found:
        return None
    totals = as_numbers(bytearray(padded([row["totals"] for row in found], TOTALS)), TOTALS)
    fresh = _now(connection, [row["id"] for row in found])
    columns = {
        name: [row[name] for row in found]
        for name in ("shown_id", "id", *_TEXTS, "nodes", "ends", "cluster")
    }
    for place, number in enumerate(columns["id"]):
        if number in fresh:
            totals[place] = fresh[number]
            seen = fresh[number][PLACE["last_seen"]]
            columns["ends"][place] = float(np.fmax(columns["ends"][place] or -math.inf, seen))
    facts = as_numbers(bytearray(padded([row["facts"] for row in found], FACTS)), FACTS)
    watched = _hosts(connection, {name for row in found for name in split(row["hosts"])})
    return as_they_stand(columns, facts, totals, watched, now=now)


def _rows(connection: sa.Connection, numbers: Sequence[int], now: float) -> dict[int, Any]:
    """Return rows of jobs as they stand."""
    table = standing(connection, numbers, now=now)
    if table is None:
        return {}
    given = table.everything()
    rows = {}
    for values in zip(*given.values(), strict=True):
        row = dict(zip(given, map(_plain, values), strict=True))
        row["hosts"] = joined(row["hosts"])
        if row["shown_id"] == row["job_id"]:
            row["shown_id"] = None
        over = row["state"] not in (None, *NOT_OVER) or (
            row["state"] is None and (row["ended"] is not None or now - _moment(row, 0.0) > STALE_S)
        )
        row["over"] = _moment(row, now) if over else math.inf
        row["settled"] = over
        rows[row["number"]] = row
    return rows


def ref_of(row: Mapping[str, Any]) -> str:
    """Return what a job is called in addresses, from then on whatever else is learned of it."""
    home = "" if row["source"] in SHARED_SOURCES else row["hosts"]
    first = row["started"] if row["started"] is not None else row["submitted"]
    named = repr((row["cluster"], row["source"], home, row["job_id"], first))
    digest = hashlib.sha256(named.encode()).digest()
    # As short as what says as much: an index has it of each job. Earlier ones had 20 signs.
    return base64.b32encode(digest).decode().lower()[:_REF_SIGNS]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _now(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, FloatArray]:
    """Return what jobs have used by their last tick, on all hosts."""
    parts: dict[int, list[bytes]] = defaultdict(list)
    where: dict[int, list[int]] = defaultdict(list)
    question = (
        sa.select(
            units.c.job,
            units.c.host,
            sa.func.coalesce(unit_now.c.totals, units.c.totals).label("used"),
        )
        .outerjoin(unit_now, unit_now.c.unit == units.c.id)
        .where(among(connection, (units.c.job,), numbers))
        .order_by(units.c.id)
    )
    for row in connection.execute(question):
        parts[row.job].append(row.used)
        where[row.job].append(row.host)
    return {job: together(unpack_numbers(all_, TOTALS), where[job]) for job, all_ in parts.items()}


def _hosts(connection: sa.Connection, names: Iterable[str]) -> list[HostRecord]:
    found = []
    for part in in_parts(sorted(names)):
        rows = connection.execute(sa.select(hosts).where(hosts.c.name.in_(part)))
        found += [
            HostRecord(
                number=row.id,
                name=row.name,
                node_unit=0,
                last_time=math.nan if row.last_time is None else row.last_time,
                interval_s=math.nan if row.interval_s is None else row.interval_s,
            )
            for row in rows
        ]
    return found


def _moment(row: Mapping[str, Any], otherwise: float = 0.0) -> float:
    """Return when a job was last heard of."""
    known = [row[name] for name in ("ended", "last_seen", "started", "submitted")]
    return float(next((each for each in known if each is not None), otherwise))


def _hour(moment: float) -> int:
    return int(moment // HOUR_S)


def _whole(row: Mapping[str, Any]) -> FloatArray:
    """Return what a job used in all, 0 for what nobody knows: the counts say so."""
    elapsed_s = row["elapsed_s"] or 0.0
    kept = {"core_s": (row["cpus"] or 0.0) * elapsed_s, "gpu_s": (row["gpus"] or 0.0) * elapsed_s}
    return np.array([kept[name] if name in kept else row[name] or 0.0 for name in SUMMED])


def _spread(
    connection: sa.Connection,
    before: Mapping[str, Any] | None,
    row: Mapping[str, Any],
    since: float,
) -> Hours:
    """Return what a job used by hour: as its row had it before, and what came since."""
    hours: Hours = {}
    whole = _whole(row)
    last = _moment(row)
    if before is None:
        first = min((row[name] for name in ("first_seen", "started") if row[name]), default=last)
    else:
        hours = parts_of(before)
        first = min(since, last)
    new = whole - sum(hours.values(), np.zeros(len(SUMMED)))
    for hour, share in _shares(connection, row, first, last).items():
        hours[hour] = hours.get(hour, np.zeros(len(SUMMED))) + share * new
    # Rounding goes to the last hour, so that the parts come to the whole.
    hours[max(hours)] += whole - sum(hours.values(), np.zeros(len(SUMMED)))
    return {hour: values for hour, values in hours.items() if values.any()} or {_hour(last): whole}


def _shares(
    connection: sa.Connection, row: Mapping[str, Any], first: float, last: float
) -> dict[int, FloatArray]:
    """Return which share of each quantity falls into which hour of a stretch of time."""
    begins, ends = _hour(first), _hour(last)
    if begins >= ends:
        return {ends: np.ones(len(SUMMED))}
    edges = np.arange(begins, ends + 2) * float(HOUR_S)
    passed = np.diff(np.clip(edges, first, last))
    shares = np.repeat((passed / passed.sum())[:, None], len(SUMMED), axis=1)
    where = sa.select(units.c.host).where(units.c.job == row["number"])
    ran_on = connection.execute(where).scalars().all()
    known = Histories(connection, start=first, end=last, hosts=ran_on)
    [course] = known.of_jobs([row["number"]])
    if len(course):
        moments = np.append(course.starts[:1], course.times)
        for place, name in enumerate(SUMMED):
            if name not in course.columns:
                continue
            amounts = np.nan_to_num(course.columns[name])
            reached = np.interp(
                np.clip(edges, first, last), moments, np.append(0.0, np.cumsum(amounts))
            )
            used = np.diff(reached)
            if used.sum() > 0:
                shares[:, place] = used / used.sum()
    return {begins + place: shares[place] for place in range(len(shares))}


def _add(changes: dict[tuple[Any, ...], FloatArray], row: Mapping[str, Any], sign: int) -> None:
    """Add a job to the sums, or take it out of them."""
    of = tuple(row[name] or "" for name in DIMENSIONS)
    counts = [1, 1, row["energy_j"] is None, row["carbon_g"] is None]
    parts = parts_of(row)
    for hour, values in parts.items():
        counted = counts if hour == max(parts) else [1, 0, 0, 0]
        changes[(hour, *of)] += sign * np.append(np.array(counted, dtype=float), values)


def _note(taken: _Changes, row: Mapping[str, Any]) -> None:
    """Note how large that is which is taken out of sums with a job."""
    of = tuple(row[name] or "" for name in DIMENSIONS)
    for hour, values in parts_of(row).items():
        taken[(hour, *of)] = np.fmax(taken[(hour, *of)], np.abs(values))


def _mend(
    connection: sa.Connection,
    table: sa.Table,
    begin_of: Callable[[float], int],
    taken: Mapping[tuple[Any, ...], FloatArray],
) -> None:
    """Add up anew what is left of sums that were far larger: rounding took its digits.

    A node may have told of more energy than there is, and it may have been somebody else's.
    """
    largest: dict[tuple[Any, ...], FloatArray] = {}
    for (hour, *of), values in taken.items():
        key = (begin_of(hour * HOUR_S), *of)
        largest[key] = np.fmax(largest[key], values) if key in largest else values
    keys = ("begins", *DIMENSIONS)
    theirs = [table.c[key] for key in keys]
    for part in in_parts(list(largest)):
        question = sa.select(table).where(among(connection, theirs, part))
        for row in connection.execute(question).mappings():
            key = tuple(row[name] for name in keys)
            left = np.abs([row[name] for name in SUMMED])
            if (largest[key] > _FAR_LARGER * left).any():
                sums = _counted(connection, begin_of, key)
                mine = [table.c[name] == value for name, value in zip(keys, key, strict=True)]
                anew = dict(zip(SUMMED, sums, strict=True))
                connection.execute(sa.update(table).where(*mine).values(anew))


def _counted(
    connection: sa.Connection, begin_of: Callable[[float], int], key: tuple[Any, ...]
) -> list[float]:
    """Return what jobs used in a stretch of time, added up from their rows."""
    begins, *of = key
    named = zip(DIMENSIONS, of, strict=True)
    mine = [sa.func.coalesce(rows_of.c[name], "") == value for name, value in named]
    if of[DIMENSIONS.index("user")]:
        # By its index.
        mine.append(rows_of.c.user == of[DIMENSIONS.index("user")])
    question = sa.select(rows_of).where(rows_of.c.settled, rows_of.c.over >= begins, *mine)
    used = [
        values.tolist()
        for row in connection.execute(question).mappings()
        for hour, values in parts_of(dict(row)).items()
        if begin_of(hour * HOUR_S) == begins
    ]
    return [math.fsum(column) for column in zip(*used, strict=True)] or [0.0] * len(SUMMED)


def _write(
    connection: sa.Connection,
    table: sa.Table,
    begin_of: Callable[[float], int],
    changes: Mapping[tuple[Any, ...], FloatArray],
) -> None:
    """Bring changes into the sums by one length of time."""
    summed: dict[tuple[Any, ...], FloatArray] = {}
    for (hour, *of), values in changes.items():
        key = (begin_of(hour * HOUR_S), *of)
        summed[key] = summed[key] + values if key in summed else values
    names = (*COUNTED, *SUMMED)
    keys = ("begins", *DIMENSIONS)
    # In one order, so that two that change the same sums take turns.
    rows = []
    for key in sorted(summed):
        if summed[key].any():
            counted = [int(each) for each in summed[key][: len(COUNTED)]]
            used = summed[key][len(COUNTED) :].tolist()
            rows.append(dict(zip((*keys, *names), (*key, *counted, *used), strict=True)))
    if not rows:
        return
    put_rows(connection, table, rows, added=names)
    if fewer := [tuple(row[key] for key in keys) for row in rows if row["parts"] < 0]:
        # What rounding leaves of jobs that went elsewhere is nobody's.
        theirs = [table.c[key] for key in keys]
        for part in in_parts(fewer):
            mine = among(connection, theirs, part)
            connection.execute(sa.delete(table).where(table.c.parts == 0, mine))
