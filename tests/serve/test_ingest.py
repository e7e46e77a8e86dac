"""What nodes push is what the centre has: nothing lost, nothing doubled, nothing made up."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide.serve import schema
from lowtide.serve.ingest import receive
from lowtide.serve.ledger import close_stale, parts_of
from lowtide.store import Store
from lowtide.store.database import Database
from support.nightly import drawn
from support.pushed import Node, centre, rows
from support.ticks import START, facts, unit

# Two hours and a bit, in steps that end where hours do.
TICKS, STEP_S = 200, 40.0
SAME = ("energy_j", "carbon_g", "cpu_s", "seen_s", "looks", "peak_power_w", "elapsed_s", "ended")
SAME += ("state", "user", "account", "first_seen", "last_seen", "unmetered_s", "mean_memory_bytes")


@pytest.fixture
def database(place: str) -> Iterator[Database]:
    with centre(place) as made:
        yield made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Database]:
    with centre(str(tmp_path / "centre.sqlite")) as made:
        yield made


def _compare(database: Database, direct: Store, now: float) -> None:
    """Compare the centre's rows with a store to which every tick was given directly."""
    wanted = {(each.job_id, each.user): each for each in direct.jobs(now=now)}
    found = rows(database, schema.jobs)
    assert {(row["job_id"], row["user"]) for row in found} == wanted.keys()
    for row in found:
        record = wanted[row["job_id"], row["user"]]
        for name in SAME:
            value = getattr(record, name)
            if isinstance(value, float):
                value = pytest.approx(value, rel=1e-9) if math.isfinite(value) else None
            assert row[name] == value, (row["job_id"], name)
        assert set(row["hosts"].strip(",").split(",")) == set(record.hosts)
        whole = sum(parts_of(row).values())
        assert whole[0] == pytest.approx(record.energy_j, rel=1e-12)


