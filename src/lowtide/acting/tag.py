"""What a managed job carries in its comment: enough for a driver that has forgotten everything.

The comment is the truth, and whatever is kept beside it is a cache. So it holds who the job is, by
when it must be done, how long it takes at most, and the begin that was written last. It stands
behind the user's own text and survives what users write around it:

    nightly run lt1:{"id":"k3v9x2","dl":1731751200,"a":1731700000,"r":7200,"p":0}

Numbers are whole seconds, rounded so that the promise is never stretched.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from lowtide.errors import InvalidInput

# What Slurm keeps of a comment, in bytes.
MOST_BYTES = 1024
# What is left of that to the user: the longest tag is shorter than the rest.
MOST_TEXT_BYTES = 600
_HEAD = "lt1:"
_NAME = re.compile(r"[0-9a-zA-Z_-]{1,32}")
# No instant or duration that a job has is longer than this.
_MOST_S = 10**11
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What is known of a managed job wherever its comment can be read.

    Attributes:
        token: Tells it from every other job, also where numbers are given out again.
        deadline: By when it must be done, epoch seconds.
        arrival: When it was handed in.
        run_s: How long a whole run takes at most, startup included.
        startup_s: How long a start takes before any work is done.
        stop_s: How long it takes to save and leave.
        progress_s: Work that is saved, in seconds of `run_s`.
        begin: The begin that was written last; None where none was.
        before: The one written before that, in force where a change was lost.
        restarts: How often it had been requeued when `begin` was written.
        wait_s: How long the queue was said to take, None where nobody asked.
        profile: By which name its profile is kept; empty for constant power.
        interruptible: Whether it saves when it is asked to.
        max_starts: How often it may be started.
        asked: How often it was asked to stop since it last started.
        asked_at: When it was asked last.
        deaf: Whether it was asked and went on: it is left to run.
        users_own: Whether its user has moved it by hand, and nobody else does any more.
        min_run_s: How long it works at least before it is stopped; None for what is usual.
        released: Whether it was let go once after its backend had put it on hold.
        by_limit: Whether `run_s` is its time limit, and grows with that.
        changed: Whether programs in its folder were changed since it was submitted, and it has
            begun again with them.
    """

    token: str
    deadline: float
    arrival: float
    run_s: float
    startup_s: float = 0.0
    stop_s: float = 0.0
    progress_s: float = 0.0
    begin: float | None = None
    before: float | None = None
    restarts: int = 0
    wait_s: float | None = None
    profile: str = ""
    interruptible: bool = False
    max_starts: int = 4
    asked: int = 0
    asked_at: float | None = None
    deaf: bool = False
    users_own: bool = False
    min_run_s: float | None = None
    released: bool = False
    by_limit: bool = False
    changed: bool = False

    def __post_init__(self) -> None:
        _check(self)


# How each attribute is called in the comment, and which way its seconds are rounded.
_KEYS = {
    "token": "id",
    "deadline": "dl",
    "arrival": "a",
    "run_s": "r",
    "startup_s": "su",
    "stop_s": "so",
    "progress_s": "p",
    "begin": "b",
    "before": "o",
    "restarts": "n",
    "wait_s": "w",
    "profile": "pr",
    "interruptible": "ck",
    "max_starts": "ms",
    "asked": "as",
    "asked_at": "at",
    "deaf": "df",
    "users_own": "us",
    "min_run_s": "mr",
    "released": "rl",
    "by_limit": "bl",
    "changed": "cf",
}
_UP = ("run_s", "startup_s", "stop_s", "wait_s")
_INSTANTS = ("deadline", "arrival", "begin", "before", "asked_at")
_SECONDS = (*_UP, *_INSTANTS, "progress_s", "min_run_s")
_COUNTS = {"restarts": 0, "max_starts": 1, "asked": 0}
_FLAGS = ("interruptible", "deaf", "users_own", "released", "by_limit", "changed")
# Shell wrappers rewrite these in place, so they are there even where they say nothing.
_ALWAYS = ("token", "deadline", "arrival", "run_s", "progress_s")
_DEFAULTS = {each.name: each.default for each in fields(Tag)}


