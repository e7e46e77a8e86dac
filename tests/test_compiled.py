"""Machine code is kept where it can be, and no folder's trouble ends anything."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide import compiled
from support.needs import is_missing
from support.nightly import IS_NIGHT
from support.users import run_as

SOURCES = Path(compiled.__file__).parent

# A kernel of its own, so that little is compiled: it calls another of another module.
INNER = """
from lowtide.compiled import compiled

STEP = 1.0

@compiled(inner=True)
def more(x):
    return x + STEP
"""
OUTER = """
import os, sys
from lowtide import compiled as owner
from lowtide.compiled import compiled
from inside import more

owner.tell = lambda words: print("told:", words)
owner.gather = "GATHER" in os.environ

@compiled()
def twice(x):
    return more(more(x))

print(twice(1.0), "compiled" if twice._cache_misses else "found")
"""


# To load the compiler takes longer than to compile so little: one process loads it, and each
# run is a child of its own, which has loaded nothing of lowtide yet.
LOADED = """
import json, os, resource, runpy, sys
from pathlib import Path
import numba

numba.njit(lambda x: x + 1.0)(1.0)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, name in enumerate(("out", "err"), start=1):
            os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        exec(asked["first"])
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(Path(asked["script"]).parent))
        runpy.run_path(asked["script"], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def loaded():
    """A process that has loaded the compiler and runs what it is told to in a child."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield server
        server.stdin.close()


@pytest.fixture
def script(tmp_path, loaded):
    (tmp_path / "inside.py").write_text(INNER)
    (tmp_path / "script.py").write_text(OUTER)

    def run(first="", **environment):
        """Run the script and return what it printed; `first` is what is done before."""
        asked = {
            "script": str(tmp_path / "script.py"),
            "out": str(tmp_path / "out"),
            "err": str(tmp_path / "err"),
            "first": first,
            "environment": {
                "HOME": str(tmp_path / "home"),
                "TMPDIR": str(tmp_path / "tmp"),
                "PATH": os.environ["PATH"],
                **environment,
            },
        }
        loaded.stdin.write(json.dumps(asked) + "\n")
        loaded.stdin.flush()
        code, said = int(loaded.stdout.readline()), (tmp_path / "err").read_text()
        assert (code, said) == (0, "")
        return (tmp_path / "out").read_text()

    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    return run


def kernels(folder):
    return sorted(folder.rglob("*.kernel"))


def test_what_was_compiled_is_found_again(script, tmp_path):
    assert script() == "3.0 compiled\n"
    assert len(kernels(tmp_path / "home/.cache/lowtide/kernels")) == 2
    assert script() == "3.0 found\n"


def test_a_change_of_a_kernel_or_constant_elsewhere_is_seen(script, tmp_path):
    script()
    (tmp_path / "inside.py").write_text(INNER.replace("STEP = 1.0", "STEP = 2.0"))
    assert script() == "5.0 compiled\n"
    (tmp_path / "inside.py").write_text(INNER.replace("x + STEP", "x * 3.0 + STEP"))
    assert script() == "13.0 compiled\n"
    (tmp_path / "inside.py").write_text(INNER)
    assert script() == "3.0 found\n"


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "a folder"])
def test_damaged_files_count_as_none(script, tmp_path, damage):
    script()
    for path in kernels(tmp_path):
        data = path.read_bytes()
        if damage == "a folder":
            path.unlink()
            path.mkdir()
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
            path.write_bytes({"empty": b"", "cut": data[:middle], "flipped": flipped}[damage])
    assert script().endswith("3.0 compiled\n")


def test_a_home_that_is_none_falls_back_and_says_so_once(script, tmp_path):
    (tmp_path / "file").write_text("")
    home = str(tmp_path / "file")
    first = script(HOME=home)
    assert first.count("told:") == 1 and "Not a directory" in first
    assert f"{tmp_path}/tmp/lowtide-kernels-{os.geteuid()}" in first
    assert script(HOME=home) == "3.0 found\n"


def test_a_folder_of_somebody_elses_making_is_not_trusted(script, tmp_path):
    (tmp_path / "file").write_text("")
    own = tmp_path / f"tmp/lowtide-kernels-{os.geteuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    first = script(HOME=str(tmp_path / "file"))
    assert first.endswith("3.0 compiled\n") and "cannot be kept" in first
    assert not kernels(tmp_path / "elsewhere")
    own.unlink()
    own.mkdir()
    own.chmod(0o777)
    assert script(HOME=str(tmp_path / "file")).endswith("3.0 compiled\n")
    assert not kernels(own)


def plant(folder, mark):
    """Make every kernel of a folder a program of somebody else's that leaves a mark."""

    class Planted:
        def __reduce__(self):
            return (os.mkdir, (str(mark),))

    payload = pickle.dumps(Planted())
    for path in kernels(folder):
        path.write_bytes(hashlib.sha256(payload).digest() + payload)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "who", ["own", "group's", "all's", "a file of all's", "a link", "another's"]
)
def test_what_somebody_else_could_have_written_is_never_run(script, tmp_path, named, who):
    folder = tmp_path / "home/.cache/lowtide/kernels"
    where = {"LOWTIDE_CACHE": str(folder), "HOME": str(tmp_path / "none")} if named else {}
    script(**where)
    mark = tmp_path / "mark"
    plant(folder, mark)
    if who in ("group's", "all's"):
        folder.chmod(0o770 if who == "group's" else 0o777)
    elif who == "a file of all's":
        for path in kernels(folder):
            path.chmod(0o666)
    elif who == "a link":
        for path in kernels(folder):
            path.symlink_to(path.replace(tmp_path / path.name))
    elif who == "another's":
        if os.geteuid() != 0:
            is_missing("needs root to give a folder away")
        os.chown(folder, 12345, 12345)
    said = script(**where)
    assert said.endswith("3.0 compiled\n")
    # One's own files are trusted: that is what shows that the others were not read.
    assert mark.exists() == (who == "own")


