"""What a centre has grows coarser with age, as a node's store does; what jobs came to stays.

Of what nodes told in ticks a chunk is still to come, so nothing is brought into chunks here.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from lowtide.serve.schema import jobs, looks
from lowtide.serve.settings import KeepSettings
from lowtide.store.compaction import drop_courses, roll_up_old
from lowtide.store.database import Database
from lowtide.store.records import DAY_S, Retention

# So many chunks together, and for so long: what is left is for the next time.
_AT_ONCE = 500
_MOST_S = 20.0


def grow_coarser(database: Database, keep: KeepSettings, *, now: float) -> int:
    """Make old courses coarser, and let go of the oldest; return how many chunks that were."""
    retention = Retention(looks_s=keep.looks_days * DAY_S, minutes_s=keep.minutes_days * DAY_S)
    over = time.monotonic() + _MOST_S
    done = 0
    while time.monotonic() < over:
        part = roll_up_old(database, retention, now=now, most=_AT_ONCE)
        if keep.courses_days:
            part += drop_courses(database, now - keep.courses_days * DAY_S, most=_AT_ONCE)
        done += part
        if not part:
            break
    if keep.courses_days:
        # What was seen of a job shows its course.
        gone = jobs.c.over < now - keep.courses_days * DAY_S
        theirs = looks.c.job.in_(sa.select(jobs.c.number).where(gone))
        with database.writing() as connection:
            connection.execute(sa.delete(looks).where(theirs))
    return done
