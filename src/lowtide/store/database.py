"""The database behind the store: where it is, who may write to it, and errors that teach."""

from __future__ import annotations

import copy
import grp
import os
import platform
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from lowtide import files
from lowtide.errors import InvalidInput, MissingExtra, StoreProblem

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
        self._rule: Callable[[sa.Connection], None] | None = None
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
                self._hold(connection)
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
                self._hold(connection)
                yield connection

    def held_to(self, rule: Callable[[sa.Connection], None]) -> Database:
        """Return the same database, held to a rule by which each of its transactions begins.

        Args:
            rule: Is given the connection before anybody else asks it.
        """
        held = copy.copy(self)
        held._rule = rule
        return held

    def _hold(self, connection: sa.Connection) -> None:
        if self._rule is not None:
            self._rule(connection)

    @contextmanager
    def glancing(self) -> Iterator[sa.Connection]:
        """Give a connection for one question: a server is asked that alone, in no transaction."""
        with self._explained(), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

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

            @event.listens_for(engine, "connect")
            def _(connection: Any, _record: Any) -> None:
                from psycopg.types.array import ListBinaryDumper

                # Arrays as text take twice the time of COPY, these no more than it.
                connection.adapters.register_dumper(list, ListBinaryDumper)

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


FILE_NAME = "store.sqlite"
SYSTEM_FOLDER = Path("/var/lib/lowtide")


def default_place(
    *,
    environment: Mapping[str, str] | None = None,
    is_root: bool | None = None,
    reading: bool = False,
    system: Path = SYSTEM_FOLDER,
) -> str:
    """Return the path or address to use where none is named.

    That is what `LOWTIDE_STORE` says; else the system's file for root, and one below the user's
    state folder for everybody else. Whoever only reads and has none of their own gets the
    system's, if there is one.

    Args:
        environment: The environment, by default this process's.
        is_root: Whether the user is root, by default whether this process's is.

    >>> default_place(environment={"HOME": "/home/ada"}, is_root=False)
    '/home/ada/.local/state/lowtide/store.sqlite'
    """
    environment = os.environ if environment is None else environment
    if named := environment.get("LOWTIDE_STORE"):
        return named
    if is_root is None:
        is_root = os.geteuid() == 0
    systems = system / FILE_NAME
    if is_root:
        return str(systems)
    own = files.user_folder(environment, "XDG_STATE_HOME", ".local/state") / "lowtide" / FILE_NAME
    if not reading or _is_there(own):
        return str(own)
    if system.is_dir():
        check_may_read(systems)
    return str(systems if _is_there(systems) else own)


def check_may_read(path: Path) -> None:
    """Refuse a store that the user may not read, with how to get to.

    Args:
        path: The file, whether it is there or not.
    """
    try:
        path.stat()
        closed = not os.access(path, os.R_OK)
    except PermissionError:
        closed = True
    except OSError:
        closed = False
    if closed:
        raise StoreProblem(
            f"the store {path} may not be read by you: {_join(path)}read it as its owner, or name "
            "another with --store or LOWTIDE_STORE",
            where=str(path),
        )


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _join(path: Path) -> str:
    """Return how to get into the group that may read, where there is one."""
    for place in (path, path.parent):
        try:
            found = place.stat()
            group = grp.getgrgid(found.st_gid).gr_name
        except (OSError, KeyError):
            continue
        if found.st_mode & 0o040 and found.st_gid:
            return f"join the group {group} (usermod -aG {group} YOU, then log in again), "
    return ""


# Who watches a host: one process at a time, so that nothing is counted twice.
#
# A claim is held by the system or by the server, and not by what is written: whoever holds it and
# dies lets go of it, however it dies.

# Any number, as long as no other program on the server has the same.
_CLASS = 0x6C6F7775


@contextmanager
def claimed(database: Database, host: str) -> Iterator[None]:
    """Hold a host: nobody else can claim it in this store meanwhile."""
    if database.path is not None:
        with _claimed_file(database, database.path, host):
            yield
    else:
        with _claimed_on_server(database, host):
            yield


@contextmanager
def _claimed_file(database: Database, store: Path, host: str) -> Iterator[None]:
    # Beside the store itself, whatever links lead there.
    store = store.resolve()
    path = store.with_name(f"{store.name}.{quote(host, safe='')}.lock")
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreProblem(
                f"cannot make {path}, by which watchers of {host} take turns: {error.strerror}; "
                "watch as the owner of the store, or name another with --store",
                where=database.name,
            ) from None
        if not files.try_lock(file):
            holder = os.read(file, 100).decode(errors="replace").strip()
            os.close(file)
            raise _refused(database, host, holder or "another process") from None
        try:
            same = os.path.samestat(os.fstat(file), path.stat())
        except OSError:
            same = False
        if same:
            break
        # Its holder just let go of it, and took the file away.
        os.close(file)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


@contextmanager
def _claimed_on_server(database: Database, host: str) -> Iterator[None]:
    # The sign of a whole number of the server's is its highest bit.
    number = crc32(host.encode()) - (1 << 31)
    with database.holding() as connection:
        taken = connection.execute(
            sa.text("SELECT pg_try_advisory_lock(:kind, :number)"),
            {"kind": _CLASS, "number": number},
        ).scalar_one()
        if not taken:
            holder = connection.execute(
                sa.text(
                    "SELECT activity.application_name FROM pg_locks AS locks "
                    "JOIN pg_stat_activity AS activity ON activity.pid = locks.pid "
                    "JOIN pg_database AS base ON base.oid = locks.database "
                    "WHERE locks.locktype = 'advisory' AND locks.granted "
                    "AND base.datname = current_database() "
                    "AND locks.classid::bigint = :kind "
                    "AND locks.objid::bigint = :number"
                ),
                {"kind": _CLASS, "number": number % (1 << 32)},
            ).scalar()
            raise _refused(database, host, holder or "another process")
        yield


def _refused(database: Database, host: str, holder: str) -> StoreProblem:
    return StoreProblem(
        f"{host} is being watched already into {database.name}, by {holder}: two would count "
        "everything twice; end that one first, or keep this one's elsewhere with --store",
        where=database.name,
    )