def test_a_named_folder_that_is_not_used_is_said_once_with_the_cure(script, tmp_path):
    shared = tmp_path / "shared"
    script(LOWTIDE_CACHE=str(shared))
    # Nothing is compiled any more, as the user's own folder has it all: that hides nothing.
    script()
    shared.chmod(0o775)
    said = script(LOWTIDE_CACHE=str(shared))
    assert said.count("told:") == 1 and said.endswith("3.0 found\n")
    assert f"{shared}, which LOWTIDE_CACHE names, is not used" in said
    assert f"chmod go-w {shared}" in said
    (tmp_path / "inside.py").write_text(INNER.replace("STEP = 1.0", "STEP = 2.0"))
    said = script(LOWTIDE_CACHE=str(shared))
    assert said.count("told:") == 1 and said.endswith("5.0 compiled\n")
    shared.chmod(0o755)
    assert "told:" not in script(LOWTIDE_CACHE=str(shared))


def test_what_is_kept_is_nobody_elses_to_change(script, tmp_path):
    script("os.umask(0)")
    folder = tmp_path / "home/.cache/lowtide/kernels"
    assert not any(path.stat().st_mode & 0o022 for path in (folder, *folder.iterdir()))
    assert script("os.umask(0)") == "3.0 found\n"


def test_what_nobody_uses_is_dropped_and_what_is_used_stays(script, tmp_path):
    script()
    folder = tmp_path / "home/.cache/lowtide/kernels"
    used = kernels(folder)
    (folder / "gone.kernel").write_bytes(b"")
    (folder / ".gone.kernel.0123abcd").write_bytes(b"")
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    assert script() == "3.0 found\n"
    (tmp_path / "inside.py").write_text(INNER.replace("STEP = 1.0", "STEP = 2.0"))
    assert script() == "5.0 compiled\n"
    left = set(folder.iterdir())
    outer = [path for path in used if "twice" in path.name]
    assert left >= set(outer) and not [path for path in left if "gone" in path.name]


def test_no_room_for_a_whole_file_leaves_none(script, tmp_path):
    first = script("resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))")
    assert first.endswith("3.0 compiled\n")
    assert first.count("told:") == 1 and "File too large" in first
    assert [path for path in tmp_path.rglob("*") if ".kernel" in path.name] == []


def test_a_shared_folder_serves_who_cannot_write_there(script, tmp_path):
    shared = tmp_path / "shared"
    script(LOWTIDE_CACHE=str(shared))
    assert len(kernels(shared)) == 2
    shared.chmod(0o555)
    assert script(LOWTIDE_CACHE=str(shared), HOME=str(tmp_path / "nobody")) == "3.0 found\n"
    assert not (tmp_path / "nobody").exists()


def test_a_folder_for_a_site_gets_what_the_user_has_already(script, tmp_path):
    script()
    site = tmp_path / "site"
    assert script(LOWTIDE_CACHE=str(site)) == "3.0 found\n"
    assert kernels(site) == []
    assert script(LOWTIDE_CACHE=str(site), GATHER="1") == "3.0 found\n"
    assert len(kernels(site)) == 1
    other = {"HOME": str(tmp_path / "none"), "TMPDIR": str(tmp_path / "nowhere")}
    assert script(LOWTIDE_CACHE=str(site), **other) == "3.0 found\n"


