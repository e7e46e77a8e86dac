"""What was published of the evaluation, beside what its schedules truly cost and the optimum."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide import files
from lowtide.errors import FormatError
from lowtide.experiments.thesis import LEVELS, Case, Outcome

# The file keeps six decimals of a gram; totals of 20 g and more then agree to this.
_AGREE = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published total.

    Attributes:
        published_g: The total as published.
        true_g: What the published schedule emits, accounted for correctly.
        reference_g: What the schedule should have reached: the optimum, or the best start on
            the hour of a job that is not stopped. The file's own figure, to check ours by.
        stretches: How many stretches the schedule has; 0 where the solver found none.
    """

    published_g: float
    true_g: float
    reference_g: float
    stretches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a set of published suspend & resume totals compares with the optimum.

    Attributes:
        jobs: Totals that were published.
        empty: Those without a schedule: published as 0 g, and left out of all below.
        below: Published totals below the optimum, which nothing can be.
        wrong: Published totals that are not what their own schedule emits.
        above: Schedules that truly emit more than the optimum.
        worst: The largest excess of a true total over the optimum, as a share.
    """

    jobs: int
    empty: int
    below: int
    wrong: int
    above: int
    worst: float


def read_published(path: Path | str) -> dict[Case, Published]:
    """Read a file of published totals, by the job they belong to.

    Args:
        path: A CSV file with the factors and `published_g`, `true_g`, `n_segments`,
            `best_hourly_start_g`, `optimum_g`.
    """
    names = [name for name in LEVELS if name != "startup_mode"]
    totals: dict[Case, Published] = {}
    rows = csv.DictReader(files.read_text(path).splitlines())
    for line, row in enumerate(rows, start=2):
        try:
            levels = {
                name: int(row[name]) if isinstance(LEVELS[name][0], int) else row[name]
                for name in names
            }
            case = Case(startup_mode="carved", **levels)  # type: ignore[arg-type]
            suspend = case.strategy == "suspend"
            totals[case] = Published(
                published_g=float(row["published_g"]),
                true_g=float(row["true_g"]),
                reference_g=float(row["optimum_g" if suspend else "best_hourly_start_g"]),
                stretches=int(row["n_segments"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"is no row of published totals ({error})", path=path, line=line
            ) from None
    return totals


def belongs(published: Mapping[Case, Published], outcomes: Sequence[Outcome]) -> bool:
    """Return whether totals were published for the signal that these outcomes come from.

    Args:
        published: The totals.
        outcomes: What the jobs come to here.
    """
    pairs = [
        (outcome.carbon_g, published[outcome.case].reference_g)
        for outcome in outcomes
        if outcome.case in published
    ]
    return bool(pairs) and all(math.isclose(a, b, rel_tol=_AGREE) for a, b in pairs)


def judge(published: Mapping[Case, Published], outcomes: Sequence[Outcome]) -> Verdict | None:
    """Compare published suspend & resume totals with the optimum; None where there are none.

    Args:
        published: The totals.
        outcomes: What the jobs come to at their best.
    """
    pairs = [
        (outcome.carbon_g, published[outcome.case])
        for outcome in outcomes
        if outcome.case.strategy == "suspend" and outcome.case in published
    ]
    if not pairs:
        return None
    real = [(best_g, total) for best_g, total in pairs if total.stretches]
    return Verdict(
        jobs=len(pairs),
        empty=len(pairs) - len(real),
        below=sum(total.published_g < best_g * (1 - _AGREE) for best_g, total in real),
        wrong=sum(
            not math.isclose(total.published_g, total.true_g, rel_tol=_AGREE) for _, total in real
        ),
        above=sum(total.true_g > best_g * (1 + _AGREE) for best_g, total in real),
        worst=max((total.true_g / best_g - 1 for best_g, total in real), default=0.0),
    )
