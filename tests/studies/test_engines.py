"""Where runs are run: all give the same, and a run that dies takes nobody with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import InvalidInput, LowtideError, MissingExtra, UnknownName
from lowtide.studies.dask import OnDask
from lowtide.studies.engines import Engine, Local, Outcome, Task, make_engine
from support.stand_ins import squares

TWO = Local(workers=2)


def task(seed: int, **workload: Any) -> Task:
    return Task(str(seed), {"run": {"seed": seed}, "workload": workload})


def outcomes(engine: Engine, tasks: list[Task]) -> dict[str, Outcome]:
    told = list(engine.run(squares, tasks))
    assert sorted(each.id for each in told) == sorted(each.id for each in tasks)
    return {each.id: each for each in told}


def test_processes_run_many_small_runs() -> None:
    told = outcomes(TWO, [task(seed) for seed in range(2000)])
    assert all(told[str(seed)].row["square"] == seed**2 for seed in range(2000))
    assert {each.attempts for each in told.values()} == {1}


def test_one_worker_is_this_process() -> None:
    (told,) = Local(workers=1).run(pid_then_sleep, [task(1)])
    assert told.row == {"pid": os.getpid()}


def test_no_runs_need_no_workers() -> None:
    assert outcomes(TWO, []) == {}


def test_a_run_that_kills_its_process_is_found_out(tmp_path: Path) -> None:
    tasks = [task(seed) for seed in range(60)]
    tasks[7] = task(7, does="die")
    tasks[8] = task(8, does="raise")
    tasks[30] = task(30, does="die once", tally=str(tmp_path / "tally"))
    tasks[31] = task(31, does="unsendable")
    tasks[59] = task(59, does="leave")
    told = outcomes(TWO, tasks)
    assert told["7"] == Outcome(
        id="7", reason="its process died 3 times, at last by exit code 7", attempts=3
    )
    assert (told["8"].reason, told["8"].attempts) == ("RuntimeError: no such luck", 1)
    assert (told["30"].row["square"], told["30"].attempts) == (900.0, 2)
    assert told["31"].reason.startswith("its numbers cannot be sent back")
    assert told["59"].reason == "SystemExit: gone"
    assert sum(each.row is not None for each in told.values()) == 56


def test_how_a_process_died_is_told() -> None:
    (told,) = Local(workers=2, retries=0).run(killed, [task(1)])
    assert told.reason == "its process died 1 time, at last by SIGKILL: is there enough memory?"


def killed(_: dict[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_slow_run_does_not_hold_up_the_others() -> None:
    tasks = [task(0, does="sleep", seconds=1.0), *(task(seed) for seed in range(1, 40))]
    told = [each.id for each in TWO.run(squares, tasks)]
    # The one that had been handed over behind it waits; nobody else does.
    assert set(told[-2:]) >= {"0"}


def test_no_worker_outlives_an_engine_that_is_closed() -> None:
    running = TWO.run(pid_then_sleep, [task(seed) for seed in range(1, 9)])
    pids = [next(running).row["pid"], next(running).row["pid"]]
    clock = time.monotonic()
    running.close()
    assert time.monotonic() - clock < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def pid_then_sleep(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters["run"]["seed"] > 2:
        time.sleep(60)
    return {"pid": os.getpid()}


def test_what_is_finished_comes_out_when_interrupted() -> None:
    tasks = [task(seed) for seed in range(400)]
    running = TWO.run(squares, tasks)
    told = [next(running)]
    time.sleep(0.3)  # by now both workers have done what they had at hand
    told.append(running.throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        told += running
    assert 2 <= len({each.id for each in told}) < 400


def test_workers_that_cannot_begin_end_the_sweep() -> None:
    with pytest.raises(Exception, match="worker processes cannot begin"):
        list(TWO.run(Unreadable(), [task(1), task(2)]))


class Unreadable:
    """A function that no worker can read."""

    def __call__(self, _: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_dask_gives_the_same_as_processes() -> None:
    tasks = [task(seed) for seed in range(300)]
    tasks[8] = task(8, does="raise")
    ours, theirs = outcomes(TWO, tasks), outcomes(OnDask(workers=2), tasks)
    for name, each in theirs.items():
        assert (each.reason, each.attempts) == (ours[name].reason, ours[name].attempts)
        assert (each.row or {}).get("square") == (ours[name].row or {}).get("square")


def test_dask_finds_out_which_run_kills_its_worker() -> None:
    tasks = [task(seed) for seed in range(30)]
    tasks[4] = task(4, does="die")
    told = outcomes(OnDask(workers=2, retries=0), tasks)
    assert told["4"].reason == "its worker died 1 time: is there enough memory?"
    assert sum(each.row is not None for each in told.values()) == 29


def test_a_running_cluster_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr("lowtide.studies.dask._PATIENCE_S", 1)
    tasks = [task(seed) for seed in range(2000)]
    with LocalCluster(
        n_workers=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        engine = make_engine("dask", address=cluster.scheduler_address)
        assert len(outcomes(engine, tasks)) == 2000
        # What is finished comes out when interrupted: the rest of a parcel, and other parcels.
        running = engine.run(squares, tasks)
        told = [next(running) for _ in range(30)]
        time.sleep(0.5)
        told.append(running.throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            told += running
        assert 30 < len({each.id for each in told}) == len(told) < 2000
        running = engine.run(squares, [task(1), task(2, does="sleep", seconds=60)])
        assert next(running).id == "1"
    with pytest.raises(LowtideError, match="the Dask scheduler is gone"):
        next(running)
    with pytest.raises(InvalidInput, match="no Dask scheduler answers at tcp"):
        outcomes(OnDask(address="tcp://127.0.0.1:1"), [task(1)])


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.studies.dask.find_spec", lambda _: None)
    for name in ("dask", "slurm"):
        with pytest.raises(MissingExtra, match="pip install 'lowtide\\[sweep\\]'"):
            make_engine(name)


def test_where_there_is_no_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput, match="there is no Slurm here"):
        make_engine("slurm")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"name": "locl"}, UnknownName, "did you mean 'local'"),
        ({"workers": 0}, InvalidInput, "at least 1 worker"),
        ({"address": "tcp://x"}, InvalidInput, "--address is for --engine dask"),
        ({"slurm": {"cores": "1"}}, InvalidInput, "--slurm is for --engine slurm"),
        ({"name": "slurm", "slurm": {"memry": "1"}}, UnknownName, "did you mean 'memory'"),
        ({"name": "slurm", "slurm": {"cores": "x"}}, InvalidInput, "a whole number, not 'x'"),
        ({"name": "slurm", "slurm": {"cores": "0"}}, InvalidInput, "1 worker and 1 core"),
        ({"name": "dask", "workers": 0}, InvalidInput, "at least 1 worker"),
    ],
)
def test_what_makes_no_engine(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_engine(**arguments)
