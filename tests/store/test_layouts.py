"""Columns come and go: what an older lowtide wrote is read, with NaN for what it did not know."""

from __future__ import annotations

import math
import sqlite3
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.store import Store
from lowtide.store.codec import Points, encode
from lowtide.store.layout import FIRST_NODE, FIRST_UNIT
from support.ticks import START, Watcher, unit

A = unit(1)
NEW = ("received_bytes", "sent_bytes", "cpu_wait_s", "unmetered_s", "unpriced_j", "unwatched_cpu_s")


@pytest.fixture
def old(file: str) -> str:
    """A store of version 2: a job with two looks in a chunk and one in a tick."""
    with Store.open(file) as store:
        store.append(Watcher().tick([A]))
    gauges = np.tile([1e9, 0.0, 0.0, 0.0, 4.0, 4e9, 0.0], (3, 1))
    steps = np.array([[1.0], [2.0], [3.0]])
    counters = steps * [20.0, 40960.0, 5120.0, 1000.0, 1000.0, 0.1, 0.2, 0.01]
    node = steps * [1510.0, 500.0, 10.0, 1510.0]
    node_gauges = np.full((3, len(FIRST_NODE.gauges)), 7.0)
    times = START + 10.0 * np.arange(4)
    totals = [times[1], times[2], 2.0, 20.0, *counters[1], 2e10, 0.0, 0.0]
    totals += [2.0, 1e9, 0.0, 0.0, 100.0, 4.0, 4e9, 0.0]

    def chunk(table: np.ndarray, more: np.ndarray, *, node: bool) -> bytes:
        return encode(
            Points(
                since=times[:2],
                time=times[1:3],
                base=np.zeros(table.shape[1]),
                counters=table[:2],
                gauges=more[:2],
            ),
            FIRST_NODE if node else FIRST_UNIT,
        )

    # A tick of version 1 in which no column says the same of all; there is one unit.
    row = np.concatenate([counters[2], gauges[2]])
    whole = (
        *(np.array([2], "<i8"), np.concatenate([node[2], node_gauges[2]])),
        *(np.packbits(np.ones(row.size, dtype=bool)), row),
    )
    tick = struct.pack("<BI", 1, 1) + zlib.compress(b"".join(part.tobytes() for part in whole))
    connection = sqlite3.connect(file)
    with connection:
        [host] = connection.execute("SELECT id FROM hosts").fetchone()
        rows = connection.execute("SELECT id, job FROM units ORDER BY id").fetchall()
        assert rows == [(1, None), (2, 1)]
        connection.execute("DELETE FROM chunks")
        for number, body in (
            (1, chunk(node, node_gauges, node=True)),
            (2, chunk(counters, gauges, node=False)),
        ):
            connection.execute(
                "INSERT INTO chunks (unit, resolution, begins, ends, points, body) "
                "VALUES (?, 0, ?, ?, 2, ?)",
                (number, times[0], times[2], body),
            )
        connection.execute("UPDATE units SET totals = ? WHERE id = 1", (node[1].tobytes(),))
        blob = np.array(totals).tobytes()
        connection.execute("UPDATE units SET totals = ? WHERE id = 2", (blob,))
        connection.execute("UPDATE jobs SET totals = ?", (blob,))
        connection.execute(
            "INSERT INTO ticks (host, since, time, body) VALUES (?, ?, ?, ?)",
            (host, times[2], times[3], tick),
        )
        connection.execute("UPDATE hosts SET last_time = ?", (times[2],))
        connection.execute("UPDATE lowtide_schema SET version = 2")
    connection.close()
    return file


def test_a_store_of_the_first_columns_is_read_as_it_is(old: str) -> None:
    with Store.open(old, readonly=True) as store:
        [record] = store.jobs(now=START + 31)
        course, node = store.series(record), store.node_series("n1")
        assert store.check().is_sound
    assert (record.energy_j, record.cpu_s, record.watched_cpu_s) == (3000.0, 60.0, 60.0)
    assert (record.mean_cpus, record.peak_power_w) == (2.0, 100.0)
    assert math.isnan(record.received_bytes)
    assert math.isnan(record.unmetered_s)
    assert np.allclose(course.columns["energy_j"], 1000.0)
    assert np.allclose(course.columns["cpus_busy"], 2.0)
    assert all(np.isnan(course.columns[name]).all() for name in NEW)
    assert np.allclose(node.columns["energy_j"], 1510.0)
    assert np.allclose(node.columns["jobs"], 7.0)
    assert np.isnan(node.columns["carbon_g"]).all()
    assert np.isnan(node.columns["pue"]).all()


