"""What is known of a job, as plain lists and numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lowtide.hindsight.looking_back import Hindsight
from lowtide.monitor.verdicts import Use
from lowtide.units import format_iso

# What is used, by the name that says the unit, and what holds it.
USES = {
    "cpus": "cpus",
    "memory_bytes": "memory",
    "gpus": "gpus",
    "gpu_memory_bytes": "gpu_memory",
}
_MEASURES = ("mean", "peak")


def hindsight_document(told: Hindsight) -> dict[str, Any]:
    """Return all of it."""
    record, behaviour = told.record, told.behaviour
    series = told.series
    return {
        "job": {**asdict(record), "power": record.power, "mean_power_w": record.mean_power_w},
        "uses": {name: _use(getattr(behaviour, held)) for name, held in USES.items()},
        "length_s": behaviour.length_s,
        "load": behaviour.load,
        "verdicts": [asdict(verdict) for verdict in told.verdicts],
        "phases": None if told.phases is None else [asdict(each) for each in told.phases.found],
        "phases_from": None if told.phases is None else told.phases.origin,
        "pue": told.pue,
        "signal": None if told.signal is None else told.signal.label,
        "at_once": told.at_once,
        "waiting": [
            {
                "wait_s": each.wait_s,
                "start": format_iso(each.plan.schedule.start),
                "end": format_iso(each.plan.schedule.end),
                "starts": each.plan.footprint.starts,
                "carbon_g": each.plan.footprint.carbon_g,
                "cost": each.plan.footprint.cost,
                "baseline_carbon_g": each.plan.baseline.carbon_g,
                "baseline_cost": each.plan.baseline.cost,
                "saving": each.plan.saving,
                "synthetic": each.plan.synthetic,
            }
            for each in told.waiting
        ],
        "series": {
            "times": series.times.tolist(),
            "step_s": series.step_s.tolist(),
            **{name: values.tolist() for name, values in series.columns.items()},
        },
        "notes": list(told.notes),
    }


def _use(use: Use) -> dict[str, float]:
    shares = {
        f"{what}_of_{of}": use.share(what, of) for of in ("asked", "node") for what in _MEASURES
    }
    return {**asdict(use), **shares}
