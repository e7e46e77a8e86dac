"""GB Carbon Intensity: half-hours of Great Britain and its 17 regions, 48 hours ahead, no key.

Regions have no measured values: what is told of their past is what was expected of it. Elsewhere a
record has a forecast and, once known, an actual value. `actual` is read where a file has any, else
`forecast`; `column=` picks one of them. The method counts emissions of generation only, so the
basis is `direct` unless the caller knows better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from lowtide.errors import Argument, FormatError, InvalidInput
from lowtide.formats import table_reader
from lowtide.formats.signals import Series, Wish
from lowtide.formats.source import Place, Source
from lowtide.grids import web
from lowtide.grids.providers import Answer, Part, base_url, cut, gather

_NATION = "GB"
_STEP_S = 1800.0
# The API answers for at most 14 days at once, and adds the half-hour before the first.
_LONGEST_S = 13 * 86400.0


@dataclass(slots=True, kw_only=True)
class GbCarbonIntensity:
    """The API of the system operator of Great Britain.

    Attributes:
        url: Its address.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "gb"
    title: ClassVar[str] = "GB Carbon Intensity"
    kind: ClassVar[str] = "average"
    keys: ClassVar[tuple[str, ...]] = ()
    zones: ClassVar[str] = r"GB|[1-9]|1[0-7]"
    example: ClassVar[str] = "13"
    default_zone: ClassVar[str] = _NATION
    refresh_s: ClassVar[float] = 600.0
    url: str = field(default_factory=lambda: base_url("gb", "https://api.carbonintensity.org.uk"))
    timeout_s: float = web.TIMEOUT_S

    def ask(self, zone: str, *, since: float, now: float) -> Answer:
        """Return half-hours since a moment and those to come.

        Args:
            zone: `GB`, or the number of a region.
        """
        spans = cut(since - since % _STEP_S, now, _LONGEST_S)
        return gather(
            {
                "history": lambda: [
                    part
                    for begin, end in spans
                    for part in self._parts(zone, _stamp(begin), _stamp(end))
                ],
                "forecast": lambda: self._parts(zone, _stamp(now), "fw48h"),
            }
        )

    def _parts(self, zone: str, begin: str, end: str) -> Sequence[Part]:
        from lowtide.formats.signals import Wish

        where = f"intensity/{begin}/{end}"
        if zone != _NATION:
            where = f"regional/{where}/regionid/{zone}"
        url = f"{self.url}/{where}"
        data = web.get(url, timeout_s=self.timeout_s)

        def part(column: str, *, forecast: bool) -> Part:
            series = web.read_series(data, Wish(column=column), url=url, form="gb")
            return Part(series=series, forecast=forecast)

        expected = part("forecast", forecast=True)
        return [expected] if zone != _NATION else [expected, part("actual", forecast=False)]


def _stamp(instant: float) -> str:
    return f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%MZ}"


def recognises(source: Source) -> bool:
    """Return whether this is JSON of records with from, to and intensity."""
    return _nest(source.document) is not None


def series(source: Source, wish: Wish) -> Series:
    """Find times, values and labels."""
    found = _nest(source.document)
    if found is None:
        raise FormatError(
            "not from the GB Carbon Intensity API: there is no list 'data' of records with from, "
            "to and intensity",
            path=source.path,
        )
    region, rows = found
    if "regions" in rows[0]:
        region, rows = _of_region(rows, wish, source)
    intensities = [row["intensity"] if isinstance(row["intensity"], dict) else {} for row in rows]
    measured = any(entry.get("actual") is not None for entry in intensities)
    place = Place(path=source.path, column=wish.column or ("actual" if measured else "forecast"))
    if wish.column is None and measured and intensities[-1].get("actual") is None:
        known = sum(entry.get("actual") is not None for entry in intensities)
        raise place.error(
            f"{known} of {len(rows)} half-hours have an actual value, the rest lie ahead: say "
            "column='forecast' to read what was expected",
            known,
            Argument("column", "forecast"),
        )
    begin, end = (
        table_reader.times(rows, Place(path=source.path, column=key), wish.tz)
        for key in ("from", "to")
    )
    step_s = float(end[0] - begin[0])
    if step_s <= 0:
        raise Place(path=source.path, column="to").error("a record ends before it begins", 0)
    return Series(
        times=begin,
        values=table_reader.values(intensities, place),
        place=place,
        unit=wish.agree("unit", "g/kWh", source.path) or "g/kWh",
        kind=wish.agree("kind", "average", source.path) or "average",
        basis=wish.basis or "direct",
        zone=wish.agree("zone", region, source.path) or "GB",
        source=f"GB Carbon Intensity {place.column}, {source.path.name}",
        step_s=step_s,
    )


def _nest(document: Any) -> tuple[str | None, Sequence[Mapping[str, Any]]] | None:
    """Return the region's name and the records, however deep they are nested."""
    inner = document.get("data") if isinstance(document, dict) else None
    if table_reader.are_records(inner, "from", "to", "intensity") and all(
        {"from", "to", "intensity"} <= set(row) for row in inner
    ):
        return None, inner
    if table_reader.are_records(inner, "from", "to", "regions"):
        return None, inner
    if isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    if isinstance(inner, dict) and (nested := _nest(inner)):
        name = inner.get("shortname") or inner.get("regionid")
        return (None if name is None else str(name)), nested[1]
    return None


def _of_region(
    rows: Sequence[Mapping[str, Any]], wish: Wish, source: Source
) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Pick one region out of records that hold all of them."""
    kept: list[Mapping[str, Any]] = []
    names: set[str] = set()
    for row in rows:
        regions = row.get("regions")
        if not table_reader.are_records(regions, "intensity"):
            raise FormatError("a record has no list 'regions' of intensities", path=source.path)
        names |= {str(region.get("shortname")) for region in regions}
        kept += [
            {"from": row.get("from"), "to": row.get("to"), "intensity": region.get("intensity")}
            for region in regions
            if wish.zone is not None
            and wish.zone in (region.get("shortname"), str(region.get("regionid")))
        ]
    if wish.zone is None or not kept:
        raise InvalidInput(
            f"{source.path} holds the regions {', '.join(sorted(names))}: say zone= with one",
            arguments=(Argument("zone"),),
        )
    return wish.zone, kept
