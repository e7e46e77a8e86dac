"""Everything that is known of a job once it has run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.errors import LowtideError
from lowtide.hindsight.behaviour import behaviour_of
from lowtide.hindsight.phases import phases_of
from lowtide.hindsight.waiting import (
    WAITS_S,
    Waiting,
    arrival_within,
    plan_waiting,
    watched_signal,
)
from lowtide.learning.learned import Learned
from lowtide.monitor.verdicts import Behaviour, Verdict, judge
from lowtide.signal import Signal
from lowtide.store import JobRecord, Series, Store
from lowtide.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hindsight:
    """A job, looked back at.

    Attributes:
        record: The job.
        series: What it used over time.
        behaviour: What it had and used.
        verdicts: What that says about it.
        learned: Its phases; None where they cannot be told.
        signal: The grid that waiting is planned on; None where there is none.
        arrival: When it is taken to have come, epoch seconds; NaN without a signal.
        waiting: What waiting would have come to.
        notes: What could not be told, and why.
    """

    record: JobRecord
    series: Series
    behaviour: Behaviour
    verdicts: tuple[Verdict, ...]
    learned: Learned | None
    signal: Signal | None
    arrival: float
    waiting: tuple[Waiting, ...]
    notes: tuple[str, ...]


def look_back(
    store: Store,
    record: JobRecord,
    *,
    signal: Signal | None = None,
    waits_s: Sequence[float] = WAITS_S,
    interruptible: str = "never",
) -> Hindsight:
    """Look back at a job.

    Args:
        store: Where it was kept.
        record: The job.
        signal: What a kWh emits or costs, to plan on; by default what the watcher knew.
        waits_s: How long it might have waited.
        interruptible: Whether it might have been stopped meanwhile.
    """
    series = store.series(record)
    begin = float(series.starts[0]) if len(series) else record.first_seen
    end = float(series.times[-1]) if len(series) else record.last_seen
    watched = {host.name for host in store.hosts()}
    nodes = [
        store.node_series(host, start=begin, end=end) for host in record.hosts if host in watched
    ]
    behaviour = behaviour_of(record, series, nodes)
    notes: list[str] = []
    learned = None
    try:
        learned = phases_of(record, series)
    except LowtideError as error:
        notes.append(f"No phases: {error}.")
    if signal is None and learned is not None and record.host in watched:
        # What waiting would have saved depends on what came after the job, too.
        signal = watched_signal(store.node_series(record.host, start=begin), start=begin)
    waiting: tuple[Waiting, ...] = ()
    arrival = math.nan
    if learned is None:
        notes.append("Without phases there is nothing to plan: what waiting saves is unknown.")
    elif signal is None:
        notes.append("No grid is known: name one with --signal to see what waiting saves.")
    else:
        try:
            arrival, note = arrival_within(signal, begin, learned.profile)
            notes += [note] * bool(note)
            waiting = plan_waiting(
                learned.profile,
                signal,
                arrival=arrival,
                waits_s=waits_s,
                interruptible=interruptible,
            )
        except LowtideError as error:
            notes.append(f"Waiting cannot be planned: {error}.")
        reached = {each.wait_s for each in waiting}
        short = [format_duration(each) for each in waits_s if each not in reached]
        if short and not math.isnan(arrival):
            notes.append(f"The signal ends too early for waits of {', '.join(short)}.")
    return Hindsight(
        record=record,
        series=series,
        behaviour=behaviour,
        verdicts=judge(behaviour),
        learned=learned,
        signal=signal,
        arrival=arrival,
        waiting=waiting,
        notes=tuple(notes),
    )
