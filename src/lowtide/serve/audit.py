"""Writing down who looked at what is another's, for that one to read."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from lowtide.serve.schema import audit
from lowtide.store.database import Database

# So much is kept of what somebody looked at.
_LONGEST_LOOK = 300


def write_look(
    database: Database,
    viewer: str,
    role: str,
    what: str,
    owners: Iterable[str],
    *,
    now: float,
    every_s: float = 0.0,
) -> None:
    """Write down that somebody looked.

    Args:
        role: As what they did.
        owners: Whose it is that they looked at.
        every_s: For how long the same look is not written down again.
    """
    named = {"viewer": viewer, "role": role, "what": what[:_LONGEST_LOOK]}
    rows = [{**named, "owner": owner, "time": now} for owner in sorted(owners)]
    if rows and every_s:
        of = audit.c
        same = [of[name] == value for name, value in named.items()]
        whose = of.owner.in_([row["owner"] for row in rows])
        late = sa.select(of.owner).where(*same, whose, of.time > now - every_s)
        with database.reading() as connection:
            known = set(connection.execute(late).scalars())
        rows = [row for row in rows if row["owner"] not in known]
    if rows:
        with database.writing() as connection:
            connection.execute(sa.insert(audit), rows)
