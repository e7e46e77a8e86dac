"""Older spellings: what was an option of a verb, and has become a verb with a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Older:
    """An option by which another verb was meant.

    Attributes:
        said: The verb that it was an option of, and the option; with `=` where a value follows it,
            which is the first argument now.
        now: What that is called now.
        stays: Whether it is an option of the new verb, too.
        moot: Options that meant nothing with it, likewise.
    """

    said: str
    now: str
    stays: bool = False
    moot: str = ""


# Where a line has several, the first of these is what was meant.
OLDER = (
    Older("learn --from-store", "profiles learn", stays=True),
    Older("learn --from-recordings", "profiles learn", stays=True),
    Older("learn --from-prometheus", "profiles learn", stays=True),
    Older("learn --by", "learn sizes", stays=True),
    Older("learn --at", "learn sizes", stays=True),
    Older("learn --utilisation", "model"),
    Older("learn --check=", "learn check"),
    Older("watch --fast=", "watch follow", moot="--no-store --facts-from="),
    Older(
        "watch --once", "node", moot="--no-store --interval= --facts-from= --embodied= --lifetime="
    ),
    Older("queue --calibration", "queue waits", moot="--store= --days="),
    Older("queue --report", "queue report"),
    Older("report --mail", "serve mail"),
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
        if names[:1] == [verb] and option.rstrip("=") in names[1:]:
            rest = list(words[1:])
            first = [] if each.stays else _take(rest, option)
            for moot in each.moot.split():
                _take(rest, moot)
            return [*each.now.split(), *first, *rest]
    return list(words)


def _take(words: list[str], option: str) -> list[str]:
    """Take an option out of a line; return the value that follows it, where one does."""
    for place, word in enumerate(words):
        name, equals, said = word.partition("=")
        if name == option.rstrip("="):
            after = words[place + 1 : place + 2] if option != name and not equals else []
            del words[place : place + 1 + len(after)]
            return [said] if equals else after
    return []
