"""Electricity Maps: average intensity of most zones of the world, hour by hour, with a token.

A free token is for one zone and brings the last 24 hours; the forecast needs a paid one. Files are
read in four forms:

- JSON of the API, version 3.
- History: one row per hour with `carbon_intensity_avg`, `datetime`, `emissionFactorType`.
- Portal: headings changed between releases, so they are matched by their beginnings; the times
  are UTC, as their heading says.
- Academic: what was collected every half hour. Several records tell of the same hour, some
  stand out of order and some hours are missing. The last record of an hour, by the time at which
  it was collected, is the hour's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt
import polars as pl

from lowtide.errors import Argument, FormatError, InvalidInput
from lowtide.formats import table_reader
from lowtide.formats.signals import Series, Wish
from lowtide.formats.source import Place, Source
from lowtide.formats.table_reader import Sheet, estimates_marked, only
from lowtide.formats.times import instants
from lowtide.grids import web
from lowtide.grids.providers import Answer, Part, base_url, find_keys, gather
from lowtide.signal import ESTIMATED

_LISTS = {"history": "history", "forecast": "forecast", "data": "history"}
_VALUES = ("carbon_intensity_avg", "carbonIntensity")
_HOUR_S = 3600.0
Rows = npt.NDArray[np.intp]


@dataclass(slots=True, kw_only=True)
class ElectricityMaps:
    """The API of Electricity Maps, version 3.

    Attributes:
        url: Its address.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "electricitymaps"
    title: ClassVar[str] = "Electricity Maps"
    kind: ClassVar[str] = "average"
    keys: ClassVar[tuple[str, ...]] = ("token",)
    zones: ClassVar[str] = r"[A-Z]{2,3}(-[A-Z0-9]+)*"
    example: ClassVar[str] = "DE"
    default_zone: ClassVar[str] = ""
    refresh_s: ClassVar[float] = 900.0
    url: str = field(
        default_factory=lambda: base_url("electricitymaps", "https://api.electricitymaps.com")
    )
    timeout_s: float = web.TIMEOUT_S

    def ask(self, zone: str, *, since: float, now: float) -> Answer:  # noqa: ARG002
        """Return the last 24 hours, this hour, and those to come where the token allows it.

        Args:
            zone: Such as `DE` or `US-CAL-CISO`.
            since: Not asked for: it is always 24 hours.
        """
        (token,) = find_keys(self.name, self.keys)
        return gather(
            {
                what: partial(self._parts, zone, token, what)
                for what in ("history", "latest", "forecast")
            }
        )

    def _parts(self, zone: str, token: str, what: str) -> Sequence[Part]:
        from lowtide.formats.signals import Wish

        url = f"{self.url}/v3/carbon-intensity/{what}?{urlencode({'zone': zone})}"
        data = web.get(
            url, headers={"auth-token": token}, secrets=[token], timeout_s=self.timeout_s
        )
        series = web.read_series(data, Wish(zone=zone), url=url, form=self.name)
        return [Part(series=series, forecast=what == "forecast")]


def recognises(source: Source) -> bool:
    """Return whether this is the API's JSON or one of the tables."""
    return _is_table(source) or _find(source) is not None


