"""The documentation says what the code does: its blocks run, and nothing goes unmentioned.

How a page is run, block by block, in an empty folder of its own:

- ```` ```python ```` runs; all such blocks of a page share one namespace. A block titled
  `Output` right behind it is what it prints.
- ```` ```console ```` runs every `$ lowtide …` line, which must exit with 0, or with n below a
  comment `<!-- exit code n -->`. Output that is shown must be what is printed; `...` in it stands
  for anything, as it does for the folder. `$ cat > FILE <<'EOF'` writes a file. Below a comment
  `<!-- at 2026-11-17T07:20Z -->` it is then: what is said of now holds at that hour alone.
- any block whose title is a file name is written to that file, unless it belongs elsewhere: /etc.
- a block below the comment `<!-- not run -->` is left alone.

README.md is run the same way, in a folder that has `DE.csv` (a synthetic week), `md.toml` (the
sample profile) and `jobs.csv`. After a change that is meant to change outputs, run the tests once
with LOWTIDE_WRITE_DOCS=1: the pages are rewritten to what is printed now. Then read the diff.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

import lowtide
from lowtide import errors
from lowtide.cli import whole
from lowtide.formats import write_signal
from lowtide.grids import GRID_NAMES, synthetic_grid
from lowtide.registry import Registry
from lowtide.samples import sample_profile
from lowtide.units import parse_time
from support.commands import all_verbs, run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
GENERATED = {"reference/cli.md"}
WRITE = bool(os.environ.get("LOWTIDE_WRITE_DOCS"))

_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)
_TITLE = re.compile(r'title="([^"]+)"')
_COMMENT = re.compile(r"<!-- (.*?) -->\s*\Z")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def same(shown: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


def trimmed(text: str) -> str:
    """Output as a page shows it: no blanks at the end of lines, none around the whole."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


