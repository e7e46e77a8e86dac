"""The sample profile is what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lowtide.errors import UnknownName
from lowtide.formats.recordings import read_recordings
from lowtide.samples import sample_names, sample_profile, sample_recording, sample_recordings


def test_h200_equals_the_measurement(data: Callable[[str], Path]) -> None:
    samples = pl.read_csv(data("power/h200/full_samples.csv.gz").read_bytes())
    events = pl.read_csv(data("power/h200/full_events.csv"))
    seconds: dict[str, list[float]] = defaultdict(list)
    joules: dict[str, float] = defaultdict(float)
    for run in ("full_0", "full_1", "full_2"):
        rows = samples.filter(pl.col("run") == run)
        marks = events.filter(pl.col("run") == run)
        times = marks["time"].to_numpy()
        counter_j = np.interp(times, rows["time"].to_numpy(), rows["gpu_energy_mj"] / 1000)
        for i, event in enumerate(marks["event"].to_list()[:-1]):
            phase = event.split("_")[-1] if event.startswith("epoch") else event
            seconds[phase].append(times[i + 1] - times[i])
            joules[phase] += counter_j[i + 1] - counter_j[i]
    profile = sample_profile("h200")
    names = ("start", "imports_done", "data_loaded", "train", "eval", "save")
    for phase, name in zip((*profile.startup, *profile.work[:3]), names, strict=True):
        assert phase.duration_s == pytest.approx(np.mean(seconds[name]), abs=1e-3)
        assert phase.power_w == pytest.approx(joules[name] / sum(seconds[name]), abs=0.1)


def test_the_day_of_training_is_the_measured_job_stretched_and_repeated() -> None:
    measured, day = sample_profile("h200"), sample_profile("h200-day")
    epoch = measured.work[:3]
    count = round(86400 / (60 * sum(phase.duration_s for phase in epoch)))
    assert (len(day.startup), len(day.work)) == (len(measured.startup), 3 * count)
    originals = (*measured.startup, *(epoch * count))
    for phase, original in zip((*day.startup, *day.work), originals, strict=True):
        assert phase.duration_s == pytest.approx(60 * original.duration_s, rel=1e-12)
        for same in ("name", "power_w", "checkpoint"):
            assert getattr(phase, same) == getattr(original, same)


def test_samples_are_found_by_name() -> None:
    assert sample_names() == ["h200", "h200-day"]
    with pytest.raises(UnknownName, match="known are h200, h200-day"):
        sample_profile("h100")


def test_the_sample_recordings_equal_the_measurement(data: Callable[[str], Path]) -> None:
    measured = {run.id: run for each in read_recordings(data("power/h200")) for run in each}
    samples = [
        run
        for name in ("h200", "h200-sweep")
        for each in read_recordings(sample_recording(name))
        for run in each
    ]
    assert {run.id for run in samples} == set(measured)
    for run in samples:
        original = measured[run.id]
        np.testing.assert_array_equal(run.times, original.times)
        np.testing.assert_array_equal(run.power_w, original.power_w)
        assert (run.kind, run.pair) == (original.kind, original.pair)
        between = (original.start, original.end)
        if run.id == "sweep":
            # Nothing in the table says that its first mark begins the program and its last ends it;
            # the sample was kept when that was taken for granted, and it is so.
            between = (original.events[0].time, original.events[-1].time)
        assert (run.start, run.end) == between
        assert [(event.time, event.label) for event in run.events] == [
            (event.time, event.label) for event in original.events
        ]


def test_sample_recordings_are_small_and_found_by_name() -> None:
    assert sample_recordings() == ["h200", "h200-lm", "h200-sweep"]
    size = sum(
        path.stat().st_size
        for name in sample_recordings()
        for path in sample_recording(name).iterdir()
    )
    assert size < 300_000
    with pytest.raises(UnknownName, match="known are h200, h200-lm, h200-sweep"):
        sample_recording("h100")
