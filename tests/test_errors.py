"""The tree of errors."""

import builtins
import inspect
import pickle
import re
from pathlib import Path

import pytest

from lowtide import errors
from lowtide.errors import Argument, InvalidInput


def drawn():
    """Read the tree in the docstring: name → (parent, builtin or None)."""
    tree, path = {}, []
    for line in errors.__doc__.split("```")[1].strip().splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)(?: \((\w+)\))?", line)
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        tree[match[2]] = (path[depth - 1] if depth else None, match[3])
    return tree


def defined():
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind)
        and issubclass(kind, BaseException)
        and kind.__module__ == errors.__name__
    }


def test_the_tree_drawn_is_the_tree_there_is():
    assert set(drawn()) == set(defined())
    for name, (parent, builtin) in drawn().items():
        kind = defined()[name]
        own = [base.__name__ for base in kind.__bases__]
        expected = [parent or "Exception", *([builtin] if builtin else [])]
        assert own == expected, name
        if builtin:
            assert hasattr(builtins, builtin)


@pytest.mark.parametrize("name", sorted(defined()))
def test_every_error_is_documented_and_of_one_family(name):
    kind = defined()[name]
    assert kind.__doc__
    assert issubclass(kind, errors.LowtideError)


def examples():
    return [
        errors.InvalidSignal("bad"),
        errors.DeadlineTooEarly("late", available_s=1.0, needed_s=2.0),
        errors.UnknownName("policy", "orcale", ["run_now", "oracle"]),
        errors.FormatError("bad", path="a.csv", line=3, column="time"),
        errors.FileProblem("gone", path="a.csv"),
        errors.MissingExtra("the figure", extra="figures"),
    ]


def test_errors_carry_what_the_tree_says():
    _, late, unknown, form, gone, extra = examples()
    assert (late.available_s, late.needed_s) == (1.0, 2.0)
    assert (unknown.name, unknown.known) == ("orcale", ["oracle", "run_now"])
    assert (form.path, form.line, form.column) == (Path("a.csv"), 3, "time")
    assert gone.path == Path("a.csv")
    assert extra.extra == "figures"


def test_messages_say_where_and_what_to_do():
    _, _, unknown, form, gone, extra = examples()
    assert str(unknown) == (
        "unknown policy 'orcale' (did you mean 'oracle'?): known are oracle, run_now"
    )
    assert str(form) == "a.csv, line 3, column 'time': bad"
    assert str(errors.FormatError("bad", path="a.csv")) == "a.csv: bad"
    assert str(gone) == "gone"
    assert str(extra) == "the figure needs an optional part: pip install 'lowtide[figures]'"


def test_no_near_name_means_no_guess():
    error = errors.UnknownName("policy", "zzz", [], hint=": install one")
    assert str(error) == "unknown policy 'zzz': known are none: install one"


@pytest.mark.parametrize("error", examples(), ids=lambda error: type(error).__name__)
def test_errors_cross_to_another_process(error):
    # A sweep's worker process hands its errors over by pickling them.
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_what_cures_is_told_in_words_and_crosses_processes():
    cure = errors.Cure("job", "max_starts", 3, "raise max_starts to 3")
    error = pickle.loads(pickle.dumps(errors.Infeasible("no way", [cure])))
    assert str(error) == "no way: raise max_starts to 3"
    assert error.cures == (cure,)
    assert "nothing short of new rules" in str(errors.Infeasible("no way", []))


def test_arguments_are_spelt_as_whoever_tells_of_an_error_has_them() -> None:
    zone, forecast = Argument("zone"), Argument("column", "forecast")
    error = InvalidInput(
        f"zone=GB/x.json holds two: say {zone} with one, or {forecast}", arguments=(zone, forecast)
    )
    assert str(error) == "zone=GB/x.json holds two: say zone= with one, or column='forecast'"
    # What a file is called is left alone.
    assert error.spelt(lambda each: f"--{each.name} {each.value or '...'}") == (
        "zone=GB/x.json holds two: say --zone ... with one, or --column forecast"
    )
    assert pickle.loads(pickle.dumps(error)).arguments == (zone, forecast)
    assert InvalidInput("plain").spelt(str) == "plain"
