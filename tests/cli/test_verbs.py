"""Every verb: its examples run, and it speaks to people, scripts and programs."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lowtide as lt
from lowtide import compiled
from lowtide.cli.examples import EXAMPLES
from lowtide.formats import write_signal
from lowtide.formats.recording_writer import write_recording
from lowtide.library import Library, learn_from
from lowtide.library.sources import Watched
from lowtide.meters.meter import STATES
from lowtide.policies.policy import POLICIES
from lowtide.samples import sample_profile
from lowtide.serve.tokens import READ_OWN, make_token
from lowtide.simulator.disciplines import DISCIPLINES
from lowtide.store import Question, Store
from lowtide.stress.plan import make_plan
from lowtide.units import format_iso, format_time
from support.commands import all_verbs, run
from support.faces import assert_as_kept, assert_keys_as_kept
from support.nightly import IS_NIGHT
from support.pushed import centre
from support.recordings import sized_recording
from support.studies import write_study
from support.users import folder_for_all, lend_kernels, open_to_all, run_as
from support.watched import write_store

VERBS = all_verbs()
# Files of these tests are of the past.
PAST = ("--now", "start")
# These need the real data, and are run in tests/reproductions.
OF_REAL_DATA = ("reproduce gaia", "reproduce wait-awhile")
# These need a Slurm, and are run in tests/acting.
OF_SLURM = ("drive", "queue", "queue waits", "queue forget", "queue hold", "queue release")
OF_SLURM += ("queue report", "sbatch")
# One goes on until it is told to stop, three need a centre: they are run in tests/serve.
ENDLESS = ("serve", "login", "logout", "serve mail")
# This needs a job, and is run in test_watch.py.
OF_JOBS = ("watch follow",)
RUN_HERE = [verb for verb in VERBS if verb not in (*OF_REAL_DATA, *OF_SLURM, *OF_JOBS, *ENDLESS)]
EXAMPLE_LINES = [line for verb in RUN_HERE for line in EXAMPLES[verb]]
EXPERIMENT = """
[grid]
synthetic = "windy"
days = 10

[workload]
scenario = "nightly"

[sweep]
policy.name = ["lowest_slot", "exact"]
"""
QUEUE = """
[grid]
synthetic = "sunny"
days = 10

[cluster]
nodes = 4
cpus_per_node = 1

[workload]
duration = "1d"
wait = "12h"
arrivals = { kind = "periodic", period = "2h" }
lengths = "3h"
jobs = { kind = "constant", power_w = 300 }
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a job that was watched the day before yesterday."""
    path = tmp_path_factory.mktemp("watched") / "store.sqlite"
    write_store(path, start=(time.time() // 86400 - 2) * 86400)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, watched: Path) -> Path:
    """A library that knows that job's program."""
    folder = tmp_path_factory.mktemp("library")
    with Store.open(watched, readonly=True) as store:
        learn_from(Watched(store, Question(sources=["slurm"]), time.time()), Library(folder))
    return folder


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    return fill(tmp_path_factory.mktemp("named"))


