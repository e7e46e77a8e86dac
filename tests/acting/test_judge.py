"""What should be done with a job, case by case, and what the promise comes to by hand."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lowtide.acting.backend import LEAVING, OVER, PENDING, RUNNING, SUSPENDED, Look, Seen
from lowtide.acting.driver import Driver
from lowtide.acting.judge import Situation, judge
from lowtide.acting.promise import Loops, promise_of
from lowtide.acting.site import Shares, read_site
from lowtide.acting.slurm import SlurmBackend
from lowtide.acting.tag import MOST_BYTES, Tag, decode, encode
from lowtide.acting.waits import Wait, WaitModel, class_of
from lowtide.errors import Refused, Unreachable
from lowtide.signal import Signal
from lowtide.slurm.client import slurm_problem
from lowtide.slurm.records import SEPARATOR, WAITING_FIELDS, queue_from_lines

HOUR_S = 3600.0
NOW = 1_700_000_000.0
# Dirty for ten hours, then clean.
GRID = Signal.from_values([500.0] * 10 + [100.0] * 40, start=NOW, step_s="1h")
TAG = Tag(token="a", deadline=NOW + 30 * HOUR_S, arrival=NOW, run_s=2 * HOUR_S)
SEEN = Seen(id="7", state=PENDING, submitted=NOW, begin=NOW + 10 * HOUR_S)


def situation(**settings) -> Situation:
    return Situation(**{"now": NOW, "signal": GRID, "wait_s": lambda *_: 4 * HOUR_S, **settings})


def seen(tag=TAG, text="", **changes) -> Seen:
    return replace(SEEN, comment=encode(tag, text), **changes)


def test_the_promise_is_what_it_is_by_hand():
    promise = promise_of(TAG, limit_s=None, wait_s=4 * HOUR_S, loops=Loops())
    assert promise.latest == TAG.deadline - 2 * HOUR_S - 4 * HOUR_S - 271.0
    saved = replace(TAG, startup_s=600.0, progress_s=HOUR_S)
    promise = promise_of(saved, limit_s=None, wait_s=0.0, loops=Loops())
    assert promise.run_s == 600.0 + (2 * HOUR_S - 600.0 - HOUR_S)


def test_a_job_that_takes_longer_than_ever_still_takes_a_tenth():
    over = replace(TAG, progress_s=9 * HOUR_S)
    assert promise_of(over, limit_s=None, wait_s=0.0, loops=Loops()).run_s == 0.2 * HOUR_S


def test_a_limit_ends_what_cannot_save_and_cuts_what_can_into_starts():
    def run_s(tag):
        return promise_of(tag, limit_s=HOUR_S, wait_s=HOUR_S, loops=Loops()).run_s

    assert run_s(TAG) == HOUR_S
    # An hour less the warning of two minutes each time: three starts, two of which queue as well.
    saves = replace(TAG, interruptible=True)
    assert run_s(saves) == 2 * HOUR_S + 2 * (HOUR_S + 271.0)
    assert run_s(replace(saves, startup_s=HOUR_S)) == float("inf")


def test_who_was_given_more_time_may_take_it():
    bounded = replace(TAG, by_limit=True)
    for limit_s, run_s in ((HOUR_S, HOUR_S), (5 * HOUR_S, 5 * HOUR_S), (None, math.inf)):
        assert promise_of(bounded, limit_s=limit_s, wait_s=0.0, loops=Loops()).run_s == run_s
    # What a profile says of its length is no matter of the limit.
    assert promise_of(TAG, limit_s=5 * HOUR_S, wait_s=0.0, loops=Loops()).run_s == 2 * HOUR_S


def test_slurms_own_deadline_is_kept_by_the_limit():
    promise = promise_of(
        TAG, limit_s=5 * HOUR_S, wait_s=0.0, loops=Loops(), killed_at=NOW + 20 * HOUR_S
    )
    # Begun later than five hours before it, Slurm would cancel the job.
    assert promise.latest == NOW + 15 * HOUR_S - 271.0


def test_a_new_job_waits_for_clean_hours():
    verdict = judge(replace(seen(), submitted=None, begin=None), situation())
    (move,) = verdict.moves
    assert (move.kind, move.at) == ("begin", NOW + 10 * HOUR_S)
    assert decode(move.comment)[0].begin == move.at


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signal": None}, "no forecast"),
        ({"signal": GRID.window(NOW, NOW + HOUR_S)}, "no plan"),
        ({"now": NOW - 60.0}, "no plan"),
        ({"wait_s": lambda *_: None}, "foretold too badly"),
        ({"closed": [(NOW + 25 * HOUR_S, NOW + 26 * HOUR_S)]}, "reserved"),
        ({"closed": [(NOW - HOUR_S, NOW + 60.0)]}, "reserved"),
        ({"taken": {"": [(NOW + 25 * HOUR_S, NOW + 26 * HOUR_S)]}}, "reserved"),
        ({"wait_s": lambda *_: 28 * HOUR_S}, "no room to wait"),
    ],
)
def test_in_doubt_it_runs_now(changes, reason):
    told = replace(TAG, begin=SEEN.begin)
    verdict = judge(seen(told), situation(**changes))
    assert reason in verdict.why
    (move,) = verdict.moves
    assert move.kind == "begin"
    assert move.at <= changes.get("now", NOW)


def test_a_job_of_which_nobody_says_how_long_it_takes_runs_now():
    unknown = replace(TAG, run_s=0.0, begin=SEEN.begin)
    verdict = judge(seen(unknown), situation())
    assert "how long" in verdict.why
    assert verdict.moves[0].at <= NOW


def test_a_begin_that_grew_unsafe_is_pulled_forward_even_without_room_for_the_tag():
    told = replace(TAG, begin=SEEN.begin)
    late = situation(wait_s=lambda *_: 20 * HOUR_S)
    verdict = judge(seen(told), late)
    assert verdict.moves[0].at <= TAG.deadline - 22 * HOUR_S - 271.0 < SEEN.begin
    full = seen(told)
    full = replace(full, comment=full.comment + " " + "x" * (MOST_BYTES - len(full.comment) - 1))
    (move,) = judge(full, late).moves
    assert (move.comment, move.at) == ("", verdict.moves[0].at)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"held": True, "why": "JobHeldUser"}, "held"),
        ({"state": SUSPENDED}, "suspended"),
        ({"state": OVER}, "over"),
        ({"state": LEAVING}, "over"),
        ({"begin": NOW - 60.0, "why": "Priority"}, "due"),
        ({"begin": NOW - 7200.0, "why": "BeginTime"}, "due"),
    ],
)
def test_it_is_left_alone(changes, what):
    written = replace(TAG, begin=changes.get("begin", SEEN.begin))
    verdict = judge(seen(written, **changes), situation())
    assert (verdict.what, verdict.moves) == (what, ())


def test_at_its_begin_the_scheduler_is_made_to_look():
    told = replace(TAG, begin=NOW - 5.0)
    verdict = judge(seen(told, begin=NOW - 5.0, why="BeginTime"), situation())
    assert [(move.kind, move.at) for move in verdict.moves] == [("begin", NOW)]


def test_an_operator_boosts_what_has_to_begin_and_nobody_else():
    told = replace(TAG, begin=NOW - 5.0, deadline=NOW + 3 * HOUR_S)
    due = seen(told, begin=NOW - 5.0, why="Priority", submitted=NOW - 9 * HOUR_S)
    powers = frozenset(("stop", "boost"))
    assert [m.kind for m in judge(due, situation(powers=powers)).moves] == ["boost"]
    assert judge(due, situation()).moves == ()
    early = seen(replace(told, deadline=NOW + 30 * HOUR_S), begin=NOW - 5.0, why="Priority")
    assert judge(early, situation(powers=powers)).moves == ()
    # A deadline that was too early to be promised is no way past those who came first.
    new = replace(due, submitted=NOW - 60.0, comment=encode(replace(told, deadline=NOW + 60.0)))
    assert judge(new, situation(powers=powers, wait_s=lambda *_: HOUR_S)).moves == ()
    waited = replace(new, submitted=NOW - HOUR_S)
    assert judge(waited, situation(powers=powers, wait_s=lambda *_: HOUR_S)).moves != ()


def test_who_was_deferred_and_is_let_begin_as_a_queue_grows_goes_first():
    # Handed in an hour ago with ten hours to spare, when nobody stood in line.
    told = replace(TAG, begin=SEEN.begin, wait_s=0.0, deadline=NOW + 13 * HOUR_S)
    waits = seen(told, submitted=NOW - HOUR_S)
    powers = frozenset(("stop", "boost"))
    crowded = situation(powers=powers, wait_s=lambda *_: 20 * HOUR_S)
    (move,) = judge(waits, crowded).moves
    assert (move.kind, move.at) == ("begin", NOW)
    due = replace(waits, begin=NOW - 1.0, comment=move.comment, why="Priority")
    assert [move.kind for move in judge(due, crowded).moves] == ["boost"]
    # Who never waited, and has a deadline that nobody could promise then, does not.
    early = replace(told, begin=NOW - HOUR_S, wait_s=20 * HOUR_S)
    never = replace(due, comment=encode(early))
    assert judge(never, crowded).moves == ()


def test_what_was_moved_by_hand_is_its_users():
    verdict = judge(seen(replace(TAG, begin=NOW + 3 * HOUR_S)), situation())
    assert verdict.what == "yours"
    (move,) = verdict.moves
    assert (move.kind, decode(move.comment)[0].users_own) == ("note", True)
    again = judge(replace(seen(), comment=move.comment), situation())
    assert (again.what, again.moves) == ("yours", ())


def test_what_its_user_let_begin_earlier_is_not_deferred_again_and_not_stopped():
    # As by `scontrol update StartTime=now`, seen before it starts and after.
    told = replace(RUNS, begin=NOW + 9 * HOUR_S)
    due = seen(told, begin=NOW - 5.0, why="Priority")
    job, now = running(told)
    for released, at in ((due, NOW), (job, now)):
        verdict = judge(released, situation(now=at, signal=TURNS))
        (move,) = verdict.moves
        assert (verdict.what, move.kind) == ("yours", "note")
        again = judge(replace(released, comment=move.comment), situation(now=at, signal=TURNS))
        assert (again.what, again.moves) == ("yours", ())
    # What was written before may count as well, and what is a little early is nobody's hand.
    for ours in (replace(told, before=NOW), replace(told, begin=NOW + 50.0)):
        assert [move.kind for move in stopped(ours).moves] == ["stop"]
    # Once it was requeued, or asked to stop, its begin is that of the next start.
    assert [move.kind for move in stopped(replace(told, restarts=3)).moves] == ["stop"]
    assert stopped(replace(told, asked=1, asked_at=NOW + HOUR_S)).what == "stopping"


def test_a_begin_that_was_ours_before_is_no_hand_of_the_users():
    halved = replace(TAG, begin=NOW + 12 * HOUR_S, before=SEEN.begin)
    assert judge(seen(halved), situation()).what == "waits"


RUNS = replace(TAG, interruptible=True, stop_s=30.0, deadline=NOW + 40 * HOUR_S)
# Clean at first, then dirty for ten hours.
TURNS = Signal.from_values([100.0] + [500.0] * 10 + [100.0] * 40, start=NOW, step_s="1h")


def running(tag=RUNS, *, for_s=HOUR_S, **changes):
    return seen(tag, state=RUNNING, started=NOW, begin=None, **changes), NOW + for_s


def stopped(tag=RUNS, **changes):
    job, now = running(tag, **changes)
    return judge(job, situation(now=now, signal=TURNS))


def test_what_can_save_is_stopped_in_dirty_hours_and_told_when_to_go_on():
    verdict = stopped()
    (move,) = verdict.moves
    assert move.kind == "stop"
    tag = decode(move.comment)[0]
    assert (tag.begin, tag.asked) == (NOW + 11 * HOUR_S, 1)
    assert tag.begin <= verdict.promise.latest


@pytest.mark.parametrize(
    "tag",
    [
        replace(RUNS, interruptible=False),
        replace(RUNS, deaf=True),
        replace(RUNS, users_own=True),
        replace(RUNS, max_starts=1),
        # A restart would have to queue again, and there is no time for that.
        replace(RUNS, deadline=NOW + 6 * HOUR_S),
    ],
)
def test_what_must_not_or_cannot_be_stopped_runs(tag):
    assert stopped(tag).moves == ()


def test_nothing_is_stopped_before_a_maintenance_and_what_is_past_or_far_does_not_count():
    job, now = running()
    ahead = [(NOW + 20 * HOUR_S, NOW + 21 * HOUR_S)]
    assert judge(job, situation(now=now, signal=TURNS, closed=ahead)).moves == ()
    other = [(NOW - 9.0, NOW), (NOW + 90 * HOUR_S, NOW + 91 * HOUR_S)]
    assert judge(job, situation(now=now, signal=TURNS, closed=other)).moves


def test_nothing_is_stopped_soon_after_its_start_or_by_a_clock_that_runs_behind():
    job, _ = running()
    assert judge(job, situation(now=NOW + 600.0, signal=TURNS)).moves == ()
    assert judge(job, situation(now=NOW - 600.0, signal=TURNS)).moves == ()


def test_a_job_that_does_not_hear_is_asked_twice_and_then_left_to_run():
    asked = replace(RUNS, asked=1, asked_at=NOW + HOUR_S)
    assert stopped(asked, for_s=HOUR_S + 60.0).moves == ()
    (again,) = stopped(asked, for_s=HOUR_S + 400.0).moves
    assert (again.kind, decode(again.comment)[0].asked) == ("stop", 2)
    (noted,) = stopped(replace(asked, asked=2), for_s=HOUR_S + 400.0).moves
    assert (noted.kind, decode(noted.comment)[0].deaf) == ("note", True)


def test_who_has_heard_is_not_taken_for_deaf_at_the_stops_that_follow():
    heard = replace(RUNS, begin=SEEN.begin, asked=2, asked_at=NOW, restarts=0)
    (noted,) = judge(seen(heard, restarts=1), situation()).moves
    tag = decode(noted.comment)[0]
    assert (noted.kind, tag.restarts, tag.asked, tag.asked_at) == ("note", 1, 0, None)


def test_nobody_elses_job_is_judged():
    assert judge(replace(SEEN, comment="lt1:{} mine"), situation()) is None


def test_a_class_that_was_foretold_badly_is_not_deferred():
    waits = [
        Wait(kind="k", eligible=NOW - 4e5 + 2400 * k, started=NOW - 4e5 + 2460 * k, id=f"w{k}")
        for k in range(150)
    ]
    jobs = [seen(replace(TAG, begin=SEEN.begin), kind="k")]
    look = Look(jobs=jobs, waits=waits, now=NOW)
    backend = SimpleNamespace(look=lambda: look, now=lambda: NOW, can=frozenset)
    driver = Driver(backend=backend, forecast=lambda _: GRID, waits=WaitModel(), dry=True)
    (verdict,) = driver.turn().verdicts
    assert "foretold too badly" in verdict.why


def line(**said) -> str:
    usual = {
        "job_id": "5",
        "shown_id": "5",
        "state": "PENDING",
        "reason": "BeginTime",
        "user": "ada",
        "partition": "main",
        "submitted": "100",
        "eligible": "900",
        "started": "N/A",
        "limit": "1:00:00",
        "deadline": "N/A",
        "cpus": "4",
        "node_count": "1",
        "reservation": "(null)",
        "tasks": "1",
        "tres": "N/A",
        "per_job": "N/A",
        "per_node": "N/A",
        "per_task": "N/A",
        "shares": "OK",
        "features": "(null)",
        "restarts": "0",
        "priority": "1200",
        "comment": encode(TAG),
        "name": "a.sh",
    }
    return "".join(f"{(usual | said)[key]}{SEPARATOR}" for key in WAITING_FIELDS.values()) + "\n"


class Told:
    """A client that answers what a test says."""

    timeout_s = 1.0

    def __init__(self, *lines, problem="", reserved="", nodes="", config=""):
        self.text, self.problem, self.reserved = "".join(lines), problem, reserved
        self.nodes, self.config = nodes, config
        self.told = []

    def waiting_line(self):
        return queue_from_lines(self.text)

    def tell(self, *command):
        if "show" in command:
            return self.reserved if "reservation" in command else self.config
        if command[0] == "sinfo":
            return self.nodes
        self.told.append(command)
        if not self.problem:
            return ""
        raise slurm_problem(self.problem)


def test_elements_of_an_array_are_one_as_long_as_slurm_has_one_record_of_them():
    tasks = [line(job_id="5", shown_id=f"5_{k}") for k in (0, 1, 3, 10, 11)]
    apart = line(job_id="8", shown_id="5_2", eligible="700")
    jobs = SlurmBackend(client=Told(*tasks, apart)).look().jobs
    assert [(job.id, job.begin) for job in jobs] == [("5_[0-1,3,10-11]", 900.0), ("5_2", 700.0)]


def test_names_and_comments_may_hold_anything():
    odd = f'two\nlines | and "quotes" {{}} {encode(TAG)} behind\n'
    lines = [line(name="a\nb", comment=odd), line(job_id="6", shown_id="6", comment="none of ours")]
    (job,) = SlurmBackend(client=Told(*lines)).look().jobs
    tag, text = decode(job.comment)
    assert tag == TAG
    assert text.startswith("two\nlines | and")


def test_only_waits_for_a_turn_count():
    lines = [
        line(job_id="1", eligible="100", reason="Priority"),
        line(job_id="2", eligible="100", reason="Dependency"),
        line(job_id="3", eligible="100", reason="JobHeldUser"),
        line(job_id="4", eligible="100", started="160", state="RUNNING", reason="None"),
        line(job_id="5", eligible="9" * 10, reason="BeginTime"),
    ]
    waits = SlurmBackend(client=Told(*lines)).look().waits
    assert [(wait.eligible, wait.started) for wait in waits] == [(100.0, None), (100.0, 160.0)]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("scontrol did not answer within 15 s", Unreachable),
        ("Unable to contact slurm controller (connect failure)", Unreachable),
        ("Unexpected message received", Unreachable),
        ("Socket timed out on send/recv operation", Unreachable),
        ("Job is no longer pending execution", Refused),
        ("Invalid job id specified", Refused),
        ("Access/permission denied", Refused),
    ],
)
def test_silence_is_told_from_a_no(problem, kind):
    with pytest.raises(kind):
        SlurmBackend(client=Told(problem=problem)).note(seen(), "x")


def test_of_what_is_reserved_only_maintenance_closes_anything():
    reserved = (
        "ReservationName=a StartTime=100 EndTime=200 Duration=x Nodes=n1 Flags=MAINT,SPEC_NODES\n"
        "ReservationName=b StartTime=300 EndTime=400 Duration=x Nodes=n1 Flags=SPEC_NODES\n"
        "ReservationName=c StartTime=soon EndTime=400 Flags=MAINT\n"
    )
    assert SlurmBackend(client=Told(reserved=reserved)).look().closed == ((100.0, 200.0),)
    assert SlurmBackend(client=Told(reserved="No reservations in the system")).look().closed == ()


def test_who_keeps_most_nodes_of_a_partition_for_others_closes_it():
    # Half of one partition, and a third of the other; what is reserved for jobs of ours does not
    # count, nor what has begun: who waits now waits for it already.
    at = int(time.time()) + 3600
    until = f"StartTime={at} EndTime={at + 60} Duration=x"
    reserved = (
        f"ReservationName=course {until} Nodes=n[1-2] NodeCnt=2 Flags=SPEC_NODES\n"
        f"ReservationName=lowtide_a {until} Nodes=n[1-9] Flags=FLEX\n"
        f"ReservationName=old StartTime=5 EndTime={at} Duration=x Nodes=n[1-9] Flags=\n"
    )
    nodes = "small 0/8/0/8 4 2 0 (null) (null) n[1-4]\nall 0/12/0/12 6 2 0 (null) (null) n[1-6]\n"
    look = SlurmBackend(client=Told(reserved=reserved, nodes=nodes)).look()
    assert (look.closed, look.taken) == ((), {"small": [(at, at + 60)]})


RESERVES = frozenset(("stop", "reserve"))


def test_nodes_are_reserved_for_who_waits_and_runs_through():
    told = replace(TAG, begin=SEEN.begin)
    (move,) = judge(seen(told), situation(powers=RESERVES)).moves
    assert (move.kind, move.at) == ("reserve", SEEN.begin)
    # Once they are, the job stays there, whatever is foretold later.
    flat = Signal.from_values([100.0] * 50, start=NOW, step_s="1h")
    kept = judge(seen(told, reserved=SEEN.begin), situation(powers=RESERVES, signal=flat))
    assert (kept.what, kept.moves) == ("waits", ())
    assert "reserved" in kept.why
    # But not where that breaks its promise.
    late = situation(powers=RESERVES, wait_s=lambda *_: 20 * HOUR_S)
    assert [m.kind for m in judge(seen(told, reserved=SEEN.begin), late).moves] == ["begin"]
    # Nodes of who is stopped would stand idle.
    saves = replace(told, interruptible=True)
    assert judge(seen(saves), situation(powers=RESERVES)).moves == ()
    assert judge(seen(told), situation()).moves == ()


def test_a_reservation_is_made_once_and_not_asked_for_again_at_once_where_it_is_refused():
    waits = line(comment=encode(replace(TAG, begin=900.0)), node_count="2", limit="2:00:00")
    client = Told(waits)
    backend = SlurmBackend(client=client, reserves=True)
    (job,) = backend.look().jobs
    backend.reserve(job, time.time() + 600.0)
    made, joined = client.told
    assert {"NodeCnt=2", "Users=ada", "PartitionName=main"} <= set(made)
    assert joined[-1] == "ReservationName=lowtide_a"
    client.reserved = "ReservationName=lowtide_a StartTime=900 EndTime=99999 Nodes=n1 Flags=FLEX"
    backend.look()
    client.told.clear()
    backend.reserve(job, 900.0)
    assert client.told == [joined]

    told = replace(TAG, begin=SEEN.begin)
    asked = []

    def refuse(job, at):
        asked.append(at)
        raise Refused("Requested nodes are busy")

    look = Look(jobs=[seen(told)], now=NOW)
    busy = SimpleNamespace(look=lambda: look, now=lambda: NOW, can=lambda: RESERVES, reserve=refuse)
    driver = Driver(backend=busy, forecast=lambda _: GRID)
    assert [len(driver.turn().deeds), len(driver.turn().deeds), len(asked)] == [1, 0, 1]


def test_the_clock_that_counts_is_the_controllers():
    ahead = f"Configuration data as of {int(time.time()) + 600}\nKillWait = 30 sec\n"
    look = SlurmBackend(client=Told(config=ahead)).look()
    assert look.now == pytest.approx(time.time() + 600.0, abs=60.0)
    # Who of the two is right nobody knows: begins are as much earlier.
    assert look.loops.spare_s == pytest.approx(Loops().spare_s + 600.0, abs=60.0)
    same = ahead.replace(str(int(time.time()) + 600), str(int(time.time())))
    agreed = SlurmBackend(client=Told(config=same)).look()
    assert agreed.loops == Loops()


def test_who_stands_in_line_counts_at_every_look_and_at_no_cost():
    now = time.time()
    soon = f"{now - 600:.0f}"

    def job(number, **said):
        usual = {"job_id": str(number), "eligible": soon, "limit": "2:00:00", "comment": ""}
        return line(**{**usual, "reason": "Priority", **said})

    runs = {"state": "RUNNING", "reason": "None", "started": soon}
    lines = [
        # Ten CPUs, on which four are in use for an hour and 50 minutes.
        job(1, **runs),
        job(2),
        job(3, partition="main,other", limit="1:00:00", cpus="8"),
        # These do not compete: it is not their time, or a limit of their user's keeps them back.
        job(4, reason="BeginTime", eligible=f"{now + 9e4:.0f}"),
        job(5, reason="QOSMaxCpuPerUserLimit", limit="9-0"),
        job(6, reason="Dependency"),
        job(7, partition="idle", **runs),
    ]
    client = Told(*lines, nodes="main 4/6/3/13\nother 0/2/0/2\nidle 4/0/0/4\n")
    backlog_s = SlurmBackend(client=client).look().backlog_s
    # Who may take either has a place of its own, which is that of the first.
    assert set(backlog_s) == {"main", "other", "main,other"}
    assert backlog_s["main,other"] == backlog_s["main"]
    assert backlog_s["main"] == pytest.approx((4 * 6600.0 + 4 * 7200.0 + 8 * 3600.0) / 10, abs=60.0)
    assert backlog_s["other"] == pytest.approx(8 * 3600.0 / 2)
    # Who may run for ever takes his CPUs out, and nothing besides.
    client.text += job(8, limit="UNLIMITED", cpus="5", **runs)
    longer = SlurmBackend(client=client).look().backlog_s["main"]
    assert longer == pytest.approx(2 * backlog_s["main"], rel=0.01)
    assert client.told == []


def test_who_keeps_a_node_or_its_memory_from_others_counts_with_all_of_it():
    soon = f"{time.time() - 600:.0f}"
    usual = {"eligible": soon, "limit": "2:00:00", "reason": "Priority", "cpus": "1"}
    # Of two nodes with 16 CPUs and 64 GB one job has half of a node's memory, and another both.
    lines = [
        line(job_id="1", tres="cpu=1,mem=32G,node=1", comment="", **usual),
        line(job_id="2", node_count="2", shares="NO", **usual),
        line(job_id="3", tres="cpu=1,mem=1G,node=1", comment="", **usual),
    ]
    nodes = "main 0/32/0/32 2 16 65536 (null)\n"
    memory = "SelectTypeParameters = CR_CORE_MEMORY\n"
    for config, cpus, backlog in ((memory, 8.0, 9.0), ("", 1.0, 2.0)):
        look = SlurmBackend(client=Told(*lines, nodes=nodes, config=config)).look()
        assert look.backlog_s["main"] == pytest.approx(backlog * 7200.0 / 32)
        (mine,) = look.jobs
        assert (mine.cpus, mine.kind) == (32.0, "main/9-64")
        # It waits like its like, while it runs as well: it has all of its nodes then.
        kinds = [wait.kind for wait in look.waits]
        assert kinds == [class_of("main", cpus, 0), "main/9-64", "main/1"]
        assert look.rooms["main"].node_cpus == 16.0


@pytest.mark.parametrize(
    ("config", "partition", "shares"),
    [
        ("", "", Shares(node_memory=math.inf)),
        ("SelectType = select/linear", "", Shares(whole=True, node_memory=math.inf)),
        (
            "SelectTypeParameters = CR_CPU_MEMORY\nDefMemPerCPU = 100\n",
            "",
            Shares(minds_memory=True, cpu_memory=100 * 2.0**20),
        ),
        # A partition's own word is the one that counts.
        (
            "DefMemPerNode = UNLIMITED",
            "PartitionName=a OverSubscribe=EXCLUSIVE DefMemPerNode=2000 MaxMemPerNode=UNLIMITED",
            Shares(whole=True, node_memory=2000 * 2.0**20),
        ),
        ("DefMemPerNode = 7", "OverSubscribe=FORCE:4 DefMemPerNode=UNLIMITED",
         Shares(node_memory=7 * 2.0**20)),
    ],
)  # fmt: skip
def test_what_jobs_take_besides_what_they_ask_for_is_as_the_site_has_it(config, partition, shares):
    assert read_site(config).shares.in_partition(partition) == shares


def test_nodes_that_were_switched_off_come_up_first():
    told = "ResumeProgram = /sbin/on\nResumeTimeout = 600 sec\n"
    assert read_site(told).loops.boot_s == 600.0
    assert read_site(told).loops.total_s == Loops().total_s + 600.0
    assert read_site(told.replace("/sbin/on", "(null)")).loops == Loops()


def test_a_driver_lets_a_job_begin_before_a_queue_that_has_grown():
    job = seen(replace(TAG, begin=SEEN.begin), partition="main,other")
    look = Look(jobs=[job], now=NOW)
    begins = []
    for backlog_s in ({}, {"main": 26 * HOUR_S}, {"other": 26 * HOUR_S}):
        shown = replace(look, backlog_s=backlog_s)
        backend = SimpleNamespace(look=lambda shown=shown: shown, now=lambda: NOW, can=frozenset)
        (verdict,) = Driver(backend=backend, forecast=lambda _: GRID, dry=True).turn().verdicts
        begins.append([move.at for move in verdict.moves])
    # 30 hours less two of work and 26 in line: dirty or not, it begins before that.
    assert begins == [[], [pytest.approx(NOW, abs=2 * HOUR_S)], []]


class Slow:
    """A backend whose requests take ten seconds each."""

    def __init__(self, *jobs):
        self.jobs, self.clock, self.told = {job.id: job for job in jobs}, NOW, []

    def now(self):
        return self.clock

    def look(self):
        return Look(jobs=list(self.jobs.values()), now=self.clock)

    def can(self):
        return frozenset()

    def begin(self, job, at, comment):
        self.clock += 10.0
        self.told.append(job.id)
        self.jobs[job.id] = replace(self.jobs[job.id], begin=at, comment=comment)


def test_what_was_seen_too_long_ago_is_looked_at_again_before_it_is_moved():
    begun = NOW + 20 * HOUR_S
    jobs = [
        seen(
            replace(TAG, token=f"t{k}", begin=begun, deadline=NOW + (40 - k) * HOUR_S), begin=begun
        )
        for k in range(6)
    ]
    slow = Slow(*(replace(job, id=str(k)) for k, job in enumerate(jobs)))
    driver = Driver(backend=slow, forecast=lambda _: GRID)
    assert not driver.turn().is_whole
    # Who has to begin first was moved first.
    assert slow.told == ["5", "4", "3"]
    # Meanwhile one has been taken by its user.
    by_hand = NOW + 7 * HOUR_S
    slow.jobs["1"] = replace(slow.jobs["1"], begin=by_hand)
    slow.note = lambda job, comment: None
    while not driver.turn().is_whole:
        pass
    assert (sorted(slow.told), slow.jobs["1"].begin) == (["0", "2", "3", "4", "5"], by_hand)


def test_ten_thousand_jobs_take_one_look_and_little_time_once_they_stand_as_they_should():
    count = 10_000
    now = int(time.time())
    dirty = [500.0] * 10 + [100.0] * 60
    signal = Signal.from_values(dirty, start=now - 1800.0, step_s="1h")
    asked = []

    def told(begins):
        lines = []
        for k, begin in enumerate(begins):
            deadline = now + 3600.0 * (12 + k % 30)
            run_s = 3600.0 * (1 + k % 4)
            tag = Tag(token=f"t{k}", deadline=deadline, arrival=now, run_s=run_s, begin=begin)
            shown = {"job_id": str(k), "shown_id": str(k), "comment": encode(tag)}
            lines.append(line(**shown, eligible=f"{begin:.0f}", submitted=str(now - 99)))
        return "".join(lines)

    class Counted(Told):
        def waiting_line(self):
            asked.append(1)
            return super().waiting_line()

    client = Counted(told([now + 9e4] * count))
    backend = SlurmBackend(client=client)
    driver = Driver(backend=backend, forecast=lambda _: signal, dry=True)
    moved = driver.turn().verdicts
    begins = [each.moves[0].at if each.moves else each.seen.begin for each in moved]
    client.text = told([max(each, now + 120.0) for each in begins])
    spent = []
    for _ in range(4):
        begun = time.process_time()
        turn = driver.turn()
        spent.append(time.process_time() - begun)
    assert [len(turn.verdicts), sum(bool(each.moves) for each in turn.verdicts)] == [count, 0]
    assert len(asked) == 5
    print(f"{count} jobs that stand as they should: {min(spent):.2f} s of CPU time a turn")
    assert min(spent) < 0.5


# As two releases print it, in parts.
CONFIG = """Configuration data as of 2026-11-16T12:00:00
AuthInfo                = socket=/run/munge.sock,cred_expire=60
CompleteWait            = 32 sec
JobRequeue              = 0
KillWait                = 45 sec
PriorityFlags           =
SchedulerParameters     = bf_continue,bf_interval=120,bf_window=2880,sched_interval=240
SchedulerType           = sched/backfill

