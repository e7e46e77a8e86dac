"""Jobs that change their width by the hour: more nodes in clean hours, fewer or none in others.

How many times as fast a job is at how many times its nodes is told by a curve (throughput over
width, as CarbonScaler has it). Where each further node helps less than the one before, what is best
for a job at given prices is found by taking the cheapest work first, of whichever hour and
whichever node; that is exact, so that prices prove a bound as they do for all other jobs. A job is
then carried out as its layers: the nodes that it has first, those that it has next, and so on, each
running when that layer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lowtide.errors import Infeasible, InvalidInput
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S
from lowtide.market.instance import Instance
from lowtide.market.joining import widened
from lowtide.market.placing import Board, urgency
from lowtide.market.prices import Auction, Prices
from lowtide.precedence import in_order
from lowtide.signal import FloatArray
from lowtide.units import format_count, format_hours
from lowtide.workload import IntArray, Workload

_ANYWHERE = INTERRUPTIBLE.index("anywhere")
_NEAR = 1e-9
# So many passes of prices, a plan after every so many, and rounds of placing all anew.
_PASSES, _EVERY, _ROUNDS = 300, 25, 120


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
                f"elastic: up to {width:g} times its nodes a job gains {more:g} for each, more than "
                f"the {less:g} before: by the hour each further node helps less than the one before "
                "(leave that width out, or choose one width for each job)"
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


@dataclass(frozen=True, eq=False)
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
        begin: From when.
        work: How much work each is, in slots at its own width.
    """

    instance: Instance
    rows: IntArray
    rows_beside: IntArray
    layers: tuple[Layer, ...]
    has: Any
    slot: IntArray
    share: FloatArray
    begin: FloatArray
    work: FloatArray

    @classmethod
    def of(cls, instance: Instance, layers: tuple[Layer, ...]) -> Widening:
        """Return those of an instance's jobs that can, for layers."""
        jobs, step_s = instance.jobs, instance.step_s
        some = changes_width(jobs)
        rows = np.flatnonzero(some)
        width = np.cumsum([each.width for each in layers])
        nodes = jobs.nodes[rows, None] * width
        whole = np.abs(nodes - np.round(nodes)) < _NEAR
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
        reach = (share[:, :, None] * has[:, None, :] * [each.gain for each in layers]).sum((1, 2))
        narrow = reach < work - TIME_TOLERANCE_S / step_s
        if narrow.any():
            row = int(rows[np.argmax(narrow)])
            raise InvalidInput(
                f"job {jobs.id[row]} (row {row + 1}) can have none of these widths up to its own "
                "in whole nodes, and would be late: give it widths that make whole nodes"
            )
        beside = np.flatnonzero(~some)
        return cls(instance, rows, beside, layers, has, slot, share, begin, work)

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
        count = self.rows.size
        each_costs = (rates[:, :, None] * dear).reshape(count, -1)
        most = (self.share[:, :, None] * self.has[:, None, :] * gain).reshape(count, -1)
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

    def insert(self, place: int, rates: FloatArray, board: Board) -> FloatArray | None:
        """Give a job room at rates, and return what it does in each slot and layer; None for none.

        Args:
            rates: What a slot of it at its own width counts in each of its slots.
        """
        row, slots = self.rows[place], self.slot[place]
        queue, room = self.instance.queue, board.room
        need, kw = queue.need[row], float(queue.jobs["peak_kw"][row])
        widths = np.cumsum([each.width for each in self.layers])
        gain = np.array([each.gain for each in self.layers])
        some = need > 0
        wide = (room.free[some][:, slots] / need[some, None]).min(axis=0)
        if kw > 0:
            wide = np.minimum(wide, room.kw[0, slots] / kw)
        allowed = (widths <= wide[:, None] + _NEAR) & self.has[place]
        most = (self.share[place][:, None] * allowed * gain).ravel()
        costs = (rates[:, None] * (np.diff(widths, prepend=0.0) / gain)).ravel()
        order = np.argsort(costs, kind="stable")
        before = np.cumsum(most[order]) - most[order]
        done = np.zeros(most.size)
        done[order] = np.clip(self.work[place] - before, 0.0, most[order])
        if done.sum() < self.work[place] - 1e-7:
            return None
        made: FloatArray = done.reshape(slots.size, gain.size)
        self.occupy(place, made, board, 1.0)
        return made

    def occupy(self, place: int, done: FloatArray, board: Board, sign: float) -> None:
        """Take what a job holds, or give it back (sign -1): a slot that it touches is held."""
        row, queue = self.rows[place], self.instance.queue
        width = np.array([each.width for each in self.layers])
        wide = sign * ((done > _NEAR) * width).sum(axis=1)
        np.subtract.at(board.room.free.T, self.slot[place], wide[:, None] * queue.need[row])
        np.subtract.at(board.room.kw[0], self.slot[place], wide * queue.jobs["peak_kw"][row])


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


