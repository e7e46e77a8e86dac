"""What people see of their jobs: pages made here, whole without any script.

Every page answers a question, says how sure it is (`~` estimated, `>` at least) and leads to the
same as data. Whatever users named their jobs is text here, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lowtide.certainty import marked
from lowtide.errors import InvalidInput
from lowtide.hindsight import Hindsight, words
from lowtide.hindsight.advice import next_script
from lowtide.serve.api import place_after, read_place
from lowtide.serve.comparing import (
    MOST_RUNS,
    compared,
    compared_phases,
    energy_by_phase,
    runs_like,
)
from lowtide.serve.drawing import (
    NODE_PANELS,
    bars_by_day,
    both_panel,
    coverage,
    falling_line,
    job_panels,
    panels,
    plan_figure,
    sum_of_known,
    summed_energy,
    summed_mass,
)
from lowtide.serve.gate import Doorkeeper, for_whom
from lowtide.serve.login_links import CODE_S, open_link
from lowtide.serve.node_views import QUARTER_S
from lowtide.serve.overview import WEEK_S, WasteBook
from lowtide.serve.planning import (
    TOO_LITTLE,
    Option,
    begin_within_a_day,
    every_finish,
    grid_ahead,
    next_job,
    options_of,
)
from lowtide.serve.remembered import JobMemory
from lowtide.serve.rendering import Renderer, form_of
from lowtide.serve.sharing import DAYS, links_of, make_job_link, may_share, note_look
from lowtide.serve.tokens import LINK, PREFIX, Pass, end_session, use_once
from lowtide.serve.viewer import ORDERS, Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.states import STATES
from lowtide.units import (
    format_duration,
    format_mass,
    format_percent,
    format_time,
)

__all__ = ["Pages", "summed_energy", "summed_mass"]
_SUMS = (
    *("jobs", "energy_j", "carbon_g", "measured_j", "unmetered_s", "unpriced_j"),
    *("without_energy", "without_carbon"),
)
_DAY_S = 86400.0
# Of how many jobs the first page looks for waste, the heaviest first, and for a better script.
_SUSPECTS, _TRIED = 20, 2
# Of how many jobs it is remembered what their pages show.
_REMEMBERED = 500
# Among how many jobs one chooses which to compare.
_CHOICES = 40
# How many nodes a page has.
_NODES = 100
# Who has a link is told no address of ours to pass on, and no search engine keeps what it shows.
_OF_SHARED = {
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow, noarchive, nosnippet",
}
_USED = "this link was used, or opened in another browser, or is too old: ask for another"


class Pages:
    """The pages of a server."""

    def __init__(self, keeper: Doorkeeper, renderer: Renderer, book: WasteBook) -> None:
        self._keeper = keeper
        self._renderer = renderer
        self._book = book
        self._known: JobMemory[dict[str, Any]] = JobMemory(_REMEMBERED)
        self._by_phase: JobMemory[dict[str, float]] = JobMemory(_REMEMBERED)

    def routes(self) -> list[Route]:
        """Return where each page is."""
        return [
            Route("/", self.home),
            Route("/jobs", self.jobs),
            Route("/jobs/{ref}", self.job),
            Route("/jobs/{ref}/links", self.share, methods=["POST"]),
            Route("/shared/{key}", self.shared),
            Route("/compare", self.compare),
            Route("/when", self.when),
            Route("/nodes", self.nodes),
            Route("/nodes/{name}", self.node),
            Route("/usage", self.usage),
            Route("/looks", self.looks),
            Route("/enter/{key}", self.enter),
            Route("/enter/{key}", self.enter_by_code, methods=["POST"]),
            Route("/leave", self.leave, methods=["POST"]),
        ]

    @for_whom("viewer")
    def home(self, request: Request) -> Response:
        """Show how my last jobs were, what they came to, and what to change."""
        viewer: Viewer = request.state.viewer
        mine = Wanted() if viewer.rights.role == "owner" else Wanted(users=[viewer.user])
        last = viewer.now // 3600 * 3600 + 3600
        first = last - 30 * _DAY_S
        days = viewer.usage("day", start=first, end=last, wanted=_of(viewer))
        found = viewer.jobs(mine, most=10)
        wasted = self._book.waste(
            viewer, start=viewer.now - WEEK_S, end=viewer.now, users=mine.users, most=_SUSPECTS
        )
        like, script = self._next(viewer, [*(each.job for each in wasted), *found])
        return self._renderer.page(
            request,
            "home.html",
            jobs=found,
            sums={name: sum_of_known(row[name] for row in days) for name in _SUMS},
            chart=bars_by_day(days, first, last) if days else None,
            wasted=wasted[:5],
            like=like,
            script=script,
        )

    def _next(self, viewer: Viewer, jobs: Sequence[VisibleJob]) -> tuple[VisibleJob | None, Any]:
        """Return a job whose next script can be written better, and how."""
        finished = {each.ref: each for each in jobs if each.record.state == "completed"}
        for each in list(finished.values())[:_TRIED]:
            if script := self._shown(viewer, each)["script"]:
                return each, script
        return None, []

    @for_whom("viewer")
    def jobs(self, request: Request) -> Response:
        """Show which jobs there are; the address holds what is asked."""
        viewer: Viewer = request.state.viewer
        asked = {name: value for name, value in request.query_params.items() if value}
        wanted = Wanted(
            users=_list(asked, "user"),
            accounts=_list(asked, "account"),
            partitions=_list(asked, "partition"),
            states=_list(asked, "state"),
            host=asked.get("host", ""),
            name=asked.get("name", ""),
            job=asked.get("job", ""),
            start=_day(asked["from"]) if "from" in asked else None,
            end=_day(asked["to"]) + _DAY_S if "to" in asked else None,
        )
        order = asked.get("order", "over")
        after = read_place(asked["after"]) if "after" in asked else None
        found = viewer.jobs(wanted, order=order, after=after)
        asked.pop("after", None)
        more = ""
        if len(found) == 50:
            more = "?" + urlencode({**asked, "after": place_after(found[-1], order)})
        return self._renderer.page(
            request, "jobs.html", jobs=found, asked=asked, more=more,
            same=urlencode(_for_programs(wanted, order), doseq=True), states=STATES, orders=ORDERS,
        )  # fmt: skip

    @for_whom("viewer")
    def job(self, request: Request) -> Response:
        """Show what a job did, where the power went, and when it should have run."""
        viewer: Viewer = request.state.viewer
        found = viewer.job(request.path_params["ref"])
        if found is None:
            return self._renderer.nothing()
        return self._job(request, found)

    def _job(self, request: Request, found: VisibleJob, *, made: str = "") -> Response:
        viewer: Viewer = request.state.viewer
        # A token is for reading, and makes no links.
        may = request.state.shown.number is None and may_share(viewer, found)
        may = may and self._keeper.settings.share_links
        return self._renderer.page(
            request, "job.html", ref=found.ref, job=found.record, shared=False, made=made,
            may_share=may, lasting=DAYS, links=links_of(viewer, found.ref) if may else [],
            **self._shown(viewer, found),
        )  # fmt: skip

    @for_whom("viewer")
    async def share(self, request: Request) -> Response:
        """Make a link to a job of one's own, and show it once."""
        form = await form_of(request)
        return await to_thread.run_sync(partial(self._share, request, form.get("days", "")))

    def _share(self, request: Request, days: str) -> Response:
        viewer: Viewer = request.state.viewer
        found = viewer.job(request.path_params["ref"])
        settings = self._keeper.settings
        is_open = settings.share_links and request.state.shown.number is None
        if found is None or not is_open or not may_share(viewer, found):
            return self._renderer.nothing()
        key = make_job_link(viewer, found, days)
        where = settings.url.rstrip("/") or f"{request.url.scheme}://{request.url.netloc}"
        return self._job(request, found, made=f"{where}/shared/{key}")

    @for_whom("link")
    def shared(self, request: Request) -> Response:
        """Show a job to whoever has a link to it."""
        viewer: Viewer = request.state.viewer
        link: Pass = request.state.shown
        found = viewer.job(viewer.only)
        if found is None:
            return self._renderer.nothing()
        note_look(viewer, link, found)
        response = self._renderer.plain(
            "shared.html", ref=found.ref, job=found.record, shared=True, ends=link.expires,
            **self._shown(viewer, found),
        )  # fmt: skip
        response.headers.update(_OF_SHARED)
        return response

    def _shown(self, viewer: Viewer, found: VisibleJob) -> dict[str, Any]:
        """Return what the page of a job shows, which is the same for a quarter of an hour."""
        return self._known.of(
            found, lambda: self._looked_at(viewer, found), until=viewer.now // QUARTER_S
        )

    def _looked_at(self, viewer: Viewer, found: VisibleJob) -> dict[str, Any]:
        told = viewer.looked_back(found)
        tables = {"What was asked for, and what was used": words.use_table(told.behaviour)}
        if told.phases:
            tables["Phases"] = words.phase_table(told.phases.found)
        if told.waiting:
            tables["What waiting would have saved"] = words.waiting_table(told)
        return {
            "lines": [*words.headline(told)[1:], *words.drawn(found.record)],
            "verdicts": told.verdicts,
            "notes": told.notes,
            "tables": [
                (title, each.header, each.rows) for title, each in tables.items() if each.rows
            ],
            "panels": job_panels(told),
            "plan": plan_figure(told),
            "script": self._script(viewer, told),
            "covered": coverage(found.record),
        }

    def _script(self, viewer: Viewer, told: Hindsight) -> list[Any]:
        """Return what to write in the next job script."""
        begin = None
        if told.phases is not None:
            profile = told.phases.profile
            grid = grid_ahead(viewer, told.record.host, profile.run_s)
            if grid is not None:
                begin = begin_within_a_day(profile, grid, viewer.now, told.pue)
        # Slurm reads times in the zone of its machine, which is that of the centre.
        here = datetime.fromtimestamp(viewer.now, UTC).astimezone().tzinfo
        return next_script(told, begin, tz=here or UTC)

    @for_whom("viewer")
    def compare(self, request: Request) -> Response:
        """Show whether a change helped: runs before beside runs after."""
        viewer: Viewer = request.state.viewer
        given = request.query_params
        asked = [
            [each for each in dict.fromkeys(given.getlist(side)) if each] for side in ("a", "b")
        ]
        if any(len(side) > MOST_RUNS for side in asked):
            raise InvalidInput(f"each side is of {MOST_RUNS} runs at most")
        sides = [[viewer.job(ref) for ref in side] for side in asked]
        first, second = ([each for each in side if each is not None] for side in sides)
        if None in sides[0] + sides[1]:
            return self._renderer.nothing()
        name = given.get("name", "")
        jobs = {each.ref: each for each in (*first, *second)}
        jobs |= {
            each.ref: each for each in viewer.jobs(Wanted(name=name, began=True), most=_CHOICES)
        }
        more: dict[str, Any] = {"rows": []}
        if first and second:
            more = self._comparison(viewer, first, second)
        return self._renderer.page(
            request, "compare.html", jobs=jobs.values(), asked=asked, name=name,
            first=first, second=second, **more,
        )  # fmt: skip

    def _comparison(
        self, viewer: Viewer, first: Sequence[VisibleJob], second: Sequence[VisibleJob]
    ) -> dict[str, Any]:
        """Return what a page of two sides shows."""
        likes = None
        if len(first) == len(second) == 1:
            one, other = (runs_like(viewer, side[0]) for side in (first, second))
            # Runs of one program may be of either side: that only who made the change can say.
            if len(one) + len(other) > 2 and not set(one) & set(other):
                likes = len(one), len(other), urlencode({"a": one, "b": other}, doseq=True)
        drew = [{each.ref: self._drew(viewer, each) for each in side} for side in (first, second)]
        return {
            "rows": compared(first, second),
            "phases": compared_phases(*drew),
            "curve": both_panel(*(viewer.seen_of(side[0]).series for side in (first, second))),
            "likes": likes,
            "both": {each.ref for each in first} & {each.ref for each in second},
        }

    def _drew(self, viewer: Viewer, found: VisibleJob) -> dict[str, float]:
        return self._by_phase.of(found, lambda: energy_by_phase(viewer.seen_of(found).phases))

    @for_whom("viewer")
    def when(self, request: Request) -> Response:
        """Show when to submit a job like one of mine, or one of a given length."""
        viewer: Viewer = request.state.viewer
        asked = {name: request.query_params.get(name, "") for name in ("like", "time")}
        own = Wanted() if viewer.rights.role == "owner" else Wanted(users=[viewer.user])
        jobs = viewer.jobs(own, most=20)
        job = next_job(viewer, like=asked["like"], time=asked["time"])
        if job is None:
            return self._renderer.nothing()
        grid = None if job.profile is None else grid_ahead(viewer, job.host, job.profile.run_s)
        note = TOO_LITTLE if job.profile is not None and grid is None else job.note
        every = None if grid is None else every_finish(job, grid, viewer.now)
        options = [] if grid is None else options_of(job, grid, viewer.now)
        return self._renderer.page(
            request, "when.html", jobs=jobs, asked=asked, note=note,
            rows=[_shown(each) for each in options],
            curve=every and falling_line(every.finish, 100 * every.amount / every.baseline),
            source="" if grid is None else grid.source,
        )  # fmt: skip

    @for_whom("viewer")
    def nodes(self, request: Request) -> Response:
        """Show which nodes there are, what each does now, and those first of which nobody hears."""
        viewer: Viewer = request.state.viewer
        asked = {name: request.query_params.get(name, "") for name in ("name", "page")}
        place = _page(asked["page"])
        silent = set(viewer.health()["silent"])
        found = sorted(
            (each for each in viewer.nodes() if each["name"].startswith(asked["name"])),
            key=lambda each: (each["name"] not in silent, each["name"]),
        )
        shown = found[(place - 1) * _NODES : place * _NODES]
        return self._renderer.page(
            request, "nodes.html", nodes=shown, silent=silent, name=asked["name"],
            now=viewer.nodes_now([each["name"] for each in shown]), count=len(found),
            count_silent=sum(each["name"] in silent for each in found),
            more=place + 1 if len(found) > place * _NODES else None,
        )  # fmt: skip

    @for_whom("viewer")
    def node(self, request: Request) -> Response:
        """Show what a node does, what it did while my jobs ran there, and these."""
        viewer: Viewer = request.state.viewer
        name = request.path_params["name"]
        series = viewer.node_course(name, start=viewer.now - _DAY_S)
        if series is None:
            return self._renderer.nothing()
        return self._renderer.page(
            request,
            "node.html",
            name=name,
            now=viewer.node_now(name),
            panels=panels(series, NODE_PANELS),
            jobs=viewer.jobs(Wanted(host=name), most=20),
        )

    @for_whom("viewer")
    def usage(self, request: Request) -> Response:
        """Show who used what in the last 30 days."""
        viewer: Viewer = request.state.viewer
        by = request.query_params.get("by", "account")
        last = viewer.now // 3600 * 3600 + 3600
        first = last - 30 * _DAY_S
        rows = viewer.usage(by, start=first, end=last)
        chart = bars_by_day(rows, first, last) if by == "day" and rows else None
        return self._renderer.page(request, "usage.html", by=by, rows=rows, chart=chart)

    @for_whom("viewer")
    def looks(self, request: Request) -> Response:
        """Show who of the staff looked at my jobs."""
        return self._renderer.page(request, "looks.html", looks=request.state.viewer.looks())

    @for_whom("public")
    def enter(self, request: Request) -> Response:
        """Begin a session by a link of this machine's own, or ask whether to open another's."""
        key, now = request.path_params["key"], self._keeper.clock()
        owner = use_once(self._keeper.database, key, scope=LINK, now=now)
        if owner is not None:
            return self._keeper.let_in(request.headers, owner)
        if key.startswith(PREFIX):
            return self._renderer.refusal(_USED, 401)
        # Programs follow links, too: the first browser in which somebody presses is the one.
        return self._renderer.plain("enter.html", key=key, code="", words="")

    @for_whom("public")
    def enter_by_code(self, request: Request) -> Response:
        """Show a browser its code, and let it in once that was typed in at the terminal."""
        keeper, key = self._keeper, request.path_params["key"]
        name = keeper.login_cookie
        browser = keeper.cookie_value(request.headers, name)
        shown = open_link(keeper.database, key, browser, now=keeper.clock())
        if shown is None:
            return self._renderer.refusal(_USED, 401)
        if shown.owner:
            return keeper.let_in(request.headers, shown.owner)
        words = "The code was not typed in yet" if shown.browser == browser else ""
        page = self._renderer.plain("enter.html", key=key, code=shown.code, words=words)
        keeper.set_cookie(page, name, shown.browser, lasts_s=CODE_S)
        return page

    @for_whom("viewer")
    def leave(self, request: Request) -> Response:
        """End a session."""
        end_session(self._keeper.database, self._keeper.session_key(request.headers))
        response = self._renderer.refusal("you have left", 200)
        # Browsers let go of a guarded name only where it is as guarded as it was.
        self._keeper.set_cookie(response, self._keeper.cookie, "", lasts_s=0.0)
        return response


