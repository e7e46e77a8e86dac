"""Two ticks as one: nothing that ended in the first is lost."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from lowtide.store import Store
from lowtide.watching.writer import joined
from support.ticks import START, Watcher, unit

STAYS, GOES, COMES = unit(1), unit(2, started=START + 12), unit(3, started=START + 25)


def test_a_store_that_was_given_two_ticks_as_one_has_the_same_sums(tmp_path: Path) -> None:
    sums = []
    for together in (False, True):
        watcher = Watcher()
        ticks = [
            watcher.tick([STAYS]),
            replace(watcher.tick([GOES, STAYS]), ended=np.array([START + 18.5, math.nan])),
            watcher.tick([STAYS, COMES]),
        ]
        if together:
            ticks[1:] = [joined(ticks[1], ticks[2])]
        with Store.open(tmp_path / f"{together}.sqlite") as store:
            for tick in ticks:
                store.append(tick)
            records = {each.job_id: each for each in store.jobs(now=watcher.time)}
            node = store.node_series("n1")
        sums.append(
            {
                name: (each.energy_j, each.cpu_s, each.seen_s, each.elapsed_s)
                for name, each in records.items()
            }
        )
        drawn_j = sum(each.energy_j for each in records.values())
        rest_j = node.columns["idle_j"].sum() + node.columns["unattributed_j"].sum()
        assert drawn_j + rest_j == pytest.approx(node.columns["energy_j"].sum())
    assert sums[0].keys() == sums[1].keys()
    for name, numbers in sums[0].items():
        assert sums[1][name] == pytest.approx(numbers, nan_ok=True)
    assert sums[0]["2"] == (1000.0, 20.0, 6.5, 6.5)


def test_every_column_has_an_entry_for_each_unit() -> None:
    watcher = Watcher()
    earlier = watcher.tick([GOES, STAYS])
    earlier = replace(
        earlier,
        system_s=np.array([0.25, 0.5]),
        shares=replace(earlier.shares, lacking=frozenset([0])),
        skipped_s=3.0,
    )
    later = replace(watcher.tick([STAYS]), watched_cpu_s=np.array([7.0]), skipped_s=4.0)
    both = joined(earlier, later)
    assert both.units == (STAYS, GOES)
    for owner in (both, both.shares):
        for field in fields(owner):
            if isinstance(column := getattr(owner, field.name), np.ndarray):
                assert len(column) == 2, field.name
    assert both.shares.lacking == {1}
    assert both.skipped_s == 7.0
    np.testing.assert_array_equal(both.system_s, [np.nan, 0.25])
    np.testing.assert_array_equal(both.watched_cpu_s, [7.0, 20.0])
    # Nobody says when it ended: it was there at the earlier tick, and not at the later.
    np.testing.assert_array_equal(both.ended, [np.nan, earlier.time])
    assert (both.time, both.node_energy_j) == (later.time, later.node_energy_j)


def test_where_nothing_ended_it_is_the_later_one() -> None:
    watcher = Watcher()
    earlier, later = watcher.tick([STAYS]), watcher.tick([STAYS])
    assert joined(earlier, later).ended is None
