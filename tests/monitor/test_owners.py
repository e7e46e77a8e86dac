"""Whose a group is, and since when it runs."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import pytest

from lowtide.monitor import owners
from lowtide.monitor.owners import UserNames, find_start, find_uid, list_pids
from support.trees import write, write_process


def test_names_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        if uid == 5:
            raise KeyError(uid)
        return pwd.struct_passwd(("ada", "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(owners.pwd, "getpwuid", answer)
    names = UserNames()
    assert [names(1000), names(1000), names(5), names(5)] == ["ada", "ada", "5", "5"]
    assert asked == [1000, 5]


def test_a_directory_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hang = threading.Event()

    def never(uid: int) -> None:
        hang.wait()
        raise KeyError(uid)

    monkeypatch.setattr(owners, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(owners.pwd, "getpwuid", never)
    try:
        names = UserNames()
        assert names(1000) == "1000"
        assert names(1000) == "1000"
    finally:
        hang.set()


def test_processes_of_a_group_and_of_all_below(tmp_path: Path) -> None:
    write(tmp_path, "cgroup.procs = 1\\n2\nstep_0/cgroup.procs = 30\nstep_0/user/cgroup.procs = 4")
    assert sorted(list_pids(str(tmp_path))) == [1, 2, 4, 30]
    assert list_pids(str(tmp_path / "gone")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_anyone_comes_before_root(tmp_path: Path) -> None:
    write_process(tmp_path, 10, uid=0)
    write_process(tmp_path, 11, uid=1000)
    folder = tmp_path / "group"
    folder.mkdir()
    assert find_uid([str(folder)], [], str(tmp_path)) is None
    assert find_uid([str(folder)], [10, 99], str(tmp_path)) == 0
    assert find_uid([str(folder)], [10, 11], str(tmp_path)) == 1000
    os.chown(folder, 7, 7)
    assert find_uid([str(folder)], [10, 11], str(tmp_path)) == 7


def test_the_age_of_a_group(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    folder.mkdir()
    os.utime(folder, (1.7e9 + 1000, 1.7e9 + 500))
    write_process(tmp_path, 10, started_s=499.0)
    write_process(tmp_path, 11, started_s=100.0)
    assert find_start([str(folder)], [], str(tmp_path), 1.7e9) == 1.7e9 + 500
    # Its first process starts a little before or after.
    assert find_start([str(folder)], [10, 99], str(tmp_path), 1.7e9) == 1.7e9 + 500
    # The kernel forgot when it made the folder.
    assert find_start([str(folder)], [10, 11], str(tmp_path), 1.7e9) == 1.7e9 + 100
