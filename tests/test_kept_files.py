"""Damaged files that lowtide keeps, and what other programs answer: read, or refused in words.

What only saves time or carbon when it is there (waits, forecasts, what a node draws when idle) is
left out where it is damaged, and nothing else changes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lowtide.acting.book import Book
from lowtide.acting.experience import Experiences
from lowtide.acting.journal import Journal
from lowtide.acting.site import read_site
from lowtide.acting.submission import LikeNodes, Submission
from lowtide.acting.tag import Tag, decode, encode
from lowtide.acting.together import read_nodes
from lowtide.acting.waits import WaitModel
from lowtide.cli.profiles import _LISTED, phase_rows
from lowtide.cli.queue import acted_document
from lowtide.errors import FormatError
from lowtide.grids.cache import Cache
from lowtide.grids.providers import ZoneName
from lowtide.hindsight.phases import read_phases
from lowtide.library import Library, scraped
from lowtide.library.entry import read_entry
from lowtide.library.programs import are_alike
from lowtide.profile import PowerProfile
from lowtide.slurm import records
from lowtide.studies.experiment import Experiment
from lowtide.studies.run import check_runs, inputs_of
from lowtide.watching.power import load_floor
from support.damage import Target, assert_read_or_refused, assert_sound

NOW = 1_720_051_200.0  # 2024-07-04T00:00Z
RECORDED = Path(__file__).parent / "slurm" / "recorded"
GB = ZoneName(provider="gb", zone="13")
HOURS = [NOW + 3600 * (number - 30) for number in range(36)]

PROGRAM = (
    'startup = [ { name = "load", duration_s = 60, power_w = 80 } ]\n'
    'restart = [ { name = "load", duration_s = 20, power_w = 80 } ]\n'
    'work = [ { repeat = 3, phases = [ { name = "epoch", duration_s = 600, power_w = 400, '
    "checkpoint = true } ] } ]\n"
    "spread = { level = 0.9, runs = 5, energy = [ 0.9, 1.1 ], duration = [ 0.95, 1.2 ] }\n\n"
    '[program]\nuser = "ada"\nname = "train_#"\nnodes = 2\ncpus = 8.0\ngpus = 1.0\nruns = 5\n'
    'learned_from = 5\nsince = "2024-07-01T00:00:00Z"\nuntil = "2024-07-04T00:00:00Z"\n'
    'power = "measured"\ndrift = ""\nnotes = ["5 runs only"]\n\n'
    "[program.energy_j]\nvalue = 725000.0\nlow = 7e5\nhigh = 7.5e5\nlevel = 0.9\nruns = 5\n"
    "error = 0.01\n\n"
    "[program.duration_s]\nvalue = 1860.0\nlow = 1800.0\nhigh = 1900.0\nlevel = 0.9\nruns = 5\n\n"
    f"[program.use]\npower_w = {[float(each) for each in range(16)]}\n"
)
ZONE = {
    "lowtide_grid": 1,
    "provider": "gb",
    "zone": "13",
    "asked": NOW,
    "retrieved": NOW,
    "since": HOURS[0],
    "wait_until": 0.0,
    "problems": ["it took long"],
    "history": {
        "title": "GB",
        "kind": "average",
        "basis": "direct",
        "area": "London",
        "step_s": 3600.0,
        "times": HOURS,
        "values": [200.0 + number for number in range(36)],
        "states": [0] * 30 + [2] * 6,
        "retrieved": [NOW] * 36,
    },
}
FORECASTS = "".join(
    json.dumps(
        {
            "issued": NOW - 7200 * number,
            "start": NOW - 7200 * number,
            "step_s": 3600.0,
            "basis": "direct",
            "values": [210.0, 220.0, 230.0],
        }
    )
    + "\n"
    for number in (2, 1, 0)
)
PAGE = {
    "token": "t1",
    "job_id": "7",
    "name": "train",
    "arrival": NOW,
    "deadline": NOW + 9e4,
    "program": "p",
    "profile": "a1",
    "unit": "g",
    "planned": 40.0,
    "planned_at_once": 50.5,
    "begun": [{"task": "7", "start": NOW + 60, "progress_s": 0.0}],
    "ended": NOW + 5000,
    "outcome": "completed",
    "replayed": 41.0,
    "measured": 42.0,
    "at_once": 52.0,
    "told": ["deferred"],
}
TAUGHT = {"p": [{"token": "t1", "gap": 0.02, "energy": 1.02, "duration": 0.99}] * 3}
WAITS = [
    {"kind": "main/1", "eligible": NOW - 600 * each, "started": NOW - 500 * each, "id": str(each)}
    for each in range(1, 70)
]
TAG = Tag(token="k3v9", deadline=NOW + 9e4, arrival=NOW, run_s=7200, begin=NOW + 60, wait_s=9)
SCRIPT = (
    "#!/bin/bash\n#SBATCH --time=1-02:30:00 -J 'a name'\n#SBATCH --array=0-15:4%2\n"
    '#SBATCH -n4 --cpus-per-task=2 --comment="mine" --gres=gpu:2\n#SBATCH -p main\nsrun train\n'
)
QUEUE = """
[grid]
synthetic = "sunny"
days = 3
[cluster]
nodes = 4
cpus_per_node = 2
power_cap_w = 900
[workload]
duration = "6h"
wait = "12h"
arrivals = { kind = "periodic", period = "2h" }
lengths = "3h"
jobs = { kind = "constant", power_w = 300 }
"""
ANSWER = {
    "status": "success",
    "data": {
        "result": [
            {
                "metric": {
                    "__name__": f"lowtide_job_{name}",
                    "source": "slurm",
                    "job_id": "7",
                    "user": "ada",
                    "name": "train",
                    "host": "n1",
                },
                "values": [[NOW + 15 * number, str(start + rise * number)] for number in range(30)],
            }
            for name, start, rise in (
                ("info", 1, 0),
                ("power_watts", 200, 0),
                ("energy_joules_total", 3000, 3000),
                ("measured_energy_joules_total", 3000, 3000),
                ("start_time_seconds", NOW, 0),
                ("counted_since_seconds", NOW, 0),
                ("reserved_cpus", 2, 0),
            )
        ]
    },
}
PHASES = [
    {"name": "a", "group": "startup", "times": 1, "duration_s": 60.0, "power_w": 80.0},
    {"name": "b", "group": "work", "times": 3, "duration_s": 60.0, "power_w": 300.0},
]
IDLE = {"idle": {"rapl": [NOW, 50.0, 2.0], "ipmi": [NOW, 90.0, 3.0]}}


def _program(path: Path) -> None:
    """Read a program of the library, and use all that is read."""
    entry = read_entry(path)
    phase_rows(entry.profile)
    for column in _LISTED:
        column.text(entry)
    entry.document(), entry.toml(), entry.with_epochs(2), str(entry.program)
    entry.energy_j.holds(7.2e5)
    are_alike(entry.use, entry.use)
    library = Library(path.parent)
    library.expected_of(entry.program, entry.use)
    library.counterparts(entry.program, [entry.use, entry.use])


def _zone(path: Path) -> None:
    """Read what is kept of a zone; where it is damaged, it is set aside."""
    cached = Cache(path.parent / "cache")
    place = cached.path(GB)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)
    try:
        entry = cached.load(GB)
    except FormatError:
        place.with_suffix(".unreadable.json").unlink()
        raise
    if entry.history is not None:
        signal = entry.history.signal(NOW)
        entry.history.caveat(signal)
        entry.history.settled(NOW)


@cache
def _history() -> Any:
    from lowtide.grids.history import History

    return History.from_document(GB, ZONE["history"])  # type: ignore[arg-type]


def _forecasts(path: Path) -> None:
    """What cannot be read of forecasts is left out, and the next is kept behind it."""
    cached = Cache(path.parent)
    place = cached.path(GB).with_suffix(".forecasts.jsonl")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)
    cached.forecasts(GB, _history().settled(NOW))
    if path.stat().st_size % 16 == 0:  # A disk takes longer than all else.
        cached.keep_forecast(_history(), NOW)


def _waits(path: Path) -> None:
    model = WaitModel()
    model.learn(Journal(folder=path.parent).waits())
    for kind in model.kinds:
        model.calibration(kind, NOW)


def _page(path: Path) -> None:
    for page in Book(path.parent).pages(now=NOW):
        assert page.reckoning.saving is None or page.measured is not None
        assert page.stretches is not None
        json.dumps(acted_document(page))


def _experiences(path: Path) -> None:
    known = Experiences(path).of("p")
    profile = PowerProfile.constant(300, "1h")
    assert known.most_s(profile) >= 0
    assert known.adjusted(profile).energy_j >= 0


def _script(path: Path) -> None:
    found = Submission.read(["-t", "30", str(path)], {})
    for name in ("limit_s", "left_alone", "cpus", "comment", "may_be_stopped"):
        getattr(found, name)
    found.waves(found.at_once([LikeNodes(count=1, cpus=64)])), found.kind(None)
    found.command(TAG, now=NOW)


def _queue(path: Path) -> None:
    experiment = Experiment.load(path)
    run = experiment.only_run(path)
    check_runs([run], experiment)
    inputs_of(run.parameters)


def _text(read: Callable[..., Any]) -> Callable[[Path], Any]:
    def damaged(path: Path) -> None:
        text = path.read_bytes().decode(errors="replace")
        unreadable: list[str] = []
        read(text, unreadable=unreadable)
        assert all(each.strip() for each in unreadable)

    return damaged


def _answered(path: Path) -> None:
    """Read what a Prometheus answers to every query alike."""
    try:
        answer = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return  # Whoever asks the web refuses that.
    with patch.object(scraped, "get_json", lambda *_, **__: answer):
        source = scraped.Scraped(url="http://127.0.0.1:9", start=NOW - 60, end=NOW + 86400)
        for seen in source.programs():
            str(seen.program), seen.program.shape


def _some_jobs() -> str:
    document = json.loads((RECORDED / "squeue.json").read_text())
    return json.dumps({**document, "jobs": document["jobs"][:3]})


TARGETS = {
    "program of the library": Target(seeds=(PROGRAM,), name="train.toml", read=_program),
    "zone": Target(seeds=(json.dumps(ZONE),), name="13.json", read=_zone),
    "forecasts": Target(seeds=(FORECASTS,), name="13.jsonl", read=_forecasts),
    "waits": Target(seeds=(json.dumps(WAITS[:5]),), name="waits.json", read=_waits),
    "tag": Target(
        seeds=(encode(TAG, "nightly, ask Ada"),),
        name="comment",
        read=lambda path: decode(path.read_bytes().decode(errors="replace")),
    ),
    "page of the book": Target(seeds=(json.dumps(PAGE),), name="t1.json", read=_page),
    "what runs taught": Target(
        seeds=(json.dumps(TAUGHT),), name="programs.json", read=_experiences
    ),
    "scontrol show config": Target(
        seeds=("KillWait = 30 sec\nSchedulerParameters = bf_interval=30,requeue_delay=5\n",),
        name="a.txt",
        read=lambda path: read_site(path.read_bytes().decode(errors="replace")).loops.total_s,
    ),
    "sinfo": Target(
        seeds=("main 4 64 (null)\ngpu 2 32 gpu:h200:4(S:0-1)\n",),
        name="a.txt",
        read=lambda path: read_nodes(path.read_bytes().decode(errors="replace")),
    ),
    "batch script": Target(seeds=(SCRIPT,), name="train.sh", read=_script),
    "queue to be planned": Target(seeds=(QUEUE,), name="queue.toml", read=_queue),
    "squeue --json": Target(
        seeds=(_some_jobs(),),
        name="a.json",
        read=_text(records.facts_from_json),
    ),
    "squeue": Target(
        seeds=((RECORDED / "squeue.txt").read_text(),),
        name="a.txt",
        read=_text(records.facts_from_lines),
    ),
    "scontrol": Target(
        seeds=((RECORDED / "scontrol.txt").read_text()[:3000],),
        name="a.txt",
        read=_text(records.facts_from_scontrol),
    ),
    "answer of a Prometheus": Target(seeds=(json.dumps(ANSWER),), name="a.json", read=_answered),
    "phases": Target(
        seeds=(json.dumps(PHASES),),
        name="a.json",
        read=lambda path: read_phases(path.read_bytes().decode(errors="replace")),
    ),
    "idle power": Target(seeds=(json.dumps(IDLE),), name="idle.json", read=load_floor),
}


@pytest.mark.parametrize("name", TARGETS)
def test_sound_files_are_read(name: str, tmp_path: Path) -> None:
    assert_sound(tmp_path, TARGETS[name])


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    assert_read_or_refused(tmp_path, name, TARGETS[name])
