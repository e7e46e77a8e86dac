"""Made-up machines whose power is a known function of their use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowtide.meters.estimate import FEATURES
from lowtide.recording import Event, Recording, Run
from lowtide.signal import FloatArray

Truth = Callable[[FloatArray], FloatArray]


def linear(use: FloatArray) -> FloatArray:
    return 60.0 + 140.0 * use[:, 0]


def convex(use: FloatArray) -> FloatArray:
    return 60.0 + 200.0 * use[:, 0] ** 3


def two(use: FloatArray) -> FloatArray:
    return 50.0 + 100.0 * use[:, 0] + 60.0 * use[:, 1]


def interacting(use: FloatArray) -> FloatArray:
    """Busy with one thing it is costly, with both the second comes for free, and less."""
    first, second = use[:, 0], use[:, 1]
    return 80.0 + 150.0 * (first + second - 2 * first * second)


def nothing(use: FloatArray) -> FloatArray:
    return np.full(use.shape[0], 120.0)


def machine_run(
    name: str,
    truth: Truth,
    *,
    seed: int,
    names: Sequence[str] = ("cpu",),
    seconds: float = 60.0,
    step_s: float = 0.5,
    noise_w: float = 4.0,
    offset_w: float = 0.0,
    top: float = 1.0,
    lag_s: float = 0.0,
    unrest_w: float = 0.0,
    marked: bool = False,
    power: str = "measured",
) -> Run:
    """Return a run whose use goes up and down in steps of three seconds, at random.

    Use is seen `lag_s` after it draws power, which wanders by `unrest_w` more at full use, and each
    step may be marked by the load that it is.
    """
    rng = np.random.default_rng(seed)
    count = round(seconds / step_s)
    held = round(3.0 / step_s)
    levels = rng.uniform(0.0, top, size=(-(-count // held), len(names)))
    # Every run begins idle and then goes all out.
    levels[0], levels[1:2] = 0.0, top
    use = np.repeat(levels, held, axis=0)[:count]
    noise = noise_w * rng.standard_normal(count) + offset_w * rng.standard_normal()
    noise = noise + unrest_w * use[:, 0] * rng.standard_normal(count)
    seen = np.roll(use, round(lag_s / step_s), axis=0)
    columns = {FEATURES.get(each, each): seen[:, place] for place, each in enumerate(names)}
    begin = 1.7e9 + 1000.0 * seed
    events = [
        Event(time=begin + held * step_s * place, label=f"load_{level:.2f}")
        for place, level in enumerate(levels[:, 0].tolist())
    ]
    return Run(
        id=name,
        times=begin + step_s * np.arange(count),
        power_w=np.maximum(truth(use) + noise, 0.0),
        kind="full",
        columns=columns,
        events=events if marked else (),
        power=power,
        meters=("made up",),
        machine={"cpu": "made up", "cpus": 8},
    )


def machine_runs(count: int, truth: Truth, *, seed: int = 0, **how: object) -> Recording:
    """Return several runs that differ by their seed."""
    return Recording(
        runs=tuple(
            machine_run(f"full_{i}", truth, seed=1000 * seed + i, **how)  # type: ignore[arg-type]
            for i in range(count)
        ),
        source="machine",
    )
