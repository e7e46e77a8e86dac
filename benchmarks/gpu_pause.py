"""What it takes to have NVIDIA's driver take a training job off its card, and what the card draws.

The job of `gpu_training.py` is run through, paused by the driver as `lowtide run --pause-gpu` does
it, and stopped where it stands as `--pause` does it. Told is what each way took and drew, by the
card's power of the moment five times a second, and whether the job came to the same losses. It
needs an NVIDIA GPU with a driver from 570 on, PyTorch, and nothing else of lowtide's than its
source:

    PYTHONPATH=src python benchmarks/gpu_pause.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from lowtide.acting.gpu_pause import Cuda, GpuPause
from lowtide.acting.local import LocalBackend
from lowtide.acting.tag import Tag, encode
from lowtide.measuring.program import StartedProgram

TRAINING = Path(__file__).with_name("gpu_training.py")
EPOCHS = 4
# When the job is paused, after its start: in the midst of its second epoch.
AT_S = 24.0
WAYS = {"run through": 0.0, "paused by the driver": 45.0, "stopped where it stands": 25.0}


class Card:
    """The card's power of the moment and its memory in use, as nvidia-smi tells them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "power"
        query = "--query-gpu=timestamp,power.draw.instant,memory.used"
        with self.path.open("w") as file:
            self._asked = subprocess.Popen(
                ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "200"],
                stdout=file,
                env={**os.environ, "TZ": "UTC"},
            )

    def between(self, begin: float, end: float) -> tuple[float, float, float]:
        """Return joules, mean watts and the least MiB in use of a while."""
        rows = []
        for line in self.path.read_text().splitlines():
            cells = line.split(", ")
            if len(cells) == 3:
                at = datetime.strptime(f"{cells[0]} +0000", "%Y/%m/%d %H:%M:%S.%f %z").timestamp()
                rows.append((at, float(cells[1]), float(cells[2])))
        at, watts, used = np.array([row for row in rows if begin <= row[0] <= end]).T
        joules = float(np.trapezoid(watts, at))
        return joules, joules / float(at[-1] - at[0]), float(used.min())

    def close(self) -> None:
        """Ask no more."""
        self._asked.terminate()
        self._asked.wait()


def run(card: Card, way: str, pause_s: float) -> None:
    """Run the job once, and tell what came."""
    gpus = GpuPause(cuda=Cuda()) if "driver" in way else None
    begun = time.time()
    tag = Tag(token="g", deadline=begun + 900, arrival=begun, run_s=99, interruptible=True)
    backend = LocalBackend(tag=tag, gpus=gpus)
    asked: float | None = None
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w+") as said:
        command = [sys.executable, str(TRAINING), f"--epochs={EPOCHS}", f"--folder={folder}"]
        backend.prepare()
        program = StartedProgram.start(
            ["sh", "-c", 'exec "$@" > "$0"', said.name, *command], environment=os.environ
        )
        backend.started(program)
        while not program.wait(0.1):
            program.poll()
            backend.attend()
            if asked is None and pause_s and time.time() > begun + AT_S:
                asked = time.time()
                (job,) = backend.look().jobs
                backend.note(job, encode(replace(tag, begin=asked + pause_s)))
                backend.stop(job)
        status, ended = program.poll(), time.time()
        backend.ended(status)
        backend.close()
        program.close()
        losses = re.findall(r"loss (\S+)", said.read())
    joules, _, _ = card.between(begun, ended)
    print(f"{way}: status {status}, {ended - begun:.1f} s, {joules / 1e3:.2f} kJ, losses {losses}")
    for still, on in backend.pauses:
        tell(card, "until it stands still", asked or still, still)
        # It is paused until it is told to go on; what it takes to come back is told apart.
        back = max(still, (asked or still) + pause_s)
        tell(card, "stands still", still + 1.0, back - 0.5)
        tell(card, "until it goes on", back, on)
    for problem in backend.troubles:
        print(f"  {problem}")
    for what, took_s in gpus.took_s if gpus else ():
        print(f"  {what} in {took_s:.1f} s")


def tell(card: Card, what: str, begin: float, end: float) -> None:
    """Print what the card drew and held meanwhile."""
    if end - begin > 1.0:
        _, watts, used = card.between(begin, end)
        print(f"  {what}: {end - begin:.1f} s at {watts:.1f} W, {used:.0f} MiB in use")


def main(ways: Sequence[str]) -> None:
    """Run the job in each way."""
    with tempfile.TemporaryDirectory() as folder:
        card = Card(Path(folder))
        try:
            time.sleep(3.0)
            tell(card, "nobody uses it", time.time() - 2.0, time.time())
            for way in ways:
                run(card, way, WAYS[way])
                time.sleep(3.0)
        finally:
            card.close()


if __name__ == "__main__":
    main(sys.argv[1:] or list(WAYS))
