"""Files that stay open, and those that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.monitor.kernel_files import (
    KernelFile,
    OpenFiles,
    Problems,
    are_kernels,
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


def test_a_file_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_text("1")
    kept, fixed = (
        KernelFile(str(path), OpenFiles(10, replaced=replaced)) for replaced in (True, False)
    )
    assert not kept.renew()
    other = tmp_path / "other"
    other.write_text("2")
    other.replace(path)
    assert kept.read() == fixed.read() == b"1"
    assert kept.renew()
    assert not kept.renew()
    assert not fixed.renew()
    assert (kept.read(), fixed.read()) == (b"2", b"1")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        kept.renew()
    kept.close()
    fixed.close()


def test_long_files_are_read_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(b"line\n" * 50_000)
    for allowed in (0, 10):
        file = KernelFile(str(path), OpenFiles(allowed))
        assert file.read_all() == path.read_bytes()
        file.close()


def test_the_kernels_own_files_are_told_from_others(tmp_path: Path) -> None:
    assert are_kernels(["/proc", "/nowhere"])
    assert not are_kernels(["/proc", str(tmp_path)])
