"""A job looked back at: its phases, and what waiting would have saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput
from lowtide.hindsight import Hindsight, look_back
from lowtide.hindsight.phases import run_of
from lowtide.hindsight.waiting import arrival_within, plan_waiting
from lowtide.profile import PowerProfile
from lowtide.signal import Signal
from lowtide.store import Store
from support.snapshots import unit
from support.watched import FACTS, START, course, daily

HOUR = 3600.0
Told = Callable[..., Hindsight]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    def look(
        signal: Signal | None = None, waits: tuple[float, ...] = (), **how: object
    ) -> Hindsight:
        with Store.open(tmp_path / "store.sqlite") as store:
            for tick in course(unit(4711, started=START), step_s=600.0, **how):  # type: ignore[arg-type]
                store.append(tick)
            store.put_facts([FACTS])
            (record,) = store.jobs(ids=["4711"])
            return look_back(store, record, signal=signal, **({"waits_s": waits} if waits else {}))

    return look


def test_phases_are_found_in_what_it_drew(told: Told) -> None:
    learned = told().learned
    assert learned is not None
    assert learned.power == "measured"
    found = np.array(
        [(each.times, each.duration_s.value / HOUR, each.power_w.value) for each in learned.phases]
    )
    assert found == pytest.approx(np.array([(1, 1, 150), (2, 2, 400), (2, 1, 250)]))
    # The profile draws what was measured.
    assert learned.profile.run_s == 7 * HOUR
    phases = (*learned.profile.startup, *learned.profile.work)
    assert sum(phase.energy_j for phase in phases) == pytest.approx(2.25 * 3.6e6)


def test_waiting_is_planned_to_the_optimum_on_what_the_watcher_knew(told: Told) -> None:
    seen = told(intensity=daily, after_h=7.0, waits=(6 * HOUR, 24 * HOUR))
    assert seen.signal is not None
    assert seen.arrival == START
    # Two days are not known yet, six hours are.
    assert [each.wait_s for each in seen.waiting] == [6 * HOUR]
    assert seen.notes == ("The signal ends too early for waits of 1-00:00:00.",)
    (six,) = seen.waiting
    assert six.plan.schedule.start == pytest.approx(START + 6 * HOUR)
    # What running at once comes to is what was emitted, but for steps of the signal.
    assert six.plan.baseline.carbon_g == pytest.approx(seen.record.carbon_g, rel=5e-3)
    starts = START + 60.0 * np.arange(0, 361)
    assert seen.learned is not None
    by_hand = min(
        lt.footprint(lt.Schedule.uninterrupted(job, float(start)), job, seen.signal).carbon_g or 0.0
        for start in starts
        for job in [
            lt.Job(
                id="a",
                arrival=START,
                deadline=START + 13 * HOUR,
                profile=seen.learned.profile,
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
    assert "--signal" in seen.notes[0]


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
    assert seen.learned is None
    assert "no data for 120 min" in seen.notes[0] or "no data for 2 h" in seen.notes[0]
    assert "nothing to plan" in seen.notes[1]


def test_estimated_power_stays_estimated(told: Told) -> None:
    learned = told(measured=False).learned
    assert learned is not None
    assert learned.power == "estimated"


def test_unknown_power_gives_no_phases(told: Told) -> None:
    seen = told(power_w=lambda _: float("nan"))
    assert seen.learned is None
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
