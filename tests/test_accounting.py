"""The one accounting, against sums in exact fractions."""

import json
import math
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.accounting import Embodied, footprint, integrate, power_steps
from lowtide.errors import InvalidInput, InvalidSchedule, NotCovered
from lowtide.grid import Grid
from lowtide.job import Job
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Span, Stretch
from lowtide.signal import Signal
from support.oracles import account, rounding_j, simulate_slots
from support.strategies import COARSE_S, halved, prices, ratios, scheduled

HOUR = 3600.0


def hourly(*values, **kwargs):
    return Signal.from_values(values, start=0, step_s="1h", **kwargs)


def over_the_same_time(draw, signal, value, kind):
    """Draw another signal with steps of its own that covers a signal's span."""
    step_s = draw(st.sampled_from(COARSE_S))
    size = math.ceil((len(signal) * signal.step_s) / step_s) + 1
    values = draw(st.lists(value, min_size=size, max_size=size))
    start = signal.start - draw(st.sampled_from([0.0, 0.5])) * step_s / 2
    return Signal.from_values(values, start=start, step_s=step_s, kind=kind, unit="EUR/kWh")


def close(exact, *, at_most, rounding=0.0):
    """Equal to 1e-9 relative; where nearly nothing is left, to 1e-12 of what it could be."""
    return pytest.approx(float(exact), rel=1e-9, abs=1e-12 * float(at_most) + rounding + 1e-300)


def dearest(energy_j, signal, pue=1.0):
    return float(energy_j) / 3.6e6 * float(np.abs(signal.values).max()) * pue


@settings(max_examples=200)
@given(scheduled(), ratios)
def test_footprint_equals_the_exact_sums(case, pue):
    job, signal, schedule = case
    got = footprint(schedule, job, signal, pue=pue)
    want = account(schedule, job.profile, signal, pue=pue)
    most = dearest(want.energy_j, signal, pue)
    slip_g = dearest(rounding_j(job.profile), signal, pue)
    assert got.energy_j == pytest.approx(float(want.energy_j), rel=1e-9)
    assert got.carbon_g == close(want.carbon_g, at_most=most, rounding=slip_g)
    assert got.starts == schedule.starts
    assert got.cost is None
    parts = {name: part for name, part in got.by_phase.items() if part.duration_s > 1e-6}
    for name, part in parts.items():
        assert part.energy_j == close(want.energy_by_part[name], at_most=want.energy_j)
        assert part.carbon_g == close(want.carbon_by_part[name], at_most=most, rounding=slip_g)


@settings(max_examples=50)
@given(scheduled())
def test_the_parts_make_up_the_whole(case):
    job, signal, schedule = case
    got = footprint(schedule, job, signal)
    parts = got.by_phase.values()
    total_s = schedule.end - schedule.start
    assert math.fsum(p.energy_j for p in parts) == pytest.approx(got.energy_j, rel=1e-12)
    assert math.fsum(p.carbon_g for p in parts) == pytest.approx(got.carbon_g, rel=1e-12)
    assert math.fsum(p.duration_s for p in parts) == pytest.approx(total_s, abs=1e-5)
    kinds = {span.kind for span in schedule.spans}
    assert {name.split("/")[0] for name in got.by_phase} == kinds


@settings(max_examples=40)
@given(st.data(), scheduled())
def test_pue_and_price_that_vary(data, case):
    job, signal, schedule = case
    pue = over_the_same_time(data.draw, signal, ratios, "pue")
    price = over_the_same_time(data.draw, signal, prices, "price")
    got = footprint(schedule, job, signal, pue=pue, price=price)
    want = account(schedule, job.profile, signal, pue=pue, price=price)
    assert got.energy_j == pytest.approx(float(want.energy_j), rel=1e-9)
    for amount, exact, rate, share in (
        (got.carbon_g, want.carbon_g, signal, 1.0),
        (got.cost, want.cost, price, 1e3),
    ):
        slip = dearest(rounding_j(job.profile), rate, 2.5)
        most = share * dearest(want.energy_j, rate, 2.5)
        assert amount == close(exact, at_most=most, rounding=slip)
    parts = got.by_phase.values()
    assert math.fsum(p.carbon_g for p in parts) == pytest.approx(got.carbon_g, rel=1e-12)


