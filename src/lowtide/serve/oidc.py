"""Login by OpenID Connect: the code flow with PKCE, state and nonce.

What a browser carries is one random key, good once. State, nonce and verifier follow from it, so
that whoever brings an answer has to be the browser that asked, and nothing is kept that could be
stolen. Of the provider's tokens one claim is believed, the user's name, and one more where the site
names groups: what somebody is to another service is nothing to this one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowtide.centre.asking import ask, is_private
from lowtide.errors import MissingExtra, Refused, Unreachable
from lowtide.serve.login import known_name
from lowtide.serve.settings import OidcSettings, read_secret

try:
    from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
    from authlib.oauth2.rfc7636 import create_s256_code_challenge
    from authlib.oidc.core.claims import CodeIDToken
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet
except ImportError:
    raise MissingExtra("a login by OpenID Connect", extra="serve") from None

# Signatures of a key pair alone: a secret that is shared proves nothing, and none nothing at all.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "Ed25519", "EdDSA")
_TIMEOUT_S = 10.0
_LEEWAY_S = 60
# How long what a provider says of itself is believed, and how soon its keys are asked for again.
_DESCRIBED_S, _KEYS_S = 3600.0, 30.0


def _derived(key: str, what: str) -> str:
    made = hmac.new(key.encode(), what.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


@dataclass(slots=True)
class Provider:
    """Who proves identities.

    Attributes:
        settings: Who it is, and what this centre is called there.
        back: Where browsers are sent back to.
    """

    settings: OidcSettings
    back: str
    _described: tuple[float, dict[str, Any]] | None = field(default=None, init=False)
    _keys: tuple[float, dict[str, Any]] | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def address(self, key: str) -> str:
        """Return where a browser is sent to log in.

        Args:
            key: What the browser carries meanwhile.
        """
        challenge = create_s256_code_challenge(_derived(key, "verifier"))
        return str(
            prepare_grant_uri(
                self._endpoint("authorization_endpoint"),
                self.settings.client_id,
                "code",
                redirect_uri=self.back,
                scope="openid profile email",
                state=_derived(key, "state"),
                nonce=_derived(key, "nonce"),
                code_challenge=challenge,
                code_challenge_method="S256",
            )
        )

    def user(self, key: str, given: Mapping[str, str]) -> str:
        """Return who has logged in there.

        Args:
            key: What the browser has carried.
            given: What it was sent back with.
        """
        if not hmac.compare_digest(
            given.get("state", "").encode(), _derived(key, "state").encode()
        ):
            raise Refused("this login was not begun here: try again")
        if given.get("iss", self.settings.issuer) != self.settings.issuer:
            raise Refused("that answer comes from another provider")
        if not given.get("code"):
            raise Refused("the provider has let nobody in")
        answered = self._exchanged(given["code"], _derived(key, "verifier"))
        return self._named(self._claims(answered, _derived(key, "nonce")))

    def _exchanged(self, code: str, verifier: str) -> dict[str, Any]:
        """Return the tokens that a code stands for."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.back,
            "code_verifier": verifier,
        }
        headers = {}
        if self.settings.client_secret_file:
            pair = (self.settings.client_id, read_secret(self.settings.client_secret_file))
            words = ":".join(urllib.parse.quote(each, safe="") for each in pair)
            headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
        else:
            form["client_id"] = self.settings.client_id
        body = urllib.parse.urlencode(form).encode()
        return _asked(self._endpoint("token_endpoint"), body, headers)

    def _claims(self, answered: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """Return what the provider says of somebody, once it is sure that it says so to us."""
        token = answered.get("id_token")
        if not isinstance(token, str):
            raise Refused("the provider has sent no ID token")
        settings = self.settings
        try:
            try:
                read = jwt.decode(token, self._key_set(), algorithms=_ALGORITHMS)
            except (JoseError, ValueError):
                # It may have changed its keys since.
                read = jwt.decode(token, self._key_set(anew=True), algorithms=_ALGORITHMS)
            options = {
                "iss": {"essential": True, "value": settings.issuer},
                "aud": {"essential": True, "value": settings.client_id},
                "exp": {"essential": True},
            }
            known = {
                "nonce": nonce,
                "client_id": settings.client_id,
                "access_token": answered.get("access_token"),
            }
            claims = CodeIDToken(read.claims, read.header, options, known)
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(
                f"the provider's token is not good here: {type(error).__name__}"
            ) from None
        return dict(read.claims)

    def _named(self, claims: Mapping[str, Any]) -> str:
        """Return the user that claims are about; no more of them is looked at than is named."""
        settings = self.settings
        name = claims.get(settings.user_claim)
        if not isinstance(name, str) or not name.endswith(settings.user_suffix):
            raise Refused("the provider does not say who that is on this cluster")
        if settings.user_claim == "email" and claims.get("email_verified") is not True:
            raise Refused("the provider has not made sure whose address that is")
        if settings.groups_claim:
            groups = claims.get(settings.groups_claim)
            listed = groups if isinstance(groups, list) else []
            if not any(group in settings.groups for group in listed if isinstance(group, str)):
                raise Refused("this centre is for members of certain groups, and you are in none")
        return known_name(name.removesuffix(settings.user_suffix))

    def _endpoint(self, name: str) -> str:
        found = self._description().get(name)
        if not isinstance(found, str) or not is_private(found):
            raise Unreachable(f"the provider of identities names no safe {name}")
        return found

    def _description(self) -> dict[str, Any]:
        """Return what the provider says of itself."""
        with self._lock:
            if self._described is None or time.monotonic() - self._described[0] > _DESCRIBED_S:
                place = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
                document = _asked(place)
                if document.get("issuer") != self.settings.issuer:
                    raise Unreachable("the provider of identities goes by another name than issuer")
                self._described = time.monotonic(), document
            return self._described[1]

    def _key_set(self, *, anew: bool = False) -> KeySet:
        place = self._endpoint("jwks_uri")
        with self._lock:
            age_s = _DESCRIBED_S + 1 if self._keys is None else time.monotonic() - self._keys[0]
            # Nobody makes this ask more often by tokens that are none.
            if self._keys is None or age_s > _DESCRIBED_S or (anew and age_s > _KEYS_S):
                self._keys = time.monotonic(), _asked(place)
            return KeySet.import_key_set(self._keys[1])  # type: ignore[arg-type]


def _asked(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the document that a provider answers with."""
    status, document = ask(url, body=body, headers=headers, timeout_s=_TIMEOUT_S)
    if body is not None and status in (400, 401, 403):
        raise Refused("the provider does not take that login: try again")
    if status != 200 or not document:
        raise Unreachable(f"the provider of identities answers {status}")
    return document
