"""Handing everything on as Parquet files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.errors import FileProblem
from lowtide.store.records import JobRecord, Series

if TYPE_CHECKING:
    import polars as pl

    from lowtide.store.store import Store

# So many values of one column go into a file.
_ROWS = 1_000_000


def export(store: Store, folder: Path, *, start: float | None, end: float | None) -> dict[str, int]:
    """Write jobs, what they used over time, and what the nodes did; return how many rows of each.

    Args:
        store: What to write.
        folder: Where to; it is made if need be.
        start: Only jobs and values after this moment.
        end: Only jobs and values before this moment.
    """
    import polars as pl

    records = store.jobs(start=start, end=end)
    seen = [record for record in records if record.looks]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _jobs_frame(records).write_parquet(folder / "jobs.parquet")
        counts = {"jobs": len(records)}
        counts["samples"] = _write_parts(
            folder / "samples",
            (
                _frame(series, {"job": record.number})
                for record, series in zip(
                    seen, store.many_series(seen, start=start, end=end), strict=True
                )
            ),
        )
        counts["nodes"] = _write_parts(
            folder / "nodes",
            (
                _frame(store.node_series(host.name, start=start, end=end), {"host": host.name})
                for host in store.hosts()
            ),
        )
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FileProblem(f"cannot write into {folder}: {error}", path=folder) from error
    return counts


def _jobs_frame(records: list[JobRecord]) -> pl.DataFrame:
    import polars as pl

    kinds = {"str": pl.String, "int": pl.Int64, "float": pl.Float64}
    columns = {}
    for field in dataclasses.fields(JobRecord):
        values = [getattr(record, field.name) for record in records]
        if field.name == "hosts":
            columns[field.name] = pl.Series(values, dtype=pl.List(pl.String))
        else:
            # Annotations are texts here: "float", "str | None".
            kind = kinds[str(field.type).partition(" ")[0]]
            columns[field.name] = (
                pl.Series(values, dtype=kind).fill_nan(None)
                if (kind is pl.Float64)
                else pl.Series(values, dtype=kind)
            )
    return pl.DataFrame(columns)


def _frame(series: Series, key: dict[str, int | str]) -> pl.DataFrame:
    import polars as pl

    values = {"time": series.times, "step_s": series.step_s, **series.columns}
    frame = pl.DataFrame(values).with_columns(pl.all().fill_nan(None))
    return frame.select(*(pl.lit(value).alias(name) for name, value in key.items()), pl.all())


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
    return total