def test_several_processes_compile_once(script, tmp_path):
    kept = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    runs = [
        subprocess.Popen([sys.executable, tmp_path / "script.py"], env=kept, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    said = sorted(run.communicate()[0] for run in runs)
    assert said == [b"3.0 compiled\n", b"3.0 found\n", b"3.0 found\n"]


def test_processes_that_ask_at_once_are_told_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_CACHE", str(tmp_path / "kept"))
    write, told = compiled.files.write_whole, []

    def write_while_another_asks(*words, **options):
        write(*words, **options)
        if not told:
            told.append(None)
            told[0] = compiled.kept_in()

    monkeypatch.setattr(compiled.files, "write_whole", write_while_another_asks)
    assert compiled.kept_in() == tmp_path / "kept"
    assert told == [tmp_path / "kept"]
    assert list((tmp_path / "kept").iterdir()) == []


def test_an_unprivileged_user_without_a_home_plans(common):
    """As a service would run it: no home, an install that cannot be written."""
    words = ["plan", "--profile", "h200", "--deadline", "+12h", "--grid", "windy"]
    done = run_as(65534, ["-m", "lowtide", *words], {"HOME": "/nonexistent"}, common)
    assert done.returncode == 0, done.stderr
    assert "kept in" in done.stderr and "own" not in done.stderr
    assert kernels(common / "lowtide-kernels-65534")


def test_kernels_that_only_kernels_may_call_are_not_called_from_elsewhere():
    """Python has no way into them: a call would end the process."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}

    def decorator(node):
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "compiled":
                return each
        return None

    inner = {
        (path, node.name)
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and (found := decorator(node)) is not None
        and any(each.arg == "inner" for each in found.keywords)
    }
    assert len(inner) > 30
    for path, tree in trees.items():
        known = {name for where, name in inner if where == path}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                where = SOURCES.parent / f"{node.module.replace('.', '/')}.py"
                known |= {each.name for each in node.names if (where, each.name) in inner}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and decorator(node) is not None:
                continue
            called = {
                each.func.id
                for each in ast.walk(node)
                if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
            }
            assert not called & known, path


# Runs a command of lowtide's, then says how long it compiled, and how long a piece of work takes
# that is always the same: on a busy machine a CPU-second is worth less.
COUNTED = """
import sys
from time import thread_time
from lowtide import compiled
from lowtide.__main__ import main

def work_s():
    clock = thread_time()
    made = {}
    for i in range(300_000):
        made[f"{i % 5000}"] = (i, str(i))
    return thread_time() - clock

took_s = [work_s() for _ in range(3)]
try:
    main()
finally:
    took_s += [work_s() for _ in range(3)]
    print("compiled", compiled.compiling_s(), sum(took_s) / 6, file=sys.stderr)
"""
EXPERIMENT = """
[workload]
duration = "2d"
arrivals = { kind = "daily", per_day = 10 }
lengths = { kind = "lognormal", median = "2h", sigma = 1.0, high = "1d" }
wait = "12h"
jobs = { kind = "constant", power_w = 100 }
[grid]
synthetic = "windy"
days = 10
"""
PLAN = "plan --grid windy --deadline +36h"
CLUSTER = (
    "simulate e.toml --repeat-signal --set workload.interruptible=anywhere "
    "--set cluster.nodes=2 --set cluster.cpus_per_node=4"
)
BULK = "simulate e.toml --set workload.interruptible=anywhere --set policy.name="
LONG = [f"{CLUSTER} --set queue.name=easy", f"{BULK}exact --set policy.step_s=1860"]
OTHERS = [
    f"{PLAN} -t 6:00:00 --power 300 --interruptible anywhere --explain",
    f"{PLAN} --profile h200 --interruptible checkpoints --explain",
    "tradeoff --profile h200 --deadline +36h --grid windy --interruptible checkpoints",
    *(f"{CLUSTER} --set queue.name={each}" for each in ("fifo", "round_robin", "feedback")),
    *(f"{BULK}{each}" for each in ("exact", "wait_awhile", "threshold", "rolling", "advice")),
    f"{BULK}exact --set policy.step_s=1860 --set workload.interruptible=never",
    "plan-cluster e.toml --repeat-signal --effort 0.02 --set workload.interruptible=anywhere "
    "--set cluster.nodes=4 --set cluster.cpus_per_node=4",
    "sweep s.toml -j 1",
    "demo",
]
# In CPU-seconds, on a machine that does that piece of work in so long.
LIMIT_S, WORK_S = 10.0, 0.076


def counted(command, tmp_path, cache):
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    sweep = '[sweep]\npolicy.name = ["exact", "wait_awhile", "oracle"]\n'
    (tmp_path / "s.toml").write_text(EXPERIMENT + sweep)
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *command.split()],
        env={**os.environ, "LOWTIDE_CACHE": str(cache), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    took_s, work_s = map(float, done.stderr.rsplit("compiled ", 1)[1].split())
    return took_s / max(work_s / WORK_S, 1.0)


@pytest.mark.alone
@pytest.mark.parametrize("command", LONG + OTHERS * IS_NIGHT)
def test_from_an_empty_cache_no_command_compiles_long(command, tmp_path):
    took_s = counted(command, tmp_path, tmp_path / "kernels")
    assert 0.5 < took_s < LIMIT_S


def test_a_single_kernel_that_takes_long_is_announced_while_it_does(monkeypatch):
    said = []
    monkeypatch.setattr(compiled, "tell", said.append)
    monkeypatch.setattr(compiled, "_LONG_S", 0.02)
    long = compiled._Work()
    with long.compiling():
        long.begin()
        until = time.monotonic() + 30
        while not said and time.monotonic() < until:
            time.sleep(0.01)
    assert len(said) == 1
    with long.compiling():
        long.begin()
        time.sleep(0.05)
    assert len(said) == 1
    # What is done sooner is not spoken of, then or later.
    monkeypatch.setattr(compiled, "_LONG_S", 60.0)
    quick = compiled._Work()
    with quick.compiling():
        quick.begin()
    assert quick._soon.finished.is_set()
    assert len(said) == 1
