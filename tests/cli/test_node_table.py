"""A tick for people, for scripts and for programs."""

from __future__ import annotations

import json
import math

import pytest

from lowtide.cli.node import (
    COLUMNS,
    document_of,
    notes_of,
    rows_of,
    showing,
    shown_columns,
)
from lowtide.cli.output import TABLE, Form, cells_of, plain_table
from lowtide.monitor.tick import Tick
from support.snapshots import GIB, gpu, tick, unit

TWO = (unit("1", user="ada", name="train"), unit("2", user="bob"))


def cells(step: Tick, job: str) -> dict[str, str]:
    header, rows = cells_of(shown_columns(step), rows_of(step))
    (row,) = (row for row in rows if row[0] == job)
    return dict(zip(header, row, strict=True))


def test_sums_that_lack_a_part_are_marked_and_the_mark_is_explained() -> None:
    step = tick(
        TWO,
        energy_j=[1000.0, 1000.0],
        measured_j=[1000.0, 0.0],
        unmetered_s=[10.0, 0.0],
        unpriced_j=[0.0, 400.0],
        carbon_g=[2.0, 3.0],
    )
    first, second = cells(step, "1"), cells(step, "2")
    assert (first["energy"], first["CO2e"]) == (">1 kJ", ">2 g")
    assert (second["energy"], second["CO2e"]) == ("~1 kJ", ">~3 g")
    assert [note[0] for note in notes_of(step)] == ["~", ">"]


def test_whole_sums_and_rounding_have_no_mark() -> None:
    step = tick(TWO, energy_j=1000.0, measured_j=1000.0, unpriced_j=1e-8)
    assert cells(step, "1")["CO2e"] == "0.5 g"
    assert notes_of(step) == []
    assert "GPUs" not in cells(step, "1"), "there are none"


def test_without_any_grid_grams_are_unknown_rather_than_at_least_nothing() -> None:
    step = tick(TWO, carbon_g=math.nan, unpriced_j=1000.0)
    assert cells(step, "1")["CO2e"] == "---"
    assert notes_of(step) == []


def test_what_is_no_jobs_has_energy_and_grams_too() -> None:
    step = tick(TWO, node_carbon_g=4.0, idle_carbon_g=2.5, unattributed_carbon_g=0.5)
    assert [cells(step, name)["CO2e"] for name in ("idle", "unattributed", "node")] == [
        *("2.5 g", "0.5 g", "4 g")
    ]
    lacking = tick(TWO, node_carbon_g=4.0, node_unpriced_j=5.0, node_unmetered_s=3.0)
    assert cells(lacking, "node")["CO2e"] == ">4 g"
    assert cells(lacking, "node")["energy"] == ">9 kJ"


def test_which_gpus_a_job_holds() -> None:
    gpus = (gpu("gpu-0", {0: 1.0}), gpu("gpu-1/3", {0: 0.4, 1: 0.6}), gpu("gpu-2"))
    step = tick(TWO, gpus=gpus, gpus_busy=[0.8, math.nan], reserved_gpus=[2.0, 1.0])
    assert cells(step, "1")["on GPU"] == "0, 1/3"
    assert cells(step, "2")["on GPU"] == "1/3"
    assert cells(step, "2")["GPUs"] == "---/1"
    document = document_of(step)
    assert [job["gpus"] for job in document["jobs"]] == [["gpu-0", "gpu-1/3"], ["gpu-1/3"]]
    assert document["gpus"][1]["holders"] == [
        {"job_id": "1", "source": "slurm", "share": 0.4},
        {"job_id": "2", "source": "slurm", "share": 0.6},
    ]
    assert document["gpus"][2]["holders"] == []


def test_rejected_readings_are_told() -> None:
    assert notes_of(tick(TWO, rejected=1)) == ["1 reading made no sense, and was left out."]
    assert notes_of(tick(TWO, rejected=12)) == ["12 readings made no sense, and were left out."]
    assert document_of(tick(TWO, rejected=12))["rejected"] == 12


def test_programs_get_everything(capsys: pytest.CaptureFixture[str]) -> None:
    step = tick(TWO, received_bytes=[5.0, math.nan], node_carbon_g=4.0, marginal_g_per_kwh=700.0)
    with showing(form=Form(as_json=True), once=True) as show:
        show(step)
    document = json.loads(capsys.readouterr().out)
    first, second = document["jobs"]
    assert (first["received_bytes"], second["received_bytes"]) == (5.0, None)
    assert (first["cpu_wait_s"], first["memory_wait_s"], first["io_wait_s"]) == (0.5, None, 0.25)
    assert (first["unmetered_s"], first["unpriced_j"]) == (0.0, 0.0)
    assert document["node_carbon_g"] == 4.0
    assert document["idle_carbon_g"] is None
    assert document["marginal_g_per_kwh"] == 700.0
    assert document["node_w"] == pytest.approx(
        document["idle_w"]
        + document["unattributed_w"]
        + sum(job["power_w"] for job in document["jobs"])
    )


def test_columns_are_plain_numbers_in_si_units() -> None:
    step = tick(TWO, power_w=[12.25, math.nan], memory_bytes=GIB, measured=False)
    header, cells_of = plain_table(rows_of(step), COLUMNS)
    rows = [dict(zip(header, row, strict=True)) for row in cells_of]
    assert [row["job_id"] for row in rows] == ["1", "2", "idle", "unattributed", "node"]
    assert rows[0]["memory_bytes"] == "1073741824"
    assert [row["power_w"] for row in rows] == ["12.25", "", "50", "5", "67.25"]
    assert [row["power"] for row in rows] == ["estimated", "", *["estimated"] * 3]
    numbers = set(header) - {
        "job_id",
        "source",
        "user",
        "gpus",
        "power",
        "name",
        "synthetic",
    }
    for row in rows:
        for name in numbers:
            assert not row[name] or math.isfinite(float(row[name]))


def test_many_ticks_into_a_pipe_are_blocks_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with showing(form=TABLE, once=False) as show:
        show(tick(TWO))
        show(tick(TWO))
    assert capsys.readouterr().out.count("unattributed") == 2
    with showing(form=TABLE, once=False, quiet=True) as show:
        show(tick(TWO))
    assert capsys.readouterr().out == ""
