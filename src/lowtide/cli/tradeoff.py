"""What `lowtide when --tradeoff` prints: the least a job can come to, for every finish."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.cli.chart import draw_curve
from lowtide.cli.documents import signal_document
from lowtide.cli.inputs import Zone
from lowtide.cli.output import print_json, print_parsable, print_table, say, waiting
from lowtide.errors import InvalidInput
from lowtide.job import Job
from lowtide.policies.tradeoff import Tradeoff, tradeoff
from lowtide.signal import Signal
from lowtide.units import format_duration, format_iso, format_minute, format_percent

_EXTRA_H = (0, 1, 2, 3, 6, 12, 24, 48, 96, 168)
_COLUMNS = 66
# Finish times that lie closer together than this are not drawn: a time axis tells seconds.
_DRAWN_S = 1.0


def show_tradeoff(
    job: Job,
    signal: Signal,
    *,
    knows_power: bool,
    note: str,
    zone: Zone,
    image: Path | None,
    as_json: bool,
    parsable: bool,
) -> None:
    """Print the trade-off of a job, with the knee marked.

    Args:
        knows_power: Whether the job's watts are known; else everything is told in percent of
            running at once.
        image: Where to draw it, if anywhere.
        as_json: Whether to print JSON.
    """
    with waiting("planning for every finish"):
        every = tradeoff(job, signal)
    unit = signal.currency if signal.kind == "price" else "g"
    if not knows_power:
        every, unit = _in_percent(every), "% of run_now"
    if image is not None:
        from lowtide.page.looks import save_image, tradeoff_chart

        what = "cost" if signal.kind == "price" else "CO2e"
        save_image(tradeoff_chart(every, unit=unit, what=what, of=signal.label), image)
    if as_json:
        print_json(
            {
                "signal": signal_document(signal.window(job.arrival, job.deadline)),
                "note": note,
                "unit": unit,
                **_document(every),
            }
        )
        return
    earliest = float(every.finish[0])
    knee = float(every.finish[every.knee])
    latest = float(every.finish[-1])
    ladder = {earliest + 3600 * hours for hours in _EXTRA_H if earliest + 3600 * hours < latest}
    rows = []
    for finish in sorted(ladder | {knee, latest}):
        least = every.by(finish)
        saving = 1 - least / every.baseline if every.baseline > 0 else None
        rows.append((finish, least, saving))
    if parsable:
        print_parsable(
            ("finish", "amount", "saving", "knee", "synthetic"),
            [
                [
                    format_iso(finish),
                    f"{least:.10g}",
                    "" if saving is None else f"{saving:.10g}",
                    "yes" if finish == knee else "no",
                    "yes" if every.synthetic else "no",
                ]
                for finish, least, saving in rows
            ],
        )
        return
    if note:
        say(note)
    edges = np.linspace(earliest, latest, _COLUMNS + 1)[1:]
    drawn = np.array([every.by(float(edge)) for edge in edges])
    drawn_in = unit
    if every.baseline > 0:
        say(f"Saving by finish time, {signal.label}, against running at once")
        drawn, drawn_in = 100 * (1 - drawn / every.baseline), "%"
    else:
        say(f"Least by finish time, {signal.label}; running at once comes to nothing to save from")
    if latest - earliest < _DRAWN_S:
        say("The deadline leaves the job no time to wait: there is one finish, and nothing to draw")
    else:
        marks = [("knee", [(knee, knee)])]
        print(draw_curve(drawn, earliest, latest, drawn_in, marks=marks, tz=zone.tz))
    print()
    print_table(
        (f"done by ({zone.name})", "later by", f"least {unit}", "saving", ""),
        [
            [
                format_minute(finish, zone.tz),
                format_duration(finish - earliest),
                f"{least:.4g}",
                format_percent(saving),
                "knee" if finish == knee else "",
            ]
            for finish, least, saving in rows
        ],
    )
    print()
    at_knee = 1 - every.by(knee) / every.baseline if every.baseline > 0 else None
    at_end = 1 - every.by(latest) / every.baseline if every.baseline > 0 else None
    say(
        f"Done by {zone.told(knee)}: saves {format_percent(at_knee)}; "
        f"by {zone.told(latest)}: {format_percent(at_end)}."
    )


def _in_percent(every: Tradeoff) -> Tradeoff:
    if every.baseline <= 0:
        raise InvalidInput(
            "running at once comes to nothing, so there is nothing to tell percentages of: say "
            "--power W, or give the --profile"
        )
    return replace(every, amount=100 * every.amount / every.baseline, baseline=100.0)


def _document(every: Tradeoff) -> dict[str, Any]:
    return {
        "baseline": every.baseline,
        "step_s": every.step_s,
        "synthetic": every.synthetic,
        "knee": format_iso(float(every.finish[every.knee])),
        "curve": [
            {"finish": format_iso(finish), "amount": amount, "saving": saving}
            for finish, amount, saving in zip(
                every.finish.tolist(), every.amount.tolist(), every.saving.tolist(), strict=True
            )
        ],
    }