Slurmctld(primary) at ctl is UP
"""


def test_the_loops_are_those_of_the_site():
    site = read_site(CONFIG)
    assert site.loops == Loops(pass_s=240.0, requeue_s=61.0, kill_s=77.0, spare_s=60.0)
    assert (site.accrues, site.requeues) == (False, False)
    assert len(site.advice) == 2
    quick = CONFIG.replace("bf_continue", "requeue_delay=5").replace("=240", "=-1")
    assert read_site(quick).loops.requeue_s == 5.0
    # A main loop that is switched off leaves the other, and the usual.
    assert read_site(quick).loops.pass_s == 120.0
    busy = CONFIG.replace("bf_continue", "bf_max_time=600")
    assert read_site(busy).loops.pass_s == 720.0
    builtin = CONFIG.replace("sched/backfill", "sched/builtin").replace("=240", "=30")
    assert read_site(builtin).loops.pass_s == 30.0


@pytest.mark.parametrize("text", ["", "nonsense", "KillWait = soon\nAuthInfo=(null)\n = 5\n"])
def test_a_site_that_says_nothing_is_as_slurm_is_by_itself(text):
    site = read_site(text)
    assert site.loops == Loops()
    assert site.advice == []


def test_the_driver_takes_the_loops_that_the_backend_tells():
    told = replace(TAG, begin=SEEN.begin)

    def latest(loops, given=None):
        look = Look(jobs=[seen(told)], now=NOW, loops=loops)
        backend = SimpleNamespace(look=lambda: look, now=lambda: NOW, can=frozenset)
        driver = Driver(backend=backend, forecast=lambda _: GRID, loops=given, dry=True)
        return driver.turn().verdicts[0].promise.latest

    slow = Loops(pass_s=600.0)
    assert latest(None) - latest(slow) == 540.0
    assert latest(slow, Loops()) == latest(None)


def test_what_the_backend_holds_itself_is_let_go_once_and_what_a_user_holds_never():
    stuck = seen(TAG, held=True, stuck=True, why="launch failed requeued held")
    (move,) = judge(stuck, situation()).moves
    assert (move.kind, decode(move.comment)[0].released) == ("release", True)
    again = judge(replace(stuck, comment=move.comment), situation())
    assert (again.what, again.moves) == ("held", ())
    assert "held again" in again.why
    assert judge(replace(stuck, stuck=False), situation()).moves == ()


@pytest.mark.parametrize(
    ("reason", "held", "stuck"),
    [
        ("launch failed requeued held", True, True),
        ("launch_failed_requeued_held", True, True),
        ("(user env retrieval failed requeued held)", True, True),
        ("JobHoldMaxRequeue", True, True),
        ("JobHeldUser", True, False),
        ("JobHeldAdmin", True, False),
        ("BeginTime", False, False),
    ],
)
def test_who_holds_a_job_is_told_by_its_reason(reason, held, stuck):
    (job,) = SlurmBackend(client=Told(line(reason=reason))).look().jobs
    assert (job.held, job.stuck) == (held, stuck)


def test_what_goes_first_already_is_not_boosted_again():
    (job,) = SlurmBackend(client=Told(line(priority="4294967293"))).look().jobs
    assert job.is_next
    # Where priorities are counted down this is what the first job ever got.
    (usual,) = SlurmBackend(client=Told(line(priority="4294901759"))).look().jobs
    assert not usual.is_next
    told = replace(TAG, begin=NOW - 5.0, deadline=NOW + 3 * HOUR_S)
    due = seen(told, begin=NOW - 5.0, why="Priority", is_next=True)
    assert judge(due, situation(powers=frozenset(("stop", "boost")))).moves == ()


def test_a_job_says_itself_how_eagerly_it_is_moved():
    short = replace(RUNS, min_run_s=60.0, run_s=HOUR_S)
    job, now = running(short, for_s=600.0)
    grid = Signal.from_values([100.0] + [500.0] * 10 + [100.0] * 400, start=NOW, step_s=600.0)
    assert [m.kind for m in judge(job, situation(now=now, signal=grid)).moves] == ["stop"]
    usual, now = running(replace(short, min_run_s=None), for_s=600.0)
    assert judge(usual, situation(now=now, signal=grid)).moves == ()
