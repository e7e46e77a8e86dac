"""WattTime: marginal intensity every five minutes, 72 hours ahead, with user and password.

Without a subscription the region CAISO_NORTH can be seen. Rates are in pounds per MWh and count
what the plants emit, so the basis is `direct` unless the caller knows better.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlencode

from lowtide.errors import Argument, FormatError, ProviderProblem
from lowtide.formats import table_reader
from lowtide.formats.signals import Series, Wish
from lowtide.formats.source import Place, Source
from lowtide.grids import web
from lowtide.grids.providers import Answer, Part, base_url, cut, find_keys, gather
from lowtide.units import format_iso

_LONGEST_S = 31 * 86400.0
_AHEAD_H = 72
_KINDS = {"co2_moer": "marginal", "co2_aoer": "average"}


@dataclass(slots=True, kw_only=True)
class WattTime:
    """The API of WattTime, version 3.

    Attributes:
        url: Its address.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "watttime"
    title: ClassVar[str] = "WattTime"
    kind: ClassVar[str] = "marginal"
    keys: ClassVar[tuple[str, ...]] = ("user", "password")
    zones: ClassVar[str] = r"[A-Z0-9]+(_[A-Z0-9]+)*"
    example: ClassVar[str] = "CAISO_NORTH"
    default_zone: ClassVar[str] = ""
    refresh_s: ClassVar[float] = 300.0
    url: str = field(default_factory=lambda: base_url("watttime", "https://api.watttime.org"))
    timeout_s: float = web.TIMEOUT_S

    def ask(self, zone: str, *, since: float, now: float) -> Answer:
        """Return five-minute values since a moment and those to come.

        Args:
            zone: Such as `CAISO_NORTH`.
        """
        token = self._log_in()
        spans = [
            {"start": _stamp(begin), "end": _stamp(end)}
            for begin, end in cut(since, now, _LONGEST_S)
        ]
        ahead = {"horizon_hours": str(_AHEAD_H)}
        return gather(
            {
                "history": lambda: [
                    part for span in spans for part in self._parts(zone, token, "historical", span)
                ],
                "forecast": lambda: self._parts(zone, token, "forecast", ahead),
            }
        )

    def _log_in(self) -> str:
        user, password = find_keys(self.name, self.keys)
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        url = f"{self.url}/login"
        document = web.get_json(
            url,
            headers={"Authorization": f"Basic {pair}"},
            secrets=[user, password, pair],
            timeout_s=self.timeout_s,
        )
        token = document.get("token") if isinstance(document, dict) else None
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise ProviderProblem(f"{web.place_of(url)} answers without a token")
        return token

    def _parts(self, zone: str, token: str, what: str, more: Mapping[str, str]) -> Sequence[Part]:
        from lowtide.formats.signals import Wish

        query = urlencode({"region": zone, "signal_type": "co2_moer", **more})
        url = f"{self.url}/v3/{what}?{query}"
        data = web.get(
            url,
            headers={"Authorization": f"Bearer {token}"},
            secrets=[token],
            timeout_s=self.timeout_s,
        )
        wish = Wish(zone=zone, kind=self.kind)
        series = web.read_series(data, wish, url=url, form=self.name)
        return [Part(series=series, forecast=what == "forecast")]


def _stamp(instant: float) -> str:
    return format_iso(float(int(instant)))


def recognises(source: Source) -> bool:
    """Return whether this is JSON of points with a time and a value."""
    document = source.document
    return isinstance(document, dict) and table_reader.are_records(
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
            "meta.units does not say the unit: say unit='lb/MWh' if it is that",
            path=source.path,
            arguments=(Argument("unit", "lb/MWh"),),
        )
    place = Place(path=source.path, column=wish.column or "value")
    rows = document["data"]
    return Series(
        times=table_reader.times(rows, Place(path=source.path, column="point_time"), wish.tz),
        values=table_reader.values(rows, place),
        place=place,
        unit=unit,
        kind=wish.agree("kind", _KINDS[signal_type], source.path) or "marginal",
        basis=wish.basis or "direct",
        zone=wish.agree("zone", said.get("region"), source.path),
        source=f"WattTime {signal_type}, {source.path.name}",
    )
