from __future__ import annotations

import dataclasses
import json
import math
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.attribution import IdleFloor, NodePower, cpu_used, share_out
from lowtide.errors import UnknownName
from lowtide.monitor.snapshot import GpuCounts, Snapshot
from lowtide.monitor.tick import Shares
from support.nightly import drawn
from support.snapshots import GIB, gpu, snapshot, unit, units

NAN = math.nan


def off(shares: Shares) -> float:
    """By how much a sharing misses the node, relative to it."""
    total_w = math.fsum(shares.power_w) + shares.idle_w + shares.unattributed_w
    return abs(total_w - shares.node_w) / (shares.node_w or 1.0)


def is_power(watts: float) -> bool:
    return math.isfinite(watts) and watts >= 0


def oracle(before: Snapshot, after: Snapshot, power: NodePower, idle_w: float | None):
    """The same rules, one watt at a time: returns what each unit bears and what is idle."""
    sockets_w = [watts for watts in power.package_w if is_power(watts)]
    dram_w = power.dram_w if is_power(power.dram_w) else 0.0
    cards_w = {name: watts for name, watts in power.gpu_w.items() if is_power(watts)}
    parts_w = sum(sockets_w) + dram_w + sum(cards_w.values())
    node_w, scale = power.node_w, 1.0
    if not is_power(node_w):
        node_w = parts_w + (power.rest_w if is_power(power.rest_w) else 0.0)
    elif parts_w > node_w:
        scale = node_w / parts_w
    count = len(after.units)
    bears, idle = [0.0] * count, 0.0

    for name, card_w in cards_w.items():
        found = [each for each in after.gpus if each.name.startswith(name + "/")]
        found = found or [each for each in after.gpus if each.name == name]
        for each in found:
            sizes = [one.total_bytes for one in found]
            weights = [one.busy * one.total_bytes for one in found]
            if not sum(weights) > 0:
                weights = sizes
            watts = scale * card_w * weights[found.index(each)] / sum(weights)
            if not each.holders and each.busy == 0:
                idle += watts
            for place, share in each.holders.items():
                bears[place] += watts * share

    total = after.node.memory_bytes
    if total > 0:
        held = [
            value * was_there(before, after, place) if is_power(value) else 0.0
            for place, value in enumerate(after.memory_bytes)
        ]
        whole = max(total, sum(held))
        for place, value in enumerate(held):
            bears[place] += scale * dram_w * value / whole
        idle += scale * dram_w * (1 - sum(held) / whole)

    base_w = max(node_w - scale * (dram_w + sum(cards_w.values())), 0.0)
    elapsed_s = max(after.time - before.time, 0.0)
    used = []
    for place, each in enumerate(after.units):
        first = next((i for i, old in enumerate(before.units) if old.key == each.key), None)
        value = after.cpu_s[place]
        if first is not None:
            value -= before.cpu_s[first]
        elif each.started < before.time - 1:
            value = NAN
        used.append(min(value, elapsed_s * after.node.cpus) if value > 0 else 0.0)
    busy = after.node.busy_s - before.node.busy_s
    busy = max(busy if busy > 0 else 0.0, sum(used))
    asked = [
        value * was_there(before, after, place) if is_power(value) else 0.0
        for place, value in enumerate(after.reserved_cpus)
    ]
    whole = max(after.node.cpus, sum(asked))
    asked = [value / whole for value in asked]

    if idle_w is None:
        for place in range(count):
            if busy > 0:
                most = max(elapsed_s * after.node.cpus, busy)
                share = max(min(asked[place], used[place] / busy), used[place] / most)
                bears[place] += base_w * share
        return bears, idle
    floor_w = min(idle_w, base_w)
    for place in range(count):
        bears[place] += floor_w * asked[place]
    idle += floor_w * (1 - sum(asked))
    dynamic_w = base_w - floor_w
    number = len(power.package_w)
    if after.socket_shares is not None and number > 1 and len(sockets_w) == number:
        least_w = min(min(sockets_w) * scale, floor_w / number)
        above = [watts * scale - least_w for watts in sockets_w]
        if sum(above) <= 0:
            above = [1.0] * number
        rows = [
            [1 / number] * number if any(np.isnan(row)) else list(row)
            for row in after.socket_shares
        ]
        for socket in range(number):
            times = [used[place] * rows[place][socket] for place in range(count)]
            all_s = sum(times) + (busy - sum(used)) / number
            for place in range(count):
                if all_s > 0:
                    bears[place] += dynamic_w * above[socket] / sum(above) * times[place] / all_s
    elif busy > 0:
        for place in range(count):
            bears[place] += dynamic_w * used[place] / busy
    return bears, idle


