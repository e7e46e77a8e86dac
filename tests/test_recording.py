"""Runs and recordings keep their rules."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.recording import Event, Recording, Run, Unmeasured, pairs


def run(**how: object) -> Run:
    given = {"id": "a", "times": [0.0, 1.0, 2.0, 3.0], "power_w": [10.0, 20.0, 30.0, 40.0]} | how
    return Run(**given)  # type: ignore[arg-type]


def test_energy_is_exact_between_any_instants() -> None:
    whole = run()
    assert (whole.start, whole.end) == (0.0, 4.0)
    assert whole.energy_j() == 100.0
    assert whole.energy_j(0.5, 1.5) == 15.0
    assert run(start=0.5, end=3.5).mean_w == pytest.approx((5 + 20 + 30 + 20) / 3)
    with pytest.raises(InvalidInput, match=r"samples cover 0\.000 to 4\.000, not 1\.000"):
        whole.energy_j(1.0, 9.0)


def test_the_first_and_last_sample_hold_a_little_beyond() -> None:
    assert run(start=-0.4, end=4.4).energy_j() == pytest.approx(0.4 * 10 + 100 + 0.4 * 40)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"power_w": [1.0, float("nan"), 2.0, 3.0]}, "sample 2: the power is missing"),
        ({"power_w": [1.0, 2.0, -3.0, 3.0]}, "sample 3: -3 W is not what a machine draws"),
        ({"power_w": [1.0, 2.0, 2e6, 3.0]}, r"sample 3: 2e\+06 W is not what a machine draws"),
        ({"power_w": [1.0, 2.0, float("inf"), 3.0]}, "sample 3: inf W"),
        ({"times": [0.0, 2.0, 1.0, 3.0]}, "sample 3 at 1.000000 does not come after"),
        ({"times": [0.0, 1.0, 1.0, 3.0]}, "sample 3 at 1.000000 does not come after"),
        ({"times": [0.0, 1.0, float("nan"), 3.0]}, "sample 3 has no time"),
        ({"times": [0.0], "power_w": [1.0]}, "needs two samples or more"),
        ({"times": [], "power_w": []}, "needs two samples or more"),
        ({"kind": "half"}, "the kind is one of full, stop"),
        ({"power": "guessed"}, "power is measured or estimated, not 'guessed'"),
        ({"start": 3.0, "end": 2.0}, "the program ran from 3.000 to 2.000"),
        ({"end": 99.0}, "samples cover 0.000 to 4.000"),
        ({"columns": {"cpu": [1.0]}}, "column 'cpu' has 1 values for 4 samples"),
    ],
)
def test_what_is_no_run(how: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run(**how)


def test_events_need_a_time_and_a_label() -> None:
    with pytest.raises(InvalidInput, match="needs a time"):
        Event(time=float("nan"), label="a")
    with pytest.raises(InvalidInput, match="needs a label"):
        Event(time=0.0, label="")


def test_gaps_are_found_where_the_program_ran() -> None:
    times = np.concatenate([np.arange(0, 10, 0.1), np.arange(15, 20, 0.1)])
    gappy = run(times=times, power_w=np.full(times.size, 5.0))
    assert gappy.gaps == (pytest.approx((10.0, 15.0)),)
    # What was not measured is not counted, and is no reason to think that less was drawn.
    assert gappy.missing_s == pytest.approx(5.0)
    assert gappy.energy_j() == pytest.approx(15 * 5.0)
    assert gappy.mean_w == pytest.approx(5.0)
    assert run(times=times, power_w=np.full(times.size, 5.0), start=15.0).gaps == ()


def test_no_value_holds_across_a_silence() -> None:
    times = [*np.arange(0, 1, 0.1), *np.arange(1.5, 3, 0.1)]
    power_w = [900.0] * 10 + [100.0] * 15
    held = run(times=times, power_w=power_w)
    quiet = run(times=times, power_w=power_w, silent=[(1.0, 1.5)])
    # Half a second without a mark is a late sample; with one, it is a gap.
    assert held.gaps == ()
    assert held.energy_j() == pytest.approx(1.5 * 900 + 1.5 * 100)
    assert quiet.gaps == (pytest.approx((1.0, 1.5)),)
    assert quiet.energy_j() == pytest.approx(900 + 1.5 * 100)
    assert quiet.missing_s == pytest.approx(0.5)
    assert quiet.energy_j(1.1, 1.4) != quiet.energy_j(1.1, 1.4)
    # One missing reading is none.
    assert run(times=times, power_w=power_w, silent=[(1.3, 1.5)]).gaps == ()


def test_silence_at_both_ends_is_watched_but_not_measured() -> None:
    times = np.arange(5, 6, 0.1)
    whole = run(
        times=times, power_w=np.full(10, 10.0), start=2.0, end=9.0, silent=[(1.0, 5.0), (6.0, 9.0)]
    )
    assert whole.duration_s == 7.0
    assert whole.energy_j() == pytest.approx(10.0)
    assert whole.missing_s == pytest.approx(6.0)
    assert whole.mean_w == pytest.approx(10.0)
    assert pickle.loads(pickle.dumps(whole)).gaps == whole.gaps


def test_a_recording_may_hold_runs_without_samples() -> None:
    empty = Unmeasured(id="b", kind="full", exit_status=127, notes=("not found",))
    only = Recording(runs=(), unmeasured=(empty,))
    assert repr(only) == "<Recording: 0 runs, 1 without samples>"
    with pytest.raises(InvalidInput, match="b is twice"):
        Recording(runs=(run(id="b"),), unmeasured=(empty,))


def test_idle_is_before_the_program_or_all_of_an_idle_run() -> None:
    assert run(start=2.0).idle().tolist() == [10.0, 20.0]
    assert run(kind="idle", start=1.0, end=3.0).idle().tolist() == [20.0, 30.0]


def test_runs_have_names_of_their_own() -> None:
    with pytest.raises(InvalidInput, match="a is twice"):
        Recording(runs=(run(), run()))
    with pytest.raises(InvalidInput, match="at least one run"):
        Recording(runs=())
    both = Recording(runs=(run(), run(id="b")))
    assert both["b"].id == "b"
    assert [each.id for each in both] == ["a", "b"]
    with pytest.raises(KeyError):
        both["c"]


def test_pairs_need_both_halves() -> None:
    stop = run(id="s", kind="stop", pair="p")
    rest = run(id="r", kind="resume", pair="p")
    alone = run(id="t", kind="stop", pair="q")
    assert pairs([stop, rest, alone], "stop") == [(stop, rest)]
    assert pairs([stop, rest, alone], "kill") == []


def test_a_run_crosses_to_another_process() -> None:
    one = run(events=[Event(time=1.0, label="x", checkpoint=True)], machine={"cpu": "z"})
    again = pickle.loads(pickle.dumps(one))
    assert repr(again) == repr(one)
    assert again.events == one.events
    assert dict(again.machine) == {"cpu": "z"}


def test_samples_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        run().power_w[0] = 1.0
