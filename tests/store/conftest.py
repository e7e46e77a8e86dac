"""Stores to test with: a file always, a real PostgreSQL where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.needs import is_missing
from support.postgres import find_programs, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server; each test gets a schema of its own there."""
    if find_spec("psycopg") is None:
        is_missing("needs pip install 'lowtide[postgres]'")
    if find_programs() is None:
        is_missing("needs PostgreSQL's programs: apt-get install postgresql")
    with running_postgres() as address:
        yield address


@pytest.fixture
def server(postgres: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database on a real server."""
    import psycopg

    name = f"test_{abs(hash(request.node.nodeid)):x}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Where a new store may be made."""
    return str(tmp_path / "store.sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str:
    """A file or a server: what a test says holds for both."""
    return str(request.getfixturevalue("file" if request.param == "sqlite" else "server"))
