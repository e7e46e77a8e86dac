"""GB Carbon Intensity: half-hours of Great Britain and its 17 regions, 48 hours ahead, no key.

Regions have no measured values: what is told of their past is what was expected of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar

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
