"""What the studies of `lowtide reproduce` have in common: finding data, printing, writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lowtide.cli.output import print_json, print_parsable, print_table, say

if TYPE_CHECKING:
    from lowtide.experiments.figures import Chart
    from lowtide.experiments.report import Section

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a study found, in every form that may be asked for; nothing is made before it is.

    Attributes:
        title: What the study is called.
        note: What a reader must know first.
        documents: Makes the JSON.
        header: Names of the columns.
        rows: Makes the columns.
        sections: Makes the tables.
        charts: Makes the figures, by the name of their files.
    """

    title: str
    note: str
    documents: Callable[[], object]
    header: Sequence[str]
    rows: Callable[[], list[list[str]]]
    sections: Callable[[], list[Section]]
    charts: Callable[[], Mapping[str, Chart]]


def data_folder(data: Path | None) -> Path | None:
    """Return the folder with the real data, as an option or the environment names it.

    Args:
        data: What was given as an option.
    """
    import os

    said = os.environ.get("LOWTIDE_DATA")
    return data if data is not None else Path(said) if said else None


def require_folder(data: Path | None, study: str) -> Path:
    """Return the folder with the real data, or say that there is no doing without.

    Args:
        data: What was given as an option.
        study: What needs it.
    """
    from lowtide.errors import InvalidInput

    folder = data_folder(data)
    if folder is None:
        raise InvalidInput(
            f"reproduce {study} needs the real data: name its folder by --data DIR or the variable "
            "LOWTIDE_DATA"
        )
    return folder


def with_progress(items: Iterable[Item], *, total: int, doing: str) -> Iterator[Item]:
    """Pass items on, with a progress bar where somebody is watching.

    Args:
        items: What is being made.
        total: How many there will be.
        doing: What to call it.
    """
    import sys

    from rich.console import Console
    from rich.progress import track

    return iter(
        track(
            items,
            total=total,
            description=doing,
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
    )


def hand_over(findings: Findings, *, out: Path | None, as_json: bool, parsable: bool) -> None:
    """Print what a study found, and write it where a folder is named.

    Args:
        findings: What it found.
        out: Folder for the report, its figures and results.csv.
        as_json: Whether to print JSON.
        parsable: Whether to print columns.
    """
    sections = findings.sections() if out is not None or not (as_json or parsable) else []
    written = [] if out is None else _write(findings, out, sections)
    if as_json:
        print_json(findings.documents())
        return
    if parsable:
        print_parsable(findings.header, findings.rows())
        return
    say(findings.note)
    for section in sections:
        print()
        print(f"{section.heading}.")
        say(section.text)
        if section.rows:
            print()
            print_table(section.header, section.rows)
    for path in written:
        print(f"written: {path}")


def _write(findings: Findings, folder: Path, sections: Sequence[Section]) -> list[Path]:
    import csv
    import io
    from importlib.metadata import version

    from lowtide import files
    from lowtide.experiments.figures import IMAGE_SUFFIXES, save_image
    from lowtide.experiments.report import Section, write_report

    charts = findings.charts()
    written = [folder / "results.csv", folder / "report.html"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([findings.header, *findings.rows()])
    files.write_whole(written[0], text.getvalue())
    write_report(
        written[1],
        title=findings.title,
        note=findings.note,
        sections=[
            *sections,
            *(Section(heading=name.capitalize(), chart=each) for name, each in charts.items()),
        ],
        footer=f"Made by lowtide {version('lowtide')}.",
    )
    for name, chart in charts.items():
        for suffix in IMAGE_SUFFIXES:
            written.append(folder / f"{name}{suffix}")
            save_image(chart, written[-1])
    return written
