"""Keys: where they come from, and that they go nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import FileProblem, InvalidInput, LowtideError, ProviderProblem
from lowtide.grids.providers import find_keys, keys_file

NAMES = ("user", "password")


def write(text: str, mode: int = 0o600) -> Path:
    path = keys_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_nothing_is_needed_where_nothing_is_asked_for(home: Path) -> None:
    write("nonsense", 0o644)
    assert find_keys("gb", ()) == ()


def test_none_says_how_to_give_them(home: Path) -> None:
    with pytest.raises(ProviderProblem) as caught:
        find_keys("watttime", NAMES)
    assert "LOWTIDE_WATTTIME_USER and LOWTIDE_WATTTIME_PASSWORD" in str(caught.value)
    assert str(home / ".config/lowtide/keys.toml") in str(caught.value)


def test_environment_before_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[watttime]\nuser = "file"\npassword = " word "\n[electricitymaps]\ntoken = "t"\n')
    assert find_keys("watttime", NAMES) == ("file", "word")
    monkeypatch.setenv("LOWTIDE_WATTTIME_USER", "environment\n")
    assert find_keys("watttime", NAMES) == ("environment", "word")
    assert find_keys("electricitymaps", ("token",)) == ("t",)


def test_the_file_may_be_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    assert write('[a]\nuser = "x"\n') == home / "settings/lowtide/keys.toml"
    assert find_keys("a", ("user",)) == ("x",)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o777])
def test_a_file_for_others_is_refused_with_the_cure(home: Path, mode: int) -> None:
    path = write('[watttime]\nuser = "a"\npassword = "5ecret"\n', mode)
    with pytest.raises(FileProblem, match=f"mode {mode:04o}.*chmod 600 {path}") as caught:
        find_keys("watttime", NAMES)
    assert "5ecret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[watttime\nuser = '5ecret'",
        "user = 5ecret",
        "watttime = '5ecret'",
        "[watttime]\nuser = ['5ecret']\n",
        "[watttime]\n5ecret = 'token'\n",
        "[watttime]\nuser = '5ecret\x07'\npassword = 'b'\n",
        "[watttime]\nuser = '5ecretü'\npassword = 'b'\n",
    ],
)
def test_no_message_repeats_what_is_in_the_file(home: Path, text: str) -> None:
    write(text)
    with pytest.raises(LowtideError) as caught:
        find_keys("watttime", NAMES)
    assert "5ecret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_key_that_no_header_can_carry(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_ELECTRICITYMAPS_TOKEN", "5ecret\r\nX-Other: 1")
    with pytest.raises(InvalidInput, match="copy it again") as caught:
        find_keys("electricitymaps", ("token",))
    assert "5ecret" not in str(caught.value)


def test_a_file_that_cannot_be_read(home: Path) -> None:
    keys_file().mkdir(parents=True)
    with pytest.raises(FileProblem, match="cannot read"):
        find_keys("watttime", NAMES)
