"""Made-up runs whose phases are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.recording import Event, Recording, Run
from lowtide.signal import FloatArray

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


@dataclass(frozen=True, kw_only=True)
class Pinpointed:
    """A measurement as pinpoint writes it, and where in it the program really ran."""

    power_w: FloatArray
    step_s: float
    on: float
    events: tuple[Event, ...]
    idle_before_s: float
    idle_after_s: float
    idle_w: float

    def write(self, folder: Path) -> Path:
        """Write it as a folder of pinpoint."""
        folder.mkdir(parents=True)
        off = self.on + self.power_w.size * self.step_s
        lines = [f"{1000 * watts:.0f}" for watts in self.power_w]
        (folder / "measurements.csv").write_text(
            "\n".join([*lines, f"{self.on:.6f}", f"{off:.6f}"]) + "\n"
        )
        if self.events:
            (folder / "events.csv").write_text(
                "".join(f"{event.time:.6f}, {event.label}\n" for event in self.events)
            )
        return folder


def make_pinpointed(
    seed: int, *, idle_before_s: float | None = None, idle_after_s: float | None = None
) -> Pinpointed:
    """Return a measurement with or without idle time around a program that begins in some way.

    Chance decides what is not given: the idle time at either end (none, 5, 30, 120 s or any), the
    idle power and how noisy, wandering and spiky it is, whether the machine calms down at first or
    after the program, whether the startup draws hardly more than the idle machine or waits in
    between, and when the program says something first, if ever, and last.
    """
    rng = np.random.default_rng([12, seed])

    def any_idle_s() -> float:
        return float(rng.choice([0.0, 5.0, 30.0, 120.0, rng.uniform(1, 60)]))

    before_s = any_idle_s() if idle_before_s is None else idle_before_s
    after_s = any_idle_s() if idle_after_s is None else idle_after_s
    step_s = float(rng.choice([0.05, 0.1, 0.5]))
    idle_w = rng.uniform(8, 120)
    near = idle_w * (1 + rng.choice([0.05, 0.2, 0.6, 1.5]))
    startup = [(rng.uniform(1, 25), near)]
    if rng.random() < 0.4:
        startup.append((rng.uniform(2, 8), idle_w * rng.uniform(1.0, 1.05)))
    startup.append((rng.uniform(1, 10), near * rng.uniform(1.1, 2)))
    epoch = [(rng.uniform(5, 20), idle_w * rng.uniform(3, 8)), (rng.uniform(1, 4), 2 * idle_w)]
    phases = [*startup, *epoch * int(rng.integers(2, 5)), (rng.uniform(0.5, 3), 1.5 * idle_w)]
    calming = [(rng.uniform(1, 10), 2 * idle_w)] if after_s > 20 and rng.random() < 0.3 else []
    seconds = np.array([before_s, *(phase[0] for phase in phases), after_s])
    edges = np.concatenate(([0.0], np.cumsum(seconds)))
    times = np.arange(0.0, edges[-1] - 0.5 * step_s, step_s)
    levels = np.array([idle_w, *(phase[1] for phase in phases), idle_w])
    power_w = levels[np.searchsorted(edges[1:-1], times, side="right")]
    for length_s, watts in calming:
        power_w[(times >= edges[-2]) & (times < edges[-2] + length_s)] = watts
    if before_s > 20 and rng.random() < 0.2:
        power_w += np.where(times < 8, idle_w * np.exp(-times / 2), 0.0)
    noise = rng.choice([0.01, 0.03, 0.08]) * idle_w * np.sqrt(0.05 / step_s)
    wander = wandering(rng.standard_normal(times.size), 1 - step_s / 3)
    power_w += noise * rng.standard_normal(times.size) + 0.01 * idle_w * wander
    spikes = rng.random(times.size) < 0.02 * step_s * (rng.random() < 0.5)
    power_w += np.where(spikes, 0.4 * idle_w, 0.0)
    events = []
    if rng.random() < 0.75:
        on_at = edges[1:-1]
        said = [(before_s + rng.choice([0.05, 1.0, startup[0][0]]), "begin")]
        said += [(at, "epoch") for at in on_at[len(startup) : -1 : 2]]
        said.append((edges[-2] - 0.02, str(rng.choice(["Exit", "last words", "epoch"]))))
        events = [Event(time=1.7e9 + float(at), label=label) for at, label in sorted(said)]
    return Pinpointed(
        power_w=np.maximum(power_w, 0.0),
        step_s=step_s,
        on=1.7e9,
        events=tuple(events),
        idle_before_s=before_s,
        idle_after_s=after_s,
        idle_w=float(idle_w),
    )


def wandering(noise: FloatArray, memory: float) -> FloatArray:
    """Return noise that remembers itself, of variance 1."""
    wander, last = [], 0.0
    for value in (np.sqrt(1 - memory**2) * noise).tolist():
        last = memory * last + value
        wander.append(last)
    return np.array(wander)


def sized_recording(
    epochs: int, gpus: float = 1.0, *, seed: int = 0, marks: bool = True
) -> Recording:
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


def unequal_run(number: int, epochs: int, startup_s: float, end_s: float, marked: str) -> Run:
    """Return a run of epochs of 20 s whose end nobody marks."""
    rng = np.random.default_rng(number)
    length_s, start = startup_s + 20 * epochs + end_s, 1.7e9 + 1000 * number
    times = np.arange(0, length_s, 0.2)
    work_w = np.where((times - startup_s) % 20 < 14, 300, 120)
    power_w = np.where(
        times < startup_s, 80, np.where(times >= startup_s + 20 * epochs, 60, work_w)
    )
    late_s = 20 if marked == "end" else 0
    return Run(
        id=f"full_{number}",
        kind="full",
        times=start + times,
        power_w=power_w + rng.normal(0, 2, times.size),
        start=start,
        end=start + length_s,
        events=[
            Event(time=start + startup_s + 20 * epoch + late_s, label=f"epoch_{epoch + 1}")
            for epoch in range(epochs)
        ],
    )
