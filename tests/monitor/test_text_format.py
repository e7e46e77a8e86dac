from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from lowtide.monitor.text_format import Series, escape, family, labels, single


@given(st.text(st.characters(), max_size=20), st.text(max_size=20))
def test_any_label_survives_the_trip(name: str, other: str) -> None:
    page = single("x", "gauge", "Any.", labels(name=name, other=other), 1.5)
    page.encode()
    assert page.count("\n") == 3
    [found] = text_string_to_metric_families(page)
    [sample] = found.samples
    assert sample.value == 1.5
    kept = "".join(c for c in name if c.isprintable())
    assert kept in sample.labels["name"] or not name.isprintable()
    if name.isprintable():
        assert sample.labels["name"] == name


def test_control_characters_are_written_out() -> None:
    assert escape("a\x00b\x1b\r\x85\udce9") == r"a\\x00b\\x1b\\x0d\\x85\\xdce9"
    assert escape('C:\\"x"\n') == r"C:\\\"x\"\n"


def test_what_is_not_known_has_no_line() -> None:
    series = Series(
        labels=[labels(a=str(n)) for n in range(4)], values=np.array([1, np.nan, np.inf, 2.0])
    )
    page = family("x_total", "counter", "Some.", series)
    assert page == (
        '# HELP x_total Some.\n# TYPE x_total counter\nx_total{a="0"} 1.000\nx_total{a="3"} 2.000\n'
    )
    assert single("x", "gauge", "None.", labels(a="0"), np.nan) == ""


@pytest.mark.parametrize("value", [1e31, -1e31, 2.0**63, 2.0**53 + 2])
def test_numbers_of_any_size_are_written(value: float) -> None:
    series = Series(labels=[labels(a="0"), labels(a="1")], values=np.array([value, 7.0]), digits=0)
    [found] = text_string_to_metric_families(family("x", "gauge", "Large.", series))
    assert [sample.value for sample in found.samples] == [value, 7.0]


def test_whole_numbers_are_rounded_not_cut() -> None:
    page = single("x", "gauge", "One.", labels(), 2.0**40 - 0.25, digits=0)
    assert page.endswith(f"x{{}} {2**40}\n")
