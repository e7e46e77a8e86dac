"""Buying machines: worked examples, and a plain walk through time beside them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.simulator.buying import BOUGHT, buy, start_on_reserved
from lowtide.simulator.cluster import Cluster
from lowtide.workload import Workload
from support.nightly import drawn

HOUR = 3600.0
RESERVED, ON_DEMAND, SPOT = range(len(BOUGHT))


def reserving(cpus):
    return Cluster(nodes=1, cpus_per_node=1, reserved_cpus=cpus)


def workload(arrival, work_s, **columns):
    return Workload(arrival=arrival, work_s=work_s, deadline=1e9, **columns)


def test_reserved_machines_are_used_as_soon_as_they_are_free():
    jobs = workload([0, 0, 0], [HOUR, 2 * HOUR, HOUR], cpus=[2, 2, 4])
    made = buy(jobs, np.array([5.0, 4 * HOUR, 1.5 * HOUR]), reserving(3))
    # The first starts at once though it wished not to; the second follows; the third never fits.
    assert made.start.tolist() == [0, HOUR, 1.5 * HOUR]
    assert made.names == ["reserved", "reserved", "on_demand"]
    assert made.cost.tolist() == [0, 0, pytest.approx(4 * 0.0624)]
    # Three CPUs from the first arrival to the end of the last job, used or not.
    assert made.reserved_cost == pytest.approx(3 * 3 * 0.02496)
    assert made.total == pytest.approx(4 * 0.0624 + 9 * 0.02496)


def test_a_job_that_fits_goes_before_one_that_does_not():
    jobs = workload([0, 1, 2], [100, 10, 10], cpus=[3, 4, 1])
    made = buy(jobs, np.array([0.0, 500.0, 500.0]), reserving(4))
    assert made.start.tolist() == [0, 100, 2]
    # Of several that could, the first that arrived.
    jobs = workload([0, 1, 2], [100, 10, 10], cpus=[4, 3, 3])
    assert buy(jobs, np.array([0.0, 500.0, 500.0]), reserving(4)).start.tolist() == [0, 100, 110]


def test_nobody_waits_longer_than_it_wished():
    jobs = workload([0, 0, 0], [100, 100, 100])
    made = buy(jobs, np.array([0.0, 100.0, 99.0]), reserving(1))
    # At 100 the reserved CPU becomes free just in time.
    assert made.start.tolist() == [0, 100, 99]
    assert made.bought.tolist() == [RESERVED, RESERVED, ON_DEMAND]


def test_short_jobs_run_on_spot_when_they_wish():
    jobs = workload([0, 0], [2 * HOUR, 2 * HOUR + 1], cpus=[5, 5])
    wished = np.array([HOUR, HOUR])
    made = buy(jobs, wished, reserving(5), uses_reserved=False, uses_spot=True)
    assert made.start.tolist() == [HOUR, HOUR]
    assert made.names == ["spot", "on_demand"]
    assert made.cost[0] == pytest.approx(10 * 0.01248)
    assert made.reserved_cost == 0.0
    both = buy(jobs, wished, reserving(5), uses_spot=True)
    assert both.start.tolist() == [HOUR, 0]
    assert both.names == ["spot", "reserved"]


def plainly(arrival, wished, run_s, cpus, reserved, eager, lag_s):
    """Walk from instant to instant, looking at everybody each time."""
    count = len(arrival)
    start, kind, ends = [None] * count, [None] * count, {}
    instants = {*arrival, *wished}
    while instants:
        now = min(instants)
        instants.discard(now)
        held = sum(cpus[job] for job, end in ends.items() if end > now)
        for job in range(count):
            if start[job] is None and arrival[job] <= now:
                if (eager[job] or wished[job] == now) and cpus[job] + held <= reserved:
                    start[job], kind[job] = now, RESERVED
                    held += cpus[job]
                    ends[job] = now + run_s[job] + lag_s
                    instants.add(ends[job])
                elif wished[job] == now:
                    start[job], kind[job] = now, ON_DEMAND
    return start, kind


def draw_each(data, count):
    return lambda low, high: data.draw(
        st.lists(st.integers(low, high), min_size=count, max_size=count)
    )


@settings(max_examples=drawn(100, 2000))
@given(st.data())
def test_buying_agrees_with_a_plain_walk(data):
    count = data.draw(st.integers(1, 12))
    each = draw_each(data, count)
    jobs = workload(each(0, 10), each(1, 9), cpus=each(0, 4))
    wished = jobs.arrival + np.array(each(0, 15))
    reserved = data.draw(st.integers(0, 6))
    made = buy(jobs, wished, reserving(reserved))
    if reserved:
        columns = (each.tolist() for each in (jobs.arrival, wished, jobs.work_s, jobs.cpus))
        start, kind = plainly(*columns, reserved, [True] * count, 0)
        assert made.start.tolist() == start
        assert made.bought.tolist() == kind
    else:
        assert made.start.tolist() == wished.tolist()
        assert made.total == pytest.approx(float(jobs.cpus @ jobs.work_s) / HOUR * 0.0624)


@settings(max_examples=drawn(100, 2000))
@given(st.data())
def test_who_is_not_eager_takes_reserved_cpus_at_its_wished_instant_alone(data):
    count = data.draw(st.integers(1, 12))
    each = draw_each(data, count)
    arrival = np.sort(np.array(each(0, 12), dtype=float))
    wished, run_s = arrival + each(0, 15), np.array(each(1, 9), dtype=float)
    cpus, eager = np.array(each(1, 3), dtype=float), np.array(each(0, 2)) > 0
    reserved, lag_s = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 1))
    begun = start_on_reserved(
        arrival, wished, run_s, cpus, float(reserved), eager=eager, lag_s=lag_s
    )
    columns = (column.tolist() for column in (arrival, wished, run_s, cpus))
    start, kind = plainly(*columns, reserved, eager, lag_s)
    assert np.isfinite(begun).tolist() == [each == RESERVED for each in kind]
    assert np.where(np.isfinite(begun), begun, wished).tolist() == start


def test_equal_arrivals_are_served_in_the_order_of_the_rows():
    times = np.zeros(3), np.full(3, 50.0), np.array([10.0, 20.0, 5.0])
    assert start_on_reserved(*times, np.ones(3), 1.0).tolist() == [0.0, 10.0, 30.0]


def test_parts_of_cpus_add_up():
    jobs = workload([0] * 10, [5.0] * 10, cpus=[0.1] * 10)
    assert buy(jobs, np.full(10, 3.0), reserving(1)).bought.tolist() == [RESERVED] * 10


def test_wishes_before_the_arrival_are_refused():
    jobs = workload([0, 100], [5, 5])
    with pytest.raises(InvalidInput, match=r"job 2 \(row 2\) wishes to start at 50, and arrives"):
        buy(jobs, np.array([0.0, 50.0]), reserving(1))
    with pytest.raises(InvalidInput, match="1 wished instants were given for 2 jobs"):
        buy(jobs, np.array([0.0]), reserving(1))
