"""The server put together: the API, the pages and the door for nodes, behind one gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from lowtide.errors import LowtideError, StoreProblem
from lowtide.serve.api import ENDPOINTS, NOT_FOUND, answer
from lowtide.serve.budgets import Budgets
from lowtide.serve.gate import Doorkeeper, Gate, for_whom
from lowtide.serve.group_commit import GroupCommit
from lowtide.serve.guards import for_ingest
from lowtide.serve.ingest import Arrival, PieceOrigin
from lowtide.serve.login_routes import LoginRoutes
from lowtide.serve.metrics_proxy import Upstream
from lowtide.serve.openapi import description, responses_of
from lowtide.serve.overview import WasteBook
from lowtide.serve.overview_pages import OverviewPages
from lowtide.serve.pages import Pages
from lowtide.serve.rendering import Renderer
from lowtide.serve.tokens import Pass, take_back
from lowtide.store.pieces import MOST_PACKED_BYTES

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_LONGEST_NAME = 64
# When to ask again of a store that does not answer.
RETRY_S = 30
# What is said to those who are turned away; the same whatever they asked for.
_WORDS = {
    400: "what was asked cannot be understood",
    401: "log in first",
    403: "this form did not come from a page of this server: open the page again",
    404: NOT_FOUND["error"],
    405: NOT_FOUND["error"],
    429: "you ask too often: wait as long as the answer says",
    421: "this server goes by another name",
    500: "an error of lowtide's own; the server's log has it",
    503: "the store does not answer: try again in a while",
}


def make_app(keeper: Doorkeeper, *, hosts: frozenset[str] = LOOPBACK) -> ASGIApp:
    """Return the server.

    Args:
        keeper: Knows who asks, and where everything is.
        hosts: Under which names it is known.
    """
    renderer = Renderer()
    doors = LoginRoutes(keeper, renderer.login)

    def refuse(scope: Scope, status: int) -> Response:
        return say(scope, _WORDS.get(status, _WORDS[400]), 404 if status == 405 else status)

    def say(scope: Scope, words: str, status: int) -> Response:
        """Tell a program, or a person on a page, why there is nothing else."""
        if scope["path"].startswith(("/api/", "/ingest/", "/login/", "/prometheus/")):
            response = answer({"error": words}, status=status)
            if status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response
        return doors.page(words, status) if status == 401 else renderer.refusal(words, status)

    def misasked(request: Request, error: Exception) -> Response:
        return say(request.scope, str(error), 400)

    def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 400
        return refuse(request.scope, status)

    def come_again(request: Request, _error: Exception) -> Response:
        # Here and not at the gate: what leaves the app has been answered with 500 by then.
        response = refuse(request.scope, 503)
        response.headers["Retry-After"] = str(RETRY_S)
        return response

    app = FastAPI(
        title="lowtide",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.waste = book = WasteBook(keeper.settings.exempt)
    app.state.budgets = Budgets(keeper.settings)
    app.add_exception_handler(LowtideError, misasked)
    app.add_exception_handler(StoreProblem, come_again)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, _misasked)
    for path, endpoint in ENDPOINTS.items():
        app.add_api_route(
            path, endpoint, methods=["GET"], response_model=None, responses=responses_of(path)
        )

    @for_whom("viewer")
    def described(_request: Request) -> Response:
        return answer(description(app.openapi()))

    @for_whom("viewer")
    def end_token(request: Request) -> Response:
        shown: Pass = request.state.shown
        if shown.number is None:
            return answer(NOT_FOUND, status=404)
        take_back(keeper.database, shown.number, owner=shown.owner)
        return answer({"ended": True})

    routes: list[BaseRoute] = [
        Route("/api/v1/token", end_token, methods=["DELETE"]),
        Route("/api/v1/openapi.json", described),
        Route(
            "/ingest/v1/{cluster}/{host}/{incarnation}/{seq:int}",
            _door(keeper),
            methods=["PUT"],
        ),
        *doors.routes(),
        *Pages(keeper, renderer, book).routes(),
        *OverviewPages(keeper, renderer, book).routes(),
    ]
    static = StaticFiles(
        directory=Path(__file__).parent / "static", packages=[("lowtide.page", "style")]
    )
    static.audience = "public"  # type: ignore[attr-defined]
    routes.append(Mount("/static", static))
    if keeper.settings.prometheus:
        settings = keeper.settings
        upstream = Upstream(
            settings.prometheus,
            settings.prometheus_label,
            frozenset(settings.prometheus_labels) | {settings.prometheus_label, "__name__"},
            settings.prometheus_days * 86400.0,
        )
        routes += upstream.routes()
    app.router.routes += routes
    return Gate(app, routes=app.router.routes, keeper=keeper, hosts=hosts, refuse=refuse)


def _misasked(_request: Request, error: Exception) -> Response:
    """Say what of a question cannot be understood, as everything else that cannot be is told."""
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    words = (f"{each['loc'][-1]}: {each['msg'][:1].lower()}{each['msg'][1:]}" for each in found)
    return answer({"error": "; ".join(words)}, status=400)


def _door(keeper: Doorkeeper) -> Callable[[Request], Awaitable[Response]]:
    """Return the door for nodes."""
    together = GroupCommit(for_ingest(keeper.database), keeper.clock)

    @for_whom("node")
    async def take(request: Request) -> Response:
        named = request.path_params
        scope = request.state.shown.scope
        kind, _, of = scope.partition(":")
        if of != f"{named['cluster']}/{named['host']}" or not _is_name(named["incarnation"]):
            return answer(NOT_FOUND, status=404)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MOST_PACKED_BYTES:
                return answer(
                    {"error": f"a piece has at most {MOST_PACKED_BYTES} bytes"}, status=413
                )
        sender = PieceOrigin(
            cluster=named["cluster"],
            host=named["host"],
            incarnation=named["incarnation"],
            seq=named["seq"],
            tells_all=kind == "ingest+facts",
        )
        told = await together.take(Arrival(sender, bytes(body)))
        document = {"seq": told.seq, "set_aside": told.reason}
        return answer(document, status=200 if told.taken else 409)

    return take


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and text.isascii() and text.isalnum()