@settings(max_examples=50)
@given(scheduled(), ratios)
def test_a_constant_pue_equals_a_constant_series(case, pue):
    job, signal, schedule = case
    series = replace(signal, values=[pue] * len(signal), kind="pue", basis=None, unit="1")
    one = footprint(schedule, job, signal, pue=pue)
    other = footprint(schedule, job, signal, pue=series)
    plain = footprint(schedule, job, signal)
    assert other.carbon_g == close(one.carbon_g, at_most=dearest(one.energy_j, signal, pue))
    assert one.carbon_g == pytest.approx(pue * plain.carbon_g, rel=1e-12)
    assert one.energy_j == plain.energy_j
    assert other.energy_j == pytest.approx(plain.energy_j, rel=1e-12)


@settings(max_examples=50)
@given(scheduled())
def test_cutting_every_step_in_two_changes_nothing(case):
    job, signal, schedule = case
    one, other = (footprint(schedule, job, s) for s in (signal, halved(signal)))
    assert other.carbon_g == close(one.carbon_g, at_most=dearest(one.energy_j, signal))


@settings(max_examples=50)
@given(scheduled())
def test_cutting_every_span_in_two_changes_nothing(case):
    job, signal, schedule = case
    halves = []
    for span in schedule.spans:
        half = span.duration_s / 2
        if span.kind not in ("work", "lost", "suspended"):
            halves.append(span)
            continue
        forward = 0.0 if span.kind == "suspended" else half
        halves.append(replace(span, duration_s=half))
        halves.append(
            replace(
                span,
                start=span.start + half,
                duration_s=half,
                progress_s=span.progress_s + forward,
            )
        )
    whole = footprint(schedule, job, signal)
    parts = footprint(replace(schedule, spans=tuple(halves)), job, signal)
    assert parts.energy_j == pytest.approx(whole.energy_j, rel=1e-9)
    # Epoch seconds tell the middle of a span to 0.2 µs only.
    microsecond = 1e-6 * 700.0 / 3.6e6 * float(signal.values.max()) * len(halves)
    assert parts.carbon_g == pytest.approx(whole.carbon_g, rel=1e-9, abs=microsecond)


@settings(max_examples=50)
@given(scheduled())
def test_twice_the_power_is_twice_the_footprint(case):
    job, signal, schedule = case
    profile = job.profile

    def doubled(phases):
        return [replace(phase, power_w=2 * phase.power_w) for phase in phases]

    twice = PowerProfile(
        startup=doubled(profile.startup),
        restart=None if profile.restart is None else doubled(profile.restart),
        work=doubled(profile.work),
        stop=doubled(profile.stop),
        suspended_power_w=2 * profile.suspended_power_w,
    )
    one = footprint(schedule, job, signal)
    two = footprint(schedule, replace(job, profile=twice), signal)
    assert two.carbon_g == pytest.approx(2 * one.carbon_g, rel=1e-12)


@settings(max_examples=50)
@given(scheduled())
def test_power_steps_hold_all_energy(case):
    job, signal, schedule = case
    times, power_w = power_steps(schedule, job.profile)
    assert (times[0], times[-1], power_w[-1]) == (schedule.start, schedule.end, 0.0)
    assert np.all(np.diff(times) >= -1e-6)
    energy_j = float(np.sum(power_w[:-1] * np.diff(times)))
    want = footprint(schedule, job, signal).energy_j
    assert energy_j == pytest.approx(want, rel=1e-9, abs=1e-6 * 700 * times.size)


