"""Jobs that end between two ticks: what they used lies in the time in which they were there."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from lowtide.monitor.tick import Tick
from lowtide.store import JobRecord, Question, Store
from lowtide.store.accounts import sum_up
from support.ticks import START, Watcher, facts, unit


def ending(tick: Tick, **moments: float) -> Tick:
    """The tick in which some units ended."""
    ended = [moments.get(f"job_{each.job_id}", math.nan) for each in tick.units]
    return replace(tick, ended=np.array(ended))


def test_a_job_is_seen_up_to_its_end(place: str) -> None:
    job, other = unit(1, started=START + 4), unit(2)
    watcher = Watcher()
    with Store.open(place) as store:
        for _ in range(3):
            store.append(watcher.tick([job, other], gpus=1))
        store.append(ending(watcher.tick([job, other], gpus=1), job_1=START + 32.5))
        check_end(store, watcher.time)
    # From the chunks it is the same.
    with Store.open(place, readonly=True) as store:
        check_end(store, watcher.time)


def check_end(store: Store, now: float) -> None:
    """Check all that is known of a job that ended within its last tick, and of one that goes on."""
    [record, goes_on] = store.jobs(now=now)
    assert record.seen_s == pytest.approx(28.5)
    assert record.elapsed_s == pytest.approx(28.5)
    assert record.ended == pytest.approx(START + 32.5)
    assert record.energy_j == 4000.0
    assert record.mean_power_w * record.seen_s == pytest.approx(record.energy_j)
    assert record.mean_cpus == pytest.approx(80.0 / 28.5)
    assert record.mean_memory_bytes == pytest.approx(1e9)
    # What its GPUs drew in a tick it drew while it was there.
    assert record.gpu_j == pytest.approx(0.3 * record.energy_j)
    assert (record.state, goes_on.state) == (None, "running")
    assert math.isnan(goes_on.ended)
    assert goes_on.seen_s == 40.0
    course = store.series(record)
    assert course.times[-1] == pytest.approx(START + 32.5)
    assert course.step_s.sum() == pytest.approx(28.5)
    assert course.columns["energy_j"].sum() == pytest.approx(4000.0)
    gpu_j = (course.columns["gpu_w"] * course.step_s).sum()
    assert gpu_j == pytest.approx(1200.0, rel=1e-3)


def test_a_job_that_was_seen_once_has_a_length_where_its_end_was_seen(file: str) -> None:
    job, unseen = unit(1, started=START + 3.25), unit(2, started=START + 3.25)
    watcher = Watcher()
    with Store.open(file) as store:
        store.append(ending(watcher.tick([job, unseen]), job_1=START + 4.75))
        store.append(watcher.tick([]))
        [record, open_end] = store.jobs(now=watcher.time)
        [row] = sum_up(store, Question(start=START), by="user", now=watcher.time).rows
    assert (record.elapsed_s, record.ended) == (1.5, START + 4.75)
    assert record.known_s == 1.5
    assert record.mean_power_w == pytest.approx(1000.0 / 1.5)
    assert math.isnan(open_end.elapsed_s)
    assert math.isnan(open_end.known_s)
    assert (row.unknown_duration, row.core_s) == (1, pytest.approx(4 * 1.5))


def test_an_end_that_lies_before_what_was_used_is_not_believed(file: str) -> None:
    job, quiet = unit(1), unit(2)
    watcher = Watcher()
    with Store.open(file) as store:
        store.append(watcher.tick([job, quiet]))
        last = ending(watcher.tick([job, quiet], watts={"2": 0.0}, cpus=0.0), job_1=START + 1)
        store.append(last)
        [record, _] = store.jobs(now=watcher.time)
    assert (record.seen_s, record.ended) == (20.0, START + 20.0)


def test_a_peak_is_none_of_a_moment(file: str) -> None:
    job = unit(1)
    watcher = Watcher()
    with Store.open(file) as store:
        store.append(watcher.tick([job]))
        # It keeps its share of the floor for the tick, and was gone after a hundredth of it.
        store.append(ending(watcher.tick([job], watts={"1": 10.0}), job_1=START + 10.1))
        [record] = store.jobs(now=watcher.time)
    assert record.peak_power_w == pytest.approx(100.0)


def test_what_was_there_for_a_moment_only_drew_most_then(file: str) -> None:
    job = unit(1, started=START + 3.0)
    watcher = Watcher()
    with Store.open(file) as store:
        store.append(ending(watcher.tick([job]), job_1=START + 3.5))
        [record] = store.jobs(now=watcher.time)
    assert record.peak_power_w == pytest.approx(record.mean_power_w)
    assert record.peak_cpus == pytest.approx(record.mean_cpus)


def test_who_comes_back_has_not_ended(file: str) -> None:
    job = unit(1)
    watcher = Watcher()
    with Store.open(file) as store:
        store.append(watcher.tick([job]))
        store.append(ending(watcher.tick([job]), job_1=START + 15))
        store.append(watcher.tick([]))
        store.append(watcher.tick([job]))
        [record] = store.jobs(now=watcher.time)
    assert math.isnan(record.ended)
    assert record.state == "running"


@pytest.mark.parametrize(("seen", "length_s"), [(False, 34.0), (True, 34.6)])
def test_what_slurm_says_of_the_end_cuts_what_was_seen(
    file: str, *, seen: bool, length_s: float
) -> None:
    """Slurm's own seff divides by its elapsed time; a seen end is finer than whole seconds."""
    job = unit(1)
    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(3):
            store.append(watcher.tick([job]))
        last = watcher.tick([job])
        store.append(ending(last, job_1=START + 34.6) if seen else last)
        store.put_facts([facts(1, state="completed", started=START, ended=START + 34, cpus=4)])
        [record] = store.jobs(now=watcher.time)
        table = store.table(Question(), now=watcher.time)
    assert record.elapsed_s == 34.0
    assert record.seen_s == pytest.approx(length_s)
    assert record.cpu_efficiency == pytest.approx(80.0 / length_s / 4)
    assert record.mean_power_w * record.seen_s == pytest.approx(4000.0)
    assert record.mean_memory_bytes == pytest.approx(1e9)
    assert table.mean_power_w[0] == pytest.approx(record.mean_power_w)
    assert table.cpu_efficiency[0] == pytest.approx(record.cpu_efficiency)


