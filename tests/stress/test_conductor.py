"""A real load, carried out on this machine: on time, at its levels, and gone when it is over."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FileProblem, InvalidInput, LowtideError
from lowtide.marks import EVENTS_VARIABLE
from lowtide.stress import run
from lowtide.stress.plan import LoadPlan, make_plan
from lowtide.stress.run import (
    END_MARK,
    JOB_VARIABLE,
    StressOutcome,
    carry_out,
    check_job_id,
    choose_job_id,
    gather,
    offered_cores,
)
from lowtide.stress.worker import WorkerReport

pytestmark = pytest.mark.alone

# How late a step of half a second may end.
LATE_S = 0.2
# How long after the end processes may be there.
GONE_S = 2.0


def members(job_id: str) -> list[int]:
    """The processes whose environment names a job."""
    wanted = f"{JOB_VARIABLE}={job_id}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until_gone(job_id: str) -> None:
    until = time.monotonic() + GONE_S
    while members(job_id):
        assert time.monotonic() < until, members(job_id)
        time.sleep(0.02)


def plan_of(levels: list[list[float]], *parts: str, step_s: float = 0.5) -> LoadPlan:
    return LoadPlan(
        shape="random", seed=0, step_s=step_s, parts=parts, levels=np.array(levels), cores=1
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """One load of four seconds, with what was seen of it from outside."""
    folder = tmp_path_factory.mktemp("load")
    events = folder / "events.csv"
    events.write_text("")
    plan = plan_of(
        [[0, 0], [30, 0], [60, 0], [0, 50], [80, 0], [100, 0], [40, 20], [0, 0]], "cpu", "disk"
    )
    seen: dict[str, list] = {"members": [], "told": []}

    def told(number: int) -> None:
        seen["told"].append((number, time.monotonic()))
        seen["members"].append(len(members("test-load")))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EVENTS_VARIABLE, str(events))
        outcome = carry_out(plan, job_id="test-load", folder=folder, told=told)
    ended = time.monotonic()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield {
        **seen,
        "plan": plan,
        "outcome": outcome,
        "ended": ended,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "events": [line.split(",") for line in events.read_text().splitlines()],
        "folder": folder,
    }


def test_steps_end_on_time(done: dict) -> None:
    outcome: StressOutcome = done["outcome"]
    assert len(outcome.late_s) == 8
    assert (outcome.late_s >= -0.001).all()
    assert outcome.late_s.max() < LATE_S
    first = done["told"][0][1]
    for number, moment in done["told"]:
        assert moment - first == pytest.approx(0.5 * number, abs=LATE_S)
    assert done["ended"] - first == pytest.approx(4.0, abs=0.5)


def test_cpu_time_is_what_was_asked_for(done: dict) -> None:
    cpu, disk = done["outcome"].parts
    assert cpu.asked_s == pytest.approx(0.5 * 3.1)
    # Others may use the machine: less can be reached, more never.
    assert 0.25 * cpu.asked_s < cpu.got_s < 1.05 * cpu.asked_s
    assert 10 < cpu.got[1] < 35
    assert (cpu.got < cpu.asked + 5).all()
    assert cpu.got[[0, 3, 7]] == pytest.approx(0.0)
    # The kernel's count of the same, start-up of the processes included.
    assert cpu.got_s <= done["cpu_s"] < cpu.got_s + disk.cpu_s + 3.0
    assert cpu.cpu_s == pytest.approx(cpu.got_s, abs=0.25)


def test_the_disk_is_written_when_it_should_be(done: dict) -> None:
    disk = done["outcome"].parts[1]
    assert disk.done > 0
    assert disk.got[[0, 1, 2, 4, 5, 7]] == pytest.approx(0.0)
    assert (disk.got[[3, 6]] > 5).all()
    assert [path.name for path in done["folder"].iterdir()] == ["events.csv"]


def test_one_job_id_for_all_parts_and_nobody_is_left(done: dict) -> None:
    assert set(done["members"]) == {2}
    assert members("test-load") == []


def test_every_step_is_marked_with_its_levels(done: dict) -> None:
    plan, events = done["plan"], done["events"]
    labels = [event[2] for event in events]
    assert labels == [*(plan.label(number) for number in range(8)), END_MARK]
    times = np.array([float(event[0]) for event in events])
    assert times - times[0] == pytest.approx(0.5 * np.arange(9), abs=LATE_S)
    assert times[0] == pytest.approx(done["outcome"].start, abs=LATE_S)


def test_the_outcome_is_a_document(done: dict) -> None:
    document = json.loads(json.dumps(done["outcome"].document()))
    assert document["job_id"] == "test-load"
    assert document["max_late_s"] == max(document["late_s"])
    assert document["parts"]["cpu"]["workers"] == 1


SCRIPT = """
import sys
from lowtide.stress.plan import LoadPlan
from lowtide.stress.run import carry_out
plan = LoadPlan.load(sys.argv[1])
carry_out(plan, job_id=sys.argv[2], told=lambda number: print(number, flush=True))
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -15), (signal.SIGKILL, -9)],
)
def test_all_are_gone_after_a_signal(how: signal.Signals, status: int, tmp_path: Path) -> None:
    ranges = {"cpu": (20.0, 40.0), "memory": (0.0, 20.0), "disk": (0.0, 20.0)}
    make_plan("random", ranges, duration="60s", seed=1).dump(tmp_path / "plan.toml")
    job_id = f"ended-by-{how.name}-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "plan.toml"), job_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        assert len(members(job_id)) == len(os.sched_getaffinity(0)) + 2
        if how is signal.SIGINT:
            # As a terminal does it: to all of them.
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        wait_until_gone(job_id)
        assert process.wait(timeout=10) == status


