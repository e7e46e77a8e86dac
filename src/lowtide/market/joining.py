"""Several kinds of machines and several places as one queue: every job has ways to choose from.

A way is a job at a site, at a width: faster or slower, drawing more or less, after its data have
been brought there. Each site is laid out in slots by itself; here the ways of each job are put side
by side, so that prices, plans and bounds are those of one queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, InvalidJob
from lowtide.grid import deciding_signal
from lowtide.market.instance import Instance, make_instance
from lowtide.market.kernels import Queue
from lowtide.market.layout import link_table
from lowtide.precedence import Links, links_of, require_time, windows
from lowtide.profile import PowerProfile
from lowtide.signal import FloatArray, Signal
from lowtide.simulator.cluster import Cluster
from lowtide.simulator.outages import require_away
from lowtide.units import (
    TimeLike,
    format_count,
    format_time,
    require_number,
)
from lowtide.workload import IntArray, Workload


@dataclass(frozen=True, kw_only=True)
class Site:
    """Machines of one kind at one place.

    Attributes:
        cluster: The machines.
        signal: What a kWh counts there.
        speed: How many times as fast work is done here; starts and stops take as long.
        power: How many times as much a job draws here.
        transfer_s: How long it takes to bring a job here from its home.
        transfer: What that counts, in the unit of the signals: grams, or money.
        reserved: When nodes are not there, and how many: `(begin, end, nodes)`.
        power_cap: What nodes and jobs may draw together; None for what the cluster says.
    """

    cluster: Cluster
    signal: Signal
    speed: float = 1.0
    power: float = 1.0
    transfer_s: float = 0.0
    transfer: float = 0.0
    reserved: Sequence[tuple[TimeLike, TimeLike, int]] = field(default_factory=tuple)
    power_cap: Signal | float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, Cluster):
            raise InvalidInput(f"the cluster of a site is a Cluster, not {self.cluster!r}")
        object.__setattr__(self, "signal", deciding_signal(self.signal))
        for name in ("speed", "power"):
            if not require_number(getattr(self, name), name, least=0.0) > 0:
                raise InvalidInput(f"{name} of a site is more than 0, not {getattr(self, name)!r}")
        for name in ("transfer_s", "transfer"):
            require_number(getattr(self, name), name, least=0.0)
        if self.reserved:
            # What nodes are away is the cluster's to say, and is said once.
            away = (*self.cluster.away, *require_away(self.reserved, self.cluster.nodes))
            object.__setattr__(self, "cluster", replace(self.cluster, away=away))
            object.__setattr__(self, "reserved", ())
        if self.cluster.failures is not None:
            raise InvalidInput(
                "a plan at sites knows of no nodes that break down: leave failures out"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """A queue at several sites.

    Attributes:
        instance: All of it, as one.
        jobs: The jobs themselves.
        home: Which site each job is at home at.
        ways: Of every row of each site's own queue which job it is, and how wide.
    """

    instance: Instance
    jobs: Workload
    home: IntArray
    ways: tuple[tuple[IntArray, FloatArray], ...]


def widened(elastic: Mapping[float, float] | None) -> dict[float, float]:
    """Return how fast jobs are by how wide they are, as shares of their own; checked."""
    known = {1.0: 1.0}
    for width, speed in (elastic or {}).items():
        for value in (width, speed):
            require_number(value, "elastic", least=0.0)
        if not (width > 0 and speed > 0) or (width == 1 and speed != 1):
            raise InvalidInput(
                "elastic says how many times as fast a job is at how many times its nodes, both "
                f"more than 0, and 1 at 1, not {speed!r} at {width!r}"
            )
        known[float(width)] = float(speed)
    widths = sorted(known)
    for a, b in pairwise(widths):
        if known[b] < known[a]:
            raise InvalidInput(
                f"elastic: at {b:g} times its nodes a job is {known[b]:g} times as fast, slower "
                f"than at {a:g} times: leave that width out"
            )
    return known


def join(
    jobs: Workload,
    sites: Mapping[str, Site],
    *,
    step_s: float | None = None,
    wait: FloatArray | float = 0.0,
    elastic: Mapping[float, float] | None = None,
    homes: Sequence[str] | None = None,
) -> Joined:
    """Lay a queue out at several sites.

    Args:
        step_s: How long a slot is, None for one that is quick.
        wait: What a second of delay counts.
        elastic: How many times as fast jobs are at how many times their nodes.
        homes: Where each job is at home; by default at the first site that it fits at.
    """
    if not sites or not all(isinstance(each, Site) for each in sites.values()):
        raise InvalidInput("sites are given by name: {'here': Site(cluster=..., signal=...)}")
    widths = widened(elastic)
    fits = np.stack([each.cluster.fitting(jobs) for each in sites.values()])
    if not fits.any(axis=0).all():
        row = int(np.argmin(fits.any(axis=0)))
        more = int(np.count_nonzero(~fits.any(axis=0))) - 1
        others = f"; so do {format_count(more, 'other job')}" if more else ""
        raise InvalidJob(
            f"job {jobs.id[row]} (row {row + 1}) asks for {jobs.cpus[row]:g} CPUs and "
            f"{jobs.gpus[row]:g} GPUs on {format_count(int(jobs.nodes[row]), 'node')} and fits at "
            f"none of the sites {', '.join(sites)}{others}: give one of them more, or leave it out"
        )
    home = np.argmax(fits, axis=0)
    if homes is not None:
        unknown = [name for name in homes if name not in sites]
        if unknown or len(homes) != len(jobs):
            raise InvalidInput(
                f"homes names one of {', '.join(sites)} for each of {len(jobs)} jobs, not "
                f"{unknown[0] if unknown else len(homes)!r}"
            )
        home = np.array([list(sites).index(name) for name in homes])
    laid = [_ways(jobs, number, site, widths, home) for number, site in enumerate(sites.values())]
    links = links_of(jobs)
    least_s = np.full(len(jobs), np.inf)
    for variant, of, _, _ in laid:
        np.minimum.at(least_s, of, variant.run_s)
    require_time(jobs, links, least_s)
    rate = np.broadcast_to(np.asarray(wait, dtype=np.float64), len(jobs))
    begin = float(jobs.arrival.min())

    def made(deadline: FloatArray, until: float, step_s: float | None) -> Instance:
        soonest, due = windows(replace(jobs, deadline=deadline), links, least_s)
        parts = [
            make_instance(
                variant,
                site.cluster,
                site.signal,
                step_s=step_s,
                wait=rate[of],
                power_cap=site.power_cap,
                keeps=site.cluster.keeps,
                until=until,
                begin=begin,
                window=(
                    np.maximum(soonest[of], jobs.arrival[of] + away * site.transfer_s),
                    due[of],
                ),
            )
            for site, (variant, of, _, away) in zip(sites.values(), laid, strict=True)
        ]
        if len({each.step_s for each in parts}) > 1:
            return made(deadline, until, min(each.step_s for each in parts))
        _require_same(sites, parts)
        extra = [
            away * site.transfer + rate[of] * (variant.run_s - jobs.run_s[of])
            for site, (variant, of, _, away) in zip(sites.values(), laid, strict=True)
        ]
        whole = _side_by_side(jobs, tuple(sites), parts, [each[1] for each in laid], extra, links)
        return replace(
            whole,
            wait=rate,
            # How far there is to look is what all of them say.
            signal=min((each.signal for each in sites.values()), key=lambda each: each.end),
            again=lambda later, far: made(later, far, whole.step_s),
        )

    whole = made(jobs.deadline, float(jobs.deadline.max()), step_s)
    return Joined(
        instance=whole, jobs=jobs, home=home, ways=tuple((each[1], each[2]) for each in laid)
    )


def _ways(
    jobs: Workload, number: int, site: Site, widths: Mapping[float, float], home: IntArray
) -> tuple[Workload, IntArray, FloatArray, FloatArray]:
    """Return the ways to run jobs at a site, whose they are, how wide, and who comes from afar."""
    rows, wide = [], []
    for width in widths:
        nodes = jobs.nodes * width
        whole = (nodes >= 1) & (np.abs(nodes - np.round(nodes)) < 1e-9)
        made = _scaled(jobs, site, width, widths[width])
        fit = site.cluster.fitting(made) & whole & (made.deadline <= site.signal.end)
        rows.append(np.flatnonzero(fit))
        wide.append(np.full(rows[-1].size, width))
    of, width_of = np.concatenate(rows), np.concatenate(wide)
    order = np.lexsort((width_of, of))
    of, width_of = of[order], width_of[order]
    parts = [
        _scaled(jobs.take(of[width_of == width]), site, width, speed)
        for width, speed in widths.items()
        if np.any(width_of == width)
    ]
    if not parts:
        raise InvalidInput(
            f"no job fits at site number {number + 1}: leave it out, or give it larger nodes"
        )
    made = _stacked(parts, [np.flatnonzero(width_of == w) for w in widths if np.any(width_of == w)])
    return made, of, width_of, (home[of] != number).astype(np.float64)


def _scaled(jobs: Workload, site: Site, width: float, speed: float) -> Workload:
    """Return jobs as they are at a site, so many times as wide."""
    faster = site.speed * speed
    profiles = tuple(_faster(each, faster) for each in jobs.profiles)
    work_s = jobs.work_s / faster
    startup_s = np.array([*(each.startup_s for each in profiles), 0.0])[jobs.profile]
    run_s = startup_s + work_s
    return replace(
        jobs.unlinked(),
        work_s=work_s,
        profiles=profiles,
        power=jobs.power * site.power * width,
        min_run_s=np.minimum(jobs.min_run_s / faster, work_s),
        nodes=np.maximum(np.round(jobs.nodes * width), 1.0),
        cpus=jobs.cpus * width,
        gpus=jobs.gpus * width,
        memory_bytes=jobs.memory_bytes * width,
        requested_s=np.maximum(jobs.requested_s / faster, run_s),
        # Whoever is too slow here for its deadline has no start to choose from.
        deadline=np.maximum(jobs.deadline, jobs.arrival + run_s),
    )


def _faster(profile: PowerProfile, by: float) -> PowerProfile:
    work = [replace(phase, duration_s=phase.duration_s / by) for phase in profile.work]
    return replace(profile, work=tuple(work))


def _stacked(parts: list[Workload], places: list[IntArray]) -> Workload:
    """Return the rows of several workloads, each at its place."""
    order = np.argsort(np.concatenate(places), kind="stable")
    shifts = np.cumsum([0, *(len(each.profiles) for each in parts)])
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in parts])[order]
        for name in Workload._names()
        if name != "after" and getattr(parts[0], name) is not None
    }
    columns["profile"] = np.concatenate(
        [
            np.where(each.profile < 0, -1, each.profile + shift)
            for each, shift in zip(parts, shifts, strict=False)
        ]
    )[order]
    return Workload(profiles=[each for part in parts for each in part.profiles], **columns)


def _require_same(sites: Mapping[str, Site], parts: Sequence[Instance]) -> None:
    """Refuse signals whose steps do not lie on each other, or that end before the others need."""
    first = parts[0]
    for name, each in zip(sites, parts, strict=True):
        if abs(each.origin - first.origin) > 1e-6 or each.slots != first.slots:
            raise InvalidInput(
                f"the signals of sites have steps at the same instants and reach as far: that of "
                f"{next(iter(sites))} begins {format_time(first.signal.start)} and ends "
                f"{format_time(first.signal.end)}, that of {name} "
                f"{format_time(each.signal.start)} and {format_time(each.signal.end)}"
            )


def _side_by_side(
    jobs: Workload,
    names: tuple[str, ...],
    parts: Sequence[Instance],
    of: Sequence[IntArray],
    extra: Sequence[FloatArray],
    links: Links,
) -> Instance:
    """Return several sites as one instance, the ways of each job side by side."""
    first = parts[0]
    job_of = np.concatenate(of)
    site_of = np.repeat(np.arange(len(parts)), [each.size for each in of])
    order = np.argsort(job_of, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    queues = [each.queue for each in parts]
    part_shift = np.cumsum([0, *(each.parts.size for each in queues)])
    leg_shift = np.cumsum([0, *(each.legs.size for each in queues)])
    rows = np.concatenate([each.jobs for each in queues])
    for name in ("startup", "restart", "stop", "legs"):
        rows[name] += leg_shift[site_of]
    begins = rows["part"] + part_shift[site_of]
    counts = rows["end"] - rows["part"] + 1
    rows["site"] = site_of
    rows["already"] += np.concatenate(extra)
    rows, counts = rows[order], counts[order]
    rows["end"] = np.cumsum(counts) - 1
    rows["part"] = rows["end"] + 1 - counts
    # The parts of each way, in the order of the ways.
    index = np.repeat(begins[order] - rows["part"], counts) + np.arange(int(counts.sum()))
    ways = np.searchsorted(job_of[order], np.arange(len(jobs) + 1))
    # Leaving a job out counts more than any way to run it.
    leave = rows["leave"] + 20.0 * np.maximum(np.concatenate(extra)[order], 0.0)
    rows["leave"] = np.maximum.reduceat(leave, ways[:-1])[job_of[order]]
    resources = np.cumsum([0, *(len(each.resources) for each in parts)])
    need = np.zeros((2, rows.size, int(resources[-1])))
    site_rows = []
    for number, each in enumerate(queues):
        own = place[site_of == number]
        columns = slice(int(resources[number]), int(resources[number + 1]))
        need[0, own, columns], need[1, own, columns] = each.need, each.keep
        site_rows.append((own, columns))
    told, linked = link_table(links.before, links.after, links.gap_s / first.step_s, len(jobs))
    queue = Queue(
        jobs=rows,
        parts=np.concatenate([each.parts for each in queues])[index],
        legs=np.concatenate([each.legs for each in queues]),
        need=np.ascontiguousarray(need[0]),
        keep=np.ascontiguousarray(need[1]),
        ways=ways,
        links=told,
        linked=linked,
        by_first=np.argsort(rows["first"][ways[:-1]], kind="stable"),
    )
    labels = tuple(
        f"{resource} at {name}"
        for name, each in zip(names, parts, strict=True)
        for resource in each.resources
    )
    own_parts = tuple(
        replace(each, beside=amount) for each, amount in zip(parts, extra, strict=True)
    )
    caps = tuple(np.stack([each.cap_kw[number] for each in parts]) for number in (0, 1))
    return replace(
        first,
        jobs=jobs,
        lossless=all(each.lossless for each in parts),
        resources=labels,
        whole_nodes=all(each.whole_nodes for each in parts),
        queue=queue,
        energy=np.stack([each.energy for each in parts]),
        capacity=np.concatenate([each.capacity for each in parts]),
        room=np.concatenate([each.room for each in parts]),
        cap_kw=(caps[0], caps[1]),
        base=np.concatenate([each.base for each in parts])[order],
        progress_s=np.concatenate([each.progress_s for each in parts])[index],
        links=links,
        beside=np.concatenate(extra)[order],
        sites=own_parts,
        site_rows=tuple(site_rows),
    )


def of_site(instance: Instance, number: int, delay: IntArray, placed: Any) -> tuple[IntArray, Any]:
    """Return the delays and who is placed of one site's own queue, from those of all."""
    rows, _ = instance.site_rows[number]
    jobs = instance.queue.jobs[rows]
    counts = jobs["end"] - jobs["part"] + 1
    first = np.cumsum(counts) - counts
    index = np.repeat(jobs["part"] - first, counts) + np.arange(int(counts.sum()))
    return delay[index], placed[rows]
