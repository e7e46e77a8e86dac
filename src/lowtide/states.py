"""How a job stands or ended, in Slurm's words, in a trace and of a job that is watched."""

from __future__ import annotations

# The status column of a trace holds places in this list.
STATUSES = (
    "unknown",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "out_of_memory",
    "node_failure",
    "preempted",
    "requeued",
    "running",
    "pending",
    "suspended",
    "partial",
    "partial_completed",
    "partial_failed",
)
# What is said of a job that is watched.
NOT_OVER = ("pending", "running", "suspended")
STATES = (
    *NOT_OVER,
    *("completed", "failed", "cancelled", "timeout", "out_of_memory", "node_fail", "preempted"),
    *("deadline", "boot_fail", "requeued"),
)
# Slurm's word: how it is shortened, what a trace calls it, what is said of a job that is watched.
_SLURM = {
    "BOOT_FAIL": ("BF", "node_failure", "boot_fail"),
    "CANCELLED": ("CA", "cancelled", "cancelled"),
    "COMPLETED": ("CD", "completed", "completed"),
    "COMPLETING": ("CG", "running", "running"),
    "CONFIGURING": ("CF", "running", "running"),
    "DEADLINE": ("DL", "timeout", "deadline"),
    "FAILED": ("F", "failed", "failed"),
    "LAUNCH_FAILED": ("LF", "failed", "failed"),
    "NODE_FAIL": ("NF", "node_failure", "node_fail"),
    "OUT_OF_MEMORY": ("OOM", "out_of_memory", "out_of_memory"),
    "PENDING": ("PD", "pending", "pending"),
    "PREEMPTED": ("PR", "preempted", "preempted"),
    "REQUEUED": ("RQ", "requeued", "requeued"),
    "REQUEUE_FED": ("RF", "pending", "pending"),
    "REQUEUE_HOLD": ("RH", "pending", "pending"),
    "RESIZING": ("RS", "running", "running"),
    "RESV_DEL_HOLD": ("RD", "pending", "pending"),
    "REVOKED": ("RV", "cancelled", "cancelled"),
    "RUNNING": ("R", "running", "running"),
    "SIGNALING": ("SI", "running", "running"),
    "SPECIAL_EXIT": ("SE", "pending", "pending"),
    "STAGE_OUT": ("SO", "running", "running"),
    "STOPPED": ("ST", "suspended", "suspended"),
    "SUSPENDED": ("S", "suspended", "suspended"),
    "TIMEOUT": ("TO", "timeout", "timeout"),
}
_CODES = {name.upper(): code for code, name in enumerate(STATUSES)} | {
    word: STATUSES.index(status) for word, (_, status, _) in _SLURM.items()
}
_READ = {word: state for word, (_, _, state) in _SLURM.items()}
# What may be asked for: our words, and Slurm's long and short ones.
WORDS = {
    **{state: state for state in STATES},
    **{word.lower(): state for word, state in _READ.items()},
    **{short.lower(): state for short, _, state in _SLURM.values()},
}


def status_code(state: str | None) -> int:
    """Return a state's place in `STATUSES`; what is not known is `unknown`.

    Args:
        state: What Slurm or a trace says, e.g. `CANCELLED by 1000`.

    >>> STATUSES[status_code("CANCELLED by 1000")]
    'cancelled'
    """
    return _CODES.get(_first_word(state), 0)


def read_state(text: str | None) -> str | None:
    """Return how a job stands, one of `STATES`; None where that is not known.

    >>> read_state("CANCELLED by 1000"), read_state("COMPLETING"), read_state("BORED")
    ('cancelled', 'running', None)
    """
    return _READ.get(_first_word(text))


def _first_word(text: str | None) -> str:
    words = (text or "").split()
    return words[0].rstrip("+").upper() if words else ""
