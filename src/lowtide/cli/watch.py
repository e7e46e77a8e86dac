"""`lowtide watch`: what every job on this node uses, draws and emits."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.options import NodeOptions, placed
from lowtide.cli.output import TABLE, Form, say, warn
from lowtide.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from lowtide.grids.live import LiveGrid
    from lowtide.monitor.exporter import Exporter
    from lowtide.monitor.metrics import Exposition
    from lowtide.monitor.tick import Tick
    from lowtide.store import Store
    from lowtide.watching.pushing import Pusher
    from lowtide.watching.service import Service, Watch
    from lowtide.watching.slurm_facts import FactsSource
    from lowtide.watching.watcher import Watcher

# The last is another word for `none`: what others tell is in the store, whoever reads it.
FACTS_FROM = ("squeue", "cluster", "none", "store")

Embodied = Annotated[
    float | None, typer.Option(min=0.0, help="What making the node emitted, in kg CO2e.")
]
Lifetime = Annotated[str, typer.Option(help="How long the node is expected to serve.")]
# Where the places of recorded trees stand among the options.
_PLACED = {"slurm_node": "facts_from", "procfs": "slurm_node", "sysfs": "procfs"}
_PLACED |= {"cgroupfs": "sysfs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """To whom metrics are served, and of what."""

    listen: Annotated[
        str | None,
        typer.Option(
            help="Serve metrics for Prometheus here: 127.0.0.1:9470, or unix:FILE for those who "
            "may open that file. On a port anybody is told of the node alone.",
            metavar="ADDRESS",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Tell of jobs whoever shows the token in this file, as Prometheus does with "
            "credentials_file. It is made where it is not there.",
            metavar="FILE",
        ),
    ] = None
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Tell of jobs everybody who can reach the port.")
    ] = False
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where other machines can ask, unencrypted.")
    ] = False
    compat: Annotated[
        list[str] | None, typer.Option(help="Also serve the names of another system: ceems.")
    ] = None

    def check(self) -> None:
        """Refuse what has no effect, or contradicts itself."""
        given = {
            "--compat": self.compat,
            "--insecure": self.insecure,
            "--token-file": self.token_file,
            "--open": self.open_to_all,
        }
        moot = [name for name, value in given.items() if value] if self.listen is None else []
        if moot:
            raise InvalidInput(
                f"{moot[0]} says what is served to whom, and nothing is: add --listen"
            )
        if self.open_to_all and self.token_file is not None:
            raise InvalidInput("--open tells of jobs without a token: leave out --token-file")

    def exporter(self, stale_s: float) -> Exporter:
        """Return who serves them, and for how long what was seen last."""
        from lowtide.monitor import exporter

        return exporter.Exporter(
            address=str(self.listen),
            insecure=self.insecure,
            token="" if self.token_file is None else exporter.load_token(self.token_file),
            open_to_all=self.open_to_all,
            stale_s=stale_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingOptions:
    """Where what is seen is kept, and which centre is told."""

    store: Annotated[
        str | None,
        typer.Option(
            help="Where to keep it: a file or a postgresql:// address.  [default: LOWTIDE_STORE, "
            "or below the user's or the system's state folder]"
        ),
    ] = None
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep nothing.")] = False
    push: Annotated[
        str | None,
        typer.Option(
            help="Tell a centre what is kept, every six ticks: https://CENTRE/CLUSTER, as lowtide "
            "serve node-token prints it. Nothing waits for it, and nothing is lost without it.",
            metavar="ADDRESS",
        ),
    ] = None
    push_token_file: Annotated[
        Path | None,
        typer.Option(help="The file with this node's token for the centre.", metavar="FILE"),
    ] = None

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if (self.push is None) != (self.push_token_file is None):
            raise InvalidInput("a centre takes a token: give both --push and --push-token-file")
        if self.push is not None and self.no_store:
            raise InvalidInput("--push tells of what is kept: leave out --no-store")
        if self.no_store and self.store is not None:
            raise InvalidInput("--no-store keeps nothing: leave out --store")


@placed(**_PLACED)
def watch(
    *,
    interval: Annotated[
        float | None,
        typer.Option(min=0.05, help="Seconds between ticks.  [default: 10]", show_default=False),
    ] = None,
    serving: ServingOptions,
    keeping: KeepingOptions,
    asked: NodeOptions,
    embodied: Embodied = None,
    lifetime: Lifetime = "1461d",
    facts_from: Annotated[
        str,
        typer.Option(
            help="Who says what Slurm's jobs are called and how they end: squeue (this node asks "
            "for its own jobs), cluster (it asks for all jobs of the cluster, for nodes that share "
            "the store), none (it does not ask: another does that, or nobody).",
            metavar="squeue|cluster|none",
        ),
    ] = "squeue",
    form: Form = TABLE,
) -> None:
    """Watch this node: what each job uses, draws and emits.

    Jobs are Slurm's, containers, systemd's units and groups of processes. Everything adds up to the
    node. The first numbers come after a second; without a sensor they are estimated, and marked
    with ~. It is kept in a store that lowtide jobs, show and usage read, and served to Prometheus
    with --listen. lowtide node takes a single sample, and lowtide watch follow measures one job ten
    times a second.
    """
    # NumPy's library for matrices takes memory for every core of a node, and none are multiplied.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _give_memory_back()
    from lowtide.cli.node import showing
    from lowtide.monitor import metrics

    if facts_from not in FACTS_FROM:
        raise UnknownName("--facts-from", facts_from, FACTS_FROM)
    every_s = checked_interval(interval, 10.0)
    keeping.check()
    serving.check()
    with ExitStack() as stack:
        node, service = stack.enter_context(
            opened(asked, interval_s=every_s, embodied_kg=embodied, lifetime=lifetime)
        )
        sinks = []
        if not keeping.no_store:
            facts = partial(_facts_source, node, facts_from, slurm_names(asked), every_s)
            keep = _keeping(keeping, node, facts, every_s=every_s)
            sinks.append(stack.enter_context(keep))
        if serving.listen is not None:
            page = metrics.Exposition(compat=tuple(serving.compat or ()))
            exporter = serving.exporter(max(60.0, 3 * every_s))
            serve = _serving(page, exporter, node.watcher, asked)
            sinks.append(stack.enter_context(serve))
        sinks.append(stack.enter_context(showing(form=form, once=False, quiet=True)))
        service.sinks = sinks
        run(service, ticks=None)


@placed(slurm_node="lifetime", procfs="slurm_node", sysfs="procfs", cgroupfs="sysfs")
def follow(
    *,
    job: Annotated[
        str,
        typer.Argument(help="The job: Slurm's number, a process's, or a name.", metavar="JOB"),
    ],
    interval: Annotated[
        float | None,
        typer.Option(min=0.05, help="Seconds between samples.  [default: 0.1]", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for it.  [default: recording-JOB]"),
    ] = None,
    asked: NodeOptions,
    embodied: Embodied = None,
    lifetime: Lifetime = "1461d",
    form: Form = TABLE,
) -> None:
    """Record one job of this node until it ends.

    What lowtide learn reads comes of it, of a job that nobody started to measure.
    """
    every_s = checked_interval(interval, 0.1)
    with opened(asked, interval_s=every_s, embodied_kg=embodied, lifetime=lifetime) as (
        node,
        service,
    ):
        follow_job(job, service, node, out, form)


def slurm_names(asked: NodeOptions) -> tuple[str, ...]:
    """Return what Slurm calls this node: as slurmd was told, or as whoever started this was."""
    from lowtide.monitor.owners import find_slurm_nodes

    told = os.environ.get("SLURMD_NODENAME")
    found = find_slurm_nodes(str(asked.procfs))
    return tuple(asked.slurm_node or ()) or found or ((told,) if told else ())


def _give_memory_back() -> None:
    """Have the C library give memory back once it is free, as far as it can be told to.

    By default it keeps as much as the largest arrays ever took, for each thread.
    """
    import ctypes

    trim_threshold, most_arenas = -1, -8
    # Other C libraries than GNU's have no such thing.
    with suppress(AttributeError, OSError):
        adjust = ctypes.CDLL(None).mallopt
        adjust(trim_threshold, 1 << 17)
        adjust(most_arenas, 1)


def checked_interval(interval_s: float | None, usual_s: float) -> float:
    """Return how long to wait between two ticks.

    Args:
        interval_s: What the user said; None for nothing.
    """
    every_s = usual_s if interval_s is None else interval_s
    if not math.isfinite(every_s):
        raise InvalidInput(f"--interval is a number of seconds, such as 5, not {every_s:g}")
    return every_s


def run(service: Service, *, ticks: int | None) -> None:
    """Take ticks until there were enough, or until the user or the system says to stop.

    Args:
        ticks: How many; None for no end.
    """
    import signal as signals

    before = {
        number: signals.signal(number, lambda *_: service.stop())
        for number in (signals.SIGINT, signals.SIGTERM)
    }
    try:
        service.run(ticks=ticks)
    finally:
        for number, handler in before.items():
            signals.signal(number, handler)


def follow_job(job: str, service: Service, opened: Watch, folder: Path | None, form: Form) -> None:
    """Write what one job draws into a recording, until it ends or the user interrupts.

    Args:
        folder: Where the recording goes; None for a folder named like the job.
    """
    from lowtide.cli.measure import tell_runs
    from lowtide.formats.recording_writer import RecordingWriter
    from lowtide.watching.record_job import JobRecorder, find_job
    from lowtide.watching.service import FIRST_S

    # Names of services and containers hold slashes.
    folder = folder or Path("recording-" + re.sub(r"[^\w.@-]+", "-", job))
    opened.watcher.tick()
    time.sleep(FIRST_S)
    now = opened.watcher.tick()
    if now is None:
        raise InvalidInput("the clock stands still: nothing can be followed")
    # Nothing is left behind where there is no such job.
    unit = find_job(now, job)
    with RecordingWriter(folder) as writer:
        recorder = JobRecorder(
            unit=unit, writer=writer, meters=opened.power.names, over=service.stop
        )
        recorder.begin(now)
        service.sinks = [recorder.take]
        try:
            run(service, ticks=None)
        finally:
            recorder.close()
    words = f"Kept in {folder}; next: lowtide learn {folder}"
    tell_runs(writer.recording(), folder, form=form, show=lambda _: say(words))


@contextmanager
def _keeping(
    where: KeepingOptions,
    opened: Watch,
    facts_of: Callable[[Store], FactsSource | None],
    *,
    every_s: float,
) -> Iterator[Callable[[Tick], None]]:
    """Keep ticks, what Slurm says of jobs, their phases, and what was learned of the idle node."""
    from lowtide.store import Store
    from lowtide.store.database import default_place
    from lowtide.watching.power import FILE_NAME, FloorMemory, load_floor
    from lowtide.watching.writer import Endings, Keeper

    place = where.store or default_place()
    beside = default_place(environment={}) if "://" in place else place
    memory = Path(beside).parent / FILE_NAME
    watcher = opened.watcher
    watcher.floor = load_floor(memory)
    kept = Store.open(place)
    after = [FloorMemory(path=memory, floor=watcher.floor).take, Endings(store=kept).take]
    at_last = []
    with ExitStack() as asking:
        facts = facts_of(kept)
        if facts is not None:
            hand_over = partial(facts.hand_over, kept.put_facts)
            after += [lambda tick: facts.see(tick.units), lambda _: hand_over()]
            at_last.append(hand_over)
        keeper = Keeper(kept, host=watcher.host, say=warn, after=after, at_last=at_last)
        asking.enter_context(keeper)
        if facts is not None:
            facts.open()
            asking.callback(facts.close)
        if where.push is not None and where.push_token_file is not None:
            to = where.push, where.push_token_file
            pusher = _pusher(kept, watcher.host, *to, every_s=min(6 * every_s, 60.0))
            asking.enter_context(pusher)
        try:
            yield keeper.take
        finally:
            _remember(memory, watcher)


def _pusher(kept: Store, host: str, address: str, token_file: Path, *, every_s: float) -> Pusher:
    """Return who tells a centre what is kept."""
    from lowtide.errors import FileProblem
    from lowtide.monitor.exporter import load_token
    from lowtide.watching.pushing import CentreAddress, Pusher

    if not token_file.exists():
        raise FileProblem(
            f"there is no token in {token_file}: write there what lowtide serve node-token {host} "
            "prints, for the watcher alone to read",
            path=token_file,
        )
    return Pusher(
        outbox=kept.outbox(host),
        centre=CentreAddress.read(address),
        host=host,
        token=load_token(token_file),
        say=warn,
        every_s=every_s,
    )


def _remember(memory: Path, watcher: Watcher) -> None:
    """Write down what was learned of the idle node."""
    from lowtide.errors import FileProblem
    from lowtide.watching.power import save_floor

    try:
        save_floor(memory, watcher.floor)
    except FileProblem as error:
        warn(f"{error}; how little the node draws when idle is learned anew at the next start")


def _facts_source(
    opened: Watch, facts_from: str, nodes: tuple[str, ...], every_s: float, kept: Store
) -> FactsSource | None:
    """Return who asks Slurm about jobs, from where an earlier watch left off; None without it.

    Args:
        facts_from: Who asks, one of `FACTS_FROM`.
        nodes: What Slurm calls this node; empty where that is not known.
        every_s: The seconds between two ticks.
    """
    from lowtide.slurm.client import SlurmClient
    from lowtide.watching.slurm_facts import FactsSource

    if not SlurmClient.is_here():
        return None
    watcher = opened.watcher
    watcher.cluster = SlurmClient.find_cluster()
    if facts_from in ("none", "store"):
        return None
    host = watcher.host
    whole = facts_from == "cluster"
    client = SlurmClient(
        node=None if whole else ",".join(nodes) or host,
        is_guess=not nodes,
        cluster=watcher.cluster,
    )
    follows = whole or "://" not in kept.name
    return FactsSource(
        client=client,
        soonest_s=max(every_s, 1.0),
        # Every node of a shared store would ask for the same jobs, and write them.
        follows_waiting=follows,
        every_s=60.0 if whole else 240.0,
        since=next((each.last_time for each in kept.hosts() if each.name == host), None),
        waiting=kept.waiting("slurm", cluster=watcher.cluster) if follows else (),
        say=warn,
        number=opened.reader.number_jobs,
    )


@contextmanager
def _serving(
    page: Exposition, exporter: Exporter, watcher: Watcher, asked: NodeOptions
) -> Iterator[Callable[[Tick], None]]:
    """Serve ticks to Prometheus."""
    from lowtide.meters import Roots
    from lowtide.meters.rapl import read_counters
    from lowtide.monitor.metrics import own_use

    roots = Roots(sysfs=asked.sysfs, procfs=asked.procfs)
    # A counter that never moved counts nothing.
    first: dict[str, float] = {}
    moved: set[str] = set()

    def publish(tick: Tick) -> None:
        if page.compat:
            # A provider may say only later which zone it speaks of.
            grid = watcher.emissions.grid
            page.zone = "" if grid is None else grid.average.zone or ""
            counts = read_counters(roots)
            moved.update(path for _, path, joules in counts if first.get(path, joules) != joules)
            first.update({path: joules for _, path, joules in counts})
            page.rapl = [each for each in counts if each[1] in moved]
        exporter.publish(page.render(tick, own=own_use()))

    with exporter:
        # Said to a log as well: whoever upgrades finds there why jobs have gone from the page.
        of = (
            "" if exporter.tells_of_jobs else " of the node alone; jobs need --token-file or --open"
        )
        if sys.stderr.isatty() or of:
            typer.echo(f"Serving metrics at {exporter.url}{of}", err=True)
        yield publish


@contextmanager
def opened(
    asked: NodeOptions,
    *,
    interval_s: float,
    embodied_kg: float | None = None,
    lifetime: str = "1461d",
) -> Iterator[tuple[Watch, Service]]:
    """Open what reads this node, and what takes its ticks; sinks are still to be named."""
    from lowtide.cli.node_grid import load_emissions, load_live
    from lowtide.meters import Roots
    from lowtide.watching.service import Service, open_watch

    live = load_live(asked)
    emissions = load_emissions(asked, live, embodied_kg, lifetime)
    with open_watch(
        meters=asked.meter or (),
        roots=Roots(sysfs=asked.sysfs, procfs=asked.procfs),
        cgroupfs=asked.cgroupfs,
        emissions=emissions,
        rules=asked.rules,
        idle_w=asked.idle_power,
        nodes=slurm_names(asked),
    ) as watch:
        service = Service(
            watcher=watch.watcher,
            events=watch.reader,
            before=_renewing(live, watch),
            interval_s=interval_s,
            say=warn,
        )
        try:
            yield watch, service
        finally:
            service.close()


def _renewing(live: LiveGrid | None, opened: Watch) -> list[Callable[[float], None]]:
    """Return what keeps the grid of a watch up to date."""
    if live is None:
        return []
    watcher = opened.watcher

    def renew(now: float) -> None:
        watcher.emissions = watcher.emissions.renewed(live, now)

    return [renew]
