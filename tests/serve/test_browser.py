"""Pages in a real browser: every one is driven, checked by axe and fits a phone, light and dark."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from lowtide.monitor.snapshot import JobFacts
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.ingest import take_facts
from lowtide.serve.node_idle import keep_idle
from lowtide.serve.people import Roster
from lowtide.serve.settings import Account, Budget
from lowtide.serve.tokens import LINK, make_token
from support.needs import is_missing
from support.pushed import CLUSTER, Node, centre
from support.ticks import facts
from support.wasteful import WastefulNode, wasteful
from support.worlds import SETTINGS

pytestmark = pytest.mark.alone
SIZES = {"wide": (1280, 900), "phone": (360, 740)}
# What nobody should call a job, and longer than a phone is wide; and what people do call them.
NAME = "<script>alert(1)</script> and whatever else there is to say"
NAMES = ("train", "relax", "align", "sweep-lr", "preprocess")
# Written there on request, to be looked at.
SHOTS = os.environ.get("LOWTIDE_SHOTS")
PATHS = (
    *("/", "/jobs", "/jobs/{ref}", "/compare", "/compare?a={ref}&b={other}", "/when"),
    *("/compare?a={ref}&a={third}&b={other}&b={fourth}", "{shared}"),
    *("/when?like={ref}", "/waste?days=90", "/usage", "/projects", "/projects/alps/phys"),
    *("/reports", "/nodes", "/nodes/n1", "/cluster", "/looks", "/settings", "/method", "/health"),
    *("/audit", "/stop/x", "/nothing"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Doorkeeper]]:
    """A centre that listens, with jobs that waste by plan and names that nobody should have."""
    folder = tmp_path_factory.mktemp("browser")
    chance = random.Random(1)
    kinds = ("serial", "idle_gpus", "", "left_gpus", "idle_cores", "dead_weight", "idle_memory")
    jobs = [
        replace(wasteful(rule, number, chance), user="ada" if number % 2 else "cy")
        for number, rule in enumerate(kinds * 2, start=1)
    ]
    with centre(str(folder / "centre.sqlite")) as database:
        phys = Account(
            leads=("lea",),
            members=("ada", "bob", *(f"u{number}" for number in range(6))),
            budget=Budget(kwh=30.0, kg=4.0),
            nodes=("n1",),
        )
        settings = replace(SETTINGS, accounts={**SETTINGS.accounts, "phys": phys})
        Roster.from_settings(settings).keep(database, now=0.0)
        node = Node(folder / "n1.sqlite")
        told = WastefulNode()
        for tick, facts in told.ticks(jobs):
            node.store.append(tick)
            node.store.put_facts([replace(each, name=_name(int(each.job_id))) for each in facts])
        node.watcher.time = told.time
        assert not any(answer.reason for answer in node.push(database))
        node.store.close()
        waiting = [_waits(number, told.time) for number in range(1, 19)]
        take_facts(database, waiting, now=told.time)
        keep_idle(database, settings, now=told.time + 30.0)
        keeper = Doorkeeper(database, settings, clock=lambda: told.time + 30.0)
        config = uvicorn.Config(make_app(keeper), host="127.0.0.1", port=0, log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}", keeper
        finally:
            server.should_exit = True
            thread.join(30.0)


def _waits(number: int, now: float) -> JobFacts:
    """Return a job that waits, in one of two partitions."""
    return facts(
        900 + number, state="pending", user=f"u{number % 6}", account="phys", cluster=CLUSTER,
        partition="gpu" if number % 4 else "main", submitted=now - 3600.0 * number,
        nodes_asked=2.0, cpus=128.0, gpus=8.0 if number % 4 else None,
    )  # fmt: skip


def _share(page: Page, url: str, ref: str) -> str:
    """Make a link to a job, as whoever's it is does, and return where it leads."""
    page.goto(f"{url}/jobs/{ref}")
    page.select_option("select[name=days]", "1")
    page.click("text=Make a link")
    return page.locator("p[role=status] + pre").inner_text()


def _name(number: int) -> str:
    """Return what a job is called: the last but one as nobody should."""
    return NAME if number == 13 else NAMES[number % len(NAMES)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    place = shutil.which("chromium") or is_missing("there is no chromium: apt-get install chromium")
    with sync_playwright() as driver:
        args = ["--no-sandbox", "--disable-gpu"]
        env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("browser"))}
        found = driver.chromium.launch(executable_path=place, args=args, env=env)
        yield found
        found.close()


def _enter(context: BrowserContext, site: tuple[str, Doorkeeper], who: str) -> Page:
    url, keeper = site
    now = keeper.clock()
    link = make_token(keeper.database, owner=who, scope=LINK, lasts_s=600.0, now=now)
    page = context.new_page()
    page.goto(f"{url}/enter/{link}")
    return page


