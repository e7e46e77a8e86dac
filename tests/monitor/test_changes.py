"""The kernel tells when folders come and go."""

from __future__ import annotations

import ctypes
import select
from pathlib import Path

import pytest

from lowtide.monitor.group_tree import Change, Changes


def test_folders_that_come_and_go(tmp_path: Path) -> None:
    changes = Changes()
    assert changes.watch_folder(str(tmp_path))
    assert select.select([changes.events], [], [], 0)[0] == []
    (tmp_path / "job_1").mkdir()
    (tmp_path / "file").write_text("files are not told of")
    (tmp_path / "job_1").rmdir()
    assert select.select([changes.events], [], [], 1)[0] == [changes.events]
    assert list(changes.pending()) == [
        Change(kind="came", path=f"{tmp_path}/job_1"),
        Change(kind="went", path=f"{tmp_path}/job_1"),
    ]
    assert list(changes.pending()) == []
    changes.close()
    assert changes.events == -1
    assert list(changes.pending()) == []


def test_a_file_that_changes(tmp_path: Path) -> None:
    changes = Changes()
    path = tmp_path / "cgroup.events"
    path.write_text("populated 1\n")
    assert changes.watch_file(str(path))
    with path.open("r+") as file:
        file.write("populated 0\n")
    assert list(changes.pending()) == [Change(kind="changed", path=str(path))]
    changes.close()


def test_what_is_gone_cannot_be_watched_and_is_forgotten(tmp_path: Path) -> None:
    changes = Changes()
    assert not changes.watch_folder(str(tmp_path / "nothing"))
    folder = tmp_path / "a"
    folder.mkdir()
    changes.watch_folder(str(tmp_path))
    changes.watch_folder(str(folder))
    folder.rmdir()
    assert [each.kind for each in changes.pending()] == ["went"]
    assert list(changes._paths.values()) == [str(tmp_path)]
    changes.close()


def test_a_kernel_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object, **__: object) -> None:
        raise OSError("no library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    changes = Changes()
    assert changes.events == -1
    assert not changes.watch_folder(str(tmp_path))
    assert list(changes.pending()) == []
