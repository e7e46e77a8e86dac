"""Asking over HTTP where secrets go along: to the address that is meant, and nowhere else."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lowtide.errors import Unreachable

_TIMEOUT_S = 30.0
_MOST_BYTES = 64 * 2**20
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would carry the secret to wherever it leads."""

    def redirect_request(self, *_: Any) -> None:
        """Return that there is nothing to follow."""


def is_private(url: str) -> bool:
    """Return whether nobody on the way can read what is sent to an address.

    >>> is_private("https://id.example.org"), is_private("http://id.example.org")
    (True, False)
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    encrypted = parts.scheme == "https"
    return bool(parts.hostname) and (
        encrypted or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    )


def ask(
    url: str,
    *,
    body: bytes | None = None,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the document that an address answers with.

    Args:
        url: The address; what is not private is not asked.
        body: What is sent; None for nothing.
        method: By default GET, and POST with a body.
    """
    where = urlsplit(url).netloc.rpartition("@")[2]
    if not is_private(url):
        raise Unreachable(f"{where or url} is not asked in the clear: name it as https://")
    given = {"Accept": "application/json", "User-Agent": "lowtide", **(headers or {})}
    request = urllib.request.Request(url, data=body, method=method, headers=given)  # noqa: S310
    opener = urllib.request.build_opener(_StayHere)
    try:
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                status, said = int(answer.status), answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                status, said = error.code, error.read(_MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unreachable(f"{where} does not answer: {reason}") from None
    if len(said) > _MOST_BYTES:
        raise Unreachable(f"{where} answers with more than anybody asked for")
    try:
        document = json.loads(said)
    except (ValueError, RecursionError):
        document = None
    return status, document if isinstance(document, dict) else {}
