"""What is known of a job besides what it uses: who asked for how much, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

# Said of a job that waited: nobody knows what became of it, or it went where nobody watches.
UNKNOWN, ELSEWHERE = "unknown", "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """One start of one job. None where it is not known.

    A job that was requeued, or a number that was used again, is told apart by its start.

    Attributes:
        source: Where the job was found, one of `snapshot.SOURCES`.
        job_id: The number it is accounted by.
        shown_id: What users type: `4711_3` for an element of an array.
        state: One of `states.STATES`; or `UNKNOWN` or `ELSEWHERE`, which take back that it waits.
        user: Who runs it.
        account: Who pays for it.
        partition: Where it runs.
        name: What it is called.
        nodes: The nodes it runs on.
        submitted: When it was submitted, epoch seconds.
        started: When it began.
        ended: When it was over.
        time_limit_s: How long it may run.
        cpus: CPUs that it asked for, over all nodes.
        memory_bytes: Memory that it asked for, over all nodes.
        gpus: GPUs that it asked for, over all nodes.
        exit_code: The program's exit status.
        restarts: How often it was requeued before this start.
        comment: What the user wrote beside it.
        cluster: Which of several clusters it is on, since each counts its jobs by itself.
        sluid: What Slurm names its group by, from 26.05 on; each start has another.
        asked: When whoever tells was asked, epoch seconds: what happened later they did not know.
    """

    source: str
    job_id: str
    shown_id: str | None = None
    state: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    nodes: tuple[str, ...] = ()
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    time_limit_s: float | None = None
    cpus: float | None = None
    memory_bytes: float | None = None
    gpus: float | None = None
    exit_code: int | None = None
    restarts: int | None = None
    comment: str | None = None
    cluster: str | None = None
    sluid: str | None = None
    asked: float | None = field(default=None, compare=False)
