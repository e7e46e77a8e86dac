"""What stands in the fields of Slurm's records: states, numbers, resources, nodes, how jobs end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from lowtide.errors import FormatError, InvalidInput, InvalidUnit
from lowtide.formats.source import Source
from lowtide.states import STATES, read_state
from lowtide.units import parse_duration, parse_size, parse_time

_NOTHING = frozenset(
    ("", "(null)", "n/a", "none", "unknown", "none assigned", "not_set", "invalid")
)
_UNKNOWN = frozenset(("", "unknown", "none", "n/a", "unlimited", "partition_limit", "invalid"))
_ENDLESS = frozenset(("unlimited", "infinite", "partition_limit"))
Row = Mapping[str, str]
# Signals have numbers up to this; Slurm gives greater ones for reasons of its own, such as 125 for
# a job that ran out of memory.
_LAST_SIGNAL = 64
# A request for GPUs: gpu, gpu:2, gres:gpu:a100:2, gres/gpu:a100=2, with where they are behind it.
_REQUEST = re.compile(r"(?:gres[:/])?gpu(?P<rest>[:=][^(]*)?(?:\(.*\))?")
_KIND = re.compile(r"\bgpu:([A-Za-z_][\w.-]*)")
_NONE = frozenset(("", "(null)", "none assigned", "n/a", "unknown"))
# A list longer than the largest machines is a slip, or meant to fill the memory.
_MOST = 100_000
# The last number of a name, and what is before and after it.
_COUNTED = re.compile(r"([^\[\],]*?)(\d{1,15})([^\[\],\d]*)")


def choose_state(states: Iterable[Any]) -> str | None:
    """Return the state that says how the job stands; newer releases add flags around it.

    >>> choose_state(["COMPLETING", "COMPLETED"]), choose_state(["REQUEUED", "PENDING"])
    ('COMPLETED', 'PENDING')
    """
    names = [str(state) for state in states if state]
    plain = (name for name in names if name.lower() in STATES and name != "REQUEUED")
    return next(plain, next((name for name in names if read_state(name)), None))


def read_text(value: Any) -> str | None:
    """Return a text, None for all the words Slurm has for nothing."""
    text = "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)
    return None if text.strip().lower() in _NOTHING else text.strip()


def read_number(value: Any) -> float | None:
    """Return a number, None where there is none."""
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def read_instant(value: Any) -> float | None:
    """Return a time as epoch seconds, None where it has not come."""
    if isinstance(value, str) and (text := read_text(value)) and not text.isdigit():
        raise InvalidInput(
            f"{text!r} is a local time without its zone: run the command with "
            "SLURM_TIME_FORMAT=%s, which gives epoch seconds"
        )
    # Slurm writes 0 for a time that has not come.
    return read_number(value) or None


def read_limit(value: Any) -> float | None:
    """Return how long a job may run, in seconds; None where that has no limit.

    Args:
        value: Seconds, or a text such as `1-00:00:00`, in which a number alone counts minutes.
    """
    if not isinstance(value, str):
        return read_number(value)
    text = read_text(value)
    if text is None or text.lower() in _ENDLESS:
        return None
    return parse_duration(text, bare_unit_s=60.0)


def status_of_pair(text: str | None) -> int | None:
    """Return the exit status of `3:0`; of `0:9`, which a signal ended, what a shell would say.

    >>> status_of_pair("3:0"), status_of_pair("0:9"), status_of_pair("0:125")
    (3, 137, None)
    """
    match = re.fullmatch(r"(\d+):(\d+)", text or "")
    return None if match is None else exit_status(int(match[1]), int(match[2]))


def status_of_wait(status: int) -> int | None:
    """Return the exit status in what `wait` returns."""
    return exit_status(status >> 8 & 0xFF, status & 0x7F)


def exit_status(code: int | None, signal: int) -> int | None:
    """Return what a shell would say of how a program ended, None where nobody knows.

    Args:
        signal: The signal that ended it, 0 for none.
    """
    if not signal:
        return code
    return 128 + signal if signal <= _LAST_SIGNAL else None


def parse_tres(text: str | None) -> dict[str, float]:
    """Return how much of each resource there is, memory in bytes.

    Args:
        text: Slurm's list; what is not known gives no entries.

    >>> parse_tres("cpu=4,mem=8G,gres/gpu=2")
    {'cpu': 4.0, 'mem': 8589934592.0, 'gres/gpu': 2.0}
    """
    found = {}
    for part in (text or "").split(","):
        name, equals, amount = part.strip().rpartition("=")
        if not equals:
            continue
        try:
            found[name] = parse_size(amount) if name == "mem" else _count(amount)
        except (InvalidUnit, ValueError):
            continue
    return found


def count_gpus(tres: Mapping[str, float]) -> float:
    """Return how many GPUs there are; kinds of GPU repeat the total where one is given.

    Args:
        tres: As `parse_tres` returns it.

    >>> count_gpus(parse_tres("cpu=8,gres/gpu=2,gres/gpu:a100=2"))
    2.0
    """
    if "gres/gpu" in tres:
        return tres["gres/gpu"]
    return math.fsum(count for name, count in tres.items() if name.startswith("gres/gpu:"))


def requested_gpus(text: str | None) -> float:
    """Return the GPUs of a request such as `gres:gpu:a100:2`, where no kind needs a number.

    Args:
        text: What was asked for per job, node or task.

    >>> requested_gpus("gres:gpu:a100:2"), requested_gpus("gpu"), requested_gpus("gres:tmpdisk:5")
    (2.0, 1.0, 0.0)
    """
    total = 0.0
    for part in re.split(r",(?![^(]*\))", text or ""):
        match = _REQUEST.fullmatch(part.strip())
        if match is not None:
            last = re.split("[:=]", match["rest"] or "")[-1]
            total += float(last) if last.isdecimal() else 1.0
    return total


def gpu_kinds(*said: str | None) -> tuple[str, ...]:
    """Return the kinds of GPUs that requests name, in order.

    >>> gpu_kinds("gres:gpu:a100:2", None), gpu_kinds("gpu:2")
    (('a100',), ())
    """
    return tuple(sorted({kind for each in said for kind in _KIND.findall(each or "")}))


def _count(text: str) -> float:
    # Slurm shortens big counts with a K or M: energy=3K.
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * 1000.0 ** ("KMGT".find(match[2]) + 1 if match[2] else 0)


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


class Cells:
    """One line, whose cells are read as what they are or named in the error."""

    def __init__(self, row: Row, source: Source, number: int) -> None:
        self.row = row
        self._source = source
        self._number = number

    def error(self, message: str, column: str) -> FormatError:
        """Return the error that says what is wrong in a column."""
        return FormatError(message, path=self._source.path, line=self._number, column=column)

    def text(self, column: str) -> str | None:
        """Return a text, None for all the words Slurm has for nothing."""
        cell = self.row.get(column, "").strip()
        return None if cell.lower() in _UNKNOWN else cell

    def number(self, *columns: str) -> float:
        """Return a number, NaN where there is none.

        Args:
            columns: Where; the first that says something counts.
        """
        for column in columns:
            cell = self.text(column)
            if cell is None:
                continue
            try:
                value = float(cell)
            except ValueError:
                raise self.error(f"{cell!r} is not a number", column) from None
            if not 0 <= value < math.inf:
                raise self.error(f"a number of 0 or more is needed here, not {cell}", column)
            return value
        return math.nan

    def duration(self, column: str, *, bare_unit_s: float = 1.0) -> float:
        """Return seconds, NaN where there are none or no end to them."""
        cell = self.text(column)
        try:
            return math.nan if cell is None else parse_duration(cell, bare_unit_s=bare_unit_s)
        except InvalidInput as error:
            raise self.error(str(error), column) from None

    def size(self, column: str) -> float:
        """Return bytes, NaN where it is not said."""
        cell = self.text(column)
        try:
            return math.nan if cell is None else parse_size(cell)
        except InvalidInput as error:
            raise self.error(str(error), column) from None

    def instant(self, column: str) -> float:
        """Return epoch seconds, NaN where there is no such time yet."""
        cell = self.text(column)
        if cell is None:
            return math.nan
        try:
            return float(cell) if cell.isdecimal() and cell.isascii() else parse_time(cell)
        except InvalidInput:
            raise self.error(
                f"{cell!r} is a local time without its zone: run sacct with "
                "SLURM_TIME_FORMAT=%s, which gives epoch seconds",
                column,
            ) from None


def requested_memory(cells: Cells, nodes: float, cpus: float) -> float:
    """Return all the memory that was asked for, in bytes.

    Args:
        cpus: CPUs that were asked for.
    """
    size = cells.size("ReqMem")
    # Before Slurm 21.08 a suffix said whether it was meant per node or per CPU.
    per = {"n": nodes, "c": cpus}.get((cells.text("ReqMem") or " ")[-1], 1.0)
    return size * per
