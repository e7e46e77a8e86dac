"""Facts find their job, and numbers that are used again make new ones."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from lowtide.monitor.snapshot import Unit
from lowtide.slurm.records import QUEUE_FIELDS, SEPARATOR, facts_from_lines
from lowtide.store import JobRecord, Store
from lowtide.store.matching import drop_old_waits
from lowtide.store.tables import jobs
from support.nightly import drawn
from support.ticks import START, Watcher, facts, unit

DAY = 86400.0


def watched(store: Store, number: int | str, started: float, *, host: str = "n1") -> None:
    store.append(Watcher(host=host, time=started).tick([unit(number, started=started)]))


def in_queue(number: int, asked: float, **known: float | str) -> Any:
    """Return facts as read from what squeue prints."""
    told = {"job_id": number, "restarts": 0} | known
    texts = [
        f"{each:.0f}" if isinstance(each, float) else str(each)
        for each in (told.get(name, "N/A") for name in QUEUE_FIELDS.values())
    ]
    (found,) = facts_from_lines(SEPARATOR.join([*texts, "\n"]))
    return replace(found, asked=asked)


def summary(records: list[JobRecord]) -> list[tuple[Any, ...]]:
    return [(each.shown_id, each.state, each.started, each.energy_j > 0) for each in records]


@pytest.mark.parametrize("facts_first", [True, False])
def test_facts_and_ticks_meet_whichever_comes_first(place: str, facts_first: bool) -> None:
    known = facts(
        7,
        shown_id="5_2",
        state="completed",
        user="eve",
        account="physics",
        partition="long",
        nodes=("n1",),
        submitted=START - 50,
        started=START - 5,
        ended=START + 400,
        time_limit_s=3600,
        cpus=8,
        memory_bytes=16e9,
        gpus=2,
        exit_code=3,
        restarts=1,
        comment="try again",
    )
    with Store.open(place) as store:
        if facts_first:
            store.put_facts([known])
            watched(store, 7, START)
        else:
            watched(store, 7, START)
            store.put_facts([known])
        [record] = store.jobs()
    assert (record.job_id, record.shown_id, record.state) == ("7", "5_2", "completed")
    assert (record.user, record.account, record.partition) == ("eve", "physics", "long")
    assert (record.started, record.ended, record.elapsed_s) == (START - 5, START + 400, 405.0)
    assert (record.cpus, record.memory_bytes, record.gpus) == (8.0, 16e9, 2.0)
    assert (record.exit_code, record.restarts, record.comment) == (3, 1, "try again")
    assert record.hosts == ("n1",)
    assert record.energy_j == 1000.0


def test_what_facts_leave_open_stays(place: str) -> None:
    with Store.open(place) as store:
        watched(store, 7, START)
        store.put_facts([facts(7, state="running", started=START, cpus=8, account="physics")])
        store.put_facts([facts(7, state="completed", started=START, ended=START + 60)])
        store.put_facts([facts(7, started=START, cpus=math.nan)])
        [record] = store.jobs()
    assert (record.state, record.cpus, record.account) == ("completed", 8.0, "physics")


def test_a_job_waits_runs_and_ends_as_one(place: str) -> None:
    with Store.open(place) as store:
        store.put_facts([facts(7, state="pending", submitted=START)])
        assert summary(store.jobs()) == [
            ("7", "pending", pytest.approx(math.nan, nan_ok=True), False)
        ]
        watched(store, 7, START + 60)
        store.put_facts([facts(7, state="running", started=START + 59)])
        store.put_facts([facts(7, state="failed", started=START + 59, ended=START + 90)])
        assert summary(store.jobs()) == [("7", "failed", START + 59, True)]


def test_a_number_that_is_used_again_is_another_job(place: str) -> None:
    with Store.open(place) as store:
        watched(store, 7, START)
        watched(store, 7, START + 300 * DAY)
        store.put_facts(
            [
                facts(7, state="failed", started=START - 1, ended=START + 50),
                facts(7, state="completed", started=START + 300 * DAY, ended=START + 301 * DAY),
            ]
        )
        assert summary(store.jobs()) == [
            ("7", "failed", START - 1, True),
            ("7", "completed", START + 300 * DAY, True),
        ]


def test_a_requeued_job_is_told_by_its_start(place: str) -> None:
    with Store.open(place) as store:
        watched(store, 7, START)
        store.put_facts([facts(7, state="cancelled", started=START, ended=START + 60)])
        # It waits again, then runs again, on the same node.
        store.put_facts([facts(7, state="pending", submitted=START, restarts=1)])
        watched(store, 7, START + 200)
        store.put_facts([facts(7, state="running", started=START + 199, restarts=1)])
        assert summary(store.jobs(now=START + 215)) == [
            ("7", "cancelled", START, True),
            ("7", "running", START + 199, True),
        ]


def test_a_requeue_without_any_facts_is_told_by_the_group(place: str) -> None:
    with Store.open(place) as store:
        watched(store, 7, START)
        watched(store, 7, START + 90)
        assert [each.energy_j for each in store.jobs()] == [1000.0, 1000.0]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_start_that_nobody_saw_end_was_requeued_once_a_later_one_is_told(
    place: str, told: bool, waits: bool
) -> None:
    """The watcher was killed before Slurm told it of the end of the first."""
    again = {"submitted": START + 300, "restarts": 1}
    with Store.open(place) as store:
        watched(store, 7, START)
        if told:
            store.put_facts([facts(7, state="running", started=START, restarts=0)])
        later = START + 400
        assert [each.state for each in store.jobs(now=later)] == [None]
        if waits:
            store.put_facts([facts(7, state="pending", **again)])
            first, waiting = store.jobs(now=later)
            assert (first.state, first.energy_j, waiting.energy_j > 0) == (
                "requeued",
                1000.0,
                False,
            )
        watched(store, 7, START + 500)
        store.put_facts([facts(7, state="running", started=START + 499, **again)])
        assert summary(store.jobs(now=START + 515)) == [
            ("7", "requeued", START, True),
            ("7", "running", START + 499, True),
        ]
        # Whoever keeps accounts knows better.
        store.put_facts([facts(7, state="node_fail", started=START, ended=START + 250)])
        store.put_facts([facts(7, state="completed", started=START + 499, **again)])
        assert [each.state for each in store.jobs()] == ["node_fail", "completed"]


@settings(max_examples=drawn(20, 400))
@given(data=st.data())
def test_only_as_many_starts_as_it_has_restarts_were_requeued(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a number that is used again nobody knows how its first job ended."""
    starts = data.draw(st.integers(1, 5))
    restarts = data.draw(st.integers(0, starts - 1))
    ends = data.draw(st.lists(st.sampled_from([None, "failed"]), min_size=starts, max_size=starts))
    begins = [START + 1000 * number for number in range(starts)]
    with Store.open(tmp_path_factory.mktemp("s") / "s.sqlite") as store:
        for begin, state in zip(begins, ends, strict=True):
            watched(store, 7, begin)
            if state is not None:
                store.put_facts([facts(7, state=state, started=begin, ended=begin + 100)])
        last = {"started": begins[-1], "submitted": begins[-1] - 50, "restarts": restarts}
        store.put_facts([facts(7, state="completed", **last, ended=begins[-1] + 100)])
        found = [each.state for each in store.jobs()]
    expected = [
        state or ("requeued" if number >= starts - 1 - restarts else None)
        for number, state in enumerate(ends[:-1])
    ]
    assert found == [*expected, "completed"]


