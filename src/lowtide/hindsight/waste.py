"""What jobs held and did not use: each by a rule, with its evidence and what it drew for nothing.

The questions that `monitor.verdicts` answers are asked there; here is what an answer costs. A core
that is kept and not used draws its part of what the node draws when nothing runs, which is what
attribution charges for it. Nobody is accused by what was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.hindsight.job import NodeUse, behaviour_of
from lowtide.monitor.snapshot import FloatArray
from lowtide.monitor.verdicts import YES, Behaviour, is_bad_gpu_job, is_hogging
from lowtide.states import NOT_OVER
from lowtide.store import JobRecord, Series
from lowtide.units import SIZES, format_alike, format_count, format_hours, format_number

# Shorter jobs are no matter.
LEAST_S = 600.0
# Who kept at most this share of what was asked for busy could have asked for less.
_HALF = 0.5
# A code that never keeps more than this busy runs on one core.
_SERIAL = 1.1
_SERIAL_OF = 4
# Less than this share of a GPU, or this much of a core, is nothing.
_GPU_IDLE = 0.01
_ASLEEP = 0.05
# Whoever reads, writes, receives or sends more than this does something.
_MOVES = 1e6
_GPU_IDLE_S = 1800.0
_DEAD_S = 3600.0
# What is left of a job so long after its end was left behind.
ZOMBIE_S = 300.0
# Limits of more than this many times what was needed, by at least so long, keep gaps from others.
_LIMIT = 2.0
_LIMIT_S = 6 * 3600.0
# What is left free of memory by those who ask for a little more than they need.
MARGIN = 1.2

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteRule:
    """A way to waste.

    Attributes:
        name: What programs and settings call it.
        title: What people call it.
        rule: When a job is named by it, in words.
        cure: What its user can do.
    """

    name: str
    title: str
    rule: str
    cure: str


_ALL = (
    WasteRule(
        name="dead_weight",
        title="Dead weight",
        rule="An hour or longer no core, no GPU and no data were moved; what was kept was held.",
        cure="End it, or look why it hangs: what it holds nobody else can use.",
    ),
    WasteRule(
        name="idle_gpus",
        title="GPUs never used",
        rule="It held GPUs and none of them was ever busy.",
        cure="Ask for no GPU, or check that the program was built for them and finds them.",
    ),
    WasteRule(
        name="left_gpus",
        title="GPUs left idle",
        rule="All its GPUs were idle for half an hour or longer at a time.",
        cure="Split what needs no GPU off into a job of its own, or end it when they are done.",
    ),
    WasteRule(
        name="bad_gpus",
        title="GPUs hardly used",
        rule="Over two hours or longer its GPUs were less than a quarter busy and full at most.",
        cure="Ask for fewer or smaller GPUs, or feed them with larger batches.",
    ),
    WasteRule(
        name="zombies",
        title="Left behind after the end",
        rule="Something of it was still there more than five minutes after the job's end.",
        cure="Wait for what the job starts; who runs the node may end it.",
    ),
    WasteRule(
        name="hogging",
        title="More cores than kept for it",
        rule="It used more cores than were kept for it on a node that had none to spare.",
        cure="Start no more threads than cores were asked for, or ask for more cores.",
    ),
    WasteRule(
        name="serial",
        title="Serial code on many cores",
        rule="It had four cores or more, and kept one of them busy.",
        cure="Ask for one core, or start it so that it uses the others.",
    ),
    WasteRule(
        name="idle_cores",
        title="Cores asked for and not used",
        rule="It never kept more than half of its cores busy, while nothing was in its way.",
        cure="Ask for as many cores as it uses at most.",
    ),
    WasteRule(
        name="idle_memory",
        title="Memory asked for and not used",
        rule="It never held more than half of its memory.",
        cure="Ask for a fifth more memory than it holds at most.",
    ),
    WasteRule(
        name="fragmentation",
        title="Spread over more nodes than needed",
        rule="What it asked for fits on half as many nodes, or fewer.",
        cure="Ask for the nodes as well: --nodes.",
    ),
    WasteRule(
        name="time_limit",
        title="Time limits far from what was needed",
        rule="It asked for more than twice the time it took, and for six hours more at least.",
        cure="Ask for a fifth more time than it takes: shorter jobs find gaps, and begin earlier.",
    ),
)
RULES = {rule.name: rule for rule in _ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a job wasted by one rule.

    Attributes:
        rule: One of `RULES`.
        evidence: Why, in words.
        kept_out: That nobody was kept out by it, where that is so. It tells of what others did on
            its nodes: for operators.
        energy_j: What was drawn for nothing, by estimate: 0 where nothing was, NaN where that is
            not known.
        carbon_g: What that emitted.
        core_s: Cores that were held for nothing, times how long.
        gpu_s: GPUs, in the same way.
        byte_s: Memory, in the same way.
    """

    rule: str
    evidence: str
    kept_out: str = ""
    energy_j: float = math.nan
    carbon_g: float = math.nan
    core_s: float = 0.0
    gpu_s: float = 0.0
    byte_s: float = 0.0


