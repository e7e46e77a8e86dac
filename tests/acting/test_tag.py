"""Tags: what is written can be read, whatever stands around it; nothing else is taken for one."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.acting.tag import MOST_BYTES, MOST_TEXT_BYTES, Tag, decode, encode, new_token
from lowtide.errors import InvalidInput

instants = st.integers(0, 10**11).map(float)
durations = st.integers(0, 10**9).map(float)
words = st.text("0123456789abcdefXYZ_-", min_size=1, max_size=32)
texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=120)


@st.composite
def tags(draw, instants=instants, durations=durations):
    return Tag(
        token=draw(words),
        deadline=draw(instants),
        arrival=draw(instants),
        run_s=draw(durations),
        startup_s=draw(durations),
        stop_s=draw(durations),
        progress_s=draw(durations),
        begin=draw(st.none() | instants),
        before=draw(st.none() | instants),
        restarts=draw(st.integers(0, 999_999)),
        wait_s=draw(st.none() | durations),
        profile=draw(st.just("") | words),
        interruptible=draw(st.booleans()),
        max_starts=draw(st.integers(1, 999_999)),
        asked=draw(st.integers(0, 9)),
        asked_at=draw(st.none() | instants),
        deaf=draw(st.booleans()),
        users_own=draw(st.booleans()),
    )


@given(tags(), texts, texts)
def test_what_is_written_is_read_whatever_users_write_around_it(tag, before, behind):
    comment = encode(tag, before)
    assert decode(comment) == (tag, decode(before)[1])
    found, rest = decode(f"{comment} {behind}")
    assert found == tag
    assert rest.split() == f"{before} {behind}".split()
    # Written anew, nothing of the user's is lost and nothing is there twice.
    assert decode(encode(tag, rest)) == (tag, rest)


@given(tags(), st.text(max_size=MOST_TEXT_BYTES))
def test_there_is_always_room_for_a_tag_behind_the_text_that_is_allowed(tag, text):
    text = text.encode(errors="replace")[:MOST_TEXT_BYTES].decode(errors="ignore")
    assert len(encode(tag, text).encode(errors="replace")) <= MOST_BYTES


def test_a_text_without_room_is_refused_and_not_cut():
    tag = Tag(token="a", deadline=1e9, arrival=0.0, run_s=1.0)
    with pytest.raises(InvalidInput, match="1024 bytes at most"):
        encode(tag, "ä" * 500)


@given(tags(st.floats(0, 1e10), st.floats(0, 1e8)))
def test_rounding_never_stretches_the_promise(tag):
    read, _ = decode(encode(tag))
    assert read.deadline <= tag.deadline
    assert read.progress_s <= tag.progress_s
    assert read.run_s >= tag.run_s
    assert read.startup_s >= tag.startup_s
    assert (read.wait_s or 0) >= (tag.wait_s or 0)
    assert read.begin is None or read.begin <= tag.begin


GOOD = {"id": "a", "dl": 9, "a": 0, "r": 1, "p": 0}


@pytest.mark.parametrize(
    "said",
    [
        *({**GOOD, key: value} for key in GOOD for value in (None, True, [], {}, math.nan, 1e300)),
        *({**GOOD, key: "1"} for key in ("dl", "a", "r", "p", "b", "n", "ms", "ck")),
        *({**GOOD, key: -1} for key in ("r", "p", "su", "so", "w", "n", "as")),
        {**GOOD, "id": ""},
        {**GOOD, "id": "a b"},
        {**GOOD, "id": "x" * 33},
        {**GOOD, "ms": 0},
        {**GOOD, "ck": 2},
        {**GOOD, "dl": 10**400},
        *({k: v for k, v in GOOD.items() if k != key} for key in GOOD),
        [],
        "a",
        3,
    ],
)
def test_what_only_looks_like_a_tag_is_the_users(said):
    comment = f"mine lt1:{json.dumps(said)}"
    assert decode(comment) == (None, comment)


@given(st.text('lt1:{}"id,p0 \\', max_size=60))
def test_no_text_is_too_strange_to_be_read(text):
    tag, rest = decode(text)
    assert tag is None
    assert rest == text.strip()


def test_a_tag_that_was_cut_off_is_none():
    whole = encode(Tag(token="a", deadline=9.0, arrival=0.0, run_s=1.0))
    assert all(decode(whole[:end])[0] is None for end in range(len(whole)))
    assert decode(None) == (None, "")


def test_keys_that_are_not_known_do_not_hide_a_tag():
    assert decode("lt1:" + json.dumps({**GOOD, "zz": [1]}))[0] is not None


def test_tokens_differ():
    assert len({new_token() for _ in range(1000)}) == 1000
