"""Two Prometheus servers that differ in what others than ada have, and in nothing else."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.needs import is_missing
from support.prometheus import Prometheus, missing_programs, running_prometheus

NOW = 1_700_000_000
METRICS = ("power", "energy_total", "kernel:use", "solo")
LABELS = ("user", "host", "job_id", "kind")


@contextmanager
def two_worlds(folder: Path) -> Iterator[tuple[Prometheus, Prometheus]]:
    """Start both."""
    if missing := missing_programs():
        is_missing(f"needs a Prometheus to start: {', '.join(missing)} not found")
    rules = folder / "rules.yml"
    rules.write_text("groups: []\n")
    for world in (0, 1):
        write(world, folder / str(world))
    with (
        running_prometheus(folder / "0", [], rules=rules, every="1h", keep="100y") as one,
        running_prometheus(folder / "1", [], rules=rules, every="1h", keep="100y") as two,
    ):
        yield one, two


def series(world: int) -> Iterator[tuple[str, dict[str, str], list[float]]]:
    """Yield what a world holds: ada's is the same in both, whatever others have is not."""
    fixed, other = random.Random(1), random.Random(world + 2)
    for metric in METRICS[:3]:
        for host in ("n1", "n2"):
            for job in ("7", "8"):
                labels = {"user": "ada", "host": host, "job_id": job, "kind": "a"}
                yield metric, labels, [float(fixed.randrange(100)) for _ in range(12)]
    for metric in METRICS:
        for user in ("bob", "carl", f"only{world}", ""):
            for _ in range(3):
                labels = {
                    "user": user,
                    "host": f"n{other.randrange(1, 4)}",
                    "job_id": str(other.randrange(7, 12)),
                    "kind": other.choice(["a", "b", f"k{world}"]),
                }
                yield metric, labels, [float(other.randrange(1000)) for _ in range(12)]


def write(world: int, folder: Path) -> None:
    lines, seen = [], set()
    for metric, labels, values in sorted(series(world), key=lambda each: each[0]):
        said = ",".join(f'{name}="{value}"' for name, value in labels.items() if value)
        if (metric, said) in seen:
            continue
        seen.add((metric, said))
        lines += [
            f"{metric}{{{said}}} {value} {NOW - 30 * (len(values) - place)}"
            for place, value in enumerate(values)
        ]
    folder.mkdir()
    (folder / "series.txt").write_text("\n".join([*lines, "# EOF", ""]))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "series.txt", "data"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
