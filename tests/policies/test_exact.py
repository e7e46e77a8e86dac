"""The exact planner against brute force, a mixed-integer programme, and goldens."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.errors import InvalidInput, InvalidJob
from lowtide.policies import gridded
from lowtide.policies.exact import Exact
from lowtide.policies.problem import make_problem
from lowtide.schedule import Schedule, State
from support.planning_oracles import SlotJob, least_cost

HOUR = 3600.0
CASES = 2500 if os.environ.get("LOWTIDE_NIGHTLY") else 400


@st.composite
def slot_problems(draw):
    """Draw a small job in hours with any mix of rules, as an oracle's and as lowtide's."""
    horizon = draw(st.integers(2, 13))
    startup = draw(st.lists(st.sampled_from([0.0, 100.0, 300.0]), max_size=2))
    longest = max(min(6, horizon - len(startup)), 1)
    work = draw(st.lists(st.sampled_from([0.0, 100.0, 250.0, 400.0]), min_size=1, max_size=longest))
    if len(startup) + len(work) > horizon:
        startup = startup[: horizon - len(work)]
    kind = draw(st.sampled_from(["anywhere", "checkpoints", "never"]))
    stop = [] if kind == "never" else draw(st.lists(st.sampled_from([50.0, 200.0]), max_size=1))
    suspended = draw(st.sampled_from([0.0, 0.0, 60.0]))
    points = draw(st.sets(st.integers(1, len(work)))) if kind == "checkpoints" else set()
    values = tuple(
        draw(
            st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 9.0]), min_size=horizon, max_size=horizon)
        )
    )
    rent = draw(st.none() | st.lists(st.integers(0, 300), min_size=horizon, max_size=horizon))
    slots = SlotJob(
        startup=tuple(startup),
        work=tuple(work),
        stop=tuple(stop),
        suspended=suspended,
        checkpoints=None if kind == "anywhere" else frozenset(points),
        max_starts=draw(st.none() | st.integers(1, 3)),
        min_run=draw(st.sampled_from([0, 0, 1, 2, 3])),
    )
    slots = replace(slots, min_run=min(slots.min_run, len(work)))
    forbidden = draw(st.sets(st.integers(0, horizon - 1), max_size=2))
    return (
        slots,
        values,
        frozenset(forbidden),
        None if rent is None else tuple(map(float, rent)),
        kind,
    )


def as_lowtide(slots: SlotJob, horizon: int, kind: str) -> lt.Job:
    """The same job in lowtide's words."""

    def phases(powers, points=frozenset()):
        return [
            lt.Phase(name="p", duration_s=HOUR, power_w=power, checkpoint=number in points)
            for number, power in enumerate(powers, start=1)
        ]

    return lt.Job(
        id="j",
        arrival=0,
        deadline=horizon * HOUR,
        profile=lt.PowerProfile(
            startup=phases(slots.startup),
            work=phases(slots.work, slots.checkpoints or frozenset()),
            stop=phases(slots.stop),
            suspended_power_w=slots.suspended,
        ),
        interruptible=kind,
        max_starts=slots.max_starts,
        min_run_s=slots.min_run * HOUR,
    )


@settings(max_examples=CASES)
@given(slot_problems())
def test_equals_brute_force_under_any_mix_of_rules(drawn) -> None:
    slots, values, forbidden, rent, kind = drawn
    expected = least_cost(slots, values, forbidden=forbidden, occupancy=rent)
    job = as_lowtide(slots, len(values), kind)
    signal = lt.Signal.from_values(values, start=0, step_s=HOUR)
    occupancy = None
    if rent is not None:
        per_s = np.array(rent) / 1000 / HOUR
        occupancy = lt.Signal.from_values(per_s, start=0, step_s=HOUR, kind="occupancy")
    planner = Exact(
        forbidden=[(slot * HOUR, (slot + 1) * HOUR) for slot in forbidden], occupancy=occupancy
    )
    if expected == math.inf:
        with pytest.raises(InvalidJob, match="cannot be run by its rules"):
            planner.decide(job, signal)
        return
    optimum = planner.optimise(job, signal)
    assert optimum.gap == 0
    assert optimum.solution.cost * 1000 == pytest.approx(expected, rel=1e-9, abs=1e-6)

    schedule = Schedule.from_stretches(job, optimum.stretches)
    schedule.check(job)
    paid = lt.footprint(schedule, job, signal).carbon_g * 1000
    if occupancy is not None:
        paid += 1000 * sum(occupancy.integral(span.start, span.end) for span in schedule.spans)
    assert paid == pytest.approx(expected, rel=1e-9, abs=1e-6)
    for span in schedule.spans:
        for slot in forbidden if span.kind != "suspended" else ():
            assert span.end <= slot * HOUR + 1e-6 or span.start >= (slot + 1) * HOUR - 1e-6


