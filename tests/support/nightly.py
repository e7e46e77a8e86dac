"""How much is drawn: enough for every change by day, by the thousand at night."""

from __future__ import annotations

import os

IS_NIGHT = bool(os.environ.get("LOWTIDE_NIGHTLY"))


def drawn(by_day: int, by_night: int) -> int:
    """Return how many cases a test draws in this run."""
    return by_night if IS_NIGHT else by_day
