"""What stands in the fields of Slurm's records."""

from __future__ import annotations

import os
import subprocess

import pytest

from lowtide.slurm.fields import read_limit, read_number, read_text, status_of_wait
from lowtide.states import NOT_OVER, STATES, read_state

# The states of Slurm in which a job is over, of its manual.
ENDS = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REQUEUED", "TIMEOUT"),
)


def test_a_job_that_is_over_keeps_slurms_own_word_for_it() -> None:
    assert {read_state(word) for word in ENDS} == {word.lower() for word in ENDS}
    assert {word.lower() for word in ENDS} == set(STATES) - set(NOT_OVER)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("REVOKED", "cancelled"),
        ("LAUNCH_FAILED", "failed"),
        ("COMPLETING", "running"),
        ("STOPPED", "suspended"),
        ("SPECIAL_EXIT", "pending"),
        ("BORED", None),
        ("", None),
        (None, None),
    ],
)
def test_other_words_are_brought_to_those(word: str | None, state: str | None) -> None:
    assert read_state(word) == state


@pytest.mark.parametrize("ends", ["exit 0", "exit 3", "kill -9 $$", "kill -15 $$"])
def test_exit_statuses_are_those_of_a_shell(ends: str) -> None:
    waited = os.system(ends)
    command = ["sh", "-c", f"sh -c '{ends}'; echo $?"]
    shell = subprocess.run(command, capture_output=True, check=True)
    assert status_of_wait(waited) == int(shell.stdout)
    assert os.waitstatus_to_exitcode(waited) in (int(shell.stdout), 128 - int(shell.stdout))


def test_nothing_has_many_names() -> None:
    for text in (None, "", "(null)", "N/A", "None assigned", "Unknown"):
        assert read_text(text) is None
    assert (read_number("x"), read_number("inf"), read_number(True)) == (None, None, None)
    assert (read_limit("UNLIMITED"), read_limit("1-00:00:00"), read_limit("90")) == (
        *(None, 86400),
        5400,
    )
