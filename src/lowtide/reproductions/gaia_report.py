"""GAIA run again, on paper: totals beside the published ones, and what each fix changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.errors import FormatError, UnknownName
from lowtide.formats import read_jobs, read_signal
from lowtide.page.page import Section
from lowtide.reproductions.findings import (
    Findings,
    Progress,
    chart_section,
    read_published,
    require_folder,
    table_section,
)
from lowtide.signal import Signal
from lowtide.units import MISSING, format_percent

if TYPE_CHECKING:
    import altair as alt
from lowtide.reproductions.gaia import (
    FIXED,
    FIXES,
    ORIGINAL,
    RUNS,
    Bench,
    GaiaOutcome,
    GaiaRules,
    cut_signal,
)

TITLE = "GAIA: as published and with its errors fixed"
COLUMNS = (
    *("policy", "scheduling_policy", "carbon_policy", "reserved", "waiting", "rules", "carbon_g"),
    *("cost_usd", "mean_wait_h", "mean_segment_wait_h", "segments", "last_end_h"),
)
STEPS = (1 + len(FIXES)) * len(RUNS)

_RULE_NAMES = {ORIGINAL: "original", **{rules: name for name, rules in FIXES.items()}}
# Where things lie in a folder of the real data.
_TRACE = Path("traces", "pai_1k.csv")
_CARBON = "carbon"
_GOLDENS = Path("goldens", "gaia")
_COMPARED = ("carbon_cost", "dollar_cost")
_WHAT = {"carbon": "carbon_cost", "cost": "dollar_cost", "wait": "mean_wait_h"}
_NAMES = {ORIGINAL: "original", FIXED: "fixed"}


@dataclass(frozen=True, kw_only=True)
class GaiaStudy:
    """The outcomes of the comparison, and what was published of it.

    Attributes:
        zone: Whose carbon intensity the jobs met.
        start_row: The row of its file at which the first job arrived.
        task_trace: What the trace is called.
        outcomes: What each run comes to, under every set of rules.
        totals: What the original gave for this zone and row, by policy; empty if not known.
        notebook: Figures that were published for another zone; empty if not known.
    """

    zone: str
    start_row: int
    task_trace: str
    outcomes: tuple[GaiaOutcome, ...]
    totals: Mapping[str, Mapping[str, Any]]
    notebook: Mapping[str, Any]

    @cached_property
    def by_rules(self) -> dict[GaiaRules, dict[str, GaiaOutcome]]:
        """The outcomes by rules, then by policy."""
        found: dict[GaiaRules, dict[str, GaiaOutcome]] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.rules, {})[outcome.run.policy] = outcome
        return found

    def documents(self) -> list[dict[str, Any]]:
        """Return one JSON document per run, under the names that the original uses."""
        return [
            {
                "policy": run.policy,
                "task_trace": self.task_trace,
                "carbon_trace": self.zone,
                "start_index": self.start_row,
                "scheduling_policy": run.scheduling_policy,
                "carbon_policy": run.carbon_policy,
                "reserved": run.reserved,
                "waiting": run.waiting,
                **self.by_rules[ORIGINAL][run.policy].document(),
                "mean_segment_wait_h": self.by_rules[ORIGINAL][run.policy].mean_segment_wait_h,
                "fixed": self.by_rules[FIXED][run.policy].document(),
            }
            for run in RUNS
        ]

    def deviation(self, policy: str) -> float | None:
        """Return by which share a run is off the original's own, in carbon or cost."""
        if policy not in self.totals:
            return None
        here, there = self.by_rules[ORIGINAL][policy].document(), self.totals[policy]
        return max(abs(float(here[name] / there[name]) - 1) for name in _COMPARED)


def reproduce_gaia(data: Path | None, *, zone: str, start_row: int, progress: Progress) -> Findings:
    """Run the comparison, by the original's rules and with its errors fixed.

    Args:
        start_row: The row of its file at which the first job arrives.
    """
    folder = require_folder(data, "gaia")
    trace = read_jobs(folder / _TRACE)
    bench = Bench(trace=trace, signal=cut_signal(_load_signal(folder, zone), trace, start_row))
    study = GaiaStudy(
        zone=zone,
        start_row=start_row,
        task_trace=_TRACE.stem,
        outcomes=tuple(progress(evaluate(bench), total=STEPS, doing="simulating")),
        totals=read_totals(folder / _GOLDENS / f"totals_{zone}.json", start_row),
        notebook=read_published(folder / _GOLDENS / "published_notebook_AU-SA.json"),
    )
    caveat = f" ({bench.signal.caveat})" if bench.signal.caveat else ""
    return Findings(
        title=TITLE,
        note=f"{len(trace)} jobs of {_TRACE.name} at 1 W per CPU, on the {bench.signal.label} of "
        f"{zone} from row {start_row}{caveat}. Jobs below 2 h wait up to 6 h, others up to 24 h. "
        "In r9, 9 CPUs are reserved.",
        documents=study.documents,
        header=COLUMNS,
        rows=lambda: columns(study),
        sections=lambda: tables(study),
        figures=lambda: [chart_section("policies", policies_chart(study), "Policies")],
    )


