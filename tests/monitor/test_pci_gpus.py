"""GPUs on the bus: what is there, whoever reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lowtide.cli.doctor import _gpus
from lowtide.meters import Roots
from lowtide.monitor.gpus import (
    GpuProcess,
    GpuReading,
    cards_on_bus,
    count_unread,
    hold,
    name_unread,
)
from lowtide.watching.service import open_watch
from support.commands import run
from support.meters import tree
from support.snapshots import tick, units

STAT = {"proc/stat": "cpu 100 0 50 1000 5 0 0 0\ncpu0 100 0 50 1000 5 0 0 0\nbtime 1700000000\n"}
NVIDIA, AMD, INTEL, ASPEED, MATROX = "0x10de", "0x1002", "0x8086", "0x1a03", "0x102b"


def bus(root: Path, *devices: tuple[str, str, str], **files: str) -> Roots:
    """A tree with devices on the PCI bus: address, vendor and class of each."""
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    base = "sys/bus/pci/devices"
    found = {}
    for address, vendor, kind in devices:
        found |= {f"{base}/{address}/vendor": f"{vendor}\n", f"{base}/{address}/class": f"{kind}\n"}
    return tree(root, STAT | found | files)


@pytest.mark.parametrize(
    ("device", "maker"),
    [
        (("0000:17:00.0", NVIDIA, "0x030200"), "NVIDIA"),
        (("0000:01:00.0", NVIDIA, "0x030000"), "NVIDIA"),
        (("0000:c1:00.0", AMD, "0x038000"), "AMD"),
        (("0000:c1:00.0", AMD, "0x120000"), "AMD"),
        (("0000:9a:00.0", INTEL, "0x038000"), "Intel"),
        # The sound and the switches of a card, a server's console, graphics of the processor.
        (("0000:17:00.1", NVIDIA, "0x040300"), None),
        (("0000:17:00.0", NVIDIA, "0x068000"), None),
        (("0000:03:00.0", ASPEED, "0x030000"), None),
        (("0000:03:00.0", MATROX, "0x030000"), None),
        (("0000:00:02.0", INTEL, "0x030000"), None),
        (("0000:00:1f.0", INTEL, "0x060100"), None),
    ],
)
def test_what_counts_as_a_gpu(tmp_path: Path, device: tuple[str, str, str], maker: str) -> None:
    cards = cards_on_bus(bus(tmp_path, device).sysfs)
    assert cards is not None
    assert [card.maker for card in cards] == ([maker] if maker else [])


def test_graphics_of_a_processor_of_amds_have_little_memory(tmp_path: Path) -> None:
    for name, size, count in (("apu", 512 * 2**20, 0), ("card", 16 * 2**30, 1)):
        vram = {"sys/bus/pci/devices/0000:0a:00.0/mem_info_vram_total": f"{size}\n"}
        roots = bus(tmp_path / name, ("0000:0a:00.0", AMD, "0x030000"), **vram)
        assert len(cards_on_bus(roots.sysfs) or ()) == count


def test_without_a_bus_nobody_knows(tmp_path: Path) -> None:
    assert cards_on_bus(tmp_path) is None
    assert count_unread(None, []) is None
    assert cards_on_bus(bus(tmp_path).sysfs) == ()
    board = {"sys/firmware/devicetree/base/compatible": "nvidia,p3737-0000\0nvidia,tegra234\0"}
    assert cards_on_bus(bus(tmp_path / "jetson", **board).sysfs) is None


def test_instances_are_parts_of_one_card(tmp_path: Path) -> None:
    cards = cards_on_bus(bus(tmp_path, *FOUR).sysfs)
    assert count_unread(cards, ["gpu-0/0", "gpu-0/1", "gpu-1"]) == 2
    assert count_unread(cards, [f"gpu-{number}" for number in range(32)]) == 0
    [told] = name_unread(cards or ()).values()
    assert told.startswith("4 NVIDIA GPUs are on the PCI bus (0000:17:00.0 and 3 more)")


FOUR = [(f"0000:{place}:00.0", NVIDIA, "0x030200") for place in (17, 18, 19, 20)]


@pytest.mark.parametrize(
    ("devices", "has_bus", "count"), [(FOUR, True, 4.0), ([], True, 0.0), ([], False, math.nan)]
)
def test_a_watch_tells_none_from_unknown(
    tmp_path: Path, devices: list[tuple[str, str, str]], has_bus: bool, count: float
) -> None:
    roots = bus(tmp_path, *devices) if has_bus else tree(tmp_path, STAT)
    with open_watch(roots=roots) as watch:
        watch.watcher.tick()
        seen = watch.watcher.tick()
    assert seen is not None
    assert seen.gpu_count == pytest.approx(count, nan_ok=True)
    told = [each for each in seen.problems if "GPU" in each]
    assert len(told) == bool(devices)
    if devices:
        assert "4 NVIDIA GPUs are on the PCI bus" in told[0]
        assert "pip install 'lowtide[watch]'" in told[0] or "driver" in told[0]


def test_node_and_doctor_name_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.watching.service.find_spec", lambda _: None)
    roots = bus(tmp_path, *FOUR)
    check = _gpus(roots)
    assert check["state"] == "not read"
    assert "4 NVIDIA GPUs" in check["detail"]
    assert check["cure"] == "pip install 'lowtide[watch]'"
    assert _gpus(bus(tmp_path / "none"))["state"] == "absent"
    assert _gpus(tree(tmp_path / "container", STAT))["state"] == "unknown"
    where = ("--sysfs", str(roots.sysfs), "--procfs", str(roots.procfs))
    answer = run(capsys, "node", "--json", *where)
    assert "pip install 'lowtide[watch]'" in answer.err + answer.out
    assert json.loads(answer.out)["gpus"] == []


def test_a_tick_never_says_0_of_what_nobody_read() -> None:
    zero = {"gpus_busy": 0.0, "gpu_memory_bytes": 0.0, "reserved_gpus": 0.0}
    for unread, known in ((None, False), (3, False), (0, True)):
        seen = tick(units(2), gpus_unread=unread, **zero)
        for name in zero:
            assert np.isnan(getattr(seen, name)).all() != known
        assert np.isnan(seen.shares.gpu_w).all() != known


@pytest.mark.parametrize(
    ("gpu", "known"),
    [
        (GpuReading(name="gpu-0", busy=0.5, processes=(GpuProcess(pid=1),)), True),
        (GpuReading(name="gpu-0", busy=0.0, processes=()), True),
        (GpuReading(name="gpu-0", busy=0.0, processes=None), True),
        (GpuReading(name="gpu-0", busy=0.5, processes=()), False),
        (GpuReading(name="gpu-0", busy=0.5, processes=None), False),
        (GpuReading(name="gpu-0", processes=None), False),
        (GpuReading(name="gpu-0", processes=()), True),
    ],
)
def test_who_uses_a_gpu_is_known_or_not(gpu: GpuReading, known: bool) -> None:
    [counts] = hold([gpu], {1: 0}.get, {})
    assert counts.users_known == known
    # Whoever it was given to uses it.
    assert hold([gpu], {1: 0}.get, {"gpu-0": [0]})[0].users_known