def _targets(page: Page, url: str) -> dict[str, str]:
    page.goto(f"{url}/jobs?state=completed")
    found = page.locator("td a").evaluate_all("all => all.map(each => each.href.split('/').pop())")
    names = ("ref", "other", "third", "fourth")
    return dict(zip(names, found, strict=False))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_is_for_everybody(
    site: tuple[str, Doorkeeper], browser: Browser, size: str, scheme: Any
) -> None:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = _enter(context, site, "adam")
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    owners = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    axe = Axe()
    mine = _enter(owners, site, "ada")
    shared = _share(mine, site[0], _targets(mine, site[0])["ref"])
    for path in ("", "/settings", "/looks", "/cluster", "/projects/alps/phys"):
        # What is shown to whose jobs they are, and to nobody else: first a link that was just made.
        if path:
            mine.goto(site[0] + path)
        found = axe.run(mine)
        assert not found.violations_count, (path, found.generate_report())
        over = mine.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert over <= 0, (path, over)
        if SHOTS:
            name = path.strip("/").replace("/", "-") or "made"
            shot = str(Path(SHOTS) / f"own-{name}-{size}-{scheme}.png")
            mine.screenshot(path=shot, full_page=True, caret="initial")
    owners.close()
    refs = {**_targets(page, site[0]), "shared": shared.removeprefix(site[0])}
    for path in PATHS:
        answer = page.goto(site[0] + path.format(**refs))
        assert answer is not None
        assert answer.status == (404 if path == "/nothing" else 200), path
        found = axe.run(page)
        assert not found.violations_count, (path, found.generate_report())
        over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert over <= 0, (path, over)
        if SHOTS:
            name = path.split("?")[0].strip("/").replace("/", "-").replace("{ref}", "x") or "home"
            name = "shared" if path == "{shared}" else name
            name += "-of" * ("{ref}" in path and "?" in path) + "-many" * ("{third}" in path)
            path = str(Path(SHOTS) / f"{name}-{size}-{scheme}.png")
            # To hide the caret it would write a style into the page, which no page allows.
            page.screenshot(path=path, full_page=True, caret="initial")
    # A page that is not there says so on the console, and nothing else is said.
    assert [each for each in said if "404" not in each] == []
    context.close()


def test_a_keyboard_is_enough(site: tuple[str, Doorkeeper], browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=True)
    page = _enter(context, site, "ada")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('href') || ''"))
    assert {"/jobs", "/waste", "/settings"} <= set(seen)
    context.close()


def test_without_scripts_forms_work(site: tuple[str, Doorkeeper], browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = _enter(context, site, "ada")
    page.goto(f"{site[0]}/settings")
    page.fill("input[name=note]", "<b>laptop</b>")
    page.click("text=Make a token")
    assert page.locator("pre").inner_text().startswith("lt_")
    listed = page.get_by_role("region", name="Tokens")
    assert "<b>laptop</b>" in listed.inner_text()
    page.click("button[aria-label^='End token']")
    assert "None." in listed.inner_text()
    page.click("text=No more mails")
    assert page.locator("text=You get no mails.").count() == 1
    page.goto(f"{site[0]}/jobs")
    page.select_option("select[name=order]", "energy_j")
    page.click("text=Show")
    assert "order=energy_j" in page.url
    context.close()


def test_a_link_is_made_opened_and_ended(site: tuple[str, Doorkeeper], browser: Browser) -> None:
    """By the keyboard, without any script; and whoever opens it has no account."""
    context = browser.new_context(java_script_enabled=False)
    page = _enter(context, site, "ada")
    ref = _targets(page, site[0])["ref"]
    page.goto(f"{site[0]}/jobs/{ref}")
    page.focus("select[name=days]")
    page.keyboard.press("Tab")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    link = page.locator("p[role=status] + pre").inner_text()
    stranger = browser.new_context(java_script_enabled=False)
    there = stranger.new_page()
    requests: list[str] = []
    there.on("request", lambda request: requests.append(request.url))
    answer = there.goto(link)
    assert answer is not None
    assert answer.status == 200
    assert there.locator("h1").inner_text().startswith("Job ")
    assert there.locator("a, form, button, script").count() == 0
    assert {each.removeprefix(site[0]).split("/")[1] for each in requests} == {"shared", "static"}
    assert stranger.cookies() == []
    page.goto(f"{site[0]}/looks")
    assert "whoever has it" in page.locator("table").inner_text()
    page.goto(f"{site[0]}/settings")
    page.locator("button[aria-label^='End link']").first.focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    answer = there.goto(link)
    assert answer is not None
    assert answer.status == 404
    stranger.close()
    context.close()


def test_runs_are_chosen_by_ticking(site: tuple[str, Doorkeeper], browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = _enter(context, site, "ada")
    page.goto(f"{site[0]}/compare")
    for side, rows in (("a", (0, 2)), ("b", (1, 3))):
        for row in rows:
            page.locator(f"input[name={side}]").nth(row).check()
    page.click("button:text('Compare')")
    assert page.url.count("a=") == page.url.count("b=") == 2
    assert page.locator("text=Welch's test").count() == 1
    assert page.locator("input:checked").count() == 4
    context.close()
