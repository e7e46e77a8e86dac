"""From a name to a grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import FileProblem, InvalidInput, UnknownName
from lowtide.formats import write_signal
from lowtide.grid import Grid
from lowtide.grids import synthetic_grid
from lowtide.grids.resolve import Resolved, kind_of, resolve
from lowtide.signal import Signal

DAY_S = 86_400.0
START = 19_900 * DAY_S


def test_what_a_name_stands_for(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.touch()
    assert kind_of("coal") == "synthetic"
    assert kind_of("electricitymaps:DE+watttime:DE") == "zone"
    assert kind_of(str(file), files=True) == "file"
    with pytest.raises(UnknownName, match="unknown grid 'cole'"):
        kind_of("cole:1")
    with pytest.raises(FileProblem, match="neither a file nor a synthetic grid"):
        kind_of("cole", files=True)


def test_a_synthetic_grid_begins_with_its_day_and_reaches_far_enough() -> None:
    found = resolve("windy", since=START + 7000.0, until=START + 2 * DAY_S + 1.0, seed=2).grid
    assert isinstance(found, Grid)
    assert (found.average.start, found.average.end) == (START, START + 3 * DAY_S)
    same = synthetic_grid("windy", start=START, days=3, seed=2)
    assert found.average.values.tolist() == same.average.values.tolist()
    assert found.price is not None


def test_a_file_is_the_signal_that_it_holds(tmp_path: Path) -> None:
    price = Signal.from_values(
        [1.0, 2.0], start=START, step_s="1h", kind="price", basis=None, unit="EUR/kWh"
    )
    write_signal(price, tmp_path / "price.csv")
    found = resolve(str(tmp_path / "price.csv"), kind="file")
    assert isinstance(found.grid, Signal)
    assert found.grid.values.tolist() == [1.0, 2.0]
    with pytest.raises(InvalidInput, match="tells no average intensity"):
        _ = found.average
    assert Resolved(name="x", signals={"average": price}).note(START) == ""
