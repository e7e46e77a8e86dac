"""The intensity of now: fetched, kept up to date, and honest about its age."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from lowtide.errors import (
    FormatError,
    InvalidInput,
    NotCovered,
    ProviderProblem,
)
from lowtide.grids import web
from lowtide.grids.cache import Cache
from lowtide.grids.gb import GbCarbonIntensity
from lowtide.grids.live import Feed, LiveGrid, fetch, fetch_named
from lowtide.grids.providers import Answer
from lowtide.units import GRAMS_PER_POUND
from support.grid_providers import NOW, PASSWORD, SESSION, TOKEN, USER, StandIn, said, truth

DAY_S = 86_400.0
HALF_HOUR = NOW // 1800 * 1800


@contextmanager
def out_of_order(server: StandIn, status: int = 500, **headers: str) -> Iterator[None]:
    server.overrides[""] = lambda: said({}, status, **headers)
    yield
    del server.overrides[""]


def test_fetch_tells_what_came_and_what_is_expected(server: StandIn, cache: Cache) -> None:
    found = fetch("gb", now=NOW, cache=cache)
    signal = found.signal
    assert (signal.kind, signal.basis, signal.zone, signal.step_s) == (
        *("average", "direct", "GB"), 1800.0)  # fmt: skip
    assert signal.at(HALF_HOUR - 1) == truth(HALF_HOUR - 1800)
    assert signal.at(NOW) == truth(HALF_HOUR) + 7
    assert signal.covers(NOW - DAY_S, NOW + 2 * DAY_S - 1800)
    assert signal.estimated == 96
    assert found.note(NOW + 240) == (
        "gb:GB: retrieved 2024-11-15 14:10 UTC, 4 min ago; a forecast from 2024-11-15 14:00 UTC on."
    )
    assert signal.source == "GB Carbon Intensity (gb:GB), retrieved 2024-11-15 14:10 UTC"
    assert found.problems == ()


def test_nothing_is_told_of_times_outside(server: StandIn, cache: Cache) -> None:
    signal = fetch("gb", now=NOW, cache=cache).signal
    with pytest.raises(NotCovered, match="too early"):
        signal.require(NOW, NOW + 3 * DAY_S)
    with pytest.raises(NotCovered, match="too late"):
        signal.mean(NOW - 40 * DAY_S, NOW)


def test_a_provider_is_not_asked_again_at_once(server: StandIn, cache: Cache) -> None:
    fetch("gb", now=NOW, cache=cache)
    asked = len(server.asked)
    fetch("gb", now=NOW + 599, cache=cache)
    assert len(server.asked) == asked
    server.now = NOW + 601
    fetch("gb", now=NOW + 601, cache=cache)
    assert len(server.asked) > asked
    # A clock that was set back is no reason to believe in an answer from the future.
    asked = len(server.asked)
    fetch("gb", now=NOW, cache=cache)
    assert len(server.asked) > asked


def test_more_of_the_past_is_asked_for_once(server: StandIn, cache: Cache) -> None:
    fetch("gb", now=NOW, cache=cache)
    asked = len(server.asked)
    found = fetch("gb", since=NOW - 20 * DAY_S, now=NOW + 1, cache=cache)
    assert found.signal.covers(NOW - 20 * DAY_S, NOW)
    assert len(server.asked) == asked + 3
    fetch("gb", since="2024-11-01T00:00Z", now=NOW + 2, cache=cache)
    assert len(server.asked) == asked + 3


def test_histories_grow_together(server: StandIn, cache: Cache) -> None:
    first = fetch("gb", now=NOW, cache=cache).signal
    later = NOW + 3 * DAY_S
    server.now = later
    grown = fetch("gb", now=later, cache=cache).signal
    # What was missed in between was asked for, and what was expected has come.
    assert grown.start == first.start
    steps = np.arange(first.start, later // 1800 * 1800, 1800.0)
    assert grown.at(steps).tolist() == [truth(step) for step in steps]


@pytest.mark.usefixtures("keys")
def test_the_past_outlives_what_a_provider_remembers(server: StandIn, cache: Cache) -> None:
    for hours in range(0, 60, 20):
        server.now = NOW + 3600 * hours
        found = fetch("electricitymaps", "DE", now=server.now, cache=cache)
    hour = NOW // 3600 * 3600
    assert found.signal.start == hour - DAY_S
    steps = np.arange(hour - DAY_S, hour + 41 * 3600, 3600.0)
    assert found.signal.at(steps).tolist() == [truth(step) for step in steps]
    assert found.caveat == (
        "estimated from 2024-11-17 05:00 UTC on, a forecast from 2024-11-17 07:00 UTC on"
    )


@pytest.mark.usefixtures("keys")
def test_a_gap_that_cannot_be_closed_stays_one(server: StandIn, cache: Cache) -> None:
    fetch("electricitymaps", "DE", now=NOW, cache=cache)
    server.now = later = NOW + 5 * DAY_S
    found = fetch("electricitymaps", "DE", now=later, cache=cache)
    assert found.signal.start == later // 3600 * 3600 - DAY_S
    with pytest.raises(FormatError, match="steps are missing"):
        fetch("electricitymaps", "DE", since=NOW, now=later, cache=cache)
    held = fetch("electricitymaps", "DE", since=NOW, gaps="hold", now=later, cache=cache)
    assert held.signal.filled > 0


@pytest.mark.usefixtures("keys")
def test_marginal_intensity_in_grams(server: StandIn, cache: Cache) -> None:
    found = fetch("watttime", "CAISO_NORTH", now=NOW, cache=cache)
    assert found.signal.kind == "marginal"
    assert found.signal.at(NOW) == pytest.approx(truth(NOW) * GRAMS_PER_POUND / 1000)
    assert found.caveat == "a forecast from 2024-11-15 14:10 UTC on"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_without_an_answer_the_cache_tells_its_age(
    server: StandIn, cache: Cache, status: int
) -> None:
    fresh = fetch("gb", now=NOW, cache=cache)
    with out_of_order(server, status):
        found = fetch("gb", now=NOW + 7200, cache=cache)
    assert found.signal.values.tolist() == fresh.signal.values.tolist()
    assert found.retrieved == NOW
    (problem,) = found.problems
    assert f"HTTP {status}" in problem
    assert problem.endswith("; the cache answers, 2 h old")
    server.now = NOW + 7300
    assert fetch("gb", now=NOW + 7300, cache=cache).problems == ()


def test_without_answer_and_cache_there_is_an_error(server: StandIn, cache: Cache) -> None:
    with out_of_order(server), pytest.raises(ProviderProblem, match="out of order"):
        fetch("gb", now=NOW, cache=cache)


def test_whoever_asks_to_wait_is_not_asked(server: StandIn, cache: Cache) -> None:
    with out_of_order(server, 429, Retry_After="300"), pytest.raises(ProviderProblem):
        fetch("gb", now=NOW, cache=cache)
    asked = len(server.asked)
    with pytest.raises(ProviderProblem, match="not asked before 2024-11-15 14:15 UTC") as caught:
        fetch("gb", now=NOW + 60, cache=cache)
    assert caught.value.wait_s == 240
    assert len(server.asked) == asked
    assert fetch("gb", now=NOW + 301, cache=cache).retrieved == NOW + 301
    # A clock that was set back by a day does not keep us waiting for a day.
    with out_of_order(server, 429, Retry_After="300"):
        fetch("gb", now=NOW + DAY_S, cache=cache)
    assert fetch("gb", now=NOW, cache=cache).problems == ()


def test_half_an_answer_is_better_than_none(server: StandIn, cache: Cache) -> None:
    server.overrides["fw48h"] = lambda: (200, {}, b'{"data": [')
    found = fetch("gb", now=NOW, cache=cache)
    assert found.signal.covers(NOW - DAY_S, HALF_HOUR)
    (problem,) = found.problems
    assert problem.startswith("no forecast: ")
    assert "not valid JSON" in problem


def test_gaps_in_an_answer(server: StandIn, cache: Cache) -> None:
    def holey() -> tuple[int, dict[str, str], bytes]:
        del server.overrides["/intensity/"]
        answer = server.reply(server.asked[-1], {})
        server.overrides["/intensity/"] = holey
        came = f'"actual": {truth(gap)}'.encode()
        assert came in answer[2] or "fw48h" in server.asked[-1]
        return answer[0], {}, answer[2].replace(came, b'"actual": null')

    gap = HALF_HOUR - 10 * 1800
    server.overrides["/intensity/"] = holey
    found = fetch("gb", now=NOW, cache=cache)
    # What was expected stands where nothing came.
    assert found.signal.at(gap) == truth(gap) + 7
    assert found.signal.at(gap + 1800) == truth(gap + 1800)


def test_a_key_is_asked_for_before_anything_else(server: StandIn, cache: Cache) -> None:
    with pytest.raises(ProviderProblem, match="set LOWTIDE_ELECTRICITYMAPS_TOKEN, or write"):
        fetch("electricitymaps", "DE", now=NOW, cache=cache)
    assert server.asked == []


@pytest.mark.usefixtures("keys")
def test_no_key_is_kept(server: StandIn, cache: Cache, tmp_path: Path) -> None:
    server.overrides["/v3/carbon-intensity/forecast"] = lambda: said({"error": TOKEN}, 403)
    server.overrides["/v3/forecast"] = lambda: said({"detail": f"no {SESSION}"}, 403)
    for zone in (("electricitymaps", "DE"), ("watttime", "CAISO_NORTH")):
        fetch(*zone, now=NOW, cache=cache)
        check_for_keys(tmp_path)
    server.overrides["/login"] = lambda: said({"detail": f"{USER} {PASSWORD}"}, 401)
    found = fetch("watttime", "CAISO_NORTH", now=NOW + DAY_S, cache=cache)
    assert "*** ***" in found.problems[0]
    check_for_keys(tmp_path)


def check_for_keys(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".json" for path in files)
    for path in files:
        for secret in (TOKEN, SESSION, USER, PASSWORD):
            assert secret not in path.read_text(), path


def test_other_steps_begin_anew_and_lose_nothing(server: StandIn, cache: Cache) -> None:
    fetch("gb", now=NOW, cache=cache)
    before = cache.path(Feed.of("gb", cache=cache).name).read_bytes()
    record = {"from": "2024-11-15T14:00Z", "to": "2024-11-15T15:00Z",
              "intensity": {"forecast": 5, "actual": 4}}  # fmt: skip
    server.overrides["/intensity/"] = lambda: said({"data": [record]})
    found = fetch("gb", now=NOW + 700, cache=cache)
    assert (found.signal.step_s, len(found.signal)) == (3600, 1)
    assert (cache.folder / "gb" / "GB.1800s-direct.json").read_bytes() == before


def test_a_torn_cache_is_told_of_and_made_anew(server: StandIn, cache: Cache) -> None:
    path = cache.folder / "gb" / "GB.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    feed = Feed.of("gb", cache=cache)
    assert "GB.unreadable.json" in feed.problems[0]
    assert fetch("gb", now=NOW, cache=cache).problems == ()
    assert path.stat().st_size > 1000


def test_what_cannot_be_kept_is_used_all_the_same(server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = fetch("gb", now=NOW, cache=Cache(tmp_path / "file"))
    assert found.signal.covers(NOW, NOW)
    assert "is not kept" in found.problems[0]


def test_many_at_once_ask_once(server: StandIn, cache: Cache) -> None:
    server.delay_s = 0.05
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch("gb", now=NOW, cache=cache)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(server.asked) == 2


@pytest.mark.usefixtures("keys")
def test_two_zones_in_one_name(server: StandIn, cache: Cache) -> None:
    found = fetch_named("gb:13+watttime:CAISO_NORTH", now=NOW, cache=cache)
    assert [each.signal.kind for each in found] == ["average", "marginal"]
    assert found[0].signal.zone == "London"


def test_the_users_own_cache(server: StandIn, home: Path) -> None:
    fetch("gb", now=NOW)
    path = home / ".cache/lowtide/grids/gb/GB.json"
    assert not stat.S_IMODE(path.stat().st_mode) & 0o133


# A watcher's grid.


def test_a_watcher_knows_at_its_second_look(server: StandIn, cache: Cache) -> None:
    live = LiveGrid("gb", cache=cache)
    assert live.grid(NOW) is None
    assert live.wait(10)
    grid = live.grid(NOW + 1)
    assert grid is not None
    assert grid.marginal is None
    assert grid.average.at(NOW) == truth(HALF_HOUR) + 7
    assert live.problems == ()
    # The next one begins with what this one has learned.
    assert LiveGrid("gb", cache=cache).grid(NOW) is not None


@pytest.mark.alone
def test_a_watcher_never_waits(
    server: StandIn, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch("gb", now=NOW - 3600, cache=cache)
    server.delay_s = 30.0
    provider = GbCarbonIntensity(timeout_s=0.3)
    live = LiveGrid(provider, cache=cache)
    begin = time.monotonic()
    for tick in range(1000):
        assert live.grid(NOW + tick / 1000) is not None
    assert time.monotonic() - begin < 0.3
    assert live.wait(10)
    (problem,) = live.problems
    assert "does not answer within 0.3 s; the cache answers, 1 h old" in problem


@pytest.mark.alone
def test_looking_costs_next_to_nothing(server: StandIn, cache: Cache) -> None:
    live = LiveGrid("gb", cache=cache)
    live.grid(NOW)
    live.wait(10)
    asked = len(server.asked)
    begin = time.perf_counter()
    for tick in range(10_000):
        live.grid(NOW + tick / 100)
    assert (time.perf_counter() - begin) / 10_000 < 50e-6
    assert len(server.asked) == asked


def test_a_watcher_asks_when_an_answer_has_grown_old(server: StandIn, cache: Cache) -> None:
    live = LiveGrid("gb", cache=cache)
    for passed_s, times in ((0, 1), (300, 1), (610, 2), (900, 2), (1300, 3)):
        server.now = NOW + passed_s
        live.grid(NOW + passed_s)
        live.wait(10)
        assert sum("fw48h" in path for path in server.asked) == times, passed_s


def test_a_watcher_asks_ever_more_seldom_and_recovers(server: StandIn, cache: Cache) -> None:
    live = LiveGrid("gb", cache=cache)
    tries = []
    with out_of_order(server):
        for second in range(0, 3600, 10):
            before = len(server.asked)
            live.grid(NOW + second)
            live.wait(10)
            if len(server.asked) > before:
                tries.append(second)
    assert tries == [0, 60, 180, 420, 900, 1500, 2100, 2700, 3300]
    assert live.grid(NOW + 3601) is None
    assert "out of order" in live.problems[0]
    server.now = NOW + 3900
    live.grid(NOW + 3900)
    live.wait(10)
    assert live.grid(NOW + 3901) is not None
    assert live.problems == ()


@pytest.mark.usefixtures("keys")
def test_a_watcher_of_both_kinds(server: StandIn, cache: Cache) -> None:
    live = LiveGrid.named("electricitymaps:DE+watttime:CAISO_NORTH", cache=cache)
    live.grid(NOW)
    live.wait(10)
    grid = live.grid(NOW + 1)
    assert grid is not None
    assert grid.marginal is not None
    assert grid.average.at(NOW) == truth(NOW // 3600 * 3600)
    assert grid.marginal.at(NOW) == pytest.approx(truth(NOW) * GRAMS_PER_POUND / 1000)
    server.overrides["/login"] = lambda: said({}, 500)
    server.now = later = NOW + 1000
    live.grid(later)
    live.wait(10)
    (problem,) = live.problems
    assert "/login is out of order" in problem
    assert live.grid(later + 1) is not None


@pytest.mark.parametrize("text", ["watttime:CAISO_NORTH", "watttime:CAISO_NORTH+gb"])
def test_what_is_emitted_is_counted_by_the_average(home: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="name a zone of average intensity first"):
        LiveGrid.named(text)


class Odd:
    """A stranger's provider that fails as nobody expected."""

    name: ClassVar[str] = "odd"
    title: ClassVar[str] = "Odd"
    kind: ClassVar[str] = "average"
    keys: ClassVar[tuple[str, ...]] = ()
    zones: ClassVar[str] = "X"
    example: ClassVar[str] = "X"
    default_zone: ClassVar[str] = "X"
    refresh_s: ClassVar[float] = 600.0

    def ask(self, zone: str, *, since: float, now: float) -> Answer:
        raise ZeroDivisionError(TOKEN)


def test_a_strangers_error_stops_no_watcher(home: Path, cache: Cache) -> None:
    live = LiveGrid(Odd(), cache=cache)
    assert live.grid(NOW) is None
    assert live.wait(10)
    assert live.problems == ("odd:X: an error of its own, ZeroDivisionError",)


def test_waiting_for_nothing(home: Path, cache: Cache) -> None:
    assert LiveGrid(Odd(), cache=cache).wait(0)
    assert web.TIMEOUT_S <= 30
