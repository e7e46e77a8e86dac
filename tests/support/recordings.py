"""Made-up runs whose phases are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowtide.recording import Event, Recording, Run

# Seconds and watts: startup, epochs of train, evaluate and save, and an exit.
STARTUP = ((4.0, 60.0), (3.0, 110.0))
EPOCH = ((6.0, 400.0), (2.0, 200.0), (3.0, 120.0))
EXIT = ((2.0, 80.0),)
PHASES = (*STARTUP, *EPOCH * 3, *EXIT)


def labels_of(epochs: Sequence[int]) -> tuple[str, ...]:
    """What a run says that does these epochs."""
    parts = [f"epoch_{epoch}_{what}" for epoch in epochs for what in ("train", "eval", "save")]
    return ("import", "load", *parts, "bye")


def make_run(
    name: str,
    phases: Sequence[tuple[float, float]] = PHASES,
    *,
    labels: Sequence[str] = labels_of((1, 2, 3)),
    seed: int = 0,
    noise_w: float = 5.0,
    jitter: float = 0.03,
    step_s: float = 0.05,
    idle_w: float = 40.0,
    lag_s: float = 0.0,
    kind: str | None = "full",
    pair: str | None = None,
    marked: bool = True,
) -> Run:
    """Return a run of phases, each a little longer or shorter, with noise, idle around it.

    A label ending in `_save` is followed by one ending in `_saved` where its phase ends.
    """
    rng = np.random.default_rng(seed)
    start = 1.7e9 + 1000 * seed
    seconds = np.array([phase[0] for phase in phases])
    seconds = seconds * (1 + jitter * rng.standard_normal(seconds.size))
    edges = np.concatenate(([0.0], np.cumsum(seconds)))
    # No sample falls on an edge, where rounding would decide.
    times = np.arange(-5.0 + 0.26 * step_s, edges[-1] + 5.0, step_s)
    levels = np.array([idle_w, *(phase[1] for phase in phases), idle_w])
    power_w = levels[np.searchsorted(edges + lag_s, times, side="right")]
    power_w = np.maximum(power_w + noise_w * rng.standard_normal(times.size), 0.0)
    events = []
    for place, label in enumerate(labels if marked else ()):
        events.append(Event(time=start + float(edges[place]), label=label))
        if label.endswith("_save"):
            events.append(Event(time=start + float(edges[place + 1]), label=f"{label}d"))
    return Run(
        id=name,
        times=start + times,
        power_w=power_w,
        start=start,
        end=start + float(edges[-1]),
        kind=kind,
        pair=pair,
        events=events,
    )


def make_runs(count: int, **how: Any) -> Recording:
    """Return several runs that differ by their seed."""
    return Recording(
        runs=tuple(make_run(f"full_{i}", seed=i, **how) for i in range(count)), source="made up"
    )