class Runner:
    """Runs one page."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.capsys = capsys
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed: str | None = None

    def run(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        pieces, last = [], 0
        for block in _BLOCK.finditer(text):
            comment = _COMMENT.search(text[: block.start()])
            body = self.block(block, comment[1] if comment else "")
            pieces += [text[last : block.start("body")], body]
            last = block.end("body")
        rewritten = "".join([*pieces, text[last:]])
        if WRITE and rewritten != text:
            self.path.write_text(rewritten, encoding="utf-8")

    def block(self, block: re.Match[str], comment: str) -> str:
        language, body = block["language"], block["body"]
        title = _TITLE.search(block["info"])
        printed, self.printed = self.printed, None
        if comment == "not run":
            return body
        if title is not None and title[1] == "Output":
            assert printed is not None, "an Output block stands right behind a Python block"
            return self.compare(body, printed, "the Python block above")
        if title is not None and language != "python":
            # What belongs on a node stays on the page.
            if not Path(title[1]).is_absolute():
                Path(title[1]).write_text(body, encoding="utf-8")
        elif language == "python":
            self.capsys.readouterr()
            line = self.path.read_text(encoding="utf-8")[: block.start("body")].count("\n")
            code = compile("\n" * line + body, str(self.path), "exec")
            exec(code, self.namespace)
            self.printed = self.capsys.readouterr().out
        elif language == "console":
            return self.console(body, comment)
        return body

    def console(self, body: str, comment: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            if comment.startswith("at "):
                now = parse_time(comment.removeprefix("at "))
                patch.setattr(time, "time", lambda: now)
            return self.console_now(body, comment)

    def console_now(self, body: str, comment: str) -> str:
        wanted = int(comment.removeprefix("exit code ")) if "exit code" in comment else 0
        pieces = []
        for lines in steps(body):
            command, shown = lines
            words = shlex.split(command.replace("\\\n", " "))
            pieces.append(f"$ {command}\n")
            if words[:2] == ["cat", ">"]:
                content = shown.removesuffix("EOF\n")
                Path(words[2]).write_text(content, encoding="utf-8")
                pieces.append(shown)
                continue
            assert words[0] == "lowtide", f"cannot run {command!r}: mark the block as not run"
            answer = run(self.capsys, *words[1:])
            assert answer.code == wanted, f"{command}: exit code {answer.code}, {answer.err}"
            pieces.append(self.compare(shown, answer.out + answer.err, command))
        return "".join(pieces)

    def compare(self, shown: str, printed: str, what: str) -> str:
        printed = trimmed(printed).replace(str(Path.cwd()), "...")
        if (not shown.strip() and what.startswith("lowtide")) or same(trimmed(shown), printed):
            return shown
        assert WRITE, (
            f"{self.path.name}: {what} prints\n{printed}\nand the page shows\n{shown}\n{ANEW}"
        )
        return printed


ANEW = "LOWTIDE_WRITE_DOCS=1 writes it anew; read the difference"


def steps(body: str) -> Iterator[tuple[str, str]]:
    """Cut a console block into commands and what stands below each."""
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        match = re.match(r"(?:.*\\\n)*.*", part)
        assert match is not None
        yield match[0], part[match.end() + 1 :]


@pytest.mark.parametrize("name", ["README.md", *PAGES])
def test_the_blocks_of_a_page_run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    if name == "README.md":
        write_signal(synthetic_grid("windy", seed=1).average, "DE.csv")
        sample_profile("h200").dump("md.toml")
        Path("jobs.csv").write_text("arrival_time,length,cpus\n0,3600,4\n60,7200,1\n")
    Runner(ROOT / name, capsys).run()


def test_no_page_says_it_is_unrun_without_need() -> None:
    # Only what cannot run here: installing, building, other people's programs.
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        for part in text.split("<!-- not run -->")[1:]:
            assert "$ lowtide" not in part.split("```")[1], name


def nav() -> set[str]:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def leaves(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(part)

    return set(leaves(config["nav"]))


def test_every_page_is_in_the_navigation() -> None:
    assert nav() == {name.removeprefix("docs/") for name in PAGES} | GENERATED


def test_every_protocol_of_a_plug_in_is_in_the_reference() -> None:
    groups = {each.group for each in distribution("lowtide").entry_points} - {"console_scripts"}
    assert {f"`{group}`" for group in groups} <= set(page("reference/plugins.md").split())


@pytest.mark.parametrize("name", lowtide.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert f"[`{name}`][lowtide." in page("reference/index.md")


@pytest.mark.parametrize("verb", all_verbs())
def test_every_verb_is_told_of(verb: str) -> None:
    assert f"`lowtide {verb}`" in page("howto/use-in-scripts.md")


def test_pages_for_newcomers_put_nobody_off_until_later() -> None:
    # Such a sentence outlived the server that it said was still to come.
    lacks = re.compile(r"\b(?:not yet|yet to come|not in this release)\b", re.IGNORECASE)
    for path in (ROOT / "README.md", *DOCS.glob("*.md")):
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert [each for each in re.split(r"(?<=\.) ", text) if lacks.search(each)] == [], path.name
    # Nor does the comparison say no of what there is.
    rows = re.findall(r"^\| \*\*lowtide\*\* .*", (DOCS / "comparison.md").read_text(), re.M)
    assert len(rows) == 2
    assert not re.search(r"\| no\b", "".join(rows))


@pytest.mark.parametrize(
    ("group", "name_of_page"),
    [
        ("policies", "concepts/policies.md"),
        ("signal_formats", "howto/read-signals.md"),
        ("job_formats", "howto/read-jobs.md"),
        ("grid_providers", "howto/live-grids.md"),
    ],
)
def test_every_built_in_plug_in_has_its_section(group: str, name_of_page: str) -> None:
    # Strangers' plug-ins may be installed here too; ours are what pyproject.toml registers.
    registry: Registry[object] = Registry(f"lowtide.{group}", group)
    ours = [
        name
        for name, point in registry._points.items()
        if point.dist is None or point.dist.name == "lowtide"
    ]
    assert ours
    for name in ours:
        assert f"\n## {name}\n" in page(name_of_page), name


@pytest.mark.parametrize("name", GRID_NAMES)
def test_every_synthetic_grid_is_told_of(name: str) -> None:
    assert f"| `{name}` |" in page("concepts/grids.md")


ERRORS = [
    name
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.LowtideError)
]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_told_of(name: str) -> None:
    assert f"| `{name}` |" in page("howto/use-in-scripts.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; links and anchors that lead nowhere fail the build."""
    pytest.importorskip("mkdocs", reason="needs pip install 'lowtide[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs pip install 'lowtide[docs]'")
    folder = tmp_path_factory.mktemp("site")
    # An index to search in, and ruff for every long signature, take a third of the time, and
    # nothing here looks at them.
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config["plugins"].remove("search")
    python = config["plugins"][0]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / path) for path in python["paths"]]
    python["options"]["extensions"] = [str(ROOT / path) for path in python["options"]["extensions"]]
    config |= {"docs_dir": str(DOCS), "hooks": [str(ROOT / path) for path in config["hooks"]]}
    quick = tmp_path_factory.mktemp("config") / "mkdocs.yml"
    quick.write_text(yaml.safe_dump(config), encoding="utf-8")
    build = "import sys; sys.modules['ruff'] = None; from mkdocs.__main__ import cli; cli()"
    options = ["build", "--strict", "--quiet", "-f", str(quick), "-d", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", build, *options],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_and_has_every_page(site: Path) -> None:
    for name in nav():
        assert (site / name).with_suffix(".html").is_file()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+href=\"?https?:")
    for path in site.rglob("*.html"):
        assert not loads.search(path.read_text(encoding="utf-8")), path.name


def test_every_name_that_a_page_links_to_is_in_the_reference(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert "][lowtide." not in path.read_text(encoding="utf-8"), path.name


def test_the_site_shows_doctests_as_code(site: Path) -> None:
    for path in (site / "reference").glob("*.html"):
        assert "<blockquote>" not in path.read_text(encoding="utf-8"), path.name


def test_the_reference_of_the_command_line_has_every_option(site: Path) -> None:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    text = hooks.cli_page()
    for verb in all_verbs():
        assert f"## lowtide {verb}\n" in text
    for command in whole().registered_commands:
        for parameter in inspect.signature(command.callback).parameters.values():
            for declared in getattr(parameter.annotation, "__metadata__", ()):
                for option in getattr(declared, "param_decls", None) or ():
                    assert option in text, option
    assert "lowtide demo" in (site / "reference" / "cli.html").read_text(encoding="utf-8")
