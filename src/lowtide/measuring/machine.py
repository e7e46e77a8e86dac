"""Facts about the machine that a measurement was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from lowtide.files import read_or_empty
from lowtide.meters import Roots
from lowtide.monitor.node import count_threads_per_core, memory_of


def machine_facts(roots: Roots | None = None) -> dict[str, Any]:
    """Return what kind of machine this is, and how its clocks are set; no names, no addresses."""
    roots = roots or Roots()
    memory = memory_of(read_or_empty(f"{roots.procfs}/meminfo"))
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(roots),
        "memory_bytes": int(memory["MemTotal"]) if "MemTotal" in memory else None,
        "python": platform.python_version(),
    }
    settings = roots.sysfs / "devices" / "system" / "cpu"
    for name, path in {
        "governor": settings / "cpu0" / "cpufreq" / "scaling_governor",
        "lowest_khz": settings / "cpu0" / "cpufreq" / "scaling_min_freq",
        "highest_khz": settings / "cpu0" / "cpufreq" / "scaling_max_freq",
        "turbo_off": settings / "intel_pstate" / "no_turbo",
        "boost": settings / "cpufreq" / "boost",
        "smt_active": settings / "smt" / "active",
    }.items():
        text = _line(path)
        if text:
            facts[name] = text
    facts["threads_per_core"] = count_threads_per_core(roots.sysfs)
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _cpu_model(roots: Roots) -> str:
    try:
        lines = (roots.procfs / "cpuinfo").read_text().splitlines()
    except (OSError, ValueError):
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return ""


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""
