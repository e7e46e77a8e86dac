"""Who is who: accounts in a tree, who leads them, who is in them, and the staff.

It comes from the site's own list, or from Slurm, once per cluster, and is kept in the centre's
tables. Who is no longer named has left: the row says since when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from lowtide.errors import SlurmProblem
from lowtide.serve.schema import accounts, jobs, members, staff
from lowtide.serve.settings import Settings
from lowtide.serve.sums import among
from lowtide.serve.viewer import Rights, Role, Viewer
from lowtide.store.database import Database

# What Slurm's levels are here. An operator sees all there, too.
_LEVELS: dict[str, Role] = {"operator": "support", "administrator": "admin"}
Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """Who is who in a cluster.

    Attributes:
        parents: The account that each is a part of; empty for none.
        members: Pairs of an account and a user.
        leads: Pairs of an account and who leads it.
        staff: What some are to all.
    """

    cluster: str
    parents: dict[str, str] = field(default_factory=dict)
    members: frozenset[tuple[str, str]] = frozenset()
    leads: frozenset[tuple[str, str]] = frozenset()
    staff: dict[str, Role] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings) -> Roster:
        """Return who is who by the site's own list."""
        named = settings.accounts.items()
        return cls(
            cluster=settings.cluster,
            parents={name: account.parent for name, account in named},
            members=frozenset((name, user) for name, each in named for user in each.members),
            leads=frozenset((name, user) for name, each in named for user in each.leads),
            staff=_staff(settings, {}),
        )

    @classmethod
    def from_slurm(cls, settings: Settings, ask: Ask) -> Roster:
        """Return who is who by Slurm's accounting.

        Args:
            ask: Runs a command and returns what it prints.
        """
        show = ("sacctmgr", "--noheader", "--parsable2", "show")
        parents: dict[str, str] = {}
        inside = set()
        where = ("where", f"cluster={settings.cluster}") if settings.cluster else ()
        form = "format=account,user,parentname"
        for account, user, parent in _lines(ask((*show, "assoc", *where, form)), 3):
            if user:
                inside.add((account, user))
            else:
                parents[account] = parent
        leads = set()
        coordinators = (*show, "account", "withcoordinator", "format=account,coordinators")
        for account, names in _lines(ask(coordinators), 2):
            leads |= {(account, name) for name in names.split(",") if name}
        levels = _lines(ask((*show, "user", "format=user,adminlevel")), 2)
        found = {user: _LEVELS[level.lower()] for user, level in levels if level.lower() in _LEVELS}
        return cls(
            cluster=settings.cluster,
            parents=parents,
            members=frozenset(inside),
            leads=frozenset(leads),
            staff=_staff(settings, found),
        )

    def keep(self, database: Database, *, now: float) -> None:
        """Bring it into the centre's tables.

        Args:
            now: The present moment, epoch seconds: by then who is missing has left.
        """
        with database.writing() as connection:
            here = accounts.c.cluster == self.cluster
            connection.execute(sa.delete(accounts).where(here))
            tree = [
                {"cluster": self.cluster, "account": name, "parent": parent}
                for name, parent in self.parents.items()
            ]
            if tree:
                connection.execute(sa.insert(accounts), tree)
            rows = connection.execute(
                sa.select(members).where(members.c.cluster == self.cluster)
            ).all()
            known = {(row.account, row.user): row for row in rows}
            for pair in sorted(self.members | self.leads):
                row = known.pop(pair, None)
                leads = pair in self.leads
                if row is not None and row.until is None and row.leads == leads:
                    continue
                _drop(connection, self.cluster, pair)
                since = now if row is None or row.until is not None else row.since
                named = {"cluster": self.cluster, "account": pair[0], "user": pair[1]}
                connection.execute(
                    sa.insert(members), {**named, "leads": leads, "since": since, "until": None}
                )
            for pair, row in known.items():
                if row.until is None:
                    mine = (members.c.account == pair[0]) & (members.c.user == pair[1])
                    here = members.c.cluster == self.cluster
                    connection.execute(sa.update(members).where(here, mine).values(until=now))
            connection.execute(sa.delete(staff))
            if self.staff:
                named_staff = [{"user": user, "role": role} for user, role in self.staff.items()]
                connection.execute(sa.insert(staff), named_staff)


def rights_of(database: Database, user: str, *, visibility: str = "sums") -> Rights:
    """Return what somebody is to others.

    Args:
        visibility: What members of an account see of it, one of `settings.VISIBILITIES`.
    """
    with database.reading() as connection:
        found = connection.execute(sa.select(staff.c.role).where(staff.c.user == user)).scalar()
        mine = connection.execute(
            sa.select(members).where(members.c.user == user, members.c.until.is_(None))
        ).all()
        below: dict[tuple[str, str], list[str]] = defaultdict(list)
        if any(row.leads for row in mine):
            for row in connection.execute(sa.select(accounts)):
                below[row.cluster, row.parent].append(row.account)
    led: set[tuple[str, str]] = set()
    waiting = [(row.cluster, row.account) for row in mine if row.leads]
    while waiting:
        cluster, account = waiting.pop()
        # A tree that bites its own tail is walked once.
        if (cluster, account) not in led:
            led.add((cluster, account))
            waiting += [(cluster, each) for each in below[cluster, account]]
    member = {(row.cluster, row.account) for row in mine}
    if visibility == "jobs":
        led |= member
    role: Role = found if found in ("support", "admin") else "user"
    return Rights(role=role, leads=_joined(led), member=_joined(member))


def metric_owners(viewer: Viewer) -> tuple[str, ...]:
    """Return whose series somebody may see who does not see all.

    A series names its user, and not the account that pays. So who leads accounts may see the
    series of those who can use no other: who is in one besides, or ever had a job elsewhere, shows
    theirs to themselves alone.
    """
    led = viewer.rights.leads
    if not led:
        return (viewer.user,)
    inside, current = among(members, led), members.c.until.is_(None)
    elsewhere = sa.union(
        sa.select(members.c.user).where(current, sa.not_(inside)),
        sa.select(jobs.c.user).where(
            jobs.c.user.in_(sa.select(members.c.user).where(inside)),
            sa.or_(jobs.c.account.is_(None), sa.not_(among(jobs, led))),
            # Of a job that goes on it may not be known yet what pays for it.
            sa.or_(jobs.c.settled, jobs.c.account.is_not(None)),
        ),
    )
    with viewer.database.reading() as connection:
        found = set(connection.execute(sa.select(members.c.user).where(inside, current)).scalars())
        found -= set(connection.execute(elsewhere).scalars())
    return tuple(sorted({*found, viewer.user} - {""}))


def _joined(pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(f"{cluster}/{account}" for cluster, account in pairs)


def _staff(settings: Settings, found: dict[str, Role]) -> dict[str, Role]:
    """Return the staff that Slurm and the site name; the site's own word counts."""
    named: dict[str, Role] = dict.fromkeys(settings.support, "support")
    return {**found, **named, **dict.fromkeys(settings.admins, "admin")}


def _drop(connection: sa.Connection, cluster: str, pair: tuple[str, str]) -> None:
    of = members.c
    mine = (of.cluster == cluster) & (of.account == pair[0]) & (of.user == pair[1])
    connection.execute(sa.delete(members).where(mine))


def _lines(text: str, width: int) -> list[list[str]]:
    """Return what sacctmgr printed, line by line."""
    lines = [line.split("|") for line in text.splitlines() if line.strip()]
    for line in lines:
        if len(line) != width:
            raise SlurmProblem(
                f"sacctmgr printed {len(line)} columns instead of {width}: {'|'.join(line)[:200]}"
            )
    return lines
