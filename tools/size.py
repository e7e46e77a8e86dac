"""Count what the source has grown to, package by package, and hold it to a budget.

    python tools/size.py            print the table; fail where a package is over its budget
    python tools/size.py --write    raise the budget, rounded up, where a package is over it

No module has more than 600 lines: a longer one holds two thoughts. The budget of packages is in
tools/size.toml. To raise it on purpose, run --write and say why in the commit.
"""

from __future__ import annotations

import ast
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
BUDGET = Path(__file__).with_suffix(".toml")
CORE = "core"
MOST_LINES = 600
# One thought each that nobody has cut well so far, and how long they are at most.
LONGER = {"src/lowtide/accounting.py": 617}


@dataclass(frozen=True, slots=True)
class Size:
    """How large a package is.

    Attributes:
        files: Modules.
        lines: Lines of all kinds.
        one_importer: Modules that one other module imports and nobody else: cut too small?
        import_lines: Lines that import something.
    """

    files: int
    lines: int
    one_importer: int
    import_lines: int

    def __add__(self, other: Size) -> Size:
        return Size(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def within(self, budget: Size) -> Size:
        """Return the budget that this size needs: lines in hundreds, import lines in tens."""
        needed = Size(
            self.files,
            100 * math.ceil(self.lines / 100),
            self.one_importer,
            10 * math.ceil(self.import_lines / 10),
        )
        return Size(*(max(pair) for pair in zip(astuple(needed), astuple(budget), strict=True)))


NOTHING = Size(0, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Print the table, and return 1 where a package is over its budget."""
    sizes = measure()
    budget = {name: Size(**of) for name, of in tomllib.loads(BUDGET.read_text()).items()}
    if "--write" in arguments:
        budget = {name: size.within(budget.get(name, NOTHING)) for name, size in sizes.items()}
        write(budget)
    complaints = []
    print(f"{'package':14} {'files':>6} {'lines':>7} {'one importer':>13} {'imports':>8}")
    for name, size in sizes.items():
        print(row(name, size))
        allowed = budget.get(name, NOTHING)
        for field in fields(Size):
            now, most = getattr(size, field.name), getattr(allowed, field.name)
            if now > most:
                complaints.append(f"{name} has {now} {field.name}, at most {most}")
    print(row("all", sum(sizes.values(), NOTHING)))
    for path, lines in too_long():
        complaints.append(f"{path.relative_to(ROOT)} has {lines} lines, more than it may")
    for complaint in complaints:
        print(f"over the budget: {complaint}", file=sys.stderr)
    if complaints:
        print(
            "merge or split something, or raise it on purpose: tools/size.py --write",
            file=sys.stderr,
        )
    return bool(complaints)


def too_long() -> Iterator[tuple[Path, int]]:
    """Yield the modules that are longer than any may be."""
    for path in sorted(SOURCE.rglob("*.py")):
        lines = len(path.read_text().splitlines())
        if lines > LONGER.get(str(path.relative_to(ROOT)), MOST_LINES):
            yield path, lines


def row(name: str, size: Size) -> str:
    """Return a line of the table."""
    share = size.import_lines / size.lines
    return f"{name:14} {size.files:6} {size.lines:7} {size.one_importer:13} {share:8.1%}"


def measure() -> dict[str, Size]:
    """Return the size of each package; modules that are in none belong to the core."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    modules = {module_of(path): path for path in trees}
    importers: Counter[str] = Counter()
    for path, tree in trees.items():
        importers.update({name for name in imported(tree, modules) if name != module_of(path)})
    sizes: dict[str, Size] = {}
    for name, path in modules.items():
        parts = name.split(".")
        package = parts[1] if len(parts) > 1 and (SOURCE / "lowtide" / parts[1]).is_dir() else CORE
        # A verb is imported by the list of verbs alone, and a package by whoever wants its parts.
        counts = importers[name] == 1 and package != "cli" and path.name != "__init__.py"
        lines = sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(trees[path])
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        size = Size(1, len(path.read_text().splitlines()), int(counts), lines)
        sizes[package] = sizes.get(package, NOTHING) + size
    return dict(sorted(sizes.items()))


def module_of(path: Path) -> str:
    """Return the dotted name of a file."""
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imported(tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the project that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in modules else node.module for name in names)


def write(budget: dict[str, Size]) -> None:
    """Write the budget."""
    lines = ["# The most that tools/size.py allows: raised on purpose only, with the reason told."]
    for name, size in budget.items():
        said = ", ".join(f"{field.name} = {getattr(size, field.name)}" for field in fields(Size))
        lines.append(f"{name} = {{ {said} }}")
    BUDGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