def test_a_step_that_starts_hours_later_on_another_node_is_the_same_job(place: str) -> None:
    nodes = ("n1", "n2")
    with Store.open(place) as store:
        watched(store, 7, START)
        watched(store, 7, START + 7200, host="n2")
        assert len(store.jobs()) == 2, "nobody can know"
        store.put_facts([facts(7, state="running", started=START, nodes=nodes)])
        [record] = store.jobs()
        assert record.hosts == nodes
        assert record.energy_j == 2000.0
        later = START + 20
        watched(store, 8, later)
        store.put_facts([facts(8, state="running", started=later, nodes=nodes)])
        watched(store, 8, later + 7200, host="n2")
        assert [each.energy_j for each in store.jobs(ids=["8"])] == [2000.0]


def test_facts_without_a_start_go_to_the_last_start(place: str) -> None:
    with Store.open(place) as store:
        watched(store, 7, START)
        watched(store, 7, START + DAY)
        store.put_facts([facts(7, account="physics")])
        assert [each.account for each in store.jobs()] == [None, "physics"]


def test_facts_that_say_nothing_new_write_nothing(file: str) -> None:
    with Store.open(file) as store:
        watched(store, 7, START)
        known = facts(7, state="running", started=START, cpus=8, nodes=("n1",))
        store.put_facts([known])
        statements: list[str] = []

        @event.listens_for(store._database._engine, "before_cursor_execute")
        def _(*words: Any) -> None:
            statements.append(words[2])

        store.put_facts([known])
        assert statements
        assert not [each for each in statements if each.startswith(("UPDATE", "INSERT"))]


