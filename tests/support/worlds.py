"""Two worlds that differ in what one user did: who may not see that must not tell them apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.kept_looks import keep_looks
from lowtide.serve.kept_waste import keep_findings
from lowtide.serve.people import Roster
from lowtide.serve.settings import Account, Settings
from lowtide.serve.tokens import LINK, READ_ALL, make_token
from lowtide.store.database import Database
from support.asking import Answered, Client
from support.pushed import CLUSTER, Node, centre
from support.ticks import START, facts, unit

SETTINGS = Settings(
    cluster=CLUSTER,
    support=("sue",),
    admins=("adam",),
    # A test asks as often as it likes.
    requests_per_minute=0,
    accounts={
        "phys": Account(leads=("lea",), members=("ada", "bob")),
        "quark": Account(parent="phys", members=("cy",)),
        "chem": Account(members=("bob", "cy")),
    },
)
PEOPLE = ("ada", "bob", "cy", "lea", "sue", "adam", "nobody")
STEPS = 90
# As the watcher has it: cores of the node, and cores that each job keeps.
FLOOR_W, CORES, KEPT = 51.2, 64, 4
NOW = START + 60.0 * STEPS + 30.0


@dataclass(frozen=True)
class Deed:
    """A job of somebody's: its number, and how it went."""

    job: int
    user: str
    account: str
    first: int
    last: int
    watts: float = 100.0
    name: str = ""
    host: str = "n1"


COMMON = (
    Deed(1, "ada", "phys", 0, 20),
    Deed(2, "ada", "phys", 15, 80, 70.0),
    Deed(3, "cy", "quark", 5, 40),
    Deed(4, "lea", "phys", 10, 12),
    Deed(5, "ada", "phys", 50, STEPS),
    Deed(6, "cy", "quark", 70, 85, host="n2"),
)
# What bob did in one world, and in the others: beside others on one node, alone on the other.
BOBS = {
    "many": (
        Deed(11, "bob", "chem", 2, 30, 333.0, "secret"),
        Deed(12, "bob", "chem", 31, STEPS),
        Deed(13, "bob", "chem", 5, 60, 222.0, host="n2"),
        Deed(14, "bob", "chem", 62, 68, 999.0, host="n2"),
    ),
    "other": (
        *(Deed(20 + n, "bob", "chem", n, n + 9, 41.0, f"=x{n}") for n in range(6)),
        *(Deed(30 + n, "bob", "chem", 9 * n, 9 * n + 5, 77.0, host="n2") for n in range(7)),
    ),
    "none": (),
}


@dataclass(frozen=True)
class World:
    """A centre with people who ask it.

    Attributes:
        tokens: One of each person's, good for all that they may.
    """

    keeper: Doorkeeper
    client: Client
    tokens: dict[str, str]

    def get(self, who: str | None, target: str) -> Answered:
        """Return what somebody is answered."""
        shown = None if who is None else f"Bearer {self.tokens[who]}"
        return self.client.get(target, authorization=shown)

    def send(self, method: str, who: str | None, target: str, body: bytes) -> Answered:
        """Return what somebody is answered who asks in any way."""
        shown = None if who is None else f"Bearer {self.tokens[who]}"
        return self.client.ask(method, target, body=body, authorization=shown)

    def link(self, who: str) -> str:
        """Return a link that opens a session."""
        database = self.keeper.database
        return make_token(database, owner=who, scope=LINK, lasts_s=60.0, now=NOW)


@contextmanager
def world(where: str, folder: Path, deeds: tuple[Deed, ...], **settings: Any) -> Iterator[World]:
    """Make a world in which all did what they did in COMMON, and some more besides.

    Args:
        settings: What is set up otherwise than in SETTINGS.
    """
    how = replace(SETTINGS, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    with centre(where) as database:
        Roster.from_settings(how).keep(database, now=START)
        done = [*COMMON, *deeds]
        for host in ("n1", "n2"):
            _watch(database, Node(folder / f"{host}.sqlite", host), done)
        keep_looks(database, now=NOW, many=1)
        keep_findings(database, now=NOW)
        keeper = Doorkeeper(database, how, clock=lambda: NOW)
        tokens = {
            who: make_token(database, owner=who, scope=READ_ALL, lasts_s=1e6, now=START)
            for who in dict.fromkeys([*PEOPLE, *(each.user for each in done)])
        }
        with start_blocking_portal() as portal:
            yield World(keeper, Client(portal, make_app(keeper)), tokens)


def _watch(database: Database, node: Node, done: list[Deed]) -> None:
    """Watch a node for as long as anybody did anything, and push all of it."""
    done = [each for each in done if each.host == node.host]
    names = {each.job: each.name or f"job-{each.job}" for each in done}
    for step in range(STEPS):
        here = [each for each in done if each.first <= step < each.last]
        units = [
            unit(each.job, user=each.user, started=START + 60.0 * each.first,
                 name=names[each.job])
            for each in here
        ]  # fmt: skip
        # What nobody has reserved draws its part of what the node draws when nothing runs.
        node.watcher.idle_w = FLOOR_W * (CORES - KEPT * len(here)) / CORES
        node.tick(units, step_s=60.0, watts={str(each.job): each.watts for each in here})
        ended = [each for each in done if each.last == step]
        node.put_facts(
            [
                facts(each.job, state="completed", user=each.user, account=each.account,
                      started=START + 60.0 * each.first, ended=START + 60.0 * each.last,
                      cpus=4.0, nodes=(node.host,), name=names[each.job])
                for each in ended
            ]
        )  # fmt: skip
        if step % 10 == 9:
            assert not any(answer.reason for answer in node.push(database))
    node.push(database)
    node.store.close()
