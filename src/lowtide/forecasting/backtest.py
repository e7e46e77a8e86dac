"""How wrong forecasts of a signal have been, by lead time, and what plans made with them are worth.

A moment of the past is taken for now: what a model foresaw with what was known then is compared
with what came. A plan made with a forecast is paid for on what came, and set beside the plan of
somebody who knew it: what the two differ by is the regret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowtide.accounting import footprint
from lowtide.errors import NotCovered
from lowtide.forecast import DAY_S, HOUR_S, Forecast, ForecastModel
from lowtide.forecasting.auto import LEADS_H, WAYS, Auto
from lowtide.job import Job
from lowtide.policies import Plan, plan
from lowtide.policies.rolling import Rolling
from lowtide.policies.wrappers import Forecasted
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal
from lowtide.units import format_hours, format_percent, format_time

#: What a history is tested with: each way for itself, and all together.
MODELS: Mapping[str, ForecastModel] = {
    **{name: Auto(ways=(name,)) for name in WAYS},
    "auto": Auto(),
}
# At 1 kW, what a job emits in grams is the mean of the intensity times its hours.
_POWER_W = 1000.0
# Forecasts are tested from this share of a history on: before, there is little to foresee from.
_TESTED_FROM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadError:
    """How wrong a model was at a lead.

    Attributes:
        model: Its name.
        lead_h: Leads up to so many hours, from those of the row before on.
        error: Mean absolute error, in the signal's unit.
        relative: The same as a share of the mean of what came; None where that is 0.
        bias: By how much more was foreseen than came, on average.
        covered: Which share of what came lay within the band; None where there was none.
        steps: How many steps were compared.
    """

    model: str
    lead_h: float
    error: float
    relative: float | None
    bias: float
    covered: float | None
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What jobs come to that are planned with forecasts.

    Attributes:
        model: Which forecasts.
        plan: `once`, when a job arrives, `rolling`, anew with every hour's forecast, or what else
            the plan is called.
        jobs: How many jobs.
        at_once: What they come to without waiting: on average per kWh, or of one job.
        foreseen: What they come to as they were planned.
        perfect: What they come to planned by somebody who knows what comes.
    """

    model: str
    plan: str
    jobs: int
    at_once: float
    foreseen: float
    perfect: float

    @property
    def saving(self) -> float | None:
        """The share that planning with forecasts saved."""
        return 1.0 - self.foreseen / self.at_once if self.at_once > 0 else None

    @property
    def possible(self) -> float | None:
        """The share that perfect knowledge saves."""
        return 1.0 - self.perfect / self.at_once if self.at_once > 0 else None

    @property
    def regret(self) -> float:
        """What not knowing cost."""
        return self.foreseen - self.perfect

    @property
    def kept(self) -> float | None:
        """Which share of the possible saving was kept; None where nothing was to be saved."""
        possible = self.at_once - self.perfect
        if possible <= 1e-9 * abs(self.at_once):
            return None
        return (self.at_once - self.foreseen) / possible

    def words(self) -> str:
        """Return what was kept and lost, in a sentence."""
        kept = "" if self.kept is None else f"{format_percent(self.kept)} of that was kept; "
        lost = self.regret / self.at_once if self.at_once > 0 else None
        return (
            f"On what came, {self.plan} saves {format_percent(self.saving)}; who had known it "
            f"would have saved {format_percent(self.possible)}: {kept}regret "
            f"{format_percent(lost)} of running at once."
        )

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "model": self.model,
            "plan": self.plan,
            "jobs": self.jobs,
            "at_once": self.at_once,
            "foreseen": self.foreseen,
            "perfect": self.perfect,
            "saving": self.saving,
            "possible": self.possible,
            "kept": self.kept,
            "regret": self.regret,
        }


def regret_of(job: Job, made: Plan, truth: Signal, *, model: str) -> Regret:
    """Return what a plan made with a forecast comes to, beside the plan of who knew what came.

    Args:
        made: The plan; its schedule counts, not what it was foreseen to come to.
        truth: What came.
        model: Which forecast it was made with.
    """
    best = plan(job, truth)
    return Regret(
        model=model,
        plan=made.policy,
        jobs=1,
        at_once=best.baseline.amount,
        foreseen=footprint(made.schedule, job, truth).amount,
        perfect=best.footprint.amount,
    )


