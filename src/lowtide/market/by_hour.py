"""A queue planned together whose jobs change their width by the hour, and what is proven of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, UnknownName
from lowtide.grid import Grid, deciding_signal
from lowtide.job import Job
from lowtide.market.certificate import certify
from lowtide.market.cluster_plan import ClusterPlan, amount_of, least_of_nodes, words_of_proof
from lowtide.market.elastic import Widening, as_layers, find_prices, layers_of
from lowtide.market.instance import make_instance
from lowtide.market.lateness import require_alone
from lowtide.market.planner import Clock, require_options
from lowtide.market.planning import plan_cluster
from lowtide.market.prices import Auction
from lowtide.precedence import links_of, require_time
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.results import Simulation
from lowtide.simulator.simulation import as_workload, on_machines, simulate
from lowtide.steps import Steps
from lowtide.units import DurationLike, format_count, format_less, format_mass, parse_duration
from lowtide.workload import IntArray, Workload

# Into so many parts a step of the signal is cut where there are no more jobs than this.
_PARTS, _FEW = 4, 2000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ElasticPlan:
    """A queue planned together whose jobs change their width by the hour.

    Attributes:
        jobs: The jobs.
        plan: The plan of their layers, each of which is a job there: the nodes that a job has
            first, those that it has next, and so on.
        of: Which job each of those is.
        changing: Rows of jobs that change their width; the others cannot, and keep their own.
        lower_bound_g: What no plan in which nobody is late can come to less than, whenever jobs
            change their width.
        at_once: What all come to under EASY, each at its own width; None where that was not asked.
    """

    jobs: Workload
    plan: ClusterPlan
    of: IntArray
    changing: IntArray
    lower_bound_g: float
    at_once: float | None
    _auction: Auction = field(repr=False)
    _widening: Widening = field(repr=False)
    _apart: float = field(repr=False)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def amount(self) -> float:
        """What jobs and nodes come to: grams, or money on a price."""
        return self.plan.amount

    @property
    def simulation(self) -> Simulation:
        """The plan, carried out by the simulator."""
        return self.plan.simulation

    @property
    def late(self) -> IntArray:
        """Rows of jobs that are not in time: where any is, one width for each may be better."""
        return np.unique(self.of[[each.row for each in self.plan.late]])

    @property
    def gap_g(self) -> float | None:
        """The share of it that another plan could save at most; None with late jobs."""
        if self.late.size:
            return None
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
        return self.nodes_of_row(int(rows[0]))

    def nodes_of_row(self, row: int) -> Steps:
        """Return how many nodes the job of a row has over time."""
        begin, end = self._runs
        own = self.of[self.simulation.stretches.job] == row
        wide = self.simulation.jobs.nodes[self.simulation.stretches.job]
        return Steps.of_spans(begin[own], end[own], wide[own])

    @cached_property
    def _runs(self) -> tuple[FloatArray, FloatArray]:
        return self.simulation.runs

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
        hours: dict[float, float] = {}
        for row in self.changing.tolist():
            wide = self.nodes_of_row(row)
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
        widening, prices = self._widening, self._auction.prices
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
            "nodes": self._widening.instance.cluster.nodes,
            "amount": self.amount,
            "lower_bound_g": self.lower_bound_g,
            "gap_g": self.gap_g,
            "saving": self.saving,
            "easy_amount": self.at_once,
            "hours_at": {f"{share:g}": hours for share, hours in self.hours_at().items()},
            "late": int(self.late.size),
            "stopped": self.plan.stopped,
        }

    def __repr__(self) -> str:
        return f"<ElasticPlan: {self}>"

    def __str__(self) -> str:
        price = self._widening.instance.signal
        money = price.kind == "price"
        told = (lambda x: f"{x:.4g} {price.currency}") if money else format_mass
        nodes = format_count(self._widening.instance.cluster.nodes, "node")
        text = f"{format_count(len(self), 'job')} on {nodes}: {told(self.amount)}, "
        if self.gap_g is not None:
            text += words_of_proof(told, self.lower_bound_g, self.gap_g, None)
        if self.saving is not None:
            text += f"; {format_less(self.saving)} than EASY at their own width"
        late = f"{format_count(self.late.size, 'job')} late" if self.late.size else "nobody late"
        return f"{text}; {self.changing.size} change their width; {late}"


def plan_elastic(
    jobs: Workload | Sequence[Job],
    cluster: Cluster,
    signal: Signal | Grid,
    *,
    elastic: Mapping[float, float],
    gap: float = 0.005,
    wait: float | str | None = None,
    step: DurationLike | None = None,
    effort: float = 1.0,
    seconds: float | None = None,
    seed: int = 0,
    compare: bool = True,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> ElasticPlan:
    """Plan a queue together whose jobs may change their width from hour to hour.

    Jobs that may be stopped anywhere, start at no cost and draw constant power change their width;
    all others keep their own.

    Args:
        jobs: What is to be run.
        cluster: The machines; jobs do not share nodes.
        signal: What a kWh emits or costs. Of a grid, the average intensity decides.
        elastic: How many times as fast a job is at how many times its nodes, such as `{2: 1.9, 4:
            3.1}`; each further node helps less than the one before. Between two of these widths it
            may have any whole number of nodes, and is as fast as a straight line says, at least.
        gap: How near to the proven bound is near enough, as a share.
        wait: What an hour of delay counts, as `plan_cluster` takes it.
        step: How long a slot is, at which widths change.
        effort: How long to search, 1 for as long as usual; counted in steps.
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
    require_options(gap, effort, seconds, seed)
    clock = Clock(seconds)
    workload = on_machines(as_workload(jobs), cluster, "refuse", any_size=False)
    layers = layers_of(elastic)
    if cluster.failures is not None:
        raise InvalidInput("a plan knows of no nodes that break down: leave failures out")
    require_time(workload, links_of(workload))
    doing("laying out", 0.0)
    ruling = deciding_signal(signal)
    # What is left of a slot in which a job needs a part of it is lost: so slots are short.
    step_s = ruling.step_s / _PARTS if step is None and len(workload) <= _FEW else None
    instance = make_instance(
        workload,
        cluster,
        ruling,
        step_s=step_s if step is None else parse_duration(step),
        keeps=cluster.keeps,
    )
    if not instance.whole_nodes:
        raise InvalidInput(
            "widths are changed on nodes that jobs do not share: give each job more than half of "
            "what a node has"
        )
    require_alone(instance)
    instance = replace(instance, splits=True)
    auction, widening = find_prices(instance, layers, clock.is_over)
    made, of = as_layers(widening)
    plan = plan_cluster(
        made,
        cluster,
        signal,
        gap=gap,
        wait=wait,
        step=instance.step_s,
        effort=effort,
        seconds=None if seconds is None else max(seconds * (1 - clock.spent()), 1e-3),
        seed=seed,
        compare=False,
        doing=doing,
    )
    easy = None
    if compare and not clock.is_over():
        easy = simulate(
            workload, signal, cluster=cluster, discipline="easy", baseline=None, repeat_signal=True
        )
    apart = least_of_nodes(plan.simulation, instance)
    return ElasticPlan(
        jobs=workload,
        plan=plan,
        of=of,
        changing=widening.rows,
        lower_bound_g=math.fsum([auction.bound, apart]),
        at_once=None if easy is None else amount_of(easy, None),
        _auction=auction,
        _widening=widening,
        _apart=apart,
    )
