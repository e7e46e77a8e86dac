"""`lowtide serve`: pages and an API of what was watched, of this machine or of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import marks_for
from lowtide.cli.options import StorePlace
from lowtide.cli.output import TABLE, Column, Form, print_rows, say, warn

if TYPE_CHECKING:
    import socket as sockets

    from starlette.types import ASGIApp

    from lowtide.monitor.snapshot import JobFacts
    from lowtide.serve.gate import Doorkeeper
    from lowtide.serve.local import Mirror
    from lowtide.serve.settings import Settings
    from lowtide.store.database import Database

# How often a machine's own store is looked at, a centre looked after, and who is who asked; and
# how often what nodes did on days that are over.
_LOOK_S = 10.0
_LOOK_AFTER_S = 60.0
_PEOPLE_S = 300.0
_IDLE_S = 600.0
# How many pieces are brought over before the first page is shown.
_FIRST_PIECES = 200
_YEAR_S = 365 * 86400.0
_LINK_S = 600.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="How a cluster's centre is set up, in TOML; without it this machine's own store is "
        "shown to whoever starts this.",
        metavar="FILE",
    ),
]


CentreConfig = Annotated[
    Path | None,
    typer.Option(
        help="How the centre is set up, in TOML.  [default: /etc/lowtide/serve.toml]",
        metavar="FILE",
    ),
]


def serve(
    place: StorePlace = None,
    config: ConfigFile = None,
    listen: Annotated[
        str,
        typer.Option(
            help="Where to listen, or unix:PATH for a proxy here; elsewhere than on this "
            "machine takes a certificate.",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:8470",
) -> None:
    """Serve pages and an API of what was watched.

    Without --config it is this machine's store, for you alone: open the link that is printed. With
    --config it is the centre of a cluster: nodes push to it with lowtide watch --push, and everyone
    sees what is theirs.
    """
    where = _Listening.read(listen)
    if config is None:
        where.check_seen()
        with _own(place) as (app, link, mirror):
            say(f"Open {where.url}/enter/{link} (once, within {_LINK_S / 60:g} minutes)")
            _run(app, where, every_s=_LOOK_S, do=mirror)
        return
    from lowtide.serve.settings import Settings

    settings = Settings.read(config)
    where.check_kept(settings)
    with _centre(place, settings) as keeper:
        from lowtide.serve.app import LOOPBACK, make_app

        names = LOOPBACK | ({settings.host} if settings.host else set())
        app = make_app(keeper, hosts=frozenset(names))
        say(f"The centre of {settings.cluster} is at {settings.url or where.url}")
        with _looking_after(keeper.database, settings) as look:
            _run(app, where, every_s=_LOOK_AFTER_S, do=look, settings=settings)


def node_token(
    node: Annotated[str, typer.Argument(help="The node, as it calls itself.", metavar="NODE")],
    config: CentreConfig = None,
    place: StorePlace = None,
    facts: Annotated[
        bool,
        typer.Option(
            "--facts",
            help="Let it tell facts of jobs on other nodes, too: for the one that watches with "
            "--facts-from cluster.",
        ),
    ] = False,
    form: Form = TABLE,
) -> None:
    """Make the token by which a node pushes to the centre.

    It is good for that node alone, and for a year. It cannot be shown again.
    """
    import time

    from lowtide.serve.settings import find_settings
    from lowtide.serve.tokens import make_token, node_scope

    settings = find_settings(config)
    with _centre(place, settings) as keeper:
        token = make_token(
            keeper.database,
            owner=f"{settings.cluster}/{node}",
            scope=node_scope(settings.cluster, node, tells_all=facts),
            lasts_s=_YEAR_S,
            now=time.time(),
        )
    url = settings.url or "http://127.0.0.1:8470"
    command = f"lowtide watch --push {url}/{settings.cluster} --push-token-file FILE"

    def show() -> None:
        say(token)
        say(f"Write it into a FILE on {node} that only the watcher may read, and start: {command}")

    told = {"node": node, "token": token, "command": command}
    form.print([told], document=told, show=show)


def tokens(
    config: CentreConfig = None,
    place: StorePlace = None,
    owner: Annotated[
        str | None,
        typer.Option("--of", help="Those of one user, or of one node as CLUSTER/NODE."),
    ] = None,
    revoke: Annotated[
        list[int] | None,
        typer.Option(help="Take this one back, may be given again.", metavar="NUMBER"),
    ] = None,
    revoke_all: Annotated[
        bool, typer.Option("--revoke-all", help="Take back all of --of, and end their sessions.")
    ] = False,
    form: Form = TABLE,
) -> None:
    """List who holds tokens of the centre, and take them back.

    Of a token itself nothing is kept but what tells that it is the one. What was taken back opens
    nothing from that moment on.
    """
    import time
    from dataclasses import asdict

    from lowtide.errors import InvalidInput
    from lowtide.serve.settings import find_settings
    from lowtide.serve.tokens import end_all, list_tokens, take_back
    from lowtide.units import format_time

    if revoke_all and owner is None:
        raise InvalidInput("--revoke-all takes back all that somebody holds: say whose with --of")
    with _centre(place, find_settings(config)) as keeper:
        database = keeper.database
        for number in revoke or ():
            if not take_back(database, number, owner=owner):
                raise InvalidInput(f"there is no token {number}: lowtide serve tokens lists them")
        if revoke_all and owner is not None:
            end_all(database, owner)
        found = list_tokens(database, owner=owner, now=time.time())
    rows = [asdict(each) for each in found]

    columns = (
        Column("number", "number"),
        *(Column(name, name, read=_of(name)) for name in ("owner", "scope", "note")),
        *(Column(name, f"{name} (UTC)", format_time) for name in ("made", "expires", "used")),
    )
    none = "Nobody holds a token." if owner is None else f"{owner} holds no token."
    form.print(rows, columns=columns, document={"tokens": rows}, none=none)


def _of(name: str) -> Callable[[dict[str, Any]], str | None]:
    """Return what reads a text of a row, None where that is empty."""
    return lambda row: row[name] or None


@contextmanager
def _own(place: str | None) -> Iterator[tuple[ASGIApp, str, Callable[[], None]]]:
    """Make the centre of this machine's own store, for whoever starts it."""
    import getpass
    import tempfile
    import time

    from lowtide.serve.app import make_app
    from lowtide.serve.gate import Doorkeeper
    from lowtide.serve.local import Mirror
    from lowtide.serve.schema import bring_centre_up_to_date
    from lowtide.serve.settings import Settings
    from lowtide.serve.tokens import LINK, make_token
    from lowtide.store.database import Database, default_place
    from lowtide.store.tables import bring_up_to_date, check_version

    source = Database(place or default_place(reading=True), readonly=True)
    with tempfile.TemporaryDirectory(prefix="lowtide-serve-") as folder:
        centre = Database(Path(folder) / "centre.sqlite")
        try:
            check_version(source)
            bring_up_to_date(centre)
            bring_centre_up_to_date(centre)
            owner = getpass.getuser()
            keeper = Doorkeeper(centre, Settings(), owner=owner)
            mirror = Mirror(source, centre)
            mirror.catch_up(now=time.time(), most=_FIRST_PIECES)
            now = time.time()
            link = make_token(centre, owner=owner, scope=LINK, lasts_s=_LINK_S, now=now)
            yield make_app(keeper), link, lambda: _catch_up(mirror)
        finally:
            centre.close()
            source.close()


