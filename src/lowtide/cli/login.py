"""`lowtide login`: into the centre of a cluster, by munge and without a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.output import TABLE, Form, say

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

_TIMEOUT_S = 30.0
_MOST_BYTES = 65536


def login(
    url: Annotated[str, typer.Argument(help="Where the centre is.", metavar="URL")],
    token: Annotated[
        bool,
        typer.Option("--token", help="Print a token for programs instead of a link for a browser."),
    ] = False,
    socket: Annotated[
        str, typer.Option(help="Where munge listens, if elsewhere than usual.", metavar="PATH")
    ] = "",
    form: Form = TABLE,
) -> None:
    """Log in to a centre, and print a link that is good once.

    Who may run jobs on the cluster has proved to munge who they are, and needs no password.
    """
    import urllib.request
    from urllib.parse import urlsplit

    from lowtide.errors import InvalidInput
    from lowtide.serve.login import sealed, words_for

    parts = urlsplit(url)
    loopback = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise InvalidInput(f"a centre is named as https://HOST, not {url}")
    base = url.rstrip("/")

    class Straight(urllib.request.HTTPRedirectHandler):
        """Follows no redirection: what is sent is meant for this centre."""

        def redirect_request(self, *_: Any) -> None:
            return None

    opener = urllib.request.build_opener(Straight)
    asked = _ask(opener, f"{base}/login/challenge", b"")
    seal = sealed(words_for(str(asked["url"]), str(asked["challenge"])), socket)
    if str(asked["url"]).rstrip("/") not in (base, ""):
        raise InvalidInput(f"this centre goes by another name: lowtide login {asked['url']}")
    told = _ask(opener, f"{base}/login/munge" + "?token=1" * token, seal.encode())
    if not token:
        told["link"] = f"{base}/enter/{told['link']}"
    form.print([told], document=told, show=lambda: say(told["token" if token else "link"]))


def _ask(opener: OpenerDirector, url: str, body: bytes) -> dict[str, Any]:
    """Send something to a centre, and return what it says."""
    import http.client
    import json
    import urllib.error
    import urllib.request

    from lowtide.errors import Refused, Unreachable

    request = urllib.request.Request(url, data=body, method="POST")  # noqa: S310 - checked above
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            told = json.loads(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        try:
            why = json.loads(error.read(_MOST_BYTES))["error"]
        except (ValueError, KeyError, TypeError):
            why = f"it answers {error.code}"
        raise Refused(f"the centre does not let you in: {why}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"the centre does not answer: {error}") from None
    if not isinstance(told, dict):
        raise Unreachable("the centre does not answer as one of lowtide's")
    return told
