"""The one page: questions with their answers, readable without a network, on screen and on paper.

Words, numbers and looks are apart: what is said is in `Page`, where it stands in `page.html.jinja`,
how it looks in `page.css`, with the colours of `style/colours.css`, and how charts are fitted to a
screen in `page.js`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.errors import MissingExtra

Row = Mapping[str, Any]

# A cell longer than this is no number: its column is read from the left, and may be folded.
_SENTENCE = 40


class Cell(str):
    """What a cell says, and what of that stands below the rest on a page, in small.

    Attributes:
        value: What stands first.
        below: What stands below it, such as the bounds of a mean.

    >>> Cell("23.1 %", "21.0 to 25.3")
    '23.1 % (21.0 to 25.3)'
    """

    __slots__ = ("below", "value")

    value: str
    below: str

    def __new__(cls, value: str, below: str = "") -> Cell:
        """Return a cell whose text is all that it says."""
        cell = super().__new__(cls, f"{value} ({below})" if below else value)
        cell.value, cell.below = value, below
        return cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Numbers in rows.

    Attributes:
        rows: The rows, as they shall be read.
        words: Which columns hold words, however short; a long text says so itself.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = ()

    @property
    def word_columns(self) -> set[int]:
        """Which columns hold words rather than numbers."""
        long = {place for row in self.rows for place, cell in enumerate(row) if _is_long(cell)}
        return {*self.words, *long}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, what it shows and what it was drawn from.

    Attributes:
        name: What its files are called, without a suffix.
        document: The chart in the grammar of Vega-Lite.
        tables: What it was drawn from by name, `rows` first; none where the chart holds it itself.
        caption: How to read it.
    """

    name: str
    document: dict[str, Any]
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A question and what answers it.

    Attributes:
        answer: The answer, in a sentence or a paragraph.
        parts: Tables and figures that bear it out.
        notes: What a reader must know besides.
        source: A file to show as it is.
        name: What links call it.
    """

    question: str
    answer: str = ""
    parts: Sequence[Table | Figure] = ()
    notes: Sequence[str] = ()
    source: str = ""
    name: str = ""

    @property
    def tables(self) -> list[Table]:
        """The tables among its parts."""
        return [part for part in self.parts if isinstance(part, Table)]

    @property
    def figures(self) -> list[Figure]:
        """The figures among its parts."""
        return [part for part in self.parts if isinstance(part, Figure)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report.

    Attributes:
        lead: What a reader must know first, e.g. that the grid is synthetic.
        facts: The same by name, as a list.
        links: The files of each figure, relative to the page.
        footer: What closes it, after who made it.
    """

    title: str
    sections: Sequence[Section]
    lead: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    footer: str = ""

    def html(self) -> str:
        """Return the page, with all that it needs in it."""
        charts = [figure.document for section in self.sections for figure in section.figures]
        return str(
            _template().render(
                page=self,
                style=_resource("style/colours.css") + _resource("page.css"),
                script=_resource("page.js"),
                library=chart_library,
                # No browser takes it for the end of a script.
                charts=json.dumps(charts).replace("<", "\\u003c") if charts else "",
                version=version("lowtide"),
            )
        )

    def write(self, path: Path | str) -> None:
        """Write the page."""
        files.write_whole(path, self.html())


@cache
def chart_library() -> str:
    """Return the script that draws charts in a page; putting it together takes two seconds."""
    try:
        import vl_convert
    except ImportError:  # pragma: no cover - needs an environment without the extra
        raise MissingExtra("writing a report", extra="figures") from None
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script")


@cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:  # pragma: no cover - needs an environment without the extra
        raise MissingExtra("writing a report", extra="figures") from None
    # What is said is escaped, whoever said it.
    looks = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return looks.from_string(_resource("page.html.jinja"))


def _resource(name: str) -> str:
    return (resources("lowtide.page") / name).read_text(encoding="utf-8")


def _is_long(cell: str) -> bool:
    return len(cell.value if isinstance(cell, Cell) else cell) > _SENTENCE
