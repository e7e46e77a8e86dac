"""Recordings in parts: drawn jobs on several machines, against sums done the slow way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest

from lowtide.errors import FormatError, LowtideError
from lowtide.formats import read_recordings
from lowtide.formats.recording_clocks import offset_between
from lowtide.formats.recording_parts import (
    CLOCK,
    GPUS,
    LEADS,
    MEASURES,
    SUM,
    WHOLE,
    read,
    write_joint_manifest,
)
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.recording import Recording, Run
from support.damage import MOST_CPU_S, damaged
from support.nightly import drawn

T0 = 1.7e9
STEP_S = 0.1


@dataclass(kw_only=True)
class Machine:
    """A machine of a made-up job: what it draws by the true clock, and how its own is off."""

    number: int
    tasks: Sequence[int]
    watts: Callable[[np.ndarray], np.ndarray]
    off_s: float = 0.0
    # When what measures it is gone, by the true clock.
    dies_s: float = np.inf
    silent: tuple[float, float] = (np.inf, np.inf)
    heard: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"part-{self.number}-n{self.number}-{self.tasks[0]}"


def write_job(
    folder: Path,
    machines: Sequence[Machine],
    *,
    length_s: float = 20.0,
    marks: Sequence[float] = (5.0,),
    element: int | None = None,
    exits: dict[int, int] | None = None,
) -> Path:
    """Write a joint recording: of each machine the first task measures, the others follow."""
    folder.mkdir(exist_ok=True)
    tasks = sum(len(machine.tasks) for machine in machines)
    about: dict[str, Any] = {"job": "7", "step": "0"}
    if element is not None:
        about["array_job"] = "7"
    write_joint_manifest(folder, about)
    prefix = "part-" if element is None else f"part-element_{element}-"
    for machine in machines:
        for rank in machine.tasks:
            path = folder / f"{prefix}{machine.number}-n{machine.number}-{rank}"
            facts: dict[str, Any] = {
                "job": "7",
                "rank": rank,
                "tasks": tasks,
                "node": machine.number,
                "nodes": len(machines),
                "host": f"n{machine.number}",
                "boot": f"b{machine.number}",
            }
            if element is not None:
                facts["element"] = element
            leads = rank == machine.tasks[0]
            write_part(
                path,
                machine,
                facts,
                leads=leads,
                length_s=length_s,
                marks=marks,
                status=(exits or {}).get(rank, 0),
            )
            if leads:
                lines = [f"{now!r},{who},{then!r}\n" for who, then, now in machine.heard]
                (path / CLOCK).write_text("".join(lines))
    return folder


def write_part(
    path: Path,
    machine: Machine,
    facts: dict[str, Any],
    *,
    leads: bool,
    length_s: float,
    marks: Sequence[float],
    status: int = 0,
    measures: str = SUM,
) -> None:
    # No two machines sample at the same moments.
    times = np.arange(-3.0 + 0.013 * machine.number, length_s + 3.0, STEP_S)
    times = times[times < machine.dies_s]
    watts = machine.watts(times)
    watts = np.where((times >= machine.silent[0]) & (times < machine.silent[1]), np.nan, watts)
    clock = T0 + machine.off_s
    writer = RecordingWriter(path, part=facts)
    writer.begin(
        "full_0",
        kind="full",
        meters=["made up"] if leads else [],
        machine={MEASURES: measures if leads else GPUS, "cpu": "made up"},
    )
    writer.start(clock)
    for time, power_w in zip(times, watts, strict=True):
        writer.append(clock + time, power_w if leads else np.nan, {"cpus_busy": 1.0})
    for number, at in enumerate(marks):
        writer.mark(clock + at + 0.01 * facts["rank"], f"epoch_{number}")
    if machine.dies_s == np.inf:
        writer.end(clock + length_s, exit_status=status)
        writer.close()
    else:
        writer.flush()


def compare_clocks(machines: Sequence[Machine], rng: np.random.Generator, slow_s: float) -> None:
    """Let each machine read the first one's clock, and the first all others', now and then."""
    first = machines[0]
    for other in machines[1:]:
        for by, of in ((other, first), (first, other)):
            for _ in range(20):
                written = rng.uniform(0, 15)
                late = written + rng.exponential(slow_s)
                by.heard.append((of.name, T0 + written + of.off_s, T0 + late + by.off_s))


def only(recording: Recording) -> Run:
    (run,) = recording
    return run


def steps(rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    levels, edges = rng.uniform(50, 700, 12), np.sort(rng.uniform(-2, 22, 11))
    return lambda times: levels[np.searchsorted(edges, times)]


@pytest.mark.parametrize("seed", range(12))
def test_drawn_jobs_come_to_the_sum_of_their_machines(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    each = int(rng.integers(1, 4))
    machines = [
        Machine(
            number=n,
            tasks=range(n * each, (n + 1) * each),
            watts=steps(rng),
            off_s=0.0 if n == 0 or rng.random() < 0.4 else float(rng.uniform(-400, 400)),
        )
        for n in range(count)
    ]
    compare_clocks(machines, rng, 0.3)
    gone = count > 1 and rng.random() < 0.5
    if gone:
        machines[-1].dies_s = float(rng.uniform(6, 15))
    run = only(read(write_job(tmp_path / "job", machines)))
    fine = np.arange(0.0, 20.0, 0.001)
    # By how much clocks that were put right may still be off, edges are.
    known = fine < (machines[-1].dies_s - 0.2 if gone else np.inf)
    truth_j = sum(m.watts(fine[known]).sum() for m in machines) * 0.001
    clock_s = max(abs(m.off_s) > 0 for m in machines) * 0.3
    slack_j = 700 * count * 12 * (STEP_S + clock_s) / 4
    assert run.energy_j() == pytest.approx(truth_j, abs=slack_j)
    assert run.duration_s == pytest.approx(20.0, abs=0.7)
    assert run.missing_s == pytest.approx(20.0 - machines[-1].dies_s if gone else 0.0, abs=0.7)
    assert [event.label for event in run.events] == ["epoch_0"], "each mark once"
    assert run.machine["slurm_job"] == "7"
    assert (run.machine["machines"], run.machine["parts"]) == (count, count * each)
    assert sum(f"n{n}.power_w" in run.columns for n in range(count)) == count
    if gone:
        assert any(f"on n{count - 1}: the energy is that of the rest" in note for note in run.notes)


def test_energy_is_conserved_to_the_joule_where_clocks_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    machines = [Machine(number=n, tasks=[n], watts=steps(rng)) for n in range(3)]
    folder = write_job(tmp_path / "job", machines)
    alone = [only(each) for each in read_recordings([folder / m.name for m in machines])]
    run = only(read_recordings(folder)[0])
    assert run.energy_j() == pytest.approx(sum(each.energy_j() for each in alone), rel=1e-9)
    assert run.columns["cpus_busy"] == pytest.approx(3.0)


def constant(watts: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: np.full(times.shape, watts)


def test_a_machine_that_is_silent_for_a_while_leaves_that_time_out(tmp_path: Path) -> None:
    machines = [
        Machine(number=0, tasks=[0], watts=constant(100)),
        Machine(number=1, tasks=[1], watts=constant(300), silent=(8.0, 12.0)),
    ]
    run = only(read(write_job(tmp_path / "job", machines)))
    assert run.missing_s == pytest.approx(4.0, abs=0.2)
    # Not 16 s of 400 W and 4 s of 100 W.
    assert run.mean_w == pytest.approx(400.0)
    assert run.power_w.min() == pytest.approx(400.0)


def test_what_a_machine_draws_is_counted_once(tmp_path: Path) -> None:
    """Two parts that did not know of each other, one that took over, GPUs of one's own."""
    machine = Machine(number=0, tasks=[0], watts=constant(100))
    folder = write_job(tmp_path / "job", [machine])

    def add(rank: int, watts: float, *, measures: str, dies_s: float = np.inf) -> None:
        other = Machine(number=0, tasks=[rank], watts=constant(watts), dies_s=dies_s)
        facts = {"rank": rank, "node": 0, "nodes": 1, "host": "n0", "boot": "b0"}
        write_part(
            folder / f"part-0-n0-{rank}",
            other,
            facts,
            leads=True,
            length_s=20.0,
            marks=(),
            measures=measures,
        )

    add(1, 100.0, measures=SUM)
    assert only(read(folder)).mean_w == pytest.approx(100.0)
    add(2, 250.0, measures=GPUS)
    assert only(read(folder)).mean_w == pytest.approx(350.0)
    add(3, 40.0, measures=GPUS, dies_s=10.0)
    run = only(read(folder))
    assert run.mean_w == pytest.approx(390.0), "a GPU that nobody reads any more is not 0 W"
    assert run.missing_s == pytest.approx(10.0, abs=0.2)


