"""The ladder on machines whose power is known, and on measured ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput, MissingExtra, UnknownName
from lowtide.formats import read_recordings
from lowtide.learning.figures import utilisation_chart, write_utilisation_figure
from lowtide.learning.ladder import RUNGS
from lowtide.learning.observations import observe
from lowtide.learning.utilisation import (
    UNSUPPORTED,
    LearnedUtilisation,
    folds,
    learn_utilisation,
    model_card,
    write_card,
)
from lowtide.recording import Recording
from lowtide.samples import sample_recording
from lowtide.signal import FloatArray
from support.machines import (
    Truth,
    convex,
    interacting,
    linear,
    machine_run,
    machine_runs,
    nothing,
    two,
)

NOISE_W = 4.0 / np.sqrt(2)  # of windows of two samples


@pytest.fixture(scope="module")
def line() -> LearnedUtilisation:
    return learn_utilisation([machine_runs(5, linear)])


@pytest.mark.parametrize(
    ("truth", "names", "least", "most"),
    [
        (linear, ("cpu",), "interpolation", "ridge"),
        (convex, ("cpu",), "curves", "network"),
        (two, ("cpu", "disk"), "ridge", "ridge"),
        (interacting, ("cpu", "gpu"), "network", "network"),
    ],
    ids=["linear", "convex", "two features", "interacting"],
)
def test_the_ladder_is_climbed_as_far_as_the_truth_asks(
    truth: Truth, names: tuple[str, ...], least: str, most: str
) -> None:
    learned = learn_utilisation([machine_runs(5, truth, names=names)])
    order = [each.name for each in learned.tried]
    assert learned.chosen is not None
    assert order.index(least) <= order.index(learned.chosen) <= order.index(most)
    assert learned.model is not None
    # Near the truth everywhere, and on a run that nobody has seen off by little more than noise.
    use = np.random.default_rng(0).uniform(0.05, 0.95, size=(200, len(names)))
    said = [learned.model.at(dict(zip(names, row, strict=True))).power_w for row in use.tolist()]
    assert np.sqrt(np.mean(np.square(said - truth(use)))) < NOISE_W
    new = observe([Recording(runs=[machine_run("new", truth, seed=99, names=names)])])
    said = [learned.model.form.watts(row) for row in new.use.tolist()]
    assert np.sqrt(np.mean(np.square(said - new.power_w))) < 1.4 * NOISE_W


def test_noise_supports_no_model(tmp_path: Path) -> None:
    learned = learn_utilisation([machine_runs(5, nothing, offset_w=3.0)])
    assert learned.model is None
    assert learned.chosen is None
    assert learned.why.startswith(f"{UNSUPPORTED}: over 5 runs that were left out the mean is off")
    assert learned.document()["model"] is None
    assert UNSUPPORTED in model_card(learned).replace("These", "these")
    with pytest.raises(InvalidInput, match="there is no model to draw"):
        write_utilisation_figure(learned, tmp_path / "none.png")
    insisted = learn_utilisation([machine_runs(5, nothing)], rung="ridge")
    assert insisted.chosen == "ridge"
    assert "was asked for" in insisted.why


def test_the_chosen_rung_is_the_simplest_within_one_standard_error(
    line: LearnedUtilisation,
) -> None:
    best = min(line.tried, key=lambda each: each.rmse_w.value)
    assert best.rmse_w.error is not None
    within = [
        each.name
        for each in line.tried
        if each.rmse_w.value <= best.rmse_w.value + best.rmse_w.error
    ]
    assert line.chosen == within[0]
    assert [each.name for each in line.tried if each.within] == within
    for each, before in zip(line.tried[1:], line.tried, strict=False):
        assert each.gain_w is not None
        assert len(each.gain_w.per_run) == len(before.rmse_w.per_run) == 5


def test_a_run_is_predicted_without_having_been_seen() -> None:
    """One run draws 100 W more: no model that has not seen it can know."""
    runs = [*machine_runs(4, linear), machine_run("odd", lambda use: linear(use) + 100, seed=50)]
    learned = learn_utilisation([Recording(runs=runs)])
    assert all(each.rmse_w.per_run[-1] > 80 for each in learned.tried)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder without trees and network, which take most of the time where the truth is a line."""
    monkeypatch.setattr("lowtide.learning.utilisation.RUNGS", RUNGS[:3])