def series(source: Source, wish: Wish) -> Series:
    """Find times, values and labels."""
    if _is_table(source):
        return _table_series(source, wish)
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
        return table_reader.only(key, [document.get(key), *(row.get(key) for row in rows)], place)

    return Series(
        times=table_reader.times(rows, Place(path=source.path, column="datetime"), wish.tz),
        values=table_reader.values(rows, place),
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
        if table_reader.are_records(rows, "datetime", "carbonIntensity"):
            return what, rows
    # The API's "latest": one record, which has no list around it.
    if table_reader.are_records([document], "datetime", "carbonIntensity"):
        return "latest", [document]
    return None


def _is_table(source: Source) -> bool:
    """Return whether the headings are those of one of the tables."""
    sheet = Sheet.of(source)
    return sheet is not None and (_is_academic(sheet) or _is_history(sheet) or _is_portal(sheet))


def _table_series(source: Source, wish: Wish) -> Series:
    """Find times, values and labels.

    Args:
        source: The file, one that `recognises` knows.
    """
    sheet = Sheet.of(source)
    if sheet is None or not _is_table(source):
        raise FormatError("not a table of Electricity Maps", path=source.path)
    if _is_academic(sheet):
        return _academic(sheet, wish)
    return _history(sheet, wish) if _is_history(sheet) else _portal(sheet, wish)


def _is_academic(sheet: Sheet) -> bool:
    return {"timestamp", "zone_datetime", "carbon_intensity_avg"} <= set(sheet.headings)


def _is_history(sheet: Sheet) -> bool:
    return {"datetime", "emissionFactorType"} <= set(sheet.headings) and any(
        name in sheet.headings for name in _VALUES
    )


def _is_portal(sheet: Sheet) -> bool:
    return all(_beginning(sheet, start) for start in ("datetime (utc)", "carbon intensity"))


def _beginning(sheet: Sheet, start: str) -> list[str]:
    return [heading for heading in sheet.headings if heading.lower().startswith(start)]


def _history(sheet: Sheet, wish: Wish) -> Series:
    default = next(name for name in _VALUES if name in sheet.headings)
    value = sheet.find(wish.column or default)
    named = [name for name in sheet.headings if name == "zone"]
    estimates = [name for name in sheet.headings if name == "isEstimated"]
    (stamps, bases, *others), (values,) = sheet.read(
        texts=["datetime", "emissionFactorType", *named, *estimates], numbers=[value]
    )
    zones = others[: len(named)]
    place = sheet.place(value)
    found = Series(
        times=instants(stamps, sheet.place("datetime"), tz=wish.tz),
        values=values,
        place=place,
        unit=wish.agree("unit", "g/kWh", place.path) or "g/kWh",
        kind=wish.agree("kind", "average", place.path) or "average",
        basis=wish.agree("basis", only("bases", bases.unique().to_list(), place), place.path)
        or "lifecycle",
        source=f"Electricity Maps history, {place.path.name}",
        marks=estimates_marked(others[-1]) if estimates else None,
    )
    return _of_zone(found, zones, wish)


def _portal(sheet: Sheet, wish: Wish) -> Series:
    value, basis = _portal_column(sheet, wish)
    when = _beginning(sheet, "datetime (utc)")[0]
    ids = _beginning(sheet, "zone id")[:1]
    estimates = _beginning(sheet, "data estimated")[:1]
    (stamps, *others), (values,) = sheet.read(texts=[when, *ids, *estimates], numbers=[value])
    zones = others[: len(ids)]
    found = Series(
        times=instants(stamps, sheet.place(when), tz="UTC"),
        values=values,
        place=sheet.place(value),
        unit=wish.agree("unit", "g/kWh", sheet.source.path) or "g/kWh",
        kind=wish.agree("kind", "average", sheet.source.path) or "average",
        basis=basis,
        source=f"Electricity Maps portal, {sheet.source.path.name}",
        marks=estimates_marked(others[-1]) if estimates else None,
    )
    return _of_zone(found, zones, wish)


def _portal_column(sheet: Sheet, wish: Wish) -> tuple[str, str]:
    found = _beginning(sheet, "carbon intensity")
    stated = {name: "direct" if "direct" in name.lower() else "lifecycle" for name in found}
    if wish.column is not None:
        value = sheet.find(wish.column)
        return value, wish.agree("basis", stated.get(value), sheet.source.path) or "lifecycle"
    basis = wish.basis or "lifecycle"
    columns = [name for name in found if stated[name] == basis]
    if len(columns) != 1:
        raise FormatError(
            f"{len(columns)} columns hold {basis} intensities: say basis=, or column= with one "
            f"of {', '.join(found)}",
            path=sheet.source.path,
            arguments=(Argument("basis"), Argument("column")),
        )
    return columns[0], basis


def _academic(sheet: Sheet, wish: Wish) -> Series:
    value = sheet.find(wish.column or "carbon_intensity_avg")
    names = ("zone_name", "status", "carbon_intensity_unit")
    (hours, *others), (values, collected) = sheet.read(
        texts=["zone_datetime", *(sheet.find(name) for name in names)],
        numbers=[value, "timestamp"],
    )
    zones, status, units = others
    place = sheet.place(value)
    if np.isnan(collected).any():
        row = int(np.flatnonzero(np.isnan(collected))[0])
        raise sheet.place("timestamp").error("a record needs the time it was collected at", row)
    times = instants(hours, sheet.place("zone_datetime"), tz=wish.tz)
    unit = only("units", units.unique().to_list(), place)
    found = Series(
        times=np.floor(times / _HOUR_S) * _HOUR_S,
        values=values,
        place=place,
        unit=unit or wish.unit or "g/kWh",
        kind=wish.agree("kind", "average", place.path) or "average",
        basis=wish.basis or "lifecycle",
        source=f"Electricity Maps academic, {place.path.name}",
    )
    # Records that say of themselves that something went wrong tell nothing of their hour.
    rows, zone = _rows_of_zone([zones], wish, place.path, len(zones))
    usable = rows[(status == "ok").fill_null(value=False).to_numpy()[rows]]
    if not usable.size:
        raise sheet.place("status").error("no record is 'ok'")
    # np.unique keeps the first of equal hours, so look at the last collected first.
    latest_first = usable[np.argsort(collected[usable], kind="stable")][::-1]
    _, kept = np.unique(found.times[latest_first], return_index=True)
    return replace(_take(found, latest_first[kept]), zone=zone)


def _of_zone(found: Series, zones: Sequence[pl.Series], wish: Wish) -> Series:
    rows, zone = _rows_of_zone(zones, wish, found.place.path, found.times.size)
    return replace(_take(found, rows), zone=zone)


def _rows_of_zone(
    zones: Sequence[pl.Series], wish: Wish, path: Path, size: int
) -> tuple[Rows, str | None]:
    """Return a file's zone and all rows; of several zones, the rows of the one asked for."""
    names = sorted({name for column in zones for name in column.unique().to_list() if name})
    if len(names) < 2:
        return np.arange(size), wish.agree("zone", names[0] if names else None, path)
    if wish.zone not in names:
        raise InvalidInput(
            f"{path} holds the zones {', '.join(names)}: say zone= with one of them"
            + (f", not {wish.zone!r}" if wish.zone else ""),
            arguments=(Argument("zone"),),
        )
    return np.flatnonzero((zones[0] == wish.zone).fill_null(value=False).to_numpy()), wish.zone


def _take(found: Series, rows: Rows) -> Series:
    before = found.place.line
    place = replace(
        found.place, line=None if before is None else lambda row: before(int(rows[row]))
    )
    return replace(
        found,
        times=found.times[rows],
        values=found.values[rows],
        place=place,
        marks=None if found.marks is None else found.marks[rows],
    )
