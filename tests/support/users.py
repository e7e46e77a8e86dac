"""Run as somebody else: as a service would, or a container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lowtide import compiled
from support.needs import is_missing


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Yield a folder to which everybody may come, and take it away.

    It is none of pytest's own: each of its sessions closes those of all others as it begins.
    """
    folder = Path(tempfile.mkdtemp(prefix="for-all-"))
    try:
        yield open_to_all(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_to_all(folder: Path) -> Path:
    """Make a folder in which everybody may write, in one to which everybody may come; return it."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    return folder


def lend_kernels(folder: Path) -> Path:
    """Let everybody have what is compiled already, as a site would offer it; return where."""
    folder.mkdir(exist_ok=True)
    known = next((each.path for each in compiled.folders() if each.path.is_dir()), None)
    # Another test may be writing there, and what it has not finished goes by another name.
    for path in known.glob("*.kernel") if known is not None else ():
        shutil.copy(path, folder)
    # Where others may write nobody reads: what lies there is run.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def run_as(
    user: int, words: list[str], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run Python as another user, who has nothing but a folder that is open to all.

    Args:
        user: Their number.
        words: What follows the name of the interpreter.
        environment: All that is set, besides the path and where temporary files go.
        folder: The folder, in which it runs.
    """
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        is_missing("needs root, and setpriv of util-linux, to become somebody else")
    become = ["setpriv", "--reuid", str(user), "--clear-groups"]
    return subprocess.run(
        [*become, sys.executable, *words],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
