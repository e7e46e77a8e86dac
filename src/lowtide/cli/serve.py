"""`lowtide serve`: pages and an API of what was watched, of this machine or of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.options import StorePlace
from lowtide.cli.output import TABLE, Form, say, warn

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from lowtide.serve.gate import Doorkeeper
    from lowtide.serve.local import Mirror
    from lowtide.serve.settings import Settings
    from lowtide.store.database import Database

# How often a machine's own store is looked at, and a centre looked after.
_LOOK_S = 10.0
_PEOPLE_S = 300.0
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


def serve(
    place: StorePlace = None,
    config: ConfigFile = None,
    listen: Annotated[
        str,
        typer.Option(
            help="Where to listen; elsewhere than on this machine takes a certificate, or a proxy "
            "that has one.",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:8470",
) -> None:
    """Serve pages and an API of what was watched.

    Without --config it is this machine's store, for you alone: open the link that is printed. With
    --config it is the centre of a cluster: nodes push to it with lowtide watch --push, and everyone
    sees what is theirs.
    """
    host, port = _address(listen)
    if config is None:
        with _own(place) as (app, link, mirror):
            say(f"Open {_base(host, port)}/enter/{link} (once, within {_LINK_S / 60:g} minutes)")
            _run(app, host, port, every_s=_LOOK_S, do=mirror)
        return
    from lowtide.serve.settings import Settings

    settings = Settings.read(config)
    _check_listening(host, settings)
    with _centre(place, settings) as keeper:
        from lowtide.serve.app import LOOPBACK, make_app

        names = LOOPBACK | ({settings.host} if settings.host else set())
        app = make_app(keeper, hosts=frozenset(names))
        say(f"The centre of {settings.cluster} is at {settings.url or _base(host, port)}")
        look = _looking_after(keeper.database, settings)
        _run(app, host, port, every_s=_PEOPLE_S, do=look, settings=settings)


def node_token(
    node: Annotated[str, typer.Argument(help="The node, as it calls itself.", metavar="NODE")],
    config: Annotated[
        Path, typer.Option(help="How the centre is set up, in TOML.", metavar="FILE")
    ],
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

    from lowtide.serve.settings import Settings
    from lowtide.serve.tokens import make_token, node_scope

    settings = Settings.read(config)
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


@contextmanager
def _centre(place: str | None, settings: Settings) -> Iterator[Doorkeeper]:
    """Open the centre of a cluster."""
    import time

    from lowtide.errors import InvalidInput
    from lowtide.serve.gate import Doorkeeper
    from lowtide.serve.people import Roster
    from lowtide.serve.schema import bring_centre_up_to_date
    from lowtide.store.database import Database
    from lowtide.store.tables import bring_up_to_date

    if place is None:
        raise InvalidInput(
            "a centre has a store of its own: --store postgresql://user@host/name, or a file"
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


def _looking_after(database: Database, settings: Settings) -> Callable[[], None]:
    """Return what a centre does now and then: ask who is who, and close what nobody hears of."""

    def look() -> None:
        import time

        from lowtide.serve.ledger import close_stale
        from lowtide.serve.people import Roster
        from lowtide.slurm.client import SlurmClient

        close_stale(database, now=time.time())
        if settings.accounts_from == "slurm":
            client = SlurmClient(node=None)
            roster = Roster.from_slurm(settings, lambda command: client.tell(*command))
            roster.keep(database, now=time.time())

    return look


def _address(listen: str) -> tuple[str, int]:
    from lowtide.errors import InvalidInput

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"--listen is an address and a port, such as 127.0.0.1:8470: {listen}")
    return host.strip("[]"), int(port)


def _base(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _check_listening(host: str, settings: Settings) -> None:
    """Refuse to be heard by other machines without encryption."""
    from lowtide.errors import InvalidInput

    if host not in _LOOPBACK and not settings.certificate:
        raise InvalidInput(
            f"what users did is not sent in the clear: listen on 127.0.0.1 behind a proxy that has "
            f"TLS, or name certificate and key in the file, to listen on {host}"
        )


def _run(
    app: ASGIApp,
    host: str,
    port: int,
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
            host=host,
            port=port,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            **more,
        )
    )
    beside = threading.Thread(target=work, name="beside", daemon=True)
    beside.start()
    try:
        server.run()
    finally:
        over.set()
        beside.join(5.0)