def was_there(before: Snapshot, after: Snapshot, place: int) -> float:
    """The share of the step from which a unit began to which it ended."""
    if after.time <= before.time:
        return 1.0
    end = after.time
    if after.ended is not None and not math.isnan(after.ended[place]):
        end = min(max(after.ended[place], before.time), after.time)
    begin = min(max(after.units[place].started, before.time), end)
    return (end - begin) / (after.time - before.time)


# Numbers as meters and kernels give them, and as they give them when they are broken.
watts = st.sampled_from([35.5, 120.0, 300.0, 410.0, 700.0, 1234.5, 0.0, NAN, math.inf, -3.0])
early = st.sampled_from([0.0, 1.0, 5.5, 40.0, NAN])
late = st.sampled_from([0.5, 3.0, 20.0, 60.25, 77.0, 300.0, 500.0, 1e9, NAN, -1.0])
cpus_kept = st.sampled_from([0.0, 0.5, 1.0, 4.0, 7.0, 32.0, 100.0, NAN])
bytes_held = st.sampled_from([0.0, GIB, 40 * GIB, 150 * GIB, NAN])
# One that is always there, one used again, one that starts in between, one that was not seen.
POOL = [unit("a"), unit("b"), unit("b", started=495), unit("c", started=495), unit("d")]


@st.composite
def gpus(draw: st.DrawFn, count: int) -> list[GpuCounts]:
    names = draw(st.sampled_from([[], ["gpu-0"], ["gpu-0", "gpu-1"], ["gpu-0/1", "gpu-0/2"]]))
    made = []
    for name in names:
        holders = {}
        if count and draw(st.booleans()):
            places = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
            weights = [draw(st.integers(1, 9)) for _ in places]
            holders = {p: w / sum(weights) for p, w in zip(places, weights, strict=True)}
        busy = draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
        made.append(gpu(name, holders, busy=busy, total_bytes=draw(st.sampled_from([10, 20]))))
    return made


@st.composite
def steps(draw: st.DrawFn) -> tuple[Snapshot, Snapshot, NodePower, float | None]:
    old = draw(st.permutations(POOL))[: draw(st.integers(0, 4))]
    new = draw(st.permutations(POOL))[: draw(st.integers(0, 4))]
    if draw(st.booleans()):
        # A reader may make its units anew, and know more of them by then.
        new = [dataclasses.replace(each, user="known now") for each in new]
    cpus = draw(st.sampled_from([1, 8, 64, 128]))
    rows = None
    if draw(st.booleans()):
        share = st.sampled_from([(1.0, 0.0), (0.0, 1.0), (0.25, 0.75), (NAN, NAN)])
        rows = np.array([draw(share) for _ in new]).reshape(-1, 2)
    before = snapshot(490, of=old, cpus=cpus, cpu_s=[draw(early) for _ in old], busy_s=draw(early))
    after = snapshot(
        490 + draw(st.sampled_from([10.0, 10.0, 10.0, 0.1, 0.0, -5.0])),
        of=new,
        cpus=cpus,
        cpu_s=[draw(late) for _ in new],
        busy_s=draw(late),
        memory_bytes=[draw(bytes_held) for _ in new],
        reserved=[draw(cpus_kept) for _ in new],
        gpus=draw(gpus(len(new))),
        socket_shares=rows,
        node_bytes=draw(st.sampled_from([256 * GIB, 256 * GIB, NAN])),
    )
    if draw(st.booleans()):
        over = [draw(st.sampled_from([NAN, 480.0, 493.0, 497.5, 600.0])) for _ in new]
        after = dataclasses.replace(after, ended=np.array(over, dtype=np.float64))
    cards = draw(st.sampled_from([("gpu-0",), ("gpu-0", "gpu-1", "gpu-9"), ()]))
    power = NodePower(
        node_w=draw(watts),
        package_w=draw(
            st.sampled_from([(), (90.0,), (90.0, 150.0), (40.0, 150.0), (0.0, 0.0), (NAN, 80.0)])
        ),
        dram_w=draw(watts),
        gpu_w={name: draw(watts) for name in cards},
        rest_w=draw(st.sampled_from([NAN, NAN, 0.0, 45.5, -1.0])),
        measured=draw(st.booleans()),
    )
    return before, after, power, draw(st.sampled_from([None, 0.0, 25.0, 90.0, 200.0, 5000.0]))