def _shown(option: Option) -> tuple[str, ...]:
    """Return what waiting comes to, in words."""
    return (
        format_duration(option.wait_s),
        format_time(option.begins),
        format_time(option.ends),
        marked(format_mass(option.carbon_g), estimated=option.carbon_g is not None),
        format_percent(option.saving),
    )


def _page(text: str) -> int:
    """Return which part of a list somebody asks for, 1 for the first."""
    if not text:
        return 1
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 7 and int(text)):
        raise InvalidInput(f"pages are counted from 1, and {text[:20]!r} is none of them")
    return int(text)


def _day(text: str) -> float:
    """Return when a day begins that somebody chose."""
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidInput(f"a day is written as 2026-10-01, not {text[:20]!r}") from None
    return max(day.timestamp(), 0.0)


def _for_programs(wanted: Wanted, order: str) -> dict[str, Any]:
    """Return which jobs are asked for as the API takes it."""
    found = {
        "user": wanted.users, "account": wanted.accounts, "partition": wanted.partitions,
        "state": wanted.states, "host": wanted.host, "name": wanted.name, "job": wanted.job,
        "start": wanted.start, "end": wanted.end, "order": order,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def _list(asked: Mapping[str, str], name: str) -> list[str]:
    return [part for part in asked.get(name, "").split(",") if part]


def _of(viewer: Viewer) -> dict[str, str]:
    return {} if viewer.rights.role == "owner" else {"user": viewer.user}
