"""`lowtide learn sizes`: how a program grows with its size, and what another size comes to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.model import Baseline, Events, IdleAfter, IdleBefore, read_runs
from lowtide.cli.output import TABLE, Column, Form, Written, print_rows, say, say_all, waiting
from lowtide.errors import InvalidInput
from lowtide.units import format_duration, format_energy

if TYPE_CHECKING:
    from lowtide.library.scaling import Foretold, Scaling, Sized

# What stands behind the name of a recording: its size.
_SIZE = re.compile(r"(?P<place>.+)@(?P<size>\w+=[^=,]+(?:,\w+=[^=,]+)*)")


def sizes(
    by: Annotated[
        str,
        typer.Option(
            help="What sizes are told by: epochs, which are counted, or what RECORDING@gpus=2 "
            "says; several with commas.",
            metavar="NAMES",
        ),
    ],
    recordings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Measured runs of several sizes, each with its size behind it: small@gpus=2.",
            metavar="RECORDING[@NAME=NUMBER,...]...",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Say what another size comes to, and write its profile with -o.",
            metavar="NAME=NUMBER,...",
        ),
    ] = None,
    events: Events = None,
    baseline: Baseline = "included",
    idle_before: IdleBefore = None,
    idle_after: IdleAfter = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write the profile of --at: a .toml or .json file."),
    ] = None,
    form: Form = TABLE,
) -> None:
    """Learn how a program grows with its size.

    Each size is left out in turn to see how well the others tell it.
    """
    from lowtide.library.scaling import fit_scaling, read_size

    names = [name.strip() for name in by.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"--by names what sizes are told by, each once: epochs,gpus, not {by!r}")
    if out is not None and at is None:
        raise InvalidInput("-o writes the profile of one size: say which with --at")
    wanted = None if at is None else read_size(at, names, "--at")
    idle, options = (idle_before, idle_after), {"events": events, "baseline": baseline}
    with waiting("learning"):
        sized = [_sized(each, names, idle, options) for each in recordings or ()]
        scaling = fit_scaling(names, sized)
    foretold, written = None, Written()
    if wanted is not None:
        laws = (scaling.energy_j, scaling.duration_s)
        foretold = tuple(scaling.foretell(law, wanted) for law in laws)
        if out is not None:
            beyond = "beyond what was measured" if foretold[0].beyond > 0 else "not measured"
            about = f"Scaled to {scaling.told(wanted)}: {beyond}, by {len(sized)} sizes."
            written.add(out, partial(scaling.profile(wanted).dump, about=about))
    rows = _rows(scaling)

    def show() -> None:
        print_rows(_columns(names), rows)
        print()
        say_all(_laws(scaling))
        if wanted is not None and foretold is not None:
            say(_foretold(scaling, wanted, foretold))
        for path in written.paths:
            print(f"written: {path}")

    form.print(
        rows,
        columns=_columns(names),
        document={
            "by": names,
            "sizes": rows,
            "untried": scaling.untried,
            **{
                what: {
                    "law": law.kind,
                    "factors": list(law.factors),
                    "parts": [
                        {"law": part.kind, "factors": list(part.factors)} for part in law.parts
                    ],
                    "error": law.error,
                    "worst": law.worst,
                }
                for what in ("energy_j", "duration_s")
                for law in [getattr(scaling, what)]
            },
            "at": None
            if wanted is None or foretold is None
            else {
                **dict(zip(names, wanted, strict=True)),
                "beyond": foretold[0].beyond,
                **{
                    f"{what}{end}": getattr(each, name)
                    for what, each in zip(("energy_j", "duration_s"), foretold, strict=True)
                    for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))
                },
            },
        },
        show=show,
    )
    written.settle()


def _sized(
    text: str, names: Sequence[str], idle: tuple[str | None, str | None], options: Mapping[str, Any]
) -> Sized:
    """Return the runs of one size, which stands behind their name, or in them."""
    from lowtide.learning import learn
    from lowtide.library.scaling import Sized, sizes_in

    found = None if Path(text).exists() else _SIZE.fullmatch(text)
    place = text if found is None else found["place"]
    said = {} if found is None else dict(sizes_in(found["size"], f"the size of {place}"))
    learned = learn(read_runs([place], *idle), validated=False, **options)
    if learned.epochs is not None:
        said.setdefault("epochs", float(learned.epochs))
    if missing := [name for name in names if name not in said]:
        raise InvalidInput(
            f"how large {place} is by {', '.join(missing)} nobody says: write "
            f"{place}@{','.join(f'{name}=2' for name in missing)}, with the right numbers"
        )
    return Sized(name=place, size=tuple(said[name] for name in names), learned=learned)


def _rows(scaling: Scaling) -> list[dict[str, Any]]:
    return [
        {
            "recording": each.name,
            **dict(zip(scaling.names, each.size, strict=True)),
            "runs": len(each.learned.series),
            "energy_j": each.energy_j,
            "energy_left_out_j": scaling.energy_j.left_out[place],
            "duration_s": each.duration_s,
            "duration_left_out_s": scaling.duration_s.left_out[place],
        }
        for place, each in enumerate(scaling.sized)
    ]


def _columns(names: Sequence[str]) -> tuple[Column, ...]:
    def off(measured: str, left_out: str) -> Column:
        return Column(
            "",
            "by the others",
            lambda share: f"{100 * share:+.1f} %",
            lambda row: row[left_out] / row[measured] - 1,
        )

    return (
        Column("recording", "recording"),
        *(Column(name, name, "{:g}".format) for name in names),
        Column("runs", "runs"),
        Column("energy_j", "energy"),
        Column("energy_left_out_j"),
        off("energy_j", "energy_left_out_j"),
        Column("duration_s", "duration"),
        Column("duration_left_out_s"),
        off("duration_s", "duration_left_out_s"),
    )


def _laws(scaling: Scaling) -> list[str]:
    laws = [
        f"{what}: {law.text(scaling.names, unit)} ({law.kind}); off by {100 * law.error:.2g} % on "
        f"average and {100 * law.worst:.2g} % at most on a size left out."
        for what, law, unit in (
            ("Energy", scaling.energy_j, "J"),
            ("Duration", scaling.duration_s, "s"),
        )
    ]
    return laws if scaling.untried is None else [*laws, f"{scaling.untried}."]


def _foretold(scaling: Scaling, size: Sequence[float], both: Sequence[Foretold]) -> str:
    energy, duration = both
    said = (
        f"{scaling.told(size)}: ~{format_energy(energy.value)} ({format_energy(energy.low)} to "
        f"{format_energy(energy.high)}), ~{format_duration(duration.value)} "
        f"({format_duration(duration.low)} to {format_duration(duration.high)})."
    )
    if energy.beyond > 0:
        said += " That is beyond what was measured, and the bands are wider for it."
    return said
