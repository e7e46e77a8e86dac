"""Prices of a smaller likeness of a queue, to begin with: fewer jobs, longer slots.

What an hour of a machine is worth is nearly the same for every tenth job on a tenth of the
machines, and takes a tenth of the time to find. A price is no proof by itself: whatever it is, the
bound that it proves is computed with all jobs on their own slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lowtide.market.instance import Instance, make_instance
from lowtide.market.layout import cells_of, link_table
from lowtide.market.prices import Auction, Prices
from lowtide.precedence import Links
from lowtide.signal import FloatArray
from lowtide.workload import IntArray

# A likeness has one job in so many, and no fewer than so many.
_ONE_IN = 8
_LEAST = 1000
# With no more states than this, going through them on their own slots takes no time.
_SMALL = 1e5
# So many passes of prices at most, each time.
_PASSES = 150


def first_prices(instance: Instance, is_over: Callable[[], bool]) -> Prices | None:
    """Return prices to begin with, None where the queue is small enough to begin without.

    Args:
        is_over: Whether time is up.
    """
    likeness = _likeness(instance)
    if likeness is None or is_over():
        return None
    before = first_prices(likeness, is_over)
    auction = Auction(likeness)
    auction.begin_with(before)
    for _ in range(_PASSES):
        if not auction.advance() or is_over():
            break
    return _spread(auction.prices, instance)


def _likeness(instance: Instance) -> Instance | None:
    """Return some of the jobs on a part of the machines, or all of them on longer slots."""
    count = len(instance)
    parts = round(instance.signal.step_s / instance.step_s)
    longer = parts > 1 and not instance.sites and float(cells_of(instance.queue).sum()) > _SMALL
    one_in = 1 if longer else min(_ONE_IN, count // _LEAST)
    if one_in < 2 and not longer:
        return None
    some = _some(instance, one_in)
    small = _on_longer_slots(instance, some) if longer else _of_jobs(instance, some)
    share = _demand(instance, some) / np.maximum(_demand(instance, np.arange(count)), 1e-300)
    kw_share = float(share.max())
    return replace(
        small,
        capacity=small.capacity * share[:, None],
        room=small.room * share[:, None],
        cap_kw=(small.cap_kw[0] * kw_share, small.cap_kw[1] * kw_share),
    )


def _some(instance: Instance, one_in: int) -> IntArray:
    """Return every so many-th job of each size, in the order in which they come."""
    rows = instance.queue.jobs[instance.queue.ways[:-1]]
    size = np.ceil(np.log2(np.maximum(_sizes(instance), 1e-300)))
    order = np.lexsort((rows["first"], size))
    return np.sort(order[one_in // 2 :: one_in])


def _sizes(instance: Instance) -> FloatArray:
    """Return what each job takes of the machines, in its first way."""
    queue = instance.queue
    rows, first = queue.jobs[queue.ways[:-1]], queue.ways[:-1]
    length = queue.parts["at"][rows["end"]] - rows["begin"]
    share = (queue.need[first] / np.maximum(instance.capacity.max(axis=1), 1e-300)).max(axis=1)
    sizes: FloatArray = share * length
    return sizes


def _demand(instance: Instance, some: IntArray) -> FloatArray:
    """Return what some jobs take of each resource, all ways of a job counted alike."""
    queue = instance.queue
    rows = _ways_of(instance, some)
    jobs = queue.jobs[rows]
    length = queue.parts["at"][jobs["end"]] - jobs["begin"]
    demand: FloatArray = (queue.need[rows] * length[:, None]).sum(axis=0)
    return demand


def _ways_of(instance: Instance, some: IntArray) -> IntArray:
    chosen = np.zeros(len(instance), dtype=np.bool_)
    chosen[some] = True
    return np.flatnonzero(chosen[instance.job_of])


def _of_jobs(instance: Instance, some: IntArray) -> Instance:
    """Return an instance of some of the jobs, as if none waited for another."""
    queue, rows = instance.queue, _ways_of(instance, some)
    jobs = queue.jobs[rows]
    sizes = jobs["end"] - jobs["part"] + 1
    part = np.cumsum(sizes) - sizes
    parts = queue.parts[np.repeat(jobs["part"] - part, sizes) + np.arange(sizes.sum())]
    jobs["part"], jobs["end"] = part, part + sizes - 1
    ways = np.append(0, np.cumsum(np.diff(queue.ways)[some]))
    none = np.zeros(0, dtype=np.int64)
    links, linked = link_table(none, none, np.zeros(0), some.size)
    return replace(
        instance,
        queue=queue._replace(
            jobs=jobs,
            parts=parts,
            need=np.ascontiguousarray(queue.need[rows]),
            keep=np.ascontiguousarray(queue.keep[rows]),
            ways=ways,
            links=links,
            linked=linked,
            by_first=np.argsort(jobs["first"][ways[:-1]], kind="stable"),
        ),
        links=Links(none, none, np.zeros(0), np.zeros(some.size, dtype=np.int64)),
    )


def _on_longer_slots(instance: Instance, some: IntArray) -> Instance:
    """Return an instance of some of the jobs on slots as long as the signal's steps."""
    begin, due = instance.window
    weight = instance.terms["weight"]
    terms = {name: instance.terms[name] for name in ("power_cap", "keeps")}
    return make_instance(
        instance.jobs.take(some).unlinked(),
        instance.cluster,
        instance.signal,
        step_s=instance.signal.step_s,
        wait=instance.wait[some],
        weight=None if weight is None else weight[some],
        begin=instance.origin,
        until=min(float(instance.edges[-1]), instance.signal.end),
        window=(begin[some], due[some]),
        **terms,
    )


def _spread(prices: Prices, instance: Instance) -> Prices:
    """Return prices of longer slots on those of an instance; others are as they are."""
    # Which of the longer slots each slot begins in.
    before = prices.rent.shape[-1]
    if before == instance.slots:
        return Prices(rent=prices.rent, power=prices.power)
    parts = round(instance.signal.step_s / instance.step_s)
    first = round((instance.origin - instance.signal.start) / instance.step_s) % parts
    of = np.minimum((np.arange(instance.slots) + first) // parts, before - 1)
    return Prices(rent=prices.rent[:, of] / parts, power=prices.power[..., of] / parts)
