"""The database behind the store: one engine for SQLite and PostgreSQL, and errors that teach."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from lowtide import files
from lowtide.errors import InvalidInput, MissingExtra, StoreProblem
from lowtide.store.places import check_may_read

# How long to wait for another process that is writing, seconds.
PATIENCE_S = 30.0
# How long to wait for a server: to connect, for an answer, and for one that takes long.
CONNECT_S = 5
ANSWER_S = 10.0
LONG_S = 900.0


class Database:
    """An open database.

    Args:
        where: A path, or an address such as `postgresql://user@host/name`.
        readonly: Whether nothing shall be written, not even a file made.
    """

    def __init__(self, where: str | Path, *, readonly: bool = False) -> None:
        self.readonly = readonly
        self.path: Path | None = None
        self._answer_s = ANSWER_S
        url = _address(where)
        if url.get_backend_name() == "sqlite":
            self.path = files.expanded(url.database or "")
            self._engine = self._open_file(self.path)
        elif url.get_backend_name() == "postgresql":
            self._engine = self._open_server(url)
        else:
            raise InvalidInput(
                f"a store is a file or a PostgreSQL server, not {url.get_backend_name()}: name a "
                "path, or an address such as postgresql://user@host/lowtide"
            )
        shown = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
        self.name = shown if self.path is None else str(self.path)

    @property
    def is_file(self) -> bool:
        """Whether it is a file (SQLite) rather than a server (PostgreSQL)."""
        return self.path is not None

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Give a transaction that is kept whole or not at all."""
        if self.readonly:
            raise StoreProblem(
                f"the store {self.name} was opened for reading only", where=self.name
            )
        with self._explained(), self._engine.connect() as connection:
            # Whoever may write says so at once: two that both read first would block.
            connection = connection.execution_options(first_words="BEGIN IMMEDIATE")
            with connection.begin():
                yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Give a connection that sees one moment of the database, whatever is written meanwhile."""
        with self._explained(), self._engine.connect() as connection:
            if self.is_file:
                connection = connection.execution_options(first_words="BEGIN")
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def holding(self) -> Iterator[sa.Connection]:
        """Give a connection of its own, outside of any transaction, that is closed in the end."""
        with self._explained(), self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            yield connection

    @contextmanager
    def taking_long(self) -> Iterator[None]:
        """Wait longer for a server's answers: whole tables are read or written."""
        before, self._answer_s = self._answer_s, LONG_S
        try:
            yield
        finally:
            self._answer_s = before

    def tidy(self) -> None:
        """Give the space of deleted rows back."""
        with self._explained(), self.taking_long(), self._engine.connect() as connection:
            outside = connection.execution_options(isolation_level="AUTOCOMMIT")
            outside.exec_driver_sql("VACUUM")
            if self.is_file:
                outside.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    def _open_file(self, path: Path) -> sa.Engine:
        if self.readonly:
            check_may_read(path)
            if not path.exists():
                raise StoreProblem(
                    f"there is no store at {path}: start watching with lowtide watch, or name one "
                    "with --store PATH",
                    where=str(path),
                )
        if not self.readonly:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreProblem(
                    f"cannot make the folder {path.parent} for the store: {error.strerror}; name "
                    "another place with --store or LOWTIDE_STORE",
                    where=str(path),
                ) from None
        # A folder that may not be written to has no room for the files that readers and writers
        # agree by. Where nobody left such files, nobody writes, and none are needed.
        beside = path.with_name(path.name + "-wal")

        def connect() -> sqlite3.Connection:
            name = path.absolute().as_uri()
            if not self.readonly:
                connection = _connect(f"{name}?mode=rwc")
                # Readers see the last commit while the next is written. A commit is safe from a
                # kill at once, and from a power cut as soon as the system writes it out.
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                return connection
            try:
                connection = _connect(f"{name}?mode=ro")
                connection.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.OperationalError:
                if beside.exists():
                    raise
                return _connect(f"{name}?mode=ro&immutable=1")
            return connection

        engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool)

        @event.listens_for(engine, "begin")
        def _(connection: sa.Connection) -> None:
            if words := connection.get_execution_options().get("first_words"):
                connection.exec_driver_sql(words)

        return engine

    def _open_server(self, url: sa.URL) -> sa.Engine:
        long_ms = int(1000 * LONG_S)
        wanted: dict[str, Any] = {
            "connect_timeout": CONNECT_S,
            # Whoever sees that a host is taken sees by whom.
            "application_name": f"process {os.getpid()} on {platform.node()}"[:63],
            # What nobody waits for any more is given up, and dead lines are found.
            "options": f"-c statement_timeout={long_ms} "
            f"-c idle_in_transaction_session_timeout={long_ms}",
            "tcp_user_timeout": int(1000 * ANSWER_S),
            "keepalives_idle": int(ANSWER_S),
            "keepalives_interval": CONNECT_S,
            "keepalives_count": 3,
        }
        wanted = {name: value for name, value in wanted.items() if name not in url.query}
        try:
            engine = sa.create_engine(url, pool_pre_ping=True, connect_args=wanted)
        except ModuleNotFoundError:
            raise MissingExtra("a store on PostgreSQL", extra="postgres") from None
        except NoSuchModuleError as error:
            raise InvalidInput(f"cannot use the address of the store: {error}") from None
        if url.get_driver_name() == "psycopg":
            kind = _impatient_kind(self)

            @event.listens_for(engine, "do_connect")
            def _(_dialect: Any, _record: Any, given: Any, named: Any) -> Any:
                return kind.connect(*given, **named)

        return engine

    def answer_s(self) -> float:
        """Return how long to wait for a server's answer, seconds."""
        return self._answer_s

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._problem(error) from error

    def _problem(self, error: DBAPIError) -> StoreProblem:
        said = str(error.orig).strip().splitlines()[0] if str(error.orig) else type(error).__name__
        if not self.is_file:
            what = (
                f"the store {self.name} does not answer: {said}"
                if error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
                else f"the store {self.name} refused: {said}"
            )
            return StoreProblem(what, where=self.name)
        advice = next(
            (words for sign, words in _ADVICE.items() if sign in said.lower()),
            "cannot be used: {said}",
        )
        return StoreProblem(f"the store {self.name} " + advice.format(said=said), where=self.name)


