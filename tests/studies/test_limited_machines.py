"""The study of limited machines, a small version of it: the command that its page names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("limited_machines")
    for name in ("limited_machines", "cluster", "cluster_oracle"):
        sys.modules.pop(name, None)


def test_the_small_study_stays_below_its_bound_and_draws_its_figures(study, tmp_path, capsys):
    asked = ["small", "seed=11", "jobs=16", "drawn=1"]
    assert study.main([str(tmp_path), *asked]) == 0
    told = capsys.readouterr().out
    assert "| 50 % |" in told and "| 30 % wrong |" in told and "| all | 1 |" in told
    rows = study.known_cells(tmp_path / "cells.csv")
    # The base is measured once, and is a part of every axis.
    assert len(rows) == 1 + 1 + 1 + 1
    for row in rows:
        assert row["plan"] <= row["most"] + 1e-9
        assert row["plan_late"] >= row["must_be_late"]
    base, wrong = rows[0], rows[2]
    assert wrong["forecast"] == "30 % wrong"
    # Who does not look at forecasts is not moved by them.
    assert all(base[key] == wrong[key] for key in ("plan", "most", "booked", "start"))
    for name in (*study.SMALL, "drawn"):
        assert (tmp_path / f"limited-machines-{name}.png").stat().st_size > 1000
    # What is known is not computed again, and the tables are the same.
    assert study.main([str(tmp_path), *asked]) == 0
    assert capsys.readouterr().out == told[told.index("| load of") :]


def test_slack_and_stops_are_what_a_cell_says(study):
    base = study.jobs_of(study.Cell(), 40, 1)[1]
    twice = study.jobs_of(study.Cell(slack=2.0), 40, 1)[1]
    fixed = study.jobs_of(study.Cell(flexible=0.0), 40, 1)[1]
    still = study.jobs_of(study.Cell(stops="never"), 40, 1)[1]
    assert twice.slack_s.sum() > base.slack_s.sum() > fixed.slack_s.sum() == 0
    assert (still.interruptible == study.INTERRUPTIBLE.index("never")).all()
