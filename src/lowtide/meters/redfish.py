"""Redfish: what a server's management controller says over HTTPS."""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters.meter import BaseMeter, Channel, Found, Reading, Roots, checked

_CHANNEL = Channel(name="node", domain="node")
_CHASSIS = re.compile(r"/Chassis/[^/]+/?$")


class _Refusal(MeterProblem):
    """The controller gives no power, for a reason that has a state and a cure of its own."""

    def __init__(self, message: str, *, state: str, cure: str) -> None:
        super().__init__(message)
        self.state = state
        self.cure = cure


@dataclass(slots=True, kw_only=True)
class Redfish(BaseMeter):
    """A chassis' power.

    That is `PowerControl[].PowerConsumedWatts` of `Power`, or `PowerWatts.Reading` of
    `EnvironmentMetrics`, where newer controllers keep it. The first chassis that says what it draws
    is the node, those first that are in no other: cards and shelves of disks are chassis as well.

    User and password come from LOWTIDE_REDFISH_USER and LOWTIDE_REDFISH_PASSWORD, so that they
    stand in no command line. Many controllers sign their certificate themselves: name it, or who
    signed it, in LOWTIDE_REDFISH_CA (a PEM file), or set LOWTIDE_REDFISH_INSECURE=1 to have it not
    checked, so that whoever answers in the controller's place gets the password.

    Attributes:
        address: `https://bmc.example/redfish/v1/Chassis/1/Power`, or the controller alone to have
            its chassis looked for.
        verify: Whether its certificate is checked.
        authorities: A file of certificates that are trusted beside those of the system.
        timeout_s: How long an answer may take.
    """

    name: ClassVar[str] = "redfish"
    slow: ClassVar[bool] = True
    address: str = field(default_factory=lambda: os.environ.get("LOWTIDE_REDFISH", ""))
    verify: bool = field(
        default_factory=lambda: os.environ.get("LOWTIDE_REDFISH_INSECURE", "") in ("", "0")
    )
    authorities: str = field(default_factory=lambda: os.environ.get("LOWTIDE_REDFISH_CA", ""))
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if self.address and not self.address.startswith(("https://", "http://")):
            raise InvalidInput(f"a Redfish address begins with https://, unlike {self.address!r}")

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks a controller, not the kernel
        """Say whether an address was given and answers."""
        meter = cls()
        if not meter.address:
            return Found(meter=cls.name, state="absent", what="LOWTIDE_REDFISH names no controller")
        try:
            meter.open()
            watts = meter.sample().power_w[0]
        except _Refusal as error:
            return Found(meter=cls.name, state=error.state, what=str(error), cure=error.cure)
        except MeterProblem as error:
            # Somebody said that there is one.
            return Found(meter=cls.name, state="no answer", what=str(error))
        if not watts > 0:
            return Found(
                meter=cls.name,
                state="constant 0",
                what=f"{meter.address} has no power reading",
                cure="name another chassis: LOWTIDE_REDFISH=https://HOST/redfish/v1/Chassis/ID/Power",
            )
        return Found(meter=cls.name, state="works", what=meter.address)

    def open(self) -> tuple[Channel, ...]:
        """Find the chassis and read it once."""
        if not self.address:
            raise MeterProblem("say where: redfish:https://bmc.example, or LOWTIDE_REDFISH")
        if "/redfish/" not in self.address:
            self.address = self._look_for_chassis(self.address.rstrip("/"))
        self.sample()
        return (_CHANNEL,)

    def _look_for_chassis(self, base: str) -> str:
        """Return the address of the power of the first chassis that says what it draws."""
        members = self._get(f"{base}/redfish/v1/Chassis").get("Members")
        links = [_link(each) for each in members] if isinstance(members, list) else []
        if not any(links):
            raise MeterProblem(f"{base} knows no chassis")
        known = [self._told(base + link) for link in links if link]
        # Sorting keeps the order of the controller otherwise.
        for chassis in sorted(known, key=_is_part):
            for name in ("Power", "EnvironmentMetrics"):
                link = _link(chassis.get(name))
                if link and not math.isnan(read_power(self._told(base + link))):
                    return base + link
        named = ", ".join(link for link in links if link)
        raise MeterProblem(f"no chassis of {base} says what it draws: {named}")

    def sample(self) -> Reading:
        """Ask the controller."""
        now = time.time()
        return checked(now, [_CHANNEL], [read_power(self._get(self.address))])

    def _told(self, address: str) -> dict[str, Any]:
        """Return a resource; nothing where it alone is broken, so that others are looked at."""
        try:
            return self._get(address)
        except _Refusal as error:
            if error.state == "no permission":
                raise
            return {}

    def _get(self, address: str) -> dict[str, Any]:
        request = urllib.request.Request(address, headers={"Accept": "application/json"})  # noqa: S310
        user = os.environ.get("LOWTIDE_REDFISH_USER")
        if user:
            secret = f"{user}:{os.environ.get('LOWTIDE_REDFISH_PASSWORD', '')}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
        context = self._context()
        try:
            with urllib.request.urlopen(  # noqa: S310 - the scheme was checked
                request, timeout=self.timeout_s, context=context
            ) as answer:
                document = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _refusal(address, error) from None
        if not isinstance(document, dict):
            raise _refusal(address, ValueError("its answer is no JSON object"))
        return document

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.authorities:
            try:
                context.load_verify_locations(cafile=self.authorities)
            except OSError as error:
                raise InvalidInput(
                    f"LOWTIDE_REDFISH_CA names a PEM file of certificates, and {self.authorities} "
                    f"is none: {error}"
                ) from None
        return context


