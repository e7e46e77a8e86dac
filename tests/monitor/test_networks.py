"""What goes over the network, once each, for the node and for those with one of their own."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from lowtide.monitor.kernel_files import OpenFiles, Problems
from lowtide.monitor.node import NodeFiles, parse_traffic
from lowtide.monitor.reader import NodeReader
from support.needs import is_missing
from support.trees import CONTAINER, NODE, write, write_group, write_process, write_unified

HEAD = "Inter-| Receive\n face |bytes\n"
HOST, OWN, OTHER = (f"net:[{number}]" for number in (4026531840, 4026532001, 4026532002))


def dev(**bytes_of: tuple[int, int]) -> str:
    """What net/dev says; `__` stands for a point in a name."""
    lines = [
        f" {name.replace('__', '.')}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n"
        for name, (received, sent) in bytes_of.items()
    ]
    return HEAD + "".join(lines)


BONDED = dev(
    lo=(9, 9),
    eth0=(1000, 100),
    eth1=(1000, 100),
    bond0=(2000, 200),
    bond0__7=(1500, 150),
    br0=(2000, 200),
    docker0=(500, 50),
    veth12ab=(500, 50),
)


def moved(root: Path) -> tuple[float, float]:
    counts = NodeFiles(root / "proc", root / "sys", OpenFiles(10)).read()
    return counts.received_bytes, counts.sent_bytes


def test_only_cards_count(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    (tmp_path / "proc/net/dev").write_text(BONDED)
    assert moved(tmp_path) == (2000, 200)
    cards = tmp_path / "sys/class/net"
    for name in ("lo", "bond0", "br0", "docker0", "veth12ab", "eth0", "eth1"):
        (cards / name).mkdir(parents=True)
    assert moved(tmp_path) == (2000, 200)
    # One of them has a device, so that the others are something else, whatever they are called.
    (cards / "eth1/device").mkdir()
    assert moved(tmp_path) == (1000, 100)


def test_two_cards_that_are_one(tmp_path: Path) -> None:
    """In some clouds a card of the hypervisor's stands above one that is quicker."""
    write(tmp_path, NODE)
    (tmp_path / "proc/net/dev").write_text(dev(eth0=(50, 5), enP1=(40, 4)))
    for name in ("eth0", "enP1"):
        (tmp_path / f"sys/class/net/{name}/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/enP1/master").symlink_to("../eth0")
    assert moved(tmp_path) == (50, 5)


def test_without_cards_what_is_made_of_others_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    (tmp_path / "proc/net/dev").write_text(dev(lo=(9, 9), eth0=(50, 5), lan=(50, 5)))
    (tmp_path / "sys/class/net/lan/lower_eth0").mkdir(parents=True)
    assert moved(tmp_path) == (50, 5)


