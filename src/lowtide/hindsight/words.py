"""What is known of a job, in words and tables: the terminal and the page say the same."""

from __future__ import annotations

import math

from lowtide.hindsight.looking_back import Hindsight
from lowtide.learning.learned import Learned
from lowtide.monitor.verdicts import Behaviour, Use, whole_percent
from lowtide.store import JobRecord
from lowtide.units import (
    MISSING,
    format_duration,
    format_energy,
    format_mass,
    format_number,
    format_percent,
    format_time,
)

Table = tuple[tuple[str, ...], list[list[str]]]

# How sure a figure is, in the words it is shown with.
_POWER = {"measured": "measured", "estimated": "estimated", "part": "measured in part"}


def headline(told: Hindsight) -> list[str]:
    """Return who ran what, where, when and how it ended.

    Args:
        told: The job.
    """
    record = told.record
    name = f" ({record.name})" if record.name else ""
    where = f" on {', '.join(record.hosts)}" if record.hosts else ""
    state = record.state or "how it ended is not known"
    code = f", exit status {record.exit_code}" if record.exit_code else ""
    first = f"Job {record.shown_id}{name} of {record.user or MISSING}{where}: {state}{code}."
    times = (
        f"Began {format_time(_known(record.started))}, "
        f"{'ended ' + format_time(record.ended) if record.ended == record.ended else 'no end seen'}"
        f"; ran {format_duration(record.elapsed_s)}, was watched for "
        f"{format_duration(record.seen_s if record.looks > 1 else math.nan)}."
    )
    lines = [first, times]
    if record.looks == 1:
        lines.append("It was seen once only: how long it ran is not known.")
    return lines


def use_rows(behaviour: Behaviour) -> Table:
    """Return what was asked for against what was used.

    Args:
        behaviour: What was seen of the job.
    """
    named = (
        ("cores", behaviour.cpus, _plain),
        ("memory", behaviour.memory, _bytes),
        ("GPUs", behaviour.gpus, _plain),
        ("GPU memory", behaviour.gpu_memory, _bytes),
    )
    rows = [
        [
            name,
            amount(use.asked),
            amount(use.mean),
            amount(use.peak),
            _asked(use, "mean"),
            _asked(use, "peak"),
            whole_percent(use.share("mean", "node")),
            whole_percent(use.share("peak", "node")),
        ]
        for name, use, amount in named
    ]
    header = ("", "asked", "mean", "peak", "of asked: mean", "peak", "of node: mean", "peak")
    return header, rows


def drawn(record: JobRecord) -> list[str]:
    """Return what a job drew and emitted, and how sure that is.

    Args:
        record: The job.
    """
    if record.power is None:
        return ["What it drew and emitted is not known."]
    lines = [
        f"Drew {format_energy(record.energy_j)} ({_POWER[record.power]}): "
        f"{format_number(record.mean_power_w)} W on average, "
        f"{format_number(record.peak_power_w)} W at most."
    ]
    emitted = f"Emitted {format_mass(record.carbon_g)} CO2e by average intensity"
    if not math.isnan(record.marginal_g):
        emitted += f", {format_mass(record.marginal_g)} by marginal intensity"
    emitted += f"; its share of making the node: {format_mass(record.embodied_g)}."
    return [*lines, emitted]


def phase_rows(learned: Learned) -> Table:
    """Return the phases, those that repeat once.

    Args:
        learned: The phases.
    """
    rows = [
        [
            phase.name,
            str(phase.times),
            format_duration(phase.duration_s.value),
            f"{phase.power_w.value:.4g} W",
            format_energy(phase.times * phase.duration_s.value * phase.power_w.value),
        ]
        for phase in learned.phases
    ]
    return ("phase", "times", "each for", "power", "energy in all"), rows


def waiting_rows(told: Hindsight) -> Table:
    """Return what waiting would have come to.

    Args:
        told: The job.
    """
    price = told.signal is not None and told.signal.kind == "price"
    header = (
        "may wait",
        "begins",
        "done",
        "starts",
        "costs" if price else "emits",
        "saves",
    )
    if not told.waiting:
        return header, [[MISSING] * len(header)]

    def amount(value: float) -> str:
        unit = told.signal.unit.removesuffix("/kWh") if told.signal is not None else ""
        return f"{value:.4g} {unit}" if price else format_mass(value)

    at_once = told.waiting[0].plan.baseline
    end = told.arrival + (told.learned.profile.run_s if told.learned else math.nan)
    rows = [
        [
            "not at all",
            format_time(told.arrival),
            format_time(end),
            "1",
            amount(at_once.amount),
            format_percent(0.0),
        ]
    ]
    for each in told.waiting:
        made = each.plan
        rows.append(
            [
                format_duration(each.wait_s),
                format_time(made.schedule.start),
                format_time(made.schedule.end),
                str(made.footprint.starts),
                amount(made.footprint.amount),
                format_percent(made.saving),
            ]
        )
    return header, rows


def _asked(use: Use, what: str) -> str:
    share = use.share(what, "asked")
    return MISSING if math.isnan(share) else f"{100 * share:.0f} %"


def _plain(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.3g}"


def _bytes(value: float) -> str:
    if math.isnan(value):
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
