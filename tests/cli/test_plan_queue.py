"""What `lowtide plan-cluster` says of a queue that does not keep to the signal's steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import run

QUEUE = """
[grid]
synthetic = "sunny"
days = 10
seed = 1

[cluster]
nodes = 2
cpus_per_node = 1

[workload]
duration = "12h"
wait = "6h"
interruptible = "anywhere"
arrivals = { kind = "periodic", period = "57m" }
lengths = "2h7m"
jobs = { kind = "constant", power_w = 400 }
"""


def test_short_slots_are_told_in_so_many_columns_and_for_what_stops_the_bound_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "queue.toml"
    path.write_text(QUEUE)
    answer = run(capsys, "plan-cluster", str(path), "--effort", "0.01", "--step", "5m")
    assert answer.code == 0, answer.err
    _, _, *rest = answer.out.splitlines()
    exactly = "on steps of 00:05:00, and stops them only after every 00:15:00 of work"
    assert exactly in rest[0]
    assert "At whatever moments jobs start and stop, no plan comes to less than" in rest[1]
    curve = [line for line in rest if "█" in line]
    assert curve and max(map(len, curve)) <= 80


def test_a_plan_at_several_sites_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, image = tmp_path / "sites.toml", tmp_path / "sites.svg"
    path.write_text(
        '[grid]\nsynthetic = "sunny"\ndays = 3\n[cluster]\ncpus_per_node = 1\n'
        '[workload]\nduration = "4h"\nwait = "6h"\nlengths = "1h"\n'
        'arrivals = { kind = "periodic", period = "1h" }\n'
        'jobs = { kind = "constant", power_w = 400 }\n'
        "[sites.old]\nnodes = 1\n[sites.fast]\nnodes = 1\nspeed = 2.0\n"
    )
    answer = run(capsys, "plan-cluster", str(path), "--effort", "0.01", "--image", str(image))
    assert answer.code == 0 and f"written: {image}" in answer.out
    assert "fast: nodes held of 1" in image.read_text()
