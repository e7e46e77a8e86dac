"""A folder of results: every run as it finishes, one table of all, and how they were made.

    runs/ID.json     a run: its parameters, its numbers or why it failed
    table.parquet    one row per run: every parameter by its dotted key, then the numbers
    blocks.parquet   what the jobs of each day or week of a run came to, where runs tell it
    manifest.json    versions, the experiment, seeds, inputs and their hashes

What stands in `runs` is never run again: a sweep that was ended in the midst goes on from there.
"""

from __future__ import annotations

import json
import math
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from lowtide import files, interruption
from lowtide.errors import FileProblem, InvalidInput
from lowtide.studies.chance import TABLE as BLOCKS_TABLE
from lowtide.studies.chance import blocks_table
from lowtide.studies.engines import Engine, Local, Outcome, Outcomes, RunFunction, Task
from lowtide.studies.experiment import Experiment, StudyRun
from lowtide.studies.settings import flatten
from lowtide.units import format_count, format_iso, format_percent

FORMAT = "lowtide study 1"
MANIFEST = "manifest.json"
TABLE = "table.parquet"
RUNS = "runs"
# What a run says of its days or weeks stands under this name, apart from its numbers.
BLOCKS = "blocks"
_LOCK = ".lock"

DONE, FAILED = "done", "failed"
# What a run took for granted is a number of it, and its name begins like this.
ASSUMED = "assumed_"
# The column that says whether the queue that runs describe played a part.
QUEUE_USED = "queue_used"

_PACKAGES = ("lowtide", "numpy", "numba", "polars")


