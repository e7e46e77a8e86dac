"""One job under several policies, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.accounting import Footprint, PhaseFootprint
from lowtide.grid import Grid, deciding_signal
from lowtide.job import Job
from lowtide.policies import Plan, plan
from lowtide.signal import Signal
from lowtide.units import (
    MISSING,
    format_duration,
    format_energy,
    format_mass,
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
        """The names of the columns of `rows`."""
        counted = "cost" if self.signal.kind == "price" else "CO2e"
        return ("policy", "done (UTC)", "wait", "starts", "energy", counted, "saving")

    def rows(self) -> list[list[str]]:
        """Return a row per plan, as `header` names them, in words."""
        return [
            [
                each.policy,
                format_minute(each.schedule.end),
                format_duration(each.footprint.wait_s),
                str(each.footprint.starts),
                format_energy(each.footprint.energy_j),
                self._amount(each.footprint),
                format_percent(each.saving),
            ]
            for each in self.plans
        ]

    def _amount(self, part: Footprint | PhaseFootprint) -> str:
        if self.signal.kind != "price":
            return format_mass(part.carbon_g)
        currency = self.signal.unit.removesuffix("/kWh")
        return MISSING if part.cost is None else f"{part.cost:.4g} {currency}"

    def write_report(self, path: Path | str, *, title: str, about: str) -> None:
        """Write an HTML report: table, schedules over the curve, power, parts of the footprint.

        Args:
            path: Where the page shall stand.
            title: Its title.
            about: What the job is.
        """
        from lowtide.experiments.report import Section, write_report

        best = self.cleanest
        schedules, power = self._charts()
        parts = [
            [
                name,
                format_duration(part.duration_s),
                format_energy(part.energy_j),
                self._amount(part),
            ]
            for name, part in best.footprint.by_phase.items()
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
                    header=("part", "time", "energy", self.header[5]),
                    rows=parts,
                ),
            ],
            footer=f"Made by lowtide {version('lowtide')}. Times are UTC.",
        )

    def write_images(self, folder: Path | str) -> list[Path]:
        """Write the charts of the report as PNG and SVG.

        Args:
            folder: Where to.
        """
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
    """Plan one job under several policies.

    Args:
        job: What is to be run.
        signal: What a kWh emits or costs.
        policies: Names of policies.
    """
    return Comparison(
        job=job,
        signal=deciding_signal(signal),
        plans=tuple(plan(job, signal, policy=name) for name in policies),
    )
