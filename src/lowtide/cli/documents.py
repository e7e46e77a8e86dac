"""Plans as JSON documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lowtide.policies import Plan
from lowtide.signal import Signal
from lowtide.studies.comparison import Comparison
from lowtide.units import format_iso


def signal_document(signal: Signal) -> dict[str, Any]:
    """Return what a signal is, without its values."""
    return {
        "label": signal.label,
        "kind": signal.kind,
        "basis": signal.basis,
        "zone": signal.zone,
        "unit": signal.unit,
        "source": signal.source,
        "synthetic": signal.synthetic,
        "filled": signal.filled,
        "estimated": signal.estimated,
        "imputed_share": signal.imputed,
        "start": format_iso(signal.start),
        "end": format_iso(signal.end),
        "step_s": signal.step_s,
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan with its spans and footprints."""
    return {
        "policy": plan.policy,
        "start": format_iso(plan.schedule.start),
        "end": format_iso(plan.schedule.end),
        "saving": plan.saving,
        "lower_bound": plan.lower_bound,
        "lower_bound_g": plan.lower_bound_g,
        "synthetic": plan.synthetic,
        "step_s": plan.step_s,
        "resolution_gap": plan.resolution_gap,
        "resolution_gap_g": plan.resolution_gap_g,
        "note": plan.note,
        "footprint": asdict(plan.footprint),
        "baseline": asdict(plan.baseline),
        "spans": [
            {
                "kind": span.kind,
                "start": format_iso(span.start),
                "end": format_iso(span.end),
                "duration_s": span.duration_s,
                "progress_s": span.progress_s,
            }
            for span in plan.schedule.spans
        ],
    }


PLAN_COLUMNS = (
    "policy",
    "start",
    "end",
    "wait_s",
    "starts",
    "energy_j",
    "carbon_g",
    "cost",
    "saving",
    "synthetic",
)


def plan_columns(plan: Plan) -> list[str]:
    """Return a plan as `PLAN_COLUMNS` name it, for scripts."""
    footprint = plan.footprint
    numbers = (footprint.energy_j, footprint.carbon_g, footprint.cost, plan.saving)
    return [
        plan.policy,
        format_iso(plan.schedule.start),
        format_iso(plan.schedule.end),
        f"{footprint.wait_s:.10g}",
        str(footprint.starts),
        *("" if number is None else f"{number:.10g}" for number in numbers),
        "yes" if plan.synthetic else "no",
    ]


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the plans of one job, and what they were planned on."""
    job = comparison.job
    return {
        "job": {
            "id": job.id,
            "arrival": format_iso(job.arrival),
            "deadline": format_iso(job.deadline),
            "interruptible": job.interruptible,
            "profile": job.profile.to_dict(),
        },
        "signal": signal_document(comparison.signal),
        "plans": [plan_document(plan) for plan in comparison.plans],
    }