@pytest.fixture(autouse=True)
def files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: Path, watched: Path, library: Path
) -> Path:
    """A folder with the files that the examples name, a store and a library of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(named, tmp_path, dirs_exist_ok=True)
    shutil.copytree(library, tmp_path / "library")
    monkeypatch.setenv("LOWTIDE_PROFILES", str(tmp_path / "library"))
    monkeypatch.setenv("LOWTIDE_STORE", str(shutil.copy(watched, tmp_path)))
    return tmp_path


def fill(folder: Path) -> Path:
    """Write the files that the examples name."""
    grid = lt.synthetic_grid("windy", start="2024-07-01T00:00Z", days=7, seed=1)
    write_signal(grid.average, folder / "DE.csv")
    rows = ["arrival_time,length,cpus", "0,3600,4", "60,7200,1", "120,90,2"]
    (folder / "jobs.csv").write_text("\n".join(rows) + "\n")
    sample_profile("h200").dump(folder / "profile.toml")
    for epochs in (3, 5, 8):
        write_recording(sized_recording(epochs), folder / f"e{epochs}")
    (folder / "exp.toml").write_text(EXPERIMENT)
    (folder / "queue.toml").write_text(QUEUE)
    (folder / "serve.toml").write_text('cluster = "alps"\n')
    with centre(str(folder / "centre.sqlite")) as database:
        make_token(database, owner="ada", scope=READ_OWN, lasts_s=1e6, now=time.time())
    few = {"grids": ["sunny"], "waits": ["6h", "24h"], "lengths": ["4h"], "seeds": [0]}
    write_study(folder / "worth-it-results", **few)
    short = {"cpu": (0.0, 30.0), "disk": (0.0, 30.0)}
    sonar = "v=0.13.0,time=2024-07-01T00:0{}:00+00:00,host=n1,user=ada,job=7,cmd=md,cputime_sec={}"
    (folder / "sonar.csv").write_text(
        "".join(sonar.format(minute, 60 * minute) + "\n" for minute in range(5))
    )
    make_plan("random", short, duration="0.6s", step="0.1s").dump(folder / "load.toml")
    return folder


def test_every_verb_has_an_example() -> None:
    assert sorted(EXAMPLES) == VERBS


@pytest.mark.parametrize("line", EXAMPLE_LINES)
def test_examples_of_the_help_run(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_endless = line.startswith("lowtide watch")
    if is_endless or "--follow" in line:
        # One tick of it will do.
        module = sys.modules["lowtide.cli.watch"]
        monkeypatch.setattr(module, "run", lambda service, **_: service.run(ticks=1))
    answer = run(capsys, *shlex.split(line)[1:])
    out, err = answer.out, answer.err
    if line.startswith("lowtide measure"):
        # Stdout is the program's there.
        out, err = err, out
    assert (answer.code, err) == (0, "")
    # What keeps and serves without end shows it on a terminal alone.
    assert bool(out.strip()) != is_endless


# Runs commands one after another in one process, each with its own environment, and tells how it
# ended, what it said and which kernels it asked for that had not been asked for before.
RUN_ALL = """
import contextlib, io, json, os, sys
from lowtide import compiled
from lowtide.cli import main

asked, told = [], []
load = compiled._Cache.load_overload

def noting(cache, signature, target):
    asked.append(cache._name + str(signature))
    return load(cache, signature, target)

compiled._Cache.load_overload = noting
if sys.argv[2:]:
    versions = tuple(sys.argv[2:])
    compiled._versions = lambda: versions
