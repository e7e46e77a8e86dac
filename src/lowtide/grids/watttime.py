"""WattTime: marginal intensity every five minutes, 72 hours ahead, with user and password.

Without a subscription the region CAISO_NORTH can be seen.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlencode

from lowtide.errors import ProviderProblem
from lowtide.grids import web
from lowtide.grids.keys import find_keys
from lowtide.grids.providers import Answer, Part, base_url, cut, gather
from lowtide.units import format_iso

_LONGEST_S = 31 * 86400.0
_AHEAD_H = 72


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
