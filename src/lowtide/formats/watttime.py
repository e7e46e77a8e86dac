"""WattTime v3: marginal emission rates as JSON, in pounds per MWh.

Its rates count what the plants emit, so the basis is `direct` unless the caller knows better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.errors import FormatError
from lowtide.formats import records
from lowtide.formats.signals import Series, Wish
from lowtide.formats.source import Place, Source

_KINDS = {"co2_moer": "marginal", "co2_aoer": "average"}


def recognises(source: Source) -> bool:
    """Return whether this is JSON of points with a time and a value."""
    document = source.document
    return isinstance(document, dict) and records.are_records(
        document.get("data"), "point_time", "value"
    )


def series(source: Source, wish: Wish) -> Series:
    """Find times, values and labels."""
    document = source.document
    if not recognises(source):
        raise FormatError(
            "not from WattTime: there is no list 'data' of records with point_time and value",
            path=source.path,
        )
    meta = document.get("meta")
    said: Mapping[str, Any] = meta if isinstance(meta, dict) else {}
    signal_type = str(said.get("signal_type", "co2_moer"))
    if signal_type not in _KINDS:
        raise FormatError(
            f"signal_type {signal_type!r} is no carbon intensity: known are {', '.join(_KINDS)}",
            path=source.path,
        )
    for key in ("units", "region"):
        if not isinstance(said.get(key), str | None):
            raise FormatError(f"meta.{key} is a text, not {said[key]!r}", path=source.path)
    unit = wish.agree("unit", said.get("units"), source.path)
    if unit is None:
        raise FormatError(
            "meta.units does not say the unit: say unit='lb/MWh' if it is that", path=source.path
        )
    place = Place(path=source.path, column=wish.column or "value")
    rows = document["data"]
    return Series(
        times=records.times(rows, Place(path=source.path, column="point_time"), wish.tz),
        values=records.values(rows, place),
        place=place,
        unit=unit,
        kind=wish.agree("kind", _KINDS[signal_type], source.path) or "marginal",
        basis=wish.basis or "direct",
        zone=wish.agree("zone", said.get("region"), source.path),
        source=f"WattTime {signal_type}, {source.path.name}",
    )
