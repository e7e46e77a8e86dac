"""A store of jobs of known programs becomes a library: what is found, left out and expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lowtide.formats.recording_writer import write_recording
from lowtide.library import Library, learn_from
from lowtide.library.entry import Expectation
from lowtide.library.production import Found, Harvest, drifted, expect, tail
from lowtide.library.programs import PastRun, Program
from lowtide.library.sources import Recorded, Watched
from lowtide.recording import Recording, Run
from lowtide.store import Question, Store
from support.production import START, Job, jobs_of, keep
from support.production import Program as Known
from support.programs import draw_program

# Quick to watch: a minute is a step.
TRAIN = Known(
    name="train",
    startup=(240.0, 100.0),
    epoch=((900.0, 400.0), (300.0, 200.0)),
    end=(240.0, 80.0),
    epochs=4,
)
Learn = Callable[..., Harvest]


@pytest.fixture
def harvest(tmp_path: Path) -> Learn:
    """Keep jobs in a store, and learn from it into a library."""

    def learned(jobs: list[Job], *, now: float = START + 1e7, **asked: Any) -> Harvest:
        with Store.open(tmp_path / "store.sqlite") as store:
            if jobs:
                keep(store, jobs, step_s=60.0)
        with Store.open(tmp_path / "store.sqlite", readonly=True) as store:
            source = Watched(store, Question(**asked), now)
            return learn_from(source, Library(tmp_path / "library"))

    return learned


def only(harvest: Harvest) -> Found:
    (found,) = harvest.found
    return found


def test_known_programs_are_found_with_their_figures(harvest: Learn) -> None:
    """Several users, shapes and uses under one name, beside others: each is a program."""
    rng = np.random.default_rng(14)
    programs = [
        TRAIN,
        replace(TRAIN, epoch=((600.0, 150.0), (300.0, 90.0)), busy=0.03),
        replace(TRAIN, user="bob", epoch=((1200.0, 300.0), (240.0, 120.0))),
        replace(TRAIN, cpus=32.0, epoch=((700.0, 420.0), (300.0, 180.0))),
        replace(TRAIN, name="md-run", epoch=((500.0, 250.0), (240.0, 120.0)), epochs=6),
    ]
    jobs: list[Job] = []
    for which, program in enumerate(programs):
        jobs += jobs_of(
            program,
            6,
            seed=which,
            start=START + 700 * which,
            every_s=8000.0,
            first=100 * which,
            naming=lambda number, base=program.name: f"{base}_{number}",
        )
    rng.shuffle(jobs)  # type: ignore[arg-type]
    found = harvest(jobs).found
    assert all(each.entry is not None and not each.left_out for each in found)
    groups = {frozenset(int(job) // 100 for job in each.used): each for each in found}
    assert sorted(map(sorted, groups)) == [[0], [1], [2], [3], [4]]
    for (which,), each in groups.items():
        program, entry = programs[which], each.entry
        assert entry is not None
        assert len(each.used) == entry.runs == 6
        assert entry.profile.energy_j == pytest.approx(program.energy_j, rel=0.02)
        # It is seen in steps of a minute.
        assert entry.profile.run_s == pytest.approx(program.duration_s, rel=0.03)
        assert entry.drift == ""
        assert (entry.program.user, entry.program.cpus) == (program.user, program.cpus)
    names = {each.entry.name for each in found if each.entry}
    assert len(names) == 5
    assert {"train", "md-run"} <= names


FAULTS: dict[str, dict[str, Any]] = {
    "failed": {"facts": {"state": "failed", "exit_code": 1}},
    "cancelled": {"facts": {"state": "cancelled"}},
    "timeout": {"facts": {"state": "timeout"}},
    "out of memory": {"facts": {"state": "out_of_memory"}},
    "node fail": {"facts": {"state": "node_fail"}},
    "preempted": {"facts": {"state": "preempted"}},
    "requeued": {"facts": {"restarts": 1}},
    "watched in part": {"hidden": (0.0, 1500.0)},
    "measured in part": {"measured": 0.5},
    "estimated, unlike the others": {"measured": 0.0},
    "too short": {"program": replace(TRAIN, epochs=0, startup=(60, 100), end=(60, 90), epoch=())},
}


def test_what_tells_nothing_is_left_out_with_the_reason(harvest: Learn) -> None:
    jobs = jobs_of(TRAIN, 3, first=1)
    for number, more in enumerate(FAULTS.values()):
        given = dict(more)
        program = given.pop("program", TRAIN)
        jobs += jobs_of(program, 1, first=50 + number, start=START + 1800 * number, **given)
    found = only(harvest(jobs))
    assert {each.why: each.id for each in found.left_out} == {
        why: str(50 + number) for number, why in enumerate(FAULTS)
    }
    assert found.used == ("1", "2", "3")
    assert found.entry is not None
    assert found.entry.profile.energy_j == pytest.approx(TRAIN.energy_j, rel=0.02)


@pytest.mark.parametrize("hidden", [(2000.0, 3500.0), (3000.0, 9e9)])
def test_a_hole_in_the_middle_or_at_the_end_is_watched_in_part(
    harvest: Learn, hidden: tuple[float, float]
) -> None:
    good = jobs_of(TRAIN, 2, first=1)
    bad = jobs_of(TRAIN, 1, first=50, start=good[-1].end + 600, hidden=hidden)
    # Somebody else's job goes on, so that the watcher does.
    other = jobs_of(replace(TRAIN, name="other"), 2, first=80, start=bad[0].start)
    found = next(
        each for each in harvest([*good, *bad, *other]).found if each.program.name == "train"
    )
    assert [(each.id, each.why) for each in found.left_out] == [("50", "watched in part")]
    assert found.left_out[0].more


def test_a_job_on_nodes_that_nobody_watched_is_left_out(harvest: Learn) -> None:
    jobs = jobs_of(TRAIN, 1, facts={"nodes": ("n1", "n2")})
    found = only(harvest(jobs))
    assert found.entry is None
    assert [(each.why, each.more) for each in found.left_out] == [
        ("watched in part", "on 1 of 2 nodes")
    ]
    assert found.why


def test_steps_that_were_rolled_up_show_no_phases(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        keep(store, jobs_of(TRAIN, 2), step_s=60.0)
        store.prune(now=START + 120 * 86400)
    with Store.open(path, readonly=True) as store:
        source = Watched(store, Question(), START + 121 * 86400)
        found = only(learn_from(source, Library(tmp_path / "library")))
    assert found.entry is None
    assert {each.why for each in found.left_out} == {"kept too coarsely to show phases"}
    assert found.left_out[0].more.startswith("steps of ")


def test_few_runs_say_so_and_one_has_no_interval(harvest: Learn) -> None:
    entry = only(harvest(jobs_of(TRAIN, 1))).entry
    assert entry is not None
    assert (entry.energy_j.low, entry.energy_j.level, entry.energy_j.error) == (None, None, None)
    assert any("1 run only" in note for note in entry.notes)


def test_newer_runs_update_and_the_same_ones_change_nothing(harvest: Learn, tmp_path: Path) -> None:
    first = jobs_of(TRAIN, 4)
    assert only(harvest(first)).status == "new"
    before = (tmp_path / "library" / "train.toml").read_bytes()
    assert only(harvest([])).status == "unchanged"
    assert (tmp_path / "library" / "train.toml").read_bytes() == before
    again = only(harvest(jobs_of(TRAIN, 2, first=20, start=first[-1].end + 600)))
    assert again.status == "updated"
    assert again.entry is not None
    assert (again.entry.name, again.entry.runs, again.entry.drift) == ("train", 6, "")
    library = Library(tmp_path / "library")
    assert library.names() == ["train"]
    former = library.before("train")
    assert former is not None
    assert former.runs == 4


def test_newer_runs_that_take_longer_are_told_and_replace_the_old(harvest: Learn) -> None:
    first = jobs_of(TRAIN, 10)
    slow = replace(TRAIN, epoch=((1100.0, 400.0), (360.0, 200.0)))
    assert only(harvest(first)).entry is not None
    found = only(harvest(jobs_of(slow, 5, first=20, start=first[-1].end + 600)))
    entry = found.entry
    assert entry is not None
    assert "5 of 5 newer runs took more than" in entry.drift
    assert "drew more than" in entry.drift
    assert entry.runs == 5
    assert entry.profile.run_s == pytest.approx(slow.duration_s, rel=0.03)
    assert [each.why for each in found.left_out] == ["of before it drifted"] * 10


def test_a_program_that_changed_within_the_store_is_told(harvest: Learn) -> None:
    first = jobs_of(TRAIN, 5)
    hot = replace(TRAIN, epoch=((900.0, 900.0), (300.0, 500.0)), busy=0.004)
    found = only(harvest([*first, *jobs_of(hot, 4, first=20, start=first[-1].end + 600)]))
    assert found.entry is not None
    assert "it changed by 2024-07-0" in found.entry.drift
    assert found.entry.profile.energy_j == pytest.approx(hot.energy_j, rel=0.03)
    assert [each.why for each in found.left_out] == ["of before it changed"] * 5


@pytest.mark.parametrize("runs", [2, 3, 5, 9, 12, 40])
def test_intervals_hold_what_they_promise(runs: int) -> None:
    """Of runs drawn alike, the next lies within as often as the level says, on average."""
    rng = np.random.default_rng([14, runs])
    held = []
    for _ in range(3000):
        values = 100 * np.exp(0.1 * rng.standard_normal(runs + 1))
        learned = min(runs, 8)
        made = expect(values[:-1], float(values[:-1][-learned:].mean()), 8)
        held.append(made.holds(float(values[-1])))
        assert made.level == 0.9
    assert 0.88 <= np.mean(held) <= 0.95


def test_the_chance_of_runs_outside_is_that_of_a_beta_binomial() -> None:
    for runs, level in ((9, 0.9), (20, 0.9), (4, 0.8), (39, 0.9)):
        for new in (1, 5, 12):
            law = stats.betabinom(new, (1 - level) * (runs + 1), level * (runs + 1))
            for outside in range(new + 1):
                assert tail(outside, new, runs, level) == pytest.approx(law.sf(outside - 1))


def past(value: float, number: int) -> PastRun:
    """A run that draws 100 W for so many seconds."""
    times = np.linspace(0.0, value, 5)[:-1] + 1e6 * number
    run = Run(id=str(number), times=times, power_w=np.full(4, 100.0), end=1e6 * number + value)
    return PastRun(program=Program(), run=run)


def test_drift_is_rarely_told_where_there_is_none_and_mostly_where_there_is() -> None:
    rng = np.random.default_rng(3)
    told = {1.0: 0, 1.25: 0}
    for factor in told:
        for _ in range(300):
            old = 1000 * np.exp(0.05 * rng.standard_normal(15))
            new = 1000 * factor * np.exp(0.05 * rng.standard_normal(8))
            expected = expect(old, float(old.mean()), old.size)
            known = (replace(expected), expected)
            energies = Expectation(
                **{
                    name: getattr(expected, name) * (100 if name in ("value", "low", "high") else 1)
                    for name in ("value", "low", "high", "level", "runs", "error")
                }
            )
            said = drifted((energies, known[1]), [past(v, n) for n, v in enumerate(new, start=1)])
            told[factor] += bool(said)
    assert told[1.0] <= 9
    assert told[1.25] >= 285


def marked_folder(place: Path, runs: list[Run]) -> Path:
    write_recording(Recording(runs=tuple(runs)), place)
    return place


def test_recordings_that_say_nothing_are_named_and_what_is_known_stays(tmp_path: Path) -> None:
    """Stops without a run that ran through, marks that count backwards; and learned once only."""
    drawn = draw_program(3)
    runs = [drawn.run(f"full_{number}", 100 + number) for number in range(4)]
    labels = [event.label for event in runs[2].events]
    back = [replace(e, label=label) for e, label in zip(runs[2].events, labels[::-1], strict=True)]
    contrary = [*runs[:2], replace(runs[2], events=back), runs[3]]
    folders = [
        marked_folder(tmp_path / "stops", list(drawn.pair("stop", 5))),
        marked_folder(tmp_path / "contrary", contrary),
        marked_folder(tmp_path / "sound", runs),
    ]
    library = Library(tmp_path / "library")
    stops, contradicted, sound = sorted(
        learn_from(Recorded(folders), library).found, key=lambda each: -len(each.left_out)
    )
    assert stops.entry is None
    assert stops.reasons() == "1 stop alone, 1 resume alone"
    (left,) = contradicted.left_out
    assert (left.id, left.why) == ("contrary/full_2", "unlike the others by its marks")
    assert "contradict" in left.more
    assert contradicted.entry is not None and contradicted.entry.runs == 3
    assert "contrary/full_2" not in contradicted.used and len(contradicted.used) == 3
    assert sound.entry is not None and sound.entry.runs == 4
    # When they began is known to less than a microsecond; none of them is new.
    again = learn_from(Recorded(folders), Library(library.folder)).found
    assert sorted(each.status for each in again) == ["left out", "unchanged", "unchanged"]
