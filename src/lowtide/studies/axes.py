"""What differs between the runs of a study: the parameters that figures are drawn over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from lowtide.errors import InvalidTime
from lowtide.units import MISSING, DurationLike, format_minute, parse_duration, parse_time

Level = str | float

# More policies than this cannot be told apart by colour.
MOST_POLICIES = 10

# Keys that have a better name than their last part.
_NAMES = {
    "grid.start": "start date",
    "grid.synthetic": "synthetic grid",
    "queue.name": "queue discipline",
    "run.decide": "decided by",
    "run.weights.carbon": "weight of carbon",
    "run.weights.price": "weight of price",
    "workload.wait": "allowed wait",
    "workload.lengths": "job length",
    "workload.lengths.length": "job length",
    "workload.lengths.median": "median job length",
    "workload.lengths.sigma": "spread of job lengths",
    "workload.interruptible": "interruptible",
    "workload.trace": "trace",
}
_UNITS = {"_h": "h", "_w": "W", "_j": "J", "_g": "g", "_bytes": "bytes"}
_REPEATS = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A parameter that takes several values.

    Attributes:
        key: Its dotted key.
        name: What it is called in words.
        kind: `number`, `time` (seconds since 1970) or `category`.
        unit: What numbers are in; empty if in nothing.
        values: Its value in each run, None where it is not set.
        levels: The values there are, in order.
        together: The parameters it stands for where several vary together, by key and name.
    """

    key: str
    name: str
    kind: str
    unit: str
    values: tuple[Level | None, ...]
    levels: tuple[Level, ...]
    together: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys that it stands for."""
        return tuple(key for key, _ in self.together) or (self.key,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What of a study was drawn, and what was chosen.

    Attributes:
        seeds: The seeds that vary, by key.
        cells: Which combination of all that was chosen each run is of, policy included.
        draws: Which combination of seeds each run is of.
        repeats: How many draws there are of the combination that each run is of.
    """

    seeds: tuple[str, ...]
    cells: tuple[int, ...]
    draws: tuple[int, ...]
    repeats: tuple[int, ...]


def find_axes(
    columns: Mapping[str, Sequence[Any]], cases: Mapping[str, Sequence[str]] | None = None
) -> list[Axis]:
    """Return the parameters that differ, seeds left out; those that vary together are one.

    Seeds repeat a run rather than change it, and a zone's file follows from the zone. Parameters
    that always change together cannot be told apart, so they are one axis, named after the list
    of cases that sets them or after all of them. In such a list it is enough that one follows
    from another: how often a job saves says that it is stopped at checkpoints.

    Args:
        cases: The keys that a list of cases sets, by its name.
    """
    axes = [
        axis
        for key, values in columns.items()
        if not _is_seed(key) and len({*(axis := make_axis(key, values)).values}) > 1 and axis.levels
    ]
    codes = {axis.key: _codes(axis.values) for axis in axes}
    list_of = {key: name for name, keys in (cases or {}).items() for key in keys}
    found: list[Axis] = []
    while axes:
        one, *axes = axes
        joined = [one]
        for other in axes:
            listed = list_of.get(one.key)
            alike = any(codes[each.key] == codes[other.key] for each in joined)
            follows = (
                listed is not None
                and list_of.get(other.key) == listed
                and any(_follows(codes[each.key], codes[other.key]) for each in joined)
            )
            if alike or follows:
                joined.append(other)
        axes = [axis for axis in axes if axis not in joined]
        named = [axis for axis in joined if not axis.key.endswith(".file")] or joined[:1]
        found.append(_joined(named, list_of))
    return _named_apart(found)


