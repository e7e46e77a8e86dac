"""What is known of a job, in words and tables: the terminal and the page say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from lowtide.certainty import lacks_grams
from lowtide.hindsight.job import Hindsight
from lowtide.hindsight.phases import FoundPhase
from lowtide.library import Expectation
from lowtide.monitor.verdicts import Behaviour, Use, whole_percent
from lowtide.page.page import Table
from lowtide.slurm.fields import shorten_nodes
from lowtide.store import JobRecord
from lowtide.units import (
    MISSING,
    SIZES,
    format_alike,
    format_duration,
    format_energy,
    format_iso,
    format_mass,
    format_number,
    format_percent,
    format_time,
)

# How sure a figure is, in the words it is shown with.
_POWER = {"measured": "measured", "estimated": "estimated", "part": "measured in part"}


def headline(told: Hindsight) -> list[str]:
    """Return who ran what, where, when and how it ended."""
    record = told.record
    name = f" ({record.name})" if record.name else ""
    where = f" on {shorten_nodes(record.hosts)}" if record.hosts else ""
    state = record.state or "how it ended is not known"
    code = f", exit status {record.exit_code}" if record.exit_code else ""
    first = f"Job {record.shown_id}{name} of {record.user or MISSING}{where}: {state}{code}."
    times = (
        f"Began {format_time(_known(record.started))}, "
        f"{'ended ' + format_time(record.ended) if record.ended == record.ended else 'no end seen'}"
        f"; ran {format_duration(record.elapsed_s)}, was watched for "
        f"{format_duration(record.known_s)}."
    )
    lines = [first, times]
    if record.looks == 1 and math.isnan(record.elapsed_s):
        lines.append("It was seen once only: how long it ran is not known.")
    return lines


def use_table(behaviour: Behaviour) -> Table:
    """Return what was asked for against what was used."""
    named = (
        ("cores", behaviour.cpus, _plain),
        ("memory", behaviour.memory, _bytes),
        ("GPUs", behaviour.gpus, _plain),
        ("GPU mem", behaviour.gpu_memory, _bytes),
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
    header = (
        *("", "asked", "mean", "peak"),
        *("mean/asked", "peak/asked", "mean/node", "peak/node"),
    )
    return Table(header=header, rows=rows)


def drawn(record: JobRecord) -> list[str]:
    """Return what a job drew and emitted, and how sure that is."""
    if record.power is None:
        return ["What it drew and emitted is not known."]
    lines = [
        f"Drew {_least(record.unmetered_s > 0)}{format_energy(record.energy_j)} "
        f"({_POWER[record.power]}): {format_number(record.mean_power_w)} W on average, "
        f"{format_number(record.peak_power_w)} W at most."
    ]
    if record.unmetered_s > 0:
        lines.append(
            f"What it drew in {format_duration(record.unmetered_s)} of its time nobody can tell."
        )
    unpriced = lacks_grams(record.energy_j, 0.0, record.unpriced_j)
    emitted = (
        f"Emitted {_least(unpriced or record.unmetered_s > 0)}{format_mass(record.carbon_g)} CO2e "
        "by average intensity"
    )
    if math.isnan(record.carbon_g):
        emitted = "What it emitted is not known"
    if not math.isnan(record.marginal_g):
        emitted += f", {format_mass(record.marginal_g)} by marginal intensity"
    emitted += f"; its share of making the node: {format_mass(record.embodied_g)}."
    lines.append(emitted)
    if unpriced:
        lines.append(
            f"What {format_energy(record.unpriced_j)} of that energy emitted nobody can tell: the "
            "grid was not known."
        )
    return lines


def as_expected(told: Hindsight) -> str:
    """Return whether a job was as its profile has it; empty where it has none."""
    entry, record = told.expected, told.record
    if entry is None:
        return ""
    said = []
    for what, expected, value, show in _expectations(told):
        if expected.low is None or expected.high is None or expected.level is None:
            said.append(f"{what} {show(value)}, expected {show(expected.value)} by a single run")
            continue
        within = f"{show(expected.low)} to {show(expected.high)} expected"
        verdict = {True: "as expected", False: "not as expected", None: "cannot be told"}
        said.append(
            f"{what} {show(value)}, {within} ({100 * expected.level:.0f} %): "
            f"{verdict[expected.holds(value)]}"
        )
    lacks = " What it drew is known in part." if record.unmetered_s > 0 else ""
    return f"By profile {entry.name} of {entry.runs} runs: {'; '.join(said)}.{lacks}"


def _expectations(
    told: Hindsight,
) -> list[tuple[str, Expectation, float, Callable[[float], str]]]:
    """Return what was expected of a job and what it came to, where it has a profile."""
    entry, record = told.expected, told.record
    if entry is None:
        return []
    # Energy that lacks a part says nothing of whether it was as expected.
    energy_j = math.nan if record.unmetered_s > 0 else record.energy_j
    return [
        ("drew", entry.energy_j, energy_j, format_energy),
        ("took", entry.duration_s, record.elapsed_s, format_duration),
    ]


def _least(partial: bool) -> str:
    return "at least " if partial else ""


def phase_table(found: Sequence[FoundPhase]) -> Table:
    """Return the phases, those that repeat once."""
    rows = [
        [
            phase.name,
            str(phase.times),
            format_duration(phase.duration_s),
            f"{format_number(phase.power_w)} W",
            format_energy(phase.times * phase.duration_s * phase.power_w),
        ]
        for phase in found
    ]
    return Table(header=("phase", "times", "each for", "power", "energy in all"), rows=rows)


def waiting_table(told: Hindsight) -> Table:
    """Return what waiting would have come to."""
    price = told.signal is not None and told.signal.kind == "price"
    header = (
        "may wait",
        "begins",
        "done",
        "starts",
        "costs" if price else "emits",
        "saves",
    )
    if math.isnan(told.at_once):
        return Table(header=header, rows=[[MISSING] * len(header)])

    def amount(value: float) -> str:
        unit = told.signal.unit.removesuffix("/kWh") if told.signal is not None else ""
        return f"{value:.4g} {unit}" if price else format_mass(value)

    end = told.arrival + (told.phases.profile.run_s if told.phases else math.nan)
    rows = [
        [
            "not at all",
            format_time(told.arrival),
            format_time(end),
            "1",
            amount(told.at_once),
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
    return Table(header=header, rows=rows)


def _asked(use: Use, what: str) -> str:
    return format_percent(use.share(what, "asked"), digits=0)


def _plain(value: float) -> str:
    return format_number(value, digits=3)


def _bytes(value: float) -> str:
    return format_alike([value], SIZES)[0]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


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
        "expected": None
        if told.expected is None
        else {
            "profile": told.expected.name,
            **{
                name: {**asdict(expected), "is_as_expected": expected.holds(value)}
                for name, (_, expected, value, _) in zip(
                    ("energy_j", "duration_s"), _expectations(told), strict=True
                )
            },
        },
        "notes": list(told.notes),
    }


def _use(use: Use) -> dict[str, float]:
    shares = {
        f"{what}_of_{of}": use.share(what, of) for of in ("asked", "node") for what in _MEASURES
    }
    return {**asdict(use), **shares}
