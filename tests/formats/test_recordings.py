"""Recordings: our own folders survive a kill, others' measurements are read or refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FileProblem, FormatError, InvalidInput
from lowtide.formats.counters import power_from_counter
from lowtide.formats.recording_folder import append_event
from lowtide.formats.recording_writer import RecordingWriter, write_recording
from lowtide.formats.recordings import read_recordings
from lowtide.learning import learn
from lowtide.recording import Event, Recording, Run


def same(ours: Run, theirs: Run) -> None:
    for name in ("id", "kind", "pair", "start", "end", "events", "power", "meters", "exit_status"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.notes == theirs.notes
    assert dict(ours.machine) == dict(theirs.machine)
    assert list(ours.columns) == list(theirs.columns)
    for name in ours.columns:
        np.testing.assert_array_equal(ours.columns[name], theirs.columns[name])
    np.testing.assert_array_equal(ours.times, theirs.times)
    np.testing.assert_array_equal(ours.power_w, theirs.power_w)


def test_a_recording_reads_back_equal(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    runs = [
        Run(
            id=f"run {i}, with a comma",
            times=1.7e9 + np.cumsum(rng.uniform(0.01, 0.2, 50)),
            power_w=rng.uniform(0, 700, 50),
            kind=kind,
            pair="p" if i else None,
            columns={
                "cpu": rng.uniform(0, 1, 50),
                "gaps": np.where(np.arange(50) % 3, 1.5, np.nan),
            },
            events=[Event(time=1.7e9 + 1, label='said "a, b"', checkpoint=i == 1)],
            power="estimated" if i else "measured",
            meters=["rapl", "nvml"],
            machine={"cpu": "Ryzen 5 1600X", "cores": 6},
            exit_status=i,
            notes=["the meter nvml vanished from 3.1 to 4.2 s"],
        )
        for i, kind in enumerate(("full", "stop", None))
    ]
    write_recording(Recording(runs=tuple(runs)), tmp_path / "rec")
    (again,) = read_recordings(tmp_path / "rec")
    assert len(list((tmp_path / "rec").glob("samples-*"))) == 1
    for ours, theirs in zip(again, runs, strict=True):
        same(ours, theirs)


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "rec").close()
    with pytest.raises(FileProblem, match="holds a recording already"):
        RecordingWriter(tmp_path / "rec")


KILLED = """
import os, signal, sys
from lowtide.formats.recording_writer import RecordingWriter
writer = RecordingWriter(sys.argv[1], flush_s=1.0)
writer.begin("r", kind="full", meters=["m"])
writer.start(100.0)
for i in range(95):
    writer.append(100.0 + i / 10, 50.0 + i, {"cpu": 0.5})
    if i == 30:
        writer.mark(103.0, "epoch_1_saved", checkpoint=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_costs_the_last_part_at_most(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "rec")], check=False)
    assert done.returncode == -9
    (recording,) = read_recordings(tmp_path / "rec")
    (run,) = recording
    # Parts of a second were flushed; 95 samples of a tenth of a second were taken.
    assert 85 <= run.times.size <= 95
    assert run.power_w.tolist() == [50.0 + i for i in range(run.times.size)]
    assert run.events == (Event(time=103.0, label="epoch_1_saved", checkpoint=True),)
    assert run.exit_status is None
    assert run.notes == ("cut short: the end of the program is not in the recording",)


def half_written(folder: Path) -> None:
    with RecordingWriter(folder, flush_s=1.0) as writer:
        writer.begin("r")
        writer.start(0.0)
        for i in range(40):
            writer.append(i / 10, 5.0)
        writer.flush()
        # Not closed: parts stay as they are.
        writer._part = 0


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    half_written(tmp_path)
    parts = sorted(tmp_path.glob("samples-*.parquet"))
    assert len(parts) > 2
    parts[-1].write_bytes(parts[-1].read_bytes()[:100])
    with (tmp_path / "events.csv").open("a") as file:
        file.write('1.0,r,"a, b",0\n2.0,r,cut of')
    (recording,) = read_recordings(tmp_path)
    assert parts[-1].name in recording.notes[0]
    assert recording["r"].events == (Event(time=1.0, label="a, b"),)
    assert recording["r"].times.size < 40