def sweep(
    experiment: Experiment,
    folder: Path | str,
    *,
    engine: Engine | None = None,
    retry_failed: bool = False,
    function: RunFunction | None = None,
) -> pl.DataFrame:
    """Run what is missing of an experiment, and return the table of all its runs.

    Args:
        folder: Where results are kept; runs that are there already are not run again.
        engine: Where runs are run, by default in processes on this machine.
        function: What turns the parameters of a run into numbers, by default a simulation.
    """
    with ResultFolder.opened(folder, experiment) as results:
        results.carry_out(results.missing(retry_failed=retry_failed), engine or Local(), function)
        return results.table()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFolder:
    """The runs of an experiment, those that are finished and those that are not.

    Attributes:
        runs: Every run of the experiment, in order.
        records: What is known of those that are finished, by id.
        left_out: How many runs in the folder belong to the experiment no more.
    """

    path: Path
    experiment: Experiment
    runs: Sequence[StudyRun]
    records: dict[str, dict[str, Any]]
    left_out: int

    @classmethod
    @contextmanager
    def opened(cls, path: Path | str, experiment: Experiment) -> Iterator[ResultFolder]:
        """Open a folder of results, a new one or one of an earlier sweep, for oneself alone.

        One that holds runs of which none is of this experiment is refused: a sweep that was
        started otherwise than before should not begin anew among what it was to go on with.
        """
        path = Path(path)
        _check_folder(path)
        runs = list(experiment.runs())
        with _locked(path):
            found = {file.stem: file for file in (path / RUNS).glob("*.json")}
            read = {run.id: _read_record(found[run.id]) for run in runs if run.id in found}
            if found and not read:
                raise InvalidInput(_of_another(path, experiment, len(found)))
            yield cls(
                path=path,
                experiment=experiment,
                runs=runs,
                records={id_: record for id_, record in read.items() if record is not None},
                left_out=len(found.keys() - read.keys()),
            )

    @property
    def failed(self) -> list[dict[str, Any]]:
        """What is known of the runs that failed."""
        return [each for each in self.records.values() if each["status"] == FAILED]

    def missing(self, *, retry_failed: bool = False) -> list[StudyRun]:
        """Return the runs that are still to be run."""
        finished = {
            id_
            for id_, record in self.records.items()
            if not (retry_failed and record["status"] == FAILED)
        }
        return [run for run in self.runs if run.id not in finished]

    def carry_out(
        self,
        runs: Sequence[StudyRun],
        engine: Engine,
        function: RunFunction | None = None,
        told: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """Run some runs, and keep each as it finishes; the table is written at the end.

        It is also written where the sweep is ended by Ctrl-C or a signal, which is a
        KeyboardInterrupt.

        Args:
            function: What turns the parameters of a run into numbers, by default a simulation.
        """
        manifest = self._manifest(engine, at_work=bool(runs))
        files.write_whole(self.path / MANIFEST, _as_json(manifest))
        of = {run.id: run for run in runs}

        def keep(outcome: Outcome) -> None:
            with interruption.held_back():
                self._keep(of[outcome.id], outcome)
                told(outcome)

        try:
            if runs:
                tasks = [Task(run.id, run.parameters) for run in runs]
                _run_all(engine.run(function or _simulation(), tasks), keep)
        except FileProblem:
            # Where a run cannot be written, nor can the table; the runs before are there.
            with suppress(FileProblem):
                self._finish(manifest)
            raise
        except BaseException:
            self._finish(manifest)
            raise
        self._finish(manifest)

    def table(self) -> pl.DataFrame:
        """Return every finished run as a row: id, status, parameters, numbers."""
        finished = [self.records[run.id] for run in self.runs if run.id in self.records]
        parameters = [flatten(record["shown"]) for record in finished]
        numbers = [record["row"] or {} for record in finished]
        columns: dict[str, list[Any]] = {
            key: [record[key] or None for record in finished] for key in ("id", "status", "reason")
        }
        for rows in (parameters, numbers):
            for key in _sections_together(dict.fromkeys(key for row in rows for key in row)):
                columns[key] = [row.get(key) for row in rows]
        columns |= {key: [record[key] for record in finished] for key in ("wall_s", "attempts")}
        return pl.DataFrame({key: _column(key, values) for key, values in columns.items()})

    def _keep(self, run: StudyRun, outcome: Outcome) -> None:
        row = None if outcome.row is None else dict(outcome.row)
        blocks = None if row is None else row.pop(BLOCKS, None)
        record = {
            "id": run.id,
            "status": DONE if outcome.row is not None else FAILED,
            "reason": _without_folders(outcome.reason, run),
            "parameters": run.parameters,
            "shown": run.shown,
            "varied": run.varied,
            "row": row,
            "wall_s": outcome.wall_s,
            "attempts": outcome.attempts,
            **({} if blocks is None else {BLOCKS: blocks}),
        }
        text = _as_json(record)
        # A power cut may empty some: they are then run again. Waiting for the disk would take
        # longer than many a run.
        files.write_whole(self.path / RUNS / f"{run.id}.json", text, lasting=False)
        self.records[run.id] = json.loads(text)

    def _finish(self, manifest: dict[str, Any]) -> None:
        if not self.missing() and manifest["ended"] is None:
            manifest["ended"] = format_iso(round(time.time()))
        manifest |= {
            **self._counts(),
            "assumed": self._assumed(),
            "imputed": self._imputed(),
            "synthetic": self._synthetic(),
        }
        with interruption.held_back():
            files.write_table(self.path / TABLE, self.table())
            self._write_blocks()
            files.write_whole(self.path / MANIFEST, _as_json(manifest))

    def _write_blocks(self) -> None:
        told = [(id_, each[BLOCKS]) for id_, each in self.records.items() if BLOCKS in each]
        if told:
            files.write_table(self.path / BLOCKS_TABLE, blocks_table(told))

    def _counts(self) -> dict[str, int]:
        failed = len(self.failed)
        return {
            "runs": len(self.runs),
            "done": len(self.records) - failed,
            "failed": failed,
            "left_out": self.left_out,
        }

    def _assumed(self) -> dict[str, list[float]]:
        """Return what runs took for granted that nobody said, by name, with all values."""
        taken: dict[str, set[float]] = {}
        for record in self.records.values():
            for key, value in (record["row"] or {}).items():
                if key.startswith(ASSUMED):
                    taken.setdefault(key.removeprefix(ASSUMED), set()).add(value)
        return {key: sorted(values) for key, values in taken.items()}

    def _imputed(self) -> dict[str, float]:
        """Return which share of each grid's steps nobody measured, at most over its runs."""
        found: dict[str, float] = {}
        for record in self.records.values():
            if (share := (record["row"] or {}).get("imputed_share")) is not None:
                name = _grid_name(record["shown"])
                found[name] = max(found.get(name, 0.0), share)
        return dict(sorted(found.items()))

    def _synthetic(self) -> bool | None:
        """Return whether a run had a synthetic grid; None where no run says."""
        said = [(record["row"] or {}).get("synthetic") for record in self.records.values()]
        known = [each for each in said if each is not None]
        return any(known) if known else None

    def _manifest(self, engine: Engine, *, at_work: bool) -> dict[str, Any]:
        """Return how the runs are made; where none is, how they were made before."""
        experiment, before = self.experiment, _read_manifest(self.path)
        start = {
            "begun": format_iso(round(time.time())),
            "ended": None,
            "engine": engine.name,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in _PACKAGES},
            },
            "platform": platform.platform(),
        }
        earlier = before.get("earlier", [])
        if before and at_work:
            earlier = [*earlier, {key: before[key] for key in start}]
        elif before:
            start = {key: before[key] for key in start}
        inputs = {(path.name, digest) for run in self.runs for path, digest in run.inputs.items()}
        seeds = {
            value
            for run in self.runs
            for key, value in {"run.seed": 0, **flatten(run.shown)}.items()
            if key.endswith(".seed") and isinstance(value, int)
        }
        return {
            "format": FORMAT,
            "title": experiment.title,
            "about": experiment.about,
            "question": experiment.question,
            "report": dict(experiment.report),
            **start,
            **self._counts(),
            "seeds": sorted(seeds),
            "inputs": [{"name": name, "sha256": digest} for name, digest in sorted(inputs)],
            "varied": experiment.varied,
            "settings": {key: _shown(value) for key, value in experiment.settings.items()},
            "full": experiment.full,
            "experiment": _QUOTED_PATH.sub(r"\1\2\1", experiment.text),
            "earlier": earlier,
        }


