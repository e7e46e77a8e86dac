"""What a centre says of when to run the next job, of a grid that its watchers have seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from anyio.from_thread import start_blocking_portal

from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.people import Roster
from lowtide.serve.settings import Settings
from lowtide.serve.tokens import READ_OWN, make_token
from support.asking import Answered, Client
from support.pushed import CLUSTER, Node, centre

DAY_S = 86400.0
STEP_S = 900.0
# In the zone of the clock: as clean as it gets at noon, as dirty at midnight.
MEAN, SWING = 300.0, 200.0


def wave(time: float) -> float:
    return MEAN + SWING * math.cos(2 * math.pi * time / DAY_S)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str, float]]:
    folder = tmp_path_factory.mktemp("planning")
    with centre(str(folder / "centre.sqlite")) as database:
        settings = Settings(cluster=CLUSTER)
        node = Node(folder / "n1.sqlite")
        Roster.from_settings(settings).keep(database, now=node.time)
        for _ in range(int(6 * DAY_S / STEP_S)):
            node.watcher.intensity = wave(node.watcher.time + STEP_S / 2)
            node.tick([], step_s=STEP_S)
        assert not any(answer.reason for answer in node.push(database))
        now = node.watcher.time
        node.store.close()
        keeper = Doorkeeper(database, settings, clock=lambda: now)
        token = make_token(database, owner="ada", scope=READ_OWN, lasts_s=1e6, now=now)
        with start_blocking_portal() as portal:
            yield Client(portal, make_app(keeper)), f"Bearer {token}", now


def get(asked: tuple[Client, str, float], target: str) -> Answered:
    client, token, _ = asked
    return client.get(target, authorization=token)


def test_the_grid_is_expected_to_go_on_as_it_did(asked: tuple[Client, str, float]) -> None:
    told = get(asked, "/api/v1/grid").json()
    # From now on, and not what it was made of.
    assert asked[2] - 3600.0 < told["times"][0] <= asked[2] < told["times"][-1]
    steps = {b - a for a, b in pairwise(told["times"])}
    assert len(steps) == 1
    (step_s,) = steps
    for time, value in zip(told["times"], told["intensity_g_per_kwh"], strict=True):
        assert value == pytest.approx(wave(time + step_s / 2), abs=0.1 * SWING)


def test_waiting_brings_what_the_wave_says(asked: tuple[Client, str, float]) -> None:
    told = get(asked, "/api/v1/plans?time=2:00:00").json()
    assert told["note"] == ""
    now = asked[2]

    def mean(begin: float) -> float:
        return sum(wave(begin + each) for each in range(60, 7200, 120)) / 60

    for plan in told["plans"]:
        assert plan["begins"] <= now + plan["wait_s"] + 1.0
        assert plan["ends"] == pytest.approx(plan["begins"] + 7200.0)
        # What it draws is not known, and so neither are grams.
        assert plan["carbon_g"] is None
        best = min(mean(now + each) for each in range(0, int(plan["wait_s"]) + 1, 300))
        assert plan["saving"] == pytest.approx(1 - best / mean(now), abs=0.05)
    savings = [plan["saving"] for plan in told["plans"]]
    assert savings == sorted(savings)
    assert savings[0] == pytest.approx(0.0, abs=1e-9) and savings[-1] > 0.3


def test_the_page_says_the_same(asked: tuple[Client, str, float]) -> None:
    page = get(asked, "/when?time=2:00:00").body.decode()
    last = get(asked, "/api/v1/plans?time=2:00:00").json()["plans"][-1]
    assert f"{100 * last['saving']:.1f} %" in page
    assert "<svg" in page


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("", 400, "say which job it is like"),
        ("?time=0", 400, "more than nothing"),
        ("?time=9-00:00:00", 400, "five days at most"),
        ("?time=soon", 400, "soon"),
        ("?like=" + "0" * 20, 404, "not yours to see"),
    ],
)
def test_what_cannot_be_planned_says_why(
    asked: tuple[Client, str, float], query: str, status: int, words: str
) -> None:
    told = get(asked, f"/api/v1/plans{query}")
    assert (told.status, words in told.json()["error"]) == (status, True), told.body
