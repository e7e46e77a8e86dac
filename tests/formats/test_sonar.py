"""Samples of sonar's."""

from __future__ import annotations

import gzip
import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.sonar import read_ticks
from lowtide.formats.sonar_samples import _unpacked, read_samples, recognises
from lowtide.formats.source import Source
from lowtide.monitor.tick import Tick
from lowtide.store import Store
from lowtide.units import parse_time

KIB = 1024.0
START = parse_time("2024-03-01T10:00:00+01:00")


def stamp(minutes: float) -> str:
    whole, rest = divmod(round(minutes * 60), 3600)
    return f"2024-03-01T{10 + whole:02}:{rest // 60:02}:{rest % 60:02}+01:00"


def line(minutes: float, job: int, cputime: int, *more: str, host: str = "n1") -> str:
    return (
        f"v=0.13.0,time={stamp(minutes)},host={host},user=ann,cmd=md,job={job},pid={job}0,"
        f"cputime_sec={cputime}" + "".join(f",{each}" for each in more)
    )


def put(folder: Path, *lines: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def of(tick: Tick, job: str, column: str) -> float:
    (place,) = [place for place, unit in enumerate(tick.units) if unit.job_id == job]
    return float(getattr(tick, column)[place])


def test_use_comes_from_differences(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        line(0, 7, 100, "rssanonkib=2048", "cores=8"),
        line(5, 7, 700, "rssanonkib=4096", '"gpus=0,1"', "gpu%=150", "gpukib=1024"),
        line(5, 8, 60),
        line(10, 7, 1000),
    )
    first, second, third = read_ticks([path])
    assert [first.time - START, second.time - START] == [0, 300]
    assert (first.since, second.since) == (first.time, first.time)
    assert (first.node.cpus, first.host, first.units[0].name) == (8, "n1", "md")
    # Nobody knows when the first 100 s were used.
    assert (of(first, "7", "watched_cpu_s"), math.isnan(of(first, "7", "cpus_busy"))) == (0, True)
    assert (of(second, "7", "watched_cpu_s"), of(second, "7", "cpus_busy")) == (600, 2)
    assert (of(first, "7", "cpu_s"), of(second, "7", "cpu_s")) == (100, 700)
    assert of(first, "7", "memory_bytes") == 2048 * KIB
    assert (of(second, "7", "gpus_busy"), of(second, "7", "reserved_gpus")) == (1.5, 2)
    assert of(second, "7", "gpu_memory_bytes") == 1024 * KIB
    # A job that was not there before used all its time since.
    assert (of(second, "8", "cpu_s"), of(second, "8", "cpus_busy")) == (60, 0.2)
    assert [unit.job_id for unit in third.units] == ["7"]
    assert third.units[0].started == START
    assert of(third, "7", "reserved_gpus") == 0


def test_power_is_unknown(tmp_path: Path) -> None:
    (tick,) = read_ticks([put(tmp_path, line(0, 7, 100))])
    for column in ("energy_j", "carbon_g", "read_bytes", "reserved_cpus"):
        assert np.isnan(getattr(tick, column)).all(), column
    assert np.isnan(tick.shares.power_w).all()
    assert math.isnan(tick.node_energy_j)
    assert not tick.shares.measured
    # A job seen once has no duration: the tick has none.
    assert tick.since == tick.time


def test_a_gap_is_no_data(tmp_path: Path) -> None:
    rows = [line(at, 7, 60 * at) for at in (0, 5, 10, 15, 45, 50)]
    ticks = list(read_ticks([put(tmp_path, *rows)]))
    assert [tick.time - tick.since for tick in ticks] == [0, 300, 300, 300, 0, 300]
    assert math.isnan(of(ticks[4], "7", "cpus_busy"))
    # What was used meanwhile is kept apart, as the time is; it is still the same job.
    watched = [of(tick, "7", "watched_cpu_s") for tick in ticks]
    assert watched == [0, 300, 600, 900, 900, 1200]
    assert [of(tick, "7", "cpu_s") for tick in ticks] == [0, 300, 600, 900, 2700, 3000]
    assert len({tick.units[0].key for tick in ticks}) == 1


def test_a_store_shows_the_gap(tmp_path: Path) -> None:
    rows = [line(at, 7, 60 * at, "cores=8") for at in (0, 5, 10, 15, 45, 50)]
    with Store.open(tmp_path / "store.sqlite") as store:
        for tick in read_ticks([put(tmp_path, *rows)]):
            store.append(tick)
        (record,) = store.jobs(ids=["7"])
        series, gaps = store.series(record), store.gaps("n1")
    assert (record.cpu_s, record.seen_s, record.mean_cpus) == (3000, 1200, 1)
    assert record.watched_cpu_s == 1200
    assert gaps == ((START + 900, START + 2700),)
    assert series.columns["cpus_busy"].tolist() == pytest.approx(
        [1, 1, 1, math.nan, 1], nan_ok=True
    )
    assert math.isnan(record.energy_j)


def test_a_job_that_comes_back_is_another_start(tmp_path: Path) -> None:
    rows = [line(0, 7, 10), line(0, 1, 1), line(5, 1, 2), line(10, 1, 3), line(10, 7, 5)]
    ticks = list(read_ticks([put(tmp_path, *rows)]))
    starts = {unit.started - START for tick in ticks for unit in tick.units if unit.job_id == "7"}
    # It came back between the second sample and the third.
    assert starts == {0, 300}
    assert of(ticks[2], "7", "cpu_s") == 5


def test_children_that_end_are_counted_once(tmp_path: Path) -> None:
    def process(minutes: int, pid: int, cputime: int) -> str:
        return line(minutes, 7, cputime).replace("pid=70", f"pid={pid}")

    rows = [
        *(process(0, 1, 10), process(0, 2, 100)),
        # The child ended after 20 s more, and its parent has taken its time.
        process(5, 1, 10 + 120 + 5),
        # The parent is gone, and nobody took its time: only a lower bound is known.
        process(10, 3, 40),
        process(15, 3, 70),
    ]
    ticks = list(read_ticks([put(tmp_path, *rows)]))
    assert [of(tick, "7", "watched_cpu_s") for tick in ticks] == [0, 25, 25, 55]
    assert [of(tick, "7", "cpu_s") for tick in ticks] == [110, 135, 135, 165]


def test_processes_without_a_job_stay_apart(tmp_path: Path) -> None:
    rows = [line(0, 0, 5).replace("pid=00", f"pid={pid}") for pid in (31, 32)]
    (tick,) = read_ticks([put(tmp_path, *rows)])
    assert [(unit.source, unit.job_id) for unit in tick.units] == [
        ("process", "31"),
        ("process", "32"),
    ]
    (other,) = read_ticks([put(tmp_path, line(0, 7, 1))], source="process")
    assert other.units[0].source == "process"


def test_files_may_overlap_and_come_in_any_order(tmp_path: Path) -> None:
    rows = [line(at, 7, 60 * at) for at in (0, 5, 10, 15)]
    whole = list(read_ticks([put(tmp_path, *rows)]))
    late = tmp_path / "late.csv.gz"
    late.write_bytes(gzip.compress("\n".join(rows[1:]).encode()))
    early = put(tmp_path, *rows[:3], name="early.csv")
    parts = list(read_ticks([late, early]))
    assert [tick.time for tick in parts] == [tick.time for tick in whole]
    assert of(parts[-1], "7", "cpu_s") == of(whole[-1], "7", "cpu_s") == 900


def load(store: Store, *paths: Path) -> int:
    """Take files into a store as `lowtide store load` does; return how many samples were known."""
    left_out: dict[str, int] = {}
    for tick in read_ticks(paths, known=store.last_look, left_out=left_out):
        store.append(tick)
    return sum(left_out.values())


@pytest.mark.parametrize("cut", [2, 3, 4, 6])
def test_the_next_file_goes_on_where_the_store_was_left(tmp_path: Path, cut: int) -> None:
    rows = [(line(at, 7, 500 + 60 * at), line(at, 8, 90 * at)) for at in range(0, 40, 5)]
    # One of them begins later, and one is over before the other.
    rows[0], rows[-1] = rows[0][:1], rows[-1][1:]
    lines = [list(pair) for pair in rows]
    whole = put(tmp_path, *chain.from_iterable(lines), name="whole.csv")
    first = put(tmp_path, *chain.from_iterable(lines[:cut]), name="first.csv")
    second = put(tmp_path, *chain.from_iterable(lines[cut:]), name="second.csv")
    with Store.open(tmp_path / "one.sqlite") as store:
        assert load(store, whole) == 0
        expected = store.jobs()
    with Store.open(tmp_path / "two.sqlite") as store:
        assert load(store, first) == 0
    for times in (0, 1):
        # Whatever is loaded again says nothing new.
        with Store.open(tmp_path / "two.sqlite") as store:
            assert load(store, second) == times * (len(lines) - cut)
        with Store.open(tmp_path / "two.sqlite") as store:
            assert load(store, first, whole) == len(lines)
            records = store.jobs()
    assert [each.job_id for each in records] == ["7", "8"]
    for record, other in zip(records, expected, strict=True):
        for name in ("started", "cpu_s", "watched_cpu_s", "seen_s", "looks", "mean_cpus"):
            assert getattr(record, name) == pytest.approx(getattr(other, name)), name
    assert (records[0].cpu_s, records[0].watched_cpu_s) == (500 + 60 * 30, 60 * 30)


def test_hosts_are_apart(tmp_path: Path) -> None:
    rows = [line(at, 7, 60 * at, host=host) for at in (0, 5) for host in ("b", "a")]
    ticks = list(read_ticks([put(tmp_path, *rows)]))
    assert [(tick.host, tick.time - tick.since) for tick in ticks] == [
        *(("a", 0), ("b", 0), ("a", 300), ("b", 300))
    ]


def structured(minutes: float, cpu_time: int, util: float) -> dict[str, Any]:
    process = {
        "pid": 71,
        "cmd": "train",
        "cpu_avg": 90.0,
        "cpu_util": util,
        "cpu_time": cpu_time,
        "resident_memory": 1000,
        "gpus": [
            {"index": 1, "uuid": "GPU-b", "gpu_util": 60, "gpu_memory": 500},
            {"index": 0, "uuid": "GPU-a", "gpu_util": 20, "gpu_memory": 100},
        ],
    }
    other = {"pid": 5, "cmd": "viz", "gpus": [{"index": 0, "uuid": "GPU-a", "gpu_util": 60}]}
    attributes = {
        "time": stamp(minutes),
        "cluster": "c.example",
        "node": "gpu-1",
        "system": {
            "cpus": [100 + minutes, 50],
            "used_memory": 2000,
            "gpus": [
                {"index": 0, "uuid": "GPU-a", "ce_util": 80, "memory": 100, "memory_util": 10},
                {"index": 1, "uuid": "GPU-b", "ce_util": 60, "memory": 500},
            ],
        },
        "jobs": [
            {"job": 7, "user": "ann", "epoch": 0, "processes": [process]},
            {"job": 5, "user": "bob", "epoch": 3, "processes": [other]},
        ],
    }
    meta = {"producer": "sonar", "version": "0.16.0"}
    return {"meta": meta, "data": {"type": "sample", "attributes": attributes}}


SYSINFO = {
    "meta": {"producer": "sonar"},
    "data": {
        "type": "sysinfo",
        "attributes": {
            "time": stamp(0),
            "node": "gpu-1",
            "sockets": 1,
            "cores_per_socket": 2,
            "memory": 8000,
        },
    },
}


@pytest.mark.parametrize("indent", [None, 1])
def test_the_structured_form(tmp_path: Path, indent: int | None) -> None:
    documents = [SYSINFO, {"meta": {}, "errors": []}, structured(0, 10, 150), structured(5, 310, 0)]
    text = "\n".join(json.dumps(each, indent=indent) for each in documents)
    first, second = read_ticks([put(tmp_path, text, name="log.json")])
    assert [(unit.source, unit.job_id, unit.user) for unit in first.units] == [
        *(("slurm", "7", "ann"), ("process", "5", "bob"))
    ]
    # What is busy now stands in for the difference that is not there yet.
    assert (of(first, "7", "cpus_busy"), of(second, "7", "cpus_busy")) == (1.5, 1.0)
    assert (of(second, "7", "gpus_busy"), of(second, "7", "gpu_memory_bytes")) == (0.8, 600 * KIB)
    assert of(first, "7", "memory_bytes") == 1000 * KIB
    node = second.node
    assert (node.cpus, node.busy_s, node.memory_bytes) == (2, 155, 8000 * KIB)
    assert node.available_bytes == 6000 * KIB
    card, second_card = second.gpus
    assert (card.name, card.uuid, card.busy, card.total_bytes) == (
        *("gpu-0", "GPU-a", 0.8, 1000 * KIB),
    )
    # Shared by use: 20 % and 60 %.
    assert card.holders == pytest.approx({0: 0.25, 1: 0.75})
    assert second_card.holders == {0: 1.0}


def test_the_flat_form_in_json(tmp_path: Path) -> None:
    document = {
        "v": "0.13.0",
        "time": stamp(0),
        "host": "n1",
        "load": [5, 6, 7],
        "samples": [{"user": "ann", "cmd": "md", "job": 7, "cputime_sec": 3, "gpus": "unknown"}],
    }
    (tick,) = read_ticks([put(tmp_path, json.dumps([document]), name="log.json")])
    assert (tick.node.cpus, tick.node.busy_s) == (3, 18)
    assert math.isnan(of(tick, "7", "reserved_gpus"))


def test_packed_load(tmp_path: Path) -> None:
    # 897 is 42 + 19·45: the letter at 42 of the first digits, J of the others.
    assert _unpacked("(&J)", None) == [897, 1]  # type: ignore[arg-type]
    path = put(tmp_path, line(0, 7, 1, '"load=(&J)"'))
    (tick,) = read_ticks([path])
    assert (tick.node.cpus, tick.node.busy_s) == (2, 898)
    with pytest.raises(FormatError, match="line 1, column 'load'"):
        list(read_ticks([put(tmp_path, line(0, 7, 1, "load=0"))]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line(0, 7, 1).replace("+01:00", ""), "line 1, column 'time'.*no time zone"),
        (line(0, 7, 1) + "\n" + line(1, 7, 1).replace("sec=1", "sec=x"), "line 2.*not a number"),
        (line(0, 7, 1, "rssanonkib=-4"), "0 or more"),
        (line(0, 7, 1, "bare"), "'bare' has no name"),
        (line(0, 7, 1).replace("host=n1", "host="), "needs its host"),
        (line(0, 7, 1, '"gpus=0'), "quotes do not close"),
        ('{"samples": [], "host"', "not valid JSON"),
        ('[3, {"samples": []}]', "a sample is a JSON object"),
        ("time,host,cores\n", "no samples of sonar's"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        list(read_ticks([put(tmp_path, text)]))


def test_facts_alone_are_no_samples(tmp_path: Path) -> None:
    path = put(tmp_path, json.dumps(SYSINFO), name="sysinfo.json")
    assert recognises(Source.open(path))
    with pytest.raises(InvalidInput, match="no sample"):
        list(read_ticks([path]))


def test_no_gpu_is_claimed_that_no_sample_tells_of(tmp_path: Path) -> None:
    """On a host where sonar saw GPUs whoever is on none used none; elsewhere nobody knows."""
    lines = [line(5 * at, 7, 60 * at) for at in range(3)]
    lines += [line(5 * at, 8, 60 * at, host="ml8") for at in range(3)]
    lines += [line(5 * at, 9, 60 * at, "gpus=0", "gpu%=98", host="ml8") for at in range(1, 3)]
    for tick in read_ticks([put(tmp_path, *lines)]):
        assert math.isnan(tick.gpu_count)
        if tick.host == "n1":
            assert math.isnan(of(tick, "7", "gpus_busy"))
        else:
            assert of(tick, "8", "gpus_busy") == 0


def bare(
    minutes: float, job: int, cpu: str, *gpus: str, host: str = "n1", user: str = "ann"
) -> str:
    """Return a line as 0.6 wrote it: time in UTC with parts of a second, and no names."""
    at = f"2024-03-01T09:{minutes:02.0f}:00.123456789+00:00"
    return ",".join([at, host, "64", user, str(job), "md", cpu, "2048", *gpus])


def test_bare_columns_of_0_6(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        bare(0, 7, "250.5"),
        bare(5, 7, "200", "1010", "150", "30", "1024"),
        bare(5, 8, "0", "0", "0", "0", "0"),
        bare(10, 7, "200", "1" * 32, "80", "0", "512"),
    )
    assert recognises(Source.open(path))
    first, second, third = read_ticks([path])
    assert [first.time - START, second.time - START] == pytest.approx([0.123456, 300.123456])
    assert (first.host, first.node.cpus, math.isnan(first.node.memory_bytes)) == ("n1", 64, True)
    (unit,) = first.units
    assert (unit.source, unit.job_id, unit.user, unit.name) == ("slurm", "7", "ann", "md")
    assert [of(tick, "7", "cpus_busy") for tick in (first, second)] == [2.505, 2]
    assert of(first, "7", "memory_bytes") == 2048 * KIB
    # CPU time is not written, so no sum of it may look as if it were.
    for tick in (first, second, third):
        assert math.isnan(of(tick, "7", "cpu_s"))
        assert math.isnan(of(tick, "7", "watched_cpu_s"))
    # The lowest bit is the first card: 1010 are cards 1 and 3.
    assert (of(second, "7", "gpus_busy"), of(second, "7", "reserved_gpus")) == (1.5, 2)
    assert of(second, "7", "gpu_memory_bytes") == 1024 * KIB
    assert (of(second, "8", "reserved_gpus"), of(second, "8", "gpus_busy")) == (0, 0)
    # All 32 bits say that nobody knows which.
    assert (math.isnan(of(third, "7", "reserved_gpus")), of(third, "7", "gpus_busy")) == (True, 0.8)


@pytest.mark.parametrize("cards", [(0,), (1,), (0, 3), (2, 5, 7), (31,), tuple(range(31)), ()])
def test_bits_are_cards(tmp_path: Path, cards: tuple[int, ...]) -> None:
    bits = f"{sum(2**card for card in cards):b}"
    path = put(tmp_path, bare(0, 7, "1", bits, "100", "0", "0"))
    (sample,) = read_samples(Source.open(path), source="slurm", sizes={})
    assert set(sample.processes[0].gpus or {}) == {f"gpu-{card}" for card in cards}


def test_a_store_shows_bare_columns(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        for tick in read_ticks([put(tmp_path, *(bare(at, 7, "300") for at in (0, 5, 10)))]):
            store.append(tick)
        (record,) = store.jobs(ids=["7"])
        series = store.series(record)
    assert record.seen_s == pytest.approx(600)
    # A store keeps CPU time, which 0.6 does not tell: unknown, and never none.
    assert math.isnan(record.cpu_s)
    assert math.isnan(record.mean_cpus)
    assert np.isnan(series.columns["cpus_busy"]).all()
    assert series.columns["memory_bytes"].tolist() == [2048 * KIB] * 2


def test_a_log_goes_on_when_sonar_is_renewed(tmp_path: Path) -> None:
    rows = [bare(0, 7, "100"), line(5, 7, 400), line(10, 7, 1000)]
    for named_first in (False, True):
        path = put(tmp_path, *(rows[::-1] if named_first else rows))
        ticks = list(read_ticks([path]))
        assert [len(tick.units) for tick in ticks] == [1, 1, 1]
        assert len({unit.key for tick in ticks for unit in tick.units}) == 1
        assert of(ticks[2], "7", "cpus_busy") == 2


def test_bare_columns_without_a_job_stay_with_their_user(tmp_path: Path) -> None:
    rows = [bare(0, 0, "1"), bare(0, 0, "2", user="bob")]
    (tick,) = read_ticks([put(tmp_path, *rows)])
    assert [(unit.source, unit.user, unit.name) for unit in tick.units] == [
        ("process", "ann", "md"),
        ("process", "bob", "md"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bare(0, 7, "1", "0"), "line 1.*not the columns of sonar 0.6"),
        (bare(0, 7, "1") + "\n" + bare(1, 7, "1")[:30], "line 2.*cut short"),
        (bare(0, 7, "1", "12", "0", "0", "0"), "'12' is no set of GPUs"),
        (bare(0, 7, "much"), "line 1, column 'cpu%'.*'much' is not a number"),
        # What 0.5 and older wrote: user, project and job, and no cores.
        ("2019-05-08T15:54:06.292155+0200,c6,ann,nn1,16,md,98.1,3", "older releases wrote others"),
    ],
)
def test_bare_columns_that_are_not_0_6_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        list(read_ticks([put(tmp_path, text)]))
