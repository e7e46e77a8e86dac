"""A real PostgreSQL for a test: in a folder of its own, on a free port of loopback.

The server refuses to run as root, so root becomes the user `postgres` for it. It is ended by its
own process id, and the folder goes with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.networks import free_port

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


@dataclass(kw_only=True)
class Postgres:
    """A server that a test may stop and start again.

    Attributes:
        folder: All that it reads and writes.
        port: Where it listens.
    """

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its first database."""
        return f"postgresql://lowtide@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Make what it keeps."""
        self._run("initdb", "-A", "trust", "-E", "UTF8", "-U", "lowtide", "-N").wait()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"listen_addresses": "127.0.0.1", "fsync": "off", "unix_socket_directories": ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = self._run("postgres", "-p", str(self.port), *options)
        _wait_for(self.address, self.folder / "log")

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: connections that are open are closed.

        Args:
            how: SIGINT ends it in order, SIGQUIT as a crash would.
        """
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        programs = find_programs()
        assert programs is not None
        user: dict[str, Any] = {"user": _USER, "group": _USER} if os.geteuid() == 0 else {}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [programs / program, "-D", self.folder / "data", *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C", "HOME": str(self.folder)},
                start_new_session=True,
                **user,
            )


@contextmanager
def running_server() -> Iterator[Postgres]:
    """Start a server, yield it, and end it."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, _USER, _USER)
    server = Postgres(folder=folder, port=free_port())
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.end()
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


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server, yield the address of an empty database, and end it."""
    with running_server() as server:
        yield server.address


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
