"""`lowtide watch`: what every job on this node uses, draws and emits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.options import AsJson, GridName, How, Parsable, Seed, SignalFile
from lowtide.cli.output import say

if TYPE_CHECKING:
    from lowtide.grid import Grid
    from lowtide.grids.live import LiveGrid
    from lowtide.monitor.exporter import Exporter
    from lowtide.monitor.exposition import Exposition
    from lowtide.monitor.tick import Tick
    from lowtide.watching.emissions import Emissions
    from lowtide.watching.opening import Watch
    from lowtide.watching.service import Service

# How far a synthetic grid goes from today.
_SYNTHETIC_DAYS = 400
# How long the first answer of a provider is waited for.
_ANSWER_S = 3.0

Meters = Annotated[
    list[str] | None,
    typer.Option(
        "--meter",
        help="A meter to read, such as rapl, nvml, estimate:model.json; repeat for more."
        "  [default: all that work here; lowtide doctor lists them]",
    ),
]
Rules = Annotated[
    str,
    typer.Option(help="How power is shared out: conserving, or ceems, which does not add up."),
]
IdlePower = Annotated[
    float | None,
    typer.Option(
        min=0.0, help="What the node draws when nothing runs, in watts.  [default: learned]"
    ),
]
Pue = Annotated[
    float, typer.Option(min=1.0, help="What the building draws for each watt of the node's.")
]
Procfs = Annotated[Path, typer.Option(help="Where /proc is, for recorded trees.")]
Sysfs = Annotated[Path, typer.Option(help="Where /sys is, for recorded trees.")]
Cgroupfs = Annotated[
    Path | None,
    typer.Option(help="Where control groups are.  [default: /sys/fs/cgroup]", show_default=False),
]


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
        typer.Option(help="Serve metrics for Prometheus here: 127.0.0.1:9470.", metavar="ADDRESS"),
    ] = None,
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
    grid: GridName = None,
    how: How = None,
    seed: Seed = 0,
    pue: Pue = 1.0,
    embodied: Annotated[
        float | None, typer.Option(min=0.0, help="What making the node emitted, in kg CO2e.")
    ] = None,
    lifetime: Annotated[
        str, typer.Option(help="How long the node is expected to serve.")
    ] = "1461d",
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
    from lowtide.cli.node_table import showing
    from lowtide.errors import InvalidInput
    from lowtide.meters import Roots
    from lowtide.monitor.exporter import Exporter
    from lowtide.monitor.exposition import Exposition
    from lowtide.watching.opening import open_watch
    from lowtide.watching.service import Service

    if fast is not None and (once or listen is not None or store is not None):
        raise InvalidInput(
            "--fast follows one job into a recording of its own: leave out --once, --listen and "
            "--store"
        )
    if out is not None and fast is None:
        raise InvalidInput("-o says where a recording of one job goes: add --fast JOB")
    every_s = interval or (0.1 if fast is not None else 10.0)
    if no_store and store is not None:
        raise InvalidInput("--no-store keeps nothing: leave out --store")
    if insecure and listen is None:
        raise InvalidInput("--insecure says where to listen, and nothing does: add --listen")
    live = load_live(grid, signal, how)
    emissions = load_emissions(
        signal,
        None if live is not None else grid,
        how,
        seed,
        pue=pue,
        embodied_kg=embodied,
        lifetime=lifetime,
    )
    roots = Roots(sysfs=sysfs, procfs=procfs)
    with ExitStack() as stack:
        opened = stack.enter_context(
            open_watch(
                meters=meter or (),
                roots=roots,
                cgroupfs=cgroupfs,
                emissions=emissions,
                rules=rules,
                idle_w=idle_power,
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
            follow_job(fast, service, opened, out or Path(f"recording-{fast}"))
            return
        sinks = []
        if not once:
            if not no_store:
                sinks.append(stack.enter_context(_keeping(store, opened)))
            if listen is not None:
                page = Exposition(compat=tuple(compat or ()), zone=_zone(emissions))
                exporter = Exporter(
                    address=listen, insecure=insecure, stale_s=max(60.0, 3 * every_s)
                )
                sinks.append(stack.enter_context(_serving(page, exporter)))
        show = stack.enter_context(showing(as_json=as_json, parsable=parsable, once=once))
        service.sinks = [*sinks, show]
        run(service, ticks=1 if once else None)


def run(service: Service, *, ticks: int | None) -> None:
    """Take ticks until there were enough, or until the user or the system says to stop.

    Args:
        service: What takes them.
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


def follow_job(job: str, service: Service, opened: Watch, folder: Path) -> None:
    """Write what one job draws into a recording, until it ends or the user interrupts.

    Args:
        job: Its id.
        service: What takes the ticks.
        opened: The node.
        folder: Where the recording goes.
    """
    from lowtide.formats.recording_writer import RecordingWriter
    from lowtide.watching.recording import JobRecorder
    from lowtide.watching.service import FIRST_S

    opened.watcher.tick()
    time.sleep(FIRST_S)
    now = opened.watcher.tick()
    with RecordingWriter(folder) as writer:
        recorder = JobRecorder(
            job_id=job, writer=writer, meters=opened.power.names, over=service.stop
        )
        if now is not None:
            recorder.begin(now)
        service.sinks = [recorder.take]
        try:
            run(service, ticks=None)
        finally:
            recorder.close()
    say(f"Kept in {folder}; next: lowtide learn {folder}")


