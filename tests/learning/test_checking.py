"""Profiles against runs that were stopped, killed and resumed: by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowtide.learning import learn
from lowtide.learning.checking import check, comparable, summaries
from lowtide.profile import Phase, PowerProfile
from lowtide.recording import Recording, Run
from support.recordings import EPOCH, EXIT, PHASES, STARTUP, labels_of, make_run

EPOCH_J = sum(seconds * watts for seconds, watts in EPOCH)
STARTUP_J = sum(seconds * watts for seconds, watts in STARTUP)


def profile(*, checkpoints: bool = True) -> PowerProfile:
    def phase(part: tuple[float, float], saved: bool = False) -> Phase:
        return Phase(name="p", duration_s=part[0], power_w=part[1], checkpoint=saved)

    epoch = [phase(EPOCH[0]), phase(EPOCH[1]), phase(EPOCH[2], checkpoints)]
    return PowerProfile(
        startup=[phase(part) for part in STARTUP],
        work=[*epoch * 3, phase(EXIT[0])],
    )


def run(
    name: str, phases: tuple[tuple[float, float], ...], labels: tuple[str, ...], kind: str
) -> Run:
    return make_run(
        name, phases, labels=labels, kind=kind, pair="p", jitter=0.0, noise_w=0.0, step_s=0.01
    )


def pair(kind: str) -> list[Run]:
    lost = (EPOCH[0],) if kind == "kill" else ()
    epoch = ("epoch_1_train", "epoch_1_eval", "epoch_1_save")
    first = (*STARTUP, *EPOCH, *lost)
    labels = ("import", "load", *epoch, *(("epoch_2_train",) if lost else ()))
    rest = (*STARTUP, *EPOCH * 2, *EXIT)
    return [run("a", first, labels, kind), run("b", rest, labels_of((2, 3)), "resume")]


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("kind", ["stop", "kill"])
def test_a_pair_is_laid_out_as_it_was_run(kind: str, checkpoints: bool) -> None:
    (only,) = check(profile(checkpoints=checkpoints), pair(kind))
    lost_j = EPOCH[0][0] * EPOCH[0][1] if kind == "kill" else 0.0
    wanted_j = 2 * STARTUP_J + 3 * EPOCH_J + EXIT[0][0] * EXIT[0][1] + lost_j
    assert only.kind == kind
    assert only.runs == ("a", "b")
    assert only.predicted_j == pytest.approx(wanted_j, rel=1e-6)
    assert only.measured_j == pytest.approx(wanted_j, rel=1e-3)
    assert abs(only.error) < 1e-3
    assert only.rmse_w < 15
    assert only.starts[1] == pytest.approx((11.0, 35.0), abs=1e-3)


@pytest.mark.parametrize("kind", ["stop", "kill"])
def test_the_second_of_a_pair_begins_with_the_restart(kind: str) -> None:
    again = [Phase(name="again", duration_s=1.5, power_w=50)]
    (plain,), (only,) = (
        check(each, pair(kind)) for each in (profile(), replace(profile(), restart=again))
    )
    assert only.starts == plain.starts
    assert only.predicted_j == pytest.approx(plain.predicted_j - STARTUP_J + 75, rel=1e-9)
    shorter_s = sum(seconds for seconds, _ in STARTUP) - 1.5
    assert only.predicted_s == pytest.approx(plain.predicted_s - shorter_s, rel=1e-9)


def test_full_runs_and_what_cannot_be_compared() -> None:
    runs = [
        run("f", PHASES, labels_of((1, 2, 3)), "full"),
        run("lonely", (*STARTUP, *EPOCH), ("import", "load", "a", "b", "c"), "stop"),
    ]
    (only,) = check(profile(), runs)
    assert only.kind == "full"
    assert abs(only.error) < 1e-3
    assert summaries([only]) == [
        f"one uninterrupted run: energy off by {100 * only.error:+.1f} %, duration by +0.0 %"
    ]
    assert "2 uninterrupted runs: energy off by" in summaries([only, only])[0]


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.25])
def test_how_long_runs_take_is_checked_as_well(slower: float) -> None:
    phases = tuple((slower * seconds, watts) for seconds, watts in PHASES)
    runs = [run("a", phases, labels_of((1, 2, 3)), "full")]
    (only,) = check(profile(), runs)
    assert only.predicted_s == pytest.approx(profile().run_s)
    assert only.measured_s == pytest.approx(slower * profile().run_s, rel=1e-3)
    assert only.late == pytest.approx(1 / slower - 1, abs=2e-3)
    # Both parts of a pair count, each with its startup.
    both = pair("stop")
    (only,) = check(profile(), both)
    assert only.late == pytest.approx(0.0, abs=2e-3)
    assert only.predicted_s == pytest.approx(profile().run_s + profile().startup_s)


def with_epochs(name: str, count: int) -> Run:
    labels = labels_of(tuple(range(1, count + 1)))
    return run(name, (*STARTUP, *EPOCH * count, *EXIT), labels, "full")


@pytest.mark.parametrize("counts", [(3, 3, 3, 2, 4), (3, 2), (8, 8), (1, 3), (5,), (30, 2, 2)])
def test_runs_of_any_number_of_epochs_are_told_by_as_many(counts: tuple[int, ...]) -> None:
    runs = [with_epochs(f"r{place}", count) for place, count in enumerate(counts)]
    named = learn(Recording(runs=tuple(with_epochs(f"f{n}", 3) for n in range(2)))).profile
    # By names that the program says as well; a profile without them has the number that it repeats.
    for each in (named, *([profile()] if 3 in counts else [])):
        checks = check(each, runs)
        assert len(checks) == len(counts)
        for own, count in zip(checks, counts, strict=True):
            wanted_j = STARTUP_J + count * EPOCH_J + EXIT[0][0] * EXIT[0][1]
            assert own.predicted_j == pytest.approx(wanted_j, rel=0.01)
            assert abs(own.error) < 0.01
            assert abs(own.late) < 0.01


def test_runs_of_other_epochs_than_a_profile_can_be_told_for_are_left_out_with_the_reason() -> None:
    runs = [with_epochs("a", 3), with_epochs("b", 3), with_epochs("many", 4)]
    once = [
        Phase(name=f"epoch_{what}", duration_s=8.0 + number, power_w=400)
        for number in range(3)
        for what in ("train", "eval", "save")
    ]
    stiff = PowerProfile(work=once)
    assert [each.runs for each in check(stiff, runs)] == [("a",), ("b",)]
    (why,) = comparable(runs, stiff)[1]
    assert "run many has 4 epochs and is left out: the profile has 3" in why


def test_a_baseline_is_taken_off_what_was_measured() -> None:
    runs = [run("f", PHASES, labels_of((1, 2, 3)), "full")]
    seconds = sum(part[0] for part in PHASES)
    plain, less = check(profile(), runs)[0], check(profile(), runs, baseline_w=40.0)[0]
    assert plain.measured_j - less.measured_j == pytest.approx(40.0 * seconds)


@pytest.mark.parametrize("watts", [0.0, 40.3])
def test_where_nothing_was_drawn_there_is_no_share(watts: float) -> None:
    times = np.arange(0.0, 30.0, 0.1)
    silent = Run(id="f", kind="full", times=times, power_w=np.full(times.size, watts))
    (only,) = check(profile(), [silent], baseline_w=watts)
    assert only.error is None
    assert only.predicted_j > 0
    assert summaries([only]) == []


@pytest.mark.parametrize("longer", [0.5, 1.0, 1.6])
@pytest.mark.parametrize("constant", [False, True])
def test_without_marks_power_tells_when_a_start_was_over(longer: float, constant: bool) -> None:
    lead = tuple((longer * seconds, watts) for seconds, watts in STARTUP)
    first = run("a", (*lead, *EPOCH, EPOCH[0]), (), "kill")
    second = run("b", (*lead, *EPOCH * 2, *EXIT), (), "resume")
    known = profile(checkpoints=False)
    if constant:
        # Where power tells nothing, the usual length is all there is.
        known = PowerProfile(
            startup=[Phase(name="s", duration_s=known.startup_s, power_w=100)],
            work=[Phase(name="w", duration_s=known.work_s, power_w=100)],
        )
    (only,) = check(known, [first, second])
    epoch_s = sum(seconds for seconds, _ in EPOCH)
    over_s = (longer - 1) * known.startup_s * constant
    assert only.starts[0][1] == pytest.approx(epoch_s + EPOCH[0][0] + over_s, abs=0.15)
    kept_s = min(epoch_s - over_s, only.starts[0][1])
    assert only.starts[1][0] == pytest.approx(kept_s, abs=0.15)
