"""Sums over jobs, as far as each viewer may be told them.

Nobody is told a sum by which they could work out what a few others did. What somebody may see job
by job they are told in any sum. Beyond that, who is in an account is told of it in fixed parts
alone: whole calendar months that are over, in each of which so many others at least used it that
nobody's share shows. Every sum that is told is made of such parts and of what the viewer may see
anyway, so the difference of any two of them is as well: of a month and a day, of today's and
yesterday's last 30 days, of an account and one below it. Where too few others used it a part is
left out as if nobody had, so that its absence says nothing either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from lowtide.errors import InvalidInput, UnknownName
from lowtide.serve.ledger import HOUR_S, parts_of
from lowtide.serve.schema import (
    COUNTED,
    DIMENSIONS,
    FARTHEST,
    SUMMED,
    begin_of_day,
    end_of_month,
    jobs,
    members,
    usage_day,
    usage_hour,
    usage_month,
)

if TYPE_CHECKING:
    from lowtide.serve.viewer import Viewer

_DAY_S = 86400
# What nodes tell of a month after it is over changes its sums: most of it comes until then.
_CLOSED_S = 3 * _DAY_S
# The largest whole number that a column takes.
_LAST = 2**63 - 1
_SUMS = (*COUNTED, *SUMMED)
_Sums = dict[Any, dict[str, Any]]


def usage(
    viewer: Viewer, by: str, *, start: float, end: float, wanted: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return what `Viewer.usage` does."""
    if by not in (*DIMENSIONS, "hour", "day"):
        raise UnknownName("--by", by, (*DIMENSIONS, "hour", "day"))
    if start % HOUR_S or end % HOUR_S or not 0 <= start < end:
        raise InvalidInput("usage is told from one full hour to a later one")
    of = {name: value for name, value in wanted.items() if name in DIMENSIONS}
    sums: _Sums = {}
    owners: dict[Any, set[str]] = defaultdict(set)
    with viewer.reading() as connection:
        until = _open_end(viewer, connection, end)
        for table, *edges in _stretches(start, until, by):
            # A server that is asked with a fraction uses no index of whole numbers.
            first, last = (int(min(edge, _LAST)) for edge in edges)
            key = table.c.begins if by in ("hour", "day") else table.c[by]
            # Whose it is matters to those alone whose looks are written down, and takes its time.
            ends: tuple[sa.ColumnElement[str], ...] = (sa.literal(""), sa.literal(""))
            if viewer.is_noted:
                ends = (sa.func.min(table.c.user), sa.func.max(table.c.user))
            question = (
                sa.select(key, *ends, *(sa.func.sum(table.c[name]) for name in _SUMS))
                .where(table.c.begins >= first, table.c.begins < last)
                .where(*(table.c[name] == value for name, value in of.items()))
                .where(viewer.may_see(table))
                .group_by(key)
            )
            for group, one, another, *values in connection.execute(question):
                name = begin_of_day(group) if by == "day" else group
                _add(sums, name, _numbers(values))
                owners[name] |= {one, another}
        going = sa.select(jobs).where(sa.not_(jobs.c.settled), jobs.c.last_seen >= start)
        going = going.where(*(jobs.c[name] == value for name, value in of.items()))
        for row in connection.execute(going.where(viewer.may_see(jobs))).mappings():
            for name, used in _of_going(dict(row), by, start, end):
                _add(sums, name, used)
                owners[name].add(row["user"] or "")
        if by == "account" and of.keys() <= {"account", "cluster"} and not viewer.sees_all:
            for account, used in _told_members(viewer, connection, start, end, of):
                _add(sums, account, used)
    for here in sums.values():
        for name, lacking in (("energy_j", "without_energy"), ("carbon_g", "without_carbon")):
            # Where nobody knows of any job, the sum is not 0.
            if here[lacking] and not here[name]:
                here[name] = None
    # A sum of one user is a look at them.
    alone = {name for each in owners.values() if len(each) == 1 for name in each}
    everybody = {name for each in owners.values() for name in each}
    viewer.note(everybody if by == "user" or "user" in of else alone, "usage")
    rights = viewer.rights
    led = _names(rights.leads, of) - _names(rights.member - rights.leads, of)
    return [
        {by: group, **sums[group], "partial": _is_partial(viewer, by, group, led)}
        for group in sorted(sums)
    ]


def _names(accounts: frozenset[str], of: Mapping[str, str]) -> set[str]:
    """Return the names of accounts in the clusters that are asked about."""
    pairs = (each.split("/", 1) for each in accounts)
    return {name for cluster, name in pairs if of.get("cluster", cluster) == cluster}


def _is_partial(viewer: Viewer, by: str, group: Any, led: set[str]) -> bool:
    """Return whether a sum may lack what others used: whether it does is not told."""
    return by == "account" and not viewer.sees_all and group not in led


