"""Damage is found, and what can still be read is saved."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import StoreProblem
from lowtide.monitor.snapshot import JobFacts
from lowtide.store import Store
from lowtide.store.damage import rescue
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
    assert sum(done.saved.values()) > 0
    with Store.open(fresh) as store:
        assert store.check().is_sound
        assert store.check().rows == done.saved
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


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_what_was_cut_off_leaves_the_rest(filled: Path, tmp_path: Path, share: float) -> None:
    with Store.open(filled, readonly=True) as store:
        before = {each.number: each.energy_j for each in store.jobs()}
    with filled.open("r+b") as file:
        file.truncate(int(filled.stat().st_size * share) // 4096 * 4096)
    fresh = tmp_path / "fresh.sqlite"
    done = rescue(filled, fresh)
    with Store.open(fresh, readonly=True) as store:
        assert store.check().is_sound
        after = {each.number: each.energy_j for each in store.jobs()}
    assert done.saved["jobs"] == len(after) >= 0.5 * share * len(before)
    assert all(before[number] == energy or np.isnan(energy) for number, energy in after.items())
    # Where the last row cannot be read, nobody knows how many there were.
    assert done.lost["chunks"] is None


def test_numbers_that_make_no_sense_are_named_and_counted_again(
    filled: Path, tmp_path: Path
) -> None:
    with Store.open(filled, readonly=True) as store:
        before = store.jobs()
    with sqlite3.connect(filled) as connection:
        connection.execute("UPDATE units SET totals = X'0011' WHERE id IN (1, 2)")
        connection.execute("UPDATE jobs SET totals = X'0011' WHERE id = 3")
        connection.execute("UPDATE jobs SET facts = X'' WHERE id = 4")
        connection.execute("UPDATE chunks SET body = X'00112233' WHERE id = 9")
        infinite = np.full(31, np.inf).tobytes()
        connection.execute("UPDATE units SET totals = ? WHERE id = 7", (infinite,))
    connection.close()
    with Store.open(filled, readonly=True) as store:
        problems = store.check().problems
    named = sorted(" ".join(each.split()[:2]).rstrip(":") for each in problems)
    assert named == ["chunks 9", "jobs 3", "jobs 4", "units 1", "units 2", "units 7"]
    done = rescue(filled, tmp_path / "fresh.sqlite")
    assert (done.lost["chunks"], done.lost["jobs"], done.lost["units"]) == (1, 0, 0)
    with Store.open(tmp_path / "fresh.sqlite", readonly=True) as store:
        assert store.check().is_sound
        after = store.jobs()
    for one, other in zip(before, after, strict=True):
        assert other.energy_j == pytest.approx(one.energy_j)
        assert (other.looks, other.seen_s) == (one.looks, pytest.approx(one.seen_s))


def test_what_others_referred_to_is_made_again(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled) as connection:
        connection.execute("DELETE FROM jobs WHERE id = 5")
        connection.execute("DELETE FROM hosts")
        connection.execute("DELETE FROM units WHERE job IS NULL OR id = 9")
    connection.close()
    with Store.open(filled, readonly=True) as store:
        assert any("without their host" in each for each in store.check().problems)
    rescue(filled, tmp_path / "fresh.sqlite")
    with Store.open(tmp_path / "fresh.sqlite") as store:
        assert store.check().is_sound
        assert [host.name for host in store.hosts()] == ["n1"]
        found = {each.number: each for each in store.jobs()}
        assert (found[5].job_id, found[5].energy_j, found[5].hosts) == ("4", 10_000.0, ("n1",))
        store.append(Watcher(time=2e9).tick([unit(9999)]))


@pytest.mark.parametrize("kind", ["folder", "link", "nothing"])
def test_what_is_no_file_cannot_be_rescued(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store.sqlite"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "gone")
    with pytest.raises(StoreProblem, match=r"name the damaged store|is no file"):
        rescue(path, tmp_path / "fresh.sqlite")
    assert not (tmp_path / "fresh.sqlite").exists()


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


@pytest.mark.parametrize(
    ("table", "column"), [("jobs", "totals"), ("jobs", "facts"), ("units", "totals")]
)
def test_any_flipped_bit_in_a_number_is_found(filled: Path, table: str, column: str) -> None:
    rng = np.random.default_rng(7)
    with Store.open(filled) as store:
        store.put_facts([JobFacts(source="slurm", job_id="1", started=0.0, user="ann")])
    with sqlite3.connect(filled) as connection:
        rows = connection.execute(
            f"SELECT id, {column} FROM {table} WHERE {column} IS NOT NULL"
        ).fetchall()
    for number, blob in [rows[place] for place in rng.integers(len(rows), size=12)]:
        bit = int(rng.integers(8 * len(blob)))
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        query = f"UPDATE {table} SET {column} = ? WHERE id = ?"
        with sqlite3.connect(filled) as connection:
            connection.execute(query, (bytes(changed), number))
        with Store.open(filled, readonly=True) as store:
            assert any(f"{table} {number}: " in each for each in store.check().problems), bit
        with sqlite3.connect(filled) as connection:
            connection.execute(query, (blob, number))
    with Store.open(filled, readonly=True) as store:
        assert store.check().is_sound