def find_design(columns: Mapping[str, Sequence[Any]], count: int) -> Design:
    """Return which runs differ by what was drawn alone, and which by what somebody chose.

    Seeds draw: of jobs, of a grid's weather, of forecasts. Everything else was chosen, the policy
    included. A seed that changes only where something else does repeats nothing.
    """
    varied = {key: _texts(values) for key, values in columns.items() if len({*_texts(values)}) > 1}
    seeds = tuple(key for key in varied if _is_seed(key))
    chosen = [varied[key] for key in varied if key not in seeds]
    cells = _codes(list(zip(*chosen, strict=True)) or [()] * count)
    draws = _codes(list(zip(*(varied[key] for key in seeds), strict=True)) or [()] * count)
    of_cell: dict[int, set[int]] = {}
    for cell, draw in zip(cells, draws, strict=True):
        of_cell.setdefault(cell, set()).add(draw)
    repeats = tuple(len(of_cell[cell]) for cell in cells)
    return Design(seeds=seeds, cells=cells, draws=draws, repeats=repeats)


def uncrossed(axes: Sequence[Axis]) -> list[tuple[Axis, Axis, int]]:
    """Return the pairs of parameters of which not every combination ran, and how many did."""
    pairs = []
    for one, two in combinations(axes, 2):
        ran = len({*zip(one.values, two.values, strict=True)})
        if ran < len({*one.values}) * len({*two.values}):
            pairs.append((one, two, ran))
    return pairs


def format_level(axis: Axis, level: Level | None) -> str:
    """Return a parameter's value with its unit."""
    if level is None:
        return MISSING
    if isinstance(level, str):
        return level
    if axis.kind == "time":
        return format_minute(level).removesuffix(" 00:00")
    return f"{level:.4g} {axis.unit}".rstrip()


def make_axis(key: str, values: Sequence[Any]) -> Axis:
    """Return a parameter as it is drawn: durations as hours, times as instants.

    >>> make_axis("workload.wait", ["24h", "6h", None]).levels
    (6.0, 24.0)
    """
    given = [value for value in values if value is not None]
    kind, unit, read = _reading(key, given)
    drawn = tuple(None if value is None else read(value) for value in values)
    found = {value for value in drawn if value is not None}
    # Texts keep the order in which the experiment lists them.
    texts = [value for value in dict.fromkeys(drawn) if value is not None]
    levels = tuple(texts) if kind == "category" else tuple(sorted(found, key=float))
    return Axis(key=key, name=_name(key), kind=kind, unit=unit, values=drawn, levels=levels)


def policy_labels(columns: Mapping[str, Sequence[Any]], count: int) -> tuple[list[str], set[str]]:
    """Return what the policy of each run is called, and the keys that are told by it.

    A name alone where that is all that differs; else with the parameters that differ too. Where
    that made more names than there are colours, the parameters stay parameters.
    """
    every = {key for key in columns if key.startswith("policy.")}
    names = [str(name or "run_now") for name in columns.get("policy.name", [None] * count)]
    blind = columns.get("policy.knows_phases", [None] * count)
    told: list[list[str]] = [[] for _ in range(count)]
    if len({known is False for known in blind}) > 1:
        told = [["phases unknown"] if known is False else [] for known in blind]
    plain = [_label(name, parts) for name, parts in zip(names, told, strict=True)]
    others = {
        key
        for key in every - {"policy.name", "policy.knows_phases"}
        if not _is_seed(key) and _varies_within(plain, columns[key])
    }
    for key in (key for key in columns if key in others):
        for parts, value in zip(told, columns[key], strict=True):
            if value is not None:
                parts.append(f"{key.removeprefix('policy.')} {_short(value)}")
    full = [_label(name, parts) for name, parts in zip(names, told, strict=True)]
    if len(set(full)) > MOST_POLICIES:
        # What follows from the name alone says nothing beside it.
        return plain, every - others
    return full, every


def _label(name: str, parts: Sequence[str]) -> str:
    return f"{name} ({', '.join(parts)})" if parts else name


