"""Links that show one job to whoever has them: that job, as long as they are good, nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from lowtide.serve import schema
from lowtide.serve.app import make_app
from lowtide.serve.gate import HEADERS
from lowtide.serve.guards import READER
from lowtide.serve.rate_limit import Pace
from lowtide.serve.sharing import DAYS
from lowtide.serve.tokens import (
    LINK,
    READ_ALL,
    READ_OWN,
    SHARE,
    TokenLine,
    end_all,
    list_tokens,
    make_token,
    node_scope,
)
from lowtide.serve.viewer import Rights, Viewer
from lowtide.serve.wanted import Wanted
from lowtide.store import tables
from support.asking import HOST, Answered
from support.postgres import emptied
from support.pushed import CLUSTER, rows
from support.worlds import BOBS, NOW, World, world

DAY_S = 86400.0
NAME = "<script>alert(1)</script>\"'>{{7*7}}"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def one(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("sharing")
    deeds = tuple(replace(each, name=NAME) for each in BOBS["many"])
    with ExitStack() as stack:
        where = str(folder / "centre.sqlite")
        if request.param == "postgresql":
            where = stack.enter_context(emptied(request.getfixturevalue("postgres"), "sharing"))
        yield stack.enter_context(world(where, folder, deeds))


@dataclass
class Browser:
    """Somebody's session."""

    one: World
    cookie: str
    form_key: str

    @classmethod
    def of(cls, one: World, who: str) -> Browser:
        answer = one.client.get(f"/enter/{one.link(who)}")
        cookie = answer.headers["set-cookie"].partition(";")[0]
        page = one.client.get("/", cookie=cookie).body.decode()
        return cls(one, cookie, page.split('name="form_key" value="')[1].split('"')[0])

    def get(self, target: str) -> Answered:
        return self.one.client.get(target, cookie=self.cookie)

    def post(self, target: str, **form: str) -> Answered:
        body = urlencode({"form_key": self.form_key, **form}).encode()
        kind = "application/x-www-form-urlencoded"
        return self.one.client.ask("POST", target, body=body, cookie=self.cookie, content_type=kind)

    def share(self, ref: str, days: int = 7) -> str:
        """Make a link, and return where it leads."""
        answer = self.post(f"/jobs/{ref}/links", days=str(days))
        assert answer.status == 200
        [address] = re.findall(rf"http://{HOST}(/shared/lt_[\w-]+)</pre>", answer.body.decode())
        return str(address)


def refs(one: World, who: str) -> list[str]:
    found = one.get(who, f"/api/v1/jobs?most=500&user={who}").json()["jobs"]
    return [each["ref"] for each in found]


def at(one: World, moment: float) -> World:
    """Return the same centre at another moment."""
    keeper = replace(one.keeper, clock=lambda: moment)
    return replace(one, keeper=keeper, client=replace(one.client, app=make_app(keeper)))


def content(body: bytes) -> str:
    """Return what a page says of the job: all but where it leads, and who sees it."""
    text = body.decode().partition("<main")[2].partition("<h1>")[2]
    text = re.split('<h2 id="share">|<p class="soft">You see', text)[0]
    text = re.sub(r'<p><a href="/(api|compare).*</p>', "", text)
    return re.sub(r"\s+", " ", text)