bare = dict(os.environ)
for words, changed in json.loads(sys.argv[1]):
    asked.clear()
    os.environ.clear()
    os.environ.update(bare, **changed)
    sys.argv = ["lowtide", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    told.append({"code": code, "err": err.getvalue(), "kernels": asked[:]})
print(json.dumps(told))
"""
# One line for each verb: the first example, or one that is sooner done and ends by itself.
LINES = {
    **{verb: lines[0] for verb, lines in EXAMPLES.items()},
    "sweep": "lowtide sweep exp.toml -j 1",
    "profiles learn": "lowtide profiles learn --from-recordings e3",
    "report": "lowtide report worth-it-results --no-figures",
    "watch": "lowtide watch --once",
}


LONG = ("demo", "learn", "report", "reproduce thesis", "simulate", "sweep", "warm")
# Commands that look below the home, and no example does.
LOOKING = ["grid gb:13", "grid watttime:DE", "node --grid gb:13"]
HOMES = {
    "whom nobody knows": {},
    "whose home is another's": {"HOME": "{closed}"},
}


@pytest.fixture(scope="module")
def homeless() -> Iterator[list[tuple[str, dict[str, object]]]]:
    """How commands end for a user who has no home: what was run, and what it told."""
    with folder_for_all() as common:
        yield run_homeless(open_to_all(common / "open"))


def run_homeless(folder: Path) -> list[tuple[str, dict[str, object]]]:
    """Run commands in a folder for users who have no home; return how they ended."""
    fill(folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    # Compiling is not what this is about.
    kernels = lend_kernels(folder.parent / "kernels")
    # Those that take long are tried once, those that take longest by night.
    left_out = () if IS_NIGHT else ("demo", "reproduce thesis", "warm")
    runs = []
    for who, home in HOMES.items():
        changed = {key: value.format(closed=closed) for key, value in home.items()}
        some = [verb for verb in RUN_HERE if verb not in (LONG if home else left_out)]
        lines = [*(LINES[verb].removeprefix("lowtide ") for verb in some), *LOOKING]
        runs += [(f"{line}, {who}", (shlex.split(line), changed)) for line in lines]
    # Nobody answers there, so that no network is needed.
    environment = {"LOWTIDE_CACHE": str(kernels), "https_proxy": "http://127.0.0.1:9"}
    words = json.dumps([run for _, run in runs])
    # Who cannot read the Python of these tests may be given another, for which it would all be
    # compiled anew.
    command = ["-c", RUN_ALL, words, *compiled._versions()]
    done = run_as(54321, command, environment, folder)
    assert done.returncode == 0, done.stderr
    return list(zip((name for name, _ in runs), json.loads(done.stdout), strict=True))


def test_no_verb_needs_a_home(homeless: list[tuple[str, dict[str, object]]]) -> None:
    # Where everything is kept in a file below the home, another has to be named. Providers are
    # out of reach. A load needs Python itself, which others may not be able to run.
    cures = ("--store", "--library", "cannot be reached", "needs a key", "cannot be started")
    for line, told in homeless:
        said = str(told["err"])
        assert "Traceback" not in said and "lowtide's own" not in said, line
        if told["code"] != 0:
            assert told["code"] == 2 and any(each in said for each in cures), (line, told)


# Beyond the examples: what is compiled for other policies, queues, jobs and options.
STOPPED = "simulate exp.toml --set workload.interruptible=anywhere --set policy.name="
QUEUED = (
    "simulate exp.toml --repeat-signal --set policy.name=run_now --set cluster.nodes=2 "
    "--set cluster.cpus_per_node=4 --set workload.interruptible=anywhere --set queue.name="
)
BUYING = ("reserved_first", "spot_reserved")
# Jobs that nobody recorded cannot start when they did.
NOT_HERE = (*BUYING, "as_recorded")
PLANNED = "plan -t 3:00:00 --power 300 --deadline +24h --grid windy --interruptible"
WHEN = "tradeoff --profile h200 --deadline +24h --grid windy --interruptible"
KERNELS = [
    f"{PLANNED} anywhere --explain",
    f"{WHEN} checkpoints",
    *(f"{STOPPED}{each}" for each in ("wait_awhile", "threshold")),
    f"{STOPPED}exact --set policy.step_s=1860",
    *(f"{QUEUED}{each}" for each in ("easy", "feedback")),
]
# Every policy, queue and kind of job takes long.
MORE = [
    f"{PLANNED} never --explain",
    "plan --profile h200 --deadline +24h --grid windy --interruptible checkpoints --explain",
    *(f"{WHEN} {each}" for each in ("never", "anywhere")),
    *(f"{STOPPED}{each}" for each in POLICIES.names() if each not in NOT_HERE),
    f"{STOPPED}exact --set policy.step_s=1800",
    *(f"{QUEUED}{each} --set cluster.off_after_s=3600" for each in DISCIPLINES),
    *(
        "simulate exp.toml --repeat-signal --set cluster.nodes=1 --set cluster.reserved_cpus=1 "
        f"--set policy.name={each}"
        for each in BUYING
    ),
    *(
        LINES[verb].removeprefix("lowtide ")
        for verb in RUN_HERE
        if verb not in ("warm", "stress run")
    ),
]
if IS_NIGHT:
    KERNELS += MORE


def test_after_warm_nothing_is_left_to_compile(files: Path) -> None:
    """In one process, so that whatever is asked for anew is something that warm left out."""
    verbs = ("plan", "when", "plan-cluster", "simulate", "sweep", "learn", "show", "jobs", "usage")
    lines = [["warm"], *(shlex.split(LINES[verb])[1:] for verb in verbs)]
    lines += [shlex.split(line) for line in KERNELS]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps([(line, {}) for line in lines])],
        capture_output=True,
        text=True,
        check=True,
    )
    warm, *others = json.loads(done.stdout)
    # Those that are kept already are not asked for what is inside of them.
    assert len(warm["kernels"]) > 20
    ends = zip(lines[1:], others, strict=True)
    assert [each for each in ends if each[1]["code"] or each[1]["kernels"]] == []


@pytest.mark.parametrize("verb", RUN_HERE)
def test_every_verb_speaks_json_and_columns(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = LINES[verb] if verb == "watch" else EXAMPLES[verb][0]
    words = [word for word in shlex.split(line)[1:] if word != "--json"]
    # Its charts are drawn where the examples are run; programs are told which files there are.
    words += ["--no-figures"] if verb == "report" else []
    # What follows the verb at once cannot be taken for a word of a program that is to be run.
    named, rest = verb.split(), words[len(verb.split()) :]
    document = run(capsys, *named, "--json", *rest)
    assert document.code == 0
    said = json.loads(document.out)
    assert said
    columns = run(capsys, *named, "-P", *rest)
    assert columns.code == 0
    lines = columns.out.splitlines()
    assert len(lines) >= 2
    assert len({line.count("|") for line in lines}) == 1
    assert "|" in lines[0]
    assert_keys_as_kept(f"verbs/{verb}.txt", said, lines[0])


# `lowtide` itself, and what has verbs of its own.
GROUPS = ["", *sorted({verb.rpartition(" ")[0] for verb in VERBS} - {"", *VERBS})]


@pytest.mark.parametrize("verb", [*GROUPS, *VERBS])
def test_help_shows_the_examples(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    answer = run(capsys, *verb.split(), "--help")
    assert answer.code == 0
    # Under pytest the program is told to have another name.
    shown = re.sub(r"^Usage: .*?lowtide", "Usage: lowtide", answer.out)
    assert_as_kept(f"help/{verb or 'lowtide'}.txt", shown)
    # One option, so that what holds of the letter holds of the word.
    assert verb not in RUN_HERE or "-P, --parsable " in shown
    for line in EXAMPLES.get(verb, ()):
        assert line in answer.out


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "numba", "polars", "altair", "rich", "vl_convert"}
    script = (
        f"import sys, lowtide.cli\nheavy = {heavy} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_list_of_verbs_looks_at_no_verbs_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a third of the time; who names a verb gets that one with all of them."""
    import typer.main

    import lowtide.cli

    looked: list[str] = []
    known = typer.main.get_params_convertors_ctx_param_name_from_function

    def look(function: Any) -> Any:
        found = known(function)
        looked.extend(each.name for each in found[0])
        return found

    monkeypatch.setattr(typer.main, "get_params_convertors_ctx_param_name_from_function", look)
    whole = typer.main.get_command(lowtide.cli.whole())
    assert {"version", "deadline"} <= set(looked)
    helps = {name: each.get_short_help_str(300) for name, each in whole.commands.items()}  # type: ignore[attr-defined]
    for words in ([], ["--help"], ["-h"], ["--version"], ["plna"]):
        looked.clear()
        listed = typer.main.get_command(lowtide.cli._needed(words))
        assert looked == ["version"]
        assert {
            name: each.get_short_help_str(300) for name, each in listed.commands.items()
        } == helps  # type: ignore[attr-defined]
    for words in (["--"], ["--foo"]):
        assert lowtide.cli._needed(words) is lowtide.cli.whole()
    for name in helps:
        found = typer.main.get_command(lowtide.cli._needed([name]))
        assert list(found.commands) == [name]  # type: ignore[attr-defined]


def test_no_verb_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys)
    assert "Commands" in answer.out + answer.err


