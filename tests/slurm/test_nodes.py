"""Slurm's lists of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import InvalidInput
from lowtide.slurm.fields import expand_nodes, shorten_nodes
from support.nightly import drawn


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("a,b", ["a", "b"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("a[1-2]b[3,05]", ["a1b3", "a1b05", "a2b3", "a2b05"]),
        ("rack1-gpu[1-2]-ib,login", ["rack1-gpu1-ib", "rack1-gpu2-ib", "login"]),
        ("", []),
        ("(null)", []),
        ("None assigned", []),
        (None, []),
    ],
)
def test_lists(text: str | None, names: list[str]) -> None:
    assert list(expand_nodes(text)) == names


@given(st.integers(0, 200), st.integers(0, 60), st.integers(1, 4))
def test_a_range_counts_in_the_width_it_is_written_in(first: int, more: int, width: int) -> None:
    names = expand_nodes(f"n[{first:0{width}}-{first + more:0{width}}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert all(len(name) > width for name in names)


@pytest.mark.parametrize("text", ["n[1-", "n[]", "n[3-1]", "n[a-b]", "n1]", "a,,b", "n[0-999999]"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="node"):
        expand_nodes(text)


@given(
    st.lists(
        st.one_of(
            st.builds(
                "{}{:0{}}{}".format,
                st.sampled_from(["n", "node-", "r1n", ""]),
                st.integers(0, 120),
                st.sampled_from([1, 2, 3]),
                st.sampled_from(["", ".cluster", "-ib"]),
            ),
            st.sampled_from(["login", "head", "n"]),
        ),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=drawn(150, 3000))
def test_short_forms_mean_the_same_nodes(names: list[str]) -> None:
    assert sorted(expand_nodes(shorten_nodes(names))) == sorted(set(names))


def test_four_hundred_nodes_are_one_word() -> None:
    assert shorten_nodes(f"n{number:03}" for number in range(1, 401)) == "n[001-400]"
    assert shorten_nodes(["n9", "n10", "n11"]) == "n[9-11]"
    assert shorten_nodes(["n1"]) == "n1"
