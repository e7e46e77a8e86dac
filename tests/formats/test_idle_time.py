"""Idle time around a program: found where something tells it, never at the program's cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.formats.idle_time import IdleTime, find_idle_time
from lowtide.formats.recordings import read_recordings
from lowtide.recording import Event
from support.recordings import Pinpointed, make_pinpointed

# Made with seeds below 100; these were looked at once, to write down what came out.
HELD_OUT = range(7000, 7080)


def found(case: Pinpointed, *, known: bool = False) -> IdleTime:
    known_w = (0.99 * case.idle_w, 1.01 * case.idle_w) if known else ()
    return find_idle_time(case.power_w, case.step_s, case.events, on=case.on, known_w=known_w)


def test_nothing_of_the_program_is_cut() -> None:
    cut = []
    for seed in HELD_OUT:
        case = make_pinpointed(seed)
        idle = found(case)
        if (
            idle.before_s > case.idle_before_s + 0.5
            or idle.after_s > case.idle_after_s + 0.5
            or any(not idle.before_s - 1e-6 <= event.time - case.on for event in case.events)
        ):
            cut.append(seed)
    # A startup that draws 5 % more than a machine whose power varies by 8 % cannot always be seen.
    assert len(cut) <= 1, cut


@pytest.mark.parametrize(("known", "least"), [(False, 0.5), (True, 0.8)])
def test_idle_time_is_found(known: bool, least: float) -> None:
    cases = [make_pinpointed(seed, idle_before_s=30.0, idle_after_s=30.0) for seed in HELD_OUT[:40]]
    before = [abs(found(case, known=known).before_s - 30.0) <= 0.5 for case in cases]
    assert np.mean(before) >= least


@pytest.mark.parametrize("quiet_s", [5.0, 19.9, 20.0, 30.0, 60.0])
def test_a_quiet_startup_of_any_length_is_the_programs(quiet_s: float) -> None:
    # Imports at half the power of three epochs, no idle time, nothing said before the first epoch.
    rng = np.random.default_rng(int(10 * quiet_s))
    seconds = [quiet_s, *[35.0, 2.0] * 3]
    levels = np.repeat([112.0, *[214.0, 150.0] * 3], [round(20 * each) for each in seconds])
    starts = np.cumsum(seconds)[:-1:2]
    for events in ((), [Event(time=float(at), label="epoch") for at in starts]):
        idle = find_idle_time(levels + rng.normal(0, 2, levels.size), 0.05, events)
        assert (idle.before_s, idle.after_s) == (0, 0)
        assert f"--idle-before {quiet_s:.1f} leaves them out" in idle.notes[0]
        # It is not what the machine draws without a program, either.
        idle = find_idle_time(
            levels + rng.normal(0, 2, levels.size), 0.05, events, known_w=(49.0, 52.0)
        )
        assert (idle.before_s, idle.after_s) == (0, 0)


def test_a_word_that_is_said_twice_is_no_end() -> None:
    power_w = np.repeat([214.0, 90.0], [1200, 400])
    for first, after_s in (("done", 0.0), ("epoch", 20.0)):
        events = [Event(time=30.0, label=first), Event(time=60.0, label="done")]
        assert find_idle_time(power_w, 0.05, events).after_s == pytest.approx(after_s)


def test_without_idle_time_all_is_the_programs() -> None:
    for seed in HELD_OUT[:40]:
        case = make_pinpointed(seed, idle_before_s=0.0, idle_after_s=0.0)
        idle = found(case)
        # The program's last word comes 20 ms before its end.
        assert idle.after_s <= 0.03 + case.step_s
        assert len(idle.notes) == 2
        assert idle.before_s == 0, seed


def test_a_program_that_speaks_at_once_has_no_quiet_part_before() -> None:
    power_w = np.repeat([110.0, 214.0], [400, 1200])
    events = [Event(time=0.0, label="starting"), Event(time=20.0, label="epoch")]
    note, *_ = find_idle_time(power_w, 0.05, events).notes
    assert note == "no idle time was found before the program"


def test_what_is_kept_though_it_may_be_idle_is_said() -> None:
    silent = []
    for seed in HELD_OUT[:40]:
        case = make_pinpointed(seed, idle_before_s=41.7, idle_after_s=0.0)
        idle = found(case)
        if idle.before_s == 0 and "--idle-before" not in idle.notes[0]:
            silent.append(seed)
    assert len(silent) <= 2, silent


def test_a_folder_says_what_was_cut(tmp_path: Path) -> None:
    case = make_pinpointed(3, idle_before_s=30.0, idle_after_s=30.0)
    (recording,) = read_recordings(case.write(tmp_path / "job_full"))
    assert recording.runs[0].start == pytest.approx(case.on + 30)
    assert recording.notes[0].startswith("30 s of idle time before the program are left out")
    assert recording.notes[0].endswith("both ends draw the same; --idle-before 0 keeps them")


def test_roberta_idled_for_30_s(data: Callable[[str], Path]) -> None:
    recordings = read_recordings(data("power/roberta"))
    starts = [run.start - run.times[0] for each in recordings for run in each if run.kind != "idle"]
    right = sum(abs(start - 30) < 1e-6 for start in starts)
    # Before two runs, on the day before, the machine was busier than in its idle runs.
    assert (right, len(starts)) == (49, 51)
    assert all(start == 0 for start in starts if abs(start - 30) > 1e-6)
