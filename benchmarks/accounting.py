"""How fast the accounting is: span-integrals per second, against a plain Python loop.

Both add up watts × g/kWh over the same random spans on one year of hours, on one core.
"""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np

from lowtide.accounting import integrate
from lowtide.signal import FloatArray, Signal

SPANS = 5_000_000
LOOPED = 20_000
FLOOR = 100.0
YEAR_H = 8760


def plain_loop(
    power_w: list[float], begin: list[float], end: list[float], values: list[float], start: float
) -> list[float]:
    """Walk every span through the hours it touches, as one would write it down."""
    grams = []
    for watts, a, b in zip(power_w, begin, end, strict=True):
        total = 0.0
        hour = int((a - start) // 3600)
        while start + hour * 3600 < b:
            low = max(a, start + hour * 3600)
            high = min(b, start + (hour + 1) * 3600)
            total += watts * values[hour] * (high - low) / 3.6e6
            hour += 1
        grams.append(total)
    return grams


def main() -> int:
    """Print the figures; return 1 if the ratio is below its floor."""
    rng = np.random.default_rng(1)
    start = 1_704_067_200.0
    signal = Signal.from_values(rng.uniform(50, 700, YEAR_H), start=start, step_s=3600)
    begin = start + rng.uniform(0, (YEAR_H - 48) * 3600, SPANS)
    end = begin + rng.exponential(8 * 3600, SPANS).clip(1, 48 * 3600)
    power_w: FloatArray = rng.uniform(50, 700, SPANS)

    ours_s = np.inf
    for _ in range(3):
        clock = perf_counter()
        grams = integrate(power_w, begin, end, signal)
        ours_s = min(ours_s, perf_counter() - clock)

    few = slice(0, LOOPED)
    watts, begins, ends = (array[few].tolist() for array in (power_w, begin, end))
    values = signal.values.tolist()
    clock = perf_counter()
    looped = plain_loop(watts, begins, ends, values, start)
    loop_s = perf_counter() - clock

    worst = float(np.max(np.abs(grams[few] - looped) / np.abs(looped)))
    rate, loop_rate = SPANS / ours_s, LOOPED / loop_s
    print(
        f"accounting: {rate / 1e6:.1f} million span-integrals/s; plain Python loop "
        f"{loop_rate / 1e6:.3f} million/s; ratio {rate / loop_rate:.0f}x (floor {FLOOR:.0f}x); "
        f"largest difference {worst:.1e} relative"
    )
    return int(rate / loop_rate < FLOOR or worst > 1e-9)


if __name__ == "__main__":
    sys.exit(main())
