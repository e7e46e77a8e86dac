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
    assert study.main([str(tmp_path), "small", "seed=11"]) == 0
    told = capsys.readouterr().out
    assert "| load | 0.95 |" in told and "| error | 0.3 |" in told
    table = study.pl.DataFrame(study.known_cells(tmp_path / "cells.csv"))
    assert (table["saved"] <= table["most"] + 1e-9).all()
    most, saved, gap = (table[name].to_numpy() for name in ("most", "saved", "gap"))
    assert (1 - most) / (1 - saved) == pytest.approx(1 - gap, abs=1e-6)
    for axis in study.SMALL:
        assert (tmp_path / f"limited-machines-{axis}.svg").stat().st_size > 1000
    # What is known is not computed again, and the table is the same.
    assert study.main([str(tmp_path), "small", "seed=11"]) == 0
    assert capsys.readouterr().out.strip() == told[told.index("| varied") :].strip()


def test_slack_and_stops_are_what_a_cell_says(study):
    base = study.jobs_of(study.Cell(), 40, 1)[1]
    twice = study.jobs_of(study.Cell(slack=2.0), 40, 1)[1]
    fixed = study.jobs_of(study.Cell(flexible=0.0), 40, 1)[1]
    still = study.jobs_of(study.Cell(stops="never"), 40, 1)[1]
    assert twice.slack_s.sum() > base.slack_s.sum() > fixed.slack_s.sum() == 0
    assert (still.interruptible == study.INTERRUPTIBLE.index("never")).all()