def test_a_whole_array_is_found_by_its_number(place: str) -> None:
    with Store.open(place) as store:
        store.put_facts(
            [
                facts(10, shown_id="10_1", state="pending"),
                facts(11, shown_id="10_2", state="pending"),
                facts(12, shown_id="101_1", state="pending"),
            ]
        )

        def found(*ids: str) -> list[str]:
            return [each.shown_id for each in store.jobs(ids=ids)]

        assert found("10") == ["10_1", "10_2"]
        assert found("10_2") == ["10_2"]
        assert found("12") == ["101_1"]
        assert found("1") == []


def test_questions_find_what_ran_in_the_window(place: str) -> None:
    with Store.open(place) as store:
        for day in range(5):
            store.put_facts(
                [
                    facts(
                        day,
                        state="completed",
                        user="ada" if day % 2 else "bob",
                        started=START + day * DAY,
                        ended=START + day * DAY + 3600,
                        nodes=(f"n{day}",),
                    )
                ]
            )

        def found(**question: Any) -> list[str]:
            return [each.job_id for each in store.jobs(**question)]

        assert found(start=START + 1.5 * DAY) == ["2", "3", "4"]
        assert found(end=START + 1.5 * DAY) == ["0", "1"]
        assert found(start=START + DAY + 600, end=START + DAY + 700) == ["1"]
        assert found(users=["ada"]) == ["1", "3"]
        assert found(hosts=["n3", "n_"]) == ["3"]
        assert found(states=["failed"]) == []
        assert found(states=["completed"], users=["bob"]) == ["0", "2", "4"]


def test_a_long_watched_job_is_found_by_what_no_chunk_holds_yet(place: str) -> None:
    watcher = Watcher()
    with Store.open(place) as store:
        for _ in range(40):
            store.append(watcher.tick([unit(1)]))
        assert len(store.jobs(start=watcher.time - 15)) == 1
        assert len(store.jobs(start=watcher.time + 1)) == 0


def test_a_job_that_nobody_sees_any_more_does_not_run(place: str) -> None:
    watcher = Watcher()
    with Store.open(place) as store:
        store.append(watcher.tick([unit(1), unit(2)]))
        store.put_facts([facts(1, state="running", started=START)])
        assert [each.state for each in store.jobs(now=watcher.time)] == ["running", "running"]
        store.append(watcher.tick([unit(3)]))
        assert [each.state for each in store.jobs(now=watcher.time)] == [None, None, "running"]
        # Long after the last tick nobody can say what runs, whatever facts said then.
        later = [each.state for each in store.jobs(now=watcher.time + DAY)]
        assert later == [None, None, None]
        assert not store.jobs(now=watcher.time + DAY, states=["running"])


def test_a_job_runs_only_where_somebody_watches(place: str) -> None:
    gone, there = Watcher(), Watcher(host="n2", time=START + DAY)
    with Store.open(place) as store:
        store.append(gone.tick([unit(1)]))
        store.append(there.tick([unit(2, started=START + DAY)]))
        told = {"state": "running", "started": START}
        store.put_facts([facts(1, **told), facts(3, **told, nodes=("n3",))])
        states = {each.job_id: each.state for each in store.jobs(now=there.time)}
        # Of the third only facts know, and somebody there still asks for them.
        assert states == {"1": None, "2": "running", "3": "running"}


