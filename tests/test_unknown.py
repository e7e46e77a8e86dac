"""Take any source away, and nothing turns it into a number or into a sentence.

A made-up node is watched by the real watcher, kept in a real store and shown by every command and
on the page of metrics. What depends on a source is found by changing what the source says. Without
the source each of these values has to be missing, or marked as lacking a part. So a column that is
added later is looked at without being named here.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import lowtide as lt
from lowtide.attribution import NodePower
from lowtide.cli import whole
from lowtide.cli.node import COLUMNS, document_of, rows_of, shown_columns
from lowtide.cli.output import cells_of, plain_table
from lowtide.grid import Grid
from lowtide.monitor.metrics import Exposition
from lowtide.monitor.snapshot import PRESSURES, GpuCounts, JobFacts, NodeCounts, Snapshot, Unit
from lowtide.monitor.tick import Tick
from lowtide.store import Store
from lowtide.watching.emissions import Emissions
from lowtide.watching.watcher import Watcher
from support.snapshots import GIB

START = 1_720_051_200.0  # 2024-07-04T00:00Z
STEP_S = 60.0
TICKS = 12
JOB = Unit(source="slurm", job_id="7", started=START, user="ada", name="train")
UNITS = (
    JOB,
    Unit(source="slurm", job_id="8", started=START, user="bob", name="md"),
    Unit(source="container", job_id="web", started=START, user="eve", name="web"),
)
SOURCES = (
    *("gpu", "gpu_process", "power", "grid", "memory", "io", "network", "psi", "reservation"),
    *("facts", "cpu", "load"),
)
# What is known from elsewhere, and only changes with the source: energy is shared out by what is
# kept for whom and by who holds a GPU. To CEEMS whoever has no limit may have all memory.
SHARED = re.compile(
    r"(energy|measured|carbon|marginal|power|emissions|unpriced|idle|unattributed|phases|waiting|"
    r"at_once|memory_total|Drew|Emitted|AvgW|MaxW|CO2e|saves|emits|_w$|_j$|_g$|W$)",
    re.IGNORECASE,
)
MAY_CHANGE = {
    # What nobody can share out is nobody's.
    "cpu": re.compile("unattributed"),
    "load": re.compile("unattributed"),
    "reservation": SHARED,
    "gpu_process": SHARED,
    # Without Slurm's word they are those that the watcher saw.
    "facts": re.compile(r"cpu|mem|gpu|core|eff|asked|_of_|Req", re.IGNORECASE),
}
# Whoever speaks of these without having looked claims something.
CLAIMS = {
    "gpu": r"GPU",
    "gpu_process": r"used .*GPU|GPUs were|holds no GPU",
    "memory": r"\d % of the memory|near its memory",
    "psi": r"waited for (memory|storage)|nor waited",
    "power": r"\d W\b",
    "grid": r"Emitted \S*\d",
}
TELLS_NOT = re.compile(r"not known|nobody can tell|asked for no GPU|it asked for\.$|---")


@dataclass(frozen=True)
class World:
    """A node whose sources say `twice` of what they would, or nothing where they are gone."""

    gone: frozenset[str] = frozenset()
    doubled: str = ""

    def factor(self, source: str) -> float:
        return np.nan if source in self.gone else 2.0 if source == self.doubled else 1.0

    def snapshot(self, number: int) -> Snapshot:
        passed = STEP_S * number
        each = np.array([1.0, 2.0, 3.0])
        psi = self.factor("psi")
        network = None if "network" in self.gone else each * 100 * passed * self.factor("network")
        return Snapshot(
            time=START + passed,
            node=NodeCounts(
                cpus=32,
                busy_s=14.0 * passed * self.factor("load"),
                memory_bytes=64 * GIB,
                available_bytes=40 * GIB,
                received_bytes=1e4 * passed * self.factor("network"),
                sent_bytes=1e4 * passed * self.factor("network"),
                read_bytes=1e3 * passed * self.factor("io"),
                written_bytes=1e3 * passed * self.factor("io"),
                pressure_s={} if "psi" in self.gone else {"cpu": 0.01 * passed * psi},
            ),
            units=UNITS,
            cpu_s=each * passed * self.factor("cpu"),
            memory_bytes=(1 + 0.1 * number) * each * GIB * self.factor("memory"),
            read_bytes=each * 1000 * passed * self.factor("io"),
            written_bytes=each * 500 * passed * self.factor("io"),
            processes=np.ones(3),
            reserved_cpus=np.array([2.0, 3.0, 4.0]) * self.factor("reservation"),
            reserved_bytes=4 * each * GIB * self.factor("reservation"),
            gpus=tuple(self.gpus(number)),
            gpus_unread=None if "gpu" in self.gone else 0,
            **{f"{name}_wait_s": np.full(3, 0.02 * psi * passed) for name in PRESSURES},
            received_bytes=network,
            sent_bytes=network,
        )

    def gpus(self, number: int) -> Iterator[GpuCounts]:
        if "gpu" in self.gone:
            return
        holders: dict[int, float] = {0: 0.75, 1: 0.25}
        if self.doubled == "gpu_process":
            holders = {0: 0.5, 1: 0.5}
        for place in range(2):
            yield GpuCounts(
                name=f"gpu-{place}",
                uuid=f"GPU-{place}",
                busy=(0.2 + 0.01 * number) * self.factor("gpu"),
                memory_bytes=4 * GIB * self.factor("gpu"),
                total_bytes=40 * GIB * self.factor("gpu"),
                holders={} if "gpu_process" in self.gone else holders,
                users_known="gpu_process" not in self.gone,
            )

    def facts(self) -> Iterator[JobFacts]:
        if "facts" in self.gone:
            return
        for unit, gpus in zip(UNITS[:2], (2.0, 0.0), strict=True):
            yield JobFacts(
                source="slurm",
                job_id=unit.job_id,
                state="completed",
                user=unit.user,
                account="phys" if self.doubled != "facts" else "bio",
                partition="main",
                submitted=START - 60,
                started=START,
                ended=START + TICKS * STEP_S,
                time_limit_s=3600.0 * self.factor("facts"),
                cpus=2.0 * self.factor("facts"),
                memory_bytes=8 * GIB * self.factor("facts"),
                gpus=gpus * self.factor("facts"),
            )

    def ticks(self) -> Iterator[Tick]:
        signal = (
            lt.Signal.from_values([300 * self.factor("grid")] * 4, start=START, step_s="1h")
            if ("grid" not in self.gone)
            else None
        )
        watcher = Watcher(
            reader=_Told([self.snapshot(number) for number in range(TICKS + 1)]),
            power=_Drawn(self),
            emissions=Emissions(grid=None if signal is None else Grid(average=signal)),
            idle_w=50.0,
            host="n1",
        )
        for _ in range(TICKS + 1):
            if (tick := watcher.tick()) is not None:
                yield tick


@dataclass
class _Told:
    snapshots: list[Snapshot]

    def read(self) -> Snapshot:
        return self.snapshots.pop(0)


@dataclass
class _Drawn:
    world: World
    problems: list[str] = field(default_factory=list)
    rejected: int = 0
    calls: int = 0

    def read(self) -> NodePower:
        self.calls += 1
        watts = (200.0 if self.calls % 8 < 4 else 300.0) * self.world.factor("power")
        cards = {} if "gpu" in self.world.gone or "power" in self.world.gone else {"gpu-0": 40.0}
        return NodePower(node_w=watts, gpu_w=cards, measured=True)


@cache
def command_line() -> Any:
    """Return the command, made once: that takes longer than most of what it does here."""
    return get_command(whole())


def printed(arguments: list[str]) -> str:
    with redirect_stdout(io.StringIO()) as out:
        command_line().main(arguments, standalone_mode=False)
    return out.getvalue()


@cache
def shown(world: World) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return every value that is shown of a world, by where it stands, and every sentence."""
    values: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "store.sqlite")
        page = Exposition(compat=("ceems",))
        with Store.open(place) as store:
            for tick in world.ticks():
                store.append(tick)
                text = page.render(tick).whole.decode()
            store.put_facts(world.facts())
        window = ("-S", "2024-07-03", "-E", "2024-07-05")
        commands = {
            "jobs": ("jobs", "-o", "ALL", *window),
            "show": ("show", "7"),
            "usage": ("usage", *window),
        }
        for name, command in commands.items():
            for form in ("--json", "-P", ""):
                said = printed([*command, "--store", place, *([form] * bool(form))])
                if form == "--json":
                    _flatten(f"{name}{form}", json.loads(said), values)
                elif form == "-P":
                    rows = [line.split("|") for line in said.splitlines()]
                    _table(f"{name}{form}", rows[0], rows[1:], values)
                else:
                    rows = [re.split(r"\s{2,}", line.strip()) for line in said.splitlines()]
                    rows = [row for row in rows if len(row) > 5 and not said.startswith("Job ")]
                    if rows:
                        _table(f"{name} text", rows[0], rows[1:], values)
                    if name == "show":
                        sentences = tuple(re.split(r"(?<=\.)\s", " ".join(said.split())))
    for line in text.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            values[f"metrics {series}"] = float(value)
    _flatten("node --json", json.loads(json.dumps(document_of(tick))), values)
    _table("node -P", *plain_table(rows_of(tick), COLUMNS), values)
    _table("node text", *cells_of(shown_columns(tick), rows_of(tick)), values)
    return values, sentences


