"""The demo: five plans that hold together, and a report that stands alone."""

from __future__ import annotations

import re
from pathlib import Path

import lowtide as lt
from lowtide.studies.comparison import ABOUT, POLICIES, run_demo


def test_every_plan_is_valid_and_paid_by_the_one_accounting() -> None:
    result = run_demo("windy", seed=4)
    grid = lt.synthetic_grid("windy", start="2024-07-01T00:00Z", days=7, seed=4)
    assert tuple(each.policy for each in result.plans) == POLICIES
    for each in result.plans:
        each.schedule.check(result.job)
        again = lt.footprint(each.schedule, result.job, grid)
        assert again.carbon_g == each.footprint.carbon_g
        assert each.lower_bound_g <= each.footprint.carbon_g
        assert each.synthetic


def test_report_stands_alone_and_says_synthetic(tmp_path: Path) -> None:
    result = run_demo("sunny", seed=0)
    path = tmp_path / "deep" / "report.html"
    result.write_report(path, title="A <day>", about=ABOUT)
    page = path.read_text()
    assert "A &lt;day&gt;" in page
    assert "synthetic" in page
    outside_scripts = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=|https?://", outside_scripts)
    for each in result.plans:
        assert each.policy in page


def test_figures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    written = run_demo("coal", seed=0).write_images(tmp_path)
    assert sorted(path.name for path in written) == [
        "power.png",
        "power.svg",
        "schedules.png",
        "schedules.svg",
    ]
    for path in written:
        start = path.read_bytes()[:8]
        assert start.startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (run_demo("windy", seed=2) for _ in range(2))
    first.write_report(tmp_path / "one.html", title="t", about="a")
    second.write_report(tmp_path / "two.html", title="t", about="a")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
