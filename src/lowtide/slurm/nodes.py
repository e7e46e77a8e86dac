"""Slurm's short form for many nodes: `node[01-03,7]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from lowtide.errors import InvalidInput

_NONE = frozenset(("", "(null)", "none assigned", "n/a", "unknown"))
# A list longer than the largest machines is a slip, or meant to fill the memory.
_MOST = 100_000


def expand_nodes(text: str | None) -> tuple[str, ...]:
    """Return the nodes of a list, in its order.

    Args:
        text: As Slurm prints it; nothing for no nodes.

    >>> expand_nodes("login,node[01-03,7]")
    ('login', 'node01', 'node02', 'node03', 'node7')
    """
    if text is None or text.strip().lower() in _NONE:
        return ()
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text.strip()):
        found.extend(_names(part, text))
        if len(found) > _MOST:
            raise InvalidInput(f"a list of more than {_MOST:,} nodes: {text[:60]!r}")
    return tuple(found)


def _names(part: str, whole: str) -> Iterator[str]:
    """Yield the names of one entry, which may have several brackets: `rack[1-2]node[1-4]`."""
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    choices = [
        list(_numbers(piece, whole)) if place % 2 else [piece] for place, piece in enumerate(pieces)
    ]
    if not part or any("[" in each or "]" in each for each in pieces[::2]):
        raise _unreadable(whole)
    return ("".join(each) for each in product(*choices))


def _numbers(text: str, whole: str) -> Iterator[str]:
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise _unreadable(whole)
        first, last = match[1], match[2] or match[1]
        if not int(first) <= int(last) < int(first) + _MOST:
            raise _unreadable(whole)
        # Leading zeros say how wide the numbers are.
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))


def _unreadable(whole: str) -> InvalidInput:
    return InvalidInput(f"cannot read the list of nodes {whole!r}: write e.g. node[01-03,7]")
