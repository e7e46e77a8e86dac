"""Everything that is known of a job once it has run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.errors import LowtideError
from lowtide.hindsight.behaviour import behaviour_of, mean_of
from lowtide.hindsight.phases import JobPhases, look_for_phases
from lowtide.hindsight.waiting import (
    WAITS_S,
    KnownGrid,
    Waiting,
    arrival_within,
    known_grid,
    plan_waiting,
)
from lowtide.monitor.verdicts import Behaviour, Verdict, judge
from lowtide.signal import Signal
from lowtide.store import JobRecord, Series, Store
from lowtide.store.layout import NODE
from lowtide.units import format_duration, format_time

# Says the intensity between two moments, for a time that the watcher did not know.
Beyond = Callable[[float, float], Signal]
_NAME_ONE = (
    "name it with --grid (gb, electricitymaps:DE, a synthetic one such as windy) or --signal FILE"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hindsight:
    """A job, looked back at.

    Attributes:
        record: The job.
        series: What it used over time.
        behaviour: What it had and used.
        verdicts: What that says about it.
        phases: Its phases; None where they cannot be told.
        begin: When what is known of it begins, epoch seconds.
        pue: What the building drew for each watt of the node's; NaN where nobody said.
        signal: The grid that waiting is planned on; None where there is none.
        arrival: When it is taken to have come, epoch seconds; NaN without a signal.
        at_once: What running then comes to, in grams or money; NaN where it cannot be told.
        waiting: What waiting would have come to.
        notes: What could not be told, and why.
    """

    record: JobRecord
    series: Series
    behaviour: Behaviour
    verdicts: tuple[Verdict, ...]
    phases: JobPhases | None
    begin: float
    pue: float
    signal: Signal | None
    arrival: float
    at_once: float
    waiting: tuple[Waiting, ...]
    notes: tuple[str, ...]


def look_back(
    store: Store,
    record: JobRecord,
    *,
    signal: Signal | None = None,
    beyond: Beyond | None = None,
    waits_s: Sequence[float] = WAITS_S,
    interruptible: str = "never",
) -> Hindsight:
    """Look back at a job.

    Args:
        signal: What a kWh emits or costs, to plan on; by default what the watcher knew.
    """
    series = store.series(record)
    begin = float(series.starts[0]) if len(series) else record.first_seen
    end = float(series.times[-1]) if len(series) else record.last_seen
    watched = {host.name for host in store.hosts()}
    nodes = list(
        store.many_node_series(
            [host for host in record.hosts if host in watched], start=begin, end=end
        )
    )
    behaviour = behaviour_of(record, series, nodes)
    # It is kept to four digits or so, and told to two or three.
    pue = round(mean_of(nodes[0], "pue"), 3) if nodes else math.nan
    notes: list[str] = []
    phases = None
    try:
        phases = look_for_phases(record, series, store.phases(record))
        notes += [phases.note] * bool(phases.note)
    except LowtideError as error:
        notes.append(f"No phases: {error}.")
    arrival = at_once = math.nan
    waiting: tuple[Waiting, ...] = ()
    if phases is None:
        notes.append("Without phases there is nothing to plan: what waiting saves is unknown.")
    else:
        run_s = phases.profile.run_s
        missing = "The signal ends"
        try:
            if signal is None:
                # What waiting would have saved depends on what came after the job, too.
                node = (
                    store.node_series(record.host, start=begin)
                    if record.host in watched
                    else Series.nothing(NODE.names)
                )
                known = known_grid(
                    node, start=begin, end=begin + run_s + max(waits_s), beyond=beyond
                )
                signal = known.signal
                notes += _told_of(known, run_s, begin, beyond)
                missing = "What is known of the grid ends"
            if signal is not None:
                arrival, note = arrival_within(signal, begin, phases.profile)
                notes += [note] * bool(note)
                # To begin at once is to wait for no time.
                now, *waiting_for = plan_waiting(
                    phases.profile,
                    signal,
                    arrival=arrival,
                    waits_s=(0.0, *(each for each in waits_s if each > 0)),
                    interruptible=interruptible,
                    pue=1.0 if math.isnan(pue) else pue,
                )
                at_once, waiting = now.plan.baseline.amount, tuple(waiting_for)
                notes += _too_early(signal, arrival + run_s, waits_s, missing)
                if math.isnan(pue):
                    notes.append("Nobody said what the building draws: PUE is taken to be 1.")
        except LowtideError as error:
            notes.append(f"Waiting cannot be planned: {error}.")
    return Hindsight(
        record=record,
        series=series,
        behaviour=behaviour,
        verdicts=judge(behaviour),
        phases=phases,
        begin=begin,
        pue=pue,
        signal=signal,
        arrival=arrival,
        at_once=at_once,
        waiting=waiting,
        notes=tuple(notes),
    )


def _told_of(known: KnownGrid, run_s: float, begin: float, beyond: Beyond | None) -> list[str]:
    """Return what a reader has to know of where the grid comes from."""
    if known.signal is None and beyond is None:
        return [f"The grid was not known while it ran: {_NAME_ONE} to see what waiting saves."]
    if known.signal is None:
        return ["The grid that was named says nothing of the time in which it began."]
    until = format_time(known.watched_until)
    if beyond is not None and begin < known.watched_until < known.signal.end:
        return [f"Up to {until} the grid is what the watcher knew, from then on the one named."]
    if beyond is None and known.signal.end < begin + run_s:
        return [f"The grid was known up to {until} only, not to the job's end: {_NAME_ONE}."]
    return []


def _too_early(signal: Signal, done: float, waits_s: Sequence[float], what: str) -> list[str]:
    """Return which waits cannot be planned, and what they lack."""
    short = sorted({wait_s for wait_s in waits_s if not signal.covers(signal.start, done + wait_s)})
    if not short:
        return []
    listed = ", ".join(map(format_duration, short))
    return [
        f"{what} {format_time(signal.end)}, too early for waits of {listed}, which need it up to "
        f"{format_time(done + short[-1])}" + (f": {_NAME_ONE}." if what.startswith("What") else ".")
    ]
