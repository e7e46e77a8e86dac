"""`lowtide store`: how much is kept, whether it is sound, letting go of it, handing it on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.examples import epilog
from lowtide.cli.options import Since, StorePlace, Until, grouped
from lowtide.cli.output import TABLE, Column, Form, print_rows, say, say_all, waiting

if TYPE_CHECKING:
    from lowtide.store import Store

store = typer.Typer(
    name="store",
    help="See, check, prune and export what was watched.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_RESOLUTIONS = {0: "as seen", 60: "1 min", 3600: "1 h"}
# Rows of tables, for scripts.
_COUNTS = (Column("table", read=lambda pair: pair[0]), Column("rows", read=lambda pair: pair[1]))


@store.command(epilog=epilog("store info"))
@grouped
def info(place: StorePlace = None, form: Form = TABLE) -> None:
    """Say what the store holds: jobs, hosts, values and bytes."""
    from lowtide.store import Store
    from lowtide.units import format_count, format_size, format_time

    with Store.open(place, readonly=True) as kept:
        facts = _facts(kept)
    numbers = {key: value for key, value in facts.items() if not isinstance(value, list | dict)}
    numbers |= {f"values_{key}": value for key, value in facts["values"].items()}

    def show() -> None:
        held = format_size(facts["bytes"])
        say(f"{facts['store']}: {held}, {format_count(facts['jobs'], 'job')}")
        print_rows(
            (
                Column("", "values", read=lambda pair: pair[0]),
                Column("", "count", "{:,}".format, lambda pair: pair[1]),
            ),
            facts["values"].items(),
        )
        if facts["hosts"]:
            print_rows(
                (
                    Column("name", "host"),
                    Column("last_time", "last seen", format_time),
                    Column("interval_s", "interval"),
                ),
                facts["hosts"],
            )

    form.print([numbers], document=facts, show=show)


@store.command(epilog=epilog("store check"))
@grouped
def check(
    rescue: Annotated[
        Path | None,
        typer.Option(help="Copy everything that can be read into this new file.", metavar="NEW"),
    ] = None,
    place: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Read everything, say what is damaged, and save the rest.

    Exits with 1 if anything is wrong.
    """
    if rescue is not None:
        _rescue(place, rescue, form=form)
        return
    from lowtide.store import Store

    with Store.open(place, readonly=True) as kept:
        found, name = kept.check(), kept.name

    def show() -> None:
        rows = ", ".join(f"{count} {table}" for table, count in found.rows.items())
        say(f"{name}: {'sound' if found.is_sound else 'damaged'} ({rows})")
        say_all(found.problems)
        if not found.is_sound:
            say(
                "lowtide store check --rescue NEW.sqlite saves what can still be read, if anything."
            )

    form.print(
        found.rows.items(),
        columns=(*_COUNTS, Column("problems", read=lambda _: len(found.problems))),
        document={"store": name, "problems": list(found.problems), "rows": found.rows},
        show=show,
    )
    if not found.is_sound:
        raise typer.Exit(1)


