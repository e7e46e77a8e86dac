"""Which jobs are found: names by pattern, and where jobs come from."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from lowtide.store import Question, Store
from support.ticks import Watcher, unit

NAMES = ("train", "Train", "train-1", "train_2", "train%2", "md", "md-[x]", "a\\b", "", "trän", "m")


@pytest.mark.parametrize(
    "pattern",
    [
        *("train", "train*", "TRAIN*", "t?ain*", "train[-_]?", "train[!-]?", "*%*", "*_*", "*"),
        *("md-[[]x]", "md-[x]", "a\\b", "a\\*", "m?", "tr?n", "nothing*", "[", "[]m]"),
    ],
)
def test_names_are_found_as_a_shell_finds_files(place: str, pattern: str) -> None:
    watcher = Watcher()
    with Store.open(place) as store:
        jobs = [unit(number, name=name) for number, name in enumerate(NAMES)]
        store.append(watcher.tick(jobs))
        store.append(watcher.tick(jobs))
        for whole in (True, False):
            table = store.table(Question(names=[pattern]), now=watcher.time, whole=whole)
            # A name that is empty is not known.
            expected = {name for name in NAMES if name and fnmatchcase(name, pattern)}
            assert set(table.text("name")) == expected


def test_shells_can_be_left_out(place: str) -> None:
    watcher = Watcher()
    jobs = [unit(1), unit(2, source="process"), unit("a.service", source="systemd")]
    with Store.open(place) as store:
        store.append(watcher.tick(jobs))
        found = store.table(Question(sources=["slurm", "systemd"]), now=watcher.time)
    assert sorted(found.text("source")) == ["slurm", "systemd"]
