"""What waits in the queue of the cluster, and for what: summed up by partition, nobody named.

Who does not see all is told what was so at the end of the last full quarter of an hour: of their
own jobs, of those that they may see, and of what others wait for in a partition where enough others
do, to two figures. Where too few others wait that is left out as if nobody did, so that its absence
says nothing either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from lowtide.serve.node_views import last_quarter
from lowtide.serve.schema import jobs, members
from lowtide.states import NOT_OVER

if TYPE_CHECKING:
    from lowtide.serve.viewer import Viewer

# What the same look is written down once in.
_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """What waits in a partition; NaN for what is not known.

    Attributes:
        partition: Its name, or those of several that a job may run in.
        arrays: How many of the jobs are arrays of which nothing has begun: Slurm tells each as one
            job, with what one of its elements asked for.
        nodes: How many nodes these jobs asked for.
        wait_s: How long that has waited which was submitted first.
    """

    partition: str
    jobs: int
    arrays: int
    nodes: float
    cpus: float
    gpus: float
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """What waits.

    Attributes:
        moment: When that was so, epoch seconds.
        partial: Whether it may be that more waits, which is not told.
        lines: A line for each partition, the most jobs first.
    """

    moment: float
    partial: bool
    lines: Sequence[QueueLine]


def waits_at(moment: sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    """Return whether a job waited at a moment, of which it may be known by now how it went on."""
    of = jobs.c
    never_ran = sa.and_(of.started.is_(None), of.state.not_in(NOT_OVER), of.over > moment)
    return sa.and_(
        sa.or_(sa.not_(of.settled), of.over > moment),
        of.submitted <= moment,
        sa.or_(of.state == "pending", of.started > moment, never_ran),
    )


def summed_up(*which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the question for the sums of some jobs by partition."""
    of = jobs.c
    partition = sa.func.coalesce(of.partition, "")
    # Hosts stand between commas; of what has begun since, they are as many as it asked for.
    commas = sa.func.length(of.hosts) - sa.func.length(sa.func.replace(of.hosts, ",", ""))
    nodes = sa.func.coalesce(of.nodes_asked, sa.case((commas > 1, commas - 1)))
    return (
        sa.select(
            partition.label("partition"),
            sa.func.count().label("jobs"),
            sa.func.sum(sa.case((of.shown_id.contains("["), 1), else_=0)).label("arrays"),
            sa.func.sum(nodes).label("nodes"),
            sa.func.sum(of.cpus).label("cpus"),
            sa.func.sum(sa.func.coalesce(of.gpus, 0.0)).label("gpus"),
            sa.func.min(of.submitted).label("first"),
        )
        .where(*which)
        .group_by(partition)
    )


def of_others(
    moment: sa.ColumnElement[float],
    known: sa.ColumnElement[bool],
    least: sa.ColumnElement[int],
) -> sa.Select[Any]:
    """Return the question for what enough others wait for.

    Args:
        known: Which jobs are none of the others'.
        least: How many others have to be in a sum.
    """
    # Whom a node alone names may be nobody.
    named = jobs.c.user.in_(sa.select(members.c.user))
    others = sa.func.count(sa.case((named, jobs.c.user)).distinct())
    return summed_up(waits_at(moment), sa.not_(sa.func.coalesce(known, sa.false()))).having(
        others >= least
    )


def queue_of(viewer: Viewer) -> QueueState:
    """Return what waits, as far as somebody is told."""
    moment = viewer.now if viewer.sees_all else last_quarter(viewer.now)[1]
    user = jobs.c.user
    mine = summed_up(waits_at(sa.literal(moment)), viewer.may_see(jobs))
    mine = mine.add_columns(sa.func.min(user).label("one"), sa.func.max(user).label("another"))
    with viewer.reading() as connection:
        seen = connection.execute(mine).all()
        others = [] if viewer.sees_all else connection.execute(_others(viewer, moment)).all()
    # A sum of one user is a look at them.
    alone = {row.one or "" for row in seen if row.one == row.another}
    viewer.note(alone, "queue", every_s=_AGAIN_S)
    lines: dict[str, QueueLine] = {row.partition: _line(row, moment) for row in seen}
    for row in others:
        line = _line(row, moment, digits=2)
        lines[row.partition] = _both(lines[row.partition], line) if row.partition in lines else line
    return QueueState(
        moment=moment,
        partial=not viewer.sees_all,
        lines=sorted(lines.values(), key=lambda each: (-each.jobs, each.partition)),
    )


def _others(viewer: Viewer, moment: float) -> sa.Executable:
    if viewer.database.is_file:
        least = sa.literal(viewer.least_users)
        return of_others(sa.literal(moment), viewer.may_know(jobs), least)
    return sa.text("SELECT * FROM lowtide_queue(:moment, :enough)").bindparams(
        moment=moment, enough=viewer.least_users
    )


def _line(row: Any, moment: float, *, digits: int | None = None) -> QueueLine:
    def told(value: Any) -> float:
        number = math.nan if value is None else float(value)
        return number if digits is None or math.isnan(number) else float(f"{number:.{digits}g}")

    return QueueLine(
        partition=row.partition,
        jobs=int(told(row.jobs)),
        arrays=int(told(row.arrays)),
        nodes=told(row.nodes),
        cpus=told(row.cpus),
        gpus=told(row.gpus),
        wait_s=told(moment - row.first),
    )


def _both(one: QueueLine, other: QueueLine) -> QueueLine:
    return QueueLine(
        partition=one.partition,
        jobs=one.jobs + other.jobs,
        arrays=one.arrays + other.arrays,
        nodes=one.nodes + other.nodes,
        cpus=one.cpus + other.cpus,
        gpus=one.gpus + other.gpus,
        wait_s=max(one.wait_s, other.wait_s),
    )
