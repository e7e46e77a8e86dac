"""Pages of what many jobs come to, and of whoever looks: waste, projects, reports, settings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lowtide.errors import InvalidInput
from lowtide.hindsight.waste import RULES
from lowtide.serve.budgets import METHOD as BUDGET_METHOD
from lowtide.serve.budgets import PACE_DAYS, Budgets
from lowtide.serve.comparing import METHOD as COMPARE_METHOD
from lowtide.serve.drawing import GRID_PANELS, ahead_panel, panels
from lowtide.serve.gate import Doorkeeper, for_whom
from lowtide.serve.mail import mail_text, set_mails, stop_mails, wants_mails
from lowtide.serve.node_idle import METHOD as IDLE_METHOD
from lowtide.serve.overview import (
    DAY_S,
    METHOD,
    WasteBook,
    by_rule,
    cluster_now,
    month_span,
    months_before,
    most_wasted_j,
    report_of_month,
)
from lowtide.serve.planning import grid_ahead
from lowtide.serve.rendering import Renderer, form_of
from lowtide.serve.sharing import links_of
from lowtide.serve.tokens import SCOPES, list_tokens, make_token, take_back
from lowtide.serve.viewer import Viewer

_MONTHS = 6
_DAYS = (7, 30, 90)
_TOKEN_DAYS = (7, 30, 90, 365)


class OverviewPages:
    """The pages of a server that are about many jobs."""

    def __init__(self, keeper: Doorkeeper, renderer: Renderer, book: WasteBook) -> None:
        self._keeper = keeper
        self._renderer = renderer
        self._book = book
        self._budgets = Budgets(keeper.settings)
        self._nodes: dict[str, list[str]] = defaultdict(list)
        for node, account in keeper.settings.node_owners.items():
            self._nodes[f"{keeper.settings.cluster}/{account}"].append(node)

    def routes(self) -> list[Route]:
        """Return where each page is."""
        return [
            Route("/waste", self.waste),
            Route("/projects", self.projects),
            Route("/projects/{cluster}/{account}", self.project),
            Route("/projects/{account}", self.project),
            Route("/reports", self.reports),
            Route("/reports/{month}.parquet", self.report_file),
            Route("/cluster", self.cluster),
            Route("/health", self.health),
            Route("/audit", self.audit),
            Route("/method", self.method),
            Route("/settings", self.settings),
            Route("/settings/tokens", self.make_token, methods=["POST"]),
            Route("/settings/tokens/{number:int}", self.take_back, methods=["POST"]),
            Route("/settings/mails", self.set_mails, methods=["POST"]),
            Route("/stop/{key}", self.ask_to_stop),
            Route("/stop/{key}", self.stop, methods=["POST"]),
        ]

    @for_whom("viewer")
    def waste(self, request: Request) -> Response:
        """Show what costs most and can be changed today."""
        viewer: Viewer = request.state.viewer
        days = request.query_params.get("days", str(_DAYS[0]))
        if days not in map(str, _DAYS):
            raise InvalidInput(f"days is one of {', '.join(map(str, _DAYS))}")
        settings = self._keeper.settings
        found = self._book.waste(viewer, start=viewer.now - int(days) * DAY_S, end=viewer.now)
        rows = by_rule(found)
        return self._renderer.page(
            request,
            "waste.html",
            rows=rows,
            days=int(days),
            choices=_DAYS,
            total=most_wasted_j(found) if found else math.nan,
            exempt=settings.exempt,
            text_of=lambda wasted: mail_text([wasted], settings),
        )

    @for_whom("viewer")
    def projects(self, request: Request) -> Response:
        """Show the projects whose sums may be seen."""
        viewer: Viewer = request.state.viewer
        return self._renderer.page(request, "projects.html", accounts=viewer.accounts())

    @for_whom("viewer")
    def project(self, request: Request) -> Response:
        """Show who used what of a project, and how that went on."""
        viewer: Viewer = request.state.viewer
        cluster, account = request.path_params.get("cluster", ""), request.path_params["account"]
        named = f"{cluster}/{account}"
        if named not in viewer.accounts():
            return self._renderer.nothing()
        of = {"account": account, "cluster": cluster}
        trend = []
        for month in reversed(months_before(viewer.now, _MONTHS)):
            start, end = month_span(month)
            end = min(end, viewer.now // 3600 * 3600 + 3600)
            rows = viewer.usage("account", start=start, end=end, wanted=of)
            trend.append((month, rows[0] if rows else None))
        last = viewer.now // 3600 * 3600 + 3600
        leads = viewer.sees_all or named in viewer.rights.leads
        users = viewer.usage("user", start=last - 30 * DAY_S, end=last, wanted=of) if leads else []
        return self._renderer.page(
            request,
            "project.html",
            name=account,
            trend=trend,
            users=users,
            leads=leads,
            least=viewer.least_users,
            budget=self._budgets.of(viewer, named),
            pace_days=PACE_DAYS,
            own=viewer.own_nodes(named, self._nodes.get(named, ())),
        )

    @for_whom("viewer")
    def reports(self, request: Request) -> Response:
        """Show a month by project, with method and coverage."""
        viewer: Viewer = request.state.viewer
        choices = months_before(viewer.now, 12)
        month = request.query_params.get("month", choices[0])
        return self._renderer.page(
            request, "reports.html", report=report_of_month(viewer, month), choices=choices
        )

    @for_whom("viewer")
    def report_file(self, request: Request) -> Response:
        """Return a month by project as a file."""
        month = request.path_params["month"]
        report = report_of_month(request.state.viewer, month)
        named = {"Content-Disposition": f'attachment; filename="lowtide-{report.month}.parquet"'}
        kind = "application/vnd.apache.parquet"
        return Response(report.parquet(), media_type=kind, headers=named)

    @for_whom("viewer")
    def cluster(self, request: Request) -> Response:
        """Show the power now, what it adds up to, and the grid."""
        viewer: Viewer = request.state.viewer
        courses = viewer.cluster_courses()
        names = [each["name"] for each in viewer.nodes()]
        day = viewer.grid_course(names[0], start=viewer.now - DAY_S) if names else None
        ahead = grid_ahead(viewer, names[0] if names else None, 0.0)
        return self._renderer.page(
            request,
            "cluster.html",
            now=None if courses is None else cluster_now(courses),
            nodes=len(names),
            told=sum(len(each) > 0 for each in (courses or {}).values()),
            least=viewer.least_users,
            queue=viewer.queue(),
            grid=[] if day is None else panels(day, GRID_PANELS),
            ahead=ahead and ahead_panel(ahead),
            source=ahead and ahead.source,
        )

    @for_whom("staff")
    def health(self, request: Request) -> Response:
        """Show which nodes are silent, late or not believed."""
        viewer: Viewer = request.state.viewer
        health = viewer.health()
        nodes = sorted(
            viewer.nodes(), key=lambda each: (each["name"] not in health["silent"], each["name"])
        )
        odd = [
            each for each in nodes if abs(each["skew_s"]) > 2.0 or each["name"] in health["silent"]
        ]
        return self._renderer.page(request, "health.html", health=health, odd=odd)

    @for_whom("staff")
    def audit(self, request: Request) -> Response:
        """Show who of the staff looked at whose jobs."""
        looks = request.state.viewer.all_looks()
        return self._renderer.page(request, "audit.html", looks=looks)

    @for_whom("viewer")
    def method(self, request: Request) -> Response:
        """Show how every number is made."""
        return self._renderer.page(
            request,
            "method.html",
            method=METHOD,
            budgets=BUDGET_METHOD,
            comparing=COMPARE_METHOD,
            idle=IDLE_METHOD,
            rules=RULES.values(),
        )

    @for_whom("viewer")
    def settings(self, request: Request) -> Response:
        """Show who I am, what I may see, and my tokens."""
        return self._settings(request, made="")

    def _settings(self, request: Request, *, made: str) -> Response:
        viewer: Viewer = request.state.viewer
        database = self._keeper.database
        return self._renderer.page(
            request,
            "settings.html",
            tokens=[
                each
                for each in list_tokens(viewer.seen, owner=viewer.user, now=viewer.now)
                if not each.shares
            ],
            links=links_of(viewer),
            mails=wants_mails(database, viewer.user),
            made=made,
            scopes=SCOPES,
            lasting=_TOKEN_DAYS,
            by_browser=request.state.shown.number is None,
        )

    @for_whom("viewer")
    async def make_token(self, request: Request) -> Response:
        """Make a token, and show it once."""
        form = await form_of(request)
        return await self._act(request, partial(self._make_token, request, form))

    def _make_token(self, request: Request, form: dict[str, str]) -> Response:
        viewer: Viewer = request.state.viewer
        scope, days = form.get("scope", ""), form.get("days", "")
        if scope not in SCOPES or days not in map(str, _TOKEN_DAYS):
            raise InvalidInput("a token is for one of the scopes, and for as long as the page says")
        made = make_token(
            self._keeper.database,
            owner=viewer.user,
            scope=scope,
            lasts_s=int(days) * DAY_S,
            now=viewer.now,
            note=form.get("note", ""),
        )
        return self._settings(request, made=made)

    @for_whom("viewer")
    async def take_back(self, request: Request) -> Response:
        """End a token."""
        viewer: Viewer = request.state.viewer
        number = request.path_params["number"]

        def end() -> Response:
            # Beyond what a database counts to there is no token.
            if number >= 2**63 or not take_back(self._keeper.database, number, owner=viewer.user):
                return self._renderer.nothing()
            return self._settings(request, made="")

        return await self._act(request, end)

    @for_whom("viewer")
    async def set_mails(self, request: Request) -> Response:
        """Note whether mails are wanted."""
        form = await form_of(request)
        viewer: Viewer = request.state.viewer

        def note() -> Response:
            wanted = form.get("mails") == "yes"
            set_mails(self._keeper.database, viewer.user, wanted=wanted, now=viewer.now)
            return self._settings(request, made="")

        return await self._act(request, note)

    async def _act(self, request: Request, do: Callable[[], Response]) -> Response:
        """Do what a form asks; a token is for reading, and cannot make others."""
        if request.state.shown.number is not None:
            return self._renderer.nothing()
        return await to_thread.run_sync(do)

    @for_whom("public")
    def ask_to_stop(self, request: Request) -> Response:
        """Ask whoever follows a mail's link whether they want no more: programs follow links."""
        shown = request.state.shown
        return self._renderer.plain(
            "stop.html",
            key=request.path_params["key"],
            form_key="" if shown is None else shown.form_key,
            stopped=None,
        )

    @for_whom("public")
    def stop(self, request: Request) -> Response:
        """Write to somebody no more."""
        key, now = request.path_params["key"], self._keeper.clock()
        stopped = stop_mails(self._keeper.database, key, now=now)
        return self._renderer.plain("stop.html", key="", form_key="", stopped=stopped)
