"""A plan is the same bytes for the same seed, and a damaged one is refused by its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FileProblem, FormatError, InvalidInput, InvalidTime, UnknownName
from lowtide.stress.plan import SHAPES, LoadPlan, make_plan

BOTH = {"gpu": (0.0, 100.0), "cpu": (0.0, 100.0)}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_gives_the_same_bytes(shape: str, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        made = make_plan(shape, BOTH, duration="20s", step="0.5s", seed=seed, cores=2)
        made.dump(tmp_path / f"{name}.toml")
    one, same, other = (
        (tmp_path / f"{name}.toml").read_bytes() for name in ("one", "same", "other")
    )
    assert one == same
    assert one != other


def test_a_plan_reads_back_as_it_was(tmp_path: Path) -> None:
    made = make_plan("random", BOTH, duration="7.3s", step=0.1, seed=4, cores=1)
    made.dump(tmp_path / "plan.toml")
    read = LoadPlan.load(tmp_path / "plan.toml")
    assert read.toml() == made.toml()
    assert (read.shape, read.seed, read.step_s, read.cores) == ("random", 4, 0.1, 1)
    # Parts have an order of their own, whatever the order they were named in.
    assert read.parts == ("cpu", "gpu")
    assert np.array_equal(read.levels, made.levels)
    assert len(read) == 73


def test_a_part_may_be_left_out() -> None:
    made = make_plan("random", BOTH, duration="10s", seed=4)
    left = made.without(["gpu", "disk"])
    assert left.parts == ("cpu",)
    assert np.array_equal(left.of("cpu"), made.of("cpu"))
    with pytest.raises(InvalidInput, match="nothing left to load"):
        made.without(["gpu", "cpu"])
    with pytest.raises(UnknownName, match="did you mean 'gpu'"):
        made.without(["gpuu"])


def test_a_step_is_labelled_with_its_levels() -> None:
    made = LoadPlan(
        shape="random", seed=0, step_s=0.5, parts=("cpu", "gpu"), levels=np.array([[50, 12.5]])
    )
    assert made.label(0) == "step_0 cpu=50 gpu=12.5"


@pytest.mark.parametrize(
    ("changed", "kind", "says"),
    [
        ({"shape": "rampe"}, UnknownName, "did you mean 'ramp'"),
        ({"duration": "0.3s"}, InvalidInput, "shorter than its step"),
        ({"step": "0.05s"}, InvalidInput, "at least 0.1 s, not 0.05 s"),
        ({"step": "soon"}, InvalidTime, "cannot read duration"),
        ({"duration": "30d"}, InvalidInput, "make the plan shorter"),
        ({"ranges": {"cpu": (0.0, 140.0)}}, InvalidInput, "between 0 and 100 %"),
        ({"ranges": {"cpu": (80.0, 20.0)}}, InvalidInput, "not from 80 to 20"),
        ({"ranges": {"cpu": (float("nan"), 20.0)}}, InvalidInput, "between 0 and 100 %"),
        ({"ranges": {"cup": (0.0, 20.0)}}, UnknownName, "did you mean 'cpu'"),
        ({"ranges": {}}, InvalidInput, "at least one part"),
        ({"seed": -1}, InvalidInput, "0 or more"),
        ({"cores": 0}, InvalidInput, "at least 1 core"),
    ],
)
def test_bad_plans_are_refused(changed: dict, kind: type[Exception], says: str) -> None:
    arguments = {"shape": "ramp", "ranges": BOTH, "duration": "10s", "step": "0.5s", **changed}
    with pytest.raises(kind, match=says):
        make_plan(arguments.pop("shape"), arguments.pop("ranges"), **arguments)


GOOD = """\
shape = "latin"
seed = 1
step_s = 0.5
parts = ["cpu", "disk"]
levels = [
  [0.0, 100.0],
  [50.0, 0.0],
  [100.0, 50.0],
]
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("[50.0, 0.0]", "[50.0 0.0]", 7, "not valid TOML"),
        ('"latin"', "latin", 1, "not valid TOML"),
        ('"latin"', '"latni"', 1, "did you mean 'latin'"),
        ("seed = 1", "seed = -1", 2, "0 or more"),
        ("seed = 1", "sede = 1", 2, "did you mean 'seed'"),
        ("seed = 1\n", "", None, "a load plan has seed"),
        ("0.5\n", "0.01\n", 3, "at least 0.1 s"),
        ("0.5\n", '"0.5"\n', 3, "no number of seconds"),
        ("0.5\n", "0.5\ncores = 0\n", 4, "1 or more"),
        ('"disk"', '"cpu"', 4, "different names"),
        ('"disk"', '"disc"', 4, "did you mean 'disk'"),
        ("50.0, 0.0", "50.0, 140.0", 7, "that of disk is 140.0"),
        ("50.0, 0.0", "50.0, nan", 7, "that of disk is nan"),
        ("50.0, 0.0", "true, 0.0", 7, "that of cpu is True"),
        ("100.0, 50.0", "100.0", 8, "a level for each of cpu, disk"),
    ],
)
def test_a_damaged_plan_is_refused_by_its_line(
    old: str, new: str, line: int | None, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(GOOD)
    assert len(LoadPlan.load(path)) == 3
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(FormatError, match=says) as caught:
        LoadPlan.load(path)
    assert caught.value.line == line


def test_a_plan_that_was_cut_off_names_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("".join(GOOD.splitlines(keepends=True)[:7]))
    with pytest.raises(FormatError) as caught:
        LoadPlan.load(path)
    assert caught.value.line == 7


def test_a_plan_has_a_place_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no such file"):
        LoadPlan.load(tmp_path / "plan.toml")
    with pytest.raises(InvalidInput, match=r"a \.toml file"):
        make_plan("ramp", BOTH, duration="10s").dump(tmp_path / "plan.csv")
