"""Plan a whole queue together: from jobs, machines and a signal to a plan that was carried out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lowtide.accounting import integrate
from lowtide.errors import Infeasible, InvalidInput, InvalidSchedule
from lowtide.grid import Grid, deciding_signal, mixed_signal, ruling_signal
from lowtide.job import Job
from lowtide.market.cluster_plan import ClusterPlan, Late, amount_of, least_of_nodes
from lowtide.market.fairness import solve_fairly
from lowtide.market.instance import Instance, make_instance, require_cap
from lowtide.market.lateness import prove_late, require_alone, whole_jobs
from lowtide.market.nodes import place_on_nodes
from lowtide.market.placing import Board
from lowtide.market.planner import Clock, QueueSolution, require_options, solve
from lowtide.market.proofs import Proof, as_late, prove, waits, without_waiting
from lowtide.precedence import links_of, require_time
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.carrying import replay
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import Easy, OwnDiscipline
from lowtide.simulator.outages import require_away
from lowtide.simulator.results import Simulation
from lowtide.simulator.simulation import as_workload, on_machines, simulate
from lowtide.units import JOULES_PER_KWH, DurationLike, TimeLike, parse_duration
from lowtide.workload import Workload

# What an hour of delay counts by default: this share of what waiting for up to a day would save on
# average, for each hour of the job; and of what an hour of it comes to where nothing would.
_WAIT = 0.025
_LEAST_WAIT = 1e-4
_DAY_S = 86400.0
# EASY is left out where the clock has come this far before it.
_EASY_BY = 0.25
# So many jobs get through a queue of EASY's in a second without a kernel.
_FEW = 2000


def plan_cluster(
    jobs: Workload | Sequence[Job],
    cluster: Cluster,
    signal: Signal | Grid,
    *,
    gap: float = 0.005,
    wait: float | str | None = None,
    step: DurationLike | None = None,
    reserved: Sequence[tuple[TimeLike, TimeLike, int]] = (),
    power_cap: Signal | float | None = None,
    keeps: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
    decide: str | None = None,
    fair: str | None = None,
    effort: float = 1.0,
    seconds: float | None = None,
    seed: int = 0,
    oversized: str = "refuse",
    compare: bool = True,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> ClusterPlan:
    """Plan a whole queue together on limited machines, and prove how near to the best that is.

    Deadlines come first: where not all can be kept, as few jobs as could be found are late, by as
    little as possible, and `least_late` says how many must be. Jobs may be stopped and go on as
    their rules allow; a stopped job gives its machines back.

    Args:
        jobs: What is to be run.
        cluster: The machines.
        signal: What a kWh emits or costs. Of a grid, the average intensity decides.
        gap: How near to the proven bound is near enough, as a share.
        wait: What an hour of delay counts: a share of what an hour of the job counts on average,
            or a text such as `3 g/node-h`. 0 for nothing. By default a fortieth of what an hour of
            the job would save if it waited for the best hour of the next day, on average: that
            keeps nearly all of the saving, and delays no job for next to nothing.
        step: How long a slot is, on which jobs start and stop; by default one that loses nothing,
            or the finest that is quick.
        reserved: When nodes are not there, and how many: `(begin, end, nodes)`, beside those that
            the cluster says are `away`, or are not there by its `capacity`.
        power_cap: What nodes and jobs may draw together, in watts, or as a signal of kind `power`;
            by default what the cluster says.
        keeps: What a stopped job goes on holding: `cpus`, `gpus`, `memory`; by default what the
            cluster says.
        weights: Minimise a mix instead of the signal: what a gram (`carbon`) and a unit of money
            (`price`) count.
        decide: Minimise one signal of a grid, `average`, `marginal` or `price`; `paid()` tells all.
        fair: `users`: no user's jobs come to more than under EASY, where such a plan is found:
            deadlines come first, and `print` names who does all the same.
        effort: How long to search, 1 for as long as usual; counted in steps, so that the same
            seed gives the same plan on any machine.
        seconds: CPU seconds after which the best plan so far is taken; None for any number. Where
            they are few, EASY and bounds for any moment are left out (`left_out`); laying the queue
            out, placing each job once and carrying that out takes as long as it does.
        seed: What is drawn by chance.
        oversized: What to do with jobs that fit on no node: `refuse`, `drop` or `spread`.
        compare: Whether to tell it against EASY backfilling.
        doing: Told what is being done, and how far that is, now and then.

    >>> from lowtide.profile import PowerProfile
    >>> curve = Signal.from_values([300, 100, 200, 200], start=0, step_s="1h")
    >>> hour = PowerProfile.constant(1000, "1h")
    >>> two = [Job(id=name, arrival=0, deadline="+4h", profile=hour) for name in "ab"]
    >>> plan = plan_cluster(two, Cluster(nodes=1, cpus_per_node=1), curve, wait=0)
    >>> plan.amount, round(plan.lower_bound_g, 1)
    (300.0, 300.0)
    """
    require_options(gap, effort, seconds, seed)
    clock = Clock(seconds)
    if not isinstance(cluster, Cluster):
        raise InvalidInput(f"a cluster is a Cluster(nodes=..., cpus_per_node=...), not {cluster!r}")
    grid = signal
    if decide is not None:
        if weights is not None:
            raise InvalidInput("decide and weights say the same: leave one out")
        ruling = ruling_signal(signal, decide)
        if decide == "price" and isinstance(signal, Grid):
            weights = {"price": 1.0}
        elif decide == "marginal":
            signal = ruling
    if fair not in (None, "users") or (fair and weights):
        raise InvalidInput(f"fair is 'users', without weights, or left out, not {fair!r}")
    if keeps is not None:
        cluster = replace(cluster, keeps=tuple(keeps))
    if reserved:
        more = require_away(reserved, cluster.nodes)
        cluster = replace(cluster, away=(*cluster.away, *more))
    if cluster.failures is not None:
        raise InvalidInput(
            "nobody knows in advance which node breaks down, and a plan that is made once cannot "
            "answer it: simulate the policy cluster_plan, or leave failures out"
        )
    target = deciding_signal(signal) if weights is None else mixed_signal(signal, weights)
    if isinstance(power_cap, int | float):
        # What holds at all times is minded by EASY too, which a plan is told against.
        cluster, power_cap = replace(cluster, power_cap_w=power_cap), None
    if power_cap is None and cluster.power_cap_w is not None:
        require_cap(cluster, cluster.power_cap_w)
    workload = on_machines(as_workload(jobs), cluster, oversized, any_size=False)
    require_time(workload, links_of(workload))
    last = int(np.argmax(workload.deadline))
    target.require(
        float(workload.arrival.min()),
        float(workload.deadline[last]),
        what=f"job {workload.id[last]} is due last, and the signal",
    )
    doing("laying out", 0.0)
    rate = wait_rate(wait, workload, target)
    instance = make_instance(
        workload,
        cluster,
        target,
        step_s=None if step is None else parse_duration(step),
        wait=rate,
        power_cap=power_cap,
        keeps=cluster.keeps,
    )
    require_alone(instance)
    easy = None
    if fair or (compare and clock.spent() < _EASY_BY):
        doing("EASY", 0.0)
        served: Easy | OwnDiscipline = Easy()
        if len(workload) <= _FEW and cluster.off_after_s is None:
            # The same, without a kernel, which would take longer to compile than all of this.
            served = OwnDiscipline(served)
        easy = simulate(
            workload, signal, cluster=cluster, discipline=served, baseline=None, repeat_signal=True
        )
    budget: dict[str, Any] = {"gap": gap, "effort": effort, "clock": clock, "seed": seed}
    if easy is not None:
        budget["starts"] = easy.tally.start
    if fair and easy is not None:
        solution = solve_fairly(instance, easy, doing=doing, **budget)
        instance = solution.auction.instance
    else:
        solution = solve(instance, doing=doing, **budget)
    told = partial(_told, workload, signal, easy, instance, weights, clock.is_over, doing, effort)
    lower_w = 0.0
    while True:
        try:
            plan = told(solution)
            break
        except InvalidSchedule as error:
            # Nodes draw more than jobs are charged for while they boot, and are idle for a while.
            if not error.over_w or cluster.off_after_s is None:
                raise
            lower_w = max(2 * lower_w, error.over_w)
        solution = solve(_below_cap(instance, lower_w), doing=doing, **budget)
    left_out = ("EASY",) if compare and easy is None else ()
    return replace(plan, _grid=grid, left_out=left_out)


def _below_cap(instance: Instance, lower_w: float) -> Instance:
    """Return an instance with a power cap that leaves so much to nodes that boot or are idle."""
    cap, terms = instance.terms["power_cap"], instance.terms
    if cap is None:
        cap = instance.cluster.power_cap_w or 0.0
    lower = replace(cap, values=cap.values - lower_w) if isinstance(cap, Signal) else cap - lower_w
    try:
        tight = make_instance(
            instance.jobs,
            instance.cluster,
            instance.signal,
            step_s=instance.step_s,
            wait=instance.wait,
            **{**terms, "power_cap": lower},
        )
        require_alone(tight)
    except InvalidInput:
        raise Infeasible(
            "nodes that boot, or are idle before they are switched off, draw more than the power "
            f"cap leaves beside jobs: raise it by {lower_w:g} W, or leave off_after_s out",
            None,
        ) from None
    return tight


def _told(
    jobs: Workload,
    signal: Signal | Grid,
    easy: Simulation | None,
    instance: Instance,
    weights: Mapping[str, float] | None,
    is_over: Callable[[], bool],
    doing: Callable[[str, float], None],
    effort: float,
    solution: QueueSolution,
) -> ClusterPlan:
    """Return a solution carried out by the simulator, and what is proven of it.

    It may be one of an instance with a lower cap: then nothing of that is taken for proven.
    """
    doing("carrying out", 0.0)
    board, placed = solution.board, None
    if not instance.whole_nodes:
        board, placed = place_on_nodes(solution, doing=doing, is_over=is_over, effort=effort)
    stretches = board.instance.stretches(board.delay, board.placed)
    simulation = replay(
        jobs,
        stretches,
        signal,
        instance.cluster,
        placed=placed,
        power_cap=instance.terms["power_cap"],
        until=None if easy is None else float(easy.tally.end.max()),
        baseline=easy,
    )
    if easy is not None and easy.node_spans is not None:
        end = float(simulation.tally.end.max())
        if end > float(easy.tally.end.max()) and instance.cluster.draws_power:
            easy = _longer(easy, end)
            simulation = replace(simulation, baseline_node_spans=easy.node_spans)
    auction, late = solution.auction, _late(simulation, board, instance)
    lateness, least = solution.proof, solution.least_late
    other = auction.instance is not instance
    if late and (lateness is None or other):
        # On the sum of all nodes, or under the whole cap, everybody may have been in time.
        lateness = prove_late(instance, is_over)
        least = whole_jobs(lateness.bound)
    apart = least_of_nodes(simulation, instance)
    counted = board.total + _nodes_beyond(simulation, instance, board)
    doing("proving", 0.0)
    whole = prove(instance, auction.prices, counted, is_over) if other else Proof.of(auction)
    if late:
        given = as_late(instance, np.array([each.row for each in late]), simulation.tally.end)
        whole = prove(given, None, counted, is_over)
    plain = whole
    if waits(whole.instance):
        amount = amount_of(simulation, weights) - apart
        plain = prove(without_waiting(whole.instance), whole.prices, amount, is_over)
    return ClusterPlan(
        simulation=simulation,
        easy=easy,
        lower_bound=whole.bound + apart,
        counted=counted + apart,
        lower_bound_g=plain.bound + apart,
        late=late,
        least_late=least,
        prices=auction.prices,
        passes=auction.passes,
        stopped=solution.stopped,
        weights=None if weights is None else dict(weights),
        _instance=instance,
        _late_prices=None if lateness is None else lateness.prices,
        _proofs=(whole, plain),
        _grid=signal,
    )


def _longer(easy: Simulation, end: float) -> Simulation:
    """Return a run whose nodes are looked at for longer: the last span of each goes on."""
    spans = easy.node_spans
    assert spans is not None  # noqa: S101 - it ran on machines
    last = spans.end >= spans.end.max()
    return replace(easy, node_spans=replace(spans, end=np.where(last, end, spans.end)))


def _nodes_beyond(simulation: Simulation, instance: Instance, board: Board) -> float:
    """Return what nodes come to beyond what jobs were charged with for being on."""
    cluster, spans = instance.cluster, simulation.node_spans
    if cluster.off_after_s is None or spans is None:
        return 0.0
    signal, tally = instance.signal, simulation.tally
    watts = spans.power_w * cluster.pue
    own = float(integrate(watts, spans.begin, spans.end, signal).sum())
    pieces = simulation.pieces
    drawn = pieces.charge(signal, cluster.pue)
    jobs = 0.0 if drawn is None else float(drawn.sum())
    waited_s = tally.end - simulation.jobs.arrival - simulation.jobs.run_s
    charged = board.total - float((board.instance.wait * waited_s).sum()) - jobs
    return own - least_of_nodes(simulation, instance) - charged


def _late(simulation: Simulation, board: Board, instance: Instance) -> tuple[Late, ...]:
    """Return who is not in time, the latest first."""
    jobs, found = simulation.jobs, []
    room = board.room.free[:, : instance.slots]
    for row in np.flatnonzero(simulation.missed).tolist():
        first = int(instance.queue.jobs["first"][row])
        last = max(math.ceil((jobs.deadline[row] - instance.origin) / instance.step_s), first + 1)
        short = (room[:, first:last] < instance.queue.need[row][:, None] - 1e-9).any(axis=0)
        by_s = float(simulation.tally.end[row] - jobs.deadline[row])
        found.append(Late(row=row, by_s=by_s, full=float(short.mean())))
    return tuple(sorted(found, key=lambda each: (-each.by_s, each.row)))


def wait_rate(wait: float | str | None, jobs: Workload, signal: Signal) -> FloatArray:
    """Return what a second of delay counts for each job."""
    kw_for_a_second: FloatArray = jobs.energy_j / jobs.run_s / JOULES_PER_KWH
    if wait is None:
        return _usual_wait(jobs, signal) * kw_for_a_second
    rule = (
        "wait is a share of what an hour of the job counts, such as 0.03, or a text such as "
        f"'3 g/node-h', not {wait!r}"
    )
    if isinstance(wait, str):
        number, _, unit = wait.strip().partition(" ")
        try:
            amount = float(number)
        except ValueError:
            raise InvalidInput(rule) from None
        known = {"g/node-h": jobs.nodes, "g/cpu-h": jobs.cpus, "g/job-h": np.ones(len(jobs))}
        if signal.kind == "price":
            known = {name.replace("g/", f"{signal.currency}/"): v for name, v in known.items()}
        if unit not in known or not 0 <= amount < math.inf:
            raise InvalidInput(f"{rule}; known units are {', '.join(known)}")
        return amount * known[unit] / 3600
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < math.inf:
        raise InvalidInput(rule)
    return wait * float(np.abs(_over(jobs, signal).values).mean()) * kw_for_a_second


def _over(jobs: Workload, signal: Signal) -> Signal:
    """Return a signal over the time that there is for jobs."""
    return signal.window(float(jobs.arrival.min()), float(jobs.deadline.max()))


def _usual_wait(jobs: Workload, signal: Signal) -> float:
    """Return what an hour of delay counts by default, for each kilowatt.

    In the cleanest of zones and weeks alike waiting is to count little beside what it saves.
    """
    known = _over(jobs, signal)
    ahead = max(round(_DAY_S / known.step_s), 1)
    best = sliding_window_view(
        np.pad(known.values, (0, ahead), constant_values=np.inf), ahead + 1
    ).min(axis=1)
    least = _LEAST_WAIT * float(np.abs(known.values).mean())
    return max(_WAIT * float((known.values - best).mean()), least)
