"""One recording of many processes: a folder of parts, each written by one process alone.

```
manifest.json                 Slurm's job, step, tasks and nodes: the same words by whoever writes
part-0-n1-0/                  node 0, called n1, task 0: a recording of its own
part-1-n2-8/clock.csv         what its clock showed, and what it read of the clocks of others
part-element_3-0-n4-0/        of an array: element 3 makes a run of its own
```

Nobody waits for anybody and no file has two writers, so that no locks are needed, which network
file systems lack, and a part that dies takes its own samples with it and no more. All is brought
together when it is read: the power of a run is the sum over its machines while all of them were
measured, and is lacking while one of them was not.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import files
from lowtide.errors import FormatError, LowtideError
from lowtide.formats import recording_folder
from lowtide.formats.recording_clocks import Offset, offset_between
from lowtide.formats.recording_folder import MANIFEST
from lowtide.recording import Event, Recording, Run, Unmeasured
from lowtide.signal import FloatArray
from lowtide.units import format_count

JOINT_FORMAT = "lowtide joint recording"
JOINT_VERSION = 1
CLOCK = "clock.csv"
# What a part measures: the machine by a meter that sees all of it, the sum of its meters, or GPUs
# that no other part of the machine sees.
MEASURES = "measures"
WHOLE, SUM, GPUS = "whole", "sum", "gpus"
# The column that says, sample by sample, whether the part read the machine or GPUs alone.
LEADS = "leads"
_TOOK_OVER = "took_over"
_PART = re.compile(r"part-.+")
# What of a part is counted from 0, or not there; and more than any job has.
_COUNTED = ("rank", "tasks", "node", "nodes", "element", "restart")
_MOST = 10_000_000
# Clocks that differ and are known no better than this are not brought together.
_UNSURE_S, _UNSURE_SHARE = 2.0, 0.05
# Tasks of one step begin together: further apart than this, clocks that nobody compared differ.
_TOGETHER_S = 60.0
# Clocks that differ by less are told by nobody.
_TOLD_S = 1.0
# Marks of two tasks that are further apart are remarked upon.
_APART_S = 1.0
# A day of a thousand machines, ten times a second, would fill gigabytes: steps get longer then.
_MOST_CELLS = 5_000_000
_ADDED = re.compile(
    r"(node_w|program_w|cpus_busy|memory_bytes|processes|read_bytes|written_bytes|gpu_busy|"
    r"gpu_memory_bytes|others_cpus|machine\..*_per_s)"
)
_AVERAGED = re.compile(r"machine\..*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one process wrote.

    Attributes:
        name: Its folder.
        about: Who it was: job, step, element, restart, rank, tasks, node, nodes, host, boot.
        heard: What it read of other hosts' clocks, as (host, their clock, its clock).
    """

    name: str
    about: Mapping[str, Any]
    recording: Recording
    heard: tuple[tuple[str, float, float], ...] = ()

    @property
    def host(self) -> tuple[str, str]:
        """The machine, however many nodes Slurm has on it."""
        boot = str(self.about.get("boot", ""))
        return ("", boot) if boot else (str(self.about.get("host", "")), "")

    @property
    def rank(self) -> int:
        """Which task wrote it."""
        return self.about.get("rank") or 0

    @property
    def node(self) -> int:
        """Which of the job's nodes it ran on."""
        return self.about.get("node") or 0


def recognises(path: Path) -> bool:
    """Return whether a folder holds a recording in parts."""
    manifest = path / MANIFEST
    return manifest.is_file() and JOINT_FORMAT in files.read_text(manifest)[:200]


def write_joint_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    """Say whose parts a folder holds; whoever of a job does, the same words are written."""
    document = {"format": JOINT_FORMAT, "version": JOINT_VERSION, **about}
    files.write_whole(folder / MANIFEST, json.dumps(document, indent=1) + "\n")


def read_joint_manifest(folder: Path) -> dict[str, Any]:
    """Return whose parts a folder holds."""
    path = folder / MANIFEST
    document = files.read_document(path, "json")
    if not isinstance(document, dict) or document.get("format") != JOINT_FORMAT:
        raise FormatError("not the manifest of a recording in parts", path=path)
    if document.get("version") != JOINT_VERSION:
        raise FormatError(
            f"this recording in parts has version {document.get('version')}, and this lowtide "
            f"reads {JOINT_VERSION}",
            path=path,
        )
    return {key: value for key, value in document.items() if key not in ("format", "version")}


