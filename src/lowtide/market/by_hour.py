"""A queue planned together whose jobs change their width by the hour, and what is proven of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput, UnknownName
from lowtide.grid import Grid, deciding_signal
from lowtide.job import Job
from lowtide.market.certificate import certify
from lowtide.market.cluster_plan import amount_of, least_of_nodes, words_of_proof
from lowtide.market.elastic import Widths, as_layers, layers_of, solve_widths
from lowtide.market.instance import make_instance
from lowtide.market.lateness import require_alone
from lowtide.market.planner import Clock, require_options
from lowtide.precedence import links_of, require_time
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.carrying import replay
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.results import Simulation
from lowtide.simulator.simulation import as_workload, on_machines, simulate
from lowtide.steps import Steps
from lowtide.units import DurationLike, format_count, format_mass, format_percent, parse_duration
from lowtide.workload import IntArray, Workload


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ElasticPlan:
    """A queue planned together whose jobs change their width by the hour. Nobody is late in it.

    Attributes:
        jobs: The jobs.
        simulation: The plan, carried out by the simulator: each layer of a job is one there.
        of: Which job each of those is.
        changing: Rows of jobs that change their width; the others cannot, and keep their own.
        amount: What jobs and nodes come to: grams, or money on a price.
        lower_bound_g: What no plan can come to less than, whenever jobs change their width.
        at_once: What all come to under EASY, each at its own width; None where that was not asked.
        stopped: What ended the search: `gap`, `effort` or `seconds`.
    """

    jobs: Workload
    simulation: Simulation
    of: IntArray
    changing: IntArray
    amount: float
    lower_bound_g: float
    at_once: float | None
    stopped: str
    _found: Widths = field(repr=False)
    _apart: float = field(repr=False)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def gap_g(self) -> float:
        """The share of what it comes to that another plan could save at most."""
        return max(self.amount - self.lower_bound_g, 0.0) / max(abs(self.amount), 1e-300)

    @property
    def saving(self) -> float | None:
        """The share of EASY's that is saved, None where that is not known."""
        return None if not self.at_once else 1.0 - self.amount / self.at_once

    def nodes_of(self, job: object) -> Steps:
        """Return how many nodes a job has over time.

        Args:
            job: Its id, or the job.
        """
        wanted = job.id if isinstance(job, Job) else str(job)
        rows = np.flatnonzero(self.jobs.id.astype(str) == wanted)
        if not rows.size:
            raise UnknownName("job", wanted, [str(each) for each in self.jobs.id[:1000]])
        begin, end = self.simulation.runs
        own = self.of[self.simulation.stretches.job] == rows[0]
        wide = self.simulation.jobs.nodes[self.simulation.stretches.job]
        return Steps.of_spans(begin[own], end[own], wide[own])

    def spans(self) -> dict[str, FloatArray]:
        """Return when each job starts and ends, and what it comes to, in columns."""
        ran, count = self.simulation.tally, len(self)
        start, end, amount = np.full(count, np.inf), np.full(count, -np.inf), np.zeros(count)
        np.minimum.at(start, self.of, ran.start)
        np.maximum.at(end, self.of, ran.end)
        np.add.at(amount, self.of, ran.amount)
        return {"start": start, "end": end, "amount": amount}

    def hours_at(self) -> dict[float, float]:
        """Return for how many hours jobs that change their width have which share of their own."""
        begin, end = self.simulation.runs
        job = self.simulation.stretches.job
        hours: dict[float, float] = {}
        for row in self.changing.tolist():
            own = self.of[job] == row
            wide = Steps.of_spans(begin[own], end[own], self.simulation.jobs.nodes[job[own]])
            share = np.round(wide.values / self.jobs.nodes[row], 6)
            for each, lasts_s in zip(share[:-1], np.diff(wide.times), strict=True):
                if each > 0:
                    hours[float(each)] = hours.get(float(each), 0.0) + float(lasts_s) / 3600
        return dict(sorted(hours.items()))

    def certify(self) -> float:
        """Compute the bound again, by other code, and raise unless it is what was said.

        Jobs that keep their width are planned backwards, and of the others the best price of their
        work is looked for.
        """
        widening, prices = self._found.widening, self._found.auction.prices
        instance, beside = widening.instance, widening.rows_beside
        found = widening.bound(prices) - prices.worth(instance) + self._apart
        if beside.size:
            rest = make_instance(
                replace(instance.jobs.take(beside)),
                instance.cluster,
                instance.signal,
                step_s=instance.step_s,
                begin=instance.origin,
                until=float(instance.edges[-1]),
                **instance.terms,
            )
            rest = replace(rest, splits=True)
            found += certify(rest, prices) + prices.worth(rest)
        if abs(found - self.lower_bound_g) > 1e-9 * max(abs(found), abs(self.lower_bound_g), 1e-9):
            raise InvalidInput(f"the prices prove {found!r}, not {self.lower_bound_g!r}")
        return found

    def summary(self) -> dict[str, Any]:
        """Return the plan as a whole: one number per question, None where there is none."""
        return {
            "jobs": len(self),
            "changing": int(self.changing.size),
            "nodes": self._found.widening.instance.cluster.nodes,
            "amount": self.amount,
            "lower_bound_g": self.lower_bound_g,
            "gap_g": self.gap_g,
            "saving": self.saving,
            "easy_amount": self.at_once,
            "hours_at": {f"{share:g}": hours for share, hours in self.hours_at().items()},
            "stopped": self.stopped,
        }

    def __repr__(self) -> str:
        return f"<ElasticPlan: {self}>"

    def __str__(self) -> str:
        price = self._found.widening.instance.signal
        money = price.kind == "price"
        told = (lambda x: f"{x:.4g} {price.currency}") if money else format_mass
        nodes = format_count(self._found.widening.instance.cluster.nodes, "node")
        text = f"{format_count(len(self), 'job')} on {nodes}: {told(self.amount)}, "
        text += words_of_proof(told, self.lower_bound_g, self.gap_g, None)
        if self.saving is not None:
            text += f"; {format_percent(self.saving)} less than EASY at their own width"
        return f"{text}; {self.changing.size} change their width; nobody late"


