"""`lowtide node`: what runs here now, and what it draws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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


def node(
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Renew it until interrupted.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks with --follow.")
    ] = 2.0,
    meter: Meters = None,
    rules: Rules = "conserving",
    idle_power: IdlePower = None,
    signal: SignalFile = None,
    marginal: Marginal = None,
    grid: ZoneOrGrid = None,
    how: How = None,
    seed: Seed = 0,
    pue: Pue = 1.0,
    procfs: Procfs = Path("/proc"),
    sysfs: Sysfs = Path("/sys"),
    cgroupfs: Cgroupfs = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Show what each job on this node draws now.

    It looks at the node for a second and keeps nothing. A ~ marks what is estimated, a > what was
    more, because a part of it is not known.
    """
    from lowtide.cli.emissions import load_emissions, load_live, renewing
    from lowtide.cli.node_table import showing
    from lowtide.cli.watch import checked_interval, complain, run
    from lowtide.meters import Roots
    from lowtide.watching.service import Service, open_watch

    every_s = checked_interval(interval, 2.0)
    live = load_live(grid, signal, how)
    emissions = load_emissions(
        signal, None if live is not None else grid, how, seed, marginal=marginal, pue=pue
    )
    with (
        open_watch(
            meters=meter or (),
            roots=Roots(sysfs=sysfs, procfs=procfs),
            cgroupfs=cgroupfs,
            emissions=emissions,
            rules=rules,
            idle_w=idle_power,
        ) as opened,
        showing(as_json=as_json, parsable=parsable, once=not follow) as show,
    ):
        service = Service(
            watcher=opened.watcher,
            events=opened.reader,
            before=renewing(live, opened),
            sinks=[show],
            interval_s=every_s,
            say=complain,
        )
        try:
            run(service, ticks=None if follow else 1)
        finally:
            service.close()