def test_a_store_of_the_first_columns_goes_on_in_those_of_today(old: str) -> None:
    watcher = Watcher(time=START + 30)
    with Store.open(old) as store:
        for number in range(3):
            tick = watcher.tick([A])
            tick.received_bytes[:] = 500.0 * (number + 1)
            store.append(replace(tick, node_carbon_g=5.0 * (number + 1), pue=1.5))
        [record] = store.jobs(now=watcher.time)
        course, node = store.series(record), store.node_series("n1")
        # Rolled up, old and new columns are in one chunk.
        store.prune(now=watcher.time + 40 * 86400)
        rolled = store.series(record)
        assert store.check().is_sound
    assert (record.energy_j, record.cpu_s, record.received_bytes) == (6000.0, 120.0, 1500.0)
    assert np.nansum(course.columns["received_bytes"]) == 1500.0
    assert np.isnan(course.columns["received_bytes"]).sum() == 3
    assert np.nansum(node.columns["carbon_g"]) == 15.0
    assert np.allclose(node.columns["pue"][-3:], 1.5)
    assert len(rolled) < len(course) or len(course) <= 8
    assert np.nansum(rolled.columns["received_bytes"]) == 1500.0
    assert np.nansum(rolled.columns["energy_j"]) == pytest.approx(6000.0)


def test_everything_that_is_kept_is_exported(file: str, tmp_path: object) -> None:
    import polars as pl

    with Store.open(file) as store:
        store.append(Watcher().tick([A]))
        store.export(f"{tmp_path}/out")
    jobs = pl.read_parquet(f"{tmp_path}/out/jobs.parquet")
    samples = pl.read_parquet(f"{tmp_path}/out/samples/*.parquet")
    nodes = pl.read_parquet(f"{tmp_path}/out/nodes/*.parquet")
    assert {"unmetered_s", "unpriced_j", "received_bytes", "io_wait_s"} <= set(jobs.columns)
    assert {"unmetered_s", "unpriced_j", "unwatched_cpu_s"} <= set(samples.columns)
    assert {"carbon_g", "idle_g", "unattributed_g", "pue"} <= set(nodes.columns)


def test_an_export_is_what_the_store_says_and_leaves_no_older_parts(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import polars as pl

    monkeypatch.setattr("lowtide.store.exporting._ROWS", 40)
    monkeypatch.setattr("lowtide.store.series._POINTS", 40)
    watchers = [Watcher(), Watcher(host="n2")]
    out = tmp_path / "out"
    with Store.open(file) as store:
        for number in range(70):
            for watcher in watchers:
                # The first runs on both hosts, with a hole; the others on one each.
                mine = unit(2 if watcher.host == "n1" else 3)
                store.append(watcher.tick([A, mine] if number % 9 else [mine]))
        many = store.export(out)
        parts = len(list((out / "samples").iterdir()))
        expected = {record.number: store.series(record) for record in store.jobs()}
        read = pl.read_parquet(out / "samples" / "*.parquet")
        assert many["samples"] == read.height == sum(len(each) for each in expected.values())
        for number, series in expected.items():
            rows = read.filter(pl.col("job") == number)
            assert rows["time"].to_list() == series.times.tolist()
            for name in ("energy_j", "power_w", "unmetered_s"):
                assert rows[name].fill_null(math.nan).to_list() == pytest.approx(
                    series.columns[name].tolist(), nan_ok=True
                )
        few = store.export(out, start=START + 650)
    assert len(list((out / "samples").iterdir())) < parts
    assert pl.read_parquet(out / "samples" / "*.parquet").height == few["samples"]
