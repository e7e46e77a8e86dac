"""`lowtide model`: a machine's power from how busy it is, learned from runs or entered."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    Written,
    print_rows,
    progress,
    require_figure,
    say,
    say_all,
)
from lowtide.errors import InvalidInput

if TYPE_CHECKING:
    from lowtide.learning.utilisation import LearnedUtilisation
    from lowtide.recording import Recording


Recordings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders or files with measured runs, or 'h200': recordings of lowtide's own, "
        "pinpoint folders, tables of samples with events beside them.",
        metavar="RECORDING...",
    ),
]
Events = Annotated[
    bool | None,
    typer.Option(
        "--events/--no-events",
        help="Go by what the program said, or by power alone.  [default: by what it said, if "
        "it said anything]",
    ),
]
Baseline = Annotated[
    str, typer.Option(help="Idle power: included in the profile, or excluded from it.")
]
IdleBefore = Annotated[
    str | None,
    typer.Option(
        help="Of pinpoint folders: how long the idle machine was measured before each program.  "
        "[default: found out]",
        metavar="SECONDS",
    ),
]
IdleAfter = Annotated[
    str | None,
    typer.Option(
        help="Of pinpoint folders: how long it was measured after each program.  "
        "[default: found out]",
        metavar="SECONDS",
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        help="What to go by, such as cpu,disk or gpu=gpu_util/100 or disk=rate(read_bytes)."
        "  [default: all use that was recorded]",
        metavar="NAME[=COLUMN],...",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a machine's power is learned from its use, or entered."""

    features: Features = None
    usage: Annotated[
        list[Path] | None,
        typer.Option(
            help="A table of use with a column time, joined on it; repeat for more.", metavar="FILE"
        ),
    ] = None
    table: Annotated[
        Path | None,
        typer.Option(
            help="Enter loads and watts, as SPECpower states them, instead of learning.",
            metavar="FILE",
        ),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(help="Of --table: where it comes from.  [default: what it says itself]"),
    ] = None
    average: Annotated[
        float | None, typer.Option(help="Seconds to average over.  [default: 1]")
    ] = None
    level: Annotated[
        float | None, typer.Option(help="How often intervals shall hold.  [default: 0.9]")
    ] = None
    rung: Annotated[
        str | None, typer.Option(help="Take this kind of model, whatever validation says.")
    ] = None
    card: Annotated[Path | None, typer.Option(help="Write a model card, a .md file.")] = None
    seed: Annotated[int | None, typer.Option(help="Decides random choices.  [default: 0]")] = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{each.name}" for each in fields(self) if getattr(self, each.name) is not None]


def model(
    recordings: Recordings = None,
    asked: ModelOptions = ModelOptions(),  # noqa: B008 - frozen
    idle_before: IdleBefore = None,
    idle_after: IdleAfter = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the model: a .json file.")
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="Draw the model over use: a .png or .svg file.")
    ] = None,
    form: Form = TABLE,
) -> None:
    """Learn what a machine draws from how busy it is.

    The simplest model is taken that runs left out in turn support. lowtide measure and watch take
    it as --meter estimate:MODEL where there is no sensor.
    """
    from lowtide.formats.model_tables import read_usage
    from lowtide.learning.utilisation import learn_utilisation, write_card

    card = asked.card
    if asked.table is not None:
        if recordings or image is not None or set(asked.given) - {"--table", "--source"}:
            raise InvalidInput(
                "--table enters numbers and learns nothing: leave out recordings and all but "
                "--source, -o, --json and -P"
            )
        enter_table(asked.table, source=asked.source, out=out, form=form)
        return
    if asked.source is not None:
        raise InvalidInput("--source says where a --table comes from")
    runs = read_runs(recordings, idle_before, idle_after)
    for path, suffix, what in ((out, ".json", "utilisation model"), (card, ".md", "model card")):
        if path is not None and path.suffix != suffix:
            raise InvalidInput(f"a {what} is a {suffix} file, not {path.name!r}")
    require_figure(image)
    with progress("learning") as bar:
        learned = learn_utilisation(
            runs,
            usage=[read_usage(path) for path in asked.usage or ()],
            features=None if asked.features is None else asked.features.split(","),
            average_s=1.0 if asked.average is None else asked.average,
            level=0.9 if asked.level is None else asked.level,
            rung=asked.rung,
            seed=asked.seed or 0,
            progress=lambda what, done, total: bar.reach(done, total, what),
        )
    written = Written()
    # The card is worth having where nothing was learned, too.
    written.add(card, partial(write_card, learned))
    if learned.model is not None:
        written.add(out, learned.model.dump)
    if learned.model is not None and image is not None:
        from lowtide.learning.figures import write_utilisation_figure

        written.add(image, partial(write_utilisation_figure, learned))

    def show() -> None:
        _print_ladder(learned)
        for path in written.paths:
            print(f"written: {path}")

    form.print(learned.tried, _rungs(learned), document=learned.document, show=show)
    written.settle()
    if learned.model is None:
        raise InvalidInput(f"{learned.why}. Nothing is saved; --rung NAME would insist on a rung")