@settings(max_examples=drawn(50, 1000))
@given(steps())
def test_jobs_and_idle_and_the_rest_make_the_node_as_the_rules_say(step) -> None:
    before, after, power, idle_w = step
    shares = share_out(before, after, power, idle_w=idle_w)
    assert shares.power_w.shape == (len(after.units),)
    seen = [power.node_w, power.dram_w, power.rest_w, *power.package_w, *power.gpu_w.values()]
    if not any(map(is_power, seen)):
        assert np.isnan([shares.node_w, shares.idle_w, shares.unattributed_w]).all()
        assert np.isnan(shares.power_w).all()
        return
    if is_power(power.node_w):
        assert shares.node_w == power.node_w
    assert off(shares) < 1e-9
    assert (shares.power_w >= 0).all()
    assert (shares.gpu_w <= shares.power_w + 1e-9).all()
    assert shares.idle_w >= 0
    assert shares.unattributed_w >= 0
    rest_w = 0.0 if is_power(power.node_w) or not is_power(power.rest_w) else power.rest_w
    measured_w = (shares.node_w - rest_w) if power.measured else 0.0
    assert shares.node_measured_w == pytest.approx(measured_w, rel=1e-9, abs=1e-9)
    assert (shares.measured_w >= 0).all()
    assert (shares.measured_w <= shares.power_w).all()
    assert float(shares.measured_w.sum()) <= measured_w * (1 + 1e-9) + 1e-9
    if shares.measured:
        assert shares.measured_w == pytest.approx(shares.power_w)
    bears, idle = oracle(before, after, power, idle_w)
    assert shares.power_w == pytest.approx(bears, rel=1e-9, abs=1e-9)
    assert shares.idle_w == pytest.approx(idle, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_of_any_size_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = units(200)

    def wild(count: int) -> np.ndarray:
        values = rng.lognormal(0, 8, count)
        values[rng.random(count) < 0.1] = rng.choice([NAN, -1.0, math.inf, 0.0, 1e300])
        return values

    rows = rng.random((200, 2))
    before = snapshot(0, of=jobs, cpu_s=wild(200), busy_s=float(wild(1)[0]))
    after = snapshot(
        float(rng.lognormal(0, 4)),
        of=jobs,
        cpu_s=wild(200),
        busy_s=float(wild(1)[0]),
        memory_bytes=wild(200),
        reserved=wild(200),
        socket_shares=rows,
        gpus=[gpu("gpu-0", {0: 0.3, 199: 0.7}), gpu("gpu-1", busy=1.0)],
    )
    power = NodePower(
        node_w=float(rng.lognormal(0, 8)),
        package_w=tuple(wild(2)),
        dram_w=float(wild(1)[0]),
        gpu_w={"gpu-0": float(wild(1)[0]), "gpu-1": 80.0},
        measured=True,
    )
    for idle_w in (None, float(rng.lognormal(0, 8))):
        shares = share_out(before, after, power, idle_w=idle_w)
        assert off(shares) < 1e-9
        assert (shares.power_w >= 0).all()


def test_idle_power_follows_reservations_and_the_rest_cpu_time() -> None:
    jobs = [unit("a"), unit("b")]
    before = snapshot(0, of=jobs, reserved=[32, 16])
    after = snapshot(10, of=jobs, cpu_s=[320, 0], busy_s=400, reserved=[32, 16])
    shares = share_out(before, after, NodePower(node_w=360, measured=True), idle_w=160)
    # Half and a quarter of 160 W; 320 of 400 CPU seconds of the other 200 W; a quarter unreserved.
    assert shares.power_w == pytest.approx([80 + 160, 40])
    assert shares.idle_w == pytest.approx(40)
    assert shares.unattributed_w == pytest.approx(40)


def test_what_was_there_for_part_of_the_time_bears_that_part_of_its_reservation() -> None:
    jobs = [unit("short", started=4.0), unit("long")]
    after = snapshot(10, of=jobs, cpu_s=[0, 0], busy_s=0, reserved=[32, 32])
    after = dataclasses.replace(after, ended=np.array([9.0, NAN]))
    power = NodePower(node_w=160, measured=True)
    shares = share_out(snapshot(0, of=jobs[1:], reserved=[32]), after, power, idle_w=160)
    # Half of the CPUs for half of the time, and half of them for all of it.
    assert shares.power_w.tolist() == [40.0, 80.0]
    assert shares.idle_w == 40.0


def test_more_reserved_than_there_is_is_brought_down() -> None:
    jobs = [unit("a"), unit("b")]
    after = snapshot(10, of=jobs, reserved=[96, 32])
    shares = share_out(
        snapshot(0, of=jobs), after, NodePower(node_w=100, measured=True), idle_w=100
    )
    assert shares.power_w == pytest.approx([75, 25])
    assert shares.idle_w == 0


def test_memory_power_goes_by_memory_and_free_memory_is_idle() -> None:
    jobs = [unit("a"), unit("b")]
    after = snapshot(10, of=jobs, memory_bytes=[64 * GIB, 32 * GIB])
    shares = share_out(snapshot(0, of=jobs), after, NodePower(dram_w=40, measured=True), idle_w=0)
    assert shares.power_w == pytest.approx([10, 5])
    assert shares.idle_w == pytest.approx(25)
    assert shares.node_w == 40


@pytest.mark.parametrize(
    ("cards", "borne", "idle", "left"),
    [
        ([gpu(holders={0: 1.0}, busy=0.0)], [300, 0], 0, 0),
        ([gpu(holders={0: 0.75, 1: 0.25}, busy=0.9)], [225, 75], 0, 0),
        ([gpu(busy=0.0)], [0, 0], 300, 0),
        ([gpu(busy=0.4)], [0, 0], 0, 300),
        ([gpu(busy=NAN)], [0, 0], 0, 300),
        ([], [0, 0], 0, 300),
        ([gpu(holders={0: NAN, 1: NAN})], [150, 150], 0, 0),
        ([gpu(holders={0: 0.5, 7: 0.5})], [150, 0], 0, 150),
        # Instances of a divided card: by use and size where use is known, else by size.
        (
            [gpu("gpu-0/1", {0: 1.0}, busy=0.5), gpu("gpu-0/2", {1: 1.0}, busy=0.25)],
            [200, 100],
            0,
            0,
        ),
        ([gpu("gpu-0/1", {0: 1.0}, busy=NAN), gpu("gpu-0/2", busy=0.0)], [150, 0], 150, 0),
        (
            [
                gpu("gpu-0/1", {0: 1.0}, busy=NAN, total_bytes=20),
                gpu("gpu-0/2", {1: 1.0}, busy=NAN, total_bytes=10),
            ],
            [200, 100],
            0,
            0,
        ),
    ],
)
def test_a_gpu_is_its_holders(cards, borne, idle, left) -> None:
    jobs = [unit("a"), unit("b")]
    power = NodePower(gpu_w={"gpu-0": 300.0}, measured=True)
    shares = share_out(snapshot(0, of=jobs), snapshot(10, of=jobs, gpus=cards), power)
    assert shares.power_w == pytest.approx(borne)
    assert shares.gpu_w == pytest.approx(borne)
    assert shares.idle_w == pytest.approx(idle)
    assert shares.unattributed_w == pytest.approx(left)


def test_cards_are_measured_and_the_rest_is_estimated() -> None:
    jobs = [unit("gpu"), unit("cpu")]
    before = snapshot(0, of=jobs, reserved=[32, 32])
    cards = [gpu(holders={0: 1.0}, busy=0.9)]
    after = snapshot(10, of=jobs, cpu_s=[0, 320], busy_s=320, reserved=[32, 32], gpus=cards)
    power = NodePower(gpu_w={"gpu-0": 300.0}, rest_w=100.0, measured=True)
    shares = share_out(before, after, power, idle_w=40)
    assert shares.node_w == 400
    assert shares.power_w == pytest.approx([300 + 20, 20 + 60])
    assert off(shares) < 1e-12
    # What the first one's card drew was measured, and nothing of the second.
    assert shares.measured_w == pytest.approx([300, 0])
    assert (shares.node_measured_w, shares.measured, shares.sees) == (300, False, ("gpu",))
    assert power.meters == "measured gpu-0 rest"
    there = share_out(before, after, power, rules="ceems")
    assert there.power_w == pytest.approx([300 + 5, 5 + 90])
    assert there.measured_w == pytest.approx([300, 0])


@pytest.mark.parametrize(
    ("power", "sees"),
    [
        (NodePower(node_w=300, package_w=(50,), measured=True), ("node",)),
        (NodePower(package_w=(50, NAN), dram_w=4, measured=True), ("package", "dram")),
        (NodePower(gpu_w={"gpu-0": 4.0, "gpu-1": NAN}, measured=True), ("gpu",)),
        (NodePower(node_w=300, measured=False), ()),
    ],
)
def test_what_meters_see(power: NodePower, sees: tuple[str, ...]) -> None:
    assert share_out(snapshot(0), snapshot(10), power).sees == sees


def test_whose_power_lacks_a_part() -> None:
    jobs = [unit("a"), unit("b")]
    cards = [gpu("gpu-0", {0: 1.0}), gpu("gpu-1/0", {1: 0.0}), gpu("gpu-1/1")]

    def lacking(**power: object) -> tuple[set[int], bool]:
        after = snapshot(10, of=jobs, gpus=cards)
        shares = share_out(snapshot(0, of=jobs), after, NodePower(measured=True, **power))
        return set(shares.lacking), shares.node_lacks

    watts = {"gpu-0": 100.0, "gpu-1": 100.0}
    assert lacking(gpu_w=watts) == (set(), False)
    assert lacking(gpu_w=watts | {"gpu-1": NAN}) == ({1}, True)
    assert lacking(gpu_w=watts, lacks=True) == ({0, 1}, True)
    # The node's own meter sees everything.
    assert lacking(gpu_w=watts | {"gpu-1": NAN}, node_w=300.0, lacks=True) == (set(), False)


def test_each_socket_is_shared_by_those_on_it() -> None:
    jobs = [unit("hot"), unit("cool")]
    rows = [[1, 0], [0, 1]]
    before = snapshot(0, of=jobs, socket_shares=rows)
    after = snapshot(10, of=jobs, cpu_s=[100, 100], busy_s=200, socket_shares=rows)
    power = NodePower(package_w=(150, 50), measured=True)
    shares = share_out(before, after, power, idle_w=100)
    assert shares.power_w == pytest.approx([100, 0])
    assert shares.idle_w == pytest.approx(100)
    mixed = share_out(before, dataclasses.replace(after, socket_shares=None), power, idle_w=100)
    assert mixed.power_w == pytest.approx([50, 50])


def test_without_a_floor_nobody_is_charged_for_what_may_be_idle() -> None:
    jobs = [unit("whole")]
    power = NodePower(node_w=200, measured=True)

    def bears(reserved: float, used_s: float, busy_s: float) -> float:
        after = snapshot(10, of=jobs, cpu_s=[used_s], busy_s=busy_s, reserved=[reserved])
        shares = share_out(snapshot(0, of=jobs, reserved=[reserved]), after, power)
        assert shares.idle_w == 0
        assert off(shares) < 1e-12
        return float(shares.power_w[0])

    # All CPUs reserved and nobody else busy: whatever the floor, all of it is this job's.
    assert bears(64, 320, 320) == pytest.approx(200)
    # Half reserved: at least half.
    assert bears(32, 320, 320) == pytest.approx(100)
    # Nothing reserved: what it used of what the CPUs could do.
    assert bears(0, 320, 320) == pytest.approx(100)
    assert bears(64, 0, 0) == 0


@given(
    st.floats(0, 300),
    st.lists(st.tuples(st.floats(0, 32), st.floats(0, 1)), min_size=1, max_size=5),
)
def test_without_a_floor_a_job_bears_at_most_what_it_would_with_any(idle_w: float, asked) -> None:
    # Jobs that stay within what they have reserved, and reserve no more than there is.
    scale = 64 / max(64, sum(cpus for cpus, _ in asked))
    reserved = [cpus * scale for cpus, _ in asked]
    used_s = [10 * cpus * use for cpus, (_, use) in zip(reserved, asked, strict=True)]
    jobs = units(len(asked))
    before = snapshot(0, of=jobs, reserved=reserved)
    after = snapshot(10, of=jobs, cpu_s=used_s, busy_s=sum(used_s), reserved=reserved)
    power = NodePower(node_w=300, measured=True)
    least = share_out(before, after, power).power_w
    assert (least <= share_out(before, after, power, idle_w=idle_w).power_w + 1e-9).all()


def test_parts_that_come_to_more_than_the_node_are_brought_down_to_it() -> None:
    after = snapshot(10, of=[unit()], gpus=[gpu(holders={0: 1.0})])
    power = NodePower(node_w=300, package_w=(200,), gpu_w={"gpu-0": 400.0}, measured=True)
    shares = share_out(snapshot(0, of=[unit()]), after, power, idle_w=0)
    assert shares.gpu_w == pytest.approx([200])
    assert shares.node_w == 300
    assert off(shares) < 1e-12
    assert power.base_w == pytest.approx(100)
    assert power.total_w == 300


def test_nothing_known_is_not_nothing_drawn() -> None:
    shares = share_out(snapshot(0), snapshot(10, of=[unit()]), NodePower(measured=False))
    assert math.isnan(shares.node_w)
    assert np.isnan(shares.power_w).all()
    assert not shares.measured


class TestCpuUsed:
    def test_counters_that_go_back_and_units_that_come_and_go(self) -> None:
        old, back, gone = unit("old"), unit("back"), unit("gone")
        fresh, late = unit("fresh", started=105), unit("late", started=3)
        again = unit("gone", started=104)
        before = snapshot(100, of=[gone, old, back], cpu_s=[50, 10, 70])
        after = snapshot(110, of=[late, old, fresh, back, again], cpu_s=[99, 12, 3, 60, 4])
        assert cpu_used(before, after).tolist() == [0, 2, 3, 0, 4]

    def test_what_is_told_later_of_a_unit_makes_it_no_other(self) -> None:
        before = snapshot(0, of=[unit("a")], cpu_s=[5])
        after = snapshot(10, of=[unit("a", user="eve", name="x")], cpu_s=[9])
        assert cpu_used(before, after).tolist() == [4]

    def test_nobody_uses_more_than_the_node_has(self) -> None:
        jobs = [unit("a"), unit("b")]
        after = snapshot(10, of=jobs, cpu_s=[1e9, NAN], cpus=4)
        assert cpu_used(snapshot(0, of=jobs, cpus=4), after).tolist() == [40, 0]
        assert cpu_used(snapshot(10, of=jobs, cpus=4), after).tolist() == [0, 0]


class TestCeems:
    """The rules that CEEMS ships, and what was published of them."""

    def two_jobs(self) -> tuple[Snapshot, Snapshot]:
        jobs = [unit("a"), unit("b")]
        return snapshot(0, of=jobs), snapshot(
            10,
            of=jobs,
            cpu_s=[70, 20],
            busy_s=100,
            memory_bytes=[0.2 * 256 * GIB, 0.15 * 256 * GIB],
            reserved=[32, 32],
        )

    def test_two_jobs_on_400_w_get_242_and_89(self) -> None:
        before, after = self.two_jobs()
        power = NodePower(node_w=400, package_w=(120, 80), dram_w=40, measured=True)
        shares = share_out(before, after, power, rules="ceems")
        assert shares.power_w == pytest.approx([242, 89])
        # 69 W of the node are nowhere, and these rules have no word for them.
        assert shares.node_w - shares.power_w.sum() == pytest.approx(69)
        assert math.isnan(shares.idle_w)
        assert math.isnan(shares.unattributed_w)
        assert off(share_out(before, after, power, idle_w=200)) < 1e-12

    def test_a_tenth_of_a_core_on_an_idle_200_w_node_gets_146_w(self) -> None:
        job = [unit()]
        before = snapshot(0, of=job, reserved=1)
        after = snapshot(10, of=job, cpu_s=0.9, busy_s=1, reserved=1)
        power = NodePower(node_w=200, package_w=(70,), dram_w=20, measured=True)
        assert share_out(before, after, power, rules="ceems").power_w == pytest.approx([146])
        # Here it bears its core's share of the idle power, and nearly all that is above.
        ours = share_out(before, after, power, idle_w=178)
        assert ours.power_w == pytest.approx([178 / 64 + 0.9 * 2])
        assert share_out(before, after, power).power_w == pytest.approx([180 / 64])

    def test_with_a_meter_of_the_node_alone(self) -> None:
        before, after = self.two_jobs()
        shares = share_out(before, after, NodePower(node_w=400, measured=True), rules="ceems")
        assert shares.power_w == pytest.approx([360 * 0.7 + 20, 360 * 0.2 + 20])

    def test_with_rapl_alone(self) -> None:
        before, after = self.two_jobs()
        power = NodePower(package_w=(150, 50), dram_w=40, measured=True)
        shares = share_out(before, after, power, rules="ceems")
        assert shares.power_w == pytest.approx([200 * 0.7 + 40 * 0.2, 200 * 0.2 + 40 * 0.15])

    def test_services_are_no_jobs(self) -> None:
        """What else runs on a node changes nothing for its jobs."""
        before, after = self.two_jobs()
        power = NodePower(node_w=400, measured=True)
        alone = share_out(before, after, power, rules="ceems").power_w
        others = [unit(f"{name}.service", source="systemd") for name in range(20)]
        others += [unit(name, source="process") for name in range(5)]
        many = [*after.units, *others]
        memory = [*after.memory_bytes, *[0.0] * 25]
        after = snapshot(10, of=many, cpu_s=[70, 20, *[0] * 25], busy_s=100, memory_bytes=memory)
        shared = share_out(snapshot(0, of=many), after, power, rules="ceems").power_w
        assert shared[:2] == pytest.approx(alone)
        assert not shared[2:].any()
        box = unit("box", source="container")
        after = snapshot(10, of=[*after.units, box], busy_s=100)
        third = share_out(snapshot(0, of=[*many, box]), after, power, rules="ceems").power_w
        assert third[-1] == pytest.approx(40 / 3), "a container is one"

    def test_they_may_hand_out_more_than_there_is(self) -> None:
        job = [unit()]
        after = snapshot(10, of=job, cpu_s=[12], busy_s=10)
        shares = share_out(
            snapshot(0, of=job), after, NodePower(node_w=100, measured=True), rules="ceems"
        )
        assert shares.power_w.sum() > 100

    def test_unknown_rules_list_the_known_ones(self) -> None:
        with pytest.raises(UnknownName, match="ceems, conserving"):
            share_out(snapshot(), snapshot(), NodePower(node_w=1, measured=True), rules="fair")


class TestIdleFloor:
    def seen(self, floor: IdleFloor, watts: float, busy: float, **more: float) -> NodePower:
        power = NodePower(node_w=watts, measured=True, **more)
        floor.see(snapshot(0, cpus=10), snapshot(10, cpus=10, busy_s=100 * busy), power)
        return power

    def test_it_is_a_low_quantile_of_idle_times(self) -> None:
        rng = np.random.default_rng(1)
        floor = IdleFloor()
        for _ in range(3000):
            busy = rng.choice([0.01, 0.5, 1.0])
            power = self.seen(floor, 100 + 200 * (busy > 0.05) + rng.normal(0, 3), busy)
        # A tenth of a normal distribution lies 1.28 standard deviations below its mean.
        assert floor.at(power) == pytest.approx(100 - 1.28 * 3, abs=1.5)

    def test_it_follows_a_machine_that_changes(self) -> None:
        rng = np.random.default_rng(2)
        floor = IdleFloor()
        for mean in [100] * 500 + [80] * 500 + [120] * 3000:
            power = self.seen(floor, mean + rng.normal(0, 2), 0.01)
            if mean == 80:
                lower = floor.at(power)
        assert lower == pytest.approx(80 - 2.6, abs=3)
        assert floor.at(power) == pytest.approx(120 - 2.6, abs=3)

    def test_a_busy_node_tells_nothing_unless_it_draws_less(self) -> None:
        floor = IdleFloor()
        power = self.seen(floor, 300, 0.9)
        assert floor.at(power) is None
        self.seen(floor, 150, 0.04)
        assert floor.at(power) == 150
        self.seen(floor, 300, 0.9)
        assert floor.at(power) == 150
        for _ in range(50):
            self.seen(floor, 120, 0.3)
        assert floor.at(power) == pytest.approx(120, abs=3)

    def test_it_leaves_gpus_and_memory_out(self) -> None:
        floor = IdleFloor()
        power = self.seen(floor, 300, 0.0, dram_w=20.0, gpu_w={"gpu-0": 80.0})
        assert floor.at(power) == pytest.approx(200)

    def test_each_set_of_meters_has_its_own(self) -> None:
        floor = IdleFloor()
        self.seen(floor, 100, 0.0)
        other = NodePower(package_w=(30.0,), measured=True)
        assert floor.at(other) is None
        assert floor.at(NodePower(node_w=100, measured=False)) is None

    def test_it_outlives_the_program(self) -> None:
        floor = IdleFloor()
        for watts in (100, 90, 95):
            power = self.seen(floor, watts, 0.0)
        kept = IdleFloor(known=json.loads(json.dumps(floor.known)))
        assert kept.at(power) == floor.at(power)
        assert self.seen(kept, 91, 0.0) is not None
        self.seen(floor, 91, 0.0)
        assert kept.at(power) == floor.at(power)

    @pytest.mark.parametrize("times", [(0, 0.5), (0, 0), (5, 0)])
    def test_times_too_short_tell_nothing(self, times: tuple[float, float]) -> None:
        floor = IdleFloor()
        floor.see(snapshot(times[0]), snapshot(times[1]), NodePower(node_w=1, measured=True))
        assert not floor.known

    def test_broken_counters_tell_nothing(self) -> None:
        floor = IdleFloor()
        for busy in (-1.0, NAN):
            self.seen(floor, 100, busy)
        self.seen(floor, NAN, 0.0)
        assert not floor.known


@pytest.mark.alone
def test_a_thousand_units_take_no_time() -> None:
    jobs = units(1000)
    cards = [gpu(f"gpu-{n}", {n: 0.5, n + 8: 0.5}, busy=0.5) for n in range(8)]
    rows = np.tile([[1.0, 0.0], [0.0, 1.0]], (500, 1))
    more = {"reserved": 0.05, "memory_bytes": GIB / 10, "socket_shares": rows, "gpus": cards}
    before = snapshot(0, of=jobs, **more)
    power = NodePower(
        node_w=900,
        package_w=(100, 150),
        dram_w=30,
        gpu_w={f"gpu-{n}": 70.0 for n in range(8)},
        measured=True,
    )
    # One has gone and one has come, so that the units have to be matched.
    for now in (jobs, (*jobs[1:], unit("new", started=5))):
        after = snapshot(10, of=now, cpu_s=0.1, busy_s=120, **more)
        spent = []
        for _ in range(20):
            start = perf_counter()
            shares = share_out(before, after, power, idle_w=200)
            spent.append(perf_counter() - start)
        assert off(shares) < 1e-9
        # Orientation is 1 ms; the machine of a test may be busy.
        assert min(spent) < 5e-3