def test_a_worked_example_by_hand():
    profile = PowerProfile(
        startup=[Phase(name="load", duration_s="30m", power_w=100)],
        work=[
            Phase(name="solve", duration_s="1h", power_w=1000, checkpoint=True),
            Phase(name="write", duration_s="1h", power_w=200),
        ],
        stop=[Phase(name="save", duration_s="30m", power_w=50)],
        suspended_power_w=10,
    )
    job = Job(id="a", arrival=0, deadline="+8h", profile=profile, interruptible="checkpoints")
    schedule = Schedule.from_stretches(
        job,
        [
            Stretch(start=0.0, work_s=HOUR),  # startup, solve, stop until 2 h
            Stretch(
                start=3 * HOUR, work_s=0.0, lost_s=HOUR / 2
            ),  # half a write in vain, to 4 h, stop
            Stretch(start=4.5 * HOUR, work_s=HOUR),  # to 6 h
        ],
    )
    schedule.check(job)
    signal = hourly(100, 200, 300, 400, 500, 600)
    got = footprint(schedule, job, signal)
    kwh_g = {
        "startup/load": 0.05 * 100 + 0.05 * 400 + 0.05 * 500,
        "work/solve": 0.5 * 100 + 0.5 * 200,
        "stop/save": 0.025 * 200 + 0.025 * 500,
        "suspended": 0.01 * 300,
        "lost/write": 0.1 * 400,
        "work/write": 0.2 * 600,
    }
    assert {name: part.carbon_g for name, part in got.by_phase.items()} == pytest.approx(kwh_g)
    assert got.carbon_g == pytest.approx(sum(kwh_g.values()))
    assert got.energy_j == pytest.approx((0.15 + 1 + 0.05 + 0.01 + 0.1 + 0.2) * 3.6e6)
    assert got.starts == 3
    assert got.wait_s == pytest.approx(3.5 * HOUR)
    assert got.by_phase["lost/write"].duration_s == HOUR / 2


def kilowatt_hour(**kwargs):
    job = Job(id="a", arrival=0, deadline="+3h", profile=PowerProfile.constant(1000, "1h"))
    return job, Schedule.uninterrupted(job, HOUR), hourly(300, 100, 200)


def test_a_grid_gives_carbon_and_cost():
    job, schedule, average = kilowatt_hour()
    price = hourly(0.1, -0.2, 0.3, kind="price", unit="EUR/kWh")
    marginal = hourly(900, 900, 900, kind="marginal")
    got = footprint(schedule, job, Grid(average=average, marginal=marginal, price=price), pue=1.5)
    assert (got.carbon_g, got.cost) == pytest.approx((150.0, -0.3))
    assert footprint(schedule, job, Grid(average=average)).cost is None
    alone = footprint(schedule, job, price)
    assert (alone.carbon_g, alone.cost) == (None, pytest.approx(-0.2))
    assert alone.by_phase["work/work"].carbon_g is None
    assert footprint(schedule, job, marginal).carbon_g == pytest.approx(900.0)
    assert footprint(schedule, job, average, price=price).cost == pytest.approx(-0.2)
    assert got.wait_s == HOUR


def test_signals_are_not_mixed_up():
    job, schedule, average = kilowatt_hour()
    pue = hourly(1.5, 1.5, 1.5, kind="pue")
    with pytest.raises(InvalidInput, match="give it as pue="):
        footprint(schedule, job, pue)
    with pytest.raises(InvalidInput, match="signal of kind 'pue', not 'average'"):
        footprint(schedule, job, average, pue=average)
    with pytest.raises(InvalidInput, match="price"):
        footprint(schedule, job, average, price=average)


@pytest.mark.parametrize("pue", [0.99, 0.0, -1.0, math.nan, math.inf])
def test_pue_is_at_least_one(pue):
    job, schedule, average = kilowatt_hour()
    with pytest.raises(InvalidInput, match="PUE is at least 1"):
        footprint(schedule, job, average, pue=pue)


def test_a_series_that_is_too_short_is_never_filled():
    job, schedule, average = kilowatt_hour()
    with pytest.raises(NotCovered, match="the signal covers"):
        footprint(schedule, job, hourly(300))
    with pytest.raises(NotCovered, match="the PUE series covers"):
        footprint(schedule, job, average, pue=hourly(1.5, kind="pue"))
    with pytest.raises(NotCovered):
        footprint(schedule, job, average, price=hourly(1.5, kind="price", unit="EUR/kWh"))


def test_a_schedule_of_another_profile_is_refused():
    job, schedule, average = kilowatt_hour()
    shorter = replace(job, profile=PowerProfile.constant(1000, "30m"))
    with pytest.raises(InvalidSchedule, match="belongs to another profile"):
        footprint(schedule, shorter, average)