def find_waste(record: JobRecord, series: Series, nodes: Sequence[Series]) -> tuple[Finding, ...]:
    """Return what a job wasted, the most energy first.

    Args:
        series: What it used over time.
        nodes: What its nodes did meanwhile, in the order of its hosts; a node that was not watched
            is left out.
    """
    if not record.elapsed_s >= LEAST_S or not len(series):
        return ()
    case = _Case(record, series, nodes)
    with np.errstate(invalid="ignore"):
        found = [each for each in case.findings() if each is not None]
    return tuple(sorted(found, key=lambda each: -_or_0(each.energy_j)))


class _Case:
    """A job that is looked at."""

    def __init__(self, record: JobRecord, series: Series, nodes: Sequence[Series]) -> None:
        self.record, self.series, self.nodes = record, series, nodes
        self.behaviour: Behaviour = behaviour_of(
            record, series, [NodeUse.of(node) for node in nodes]
        )
        self.is_over = record.state is not None and record.state not in NOT_OVER
        ended = record.ended if record.ended == record.ended else math.inf
        # What is left behind afterwards is looked at by itself.
        self.inside: Mask = series.starts < ended

    def findings(self) -> Iterator[Finding | None]:
        yield self.zombies()
        yield self.hogging()
        dead = self.dead_weight()
        yield dead
        if dead is None:
            yield self.idle_gpus() or self.bad_gpus() or self.left_gpus()
        if not self.is_over or self.behaviour.unseen:
            return
        if dead is None:
            yield self.serial() or self.idle_cores()
        yield self.idle_memory()
        yield self.fragmentation()
        yield self.time_limit()

    def column(self, name: str) -> FloatArray:
        found = self.series.columns.get(name)
        return np.full(len(self.series), np.nan) if found is None else found

    def drawn(self, steps: Mask, watts: str = "") -> tuple[float, float]:
        """Return what was drawn and emitted in some steps, in all or by one part of it."""
        whole_j = float(np.nansum(self.column("energy_j")[steps]))
        whole_g = float(np.nansum(self.column("carbon_g")[steps]))
        energy_j = whole_j
        if watts:
            part = self.column(watts)[steps] * self.series.step_s[steps]
            energy_j = float(np.nansum(part)) if np.isfinite(part).any() else math.nan
        return energy_j, energy_j * whole_g / whole_j if whole_j > 0 else math.nan

    def emitted(self, energy_j: float) -> float:
        """Return what energy of the job's emitted, as all of its energy did on average."""
        priced_j = self.record.energy_j - _or_0(self.record.unpriced_j)
        return energy_j * self.record.carbon_g / priced_j if priced_j > 0 else math.nan

    def stretches(self, quiet: Mask, least_s: float) -> Mask:
        """Return which steps are in stretches of so long in which it was quiet all the time."""
        found = np.zeros_like(quiet)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], quiet.view(np.int8), [0]))))
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            if self.series.step_s[first:last].sum() >= least_s * (1 - 1e-9):
                found[first:last] = True
        return found

    def floor_w(self) -> float:
        """Return what a core draws at most that is kept and not used.

        What a node draws for nobody is at least that of its free cores, and what a job draws
        besides its GPUs at least that of its own: the lesser of the two bounds is nearer to it.
        """
        bounds = []
        for node in self.nodes:
            free = node.columns["cpus"] - node.columns["cpus_reserved"]
            idle_w = node.columns["idle_w"]
            known = (free >= 1.0) & np.isfinite(idle_w)
            if known.any():
                weight = node.step_s[known]
                bounds.append(float((idle_w[known] * weight).sum() / (free[known] * weight).sum()))
        own = self.column("power_w") - np.nan_to_num(self.column("gpu_w"))
        kept = self.column("reserved_cpus")
        with np.errstate(invalid="ignore", divide="ignore"):
            each = (own / kept)[self.inside & (kept > 0)]
        if np.isfinite(each).any():
            # A step in which it began or ended is not all its own.
            bounds.append(float(np.nanquantile(each, 0.1 if each.size >= 10 else 0.5)))
        # To two digits, so that what others do meanwhile does not show in it.
        return float(f"{max(min(bounds), 0.0):.2g}") if bounds else math.nan

    def of_cores(self, rule: str, cores: float, evidence: str) -> Finding:
        """Return what cores cost that were kept for a job all the time and not used."""
        core_s = cores * self.record.elapsed_s
        energy_j = core_s * self.floor_w()
        return Finding(
            rule=rule,
            evidence=evidence,
            kept_out=self.never_full(),
            energy_j=energy_j,
            carbon_g=self.emitted(energy_j),
            core_s=core_s,
        )

    def never_full(self) -> str:
        """Return that a job kept nobody out, where that is so."""
        free = [
            float(np.nanmin(node.columns["cpus"] - node.columns["cpus_reserved"]))
            for node in self.nodes
            if np.isfinite(node.columns["cpus_reserved"]).any()
        ]
        if len(free) < max(len(self.record.hosts), 1) or min(free) < 1:
            return ""
        return f"nobody was kept out: {_amount(min(free))} cores of its node were always free"

    def dead_weight(self) -> Finding | None:
        if self.record.state == "suspended":
            return None
        cores, gpus = self.column("cpus_busy"), self.column("gpus_busy")
        quiet = self.inside & (cores <= _ASLEEP)
        if self.record.gpus > 0:
            quiet &= gpus <= _GPU_IDLE
        for name in ("read_bytes", "written_bytes", "received_bytes", "sent_bytes"):
            quiet &= ~(self.column(f"{name}_per_s") > _MOVES)
        quiet = self.stretches(quiet, _DEAD_S)
        if not quiet.any():
            return None
        dead_s = float(self.series.step_s[quiet].sum())
        energy_j, carbon_g = self.drawn(quiet)
        cpus, held = _or_0(self.record.cpus), _or_0(self.record.gpus)
        holding = [f"{_amount(cpus)} cores"] * (cpus > 0)
        holding += [format_count(int(held), "GPU")] * (held > 0)
        return Finding(
            rule="dead_weight",
            evidence=f"for {format_hours(dead_s)} of {format_hours(self.record.elapsed_s)} it kept "
            f"{_amount(float(np.nanmax(cores[quiet])))} cores busy at most"
            + (f", and held {' and '.join(holding)}" if holding else ""),
            energy_j=energy_j,
            carbon_g=carbon_g,
            core_s=cpus * dead_s,
            gpu_s=held * dead_s,
        )

    def idle_gpus(self) -> Finding | None:
        record, use = self.record, self.behaviour.gpus
        if not record.gpus > 0 or not use.peak <= _GPU_IDLE or self.behaviour.unseen:
            return None
        energy_j, carbon_g = self.drawn(self.inside, "gpu_w")
        return Finding(
            rule="idle_gpus",
            evidence=f"it held {format_count(int(record.gpus), 'GPU')} for "
            f"{format_hours(record.elapsed_s)}, and none was ever busy",
            energy_j=energy_j,
            carbon_g=carbon_g,
            gpu_s=record.gpus * record.elapsed_s,
        )

    def left_gpus(self) -> Finding | None:
        record = self.record
        if not record.gpus > 0:
            return None
        idle = self.inside & (self.column("gpus_busy") <= _GPU_IDLE)
        idle = self.stretches(idle, _GPU_IDLE_S)
        if not idle.any():
            return None
        idle_s = float(self.series.step_s[idle].sum())
        energy_j, carbon_g = self.drawn(idle, "gpu_w")
        at_end = " at its end" if idle[self.inside][-1] else ""
        return Finding(
            rule="left_gpus",
            evidence=f"its {format_count(int(record.gpus), 'GPU')} "
            f"{'were' if record.gpus > 1 else 'was'} idle for {format_hours(idle_s)} of "
            f"{format_hours(record.elapsed_s)}{at_end}, in stretches of half an hour or longer",
            energy_j=energy_j,
            carbon_g=carbon_g,
            gpu_s=record.gpus * idle_s,
        )

    def bad_gpus(self) -> Finding | None:
        verdict = is_bad_gpu_job(self.behaviour)
        if verdict.answer != YES or not self.record.gpus > 0:
            return None
        unused = 1.0 - self.behaviour.gpus.share("peak", "had")
        energy_j, carbon_g = self.drawn(self.inside, "gpu_w")
        return Finding(
            rule="bad_gpus",
            evidence=verdict.evidence,
            energy_j=unused * energy_j,
            carbon_g=unused * carbon_g,
            gpu_s=unused * self.record.gpus * self.record.elapsed_s,
        )

    def zombies(self) -> Finding | None:
        record = self.record
        left = self.series.starts >= record.ended
        left_s = float(self.series.times[left][-1]) - record.ended if left.any() else 0.0
        if not left_s > ZOMBIE_S or not np.isfinite(self.column("cpus_busy")[left]).any():
            return None
        energy_j, carbon_g = self.drawn(left)
        busy = float(np.nanmax(self.column("cpus_busy")[left]))
        return Finding(
            rule="zombies",
            evidence=f"{format_hours(left_s)} after its end something of it was still on "
            f"{', '.join(record.hosts[:3])}, and kept {_amount(busy)} cores busy at most",
            energy_j=energy_j,
            carbon_g=carbon_g,
        )

    def hogging(self) -> Finding | None:
        verdict = is_hogging(self.behaviour)
        cpus = self.behaviour.cpus
        if verdict.answer != YES or not cpus.mean > cpus.asked:
            return None
        energy_j, _ = self.drawn(self.inside)
        share = 1.0 - cpus.asked / cpus.mean
        return Finding(
            rule="hogging",
            evidence=f"{verdict.evidence}, and {_amount(cpus.asked)} were kept for it",
            energy_j=share * energy_j,
            carbon_g=self.emitted(share * energy_j),
            core_s=(cpus.mean - cpus.asked) * self.record.elapsed_s,
        )

    def serial(self) -> Finding | None:
        cpus = self.behaviour.cpus
        if not cpus.asked >= _SERIAL_OF or not _HALF <= cpus.peak <= _SERIAL:
            return None
        if self.behaviour.starved != "":
            return None
        told = f"of {_amount(cpus.asked)} cores it kept {_amount(cpus.peak)} busy at most"
        return self.of_cores("serial", cpus.asked - 1.0, told)

    def idle_cores(self) -> Finding | None:
        cpus = self.behaviour.cpus
        if not cpus.asked >= 2 or not cpus.share("peak", "asked") <= _HALF:
            return None
        if self.behaviour.starved != "":
            return None
        told = f"of {_amount(cpus.asked)} cores it kept {_amount(cpus.peak)} busy at most"
        return self.of_cores("idle_cores", cpus.asked - max(math.ceil(cpus.peak), 1), told)

    def idle_memory(self) -> Finding | None:
        memory, cpus = self.behaviour.memory, self.behaviour.cpus
        if not memory.share("peak", "asked") <= _HALF or self.behaviour.out_of_memory:
            return None
        needed = MARGIN * memory.peak
        told = f"of {_size(memory.asked)} of memory it held {_size(memory.peak)} at most"
        # Memory that is kept and not held draws nothing. It costs the cores that nobody can use
        # without memory, and those draw what a free core does.
        kept_out = max(self.cores_behind(memory.asked) - self.cores_behind(needed), 0.0)
        if kept_out > 0:
            told += f": {_amount(kept_out)} cores of its node had no memory left for others"
        energy_j = kept_out * self.record.elapsed_s * self.floor_w() if kept_out > 0 else kept_out
        known = cpus.node > 0 and memory.node > 0
        return Finding(
            rule="idle_memory",
            evidence=told,
            energy_j=energy_j if known else math.nan,
            carbon_g=self.emitted(energy_j) if known else math.nan,
            core_s=kept_out * self.record.elapsed_s if known else 0.0,
            byte_s=(memory.asked - needed) * self.record.elapsed_s,
        )

    def cores_behind(self, size: float) -> float:
        """Return how many cores more than its own a job keeps by its memory from others."""
        memory, cpus = self.behaviour.memory, self.behaviour.cpus
        share = size / memory.node - _or_0(cpus.asked) / cpus.node
        return max(share, 0.0) * cpus.node

    def fragmentation(self) -> Finding | None:
        record, behaviour = self.record, self.behaviour
        count = len(record.hosts)
        if count < 2 or len(self.nodes) < count:
            return None
        least = 1
        for use in (behaviour.cpus, behaviour.memory, behaviour.gpus):
            if use.asked > 0:
                if not use.node > 0:
                    return None
                least = max(least, math.ceil(use.asked / (use.node / count) - 1e-9))
        if 2 * least > count:
            return None
        return Finding(
            rule="fragmentation",
            evidence=f"its {_amount(behaviour.cpus.asked)} cores were on {count} nodes; "
            f"{format_count(least, 'node')} of that kind could hold all it asked for",
        )

    def time_limit(self) -> Finding | None:
        record = self.record
        spare_s = record.time_limit_s - record.elapsed_s
        if record.state != "completed" or not spare_s >= _LIMIT_S:
            return None
        if not record.time_limit_s >= _LIMIT * record.elapsed_s:
            return None
        return Finding(
            rule="time_limit",
            evidence=f"it took {format_hours(record.elapsed_s)} of the "
            f"{format_hours(record.time_limit_s)} that it asked for",
            # Nothing is drawn after the end.
            energy_j=0.0,
            carbon_g=0.0,
        )


def _or_0(value: float) -> float:
    """Return a number, 0 where it is not known."""
    return 0.0 if math.isnan(value) else float(value)


def _amount(number: float) -> str:
    return format_number(number, digits=3)


def _size(count: float) -> str:
    return format_alike([count], SIZES)[0]