def test_a_worker_that_is_killed_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(number: int) -> None:
        if number == 1:
            os.kill(members("bereft")[0], signal.SIGKILL)

    begun = time.monotonic()
    with pytest.raises(LowtideError, match=r"the cpu load ended by itself \(exit status -9\)"):
        carry_out(plan_of([[10.0]] * 40, "cpu", step_s=0.1), job_id="bereft", told=told)
    assert time.monotonic() - begun < 3.0
    assert members("bereft") == []


def test_what_a_worker_cannot_do_is_told_before_anything_starts(tmp_path: Path) -> None:
    told: list[int] = []
    with pytest.raises(FileProblem, match="--without disk") as caught:
        carry_out(
            plan_of([[0.0, 0.0]] * 4, "cpu", "disk"),
            job_id="nowhere",
            folder=tmp_path / "nowhere",
            told=told.append,
        )
    assert caught.value.path == tmp_path / "nowhere"
    assert (told, members("nowhere")) == ([], [])


def test_a_gpu_without_a_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "gpu_library", lambda: None)
    with pytest.raises(InvalidInput, match=r"neither torch nor CuPy.*--without gpu"):
        carry_out(plan_of([[0.0]] * 4, "gpu"))


TOY_TORCH = """
import time
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    synchronize = staticmethod(lambda device: time.sleep(0.003))
device = lambda kind, number: number
rand = lambda shape, device: shape
empty_like = lambda matrix: matrix
matmul = lambda one, other, out: out
"""


def test_a_gpu_is_loaded_by_the_library_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(TOY_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(run, "gpu_library", lambda: "torch")
    outcome = carry_out(plan_of([[0.0], [50.0], [100.0]], "gpu", step_s=0.3), job_id="toy-gpu")
    assert outcome.parts[0].got == pytest.approx([0.0, 50.0, 100.0], abs=10)
    assert members("toy-gpu") == []


def test_more_cores_than_there_are_are_refused() -> None:
    here = len(os.sched_getaffinity(0))
    plan = make_plan("ramp", {"cpu": (0, 100)}, cores=here + 1)
    with pytest.raises(InvalidInput, match=f"may use {here}: .* --cores {here}$"):
        carry_out(plan)
    assert offered_cores(make_plan("ramp", {"cpu": (0, 100)})) == sorted(os.sched_getaffinity(0))


def test_the_job_id_is_that_of_the_environment() -> None:
    assert choose_job_id({JOB_VARIABLE: "a", "SLURM_JOB_ID": "7"}) == "a"
    assert choose_job_id({"SLURM_JOB_ID": "7"}) == "7"
    assert check_job_id(choose_job_id({})).startswith("stress-")
    for wrong in ("", "a b", "ä", "a\n", "a/b"):
        with pytest.raises(InvalidInput, match="letters, digits"):
            check_job_id(wrong)


def test_a_worker_without_an_answer_leaves_its_part_unknown() -> None:
    plan = plan_of([[50.0], [100.0]], "cpu")
    report = WorkerReport(worked_s=[0.25, 0.5], late_s=[0.0, 0.0], done=6.0, cpu_s=0.75)
    whole = gather("cpu", plan, [report, report])
    assert whole.got.tolist() == [50.0, 100.0]
    assert (whole.asked_s, whole.got_s, whole.off, whole.rate) == (1.5, 1.5, 0.0, 8.0)
    part = gather("cpu", plan, [report, None])
    assert np.isnan([*part.got, part.got_s, part.done, part.rate, part.off]).all()
