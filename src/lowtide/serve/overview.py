"""What many jobs come to: waste by rule, a month by project, the cluster as it is now.

All of it is made of what a `Viewer` gives, so that it says nothing to anybody that they may not
see by themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.files import parquet_of
from lowtide.hindsight.waste import RULES, Finding, find_waste
from lowtide.serve.kept_waste import kept_findings
from lowtide.serve.remembered import JobMemory
from lowtide.serve.settings import Exempt
from lowtide.serve.viewer import Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.store.records import Series
from lowtide.units import format_time

DAY_S = 86400.0
WEEK_S = 7 * DAY_S
# So many of those that may have wasted something are looked at closely, the heaviest first.
MOST_SUSPECTS = 100
# Of so many jobs it is remembered what they wasted.
_MOST_KNOWN = 20_000
METHOD = (
    "Energy is what meters or models told of each node, shared out so that jobs, idle and "
    "unattributed make the node. Emissions are energy times the grid's average intensity at the "
    "time it was drawn, as the watchers knew it then, PUE included where a site gave one. What a "
    "job used is counted in the hours in which it did."
)
_COLUMNS = (
    *("jobs", "energy_j", "measured_j", "carbon_g", "marginal_g", "embodied_g", "core_s", "gpu_s"),
    *("unmetered_s", "unpriced_j", "without_energy", "without_carbon", "partial"),
)


@dataclass(frozen=True, slots=True)
class Wasted:
    """What a job wasted by one rule."""

    job: VisibleJob
    finding: Finding

    def document(self) -> dict[str, Any]:
        """Return it as programs get it."""
        record, finding = self.job.record, self.finding
        return {
            "rule": finding.rule,
            "ref": self.job.ref,
            "job": record.shown_id,
            "user": record.user,
            "account": record.account,
            "name": record.name,
            "state": record.state,
            "evidence": finding.evidence,
            "energy_j": finding.energy_j,
            "carbon_g": finding.carbon_g,
            "core_s": finding.core_s,
            "gpu_s": finding.gpu_s,
            "byte_s": finding.byte_s,
        }


@dataclass(slots=True)
class WasteBook:
    """Tells what jobs wasted: as it is kept, or found and remembered while the job is as it was.

    Attributes:
        exempt: Which jobs are never named.
    """

    exempt: Exempt
    _known: JobMemory[tuple[Finding, ...]] = field(
        default_factory=lambda: JobMemory(_MOST_KNOWN), init=False
    )

    def waste(
        self,
        viewer: Viewer,
        *,
        start: float,
        end: float,
        users: Sequence[str] = (),
        most: int = MOST_SUSPECTS,
    ) -> list[Wasted]:
        """Return what was wasted between two moments, the most energy first.

        Args:
            users: Whose jobs; empty for all that may be seen.
            most: How many jobs are looked at, the heaviest first.
        """
        if not 0 <= start < end:
            raise InvalidInput("waste is told from one moment to a later one")
        wanted = Wanted(start=start, end=end, suspect=True, users=users)
        found = []
        jobs = viewer.jobs(wanted, order="energy_j", most=most)
        named = [job for job in jobs if not self.exempt.covers(job.record)]
        kept = kept_findings(viewer, named)
        for job in named:
            every = kept[job.ref] if job.ref in kept else self._findings(viewer, job)
            found += [Wasted(job, each) for each in every if each.rule not in self.exempt.rules]
        return sorted(found, key=lambda each: (-_number(each.finding.energy_j), each.job.ref))

    def _findings(self, viewer: Viewer, job: VisibleJob) -> tuple[Finding, ...]:
        return self._known.of(job, lambda: find_waste(job.record, *viewer.behind(job)))


def by_rule(found: Iterable[Wasted]) -> list[dict[str, Any]]:
    """Return the rules by which anything was wasted, the most energy first."""
    groups: dict[str, list[Wasted]] = defaultdict(list)
    for each in found:
        groups[each.finding.rule].append(each)
    rows = [
        {
            "rule": RULES[name],
            "wasted": group,
            "users": len({each.job.record.user for each in group}),
            **{key: _sum(getattr(each.finding, key) for each in group)
               for key in ("energy_j", "carbon_g", "core_s", "gpu_s", "byte_s")},
        }
        for name, group in groups.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-_number(row["energy_j"]), row["rule"].name))


def most_wasted_j(found: Iterable[Wasted]) -> float:
    """Return what was drawn for nothing, each job counted by the rule that says the most."""
    heaviest: dict[str, float] = {}
    for each in found:
        energy_j = _number(each.finding.energy_j)
        heaviest[each.job.ref] = max(heaviest.get(each.job.ref, 0.0), energy_j)
    return math.fsum(heaviest.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthReport:
    """What the projects of a month came to.

    Attributes:
        month: As `2026-10`.
        rows: A row for each account that may be seen.
        measured: Which share of the energy was measured.
        priced: Which share of the energy is in the grams.
        revision: Tells two reports of a month apart whose figures differ.
    """

    month: str
    start: float
    end: float
    rows: list[dict[str, Any]]
    measured: float
    priced: float
    revision: str

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of the figures."""
        return [
            METHOD,
            f"Covers {format_time(self.start)} to {format_time(self.end)}; times are UTC.",
            "The grid's intensity is that of the watchers at the time, and is not revised "
            f"afterwards. Revision of these figures: {self.revision}.",
        ]

    def parquet(self) -> bytes:
        """Return the rows as a Parquet file, with what a reader has to know."""
        import polars as pl

        kinds = {"account": pl.String, "jobs": pl.Int64, "without_energy": pl.Int64}
        kinds |= {"without_carbon": pl.Int64, "partial": pl.Boolean}
        frame = pl.DataFrame(
            [{name: row[name] for name in ("account", *_COLUMNS)} for row in self.rows],
            schema={name: kinds.get(name, pl.Float64) for name in ("account", *_COLUMNS)},
        )
        frame = frame.with_columns(
            pl.lit(self.month).alias("month"),
            pl.lit(self.revision).alias("revision"),
            pl.lit(" ".join(self.notes)).alias("method"),
        )
        return parquet_of(frame)