def complain(problem: str) -> None:
    """Say what goes wrong, where a service's log keeps it.

    Args:
        problem: What it is.
    """
    typer.echo(f"lowtide: {problem}", err=True)


def load_live(grid: str | None, signal: Path | None, how: list[str] | None) -> LiveGrid | None:
    """Return the grid of a provider's zone, kept up to date; None where none is named.

    Args:
        grid: A provider's zone, or the name of a synthetic grid.
        signal: A file instead.
        how: How to read the file.
    """
    if grid is None or signal is not None:
        # What reads signals takes as much memory as all the rest of a watch.
        return None
    from lowtide.cli.inputs import refuse_how
    from lowtide.grids.live import LiveGrid
    from lowtide.grids.providers import names_a_zone

    if not names_a_zone(grid):
        return None
    refuse_how(how, "a provider")
    live = LiveGrid.named(grid)
    live.grid(time.time())
    live.wait(_ANSWER_S)
    return live


def renewing(live: LiveGrid | None, opened: Watch) -> list[Callable[[float], None]]:
    """Return what keeps the grid of a watch up to date.

    Args:
        live: The grid; None where it does not change.
        opened: The watch.
    """
    if live is None:
        return []
    watcher = opened.watcher

    def renew(now: float) -> None:
        watcher.emissions = watcher.emissions.renewed(live, now)

    return [renew]


def load_emissions(
    signal: Path | None,
    grid: str | None,
    how: list[str] | None,
    seed: int,
    *,
    pue: float,
    embodied_kg: float | None = None,
    lifetime: str = "1461d",
) -> Emissions:
    """Return how energy becomes grams, as the options say.

    Args:
        signal: A file with the grid's intensity.
        grid: Or the name of a synthetic grid.
        how: How to read the file.
        seed: Which weather a synthetic grid has.
        pue: What the building draws for each watt of the node's.
        embodied_kg: What making the node emitted.
        lifetime: How long it is expected to serve.
    """
    from lowtide.errors import InvalidInput
    from lowtide.units import parse_duration
    from lowtide.watching.emissions import Emissions

    if signal is not None and grid is not None:
        raise InvalidInput("a node is on one grid: give --signal or --grid, not both")
    known = None
    if grid is not None or signal is not None:
        known = _load_grid(signal, grid, how, seed)
    return Emissions(
        grid=known,
        pue=pue,
        embodied_g=None if embodied_kg is None else 1000.0 * embodied_kg,
        lifetime_s=parse_duration(lifetime),
    )


def _load_grid(signal: Path | None, grid: str | None, how: list[str] | None, seed: int) -> Grid:
    from lowtide.cli.inputs import read_how, refuse_how
    from lowtide.errors import InvalidInput
    from lowtide.formats import read_signal
    from lowtide.grid import Grid
    from lowtide.grids import synthetic_grid

    if grid is not None:
        refuse_how(how, "a synthetic grid")
        midnight = time.time() // 86400 * 86400
        return synthetic_grid(grid, start=midnight, days=_SYNTHETIC_DAYS, seed=seed)
    read = read_signal(str(signal), **read_how(how))
    if read.kind == "price":
        raise InvalidInput(f"{signal} has prices: emissions need a carbon intensity")
    if read.kind == "marginal":
        raise InvalidInput(
            f"{signal} has marginal intensity: what is reported is counted by the average"
        )
    return Grid(average=read)


@contextmanager
def _keeping(store: str | None, opened: Watch) -> Iterator[Callable[[Tick], None]]:
    """Keep ticks, what Slurm says of jobs, and what was learned of the idle node."""
    from lowtide.slurm.client import SlurmClient
    from lowtide.store import Store
    from lowtide.store.places import default_place
    from lowtide.watching.job_facts import FactsSource
    from lowtide.watching.memory import FILE_NAME, load_floor, save_floor

    place = store or default_place()
    memory = Path(default_place(environment={})).parent / FILE_NAME
    if "://" not in place:
        memory = Path(place).parent / FILE_NAME
        memory.parent.mkdir(parents=True, exist_ok=True)
    opened.watcher.floor = load_floor(memory)
    facts = (
        FactsSource(client=SlurmClient(node=opened.watcher.host)) if SlurmClient.is_here() else None
    )
    with Store.open(place) as kept:
        if facts is not None:
            facts.open()

        def keep(tick: Tick) -> None:
            kept.append(tick)
            if facts is not None:
                found, problems = facts.take()
                for problem in problems:
                    complain(problem)
                if found:
                    kept.put_facts(found)

        try:
            yield keep
        finally:
            if facts is not None:
                facts.close()
            save_floor(memory, opened.watcher.floor)


@contextmanager
def _serving(page: Exposition, exporter: Exporter) -> Iterator[Callable[[Tick], None]]:
    """Serve ticks to Prometheus."""
    from lowtide.monitor.exposition import own_use

    with exporter:
        if sys.stderr.isatty():
            typer.echo(f"Serving metrics at {exporter.url}", err=True)
        yield lambda tick: exporter.publish(page.render(tick, own=own_use()))


def _zone(emissions: Emissions) -> str:
    grid = emissions.grid
    return "" if grid is None else grid.average.zone or ""
