"""What the files of control groups say, against values from real nodes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.monitor.cgroups import (
    Layout,
    find_hierarchies,
    find_value,
    parse_blkio,
    parse_cpus,
    parse_io,
    parse_limit,
    parse_nanoseconds,
    parse_number,
    parse_pressure,
    parse_quota,
    parse_usage,
)
from support.trees import write

CPU_STAT = b"usage_usec 60491070351\nuser_usec 60375292848\nsystem_usec 115777503\nnr_periods 0\n"


def test_cpu_time_of_version_2() -> None:
    assert find_value(CPU_STAT, b"user_usec") / 1e6 == 60375.292848
    assert find_value(CPU_STAT, b"system_usec") / 1e6 == 115.777503
    assert parse_usage(CPU_STAT) == (60491.070351, 115.777503)


def test_cpu_time_of_version_1() -> None:
    used_s, system_s = parse_nanoseconds(b"60491070351000\n")
    assert used_s == 60491.070351
    assert math.isnan(system_s)


@pytest.mark.parametrize("said", [b"", b"usage_usec", b"usage_usec 12", b"nothing 5\n", b"\0\0"])
def test_a_file_that_was_cut_off_has_no_value(said: bytes) -> None:
    with pytest.raises(ValueError, match=r"usage_usec|invalid"):
        parse_usage(said)


@pytest.mark.parametrize(
    ("said", "count"),
    [("1,41", 2), ("0-3", 4), ("0-3,8-11\n", 8), ("", 0), ("\n", 0), ("7", 1), ("0-6:1/2", 4)],
)
def test_cpusets(said: str, count: int) -> None:
    assert len(parse_cpus(said)) == count


@given(st.sets(st.integers(0, 300), max_size=60), st.randoms())
def test_a_cpuset_is_what_the_kernel_wrote(cpus: set[int], random) -> None:
    # The kernel writes ranges; anyone may write them apart or overlapping.
    parts, left = [], sorted(cpus)
    while left:
        length = random.randint(1, len(left))
        while left[length - 1] - left[0] != length - 1:
            length -= 1
        first, last = left[0], left[length - 1]
        parts.append(f"{first}-{last}" if last > first or random.random() < 0.2 else f"{first}")
        left = left[length:]
    random.shuffle(parts)
    assert parse_cpus(",".join(parts) + "\n") == cpus


def test_storage_counts_each_disk_once() -> None:
    said = b"8:0 rbytes=10 wbytes=20 rios=1 wios=1 dbytes=7 dios=1\n253:0 rbytes=10 wbytes=20\n"
    assert parse_io(said, frozenset({b"8:0"})) == (10.0, 20.0)
    assert parse_io(said, frozenset()) == (20.0, 40.0)
    assert parse_io(b"", frozenset()) == (0.0, 0.0)
    # Seen on real nodes: a disk without counters.
    assert parse_io(b"7:7 \n8:0 rbytes=1 wbytes=2\n", frozenset()) == (1.0, 2.0)
    for broken in (
        b"8:0 rbytes=x",
        b"8:0 rbytes=1 wbytes=2\n8:16 rbytes=3",
        b"8:0 rbytes=-1 wbytes=1",
    ):
        with pytest.raises(ValueError, match="traffic"):
            parse_io(broken, frozenset())
    said = b"8:0 Read 5\n8:0 Write 6\n8:0 Sync 6\n8:0 Async 5\n8:0 Total 11\nTotal 11\n"
    assert parse_blkio(said, frozenset({b"8:0"})) == (5.0, 6.0)
    assert parse_blkio(said, frozenset({b"8:16"})) == (0.0, 0.0)


def test_no_limit_is_unknown() -> None:
    assert parse_limit(b"4294967296\n") == 4294967296.0
    assert math.isnan(parse_limit(b"max\n"))
    assert math.isnan(parse_limit(b"9223372036854771712\n"))
    for said in (b"max", b"-1", b"9" * 31):
        with pytest.raises(ValueError, match=r"count|invalid"):
            parse_number(said)


def test_quotas_are_cpus() -> None:
    assert parse_quota(b"200000 100000\n") == 2.0
    assert math.isnan(parse_quota(b"max 100000\n"))
    assert math.isnan(parse_quota(b"-1 100000"))


def test_pressure_is_the_time_that_some_waited() -> None:
    said = b"some avg10=1.5 avg60=0.0 avg300=0.0 total=2500000\nfull avg10=0 total=7\n"
    assert parse_pressure(said) == 2.5


def test_which_version_there_is(tmp_path: Path) -> None:
    assert find_hierarchies(tmp_path / "nowhere") == ()
    write(tmp_path / "two", "cgroup.controllers = cpu memory")
    (only,) = find_hierarchies(tmp_path / "two")
    assert only.unified

    one = tmp_path / "one"
    write(one, "cpu,cpuacct/tasks =\nmemory/tasks =\nsystemd/tasks =\nunified/cgroup.controllers =")
    (one / "cpu").symlink_to("cpu,cpuacct")
    (one / "cpuacct").symlink_to("cpu,cpuacct")
    (one / "rubbish").mkdir()
    found = {Path(each.folder).name: each for each in find_hierarchies(one)}
    assert set(found) == {"cpu,cpuacct", "memory", "systemd", "unified"}
    assert found["cpu,cpuacct"].controllers == {"cpu", "cpuacct"}
    layout = Layout(tuple(found.values()))
    assert [Path(each.folder).name for each in layout.cpu_places] == ["cpu,cpuacct", "unified"]
    assert layout.split(f"{one}/memory/a/b")[1] == "/a/b"
    assert layout.split("/elsewhere") is None
