"""Tables with a heading and records in JSON: columns, quickly, with the line of whatever is wrong.

Polars reads the columns. Only when something does not fit is the file walked again, slowly, to
name the line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import polars as pl

from lowtide.errors import FormatError, guess_at
from lowtide.formats.source import Place, Source
from lowtide.formats.times import instants
from lowtide.signal import ESTIMATED, FILLED, FloatArray, MarkArray

# What people write where there is no number.
_MISSING = ("", "nan", "na", "n/a", "null", "none")
# Enough for a row of any table, and for the remarks above it.
_PEEKED_BYTES = 65_536
# No count, second, watt or byte of a job comes near this: what is beyond is a slip.
MOST = 1e18
# Whole numbers below this are told apart.
_EXACT = 2.0**53
_NOTE = re.compile(r"#\s*([A-Za-z_]+):\s*(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table whose heading has been read and whose rows have not.

    Attributes:
        source: The file.
        headings: The names of the columns, trimmed.
        notes: What `# key: value` lines above the heading say.
        separator: What stands between two cells.
        body: Where in the data the rows begin.
    """

    source: Source
    headings: tuple[str, ...]
    notes: Mapping[str, str]
    separator: str
    body: int

    @classmethod
    def of(cls, source: Source) -> Sheet | None:
        """Read the heading of a table; None where the file does not begin like one."""
        if source.is_parquet:
            return ParquetSheet.whole(source)
        notes: dict[str, str] = {}
        body = 0
        for raw in source.data[: len(source.head)].splitlines(keepends=True):
            body += len(raw)
            line = raw.decode("utf-8", "replace").strip()
            if line.startswith("#"):
                if note := _NOTE.fullmatch(line):
                    notes[note[1]] = note[2].strip()
            elif line:
                separator = max(",;\t", key=line.count)
                if separator not in line or line[0] in "{[<":
                    return None
                cells = next(csv.reader([line], delimiter=separator))
                headings = tuple(cell.strip() for cell in cells)
                return cls(
                    source=source, headings=headings, notes=notes, separator=separator, body=body
                )
        return None

    def find(self, name: str) -> str:
        """Return a heading that must be there, or say which is nearest."""
        if name in self.headings:
            return name
        guess = guess_at(name.lower(), [known.lower() for known in self.headings])
        raise FormatError(
            f"there is no column {name!r}{guess}: the headings are {', '.join(self.headings)}",
            path=self.source.path,
            column=name,
        )

    def place(self, column: str) -> Place:
        """Return where the cells of a column stand."""
        return Place(path=self.source.path, column=column, line=self.line)

    def require(self, column: str, good: npt.NDArray[np.bool_], what: str) -> None:
        """Refuse the first row that is not good, with what is needed there."""
        if not good.all():
            raise self.place(column).error(what, int(np.argmin(good)))

    def require_sane(self, column: str, values: FloatArray) -> None:
        """Refuse numbers below 0, or beyond all that a job has; unknown ones pass."""
        good = np.isnan(values) | ((values >= 0) & (values <= MOST))
        self.require(column, good, f"a number from 0 to {MOST:g} is needed here")

    def line(self, row: int) -> int:
        """Return the line a row ends on.

        Args:
            row: The row, counted from 0 below the heading.
        """
        line = self.source.data.count(b"\n", 0, self.body) + 1
        with suppress(csv.Error):
            for number, (at, _) in enumerate(self._rows()):
                line = at
                if number == row:
                    break
        # Polars makes rows of stray ends of lines where csv does not: the last line is near.
        return line

    def first(self, heading: str) -> str | None:
        """Return the first cell of a column, None where there is none."""
        try:
            _, cells = next(self._rows(_PEEKED_BYTES))
            return cells[self.headings.index(heading)]
        except (StopIteration, csv.Error, IndexError):
            # Whoever reads the rows will say what is wrong with them.
            return None

    def read(
        self, *, texts: Sequence[str] = (), numbers: Sequence[str] = ()
    ) -> tuple[list[pl.Series], list[FloatArray]]:
        """Read some columns as texts (null where empty) and some as numbers (NaN where empty)."""
        wanted = dict.fromkeys(texts, pl.String) | dict.fromkeys(numbers, pl.Float64)
        values: list[FloatArray] | None = None
        # A quote that nothing closes, in a column of numbers, makes polars panic.
        if self.source.data.find(b'"', self.body) < 0:
            # Something may be no number as polars writes them, or a line have too many cells.
            with suppress(pl.exceptions.PolarsError):
                frame = self._frame(wanted)
                values = [frame[self._key(name)].to_numpy() for name in numbers]
        if values is None:
            try:
                frame = self._frame(dict.fromkeys(wanted, pl.String))
            except pl.exceptions.PolarsError as error:
                raise self._broken(error) from None
            values = self._numbers(frame, numbers)
        if frame.height == 0:
            raise FormatError("there is a heading and no row below it", path=self.source.path)
        return [frame[self._key(name)] for name in texts], values

    def _key(self, heading: str) -> str:
        # Headings may repeat; places in the row do not.
        return str(self.headings.index(heading))

    def _frame(self, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
        types: dict[str, type[pl.DataType]] = {str(i): pl.String for i in range(len(self.headings))}
        for heading, dtype in wanted.items():
            types[self._key(heading)] = dtype
        rows = self.source.data[self.body :]
        if not rows or rows.isspace():
            return pl.DataFrame(schema=types)
        frame = self._parse(rows, types, wanted)
        if frame.to_series(0).has_nulls() and (b"\n\n" in rows or b"\n\r\n" in rows):
            # Polars makes rows of blank lines.
            kept = b"\n".join(line for line in rows.split(b"\n") if line.rstrip(b"\r"))
            frame = self._parse(kept, types, wanted)
        return frame

    def _parse(
        self, rows: bytes, types: Mapping[str, type[pl.DataType]], wanted: Iterable[str]
    ) -> pl.DataFrame:
        return pl.read_csv(
            rows,
            has_header=False,
            schema=dict(types),
            columns=sorted({self.headings.index(name) for name in wanted}),
            separator=self.separator,
            comment_prefix="#" if b"#" in rows else None,
        )

    def _rows(self, most_bytes: int | None = None) -> Iterator[tuple[int, list[str]]]:
        before = self.source.data.count(b"\n", 0, self.body)
        end = None if most_bytes is None else self.body + most_bytes
        rest = self.source.data[self.body : end].decode("utf-8", "replace")
        reader = csv.reader(io.StringIO(rest, newline=""), delimiter=self.separator)
        for cells in reader:
            if cells and not cells[0].startswith("#"):
                yield before + reader.line_num, cells

    def _broken(self, error: Exception) -> FormatError:
        _ = self.source.text  # says so where the file is no UTF-8
        width = len(self.headings)
        try:
            for line, cells in self._rows():
                if len(cells) != width:
                    return FormatError(
                        f"this line has {len(cells)} cells under {width} headings: complete it, or "
                        "leave it out",
                        path=self.source.path,
                        line=line,
                    )
        except csv.Error as problem:
            error = problem
        return FormatError(f"not a readable table ({error})", path=self.source.path)

    def _numbers(self, frame: pl.DataFrame, headings: Iterable[str]) -> list[FloatArray]:
        keys = dict.fromkeys(self._key(name) for name in headings)
        trimmed = {key: pl.col(key).str.strip_chars() for key in keys}
        # All at once: with small tables each question takes longer than its answer.
        found = frame.select(
            *(text.cast(pl.Float64, strict=False) for text in trimmed.values()),
            *(
                (
                    text.cast(pl.Float64, strict=False).is_null()
                    & text.is_not_null()
                    & ~text.str.to_lowercase().is_in(_MISSING)
                ).alias(f"{key} is wrong")
                for key, text in trimmed.items()
            ),
        )
        for name in headings:
            wrong = found[f"{self._key(name)} is wrong"].to_numpy()
            if wrong.any():
                row = int(wrong.argmax())
                raise self.place(name).error(
                    f"{frame[self._key(name)][row]!r} is not a number", row
                )
        return [np.asarray(found[self._key(name)].to_numpy(), np.float64) for name in headings]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSheet(Sheet):
    """A table as Parquet, read whole: its rows are records, without lines.

    Attributes:
        frame: What it holds.
    """

    frame: pl.DataFrame

    @classmethod
    def whole(cls, source: Source) -> ParquetSheet:
        """Read a file, and say so where it is damaged."""
        try:
            frame = pl.read_parquet(io.BytesIO(source.data))
            said = pl.read_parquet_metadata(io.BytesIO(source.data))
        except (
            pl.exceptions.PolarsError,
            OSError,
            ValueError,
            OverflowError,
            MemoryError,
        ) as error:
            raise cls._damaged(source, error) from None
        except BaseException as error:
            # What polars did not foresee ends in a panic, which is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise cls._damaged(source, error) from None
        notes = {key: value for key, value in said.items() if not key.startswith("ARROW:")}
        headings = tuple(name.strip() for name in frame.columns)
        return cls(source=source, headings=headings, notes=notes, separator="", body=0, frame=frame)

    @staticmethod
    def _damaged(source: Source, error: BaseException) -> FormatError:
        told = str(error).splitlines() or [type(error).__name__]
        return FormatError(
            f"not a readable Parquet file ({told[0]}): fetch it again, it may be cut short",
            path=source.path,
        )

    def place(self, column: str) -> Place:
        """Return where the cells of a column stand: in records, which have no lines."""
        return Place(path=self.source.path, column=column)

    def first(self, heading: str) -> str | None:
        """Return the first cell of a column as a text."""
        (texts,), _ = self.read(texts=[heading])
        first: str | None = texts[0]
        return first

    def lists(self, heading: str) -> pl.Series:
        """Return a column of lists of numbers."""
        cells = self.frame.to_series(self.headings.index(heading))
        if cells.dtype == pl.Null:
            return cells.cast(pl.List(pl.Float64))
        if not isinstance(cells.dtype, pl.List | pl.Array) or not cells.dtype.inner.is_numeric():
            raise self.place(heading).error("a list of numbers is needed in every row")
        return cells.cast(pl.List(pl.Float64), strict=False)

    def read(
        self, *, texts: Sequence[str] = (), numbers: Sequence[str] = ()
    ) -> tuple[list[pl.Series], list[FloatArray]]:
        """Read some columns as texts and some as numbers, as of a table of text."""
        if not self.frame.height:
            raise FormatError("there are headings and no row below them", path=self.source.path)
        read = []
        for name in numbers:
            cells = self.frame.to_series(self.headings.index(name))
            try:
                values = _as_text(cells) if cells.dtype.is_temporal() else cells
                found = values.cast(pl.Float64, strict=False)
            except pl.exceptions.PolarsError:
                raise self.place(name).error(
                    f"numbers are needed here, not {cells.dtype}"
                ) from None
            wrong = (found.is_null() & values.is_not_null()).to_numpy()
            if wrong.any():
                row = int(wrong.argmax())
                raise self.place(name).error(f"{values[row]!r} is not a number", row)
            read.append(np.asarray(found.to_numpy(), np.float64))
        told = []
        for name in texts:
            cells = self.frame.to_series(self.headings.index(name))
            try:
                told.append(_as_text(cells))
            except pl.exceptions.PolarsError:
                raise self.place(name).error(f"texts are needed here, not {cells.dtype}") from None
        return told, read


def _as_text(cells: pl.Series) -> pl.Series:
    """Return cells as texts, null where empty; times in ISO 8601, with a zone where it is known."""
    if isinstance(cells.dtype, pl.Datetime):
        zoned = cells.dtype.time_zone is not None
        clock = cells.dt.convert_time_zone("UTC") if zoned else cells
        return clock.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.6f" + "Z" * zoned)
    if (
        cells.dtype.is_float()
        and (cells.is_null() | ((cells % 1 == 0) & (cells.abs() < _EXACT))).all()
    ):
        # Whole numbers of which some are missing are fractions to many a program.
        cells = cells.cast(pl.Int64, strict=False)
    texts = cells.cast(pl.String)
    return texts.set(texts.str.strip_chars() == "", None)


def estimates_marked(cells: pl.Series) -> MarkArray:
    """Return a mark for each cell that says yes in any of the usual ways, or names its mark."""
    plain = cells.str.to_lowercase().fill_null("")
    yes = plain.is_in(["1", "1.0", "true", "yes", "estimated"]).to_numpy()
    made = (plain == "filled").to_numpy()
    return np.where(made, FILLED, np.where(yes, ESTIMATED, 0)).astype(np.uint8)


def are_records(value: Any, *keys: str) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Return whether this is a list of objects, the first of which has these keys."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(record, dict) for record in value)
        and all(key in value[0] for key in keys)
    )


