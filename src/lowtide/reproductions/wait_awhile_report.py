"""Let's Wait Awhile run again, on paper: what shifting saves, by either set of rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.errors import UnknownName
from lowtide.page.page import Section
from lowtide.reproductions.findings import (
    Findings,
    Progress,
    chart_section,
    read_published,
    require_folder,
    table_section,
)
from lowtide.units import MISSING

if TYPE_CHECKING:
    import altair as alt
from lowtide.reproductions.wait_awhile import (
    DEADLINES,
    ERRORS,
    FIXED,
    FIXES,
    NIGHTLY_ERRORS,
    ORIGINAL,
    REPETITIONS,
    WINDOWS,
    ZONES,
    Curve,
    Nightly,
    SlotRules,
    Training,
    TrainingJobs,
    describe,
    nights,
    read_curve,
    read_training_jobs,
    train,
)

TITLE = "Let's Wait Awhile: as published and with its errors fixed"
COLUMNS = (
    *("scenario", "zone", "deadline", "interruptible", "window_h", "error", "rules"),
    *("emissions_sum", "saving_pct", "intensity"),
)
RULES = {"original": ORIGINAL, **FIXES}

_RULE_NAMES = {rules: name for name, rules in RULES.items()}
# Nightly windows that are shown on screen; all of them are in the JSON.
_SHOWN = (0, 2, 4, 8, 16)
_CASES = [(deadline, stops) for deadline in DEADLINES for stops in (False, True)]
# Nights have no workdays.
_NIGHTLY_FIXES = {name: rules for name, rules in FIXES.items() if name != "Monday"}
_WHAT_WAS_FIXED = (
    "Windows: no slot too many, not even for the baseline. Slot means: the mean of the values in a "
    "half-hour, not the first alone. Monday: what is done on Friday evening is due on Monday, not "
    "on Saturday. Fixed: forecast errors too, which grow with lead time and go together, as wide "
    "as published a day ahead. Each on top of those before it."
)
_NAMES = {ORIGINAL: "original", FIXED: "fixed"}
_ERROR = 0.05
# Where things lie in a folder of the real data.
_CURVE = "carbon-raw/wait-awhile_{zone}_ci.csv"
_GOLDENS = Path("goldens", "wait-awhile")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonePart:
    """What one zone comes to under one set of rules.

    Attributes:
        training: Scenario II, case by case.
        nightly: Scenario I, case by case.
    """

    curve: Curve
    rules: SlotRules
    training: tuple[Training, ...]
    nightly: tuple[Nightly, ...]


@dataclass(frozen=True, kw_only=True)
class WaitAwhileStudy:
    """All zones under all rules, and what was published.

    Attributes:
        parts: Every zone under every set of rules.
        published: What was published; empty if it is not known.
    """

    parts: tuple[ZonePart, ...]
    published: Mapping[str, Any]

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """The curves by zone."""
        return {part.curve.zone: part.curve for part in self.parts}

    @cached_property
    def saving_pct(self) -> dict[tuple[SlotRules, str, str, bool, float], float]:
        """What is saved in scenario II, by rules and case."""
        return {
            (part.rules, each.zone, each.deadline, each.stops, each.error): 100 * each.saving
            for part in self.parts
            for each in part.training
        }

    @cached_property
    def intensity(self) -> dict[tuple[SlotRules, str, int, float], float]:
        """What the nightly job meets, by rules and case."""
        return {
            (part.rules, each.zone, each.window, each.error): each.intensity
            for part in self.parts
            for each in part.nightly
        }

    def published_pct(self, zone: str, deadline: str, *, stops: bool, error: float) -> float | None:
        """Return the saving that was published, where one was."""
        if (deadline, error) != ("next_workday", 0.05):
            return None
        found = self.published.get("next_workday_err5_saving_pct", {}).get(zone, {})
        value: float | None = found.get("int" if stops else "nonint")
        return value

    def documents(self) -> list[dict[str, Any]]:
        """Return one JSON document per case, what it becomes when errors are fixed beside it."""
        found: list[dict[str, Any]] = []
        for part in self.parts:
            if part.rules != ORIGINAL:
                continue
            zone = part.curve.zone
            for case in part.training:
                key = (zone, case.deadline, case.stops, case.error)
                published = self.published_pct(
                    zone, case.deadline, stops=case.stops, error=case.error
                )
                found.append(
                    {
                        **case.document(),
                        "published_pct": published,
                        "fixed_pct": self.saving_pct[FIXED, *key],
                        "by_fix_pct": {
                            name: self.saving_pct[rules, *key] for name, rules in FIXES.items()
                        },
                    }
                )
            found += [
                {
                    **night.document(),
                    "fixed_intensity": self.intensity[FIXED, zone, night.window, night.error],
                    "by_fix_intensity": {
                        name: self.intensity[rules, zone, night.window, night.error]
                        for name, rules in _NIGHTLY_FIXES.items()
                    },
                }
                for night in part.nightly
            ]
        return found


def reproduce_wait_awhile(data: Path | None, *, zone: str | None, progress: Progress) -> Findings:
    """Run both scenarios, by the original's rules and with its errors fixed.

    Args:
        zone: Which zone; None for all.
    """
    if zone is not None and zone not in ZONES:
        raise UnknownName("zone", zone, ZONES)
    folder = require_folder(data, "wait-awhile")
    curves = [
        read_curve(folder / _CURVE.format(zone=each), each)
        for each in (ZONES if zone is None else (zone,))
    ]
    jobs = read_training_jobs(folder / _GOLDENS / "ml_jobs.csv")
    total = len(curves) * len(RULES)
    study = WaitAwhileStudy(
        parts=tuple(progress(evaluate(curves, jobs), total=total, doing="simulating")),
        published=read_published(folder / _GOLDENS / "published.json"),
    )
    return Findings(
        title=TITLE,
        note=f"Half-hour slots of 2020 in {', '.join(study.curves)}; {jobs.length.size} training "
        "jobs and a nightly one. Where a file has quarter-hours, all of them or from some day on, "
        "they are brought to half-hours. Forecast errors are seeded, and averaged over "
        f"{REPETITIONS} repetitions.",
        documents=study.documents,
        header=COLUMNS,
        rows=lambda: columns(study),
        sections=lambda: tables(study),
        figures=lambda: [
            chart_section("training", training_chart(study), "Training"),
            chart_section("nightly", nightly_chart(study), "Nightly"),
        ],
    )


def evaluate(curves: Sequence[Curve], jobs: TrainingJobs) -> Iterator[ZonePart]:
    """Run both scenarios in every zone, under the original's rules and those of every fix.

    Args:
        jobs: The jobs of scenario II.
    """
    for curve in curves:
        for rules in _RULE_NAMES:
            yield ZonePart(
                curve=curve,
                rules=rules,
                training=tuple(train(curve, jobs, rules)),
                nightly=tuple(nights(curve, rules)),
            )


def tables(study: WaitAwhileStudy) -> list[Section]:
    """Return all tables."""
    return [
        training_table(study),
        forecasts_table(study),
        nightly_table(study),
        curves_table(study),
    ]


def training_table(study: WaitAwhileStudy) -> Section:
    """Return what training jobs save, as published, reproduced and fixed."""
    rows = []
    for zone in study.curves:
        for deadline, stops in _CASES:
            for error in ERRORS:
                published = study.published_pct(zone, deadline, stops=stops, error=error)
                savings = [
                    study.saving_pct[rules, zone, deadline, stops, error]
                    for rules in RULES.values()
                ]
                rows.append(
                    [
                        zone,
                        deadline,
                        "yes" if stops else "no",
                        f"{100 * error:g} %",
                        _percent(published),
                        *map(_percent, savings),
                    ]
                )
    return table_section(
        "Scenario II: what training jobs save over running at once",
        _WHAT_WAS_FIXED,
        ("zone", "deadline", "stops", "error", "published", "reproduced", *FIXES),
        rows,
    )


def forecasts_table(study: WaitAwhileStudy) -> Section:
    """Return how much more a perfect forecast saves than one with 5 % error."""
    known = study.published.get("ratio_err0_over_err5_minus1_pct", {})
    rows = []
    for number, (deadline, stops) in enumerate(_CASES):
        for zone in study.curves:
            published = None
            if zone in known.get("cols", ()):
                published = known["values"][number][known["cols"].index(zone)]
            ratios = [
                ratio_pct(study, rules, zone, deadline, stops=stops) for rules in (ORIGINAL, FIXED)
            ]
            rows.append(
                [zone, deadline, "yes" if stops else "no", *map(_percent, (published, *ratios))]
            )
    return table_section(
        "Scenario II: how much more a perfect forecast saves than one with 5 % error",
        "Relative to the saving with the error.",
        ("zone", "deadline", "stops", "published", "reproduced", "fixed"),
        rows,
    )


def ratio_pct(
    study: WaitAwhileStudy, rules: SlotRules, zone: str, deadline: str, *, stops: bool
) -> float:
    """Return by how many percent the saving without error exceeds the one with 5 %."""
    without, with_error = (
        study.saving_pct[rules, zone, deadline, stops, error] for error in (0.0, 0.05)
    )
    return 100 * (without / with_error - 1)


def nightly_table(study: WaitAwhileStudy) -> Section:
    """Return what the nightly job meets in windows of several widths."""
    rows = [
        [
            zone,
            f"±{window / 2:g} h",
            f"{100 * error:g} %",
            *(
                f"{study.intensity[rules, zone, window, error]:.2f}"
                for rules in (ORIGINAL, *_NIGHTLY_FIXES.values())
            ),
        ]
        for zone in study.curves
        for error in NIGHTLY_ERRORS
        for window in _SHOWN
    ]
    return table_section(
        "Scenario I: mean intensity of a nightly half-hour job, g/kWh",
        "Windows: all 366 nights of 2020 count once, the first with its window in 2019; the "
        "original had 365, dropped the first where its window began in 2019, and divided by 365 "
        "all the same. Slot means and fixed: as above.",
        ("zone", "window", "error", "reproduced", *_NIGHTLY_FIXES),
        rows,
    )


def curves_table(study: WaitAwhileStudy) -> Section:
    """Return what was published of the curves themselves."""
    rows = []
    for zone, curve in study.curves.items():
        known = {
            **study.published.get("ci_2020", {}).get(zone, {}),
            "weekend_drop_pct": study.published.get("weekend_drop_pct", {}).get(zone),
        }
        here, fixed = (describe(curve, sampled=sampled) for sampled in (True, False))
        rows += [
            [zone, name.replace("_", " ").replace("pct", "%"), *map(_number, values)]
            for name in here
            for values in [(known.get(name), here[name], fixed[name])]
        ]
    return table_section(
        "The curves of 2020, g/kWh",
        "Fixed: slot means, and no slot of 2021. The weekend drop was published between the "
        "medians of each slot of the week; fixed, it is between the means of all slots.",
        ("zone", "what", "published", "reproduced", "fixed"),
        rows,
    )


def columns(study: WaitAwhileStudy) -> list[list[str]]:
    """Return a row per case and set of rules, as `COLUMNS` names them; missing is `---`."""
    rows = []
    for part in study.parts:
        name = _RULE_NAMES[part.rules]
        cases = [each.document() for each in part.training]
        cases += [each.document() for each in part.nightly]
        rows += [[_text({**case, "rules": name}.get(key)) for key in COLUMNS] for case in cases]
    return rows


def training_chart(study: WaitAwhileStudy) -> alt.Chart:
    """Draw what training jobs save with a forecast error of 5 %."""
    from lowtide.page.looks import alt, inline, two_colours

    rows = [
        {
            "case": f"{zone}, {deadline.replace('_', ' ')}{', stops' if stops else ''}",
            "rules": _NAMES[rules],
            "saving": saving,
        }
        for (rules, zone, deadline, stops, error), saving in study.saving_pct.items()
        if rules in _NAMES and error == _ERROR
    ]
    chart: alt.Chart = (
        alt.Chart(inline(rows), width=420, title="Training jobs, 5 % error")
        .mark_bar()
        .encode(
            x=alt.X("saving:Q", title="saving, %"),
            y=alt.Y("case:N", title=None, sort=None),
            yOffset=alt.YOffset("rules:N", sort=[*_NAMES.values()]),
            color=two_colours("rules", [*_NAMES.values()]),
        )
    )
    return chart


def nightly_chart(study: WaitAwhileStudy) -> alt.VConcatChart:
    """Draw what the nightly job meets over the width of its window, zone by zone."""
    from lowtide.page.looks import alt, inline, two_colours

    charts = []
    for zone in study.curves:
        rows = [
            {
                "window": window / 2,
                "rules": name,
                "intensity": study.intensity[rules, zone, window, _ERROR],
            }
            for rules, name in _NAMES.items()
            for window in WINDOWS
        ]
        charts.append(
            alt.Chart(inline(rows), width=420, height=160, title=f"{zone}, 5 % error")
            .mark_line(point=True)
            .encode(
                x=alt.X("window:Q", title="window, ± h"),
                y=alt.Y("intensity:Q", title="g/kWh", scale=alt.Scale(zero=False)),
                color=two_colours("rules", [*_NAMES.values()]),
            )
        )
    return alt.vconcat(*charts, spacing=16)


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f} %"


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _text(value: object) -> str:
    if value is None:
        return MISSING
    return f"{value:.12g}" if isinstance(value, float) else str(value)