@pytest.mark.usefixtures("quick")
def test_intervals_hold_on_new_runs() -> None:
    learned = learn_utilisation([machine_runs(14, linear, offset_w=4.0, seconds=30.0)])
    assert learned.model is not None
    band = learned.model.band
    assert band is not None
    assert (band.level, band.runs) == (0.9, 14)
    held = []
    for seed in range(200):
        run = machine_run("new", linear, seed=5000 + seed, offset_w=4.0, seconds=30.0)
        data = observe([Recording(runs=[run])])
        said = np.array([learned.model.form.watts(row) for row in data.use.tolist()])
        held.append(np.mean(np.abs(said - data.power_w) <= band.half_w))
    assert 0.85 < np.mean(held) < 0.98
    assert learned.coverage is not None
    assert learned.coverage.mean == pytest.approx(0.92, abs=0.07)


def test_the_model_knows_its_range(line: LearnedUtilisation) -> None:
    low = learn_utilisation([machine_runs(4, linear, top=0.5)]).model
    assert low is not None
    assert low.features[0].high == pytest.approx(0.5)
    assert "cpu is above the 0 to 0.5" in low.at({"cpu": 0.8}).outside[0]
    assert line.model is not None
    assert line.model.at({"cpu": 0.8}).outside == ()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("bends", [True, False])
def test_intervals_widen_outside_of_what_was_learned(bends: bool) -> None:
    """Power may bend where nobody looked, or go on as before: an interval there holds both."""

    def truth(use: FloatArray) -> FloatArray:
        return linear(np.minimum(use, 0.5) if bends else use)

    model = learn_utilisation([machine_runs(9, truth, top=0.5)]).model
    assert model is not None
    assert model.band is not None
    held, widths = [], []
    for cpu in np.linspace(0, 1, 101).tolist():
        said = model.at({"cpu": cpu})
        watts = float(truth(np.array([[cpu]]))[0])
        held.append(said.low_w <= watts <= said.high_w)
        if said.outside:
            widths.append(said.high_w - said.power_w)
    assert np.mean(held) >= model.band.level
    assert len(widths) > 40
    assert np.all(np.diff(widths) > 0)


@pytest.mark.usefixtures("quick")
def test_intervals_go_by_use() -> None:
    learned = learn_utilisation([machine_runs(12, linear, noise_w=1.0, unrest_w=30.0)])
    assert learned.model is not None
    idle, full = (learned.model.at({"cpu": cpu}) for cpu in (0.0, 1.0))
    assert idle.high_w - idle.low_w < 0.5 * (full.high_w - full.low_w)
    # Either end is held about as often as it was promised.
    held: dict[bool, list[bool]] = {True: [], False: []}
    for seed in range(30):
        run = machine_run("new", linear, seed=7000 + seed, noise_w=1.0, unrest_w=30.0)
        data = observe([Recording(runs=[run])])
        for (cpu,), watts in zip(data.use.tolist(), data.power_w.tolist(), strict=True):
            said = learned.model.at({"cpu": cpu})
            held[cpu > 0.5].append(said.low_w <= watts <= said.high_w)
    assert all(np.mean(each) > 0.85 for each in held.values())
    assert np.mean(held[True]) < 0.99


