"""How well phases of drawn programs are found, beside simpler ways of finding them.

Every program is judged on a run that nobody has learned from, with the usual number of epochs.
Beside `learn` stand: who knows the program (what chance alone makes of the run), constant power,
the published fit (mean power between events), and change points as ruptures finds them by default.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lowtide.errors import LowtideError
from lowtide.learning import Learned, learn
from lowtide.recording import Recording, Run
from lowtide.signal import FloatArray
from support.programs import Course, Program, draw_program

# What counts as right.
STARTUP_SHARE, STARTUP_S = 0.10, 2.0
ENERGY, DURATION = 0.02, 0.03
UNSEEN = 999
WAYS = ("learn", "who knows", "constant", "published", "ruptures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one way of learning came to on one program.

    Attributes:
        startup: Whether the startup is as long as it is; None where it cannot be told.
        epochs: Whether their number is right; None where it cannot be told.
        energy: The predicted less the measured energy of the unseen run, as a share.
        duration: The predicted less the measured duration, as a share.
        found: How many of the changes of power were found.
        missed: How many were not.
        false: How many were found that are none.
        energy_held: Whether the interval held the energy; None where there is none.
        duration_held: Whether the interval held the duration; None where there is none.
    """

    startup: bool | None = None
    epochs: bool | None = None
    energy: float = np.nan
    duration: float = np.nan
    found: int = 0
    missed: int = 0
    false: int = 0
    energy_held: bool | None = None
    duration_held: bool | None = None


def changes_s(program: Program, course: Course) -> FloatArray:
    """Return when power changes in a run so that a meter can see it."""
    watts = np.array([part.watts for part in course.parts])
    clear = np.abs(np.diff(watts)) > max(0.03, 2 * program.noise) * program.range_w
    return course.edges_s[1:-1][clear]


def matched(
    true_s: FloatArray, found_s: FloatArray, program: Program, clear_s: FloatArray
) -> tuple[int, int, int]:
    """Return how many changes were found, missed and made up.

    Args:
        true_s: All changes.
        clear_s: Those that can be seen.
    """
    reach_s = max(3 * program.step_s + program.window_s + program.lag_s, 1.0)
    near = [bool(found_s.size) and np.abs(found_s - at).min() <= reach_s for at in clear_s]
    false = [not true_s.size or np.abs(true_s - at).min() > reach_s for at in found_s]
    return sum(near), len(near) - sum(near), sum(false)


def judge(program: Program, seed: int, ways: Sequence[str] = WAYS) -> dict[str, Judged]:
    """Return what ways of learning came to on a program."""
    recording = program.recording(seed)
    unseen = program.course("unseen", 1000 * seed + UNSEEN).run
    first = program.course("full_0", 1000 * seed, epochs=range(1, program.epochs[0] + 1))
    mean = {
        "energy": float(np.mean([run.energy_j() for run in recording])) / unseen.energy_j() - 1,
        "duration": float(np.mean([run.duration_s for run in recording])) / unseen.duration_s - 1,
    }
    judged = {}
    if "learn" in ways:
        learned = learn(recording, validated=False)
        judged["learn"] = _judged(program, learned, unseen, first)
    if "who knows" in ways:
        judged["who knows"] = Judged(
            energy=program.expected_j(program.usual_epochs) / unseen.energy_j() - 1,
            duration=program.expected_s(program.usual_epochs) / unseen.duration_s - 1,
        )
    if "constant" in ways:
        judged["constant"] = Judged(missed=changes_s(program, first).size, **mean)
    if "published" in ways and program.said != "nothing":
        judged["published"] = _published(program, recording, unseen, first)
    if "ruptures" in ways:
        judged["ruptures"] = _ruptures(program, first, mean)
    return judged


def _judged(program: Program, learned: Learned, unseen: Run, first: Course) -> Judged:
    profile, model = learned.profile, learned.fit.model
    off_s = abs(profile.startup_s - program.startup_s)
    visible = program.said != "nothing" or program.repeats_visibly
    edges_s = model.edges_s[model.runs.index("full_0")][1:-1] if "full_0" in model.runs else []
    watts = model.run_power_w[model.runs.index("full_0")] if "full_0" in model.runs else []
    clear = np.abs(np.diff(watts)) > 0.02 * program.range_w
    found = matched(first.edges_s, np.asarray(edges_s)[clear], program, changes_s(program, first))
    held = {}
    if (spread := profile.spread) is not None:
        for name, (low, high), ratio in (
            ("energy_held", spread.energy, unseen.energy_j() / profile.energy_j),
            ("duration_held", spread.duration, unseen.duration_s / profile.run_s),
        ):
            held[name] = bool(low <= ratio <= high)
    return Judged(
        startup=bool(off_s <= max(STARTUP_SHARE * program.startup_s, STARTUP_S))
        if visible
        else None,
        epochs=learned.epochs == program.usual_epochs if visible else None,
        energy=profile.energy_j / unseen.energy_j() - 1,
        duration=profile.run_s / unseen.duration_s - 1,
        found=found[0],
        missed=found[1],
        false=found[2],
        **held,
    )


