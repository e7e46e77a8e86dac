"""A job looked back at: its phases, and what waiting would have saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.hindsight import Hindsight, look_back
from lowtide.hindsight.job import Beyond, arrival_within, plan_waiting
from lowtide.hindsight.phases import JobPhases, phases_document, phases_of, read_phases, run_of
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.store import Store
from support.snapshots import unit
from support.watched import FACTS, START, course, daily

HOUR = 3600.0
Told = Callable[..., Hindsight]
TRAINING = [(1, 1, 150), (2, 2, 400), (2, 1, 250)]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    def look(
        signal: Signal | None = None,
        waits: tuple[float, ...] = (),
        beyond: Beyond | None = None,
        **how: object,
    ) -> Hindsight:
        with Store.open(tmp_path / "store.sqlite") as store:
            for tick in course(unit(4711, started=START), step_s=600.0, **how):  # type: ignore[arg-type]
                store.append(tick)
            store.put_facts([FACTS])
            (record,) = store.jobs(ids=["4711"])
            return look_back(
                store,
                record,
                signal=signal,
                beyond=beyond,
                **({"waits_s": waits} if waits else {}),
            )

    return look


def test_phases_are_found_in_what_it_drew(told: Told) -> None:
    phases = told().phases
    assert phases is not None
    assert (phases.origin, phases.note) == ("samples", "")
    assert numbers(phases) == pytest.approx(np.array(TRAINING))
    # The profile draws what was measured.
    assert phases.profile.run_s == 7 * HOUR
    drawn = (*phases.profile.startup, *phases.profile.work)
    assert sum(phase.energy_j for phase in drawn) == pytest.approx(2.25 * 3.6e6)


def numbers(phases: JobPhases | None) -> np.ndarray:
    assert phases is not None
    return np.array([(each.times, each.duration_s / HOUR, each.power_w) for each in phases.found])


@pytest.mark.parametrize("kept", [True, False])
def test_phases_outlast_what_they_were_found_in(tmp_path: Path, kept: bool) -> None:
    """Once only hours are left, the phases are those that were found when the job ended."""

    def power_w(time_s: float) -> float:
        return 150.0 if time_s < 1500 else 400.0 if (time_s - 1500) % 3900 < 2700 else 250.0

    with Store.open(tmp_path / "store.sqlite") as store:
        for tick in course(
            unit(4711, started=START), step_s=60.0, power_w=power_w, intensity=daily, after_h=7.0
        ):
            store.append(tick)
        (record,) = store.jobs(ids=["4711"])
        before = look_back(store, record, waits_s=(6 * HOUR,))
        if kept:
            document = phases_document(phases_of(record, before.series))
            store.put_phases(record, json.dumps(document))
        store.prune(now=START + 120 * 86400)
        (record,) = store.jobs(ids=["4711"])
        after = look_back(store, record, waits_s=(6 * HOUR,))
    assert len(after.series) < 10
    assert before.phases is not None
    assert after.phases is not None
    assert after.phases.note in after.notes
    if kept:
        assert after.phases.origin == "kept"
        assert "found when it ended" in after.phases.note
        assert numbers(after.phases) == pytest.approx(numbers(before.phases))
        assert after.phases.profile.run_s == pytest.approx(before.phases.profile.run_s)
        assert after.at_once == pytest.approx(before.at_once, rel=3e-3)
    else:
        assert after.phases.origin == "rolled up"
        assert "steps of 1 h by now, and shorter phases cannot be seen" in after.phases.note


def test_phases_that_cannot_be_read_are_none() -> None:
    for text in (None, "", "{", "[]", '[{"name": "a"}]', '[{"name": "a", "times": "x"}]', "3"):
        assert read_phases(text) is None


def test_the_building_counts_as_it_did_when_it_was_watched(told: Told) -> None:
    seen = told(intensity=daily, after_h=7.0, waits=(6 * HOUR,), pue=1.2)
    plain = plan_waiting(
        seen.phases.profile if seen.phases else PowerProfile.constant(1.0, "1h"),
        seen.signal or Signal.from_values([1.0], start=0, step_s="1h"),
        arrival=START,
        waits_s=(6 * HOUR,),
    )
    assert seen.pue == pytest.approx(1.2)
    assert seen.at_once == pytest.approx(seen.record.carbon_g, rel=5e-3)
    assert seen.at_once == pytest.approx(1.2 * (plain[0].plan.baseline.carbon_g or 0.0))
    assert seen.waiting[0].plan.footprint.carbon_g == pytest.approx(
        1.2 * (plain[0].plan.footprint.carbon_g or 0.0)
    )
    assert seen.waiting[0].plan.saving == pytest.approx(plain[0].plan.saving)


@pytest.mark.parametrize("interruptible", ["never", "checkpoints"])
def test_waiting_saves_what_the_trade_off_says(interruptible: str) -> None:
    profile = PowerProfile.ml(epochs=4, train=("50m", 600), save=("5m", 90), startup=("9m", 150))
    values = [320.0, 410.0, 150.0, 90.0, 260.0, 60.0, 380.0, 75.0, 500.0, 40.0] * 4
    signal = Signal.from_values(values, start=START, step_s="1h")
    waits_s = (0.0, 0.7 * HOUR, 6 * HOUR, 20 * HOUR)
    planned = plan_waiting(
        profile, signal, arrival=START, waits_s=waits_s, interruptible=interruptible
    )
    job = lt.Job(
        id="1",
        arrival=START,
        deadline=START + profile.run_s + waits_s[-1],
        profile=profile,
        interruptible=interruptible,
    )
    every = lt.tradeoff(job, signal)
    least = [every.by(START + profile.run_s + wait_s) for wait_s in waits_s]
    assert [each.plan.footprint.amount for each in planned] == pytest.approx(least, rel=1e-9)


def test_a_named_grid_goes_on_where_the_watcher_knew_no_more(told: Told) -> None:
    asked = []

    def clean(begin: float, end: float) -> Signal:
        asked.append((begin, end))
        return Signal.from_values([50.0] * 72, start=START, step_s="1h", synthetic=True)

    seen = told(intensity=daily, after_h=1.0, waits=(6 * HOUR, 24 * HOUR), beyond=clean)
    assert asked == [(START + 8 * HOUR, START + 31 * HOUR)]
    assert seen.signal is not None
    assert seen.signal.at(START + 7.9 * HOUR) == pytest.approx(daily(START + 7.9 * HOUR), rel=0.02)
    assert seen.signal.at(START + 8.1 * HOUR) == 50.0
    assert [each.wait_s for each in seen.waiting] == [6 * HOUR, 24 * HOUR]
    assert seen.notes == (
        "Up to 2024-07-04 08:00 UTC the grid is what the watcher knew, from then on the one named.",
    )
    assert seen.at_once == pytest.approx(seen.record.carbon_g, rel=5e-3)


def test_a_named_grid_is_enough_where_the_watcher_knew_none(told: Told) -> None:
    def named(_begin: float, _end: float) -> Signal:
        return Signal.from_values([400.0] * 12 + [100.0] * 24, start=START, step_s="1h")

    seen = told(waits=(24 * HOUR,), beyond=named)
    assert seen.notes == ()
    assert seen.at_once == pytest.approx(2.25 * 400)
    assert seen.waiting[0].plan.saving == pytest.approx(0.75)


def test_a_job_of_minutes_is_priced_on_what_was_known(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        for tick in course(
            unit(4711, started=START), hours=100 / 3600, step_s=10.0, intensity=lambda _: 360.0
        ):
            store.append(tick)
        (record,) = store.jobs(ids=["4711"])
        seen = look_back(store, record, waits_s=(6 * HOUR,))
    assert seen.at_once == pytest.approx(record.carbon_g, rel=1e-3)
    assert seen.waiting == ()
    (note,) = seen.notes
    assert note.startswith("What is known of the grid ends 2024-07-04 00:0")
    assert "waits of 06:00:00, which need it up to 2024-07-04 06:01:40 UTC" in note
    assert "--grid" in note


def test_waiting_is_planned_to_the_optimum_on_what_the_watcher_knew(told: Told) -> None:
    seen = told(intensity=daily, after_h=7.0, waits=(6 * HOUR, 24 * HOUR))
    assert seen.signal is not None
    assert seen.arrival == START
    # Two days are not known yet, six hours are.
    assert [each.wait_s for each in seen.waiting] == [6 * HOUR]
    (note,) = seen.notes
    assert note.startswith(
        "What is known of the grid ends 2024-07-04 14:00 UTC, too early for waits of 1-00:00:00, "
        "which need it up to 2024-07-05 07:00 UTC: name it with --grid"
    )
    (six,) = seen.waiting
    assert six.plan.schedule.start == pytest.approx(START + 6 * HOUR)
    # What running at once comes to is what was emitted, but for steps of the signal.
    assert six.plan.baseline.carbon_g == pytest.approx(seen.record.carbon_g, rel=5e-3)
    starts = START + 60.0 * np.arange(0, 361)
    assert seen.phases is not None
    by_hand = min(
        lt.footprint(lt.Schedule.uninterrupted(job, float(start)), job, seen.signal).carbon_g or 0.0
        for start in starts
        for job in [
            lt.Job(
                id="a",
                arrival=START,
                deadline=START + 13 * HOUR,
                profile=seen.phases.profile,
            )
        ]
    )
    assert six.plan.footprint.carbon_g == pytest.approx(by_hand, rel=1e-3)
    assert (six.plan.footprint.carbon_g or 0.0) <= by_hand * (1 + 1e-9)


def test_a_signal_of_other_days_is_said_to_be_one(told: Told) -> None:
    signal = Signal.from_values([400] * 24 + [100] * 24, start="2024-01-01T00:00Z", step_s="1h")
    seen = told(signal, waits=(24 * HOUR,))
    assert seen.arrival == signal.start
    assert "not the days of the job" in seen.notes[0]
    assert seen.waiting[0].plan.saving == pytest.approx(0.75)


def test_without_a_signal_nothing_is_said_of_waiting(told: Told) -> None:
    seen = told()
    assert (seen.signal, seen.waiting) == (None, ())
    assert "The grid was not known while it ran: name it with --grid" in seen.notes[0]


def test_a_job_in_which_nobody_watched_has_no_phases(tmp_path: Path) -> None:
    job = unit(4711, started=START)
    ticks = list(course(job, step_s=600.0, holes=[(2 * HOUR, 4 * HOUR)]))
    late = [tick for tick in ticks if tick.time >= START + 4 * HOUR]
    # Watching ended, and began anew two hours later.
    for part in (ticks[: len(ticks) - len(late)], late):
        with Store.open(tmp_path / "store.sqlite") as store:
            for tick in part:
                store.append(tick)
    with Store.open(tmp_path / "store.sqlite", readonly=True) as store:
        (record,) = store.jobs(ids=["4711"])
        seen = look_back(store, record)
    assert seen.phases is None
    assert "no data for 120 min" in seen.notes[0] or "no data for 2 h" in seen.notes[0]
    assert "nothing to plan" in seen.notes[1]


def test_estimated_power_stays_estimated(told: Told) -> None:
    seen = told(measured=False)
    assert run_of(seen.record, seen.series).power == "estimated"


def test_unknown_power_gives_no_phases(told: Told) -> None:
    seen = told(power_w=lambda _: float("nan"))
    assert seen.phases is None
    assert "No phases: what it drew is known for 0 steps" in seen.notes[0]
    with pytest.raises(InvalidInput, match="4 or more"):
        run_of(seen.record, seen.series)


def test_waits_beyond_the_signal_are_left_out() -> None:
    profile = PowerProfile.constant(100.0, "2h")
    signal = Signal.from_values([300, 200, 100, 50, 400, 400], start=0, step_s="1h")
    found = plan_waiting(profile, signal, arrival=0.0, waits_s=(HOUR, 4 * HOUR, 5 * HOUR))
    assert [each.wait_s / HOUR for each in found] == [1, 4]
    assert found[1].plan.schedule.start == 2 * HOUR
    with pytest.raises(InvalidInput, match="shorter than the job"):
        arrival_within(signal, 1e9, PowerProfile.constant(100.0, "7h"))


@pytest.mark.parametrize("interruptible", ["never", "checkpoints", "anywhere"])
@pytest.mark.parametrize("seed", range(3))
def test_what_waiting_saves_is_what_the_trade_off_says(seed: int, interruptible: str) -> None:
    rng = np.random.default_rng(seed)
    startup = [lt.Phase(name="load", duration_s=600.0, power_w=80.0)]
    work = [
        lt.Phase(name="train", duration_s=900.0, power_w=float(watts), checkpoint=True)
        for watts in rng.integers(50, 400, size=6)
    ]
    profile = PowerProfile(startup=startup, work=work)
    signal = Signal.from_values(rng.integers(50, 600, 60).astype(float), start=0, step_s="30m")
    waits_s = (HOUR, 6 * HOUR, 24 * HOUR)
    found = plan_waiting(
        profile, signal, arrival=0.0, waits_s=waits_s, interruptible=interruptible, pue=1.5
    )
    for each in found:
        job = lt.Job(
            id="job",
            arrival=0.0,
            deadline=profile.run_s + each.wait_s,
            profile=profile,
            interruptible=interruptible,
        )
        every = lt.tradeoff(job, signal)
        assert 1.5 * every.by(job.deadline) == pytest.approx(each.plan.footprint.amount, rel=1e-9)
        assert 1.5 * every.baseline == pytest.approx(each.plan.baseline.amount, rel=1e-9)
