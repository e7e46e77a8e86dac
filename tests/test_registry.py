"""Plug-ins by name."""

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