@store.command(epilog=epilog("store prune"))
@grouped
def prune(
    older_than: Annotated[
        str | None,
        typer.Option(help="Delete what ended longer ago than this: 365d.", metavar="TIME"),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Delete the oldest until no more is left than this: 2G.", metavar="SIZE"),
    ] = None,
    place: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Make what is old coarser, delete what is too old or too much.

    Without options nothing is deleted: looks become values per minute after 7 days and per hour
    after 90, which a watcher does by itself, and the file shrinks to what is in it.
    """
    from dataclasses import asdict

    from lowtide.store import Store
    from lowtide.units import format_count, format_size, format_time, parse_duration, parse_size

    age = None if older_than is None else parse_duration(older_than)
    most = None if size is None else int(parse_size(size))
    with Store.open(place) as kept, waiting("pruning"):
        done = kept.prune(older_than_s=age, most_bytes=most)
    document = asdict(done)

    def show() -> None:
        say(
            f"{format_size(done.bytes_before)} before, {format_size(done.bytes_after)} now: "
            f"{format_count(done.rolled_up, 'chunk')} rolled up, "
            f"{format_count(done.jobs, 'job')} and {format_count(done.chunks, 'chunk')} deleted"
        )
        if done.kept_from is not None:
            say(f"Nothing is kept from before {format_time(done.kept_from)}.")
        if most is not None and done.bytes_after > most:
            say("That is more than asked for: what is younger than two days is kept.")

    form.print([document], document=document, show=show)


@store.command(epilog=epilog("store export"))
@grouped
def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    start: Since = None,
    end: Until = None,
    place: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Write jobs, their use over time, and the nodes' as Parquet."""
    import time

    from lowtide.cli.moments import parse_moment
    from lowtide.store import Store

    now = time.time()
    with Store.open(place, readonly=True) as kept, waiting("exporting"):
        counts = kept.export(
            folder,
            start=None if start is None else parse_moment(start, now=now),
            end=None if end is None else parse_moment(end, now=now),
        )
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    form.print(
        counts.items(),
        columns=_COUNTS,
        document={"folder": str(folder), "rows": counts},
        show=lambda: say(f"Written to {folder}: {words}"),
    )


@store.command(epilog=epilog("store load"))
@grouped
def load(
    files: Annotated[
        list[Path],
        typer.Argument(help="Samples as sonar left them, plain or gzip.", metavar="FILE..."),
    ],
    source: Annotated[
        str,
        typer.Option(help="What the jobs of older files are: slurm, or process without a queue."),
    ] = "slurm",
    place: StorePlace = None,
    form: Form = TABLE,
) -> None:
    """Take samples of another monitor into the store.

    Such samples say nothing of power: energy and emissions stay unknown. Load files in the order of
    time: jobs go on from where the store left them, and what it has is not taken again.
    """
    from contextlib import ExitStack

    from lowtide.formats.sonar import LastLook, read_ticks
    from lowtide.store import Store
    from lowtide.units import format_count

    hosts: set[str] = set()
    left_out: dict[str, int] = {}
    ticks = 0
    with waiting("loading"), Store.open(place) as kept, ExitStack() as claims:

        def known(host: str) -> LastLook | None:
            # Nobody else may count it meanwhile.
            claims.enter_context(kept.claim(host))
            return kept.last_look(host)

        for tick in read_ticks(files, source=source, known=known, left_out=left_out):
            kept.append(tick)
            ticks += 1
            hosts.add(tick.host)
        name = kept.name
    skipped = sum(left_out.values())
    counted = {"store": name, "ticks": ticks, "hosts": sorted(hosts), "left_out": skipped}

    def show() -> None:
        say(
            f"{format_count(ticks, 'tick')} of {format_count(len(hosts), 'host')} taken into "
            f"{name}; next: lowtide jobs"
        )
        if skipped:
            say(
                f"{format_count(skipped, 'sample')} of {', '.join(sorted(left_out))} left out: the "
                "store knows as late or later ones already. Load files in the order of time."
            )

    form.print([counted], document=counted, show=show)


def _facts(kept: Store) -> dict[str, Any]:
    sizes = kept.sizes()
    values = {
        name: sizes.get(f"points_{resolution}", 0) for resolution, name in _RESOLUTIONS.items()
    }
    return {
        "store": kept.name,
        "bytes": sizes["bytes"],
        "jobs": sizes["jobs"],
        "chunks": sizes["chunks"],
        "ticks": sizes["ticks"],
        "values": values,
        "hosts": [
            {"name": host.name, "last_time": host.last_time, "interval_s": host.interval_s}
            for host in kept.hosts()
        ],
    }


def _rescue(place: str | None, fresh: Path, *, form: Form) -> None:
    from lowtide.errors import InvalidInput
    from lowtide.store.damage import rescue
    from lowtide.store.database import default_place

    damaged = place or default_place(reading=True)
    if "://" in damaged and not damaged.startswith("sqlite:///"):
        raise InvalidInput("only files are rescued: a server has tools of its own, such as pg_dump")
    saved = rescue(Path(damaged.removeprefix("sqlite:///")), fresh)
    columns = (
        Column("table", "table", read=lambda pair: pair[0]),
        Column("saved", "saved", read=lambda pair: pair[1]),
        Column("lost", "lost", read=lambda pair: saved.lost[pair[0]]),
    )

    def show() -> None:
        print_rows(columns, saved.saved.items())
        if saved.saved["jobs"]:
            say(f"Saved in {fresh}; look at it with --store {fresh}")
        else:
            say(
                f"No job of {damaged} could be saved: {fresh} holds what is left; take the jobs "
                "from a backup."
            )

    form.print(
        saved.saved.items(),
        columns=columns,
        document={"saved": saved.saved, "lost": saved.lost},
        show=show,
    )
    if not saved.saved["jobs"]:
        raise typer.Exit(1)