def _varies_within(names: Sequence[str], values: Sequence[Any]) -> bool:
    """Say whether a parameter differs between runs of the same name."""
    known: dict[str, Any] = {}
    return any(
        known.setdefault(name, value) != value for name, value in zip(names, values, strict=True)
    )


def _reading(key: str, given: Sequence[Any]) -> tuple[str, str, Any]:
    """Return the kind and unit of values, and what turns one into what is drawn."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        if key.endswith("_s"):
            return _duration(given)
        unit = next((unit for end, unit in _UNITS.items() if key.endswith(end)), "")
        return "number", unit, float
    if all(isinstance(value, str) for value in given):
        if _reads(given, _seconds) and not all(_is_number(value) for value in given):
            return _duration(given)
        if _reads(given, parse_time):
            return "time", "", parse_time
    return "category", "", _short


def _duration(given: Sequence[Any]) -> tuple[str, str, Any]:
    """Return how durations are drawn: in hours, or in minutes where all are short."""
    longest_s = max((_seconds(value) for value in given), default=0.0)
    unit, size_s = ("min", 60.0) if longest_s < 3600 else ("h", 3600.0)
    return "number", unit, lambda value: _seconds(value) / size_s


def _seconds(value: DurationLike) -> float:
    # Beside durations with a unit, a table has 0 as a text without one.
    return parse_duration(value, bare_unit_s=1.0)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _reads(given: Iterable[str], read: Callable[[str], float]) -> bool:
    try:
        for value in given:
            read(value)
    except InvalidTime:
        return False
    return True


def _short(value: Any) -> str:
    """Return a value as a label: truth in words, files without their folders."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text.rstrip("/").rpartition("/")[2] if text.startswith("/") else text


def _name(key: str) -> str:
    if key in _NAMES:
        return _NAMES[key]
    last = key.rpartition(".")[2]
    for end in ("_s", *_UNITS):
        last = last.removesuffix(end)
    return last.replace("_", " ")


def _named_apart(axes: list[Axis]) -> list[Axis]:
    """Return axes whose names differ: those that would share one are called by their key."""
    names = [axis.name for axis in axes]
    return [
        axis
        if names.count(axis.name) == 1
        else replace(axis, name=axis.key.partition(".")[2].replace(".", " ").replace("_", " "))
        for axis in axes
    ]


def _joined(axes: Sequence[Axis], list_of: Mapping[str, str]) -> Axis:
    """Return parameters that vary together as one."""
    first = axes[0]
    if len(axes) == 1:
        return first
    together = tuple((axis.key, axis.name) for axis in _named_apart(list(axes)))
    lists = {list_of.get(axis.key) for axis in axes}
    listed = lists.pop() if len(lists) == 1 else None
    name = listed.replace("_", " ") if listed else " + ".join(name for _, name in together)
    if all(axis.kind == "number" and axis.values == first.values for axis in axes):
        # The same number under several keys is a number still.
        return replace(first, name=name, together=together)
    values = tuple(
        " / ".join(
            dict.fromkeys(
                format_level(axis, level)
                for axis, level in zip(axes, levels, strict=True)
                if level is not None
            )
        )
        or None
        for levels in zip(*(axis.values for axis in axes), strict=True)
    )
    return Axis(
        key=first.key,
        name=name,
        kind="category",
        unit="",
        values=values,
        levels=tuple(value for value in dict.fromkeys(values) if value is not None),
        together=together,
    )


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == _REPEATS


def _texts(values: Iterable[Any]) -> list[str]:
    # What a table mixes, such as numbers and lists, has no order and no hash of its own.
    return [str(value) for value in values]


def _follows(one: Sequence[int], two: Sequence[int]) -> bool:
    """Say whether one of two parameters follows from the other."""
    pairs = len({*zip(one, two, strict=True)})
    return pairs in (len({*one}), len({*two}))


def _codes(values: Iterable[Any]) -> tuple[int, ...]:
    number: dict[Any, int] = {}
    return tuple(number.setdefault(value, len(number)) for value in values)
