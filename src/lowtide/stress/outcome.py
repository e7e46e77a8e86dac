"""What became of a load plan: levels asked for and reached, and how punctual its steps were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.signal import FloatArray
from lowtide.stress.plan import LoadPlan
from lowtide.stress.worker import Report

# What each part's work is counted in.
UNITS = {"cpu": "operations", "memory": "bytes", "disk": "bytes", "gpu": "operations"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartOutcome:
    """What one part was asked for, and what it reached.

    Attributes:
        part: One of `plan.PARTS`.
        workers: How many processes bore it: one per core for `cpu`.
        asked: Levels in percent, step by step.
        got: Levels reached, NaN where a worker gave no answer.
        asked_s: Seconds of work that the levels come to, all workers together: of CPU time for
            `cpu` and `memory`, of waiting for the device for `disk` and `gpu`.
        got_s: Seconds of work done.
        cpu_s: CPU time that the part's processes took.
        done: What was done in those seconds, in `UNITS`.
    """

    part: str
    workers: int
    asked: FloatArray
    got: FloatArray
    asked_s: float
    got_s: float
    cpu_s: float
    done: float

    @property
    def off(self) -> float:
        """By how many percentage points a step is off, on average."""
        return float(np.abs(self.got - self.asked).mean())

    @property
    def rate(self) -> float:
        """What was done per second of work, NaN where nothing was."""
        return self.done / self.got_s if self.got_s > 0 else np.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What became of a load plan.

    Attributes:
        job_id: The job that all processes of the load belonged to.
        plan: What was carried out.
        start: When the first step began.
        parts: What became of each part.
        late_s: How long after its time each step ended, by the latest of all processes.
        notes: What is worth knowing beside.
    """

    job_id: str
    plan: LoadPlan
    start: float
    parts: tuple[PartOutcome, ...]
    late_s: FloatArray
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the outcome as a JSON document."""
        return {
            "job_id": self.job_id,
            "start": self.start,
            "steps": len(self.plan),
            "step_s": self.plan.step_s,
            "parts": {
                each.part: {
                    "workers": each.workers,
                    "asked_mean": float(each.asked.mean()),
                    "got_mean": float(each.got.mean()),
                    "mean_error": each.off,
                    "asked_s": each.asked_s,
                    "got_s": each.got_s,
                    "cpu_s": each.cpu_s,
                    "done": each.done,
                    "unit": UNITS[each.part],
                    "asked": each.asked.tolist(),
                    "got": each.got.tolist(),
                }
                for each in self.parts
            },
            "median_late_s": float(np.median(self.late_s)),
            "max_late_s": float(self.late_s.max()),
            "late_s": self.late_s.tolist(),
            "notes": list(self.notes),
        }


def gather(part: str, plan: LoadPlan, reports: Sequence[Report | None]) -> PartOutcome:
    """Put together what the workers of one part did.

    Args:
        reports: What each did, None for one that gave no answer.
    """
    asked = plan.of(part)
    unknown = np.full(len(plan), np.nan)
    worked_s = np.array([unknown if each is None else each.worked_s for each in reports])
    known = [each for each in reports if each is not None]
    whole = len(known) == len(reports)
    return PartOutcome(
        part=part,
        workers=len(reports),
        asked=asked,
        got=100.0 * worked_s.mean(axis=0) / plan.step_s,
        asked_s=float(asked.sum()) / 100.0 * plan.step_s * len(reports),
        got_s=float(worked_s.sum()),
        cpu_s=sum(each.cpu_s for each in known) if whole else np.nan,
        done=sum(each.done for each in known) if whole else np.nan,
    )
