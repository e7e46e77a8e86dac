"""How fast a thousand jobs are shared out and shown, against plain loops and prometheus_client.

The plain sharing goes through the units one by one; the plain page sets a metric of
prometheus_client per job and value and asks for the text, as an exporter is commonly written. Both
pages carry the same values. CPU time of this process, the least of several rounds.
"""

from __future__ import annotations

import dataclasses
import gzip
import sys
from collections.abc import Callable
from time import process_time
from typing import Any, TypeVar

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from lowtide.attribution import NodePower, share_out
from lowtide.monitor.metrics import Exposition
from lowtide.monitor.snapshot import NodeCounts, Snapshot, Unit
from lowtide.monitor.tick import Shares, Tick

JOBS = 1000
ROUNDS = 15
FLOOR = 8.0
MOST_MS = 5.0
# What a job of Slurm's has: no network of its own, and nothing that is lacking.
COLUMNS = (
    "cpu_s",
    "cpus_busy",
    "memory_bytes",
    "read_bytes",
    "written_bytes",
    "cpu_wait_s",
    "memory_wait_s",
    "io_wait_s",
    "energy_j",
    "measured_j",
    "carbon_g",
    "marginal_g",
    "embodied_g",
)
UNKNOWN = ("received_bytes", "sent_bytes")
NOTHING = ("unmetered_s", "unpriced_j")
COUNTERS = {
    "energy_joules": "energy_j",
    "measured_energy_joules": "measured_j",
    "cpu_seconds": "cpu_s",
    "read_bytes": "read_bytes",
    "written_bytes": "written_bytes",
}
GAUGES = {
    "cpus_busy": "cpus_busy",
    "memory_bytes": "memory_bytes",
    "reserved_cpus": "reserved_cpus",
    "reserved_memory_bytes": "reserved_bytes",
}
KINDS = {"average": "carbon_g", "marginal": "marginal_g", "embodied": "embodied_g"}
WAITS = {"cpu": "cpu_wait_s", "memory": "memory_wait_s", "io": "io_wait_s"}
T = TypeVar("T")
LABELS = ("host", "source", "job_id", "user")


def snapshots(rng: np.random.Generator) -> tuple[Snapshot, Snapshot]:
    """Return a node with a thousand jobs, and the same node ten seconds later."""
    units = tuple(
        Unit(source="slurm", job_id=str(n), started=0.0, user=f"u{n % 40}", name=f"run {n}")
        for n in range(JOBS)
    )
    node = NodeCounts(cpus=128, busy_s=0.0, memory_bytes=5e11, available_bytes=1e11)
    zeros = np.zeros(JOBS)
    before = Snapshot(
        time=0.0,
        node=node,
        units=units,
        cpu_s=zeros,
        memory_bytes=rng.uniform(0, 4e8, JOBS),
        read_bytes=zeros,
        written_bytes=zeros,
        processes=zeros + 1,
        reserved_cpus=np.full(JOBS, 0.1),
        reserved_bytes=np.full(JOBS, 4e8),
    )
    used_s = rng.uniform(0, 1, JOBS)
    busy = dataclasses.replace(node, busy_s=float(used_s.sum()) + 20)
    return before, dataclasses.replace(before, time=10.0, node=busy, cpu_s=used_s)


def plain_shares(before: Snapshot, after: Snapshot, power: NodePower, idle_w: float) -> list[float]:
    """Share out one unit at a time, as one would write it down."""
    earlier = {unit.key: place for place, unit in enumerate(before.units)}
    used = [
        max(float(after.cpu_s[place] - before.cpu_s[earlier[unit.key]]), 0.0)
        for place, unit in enumerate(after.units)
    ]
    busy_s = max(after.node.busy_s - before.node.busy_s, sum(used))
    base_w = power.node_w - power.dram_w
    reserved = sum(float(cpus) for cpus in after.reserved_cpus)
    shares = []
    for place in range(len(after.units)):
        watts = (base_w - idle_w) * used[place] / busy_s
        watts += idle_w * float(after.reserved_cpus[place]) / max(reserved, after.node.cpus)
        watts += power.dram_w * float(after.memory_bytes[place]) / after.node.memory_bytes
        shares.append(watts)
    return shares


def tick(rng: np.random.Generator, after: Snapshot, shares: Shares) -> Tick:
    """Return a step of watching with new values throughout."""
    columns: dict[str, Any] = {name: rng.uniform(0, 1e6, JOBS) for name in COLUMNS}
    columns |= {name: np.full(JOBS, np.nan) for name in UNKNOWN}
    columns |= {name: np.zeros(JOBS) for name in NOTHING}
    return Tick(
        host="n1",
        since=0.0,
        time=10.0,
        node=after.node,
        units=after.units,
        gpus_busy=np.zeros(JOBS),
        gpu_memory_bytes=np.zeros(JOBS),
        reserved_cpus=after.reserved_cpus,
        reserved_bytes=after.reserved_bytes,
        reserved_gpus=np.zeros(JOBS),
        shares=shares,
        node_energy_j=1.0,
        idle_energy_j=1.0,
        unattributed_energy_j=1.0,
        intensity_g_per_kwh=300.0,
        **columns,
    )


