"""srun lowtide measure on a real Slurm: one recording of all tasks, and of all array elements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lowtide.formats import read_recordings
from support.slurm import ask

pytestmark = [pytest.mark.alone, pytest.mark.slurm]

MEASURE = f"{sys.executable} -m lowtide measure --idle 0.5 --meter estimate --share node --"
PROGRAM = f"{sys.executable} -c 'import lowtide, time; lowtide.mark(\"work\"); time.sleep(2)'"


def test_tasks_on_several_nodes_make_one_recording(slurm: dict[str, str], tmp_path: Path) -> None:
    words = ["srun", "-N", "2", "-n", "4", "--chdir", str(tmp_path), "sh", "-c"]
    ask(slurm, *words, f"{MEASURE} {PROGRAM}")
    (folder,) = tmp_path.glob("recording-*")
    assert len(list(folder.glob("part-*"))) == 4
    (recording,) = read_recordings(folder)
    (run,) = recording
    # Both nodes are this machine, whose power counts once: an estimate is 0.64 W or more a CPU.
    assert (run.machine["machines"], run.machine["parts"]) == (1, 4)
    assert run.machine["slurm_step"] == "0"
    assert [event.label for event in run.events] == ["work"]
    assert run.exit_status == 0
    (measured,) = [each for part in folder.glob("part-*") for each in read_recordings(part)[0].runs]
    assert run.mean_w == pytest.approx(measured.mean_w, rel=0.25)


def test_elements_of_an_array_make_one_recording(slurm: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{MEASURE} {PROGRAM}\n")
    words = ["sbatch", "--wait", "--array=1-3", "--chdir", str(tmp_path), "-o", "out-%a"]
    ask(slurm, *words, str(script))
    (folder,) = tmp_path.glob("recording-*")
    (recording,) = read_recordings(folder)
    assert [run.id for run in recording] == ["1/full_0", "2/full_0", "3/full_0"], "".join(
        path.read_text() for path in tmp_path.glob("out-*")
    )