def golden_job(instance) -> lt.Job:
    """A golden instance with slots of an hour."""
    points = instance["checkpoints"]
    powers = [power for slots, power in instance["work"] for _ in range(slots)]
    work = [
        lt.Phase(
            name="w",
            duration_s=HOUR,
            power_w=1000 * power,
            checkpoint=bool(points) and number in points,
        )
        for number, power in enumerate(powers, start=1)
    ]
    startup = [
        lt.Phase(name="s", duration_s=slots * HOUR, power_w=1000 * power)
        for slots, power in instance["startup"]
    ]
    return lt.Job(
        id=instance["name"],
        arrival=0,
        deadline=instance["T"] * HOUR,
        profile=lt.PowerProfile(startup=startup, work=work),
        interruptible="anywhere" if points is None else "checkpoints" if points else "never",
        max_starts=instance["max_starts"],
    )


def test_all_planning_goldens(data) -> None:
    instances = json.loads(data("goldens/planning/instances.json").read_text())
    assert len(instances) == 14
    for instance in instances:
        if not instance["feasible"]:
            with pytest.raises(lt.LowtideError):
                golden_job(instance)
            continue
        job = golden_job(instance)
        signal = lt.Signal.from_values(instance["carbon"], start=0, step_s=HOUR)
        made = lt.plan(job, signal)
        made.schedule.check(job)
        assert made.footprint.carbon_g == pytest.approx(instance["dp_obj"], rel=1e-9)
        assert made.lower_bound_g == pytest.approx(made.footprint.carbon_g, rel=1e-9)
        assert made.resolution_gap_g == 0
        if instance["dp_obj_max_starts5"] is not None and job.interruptible != "never":
            fewer = lt.plan(replace(job, max_starts=5), signal)
            assert fewer.footprint.carbon_g == pytest.approx(
                instance["dp_obj_max_starts5"], rel=1e-9
            )


def milp(values, startup, work) -> float:
    """The same problem as a mixed-integer programme, solved to optimality by HiGHS.

    Binary variables say that a stretch of work begins at progress w in slot t, that the job works
    at progress w in slot t, and that it is stopped between two units of work.
    """
    import highspy

    horizon, needed, lead = len(values), len(work), len(startup)
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    runs = {}
    for w in range(needed):
        for t in range(lead + w, horizon - needed + w + 1):
            runs[w, t] = model.addBinary(obj=work[w] * values[t])
    begins = {
        key: model.addBinary(
            obj=sum(power * values[key[1] - lead + i] for i, power in enumerate(startup))
        )
        for key in runs
    }
    for w in range(needed):
        model.addConstr(sum(runs[key] for key in runs if key[0] == w) == 1)
    for (w, t), run in runs.items():
        before = runs.get((w - 1, t - 1))
        model.addConstr(run <= begins[w, t] + (before if before is not None else 0))
        if w:
            # Work w−1 is over, and a whole startup has passed, before a new stretch begins.
            earlier = sum(
                runs[w - 1, s] for s in range(horizon) if (w - 1, s) in runs and s + lead < t
            )
            model.addConstr(begins[w, t] <= earlier)
    model.minimize()
    assert model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return model.getInfo().objective_function_value


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_mixed_integer_programme(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 400, 30).astype(float)
    work = rng.integers(50, 700, 10).astype(float)
    startup = rng.integers(20, 200, int(rng.integers(1, 3))).astype(float)
    slots = SlotJob(startup=tuple(startup), work=tuple(work))
    job = as_lowtide(slots, len(values), "anywhere")
    signal = lt.Signal.from_values(values, start=0, step_s=HOUR)
    ours = lt.plan(job, signal).footprint.carbon_g * 1000
    assert ours == pytest.approx(milp(values, startup, work), rel=1e-7)
    assert ours == pytest.approx(least_cost(slots, tuple(values)), rel=1e-9)


