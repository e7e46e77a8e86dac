"""Older spellings: what was an option of a verb, and has become a verb with a name of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Older:
    """An option by which another verb was meant.

    Attributes:
        said: The verb that it was an option of, and the option.
        now: What that is called now.
        value: Whether a value follows it, which is the first argument now.
        stays: Whether it is an option of the new verb, too.
        moot: Options that meant nothing with it, and whether a value follows them.
    """

    said: str
    now: str
    value: bool = False
    stays: bool = False
    moot: Mapping[str, bool] = field(default_factory=dict)


# Where a line has several, the first of these is what was meant.
OLDER = (
    Older("learn --from-store", "profiles learn", stays=True),
    Older("learn --from-recordings", "profiles learn", stays=True),
    Older("learn --from-prometheus", "profiles learn", stays=True),
    Older("learn --by", "learn sizes", stays=True),
    Older("learn --at", "learn sizes", stays=True),
    Older("learn --utilisation", "model"),
    Older("learn --check", "learn check", value=True),
    Older("watch --fast", "watch follow", value=True, moot={"--no-store": False}),
    Older(
        "watch --once",
        "node",
        moot={
            "--no-store": False,
            "--interval": True,
            "--facts-from": True,
            "--embodied": True,
            "--lifetime": True,
        },
    ),
    Older("queue --calibration", "queue waits", moot={"--store": True, "--days": True}),
    Older("queue --report", "queue report"),
    Older("when --tradeoff", "tradeoff"),
)


def spelt_anew(words: Sequence[str]) -> list[str]:
    """Return what was typed with older spellings put into today's.

    >>> spelt_anew(["learn", "mine", "--check", "mine.toml", "--json"])
    ['learn', 'check', 'mine.toml', 'mine', '--json']
    >>> spelt_anew(["watch", "--once", "--no-store"]), spelt_anew(["watch", "--", "--once"])
    (['node'], ['watch', '--', '--once'])
    """
    end = words.index("--") if "--" in words else len(words)
    names = [word.partition("=")[0] for word in words[:end]]
    for each in OLDER:
        verb, option = each.said.split()
        if names[:1] == [verb] and option in names[1:]:
            rest = list(words[1:])
            first = [] if each.stays else _take(rest, option, value=each.value)
            for name, value in each.moot.items():
                _take(rest, name, value=value)
            return [*each.now.split(), *first, *rest]
    return list(words)


def _take(words: list[str], option: str, *, value: bool) -> list[str]:
    """Take an option out of a line; return the value that follows it, as far as there is one."""
    for place, word in enumerate(words):
        name, equals, said = word.partition("=")
        if name == option:
            after = words[place + 1 : place + 2] if value and not equals else []
            del words[place : place + 1 + len(after)]
            return [said] if equals else after
    return []
