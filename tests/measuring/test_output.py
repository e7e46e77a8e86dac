"""Listening never stops, whatever the program prints and whoever reads it."""

from __future__ import annotations

import io
import os
import re
import threading
import time

from lowtide.errors import FileProblem
from lowtide.measuring.output import Listener


def heard(pieces: list[bytes], pattern: str, label: str, sink: io.TextIOBase | None = None):
    """Return labels in order, each with how many pieces had been written by then."""
    found: list[tuple[str, int]] = []
    written = 0
    threads = threading.active_count()
    listener = Listener(
        patterns=[(re.compile(pattern), label)],
        heard=lambda text: found.append((text, written)),
    )
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source:
        listener.follow(source, sink or io.StringIO())
        for piece in pieces:
            written += 1
            os.write(write_end, piece)
            time.sleep(0.05)
        os.close(write_end)
        listener.join(5)
        assert threading.active_count() == threads
    return found


def test_a_group_that_matched_nothing_is_empty() -> None:
    found = heard([b"epoch 1\n", b"epoch done\n", b"epoch 2\n"], r"epoch (\d)?", "ep_{}")
    assert [label for label, _ in found] == ["ep_1", "ep_", "ep_2"]


def test_progress_that_goes_back_is_heard_at_once() -> None:
    bars = [f"\rstep {n}".encode() for n in range(4)]
    assert heard(bars, r"step (\d)", "step_{}") == [(f"step_{n}", n + 1) for n in range(4)]
    after = [f"step {n}\r".encode() for n in range(4)]
    assert heard(after, r"step (\d)", "step_{}") == [(f"step_{n}", n + 1) for n in range(4)]


def test_a_line_in_pieces_is_one_line() -> None:
    pieces = [b"epo", b"ch 1", b"2\nnothing\n", b"epoch 3"]
    assert [label for label, _ in heard(pieces, r"epoch (\d+)", "e{}")] == ["e12", "e3"]


class Shut(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_who_reads_no_more_does_not_stop_the_program() -> None:
    # More than a pipe holds: a listener that had stopped would leave this hanging.
    pieces = [b"x" * 60000 + b"\n", b"y" * 60000 + b"\n", b"epoch 1\n"]
    assert [label for label, _ in heard(pieces, r"epoch (\d)", "e{}", sink=Shut())] == ["e1"]


def test_events_that_cannot_be_kept_are_told_once() -> None:
    def refuse(_: str) -> None:
        raise FileProblem("disk full", path="events.csv")

    listener = Listener(patterns=[(re.compile("a"), "a")], heard=refuse)
    listener.follow(io.BytesIO(b"a\na\n"), io.StringIO())
    listener.join(5)
    assert listener.troubles == ["an event 'a' could not be kept: disk full"]


def test_endless_lines_are_searched() -> None:
    pieces = [b"z" * 50000 + b"epoch 7", b"z" * 50000]
    assert [label for label, _ in heard(pieces, r"epoch (\d)", "e{}")] == ["e7"]
