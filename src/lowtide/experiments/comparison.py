"""One job under several policies, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.accounting import Footprint, PhaseFootprint
from lowtide.job import Job
from lowtide.policies import Plan, plan
from lowtide.signal import Grid, Signal, deciding_signal
from lowtide.units import (
    ENERGIES,
    MASSES,
    MISSING,
    format_alike,
    format_duration,
    format_minute,
    format_percent,
)

if TYPE_CHECKING:
    from lowtide.experiments.figures import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans of one job on one signal.

    Attributes:
        job: The job.
        signal: The signal that decided.
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
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `rows`, times in UTC."""
        return self.headings()

    def headings(self, zone: str = "UTC") -> tuple[str, ...]:
        """Return the names of the columns of `rows`."""
        return ("policy", f"done ({zone})", "wait", "starts", "energy", self._counted, "saving")

    @property
    def _counted(self) -> str:
        return "cost" if self.signal.kind == "price" else "CO2e"

    def rows(self, tz: tzinfo | None = UTC) -> list[list[str]]:
        """Return a row per plan, as `header` names them, in words.

        Args:
            tz: The zone of times, None for this machine's.
        """
        paid = [each.footprint for each in self.plans]
        energies = format_alike([each.energy_j for each in paid], ENERGIES)
        return [
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

    def _amounts(self, parts: Sequence[Footprint | PhaseFootprint]) -> list[str]:
        """Return what parts emit or cost, all in one unit: a column is read from above."""
        if self.signal.kind != "price":
            return format_alike([part.carbon_g for part in parts], MASSES)
        costs = [part.cost for part in parts]
        return [MISSING if cost is None else f"{cost:.4g} {self.signal.currency}" for cost in costs]

    def write_report(self, path: Path | str, *, title: str, about: str) -> None:
        """Write an HTML report: table, schedules over the curve, power, parts of the footprint."""
        from lowtide.experiments.report import Section, write_report

        best = self.cleanest
        schedules, power = self._charts()
        phases = best.footprint.by_phase
        energies = format_alike([part.energy_j for part in phases.values()], ENERGIES)
        amounts = self._amounts(list(phases.values()))
        parts = [
            [name, format_duration(part.duration_s), energy, amount]
            for (name, part), energy, amount in zip(phases.items(), energies, amounts, strict=True)
        ]
        write_report(
            path,
            title=title,
            note=self.note,
            sections=[
                Section(
                    heading="What each policy comes to",
                    text=about,
                    header=self.header,
                    rows=self.rows(),
                ),
                Section(
                    heading="Schedules over the curve",
                    text="The dashed line is the deadline. Suspended time is pale.",
                    chart=schedules,
                ),
                Section(heading=f"Power of the job under policy {best.policy}", chart=power),
                Section(
                    heading=f"Where the footprint of {best.policy} comes from",
                    header=("part", "time", "energy", self._counted),
                    rows=parts,
                ),
            ],
            footer=f"Made by lowtide {version('lowtide')}. Times are UTC.",
        )

    def write_images(self, folder: Path | str) -> list[Path]:
        """Write the charts of the report as PNG and SVG."""
        from lowtide.experiments.figures import IMAGE_SUFFIXES, save_image

        written = []
        for name, chart in zip(("schedules", "power"), self._charts(), strict=True):
            for suffix in IMAGE_SUFFIXES:
                written.append(Path(folder) / f"{name}{suffix}")
                save_image(chart, written[-1])
        return written

    def _charts(self) -> tuple[Chart, Chart]:
        from lowtide.experiments.figures import power_chart, schedules_chart

        best = self.cleanest
        window = self.signal.window(self.job.arrival, self.job.deadline)
        schedules = {each.policy: each.schedule for each in self.plans}
        return (
            schedules_chart(window, schedules, deadline=self.job.deadline),
            power_chart(
                best.schedule, self.job.profile, name=best.policy, synthetic=best.synthetic
            ),
        )


def compare(job: Job, signal: Signal | Grid, policies: Sequence[str]) -> Comparison:
    """Plan one job under several policies."""
    return Comparison(
        job=job,
        signal=deciding_signal(signal),
        plans=tuple(plan(job, signal, policy=name) for name in policies),
    )
