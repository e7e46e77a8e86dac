"""Records in JSON: a list of objects, and the values under their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import polars as pl

from lowtide.errors import FormatError
from lowtide.formats.source import Place
from lowtide.formats.stamps import instants
from lowtide.signal import FloatArray


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
