"""Meters in use: chosen, read beside one another, and nothing counted twice."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from lowtide.errors import InvalidInput, LowtideError, MeterProblem
from lowtide.measuring.sampler import total_w
from lowtide.meters import METERS, Channel, Found, Reading, Roots, source
from lowtide.meters.external import External
from lowtide.meters.source import PowerSource, choose_meters
from support.meters import BOOT, rapl_tree, tool, tree
from support.steady import Steady


def test_nothing_is_counted_twice() -> None:
    def drawn(**watts: float) -> float:
        return total_w(
            [(Channel(name=name, domain=name.rstrip("01")), each) for name, each in watts.items()]
        )

    assert drawn(package0=50, package1=60, dram0=5, gpu0=300) == 415
    assert drawn(node=500, package0=50, gpu0=300) == 500
    assert drawn(psys=90, package0=50, gpu0=300) == 390
    assert math.isnan(drawn(other=5))


def test_without_a_sensor_there_is_an_estimate(tmp_path: Path, tools: Path) -> None:
    roots = tree(tmp_path, {"proc/stat": "cpu 1 1 1 1 1 1 1 1\n"})
    chosen = choose_meters([], roots)
    assert [each.name for each in chosen] == ["estimate"]
    roots = rapl_tree(tmp_path)
    assert [each.name for each in choose_meters([], roots)] == ["rapl"]


class Hangs(Steady):
    """A meter that never says whether it is there."""

    name = "hangs"

    @classmethod
    def find(cls, roots: Roots) -> Found:
        threading.Event().wait()
        raise AssertionError


class Registered:
    """Some meters, of which one cannot be loaded, and one takes for ever."""

    def __init__(self, **meters: type) -> None:
        self.meters = meters

    def names(self) -> list[str]:
        return ["broken", *self.meters]

    def load(self, name: str) -> type:
        if name == "broken":
            raise LowtideError("broken cannot be loaded")
        if name == "stuck":
            threading.Event().wait()
        return self.meters[name]


def test_a_meter_that_hangs_while_it_is_looked_for_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "METERS", Registered(hangs=Hangs, steady=Steady, stuck=Steady))
    monkeypatch.setattr(source, "FIND_S", 2.0)
    told: list[str] = []
    assert [each.name for each in choose_meters([], tell=told.append)] == ["steady"]
    assert [each.split(" did not answer within 2 s")[0] for each in told] == [
        "meter hangs",
        "meter stuck",
    ]


def test_meters_are_named(tmp_path: Path) -> None:
    meter = choose_meters(["external:meter.csv"])[0]
    assert isinstance(meter, External)
    assert meter.source == "meter.csv"
    with pytest.raises(InvalidInput, match="takes nothing after its name"):
        choose_meters(["rapl:x"])
    assert set(METERS.names()) >= {"rapl", "nvml", "hwmon", "ipmi", "redfish", "cray", "estimate"}


def test_a_card_that_two_meters_read_is_counted_once(tmp_path: Path, tools: Path) -> None:
    base = "sys/class/hwmon/hwmon0"
    files = {f"{base}/name": "amdgpu\n", f"{base}/power1_average": "123000000\n"}
    alone = tree(tmp_path / "recorded", files)
    roots = tree(tmp_path, files | {BOOT: (Path("/") / BOOT).read_text()})
    tool(tools, "amd-smi", json.dumps([{"gpu": 0, "power": {"socket_power": "123 W"}}]))

    def drawn_w(said: list[str]) -> float:
        drawn = []
        for meter in choose_meters(said, roots):
            channels = meter.open()
            drawn += zip(channels, meter.sample().power_w, strict=True)
            meter.close()
        return total_w(drawn)

    assert [each.name for each in choose_meters([], roots)] == ["amd", "hwmon"]
    assert drawn_w([]) == 123.0
    assert drawn_w(["hwmon", "amd"]) == 123.0
    assert drawn_w(["hwmon"]) == 123.0, "alone it is what there is"
    # Of a recorded tree, what this machine's tools say is no part.
    assert [each.name for each in choose_meters([], alone)] == ["hwmon"]


@dataclass
class Scripted:
    """A meter that says what it is told to, one thing after the other."""

    name: ClassVar[str] = "scripted"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = True
    says: Iterator[float | Exception]
    asked: int = field(default=0, init=False)

    def sample(self) -> Reading:
        self.asked += 1
        said = next(self.says)
        if isinstance(said, Exception):
            raise said
        return Reading(time=time.time(), power_w=(said,), energy_j=(math.nan,))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "error",
    [http.client.IncompleteRead(b"{"), AttributeError("'str' has no 'get'"), MeterProblem("no")],
)
def test_an_error_is_a_missing_reading(
    error: Exception,
) -> None:
    source = PowerSource(Scripted(iter([100.0, error, 70.0])), (NODE,))
    first, missing = source.read(), source.read()
    assert first is not None
    assert first.power_w == (100.0,)
    assert missing is None
    assert str(error) in source.problem
    back = source.read()
    assert back is not None
    assert back.power_w == (70.0,)
    assert source.problem == ""


def test_the_thread_goes_on_after_an_error() -> None:
    errors: list[float | Exception] = [http.client.IncompleteRead(b"{"), ValueError("N/A")]
    meter = Scripted(iter([100.0, *errors, *[70.0] * 1000]))
    source = PowerSource(meter, (NODE,), pause_s=0.01)
    source.begin()
    deadline = time.monotonic() + 5
    while meter.asked < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    reading = source.read()
    source.end()
    assert reading is not None
    assert reading.power_w == (70.0,)


def test_a_reading_does_not_hold_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> Iterator[float]:
        yield 100.0
        time.sleep(0.5)
        yield 100.0

    meter = Scripted(hangs())
    source = PowerSource(meter, (NODE,), pause_s=0.01)
    source.begin()
    deadline = time.monotonic() + 5
    while meter.asked < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    fresh = source.read()
    later = time.monotonic() + 4.0
    monkeypatch.setattr("lowtide.meters.source.time.monotonic", lambda: later)
    missing = source.read()
    monkeypatch.undo()
    source.end()
    assert fresh is not None
    assert fresh.power_w == (100.0,)
    assert missing is None
    assert source.problem == "it has not answered for over 3 s"


NODE = Channel(name="node", domain="node")
