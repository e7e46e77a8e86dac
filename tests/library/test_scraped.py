"""The same jobs by way of a real Prometheus: filled with the pages of a watcher that never was."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import ProviderProblem
from lowtide.library import Library, learn_from
from lowtide.library.scraped import Scraped
from lowtide.library.sources import Watched
from lowtide.monitor.metrics import Exposition
from lowtide.store import Question, Store
from support.needs import is_missing
from support.production import START, Job, Program, jobs_of, keep, ticks_of
from support.prometheus import missing_programs, running_prometheus

pytestmark = pytest.mark.alone

STEP_S = 60.0
TRAIN = Program(
    name="train",
    startup=(600.0, 100.0),
    epoch=((1200.0, 400.0), (600.0, 200.0)),
    end=(600.0, 80.0),
    epochs=2,
)
_SAMPLE = re.compile(rb"^(lowtide_job\S+?\{.*\}) (\S+)( \S+)?$", re.M)


def written_jobs() -> list[Job]:
    other = replace(TRAIN, name="prep", user="bob", epoch=((900.0, 150.0), (600.0, 100.0)))

    def named(number: int) -> str:
        return f"train_{number}"

    jobs = jobs_of(TRAIN, 4, naming=named)
    late = jobs_of(TRAIN, 1, first=90, start=jobs[-1].end + 600, hidden=(0.0, 2400.0), naming=named)
    return [*jobs, *late, *jobs_of(other, 3, first=50, start=START + 900)]


def fill(folder: Path, jobs: list[Job]) -> None:
    """Write what a scraper would have seen of a watcher, at every tick, as blocks."""
    page = Exposition()
    series: dict[bytes, list[str]] = {}
    for tick in ticks_of(jobs, step_s=STEP_S):
        for name, value, _ in _SAMPLE.findall(page.render(tick).whole):
            series.setdefault(name, []).append(f"{value.decode()} {tick.time + 1:.3f}")
    families: dict[str, list[str]] = {}
    for name, samples in series.items():
        family = name.partition(b"{")[0].decode()
        families.setdefault(family, []).extend(f"{name.decode()} {each}" for each in samples)
    lines = []
    for family, samples in families.items():
        kind = "counter" if family.endswith("_total") else "gauge"
        lines += [f"# TYPE {family.removesuffix('_total')} {kind}", *samples]
    text = folder / "pages.txt"
    text.write_text("\n".join([*lines, "# EOF"]) + "\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    if missing := missing_programs():
        is_missing(f"needs a Prometheus to start: {', '.join(missing)} not found")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    fill(folder, written_jobs())
    (folder / "rules.yml").write_text("groups: []\n")
    with running_prometheus(
        folder, [], rules=folder / "rules.yml", more=(), keep="9000d"
    ) as server:
        yield server.url


def test_metrics_tell_what_the_store_tells(url: str, tmp_path: Path) -> None:
    jobs = written_jobs()
    with Store.open(tmp_path / "store.sqlite") as store:
        keep(store, jobs, step_s=STEP_S)
    with Store.open(tmp_path / "store.sqlite", readonly=True) as store:
        kept = learn_from(Watched(store, Question(), START + 1e6), Library(tmp_path / "one"))
    source = Scraped(
        url=url, start=START - 3600, end=max(job.end for job in jobs) + 7200, sources=("slurm",)
    )
    scraped = learn_from(source, Library(tmp_path / "two"))
    assert any("how jobs ended" in note for note in scraped.notes)
    ours = {each.program: each for each in kept.found}
    theirs = {each.program: each for each in scraped.found}
    assert set(ours) == set(theirs)
    for program, mine in ours.items():
        other = theirs[program]
        assert mine.entry is not None
        assert other.entry is not None
        assert set(mine.used) == set(other.used)
        assert [each.why for each in other.left_out] == [each.why for each in mine.left_out]
        assert other.entry.profile.energy_j == pytest.approx(mine.entry.profile.energy_j, rel=0.01)
        assert other.entry.profile.run_s == pytest.approx(mine.entry.profile.run_s, rel=0.03)
        assert len(other.entry.profile.work) == len(mine.entry.profile.work)
    few = Scraped(
        url=url, start=START - 3600, end=max(job.end for job in jobs) + 7200, names=("tr*",)
    )
    assert {each.program.name for each in few.programs()} == {"train_#"}


def test_what_is_no_prometheus_is_told(url: str) -> None:
    source = Scraped(url=f"{url}/nowhere", start=START, end=START + 3600)
    with pytest.raises(ProviderProblem):
        list(source.programs())
