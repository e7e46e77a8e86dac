"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.needs import is_missing
from support.nightly import IS_NIGHT, drawn
from support.postgres import find_programs, running_postgres
from support.slurm import HAS_CGROUPS, running_slurm
from support.users import folder_for_all

ROOT = Path(__file__).parents[1]

# Its tables are small here, and handing them to other threads costs more than it saves.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
# The library of whoever runs the tests is none of their business.
os.environ["LOWTIDE_PROFILES"] = str(ROOT / "no-such-library")
# Nor is the centre that they are logged in to.
os.environ["XDG_CONFIG_HOME"] = str(ROOT / "no-such-config")

# By day the same cases each time, so that a change is what breaks a test; by night others and more.
settings.register_profile(
    "ours",
    deadline=None,
    derandomize=not IS_NIGHT,
    max_examples=drawn(25, 500),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ours")

# Whoever runs the tests in the background of a script has Ctrl-C or a hang-up ignored, for all
# programs that the tests start as well; and some tests send these.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """Find a file of the real data set, or skip saying why; CI forbids the skip."""
    folder = (ROOT / os.environ.get("LOWTIDE_DATA", "../shared/data")).resolve()

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            is_missing(f"needs the real data: {name} is not under LOWTIDE_DATA")
        return path

    return find


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """A real Slurm of two nodes: the environment in which its commands find it."""
    with running_slurm(nodes=2) as environment:
        yield environment


@pytest.fixture(scope="module")
def accounted_slurm() -> Iterator[dict[str, str]]:
    """A real Slurm of two nodes that keeps accounts: sacct knows its jobs.

    It believes in more CPUs than there are, so that many jobs that do nothing run at once.
    """
    with running_slurm(nodes=2, cpus=8, cgroups=HAS_CGROUPS, accounting=True) as environment:
        yield environment


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
def common() -> Iterator[Path]:
    """A folder to which everybody may come."""
    with folder_for_all() as folder:
        yield folder


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Where a new store may be made."""
    return str(tmp_path / "store.sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str:
    """A file or a server: what a test says holds for both."""
    return str(request.getfixturevalue("file" if request.param == "sqlite" else "server"))
