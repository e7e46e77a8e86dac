"""The gate: who comes to which door, and what every answer wears.

Every route says for whom it is, and a server with one that does not say so refuses to start. The
gate finds out who asks before any route is run, and gives each answer the headers that keep
browsers from doing what no page of ours asks of them.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lowtide.errors import InvalidInput, Refused, StoreProblem
from lowtide.monitor.exporter import load_token
from lowtide.serve.login import known_name
from lowtide.serve.people import rights_of
from lowtide.serve.rate_limit import Pace
from lowtide.serve.settings import SOCKET, Settings
from lowtide.serve.tokens import (
    IDLE_S,
    READ_ALL,
    READ_OWN,
    READ_PROJECT,
    SHARE,
    Pass,
    begin_session,
    end_session,
    read_session,
    read_token,
)
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database

# For everybody; for those who are known; for those who see all; for nodes; for whoever has a link
# to one job.
Audience = Literal["public", "viewer", "staff", "node", "link"]
AUDIENCES: tuple[Audience, ...] = ("public", "viewer", "staff", "node", "link")
_SAFE = ("GET", "HEAD")
# What a proxy shows to be believed.
PROOF = "x-lowtide-secret"
# A name or an address, and a port: whatever else stands there would be in addresses that we make.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@]+)(:[0-9]{1,5})?", re.IGNORECASE)
_MOST_FORM_BYTES = 10_000
_RETRY_S = 30
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # Told to nobody else; to nobody at all, and browsers would send forms from the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def for_whom(audience: Audience) -> Callable[[_Endpoint], _Endpoint]:
    """Say for whom a route is."""

    def say(endpoint: _Endpoint) -> _Endpoint:
        endpoint.audience = audience  # type: ignore[attr-defined]
        return endpoint

    return say


def audience_of(route: BaseRoute) -> Audience | None:
    """Return for whom a route is; None where nobody said."""
    of = route.app if isinstance(route, Mount) else getattr(route, "endpoint", None)
    found = getattr(of, "audience", None)
    return found if found in AUDIENCES else None


def check_audiences(routes: Iterable[BaseRoute]) -> None:
    """Refuse routes that do not say for whom they are."""
    for route in routes:
        if audience_of(route) is None:
            raise InvalidInput(
                f"every route says for whom it is, and {getattr(route, 'path', route)} does not"
            )


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """Finds out who asks.

    Attributes:
        database: The centre.
        owner: Who sees everything, on a machine of one's own; empty for a cluster's centre.
        clock: Says what time it is, epoch seconds.
    """

    database: Database
    settings: Settings
    owner: str = ""
    clock: Callable[[], float] = time.time

    @property
    def cookie(self) -> str:
        """What the cookie of a session is called: browsers guard the first of these names."""
        return "__Host-lowtide" if self.settings.is_encrypted else "lowtide"

    @property
    def login_cookie(self) -> str:
        """What the cookie is called that a browser carries while it logs in elsewhere."""
        return f"{self.cookie}-login"

    def shown(self, scope: Scope, *, now: float) -> Pass | None:
        """Return what somebody shows: a token, or else a session."""
        headers = Headers(scope=scope)
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind:
            is_token = kind.lower() == "bearer"
            return read_token(self.database, token.strip(), now=now) if is_token else None
        key = self.session_key(headers)
        found = read_session(self.database, key, now=now) if key else None
        said = None if found is None else self.proxied(scope)
        # Who is somebody else to the proxy by now is not who began the session.
        return None if found is not None and said not in (None, found.owner) else found

    def session_key(self, headers: Headers) -> str:
        """Return what a browser shows of its session."""
        return self.cookie_value(headers, self.cookie)

    def cookie_value(self, headers: Headers, name: str) -> str:
        """Return what a cookie holds; empty where there is none."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def set_cookie(self, response: Response, name: str, value: str, *, lasts_s: float) -> None:
        """Give a browser a cookie that no script and no other site gets at."""
        response.set_cookie(
            name,
            value,
            max_age=int(lasts_s),
            httponly=True,
            secure=self.settings.is_encrypted,
            samesite="lax",
        )

    def let_in(self, headers: Headers, owner: str) -> Response:
        """Begin a session of somebody who has proved who they are."""
        # What a browser came with is ended: nobody can have set it for them.
        if old := self.session_key(headers):
            end_session(self.database, old)
        response = RedirectResponse("/", status_code=303)
        key = begin_session(self.database, owner, now=self.clock())
        self.set_cookie(response, self.cookie, key, lasts_s=IDLE_S)
        return response

    def is_proxy(self, scope: Scope) -> bool:
        """Return whether somebody comes by the site's proxy: by a socket, or from its address."""
        client = scope.get("client")
        return self.settings.proxy == (SOCKET if client is None else client[0])

    def address(self, scope: Scope) -> str:
        """Return from where somebody comes; what they say of it themselves is not believed."""
        if self.is_proxy(scope):
            # The last is what the proxy has seen.
            told = Headers(scope=scope).getlist("x-forwarded-for")
            if found := ",".join(told).rpartition(",")[2].strip():
                return found[:64]
        client = scope.get("client")
        return str(client[0]) if client else ""

    def proxied(self, scope: Scope) -> str | None:
        """Return who the site's proxy says that somebody is; None where it says nothing."""
        wanted = self.settings.proxy_login
        if not wanted.header or not self.is_proxy(scope):
            return None
        headers = Headers(scope=scope)
        secret, names = headers.getlist(PROOF), headers.getlist(wanted.header)
        if len(secret) != 1 or len(names) != 1:
            return None
        known = load_token(Path(wanted.secret_file))
        if not hmac.compare_digest(secret[0].encode(), known.encode()):
            return None
        try:
            return known_name(names[0].strip())
        except Refused:
            return None

    def viewer(self, shown: Pass, *, now: float) -> Viewer | None:
        """Return who looks; None where what was shown is no leave to."""
        if shown.scope not in ("", READ_OWN, READ_PROJECT, READ_ALL):
            return None
        if self.owner and shown.owner == self.owner:
            return Viewer(self.database, self.owner, Rights(role="owner"), now)
        visibility = self.settings.project_visibility
        rights = rights_of(self.database, shown.owner, visibility=visibility)
        if shown.scope == READ_OWN:
            rights = Rights(knows=rights.leads)
        elif shown.scope == READ_PROJECT:
            rights = Rights(leads=rights.leads, member=rights.member)
        return Viewer(
            self.database,
            shown.owner,
            rights,
            now,
            least_users=self.settings.least_users,
            opens_totals=self.settings.cluster_totals == "all",
        )

    def linked(self, key: str, *, now: float) -> tuple[Pass, Viewer] | None:
        """Return what a link is, and who looks by it: its maker, at that job and nothing else.

        What its maker may see of others is nothing here. Whose job it no longer is, it shows
        nothing of.
        """
        found = None
        if self.settings.share_links:
            found = read_token(self.database, key, now=now, kinds=(SHARE,))
        if found is None:
            return None
        ref = found.scope.removeprefix(SHARE)
        return found, Viewer(self.database, found.owner, Rights(), now, only=ref)