def read_runs(
    recordings: list[str] | None, idle_before: str | None, idle_after: str | None
) -> list[Recording]:
    """Return the measured runs that were named: folders, files, or samples of lowtide's own."""
    from lowtide.formats.recordings import read_recordings
    from lowtide.samples import sample_recording, sample_recordings

    if not recordings:
        raise InvalidInput("name the measured runs to learn from: lowtide learn RECORDING...")
    samples = sample_recordings()
    return read_recordings(
        [sample_recording(name) if name in samples else Path(name) for name in recordings],
        idle_before=idle_before,
        idle_after=idle_after,
    )


def enter_table(path: Path, *, source: str | None, out: Path | None, form: Form) -> None:
    """Make a power model of a table of loads and watts.

    Args:
        source: Where it comes from; by default what the file says, else its name.
    """
    from lowtide.formats.model_tables import read_load_table
    from lowtide.meters.power_model import UtilisationModel

    table = read_load_table(path)
    said = source or table.source or f"table {path.name}"
    model = UtilisationModel.points(table.share, table.power_w, source=said)
    if out is not None:
        model.dump(out)
    columns = (
        Column("share", "load", lambda share: f"{100 * share:g} %", lambda pair: float(pair[0])),
        Column("power_w", "power", "{:g} W".format, lambda pair: float(pair[1])),
    )
    pairs = list(zip(table.share, table.power_w, strict=True))

    def show() -> None:
        print_rows(columns, pairs)
        print()
        say(f"From {said}: as stated there, not measured here, and without intervals.")
        if out is not None:
            print(f"written: {out}")

    form.print(pairs, columns=columns, document=model.document, show=show)


def _print_ladder(learned: LearnedUtilisation) -> None:
    from lowtide.learning.utilisation import coverage_words
    from lowtide.units import format_count

    data = learned.data
    say(
        f"Power over {', '.join(data.features)}: {format_count(len(data.runs), 'run')}, "
        f"{format_count(len(data), 'window')} of {data.average_s:g} s. Error in W on runs that "
        + (
            f"were left out, and on {len(data.loads)} loads that were (unseen)"
            if data.loads
            else "were left out"
        )
        + ", mean and standard error:"
    )
    print()
    print_rows(_rungs(learned), learned.tried)
    print()
    say_all(f"{note[:1].upper()}{note[1:]}." for note in data.notes)
    if learned.model is not None:
        say(f"{learned.why[:1].upper()}{learned.why[1:]}.")
        say(coverage_words(learned))
        seen = ", ".join(
            f"{each.name} {each.low:.4g} to {each.high:.4g}" for each in learned.model.features
        )
        say(f"Learned from {seen}; outside of that it is a guess, whose interval widens.")


def _rungs(learned: LearnedUtilisation) -> list[Column]:
    from lowtide.learning.utilisation import score_words, verdict

    return [
        Column("rung", "rung", read=lambda each: each.name),
        Column("", "what it is", read=lambda each: each.means),
        Column("", "error", read=lambda each: score_words(each.rmse_w)),
        Column("", "gain", read=lambda each: score_words(each.gain_w)),
        *(
            [Column("", "unseen", read=lambda each: score_words(each.unseen_w))]
            if learned.data.loads
            else []
        ),
        Column("rmse_w", read=lambda each: each.rmse_w.value),
        Column("rmse_error_w", read=lambda each: each.rmse_w.error),
        Column("gain_w", read=lambda each: each.gain_w and each.gain_w.value),
        Column("gain_error_w", read=lambda each: each.gain_w and each.gain_w.error),
        Column("within"),
        Column("chosen", read=lambda each: each.name == learned.chosen),
        Column("mae_w", read=lambda each: each.mae_w.value),
        Column("unseen_w", read=lambda each: each.unseen_w and each.unseen_w.value),
        Column("", "", read=lambda each: verdict(each, learned.chosen)),
    ]
