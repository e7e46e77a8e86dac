"""GPUs of paused programs, on a libcuda that is built here, each call of which fails in turn."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lowtide.acting import gpu_pause
from lowtide.acting.gpu_pause import LET_GO, LOCKED, RUNS, Cuda, GpuPause, give_back, take_off
from lowtide.acting.local import LocalBackend
from lowtide.acting.tag import Tag
from lowtide.errors import InvalidInput, Refused
from lowtide.measuring.program import StartedProgram
from support.commands import run
from support.needs import is_missing

SOURCE = Path(__file__).parents[1] / "support" / "fake_cuda.c"
PATIENCE_S = 60.0
# A program of three processes, two of which hold a GPU, in sessions of their own.
HOLDS = """
import os, subprocess, sys, time
from pathlib import Path
if len(sys.argv) == 1:
    more = [subprocess.Popen([sys.executable, __file__, "more"], start_new_session=True)]
    more.append(subprocess.Popen(["sleep", "300"]))
Path(os.environ["FAKE_CUDA"], str(os.getpid())).write_text("0")
time.sleep(300)
"""


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Return who builds a libcuda of a version."""
    compiler = shutil.which("cc") or is_missing("needs a C compiler: cc not found")
    folder = tmp_path_factory.mktemp("cuda")

    def built(version: int) -> str:
        library = folder / f"libcuda-{version}.so"
        if not library.exists():
            words = [str(compiler), "-shared", "-fPIC", f"-DVERSION={version}", str(SOURCE)]
            subprocess.run([*words, "-o", str(library)], check=True)
        return str(library)

    return built


@pytest.fixture
def folder(build, tmp_path, monkeypatch) -> Path:
    """Where the fake driver keeps its processes; it is what is loaded as libcuda."""
    monkeypatch.setenv("FAKE_CUDA", str(tmp_path))
    monkeypatch.setenv("LOWTIDE_LIBCUDA", build(12080))
    monkeypatch.setattr(gpu_pause, "_PAUSE_S", 0.01)
    return tmp_path


@pytest.fixture
def program(folder: Path) -> Iterator[StartedProgram]:
    """A program of which two processes hold a GPU."""
    (folder / "holds.py").write_text(HOLDS)
    words = [sys.executable, str(folder / "holds.py")]
    program = StartedProgram.start(words, environment=dict(os.environ))
    try:
        wait_until(lambda: list(states(folder).values()) == [str(RUNS)] * 2)
        yield program
    finally:
        program.resume()
        program.kill()
        program.close()


def wait_until(is_so) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def states(folder: Path) -> dict[int, str]:
    return {int(p.name): p.read_text().strip() for p in folder.iterdir() if p.name.isdecimal()}


def calls(folder: Path) -> list[str]:
    return [
        line.split()[0]
        for line in (folder / "calls").read_text().splitlines()
        if not line.startswith(("GetState", "Init"))
    ]


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def test_all_are_locked_before_one_lets_go_and_back_before_one_goes_on(folder, program):
    cuda = Cuda()
    holders = take_off(cuda, program.tree.living())
    assert sorted(holders) == sorted(states(folder))
    assert set(states(folder).values()) == {str(LET_GO)}
    assert calls(folder) == ["Lock", "Lock", "Checkpoint", "Checkpoint"]
    # Asked for once more there is nothing to do.
    assert take_off(cuda, holders) == holders
    assert len(calls(folder)) == 4
    assert give_back(cuda, holders) == []
    assert set(states(folder).values()) == {str(RUNS)}
    assert calls(folder)[4:] == ["Restore", "Restore", "Unlock", "Unlock"]


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
@pytest.mark.parametrize("number", [1, 2, 0])
def test_what_fails_is_undone_and_nothing_is_half_paused(folder, program, call, number):
    (folder / "fails").write_text(f"{call} {number} 6\n")
    with pytest.raises(Refused, match=rf"{call.lower()} of process \d+ failed \(CUDA error 6\)"):
        take_off(Cuda(), program.tree.living())
    assert set(states(folder).values()) == {str(RUNS)}


