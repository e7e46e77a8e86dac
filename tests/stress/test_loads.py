"""Each load works in short pieces, counts what it does, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lowtide.errors import FileProblem, InvalidInput
from lowtide.stress import loads
from lowtide.stress.loads import FILE_BYTES, MIB, Writing, gpu_library, make_load

pytestmark = pytest.mark.alone


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)


@pytest.mark.parametrize("part", ["cpu", "memory", "disk"])
def test_a_load_works_in_short_pieces(part: str, tmp_path: Path) -> None:
    load = make_load(part, folder=tmp_path)
    took_s = []
    for _ in range(20):
        before_s, begun = load.busy_s(), time.monotonic()
        assert load.work() > 0
        took_s.append(time.monotonic() - begun)
        assert load.busy_s() > before_s
    # The machine may be busy: the quickest tells what a piece takes.
    assert min(took_s) < 0.02


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Writing]:
    """A disk load; the space it takes is given back."""
    made = Writing(tmp_path)
    yield made
    os.close(made._file)


def test_the_file_of_the_disk_load_is_bounded_and_has_no_name(
    load: Writing, tmp_path: Path
) -> None:
    written = 0.0
    for _ in range(60):
        written += load.work()
        assert list(tmp_path.iterdir()) == []
    assert written > MIB
    assert os.fstat(load._file).st_size == FILE_BYTES


def test_a_slow_disk_gets_smaller_pieces(load: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(loads, "time", clock)
    monkeypatch.setattr(loads.os, "fdatasync", lambda _: clock.sleep(0.012))
    sizes = [load.work() for _ in range(4)]
    assert sizes == [sizes[0], sizes[0] / 2, sizes[0] / 4, sizes[0] / 8]
    monkeypatch.setattr(loads.os, "fdatasync", lambda _: clock.sleep(0.001))
    assert [load.work() for _ in range(3)] == [sizes[0] / 16, sizes[0] / 8, sizes[0] / 4]
    monkeypatch.setattr(loads.os, "fdatasync", lambda _: clock.sleep(0.005))
    assert [load.work() for _ in range(2)] == [sizes[0] / 2, sizes[0] / 2]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(FileProblem, match="name another folder with --folder") as caught:
            Writing(folder)
        assert caught.value.path == folder


def test_a_full_disk_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(loads.os, "pwrite", full)
    with pytest.raises(FileProblem, match=r"64 MiB.*No space left.*free some space"):
        Writing(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_in_the_midst_is_told(
    load: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads.os, "fdatasync", lambda _: os.fstat(10**6))
    with pytest.raises(FileProblem, match="broke off"):
        load.work()


class ToyMatrix:
    def __init__(self, size: int, device: object) -> None:
        self.size, self.device = size, device


class ToyTorch(ModuleType):
    """As much of torch as the GPU load calls; each GPU does 10 Top/s."""

    def __init__(self, gpus: int) -> None:
        super().__init__("torch")
        self.clock, self.calls, self.due = Clock(), [], {}
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus > 0,
            device_count=lambda: gpus,
            synchronize=lambda device: self.clock.sleep(self.due[device] - self.clock.now),
        )

    def device(self, kind: str, number: int) -> tuple[str, int]:
        return kind, number

    def rand(self, shape: tuple[int, int], *, device: object) -> ToyMatrix:
        return ToyMatrix(shape[0], device)

    def empty_like(self, matrix: ToyMatrix) -> ToyMatrix:
        return ToyMatrix(matrix.size, matrix.device)

    def matmul(self, one: ToyMatrix, other: ToyMatrix, *, out: ToyMatrix) -> None:
        self.calls.append((one.device, one.size))
        self.due[one.device] = self.clock.now + 2 * one.size**3 / 10e12


def test_all_gpus_multiply_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = ToyTorch(gpus=2)
    monkeypatch.setattr(loads, "gpu_library", lambda: "torch")
    monkeypatch.setitem(sys.modules, "torch", toy)
    monkeypatch.setattr(loads, "time", toy.clock)
    load = make_load("gpu", folder=tmp_path)
    toy.calls.clear()
    begun = toy.clock.now
    done = load.work()
    took_s = toy.clock.now - begun
    (first, size), (second, _) = toy.calls
    assert {first, second} == {("cuda", 0), ("cuda", 1)}
    assert done == 2 * 2 * size**3
    # 2048 takes the toy 1.7 ms and 4096 takes it 13.7 ms: large enough, and short enough to stop.
    assert size == 4096
    assert took_s == pytest.approx(2 * size**3 / 10e12)


def test_a_gpu_that_is_not_there_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loads, "gpu_library", lambda: "torch")
    monkeypatch.setitem(sys.modules, "torch", ToyTorch(gpus=0))
    with pytest.raises(InvalidInput, match=r"torch is installed but sees no GPU.*--without gpu"):
        make_load("gpu", folder=tmp_path)
    monkeypatch.setattr(loads, "gpu_library", lambda: None)
    with pytest.raises(InvalidInput, match="pip install torch or pip install cupy-cuda12x"):
        make_load("gpu", folder=tmp_path)


def test_a_library_is_found_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cupy.py").write_text("raise SystemExit")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert gpu_library() == "cupy"
    monkeypatch.setattr(sys, "path", [])
    assert gpu_library() is None
