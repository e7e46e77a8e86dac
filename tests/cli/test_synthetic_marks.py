"""Grams of a grid that is none say so, in whatever was kept and in every form it is shown in."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.cli.node import COLUMNS, document_of, notes_of, rows_of
from lowtide.cli.output import plain_table
from lowtide.grids import synthetic_grid
from lowtide.monitor.metrics import node_page
from lowtide.store import Store
from lowtide.watching.emissions import Emissions
from support.commands import run
from support.ticks import Watcher, unit


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """A store of two nodes: one was watched on a synthetic grid for a while, the other never."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("LOWTIDE_STORE", str(path))
    begin = time.time() - 7200
    with Store.open(path) as store:
        for host, made_up, job in (("n1", True, 1), ("n2", False, 2)):
            watcher = Watcher(host=host, time=begin)
            for _ in range(70):
                tick = watcher.tick([unit(job, started=begin)])
                store.append(replace(tick, synthetic=made_up))
        # Later on the first node's grid was a real one.
        watcher = Watcher(host="n1", time=begin + 3600)
        for _ in range(5):
            store.append(watcher.tick([unit(3, started=begin + 3600)]))
    return begin


def test_what_was_kept_knows_without_the_option(
    kept: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(readonly=True) as store:
        assert store.synthetic() == [("n1", pytest.approx(kept), pytest.approx(kept + 700))]
    jobs = {each["job_id"]: each for each in json.loads(run(capsys, "jobs", "--json").out)}
    assert {name: job["synthetic"] for name, job in jobs.items()} == {
        "1": True,
        "2": False,
        "3": False,
    }
    lines = [line.split("|") for line in run(capsys, "jobs", "-P").out.splitlines()]
    assert lines[0][-1] == "synthetic"
    assert {line[0]: line[-1] for line in lines[1:]} == {"1": "yes", "2": "no", "3": "no"}
    assert "synthetic grid, not of a real one, of 1 of 3 jobs" in run(capsys, "jobs").out
    assert "synthetic" not in run(capsys, "jobs", "-j", "2").out
    assert "synthetic" not in run(capsys, "jobs", "-o", "JobID,Energy").out

    assert "synthetic grid, not of a real one" in run(capsys, "usage").out
    assert json.loads(run(capsys, "usage", "--json").out)["synthetic"] is True
    assert run(capsys, "usage", "-P").out.splitlines()[0].endswith("|synthetic")
    later = ("-S", str(int(kept + 1800)))
    assert json.loads(run(capsys, "usage", *later, "--json").out)["synthetic"] is False
    assert "synthetic" not in run(capsys, "usage", *later).out

    assert json.loads(run(capsys, "show", "1", "--json").out)["synthetic"] is True
    assert "CO2e is that of a synthetic grid" in run(capsys, "show", "1").out
    assert json.loads(run(capsys, "show", "2", "--json").out)["synthetic"] is False
    assert "synthetic grid" not in run(capsys, "show", "2").out
    planned = run(capsys, "show", "2", "--grid", "windy").out
    assert "synthetic grid, not a real one" in planned
    assert "CO2e is that of" not in planned


def test_a_look_at_a_node_says_so_in_every_form() -> None:
    start = 1_720_000_000.0
    grid = synthetic_grid("windy", start=start, days=1)
    assert Emissions(grid=grid).synthetic
    assert not Emissions().synthetic
    for made_up in (True, False):
        tick = replace(Watcher(time=start).tick([unit(1)]), synthetic=made_up)
        assert document_of(tick)["synthetic"] is made_up
        header, rows = plain_table(rows_of(tick), COLUMNS)
        assert header[-1] == "synthetic"
        assert {row[-1] for row in rows} == {"yes" if made_up else "no"}
        assert any("synthetic" in note for note in notes_of(tick)) is made_up
        assert f'lowtide_grid_synthetic{{host="n1"}} {int(made_up)}' in node_page(tick)
