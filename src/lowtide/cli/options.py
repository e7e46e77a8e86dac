"""Options that several verbs share, those of the form KEY=VALUE among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Verb = Callable[..., None]
# What `--how` may say of a file.
HOW = ("basis", "column", "format", "gaps", "kind", "tz", "unit", "zone")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Parsable = Annotated[
    bool, typer.Option("-P", "--parsable", help="Print columns separated by '|', as sacct does.")
]
SignalFile = Annotated[
    Path | None,
    typer.Option("--signal", help="File with carbon intensity or price; its format is recognised."),
]
GridName = Annotated[
    str | None,
    typer.Option(
        "--grid",
        help="Grid instead of a file: a provider's zone (gb, gb:13, electricitymaps:DE, "
        "watttime:CAISO_NORTH), or a synthetic one: sunny, windy, nuclear or coal.",
    ),
]
Seed = Annotated[int, typer.Option(help="Which weather the synthetic grid has.")]
How = Annotated[
    list[str] | None,
    typer.Option(
        "--how",
        help="How to read the file, KEY=VALUE, may be given again: gaps=hold or interpolate, "
        "tz=Europe/Paris, unit=EUR/MWh, column=NAME, zone=DE, kind=marginal, basis=direct, "
        "format=NAME.",
        metavar="KEY=VALUE",
    ),
]
Time = Annotated[
    str | None,
    typer.Option("-t", "--time", help="How long the job works, as for sbatch: 6:00:00, 1-12, 90."),
]
Power = Annotated[float | None, typer.Option(help="What the job draws, in watts.")]
Profile = Annotated[
    str | None,
    typer.Option(
        help="What the job draws over its phases: a .toml or .json file, 'h200', 'h200-day', or a "
        "job's name: what lowtide profiles learn keeps of it in the library."
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Of --profile: how often it repeats what it repeats.", min=1, metavar="N"),
]
Arrival = Annotated[
    str | None,
    typer.Option(
        help="When it may start: now, tomorrow, 18:00, 2024-07-01T06:00Z. Without a zone it is "
        "local time.  [default: now]"
    ),
]
Deadline = Annotated[
    str, typer.Option(help="When it must be done: a time, or +24h counted from the arrival.")
]
Sure = Annotated[
    bool,
    typer.Option(
        "--sure",
        help="Keep the deadline even if the job takes as long as its --profile says it may: it was "
        "learned from two runs or more.",
    ),
]
Now = Annotated[
    str | None,
    typer.Option(
        help="What to take for now: a time, or start for the first moment of the file, to try data "
        "of the past.  [default: what the clock says]"
    ),
]
ForecastName = Annotated[
    str | None,
    typer.Option(
        "--forecast",
        help="Plan on a forecast made of the history that the file, or the provider's cache, "
        "holds until now: auto weighs persistence, profile, linear and boosting, each of which can "
        "be named instead.  [default: on what the file or the provider says]",
        metavar="NAME",
    ),
]
Tz = Annotated[
    str | None,
    typer.Option(
        "--tz",
        help="Zone of the times that are shown: Europe/Berlin, or local. --json and -P stay in "
        "UTC.  [default: UTC]",
        metavar="ZONE",
    ),
]
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where it was kept: a file, or postgresql://…  [default: LOWTIDE_STORE, or the user's "
        "or the system's]",
        metavar="PLACE",
    ),
]
ReadPlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where it was kept: a file, postgresql://…, or a centre, https://…  [default: "
        "LOWTIDE_STORE, or the centre of lowtide login, or the user's or the system's]",
        metavar="PLACE",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "-S",
        "--starttime",
        help="Jobs that ran after this: now-30days, 2024-07-01, 2024-07-01T06:00, 07/01, 06:00. "
        "Without a zone it is local time.",
        metavar="TIME",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "-E", "--endtime", help="Jobs that ran before this.  [default: now]", metavar="TIME"
    ),
]
Users = Annotated[
    list[str] | None,
    typer.Option("-u", "--user", help="Jobs of these users: ada,bob.", metavar="NAMES"),
]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        help="Jobs found there: slurm, systemd, container, process; slurm leaves out the shells.",
        metavar="NAMES",
    ),
]
Meters = Annotated[
    list[str] | None,
    typer.Option(
        "--meter",
        help="A meter to read, such as rapl, nvml, estimate:model.json; repeat for more."
        "  [default: all that work here; lowtide doctor lists them]",
    ),
]
Rules = Annotated[
    str, typer.Option(help="How power is shared out: conserving, or ceems, which does not add up.")
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
Marginal = Annotated[
    Path | None,
    typer.Option(
        "--marginal",
        help="File with marginal intensity, counted beside the average of --signal; may be the "
        "same file.",
    ),
]
ZoneOrGrid = Annotated[
    str | None,
    typer.Option(
        "--grid",
        help="Grid instead of a file: a provider's zone (gb, gb:13, electricitymaps:DE), with "
        "marginal intensity beside it as AVERAGE+MARGINAL (electricitymaps:DE+watttime:DE), or a "
        "synthetic one: sunny, windy, nuclear or coal.",
    ),
]
SlurmNode = Annotated[
    list[str] | None,
    typer.Option(
        help="What Slurm calls this node, where that is not found; once for each slurmd.",
        metavar="NAME",
    ),
]
Procfs = Annotated[Path, typer.Option(help="Where /proc is, for recorded trees.")]
Sysfs = Annotated[Path, typer.Option(help="Where /sys is, for recorded trees.")]
Cgroupfs = Annotated[
    Path | None,
    typer.Option(help="Where control groups are.  [default: /sys/fs/cgroup]", show_default=False),
]


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set a parameter, such as policy.name=exact or run.seed=3; may be given again. One "
        "that the file sweeps over is swept no more.",
        metavar="KEY=VALUE",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the real data, carbon/ZONE.csv in it. [default: LOWTIDE_DATA, if that is "
        "set]"
    ),
]
RepeatSignal = Annotated[
    bool,
    typer.Option("--repeat-signal", help="Go on with the signal from its beginning where it ends."),
]
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, a TOML file.")]

# Jobs that runs do without, by the number of a run that counts them.
LEFT_OUT = {
    "left_out_never_ran": "of the trace that never ran",
    "left_out_oversized": "too large for the nodes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """A job and the grid that it runs on, as `plan`, `when` and `tradeoff` take them."""

    deadline: Deadline
    time: Time = None
    power: Power = None
    profile: Profile = None
    epochs: Epochs = None
    sure: Sure = False
    arrival: Arrival = None
    now: Now = None
    signal: SignalFile = None
    grid: GridName = None
    forecast: ForecastName = None
    seed: Seed = 0
    how: How = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The grid that something is seen beside, or planned on."""

    signal: SignalFile = None
    grid: GridName = None
    seed: Seed = 0
    how: How = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How a node is looked at, as `watch` and `node` take it."""

    meter: Meters = None
    rules: Rules = "conserving"
    idle_power: IdlePower = None
    signal: SignalFile = None
    marginal: Marginal = None
    grid: ZoneOrGrid = None
    how: How = None
    seed: Seed = 0
    pue: Pue = 1.0
    slurm_node: SlurmNode = None
    procfs: Procfs = Path("/proc")
    sysfs: Sysfs = Path("/sys")
    cgroupfs: Cgroupfs = None


def placed(**after: str) -> Callable[[Verb], Verb]:
    """Have options of a group stand elsewhere than with it: each behind another."""

    def mark(verb: Verb) -> Verb:
        setattr(verb, "placed", after)  # noqa: B010 - functions have no such field to mypy
        return verb

    return mark


class grouped:  # noqa: N801 - a decorator
    """A verb in which a parameter that is a group of options stands for those options.

    They are looked at when they are asked for: for all verbs that takes longer than most need.
    """

    def __init__(self, verb: Verb) -> None:
        update_wrapper(self, verb, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        self.verb = verb

    def __call__(self, **given: Any) -> None:
        """Run the verb."""
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in self._groups.items()
        }
        self.verb(**given, **made)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.verb, include_extras=True)

    @cached_property
    def _groups(self) -> dict[str, Any]:
        return {name: kind for name, kind in self._hints.items() if is_dataclass(kind)}

    @cached_property
    def __signature__(self) -> inspect.Signature:
        options: dict[str, inspect.Parameter] = {}
        for name, parameter in inspect.signature(self.verb).parameters.items():
            group = self._groups.get(name)
            taken = {name: parameter} if group is None else inspect.signature(group).parameters
            hints = self._hints if group is None else get_type_hints(group, include_extras=True)
            for key, each in taken.items():
                options[key] = each.replace(
                    kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[key]
                )
        order = list(options)
        for name, before in getattr(self.verb, "placed", {}).items():
            order.remove(name)
            order.insert(order.index(before) + 1, name)
        return inspect.Signature([options[name] for name in order])

    def __getattr__(self, name: str) -> Any:
        """Return what typer asks for besides: what the options are."""
        if name != "__annotations__":
            raise AttributeError(name)
        return {key: each.annotation for key, each in self.__signature__.parameters.items()}


def require_one_grid(file: Path | None, name: str | None) -> None:
    """Refuse a file and a name at once.

    Args:
        file: What `--signal` says.
        name: What `--grid` says.
    """
    from lowtide.errors import InvalidInput

    if file is not None and name is not None:
        raise InvalidInput(
            f"what runs is on one grid: give --signal {file} or --grid {name}, not both"
        )


def read_settings(said: list[str] | None, *, repeat_signal: bool = False) -> dict[str, Any]:
    """Return what `--set KEY=VALUE` says: a value as TOML has it, or else a text.

    Args:
        repeat_signal: Whether `--repeat-signal` was.

    >>> read_settings(["run.seed=3", "policy.name=exact", "policy.step_s='1h'"])
    {'run.seed': 3, 'policy.name': 'exact', 'policy.step_s': '1h'}
    """
    import tomllib

    settings: dict[str, Any] = {"run.repeat_signal": True} if repeat_signal else {}
    for key, value in _pairs(said, "--set", "policy.name=exact"):
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = value
    return settings


def read_slurm(said: list[str] | None) -> dict[str, str]:
    """Return what `--slurm KEY=VALUE` says."""
    return dict(_pairs(said, "--slurm", "memory=4GB"))


def _pairs(said: list[str] | None, option: str, example: str) -> Iterator[tuple[str, str]]:
    from lowtide.errors import InvalidInput

    for each in said or []:
        key, equals, value = each.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise InvalidInput(f"{option} takes KEY=VALUE, such as {example}, not {each!r}")
        yield key.strip(), value.strip()
