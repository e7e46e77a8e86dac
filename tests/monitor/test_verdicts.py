"""What is said of jobs: the numbers of the people who asked these questions first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.monitor.verdicts import (
    CANNOT_TELL,
    NO,
    PARTLY,
    YES,
    Behaviour,
    Use,
    appropriate,
    is_bad_gpu_job,
    is_held_back,
    is_hogging,
    judge,
    misuses_gpu_node,
    whole_percent,
    will_scale,
)
from support.nightly import drawn

DAY = 86400.0
JUDGED = (appropriate, will_scale, misuses_gpu_node, is_bad_gpu_job)
BIG = Behaviour(
    length_s=DAY,
    cpus=Use(node=64, mean=11.99, peak=15.72),
    memory=Use(node=256, mean=97, peak=99),
    gpus=Use(node=8, mean=0.71, peak=0.90),
)


def test_shares_of_a_node() -> None:
    shares = [
        [whole_percent(use.share(what, "node")) for what in ("mean", "peak")]
        for use in (BIG.cpus, BIG.memory, BIG.gpus)
    ]
    assert shares == [["19 %", "25 %"], ["38 %", "39 %"], ["9 %", "12 %"]]


def test_a_job_that_never_fills_its_node_will_not_scale() -> None:
    job = Behaviour(
        length_s=DAY, cpus=Use(node=64, mean=6, peak=8), gpus=Use(node=8, peak=1), load=0.2
    )
    verdict = will_scale(job)
    assert verdict.answer == NO
    assert "unlikely to gain from a larger node" in verdict.evidence
    assert "8 of 64 cores and 1 of 8 GPUs" in verdict.evidence
    # The same use of a small reservation fills it.
    small = replace(job, cpus=Use(asked=8, node=64, mean=7.6, peak=8), gpus=Use(node=0, peak=0))
    assert will_scale(small).answer == YES
    middling = replace(job, cpus=Use(asked=8, mean=4, peak=6), gpus=Use(node=0))
    assert will_scale(middling).answer == CANNOT_TELL


def test_what_is_not_known_is_not_judged() -> None:
    assert will_scale(replace(BIG, length_s=math.nan)).answer == CANNOT_TELL
    assert {verdict.answer for verdict in judge(Behaviour(length_s=math.nan))} == {CANNOT_TELL}
    assert will_scale(Behaviour(length_s=5, cpus=Use(node=64))).evidence == (
        "how many cores it had or used is not known"
    )


def test_asking_for_much_and_using_little() -> None:
    job = Behaviour(
        length_s=DAY,
        cpus=Use(asked=16, mean=1, peak=1),
        memory=Use(asked=128, mean=4, peak=4),
        load=0.3,
    )
    verdict = appropriate(job)
    assert verdict.answer == NO
    assert "6 % of the cores and 3 % of the memory" in verdict.evidence
    assert appropriate(replace(job, memory=Use(asked=6, peak=4))).answer == PARTLY
    assert appropriate(replace(job, cpus=Use(asked=1, peak=1), memory=Use())).answer == YES


@pytest.mark.parametrize(
    ("gpus", "answer"),
    [
        (Use(node=4, peak=0, asked=0), YES),
        (Use(node=4, peak=0, asked=2), YES),
        (Use(node=4, peak=0.2), NO),
        (Use(node=0, peak=0), NO),
        (Use(node=4), CANNOT_TELL),
        (Use(), CANNOT_TELL),
    ],
)
def test_a_gpu_node_without_gpu_use(gpus: Use, answer: str) -> None:
    assert misuses_gpu_node(Behaviour(length_s=DAY, gpus=gpus)).answer == answer


@pytest.mark.parametrize(
    ("hours", "busy", "full", "answer"),
    [
        (2.0, 0.24, 0.24, YES),
        (2.0, 0.25, 0.24, NO),
        (2.0, 0.24, 0.25, NO),
        (1.9, 0.24, 0.24, CANNOT_TELL),
        (9.0, 0.24, math.nan, CANNOT_TELL),
        (9.0, 0.90, math.nan, NO),
        (math.nan, 0.1, 0.1, CANNOT_TELL),
    ],
)
def test_bad_gpu_jobs(hours: float, busy: float, full: float, answer: str) -> None:
    job = Behaviour(
        length_s=3600 * hours,
        gpus=Use(asked=2, peak=2 * busy),
        gpu_memory=Use(asked=80e9, peak=80e9 * full),
    )
    assert is_bad_gpu_job(job).answer == answer


def test_no_gpu_no_bad_gpu_job() -> None:
    assert is_bad_gpu_job(Behaviour(length_s=DAY, gpus=Use(asked=0, peak=0))).answer == NO


def hog(cores: float, seconds: float, load: float = math.nan, **more: Use) -> str:
    used = {"cpus": Use(node=64, mean=cores, peak=cores), "gpus": Use(node=0)}
    return is_hogging(Behaviour(length_s=seconds, load=load, **used | more)).answer


def test_hogging_depends_on_who_waits() -> None:
    # One core for three days: on an idle node in nobody's way, on a full one it is.
    assert hog(1, 3 * DAY, load=0.1) == NO
    assert hog(1, 3 * DAY, load=1.0) == YES
    assert hog(1, 3 * DAY) == CANNOT_TELL
    # A tenth of the cores for ten minutes is a candidate.
    assert hog(6.4, 600) == CANNOT_TELL
    assert hog(6.4, 600, load=0.95) == YES
    assert hog(6.4, 600, load=0.5) == NO
    assert hog(6.3, 600) == NO
    assert hog(6.4, 599) == NO
    assert hog(6.4, math.nan) == CANNOT_TELL


def test_who_uses_gpus_or_what_was_kept_for_it_is_no_hog() -> None:
    assert hog(32, DAY, load=1.0, gpus=Use(node=8, peak=0.5)) == NO
    kept = Use(asked=32, node=64, mean=31, peak=32)
    assert hog(32, DAY, load=1.0, cpus=kept) == NO
    assert hog(32, DAY, load=1.0, cpus=replace(kept, asked=16)) == YES


def test_nothing_is_concluded_from_gpus_whose_use_is_not_known() -> None:
    job = Behaviour(
        length_s=DAY,
        cpus=Use(asked=16, node=64, mean=1, peak=1),
        gpus=Use(asked=0.5, node=4.5),
        load=0.99,
    )
    assert misuses_gpu_node(job).answer == CANNOT_TELL
    assert will_scale(job).answer == CANNOT_TELL
    verdict = appropriate(job)
    assert verdict.answer == CANNOT_TELL
    assert "what it used of the GPUs is not known" in verdict.evidence
    # Half of its memory is used and its cores are not, whatever its GPUs do.
    told = replace(job, memory=Use(asked=64, node=256, mean=40, peak=60), load=0.3)
    assert appropriate(told).answer == PARTLY
    hog = replace(job, cpus=Use(asked=1, node=64, mean=30, peak=32))
    assert is_hogging(hog).answer == CANNOT_TELL
    assert is_hogging(replace(hog, gpus=Use(asked=0, node=4, peak=0))).answer == YES


STARVED = Behaviour(
    length_s=DAY,
    cpus=Use(asked=2, node=2, mean=0.2, peak=0.242),
    memory=Use(asked=100, node=256, mean=10, peak=20),
    gpus=Use(asked=0, node=0, peak=0),
    load=1.0,
)


def test_a_job_that_others_starve_is_not_blamed() -> None:
    waits = replace(STARVED, load=0.2, cpu_wait=0.9)
    for job in (STARVED, waits, replace(STARVED, load=math.nan)):
        assert will_scale(job).answer == CANNOT_TELL
        assert appropriate(job).answer == CANNOT_TELL
    assert "its node was 100 % busy" in will_scale(STARVED).evidence
    assert "its node was 100 % busy" in appropriate(STARVED).evidence
    assert "waited for CPUs for 90 %" in will_scale(waits).evidence
    left_alone = replace(STARVED, load=0.2)
    assert (will_scale(left_alone).answer, appropriate(left_alone).answer) == (NO, NO)


@pytest.mark.parametrize("wait", [math.nan, 0.0])
def test_a_job_that_sleeps_on_a_full_node_is_not_said_to_be_held_back(wait: float) -> None:
    sleeps = replace(STARVED, cpus=Use(asked=1, node=2, mean=4e-5, peak=5e-4), cpu_wait=wait)
    found = is_held_back(sleeps)
    assert (found.answer, "hardly used a CPU" in found.evidence) == (CANNOT_TELL, True)
    assert is_held_back(STARVED).answer == YES
    waits = is_held_back(replace(sleeps, cpu_wait=0.9))
    assert (waits.answer, "100 % busy" in waits.evidence) == (YES, True)
    full = is_held_back(replace(sleeps, memory=Use(asked=100, peak=97)))
    assert (full.answer, "busy" in full.evidence) == (YES, False)


def test_a_job_that_ran_out_of_memory_is_not_told_that_it_used_little_of_it() -> None:
    """Its memory grew faster than anybody looked."""
    calm = replace(STARVED, load=0.2, io_wait=0.0, memory_wait=0.0)
    assert appropriate(calm).answer == NO
    ended = replace(calm, out_of_memory=True)
    assert (appropriate(ended).answer, "100 % of the memory" in appropriate(ended).evidence) == (
        PARTLY,
        True,
    )
    assert is_held_back(ended).evidence == "it ran out of memory"
    assert "ran out of memory" in will_scale(ended).evidence
    assert will_scale(ended).answer == CANNOT_TELL
    unread = replace(ended, memory=Use())
    assert is_held_back(unread).answer == YES


def test_memory_and_storage_are_told_as_limits() -> None:
    calm = replace(STARVED, load=0.2, io_wait=0.0, memory_wait=0.0)
    assert is_held_back(calm).answer == NO
    for job, words in (
        (replace(calm, memory=Use(asked=100, peak=97)), "97 % of the memory that it asked for"),
        (replace(calm, io_wait=0.4), "waited for storage for 40 % of its time"),
        (replace(calm, memory_wait=0.4), "waited for memory for 40 % of its time"),
    ):
        assert (is_held_back(job).answer, will_scale(job).answer) == (YES, CANNOT_TELL)
        assert words in is_held_back(job).evidence
        assert words in will_scale(job).evidence
    assert is_held_back(replace(calm, io_wait=math.nan)).answer == CANNOT_TELL


def test_what_was_hardly_watched_is_not_judged_by_what_was_not_seen() -> None:
    idle = replace(
        STARVED, load=0.2, gpus=Use(asked=2, node=4, peak=0), gpu_memory=Use(asked=80, peak=0)
    )
    assert [verdict(idle).answer for verdict in JUDGED] == [NO, NO, YES, YES]
    for watched in (0.5, math.nan):
        job = replace(idle, watched=watched)
        assert [verdict(job).answer for verdict in JUDGED] == [CANNOT_TELL] * 4


NUMBERS = st.sampled_from([math.nan, 0.0, 0.1, 1.0, 4.0, 64.0])
USES = st.builds(Use, asked=NUMBERS, node=NUMBERS, mean=NUMBERS, peak=NUMBERS)
SHARES = st.sampled_from([math.nan, 0.0, 0.05, 0.2, 0.95, 1.0])
ACCUSES = {
    appropriate: (NO, PARTLY),
    will_scale: (NO,),
    misuses_gpu_node: (YES,),
    is_bad_gpu_job: (YES,),
    is_hogging: (YES,),
}


@given(
    whole=st.builds(
        Behaviour,
        length_s=st.just(DAY),
        cpus=USES,
        memory=USES,
        # Who was given none uses none.
        gpus=USES.filter(lambda use: not (use.had == 0 and use.peak > 0)),
        gpu_memory=USES,
        load=SHARES,
        cpu_wait=SHARES,
        watched=SHARES,
    ),
    lost=st.sets(st.sampled_from(["gpus", "gpu_memory", "cpus", "load", "watched"]), min_size=1),
)
@settings(max_examples=drawn(250, 5000), deadline=None)
def test_knowing_less_accuses_nobody(whole: Behaviour, lost: set[str]) -> None:
    """Take any source away: whoever is blamed then was blamed before."""
    unread = {"mean": math.nan, "peak": math.nan, "node": math.nan}
    less = replace(
        whole,
        **{
            name: replace(held, **unread) if isinstance(held, Use) else math.nan
            for name in lost
            for held in [getattr(whole, name)]
        },
    )
    for verdict, blame in ACCUSES.items():
        if verdict(less).answer in blame:
            assert verdict(whole).answer in blame, (verdict(whole), verdict(less))
