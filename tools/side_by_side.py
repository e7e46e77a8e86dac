"""Run benchmarks of another commit and of this tree in turns, and print their figures side by side.

    python tools/side_by_side.py COMMIT [-n ROUNDS] [NAME ...]      as in: 3057426 accounting

Each tree runs its own `benchmarks/NAME.py`, which may have changed with what it calls; figures
of lines that begin alike are compared, the best of all rounds. All times are CPU time, of a process
and of those it has started, so that others at work on the machine count as little as can be. The
last column is how many times as long it takes now.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where benchmarks look beside their tree: both trees are to find the same.
DATA = ROOT.parent / "shared" / "data"
# Benchmarks ask this clock: it counts what was computed, and not who else was at it.
CLOCK = """
import resource, time
def _computed(own=time.process_time, ask=resource.getrusage, whom=resource.RUSAGE_CHILDREN):
    others = ask(whom)
    return own() + others.ru_utime + others.ru_stime
time.perf_counter = _computed
"""
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6}
# A time or a rate; what a colon follows belongs to what the line is about.
FIGURE = re.compile(
    r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)\s*(million )?(?:([a-z-]*/s)|(s|ms|µs|us))\b(?!:)"
)


def main(arguments: list[str]) -> int:
    """Run, compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("-n", "--rounds", type=int, default=2)
    asked = parser.parse_intermixed_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "-q", other, asked.commit], cwd=ROOT, check=True)
        try:
            pythons = {other: environment(other, Path(folder, "env")), ROOT: sys.executable}
            known = [{each.name for each in (tree / "benchmarks").glob("*.py")} for tree in pythons]
            names = asked.names or sorted(name.removesuffix(".py") for name in known[0] & known[1])
            Path(folder, "clock").mkdir()
            Path(folder, "clock", "sitecustomize.py").write_text(CLOCK)
            print("| benchmark | before | now | times as long |\n|---|---|---|---|", flush=True)
            for name in names:
                compare(name, pythons, asked.rounds, Path(folder, "clock"))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    return 0


def environment(tree: Path, folder: Path) -> str:
    """Install a tree beside what this Python has; return the Python that finds it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    packages.joinpath("others.pth").write_text(
        "\n".join(p for p in sys.path if "site-packages" in p)
    )
    python = str(folder / "bin" / "python")
    install: list[str | Path] = [
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "-e",
        tree,
    ]
    subprocess.run([sys.executable, *install], check=True)
    return python


def compare(name: str, pythons: dict[Path, str], rounds: int, clock: Path) -> None:
    """Run one benchmark in both trees in turns; print the figures that both have."""
    best: list[dict[str, float]] = [{} for _ in pythons]
    for _ in range(rounds):
        for found, (tree, python) in zip(best, pythons.items(), strict=True):
            told = subprocess.run(
                [python, tree / "benchmarks" / f"{name}.py"],
                cwd=tree,
                env={"LOWTIDE_DATA": str(DATA), **os.environ, "PYTHONPATH": str(clock)},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            for label, seconds in figures(told.stdout):
                found[label] = min(found.get(label, seconds), seconds)
    before, now = best
    for label, seconds in now.items():
        if label in before:
            ratio = seconds / before[label]
            print(f"| {name}: {label} | {shown(before[label])} | {shown(seconds)} | {ratio:.2f} |")
    sys.stdout.flush()


def figures(printed: str) -> list[tuple[str, float]]:
    """Return what lines begin with, and the first time that each tells; of a rate, for one."""
    found = []
    for line in printed.splitlines():
        if (figure := FIGURE.search(line)) is None:
            continue
        value = float(figure[1].replace(",", "")) * (1e6 if figure[2] else 1.0)
        seconds = 1 / value if figure[3] else value * SECONDS[figure[4]]
        found.append((" ".join(line[: figure.start()].split()).rstrip(":,"), seconds))
    return found


def shown(seconds: float) -> str:
    """Return a time as people write it."""
    unit = next((each for each in ("s", "ms") if seconds >= SECONDS[each]), "µs")
    return f"{seconds / SECONDS[unit]:.3g} {unit}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
