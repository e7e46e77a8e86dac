"""`lowtide learn`: from recordings to a power profile, or a machine's power model, with proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.model import enter_table, learn_model
from lowtide.cli.options import AsJson, Parsable
from lowtide.cli.output import print_json, print_parsable, print_table, say, waiting

if TYPE_CHECKING:
    from lowtide.learning.intervals import Interval
    from lowtide.learning.learned import Learned
    from lowtide.learning.validation import Validation
    from lowtide.recording import Recording


def learn(
    recordings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders or files with measured runs, or 'h200': recordings of lowtide's own, "
            "pinpoint folders, tables of samples with events beside them.",
            metavar="RECORDING...",
        ),
    ] = None,
    events: Annotated[
        bool | None,
        typer.Option(
            "--events/--no-events",
            help="Go by what the program said, or by power alone.  [default: by what it said, if "
            "it said anything]",
        ),
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="Idle power: included in the profile, or excluded from it.")
    ] = "included",
    idle_before: Annotated[
        str | None,
        typer.Option(
            help="Of pinpoint folders: how long the idle machine was measured before each "
            "program.  [default: found out]",
            metavar="SECONDS",
        ),
    ] = None,
    idle_after: Annotated[
        str | None,
        typer.Option(
            help="Of pinpoint folders: how long it was measured after each program.  "
            "[default: found out]",
            metavar="SECONDS",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the profile: a .toml or .json file. Of --utilisation the model: .json.",
        ),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            help="Draw the profile over the runs, or the model over use: a .png or .svg file."
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Learn nothing: compare this profile with the runs, stops and kills with their "
            "resumption included.",
            metavar="PROFILE",
        ),
    ] = None,
    utilisation: Annotated[
        bool,
        typer.Option(
            "--utilisation",
            help="Learn a machine's power from how busy it is instead: a model for "
            "lowtide measure --meter estimate:MODEL.",
        ),
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            help="Of --utilisation: what to go by, such as cpu,disk or gpu=gpu_util/100 or "
            "disk=rate(read_bytes).  [default: all use that was recorded]",
            metavar="NAME[=COLUMN],...",
        ),
    ] = None,
    usage: Annotated[
        list[Path] | None,
        typer.Option(
            help="Of --utilisation: a table of use with a column time, joined on it; repeat for "
            "more.",
            metavar="FILE",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Of --utilisation: enter loads and watts, as SPECpower states them, instead of "
            "learning.",
            metavar="FILE",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Of --table: where it comes from.  [default: what it says itself]"),
    ] = None,
    average: Annotated[
        float | None,
        typer.Option(help="Of --utilisation: seconds to average over.  [default: 1]"),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Of --utilisation: how often intervals shall hold.  [default: 0.9]"),
    ] = None,
    rung: Annotated[
        str | None,
        typer.Option(help="Of --utilisation: take this kind of model, whatever validation says."),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(help="Of --utilisation: write a model card, a .md file."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of --utilisation: decides random choices.  [default: 0]")
    ] = None,
    as_json: AsJson = False,
    parsable: Parsable = False,
) -> None:
    """Learn a job's power profile from runs, and say how good it is.

    Phases come from uninterrupted runs, each left out in turn to see how well the others predict
    it. Stops and kills with their resumption tell startup from work and what stopping costs.

    With --utilisation: learn what the machine draws from how busy it is, with the simplest model
    that runs left out in turn support.
    """
    from lowtide.errors import InvalidInput
    from lowtide.learning import learn as learn_profile

    of_models = {
        "--features": features,
        "--usage": usage,
        "--table": table,
        "--source": source,
        "--average": average,
        "--level": level,
        "--rung": rung,
        "--card": card,
        "--seed": seed,
    }
    given = [option for option, value in of_models.items() if value is not None]
    if utilisation:
        if events is not None or check is not None or baseline != "included":
            raise InvalidInput(
                "--utilisation goes without --events, --no-events, --check, --baseline"
            )
        if table is not None:
            if recordings or image is not None or set(given) - {"--table", "--source"}:
                raise InvalidInput(
                    "--table enters numbers and learns nothing: leave out recordings and all but "
                    "--source, -o, --json and -P"
                )
            enter_table(table, source=source, out=out, as_json=as_json, parsable=parsable)
            return
        if source is not None:
            raise InvalidInput("--source says where a --table comes from")
        learn_model(
            _read(recordings, idle_before, idle_after),
            out=out,
            card=card,
            image=image,
            as_json=as_json,
            parsable=parsable,
            usage=usage or [],
            features=None if features is None else features.split(","),
            average_s=1.0 if average is None else average,
            level=0.9 if level is None else level,
            rung=rung,
            seed=seed or 0,
        )
        return
    if given:
        raise InvalidInput(f"{given[0]} belongs to --utilisation")
    read = _read(recordings, idle_before, idle_after)
    if check is not None:
        if events is not None or out is not None or image is not None:
            raise InvalidInput(
                "--check learns nothing: leave out --events, --no-events, -o and --image"
            )
        _check(check, read, baseline, as_json=as_json, parsable=parsable)
        return
    with waiting("learning"):
        learned = learn_profile(read, events=events, baseline=baseline)
    written = []
    if out is not None:
        learned.dump(out)
        written.append(out)
    if image is not None:
        from lowtide.learning.figures import write_figure

        write_figure(learned, image)
        written.append(image)
    if as_json:
        print_json(learned.document())
    elif parsable:
        print_parsable(_PHASE_COLUMNS, _phase_columns(learned))
    else:
        _print_learned(learned)
        for path in written:
            print(f"written: {path}")


def _read(
    recordings: list[str] | None, idle_before: str | None, idle_after: str | None
) -> list[Recording]:
    from lowtide.errors import InvalidInput
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


def _print_learned(learned: Learned) -> None:
    said, *rest = learned.text().split("\n")
    say(said)
    print()
    print_table(
        ("part", "phase", "times", "duration", "power", ""),
        [
            [
                phase.group,
                phase.name,
                str(phase.times),
                _interval(phase.duration_s, 2, "s"),
                _interval(phase.power_w, 1, "W"),
                "checkpoint" if phase.checkpoint else "",
            ]
            for phase in learned.phases
        ],
    )
    print()
    print(learned.profile)
    if learned.validation is not None:
        print()
        _print_validation(learned.validation)
        rest = rest[1:]
    print()
    for line in rest:
        say(line)


def _print_validation(validation: Validation) -> None:
    say(
        f"Leaving out each of {len(validation.runs)} runs in turn, mean and standard error of the "
        "error in W:"
    )
    print()
    names = {"absolute": "at absolute time", "aligned": "aligned"}
    print_table(
        ("prediction", "RMSE", "MAE", "constant power: RMSE", "MAE"),
        [
            [
                names.get(view.name, f"averages over {view.name}"),
                *(
                    str(score or "---")
                    for score in (
                        view.rmse_w,
                        view.mae_w,
                        view.constant_rmse_w,
                        view.constant_mae_w,
                    )
                ),
            ]
            for view in validation.views
        ],
    )
    print()
    say(f"Energy is {validation.energy_text()}.")


def _check(
    profile: str, recordings: list[Recording], baseline: str, *, as_json: bool, parsable: bool
) -> None:
    from dataclasses import asdict

    from lowtide.cli.inputs import load_profile
    from lowtide.errors import InvalidInput, UnknownName
    from lowtide.learning import check
    from lowtide.learning.checking import comparable, summaries
    from lowtide.learning.learned import BASELINES, format_joules, idle_power_w, noted

    if baseline not in BASELINES:
        raise UnknownName("baseline", baseline, BASELINES)
    runs = [run for recording in recordings for run in recording]
    baseline_w = idle_power_w(runs) if baseline == "excluded" else 0.0
    checks = check(load_profile(profile, None, None), runs, baseline_w=baseline_w)
    if not checks:
        raise InvalidInput(
            "nothing to compare with: there is no uninterrupted run, and no stop or kill with its "
            "resumption"
        )
    notes = [*noted(recordings), *comparable(runs)[1]]
    if as_json:
        document = [asdict(each) for each in checks]
        print_json({"profile": profile, "checks": document, "notes": notes})
    elif parsable:
        print_parsable(
            (
                *("runs", "kind", "measured_j", "predicted_j", "error", "rmse_w"),
                *("measured_s", "predicted_s"),
            ),
            [
                [
                    "+".join(each.runs),
                    each.kind,
                    f"{each.measured_j:.10g}",
                    f"{each.predicted_j:.10g}",
                    "" if each.error is None else f"{each.error:.10g}",
                    f"{each.rmse_w:.10g}",
                    f"{each.measured_s:.10g}",
                    f"{each.predicted_s:.10g}",
                ]
                for each in checks
            ],
        )
    else:
        print_table(
            ("runs", "kind", "measured", "predicted", "energy off by", "duration", "power RMSE"),
            [
                [
                    " + ".join(each.runs),
                    each.kind,
                    format_joules(each.measured_j),
                    format_joules(each.predicted_j),
                    "---" if each.error is None else f"{100 * each.error:+.2f} %",
                    f"{100 * each.late:+.2f} %",
                    f"{each.rmse_w:.1f} W",
                ]
                for each in checks
            ],
        )
        print()
        for line in [*summaries(checks), *notes]:
            say(f"{line[:1].upper()}{line[1:]}.")


_PHASE_COLUMNS = (
    "part",
    "phase",
    "times",
    "duration_s",
    "duration_half_s",
    "power_w",
    "power_half_w",
    "checkpoint",
)


def _phase_columns(learned: Learned) -> list[list[str]]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.10g}"

    return [
        [
            phase.group,
            phase.name,
            str(phase.times),
            number(phase.duration_s.value),
            number(phase.duration_s.half),
            number(phase.power_w.value),
            number(phase.power_w.half),
            "yes" if phase.checkpoint else "no",
        ]
        for phase in learned.phases
    ]


def _interval(interval: Interval, digits: int, unit: str) -> str:
    half = "---" if interval.half is None else f"{interval.half:.{digits}f}"
    return f"{interval.value:.{digits}f} ± {half} {unit}"