def _restarted(file: str, *, job: dict[str, str], started: float) -> list[JobRecord]:
    """What is known of a job whose oldest process was another after a restart."""
    first = Watcher()
    with Store.open(file) as store:
        for _ in range(3):
            store.append(first.tick([unit(950, **job)]))
    later = Watcher(time=first.time + 5.0)
    with Store.open(file) as store:
        for _ in range(3):
            store.append(later.tick([unit(950, started=START + started, **job)]))
        return store.jobs(now=later.time)


@pytest.mark.parametrize("source", ["slurm", "process"])
def test_a_job_whose_oldest_process_has_ended_is_the_same_after_a_restart(
    file: str, source: str
) -> None:
    [record] = _restarted(file, job={"source": source}, started=6.0)
    assert (record.cpu_s, record.energy_j, record.looks) == (120.0, 6000.0, 6)
    assert record.started == START
    assert record.unmetered_s == pytest.approx(5.0)


def test_what_began_after_the_last_look_is_another(file: str) -> None:
    records = _restarted(file, job={"source": "process"}, started=33.0)
    assert [record.cpu_s for record in records] == [60.0, 60.0]


def test_what_had_ended_at_the_last_look_does_not_go_on(file: str) -> None:
    first = Watcher()
    with Store.open(file) as store:
        store.append(first.tick([unit(5, source="process")]))
        last = first.tick([unit(5, source="process"), unit(6, source="process")])
        store.append(ending(last, job_5=first.time))
    later = Watcher(time=first.time)
    with Store.open(file) as store:
        store.append(later.tick([unit(5, source="process", started=START + 19.0)]))
        records = store.jobs(ids=["5"], now=later.time)
    assert [record.energy_j for record in records] == [2000.0, 1000.0]
