"""Who comes to which door: every route against every kind of viewer, and what attackers try."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lowtide.errors import InvalidInput
from lowtide.serve.app import make_app
from lowtide.serve.gate import HEADERS, audience_of, check_audiences
from lowtide.serve.rate_limit import Pace
from lowtide.serve.tokens import IDLE_S, READ_OWN, begin_session, make_token, node_scope, take_back
from support.asking import Client
from support.pushed import CLUSTER, Node
from support.ticks import START, unit
from support.worlds import BOBS, NOW, World, world

# For whom each door is. Whoever adds a route adds it here.
DOORS = {
    "/": "viewer",
    "/api/v1/grid": "viewer",
    "/api/v1/health": "viewer",
    "/api/v1/jobs": "viewer",
    "/api/v1/jobs/{ref}": "viewer",
    "/api/v1/jobs/{ref}/course": "viewer",
    "/api/v1/jobs/{ref}/steps": "viewer",
    "/api/v1/looks": "viewer",
    "/api/v1/me": "viewer",
    "/api/v1/nodes": "viewer",
    "/api/v1/nodes/{name}": "viewer",
    "/api/v1/nodes/{name}/course": "viewer",
    "/api/v1/nodes/{name}/steps": "viewer",
    "/api/v1/openapi.json": "viewer",
    "/api/v1/plans": "viewer",
    "/api/v1/queue": "viewer",
    "/api/v1/synthetic": "viewer",
    "/api/v1/table": "viewer",
    "/api/v1/token": "viewer",
    "/api/v1/tokens": "viewer",
    "/api/v1/usage": "viewer",
    "/api/v1/waste": "viewer",
    "/audit": "staff",
    "/cluster": "viewer",
    "/compare": "viewer",
    "/enter/{key}": "public",
    "/health": "staff",
    "/ingest/v1/{cluster}/{host}/{incarnation}/{seq:int}": "node",
    "/jobs": "viewer",
    "/jobs/{ref}": "viewer",
    "/jobs/{ref}/links": "viewer",
    "/leave": "viewer",
    "/login": "public",
    "/looks": "viewer",
    "/method": "viewer",
    "/nodes": "viewer",
    "/nodes/{name}": "viewer",
    "/projects": "viewer",
    "/projects/{account}": "viewer",
    "/projects/{cluster}/{account}": "viewer",
    "/reports": "viewer",
    "/reports/{month}.parquet": "viewer",
    "/settings": "viewer",
    "/settings/mails": "viewer",
    "/settings/tokens": "viewer",
    "/settings/tokens/{number:int}": "viewer",
    "/shared/{key}": "link",
    "/static": "public",
    "/stop/{key}": "public",
    "/usage": "viewer",
    "/waste": "viewer",
    "/when": "viewer",
}
POSTED = ("/leave", "/settings/mails", "/settings/tokens", "/settings/tokens/{number:int}")
POSTED += ("/jobs/{ref}/links",)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("gate")
    with world(str(folder / "centre.sqlite"), folder, BOBS["many"]) as made:
        yield made


def _token(one: World, **given: object) -> str:
    usual = {"owner": "ada", "scope": READ_OWN, "lasts_s": 1e6, "now": START}
    return "Bearer " + make_token(one.keeper.database, **{**usual, **given})  # type: ignore[arg-type]


def test_every_door_says_for_whom_it_is(one: World) -> None:
    routes = make_app(one.keeper)._routes  # type: ignore[attr-defined]
    assert {route.path: audience_of(route) for route in routes} == DOORS

    def silent(_request: Request) -> Response:
        return Response("")

    with pytest.raises(InvalidInput, match="for whom"):
        check_audiences([Route("/open", silent)])


@pytest.mark.parametrize("path", DOORS)
def test_doors_are_shut_to_those_they_are_not_for(one: World, path: str) -> None:
    target = path.replace("{seq:int}", "1").replace("{number:int}", "1")
    target = target.replace("{", "").replace("}", "")
    method = {"node": "PUT"}.get(DOORS[path], "POST" if path in POSTED else "GET")
    if path == "/api/v1/token":
        method = "DELETE"
    scope = node_scope(CLUSTER, "n1", tells_all=False)
    of_node = _token(one, owner=f"{CLUSTER}/n1", scope=scope)
    nobody = one.client.ask(method, target)
    node = one.client.ask(method, target, authorization=of_node)
    ada = one.client.ask(method, target, authorization=_token(one))
    if DOORS[path] in ("viewer", "staff"):
        assert nobody.status == 401
        assert node.status == 404
    if DOORS[path] == "staff":
        # What is not for them looks as if it were not there.
        assert ada == one.client.ask(method, "/nothing", authorization=_token(one))
        staff = one.get("sue", target)
        assert staff.status == 200
    if DOORS[path] == "node":
        assert (nobody.status, ada.status) == (401, 404)
        # The door is open to it, and it is not the node that the path names.
        assert node.status == 404
    if DOORS[path] == "link":
        # Who comes with anything but a link is told nothing, whoever they are.
        assert nobody.status == 404
        assert nobody == node == ada == one.get("adam", target)
    for answer in (nobody, node, ada):
        assert answer.status < 500
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "shown",
    [
        *("Bearer lt_nothing", "Bearer ", "Bearer", "Basic YWRhOmFkYQ==", "bearer null"),
        "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGFtIiwicm9sZXMiOlsiYWRtaW4iXX0.",
        "Bearer lt_" + "x" * 10_000,
    ],
)
def test_what_is_no_token_opens_nothing(one: World, shown: str) -> None:
    assert one.client.get("/api/v1/me", authorization=shown).status == 401


def test_a_token_ends_and_is_taken_back(one: World) -> None:
    database = one.keeper.database
    ended = _token(one, lasts_s=NOW - START - 1.0)
    assert one.client.get("/api/v1/me", authorization=ended).status == 401
    good = _token(one)
    assert one.client.get("/api/v1/me", authorization=good).status == 200
    from lowtide.serve.tokens import read_token

    shown = read_token(database, good.removeprefix("Bearer "), now=NOW)
    assert shown is not None
    assert shown.number is not None
    assert not take_back(database, shown.number, owner="bob")
    assert take_back(database, shown.number, owner="ada")
    assert one.client.get("/api/v1/me", authorization=good).status == 401


def test_a_token_is_good_for_no_more_than_it_says(one: World) -> None:
    mine = _token(one, owner="lea", scope=READ_OWN)
    users = {
        each["user"] for each in one.client.get("/api/v1/jobs", authorization=mine).json()["jobs"]
    }
    assert users == {"lea"}
    staff = _token(one, owner="adam", scope=READ_OWN)
    assert one.client.get("/api/v1/jobs", authorization=staff).json()["jobs"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"x_forwarded_user": "adam"},
        {"x_remote_user": "adam"},
        {"remote_user": "adam"},
        {"x_grafana_user": "adam"},
        {"x_forwarded_for": "127.0.0.1"},
        {"x_real_ip": "127.0.0.1"},
        {"cookie": "lowtide=adam"},
        {"cookie": "user=adam; role=admin; lowtide="},
    ],
)
def test_nobody_is_believed_by_a_header(one: World, headers: dict[str, str]) -> None:
    assert one.client.get("/api/v1/jobs", **headers).status == 401
    mine = one.client.get("/api/v1/me", authorization=_token(one), **headers)
    assert mine.json()["user"] == "ada"
    assert mine.json()["role"] == "user"


def test_a_number_longer_than_any_is_that_of_nothing(one: World) -> None:
    browser = _Browser(one, "ada")
    long = "9" * 5000
    form = f"form_key={browser.form_key()}".encode()
    for method, path in (
        ("POST", f"/settings/tokens/{long}"),
        ("GET", f"/settings/tokens/{long}"),
        ("PUT", f"/ingest/v1/alps/n1/abc/{long}"),
    ):
        assert one.client.ask(method, path, body=form, cookie=browser.cookie).status == 404
        assert one.client.ask(method, path, body=form).status == 404


def test_nobody_looks_for_a_whole_book(one: World) -> None:
    """What a database would refuse to look for is a question that cannot be understood."""
    for query in ("name", "host", "job"):
        for page in ("/jobs", "/compare", "/api/v1/jobs"):
            if page == "/compare" and query != "name":
                continue
            for many in (1000, 1001, 60_000):
                found = one.client.get(f"{page}?{query}={'x' * many}", authorization=_token(one))
                assert found.status == (200 if many == 1000 else 400), (page, query, many)


def test_other_names_are_not_answered_to(one: World) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example"):
        assert one.client.get("/", host=host).status == 421
    # Nor to a name of ours with something else behind it, which would be in links that we make.
    for more in (":1@evil.example", ":x", ":8470/evil", ":", ":8470:8470", ":٨", "@evil.example"):
        host = f"127.0.0.1{more}".encode().decode("latin-1")
        assert one.client.get("/", host=host).status == 421


class _Browser:
    """A browser that has a session."""

    def __init__(self, one: World, who: str) -> None:
        self.client: Client = one.client
        answer = self.client.get(f"/enter/{one.link(who)}")
        assert answer.status == 303
        said = answer.headers["set-cookie"]
        assert "HttpOnly" in said
        assert "SameSite=lax" in said
        self.cookie = said.partition(";")[0]

    def form_key(self) -> str:
        page = self.client.get("/", cookie=self.cookie).body.decode()
        return page.split('name="form_key" value="')[1].split('"')[0]

    def leave(self, body: str, **headers: str) -> int:
        kind = {"content_type": "application/x-www-form-urlencoded", "cookie": self.cookie}
        return self.client.ask("POST", "/leave", body=body.encode(), **kind, **headers).status


def test_a_link_works_once(one: World) -> None:
    link = one.link("ada")
    assert one.client.get(f"/enter/{link}").status == 303
    assert one.client.get(f"/enter/{link}").status == 401
    # It is no token.
    other = one.link("ada")
    assert one.client.get("/api/v1/me", authorization=f"Bearer {other}").status == 401


def test_a_session_is_made_anew_at_login(one: World) -> None:
    """Whatever a browser came with, somebody else may have set."""
    set_by_eve = "lowtide=chosen-by-eve"
    answer = one.client.get(f"/enter/{one.link('ada')}", cookie=set_by_eve)
    assert "chosen-by-eve" not in answer.headers["set-cookie"]
    assert one.client.get("/", cookie=set_by_eve).status == 401


def test_forms_from_elsewhere_are_refused(one: World) -> None:
    browser = _Browser(one, "ada")
    key = browser.form_key()
    assert browser.leave("") == 403
    assert browser.leave("form_key=wrong") == 403
    assert browser.leave(f"form_key={key}&form_key={key}") == 403
    assert browser.leave(f"form_key={key}", sec_fetch_site="cross-site") == 403
    assert browser.leave(f"form_key={key}", sec_fetch_site="same-site") == 403
    other = _Browser(one, "cy").form_key()
    assert browser.leave(f"form_key={other}") == 403
    assert browser.leave("x" * 20_000) == 403
    assert one.client.get("/", cookie=browser.cookie).status == 200
    assert browser.leave(f"form_key={key}", sec_fetch_site="same-origin") == 200
    assert one.client.get("/", cookie=browser.cookie).status == 401


def test_no_question_holds_what_no_database_takes(one: World) -> None:
    for target in ("/jobs?name=%00", "/api/v1/jobs?user=a%00b", "/compare?a=x&b=%00", "/login?%00"):
        assert one.client.get(target, authorization=_token(one)).status == 400
    browser = _Browser(one, "ada")
    assert browser.leave(f"form_key={browser.form_key()}&note=%00") == 403


def test_an_idle_session_ends(one: World) -> None:
    key = begin_session(one.keeper.database, "ada", now=NOW - IDLE_S - 1.0)
    assert one.client.get("/", cookie=f"lowtide={key}").status == 401


@pytest.mark.parametrize(
    "target",
    [
        *("//", "//jobs", "/jobs//", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/jobs%2f"),
        *("/static/../gate.py", "/%00", "/jobs/..", "/..", "/static/", "/Jobs", "/jobs/x/y"),
        *("/api", "/api/v2/jobs", "/docs", "/redoc", "/openapi.json", "/ingest/v1"),
    ],
)
def test_no_way_leads_round(one: World, target: str) -> None:
    answer = one.client.get(target, authorization=_token(one))
    assert answer.status == 404
    assert b"lowtide" not in answer.body or b"def " not in answer.body


def test_a_node_writes_of_itself_alone(one: World, tmp_path: Path) -> None:
    node = Node(tmp_path / "n7.sqlite", "n7", time=NOW - 700.0)
    for _ in range(5):
        node.tick([unit(70, started=NOW - 700.0, user="ada")])
    parcel = node.outbox.next(now=NOW)
    assert parcel is not None
    scope = node_scope(CLUSTER, "n7", tells_all=False)
    mine = _token(one, owner=f"{CLUSTER}/n7", scope=scope)
    end = f"{parcel.incarnation}/{parcel.seq}"

    def put(target: str, shown: str | None = mine, body: bytes = parcel.body) -> int:
        return one.client.ask("PUT", target, body=body, authorization=shown).status

    assert put(f"/ingest/v1/{CLUSTER}/n1/{end}") == 404
    assert put(f"/ingest/v1/jura/n7/{end}") == 404
    assert put(f"/ingest/v1/{CLUSTER}/n7/{end}", None) == 401
    assert put(f"/ingest/v1/{CLUSTER}/n7/{end}", _token(one, owner="adam", scope="read:all")) == 404
    assert put(f"/ingest/v1/{CLUSTER}/n7/{parcel.incarnation}/-1") == 404
    assert put(f"/ingest/v1/{CLUSTER}/n7/a.b/1") == 404
    assert put(f"/ingest/v1/{CLUSTER}/n7/{end}", body=bytes(1_000_001)) == 413
    assert put(f"/ingest/v1/{CLUSTER}/n7/{parcel.incarnation}/2") == 409
    assert put(f"/ingest/v1/{CLUSTER}/n7/{end}") == 200
    assert put(f"/ingest/v1/{CLUSTER}/n7/{end}") == 200
    assert one.client.get("/api/v1/me", authorization=mine).status == 404
    found = one.get("ada", "/api/v1/jobs?job=70").json()["jobs"]
    assert [each["energy_j"] for each in found] == pytest.approx([5000.0])


def test_a_store_that_is_gone_is_told_and_no_more(tmp_path: Path) -> None:
    from lowtide.errors import StoreProblem

    with world(str(tmp_path / "centre.sqlite"), tmp_path, ()) as one:
        database = one.keeper.database
        token = one.tokens["ada"]

        def gone(*_: object, **__: object) -> None:
            raise StoreProblem("the store does not answer: password=secret", where="x")

        object.__setattr__(database, "reading", gone)
        for target in ("/", "/api/v1/jobs"):
            answer = one.client.get(target, authorization=f"Bearer {token}")
            assert answer.status == 503
            assert answer.headers["retry-after"] == "30"
            assert b"secret" not in answer.body


def test_nobody_keeps_others_waiting(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    passed = [100.0]
    monkeypatch.setattr("lowtide.serve.gate.Pace", lambda most: Pace(most, lambda: passed[0]))
    settings = replace(one.keeper.settings, requests_per_minute=6)
    app = make_app(replace(one.keeper, settings=settings))
    client = replace(one.client, app=app)
    first, second, bobs = _token(one), _token(one), _token(one, owner="bob")
    for _ in range(6):
        assert client.get("/api/v1/me", authorization=first).status == 200
    for path in ("/api/v1/me", "/jobs", "/login", "/static/lowtide.css"):
        refused = client.get(path, authorization=first)
        assert (refused.status, refused.headers["retry-after"]) == (429, "10")
        for name, value in HEADERS.items():
            assert refused.headers[name.lower()] == value
    # Another token, another user: who asks too often keeps none of them waiting.
    for shown in (second, bobs):
        assert client.get("/api/v1/me", authorization=shown).status == 200
    passed[0] += 9.0
    assert client.get("/api/v1/me", authorization=first).headers["retry-after"] == "1"
    passed[0] += 1.1
    assert client.get("/api/v1/me", authorization=first).status == 200
    assert client.get("/api/v1/me", authorization=first).status == 429
    passed[0] += 1e6
    assert [client.get("/api/v1/me", authorization=first).status for _ in range(7)][-2:] == [
        200,
        429,
    ]
    # All browsers of a user together, and nodes as well.
    keys = [begin_session(one.keeper.database, "lea", now=NOW) for _ in range(3)]
    found = [client.get("/api/v1/me", cookie=f"lowtide={keys[n % 3]}").status for n in range(7)]
    assert found == [200] * 6 + [429]
    with pytest.raises(InvalidInput, match="requests_per_minute"):
        replace(settings, requests_per_minute=-1)