POLICIES = ["run_now", "lowest_slot", "oracle", "wait_awhile"]


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_no_policy_beats_it_in_continuous_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal = lt.Signal.from_values(rng.uniform(10, 500, 40), start=0, step_s=1800)
    epochs = [
        lt.Phase(
            name="e",
            duration_s=float(rng.uniform(300, 4000)),
            power_w=float(rng.uniform(50, 700)),
            checkpoint=bool(rng.integers(2)),
        )
        for _ in range(int(rng.integers(1, 8)))
    ]
    startup = [lt.Phase(name="s", duration_s=float(rng.uniform(10, 1500)), power_w=90)]
    profile = lt.PowerProfile(startup=startup, work=epochs)
    arrival = float(rng.uniform(0, 5000))
    if profile.run_s > signal.end - arrival:
        return
    for kind in ("never", "checkpoints"):
        job = lt.Job(
            id="a", arrival=arrival, deadline=signal.end, profile=profile, interruptible=kind
        )
        best = lt.plan(job, signal)
        best.schedule.check(job)
        assert best.step_s is None
        assert best.resolution_gap_g == 0
        assert best.footprint.carbon_g == pytest.approx(best.lower_bound_g, rel=1e-9)
        for policy in POLICIES:
            other = lt.plan(job, signal, policy=policy).footprint.carbon_g
            assert best.footprint.carbon_g <= other * (1 + 1e-9)
    never = lt.plan(replace(job, interruptible="never"), signal)
    oracle = lt.plan(replace(job, interruptible="never"), signal, policy="oracle")
    assert never.footprint.carbon_g == pytest.approx(oracle.footprint.carbon_g, rel=1e-9)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([420.0, 900.0, 1800.0, 5000.0]))
def test_the_gap_bounds_what_a_coarse_step_costs(seed: int, step_s: float) -> None:
    rng = np.random.default_rng(seed)
    hours = int(rng.integers(6, 24))
    signal = lt.Signal.from_values(rng.uniform(10, 500, hours), start=0, step_s=HOUR)
    work = [
        lt.Phase(
            name="w", duration_s=60.0 * rng.integers(5, 90), power_w=float(rng.integers(50, 700))
        )
        for _ in range(int(rng.integers(1, 4)))
    ]
    startup = [lt.Phase(name="s", duration_s=60.0 * rng.integers(1, 40), power_w=100)]
    stop = [lt.Phase(name="z", duration_s=300, power_w=50)] if rng.random() < 0.3 else []
    profile = lt.PowerProfile(
        startup=startup, work=work, stop=stop, suspended_power_w=float(rng.choice([0.0, 20.0]))
    )
    if profile.run_s > hours * HOUR:
        return
    job = lt.Job(
        id="a",
        arrival=0,
        deadline=hours * HOUR,
        profile=profile,
        interruptible="anywhere",
        max_starts=int(rng.integers(2, 5)) if rng.random() < 0.3 else None,
        min_run_s=60.0 * rng.integers(0, int(profile.work_s / 60)) if rng.random() < 0.3 else 0.0,
    )
    problem = make_problem(job, signal)
    finest = gridded.solve(problem, 60.0).cost
    coarse = gridded.solve(problem, step_s).cost
    assert gridded.lower_bound(problem, step_s) <= finest * (1 + 1e-9)
    assert coarse >= finest * (1 - 1e-9)
    made = lt.plan(job, signal, step_s=step_s)
    assert made.footprint.carbon_g - made.resolution_gap_g <= finest * (1 + 1e-9)


