"""Programs drawn by chance, as a meter sees their runs, with the truth beside it.

A program starts up, repeats epochs of a few phases, and ends. What varies: how long and how deep
its phases are, the meter (its step, its window, its lag, its noise and its rounding), the machine
(drift, throttling, a slow first epoch, idle time around the program), what the program says (every
phase or epochs alone, at their beginning or at their end, or nothing; with marks missing or added),
how many runs there are, and whether all have as many epochs. Runs may be stopped, killed, resumed.

How much runs differ is taken from recordings of real programs: their training takes as long again
to 0.1 to 1 %, what touches disks or networks to 1 to 20 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.recording import Event, Recording, Run
from lowtide.signal import FloatArray
from support.recordings import wandering

# Steps, windows over which they average, lags and rounding of meters that there are: RAPL, cards
# from NVIDIA as NVML tells them, a meter at the wall, a board controller.
METERS = {
    "rapl": ((0.1, 0.2, 0.5), (0.0,), (0.0, 0.05), 0.01),
    "nvml": ((0.1, 0.2, 0.5), (0.1, 1.0), (0.1, 0.4, 0.95), 0.01),
    "wall": ((0.05, 0.25, 1.0), (0.05, 0.5), (0.0, 0.3, 0.95), 0.1),
    "ipmi": ((1.0, 2.0), (1.0, 2.0), (0.5, 1.5), 2.0),
}
# What the parts of an epoch and of a startup may be called, in the order in which they come.
EPOCH_NAMES = (
    ("train", "validate", "save"),
    ("forward", "eval", "checkpoint"),
    ("fit", "score"),
    ("step", "write"),
    ("solve",),
)
STARTUP_NAMES = (("import", "load"), ("load_data",), ("init", "compile", "warmup"), ("setup",))
# How a program numbers what it says: {name} in the epoch {n}.
STYLES = ("epoch_{n}_{name}", "{name} {n}", "Epoch {n}: {name}", "{name}")
# Seeds of programs to develop with begin at 0, those of programs that judge here.
JUDGING = 6_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A phase as the program means it.

    Attributes:
        jitter: By what share its length varies from time to time.
    """

    name: str
    seconds: float
    watts: float
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run as the meter saw it, and what happened.

    Attributes:
        edges_s: When each part began after the start, and when the last was over.
        parts: What the parts were.
    """

    run: Run
    edges_s: FloatArray
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, the machine it runs on and the meter that watches it.

    Attributes:
        startup: What every first start begins with.
        restart: What a resumed start begins with.
        epoch: What it repeats.
        end: What comes last.
        epochs: How many epochs each run has.
        said: `parts` marks every phase, `epochs` each epoch, `nothing` nothing.
        at_ends: Whether marks tell what is over instead of what begins.
        style: How what it says is numbered.
        missing: The share of runs that lack a mark.
        extra: How many marks a run says that mean nothing, on average.
        one_more: Whether the end of a run is marked as if a further epoch began.
        slow_first: How many times as long the first epoch's first phase takes.
        drift: By what share power rises over a run.
        throttled: The share of epochs that run slower, at less power.
        meter: Which of METERS.
        step_s: How often it is read.
        window_s: Over which time it averages.
        lag_s: How late it is.
        noise: Its noise, as a share of the range of power.
        memory: How much of the noise of a reading is in the next one.
        idle_w: What the idle machine draws.
        idle_s: How long it was measured before and after.
    """

    startup: tuple[Part, ...]
    restart: tuple[Part, ...]
    epoch: tuple[Part, ...]
    end: tuple[Part, ...]
    epochs: tuple[int, ...]
    said: str
    at_ends: bool
    style: str
    missing: float
    extra: float
    slow_first: float
    drift: float
    throttled: float
    meter: str
    step_s: float
    window_s: float
    lag_s: float
    noise: float
    memory: float
    idle_w: float
    idle_s: tuple[float, float]
    one_more: bool = False

    @property
    def startup_s(self) -> float:
        """How long it starts up."""
        return sum(part.seconds for part in self.startup)

    @property
    def usual_epochs(self) -> int:
        """How many epochs most runs have; the fewest of those that are equally common."""
        return int(np.argmax(np.bincount(self.epochs)))

    @property
    def range_w(self) -> float:
        """How far apart the least and the most are that it draws."""
        levels_w = [part.watts for part in (*self.startup, *self.epoch, *self.end)]
        return float(np.ptp([*levels_w, self.idle_w]))

    @property
    def repeats_visibly(self) -> bool:
        """Whether its epochs can be told apart without marks: power changes within them."""
        levels_w = [part.watts for part in self.epoch]
        return float(np.ptp(levels_w)) > max(0.05, 3 * self.noise) * self.range_w

    @property
    def startup_shows(self) -> bool:
        """Whether the end of its startup can be told without marks, by who knows nothing else.

        Its epochs show, power changes where they begin, and the meter shows that no later than is
        right.
        """
        step_w = abs(self.startup[-1].watts - self.epoch[0].watts)
        late_s = self.lag_s + self.window_s / 2
        return (
            self.repeats_visibly
            and step_w > max(0.05, 3 * self.noise) * self.range_w
            and late_s <= max(0.1 * self.startup_s, 2.0)
        )

    def expected_j(self, epochs: int) -> float:
        """Return what a run draws that nothing delays, by who knows the program."""
        parts = self._row(range(1, epochs + 1), "full")
        drawn_j = sum(part.seconds * part.watts for part, _ in parts)
        return drawn_j * (1 + self.drift / 2)

    def expected_s(self, epochs: int) -> float:
        """Return how long a run takes, throttled as often as usual, by who knows the program."""
        slower = 1 + 0.25 * self.throttled
        parts = self._row(range(1, epochs + 1), "full")
        return sum(part.seconds * (slower if number else 1.0) for part, number in parts)

    def course(
        self,
        name: str,
        seed: int,
        *,
        epochs: range | None = None,
        kind: str = "full",
        pair: str | None = None,
        killed: float | None = None,
    ) -> Course:
        """Return a run as the meter saw it, with what happened.

        Args:
            epochs: Which epochs it does, by default as many as is usual.
            kind: `full`, `stop`, `kill` or `resume`.
            pair: What joins a run that was ended early and the one that went on.
            killed: Which part of its last epoch is done when it is killed.
        """
        rng = np.random.default_rng([14, seed])
        epochs = range(1, self.usual_epochs + 1) if epochs is None else epochs
        row = self._row(epochs, kind)
        slow = {number for number in epochs if rng.random() < self.throttled}
        seconds = np.array([part.seconds * (1.25 if number in slow else 1) for part, number in row])
        watts = np.array([part.watts * (0.8 if number in slow else 1) for part, number in row])
        jitter = np.array([part.jitter for part, _ in row])
        seconds *= np.exp(jitter * rng.standard_normal(seconds.size))
        edges_s = np.concatenate(([0.0], np.cumsum(seconds)))
        if killed is not None:
            begin_s = edges_s[-1 - len(self.epoch)]
            ends_s = begin_s + killed * (edges_s[-1] - begin_s)
            kept = max(int(np.searchsorted(edges_s, ends_s)), 1)
            row, watts = row[:kept], watts[:kept]
            edges_s = np.append(edges_s[:kept], ends_s)
        start = 1.7e9 + 1e5 * rng.random()
        times_s, power_w = self._metered(edges_s, watts, rng)
        run = Run(
            id=name,
            times=start + times_s,
            power_w=power_w,
            start=start,
            end=start + float(edges_s[-1]),
            kind=kind,
            pair=pair,
            events=self._said(row, start + edges_s, rng, whole=kind in ("full", "resume")),
        )
        return Course(run=run, edges_s=edges_s, parts=tuple(part for part, _ in row))

    def run(self, name: str, seed: int, **how: object) -> Run:
        """Return a run as the meter saw it."""
        return self.course(name, seed, **how).run  # type: ignore[arg-type]

    def recording(self, seed: int) -> Recording:
        """Return all uninterrupted runs that it is learned from."""
        runs = [
            self.run(f"full_{number}", 1000 * seed + number, epochs=range(1, count + 1))
            for number, count in enumerate(self.epochs)
        ]
        return Recording(runs=tuple(runs), source="drawn by chance")

    def pair(self, kind: str, seed: int, *, name: str = "a") -> tuple[Run, Run]:
        """Return a stop or a kill after about half of the epochs, and its resumption."""
        rng = np.random.default_rng([15, seed])
        done = max(self.usual_epochs // 2, 1)
        lost = kind == "kill"
        first = self.run(
            f"{kind}_{name}",
            2 * seed,
            epochs=range(1, done + 1 + lost),
            kind=kind,
            pair=name,
            killed=float(rng.uniform(0.2, 0.95)) if lost else None,
        )
        rest = range(done + 1, self.usual_epochs + 1)
        return first, self.run(
            f"{kind}_{name}_resumed", 2 * seed + 1, epochs=rest, kind="resume", pair=name
        )

    def _row(self, epochs: range, kind: str) -> list[tuple[Part, int]]:
        """Return the parts of a run, each with its epoch, 0 outside of epochs."""
        row = [(part, 0) for part in (self.restart if kind == "resume" else self.startup)]
        for number in epochs:
            first, *others = self.epoch
            slower = self.slow_first if number == epochs[0] else 1.0
            row.append(
                (Part(first.name, slower * first.seconds, first.watts, first.jitter), number)
            )
            row += [(part, number) for part in others]
        if kind in ("full", "resume"):
            row += [(part, 0) for part in self.end]
        return row

    def _metered(
        self, edges_s: FloatArray, watts: FloatArray, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return when the meter was read, and what it said."""
        length_s = float(edges_s[-1])
        before_s, after_s = self.idle_s
        times_s = np.arange(-before_s + rng.random() * self.step_s, length_s + after_s, self.step_s)
        # It is read now and then, not at once.
        times_s = times_s + 0.02 * self.step_s * rng.standard_normal(times_s.size)
        levels_w = np.concatenate(([self.idle_w], watts, [self.idle_w]))
        # Energy up to each edge: what a window averages is a difference of two.
        at_s = np.concatenate(([-1e4], edges_s, [length_s + 1e4]))
        upto_j = np.concatenate(([0.0], np.cumsum(np.diff(at_s) * levels_w)))
        window_s = max(self.window_s, 1e-3)
        seen_s = times_s - self.lag_s
        power_w = (
            np.interp(seen_s, at_s, upto_j) - np.interp(seen_s - window_s, at_s, upto_j)
        ) / window_s
        power_w = power_w * (1 + self.drift * np.clip(times_s / length_s, 0.0, 1.0))
        noise = rng.standard_normal(times_s.size)
        if self.memory:
            noise = wandering(noise, self.memory)
        power_w = np.maximum(power_w + self.noise * self.range_w * noise, 0.0)
        rounding_w = METERS[self.meter][3]
        return times_s, np.round(power_w / rounding_w) * rounding_w

    def _said(
        self,
        row: Sequence[tuple[Part, int]],
        times: FloatArray,
        rng: np.random.Generator,
        *,
        whole: bool,
    ) -> list[Event]:
        if self.said == "nothing":
            return []
        events = []
        # What is over is said where the next thing begins.
        late = int(self.at_ends)
        told = self.epoch[-1 if late else 0].name
        for (part, number), time in zip(row, times[late:], strict=False):
            if self.said == "epochs" and number and part.name != told:
                continue
            if self.said == "epochs" and not number and part.name != self.end[0].name and not late:
                continue
            label = self.style.format(n=number, name=part.name) if number else part.name
            label += " done" * late
            # What a program that was cut off was doing is never over.
            if whole or time < times[-1]:
                events.append(Event(time=float(time), label=label))
        if self.one_more and whole and not late:
            label = self.style.format(n=max(number for _, number in row) + 1, name=told)
            events.append(Event(time=float(times[-1]), label=label))
        if rng.random() < self.missing and len(events) > 2:
            del events[int(rng.integers(1, len(events)))]
        for _ in range(rng.poisson(self.extra)):
            time = float(rng.uniform(times[0], times[-1]))
            events.append(Event(time=time, label=f"loss {rng.random():.4f}"))
        return sorted(events, key=lambda event: event.time)


def draw_program(seed: int, *, marked: bool = True) -> Program:
    """Return a program that chance makes up.

    Args:
        marked: Whether it says what it does.
    """
    rng = np.random.default_rng([14, seed, int(marked)])
    meter = str(rng.choice(list(METERS)))
    steps_s, windows_s, lags_s, _ = METERS[meter]
    step_s = float(rng.choice(steps_s))
    idle_w = float(rng.choice([8.0, 40.0, 75.0, 250.0])) * rng.uniform(0.8, 1.2)
    most_w = idle_w * rng.uniform(2.0, 8.0)
    jitter = float(rng.choice([0.001, 0.005, 0.01, 0.02]))
    # Whatever is shorter than a few readings cannot be seen.
    least_s = max(4 * step_s, 2 * float(max(windows_s)), 1.0)

    def between(low: float, high: float) -> float:
        return idle_w + (most_w - idle_w) * float(rng.uniform(low, high))

    def disk() -> float:
        return jitter * float(rng.choice([1.0, 3.0, 10.0], p=[0.5, 0.3, 0.2]))

    names = EPOCH_NAMES[rng.integers(len(EPOCH_NAMES))]
    train_s = least_s * float(np.exp(rng.uniform(np.log(4.0), np.log(60.0))))
    epoch = [Part(names[0], train_s, most_w * float(rng.uniform(0.85, 1.0)), jitter)]
    for name in names[1:]:
        seconds = max(least_s, train_s * float(rng.uniform(0.05, 0.4)))
        epoch.append(Part(name, seconds, between(0.1, 0.75), disk()))
    startup = [
        Part(name, least_s * float(np.exp(rng.uniform(0.7, 3.2))), between(0.05, 0.7), disk())
        for name in STARTUP_NAMES[rng.integers(len(STARTUP_NAMES))]
    ]
    scale = float(rng.choice([0.4, 0.6, 1.0, 1.4]))
    restart = [Part(each.name, scale * each.seconds, each.watts, each.jitter) for each in startup]
    end = Part("finish", least_s * float(rng.uniform(1.0, 4.0)), between(0.1, 0.1), disk())
    count = int(rng.choice([1, 2, 3, 5, 8, 20, 50], p=[0.1, 0.2, 0.25, 0.2, 0.15, 0.07, 0.03]))
    usual = int(rng.integers(2, 13))
    epochs = [usual] * count
    if count > 2 and rng.random() < 0.3:
        for number in rng.choice(count, size=max(1, count // 4), replace=False):
            epochs[number] = max(2, usual + int(rng.choice([-2, -1, 1, 2])))
    said = str(rng.choice(["parts", "epochs"], p=[0.75, 0.25])) if marked else "nothing"
    with_idle = rng.random() < 0.7
    return Program(
        startup=tuple(startup),
        restart=tuple(restart),
        epoch=tuple(epoch),
        end=(end,),
        epochs=tuple(epochs),
        said=said,
        at_ends=bool(rng.random() < 0.25),
        style=STYLES[rng.integers(len(STYLES))],
        missing=float(rng.choice([0.0, 0.1], p=[0.7, 0.3])),
        extra=float(rng.choice([0.0, 2.0], p=[0.8, 0.2])),
        slow_first=float(rng.choice([1.0, 1.1, 1.5], p=[0.7, 0.2, 0.1])),
        drift=float(rng.choice([0.0, 0.01, 0.04])),
        throttled=float(rng.choice([0.0, 0.02, 0.1], p=[0.8, 0.15, 0.05])),
        meter=meter,
        step_s=step_s,
        window_s=float(rng.choice(windows_s)),
        lag_s=float(rng.choice(lags_s)),
        noise=float(rng.choice([0.002, 0.01, 0.04])),
        memory=float(rng.choice([0.0, 0.5, 0.9])),
        idle_w=idle_w,
        idle_s=(float(rng.uniform(2, 60)), float(rng.uniform(1, 30))) if with_idle else (0.0, 0.0),
        # Drawn apart: what seeds drew before stays as it was.
        one_more=bool(np.random.default_rng([16, seed]).random() < 0.1),
    )