def plan_elastic(
    jobs: Workload | Sequence[Job],
    cluster: Cluster,
    signal: Signal | Grid,
    *,
    elastic: Mapping[float, float],
    gap: float = 0.005,
    step: DurationLike | None = None,
    effort: float = 1.0,
    seconds: float | None = None,
    seed: int = 0,
    compare: bool = True,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> ElasticPlan:
    """Plan a queue together whose jobs may change their width from hour to hour.

    Jobs that may be stopped anywhere, start at no cost and draw constant power change their width;
    all others keep their own. Waiting is free. A plan in which somebody is late is refused.

    Args:
        jobs: What is to be run.
        cluster: The machines; jobs do not share nodes.
        signal: What a kWh emits or costs. Of a grid, the average intensity decides.
        elastic: How many times as fast a job is at how many times its nodes, such as `{2: 1.9, 4:
            3.1}`; each further node helps less than the one before.
        gap: How near to the proven bound is near enough, as a share.
        step: How long a slot is, at which widths change.
        effort: How long to search, 1 for as long as usual; counted in rounds.
        seconds: CPU seconds after which the best plan so far is taken; None for any number.
        seed: What is drawn by chance.
        compare: Whether to tell it against EASY, each job at its own width.
        doing: Told what is being done, and how far that is, now and then.

    >>> from lowtide.profile import PowerProfile
    >>> curve = Signal.from_values([500, 100, 500, 100], start=0, step_s="1h")
    >>> work = PowerProfile.constant(1000, "3h")
    >>> job = Job(id="a", arrival=0, deadline="+4h", profile=work, interruptible="anywhere")
    >>> plan = plan_elastic([job], Cluster(nodes=2, cpus_per_node=1), curve, elastic={2: 1.5})
    >>> plan.amount, plan.nodes_of("a").values.tolist()
    (400.0, [2.0, 0.0, 2.0, 0.0])
    """
    require_options(gap, effort, seconds)
    clock = Clock(seconds)
    workload = on_machines(as_workload(jobs), cluster, "refuse", any_size=False)
    layers = layers_of(elastic)
    if cluster.failures is not None:
        raise InvalidInput("a plan knows of no nodes that break down: leave failures out")
    require_time(workload, links_of(workload))
    doing("laying out", 0.0)
    instance = make_instance(
        workload,
        cluster,
        deciding_signal(signal),
        step_s=None if step is None else parse_duration(step),
        keeps=cluster.keeps,
    )
    if not instance.whole_nodes:
        raise InvalidInput(
            "widths are changed on nodes that jobs do not share: give each job more than half of "
            "what a node has"
        )
    require_alone(instance)
    instance = replace(instance, splits=True)
    found = solve_widths(
        instance,
        layers,
        gap=gap,
        effort=effort,
        is_over=clock.is_over,
        seed=seed,
        doing=doing,
    )
    doing("carrying out", 0.0)
    made, runs, of = as_layers(found)
    simulation = replay(made, Stretches(**runs), signal, cluster)
    apart = least_of_nodes(simulation, instance)
    easy = None
    if compare and not clock.is_over():
        easy = simulate(
            workload, signal, cluster=cluster, discipline="easy", baseline=None, repeat_signal=True
        )
    amount = amount_of(simulation, None)
    if abs(float(simulation.tally.amount.sum()) - found.amount) > 1e-6 * max(found.amount, 1e-9):
        raise InvalidInput("the plan and what the simulator makes of it differ: report this")
    return ElasticPlan(
        jobs=workload,
        simulation=simulation,
        of=of,
        changing=found.widening.rows,
        amount=amount,
        lower_bound_g=math.fsum([found.auction.bound, apart]),
        at_once=None if easy is None else amount_of(easy, None),
        stopped=found.stopped,
        _found=found,
        _apart=apart,
    )