def _load_signal(folder: Path, zone: str) -> Signal:
    known = sorted(path.stem for path in (folder / _CARBON).glob("*.csv"))
    if known and zone not in known:
        raise UnknownName("zone", zone, known)
    # What is missing elsewhere in the file is no reason to refuse the part that is needed.
    return read_signal(folder / _CARBON / f"{zone}.csv", gaps="hold")


def evaluate(bench: Bench) -> Iterator[GaiaOutcome]:
    """Run everything, under the original's rules and with one error fixed after the other."""
    for rules in _RULE_NAMES:
        for run in RUNS:
            yield bench.outcome(run, rules)


def read_totals(path: Path, start_row: int) -> dict[str, Mapping[str, Any]]:
    """Read what the original gave, by policy; nothing where it is not known for this row.

    Args:
        path: A JSON file with a list of totals.
    """
    rows = read_published(path)
    try:
        return {row["policy"]: row for row in rows if row["start_index"] == start_row}
    except (KeyError, TypeError) as error:
        raise FormatError(f"is no list of totals ({error!r})", path=path) from None


def tables(study: GaiaStudy) -> list[Section]:
    """Return all tables."""
    return [totals_table(study), fixes_table(study), notebook_table(study)]


def totals_table(study: GaiaStudy) -> Section:
    """Return what each run comes to, as published and fixed."""
    rows = []
    for run in RUNS:
        pairs = [study.by_rules[rules][run.policy].document() for rules in (ORIGINAL, FIXED)]
        off = study.deviation(run.policy)
        rows.append(
            [
                run.policy,
                *(f"{each['carbon_cost']:.2f} g" for each in pairs),
                *(f"{each['dollar_cost']:.2f} $" for each in pairs),
                *(f"{each['mean_wait_h']:.2f} h" for each in pairs),
                format_percent(off, digits=3),
            ]
        )
    known = (
        "Off: by which share carbon or cost differ from what the original itself gave; its heap "
        "serves equal arrivals in an order of its own, which only runs with reserved machines feel."
        if study.totals
        else "What the original itself gives here is not known."
    )
    return table_section(
        "Carbon, cost and waiting, by the original's rules and fixed",
        f"Fixed: arrivals and lengths in seconds, not cut to 5-s steps; starts at any moment, "
        f"not only whole hours after arrival; freed machines usable at once; reserved machines "
        f"paid for until the last job ends, not until it starts. Both: equal arrivals in the order "
        f"of the trace, waiting averaged over jobs. {known}",
        ("policy", "carbon", "fixed", "cost", "fixed", "wait", "fixed", "off"),
        rows,
    )


def fixes_table(study: GaiaStudy) -> Section:
    """Return the most that each fix changes, on top of those before it."""
    rows = []
    before = study.by_rules[ORIGINAL]
    for name, rules in FIXES.items():
        after = study.by_rules[rules]
        row = [name]
        for key in _WHAT.values():
            old, new = (
                [each[run.policy].document()[key] for run in RUNS] for each in (before, after)
            )
            change = np.array([b / a - 1 if a else 0.0 for a, b in zip(old, new, strict=True)])
            most = int(np.argmax(np.abs(change)))
            seen = abs(change[most]) >= 5e-5
            row += [f"{100 * change[most]:+.2f} %", RUNS[most].policy] if seen else [MISSING] * 2
        rows.append(row)
        before = after
    header = ["fix"]
    for what in _WHAT:
        header += [what, "in"]
    return table_section(
        "What each fix changes at most",
        "Each on top of those above it; the run that it changes most is named.",
        header,
        rows,
    )


def notebook_table(study: GaiaStudy) -> Section:
    """Return published figures that depend on the jobs alone, whatever the zone."""
    heading = "Published for AU-SA, and the same for every zone"
    if not study.notebook:
        return table_section(heading, f"The published figures were not found: {MISSING}.")
    published = notebook_figures(study.notebook)
    here, fixed = (jobs_alone(study.by_rules[rules]) for rules in (ORIGINAL, FIXED))
    return table_section(
        heading,
        "The curve of AU-SA is not in the data, so figures that depend on it cannot be "
        "computed. These do not: they belong to policies that look at no curve.",
        ("figure", "published", "here", "fixed"),
        [
            [name, *(f"{each[name]:.10g}" for each in (published, here, fixed))]
            for name in published
        ],
    )