class PlainPage:
    """An exporter as it is commonly written."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = {name: self.counter(name) for name in COUNTERS}
        self.gauges = {name: self.gauge(name) for name in GAUGES}
        self.power = self.gauge("power_watts")
        self.start = self.gauge("start_time_seconds")
        self.since = self.gauge("counted_since_seconds")
        self.info = self.gauge("info", "name")
        self.grams = self.counter("emissions_grams", "kind")
        self.waited = self.counter("pressure_seconds", "resource")
        self.last: dict[tuple[str, ...], float] = {}

    def counter(self, name: str, *more: str) -> Counter:
        """Make a counter."""
        return Counter(f"lowtide_job_{name}", name, (*LABELS, *more), registry=self.registry)

    def gauge(self, name: str, *more: str) -> Gauge:
        """Make a gauge."""
        return Gauge(f"lowtide_job_{name}", name, (*LABELS, *more), registry=self.registry)

    def grow(self, counter: Counter, value: float, *labels: str) -> None:
        """Bring a counter to a value: this library only lets one add."""
        key = (counter._name, *labels)
        counter.labels(*labels).inc(max(value - self.last.get(key, 0.0), 0.0))
        self.last[key] = value

    def render(self, step: Tick) -> bytes:
        """Set every value and return the text."""
        for place, unit in enumerate(step.units):
            labels = (step.host, unit.source, unit.job_id, unit.user)
            self.power.labels(*labels).set(step.shares.power_w[place])
            self.start.labels(*labels).set(unit.started)
            self.since.labels(*labels).set(step.since)
            self.info.labels(*labels, unit.name).set(1)
            for name, column in GAUGES.items():
                self.gauges[name].labels(*labels).set(getattr(step, column)[place])
            for name, column in COUNTERS.items():
                self.grow(self.counters[name], getattr(step, column)[place], *labels)
            for kind, column in KINDS.items():
                self.grow(self.grams, getattr(step, column)[place], *labels, kind)
            for resource, column in WAITS.items():
                self.grow(self.waited, getattr(step, column)[place], *labels, resource)
        return generate_latest(self.registry)


def least(work: Callable[[], T], rounds: int = ROUNDS) -> tuple[float, T]:
    """Return the least CPU time of several rounds in milliseconds, and the last answer."""
    spent = np.inf
    for _ in range(rounds):
        clock = process_time()
        answer = work()
        spent = min(spent, process_time() - clock)
    return 1e3 * spent, answer


def samples(page: bytes) -> int:
    """Return how many lines about jobs a page has."""
    found = text_string_to_metric_families(page.decode())
    return sum(each.name.startswith("lowtide_job_") * len(each.samples) for each in found)


def main() -> int:
    """Print the figures; return 1 if the ratio of the pages is below its floor.

    The time of a page is orientation: it is for an idle machine.
    """
    rng = np.random.default_rng(1)
    before, after = snapshots(rng)
    power = NodePower(node_w=900.0, package_w=(200.0, 250.0), dram_w=40.0, measured=True)
    ours_ms, shares = least(lambda: share_out(before, after, power, idle_w=300.0))
    plain_ms, plain = least(lambda: plain_shares(before, after, power, 300.0))
    assert np.allclose(shares.power_w, plain)
    off = shares.power_w.sum() + shares.idle_w + shares.unattributed_w - shares.node_w
    print(f"sharing out {JOBS} jobs: {ours_ms:.2f} ms, plain loop {plain_ms:.2f} ms")
    print(
        f"  {plain_ms / ours_ms:.1f} times as fast; relative error of the sum {abs(off) / 900:.1e}"
    )

    disable_created_metrics()  # type: ignore[no-untyped-call]
    steps = iter([tick(rng, after, shares) for _ in range(ROUNDS + 10)])
    exposition, straightforward = Exposition(), PlainPage()
    exposition.render(next(steps))
    page_ms, page = least(lambda: exposition.render(next(steps)).whole)
    straightforward.render(next(steps))
    common_ms, common = least(lambda: straightforward.render(next(steps)), 5)
    ratio = common_ms / page_ms
    lines = samples(page)
    assert lines == samples(common)
    print(f"page of {JOBS} jobs ({lines} lines): {page_ms:.2f} ms, ", end="")
    print(f"prometheus_client {common_ms:.1f} ms\n  {ratio:.1f} times as fast (floor {FLOOR:.0f})")
    print(f"  wanted: {MOST_MS:.0f} ms, {'met' if page_ms <= MOST_MS else 'not met'}")
    scrape_ms, small = least(lambda: gzip.compress(page, compresslevel=1), 5)
    print(f"first scrape of a page: {scrape_ms:.1f} ms to compress to {len(small) / len(page):.0%}")
    return int(ratio < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
