"""From what was kept to what can be judged."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.hindsight.job import NodeUse, behaviour_of, binned, mean_of
from lowtide.monitor.verdicts import CANNOT_TELL, misuses_gpu_node
from lowtide.store import Series, Store
from support.snapshots import GIB, unit
from support.watched import FACTS, START, course


def series(steps: list[float], values: list[float]) -> Series:
    step_s = np.array(steps, dtype=np.float64)
    return Series(
        times=START + np.cumsum(step_s), step_s=step_s, columns={"x": np.array(values, dtype=float)}
    )


def test_means_are_over_the_time_that_is_known() -> None:
    told = series([10, 30, 20], [1.0, math.nan, 4.0])
    assert mean_of(told, "x") == pytest.approx(3.0)
    edges = START + np.array([0.0, 10.0, 25.0, 45.0, 60.0])
    assert binned(told, "x", edges).tolist() == pytest.approx([1, math.nan, 4, 4], nan_ok=True)
    assert np.isnan(binned(told, "y", edges)).all()
    assert math.isnan(mean_of(told, "y"))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=20))
def test_bins_keep_the_amount(steps: list[tuple[int, int]]) -> None:
    told = series([float(step) for step, _ in steps], [float(value) for _, value in steps])
    edges = np.linspace(START, float(told.times[-1]), 8)
    amount = float((binned(told, "x", edges) * np.diff(edges)).sum())
    assert amount == pytest.approx(sum(step * value for step, value in steps), abs=1e-4)


def test_what_a_job_and_its_node_had(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        for tick in course(unit(4711, started=START), hours=2.0, step_s=600.0):
            store.append(tick)
        store.put_facts([FACTS])
        (record,) = store.jobs(ids=["4711"])
        told = behaviour_of(record, store.series(record), [NodeUse.of(store.node_series("n1"))])
    assert told.length_s == 7200
    assert (told.cpus.asked, told.cpus.node, told.cpus.mean, told.cpus.peak) == (16, 64, 8, 8)
    assert (told.memory.asked, told.memory.node) == (64 * GIB, 256 * GIB)
    assert told.memory.peak == 40 * GIB
    assert (told.gpus.asked, told.gpus.node, told.gpus.peak) == (1, 8, pytest.approx(0.8))
    # One of eight GPUs of 80 GiB.
    assert (told.gpu_memory.asked, told.gpu_memory.peak) == (80 * GIB, 20 * GIB)
    assert told.load == pytest.approx(8 / 64, rel=0.01)
    ended = replace(record, state="out_of_memory")
    assert (told.out_of_memory, behaviour_of(ended, series([1], [0]), []).out_of_memory) == (
        False,
        True,
    )


def test_a_job_that_was_seen_once_has_no_length(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        store.append(next(iter(course(unit(4711, started=START)))))
        (record,) = store.jobs(ids=["4711"])
        told = behaviour_of(record, store.series(record), [])
    assert math.isnan(told.length_s)
    assert math.isnan(told.cpus.node)


def test_gpus_of_which_little_is_known_are_not_unused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        for number, tick in enumerate(course(unit(4711, started=START), step_s=600.0)):
            # It holds nothing at first, and then an instance whose use nobody tells.
            busy = np.full(len(tick.units), 0.0 if number == 0 else math.nan)
            store.append(replace(tick, gpus_busy=busy))
        (record,) = store.jobs(ids=["4711"])
        told = behaviour_of(record, store.series(record), [NodeUse.of(store.node_series("n1"))])
    assert math.isnan(told.gpus.peak)
    assert misuses_gpu_node(told).answer == CANNOT_TELL
