"""What people are shown who ask a page for something: their list, or why there is none."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide.serve import pages
from lowtide.serve.drawing import bars_by_day, panels
from lowtide.serve.overview import WasteBook
from lowtide.serve.people import rights_of
from lowtide.serve.settings import Exempt
from lowtide.serve.viewer import Viewer, VisibleJob
from lowtide.store.records import Series
from support.pushed import Node
from support.ticks import unit
from support.worlds import BOBS, NOW, World, world


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("pages")
    with world(str(folder / "centre.sqlite"), folder, BOBS["many"]) as made:
        yield made


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/waste?days=3", "days is one of 7, 30, 90"),
        ("/when?time=soon", "soon"),
        ("/jobs?order=user", "user"),
        ("/jobs?from=yesterday", "a day is written as 2026-10-01"),
        ("/jobs?to=2023-11-31", "a day is written as 2026-10-01"),
        ("/nodes?page=0", "counted from 1"),
        ("/nodes?page=-1", "counted from 1"),
        ("/nodes?page=%D9%A1", "counted from 1"),
        ("/reports?month=2023-13", "a month is written as 2026-10"),
        ("/usage?by=hours", "hours"),
    ],
)
def test_a_page_says_what_it_does_not_understand(one: World, target: str, says: str) -> None:
    answer = one.get("ada", target)
    assert answer.status == 400
    assert answer.headers["content-type"].startswith("text/html")
    assert says.lower() in html.unescape(answer.body.decode()).lower()
    assert b'href="/"' in answer.body


def test_programs_are_told_in_their_own_way(one: World) -> None:
    answer = one.get("ada", "/api/v1/jobs?order=user")
    assert answer.status == 400
    assert "user" in answer.json()["error"]


@pytest.mark.parametrize("month", ["%EF%BC%92023-11", "2023-1", "%202023-11", "2023-11%0d%0aX:1"])
def test_a_file_is_named_by_a_month_alone(one: World, month: str) -> None:
    """What is in the name stands in a header."""
    assert one.get("ada", f"/reports/{month}.parquet").status in (400, 404)
    assert one.get("ada", "/reports/2023-11.parquet").status == 200


def test_jobs_are_found_by_day_and_so_are_the_files(one: World) -> None:
    """All of it ran on 14 and 15 November 2023."""
    whole = one.get("adam", "/jobs?user=ada,cy&from=2023-11-14&to=2023-11-15").body.decode()
    refs = re.findall(r'href="/jobs/(\w{15})"', whole)
    assert len(refs) == 5
    for target in re.findall(r'href="(/api/v1/jobs\?[^"]*)"', whole):
        if "format" not in target:
            same = one.get("adam", html.unescape(target)).json()["jobs"]
            assert [each["ref"] for each in same] == refs
    for never in ("from=2023-11-16&state=completed", "to=2023-11-13"):
        assert "No job." in one.get("adam", f"/jobs?{never}").body.decode()


def test_nodes_are_shown_in_parts_with_what_they_do(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = one.get("nobody", "/nodes").body.decode()
    shown = re.findall(r'<td class="now">(.*?)</td><td class="n now">(.*?)</td>', page)
    told = [one.get("nobody", f"/api/v1/nodes/{name}").json() for name in ("n1", "n2")]
    assert [what.startswith("busy") for what, _ in shown] == [each["busy"] for each in told]
    assert [watts for _, watts in shown] == [f"~{each['power_w']:.0f} W" for each in told]
    assert "Further nodes" not in page
    monkeypatch.setattr(pages, "_NODES", 1)
    first, second, third = (
        one.get("nobody", f"/nodes?page={number}").body.decode() for number in (1, 2, 3)
    )
    assert ("/nodes/n1" in first, "/nodes/n2" in first) == (True, False)
    assert ("/nodes/n1" in second, "/nodes/n2" in second) == (False, True)
    assert [("Further nodes" in each) for each in (first, second, third)] == [True, False, False]
    assert "/nodes/n2" in one.get("nobody", "/nodes?name=n2").body.decode()


def test_a_page_of_a_job_speaks_to_who_reads_it(one: World) -> None:
    [*_, ref] = [each["ref"] for each in one.get("ada", "/api/v1/jobs").json()["jobs"]]
    page = html.unescape(one.get("ada", f"/jobs/{ref}").body.decode())
    # What is to be done at a terminal is not to be done here.
    assert "--grid" not in page
    assert "What is known of the grid ends" in page
    assert re.search(r"Memory</b>, 95[34][.\d]* MiB at most", page)
    assert "<li>100 W</li><li>50 W</li><li>0</li>" in page


def test_a_curve_is_what_it_draws() -> None:
    """Step by step, with a hole where nothing is known."""
    watts = np.array([10.0, 10.0, 40.0, math.nan, 20.0])
    times = 1e9 + 60.0 * np.arange(1, 6)
    series = Series(times=times, step_s=np.full(5, 60.0), columns={"power_w": watts})
    [drawn] = panels(series, (("power_w", "Power", "W"),))
    assert drawn["scale"] == ["40 W", "20 W", "0"]
    assert drawn["moments"] == ["09 Sep 01:46", "09 Sep 01:49", "09 Sep 01:51"]
    assert [row["text"] for row in drawn["rows"]] == ["10 W", "10 W", "40 W", "---", "20 W"]
    seen = []
    x = y = 0.0
    for kind, first, second in re.findall(r"([MHV])([\d.]+)(?:,([\d.]+))?", drawn["line"]):
        before = x, y
        x, y = {
            "M": (float(first), float(second or 0)), "H": (float(first), y), "V": (x, float(first)),
        }[kind]  # fmt: skip
        if kind == "H":
            seen.append((before[0] / 720 * 5, x / 720 * 5, round(40 * (160 - y) / 156)))
    assert seen == [(0, 1, 10), (1, 2, 10), (2, 3, 40), (4, 5, 20)]


def test_a_page_says_which_job_it_is_about(one: World) -> None:
    """Also of one that is not among the last of one's own."""
    ref = one.get("cy", "/api/v1/jobs").json()["jobs"][0]["ref"]
    for who, words in (("cy", f'value="{ref}" selected>'), ("lea", "selected>as chosen")):
        page = one.get(who, f"/when?like={ref}").body.decode()
        assert len(re.findall(" selected>", page)) == 1
        assert words in page