@dataclass(frozen=True, slots=True)
class Remembered:
    """A model that is asked once for each moment, and then for as far ahead as anybody wants.

    Attributes:
        model: Who is asked.
        horizon_s: How far ahead.
    """

    model: ForecastModel
    horizon_s: float
    _known: dict[float, Forecast] = field(default_factory=dict)

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return what the model foresees at a moment.

        Args:
            actual: The signal, always the same.
            horizon_s: How far ahead the forecast must reach.
        """
        if issued not in self._known:
            reach_s = max(min(self.horizon_s, actual.end - issued), horizon_s)
            self._known[issued] = self.model.forecast(actual, issued, reach_s)
        return self._known[issued]


def moments(
    signal: Signal,
    count: int,
    *,
    ahead_s: float,
    since: float | None = None,
    until: float | None = None,
) -> list[float]:
    """Return moments to test at, spread evenly at all hours of the day.

    Args:
        count: How many; fewer where there are not so many steps.
        ahead_s: How much of the signal must lie ahead of each.
        since: The first; by default half way through the signal.
        until: Until when the signal is looked at; by default to its end.
    """
    begin = signal.start + _TESTED_FROM * (signal.end - signal.start)
    first = max(begin if since is None else since, signal.start + DAY_S)
    last = min(signal.end if until is None else until, signal.end) - ahead_s
    begun = math.ceil((first - signal.start) / signal.step_s - 1e-9)
    over = math.floor((last - signal.start) / signal.step_s + 1e-9)
    if over < begun:
        raise NotCovered(
            f"to test forecasts, {format_hours(DAY_S)} must lie before a moment and "
            f"{format_hours(ahead_s)} after it, and there is no such moment from "
            f"{format_time(first)} to {format_time(signal.end)}: give a longer history, or plan "
            "within less time"
        )
    steps = np.unique(np.linspace(begun, over, min(count, over - begun + 1)).astype(np.int64))
    return [signal.start + int(step) * signal.step_s for step in steps]


def able(
    signal: Signal, moment: float, models: Mapping[str, ForecastModel] = MODELS
) -> tuple[dict[str, ForecastModel], list[str]]:
    """Return the models that can foresee anything at a moment, and why the others cannot."""
    taking, out = {}, []
    for name, model in models.items():
        try:
            model.forecast(signal, moment, signal.step_s)
        except NotCovered as error:
            out.append(f"{name} is left out: {error}")
        else:
            taking[name] = model
    return taking, out


def lead_errors(
    signal: Signal,
    at: Sequence[float],
    models: Mapping[str, ForecastModel] = MODELS,
    *,
    advance: Callable[[], None] = lambda: None,
) -> list[LeadError]:
    """Return how wrong models were at each lead, for those leads that can be compared.

    Steps that nobody measured are left out.

    Args:
        at: The moments at which they foresaw.
        advance: Told whenever a moment is done.
    """
    measured = np.ones(len(signal), bool) if signal.marks is None else signal.marks == 0
    found: dict[tuple[str, int], list[FloatArray]] = {}
    for moment in at:
        horizon_s = min(LEADS_H[-1] * HOUR_S + signal.step_s, signal.end - moment)
        for name, model in models.items():
            made = model.forecast(signal, moment, horizon_s)
            for lead, rows in _compared(made, signal, measured):
                found.setdefault((name, lead), []).append(rows)
        advance()
    return [
        _lead_error(name, LEADS_H[lead], np.concatenate(found[name, lead]))
        for name in models
        for lead in range(len(LEADS_H))
        if (name, lead) in found
    ]


def _compared(
    made: Forecast, actual: Signal, measured: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Iterator[tuple[int, FloatArray]]:
    """Yield for each lead what was foreseen, what came, and whether the band held it."""
    count = min(len(made.signal), len(actual))
    ahead = np.flatnonzero((made.leads_s[:count] > 1e-6) & measured[:count])
    truth, expected = actual.values[ahead], made.signal.values[ahead]
    held = np.full(ahead.size, np.nan)
    if made.lower is not None and made.upper is not None:
        held = (made.lower.values[ahead] <= truth) & (truth <= made.upper.values[ahead])
    rows = np.column_stack([expected, truth, held]).astype(np.float64)
    hours = made.leads_s[ahead] / HOUR_S
    leads = np.minimum(np.searchsorted(LEADS_H, hours - 1e-9), len(LEADS_H) - 1)
    for lead in np.unique(leads).tolist():
        yield lead, rows[leads == lead]


def _lead_error(name: str, lead_h: float, rows: FloatArray) -> LeadError:
    expected, truth, held = rows.T
    error, mean = float(np.abs(expected - truth).mean()), float(truth.mean())
    return LeadError(
        model=name,
        lead_h=lead_h,
        error=error,
        relative=error / mean if mean > 0 else None,
        bias=float((expected - truth).mean()),
        covered=None if np.isnan(held).all() else float(np.nanmean(held)),
        steps=len(rows),
    )


def regrets(
    signal: Signal,
    at: Sequence[float],
    models: Mapping[str, ForecastModel] = MODELS,
    *,
    lengths_s: Sequence[float] = (4 * HOUR_S, 8 * HOUR_S, 16 * HOUR_S),
    within_s: float = 2 * DAY_S,
    interruptible: str = "never",
    plans: Sequence[str] = ("once", "rolling"),
    advance: Callable[[], None] = lambda: None,
) -> list[Regret]:
    """Return what jobs come to that are planned with each model's forecasts.

    Args:
        at: When jobs arrive: one of each length.
        lengths_s: How long they work, at constant power.
        within_s: How long after its arrival a job must be done.
        interruptible: Where they may be stopped.
        plans: `once` and `rolling`, or one of them.
        advance: Told whenever a moment is done.
    """
    paid: dict[tuple[str, str], FloatArray] = {
        (name, how): np.zeros(3) for name in models for how in plans
    }
    for arrival in at:
        known = {name: Remembered(model, within_s) for name, model in models.items()}
        for length_s in lengths_s:
            job = Job(
                id=f"{length_s:g}",
                arrival=arrival,
                deadline=arrival + within_s,
                profile=PowerProfile.constant(_POWER_W, length_s),
                interruptible=interruptible,
            )
            hours = length_s / HOUR_S
            best = plan(job, signal)
            for (name, how), sums in paid.items():
                forecasts = known[name]
                policy = (
                    Forecasted("exact", forecasts)
                    if how == "once"
                    else Rolling(forecasts=forecasts)
                )
                amount = plan(job, signal, policy=policy).footprint.amount
                sums += np.array([best.baseline.amount, amount, best.footprint.amount]) / hours
        advance()
    jobs = len(at) * len(lengths_s)
    return [
        Regret(
            model=name,
            plan=how,
            jobs=jobs,
            at_once=sums[0] / jobs,
            foreseen=sums[1] / jobs,
            perfect=sums[2] / jobs,
        )
        for (name, how), sums in paid.items()
    ]
