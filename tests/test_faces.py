"""What must not change by accident: public names, TOML keys, metrics, what a store tells.

The verbs' own faces (help, keys of documents, columns) are compared in `tests/cli/test_verbs.py`,
where every verb is run anyway.
"""

from __future__ import annotations

import inspect
import re
import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowtide
from lowtide.errors import LowtideError
from lowtide.library import Library, learn_from
from lowtide.library.sources import Recorded
from lowtide.monitor.metrics import COMPATIBLE, Exposition, own_use
from lowtide.profile import Phase, PowerProfile, Spread
from lowtide.samples import sample_profile, sample_recording
from lowtide.store import Store
from lowtide.stress.plan import make_plan
from lowtide.studies.experiment import Experiment
from lowtide.studies.run import check_runs
from support.commands import run
from support.faces import FOLDER, assert_as_kept, paths_of
from support.snapshots import tick_of_everything
from support.watched import START, write_store

ROOT = Path(__file__).parents[1]
NONSENSE = {"nonsense": 1}
CLUSTER = {"nodes": 2, "cpus_per_node": 4}
EXPERIMENT: dict[str, Any] = {
    "grid": {"synthetic": "windy", "days": 10},
    "workload": {"scenario": "nightly"},
}
# Tables of an experiment with a key in them that nothing knows.
REFUSED: dict[str, dict[str, Any]] = {
    "": NONSENSE,
    "[full]": {"full": NONSENSE},
    "[without_data]": {"without_data": NONSENSE},
    "[grid]": {"grid": {"synthetic": "windy"} | NONSENSE},
    "[workload]": {"workload": {"scenario": "nightly"} | NONSENSE},
    "[workload] of a trace": {"workload": {"trace": "t.csv", "power_w_per_cpu": 10} | NONSENSE},
    "[cluster]": {"cluster": CLUSTER | NONSENSE},
    "[run]": {"run": NONSENSE},
    "[report]": {"report": NONSENSE},
    "[[report.figures]]": {"report": {"figures": [NONSENSE]}},
}
# Tables in which one key says what the others may be.
CHOOSING = {
    "policy": "name",
    "queue": "name",
    "forecast": "kind",
    "workload.arrivals": "kind",
    "workload.lengths": "kind",
    "workload.jobs": "kind",
}


def known(document: dict[str, Any]) -> str:
    """Return what an experiment is told to be known where it says something that is not."""
    with pytest.raises(LowtideError, match="known are") as refused:
        experiment = Experiment.from_dict(EXPERIMENT | document)
        check_runs(experiment.runs(), experiment)
    return str(refused.value).partition("known are ")[2]


def choosing(place: str, table: dict[str, Any]) -> dict[str, Any]:
    section, _, part = place.partition(".")
    cluster = {"cluster": CLUSTER} if section == "queue" else {}
    inner = EXPERIMENT[section] | {part: table} if part else table
    return {section: inner, **cluster}


def known_keys() -> Iterator[str]:
    """Yield each table of an experiment with the keys that it knows."""
    for title, document in REFUSED.items():
        yield f"{title}: {known(document)}"
    for place, key in CHOOSING.items():
        kinds = known(choosing(place, {key: "nonsense"}))
        yield f"[{place}] {key}: {kinds}"
        for kind in kinds.split(", "):
            yield f"[{place}] {key} = {kind}: {known(choosing(place, {key: kind} | NONSENSE))}"


def test_every_key_of_an_experiment_is_known_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("arrival_time,length,cpus\n0,3600,4\n")
    assert_as_kept("experiment.txt", "\n".join(known_keys()) + "\n")