def report_of_month(viewer: Viewer, month: str) -> MonthReport:
    """Return what the projects of a month came to.

    Args:
        month: As `2026-10`; a month under way is told up to the present hour.
    """
    start, end = month_span(month)
    until = min(end, viewer.now // 3600 * 3600 + 3600)
    rows = [] if until <= start else viewer.usage("account", start=start, end=until)
    energy_j = _sum(row["energy_j"] for row in rows)
    told = json.dumps([[row["account"], *(row[name] for name in _COLUMNS)] for row in rows])
    return MonthReport(
        month=month,
        start=start,
        end=until if until > start else end,
        rows=sorted(rows, key=lambda row: (-_number(row["energy_j"]), row["account"])),
        measured=_share(_sum(row["measured_j"] for row in rows), energy_j),
        priced=1 - _share(_sum(row["unpriced_j"] for row in rows), energy_j),
        revision=hashlib.sha256(told.encode()).hexdigest()[:12],
    )


def month_span(month: str) -> tuple[float, float]:
    """Return when a month begins and ends.

    >>> month_span("2023-12")
    (1701388800.0, 1704067200.0)
    """
    try:
        first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        first = None
    # It names a file: digits of other alphabets, which are read as well, are none of such a name.
    if first is None or month != f"{first:%Y-%m}":
        raise InvalidInput(f"a month is written as 2026-10, not {month[:20]!r}")
    if not 1970 <= first.year < 2100:
        raise InvalidInput("months are those from 1970 to 2099")
    after = datetime(first.year + first.month // 12, first.month % 12 + 1, 1, tzinfo=UTC)
    return first.timestamp(), after.timestamp()


def months_before(now: float, count: int) -> list[str]:
    """Return the month of a moment and those before it.

    >>> months_before(1_705_000_000.0, 3)
    ['2024-01', '2023-12', '2023-11']
    """
    when = datetime.fromtimestamp(now, UTC)
    places = [12 * when.year + when.month - 1 - back for back in range(count)]
    return [f"{place // 12:04}-{place % 12 + 1:02}" for place in places]


def cluster_now(courses: Mapping[str, Series]) -> dict[str, float]:
    """Return what all nodes together drew lately, and how that adds up; NaN where not known.

    Args:
        courses: What each did in the last minutes.
    """
    names = (
        "power_w",
        "idle_w",
        "unattributed_w",
        "jobs",
        "cpus",
        "cpus_busy",
        "gpus",
        "gpus_busy",
    )
    sums = dict.fromkeys(names, math.nan)
    grid = []
    for series in courses.values():
        for name in names:
            value = _last(series, name)
            if not math.isnan(value):
                sums[name] = value + (0.0 if math.isnan(sums[name]) else sums[name])
        grid.append(_last(series, "intensity_g_per_kwh"))
    there = [each for each in grid if not math.isnan(each)]
    sums["jobs_w"] = sums["power_w"] - sums["idle_w"] - sums["unattributed_w"]
    sums["intensity_g_per_kwh"] = float(np.mean(there)) if there else math.nan
    return sums


def _last(series: Series, name: str) -> float:
    column = series.columns.get(name, np.empty(0))
    there = column[~np.isnan(column)]
    return float(there[-1]) if there.size else math.nan


def _number(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value


def _sum(values: Iterable[float | None]) -> float:
    there = [each for each in values if each is not None and not math.isnan(each)]
    return math.fsum(there) if there else math.nan


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