def times(records: Sequence[Mapping[str, Any]], place: Place, tz: str | None) -> FloatArray:
    """Return when each record's step begins."""
    stamps = [record.get(place.column or "") for record in records]
    for row, stamp in enumerate(stamps):
        if not isinstance(stamp, str):
            raise place.error(f"a time is a text such as 2024-07-01T06:00Z, not {stamp!r}", row)
    return instants(pl.Series(stamps, dtype=pl.String), place, tz=tz)


def values(records: Sequence[Mapping[str, Any]], place: Place) -> FloatArray:
    """Return the number of each record, NaN where it is null or absent."""
    key = place.column or ""
    if not any(key in record for record in records):
        known = ", ".join(sorted({name for record in records for name in record}))
        raise FormatError(f"no record has this key: there are {known}", path=place.path, column=key)
    numbers = np.full(len(records), np.nan)
    for row, record in enumerate(records):
        value = record.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise place.error(f"a value is a number or null, not {value!r}", row)
        try:
            numbers[row] = value
        except OverflowError:
            raise place.error(f"no value has {len(str(value))} digits", row) from None
    return numbers


def only(what: str, found: Sequence[Any], place: Place) -> str | None:
    """Return the one text that all records agree on, None where they are silent."""
    said = sorted({str(text) for text in found if text not in (None, "")})
    if len(said) > 1:
        raise FormatError(
            f"the file mixes {what} {', '.join(said[:5])}: make it one file for each",
            path=place.path,
        )
    return said[0] if said else None
