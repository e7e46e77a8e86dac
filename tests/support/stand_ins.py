"""Runs that stand in for simulations: they compute little, and fail in every way there is.

Workers import this module, so it is small and imports nothing heavy.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def squares(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a number or two; do what `workload.does` says before."""
    workload, seed = parameters["workload"], parameters["run"].get("seed", 0)
    match workload.get("does"):
        case "raise":
            raise RuntimeError("no such luck")
        case "die":
            os._exit(7)
        case "die once":
            tally = Path(workload["tally"])
            if not tally.exists():
                tally.touch()
                os.abort()
        case "leave":
            raise SystemExit("gone")
        case "unsendable":
            return {"numbers": lambda: seed}
        case "sleep":
            time.sleep(workload["seconds"])
        case "tell":
            with Path(workload["tally"]).open("a") as file:
                file.write(f"{seed}\n")
    return {"square": float(seed**2), "unknown": float("nan"), "name": f"run {seed}"}
