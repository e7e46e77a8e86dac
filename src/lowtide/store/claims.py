"""Who watches a host: one process at a time, so that nothing is counted twice.

A claim is held by the system or by the server, and not by what is written: whoever holds it and
dies lets go of it, however it dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.store.database import Database

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
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
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