def _catch_up(mirror: Mirror) -> None:
    import time

    mirror.catch_up(now=time.time())


def mail(
    config: CentreConfig = None,
    place: StorePlace = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the mails, and send none.")
    ] = False,
    form: Form = TABLE,
) -> None:
    """Write to users what their jobs held and did not use.

    It is meant to be run every morning: mails are sent on workdays and not too often, and say how
    to get no more of them.
    """
    import time
    from datetime import UTC, datetime

    from lowtide.serve.mail import compose, letters, send
    from lowtide.serve.settings import find_settings

    settings, now = find_settings(config), time.time()
    with _centre(place, settings) as keeper:
        zone = datetime.fromtimestamp(now, UTC).astimezone().tzinfo or UTC
        found = letters(keeper.database, settings, now=now, tz=zone)
        # What cannot be written is said before anything is sent.
        drafts = [
            compose(each, settings, now=now, stop_key="KEY") for each in found if not each.why_not
        ]
        sent = [] if dry_run else send(keeper.database, settings, found, now=now)
    rows = [
        {
            "user": each.user,
            "jobs": len({one.job.ref for one in each.wasted}),
            "energy_j": each.energy_j,
            "sent": each.user in sent,
            "why_not": each.why_not,
        }
        for each in found
    ]

    def show() -> None:
        for draft in drafts if dry_run else ():
            say(f"To: {draft['To']}")
            say(f"Subject: {draft['Subject']}")
            print()
            print(draft.get_content())
        print_rows(_LETTERS, rows, none="No job was seen to hold what it did not use.")

    form.print(rows, columns=_LETTERS, document={"sent": len(sent), "users": rows}, show=show)


