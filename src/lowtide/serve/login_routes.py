"""The doors by which people come in, each where the site has opened it, and a page that names them.

Whoever fails is told no more than that, no sooner than after a while, and not often: nobody learns
here which users there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from lowtide.errors import InvalidInput, Refused, Unreachable
from lowtide.monitor.exporter import load_token
from lowtide.serve.api import answer
from lowtide.serve.gate import Doorkeeper, for_whom
from lowtide.serve.login import (
    MOST_BEGUN,
    MOST_BYTES,
    MOST_FAILED,
    WINDOW_S,
    challenge,
    check_password,
    count_try,
    forget_tries,
    make_reading_token,
    prove,
)
from lowtide.serve.login_links import confirm_link, make_link
from lowtide.serve.settings import read_secret
from lowtide.serve.tokens import make_token, use_once

if TYPE_CHECKING:
    from lowtide.serve.oidc import Provider

# Who fails is told so no sooner than this, so that the time tells nothing either.
FAILED_S = 1.0
_TOO_OFTEN = f"too many tries: wait {WINDOW_S / 60:.0f} minutes"
# So many passwords are looked at together: each takes a process.
_AT_ONCE = 4
# Where who proves identities sends browsers back to, and how long somebody may take there.
BACK = "/login/oidc/back"
_ATTEMPT_S = 600.0
_OIDC = "oidc"
Render = Callable[..., Response]


class LoginRoutes:
    """The doors of a server.

    Args:
        keeper: Knows who asks, and where everything is.
        render: Makes the page on which people choose a door, from `words` and `status`.
    """

    def __init__(self, keeper: Doorkeeper, render: Render) -> None:
        self._keeper = keeper
        self._render = render
        self._limiter: CapacityLimiter | None = None
        # What is wrong with a secret is said at once, not to the first who comes.
        settings = keeper.settings
        if settings.proxy_login.secret_file:
            load_token(Path(settings.proxy_login.secret_file))
        if settings.oidc.client_secret_file:
            read_secret(settings.oidc.client_secret_file)

    @cached_property
    def _provider(self) -> Provider:
        # It brings much along that most centres can do without.
        from lowtide.serve.oidc import Provider

        settings = self._keeper.settings
        return Provider(settings.oidc, settings.url.rstrip("/") + BACK)

    def routes(self) -> list[Route]:
        """Return those doors that are open here."""
        settings = self._keeper.settings
        found = [Route("/login", self.choose)]
        if settings.munge:
            found += [
                Route("/login/challenge", self.begin_munge, methods=["POST"]),
                Route("/login/munge", self.end_munge, methods=["POST"]),
                Route("/login/link", self.end_link, methods=["POST"]),
            ]
        if settings.pam:
            found.append(Route("/login/password", self.password, methods=["POST"]))
        if settings.oidc.issuer:
            found += [Route("/login/oidc", self.begin_oidc), Route(BACK, self.end_oidc)]
        if settings.proxy_login.header:
            found.append(Route("/login/proxy", self.proxy))
        return found

    def page(self, words: str, status: int) -> Response:
        """Return the page on which people choose a door."""
        return self._render(words=words, status=status, settings=self._keeper.settings)

    @for_whom("public")
    def choose(self, _request: Request) -> Response:
        """Show the doors."""
        return self.page("", 200)

    @for_whom("public")
    async def begin_munge(self, request: Request) -> Response:
        """Give a number that munge is to seal."""
        now = self._keeper.clock()
        if not await self._may(("begin " + self._from(request),), MOST_BEGUN):
            return _later()
        number = await to_thread.run_sync(partial(challenge, self._keeper.database, now=now))
        return answer({"url": self._keeper.settings.url, "challenge": number})

    @for_whom("public")
    async def end_munge(self, request: Request) -> Response:
        """Let in who has sealed it: by a link for a browser, or by a token for programs."""
        body = await _body(request)
        if body is None:
            return answer({"error": "that is no credential of munge's"}, status=413)
        address = "munge " + self._from(request)
        if not await self._may((address,), MOST_BEGUN):
            return _later()
        database, settings = self._keeper.database, self._keeper.settings
        text, now = body.decode("ascii", "replace").strip(), self._keeper.clock()
        try:
            user = await to_thread.run_sync(partial(prove, database, settings, text, now=now))
        except Refused as error:
            return answer({"error": str(error)}, status=401)
        except (InvalidInput, Unreachable) as error:
            return answer({"error": str(error)}, status=503)
        if request.query_params.get("token"):
            token = await to_thread.run_sync(partial(make_reading_token, database, user, now=now))
            return answer({"user": user, "token": token})
        link, confirm = await to_thread.run_sync(partial(make_link, database, user, now=now))
        return answer({"user": user, "link": link, "confirm": confirm})

    @for_whom("public")
    async def end_link(self, request: Request) -> Response:
        """Take the code that a browser shows, from where its link was asked for."""
        body = await _body(request)
        if not await self._may(("begin " + self._from(request),), MOST_BEGUN):
            return _later()
        confirm, _, code = (body or b"").decode("ascii", "replace").partition(" ")
        take = partial(confirm_link, self._keeper.database, confirm, code)
        if not await to_thread.run_sync(partial(take, now=self._keeper.clock())):
            words = "that is not the code, or nobody has opened the link, or it is too old"
            return answer({"error": words}, status=401)
        return answer({"confirmed": True})

    @for_whom("public")
    async def password(self, request: Request) -> Response:
        """Let in who knows a password."""
        body = await _body(request)
        form = parse_qs((body or b"").decode("utf-8", "replace"), keep_blank_values=True)
        name, password = (form.get(each, [""])[0] for each in ("user", "password"))
        begun = anyio.current_time()
        counted = ("user " + name[:100].lower(), "address " + self._from(request))
        if not await self._may(counted, MOST_FAILED):
            return self.page(_TOO_OFTEN, 429)
        if self._limiter is None:
            self._limiter = CapacityLimiter(_AT_ONCE)
        try:
            user = await to_thread.run_sync(
                partial(check_password, self._keeper.settings, name, password),
                limiter=self._limiter,
            )
        except (Refused, Unreachable) as error:
            await anyio.sleep_until(begun + FAILED_S)
            return self.page(str(error), 401 if isinstance(error, Refused) else 503)
        # Not of the address: whoever knows one password could guess others from there for ever.
        await to_thread.run_sync(forget_tries, self._keeper.database, counted[0])
        return await self._let_in(request, user)

    @for_whom("public")
    async def begin_oidc(self, request: Request) -> Response:
        """Send a browser to who proves identities."""
        if not await self._may(("begin " + self._from(request),), MOST_BEGUN):
            return self.page(_TOO_OFTEN, 429)
        keeper, now = self._keeper, self._keeper.clock()
        make = partial(make_token, keeper.database, owner="", scope=_OIDC, lasts_s=_ATTEMPT_S)
        key = await to_thread.run_sync(partial(make, now=now))
        try:
            address = await to_thread.run_sync(self._provider.address, key)
        except Unreachable as error:
            return self.page(str(error), 503)
        response = RedirectResponse(address, status_code=303)
        keeper.set_cookie(response, keeper.login_cookie, key, lasts_s=_ATTEMPT_S)
        return response

    @for_whom("public")
    async def end_oidc(self, request: Request) -> Response:
        """Let in whom they have sent back."""
        if not await self._may(("begin " + self._from(request),), MOST_BEGUN):
            return self.page(_TOO_OFTEN, 429)
        keeper, now = self._keeper, self._keeper.clock()
        key = keeper.cookie_value(request.headers, keeper.login_cookie)
        asked = request.query_params
        given = {name: asked[name] for name in asked if len(asked.getlist(name)) == 1}
        use = partial(use_once, keeper.database, key, scope=_OIDC, now=now)
        if not key or await to_thread.run_sync(use) is None:
            return self.page("this login was not begun here, or took too long: try again", 401)
        try:
            user = await to_thread.run_sync(self._provider.user, key, given)
        except Refused as error:
            return self.page(str(error), 401)
        except Unreachable as error:
            return self.page(str(error), 503)
        return await self._let_in(request, user)

    @for_whom("public")
    async def proxy(self, request: Request) -> Response:
        """Let in whom a proxy of the site's says that it knows."""
        user = self._keeper.proxied(request.scope)
        if user is None:
            return self.page("no proxy of this site's says who you are", 401)
        return await self._let_in(request, user)

    async def _let_in(self, request: Request, user: str) -> Response:
        return await to_thread.run_sync(self._keeper.let_in, request.headers, user)

    async def _may(self, whose: Sequence[str], most: int) -> bool:
        count = partial(count_try, self._keeper.database, whose, now=self._keeper.clock())
        return await to_thread.run_sync(partial(count, most=most))

    def _from(self, request: Request) -> str:
        return self._keeper.address(request.scope)


async def _body(request: Request) -> bytes | None:
    """Return what was sent; None where it is too long for anything that is sent here."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            return None
    return body


def _later() -> Response:
    response = answer({"error": _TOO_OFTEN}, status=429)
    response.headers["Retry-After"] = f"{WINDOW_S:.0f}"
    return response
