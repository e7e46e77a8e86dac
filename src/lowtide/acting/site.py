"""What a site has set its Slurm to, as far as promises depend on it.

How late a begin is met, how long a requeued job is kept back and how long one that is told to leave
may take are settings of the controller. They are asked for, not assumed: a site that looks at its
queue every five minutes needs more of a margin than one that does so every two seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lowtide.acting.promise import Loops

_LINE = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.M)
_TOLD = re.compile(r"^Configuration data as of (\d+)\s*$", re.M)
_NUMBER = re.compile(r"\d+")
# What Slurm takes where a site says nothing.
_BACKFILL_S, _SCHEDULE_S, _CREDENTIAL_S = 30.0, 60.0, 120.0


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
    """

    loops: Loops = field(default_factory=Loops)
    accrues: bool | None = None
    requeues: bool | None = None
    kept_s: float = 300.0
    told_at: float | None = None

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
    flags = said.get("PriorityFlags")
    told = _TOLD.search(text)
    return SlurmSite(
        loops=Loops(
            pass_s=max(passes),
            requeue_s=_seconds(options, "requeue_delay", expires_s + 1.0),
            kill_s=_seconds(said, "KillWait", usual.kill_s) + _seconds(said, "CompleteWait", 0.0),
            spare_s=usual.spare_s,
        ),
        accrues=None if flags is None else "ACCRUE_ALWAYS" in flags.upper(),
        requeues=None if "JobRequeue" not in said else said["JobRequeue"] != "0",
        kept_s=_seconds(said, "MinJobAge", 300.0),
        told_at=float(told[1]) if told else None,
    )


def _options(text: str) -> dict[str, str]:
    """Return what `a=1,b,c=2` says."""
    parts = (each.partition("=") for each in text.split(","))
    return {name.strip().lower(): value.strip() for name, _, value in parts}


def _seconds(said: Mapping[str, str], name: str, usual_s: float) -> float:
    """Return a time that is set; a loop that is switched off (-1) is none, so the usual counts."""
    found = _NUMBER.match(said.get(name, ""))
    return float(found[0]) if found else usual_s
