"""Tables and lists in the documentation that have to hold together, or to match another file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_has_its_head(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for is_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")):
        rows = list(lines)
        if is_table:
            assert len(rows) > 1, rows
            assert re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", rows[1]), rows[0]


def test_the_layers_are_those_of_the_contract() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = document["tool"]["importlinter"]["contracts"][0]["layers"]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = text.split("## The layers")[1].split("```")[1].strip().splitlines()
    assert [re.split(r"\s{2,}", line)[0] for line in listed] == [
        layer.replace("lowtide.", "") for layer in contract
    ]


def test_every_fault_that_is_told_of_has_its_test() -> None:
    text = (ROOT / "docs/howto/act-failures.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    known = {
        name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 25
    assert named <= known, named - known
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert all("`test_" in row for row in rows)


def test_what_a_centre_has_is_told(tmp_path: Path) -> None:
    from lowtide.serve.app import make_app
    from lowtide.serve.gate import Doorkeeper
    from lowtide.serve.settings import Settings
    from lowtide.store.database import Database

    text = (ROOT / "docs/howto/serve.md").read_text()
    unnamed = [each.name for each in fields(Settings) if f"`{each.name}`" not in text]
    assert not unnamed
    database = Database(tmp_path / "centre.sqlite")
    routes = make_app(Doorkeeper(database, Settings()))._routes  # type: ignore[attr-defined]
    database.close()
    # What is below another address is told with it; the rest is asked by forms, nodes and links.
    paths = {re.sub(r"/\{.*", "", route.path) or "/" for route in routes}
    others = ("/enter", "/ingest", "/leave", "/login", "/static", "/stop", "/settings/")
    told = [path for path in paths if not path.startswith(others)]
    assert len(told) > 25
    assert not [path for path in told if f"`{path}`" not in text and f"`{path}/" not in text]
