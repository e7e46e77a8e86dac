"""Troubles are told once, with how often and how bad."""

from __future__ import annotations

from lowtide.measuring.worker import Troubles


def test_values_of_one_kind_become_one_note() -> None:
    troubles = Troubles()
    for watts in (2e6, 5e6, -7e6, 3e6):
        troubles.add_value(f"meter hwmon: gpu-0 read {watts:g} W, which a gpu cannot draw")
    troubles.add_value("meter hwmon: gpu-1 read 9e+06 W, which a gpu cannot draw")
    assert troubles.notes() == [
        "meter hwmon: gpu-0 read 2e+06 W, which a gpu cannot draw (4 times, at worst -7e+06)",
        "meter hwmon: gpu-1 read 9e+06 W, which a gpu cannot draw",
    ]


def test_news_are_told_once_and_counts_at_the_end() -> None:
    troubles = Troubles()
    troubles.add("a fell silent at 1", kind="a")
    assert troubles.news() == [("a fell silent at 1", None)]
    troubles.add("a fell silent at 2", kind="a")
    assert troubles.news() == []
    told = [("a fell silent at 1 (2 times)", "a fell silent at 1")]
    assert troubles.news(counts=True) == told
    assert troubles.news(counts=True) == []