def test_a_joined_part_makes_its_parts_void(tmp_path: Path) -> None:
    half_written(tmp_path)
    (before,) = read_recordings(tmp_path)
    parts = sorted(tmp_path.glob("samples-*.parquet"))
    import polars as pl

    joined = tmp_path / f"samples-0001-{len(parts):04}.parquet"
    pl.concat([pl.read_parquet(part) for part in parts]).write_parquet(joined)
    (after,) = read_recordings(tmp_path)
    same(after["r"], before["r"])


def test_a_clock_that_steps_back_is_noted(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        writer.begin("r")
        writer.start(0.0)
        for time in (0.0, 1.0, 2.0, 1.5, 1.8, 2.5, 3.0):
            writer.append(time, 5.0)
        writer.end(3.0, exit_status=0)
    (recording,) = read_recordings(tmp_path / "rec")
    assert recording["r"].times.tolist() == [0.0, 1.0, 2.0, 2.5, 3.0]
    assert len(recording["r"].notes) == 1
    assert "the clock stepped back after 2.000" in recording["r"].notes[0]


def test_samples_without_power_are_left_out_not_filled(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        writer.begin("r")
        for i in range(80):
            writer.append(i / 10, float("nan") if 20 <= i < 60 else 5.0)
    (recording,) = read_recordings(tmp_path / "rec")
    assert recording["r"].times.size == 40
    run = recording["r"]
    assert run.gaps == (pytest.approx((2.0, 6.0)),)
    assert run.energy_j() == pytest.approx(4 * 5.0)
    assert "no power was read for 4.0 s of the 8.0 s" in " ".join(run.notes)


@pytest.mark.parametrize(
    ("step_s", "samples", "lacks_s", "noted"),
    [
        (0.1, 120, 0.02, False),
        (0.1, 1200, 0.09, False),
        (0.001, 200, 0.04, False),
        (0.1, 120, 0.3, True),
        (1.0, 20000, 100.0, True),
        (60.0, 10, 50.0, True),
    ],
)
def test_a_gap_that_is_nothing_is_not_noted(
    tmp_path: Path, step_s: float, samples: int, lacks_s: float, noted: bool
) -> None:
    with RecordingWriter(tmp_path / "rec", flush_s=math.inf) as writer:
        writer.begin("r")
        # The meter is silent before the program begins, and for a while after.
        silent = 20 + math.ceil(lacks_s / step_s)
        for i in range(5 + silent + samples):
            writer.append(i * step_s, math.nan if 5 <= i < 5 + silent else 5.0)
        writer.start((5 + silent) * step_s - lacks_s)
        writer.end((5 + silent + samples) * step_s, exit_status=0)
    (recording,) = read_recordings(tmp_path / "rec")
    run = recording["r"]
    assert run.missing_s == pytest.approx(lacks_s, abs=1e-6)
    assert any("no power was read" in note for note in run.notes) == noted


def test_a_meter_that_never_comes_back_leaves_the_end_where_it_was(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        writer.begin("r", kind="full")
        writer.start(0.5)
        for i in range(80):
            writer.append(i / 10, 900.0 if i < 20 else float("nan"))
        writer.end(7.0, exit_status=0)
    (recording,) = read_recordings(tmp_path / "rec")
    run = recording["r"]
    assert (run.end, run.exit_status) == (7.0, 0)
    assert not any("cut short" in note for note in run.notes)
    assert run.energy_j() == pytest.approx(1.5 * 900)
    assert run.missing_s == pytest.approx(5.0)
    # It says so again after having been written anew, and once.
    write_recording(recording, tmp_path / "again")
    (again,) = read_recordings(tmp_path / "again")
    same(again["r"], run)
    assert again["r"].gaps == (pytest.approx(run.gaps[0]),)


def test_a_meter_that_takes_its_time_to_answer(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        writer.begin("r", kind="full")
        writer.start(0.0)
        for i in range(40):
            writer.append(i / 10, 10.0 if i >= 20 else float("nan"))
        writer.end(4.0, exit_status=0)
    (recording,) = read_recordings(tmp_path / "rec")
    assert recording["r"].gaps == (pytest.approx((0.0, 2.0)),)
    assert recording["r"].mean_w == pytest.approx(10.0)


def test_runs_without_samples_are_listed(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        writer.begin("a", kind="full")
        writer.start(1.0)
        writer.note("the program could not be started: no such thing")
        writer.end(1.0, exit_status=127)
        writer.begin("b")
        writer.append(2.0, 5.0)
    (recording,) = read_recordings(tmp_path / "rec")
    assert recording.runs == ()
    first, second = recording.unmeasured
    assert (first.id, first.exit_status, first.start) == ("a", 127, 1.0)
    assert second.notes == ("cut short: the end of the program is not in the recording",)
    assert "could not be started" in recording.notes[0]
    write_recording(recording, tmp_path / "again")
    (again,) = read_recordings(tmp_path / "again")
    assert again.unmeasured[0] == first


def test_what_is_flushed_early_outlives_an_early_kill(tmp_path: Path) -> None:
    code = KILLED.replace("flush_s=1.0", "flush_s=10.0").replace("range(95)", "range(20)")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "rec")], check=False)
    ((run,),) = read_recordings(tmp_path / "rec")
    assert run.times.size >= 10


def test_events_come_from_other_processes_too(tmp_path: Path) -> None:
    half_written(tmp_path)
    append_event(tmp_path, "r", Event(time=3.5, label="marked\nelsewhere", checkpoint=True))
    (recording,) = read_recordings(tmp_path)
    assert recording["r"].events == (Event(time=3.5, label="marked elsewhere", checkpoint=True),)
    with pytest.raises(FileProblem, match="cannot write"):
        append_event(tmp_path / "nowhere", "r", Event(time=0.0, label="a"))


def test_a_writer_wants_its_order() -> None:
    with pytest.raises(InvalidInput, match="every so many seconds"):
        RecordingWriter("unused", flush_s=0)


def test_a_writer_knows_its_runs(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "rec")
    with pytest.raises(InvalidInput, match="begin a run before"):
        writer.append(0.0, 1.0)
    writer.begin("a")
    with pytest.raises(InvalidInput, match="a is twice"):
        writer.begin("a")
    writer.close()
    (recording,) = read_recordings(tmp_path / "rec")
    assert [run.id for run in recording.unmeasured] == ["a"]
    RecordingWriter(tmp_path / "none").close()
    with pytest.raises(FormatError, match="this recording has no run"):
        read_recordings(tmp_path / "none")


def _manifest(**wrong: object) -> str:
    run = dict.fromkeys(("id", "kind", "pair", "start", "end", "exit_status", "power"))
    run |= {"meters": [], "notes": [], "machine": {}} | wrong  # type: ignore[dict-item]
    return json.dumps({"format": "lowtide recording", "version": 1, "runs": [run]})


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ('{"format": "lowtide recording", "version": 9, "runs": []}', "version 9"),
        ('{"format": "lowtide recording", "version": 1, "runs": [{}]}', "each run needs id"),
        (_manifest(meters=0), "meters of a run are a list of texts, not 0"),
        (_manifest(notes="late"), "notes of a run are a list of texts, not late"),
        (_manifest(meters=[1]), "meters of a run"),
        (_manifest(machine=[]), "the machine of a run is an object"),
        ('{"format": "lowtide recording"', "not the manifest of a recording"),
        ('{"format": "lowtide recording", "version": 1}', "not the manifest of a recording"),
    ],
)
def test_a_manifest_that_makes_no_sense(tmp_path: Path, manifest: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(FormatError, match=message):
        read_recordings(tmp_path)


def test_an_event_that_makes_no_sense_is_left_out_and_noted(tmp_path: Path) -> None:
    half_written(tmp_path)
    with (tmp_path / "events.csv").open("ab") as file:
        file.write(b"soon,r,label,0\n1.0,r,,0\n1.5,r,caf\xe9,0\n2.0,r,good,1\n2.5,r,a\rb,0\n")
    (recording,) = read_recordings(tmp_path)
    run = recording["r"]
    assert [event.label for event in run.events] == ["caf\ufffd", "good"]
    assert "events.csv, line 2 is left out: an event is time,run" in recording.notes[0]
    assert "line 3 is left out" in recording.notes[1]


# pinpoint


def pinpoint(folder: Path, lines: list[str], events: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "measurements.csv").write_text("\n".join(lines) + "\n")
    if events:
        (folder / "events.csv").write_text(events)
    return folder


GOOD = [*["50000"] * 600, *["90000"] * 800, *["50000"] * 600, "1720910400.0", "1720910500.0"]


def test_pinpoint_counts_milliwatts_and_finds_idle_time(tmp_path: Path) -> None:
    folder = pinpoint(
        tmp_path / "job_full_0714004310", GOOD, "1720910440.5, work\n1720910460.0, Exit\n"
    )
    ((run,),) = recordings = read_recordings(folder)
    assert run.kind == "full"
    assert (run.start, run.end) == (1720910430.0, 1720910460.0)
    assert run.energy_j() == pytest.approx(2700.0)
    assert run.times[1] - run.times[0] == pytest.approx(0.05, abs=1e-6)
    assert [event.label for event in run.events] == ["work", "Exit"]
    assert recordings[0].notes == (
        "30 s of idle time before the program are left out: they draw 50 W, and both ends draw the "
        "same; --idle-before 0 keeps them",
        "the program ends with its last event, 'Exit'; the 40 s after it are left out",
    )


def test_pinpoint_without_events(tmp_path: Path) -> None:
    ((run,),) = read_recordings(pinpoint(tmp_path / "job", GOOD))
    assert (run.kind, run.start, run.end) == (None, 1720910430.0, 1720910470.0)


def test_pinpoint_without_idle_time(tmp_path: Path) -> None:
    lines = [*["112000"] * 387, *["214000"] * 1613, *GOOD[-2:]]
    folder = pinpoint(tmp_path / "job_full", lines, "1720910403.0, loading\n1720910495, epoch\n")
    (recording,) = read_recordings(folder)
    run = recording.runs[0]
    assert (run.start, run.end) == (1720910400.0, 1720910500.0)
    before, after = recording.notes
    # No more than until its first word.
    assert "the first 3.0 s draw a steady 112 W" in before
    assert "counted as the program's; --idle-before 3.0 leaves them out" in before
    assert after == "no idle time was found after the program"
    # Whoever knows better says so, and what cannot be is refused with what to do.
    ((told,),) = read_recordings(folder, idle_before="3", idle_after="5s")
    assert (told.start, told.end) == (1720910403.0, 1720910495.0)
    with pytest.raises(
        FormatError, match=r"'loading', lies 2\.0 s before the program's time.*less"
    ):
        read_recordings(folder, idle_before=5)
    with pytest.raises(FormatError, match=r"the program ran for -20\.0 s by that"):
        read_recordings(folder, idle_before=60, idle_after=60)
    with pytest.raises(InvalidInput, match="0 s or more"):
        read_recordings(folder, idle_before=-1)


def test_idle_time_is_told_of_pinpoint_alone(tmp_path: Path) -> None:
    half_written(tmp_path / "b")
    with pytest.raises(InvalidInput, match="there is none here: leave it out"):
        read_recordings(tmp_path, idle_before=5)


def test_events_outside_the_measurement_are_refused(tmp_path: Path) -> None:
    for name, when in (("early", 1720910390), ("late", 1720910510)):
        folder = pinpoint(tmp_path / name, GOOD, f"{when}, x\n")
        with pytest.raises(FormatError, match=r"lies 10\.0 s .* the meter's time.*clocks"):
            read_recordings(folder)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["50000", "nan", *GOOD], "line 2: the power is missing"),
        (["50000", "-3", *GOOD], "line 2: -0.003 W is not what a machine draws"),
        (["50000", "2e9", *GOOD], r"line 2: 2e\+06 W is not what a machine draws"),
        (["50000", "fifty", *GOOD], "line 2: 'fifty' is not a number of milliwatts"),
        (["50000", "", *GOOD], "line 2: '' is not a number"),
        (GOOD[:-2], "the last two lines are epoch seconds"),
        ([*GOOD[:-2], GOOD[-1], GOOD[-2]], "the last two lines are epoch seconds"),
        (["1"], "1 lines are too few"),
    ],
)
def test_pinpoint_that_makes_no_sense(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_recordings(pinpoint(tmp_path / "job_full", lines))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ("1720910440.5 work\n", "line 1: an event is 'time, label'"),
        ("soon, work\n", "line 1: an event is 'time, label'"),
        ("1720910450, a\n1720910440, b\n", "line 2: 1720910440 comes before the event above"),
    ],
)
def test_pinpoint_events_that_make_no_sense(tmp_path: Path, events: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_recordings(pinpoint(tmp_path / "job_full", GOOD, events))


def test_roberta_is_read_whole(data: Callable[[str], Path]) -> None:
    runs = [run for recording in read_recordings(data("power/roberta")) for run in recording]
    kinds = [run.kind for run in runs]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "full": 10,
        "idle": 10,
        "kill": 9,
        "resume": 22,
        "stop": 10,
    }
    idle = np.concatenate([run.idle() for run in runs if run.kind == "idle"])
    assert idle.mean() == pytest.approx(49.81974550797649, abs=1e-9)


