"""Grafana's way to Prometheus: own series alone, whatever is asked and however."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from lowtide.errors import InvalidInput
from lowtide.serve.app import make_app
from lowtide.serve.metrics_proxy import Upstream, narrowed
from lowtide.serve.promql import Owners
from lowtide.serve.schema import audit
from lowtide.serve.tokens import READ_ALL, READ_OWN, make_token
from support.asking import Answered, Client
from support.prometheus import Prometheus
from support.promql_worlds import LABELS, NOW, two_worlds
from support.pushed import CLUSTER
from support.ticks import START
from support.worlds import BOBS, World, world

PATH = "/prometheus/api/v1"
ADA = Owners("user", ("ada",))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Prometheus]]:
    with two_worlds(tmp_path_factory.mktemp("servers")) as both:
        yield both


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("centre")
    with world(str(folder / "centre.sqlite"), folder, BOBS["many"]) as made:
        yield made


@pytest.fixture(scope="module")
def clients(centre: World, servers: tuple[Prometheus, Prometheus]) -> tuple[Client, Client]:
    """The same centre before each of the two servers."""
    one, two = (
        Client(
            centre.client.portal,
            make_app(
                replace(
                    centre.keeper,
                    clock=lambda: float(NOW),
                    settings=replace(
                        centre.keeper.settings,
                        prometheus=server.url,
                        prometheus_labels=(*LABELS, "new"),
                    ),
                )
            ),
        )
        for server in servers
    )
    return one, two


def token(centre: World, owner: str = "ada", scope: str = READ_OWN) -> str:
    made = make_token(centre.keeper.database, owner=owner, scope=scope, lasts_s=1e6, now=START)
    return f"Bearer {made}"


def asked(clients: tuple[Client, Client], shown: str, target: str, body: str = "") -> Answered:
    """Ask both, see that they answer alike byte by byte, and return one answer."""
    method = "POST" if body else "GET"
    one, two = (
        client.ask(method, f"{PATH}/{target}", body=body.encode(), authorization=shown)
        for client in clients
    )
    assert (one.status, one.body) == (two.status, two.body)
    return one


def users(answer: Answered) -> set[str | None]:
    return {each["metric"].get("user") for each in answer.json()["data"]["result"]}


def test_everybody_sees_their_own(
    centre: World, servers: tuple[Prometheus, Prometheus], clients: tuple[Client, Client]
) -> None:
    shown = token(centre)
    words = urlencode({"query": "power", "time": str(NOW)})
    for target, body in ((f"query?{words}", ""), ("query", words)):
        answer = asked(clients, shown, target, body)
        assert answer.status == 200 and users(answer) == {"ada"}
    span = {"start": str(NOW - 300), "end": "2023-11-14T22:13:20Z", "step": "30s"}
    words = urlencode({"query": "sum by (user) (rate(energy_total[2m]))", **span})
    answer = asked(clients, shown, f"query_range?{words}")
    assert users(answer) == {"ada"}
    for what in ("series", "labels", *(f"label/{label}/values" for label in LABELS)):
        for match in ({}, {"match[]": "power"}):
            words = urlencode({**match, "start": str(NOW - 300), "end": str(NOW)})
            answer = asked(clients, shown, f"{what}?{words}")
            assert answer.status == 200 and answer.json()["data"]
            assert b"bob" not in answer.body and b"carl" not in answer.body
    assert asked(clients, shown, f"query?query=1%2B1&time={NOW}").json()["data"]["result"][1] == "2"


def test_staff_sees_all(centre: World, clients: tuple[Client, Client]) -> None:
    shown = token(centre, owner="adam", scope=READ_ALL)
    words = urlencode({"query": "count by (user) (power)", "time": str(NOW)})
    answer = clients[0].get(f"{PATH}/query?{words}", authorization=shown)
    assert {"ada", "bob", "carl"} <= users(answer)


def looks(centre: World, who: str) -> set[tuple[str, str]]:
    found = centre.get(who, "/api/v1/looks").json()["looks"]
    return {(each["viewer"], each["what"]) for each in found}


@pytest.mark.parametrize("who", ["sue", "adam"])
def test_what_the_staff_asks_is_written_down(
    centre: World, clients: tuple[Client, Client], who: str
) -> None:
    shown = token(centre, owner=who, scope=READ_ALL)
    span = {"start": str(NOW - 300), "end": str(NOW), "step": "30s"}
    for query, owners in (
        ('power{user="bob"}', {"bob"}),
        # No label says whose it is, and it is one user's.
        ('sum(power{user="bob"})', {"bob"}),
        ('sum(rate(energy_total{user=~"b.b"}[2m]))', {"bob"}),
        ('sum(power{user="ada"} offset 1m)', {"ada"}),
        ("max(power) by (user)", {"ada", "bob"}),
        ("1 + 1", set()),
    ):
        words = {"query": query, "time": str(NOW)}
        for target in (
            f"query?{urlencode(words)}",
            f"query_range?{urlencode({'query': query, **span})}",
        ):
            with centre.keeper.database.writing() as connection:
                connection.execute(sa.delete(audit))
            for _ in range(2):
                answer = clients[0].get(f"{PATH}/{target}", authorization=shown)
                assert answer.status == 200
            for owner in ("ada", "bob", "cy"):
                wanted = {(who, f"metrics: {query}")} if owner in owners else set()
                assert looks(centre, owner) == wanted, (query, owner)
            # All of it is told to the staff, once in an hour.
            with centre.keeper.database.reading() as connection:
                rows = connection.execute(sa.select(audit).where(audit.c.owner == "")).all()
            assert [row.what for row in rows] == [f"metrics: {query}"]
    words = urlencode({"match[]": 'power{user="bob"}', "start": str(NOW - 300), "end": str(NOW)})
    assert clients[0].get(f"{PATH}/series?{words}", authorization=shown).status == 200
    assert (who, 'metrics: power{user="bob"}') in looks(centre, "bob")


def test_a_lead_sees_those_who_can_use_no_other_account(
    centre: World, clients: tuple[Client, Client]
) -> None:
    from lowtide.serve.people import metric_owners, rights_of
    from lowtide.serve.schema import jobs, members
    from lowtide.serve.viewer import Viewer

    database = centre.keeper.database
    words = urlencode({"query": "power", "time": str(NOW)})

    def owners(who: str) -> set[str]:
        rights = rights_of(database, who)
        return set(metric_owners(Viewer(database, who, rights, float(NOW))))

    # Of phys and quark: bob is in chem as well, and so is cy.
    assert owners("lea") == {"ada", "lea"}
    assert {
        owner for who in ("ada", "cy", "bob", "nobody") for owner in owners(who) - {who}
    } == set()
    shown = token(centre, owner="lea", scope=READ_ALL)
    assert users(clients[0].get(f"{PATH}/query?{words}", authorization=shown)) == {"ada"}
    mine = token(centre, owner="lea", scope=READ_OWN)
    assert users(clients[0].get(f"{PATH}/query?{words}", authorization=mine)) == set()
    with database.writing() as connection:
        connection.execute(sa.insert(members).values(
            cluster=CLUSTER, account="chem", user="ada", leads=False, since=0.0, until=None
        ))  # fmt: skip
    assert owners("lea") == {"lea"}
    with database.writing() as connection:
        # Who has left it had jobs there, whose series are still kept.
        connection.execute(sa.update(members).where(members.c.user == "ada",
                           members.c.account == "chem").values(until=1.0))  # fmt: skip
    assert owners("lea") == {"ada", "lea"}
    with database.writing() as connection:
        job = sa.select(sa.func.min(jobs.c.number)).where(jobs.c.user == "ada").scalar_subquery()
        changed = sa.update(jobs).where(jobs.c.number == job)
        connection.execute(changed.values(account="chem"))
    assert owners("lea") == {"lea"}
    with database.writing() as connection:
        connection.execute(changed.values(account="phys"))
    assert owners("lea") == {"ada", "lea"}


def test_labels_that_are_not_told_are_not_there(
    centre: World, servers: tuple[Prometheus, Prometheus]
) -> None:
    settings = replace(
        centre.keeper.settings, prometheus=servers[0].url, prometheus_labels=("user", "host")
    )
    app = make_app(replace(centre.keeper, settings=settings, clock=lambda: float(NOW)))
    client, shown = replace(centre.client, app=app), token(centre)

    def get(target: str, **words: str) -> Answered:
        return client.get(f"{PATH}/{target}?{urlencode(words)}", authorization=shown)

    span = {"start": str(NOW - 300), "end": str(NOW)}
    told = get("query", query="power", time=str(NOW)).json()["data"]["result"]
    assert {name for each in told for name in each["metric"]} == {"__name__", "user", "host"}
    told = get("series", **{"match[]": "power"}, **span).json()["data"]
    assert {name for each in told for name in each} == {"__name__", "user", "host"}
    assert set(get("labels", **span).json()["data"]) == {"__name__", "user", "host"}
    assert get("label/kind/values", **span).status == 404
    assert get("label/host/values", **span).json()["data"]
    for query in (
        'power{kind="a"}',
        'sum(power{job_id=~"7.*"})',
        "sum by (kind) (power)",
        "sum without (kind) (power)",
        "power * on (job_id) power",
        "power * on (host) group_left (kind) power",
        'label_replace(power, "host", "$1", "kind", "(.*)")',
        'label_replace(power, "kind", "$1", "host", "(.*)")',
        'label_join(power, "host", "-", "user", "kind")',
        'count_values("kind", power)',
    ):
        assert get("query", query=query, time=str(NOW)).status == 400, query
    assert get("series", **{"match[]": 'power{kind="a"}'}, **span).status == 400


@pytest.mark.parametrize(
    "query",
    [
        *("power @ 0", f"power @ {NOW + 500 * 86400}", "power offset 401d", "power offset -401d"),
        *("rate(power[402d])", "max_over_time(power[500d:1d])", "sum(power[5m] @ 100)"),
        "max_over_time(power[1h:1h] offset 500d)",
    ],
)
def test_nobody_looks_beyond_what_is_kept(
    centre: World, clients: tuple[Client, Client], query: str
) -> None:
    answer = asked(clients, token(centre), "query?" + urlencode({"query": query}))
    assert answer.status == 400
    near = urlencode({"query": f"power @ {NOW - 60} offset 1m", "time": str(NOW)})
    assert asked(clients, token(centre), f"query?{near}").status == 200


@pytest.mark.parametrize(
    "target",
    [
        "query",
        "query?query=power&query=power",
        "query?query=power&more=1",
        "query?query=power&time=never",
        "query?query=power&time=-5",
        "query?query=power&time=nan",
        "query?query=power{user%3D%22ada%22%20or%20user%3D%22bob%22}",
        "query?query=info(power)",
        "query?query=%ff",
        "query_range?query=power&start=0&end=1",
        "query_range?query=power&start=0&end=1e9&step=1",
        "query_range?query=power&start=0&end=1&step=0",
        "series?match[]=sum(power)",
        "series?match[]=power&match[]=solo",
        "labels?match[]=",
        "labels?limit=-1",
    ],
)
def test_what_cannot_be_checked_is_refused(
    centre: World, clients: tuple[Client, Client], target: str
) -> None:
    answer = asked(clients, token(centre), target)
    assert answer.status == 400
    assert answer.json()["status"] == "error" and answer.json()["error"]


def test_a_question_is_asked_in_one_place(centre: World, clients: tuple[Client, Client]) -> None:
    body = urlencode({"query": 'power{user="bob"}'})
    answer = asked(clients, token(centre), "query?query=1", body)
    assert answer.status == 400 and "both" in answer.json()["error"]


@pytest.mark.parametrize(
    "target",
    [
        "targets",
        "rules",
        "alerts",
        "metadata",
        "status/config",
        "admin/tsdb/snapshot",
        "read",
        "query/",
        "/query?query=power",
        "label/user%2Fx/values",
        "label/us%20er/values",
        "label/user/values/..",
        "../../federate",
        "Query?query=power",
    ],
)
def test_there_is_no_other_door(centre: World, clients: tuple[Client, Client], target: str) -> None:
    answer = asked(clients, token(centre), target)
    assert answer.status == 404


def test_nobody_asks_unknown(centre: World, clients: tuple[Client, Client]) -> None:
    for shown in (None, "Bearer lt_wrong", "Basic YWRhOmFkYQ=="):
        answer = clients[0].get(
            f"{PATH}/query?query=power", authorization=shown, x_grafana_user="ada"
        )
        assert answer.status == 401


def test_a_server_that_is_gone_is_said_to_be(centre: World) -> None:
    settings = replace(centre.keeper.settings, prometheus="http://127.0.0.1:9")
    client = Client(centre.client.portal, make_app(replace(centre.keeper, settings=settings)))
    answer = client.get(f"{PATH}/query?query=power", authorization=token(centre))
    assert answer.status == 502 and "127.0.0.1" not in answer.body.decode()
    assert client.get("/api/v1/me", authorization=token(centre)).status == 200
    with pytest.raises(InvalidInput, match="address"):
        Upstream("file:///etc/passwd")


def test_nothing_goes_on_as_it_came() -> None:
    wanted = narrowed(
        "query_range",
        {"query": ["up"], "start": ["0"], "end": ["60"], "step": ["1m"], "timeout": ["9h"]},
        ADA,
    )
    assert wanted == {
        "query": 'up{user=~"ada"}',
        "start": "0.0",
        "end": "60.0",
        "step": "60.0",
        "timeout": "30s",
    }
    assert narrowed("labels", {}, ADA) == {"match[]": '{user=~"ada"}'}
    assert narrowed("labels", {}, None) == {}
