"""`lowtide reproduce gaia`: a comparison of start policies on a trace of 1,000 jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.cli.reproduce_output import Findings, hand_over, require_folder, with_progress

if TYPE_CHECKING:
    from lowtide.signal import Signal

ZONE = "US-CAL-CISO"
START_ROW = 7000

# Where things lie in a folder of the real data.
_TRACE = Path("traces", "pai_1k.csv")
_CARBON = "carbon"
_GOLDENS = Path("goldens", "gaia")


def reproduce_gaia(
    *,
    data: Path | None,
    zone: str | None,
    start_row: int | None,
    out: Path | None,
    as_json: bool,
    parsable: bool,
) -> None:
    """Run the comparison, by the original's rules and with its errors fixed.

    Args:
        data: Folder with the real data.
        zone: Whose carbon intensity.
        start_row: The row of its file at which the first job arrives.
        out: Folder for report and figures.
        as_json: Whether to print JSON.
        parsable: Whether to print columns.
    """
    from lowtide.experiments import gaia_report
    from lowtide.experiments.gaia import Bench, cut_signal
    from lowtide.formats import read_jobs

    zone, row = zone or ZONE, START_ROW if start_row is None else start_row
    folder = require_folder(data, "gaia")
    trace = read_jobs(folder / _TRACE)
    signal = _load_signal(folder, zone)
    bench = Bench(trace=trace, signal=cut_signal(signal, trace, row))
    outcomes = with_progress(
        gaia_report.evaluate(bench), total=gaia_report.STEPS, doing="simulating"
    )
    study = gaia_report.Study(
        zone=zone,
        start_row=row,
        task_trace=_TRACE.stem,
        outcomes=tuple(outcomes),
        totals=gaia_report.read_totals(folder / _GOLDENS / f"totals_{zone}.json", row),
        notebook=gaia_report.read_notebook(folder / _GOLDENS / "published_notebook_AU-SA.json"),
    )
    caveat = f" ({bench.signal.caveat})" if bench.signal.caveat else ""
    note = (
        f"{len(trace)} jobs of {_TRACE.name} at 1 W per CPU, on the {bench.signal.label} of {zone} "
        f"from row {row}{caveat}. Jobs below 2 h wait up to 6 h, others up to 24 h. In r9, 9 CPUs "
        "are reserved."
    )
    findings = Findings(
        title=gaia_report.TITLE,
        note=note,
        documents=study.documents,
        header=gaia_report.COLUMNS,
        rows=lambda: gaia_report.columns(study),
        sections=lambda: gaia_report.tables(study),
        charts=lambda: gaia_report.charts(study),
    )
    hand_over(findings, out=out, as_json=as_json, parsable=parsable)


def _load_signal(folder: Path, zone: str) -> Signal:
    from lowtide.errors import UnknownName
    from lowtide.formats import read_signal

    known = sorted(path.stem for path in (folder / _CARBON).glob("*.csv"))
    if known and zone not in known:
        raise UnknownName("zone", zone, known)
    # What is missing elsewhere in the file is no reason to refuse the part that is needed.
    return read_signal(folder / _CARBON / f"{zone}.csv", gaps="hold")
