"""Kill −9 at any moment: the store opens, and no more than the last tick is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide.store import Store
from support.ticks import START

pytestmark = pytest.mark.alone

# Makes a process that writes as fast as it can, brings ticks into chunks all the time, and says
# what is safe by now; another one when that was killed. None needs to import everything anew.
WRITERS = """
import os, sys
sys.path[:0] = sys.argv[2:]
from lowtide.store import Store, writer
from support.ticks import START, Watcher, unit

writer.CHUNK_TICKS, writer.CHUNK_LEAST_S = 7, 0.0
jobs = [unit(number) for number in range(20)]

def write(begin):
    watcher = Watcher(time=begin)
    print(os.getpid(), flush=True)
    with Store.open(sys.argv[1]) as store:
        count = 0
        while True:
            count += 1
            store.append(watcher.tick([*jobs, unit(100 + count % 10)]))
            print(watcher.time, flush=True)

for line in sys.stdin:
    if (writer := os.fork()) == 0:
        write(float(line))
    os.waitpid(writer, 0)
    print("killed", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def writers(path: Path) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(path), *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield started
    # A process that still writes finds nobody who listens, and ends.
    started.kill()
    started.communicate()


def test_a_kill_loses_at_most_the_last_tick(path: Path, writers: subprocess.Popen[str]) -> None:
    moments = random.Random(6)
    safe = START
    kept = 0.0
    ticks_in_all = 0
    kills = 10
    assert writers.stdin is not None
    assert writers.stdout is not None
    for _ in range(kills):
        begin = safe + 60.0
        writers.stdin.write(f"{begin}\n")
        writers.stdin.flush()
        writer = int(writers.stdout.readline())
        # Some ticks on, however long they take here, and anywhere in the next ones.
        said = [writers.stdout.readline() for _ in range(moments.randint(1, 16))]
        time.sleep(moments.uniform(0.0, 0.02))
        os.kill(writer, signal.SIGKILL)
        said += iter(writers.stdout.readline, "killed\n")
        safe = float(said[-1])
        with Store.open(path, readonly=True) as store:
            assert store.check().is_sound
            [host] = store.hosts()
            record = store.jobs(ids=["0"])[0]
            course = store.series(record)
        # What was said to be safe is there; one tick more may be, that nobody was told of.
        assert host.last_time in (safe, safe + 10.0)
        ticks = round((host.last_time - begin) / 10.0)
        ticks_in_all += ticks
        kept += 1000.0 * ticks
        assert record.energy_j == pytest.approx(kept)
        assert np.nansum(course.columns["energy_j"]) == pytest.approx(kept, abs=0.01)
        safe = host.last_time
    assert ticks_in_all > 5 * kills
