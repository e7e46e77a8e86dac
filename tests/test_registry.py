"""Plug-ins by name."""

import pickle
import re
from importlib.metadata import EntryPoint

import pytest

from lowtide import registry
from lowtide.errors import LowtideError, UnknownName


@pytest.fixture
def toys(monkeypatch):
    points = [
        EntryPoint(name="sum", value="builtins:sum", group="toys"),
        EntryPoint(name="join", value="os.path:join", group="toys"),
        EntryPoint(name="gone", value="no_such_module:thing", group="toys"),
        EntryPoint(name="lacks", value="os.path:no_such_name", group="toys"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda *, group: points)
    return registry.Registry("toys", "toy")


def test_names_are_sorted(toys):
    assert toys.names() == ["gone", "join", "lacks", "sum"]


def test_a_plug_in_is_loaded_by_its_name(toys):
    assert toys.load("sum") is sum


def test_an_unknown_name_lists_the_known(toys):
    with pytest.raises(
        UnknownName, match=r"unknown toy 'jion' \(did you mean 'join'\?\)"
    ) as caught:
        toys.load("jion")
    assert caught.value.known == ["gone", "join", "lacks", "sum"]


@pytest.mark.parametrize("name", ["gone", "lacks"])
def test_a_plug_in_that_cannot_be_loaded_says_where_it_is_registered(toys, name):
    with pytest.raises(LowtideError, match=r"registered as .*no_such.* but cannot be loaded"):
        toys.load(name)


def test_only_the_group_asked_for_is_looked_up(monkeypatch):
    asked = []
    monkeypatch.setattr(registry, "entry_points", lambda *, group: asked.append(group) or [])
    assert registry.Registry("lowtide.toys", "toy").names() == []
    assert asked == ["lowtide.toys"]


OWN = """
class Sooner:
    def decide(self, job, signal):
        return "sooner"


class Helper:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_policy_of_mine.py").write_text(OWN)
    return registry.Registry("lowtide.policies", "policy", methods=("decide",))


@pytest.mark.parametrize(
    "name",
    [
        "./own_policy_of_mine.py",
        "own_policy_of_mine.py:Sooner",
        "{folder}/own_policy_of_mine.py:Sooner",
        "own_policy_of_mine:Sooner",
    ],
)
def test_a_class_that_nobody_registered_is_found_by_its_place(own, tmp_path, name):
    found = own.load(name.format(folder=tmp_path))
    assert found().decide(None, None) == "sooner"
    if ".py" in name:
        assert pickle.loads(pickle.dumps(found())).decide(None, None) == "sooner"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nowhere.py", "no such file"),
        ("no_such_module_at_all:Sooner", "cannot be imported"),
        ("own_policy_of_mine.py:Helper", "no class with a method decide"),
        ("own_policy_of_mine.py:Soner", "did you mean 'Sooner'"),
        ("broken.py", "cannot be imported, ZeroDivisionError"),
        ("several.py", "several.py:First"),
        ("empty.py", "has no class with a method decide"),
    ],
)
def test_a_place_without_such_a_class_is_refused(own, tmp_path, name, said):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "several.py").write_text(
        OWN.replace("Helper", "Z(Sooner)")
        .replace("Sooner", "First", 1)
        .replace("Z(Sooner)", "Z(First)")
    )
    with pytest.raises(LowtideError, match=re.escape(said)):
        own.load(name)


def test_other_plug_ins_have_no_places(toys):
    with pytest.raises(UnknownName):
        toys.load("os.path:join")
