"""Whatever of others' the staff is shown, on whichever route, is written down for its owner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from lowtide.serve.app import make_app
from lowtide.serve.schema import audit
from support.worlds import BOBS, NOW, START, World, world

HOURS = f"start={START // 3600 * 3600:.0f}&end={NOW // 3600 * 3600 + 3600:.0f}"
# What of bob's each route shows to who sees all. Of chem nobody but he used anything.
SHOWN = {
    "/jobs": ("/jobs", "/jobs?user=bob", "/jobs?name=secret"),
    "/jobs/{ref}": ("/jobs/{ref}",),
    "/compare": ("/compare", "/compare?a={ref}&b={ref}"),
    "/when": ("/when?like={ref}",),
    "/waste": ("/waste",),
    "/usage": ("/usage?by=user", "/usage?by=account"),
    "/projects/{cluster}/{account}": ("/projects/alps/chem",),
    "/reports": ("/reports?month=2023-11",),
    "/reports/{month}.parquet": ("/reports/2023-11.parquet",),
    "/nodes/{name}": ("/nodes/n1",),
    "/api/v1/jobs": tuple(f"/api/v1/jobs?format={form}" for form in ("json", "csv", "parquet")),
    "/api/v1/jobs/{ref}": ("/api/v1/jobs/{ref}",),
    "/api/v1/jobs/{ref}/course": ("/api/v1/jobs/{ref}/course", "/api/v1/jobs/{ref}/course?end=1"),
    "/api/v1/jobs/{ref}/steps": ("/api/v1/jobs/{ref}/steps",),
    "/api/v1/table": ("/api/v1/table", "/api/v1/table?job=11", "/api/v1/table?phases=1"),
    "/api/v1/nodes/{name}/course": ("/api/v1/nodes/n1/course?start=0",),
    "/api/v1/nodes/{name}/steps": ("/api/v1/nodes/n1/steps",),
    "/api/v1/usage": (
        *(f"/api/v1/usage?by=user&{HOURS}", f"/api/v1/usage?by=state&user=bob&{HOURS}"),
        *(f"/api/v1/usage?by=account&{HOURS}", f"/api/v1/usage?by=day&account=chem&{HOURS}"),
    ),
    "/api/v1/waste": ("/api/v1/waste",),
    "/api/v1/plans": ("/api/v1/plans?like={ref}",),
}
# What shows nothing that is one user's, and why.
OF_NOBODY = {
    **dict.fromkeys(
        ("/", "/looks", "/settings", "/api/v1/looks", "/api/v1/me", "/api/v1/tokens"),
        "what is the staff's own",
    ),
    **dict.fromkeys(("/method", "/api/v1/openapi.json", "/static", "/login"), "the same for all"),
    **dict.fromkeys(
        (
            "/nodes",
            "/cluster",
            "/api/v1/nodes",
            "/api/v1/nodes/{name}",
            "/api/v1/synthetic",
            "/api/v1/grid",
            "/api/v1/queue",
        ),
        "nodes as everybody is told of them, and the site as a whole",
    ),
    **dict.fromkeys(("/health", "/api/v1/health"), "nodes, and pieces that were not taken"),
    "/audit": "who looked, not at what is in it",
    "/projects": "names of accounts",
    "/projects/{account}": "a project without a cluster's name, of which there is none here",
    **dict.fromkeys(
        ("/enter/{key}", "/leave", "/stop/{key}", "/api/v1/token"), "doors, that show nothing"
    ),
    "/jobs/{ref}/links": "a form, and nobody's but whose job it is",
    "/shared/{key}": "what its maker shows of theirs, as in `test_job_links`",
    **dict.fromkeys(
        ("/settings/mails", "/settings/tokens", "/settings/tokens/{number:int}"),
        "forms of the staff's own settings",
    ),
    "/ingest/v1/{cluster}/{host}/{incarnation}/{seq:int}": "for nodes",
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("looks")
    with world(str(folder / "centre.sqlite"), folder, BOBS["many"]) as made:
        yield made


def test_every_route_is_in_one_of_the_lists(one: World) -> None:
    paths = {route.path for route in make_app(one.keeper)._routes}  # type: ignore[attr-defined]
    assert paths == set(SHOWN) | set(OF_NOBODY)
    assert not set(SHOWN) & set(OF_NOBODY)


@pytest.mark.parametrize("who", ["sue", "adam"])
@pytest.mark.parametrize("target", [each for some in SHOWN.values() for each in some])
def test_a_look_is_written_down(one: World, who: str, target: str) -> None:
    [ref, *_] = [
        each["ref"] for each in one.get("bob", "/api/v1/jobs").json()["jobs"] if each["ended"]
    ]
    with one.keeper.database.writing() as connection:
        connection.execute(sa.delete(audit))
    assert one.get("bob", "/api/v1/looks").json()["looks"] == []
    assert one.get(who, target.format(ref=ref)).status == 200
    looks = one.get("bob", "/api/v1/looks").json()["looks"]
    assert looks
    role = {"sue": "support", "adam": "admin"}[who]
    assert {(look["viewer"], look["role"]) for look in looks} == {(who, role)}
    assert all(look["what"] for look in looks)


def test_looking_at_ones_own_is_no_look(one: World) -> None:
    with one.keeper.database.writing() as connection:
        connection.execute(sa.delete(audit))
    for who in ("bob", "cy", "lea", "ada"):
        for targets in SHOWN.values():
            for target in targets:
                one.get(who, target.format(ref="0" * 20))
    with one.keeper.database.reading() as connection:
        assert connection.execute(sa.select(audit)).all() == []
