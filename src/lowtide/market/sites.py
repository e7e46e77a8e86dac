"""A queue at several sites, planned together: which job runs where, when and how wide.

Sites are kinds of machines, or places with grids of their own. The bound is that of all ways at
once. What is planned for each site is carried out there by the simulator, and what that comes to is
what the plan says it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.market.certificate import certify
from lowtide.market.cluster_plan import least_while_idle, words_of_proof
from lowtide.market.instance import Instance, make_instance
from lowtide.market.joining import Joined, Site, join, of_site
from lowtide.market.nodes import place_on_nodes
from lowtide.market.placing import Board, rebuilt
from lowtide.market.planner import Clock, QueueSolution, require_options, solve
from lowtide.market.planning import wait_rate
from lowtide.market.prices import Auction, Prices
from lowtide.market.proofs import prove
from lowtide.precedence import broken
from lowtide.registry import chart_of
from lowtide.signal import FloatArray
from lowtide.simulator.carrying import replay
from lowtide.simulator.queueing import Placed
from lowtide.simulator.results import Simulation
from lowtide.simulator.simulation import as_workload, simulate
from lowtide.units import (
    DurationLike,
    format_count,
    format_html,
    format_less,
    format_mass,
    parse_duration,
)
from lowtide.workload import IntArray, Workload


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SitesPlan:
    """A queue planned at several sites.

    Attributes:
        jobs: The jobs.
        sites: The sites by name.
        site: The name of the site at which each job runs.
        width: How many times as wide as it asked to be each runs.
        start: When each starts.
        end: When each is done.
        amount_of: What each comes to, with bringing it there.
        simulations: What is planned for each site, carried out there; None where nobody runs.
        nodes_amount: What nodes come to themselves at each site.
        lower_bound: What no plan can count less than, waiting included.
        counted: What this plan counts, likewise.
        lower_bound_g: What no plan can emit or cost less than, waiting apart; None with late jobs.
        late: Rows of jobs that are not in time.
        least_late: How many must be late, whatever is planned.
        prices: What a unit of each resource of each site is worth in each slot.
        at_home: What all would come to at home, at once under EASY backfilling, which minds nobody
            who waits for another; None where that was not asked for.
        stopped: What ended the search: `gap`, `effort` or `seconds`.
    """

    jobs: Workload
    sites: Mapping[str, Site]
    site: tuple[str, ...]
    width: FloatArray
    start: FloatArray
    end: FloatArray
    amount_of: FloatArray
    simulations: Mapping[str, Simulation | None]
    nodes_amount: Mapping[str, float]
    lower_bound: float
    counted: float
    lower_bound_g: float | None
    late: IntArray
    least_late: int
    prices: Prices
    at_home: float | None
    stopped: str
    _joined: Joined = field(repr=False)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def amount(self) -> float:
        """What jobs and nodes of all sites come to: grams, or money on a price."""
        return float(self.amount_of.sum()) + sum(self.nodes_amount.values())

    @property
    def gap(self) -> float | None:
        """The share of what it counts that another plan could save at most; None with late jobs."""
        if self.late.size:
            return None
        return max(self.counted - self.lower_bound, 0.0) / max(abs(self.counted), 1e-300)

    @property
    def gap_g(self) -> float | None:
        """The share of what it emits or costs that another could save; None with late jobs."""
        if self.lower_bound_g is None:
            return None
        return max(self.amount - self.lower_bound_g, 0.0) / max(abs(self.amount), 1e-300)

    @property
    def saving(self) -> float | None:
        """The share that is saved of what all come to at home; None where that is not known."""
        return None if not self.at_home else 1.0 - self.amount / self.at_home

    @property
    def moved(self) -> int:
        """How many jobs run elsewhere than at home."""
        names = list(self.sites)
        return sum(
            names[home] != site for home, site in zip(self._joined.home, self.site, strict=True)
        )

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """What is scarce, as prices are told of it: each resource of each site."""
        return self._joined.instance.resources

    def worth(self, resource: str) -> float:
        """Return what one more unit of a resource would save, about, over the whole time."""
        if resource not in self.resources:
            raise InvalidInput(f"prices are of {', '.join(self.resources)}, not {resource!r}")
        return float(self.prices.rent[self.resources.index(resource)].sum())

    def certify(self) -> float:
        """Compute the bound again, by other code, and raise unless it is what was said."""
        instance = self._joined.instance
        found = certify(instance, self.prices) + _always(self.sites, *_horizon(self.jobs, self.end))
        if abs(found - self.lower_bound) > 1e-9 * max(abs(found), abs(self.lower_bound), 1e-9):
            raise InvalidInput(f"the prices prove {found!r}, not {self.lower_bound!r}")
        return found

    def summary(self) -> dict[str, Any]:
        """Return the plan as a whole: one number per question, None where there is none."""
        return {
            "jobs": len(self),
            "sites": {
                name: {
                    "jobs": self.site.count(name),
                    "nodes": site.cluster.nodes,
                    "amount": float(self.amount_of[np.array(self.site) == name].sum()),
                    "nodes_amount": self.nodes_amount[name],
                }
                for name, site in self.sites.items()
            },
            "amount": self.amount,
            "counted": self.counted,
            "lower_bound": self.lower_bound,
            "lower_bound_g": self.lower_bound_g,
            "gap": self.gap,
            "gap_g": self.gap_g,
            "saving": self.saving,
            "at_home": self.at_home,
            "moved": self.moved,
            "late": int(self.late.size),
            "least_late": self.least_late,
            "stopped": self.stopped,
        }

    def chart(self) -> Any:
        """Return each site's signal and the nodes held there, as a chart of Altair."""
        return chart_of("sites plan", self)

    def _repr_html_(self) -> str:
        return format_html(str(self))

    def __repr__(self) -> str:
        return f"<SitesPlan: {self}>"

    def __str__(self) -> str:
        price = next(iter(self.sites.values())).signal
        money = price.kind == "price"
        told = (lambda x: f"{x:.4g} {price.currency}") if money else format_mass
        sites = format_count(len(self.sites), "site")
        text = f"{format_count(len(self), 'job')} at {sites}: {told(self.amount)}"
        if self.gap is not None and self.lower_bound_g is not None:
            gap = self.gap if self._joined.instance.wait.any() else None
            text += f", {words_of_proof(told, self.lower_bound_g, self.gap_g or 0.0, gap)}"
        if self.saving is not None:
            text += f"; {format_less(self.saving)} than at home at once"
        late = f"{format_count(self.late.size, 'job')} late, at least {self.least_late} must be"
        return f"{text}; {self.moved} moved; {late if self.late.size else 'nobody late'}"


