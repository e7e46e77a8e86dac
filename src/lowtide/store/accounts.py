"""Summing up: who used how much, or when it was used.

A job that ran within one hour is summed from its totals. One that ran on beyond an edge, of the
window or of an hour, is cut there, by its course over time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lowtide.certainty import ROUNDING
from lowtide.errors import UnknownName
from lowtide.monitor.snapshot import FloatArray
from lowtide.steps import Steps
from lowtide.store.jobs import JobTable, Question
from lowtide.store.records import HostRecord, Series, gaps_in
from lowtide.units import MISSING

if TYPE_CHECKING:
    from lowtide.store.store import Store

NAMES = ("user", "account", "partition", "name", "state")
TIMES = ("day", "hour", "weekday")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
IntArray = npt.NDArray[np.int64]

_USED = ("cpu_s", "energy_j", "measured_j", "carbon_g", "unmetered_s", "unpriced_j")
# What says that a quantity lacks a part, besides that it is unknown of some job.
_LACKS: dict[str, tuple[str, ...]] = {
    "cpu_s": (),
    "energy_j": ("unmetered_s",),
    "carbon_g": ("unmetered_s", "unpriced_j"),
}
# Nobody can tell the ends of a job to less than this.
_LEAST_S = 1.0
# No zone is off by less: at such moments hours begin, wherever one is.
_QUARTER_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What some jobs used together. NaN where it is not known.

    Attributes:
        label: Whose it is, or when it was.
        jobs: How many jobs.
        cpu_s: CPU time that was used.
        core_s: CPU time that was kept for them.
        gpu_s: GPU time that was kept for them.
        energy_j: Energy.
        measured_j: The part of it that was measured.
        carbon_g: What that emitted.
        unmetered_s: How long jobs ran while nobody could tell what they drew.
        unpriced_j: The energy whose emissions nobody can tell.
        lacking: Which of `cpu_s`, `core_s`, `gpu_s`, `energy_j` and `carbon_g` lack a part, and are
            the least it can be.
        efficient_s: The part of `cpu_s` of those jobs of which both that and `core_s` are known.
        compared_s: The part of `core_s` of the same jobs; NaN where there are none.
        compared: How many jobs these are.
        watched: The share of the time in which somebody watched.
        unknown_duration: How many of the jobs are left out of `core_s` and `gpu_s`, for nobody
            knows how long they ran.
    """

    label: str
    jobs: int
    cpu_s: float
    core_s: float
    gpu_s: float
    energy_j: float
    measured_j: float
    carbon_g: float
    unmetered_s: float
    unpriced_j: float
    lacking: tuple[str, ...]
    watched: float
    unknown_duration: int
    efficient_s: float = np.nan
    compared_s: float = np.nan
    compared: int = 0

    @property
    def cpu_efficiency(self) -> float:
        """The share of their CPUs that jobs kept busy, of those of which both are known."""
        return self.efficient_s / self.compared_s if self.compared_s > 0 else np.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccount:
    """What nodes drew and emitted, with what no job is charged with. NaN where it is not known.

    Attributes:
        energy_j: All energy.
        idle_j: The part of it that is idle.
        unattributed_j: The part of it that nobody is charged with.
        carbon_g: All emissions.
        idle_g: The part of them that is idle.
        unattributed_g: The part of them that nobody is charged with.
        lacking: Which of `energy_j` and `carbon_g` lack a part.
    """

    energy_j: float
    idle_j: float
    unattributed_j: float
    carbon_g: float
    idle_g: float
    unattributed_g: float
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Everything that was summed up.

    Attributes:
        start: From when, epoch seconds.
        end: Until when.
        zone: The zone of hours and days.
        rows: The sums: by time in order, by name the largest first.
        gaps: Host, begin and end of stretches that nobody watched.
        nodes: What the nodes drew and emitted in all; None where only some jobs were asked for.
    """

    start: float
    end: float
    zone: str
    rows: tuple[Account, ...]
    gaps: tuple[tuple[str, float, float], ...]
    nodes: NodeAccount | None = None


def sum_up(
    store: Store,
    question: Question,
    *,
    by: str,
    now: float,
    tz: tzinfo | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> Accounts:
    """Sum up what jobs used in a window of time.

    Args:
        question: Which jobs, and the window: from `start`, which must be given, to `end` or now.
        by: One of `NAMES` or `TIMES`.
        tz: The zone of hours and days, by default this machine's.
        told: Is told how many courses were read, and how many there are to read.
    """
    if by not in (*NAMES, *TIMES):
        raise UnknownName("way to sum up", by, (*NAMES, *TIMES))
    start = 0.0 if question.start is None else question.start
    end = now if question.end is None else question.end
    table = store.table(question, now=now)
    hosts = [host for host in store.hosts() if not question.hosts or host.name in question.hosts]
    gaps, nodes = _nodes(store, hosts, start, end)
    edges, labels = _edges(start, end, by, tz) if by in TIMES else (np.array([start, end]), [])
    longest = max((host.interval_s for host in hosts if host.interval_s > 0), default=0.0)
    ran = _ran(table, edges)
    partly = _is_partly_counted(table, longest)
    used = _with_unseen(_used(store, table, edges, longest, told), ran, table)
    if by in TIMES:
        watched = _watched(gaps, edges, len(hosts))
        rows = _by_time(labels, by, edges, used, ran, watched, table, partly)
    else:
        rows = _by_name(table, by, used, ran, partly)
    zone = datetime.fromtimestamp(end, UTC).astimezone(tz)
    return Accounts(
        start=start,
        end=end,
        zone=zone.strftime("%Z"),
        rows=rows,
        gaps=gaps,
        nodes=nodes if store.has_all_hosts and not (question.users or question.sources) else None,
    )


def _nodes(
    store: Store, hosts: list[HostRecord], start: float, end: float
) -> tuple[tuple[tuple[str, float, float], ...], NodeAccount | None]:
    """Return when nobody watched which node, and what they drew and emitted between two moments."""
    names = (
        *("energy_j", "idle_j", "unattributed_j", "carbon_g", "idle_g", "unattributed_g"),
        *("unmetered_s", "unpriced_j"),
    )
    edges = np.array([start, end])
    rows, gaps = [], []
    courses = store.many_node_series([host.name for host in hosts], start=start, end=end)
    for host, series in zip(hosts, courses, strict=True):
        stretches = gaps_in(series, host.interval_s, start=start, end=end)
        gaps += [(host.name, first, last) for first, last in stretches]
        if len(series):
            rows.append([amounts_between(series, name, edges)[0] for name in names])
    if not rows:
        return tuple(gaps), None
    table = np.array(rows)
    sums = {
        name: float(np.nansum(column)) if np.isfinite(column).any() else np.nan
        for name, column in zip(names, table.T, strict=True)
    }
    unknown = {
        name: bool(np.isnan(table[:, names.index(name)]).any()) for name in _LACKS if name in names
    }
    lacking = _lacking(sums, unknown)
    drawn = NodeAccount(**{name: sums[name] for name in names[:6]}, lacking=lacking)
    return tuple(gaps), drawn


def _lacking(sums: Mapping[str, float], unknown: Mapping[str, bool]) -> tuple[str, ...]:
    """Return which quantities lack a part: some time or energy, or all that somebody used."""
    least = {"unmetered_s": 0.0, "unpriced_j": ROUNDING * sums["energy_j"]}
    return tuple(
        name
        for name, reasons in _LACKS.items()
        if name in unknown
        and not np.isnan(sums[name])
        and (unknown[name] or any(sums[reason] > least[reason] for reason in reasons))
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """How much of which job falls between which two edges."""

    jobs: IntArray
    places: IntArray
    amounts: FloatArray

    def summed(self, group: IntArray, count: int) -> FloatArray:
        """Return sums of what is known: each part counts for the group that is named for it."""
        known = ~np.isnan(self.amounts)
        sums = np.bincount(group[known], weights=self.amounts[known], minlength=count)
        none_known = np.bincount(group[known], minlength=count) == 0
        return np.where(none_known & self.unknown(group, count), np.nan, sums)

    def unknown(self, group: IntArray, count: int) -> npt.NDArray[np.bool_]:
        """Return for which groups a part is not known."""
        return np.bincount(group[np.isnan(self.amounts)], minlength=count) > 0


def _used(
    store: Store,
    table: JobTable,
    edges: FloatArray,
    interval_s: float,
    told: Callable[[int, int], None],
) -> dict[str, _Parts]:
    """Return what was used of each quantity, by job and time."""
    # Nothing that was counted lies before the first look, but for what the look itself told, and
    # for CPU time that a group counted while nobody watched.
    unseen = table.total("unwatched_cpu_s") > 0
    started = table.number("started")
    first = np.fmax(started, table.total("first_seen") - 2 * interval_s)
    first = np.where(unseen, started, first)
    first_place = np.searchsorted(edges, first, side="right") - 1
    last_place = np.searchsorted(edges, table.total("last_seen"), side="left") - 1
    seen = table.total("looks") > 0
    inside = seen & (first_place == last_place) & (first_place >= 0)
    inside &= first_place < edges.size - 1
    cut = np.flatnonzero(seen & ~inside)
    jobs, places = [np.flatnonzero(inside)], [first_place[inside]]
    amounts = {name: [table.total(name)[inside]] for name in _USED}
    # When such a job was first looked at says where its unseen time lies, in the window or not.
    plain, gapped = cut[~unseen[cut]], cut[unseen[cut]]
    courses = itertools.chain(
        store.many_series(
            table.chosen(plain).records(), start=float(edges[0]), end=float(edges[-1])
        ),
        store.many_series(table.chosen(gapped).records()),
    )
    order = np.concatenate([plain, gapped])
    for count, series in enumerate(courses):
        told(count, cut.size)
        shares = {name: amounts_between(series, name, edges) for name in _USED}
        if unseen[order[count]]:
            shares["cpu_s"] = shares["cpu_s"] + _unseen(series, started[order[count]], edges)
        where = np.flatnonzero(np.any([share != 0 for share in shares.values()], axis=0))
        jobs.append(np.full(where.size, order[count]))
        places.append(where)
        for name, share in shares.items():
            amounts[name].append(share[where])
    return {
        name: _Parts(np.concatenate(jobs), np.concatenate(places), np.concatenate(values))
        for name, values in amounts.items()
    }


def _with_unseen(used: dict[str, _Parts], ran: _Parts, table: JobTable) -> dict[str, _Parts]:
    """Return what was used with the jobs that ran and nobody saw: what they used is unknown."""
    unseen = ~(table.total("looks") > 0)[ran.jobs] & (ran.amounts > 0)
    jobs, places = ran.jobs[unseen], ran.places[unseen]
    blank = np.full(jobs.size, np.nan)
    return {
        name: _Parts(
            np.concatenate([parts.jobs, jobs]),
            np.concatenate([parts.places, places]),
            np.concatenate(
                [parts.amounts, ran.amounts[unseen] if name == "unmetered_s" else blank]
            ),
        )
        for name, parts in used.items()
    }


def _ran(table: JobTable, edges: FloatArray) -> _Parts:
    """Return how long each job ran between which edges."""
    start, elapsed = table.number("started"), table.elapsed_s
    known = np.flatnonzero(~np.isnan(start + elapsed))
    low = np.clip(start[known], edges[0], edges[-1])
    high = np.clip(start[known] + elapsed[known], edges[0], edges[-1])
    first = np.searchsorted(edges, low, side="right") - 1
    spans = np.maximum(np.searchsorted(edges, high, side="left") - first, 0)
    jobs = np.repeat(np.arange(known.size), spans)
    # Counts 0, 1, 2 ... within each job.
    within = np.arange(jobs.size) - np.repeat(np.cumsum(spans) - spans, spans)
    places = first[jobs] + within
    lengths = np.minimum(high[jobs], edges[places + 1]) - np.maximum(low[jobs], edges[places])
    return _Parts(known[jobs], places, lengths)


def amounts_between(series: Series, name: str, edges: FloatArray) -> FloatArray:
    """Return what was used between edges: steps that lie across one are shared by time."""
    if not len(series):
        return np.zeros(edges.size - 1)
    amounts = series.columns[name]
    if np.isnan(amounts).all():
        here = (series.times[None, :] > edges[:-1, None]) & (
            series.starts[None, :] < edges[1:, None]
        )
        return np.where(here.any(axis=1), np.nan, 0.0)
    return Steps.of_amounts(series.edges, amounts).amounts(edges)


def _unseen(series: Series, started: float, edges: FloatArray) -> FloatArray:
    """Return the CPU time between edges that was used while nobody watched, evenly in each gap."""
    amounts = np.nan_to_num(series.columns["unwatched_cpu_s"])
    watched = ~np.isnan(series.columns["cpu_s"])
    # A gap ends where watching begins again, with the step that tells what was used in it.
    ends = series.starts
    before = np.where(watched, series.times, -np.inf)
    begins = np.append(started, np.maximum.accumulate(before)[:-1])
    total = np.zeros(edges.size - 1)
    for place in np.flatnonzero(amounts):
        first, last = begins[place], ends[place]
        if not first < last:
            first, last = series.starts[place], series.times[place]
        total += amounts[place] * np.diff(np.clip((edges - first) / (last - first), 0.0, 1.0))
    return total


def _by_name(
    table: JobTable,
    by: str,
    used: dict[str, _Parts],
    ran: _Parts,
    partly: npt.NDArray[np.bool_],
) -> tuple[Account, ...]:
    names = table.states if by == "state" else table.text(by)
    labels = sorted({name or MISSING for name in names})
    place = {label: number for number, label in enumerate(labels)}
    group = np.array([place[name or MISSING] for name in names], dtype=np.int64)
    unknown = np.bincount(group[_is_unknown(table)], minlength=len(labels))
    # Of jobs that nobody saw nothing is known.
    unseen = np.bincount(group[table.total("looks") > 0], minlength=len(labels)) == 0
    rows = _accounts(
        table,
        labels,
        {name: (parts, group[parts.jobs]) for name, parts in used.items()},
        ran,
        group[ran.jobs],
        partly,
        np.bincount(group, minlength=len(labels)),
        unknown,
        np.full(len(labels), np.nan),
        unseen,
    )
    rows.sort(key=lambda row: (-np.nan_to_num(row.energy_j), -np.nan_to_num(row.cpu_s), row.label))
    return tuple(rows)


def _by_time(
    labels: list[str],
    by: str,
    edges: FloatArray,
    used: dict[str, _Parts],
    ran: _Parts,
    watched: FloatArray,
    table: JobTable,
    partly: npt.NDArray[np.bool_],
) -> tuple[Account, ...]:
    if by == "weekday":
        order = [day for day in _WEEKDAYS if day in labels]
    else:
        order = sorted(set(labels)) if by == "hour" else list(dict.fromkeys(labels))
    place = {label: number for number, label in enumerate(order)}
    group = np.array([place[label] for label in labels], dtype=np.int64)
    length = np.bincount(group, weights=np.diff(edges), minlength=len(order))
    share = np.bincount(group, weights=watched, minlength=len(order)) / length
    # A job counts once for each group in which it ran, or used anything.
    parts = (ran, used["cpu_s"])
    pairs = np.unique(
        np.concatenate([each.jobs * len(order) + group[each.places] for each in parts])
    )
    there = np.zeros(len(table), dtype=bool)
    there[_is_unknown(table)] = True
    lasting = pairs[there[pairs // len(order)]]
    unknown = np.bincount(lasting % len(order), minlength=len(order))
    rows = _accounts(
        table,
        order,
        {name: (each, group[each.places]) for name, each in used.items()},
        ran,
        group[ran.places],
        partly,
        np.bincount(pairs % len(order), minlength=len(order)),
        unknown,
        share,
        # Where nobody watched at all, nothing is known.
        share == 0,
    )
    return tuple(rows)


def _accounts(
    table: JobTable,
    labels: list[str],
    used: dict[str, tuple[_Parts, IntArray]],
    ran: _Parts,
    group: IntArray,
    partly: npt.NDArray[np.bool_],
    jobs: IntArray,
    lasting: IntArray,
    watched: FloatArray,
    unseen: npt.NDArray[np.bool_],
) -> list[Account]:
    blind = np.where(unseen, np.nan, 0.0)
    count = len(labels)
    sums = {name: parts.summed(each, count) + blind for name, (parts, each) in used.items()}
    unknown = {
        name: parts.unknown(each, count) for name, (parts, each) in used.items() if name in _LACKS
    }
    parts, places = used["cpu_s"]
    unknown["cpu_s"] |= np.bincount(places[partly[parts.jobs]], minlength=count) > 0
    kept, kept_lack = _kept(table, ran, group, lasting)
    efficient, compared, number_of = _efficient(table, used["cpu_s"], ran, group, count, partly)
    return [
        Account(
            label=label,
            jobs=int(jobs[number]),
            **{name: float(values[number]) for name, values in sums.items()},
            lacking=(
                *_lacking(
                    {name: float(values[number]) for name, values in sums.items()},
                    {name: bool(flags[number]) for name, flags in unknown.items()},
                ),
                *(name for name, flags in kept_lack.items() if flags[number]),
            ),
            efficient_s=float(efficient[number]),
            compared_s=float(compared[number]),
            compared=int(number_of[number]),
            core_s=float(kept[0][number] + (np.nan if watched[number] == 0 else 0.0)),
            gpu_s=float(kept[1][number] + (np.nan if watched[number] == 0 else 0.0)),
            watched=float(watched[number]),
            unknown_duration=int(lasting[number]),
        )
        for number, label in enumerate(labels)
    ]


def _is_partly_counted(table: JobTable, interval_s: float) -> npt.NDArray[np.bool_]:
    """Return of which jobs some CPU time was counted by nobody.

    A group counts what its job used before the first look, a process does not; and what is used
    after the last look is lost.
    """
    ended = table.number("ended")
    late_s = np.nan_to_num(ended - table.total("last_seen"))
    unseen_s = np.nan_to_num(table.elapsed_s - table.total("seen_s"))
    uncounted_s = np.where(table.total("unwatched_cpu_s") > 0, late_s, unseen_s)
    # The ends of a job lie between two looks.
    return (table.total("looks") > 0) & (uncounted_s > max(2 * interval_s, _LEAST_S))


def _efficient(
    table: JobTable,
    cpu: tuple[_Parts, IntArray],
    ran: _Parts,
    group: IntArray,
    count: int,
    partly: npt.NDArray[np.bool_],
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return used and kept CPU time of the jobs of which both are known, and how many those are."""
    parts, of = cpu
    cpus = table.asked("cpus")
    known = (cpus > 0) & ~np.isnan(table.elapsed_s + table.total("cpu_s")) & ~partly
    known &= table.total("looks") > 0
    mine, theirs = known[parts.jobs] & ~np.isnan(parts.amounts), known[ran.jobs]
    used: FloatArray = np.bincount(of[mine], weights=parts.amounts[mine], minlength=count).astype(
        np.float64
    )
    kept = np.bincount(
        group[theirs], weights=(cpus[ran.jobs] * ran.amounts)[theirs], minlength=count
    )
    pairs = np.unique(ran.jobs[theirs] * count + group[theirs])
    return used, np.where(kept > 0, kept, np.nan), np.bincount(pairs % count, minlength=count)