def test_a_meter_of_the_whole_machine_has_the_gpus_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    write_joint_manifest(folder, {"job": "7"})
    for rank, measures in ((0, WHOLE), (1, GPUS)):
        machine = Machine(number=0, tasks=[rank], watts=constant(500.0 - 200 * rank))
        facts = {"rank": rank, "node": 0, "nodes": 1, "host": "n0", "boot": "b0"}
        write_part(
            folder / f"part-0-n0-{rank}",
            machine,
            facts,
            leads=True,
            length_s=20.0,
            marks=(),
            measures=measures,
        )
    assert only(read(folder)).mean_w == pytest.approx(500.0)


def test_a_task_that_takes_over_goes_on_where_the_other_ended(tmp_path: Path) -> None:
    folder = write_job(
        tmp_path / "job", [Machine(number=0, tasks=[0], watts=constant(400.0), dies_s=9.0)]
    )
    writer = RecordingWriter(
        folder / "part-0-n0-1", part={"rank": 1, "node": 0, "nodes": 1, "host": "n0", "boot": "b0"}
    )
    writer.begin("full_0", kind="full", machine={MEASURES: GPUS})
    writer.start(T0)
    for time in np.arange(-3.0, 23.0, STEP_S):
        leads = time > 11
        # Until then it read a GPU of its own, which is in what the machine draws from then on.
        writer.append(T0 + time, 460.0 if leads else 60.0, {LEADS: float(leads)})
    writer.measured_by(power="measured", meters=["made up"], counted=[], facts={MEASURES: SUM})
    writer.end(T0 + 20, exit_status=0)
    writer.close()
    run = only(read(folder))
    assert run.power_w == pytest.approx(460.0)
    assert run.missing_s == pytest.approx(2.1, abs=0.2)
    assert run.duration_s == pytest.approx(20.0)