def test_a_day_without_jobs_is_no_bar() -> None:
    sums = {"measured_j": 7.2e6, "unmetered_s": 0.0, "without_energy": 0, "day": 86400}
    chart = bars_by_day([{**sums, "energy_j": 7.2e6}], 0.0, 3 * 86400.0)
    assert [each["text"] for each in chart["bars"]] == [
        "01 Jan: nothing", "02 Jan: 2 kWh", "03 Jan: nothing", "04 Jan: nothing",
    ]  # fmt: skip
    assert [float(each["high"]) > 0 for each in chart["bars"]] == [False, True, False, False]


def test_what_a_job_wasted_is_looked_for_once(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever asks first; and each is told of their own jobs alone."""
    looked = []
    behind = Viewer.behind

    def counted(viewer: Viewer, job: object) -> object:
        looked.append(job)
        return behind(viewer, job)  # type: ignore[arg-type]

    monkeypatch.setattr(Viewer, "behind", counted)
    # As before anything is kept of them.
    monkeypatch.setattr("lowtide.serve.overview.kept_findings", lambda *_: {})
    database = one.keeper.database
    book = WasteBook(Exempt())

    def found(who: str) -> list[str]:
        viewer = Viewer(database, who, rights_of(database, who), NOW)
        return [each.job.record.user or "" for each in book.waste(viewer, start=0.0, end=NOW)]

    staff = found("adam")
    count = len(looked)
    assert count
    assert found("adam") == staff
    assert set(found("ada")) == {"ada"}
    assert len(found("ada")) < len(staff)
    assert len(looked) == count


def test_a_job_is_looked_back_at_once_in_a_quarter(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks; and who may not see it is told no more than before."""
    ref = one.get("cy", "/api/v1/jobs").json()["jobs"][-1]["ref"]
    looked = []
    before = Viewer.looked_back

    def counted(viewer: Viewer, job: VisibleJob) -> object:
        looked.append(job.ref)
        return before(viewer, job)

    monkeypatch.setattr(Viewer, "looked_back", counted)
    told = one.get("adam", f"/jobs/{ref}")
    assert told.status == 200
    count = len(looked)
    body = told.body.decode().partition("<main")[2]
    assert one.get("cy", f"/jobs/{ref}").body.decode().partition("<main")[2] == body
    assert len(looked) == count
    assert one.get("ada", f"/jobs/{ref}") == one.get("ada", f"/jobs/{'0' * 20}")
    # Who of the staff looked is written down each time.
    one.get("adam", f"/jobs/{ref}")
    looks = [each["what"] for each in one.get("cy", "/api/v1/looks").json()["looks"]]
    assert looks.count(looks[0]) >= 2


def test_meters_that_do_not_tell_all_are_named(one: World, tmp_path: Path) -> None:
    """To the staff alone, of the last day."""
    before = one.get("adam", "/api/v1/health").json()["meters"]
    assert before == []
    assert b"Everything that jobs drew was measured" in one.get("adam", "/health").body
    node = Node(tmp_path / "n9.sqlite", "n9", time=NOW - 3600.0)
    for measured in (True, True, False, False):
        node.watcher.measured = measured
        node.tick([unit(90, user="cy", started=NOW - 3600.0)], step_s=600.0)
    assert not any(answer.reason for answer in node.push(one.keeper.database))
    node.store.close()
    [found] = one.get("adam", "/api/v1/health").json()["meters"]
    assert found == {"host": "n9", "measured": 0.5, "unmetered_s": 0.0, "priced": 1.0}
    assert b'href="/nodes/n9"' in one.get("adam", "/health").body
    assert one.get("cy", "/api/v1/health").json()["meters"] == []
