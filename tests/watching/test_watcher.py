"""Ticks from snapshots: everything adds up, whatever comes, goes and cannot be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from lowtide.attribution import NodePower
from lowtide.errors import InvalidInput
from lowtide.grid import Grid
from lowtide.monitor.snapshot import GpuCounts, Snapshot
from lowtide.monitor.tick import Tick
from lowtide.signal import Signal
from lowtide.watching.emissions import Emissions
from lowtide.watching.watcher import Watcher
from support.nodes import START, Drawn, Replay, snapshot, unit


def watch(
    snapshots: list[Snapshot], power_w: float | list[float] = 200.0, **how: Any
) -> list[Tick]:
    count = len(snapshots)
    watts = [power_w] if isinstance(power_w, float) else list(power_w)
    drawn = Drawn(watts, measured=how.pop("measured", True), problems=how.pop("problems", []))
    watcher = Watcher(reader=Replay(snapshots), power=drawn, host="node1", **how)
    return [tick for tick in (watcher.tick() for _ in range(count)) if tick is not None]


def test_the_first_look_tells_nothing() -> None:
    assert watch([snapshot(0, {unit("1"): 5.0}, busy_s=100)]) == []


def test_jobs_idle_and_unattributed_make_the_node() -> None:
    a, b = unit("1"), unit("2")
    ticks = watch(
        [
            snapshot(0, {a: 50, b: 10}, busy_s=100),
            snapshot(10, {a: 60, b: 30}, busy_s=140),
            snapshot(20, {a: 60, b: 50}, busy_s=170),
        ],
        idle_w=80.0,
    )
    for tick in ticks:
        shares = tick.shares
        together = shares.power_w.sum() + shares.idle_w + shares.unattributed_w
        assert together == pytest.approx(shares.node_w, rel=1e-12)
    # 120 W beyond idle: 10 of 40 and 20 of 40 CPU seconds, the rest is the system's; of 80 W idle
    # a quarter is kept for each.
    np.testing.assert_allclose(ticks[0].shares.power_w, [120 / 4 + 20, 120 / 2 + 20])
    assert ticks[0].shares.unattributed_w == pytest.approx(30)
    assert ticks[0].shares.idle_w == pytest.approx(40)
    np.testing.assert_allclose(
        ticks[1].energy_j, 10 * (ticks[0].shares.power_w + ticks[1].shares.power_w)
    )
    np.testing.assert_allclose(ticks[1].measured_j, ticks[1].energy_j)
    whole = ticks[1].energy_j.sum() + ticks[1].idle_energy_j + ticks[1].unattributed_energy_j
    assert whole == pytest.approx(ticks[1].node_energy_j, rel=1e-12)
    assert ticks[1].node_energy_j == pytest.approx(4000)


def test_what_was_there_before_counts_from_now_on_and_what_is_new_from_its_start() -> None:
    old, new = unit("1"), unit("2", started=START + 4)
    (tick,) = watch(
        [snapshot(0, {old: 50}, busy_s=100), snapshot(10, {old: 60, new: 12}, busy_s=130)]
    )
    assert tick.watched_cpu_s is not None
    np.testing.assert_allclose(tick.watched_cpu_s, [10, 12])
    np.testing.assert_allclose(tick.cpus_busy, [1.0, 1.2])
    np.testing.assert_allclose(tick.read_bytes, [10, 510])
    assert np.isnan(tick.written_bytes).all()


def test_cpu_time_counts_from_the_beginning_where_a_group_counts_it() -> None:
    job, alone = unit("1"), replace(unit("77"), source="process")
    (tick,) = watch(
        [
            snapshot(0, {job: 50, alone: 30}, busy_s=100),
            snapshot(10, {job: 60, alone: 34}, busy_s=130),
        ]
    )
    np.testing.assert_allclose(tick.cpu_s, [60, 4])
    assert tick.watched_cpu_s is not None
    np.testing.assert_allclose(tick.watched_cpu_s, [10, 4])


def test_cpu_time_of_a_job_that_its_processes_count_is_what_was_watched() -> None:
    grouped, loose = unit("1"), unit("2")
    row = [
        snapshot(10 * i, {grouped: 50 + 10 * i, loose: 30 + 4 * i}, busy_s=100 + 20 * i)
        for i in range(2)
    ]
    (tick,) = watch([replace(each, loose=frozenset([1])) for each in row])
    np.testing.assert_allclose(tick.cpu_s, [60, 4])


def test_a_number_that_is_used_again_begins_anew() -> None:
    first, second = unit("7"), unit("7", started=START + 15)
    ticks = watch(
        [
            snapshot(0, {first: 50}, busy_s=100),
            snapshot(10, {first: 60}, busy_s=110),
            snapshot(20, {second: 2}, busy_s=115),
        ]
    )
    assert ticks[0].cpu_s[0] == 60
    assert ticks[1].cpu_s[0] == 2
    assert ticks[1].energy_j[0] < ticks[0].energy_j[0] + ticks[1].shares.power_w[0] * 10


def test_a_step_without_power_adds_nothing_and_never_known_stays_unknown() -> None:
    job = unit("1")
    row = [snapshot(10 * i, {job: 10.0 * i}, busy_s=10.0 * i) for i in range(4)]
    ticks = watch(row, [0.0, math.nan, 200.0, math.nan], idle_w=0.0)
    assert math.isnan(ticks[0].energy_j[0])
    assert math.isnan(ticks[0].node_energy_j)
    assert ticks[1].energy_j[0] == pytest.approx(2000)
    assert ticks[2].energy_j[0] == pytest.approx(2000)
    assert math.isnan(ticks[2].shares.power_w[0])


def test_what_is_wrong_with_a_meter_is_said_once() -> None:
    row = [snapshot(10 * i, {}, busy_s=10.0 * i) for i in range(3)]
    ticks = watch(row, problems=["meter rapl does not answer"])
    assert [tick.problems for tick in ticks] == [("meter rapl does not answer",), ()]


def test_an_estimate_is_no_measurement() -> None:
    job = unit("1")
    row = [snapshot(10 * i, {job: 10.0 * i}, busy_s=10.0 * i) for i in range(2)]
    (tick,) = watch(row, measured=False, idle_w=0.0)
    assert tick.energy_j[0] == pytest.approx(2000)
    assert tick.measured_j[0] == 0.0
    assert not tick.shares.measured


def test_a_clock_that_stands_still_or_a_counter_that_falls() -> None:
    job = unit("1")
    ticks = watch(
        [
            snapshot(0, {job: 50}, busy_s=100),
            snapshot(0, {job: 55}, busy_s=110),
            snapshot(10, {job: 40}, busy_s=105),
        ]
    )
    assert len(ticks) == 1
    assert ticks[0].cpus_busy[0] == 0.0
    assert ticks[0].watched_cpu_s is not None
    assert ticks[0].watched_cpu_s[0] == 0.0


def test_emissions_are_energy_times_the_grid_and_the_building() -> None:
    average = Signal.from_values([100.0, 500.0], start=START - 3600 + 5, step_s=3600)
    marginal = Signal.from_values([900.0], start=START - 3600, step_s=7200, kind="marginal")
    job = unit("1")
    row = [snapshot(10 * i, {job: 10.0 * i}, busy_s=10.0 * i) for i in range(2)]
    (tick,) = watch(
        row,
        idle_w=0.0,
        emissions=Emissions(
            grid=Grid(average=average, marginal=marginal),
            pue=1.5,
            embodied_g=1_000_000,
            lifetime_s=1e8,
        ),
    )
    # Half of the ten seconds at 100, half at 500 g/kWh.
    assert tick.intensity_g_per_kwh == pytest.approx(300)
    assert tick.carbon_g[0] == pytest.approx(2000 / 3.6e6 * 300 * 1.5)
    assert tick.marginal_g[0] == pytest.approx(2000 / 3.6e6 * 900 * 1.5)
    assert tick.embodied_g[0] == pytest.approx(1e6 * 10 / 1e8 * 2 / 8)


def test_outside_of_the_signal_emissions_are_unknown_and_said_so() -> None:
    grid = Grid(average=Signal.from_values([100.0], start=START - 9000, step_s=3600))
    job = unit("1")
    row = [snapshot(10 * i, {job: 10.0 * i}, busy_s=10.0 * i) for i in range(2)]
    (tick,) = watch(row, emissions=Emissions(grid=grid))
    assert math.isnan(tick.carbon_g[0])
    assert "watch with a newer one" in tick.problems[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pue": 0.9}, "PUE is 1 or more"),
        ({"embodied_g": -1.0}, "embodied emissions are 0 g or more"),
        ({"lifetime_s": 0.0}, "lifetime is more than 0 s"),
    ],
)
def test_emissions_that_cannot_be(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Emissions(**wrong)  # type: ignore[arg-type]


def test_gpus_go_to_who_holds_them() -> None:
    a, b = unit("1"), unit("2")
    gpus = (
        GpuCounts(
            name="gpu-0", uuid="", busy=0.8, memory_bytes=10, total_bytes=100, holders={0: 1.0}
        ),
        GpuCounts(
            name="gpu-1",
            uuid="",
            busy=0.5,
            memory_bytes=20,
            total_bytes=100,
            holders={0: 0.4, 1: 0.6},
        ),
    )
    (tick,) = watch(
        [
            snapshot(0, {a: 0, b: 0}, busy_s=0, gpus=gpus),
            snapshot(10, {a: 1, b: 1}, busy_s=3, gpus=gpus),
        ]
    )
    np.testing.assert_allclose(tick.gpus_busy, [1.0, 0.3])
    np.testing.assert_allclose(tick.gpu_memory_bytes, [18, 12])
    np.testing.assert_allclose(tick.reserved_gpus, [2, 1])


def test_what_a_gpu_does_may_be_unknown_and_is_not_nothing() -> None:
    a, b, c = unit("1"), unit("2"), unit("3")
    unknown = {"busy": math.nan, "memory_bytes": math.nan, "total_bytes": 40.0}
    gpus = (
        GpuCounts(name="gpu-0/0", uuid="", **unknown, share=0.5, holders={0: 1.0}),
        GpuCounts(
            name="gpu-0/1",
            uuid="",
            busy=0.6,
            memory_bytes=10,
            total_bytes=20,
            share=0.25,
            holders={1: 1.0},
        ),
    )
    row = [snapshot(10 * i, {a: 0, b: 0, c: 0}, busy_s=3.0 * i, gpus=gpus) for i in range(2)]
    (tick,) = watch(row)
    np.testing.assert_allclose(tick.gpus_busy, [math.nan, 0.6 * 0.25, 0.0])
    np.testing.assert_allclose(tick.gpu_memory_bytes, [math.nan, 10, 0.0])
    np.testing.assert_allclose(tick.reserved_gpus, [0.5, 0.25, 0.0])


@dataclass
class Counters:
    """Meters that were read at other times than the node was."""

    problems: list[str] = field(default_factory=list)
    rejected: int = 0

    def read(self) -> NodePower:
        return NodePower(
            package_w=(50.0 / 1.000583,),
            gpu_w={"gpu-0": 30.0},
            rest_w=20.0,
            idle_w=5.0,
            passed_s=1.000583,
            measured=True,
        )


@dataclass
class Silenced(Counters):
    """Meters of which that of the sockets falls silent."""

    def read(self) -> NodePower:
        return replace(super().read(), package_w=(math.nan,), lacks=True)


def test_energy_that_lacks_a_part_says_so() -> None:
    job = unit("1")
    row = [snapshot(i, {job: 1.0 * i}, busy_s=2.0 * i) for i in range(2)]
    watcher = Watcher(reader=Replay(row), power=Silenced(), host="node1")
    watcher.tick()
    tick = watcher.tick()
    assert tick is not None
    assert tick.node_energy_j > 0
    assert tick.unmetered_s[0] == tick.node_unmetered_s == pytest.approx(1.0)


def test_energy_is_what_the_counters_moved_by() -> None:
    job = unit("1")
    row = [snapshot(i, {job: 1.0 * i}, busy_s=2.0 * i) for i in range(3)]
    watcher = Watcher(reader=Replay(row), power=Counters(), host="node1")
    ticks = [tick for tick in (watcher.tick() for _ in row) if tick is not None]
    assert ticks[0].package_energy_j == pytest.approx((50.0,), rel=1e-14)
    whole_j = 50.0 + 1.000583 * 50.0
    assert ticks[0].node_energy_j == pytest.approx(whole_j, rel=1e-14)
    for place, tick in enumerate(ticks):
        parts = [*tick.energy_j, tick.idle_energy_j, tick.unattributed_energy_j]
        assert math.fsum(parts) == pytest.approx(tick.node_energy_j, rel=1e-12)
        assert tick.node_energy_j == pytest.approx((place + 1) * whole_j, rel=1e-12)
        # The rest was estimated, and so was that part of what the job is charged with.
        assert 0 < tick.measured_j[0] < tick.energy_j[0]
        assert not tick.shares.measured


def test_idle_power_is_learned_while_the_node_is_idle() -> None:
    job = unit("1")
    idle = [snapshot(10 * i, {job: 0.0}, busy_s=0.1 * i) for i in range(3)]
    busy = [snapshot(30 + 10 * i, {job: 80.0 * (i + 1)}, busy_s=80.3 * (i + 1)) for i in range(2)]
    ticks = watch([*idle, *busy], [60.0, 60.0, 60.0, 200.0, 200.0])
    # Of 60 W idle a quarter is kept for the job, the rest is nobody's.
    assert ticks[-1].shares.idle_w == pytest.approx(45, rel=0.05)


def test_what_may_not_be_read_at_the_first_look_is_told_with_the_first_tick() -> None:
    row = [snapshot(10 * i, {}, busy_s=10.0 * i) for i in range(3)]
    row[0] = replace(row[0], problems=("job 12 may not be read: watch as root",))
    ticks = watch(row)
    assert [tick.problems for tick in ticks] == [("job 12 may not be read: watch as root",), ()]


def test_rejected_readings_of_the_node_and_of_its_meters_are_counted() -> None:
    row = [snapshot(10 * i, {}, busy_s=10.0 * i) for i in range(2)]
    row[1] = replace(row[1], rejected=3)
    watcher = Watcher(reader=Replay(row), power=Drawn([100.0], rejected=4), host="node1")
    assert watcher.tick() is None
    tick = watcher.tick()
    assert tick is not None
    assert tick.rejected == 7


def test_time_without_power_and_energy_without_a_grid_are_told() -> None:
    job = unit("1")
    row = [snapshot(10 * i, {job: 10.0 * i}, busy_s=10.0 * i) for i in range(5)]
    # The signal ends 20 s after the start; the meter is silent in the third step.
    average = Signal.from_values([360.0], start=START - 3580, step_s=3600)
    ticks = watch(
        row,
        [0.0, 100.0, 100.0, math.nan, 100.0],
        idle_w=0.0,
        emissions=Emissions(grid=Grid(average=average)),
    )
    last = ticks[-1]
    assert last.energy_j[0] == pytest.approx(3000)
    assert [tick.unmetered_s[0] for tick in ticks] == [0, 0, 10, 10]
    np.testing.assert_allclose([tick.unpriced_j[0] for tick in ticks], [0, 0, 0, 1000])
    # What is priced is what the rest of the energy emitted.
    assert last.carbon_g[0] == pytest.approx((3000 - 1000) / 3.6e6 * 360)
    assert (last.node_unmetered_s, last.node_unpriced_j) == (10, 1000)
    assert last.node_carbon_g == pytest.approx(last.carbon_g[0])


def test_grams_add_up_to_the_nodes() -> None:
    a, b = unit("1"), unit("2")
    average = Signal.from_values([300.0], start=START, step_s=3600)
    (tick,) = watch(
        [snapshot(0, {a: 50, b: 10}, busy_s=100), snapshot(10, {a: 60, b: 30}, busy_s=140)],
        idle_w=80.0,
        emissions=Emissions(grid=Grid(average=average), pue=1.3),
    )
    assert min(tick.idle_carbon_g, tick.unattributed_carbon_g) > 0
    together = tick.carbon_g.sum() + tick.idle_carbon_g + tick.unattributed_carbon_g
    assert together == pytest.approx(tick.node_carbon_g, rel=1e-12)
    assert tick.node_carbon_g == pytest.approx(1.3 * 2000 / 3.6e6 * 300)


def test_waits_and_a_network_of_its_own_count_from_the_first_look() -> None:
    job = unit("1")
    row = [
        replace(
            snapshot(10 * i, {job: 10.0 * i}, busy_s=10.0 * i),
            cpu_wait_s=np.array([5.0 + i]),
            memory_wait_s=np.array([6.0]),
            io_wait_s=np.array([7.0 + 2 * i]),
            received_bytes=np.array([100.0 + 10 * i]),
            sent_bytes=np.array([np.nan]),
        )
        for i in range(3)
    ]
    # Waits are read seldom: at first nobody knows them.
    last = watch([snapshot(-10, {job: 0.0}, busy_s=0), *row])[-1]
    assert (last.cpu_wait_s[0], last.memory_wait_s[0], last.io_wait_s[0]) == (2, 0, 4)
    assert last.received_bytes[0] == 20
    assert math.isnan(last.sent_bytes[0])


def test_what_a_gpu_does_not_tell_is_unknown_rather_than_nothing() -> None:
    a, b = unit("1"), unit("2")
    instance = GpuCounts(
        name="gpu-0/1",
        uuid="",
        busy=math.nan,
        memory_bytes=10,
        total_bytes=40,
        holders={0: 1.0},
    )
    (tick,) = watch(
        [
            snapshot(0, {a: 0, b: 0}, busy_s=0, gpus=(instance,)),
            snapshot(10, {a: 1, b: 1}, busy_s=3, gpus=(instance,)),
        ]
    )
    assert math.isnan(tick.gpus_busy[0])
    assert tick.gpus_busy[1] == 0
    assert tick.gpu_memory_bytes[0] == 10


def test_a_clock_that_is_set_changes_neither_energy_nor_what_began_meanwhile() -> None:
    old, new = unit("1"), unit("2", started=START - 3600 + 14)
    rows = [
        replace(snapshot(0, {old: 50}, busy_s=100), clock_s=5.0),
        replace(snapshot(10, {old: 60}, busy_s=110), clock_s=15.0),
        # Set back by an hour; a job begins four seconds later.
        replace(snapshot(20 - 3600, {old: 70, new: 6}, busy_s=126), clock_s=25.0),
    ]
    ticks = watch(rows, 100.0, idle_w=0.0)
    assert len(ticks) == 2
    np.testing.assert_allclose(ticks[1].cpu_s, [70, 6])
    assert ticks[1].time - ticks[1].since == 10
    assert ticks[1].time == START + 20 - 3600
    assert ticks[1].node_energy_j == pytest.approx(2000)
    whole = ticks[1].energy_j.sum() + ticks[1].idle_energy_j + ticks[1].unattributed_energy_j
    assert whole == pytest.approx(2000, rel=1e-12)


@pytest.mark.parametrize("late", [0, 1, 4])
@pytest.mark.parametrize("ends", [True, False])
def test_a_job_whose_limits_come_late_is_charged_as_if_they_had_not(late: int, ends: bool) -> None:
    """Slurm limits a group after it made it; a watcher may look in between."""

    def watched(unknown: int) -> Tick:
        job, other = unit("1", started=START), unit("2")
        seen = []
        for step in range(9):
            made = snapshot(10.0 * step, {job: 2.0 * step, other: 5.0 * step}, busy_s=8.0 * step)
            reserved = np.array([np.nan if step <= unknown else 2.0, 3.0])
            made = replace(made, reserved_cpus=reserved)
            if ends and step == 8:
                made = replace(made, ended=np.array([START + 75.0, np.nan]))
            seen.append(made)
        watcher = Watcher(
            reader=Replay(seen),
            power=Drawn([100.0]),
            idle_w=60.0,
            emissions=Emissions(embodied_g=1e6),
        )
        ticks = [tick for _ in range(9) if (tick := watcher.tick()) is not None]
        for tick in ticks:
            parts = [tick.shares.idle_w, tick.shares.unattributed_w, *tick.shares.power_w]
            assert math.fsum(parts) == pytest.approx(tick.shares.node_w)
            assert min(parts) >= 0
        energies = [tick.energy_j[0] for tick in ticks]
        assert energies == sorted(energies)
        return ticks[-1]

    truth, told = watched(-1), watched(late)
    assert told.energy_j == pytest.approx(truth.energy_j, rel=0.02)
    assert told.embodied_g == pytest.approx(truth.embodied_g, rel=0.02)
    assert told.measured_j == pytest.approx(truth.measured_j, rel=0.02)
    assert told.idle_energy_j == pytest.approx(truth.idle_energy_j, rel=0.02)
