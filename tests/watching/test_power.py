"""What was drawn between two ticks: counters where there are any, readings where not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from lowtide.errors import MeterProblem
from lowtide.meters import Channel, Found, Reading, Roots
from lowtide.meters.estimate import Estimate
from lowtide.meters.utilisation import UtilisationModel
from lowtide.watching import power as module
from lowtide.watching.power import PowerReader

NAN = math.nan


@dataclass
class FakeMeter:
    """Says what it is told to say; an error where that is None."""

    channels: tuple[Channel, ...]
    said: list[Reading | None]
    name: ClassVar[str] = "fake"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    closed: bool = field(default=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:
        return Found(meter=cls.name, state="works")

    def open(self) -> tuple[Channel, ...]:
        return self.channels

    def sample(self) -> Reading:
        reading = self.said.pop(0)
        if reading is None:
            raise MeterProblem("gone")
        return reading

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds; both clocks show it."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


def channel(name: str, domain: str) -> Channel:
    return Channel(name=name, domain=domain)


def at(time: float, *power_w: float, energy_j: tuple[float, ...] = ()) -> Reading:
    return Reading(time=time, power_w=power_w, energy_j=energy_j or (NAN,) * len(power_w))


def opened(meter: FakeMeter) -> PowerReader:
    reader = PowerReader(meters=[meter])
    reader.open()
    return reader


def test_a_counter_tells_exactly_what_a_gauge_misses(clock: list[float]) -> None:
    node = channel("node", "node")
    meter = FakeMeter((node,), [at(1000, 50, energy_j=(0,)), at(1010, 60, energy_j=(1500,))])
    reader = opened(meter)
    clock[0] = 1010.0
    assert reader.read().node_w == 150.0
    reader.close()
    assert meter.closed


def test_without_a_counter_two_readings_stand_for_the_time_between(clock: list[float]) -> None:
    meter = FakeMeter((channel("node", "node"),), [at(1000, 50), at(1010, 70), at(1020, NAN)])
    reader = opened(meter)
    assert reader.read().node_w == 60.0
    assert reader.read().node_w == 70.0


def test_parts_find_their_places(clock: list[float]) -> None:
    channels = (
        channel("package-0", "package"),
        channel("package-1", "package"),
        channel("dram-0", "dram"),
        channel("dram-1", "dram"),
        channel("gpu-0", "gpu"),
        channel("fan", "other"),
    )
    reader = opened(FakeMeter(channels, [at(1000, *[0] * 6), at(1010, 100, 120, 10, 12, 600, 5)]))
    power = reader.read()
    assert math.isnan(power.node_w)
    assert power.package_w == (50.0, 60.0)
    assert power.dram_w == 11.0
    assert power.gpu_w == {"gpu-0": 300.0}
    assert power.measured


def test_the_platform_is_all_but_the_cards(clock: list[float]) -> None:
    channels = (channel("psys", "psys"), channel("gpu-0", "gpu"))
    reader = opened(FakeMeter(channels, [at(1000, 100, 300), at(1010, 100, 300)]))
    assert reader.read().node_w == 400.0


def test_a_meter_that_is_silent_or_stale_is_said_and_not_filled_in(clock: list[float]) -> None:
    meter = FakeMeter((channel("node", "node"),), [at(1000, 50), None, at(900, 70), at(1010, 80)])
    reader = opened(meter)
    assert math.isnan(reader.read().node_w)
    assert reader.problems == ["meter fake does not answer: gone; nothing is filled in"]
    assert math.isnan(reader.read().node_w)
    assert "stale" in reader.problems[-1]
    # It is back; what it said before it fell silent is no guide.
    assert reader.read().node_w == 75.0


def test_a_counter_beyond_physics_is_rejected(clock: list[float]) -> None:
    gpu = channel("gpu-0", "gpu")
    meter = FakeMeter((gpu,), [at(1000, 50, energy_j=(0,)), at(1010, 50, energy_j=(2e7,))])
    reader = opened(meter)
    clock[0] = 1010.0
    assert math.isnan(reader.read().gpu_w["gpu-0"])
    assert "gpu-0 read 2e+06 W, which a gpu cannot draw" in reader.problems[0]


def test_the_clock_is_set_back(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    node = channel("node", "node")
    meter = FakeMeter((node,), [at(1000, 50, energy_j=(0,)), at(400, 60, energy_j=(1500,))])
    reader = opened(meter)
    clock[0] = 1010.0
    monkeypatch.setattr(module.time, "time", lambda: 400.0)
    assert reader.read().node_w == 150.0


def test_an_estimate_knows_what_idle_is() -> None:
    model = UtilisationModel.points([0.0, 1.0], [40.0, 100.0], source="by hand")
    reader = PowerReader(meters=[Estimate(model=model)])
    assert reader.idle_w == 40.0
    assert not reader.measured
    assert PowerReader(meters=[FakeMeter((), [])]).idle_w is None
