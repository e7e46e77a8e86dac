"""Why a job runs when it does in a plan of a whole queue, and what more time would be worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lowtide.market.cluster_plan import amount_in_words
from lowtide.market.instance import make_instance
from lowtide.market.prices import Auction, Prices
from lowtide.market.proofs import spread, without_waiting
from lowtide.units import format_duration, format_time

if TYPE_CHECKING:
    from lowtide.market.cluster_plan import ClusterPlan
    from lowtide.market.instance import Instance

_HOUR_S = 3600.0
# A job that comes to more than alone by less than this share does so by rounding.
_SAME = 1e-6
# So many of those that have its room are named.
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What one job comes to in a plan.

    Attributes:
        id: Which job.
        start: When it starts.
        end: When it is done.
        starts: How often it is started.
        amount: What it comes to itself: grams, or money on a price.
        rent: What the room that it takes is worth to others.
        at_once: What it would come to if it ran at once, were it alone.
        alone: The least that it could come to, were it alone.
        wait_s: How much later than at once it is done.
        why: Why it runs when it does, in words.
        hour_worth: What it would save at these prices if its deadline were an hour later.
    """

    id: str
    start: float
    end: float
    starts: int
    amount: float
    rent: float
    at_once: float
    alone: float
    wait_s: float
    why: str
    hour_worth: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A job that comes to more than it would alone, as others have the room.

    Attributes:
        id: Which job.
        alone: When it would start if it were alone.
        start: When it starts.
        more: By how much more it comes to: grams, or money on a price.
        to: Who runs where it would, those that hold most of it first.
    """

    id: str
    alone: float
    start: float
    more: float
    to: tuple[str, ...]


def explain_row(plan: ClusterPlan, row: int) -> Quote:
    """Return what one job of a plan comes to, what it displaces, and why it runs when it does."""
    instance = plan.planned_on
    own, tally = plan.jobs.take(np.array([row])), plan.tally
    alone = _alone(plan, row, priced=False)
    priced = _alone(plan, row, priced=True)
    later = _alone(plan, row, priced=True, later_s=_HOUR_S)
    held = plan.held_by(row)
    rent = float((held * plan.prices.rent).sum())
    wait_s = float(plan.simulation.wait_s[row])
    at_once = _at_once(plan, row)
    amount = float(plan.amounts()[row])
    hour = None if priced is None or later is None else max(priced - later, 0.0)
    quote = Quote(
        id=str(plan.jobs.id[row]),
        start=float(tally.start[row]),
        end=float(tally.end[row]),
        starts=int(tally.starts[row]),
        amount=amount,
        rent=rent,
        at_once=at_once,
        alone=amount if alone is None else alone,
        wait_s=wait_s,
        why="",
        hour_worth=hour,
    )
    return replace(quote, why=_words(plan, row, quote, float(own.slack_s[0]), instance))


def moved_jobs(plan: ClusterPlan, most: int) -> list[Moved]:
    """Return who made room for whom, those first to whom that makes most difference."""
    instance, tally = without_waiting(plan.planned_on), plan.tally
    free = Auction(instance)
    free.price(Prices.nothing(instance))
    amounts = plan.amounts()
    more = amounts - free.cost
    some = np.argsort(-more, kind="stable")[:most]
    some = some[more[some] > _SAME * np.maximum(np.abs(amounts[some]), 1e-9)]
    alone = free.schedules()
    begin, end = plan.simulation.runs
    of, nodes = plan.stretches.job, plan.jobs.nodes
    ends = alone.start + alone.work_s + alone.starting_s(plan.jobs)
    found = []
    for row in some.tolist():
        shared = np.zeros(len(plan))
        for place in np.flatnonzero(alone.job == row).tolist():
            over_s = np.minimum(end, ends[place]) - np.maximum(begin, alone.start[place])
            np.add.at(shared, of, np.maximum(over_s, 0.0) * nodes[of])
        shared[row] = 0.0
        order = np.argsort(-shared, kind="stable")[:_NAMED]
        found.append(
            Moved(
                id=str(plan.jobs.id[row]),
                alone=float(alone.start[alone.job == row].min()),
                start=float(tally.start[row]),
                more=float(more[row]),
                to=tuple(str(plan.jobs.id[each]) for each in order if shared[each] > 0),
            )
        )
    return found


def _alone(plan: ClusterPlan, row: int, *, priced: bool, later_s: float = 0.0) -> float | None:
    """Return the least that a job could count by itself; None where the signal ends too early."""
    instance, one = plan.planned_on, np.array([row])
    own = plan.jobs.take(one).unlinked()
    soonest, due = (each[one] for each in instance.window)
    # Where those that wait for it leave it less time than its deadline, more of that is no use.
    due = np.where(due < own.deadline, due, due + later_s)
    if due[0] > instance.signal.end:
        return None
    # What nodes draw for it is no part of what it comes to itself.
    cluster = instance.cluster if priced else replace(instance.cluster, off_after_s=None)
    small = make_instance(
        replace(own, deadline=own.deadline + later_s),
        cluster,
        instance.signal,
        step_s=instance.step_s,
        wait=instance.wait[row] if priced else 0.0,
        begin=instance.origin,
        until=float(due[0]),
        window=(soonest, due),
        **{**instance.terms, "weight": None},
    )
    # Alone a job shares no node with others, and prices are of what it shares.
    queue = small.queue._replace(need=instance.queue.need[one], keep=instance.queue.keep[one])
    there = np.zeros((len(instance.resources), small.slots))
    small = replace(
        small, queue=queue, resources=instance.resources, capacity=there, room=there, splits=True
    )
    known = spread(plan.prices, small) if priced else Prices.nothing(small)
    auction = Auction(small)
    auction.price(known)
    return float(auction.reduced[0])


def _at_once(plan: ClusterPlan, row: int) -> float:
    """Return what a job would come to that ran at once, were it alone."""
    from lowtide.accounting import Stretches, tally

    own = plan.jobs.take(np.array([row]))
    pue = plan.planned_on.cluster.pue
    ran = tally(own, Stretches.one_each(own, own.arrival), plan.simulation.signal, pue=pue)
    return float(plan.amounts(ran)[0])


def _words(plan: ClusterPlan, row: int, quote: Quote, slack_s: float, instance: Instance) -> str:
    told = amount_in_words(plan)
    late = {each.row: each for each in plan.late}
    if row in late:
        each = late[row]
        return (
            f"It cannot be in time: {each.full:.0%} of the time up to its deadline the machines "
            f"are full with others. It is done {format_duration(each.by_s)} late, as soon as there "
            "is room."
        )
    if slack_s < instance.step_s:
        return "Its deadline leaves no time to wait: it runs at once."
    if quote.wait_s <= instance.step_s / 2:
        return "It runs at once: no later time is so much cleaner that waiting would be worth it."
    parts = [
        f"It waits {format_duration(quote.wait_s)}: at once it would come to "
        f"{told(quote.at_once)}, and now comes to {told(quote.amount)}."
    ]
    if quote.amount > quote.alone * (1 + 1e-6) + 1e-9:
        parts.append(
            f"Alone it could have come to {told(quote.alone)}, but that room is worth more to "
            "others, who can wait less or would emit more elsewhere."
        )
    else:
        parts.append("Nobody keeps it from the cleanest time that it may run in.")
    if quote.rent > 0:
        parts.append(f"The room that it takes is worth {told(quote.rent)} to others.")
    slack = float(plan.jobs.deadline[row]) - quote.end
    if slack < instance.step_s:
        parts.append(
            f"It is done by its deadline, {format_time(float(plan.jobs.deadline[row]))}, "
            "and not before."
        )
    return " ".join(parts)
