"""The columns of SWF, in order, by the names a trace has for them."""

from __future__ import annotations

COLUMNS = (
    "id",
    "arrival",
    "wait_s",
    "length_s",
    "cpus",
    "cpu_time_s",
    "memory_bytes",
    "requested_cpus",
    "requested_s",
    "requested_memory_bytes",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding",
    "think_s",
)
# Those that number things rather than measure them.
WHOLE = frozenset(("id", "status", "user", "group", "executable", "queue", "partition"))

# What the status numbers mean; −1 is unknown.
STATUS = {
    0: "failed",
    1: "completed",
    2: "partial",
    3: "partial_completed",
    4: "partial_failed",
    5: "cancelled",
}

BYTES_PER_KB = 1024.0
