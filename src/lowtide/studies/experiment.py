"""An experiment as a file: what is run, and over which parameters.

A file has the sections of one run (`[grid]`, `[workload]`, `[policy]`, ...) and a `[sweep]` that
names parameters by dotted keys, each with a list of values. Every combination is a run; with
`[[cases]]`, tables that set several parameters together, every combination of a case and the rest.
`[full]` and `[without_data]` are laid over the file where they are asked for or needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.errors import FileProblem, FormatError, InvalidInput, UnknownName, require_known
from lowtide.registry import source_of
from lowtide.studies.settings import (
    GRIDS,
    SECTIONS,
    Parameters,
    cases_of,
    check_key,
    check_values,
    copied,
    different,
    flatten,
    is_set,
    merged_tables,
    plain,
    respelt,
    set_value,
    settings_of,
    table_of,
    tables_of,
)

# What a figure of a report is drawn over, and what else is to be said of it.
_FIGURE_AXES = ("x", "color", "facet")
# What says of a workload what its jobs draw.
_WATTS = ("power_w", "power_w_per_cpu", "power_w_per_gpu", "profiles")
FIGURE_KEYS = (*_FIGURE_AXES, "value", "title", "policy", "over", "where")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFigure:
    """A figure that an experiment asks for itself, by `[[report.figures]]`.

    Attributes:
        x: The parameter it is drawn over.
        color: The one that is told apart by colour, the policy unless told; None for none.
        facet: The one that has a panel for each value.
        value: The number that is drawn, the outcome unless told.
        title: A title, instead of one that says what is drawn.
        policy: The only policy that is drawn, or that is set beside another.
        over: The policy that is taken off it.
        where: The values that parameters may have, as texts; other runs are left out.
    """

    x: str
    color: str | None = None
    facet: str | None = None
    value: str | None = None
    title: str = ""
    policy: str | None = None
    over: str | None = None
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def read_all(cls, report: Mapping[str, Any], known: Sequence[str]) -> list[AskedFigure]:
        """Return the figures that a `[report]` asks for.

        Args:
            known: The parameters there are.
        """
        require_known(report, ("figures",), "key of [report]")
        return [cls._read(each, known) for each in tables_of(report, "figures", "report.figures")]

    @classmethod
    def _read(cls, said: Parameters, known: Sequence[str]) -> AskedFigure:
        require_known(said, FIGURE_KEYS, "key of [[report.figures]]")
        if "x" not in said:
            raise InvalidInput("a figure of [[report.figures]] needs x, a parameter to draw over")
        where = said.get("where", {})
        if not isinstance(where, Mapping):
            raise InvalidInput(
                f"where of [[report.figures]] is a table of keys and lists, not {where}"
            )
        chosen = {
            key: frozenset(str(each) for each in (value if isinstance(value, list) else [value]))
            for key, value in flatten(where).items()
        }
        for axis in _FIGURE_AXES:
            if axis in said:
                require_known(
                    [str(said[axis])], known, f"parameter for {axis} of [[report.figures]]"
                )
        require_known(chosen, known, "parameter for where of [[report.figures]]")
        texts = {key: str(value) for key, value in said.items() if key != "where"}
        return cls(**texts, where=chosen)


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """What `[workload]` says of jobs, whichever way it says it.

    Attributes:
        said: Its keys and values: a trace, or jobs of one kind or several.
    """

    said: Parameters

    @property
    def traced(self) -> bool:
        """Whether the jobs are those of a trace."""
        return "trace" in self.said

    @property
    def says_watts(self) -> bool:
        """Whether it says what jobs draw, as scenarios and kinds of jobs with phases do."""
        jobs = self.said if self.traced else self.said.get("jobs", {})
        if not isinstance(jobs, dict) or any(key in jobs for key in _WATTS):
            return True
        plain = "scenario" not in self.said and jobs.get("kind", "constant") == "constant"
        return not (self.traced or plain)

    def with_watts(self, power_w_per_cpu: float) -> Parameters:
        """Return the same with what every CPU draws."""
        if self.traced:
            return {**self.said, "power_w_per_cpu": power_w_per_cpu}
        jobs = {"kind": "constant", **self.said.get("jobs", {}), "power_w_per_cpu": power_w_per_cpu}
        return {**self.said, "jobs": jobs}

    def file_places(self) -> Iterator[tuple[Parameters, str]]:
        """Yield every table and key whose value names a file."""
        profiles, jobs = self.said.get("profiles"), self.said.get("jobs")
        places: list[tuple[Any, str]] = [(self.said, "trace"), (self.said.get("lengths"), "trace")]
        for kind in jobs if isinstance(jobs, list) else [jobs]:
            lengths = kind.get("lengths") if isinstance(kind, dict) else None
            places += [(kind, "profile"), (lengths, "trace")]
        places += [(profiles, name) for name in profiles] if isinstance(profiles, dict) else []
        for table, key in places:
            name = table.get(key) if isinstance(table, dict) else None
            # The name of a sample profile is no file.
            profile = table is profiles or key == "profile"
            if isinstance(name, str) and (not profile or name.endswith((".toml", ".json"))):
                yield table, key


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One combination of parameters.

    Attributes:
        parameters: The sections of the run, its files found: what is run.
        shown: The same with files by name alone: what is written down.
        varied: The dotted keys that differ between the runs of an experiment, with their values.
        inputs: The SHA-256 of every file that is read, by its path.
        id: A name that is the same for the same parameters and the same content of files.
    """

    parameters: Parameters
    shown: Parameters
    varied: Parameters
    inputs: Mapping[Path, str]
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run, and over which parameters.

    Attributes:
        question: What it shall answer.
        base: The sections of a run that no parameter changes.
        sweep: Values by dotted key.
        cases: Tables of dotted keys that are set together.
        settings: Dotted keys that were set from outside, over all else.
        report: What the report shall show, for `report`.
        folder: Where files are looked for that the experiment names.
        data: Where zones are looked for; None without data.
        full: Whether `[full]` was laid over the file.
        path: The file; None for an experiment that is none.
    """

    title: str
    about: str
    question: str
    base: Parameters
    sweep: Mapping[str, Sequence[Any]]
    cases: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    report: Mapping[str, Any]
    folder: Path
    data: Path | None
    full: bool
    text: str = field(repr=False)
    path: Path | None = None

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        full: bool = False,
        data: Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Read an experiment.

        Args:
            data: The folder in which `carbon/ZONE.csv` is found; by default $LOWTIDE_DATA. Where
                there is none, `[without_data]` is laid over the file.
            settings: Parameters by dotted key, set last; one that is swept is swept no more.
        """
        path = Path(path)
        text = files.read_text(path)
        # What comes from outside is no fault of the file, and is not told as one.
        found, said = _data_folder(data), settings_of(settings)
        document = files.parse_document(text, path, "toml")
        try:
            return cls._made(document, full, found, said, folder=path.parent, text=text, path=path)
        except (InvalidInput, UnknownName) as error:
            raise FormatError(str(error), path=path) from error

    @classmethod
    def from_dict(
        cls,
        document: Mapping[str, Any],
        *,
        full: bool = False,
        data: Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
        folder: Path | str = ".",
    ) -> Experiment:
        """Return the experiment that a mapping describes.

        >>> experiment = Experiment.from_dict({
        ...     "grid": {"synthetic": "windy"},
        ...     "sweep": {"policy.name": ["run_now", "exact"], "run.seed": [0, 1, 2]},
        ... })
        >>> len(experiment), [run.varied["policy.name"] for run in experiment.runs()][2:4]
        (6, ['run_now', 'exact'])
        """
        text = json.dumps(plain(document), indent=1)
        return cls._made(
            document,
            full,
            _data_folder(data),
            settings_of(settings),
            folder=Path(folder),
            text=text,
        )

    @classmethod
    def _made(
        cls,
        document: Mapping[str, Any],
        full: bool,
        data: Path | None,
        settings: Parameters,
        *,
        folder: Path,
        text: str,
        path: Path | None = None,
    ) -> Experiment:
        merged = merged_tables(respelt(plain(document)), full=full, without_data=data is None)
        base = {name: table_of(merged, name) for name in SECTIONS}
        for section, keys in SECTIONS.items():
            if keys is not None:
                require_known(base[section], keys, f"key of [{section}]")
        base["grid"] = {
            key: value for key, value in base["grid"].items() if not is_set(f"grid.{key}", settings)
        }
        sweep = {key: values for key, values in merged["sweep"].items() if values is not False}
        for key, values in sweep.items():
            check_values(key, values)
        cases = cases_of(merged)
        for key in dict.fromkeys(key for case in cases for key in case):
            check_key(key)
            if key in sweep:
                raise InvalidInput(f"{key} is both in [sweep] and in [[cases]]: leave one out")
        report = table_of(merged, "report")
        swept = [{key: value} for key, values in sweep.items() for value in values]
        # One that could not be drawn is refused before anything is run for it.
        parameters = (key for each in (base, settings, *cases, *swept) for key in flatten(each))
        AskedFigure.read_all(report, ["policy", *dict.fromkeys(parameters)])
        return cls(
            title=str(merged.get("title", "Experiment")),
            about=str(merged.get("about", "")),
            question=str(merged.get("question", "")),
            base=base,
            sweep={key: each for key, each in sweep.items() if not is_set(key, settings)},
            cases=different(
                {key: value for key, value in case.items() if not is_set(key, settings)}
                for case in cases
            ),
            settings=settings,
            report=report,
            folder=folder,
            data=data,
            full=full,
            text=text,
            path=path,
        )

    def __len__(self) -> int:
        count = max(len(self.cases), 1)
        for values in self.sweep.values():
            count *= len(values)
        return count

    @property
    def varied(self) -> dict[str, list[Any]]:
        """The dotted keys that differ between runs, with their values; None where one is unset."""
        keys = dict.fromkeys(key for case in self.cases for key in case)
        values = {key: different(case.get(key) for case in self.cases) for key in keys}
        values |= {key: list(each) for key, each in self.sweep.items()}
        return {key: each for key, each in values.items() if len(each) > 1}

    def only_run(self, file: Path) -> StudyRun:
        """Return the one run there is; refuse a file of several.

        Args:
            file: What it was read from, as the user called it.
        """
        if len(self) > 1:
            open_keys = "; ".join(
                f"{key} ({', '.join(str(value) for value in values)})"
                for key, values in self.varied.items()
            )
            raise InvalidInput(
                f"{file} describes {len(self)} runs: choose one with --set KEY=VALUE for each "
                f"of {open_keys}, or run them all with `lowtide sweep {file}`"
            )
        return next(self.runs())

    def runs(self) -> Iterator[StudyRun]:
        """Yield every run, the last key of the sweep changing fastest."""
        keys, varied = list(self.sweep), self.varied
        hashes: dict[Path, str] = {}
        for case in self.cases or [{}]:
            for values in product(*(self.sweep[key] for key in keys)):
                chosen = {**case, **dict(zip(keys, values, strict=True))}
                said = copied(self.base)
                for key, value in {**chosen, **self.settings}.items():
                    set_value(said, key, value)
                parameters = self._with_files(said)
                inputs = {path: _hash(path, hashes) for path in input_files(parameters)}
                _show_names(said)
                # Sections that say nothing are left out: a new one shall not change old names.
                saying = {section: table for section, table in said.items() if table}
                name = json.dumps([saying, list(inputs.values())], sort_keys=True)
                yield StudyRun(
                    parameters=parameters,
                    shown=said,
                    varied={key: value for key, value in chosen.items() if key in varied},
                    inputs=inputs,
                    id=hashlib.sha256(name.encode()).hexdigest()[:16],
                )

    def _with_files(self, said: Parameters) -> Parameters:
        """Return parameters with zones turned into files, and files into paths that hold."""
        parameters = copied(said)
        for grid in _grids(parameters):
            named = [key for key in GRIDS if key.removeprefix("grid.") in grid]
            if len(named) > 1:
                raise InvalidInput(f"say one of {' and '.join(named)}")
            if "zone" in grid:
                grid["file"] = self._zone_file(grid["zone"])
        for table, key in _file_places(parameters):
            table[key] = str(self._path(table[key]))
        return parameters

    def _zone_file(self, zone: str) -> str:
        if self.data is None:
            raise InvalidInput(
                f"grid.zone = {zone!r} is looked for in a folder of data: say where with "
                "--data DIR or LOWTIDE_DATA, or use grid.synthetic or grid.file"
            )
        # A zone is a name among those of the folder, never a way out of it.
        zones = {each.stem: each for each in (self.data / "carbon").glob("*.csv")}
        if str(zone) not in zones:
            raise UnknownName("zone", str(zone), zones)
        return str(zones[str(zone)].resolve())

    def _path(self, name: str) -> Path:
        for folder in (self.folder, self.data):
            if folder is not None and (folder / name).exists():
                return (folder / name).resolve()
        raise InvalidInput(f"{name!r} is neither beside the experiment nor in the folder of data")


