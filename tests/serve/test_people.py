"""Who is who: from the site's list and from Slurm, and what becomes of those who leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowtide.errors import InvalidInput, SlurmProblem, UnknownName
from lowtide.serve import schema
from lowtide.serve.people import Roster, rights_of
from lowtide.serve.settings import Account, Settings
from lowtide.store.database import Database
from support.pushed import CLUSTER, Node, centre, rows
from support.ticks import facts, unit

SETTINGS = Settings(
    cluster=CLUSTER,
    support=("sue",),
    accounts={
        "phys": Account(leads=("lea",), members=("ada",)),
        "quark": Account(parent="phys", members=("cy",)),
        "top": Account(parent="quark", members=("ada",)),
        "chem": Account(members=("bob",)),
    },
)
# As sacctmgr 22.05 prints it: account, user, parent; the first line of an account has no user.
PRINTED = {
    "assoc": "root||\nroot|root|\nphys||root\nphys|ada|\nquark||phys\nquark|cy|\nchem||root\n"
    "chem|bob|\n",
    "account": "chem|\nphys|lea\nquark|\nroot|\n",
    "user": "ada|None\nadam|Administrator\nbob|None\nroot|Administrator\nsue|Operator\n",
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with centre(str(tmp_path / "centre.sqlite")) as made:
        yield made


def _ask(command: Sequence[str]) -> str:
    return PRINTED[command[4]]


def test_who_leads_an_account_leads_those_below(database: Database) -> None:
    Roster.from_settings(SETTINGS).keep(database, now=1.0)
    lea = rights_of(database, "lea")
    assert lea.leads == {f"{CLUSTER}/{name}" for name in ("phys", "quark", "top")}
    assert lea.role == "user"
    ada = rights_of(database, "ada")
    assert (ada.leads, ada.member) == (set(), {f"{CLUSTER}/phys", f"{CLUSTER}/top"})
    assert rights_of(database, "ada", visibility="jobs").leads == ada.member
    assert rights_of(database, "sue").role == "support"
    assert rights_of(database, "eve") == rights_of(database, "")


def test_who_left_is_remembered_and_sees_no_more(database: Database) -> None:
    Roster.from_settings(SETTINGS).keep(database, now=1.0)
    Roster.from_settings(SETTINGS).keep(database, now=2.0)
    assert {row["since"] for row in rows(database, schema.members)} == {1.0}
    without = Settings(cluster=CLUSTER, accounts={"phys": Account(members=("ada",))})
    Roster.from_settings(without).keep(database, now=3.0)
    assert not rights_of(database, "lea").leads
    assert rights_of(database, "sue").role == "user"
    left = {row["user"]: row["until"] for row in rows(database, schema.members)}
    assert left == {"ada": None, "lea": 3.0, "cy": 3.0, "bob": 3.0} | {"ada": left["ada"]}
    Roster.from_settings(SETTINGS).keep(database, now=4.0)
    assert rights_of(database, "lea").leads
    again = {row["user"]: row["since"] for row in rows(database, schema.members)}
    assert (again["lea"], again["bob"]) == (4.0, 4.0)


def test_slurm_knows_who_is_who(database: Database) -> None:
    settings = Settings(cluster=CLUSTER, accounts_from="slurm", admins=("sue",))
    Roster.from_slurm(settings, _ask).keep(database, now=1.0)
    assert rights_of(database, "lea").leads == {f"{CLUSTER}/phys", f"{CLUSTER}/quark"}
    assert rights_of(database, "cy").member == {f"{CLUSTER}/quark"}
    assert rights_of(database, "adam").role == "admin"
    # The site's own word counts.
    assert rights_of(database, "sue").role == "admin"
    with pytest.raises(SlurmProblem, match="columns"):
        Roster.from_slurm(settings, lambda _: "slurmdbd: error\n")


def test_a_tree_that_bites_its_tail_is_walked_once(database: Database) -> None:
    accounts = {"a": Account(parent="b", leads=("lea",)), "b": Account(parent="a")}
    Roster.from_settings(Settings(cluster=CLUSTER, accounts=accounts)).keep(database, now=1.0)
    assert rights_of(database, "lea").leads == {f"{CLUSTER}/a", f"{CLUSTER}/b"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('clustr = "alps"', UnknownName),
        ("cluster = 5", InvalidInput),
        ('support = "sue"', InvalidInput),
        ("support = [1]", InvalidInput),
        ("munge = 1", InvalidInput),
        ("munge = true", InvalidInput),
        ('url = "energy.example.org"', InvalidInput),
        ('accounts_from = "ldap"', UnknownName),
        ('project_visibility = "all"', UnknownName),
        ('certificate = "x.pem"', InvalidInput),
        ("accounts = 5", InvalidInput),
        ("[accounts]\nphys = 5", InvalidInput),
        ("[accounts.phys]\nleeds = []", UnknownName),
    ],
)
def test_a_file_that_nobody_meant_is_refused(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(error):
        Settings.read(path)


def test_slurm_tells_a_centre_what_became_of_jobs(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked once for the cluster: jobs of nodes that know no Slurm, and those that still wait."""
    import time

    from lowtide.cli.serve import _looking_after
    from lowtide.slurm.client import Answer, SlurmClient

    begun = time.time() - 125.0
    node = Node(tmp_path / "n1.sqlite", time=begun)
    for _ in range(12):
        node.tick([unit(1, user="ada", started=begun)])
    node.push(database)
    node.store.close()
    told = [
        facts(1, state="completed", user="ada", account="phys", started=begun, ended=begun + 120.0),
        facts(2, state="pending", user="bob", account="chem", submitted=begun),
    ]
    asked: list[float | None] = []

    def answer(_: SlurmClient, *, since: float | None = None, queue: bool = True) -> Answer:
        asked.append(since)
        return Answer(told if queue else [], (), None if since is None else time.time(), True)

    monkeypatch.setattr(SlurmClient, "facts", answer)
    settings = Settings(cluster=CLUSTER, facts_from="slurm")
    with _looking_after(database, settings) as look:
        end = time.monotonic() + 20.0
        while len(rows(database, schema.jobs)) < 2 and time.monotonic() < end:
            look()
            time.sleep(0.02)
        look()
    found = {row["job_id"]: row for row in rows(database, schema.jobs)}
    assert {name: row["cluster"] for name, row in found.items()} == {"1": CLUSTER, "2": CLUSTER}
    assert (found["1"]["state"], found["1"]["account"]) == ("completed", "phys")
    assert found["1"]["energy_j"] == pytest.approx(12_000.0)
    assert (found["2"]["state"], found["2"]["settled"]) == ("pending", False)
    # The job that ended is in the sums by then, the one that waits is not.
    days = rows(database, schema.usage_day)
    assert {day["account"] for day in days} == {"phys"}
    assert sum(day["jobs"] for day in days) == 1
