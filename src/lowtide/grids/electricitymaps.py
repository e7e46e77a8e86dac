"""Electricity Maps: average intensity of most zones of the world, hour by hour, with a token.

A free token is for one zone and brings the last 24 hours; the forecast needs a paid one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar
from urllib.parse import urlencode

from lowtide.grids import web
from lowtide.grids.keys import find_keys
from lowtide.grids.providers import Answer, Part, base_url, gather


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