def test_embodied_carbon_is_kept_apart_and_sci_adds_it():
    job, schedule, average = kilowatt_hour()
    server = Embodied(total_g=1_300_000, lifetime_s="1461d", share=0.25)
    assert server.of(86400.0) == pytest.approx(1_300_000 * (1 / 1461) * 0.25)
    got = footprint(schedule, job, average, embodied=server)
    share_g = 1_300_000 * 0.25 / (1461 * 24)
    assert got.carbon_g == 100.0
    assert got.embodied_g == pytest.approx(share_g)
    assert got.sci_g() == pytest.approx(100 + share_g)
    assert got.sci_g(units=4) == pytest.approx((100 + share_g) / 4)


def test_suspended_time_is_charged_to_others():
    job = Job(
        id="a",
        arrival=0,
        deadline="+4h",
        profile=PowerProfile.constant(1000, "2h"),
        interruptible="anywhere",
    )
    halves = [Stretch(start=0.0, work_s=HOUR), Stretch(start=3 * HOUR, work_s=HOUR)]
    got = footprint(
        Schedule.from_stretches(job, halves),
        job,
        hourly(1, 1, 1, 1),
        embodied=Embodied(total_g=7200, lifetime_s=7200),
    )
    assert got.embodied_g == 7200.0


def test_sci_needs_both_parts_and_some_units():
    job, schedule, average = kilowatt_hour()
    with pytest.raises(InvalidInput, match="SCI needs a carbon signal and embodied="):
        footprint(schedule, job, average).sci_g()
    got = footprint(schedule, job, average, embodied=Embodied(total_g=1, lifetime_s=1))
    for units in (0, -1, math.nan):
        with pytest.raises(InvalidInput, match="per functional unit"):
            got.sci_g(units)


@pytest.mark.parametrize(
    "changes",
    [{"total_g": -1}, {"total_g": math.nan}, {"lifetime_s": 0}, {"share": 1.1}, {"share": -0.1}],
)
def test_embodied_carbon_of_nonsense_is_refused(changes):
    with pytest.raises(InvalidInput, match="embodied carbon needs"):
        Embodied(**({"total_g": 1, "lifetime_s": 1, "share": 1} | changes))


def test_it_prints_in_few_words():
    job, schedule, average = kilowatt_hour()
    assert str(footprint(schedule, job, average)) == "1 kWh, 100 g CO2e, 1 start"
    price = hourly(1, 1, 1, kind="price", unit="EUR/kWh")
    assert str(footprint(schedule, job, price)) == "1 kWh, --- CO2e, 1 start"


def test_integrate_takes_one_power_or_many():
    signal = hourly(300, 100)
    begin, end = np.array([0.0, HOUR]), np.array([HOUR, 2 * HOUR])
    assert integrate(1000.0, begin, end, signal).tolist() == pytest.approx([300, 100])
    many = integrate(np.array([1000.0, 500.0]), begin, end, signal)
    assert many.tolist() == pytest.approx([300, 50])


# Given patterns of on and off slots, an hour each.


def slot_job(pattern, **kwargs):
    """Build the job of a golden pattern: phases in slots, checkpoints as progress counts."""
    points = pattern["checkpoints"] or []
    done, work = 0, []
    for number, (slots, power) in enumerate(pattern["work"]):
        done += slots
        work.append(
            Phase(
                name=f"w{number}",
                duration_s=slots * HOUR,
                power_w=power,
                checkpoint=done in points,
            )
        )
    startup = [Phase(name="s", duration_s=n * HOUR, power_w=p) for n, p in pattern["startup"]]
    return Job(
        id="golden",
        arrival=0,
        deadline=len(pattern["carbon"]) * HOUR,
        profile=PowerProfile(startup=startup, work=work),
        interruptible="checkpoints" if points else "anywhere",
        **kwargs,
    )


def slot_stretches(on, startup, total, checkpoints):
    """Turn on/off slots into stretches: what a run does after its startup, kept or lost."""
    slot, done, stretches = 0, 0, []
    for busy, group in groupby(on):
        length = len(list(group))
        if busy:
            reached = done + length - startup
            points = [0, *checkpoints] if checkpoints is not None else [reached]
            kept = reached if reached == total else max(p for p in points if p <= reached)
            stretches.append(
                Stretch(
                    start=slot * HOUR,
                    work_s=(kept - done) * HOUR,
                    lost_s=(reached - kept) * HOUR,
                )
            )
            done = kept
        slot += length
    return stretches