def _published(program: Program, recording: Recording, unseen: Run, first: Course) -> Judged:
    try:
        learned = learn(recording, method="published", validated=False)
    except LowtideError:
        return Judged(startup=False, epochs=False)
    return _judged(program, learned, unseen, first)


def _ruptures(program: Program, first: Course, mean: dict[str, float]) -> Judged:
    """Judge ruptures' Pelt as it is by default (rbf, min_size 2, jump 5), with a penalty of 10.

    Long runs are thinned to 400 samples: its time rises with the square of their number.
    """
    import ruptures

    run = first.run
    inside = (run.times >= run.start) & (run.times < run.end)
    times_s, power_w = run.times[inside] - run.start, run.power_w[inside]
    stride = -(-times_s.size // 400)
    times_s, power_w = times_s[::stride], power_w[::stride]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuts = ruptures.Pelt().fit_predict(power_w, pen=10)
    found = matched(
        first.edges_s, times_s[np.array(cuts[:-1], dtype=int)], program, changes_s(program, first)
    )
    return Judged(found=found[0], missed=found[1], false=found[2], **mean)


@dataclass(slots=True)
class Tally:
    """What ways of learning came to on many programs."""

    judged: dict[str, list[Judged]] = field(default_factory=dict)

    def add(self, each: dict[str, Judged]) -> None:
        """Count a program."""
        for way, one in each.items():
            self.judged.setdefault(way, []).append(one)

    def share(self, way: str, of: Callable[[Judged], bool | None]) -> float:
        """Return in which share of programs something holds, where it can be told."""
        known = [value for each in self.judged[way] if (value := of(each)) is not None]
        return float(np.mean(known)) if known else np.nan

    def figures(self, way: str) -> dict[str, float]:
        """Return all shares of one way."""
        every = self.judged[way]
        found, missed, false = (
            sum(getattr(each, name) for each in every) for name in ("found", "missed", "false")
        )
        return {
            "startup": self.share(way, lambda each: each.startup),
            "epochs": self.share(way, lambda each: each.epochs),
            "energy": self.share(way, lambda each: bool(abs(each.energy) <= ENERGY)),
            "duration": self.share(way, lambda each: bool(abs(each.duration) <= DURATION)),
            "found": found / (found + missed) if found + missed else np.nan,
            "missed": missed / (found + missed) if found + missed else np.nan,
            "false": false / (found + missed) if found + missed else np.nan,
            "energy held": self.share(way, lambda each: each.energy_held),
            "duration held": self.share(way, lambda each: each.duration_held),
        }

    def count(self, way: str, what: str) -> int:
        """Return in how many programs something can be told.

        Args:
            what: An attribute of `Judged`.
        """
        return sum(getattr(each, what) is not None for each in self.judged[way])

    def typical(self, way: str, what: str) -> float:
        """Return the median size of an error.

        Args:
            what: `energy` or `duration`.
        """
        return float(np.median([abs(getattr(each, what)) for each in self.judged[way]]))

    def table(self) -> str:
        """Return all shares as lines of a table, in percent."""
        rows = {way: self.figures(way) for way in self.judged}
        names = list(next(iter(rows.values())))
        head = [*names, "energy off by", "duration off by"]
        lines = ["way".ljust(10) + "".join(name.rjust(max(len(name), 8) + 2) for name in head)]
        for way, figures in rows.items():
            values = [*figures.values(), *(self.typical(way, of) for of in ("energy", "duration"))]
            cells = ["---" if np.isnan(each) else f"{100 * each:.1f} %" for each in values]
            lines.append(
                way.ljust(10)
                + "".join(
                    cell.rjust(max(len(name), 8) + 2)
                    for name, cell in zip(head, cells, strict=True)
                )
            )
        return "\n".join(lines)


def judge_programs(
    seeds: Sequence[int],
    *,
    marked: bool,
    ways: Sequence[str] = WAYS,
    tell: Callable[[int, int], object] = lambda done, count: None,
) -> Tally:
    """Return what ways of learning come to on drawn programs.

    Args:
        tell: Told after each program how many are done, and how many there are.
    """
    tally = Tally()
    for done, seed in enumerate(seeds, start=1):
        tally.add(judge(draw_program(seed, marked=marked), seed, ways))
        tell(done, len(seeds))
    return tally