# samples and events


def tables(folder: Path, samples: str, events: str = "") -> Path:
    (folder / "my_samples.csv").write_text(samples)
    if events:
        (folder / "my_events.csv").write_text(events)
    return folder / "my_samples.csv"


SAMPLES = "time,power_w,cpu,run\n" + "".join(
    f"{100 + i / 10},{50 + i},0.5,{'stop_0' if i < 30 else 'stop_0_resumed'}\n" for i in range(60)
)
EVENTS = "time,run,event,checkpoint\n100.5,stop_0,begin,\n102.5,stop_0,saved,yes\n"


def test_tables_of_samples_and_events(tmp_path: Path) -> None:
    (recording,) = read_recordings(tables(tmp_path, SAMPLES, EVENTS))
    first, second = recording
    assert (first.id, first.kind, first.pair) == ("stop_0", "stop", "stop_0")
    assert (second.id, second.kind, second.pair) == ("stop_0_resumed", "resume", "stop_0")
    # It says when it begins, and not that it ends: it may go on after it saved.
    assert (first.start, first.end) == (100.5, pytest.approx(103.0))
    assert recording.notes == (
        "the program starts with its event 'begin': the 0.5 s before it are left out (run stop_0)",
    )
    assert first.events[1] == Event(time=102.5, label="saved", checkpoint=True)
    assert first.columns["cpu"].tolist() == [0.5] * 30
    assert second.power_w[0] == 80.0