def _flatten(where: str, value: Any, values: dict[str, Any]) -> None:
    if isinstance(value, dict):
        # Rows are told apart by whose they are: their order may follow what is unknown.
        for key, inner in value.items():
            _flatten(f"{where}.{key}", inner, values)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            keys = ("job_id", "user", "name", "question") if isinstance(inner, dict) else ()
            label = next((inner[key] for key in keys if inner.get(key)), number)
            _flatten(f"{where}[{label}]", inner, values)
    else:
        values[where] = value


def _table(where: str, header: Any, rows: Any, values: dict[str, Any]) -> None:
    for number, row in enumerate(rows):
        label = f"{row[0]} {row[1]}" if where.startswith("show") else row[0] or number
        for name, cell in zip(header, row, strict=False):
            values[f"{where}[{label}].{name}"] = cell


def _missing(value: Any) -> bool:
    if value is None or value in ("", "---", "estimated"):
        return True
    if isinstance(value, str):
        return value.startswith((">", "---")) or "---/" in value
    return isinstance(value, float) and np.isnan(value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-9, equal_nan=True))
    return bool(one == other)


def invented(gone: frozenset[str]) -> list[str]:
    """Return what is shown that nobody can know without the sources."""
    full, _ = shown(World())
    less, sentences = shown(World(gone=gone))
    found = []
    for source in sorted(gone):
        other, _ = shown(World(doubled=source))
        may = MAY_CHANGE.get(source)
        for where, value in full.items():
            depends = where not in other or not _same(value, other[where])
            if not depends or _missing(value) or _is_words(where):
                continue
            if may is not None and may.search(where):
                continue
            if not _missing(less.get(where)) and f"{less[where]}/" not in str(value):
                found.append(f"{source}: {where} is {less[where]!r}, with it {value!r}")
        claim = CLAIMS.get(source, "(?!)")
        found += [
            f"{source}: {sentence}"
            for sentence in sentences
            if re.search(claim, sentence) and not TELLS_NOT.search(sentence)
        ]
    return found


def _is_words(where: str) -> bool:
    return bool(re.search(r"\.(evidence|answer|notes|problems)\b|notes\[|problems\[", where))


def test_every_source_is_shown_somewhere() -> None:
    """Otherwise nothing that follows says anything."""
    full, _ = shown(World())
    for source in SOURCES:
        other, _ = shown(World(doubled=source))
        changed = [where for where, value in full.items() if not _same(value, other.get(where))]
        assert len(changed) >= 4, source


@pytest.mark.parametrize("source", SOURCES)
def test_what_nobody_reads_is_no_number(source: str) -> None:
    assert invented(frozenset([source])) == []


@pytest.mark.parametrize("seed", range(3))
def test_nor_where_several_are_gone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gone = frozenset(each for each in SOURCES if rng.random() < 0.5)
    assert invented(gone) == []