def input_files(parameters: Parameters) -> list[Path]:
    """Return the files that a run reads: data, and code of policies that nobody registered."""
    read = [Path(table[key]) for table, key in _file_places(parameters)]
    named = [("policy", "name"), ("queue", "name"), ("run", "baseline")]
    said = [parameters[section].get(key) for section, key in named]
    code = [source_of(each) for each in said if isinstance(each, str)]
    return list(dict.fromkeys([*read, *(each for each in code if each is not None)]))


def _file_places(parameters: Parameters) -> Iterator[tuple[Parameters, str]]:
    """Yield every table and key whose value names a file."""
    for grid in _grids(parameters):
        for key in ("file", "marginal", "price"):
            if isinstance(grid.get(key), str):
                yield grid, key
    sites = [each for each in parameters.get("sites", {}).values() if isinstance(each, dict)]
    for table in (parameters["cluster"], *sites):
        for key in ("power_cap", "capacity"):
            if isinstance(table.get(key), str):
                yield table, key
    yield from WorkloadSection(parameters["workload"]).file_places()


def _grids(parameters: Parameters) -> list[Parameters]:
    """Return what is said of grids: of the one that there is, and of those of sites."""
    sites = [each for each in parameters.get("sites", {}).values() if isinstance(each, dict)]
    found = [parameters["grid"], *(each.get("grid") for each in sites)]
    return [each for each in found if isinstance(each, dict)]


def _show_names(said: Parameters) -> None:
    """Leave no path in parameters that holds on one machine alone."""
    for table, key in _file_places(said):
        if Path(table[key]).is_absolute():
            table[key] = Path(table[key]).name


def _hash(path: Path, known: dict[Path, str]) -> str:
    if path not in known:
        try:
            with path.open("rb") as file:
                known[path] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FileProblem(f"cannot read {path}: {error.strerror}", path=path) from error
    return known[path]


def _data_folder(data: Path | str | None) -> Path | None:
    folder = files.data_folder(data)
    if folder is None or (folder / "carbon").is_dir():
        return folder
    if data is not None:
        raise FileProblem(f"{data} has no folder carbon with a ZONE.csv per zone", path=data)
    return None