def new_token() -> str:
    """Return a token that no other job has."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def encode(tag: Tag, text: str = "") -> str:
    """Return a comment: the user's own text, and the tag behind it.

    Args:
        text: What the user wrote, without any tag.

    >>> encode(Tag(token="k3v9", deadline=900.0, arrival=0.0, run_s=60.2), "nightly")
    'nightly lt1:{"id":"k3v9","dl":900,"a":0,"r":61,"p":0}'
    """
    said = {
        key: _plain(name, getattr(tag, name))
        for name, key in _KEYS.items()
        if name in _ALWAYS or getattr(tag, name) != _DEFAULTS[name]
    }
    comment = " ".join(
        filter(None, (text.strip(), _HEAD + json.dumps(said, separators=(",", ":"))))
    )
    if (size := len(comment.encode(errors="replace"))) > MOST_BYTES:
        raise InvalidInput(
            f"a job's comment has {MOST_BYTES} bytes at most, and what lowtide writes behind "
            f"yours would make it {size}: shorten it to {MOST_TEXT_BYTES} bytes"
        )
    return comment


@lru_cache(maxsize=1 << 16)
def decode(comment: str | None) -> tuple[Tag | None, str]:
    """Return the tag in a comment, None where there is none that makes sense, and the rest of it.

    Whatever users write around it is kept, and what only looks like a tag is theirs.

    >>> decode('nightly lt1:{"id":"k3v9","dl":900,"a":0,"r":61,"p":0}, ask Ada')[1]
    'nightly , ask Ada'
    """
    comment = comment or ""
    found = None
    rest, last = [], 0
    for begin, end, said in _candidates(comment):
        tag = _read(said)
        if tag is None:
            continue
        # Of several the first counts: the others are copies that somebody pasted.
        found = found or tag
        rest.append(comment[last:begin])
        last = end
    rest.append(comment[last:])
    return found, "".join(rest).strip()


def _candidates(comment: str) -> Iterator[tuple[int, int, Any]]:
    """Yield what looks like tags: where each begins and ends, and what it says."""
    decoder = json.JSONDecoder()
    place = comment.find(_HEAD)
    while place >= 0:
        end = place + len(_HEAD)
        try:
            said, end = decoder.raw_decode(comment, end)
        except (ValueError, RecursionError):
            pass
        else:
            yield place, end, said
        place = comment.find(_HEAD, end)


def _read(said: Any) -> Tag | None:
    if not isinstance(said, Mapping) or not {_KEYS[name] for name in _ALWAYS} <= said.keys():
        return None
    values: dict[str, Any] = {}
    for name, key in _KEYS.items():
        if key not in said:
            continue
        value = said[key]
        if name in _FLAGS:
            if value not in (0, 1):
                return None
            value = bool(value)
        elif isinstance(value, bool):
            return None
        elif name in _SECONDS and isinstance(value, int) and abs(value) <= _MOST_S:
            value = float(value)
        values[name] = value
    try:
        return Tag(**values)
    except InvalidInput:
        return None


def _plain(name: str, value: Any) -> Any:
    if name in _SECONDS:
        return math.ceil(value) if name in _UP else math.floor(value)
    return int(value) if name in _FLAGS else value


def _check(tag: Tag) -> None:
    for name in ("token", "profile"):
        value = getattr(tag, name)
        named = isinstance(value, str) and _NAME.fullmatch(value)
        if not named and (value or name == "token"):
            raise InvalidInput(
                f"a tag's {name} has up to 32 letters, digits, - and _, not {value!r}"
            )
    for name in _SECONDS:
        value = getattr(tag, name)
        if value is None and _DEFAULTS[name] is None:
            continue
        least = -_MOST_S if name in _INSTANTS else 0
        if not isinstance(value, int | float) or not least <= value <= _MOST_S:
            raise InvalidInput(f"a tag's {name} is a number of seconds, not {value!r}")
    for name, least in _COUNTS.items():
        value = getattr(tag, name)
        if not isinstance(value, int) or not least <= value < 10**6:
            raise InvalidInput(f"a tag's {name} is a whole number from {least} on, not {value!r}")
