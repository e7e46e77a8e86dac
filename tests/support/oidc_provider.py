"""A small provider of identities, on loopback, that can be made to misbehave."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "centre"
CLIENT_SECRET = "a-secret-between-the-two"


@dataclass
class IdentityProvider:
    """Who proves identities.

    Attributes:
        claims: What it says of whoever comes, besides what every token has.
        alters: Changes to the claims of a token before it is signed; None takes one away.
        signs: By which algorithm; `none` leaves the signature out.
        key: What it signs with, and publishes.
        signing_key: What it signs with though it publishes another.
    """

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"preferred_username": "ada"})
    alters: dict[str, Any] = field(default_factory=dict)
    signs: str = "RS256"
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "1"}))
    signing_key: RSAKey | None = None
    described: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def description(self) -> dict[str, Any]:
        places = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "jwks_uri": "keys",
        }
        found = {name: f"{self.issuer}/{path}" for name, path in places.items()}
        return {"issuer": self.issuer, **found, **self.described}

    def authorize(self, query: str) -> str:
        """Let the browser's owner in, and return where it is sent back to."""
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, body: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Exchange a code."""
        form = {name: values[0] for name, values in parse_qs(body).items()}
        pair = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {pair}":
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form.get("redirect_uri") != asked["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer, "sub": "4711", "aud": CLIENT_ID, "iat": now, "exp": now + 300,
            "nonce": asked["nonce"], **self.claims, **self.alters,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self._signed(claims)}

    def _signed(self, claims: dict[str, Any]) -> str:
        if self.signs in ("none", "HS256"):
            head = {"alg": self.signs, "typ": "JWT", "kid": self.key.kid}
            body = ".".join(_packed(json.dumps(part).encode()) for part in (head, claims))
            if self.signs == "none":
                return f"{body}."
            # What is public is taken for a secret that is shared.
            public = self.key.as_pem(private=False)
            return f"{body}.{_packed(hmac.digest(public, body.encode(), 'sha256'))}"
        key = self.signing_key or self.key
        return jwt.encode({"alg": self.signs, "kid": key.kid}, claims, key)


def _packed(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


class _Asked(BaseHTTPRequestHandler):
    server: _Serving

    def do_GET(self) -> None:
        provider = self.server.provider
        parts = urlsplit(self.path)
        provider.asked.append(parts.path)
        if parts.path == "/authorize":
            self.send_response(303)
            self.send_header("Location", provider.authorize(parts.query))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts.path == "/keys":
            self._answer(200, {"keys": [provider.key.as_dict(private=False)]})
        else:
            self._answer(200, provider.description())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer(*self.server.provider.token(body, self.headers.get("Authorization", "")))

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class _Serving(ThreadingHTTPServer):
    provider: IdentityProvider


@contextmanager
def running_provider() -> Iterator[IdentityProvider]:
    """Run a provider."""
    server = _Serving(("127.0.0.1", 0), _Asked)
    server.provider = IdentityProvider(issuer=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
