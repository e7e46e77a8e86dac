"""Run as somebody else: as a service would, or a container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.needs import is_missing


def open_to_all(folder: Path) -> Path:
    """Make a folder in which everybody may write, and let everybody come there; return it."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    for each in folder.parents:
        if each.stat().st_uid == 0 and str(each).startswith("/tmp/"):
            each.chmod(each.stat().st_mode | 0o055)
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
