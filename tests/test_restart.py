"""A start after the first, which may be shorter or longer: on paper, in files, and everywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.accounting import Stretches, power_steps, tally
from lowtide.errors import InvalidProfile, InvalidSchedule
from lowtide.formats import write_signal
from lowtide.policies.bulk import plan_together
from lowtide.policies.columns import Jobs
from lowtide.policies.exact import Exact
from lowtide.schedule import Schedule, Span, State
from lowtide.workload import Workload
from support.commands import run
from support.nightly import drawn
from support.oracles import rounding_j
from support.strategies import cases, profiles, valid_stretches

HOUR = 3600.0
STARTUP = lt.Phase(name="load", duration_s="1h", power_w=200)
RELOAD = lt.Phase(name="reload", duration_s="30m", power_w=100)
WORK = lt.Phase(name="run", duration_s="1h", power_w=1000, checkpoint=True)
RESUMED = lt.PowerProfile(startup=[STARTUP], restart=[RELOAD], work=[WORK, WORK])
GRID = lt.Signal.from_values([400, 100, 500, 500, 100, 500], start=0, step_s="1h")


def job(kind: str = "anywhere", profile: lt.PowerProfile = RESUMED, **rules) -> lt.Job:
    return lt.Job(id="a", arrival=0, deadline="+6h", profile=profile, interruptible=kind, **rules)


@pytest.mark.parametrize("kind", ["anywhere", "checkpoints"])
@pytest.mark.parametrize("policy", ["exact", "wait_awhile"])
def test_on_paper(kind: str, policy: str) -> None:
    made = lt.plan(job(kind), GRID, policy=policy)
    # 0.2 kWh at 400, 1 kWh at 100, 0.05 kWh at 500, 1 kWh at 100.
    assert made.footprint.carbon_g == pytest.approx(80 + 100 + 25 + 100)
    assert {name: part.carbon_g for name, part in made.footprint.by_phase.items()} == {
        "startup/load": pytest.approx(80),
        "work/run": pytest.approx(200),
        "suspended": 0,
        "restart/reload": pytest.approx(25),
    }
    spans = [(span.kind, span.start / HOUR, span.end / HOUR) for span in made.schedule.spans]
    assert spans == [
        ("startup", 0, 1),
        ("work", 1, 2),
        ("suspended", 2, 3.5),
        ("restart", 3.5, 4),
        ("work", 4, 5),
    ]
    made.schedule.check(job(kind))
    assert lt.plan(job(kind, replace(RESUMED, restart=None)), GRID).footprint.carbon_g == 380


def test_a_job_that_has_begun_pays_the_restart() -> None:
    stopped = State(now=2 * HOUR, progress_s=HOUR, starts=1)
    running = State(now=2 * HOUR, progress_s=HOUR, running=True)
    lost = State(now=0, starts=1)
    for state, carbon_g, at_once_g in (
        (stopped, 25 + 100, 25 + 500),
        (running, 25 + 100, 500),
        # Nothing was kept, and it was started all the same.
        (lost, 20 + 100 + 25 + 100, 20 + 200 + 100 + 250),
    ):
        made = lt.plan(job(), GRID, state=state)
        assert made.footprint.carbon_g == pytest.approx(carbon_g), state
        assert made.baseline.carbon_g == pytest.approx(at_once_g), state
        assert "startup" not in {span.kind for span in made.schedule.spans}
    explained = lt.explain(lt.plan(job(), GRID, state=stopped), job(), GRID, state=stopped)
    (block,) = explained.blocks
    assert (block.amount, block.overhead) == (pytest.approx(125), pytest.approx(25))


def test_a_start_is_what_the_profile_calls_it() -> None:
    made = lt.plan(job(), GRID).schedule
    swapped = [
        replace(span, kind="startup") if span.kind == "restart" else span for span in made.spans
    ]
    with pytest.raises(InvalidSchedule, match=r"start 2 runs .*'startup'.* not .*'restart'"):
        Schedule(job_id="a", spans=tuple(swapped)).check(job())
    with pytest.raises(InvalidSchedule, match="belongs to another profile"):
        lt.footprint(made, job(profile=replace(RESUMED, restart=None)), GRID)
    short = tuple(
        replace(span, start=span.start + 60, duration_s=span.duration_s - 60)
        if span.kind == "restart"
        else replace(span, duration_s=span.duration_s + 60)
        if span.kind == "suspended"
        else span
        for span in made.spans
    )
    with pytest.raises(InvalidSchedule, match=r"restart at .* is not its whole length"):
        Schedule(job_id="a", spans=short).check(job())
    # It draws nothing and takes no time, so that nothing is to be seen of it.
    free = job(profile=replace(RESUMED, restart=[]))
    kinds = [span.kind for span in lt.plan(free, GRID).schedule.spans]
    assert kinds == ["startup", "work", "suspended", "work"]
    assert lt.plan(free, GRID).footprint.starts == 2


def test_files_keep_it_and_are_as_before_without_it(tmp_path: Path) -> None:
    plain = replace(RESUMED, restart=None)
    plain.dump(tmp_path / "plain.toml")
    rows = ['  { name = "run", duration_s = 3600.0, power_w = 1000.0, checkpoint = true },\n'] * 2
    startup = '  { name = "load", duration_s = 3600.0, power_w = 200.0 },\n'
    wanted = f"startup = [\n{startup}]\nwork = [\n{''.join(rows)}]\n"
    assert (tmp_path / "plain.toml").read_text() == wanted
    assert list(plain.to_dict()) == ["startup", "work"]
    for restart in (None, [], [RELOAD], [RELOAD, STARTUP]):
        profile = replace(RESUMED, restart=restart)
        for name in ("a.toml", "a.json"):
            profile.dump(tmp_path / name)
            again = lt.PowerProfile.load(tmp_path / name)
            assert again == profile
            assert again.restart == (None if restart is None else tuple(restart))
            assert ("restart" in (tmp_path / name).read_text()) == (restart is not None)
    assert replace(RESUMED, restart=[]) != plain


@pytest.mark.parametrize(
    ("restart", "says"),
    [
        (None, "restart is a list of phases, not None"),
        ("10m", "restart is a list of phases, not '10m'"),
        ([{"name": "a", "duration_s": 1}], "a phase of restart lacks power_w"),
        (
            [{"name": "a", "duration_s": 1, "power_w": 1, "checkpoint": True}],
            "phase 'a' of restart is marked as a checkpoint",
        ),
    ],
)
def test_a_bad_restart_is_refused(restart: object, says: str) -> None:
    document = {"work": [{"name": "w", "duration_s": 1, "power_w": 1}], "restart": restart}
    with pytest.raises(InvalidProfile, match=says):
        lt.PowerProfile.from_dict(document)


def test_it_is_told_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "job.toml"
    RESUMED.dump(profile)
    assert run(capsys, "convert", str(profile), str(tmp_path / "job.json")).code == 0
    assert lt.PowerProfile.load(tmp_path / "job.json") == RESUMED
    write_signal(GRID, tmp_path / "grid.csv")
    words = ["plan", "--profile", str(profile), "--signal", str(tmp_path / "grid.csv")]
    words += ["--now", "start", "--deadline", "+6h", "--interruptible", "anywhere"]
    assert "00:30:00  restart" in run(capsys, *words).out
    told = json.loads(run(capsys, *words, "--json").out)
    assert told["job"]["profile"] == RESUMED.to_dict()
    assert "restart/reload" in told["plans"][-1]["footprint"]["by_phase"]
    assert run(capsys, *words, "-o", str(tmp_path / "plan.json")).code == 0
    kinds = [span.kind for span in Schedule.load(tmp_path / "plan.json").spans]
    assert kinds.count("restart") == 1
    report = tmp_path / "report.html"
    assert run(capsys, *words, "--report", str(report)).code == 0
    assert "restart" in report.read_text()
    words[-1] = "checkpoints"
    replace(RESUMED, restart=[]).dump(profile)
    clean = lt.Signal.from_values([10, 500, 500, 200, 200, 500], start=0, step_s="1h")
    write_signal(clean, tmp_path / "grid.csv")
    # Started in the first hour, stopped at once, and gone on with in the fourth: 2 + 400 g.
    least = "Decided without losing work: no schedule at all emits less than 402 g."
    assert least in run(capsys, *words).out


@given(profiles())
def test_what_is_made_of_a_profile_keeps_its_restart(profile: lt.PowerProfile) -> None:
    flat = profile.averaged()
    assert (flat.restart is None) == (profile.restart is None)
    assert flat.restart_s == profile.restart_s
    assert len({phase.power_w for phase in (*flat.startup, *flat.starting(1), *flat.work)}) == 1
    assert ("to restart" in repr(profile)) == (profile.restart is not None)
    again = profile.startup if profile.restart is None else profile.restart
    assert profile.starting(0) == profile.startup
    assert profile.starting(1) == profile.starting(7) == again
    assert profile.restart_s == pytest.approx(sum(phase.duration_s for phase in again))
    one = lt.Job(id="a", arrival=0, deadline=profile.run_s, profile=profile)
    jobs = Workload.from_jobs([one])
    scaled = replace(jobs, power=[3.0 * jobs.power[0]])
    for phases, tripled in (
        (profile.starting(0), scaled.job(0).profile.starting(0)),
        (profile.starting(1), scaled.job(0).profile.starting(1)),
    ):
        assert [3 * phase.power_w for phase in phases] == pytest.approx(
            [phase.power_w for phase in tripled]
        )


def test_training_and_periodic_jobs_may_have_one() -> None:
    made = lt.PowerProfile.ml(epochs=2, train=(60, 600), startup=(30, 80), restart=("10s", 90))
    assert made.restart == (lt.Phase(name="restart", duration_s=10, power_w=90),)
    assert lt.PowerProfile.ml(epochs=2, train=(60, 600)).restart is None
    assert lt.PowerProfile.periodic([WORK], "2h", restart=[RELOAD]).restart == (RELOAD,)


@settings(max_examples=drawn(75, 1500))
@given(st.data(), cases())
def test_many_jobs_are_charged_as_one_is(data, case) -> None:
    one, signal = case
    stretches = data.draw(valid_stretches(one))
    schedule = Schedule.from_stretches(one, stretches)
    paid = lt.footprint(schedule, one, signal)
    jobs = Workload.from_jobs([one])
    many = tally(jobs, Stretches.of_schedules(jobs, [schedule]), signal)
    slip_j = rounding_j(one.profile)
    slip_g = slip_j * float(np.abs(signal.values).max()) / 3.6e6
    assert many.energy_j[0] == pytest.approx(paid.energy_j, rel=1e-9, abs=1e-9 + slip_j)
    assert many.carbon_g[0] == pytest.approx(paid.carbon_g, rel=1e-9, abs=1e-9 + slip_g)
    assert many.end[0] == pytest.approx(schedule.end, abs=1e-5)
    restarts = sum(phase.energy_j for phase in one.profile.restart or ())
    told = sum(part.energy_j for name, part in paid.by_phase.items() if name[:8] == "restart/")
    resumed = sum(run[0].kind == "restart" for run in schedule.runs)
    assert told == pytest.approx(resumed * restarts, rel=1e-9, abs=1e-9)
    times, power_w = power_steps(schedule, one.profile)
    assert np.diff(times) @ power_w[:-1] == pytest.approx(paid.energy_j, rel=1e-6, abs=1e-3)


def test_jobs_with_a_restart_are_planned_together() -> None:
    jobs = [job(), job("never"), job("checkpoints", max_starts=1), job("checkpoints")]
    columns = Jobs.of_list(jobs)
    found = plan_together(Exact(), columns, GRID, lambda rows: Workload.from_jobs(jobs))
    # The last may be stopped at its checkpoint, as others are one by one.
    assert found.rest.tolist() == [2, 3]
    plans = lt.plan_many(jobs, GRID)
    assert plans.amount == pytest.approx([lt.plan(each, GRID).footprint.carbon_g for each in jobs])


def test_a_first_start_for_a_cheap_restart_is_bounded() -> None:
    clean = lt.Signal.from_values([10, 500, 500, 200, 200, 500], start=0, step_s="1h")
    slow = lt.PowerProfile(
        startup=[replace(STARTUP, power_w=300)], restart=[], work=[replace(WORK, power_w=600)] * 2
    )
    # Started in the first hour, next to no work, and all of it in the fourth and fifth.
    limit = 0.3 * 10 + 2 * 0.6 * 200
    for kind, step_s in (("anywhere", 3600), ("anywhere", 60), ("checkpoints", None)):
        made = lt.plan(job(kind, slow), clean, step_s=step_s)
        assert made.footprint.carbon_g - made.resolution_gap_g == pytest.approx(limit)
        assert made.resolution_gap_g > 0
    gaps = [
        lt.plan(job("anywhere", slow), clean, step_s=step).resolution_gap_g for step in (1800, 6)
    ]
    assert 0 < gaps[1] < gaps[0] / 100
    # Not where each start must work, where it may not, or where the restart costs as much.
    for other in (
        job("anywhere", slow, min_run_s="1h"),
        job("checkpoints", slow, max_starts=1),
        job("anywhere", replace(slow, restart=[STARTUP, STARTUP])),
        job("never", slow),
    ):
        assert lt.plan(other, clean).resolution_gap_g == 0


def test_losing_work_for_a_cheap_restart_is_done_where_a_policy_does() -> None:
    # Two cheap hours apart, of which the first ends before the only checkpoint.
    clean = lt.Signal.from_values([10, 10, 500, 500, 10, 400], start=0, step_s="1h")
    slow = lt.PowerProfile(
        startup=[replace(STARTUP, power_w=900)],
        restart=[],
        work=[lt.Phase(name="run", duration_s="2h", power_w=100)],
    )
    once = job("checkpoints", slow)
    best, others = lt.plan(once, clean), lt.plan(once, clean, policy="wait_awhile")
    assert others.footprint.by_phase["lost/run"].duration_s > 0
    assert best.footprint.carbon_g <= others.footprint.carbon_g + 1e-9
    assert best.resolution_gap_g >= 0
    (together,) = lt.plan_many([once], clean)
    assert together.footprint.carbon_g == pytest.approx(best.footprint.carbon_g)
    assert together.resolution_gap_g == pytest.approx(best.resolution_gap_g)


def test_a_power_cap_counts_restarts_of_jobs_that_are_stopped() -> None:
    peaking = replace(RESUMED, restart=[replace(RELOAD, power_w=2000)])
    jobs = Workload.from_jobs([job("never", peaking), job("anywhere", peaking)])
    assert jobs.peak_w.tolist() == [1000, 2000]
    assert jobs.startup_s.tolist() == [3600, 3600]
    assert jobs.restart_s.tolist() == [1800, 1800]


def test_what_is_left_of_a_schedule_keeps_its_restarts() -> None:
    made = lt.plan(job(), GRID).schedule
    left = made.rest(State(now=3.5 * HOUR, progress_s=HOUR, starts=1))
    assert left is not None
    assert left.spans[0] == Span(kind="restart", start=3.5 * HOUR, duration_s=1800, progress_s=HOUR)
    assert lt.footprint(left, job(), GRID).carbon_g == pytest.approx(125)
