"""A database that is gone: who asks is told to come again, and what was pushed is there once."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.serve import schema
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.settings import Settings
from lowtide.serve.tokens import READ_OWN, begin_session, make_token, node_scope
from support.asking import serving
from support.needs import is_missing
from support.postgres import Postgres, find_programs, running_server
from support.pushed import CLUSTER, Node, centre, rows
from support.ticks import unit

pytestmark = pytest.mark.alone
PAGES = ("/", "/jobs", "/usage", "/nodes", "/api/v1/jobs", "/api/v1/usage", "/api/v1/health")


@pytest.fixture
def own() -> Iterator[Postgres]:
    """A server that nobody else uses."""
    if find_programs() is None:
        is_missing("needs PostgreSQL's programs: apt-get install postgresql")
    with running_server() as server:
        yield server


def ask(
    url: str, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, str, str]:
    """Return the status, when to come again, and what is said."""
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        line.request(method, path, body, headers)
        answer = line.getresponse()
        return answer.status, answer.headers.get("Retry-After", ""), answer.read().decode()
    finally:
        line.close()


def test_a_database_that_is_gone_loses_nothing(own: Postgres, tmp_path: Path) -> None:
    """Stopped in order and as by a crash, between pieces and in the middle of one."""
    nodes = [Node(tmp_path / f"{host}.sqlite", host) for host in ("n1", "n2", "n3")]
    with centre(own.address) as database:
        now = nodes[0].time
        keeper = Doorkeeper(
            database, Settings(cluster=CLUSTER), clock=lambda: nodes[0].watcher.time
        )
        tokens = {
            node.host: make_token(
                database,
                owner=f"{CLUSTER}/{node.host}",
                scope=node_scope(CLUSTER, node.host, tells_all=False),
                lasts_s=1e6,
                now=now,
            )
            for node in nodes
        }
        ada = make_token(database, owner="ada", scope=READ_OWN, lasts_s=1e6, now=now)
        session = begin_session(database, "ada", now=now)
        said: list[int] = []

        def push(node: Node) -> int:
            parcel = node.outbox.next(now=node.watcher.time)
            assert parcel is not None
            status, again_s, text = ask(
                url,
                "PUT",
                f"/ingest/v1/{CLUSTER}/{node.host}/{parcel.incarnation}/{parcel.seq}",
                {"Authorization": f"Bearer {tokens[node.host]}"},
                parcel.body,
            )
            if status == 200:
                node.outbox.acknowledge(parcel)
            else:
                assert status == 503
                assert int(again_s) > 0
                words = "the store does not answer: try again in a while"
                assert json.loads(text) == {"error": words}
            said.append(status)
            return status

        with serving(keeper) as url:
            for turn in range(8):
                for node in nodes:
                    for _ in range(7):
                        node.tick([unit(f"{node.host}{number}") for number in range(3)])
                # All push, and it ends while they do.
                pushing = [threading.Thread(target=push, args=(node,)) for node in nodes]
                for each in pushing:
                    each.start()
                own.end(signal.SIGQUIT if turn % 2 else signal.SIGINT)
                for each in pushing:
                    each.join()
                assert all(push(node) == 503 for node in nodes if node.outbox.next() is not None)
                for path in PAGES:
                    shown = {"Authorization": f"Bearer {ada}"} if "api" in path else {}
                    cookies = {} if shown else {"Cookie": f"lowtide={session}"}
                    status, again_s, text = ask(url, "GET", path, {**shown, **cookies})
                    assert status == 503, path
                    assert "does not answer" in text
                    assert int(again_s) > 0
                own.start()
                for node in nodes:
                    while node.outbox.next(now=node.watcher.time) is not None:
                        assert push(node) == 200
                status, _, text = ask(url, "GET", PAGES[4], {"Authorization": f"Bearer {ada}"})
                assert (status, len(json.loads(text)["jobs"])) == (200, 9)
        assert said.count(503) >= 8
        found = {row["job_id"]: row for row in rows(database, schema.jobs)}
        assert not rows(database, schema.quarantine)
    assert len(found) == 9
    for node in nodes:
        for record in node.store.jobs(now=node.watcher.time):
            row = found[record.job_id]
            assert row["energy_j"] == pytest.approx(record.energy_j, rel=1e-12)
            assert row["looks"] == record.looks == 56
        node.store.close()
