"""Electricity Maps: JSON of the API (v3), and the three CSVs it has come in.

The tables are in `electricitymaps_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats import electricitymaps_tables as tables
from lowtide.formats import records
from lowtide.formats.signals import Series, Wish
from lowtide.formats.source import Place, Source
from lowtide.signal import ESTIMATED

_LISTS = {"history": "history", "forecast": "forecast", "data": "history"}


def recognises(source: Source) -> bool:
    """Return whether this is the API's JSON or one of the tables."""
    return tables.recognises(source) or _find(source) is not None


def series(source: Source, wish: Wish) -> Series:
    """Find times, values and labels."""
    if tables.recognises(source):
        return tables.series(source, wish)
    found = _find(source)
    if found is None:
        raise FormatError(
            "not from Electricity Maps: JSON has a list 'history' or 'forecast' of records with "
            "datetime and carbonIntensity; tables have their own headings",
            path=source.path,
        )
    what, rows = found
    document: Mapping[str, Any] = source.document
    place = Place(path=source.path, column=wish.column or "carbonIntensity")

    def said(key: str) -> str | None:
        return records.only(key, [document.get(key), *(row.get(key) for row in rows)], place)

    return Series(
        times=records.times(rows, Place(path=source.path, column="datetime"), wish.tz),
        values=records.values(rows, place),
        place=place,
        unit=wish.agree("unit", "g/kWh", source.path) or "g/kWh",
        kind=wish.agree("kind", "average", source.path) or "average",
        basis=wish.agree("basis", said("emissionFactorType"), source.path) or "lifecycle",
        zone=wish.agree("zone", said("zone"), source.path),
        source=f"Electricity Maps {what}, {source.path.name}",
        marks=np.array(
            [ESTIMATED if row.get("isEstimated") is True else 0 for row in rows], dtype=np.uint8
        ),
    )


def _find(source: Source) -> tuple[str, Sequence[Mapping[str, Any]]] | None:
    document = source.document
    if not isinstance(document, dict):
        return None
    for key, what in _LISTS.items():
        rows = document.get(key)
        if records.are_records(rows, "datetime", "carbonIntensity"):
            return what, rows
    # The API's "latest": one record, which has no list around it.
    if records.are_records([document], "datetime", "carbonIntensity"):
        return "latest", [document]
    return None
