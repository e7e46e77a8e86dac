"""What acting saves and misses: in simulated months with faults, and in a crowded queue.

The grid is that of Germany where the real data is under LOWTIDE_DATA, else a synthetic one. Every
row of the first table is five months of 600 jobs; changes are against starting each job at its
arrival without any wait in the queue. Beside it stands what the prototype of the driver came to.

The second table is 37 days of a real cluster's jobs, a tenth of them flexible, at three loads,
beside what another simulation of them has found; without the data it is left out. A margin of none
sets begins at the last second, which Slurm meets at its next pass: that alone makes jobs late.

    python benchmarks/act.py            five months a row, and the whole study
    python benchmarks/act.py 1          one month a row, and the default rule alone
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

import lowtide as lt
from lowtide.signal import Signal

# Months and crowds are shared with the tests.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.acting_month import (
    DAYS,
    HOUR_S,
    Month,
    MonthOutcome,
    all_faults,
    live,
)
from support.wait_study import RULES, WaitStudy, drawn_jobs, study

SEEDS = 5
MONTH_S = (DAYS + 14) * 86_400.0
DATA = Path(os.environ.get("LOWTIDE_DATA", "../shared/data"))
# What the prototype missed of 3,000 and changed, in percent; None where it was not tried.
PROTOTYPE: dict[str, tuple[int, float]] = {
    "at once": (0, 0.0),
    "at once, faults": (1, 0.3),
    "no waits, no faults, margin 0": (0, -10.5),
    "waits, margin 0": (173, -10.5),
    "waits, margin 2 h": (29, -9.5),
    "waits, margin 6 h": (5, -7.5),
    "margin 6 h, all faults": (10, -6.9),
    "... driver dead 6 times": (6, -6.9),
    "... driver dead all month": (10, -7.0),
    "... no forecast": (1, 0.3),
}
# CPUs and hours of slack, and what another simulation of the same jobs missed, in percent.
CROWDS: dict[tuple[int, int], dict[str, float]] = {
    (1024, 6): {},
    (700, 6): {"at once": 1.1, "none": 24.9, "4 h": 10.5, "7 days, estimate": 1.4},
    (700, 24): {"at once": 0.0, "none": 1.6, "4 h": 0.5, "7 days, estimate": 0.1},
    (600, 24): {"at once": 19.3, "none": 41.0, "4 h": 39.1},
}


def grid(days: float = DAYS + 14) -> tuple[str, Signal]:
    """The grid, and what it is called."""
    path = DATA / "carbon" / "DE.csv"
    if path.exists():
        signal = lt.read_signal(str(path))
        return "Germany", signal.window(signal.start, signal.start + days * 86_400.0)
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
    head = (
        f"{'':32} {'missed':>7} {'carbon':>8} {'prototype':>14} {'starts':>7} {'CPU s':>6}  causes"
    )
    print(head)
    for row in rows(0):
        clock = process_time()
        found: list[MonthOutcome] = [live(rows(seed)[row], signal) for seed in range(seeds)]
        spent_s = (process_time() - clock) / seeds
        causes: Counter[str] = sum((each.missed for each in found), Counter())
        change = sum(each.carbon_g for each in found) / sum(each.at_once_g for each in found) - 1
        starts = sum(each.starts for each in found)
        told = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
        missed = sum(causes.values())
        before, percent = PROTOTYPE[row]
        beside = f"{before * seeds / SEEDS:.0f}, {percent:+.1f}%"
        print(
            f"{row:32} {missed:7} {100 * change:+7.1f}% {beside:>14} {starts:7} {spent_s:6.1f}  "
            f"{told}"
        )
    print()
    crowded(RULES if seeds >= SEEDS else ("at once", "none", "7 days, estimate"))


def crowded(rules: Sequence[str]) -> None:
    """Print what margins for the queue miss and save, at three loads."""
    path = DATA / "traces" / "scorelab.csv"
    if not path.exists():
        print("the study of waits needs the real data: traces/scorelab.csv is not there")
        return
    with path.open() as file:
        found = list(csv.DictReader(file))
    jobs = drawn_jobs(
        [float(row["arrival_time"]) for row in found],
        [float(row["length"]) for row in found],
        [int(row["cpus"]) for row in found],
    )
    name, signal = grid(120)
    print(f"{len(jobs)} jobs of a real cluster on {name}, misses of flexible ones")
    head = f"{'CPUs (load), slack':22} {'margin':18} {'missed':>8} {'elsewhere':>10} {'carbon':>8}"
    print(f"{head} {'promised':>9} {'broken':>7}")
    for (cpus, slack_h), elsewhere in CROWDS.items():
        for rule in rules:
            settings = WaitStudy(cpus=cpus, slack_s=slack_h * HOUR_S, rule=rule)
            outcome = study(jobs, signal, settings)
            other = f"{elsewhere[rule]:.1f}%" if rule in elsewhere else "---"
            where = f"{cpus} ({outcome.load:.0%}), {slack_h} h"
            missed = outcome.missed / outcome.jobs
            print(
                f"{where:22} {rule:18} {missed:8.1%} {other:>10} {outcome.change:+8.1%} "
                f"{outcome.promised:9} {outcome.broken:7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