def read_power(document: dict[str, Any]) -> float:
    """Return the watts of a `Power` or an `EnvironmentMetrics` resource.

    The latter has one reading. The power controls of the former may be parts of one another: the
    server, and its CPUs again. Those that belong to a chassis by their `RelatedItem` count, the
    first of each chassis. Where none says so, the one with the `MemberId` 0, or else the first, is
    the whole.
    """
    reading = document.get("PowerWatts")
    if isinstance(reading, dict):
        return _number(reading.get("Reading"))
    found = document.get("PowerControl")
    controls = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    whole: dict[str, dict[str, Any]] = {}
    for control in controls:
        for link in control.get("RelatedItem") or ():
            name = _link(link)
            if _CHASSIS.search(name):
                whole.setdefault(name.rstrip("/"), control)
                break
    if not whole and controls:
        first = [each for each in controls if str(each.get("MemberId")) == "0"] or controls
        whole[""] = first[0]
    if not whole:
        return math.nan
    return sum(_number(each.get("PowerConsumedWatts")) for each in whole.values())


def _number(said: object) -> float:
    try:
        return float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _link(said: object) -> str:
    """Return where a reference to another resource leads; empty for what is none."""
    found = said.get("@odata.id") if isinstance(said, dict) else None
    return found.rstrip("/") if isinstance(found, str) else ""


def _is_part(chassis: dict[str, Any]) -> bool:
    """Return whether a chassis is in another one."""
    links = chassis.get("Links")
    return bool(_link(links.get("ContainedBy"))) if isinstance(links, dict) else False


def _refusal(address: str, error: Exception) -> _Refusal:
    """Return what a failure means, and what helps."""
    reason = getattr(error, "reason", error)
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
        return _Refusal(
            f"{address} refuses this user (HTTP {error.code})",
            state="no permission",
            cure="set LOWTIDE_REDFISH_USER and LOWTIDE_REDFISH_PASSWORD",
        )
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _Refusal(
            f"{address} has a certificate that is not trusted: {reason.verify_message}",
            state="no permission",
            cure="name the certificate in LOWTIDE_REDFISH_CA, or set LOWTIDE_REDFISH_INSECURE=1",
        )
    if isinstance(error, (urllib.error.HTTPError, ValueError, http.client.HTTPException)):
        return _Refusal(
            f"{address} does not answer as Redfish does: {error}",
            state="no answer",
            cure="check the path in LOWTIDE_REDFISH; the controller alone finds the first chassis",
        )
    return _Refusal(
        f"{address} cannot be reached: {reason}",
        state="no answer",
        cure="check the host in LOWTIDE_REDFISH and the network to it",
    )