def imputed_words(table: pl.DataFrame) -> str:
    """Return which share of the grids' signals nobody measured, in words; empty if none."""
    if "imputed_share" not in table.columns:
        return ""
    shares = table["imputed_share"].drop_nulls()
    most = float(shares.max() or 0.0)  # type: ignore[arg-type]
    if not most:
        return ""
    least = float(shares.min() or 0.0)  # type: ignore[arg-type]
    how_much = format_percent(most)
    if format_percent(least) != how_much:
        how_much = f"{format_percent(least)} to {how_much}"
    return f"{how_much} of the grid's steps in the time of a run were filled in or estimated"


def queue_words(table: pl.DataFrame) -> str:
    """Return in which runs a queue was described that played no part, in words, if any."""
    if QUEUE_USED not in table.columns:
        return ""
    unused = table.filter(~table[QUEUE_USED].fill_null(value=True))
    if not unused.height:
        return ""
    bought = pl.lit(value=False)
    if "machine_cost" in unused.columns:
        bought = pl.col("machine_cost").is_not_null()
    told = [
        f"{', '.join(names)} {why}"
        for some, why in (
            (bought, "bought machines as jobs needed them, and none queued"),
            (~bought, "decided who runs when"),
        )
        if (names := sorted(set(unused.filter(some)["policy.name"].drop_nulls().to_list())))
    ]
    return (
        f"[queue] played no part in {unused.height} of {table.height} runs: {'; '.join(told)}"
    ).removesuffix(": ")


def _grid_name(shown: Mapping[str, Any]) -> str:
    grid = shown.get("grid", {})
    return str(next((grid[key] for key in ("zone", "file", "synthetic") if key in grid), "grid"))


# A text in quotes that is a path from the root, and a path from the root in running text.
_QUOTED_PATH = re.compile(r"(['\"])/(?:[^'\"\n]*/)?([^'\"/\n]+)\1")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+-]+/)+")