def test_phases_that_fit_no_step_are_integrated_whole() -> None:
    """Eight of sixty slots of a measured job once cost 0 W because durations were truncated."""
    rng = np.random.default_rng(3)
    signal = lt.Signal.from_values(rng.uniform(100, 400, 48), start=0, step_s=HOUR)
    work = [
        lt.Phase(name="w", duration_s=float(duration), power_w=float(power))
        for duration, power in zip(rng.uniform(50, 900, 30), rng.uniform(100, 700, 30), strict=True)
    ]
    job = lt.Job(
        id="a",
        arrival=17.3,
        deadline=40 * HOUR,
        profile=lt.PowerProfile(work=work),
        interruptible="anywhere",
    )
    made = lt.plan(job, signal, step_s=600)
    made.schedule.check(job)
    assert made.footprint.energy_j == pytest.approx(job.profile.energy_j, rel=1e-12)
    assert made.lower_bound_g == pytest.approx(made.footprint.carbon_g, rel=1e-9)


def test_goes_on_from_where_a_job_stands() -> None:
    signal = lt.Signal.from_values([5, 1, 9, 9, 1, 1, 1, 9], start=0, step_s=HOUR)
    startup = [lt.Phase(name="s", duration_s=HOUR / 2, power_w=1000)]
    profile = lt.PowerProfile(
        startup=startup, work=[lt.Phase(name="w", duration_s=3 * HOUR, power_w=1000)]
    )
    job = lt.Job(id="a", arrival=0, deadline=8 * HOUR, profile=profile, interruptible="anywhere")
    planner = Exact()
    running = planner.optimise(
        job, signal, state=State(now=2 * HOUR, progress_s=HOUR, running=True, starts=1)
    )
    # Stopping at once and starting again at 4:00, ready at 4:30, beats two dear hours.
    assert [round(each.start / HOUR, 3) for each in running.stretches] == [2.0, 4.0]
    assert running.stretches[0].work_s == 0
    assert running.solution.cost == pytest.approx(2.5)
    held = replace(job, profile=replace(profile, suspended_power_w=100))
    waiting = planner.optimise(held, signal, state=State(now=2 * HOUR, progress_s=HOUR, starts=1))
    # Held for two hours at 100 W, counted from now on only.
    assert waiting.solution.cost == pytest.approx(2.5 + 0.1 * (9 + 9))
    stopped = planner.optimise(job, signal, state=State(now=2 * HOUR, progress_s=HOUR, starts=1))
    assert stopped.solution.cost == pytest.approx(running.solution.cost)
    late = planner.optimise(
        job, signal, state=State(now=6 * HOUR, progress_s=HOUR, running=True, starts=1)
    )
    assert [each.work_s for each in late.stretches] == [2 * HOUR]


def test_weights_trade_carbon_for_time_and_money() -> None:
    carbon = lt.Signal.from_values([9, 5, 1, 1], start=0, step_s=HOUR)
    price = lt.Signal.from_values(
        [50, 10, 90, 90], start=0, step_s=HOUR, kind="price", unit="EUR/MWh"
    )
    grid = lt.Grid(average=carbon, price=price)
    job = lt.Job(id="a", arrival=0, deadline=4 * HOUR, profile=lt.PowerProfile.constant(1000, HOUR))
    starts = {
        "carbon": lt.plan(job, grid).schedule.start,
        "price": lt.plan(job, grid, weights={"price": 1}).schedule.start,
        "both": lt.plan(job, grid, weights={"carbon": 1, "price": 100}).schedule.start,
        "wait": lt.plan(job, grid, weights={"carbon": 1, "wait": 1}).schedule.start,
    }
    assert {name: start / HOUR for name, start in starts.items()} == {
        "carbon": 2.0,
        "price": 1.0,
        "both": 1.0,
        "wait": 0.0,
    }


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda job, curve: lt.plan(job, curve, weights={"carbo": 1}), "unknown weight"),
        (lambda job, curve: lt.plan(job, curve, weights={"price": 1}), "give a Grid"),
        (lambda job, curve: lt.plan(job, curve, weights={"carbon": -1}), "0 or more"),
        (lambda job, curve: lt.plan(job, curve, weights={"wait": 1}), "both weigh nothing"),
        (lambda job, curve: lt.plan(job, curve, step_s=0), "longer than 0 s"),
        (
            lambda job, curve: lt.plan(replace(job, interruptible="anywhere"), curve, step_s=1e-3),
            "use a step of",
        ),
        (lambda job, curve: Exact(forbidden=[(5, 5)]).decide(job, curve), "ends after it begins"),
        (lambda job, curve: Exact(occupancy=curve).decide(job, curve), "occupancy is a signal"),
    ],
)
def test_bad_input_teaches(make, says: str) -> None:
    curve = lt.Signal.from_values([3, 2, 1] * 16, start=0, step_s=HOUR)
    job = lt.Job(id="a", arrival=0, deadline="+2d", profile=lt.PowerProfile.constant(100, "9h"))
    with pytest.raises(InvalidInput, match=says):
        make(job, curve)