@pytest.mark.parametrize("words", [tuple(group.split()) for group in GROUPS])
def test_the_list_of_verbs_is_whole_on_a_narrow_terminal(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = run(capsys, *words, "--help")
    assert "Commands" in answer.out
    assert "..." not in answer.out.partition("Commands")[2]


def test_the_version_is_told_to_those_who_ask_as_elsewhere() -> None:
    asked = [sys.executable, "-m", "lowtide", "--version"]
    told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    assert told.startswith(f"lowtide {metadata.version('lowtide')} ")


def test_when_finds_the_cleanest_hours(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signal = lt.Signal.from_values(
        [300, 300, 300, 100, 100, 300], start="2024-07-01T00:00Z", step_s="1h"
    )
    write_signal(signal, files / "curve.csv")
    answer = run(
        capsys,
        "when",
        "-t",
        "2:00:00",
        "--deadline",
        "+6h",
        "--signal",
        "curve.csv",
        "--json",
        *PAST,
    )
    best = json.loads(answer.out)["best"]
    assert best["start"] == "2024-07-01T03:00:00Z"
    assert best["saving"] == pytest.approx(2 / 3)
    assert best["carbon_g"] is None


def test_when_tells_grams_once_it_knows_watts(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("when", "-t", "60", "--power", "500", "--deadline", "+6h", "--signal", "DE.csv", *PAST)
    answer = run(capsys, *words, "--json")
    best = json.loads(answer.out)["best"]
    assert best["energy_j"] == 500 * 3600
    assert best["carbon_g"] == pytest.approx(best["mean"] * 0.5)
    assert "CO2e" in run(capsys, *words).out


def test_the_tradeoff_needs_no_watts(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signal = lt.Signal.from_values(
        [400, 300, 300, 100, 100, 300], start="2024-07-01T00:00Z", step_s="1h"
    )
    write_signal(signal, files / "curve.csv")
    words = ("tradeoff", "-t", "60", "--deadline", "+6h", "--signal", "curve.csv", *PAST)
    known = json.loads(run(capsys, *words, "--power", "500", "--json").out)
    unknown = json.loads(run(capsys, *words, "--json").out)
    assert (known["unit"], known["baseline"]) == ("g", 200.0)
    assert (unknown["unit"], unknown["baseline"]) == ("% of run_now", 100.0)
    assert known["curve"][-1]["amount"] == 50.0
    assert unknown["curve"][-1]["amount"] == 25.0
    for part in ("finish", "saving"):
        assert [row[part] for row in known["curve"]] == [row[part] for row in unknown["curve"]]
    assert "saves 75.0 %" in run(capsys, *words).out


@pytest.mark.parametrize("kind", ["never", "anywhere"])
def test_the_tradeoff_of_a_job_without_slack_is_one_finish(
    kind: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signal = lt.Signal.from_values([400, 300], start="2024-07-01T00:00Z", step_s="1h")
    write_signal(signal, files / "curve.csv")
    words = ("tradeoff", "-t", "120", "--deadline", "+2h", "--signal", "curve.csv")
    words = (*words, "--interruptible", kind, "--power", "500", "--now", "start")
    told = json.loads(run(capsys, *words, "--json", "--image", "curve.svg").out)
    assert [row["finish"] for row in told["curve"]] == ["2024-07-01T02:00:00Z"]
    assert told["curve"][0]["amount"] == 350.0
    assert (files / "curve.svg").exists()
    assert "2024-07-01T02:00:00Z|350|0|yes|no" in run(capsys, *words, "-P").out
    answer = run(capsys, *words)
    assert "no time to wait" in answer.out + answer.err


def test_when_says_that_now_is_best(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signal = lt.Signal.from_values([1, 2, 3], start="2024-07-01T00:00Z", step_s="1h")
    write_signal(signal, files / "rising.csv")
    answer = run(capsys, "when", "-t", "60", "--deadline", "+3h", "--signal", "rising.csv", *PAST)
    assert "without waiting: no later start is cleaner" in answer.out
    assert "the first moment of the file" in answer.out


def test_plan_writes_a_schedule_that_reads_back(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(
        capsys,
        *(
            "plan",
            "-t",
            "6:00:00",
            "--power",
            "300",
            "--deadline",
            "+36h",
            "--signal",
            "DE.csv",
            *PAST,
        ),
        *("-o", "plan.json", "--report", "plan.html", "--json"),
    )
    document = json.loads(answer.out)
    best = min(document["plans"], key=lambda each: each["footprint"]["carbon_g"])
    schedule = lt.Schedule.load(files / "plan.json")
    assert [span.kind for span in schedule.spans] == [span["kind"] for span in best["spans"]]
    assert "<html" in (files / "plan.html").read_text()


def test_plan_always_shows_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "-t", "60", "--power", "1", "--deadline", "+6h", "--signal", "DE.csv", *PAST)
    policies = [line.split("|")[0] for line in run(capsys, *words, "-P").out.splitlines()]
    assert policies == ["policy", "run_now", "exact"]


def test_grid_draws_an_image(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "grid", "sunny", "--days", "2", "--image", "curve.png").code == 0
    assert (files / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_grid_shows_what_was_filled(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"2024-07-01T0{hour}:00:00Z,{100 + hour}" for hour in (0, 1, 2, 4, 5)]
    (files / "gap.csv").write_text("\n".join(["datetime,carbon_intensity_g_per_kwh", *rows]) + "\n")
    assert run(capsys, "grid", "gap.csv").code == 2
    assert "1 of 6 steps filled in" in run(capsys, "grid", "gap.csv", "--how", "gaps=hold").out


def test_convert_keeps_every_job(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "convert", "jobs.csv", "jobs.swf").code == 0
    assert list(lt.read_jobs(files / "jobs.swf").length_s) == [3600.0, 7200.0, 90.0]


def test_convert_writes_parquet(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "convert", "jobs.csv", "jobs.parquet").code == 0
    assert pl.read_parquet(files / "jobs.parquet")["length"].to_list() == [3600.0, 7200.0, 90.0]
    rows = "".join(f"2024-07-01T0{hour}:00:00Z,{100 + hour}\n" for hour in range(5))
    (files / "curve.csv").write_text(f"datetime,carbon_intensity_g_per_kwh\n{rows}")
    assert run(capsys, "convert", "curve.csv", "curve.parquet").code == 0
    curve = pl.read_parquet(files / "curve.parquet")
    assert curve["carbon_intensity_g_per_kwh"].to_list() == [100, 101, 102, 103, 104]
    assert pl.read_parquet_metadata(files / "curve.parquet")["kind"] == "average"
    begin = datetime(2024, 7, 1, tzinfo=UTC)
    assert curve["datetime"].to_list() == [begin + timedelta(hours=n) for n in range(5)]


def test_doctor_finds_everything_working(capsys: pytest.CaptureFixture[str]) -> None:
    checks = json.loads(run(capsys, "doctor", "--json").out)
    meters = {check["what"]: check for check in checks if check["what"].startswith("meter ")}
    # Whether there is a key or a network is the user's affair: see test_live_grids.py.
    # A machine may have no GPU, too.
    others = [
        check for check in checks if not check["what"].startswith(("meter ", "grid ", "GPUs"))
    ]
    assert {check["state"] for check in others} == {"works"}
    # Which sensors there are is the machine's affair; an estimate there always is.
    assert meters["meter estimate"]["state"] == "works"
    assert {check["state"] for check in meters.values()} <= set(STATES)


def test_every_output_of_a_synthetic_grid_says_so(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ("-t", "60", "--deadline", "+6h", "--arrival", "2024-07-01T00:00Z", "--grid", "sunny")
    for words in (
        ("when", *job),
        ("plan", *job, "--power", "9"),
        ("grid", "sunny"),
        ("demo", "--out", "demo"),
    ):
        for flag in ((), ("-P",), ("--json",)):
            assert "synthetic" in run(capsys, *words, *flag).out, (words, flag)
    run(capsys, "plan", *job, "--power", "9", "-o", "plan.json", "--report", "plan.html")
    written = ["plan.json", "plan.html", "demo/report.html", "demo/power.svg", "demo/schedules.svg"]
    for name in written:
        assert "synthetic" in (files / name).read_text(), name


@pytest.mark.parametrize("verb", ["when", "plan"])
@pytest.mark.parametrize("away_days", [-900, -1, 1, 900])
def test_a_file_that_says_nothing_of_now_is_refused_until_now_is_said(
    verb: str, away_days: int, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = math.floor(time.time()) + 86400.0 * away_days - (6 * 3600 + 1) * (away_days < 0)
    curve = lt.Signal.from_values([300, 200, 100, 300, 300, 300], start=start, step_s="1h")
    write_signal(curve, files / "curve.csv")
    job = (verb, "-t", "60", "--power", "9", "--deadline", "+6h", "--signal", "curve.csv")
    for flag in ((), ("--json",), ("-P",), ("--arrival", "now")):
        refused = run(capsys, *job, *flag)
        assert (refused.code, refused.out) == (2, "")
        assert ("before now" if away_days < 0 else "after now") in refused.err
        assert "--now start for its first moment" in refused.err
    # Every cure that is offered cures.
    stamp = format_iso(start)
    cures = [("--now", "start"), ("--now", stamp), ("--arrival", stamp)]
    assert all(f"{option} {value}" in refused.err for option, value in cures[:2])
    for cure in cures:
        answer = run(capsys, *job, *cure, "--json")
        assert answer.code == 0, answer.err
        document = json.loads(answer.out)
        best = document["best"] if verb == "when" else document["plans"][-1]
        assert best["start"] == format_iso(start + 2 * 3600)
        if cure[0] == "--now":
            assert document["now"] == stamp
            assert format_time(start) in document["note"]
            assert format_time(start) in run(capsys, *job, *cure).out


def test_a_file_that_covers_now_needs_no_more(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = math.floor(time.time() / 3600) * 3600.0 - 7200
    write_signal(
        lt.Signal.from_values([300] * 4 + [100] * 4, start=start, step_s="1h"), files / "now.csv"
    )
    words = ("when", "-t", "60", "--signal", "now.csv", "--json", "--deadline")
    document = json.loads(run(capsys, *words, "+5h").out)
    assert document["note"] == ""
    assert document["best"]["start"] == format_iso(start + 4 * 3600)
    refused = run(capsys, *words, "+20h")
    assert refused.code == 2
    assert "too early" in refused.err


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock on the wall is Berlin's."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_time_without_a_zone_is_local_and_said_to_be(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("when", "-t", "60", "--signal", "DE.csv", "--now", "2024-07-01T02:00")
    answer = run(capsys, *words, "--deadline", "2024-07-01T18:00", "--json")
    document = json.loads(answer.out)
    assert document["now"] == "2024-07-01T00:00:00Z"
    assert document["deadline"] == "2024-07-01T16:00:00Z"
    told = "--deadline 2024-07-01T18:00 is local time: 2024-07-01 18:00 CEST = 2024-07-01 16:00 UTC"
    assert told in document["note"]
    shown = run(capsys, *words, "--deadline", "2024-07-01T18:00").out
    assert told in " ".join(shown.split())
    # What says its zone needs no echo, and means the same.
    plain = json.loads(run(capsys, *words, "--deadline", "2024-07-01T16:00Z", "--json").out)
    assert plain["deadline"] == document["deadline"]
    assert "--deadline" not in plain["note"]
    for text in ("2024-07-02Z", "2024-07-02+02:00"):
        assert run(capsys, *words, "--deadline", text).code == 0
    best = lt.plan(
        lt.Job(
            id="1",
            arrival="2024-07-01T00:00Z",
            deadline="2024-07-01T16:00Z",
            profile=lt.PowerProfile.constant(1000, "1h"),
        ),
        lt.read_signal(files / "DE.csv"),
    )
    assert document["best"]["start"] == format_iso(best.schedule.start)


@pytest.mark.usefixtures("berlin")
def test_times_are_shown_in_the_zone_that_is_asked_for(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_signal(
        lt.Signal.from_values([300, 300, 100], start="2024-07-01T22:00Z", step_s="1h"),
        files / "curve.csv",
    )
    job = ("-t", "60", "--power", "9", "--signal", "curve.csv", *PAST, "--deadline", "+3h")
    for verb in ("when", "plan"):
        usual = run(capsys, verb, *job).out
        assert "2024-07-02 00:00 UTC (02:00 CEST here)" in usual
        assert "(UTC)" in usual
        for zone, told in (("local", "2024-07-02 02:00"), ("Asia/Kolkata", "2024-07-02 05:30")):
            shown = run(capsys, verb, *job, "--tz", zone).out
            assert told in shown
            assert f"({zone})" in shown
            assert "UTC" not in shown.split("\n\n", 1)[1]
        # Programs get UTC in any case.
        for flag in ("--json", "-P"):
            document = run(capsys, verb, *job, flag).out
            assert document == run(capsys, verb, *job, flag, "--tz", "Asia/Kolkata").out
            assert "2024-07-02T00:00:00Z" in document


def test_a_job_that_draws_nothing_has_no_mean(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(
        capsys, "when", "-t", "60", "--power", "0", "--deadline", "+6h", "--signal", "DE.csv", *PAST
    )
    assert answer.code == 0
    assert "---" in answer.out


def test_filled_steps_are_counted_in_the_window_that_is_shown(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"2024-07-01T{hour:02}:00:00Z,{100 + hour}" for hour in range(12) if hour != 3]
    (files / "gap.csv").write_text("\n".join(["datetime,carbon_intensity_g_per_kwh", *rows]) + "\n")
    words = ("grid", "gap.csv", "--how", "gaps=hold", "--json")
    for end, filled in (("+2h", 0), ("+5h", 1)):
        shown = run(capsys, *words, "--from", "2024-07-01T00:00Z", "--to", end)
        assert json.loads(shown.out)["filled"] == filled


def test_prices_are_planned_and_shown_as_money(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    price = lt.synthetic_grid("windy", start="2024-07-01T00:00Z", days=2, seed=1).price
    write_signal(price, files / "price.csv")
    words = ("plan", "-t", "2:00:00", "--power", "500", "--deadline", "+24h")
    answer = run(capsys, *words, "--signal", "price.csv", *PAST)
    assert "EUR" in answer.out
    assert "cost" in answer.out


def test_output_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "demo")
    table = [line for line in answer.out.splitlines() if line.startswith(("policy", "run_now"))]
    assert table
    assert all(len(line.rstrip()) <= 80 for line in table)
