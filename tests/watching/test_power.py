"""What was drawn between two ticks: counters where there are any, readings where not."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from lowtide.errors import MeterProblem
from lowtide.meters import Channel, Found, Reading, Roots
from lowtide.meters.estimate import Estimate
from lowtide.meters.power_model import UtilisationModel
from lowtide.meters.source import MeterSearch, PowerSource
from lowtide.watching import power as module
from lowtide.watching.power import PowerReader
from support.meters import tree

pytestmark = pytest.mark.alone

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


def test_cards_of_two_makers_are_two_cards(clock: list[float]) -> None:
    card = (channel("gpu-0", "gpu"),)
    meters = [FakeMeter(card, [at(1000, watts), at(1000, watts)]) for watts in (300, 100)]
    reader = PowerReader(meters=meters)
    reader.open()
    assert reader.read().total_w == 400.0


def test_the_platform_is_all_but_the_cards(clock: list[float]) -> None:
    channels = (channel("psys", "psys"), channel("gpu-0", "gpu"))
    reader = opened(FakeMeter(channels, [at(1000, 100, 300), at(1010, 100, 300)]))
    assert reader.read().node_w == 400.0


def test_a_meter_that_is_silent_or_stale_is_said_and_not_filled_in(clock: list[float]) -> None:
    meter = FakeMeter((channel("node", "node"),), [at(1000, 50), None, at(900, 70), at(1010, 80)])
    reader = opened(meter)
    silent = reader.read()
    assert math.isnan(silent.node_w)
    assert reader.problems == ["meter fake does not answer: gone; nothing is filled in"]
    stale = reader.read()
    assert math.isnan(stale.node_w)
    assert "stale" in reader.problems[-1]
    # It is back; what it said before it fell silent is no guide.
    back = reader.read()
    assert back.node_w == 75.0
    assert [each.answers["fake"] for each in (silent, stale, back)] == [False, False, True]


def test_parts_of_which_one_falls_silent_lack_something(clock: list[float]) -> None:
    channels = (channel("package-0", "package"), channel("dram-0", "dram"), channel("gpu-0", "gpu"))
    said = [
        *(at(1000, 50, NAN, 300), at(1000, 50, NAN, NAN), at(1000, NAN, NAN, 300)),
        at(1000, NAN, NAN, 300),
    ]
    reader = opened(FakeMeter(channels, said))
    # Memory never said anything: it has no meter. That a card is silent shows by itself.
    assert not reader.read().lacks
    assert not reader.read().lacks
    power = reader.read()
    assert power.lacks
    assert power.total_w == 300.0


def test_a_counter_beyond_physics_is_rejected(clock: list[float]) -> None:
    gpu = channel("gpu-0", "gpu")
    meter = FakeMeter((gpu,), [at(1000, 50, energy_j=(0,)), at(1010, 50, energy_j=(2e7,))])
    reader = opened(meter)
    clock[0] = 1010.0
    assert math.isnan(reader.read().gpu_w["gpu-0"])
    assert "gpu-0 read 2e+06 W, which a gpu cannot draw" in reader.problems[-1]
    assert reader.rejected == 1


def test_the_clock_is_set_back(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    node = channel("node", "node")
    meter = FakeMeter((node,), [at(1000, 50, energy_j=(0,)), at(400, 60, energy_j=(1500,))])
    reader = opened(meter)
    clock[0] = 1010.0
    monkeypatch.setattr(module.time, "time", lambda: 400.0)
    assert reader.read().node_w == 150.0


def test_what_meters_leave_out_themselves_is_counted_once(clock: list[float]) -> None:
    wrong = Reading(time=1000, power_w=(NAN,), energy_j=(NAN,), problems=("x",), rejected=1)
    meter = FakeMeter((channel("node", "node"),), [at(1000, 50), wrong, wrong, at(1000, 50)])
    reader = opened(meter)
    for _ in range(3):
        reader.read()
    # The same reading again is one that a slow meter has not renewed.
    assert reader.rejected == 1
    assert reader.problems == ["meter fake: x"]


def test_counted_joules_are_what_was_drawn(clock: list[float]) -> None:
    """Whenever it is read: power times the time that it is said of is the counters' difference."""
    meter = FakeMeter(
        (channel("package-0", "package"),),
        [at(1000, 0, energy_j=(0,)), at(1000, 49.97, energy_j=(50.0,))],
    )
    reader = opened(meter)
    clock[0] += 1.000583
    power = reader.read()
    assert power.package_w[0] * power.passed_s == pytest.approx(50.0, rel=1e-14)


