"""Plans in which no user pays for others: none emits more than under EASY backfilling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide.market.instance import Instance
from lowtide.market.placing import (
    Board,
    as_told,
    construct,
    improve,
    rebuilt,
    squeaky_wheel,
)
from lowtide.market.placing_kernels import Guard
from lowtide.market.planner import QueueSolution, solve
from lowtide.market.prices import Auction
from lowtide.signal import FloatArray
from lowtide.simulator.results import Simulation

# How often weights are raised, and by how much of what a user's jobs come to too much.
_ROUNDS = 12
_RAISE = 4.0
_LEAST_RAISE = 0.02
# How often those who pay too much are brought down from there, and how much more they count then.
_TURNS = 20
_HEAVY = 20.0
# How much worse a plan may be then, about, as a share of what a job comes to.
_MILD = 0.0005
# How long to search from a plan that is fair, at an effort of 1.
_STEPS = 1_000_000
# Rounding is nobody's loss.
_SAME = 1e-9


def solve_fairly(
    instance: Instance,
    easy: Simulation,
    *,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
    **budget: Any,
) -> QueueSolution:
    """Plan an instance so that no user's jobs come to more than under EASY, where that can be.

    A gram of a user who would emit more counts more, until none does. Where that does not get
    there, EASY's own schedule is searched from, in which nobody does, keeping it so; or, where EASY
    is late itself, the fairest plan, so that who pays too much pays less and nobody else more. The
    bound is that of all plans, fair or not, so it holds for the fair ones.
    """

    def is_over(_total: float = 0.0) -> bool:
        return bool(budget["clock"].is_over())

    solution = solve(instance, doing=doing, **budget)
    if solution.late.size:
        return solution
    names, user = np.unique([str(each) for each in instance.jobs.user], return_inverse=True)
    amounts = np.bincount(user, weights=easy.tally.amount, minlength=names.size)
    allowed: FloatArray = amounts.astype(np.float64)
    weight = np.ones(names.size)
    plain, auction = solution.board, solution.auction
    best, board = _over(plain, user, allowed), plain
    seed, effort = int(budget["seed"]), float(budget["effort"])
    for number in range(_ROUNDS):
        if best[0] <= _SAME or is_over():
            break
        doing("fairness", number / _ROUNDS)
        over = np.maximum(_by_user(plain, user, names.size) / np.maximum(allowed, 1e-300) - 1, 0.0)
        weight = np.where(
            over > _SAME, weight * (1 + np.maximum(_RAISE * over, _LEAST_RAISE)), weight
        )
        plain = _replanned(auction, weight[user], seed, effort, is_over)
        found = _over(plain, user, allowed)
        if plain.placed.all() and found < best:
            best, board = found, plain
    if best[0] > _SAME:
        known = as_told(instance, easy.tally.start, auction.prices)
        if known.placed.all() and _over(known, user, allowed)[0] <= _SAME:
            doing("fairness", 1.0)
            board = _kept_fair(auction, known, user, allowed, seed, effort, is_over)
            best = _over(board, user, allowed)
    if best[0] > _SAME:
        # The best plan that is not fair is mostly near one that is.
        for begin in (solution.board, board):
            lower = _brought_down(auction, begin, user, allowed, seed, effort, is_over)
            if lower.placed.all() and _over(lower, user, allowed) < best:
                board, best = lower, _over(lower, user, allowed)
            if best[0] <= _SAME:
                board = _kept_fair(auction, board, user, allowed, seed, effort, is_over)
                break
    return replace(solution, board=board, total=board.total)


def _brought_down(
    auction: Auction,
    board: Board,
    user: Any,
    allowed: FloatArray,
    seed: int,
    effort: float,
    is_over: Callable[[float], bool],
) -> Board:
    """Search for a plan in which those who come to too much come to less, and nobody else to more.

    It stops when nobody does any longer.
    """
    for turn in range(_TURNS):
        over = _by_user(board, user, allowed.size) > allowed * (1 + _SAME)
        if is_over(0.0) or not over.any():
            break
        weight = np.where(over, _HEAVY, 1.0)
        weighed = _weighed(auction, weight[user])
        flat = rebuilt(weighed.instance, board.delay, board.placed, auction.prices)
        mild = _MILD * float(np.abs(board.cost).mean())
        some = effort / _TURNS
        flat = _kept_fair(weighed, flat, user, weight * allowed, seed + turn, some, is_over, mild)
        tried = rebuilt(board.instance, flat.delay, flat.placed, auction.prices)
        if _over(tried, user, allowed) < _over(board, user, allowed):
            board = tried
    return board


def _kept_fair(
    auction: Auction,
    board: Board,
    user: Any,
    allowed: FloatArray,
    seed: int,
    effort: float,
    is_over: Callable[[float], bool],
    heat: float | None = None,
) -> Board:
    """Search around a plan in which nobody comes to too much, and keep it so."""
    spent = _by_user(board, user, allowed.size)
    guard = Guard(
        user=user.astype(np.int64),
        own=_own(board),
        spent=spent,
        before=spent.copy(),
        # Sums that are changed step by step are rounded: nobody is to pay for that.
        allowed=np.maximum(allowed * (1 - _SAME), spent),
    )
    return improve(
        auction,
        board,
        steps=max(round(_STEPS * effort), 1),
        seed=seed,
        is_enough=is_over,
        guard=guard,
        heat=heat,
    )


def _replanned(
    auction: Auction,
    weight: FloatArray,
    seed: int,
    effort: float,
    is_over: Callable[[float], bool],
) -> Board:
    """Return the plan in which grams of some jobs count more, told as if they did not."""
    instance, weighed = auction.instance, _weighed(auction, weight)
    for _ in range(25):
        if not weighed.advance():
            break
    board = construct(weighed.instance, weighed.prices)
    board = squeaky_wheel(
        weighed, board, rounds=max(round(20 * effort), 1), seed=seed, is_enough=is_over
    )
    if len(instance) <= 2000:
        board = improve(
            weighed,
            board,
            steps=round(100_000 * effort),
            seed=seed,
            is_enough=is_over,
        )
    return rebuilt(instance, board.delay, board.placed, auction.prices)


def _weighed(auction: Auction, weight: FloatArray) -> Auction:
    """Return prices of an instance in which grams of some jobs count more."""
    instance = auction.instance
    rows = instance.queue.jobs.copy()
    rows["weight"] = weight
    rows["leave"] *= np.maximum(weight, 1.0)
    return Auction(replace(instance, queue=instance.queue._replace(jobs=rows)), auction.prices)


def _own(board: Board) -> FloatArray:
    """Return what each job comes to, waiting apart."""
    rows = board.instance.queue.jobs
    own: FloatArray = board.cost - rows["wait"] * board.delay[rows["end"] - 1] - rows["already"]
    return own


def _by_user(board: Board, user: Any, count: int) -> FloatArray:
    """Return what the jobs of each user come to."""
    return np.bincount(user, weights=_own(board), minlength=count).astype(np.float64)


def _over(board: Board, user: Any, allowed: FloatArray) -> tuple[float, float]:
    """Return how much users come to too much, as shares, and what all comes to."""
    over = _by_user(board, user, allowed.size) / np.maximum(allowed, 1e-300) - 1.0
    return float(np.maximum(over - _SAME, 0.0).sum()), board.total