def marked_at_epochs(
    tmp_path: Path,
    *,
    ahead_s: float = 0.0,
    idle: tuple[float, float] = (0, 0),
    around: tuple[str, str] = ("", ""),
) -> Path:
    """Write four runs: 10 s of startup, five epochs of 20 s, and what is around them.

    Args:
        ahead_s: By how much the last run's marks are off.
        idle: For how long the idle machine is measured before and after.
        around: What is said when the program starts and ends, if anything.
    """
    rng = np.random.default_rng(1)
    samples, events = ["time,power_w,run"], ["time,event,run"]
    for number in range(4):
        begin = 1.7e9 + 1000 * number
        off_s = ahead_s if number == 3 else 0.0
        if around[0]:
            events.append(f"{begin + off_s},{around[0]},full_{number}")
        events += [
            f"{begin + off_s + 10 + 20 * epoch},epoch {epoch + 1},full_{number}"
            for epoch in range(5)
        ]
        if around[1]:
            events.append(f"{begin + off_s + 110},{around[1]},full_{number}")
        for step in range(round(-5 * idle[0]), round(5 * (110 + idle[1]))):
            at_s = step / 5
            level_w = 80 if at_s < 10 else 300 if (at_s - 10) % 20 < 14 else 120
            level_w = level_w if 0 <= at_s < 110 else 50
            samples.append(f"{begin + at_s},{level_w + rng.normal(0, 1):.2f},full_{number}")
    return tables(tmp_path, "\n".join(samples) + "\n", "\n".join(events) + "\n")


