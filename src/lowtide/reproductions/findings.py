"""What an evaluation that is run again found, in every form that may be asked for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lowtide import files
from lowtide.errors import FormatError, InvalidInput
from lowtide.page.page import Page, Section, Table

Item = TypeVar("Item")


class Progress(Protocol):
    """Passes items on as they are made, and may show how many there are by now."""

    def __call__(self, items: Iterable[Item], *, total: int, doing: str) -> Iterator[Item]:
        """Pass items on.

        Args:
            items: What is being made.
            total: How many there will be.
            doing: What to call it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an evaluation found; nothing is made before it is asked for.

    Attributes:
        note: What a reader must know first.
        synthetic: Whether the grid comes from a model, which then must be said beside any form.
        footer: What closes the page, after who made it.
    """

    title: str
    note: str
    documents: Callable[[], object]
    header: Sequence[str]
    rows: Callable[[], list[list[str]]]
    sections: Callable[[], list[Section]]
    figures: Callable[[], list[Section]]
    synthetic: bool = False
    footer: str = ""

    def write(self, folder: Path) -> list[Path]:
        """Write report.html, the figures as PNG and SVG, and results.csv; return those files."""
        from lowtide.page.looks import save_images

        figures = self.figures()
        written = [folder / "results.csv", folder / "report.html"]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows()])
        files.write_whole(written[0], text.getvalue())
        Page(
            title=self.title,
            lead=[self.note],
            sections=[*self.sections(), *figures],
            footer=self.footer,
        ).write(written[1])
        for section in figures:
            for figure in section.figures:
                written += save_images(folder, figure)
        return written


def table_section(
    question: str, answer: str, header: Sequence[str] = (), rows: Sequence[Sequence[str]] = ()
) -> Section:
    """Return a table with what it is about; without rows the words alone."""
    parts = [Table(header=header, rows=rows)] if rows else []
    return Section(question=question, answer=answer, parts=parts)


def chart_section(name: str, chart: Any, question: str, answer: str = "") -> Section:
    """Return a chart with what it is about."""
    from lowtide.page.looks import make_figure

    return Section(question=question, answer=answer, parts=[make_figure(name, chart)])


def require_folder(data: Path | None, study: str) -> Path:
    """Return the folder with the real data, or say that there is no doing without."""
    folder = files.data_folder(data)
    if folder is None:
        raise InvalidInput(
            f"reproduce {study} needs the real data: name its folder by --data DIR or the variable "
            "LOWTIDE_DATA"
        )
    return folder


def read_published(path: Path) -> Any:
    """Read a JSON file of published figures; nothing where it is absent."""
    if not path.is_file():
        return {}
    try:
        return json.loads(files.read_text(path))
    except json.JSONDecodeError as error:
        raise FormatError(f"not valid JSON ({error.msg})", path=path, line=error.lineno) from None
