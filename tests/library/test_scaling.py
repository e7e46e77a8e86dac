"""How programs grow with their size: known laws are found, and what is not known is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.formats.recording_writer import write_recording
from lowtide.learning import learn
from lowtide.library.scaling import Sized, fit_scaling, read_size
from lowtide.profile import PowerProfile
from support.commands import run
from support.grown import judge_sizes, told
from support.nightly import drawn
from support.recordings import sized_recording


def sized(epochs: int, gpus: float = 1.0, by: tuple[str, ...] = ("epochs",)) -> Sized:
    size = {"epochs": float(epochs), "gpus": gpus}
    learned = learn(sized_recording(epochs, gpus), validated=False)
    return Sized(name=f"{epochs}", size=tuple(size[name] for name in by), learned=learned)


def truth(epochs: int, gpus: float = 1.0) -> tuple[float, float]:
    """The energy and duration of a run, by what it was made of."""
    energy_j = 12 * 100 + epochs * (20 * 300 + 6 * 120) + 5 * 90
    return energy_j, 17 + epochs * (20 / gpus + 6)


def test_a_linear_law_is_found_and_goes_on() -> None:
    scaling = fit_scaling(["epochs"], [sized(each) for each in (3, 5, 8)])
    assert scaling.energy_j.kind == scaling.duration_s.kind == "linear"
    assert scaling.energy_j.factors == pytest.approx((1650, 6720), rel=0.05)
    assert scaling.energy_j.worst < 0.02
    for epochs in (4, 40):
        energy_j, duration_s = truth(epochs)
        told = scaling.foretell(scaling.energy_j, [epochs])
        assert told.value == pytest.approx(energy_j, rel=0.02)
        profile = scaling.profile([epochs])
        assert profile.run_s == pytest.approx(duration_s, rel=0.02)
        assert profile.energy_j == pytest.approx(energy_j, rel=0.02)


def test_beyond_what_was_measured_the_band_widens() -> None:
    scaling = fit_scaling(["epochs"], [sized(each) for each in (3, 5, 8)])
    widths = []
    for epochs in (5, 8, 40, 400):
        told = scaling.foretell(scaling.energy_j, [epochs])
        widths.append((told.high - told.low) / told.value)
        assert (told.beyond > 0) == (epochs > 8)
    assert widths[0] == pytest.approx(widths[1])
    assert widths[1] < widths[2] < widths[3]
    assert scaling.foretell(scaling.energy_j, [1]).beyond > 0


def test_time_by_gpus_is_inverse() -> None:
    parts = [sized(4, gpus, ("gpus",)) for gpus in (1.0, 2.0, 4.0, 8.0)]
    scaling = fit_scaling(["gpus"], parts)
    assert scaling.duration_s.kind == "inverse"
    told = scaling.foretell(scaling.duration_s, [3.0])
    assert told.value == pytest.approx(truth(4, 3.0)[1], rel=0.02)


# How long programs take and what they draw on average, by what was changed; the sizes that are
# measured; one between them and one beyond.
GROWN = {
    "input": (
        lambda n: 30 + 0.05 * n**2,
        lambda n: 250 - 500 / n,
        (10, 15, 25, 40, 60, 80),
        (30, 160),
    ),
    "cells": (lambda n: 20 + 0.5 * n**1.5, lambda _: 300, (10, 20, 40, 80), (30, 160)),
    "gpus": (lambda g: 30 + 200 / g, lambda g: 100 + 300 * g, (1, 2, 4, 6, 8), (3, 12)),
    "gpus that talk": (
        lambda g: 30 + 200 / g + 3 * g,
        lambda g: 100 + 250 * g,
        (1, 2, 4, 6, 8),
        (3, 12),
    ),
    "clock": (
        lambda f: 20 + 100 / f,
        lambda f: 80 + 60 * f**3,
        (0.8, 1.1, 1.4, 1.7, 2.0),
        (1.25, 2.2),
    ),
    "power limit": (
        lambda p: 60 * (1 + (200 / p) ** 2),
        lambda p: 0.9 * p + 50,
        (200, 300, 400, 500, 600, 700),
        (350, 800),
    ),
}


@pytest.mark.parametrize("what", GROWN)
def test_programs_that_grow_otherwise_are_foretold_with_their_error(what: str) -> None:
    lasts_s, draws_w, sizes, asked = GROWN[what]
    rng = np.random.default_rng(7)
    off: dict[bool, list[float]] = {False: [], True: []}
    held: dict[bool, list[bool]] = {False: [], True: []}
    for _ in range(12):
        noise = 1 + 0.01 * rng.standard_normal((len(sizes), 2))
        scaling = fit_scaling(
            ["size"],
            [
                told((float(n),), lasts_s(n) * by[0], draws_w(n) * by[1])
                for n, by in zip(sizes, noise, strict=True)
            ],
        )
        for size in asked:
            for law, right in (
                (scaling.duration_s, lasts_s(size)),
                (scaling.energy_j, lasts_s(size) * draws_w(size)),
            ):
                found = scaling.foretell(law, [size])
                off[found.beyond > 0].append(abs(found.value / right - 1))
                held[found.beyond > 0].append(found.low <= right <= found.high)
            assert scaling.profile([size]).energy_j == pytest.approx(
                scaling.foretell(scaling.energy_j, [size]).value, rel=1e-4
            )
    assert np.median(off[False]) < 0.02
    assert np.median(off[True]) < 0.06
    assert np.mean(held[False]) > 0.8
    assert np.mean(held[True]) > 0.75


def test_epochs_of_which_each_takes_less_with_more_gpus_are_foretold() -> None:
    sizes = [(3, 1), (8, 1), (5, 2), (8, 2), (3, 4), (5, 4), (8, 4)]
    rng = np.random.default_rng(3)
    for _ in range(8):
        parts = []
        for epochs, gpus in sizes:
            duration_s = truth(epochs, gpus)[1] * (1 + 0.005 * rng.standard_normal())
            parts.append(told((float(epochs), float(gpus)), duration_s, 150.0 + 200 * gpus))
        scaling = fit_scaling(["epochs", "gpus"], parts)
        for size in ((6, 3), (20, 8)):
            right = truth(*size)[1]
            found = scaling.foretell(scaling.duration_s, size)
            assert found.value == pytest.approx(right, rel=0.08)
            assert found.low <= right <= found.high
    assert scaling.duration_s.kind == "linear × inverse"
    assert "s × epochs / gpus" in scaling.duration_s.text(["epochs", "gpus"], "s")


@pytest.mark.parametrize(
    ("quantities", "count"), [(1, 3), (1, 4), (1, 6), (2, 4), (2, 5), (2, 6), (2, 7)]
)
def test_bands_of_few_sizes_hold_or_it_is_said_what_is_missing(quantities: int, count: int) -> None:
    judged = judge_sizes(count, quantities, range(drawn(16, 200)))
    # What is asked for is enough: a size in which one quantity alone differs.
    assert not judged.refused or (quantities, count < 6) == (2, True)
    assert all("alone differs" in why for why in judged.refused)
    for scaling in judged.scalings:
        assert (scaling.untried is None) == (quantities == 1 or count >= 7)
    for held in judged.held.values():
        # Two standard errors, by designs: sizes that were chosen badly are off together.
        room = min(2 * np.std(held) / np.sqrt(len(held)), 0.12)
        assert np.mean(held) > 0.88 - room, (np.mean(held), room)
    assert quantities + 5 > count or np.median(judged.off[False]) < 0.03


def test_energy_may_be_time_times_power() -> None:
    """Four sizes tell neither a sum of three terms nor a product, but each factor of one."""
    lasts_s, draws_w, _, _ = GROWN["gpus"]
    noise = 1 + 0.004 * np.random.default_rng(2).standard_normal(8)
    parts = [
        told((float(g),), lasts_s(g) * noise[n], draws_w(g) * noise[4 + n])
        for n, g in enumerate((1, 2, 3, 8))
    ]
    scaling = fit_scaling(["gpus"], parts)
    assert scaling.energy_j.kind == "duration times power"
    right_j = lasts_s(5) * draws_w(5)
    assert scaling.foretell(scaling.energy_j, [5.0]).value == pytest.approx(right_j, rel=0.03)
    assert " W × gpus)" in scaling.energy_j.text(["gpus"], "J")


def test_what_sizes_cannot_tell_is_refused() -> None:
    few = [sized(3), sized(5)]
    with pytest.raises(InvalidInput, match="3 sizes or more"):
        fit_scaling(["epochs"], few)
    same = [Sized(name="a", size=(float(n), 2.0), learned=few[0].learned) for n in (1, 2, 3, 4)]
    with pytest.raises(InvalidInput, match="gpus is the same in all runs"):
        fit_scaling(["epochs", "gpus"], same)
    together = [Sized(name="a", size=(n, n), learned=few[0].learned) for n in (1.0, 2.0, 3.0, 4.0)]
    with pytest.raises(InvalidInput, match="change together"):
        fit_scaling(["epochs", "gpus"], together)
    corner = [(2.0, 1.0), (4.0, 1.0), (8.0, 1.0), (8.0, 4.0)]
    parts = [Sized(name="a", size=size, learned=few[0].learned) for size in corner]
    with pytest.raises(InvalidInput, match=r"epochs=8, gpus=4 by.*gpus is the same.*gpus alone"):
        fit_scaling(["epochs", "gpus"], parts)
    for text in ("epochs", "epochs=x", "epochs=0", "epochs=nan", "gpus=3", "epochs=3,gpus=1", ""):
        with pytest.raises(InvalidInput):
            read_size(text, ["epochs"], "--at")


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for epochs in (3, 5, 8):
        write_recording(sized_recording(epochs), tmp_path / f"e{epochs}")
    words = ("learn", "e3", "e5", "e8", "--by", "epochs")
    said = json.loads(run(capsys, *words, "--at", "epochs=40", "-o", "p.toml", "--json").out)
    assert [each["epochs"] for each in said["sizes"]] == [3, 5, 8]
    assert said["at"]["energy_j"] == pytest.approx(truth(40)[0], rel=0.02)
    assert said["at"]["beyond"] > 1
    assert PowerProfile.load("p.toml").energy_j == pytest.approx(truth(40)[0], rel=0.02)
    shown = run(capsys, *words, "--at", "epochs=40")
    assert shown.code == 0
    assert "~" in shown.out and "beyond what was measured" in shown.out
    given = run(capsys, "learn", "e3@size=1", "e5@size=2", "e8@size=3", "--by", "size", "-P")
    assert given.code == 0
    for wrong, rule in (
        ((*words, "-o", "p.toml"), "say which with --at"),
        (("learn", "e3", "--by", "gpus"), "write e3@gpus=2"),
        (("learn", "e3", "e5", "--by", "epochs"), "3 sizes or more"),
        (("learn", "--by", "epochs"), "3 sizes or more"),
        (("learn", "h200", "--at", "epochs=3"), "Missing option '--by'"),
        ((*words, "--check", "p.toml"), "No such option: --check"),
    ):
        answer = run(capsys, *wrong)
        assert answer.code == 2
        assert rule in answer.err
