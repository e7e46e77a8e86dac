"""What is remembered of the idle node from one start to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.attribution import IdleFloor
from lowtide.errors import FileProblem
from lowtide.watching.power import FloorMemory, load_floor, save_floor
from support.snapshots import tick


def test_it_is_written_down_while_watching_goes_on(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "kept" / "idle.json"
    floor = IdleFloor()
    memory = FloorMemory(path=path, floor=floor, clock=lambda: now[0])
    memory.take(tick())
    assert not path.exists(), "there is nothing to remember yet"
    floor.known["rapl"] = (5.0, 60.0, 1.0)
    memory.take(tick())
    assert not path.exists(), "not with every tick"
    now[0] = 300.0
    memory.take(tick())
    assert load_floor(path).known == {"rapl": (5.0, 60.0, 1.0)}


def test_what_cannot_be_written_is_said_and_not_tried_with_every_tick(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    floor = IdleFloor(known={"rapl": (5.0, 60.0, 1.0)})
    memory = FloorMemory(path=tmp_path / "file" / "idle.json", floor=floor, clock=lambda: 0.0)
    with pytest.raises(FileProblem):
        memory.take(tick())
    memory.take(tick())


@pytest.mark.parametrize(
    "text", ["", "[]", '{"idle": 3}', '{"idle": {"rapl": [1, 2]}}', '{"idle": {"x": [1, -2, 0]}}']
)
def test_a_file_that_makes_no_sense_is_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "idle.json"
    path.write_text(text)
    assert load_floor(path).known == {}


def test_nothing_learned_is_nothing_written(tmp_path: Path) -> None:
    save_floor(tmp_path / "idle.json", IdleFloor())
    assert list(tmp_path.iterdir()) == []
