"""Several kinds of machines, several places and several widths: bound ≤ optimum ≤ plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

import lowtide as lt
from lowtide.errors import InvalidInput, InvalidJob
from lowtide.job import Resources
from lowtide.market import Site, plan_sites
from lowtide.market.joining import join
from lowtide.market.planner import Clock, solve
from lowtide.precedence import broken, links_of, windows
from lowtide.workload import Workload
from support.nightly import drawn
from support.queues import STEP_S, amount, draw_job, draw_signal, every_way, held, use

MANY = drawn(8, 150)
QUICK = {"gap": 1e-9, "effort": 0.02, "clock": Clock(None), "seed": 3}
WIDTHS = {0.5: 0.6, 2.0: 1.7}


def draw_sites(rng, hours=60, **how):
    """Two or three sites, of which the later are faster, hungrier or far away."""
    made = {}
    for number in range(int(rng.integers(2, 4))):
        made[f"s{number}"] = Site(
            cluster=lt.Cluster(nodes=int(rng.integers(3, 6)), cpus_per_node=1, **how),
            signal=draw_signal(rng, hours),
            speed=float(rng.choice([0.5, 1.0, 1.0, 2.0])) if number else 1.0,
            power=float(rng.choice([0.8, 1.0, 1.5])) if number else 1.0,
            transfer_s=float(rng.choice([0.0, STEP_S])) if number else 0.0,
            transfer=float(rng.choice([0.0, 50.0])) if number else 0.0,
        )
    return made


def draw_jobs(rng, count, *, linked=False, **how):
    jobs = [draw_job(rng, f"j{number}", **how) for number in range(count)]
    if linked:
        jobs = [
            replace(each, after=[f"j{number - 1}"] if number and rng.random() < 0.5 else ())
            for number, each in enumerate(jobs)
        ]
    made = Workload.from_jobs(jobs)
    # Those that wait for others have time for it even where all are slow.
    soonest, _ = windows(made, links_of(made), 2 * made.run_s)
    return replace(made, deadline=np.maximum(made.deadline, soonest + 2 * made.run_s))


def best_at_sites(joined):
    """Return the least that a queue at sites can count: every way of every job at hand (HiGHS)."""
    whole, count = joined.instance, len(joined.jobs)
    slots, costs, rows, columns, values = whole.slots, [], [], [], []
    ends, starts = [[] for _ in range(count)], [[] for _ in range(count)]
    for job in range(count):
        rows.append(job)
        columns.append(len(costs))
        values.append(1.0)
        costs.append(float(whole.queue.jobs["leave"][whole.queue.ways[job]]))
    for number, (site, (of, _)) in enumerate(zip(whole.sites, joined.ways, strict=True)):
        for row, job in enumerate(of.tolist()):
            for way in every_way(site, row):
                column = len(costs)
                costs.append(amount(site, row, way) + float(site.beside[row]))
                touched = np.flatnonzero(np.ceil(use(site, row, way) - 1e-7))
                rows += [job, *(count + number * slots + touched)]
                columns += [column] * (1 + touched.size)
                values += [1.0] + [float(site.jobs.nodes[row])] * touched.size
                spans = held(site, row, way)
                starts[job].append((column, spans[0][0]))
                ends[job].append((column, spans[-1][1]))
    links, size = whole.links, count + len(whole.sites) * slots
    for a, b, gap_s in zip(links.before, links.after, links.gap_s, strict=True):
        for column, start in starts[b]:
            over = [other for other, end in ends[a] if end + gap_s <= start + 1e-6]
            rows += [size] * (1 + len(over))
            columns += [column, *over]
            values += [1.0] + [-1.0] * len(over)
            size += 1
    there = np.concatenate([site.room[0] for site in whole.sites])
    matrix = coo_array((values, (rows, columns)), shape=(size, len(costs)))
    low = np.concatenate((np.ones(count), np.full(size - count, -np.inf)))
    high = np.concatenate((np.ones(count), there, np.zeros(size - count - there.size)))
    solved = milp(
        np.array(costs),
        integrality=np.ones(len(costs)),
        bounds=(0, 1),
        constraints=LinearConstraint(matrix.tocsr(), low, high),
        options={"mip_rel_gap": 0.0},
    )
    assert solved.success, solved.message
    return float(solved.fun)


@pytest.mark.parametrize("how", ["plain", "elastic", "linked"])
def test_the_bound_is_below_the_optimum_and_the_plan_above_it(how):
    ratios = []
    for seed in range(MANY):
        rng = np.random.default_rng([seed, 51])
        jobs = draw_jobs(rng, int(rng.integers(3, 6)), most=2, linked=how == "linked")
        joined = join(
            jobs,
            draw_sites(rng),
            step_s=STEP_S,
            wait=float(rng.choice([0.0, 0.002])),
            elastic=WIDTHS if how == "elastic" else None,
        )
        found, optimum = solve(joined.instance, **QUICK), best_at_sites(joined)
        assert found.auction.bound <= optimum + 1e-6 * abs(optimum), seed
        assert found.total >= optimum - 1e-6 * abs(optimum), seed
        ratios += [found.total / optimum] * (found.late.size == 0)
    assert len(ratios) >= MANY // 2
    assert np.median(ratios) <= 1.001


@pytest.mark.parametrize("how", ["whole", "elastic", "linked", "idle", "shared"])
def test_what_is_planned_is_carried_out_at_every_site_and_comes_to_the_same(how):
    for seed in range(max(MANY // 2, 4)):
        rng = np.random.default_rng([seed, 52])
        jobs = draw_jobs(rng, 16, linked=how == "linked")
        jobs = replace(jobs, deadline=jobs.deadline + 8 * STEP_S)
        more = {"idle_power_w": 90.0} if how == "idle" else {}
        sites = draw_sites(rng, 150, **more)
        if how == "shared":
            jobs = replace(jobs, nodes=np.ones(len(jobs)), cpus=rng.integers(1, 5, len(jobs)))
            sites = {
                name: replace(each, cluster=lt.Cluster(nodes=3, cpus_per_node=8))
                for name, each in sites.items()
            }
        elastic = WIDTHS if how == "elastic" else None
        plan = plan_sites(jobs, sites, effort=0.02, elastic=elastic, step="1h")
        assert plan.certify() == pytest.approx(plan.lower_bound, rel=1e-9)
        assert not broken(plan.start, plan.end, links_of(plan.jobs)).any()
        ran = 0
        for number, (name, site) in enumerate(plan.sites.items()):
            simulation = plan.simulations[name]
            if simulation is None:
                assert name not in plan.site
                continue
            ran += len(simulation)
            own = [row for row, where in enumerate(plan.site) if where == name]
            # Each job by itself, by the one accounting, with what it took to bring it there.
            for place, row in enumerate(own):
                schedule = simulation.schedule(place)
                paid = lt.footprint(schedule, simulation.jobs.job(place), site.signal)
                moved = site.transfer * (plan._joined.home[row] != number)
                assert plan.amount_of[row] == pytest.approx(paid.amount + moved, rel=1e-9)
                first = plan.jobs.arrival[row]
                first += site.transfer_s * (plan._joined.home[row] != number)
                assert schedule.start >= first - 1e-6
                speed = site.speed * {1.0: 1.0, **WIDTHS}[plan.width[row]]
                work_s = simulation.jobs.work_s[place]
                assert work_s == pytest.approx(plan.jobs.work_s[row] / speed)
        assert ran == len(jobs)
        if not plan.late.size:
            assert plan.lower_bound <= plan.counted * (1 + 1e-9)
            assert plan.lower_bound_g <= plan.amount * (1 + 1e-9)


def test_one_site_is_planned_as_a_cluster_is():
    rng = np.random.default_rng(5)
    jobs, grid = draw_jobs(rng, 12), draw_signal(rng, 90)
    cluster = lt.Cluster(nodes=6, cpus_per_node=1, idle_power_w=50)
    one = plan_sites(jobs, {"here": Site(cluster=cluster, signal=grid)}, effort=0.01, step="1h")
    same = lt.plan_cluster(jobs, cluster, grid, effort=0.01, step="1h")
    assert one.amount_of.sum() == pytest.approx(same.tally.amount.sum(), rel=1e-9)
    assert one.moved == 0 and set(one.site) == {"here"}
    assert one.start.tolist() == same.tally.start.tolist()


def test_jobs_go_to_the_kind_that_they_need_and_to_the_place_that_is_worth_it():
    flat = lt.Signal.from_values(np.full(30, 200.0), start=0, step_s="1h")
    hours = lt.PowerProfile.constant(1000, "4h")
    plain = lt.Job(id="plain", arrival=0, deadline="+20h", profile=hours)
    gpu = replace(plain, id="gpu", resources=Resources(cpus=1, gpus=1))
    cpus = Site(cluster=lt.Cluster(nodes=2, cpus_per_node=1), signal=flat)
    fast = Site(
        cluster=lt.Cluster(nodes=2, cpus_per_node=1, gpus_per_node=1),
        signal=flat,
        speed=4.0,
        power=2.0,
    )
    plan = plan_sites([plain, gpu], {"cpus": cpus, "gpus": fast}, wait=0, effort=0.05)
    # Four times as fast at twice the power is half as much energy, for both.
    assert plan.site == ("gpus", "gpus")
    assert plan.amount == pytest.approx(2 * 0.5 * 800)
    assert plan.summary()["sites"]["gpus"]["jobs"] == 2
    dear = replace(fast, transfer=500)
    plan = plan_sites([plain, gpu], {"cpus": cpus, "gpus": dear}, wait=0, effort=0.05)
    assert plan.site == ("cpus", "gpus") and plan.moved == 0
    assert "nobody late" in str(plan)


def test_an_elastic_job_is_wide_where_the_clean_hours_are_few():
    grid = lt.Signal.from_values([500, 500, 100, 500, 500, 500], start=0, step_s="1h")
    work = lt.PowerProfile.constant(1000, "2h")
    job = lt.Job(id="a", arrival=0, deadline="+6h", profile=work)
    site = {"here": Site(cluster=lt.Cluster(nodes=2, cpus_per_node=1), signal=grid)}
    rigid = plan_sites([job], site, wait=0)
    wide = plan_sites([job], site, wait=0, elastic={2.0: 2.0})
    assert (rigid.amount, wide.amount) == pytest.approx((600.0, 200.0))
    assert wide.width.tolist() == [2.0]
    # Where more nodes help less, being wide costs more than it saves.
    assert plan_sites([job], site, wait=0, elastic={2.0: 1.0}).width.tolist() == [1.0]


def test_who_cannot_be_in_time_anywhere_is_late_at_one_of_the_sites():
    grid = draw_signal(np.random.default_rng(1), 60)
    jobs = [
        lt.Job(id=n, arrival=0, deadline="+3h", profile=lt.PowerProfile.constant(900, "2h"))
        for n in "abcd"
    ]
    site = Site(cluster=lt.Cluster(nodes=1, cpus_per_node=1), signal=grid)
    plan = plan_sites(jobs, {"a": site, "b": site}, effort=0.02)
    assert plan.late.size == 2 and plan.least_late == 2 and plan.gap is None
    assert sorted((plan.end / STEP_S).tolist())[-2:] == [4.0, 4.0]


def test_what_cannot_be_is_named_before_computing():
    grid = draw_signal(np.random.default_rng(1), 40)
    job = lt.Job(id="a", arrival=0, deadline="+3h", profile=lt.PowerProfile.constant(9, "1h"))
    site = Site(cluster=lt.Cluster(nodes=2, cpus_per_node=1), signal=grid)
    large = replace(job, resources=Resources(cpus=4))
    with pytest.raises(InvalidJob, match="fits at none of the sites here"):
        plan_sites([large], {"here": site})
    with pytest.raises(InvalidInput, match="sites are given by name"):
        plan_sites([job], {})
    with pytest.raises(InvalidInput, match="speed of a site is more than 0"):
        replace(site, speed=0.0)
    with pytest.raises(InvalidInput, match="homes names one of here"):
        plan_sites([job], {"here": site}, homes=["there"])
    with pytest.raises(InvalidInput, match="slower than at 1 times"):
        plan_sites([job], {"here": site}, elastic={2.0: 0.5})
    with pytest.raises(InvalidInput, match="steps at the same instants"):
        late = lt.Signal.from_values(np.ones(40), start=-1800, step_s="1h")
        plan_sites([job], {"here": site, "there": replace(site, signal=late)}, step="1h")
    price = lt.Signal.from_values(np.ones(40), start=0, step_s="1h", kind="price", unit="EUR/kWh")
    with pytest.raises(InvalidInput, match="count one thing"):
        plan_sites([job], {"here": site, "there": replace(site, signal=price)})
