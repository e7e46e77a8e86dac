"""The promise: the latest start from which a job is done in time, whatever becomes of the driver.

    S = deadline − R − W − σ

R is how long the job takes from a start on, at most; W how long the queue keeps it waiting; σ what
the scheduler's own loops take. A waiting job carries a begin no later than S inside Slurm, so that
nobody has to be alive for it to be kept. From S on it is made to wait no more, which is as good as
having run at once from there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowtide.acting.tag import Tag

# A job that has taken longer than it ever did still takes this share of a run, as far as is known.
_OVERTIME = 0.1
# How long before its limit a job that can save is told to.
WARNING_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """What the scheduler takes for itself between a begin and a start, or a stop and a restart.

    Attributes:
        pass_s: Between two looks at the queue: a begin is met at the next one.
        requeue_s: How long Slurm keeps a requeued job from starting.
        kill_s: How long what is told to leave may take.
        spare_s: For clocks and busy controllers.
        boot_s: How long a node takes to come up that was switched off.
    """

    pass_s: float = 60.0
    requeue_s: float = 121.0
    kill_s: float = 30.0
    spare_s: float = 60.0
    boot_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it: σ."""
        return self.pass_s + self.requeue_s + self.kill_s + self.spare_s + self.boot_s


NO_LOOPS = Loops(pass_s=0.0, requeue_s=0.0, kill_s=0.0, spare_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What one job's deadline comes to.

    Attributes:
        deadline: By when it must be done.
        run_s: R: how long it takes from the next start on, at most.
        wait_s: W: how long the queue may keep it waiting.
        loops_s: σ: what the scheduler's loops take.
        beside_s: The part of W that other jobs take which are deferred as this one is.

    >>> Promise(deadline=36000.0, run_s=7200.0, wait_s=14400.0, loops_s=271.0).latest
    14129.0
    """

    deadline: float
    run_s: float
    wait_s: float
    loops_s: float
    beside_s: float = 0.0

    @property
    def latest(self) -> float:
        """S: the latest begin that keeps the deadline."""
        return self.deadline - self.run_s - self.wait_s - self.loops_s

    def survives_stop(self, now: float, stop_s: float) -> bool:
        """Return whether a job that is asked to stop now can still be done in time.

        A restart pays the queue once more.
        """
        return now + stop_s <= self.latest


def promise_of(
    tag: Tag,
    *,
    limit_s: float | None,
    wait_s: float,
    loops: Loops,
    killed_at: float | None = None,
    ran_s: float = 0.0,
    beside_s: float = 0.0,
) -> Promise:
    """Return the promise of a job as it stands.

    Args:
        limit_s: After how long a run is ended anyway; None for never.
        killed_at: When Slurm itself would end the job, should its limit reach beyond (`--deadline`
            of sbatch): a job that is begun so late that it could is cancelled.
        ran_s: For how long it has been running, of a job that runs and would be stopped now.
        beside_s: How much longer than that it waits for others that are deferred as it is.
    """
    wait_s += beside_s
    run_s = _needed_s(tag, limit_s, pause_s=wait_s + loops.total_s, ran_s=ran_s)
    deadline = tag.deadline
    if killed_at is not None:
        deadline = min(deadline, killed_at - max((limit_s or run_s) - run_s, 0.0))
    return Promise(
        deadline=deadline,
        run_s=run_s,
        wait_s=wait_s,
        loops_s=loops.total_s,
        beside_s=beside_s,
    )


def _needed_s(tag: Tag, limit_s: float | None, *, pause_s: float, ran_s: float) -> float:
    """Return R: how long a job takes from its next start on, at most.

    Args:
        pause_s: What lies between two starts besides saving.
    """
    run_s = tag.run_s
    if tag.by_limit:
        # Who was given more time since may take it.
        run_s = max(run_s, math.inf if limit_s is None else limit_s)
    work_s = max(run_s - tag.startup_s, 0.0)
    done_s = tag.progress_s + max(ran_s - tag.startup_s, 0.0)
    left_s = max(work_s - done_s, _OVERTIME * work_s if done_s else 0.0)
    rest_s = tag.startup_s + left_s
    if limit_s is None or rest_s <= limit_s:
        return rest_s
    if not tag.interruptible:
        # Done or not, it is ended there.
        return limit_s
    # It saves shortly before the limit and goes on in another start, which has to queue as well.
    each_s = limit_s - tag.startup_s - max(tag.stop_s, WARNING_S)
    if each_s <= 0:
        return math.inf
    more = math.ceil(left_s / each_s) - 1
    return rest_s + more * (tag.stop_s + pause_s + tag.startup_s)
