"""What a TOML file of an experiment says, and what was set beside it, as one table of settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, time
from itertools import product
from typing import Any

from lowtide.errors import InvalidInput, UnknownName, require_known

Parameters = dict[str, Any]

# What one run is made of. The others take whatever the policy, queue or workload they name takes.
SECTIONS: Mapping[str, Sequence[str] | None] = {
    "grid": (
        *("file", "zone", "synthetic", "start", "days", "step", "seed", "basis", "how"),
        *("marginal", "price"),
    ),
    "workload": None,
    "policy": None,
    "cluster": None,
    "queue": None,
    "forecast": None,
    "run": ("seed", "baseline", "repeat_signal", "oversized", "decide", "weights"),
    "sites": None,
}

# Of these a run has one; setting one from outside is setting the others aside.
# How a queue is served may be called as simulate() calls it.
_QUEUE_NAME, _QUEUE_DISCIPLINE = "queue.name", "queue.discipline"
GRIDS = ("grid.file", "grid.zone", "grid.synthetic")

ABOUT = ("title", "about", "question")

LAID_OVER = (*SECTIONS, *ABOUT, "sweep", "cases", "report")


def settings_of(settings: Mapping[str, Any] | None) -> Parameters:
    """Return what was set beside a file, in tables as the file has them."""
    said: Parameters = respelt(plain(settings or {}))
    for key in said:
        check_key(key)
    return said


def merged_tables(document: Parameters, *, full: bool, without_data: bool) -> Parameters:
    """Return a document with what is asked for and needed laid over it."""
    require_known(document, (*LAID_OVER, "full", "without_data"), "key of an experiment")
    over = table_of(document, "full")
    require_known(over, (*LAID_OVER, "without_data"), "key of [full]")
    if full and not over:
        raise InvalidInput("there is no [full] in this experiment: leave --full out")
    merged = {key: value for key, value in document.items() if key != "full"}
    _spell_out_sweep(merged)
    if full:
        merged = _laid_over(merged, _spell_out_sweep(over))
    # Last, as what [full] enlarges may be zones as well.
    over = table_of(merged, "without_data")
    require_known(over, LAID_OVER, "key of [without_data]")
    return _laid_over(merged, _spell_out_sweep(over)) if without_data else merged


def respelt(value: Any, within: str = "") -> Any:
    """Return a document with the queue's `discipline`, as Python calls it, by its name here."""
    if isinstance(value, list):
        return [respelt(entry, within) for entry in value]
    if not isinstance(value, Mapping):
        return _QUEUE_NAME if value == _QUEUE_DISCIPLINE else value
    spelt: Parameters = {}
    for key, entry in value.items():
        path = f"{within}.{key}".lstrip(".")
        same = f".{path}".endswith(f".{_QUEUE_DISCIPLINE}")
        name = key.removesuffix("discipline") + "name" if same else key
        if name in spelt or (same and name in value):
            raise InvalidInput("[queue] has name and discipline, which say the same: leave one out")
        spelt[name] = respelt(entry, path)
    return spelt


def _spell_out_sweep(document: Parameters) -> Parameters:
    # In TOML a key with dots is tables in tables, and one in quotes is not: both are meant alike.
    document["sweep"] = flatten(table_of(document, "sweep"))
    return document


def _laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> Parameters:
    """Return a document with another laid over it: tables are merged, all else is replaced.

    What is laid over with false is taken out, unless it is true or false itself.
    """
    merged = dict(under)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key] = _laid_over(before, value)
        elif value is False and before is not None and not isinstance(before, bool):
            del merged[key]
        else:
            merged[key] = value
    return merged


def table_of(document: Mapping[str, Any], name: str) -> Parameters:
    """Return a table of a document; an empty one where it has none."""
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise InvalidInput(f"[{name}] is a table of keys and values, not {value!r}")
    return dict(value)


def tables_of(document: Mapping[str, Any], name: str, path: str = "") -> list[Parameters]:
    """Return the tables of a list in a document; none where it has none."""
    value = document.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) and each for each in value):
        raise InvalidInput(f"[[{path or name}]] are tables of keys and values, not {value!r}")
    return value


def cases_of(document: Mapping[str, Any]) -> list[Parameters]:
    """Return the cases; of `[[cases.NAME]]`, several lists of them, every combination."""
    value = document.get("cases", [])
    if not isinstance(value, dict):
        return [_dotted(case) for case in tables_of(document, "cases")]
    groups = [[_dotted(case) for case in tables_of(value, name)] for name in value]
    keys = [key for group in groups for key in dict.fromkeys(key for case in group for key in case)]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise InvalidInput(f"{twice[0]} is in two lists of [cases]: leave one out")
    return [
        {key: value for case in combined for key, value in case.items()}
        for combined in product(*groups)
    ]


def _dotted(case: Parameters) -> Parameters:
    """Return a case by dotted key; a key in quotes may have a table as its value."""
    flat: Parameters = {}
    for key, value in case.items():
        flat |= flatten({key: value}) if "." not in key else {key: value}
    return flat


def check_values(key: str, values: Any) -> None:
    """Refuse values of a parameter that are no list, or that cannot be told apart."""
    check_key(key)
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"[sweep] {key} is a list of at least one value, not {values!r}")
    if len(different(values)) < len(values):
        raise InvalidInput(f"[sweep] {key} has a value twice: {values!r}")


def check_key(key: str) -> None:
    """Refuse a key that no run has."""
    set_value({name: {} for name in SECTIONS}, key, None)


def is_set(key: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a parameter is set from outside: itself, all of its table, or instead."""
    return any(
        key == each or key.startswith(f"{each}.") or (key in GRIDS and each in GRIDS)
        for each in settings
    )


def set_value(sections: Parameters, key: str, value: Any) -> None:
    """Set a parameter by its dotted key."""
    section, dot, rest = key.partition(".")
    if section not in SECTIONS:
        raise UnknownName("section", section, SECTIONS)
    if not dot or not all(rest.split(".")):
        raise InvalidInput(
            f"a parameter is named by section and key, such as policy.name, not {key!r}"
        )
    known = SECTIONS[section]
    *path, last = rest.split(".")
    if known is not None:
        require_known([rest.split(".")[0]], known, f"key of [{section}]")
    table = sections[section]
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InvalidInput(f"{key}: {name} is a value of its own, and has no {last}")
    table[last] = value


def different(values: Any) -> list[Any]:
    """Return values without those that came before; 1 and 1.0 differ, as they do in a file."""
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def copied(parameters: Parameters) -> Parameters:
    """Return parameters of which nothing is shared with these."""
    copied: Parameters = json.loads(json.dumps(parameters))
    return copied


def plain(value: Any) -> Any:
    """Return a value with TOML's dates and times as texts."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.isoformat() if isinstance(value, date | time) else value


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> Parameters:
    """Return parameters by dotted key.

    >>> flatten({"policy": {"name": "exact"}, "workload": {"jobs": {"power_w": 300}}})
    {'policy.name': 'exact', 'workload.jobs.power_w': 300}
    """
    flat: Parameters = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
