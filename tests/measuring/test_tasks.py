"""Many tasks of one job: who measures, who takes over, and one recording of all of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.errors import FileProblem
from lowtide.formats import read_recordings
from lowtide.formats.recording_clocks import offset_between
from lowtide.measuring.folders import part_writer
from lowtide.measuring.tasks import Clocks, Companions, SlurmTask

pytestmark = pytest.mark.alone

OPTIONS = ("--idle", "0.5", "--meter", "estimate", "--share", "node")
# Two sets of tests may run beside each other.
JOB = str(os.getpid())
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
STEP |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "3"}
ARRAY = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize(
    ("environment", "folder", "part"),
    [
        ({}, None, None),
        ({"SLURM_JOB_ID": "7"}, None, None),
        # What a batch script finds: nobody has started these tasks.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None, None),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, None, None),
        (STEP, "recording-7.0", "part-1-n1-3"),
        (STEP | {"SLURM_RESTART_COUNT": "2"}, "recording-7.0-restart2", "part-1-n1-3"),
        (ARRAY, "recording-10", "part-element_2-0-n1-0"),
        (ARRAY | {"SLURM_RESTART_COUNT": "1"}, "recording-10", "part-element_2r1-0-n1-0"),
        (STEP | ARRAY, "recording-10.0", "part-element_2-1-n1-3"),
        # mpirun starts several tasks where Slurm knows of one for each node.
        (
            STEP | {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16"},
            "recording-7.0",
            "part-1-n1-9",
        ),
        (STEP | {"SLURM_STEP_NUM_TASKS": "many"}, None, None),
    ],
)
def test_which_task_this_is(
    environment: dict[str, str], folder: str | None, part: str | None
) -> None:
    task = SlurmTask.of(environment)
    assert (task and task.folder, task and task.part("n1.cluster")) == (folder, part)


def make_task(rank: int = 0, **more: object) -> SlurmTask:
    return SlurmTask(job=JOB, step="0", rank=rank, tasks=3, **more)  # type: ignore[arg-type]


def test_parts_of_a_job_meet_and_those_of_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (part_writer(make_task(rank), None).folder for rank in (0, 1))
    assert first.parent == second.parent
    again = part_writer(make_task(0), None).folder
    assert again.parent.name == f"{first.parent.name}-2", "a second measurement by the same task"
    assert part_writer(make_task(1), None).folder.parent == again.parent
    # Numbers of jobs come again, on other clusters and after years.
    other = part_writer(make_task(2, cluster="other"), None).folder
    assert other.parent.name == f"{first.parent.name}-3"
    named = part_writer(make_task(0), tmp_path / "named").folder
    assert named.parent.name == "named"
    for task in (make_task(0), make_task(1, cluster="other")):
        with pytest.raises(FileProblem, match="holds a recording already, by this task or of ano"):
            part_writer(task, tmp_path / "named")
    with pytest.raises(FileProblem, match="cannot make"):
        part_writer(make_task(0), Path("/proc/nowhere"))


def test_one_task_of_a_machine_measures_and_another_takes_over() -> None:
    first, second = Companions(task=make_task(0)), Companions(task=make_task(1))
    assert first.lead()
    assert first.lead()
    assert not second.lead()
    other = Companions(task=make_task(0, cluster="other"))
    assert other.lead(), "another job"
    first.close()
    assert second.lead()
    for each in (second, other):
        each.close()


def test_processes_of_all_tasks_of_the_step_are_the_program_s(tmp_path: Path) -> None:
    stepd = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("sh") or "/bin/sh", stepd)
    asks = (
        "import os; from lowtide.measuring.tasks import Companions, SlurmTask;"
        "from lowtide.monitor.processes import ProcessTree;"
        "own = ProcessTree(root=os.getpid());"
        "tree = Companions(task=SlurmTask(job='1', tasks=2)).tree(own);"
        "print(tree.root == own.root, *tree.pids)"
    )
    script = f'sleep 30 & "{sys.executable}" -c "{asks}"; echo $!; kill $!'
    for shell, is_own in ((stepd, "False"), ("sh", "True")):
        words = [str(shell), "-c", script]
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        alone, *pids, other = said.split()
        assert alone == is_own
        assert (other in pids) == (is_own == "False")


def test_clocks_are_compared_through_the_folder(tmp_path: Path) -> None:
    """Two machines a minute and a half apart; nobody but the reader knows of both."""
    clocks = []
    for number, off_s in enumerate((0.0, 90.0)):
        part = tmp_path / f"part-{number}-n{number}-{number}"
        part.mkdir()
        clocks.append(Clocks(part=part, prefix="part-", now=lambda o=off_s: time.time() + o))
    for _ in range(3):
        for clock in clocks:
            clock.compare()
            time.sleep(0.02)
    heard = []
    for clock in clocks:
        lines = (clock.part / "clock.csv").read_text().splitlines()
        cells = [line.split(",") for line in lines]
        heard.append([(float(then), float(now)) for now, who, then in cells if who])
    offset = offset_between(heard[1], heard[0])
    assert offset.low_s <= 90.0 <= offset.high_s
    assert offset.half_s < 5.0
    assert offset.shift_s == pytest.approx(90.0, abs=5.0)
    # A disk that fails is none of the program's business.
    Clocks(part=tmp_path / "gone", prefix="part-", now=time.time).compare()


def start(folder: Path, rank: int, *program: str) -> subprocess.Popen[str]:
    tasks = {"SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    return subprocess.Popen(
        [sys.executable, "-m", "lowtide", "measure", *OPTIONS, "--", *program],
        cwd=folder,
        env={**os.environ, **tasks, "SLURM_PROCID": str(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.05)


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_task_that_is_killed_costs_its_own_samples(
    tmp_path: Path, ended: list[subprocess.Popen[str]]
) -> None:
    ended.append(start(tmp_path, 0, "sh", "-c", "touch first; sleep 60"))
    wait_for(tmp_path / "first")
    ended.append(
        start(tmp_path, 1, "sh", "-c", "touch second; while [ ! -e go ]; do sleep 0.1; done")
    )
    wait_for(tmp_path / "second")
    time.sleep(1.5)
    os.killpg(ended[0].pid, signal.SIGKILL)
    folder = tmp_path / f"recording-{JOB}.0"
    (second,) = folder.glob("part-0-*-1")
    # Whoever is left reads the meters from then on.
    until = time.monotonic() + 60
    while '"estimate (node)"' not in (second / "manifest.json").read_text():
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(2.5)
    (tmp_path / "go").touch()
    _, said = ended[1].communicate(timeout=60)
    assert ended[1].returncode == 0, said
    assert "mean W" not in said, "one task tells for all of a machine"
    (recording,) = read_recordings(folder)
    (run,) = recording
    assert run.power == "estimated"
    assert run.exit_status is None
    assert 0.3 < run.missing_s < run.duration_s - 2
    assert any("cut short" in note for note in run.notes)