def read(folder: Path | str, *, share: str | None = None) -> Recording:
    """Read a recording in parts as one: a run for each start of the program on all its machines.

    Args:
        share: As `recording_folder.read`.
    """
    folder = Path(folder)
    about = read_joint_manifest(folder)
    parts, notes = _read_parts(folder, share)
    if not parts:
        raise FormatError(
            f"no part of this recording can be read{''.join(f'; {each}' for each in notes)}",
            path=folder,
        )
    elements: dict[str, list[_Part]] = {}
    for part in parts:
        key = [str(part.about[name]) for name in ("element", "restart") if part.about.get(name)]
        elements.setdefault("r".join(key), []).append(part)
    runs: list[Run] = []
    unmeasured: list[Unmeasured] = []
    for element, of_element in sorted(elements.items(), key=lambda each: _order(each[0])):
        prefix = f"{element}/" if len(elements) > 1 or about.get("array_job") else ""
        notes += [
            f"{prefix}{note}"
            for part in of_element
            for note in part.recording.notes
            if not note.startswith("run ")
        ]
        names = dict.fromkeys(run.id for part in of_element for run in _every(part.recording))
        for name in names:
            joint = _join(f"{prefix}{name}", name, of_element, about)
            if isinstance(joint, Run):
                runs.append(joint)
            else:
                unmeasured.append(joint)
                notes.append(f"run {joint.id} is left out ({'; '.join(joint.notes)})")
    return Recording(
        runs=tuple(runs), source=folder.name, notes=tuple(notes), unmeasured=tuple(unmeasured)
    )