def _shown(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _without_folders(reason: str, run: StudyRun) -> str:
    """Return a reason that tells of files by their names alone."""
    for path in run.inputs:
        reason = reason.replace(str(path), path.name)
    return _PATH.sub("", reason)


def _of_another(path: Path, experiment: Experiment, count: int) -> str:
    """Return why a folder of runs is not one to go on with, and what to do."""
    before = _read_manifest(path)
    runs = f"{path} holds {format_count(count, 'run')}"
    if before.get("experiment") == _QUOTED_PATH.sub(r"\1\2\1", experiment.text):
        return (
            f"{runs} of this very file, but none of those that it describes now: say --data, --set "
            "and --full as they were said then to go on, or another folder with -o DIR"
        )
    title = before.get("title")
    return (
        f"{runs} of another experiment{f' ({title})' if title else ''}, or of this one before it "
        "was changed: say another folder with -o DIR"
    )


def _check_folder(path: Path) -> None:
    """Refuse a folder that holds something else than results of a sweep."""
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"{path} is a file: results are kept in a folder, say which with -o DIR")
    if not path.is_dir():
        return
    if (path / MANIFEST).is_file():
        if _read_manifest(path):
            return
        others = [MANIFEST]
    else:
        # What begins with a dot was not yet in its place when an earlier sweep was killed.
        others = sorted(each.name for each in path.iterdir() if not each.name.startswith("."))
    if others:
        names = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
        raise InvalidInput(
            f"{path} holds other things than the results of a sweep ({names}): say another folder "
            "with -o DIR"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return what a sweep wrote of itself, empty if it was none."""
    try:
        document = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    known = isinstance(document, dict) and document.get("format") == FORMAT
    return document if known else {}


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return what is known of a run; None if the file is none of ours, or damaged."""
    try:
        record = json.loads(files.read_text(path))
    except (ValueError, FileProblem):
        return None
    known = isinstance(record, dict) and record.get("status") in (DONE, FAILED)
    return record if known else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep a second sweep out of a folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK).open("wb")
    except OSError as error:
        raise FileProblem(f"cannot write to {path}: {error.strerror}", path=path) from error
    with lock:
        if files.try_lock(lock.fileno()) is False:
            raise InvalidInput(
                f"another sweep is at work in {path}: wait for it, or say another folder with -o"
            )
        try:
            yield
        finally:
            if not (path / MANIFEST).exists():
                # Nothing was begun: leave nothing behind.
                (path / _LOCK).unlink(missing_ok=True)
                with suppress(OSError):
                    path.rmdir()


def _simulation() -> RunFunction:
    # Brings the simulator, which whoever only reads results does without.
    from lowtide.studies.run import run_row

    return run_row


def _run_all(outcomes: Outcomes, keep: Callable[[Outcome], None]) -> None:
    """Keep every run as it ends, and when interrupted those that have."""
    with closing(outcomes), interruption.by_signals():
        try:
            for outcome in outcomes:
                keep(outcome)
        except KeyboardInterrupt:
            for outcome in _finished(outcomes):
                keep(outcome)
            raise


def _finished(outcomes: Outcomes) -> Iterator[Outcome]:
    """Yield what an engine that is interrupted has finished and not yet told."""
    with suppress(KeyboardInterrupt, StopIteration):
        yield outcomes.throw(KeyboardInterrupt)
        yield from outcomes


def _sections_together(keys: dict[str, None]) -> list[str]:
    """Return dotted keys with those of a section side by side, else as they came."""
    sections = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    return sorted(keys, key=lambda key: sections.index(key.partition(".")[0]))


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return a column of the type that its values have; mixed ones are texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {int} or kinds <= {str}:
        kind = {bool: pl.Boolean, int: pl.Int64, str: pl.String}[next(iter(kinds), str)]
        return pl.Series(name, values, dtype=kind)
    if kinds <= {int, float}:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    texts = [value if value is None or isinstance(value, str) else _text(value) for value in values]
    return pl.Series(name, texts, dtype=pl.String)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps(_plain(document), indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: NumPy's numbers as numbers, what is not known as null."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value