def notebook_figures(notebook: Mapping[str, Any]) -> dict[str, float]:
    """Return the published figures that depend on the jobs alone."""
    alone, reserved = notebook["trace_independent"], notebook["fig10_r9"]
    # Waiting was published as a share of the longest, and once in hours.
    in_hours = notebook["fig11_carbon_cost_cst_average"][0]["mean_wait_h"]
    return {
        "busy time, steps of 5 s": alone["total_busy_steps"],
        "CPUs of all jobs": alone["sum_cpus"],
        "cost on demand, $": alone["dollar_r0"],
        "cost spot first / on demand": alone["spot_ratio"],
        "cost AJW-T r9 / NJW r9": reserved["cost"]["AllWaitThreshold"] / reserved["cost"]["NoWait"],
        "wait AJW-T r9, h": in_hours / reserved["waiting"]["CarbonTime"],
    }


def jobs_alone(outcomes: Mapping[str, GaiaOutcome]) -> dict[str, float]:
    """Return what the outcomes say of the same figures."""
    at_once = outcomes["NJW"]
    return {
        "busy time, steps of 5 s": float(at_once.length_s.sum()) / 5.0,
        "CPUs of all jobs": float(at_once.cpus.sum()),
        "cost on demand, $": at_once.total_cost,
        "cost spot first / on demand": outcomes["Spot-First-Carbon-Time"].total_cost
        / at_once.total_cost,
        "cost AJW-T r9 / NJW r9": outcomes["AJW-T r9"].total_cost / outcomes["NJW r9"].total_cost,
        "wait AJW-T r9, h": outcomes["AJW-T r9"].mean_wait_h,
    }


def columns(study: GaiaStudy) -> list[list[str]]:
    """Return a row per run and set of rules, as `COLUMNS` names them."""
    return [
        [
            outcome.run.policy,
            outcome.run.scheduling_policy,
            outcome.run.carbon_policy,
            str(outcome.run.reserved),
            outcome.run.waiting,
            _RULE_NAMES[outcome.rules],
            *(
                f"{number:.12g}"
                for number in (
                    float(outcome.carbon_g.sum()),
                    outcome.total_cost,
                    outcome.mean_wait_h,
                    outcome.mean_segment_wait_h,
                    outcome.job.size,
                    float(outcome.end_s.max()) / 3600,
                )
            ),
        ]
        for outcome in study.outcomes
    ]


def policies_chart(study: GaiaStudy) -> alt.LayerChart:
    """Draw what every run emits over how long its jobs wait."""
    from lowtide.page.looks import NEUTRAL, WIDTH, alt, inline, two_colours

    rows = []
    # Runs that differ in what machines cost alone lie on one point, and share its label.
    labels: dict[tuple[float, float], list[str]] = {}
    for run in RUNS:
        for rules, name in _NAMES.items():
            outcome = study.by_rules[rules][run.policy]
            wait_h, carbon_g = outcome.mean_wait_h, float(outcome.carbon_g.sum())
            rows.append({"policy": run.policy, "rules": name, "wait": wait_h, "carbon": carbon_g})
            if rules == FIXED:
                labels.setdefault((wait_h, carbon_g), []).append(run.policy)
    base = alt.Chart(
        inline(rows),
        width=WIDTH,
        height=420,
        title=f"{study.zone} from row {study.start_row}",
    ).encode(
        x=alt.X("wait:Q", title="mean wait, h"),
        y=alt.Y("carbon:Q", title="g", scale=alt.Scale(zero=False)),
    )
    lines = base.mark_line(color=NEUTRAL).encode(detail="policy:N")
    points = base.mark_point(filled=True, size=60).encode(
        color=two_colours("rules", [*_NAMES.values()]),
        tooltip=["policy:N", "rules:N", "wait:Q", "carbon:Q"],
    )
    # Neighbours in carbon take turns above and below their points, so that labels stay apart.
    words = []
    for side, dy in ((0, -11), (1, 13)):
        names = [
            {"wait": wait_h, "carbon": carbon_g, "label": ", ".join(labels[wait_h, carbon_g])}
            for wait_h, carbon_g in sorted(labels, key=lambda point: point[1])[side::2]
        ]
        words.append(
            alt.Chart(inline(names))
            .mark_text(align="left", dx=6, dy=dy, fontSize=10)
            .encode(x="wait:Q", y="carbon:Q", text="label:N")
        )
    return alt.LayerChart(layer=[lines, points, *words])
