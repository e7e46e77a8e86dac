"""Where clocks are changed in the night a deadline is that on the wall, and no begin moves."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag
from lowtide.cli.deferring import read_finish
from support.needs import is_missing

HOUR_S = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")
# The evening before each: clocks go from 2 to 3 in March, and from 3 to 2 in October.
EVENINGS = {
    "march": datetime(2026, 3, 28, 22, tzinfo=BERLIN).timestamp(),
    "october": datetime(2026, 10, 24, 22, tzinfo=BERLIN).timestamp(),
}
LUA = (Path(__file__).parents[2] / "deploy" / "slurm" / "job_submit.lua").read_text()
# How many hours after that evening each is. Half past two is no time in March, which Python and C
# both take for one of the two beside it, and comes twice in October.
CASES = [
    ("march", "+12h", (12.0,)),
    ("october", "+12h", (12.0,)),
    ("march", "8am", (9.0,)),
    ("october", "8am", (11.0,)),
    ("march", "02:30", (3.5, 4.5)),
    ("october", "02:30", (4.5, 5.5)),
]


@pytest.fixture
def berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.delenv("TZ")
    time.tzset()


@pytest.mark.parametrize(("night", "text", "hours"), CASES)
@pytest.mark.parametrize("later_h", [0.0, 2.5, 4.0, 5.0])
def test_a_deadline_is_the_clocks_on_the_wall_in_both_nights(berlin, night, text, hours, later_h):
    now = EVENINGS[night] + later_h * HOUR_S
    deadline = read_finish(text, now)
    if text.startswith("+"):
        assert deadline == now + 12 * HOUR_S
    elif now < EVENINGS[night] + hours[0] * HOUR_S:
        assert (deadline - EVENINGS[night]) / HOUR_S in hours
    else:
        assert deadline > now
        assert deadline <= now + 26 * HOUR_S


@pytest.mark.parametrize(("night", "text", "hours"), CASES)
def test_a_begin_is_so_many_seconds_from_now_whatever_clocks_do(
    berlin, night, text, hours, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text("#!/bin/sh\ntrue\n")
    now = EVENINGS[night]
    deadline = read_finish(text, now)
    begin = deadline - HOUR_S
    tag = Tag(token="t", deadline=deadline, arrival=now, run_s=HOUR_S, begin=begin)
    command = Submission.read(["-t", "60", "a.sh"], {}).command(tag, now=now)
    assert f"--begin=now+{int((hours[0] - 1) * HOUR_S)}" in command or (
        f"--begin=now+{int((hours[-1] - 1) * HOUR_S)}" in command
    )


@pytest.fixture
def lua():
    """Run a piece of Lua in the library that Slurm has for it; return the number that it tells."""
    found = next(filter(None, map(ctypes.util.find_library, ("lua5.4", "lua5.3", "lua5.1"))), None)
    if found is None:
        is_missing("Lua's library")
    library = ctypes.CDLL(found)
    library.luaL_newstate.restype = ctypes.c_void_p
    # Until 5.1 these had other names.
    number = getattr(library, "lua_tonumberx", None) or library.lua_tonumber
    number.restype = ctypes.c_double
    library.lua_tolstring.restype = ctypes.c_char_p
    state = ctypes.c_void_p(library.luaL_newstate())
    library.luaL_openlibs(state)

    def run(text: str) -> float:
        failed = library.luaL_loadstring(state, text.encode())
        if not failed and hasattr(library, "lua_pcallk"):
            failed = library.lua_pcallk(state, 0, 1, 0, ctypes.c_ssize_t(0), None)
        elif not failed:
            failed = library.lua_pcall(state, 0, 1, 0)
        if failed:
            raise AssertionError(library.lua_tolstring(state, -1, None).decode())
        return float(number(state, -1, None))

    yield run
    library.lua_close(state)


@pytest.mark.parametrize(("night", "text", "hours"), CASES)
def test_the_controllers_lua_takes_the_same_deadline(berlin, lua, night, text, hours):
    assert os.environ["TZ"] == "Europe/Berlin"
    now = EVENINGS[night]
    function = LUA[LUA.index("local function read_finish") :].partition("\nend\n")[0] + "\nend\n"
    finish = lua(f"{function}return read_finish('{text}', {now:.0f})")
    assert (finish - now) / HOUR_S in hours
