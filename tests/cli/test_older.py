"""What was an option of a verb, and is a verb: the old spelling says what the new one does."""

from __future__ import annotations

import json

import pytest

from lowtide.cli.older import OLDER, spelt_anew
from support.commands import all_verbs, run
from support.faces import paths_of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("learn a b --check p.toml -P", "learn check p.toml a b -P"),
        ("learn --check=p.toml a", "learn check p.toml a"),
        ("learn --check", "learn check"),
        ("learn a --by size --at size=3", "learn sizes a --by size --at size=3"),
        ("learn --utilisation a -o m.json", "model a -o m.json"),
        ("learn --from-prometheus http://p:9090", "profiles learn --from-prometheus http://p:9090"),
        ("watch --fast 4711 -o x --no-store", "watch follow 4711 -o x"),
        ("watch --once --facts-from none --pue 2 --interval=3 --json", "node --pue 2 --json"),
        ("queue --report --days 3", "queue report --days 3"),
        ("report --mail --dry-run", "serve mail --dry-run"),
        ("queue --calibration --store s", "queue waits"),
        ("when -t 60 --tradeoff", "tradeoff -t 60"),
        # What is another program's is left alone, and so is what has no older spelling.
        ("measure -- watch --once", "measure -- watch --once"),
        ("watch -- --once", "watch -- --once"),
        ("drive --once", "drive --once"),
        ("", ""),
    ],
)
def test_older_spellings(old: str, new: str) -> None:
    assert spelt_anew(old.split()) == new.split()


def test_every_older_spelling_means_a_verb_and_is_listed_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for each in OLDER:
        verb, option = each.said.split()
        option = option.rstrip("=")
        assert each.now in all_verbs()
        listed = run(capsys, verb, "--help").out
        assert f" {option} " not in listed, each.said


def test_one_sample_is_what_node_shows(capsys: pytest.CaptureFixture[str]) -> None:
    new, old = (run(capsys, *words, "--json") for words in (("node",), ("watch", "--once")))
    assert (new.code, old.code) == (0, 0)
    new_keys, old_keys = (
        {path for path in paths_of(json.loads(each.out)) if "[]" not in path} for each in (new, old)
    )
    assert new_keys == old_keys


def test_a_tradeoff_is_the_same_by_both_names(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("-t", "3:00:00", "--deadline", "+12h", "--grid", "windy")
    at = ("--arrival", "2024-07-01T06:00Z", "--now", "2024-07-01T06:00Z")
    new = run(capsys, "tradeoff", *job, *at, "--json")
    old = run(capsys, "when", *job, "--tradeoff", *at, "--json")
    assert (new.code, new.out) == (0, old.out)