def _kept(
    table: JobTable, ran: _Parts, group: IntArray, unknown: IntArray
) -> tuple[tuple[FloatArray, FloatArray], dict[str, npt.NDArray[np.bool_]]]:
    """Return the CPU and GPU time that was kept, unknown where nobody knows of any job's.

    And which of the two lack a part: Slurm keeps something for every job of its own.
    """
    count = unknown.size
    sums = []
    lack = {}
    slurm = np.array([source == "slurm" for source in table.text("source")], dtype=bool)[ran.jobs]
    for name in ("cpus", "gpus"):
        asked = table.asked(name)[ran.jobs]
        known = ~np.isnan(asked)
        time = np.bincount(group[known], weights=(asked * ran.amounts)[known], minlength=count)
        some = np.bincount(group[known], minlength=count) > 0
        none = (np.bincount(group, minlength=count) == 0) & (unknown == 0)
        sums.append(np.where(some | none, time, np.nan))
        lacks = np.bincount(group[~known & slurm & (ran.amounts > 0)], minlength=count) > 0
        lack["core_s" if name == "cpus" else "gpu_s"] = lacks & some
    return (sums[0], sums[1]), lack


def _is_unknown(table: JobTable) -> IntArray:
    """Return the jobs that were seen, and of which nobody knows how long they ran."""
    return np.flatnonzero(np.isnan(table.elapsed_s) & (table.total("looks") > 0))


