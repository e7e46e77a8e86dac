"""What nodes that are an account's own drew for no job: kept by day once a day is over.

A project whose nodes stand idle pays for that as well, and no job has it. So its sum is what the
jobs of its members drew, wherever they ran, and what its own nodes drew for nobody: idle, and what
nobody can be charged with. Jobs of others on these nodes are in the sums of the others. Every node
is one account's at most, so that nothing is counted twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from lowtide.serve.schema import begin_of_day, node_idle
from lowtide.serve.settings import Settings
from lowtide.serve.sums import among
from lowtide.store.accounts import amounts_between
from lowtide.store.bulk import put_rows
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.records import HostRecord
from lowtide.store.series import Histories
from lowtide.store.tables import chunks

if TYPE_CHECKING:
    from lowtide.serve.viewer import Viewer

DAYS = 30
_DAY_S = 86400
# What is not kept by then is not asked for again; the first of these days may be told in part.
_BACK_DAYS = DAYS + 2
_MOST_S = 10.0
_AMOUNTS = (
    *("energy_j", "measured_j", "idle_j", "unattributed_j", "idle_g", "unattributed_g"),
    *("unmetered_s", "unpriced_j"),
)
METHOD = (
    "The file of this centre may name nodes as a project's own (nodes of [accounts.NAME]). What "
    "these drew that no job is charged with is the project's as well: idle power, and power of the "
    "system that is nobody's. Jobs that run there are charged with theirs as anywhere, whoever's "
    "they are. So what the jobs of its members drew, wherever they ran, and this make the sum of "
    f"the project exactly. It is told for {DAYS} full days (UTC), to those who lead the project."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodes:
    """What a project came to with its own nodes, each as sums that pages know how to mark.

    Attributes:
        start: From when, epoch seconds.
        end: Up to when.
        nodes: How many nodes are its own.
        known: Of which share of their time it is known what they did.
        jobs: What the jobs of its members used.
        idle: What its nodes drew idle.
        unattributed: What its nodes drew for the system, or for nobody that is known.
        whole: All of it.
    """

    start: float
    end: float
    nodes: int
    known: float
    jobs: Mapping[str, Any]
    idle: Mapping[str, Any]
    unattributed: Mapping[str, Any]
    whole: Mapping[str, Any]


def keep_idle(
    database: Database, settings: Settings, *, now: float, most_s: float = _MOST_S
) -> int:
    """Work out what nodes of accounts drew for nobody on days that are over; return how many days.

    A day of which more was learned since is worked out again, as long as its course is whole.

    Args:
        most_s: For how long to go on; what is left is for the next time.
    """
    owners = settings.node_owners
    over = time.monotonic() + most_s
    with database.writing() as connection:
        # What is somebody else's by now is theirs from the first day on.
        for owner in sorted({*owners.values()}):
            names = [name for name, each in owners.items() if each == owner]
            mine = node_idle.c.host.in_(names), node_idle.c.account != owner
            connection.execute(sa.update(node_idle).where(*mine).values(account=owner))
        connection.execute(sa.delete(node_idle).where(node_idle.c.host.not_in([*owners])))
    today = begin_of_day(now)
    whole_days = settings.keep.courses_days - 1 if settings.keep.courses_days else math.inf
    first = today - int(min(_BACK_DAYS, whole_days)) * _DAY_S
    with database.reading() as connection:
        hosts = [each for each in read_hosts(connection) if each.name in owners]
    done = 0
    for host in hosts:
        if time.monotonic() >= over:
            break
        with database.reading() as connection:
            stands = _stands(connection, host, first, today)
            kept = sa.select(node_idle.c.day, node_idle.c.stands).where(
                node_idle.c.host == host.name
            )
            known = {row.day: row.stands for row in connection.execute(kept)}
            stale = [day for day, stand in stands.items() if known.get(day) != stand]
            rows = _days(connection, host, stale) if stale else []
        named = {"cluster": settings.cluster, "account": owners[host.name], "host": host.name}
        with database.writing() as connection:
            news = [{**named, **row, "stands": stands[row["day"]]} for row in rows]
            put_rows(connection, node_idle, news)
        done += len(rows)
    return done


def _stands(connection: sa.Connection, host: HostRecord, first: int, today: int) -> dict[int, str]:
    """Return what tells each day of a node, as its course stands, from the day at other times."""
    day = (sa.cast(chunks.c.begins, sa.BigInteger) // _DAY_S).label("day")
    question = (
        sa.select(day, sa.func.count(), sa.func.max(chunks.c.id), sa.func.sum(chunks.c.points))
        .where(chunks.c.unit == host.node_unit, chunks.c.ends >= first, chunks.c.begins < today)
        .group_by(day)
    )
    rows = connection.execute(question).all()
    groups = {int(row[0]) * _DAY_S: tuple(map(int, row[1:])) for row in rows}
    # The last chunk of a day may reach into the next.
    return {
        day: repr((groups.get(day - _DAY_S), groups.get(day)))
        for day in range(first, today, _DAY_S)
        if day in groups or day - _DAY_S in groups
    }


def _days(connection: sa.Connection, host: HostRecord, days: Sequence[int]) -> list[dict[str, Any]]:
    """Return what a node drew for nobody on some days."""
    begin, end = min(days), max(days) + _DAY_S
    edges = np.arange(begin, end + 1, _DAY_S, dtype=float)
    series = Histories(connection, start=float(begin), end=float(end), hosts=[host.number]).of_node(
        host.node_unit, host.number
    )
    amounts = {name: amounts_between(series, name, edges) for name in _AMOUNTS}
    # A step of which nobody knows what the node drew is no time that is known.
    told = ~np.isnan(series.columns["energy_j"])
    inside = np.clip(edges[:, None], series.starts[None, told], series.times[None, told])
    seen_s = np.diff(inside, axis=0).sum(axis=1)
    return [
        {
            "day": day,
            "seen_s": float(seen_s[place]),
            **{name: _plain(values[place]) for name, values in amounts.items()},
        }
        for place, day in enumerate(edges[:-1].astype(int).tolist())
        if day in days
    ]


def own_nodes_of(viewer: Viewer, named: str, names: Sequence[str]) -> OwnNodes | None:
    """Return what a project came to with its nodes; None where it has none, or it is not told.

    Args:
        named: The account, as `CLUSTER/ACCOUNT`.
        names: Its nodes.
    """
    if not names or not (viewer.sees_all or named in viewer.rights.leads):
        return None
    cluster, account = named.split("/", 1)
    end = float(begin_of_day(viewer.now))
    start = end - DAYS * _DAY_S
    mine = node_idle.c.cluster == cluster, node_idle.c.account == account
    sums = [sa.func.sum(node_idle.c[name]) for name in ("seen_s", *_AMOUNTS)]
    question = sa.select(*sums).where(*mine, node_idle.c.day >= start, node_idle.c.day < end)
    if not viewer.sees_all:
        question = question.where(among(node_idle, viewer.rights.leads))
    with viewer.reading() as connection:
        values = connection.execute(question).one()
    drew = dict(zip(("seen_s", *_AMOUNTS), values, strict=True))
    of = {"account": account, "cluster": cluster}
    rows = viewer.usage("account", start=start, end=end, wanted=of)
    jobs = rows[0] if rows else {**_sums(0.0, 0.0), "jobs": 0}
    expected_s = len(names) * DAYS * _DAY_S
    seen_s = min(drew["seen_s"] or 0.0, expected_s)
    # Time of which nobody knows what a node drew lacks in both parts.
    unmetered_s = expected_s - seen_s + (drew["unmetered_s"] or 0.0)
    node_j = drew["energy_j"] or 0.0
    measured = (drew["measured_j"] or 0.0) / node_j if node_j > 0 else 0.0
    unpriced = (drew["unpriced_j"] or 0.0) / node_j if node_j > 0 else 0.0
    idle, unattributed = (
        _sums(drew[f"{part}_j"], drew[f"{part}_g"], measured, unpriced, unmetered_s)
        for part in ("idle", "unattributed")
    )
    return OwnNodes(
        start=start,
        end=end,
        nodes=len(names),
        known=seen_s / expected_s,
        jobs=jobs,
        idle=idle,
        unattributed=unattributed,
        whole=_added(jobs, idle, unattributed),
    )


def _sums(
    energy_j: float | None,
    carbon_g: float | None,
    measured: float = 0.0,
    unpriced: float = 0.0,
    unmetered_s: float = 0.0,
) -> dict[str, Any]:
    """Return sums as those over jobs are told.

    Args:
        measured: Which share of the energy was.
        unpriced: Of which share of it the grid was not known.
    """
    return {
        "energy_j": energy_j,
        "carbon_g": carbon_g,
        "measured_j": measured * (energy_j or 0.0),
        "unpriced_j": unpriced * (energy_j or 0.0),
        "unmetered_s": unmetered_s,
        "without_energy": int(energy_j is None),
        "without_carbon": int(carbon_g is None),
        "partial": False,
    }


def _added(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of sums; of what nobody knows it lacks a part, and says so."""
    whole: dict[str, Any] = {}
    for name in _sums(None, None):
        known = [each[name] for each in parts if each[name] is not None]
        whole[name] = math.fsum(known) if known else None
    return whole


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