@dataclass(frozen=True, eq=False)
class Widths:
    """A plan of a queue some of whose jobs change their width.

    Attributes:
        widening: Those that do.
        board: Who of the others runs when.
        done: How much work each of those does in each of its slots and layers.
        amount: What all count.
        auction: The prices and what they prove.
        stopped: What ended the search: `gap`, `effort` or `seconds`.
    """

    widening: Widening
    board: Board
    done: list[FloatArray]
    amount: float
    auction: Auction
    stopped: str


def solve_widths(
    instance: Instance,
    layers: tuple[Layer, ...],
    *,
    gap: float,
    effort: float,
    is_over: Callable[[], bool],
    seed: int,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> Widths:
    """Plan an instance some of whose jobs change their width.

    Args:
        gap: How near to the bound is near enough.
        effort: How long to search, 1 for as long as usual; counted in rounds.
        is_over: Whether time is up.
    """
    widening = Widening.of(instance, layers)
    auction = Auction(instance, others=widening)
    key, push = np.log(urgency(instance)), np.zeros(len(instance))
    best: Widths | None = None
    rng = np.random.default_rng(seed)
    alone = np.zeros(len(instance))

    def tried() -> Widths | None:
        order = in_order(key - push, instance.links)
        return _placed(widening, auction, order, alone)

    def is_enough() -> bool:
        return best is not None and best.amount - auction.bound <= gap * abs(best.amount)

    rounds = max(round(_ROUNDS * effort), 1)
    for number in range(1, _PASSES + 1):
        going = auction.advance(np.inf if best is None else best.amount)
        if number % _EVERY == 0 or not going or is_over():
            doing("prices", number / _PASSES)
            best = _better(best, tried())
        if is_enough() or is_over() or not going:
            break
    for number in range(rounds):
        if is_enough() or is_over():
            break
        doing("placing", number / rounds)
        # Those that got a bad deal come sooner the next time.
        push *= 0.9
        push += 2.0 * alone * rng.random(len(instance))
        best = _better(best, tried())
    if best is None:
        raise _infeasible(instance, alone)
    stopped = "gap" if is_enough() else "seconds" if is_over() else "effort"
    return Widths(widening, best.board, best.done, best.amount, auction, stopped)


def _better(one: Widths | None, other: Widths | None) -> Widths | None:
    if one is None or other is None:
        return other if one is None else one
    return other if other.amount < one.amount else one


def _placed(
    widening: Widening, auction: Auction, order: IntArray, worse: FloatArray
) -> Widths | None:
    """Place all jobs in an order; None where some found no room in time.

    Args:
        worse: Told how bad a deal each got.
    """
    instance, prices = widening.instance, auction.prices
    board, tariff = Board.empty(instance), prices.tariff(instance)
    place_of = np.full(len(instance), -1)
    place_of[widening.rows] = np.arange(widening.rows.size)
    rates, plain = widening._rates(prices), widening._rates(prices, priced=False)
    dear = np.array([each.width / each.gain for each in widening.layers])
    least = widening._cheapest(plain)[1]
    done: list[FloatArray] = [np.zeros(0)] * widening.rows.size
    amount, missing = 0.0, False
    worse[:] = 0.0
    # The kernel places what lies between two jobs that change their width at one go.
    stops = np.flatnonzero(place_of[order] >= 0)
    for first, last in pairwise([-1, *stops.tolist(), order.size]):
        if last > first + 1:
            board.insert(order[first + 1 : last], tariff)
        if last == order.size:
            break
        place = int(place_of[order[last]])
        made = widening.insert(place, rates[place], board)
        if made is None:
            worse[order[last]], missing = 5.0, True
            continue
        done[place] = made
        cost = float((made * plain[place][:, None] * dear).sum())
        worse[order[last]] = max(cost - least[place], 0.0) / max(least[place], _NEAR)
        amount += cost
    beside = widening.rows_beside
    out = beside[~board.placed[beside]]
    worse[out] = 5.0
    if missing or out.size:
        return None
    amount += float(board.cost[beside].sum())
    return Widths(widening, board, done, amount, auction, "effort")


def _infeasible(instance: Instance, worse: FloatArray) -> Infeasible:
    rows = np.flatnonzero(worse >= 5.0)
    named = ", ".join(str(instance.jobs.id[row]) for row in rows[:3])
    need = float((instance.jobs.run_s * instance.jobs.nodes)[rows].sum())
    return Infeasible(
        f"no plan was found in which all are in time: {format_count(rows.size, 'job')} ({named}"
        f"{', ...' if rows.size > 3 else ''}) of {format_hours(need)} on a node found no room: "
        "plan each job at one width, which tells who is late and how many must be, or take more nodes",
        None,
    )


def as_layers(found: Widths) -> tuple[Workload, dict[str, Any], IntArray]:
    """Return a plan as jobs that the simulator can carry out.

    Returns:
        The jobs, of which each layer is one; how each runs, as `Stretches` takes it; and which job
        of the queue each is.
    """
    widening, jobs = found.widening, found.widening.instance.jobs
    step_s = widening.instance.step_s
    rows: list[int] = []
    widths: list[float] = []
    runs: list[list[tuple[float, float]]] = []
    for place, row in enumerate(widening.rows.tolist()):
        for number, layer in enumerate(widening.layers):
            done = found.done[place][:, number] / layer.gain * step_s
            own: list[tuple[float, float]] = []
            for at in np.flatnonzero(done > TIME_TOLERANCE_S).tolist():
                begin, lasts = float(widening.begin[place, at]), float(done[at])
                if own and abs(sum(own[-1]) - begin) < TIME_TOLERANCE_S:
                    own[-1] = (own[-1][0], own[-1][1] + lasts)
                else:
                    own.append((begin, lasts))
            if own:
                rows.append(row)
                widths.append(layer.width)
                runs.append(own)
    return _as_jobs(jobs, widening, found, rows, np.array(widths), runs)


def _as_jobs(
    jobs: Workload,
    widening: Widening,
    found: Widths,
    rows: list[int],
    widths: FloatArray,
    runs: Sequence[list[tuple[float, float]]],
) -> tuple[Workload, dict[str, Any], IntArray]:
    of = np.array(rows, dtype=np.int64)
    number = np.zeros(of.size, dtype=np.int64)
    for place in range(1, of.size):
        number[place] = number[place - 1] + 1 if of[place] == of[place - 1] else 0
    beside = widening.rows_beside
    every = np.concatenate((of, beside))
    wide = np.concatenate((widths, np.ones(beside.size)))
    work_s = np.concatenate(([sum(each[1] for each in own) for own in runs], jobs.work_s[beside]))
    flat = np.arange(every.size) < of.size
    names = [
        f"{jobs.id[row]}/{n}" if n else str(jobs.id[row]) for row, n in zip(of, number, strict=True)
    ]
    order = np.argsort(jobs.arrival[every], kind="stable")

    def column(name: str) -> Any:
        return getattr(jobs, name)[every]

    made = Workload(
        id=np.array([*names, *(str(each) for each in jobs.id[beside])], dtype=object)[order],
        arrival=column("arrival")[order],
        deadline=column("deadline")[order],
        work_s=work_s[order],
        power=np.where(flat, jobs.peak_w[every] * wide, column("power"))[order],
        profile=np.where(flat, -1, column("profile"))[order],
        profiles=jobs.profiles,
        interruptible=column("interruptible")[order],
        min_run_s=np.where(flat, 0.0, column("min_run_s"))[order],
        max_starts=column("max_starts")[order],
        cpus=(column("cpus") * wide)[order],
        gpus=(column("gpus") * wide)[order],
        nodes=np.round(column("nodes") * wide)[order],
        memory_bytes=(column("memory_bytes") * wide)[order],
        user=column("user")[order],
        after=[None if flat[each] else jobs.after[every[each]] for each in order.tolist()],
        think_s=np.where(flat, 0.0, column("think_s"))[order],
    )
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    own = found.board.instance.stretches(found.board.delay, found.board.placed)
    where = np.full(len(jobs), -1)
    where[beside] = back[of.size :]
    job = np.concatenate((np.repeat(back[: of.size], [len(own) for own in runs]), where[own.job]))
    start = np.concatenate(([a for own in runs for a, _ in own], own.start))
    does_s = np.concatenate(([b for own in runs for _, b in own], own.work_s))
    by_job = np.lexsort((start, job))
    stretches = {
        "job": job[by_job].astype(np.int64),
        "start": start[by_job],
        "work_s": does_s[by_job],
        "lost_s": np.zeros(job.size),
    }
    return made, stretches, every[order]