@pytest.mark.parametrize("call", ["Restore", "Unlock"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_card_that_is_not_given_back_is_asked_for_again(folder, program, call, number):
    cuda = Cuda()
    holders = take_off(cuda, program.tree.living())
    (folder / "fails").write_text(f"{call} {number} 6\n")
    assert give_back(cuda, holders) == []
    assert set(states(folder).values()) == {str(RUNS)}


@pytest.mark.parametrize(("call", "stays"), [("Restore", LET_GO), ("Unlock", LOCKED)])
def test_who_never_gets_a_card_back_is_named(folder, program, call, stays):
    cuda = Cuda()
    holders = take_off(cuda, program.tree.living())
    (folder / "fails").write_text(f"{call} 0 6\n")
    assert sorted(give_back(cuda, holders)) == sorted(holders)
    assert set(states(folder).values()) == {str(stays)}
    # The same where a pause is undone that did not come to be.
    (folder / "fails").unlink()
    give_back(cuda, holders)
    (folder / "fails").write_text("Checkpoint 0 6\nUnlock 0 6\n")
    with pytest.raises(Refused, match="did not get its GPU back"):
        take_off(cuda, holders)


def test_a_driver_that_does_not_tell_states_pauses_nobody(folder, program):
    (folder / "fails").write_text("GetState 0 3\n")
    with pytest.raises(Refused, match="no process of it holds a GPU"):
        take_off(Cuda(), program.tree.living())
    assert set(states(folder).values()) == {str(RUNS)}


@pytest.mark.parametrize("number", range(1, 13))
def test_a_question_that_fails_once_leaves_nobody_half_paused(folder, program, number):
    (folder / "fails").write_text(f"GetState {number} 3\n")
    cuda = Cuda()
    try:
        take_off(cuda, program.tree.living())
    except Refused:
        expected = {str(RUNS)}
    else:
        expected = {str(LET_GO), str(RUNS)}
    assert set(states(folder).values()) <= expected
    give_back(cuda, list(states(folder)))
    assert set(states(folder).values()) == {str(RUNS)}


def test_who_holds_no_gpu_is_not_paused(folder):
    with pytest.raises(Refused, match="no process of it holds a GPU"):
        take_off(Cuda(), [os.getpid()])


def backend_of(program: StartedProgram) -> LocalBackend:
    tag = Tag(token="a", deadline=time.time() + 900, arrival=time.time(), run_s=60.0)
    backend = LocalBackend(tag=tag, gpus=GpuPause(cuda=Cuda()))
    backend.begin(backend.look().jobs[0], 0.0, backend.look().jobs[0].comment)
    backend.started(program)
    return backend


def attended(backend: LocalBackend, is_so) -> None:
    def there() -> bool:
        backend.attend()
        return bool(is_so())

    wait_until(there)


def stop(backend: LocalBackend, again_s: float) -> None:
    from dataclasses import replace

    from lowtide.acting.tag import encode

    job = backend.look().jobs[0]
    backend.note(job, encode(replace(backend.tag, begin=time.time() + again_s)))
    backend.stop(job)


def test_a_program_lets_go_is_stopped_goes_on_and_has_its_cards_back(folder, program, monkeypatch):
    # The fake refuses whoever is stopped: the order is what is tried here.
    monkeypatch.setenv("FAKE_CUDA_TAKES_US", "200000")
    backend = backend_of(program)
    stop(backend, 2.0)
    assert backend.gpus.is_busy, "whoever watches the program has waited"
    assert not backend.is_paused
    attended(backend, lambda: backend.is_paused)
    wait_until(lambda: all(is_stopped(pid) for pid in states(folder)))
    assert set(states(folder).values()) == {str(LET_GO)}
    attended(backend, lambda: backend.pauses)
    assert not any(is_stopped(pid) for pid in states(folder))
    assert set(states(folder).values()) == {str(RUNS)}
    assert backend.troubles == []
    assert [what for what, _ in backend.gpus.took_s] == ["let go", "given back"]
    assert all(took_s >= 0.8 for _, took_s in backend.gpus.took_s)


def test_what_cannot_let_go_runs_on_and_that_is_marked(folder, program):
    (folder / "fails").write_text("Checkpoint 2 2\n")
    backend = backend_of(program)
    stop(backend, 60.0)
    attended(backend, lambda: backend.troubles)
    assert "it goes on without a pause: checkpoint of process" in backend.troubles[0]
    assert not backend.is_paused
    assert not any(is_stopped(pid) for pid in program.tree.living())
    assert set(states(folder).values()) == {str(RUNS)}


def test_a_paused_program_that_is_told_to_end_gets_its_cards_back(folder, program):
    backend = backend_of(program)
    stop(backend, 600.0)
    attended(backend, lambda: backend.is_paused)
    program.ask(None, patience_s=PATIENCE_S)
    attended(backend, lambda: set(states(folder).values()) == {str(RUNS)})
    program.tell(signal.SIGKILL)


KILLED = """
import os, sys, time
from pathlib import Path
from lowtide.acting.gpu_pause import Cuda, GpuPause
from lowtide.acting.local import LocalBackend
from lowtide.acting.tag import Tag
from lowtide.measuring.program import StartedProgram

tag = Tag(token="a", deadline=time.time() + 900, arrival=0.0, run_s=60.0, begin=time.time() + 600)
backend = LocalBackend(tag=tag, gpus=GpuPause(cuda=Cuda()))
backend.prepare()
program = StartedProgram.start([sys.executable, sys.argv[1]], environment=dict(os.environ))
backend.begin(None, 0.0, backend.look().jobs[0].comment)
backend.started(program)
folder = Path(os.environ["FAKE_CUDA"])
while [p.read_text() for p in folder.iterdir() if p.name.isdecimal()] != ["0", "0"]:
    time.sleep(0.02)
backend.stop(backend.look().jobs[0])
while not backend.is_paused and sys.argv[2] == "paused":
    backend.attend()
    time.sleep(0.02)
print(*program.tree.living(), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("when", ["paused", "leaving"])
def test_whoever_paused_it_is_killed_and_it_has_its_cards_back(folder, monkeypatch, when):
    if when == "leaving":
        monkeypatch.setenv("FAKE_CUDA_TAKES_US", "300000")
    (folder / "holds.py").write_text(HOLDS)
    words = [sys.executable, "-c", KILLED, str(folder / "holds.py"), when]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    pids: list[int] = []
    try:
        assert process.stdout is not None
        while len(pids) < 2:
            pids = [int(each) for each in process.stdout.readline().split()]
        if when == "paused":
            assert set(states(folder).values()) == {str(LET_GO)}
        process.kill()
        process.wait()
        wait_until(lambda: set(states(folder).values()) == {str(RUNS)})
        assert not any(is_stopped(pid) for pid in pids)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


WORDS = ("--pause-gpu", "--finish-by", "+2h", "-t", "1", "--grid", "windy", "--dry-run")


def test_where_no_driver_can_it_is_refused_before_anything_waits(
    build, folder, monkeypatch, capsys
):
    for library, said in (
        ("no-libcuda.so", "which is not here"),
        (build(12040), "drivers from 570 on (CUDA 12.8)"),
    ):
        monkeypatch.setenv("LOWTIDE_LIBCUDA", library)
        answer = run(capsys, "run", *WORDS, "--", "true")
        assert answer.code == 2
        assert said in answer.err
        assert "leave out --pause-gpu" in answer.err
    monkeypatch.setenv("LOWTIDE_LIBCUDA", build(12080))
    assert run(capsys, "run", *WORDS, "--", "true").code == 0
    answer = run(capsys, "run", *WORDS, "--save-on", "USR1", "--", "true")
    assert "not both" in answer.err
    (folder / "fails").write_text("Init 0 100\n")
    answer = run(capsys, "run", *WORDS, "--", "true")
    assert "finds no GPU (CUDA error 100)" in answer.err
    with pytest.raises(InvalidInput):
        Cuda()
