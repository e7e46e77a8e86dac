"""Asking a provider over HTTP: bounded in time and size, and no key in any message."""

from __future__ import annotations

import http.client
import ipaddress
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.errors import FormatError, InvalidInput, ProviderProblem
from lowtide.units import format_hours

if TYPE_CHECKING:
    from lowtide.formats.signals import Series, Wish

TIMEOUT_S = 10.0
# A year of five-minute values is 8 MB; more than this is no answer to any question of ours.
_LARGEST_BYTES = 16 * 2**20
_PIECE_BYTES = 2**16
_LONGEST_WORDS = 160
# Whoever asks for more patience than this is asked again anyway.
LONGEST_WAIT_S = 3600.0
_HIDDEN = "***"


class _StayThere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the key to wherever it leads."""

    def redirect_request(self, *_: Any) -> None:
        """Return that there is nothing to follow."""


def get(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """Return what an address answers.

    Args:
        url: The address; with secrets it is an https one, or on this machine.
    """
    where = place_of(url)
    _check_address(url, secrets)
    try:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            url, headers={"Accept": "application/json", "User-Agent": "lowtide", **(headers or {})}
        )
        opener = urllib.request.build_opener(_StayThere())
        deadline = time.monotonic() + timeout_s
        with opener.open(request, timeout=timeout_s) as answer:
            return _read(answer, where, deadline)
    except ProviderProblem:
        raise
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error, where, secrets) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # A timeout of the connection comes wrapped, one while reading does not.
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            raise ProviderProblem(
                f"{where} does not answer within {format_hours(timeout_s)}"
            ) from None
        words = getattr(reason, "strerror", None) or type(reason).__name__
        raise ProviderProblem(f"{where} cannot be reached: {words}") from None


def get_json(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Return the JSON that an address answers with."""
    data = get(url, headers=headers, secrets=secrets, timeout_s=timeout_s)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ProviderProblem(f"{place_of(url)} answers with what is no JSON") from None


def read_series(data: bytes, wish: Wish, *, url: str, form: str) -> Series:
    """Find times and values in an answer, with the reader that knows files of the same form."""
    # Reading brings polars along, which a watcher that finds its cache fresh can do without.
    from lowtide.formats.signals import FORMATS
    from lowtide.formats.source import Source

    source = Source(path=Path(place_of(url)), data=data)
    if not data.strip() or _is_empty(source.document):
        raise ProviderProblem(f"{place_of(url)} has no values for what was asked")
    try:
        return FORMATS.load(form).series(source, wish)
    except (AttributeError, KeyError, TypeError) as error:
        raise FormatError(
            f"the answer is not built as expected ({type(error).__name__})", path=source.path
        ) from None


def place_of(url: str) -> str:
    """Return host and path of an address: what may stand in a message.

    >>> place_of("https://ada:secret@example.org/v3/latest?zone=DE")
    'example.org/v3/latest'
    """
    parts = urllib.parse.urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check_address(url: str, secrets: Sequence[str]) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(
            f"a provider's address begins with https:// and names a host, unlike {place_of(url)!r}"
        )
    if secrets and parts.scheme == "http" and not _is_here(parts.hostname):
        raise InvalidInput(
            f"{place_of(url)} would get the key unencrypted: use an https:// address"
        )


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(answer: http.client.HTTPResponse, where: str, deadline: float) -> bytes:
    """Return the body; a server that sends a byte at a time does not hold us up for ever."""
    pieces, size = [], 0
    while piece := answer.read1(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > _LARGEST_BYTES:
            raise ProviderProblem(f"{where} answers with more than {_LARGEST_BYTES // 2**20} MB")
        if time.monotonic() > deadline:
            raise TimeoutError
    if answer.length:
        raise ProviderProblem(f"{where} broke off in the middle of its answer")
    return b"".join(pieces)


def _refused(error: urllib.error.HTTPError, where: str, secrets: Sequence[str]) -> ProviderProblem:
    said = _words(error, secrets)
    wait_s = _wait(error.headers.get("Retry-After"))
    if error.code == HTTPStatus.UNAUTHORIZED:
        rule = "does not accept the key"
    elif error.code == HTTPStatus.FORBIDDEN:
        rule = "does not show this with the key there is"
    elif error.code == HTTPStatus.TOO_MANY_REQUESTS:
        rule = "has been asked too often"
    elif error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
        rule = "does not know what was asked for: check the zone's name"
    elif 300 <= error.code < 400:
        rule = "sends us elsewhere, which is not followed: set the address it has moved to"
    else:
        rule = "is out of order"
    wait = f"; it asks to wait {format_hours(wait_s)}" if wait_s else ""
    return ProviderProblem(f"{where} {rule} (HTTP {error.code}{said}){wait}", wait_s=wait_s)


def _words(error: urllib.error.HTTPError, secrets: Sequence[str]) -> str:
    """Return what the provider says of its refusal, short and without any key."""
    try:
        document = json.loads(error.read(_PIECE_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return ""
    said = document
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    if not isinstance(said, str):
        return ""
    for secret in secrets:
        said = said.replace(secret, _HIDDEN)
    plain = re.sub(r"[^\x21-\x7e]+", " ", said).strip()
    return f", {plain[:_LONGEST_WORDS]!r}" if plain else ""


def _wait(said: str | None) -> float:
    """Return the seconds of a Retry-After, which is a number or a date."""
    if not said:
        return 0.0
    try:
        wait_s = float(said)
    except ValueError:
        try:
            until = parsedate_to_datetime(said)
        except ValueError:
            return 0.0
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        wait_s = (until - datetime.now(UTC)).total_seconds()
    return min(wait_s, LONGEST_WAIT_S) if math.isfinite(wait_s) and wait_s > 0 else 0.0


def _is_empty(document: Any) -> bool:
    """Return whether an answer is one without any value."""
    if isinstance(document, list):
        return all(_is_empty(each) for each in document)
    if not isinstance(document, dict):
        return False
    held = [document[key] for key in ("data", "history", "forecast") if key in document]
    return bool(held) and all(each is None or _is_empty(each) for each in held)