def test_what_makes_a_job_infeasible_is_named_with_its_cure() -> None:
    curve = lt.Signal.from_values([1.0] * 48, start=0, step_s=HOUR)
    job = lt.Job(id="a", arrival=0, deadline=12 * HOUR, profile=lt.PowerProfile.constant(9, "8h"))
    planner = Exact(forbidden=[(4 * HOUR, 6 * HOUR)])
    with pytest.raises(InvalidJob) as caught:
        planner.decide(job, curve)
    text = str(caught.value)
    assert "allow some of the forbidden windows" in text
    assert "let it be stopped anywhere (now never)" in text
    assert "move the deadline by 2 h" in text
    planner.decide(replace(job, deadline=14 * HOUR), curve)
    planner.decide(replace(job, interruptible="anywhere"), curve)


def test_a_cure_says_how_far_a_rule_must_give() -> None:
    curve = lt.Signal.from_values([1.0] * 48, start=0, step_s=HOUR)
    # An hour on, an hour off: eight hours of work need eight starts.
    windows = [((2 * n + 1) * HOUR, (2 * n + 2) * HOUR) for n in range(8)]
    job = lt.Job(
        id="a",
        arrival=0,
        deadline=16 * HOUR,
        profile=lt.PowerProfile.constant(9, "8h"),
        interruptible="anywhere",
        max_starts=3,
    )
    planner = Exact(forbidden=windows)
    with pytest.raises(InvalidJob, match="raise max_starts from 3 to 8, or move the deadline by"):
        planner.decide(job, curve)
    planner.decide(replace(job, max_starts=8), curve)
    rushed = replace(job, max_starts=None, min_run_s=1.5 * HOUR)
    with pytest.raises(InvalidJob, match=r"lower min_run_s from 1\.5 h to 1 h"):
        planner.decide(rushed, curve)
    planner.decide(replace(rushed, min_run_s=HOUR), curve)


def test_stop_phases_of_a_job_that_is_never_stopped_are_refused() -> None:
    profile = lt.PowerProfile(
        work=[lt.Phase(name="w", duration_s=60, power_w=1)],
        stop=[lt.Phase(name="z", duration_s=60, power_w=1)],
    )
    job = lt.Job(id="a", arrival=0, deadline=900, profile=profile)
    curve = lt.Signal.from_values([1.0], start=0, step_s=HOUR)
    with pytest.raises(InvalidJob, match="may never be stopped"):
        lt.plan(job, curve)


