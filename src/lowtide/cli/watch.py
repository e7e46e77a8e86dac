"""`lowtide watch`: what every job on this node uses, draws and emits."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.options import (
    AsJson,
    Cgroupfs,
    How,
    IdlePower,
    Marginal,
    Meters,
    Parsable,
    Procfs,
    Pue,
    Rules,
    Seed,
    SignalFile,
    Sysfs,
    ZoneOrGrid,
)
from lowtide.cli.output import say

if TYPE_CHECKING:
    from lowtide.meters import Roots
    from lowtide.monitor.exporter import Exporter
    from lowtide.monitor.metrics import Exposition
    from lowtide.monitor.tick import Tick
    from lowtide.store import Store
    from lowtide.watching.service import Service, Watch
    from lowtide.watching.slurm_facts import FactsSource
    from lowtide.watching.watcher import Watcher


# The last is another word for `none`: what others tell is in the store, whoever reads it.
FACTS_FROM = ("squeue", "cluster", "none", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How Slurm is asked about jobs.

    Attributes:
        facts_from: Who asks, one of `FACTS_FROM`.
        nodes: What Slurm calls this node; empty where that is not known.
        soonest_s: The least time between two questions.
    """

    facts_from: str
    nodes: tuple[str, ...]
    soonest_s: float