@pytest.mark.parametrize("slow_s", [0.01, 0.5, 20.0])
def test_bounds_on_clocks_hold_however_slow_the_file_system(slow_s: float) -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        machines = [Machine(number=n, tasks=[n], watts=constant(1)) for n in range(2)]
        machines[1].off_s = truth = float(rng.uniform(-300, 300))
        compare_clocks(machines, rng, slow_s)
        pairs = [[(then, now) for _, then, now in m.heard] for m in (machines[1], machines[0])]
        offset = offset_between(*pairs)
        assert offset.low_s <= truth + 1e-6
        assert truth - 1e-6 <= offset.high_s
        assert offset.half_s < 3 * slow_s


@pytest.mark.parametrize(
    ("off_s", "slow_s", "said"),
    [
        (240.0, 60.0, "which is not sure enough"),
        (240.0, None, "by them the program began 240 s apart, and neither read the other's"),
        (20.0, None, None),
    ],
)
def test_clocks_that_cannot_be_brought_together_are_named(
    tmp_path: Path, off_s: float, slow_s: float | None, said: str | None
) -> None:
    machines = [
        Machine(number=0, tasks=[0], watts=constant(100)),
        Machine(number=1, tasks=[1], watts=constant(100), off_s=off_s),
    ]
    if slow_s is not None:
        machines[0].heard = [(machines[1].name, T0 + 1 + off_s, T0 + 1 + slow_s)]
        machines[1].heard = [(machines[0].name, T0 + 1, T0 + 1 + slow_s + off_s)]
    recording = read(write_job(tmp_path / "job", machines))
    if said is None:
        assert "whether the clocks of n1 and n0 agree is not known" in only(recording).notes[0]
        return
    assert not recording.runs
    (left_out,) = recording.unmeasured
    assert said in left_out.notes[-1]
    assert "NTP" in left_out.notes[-1]
    assert any(said in note for note in recording.notes)


