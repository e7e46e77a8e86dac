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
from lowtide.recording import Event, Recording, Run
from support.commands import run


def recording(epochs: int, gpus: float = 1.0, *, seed: int = 0, marks: bool = True) -> Recording:
    """Two runs: startup, epochs that more GPUs make shorter and dearer, end."""
    runs = []
    for number in range(2):
        rng = np.random.default_rng([seed, epochs, int(8 * gpus), number])
        parts = [("load", 12.0, 100.0)]
        for epoch in range(epochs):
            parts.append((f"epoch_{epoch + 1}_train", 20.0 / gpus, 300.0 * gpus))
            parts.append((f"epoch_{epoch + 1}_save", 6.0, 120.0))
        parts.append(("finish", 5.0, 90.0))
        edges_s = np.concatenate(([0.0], np.cumsum([seconds for _, seconds, _ in parts])))
        times_s = np.arange(0.0, edges_s[-1], 0.25)
        place = np.searchsorted(edges_s, times_s, side="right") - 1
        power_w = np.array([watts for *_, watts in parts])[place]
        start = 1.7e9 + 1e4 * number
        runs.append(
            Run(
                id=f"full_{number}",
                times=start + times_s,
                power_w=power_w * (1 + 0.005 * rng.standard_normal(power_w.size)),
                start=start,
                end=start + float(edges_s[-1]),
                kind="full",
                events=[
                    Event(time=start + float(at), label=name)
                    for (name, *_), at in zip(parts, edges_s, strict=False)
                ]
                if marks
                else (),
            )
        )
    return Recording(runs=tuple(runs), source=f"{epochs}")


def sized(epochs: int, gpus: float = 1.0, by: tuple[str, ...] = ("epochs",)) -> Sized:
    size = {"epochs": float(epochs), "gpus": gpus}
    learned = learn(recording(epochs, gpus), validated=False)
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
    for text in ("epochs", "epochs=x", "epochs=0", "epochs=nan", "gpus=3", "epochs=3,gpus=1", ""):
        with pytest.raises(InvalidInput):
            read_size(text, ["epochs"], "--at")


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for epochs in (3, 5, 8):
        write_recording(recording(epochs), tmp_path / f"e{epochs}")
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
        (("learn", "h200", "--at", "epochs=3"), "belongs to --by"),
        ((*words, "--check", "p.toml"), "--by goes without"),
    ):
        answer = run(capsys, *wrong)
        assert answer.code == 2
        assert rule in answer.err
