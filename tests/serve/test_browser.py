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

from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.people import Roster
from lowtide.serve.tokens import LINK, make_token
from support.needs import is_missing
from support.pushed import Node, centre
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
        Roster.from_settings(SETTINGS).keep(database, now=0.0)
        node = Node(folder / "n1.sqlite")
        told = WastefulNode()
        for tick, facts in told.ticks(jobs):
            node.store.append(tick)
            node.store.put_facts([replace(each, name=_name(int(each.job_id))) for each in facts])
        node.watcher.time = told.time
        assert not any(answer.reason for answer in node.push(database))
        node.store.close()
        keeper = Doorkeeper(database, SETTINGS, clock=lambda: told.time + 30.0)
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
    page.goto(f"{url}/jobs")
    found = page.locator("td a").evaluate_all("all => all.map(each => each.href.split('/').pop())")
    return {"ref": found[0], "other": found[1]}


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
    refs = _targets(page, site[0])
    axe = Axe()
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
            name += "-of" * ("{ref}" in path and "?" in path)
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
    assert "<b>laptop</b>" in page.locator("table").inner_text()
    page.click("button[aria-label^='End token']")
    assert "None." in page.locator("table").inner_text()
    page.click("text=No more mails")
    assert page.locator("text=You get no mails.").count() == 1
    page.goto(f"{site[0]}/jobs")
    page.select_option("select[name=order]", "energy_j")
    page.click("text=Show")
    assert "order=energy_j" in page.url
    context.close()
