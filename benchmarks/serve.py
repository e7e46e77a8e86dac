"""What a cluster's centre carries: pieces a second, a million jobs, and how large its pages are.

A real PostgreSQL is started, and the server in a process of its own. Figures stand beside what the
same machine does in the same run with nothing of lowtide's: the same bytes inserted and committed
one by one, and copied; the same rows asked for by plain SQL. Rates are told by CPU time, so that
others on the machine matter less. Everything is made here, from a seed. Exits with 1 if a figure
is beyond its limit.

    python benchmarks/serve.py [ingest] [jobs] [pages] [waste]
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from lowtide.serve import schema
from lowtide.serve.ingest import Arrival, PieceOrigin, receive_all
from lowtide.serve.kept_looks import keep_looks
from lowtide.serve.kept_waste import keep_findings
from lowtide.serve.ledger import ref_of
from lowtide.serve.overview import WasteBook
from lowtide.serve.settings import Exempt
from lowtide.serve.tokens import READ_ALL, begin_session, make_token, node_scope
from lowtide.serve.viewer import Rights, Viewer
from lowtide.serve.wanted import Wanted
from lowtide.store.bulk import insert_rows
from lowtide.store.database import Database
from lowtide.store.pieces import Piece, seal, unseal
from support.postgres import running_postgres
from support.pushed import CLUSTER, Node, centre
from support.ticks import START, facts, unit

WANTED_PER_S = 10_000 / 60
CORES = 2
NODES = int(os.environ.get("NODES", "240"))
# Long enough for chunks to come twice.
MINUTES = int(os.environ.get("MINUTES", "21"))
TICK_S = 10.0
PER_PIECE = 6
JOBS = 4
AT_ONCE = 96
_TICK = os.sysconf("SC_CLK_TCK")
MILLION = int(os.environ.get("JOBS", "1000000"))
MONTH_S = 30 * 86400
WIDE = 32
BRIEF = 30
HOURS = int(os.environ.get("HOURS", "24"))
ASKED = 200
# Milliseconds of an idle machine, bytes, and MB.
# Nodes, and hours, of jobs whose courses are there beside a million of which none is.
WASTING, WASTED_HOURS = 60, 12
MOST = {"waste": 300, "p50": 15, "month": 50, "job": 500, "day": 1, "page": 150}
MOST_PAGE_BYTES, MOST_FIRST_BYTES = 60_000, 120_000


def main() -> int:
    """Print figures and return the exit status."""
    parts: dict[str, Callable[[str], bool]] = {
        "ingest": ingest, "jobs": jobs, "pages": pages, "waste": waste,
    }  # fmt: skip
    fine = []
    for name in sys.argv[1:] or list(parts):
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
            told += drained(node)
        node.store.close()
    return told


def of_host(piece: Piece, host: str, *, own: bool = True) -> bytes:
    """Return a piece as another node would tell it.

    Args:
        own: Whether its jobs are its own, or the same as the others'.
    """
    named = msgspec.structs.replace
    mark = host if own else ""
    return seal(
        named(
            piece,
            host=host,
            units=[
                named(each, job_id=f"{mark}{each.job_id}", key=f"{mark}{each.key}")
                for each in piece.units
            ],
            facts=[
                named(each, known={**each.known, "job_id": f"{mark}{each.known['job_id']}"},
                      nodes=[host] if own else each.nodes)
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
            scope = node_scope(CLUSTER, host, tells_all=False)
            tokens[host] = make_token(
                database, owner=f"{CLUSTER}/{host}", scope=scope, lasts_s=1e6, now=START
            )
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
    flat = [body for some in bodies.values() for body in some]
    one_ms, copied_ms = bare(address, flat, commit=True), bare(address, flat, commit=False)
    print(f"ingest: {count / wall_s:.0f} pieces/s with everything else on this machine")
    print(f"  CPU per piece: {mine_ms:.2f} ms of the server, {base_ms:.2f} ms of PostgreSQL")
    print(f"  the same bytes alone: {one_ms:.2f} ms with a commit each, {copied_ms:.3f} ms copied")
    ratio = (mine_ms + base_ms) / one_ms
    print(f"  taken apart, checked and summed up: {ratio:.1f} times a bare INSERT and commit")
    print(f"  two cores carry {able:.0f} pieces/s, {able / WANTED_PER_S:.1f} times those wanted")
    return able >= WANTED_PER_S


def bare(address: str, bodies: Sequence[bytes], *, commit: bool) -> float:
    """Return how much CPU time it takes to only keep bytes, milliseconds each, on both sides.

    Args:
        commit: Whether each is committed by itself, or all are copied.
    """
    with psycopg.connect(address, autocommit=True) as line:
        line.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, time float8, body bytea)")
        before = time.process_time() + server_cpu_s(address)
        if commit:
            for body in bodies:
                line.execute("INSERT INTO bare (time, body) VALUES (%s, %s)", (START, body))
        else:
            with line.cursor() as cursor, cursor.copy("COPY bare (time, body) FROM STDIN") as copy:
                for body in bodies:
                    copy.write_row((START, body))
        spent = time.process_time() + server_cpu_s(address) - before
        line.execute("DROP TABLE bare")
    return 1e3 * spent / len(bodies)


def jobs(address: str) -> bool:
    """Ask a centre of a million jobs what users and operators ask."""
    now = START + 12 * MONTH_S
    with centre(address) as database:
        fill(database, MILLION)
        rows_bytes = table_bytes(address, "centre_jobs") / MILLION
        users = [f"user{number}" for number in range(0, 2000, 2000 // ASKED)]

        def mine(user: str) -> float:
            viewer = Viewer(database, user, Rights(), now)
            begun = time.perf_counter()
            assert 0 < len(viewer.jobs(Wanted())) <= 50
            return 1e3 * (time.perf_counter() - begun)

        def plain(user: str) -> float:
            begun = time.perf_counter()
            line.execute(
                'SELECT * FROM centre_jobs WHERE "user" = %s ORDER BY over DESC, ref DESC LIMIT 50',
                (user,),
            ).fetchall()
            return 1e3 * (time.perf_counter() - begun)

        with psycopg.connect(address) as line:
            for each in (mine, plain):
                each(users[0])
            before = time.process_time() + server_cpu_s(address)
            asked = [mine(user) for user in users]
            asked_ms = 1e3 * (time.process_time() + server_cpu_s(address) - before) / len(users)
            alone = [plain(user) for user in users]
            p50, p99 = np.percentile(asked, (50, 99))
            of_plain = np.percentile(alone, 50)
            viewer = Viewer(database, "root", Rights(role="owner"), now)
            # The last month that is over, by the calendar; and 30 days that begin within one.
            end = float(schema.begin_of_month(now))
            start = float(schema.begin_of_month(end - 1))
            days_ms, days_cpu_ms, _ = summed(viewer, address, end - 40 * 86400, end - 10 * 86400)
            month_ms, summed_ms, told = summed(viewer, address, start, end)
            begun = time.perf_counter()
            whole = line.execute(
                "SELECT account, sum(energy_j), count(*) FROM centre_jobs "
                "WHERE over >= %s AND over < %s GROUP BY account", (start, end),
            ).fetchall()  # fmt: skip
            by_rows_ms = 1e3 * (time.perf_counter() - begun)
    apart = max(
        abs(row["energy_j"] / energy - 1)
        for row in told
        for account, energy, _ in whole
        if account == row["account"]
    )
    same = {row["account"]: row["jobs"] for row in told} == {row[0]: row[2] for row in whole}
    print(f"{MILLION} jobs: {rows_bytes:.0f} bytes each with indexes, of {MOST['job']} at most")
    print(
        f"  my last 50: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {asked_ms:.1f} ms of CPU time; plain "
        f"SQL {of_plain:.1f} ms"
    )
    print(
        f"  a month by account: {month_ms:.1f} ms, {summed_ms:.1f} ms of CPU time; from the jobs "
        f"themselves {by_rows_ms:.1f} ms"
    )
    print(
        f"  30 days that begin within a month: {days_ms:.1f} ms, {days_cpu_ms:.1f} ms of CPU time"
    )
    print(f"  the two differ by {apart:.1e}, and in no count: {same}")
    # On a machine that does other things, CPU time is what an idle one would take.
    fine = min(p50, asked_ms) <= MOST["p50"] and min(month_ms, summed_ms) <= MOST["month"]
    return bool(fine and rows_bytes <= MOST["job"] and apart < 1e-9 and same)


def summed(
    viewer: Viewer, address: str, start: float, end: float
) -> tuple[float, float, list[dict[str, Any]]]:
    """Return how long it takes to sum up by account, by the clock and in CPU time, and the sums."""
    spent = []
    before = time.process_time() + server_cpu_s(address)
    for _ in range(20):
        begun = time.perf_counter()
        told = viewer.usage("account", start=start, end=end)
        spent.append(1e3 * (time.perf_counter() - begun))
    cpu_ms = 1e3 * (time.process_time() + server_cpu_s(address) - before) / len(spent)
    return float(np.median(spent)), cpu_ms, told


def fill(database: Database, count: int, *, ends: float = START + 12 * MONTH_S) -> None:
    """Write jobs of a year, and the sums that go with them."""
    chance = np.random.default_rng(7)
    at_once = 50_000
    columns = schema.jobs.c.keys()
    texts = {"source": "slurm", "state": "completed", "partition": "main", "cluster": CLUSTER}
    # As they begin and end one after the other, and not in any order: of that indexes are fuller.
    all_begins = ends - 12 * MONTH_S + np.sort(chance.uniform(0, 12 * MONTH_S - 7200, count))
    with database.taking_long():
        for first in range(0, count, at_once):
            size = min(at_once, count - first)
            begins = all_begins[first : first + size]
            length = chance.uniform(60, 7000, size)
            owner = (2000 * chance.power(0.6, size)).astype(int)
            joules = length * chance.uniform(20, 500, size)
            rows = []
            for place in np.argsort(begins + length).tolist():
                number = first + place + 1
                ended = float(begins[place] + length[place])
                row = dict.fromkeys(columns) | texts
                row |= {
                    "number": number, "job_id": str(number),
                    "user": f"user{owner[place]}", "account": f"account{owner[place] % 40}",
                    "name": f"train-{number % 97}", "hosts": f",n{number % 10_000:05},",
                    "over": ended,
                    "ended": ended, "started": float(begins[place]),
                    "submitted": float(begins[place] - 60), "settled": True, "looks": 100,
                    "elapsed_s": float(length[place]), "seen_s": float(length[place]),
                    "cpus": 4.0, "memory_bytes": 8e9, "energy_j": float(joules[place]),
                    "measured_j": float(joules[place]), "carbon_g": float(joules[place] / 1e4),
                    "cpu_s": float(3 * length[place]), "first_seen": float(begins[place]),
                    "last_seen": ended, "unmetered_s": 0.0, "unpriced_j": 0.0,
                    "time_limit_s": 14400.0, "exit_code": 0, "peak_cpus": 4.0,
                    "mean_memory_bytes": 3e9, "peak_memory_bytes": 4e9, "peak_power_w": 600.0,
                }  # fmt: skip
                rows.append({**row, "ref": ref_of(row)})
            with database.writing() as connection:
                months = {schema.month_of(float(each)) for each in begins + length}
                schema.make_partitions(connection, [each for each in months if each])
                insert_rows(connection, schema.jobs, rows)
        of = {"energy_j", "measured_j", "carbon_g", "cpu_s", "unmetered_s", "unpriced_j"}
        month = "extract(epoch FROM date_trunc('month', to_timestamp(over) AT TIME ZONE 'UTC'))"
        begin_of = {
            schema.usage_hour: "floor(over / 3600) * 3600",
            schema.usage_day: "floor(over / 86400) * 86400",
            schema.usage_month: month,
        }
        for table in schema.USAGE:
            sums = ", ".join(f"sum({name})" if name in of else "0" for name in schema.SUMMED)
            named = ", ".join(f'"{name}"' for name in schema.DIMENSIONS)
            with database.writing() as connection:
                connection.exec_driver_sql(
                    f"INSERT INTO {table.name} (begins, {named}, {', '.join(schema.COUNTED)}, "
                    f"{', '.join(schema.SUMMED)}) SELECT {begin_of[table]}, "
                    f"{named}, count(*), count(*), 0, 0, {sums} FROM centre_jobs "
                    # In the order in which they come.
                    f"GROUP BY 1, {named} ORDER BY 1"
                )
        database.tidy()
        with database.writing() as connection:
            # What a server does by itself once so much has changed.
            connection.exec_driver_sql("ANALYZE")


def table_bytes(address: str, name: str) -> float:
    """Return what a table takes with all its partitions and indexes."""
    with psycopg.connect(address) as line:
        [(size,)] = line.execute(
            "SELECT coalesce((SELECT sum(pg_total_relation_size(relid)) FROM "
            "pg_partition_tree(%(name)s)), pg_total_relation_size(%(name)s))", {"name": name},
        ).fetchall()  # fmt: skip
    return float(size)


def pages(address: str) -> bool:
    """Look at a job of many nodes and a day, and at the first page."""
    chance = np.random.default_rng(3)
    length_s = 3600.0 * HOURS
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "node.sqlite", "node")
        names = [f"n{number:05}" for number in range(WIDE)]
        known = {"started": START, "nodes": tuple(names), "partition": "main", "account": "phys"}
        units = [unit(1, user="ada")]
        node.put_facts([facts(1, state="running", user="ada", **known)])
        told: list[Piece] = []
        for place in range(1, int(length_s / TICK_S) + 1):
            watts, cpus = chance.normal(300, 20), chance.uniform(3.6, 4.0)
            held = 4e9 * chance.normal(1, 0.01)
            # Beside it, for a few minutes, a job of which nothing is kept.
            here = [*units, unit(2, user="ada")] if place <= BRIEF else units
            node.tick(here, watts={"1": watts}, cpus=cpus, memory_bytes=held)
            if place % 360 == 0:
                told += drained(node)
        while_it_ran = len(told)
        over = facts(1, state="completed", user="ada", ended=node.watcher.time, **known)
        node.put_facts([over])
        node.tick([])
        told += drained(node)
        node.store.close()
    now = START + length_s + 60

    def take(database: Database, first: int, last: int) -> None:
        for seq, piece in enumerate(told[first:last], first + 1):
            some = [
                Arrival(
                    PieceOrigin(cluster=CLUSTER, host=host, incarnation="here", seq=seq),
                    of_host(piece, host, own=False),
                )
                for host in names
            ]
            answers = receive_all(database, some, now=now)
            assert all(each.taken and not each.reason for each in answers), answers

    with centre(address) as database:
        take(database, 0, while_it_ran)
        day_mb = sum(table_bytes(address, name) for name in ("chunks", "ticks")) / 1e6
        day_mb *= 24 / HOURS / WIDE
        token = make_token(database, owner="ada", scope=READ_ALL, lasts_s=1e6, now=now)
        session = begin_session(database, "ada", now=now)
    with serving(address, clock=now) as (port, server):
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def asked(path: str) -> tuple[float, bytes]:
            shown = {"Cookie": f"lowtide={session}", "Authorization": ""}
            if path.startswith("/api"):
                shown = {"Authorization": f"Bearer {token}"}
            begun = time.perf_counter()
            line.request("GET", path, headers={k: v for k, v in shown.items() if v})
            answer = line.getresponse()
            text = answer.read()
            assert answer.status == 200, (path, answer.status, text[:300])
            return 1e3 * (time.perf_counter() - begun), text

        def first_look(path: str) -> tuple[float, float]:
            before = cpu_s(server) + server_cpu_s(address)
            ms, _ = asked(path)
            return ms, 1e3 * (cpu_s(server) + server_cpu_s(address) - before)

        jobs = json.loads(asked("/api/v1/jobs")[1])["jobs"]
        job, brief = sorted(jobs, key=lambda each: int(each["job_id"]))
        assert len(job["hosts"]) == WIDE
        # What a server loads once is loaded before.
        asked(f"/jobs/{brief['ref']}")
        took = {}
        with centre(address) as database:
            before = time.process_time() + server_cpu_s(address)
            # As the centre does each minute, of what came since.
            keep_looks(database, now=now)
            so_far_ms = 1e3 * (time.process_time() + server_cpu_s(address) - before)
        going_ms, going_cpu_ms = first_look(f"/jobs/{job['ref']}")
        with centre(address) as database:
            take(database, while_it_ran, len(told))
            before = time.process_time() + server_cpu_s(address)
            # As the centre does each minute.
            assert keep_looks(database, now=now) == 1
            kept_ms = 1e3 * (time.process_time() + server_cpu_s(address) - before)
        # It is another row now, of which nothing is remembered.
        first_ms, first_cpu_ms = first_look(f"/jobs/{job['ref']}")
        for path in (f"/jobs/{job['ref']}", f"/api/v1/jobs/{job['ref']}/course?points=600"):
            spent = [asked(path) for _ in range(7)]
            took[path] = (float(np.median([ms for ms, _ in spent])), len(spent[0][1]))
        text = asked("/")[1]
        found = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text.decode()))
        first = len(text) + sum(len(asked(each)[1]) for each in found)
        line.close()
    (page_ms, page_bytes), (course_ms, course_bytes) = took.values()
    print(f"a job of {WIDE} nodes and {HOURS} hours: its page {page_ms:.0f} ms, {page_bytes} bytes")
    print(f"  at the first look {first_ms:.0f} ms, {first_cpu_ms:.0f} ms of CPU time")
    print(f"  worked out by the centre when it ended: {kept_ms:.0f} ms of CPU time")
    print(f"  first of all, while it went on: {going_ms:.0f} ms, {going_cpu_ms:.0f} ms of CPU time")
    print(f"  brought together so far, all at once: {so_far_ms:.0f} ms of CPU time")
    print(f"  its course for a plot: {course_ms:.0f} ms, {course_bytes} bytes")
    print(f"a node's day: {day_mb:.2f} MB with one job on it")
    print(f"the first page with all it fetches: {first} bytes")
    looks_ms = (page_ms, min(first_ms, first_cpu_ms), min(going_ms, going_cpu_ms))
    fine = max(looks_ms) <= MOST["page"] and page_bytes <= MOST_PAGE_BYTES
    return fine and day_mb <= MOST["day"] and first <= MOST_FIRST_BYTES


def waste(address: str) -> bool:
    """Ask what was wasted, among a million jobs, of which the heaviest have courses."""
    length_s = 3600.0 * WASTED_HOURS
    now = START + length_s + 120
    told: list[Piece] = []
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "node.sqlite", "node")
        units = [unit(number, user=f"user{number}") for number in range(JOBS)]
        for place in range(1, int(length_s / TICK_S) + 1):
            node.tick(units, watts={str(number): 5e3 for number in range(JOBS)}, cpus=0.3)
            if place % 360 == 0:
                told += drained(node)
        for number in range(JOBS):
            over = facts(number, state="completed", user=f"user{number}", cpus=16.0, started=START,
                         ended=node.watcher.time, account="phys", nodes=("node",))  # fmt: skip
            node.put_facts([over])
        node.tick([])
        told += drained(node)
        node.store.close()
    with centre(address) as database:
        fill(database, MILLION, ends=now)
        with database.writing() as connection:
            # What comes now is none of these.
            numbers = f"SELECT setval(pg_get_serial_sequence('jobs', 'id'), {2 * MILLION})"
            connection.exec_driver_sql(numbers)
        hosts = [f"w{number:03}" for number in range(WASTING)]
        for seq, piece in enumerate(told, 1):
            some = [
                Arrival(
                    PieceOrigin(cluster=CLUSTER, host=host, incarnation="here", seq=seq),
                    of_host(piece, host),
                )
                for host in hosts
            ]
            assert all(
                each.taken and not each.reason for each in receive_all(database, some, now=now)
            )

        def shown(days: int, **who: Any) -> tuple[float, float, list[Any]]:
            viewer = Viewer(database, who.get("user", ""), Rights(role=who["role"]), now)
            before = time.process_time() + server_cpu_s(address)
            begun = time.perf_counter()
            # In a process that remembers nothing.
            found = WasteBook(Exempt()).waste(viewer, start=now - days * 86400, end=now)
            ms = 1e3 * (time.perf_counter() - begun)
            return ms, 1e3 * (time.process_time() + server_cpu_s(address) - before), found

        whose: dict[str, dict[str, Any]] = {
            "an operator": {"role": "owner"}, "a user": {"role": "user", "user": "user1"},
        }  # fmt: skip
        read_ms, _, read = shown(7, role="owner")
        begun = time.monotonic()
        kept = 0
        while (more := keep_findings(database, now=now)) > 0:
            kept += more
        each_ms = 1e3 * (time.monotonic() - begun) / max(kept, 1)
        print(f"waste among {MILLION} jobs, {WASTING * JOBS} of them heavy, with courses")
        print(f"  all courses read: {read_ms:.0f} ms; kept of {kept} jobs, {each_ms:.1f} ms each")
        spent = []
        for name, who in whose.items():
            for days in (7, 30, 90):
                ms, cpu_ms, found = min(shown(days, **who) for _ in range(3))
                spent.append(min(ms, cpu_ms))
                print(
                    f"  {name}, {days} days: {ms:.0f} ms, {cpu_ms:.0f} ms of CPU, {len(found)} rows"
                )
        same = repr(shown(7, role="owner")[2]) == repr(read)
        print(f"  what is kept is what is read: {same}")
    return same and max(spent) <= MOST["waste"]


def drained(node: Node) -> list[Piece]:
    """Return what a node has to tell."""
    told = []
    while (parcel := node.outbox.next(now=node.watcher.time)) is not None:
        told.append(unseal(parcel.body))
        node.outbox.acknowledge(parcel)
    return told


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
