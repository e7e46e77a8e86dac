"""Files that stay open, and those that do not fit."""

from __future__ import annotations

from pathlib import Path

from lowtide.monitor.kernel_files import (
    KernelFile,
    OpenFiles,
    Problems,
    raise_file_limit,
)


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_text("1")
    file = KernelFile(str(path), OpenFiles(10))
    assert file.read() == b"1"
    path.write_text("22")
    assert file.read() == b"22"
    assert file.read(1) == b"2"
    file.close()


def test_files_beyond_the_limit_are_opened_each_time(tmp_path: Path) -> None:
    before = opened()
    files = OpenFiles(3)
    kept = []
    for number in range(8):
        path = tmp_path / str(number)
        path.write_text(str(number))
        kept.append(KernelFile(str(path), files))
    assert opened() - before == 3
    assert len(files) == 3
    for _ in range(2):
        assert [file.read() for file in kept] == [str(number).encode() for number in range(8)]
    for file in kept:
        file.close()
        file.close()
    assert opened() == before
    assert len(files) == 0


def test_the_limit_is_raised_as_far_as_it_may_be() -> None:
    assert OpenFiles().allowed == max(raise_file_limit() - 256, 0) > 0


def test_problems_are_named_once_and_counted() -> None:
    problems = Problems()
    problems.forbidden("/proc/1/environ")
    problems.forbidden("/proc/2/environ")
    problems.forbidden("/proc/1/io")
    problems.reject("broken", "it broke")
    problems.reject("broken", "it broke again")
    first, second, third = problems.take()
    assert first.startswith("/proc/1/environ may not be read")
    assert "root" in first
    assert "/proc/1/io" in second
    assert third == "it broke"
    assert problems.take() == ()
    assert problems.rejected == 2
