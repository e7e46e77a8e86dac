"""Watts as a function of progress."""

import json
import math
import re
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.errors import FileProblem, FormatError, InvalidProfile, LowtideError
from lowtide.profile import Phase, PowerProfile
from support.strategies import phases, profiles

any_name = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1)
odd = PowerProfile(work=[Phase(name="\x7f", duration_s=1e-7, power_w=1e12)])


def phase(name="run", duration_s=60, power_w=100, **kwargs):
    return Phase(name=name, duration_s=duration_s, power_w=power_w, **kwargs)


@pytest.mark.parametrize("suffix", ["toml", "json"])
@given(profile=profiles(name=any_name), about=st.text(st.characters(exclude_categories=["Cs"])))
@example(profile=odd, about='"\\\n\t\x00')
def test_a_profile_reads_back_equal(tmp_path_factory, suffix, profile, about):
    path = tmp_path_factory.getbasetemp() / f"round_trip.{suffix}"
    profile.dump(path, about=about)
    again = PowerProfile.load(path)
    assert again == profile
    assert again.work_edges_s.tolist() == profile.work_edges_s.tolist()
    assert PowerProfile.from_dict(profile.to_dict()) == profile


def test_what_was_measured_stays_in_the_file(tmp_path):
    PowerProfile.constant(1, 1).dump(tmp_path / "a.toml", about="measured on node 7")
    assert 'about = "measured on node 7"' in (tmp_path / "a.toml").read_text()


@given(profiles())
def test_sums_are_the_sums_of_the_phases(profile):
    assert profile.startup_s == pytest.approx(math.fsum(p.duration_s for p in profile.startup))
    assert profile.work_s == pytest.approx(math.fsum(p.duration_s for p in profile.work))
    assert profile.stop_s == pytest.approx(math.fsum(p.duration_s for p in profile.stop))
    assert profile.run_s == profile.startup_s + profile.work_s
    every = [*profile.startup, *profile.work]
    assert profile.energy_j == pytest.approx(math.fsum(p.power_w * p.duration_s for p in every))
    ends = [
        math.fsum(p.duration_s for p in profile.work[: i + 1]) for i in range(len(profile.work))
    ]
    kept = [end for p, end in zip(profile.work, ends, strict=True) if p.checkpoint]
    assert profile.checkpoints_s == pytest.approx(kept)


@given(profiles())
def test_averaging_keeps_energy_times_and_checkpoints(profile):
    flat = profile.averaged()
    assert flat.energy_j == pytest.approx(profile.energy_j, rel=1e-12)
    assert len({p.power_w for p in (*flat.startup, *flat.work)}) == 1
    assert flat.checkpoints_s == profile.checkpoints_s
    assert (flat.startup_s, flat.work_s) == (profile.startup_s, profile.work_s)
    assert (flat.stop, flat.suspended_power_w) == (profile.stop, profile.suspended_power_w)


@given(
    st.lists(phases(checkpoint=True), min_size=1, max_size=3),
    st.floats(0.01, 7.7),
)
def test_a_periodic_profile_fills_its_duration_exactly(period, periods):
    total = periods * sum(p.duration_s for p in period)
    profile = PowerProfile.periodic(period, total, startup=[phase("load")])
    assert profile.work_s == pytest.approx(total, rel=1e-9)
    for i, got in enumerate(profile.work[:-1]):
        assert got == period[i % len(period)]
    last = period[(len(profile.work) - 1) % len(period)]
    assert profile.work[-1].power_w == last.power_w
    assert profile.work[-1].duration_s <= last.duration_s
    assert profile.startup == (phase("load"),)


@pytest.mark.parametrize("duration_s", [60.0, 0.1, 0.7, 1.5477])
@pytest.mark.parametrize("times", [1, 3, 10])
def test_whole_periods_keep_every_checkpoint(duration_s, times):
    epoch = phase("epoch", duration_s, checkpoint=True)
    total = math.fsum([duration_s] * times)
    assert len(PowerProfile.periodic([epoch], total).checkpoints_s) == times


def test_a_cut_phase_is_no_checkpoint():
    profile = PowerProfile.periodic([phase("epoch", 60, checkpoint=True)], 90)
    assert profile.checkpoints_s == (60.0,)


