"""What patience is worth: the best start for each length of waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowtide.job import Job
from lowtide.policies import Plan, plan
from lowtide.policies.starts import StartAt, cost_by_delay, first_lowest
from lowtide.signal import Signal
from lowtide.units import JOULES_PER_KWH, format_iso

_PATIENCE_H = (0, 1, 2, 3, 6, 12, 24, 48, 96, 168)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The best start for a job that may wait so long.

    Attributes:
        patience_s: How long it may wait.
        plan: Its best start.
        mean: What a kWh of the job emits or costs on average, None if it draws nothing.
    """

    patience_s: float
    plan: Plan
    mean: float | None

    def document(self, *, knows_power: bool) -> dict[str, Any]:
        """Return the option as a JSON document.

        Args:
            knows_power: Whether the job's power is known, and grams can be told.
        """
        footprint = self.plan.footprint
        return {
            "patience_s": self.patience_s,
            "start": format_iso(self.plan.schedule.start),
            "end": format_iso(self.plan.schedule.end),
            "mean": self.mean,
            "saving": self.plan.saving,
            "synthetic": self.plan.synthetic,
            "energy_j": footprint.energy_j if knows_power else None,
            "carbon_g": footprint.carbon_g if knows_power else None,
            "cost": footprint.cost if knows_power else None,
        }


def starts_by_patience(job: Job, signal: Signal) -> list[Option]:
    """Return the best start at ever longer waiting, as long as waiting longer helps.

    Args:
        job: A job that is not stopped once it runs.
    """
    slack_s = max(job.slack_s, 0.0)
    delays_s, costs = cost_by_delay(job, signal)
    options: list[Option] = []
    for patience_s in (
        *(3600.0 * hours for hours in _PATIENCE_H if 3600 * hours < slack_s),
        slack_s,
    ):
        delay_s = first_lowest(delays_s, costs, patience_s)
        if options and job.arrival + delay_s <= options[-1].plan.schedule.start:
            continue
        best = plan(job, signal, policy=StartAt(delay_s=delay_s))
        energy_kwh = best.footprint.energy_j / JOULES_PER_KWH
        mean = best.footprint.amount / energy_kwh if energy_kwh else None
        options.append(Option(patience_s=patience_s, plan=best, mean=mean))
    return options
