"""What of a shared machine's power is the program's.

The rules are those of `attribution.py`, with the program as the only unit: what others use of the
CPUs is taken off, and so are the GPUs that are not the program's. What the machine draws when
nothing runs is the program's by what is reserved for it, which is all of it unless Slurm says
less. Where hardly anybody else does anything, the program has a machine of its own.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lowtide.attribution import IdleFloor, NodePower, share_out
from lowtide.files import read_or_empty
from lowtide.meters import Roots
from lowtide.monitor.node import busy_of, count_cpus, modes_of
from lowtide.monitor.owners import find_job, find_reserved
from lowtide.monitor.snapshot import GpuCounts, NodeCounts, Snapshot, Unit

SHARES = ("process", "node")
# What is used is compared over this time: the kernel counts in hundredths of a second, and what
# short processes used is known only once they have ended.
_WINDOW_S = 1.0
# Up to this share of its CPUs a machine always does something by itself.
_OWN_SHARE = IdleFloor().idle_share
_PROGRAM = Unit(source="process", job_id="program", started=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """CPU time used until a moment: by the machine, the program, and the measuring."""

    time_s: float
    busy_s: float
    used_s: float
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPower:
    """A GPU whose power is part of the whole.

    Attributes:
        name: What it is called.
        power_w: What it drew.
        share: Which share of it is the program's.
        given: Whether the program may use it at all.
    """

    name: str
    power_w: float
    share: float
    given: bool = True


@dataclass(slots=True, kw_only=True)
class Sharing:
    """Tells the program's power from the machine's, sample by sample.

    Attributes:
        share: Which of them is asked for, one of `SHARES`: the notes say what that means.
        idle_w: What a model says the machine draws when nothing runs; NaN where there is none.
        measured: Whether meters measured the power.
        sees_cpus: Whether what CPUs draw is in the power, and not that of GPUs alone.
        environment: Where Slurm says what is reserved.
        roots: Where the kernel's files are.
        cpus: How many CPUs the machine has.
    """

    share: str
    idle_w: float = math.nan
    measured: bool = True
    sees_cpus: bool = True
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    roots: Roots = field(default_factory=Roots)
    cpus: int = field(default=0, init=False)
    _reserved: float = field(default=0.0, init=False)
    _floor: IdleFloor = field(default_factory=IdleFloor, init=False)
    _moments: deque[_Moment] = field(default_factory=deque, init=False)
    _ran: bool = field(default=False, init=False)
    # CPU time of others and all that passed, before the program and beside it.
    _before: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _beside: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _blind: bool = field(default=False, init=False)
    # What GPUs that the program may use drew, for others and in all, summed over samples.
    _cards_w: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.cpus = count_cpus(self.roots.procfs, self.roots.sysfs)
        self._reserved = float(self.cpus)
        reserved, _ = find_reserved(self.environment)
        if find_job(self.environment) and 0 < reserved < self.cpus:
            # Slurm may count cores where the kernel counts threads: what may be used, counts.
            allowed = len(os.sched_getaffinity(0))
            self._reserved = max(reserved, allowed if allowed < self.cpus else 0.0)

    @property
    def can_tell(self) -> bool:
        """Whether the kernel says how busy the machine is."""
        return self.cpus > 0 and not math.isnan(self._busy_s())

    def restart(self) -> None:
        """Forget a run; what the idle machine draws is kept."""
        self._moments.clear()
        self._before = self._beside = (0.0, 0.0)
        self._ran = self._blind = False
        self._cards_w.clear()

    def look(self, used_s: float | None) -> None:
        """Take down what was used until now.

        Args:
            used_s: CPU time of the program so far, None where it does not run.
        """
        if used_s is not None and not self._ran:
            # What it used is counted from its start on.
            self._ran = True
            if self._moments:
                last = self._moments[-1]
                self._moments.clear()
                self._moments.append(last)
        before = self._moments[-1] if self._moments else None
        now = _Moment(
            time_s=time.monotonic(),
            busy_s=self._busy_s(),
            # What a program used that is over stays used.
            used_s=used_s if used_s is not None else before.used_s if before else 0.0,
            own_s=time.process_time(),
        )
        self._moments.append(now)
        while len(self._moments) > 2 and now.time_s - self._moments[1].time_s >= _WINDOW_S:
            self._moments.popleft()
        if before is not None:
            others_s, passed_s = (
                self._others_s(before, now),
                self.cpus * (now.time_s - before.time_s),
            )
            if used_s is not None:
                self._beside = (self._beside[0] + others_s, self._beside[1] + passed_s)
            elif not self._ran:
                self._before = (self._before[0] + others_s, self._before[1] + passed_s)

    def others_cpus(self) -> float:
        """Return how many CPUs others kept busy lately, NaN where it is not known."""
        if len(self._moments) < 2:
            return math.nan
        first, last = self._moments[0], self._moments[-1]
        passed_s = last.time_s - first.time_s
        return max(self._others_s(first, last), 0.0) / passed_s if passed_s > 0 else math.nan

    def program_w(self, total_w: float, gpus: Sequence[GpuPower], *, runs: bool) -> float:
        """Return the program's part of what was drawn; NaN where it cannot be told.

        Args:
            gpus: The GPUs whose power is in that.
            runs: Whether the program was running; else it is what it would find.
        """
        others = self.others_cpus()
        if math.isnan(total_w) or math.isnan(others):
            return math.nan
        known = [gpu for gpu in gpus if gpu.power_w > 0]
        for gpu in known if runs else ():
            if gpu.given:
                others_w, all_w = self._cards_w.get(gpu.name, (0.0, 0.0))
                others_w += gpu.power_w * (1 - gpu.share)
                self._cards_w[gpu.name] = (others_w, all_w + gpu.power_w)
        power = NodePower(
            node_w=total_w, gpu_w={gpu.name: gpu.power_w for gpu in known}, measured=self.measured
        )
        before = self._snapshot(self._moments[0], known)
        after = self._snapshot(self._moments[-1], known)
        self._floor.see(before, after, power)
        if others <= _OWN_SHARE * self.cpus and self._reserved >= self.cpus:
            return max(total_w - sum(gpu.power_w * (1 - gpu.share) for gpu in known), 0.0)
        idle_w = self._floor.at(power) if math.isnan(self.idle_w) else self.idle_w
        if idle_w is None and not runs:
            # What the machine would draw without the others, nobody has seen.
            return math.nan
        self._blind = self._blind or idle_w is None
        shared = share_out(before, after, power, idle_w=idle_w)
        return min(float(shared.power_w[0]), total_w)

    def notes(self) -> list[str]:
        """Return what is to be known about who else was busy."""
        found = []
        for (others_s, passed_s), when in (
            (self._before, "before the start"),
            (self._beside, "by others than the program while it ran"),
        ):
            if passed_s > 0 and others_s > _OWN_SHARE * passed_s:
                share = min(others_s / passed_s, 1.0)
                found.append(f"the machine was {share:.0%} busy {when}".replace("%", " %"))
        taken_off = self.share == "process"
        cards = [
            f"{name} was shared: {others_w / all_w:.0%} of what it drew ".replace("%", " %")
            + (
                "is taken off, by who ran on it"
                if taken_off
                else "was for others, and is in the power (--share node)"
            )
            for name, (others_w, all_w) in self._cards_w.items()
            if others_w > _OWN_SHARE * all_w
        ]
        if found and not self.sees_cpus:
            found[-1] += "; the meters see GPUs alone, so nothing of that is in the power"
        elif found and taken_off:
            found[-1] += "; what others drew on the CPUs is taken off, by CPU time"
            if self._blind:
                found[-1] += (
                    ". What the machine draws when nothing runs is not known, since it never was "
                    "idle, and is shared likewise: the program drew at least this"
                )
        elif found:
            found[-1] += "; what that drew is in the power (--share node)"
        return found + cards

    def _others_s(self, before: _Moment, after: _Moment) -> float:
        busy_s = after.busy_s - before.busy_s
        return busy_s - (after.used_s - before.used_s) - (after.own_s - before.own_s)

    def _busy_s(self) -> float:
        return busy_of(modes_of(read_or_empty(f"{self.roots.procfs}/stat")))

    def _snapshot(self, moment: _Moment, gpus: Sequence[GpuPower]) -> Snapshot:
        unknown = np.full(1, np.nan)
        return Snapshot(
            time=moment.time_s,
            clock_s=moment.time_s,
            node=NodeCounts(
                cpus=self.cpus,
                busy_s=moment.busy_s,
                memory_bytes=math.nan,
                available_bytes=math.nan,
            ),
            units=(_PROGRAM,),
            cpu_s=np.array([moment.used_s]),
            memory_bytes=unknown,
            read_bytes=unknown,
            written_bytes=unknown,
            processes=unknown,
            reserved_cpus=np.array([self._reserved]),
            reserved_bytes=unknown,
            gpus=tuple(
                GpuCounts(
                    name=gpu.name,
                    uuid="",
                    busy=1.0,
                    memory_bytes=math.nan,
                    total_bytes=math.nan,
                    holders={0: gpu.share} if gpu.share > 0 else {},
                )
                for gpu in gpus
            ),
        )
