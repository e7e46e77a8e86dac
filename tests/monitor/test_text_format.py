from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from lowtide.monitor.prometheus import MetricSeries, alone, counter, escape, gauge, labels


@given(st.text(st.characters(), max_size=20), st.text(max_size=20))
def test_any_label_survives_the_trip(name: str, other: str) -> None:
    page = gauge("x", "Any.", alone(labels(name=name, other=other), 1.5))
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
    series = MetricSeries(
        labels=[labels(a=str(n)) for n in range(4)], values=np.array([1, np.nan, np.inf, 2.0])
    )
    page = gauge("x", "Some.", series)
    assert page == '# HELP x Some.\n# TYPE x gauge\nx{a="0"} 1.000\nx{a="3"} 2.000\n'
    assert gauge("x", "None.", alone(labels(a="0"), np.nan)) == ""


def test_a_counter_says_when_it_was_read() -> None:
    page = counter("x_total", "One.", alone(labels(a="0"), 1.5), at=1700000000.1234)
    assert page.splitlines()[2] == 'x_total{a="0"} 1.500 1700000000123'
    [found] = text_string_to_metric_families(page)
    assert found.samples[0].timestamp == pytest.approx(1700000000.123)


@pytest.mark.parametrize("value", [1e31, -1e31, 2.0**63, 2.0**53 + 2])
def test_numbers_of_any_size_are_written(value: float) -> None:
    series = MetricSeries(
        labels=[labels(a="0"), labels(a="1")], values=np.array([value, 7.0]), digits=0
    )
    [found] = text_string_to_metric_families(gauge("x", "Large.", series))
    assert [sample.value for sample in found.samples] == [value, 7.0]


def test_whole_numbers_are_rounded_not_cut() -> None:
    page = gauge("x", "One.", alone(labels(), 2.0**40 - 0.25, digits=0))
    assert page.endswith(f"x{{}} {2**40}\n")


def _near_halves(rng: np.random.Generator, digits: int) -> np.ndarray:
    """Return numbers that lie on the middle of two that can be written, or a breath beside it."""
    halves = (rng.integers(0, 10 ** rng.integers(1, 13), 200) + 0.5) / 10.0**digits
    return np.nextafter(halves, rng.choice([-np.inf, 0.0, np.inf], 200))


@pytest.mark.parametrize("digits", [0, 1, 3, 6])
@pytest.mark.parametrize("seed", range(20))
def test_many_numbers_are_written_as_each_alone_would_be(digits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate(
        [
            _near_halves(rng, digits),
            # What a kernel counts: whole microseconds.
            rng.integers(0, 10 ** rng.integers(1, 15), 200) / 1e6,
            np.exp2(rng.uniform(-60, rng.uniform(0, 60 - 4 * digits), 200)),
            np.arange(0.0, 2100.0, rng.integers(1, 90)),
            # With these among them, or what a column of large numbers has, none is taken apart.
            *([[-0.0, -1.5, 2.0**70]] if seed % 4 == 0 else []),
        ]
    )
    of = [labels(a=f"100 % {n}") for n in range(len(values))]
    page = counter(
        "x", "Many.", MetricSeries(labels=of, values=values, more='b="1"', digits=digits), at=1
    )
    expected = [
        f'x{{a="100 % {n}",b="1"}} {value if digits else round(value):.{digits}f} 1000'
        for n, value in enumerate(values.tolist())
    ]
    assert page.splitlines()[2:] == expected
    assert page.endswith("\n")