class Gate:
    """Stands before all routes.

    Args:
        app: What answers.
        routes: Its routes, which say for whom they are.
        hosts: Under which names this is known; another is no name of ours.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: list[BaseRoute],
        keeper: Doorkeeper,
        hosts: frozenset[str],
        refuse: Callable[[Scope, int], Response],
    ) -> None:
        check_audiences(routes)
        self._app = app
        self._routes = routes
        self._keeper = keeper
        self._hosts = hosts
        self._refuse = refuse
        self._pace = Pace(keeper.settings.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def dressed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if self._keeper.settings.is_encrypted:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
                if "server" in headers:
                    del headers["server"]
            await send(message)

        try:
            answer = await self._stopped(scope, receive)
            if isinstance(answer, Response):
                await answer(scope, receive, dressed)
            else:
                await self._app(scope, answer, dressed)
        except StoreProblem:
            if not begun:
                response = self._refuse(scope, 503)
                response.headers["Retry-After"] = str(_RETRY_S)
                await response(scope, receive, dressed)
        except Exception:
            if not begun:
                await self._refuse(scope, 500)(scope, receive, dressed)
            raise

    async def _stopped(self, scope: Scope, receive: Receive) -> Response | Receive:
        """Return why a request goes no further, or else what it is read by."""
        headers = Headers(scope=scope)
        host = _HOST.fullmatch(headers.get("host", ""))
        if host is None or host[1].strip("[]").lower() not in self._hosts:
            return self._refuse(scope, 421)
        audience, named = self._door(scope)
        if audience is None:
            return self._refuse(scope, 404)
        if _has_nul(scope.get("query_string", b"")):
            return self._refuse(scope, 400)
        now = self._keeper.clock()
        state = scope.setdefault("state", {})
        shown = await to_thread.run_sync(partial(self._keeper.shown, scope, now=now))
        state["shown"] = shown
        who: Hashable = shown and (shown.number or shown.owner)
        if who and (stopped := self._too_often(scope, who)):
            return stopped
        if audience == "link":
            linked = await to_thread.run_sync(partial(self._keeper.linked, named["key"], now=now))
            # Each link has a pace of its own, and so has each address that guesses.
            who = ("guess", self._keeper.address(scope)) if linked is None else linked[0].number
            if stopped := self._too_often(scope, who):
                return stopped
            if linked is None:
                return self._refuse(scope, 404)
            # Nothing but the link is looked at: whoever comes sees the same.
            state["shown"], state["viewer"] = linked
            return receive
        if scope["method"] not in _SAFE and audience != "node":
            # Who logs in may have an old session, and no form of it.
            session = None if audience == "public" else shown
            read_by = await self._is_forged(headers, session, receive)
            if read_by is None:
                return self._refuse(scope, 403)
            receive = read_by
        if audience == "public":
            return receive
        if shown is None:
            return self._refuse(scope, 401)
        if audience == "node":
            return receive if shown.scope.startswith("ingest") else self._refuse(scope, 404)
        viewer = await to_thread.run_sync(partial(self._keeper.viewer, shown, now=now))
        if viewer is None or (audience == "staff" and not viewer.sees_all):
            return self._refuse(scope, 404)
        state["viewer"] = viewer
        return receive

    def _is_ours(self, origin: str) -> bool:
        """Return whether a page that sends a form is one of this server's."""
        try:
            return urlsplit(origin).hostname in self._hosts
        except ValueError:
            return False

    def _too_often(self, scope: Scope, who: Hashable) -> Response | None:
        """Return what somebody is told who asks too often; None where they do not."""
        wait_s = self._pace.wait_s(who)
        if not wait_s:
            return None
        response = self._refuse(scope, 429)
        response.headers["Retry-After"] = str(math.ceil(wait_s))
        return response

    def _door(self, scope: Scope) -> tuple[Audience | None, Mapping[str, Any]]:
        """Return for whom is what is asked for, None where nothing is there; and what is named."""
        path = scope["path"]
        raw = scope.get("raw_path", b"").decode("latin-1").lower()
        # What would be another place after one more reading is none of ours.
        if "//" in path or "/../" in f"{path}/" or "%2f" in raw or "%5c" in raw or "\0" in path:
            return None, {}
        for route in self._routes:
            try:
                match, found = route.matches(scope)
            except ValueError:
                # A number of more figures than Python reads is that of nothing.
                return None, {}
            if match is Match.FULL:
                return audience_of(route), found.get("path_params", {})
        return None, {}

    async def _is_forged(
        self, headers: Headers, shown: Pass | None, receive: Receive
    ) -> Receive | None:
        """Return what a form is read by once it has brought its key; None where it has not."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return None
        if (origin := headers.get("origin")) is not None and not self._is_ours(origin):
            return None
        if shown is None or shown.number is not None:
            # No browser shows a token by itself.
            return receive
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > _MOST_FORM_BYTES or _has_nul(body):
                return None
        form = parse_qs(body.decode("utf-8", "replace"))
        if form.get("form_key") != [shown.form_key]:
            return None
        told = False

        async def again() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        return again


def _has_nul(said: bytes) -> bool:
    """Return whether a question or a form holds what no text of a database may."""
    return b"%00" in said or b"\0" in said
