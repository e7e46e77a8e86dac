"""What lowtide shows to people, scripts and other programs, as it was kept in `tests/faces`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "faces"


def assert_as_kept(name: str, text: str) -> None:
    """Compare a text with the kept one, or keep it where LOWTIDE_WRITE_FACES is set.

    Args:
        name: The file under `tests/faces`.
        text: What is shown now.
    """
    kept = _kept(name, text)
    differing = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=0)
    assert text == kept, "\n".join(
        (
            f"tests/faces/{name} shows what people and scripts rely on. If it changes on purpose, "
            "LOWTIDE_WRITE_FACES=1 writes it anew, and CHANGELOG.md says so",
            *differing,
        )
    )


def assert_keys_as_kept(name: str, document: Any, columns: str) -> None:
    """Compare the keys of a JSON document and the head of a table with the kept ones.

    Args:
        name: The file under `tests/faces`.
        document: What `--json` says. A list that is empty on this machine says nothing of its keys.
        columns: The first line of `-P`.
    """
    now = set(paths_of(document))
    kept, _, head = _kept(name, "\n".join([*sorted(now), "", columns, ""])).partition("\n\n")
    before = set(kept.splitlines())
    lists = {path.partition("[]")[0] for path in now ^ before if "[]" in path}
    empty = {path for path in lists if not all(_is_filled(path, keys) for keys in (now, before))}
    differing = {path for path in now ^ before if path.partition("[]")[0] not in empty}
    anew = "if that is on purpose, LOWTIDE_WRITE_FACES=1 writes it anew, and CHANGELOG.md says so"
    assert not differing, f"tests/faces/{name} has other keys than --json now: {differing}; {anew}"
    assert columns == head.rstrip("\n"), f"tests/faces/{name} has other columns than -P now; {anew}"


def _kept(name: str, text: str) -> str:
    path = FOLDER / name
    if os.environ.get("LOWTIDE_WRITE_FACES"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def _is_filled(path: str, keys: set[str]) -> bool:
    return any(key.startswith(f"{path}[]") for key in keys)


def paths_of(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield every key of a document with those above it; `[]` stands for the places of a list."""
    if isinstance(value, dict):
        for key, each in value.items():
            path = f"{prefix}.{key}" if prefix else key
            yield path
            yield from paths_of(each, path)
    elif isinstance(value, list):
        for each in value:
            yield from paths_of(each, f"{prefix}[]")