@pytest.mark.parametrize("asked", [START + 1, None])
@pytest.mark.parametrize("told", [True, False])
def test_a_wait_that_is_told_late_is_no_second_job(
    place: str, asked: float | None, told: bool
) -> None:
    late = facts(7, state="pending", submitted=START, restarts=0, asked=asked, account="physics")
    with Store.open(place) as store:
        watched(store, 7, START + 2)
        if told:
            store.put_facts([facts(7, state="running", submitted=START, started=START + 2)])
        store.put_facts([late])
        store.put_facts(
            [facts(7, state="completed", submitted=START, started=START + 2, ended=START + 4)]
        )
        store.put_facts([late])
        assert summary(store.jobs()) == [("7", "completed", START + 2, True)]
        assert store.jobs()[0].account == "physics"
        assert store.waiting("slurm") == []


def test_a_start_takes_over_the_wait_that_was_kept_beside_it(place: str) -> None:
    with Store.open(place) as store:
        watched(store, 7, START + 2)
        # As stores of before hold it: the same job twice.
        store.put_facts([facts(7, state="running", started=START + 2)])
        store.put_facts([facts(7, state="pending", submitted=START, restarts=1)])
        assert len(store.jobs()) == 2
        store.put_facts([facts(7, state="running", submitted=START, started=START + 2, restarts=1)])
        assert summary(store.jobs(now=START + 20)) == [("7", "running", START + 2, True)]


@pytest.mark.parametrize("limit_s", [None, 420])
@pytest.mark.parametrize("waits", [True, False])
def test_a_requeue_that_is_seen_while_it_happens_is_no_start(
    place: str, waits: bool, limit_s: int | None
) -> None:
    """As Slurm 22.05 tells it: until all is cleared away, the next start would be now."""

    def told(asked: float, state: str, started: float, **known: float | str) -> Any:
        ends = "NONE" if limit_s is None else started + limit_s
        limit = "UNLIMITED" if limit_s is None else "7:00"
        known = {"ended": ends, "limit": limit, "nodes": "n1"} | known
        return in_queue(7, asked, state=state, started=started, **known)

    again = {"submitted": START + 6, "restarts": 1}
    with Store.open(place) as store:
        watched(store, 7, START + 0.5)
        store.put_facts([told(START + 1, "RUNNING", START, submitted=START)])
        for asked in (START + 4, START + 5):
            store.put_facts(
                [told(asked, "COMPLETING", asked, submitted=START, restarts=1)],
            )
        if waits:
            store.put_facts([told(START + 8, "PENDING", START + 127, **again, nodes="")])
        watched(store, 7, START + 20.5)
        store.put_facts([facts(7, state="requeued", started=START, asked=START + 21)])
        store.put_facts([told(START + 22, "RUNNING", START + 20, **again)])
        over = {**again, "ended": START + 36}
        for state in ("COMPLETING", "CANCELLED"):
            store.put_facts([told(START + 37, state, START + 20, **over)])
        assert summary(store.jobs()) == [
            ("7", "requeued", START, True),
            ("7", "cancelled", START + 20, True),
        ]
        assert [each.restarts for each in store.jobs()] == [0, 1]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with nothing in it: a copy is there sooner than another one is made."""
    path = tmp_path_factory.mktemp("empty") / "s.sqlite"
    Store.open(path).close()
    return path


@settings(max_examples=drawn(30, 500))
@given(data=st.data())
def test_however_late_facts_come_each_start_is_one_job(data: st.DataObject, empty: Path) -> None:
    """What a queue says at any moment may be kept at any later one; a start stays one row."""
    told: list[tuple[float, Any]] = []
    begins: list[float] = []
    time = START
    starts = data.draw(st.sampled_from([2, 3, 1]))
    over: list[Any] = []
    for again in range(starts):
        submitted = time
        begin = submitted + data.draw(st.integers(5, 200))
        time = end = begin + data.draw(st.integers(5, 100))
        known = {"submitted": submitted, "restarts": again, "nodes": ("n1",)}
        state = "completed" if again == starts - 1 else "requeued"
        begins.append(begin)
        asked = [data.draw(st.floats(submitted, begin)), data.draw(st.floats(begin, end))]
        told += [
            (asked[0], facts(7, state="pending", asked=asked[0], **known)),
            (asked[1], facts(7, state="running", started=begin, asked=asked[1], **known)),
        ]
        over.append(facts(7, state=state, started=begin, ended=end, asked=end + 500, **known))
        # Before it is submitted anew, what is left of it is cleared away.
        time += data.draw(st.integers(0, 30)) if state == "requeued" else 0
        limit = data.draw(st.sampled_from([None, 600]))
        for asked_s in data.draw(st.lists(st.floats(end, time), max_size=2)) if time > end else ():
            next_ = {"started": asked_s // 1, "restarts": again + 1, "submitted": submitted}
            foretold = {} if limit is None else {"ended": asked_s // 1 + limit, "limit": "10:00"}
            now = in_queue(7, asked_s, state="COMPLETING", nodes="n1", **next_, **foretold)
            told.append((asked_s, now))
    happens: list[tuple[float, int, Any]] = [
        (asked + data.draw(st.sampled_from([0.0, 0.0, 3.0, 400.0])), 0, each)
        for asked, each in told
    ] + [(begin + 0.5, 1, begin) for begin in begins]
    copy = shutil.copyfile(empty, empty.with_name("copy.sqlite"))
    with Store.open(copy) as store:
        for _, is_seen, what in sorted(happens, key=lambda each: each[:2]):
            if is_seen:
                watched(store, 7, what)
            else:
                store.put_facts([what])
        store.put_facts(over)
        found = [(each.started, each.state, each.energy_j) for each in store.jobs()]
    states = ["requeued"] * (starts - 1) + ["completed"]
    assert sorted(found) == [
        (begin, state, 1000.0) for begin, state in zip(begins, states, strict=True)
    ]


def test_groups_that_come_one_after_the_other_while_a_job_runs_are_one_job(place: str) -> None:
    """Steps of an allocation that was asked for elsewhere: each makes the job's group anew."""
    known = {"submitted": START - 5, "nodes": ("n1",), "cpus": 2}
    with Store.open(place) as store:
        for begin in (START, START + 100, START + 300):
            watched(store, 7, begin)
        store.put_facts([facts(7, state="running", started=START - 1, asked=START + 150, **known)])
        # Of the last it cannot be told yet: it may be another start.
        assert len(store.jobs()) == 2
        store.put_facts(
            [facts(7, state="completed", started=START - 1, ended=START + 400, **known)]
        )
        [record] = store.jobs()
        assert (record.energy_j, record.looks, record.hosts) == (3000.0, 3, ("n1",))
        assert record.peak_power_w == pytest.approx(100.0)
        assert store.check().is_sound