class Slow(FakeMeter):
    slow: ClassVar[bool] = True


def test_a_slow_meter_is_not_silent_before_it_could_say_anything(clock: list[float]) -> None:
    source = PowerSource(Slow((channel("node", "node"),), []), (channel("node", "node"),))
    reader = PowerReader()
    reader._sources, reader._before, reader._before_s = [source], [None], 1000.0
    source._begun_s = 1000.0
    source._thread = threading.current_thread()
    assert math.isnan(reader.read().node_w)
    assert reader.problems == []
    clock[0] += 10
    reader.read()
    assert "does not answer" in reader.problems[0]


def estimated(*, busy: str, idle: str, root: Path) -> Roots:
    return tree(root, {"proc/stat": f"cpu {busy} 0 0 {idle} 0 0 0 0\ncpu0 1\n"})


def test_an_estimate_knows_what_idle_is(tmp_path: Path) -> None:
    model = UtilisationModel.points([0.0, 1.0], [40.0, 100.0], source="by hand")
    roots = estimated(busy="100", idle="100", root=tmp_path)
    reader = PowerReader(meters=[Estimate(model=model, roots=roots)])
    reader.open()
    estimated(busy="150", idle="150", root=tmp_path)
    power = reader.read()
    assert (power.node_w, power.idle_w, power.measured) == (70.0, 40.0, False)
    assert math.isnan(PowerReader().read().idle_w)


def test_cards_are_measured_and_the_rest_is_estimated(tmp_path: Path) -> None:
    model = UtilisationModel.points([0.0, 1.0], [40.0, 100.0], source="by hand")
    roots = estimated(busy="100", idle="100", root=tmp_path)
    now = time.time()
    meter = FakeMeter((channel("gpu-0", "gpu"),), [at(now, 300), at(now, 300)])
    reader = PowerReader(meters=[meter], estimate=Estimate(model=model, roots=roots))
    reader.open()
    assert reader.problems == []
    estimated(busy="150", idle="150", root=tmp_path)
    power = reader.read()
    assert (power.gpu_w, power.rest_w, power.idle_w) == ({"gpu-0": 300.0}, 70.0, 40.0)
    assert (power.total_w, power.measured, power.sees) == (370.0, True, ("gpu",))
    assert math.isnan(power.node_w)


def test_sockets_are_not_estimated_again(tmp_path: Path) -> None:
    now = time.time()
    meter = FakeMeter((channel("package-0", "package"),), [at(now, 50), at(now, 50)])
    roots = estimated(busy="100", idle="100", root=tmp_path)
    reader = PowerReader(meters=[meter], estimate=Estimate(roots=roots))
    reader.open()
    assert math.isnan(reader.read().rest_w)
    assert reader.names == ["fake (package-0)"]


def test_who_names_a_meter_of_cards_alone_is_told_what_that_leaves_out() -> None:
    meter = FakeMeter((channel("gpu-0", "gpu"),), [at(1000, 300)])
    assert "add --meter estimate" in opened(meter).problems[0]


def test_where_nothing_moves_nothing_is_estimated(tmp_path: Path, clock: list[float]) -> None:
    roots = estimated(busy="100", idle="100", root=tmp_path)
    reader = PowerReader(estimate=Estimate(roots=roots))
    reader.open()
    clock[0] += 1.0
    assert math.isnan(reader.read().total_w)
    assert reader.problems == [
        f"nothing can be estimated: the CPU times in {roots.procfs}/stat stand still"
    ]


def test_a_meter_that_comes_late_takes_the_place_of_the_estimate(tmp_path: Path) -> None:
    roots = estimated(busy="100", idle="100", root=tmp_path)

    class Late(MeterSearch):
        def first(self) -> tuple[list[PowerSource], list[str]]:
            return [], ["meter late has not answered"]

        def late(self) -> tuple[list[PowerSource], list[str]]:
            meter = FakeMeter((channel("node", "node"),), [at(time.time(), 80)] * 9)
            return ([] if late else [late.append(1) or PowerSource(meter, meter.open())]), []

    late: list[int] = []
    reader = PowerReader(search=Late(roots=roots), estimate=Estimate(roots=roots))
    reader.open()
    assert reader.names == ["estimate (node)"]
    estimated(busy="150", idle="150", root=tmp_path)
    assert not reader.read().measured
    assert reader.names == ["fake (node)"]
    power = reader.read()
    assert (power.node_w, power.measured) == (80.0, True)
    assert math.isnan(power.idle_w)
