"""What forecasts of a grid's own history are worth: how wrong they are, and what plans keep.

Jobs of 4, 8 and 16 hours arrive at every hour of some days and have two days. Those that are
planned once, when they arrive, and those that are planned anew every hour are told apart, and so
are jobs that run in one piece and jobs that may be stopped. Prints for each zone the error by lead
time of every way, and which share of the saving that perfect knowledge brings a plan keeps with it.
Two stand beside them that nobody can have. `seen` are the lines of `linear` drawn from the whole
history, what they are to foresee included: no longer past would help them more. `¼ off` is auto
with a quarter of its error taken off: what a forecast keeps that knows a little more, of the
weather say. No zone of the data has forecasts of a provider; `lowtide grid backtest --grid ZONE`
compares with those that a cache has gathered.

Plans of such jobs are found by trying all hours; for some they are compared with the planner's.
`python benchmarks/forecast.py DE GB` takes some zones, DAYS=60 more days than 24. The forecast was
developed on DE, GB, US-CAL-CISO and AUS-NSW; the other zones were left out until it was done.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from lowtide.forecasting.auto import LEADS_H, WAYS, Auto
from lowtide.forecasting.backtest import MODELS, regrets
from lowtide.forecasting.models import draw_lines
from lowtide.forecasting.past import Past
from lowtide.formats import read_signal
from lowtide.signal import FloatArray, Signal

DEVELOPED = ("AUS-NSW", "DE", "GB", "US-CAL-CISO")
LEFT_OUT = ("CA-ON", "DE-july2024", "FR", "IN-MH", "PL", "SE", "US-TEX-ERCO")
LENGTHS_H = (4, 8, 16)
WITHIN_H = 48
GOAL = 0.85
# Where perfect knowledge saves less than this, little is lost by knowing nothing.
TINY = 0.03
DAYS = int(os.environ.get("DAYS", "24"))
NAMES = (*WAYS, "auto", "seen", "¼ off")
CASES = tuple((how, stops) for how in ("once", "rolling") for stops in ("never", "anywhere"))
# By plan, kind of job and way: what running at once came to, what was planned, what was possible.
Paid = dict[tuple[str, str, str], FloatArray]


def foreseen(signal: Signal) -> tuple[FloatArray, dict[str, FloatArray], dict[str, FloatArray]]:
    """Return what came on some days, what was foreseen in them, and how wrong by lead.

    What was foreseen: for each day, each hour of it and of the two days after, the hour itself and
    the 47 after it.
    """
    past = Past.of(signal)
    # Beginnings of days, from half way through on, with nothing missing around them.
    first = math.ceil((signal.start + (signal.end - signal.start) / 2) / 86400.0)
    days = range(first, math.floor(signal.end / 86400.0) - 4)
    begins = [round((86400.0 * day - signal.start) / 3600) for day in days]
    whole = [each for each in begins if np.isfinite(past.values[each - 24 : each + 120]).all()]
    starts = [whole[place] for place in np.unique(np.linspace(0, len(whole) - 1, DAYS).astype(int))]
    came = np.stack([signal.values[start : start + 72 + WITHIN_H - 1] for start in starts])
    made = {name: np.full((len(starts), 72, WITHIN_H), np.nan) for name in NAMES}
    wrong: dict[str, list[FloatArray]] = {name: [] for name in NAMES}
    seen = draw_lines(past)
    far = np.arange(1, LEADS_H[-1] + 1)
    for number, start in enumerate(starts):
        show(f"day {number + 1} of {len(starts)}")
        for day in range(3):
            tried = Auto().tried(past.before(start + 24 * day + 1))
            ways = {**tried.ways, "auto": tried.foresee, "seen": seen}
            hours = np.arange(start + 24 * day, start + 24 * day + 24)
            leads = far if day == 0 else far[: WITHIN_H - 1]
            now, ahead = (each.ravel() for each in np.meshgrid(hours, leads, indexing="ij"))
            truth = np.where(
                now + ahead < len(past), past.values[(now + ahead) % len(past)], np.nan
            )
            truth[~past.sure[(now + ahead) % len(past)]] = np.nan
            for name, way in ways.items():
                said = way(past, now, ahead)
                if day == 0:
                    wrong[name].append(np.abs(said - truth).reshape(24, -1))
                made[name][number, 24 * day : 24 * day + 24, 1:] = said.reshape(24, -1)[
                    :, : WITHIN_H - 1
                ]
    for each in made.values():
        each[:, :, 0] = came[:, :72]
    windows = np.lib.stride_tricks.sliding_window_view(came, WITHIN_H, axis=1)
    made["¼ off"] = made["auto"] + 0.25 * (windows - made["auto"])
    return came, made, {name: np.concatenate(each) for name, each in wrong.items() if each}


def planned(came: FloatArray, made: dict[str, FloatArray]) -> Paid:
    """Return what jobs come to that arrive at each hour of the days, planned in each way."""
    paid: Paid = {}
    for name, forecasts in made.items():
        if np.isnan(forecasts).any():
            continue
        for arrival in range(24):
            truth = came[:, arrival : arrival + WITHIN_H]
            for length in LENGTHS_H:
                best = {
                    "never": _means(truth, length).min(axis=1),
                    "anywhere": np.sort(truth, axis=1)[:, :length].mean(axis=1),
                }
                at_once = truth[:, :length].mean()
                for how, stops in CASES:
                    every = 1 if how == "rolling" else WITHIN_H
                    own = (_in_one_piece if stops == "never" else _in_pieces)(
                        truth, forecasts[:, arrival:], length, every
                    )
                    sums = paid.setdefault((how, stops, name), np.zeros(3))
                    sums += [at_once, own.mean(), best[stops].mean()]
    return paid


def _means(values: FloatArray, length: int) -> FloatArray:
    """Return what a job of a length comes to on average, by the hour that it starts in."""
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    means: FloatArray = (sums[:, length:] - sums[:, :-length]) / length
    return means


def _in_one_piece(truth: FloatArray, forecasts: FloatArray, length: int, every: int) -> FloatArray:
    """Return what jobs come to that choose their start, and may choose anew every so many hours."""
    starts = np.full(len(truth), -1)
    for hour in range(0, WITHIN_H - length + 1, every):
        chosen = _means(forecasts[:, hour, : WITHIN_H - hour], length).argmin(axis=1)
        go = (starts < 0) & (chosen < every)
        starts[go] = hour + chosen[go]
    means: FloatArray = _means(truth, length)[np.arange(len(truth)), starts]
    return means


def _in_pieces(truth: FloatArray, forecasts: FloatArray, length: int, every: int) -> FloatArray:
    """Return what jobs come to that run in the hours that seem best, seen every so many hours."""
    left, total = np.full(len(truth), length), np.zeros(len(truth))
    for hour in range(WITHIN_H):
        asked = hour - hour % every
        rest = forecasts[:, asked, hour - asked : WITHIN_H - asked]
        # Of two hours that are alike the earlier one is taken.
        runs = (rest[:, 1:] < rest[:, :1]).sum(axis=1) < left
        total += np.where(runs, truth[:, hour], 0.0)
        left = left - runs
    return total / length


def check(signal: Signal) -> None:
    """Compare one job of each kind with what the planner makes of the forecasts of auto."""
    hour = math.ceil((signal.start + (signal.end - signal.start) / 2) / 86400.0) * 86400.0
    start = round((hour - signal.start) / 3600)
    past = Past.of(signal)
    now, ahead = np.full(WITHIN_H - 1, start), np.arange(1, WITHIN_H)
    said = Auto().tried(past.before(start + 1)).foresee(past, now, ahead)
    forecasts = np.concatenate([signal.values[start : start + 1], said])[None, None]
    truth = signal.values[None, start : start + WITHIN_H]
    for stops, own in (("never", _in_one_piece), ("anywhere", _in_pieces)):
        (row,) = regrets(
            signal,
            [hour],
            {"auto": MODELS["auto"]},
            lengths_s=[8 * 3600.0],
            within_s=WITHIN_H * 3600.0,
            interruptible=stops,
            plans=("once",),
        )
        ours = float(own(truth, forecasts, 8, WITHIN_H)[0])
        if not math.isclose(ours, row.foreseen, rel_tol=1e-6):
            raise SystemExit(f"{ours} by trying all hours, {row.foreseen} by the planner")


def kept(tables: list[Paid], case: tuple[str, str, str]) -> float:
    """Return what is kept of all that can be saved in some zones, each with the same weight."""
    shares = [table[case] / table[case][0] for table in tables if case in table]
    saved, possible = np.sum([(1 - each[1], 1 - each[2]) for each in shares], axis=0)
    return float(saved / possible)


def show(what: str) -> None:
    """Say how far it has come, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r{what:<40}\r", end="", file=sys.stderr, flush=True)


