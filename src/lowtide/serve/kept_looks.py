"""What was seen of jobs that take long to read: worked out once they are over, and kept.

A job of 32 nodes and a day has nine thousand chunks, and its page a curve of 300 points. So what
its page shows of the time in which it ran is made by the centre itself soon after its end, for
whoever looks first. What waiting would have saved is not kept: more is known of that every hour.
"""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.hindsight.job import SeenJob
from lowtide.hindsight.phases import FoundPhase, JobPhases
from lowtide.monitor.verdicts import Behaviour
from lowtide.profile import PowerProfile
from lowtide.serve.drawing import JOB_PANELS, POINTS
from lowtide.serve.job_courses import keep_courses, seen
from lowtide.serve.schema import courses, jobs, looks
from lowtide.store import JobRecord, Series
from lowtide.store.bulk import put_rows
from lowtide.store.database import Database
from lowtide.store.records import thinned

_LOG = logging.getLogger(__name__)
# Of what is packed below: what another has packed is worked out anew.
_VERSION = 1
# So many looks, of all nodes together, are read in less time than the rest of a page takes.
MANY_LOOKS = 20_000
# How long ago a job may have ended, and how long to go on with those that did.
_LATELY_S = 2 * 86400.0
_MOST_S = 20.0
_AT_ONCE = 500
_DRAWN = tuple(name for name, *_ in JOB_PANELS)


class _Phases(msgspec.Struct):
    found: tuple[FoundPhase, ...]
    profile: dict[str, Any]
    origin: str
    step_s: float


class _Packed(msgspec.Struct):
    times: list[float]
    step_s: list[float]
    columns: dict[str, list[float]]
    begin: float
    end: float
    behaviour: Behaviour
    pue: float
    phases: _Phases | None
    notes: tuple[str, ...]


def kept_look(database: Database, record: JobRecord) -> SeenJob | None:
    """Return what was seen of a job that is as it was when that was kept; None of any other.

    Args:
        database: The centre, held to what whoever asks may see; they were given the job.
    """
    question = sa.select(looks.c.body).where(
        looks.c.job == record.number, looks.c.stands == _stands(record)
    )
    with database.reading() as connection:
        body = connection.execute(question).scalar()
    return None if body is None else unpack(body)


def keep_looks(
    database: Database, *, now: float, many: int = MANY_LOOKS, most_s: float = _MOST_S
) -> int:
    """Work out what was seen of jobs that ended of late, and keep it; return of how many.

    What jobs that go on did so far is brought together, for whoever looks and for their end.

    Args:
        many: Of those that were looked at so often, on all nodes together.
        most_s: For how long to go on; what is left is for the next time.
    """
    # A viewer is shown what is kept here.
    from lowtide.serve.viewer import Rights, Viewer

    site = Viewer(database, "", Rights(role="owner"), now)
    over = time.monotonic() + most_s
    commas = sa.func.length(jobs.c.hosts) - sa.func.length(sa.func.replace(jobs.c.hosts, ",", ""))
    # Names of hosts stand between commas.
    wide = jobs.c.looks * (commas - 1) >= many
    of_late = (
        sa.select(jobs, looks.c.stands)
        .outerjoin(looks, looks.c.job == jobs.c.number)
        .where(jobs.c.settled, jobs.c.over >= now - _LATELY_S, jobs.c.over <= now, wide)
        # Those first of which nothing is kept, however many there are of the others.
        .order_by(looks.c.job.is_not(None), jobs.c.over.desc())
        .limit(_AT_ONCE)
    )
    ends = sa.select(sa.func.max(courses.c.until)).where(courses.c.job == jobs.c.number)
    # Those first that were longest left alone.
    going = (
        sa.select(jobs)
        .where(sa.not_(jobs.c.settled), wide)
        .order_by(sa.func.coalesce(ends.scalar_subquery(), 0.0), jobs.c.number)
        .limit(_AT_ONCE)
    )
    with database.reading() as connection:
        rows = [dict(row) for row in connection.execute(of_late).mappings()]
        others = [dict(row) for row in connection.execute(going).mappings()]
    done = 0
    for row in rows:
        record = site.found(row).record
        stands = _stands(record)
        if stands == row["stands"] or time.monotonic() >= over:
            continue
        try:
            body = pack(seen(database, record))
        except StoreProblem:
            raise
        except Exception as error:  # noqa: BLE001 - no job may keep others from being read
            _LOG.info("what job %s did cannot be read: %s", record.shown_id, error)
            continue
        with database.writing() as connection:
            put_rows(connection, looks, [{"job": record.number, "stands": stands, "body": body}])
        done += 1
    with database.writing() as connection:
        # Jobs that became one with others are no more.
        there = sa.select(jobs.c.number).where(jobs.c.number == looks.c.job).exists()
        connection.execute(sa.delete(looks).where(sa.not_(there)))
    keep_courses(database, [site.found(row).record for row in others], over=over)
    return done


def _stands(record: JobRecord) -> str:
    """Return what tells a job as it stands from itself at any other time."""
    return hashlib.sha256(repr((_VERSION, record)).encode()).hexdigest()


def pack(told: SeenJob) -> bytes:
    """Return in few bytes what a page shows of what was seen."""
    series = thinned(told.series, POINTS) if len(told.series) > POINTS else told.series
    phases = told.phases
    packed = _Packed(
        times=series.times.tolist(),
        step_s=series.step_s.tolist(),
        columns={name: series.columns[name].tolist() for name in _DRAWN if name in series.columns},
        begin=told.begin,
        end=told.end,
        behaviour=told.behaviour,
        pue=told.pue,
        phases=None
        if phases is None
        else _Phases(phases.found, phases.profile.to_dict(), phases.origin, phases.step_s),
        notes=told.notes,
    )
    return zlib.compress(msgspec.msgpack.encode(packed))


def unpack(body: bytes) -> SeenJob:
    """Return what `pack` packed."""
    packed = msgspec.msgpack.decode(zlib.decompress(body), type=_Packed)
    phases = packed.phases
    return SeenJob(
        series=Series(
            times=np.array(packed.times),
            step_s=np.array(packed.step_s),
            columns={name: np.array(values) for name, values in packed.columns.items()},
        ),
        begin=packed.begin,
        end=packed.end,
        behaviour=packed.behaviour,
        pue=packed.pue,
        phases=None
        if phases is None
        else JobPhases(
            found=phases.found,
            profile=PowerProfile.from_dict(phases.profile),
            origin=phases.origin,
            step_s=phases.step_s,
        ),
        notes=packed.notes,
    )
