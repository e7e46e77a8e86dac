"""`lowtide learn --utilisation`: a power model of a machine, as a table, JSON and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.cli.output import print_json, print_parsable, print_table, progress_bar, say

if TYPE_CHECKING:
    from lowtide.learning.utilisation import LearnedUtilisation
    from lowtide.recording import Recording


def learn_model(
    recordings: list[Recording],
    *,
    out: Path | None,
    card: Path | None,
    image: Path | None,
    as_json: bool,
    parsable: bool,
    usage: list[Path],
    **how: Any,
) -> None:
    """Learn a power model from runs, show the ladder and write what was asked for.

    Args:
        as_json: Whether to print JSON.
        how: What else `learn_utilisation` takes.
    """
    from lowtide.errors import InvalidInput
    from lowtide.formats.model_tables import read_usage
    from lowtide.learning.utilisation import learn_utilisation, write_card

    for path, suffix, what in ((out, ".json", "utilisation model"), (card, ".md", "model card")):
        if path is not None and path.suffix != suffix:
            raise InvalidInput(f"a {what} is a {suffix} file, not {path.name!r}")
    tables = [read_usage(path) for path in usage]
    with _progress() as progress:
        learned = learn_utilisation(recordings, usage=tables, progress=progress, **how)
    written = []
    if card is not None:
        # The card is worth having where nothing was learned, too.
        write_card(learned, card)
        written.append(card)
    if learned.model is not None and out is not None:
        learned.model.dump(out)
        written.append(out)
    if learned.model is not None and image is not None:
        from lowtide.learning.figures import write_utilisation_figure

        write_utilisation_figure(learned, image)
        written.append(image)
    if as_json:
        print_json(learned.document())
    elif parsable:
        _print_columns(learned)
    else:
        _print_ladder(learned)
        for path in written:
            print(f"written: {path}")
    if learned.model is None:
        raise InvalidInput(f"{learned.why}. Nothing is saved; --rung NAME would insist on a rung")


def enter_table(
    path: Path, *, source: str | None, out: Path | None, as_json: bool, parsable: bool
) -> None:
    """Make a power model of a table of loads and watts.

    Args:
        source: Where it comes from; by default what the file says, else its name.
        as_json: Whether to print JSON.
    """
    from lowtide.formats.model_tables import read_load_table
    from lowtide.meters.power_model import UtilisationModel

    table = read_load_table(path)
    said = source or table.source or f"table {path.name}"
    model = UtilisationModel.points(table.share, table.power_w, source=said)
    if out is not None:
        model.dump(out)
    pairs = list(zip(table.share, table.power_w, strict=True))
    if as_json:
        print_json(model.document())
    elif parsable:
        print_parsable(("share", "power_w"), [[f"{a:.10g}", f"{b:.10g}"] for a, b in pairs])
    else:
        print_table(("load", "power"), [[f"{100 * a:g} %", f"{b:g} W"] for a, b in pairs])
        print()
        say(f"From {said}: as stated there, not measured here, and without intervals.")
        if out is not None:
            print(f"written: {out}")


def _print_ladder(learned: LearnedUtilisation) -> None:
    from lowtide.learning.utilisation import coverage_words, score_words, verdict
    from lowtide.units import format_count

    data = learned.data
    say(
        f"Power over {', '.join(data.features)}: {format_count(len(data.runs), 'run')}, "
        f"{format_count(len(data), 'window')} of {data.average_s:g} s. Error in W on runs that "
        "were left out, mean and standard error:"
    )
    print()
    print_table(
        ("rung", "what it is", "error", "gain", ""),
        [
            [
                each.name,
                each.means,
                score_words(each.rmse_w),
                score_words(each.gain_w),
                verdict(each, learned.chosen),
            ]
            for each in learned.tried
        ],
    )
    print()
    for note in data.notes:
        say(f"{note[:1].upper()}{note[1:]}.")
    if learned.model is not None:
        say(f"{learned.why[:1].upper()}{learned.why[1:]}.")
        say(coverage_words(learned))
        seen = ", ".join(
            f"{each.name} {each.low:.4g} to {each.high:.4g}" for each in learned.model.features
        )
        say(f"Learned from {seen}; outside of that it is a guess without an interval.")


def _print_columns(learned: LearnedUtilisation) -> None:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.10g}"

    print_parsable(
        ("rung", "rmse_w", "rmse_error_w", "gain_w", "gain_error_w", "within", "chosen"),
        [
            [
                each.name,
                number(each.rmse_w.value),
                number(each.rmse_w.error),
                number(None if each.gain_w is None else each.gain_w.value),
                number(None if each.gain_w is None else each.gain_w.error),
                "yes" if each.within else "no",
                "yes" if each.name == learned.chosen else "no",
            ]
            for each in learned.tried
        ],
    )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with progress_bar() as bar:
        task = bar.add_task("learning", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell
