"""What a cluster's centre carries: pieces a second, a million jobs, and how large its pages are.

A real PostgreSQL is started, and the server in a process of its own. Figures stand beside what the
same machine does in the same run with nothing of lowtide's: rows of the same bytes that are
inserted and committed one by one, and copied. Rates are told by CPU time as well, so that others
on the machine matter little. Everything is made here, from a seed. Exits with 1 if a figure is
beyond its limit.

    python benchmarks/serve.py [ingest] [jobs] [pages]
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.postgres import running_postgres
from support.pushed import CLUSTER, Node, centre
from support.ticks import START, facts, unit

from lowtide.serve.tokens import make_token, node_scope
from lowtide.store.pieces import Piece, seal, unseal

WANTED_PER_S = 10_000 / 60
CORES = 2
NODES = int(os.environ.get("NODES", "120"))
# Long enough for chunks to come twice.
MINUTES = int(os.environ.get("MINUTES", "21"))
TICK_S = 10.0
PER_PIECE = 6
JOBS = 4
AT_ONCE = 96
_TICK = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Print figures and return the exit status."""
    parts: dict[str, Callable[[str], bool]] = {"ingest": ingest}
    wanted = sys.argv[1:] or list(parts)
    fine = []
    for name in wanted:
        with running_postgres() as address:
            fine.append(parts[name](address))
    return 0 if all(fine) else 1


def pieces() -> list[Piece]:
    """Return what a node tells, a piece for each minute: jobs that run, and one that is over."""
    told = []
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "node.sqlite", "node")
        jobs = [unit(number, user=f"user{number}") for number in range(JOBS)]
        known = {"started": START, "nodes": ("node",), "partition": "main"}
        for number, each in enumerate(jobs):
            running = facts(number, state="running", user=each.user, account="phys", **known)
            node.put_facts([running])
        for minute in range(MINUTES):
            if minute == MINUTES // 2:
                ended = node.watcher.time
                over = facts(0, state="completed", user="user0", account="phys", ended=ended,
                             **known)  # fmt: skip
                node.put_facts([over])
                jobs = [*jobs[1:], unit(JOBS, user="user0", started=ended)]
            for _ in range(PER_PIECE):
                node.tick(jobs, step_s=TICK_S)
            while (parcel := node.outbox.next(now=node.watcher.time)) is not None:
                told.append(unseal(parcel.body))
                node.outbox.acknowledge(parcel)
        node.store.close()
    return told


def of_host(piece: Piece, host: str) -> bytes:
    """Return a piece as another node would tell it, of jobs of its own."""
    named = msgspec.structs.replace
    return seal(
        named(
            piece,
            host=host,
            units=[
                named(each, job_id=f"{host}{each.job_id}", key=f"{host}{each.key}")
                for each in piece.units
            ],
            facts=[
                named(each, known={**each.known, "job_id": f"{host}{each.known['job_id']}"},
                      nodes=[host])
                for each in piece.facts
            ],
        )
    )  # fmt: skip


def ingest(address: str) -> bool:
    """Push what many nodes tell, and compare with the same bytes that are only kept."""
    told = pieces()
    hosts = [f"n{number:05}" for number in range(NODES)]
    bodies = {host: [of_host(piece, host) for piece in told] for host in hosts}
    count = sum(map(len, bodies.values()))
    tokens = {}
    with centre(address) as database:
        for host in hosts:
            tokens[host] = make_token(
                database, owner=f"{CLUSTER}/{host}", scope=node_scope(CLUSTER, host, tells_all=False),
                lasts_s=1e6, now=START,
            )  # fmt: skip
    size = sum(len(body) for some in bodies.values() for body in some)
    print(f"{NODES} nodes, {count} pieces, {size / count:.0f} bytes each")
    with serving(address, clock=START + 60.0 * MINUTES) as (port, server):
        before = cpu_s(server), server_cpu_s(address)
        begun = time.monotonic()
        for which in range(len(told)):
            push({host: bodies[host][which] for host in hosts}, tokens, port, seq=which + 1)
        wall_s = time.monotonic() - begun
        used = [after - first for after, first in zip(
            (cpu_s(server), server_cpu_s(address)), before, strict=True)]  # fmt: skip
    mine_ms, base_ms = (1e3 * each / count for each in used)
    able = min(1e3 / mine_ms, CORES * 1e3 / (mine_ms + base_ms))
    print(f"ingest: {count / wall_s:.0f} pieces/s with everything else on this machine")
    print(f"  CPU per piece: {mine_ms:.2f} ms of the server, {base_ms:.2f} ms of PostgreSQL")
    print(
        f"  two cores carry {able:.0f} pieces/s of {WANTED_PER_S:.0f} wanted ({able / WANTED_PER_S:.1f}x)"
    )
    return able >= WANTED_PER_S


def push(bodies: dict[str, bytes], tokens: dict[str, str], port: int, *, seq: int) -> None:
    """Push a piece of each node, some of them at once."""

    def some(hosts: list[str]) -> None:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for host in hosts:
            headers = {"Authorization": f"Bearer {tokens[host]}"}
            line.request("PUT", f"/ingest/v1/{CLUSTER}/{host}/here/{seq}", bodies[host], headers)
            answer = line.getresponse()
            text = answer.read()
            assert answer.status == 200, (answer.status, text)
            said = json.loads(text)
            assert not said["set_aside"], said
        line.close()

    hosts = list(bodies)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(some, [hosts[first::AT_ONCE] for first in range(AT_ONCE)]))


@contextmanager
def serving(address: str, *, clock: float) -> Iterator[tuple[int, int]]:
    """Run the centre in a process of its own; yield its port, and the number of the process."""
    door = socket.create_server(("127.0.0.1", 0), backlog=1024)
    child = os.fork()
    if child == 0:
        import uvicorn

        from lowtide.serve.app import make_app
        from lowtide.serve.gate import Doorkeeper
        from lowtide.serve.settings import Settings
        from lowtide.store.database import Database

        begun = time.monotonic()
        keeper = Doorkeeper(
            Database(address),
            Settings(cluster=CLUSTER),
            clock=lambda: clock + 30 * (time.monotonic() - begun),
        )
        server = uvicorn.Server(uvicorn.Config(make_app(keeper), log_level="warning"))
        server.run([door])
        os._exit(0)
    port = door.getsockname()[1]
    door.close()
    try:
        yield port, child
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def cpu_s(process: int) -> float:
    """Return what a process has used, and those that it started and waited for."""
    parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, parts[11:15])) / _TICK


def server_cpu_s(address: str) -> float:
    """Return what PostgreSQL has used."""
    import psycopg

    with psycopg.connect(address) as line:
        [(own,)] = line.execute("SELECT pg_backend_pid()").fetchall()
        parent = int(Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()[1])
    return cpu_s(parent) + sum(cpu_s(each) for each in children(parent))


def children(parent: int) -> list[int]:
    """Return the processes that one has started."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(each) for each in text.split() if Path(f"/proc/{each}/stat").exists()]


if __name__ == "__main__":
    sys.exit(main())
