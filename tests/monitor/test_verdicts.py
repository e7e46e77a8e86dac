"""What is said of jobs: the numbers of the people who asked these questions first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lowtide.monitor.verdicts import (
    CANNOT_TELL,
    NO,
    PARTLY,
    YES,
    Behaviour,
    Use,
    appropriate,
    is_bad_gpu_job,
    is_hogging,
    judge,
    misuses_gpu_node,
    whole_percent,
    will_scale,
)

DAY = 86400.0
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
    job = Behaviour(length_s=DAY, cpus=Use(node=64, mean=6, peak=8), gpus=Use(node=8, peak=1))
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
        length_s=DAY, cpus=Use(asked=16, mean=1, peak=1), memory=Use(asked=128, mean=4, peak=4)
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
    cpus = Use(node=64, mean=cores, peak=cores)
    return is_hogging(Behaviour(length_s=seconds, load=load, **{"cpus": cpus, **more})).answer


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
    told = replace(job, memory=Use(asked=64, node=256, mean=40, peak=60))
    assert appropriate(told).answer == PARTLY
    hog = replace(job, cpus=Use(asked=1, node=64, mean=30, peak=32))
    assert is_hogging(hog).answer == CANNOT_TELL
    assert is_hogging(replace(hog, gpus=Use(asked=0, node=4, peak=0))).answer == YES
