"""The report of a study: one page, and every figure as a picture and as a table."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import files
from lowtide.errors import LowtideError
from lowtide.page.looks import draw
from lowtide.page.page import Figure, Page, Row, Section, Table
from lowtide.studies.axes import format_level
from lowtide.studies.closeup import look_closely
from lowtide.studies.closeup_figures import run_sections
from lowtide.studies.folder import MANIFEST, queue_words
from lowtide.studies.parameters import axis_sections, effects_section, extra_section, map_sections
from lowtide.studies.policies import comparison_section, policies_section
from lowtide.studies.study import Study
from lowtide.units import MISSING, format_count

if TYPE_CHECKING:
    from lowtide.simulator import Simulation

#: Goes through things as they come, of which there are so many, and may show how far it is.
Track = Callable[[Iterable[Any], str, int], Iterable[Any]]

PAGE = "report.html"
FIGURES = "figures"

# What of a manifest the head of the page and its figures tell.
_TOLD_ABOVE = ("title", "about", "question", "report", "varied")
_WORDS = {
    "begun": "begun (UTC)",
    "ended": "ended (UTC)",
    "runs": "runs of the experiment",
    "done": "runs that are done",
    "failed": "runs that failed",
    "left_out": "runs in the folder that are no longer of this experiment",
    "seeds": "seeds that were used, by number",
    "inputs": "input file",
    "earlier": "earlier sweep into this folder",
    "full": "with --full",
    "format": "format of the manifest",
}
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")
# A manifest with more entries than this is told in part; the file has all of it.
_MOST_ENTRIES = 200
# So many failures are listed.
_MOST_FAILED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written."""

    path: Path
    sections: tuple[Section, ...]
    figures: tuple[Path, ...]


def _untracked(items: Iterable[Any], _what: str, _total: int) -> Iterable[Any]:
    return items


def write_study_report(
    study: Study,
    path: Path | str | None = None,
    *,
    figures: Path | str | None = None,
    images: bool = True,
    workers: int = 1,
    track: Track = _untracked,
) -> Report:
    """Write the page of a study, and its figures as SVG, PNG and CSV.

    Args:
        path: Where the page shall stand; `report.html` in the study's folder unless told.
        figures: The folder of the figures; `figures` in the study's folder unless told.
        images: Whether to write figures at all beside the page.
        workers: How many processes simulate and draw; 1 does all in this one.
    """
    path = study.folder / PAGE if path is None else Path(path)
    folder = study.folder / FIGURES if figures is None else Path(figures)
    sections = make_sections(study, workers=workers, track=track)
    drawn = [figure for section in sections for figure in section.figures]
    links: dict[str, list[str]] = {}
    written: list[Path] = []
    if images:
        documents = [figure.document for figure in drawn]
        pictures = track(_each(draw, documents, workers), "drawing", len(drawn))
        for figure, picture in zip(drawn, pictures, strict=True):
            paths = _write_figure(folder, figure, picture)
            written += paths
            links[figure.name] = [
                Path(os.path.relpath(each, path.parent)).as_posix() for each in paths
            ]
    about = [str(study.manifest[key]) for key in ("about", "question") if study.manifest.get(key)]
    Page(
        title=study.title,
        lead=about,
        facts=facts(study),
        sections=sections,
        links=links,
        footer="Times are UTC.",
    ).write(path)
    return Report(path=path, sections=tuple(sections), figures=tuple(written))


def make_sections(
    study: Study,
    *,
    simulate: Callable[[dict[str, Any]], Simulation] | None = None,
    workers: int = 1,
    track: Track = _untracked,
) -> list[Section]:
    """Return the questions of a study with their answers.

    Args:
        simulate: Turns the parameters of a run into what comes of it; as a sweep does unless told.
        workers: How many processes simulate; 1 does all in this one.
    """
    # Brings the simulator, which the other parts of a report do without.
    from lowtide.studies.run import simulate_run

    def simulate_all(parameters: Sequence[dict[str, Any]]) -> Iterable[Simulation]:
        found = _each(simulate or simulate_run, parameters, workers)
        return track(found, "simulating", len(parameters))

    extras = extra_section(study, study.manifest.get("report") or {})
    sections = [
        policies_section(study),
        comparison_section(study),
        effects_section(study),
        *axis_sections(study),
        *map_sections(study),
        *_closely(study, simulate_all),
    ]
    sections += [extras, failures_section(study), _manifest_section(study)]
    return [section for section in sections if section is not None]


def _closely(
    study: Study, simulate: Callable[[Sequence[dict[str, Any]]], Iterable[Simulation]]
) -> list[Section]:
    try:
        return list(run_sections(study, look_closely(study, simulate)))
    except LowtideError as error:
        # Files move; what the table says holds without them. A page is passed on, so it tells of
        # files by their names alone.
        reason = _FOLDERS.sub("", str(error)).rstrip(".")
        return [
            Section(
                name="run",
                question="What does one run look like?",
                answer=f"Left out, as the run cannot be simulated again here: {reason}.",
            )
        ]


