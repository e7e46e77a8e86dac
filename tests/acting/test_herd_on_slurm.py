"""On a real Slurm with one node: jobs that want the same clean moment are all done in time.

The node is in two partitions, as at sites that have one for short jobs and one for long ones.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.acting.backend import PENDING, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.herd import herd_of
from lowtide.acting.judge import Situation, judge
from lowtide.acting.slurm import SlurmBackend
from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag, new_token
from lowtide.acting.waits import WaitModel
from lowtide.signal import Signal
from support.slurm import running_slurm

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

# How long each says that it takes, and does; when it is clean; when it is too late to begin.
RUN_S, SLEEPS_S, CLEAN_S, LATEST_S, PATIENCE_S = 60.0, 6.0, 100.0, 240.0, 240.0


@pytest.fixture
def one_node(tmp_path, monkeypatch):
    with running_slurm(nodes=1, more="PartitionName=long Nodes=n1 MaxTime=INFINITE") as environment:
        monkeypatch.chdir(tmp_path)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        Path("t.sh").write_text(
            "#!/bin/bash\n#SBATCH -t 1 -c 2 --mem=50M\n"
            f'date +%s.%N > "begun.$1"; sleep {SLEEPS_S}; date +%s.%N > "ended.$1"\n'
        )
        yield environment


def test_four_jobs_of_two_partitions_that_want_the_same_moment_on_one_node_are_in_time(one_node):
    backend = SlurmBackend()
    loops = backend.look().loops
    start = time.time()
    # Clean for a moment, and not before or after.
    values = [100.0 if step == CLEAN_S // 2 else 500.0 + 0.01 * step for step in range(600)]
    signal = Signal.from_values(values, start=start, step_s=2.0)
    deadline = start + loops.total_s + RUN_S + LATEST_S
    begins = {}
    for name, partition in zip("abcd", ("main", "long") * 2, strict=True):
        tag = Tag(
            token=new_token(),
            deadline=float(int(deadline)),
            arrival=start,
            run_s=RUN_S,
            wait_s=0.0,
            min_run_s=1.0,
        )
        look = backend.look()
        submission = Submission.read(["-p", partition, "t.sh", name], {})
        place = backend.place_of(submission.demand(None))
        seen = Seen(id="new", state=PENDING, partition=partition, place=place, cpus=2.0, nodes=1.0)
        seen = replace(seen, comment=submission.command(tag, now=0.0)[2].partition("=")[2])
        situation = Situation(
            now=look.now,
            signal=signal,
            wait_s=lambda *_: 0.0,
            loops=loops,
            herd=herd_of(look, loops, lambda *_: 0.0),
            powers=frozenset(),
        )
        verdict = judge(seen, situation)
        assert verdict.promise.latest > look.now
        begins[name] = verdict.moves[0].at or look.now
        tag = replace(tag, begin=begins[name])
        subprocess.run(submission.command(tag, now=time.time()), check=True, capture_output=True)
    # Three of them can have it. Four would take longer than there is room for: one begins before.
    assert start + CLEAN_S - RUN_S - 3.0 <= begins["a"] <= start + CLEAN_S
    assert begins["b"] == pytest.approx(begins["a"], abs=3.0)
    assert begins["d"] < begins["a"] - 20.0
    driver = Driver(backend=backend, forecast=lambda _: signal, waits=WaitModel(unknown_s=0.0))
    while time.time() < start + PATIENCE_S and len(list(Path().glob("ended.*"))) < 4:
        driver.turn()
        time.sleep(2.0)
    runs = sorted(
        (float(Path(f"begun.{name}").read_text()), float(Path(f"ended.{name}").read_text()))
        for name in begins
    )
    assert all(end <= deadline for _, end in runs), [(a - start, b - start) for a, b in runs]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(runs))