def test_periodic_energy():
    period = [phase("high", 3600, 200), phase("low", 1800, 100)]
    profile = PowerProfile.periodic(period, "4h")
    assert profile.energy_j == 200 * 3600 + 100 * 1800 + 200 * 3600 + 100 * 1800 + 200 * 3600
    for bad in ([], 0), ([phase()], 0), ([phase()], -5):
        with pytest.raises(InvalidProfile, match="needs phases and a duration longer than 0 s"):
            PowerProfile.periodic(*bad)


def test_a_training_job_saves_at_the_end_of_every_epoch():
    profile = PowerProfile.ml(
        epochs=3, train=(100, 600), evaluate=(20, 300), save=("5s", 120), startup=(30, 80)
    )
    assert [p.name for p in profile.work] == ["train", "evaluate", "save"] * 3
    assert profile.checkpoints_s == (125.0, 250.0, 375.0)
    assert profile.energy_j == 30 * 80 + 3 * (100 * 600 + 20 * 300 + 5 * 120)
    assert PowerProfile.ml(epochs=2, train=(100, 600)).checkpoints_s == (100.0, 200.0)
    with pytest.raises(InvalidProfile, match="at least one epoch, not 0"):
        PowerProfile.ml(epochs=0, train=(1, 1))


def test_repeated_blocks_unfold_and_nest():
    train = {"name": "train", "duration_s": "1m", "power_w": 600}
    save = {"name": "save", "duration_s": 5, "power_w": 120, "checkpoint": True}
    inner = {"repeat": 2, "phases": [train]}
    profile = PowerProfile.from_dict({"work": [save, {"repeat": 3, "phases": [inner, save]}]})
    assert [p.name for p in profile.work] == ["save"] + ["train", "train", "save"] * 3
    assert profile.work_s == 5 + 3 * 125


def test_a_hand_written_toml_file(tmp_path):
    (tmp_path / "md.toml").write_text(
        """
about = "one of ours"
suspended_power_w = 12
startup = [{ name = "load", duration_s = "30s", power_w = 80 }]
work = [{ repeat = 2, phases = [
  { name = "solve", duration_s = 600, power_w = 400.5 },
  { name = "write", duration_s = 10.25, power_w = 100, checkpoint = true },
]}]
"""
    )
    profile = PowerProfile.load(tmp_path / "md.toml")
    assert profile.checkpoints_s == (610.25, 1220.5)
    assert (profile.startup_s, profile.suspended_power_w) == (30.0, 12.0)


ROW = {"name": "a", "duration_s": 1, "power_w": 1}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "needs a list of phases called 'work'"),
        ({"work": []}, "at least one phase of work"),
        (
            {"work": [ROW], "wrok": []},
            "unknown key 'wrok' in a profile (did you mean 'work'?): known are about",
        ),
        ({"work": ROW}, "work is a list of phases"),
        ({"work": [5]}, "a phase of work has name, duration_s and power_w, not 5"),
        ({"work": [{"name": "a"}]}, "a phase of work lacks duration_s, power_w"),
        ({"work": [ROW | {"watts": 5}]}, "unknown key 'watts' in a phase of work"),
        (
            {"work": [ROW | {"power_w": -1}]},
            "phase 'a' must draw 0 W or more, up to 1e+12 W, not -1",
        ),
        ({"work": [ROW | {"power_w": math.nan}]}, "must draw 0 W or more, up to 1e+12 W, not nan"),
        ({"work": [ROW | {"power_w": math.inf}]}, "must draw 0 W or more, up to 1e+12 W, not inf"),
        ({"work": [ROW | {"power_w": "100"}]}, "power as a number of watts: '100'"),
        ({"work": [ROW | {"power_w": True}]}, "power as a number of watts: True"),
        ({"work": [ROW | {"power_w": None}]}, "power as a number of watts: None"),
        ({"work": [ROW | {"duration_s": 0}]}, "must last longer than 0 s, not 0"),
        ({"work": [ROW | {"duration_s": -5}]}, "must last longer than 0 s, not -5"),
        ({"work": [ROW | {"duration_s": math.nan}]}, "finite, not nan"),
        ({"work": [ROW | {"duration_s": "5"}]}, "duration '5' has no unit"),
        ({"work": [ROW | {"name": ""}]}, "a phase's name is a text without '/'"),
        ({"work": [ROW | {"name": "a/b"}]}, "a phase's name is a text without '/'"),
        ({"work": [ROW | {"name": 5}]}, "a phase's name is a text without '/'"),
        ({"work": [ROW | {"checkpoint": "no"}]}, "checkpoint"),
        ({"work": [{"repeat": 0, "phases": [ROW]}]}, "whole number 'repeat', at least 1"),
        ({"work": [{"repeat": 1.5, "phases": [ROW]}]}, "whole number 'repeat', at least 1"),
        ({"work": [{"repeat": 2, "phases": [ROW], "x": 1}]}, "a repeated block of work"),
        ({"work": [{"repeat": 2, "phases": ROW}]}, "work is a list of phases"),
        ({"work": [ROW], "startup": [ROW | {"checkpoint": True}]}, "only work can be resumed"),
        ({"work": [ROW], "stop": [ROW | {"checkpoint": True}]}, "only work can be resumed"),
        ({"work": [ROW], "suspended_power_w": -1}, "suspended job must draw 0 W or more, not -1"),
        ({"work": [ROW], "suspended_power_w": 10**400}, "suspended job must draw 0 W or more"),
        ({"work": [ROW], "suspended_power_w": math.nan}, "0 W or more, not nan"),
        ({"work": [ROW], "suspended_power_w": "12"}, "suspended"),
    ],
)
def test_bad_documents_say_what_is_wrong(tmp_path, document, message):
    with pytest.raises(LowtideError, match=re.escape(message)):
        PowerProfile.from_dict(document)
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        PowerProfile.load(tmp_path / "a.json")
    assert caught.value.path == tmp_path / "a.json"


