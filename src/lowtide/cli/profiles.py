"""`lowtide profiles`: programs that run anyway, kept by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.certainty import mark_notes, marked, marks_for
from lowtide.cli.examples import epilog
from lowtide.cli.options import StorePlace, Until, Users, grouped
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    print_rows,
    say,
    say_all,
    waiting,
    warn,
)
from lowtide.errors import InvalidInput
from lowtide.units import MISSING, format_duration, format_energy, format_hours, format_time

if TYPE_CHECKING:
    from lowtide.library import Entry, Expectation, Harvest, Library
    from lowtide.library.production import RunSource
    from lowtide.profile import PowerProfile

profiles = typer.Typer(
    name="profiles",
    help="Learn, see and compare the programs of the library.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# Where jobs are found unless all are asked for: services have no end, and shells no program.
_SOURCES = ("slurm", "container")
Folder = Annotated[
    Path | None,
    typer.Option(
        "--library",
        help="Where the library is.  [default: LOWTIDE_PROFILES, or below the user's data]",
        metavar="FOLDER",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionOptions:
    """Which runs that happened anyway a library is learned from."""

    from_store: Annotated[
        bool,
        typer.Option(
            "--from-store",
            help="Learn from the jobs that were watched: the default. A store may be named.",
        ),
    ] = False
    from_prometheus: Annotated[
        str | None,
        typer.Option(
            help="Learn from the metrics of lowtide watch in a Prometheus: http://localhost:9090.",
            metavar="URL",
        ),
    ] = None
    from_recordings: Annotated[
        bool,
        typer.Option(
            "--from-recordings", help="Learn from the recordings in the folders that are named."
        ),
    ] = False
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Jobs that are called so: train,'md-*'.", metavar="NAMES"),
    ] = None
    user: Users = None
    start: Annotated[
        str | None,
        typer.Option(
            "-S",
            "--start",
            "--starttime",
            help="Jobs that ran after this: now-30days, 2024-07-01.  [default: all, and of "
            "a Prometheus the last 15 days]",
            metavar="TIME",
        ),
    ] = None
    end: Until = None
    everything: Annotated[
        bool,
        typer.Option(
            "--everything", help="Services and plain processes too, not jobs and containers alone."
        ),
    ] = False
    store: StorePlace = None
    library: Folder = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [
            f"--{each.name.replace('_', '-')}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        ]


def learn_library(places: Sequence[str], asked: ProductionOptions, form: Form) -> None:
    """Learn programs from runs that happened, keep them in the library, and say how sure it is.

    Args:
        places: What was named besides: a store, or folders with recordings.
    """
    from lowtide.library import Library, learn_from

    ways = [way for way in asked.given if way.startswith("--from-")]
    if len(ways) > 1:
        raise InvalidInput(f"runs come from one place at a time, not by {' and '.join(ways)}")
    library = Library(asked.library)

    def learned(source: RunSource) -> Harvest:
        with waiting("learning"):
            return learn_from(source, library)

    if asked.from_recordings:
        harvest = learned(_recorded(places, asked))
    elif asked.from_prometheus is not None:
        harvest = learned(_scraped(asked.from_prometheus, places, asked))
    else:
        harvest = _from_store(places, asked, learned)
    for problem in library.problems:
        warn(problem)
    form.print(
        harvest.found,
        columns=_FOUND,
        document=lambda: {
            "library": str(library.folder),
            "programs": [each.document() for each in harvest.found],
            "notes": harvest.notes,
        },
        show=lambda: _print_harvest(harvest, library),
    )


def _from_store(places: Sequence[str], asked: ProductionOptions, learned: Any) -> Harvest:
    import time

    from lowtide.cli.jobs import listed, users_of, window
    from lowtide.library.sources import Watched
    from lowtide.store import Question, Store

    if len(places) > 1 or (places and asked.store is not None):
        raise InvalidInput("one store is learned from at a time: name it once")
    now = time.time()
    begin, until = window(asked.start, asked.end, now=now, usual_s=None)
    question = Question(
        users=users_of(asked.user),
        start=begin,
        end=until,
        names=listed(asked.name),
        sources=() if asked.everything else _SOURCES,
    )
    with Store.open(places[0] if places else asked.store, readonly=True) as kept:
        source = Watched(kept, question, now)
        if not len(source):
            raise InvalidInput(
                f"no such jobs in {kept.name}: lowtide jobs -S now-30days lists what there is, and "
                "--everything takes services and plain processes too"
            )
        found: Harvest = learned(source)
    return found


def _recorded(places: Sequence[str], asked: ProductionOptions) -> RunSource:
    from lowtide.library.sources import Recorded
    from lowtide.samples import sample_recording, sample_recordings

    others = [each for each in asked.given if each not in ("--from-recordings", "--library")]
    if others:
        raise InvalidInput(
            f"{others[0]} chooses among jobs, and recordings have none: leave it out"
        )
    if not places:
        raise InvalidInput(
            "name the folders with recordings: lowtide profiles learn --from-recordings DIR"
        )
    samples = sample_recordings()
    return Recorded(
        [sample_recording(place) if place in samples else Path(place) for place in places]
    )


def _scraped(url: str, places: Sequence[str], asked: ProductionOptions) -> RunSource:
    import time

    from lowtide.cli.jobs import listed, users_of, window
    from lowtide.library.scraped import USUAL_S, Scraped

    if places or asked.store is not None:
        raise InvalidInput("--from-prometheus takes runs from there alone: leave out other places")
    now = time.time()
    begin, until = window(asked.start, asked.end, now=now, usual_s=USUAL_S)
    return Scraped(
        url=url,
        start=begin if begin is not None else now - USUAL_S,
        end=now if until is None else until,
        names=listed(asked.name),
        users=users_of(asked.user),
        sources=() if asked.everything else _SOURCES,
    )


def _print_harvest(harvest: Harvest, library: Library) -> None:
    print_rows(_FOUND, harvest.found)
    print()
    entries = [each.entry for each in harvest.found if each.entry is not None]
    say_all(_meaning(entries))
    if entries:
        say("Off by: how far single runs were from what others tell of them, on average.")
    for found in harvest.found:
        name = found.entry.name if found.entry else found.program.name
        if found.why:
            say(f"{name}: nothing learned: {found.why}.")
        if found.entry is not None:
            say_all(_remarks(found.entry))
    say_all(harvest.notes)
    written = [each for each in harvest.found if each.status in ("new", "updated")]
    if written:
        say(
            f"Kept in {library.folder}: lowtide plan --profile "
            f"{written[0].entry.name if written[0].entry else 'NAME'} looks there."
        )


def _remarks(entry: Entry) -> list[str]:
    """Return what people should know of a program: that it drifts, and that little is known."""
    said = [f"{entry.name} drifts: {entry.drift}."] if entry.drift else []
    return said + [
        f"{entry.name}: {note}."
        for note in entry.notes
        if "run only" in note or "runs only" in note
    ]


def _meaning(entries: Sequence[Entry]) -> list[str]:
    """Return what stands behind ±, and the marks."""
    if not entries:
        return []
    marks = marks_for(estimated=any(each.power == "estimated" for each in entries))
    return ["± is what 90 % of runs lie within.", *mark_notes(marks)]


def _energy(entry: Entry | None) -> str:
    if entry is None:
        return MISSING
    text = _give_or_take(format_energy(entry.energy_j.value), entry.energy_j)
    return marked(text, estimated=entry.power == "estimated")


def _duration(entry: Entry | None) -> str:
    if entry is None:
        return MISSING
    return _give_or_take(format_duration(entry.duration_s.value), entry.duration_s)


def _give_or_take(text: str, expected: Expectation) -> str:
    low, high = expected.low, expected.high
    if low is None or high is None or expected.level is None or expected.value <= 0:
        return f"{text} ± {MISSING}"
    apart = max(high - expected.value, expected.value - low)
    share = 100 * apart / expected.value
    return f"{text} ± {_two_digits(share)} %"


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"


def _off(entry: Entry | None) -> str:
    if entry is None:
        return MISSING
    return ", ".join(
        MISSING if each.error is None else f"{_two_digits(100 * each.error)} %"
        for each in (entry.energy_j, entry.duration_s)
    )


def _expected_columns(entry_of: Any) -> tuple[Column, ...]:
    """Return what is expected of a program, for scripts.

    Args:
        entry_of: Returns the program of a row, None where there is none.
    """

    def read(quantity: str, name: str) -> Any:
        def found(row: Any) -> Any:
            entry = entry_of(row)
            return None if entry is None else getattr(getattr(entry, quantity), name)

        return found

    return tuple(
        Column(f"{prefix}{key}{unit}", read=read(quantity, name))
        for quantity, prefix, unit in (
            ("energy_j", "energy", "_j"),
            ("duration_s", "duration", "_s"),
        )
        for key, name in (("", "value"), ("_low", "low"), ("_high", "high"))
    )


_FOUND = (
    Column("profile", "profile", read=lambda found: found.entry and found.entry.name),
    Column("status", ""),
    Column("name", "job", read=lambda found: found.program.name),
    Column("user", "user", read=lambda found: found.program.user or None),
    Column("", "asks for", read=lambda found: found.program.shape),
    Column("runs", "runs", read=lambda found: found.entry.runs if found.entry else 0),
    Column("left_out", read=lambda found: len(found.left_out)),
    Column("reasons", "left out", read=lambda found: found.reasons()),
    Column("", "energy", read=lambda found: _energy(found.entry)),
    Column("", "duration", read=lambda found: _duration(found.entry)),
    Column("", "off by", read=lambda found: _off(found.entry)),
    *_expected_columns(lambda found: found.entry),
    Column("drift", read=lambda found: bool(found.entry and found.entry.drift)),
)
_LISTED = (
    Column("profile", "profile", read=lambda entry: entry.name),
    Column("name", "job", read=lambda entry: entry.program.name),
    Column("user", "user", read=lambda entry: entry.program.user or None),
    Column("nodes", read=lambda entry: entry.program.nodes),
    Column("cpus", read=lambda entry: entry.program.cpus),
    Column("gpus", read=lambda entry: entry.program.gpus),
    Column("", "asks for", read=lambda entry: entry.program.shape),
    Column("runs", "runs"),
    Column("until", "last began", format_time),
    Column("", "energy", read=_energy),
    Column("", "duration", read=_duration),
    *_expected_columns(lambda entry: entry),
    Column("power"),
    Column(
        "drift", "drifts", lambda drifts: "yes" if drifts else "", lambda entry: bool(entry.drift)
    ),
)


@profiles.command("learn", epilog=epilog("profiles learn"))
@grouped
def learn_(
    places: Annotated[
        list[str] | None,
        typer.Argument(help="A store, or folders with recordings.", metavar="PLACE..."),
    ] = None,
    asked: ProductionOptions = ProductionOptions(),  # noqa: B008 - frozen
    form: Form = TABLE,
) -> None:
    """Learn every program among runs that happened anyway.

    Runs come from the jobs that were watched unless another place is named. plan, when and show
    look up by name what is kept.
    """
    learn_library(places or [], asked, form)


@profiles.command("list", epilog=epilog("profiles list"))
@grouped
def list_(library: Folder = None, form: Form = TABLE) -> None:
    """List the programs of the library."""
    from lowtide.library import Library

    kept = Library(library)
    entries = kept.entries()
    for problem in kept.problems:
        warn(problem)

    def show() -> None:
        if not entries:
            say(
                f"No programs in {kept.folder}: lowtide profiles learn learns them from jobs "
                "that were watched."
            )
            return
        print_rows(_LISTED, entries)
        print()
        say_all(_meaning(entries))

    form.print(
        entries,
        columns=_LISTED,
        document={"library": str(kept.folder), "programs": [each.document() for each in entries]},
        show=show,
    )


Name = Annotated[str, typer.Argument(help="The program: its name in the library, or of its job.")]


@profiles.command("show", epilog=epilog("profiles show"))
@grouped
def show_(name: Name, library: Folder = None, form: Form = TABLE) -> None:
    """Show one program: its phases, what is expected, and its origin."""
    from lowtide.library import Library

    entry = Library(library).find(name)
    rows = phase_rows(entry.profile)

    def show() -> None:
        say(
            f"{entry.name}: {entry.program}, {entry.program.shape}; learned from the newest "
            f"{entry.learned_from} of {entry.runs} runs, {format_time(entry.since)} to "
            f"{format_time(entry.until)}; power {entry.power}."
        )
        say(f"The next run: {_energy(entry)}, {_duration(entry)}.")
        print()
        print_rows(_PHASES, rows)
        print()
        say_all(_meaning([entry]))
        if entry.drift:
            say(f"It drifts: {entry.drift}.")
        say_all(f"{note[:1].upper()}{note[1:]}." for note in entry.notes)

    form.print(
        rows,
        columns=_PHASES,
        document={**entry.document(), "phases": rows, "profile": entry.profile.to_dict()},
        show=show,
    )


@profiles.command("diff", epilog=epilog("profiles diff"))
@grouped
def diff(
    name: Name,
    other: Annotated[
        str | None,
        typer.Argument(
            help="What to compare it with: another program, a .toml or .json file, h200.  "
            "[default: what it was before it was last learned]"
        ),
    ] = None,
    library: Folder = None,
    form: Form = TABLE,
) -> None:
    """Compare a program with another profile, or with itself before."""
    from lowtide.cli.inputs import named_profile
    from lowtide.library import Library

    kept = Library(library)
    entry = kept.find(name)
    if other is None:
        before = kept.before(entry.name)
        if before is None:
            raise InvalidInput(
                f"{entry.name} was learned once, and there is nothing before it to compare with: "
                "name another profile"
            )
        first, second, titles = before.profile, entry.profile, ("before", "now")
    else:
        first, second = entry.profile, named_profile(other, library=library)
        titles = (entry.name, other)
    rows = _compared(first, second)
    columns = _differences(titles)

    def show() -> None:
        print_rows(columns, rows)
        print()
        for what, then, now, told in (
            ("energy", first.energy_j, second.energy_j, format_energy),
            ("duration", first.run_s, second.run_s, format_hours),
        ):
            say(f"{what}: {told(then)} {titles[0]}, {told(now)} {titles[1]}: {_change(then, now)}")

    form.print(
        rows,
        columns=columns,
        document={
            "first": titles[0],
            "second": titles[1],
            "energy_j": [first.energy_j, second.energy_j],
            "duration_s": [first.run_s, second.run_s],
            "phases": rows,
        },
        show=show,
    )


def phase_rows(profile: PowerProfile) -> list[dict[str, Any]]:
    """Return the phases of a profile, those of one name together."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for part in ("startup", "restart", "work", "stop"):
        for phase in getattr(profile, part) or ():
            key = (part, phase.name)
            row = found.setdefault(key, {"part": part, "phase": phase.name, "times": 0})
            row["times"] += 1
            row["in_all_s"] = row.get("in_all_s", 0.0) + phase.duration_s
            row["energy_j"] = row.get("energy_j", 0.0) + phase.energy_j
    return [
        {
            **row,
            "duration_s": row["in_all_s"] / row["times"],
            "power_w": row["energy_j"] / row["in_all_s"],
        }
        for row in found.values()
    ]


