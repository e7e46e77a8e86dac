"""Handing everything on as Parquet files, part by part: there may be too much to hold."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.errors import FileProblem
from lowtide.store.jobs import JobTable, Question
from lowtide.store.records import JobRecord

if TYPE_CHECKING:
    import polars as pl

    from lowtide.store.store import Store

# So many rows of values go into a file, and so many jobs are made a table of at once.
_ROWS = 100_000
_JOBS = 5000


def export(store: Store, folder: Path, *, start: float | None, end: float | None) -> dict[str, int]:
    """Write jobs, what they used over time, and what the nodes did; return how many rows of each.

    Files that were written there before are replaced.

    Args:
        folder: Where to; it is made if need be.
    """
    import polars as pl

    table = store.table(Question(start=start, end=end))
    is_seen = (table.total("looks") > 0).tolist()
    seen = sorted(itertools.compress(table.columns["id"], is_seen))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _jobs_frame(table).write_parquet(folder / "jobs.parquet")
        counts = {"jobs": len(table)}
        del table
        counts["samples"] = _write_parts(
            folder / "samples",
            (
                _frame(
                    {"job": found.owners, "time": found.times, "step_s": found.step_s}
                    | dict(found.columns)
                )
                for found in store.courses(seen, start=start, end=end)
            ),
        )
        counts["nodes"] = _write_parts(folder / "nodes", _node_frames(store, start, end))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FileProblem(f"cannot write into {folder}: {error}", path=folder) from error
    return counts


def _node_frames(store: Store, start: float | None, end: float | None) -> Iterator[pl.DataFrame]:
    import polars as pl

    for host in store.hosts():
        series = store.node_series(host.name, start=start, end=end)
        frame = _frame({"time": series.times, "step_s": series.step_s, **series.columns})
        yield frame.select(pl.lit(host.name).alias("host"), pl.all())


def _jobs_frame(table: JobTable) -> pl.DataFrame:
    import polars as pl

    kinds = {"str": pl.String, "int": pl.Int64, "float": pl.Float64}
    parts = []
    for part in table.parts(_JOBS) if len(table) else [table]:
        given = part.everything()
        columns = {}
        for field in dataclasses.fields(JobRecord):
            values = given[field.name]
            if field.name == "hosts":
                columns[field.name] = pl.Series(values, dtype=pl.List(pl.String))
            else:
                # Annotations are texts here: "float", "str | None".
                kind = kinds[str(field.type).partition(" ")[0]]
                series = pl.Series(values, dtype=kind)
                columns[field.name] = series.fill_nan(None) if kind is pl.Float64 else series
        parts.append(pl.DataFrame(columns))
    return pl.concat(parts)


def _frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(columns).with_columns(pl.selectors.float().fill_nan(None))


def _write_parts(folder: Path, frames: Iterator[pl.DataFrame]) -> int:
    """Write tables one below the other into files of a bounded size."""
    import polars as pl

    folder.mkdir(exist_ok=True)
    total = held = part = 0
    waiting: list[pl.DataFrame] = []

    def write() -> None:
        nonlocal held, part
        part += 1
        pl.concat(waiting).write_parquet(folder / f"{part:04}.parquet")
        waiting.clear()
        held = 0

    for frame in frames:
        waiting.append(frame)
        held += frame.height
        total += frame.height
        if held >= _ROWS:
            write()
    if waiting:
        write()
    for old in folder.glob("[0-9]*.parquet"):
        # What was exported before had more parts.
        if int(old.stem) > part:
            old.unlink()
    return total