def _impatient_kind(database: Database) -> Any:
    """Return connections to a server that do not wait for ever.

    A server that hangs keeps its connections, and no setting of them ends the wait for an answer.
    """
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        def wait(self, gen: Any, *arguments: Any, **more: Any) -> Any:
            limit_s = database.answer_s()

            def bounded() -> Generator[Any, Any, Any]:
                deadline = time.monotonic() + limit_s
                try:
                    state = next(gen)
                    while True:
                        # Every now and then nothing is ready, and there is time to look.
                        ready = yield state
                        if not ready and time.monotonic() > deadline:
                            self.pgconn.finish()
                            raise psycopg.OperationalError(f"no answer in {limit_s:g} s")
                        state = gen.send(ready)
                except StopIteration as end:
                    return end.value

            return super().wait(bounded(), *arguments, **more)

    return Impatient


_RESCUE = "lowtide store check --rescue NEW.sqlite saves what can still be read"
_ADVICE = {
    "disk is full": "has no room left ({said}): what was kept is safe; delete something else on "
    "its disk first, for pruning needs some room itself, then shrink the store with lowtide store "
    "prune --size SIZE",
    "disk i/o error": "cannot be written or read ({said}): what was kept is safe; look whether "
    "the disk is full or failing",
    "malformed": "is damaged ({said}): " + _RESCUE,
    "not a database": "is no store of lowtide's, or its beginning is destroyed ({said}): name "
    "another with --store; if it was one, " + _RESCUE,
    "locked": "is being written by another process for longer than "
    f"{PATIENCE_S:g} s ({{said}}): try again",
    "readonly": "may not be written by you ({said}): watch as its owner, or name another place "
    "with --store",
    "unable to open": "cannot be opened ({said}): look at the rights of the file and its folder",
}


def _address(where: str | Path) -> sa.URL:
    text = str(where)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        # The address may hold a password, so it is not repeated.
        raise InvalidInput(
            "cannot read the address of the store: write a path, or "
            "postgresql://user:password@host:port/database"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and not url.database:
        raise InvalidInput("a store in memory keeps nothing: name a file, such as store.sqlite")
    return url


def _connect(name: str) -> sqlite3.Connection:
    # Transactions begin where the store says so. Threads take turns: the pool sees to that.
    return sqlite3.connect(
        name, uri=True, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
    )
