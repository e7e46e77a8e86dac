"""Where the store is where nobody says."""

from __future__ import annotations

from pathlib import Path

from lowtide.store.places import default_place


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
