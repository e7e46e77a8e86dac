"""Kill −9 at any moment: the store opens, and no more than the last tick is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lowtide.store import Store
from support.ticks import START

pytestmark = pytest.mark.alone

# Writes as fast as it can, brings ticks into chunks all the time, and says what is safe by now.
WRITER = """
import sys
sys.path[:0] = sys.argv[2:]
from lowtide.store import appending, Store
from support.ticks import START, Watcher, unit

appending.CHUNK_TICKS, appending.CHUNK_LEAST_S = 7, 0.0
watcher = Watcher(time=float(sys.stdin.readline()))
jobs = [unit(number) for number in range(20)]
with Store.open(sys.argv[1]) as store:
    count = 0
    while True:
        count += 1
        store.append(watcher.tick([*jobs, unit(100 + count % 10)]))
        print(watcher.time, flush=True)
"""


def test_a_kill_loses_at_most_the_last_tick(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    moments = random.Random(6)
    safe = START
    kept = 0.0
    ticks_in_all = 0
    kills = 10
    for _ in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        begin = safe + 60.0
        writer.stdin.write(f"{begin}\n")
        writer.stdin.flush()
        said = [writer.stdout.readline()]
        time.sleep(moments.uniform(0.0, 0.15))
        writer.kill()
        said += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdin.close()
        writer.stdout.close()
        whole = [line for line in said if line.strip()]
        safe = float(whole[-1])
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
    assert ticks_in_all > 5 * kills, "nothing was being written"
