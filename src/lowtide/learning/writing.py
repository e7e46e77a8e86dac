"""What was learned, as files: the profile with its validation, what repeats written once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import files
from lowtide.errors import InvalidInput

if TYPE_CHECKING:
    from lowtide.learning.learned import Learned


def profile_document(learned: Learned) -> dict[str, Any]:
    """Return the profile as `PowerProfile.from_dict` reads it, with repeated blocks."""
    plain = learned.profile.to_dict()
    document: dict[str, Any] = {"about": learned.text()}
    if "startup" in plain:
        document["startup"] = plain["startup"]
    work = plain["work"]
    if (block := learned.fit.structure.block) is not None:
        first = block.first - len(learned.profile.startup)
        end = first + block.length * block.count
        repeated = {"repeat": block.count, "phases": work[first : first + block.length]}
        work = [*work[:first], repeated, *work[end:]]
    return document | {"work": work}


def write_profile(learned: Learned, path: Path | str) -> None:
    """Write the profile, with what validation showed in its `about`.

    Args:
        path: A file ending in `.toml` or `.json`.
    """
    path = Path(path)
    document = profile_document(learned)
    if path.suffix == ".json":
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    elif path.suffix == ".toml":
        text = _toml(document)
    else:
        raise InvalidInput(f"a profile is a .toml or .json file, not {path.name!r}")
    files.write_whole(path, text)


def learned_document(learned: Learned) -> dict[str, Any]:
    """Return everything that was learned as plain lists and numbers."""
    model, structure = learned.fit.model, learned.fit.structure
    profile = profile_document(learned)
    return {
        "profile": profile,
        "power": learned.power,
        "baseline_w": learned.baseline_w,
        "runs": list(model.runs),
        "by": "power" if model.marks is None else "marks",
        "lag_s": model.lag_s,
        "phases": [asdict(phase) for phase in learned.phases],
        "repeated": None if structure.block is None else asdict(structure.block),
        "edges_s": dict(zip(model.runs, model.edges_s.tolist(), strict=True)),
        "validation": None if learned.validation is None else asdict(learned.validation),
        "checks": [asdict(each) for each in learned.checks],
        "costs": [asdict(cost) for cost in learned.costs],
        "notes": list(learned.notes),
    }


def _toml(document: dict[str, Any]) -> str:
    about = "\n".join(_value(line)[1:-1] for line in document["about"].split("\n"))
    lines = ['about = """', about, '"""']
    for group in ("startup", "work"):
        if group in document:
            lines += [f"{group} = [", *_rows(document[group], "  "), "]"]
    return "\n".join(lines) + "\n"


def _rows(phases: list[dict[str, Any]], indent: str) -> list[str]:
    rows = []
    for phase in phases:
        if "repeat" in phase:
            rows.append(f"{indent}{{ repeat = {phase['repeat']}, phases = [")
            rows += _rows(phase["phases"], indent + "  ")
            rows.append(f"{indent}] }},")
        else:
            pairs = ", ".join(f"{key} = {_value(value)}" for key, value in phase.items())
            rows.append(f"{indent}{{ {pairs} }},")
    return rows


def _value(value: str | float | bool) -> str:
    # JSON writes numbers, truth values and texts as TOML does, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
