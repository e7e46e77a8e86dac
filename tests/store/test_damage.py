"""Damage is found, and what can still be read is saved."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lowtide.errors import StoreProblem
from lowtide.store import Store
from lowtide.store.checking import rescue
from support.ticks import Watcher, unit


@pytest.fixture
def filled(file: str) -> Path:
    watcher = Watcher()
    with Store.open(file) as store:
        for number in range(130):
            first = number // 10 * 40
            store.append(watcher.tick([unit(first + each) for each in range(40)]))
    return Path(file)


def scribble(path: Path, *, share: float, pages: int = 4) -> None:
    """Overwrite some pages, as a failing disk does."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(int(size * share) // 4096 * 4096)
        file.write(b"\xa5" * 4096 * pages)


def test_a_sound_store_is_sound(filled: Path) -> None:
    with Store.open(filled, readonly=True) as store:
        found = store.check()
    assert found.is_sound
    assert found.rows["jobs"] == 520


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_damage_is_found_and_the_rest_is_saved(filled: Path, tmp_path: Path, share: float) -> None:
    with Store.open(filled, readonly=True) as store:
        before = {each.number: each.energy_j for each in store.jobs()}
    scribble(filled, share=share)
    try:
        with Store.open(filled, readonly=True) as store:
            assert not store.check().is_sound
    except StoreProblem as error:
        assert "lowtide store check --rescue" in str(error)
    fresh = tmp_path / "fresh.sqlite"
    done = rescue(filled, fresh)
    assert sum(done.lost.values()) > 0 or sum(done.saved.values()) > 0
    with Store.open(fresh) as store:
        assert not [each for each in store.check().problems if "without" not in each]
        after = {each.number: each.energy_j for each in store.jobs()}
        for record in store.jobs():
            store.series(record)
        watcher = Watcher(time=2e9)
        store.append(watcher.tick([unit(9999)]))
    assert len(after) >= 0.7 * len(before)
    assert all(before[number] == energy for number, energy in after.items())


def test_a_chunk_that_makes_no_sense_is_named(filled: Path) -> None:
    with sqlite3.connect(filled) as connection:
        connection.execute("UPDATE chunks SET body = X'0101FF' WHERE id = 3")
        connection.execute("DELETE FROM jobs WHERE id = 5")
    connection.close()
    with Store.open(filled, readonly=True) as store:
        problems = store.check().problems
    assert any(each.startswith("chunks 3: a chunk of the store is damaged") for each in problems)
    assert "1 units without their job" in problems


def test_what_has_lost_its_beginning_cannot_be_saved(filled: Path, tmp_path: Path) -> None:
    scribble(filled, share=0.0)
    with pytest.raises(StoreProblem, match="store check --rescue"):
        Store.open(filled, readonly=True)
    with pytest.raises(StoreProblem, match="backup"):
        rescue(filled, tmp_path / "fresh.sqlite")
    assert not (tmp_path / "fresh.sqlite").exists()


def test_nothing_is_rescued_over_what_is_there(filled: Path) -> None:
    with pytest.raises(StoreProblem, match="there already"):
        rescue(filled, filled)
