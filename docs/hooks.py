"""What mkdocs does beside turning pages into HTML: it writes the reference of the command line.

The page is made from the verbs' own help at every build, so it cannot fall behind the code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from lowtide.cli import whole

if TYPE_CHECKING:
    import click

PAGE = "reference/cli.md"
_WIDTH = 100
_HEAD = """# Command line

This page is made from the help of the installed command, so it says what `lowtide --help` says.
How the verbs behave in scripts is told in [Use in scripts](../howto/use-in-scripts.md).

```text
{help}
```
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference of the command line to the pages.

    Args:
        files: The pages there are.
        config: The site's configuration.
    """
    files.append(File.generated(config, PAGE, content=cli_page()))
    return files


def cli_page() -> str:
    """Return the reference of the command line as Markdown: a section per verb."""
    group = typer.main.get_command(whole())
    if not hasattr(group, "commands"):
        raise TypeError("the command line has no verbs")
    top = _context(group, "lowtide", None)
    sections = [_HEAD.format(help=_help(group, top))]
    for name, verb in group.commands.items():
        context = _context(verb, name, top)
        # A verb that is a group is told of by its own verbs.
        inner = getattr(verb, "commands", {})
        parts = [
            (f"{name} {part}", each, _context(each, part, context)) for part, each in inner.items()
        ]
        for words, each, within in parts or [(name, verb, context)]:
            sections.append(f"## lowtide {words}\n\n```text\n{_help(each, within)}\n```\n")
    return "\n".join(sections)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    widths = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    settings = {**command.context_settings, **widths}
    return command.context_class(command, info_name=name, parent=parent, **settings)


def _help(command: click.Command, context: click.Context) -> str:
    lines = command.get_help(context).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()