def test_a_link_shows_the_job_and_leads_nowhere(one: World) -> None:
    bob = Browser.of(one, "bob")
    for ref in refs(one, "bob"):
        page = bob.get(f"/jobs/{ref}")
        link = bob.share(ref)
        shown = one.client.get(link)
        assert shown.status == 200
        text = shown.body.decode()
        assert content(shown.body) == content(page.body)
        # Also where nobody has looked before, and nothing is remembered.
        first = at(one, NOW).client.get(link)
        assert first == shown
        assert '<a href="/compare' in page.body.decode()
        # It asks for nothing but its colours, and leads nowhere.
        assert not re.findall("<(?:a|form|script|iframe|button|input)[ >]", text)
        sources = re.findall(r'(?:href|src|action)="([^"]*)"', text)
        assert sources == ["/static/colours.css", "/static/lowtide.css", "data:,"]
        assert ref not in text
        assert "<script>alert" not in text
        assert html.escape("<script>") in text
        assert '<meta name="robots" content="noindex' in text
        wanted = {**HEADERS, "Referrer-Policy": "no-referrer"}
        assert {name: shown.headers[name.lower()] for name in wanted} == wanted
        assert "noindex" in shown.headers["x-robots-tag"]
        assert shown.headers["cache-control"] == "no-store"
        assert "set-cookie" not in shown.headers
        assert "access-control-allow-origin" not in shown.headers


def test_what_opens_nothing_is_told_alike(one: World) -> None:
    """Unknown, ended, taken back, another's, or of no job: the same bytes."""
    database = one.keeper.database
    bob = Browser.of(one, "bob")
    [ref, *_] = refs(one, "bob")
    [hers, *_] = refs(one, "ada")
    good = bob.share(ref, 1)
    nothing = one.client.get("/shared/lt_" + "x" * 43)
    assert nothing.status == 404

    def made(owner: str, scope: str) -> str:
        token = make_token(database, owner=owner, scope=scope, lasts_s=1e5, now=NOW)
        return f"/shared/{token}"

    key = good.rpartition("/")[2]
    tried = [
        *(good[:-1], f"{good}x", f"{good}.csv", f"{good}.json", f"{good}%00", "/shared/lt_"),
        *("/shared/%20", "/shared/' OR 1=1 --", "/shared/" + "x" * 10_000, good.upper()),
        *(f"{good}/", f"{good}/course", f"/shared//{key}", f"/shared/../shared/{key}"),
        *(f"/shared/{ref}", f"/shared/{SHARE}{ref}", f"/Shared/{key}", f"{good}%2f"),
        # Jobs of others, no job, and tokens that are for something else.
        *(made("bob", f"{SHARE}{hers}"), made("", f"{SHARE}{ref}"), made("bob", SHARE)),
        *(made("bob", f"{SHARE}%"), made("bob", f"{SHARE}{ref}' OR 1=1 --")),
        *(made("adam", f"{SHARE}{ref}"), made("lea", f"{SHARE}{hers}")),
        *(made("bob", kind) for kind in (READ_OWN, READ_ALL, LINK, "mail-stop")),
        made(f"{CLUSTER}/n1", node_scope(CLUSTER, "n1", tells_all=False)),
    ]
    for target in tried:
        found = one.client.get(target)
        assert (found.status, found.body) == (404, nothing.body), target
        assert found.headers == nothing.headers, target
    assert at(one, NOW + DAY_S - 1.0).client.get(good).status == 200
    assert at(one, NOW + DAY_S).client.get(good) == nothing
    assert one.client.get(good).status == 200
    [number] = [
        each.number for each in list_tokens(database, owner="bob", now=NOW)
        if each.shares == ref and each.expires == NOW + DAY_S
    ]  # fmt: skip
    # Only who made it ends it.
    for who in ("ada", "adam"):
        assert Browser.of(one, who).post(f"/settings/tokens/{number}").status == 404
    assert one.client.get(good).status == 200
    assert bob.post(f"/settings/tokens/{number}").status == 200
    assert one.client.get(good) == nothing
    # Asked for in another way it is not there either.
    other = bob.share(ref)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert one.client.ask(method, other).status == 404
    # What a server leaves of this is the head.
    assert one.client.ask("HEAD", other) == one.client.get(other)
    for words in ("format=csv", "format=json", f"ref={hers}", f"key={hers}", f"only={hers}"):
        assert one.client.get(f"{other}?{words}") == one.client.get(other)
    assert one.client.get(other, accept="application/json") == one.client.get(other)
    # Nor does it depend on who comes.
    for who in ("ada", "adam", "bob", "cy"):
        assert one.get(who, other) == one.client.get(other)


