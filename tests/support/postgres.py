"""A real PostgreSQL for a test: in a folder of its own, on a free port of loopback.

The server refuses to run as root, so root becomes the user `postgres` for it. It is ended by its
own process id, and the folder goes with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 20.0
_USER = "postgres"


def find_programs() -> Path | None:
    """Return the folder that has initdb and postgres; Debian keeps them out of the path."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    return None


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server, yield the address of an empty database, and end it."""
    programs = find_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = {"user": _USER, "group": _USER} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, _USER, _USER)
    environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
    server = None
    try:
        data = folder / "data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-A", "trust", "-E", "UTF8", "-U", "lowtide", "-N"],
            check=True,
            capture_output=True,
            cwd=folder,
            env=environment,
            **user,
        )
        port = _free_port()
        settings = {"listen_addresses": "127.0.0.1", "fsync": "off", "unix_socket_directories": ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(port), *options],
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                start_new_session=True,
                **user,
            )
        address = f"postgresql://lowtide@127.0.0.1:{port}/postgres"
        _wait_for(address, folder / "log")
        yield address
    finally:
        if server is not None:
            # A fast end: connections that are still open are closed.
            server.send_signal(signal.SIGINT)
            try:
                server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def emptied(address: str, name: str) -> Iterator[str]:
    """Make an empty database on a server, and give its address."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{address.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_for(address: str, log: Path) -> None:
    import psycopg

    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(address, connect_timeout=1).close()
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise TimeoutError(f"no PostgreSQL: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        else:
            return
