"""What came of a simulation: every job, the run as a whole, and quantities over time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowtide.accounting import Pieces, Stretches, Tally, integrate, pieces_of
from lowtide.grid import Grid, carbon_and_price, deciding_signal
from lowtide.job import TIME_TOLERANCE_S
from lowtide.registry import chart_of
from lowtide.schedule import Schedule
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.buying import Bought
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.queueing import NodeSpans
from lowtide.states import STATUSES
from lowtide.steps import Steps
from lowtide.units import MISSING, format_html, format_quantity
from lowtide.workload import Workload

if TYPE_CHECKING:
    import polars as pl

# Slowdown of a job of seconds says nothing: run times below this count as this.
SHORTEST_S = 10.0
# Amounts that differ by less than this share differ by rounding alone.
SAME_SHARE = 1e-9
# Energy in joules, emissions in grams, cost; None where one is not known.
_Amounts: TypeAlias = tuple[float | None, float | None, float | None]
_GOOD = tuple(STATUSES.index(name) for name in ("completed", "unknown"))


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Jobs that have run, in columns, and what they came to.

    Attributes:
        jobs: The jobs.
        signal: What a kWh emitted or cost.
        policy: Who decided.
        discipline: How the queue was served; None without limits, and on machines that are bought.
        cluster: On which machines; None without limits.
        stretches: How each job ran.
        tally: What each job came to.
        baseline: What each came to under the baseline's policy; None if there is none.
        baseline_policy: Which policy that is.
        node_spans: What the nodes drew besides, from the first arrival until all jobs had ended
            both here and under the baseline; None without limits.
        baseline_node_spans: The same under the baseline's policy.
        bought: How machines were paid for; None where that was not asked.
        decided_by: What jobs were decided by, where that is not what they are first paid in.
        marginal_g: What jobs emitted by the grid's marginal intensity; None where that is not
            known.
        baseline_marginal_g: The same under the baseline's policy.
    """

    jobs: Workload
    signal: Signal | Grid
    policy: str
    discipline: str | None
    cluster: Cluster | None
    stretches: Stretches
    tally: Tally
    baseline: Tally | None
    baseline_policy: str | None
    node_spans: NodeSpans | None
    baseline_node_spans: NodeSpans | None
    bought: Bought | None
    decided_by: str | None = None
    marginal_g: float | None = None
    baseline_marginal_g: float | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"<Simulation: {len(self)} jobs by {self.policy}>"

    def chart(self) -> Any:
        """Return the signal, CPUs in use, the queue and what was emitted by then, for Altair."""
        return chart_of("simulation", self)

    def _repr_html_(self) -> str:
        told = self.summary()
        counted = "cost" if told["total_carbon_g"] is None else "carbon_g"
        shown = (
            *("jobs", "deadline_misses", f"total_{counted}", f"baseline_total_{counted}"),
            *("saving", "mean_wait_s", "p99_wait_s", "mean_slowdown", "utilisation"),
        )
        rows = [(key, format_quantity(key, told[key])) for key in shown if key in told]
        return format_html(repr(self), [("of all jobs", "this run"), *rows])

    @property
    def wait_s(self) -> FloatArray:
        """How much later each job was done than if it had run at once."""
        waited = self.tally.end - self.jobs.arrival - self.jobs.run_s
        return np.where(waited > TIME_TOLERANCE_S, waited, 0.0)

    @property
    def slowdown(self) -> FloatArray:
        """Time in the system over run time, run times below 10 s counted as that, at least 1."""
        run_s = np.maximum(self.jobs.run_s, SHORTEST_S)
        return np.maximum((self.tally.end - self.jobs.arrival) / run_s, 1.0)

    @property
    def missed(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which jobs were done after their deadline."""
        return self.tally.end > self.jobs.deadline + TIME_TOLERANCE_S

    @property
    def saving(self) -> FloatArray | None:
        """The share of the baseline that each job saved, NaN where there is nothing to save."""
        if self.baseline is None:
            return None
        ours, theirs = self.tally.amount, self.baseline.amount
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(theirs > 0, 1.0 - ours / theirs, np.nan)

    def schedule(self, row: int) -> Schedule:
        """Return how one job ran, span by span."""
        return Schedule.from_stretches(self.jobs.job(row), self.stretches.of(row))

    @cached_property
    def pieces(self) -> Pieces:
        """Every stretch of constant power of every job."""
        return pieces_of(self.jobs, self.stretches)

    @cached_property
    def power(self) -> Steps:
        """What all jobs drew together over time, and the nodes' own where there are any."""
        begin, end, watts = self.pieces.begin, self.pieces.end, self.pieces.power_w
        if self.node_spans is not None:
            begin = np.concatenate((begin, self.node_spans.begin))
            end = np.concatenate((end, self.node_spans.end))
            watts = np.concatenate((watts, self.node_spans.power_w))
        return Steps.of_spans(begin, end, watts)

    @cached_property
    def queue(self) -> Steps:
        """How many jobs had arrived, were not done and did not run, over time.

        A job that was stopped and waits for its next turn, or for cleaner hours, is one of them.
        """
        begin, end = self.runs
        # Each job waits from its arrival, then from the end of each run, to the next run.
        first = np.append(True, np.diff(self.stretches.job) != 0)
        since = np.where(first, self.jobs.arrival[self.stretches.job], np.append(0.0, end[:-1]))
        return Steps.of_spans(since, np.maximum(begin, since), 1.0)

    @cached_property
    def running(self) -> Steps:
        """How many CPUs jobs ran on, over time."""
        begin, end = self.runs
        return Steps.of_spans(begin, end, self.jobs.cpus[self.stretches.job])

    @property
    def runs(self) -> tuple[FloatArray, FloatArray]:
        """When each stretch begins and ends, what stopping takes included."""
        which = self.stretches.job
        stops_s = np.array([*(each.stop_s for each in self.jobs.profiles), 0.0])
        last = np.append(np.diff(which) != 0, True)
        stop_s = np.where(last, 0.0, stops_s[self.jobs.profile[which]])
        lead_s = self.stretches.starting_s(self.jobs)
        ran_s = self.stretches.work_s + self.stretches.lost_s + lead_s + stop_s
        return self.stretches.start, self.stretches.start + ran_s

    def summary(self) -> dict[str, Any]:
        """Return the run as a whole: one number per question, None where there is none."""
        jobs, tally = self.jobs, self.tally
        first, last = float(jobs.arrival.min()), float(tally.end.max())
        edges = self._edges(first, last)
        return {
            "jobs": len(jobs),
            **{f"left_out_{reason}": count for reason, count in jobs.left_out.items()},
            **self._deadline_numbers(),
            "energy_j": float(tally.energy_j.sum()),
            "carbon_g": None if tally.carbon_g is None else float(tally.carbon_g.sum()),
            "cost": None if tally.cost is None else float(tally.cost.sum()),
            "currency": self.currency,
            "imputed_share": self.imputed_share,
            "machine_cost": None if self.bought is None else self.bought.total,
            "makespan_s": last - first,
            **_spread("wait_s", self.wait_s),
            **_spread("slowdown", self.slowdown),
            "mean_starts": float(tally.starts.mean()),
            "energy_delay_js": self._energy_delay(),
            **self._fairness_numbers(),
            "wasted_energy_j": float(tally.energy_j[~np.isin(jobs.status, _GOOD)].sum()),
            "mean_queue": float(self.queue.upto(np.array([last]))[0] / (last - first)),
            "max_queue": float(self.queue.values.max(initial=0.0)),
            "power_intensity_correlation": self._correlation(edges),
            "utilisation": self._utilisation(first, last),
            **self._node_numbers(),
            **self.total_numbers(),
            **self._saving_numbers(),
            **self._marginal_numbers(),
        }

    def _deadline_numbers(self) -> dict[str, float | int]:
        """Return how many deadlines were missed, and by how much: no saving makes up for them."""
        missed = self.missed
        late_s = (self.tally.end - self.jobs.deadline)[missed]
        return {
            "deadline_misses": int(missed.sum()),
            "missed_share": float(missed.mean()),
            "max_late_s": float(late_s.max(initial=0.0)),
        }

    def _energy_delay(self) -> float:
        """Return the energy of jobs and nodes times the mean time from arrival to end."""
        energy_j, _, _ = _in_all(self._parts(self.tally, self.node_spans))
        return float((energy_j or 0.0) * (self.tally.end - self.jobs.arrival).mean())

    def by_user(self) -> list[dict[str, Any]]:
        """Return what became of each user's jobs, who have most of them first."""
        tally, base = self.tally, self.baseline
        names = np.array([MISSING if each is None else str(each) for each in self.jobs.user])
        rows = []
        for name in dict.fromkeys(names.tolist()):
            mine = names == name

            def mean(values: FloatArray, mine: Any = mine) -> float:
                return float(values[mine].mean())

            def total(values: FloatArray | None, mine: Any = mine) -> float | None:
                return None if values is None else float(values[mine].sum())

            rows.append(
                {
                    "user": None if name == MISSING else name,
                    "jobs": int(mine.sum()),
                    "deadline_misses": int(self.missed[mine].sum()),
                    "energy_j": total(tally.energy_j),
                    "carbon_g": total(tally.carbon_g),
                    "cost": total(tally.cost),
                    "baseline_amount": None if base is None else total(base.amount),
                    "amount": total(tally.amount),
                    "mean_wait_s": mean(self.wait_s),
                    "mean_slowdown": mean(self.slowdown),
                }
            )
        return sorted(rows, key=lambda row: -row["jobs"])

    def _fairness_numbers(self) -> dict[str, float | int | None]:
        """Return how alike users fare: by Jain's index, 1 where their mean slowdowns are equal."""
        if all(each is None for each in self.jobs.user.tolist()):
            return {"users": None, "fairness": None, "users_worse_off": None}
        users = [row for row in self.by_user() if row["user"] is not None]
        slowdowns = np.array([row["mean_slowdown"] for row in users])
        worse = None
        if self.baseline is not None:
            worse = sum(row["amount"] > row["baseline_amount"] * (1 + SAME_SHARE) for row in users)
        return {
            "users": len(users),
            "fairness": float(slowdowns.sum() ** 2 / (slowdowns.size * (slowdowns**2).sum())),
            "users_worse_off": worse,
        }

    def _marginal_numbers(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        if self.marginal_g is not None:
            numbers["marginal_carbon_g"] = self.marginal_g
            if self.baseline_marginal_g is not None:
                numbers["baseline_marginal_carbon_g"] = self.baseline_marginal_g
                numbers["marginal_saving"] = _share_saved(self.marginal_g, self.baseline_marginal_g)
        return numbers if self.decided_by is None else {"decided_by": self.decided_by, **numbers}

    def timeline(self) -> pl.DataFrame:
        """Return every step of the signal as a row: what ran, waited, was drawn and emitted.

        `carbon_g`, or `cost` where prices decide, is of jobs and nodes in the step, and
        `cumulative_` what it has come to by the step's end; PUE is in both.
        """
        import polars as pl

        first, last = float(self.jobs.arrival.min()), float(self.tally.end.max())
        if self.node_spans is not None and self.node_spans.end.size:
            last = max(last, float(self.node_spans.end.max()))
        edges = self._edges(first, last)
        signal = deciding_signal(self.signal)
        pue = 1.0 if self.cluster is None else self.cluster.pue
        power_w = self.power.mean(edges)
        rate = signal.at(edges[:-1])
        amount = integrate(pue * power_w, edges[:-1], edges[1:], signal)
        name = "cost" if signal.kind == "price" else "carbon_g"
        cpus = self.running.mean(edges)
        there = None if self.cluster is None or self.bought is not None else self.cluster.cpus
        columns = {
            "time": np.round(1e6 * edges[:-1]).astype("datetime64[us]"),
            "rate": rate,
            "cpus": cpus,
            "utilisation": None if there is None else cpus / there,
            "queue": self.queue.mean(edges),
            "power_w": power_w,
            name: amount,
            f"cumulative_{name}": np.cumsum(amount),
        }
        frame = pl.DataFrame({key: each for key, each in columns.items() if each is not None})
        return frame.with_columns(pl.col("time").dt.replace_time_zone("UTC"))

    @property
    def currency(self) -> str | None:
        """What electricity is paid in; None where its price is not known."""
        _, price = carbon_and_price(self.signal)
        return None if price is None else price.currency

    @property
    def used_signal(self) -> Signal:
        """The steps of the deciding signal from the first arrival to the last end."""
        return deciding_signal(self.signal).window(
            float(self.jobs.arrival.min()), float(self.tally.end.max())
        )

    @property
    def imputed_share(self) -> float:
        """The share of those steps that nobody measured: filled in, or estimated."""
        return self.used_signal.imputed

    def _utilisation(self, first: float, last: float) -> float | None:
        """Return which share of the CPUs that there are was used, where there are only so many."""
        if self.cluster is None:
            return None
        if self.bought is None:
            held_s = float(self.running.upto(np.array([last]))[0])
            return held_s / (self.cluster.cpus * (last - first))
        # What is bought as it is needed is always used; what is reserved is there in any case.
        if not self.bought.reserved_cpus:
            return None
        held_s = float((self.jobs.cpus * self.jobs.run_s)[self.bought.on_reserved].sum())
        return held_s / (self.bought.reserved_cpus * (last - first))

    def _node_numbers(self) -> dict[str, float | None]:
        """Return what the nodes drew of their own: by being on, on their way, and off."""
        names = ("node_energy_j", "idle_energy_j", "boot_energy_j", "off_energy_j")
        spans = self.node_spans
        if spans is None:
            return dict.fromkeys((*names, "node_carbon_g", "node_cost"))
        drawn_j = spans.energy_j
        off = ~(spans.on | spans.booting)
        parts = (drawn_j, drawn_j[spans.on], drawn_j[spans.booting], drawn_j[off])
        carbon, price = carbon_and_price(self.signal)
        return {
            **{name: float(part.sum()) for name, part in zip(names, parts, strict=True)},
            "node_carbon_g": self._charged(spans, carbon),
            "node_cost": self._charged(spans, price),
        }

    def _charged(self, spans: NodeSpans | None, signal: Signal | None) -> float | None:
        """Return what the nodes emitted, or what that cost, PUE included."""
        if spans is None or self.cluster is None or signal is None:
            return None
        watts = spans.power_w * self.cluster.pue
        return float(integrate(watts, spans.begin, spans.end, signal).sum())

    def total_numbers(self) -> dict[str, float | None]:
        """Return what jobs and nodes came to together, and the parts of it under the baseline."""
        numbers = _named("total", _in_all(self._parts(self.tally, self.node_spans)))
        if self.baseline is not None:
            parts = self._parts(self.baseline, self.baseline_node_spans)
            jobs, nodes = parts
            numbers |= _named("baseline", jobs)
            numbers |= _named("baseline_node", nodes)
            numbers |= _named("baseline_total", _in_all(parts))
        return numbers

    def _parts(self, tally: Tally, spans: NodeSpans | None) -> tuple[_Amounts, _Amounts]:
        """Return the energy, emissions and cost of jobs, and those of the nodes themselves.

        What nodes emit has PUE in it, as what jobs emit has; energy is that of the machines.
        """
        carbon, price = carbon_and_price(self.signal)
        jobs = (
            float(tally.energy_j.sum()),
            None if tally.carbon_g is None else float(tally.carbon_g.sum()),
            None if tally.cost is None else float(tally.cost.sum()),
        )
        energy_j = None if spans is None else float(spans.energy_j.sum())
        return jobs, (energy_j, self._charged(spans, carbon), self._charged(spans, price))

    def _saving_numbers(self) -> dict[str, Any]:
        """Return what was saved against the baseline: by jobs and nodes, and by jobs alone."""
        if self.baseline is None:
            return {}
        carbon, _ = carbon_and_price(self.signal)
        counted = "cost" if carbon is None else "carbon_g"
        totals = self.total_numbers()
        ours, theirs = totals[f"total_{counted}"] or 0.0, totals[f"baseline_total_{counted}"] or 0.0
        numbers: dict[str, Any] = {"baseline": self.baseline_policy}
        if self.cluster is not None and self.node_spans is not None and self.cluster.draws_power:
            jobs = float(self.tally.amount.sum()), float(self.baseline.amount.sum())
            numbers["jobs_saving"] = _share_saved(*jobs)
        numbers["baseline_amount"] = theirs
        numbers["saving"] = _share_saved(ours, theirs)
        if counted == "carbon_g" and totals["total_cost"] is not None:
            costs = totals["total_cost"], totals["baseline_total_cost"] or 0.0
            numbers["cost_saving"] = _share_saved(*costs)
        saving = self.saving
        if saving is not None and np.isfinite(saving).any():
            numbers |= _spread("job_saving", saving[np.isfinite(saving)])
        return numbers

    def table(self) -> pl.DataFrame:
        """Return every job as a row."""
        import polars as pl

        jobs, tally = self.jobs, self.tally
        columns: dict[str, Any] = {
            "id": [str(each) for each in jobs.id.tolist()],
            "arrival": jobs.arrival,
            "deadline": jobs.deadline,
            "start": tally.start,
            "end": tally.end,
            "run_s": jobs.run_s,
            "cpus": jobs.cpus,
            "energy_j": tally.energy_j,
            "carbon_g": tally.carbon_g,
            "cost": tally.cost,
            "wait_s": self.wait_s,
            "slowdown": self.slowdown,
            "starts": tally.starts,
            "missed": self.missed,
            "status": [STATUSES[place] for place in jobs.status.tolist()],
            "saving": self.saving,
        }
        if self.bought is not None:
            columns["bought"] = self.bought.names
            columns["machine_cost"] = self.bought.cost
        return pl.DataFrame({name: each for name, each in columns.items() if each is not None})

    def _edges(self, first: float, last: float) -> FloatArray:
        """Return the edges of the signal's steps that the run touches."""
        signal = deciding_signal(self.signal)
        edges = signal.edges
        return edges[
            max(int(np.searchsorted(edges, first, side="right")) - 1, 0) : int(
                np.searchsorted(edges, last, side="left")
            )
            + 1
        ]

    def _correlation(self, edges: FloatArray) -> float | None:
        """Return how power and intensity go together, over the signal's steps."""
        if edges.size < 3:
            return None
        power = self.power.mean(edges)
        intensity = deciding_signal(self.signal).at(edges[:-1])
        if not (np.ptp(power) > 0 and np.ptp(intensity) > 0):
            return None
        return float(np.corrcoef(power, intensity)[0, 1])


def _in_all(parts: tuple[_Amounts, _Amounts]) -> _Amounts:
    """Return jobs and nodes together; nodes that nobody looked at add nothing."""
    jobs, nodes = parts
    energy_j, carbon_g, cost = (
        None if mine is None else mine + (theirs or 0.0)
        for mine, theirs in zip(jobs, nodes, strict=True)
    )
    return energy_j, carbon_g, cost


def _named(of: str, amounts: _Amounts) -> dict[str, float | None]:
    return dict(zip((f"{of}_energy_j", f"{of}_carbon_g", f"{of}_cost"), amounts, strict=True))


def _share_saved(ours: float, theirs: float) -> float | None:
    return 1.0 - ours / theirs if theirs > 0 else None


def _spread(name: str, values: FloatArray) -> dict[str, float]:
    """Return the mean and quantiles of a column: a mean alone hides who waits."""
    low, middle, high, most = np.quantile(values, [0.05, 0.5, 0.95, 0.99])
    return {
        f"mean_{name}": float(values.mean()),
        f"p05_{name}": float(low),
        f"median_{name}": float(middle),
        f"p95_{name}": float(high),
        f"p99_{name}": float(most),
        f"max_{name}": float(values.max()),
    }
