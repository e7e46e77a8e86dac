"""What a site has set its Slurm to, as far as promises depend on it.

How late a begin is met, how long a requeued job is kept back and how long one that is told to leave
may take are settings of the controller. They are asked for, not assumed: a site that looks at its
queue every five minutes needs more of a margin than one that does so every two seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lowtide.acting.promise import Loops

_LINE = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.M)
_TOLD = re.compile(r"^Configuration data as of (\d+)\s*$", re.M)
_NUMBER = re.compile(r"\d+")
# What Slurm takes where a site says nothing.
_BACKFILL_S, _SCHEDULE_S, _CREDENTIAL_S = 30.0, 60.0, 120.0
_MEGABYTE = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What jobs take of nodes besides what they ask for.

    Attributes:
        whole: Whether each has its nodes for itself.
        minds_memory: Whether memory is theirs as CPUs are.
        cpu_memory: Bytes for each CPU of a job that asks for none.
        node_memory: Bytes on each node of such a job; infinite for all that there is.
    """

    whole: bool = False
    minds_memory: bool = False
    cpu_memory: float = 0.0
    node_memory: float = 0.0

    def in_partition(self, text: str) -> Shares:
        """Return the same for a partition, as `scontrol -o show partition` tells of it.

        >>> Shares(node_memory=4e9).in_partition("OverSubscribe=NO DefMemPerCPU=100").cpu_memory
        104857600.0
        """
        said = dict(re.findall(r"(\w+)=(\S*)", text))
        whole = self.whole or said.get("OverSubscribe", "").startswith("EXCLUSIVE")
        default = _default_memory(said)
        if default is None:
            return replace(self, whole=whole)
        return replace(self, whole=whole, cpu_memory=default[0], node_memory=default[1])


def _default_memory(said: Mapping[str, str]) -> tuple[float, float] | None:
    """Return what a job has that asks for none, for each CPU and on each node; None if unsaid."""
    for place, name in enumerate(("DefMemPerCPU", "DefMemPerNode")):
        found = _NUMBER.match(said.get(name, ""))
        if found:
            size = float(found[0]) * _MEGABYTE
            return (size, 0.0) if place == 0 else (0.0, size)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """A Slurm as its controller is set.

    Attributes:
        loops: What its own loops take.
        accrues: Whether jobs grow older in the queue while they wait for their begin; None where
            nobody says.
        requeues: Whether jobs may be requeued unless they say otherwise; None where nobody says.
        kept_s: For how long it knows a job that is over.
        told_at: What time it was by its clock when it told this; None where it does not say.
        shares: How jobs share nodes.
    """

    loops: Loops = field(default_factory=Loops)
    accrues: bool | None = None
    requeues: bool | None = None
    kept_s: float = 300.0
    told_at: float | None = None
    shares: Shares = field(default_factory=lambda: Shares())

    @property
    def advice(self) -> list[str]:
        """What an operator could change, so that deferring costs jobs nothing in the queue."""
        said = []
        if self.accrues is False:
            said.append(
                "jobs that wait for their begin do not age in the queue: set "
                "PriorityFlags=ACCRUE_ALWAYS in slurm.conf"
            )
        if self.requeues is False:
            said.append("jobs are not requeued unless they ask for it: set JobRequeue=1")
        return said


def read_site(text: str) -> SlurmSite:
    """Read what `scontrol show config` prints; what it does not say is as Slurm has it by itself.

    >>> read_site("SchedulerParameters = bf_interval=300,defer").loops.pass_s
    300.0
    """
    said = dict(_LINE.findall(text))
    options = _options(said.get("SchedulerParameters", ""))
    # Either loop meets a begin; one that looks at a part of the queue alone may pass a job over.
    passes = [_seconds(options, "sched_interval", _SCHEDULE_S)]
    if "builtin" not in said.get("SchedulerType", ""):
        # A pass over a long queue may be allowed to take longer than lies between two.
        long_s = _seconds(options, "bf_max_time", 0.0)
        passes.append(_seconds(options, "bf_interval", _BACKFILL_S) + long_s)
    expires_s = _seconds(_options(said.get("AuthInfo", "")), "cred_expire", _CREDENTIAL_S)
    usual = Loops()
    # Nodes that were switched off to save power are started first.
    boots = said.get("ResumeProgram", "(null)") != "(null)"
    shares = said.get("SelectTypeParameters", "").upper()
    default = _default_memory(said)
    flags = said.get("PriorityFlags")
    told = _TOLD.search(text)
    return SlurmSite(
        loops=Loops(
            pass_s=max(passes),
            requeue_s=_seconds(options, "requeue_delay", expires_s + 1.0),
            kill_s=_seconds(said, "KillWait", usual.kill_s) + _seconds(said, "CompleteWait", 0.0),
            spare_s=usual.spare_s,
            boot_s=_seconds(said, "ResumeTimeout", 60.0) if boots else 0.0,
        ),
        accrues=None if flags is None else "ACCRUE_ALWAYS" in flags.upper(),
        requeues=None if "JobRequeue" not in said else said["JobRequeue"] != "0",
        kept_s=_seconds(said, "MinJobAge", 300.0),
        told_at=float(told[1]) if told else None,
        shares=Shares(
            whole="linear" in said.get("SelectType", ""),
            minds_memory="MEMORY" in shares,
            cpu_memory=default[0] if default else 0.0,
            # Where nobody says, Slurm gives a job all that its nodes have.
            node_memory=default[1] if default else math.inf,
        ),
    )


def _options(text: str) -> dict[str, str]:
    """Return what `a=1,b,c=2` says."""
    parts = (each.partition("=") for each in text.split(","))
    return {name.strip().lower(): value.strip() for name, _, value in parts}


def _seconds(said: Mapping[str, str], name: str, usual_s: float) -> float:
    """Return a time that is set; a loop that is switched off (-1) is none, so the usual counts."""
    found = _NUMBER.match(said.get(name, ""))
    return float(found[0]) if found else usual_s