@pytest.mark.parametrize("lag_s", [-0.4, 0.0, 0.3, 1.0])
def test_use_that_is_seen_late_is_put_right(lag_s: float) -> None:
    runs = machine_runs(3, linear, lag_s=lag_s, step_s=0.1)
    data = observe([runs])
    assert data.lag_s == pytest.approx(lag_s, abs=0.06)
    if lag_s:
        assert f"by {abs(data.lag_s):.2f} s (" in data.notes[-1]
        line = np.polyfit(data.use[:, 0], data.power_w, 1)
        assert np.abs(np.polyval(line, data.use[:, 0]) - data.power_w).mean() < 2.5


def test_no_lag_is_made_of_chance() -> None:
    for seed in range(4):
        for truth in (nothing, interacting):
            runs = machine_runs(3, truth, seed=seed, names=("cpu", "gpu"), step_s=0.1, seconds=40.0)
            data = observe([runs], features=["cpu", "gpu"])
            assert abs(data.lag_s) <= 0.05


def test_one_marked_sweep_is_split_by_its_marks() -> None:
    sweep = machine_run("sweep", linear, seed=5, marked=True, seconds=90.0)
    learned = learn_utilisation([Recording(runs=[sweep])])
    assert learned.data.runs == learned.data.loads
    count = len({event.label for event in sweep.events})
    assert len(learned.data.loads) == count > 20
    said = f"sweep is a single run: its {count} marked loads are left out in turn"
    assert said in learned.data.notes
    assert learned.model is not None
    assert learned.model.at({"cpu": 0.5}).power_w == pytest.approx(130.0, abs=3.0)


def test_unseen_loads_are_no_worse_than_by_a_straight_line() -> None:
    """Programs that draw more or less at the same use: what fits one exactly misleads on others."""
    gains = []
    for seed in range(3):
        rng = np.random.default_rng([9, seed])
        programs = []
        for number in range(7):
            slope, bend = rng.uniform(80, 220), rng.uniform(0.5, 2)

            def truth(use: FloatArray, slope: float = slope, bend: float = bend) -> FloatArray:
                return 60 + slope * use[:, 0] ** bend

            run = machine_run(f"program_{number}", truth, seed=100 * seed + number, seconds=30.0)
            programs.append(run)
        *known, new = programs
        learned = learn_utilisation([Recording(runs=known)])
        data = observe([Recording(runs=[new])], features=["cpu"])
        line = RUNGS[0].fit(learned.data.use, learned.data.power_w, 0).predict(data.use)
        said = np.full(len(data), learned.data.power_w.mean())
        if (model := learned.model) is not None:
            said = np.array([model.at({"cpu": cpu}).power_w for (cpu,) in data.use.tolist()])
        off = [np.abs(watts - data.power_w).mean() for watts in (line, said)]
        gains.append(off[0] - off[1])
    assert np.mean(gains) > -1.0


def test_a_figure_shows_what_was_predicted_over_what_was_measured() -> None:
    learned = learn_utilisation(
        [machine_runs(9, interacting, names=("cpu", "gpu"))], rung="boosting"
    )
    assert learned.model is not None
    assert learned.model.band is not None
    over_use, over_measured = utilisation_chart(learned).vconcat
    # Around the line over one of two features, the interval would seem to miss half the windows.
    assert len(over_use.layer) == 2
    band, dots, _ = (layer.data.values for layer in over_measured.layer)
    half_at = learned.model.band.half_at
    held = [
        abs(dot["predicted"] - dot["measured"]) <= half_at(dot["predicted"]) + 0.02 for dot in dots
    ]
    assert np.mean(held) >= learned.model.band.level - 0.02
    assert band[1]["high"] - band[1]["predicted"] == pytest.approx(half_at(band[1]["predicted"]))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        learned = learn_utilisation(
            [machine_runs(3, interacting, names=("cpu", "gpu"))], rung="network", seed=5
        )
        assert learned.model is not None
        learned.model.dump(tmp_path / f"{name}.json")
        write_card(learned, tmp_path / f"{name}.md")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.md").read_bytes() == (tmp_path / "b.md").read_bytes()