def _edges(start: float, end: float, by: str, tz: tzinfo | None) -> tuple[FloatArray, list[str]]:
    """Return the window's ends and where hours or days begin between them, with what each is."""
    first = (start // _QUARTER_S + 1) * _QUARTER_S
    moments = [start, *np.arange(first, end, _QUARTER_S).tolist()]
    edges: list[float] = []
    labels: list[str] = []
    for moment in moments:
        label = _label(moment, by, tz)
        if not labels or label != labels[-1]:
            edges.append(moment)
            labels.append(label)
    return np.array([*edges, end]), labels


def _label(moment: float, by: str, tz: tzinfo | None) -> str:
    at = datetime.fromtimestamp(moment, UTC).astimezone(tz)
    if by == "hour":
        return f"{at.hour:02}"
    return _WEEKDAYS[at.weekday()] if by == "weekday" else f"{at:%Y-%m-%d}"


def _watched(
    gaps: tuple[tuple[str, float, float], ...], edges: FloatArray, hosts: int
) -> FloatArray:
    """Return how much of the time between edges was watched, on average over hosts."""
    length = np.diff(edges)
    missing = np.zeros(length.size)
    for _, first, last in gaps:
        missing += np.maximum(np.minimum(last, edges[1:]) - np.maximum(first, edges[:-1]), 0.0)
    return np.maximum(length - missing / max(hosts, 1), 0.0) if hosts else np.zeros(length.size)
