"""How fast files are read, against a plain Python loop over the same file in the same run.

The inputs are made here, from a seed. Exits with 1 if a ratio is below its floor.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl

from lowtide.formats import read_jobs, read_signal

FLOOR = 5.0
ROWS = 100_000
LINES = 1_000_000
# How wide the columns of real logs are, padded with blanks.
WIDTHS = (9, 11, 9, 9, 8, 9, 10, 8, 9, 7, 5, 7, 6, 8, 5, 5, 6, 6)


def main() -> int:
    """Print one line per figure and return the exit status."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        jobs, signal, log = (Path(folder) / name for name in ("j.csv", "s.csv", "l.swf"))
        write_job_table(jobs, rng)
        write_signal_table(signal, rng)
        write_log(log, rng)
        ratios = [
            compare(
                "job table, 100,000 rows", lambda: read_jobs(jobs), lambda: plain_jobs(jobs), 5
            ),
            compare(
                "signal table, 100,000 rows",
                lambda: read_signal(signal),
                lambda: plain_signal(signal),
                5,
            ),
            compare(
                f"SWF, 1,000,000 lines, {log.stat().st_size / 1e6:.0f} MB",
                lambda: read_jobs(log),
                lambda: plain_log(log),
                3,
            ),
        ]
    return 0 if min(ratios) >= FLOOR else 1


def compare(
    what: str, ours: Callable[[], object], plain: Callable[[], object], repeats: int
) -> float:
    """Time both, print a line, and return how many times faster ours is.

    Args:
        what: What is read.
        ours: Reads it with lowtide.
        plain: Reads it with a plain loop.
        repeats: How often each is timed; the best counts.
    """
    # By turns, so that whatever else the machine does meets both.
    pairs = [(clock(ours), clock(plain)) for _ in range(repeats)]
    ours_s, plain_s = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    ratio = plain_s / ours_s
    verdict = "ok" if ratio >= FLOOR else "too slow"
    print(
        f"{what:<36} {ours_s:6.3f} s   plain Python {plain_s:6.3f} s   "
        f"{ratio:5.1f}x (floor {FLOOR:g}x)  {verdict}"
    )
    return ratio


def clock(act: Callable[[], object]) -> float:
    """Return how long a run takes, in seconds.

    Args:
        act: What to run.
    """
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def plain_jobs(path: Path) -> list[tuple[float, float, float]]:
    """Read the job table with a plain loop.

    Args:
        path: The table.
    """
    with path.open(newline="") as file:
        return [
            (float(row["arrival_time"]), float(row["length"]), float(row["cpus"]))
            for row in csv.DictReader(file)
        ]


def plain_signal(path: Path) -> list[tuple[float, float]]:
    """Read the signal table with a plain loop.

    Args:
        path: The table.
    """
    with path.open(newline="") as file:
        return [
            (
                datetime.fromisoformat(row["datetime"]).timestamp(),
                float(row["carbon_intensity_g_per_kwh"]),
            )
            for row in csv.DictReader(file)
        ]


def plain_log(path: Path) -> list[list[float]]:
    """Read the log with a plain loop.

    Args:
        path: The log.
    """
    with path.open() as file:
        return [[float(cell) for cell in line.split()] for line in file if line[0] != ";"]


def write_job_table(path: Path, rng: np.random.Generator) -> None:
    """Write jobs as a plain table.

    Args:
        path: Where to.
        rng: The source of chance.
    """
    pl.DataFrame(
        {
            "arrival_time": np.sort(rng.integers(0, 31_536_000, ROWS)).astype(float),
            "length": rng.integers(60, 400_000, ROWS).astype(float),
            "cpus": rng.integers(1, 257, ROWS),
        }
    ).write_csv(path)


def write_signal_table(path: Path, rng: np.random.Generator) -> None:
    """Write five-minute intensities as a plain table.

    Args:
        path: Where to.
        rng: The source of chance.
    """
    begin = datetime.fromisoformat("2024-01-01T00:00:00")
    stamps = pl.Series(np.arange(ROWS) * 300_000_000).cast(pl.Duration("us")) + begin
    pl.DataFrame(
        {
            "datetime": stamps.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "carbon_intensity_g_per_kwh": np.round(rng.uniform(20, 800, ROWS), 2),
        }
    ).write_csv(path)


def write_log(path: Path, rng: np.random.Generator) -> None:
    """Write a log of jobs as SWF, its columns padded as real logs have them.

    Args:
        path: Where to.
        rng: The source of chance.
    """
    limits = (0, 0, 1e5, 1e5, 1024, 1e5, 1e6, 1024, 1e5, 0, 6, 500, 50, 1000, 10, 5, 0, 0)
    columns = [
        rng.integers(0, int(limit), LINES) if limit else np.full(LINES, -1) for limit in limits
    ]
    columns[0] = np.arange(1, LINES + 1)
    columns[1] = np.sort(rng.integers(0, 31_536_000, LINES))
    cells = [
        pl.Series(values).cast(pl.String).str.pad_start(width)
        for values, width in zip(columns, WIDTHS, strict=True)
    ]
    lines = pl.select(line=pl.concat_str(cells))["line"]
    path.write_text("; Version: 2.2\n" + "\n".join(lines.to_list()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
