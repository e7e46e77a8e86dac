"""`lowtide learn`: from recordings to a power profile, or a machine's power model, with proof."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.model import (
    Baseline,
    Events,
    Features,
    IdleAfter,
    IdleBefore,
    Recordings,
    read_runs,
)
from lowtide.cli.output import (
    TABLE,
    Column,
    Form,
    Written,
    print_rows,
    require_figure,
    say,
    say_all,
    waiting,
    warn,
)
from lowtide.units import MISSING

if TYPE_CHECKING:
    from lowtide.learning.intervals import Interval
    from lowtide.learning.learned import Learned
    from lowtide.learning.validation import Validation


def learn(
    recordings: Recordings = None,
    events: Events = None,
    baseline: Baseline = "included",
    idle_before: IdleBefore = None,
    idle_after: IdleAfter = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the profile: a .toml or .json file.",
        ),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="Draw the profile over the runs: a .png or .svg file."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            help="Say what it would draw on another machine, whose power model this is, by the use "
            "that was recorded (--features says which columns hold it, as for lowtide model).",
            metavar="MODEL",
        ),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(help="Of --machine: how many times as fast it is.  [default: 1]"),
    ] = None,
    features: Features = None,
    form: Form = TABLE,
) -> None:
    """Learn a power profile from runs, and say how good it is.

    Phases come from uninterrupted runs, each left out in turn to see how well the others predict
    it. Stops and kills with their resumption tell startup from work and what stopping costs.

    lowtide learn check compares a profile with runs (also as learn --check), lowtide learn sizes
    learns how a program grows with its size (also as learn --by), lowtide profiles learn every
    program among runs that happened anyway (also as learn --from-store), and lowtide model what a
    machine draws from how busy it is.
    """
    from lowtide.errors import InvalidInput
    from lowtide.learning import learn as learn_profile

    if machine is not None and image is not None:
        raise InvalidInput("--image draws runs over their profile, and none ran on --machine")
    if speed is not None and machine is None:
        raise InvalidInput("--speed says how fast another machine is, and belongs to --machine")
    if features is not None and machine is None:
        raise InvalidInput("--features belongs to --machine, and to lowtide model")
    read = read_runs(recordings, idle_before, idle_after)
    require_figure(image)
    if out is not None:
        from lowtide.profile import profile_path

        profile_path(out)
    with waiting("learning"):
        learned = learn_profile(read, events=events, baseline=baseline, validated=machine is None)
        if machine is not None:
            from lowtide.learning.transfer import on_machine
            from lowtide.meters.power_model import UtilisationModel

            learned = on_machine(
                learned,
                UtilisationModel.load(machine),
                features=None if features is None else features.split(","),
                speed=1.0 if speed is None else speed,
            )
    written = Written()
    written.add(out, learned.dump)
    if image is not None:
        from lowtide.learning.figures import write_figure

        written.add(image, partial(write_figure, learned))

    def show() -> None:
        _print_learned(learned)
        for path in written.paths:
            print(f"written: {path}")

    for note in learned.notes if form.parsable else ():
        warn(note)
    form.print(learned.phases, columns=_PHASES, document=learned.document, show=show)
    written.settle()


def _print_learned(learned: Learned) -> None:
    said, *rest = learned.text().split("\n")
    say(said)
    print()
    print_rows(_PHASES, learned.phases)
    print()
    print(learned.profile)
    if learned.validation is not None:
        print()
        _print_validation(learned.validation)
        rest = rest[1:]
    print()
    say_all(rest)


def _print_validation(validation: Validation) -> None:
    say(
        f"Leaving out each of {len(validation.runs)} runs in turn, mean and standard error of the "
        "error in W:"
    )
    print()
    names = {"absolute": "at absolute time", "aligned": "aligned"}
    print_rows(
        (
            Column("name", "prediction", lambda name: names.get(name, f"averages over {name}")),
            Column("rmse_w", "RMSE"),
            Column("mae_w", "MAE"),
            Column("constant_rmse_w", "constant power: RMSE"),
            Column("constant_mae_w", "MAE"),
        ),
        validation.views,
    )
    print()
    say_all(
        (f"Energy is {validation.energy_text()}.", f"Duration is {validation.duration_text()}.")
    )


def check(
    profile: Annotated[
        str,
        typer.Argument(
            help="The profile: a .toml or .json file, or a name in the library.", metavar="PROFILE"
        ),
    ],
    recordings: Recordings = None,
    baseline: Baseline = "included",
    idle_before: IdleBefore = None,
    idle_after: IdleAfter = None,
    form: Form = TABLE,
) -> None:
    """Compare a profile with runs, stops and kills.

    A stop or kill counts together with its resumption. Nothing is learned.
    """
    from dataclasses import asdict

    from lowtide.cli.inputs import named_profile
    from lowtide.errors import InvalidInput, UnknownName
    from lowtide.learning import check as check_profile
    from lowtide.learning.checking import comparable, summaries
    from lowtide.learning.costs import format_joules
    from lowtide.learning.learned import BASELINES
    from lowtide.learning.series import idle_power_w, noted
    from lowtide.recording import runs_of

    if baseline not in BASELINES:
        raise UnknownName("baseline", baseline, BASELINES)
    read = read_runs(recordings, idle_before, idle_after)
    runs = runs_of(read)
    baseline_w = idle_power_w(runs) if baseline == "excluded" else 0.0
    known = named_profile(profile)
    checks = check_profile(known, runs, baseline_w=baseline_w)
    notes = [*noted(read), *comparable(runs, known)[1]]
    if not checks:
        raise InvalidInput(
            "nothing to compare with: there is no uninterrupted run, and no stop or kill with its "
            f"resumption{''.join(f'; {note}' for note in notes)}"
        )
    columns = (
        Column("runs", read=lambda each: "+".join(each.runs)),
        Column("", "runs", read=lambda each: " + ".join(each.runs)),
        Column("kind", "kind"),
        Column("measured_j", "measured", format_joules),
        Column("predicted_j", "predicted", format_joules),
        Column("error", "energy off by", _percent),
        Column("rmse_w"),
        Column("measured_s"),
        Column("predicted_s"),
        Column("", "duration", _percent, lambda each: each.late),
        Column("", "power RMSE", "{:.1f} W".format, lambda each: each.rmse_w),
    )

    def show() -> None:
        print_rows(columns, checks)
        print()
        say_all(f"{line[:1].upper()}{line[1:]}." for line in [*summaries(checks), *notes])

    for note in notes if form.parsable else ():
        warn(note)
    form.print(
        checks,
        columns=columns,
        document={"profile": profile, "checks": [asdict(each) for each in checks], "notes": notes},
        show=show,
    )


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %"


def _interval(digits: int, unit: str) -> Callable[[Interval], str]:
    def text(interval: Interval) -> str:
        half = MISSING if interval.half is None else f"{interval.half:.{digits}f}"
        return f"{interval.value:.{digits}f} ± {half} {unit}"

    return text


_PHASES = (
    Column("part", "part", read=lambda phase: phase.group),
    Column("phase", "phase", read=lambda phase: phase.name),
    Column("times", "times"),
    Column("duration_s", read=lambda phase: phase.duration_s.value),
    Column("duration_half_s", read=lambda phase: phase.duration_s.half),
    Column("", "duration", _interval(2, "s"), lambda phase: phase.duration_s),
    Column("power_w", read=lambda phase: phase.power_w.value),
    Column("power_half_w", read=lambda phase: phase.power_w.half),
    Column("", "power", _interval(1, "W"), lambda phase: phase.power_w),
    Column("checkpoint", "", lambda is_one: "checkpoint" * is_one),
)
