"""Where the store is where nobody says."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lowtide.store import Store
from lowtide.store.database import default_place


def test_the_environment_comes_first() -> None:
    named = {"LOWTIDE_STORE": "postgresql://db/lowtide", "HOME": "/home/ada"}
    for is_root in (True, False):
        assert default_place(environment=named, is_root=is_root) == "postgresql://db/lowtide"


def test_root_keeps_the_systems_and_others_their_own(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    assert default_place(environment=home, is_root=True) == "/var/lib/lowtide/store.sqlite"
    own = tmp_path / "state" / "lowtide" / "store.sqlite"
    assert default_place(environment=home, is_root=False) == str(own)
    del home["XDG_STATE_HOME"]
    plain = tmp_path / ".local" / "state" / "lowtide" / "store.sqlite"
    assert default_place(environment=home, is_root=False) == str(plain)


def test_who_reads_gets_the_systems_where_there_is_no_own(tmp_path: Path) -> None:
    system = tmp_path / "system"
    system.mkdir()
    (system / "store.sqlite").touch()
    home = {"HOME": str(tmp_path)}
    where = {"environment": home, "is_root": False, "system": system}
    assert default_place(**where, reading=True) == str(system / "store.sqlite")
    assert default_place(**where) != str(system / "store.sqlite")
    own = Path(default_place(**where))
    own.parent.mkdir(parents=True)
    own.touch()
    assert default_place(**where, reading=True) == str(own)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o750, 0o644), (0o755, 0o640)])
def test_who_may_not_read_is_told_which_group_to_join(folder_mode: int, file_mode: int) -> None:
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    folder = top / "system"
    folder.mkdir()
    Store.open(folder / "store.sqlite").close()
    os.chown(folder, 0, 1)
    os.chown(folder / "store.sqlite", 0, 1)
    (folder / "store.sqlite").chmod(file_mode)
    folder.chmod(folder_mode)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from lowtide.errors import StoreProblem\n"
        "from lowtide.store import Store\n"
        "from lowtide.store.database import default_place\n"
        "os.setgroups([])\n"
        "os.setgid(65534)\n"
        "os.setuid(65534)\n"
        "for way in (\n"
        "    lambda: default_place(environment={'HOME': '/nowhere'}, reading=True,\n"
        "                          is_root=False, system=Path(sys.argv[1])),\n"
        "    lambda: Store.open(Path(sys.argv[1]) / 'store.sqlite', readonly=True),\n"
        "):\n"
        "    try:\n"
        "        way()\n"
        "    except StoreProblem as error:\n"
        "        print(error)\n"
    )
    words = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    shutil.rmtree(top)
    group = grp.getgrgid(1).gr_name
    assert done.stdout.count(f"join the group {group} (usermod -aG {group}") == 2, done
    assert done.stdout.count("LOWTIDE_STORE") == 2