def plan_sites(
    jobs: Workload | Sequence[Job],
    sites: Mapping[str, Site],
    *,
    gap: float = 0.005,
    wait: float | str | None = None,
    step: DurationLike | None = None,
    elastic: Mapping[float, float] | None = None,
    homes: Sequence[str] | None = None,
    effort: float = 1.0,
    seconds: float | None = None,
    seed: int = 0,
    compare: bool = True,
    doing: Callable[[str, float], None] = lambda _what, _share: None,
) -> SitesPlan:
    """Plan a queue at several sites together, and prove how near to the best that is.

    Sites are kinds of machines, with speed and power of their own, or places with grids of their
    own; jobs run at any that they fit at, and may be brought there at a cost.

    Args:
        jobs: What is to be run.
        sites: Where it can be, by name.
        gap: How near to the proven bound is near enough, as a share.
        wait: What an hour of delay counts, as `plan_cluster` takes it.
        step: How long a slot is, on which jobs start and stop.
        elastic: How many times as fast a job is at how many times its nodes, such as `{0.5: 0.52,
            2: 1.9}`: each job runs at one of these widths, from its start to its end.
        homes: At which site each job is at home; by default at the first that it fits at.
        effort: How long to search, 1 for as long as usual; counted in steps.
        seconds: CPU seconds after which the best plan so far is taken; None for any number.
        compare: Whether to tell it against all jobs at home, at once under EASY.
        doing: Told what is being done, and how far that is, now and then.

    >>> from lowtide.profile import PowerProfile
    >>> from lowtide.signal import Signal
    >>> from lowtide.simulator.cluster import Cluster
    >>> one = Cluster(nodes=1, cpus_per_node=1)
    >>> here = Site(cluster=one, signal=Signal.from_values([300, 300], start=0, step_s="1h"))
    >>> north = replace(here, signal=Signal.from_values([50, 50], start=0, step_s="1h"))
    >>> hour = PowerProfile.constant(1000, "1h")
    >>> two = [Job(id=name, arrival=0, deadline="+1h", profile=hour) for name in "ab"]
    >>> plan = plan_sites(two, {"here": here, "north": replace(north, transfer=20)}, wait=0)
    >>> plan.amount, plan.moved
    (370.0, 1)
    """
    require_options(gap, effort, seconds, seed)
    clock = Clock(seconds)
    workload = as_workload(jobs)
    kinds = {each.signal.kind for each in sites.values() if isinstance(each, Site)}
    if len(kinds) > 1:
        raise InvalidInput(f"the signals of all sites count one thing, not {' and '.join(kinds)}")
    doing("laying out", 0.0)
    signal = next(iter(sites.values())).signal if sites else None
    rate = 0.0 if signal is None else wait_rate(wait, workload, signal)
    joined = join(
        workload,
        sites,
        step_s=None if step is None else parse_duration(step),
        wait=rate,
        elastic=elastic,
        homes=homes,
    )
    instance = joined.instance
    if instance.links.before.size and not instance.whole_nodes:
        raise InvalidInput(
            "at several sites jobs that wait for others are planned on whole nodes: give each more "
            "than half of what a node has, or plan one site with plan_cluster"
        )
    found = solve(instance, gap=gap, effort=effort, clock=clock, seed=seed, doing=doing)
    doing("carrying out", 0.0)
    at_home = None
    if compare and not clock.is_over():
        at_home = _at_home(joined, sites)
    return _carried_out(joined, sites, found, at_home, clock.is_over)


