"""Redfish: which power counts, and why a controller gives none."""

from __future__ import annotations

import math
import ssl
import urllib.error
from http import HTTPStatus
from pathlib import Path

import pytest

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters import Roots
from lowtide.meters.redfish import Redfish, read_power


class TestRedfish:
    def test_the_first_control_is_the_whole(self) -> None:
        controls = [{"PowerConsumedWatts": 200.5}, {"PowerConsumedWatts": 44.5}, {"Name": "x"}]
        assert read_power({"PowerControl": controls}) == 200.5
        assert math.isnan(read_power({}))

    def chassis(self, site, **resources: dict[str, object]) -> Redfish:
        """A controller with some chassis, each with the links that are given."""
        address, answers = site
        links = [{"@odata.id": f"/redfish/v1/Chassis/{name}"} for name in resources]
        answers["/redfish/v1/Chassis"] = {"Members": links}
        for name, said in resources.items():
            answers[f"/redfish/v1/Chassis/{name}"] = said
        answers["/redfish/v1/power/a"] = {"PowerControl": [{"PowerConsumedWatts": 344}]}
        answers["/redfish/v1/power/b"] = {"PowerWatts": {"Reading": 512.5}}
        answers["/redfish/v1/power/none"] = {"PowerControl": []}
        return Redfish(address=address)

    @pytest.mark.parametrize(
        ("resources", "watts"),
        [
            # Its link is followed, wherever it leads.
            ({"Self": {"Power": {"@odata.id": "/redfish/v1/power/a"}}}, 344.0),
            ({"Self": {"EnvironmentMetrics": {"@odata.id": "/redfish/v1/power/b"}}}, 512.5),
            # Disks, and a chassis that cannot be read, come before the server.
            (
                {
                    "Disks": {"Power": {"@odata.id": "/redfish/v1/power/none"}},
                    "Broken": {"Power": {"@odata.id": "/redfish/v1/power/missing"}},
                    "Server": {"Power": {"@odata.id": "/redfish/v1/power/a/"}},
                },
                344.0,
            ),
            # A card is part of the server.
            (
                {
                    "Card": {
                        "EnvironmentMetrics": {"@odata.id": "/redfish/v1/power/b"},
                        "Links": {"ContainedBy": {"@odata.id": "/redfish/v1/Chassis/Server"}},
                    },
                    "Server": {"Power": {"@odata.id": "/redfish/v1/power/a"}},
                },
                344.0,
            ),
        ],
    )
    def test_the_chassis_is_found(self, site, resources, watts: float) -> None:
        meter = self.chassis(site, **resources)
        meter.open()
        assert meter.sample().power_w == (watts,)

    def test_chassis_without_power_are_named(self, site) -> None:
        meter = self.chassis(site, Rack={}, Shelf={"Power": "x", "Links": []})
        with pytest.raises(MeterProblem, match="Chassis/Rack, /redfish/v1/Chassis/Shelf"):
            meter.open()

    def test_an_address_without_scheme_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="begins with https"):
            Redfish(address="bmc.example")

    def test_who_does_not_answer(self, site) -> None:
        with pytest.raises(MeterProblem, match="does not answer as Redfish"):
            Redfish(address=f"{site[0]}/redfish/v1/Chassis/1/Power").open()

    @pytest.mark.parametrize("said", ["N/A", None, {}, ""])
    def test_words_are_no_power(self, said: object) -> None:
        assert math.isnan(read_power({"PowerControl": [{"PowerConsumedWatts": said}]}))

    def test_parts_of_a_control_are_not_added_to_it(self) -> None:
        server = {"MemberId": "0", "PowerConsumedWatts": 344}
        cpus = {"MemberId": "1", "Name": "CPU Sub-system Power", "PowerConsumedWatts": 120}
        assert read_power({"PowerControl": [server, cpus]}) == 344.0
        assert read_power({"PowerControl": [cpus, server]}) == 344.0
        # While the whole is unknown, a part does not stand for it.
        unknown = server | {"PowerConsumedWatts": None}
        assert math.isnan(read_power({"PowerControl": [unknown, cpus]}))

    def test_controls_of_chassis_add_up(self) -> None:
        def of(link: str, watts: float) -> dict[str, object]:
            return {"RelatedItem": [{"@odata.id": link}], "PowerConsumedWatts": watts}

        controls = [
            of("/redfish/v1/Systems/1/Processors/CPU1", 90),
            of("/redfish/v1/Chassis/Sled1", 200),
            of("/redfish/v1/Chassis/Sled2", 150),
            of("/redfish/v1/Chassis/Sled1/", 80),
        ]
        assert read_power({"PowerControl": controls}) == 350.0

    def test_self_signed_certificates_are_taken_where_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        seen: list[ssl.SSLContext] = []

        def untrusted(request: object, *, timeout: float, context: ssl.SSLContext) -> None:
            seen.append(context)
            reason = ssl.SSLCertVerificationError(1, "certificate verify failed")
            reason.verify_message = "self-signed certificate"
            raise urllib.error.URLError(reason)

        monkeypatch.setattr("lowtide.meters.redfish.urllib.request.urlopen", untrusted)
        monkeypatch.setenv("LOWTIDE_REDFISH", "https://bmc.example")
        found = Redfish.find(Roots())
        assert found.state == "no permission"
        assert "self-signed" in found.what
        assert "LOWTIDE_REDFISH_CA" in found.cure
        assert seen[-1].verify_mode == ssl.CERT_REQUIRED
        monkeypatch.setenv("LOWTIDE_REDFISH_INSECURE", "1")
        Redfish.find(Roots())
        assert seen[-1].verify_mode == ssl.CERT_NONE
        monkeypatch.setenv("LOWTIDE_REDFISH_INSECURE", "0")
        none = tmp_path / "none.pem"
        monkeypatch.setenv("LOWTIDE_REDFISH_CA", str(none))
        with pytest.raises(InvalidInput, match=r"names a PEM file .* and .*none\.pem"):
            Redfish().open()
        none.write_text(CERTIFICATE)
        Redfish.find(Roots())
        assert seen[-1].verify_mode == ssl.CERT_REQUIRED
        subjects = [dict(part[0] for part in each["subject"]) for each in seen[-1].get_ca_certs()]
        assert {"commonName": "bmc.example"} in subjects

    def test_failures_are_told_apart(self, site, monkeypatch: pytest.MonkeyPatch) -> None:
        address, answers = site
        path = "/redfish/v1/Chassis/1/Power"
        monkeypatch.setenv("LOWTIDE_REDFISH", address + path)
        assert Redfish.find(Roots()).state == "no answer"
        assert "does not answer as Redfish" in Redfish.find(Roots()).what
        answers[path] = HTTPStatus.UNAUTHORIZED
        found = Redfish.find(Roots())
        assert (found.state, "LOWTIDE_REDFISH_USER" in found.cure) == ("no permission", True)
        answers[path] = {"PowerControl": []}
        assert Redfish.find(Roots()).state == "constant 0"
        answers[path] = ["what is this"]
        assert "no JSON object" in Redfish.find(Roots()).what
        answers[path] = {"PowerControl": [{"PowerConsumedWatts": 300}]}
        assert Redfish.find(Roots()).state == "works"
        monkeypatch.setenv("LOWTIDE_REDFISH", "http://127.0.0.1:9/redfish/v1/Chassis/1/Power")
        found = Redfish.find(Roots())
        assert (found.state, "network" in found.cure) == ("no answer", True)


CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBgzCCASmgAwIBAgIUB7k+3wNObQ2Qb5nMNQZZJfdx5WEwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLYm1jLmV4YW1wbGUwIBcNMjYxMTE1MTYxMTQ2WhgPMjEyNjEw
MjIxNjExNDZaMBYxFDASBgNVBAMMC2JtYy5leGFtcGxlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAExObMPaMtxFnwvr8QydMXue6K7aMPmKPfUDGpxZcXEidV9IRc
LWFuzKzCZT+Txumigx5fChV1rMFovQxhtWk9rqNTMFEwHQYDVR0OBBYEFHCx2SB5
rPZ7eJOOyldxRV2jEtPiMB8GA1UdIwQYMBaAFHCx2SB5rPZ7eJOOyldxRV2jEtPi
MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgNFHoGo9abGrVfIbD
GN020MuxEgJ2LYZ4MCTW+MsBSRYCIQDIlMdjUOdINc9EQpyqLDcouF3/r7dc/xG4
bQUhoEGTLQ==
-----END CERTIFICATE-----
"""