def _order(element: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", element))


def _every(recording: Recording) -> list[Run | Unmeasured]:
    return [*recording, *recording.unmeasured]


def _read_parts(folder: Path, share: str | None) -> tuple[list[_Part], list[str]]:
    parts, notes = [], []
    for path in sorted(folder.iterdir()):
        if not _PART.fullmatch(path.name) or not path.is_dir():
            continue
        try:
            if not recording_folder.recognises(path):
                raise FormatError("it was cut short before anything was written", path=path)
            recording = recording_folder.read(path, share=share)
            about = files.read_document(path / MANIFEST, "json").get("part")
            if not isinstance(about, dict) or not all(map(_counts, map(about.get, _COUNTED))):
                raise FormatError("it does not say whose part it is", path=path / MANIFEST)
        except (LowtideError, OSError) as error:
            notes.append(f"{path.name} is left out: {error}")
            continue
        heard = _read_clock(path / CLOCK)
        parts.append(_Part(name=path.name, about=about, recording=recording, heard=heard))
    return sorted(parts, key=lambda part: (part.node, part.rank)), notes


def _counts(said: object) -> bool:
    return said is None or (isinstance(said, int) and 0 <= said <= _MOST)


def _read_clock(path: Path) -> tuple[tuple[str, float, float], ...]:
    """Return what was read of other clocks; what makes no sense, or was cut off, tells nothing."""
    found = []
    try:
        text = path.read_bytes().decode(errors="replace").rpartition("\n")[0]
    except OSError:
        return ()
    for cells in csv.reader(text.splitlines()):
        if len(cells) == 3 and cells[1]:
            try:
                written, read_at = float(cells[2]), float(cells[0])
            except ValueError:
                continue
            if math.isfinite(written) and math.isfinite(read_at):
                found.append((cells[1], written, read_at))
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class _Machine:
    """The parts of a run on one machine, by a clock that all of the run share.

    Attributes:
        name: What it is called.
        members: The runs, those without samples included, in the order of their ranks.
    """

    name: str
    parts: list[_Part] = field(default_factory=list)
    members: list[Run | Unmeasured] = field(default_factory=list)

    @property
    def measured(self) -> list[Run]:
        return [each for run in self.members if isinstance(run, Run) for each in _roles(run)]

    def means_w(self, edges: FloatArray) -> FloatArray:
        """Return what the machine drew, each meter and GPU once, NaN where that is lacking."""
        total_w = np.full(edges.size - 1, np.nan)
        whole = np.zeros(edges.size - 1, dtype=bool)
        cards_w = np.zeros(edges.size - 1)
        for run in self.measured:
            means_w = run.means_w(edges)
            if run.machine.get(MEASURES) == GPUS:
                if _TOOK_OVER in run.machine:
                    # From then on they are in what it reads of the machine.
                    means_w = np.where(edges[1:] > run.end, 0.0, means_w)
                cards_w = cards_w + means_w
                continue
            # Who took over from another, or did not know of it, counts where the other does not.
            new = np.isnan(total_w) & ~np.isnan(means_w)
            total_w = np.where(new, means_w, total_w)
            whole |= new & (run.machine.get(MEASURES) == WHOLE)
        return np.where(whole, total_w, total_w + cards_w)

    def column(self, name: str, moments: FloatArray) -> FloatArray:
        """Return what a column showed at given moments, NaN where there is nothing."""
        found = np.full(moments.size, np.nan)
        for run in self.measured:
            if name in run.columns and run.machine.get(MEASURES) != GPUS:
                rows = np.searchsorted(run.times, moments, side="right") - 1
                held = (rows >= 0) & (moments < run.times[-1] + run.step_s)
                values = run.columns[name][np.maximum(rows, 0)]
                found = np.where(np.isnan(found) & held, values, found)
        return found


def _roles(run: Run) -> list[Run]:
    """Return a run as it is, or in two where it took over the machine from another part."""
    leads = run.columns.get(LEADS)
    if leads is None or run.machine.get(MEASURES) == GPUS or (leads > 0).all():
        return [run]
    found = []
    before = {**run.machine, MEASURES: GPUS, _TOOK_OVER: True}
    for rows, facts in ((leads > 0, run.machine), (leads <= 0, before)):
        if rows.sum() > 1:
            times = run.times[rows]
            found.append(
                replace(
                    run,
                    times=times,
                    power_w=run.power_w[rows],
                    columns={name: values[rows] for name, values in run.columns.items()},
                    machine=facts,
                    start=float(times[0]),
                    end=float(times[-1]) + run.step_s,
                    silent=tuple(
                        (low, high)
                        for low, high in run.silent
                        if low >= times[0] and high <= times[-1]
                    ),
                )
            )
    return found


def _join(
    name: str, run_id: str, parts: Sequence[_Part], about: Mapping[str, Any]
) -> Run | Unmeasured:
    """Return one run of all parts, or why its power is not known."""
    machines: dict[tuple[str, str], _Machine] = {}
    lacking = []
    for part in parts:
        member = next((each for each in _every(part.recording) if each.id == run_id), None)
        machine = machines.setdefault(
            part.host, _Machine(name=str(part.about.get("host", part.name)))
        )
        if member is None:
            lacking.append(part.name)
            continue
        machine.parts.append(part)
        machine.members.append(member)
    notes = _common_notes(machines.values())
    if lacking:
        notes.append(f"{', '.join(lacking)} did not come to this run")
    ended = _endings(machines.values(), notes)
    refused = _absent(parts, notes)
    refused += _align(list(machines.values()), notes)
    for machine in machines.values():
        if not machine.measured:
            refused.append(f"no part measured {machine.name}, so what all drew is not known")
    every = [run for machine in machines.values() for run in machine.members]
    ordered = sorted(
        (pair for machine in machines.values() for pair in _pairs(machine)),
        key=lambda pair: pair[0].rank,
    )
    first = ordered[0][1]
    starts = [run.start for run in every if run.start is not None]
    common: dict[str, Any] = {
        "id": name,
        "kind": first.kind,
        "pair": first.pair and name.replace(run_id, first.pair),
        "events": _events(ordered, notes),
        "power": "measured" if all(run.power == "measured" for run in every) else "estimated",
        "meters": tuple(dict.fromkeys(meter for run in every for meter in run.meters)),
        "machine": _facts(machines.values(), parts, about),
        "exit_status": ended,
        "start": min(starts, default=None),
        "end": max((run.end for run in every if run.end is not None), default=None),
    }
    if refused:
        return Unmeasured(notes=(*notes, *refused), **common)
    joint = _summed(list(machines.values()), common, notes)
    if joint is None:
        return Unmeasured(notes=(*notes, "at no time were all machines measured"), **common)
    return joint


def _pairs(machine: _Machine) -> list[tuple[_Part, Run | Unmeasured]]:
    return list(zip(machine.parts, machine.members, strict=True))


def _summed(
    machines: Sequence[_Machine], common: Mapping[str, Any], notes: Sequence[str]
) -> Run | None:
    """Return the run whose power is the sum over machines, None where there is none."""
    measured = [run for machine in machines for run in machine.measured]
    first = min(min(float(run.times[0]) for run in measured), common["start"] or math.inf)
    last = max(max(float(run.times[-1]) + run.step_s for run in measured), common["end"] or 0.0)
    step_s = max(max(run.step_s for run in measured), (last - first) * len(machines) / _MOST_CELLS)
    edges = np.append(np.arange(first, last - step_s / 2, step_s), last)
    # Start and end of the program are edges, so that what is lacking is not what lies beside it.
    inner = [each for each in (common["start"], common["end"]) if each and first < each < last]
    edges = np.unique(np.concatenate((edges, inner)))
    edges = edges[np.append(True, np.diff(edges) > 1e-6)]
    each_w = np.array([machine.means_w(edges) for machine in machines])
    power_w = each_w.sum(axis=0)
    known = ~np.isnan(power_w)
    if known.sum() < 2:
        return None
    begins, ends = edges[:-1], edges[1:]
    moments = (begins + ends) / 2
    columns = {
        f"{machine.name}.power_w": watts[known]
        for machine, watts in zip(_named(machines), each_w, strict=True)
    }
    for name in dict.fromkeys(name for run in measured for name in run.columns):
        if adds := _ADDED.fullmatch(name) or _AVERAGED.fullmatch(name):
            shown = np.array([machine.column(name, moments[known]) for machine in machines])
            added = adds.re is _ADDED
            columns[name] = shown.sum(axis=0) if added else shown.mean(axis=0)
    start = first if common["start"] is None else common["start"]
    end = last if common["end"] is None else common["end"]
    silent = _stretches(begins, ends, ~known & (ends > start) & (begins < end))
    facts = {**common, "start": start, "end": end}
    run = Run(
        times=begins[known],
        power_w=power_w[known],
        columns=columns,
        silent=silent,
        notes=tuple(notes),
        **facts,
    )
    if run.missing_s <= step_s:
        return run
    who = [
        machine.name
        for machine, watts in zip(machines, each_w, strict=True)
        if np.isnan(watts[(ends > start) & (begins < end)]).any()
    ]
    said = (
        f"no power was read for {run.missing_s:.1f} s of the {run.duration_s:.1f} s that the "
        f"program ran, on {', '.join(who)}: the energy is that of the rest"
    )
    return replace(run, notes=(*notes, said))


def _named(machines: Sequence[_Machine]) -> list[_Machine]:
    """Return machines with names of their own: two clusters may have a node n1 each."""
    names = [machine.name for machine in machines]
    return [
        machine if names.count(machine.name) == 1 else replace(machine, name=f"{machine.name}-{at}")
        for at, machine in enumerate(machines)
    ]


def _stretches(begins: FloatArray, ends: FloatArray, chosen: Any) -> list[tuple[float, float]]:
    """Return the stretches that neighbouring steps make."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(int), [0]))))
    return [
        (float(begins[low]), float(ends[high - 1]))
        for low, high in zip(edges[::2], edges[1::2], strict=True)
    ]


def _common_notes(machines: Iterable[_Machine]) -> list[str]:
    """Return what the parts noted, each with who did unless all."""
    pairs = [pair for machine in machines for pair in _pairs(machine)]
    said: dict[str, list[str]] = {}
    for part, run in pairs:
        for note in run.notes:
            # A part of one that measures nothing has nothing but this to say, and the others do.
            if isinstance(run, Run) or not note.startswith("the program ended with"):
                said.setdefault(note, []).append(part.name)
    return [
        note if len(who) == len(pairs) else f"{', '.join(who)}: {note}"
        for note, who in said.items()
    ]


def _endings(machines: Iterable[_Machine], notes: list[str]) -> int | None:
    """Return how the program ended: as the first of its tasks that failed, None if unknown."""
    pairs = sorted(
        (pair for machine in machines for pair in _pairs(machine)), key=lambda pair: pair[0].rank
    )
    statuses = [run.exit_status for _, run in pairs]
    failed = [status for status in statuses if status]
    if failed:
        who = ", ".join(part.name for part, run in pairs if run.exit_status)
        notes.append(f"{who} ended with {failed[0]}")
        return failed[0]
    return None if None in statuses else 0


def _absent(parts: Sequence[_Part], notes: list[str]) -> list[str]:
    """Note tasks that left no part; return why that leaves the power unknown."""
    tasks, nodes = (max(part.about.get(name) or 0 for part in parts) for name in ("tasks", "nodes"))
    if gone := _lacking(tasks, {part.rank for part in parts}):
        notes.append(f"of {format_count(tasks, 'task')} {gone} left no part")
    if dark := _lacking(nodes, {part.node for part in parts}):
        gone = f"of {format_count(nodes, 'node')} number {dark} left no part"
        return [f"{gone}, so what all drew is not known"]
    return []


def _lacking(count: int, there: set[int]) -> str:
    """Return which numbers below a count are not there, the first few of them."""
    gone = [str(each) for each in islice((n for n in range(count) if n not in there), 9)]
    return ", ".join([*gone[:8], *(["..."] if len(gone) > 8 else [])])


def _align(machines: Sequence[_Machine], notes: list[str]) -> list[str]:
    """Bring all machines to the clock of the first; return why some cannot be."""
    refused = []
    reference = machines[0]
    for machine in machines[1:]:
        if not machine.members or not reference.members:
            continue
        offset = _offset(machine, reference)
        apart_s = _started(machine) - _started(reference)
        pair = f"{machine.name} and {reference.name}"
        if math.isinf(offset.half_s):
            if abs(apart_s) > _TOGETHER_S:
                refused.append(
                    f"the clocks of {pair} differ: by them the program began {abs(apart_s):.0f} s "
                    "apart, and neither read the other's, so their power cannot be brought "
                    "together; set them by NTP and measure again"
                )
            else:
                notes.append(
                    f"whether the clocks of {pair} agree is not known: neither read the other's; "
                    f"by them the program began {abs(apart_s):.1f} s apart"
                )
            continue
        shift_s = offset.shift_s
        length_s = max((run.duration_s for run in machine.measured), default=0.0)
        if shift_s and offset.half_s > max(_UNSURE_S, _UNSURE_SHARE * length_s):
            refused.append(
                f"the clock of {machine.name} is {offset.low_s:+.1f} to {offset.high_s:+.1f} s "
                f"off that of {reference.name}, which is not sure enough to bring their power "
                "together; set them by NTP and measure again"
            )
        elif shift_s:
            if abs(shift_s) >= _TOLD_S:
                notes.append(
                    f"the clock of {machine.name} was {shift_s:+.1f} s off that of "
                    f"{reference.name} (± {offset.half_s:.1f} s); its times are moved by that"
                )
            machine.members = [_moved(run, -shift_s) for run in machine.members]
    return refused


def _offset(machine: _Machine, reference: _Machine) -> Offset:
    """Return what a machine's clock shows more than the reference's."""

    def heard(by: _Machine, of: _Machine) -> list[tuple[float, float]]:
        names = {part.name for part in of.parts}
        return [(w, r) for part in by.parts for who, w, r in part.heard if who in names]

    return offset_between(heard(machine, reference), heard(reference, machine))


def _started(machine: _Machine) -> float:
    return min((run.start for run in machine.members if run.start is not None), default=math.nan)


def _moved(run: Run | Unmeasured, by_s: float) -> Run | Unmeasured:
    """Return a run at another time."""
    events = tuple(replace(event, time=event.time + by_s) for event in run.events)
    if isinstance(run, Unmeasured):
        start = None if run.start is None else run.start + by_s
        end = None if run.end is None else run.end + by_s
        return replace(run, events=events, start=start, end=end)
    return replace(
        run,
        times=run.times + by_s,
        events=events,
        start=run.start + by_s,
        end=run.end + by_s,
        silent=tuple((first + by_s, last + by_s) for first, last in run.silent),
    )


def _events(
    ordered: Sequence[tuple[_Part, Run | Unmeasured]], notes: list[str]
) -> tuple[Event, ...]:
    """Return each mark once: of those that say the same, the task of the lowest rank counts."""
    kept: list[Event] = []
    worst: tuple[float, str, str] = (_APART_S, "", "")
    known: dict[tuple[str, int], Event] = {}
    for part, run in ordered:
        count: dict[str, int] = {}
        for event in run.events:
            count[event.label] = count.get(event.label, 0) + 1
            key = (event.label, count[event.label])
            if key not in known:
                known[key] = event
                kept.append(event)
            elif abs(event.time - known[key].time) > worst[0]:
                worst = (abs(event.time - known[key].time), event.label, part.name)
    if worst[1]:
        notes.append(
            f"tasks set the same marks up to {worst[0]:.1f} s apart ({worst[1]} of {worst[2]}): "
            "those of the lowest task count"
        )
    return tuple(sorted(kept, key=lambda event: event.time))


def _facts(
    machines: Iterable[_Machine], parts: Sequence[_Part], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the facts that hold for all machines, and what of Slurm's this is."""
    of_all = [run.machine for machine in machines for run in machine.members]
    alike = {
        key: value
        for key, value in of_all[0].items()
        if key != MEASURES and all(facts.get(key) == value for facts in of_all)
    }
    ids = {key: about[key] for key in ("job", "array_job", "step") if about.get(key) is not None}
    element = parts[0].about.get("element")
    return {
        **alike,
        **{f"slurm_{key}": value for key, value in ids.items()},
        **({} if element is None else {"slurm_array_task": element}),
        "machines": len({part.host for part in parts}),
        "parts": len(parts),
    }
