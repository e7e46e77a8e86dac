"""What accounts are to use at most, and how much of that they have.

Everything is made of sums that a `Viewer` gives: who is told a part of an account's sum sees what
share of the budget that part is, at least, and nothing of where it leads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lowtide.serve.settings import Budget, Settings
from lowtide.serve.viewer import Viewer

_DAY_S = 86400.0
# By what was used in so long a time it is told what a period will come to.
PACE_DAYS = 30
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
J_PER_KWH, G_PER_KG = 3.6e6, 1000.0
METHOD = (
    "A budget is of energy or emissions in a calendar month, quarter or year (UTC), as the file of "
    "this centre has it. Used is the account's own sum from the period's first hour on, jobs that "
    "run included, accounts below it not. What it comes to by the end is that, and for the time "
    f"that is left the average of the last {PACE_DAYS} days, or of the days since the account was "
    "first used if these are fewer. It is an estimate, and told to those who see the whole sum."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """How much of a budget of energy or emissions was used.

    Attributes:
        budget: What is to be used at most, joules or grams.
        used: What was used; None where nobody knows of any.
        by_end: What it comes to by the end of the period; None where that is not told.
    """

    budget: float
    used: float | None
    by_end: float | None

    @property
    def share(self) -> float:
        """Which share of the budget was used; NaN where that is not known."""
        return math.nan if self.used is None else self.used / self.budget

    @property
    def share_by_end(self) -> float:
        """Which share of the budget it comes to; NaN where that is not told."""
        return math.nan if self.by_end is None else self.by_end / self.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """How an account stands in the period under way.

    Attributes:
        begins: When the period begins, epoch seconds.
        ends: When it ends.
        sums: What was used in it, as `Viewer.usage` has it.
        energy: How much of its energy was used; None where that is not limited.
        carbon: The same of its emissions.
    """

    cluster: str
    account: str
    per: str
    begins: float
    ends: float
    sums: Mapping[str, Any]
    energy: Spending | None
    carbon: Spending | None

    @property
    def partial(self) -> bool:
        """Whether it may be that others used more, which is not told."""
        return bool(self.sums["partial"])

    def document(self) -> dict[str, Any]:
        """Return it as programs get it."""
        return {
            "cluster": self.cluster,
            "account": self.account,
            "per": self.per,
            "begins": self.begins,
            "ends": self.ends,
            "partial": self.partial,
            "energy_j": None if self.energy is None else asdict(self.energy),
            "carbon_g": None if self.carbon is None else asdict(self.carbon),
        }


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of a centre."""

    settings: Settings

    def of(self, viewer: Viewer, named: str) -> BudgetState | None:
        """Return how an account stands; None where it has no budget, or its sums are not told.

        Args:
            named: The account, as `CLUSTER/ACCOUNT`.
        """
        cluster, _, account = named.partition("/")
        found = self.all(viewer, {"cluster": cluster, "account": account})
        return found[0] if found else None

    def all(self, viewer: Viewer, wanted: Mapping[str, str]) -> list[BudgetState]:
        """Return how accounts stand whose sums are told.

        Args:
            wanted: What the accounts have to be: `account` and `cluster`.
        """
        cluster = self.settings.cluster
        if wanted.get("cluster", cluster) != cluster:
            return []
        known = {
            name: each.budget
            for name, each in sorted(self.settings.accounts.items())
            if each.budget is not None and wanted.get("account", name) == name
        }
        told = {*viewer.accounts()} if known else set()
        known = {name: budget for name, budget in known.items() if f"{cluster}/{name}" in told}
        # Few questions, however many accounts have a budget.
        of = {"cluster": cluster, **({"account": next(iter(known))} if len(known) == 1 else {})}
        pace = _Pace(viewer, of) if known else None
        found = []
        for per in dict.fromkeys(each.per for each in known.values()):
            span = period_span(viewer.now, per)
            sums = _by_account(viewer, of, span[0], _next_hour(viewer.now))
            found += [
                _state(viewer, name, budget, of, span, sums.get(name), pace)
                for name, budget in known.items()
                if budget.per == per
            ]
        return sorted(found, key=lambda each: each.account)


def period_span(now: float, per: str) -> tuple[float, float]:
    """Return when the period under way begins and ends.

    >>> [(end - begin) / 86400 for begin, end in (period_span(1.7e9, each) for each in _MONTHS)]
    [30.0, 92.0, 365.0]
    """
    when = datetime.fromtimestamp(now, UTC)
    count = _MONTHS[per]
    first = (when.month - 1) // count * count
    begin, end = (
        datetime(when.year + place // 12, place % 12 + 1, 1, tzinfo=UTC).timestamp()
        for place in (first, first + count)
    )
    return begin, end


class _Pace:
    """What accounts used of late in a second."""

    def __init__(self, viewer: Viewer, of: Mapping[str, str]) -> None:
        self._viewer, self._of = viewer, of
        self._end = _next_hour(viewer.now)
        self._start = self._end - PACE_DAYS * _DAY_S
        self._lately = _by_account(viewer, of, self._start, self._end)
        self._before = _by_account(viewer, of, 0.0, self._start)

    def each_s(self, account: str) -> dict[str, float | None]:
        """Return joules and grams a second; None where nobody knows."""
        lately = self._lately.get(account)
        if lately is None:
            return {"energy_j": 0.0, "carbon_g": 0.0}
        first = self._start
        if account not in self._before:
            of = {**self._of, "account": account}
            days = self._viewer.usage("day", start=self._start, end=self._end, wanted=of)
            first = max(first, min(float(day["day"]) for day in days))
        # The last hour is not over.
        passed_s = max(self._viewer.now - first, 3600.0)
        sums = {name: lately[name] for name in ("energy_j", "carbon_g")}
        return {name: None if value is None else value / passed_s for name, value in sums.items()}


def _by_account(
    viewer: Viewer, of: Mapping[str, str], start: float, end: float
) -> dict[str, dict[str, Any]]:
    rows = viewer.usage("account", start=start, end=end, wanted=of)
    return {row["account"]: row for row in rows}


def _next_hour(now: float) -> float:
    return now // 3600 * 3600 + 3600


def _state(
    viewer: Viewer,
    account: str,
    budget: Budget,
    of: Mapping[str, str],
    span: tuple[float, float],
    sums: Mapping[str, Any] | None,
    pace: _Pace | None,
) -> BudgetState:
    if sums is None:
        sums = _nothing(viewer, f"{of['cluster']}/{account}")
    lately = {} if sums["partial"] or pace is None else pace.each_s(account)

    def spent(name: str, most: float) -> Spending | None:
        if not most:
            return None
        used, each_s = sums[name], lately.get(name)
        by_end = None
        if used is not None and each_s is not None:
            by_end = used + each_s * (span[1] - viewer.now)
        return Spending(budget=most, used=used, by_end=by_end)

    return BudgetState(
        cluster=of["cluster"], account=account, per=budget.per, begins=span[0], ends=span[1],
        sums=sums,
        energy=spent("energy_j", budget.kwh * J_PER_KWH),
        carbon=spent("carbon_g", budget.kg * G_PER_KG),
    )  # fmt: skip


def _nothing(viewer: Viewer, named: str) -> dict[str, Any]:
    """Return the sums of an account that nobody used, as far as is told."""
    names = ("jobs", "energy_j", "measured_j", "carbon_g", "unmetered_s", "unpriced_j")
    sums = dict.fromkeys((*names, "without_energy", "without_carbon"), 0)
    return {**sums, "partial": not (viewer.sees_all or named in viewer.rights.leads)}