def watch(
    interval: Annotated[
        float | None,
        typer.Option(min=0.05, help="Seconds between ticks.  [default: 10]", show_default=False),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Take one sample, print it and end.")
    ] = False,
    fast: Annotated[
        str | None,
        typer.Option(
            help="Follow this job alone until it ends, every 0.1 s unless --interval says "
            "otherwise, and write a recording that lowtide learn reads.",
            metavar="JOB",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for it.  [default: recording-JOB]"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Serve metrics for Prometheus here: 127.0.0.1:9470, or unix:FILE for those who "
            "may open that file. On a port anybody is told of the node alone.",
            metavar="ADDRESS",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Tell of jobs whoever shows the token in this file, as Prometheus does with "
            "credentials_file. It is made where it is not there.",
            metavar="FILE",
        ),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Tell of jobs everybody who can reach the port.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen where other machines can ask, unencrypted."),
    ] = False,
    compat: Annotated[
        list[str] | None,
        typer.Option(help="Also serve the names of another system: ceems."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where to keep it: a file or a postgresql:// address.  [default: LOWTIDE_STORE, "
            "or below the user's or the system's state folder]"
        ),
    ] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep nothing.")] = False,
    meter: Meters = None,
    rules: Rules = "conserving",
    idle_power: IdlePower = None,
    signal: SignalFile = None,
    marginal: Marginal = None,
    grid: ZoneOrGrid = None,
    how: How = None,
    seed: Seed = 0,
    pue: Pue = 1.0,
    embodied: Annotated[
        float | None, typer.Option(min=0.0, help="What making the node emitted, in kg CO2e.")
    ] = None,
    lifetime: Annotated[
        str, typer.Option(help="How long the node is expected to serve.")
    ] = "1461d",
    facts_from: Annotated[
        str,
        typer.Option(
            help="Who says what Slurm's jobs are called and how they end: squeue (this node asks "
            "for its own jobs), cluster (it asks for all jobs of the cluster, for nodes that share "
            "the store), none (it does not ask: another does that, or nobody).",
            metavar="squeue|cluster|none",
        ),
    ] = "squeue",
    slurm_node: Annotated[
        list[str] | None,
        typer.Option(
            help="What Slurm calls this node, where that is not found; once for each slurmd.",
            metavar="NAME",
        ),
    ] = None,
    procfs: Procfs = Path("/proc"),
    sysfs: Sysfs = Path("/sys"),
    cgroupfs: Cgroupfs = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Watch this node: what each job uses, draws and emits.

    Jobs are Slurm's, containers, systemd's units and groups of processes. Everything adds up to the
    node. The first numbers come after a second; without a sensor they are estimated, and marked
    with ~. It is kept in a store that lowtide jobs, show and usage read, and served to Prometheus
    with --listen.
    """
    # NumPy's library for matrices takes memory for every core of a node, and none are multiplied.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _give_memory_back()
    from lowtide.cli.emissions import load_emissions, load_live, renewing
    from lowtide.cli.node import showing
    from lowtide.errors import InvalidInput, UnknownName
    from lowtide.meters import Roots
    from lowtide.monitor.exporter import Exporter, load_token
    from lowtide.monitor.metrics import Exposition
    from lowtide.monitor.owners import find_slurm_nodes
    from lowtide.watching.service import Service, open_watch

    serving = {
        "--listen": listen,
        "--compat": compat,
        "--insecure": insecure or None,
        "--token-file": token_file,
        "--open": open_to_all or None,
    }
    if once:
        _refuse(serving | {"--store": store}, "--once takes one sample, and neither keeps nor")
    if fast is not None:
        _refuse(
            serving | {"--once": once or None, "--store": store},
            "--fast follows one job into a recording of its own, and neither keeps nor",
        )
    if out is not None and fast is None:
        raise InvalidInput("-o says where a recording of one job goes: add --fast JOB")
    if facts_from not in FACTS_FROM:
        raise UnknownName("--facts-from", facts_from, FACTS_FROM)
    every_s = checked_interval(interval, 0.1 if fast is not None else 10.0)
    if no_store and store is not None:
        raise InvalidInput("--no-store keeps nothing: leave out --store")
    if listen is None and (given := [name for name, value in serving.items() if value]):
        raise InvalidInput(f"{given[0]} says what is served to whom, and nothing is: add --listen")
    if open_to_all and token_file is not None:
        raise InvalidInput("--open tells of jobs without a token: leave out --token-file")
    live = load_live(grid, signal, how)
    emissions = load_emissions(
        signal,
        None if live is not None else grid,
        how,
        seed,
        marginal=marginal,
        pue=pue,
        embodied_kg=embodied,
        lifetime=lifetime,
    )
    roots = Roots(sysfs=sysfs, procfs=procfs)
    named = tuple(slurm_node or ()) or _named_by_slurm(find_slurm_nodes(str(procfs)))
    with ExitStack() as stack:
        opened = stack.enter_context(
            open_watch(
                meters=meter or (),
                roots=roots,
                cgroupfs=cgroupfs,
                emissions=emissions,
                rules=rules,
                idle_w=idle_power,
                nodes=named,
            )
        )
        service = Service(
            watcher=opened.watcher,
            events=opened.reader,
            before=renewing(live, opened),
            interval_s=every_s,
            say=complain,
        )
        stack.callback(service.close)
        if fast is not None:
            follow_job(fast, service, opened, out)
            return
        sinks = []
        if not once:
            if not no_store:
                asking = Asking(facts_from=facts_from, nodes=named, soonest_s=max(every_s, 1.0))
                sinks.append(stack.enter_context(_keeping(store, opened, asking)))
            if listen is not None:
                page = Exposition(compat=tuple(compat or ()))
                exporter = Exporter(
                    address=listen,
                    insecure=insecure,
                    token="" if token_file is None else load_token(token_file),
                    open_to_all=open_to_all,
                    stale_s=max(60.0, 3 * every_s),
                )
                sinks.append(stack.enter_context(_serving(page, exporter, opened.watcher, roots)))
        show = stack.enter_context(
            showing(as_json=as_json, parsable=parsable, once=once, quiet=not once)
        )
        service.sinks = [*sinks, show]
        run(service, ticks=1 if once else None)


def _named_by_slurm(found: tuple[str, ...]) -> tuple[str, ...]:
    """Return what Slurm calls this node: as slurmd was told, or as whoever started this was."""
    told = os.environ.get("SLURMD_NODENAME")
    return found or ((told,) if told else ())


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
    from lowtide.errors import InvalidInput

    every_s = usual_s if interval_s is None else interval_s
    if not math.isfinite(every_s):
        raise InvalidInput(f"--interval is a number of seconds, such as 5, not {every_s:g}")
    return every_s


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse options that would have no effect."""
    from lowtide.errors import InvalidInput

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{why} serves anything: leave out {', '.join(given)}")


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


def follow_job(job: str, service: Service, opened: Watch, folder: Path | None) -> None:
    """Write what one job draws into a recording, until it ends or the user interrupts.

    Args:
        folder: Where the recording goes; None for a folder named like the job.
    """
    from lowtide.errors import InvalidInput
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
    say(f"Kept in {folder}; next: lowtide learn {folder}")


def complain(problem: str) -> None:
    """Say what goes wrong, where a service's log keeps it."""
    typer.echo(f"lowtide: {problem}", err=True)


@contextmanager
def _keeping(
    store: str | None, opened: Watch, asking_for: Asking
) -> Iterator[Callable[[Tick], None]]:
    """Keep ticks, what Slurm says of jobs, their phases, and what was learned of the idle node."""
    from lowtide.store import Store
    from lowtide.store.database import default_place
    from lowtide.watching.power import FILE_NAME, FloorMemory, load_floor
    from lowtide.watching.writer import Endings, Keeper

    place = store or default_place()
    beside = default_place(environment={}) if "://" in place else place
    memory = Path(beside).parent / FILE_NAME
    watcher = opened.watcher
    watcher.floor = load_floor(memory)
    kept = Store.open(place)
    after = [FloorMemory(path=memory, floor=watcher.floor).take, Endings(store=kept).take]
    at_last = []
    with ExitStack() as asking:
        facts = _facts_source(kept, opened, asking_for)
        if facts is not None:
            hand_over = partial(facts.hand_over, kept.put_facts)
            after += [lambda tick: facts.see(tick.units), lambda _: hand_over()]
            at_last.append(hand_over)
        keeper = Keeper(kept, host=watcher.host, say=complain, after=after, at_last=at_last)
        asking.enter_context(keeper)
        if facts is not None:
            facts.open()
            asking.callback(facts.close)
        try:
            yield keeper.take
        finally:
            _remember(memory, watcher)


def _remember(memory: Path, watcher: Watcher) -> None:
    """Write down what was learned of the idle node."""
    from lowtide.errors import FileProblem
    from lowtide.watching.power import save_floor

    try:
        save_floor(memory, watcher.floor)
    except FileProblem as error:
        complain(f"{error}; how little the node draws when idle is learned anew at the next start")


def _facts_source(kept: Store, opened: Watch, asking: Asking) -> FactsSource | None:
    """Return who asks Slurm about jobs, from where an earlier watch left off; None without it."""
    from lowtide.slurm.client import SlurmClient
    from lowtide.watching.slurm_facts import FactsSource

    if not SlurmClient.is_here():
        return None
    watcher = opened.watcher
    watcher.cluster = SlurmClient.find_cluster()
    if asking.facts_from in ("none", "store"):
        return None
    host = watcher.host
    whole = asking.facts_from == "cluster"
    client = SlurmClient(
        node=None if whole else ",".join(asking.nodes) or host,
        is_guess=not asking.nodes,
        cluster=watcher.cluster,
    )
    follows = whole or "://" not in kept.name
    return FactsSource(
        client=client,
        soonest_s=asking.soonest_s,
        # Every node of a shared store would ask for the same jobs, and write them.
        follows_waiting=follows,
        every_s=60.0 if whole else 240.0,
        since=next((each.last_time for each in kept.hosts() if each.name == host), None),
        waiting=kept.waiting("slurm", cluster=watcher.cluster) if follows else (),
        say=complain,
        number=opened.reader.number_jobs,
    )


@contextmanager
def _serving(
    page: Exposition, exporter: Exporter, watcher: Watcher, roots: Roots
) -> Iterator[Callable[[Tick], None]]:
    """Serve ticks to Prometheus."""
    from lowtide.meters.rapl import read_counters
    from lowtide.monitor.metrics import own_use

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
