"""A real Slurm to ask and to work on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.slurm import running_slurm


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """A Slurm of two nodes, and the environment in which its commands find it."""
    with running_slurm(nodes=2) as environment:
        yield environment