_LETTERS = (
    Column("user", "user"),
    Column("jobs", "jobs"),
    Column("energy_j", "for nothing", marks=lambda _: marks_for(estimated=True)),
    Column("sent", "sent"),
    Column("why_not", "why not"),
)


@contextmanager
def _centre(place: str | None, settings: Settings) -> Iterator[Doorkeeper]:
    """Open the centre of a cluster."""
    import os
    import time

    from lowtide.errors import InvalidInput
    from lowtide.serve.gate import Doorkeeper
    from lowtide.serve.people import Roster
    from lowtide.serve.schema import bring_centre_up_to_date
    from lowtide.store.database import Database
    from lowtide.store.tables import bring_up_to_date

    place = place or settings.store or os.environ.get("LOWTIDE_STORE")
    if not place:
        raise InvalidInput(
            'a centre has a store of its own: write store = "postgresql://user@host/name" into its '
            "file, or name one with --store"
        )
    if not settings.cluster:
        raise InvalidInput('a centre is that of a cluster: write cluster = "NAME" into its file')
    database = Database(place)
    try:
        bring_up_to_date(database)
        bring_centre_up_to_date(database)
        if settings.accounts_from == "table":
            Roster.from_settings(settings).keep(database, now=time.time())
        yield Doorkeeper(database, settings)
    finally:
        database.close()


@contextmanager
def _looking_after(database: Database, settings: Settings) -> Iterator[Callable[[], None]]:
    """Give what a centre does every minute.

    It closes what nobody hears of, works out what pages of large jobs, of waste, and of projects
    with nodes of their own show, makes old courses coarser, and asks Slurm who is who and what
    became of jobs: once for the cluster, and not from each node.
    """
    import time
    from dataclasses import replace

    from lowtide.serve.ingest import take_facts
    from lowtide.serve.kept_looks import keep_looks
    from lowtide.serve.kept_waste import keep_findings
    from lowtide.serve.ledger import close_stale, last_end
    from lowtide.serve.node_idle import keep_idle
    from lowtide.serve.people import Roster
    from lowtide.serve.retention import grow_coarser
    from lowtide.slurm.client import SlurmClient
    from lowtide.watching.slurm_facts import FactsSource

    source = None
    if settings.facts_from == "slurm":
        client = SlurmClient(node=None, cluster=settings.cluster)
        since = last_end(database, settings.cluster)
        source = FactsSource(client=client, every_s=_LOOK_AFTER_S, since=since, say=warn)
        source.open()
    people_due = idle_due = 0.0

    def put(facts: Sequence[JobFacts]) -> None:
        named = [replace(each, cluster=each.cluster or settings.cluster) for each in facts]
        take_facts(database, named, now=time.time())

    def look() -> None:
        nonlocal people_due, idle_due
        close_stale(database, now=time.time())
        keep_looks(database, now=time.time())
        keep_findings(database, now=time.time())
        if time.monotonic() >= idle_due:
            idle_due = time.monotonic() + _IDLE_S
            keep_idle(database, settings, now=time.time())
        grow_coarser(database, settings.keep, now=time.time())
        if source is not None:
            source.hand_over(put)
        if settings.accounts_from == "slurm" and time.monotonic() >= people_due:
            people_due = time.monotonic() + _PEOPLE_S
            asked = SlurmClient(node=None)
            roster = Roster.from_slurm(settings, lambda command: asked.tell(*command))
            roster.keep(database, now=time.time())

    try:
        yield look
    finally:
        if source is not None:
            source.close()