GOLDENS = ["uninterrupted", "suspend_at_checkpoint", "abort_mid_epoch_then_redo"]
GOLDENS += ["abort_before_any_checkpoint", "abort_during_startup"]


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_patterns(data, name):
    patterns = json.loads(data("goldens/planning/schedule_costs.json").read_text())
    assert [p["name"] for p in patterns] == GOLDENS
    pattern = next(p for p in patterns if p["name"] == name)
    job = slot_job(pattern)
    startup_slots = sum(n for n, _ in pattern["startup"])
    if name == "abort_during_startup":
        # No planner wants this, so there is no stretch for it: half a startup, then a whole run.
        first, again = pattern["on"].index(1) * HOUR, 20 * HOUR
        whole = Schedule.uninterrupted(job, again)
        half = Span(kind="startup", start=first, duration_s=HOUR, progress_s=0.0)
        wait = Span(kind="suspended", start=half.end, duration_s=again - half.end, progress_s=0.0)
        schedule = replace(whole, spans=(half, wait, *whole.spans))
        with pytest.raises(InvalidSchedule):
            schedule.check(job)
    else:
        stretches = slot_stretches(
            pattern["on"], startup_slots, pattern["work_needed"], pattern["checkpoints"]
        )
        schedule = Schedule.from_stretches(job, stretches)
        schedule.check(job)
    signal = Signal.from_values(pattern["carbon"], start=0, step_s=HOUR)
    got = footprint(schedule, job, signal)
    assert got.carbon_g == pytest.approx(pattern["carbon_objective"] / 1000, rel=1e-9)
    assert got.energy_j == pytest.approx(pattern["energy_W_slots"] * HOUR, rel=1e-9)
    assert got.starts == pattern["starts"]
    lost_s = sum(part.duration_s for name, part in got.by_phase.items() if "lost/" in name)
    assert lost_s == pattern["lost_work_slots"] * HOUR


@given(st.data())
def test_random_patterns_equal_a_walk_through_the_slots(data):
    draw = data.draw
    whole = st.integers(1, 4)
    level = st.integers(0, 300).map(float)
    pattern = {
        "startup": draw(st.lists(st.tuples(whole, level), max_size=2)),
        "work": draw(st.lists(st.tuples(whole, level), min_size=1, max_size=4)),
    }
    startup_w = [power for slots, power in pattern["startup"] for _ in range(slots)]
    work_w = [power for slots, power in pattern["work"] for _ in range(slots)]
    ends = np.cumsum([slots for slots, _ in pattern["work"]])[:-1].tolist()
    points = sorted(draw(st.sets(st.sampled_from(ends)))) if ends else []
    pattern["checkpoints"] = points if draw(st.booleans()) else None
    on, done = [], 0
    while done < len(work_w):
        on += [0] * draw(st.integers(1 if on else 0, 3))
        run = draw(st.integers(1, len(work_w) - done))
        if len(on) > 40:
            run = len(work_w) - done
        on += [1] * (len(startup_w) + run)
        reached = done + run
        if reached == len(work_w) or pattern["checkpoints"] is None:
            done = reached
        else:
            done = max([0, *(p for p in points if p <= reached)])
    size = len(on)
    pattern["carbon"] = draw(st.lists(level, min_size=size, max_size=size))
    want = simulate_slots(on, pattern["carbon"], startup_w, work_w, pattern["checkpoints"])
    assert want.done == len(work_w)

    job = slot_job(pattern)
    if pattern["checkpoints"] is not None:
        job = replace(job, interruptible="checkpoints")
    stretches = slot_stretches(on, len(startup_w), len(work_w), pattern["checkpoints"])
    schedule = Schedule.from_stretches(job, stretches)
    schedule.check(job)
    got = footprint(schedule, job, Signal.from_values(pattern["carbon"], start=0, step_s=HOUR))
    assert got.carbon_g == pytest.approx(want.objective / 1000, rel=1e-9)
    assert got.energy_j == pytest.approx(want.energy * HOUR, rel=1e-9)
    assert got.starts == want.starts
    lost_s = sum(p.duration_s for name, p in got.by_phase.items() if name.startswith("lost/"))
    assert lost_s == want.lost * HOUR