def test_a_card_that_comes_later_counts(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    node = NodeFiles(tmp_path / "proc", tmp_path / "sys", OpenFiles(10))
    assert node.read().received_bytes == 700
    (tmp_path / "sys/class/net/eth1/device").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(dev(eth0=(700, 300), eth1=(11, 12)))
    assert node.read().received_bytes == 711


def test_more_interfaces_than_fit_into_a_page(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    many = {f"veth{number:08}": (1, 1) for number in range(2000)}
    (tmp_path / "proc/net/dev").write_text(dev(**many, eth0=(50, 5)))
    assert moved(tmp_path) == (50, 5)


def test_lines_that_make_no_sense_are_counted() -> None:
    problems = Problems()
    said = f"{HEAD} eth0: x 0\n eth1: -5 0 0 0 0 0 0 0 1 0\n eth2: 5\n{dev(eth3=(1, 2))}"
    assert parse_traffic(said.encode(), problems) == {b"eth3": (1, 2)}
    assert problems.rejected == 3
    assert len(problems.take()) == 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, NODE)
    write_unified(tmp_path / "cgroup")
    live(tmp_path, 1, HOST, dev(eth0=(10**9, 10**9)))
    return tmp_path


def live(root: Path, pid: int, space: str, said: str, *, cgroup: str = "0::/") -> None:
    """Write a process that is in a network."""
    folder = write_process(root / "proc", pid, cgroup=cgroup, cpu_s=9.0)
    (folder / "ns").mkdir(exist_ok=True)
    (folder / "net").mkdir(exist_ok=True)
    link = folder / "ns/net"
    link.unlink(missing_ok=True)
    link.symlink_to(space)
    (folder / "net/dev").write_text(said)


def read_at(root: Path) -> NodeReader:
    return NodeReader(procfs=root / "proc", sysfs=root / "sys", cgroupfs=root / "cgroup", name=str)


def group(root: Path, name: str, *pids: int) -> Path:
    procs = "".join(f"{pid}\n" for pid in pids)
    folder = write_group(root / "cgroup" / name, cgroup_procs=procs)
    # It has been there for long, and is not looked at often.
    os.utime(folder, (1.7e9, 1.7e9))
    return folder


def table(node: NodeReader) -> dict[str, tuple[float, float]]:
    shot = node.read()
    pairs = zip(shot.received_bytes.tolist(), shot.sent_bytes.tolist(), strict=True)
    return dict(zip((unit.job_id for unit in shot.units), pairs, strict=True))


def test_a_container_has_a_network_of_its_own(root: Path) -> None:
    path = f"docker/{CONTAINER}"
    folder = group(root, path, 50)
    live(root, 50, OWN, dev(lo=(7, 7), eth0=(600, 60)), cgroup=f"0::/{path}")
    group(root, "system.slice/web.service", 60)
    live(root, 60, HOST, dev(eth0=(10**9, 10**9)), cgroup="0::/system.slice/web.service")
    with read_at(root) as node:
        found = table(node)
        assert found[CONTAINER[:12]] == (600, 60)
        assert all(map(math.isnan, found["web.service"]))
        live(root, 50, OWN, dev(lo=(7, 7), eth0=(900, 90), eth1=(1, 1)))
        assert table(node)[CONTAINER[:12]] == (901, 91)
        # It ends, and its last figures stay.
        shutil.rmtree(root / "proc/50")
        shutil.rmtree(folder)
        assert table(node)[CONTAINER[:12]] == (901, 91)


def test_nobody_has_a_network_of_its_own(root: Path) -> None:
    group(root, "system.slice/web.service", 60)
    live(root, 60, HOST, dev(eth0=(5, 5)))
    with read_at(root) as node:
        shot = node.read()
    assert np.isnan(shot.received_bytes).all()
    assert np.isnan(shot.sent_bytes).all()


def test_containers_that_share_a_network_count_it_once(root: Path) -> None:
    for number, pid in enumerate((50, 51)):
        group(root, f"kubepods/pod12345678/{'ab' * 31}0{number}", pid)
        live(root, pid, OWN, dev(eth0=(600, 60)), cgroup=f"0::/kubepods/pod12345678/{pid}")
    group(root, f"docker/{CONTAINER}", 52)
    live(root, 52, OTHER, dev(eth0=(1, 1)), cgroup=f"0::/docker/{CONTAINER}")
    with read_at(root) as node:
        shot = node.read()
    assert float(np.nansum(shot.received_bytes)) == 601


def test_the_number_of_a_process_that_ended_may_be_anothers(root: Path) -> None:
    path = f"docker/{CONTAINER}"
    group(root, path, 50)
    live(root, 50, OWN, dev(eth0=(600, 60)), cgroup=f"0::/{path}")
    with read_at(root) as node:
        node.read()
        live(root, 50, HOST, dev(eth0=(10**9, 10**9)))
        assert table(node)[CONTAINER[:12]] == (600, 60)


def test_processes_without_a_group_may_have_a_network(root: Path) -> None:
    live(root, 70, OWN, dev(eth0=(30, 3)))
    live(root, 71, HOST, dev(eth0=(10**9, 10**9)))
    with read_at(root) as node:
        node.read()
        for pid, space in ((70, OWN), (71, HOST)):
            write_process(root / "proc", pid, cpu_s=500.0)
            assert (root / f"proc/{pid}/ns/net").readlink() == Path(space)
        found = table(node)
        assert found["70"] == (30, 3)
        assert all(map(math.isnan, found["71"]))


def test_a_real_network_of_its_own(tmp_path: Path) -> None:
    """A process in a new network; no control group is known that would count it."""
    spin = "ip link set lo up; ip link add d0 type dummy; while :; do :; done"
    command = ["unshare", "--net", "--", "sh", "-c", spin]
    if shutil.which("unshare") is None or subprocess.run([*command[:3], "true"]).returncode:
        is_missing("needs to be allowed to make a network")
    busy = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        with NodeReader(cgroupfs=tmp_path) as node:
            node.read()
            time.sleep(0.5)
            shot = node.read()
            [place] = [
                place for place, unit in enumerate(shot.units) if str(busy.pid) == unit.job_id
            ]
            assert shot.received_bytes[place] == 0.0
    finally:
        busy.kill()
        busy.wait()