def print_kept(tables: list[Paid]) -> None:
    """Print what is kept in some zones, a row for each kind of plan and job."""
    print(f"  {'':<24}" + "".join(f"{name:>12}" for name in NAMES))
    for how, stops in CASES:
        cells = [
            f"{kept(tables, (how, stops, name)):>12.1%}"
            if any((how, stops, name) in table for table in tables)
            else f"{'---':>12}"
            for name in NAMES
        ]
        print(f"  {how + ', stops ' + stops:<24}" + "".join(cells), flush=True)


def print_zone(zone: str, signal: Signal, wrong: dict[str, FloatArray], paid: Paid) -> None:
    """Print the tables of one zone."""
    print(f"{zone}: mean absolute error in {signal.unit} up to so many hours ahead")
    print(f"  {'':<24}" + "".join(f"{lead:>12}" for lead in LEADS_H))
    for name, each in wrong.items():
        cells = [
            np.nanmean(each[:, low:high]) for low, high in zip((0, *LEADS_H), LEADS_H, strict=False)
        ]
        print(f"  {name:<24}" + "".join(f"{cell:12.1f}" for cell in cells))
    once = paid["once", "never", "auto"]
    possible = 1 - once[2] / once[0]
    little = ", which is little" if possible < TINY else ""
    print(f"  perfect knowledge saves {possible:.1%} in one piece{little}; of that is kept")
    print_kept([paid])


def main(zones: list[str]) -> int:
    """Print the tables; return 1 if `auto` keeps less than persistence in a group of zones."""
    folder = Path(os.environ.get("LOWTIDE_DATA", "../shared/data")) / "carbon"
    worse = False
    for title, group in (("developed on", DEVELOPED), ("left out", LEFT_OUT)):
        tables = []
        for zone in group:
            if zones and zone not in zones:
                continue
            began = time.process_time()
            # What a gap is filled with counts as not known.
            signal = read_signal(folder / f"{zone}.csv", gaps="hold")
            check(signal)
            came, made, wrong = foreseen(signal)
            tables.append(planned(came, made))
            print_zone(zone, signal, wrong, tables[-1])
            jobs = 24 * len(LENGTHS_H) * len(came)
            print(f"  {jobs} jobs, {time.process_time() - began:.0f} s of CPU time\n", flush=True)
        if tables:
            print(f"all zones: {title}, each with the same weight (the goal is {GOAL:.0%})")
            print_kept(tables)
            print()
            worse |= any(
                kept(tables, (*case, "auto")) < kept(tables, (*case, "persistence"))
                for case in CASES
            )
    return int(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
