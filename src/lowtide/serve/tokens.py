"""Tokens and sessions: who somebody is, proved by what they hold.

Both are random, are kept as digests alone, end by themselves and can be taken back at once. A token
is for programs and says what it is good for; a session is for a browser.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.serve.schema import sessions, tokens
from lowtide.store.database import Database

PREFIX = "lt_"
YEAR_S = 366 * 86400.0
# How long a browser may be idle.
IDLE_S = 12 * 3600.0
# When a token was used is told to the minute; when a node's was, which is each minute, to the hour.
_NOTED_S = 60.0
_NOTED_OF_NODE_S = 3600.0
READ_OWN, READ_PROJECT, READ_ALL, LINK = "read:own", "read:project", "read:all", "link"
SCOPES = (READ_OWN, READ_PROJECT, READ_ALL)
# What shows one job to whoever has it; the job's `ref` stands behind it.
SHARE = "share:"
# What programs show; what is good for longer than one use.
_SHOWN = ("read:", "ingest")
_LASTING = (*_SHOWN, SHARE)
_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What somebody has shown.

    Attributes:
        number: The centre's own number for a token, None for a session.
        owner: Whose it is: a user, or a node as `CLUSTER/HOST`.
        scope: What it is good for; empty for a session, which is good for all that its owner may.
        form_key: What forms of a session have to bring back.
        expires: When a token ends, epoch seconds; 0 of a session.
    """

    number: int | None = None
    owner: str
    scope: str = ""
    form_key: str = ""
    expires: float = 0.0


def node_scope(cluster: str, host: str, *, tells_all: bool) -> str:
    """Return what the token of a node is good for: to write of that node.

    Args:
        tells_all: Whether it may tell facts of jobs that run elsewhere.
    """
    return f"{'ingest+facts' if tells_all else 'ingest'}:{cluster}/{host}"


def make_token(
    database: Database, *, owner: str, scope: str, lasts_s: float, now: float, note: str = ""
) -> str:
    """Make a token and return it; it cannot be shown again.

    Args:
        lasts_s: How long it is good for, a year at most.
    """
    if not 0 < lasts_s <= YEAR_S:
        raise InvalidInput("a token lasts a year at most: make another when it ends")
    token = PREFIX + secrets.token_urlsafe(_BYTES)
    row = {
        "digest": digest(token), "owner": owner, "scope": scope, "note": note[:200],
        "made": now, "expires": now + lasts_s,
    }  # fmt: skip
    with database.writing() as connection:
        connection.execute(sa.delete(tokens).where(tokens.c.expires < now))
        connection.execute(sa.insert(tokens), row)
    return token


_TOKEN = sa.select(tokens).where(tokens.c.digest == sa.bindparam("shown"))


def read_token(
    database: Database, token: str, *, now: float, kinds: tuple[str, ...] = _SHOWN
) -> Pass | None:
    """Return what a token is good for; None where it is none, has ended or was taken back.

    Args:
        kinds: How its scope has to begin.
    """
    if not token.startswith(PREFIX) or len(token) > 200:
        return None
    with database.glancing() as connection:
        row = connection.execute(_TOKEN, {"shown": digest(token)}).first()
    if row is None or row.expires <= now or not row.scope.startswith(kinds):
        return None
    noted_s = _NOTED_OF_NODE_S if row.scope.startswith("ingest") else _NOTED_S
    if row.used is None or now - row.used > noted_s:
        with database.writing() as connection:
            mine = sa.update(tokens).where(tokens.c.id == row.id)
            connection.execute(mine.values(used=now))
    return Pass(number=row.id, owner=row.owner, scope=row.scope, expires=row.expires)


def use_once(database: Database, token: str, *, scope: str, now: float) -> str | None:
    """Return whose token for one use it is, and end it; None where it is none, or was used."""
    mine = (tokens.c.digest == digest(token)) & (tokens.c.scope == scope)
    with database.writing() as connection:
        row = connection.execute(sa.select(tokens).where(mine)).first()
        if row is None or not connection.execute(sa.delete(tokens).where(mine)).rowcount:
            return None
    return str(row.owner) if row.expires > now else None


def take_back(database: Database, number: int, *, owner: str | None) -> bool:
    """End a token; return whether there was such a one.

    Args:
        owner: Whose it has to be; None for anybody's.
    """
    mine = tokens.c.id == number
    if owner is not None:
        mine &= tokens.c.owner == owner
    with database.writing() as connection:
        return bool(connection.execute(sa.delete(tokens).where(mine)).rowcount)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLine:
    """What is told of a token, which itself is never shown again.

    Attributes:
        number: The centre's own number for it, by which it is taken back.
        made: When it was made, epoch seconds.
        expires: When it ends.
        used: When it was last used, to the minute; None where it never was.
    """

    number: int
    owner: str
    scope: str
    note: str
    made: float
    expires: float
    used: float | None

    @property
    def shares(self) -> str:
        """The `ref` of the job that it shows to whoever has it; empty for any other token."""
        return self.scope.removeprefix(SHARE) if self.scope.startswith(SHARE) else ""


def list_tokens(database: Database, *, owner: str | None, now: float) -> list[TokenLine]:
    """Return the tokens that are good, the last made first.

    Args:
        owner: Whose; None for everybody's.
    """
    lasting = sa.or_(*(tokens.c.scope.startswith(kind) for kind in _LASTING))
    known = [each for each in tokens.c if each is not tokens.c.digest]
    question = sa.select(*known).where(lasting, tokens.c.expires > now)
    if owner is not None:
        question = question.where(tokens.c.owner == owner)
    with database.reading() as connection:
        rows = connection.execute(question.order_by(tokens.c.id.desc())).all()
    return [
        TokenLine(
            number=row.id, owner=row.owner, scope=row.scope, note=row.note, made=row.made,
            expires=row.expires, used=row.used,
        )
        for row in rows
    ]  # fmt: skip


def end_all(database: Database, owner: str) -> int:
    """End every token and session of somebody's; return how many that were."""
    with database.writing() as connection:
        ended = [
            connection.execute(sa.delete(table).where(table.c.owner == owner)).rowcount
            for table in (tokens, sessions)
        ]
    return sum(ended)


def begin_session(database: Database, owner: str, *, now: float) -> str:
    """Begin a session, and return what the browser is to show."""
    key = secrets.token_urlsafe(_BYTES)
    row = {"digest": digest(key), "owner": owner, "form_key": secrets.token_urlsafe(_BYTES)}
    with database.writing() as connection:
        connection.execute(sa.delete(sessions).where(sessions.c.used < now - IDLE_S))
        connection.execute(sa.insert(sessions), {**row, "made": now, "used": now})
    return key


def read_session(database: Database, key: str, *, now: float) -> Pass | None:
    """Return whose session it is; None where it is none, or was idle for too long."""
    mine = sessions.c.digest == digest(key)
    with database.reading() as connection:
        row = connection.execute(sa.select(sessions).where(mine)).first()
    if row is None or now - row.used > IDLE_S:
        return None
    if now - row.used > _NOTED_S:
        with database.writing() as connection:
            connection.execute(sa.update(sessions).where(mine).values(used=now))
    return Pass(owner=row.owner, form_key=row.form_key)


def end_session(database: Database, key: str) -> None:
    """End a session."""
    with database.writing() as connection:
        connection.execute(sa.delete(sessions).where(sessions.c.digest == digest(key)))


def digest(secret: str) -> bytes:
    """Return what is kept of a secret; it is long and random, so that no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()
