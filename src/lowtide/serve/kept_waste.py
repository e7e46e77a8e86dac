"""What jobs wasted, as it was found when they were over: pages that tell of many read no course.

Of those that go on it is found anew from hour to hour. Whoever asks has been given the jobs' rows.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.hindsight.waste import Finding, find_waste
from lowtide.serve.schema import findings, jobs
from lowtide.serve.viewer import Rights, Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.store.bulk import put_rows
from lowtide.store.database import Database

_LOG = logging.getLogger(__name__)
# Of what is packed below: what another has packed is found anew.
_VERSION = 1
_DAY_S = 86400.0
# How long ago a job may have ended, and after what time nobody asks for its waste.
_LATELY_S = 2 * _DAY_S
_KEPT_S = 100 * _DAY_S
# How old what is told of a job that goes on may be, and when it is found anew.
_OLDEST_S, _AGAIN_S = 5400.0, 3600.0
_MOST_S = 20.0
_AT_ONCE = 500


def kept_findings(viewer: Viewer, found: Sequence[VisibleJob]) -> dict[str, tuple[Finding, ...]]:
    """Return what jobs wasted that are as they were when that was kept, by their `ref`.

    Args:
        found: Jobs that the viewer was given.
    """
    numbers = [each.record.number for each in found]
    question = sa.select(findings).where(findings.c.job.in_(numbers))
    with viewer.reading() as connection:
        rows = {row.job: row for row in connection.execute(question)}
    told = {}
    for each in found:
        row = rows.get(each.record.number)
        if row is None or row.stands != _stands(each, settled=row.settled):
            continue
        if row.settled or viewer.now - row.made <= _OLDEST_S:
            told[each.ref] = msgspec.msgpack.decode(row.body, type=tuple[Finding, ...])
    return told


def keep_findings(database: Database, *, now: float, most_s: float = _MOST_S) -> int:
    """Find what jobs wasted that ended of late or go on, and keep it; return of how many.

    Args:
        most_s: For how long to go on; what is left is for the next time.
    """
    site = Viewer(database, "", Rights(role="owner"), now)
    over = time.monotonic() + most_s
    of = findings.c
    is_old = sa.and_(sa.not_(jobs.c.settled), of.made < now - _AGAIN_S)
    question = (
        sa.select(jobs)
        .outerjoin(findings, of.job == jobs.c.number)
        .where(*Wanted(suspect=True).rules(), jobs.c.over >= now - _LATELY_S)
        .where(sa.or_(of.job.is_(None), of.settled != jobs.c.settled, is_old))
        .order_by(sa.func.coalesce(jobs.c.energy_j, 0.0).desc())
        .limit(_AT_ONCE)
    )
    with database.reading() as connection:
        rows = [dict(row) for row in connection.execute(question).mappings()]
    made = []
    for row in rows:
        if time.monotonic() >= over:
            break
        job = site.found(row)
        try:
            found = find_waste(job.record, *site.behind(job))
        except StoreProblem:
            raise
        except Exception as error:  # noqa: BLE001 - no job may keep others from being read
            _LOG.info("what job %s wasted cannot be told: %s", job.record.shown_id, error)
            continue
        made.append(
            {
                "job": job.record.number,
                "settled": row["settled"],
                "made": now,
                "stands": _stands(job, settled=row["settled"]),
                "body": msgspec.msgpack.encode(found),
            }
        )
    with database.writing() as connection:
        put_rows(connection, findings, made)
        connection.execute(sa.delete(findings).where(of.made < now - _KEPT_S))
    return len(made)


def _stands(job: VisibleJob, *, settled: bool) -> str:
    """Return what tells a job that is over as it stands from itself at any other time.

    One that goes on is another every minute: of that it is told whose it is, and no more.
    """
    record = job.record
    named = record if settled else (record.number, job.ref, record.user, record.account)
    return hashlib.sha256(repr((_VERSION, named)).encode()).hexdigest()
