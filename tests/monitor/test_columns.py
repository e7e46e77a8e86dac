"""One place per unit, whatever parts it was read in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from lowtide.monitor.cgroups import Limits
from lowtide.monitor.columns import Columns
from lowtide.monitor.node import Traffic
from lowtide.monitor.snapshot import Unit


@dataclass(eq=False)
class Part:
    """A part of a unit."""

    unit: Unit
    cpu_s: float
    gone: bool = False
    memory_bytes: float = math.nan
    ended_at: float = math.nan
    system_s: float = math.nan
    loose: bool = False
    reserved_cpus: float = math.nan
    allocates: bool = False
    traffic: Traffic = field(default_factory=Traffic)
    limits: Limits = field(default_factory=Limits)

    def __getattr__(self, name: str) -> float:
        """Whatever else is counted is not known of it."""
        return math.nan


def job(started: float, job_id: str = "2") -> Unit:
    return Unit(source="slurm", job_id=job_id, started=started)


@pytest.mark.parametrize("off_s", [0.0, 0.3, 2.0])
def test_a_job_known_by_a_process_before_it_had_a_group_is_one(off_s: float) -> None:
    rows = [Part(job(100.0), 5.0), Part(job(100.0 - off_s), 0.1, gone=True)]
    columns = Columns(rows)  # type: ignore[arg-type]
    assert [unit.job_id for unit in columns.units] == ["2"]
    assert columns.column("cpu_s") == pytest.approx([5.1])


def test_a_number_that_is_used_again_is_another() -> None:
    rows = [Part(job(500.0), 5.0), Part(job(100.0), 9.0, gone=True)]
    columns = Columns(rows)  # type: ignore[arg-type]
    assert columns.column("cpu_s") == pytest.approx([5.0, 9.0])
    assert len({unit.key for unit in columns.units}) == 2


def test_what_ended_twice_is_there_once() -> None:
    group = Unit(source="process", job_id="7", started=50.0)
    rows = [Part(group, 1.0), Part(group, 2.0, gone=True), Part(job(9.0), 1.0, gone=True)]
    columns = Columns(rows)  # type: ignore[arg-type]
    assert columns.column("cpu_s") == pytest.approx([3.0, 1.0])


def test_what_is_there_holds_its_own_memory_and_has_not_ended() -> None:
    rows = [
        Part(job(100.0), 5.0, memory_bytes=7.0),
        Part(job(100.0), 0.1, gone=True, memory_bytes=3.0, ended_at=50.0),
        Part(job(9.0, "3"), 1.0, gone=True, memory_bytes=2.0, ended_at=60.0),
        Part(job(9.0, "3"), 1.0, gone=True, memory_bytes=4.0, ended_at=70.0),
        Part(job(9.0, "4"), 1.0, gone=True, ended_at=80.0),
    ]
    columns = Columns(rows)  # type: ignore[arg-type]
    assert columns.held("memory_bytes") == pytest.approx([7.0, 6.0, np.nan], nan_ok=True)
    assert columns.ended_at() == pytest.approx([np.nan, 70.0, 80.0], nan_ok=True)
    assert Columns(rows[:1]).ended_at() is None  # type: ignore[arg-type]
    assert Columns([]).ended_at() is None
    assert Columns([]).held("memory_bytes").shape == (0,)


def test_time_in_the_kernel_is_known_where_a_part_tells() -> None:
    rows = [
        Part(job(100.0), 5.0, system_s=1.5),
        Part(job(100.0), 0.1, gone=True),
        Part(job(9.0), 1),
    ]
    columns = Columns([*rows, Part(job(0.0, "3"), 2.0)])  # type: ignore[arg-type]
    assert columns.column("system_s") == pytest.approx([1.5, np.nan], nan_ok=True)
    assert np.isnan(Columns(rows[1:2]).column("system_s")).all()  # type: ignore[arg-type]
    assert Columns([]).column("system_s").shape == (0,)
