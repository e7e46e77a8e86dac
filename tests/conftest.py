"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.needs import is_missing
from support.slurm import running_slurm

ROOT = Path(__file__).parents[1]

settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")


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
