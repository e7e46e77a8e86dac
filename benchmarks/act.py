"""What acting saves and misses in simulated months with faults, and how long a turn takes.

The grid is that of Germany where the real data is under LOWTIDE_DATA, else a synthetic one. Every
row is five months of 600 jobs; changes are against starting each job at its arrival without any
wait in the queue.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import process_time

import lowtide as lt
from lowtide.acting.month import DAYS, HOUR_S, Month, MonthOutcome, all_faults, live
from lowtide.signal import Signal

SEEDS = 5
MONTH_S = (DAYS + 14) * 86_400.0


def grid() -> tuple[str, Signal]:
    """The grid, and what it is called."""
    path = Path(os.environ.get("LOWTIDE_DATA", "../shared/data")) / "carbon" / "DE.csv"
    if path.exists():
        signal = lt.read_signal(str(path))
        return "Germany", signal.window(signal.start, signal.start + MONTH_S)
    made = lt.synthetic_grid("windy", start=0, days=DAYS + 15, seed=1)
    return "a synthetic grid", made.average


def rows(seed: int) -> dict[str, Month]:
    """What is compared."""
    faults, deaf = all_faults(seed)
    at_once = Month(seed=seed, defers=False)
    begin = Month(seed=seed)
    bad = replace(begin, faults=faults, deaf=deaf)
    day = 86_400.0
    dead = [
        (each * day, each * day + hours * HOUR_S)
        for each, hours in zip(range(2, 30, 5), (2, 6, 12, 24, 30, 36), strict=True)
    ]
    return {
        "at once": at_once,
        "at once, faults": replace(at_once, faults=faults),
        "no waits, no faults, margin 0": replace(begin, waits=0.0, margin_s=0.0),
        "waits, margin 0": replace(begin, margin_s=0.0),
        "waits, margin 2 h": replace(begin, margin_s=2 * HOUR_S),
        "waits, margin 6 h": begin,
        "margin 6 h, all faults": bad,
        "... driver dead 6 times": replace(bad, dead=dead),
        "... driver dead all month": replace(bad, dead=[(0.0, MONTH_S)]),
        "... no forecast": replace(bad, foretold=False),
    }


def main() -> None:
    """Print the table."""
    name, signal = grid()
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    print(f"{seeds} months of 600 jobs on {name}")
    print(f"{'':32} {'missed':>7} {'carbon':>8} {'starts':>7} {'CPU s a month':>14}  causes")
    for row in rows(0):
        clock = process_time()
        found: list[MonthOutcome] = [live(rows(seed)[row], signal) for seed in range(seeds)]
        spent_s = (process_time() - clock) / seeds
        causes: Counter[str] = sum((each.missed for each in found), Counter())
        change = sum(each.carbon_g for each in found) / sum(each.at_once_g for each in found) - 1
        starts = sum(each.starts for each in found)
        told = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
        missed = sum(causes.values())
        print(f"{row:32} {missed:7} {100 * change:+7.1f}% {starts:7} {spent_s:14.1f}  {told}")


if __name__ == "__main__":
    main()
