"""Job kinds: the profiles they make, the lengths they keep, and what a failing job does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FileProblem, InvalidInput, InvalidTime, UnknownName
from lowtide.profile import Phase, PowerProfile
from lowtide.samples import sample_profile
from lowtide.workloads import kinds
from lowtide.workloads.checks import build
from lowtide.workloads.kinds import Shapes, Sizes

PHASED = {"high_w": 200, "low_w": 100, "high_s": "1h", "low_s": "30m"}


def sizes(length_s=None, *, part=None, cpus=1.0, gpus=0.0, count=1) -> Sizes:
    count = count if length_s is None else len(length_s)
    return Sizes(
        length_s=None if length_s is None else np.array(length_s, dtype=float),
        part=np.ones(count) if part is None else np.array(part, dtype=float),
        cpus=np.full(count, cpus),
        gpus=np.full(count, gpus),
    )


def profile_of(shapes: Shapes, row: int) -> PowerProfile:
    return shapes.profiles[int(shapes.profile[row])]


def test_constant_power_adds_up():
    made = kinds.constant(power_w=100, power_w_per_cpu=5, power_w_per_gpu=300)(
        sizes([60, 90], part=[1, 0.5], cpus=4.0, gpus=2.0)
    )
    assert made.power.tolist() == [720.0, 720.0]
    assert made.work_s.tolist() == [60.0, 45.0]
    assert made.planned_s.tolist() == [60.0, 90.0]
    assert made.profile.tolist() == [-1, -1]
    assert made.profiles == ()
    assert kinds.constant(power_w=7)(sizes([60], cpus=0.0)).power.tolist() == [7.0]
    assert kinds.constant(power_w_per_gpu=7)(sizes([60], gpus=3.0)).power.tolist() == [21.0]


def durations(profile: PowerProfile) -> list[tuple[str, float, bool]]:
    return [(phase.name, phase.duration_s, phase.checkpoint) for phase in profile.work]


def test_phased_jobs_are_as_long_as_they_are_said_to_be():
    lengths = [1, 3600, 5400, 8000, 20000]
    made = kinds.phased(**PHASED, startup_s="5m", startup_w=50)(sizes(lengths))
    assert made.work_s.tolist() == lengths
    assert made.planned_s.tolist() == [300 + each for each in lengths]
    assert len(made.profiles) == 5
    high, low = (
        Phase(name="high", duration_s=3600, power_w=200),
        Phase(name="low", duration_s=1800, power_w=100),
    )
    startup = Phase(name="startup", duration_s=300, power_w=50)
    cut = Phase(name="high", duration_s=2600, power_w=200)
    assert profile_of(made, 3) == PowerProfile(startup=[startup], work=[high, low, cut])
    assert profile_of(made, 2) == PowerProfile(startup=[startup], work=[high, low])
    assert profile_of(made, 0).checkpoints_s == ()


def test_a_job_shorter_than_a_phase_is_not_stretched():
    made = kinds.phased(high_w=480, low_w=60, high_s="2h", low_s="2h")(sizes([3600]))
    assert durations(profile_of(made, 0)) == [("high", 3600.0, False)]


def test_checkpoints_fall_where_they_fall():
    made = kinds.phased(**PHASED, checkpoint_every_s="40m")(sizes([9000, 7200]))
    assert profile_of(made, 0).checkpoints_s == (2400.0, 4800.0, 7200.0)
    assert durations(profile_of(made, 0)) == [
        *(("high", 2400.0, True), ("high", 1200.0, False)),
        *(("low", 1200.0, True), ("low", 600.0, False)),
        *(("high", 1800.0, True), ("high", 1800.0, False)),
    ]
    assert profile_of(made, 1).checkpoints_s == (2400.0, 4800.0, 7200.0)
    assert profile_of(made, 0).startup == ()
    # More of a phase than there is work between checkpoints, and less.
    for every, count in (("5m", 30), ("90m", 1), ("3h", 0)):
        made = kinds.phased(**PHASED, checkpoint_every_s=every)(sizes([9000]))
        assert len(profile_of(made, 0).checkpoints_s) == count


@given(
    length=st.floats(10.0, 1e6),
    high=st.floats(500.0, 50_000.0),
    low=st.floats(500.0, 50_000.0),
    every=st.floats(500.0, 50_000.0),
)
def test_checkpoints_change_neither_length_nor_power(length, high, low, every):
    table = {"high_w": 3, "low_w": 1, "high_s": high, "low_s": low}
    plain = profile_of(kinds.phased(**table)(sizes([length])), 0)
    marked = profile_of(kinds.phased(**table, checkpoint_every_s=every)(sizes([length])), 0)
    assert plain.work_s == pytest.approx(length, rel=1e-8)
    assert marked.work_s == pytest.approx(length, rel=1e-8)
    assert marked.energy_j == pytest.approx(plain.energy_j, rel=1e-6)
    wanted = every * np.arange(1, int(length / every) + 1)
    inside = wanted[wanted < length * (1 - 1e-8)]
    assert marked.checkpoints_s[: inside.size] == pytest.approx(inside)
    assert len(marked.checkpoints_s) - inside.size in (0, 1)


@pytest.mark.parametrize(
    ("given", "restart"),
    [
        ({}, None),
        ({"restart_s": "1m"}, (60, 50)),
        ({"restart_s": "10m", "restart_w": 70}, (600, 70)),
        ({"restart_w": 70}, (300, 70)),
        ({"restart_share": 0.1}, (360, 50)),
        ({"restart_s": 0}, ()),
        ({"restart_share": 0.0, "restart_w": 70}, ()),
    ],
)
def test_a_start_after_the_first_may_differ(given, restart):
    startup = {"startup_s": "5m", "startup_w": 50}
    train = {"epoch_s": 60, "train_w": 5}
    for kind in (
        kinds.phased(**PHASED, **startup, **given),
        kinds.ml(**train, **startup, **given),
    ):
        made = profile_of(kind(sizes([3600])), 0)
        assert made.startup_s == 300
        if not restart:
            assert made.restart == restart
            continue
        assert [(each.name, each.duration_s, each.power_w) for each in made.restart] == [
            ("restart", *restart)
        ]


def test_a_startup_may_be_a_share_of_the_length():
    kind = kinds.phased(**PHASED, startup_share=0.1, startup_w=50)
    made = kind(sizes([3600, 36000, 36000], part=[1, 1, 0.5]))
    assert [profile_of(made, row).startup_s for row in range(3)] == [360.0, 3600.0, 3600.0]
    assert made.work_s.tolist() == [3600.0, 36000.0, 18000.0]
    assert made.planned_s.tolist() == [3960.0, 39600.0, 39600.0]
    assert kinds.phased(**PHASED, startup_share=0)(sizes([60])).profiles[0].startup == ()


def test_ml_jobs_go_through_epochs():
    made = kinds.ml(
        epoch_s="20m",
        train_w=660,
        evaluate_share=0.25,
        evaluate_w=300,
        save_s="1m",
        save_w=120,
        startup_s=30,
        startup_w=80,
    )(sizes([1260 * 5]))
    expected = PowerProfile.ml(
        epochs=5, train=("15m", 660), evaluate=("5m", 300), save=("1m", 120), startup=("30s", 80)
    )
    assert profile_of(made, 0) == expected
    assert made.planned_s.tolist() == [expected.run_s]
    plain = kinds.ml(epoch_s="20m", train_w=660)(sizes([2400]))
    assert profile_of(plain, 0) == PowerProfile.ml(epochs=2, train=("20m", 660))


def test_ml_jobs_save_when_they_are_told_to():
    kind = kinds.ml(
        epoch_s="20m",
        train_w=660,
        evaluate_share=0.25,
        evaluate_w=300,
        save_s="1m",
        save_w=120,
        checkpoint_every_s="30m",
    )
    # Two epochs with one checkpoint in the middle of the second, and half a save.
    made = kind(sizes([2400 + 60 + 630]))
    assert durations(profile_of(made, 0)) == [
        *(("train", 900.0, False), ("evaluate", 300.0, False)),
        *(("train", 600.0, False), ("save", 60.0, True), ("train", 300.0, False)),
        *(("evaluate", 300.0, False), ("train", 630.0, False)),
    ]
    assert made.work_s.tolist() == [3090.0]
    assert profile_of(kind(sizes([30])), 0).checkpoints_s == ()


@given(
    lengths=st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30),
    part=st.floats(0.001, 1.0),
    epoch=st.floats(500.0, 5000.0),
)
def test_what_is_worked_is_what_the_profile_says_and_never_more_than_planned(lengths, part, epoch):
    made = kinds.ml(epoch_s=epoch, train_w=1, evaluate_share=0.3, evaluate_w=2)(
        sizes(lengths, part=[part] * len(lengths))
    )
    for row in range(len(lengths)):
        assert made.work_s[row] == profile_of(made, row).work_s
        assert made.planned_s[row] >= profile_of(made, row).run_s
        assert made.work_s[row] == pytest.approx(part * lengths[row], rel=1e-8, abs=2e-3)


def test_failing_jobs_with_periods_do_a_part_of_them():
    made = kinds.phased(**PHASED)(sizes([54000, 54000], part=[1.0, 0.32]))
    assert made.work_s.tolist() == [54000.0, 17280.0]
    assert made.planned_s.tolist() == [54000.0, 54000.0]


def test_profile_jobs_are_as_long_as_the_profile_says(tmp_path: Path):
    sample = sample_profile("h200")
    path = tmp_path / "md.toml"
    sample.dump(path)
    for given_as in ("h200", sample, path, str(path)):
        made = kinds.profile(profile=given_as)(sizes(count=3))
        assert made.profiles == (sample,)
        assert made.profile.tolist() == [0, 0, 0]
        assert np.array_equal(made.work_s, np.full(3, sample.work_s))
        assert np.array_equal(made.planned_s, np.full(3, sample.run_s))


def test_profile_jobs_fail_at_the_end_of_a_phase():
    whole = PowerProfile(
        startup=[Phase(name="load", duration_s=5, power_w=1)],
        work=[Phase(name=name, duration_s=10, power_w=9) for name in "abc"],
    )
    made = kinds.profile(profile=whole)(sizes(part=[1.0, 0.1, 1 / 3, 0.34, 0.99], count=5))
    assert made.work_s.tolist() == [30.0, 10.0, 10.0, 20.0, 30.0]
    assert made.planned_s.tolist() == [35.0] * 5
    assert [len(each.work) for each in made.profiles] == [1, 2, 3]
    assert profile_of(made, 0) is whole
    assert profile_of(made, 1).startup == whole.startup


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"kind": "constant"}, InvalidInput, "constant jobs need what they draw: power_w, power_w"),
        (
            {"kind": "constant", "power_w": -1},
            InvalidInput,
            "power_w is a number from 0 up, not -1",
        ),
        ({"kind": "constant", "power": 1}, UnknownName, "unknown key of constant jobs 'power'"),
        ({"kind": "phased", "high_w": 1}, InvalidInput, "phased jobs need 'low_w'"),
        ({"kind": "phased", **PHASED, "low_s": 0}, InvalidTime, "low_s is more than 0, not 0"),
        (
            {"kind": "phased", **PHASED, "startup_s": "5m"},
            InvalidInput,
            "startup takes 5 min, so it needs startup_w",
        ),
        (
            {"kind": "phased", **PHASED, "checkpoint_every_s": 0},
            InvalidTime,
            "checkpoint_every_s is more than 0, not 0",
        ),
        (
            {"kind": "phased", **PHASED, "startup_s": 5, "startup_share": 0.1, "startup_w": 5},
            InvalidInput,
            "a start takes startup_s, or startup_share of the length: give one",
        ),
        (
            {"kind": "ml", "epoch_s": 60, "train_w": 5, "restart_s": "2m"},
            InvalidInput,
            "restart takes 2 min, so it needs restart_w",
        ),
        (
            {"kind": "ml", "epoch_s": 60, "train_w": 5, "startup_share": 0.1},
            InvalidInput,
            "startup takes 0.1 of the length, so it needs startup_w",
        ),
        (
            {"kind": "ml", "epoch_s": 60, "train_w": 5, "evaluate_share": 0.1},
            InvalidInput,
            "evaluate takes 6 s, so it needs evaluate_w",
        ),
        (
            {"kind": "ml", "epoch_s": 60, "train_w": 5, "save_s": "1m"},
            InvalidInput,
            "save takes 60 s, so it needs save_w",
        ),
        (
            {"kind": "ml", "epoch_s": 60, "train_w": 5, "evaluate_share": 1},
            InvalidInput,
            "evaluate_share is below 1",
        ),
        ({"kind": "profile"}, InvalidInput, "profile jobs need 'profile'"),
        ({"kind": "profile", "profile": 5}, InvalidInput, "a file or a sample's name, not 5"),
        (
            {"kind": "profile", "profile": "h20"},
            UnknownName,
            r"unknown sample profile 'h20' \(did you mean 'h200'\?\): .*; files end in .toml or",
        ),
        ({"kind": "profile", "profile": "no.toml"}, FileProblem, "no.toml"),
        ({"kind": "phases"}, UnknownName, r"unknown kind of jobs 'phases' \(did you mean 'phased'"),
    ],
)
def test_refused(table, error, message):
    with pytest.raises(error, match=message):
        build(table, kinds.KINDS, "jobs")


def test_jobs_and_lengths_that_do_not_belong_together():
    for kind in (kinds.constant(power_w=1), kinds.phased(**PHASED)):
        with pytest.raises(InvalidInput, match=r"(constant|phased) jobs need lengths, such as"):
            kind(sizes())
    with pytest.raises(InvalidInput, match=r"here 66.38 s: leave lengths out"):
        kinds.profile(profile="h200")(sizes([60]))
    with pytest.raises(InvalidInput, match="a job without CPUs and GPUs draws nothing"):
        kinds.constant(power_w_per_cpu=5)(sizes([60], cpus=0.0))


def test_too_many_phases_are_refused():
    kind = kinds.phased(high_w=1, low_w=1, high_s=1, low_s=1)
    with pytest.raises(InvalidInput, match=r"up to 150 d in periods of 2 s have 1.3e\+07 phases"):
        kind(sizes([150 * 86_400]))
    often = kinds.phased(**PHASED, checkpoint_every_s=0.5)
    with pytest.raises(InvalidInput, match="the time between checkpoints"):
        often(sizes([150 * 86_400]))
