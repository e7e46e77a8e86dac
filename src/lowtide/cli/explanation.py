"""What `lowtide plan --explain` prints: why a schedule is as it is."""

from __future__ import annotations

from lowtide.cli.inputs import Zone
from lowtide.cli.output import print_table, say
from lowtide.policies.explain import Explanation
from lowtide.units import (
    MISSING,
    format_duration,
    format_minute,
    format_number,
    format_percent,
)


def show_explanation(reasons: Explanation, *, unit: str, zone: Zone) -> None:
    """Print what the parts of a plan cost, and what other choices would have."""
    print_table(
        (f"start ({zone.name})", f"end ({zone.name})", "work", unit, "overhead", f"{unit}/kWh"),
        [
            [
                format_minute(block.start, zone.tz),
                format_minute(block.end, zone.tz),
                format_duration(block.work_s),
                format_number(block.amount),
                format_number(block.overhead),
                format_number(block.mean),
            ]
            for block in reasons.blocks
        ],
    )
    print()
    rows = [
        ("this plan", reasons.total),
        ("starting now, never stopping", reasons.run_now),
        ("the best single start", reasons.uninterrupted),
        ("one start fewer", reasons.one_start_fewer),
        ("one start more", reasons.one_start_more),
        ("without knowing the phases", reasons.blind_to_phases),
    ]
    print_table(
        ("what", unit, "against this plan"),
        [
            [
                what,
                format_number(amount),
                MISSING if amount is None else _against(amount, reasons.total),
            ]
            for what, amount in rows
        ],
    )
    blind = reasons.blind_to_phases
    worth = None if blind is None else blind - reasons.total
    share = worth / blind if worth is not None and blind is not None and blind > 0 else None
    print()
    say(
        f"Knowing the phases is worth {format_number(worth)} {unit} ({format_percent(share)}); "
        f"being suspended costs {format_number(max(reasons.suspended, 0.0))} {unit}."
    )


def _against(amount: float, total: float) -> str:
    return f"{100 * (amount / total - 1):+.1f} %" if total > 0 else MISSING