def test_jobs_of_two_clusters_are_two(place: str) -> None:
    with Store.open(place) as store:
        for host, cluster in (("a1", "alpha"), ("b1", "beta")):
            tick = Watcher(host=host, time=START).tick([unit(4, started=START)])
            store.append(replace(tick, cluster=cluster))
            store.put_facts([facts(4, state="pending", submitted=START + 9, cluster=cluster)])
        for host, cluster in (("a1", "alpha"), ("b1", "beta")):
            store.put_facts(
                [
                    facts(
                        4,
                        name=cluster,
                        state="running",
                        started=START,
                        nodes=(host,),
                        submitted=START - 9,
                        cluster=cluster,
                    )
                ]
            )
        found = store.jobs(now=START + 5)
        assert sorted(
            (job.cluster, job.name, job.hosts, job.state) for job in found if job.hosts
        ) == [
            ("alpha", "alpha", ("a1",), "running"),
            ("beta", "beta", ("b1",), "running"),
        ]
        assert [
            job.cluster for job in store.jobs(clusters=["beta"], states=["running"], now=START + 5)
        ] == ["beta"]
        assert store.waiting("slurm", cluster="alpha") == [("4", START + 9)]


@pytest.mark.parametrize("facts_first", [True, False])
def test_a_job_is_known_by_the_name_of_its_group_until_its_number_is(
    place: str, facts_first: bool
) -> None:
    name = "s5K1KKYAYG5D00"
    seen = Unit(source="slurm", job_id=name, sluid=name, started=START)
    known = facts(4711, state="running", started=START, nodes=("n1", "n2"), sluid=name)
    with Store.open(place) as store:
        if facts_first:
            store.put_facts([known])
        here = Watcher(time=START)
        store.append(here.tick([seen]))
        if not facts_first:
            assert [job.shown_id for job in store.jobs()] == [name]
            store.put_facts([known])
        # On another node it is seen with its number, and here from now on, too.
        numbered = replace(seen, job_id="4711")
        store.append(Watcher(host="n2", time=START).tick([numbered]))
        store.append(here.tick([numbered]))
        [record] = store.jobs()
        assert (record.job_id, record.shown_id, record.energy_j) == ("4711", "4711", 3000.0)
        # A start after a requeue has a name of its own.
        other = "s5K1KKYAYG5D01"
        again = Unit(source="slurm", job_id=other, sluid=other, started=START + 50)
        store.append(here.tick([again]))
        store.put_facts(
            [facts(4711, state="running", started=START + 50, nodes=("n1",), sluid=other)]
        )
        assert [job.started for job in store.jobs()] == [START, START + 50]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("gap_s", [1, 20, 3000])
