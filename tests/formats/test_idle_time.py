"""Idle time around a program: found where something tells it, never at the program's cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.formats.idle_time import IdleTime, find_idle_time
from lowtide.formats.recordings import read_recordings
from support.recordings import Pinpointed, make_pinpointed

# Made with seeds below 1000; what counts as a pause was narrowed once after a look at these.
HELD_OUT = range(5000, 5080)


def found(case: Pinpointed) -> IdleTime:
    return find_idle_time(case.power_w, case.step_s, case.events, on=case.on)


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


@pytest.mark.parametrize("idle_s", [5.0, 30.0, 120.0])
def test_idle_time_is_found(idle_s: float) -> None:
    cases = [
        make_pinpointed(seed, idle_before_s=idle_s, idle_after_s=idle_s) for seed in HELD_OUT[:30]
    ]
    before = [abs(found(case).before_s - idle_s) <= 0.5 for case in cases]
    assert np.mean(before) >= 0.8


def test_without_idle_time_all_is_the_programs() -> None:
    cut = []
    for seed in HELD_OUT[:40]:
        case = make_pinpointed(seed, idle_before_s=0.0, idle_after_s=0.0)
        idle = found(case)
        # The program's last word comes 20 ms before its end.
        assert idle.after_s <= 0.03 + case.step_s
        assert len(idle.notes) == 2
        if idle.before_s:
            cut.append((seed, idle.before_s))
    # A quiet startup of 5.0 s sharp that says nothing before its end is taken for a pause.
    assert len(cut) <= 1, cut


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
    assert "30 s of idle time before the program are left out" in recording.notes


def test_roberta_idled_for_30_s(data: Callable[[str], Path]) -> None:
    recordings = read_recordings(data("power/roberta"))
    starts = [run.start - run.times[0] for each in recordings for run in each if run.kind != "idle"]
    right = sum(abs(start - 30) < 1e-6 for start in starts)
    # Before one run, the machine was as busy as in its startup: 96 W and 100 W.
    assert (right, len(starts)) == (50, 51)
    assert all(start == 0 for start in starts if abs(start - 30) > 1e-6)
