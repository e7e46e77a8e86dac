"""Slurm's accounting: the output of `sacct -a -P -D`, with `SLURM_TIME_FORMAT=%s`.

A job is a row and its steps are rows below it; what steps used is summed into their job. A job
that was requeued has a row for every run, and each stays a job of its own: the second is `123#2`.
`JobName` should be asked for last, since it may hold the separator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.jobs import seconds_only
from lowtide.formats.source import Source
from lowtide.slurm.fields import Cells, Row, count_gpus, parse_tres, requested_memory
from lowtide.states import STATUSES, status_code
from lowtide.trace import Trace

_TEXTS = {"user": "User", "account": "Account", "queue": "QOS", "partition": "Partition"}
# Slurm writes sentinels near 2³² and 2⁶⁴ where a counter failed; no node draws this much.
_ABSURD_W_PER_NODE = 50_000.0


def recognises(source: Source) -> bool:
    """Return whether the first line has sacct's headings."""
    return bool({"JobID", "JobIDRaw"} & set(headings_of(source)))


def read(source: Source, time_unit: str | None) -> Trace:
    """Read the jobs.

    Args:
        time_unit: Nothing but seconds, for sacct states its units.
    """
    seconds_only(time_unit, "sacct")
    headings = headings_of(source)
    for needed in ("Submit", "State"):
        if needed not in headings:
            raise FormatError(
                f"the column is missing: ask sacct for --format=JobIDRaw,JobID,{needed},…",
                path=source.path,
                line=1,
                column=needed,
            )
    if not recognises(source):
        raise FormatError(
            "the column is missing: ask sacct for it", path=source.path, line=1, column="JobID"
        )
    jobs: list[dict[str, Any]] = []
    latest: dict[str, tuple[dict[str, Any], list[float]]] = {}
    runs: Counter[str] = Counter()
    for number, row in rows_of(source, headings):
        cells = Cells(row, source, number)
        raw = row.get("JobIDRaw") or row["JobID"]
        base, dot, _ = raw.partition(".")
        if dot:
            if base in latest:
                _add_step(*latest[base], cells)
            continue
        name = row.get("JobID") or raw
        runs[name] += 1
        job = _job(cells)
        job["id"] = name if runs[name] == 1 else f"{name}#{runs[name]}"
        jobs.append(job)
        latest[base] = job, []
    if not jobs:
        raise FormatError("there are headings and no job below them", path=source.path)
    names = [name for name in jobs[0] if any(_is_known(job[name]) for job in jobs)]
    columns = {
        name: np.array(
            [job[name] for job in jobs], dtype=None if isinstance(jobs[0][name], float) else object
        )
        for name in names
    }
    return Trace(columns=columns, source=f"sacct, {source.path.name}")


def headings_of(source: Source) -> list[str]:
    """Return the columns' names, none where this is not sacct's."""
    first = source.head.lstrip().split("\n", 1)[0].strip()
    return first.removesuffix("|").split("|") if "|" in first else []


def rows_of(source: Source, headings: list[str]) -> Iterator[tuple[int, Row]]:
    """Yield the lines below the headings, each with its number."""
    lines = source.text.split("\n")
    start = next(number for number, line in enumerate(lines) if line.strip())
    trailing = lines[start].rstrip().endswith("|")
    width = len(headings)
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        text = line.rstrip("\r")
        if not text.strip():
            continue
        cells = text.removesuffix("|").split("|") if trailing else text.split("|")
        if len(cells) > width and headings[-1] == "JobName":
            cells[width - 1 :] = ["|".join(cells[width - 1 :])]
        if len(cells) != width:
            raise FormatError(
                f"this line has {len(cells)} cells under {width} headings: ask for JobName last, "
                "for names may hold '|'",
                path=source.path,
                line=number,
            )
        yield number, dict(zip(headings, cells, strict=True))


def _job(cells: Cells) -> dict[str, Any]:
    arrival, start = cells.instant("Submit"), cells.instant("Start")
    if np.isnan(arrival):
        raise cells.error("a job needs the time it was submitted at", "Submit")
    status = status_code(cells.text("State"))
    nodes, cpus = cells.number("NNodes", "AllocNodes"), cells.number("NCPUS", "AllocCPUS")
    requested_cpus, tres = cells.number("ReqCPUS"), cells.text("AllocTRES")
    length_s = cells.number("ElapsedRaw")
    if np.isnan(length_s):
        length_s = cells.duration("Elapsed")
    pending = STATUSES[status] == "pending"
    minutes = cells.number("TimelimitRaw")
    return {
        "id": "",
        "arrival": arrival,
        "wait_s": np.nan if pending else max(start - arrival, 0.0),
        "length_s": np.nan if pending else length_s,
        "cpus": cpus,
        "gpus": np.nan if tres is None else count_gpus(parse_tres(tres)),
        "nodes": nodes,
        "requested_s": cells.duration("Timelimit", bare_unit_s=60.0)
        if np.isnan(minutes)
        else minutes * 60.0,
        "requested_cpus": requested_cpus,
        "requested_memory_bytes": requested_memory(cells, nodes, requested_cpus),
        "memory_bytes": _positive(cells.size("MaxRSS")),
        "cpu_time_s": _positive(cells.duration("TotalCPU")),
        "suspended_s": cells.duration("Suspended"),
        "energy_j": _energy(cells.number("ConsumedEnergyRaw"), length_s, nodes),
        "status": status,
        "name": cells.row.get("JobName") or None,
        **{name: cells.text(column) for name, column in _TEXTS.items()},
    }


def _add_step(job: dict[str, Any], cpu_times_s: list[float], cells: Cells) -> None:
    """Let a job have used what its steps used, which is where Slurm counts it."""
    cpu_time_s = cells.duration("TotalCPU")
    if not np.isnan(cpu_time_s):
        cpu_times_s.append(cpu_time_s)
        job["cpu_time_s"] = sum(cpu_times_s)
    job["memory_bytes"] = np.fmax(job["memory_bytes"], _positive(cells.size("MaxRSS")))


def _positive(value: float) -> float:
    return value if value > 0 else np.nan


def _energy(joules: float, length_s: float, nodes: float) -> float:
    """Return energy where it can be true: some, and no more than the nodes can draw."""
    limit = _ABSURD_W_PER_NODE * length_s * (1.0 if np.isnan(nodes) else max(nodes, 1.0))
    return joules if 0 < joules <= limit else np.nan


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and np.isnan(value))
