"""How a centre is set up: one TOML file, read once, with no key that nobody knows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lowtide.centre.asking import is_private
from lowtide.errors import FileProblem, InvalidInput, UnknownName
from lowtide.files import read_document
from lowtide.hindsight.waste import RULES
from lowtide.monitor.exporter import load_token
from lowtide.slurm.fields import expand_nodes
from lowtide.store import JobRecord

# Neither quotes nor spaces nor line breaks: such an address needs no escaping in a header.
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
VISIBILITIES = ("sums", "jobs")
TOTALS = ("groups", "all")
PERIODS = ("month", "quarter", "year")
# What lowtide's own series are told apart by, and what Prometheus says of where it has them from.
SHOWN_LABELS = (
    *("__name__", "user", "host", "source", "job_id", "cluster", "name", "kind", "meter"),
    *("gpu", "uuid", "socket", "instance", "job"),
)
SOURCES = ("table", "slurm")
# What `proxy` is where the proxy comes by a Unix socket.
SOCKET = "unix"
TELLERS = ("nodes", "slurm")
_SERVICE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an account is to use at most.

    Attributes:
        kwh: Energy in each period; 0 for no such limit.
        kg: Emissions in each period, CO2e; 0 for no such limit.
        per: How long a period is, one of `PERIODS`, by the calendar (UTC).
    """

    kwh: float = 0.0
    kg: float = 0.0
    per: str = "month"

    def __post_init__(self) -> None:
        if self.per not in PERIODS:
            raise UnknownName("per", self.per, PERIODS)
        for name, value in (("kwh", self.kwh), ("kg", self.kg)):
            if not 0 <= value < math.inf:
                raise InvalidInput(f"{name} of a budget is a number from 0 on, not {value}")
        if not self.kwh and not self.kg:
            raise InvalidInput("a budget is of kwh, of kg, or of both: name one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account as the file has it.

    Attributes:
        parent: The account that it is a part of; empty for none.
        leads: Who sees the jobs of all its members, and of accounts below it.
        members: Who may use it.
        budget: What it is to use at most; None for no limit.
        nodes: Nodes that are its own, as Slurm lists them: `n1`, `n[2-4]`.
    """

    parent: str = ""
    leads: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    budget: Budget | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """Who proves identities by OpenID Connect.

    Roles are none of its business: who is staff or leads an account is said elsewhere.

    Attributes:
        issuer: Its address, to the letter as it names itself.
        client_id: What this centre is called there.
        client_secret_file: Where the secret is that goes with it; empty for a public client.
        user_claim: The claim of its ID tokens that has the user's name on the cluster.
        user_suffix: What stands behind the name in that claim, such as `@example.org`: a name with
            another is nobody here.
        groups_claim: The claim that lists groups; empty where they do not matter.
        groups: Whoever is in one of these may log in; empty for everybody.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret_file: str = ""
    user_claim: str = "preferred_username"
    user_suffix: str = ""
    groups_claim: str = ""
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.issuer) != bool(self.client_id):
            raise InvalidInput("[oidc] takes the issuer, and the client_id of this centre there")
        if self.issuer and not is_private(self.issuer):
            raise InvalidInput(f"the issuer of [oidc] is an address with https, not {self.issuer}")
        if bool(self.groups) != bool(self.groups_claim):
            raise InvalidInput(
                "[oidc] takes groups_claim and groups together: which claim, and who of it may in"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLogin:
    """A proxy that has proved who somebody is, and says so in a header.

    It is believed if it comes by a Unix socket or from the address `proxy`, and brings the secret.

    Attributes:
        header: The header with the user's name; empty where no proxy is believed.
        secret_file: Where the secret is that it shows in the header `X-Lowtide-Secret`.
    """

    header: str = ""
    secret_file: str = ""

    def __post_init__(self) -> None:
        if bool(self.header) != bool(self.secret_file):
            raise InvalidInput("[proxy_login] takes a header and a secret_file: name both")
        if self.header and not _HEADER.fullmatch(self.header):
            raise InvalidInput(f"a header is named such as X-Remote-User, not {self.header!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exempt:
    """Which jobs are never named for waste.

    Attributes:
        users: Those of these users.
        accounts: Those of these accounts.
        partitions: Those in these partitions, such as one for work at a terminal.
        names: Those whose name begins so.
        rules: What nobody is named for here, of `hindsight.waste.RULES`.
    """

    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule not in RULES:
                raise UnknownName("rule", rule, RULES)

    def covers(self, job: JobRecord) -> bool:
        """Return whether a job is never named."""
        named = (job.user in self.users, job.account in self.accounts)
        return (
            any(named)
            or job.partition in self.partitions
            or any((job.name or "").startswith(each) for each in self.names)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """How users are written to.

    Attributes:
        server: The server that takes mails, as `HOST:PORT`.
        sender: Whom mails are from.
        domain: What stands behind a user's name and @.
        copy_to: Who gets a copy of each; empty for nobody.
        every_days: Nobody gets more than one mail in so many days.
        least_kwh: Nobody is written to for less.
        holidays: Days on which nobody is written to besides weekends, as `2026-12-25`.
    """

    server: str = "127.0.0.1:25"
    sender: str = ""
    domain: str = ""
    copy_to: str = ""
    every_days: int = 14
    least_kwh: float = 1.0
    holidays: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sender", "copy_to"):
            address = getattr(self, name)
            if address and not _ADDRESS.fullmatch(address):
                raise InvalidInput(f"{name} in [mail] is an address such as hpc@example.org")
        if self.domain and not _ADDRESS.fullmatch(f"x@{self.domain}"):
            raise InvalidInput("domain in [mail] is what stands behind the @: example.org")
        host, _, port = self.server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidInput("server in [mail] is a host and a port, such as mail.example.org:25")
        if self.every_days < 1 or not 0 <= self.least_kwh < math.inf:
            raise InvalidInput("every_days in [mail] is 1 at least, and least_kwh 0")
        for day in self.holidays:
            try:
                date.fromisoformat(day)
            except ValueError:
                raise InvalidInput(
                    f"holidays in [mail] are days such as 2026-12-25, not {day}"
                ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSettings:
    """For how long what is kept how finely, days.

    Attributes:
        looks_days: How long every look is kept.
        minutes_days: How long a value per minute is kept; after that, one per hour.
        courses_days: How long anything over time is kept; 0 for ever. What jobs came to stays.
    """

    looks_days: float = 7.0
    minutes_days: float = 90.0
    courses_days: float = 0.0

    def __post_init__(self) -> None:
        if not 2 <= self.looks_days <= self.minutes_days < math.inf:
            raise InvalidInput(
                "[keep] takes looks_days of 2 at least, and minutes_days no less than that"
            )
        if self.courses_days and not self.minutes_days <= self.courses_days < math.inf:
            raise InvalidInput(
                "courses_days in [keep] is 0, for ever, or no less than minutes_days"
            )


# Where a centre's settings are if nobody says where.
USUAL_PLACE = Path("/etc/lowtide/serve.toml")


def find_settings(config: Path | None) -> Settings:
    """Read the settings of a centre.

    Args:
        config: The file; None for the usual one.
    """
    if config is None and not USUAL_PLACE.exists():
        raise InvalidInput(
            f"a centre is set up by a file, and there is none at {USUAL_PLACE}: write it, or name "
            "another with --config FILE"
        )
    return Settings.read(USUAL_PLACE if config is None else config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a centre is set up.

    Attributes:
        cluster: What the cluster is called.
        store: Where everything is kept, a file or `postgresql://…`; `--store` goes before it.
        url: Where people find the centre; its host is the only one that is answered to.
        certificate: For TLS, a file; without one a proxy has to have it.
        key: What belongs to it.
        proxy: The address from which the proxy comes that has TLS, or `unix` for one that comes by
            a Unix socket; empty where there is none.
        accounts_from: Who knows accounts and their coordinators: `slurm`, or this file's `table`.
        project_visibility: What members of an account see of it: `sums`, or `jobs`.
        least_users: So many others have to be in a sum for it to be told to somebody who may not
            see their jobs.
        cluster_totals: Who is told what all nodes do together: those who see all, and others while
            such a group of `least_users` has jobs (`groups`), or everybody always (`all`).
        munge: Whether whoever holds a munge credential of this cluster may log in by it.
        munge_socket: Where munge listens; empty for the usual place.
        pam: The service of PAM's by which passwords are checked; empty where none are taken.
        pam_folder: Where PAM's services are described; empty for the usual place.
        oidc: Who proves identities by OpenID Connect.
        proxy_login: A proxy that says who somebody is.
        facts_from: Who tells which jobs there are and how they ended: the `nodes` that ran them, or
            besides them `slurm`, which the centre asks itself.
        support: Who sees everybody's jobs, which is written down.
        admins: Who does besides what is to be done.
        share_links: Whether people may make links that show a job of theirs to whoever has them.
        requests_per_minute: How often each token, and each user's browsers, may ask; 0 for as often
            as they like.
        prometheus: Where a Prometheus is whose metrics people may ask for here, each for their own;
            empty where none is.
        prometheus_label: The label of its series that says whose they are.
        prometheus_labels: The labels that are told, and may be named, to those who do not see all.
        prometheus_days: How long it keeps what it has: who does not see all is told of no more.
        accounts: Accounts by name: their budgets, and for `accounts_from = "table"` all else.
        exempt: Which jobs are never named for waste.
        mail: How users are written to.
        keep: For how long what is kept how finely.
    """

    cluster: str = ""
    store: str = ""
    url: str = ""
    certificate: str = ""
    key: str = ""
    proxy: str = ""
    accounts_from: str = "table"
    project_visibility: str = "sums"
    least_users: int = 5
    cluster_totals: str = "groups"
    munge: bool = False
    munge_socket: str = ""
    pam: str = ""
    pam_folder: str = ""
    oidc: OidcSettings = field(default_factory=OidcSettings)
    proxy_login: ProxyLogin = field(default_factory=ProxyLogin)
    facts_from: str = "nodes"
    support: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    share_links: bool = True
    requests_per_minute: int = 1200
    prometheus: str = ""
    prometheus_label: str = "user"
    prometheus_labels: tuple[str, ...] = SHOWN_LABELS
    prometheus_days: int = 400
    accounts: Mapping[str, Account] = field(default_factory=dict)
    exempt: Exempt = field(default_factory=Exempt)
    mail: MailSettings = field(default_factory=MailSettings)
    keep: KeepSettings = field(default_factory=KeepSettings)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("accounts_from", self.accounts_from, SOURCES),
            ("project_visibility", self.project_visibility, VISIBILITIES),
            ("facts_from", self.facts_from, TELLERS),
            ("cluster_totals", self.cluster_totals, TOTALS),
        ):
            if value not in known:
                raise UnknownName(name, value, known)
        if self.prometheus_days < 1:
            raise InvalidInput("prometheus_days is 1 at least: for so long Prometheus keeps series")
        if self.requests_per_minute < 0:
            raise InvalidInput("requests_per_minute is 0 at least, which is as often as they like")
        _ = self.node_owners
        if self.least_users < 2:
            raise InvalidInput("least_users is 2 at least: a sum of one user is that user")
        if bool(self.certificate) != bool(self.key):
            raise InvalidInput("TLS takes a certificate and its key: name both files, or neither")
        if (self.munge or self.oidc.issuer) and not self.url:
            raise InvalidInput("a login by munge or OpenID Connect is for one centre: name its url")
        if self.proxy_login.header and not self.proxy:
            raise InvalidInput(
                '[proxy_login] is for one proxy: name its address, or proxy = "unix"'
            )
        if self.pam and not _SERVICE.fullmatch(self.pam):
            raise InvalidInput(f"pam is the name of a service of PAM's, not {self.pam!r}")
        if self.url and (urlsplit(self.url).scheme not in ("http", "https") or not self.host):
            raise InvalidInput(f"url is where people find the centre, such as https://{self.url}")

    @property
    def node_owners(self) -> dict[str, str]:
        """Whose each node is that is an account's own."""
        owners: dict[str, str] = {}
        for account, each in self.accounts.items():
            for name in expand_nodes(",".join(each.nodes)):
                if owners.setdefault(name, account) != account:
                    raise InvalidInput(
                        f"{name} is named as a node of {owners[name]} and of {account}: leave one"
                    )
        return owners

    @property
    def host(self) -> str:
        """The host in `url`."""
        return urlsplit(self.url).hostname or ""

    @property
    def is_encrypted(self) -> bool:
        """Whether browsers come by https."""
        return self.url.startswith("https:") or bool(self.certificate)

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Read a file.

        Args:
            path: The file, in TOML.
        """
        given = _checked(cls, read_document(path, "toml"), str(path))
        accounts = given.pop("accounts", {})
        if not isinstance(accounts, dict):
            raise InvalidInput(f"accounts in {path} are tables: [accounts.NAME]")
        parts: dict[str, type] = {"oidc": OidcSettings, "proxy_login": ProxyLogin}
        parts |= {"exempt": Exempt, "mail": MailSettings, "keep": KeepSettings}
        for name, kind in parts.items():
            if name in given:
                given[name] = kind(**_checked(kind, given[name], f"[{name}] of {path}"))
        return cls(
            **given,
            accounts={
                name: _account(said, f"accounts.{name}", str(path))
                for name, said in accounts.items()
            },
        )


def read_secret(path: str) -> str:
    """Return what a file has that somebody else has given out."""
    place = Path(path)
    if not place.exists():
        raise FileProblem(
            f"there is no secret in {place}: write there what you were given", path=place
        )
    return load_token(place)


def _account(document: Any, name: str, path: str) -> Account:
    """Return an account as a file has it."""
    given = _checked(Account, document, f"[{name}] of {path}")
    if "budget" in given:
        where = f"[{name}.budget] of {path}"
        given["budget"] = Budget(**_checked(Budget, given["budget"], where))
    return Account(**given)


def _checked(kind: type, document: Any, where: str) -> dict[str, Any]:
    """Return what a table says, each of the kind that it has to be."""
    if not isinstance(document, dict):
        raise InvalidInput(f"{where} is a table")
    known = {each.name: str(each.type) for each in fields(kind)}
    given = {}
    for name, value in document.items():
        if name not in known:
            raise UnknownName(f"key in {where}", name, known)
        if known[name].startswith("tuple"):
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise InvalidInput(f'{name} in {where} is a list of names, such as ["ada"]')
            value = tuple(value)
        elif known[name] in ("int", "float"):
            if isinstance(value, bool) or not isinstance(
                value, int if known[name] == "int" else (int, float)
            ):
                raise InvalidInput(f"{name} in {where} is a number, not {value!r}")
        elif known[name] in ("str", "bool") and type(value).__name__ != known[name]:
            raise InvalidInput(f"{name} in {where} is a {known[name]}, not {value!r}")
        given[name] = value
    return given