@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_no_policy_beats_it_from_a_ragged_arrival(seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal = lt.Signal.from_values(rng.uniform(50, 500, 48), start=0, step_s=HOUR)
    startup = [lt.Phase(name="s", duration_s=float(rng.uniform(1, 900)), power_w=90)]
    work = [lt.Phase(name="w", duration_s="6h", power_w=300)]
    profile = lt.PowerProfile(startup=startup if rng.integers(2) else [], work=work)
    job = lt.Job(
        id="a",
        arrival=float(rng.uniform(0, 4000)),
        deadline="+30h",
        profile=profile,
        interruptible="anywhere",
    )
    best = lt.plan(job, signal, policy=Exact(time_budget_s=0.01))
    best.schedule.check(job)
    assert best.resolution_gap_g > 0
    for policy in POLICIES:
        other = lt.plan(job, signal, policy=policy)
        assert best.footprint.carbon_g <= other.footprint.carbon_g * (1 + 1e-9)
        assert best.lower_bound_g - best.resolution_gap_g <= other.footprint.carbon_g * (1 + 1e-9)


@pytest.mark.parametrize("moment_h", [0.5, 1, 2.25, 4, 5.5, 7, 8.75])
@pytest.mark.parametrize("interruptible", ["anywhere", "checkpoints"])
def test_the_rest_of_a_best_plan_is_the_best_rest(interruptible: str, moment_h: float) -> None:
    curve = lt.Signal.from_values(
        [300, 90, 80, 500, 400, 60, 50, 450, 70, 65, 40, 90], start=0, step_s=HOUR
    )
    profile = lt.PowerProfile(
        startup=[lt.Phase(name="s", duration_s=300, power_w=400)],
        work=[lt.Phase(name="w", duration_s=1800, power_w=900, checkpoint=True)] * 6,
        stop=[lt.Phase(name="x", duration_s=60, power_w=100)],
        suspended_power_w=20,
    )
    job = lt.Job(
        id="a", arrival=0, deadline=12 * HOUR, profile=profile, interruptible=interruptible
    )
    whole = lt.plan(job, curve)
    now = moment_h * HOUR
    # Nothing can be decided in the midst of a start or a stop, so then it is after it.
    for span in whole.schedule.spans:
        if span.kind in ("startup", "stop") and span.start < now < span.end:
            now = span.end
    spans = [span for span in whole.schedule.spans if span.end > now]
    inside = spans[0] if spans[0].start <= now else None
    running = inside is not None and inside.kind == "work"
    state = State(
        now=now,
        progress_s=spans[0].progress_s + (now - inside.start if running else 0.0),
        running=running,
        starts=sum(run[0].start <= now for run in whole.schedule.runs),
    )
    rest = lt.plan(job, curve, state=state)
    ahead = [
        replace(span, start=now, duration_s=span.end - now, progress_s=state.progress_s)
        if span is inside
        else span
        for span in spans
    ]
    left = lt.footprint(Schedule(job_id="a", spans=tuple(ahead)), job, curve)
    assert rest.footprint.carbon_g == pytest.approx(left.carbon_g, rel=1e-9)
    assert rest.footprint.carbon_g == pytest.approx(rest.lower_bound_g, rel=1e-9)
    assert rest.footprint.carbon_g <= rest.baseline.carbon_g * (1 + 1e-12)
    assert rest.schedule.end <= job.deadline + 1e-6


def test_only_a_policy_that_can_goes_on() -> None:
    curve = lt.Signal.from_values([100] * 4, start=0, step_s=HOUR)
    job = lt.Job(id="a", arrival=0, deadline="+4h", profile=lt.PowerProfile.constant(100, "2h"))
    with pytest.raises(InvalidInput, match=r"oracle cannot go on .* use exact"):
        lt.plan(job, curve, policy="oracle", state=State(now=HOUR))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (State(now=0.0, progress_s=-5.0), "progress is from 0"),
        (State(now=0.0, progress_s=3 * HOUR), "a job that is done needs no plan"),
        (State(now=0.0, progress_s=1800.0, starts=1), "its last checkpoint"),
        (State(now=0.0, progress_s=HOUR, starts=2), "used all its starts"),
    ],
)
def test_states_that_cannot_be_are_refused(state: State, says: str) -> None:
    work = [lt.Phase(name="w", duration_s=HOUR, power_w=9, checkpoint=True) for _ in range(3)]
    job = lt.Job(
        id="a",
        arrival=0,
        deadline=9 * HOUR,
        profile=lt.PowerProfile(work=work),
        interruptible="checkpoints",
        max_starts=2,
    )
    curve = lt.Signal.from_values([3.0, 2.0, 1.0] * 3, start=0, step_s=HOUR)
    with pytest.raises(InvalidInput, match=says):
        Exact().optimise(job, curve, state=state)
