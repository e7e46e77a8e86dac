"""Slurm's short form for many nodes: `node[01-03,7]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from lowtide.errors import InvalidInput

_NONE = frozenset(("", "(null)", "none assigned", "n/a", "unknown"))
# A list longer than the largest machines is a slip, or meant to fill the memory.
_MOST = 100_000
# The last number of a name, and what is before and after it.
_COUNTED = re.compile(r"([^\[\],]*?)(\d{1,15})([^\[\],\d]*)")


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


def shorten_nodes(names: Iterable[str]) -> str:
    """Return many nodes as a list that Slurm reads, those that count on as one.

    Args:
        names: The nodes; a name that is there twice is there once in the list.

    >>> shorten_nodes(["node01", "node02", "node03", "node7", "login"])
    'login,node[7,01-03]'
    """
    plain: list[str] = []
    counted: dict[tuple[str, str], set[str]] = {}
    for name in dict.fromkeys(names):
        parts = _COUNTED.fullmatch(name)
        if parts is None:
            plain.append(name)
        else:
            counted.setdefault((parts[1], parts[3]), set()).add(parts[2])
    for (before, after), numbers in counted.items():
        ranges = [first if first == last else f"{first}-{last}" for first, last in _ranges(numbers)]
        alone = len(numbers) == 1
        plain.append(f"{before}{ranges[0] if alone else '[' + ','.join(ranges) + ']'}{after}")
    return ",".join(sorted(plain))


def _ranges(numbers: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the first and last of numbers that follow each other, written equally wide."""
    run: list[str] = []
    for text in sorted(numbers, key=lambda each: (len(each), each)):
        # Slurm counts on in the width of the first: 9 is followed by 10, and 09 by 10.
        if run and f"{int(run[-1]) + 1:0{len(run[0])}}" != text:
            yield run[0], run[-1]
            run = []
        run.append(text)
    yield run[0], run[-1]


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
