"""What forecasts of a grid's own history are worth: how much of the possible saving plans keep.

Jobs of 4, 8 and 16 hours arrive at all hours and have two days. Those that are planned once, when
they arrive, and those that are planned anew every hour are told apart, and so are jobs that run in
one piece and jobs that may be stopped. The forecast was developed on DE, GB, US-CAL-CISO and
AUS-NSW; the other zones were left out until it was done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from lowtide.forecast import DAY_S
from lowtide.forecasting.backtest import MODELS, moments, regrets
from lowtide.formats import read_signal

DEVELOPED = ("AUS-NSW", "DE", "GB", "US-CAL-CISO")
LEFT_OUT = ("CA-ON", "DE-july2024", "FR", "IN-MH", "PL", "SE", "US-TEX-ERCO")
WITHIN_S = 2 * DAY_S
GOAL = 0.85
# How many arrivals: to plan anew every hour takes longer than to plan once.
ARRIVALS = {"once": 36, "rolling": 6}


def kept_in(path: Path) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return what was saved and what could have been, by plan, kind of job and forecast."""
    signal = read_signal(path)
    chosen = {name: MODELS[name] for name in ("persistence", "auto")}
    found = {}
    for how, count in ARRIVALS.items():
        at = moments(signal, count, ahead_s=WITHIN_S)
        for stops in ("never", "anywhere"):
            for row in regrets(
                signal, at, chosen, within_s=WITHIN_S, interruptible=stops, plans=(how,)
            ):
                saved, possible = row.at_once - row.foreseen, row.at_once - row.perfect
                found[how, stops, row.model] = (saved / row.at_once, possible / row.at_once)
    return found


def main(zones: list[str]) -> int:
    """Print the table; return 1 if `auto` keeps less than persistence where it was left out."""
    folder = Path(os.environ.get("LOWTIDE_DATA", "../shared/data")) / "carbon"
    heads = [f"{how}, {stops}" for how in ARRIVALS for stops in ("never", "anywhere")]
    print("forecast: share of the possible saving that is kept, auto (persistence beside it)")
    print(f"{'zone':<12} " + " ".join(f"{head:>18}" for head in heads))
    worse = False
    for title, group in (("developed on", DEVELOPED), ("left out", LEFT_OUT)):
        tables = {}
        for zone in group:
            if zones and zone not in zones:
                continue
            tables[zone] = table = kept_in(folder / f"{zone}.csv")
            print(f"{zone:<12} " + _cells([table]), flush=True)
        if tables:
            print(f"{title:<12} " + _cells(list(tables.values())))
            worse |= any(
                _kept(list(tables.values()), how, stops, "auto")
                < _kept(list(tables.values()), how, stops, "persistence")
                for how in ARRIVALS
                for stops in ("never", "anywhere")
            )
    print(f"the goal is {GOAL:.0%}")
    return int(worse)


def _kept(
    tables: list[dict[tuple[str, str, str], tuple[float, float]]], how: str, stops: str, model: str
) -> float:
    """Return what is kept of all that can be saved in some zones, each with the same weight."""
    saved, possible = np.sum([table[how, stops, model] for table in tables], axis=0)
    return float(saved / possible)


def _cells(tables: list[dict[tuple[str, str, str], tuple[float, float]]]) -> str:
    cells = []
    for how in ARRIVALS:
        for stops in ("never", "anywhere"):
            auto, before = (_kept(tables, how, stops, model) for model in ("auto", "persistence"))
            cells.append(f"{auto:>10.1%} ({before:>4.0%})")
    return " ".join(f"{cell:>18}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