@pytest.mark.parametrize("text", ["[]", "3", "null", '"work"', "[[1]]"])
def test_a_json_file_that_is_no_table_is_a_format_error(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FormatError):
        PowerProfile.load(tmp_path / "a.json")


def test_files_that_cannot_be_read_say_why(tmp_path):
    for name, text in (("a.toml", "work = ["), ("a.json", "{")):
        (tmp_path / name).write_text(text)
        with pytest.raises(FormatError, match=r"not valid (TOML|JSON)"):
            PowerProfile.load(tmp_path / name)
    with pytest.raises(FileProblem, match="no such file"):
        PowerProfile.load(tmp_path / "nowhere.toml")
    with pytest.raises(InvalidProfile, match=r"a .toml or .json file, not 'a.yaml'"):
        PowerProfile.load("a.yaml")
    with pytest.raises(InvalidProfile, match=r"a .toml or .json file"):
        PowerProfile.constant(1, 1).dump("a.yaml")


def test_phases_must_be_phases():
    with pytest.raises(InvalidProfile, match="work is a list of phases, but holds 5"):
        PowerProfile(work=[5])


def test_a_profile_cannot_be_changed():
    profile = PowerProfile.constant(200, "2h")
    with pytest.raises(FrozenInstanceError):
        profile.work = ()
    with pytest.raises(ValueError, match="read-only"):
        profile.work_edges_s[0] = 1.0


def test_replace_makes_a_changed_copy():
    assert replace(phase(), power_w=5).power_w == 5.0
    profile = PowerProfile.constant(200, "2h")
    longer = replace(profile, work=[phase(duration_s=60), phase(duration_s=30)])
    assert longer.work_edges_s.tolist() == [0.0, 60.0, 90.0]
    assert replace(profile, suspended_power_w=5.0).suspended_power_w == 5.0


def test_equal_profiles_are_one_key():
    assert len({PowerProfile.constant(200, "2h"), PowerProfile.constant(200.0, 7200)}) == 1
    assert PowerProfile.constant(200, "2h") != PowerProfile.constant(200, "3h")


def test_numpy_numbers_become_plain_floats():
    got = Phase(name="a", duration_s=np.float64(5), power_w=np.int64(100))
    assert type(got.power_w) is type(got.duration_s) is float


@given(profiles())
def test_edges_rise(profile):
    assert all(a < b for a, b in pairwise(profile.work_edges_s))


def test_repr_is_short():
    profile = PowerProfile.ml(epochs=2, train=("30m", 600), startup=("1m", 80))
    assert repr(profile) == (
        "<PowerProfile: 60 s startup + 1 h work in 2 phases, 0.6013 kWh, 2 checkpoints>"
    )
