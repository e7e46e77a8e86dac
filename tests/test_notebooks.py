"""What notebooks show and draw, frames in and out, and the tutorial that is one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import lowtide as lt
from lowtide.errors import InvalidSignal, UnknownName
from lowtide.market import Site, plan_sites
from lowtide.studies.study import read_study
from support.studies import write_study

START = datetime(2024, 7, 1, tzinfo=UTC)
NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.ipynb"))


def curve(values: Any = (300.0, 100.0, 200.0, 250.0)) -> lt.Signal:
    return lt.Signal.from_values(values, start=START, step_s="1h", zone="DE")


def drawn_as(chart: Any) -> dict[str, Any]:
    document: dict[str, Any] = chart.to_dict(validate=False)
    assert "$schema" in document
    return document


def test_frames_of_polars_go_there_and_back() -> None:
    rng = np.random.default_rng(1)
    for step_s in (60.0, 900.0, 3600.0, 86_400.0):
        signal = lt.Signal.from_values(rng.uniform(0, 900, 50), start=START, step_s=step_s)
        again = lt.Signal.from_polars(signal.to_polars())
        assert (again.start, again.step_s) == (signal.start, signal.step_s)
        assert np.array_equal(again.values, signal.values)
    frame = curve().to_polars()
    assert frame["time"].dtype.time_zone == "UTC"
    local = frame.with_columns(pl.col("time").dt.convert_time_zone("Europe/Berlin"))
    assert lt.Signal.from_polars(local).start == START.timestamp()
    renamed = frame.rename({"time": "when", "value": "EUR/MWh"})
    price = lt.Signal.from_polars(
        renamed, time="when", value="EUR/MWh", kind="price", unit="EUR/MWh"
    )
    assert price.values.tolist() == [0.3, 0.1, 0.2, 0.25]


@pytest.mark.parametrize("rows", [[0], [0, 1, 3], [0, 2, 1], [1, 0], [0, 0, 1]])
def test_frames_that_are_no_steps_are_refused(rows: list[int]) -> None:
    frame = pl.DataFrame({"time": [START + timedelta(hours=row) for row in rows], "value": rows})
    with pytest.raises(InvalidSignal, match=r"one step apart|at least two rows"):
        lt.Signal.from_polars(frame)


def test_frames_that_hold_something_else_are_refused() -> None:
    frame = curve().to_polars()
    with pytest.raises(UnknownName, match=r"column of the frame 'price'.*value"):
        lt.Signal.from_polars(frame, value="price")
    for times in (frame["time"].cast(pl.String), pl.Series([None, *frame["time"][1:]])):
        with pytest.raises(InvalidSignal, match="'time' of a frame holds times"):
            lt.Signal.from_polars(frame.with_columns(time=times))

    class Frame(dict[str, Any]):
        columns = ("value",)
        index = range(3)

    with pytest.raises(InvalidSignal, match=r"the index of a frame holds times.*not 0 in row 1"):
        lt.Signal.from_pandas(Frame(value=[3.0, 1.0, 2.0]))
    with pytest.raises(UnknownName, match="column of the frame 'when'"):
        lt.Signal.from_pandas(Frame(value=[3.0, 1.0, 2.0]), time="when")

    class Series(list[float]):
        index = range(2)

    with pytest.raises(InvalidSignal, match="leave time out"):
        lt.Signal.from_pandas(Series([1.0, 2.0]), time="when")


def test_frames_of_pandas() -> None:
    # Whatever has an index of datetimes, and columns by name.
    class Frame(dict[str, Any]):
        columns = ("value", "when")

    times = [START + timedelta(hours=hour) for hour in range(3)]
    frame = Frame(value=[3.0, 1.0, 2.0], when=[each.replace(tzinfo=None) for each in times])
    frame.index = times  # type: ignore[attr-defined]
    for signal in (lt.Signal.from_pandas(frame), lt.Signal.from_pandas(frame, time="when")):
        assert signal.start == START.timestamp()
        assert signal.values.tolist() == [3, 1, 2]

    class Series(list[float]):
        index = times

    assert lt.Signal.from_pandas(Series([3.0, 1.0, 2.0]), zone="FR").zone == "FR"


def test_everything_has_a_picture_and_words(tmp_path: Path) -> None:
    signal = curve([300.0, 100.0, 200.0, 250.0] * 12)
    assert drawn_as(signal.chart())
    job = lt.Job(id="a", arrival=START, deadline="+6h", profile=lt.PowerProfile.constant(100, "2h"))
    best = lt.plan(job, signal)
    assert drawn_as(best.chart(signal, deadline=job.deadline))
    jobs = lt.Workload(
        arrival=START.timestamp() + np.arange(6) * 600.0,
        deadline=START.timestamp() + 86_400,
        work_s=3600,
        power=100,
    )
    cluster = lt.Cluster(nodes=2, cpus_per_node=1)
    done = lt.simulate(jobs, signal, cluster=cluster, policy="oracle", discipline="easy")
    document = drawn_as(done.chart())
    assert len(document["vconcat"]) == 4
    assert "<td>deadline_misses</td><td>0</td>" in done._repr_html_()
    together = lt.plan_cluster(jobs, cluster, signal, effort=0.02)
    assert drawn_as(together.chart())
    page = together._repr_html_()
    assert "6 jobs" in page and "<th>plan</th><th>EASY</th>" in page
    assert "<td>late jobs</td><td>0</td><td>0</td>" in page and "one more node saves" in page
    price = lt.Signal.from_values(
        [0.3, 0.1] * 24, start=START, step_s="1h", kind="price", unit="EUR/kWh"
    )
    grid = lt.Grid(average=signal, price=price)
    assert len(drawn_as(grid.chart())["vconcat"]) == 2
    assert "EUR/kWh" in grid._repr_html_()
    many = lt.plan_many([job] * 12, signal)
    assert [len(rows) for rows in drawn_as(many.chart())["datasets"].values()] == [12]
    assert "and 2 more" in many._repr_html_()
    sites = plan_sites(
        jobs,
        {name: Site(cluster=cluster, signal=signal) for name in ("here", "north")},
        effort=0.02,
    )
    assert len(drawn_as(sites.chart())["vconcat"]) == 4
    assert "2 sites" in sites._repr_html_()
    few = {"grids": ["sunny"], "waits": ["6h", "24h"], "lengths": ["4h"], "seeds": [0]}
    write_study(tmp_path / "study", **few)
    study = read_study(tmp_path / "study")
    assert study.chart().to_dict(validate=False)["datasets"]
    page = study._repr_html_()
    assert "missed deadlines</th>" in page and page.count("<tr>") == 1 + len(study.ranking)
    assert signal._repr_html_().startswith("<pre>")


def test_there_is_a_tutorial() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(path.read_text())
    assert document["nbformat"] == 4
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(document["cells"]):
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"])
        exec(compile(text, f"{path.name}, cell {number}", "exec"), namespace)
        printed = capsys.readouterr().out
        shown = "".join(
            "".join(each["text"]) for each in cell["outputs"] if each["output_type"] == "stream"
        )
        assert printed == shown, f"cell {number} prints something else than it shows"