def test_a_link_is_no_token_on_any_route(one: World) -> None:
    """Shown as one, or as a session's cookie, it opens what nothing at all opens."""
    bob = Browser.of(one, "bob")
    [ref, *_] = refs(one, "bob")
    key = bob.share(ref).rpartition("/")[2]
    there = {
        "ref": ref, "key": key, "name": "n1", "host": "n1", "cluster": CLUSTER, "account": "chem",
        "month": "2023-11",
    }  # fmt: skip
    tried = 0
    for route in one.client.app._routes:  # type: ignore[attr-defined]
        path = re.sub(r"{([^}:]*)[^}]*}", lambda found: there.get(found[1], "1"), route.path)
        for method in ("GET", "POST", "PUT", "DELETE"):
            without = one.client.ask(method, path)
            for headers in (
                {"authorization": f"Bearer {key}"},
                {"authorization": f"Basic {key}"},
                {"cookie": f"lowtide={key}"},
            ):
                tried += 1
                assert one.client.ask(method, path, **headers) == without, (method, path, headers)
    assert tried > 400


def test_somebody_has_so_many_links_at_once(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> list[TokenLine]:
        found = list_tokens(one.keeper.database, owner="lea", now=NOW)
        return [each for each in found if each.shares]

    most = len(lines()) + 3
    monkeypatch.setattr("lowtide.serve.sharing.MOST_LINKS", most)
    browser = Browser.of(one, "lea")
    [ref, *_] = refs(one, "lea")
    made = [browser.share(ref, 1) for _ in range(3)]
    refused = browser.post(f"/jobs/{ref}/links", days="7")
    assert refused.status == 400
    assert len(lines()) == most
    assert f"{most} links of yours are good" in html.unescape(refused.body.decode())
    # Others have theirs, and one that is ended makes room.
    Browser.of(one, "ada").share(refs(one, "ada")[0])
    assert browser.post(f"/settings/tokens/{lines()[0].number}").status == 200
    made.append(browser.share(ref))
    assert len(set(made)) == 4
    assert browser.post(f"/jobs/{ref}/links", days="7").status == 400


def test_a_link_opens_no_other_door(one: World) -> None:
    bob = Browser.of(one, "bob")
    [ref, *_] = refs(one, "bob")
    key = bob.share(ref).rpartition("/")[2]
    for target in ("/", f"/jobs/{ref}", f"/api/v1/jobs/{ref}", "/api/v1/me", "/settings"):
        assert one.client.get(target, authorization=f"Bearer {key}").status == 401
        assert one.client.get(target, cookie=f"lowtide={key}").status == 401
    assert one.client.get(f"/enter/{key}").status == 401
    assert b"used, or is too old" in one.client.ask("POST", f"/stop/{key}").body
    assert one.client.get(f"/shared/{key}").status == 200


def test_only_whose_job_it_is_makes_links(one: World) -> None:
    """Whoever else sees it, for whatever reason; and nobody by a token, or for ever."""
    [hers, *_] = refs(one, "ada")
    nothing = one.client.get("/nothing", authorization=f"Bearer {one.tokens['ada']}")
    for who in ("bob", "cy", "lea", "sue", "adam", "nobody"):
        browser = Browser.of(one, who)
        assert browser.post(f"/jobs/{hers}/links", days="7") == nothing
        assert "Make a link" not in browser.get(f"/jobs/{hers}").body.decode()
    ada = Browser.of(one, "ada")
    assert "Make a link" in ada.get(f"/jobs/{hers}").body.decode()
    assert ada.post(f"/jobs/{'0' * 15}/links", days="7") == nothing
    for days in ("", "0", "2", "-7", "365", "7.0", "٧", "1e1", "nan", " 7"):
        assert ada.post(f"/jobs/{hers}/links", days=days).status == 400
    body = b"days=7"
    assert one.send("POST", "ada", f"/jobs/{hers}/links", body) == nothing
    assert one.client.ask("POST", f"/jobs/{hers}/links", body=body).status == 401
    # A form of another site's, and one without its key.
    assert replace(ada, form_key="x").post(f"/jobs/{hers}/links", days="7").status == 403
    elsewhere = one.client.ask(
        "POST", f"/jobs/{hers}/links", body=f"form_key={ada.form_key}&days=7".encode(),
        cookie=ada.cookie, sec_fetch_site="cross-site",
    )  # fmt: skip
    assert elsewhere.status == 403
    assert "Make a link" not in one.get("ada", f"/jobs/{hers}").body.decode()


def test_a_link_ends_with_the_right_of_its_maker(one: World) -> None:
    database = one.keeper.database
    bob = Browser.of(one, "bob")
    [ref, other, *_] = refs(one, "bob")
    link = bob.share(ref)
    assert one.client.get(link).status == 200
    mine = schema.jobs.c.ref == ref

    def change(**values: str) -> None:
        with database.writing() as connection:
            connection.execute(sa.update(schema.jobs).where(mine).values(**values))

    nothing = one.client.get("/shared/x")
    # It turns out to be somebody else's; or it is not there any more.
    change(user="ada")
    assert one.client.get(link) == nothing
    change(user="bob")
    assert one.client.get(link).status == 200
    change(ref="gone")
    assert one.client.get(link) == nothing
    with database.writing() as connection:
        gone = schema.jobs.c.ref == "gone"
        connection.execute(sa.update(schema.jobs).where(gone).values(ref=ref))
    assert one.client.get(link).status == 200
    # The site does not want links any more.
    shut = replace(one.keeper, settings=replace(one.keeper.settings, share_links=False))
    closed = replace(one, keeper=shut, client=replace(one.client, app=make_app(shut)))
    assert closed.client.get(link) == nothing
    there = replace(bob, one=closed)
    assert there.post(f"/jobs/{ref}/links", days="7").status == 404
    assert "Make a link" not in there.get(f"/jobs/{ref}").body.decode()
    # All of bob's are taken back at the centre: other users' go on.
    hers = Browser.of(one, "ada").share(refs(one, "ada")[0])
    bob.share(other)
    end_all(database, "bob")
    one.tokens["bob"] = make_token(database, owner="bob", scope=READ_ALL, lasts_s=1e6, now=NOW)
    assert one.client.get(link) == nothing
    assert one.client.get(hers).status == 200


def test_whose_job_it_is_reads_who_looked(one: World) -> None:
    cy = Browser.of(one, "cy")
    [ref, *_] = refs(one, "cy")
    link = cy.share(ref)
    [line] = [each for each in list_tokens(one.keeper.database, owner="cy", now=NOW) if each.shares]
    assert line.used is None
    assert f"End link {line.number}" in cy.get("/settings").body.decode()

    def looks() -> list[tuple[str, float]]:
        found = one.get("cy", "/api/v1/looks").json()["looks"]
        return [
            (each["what"], each["time"])
            for each in found
            if (each["viewer"], each["role"]) == (f"link {line.number}", "whoever has it")
        ]

    assert looks() == []
    number = next(
        each["job"] if "job" in each else each["shown_id"]
        for each in one.get("cy", "/api/v1/jobs").json()["jobs"]
        if each["ref"] == ref
    )
    for late in (0.0, 10.0, 3500.0, 3700.0):
        assert at(one, NOW + late).client.get(link).status == 200
    # Programs that ask again and again write no book: it is once an hour.
    assert looks() == [(f"job {number}", NOW + 3700.0), (f"job {number}", NOW)]
    [line] = [each for each in list_tokens(one.keeper.database, owner="cy", now=NOW) if each.shares]
    assert line.used == NOW + 3700.0
    page = cy.get("/looks").body.decode()
    assert f"link {line.number}" in page
    # Nobody else is told, but the staff.
    assert f"link {line.number}" not in one.get("ada", "/looks").body.decode()
    assert f"link {line.number}" in one.get("adam", "/audit").body.decode()
    # The link itself is kept nowhere.
    key = link.rpartition("/")[2]
    for table in schema.CENTRE.sorted_tables:
        assert key not in str(rows(one.keeper.database, table)), table.name


def test_who_guesses_keeps_nobody_waiting(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.serve.gate.Pace", lambda most: Pace(most, lambda: 0.0))
    keeper = replace(one.keeper, settings=replace(one.keeper.settings, requests_per_minute=6))
    bob = Browser.of(one, "bob")
    first, second = (bob.share(refs(one, "bob")[0]) for _ in range(2))
    client = replace(one.client, app=make_app(keeper))
    found = [client.get(f"/shared/{number}").status for number in range(7)]
    assert found == [404] * 6 + [429]
    assert [client.get(first).status for _ in range(7)] == [200] * 6 + [429]
    assert client.get(first).headers["retry-after"] == "10"
    assert client.get(second).status == 200


def test_the_store_itself_gives_a_link_one_job(one: World) -> None:
    """Whatever is asked without its rule; on PostgreSQL that is held by the server."""
    database = one.keeper.database
    # The last is over, so that it is in the sums.
    [*others, ref] = refs(one, "bob")
    assert others
    looking = Viewer(database, "bob", Rights(), NOW, only=ref)
    assert [each.ref for each in looking.jobs(Wanted())] == [ref]
    assert looking.job(others[0]) is None
    assert looking.course(others[0]) is None
    assert looking.usage("user", start=0.0, end=NOW // 3600 * 3600 + 3600) == []
    assert looking.accounts() == []
    assert looking.numbers([], most=10) == {
        looking.job(ref).record.number: ref  # type: ignore[union-attr]
    }
    # It is a limit, whatever rights should ever stand beside it.
    for rights in (Rights(role="admin"), Rights(leads=frozenset((f"{CLUSTER}/chem",)))):
        held = Viewer(database, "bob", rights, NOW, only=ref)
        assert [each.ref for each in held.jobs(Wanted())] == [ref]
        assert Viewer(database, "ada", rights, NOW, only=ref).job(ref) is None
    if database.is_file:
        return
    with looking.reading() as connection:
        assert connection.exec_driver_sql("SELECT current_user").scalar() == READER
        found = connection.execute(sa.select(schema.jobs.c.ref, schema.jobs.c.number)).all()
        assert [row.ref for row in found] == [ref]
        assert set(connection.execute(sa.select(tables.jobs.c.id)).scalars()) == {found[0].number}
        for column in (tables.phases.c.job, tables.origins.c.job, schema.looks.c.job):
            assert set(connection.execute(sa.select(column)).scalars()) <= {found[0].number}
        for table in (
            *schema.USAGE, schema.audit, schema.members, schema.accounts, schema.incarnations,
            schema.quarantine,
        ):  # fmt: skip
            assert connection.execute(sa.select(table)).all() == [], table.name
        assert connection.execute(sa.select(schema.tokens.c.id)).all() == []
        for asked in (
            "SELECT count(*) FROM lowtide_going()",
            "SELECT lowtide_people(0, 1e12)",
            "SELECT count(*) FROM lowtide_queue(1e10, 0)",
        ):
            assert connection.exec_driver_sql(asked).scalar() == 0
    # The connection forgets it.
    with Viewer(database, "bob", Rights(), NOW).reading() as connection:
        found = connection.execute(sa.select(schema.jobs.c.ref)).scalars().all()
        assert sorted(found) == sorted([ref, *others])


def test_a_form_offers_what_may_be_chosen(one: World) -> None:
    ada = Browser.of(one, "ada")
    page = ada.get(f"/jobs/{refs(one, 'ada')[0]}").body.decode()
    assert re.findall(r'<option value="(\d+)"', page) == [str(each) for each in DAYS]
    assert '<option value="7" selected>7 days</option>' in page
    assert "1 day</option>" in page
