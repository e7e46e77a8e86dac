"""Providers that are a server on this machine, and keys and a cache of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.grids.cache import Cache
from support.grid_providers import NOW, PASSWORD, TOKEN, USER, StandIn, stand_in


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys, cache or proxy."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "LOWTIDE_ELECTRICITYMAPS_TOKEN",
                 "LOWTIDE_WATTTIME_USER", "LOWTIDE_WATTTIME_PASSWORD"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def keys(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys, in the environment."""
    monkeypatch.setenv("LOWTIDE_ELECTRICITYMAPS_TOKEN", TOKEN)
    monkeypatch.setenv("LOWTIDE_WATTTIME_USER", USER)
    monkeypatch.setenv("LOWTIDE_WATTTIME_PASSWORD", PASSWORD)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "kept")


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """All three providers, at a fixed time."""
    with stand_in(NOW) as state:
        for name in ("GB", "ELECTRICITYMAPS", "WATTTIME"):
            monkeypatch.setenv(f"LOWTIDE_GRID_URL_{name}", state.url)
        yield state
