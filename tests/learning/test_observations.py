"""Power and use joined on time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.learning.observations import Choice, observe, rates, window_means
from lowtide.recording import Recording, Run
from support.machines import linear, machine_run, machine_runs, two


def test_counters_are_joined_on_time_and_never_by_row() -> None:
    """A ramp that goes up and down, its counter read by another clock, with a pause.

    Joined by row the two have little to do with each other.
    """
    start = 1.7e9
    times = start + np.arange(0, 300, 0.5)

    def load(t: np.ndarray) -> np.ndarray:
        return 0.5 - 0.5 * np.cos(2 * np.pi * (t - start) / 100)

    run = Run(id="ramp", times=times, power_w=50 + 100 * load(times + 0.25), kind="full")
    # Read every 0.37 s from before the run on, and not at all for a minute.
    read = np.concatenate((np.arange(-40, 110, 0.37), np.arange(170, 305, 0.37))) + start
    fine = np.arange(start - 41, start + 306, 0.01)
    count = np.interp(read, fine, 1e9 + np.cumsum(8 * load(fine)) * 0.01)
    data = observe([Recording(runs=[run])], usage=[(read, {"cpu_seconds_total": count})])
    assert data.features == ("cpu_seconds_total",)
    joined = np.corrcoef(data.use[:, 0], data.power_w)[0, 1]
    rows = min(times.size, read.size - 1)
    by_row = np.corrcoef((np.diff(count) / np.diff(read))[:rows], run.power_w[:rows])[0, 1]
    assert joined > 0.999
    assert abs(by_row) < 0.5
    assert data.use[:, 0].max() == pytest.approx(8.0, abs=0.1)
    # While the counter was not read nothing is known, and nothing is made up.
    assert len(data) == pytest.approx(300 - 60, abs=4)


def test_window_means_are_those_of_the_steps() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        times = np.cumsum(rng.uniform(0.05, 0.3, 80))
        values = rng.uniform(0, 1, 80)
        values[rng.uniform(size=80) < 0.1] = np.nan
        edges = np.arange(np.ceil(times[0]), times[-1], 1.0)
        fine = np.arange(edges[0], edges[-1], 1e-3) + 5e-4
        held = values[np.searchsorted(times, fine, side="right") - 1]
        parts = held[: 1000 * (edges.size - 1)].reshape(-1, 1000)
        share = np.isfinite(parts).mean(axis=1)
        wanted = np.where(share >= 0.5, np.nanmean(parts, axis=1), np.nan)
        clear = np.abs(share - 0.5) > 0.01
        means = window_means(times, values, edges)
        assert means[clear] == pytest.approx(wanted[clear], abs=2e-3, nan_ok=True)


def test_a_sample_does_not_hold_through_a_gap() -> None:
    times = np.concatenate((np.arange(0, 5, 0.5), np.arange(20, 25, 0.5)))
    means = window_means(times, np.ones(times.size), np.arange(0.0, 26.0))
    assert np.isfinite(means[:7]).all()
    assert np.isnan(means[8:20]).all()
    assert np.isfinite(means[20:25]).all()


def test_a_counter_that_was_reset_says_nothing_of_that_moment() -> None:
    assert rates(np.arange(4.0), np.array([5.0, 7.0, 1.0, 4.0])).tolist()[:1] == [2.0]
    assert np.isnan(rates(np.arange(4.0), np.array([5.0, 7.0, 1.0, 4.0]))[1])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cpu", Choice(name="cpu", column="machine.cpu_share")),
        ("gpu = gpu_util/100", Choice(name="gpu", column="gpu_util", divisor=100.0)),
        ("disk=rate(read_bytes)", Choice(name="disk", column="read_bytes", rate=True)),
        (
            "disk=rate(read_bytes)/1e6",
            Choice(name="disk", column="read_bytes", rate=True, divisor=1e6),
        ),
        ("reads_total", Choice(name="reads_total", column="reads_total", rate=True)),
    ],
)
def test_features_are_chosen(text: str, wanted: Choice) -> None:
    assert Choice.of(text) == wanted


@pytest.mark.parametrize("text", ["", "a=b=c", "gpu=x/0", "gpu=x/y", "gpu=rate(x", "gpu=x)"])
def test_features_that_make_no_sense(text: str) -> None:
    with pytest.raises(InvalidInput, match="a feature is NAME"):
        Choice.of(text)


def test_the_machine_s_own_use_is_taken_by_default() -> None:
    run = machine_run("a", two, seed=1, names=("cpu", "memory"))
    more = {**run.columns, "cpus_busy": np.ones(120), "gpu-0_w": np.ones(120)}
    both = Run(id="a", times=run.times, power_w=run.power_w, columns=more)
    assert observe([Recording(runs=[both])]).features == ("cpu", "memory")


def test_columns_of_others_are_told_by_their_names() -> None:
    run = machine_run("a", two, seed=1, names=("gpu_util", "queue"))
    columns = {**run.columns, "gpu_power_usage_w": run.power_w}
    table = Run(id="a", times=run.times, power_w=run.power_w, columns=columns)
    assert observe([Recording(runs=[table])]).features == ("gpu_util",)
    named = observe([Recording(runs=[table])], features=["gpu=gpu_util/2", "queue"])
    assert named.features == ("gpu", "queue")
    assert named.use[:, 0].max() == pytest.approx(0.5)


def test_runs_of_one_name_are_told_apart() -> None:
    data = observe([machine_runs(2, linear), replace(machine_runs(2, linear), source="other")])
    assert data.runs == ("machine/full_0", "machine/full_1", "other/full_0", "other/full_1")


def test_what_is_missing_is_left_out_and_said() -> None:
    good = machine_runs(2, linear)
    run = machine_run("holes", linear, seed=9)
    use = np.array(run.columns["machine.cpu_share"])
    use[:60] = np.nan
    half = Run(id="holes", times=run.times, power_w=run.power_w, columns={"machine.cpu_share": use})
    data = observe([Recording(runs=[*good, half])])
    assert np.count_nonzero(data.group == 2) == 30
    assert np.isfinite(data.use).all()
    use[:112] = np.nan
    short = Run(
        id="holes", times=run.times, power_w=run.power_w, columns={"machine.cpu_share": use}
    )
    data = observe([Recording(runs=[*good, short])])
    assert data.runs == ("full_0", "full_1")
    assert "run holes is left out: 4 of its 60 windows" in data.notes[0]


def test_estimated_power_is_nothing_to_learn_from() -> None:
    guess = machine_run("guess", linear, seed=3, power="estimated")
    with pytest.raises(InvalidInput, match="was itself estimated"):
        observe([Recording(runs=[guess])])
    data = observe([Recording(runs=[guess, *machine_runs(2, linear)])])
    assert data.runs == ("full_0", "full_1")
    assert data.notes == ("left out, since power was estimated: guess",)


def test_machines_that_differ_are_noted() -> None:
    run = machine_run("a", linear, seed=1)
    other = Run(
        id="b",
        times=run.times,
        power_w=run.power_w,
        columns=run.columns,
        machine={"cpu": "another", "cpus": 8, "python": "3.99"},
    )
    data = observe([Recording(runs=[run, other])])
    assert "the runs differ in cpu" in data.notes[0]
    assert data.machine == {"cpus": 8}


def test_more_windows_than_needed_are_thinned() -> None:
    long = machine_run("long", linear, seed=1, seconds=30_000)
    data = observe([Recording(runs=[long])])
    assert len(data) == 15_000
    assert data.notes == ("of 30000 windows one in 2 is used",)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"names": ("queue",)}, "say nothing about how busy the machine was: columns are queue"),
        ({"seconds": 12.0}, "24 windows of 1 s with power and use are too few"),
        ({"noise_w": 0.0, "top": 0.0}, "the power is constant"),
        ({"top": 0.0}, r"no use changed \(cpu\)"),
    ],
)
def test_data_that_cannot_be_learned_from(how: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        observe([machine_runs(2, linear, **how)])


def test_features_that_are_not_there() -> None:
    with pytest.raises(InvalidInput, match="run full_0 has no column 'gpu_util'"):
        observe([machine_runs(2, linear)], features=["gpu=gpu_util"])
    with pytest.raises(InvalidInput, match="names of their own"):
        observe([machine_runs(2, linear)], features=["cpu", "cpu"])
    with pytest.raises(InvalidInput, match="above 0 s"):
        observe([machine_runs(2, linear)], average_s=0)
