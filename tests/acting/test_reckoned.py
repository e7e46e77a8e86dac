"""Plan, replay and measurement of jobs that ended: against what can be added up by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lowtide.acting.backend import PENDING, RUNNING, Seen
from lowtide.acting.book import Begun, Book, BookPage, read_page
from lowtide.acting.experience import Experience, Experiences, RunOutcome, program_key
from lowtide.acting.journal import Journal
from lowtide.acting.reckoning import Reckoning, replay
from lowtide.acting.settling import Settler
from lowtide.acting.tag import Tag, encode
from lowtide.errors import Refused
from lowtide.monitor.snapshot import JobFacts
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Stretch
from lowtide.signal import Signal
from lowtide.slurm.client import slurm_problem
from lowtide.store import Store
from support.production import Job, Program, keep

HOUR_S = 3600.0
START = 1_720_051_200.0
# An hour of work at 300 W after ten minutes at 100 W, and a minute to save.
PROFILE = PowerProfile(
    startup=[Phase(name="load", duration_s=600, power_w=100)],
    work=[Phase(name="train", duration_s=3600, power_w=300)],
    stop=[Phase(name="save", duration_s=60, power_w=50)],
)
# Dirty for six hours, clean for six, and so on.
GRID = Signal.from_values(([600.0] * 6 + [100.0] * 6) * 4, start=START, step_s="1h")


class Slurm:
    """A client that knows how a job ended, or does not."""

    def __init__(self, *facts, silent=False, accounts=False):
        self.facts, self.silent, self.accounts = facts, silent, accounts

    def job(self, job_id):
        if self.silent:
            raise slurm_problem("Unable to contact slurm controller")
        if not self.facts:
            raise slurm_problem("scontrol: Invalid job id specified")
        return list(self.facts)

    def accounting(self, **_):
        if self.accounts:
            return []
        raise slurm_problem("Slurm accounting storage is disabled")


def page(journal, profile=PROFILE, **changes) -> BookPage:
    name = "" if profile is None else journal.keep_profile(profile)
    usual = BookPage(
        token="t1",
        job_id="7",
        name="train",
        arrival=START,
        deadline=START + 20 * HOUR_S,
        program="p",
        profile=name,
        planned=40.0,
        planned_at_once=200.0,
    )
    return replace(usual, **changes)


def told(state="completed", ended=START + 9 * HOUR_S, comment=None, started=START):
    return JobFacts(
        source="slurm",
        job_id="7",
        shown_id="7",
        state=state,
        started=started,
        ended=ended,
        comment=comment,
    )


def watched(store, *starts, state=("requeued", "completed")):
    """Keep starts of job 7 as a watcher does: each begins at an hour and draws as it is told."""
    jobs = []
    for number, (hour, parts) in enumerate(starts):
        seconds, watts = np.array(parts).T
        last = number == len(starts) - 1
        jobs.append(
            Job(
                number=7,
                program=Program(name="train"),
                start=START + hour * HOUR_S,
                edges_s=np.concatenate(([0.0], np.cumsum(seconds))),
                watts=watts,
                facts={"state": state[last], "restarts": number},
            )
        )
    keep(store, jobs, step_s=10.0)
    return jobs[-1].end


@pytest.fixture
def journal(tmp_path):
    return Journal(folder=tmp_path / "journal")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.sqlite") as found:
        yield found


def settle(
    journal,
    store,
    job: BookPage,
    *facts,
    now=START + 10 * HOUR_S,
    signal=GRID,
    accounts=False,
    rescue=None,
) -> BookPage:
    journal.book.put(job)
    settler = Settler(
        client=Slurm(*facts, accounts=accounts),
        book=journal.book,
        experiences=journal.experiences,
        journal=journal,
        store=store,
        signal=signal,
        rescue=rescue,
    )
    (found,) = settler.settle([job], now=now)
    return found


# What the profile comes to by hand, in grams: kWh times intensity.
def grams(*parts) -> float:
    return sum(seconds * watts / 3.6e6 * intensity for seconds, watts, intensity in parts)


def test_a_job_that_did_as_its_profile_says_is_measured_as_replayed(journal, store):
    end = watched(store, (7.0, [(600.0, 100.0), (3600.0, 300.0)]))
    found = settle(journal, store, page(journal), told(ended=end))
    by_hand = grams((600, 100, 100), (3600, 300, 100))
    assert found.replayed == pytest.approx(by_hand)
    assert found.measured == pytest.approx(by_hand, rel=0.01)
    assert found.at_once == pytest.approx(6 * by_hand)
    assert found.reckoning.saving == pytest.approx(1 - 1 / 6)
    assert found.reckoning.saved == pytest.approx(5 * by_hand, rel=0.02)
    assert (found.in_time, found.outcome, found.power) == (True, "completed", "measured")
    assert found.energy_ratio == pytest.approx(1.0, abs=0.01)
    assert found.duration_ratio == pytest.approx(1.0, abs=0.01)


def test_a_job_that_was_stopped_pays_for_its_stop_and_its_second_startup(journal, store):
    # Half of the work in the last dirty hour, the rest in clean ones.
    first = [(600.0, 100.0), (1800.0, 300.0), (60.0, 50.0)]
    end = watched(store, (5.0, first), (7.0, [(600.0, 100.0), (1800.0, 300.0)]))
    found = settle(journal, store, page(journal), told(ended=end))
    by_hand = grams(
        (600, 100, 600), (1800, 300, 600), (60, 50, 600), (600, 100, 100), (1800, 300, 100)
    )
    assert found.replayed == pytest.approx(by_hand, rel=1e-6)
    assert found.measured == pytest.approx(by_hand, rel=0.01)
    assert found.duration_ratio == pytest.approx(1.0, abs=0.01)


def test_a_gap_between_replay_and_measurement_is_the_profiles(journal, store):
    end = watched(store, (7.0, [(600.0, 130.0), (3600.0, 390.0)]))
    found = settle(journal, store, page(journal), told(ended=end))
    assert found.gap == pytest.approx(0.3, abs=0.01)
    assert found.energy_ratio == pytest.approx(1.3, abs=0.01)
    # The saving is of the watts that were, and does not count the profile's fault.
    assert found.reckoning.saving == pytest.approx(1 - 1 / 6)


def test_without_a_watcher_nothing_is_saved_as_far_as_anybody_knows(journal):
    seen = page(journal, begun=(Begun(task="7", start=START + 7 * HOUR_S),))
    found = settle(journal, None, seen, told(ended=START + 8.5 * HOUR_S))
    assert found.replayed == pytest.approx(grams((600, 100, 100), (3600, 300, 100)))
    assert (found.measured, found.reckoning.saving, found.reckoning.saved) == (None, None, None)


def test_a_job_watched_in_part_is_not_measured(journal, store):
    end = watched(store, (7.0, [(600.0, 100.0), (3600.0, 300.0)]))
    both = (Begun(task="7", start=START + 5 * HOUR_S), Begun(task="7", start=START + 7 * HOUR_S))
    found = settle(journal, store, page(journal, begun=both), told(ended=end))
    assert found.measured is None


def test_without_a_profile_it_is_set_beside_what_it_drew(journal, store):
    end = watched(store, (7.0, [(4200.0, 300.0)]))
    found = settle(journal, store, page(journal, None, planned=None), told(ended=end))
    assert (found.planned, found.replayed, found.gap) == (None, None, None)
    assert found.reckoning.saving == pytest.approx(1 - 1 / 6, abs=0.01)


def test_the_grid_is_what_the_watcher_knew_where_no_other_is_named(journal, store):
    end = watched(store, (7.0, [(600.0, 100.0), (3600.0, 300.0)]))
    found = settle(journal, store, page(journal), told(ended=end), signal=None)
    # This watcher knew none: missing is missing.
    assert (found.measured, found.replayed) == (None, None)
    assert found.in_time is True


@pytest.mark.parametrize(
    ("facts", "outcome", "in_time"),
    [
        ([told("failed")], "failed", False),
        ([told("cancelled")], "cancelled", None),
        ([told(ended=START + 30 * HOUR_S)], "completed", False),
        ([told("running", ended=None)], "", None),
        # Its number is another's by now: whose comment has another token, or who is older.
        ([told(comment=encode(Tag(token="t2", deadline=9e9, arrival=0.0, run_s=1.0)))], "", None),
        ([told(started=START - 9000.0)], "", None),
    ],
)
def test_how_it_ended_is_what_slurm_says_of_this_job(journal, facts, outcome, in_time):
    found = settle(journal, None, page(journal), *facts)
    assert (found.outcome, found.in_time) == (outcome, in_time)
    assert found.measured is None


def test_what_nobody_knows_is_lost_after_two_looks_and_not_while_slurm_is_silent(journal):
    job = page(journal)
    silent = Settler(
        client=Slurm(silent=True),
        book=journal.book,
        experiences=journal.experiences,
        journal=journal,
    )
    for _ in range(5):
        assert silent.settle([job], now=START)[0] == job
    once = settle(journal, None, job, accounts=True)
    assert (once.missing, once.outcome) == (1, "")
    twice = settle(journal, None, once, accounts=True)
    assert twice.outcome == "lost"
    # Where nobody keeps accounts it may have ended long ago.
    assert settle(journal, None, once).outcome == "unknown"
    # It was not: there it is again.
    tag = Tag(token=job.token, deadline=job.deadline, arrival=job.arrival, run_s=60.0)
    back = twice.seen(Seen(id="7", state=PENDING), tag, START)
    assert (back.missing, back.outcome) == (0, "")


def test_without_accounts_it_ended_as_it_was_watched(journal, store):
    end = watched(store, (7.0, [(600.0, 100.0), (3600.0, 300.0)]))
    found = settle(journal, store, page(journal))
    assert (found.outcome, found.in_time) == ("completed", True)
    assert found.ended == pytest.approx(end, abs=1.0)
    assert found.measured == pytest.approx(found.replayed, rel=0.01)


def run_of(energy, duration=1.0, gap=None, token="x"):
    return RunOutcome(
        token=token, gap=energy - 1.0 if gap is None else gap, energy=energy, duration=duration
    )


def test_a_profile_is_mended_by_its_runs_and_dropped_after_two_misses(journal, store):
    drawn = [(600.0, 130.0), (3600.0, 390.0)]
    end = watched(store, (7.0, drawn))
    settle(journal, store, page(journal), told(ended=end))
    known = journal.experiences.of("p")
    assert known.is_trusted
    mended = known.adjusted(PROFILE)
    assert mended.energy_j == pytest.approx(1.3 * PROFILE.energy_j, rel=0.02)
    assert mended.run_s == pytest.approx(PROFILE.run_s, rel=0.01)
    # Planned by the mended one, the same run is none of its misses.
    energy, duration = known.scales
    again = page(journal, mended, token="t2", energy_scale=energy, duration_scale=duration)
    settle(journal, store, again, told(ended=end))
    known = journal.experiences.of("p")
    assert (len(known.runs), known.misses) == (2, 0)
    assert known.scales[0] == pytest.approx(1.3, abs=0.03)
    # Taken in once, however often it is settled.
    settle(journal, store, again, told(ended=end))
    assert len(journal.experiences.of("p").runs) == 2


@pytest.mark.parametrize(
    ("gaps", "trusted"),
    [
        ([], True),
        ([0.2], True),
        ([0.2, -0.2], False),
        ([0.2, 0.05, 0.2], True),
        ([0.3, 0.3, 0.3], False),
        ([0.3, 0.3, 0.05], True),
        ([0.1, -0.1], True),
    ],
)
def test_two_misses_in_a_row_are_too_many(gaps, trusted):
    assert Experience(runs=tuple(run_of(1.0, gap=gap) for gap in gaps)).is_trusted is trusted


def test_how_long_it_takes_at_most_is_no_less_than_it_ever_took():
    assert Experience().most_s(PROFILE) == pytest.approx(1.1 * PROFILE.run_s)
    runs = tuple(run_of(1.0, each) for each in (1.0, 1.0, 1.6))
    assert Experience(runs=runs).most_s(PROFILE) == pytest.approx(1.6 * PROFILE.run_s)
    # A run that is over early is no promise that the next is; five of them are.
    short = tuple(run_of(1.0, 0.5) for _ in range(5))
    assert Experience(runs=short[:4]).most_s(PROFILE) == pytest.approx(1.1 * PROFILE.run_s)
    assert Experience(runs=short).most_s(PROFILE) == pytest.approx(0.55 * PROFILE.run_s)


@pytest.mark.parametrize("text", ["", "[]", '{"p": 5}', '{"p": [{"token": 1}]}', "\x00"])
def test_what_was_learned_and_is_spoilt_is_forgotten(tmp_path, text):
    path = tmp_path / "programs.json"
    path.write_text(text)
    assert Experiences(path).of("p") == Experience()


def test_programs_differ_by_all_that_may_change_what_they_draw():
    keys = {
        program_key(*each)
        for each in (
            ("a", "x", None, PROFILE),
            ("b", "x", None, PROFILE),
            ("a", "y", None, PROFILE),
            ("a", "x", "gpu", PROFILE),
            ("a", "x", None, PowerProfile.constant(1, 1)),
            ("a", "x\udcff", None, PROFILE),
        )
    }
    assert len(keys) == 6


def test_a_page_survives_and_a_spoilt_one_is_left_out(journal):
    job = page(journal, begun=(Begun(task="7", start=START),), told=("deferred",))
    book = journal.book
    book.put(job)
    path = book.folder / "t1.json"
    assert read_page(path) == job
    for text in ("", "{}", "[]", '{"token": 1}', json.dumps({"token": "t1", "job_id": "7"})):
        (book.folder / "t2.json").write_text(text)
        assert Book(book.folder).pages(now=START) == [job]
    assert Book(book.folder).find("7_3", START + 60.0) == job
    assert Book(book.folder).find("7", START - 6000.0) is None
    assert Book(book.folder).pages(now=START + 500 * 86_400.0) == []
    assert not path.exists()


def test_every_start_is_taken_down_once_and_whoever_left_the_queue_is_named(journal):
    tag = Tag(token="t1", deadline=9e9, arrival=START, run_s=60.0, progress_s=0.0)
    book = journal.book

    def look(tag, **changes):
        seen = Seen(id="7", state=RUNNING, comment=encode(tag), started=START + 5.0)
        return book.see([replace(seen, **changes)], now=START)

    for _ in range(2):
        assert look(tag) == []
    look(replace(tag, progress_s=40.0), state=PENDING, started=None)
    look(replace(tag, progress_s=40.0), started=START + 500.0)
    (found,) = book.pages(now=START)
    assert [(each.start, each.progress_s) for each in found.begun] == [
        (START + 5.0, 0.0),
        (START + 500.0, 40.0),
    ]
    assert [[each.work_s for each in task] for task in found.stretches] == [[40.0, 0.0]]
    assert [each.token for each in book.see([], now=START)] == ["t1"]


def test_starts_that_took_longer_than_the_profile_has_still_add_up():
    starts = [Stretch(start=START + k * HOUR_S, work_s=3000.0) for k in range(3)]
    found = replay(PROFILE, starts, GRID)
    assert found.starts == 3
    startups = 3 * 600 * 100 + 2 * 60 * 50
    assert found.energy_j == pytest.approx(3600 * 300 + startups)


def test_a_saving_is_told_only_of_what_was_measured():
    assert Reckoning(planned=1.0, replayed=1.0, at_once=2.0).saving is None
    assert Reckoning(measured=1.0, replayed=1.0).saving is None
    assert Reckoning(measured=1.0, replayed=2.0, at_once=4.0).saving == 0.5
    assert Reckoning(measured=1.0, replayed=2.0, at_once=4.0).saved == 1.0


def test_two_drivers_are_told_of_each_other(journal):
    with journal.claim() as first, journal.claim() as second:
        assert (first, second) == (True, False)
    with journal.claim() as again:
        assert again
    # Where nothing can be written there is nothing to tell.
    blocked = Journal(folder=journal.folder / "driver" / "below")
    with blocked.claim() as alone:
        assert alone


SAVES = Tag(token="t1", deadline=9e9, arrival=START, run_s=9e3, interruptible=True)


@pytest.mark.parametrize(
    ("tag", "said", "is_back"),
    [
        # It had saved and left, and the controller had forgotten its requeue.
        (SAVES, {"exit_code": 75}, True),
        (replace(SAVES, asked=1), {"exit_code": 75, "ended": START + 20.0}, True),
        # It waited for the controller until it was killed for that.
        (replace(SAVES, asked=1), {"exit_code": 137}, True),
        # These have ended by themselves, or by their user's hand.
        (SAVES, {"exit_code": 75, "ended": START + 20.0}, False),
        (SAVES, {"exit_code": 137}, False),
        (replace(SAVES, asked=1), {"exit_code": 1}, False),
        (replace(SAVES, asked=1), {"exit_code": 75, "state": "cancelled"}, False),
        (replace(SAVES, interruptible=False), {"exit_code": 75}, False),
    ],
)
def test_who_has_saved_and_was_taken_for_failed_is_brought_back(journal, store, tag, said, is_back):
    facts = replace(told(state="failed", comment=encode(tag)), **said)
    asked = []
    found = settle(journal, store, page(journal), facts, rescue=asked.append)
    assert (asked, found.is_over) == (["7"] if is_back else [], not is_back)
    # Who only looks brings nobody back.
    assert settle(journal, store, page(journal), facts).is_over

    def forgotten(_):
        raise Refused("Invalid job id specified")

    assert settle(journal, store, page(journal), facts, rescue=forgotten).is_over