def test_a_single_run_cannot_be_validated() -> None:
    with pytest.raises(InvalidInput, match="a single run cannot be validated"):
        learn_utilisation([machine_runs(1, linear)])
    blind = machine_run("short", linear, seed=4, seconds=3.0)
    with pytest.raises(InvalidInput, match="at least one more; run short is left out"):
        learn_utilisation([Recording(runs=[*machine_runs(1, linear), blind])])


def test_two_runs_are_enough_and_promise_little() -> None:
    learned = learn_utilisation([machine_runs(2, linear)])
    assert learned.model is not None
    assert learned.model.band is not None
    assert learned.model.band.level == pytest.approx(2 / 3)
    assert learned.coverage is None
    assert "needs three runs" in model_card(learned)


def test_many_runs_are_left_out_in_ten_folds() -> None:
    assert folds(7).tolist() == list(range(7))
    assert sorted(np.bincount(folds(33))) == [3] * 7 + [4] * 3


def test_bad_wishes() -> None:
    with pytest.raises(UnknownName, match=r"unknown rung 'rigde'.*did you mean 'ridge'"):
        learn_utilisation([machine_runs(2, linear)], rung="rigde")
    with pytest.raises(InvalidInput, match="a level lies between 0 and 1"):
        learn_utilisation([machine_runs(2, linear)], level=90)


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lowtide\[learn\]'"):
        learn_utilisation([machine_runs(2, linear)])


def test_the_card_tells_all(line: LearnedUtilisation, tmp_path: Path) -> None:
    card = model_card(line)
    for words in (
        "## Data",
        "- 5 runs: full_0, full_1",
        "measured by made up",
        "- cpus: 8",
        "## The ladder",
        f"| {line.chosen} |",
        "| chosen |",
        "## Intervals",
        "5 runs support no higher level",
        "| cpu | 0 | 1 |",
        "never a measurement",
    ):
        assert words in card, words
    with pytest.raises(InvalidInput, match=r"a model card is a \.md file"):
        write_card(line, tmp_path / "card.txt")


def drawn_line(learned: LearnedUtilisation) -> list[dict[str, float]]:
    return utilisation_chart(learned).vconcat[0].layer[-1].data.values


def test_the_figure_shows_windows_model_and_interval(
    line: LearnedUtilisation, tmp_path: Path
) -> None:
    write_utilisation_figure(line, tmp_path / "figure.svg")
    assert "Power over cpu" in (tmp_path / "figure.svg").read_text()
    model = drawn_line(line)
    assert line.model is not None
    assert model[0]["power"] == pytest.approx(line.model.at({"cpu": 0.0}).power_w, abs=0.01)
    assert all(row["low"] <= row["power"] <= row["high"] for row in model)
    several = learn_utilisation([machine_runs(3, two, names=("cpu", "disk"))])
    assert 15 < len(drawn_line(several)) <= 20


def test_a_measured_gpu() -> None:
    recordings = read_recordings([sample_recording("h200"), sample_recording("h200-sweep")])
    learned = learn_utilisation(recordings, features=["gpu=gpu_util/100", "clock=sm_clock_mhz"])
    assert len(learned.data.runs) == 9
    assert len(learned.data.loads) == 28
    assert learned.data.lag_s == pytest.approx(0.2, abs=0.1)
    mean, line, *_ = learned.tried
    (chosen,) = [each for each in learned.tried if each.name == learned.chosen]
    assert mean.rmse_w.value > 200
    assert chosen.unseen_w is not None
    assert line.unseen_w is not None
    assert chosen.unseen_w.value <= line.unseen_w.value
    # The first eight are runs of one job: what is learned holds among them.
    assert np.mean(chosen.mae_w.per_run[:8]) < 15
    assert learned.coverage is not None
    assert learned.coverage.mean > 0.85
