"""What forecasts of a grid's own history are worth: how wrong they are, and what plans keep.

Jobs of 4, 8 and 16 hours arrive at all hours and have two days. Those that are planned once, when
they arrive, and those that are planned anew every hour are told apart, and so are jobs that run in
one piece and jobs that may be stopped. Prints for each zone the error by lead time of every way,
and which share of the saving that perfect knowledge brings a plan keeps with it. Beside them stands
auto with a quarter of its error taken off: what a forecast would keep that knows a little more. No
zone of the data has forecasts of a provider; `lowtide grid backtest --grid ZONE` compares with
those that a cache has gathered.

`python benchmarks/forecast.py DE GB` takes some zones, ARRIVALS=200 more jobs (figures of 48 differ
by two points or three from one choice of arrivals to the next). The forecast was developed on DE,
GB, US-CAL-CISO and AUS-NSW; the other zones were left out until it was done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lowtide.forecast import DAY_S, HOUR_S, Forecast, ForecastModel
from lowtide.forecasting.auto import LEADS_H
from lowtide.forecasting.backtest import MODELS, LeadError, Remembered, lead_errors, moments
from lowtide.forecasting.backtest import regrets as regrets_of
from lowtide.formats import read_signal
from lowtide.signal import Signal

DEVELOPED = ("AUS-NSW", "DE", "GB", "US-CAL-CISO")
LEFT_OUT = ("CA-ON", "DE-july2024", "FR", "IN-MH", "PL", "SE", "US-TEX-ERCO")
WITHIN_S = 2 * DAY_S
REACH_S = LEADS_H[-1] * HOUR_S
GOAL = 0.85
# Where perfect knowledge saves less than this, little is lost by knowing nothing.
TINY = 0.03
ARRIVALS = int(os.environ.get("ARRIVALS", "48"))
STOPS = ("never", "anywhere")
# What is planned how; to plan anew every hour takes long, so fewer jobs are.
PLANS = {"once": (*MODELS, "¼ off"), "rolling": ("persistence", "auto")}
FEWER = {"once": 1, "rolling": 4}
# By plan, kind of job and model: what running at once came to, what was planned, what was possible.
Paid = dict[tuple[str, str, str], np.ndarray]


@dataclass(frozen=True)
class Nearer:
    """A model of which a share of the error is taken off, by who knows the truth."""

    model: ForecastModel
    share: float

    def forecast(self, actual: Signal, issued: float, horizon_s: float) -> Forecast:
        """Return what it foresees, moved towards what came."""
        made = self.model.forecast(actual, issued, horizon_s)
        both = min(len(made.signal), len(actual))
        values = made.signal.values.copy()
        values[:both] += self.share * (actual.values[:both] - values[:both])
        return replace(made, signal=replace(made.signal, values=values), lower=None, upper=None)


def tested(signal: Signal) -> tuple[list[LeadError], Paid]:
    """Return how wrong each way was by lead, and what jobs came to that were planned with it."""
    models: dict[str, ForecastModel] = {
        name: Remembered(model, REACH_S) for name, model in MODELS.items()
    }
    models["¼ off"] = Nearer(models["auto"], 0.25)
    at = moments(signal, ARRIVALS, ahead_s=WITHIN_S)
    errors = lead_errors(signal, at, {name: models[name] for name in MODELS})
    paid: Paid = {}
    for how, names in PLANS.items():
        for number, moment in enumerate(at[:: FEWER[how]]):
            show(f"{how} {number + 1} of {len(at[:: FEWER[how]])}")
            # What was foreseen is kept for as long as one job is planned, and no longer.
            known = {name: Remembered(models[name], WITHIN_S) for name in names}
            if how == "rolling":
                known = {name: Remembered(MODELS[name], WITHIN_S) for name in names}
            for stops in STOPS:
                rows = regrets_of(
                    signal, [moment], known, within_s=WITHIN_S, interruptible=stops, plans=(how,)
                )
                for row in rows:
                    sums = paid.setdefault((how, stops, row.model), np.zeros(3))
                    sums += [row.at_once, row.foreseen, row.perfect]
    return errors, paid


def kept(tables: Sequence[Paid], case: tuple[str, str, str]) -> float:
    """Return what is kept of all that can be saved in some zones, each with the same weight."""
    sums = [table[case] / table[case][0] for table in tables]
    saved, possible = np.sum([(1 - each[1], 1 - each[2]) for each in sums], axis=0)
    return float(saved / possible)


def show(what: str) -> None:
    """Say how far it has come, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r{what:<40}\r", end="", file=sys.stderr, flush=True)


def main(zones: list[str]) -> int:
    """Print the tables; return 1 if `auto` keeps less than persistence in a group of zones."""
    folder = Path(os.environ.get("LOWTIDE_DATA", "../shared/data")) / "carbon"
    groups = {
        title: [zone for zone in group if not zones or zone in zones]
        for title, group in (("developed on", DEVELOPED), ("left out", LEFT_OUT))
    }
    worse = False
    cases = [(how, stops, name) for how in PLANS for stops in STOPS for name in PLANS[how]]
    lines = [
        f"{'':<13}{'possible':>10}" + "".join(f"{name:>12}" for *_, name in cases),
        f"{'':<13}{'once':>10}"
        + "".join(f"{how + ' ' + stops[:5]:>12}" for how, stops, _ in cases),
    ]
    for title, group in groups.items():
        tables = []
        for zone in group:
            began = time.process_time()
            signal = read_signal(folder / f"{zone}.csv")
            errors, paid = tested(signal)
            tables.append(paid)
            print(f"{zone}: mean absolute error in {signal.unit} up to so many hours ahead")
            print(f"  {'':<12}" + "".join(f"{lead:>8}" for lead in LEADS_H))
            for name in MODELS:
                found = {row.lead_h: row.error for row in errors if row.model == name}
                cells = [
                    f"{found[lead]:8.1f}" if lead in found else f"{'---':>8}" for lead in LEADS_H
                ]
                print(f"  {name:<12}" + "".join(cells))
            once = paid["once", "never", "auto"]
            possible = 1 - once[2] / once[0]
            lines.append(
                f"{zone:<13}{possible:>10.1%}"
                + "".join(f"{kept([paid], case):>12.1%}" for case in cases)
                + ("  little to save" if possible < TINY else "")
            )
            print(f"  {time.process_time() - began:.0f} s of CPU time\n", flush=True)
        if tables:
            row = "".join(f"{kept(tables, case):>12.1%}" for case in cases)
            lines.append(f"{title:<13}{'':>10}{row}")
            worse |= any(
                kept(tables, (how, stops, "auto")) < kept(tables, (how, stops, "persistence"))
                for how in PLANS
                for stops in STOPS
            )
    print(
        "share of the saving of perfect knowledge that a plan keeps; what that saves in one piece"
    )
    print("\n".join(lines))
    print(f"the goal is {GOAL:.0%}")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