@pytest.mark.parametrize("sluids", [("s5K1KKYAYG5D00", "s5K1KKYAYG5D01"), None])
def test_a_start_on_another_node_soon_after_a_requeue_is_a_job_of_its_own(
    empty: Path, sluids: tuple[str, str] | None, gap_s: int, late: bool, waits: bool
) -> None:
    """Whether the end of the first start is told before the next one is seen, or after."""
    first, second = ({"sluid": each} for each in sluids) if sluids else ({}, {})
    begin = START + 200 + gap_s
    told = {"started": START, "nodes": ("n1",), "submitted": START - 5, "restarts": 0, **first}
    again = {"submitted": START + 200, "restarts": 1, **second}
    over = facts(7, state="preempted" if waits else "requeued", ended=START + 200, **told)
    copy = shutil.copyfile(empty, empty.with_name("copy.sqlite"))
    with Store.open(copy) as store:
        store.append(Watcher(time=START).tick([unit(7, started=START, **first)]))
        if not late:
            store.put_facts([facts(7, state="running", **told), over])
            if waits:
                store.put_facts([facts(7, state="pending", **again)])
        seen = unit(7, started=begin + 0.5, **second)
        store.append(Watcher(host="n2", time=begin).tick([seen]))
        if late:
            store.put_facts([over])
        store.put_facts([facts(7, state="running", started=begin, nodes=("n2",), **again)])
        found = [(each.started, each.hosts, each.energy_j) for each in store.jobs()]
    assert found == [(START, ("n1",), 1000.0), (begin, ("n2",), 1000.0)]


@pytest.mark.parametrize(("off_s", "starts"), [(1.5, 1), (-30, 1), (5, 2)])
def test_a_node_that_a_requeued_start_had_is_its_part_as_far_as_clocks_agree(
    empty: Path, off_s: float, starts: int
) -> None:
    copy = shutil.copyfile(empty, empty.with_name("copy.sqlite"))
    known = {"started": START, "ended": START + 100, "nodes": ("n1", "n2")}
    with Store.open(copy) as store:
        watched(store, 7, START)
        store.put_facts([facts(7, state="requeued", **known)])
        watched(store, 7, START + 100 + off_s, host="n2")
        assert len(store.jobs()) == starts


def test_starts_of_two_names_within_a_moment_are_two(empty: Path) -> None:
    copy = shutil.copyfile(empty, empty.with_name("copy.sqlite"))
    with Store.open(copy) as store:
        for number in range(2):
            known = {"started": START + number, "sluid": f"s5K1KKYAYG5D0{number}"}
            store.put_facts([facts(7, state="requeued", ended=START + number, **known)])
        assert [each.started for each in store.jobs()] == [START, START + 1]


@pytest.mark.parametrize(
    ("cluster", "left"), [("alpha", []), ("", []), ("beta", [("9", START + 1)])]
)
def test_a_wait_on_another_cluster_is_left_where_old_ones_are_dropped(
    empty: Path, cluster: str, left: list[tuple[str, float]]
) -> None:
    copy = shutil.copyfile(empty, empty.with_name("copy.sqlite"))
    begun = {"submitted": START, "started": START + 5, "cluster": "alpha"}
    with Store.open(copy) as store:
        store.put_facts([facts(8, state="pending", submitted=START + 1, cluster=cluster)])
        store.put_facts([facts(9, state="running", **begun)])
        with store._database.writing() as connection:
            # As stores of before hold it: the same job twice.
            connection.execute(sa.update(jobs).values(job_id="9"))
            drop_old_waits(connection)
        assert store.waiting("slurm") == left
        assert store.check().is_sound
