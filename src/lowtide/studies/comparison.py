"""One job under several policies side by side, and the best start for each length of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.accounting import Footprint, PhaseFootprint, footprint
from lowtide.grid import Grid, deciding_signal
from lowtide.grids import synthetic_grid
from lowtide.job import Job, Resources
from lowtide.page.page import Figure, Page, Section, Table
from lowtide.policies import Plan, Policy, plan
from lowtide.policies.tradeoff import tradeoff
from lowtide.samples import sample_profile
from lowtide.schedule import Schedule
from lowtide.signal import Signal
from lowtide.units import (
    ENERGIES,
    JOULES_PER_KWH,
    MASSES,
    MISSING,
    format_alike,
    format_duration,
    format_iso,
    format_minute,
    format_percent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans of one job on one signal.

    Attributes:
        plans: One plan per policy, in the order asked for.
    """

    job: Job
    signal: Signal
    plans: tuple[Plan, ...]

    @property
    def cleanest(self) -> Plan:
        """The plan that emits (or, on a price, costs) least; of equals the first."""
        return min(self.plans, key=lambda each: each.footprint.amount)

    @property
    def note(self) -> str:
        """What a reader must know of the signal."""
        text = f"{self.signal.label}, {self.signal.unit}"
        text += f"; {self.signal.source}" if self.signal.source else ""
        window = self.signal.window(self.job.arrival, self.job.deadline)
        text += f"; in this window {window.caveat}" if window.caveat else ""
        return text[:1].upper() + text[1:] + "."

    @property
    def _counted(self) -> str:
        return "cost" if self.signal.kind == "price" else "CO2e"

    def table(self, zone: str = "UTC", tz: tzinfo | None = UTC) -> Table:
        """Return the plans in words, a row each.

        Args:
            zone: What the zone of times is called.
            tz: That zone, None for this machine's.
        """
        paid = [each.footprint for each in self.plans]
        energies = format_alike([each.energy_j for each in paid], ENERGIES)
        rows = [
            [
                each.policy,
                format_minute(each.schedule.end, tz),
                format_duration(each.footprint.wait_s),
                str(each.footprint.starts),
                energy,
                amount,
                format_percent(each.saving),
            ]
            for each, energy, amount in zip(self.plans, energies, self._amounts(paid), strict=True)
        ]
        head = ("policy", f"done ({zone})", "wait", "starts", "energy", self._counted, "saving")
        return Table(header=head, rows=rows)

    def _amounts(self, parts: Sequence[Footprint | PhaseFootprint]) -> list[str]:
        """Return what parts emit or cost, all in one unit: a column is read from above."""
        if self.signal.kind != "price":
            return format_alike([part.carbon_g for part in parts], MASSES)
        costs = [part.cost for part in parts]
        return [MISSING if cost is None else f"{cost:.4g} {self.signal.currency}" for cost in costs]

    def write_report(self, path: Path | str, *, title: str, about: str) -> None:
        """Write an HTML report: table, schedules over the curve, power, parts of the footprint."""
        best = self.cleanest
        schedules, power = self._figures()
        phases = best.footprint.by_phase
        energies = format_alike([part.energy_j for part in phases.values()], ENERGIES)
        amounts = self._amounts(list(phases.values()))
        parts = [
            [name, format_duration(part.duration_s), energy, amount]
            for (name, part), energy, amount in zip(phases.items(), energies, amounts, strict=True)
        ]
        sections = [
            Section(
                question="What each policy comes to",
                answer=about,
                parts=[self.table()],
            ),
            Section(
                question="Schedules over the curve",
                answer="The dashed line is the deadline. Suspended time is pale.",
                parts=[schedules],
            ),
            Section(question=f"Power of the job under policy {best.policy}", parts=[power]),
            Section(
                question=f"Where the footprint of {best.policy} comes from",
                parts=[Table(header=("part", "time", "energy", self._counted), rows=parts)],
            ),
        ]
        Page(title=title, lead=[self.note], sections=sections, footer="Times are UTC.").write(path)

    def write_images(self, folder: Path | str) -> list[Path]:
        """Write the charts of the report as PNG and SVG."""
        from lowtide.page.looks import save_images

        return [path for figure in self._figures() for path in save_images(Path(folder), figure)]

    def _figures(self) -> tuple[Figure, Figure]:
        from lowtide.page.looks import make_figure, power_chart, schedules_chart

        best = self.cleanest
        window = self.signal.window(self.job.arrival, self.job.deadline)
        schedules = {each.policy: each.schedule for each in self.plans}
        over = schedules_chart(window, schedules, deadline=self.job.deadline)
        power = power_chart(
            best.schedule, self.job.profile, name=best.policy, synthetic=best.synthetic
        )
        return make_figure("schedules", over), make_figure("power", power)