@pytest.mark.parametrize(
    ("idle", "around", "told"),
    [
        # Marks at the beginning of epochs cut off neither the startup nor the last epoch.
        ((0, 0), ("", ""), ["the first 10.0 s draw a steady 80 W"]),
        ((20, 15), ("", ""), ["20 s of idle time before", "15 s of idle time after"]),
        ((20, 15), ("start", "process_exit"), ["the 20.0 s before it", "the 15.0 s after it"]),
        ((0, 0), ("begin", "end"), []),
        ((20, 0), ("started", ""), ["the 20.0 s before it", None]),
    ],
)
def test_a_table_keeps_what_is_the_programs(
    tmp_path: Path, idle: tuple[float, float], around: tuple[str, str], told: list[str | None]
) -> None:
    recordings = read_recordings(marked_at_epochs(tmp_path, idle=idle, around=around))
    (recording,) = recordings
    for run in recording:
        assert run.duration_s == pytest.approx(110.0, abs=0.3)
    for number, words in enumerate(told):
        assert words is None or words in recording.notes[number]
        assert words is None or "(4 runs)" in recording.notes[number]
    assert len(recording.notes) == len([words for words in told if words])
    learned = learn(recordings, validated=False)
    assert learned.epochs == 5
    assert learned.profile.startup_s == pytest.approx(10.0, abs=0.3)
    # What was cut is told to who learns from it.
    assert all(note in learned.notes for note in recording.notes)


