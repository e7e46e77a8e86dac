"""A link that opens a session of one browser: of the one that shows the code which was typed in.

Whoever logs in at a terminal gets a link for a browser, and a secret that stays in the terminal.
The first browser that opens the link is shown a code, and waits. Only when the terminal has told
the same code does that browser come in. So a link that somebody else saw, or opened first, opens
nothing for them; and a link that somebody sends to another does not log that other in as them.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from lowtide.serve.schema import links
from lowtide.serve.tokens import digest
from lowtide.store.database import Database

# How long a link may be opened, and how long its code may be typed in.
LINK_S = 60.0
CODE_S = 180.0
# So often may a code be mistyped; one guess in a million is right.
MOST_TRIES = 3
_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a browser that opened a link is told.

    Attributes:
        browser: What it has to bring back.
        code: What the person types in at the terminal.
        owner: Whose session begins; empty as long as the code was not typed in.
    """

    browser: str
    code: str
    owner: str = ""


def make_link(database: Database, user: str, *, now: float) -> tuple[str, str]:
    """Return what opens a session, and the secret by which the code is told."""
    # No token begins so.
    key, confirm = (f"b{secrets.token_urlsafe(_BYTES)}" for _ in range(2))
    row = {
        "digest": digest(key), "confirm": digest(confirm), "owner": user, "browser": None,
        "code": "", "tries": 0, "confirmed": False, "expires": now + LINK_S,
    }  # fmt: skip
    with database.writing() as connection:
        connection.execute(sa.delete(links).where(links.c.expires < now))
        connection.execute(sa.insert(links), row)
    return key, confirm


def open_link(database: Database, key: str, browser: str, *, now: float) -> Shown | None:
    """Return what a browser is told; None where it is another's link, used, or too old.

    Args:
        browser: What the browser brings; empty where it comes for the first time.
    """
    mine = links.c.digest == digest(key)
    with database.writing() as connection:
        row: Any = connection.execute(sa.select(links).where(mine).with_for_update()).first()
        if row is None or row.expires <= now:
            return None
        if row.browser is None:
            browser, code = secrets.token_urlsafe(_BYTES), f"{secrets.randbelow(10**6):06}"
            bound = {"browser": digest(browser), "code": code, "expires": now + CODE_S}
            connection.execute(sa.update(links).where(mine).values(bound))
            return Shown(browser=browser, code=code)
        if not hmac.compare_digest(row.browser, digest(browser)):
            return None
        if not row.confirmed:
            return Shown(browser=browser, code=row.code)
        connection.execute(sa.delete(links).where(mine))
        return Shown(browser=browser, code=row.code, owner=row.owner)


def confirm_link(database: Database, confirm: str, code: str, *, now: float) -> bool:
    """Take the code that was typed in; return whether it is that of the browser."""
    mine = links.c.confirm == digest(confirm)
    with database.writing() as connection:
        row: Any = connection.execute(sa.select(links).where(mine).with_for_update()).first()
        if row is None or row.expires <= now or row.browser is None:
            return False
        right = hmac.compare_digest(row.code.encode(), code.strip().encode())
        if right:
            connection.execute(sa.update(links).where(mine).values(confirmed=True))
        elif row.tries + 1 >= MOST_TRIES:
            connection.execute(sa.delete(links).where(mine))
        else:
            connection.execute(sa.update(links).where(mine).values(tries=row.tries + 1))
        return right
