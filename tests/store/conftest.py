"""Stores to test with: a file always, a real PostgreSQL where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


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
