"""Redfish: what a server's management controller says over HTTPS."""

from __future__ import annotations

import base64
import json
import math
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters.meter import Channel, Found, Reading, Roots, checked

_CHANNEL = Channel(name="node", domain="node")


@dataclass(slots=True, kw_only=True)
class Redfish:
    """A chassis' power, `PowerControl[].PowerConsumedWatts`.

    User and password come from LOWTIDE_REDFISH_USER and LOWTIDE_REDFISH_PASSWORD, so that they
    stand in no command line.

    Attributes:
        address: `https://bmc.example/redfish/v1/Chassis/1/Power`, or the controller alone for the
            first chassis.
        verify: Whether its certificate is checked.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "redfish"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = True
    address: str = field(default_factory=lambda: os.environ.get("LOWTIDE_REDFISH", ""))
    verify: bool = True
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if self.address and not self.address.startswith(("https://", "http://")):
            raise InvalidInput(f"a Redfish address begins with https://, unlike {self.address!r}")

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a controller, not the kernel
        """Say whether an address was given and answers.

        Args:
            roots: Not looked at.
        """
        meter = cls()
        if not meter.address:
            return Found(meter=cls.name, state="absent", what="LOWTIDE_REDFISH names no controller")
        try:
            meter.open()
        except MeterProblem as error:
            return Found(meter=cls.name, state="no permission", what=str(error),
                         cure="check LOWTIDE_REDFISH, its user and its password")  # fmt: skip
        return Found(meter=cls.name, state="works", what=meter.address)

    def open(self) -> tuple[Channel, ...]:
        """Find the chassis and read it once."""
        if not self.address:
            raise MeterProblem("say where: redfish:https://bmc.example, or LOWTIDE_REDFISH")
        if "/redfish/" not in self.address:
            base = self.address.rstrip("/")
            members = self._get(f"{base}/redfish/v1/Chassis").get("Members", [])
            if not members:
                raise MeterProblem(f"{base} knows no chassis")
            self.address = f"{base}{members[0]['@odata.id'].rstrip('/')}/Power"
        self.sample()
        return (_CHANNEL,)

    def sample(self) -> Reading:
        """Ask the controller."""
        now = time.time()
        return checked(now, [_CHANNEL], [read_power(self._get(self.address))])

    def close(self) -> None:
        """Nothing is kept open."""

    def _get(self, address: str) -> dict[str, Any]:
        request = urllib.request.Request(address, headers={"Accept": "application/json"})  # noqa: S310
        user = os.environ.get("LOWTIDE_REDFISH_USER")
        if user:
            secret = f"{user}:{os.environ.get('LOWTIDE_REDFISH_PASSWORD', '')}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            with urllib.request.urlopen(  # noqa: S310 - the scheme was checked
                request, timeout=self.timeout_s, context=context
            ) as answer:
                document: dict[str, Any] = json.load(answer)
        except (OSError, ValueError) as error:
            raise MeterProblem(f"{address} does not answer as Redfish does: {error}") from None
        return document


def read_power(document: dict[str, Any]) -> float:
    """Return the watts of a `Power` resource, all its power controls added up.

    Args:
        document: The resource.
    """
    controls = document.get("PowerControl", [])
    watts = [each.get("PowerConsumedWatts") for each in controls if isinstance(each, dict)]
    known = [float(each) for each in watts if each is not None]
    return sum(known) if known else math.nan
