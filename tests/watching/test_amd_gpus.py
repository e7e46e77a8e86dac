"""AMD GPUs, by what the tools of several versions print."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from lowtide.errors import MeterProblem
from lowtide.meters.amd import AmdGpus, read_cards, read_gpus
from lowtide.monitor.gpus import match_devices, match_gpus
from support.meters import hanging
from support.trees import write

GIB = 2**30
LIST = [
    {"gpu": 0, "bdf": "0000:0C:00.0", "uuid": "b4ff74a1-0000-1000-80d8-7a2a9c4c5b6d"},
    {"gpu": 1, "bdf": "0000:22:00.0", "uuid": "c1ff74a1-0000-1000-80d8-7a2a9c4c5b6d"},
    {"gpu": 2, "bdf": "N/A", "uuid": "N/A"},
]
METRIC = {
    "gpu_data": [
        {
            "gpu": 0,
            "usage": {"gfx_activity": {"value": 87, "unit": "%"}, "mm_activity": "N/A"},
            "mem_usage": {
                "total_vram": {"value": 196592, "unit": "MB"},
                "used_vram": {"value": 121344, "unit": "MB"},
            },
        },
        {
            "gpu": 1,
            "usage": {"gfx_activity": 500},
            "mem_usage": {"total_vram": "16368 MB", "used_vram": "N/A"},
        },
        {"gpu": 2, "usage": "N/A", "mem_usage": "N/A"},
    ]
}
PROCESS = [
    {
        "gpu": 0,
        "process_list": [
            {
                "process_info": {
                    "name": "python3",
                    "pid": 4242,
                    "memory_usage": {"vram_mem": {"value": 121000, "unit": "MB"}},
                }
            },
            {"process_info": {"pid": 5, "mem_usage": {"value": 512, "unit": "B"}}},
        ],
    },
    {"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]},
]
ROCM = {
    "card0": {"PCI Bus": "0000:0C:00.0", "Unique ID": "0x18bba8f6bb3c2f8c"},
    "card1": {"PCI Bus": "0000:22:00.0", "Unique ID": "N/A"},
    "system": {},
}
ROCM_USE = {
    "card0": {
        "GPU use (%)": "12",
        "VRAM Total Memory (B)": "17163091968",
        "VRAM Total Used Memory (B)": "1073741824",
    }
}


def cards(*documents: object) -> list[dict[str, dict[str, object]]]:
    return [read_cards(json.dumps(each)) for each in documents]


def test_the_tool_of_today(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        bus/pci/devices/0000:0c:00.0/unique_id = 18bba8f6bb3c2f8c
        bus/pci/devices/0000:0c:00.0/drm/renderD129/dev = 226:129
        bus/pci/devices/0000:0c:00.0/drm/card1/dev = 226:1
        """,
    )
    first, second, third = read_gpus(cards(LIST, METRIC, PROCESS), tmp_path)
    assert (first.name, first.busy) == ("gpu-0", 0.87)
    assert (first.memory_bytes, first.total_bytes) == (121344 * 2**20, 196592 * 2**20)
    held = [(each.pid, each.memory_bytes) for each in first.processes]
    assert held == [(4242, 121000 * 2**20), (5, 512)]
    # A job may be given it by its number, by its identity, or by its device.
    gpus = [first, second, third]
    assert match_gpus(["1"], gpus) == ["gpu-1"]
    assert match_gpus(["GPU-18bba8f6bb3c2f8c"], gpus) == ["gpu-0"]
    assert match_devices("c 226:129 rwm\nc 195:0 rwm\n", gpus) == ["gpu-0"]
    # 500 % of a GPU are no reading.
    assert math.isnan(second.busy)
    assert len(second.rejected) == 1
    assert second.uuid == LIST[1]["uuid"]
    assert (second.minor, second.processes) == (-1, ())
    assert all(map(math.isnan, (second.memory_bytes, third.busy, third.memory_bytes)))
    assert third.rejected == ()


def test_the_tool_before_it(tmp_path: Path) -> None:
    first, second = read_gpus(cards(ROCM, ROCM_USE), tmp_path)
    assert (first.busy, first.memory_bytes, first.total_bytes) == (0.12, GIB, 17163091968)
    assert first.uuid == "GPU-18bba8f6bb3c2f8c"
    assert (second.name, second.uuid) == ("gpu-1", "")
    assert math.isnan(second.busy)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_they_are_asked_in_the_background(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(MeterProblem, match="neither"):
        AmdGpus()
    lines = ["#!/bin/sh", "case $1 in"]
    for question, answer in (("list", LIST), ("metric", METRIC), ("process", PROCESS)):
        lines.append(f"{question}) echo '{json.dumps(answer)}';;")
    (tools / "amd-smi").write_text("\n".join([*lines, "esac", ""]))
    (tools / "amd-smi").chmod(0o755)
    gpus = AmdGpus(sysfs=tmp_path)
    deadline = time.monotonic() + 10
    while not gpus.read() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [each.busy for each in gpus.read()][:1] == [0.87]
    gpus.close()


def test_one_that_hangs_keeps_nobody_waiting(tools: Path, tmp_path: Path) -> None:
    hanging(tools, "rocm-smi")
    begun = time.monotonic()
    gpus = AmdGpus(sysfs=tmp_path, timeout_s=0.2)
    assert gpus.read() == []
    assert time.monotonic() - begun < 0.15
    gpus.close()