def _compared(first: PowerProfile, second: PowerProfile) -> list[dict[str, Any]]:
    """Return the phases of two profiles beside each other, by their names."""
    sides = [
        {(row["part"], row["phase"]): row for row in phase_rows(each)} for each in (first, second)
    ]
    rows = []
    for part, phase in dict.fromkeys([*sides[0], *sides[1]]):
        row: dict[str, Any] = {"part": part, "phase": phase}
        for number, side in enumerate(sides, start=1):
            own = side.get((part, phase), {})
            row |= {f"{key}_{number}": own.get(key) for key in ("times", "duration_s", "power_w")}
        rows.append(row)
    return rows


_PHASES = (
    Column("part", "part"),
    Column("phase", "phase"),
    Column("times", "times"),
    Column("duration_s", "each for", format_hours),
    Column("power_w", "power", "{:.4g} W".format),
    Column("energy_j", "energy in all"),
)


def _differences(titles: tuple[str, str]) -> tuple[Column, ...]:
    def change(key: str) -> Column:
        heading = "longer by" if key == "duration_s" else "draws more by"
        return Column("", heading, read=lambda row: _change(row[f"{key}_1"], row[f"{key}_2"]))

    def side(key: str, number: int, show: Any) -> Column:
        return Column(f"{key}_{number}", titles[number - 1], show)

    return (
        Column("part", "part"),
        Column("phase", "phase"),
        *(side("times", number, str) for number in (1, 2)),
        *(side("duration_s", number, format_hours) for number in (1, 2)),
        change("duration_s"),
        *(side("power_w", number, "{:.4g} W".format) for number in (1, 2)),
        change("power_w"),
    )


def _change(then: float | None, now: float | None) -> str:
    if then is None or now is None or then <= 0:
        return MISSING
    return f"{100 * (now / then - 1):+.1f} %"