def _carried_out(
    joined: Joined,
    sites: Mapping[str, Site],
    found: QueueSolution,
    at_home: float | None,
    is_over: Callable[[], bool],
) -> SitesPlan:
    """Return a solution, each site's part of it carried out there."""
    jobs, instance = joined.jobs, joined.instance
    longer, count = found.board.instance, len(joined.jobs)
    begin = float(jobs.arrival.min())
    site_of, width = np.zeros(count, dtype=np.int64), np.ones(count)
    start, end, amount = np.full((3, count), np.nan)
    parts: list[tuple[Workload, Stretches, Placed | None, IntArray] | None] = []
    for number in range(len(sites)):
        parts.append(_part(longer, number, found, joined))
        if parts[-1] is None:
            continue
        own, runs, _, of = parts[-1]
        site_of[of] = number
        _, widths = joined.ways[number]
        width[of] = widths[_rows_placed(longer, number, found.board)]
        start[of] = runs.start[runs.first]
    done = [
        float((runs.start + runs.starting_s(own) + runs.work_s).max())
        for own, runs, _, _ in (each for each in parts if each is not None)
    ]
    until = max(float(jobs.deadline.max()), *done)
    simulations: dict[str, Simulation | None] = {}
    nodes_amount: dict[str, float] = {}
    for number, (name, site) in enumerate(sites.items()):
        part = parts[number]
        if part is None:
            simulations[name] = None
            nodes_amount[name] = _always({name: site}, begin, until)
            continue
        own, runs, placed, of = part
        ran = replay(
            own,
            runs,
            site.signal,
            site.cluster,
            placed=placed,
            power_cap=site.power_cap,
            since=begin,
            until=until,
        )
        simulations[name] = ran
        nodes_amount[name] = _all_of_it(ran, site) - float(ran.tally.amount.sum())
        end[of] = ran.tally.end
        amount[of] = ran.tally.amount + (joined.home[of] != number) * site.transfer
    if broken(start, end, instance.links).any():
        raise InvalidInput("the plan lets a job start before one that it waits for: report this")
    late = np.flatnonzero(end > jobs.deadline + TIME_TOLERANCE_S)
    always = _always(sites, begin, until)
    waited = float((instance.wait * (end - jobs.arrival - jobs.run_s)).sum())
    total = float(amount.sum()) + sum(nodes_amount.values())

    def plain() -> float:
        """Return what is proven of emissions or cost alone."""
        if not instance.wait.any():
            return found.auction.bound
        alone = _without_waiting(instance, joined)
        return prove(alone, found.auction.prices, total - always, is_over).bound

    return SitesPlan(
        jobs=jobs,
        sites=dict(sites),
        site=tuple(list(sites)[each] for each in site_of.tolist()),
        width=width,
        start=start,
        end=end,
        amount_of=amount,
        simulations=simulations,
        nodes_amount=nodes_amount,
        lower_bound=found.auction.bound + always,
        counted=total + waited if not late.size else found.total + always,
        lower_bound_g=None if late.size else plain() + always,
        late=late,
        least_late=found.least_late,
        prices=found.auction.prices,
        at_home=at_home,
        stopped=found.stopped,
        _joined=joined,
    )