def _compare_sums(database: Database, direct: Store, now: float) -> None:
    """Compare sums by hour, day and month with those of the jobs' courses."""
    energy: dict[tuple[int, str], float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    over = [row for row in rows(database, schema.jobs) if row["settled"]]
    for record in direct.jobs(now=now):
        if not any(row["job_id"] == record.job_id for row in over):
            continue
        course = direct.series(record)
        total[record.account or ""] += record.energy_j
        for time, joules in zip(course.times, course.columns["energy_j"], strict=True):
            energy[int((time - 1e-3) // 3600 * 3600), record.account or ""] += joules
    by_hour: dict[tuple[int, str], float] = defaultdict(float)
    for row in rows(database, schema.usage_hour):
        by_hour[row["begins"], row["account"]] += row["energy_j"]
    for key, joules in energy.items():
        assert by_hour[key] == pytest.approx(joules, abs=1.0)
    for table in schema.USAGE:
        sums: dict[str, float] = defaultdict(float)
        counted = 0
        for row in rows(database, table):
            sums[row["account"]] += row["energy_j"]
            counted += row["jobs"]
        assert counted == len(over)
        assert sums == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("seed", range(drawn(1, 40)))
def test_a_centre_has_what_was_watched(database: Database, tmp_path: Path, seed: int) -> None:
    """Against a store that was given every tick directly, whatever the network did meanwhile."""
    chance = random.Random(seed)
    # A restart of one watcher is one of the direct store, too.
    direct = Store.open(tmp_path / "direct.sqlite")
    nodes = [Node(tmp_path / f"{host}.sqlite", host, direct) for host in ("n1", "n2")]
    jobs = [
        (unit(number, user=chance.choice(["ada", "bob"])), *sorted(chance.sample(range(TICKS), 2)))
        for number in range(6)
    ]
    away = [sorted(chance.sample(range(TICKS), 2)) for _ in nodes]
    both = {number: chance.random() < 0.5 for number in range(6)}
    for step in range(TICKS):
        for place, node in enumerate(nodes):
            here = [
                each
                for number, (each, first, last) in enumerate(jobs)
                if first <= step < last and (both[number] or number % 2 == place)
            ]
            node.tick(
                here, step_s=STEP_S, watts={str(number): 50.0 + 7 * number for number in range(6)}
            )
        for number, (each, first, last) in enumerate(jobs):
            if step == min(last + 20, TICKS - 1) and number != 3:
                known = {"started": START, "account": "phys" if number % 2 else "chem"}
                ended = START + STEP_S * last
                told = facts(number, state="completed", user=each.user, ended=ended, **known)
                direct.put_facts([told])
                for place, node in enumerate(nodes):
                    if both[number] or number % 2 == place:
                        node.store.put_facts([told])
            assert first < last
        for place, node in enumerate(nodes):
            if chance.random() < 0.1 and not away[place][0] < step < away[place][1]:
                assert not any(answer.reason for answer in node.push(database, most=3))
    now = nodes[0].watcher.time
    for node in nodes:
        node.push(database)
    assert not rows(database, schema.quarantine)
    _compare(database, direct, now)
    _compare_sums(database, direct, now)
    for node in nodes:
        node.store.close()
    direct.close()


def test_a_piece_is_taken_once_and_in_its_turn(small: Database, tmp_path: Path) -> None:
    node = Node(tmp_path / "n1.sqlite")
    for _ in range(6):
        node.tick([unit(1)])
    parcel = node.outbox.next(now=node.watcher.time)
    assert parcel is not None
    late = receive(
        small, node.sender(type(parcel)(parcel.incarnation, 2, parcel.body)), parcel.body,
        now=node.watcher.time,
    )  # fmt: skip
    assert (late.seq, late.taken) == (0, False)
    for _ in range(3):
        answer = receive(small, node.sender(parcel), parcel.body, now=node.watcher.time)
        assert (answer.seq, answer.taken, answer.reason) == (1, True, "")
    [row] = rows(small, schema.jobs)
    assert row["energy_j"] == pytest.approx(6000.0)
    assert node.outbox.next() == parcel


def test_a_store_that_is_made_anew_counts_beside_the_old(small: Database, tmp_path: Path) -> None:
    node = Node(tmp_path / "old.sqlite")
    told = facts(1, state="running", started=START, user="ada", nodes=("n1",))
    node.put_facts([told])
    for _ in range(70):
        node.tick([unit(1)])
    node.push(small)
    node.store.close()
    again = Node(tmp_path / "new.sqlite", time=node.watcher.time)
    again.put_facts([told])
    for _ in range(70):
        again.tick([unit(1)])
    over = facts(
        1, state="completed", started=START, ended=again.watcher.time, user="ada", nodes=("n1",)
    )
    again.put_facts([over])
    again.push(small)
    [row] = rows(small, schema.jobs)
    assert row["energy_j"] == pytest.approx(140_000.0)
    assert row["seen_s"] == pytest.approx(1400.0)
    assert len(rows(small, schema.incarnations)) == 2
    with Store.open(str(tmp_path / "centre.sqlite"), readonly=True) as store:
        [record] = store.jobs()
        course = store.series(record)
    assert np.nansum(course.columns["energy_j"]) == pytest.approx(140_000.0, abs=1.0)


def test_a_store_that_was_put_back_counts_nothing_twice(small: Database, tmp_path: Path) -> None:
    node = Node(tmp_path / "n1.sqlite")
    for _ in range(100):
        node.tick([unit(1)])
    node.push(small)
    node.store.close()
    saved = (tmp_path / "n1.sqlite").read_bytes()
    node = Node(tmp_path / "n1.sqlite", time=node.watcher.time)
    for _ in range(100):
        node.tick([unit(1)])
    node.push(small)
    before = rows(small, schema.jobs)[0]["energy_j"]
    node.store.close()
    (tmp_path / "n1.sqlite").write_bytes(saved)
    node = Node(tmp_path / "n1.sqlite", time=node.watcher.time)
    node.tick([unit(1)])
    parcel = node.outbox.next(now=node.watcher.time)
    assert parcel is not None
    # The centre has more than this store knows of: that is how it learns that it was put back.
    answer = receive(small, node.sender(parcel), parcel.body, now=node.watcher.time)
    assert answer.seq > parcel.seq
    node.outbox.begin_anew(from_the_first=False)
    for _ in range(120):
        node.tick([unit(1)])
    assert not any(answer.reason for answer in node.push(small))
    [row] = rows(small, schema.jobs)
    assert before == pytest.approx(200_000.0)
    assert before <= row["energy_j"] <= before + 121_000.0


def test_a_centre_that_was_put_back_gets_what_it_lacks(tmp_path: Path) -> None:
    node = Node(tmp_path / "n1.sqlite")
    place = tmp_path / "centre.sqlite"
    with centre(str(place)) as database:
        for _ in range(100):
            node.tick([unit(1)])
        node.push(database)
    saved = place.read_bytes()
    with centre(str(place)) as database:
        for _ in range(100):
            node.tick([unit(1)])
        node.push(database)
    for path in tmp_path.glob("centre.sqlite-*"):
        path.unlink()
    place.write_bytes(saved)
    with centre(str(place)) as database:
        node.tick([unit(1)])
        parcel = node.outbox.next(now=node.watcher.time)
        assert parcel is not None
        answer = receive(database, node.sender(parcel), parcel.body, now=node.watcher.time)
        assert not answer.taken
        assert answer.seq > 0
        node.outbox.begin_anew(from_the_first=True)
        assert not any(answer.reason for answer in node.push(database))
        [row] = rows(database, schema.jobs)
        assert row["energy_j"] == pytest.approx(201_000.0)
    with Store.open(place, readonly=True) as store:
        [record] = store.jobs()
        course = store.series(record)
    assert np.nansum(course.columns["energy_j"]) == pytest.approx(201_000.0, abs=1.0)


def test_what_the_centre_has_not_is_not_made_coarser(tmp_path: Path) -> None:
    node = Node(tmp_path / "n1.sqlite")
    for _ in range(200):
        node.tick([unit(1)])
    month = node.watcher.time + 40 * 86400.0
    node.store.prune(now=month, older_than_s=10 * 86400.0)
    [record] = node.store.jobs()
    assert len(node.store.series(record)) == 200
    with centre(str(tmp_path / "centre.sqlite")) as database:
        node.push(database)
        node.store.prune(now=month)
        assert len(node.store.series(record)) < 60
        # What was made coarser is not sent again, and numbers of chunks are not given twice.
        assert not node.push(database)
        node.watcher.time = month
        for _ in range(70):
            node.tick([unit(2, started=month)])
        node.push(database)
        found = {row["job_id"]: row["energy_j"] for row in rows(database, schema.jobs)}
    assert found == pytest.approx({"1": 200_000.0, "2": 70_000.0})
    with Store.open(tmp_path / "centre.sqlite", readonly=True) as store:
        whole = [np.nansum(store.series(each).columns["energy_j"]) for each in store.jobs()]
    assert whole == pytest.approx([200_000.0, 70_000.0], abs=1.0)


def test_what_nobody_hears_of_is_closed(small: Database, tmp_path: Path) -> None:
    node = Node(tmp_path / "n1.sqlite")
    node.put_facts([facts(1, state="running", started=START, user="ada", nodes=("n1",))])
    for _ in range(70):
        node.tick([unit(1)])
    node.push(small)
    assert close_stale(small, now=node.watcher.time + 86400.0) == 0
    assert not rows(small, schema.usage_day)
    assert close_stale(small, now=node.watcher.time + 3 * 86400.0) == 1
    [row] = rows(small, schema.jobs)
    assert (row["settled"], row["state"], row["over"]) == (True, None, node.watcher.time)
    assert sum(row["energy_j"] for row in rows(small, schema.usage_day)) == pytest.approx(70_000.0)
    assert close_stale(small, now=node.watcher.time + 3 * 86400.0) == 0
    # It is heard of again, and goes on.
    for _ in range(6):
        node.tick([unit(1)])
    node.push(small)
    [row] = rows(small, schema.jobs)
    assert (row["settled"], row["energy_j"]) == (False, pytest.approx(76_000.0))
    assert not rows(small, schema.usage_day)
