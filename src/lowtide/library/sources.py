"""Where runs that happened are known from: the store of a watcher, and recordings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lowtide.certainty import word_for_power
from lowtide.errors import InvalidInput
from lowtide.formats.recordings import read_recordings
from lowtide.library.production import LOOKED_AT, LeftOut, SeenRuns
from lowtide.library.programs import PastRun, Program, common_name
from lowtide.recording import Recording, Run, Unmeasured
from lowtide.states import NOT_OVER
from lowtide.store import JobRecord, JobTable, Question, Series, Store
from lowtide.store.tables import split
from lowtide.units import format_count, format_hours

# Longer than this many usual steps without data is a time that nobody watched.
_GAP_STEPS = 2.0
# Fewer steps than this show no phases.
LEAST_STEPS = 4
# With so many times fewer steps than looks, looks were rolled up; a run of so many steps still
# shows its phases.
ROLLED_UP = 1.5
_FINE_STEPS = 30
# What lacks no more than this share of its time, or so many steps, was watched as a whole.
_LACKS = 0.02
_LACKS_STEPS = 2.0
# What runs are compared by, besides power.
_COLUMNS = ("cpus_busy", "gpus_busy")
# Jobs that are read together.
_AT_ONCE = 500
_OLDER = f"older than the newest {LOOKED_AT}"


def run_of(record: JobRecord, series: Series) -> Run:
    """Return a job as a measured run, so that it can be learned from."""
    power_w = series.columns.get("power_w", np.empty(0))
    known = np.isfinite(power_w)
    if np.count_nonzero(known) < LEAST_STEPS:
        raise InvalidInput(
            f"what it drew is known for {format_count(int(np.count_nonzero(known)), 'step')}, and "
            f"phases take {LEAST_STEPS} or more"
        )
    first, last = int(np.argmax(known)), int(known.size - np.argmax(known[::-1]))
    inside = slice(first, last)
    unknown = np.where(known[inside], 0.0, series.step_s[inside])
    longest = float(unknown.max())
    if longest > _GAP_STEPS * float(np.median(series.step_s[inside][known[inside]])):
        raise InvalidInput(
            f"there is no data for {format_hours(longest)} of it, and what it drew then is unknown"
        )
    starts, ends = series.starts[inside][known[inside]], series.times[inside][known[inside]]
    drawn_w = power_w[inside][known[inside]]
    # A job begins and ends within a step: what it drew in that it drew in the part it was there.
    begin = record.started if starts[0] < record.started < ends[0] else float(starts[0])
    end = record.ended if starts[-1] < record.ended < ends[-1] else float(ends[-1])
    drawn_w = drawn_w * (ends - starts)
    starts[0], ends[-1] = begin, end
    return Run(
        id=record.shown_id,
        times=starts,
        power_w=drawn_w / (ends - starts),
        start=begin,
        end=end,
        columns={
            name: series.columns[name][inside][known[inside]]
            for name in _COLUMNS
            if name in series.columns
        },
        power="measured" if record.power == "measured" else "estimated",
    )


def program_of(record: JobRecord) -> Program:
    """Return which program a job is, as far as that can be told without looking at its use."""
    return _program(
        record.user, record.name, record.job_id, len(record.hosts), record.cpus, record.gpus
    )


def _program(
    user: str | None, name: str | None, job_id: str, nodes: int, cpus: float, gpus: float
) -> Program:
    return Program(
        user=user or "",
        name=common_name(name or job_id),
        nodes=max(nodes, 1),
        cpus=None if math.isnan(cpus) else round(cpus, 2),
        gpus=round(gpus, 2) if gpus > 0 else None,
    )


@dataclass(slots=True)
class Watched:
    """The jobs in a store.

    Attributes:
        question: Which of them.
    """

    store: Store
    question: Question
    now: float
    notes: Sequence[str] = ()
    table: JobTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.store.table(self.question, now=self.now)

    def __len__(self) -> int:
        return len(self.table)

    def programs(self) -> Iterator[SeenRuns]:
        """Yield the runs of each program."""
        table = self.table
        programs = self._programs()
        whys = list(_judged(table))
        rows: dict[Program, list[int]] = defaultdict(list)
        for place, program in enumerate(programs):
            rows[program].append(place)
        began = table.number("started")
        chosen: dict[Program, list[int]] = {}
        for program, places in rows.items():
            fit = [place for place in places if whys[place] is None]
            fit.sort(key=lambda place: -began[place])
            chosen[program] = fit[:LOOKED_AT]
            for place in fit[LOOKED_AT:]:
                whys[place] = LeftOut(id=str(table.columns["shown_id"][place]), why=_OLDER)
        order = np.array([place for fit in chosen.values() for place in fit], dtype=np.int64)
        # Part by part: objects of ten thousand jobs, and what they used, take room.
        records = (
            record for part in table.chosen(order).parts(_AT_ONCE) for record in part.records()
        )
        read = self._read(records)
        for program, places in rows.items():
            left_out = [each for place in places if (each := whys[place]) is not None]
            runs = []
            for _ in chosen[program]:
                found = next(read)
                if isinstance(found, LeftOut):
                    left_out.append(found)
                else:
                    runs.append(PastRun(program=program, run=found))
            names = {table.columns["name"][place] or "" for place in places}
            yield SeenRuns(
                program=program,
                runs=tuple(runs),
                left_out=tuple(left_out),
                called=names.pop() if len(names) == 1 else "",
            )

    def _read(self, records: Iterator[JobRecord]) -> Iterator[Run | LeftOut]:
        taken: list[JobRecord] = []
        while taken := [record for _, record in zip(range(_AT_ONCE), records, strict=False)]:
            for record, series in zip(taken, self.store.many_series(taken), strict=True):
                yield _as_run(record, series)

    def _programs(self) -> Iterator[Program]:
        table = self.table
        cpus, gpus = table.asked("cpus").tolist(), table.asked("gpus").tolist()
        columns = table.columns
        for place in range(len(table)):
            nodes = split(columns["nodes"][place] or columns["hosts"][place])
            yield _program(
                columns["user"][place],
                columns["name"][place],
                columns["job_id"][place],
                len(nodes),
                cpus[place],
                gpus[place],
            )


def _as_run(record: JobRecord, series: Series) -> Run | LeftOut:
    steps = int(np.isfinite(series.columns.get("power_w", np.empty(0))).sum())
    if 0 < steps < min(record.looks / ROLLED_UP, _FINE_STEPS):
        step_s = format_hours(float(series.step_s.max()))
        return LeftOut(
            id=record.shown_id, why="kept too coarsely to show phases", more=f"steps of {step_s}"
        )
    try:
        return run_of(record, series)
    except InvalidInput as error:
        return LeftOut(id=record.shown_id, why="watched in part", more=str(error))


def _judged(table: JobTable) -> Iterator[LeftOut | None]:
    """Yield for each job why it tells nothing of its program; None for those that do."""
    names = ("energy_j", "measured_j", "unmetered_s", "seen_s", "looks")
    totals = {name: table.total(name).tolist() for name in names}
    facts = {name: table.number(name).tolist() for name in ("ended", "exit_code", "restarts")}
    elapsed_s = table.elapsed_s.tolist()
    for place, state in enumerate(table.states):
        why = _why(
            state,
            source=table.columns["source"][place],
            elapsed_s=elapsed_s[place],
            told=len(split(table.columns["nodes"][place])),
            seen=len(split(table.columns["hosts"][place])),
            **{name: column[place] for name, column in (*totals.items(), *facts.items())},
        )
        known = None
        if why is not None:
            known = LeftOut(id=str(table.columns["shown_id"][place]), why=why[0], more=why[1])
        yield known


def _why(
    state: str | None,
    *,
    source: str,
    elapsed_s: float,
    told: int,
    seen: int,
    energy_j: float,
    measured_j: float,
    unmetered_s: float,
    seen_s: float,
    looks: float,
    ended: float,
    exit_code: float,
    restarts: float,
) -> tuple[str, str] | None:
    if state in NOT_OVER:
        return "not over", ""
    if state not in (None, "completed"):
        return str(state).replace("_", " "), ""
    if exit_code not in (0.0,) and exit_code == exit_code:
        return "failed", f"exit status {exit_code:.0f}"
    if math.isnan(ended) or (state is None and source == "slurm"):
        return "of unknown end", ""
    if restarts > 0:
        return "requeued", f"{restarts:.0f} times"
    if not looks > 0 or math.isnan(energy_j):
        return "of unknown power", ""
    if word_for_power(energy_j, measured_j) == "part":
        return "measured in part", f"{measured_j / energy_j:.0%} of its energy"
    if 0 < seen < told:
        return "watched in part", f"on {seen} of {told} nodes"
    step_s = seen_s / looks
    lacks_s = max(
        elapsed_s - seen_s if elapsed_s == elapsed_s else 0.0,
        unmetered_s if unmetered_s == unmetered_s else 0.0,
    )
    if lacks_s > max(_LACKS * elapsed_s, _LACKS_STEPS * step_s):
        return "watched in part", f"{format_hours(lacks_s)} of {format_hours(elapsed_s)} unknown"
    if looks < LEAST_STEPS:
        return "too short", format_count(int(looks), "look")
    return None


@dataclass(slots=True)
class Recorded:
    """Recordings of programs that were measured.

    Attributes:
        folders: Where they are: a recording, or a folder of some.
    """

    folders: Sequence[Path]
    notes: Sequence[str] = ()

    def programs(self) -> Iterator[SeenRuns]:
        """Yield the runs of each program: those of one name, measured on machines alike."""
        runs: dict[Program, list[PastRun]] = defaultdict(list)
        beside: dict[Program, list[Run]] = defaultdict(list)
        left_out: dict[Program, list[LeftOut]] = defaultdict(list)
        names: dict[Program, set[str]] = defaultdict(set)
        for folder in self.folders:
            for recording in read_recordings(folder):
                name = _named(folder, recording)
                every: list[Run | Unmeasured] = [*recording.runs, *recording.unmeasured]
                for run in every:
                    cpus = run.machine.get("cpus", math.nan)
                    program = _program("", name, name, 1, float(cpus), math.nan)
                    names[program].add(name)
                    named = f"{recording.source}/{run.id}"
                    why = _why_not(run)
                    if isinstance(run, Run) and run.kind not in ("full", None):
                        beside[program].append(replace(run, id=named))
                    elif isinstance(run, Run) and why is None:
                        own = replace(run, id=named)
                        runs[program].append(PastRun(program=program, run=own))
                    elif why is not None:
                        left_out[program].append(LeftOut(id=named, why=why[0], more=why[1]))
        for program in dict.fromkeys([*runs, *left_out, *beside]):
            found = sorted(runs[program], key=lambda each: each.start)
            gone = [LeftOut(id=each.run.id, why=_OLDER) for each in found[:-LOOKED_AT]]
            if not found:
                # Where nothing ran through, stops and idle time say nothing of a program.
                gone += (LeftOut(id=run.id, why=f"{run.kind} alone") for run in beside[program])
            yield SeenRuns(
                program=program,
                runs=tuple(found[-LOOKED_AT:]),
                left_out=(*left_out[program], *gone),
                called=names[program].pop() if len(names[program]) == 1 else "",
                companions=tuple(beside[program]),
            )


def _named(folder: Path, recording: Recording) -> str:
    """Return what a recording is of: its own folder's name, or that of the folder of all."""
    name = recording.source
    # What nobody named is called by moment, machine and process; other tools have a run in each.
    is_own = not name.startswith(("recording-", "pinpoint, ", "samples, "))
    return name if is_own else folder.resolve().name


def _why_not(run: Run | Unmeasured) -> tuple[str, str] | None:
    if isinstance(run, Unmeasured):
        return "of unknown power", ""
    if run.exit_status not in (None, 0):
        return "failed", f"exit status {run.exit_status}"
    if run.gaps:
        return "watched in part", f"{format_hours(run.missing_s)} without samples"
    if run.sampled < LEAST_STEPS:
        return "too short", format_count(run.sampled, "sample")
    if any(note.startswith("cut short") for note in run.notes):
        return "of unknown end", "cut short"
    return None