def _manifest_section(study: Study) -> Section:
    manifest = dict(study.manifest)
    source = str(manifest.pop("experiment", ""))
    told = {key: value for key, value in manifest.items() if key not in _TOLD_ABOVE}
    rows = [[_named(key), value] for key, value in _entries(told)]
    return Section(
        name="manifest",
        question="How can this be repeated?",
        answer="With this experiment, these versions, these seeds and these inputs."
        if study.manifest
        else f"That is not known: the folder has no {MANIFEST}.",
        notes=[
            f"Of {len(rows)} entries the first {_MOST_ENTRIES} are shown; all are in {MANIFEST}."
        ]
        if len(rows) > _MOST_ENTRIES
        else [],
        parts=[Table(header=("what", "value"), rows=rows[:_MOST_ENTRIES], words=(1,))]
        if rows
        else [],
        source=source,
    )


def _named(key: str) -> str:
    """Return what an entry of a manifest is called in words, where its key alone is a riddle."""
    first, separator, rest = key.partition(" ")
    return _WORDS.get(first, first) + separator + rest


def _entries(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield what a document says as names and texts, tables in tables by dotted names."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for place, each in enumerate(value, 1):
                yield (
                    f"{prefix}{key} {place}",
                    ", ".join(f"{name} {text}" for name, text in _entries(each)),
                )
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(str(each) for each in value) or "none"
        else:
            yield f"{prefix}{key}", MISSING if value is None else str(value)


def _each(function: Callable[[Any], Any], items: Sequence[Any], workers: int) -> Iterator[Any]:
    """Yield what a function makes of each item, in order."""
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    # Threads of numba and of the renderer do not survive a fork.
    with ProcessPoolExecutor(min(workers, len(items)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, items)


def _write_figure(folder: Path, figure: Figure, picture: tuple[str, bytes]) -> list[Path]:
    contents: dict[str, str | bytes] = {
        f"{figure.name}.svg": picture[0],
        f"{figure.name}.png": picture[1],
    }
    for name, rows in figure.tables.items():
        file = f"{figure.name}.csv" if name == "rows" else f"{figure.name}-{name}.csv"
        contents[file] = _csv(rows)
    for file, content in contents.items():
        files.write_whole(folder / file, content)
    return [folder / file for file in contents]


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def failures_section(study: Study) -> Section | None:
    """List the runs that failed; None where none did."""
    failed = study.failed
    if not failed.height:
        return None
    keys = [
        key
        for key in failed.columns
        if "." in key and len({*failed[key].to_list(), *study.runs[key].to_list()}) > 1
    ]
    rows = [
        [
            ", ".join(f"{key} = {row[key]}" for key in keys if row[key] is not None) or MISSING,
            row["reason"] or MISSING,
        ]
        for row in failed.head(_MOST_FAILED).iter_rows(named=True)
    ]
    reasons = failed["reason"].drop_nulls().to_list()
    counts = sorted({reason: reasons.count(reason) for reason in reasons}.items())
    commonest = max(counts, key=lambda each: each[1])[0] if counts else "not recorded"
    total = failed.height + len(study) + study.lost
    return Section(
        name="failed",
        question="Which runs failed?",
        answer=f"{failed.height} of {total} failed, most often because: {commonest}.".replace(
            "..", "."
        ),
        notes=([f"The first {_MOST_FAILED} are listed."] if failed.height > _MOST_FAILED else []),
        parts=[Table(header=("run", "reason"), rows=rows, words=(0, 1))],
    )


def facts(study: Study) -> list[tuple[str, str]]:
    """Return what a reader must know first, by name."""
    runs = format_count(len(study), "run")
    if study.failed.height:
        runs += f"; {study.failed.height} more failed and are listed below"
    if study.lost:
        runs += f"; {study.lost} more are left out, as their {study.outcome.name} is not known"
    said = [("runs", runs), ("policies", ", ".join(study.ranking)), ("grids", study.grids)]
    if unused := queue_words(study.runs):
        said.append(("queue", unused))
    for axis in study.axes:
        levels = [format_level(axis, level) for level in axis.levels]
        shown = ", ".join(levels[:12]) + (f" and {len(levels) - 12} more" * (len(levels) > 12))
        listed = ", ".join(axis.keys) + (", which vary together" if axis.together else "")
        said.append((axis.name, f"{shown} ({listed})"))
    if study.judged:
        said.append(("judged by", study.judged))
    if study.baseline is not None:
        savings = f"against {study.baseline}, with the same jobs on the same grid"
        # Each run looks at its nodes until it and its own baseline are done: not as long as others.
        if study.told_of and study.has_nodes:
            savings += "; of what jobs emit or cost alone, without what nodes draw beside them"
        said.append(("savings", savings))
    said.append(("intervals", study.chance.sentence))
    return said
