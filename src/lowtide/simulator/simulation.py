"""Many jobs over time, on machines without end or with limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn, Protocol, cast, runtime_checkable

import numpy as np

from lowtide.accounting import Stretches, tally
from lowtide.errors import InvalidInput, InvalidJob, NotCovered, UnknownName
from lowtide.grid import Grid, deciding_signal, ruling_signal
from lowtide.job import INTERRUPTIBLE, TIME_TOLERANCE_S, Job
from lowtide.policies.policy import (
    Policy,
    Scheduled,
    SeesQueue,
    decide_many,
    make_policy,
    name_of,
    stops_jobs,
)
from lowtide.policies.wrappers import Purchasing
from lowtide.precedence import links_of, require_time, windows
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.buying import Bought, buy
from lowtide.simulator.carrying import carry_out
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import (
    TAKING_TURNS,
    Discipline,
    OwnDiscipline,
    make_discipline,
)
from lowtide.simulator.queueing import NodeSpans, Queued, run_queue
from lowtide.simulator.results import Simulation
from lowtide.simulator.serving import run_scheduler
from lowtide.trace import Trace
from lowtide.units import format_count, format_hours, format_time
from lowtide.workload import Workload

# What may be done with jobs that fit on no node of the cluster, even alone.
OVERSIZED = ("refuse", "drop", "spread")


_NO_STOPS = (
    "{} decides when jobs start, and the policy stops them meanwhile: {}, use a start policy "
    "(oracle, carbon_time, lowest_window, ...), or make the jobs interruptible 'never'"
)


@runtime_checkable
class QueuePolicy(Protocol):
    """A policy that sees the whole queue and the machines, and says when who runs on them.

    What it says is carried out as it stands, stops included; what does not fit is refused.
    """

    def decide_queue(self, jobs: Workload, signal: Signal, cluster: Cluster) -> Stretches | Queued:
        """Decide for all jobs of a queue: when they run, or, as laid on the machines, where too.

        Args:
            jobs: The jobs, by their arrivals.
            signal: What a kWh counts.
            cluster: The machines.
        """
        ...


class _Course(NamedTuple):
    """How a workload ran, and what its nodes did, without an end."""

    stretches: Stretches
    nodes: NodeSpans | None
    bought: Bought | None


def simulate(
    jobs: Workload | Sequence[Job],
    signal: Signal | Grid,
    *,
    policy: str | Policy | SeesQueue = "run_now",
    cluster: Cluster | None = None,
    discipline: str | Discipline | None = None,
    queue: str | Discipline | None = None,
    baseline: str | Policy | None = "run_now",
    repeat_signal: bool = False,
    oversized: str = "refuse",
    decide: str | Mapping[str, float] | None = None,
    advance: Callable[[int], None] = lambda _: None,
    begin: Callable[[int], None] = lambda _: None,
) -> Simulation:
    """Run many jobs under a policy.

    Without a cluster every job runs as its policy decides. On a cluster the policy decides when a
    job enters the queue, and the discipline when it leaves it; jobs may then miss deadlines. A
    policy that stops jobs lets them enter it again, unless they would then be late for certain.

    Args:
        jobs: What is to be run.
        signal: What a kWh emits or costs.
        policy: A policy's name, or a policy; on a cluster also a scheduler, an object with
            `on(event, view)`.
        cluster: The machines; None for as many as it takes.
        discipline: How the queue of a cluster is served: a name, or a discipline; by default
            `fifo`. Without a cluster nobody queues, and none may be given; under a policy that
            buys machines as jobs need them it plays no part.
        queue: The same by the name that it has in an experiment's file.
        baseline: The policy that savings are told against, on the same machines; None for none.
        repeat_signal: Go on with the signal from its beginning where it ends too early.
        oversized: What to do with jobs that fit on no node, even alone: `refuse`, `drop` them
            and count them in the workload's `left_out`, or `spread` what jobs of one node ask for
            over as many as it takes.
        decide: What policies look at, of a grid that says several things: `average`, `marginal`
            or `price`, or weights of `carbon` and `price`; carbon unless told. Jobs are paid for
            in all.
        advance: Told how many jobs were decided, each time some were.
        begin: Told how many there are to decide for, before the first.

    >>> from lowtide.profile import PowerProfile
    >>> curve = Signal.from_values([300, 100], start=0, step_s="1h")
    >>> job = Job(id="a", arrival=0, deadline="+2h", profile=PowerProfile.constant(1000, "1h"))
    >>> simulate([job], curve, policy="oracle").summary()["saving"]
    0.6666666666666667
    """
    deciding_signal(signal)
    workload = as_workload(jobs)
    name, decider = make_policy(policy)
    # Machines that are bought by need have no queue, so neither has what they are told against.
    buys = isinstance(decider, Purchasing)
    sees = cluster is not None and isinstance(decider, QueuePolicy | Scheduled)
    served = _discipline(discipline, queue, cluster)
    if cluster is not None:
        workload = on_machines(workload, cluster, oversized, any_size=buys)
    known = reaching(signal, float(workload.deadline.max()), repeat=repeat_signal)
    if workload.has_links:
        _refuse_links(workload, decider, served)
    deciding_signal(known).require(
        float(workload.arrival.min()), float(workload.deadline.max()), what="the signal"
    )
    base_name, base_policy = (None, None) if baseline is None else make_policy(baseline)
    if cluster is not None:
        for each in (decider, base_policy):
            if each is not None and not isinstance(each, QueuePolicy | Scheduled):
                refuse_stops(workload, each, served)
    ruling = ruling_signal(known, decide)
    ruling.require(
        float(workload.arrival.min()), float(workload.deadline.max()), what="the deciding signal"
    )
    begin(len(workload))
    course = _run(workload, ruling, decider, cluster, served, advance)
    base = None
    if base_policy is not None:
        machines = None if buys else cluster
        base = (
            course
            if base_policy == decider
            else _run(workload, ruling, base_policy, machines, served, lambda _: None)
        )
    # Nodes are looked at for as long under both policies: until both are done.
    courses = [each for each in (course, base) if each is not None]
    until = max(float(_ends(workload, each.stretches).max()) for each in courses)
    paying = reaching(known, until, repeat=repeat_signal)
    pue = 1.0 if cluster is None else cluster.pue

    def marginal_g(of: _Course | None) -> float | None:
        curve = paying.marginal if isinstance(paying, Grid) else None
        if of is None or curve is None:
            return None
        grams = tally(workload, of.stretches, curve, pue=pue).carbon_g
        return None if grams is None else float(grams.sum())

    def nodes(of: _Course | None) -> NodeSpans | None:
        return None if of is None or of.nodes is None else of.nodes.until(until)

    return Simulation(
        jobs=workload,
        signal=paying,
        policy=name,
        discipline=None if served is None or buys or sees else served.name,
        cluster=cluster,
        stretches=course.stretches,
        tally=tally(workload, course.stretches, paying, pue=pue),
        baseline=None if base is None else tally(workload, base.stretches, paying, pue=pue),
        baseline_policy=base_name,
        node_spans=nodes(course),
        baseline_node_spans=nodes(base),
        bought=course.bought,
        decided_by=None if decide is None else _deciding_words(decide),
        marginal_g=marginal_g(course),
        baseline_marginal_g=marginal_g(base),
    )


def _deciding_words(by: str | Mapping[str, float]) -> str:
    if isinstance(by, str):
        return by
    return " + ".join(f"{weight:g} {name}" for name, weight in by.items())


def _discipline(
    discipline: str | Discipline | None, queue: str | Discipline | None, cluster: Cluster | None
) -> Discipline | None:
    """Return how the queue is served; None where there is none, and nobody said how."""
    if cluster is not None and not isinstance(cluster, Cluster):
        raise InvalidInput(f"a cluster is a Cluster(nodes=..., cpus_per_node=...), not {cluster!r}")
    if discipline is not None and queue is not None:
        raise InvalidInput("discipline= and queue= say the same: leave one out")
    said = queue if discipline is None else discipline
    if cluster is None:
        if said is not None:
            raise InvalidInput(
                f"how a queue is served was said ({said!r}), but without a cluster every job runs "
                "as its policy decides and none queues: give a cluster ([cluster] with nodes and "
                "cpus_per_node in a file, cluster= in Python), or leave the queue out"
            )
        return None
    return make_discipline("fifo" if said is None else said)


def as_workload(jobs: object) -> Workload:
    """Return jobs as a workload, and refuse what is none or has none."""
    if isinstance(jobs, Workload):
        workload = jobs
    elif isinstance(jobs, Trace):
        raise InvalidInput(
            "a trace knows neither watts nor how long jobs may wait: "
            "make a Workload.from_trace(trace, power_w_per_cpu=..., wait=...)"
        )
    else:
        workload = Workload.from_jobs(cast("Sequence[Job]", jobs))
    if not len(workload):
        raise InvalidInput("there are no jobs to simulate")
    return workload


def on_machines(jobs: Workload, cluster: Cluster, oversized: str, *, any_size: bool) -> Workload:
    """Return the jobs that can run on a cluster; refuse those that cannot, unless told to drop."""
    if oversized not in OVERSIZED:
        raise UnknownName("way to treat oversized jobs", str(oversized), OVERSIZED)
    idle = jobs.cpus + jobs.gpus <= 0
    if idle.any():
        row, more = int(np.argmax(idle)), int(np.count_nonzero(idle)) - 1
        others = f"; so do {format_count(more, 'other job')}" if more else ""
        raise InvalidJob(
            f"job {jobs.id[row]} (row {row + 1}) holds neither a CPU nor a GPU{others}, and would "
            "never wait for a machine: give every job at least one (workload.cpus, workload.gpus)"
        )
    if any_size:
        return jobs
    if oversized == "spread":
        jobs = cluster.spread(jobs)
    if oversized != "drop":
        cluster.check_fits(jobs)
        return jobs
    fits = cluster.fitting(jobs)
    if not fits.any():
        cluster.check_fits(jobs)
    dropped = int(np.count_nonzero(~fits))
    if not dropped:
        return jobs
    return replace(jobs.take(fits), left_out={**jobs.left_out, "oversized": dropped})


def refuse_stops(jobs: Workload, policy: Policy, served: Discipline | None) -> None:
    """Refuse a policy that stops jobs where nobody could, before it decides for the first.

    Args:
        served: How the queue is served.
    """
    buys = isinstance(policy, Purchasing)
    decider = policy.inner if isinstance(policy, Purchasing) else policy
    if not stops_jobs(decider) or not (buys or isinstance(served, TAKING_TURNS)):
        return
    saves = np.array([*(bool(each.checkpoints_s) for each in jobs.profiles), False])
    can = (jobs.interruptible == INTERRUPTIBLE.index("anywhere")) | (
        (jobs.interruptible == INTERRUPTIBLE.index("checkpoints")) & saves[jobs.profile]
    )
    if bool((can & (jobs.max_starts != 1) & (jobs.slack_s > TIME_TOLERANCE_S)).any()):
        _refuse_stops(served, buys=buys)


def _refuse_stops(served: Discipline | None, *, buys: bool) -> NoReturn:
    if buys:
        raise InvalidInput(_NO_STOPS.format("who buys machines as jobs need them", "buy none"))
    name = "the queue" if served is None else served.name
    raise InvalidInput(_NO_STOPS.format(name, "serve the queue by fifo, priority or easy"))


def _refuse_links(jobs: Workload, policy: Policy, served: Discipline | None) -> None:
    """Refuse jobs that wait for others where they could not, or could never be in time."""
    if isinstance(policy, Purchasing) or isinstance(served, TAKING_TURNS):
        name = "who buys machines as jobs need them"
        name = served.name if isinstance(served, TAKING_TURNS) else name
        raise InvalidInput(
            f"{name} knows of no jobs that wait for others: take fifo, priority, easy or a "
            "scheduler, or say workload.dependencies = false"
        )
    require_time(jobs, links_of(jobs))


def _decide(
    policy: Policy, jobs: Workload, signal: Signal, advance: Callable[[int], None]
) -> Stretches:
    """Return how each job would run by itself, those first that others wait for.

    These are to be done in time for the others, and who waits for somebody arrives when they are.
    """
    if not jobs.has_links:
        return decide_many(policy, jobs, signal, advance=advance)
    links = links_of(jobs)
    arrival, deadline = windows(jobs, links)
    found: list[Stretches] = []
    for level in range(links.deepest() + 1):
        rows = np.flatnonzero(links.level == level)
        some = replace(jobs.take(rows).unlinked(), arrival=arrival[rows], deadline=deadline[rows])
        # They are sorted by their arrivals, which are others now.
        rows = rows[np.argsort(arrival[rows], kind="stable")]
        made = decide_many(policy, some, signal, advance=advance)
        found.append(replace(made, job=rows[made.job]))
        end = np.full(len(jobs), -np.inf)
        np.maximum.at(end, found[-1].job, _ends(some, made))
        np.maximum.at(arrival, links.after, end[links.before] + links.gap_s)
    order = np.argsort(np.concatenate([each.job for each in found]), kind="stable")
    return Stretches(
        **{
            name: np.concatenate([getattr(each, name) for each in found])[order]
            for name in ("job", "start", "work_s", "lost_s")
        }
    )


def _run(
    jobs: Workload,
    signal: Signal | Grid,
    policy: Policy,
    cluster: Cluster | None,
    discipline: Discipline | None,
    advance: Callable[[int], None],
) -> _Course:
    """Return how jobs run under a policy."""
    if cluster is not None and isinstance(policy, QueuePolicy):
        if cluster.failures is not None and not getattr(policy, "minds_failures", False):
            raise InvalidInput(
                f"{name_of(policy)} decides in advance, and nobody knows in advance which node "
                "breaks down: leave failures out, or take cluster_plan, a scheduler, or a start "
                "policy whose queue is served by fifo, priority or easy"
            )
        planned = policy.decide_queue(jobs, deciding_signal(signal), cluster)
        advance(len(jobs))
        if isinstance(planned, Stretches):
            planned = carry_out(jobs, planned, cluster)
        return _Course(planned.stretches, planned.nodes, None)
    if cluster is not None and isinstance(policy, Scheduled):
        queued = run_scheduler(
            jobs,
            cluster,
            policy.scheduler,
            signal=deciding_signal(signal),
            forecasts=policy.forecasts,
        )
        advance(len(jobs))
        return _Course(queued.stretches, queued.nodes, None)
    inner = policy.inner if isinstance(policy, Purchasing) else policy
    wished = _decide(inner, jobs, deciding_signal(signal), advance)
    if cluster is None or discipline is None:
        return _Course(wished, None, None)
    stops = wished.job.size > len(jobs)
    if cluster.comes_and_goes and isinstance(policy, Purchasing):
        raise InvalidInput(
            "machines that are bought are there whenever somebody pays for them: leave away, "
            "capacity and failures out of the cluster"
        )
    if isinstance(policy, Purchasing):
        if stops:
            _refuse_stops(discipline, buys=True)
        bought = buy(
            jobs,
            wished.start,
            cluster,
            uses_reserved=policy.uses_reserved,
            uses_spot=policy.uses_spot,
            spot_longest_s=policy.spot_longest_s,
        )
        return _Course(Stretches.one_each(jobs, bought.start), None, bought)
    by_event = stops or cluster.comes_and_goes or jobs.has_links
    if by_event or isinstance(discipline, OwnDiscipline):
        if isinstance(discipline, TAKING_TURNS):
            if cluster.comes_and_goes:
                raise InvalidInput(
                    f"{discipline.name} knows of no nodes that come and go: serve the queue by "
                    "fifo, priority, easy or a scheduler, or leave away, capacity and failures out"
                )
            _refuse_stops(discipline, buys=False)
        queued = run_scheduler(jobs, cluster, discipline, wished=wished)
    else:
        queued = run_queue(jobs, wished.start, cluster, discipline)
    return _Course(queued.stretches, queued.nodes, None)


def _ends(jobs: Workload, stretches: Stretches) -> FloatArray:
    """Return when each stretch is over, but for what stopping takes."""
    end = stretches.work_s + stretches.lost_s
    if jobs.profiles:
        end += stretches.starting_s(jobs)
    # The short times first: instants are rounded to 0.2 µs.
    end += stretches.start
    return end


def reaching(signal: Signal | Grid, until: float, *, repeat: bool) -> Signal | Grid:
    """Return a signal that lasts until an instant, repeated where that was asked for."""
    if isinstance(signal, Grid):
        parts = {
            name: reaching(part, until, repeat=repeat)
            for name in ("average", "marginal", "price")
            if (part := getattr(signal, name)) is not None
        }
        return Grid(**parts)  # type: ignore[arg-type]
    if until <= signal.end:
        return signal
    if not repeat:
        raise NotCovered(
            f"the signal ends {format_time(signal.end)}, and the jobs need it until "
            f"{format_time(until)}, {format_hours(until - signal.end)} longer: get a longer "
            "signal, take fewer jobs, or let it repeat (run.repeat_signal = true or "
            "--repeat-signal for an experiment, repeat_signal=True in Python)"
        )
    rounds = int(np.ceil((until - signal.start) / (signal.end - signal.start)))

    def again(values: FloatArray | None) -> FloatArray | None:
        return None if values is None else np.tile(values, rounds)

    return replace(
        signal,
        values=np.tile(signal.values, rounds),
        marks=again(signal.marks),  # type: ignore[arg-type]
        source=f"{signal.source}, repeated".lstrip(", "),
    )
