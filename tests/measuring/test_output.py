"""Listening never stops, whatever the program prints and whoever reads it."""

from __future__ import annotations

import io
import os
import random
import re
import threading
import time
from pathlib import Path

import pytest

from lowtide.errors import FileProblem
from lowtide.measuring.output import Listener
from lowtide.measuring.relay import write_all


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


def by_line(text: bytes, patterns: list[tuple[re.Pattern[str], str]]) -> list[str]:
    """What a plain loop over the lines finds."""
    found = []
    for line in re.split(r"\r\n|\r|\n", text.decode(errors="replace")):
        for pattern, label in patterns:
            if match := pattern.search(f"{line}\n" if line else "\n"):
                group = (match.group(1) or "") if pattern.groups else ""
                found.append(label.replace("{}", group))
    return found


PATTERNS = (
    *(r"Epoch (\d+)", r"^\d+0$", r"(\d+)7$", r"[a-z]+ (\d)", r"\Aloss=(\S+)", r"x\Z", r"(?i)EPOCH"),
    *(r"(?<!\n)9", r"(?<!.)4", r"\bend\b", r"a|b", r"(?:ab)?c+d", r"\w++:", r"1(?!\n)", r"é+"),
    *(r"\d{3}$", r"o{2}", r"[]x]", r"\(\d\)", r"^$", r"p.*q", r"(?s)p.*q", r"\s\d", r"=\d*\.5"),
    *(
        r"(loss=)(0\.5)",
        r"(?:Epoch ){1,2}\d",
        r"(?P<w>ke)y",
        r"(?i:KEY): (\d)",
        r"(a|ab)ccd",
        r"((o))+",
    ),
    *(
        r"(?x) lo ss",
        r"(?:foo){0,1}9",
        r"(?=end)e",
        r"(b(e)n)d",
        r"ab(?#c)c",
        r"(?i)KEY: (\d)",
        r"(?i)É",
    ),
)


def test_what_is_found_is_what_a_loop_over_lines_finds() -> None:
    rng = random.Random(5)
    words = ["Epoch 1", "epoch", "loss=0.5", "x", "end", "abccd", "key: 1", "é", "\xff", "p", "q"]
    words += ["10", "17", "999", "foo", "(3)", "bend", "", " 4", "4", "9", "]", "a"]
    for turn in range(60):
        chosen = [(re.compile(each), f"{n}_{{}}") for n, each in enumerate(PATTERNS)]
        chosen = rng.sample(chosen, 4)
        ends = rng.choice([["\n"], ["\n", "\r\n"]])
        lines = [
            " ".join(rng.choices(words, k=rng.randrange(3))) + rng.choice(ends)
            for _ in range(rng.randrange(1, 60))
        ]
        text = "".join(lines).encode("latin-1" if turn % 2 else "utf-8") + rng.choice([b"", b"10"])
        found: list[str] = []
        listener = Listener(patterns=chosen, heard=found.append)
        stream, at = listener._stream(), 0
        while at < len(text):
            step = rng.choice([1, 3, 40, 10_000])
            stream.feed(text[at : at + step])
            at += step
        stream.finish()
        lines_of, _, last = text.rpartition(b"\n")
        expected = by_line(lines_of.removesuffix(b"\r"), chosen)
        # What came without an end of line is searched as it is.
        expected += [
            label.replace("{}", (match.group(1) or "") if pattern.groups else "")
            for pattern, label in chosen
            if last and (match := pattern.search(last.decode(errors="replace")))
        ]
        assert found == expected, [each.pattern for each, _ in chosen]


def test_five_million_lines_are_searched_in_no_time() -> None:
    text = b"".join(b"%d\n" % n for n in range(1, 500_001))

    def spent_s(pattern: str) -> float:
        found: list[str] = []
        stream = Listener(patterns=[(re.compile(pattern), "{}")], heard=found.append)._stream()
        clock = time.thread_time()
        for at in range(0, len(text), 1 << 16):
            stream.feed(text[at : at + (1 << 16)])
        stream.finish()
        assert len(found) in (0, 1)
        return time.thread_time() - clock

    clock = time.thread_time()
    for line in text.decode().splitlines():
        re.search("Epoch", line)
    plain_s = time.thread_time() - clock
    # A loop over the lines is the baseline.
    assert spent_s(r"Epoch (\d+)") < plain_s / 5
    assert spent_s(r"^(\d*499999)$") < plain_s / 5
    assert spent_s(r"(?i)EPOCH (\d+)") < plain_s / 5
    assert spent_s(r"[a-z]+ (\d+)") < plain_s / 2


def test_more_events_than_anybody_marks_are_not_kept() -> None:
    found: list[str] = []
    listener = Listener(patterns=[(re.compile(r"(\d+)"), "{}")], heard=found.append)
    listener.follow(io.BytesIO(b"1\n" * 150_000), io.StringIO())
    listener.join(30)
    assert len(found) == 100_000
    assert "more than 100000 events" in listener.troubles[0]


def test_a_slow_program_is_heard_when_it_speaks(tmp_path: Path) -> None:
    stamps: list[float] = []
    reading, writing = os.pipe()
    listener = Listener(
        patterns=[(re.compile("tick"), "tick")], heard=lambda _: stamps.append(listener.at_s)
    )
    with (tmp_path / "out").open("wb") as sink:
        listener.relay([reading], [sink.fileno()])
        said: list[float] = []
        deadline = time.monotonic() + 20
        for _ in range(4):
            said.append(time.monotonic())
            os.write(writing, b"tick\n")
            # Each is heard before the next is said.
            while len(stamps) < len(said) and time.monotonic() < deadline:
                time.sleep(0.01)
        os.close(writing)
        listener.join(10)
    assert (tmp_path / "out").read_bytes() == b"tick\n" * 4
    late = [stamp - when for stamp, when in zip(stamps[1:], said[1:], strict=True)]
    assert all(0 <= each < 1 for each in late)


def test_who_does_not_wait_to_write_loses_nothing() -> None:
    data = b"".join(b"line %d\n" % number for number in range(50_000))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0):
            write_all(writing, data)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    # By now the pipe is full, and nobody has read of it.
    thread.join(0.1)
    with os.fdopen(reading, "rb") as source:
        assert source.read() == data
    thread.join()


def test_whose_reader_has_gone_does_not_wait_for_room() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    closing = threading.Timer(0.1, os.close, [reading])
    closing.start()
    with pytest.raises(BrokenPipeError):
        write_all(writing, b"x" * 1_000_000)
    os.close(writing)