@dataclass(frozen=True)
class _Listening:
    """Where to listen: at a host and a port, or at a socket file."""

    host: str = ""
    port: int = 0
    socket: str = ""

    @classmethod
    def read(cls, text: str) -> _Listening:
        from lowtide.errors import InvalidInput

        if text.startswith("unix:/"):
            return cls(socket=text.removeprefix("unix:"))
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidInput(
                f"--listen is an address and a port, such as 127.0.0.1:8470, or unix:/run/NAME: "
                f"{text}"
            )
        return cls(host.strip("[]"), int(port))

    @property
    def url(self) -> str:
        if self.socket:
            return self.socket
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def check_seen(self) -> None:
        """Refuse what no browser on this machine could open, or others could."""
        from lowtide.errors import InvalidInput

        if self.host not in _LOOPBACK:
            raise InvalidInput(
                f"without --config pages are for this machine alone: listen on 127.0.0.1, not "
                f"{self.socket or self.host}"
            )

    def check_kept(self, settings: Settings) -> None:
        """Refuse to be heard by other machines without encryption."""
        from lowtide.errors import InvalidInput

        if not self.socket and self.host not in _LOOPBACK and not settings.certificate:
            raise InvalidInput(
                f"what users did is not sent in the clear: listen on 127.0.0.1 behind a proxy that "
                f"has TLS, or name certificate and key in the file, to listen on {self.host}"
            )

    def open(self) -> list[sockets.socket] | None:
        """Return the socket to listen on; None where the server opens its own."""
        import socket

        from lowtide.monitor.exporter import SOCKET_MODE, clear_socket

        if not self.socket:
            return None
        clear_socket(self.socket)
        made = socket.socket(socket.AF_UNIX)
        made.bind(self.socket)
        # Nobody can connect yet: that takes a socket that listens.
        Path(self.socket).chmod(SOCKET_MODE)
        return [made]


def _run(
    app: ASGIApp,
    where: _Listening,
    *,
    every_s: float,
    do: Callable[[], None],
    settings: Settings | None = None,
) -> None:
    """Serve until told to stop, and do something else now and then."""
    import threading

    import uvicorn

    from lowtide.errors import LowtideError, Once

    over = threading.Event()
    said = Once()

    def work() -> None:
        while True:
            try:
                do()
            except (LowtideError, OSError) as error:
                if said.is_new(str(error)):
                    warn(str(error))
            if over.wait(every_s):
                return

    more: dict[str, Any] = {}
    if settings is not None and settings.certificate:
        more = {"ssl_certfile": settings.certificate, "ssl_keyfile": settings.key}
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=where.host,
            port=where.port,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            **more,
        )
    )
    beside = threading.Thread(target=work, name="beside", daemon=True)
    beside.start()
    try:
        server.run(where.open())
    finally:
        over.set()
        beside.join(5.0)
