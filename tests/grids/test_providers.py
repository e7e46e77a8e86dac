"""The three providers, asked at a server that answers as they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import (
    FormatError,
    InvalidInput,
    LowtideError,
    ProviderProblem,
    UnknownName,
)
from lowtide.grids.electricitymaps import ElectricityMaps
from lowtide.grids.gb import GbCarbonIntensity
from lowtide.grids.providers import (
    PROVIDERS,
    Answer,
    Part,
    base_url,
    gather,
    name_zone,
    names_a_zone,
    parse_zones,
)
from lowtide.grids.watttime import WattTime
from support.grid_providers import NOW, PASSWORD, SESSION, TOKEN, USER, StandIn, said, truth

DAY_S = 86_400.0


def told(answer: Answer, *, forecast: bool) -> dict[float, float]:
    """Time → value of all parts of one sort."""
    return {
        time: value
        for part in answer.parts
        if part.forecast == forecast
        for time, value in zip(part.series.times, part.series.values, strict=True)
        if np.isfinite(value)
    }


def test_names() -> None:
    assert {"electricitymaps", "gb", "watttime"} <= set(PROVIDERS.names())
    for text, names in (
        ("gb", ["gb:GB"]),
        ("gb:17", ["gb:17"]),
        ("electricitymaps:US-CAL-CISO", ["electricitymaps:US-CAL-CISO"]),
        ("gb:3+watttime:CAISO_NORTH", ["gb:3", "watttime:CAISO_NORTH"]),
    ):
        assert names_a_zone(text)
        assert [str(name) for name in parse_zones(text)] == names
    for text in ("windy", "DE.csv", "gb.csv", "", ":GB", "../gb"):
        assert not names_a_zone(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gb:18", "as in gb:13, not '18'"),
        ("gb:London", "as in gb:13"),
        ("electricitymaps", "as in electricitymaps:DE, and none is named"),
        ("electricitymaps:../../x", "as in electricitymaps:DE"),
        ("watttime:a b", "as in watttime:CAISO_NORTH"),
        ("gb+electricitymaps:DE", "names average intensity twice"),
    ],
)
def test_names_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_zones(text)


def test_an_unknown_provider_lists_the_known() -> None:
    with pytest.raises(UnknownName, match="did you mean 'watttime'"):
        parse_zones("gb+watttim:X")


def test_no_zone_leaves_the_folder() -> None:
    class Careless(GbCarbonIntensity):
        zones = ".*"

    for zone in ("../x", "a/b", "a.b", "ü"):
        with pytest.raises(InvalidInput):
            name_zone(Careless(), zone)


def test_an_address_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_GRID_URL_MY_GRID", "http://127.0.0.1:1/")
    assert base_url("my-grid", "https://example.org") == "http://127.0.0.1:1"
    assert base_url("other", "https://example.org/") == "https://example.org"


def test_the_usual_addresses_are_encrypted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("electricitymaps", "gb", "watttime"):
        monkeypatch.delenv(f"LOWTIDE_GRID_URL_{name.upper()}", raising=False)
        assert PROVIDERS.load(name)().url.startswith("https://")  # type: ignore[attr-defined]


def test_gb_national(server: StandIn) -> None:
    answer = GbCarbonIntensity().ask("GB", since=NOW - 2 * DAY_S, now=NOW)
    actual, expected = told(answer, forecast=False), told(answer, forecast=True)
    half_hour = NOW // 1800 * 1800
    # What has come is told up to the half-hour that is still going on.
    assert max(actual) == half_hour - 1800
    assert min(actual) <= NOW - 2 * DAY_S
    assert all(value == truth(time) for time, value in actual.items())
    assert all(value == truth(time) + 7 for time, value in expected.items())
    assert max(expected) == half_hour + 2 * DAY_S - 1800
    assert {part.series.basis for part in answer.parts} == {"direct"}
    assert len(server.asked) == 2


def test_gb_regional_is_never_more_than_expected(server: StandIn) -> None:
    answer = GbCarbonIntensity().ask("13", since=NOW - DAY_S, now=NOW)
    assert not told(answer, forecast=False)
    assert len(told(answer, forecast=True)) >= 3 * 48
    assert answer.parts[0].series.zone == "London"
    assert all("/regional/" in path and path.endswith("/regionid/13") for path in server.asked)


def test_gb_is_asked_for_two_weeks_at_a_time(server: StandIn) -> None:
    answer = GbCarbonIntensity().ask("GB", since=NOW - 30 * DAY_S, now=NOW)
    times = sorted(told(answer, forecast=False))
    assert len(server.asked) == 3 + 1
    assert set(np.diff(times)) == {1800.0}


@pytest.mark.usefixtures("keys")
def test_electricity_maps(server: StandIn) -> None:
    answer = ElectricityMaps().ask("DE", since=NOW - DAY_S, now=NOW)
    come, expected = told(answer, forecast=False), told(answer, forecast=True)
    hour = NOW // 3600 * 3600
    assert sorted(come) == [hour - 3600.0 * back for back in range(24, -1, -1)]
    assert max(expected) == hour + DAY_S
    assert all(value == truth(time) for time, value in (come | expected).items())
    assert not answer.problems
    assert all("zone=DE" in path and TOKEN not in path for path in server.asked)


@pytest.mark.usefixtures("keys")
def test_electricity_maps_without_a_forecast(server: StandIn) -> None:
    server.forecast_for_free = False
    answer = ElectricityMaps().ask("DE", since=NOW, now=NOW)
    assert not told(answer, forecast=True)
    (problem,) = answer.problems
    assert problem.startswith("no forecast: ")
    assert "HTTP 403, 'Not part of your plan'" in problem


@pytest.mark.usefixtures("keys")
def test_another_zone_than_asked_for_is_refused(server: StandIn) -> None:
    record = {"zone": "FR", "datetime": "2024-01-01T00:00Z", "carbonIntensity": 5}
    server.overrides["/history"] = lambda: said({"zone": "FR", "history": [record]})
    with pytest.raises(InvalidInput, match="'FR'"):
        ElectricityMaps().ask("DE", since=NOW, now=NOW)


@pytest.mark.usefixtures("keys")
def test_watttime(server: StandIn) -> None:
    answer = WattTime().ask("CAISO_NORTH", since=NOW - DAY_S, now=NOW)
    come, expected = told(answer, forecast=False), told(answer, forecast=True)
    assert (min(come), max(come)) == (NOW - DAY_S, NOW - 300)
    assert (min(expected), max(expected)) == (NOW, NOW + 3 * DAY_S - 300)
    assert all(value == truth(time) for time, value in (come | expected).items())
    for part in answer.parts:
        series = part.series
        assert (series.kind, series.unit) == ("marginal", "lbs_co2_per_mwh")
        assert (series.zone, series.basis) == ("CAISO_NORTH", "direct")
    assert not any(SESSION in path or PASSWORD in path for path in server.asked)


@pytest.mark.usefixtures("keys")
def test_wrong_keys_are_refused_and_not_repeated(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWTIDE_ELECTRICITYMAPS_TOKEN", "wr0ng")
    monkeypatch.setenv("LOWTIDE_WATTTIME_PASSWORD", "wr0ng")
    for provider, zone in ((ElectricityMaps(), "DE"), (WattTime(), "CAISO_NORTH")):
        with pytest.raises(ProviderProblem, match="does not accept the key") as caught:
            provider.ask(zone, since=NOW, now=NOW)
        assert "wr0ng" not in str(caught.value)
        assert USER not in str(caught.value)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("token", [None, 5, "a\r\nb", "ü"])
def test_watttime_logs_in_to_nothing_strange(server: StandIn, token: object) -> None:
    server.overrides["/login"] = lambda: said({"token": token})
    with pytest.raises(ProviderProblem, match="without a token"):
        WattTime().ask("CAISO_NORTH", since=NOW, now=NOW)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("body", [b"", b"{", b"null", b'{"data": []}', b'{"history": [5]}'])
@pytest.mark.parametrize("provider", [GbCarbonIntensity, ElectricityMaps, WattTime])
def test_no_answer_is_taken_for_one(
    server: StandIn, provider: type[GbCarbonIntensity], body: bytes
) -> None:
    server.overrides["intensity"] = server.overrides["historical"] = lambda: (200, {}, body)
    zone = {"watttime": "CAISO_NORTH", "gb": "GB"}.get(provider.name, "DE")
    with pytest.raises((ProviderProblem, FormatError)):
        provider().ask(zone, since=NOW - DAY_S, now=NOW)


def test_what_must_and_what_may_be_answered() -> None:
    def fail() -> list[Part]:
        raise ProviderProblem("slow down", wait_s=60.0)

    answer = gather({"history": list, "latest": fail, "forecast": list})
    assert (answer.problems, answer.wait_s) == (["no latest: slow down"], 60.0)
    with pytest.raises(LowtideError, match="slow down"):
        gather({"history": fail, "forecast": list})