def _told_members(
    viewer: Viewer, connection: sa.Connection, start: float, end: float, of: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what others used of accounts that a viewer is in, in the parts that are told."""
    accounts = viewer.rights.member - viewer.rights.leads
    table = usage_month
    mine = sa.and_(among(table, accounts), *(table.c[name] == value for name, value in of.items()))
    earliest = connection.execute(sa.select(sa.func.min(table.c.begins)).where(mine)).scalar()
    going = [
        row for row in viewer.going(connection, accounts)
        if all(row[name] == value for name, value in of.items())
    ]  # fmt: skip
    # Whom a node alone names is no other: whoever is root there could name some of their own.
    known_in: dict[tuple[str, str], set[str]] = defaultdict(set)
    for cluster, account, user in connection.execute(
        sa.select(members.c.cluster, members.c.account, members.c.user).where(
            among(members, accounts)
        )
    ):
        known_in[cluster, account].add(user)
    firsts = [earliest, *(min(parts_of(row)) * HOUR_S for row in going)]
    known = [each for each in firsts if each is not None]
    if not known:
        return
    whose = (table.c.cluster, table.c.account, table.c.user)
    for first, last in months(max(start, min(known)), min(end, viewer.now - _CLOSED_S)):
        if first < start:
            continue
        found: dict[tuple[str, str], list[tuple[str, dict[str, float]]]] = defaultdict(list)
        question = (
            sa.select(*whose, *(sa.func.sum(table.c[name]) for name in _SUMS))
            .where(mine, table.c.begins == int(first), table.c.user != viewer.user)
            .group_by(*whose)
        )
        for cluster, account, user, *values in connection.execute(question):
            found[cluster, account].append((user, _numbers(values)))
        for row in going:
            if row["user"] != viewer.user:
                for account, used in _of_going(row, "account", first, last):
                    found[row["cluster"] or "", account].append((row["user"] or "", used))
        for (cluster, account), parts in sorted(found.items(), key=lambda each: each[0]):
            others = {user for user, _ in parts} & known_in[cluster, account]
            if len(others) >= viewer.least_users:
                for _, used in parts:
                    yield account, used


def among(table: sa.Table, accounts: frozenset[str]) -> sa.ColumnElement[bool]:
    """Return whether a row is of some accounts, each as `CLUSTER/ACCOUNT`."""
    pairs = [tuple(each.split("/", 1)) for each in sorted(accounts)]
    if not pairs:
        return sa.false()
    return sa.tuple_(table.c.cluster, table.c.account).in_(pairs)


def months(start: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield when the months begin and end that are over by a moment, from that of another on.

    >>> [last - first for first, last in months(1_700_000_000.0, 1_706_745_600.0)]
    [2592000.0, 2678400.0, 2678400.0]
    """
    when = datetime.fromtimestamp(start, UTC)
    year, month = when.year, when.month
    while True:
        first = datetime(year, month, 1, tzinfo=UTC).timestamp()
        year, month = year + month // 12, month % 12 + 1
        last = datetime(year, month, 1, tzinfo=UTC).timestamp()
        if last > end:
            return
        yield first, last


def _open_end(viewer: Viewer, connection: sa.Connection, end: float) -> float:
    """Return up to when to add up: the end of the month under way where nothing came after `end`.

    So a month is one sum of each user from its first day on.
    """
    if end < viewer.now or end >= FARTHEST:
        return end
    of = usage_hour
    later = sa.select(of.c.begins).where(of.c.begins >= int(end), viewer.may_see(of)).limit(1)
    if connection.execute(later).first() is not None:
        return end
    return float(end_of_month(end - 1))


def _stretches(start: float, end: float, by: str) -> Iterator[tuple[sa.Table, float, float]]:
    """Yield which sums make up a stretch of time: whole months, and days and hours around them."""
    whole = []
    if by not in ("hour", "day") and start < FARTHEST:
        whole = [each for each in months(start, min(end, FARTHEST)) if each[0] >= start]
    spans = [(start, end)] if not whole else [(start, whole[0][0]), (whole[-1][1], end)]
    if whole:
        yield usage_month, whole[0][0], whole[-1][1]
    for begins, ends in spans:
        first, last = -(-begins // _DAY_S) * _DAY_S, ends // _DAY_S * _DAY_S
        if by == "hour" or first >= last:
            parts = [(usage_hour, begins, ends)]
        else:
            parts = [
                (usage_hour, begins, first),
                (usage_day, first, last),
                (usage_hour, last, ends),
            ]
        yield from (each for each in parts if each[1] < each[2])


def _numbers(values: Sequence[Any]) -> dict[str, float]:
    """Return sums by their names: a server counts in decimals."""
    whole = map(int, values[: len(COUNTED)])
    return dict(zip(_SUMS, [*whole, *values[len(COUNTED) :]], strict=True))


def _add(sums: _Sums, group: Any, values: Mapping[str, float]) -> None:
    here = sums.setdefault(group, dict.fromkeys(_SUMS, 0))
    for name, value in values.items():
        here[name] += value


def _of_going(
    row: Mapping[str, Any], by: str, start: float, end: float
) -> Iterator[tuple[Any, dict[str, float]]]:
    """Yield the parts of a job that goes on, which the sums have not yet."""
    parts = parts_of(row)
    for hour, used in parts.items():
        moment = hour * HOUR_S
        if start <= moment < end:
            last = hour == max(parts)
            counts = {
                "parts": 1,
                "jobs": int(last),
                "without_energy": int(last and row["energy_j"] is None),
                "without_carbon": int(last and row["carbon_g"] is None),
            }
            times = {"hour": moment, "day": begin_of_day(moment)}
            group = times[by] if by in times else row[by] or ""
            yield group, {**counts, **dict(zip(SUMMED, used.tolist(), strict=True))}