@pytest.mark.parametrize("ahead_s", [-300.0, 240.0, 300.0])
@pytest.mark.parametrize("around", [("", ""), ("start", "end")])
def test_a_run_marked_by_another_clock_is_left_out_alone(
    tmp_path: Path, ahead_s: float, around: tuple[str, str]
) -> None:
    recordings = read_recordings(marked_at_epochs(tmp_path, ahead_s=ahead_s, around=around))
    learned = learn(recordings, validated=False)
    assert [each.run.id for each in learned.series] == ["full_0", "full_1", "full_2"]
    assert any(note.startswith("run full_3 has") and "clocks" in note for note in learned.notes)
    assert learned.profile.run_s == pytest.approx(110.0, abs=0.5)


def test_idle_time_around_a_table_can_be_named(tmp_path: Path) -> None:
    path = marked_at_epochs(tmp_path)
    (recording,) = read_recordings(path, idle_before="10", idle_after="20")
    for run in recording:
        assert run.duration_s == pytest.approx(80.0)
    assert recording.notes == ()


@pytest.mark.parametrize("zone", ["Z", "+00:00", ""])
def test_times_may_be_stamps_that_say_their_zone(tmp_path: Path, zone: str) -> None:
    rows = [f"2024-07-01T12:00:{second:02d}{zone},{50 + second}" for second in range(30)]
    (tmp_path / "full_samples.csv").write_text("\n".join(["time,power_w", *rows]) + "\n")
    said = f"time,run,event\n2024-07-01 12:00:05{zone},full,begin\n"
    (tmp_path / "full_events.csv").write_text(said)
    if not zone:
        with pytest.raises(FormatError, match="write 2024-07-01T12:00:00Z if it is UTC"):
            read_recordings(tmp_path)
        return
    ((run,),) = read_recordings(tmp_path)
    assert run.times[0] == 1719835200.0
    assert run.events[0].time == 1719835205.0


