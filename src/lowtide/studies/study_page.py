"""The page of a study: questions with their answers, readable without a network, on any screen."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide import files
from lowtide.page.page import chart_library
from lowtide.studies.figures import Figure

# Charts are drawn with neutral inks; here their words and lines take the colours of the page.
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f23; --soft: #57606a;
        --line: #d0d7de; --accent: #0b6e99; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #15191e; --ink: #e3e8ee; --soft: #9aa5b1; --line: #39424d; --accent: #6cb6dd; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 58rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 3rem 0 .4rem; }
a { color: var(--accent); }
p { margin: .5rem 0; } .answer { font-size: 1.08rem; } .note, figcaption, footer, .files {
  color: var(--soft); font-size: .88rem; }
nav ol { columns: 2; column-gap: 2rem; padding-left: 1.3rem; font-size: .92rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 1rem 0;
     font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.2rem 0 1.8rem; } figcaption { margin-top: .3rem; }
.chart { width: 100%; min-height: 3rem; overflow-x: auto; }
.chart svg { max-width: 100%; height: auto; }
.chart svg g.mark-text:not(.role-mark) text { fill: var(--ink); }
.chart svg g.role-axis-grid line { stroke: var(--line); }
.chart svg g.role-axis-domain line, .chart svg g.role-axis-tick line { stroke: var(--soft); }
.wide { overflow-x: auto; margin: 1rem 0; width: max-content;
        max-width: max(100%, min(50vw + 27rem, 100vw - 3rem)); }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; border-bottom: 1px solid var(--line); text-align: right;
         vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
th:last-child, td:last-child { padding-right: 0; }
td small { color: var(--soft); font-size: .75rem; }
td.words { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; white-space: normal;
           vertical-align: bottom; }
pre { border: 1px solid var(--line); border-radius: 4px; padding: .7rem 1rem; overflow-x: auto;
      font-size: .8rem; line-height: 1.4; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .6rem; }
@media (max-width: 40rem) {
  body { font-size: 15px; } nav ol { columns: 1; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
}
@media print {
  body { max-width: none; font-size: 10.5pt; padding: 0; } nav, .files, .chart summary {
    display: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; }
  .wide { overflow: visible; width: auto; max-width: none; } pre { white-space: pre-wrap; }
  table { font-size: 8pt; width: 100%; }
  th, td { padding: .2rem .25rem; white-space: normal; overflow-wrap: break-word; }
  td small { font-size: 7pt; } td.words { min-width: 0; }
}
"""

# Charts are made for a wide page; on a narrow one they are laid out anew rather than shrunk.
_SCRIPT = """
function wrapped(lines, letters) {
  return lines.flatMap(line => line.match(new RegExp(`.{1,${letters}}(?:\\\\s|$)`, "g")) || [line]);
}
function fitted(chart, room) {
  chart.title.text = wrapped(chart.title.text, Math.floor(room / 9));
  chart.title.subtitle = wrapped(chart.title.subtitle, Math.floor(room / 7.5));
  chart.config.background = "transparent";
  if (room < 560) chart.config.legend.columns = 2;
  if (chart.vconcat) {
    for (const part of chart.vconcat) part.width = Math.max(room - 80, 200);
  } else if (chart.facet) {
    if (room < 560) chart.columns = 1;
    const across = Math.max(chart.columns || 1, 1);
    chart.spec.width = Math.max((room - 90) / across - 20, 160);
  } else {
    chart.width = "container";
  }
  return chart;
}
const actions = {export: true, source: false, compiled: false, editor: false};
document.querySelectorAll(".chart").forEach((place, number) => {
  const chart = fitted(charts[number], place.clientWidth);
  vegaEmbed(place, chart, {renderer: "svg", actions});
});
"""

# The bounds of a mean stand below it, so that tables stay narrow.
_INTERVAL = re.compile(r" \((\S+ to \S+)\)$")
_BELOW = r"<br><small>\1</small>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Numbers in rows.

    Attributes:
        header: The names of the columns.
        rows: The rows, as they shall be read.
        words: Which columns hold sentences, which may be folded.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A question and what answers it.

    Attributes:
        name: What links call it.
        question: The question.
        answer: The answer, in a sentence.
        parts: Tables and figures that bear it out.
        notes: What a reader must know besides.
        source: A file to show as it is.
    """

    name: str
    question: str
    answer: str
    parts: Sequence[Table | Figure] = ()
    notes: Sequence[str] = ()
    source: str = ""


def write_page(
    path: Path | str,
    *,
    title: str,
    lead: Sequence[str],
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    links: Mapping[str, Sequence[str]],
    footer: str,
) -> None:
    """Write the page.

    Args:
        facts: Names and texts of what a reader must know first.
        links: The files of each figure, relative to the page.
    """
    charts = [
        part.document for section in sections for part in section.parts if isinstance(part, Figure)
    ]
    contents = "".join(
        f'<li><a href="#{section.name}">{_escaped(section.question)}</a></li>'
        for section in sections
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_escaped(title)}</title>
<style>{_STYLE}</style>
<script>{chart_library()}</script>
</head>
<body>
<h1>{_escaped(title)}</h1>
{_paragraphs(lead)}
<dl>{"".join(f"<dt>{_escaped(name)}</dt><dd>{_escaped(text)}</dd>" for name, text in facts)}</dl>
<nav><ol>{contents}</ol></nav>
{"".join(_section(section, links) for section in sections)}
<noscript><p class="note">The charts are drawn by a script in this page.</p></noscript>
<footer>{_escaped(footer)}</footer>
<script>const charts = {_script_safe(charts)};{_SCRIPT}</script>
</body>
</html>
"""
    files.write_whole(path, page)


def _section(section: Section, links: Mapping[str, Sequence[str]]) -> str:
    parts = [
        _table(part) if isinstance(part, Table) else _figure(part, links.get(part.name, ()))
        for part in section.parts
    ]
    source = f"<pre>{_escaped(section.source)}</pre>" if section.source else ""
    return (
        f'<section id="{section.name}"><h2>{_escaped(section.question)}</h2>'
        f'<p class="answer">{_escaped(section.answer)}</p>{_paragraphs(section.notes, "note")}'
        f"{''.join(parts)}{source}</section>\n"
    )


def _figure(figure: Figure, links: Sequence[str]) -> str:
    shown = " · ".join(f'<a href="{_escaped(link)}">{_escaped(link)}</a>' for link in links)
    listed = f'<div class="files">{shown}</div>' if shown else ""
    return (
        f'<figure><div class="chart"></div><figcaption>{_escaped(figure.caption)}</figcaption>'
        f"{listed}</figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{_escaped(name)}</th>" for name in table.header)
    body = "\n".join(
        "<tr>"
        + "".join(
            f'<td class="words">{_escaped(cell)}</td>'
            if place in table.words
            else f"<td>{_INTERVAL.sub(_BELOW, _escaped(cell))}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _paragraphs(texts: Sequence[str], kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return "".join(f"<p{mark}>{_escaped(text)}</p>" for text in texts)


def _script_safe(document: object) -> str:
    """Return JSON that no browser takes for the end of a script."""
    return json.dumps(document).replace("<", "\\u003c")


def _escaped(text: str) -> str:
    return html.escape(text)