def _all_of_it(ran: Simulation, site: Site) -> float:
    """Return what jobs and nodes of a site come to, in what its signal counts."""
    numbers = ran.total_numbers()
    whole = numbers["total_cost" if site.signal.kind == "price" else "total_carbon_g"]
    return float(whole or 0.0)


def _rows_placed(longer: Instance, number: int, board: Board) -> IntArray:
    """Return which rows of a site's own queue have a place."""
    return np.flatnonzero(of_site(longer, number, board.delay, board.placed)[1])


def _part(
    longer: Instance, number: int, found: QueueSolution, joined: Joined
) -> tuple[Workload, Stretches, Placed | None, IntArray] | None:
    """Return who runs at a site, how, on which nodes and which jobs they are; None for nobody."""
    board, site = found.board, longer.sites[number]
    delay, placed = of_site(longer, number, board.delay, board.placed)
    rows = np.flatnonzero(placed)
    if not rows.size:
        return None
    of = joined.ways[number][0][rows]
    own = site.jobs.take(rows)
    if site.whole_nodes:
        runs = site.stretches(delay, placed)
        return own, replace(runs, job=np.searchsorted(rows, runs.job)), None, of
    # On nodes that are shared, those that run here are put on each of them.
    own = replace(own, deadline=np.maximum(own.deadline, joined.jobs.deadline[of]))
    alone = make_instance(
        own,
        site.cluster,
        site.signal,
        step_s=site.step_s,
        wait=site.wait[rows],
        until=float(longer.edges[-1]),
        begin=float(joined.jobs.arrival.min()),
        window=(site.window[0][rows], site.window[1][rows]),
        **site.terms,
    )
    sizes = site.queue.jobs["end"] - site.queue.jobs["part"] + 1
    kept = np.repeat(placed, sizes)
    _, columns = longer.site_rows[number]
    rent = found.auction.prices.rent[columns]
    prices = Prices(
        rent=np.stack([rent[site.resources.index(name)] for name in alone.resources]),
        power=found.auction.prices.power[number],
    )
    here = rebuilt(alone, delay[kept], np.ones(rows.size, dtype=np.bool_), Prices.nothing(alone))
    laid, nodes = place_on_nodes(replace(found, board=here, auction=Auction(alone, prices)))
    return own, laid.instance.stretches(laid.delay, laid.placed), nodes, of


def _horizon(jobs: Workload, end: FloatArray) -> tuple[float, float]:
    """Return from when to when nodes are looked at."""
    return float(jobs.arrival.min()), float(max(jobs.deadline.max(), end.max()))


def _always(sites: Mapping[str, Site], begin: float, until: float) -> float:
    """Return what nodes come to whatever is planned: those that are never off, or always."""
    return sum(least_while_idle(each.cluster, each.signal, begin, until) for each in sites.values())


def _without_waiting(instance: Instance, joined: Joined) -> Instance:
    """Return an instance in which nothing counts but emissions or cost, bringing jobs included."""
    rows = instance.queue.jobs.copy()
    jobs, of = joined.jobs, instance.job_of
    waits = instance.wait[of] * (instance.base - jobs.arrival[of])
    longer_s = np.zeros(rows.size)
    for (own, _), part in zip(instance.site_rows, instance.sites, strict=True):
        longer_s[own] = part.jobs.run_s - jobs.run_s[of[own]]
    rows["already"] -= waits + instance.wait[of] * longer_s
    rows["wait"] = 0.0
    return replace(instance, queue=instance.queue._replace(jobs=rows))


def _at_home(joined: Joined, sites: Mapping[str, Site]) -> float:
    """Return what all jobs come to at home, at once under EASY backfilling."""
    total = 0.0
    jobs, begin = joined.jobs, float(joined.jobs.arrival.min())
    for number, (name, site) in enumerate(sites.items()):
        ways, widths = joined.ways[number]
        rows = np.flatnonzero((joined.home[ways] == number) & (widths == 1.0))
        if not rows.size:
            total += _always({name: site}, begin, float(jobs.deadline.max()))
            continue
        ran = simulate(
            joined.instance.sites[number].jobs.take(rows),
            site.signal,
            cluster=site.cluster,
            discipline="easy",
            baseline=None,
            repeat_signal=True,
        )
        total += float(ran.tally.amount.sum())
        if site.cluster.off_after_s is None:
            total += _always({name: site}, begin, float(jobs.deadline.max()))
        else:
            total += _all_of_it(ran, site) - float(ran.tally.amount.sum())
    return total
