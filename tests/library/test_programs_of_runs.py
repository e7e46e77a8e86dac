"""Which runs are of one program."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.learning.likeness import are_alike, use_of
from lowtide.library.programs import PastRun, Program, common_name, plain_name, tell_apart
from lowtide.recording import Run
from support.production import Program as Known


def past(known: Known, number: int, start: float, *, step_s: float = 10.0) -> PastRun:
    """A run of a known program, as a meter sees it."""
    rng = np.random.default_rng([7, number])
    edges_s, watts = known.course(rng)
    reached = np.concatenate(([0.0], np.cumsum(np.diff(edges_s) * watts)))
    times_s = np.arange(0.0, edges_s[-1], step_s)
    ends_s = np.append(times_s[1:], edges_s[-1])
    drawn = np.interp(ends_s, edges_s, reached) - np.interp(times_s, edges_s, reached)
    power_w = drawn / np.maximum(ends_s - times_s, 1e-9)
    power_w = power_w * np.exp(0.02 * rng.standard_normal(power_w.size))
    run = Run(
        id=str(number),
        times=start + times_s,
        power_w=power_w,
        start=start,
        end=start + float(edges_s[-1]),
        columns={"cpus_busy": known.busy * power_w, "gpus_busy": np.full(power_w.size, known.gpus)},
    )
    return PastRun(program=Program(name=known.name, user=known.user), run=run)


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["train_1", "train_12", "train_2024"], "train_#"),
        (["run-2024-07-04", "run-2024-07-05T12:30:11"], "run-#"),
        (["ci-3f2a9c1b", "ci-0000aaaa", "ci-deadbee1"], "ci-#"),
        (["md", "md"], "md"),
        (["17", "18"], "#"),
        (["a.1.b.2", "a.3.b.44"], "a.#.b.#"),
    ],
)
def test_what_differs_from_run_to_run_is_no_part_of_a_name(names: list[str], common: str) -> None:
    assert {common_name(name) for name in names} == {common}


@pytest.mark.parametrize("name", ["", "#", "../../etc", "a/b", ".hidden", "x" * 300, "é✓ 7", "..."])
def test_any_name_makes_a_file_name(name: str) -> None:
    made = plain_name(common_name(name))
    assert made and "/" not in made and not made.startswith((".", "-")) and len(made) <= 60


def test_how_long_a_run_takes_plays_no_part() -> None:
    """Two epochs and twenty are one program; the same at half the power is another."""
    short, long = Known(epochs=3), Known(epochs=20)
    other = Known(epochs=3, epoch=((300.0, 200.0), (60.0, 100.0)), busy=0.02)
    uses = [use_of(past(each, 1, 1e9).run) for each in (short, long, other)]
    assert are_alike(uses[0], uses[1])
    assert not are_alike(uses[0], uses[2])


def test_the_same_power_with_other_use_is_another_program() -> None:
    on_cpus, on_gpus = Known(busy=0.02), Known(busy=0.002, gpus=1.0)
    uses = [use_of(past(each, 1, 1e9).run) for each in (on_cpus, on_gpus)]
    assert not are_alike(*uses)


def test_what_nobody_knows_of_is_not_compared() -> None:
    known, blind = use_of(past(Known(), 1, 1e9).run), use_of(past(Known(), 2, 1e9).run)
    blind[1:] = np.nan
    assert are_alike(known, blind)


@pytest.mark.parametrize("seed", range(12))
def test_programs_that_share_a_name_are_told_apart(seed: int) -> None:
    """Drawn programs run by turns: each is found with its own runs, whatever their lengths."""
    rng = np.random.default_rng([15, seed])
    levels = 60.0 * 1.9 ** rng.permutation(5)[: rng.integers(1, 5)]
    truth: dict[str, int] = {}
    runs = []
    for _ in range(int(rng.integers(4, 9))):
        for which, watts in enumerate(levels):
            known = Known(
                epoch=((float(200 + 50 * which), watts), (40.0, 0.6 * watts)),
                startup=(60.0, 0.3 * watts),
                epochs=int(rng.integers(3, 9)),
                busy=2.0 / watts,
            )
            number = len(runs)
            truth[str(number)] = which
            runs.append(past(known, number, 1e9 + 1e4 * number))
    kinds, strays = tell_apart(runs)
    assert not strays
    found = {frozenset(each.run.id for each in kind.runs) for kind in kinds}
    wanted = {
        frozenset(name for name, own in truth.items() if own == which)
        for which in range(len(levels))
    }
    assert found == wanted
    assert not any(kind.former for kind in kinds)


def test_one_that_takes_the_place_of_another_is_the_same_changed() -> None:
    before, after = Known(), Known(epoch=((300.0, 800.0), (60.0, 300.0)), busy=0.005)
    runs = [past(before, number, 1e9 + 1e4 * number) for number in range(6)]
    runs += [past(after, 6 + number, 1e9 + 1e4 * (6 + number)) for number in range(4)]
    (kind,), strays = tell_apart(runs)
    assert [each.run.id for each in kind.runs] == ["6", "7", "8", "9"]
    assert [each.run.id for each in kind.former] == ["0", "1", "2", "3", "4", "5"]
    assert not strays


def test_a_run_like_no_other_is_a_stray() -> None:
    runs = [past(Known(), number, 1e9 + 1e4 * number) for number in range(6)]
    odd = Known(epoch=((300.0, 40.0),), busy=0.0)
    runs.insert(3, past(odd, 99, 1e9 + 2.5e4))
    (kind,), strays = tell_apart(runs)
    assert len(kind.runs) == 6
    assert [each.run.id for each in strays] == ["99"]
