"""Tables in the documentation: a blank line inside one makes text of the rest."""

from __future__ import annotations

import re
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
