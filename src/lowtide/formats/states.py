"""How jobs ended, in Slurm's words and in a trace's."""

from __future__ import annotations

from lowtide.trace import STATUSES

_SLURM = {
    "BOOT_FAIL": "node_failure",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "CONFIGURING": "running",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "node_failure",
    "OUT_OF_MEMORY": "out_of_memory",
    "PENDING": "pending",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESIZING": "running",
    "RESV_DEL_HOLD": "pending",
    "REVOKED": "cancelled",
    "RUNNING": "running",
    "SIGNALING": "running",
    "SPECIAL_EXIT": "pending",
    "STAGE_OUT": "running",
    "STOPPED": "suspended",
    "SUSPENDED": "suspended",
    "TIMEOUT": "timeout",
}
_CODES = {name.upper(): code for code, name in enumerate(STATUSES)} | {
    state: STATUSES.index(name) for state, name in _SLURM.items()
}


def status_code(state: str | None) -> int:
    """Return a state's place in `lowtide.trace.STATUSES`; what is not known is `unknown`.

    Args:
        state: What Slurm or a trace says, e.g. `CANCELLED by 1000`.

    >>> STATUSES[status_code("CANCELLED by 1000")]
    'cancelled'
    """
    words = (state or "").split()
    return _CODES.get(words[0].rstrip("+").upper(), 0) if words else 0