def test_events_can_be_named(tmp_path: Path) -> None:
    samples = tmp_path / "samples.csv"
    samples.write_text(SAMPLES)
    events = tmp_path / "log.csv"
    events.write_text(EVENTS)
    (recording,) = read_recordings([samples, events])
    assert len(recording["stop_0"].events) == 2
    with pytest.raises(FormatError, match="this is a table of events: name the table of samples"):
        read_recordings(events)


@pytest.mark.parametrize(
    ("heading", "scale"),
    [("power_mw", 1e-3), ("node_power_kw", 1e3), ("watts", 1.0), ("gpu_power_instant_w", 1.0)],
)
def test_the_heading_tells_the_unit(tmp_path: Path, heading: str, scale: float) -> None:
    text = f"time,{heading}\n" + "".join(f"{i},{(40 + i) / scale!r}\n" for i in range(20))
    ((run,),) = read_recordings(tables(tmp_path, text))
    np.testing.assert_allclose(run.power_w, 40.0 + np.arange(20))


def test_which_power_is_never_guessed(tmp_path: Path) -> None:
    text = "time,cpu_power_w,gpu_power_w\n0,1,2\n1,1,2\n"
    with pytest.raises(FormatError, match="which of cpu_power_w, gpu_power_w is the power"):
        read_recordings(tables(tmp_path, text))


