"""A folder of results: what is in it, and that nothing finished is lost or run twice."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lowtide.errors import FileProblem, InvalidInput
from lowtide.studies import folder
from lowtide.studies.engines import Local
from lowtide.studies.experiment import Experiment
from lowtide.studies.folder import ResultFolder, sweep
from support.stand_ins import squares

HERE = Local(workers=1)


def experiment(seeds: int = 4, **sections: Any) -> Experiment:
    document = {
        "title": "Squares",
        "grid": {"synthetic": "windy"},
        "sweep": {"run.seed": list(range(seeds))},
        **sections,
    }
    return Experiment.from_dict(document)


def run(folder: Path, what: Experiment, **options: Any) -> pl.DataFrame:
    return sweep(what, folder, engine=HERE, function=squares, **options)


def manifest(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return document


def test_the_table_has_every_parameter_and_every_number(tmp_path: Path) -> None:
    what = experiment(policy={"name": "exact"}, workload={"wait": "2h", "cpus": {"choices": [1]}})
    table = run(tmp_path / "out", what)
    assert table.columns == [
        *("id", "status", "reason"),
        *("grid.synthetic", "workload.wait", "workload.cpus.choices", "policy.name", "run.seed"),
        *("square", "unknown", "name", "wall_s", "attempts"),
    ]
    assert table["run.seed"].to_list() == [0, 1, 2, 3]
    assert table["square"].to_list() == [0.0, 1.0, 4.0, 9.0]
    assert table["unknown"].null_count() == 4
    assert set(table["policy.name"]) == {"exact"}
    assert set(table["workload.cpus.choices"]) == {"[1]"}
    assert set(table["status"]) == {"done"}
    assert pl.read_parquet(tmp_path / "out" / "table.parquet").equals(table)


def test_a_column_of_mixed_values_is_text(tmp_path: Path) -> None:
    what = Experiment.from_dict({"sweep": {"workload.wait": [3600, "1h", 1.5, True, [1]]}})
    table = run(tmp_path / "out", what)
    assert table["workload.wait"].to_list() == ["3600", "1h", "1.5", "true", "[1]"]
    assert Experiment.from_dict({"sweep": {"workload.wait": [1, 2.5]}}).varied
    numbers = run(tmp_path / "two", Experiment.from_dict({"sweep": {"workload.wait": [1, 2.5]}}))
    assert numbers["workload.wait"].to_list() == [1.0, 2.5]


def test_the_manifest_tells_how_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("arrival_time,length,cpus\n0,3600,1\n")
    file = tmp_path / "exp.toml"
    file.write_text(
        f'title = "T"\n[workload]\ntrace = "{tmp_path}/jobs.csv"\n[sweep]\nrun.seed = [5, 3]\n'
    )
    out = tmp_path / "out"
    what = Experiment.load(file, settings={"grid.file": str(tmp_path / "jobs.csv")})
    table = run(out, what)
    told = manifest(out)
    assert (told["title"], told["engine"], told["seeds"]) == ("T", "local", [3, 5])
    assert (told["runs"], told["done"], told["failed"]) == (2, 2, 0)
    assert {"lowtide", "python", "numpy", "numba", "polars"} <= told["versions"].keys()
    assert told["begun"] <= told["ended"]
    assert [each["name"] for each in told["inputs"]] == ["jobs.csv"]
    assert told["experiment"] == file.read_text().replace(f"{tmp_path}/", "")
    # Neither names the machine or the folders on it.
    for said in (json.dumps(told), table.write_json()):
        assert str(tmp_path) not in said
        assert os.uname().nodename not in told["platform"]
    assert table["workload.trace"].to_list() == ["jobs.csv", "jobs.csv"]


@pytest.mark.parametrize("place", ["./mine.py:Mine", "mine_of_a_module:Mine"])
def test_code_that_nobody_registered_is_kept_by_its_hash(place, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{place.partition(':')[0].removesuffix('.py')}.py"
    code = "class Mine:\n    def on(self, event, view):\n        {}\n"
    ids = []
    for number, line in enumerate(("view.start(event.job)", "pass")):
        file.write_text(code.format(line))
        what = experiment(1, policy={"name": place}, queue={"name": "fifo"})
        ids.append(next(what.runs()).id)
        run(tmp_path / f"out{number}", what)
        (told,) = manifest(tmp_path / f"out{number}")["inputs"]
        assert told["name"] == file.name
        assert told["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    # Changed code is run anew.
    assert ids[0] != ids[1]


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    what = experiment(workload={"does": "tell", "tally": str(tally)})
    first = run(tmp_path / "out", what)
    stamps = {each: each.stat().st_mtime_ns for each in (tmp_path / "out" / "runs").iterdir()}
    before = manifest(tmp_path / "out")
    again = run(tmp_path / "out", what)
    assert again.equals(first)
    assert tally.read_text().split() == ["0", "1", "2", "3"]
    assert stamps == {
        each: each.stat().st_mtime_ns for each in (tmp_path / "out" / "runs").iterdir()
    }
    # Nothing was run, so it was made when it was made.
    assert manifest(tmp_path / "out") == before


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    workload = {"does": "tell", "tally": str(tally)}
    run(tmp_path / "out", experiment(2, workload=workload))
    table = run(tmp_path / "out", experiment(5, workload=workload))
    assert tally.read_text().split() == ["0", "1", "2", "3", "4"]
    assert table.height == 5
    (earlier,) = manifest(tmp_path / "out")["earlier"]
    assert earlier["engine"] == "local"


def test_runs_that_no_longer_belong_to_an_experiment_stay_and_are_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, experiment(3))
    table = run(out, experiment(1))
    assert table.height == 1
    assert len(list((out / "runs").iterdir())) == 3
    assert manifest(out)["left_out"] == 2
    with ResultFolder.opened(out, experiment(4)) as results:
        assert (results.left_out, len(results.missing())) == (0, 1)


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, experiment(3))
    with pytest.raises(InvalidInput, match=r"holds 3 runs of another experiment.*-o DIR"):
        run(out, experiment(2, policy={"name": "exact"}))
    assert len(list((out / "runs").iterdir())) == 3
    assert manifest(out)["runs"] == 3


def test_failures_are_in_the_table_with_their_reason(tmp_path: Path) -> None:
    what = Experiment.from_dict({"sweep": {"workload.does": ["raise", "leave", "nothing"]}})
    table = run(tmp_path / "out", what)
    assert table["status"].to_list() == ["failed", "failed", "done"]
    assert table["reason"].to_list() == ["RuntimeError: no such luck", "SystemExit: gone", None]
    assert table["square"].to_list() == [None, None, 0.0]
    assert manifest(tmp_path / "out")["failed"] == 2
    with ResultFolder.opened(tmp_path / "out", what) as results:
        assert results.missing() == []
        assert len(results.missing(retry_failed=True)) == 2


def test_reasons_name_files_without_their_folders(tmp_path: Path) -> None:
    def fails(_: dict[str, Any]) -> dict[str, Any]:
        raise FileNotFoundError(f"{tmp_path}/secret place/x.csv or /home/me/y.csv, 3 g/kWh")

    (tmp_path / "secret place").mkdir()
    (tmp_path / "secret place" / "x.csv").write_text("")
    what = Experiment.from_dict({"grid": {"file": str(tmp_path / "secret place" / "x.csv")}})
    table = sweep(what, tmp_path / "out", engine=HERE, function=fails)
    assert table["reason"].to_list() == ["FileNotFoundError: x.csv or y.csv, 3 g/kWh"]


def test_a_damaged_record_is_run_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = run(out, experiment())
    records = sorted((out / "runs").iterdir())
    records[0].write_text("")
    records[1].write_text('{"status": "half"}')
    (out / "runs" / ".half.json.x1").write_text("left by a sweep that was killed")
    assert run(out, experiment()).drop("wall_s").equals(before.drop("wall_s"))


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "table.parquet"])
def test_a_folder_with_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text('{"format": "something else"}')
    with pytest.raises(InvalidInput, match=f"holds other things .* \\({name}\\): say another"):
        run(tmp_path / "out", experiment())
    assert [each.name for each in (tmp_path / "out").iterdir()] == [name]
    with pytest.raises(InvalidInput, match="is a file"):
        run(tmp_path / "out" / name, experiment())


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.half").write_text("left by a sweep that was killed at once")
    assert run(tmp_path, experiment()).height == 4


def test_a_second_sweep_is_kept_out_while_one_is_at_work(tmp_path: Path) -> None:
    with (
        ResultFolder.opened(tmp_path / "out", experiment()),
        pytest.raises(InvalidInput, match="another sweep is at work"),
        ResultFolder.opened(tmp_path / "out", experiment()),
    ):
        pass
    # Where nothing was begun nothing is left.
    assert not (tmp_path / "out").exists()


def test_a_full_disk_loses_no_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_whole = folder.files.write_whole

    def full(path: Path | str, content: str | bytes, **options: Any) -> None:
        if Path(path).parent.name == "runs" and len(list(out.glob("runs/*"))) == 2:
            problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise FileProblem(f"cannot write {path}: {problem.strerror}", path=path)
        write_whole(path, content, **options)

    monkeypatch.setattr("lowtide.files.write_whole", full)
    with pytest.raises(FileProblem, match="No space left"):
        run(out, experiment())
    monkeypatch.undo()
    assert pl.read_parquet(out / "table.parquet").height == 2
    assert manifest(out)["ended"] is None
    assert run(out, experiment()).height == 4


def interrupted_by(number: signal.Signals, at: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def function(parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters["run"]["seed"] == at:
            signal.raise_signal(number)
        return squares(parameters)

    return function


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_sweep_that_then_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        sweep(experiment(6), out, engine=HERE, function=interrupted_by(number, at=3))
    assert signal.getsignal(number) == before
    assert pl.read_parquet(out / "table.parquet")["run.seed"].to_list() == [0, 1, 2]
    assert (manifest(out)["done"], manifest(out)["ended"]) == (3, None)
    assert run(out, experiment(6)).height == 6
    assert manifest(out)["ended"] is not None


def test_a_signal_while_a_run_is_written_waits_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole = folder.files.write_whole

    def slow(path: Path | str, content: str | bytes, **options: Any) -> None:
        if Path(path).parent.name == "runs":
            signal.raise_signal(signal.SIGINT)
        write_whole(path, content, **options)

    monkeypatch.setattr("lowtide.files.write_whole", slow)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", experiment())
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1


def test_what_an_engine_has_finished_is_kept_when_interrupted(tmp_path: Path) -> None:
    class Ahead:
        """An engine that has finished two more than it has told of."""

        name = "ahead"

        def run(self, function: Any, tasks: Any) -> Iterator[Any]:
            outcomes = iter(list(HERE.run(function, tasks)))
            try:
                yield next(outcomes)
                yield next(outcomes)
            except KeyboardInterrupt:
                yield next(outcomes)
                yield next(outcomes)
                raise

    def told(_: Any) -> None:
        if len(results.records) == 1:
            signal.raise_signal(signal.SIGINT)

    with ResultFolder.opened(tmp_path / "out", experiment(8)) as results:
        with pytest.raises(KeyboardInterrupt):
            results.carry_out(results.missing(), Ahead(), squares, told)
        assert len(results.records) == 3


def test_a_sweep_may_run_beside_the_main_thread(tmp_path: Path) -> None:
    tables: list[pl.DataFrame] = []
    thread = threading.Thread(target=lambda: tables.append(run(tmp_path / "out", experiment())))
    thread.start()
    thread.join()
    assert tables[0].height == 4