def test_parts_that_are_damaged_or_never_came(tmp_path: Path) -> None:
    machines = [Machine(number=n, tasks=[2 * n, 2 * n + 1], watts=constant(100)) for n in range(2)]
    folder = write_job(tmp_path / "job", machines, exits={3: 9})
    assert only(read(folder)).exit_status == 9
    # A task that measured nothing takes nothing with it.
    (folder / "part-1-n1-3" / "manifest.json").write_text("{")
    recording = read(folder)
    run = only(recording)
    assert run.mean_w == pytest.approx(200.0)
    assert any("part-1-n1-3 is left out" in note for note in recording.notes)
    assert any("of 4 tasks 3 left no part" in note for note in run.notes)
    # The one that measured does: what is left is not the power of the job.
    (folder / "part-1-n1-2" / "manifest.json").unlink()
    recording = read(folder)
    assert not recording.runs
    assert "of 2 nodes number 1 left no part" in recording.unmeasured[0].notes[-1]
    for each in folder.glob("part-*/manifest.json"):
        each.unlink()
    with pytest.raises(FormatError, match="no part of this recording can be read"):
        read(folder)


def test_elements_of_an_array_are_runs_of_one_recording(tmp_path: Path) -> None:
    for element in (1, 2, 10):
        watts = constant(100.0 * element)
        write_job(tmp_path / "job", [Machine(number=0, tasks=[0], watts=watts)], element=element)
    recording = read(tmp_path / "job")
    assert [run.id for run in recording] == ["1/full_0", "2/full_0", "10/full_0"]
    assert [run.mean_w for run in recording] == pytest.approx([100.0, 200.0, 1000.0])
    assert [run.machine["slurm_array_task"] for run in recording] == [1, 2, 10]


def test_marks_of_tasks_that_differ_are_remarked_upon(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job", [Machine(number=0, tasks=[0, 1], watts=constant(100))])
    path = folder / "part-0-n0-1" / "events.csv"
    path.write_text(
        path.read_text().replace(f"{T0 + 5.01!r}", f"{T0 + 9!r}") + f"{T0 + 12!r},full_0,saved,1\n"
    )
    run = only(read(folder))
    assert [(event.label, event.time) for event in run.events] == [
        ("epoch_0", pytest.approx(T0 + 5)),
        ("saved", pytest.approx(T0 + 12)),
    ]
    assert any("up to 4.0 s apart (epoch_0 of part-0-n0-1)" in note for note in run.notes)


def test_damaged_folders_are_read_or_refused_in_words(tmp_path: Path) -> None:
    rng = random.Random(8)
    noise = np.random.default_rng(8)
    machines = [Machine(number=n, tasks=[2 * n, 2 * n + 1], watts=steps(noise)) for n in range(2)]
    compare_clocks(machines, noise, 0.2)
    folder = write_job(tmp_path / "job", machines, length_s=5.0, marks=(1.0,))
    whole = {
        path: path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".csv")
    }
    read_well = 0
    for _ in range(drawn(150, 10_000)):
        path = rng.choice(sorted(whole))
        path.write_bytes(damaged(whole[path], rng))
        begin = process_time()
        try:
            recording = read_recordings(folder)[0]
        except LowtideError as error:
            assert str(error).strip()
        else:
            read_well += len(recording.runs)
            assert len("".join(recording.notes)) < 20_000
        assert process_time() - begin < MOST_CPU_S
        path.write_text(whole[path])
    assert read_well > 20


def test_a_job_of_very_many_tasks_that_left_one_part_is_told_in_a_line(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job", [Machine(number=0, tasks=[0], watts=constant(100))])
    (path,) = folder.glob("part-*/manifest.json")
    document = json.loads(path.read_text())
    document["part"] |= {"tasks": 9_999_999, "nodes": 9_999_999}
    path.write_text(json.dumps(document))
    begin = process_time()
    (joint,) = read(folder).unmeasured
    assert "of 9999999 nodes number 1, 2, 3, 4, 5, 6, 7, 8, ... left no part" in joint.notes[-1]
    assert process_time() - begin < MOST_CPU_S


def test_a_manifest_of_another_kind_or_time(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job", [Machine(number=0, tasks=[0], watts=constant(100))])
    document = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(document | {"version": 9}))
    with pytest.raises(FormatError, match="has version 9, and this lowtide reads 1"):
        read_recordings(folder)