@pytest.mark.parametrize(
    ("samples", "events", "message"),
    [
        ("time,power_w\n0,5\n1,\n2,5\n", "", "line 3, column 'power_w': the power is missing"),
        ("time,power_w\n0,5\n1,-1\n2,5\n", "", "line 3, column 'power_w': -1 W is not"),
        ("time,power_w\n0,5\n1,2000000\n2,5\n", "", r"line 3, column 'power_w': 2e\+06 W"),
        ("time,power_w\n0,5\n2,5\n1,5\n", "", "line 4, column 'time': 1.000000 does not come"),
        ("time,power_w\n0,5\n,5\n1,5\n", "", "line 3, column 'time': a time is missing"),
        ("time,power_w\n0,5\n1,high\n", "", "line 3, column 'power_w': 'high' is not a number"),
        ("time,power_w\n", "", "there is a heading and no row"),
        ("time,power_w,run\n0,5,a\n1,5,\n2,5,a\n", "", "column 'run': a sample belongs to a run"),
        (SAMPLES, "time,run,event\n1,a,x\n0,a,y\n", "line 3, column 'time': 0.000000 comes before"),
        (SAMPLES, "time,run,event\n1,,x\n", "line 2, column 'event': an event needs a time"),
        (SAMPLES, "time,event\n1,x\n", "no column 'run'"),
    ],
)
def test_tables_that_make_no_sense(tmp_path: Path, samples: str, events: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_recordings(tables(tmp_path, samples, events))


def test_h200_is_read_whole(data: Callable[[str], Path]) -> None:
    recordings = read_recordings(data("power/h200"))
    runs = {run.id: run for recording in recordings for run in recording}
    energies = {name: runs[name].energy_j() for name in ("full_0", "full_1", "full_2")}
    # The card's own counter between the first and the last event, read off the file.
    wanted = {"full_0": 25311.3, "full_1": 25699.7, "full_2": 25992.6}
    for name, energy_j in energies.items():
        assert energy_j == pytest.approx(wanted[name], rel=1e-3)
    assert runs["abort_0_resumed"].pair == runs["abort_0"].pair == "abort_0"
    assert runs["sweep"].kind is None


def test_what_is_no_recording_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nothing was measured here\. Looked for: a recording"):
        read_recordings(tmp_path)
    (tmp_path / "a.txt").write_text("hello\n")
    with pytest.raises(FormatError, match=r"this is no recording\. Looked for"):
        read_recordings(tmp_path / "a.txt")
    with pytest.raises(FileProblem, match="no such file or folder"):
        read_recordings(tmp_path / "b")
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    with pytest.raises(FormatError, match="nothing was measured here"):
        read_recordings(tmp_path)
    with pytest.raises(FormatError, match="name at least one"):
        read_recordings([])


def test_a_folder_of_recordings_is_all_of_them(tmp_path: Path) -> None:
    half_written(tmp_path / "b")
    pinpoint(tmp_path / "a", GOOD)
    assert [recording.source for recording in read_recordings(tmp_path)] == ["pinpoint, a", "b"]


# counters


def counted(folder: Path, *, counter: float, counted: tuple[str, ...] = ("nvml.gpu-0",)) -> Run:
    """Read back a run of 20 s at 100 W and 50 W of something else, its counter read every 5 s."""
    with RecordingWriter(folder) as writer:
        writer.begin("run", counted=counted)
        for i in range(201):
            columns = {"nvml.gpu-0_w": 100.0}
            if i % 50 == 0:
                columns["nvml.gpu-0_j"] = 7.0 + counter * i * 10.0
            writer.append(i / 10, 150.0, columns)
        writer.start(0.0)
        writer.end(20.0)
    return read_recordings(folder)[0].runs[0]


def test_power_gives_the_shape_and_the_counter_the_height(tmp_path: Path) -> None:
    run = counted(tmp_path / "a", counter=0.99)
    assert run.energy_j(0, 20) == pytest.approx(20 * (0.99 * 100 + 50))
    assert not run.notes
    # What is read is kept as it was read.
    np.testing.assert_allclose(run.columns["nvml.gpu-0_w"], 100)
    # A channel that is no part of the whole changes nothing.
    assert counted(tmp_path / "b", counter=0.99, counted=()).mean_w == pytest.approx(150)


def test_a_counter_of_something_else_is_noted_and_not_used(tmp_path: Path) -> None:
    run = counted(tmp_path / "a", counter=0.5)
    assert run.mean_w == pytest.approx(150)
    assert "its counter says 0.50 times what its power comes to" in run.notes[0]


def test_a_counter_that_ticks_slower_than_it_is_read() -> None:
    # Ticks every 100 ms, read every 20.1 ms: seen times jump by 80 or 100 ms. Power is known.
    times = np.arange(0, 60, 0.0201)
    ticks = np.floor((times - 0.013) / 0.1)
    watts = np.where(np.arange(700) < 300, 100.0, 600.0)
    energy_j = np.concatenate(([0.0], np.cumsum(watts * 0.1)))[ticks.astype(int) + 1]
    when, power_w, rows = power_from_counter(times, energy_j)
    seen = np.diff(energy_j[rows]) / np.diff(times[rows])
    assert np.ptp(seen[350:]) > 100
    assert np.abs(power_w[30:-30] - watts[ticks[rows].astype(int) + 1][30:-30]).max() < 15
    assert np.sum(power_w[:-1] * np.diff(when)) == pytest.approx(
        energy_j[rows[-1]] - energy_j[rows[0]]
    )


def test_a_counter_that_moves_whenever_it_is_read_is_taken_as_it_is() -> None:
    times = np.array([0.0, 1.0, 2.0, 4.0, 5.0])
    when, power_w, rows = power_from_counter(times, np.array([0.0, 10.0, 30.0, 90.0, 100.0]))
    assert when.tolist() == [1.0, 2.0, 4.0]
    assert power_w.tolist() == [20.0, 30.0, 10.0]
    assert rows.tolist() == [1, 2, 3]


def test_a_counter_that_stands_still() -> None:
    times = np.arange(5.0)
    with pytest.raises(InvalidInput, match="moves fewer than three times"):
        power_from_counter(times, np.zeros(5))
