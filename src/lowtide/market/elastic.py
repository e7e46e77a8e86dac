"""Jobs that change their width by the hour: more nodes in clean hours, fewer or none in others.

How many times as fast a job is at how many times its nodes is told by a curve (throughput over
width, as CarbonScaler has it). Where each further node helps less than the one before, what is best
for a job at given prices is found by taking the cheapest work first, of whichever hour and
whichever node; that is exact, so that prices prove a bound as they do for all other jobs. A job is
then carried out as its layers: the nodes that it has first, those that it has next, and so on, each
running when that layer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.market.instance import Instance
from lowtide.market.joining import widened
from lowtide.market.prices import Auction, Prices
from lowtide.signal import FloatArray
from lowtide.workload import IntArray, Workload

_ANYWHERE = INTERRUPTIBLE.index("anywhere")
_NEAR = 1e-9
# How much the newest counts in the mean of what layers do, and so many passes of prices.
_NEWEST = 0.04
_PASSES = 400


class Layer(NamedTuple):
    """Nodes that a job has beside those of the layers below: all as shares of its own.

    Attributes:
        width: How many.
        gain: How much faster it is with them.
    """

    width: float
    gain: float


def layers_of(elastic: Mapping[float, float]) -> tuple[Layer, ...]:
    """Return the layers of a curve, and refuse one in which a further node helps more.

    >>> layers_of({2: 1.9, 4: 3.1})[2]
    Layer(width=2.0, gain=1.2000000000000002)
    """
    known = {0.0: 0.0, **widened(elastic)}
    made = [Layer(b - a, known[b] - known[a]) for a, b in pairwise(sorted(known))]
    for number, (below, above) in enumerate(pairwise(made), start=1):
        if above.gain / above.width > below.gain / below.width + _NEAR:
            width = sorted(known)[number + 1]
            more, less = above.gain / above.width, below.gain / below.width
            raise InvalidInput(
                f"elastic: up to {width:g} times its nodes a job gains {more:g} for each, more "
                f"than the {less:g} before: by the hour each further node helps less than the one "
                "before (leave that width out, or choose one width for each job)"
            )
    return tuple(each for each in made if each.gain > 0)


def changes_width(jobs: Workload) -> Any:
    """Return which jobs can change their width by the hour.

    Those that may be stopped anywhere at no cost, at constant power, and wait for nobody.
    """
    plain = [
        each.startup_s + each.restart_s + each.stop_s + each.suspended_power_w == 0
        and len({phase.power_w for phase in each.work}) == 1
        for each in jobs.profiles
    ]
    good = np.array([*plain, True])[jobs.profile] & (jobs.interruptible == _ANYWHERE)
    good &= (jobs.max_starts == 0) & (jobs.min_run_s == 0)
    waits = np.array([each is not None for each in jobs.after])
    named = {name for each in jobs.after if each is not None for name in each}
    return good & ~waits & ~np.isin(jobs.id.astype(str), list(named))


@dataclass(eq=False)
class Widening:
    """Jobs of an instance that change their width, as arrays with a row for each.

    Attributes:
        instance: Whose jobs they are; there each has its own width.
        rows: Which of its jobs.
        rows_beside: The others.
        layers: What each further node gains.
        has: Which layers each job can have: its nodes come whole.
        slot: The slots that each may run in, the last again and again where it has fewer.
        share: How much of each of them it may run in.
        work: How much work each is, in slots at its own width.
        mean: How much of it each layer does, in the mean of what was best at the last prices.
    """

    instance: Instance
    rows: IntArray
    rows_beside: IntArray
    layers: tuple[Layer, ...]
    has: Any
    slot: IntArray
    share: FloatArray
    work: FloatArray
    mean: FloatArray | None = None

    @classmethod
    def of(cls, instance: Instance, layers: tuple[Layer, ...]) -> Widening:
        """Return those of an instance's jobs that can, for layers."""
        jobs, step_s = instance.jobs, instance.step_s
        width = np.cumsum([each.width for each in layers])
        nodes = jobs.nodes[:, None] * width
        whole = np.abs(nodes - np.round(nodes)) < _NEAR
        # Whoever cannot have all widths up to its own in whole nodes keeps that.
        some = changes_width(jobs) & whole[:, width <= 1.0 + _NEAR].all(axis=1)
        rows = np.flatnonzero(some)
        whole = whole[rows]
        fits = np.stack(
            [instance.cluster.fitting(_wide(jobs.take(rows), w)) for w in width], axis=1
        )
        # A layer is there where all below it are.
        has = np.cumprod(whole & fits, axis=1).astype(np.bool_)
        soonest, due = (each[rows] for each in instance.window)
        first = np.floor((soonest - instance.origin) / step_s + _NEAR).astype(np.int64)
        last = np.ceil((due - instance.origin) / step_s - _NEAR).astype(np.int64)
        count = int((last - first).max(initial=1))
        slot = np.minimum(first[:, None] + np.arange(count), last[:, None] - 1)
        begin = np.maximum(instance.edges[slot], soonest[:, None])
        end = np.minimum(instance.edges[slot + 1], due[:, None])
        share = (end - begin) / step_s * (first[:, None] + np.arange(count) < last[:, None])
        work = jobs.work_s[rows] / step_s
        beside = np.flatnonzero(~some)
        return cls(instance, rows, beside, layers, has, slot, share, work)

    def _rates(self, prices: Prices, *, priced: bool = True) -> FloatArray:
        """Return what a slot of each job at its own width counts in each of its slots."""
        instance, queue = self.instance, self.instance.queue
        energy = np.diff(instance.energy)[: instance.slots]
        if priced:
            energy = energy + prices.power
        kw, need = queue.jobs["peak_kw"][self.rows], queue.need[self.rows]
        rates = kw[:, None] * energy[self.slot]
        if priced:
            for m in range(need.shape[1]):
                rates += need[:, m, None] * prices.rent[m][self.slot]
        return rates

    def least(self, prices: Prices, notes: FloatArray) -> float:
        """Return the least that all count at prices, and note what they draw and hold then."""
        done, total = self._cheapest(self._rates(prices))
        leave = self.instance.queue.jobs["leave"][self.rows]
        out = total > leave
        total = np.where(out, leave, total)
        done[out] = 0.0
        gain = np.array([each.gain for each in self.layers])
        width = np.array([each.width for each in self.layers])
        wide = (done / gain * width).sum(axis=2)
        by_layer = done.sum(axis=1)
        self.mean = by_layer if self.mean is None else self.mean + _NEWEST * (by_layer - self.mean)
        queue, slots = self.instance.queue, self.instance.slots
        amounts = np.column_stack((queue.jobs["peak_kw"][self.rows], queue.need[self.rows]))
        for m, amount in enumerate(amounts.T):
            held = np.bincount(
                self.slot.ravel(), weights=(amount[:, None] * wide).ravel(), minlength=slots
            )
            notes[m, : slots + 1] += np.diff(held, prepend=0.0, append=0.0)
        return float(total.sum())

    def _cheapest(self, rates: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return how much work each job does in each slot and layer, the cheapest first."""
        gain = np.array([each.gain for each in self.layers])
        dear = np.array([each.width for each in self.layers]) / gain
        # Said in full: of no jobs at all, the rest of a shape cannot be found.
        shape = (self.rows.size, rates.shape[1] * gain.size)
        each_costs = (rates[:, :, None] * dear).reshape(shape)
        most = (self.share[:, :, None] * self.has[:, None, :] * gain).reshape(shape)
        order = np.argsort(each_costs, axis=1, kind="stable")
        sorted_most = np.take_along_axis(most, order, axis=1)
        before = np.cumsum(sorted_most, axis=1) - sorted_most
        taken = np.clip(self.work[:, None] - before, 0.0, sorted_most)
        done = np.empty_like(taken)
        np.put_along_axis(done, order, taken, axis=1)
        total = (done * each_costs).sum(axis=1)
        return done.reshape(*rates.shape, gain.size), total

    def bound(self, prices: Prices) -> float:
        """Return the least that all count at prices once more: by the price of their work.

        No price of work makes a job worth less than that; the best of all prices proves it.
        """
        total = 0.0
        for place, row in enumerate(self.rows.tolist()):
            use = [
                (float(share), layer.gain, layer.width)
                for share in self.share[place]
                for layer, has in zip(self.layers, self.has[place], strict=True)
                if has
            ]
            rate = np.repeat(self._rates_of(place, prices), int(self.has[place].sum()))
            share, gain, width = np.array(use).T
            costs = rate * width
            worths = np.append(costs / gain, 0.0)
            least = self.work[place] * worths - (
                share * np.maximum(worths[:, None] * gain - costs, 0.0)
            ).sum(axis=1)
            total += min(float(least.max()), float(self.instance.queue.jobs["leave"][row]))
        return total

    def _rates_of(self, place: int, prices: Prices) -> FloatArray:
        row = self.rows[place]
        slots, queue = self.slot[place], self.instance.queue
        energy = np.diff(self.instance.energy)[slots] + prices.power[slots]
        rates: FloatArray = float(queue.jobs["peak_kw"][row]) * energy
        rates += queue.need[row] @ prices.rent[:, slots]
        return rates


def _wide(jobs: Workload, width: float) -> Workload:
    """Return jobs so many times as wide."""
    return replace(
        jobs.unlinked(),
        nodes=np.maximum(np.round(jobs.nodes * width), 1.0),
        cpus=jobs.cpus * width,
        gpus=jobs.gpus * width,
        memory_bytes=jobs.memory_bytes * width,
        power=jobs.power * width,
    )


def find_prices(
    instance: Instance, layers: tuple[Layer, ...], is_over: Callable[[], bool]
) -> tuple[Auction, Widening]:
    """Return prices of an instance some of whose jobs change their width, and what they prove."""
    widening = Widening.of(instance, layers)
    auction = Auction(instance, others=widening)
    for _ in range(_PASSES):
        if not auction.advance() or is_over():
            break
    return auction, widening


def as_layers(widening: Widening) -> tuple[Workload, IntArray]:
    """Return a queue in which each layer of a job is one, and which job each of them is.

    What a layer does is what prices say; in whole slots, so that none is held for a part of one,
    but for what is left, which the lowest layer does that has time for it.
    """
    jobs, step_s = widening.instance.jobs, widening.instance.step_s
    gain = np.array([each.gain for each in widening.layers])
    most = widening.share.sum(axis=1)[:, None] * widening.has
    assert widening.mean is not None  # noqa: S101 - prices were tried
    slots = np.minimum(np.floor(widening.mean / gain + 0.5), np.floor(most + _NEAR))
    # From the dearest layer down: no more than all of the work, and what is left.
    for place in range(widening.rows.size):
        left = widening.work[place] - float(slots[place] @ gain)
        for number in reversed(range(gain.size)):
            if left < -_NEAR and slots[place, number] > 0:
                fewer = min(slots[place, number], -left / gain[number])
                slots[place, number] -= fewer
                left += fewer * gain[number]
        for number in range(gain.size):
            more = min(max(left, 0.0) / gain[number], most[place, number] - slots[place, number])
            slots[place, number] += more
            left -= more * gain[number]
    which, layer_of = np.nonzero(slots * step_s > TIME_TOLERANCE_S)
    of = np.concatenate((widening.rows[which], widening.rows_beside))
    beside = widening.rows_beside.size
    wide = np.array([each.width for each in widening.layers])[layer_of]
    wide = np.concatenate((wide, np.ones(beside)))
    flat = np.arange(of.size) < which.size
    work_s = np.concatenate((slots[which, layer_of] * step_s, jobs.work_s[widening.rows_beside]))
    names = [
        f"{jobs.id[row]}/{layer}" if layer else str(jobs.id[row])
        for row, layer in zip(of.tolist(), [*layer_of.tolist(), *[0] * beside], strict=True)
    ]

    def column(name: str) -> Any:
        return getattr(jobs, name)[of]

    made = Workload(
        id=np.array(names, dtype=object),
        arrival=column("arrival"),
        deadline=column("deadline"),
        work_s=work_s,
        power=np.where(flat, jobs.peak_w[of] * wide, column("power")),
        profile=np.where(flat, -1, column("profile")),
        profiles=jobs.profiles,
        interruptible=column("interruptible"),
        min_run_s=np.where(flat, 0.0, column("min_run_s")),
        max_starts=column("max_starts"),
        cpus=column("cpus") * wide,
        gpus=column("gpus") * wide,
        nodes=np.round(column("nodes") * wide),
        memory_bytes=column("memory_bytes") * wide,
        user=column("user"),
        after=[None if flat[each] else jobs.after[row] for each, row in enumerate(of.tolist())],
        think_s=np.where(flat, 0.0, column("think_s")),
    )
    # A workload is ordered by arrivals.
    return made, of[np.argsort(jobs.arrival[of], kind="stable")]