def test_files_are_written_with_the_keys_of_before(tmp_path: Path) -> None:
    sample_profile("h200").dump(tmp_path / "profile.toml")
    assert_as_kept("files/profile.toml", (tmp_path / "profile.toml").read_text())
    everything = PowerProfile(
        startup=[Phase(name="load", duration_s=20, power_w=90)],
        restart=[Phase(name="load", duration_s=12, power_w=95)],
        work=[
            Phase(name="train", duration_s=30, power_w=300),
            Phase(name="save", duration_s=5, power_w=120, checkpoint=True),
        ],
        stop=[Phase(name="stop", duration_s=3, power_w=80)],
        suspended_power_w=40.0,
        spread=Spread(level=0.9, runs=4, duration=(0.95, 1.1), energy=(0.97, 1.03)),
    )
    everything.dump(tmp_path / "everything.toml", about="All that a profile can say.")
    assert_as_kept("files/whole_profile.toml", (tmp_path / "everything.toml").read_text())
    assert PowerProfile.load(tmp_path / "everything.toml") == everything
    learn_from(Recorded([sample_recording("h200")]), Library(tmp_path / "library"))
    (kept,) = (tmp_path / "library").glob("*.toml")
    keys = sorted(set(paths_of(tomllib.loads(kept.read_text()))))
    assert_as_kept("files/library_entry.txt", "\n".join(keys) + "\n")
    loads = {"cpu": (0.0, 100.0), "disk": (0.0, 50.0)}
    make_plan("latin", loads, duration="20s", step="1s").dump(tmp_path / "plan.toml")
    assert_as_kept("files/stress_plan.toml", (tmp_path / "plan.toml").read_text())


def signatures(name: str, thing: Any) -> Iterator[str]:
    """Yield how a public name is called, and its methods and attributes are."""
    if not callable(thing):
        yield name
        return
    if not (inspect.isclass(thing) and issubclass(thing, BaseException)):
        yield f"{name}{inspect.signature(thing)}"
    if inspect.isclass(thing):
        for attribute, value in sorted(vars(thing).items()):
            if attribute.startswith("_"):
                continue
            function = getattr(value, "__func__", value)
            said = str(inspect.signature(function)) if inspect.isfunction(function) else ""
            yield f"{name}.{attribute}{said}"


def test_public_names_are_called_as_before() -> None:
    lines = [line for name in lowtide.__all__ for line in signatures(name, getattr(lowtide, name))]
    # Where a default is a function, its address says nothing.
    assert_as_kept("python.txt", re.sub(r" at 0x\w+>", ">", "\n".join(lines)) + "\n")


def test_the_plug_in_groups_have_the_names_of_before() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        f"{group}: {' '.join(sorted(names))}"
        for group, names in sorted(project["entry-points"].items())
    ]
    extras = " ".join(sorted(project["optional-dependencies"]))
    assert_as_kept("plug_ins.txt", "\n".join([*lines, f"extras: {extras}"]) + "\n")


def test_metrics_have_the_names_types_and_labels_of_before() -> None:
    page = Exposition(
        compat=COMPATIBLE,
        zone="DE",
        rapl=[("package", "/sys/rapl:0", 11.0), ("dram", "/sys/rapl:0:0", 3.0)],
    ).render(tick_of_everything(), own=own_use())
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page.whole.decode(), re.M))
    labels: dict[str, set[str]] = {}
    for name, said in re.findall(r"^([a-z]\w*)(?:\{(.*)\})? ", page.whole.decode(), re.M):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', said))
    lines = [
        f"{name} {kinds.get(name, '')} {{{', '.join(sorted(told))}}}"
        for name, told in sorted(labels.items())
    ]
    assert_as_kept("metrics.txt", "\n".join(lines) + "\n")


def test_a_store_that_was_kept_tells_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store was written once by `write_store` and is never to be written anew."""
    path = tmp_path / "store.sqlite"
    kept = FOLDER / "store.sql"
    connection = sqlite3.connect(path)
    connection.executescript(kept.read_text(encoding="utf-8"))
    connection.close()
    span = ("-S", "2024-07-01", "-E", "2024-07-31")
    for name, words in {
        "jobs": ("jobs", *span),
        "usage": ("usage", *span, "--by", "user"),
        "hours": ("usage", *span, "--by", "hour"),
        "show": ("show", "4711"),
    }.items():
        answer = run(capsys, *words, "--store", str(path), "--json")
        assert (answer.code, answer.err) == (0, "")
        assert_as_kept(f"store/{name}.json", answer.out)
    with Store.open(path, readonly=True) as store:
        assert store.check().is_sound


def test_a_new_store_has_the_tables_of_before(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    write_store(path, start=START)
    connection = sqlite3.connect(path)
    lines = [
        sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master ORDER BY name") if sql
    ]
    connection.close()
    assert_as_kept("store/tables.sql", "\n".join(lines) + "\n")
