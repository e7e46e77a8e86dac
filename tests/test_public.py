"""What lowtide shows to the world."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys

import pytest

import lowtide
from lowtide.forecast import Forecast
from lowtide.grid import Grid
from lowtide.job import Job
from lowtide.policies import plan
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.trace import Trace


def test_the_public_names_are_few_sorted_and_all_there_is():
    assert lowtide.__all__ == sorted(lowtide.__all__)
    assert len(lowtide.__all__) <= 27
    assert len(set(lowtide.__all__)) == len(lowtide.__all__)
    assert dir(lowtide) == lowtide.__all__


@pytest.mark.parametrize("name", lowtide.__all__)
def test_every_public_name_can_be_had_and_is_documented(name):
    thing = getattr(lowtide, name)
    assert inspect.getdoc(thing)
    assert thing.__name__ == name


@pytest.mark.parametrize(
    "name", [name for name in lowtide.__all__ if inspect.isclass(getattr(lowtide, name))]
)
def test_every_public_method_and_attribute_is_documented(name):
    kind = getattr(lowtide, name)
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for attribute in fields:
        if not attribute.startswith("_"):
            assert f"    {attribute}: " in kind.__doc__, f"{name}.{attribute}"
    for attribute, value in vars(kind).items():
        if not attribute.startswith("_") and attribute not in fields:
            assert inspect.getdoc(getattr(value, "__func__", value)), f"{name}.{attribute}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lowtide' has no attribute 'nonsense'"):
        lowtide.nonsense  # noqa: B018


def test_importing_lowtide_imports_nothing_heavy():
    code = """
import sys, lowtide
dir(lowtide)
heavy = {"numpy", "polars", "rich", "altair", "numba", "typer", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_core_imports_numpy_alone():
    code = """
import sys, lowtide.policies, lowtide.trace
lowtide.policies.POLICIES.load("oracle")
heavy = {"polars", "rich", "altair", "typer"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def values():
    signal = Signal.from_values([300, 100], start=0, step_s="1h")
    job = Job(id="a", arrival=0, deadline="+2h", profile=PowerProfile.constant(100, "1h"))
    made = plan(job, signal)
    everything = [
        signal,
        Forecast(issued=0, signal=signal),
        Grid(average=signal),
        job.profile,
        job,
        made.schedule,
        made.footprint,
        made,
        Trace(columns={"arrival": [0.0], "length_s": [5.0]}, header={"a": "b"}),
    ]
    return {type(value).__name__: value for value in everything}


@pytest.mark.parametrize("name", list(values()))
def test_every_value_crosses_to_another_process(name):
    # Sweeps run in worker processes: what they take and give is pickled.
    value = values()[name]
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert type(again) is type(value)
        assert repr(again) == repr(value)
