"""Login by OpenID Connect, against a provider that misbehaves in each way others fell for."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from joserfc.jwk import RSAKey

from lowtide.errors import InvalidInput
from lowtide.serve.app import make_app
from lowtide.serve.gate import Doorkeeper
from lowtide.serve.settings import OidcSettings, Settings
from support.asking import Answered, Client
from support.oidc_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, running_provider
from support.pushed import CLUSTER, centre

URL = "http://127.0.0.1:8470"


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as made:
        yield made


@pytest.fixture(scope="module")
def running() -> Iterator[IdentityProvider]:
    with running_provider() as made:
        yield made


@pytest.fixture
def provider(running: IdentityProvider) -> Iterator[IdentityProvider]:
    usual = dict(vars(running))
    yield running
    vars(running).update(
        {**usual, "claims": {"preferred_username": "ada"}, "alters": {}, "described": {}}
    )


@pytest.fixture
def keeper(tmp_path: Path, provider: IdentityProvider) -> Iterator[Doorkeeper]:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(CLIENT_SECRET)
    oidc = OidcSettings(issuer=provider.issuer, client_id=CLIENT_ID, client_secret_file=str(secret))
    with centre(str(tmp_path / "centre.sqlite")) as database:
        yield Doorkeeper(database, Settings(cluster=CLUSTER, url=URL, oidc=oidc))


class _Surfer:
    """A browser that goes where it is sent, and carries the cookies that it was given."""

    def __init__(self, portal: BlockingPortal, keeper: Doorkeeper) -> None:
        self.client = Client(portal, make_app(keeper))
        self.cookies: dict[str, str] = {}

    def get(self, target: str) -> Answered:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = self.client.get(target, cookie=cookie or None)
        if said := answer.headers.get("set-cookie"):
            name, _, value = said.partition(";")[0].partition("=")
            self.cookies[name] = value
            assert "HttpOnly" in said
            assert "SameSite=lax" in said
        return answer

    def begin(self) -> str:
        """Begin to log in, and return where the provider sends back to."""
        answer = self.get("/login/oidc")
        assert answer.status == 303
        there = urlsplit(answer.headers["location"])
        connection = http.client.HTTPConnection(there.netloc, timeout=20.0)
        connection.request("GET", f"{there.path}?{there.query}")
        back = connection.getresponse().headers["Location"]
        connection.close()
        assert back.startswith(f"{URL}/login/oidc/back?")
        return str(back.removeprefix(URL))

    def who(self) -> str | None:
        answer = self.get("/api/v1/me")
        return answer.json()["user"] if answer.status == 200 else None


def _logged_in(portal: BlockingPortal, keeper: Doorkeeper) -> str | None:
    surfer = _Surfer(portal, keeper)
    answer = surfer.get(surfer.begin())
    found = surfer.who()
    assert (answer.status == 303) == (found is not None)
    assert answer.status in (303, 401)
    return found


def test_a_provider_lets_people_in(portal: BlockingPortal, keeper: Doorkeeper) -> None:
    assert _logged_in(portal, keeper) == "ada"


@pytest.mark.parametrize(
    "misbehave",
    [
        lambda one: one.alters.update(aud="another-service"),
        lambda one: one.alters.update(aud=["another-service", CLIENT_ID], azp="another-service"),
        lambda one: one.alters.update(aud=["another-service", CLIENT_ID]),
        lambda one: one.alters.update(iss="https://evil.example"),
        lambda one: one.alters.update(nonce="of-another-login"),
        lambda one: one.alters.update(nonce=None),
        lambda one: one.alters.update(exp=int(time.time()) - 3600),
        lambda one: one.alters.update(exp=None),
        lambda one: one.alters.update(nbf=int(time.time()) + 3600),
        lambda one: setattr(one, "signs", "none"),
        lambda one: setattr(one, "signs", "HS256"),
        lambda one: setattr(one, "signing_key", RSAKey.generate_key(2048, {"kid": "1"})),
        lambda one: one.alters.update(preferred_username=None),
        lambda one: one.alters.update(preferred_username=["ada"]),
        lambda one: one.alters.update(preferred_username=""),
        lambda one: one.alters.update(preferred_username="ada\n"),
        lambda one: one.alters.update(preferred_username="../ada"),
        lambda one: one.alters.update(preferred_username="x" * 500),
    ],
)
def test_tokens_that_prove_nothing_open_nothing(
    portal: BlockingPortal,
    keeper: Doorkeeper,
    provider: IdentityProvider,
    misbehave: Callable[[IdentityProvider], object],
) -> None:
    misbehave(provider)
    assert _logged_in(portal, keeper) is None


def test_what_somebody_is_elsewhere_is_nothing_here(
    portal: BlockingPortal, keeper: Doorkeeper, provider: IdentityProvider
) -> None:
    provider.claims |= {
        "roles": ["admin"],
        "role": "admin",
        "groups": ["admins"],
        "realm_access": {"roles": ["admin"]},
        "resource_access": {"grafana": {"roles": ["admin"]}, CLIENT_ID: {"roles": ["admin"]}},
    }
    surfer = _Surfer(portal, keeper)
    surfer.get(surfer.begin())
    told = surfer.get("/api/v1/me").json()
    assert told == {"user": "ada", "role": "user", "leads": [], "member": []}


def _with(keeper: Doorkeeper, **how: Any) -> Doorkeeper:
    oidc = replace(keeper.settings.oidc, **how)
    return replace(keeper, settings=replace(keeper.settings, oidc=oidc))


def test_only_the_claims_that_are_named_count(
    portal: BlockingPortal, keeper: Doorkeeper, provider: IdentityProvider
) -> None:
    provider.claims = {"preferred_username": "eve", "email": "ada@uni.example"}
    by_mail = _with(keeper, user_claim="email", user_suffix="@uni.example")
    # Whose address it is has to be sure.
    assert _logged_in(portal, by_mail) is None
    provider.claims |= {"email_verified": True}
    assert _logged_in(portal, by_mail) == "ada"
    provider.claims |= {"email": "ada@uni.example.evil.example"}
    assert _logged_in(portal, by_mail) is None
    provider.claims |= {"email": "ada"}
    assert _logged_in(portal, by_mail) is None
    of_group = _with(keeper, groups_claim="groups", groups=("hpc",))
    assert _logged_in(portal, of_group) is None
    for groups, who in ((["hpc", "x"], "eve"), (["hpcx"], None), ("hpc", None), ([["hpc"]], None)):
        provider.claims |= {"groups": groups}
        assert _logged_in(portal, of_group) == who


def test_an_answer_is_good_once_and_for_the_browser_that_asked(
    portal: BlockingPortal, keeper: Doorkeeper
) -> None:
    ada, eve = _Surfer(portal, keeper), _Surfer(portal, keeper)
    back = ada.begin()
    # Eve sends ada a link that would log her in as eve, or opens hers.
    assert eve.get(back).status == 401
    eve.begin()
    assert eve.get(back).status == 401
    assert eve.who() is None
    assert ada.get(back).status == 303
    key = ada.cookies["lowtide"]
    assert ada.get(back).status == 401
    assert ada.cookies["lowtide"] == key
    late = _Surfer(portal, keeper)
    back = late.begin()
    late.client = Client(portal, make_app(replace(keeper, clock=lambda: time.time() + 601.0)))
    assert late.get(back).status == 401


@pytest.mark.parametrize(
    "change",
    [
        lambda asked: asked | {"state": "x"},
        lambda asked: {name: value for name, value in asked.items() if name != "state"},
        lambda asked: {name: value for name, value in asked.items() if name != "code"},
        lambda asked: asked | {"code": "guessed"},
        lambda asked: asked | {"iss": "https://evil.example"},
        lambda asked: {"error": "access_denied", "state": asked["state"]},
    ],
)
def test_answers_that_were_changed_open_nothing(
    portal: BlockingPortal, keeper: Doorkeeper, change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    surfer = _Surfer(portal, keeper)
    path, _, query = surfer.begin().partition("?")
    asked = change({name: values[0] for name, values in parse_qs(query).items()})
    words = "&".join(f"{name}={value}" for name, value in asked.items())
    assert surfer.get(f"{path}?{words}").status == 401
    assert surfer.who() is None


def test_a_provider_that_is_away_or_another_is_said_so(
    portal: BlockingPortal, keeper: Doorkeeper, provider: IdentityProvider
) -> None:
    for described in (
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": "http://evil.example/authorize"},
        {"authorization_endpoint": None},
    ):
        provider.described = described
        assert _Surfer(portal, keeper).get("/login/oidc").status == 503
    away = _with(keeper, issuer="http://127.0.0.1:9")
    assert _Surfer(portal, away).get("/login/oidc").status == 503


def test_a_provider_may_change_its_keys(
    portal: BlockingPortal,
    keeper: Doorkeeper,
    provider: IdentityProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = make_app(keeper)
    surfer = _Surfer(portal, keeper)
    surfer.client = Client(portal, app)
    assert surfer.get(surfer.begin()).status == 303
    provider.key = RSAKey.generate_key(2048, {"kid": "2"})
    asked = provider.asked.count("/keys")
    # Tokens of keys that nobody knows do not make the centre ask again and again.
    assert surfer.get(surfer.begin()).status == 401
    assert provider.asked.count("/keys") == asked
    monkeypatch.setattr("lowtide.serve.oidc._KEYS_S", 0.0)
    assert surfer.get(surfer.begin()).status == 303


@pytest.mark.parametrize(
    "how",
    [
        {"issuer": "https://id.example"},
        {"issuer": "http://id.example", "client_id": "x"},
        {"issuer": "https://id.example", "client_id": "x", "groups": ("hpc",)},
        {"issuer": "https://id.example", "client_id": "x", "groups_claim": "groups"},
    ],
)
def test_settings_that_would_let_in_others_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        OidcSettings(**how)
