"""The best schedule of a job under prices, against every schedule that there is."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lowtide.accounting import pieces_of
from lowtide.market.placing import Board
from lowtide.market.prices import Auction, Prices
from lowtide.policies.exact import Exact
from lowtide.signal import Signal
from lowtide.workload import Workload
from support.queues import amount, draw_instance, every_way, stretches_of, use

MANY = 400 if os.environ.get("LOWTIDE_NIGHTLY") else 25


def draw_prices(rng, instance):
    shape = (len(instance.resources), instance.slots)
    rent = np.where(rng.random(shape) < 0.5, rng.uniform(0, 200, shape), 0.0)
    return Prices(rent=rent, power=np.zeros(instance.slots))


def ways_of(instance, board):
    """Return how placed jobs run, by row."""
    stretches = instance.stretches(board.delay, board.placed)
    return {row: stretches.of(row) for row in np.flatnonzero(board.placed).tolist()}


@pytest.mark.parametrize("real", [False, True])
def test_under_prices_a_job_takes_the_best_of_all_ways(real):
    for seed in range(MANY):
        rng = np.random.default_rng([seed, real])
        instance = draw_instance(rng, 4, 9, real=real)
        prices, auction = draw_prices(rng, instance), Auction(instance)
        auction.price(prices)
        for row in range(len(instance)):
            need = instance.queue.need[row, 0]
            costs = [
                amount(instance, row, way) + need * prices.rent[0] @ use(instance, row, way)
                for way in every_way(instance, row)
            ]
            assert auction.reduced[row] == pytest.approx(min(costs), rel=1e-9), (seed, row)


@pytest.mark.parametrize("real", [False, True])
def test_where_room_is_left_a_job_takes_the_best_of_what_fits(real):
    for seed in range(MANY):
        rng = np.random.default_rng([seed, real, 7])
        instance = draw_instance(rng, 3, 3, real=real)
        prices = draw_prices(rng, instance)
        room = rng.integers(0, 5, instance.slots).astype(float) + 1.5 * (rng.random() < 0.5)
        for row in range(len(instance)):
            board = Board.empty(instance)
            board.room.free[0] = room
            board.insert(np.array([row]), prices.tariff(instance))
            need = instance.queue.need[row, 0]
            ways = [
                way
                for way in every_way(instance, row)
                if not np.any((use(instance, row, way) > 1e-7) & (room < need))
            ]
            assert bool(board.placed[row]) == bool(ways), (seed, row)
            if not ways:
                assert board.cost[row] == instance.queue.jobs["leave"][row]
                continue
            taken = ways_of(instance, board)[row]
            paid = amount(instance, row, taken)
            assert board.cost[row] == pytest.approx(paid, rel=1e-9)
            reduced = paid + need * prices.rent[0] @ use(instance, row, taken)
            costs = [
                amount(instance, row, way) + need * prices.rent[0] @ use(instance, row, way)
                for way in ways
            ]
            assert reduced == pytest.approx(min(costs), rel=1e-9), (seed, row)
            left = room - need * np.ceil(use(instance, row, taken) - 1e-7)
            # A slot in which a job ends and is started again is held twice.
            assert np.all(board.room.free[0] <= left + 1e-9)
            assert real or board.room.free[0] == pytest.approx(left)


def drawn_kw(instance, row, way):
    """Return the most that a way draws at any instant of each slot."""
    pieces = pieces_of(Workload.from_jobs([instance.jobs.job(row)]), stretches_of([way]))
    edges, most = instance.edges, np.zeros(instance.slots)
    for begin, end, watts in zip(pieces.begin, pieces.end, pieces.power_w, strict=True):
        touched = (edges[:-1] < end - 1e-3) & (edges[1:] > begin + 1e-3)
        if end - begin > 1e-3:
            most[touched] = np.maximum(most[touched], watts / 1000)
    return most


@pytest.mark.parametrize("real", [False, True])
def test_under_a_power_cap_a_job_takes_the_best_whose_every_phase_fits(real):
    turned = 0
    for seed in range(MANY):
        rng = np.random.default_rng([seed, real, 8])
        instance = draw_instance(rng, 3, 9, real=real)
        prices = draw_prices(rng, instance)
        left_kw = rng.choice(
            [0.05, 0.2, 0.4, 0.6, 0.9], instance.slots, p=[0.05, 0.1, 0.2, 0.25, 0.4]
        )
        for row in range(len(instance)):
            board = Board.empty(instance)
            board.room.kw[0] = left_kw
            board.insert(np.array([row]), prices.tariff(instance))
            ways = [
                way
                for way in every_way(instance, row)
                if np.all(drawn_kw(instance, row, way) <= left_kw + 1e-9)
            ]
            assert bool(board.placed[row]) == bool(ways), (seed, row)
            if not ways:
                continue
            need = instance.queue.need[row, 0]
            taken = ways_of(instance, board)[row]
            cost, *costs = (
                amount(instance, row, way) + need * prices.rent[0] @ use(instance, row, way)
                for way in (taken, *ways)
            )
            assert cost == pytest.approx(min(costs), rel=1e-9), (seed, row)
            left = left_kw - drawn_kw(instance, row, taken)
            assert board.room.kw[0] == pytest.approx(left)
            turned += np.any(
                left_kw[use(instance, row, taken) > 0] < instance.jobs.peak_w[row] / 1000
            )
    assert turned >= MANY // 4


def test_without_prices_a_job_costs_what_the_exact_planner_says():
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 11])
        instance = draw_instance(rng, 4, 9)
        free = np.zeros((1, instance.slots))
        auction = Auction(instance)
        auction.price(Prices(rent=free, power=free[0]))
        for row in range(len(instance)):
            planner = Exact(wait=float(instance.wait[row]))
            found = planner.optimise(instance.jobs.job(row), instance.signal)
            assert auction.reduced[row] == pytest.approx(found.solution.cost, rel=1e-9)


def test_with_prices_a_job_that_is_never_stopped_costs_what_the_exact_planner_says():
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 12])
        instance = draw_instance(rng, 6, 9)
        prices, auction = draw_prices(rng, instance), Auction(instance)
        auction.price(prices)
        for row in np.flatnonzero(instance.jobs.interruptible == 0).tolist():
            per_s = instance.queue.need[row] @ prices.rent / instance.step_s
            rent = Signal.from_values(
                per_s, start=instance.origin, step_s=instance.step_s, kind="occupancy"
            )
            planner = Exact(wait=float(instance.wait[row]), occupancy=rent)
            found = planner.optimise(instance.jobs.job(row), instance.signal)
            assert auction.reduced[row] == pytest.approx(found.solution.cost, rel=1e-9)