def compare(job: Job, signal: Signal | Grid, policies: Sequence[str | Policy]) -> Comparison:
    """Plan one job under several policies."""
    return Comparison(
        job=job,
        signal=deciding_signal(signal),
        plans=tuple(plan(job, signal, policy=name) for name in policies),
    )


POLICIES = ("run_now", "lowest_slot", "oracle", "wait_awhile", "exact")

WEEK = "2024-07-01T00:00Z"
ABOUT = (
    "A training job measured on one NVIDIA H200, scaled to a day: every measured second becomes a "
    "minute, and epochs are repeated until they fill 24 hours. It arrives on Monday at 08:00, has "
    "to be done five days later, and may be stopped at its checkpoints, one per epoch; each start "
    "costs 13 minutes of importing, loading and building. Saving takes longer than training an "
    "epoch, 7.1 s against 5.9 s as measured: the model trains fast and its checkpoint is large. "
    "Policies decide as published; what they decide is paid for on the real job, with repeated "
    "startups and lost work."
)


def run_demo(grid: str, *, seed: int) -> Comparison:
    """Plan the day of training on a synthetic week under the five policies."""
    job = Job(
        id="h200-day",
        arrival="2024-07-01T08:00Z",
        deadline="+5d",
        profile=sample_profile("h200-day"),
        interruptible="checkpoints",
        resources=Resources(cpus=16, gpus=1),
    )
    return compare(job, synthetic_grid(grid, start=WEEK, days=7, seed=seed), POLICIES)


# Amounts that differ by less than this share of the largest are equal.
_TIE = 1e-12
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
    every = tradeoff(job, signal)
    earliest, slack_s = float(every.finish[0]), max(job.slack_s, 0.0)
    at_once = footprint(Schedule.uninterrupted(job, job.arrival), job, signal)
    tie = _TIE * float(np.abs(every.amount).max())
    options: list[Option] = []
    for patience_s in (
        *(3600.0 * hours for hours in _PATIENCE_H if 3600 * hours < slack_s),
        slack_s,
    ):
        least = every.by(earliest + patience_s)
        # The first finish that comes to the least: who may wait longer need not.
        reached_s = every.finish[every.amount <= least + tie] - earliest
        delay_s = min(patience_s, *reached_s[:1].tolist())
        if options and job.arrival + delay_s <= options[-1].plan.schedule.start:
            continue
        schedule = Schedule.uninterrupted(job, job.arrival + delay_s)
        best = Plan(
            schedule=schedule,
            footprint=footprint(schedule, job, signal),
            baseline=at_once,
            lower_bound=least,
            lower_bound_g=None if signal.kind == "price" else least,
            policy="tradeoff",
            synthetic=signal.synthetic,
        )
        energy_kwh = best.footprint.energy_j / JOULES_PER_KWH
        mean = best.footprint.amount / energy_kwh if energy_kwh else None
        options.append(Option(patience_s=patience_s, plan=best, mean=mean))
    return options
