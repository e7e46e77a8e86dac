"""Kill −9 of the node or of the centre in mid-push: nothing is lost, nothing doubled."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput
from lowtide.serve import schema
from lowtide.serve.tokens import make_token, node_scope
from lowtide.store import Store
from lowtide.watching.pushing import CentreAddress
from support.nightly import drawn
from support.pushed import CLUSTER, centre, rows

pytestmark = pytest.mark.alone

# Has a node and a centre, each a process of its own made from this one, kills the one it is told
# to, and makes another. The node ends by itself when it is told to, with everything pushed.
BOTH = """
import os, signal, socket, sys, time
sys.path[:0] = sys.argv[4:]
import uvicorn
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.settings import Settings
from lowtide.store import Store, writer
from lowtide.store.database import Database
from lowtide.watching.pushing import CentreAddress, Pusher
from support.ticks import START, Watcher, unit, facts

writer.CHUNK_TICKS, writer.CHUNK_LEAST_S = 7, 0.0
centre, node, token = sys.argv[1:4]
door = socket.create_server(("127.0.0.1", 0))
address = "http://127.0.0.1:%d/alps" % door.getsockname()[1]
jobs = [unit(number, user="ada") for number in range(4)]

def serve():
    app = make_app(Doorkeeper(Database(centre), Settings(cluster="alps")))
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[door])

def watch(last):
    with Store.open(node) as store:
        known = store.hosts()
        watcher = Watcher(time=(known[0].last_time if known else START) + 20.0)
        to = CentreAddress.read(address)
        pusher = Pusher(outbox=store.outbox("n1"), centre=to, host="n1", token=token, say=print)
        pusher.outbox.cluster = to.cluster
        count = 0
        while not last or count < 5:
            count += 1
            for _ in range(3):
                store.append(watcher.tick([*jobs, unit(100 + count % 5)]))
            pusher.push()
            print("pushed", flush=True)
        while pusher.outbox.next() is not None:
            pusher.push()
    os._exit(0)

def made(do, *what):
    if (child := os.fork()) == 0:
        do(*what)
        os._exit(0)
    return child

def ended(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

centres, nodes = made(serve), made(watch, False)
for line in sys.stdin:
    if line == "node\\n":
        ended(nodes)
        nodes = made(watch, False)
    elif line == "centre\\n":
        ended(centres)
        centres = made(serve)
    else:
        ended(nodes)
        os.waitpid(made(watch, True), 0)
        ended(centres)
        print("over", flush=True)
        break
"""


def test_nothing_is_lost_or_doubled_by_kills(tmp_path: Path, place: str) -> None:
    chance = random.Random(11)
    path = place
    with centre(path) as database:
        token = make_token(
            database,
            owner=f"{CLUSTER}/n1",
            scope=node_scope(CLUSTER, "n1", tells_all=True),
            lasts_s=1e6,
            now=time.time(),
        )
    node = str(tmp_path / "n1.sqlite")
    both = subprocess.Popen(
        [sys.executable, "-c", BOTH, path, node, token, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert both.stdin is not None
    assert both.stdout is not None
    try:
        for _ in range(drawn(12, 1000)):
            # Some pushes on, however long they take here, and anywhere in the next one.
            for _ in range(chance.randint(1, 3)):
                while both.stdout.readline() not in ("pushed\n", ""):
                    pass
            time.sleep(chance.uniform(0.0, 0.03))
            both.stdin.write(chance.choice(("node\n", "centre\n")))
            both.stdin.flush()
        both.stdin.write("end\n")
        both.stdin.flush()
        said = list(iter(both.stdout.readline, "over\n"))
        assert "" not in said
    finally:
        both.kill()
        both.communicate()
    with Store.open(node, readonly=True) as store:
        wanted = {each.job_id: each for each in store.jobs()}
        courses = {
            name: np.nansum(store.series(each).columns["energy_j"]) for name, each in wanted.items()
        }
    with centre(path) as database:
        found = {row["job_id"]: row for row in rows(database, schema.jobs)}
        assert not rows(database, schema.quarantine)
        assert len(rows(database, schema.incarnations)) == 1
    assert found.keys() == wanted.keys()
    for name, record in wanted.items():
        assert found[name]["energy_j"] == pytest.approx(record.energy_j, rel=1e-12)
        assert found[name]["looks"] == record.looks
    with Store.open(path, readonly=True) as store:
        assert store.check().is_sound
        for each in store.jobs():
            energy = np.nansum(store.series(each).columns["energy_j"])
            assert energy == pytest.approx(courses[each.job_id], abs=1e-3)
    assert sum(record.energy_j for record in wanted.values()) > 0


@pytest.mark.parametrize(
    "text",
    [
        *("centre.example.org/alps", "https://centre.example.org", "ftp://centre/alps", ""),
        *("https://ada:secret@centre/alps", "https://centre/alps?x=1", "https://centre:port/alps"),
        "http://centre.example.org/alps",
    ],
)
def test_an_address_says_where_a_centre_is(text: str) -> None:
    with pytest.raises(InvalidInput):
        CentreAddress.read(text)


def test_an_address_may_have_a_path() -> None:
    found = CentreAddress.read("https://centre.example.org:8443/energy/alps/")
    assert (found.path, found.cluster, found.port) == ("/energy", "alps", 8443)
