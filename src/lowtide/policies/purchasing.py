"""On what a job runs: machines that are reserved, spot machines, or machines on demand.

A start policy says when a job would run if machines cost the same at all times. Reserved machines
are paid for whether they are used or not, so a job that arrives while some are free may as well
start at once; spot machines are cheap and may be taken away, which short jobs need not mind. What
is free when is known to a simulation with a cluster, which looks at the attributes here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lowtide.accounting import Stretches
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies.many import decide_many
from lowtide.policies.policy import Decision, Policy, make_policy
from lowtide.signal import Signal
from lowtide.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchasing:
    """A start policy, and which machines it runs on.

    Attributes:
        start: The policy that says when a job starts that runs on demand: a name, or a policy.
    """

    uses_reserved: ClassVar[bool] = False
    uses_spot: ClassVar[bool] = False

    start: str | Policy = "carbon_time"

    def __post_init__(self) -> None:
        make_policy(self.start)

    @property
    def inner(self) -> Policy:
        """The start policy."""
        return make_policy(self.start)[1]

    @property
    def spot_longest_s(self) -> float:
        """The longest run for which a job is put on a spot machine."""
        return 0.0

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job, for which there is no cluster: as the start policy does."""
        name, policy = make_policy(self.start)
        decision = policy.decide(job, signal)
        note = f"without a cluster nothing is reserved and nothing is spot: as {name} decides"
        return replace(decision, note="; ".join(part for part in (note, decision.note) if part))

    def decide_many(self, jobs: Workload, signal: Signal) -> Stretches:
        """Decide for many jobs, as for each."""
        return decide_many(self.inner, jobs, signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedFirst(Purchasing):
    """Start at once if reserved machines are free, else when the start policy says.

    A job that waits starts earlier than that as soon as enough reserved machines become free.

    Attributes:
        start: The policy that says when a job starts that runs on demand: a name, or a policy.
    """

    uses_reserved: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotFirst(Purchasing):
    """Start when the start policy says, short jobs on spot machines.

    Attributes:
        start: The policy that says when a job starts: a name, or a policy.
        spot_longest_s: The longest run for which a job is put on a spot machine.
    """

    uses_spot: ClassVar[bool] = True

    spot_longest_s: float = 7200.0

    def __post_init__(self) -> None:
        make_policy(self.start)
        _check_longest(self.spot_longest_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotReserved(Purchasing):
    """Start short jobs on spot machines when the start policy says, others as `ReservedFirst`.

    Attributes:
        start: The policy that says when a job starts that does not run on reserved machines.
        spot_longest_s: The longest run for which a job is put on a spot machine.
    """

    uses_reserved: ClassVar[bool] = True
    uses_spot: ClassVar[bool] = True

    spot_longest_s: float = 7200.0

    def __post_init__(self) -> None:
        make_policy(self.start)
        _check_longest(self.spot_longest_s)


def _check_longest(longest_s: float) -> None:
    if not longest_s >= 0:
        raise InvalidInput(f"jobs of 0 s or more run on spot machines, not of {longest_s} s")
