"""One self-contained HTML page: text, tables and charts, readable without a network."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide import files
from lowtide.errors import MissingExtra

if TYPE_CHECKING:
    from lowtide.page.charts import Chart

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f23; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
p.note { color: #57606a; } .chart, .table { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #d0d7de; text-align: right; }
.whole { white-space: nowrap; } .prose { text-align: left; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom-width: 2px; }
footer { margin-top: 3rem; color: #57606a; font-size: .85rem; }
@media (max-width: 40rem) {
  body { margin-top: 1rem; padding: 0 .6rem; } h1 { font-size: 1.4rem; }
  table { font-size: .8rem; } th, td { padding: .25rem .3rem; } td.prose { min-width: 11rem; }
  th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
  div.chart.vega-embed.has-actions { padding-right: 0; } .chart details { display: none; }
}
"""
# Charts are drawn as wide as the page at most: on a phone that is half of what they are made for.
_NARROW = """
function fitted(chart, room) {
  if (Array.isArray(chart)) return chart.map(part => fitted(part, room));
  if (chart === null || typeof chart !== "object") return chart;
  const parts = Object.entries(chart).map(([name, part]) =>
    name === "width" && typeof part === "number" ? [name, Math.min(part, room)]
    : ["layer", "vconcat", "hconcat", "concat", "spec"].includes(name) ? [name, fitted(part, room)]
    : [name, part]);
  return Object.fromEntries(parts);
}
const room = Math.max(document.body.clientWidth - 150, 180);
"""
# A cell longer than this is no number.
_SENTENCE = 40
# One no longer than this that has a digit is a number with its unit.
_QUANTITY = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report: a heading, a paragraph, and a table or a chart or both.

    Attributes:
        heading: What it is about.
        text: A paragraph.
        header: The table's column names.
        rows: The table's rows, as they shall be read.
        chart: A chart.
    """

    heading: str
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    chart: Chart | None = None


@cache
def chart_library() -> str:
    """Return the script that draws charts in a page; putting it together takes two seconds."""
    try:
        import vl_convert
    except ImportError:  # pragma: no cover - needs an environment without the extra
        raise MissingExtra("writing a report", extra="figures") from None
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script")


def write_report(
    path: Path | str, *, title: str, note: str, sections: Iterable[Section], footer: str
) -> None:
    """Write a report.

    Args:
        note: What a reader must know first, e.g. that the grid is synthetic.
    """
    library = chart_library()
    body: list[str] = []
    charts: list[str] = []
    for section in sections:
        body.append(f"<h2>{html.escape(section.heading)}</h2>")
        if section.text:
            body.append(f"<p>{html.escape(section.text)}</p>")
        if section.rows:
            body.append(_table(section.header, section.rows))
        if section.chart is not None:
            body.append(f'<div class="chart" id="chart{len(charts)}"></div>')
            charts.append(json.dumps(section.chart.to_dict()).replace("</", "<\\/"))
    embed = "\n".join(
        f'vegaEmbed("#chart{number}", fitted({chart}, room), {{renderer: "svg"}});'
        for number, chart in enumerate(charts)
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
<script>{library}</script>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p class="note">{html.escape(note)}</p>
{chr(10).join(body)}
<footer>{html.escape(footer)}</footer>
<script>{_NARROW}{embed}</script>
</body>
</html>
"""
    files.write_whole(path, page)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # Sentences read from the left, numbers from the right.
    prose = [any(len(row[place]) > _SENTENCE for row in rows) for place in range(len(header))]

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=prose' if is_prose else ''}>{_unbroken(text)}</{tag}>"
            for text, is_prose in zip(texts, prose, strict=True)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    return f'<div class="table"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _unbroken(text: str) -> str:
    """Return a text for a cell of any width: no quantity and no date is cut in two."""
    if len(text) <= _QUANTITY and any(sign.isdigit() for sign in text):
        return f"<span class=whole>{html.escape(text)}</span>"
    words = (html.escape(word).replace("/", "/<wbr>") for word in text.split(" "))
    return " ".join(f"<span class=whole>{w}</span>" if "-" in w else w for w in words)
