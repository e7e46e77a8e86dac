"""What planning a queue together gives: who runs when, what that is worth, and how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.accounting import Stretches, Tally
from lowtide.errors import InvalidInput, UnknownName
from lowtide.grid import DECIDING, Grid, carbon_and_price, deciding_signal
from lowtide.job import Job
from lowtide.market.any_moment import bound_at_any_moment
from lowtide.market.certificate import certify
from lowtide.market.enumeration import Enumerated, at_most_late
from lowtide.market.instance import Instance
from lowtide.market.lateness import counting, whole_jobs
from lowtide.market.prices import Auction, Prices
from lowtide.market.proofs import Proof
from lowtide.registry import chart_of
from lowtide.schedule import Schedule
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.results import Simulation
from lowtide.steps import Steps
from lowtide.units import (
    JOULES_PER_KWH,
    format_count,
    format_duration,
    format_html,
    format_less,
    format_mass,
    format_number,
)
from lowtide.workload import Workload

if TYPE_CHECKING:
    import polars as pl

    from lowtide.market.explaining import Moved, Quote

# A sum that is larger by less than this share is larger by rounding.
_ROUNDING = 1e-6
# So many jobs tell which of two sets of prices proves more for any moment.
_SAMPLE = 300
# Of so many jobs a summary tells what holds for any moment: of more it takes too long.
_FEW = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A job that is not in time.

    Attributes:
        row: Which job of the workload.
        by_s: How much later than its deadline it is done.
        full: Which share of the slots between its arrival and its deadline is full.
    """

    row: int
    by_s: float
    full: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClusterPlan:
    """A queue planned together.

    Attributes:
        simulation: The plan, carried out by the simulator: who ran when, and what that came to.
        easy: The same jobs run at once under EASY backfilling, which minds neither nodes that are
            away nor a cap that only the plan was given; None where that was not asked for.
        lower_bound: What no plan can count less than: carbon or cost, waiting included. Where jobs
            are late: no plan in which the same jobs are no later than here, and all others in time.
        counted: What this plan counts, likewise.
        lower_bound_g: What no plan can emit or cost less than, waiting apart: proven by prices of
            its own, with the same jobs as late at most.
        late: Jobs that are not in time, the latest first.
        least_late: How many must be late, whatever is planned.
        prices: What a unit of each resource is worth in each slot, and a kilowatt under a cap.
        passes: How often all jobs were planned to find the prices.
        stopped: What ended the search: `gap` (near enough), `effort` or `seconds`.
        weights: What a gram and a unit of money count, where a mix was minimised.
        left_out: What there was no time for.
    """

    simulation: Simulation
    easy: Simulation | None
    lower_bound: float
    counted: float
    lower_bound_g: float
    late: tuple[Late, ...]
    least_late: int
    prices: Prices
    passes: int
    stopped: str
    weights: Mapping[str, float] | None
    _instance: Instance = field(repr=False)
    _late_prices: Prices | None = field(repr=False)
    _proofs: tuple[Proof, Proof] = field(repr=False)
    _grid: Signal | Grid = field(repr=False)
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.simulation)

    @property
    def jobs(self) -> Workload:
        """The jobs."""
        return self.simulation.jobs

    @property
    def stretches(self) -> Stretches:
        """How each job runs, in columns."""
        return self.simulation.stretches

    @property
    def tally(self) -> Tally:
        """What each job comes to."""
        return self.simulation.tally

    @property
    def schedules(self) -> Sequence[Schedule]:
        """How each job runs, span by span, made when asked for."""
        return _Schedules(self.simulation)

    @property
    def gap(self) -> float:
        """The share of what it counts, waiting included, that another plan could save at most."""
        return _gap(self.counted, self.lower_bound)

    @property
    def gap_g(self) -> float:
        """The share of what it emits or costs that another could save at most, however it waits."""
        return _gap(self.amount, self.lower_bound_g)

    @property
    def minds_waiting(self) -> bool:
        """Whether waiting counted, so that it is not carbon or cost alone that is least."""
        return bool(self._instance.wait.any())

    @property
    def amount(self) -> float:
        """What jobs and nodes come to: grams, or money on a price."""
        return amount_of(self.simulation, self.weights)

    @property
    def saving(self) -> float | None:
        """The share of EASY's that is saved, None without it or where there is nothing to save."""
        if self.easy is None:
            return None
        against = amount_of(self.easy, self.weights)
        return 1.0 - self.amount / against if against > 0 else None

    @property
    def most_saving(self) -> float | None:
        """The share of EASY's that any plan could save at most."""
        if self.easy is None:
            return None
        against = amount_of(self.easy, self.weights)
        return 1.0 - self.lower_bound_g / against if against > 0 else None

    @property
    def ruling(self) -> Signal:
        """What was minimised."""
        if self.weights is not None and set(self.weights) == {"price"}:
            _, price = carbon_and_price(self.simulation.signal)
            assert price is not None  # noqa: S101 - it was planned by
            return price
        return deciding_signal(self.simulation.signal)

    @property
    def step_s(self) -> float:
        """How long a slot is, on which jobs start and stop."""
        return self._instance.step_s

    @property
    def lossless(self) -> bool:
        """Whether bounds hold for starts and stops at any moment, not for those of the plan alone.

        Else for starts on slots, and stops on slots or, where those are short, on every few.
        """
        return self._instance.lossless

    @property
    def resources(self) -> tuple[str, ...]:
        """What is scarce, as prices are told of it."""
        return self._instance.resources

    @property
    def planned_on(self) -> Instance:
        """The queue as it was laid out in slots."""
        return self._instance

    def held_by(self, row: int) -> FloatArray:
        """Return how much of each resource one job holds in each slot, on average."""
        begin, end = self.simulation.runs
        own = self.stretches.job == row
        one = Steps.of_spans(begin[own], end[own], 1.0).mean(self.edges)
        held: FloatArray = self._instance.queue.need[row][:, None] * one
        return held

    @property
    def edges(self) -> FloatArray:
        """The instants at which slots begin, and the end of the last."""
        return self._instance.edges

    def price(self, resource: str | None = None) -> Signal:
        """Return what a unit of a resource is worth over time, for each second of it.

        Args:
            resource: One of `resources`, by default the first.
        """
        row = self._row(resource)
        return Signal.from_values(
            self.prices.rent[row] / self.step_s,
            start=self._instance.origin,
            step_s=self.step_s,
            kind="occupancy",
            source=f"what a second of one of the {self.resources[row]} is worth",
        )

    def worth(self, resource: str | None = None) -> float:
        """Return what one more unit of a resource would save, about, over the whole time."""
        return float(self.prices.rent[self._row(resource)].sum())

    def _row(self, resource: str | None) -> int:
        if resource is None:
            return 0
        if resource not in self.resources:
            raise UnknownName("resource", str(resource), self.resources)
        return self.resources.index(resource)

    def held(self, simulation: Simulation | None = None, resource: str | None = None) -> FloatArray:
        """Return how much of a resource is held in each slot, on average.

        Args:
            simulation: Of another run, such as `easy`; by default of this plan.
        """
        ran = simulation or self.simulation
        begin, end = ran.runs
        need = self._instance.queue.need[:, self._row(resource)]
        return Steps.of_spans(begin, end, need[ran.stretches.job]).mean(self.edges)

    def capacity(self, resource: str | None = None) -> FloatArray:
        """Return how much of a resource there is in each slot."""
        there: FloatArray = self._instance.capacity[self._row(resource)]
        return there

    @cached_property
    def any_moment_bound_g(self) -> float | None:
        """What no plan can emit or cost less than, at whatever moments it starts and stops jobs.

        Where all lies on slots that is `lower_bound_g`, and else a little less. Waiting is apart,
        as there; None where it is not known. Takes a second for some thousand jobs.
        """
        if self.lossless:
            return self.lower_bound_g
        # Within a step of the signal, prices differ by chance, and jobs could slip between them.
        plain = self._proofs[1]
        even = plain.prices.evened(plain.instance)
        both, some = [even, plain.prices], range(0, len(self), max(len(self) // _SAMPLE, 1))
        if len(some) < len(self):
            # A few of the jobs tell which proves more.
            guess = [
                bound_at_any_moment(plain.instance, each, waiting=False, rows=some) for each in both
            ]
            both = both[:1] if (guess[0] or 0.0) >= (guess[1] or 0.0) else both[1:]
        found = [bound_at_any_moment(plain.instance, each, waiting=False) for each in both]
        known = [each for each in found if each is not None]
        return max(known) + self._apart if known else None

    def certify(self) -> float:
        """Compute the bounds again, by other code, and raise unless they are what was said.

        So is how many must be late.
        """
        whole, plain = self._proofs
        found = whole.certify() + self._apart
        apart = found if plain is whole else plain.certify() + self._apart
        for proven, said in ((found, self.lower_bound), (apart, self.lower_bound_g)):
            if abs(proven - said) > 1e-9 * max(abs(proven), abs(said), 1e-9):
                raise InvalidInput(
                    f"the prices prove {proven!r}, not {said!r}: prices or jobs are not those of "
                    "this plan"
                )
        if self._late_prices is not None and self.least_late:
            flat = counting(self._instance)
            must = whole_jobs(certify(flat, self._late_prices))
            if must < self.least_late:
                fewer = self._fewer_late(flat)
                must = self.least_late if fewer.complete and fewer.delay is None else must
            if must < self.least_late:
                raise InvalidInput(
                    f"it is proven that {must} must be late, not {self.least_late}: prices or jobs "
                    "are not those of this plan"
                )
        return found

    def _fewer_late(self, flat: Instance) -> Enumerated:
        """Look for a plan with fewer late jobs than must be, among all combinations."""
        prices = Auction(flat, self._late_prices)
        return at_most_late(flat, prices, self.least_late - 1)

    @cached_property
    def _apart(self) -> float:
        return least_of_nodes(self.simulation, self._instance)

    def find(self, job: object) -> int:
        """Return the row of a job by its id.

        Args:
            job: Its id, or the job.
        """
        wanted = job.id if isinstance(job, Job) else str(job)
        found = np.flatnonzero(np.array([str(each) for each in self.jobs.id]) == wanted)
        if not found.size:
            near = [str(each) for each in self.jobs.id[:1000]]
            raise UnknownName("job", wanted, near)
        return int(found[0])

    def quote(self, job: object) -> Quote:
        """Return what a job comes to, what it displaces, and why it runs when it does.

        Args:
            job: Its id, or the job.
        """
        from lowtide.market.explaining import explain_row

        return explain_row(self, self.find(job))

    def why(self, job: object) -> str:
        """Return why a job runs when it does, in words.

        Args:
            job: Its id, or the job.
        """
        return self.quote(job).why

    def amounts(self, paid: Tally | None = None) -> FloatArray:
        """Return what each job comes to, in what was minimised.

        Args:
            paid: Of other schedules of jobs; by default of this plan's.
        """
        paid = paid or self.tally
        if self.weights is None:
            return paid.amount
        parts = (
            (self.weights.get("carbon"), paid.carbon_g),
            (self.weights.get("price"), paid.cost),
        )
        total: FloatArray = sum(
            (weight * each for weight, each in parts if weight and each is not None),
            np.zeros(paid.amount.size),
        )
        return total

    def moved(self, most: int = 10) -> list[Moved]:
        """Return who made room for whom: jobs that come to more than alone, and who runs there.

        Args:
            most: Of how many to tell, those first to whom it makes most difference.
        """
        from lowtide.market.explaining import moved_jobs

        return moved_jobs(self, most)

    @property
    def scarce(self) -> tuple[str, ...]:
        """Resources that are worth anything at any time; the first where none is."""
        found = [name for name in self.resources if self.prices.rent[self._row(name)].any()]
        return tuple(found) or self.resources[:1]

    def paid(self) -> dict[str, tuple[float, float | None]]:
        """Return what all jobs come to in each signal that the grid has, here and under EASY."""
        grid, pue = self._grid, self._instance.cluster.pue
        if not isinstance(grid, Grid):
            return {}
        runs = [self.simulation, *(() if self.easy is None else (self.easy,))]
        found: dict[str, tuple[float, float | None]] = {}
        for name in DECIDING:
            signal = getattr(grid, name)
            if signal is None:
                continue
            drawn = [float(np.nansum(each.pieces.charge(signal, pue))) for each in runs]
            found[name] = (drawn[0], drawn[1] if len(drawn) > 1 else None)
        return found

    def users(self) -> dict[str, tuple[float, float | None]]:
        """Return what the jobs of each user who is named come to here, and under EASY."""
        known = np.array([each is not None for each in self.jobs.user])
        names, user = np.unique([str(each) for each in self.jobs.user[known]], return_inverse=True)
        ours = np.bincount(user, weights=self.tally.amount[known]).tolist()
        theirs: list[Any] = [None] * names.size
        if self.easy is not None:
            theirs = np.bincount(user, weights=self.easy.tally.amount[known]).tolist()
        return dict(zip(names.tolist(), zip(ours, theirs, strict=True), strict=True))

    def summary(self) -> dict[str, Any]:
        """Return the plan as a whole: one number per question, None where there is none."""
        carbon, price = carbon_and_price(self.simulation.signal)
        total = self.simulation.summary()
        easy = None if self.easy is None else self.easy.summary()
        waits = self.simulation.wait_s
        quick = len(self) <= _FEW and (self.lossless or self.stopped != "seconds")
        return {
            "jobs": len(self),
            "nodes": self._instance.cluster.nodes,
            "step_s": self.step_s,
            "slots": self._instance.slots,
            "lossless": self.lossless,
            "carbon_g": total["total_carbon_g"] if carbon is not None else None,
            "cost": total["total_cost"] if price is not None else None,
            "energy_j": total["total_energy_j"],
            "counted": self.counted,
            "lower_bound": self.lower_bound,
            "lower_bound_g": self.lower_bound_g,
            "any_moment_bound_g": self.any_moment_bound_g if quick else None,
            "gap": self.gap,
            "gap_g": self.gap_g,
            "saving": self.saving,
            "most_saving": self.most_saving,
            "late": len(self.late),
            "least_late": self.least_late,
            "mean_wait_s": float(waits.mean()),
            "max_wait_s": float(waits.max()),
            "mean_starts": float(self.tally.starts.mean()),
            "utilisation": total["utilisation"],
            "passes": self.passes,
            "stopped": self.stopped,
            "left_out": list(self.left_out),
            "easy_amount": None if self.easy is None else amount_of(self.easy, self.weights),
            "easy_late": None if self.easy is None else int(self.easy.missed.sum()),
            "easy_mean_wait_s": None if easy is None else easy["mean_wait_s"],
        }

    def proof_in_words(self, told: Callable[[float], str]) -> str:
        """Return what is proven of it, and of what.

        Args:
            told: Says an amount.
        """
        return words_of_proof(
            told, self.lower_bound_g, self.gap_g, self.gap if self.minds_waiting else None
        ) + (", none with these jobs as late at most" if self.late else "")

    def table(self) -> pl.DataFrame:
        """Return every job as a row."""
        return self.simulation.table()

    def chart(self) -> Any:
        """Return carbon, prices, machines held and who runs when, as a chart of Altair."""
        return chart_of("cluster plan", self)

    def _repr_html_(self) -> str:
        told = amount_in_words(self)
        columns = [("what", "emissions or cost", "late jobs", "mean wait")]
        for name, ran in (("plan", self.simulation), ("EASY", self.easy)):
            if ran is not None:
                late, wait = str(int(ran.missed.sum())), format_duration(float(ran.wait_s.mean()))
                columns.append((name, told(amount_of(ran, self.weights)), late, wait))
        worth = [(f"one more {one_of(each)} saves", told(self.worth(each))) for each in self.scarce]
        return format_html(f"{self}.", [*zip(*columns, strict=True), *worth])

    def __repr__(self) -> str:
        return f"<ClusterPlan: {self}>"

    def __str__(self) -> str:
        told = amount_in_words(self)
        parts = [
            f"{format_count(len(self), 'job')} on "
            f"{format_count(self._instance.cluster.nodes, 'node')}: {told(self.amount)}"
        ]
        parts[0] += f", {self.proof_in_words(told)}"
        if self.saving is not None:
            capped = isinstance(self._instance.terms["power_cap"], Signal)
            unlike = ", which minds no cap that changes" * capped
            parts.append(f"{format_less(self.saving)} than EASY{unlike}")
        if self.late:
            longest = max(each.by_s for each in self.late)
            parts.append(
                f"{format_count(len(self.late), 'job')} late, by {format_duration(longest)} at "
                f"most; at least {self.least_late} must be"
            )
        else:
            parts.append("nobody late")
        worse = [
            name
            for name, (ours, theirs) in self.users().items()
            if theirs is not None and ours > theirs * (1 + _ROUNDING)
        ]
        if worse:
            named = ", ".join(worse[:3]) + ", ..." * (len(worse) > 3)
            parts.append(f"more than under EASY: {format_count(len(worse), 'user')} ({named})")
        return "; ".join(parts)


class _Schedules(Sequence[Schedule]):
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def __len__(self) -> int:
        return len(self._simulation)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"there are {len(self)} schedules, and none at {index}")
        return self._simulation.schedule(row)


def amount_in_words(plan: ClusterPlan) -> Callable[[float], str]:
    """Return how amounts of a plan are told: as masses, or as money."""
    signal = plan.ruling
    if signal.kind == "price":
        return lambda amount: f"{format_number(amount)} {signal.currency}"
    if plan.weights is not None:
        # Of grams and money together there is no unit.
        return format_number
    return format_mass


def one_of(resource: str) -> str:
    """Return what one of a resource is called.

    >>> one_of("gpus"), one_of("nodes_cpus")
    ('gpu', 'node (cpus)')
    """
    nodes, _, what = resource.partition("_")
    return f"{nodes.removesuffix('s')} ({what})" if what else resource.removesuffix("s")


def words_of_proof(
    told: Callable[[float], str], bound: float, gap_g: float, gap: float | None
) -> str:
    """Return what is proven of a plan, in words.

    Args:
        told: Says an amount.
        bound: What no plan can come to less than, waiting apart.
        gap_g: The share by which that is less than what the plan comes to.
        gap: The share that could be saved of all that was counted; None where waiting was not.
    """
    near = f"proven within {100 * gap_g:.2f} % of the least: no plan comes to less than"
    text = f"{near} {told(bound)}"
    if gap is not None:
        text += (
            " however long jobs wait, and with waiting counted none is more than "
            f"{100 * gap:.2f} % better"
        )
    return text


def _gap(amount: float, bound: float) -> float:
    return max(amount - bound, 0.0) / abs(amount) if amount else 0.0


def amount_of(simulation: Simulation, weights: Mapping[str, float] | None) -> float:
    """Return what jobs and nodes of a run come to, in the unit of what was minimised."""
    numbers = simulation.total_numbers()
    if weights is None:
        carbon = numbers["total_carbon_g"]
        return float(numbers["total_cost"] or 0.0) if carbon is None else carbon
    pairs = (("carbon", "total_carbon_g"), ("price", "total_cost"))
    return sum(weights.get(name, 0.0) * (numbers[key] or 0.0) for name, key in pairs)


def least_of_nodes(simulation: Simulation, instance: Instance) -> float:
    """Return what nodes come to whatever is planned: those that are never off, or always."""
    spans = simulation.node_spans
    if spans is None:
        return 0.0
    begin, end = float(spans.begin.min()), float(spans.end.max())
    return least_while_idle(instance.cluster, instance.signal, begin, end)


def least_while_idle(cluster: Cluster, signal: Signal, begin: float, end: float) -> float:
    """Return what nodes come to that nobody uses: those that are never off, or always."""
    watts = cluster.idle_power_w if cluster.off_after_s is None else cluster.off_power_w
    if not watts:
        return 0.0
    counted = float(signal.integral(begin, min(end, signal.end)))
    return counted * watts * cluster.nodes * cluster.pue / JOULES_PER_KWH
