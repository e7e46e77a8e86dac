"""A run as learning sees it: power over the seconds since the program began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.recording import Event, Recording, Run, told_together
from lowtide.signal import FloatArray

# Runs are looked at in steps no shorter than a sample and than this many seconds, and in so few
# that a day is learned as fast as a minute.
_LEAST_STEP_S = 0.1
_MOST_STEPS = 4000
# Fewer idle samples than this tell no baseline.
_LEAST_IDLE = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSeries:
    """One run, its baseline taken off.

    Attributes:
        times_s: When samples were taken while the program ran, in seconds after its start.
        power_w: What was drawn at these samples, less the baseline.
        baseline_w: What was taken off.
    """

    run: Run
    times_s: FloatArray
    power_w: FloatArray
    baseline_w: float

    @classmethod
    def of(cls, run: Run, *, baseline_w: float = 0.0) -> RunSeries:
        """Return a run as a series.

        Args:
            baseline_w: What the machine draws without the program, to be taken off.
        """
        inside = (run.times >= run.start) & (run.times < run.end)
        return cls(
            run=run,
            times_s=run.times[inside] - run.start,
            power_w=run.power_w[inside] - baseline_w,
            baseline_w=baseline_w,
        )

    @property
    def length_s(self) -> float:
        """How long the program ran."""
        return self.run.duration_s

    @property
    def energy_j(self) -> float:
        """What it drew."""
        return self.run.energy_j() - self.baseline_w * self.length_s

    @property
    def events(self) -> tuple[Event, ...]:
        """What the program said while it ran."""
        return tuple(
            event for event in self.run.events if self.run.start <= event.time <= self.run.end
        )

    def upto_j(self, times_s: FloatArray) -> FloatArray:
        """Return what was drawn from the start until each time.

        Args:
            times_s: Seconds after the start.
        """
        start = self.run.start
        first_j = self.run.energies_j(np.array([start]))
        drawn: FloatArray = self.run.energies_j(start + times_s) - first_j
        return drawn - self.baseline_w * times_s

    def seen_s(self, times_s: FloatArray) -> FloatArray:
        """Return times, moved to where there are samples if they lie beyond.

        Args:
            times_s: Seconds after the start.
        """
        first_s = min(float(self.run.times[0]) - self.run.start, 0.0)
        last_s = max(float(self.run.times[-1]) - self.run.start, self.length_s)
        inside: FloatArray = np.clip(times_s, first_s, last_s)
        return inside

    def mean_w(self, edges_s: FloatArray) -> FloatArray:
        """Return the mean power between each edge and the next.

        Args:
            edges_s: Seconds after the start, in order.
        """
        # Two marks of a run may have come at once: what lies between them draws nothing.
        seconds = np.maximum(np.diff(edges_s), 1e-9)
        mean: FloatArray = np.diff(self.upto_j(edges_s)) / seconds
        return mean


def common_step_s(series: Sequence[RunSeries]) -> float:
    """Return the step in which runs are compared."""
    return max(
        _LEAST_STEP_S,
        max(each.run.step_s for each in series),
        max(each.length_s for each in series) / _MOST_STEPS,
    )


def even_edges(begin_s: float, end_s: float, step_s: float) -> FloatArray:
    """Return edges of even steps of about a length, whole from beginning to end."""
    count = max(round((end_s - begin_s) / step_s), 1)
    edges: FloatArray = np.linspace(begin_s, end_s, count + 1)
    return edges


def uninterrupted(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs that went from start to end and were measured all the while; why not others.

    Runs of unknown kind count where none is known to be uninterrupted.
    """
    full = [run for run in runs if run.kind == "full"]
    unknown = [run for run in runs if run.kind is None]
    chosen, notes = [], []
    if full and unknown:
        names = ", ".join(run.id for run in unknown)
        notes.append(f"of unknown kind, not used: {names}")
    for run in full or unknown:
        if run.gaps:
            begin, end = run.gaps[0]
            notes.append(
                f"run {run.id} has no samples for {end - begin:.1f} s from "
                f"{begin - run.start:.1f} s on and is left out"
            )
        elif run.sampled < 2:
            notes.append(f"run {run.id} has fewer than two samples while it runs and is left out")
        elif run.exit_status not in (None, 0):
            notes.append(f"run {run.id} ended with status {run.exit_status} and is left out")
        elif any(note.startswith("cut short") for note in run.notes):
            notes.append(f"run {run.id} was cut short and is left out")
        else:
            chosen.append(run)
    return chosen, notes


def noted(recordings: Sequence[Recording]) -> list[str]:
    """Return what recordings say, what several of them say once."""
    said = [(note, recording.source) for recording in recordings for note in recording.notes]
    return [
        note
        if len(recordings) == 1
        else f"{note} ({sources[0] if len(sources) == 1 else f'{len(sources)} recordings'})"
        for note, sources in told_together(said)
    ]


def idle_power_w(runs: Sequence[Run]) -> float:
    """Return what the machine draws without the program: idle runs, else samples before starts."""
    idle = [run.idle() for run in runs if run.kind == "idle"] or [run.idle() for run in runs]
    samples = np.concatenate(idle)
    if samples.size < _LEAST_IDLE:
        raise InvalidInput(
            "to exclude the baseline needs the idle machine measured: record an idle run, or some "
            "seconds before the program starts"
        )
    return float(samples.mean())
