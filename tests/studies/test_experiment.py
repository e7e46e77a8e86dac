"""An experiment file: which runs it describes, and what it is told when it makes no sense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import FileProblem, FormatError, InvalidInput, UnknownName
from lowtide.studies.experiment import Experiment, input_files
from lowtide.studies.settings import flatten

BASE = """
title = "A test"
question = "Does it work?"

[grid]
synthetic = "windy"

[workload]
wait = "24h"
lengths = { kind = "constant", length = "2h" }

[run]
seed = 1
"""


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWTIDE_DATA", raising=False)


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    """A folder of data with two zones."""
    (tmp_path / "data" / "carbon").mkdir(parents=True)
    for zone, value in (("DE", 300), ("FR", 50)):
        text = f"datetime,carbon_intensity_g_per_kwh\n2024-07-01T00:00:00Z,{value}\n"
        (tmp_path / "data" / "carbon" / f"{zone}.csv").write_text(text)
    return tmp_path / "data"


def write(folder: Path, text: str) -> Path:
    path = folder / "exp.toml"
    path.write_text(text)
    return path


def varied(experiment: Experiment) -> list[tuple[Any, ...]]:
    return [tuple(run.varied.values()) for run in experiment.runs()]


def test_one_run_without_a_sweep(tmp_path: Path) -> None:
    experiment = Experiment.load(write(tmp_path, BASE))
    (run,) = experiment.runs()
    assert (len(experiment), experiment.title, experiment.question) == (
        1,
        "A test",
        "Does it work?",
    )
    assert run.parameters["workload"]["lengths"] == {"kind": "constant", "length": "2h"}
    assert run.parameters["policy"] == {}
    assert run.varied == {}


def test_the_last_key_changes_fastest(tmp_path: Path) -> None:
    sweep = '[sweep]\n"policy.name" = ["exact", "run_now"]\n"run.seed" = [3, 1, 2]\n'
    experiment = Experiment.load(write(tmp_path, BASE + sweep))
    assert len(experiment) == 6
    assert varied(experiment) == [
        *[("exact", seed) for seed in (3, 1, 2)],
        *[("run_now", seed) for seed in (3, 1, 2)],
    ]
    assert [run.parameters["run"]["seed"] for run in experiment.runs()] == [3, 1, 2, 3, 1, 2]


def test_keys_with_and_without_quotes_are_alike(tmp_path: Path) -> None:
    quoted = BASE + '[sweep]\n"policy.name" = ["exact", "run_now"]\n"workload.wait" = ["1h", "2h"]'
    plain = BASE + '[sweep]\npolicy.name = ["exact", "run_now"]\nworkload.wait = ["1h", "2h"]'
    runs = [list(Experiment.load(write(tmp_path, text)).runs()) for text in (quoted, plain)]
    assert [run.id for run in runs[0]] == [run.id for run in runs[1]]


def test_cases_set_several_parameters_together(tmp_path: Path) -> None:
    text = """
[sweep]
"run.seed" = [1, 2]
[[cases]]
policy.name = "exact"
[[cases]]
policy = { name = "threshold", quantile = 0.2 }
"workload.lengths" = { kind = "lognormal", median = "1h" }
"""
    experiment = Experiment.load(write(tmp_path, BASE + text))
    runs = list(experiment.runs())
    assert [(run.parameters["policy"], run.parameters["run"]["seed"]) for run in runs] == [
        ({"name": "exact"}, 1),
        ({"name": "exact"}, 2),
        ({"name": "threshold", "quantile": 0.2}, 1),
        ({"name": "threshold", "quantile": 0.2}, 2),
    ]
    # A table below a key in quotes replaces what was there.
    assert runs[2].parameters["workload"]["lengths"] == {"kind": "lognormal", "median": "1h"}
    assert runs[0].parameters["workload"]["lengths"] == {"kind": "constant", "length": "2h"}
    assert experiment.varied["policy.quantile"] == [None, 0.2]
    assert len({run.id for run in runs}) == 4


def test_settings_go_over_all(tmp_path: Path) -> None:
    text = """
[sweep]
policy.name = ["exact", "run_now"]
[[cases]]
workload.wait = "1h"
run.seed = 1
[[cases]]
workload.wait = "1h"
run.seed = 2
"""
    path = write(tmp_path, BASE + text)
    one = Experiment.load(path, settings={"policy.name": "oracle"})
    assert len(one) == 2
    assert {run.parameters["policy"]["name"] for run in one.runs()} == {"oracle"}
    # Cases that no longer differ are one.
    assert len(Experiment.load(path, settings={"policy.name": "oracle", "run.seed": 7})) == 1
    table = Experiment.load(path, settings={"workload.lengths": {"kind": "constant"}})
    assert next(table.runs()).parameters["workload"]["lengths"] == {"kind": "constant"}


def test_setting_a_grid_sets_the_other_kinds_aside(tmp_path: Path, zones: Path) -> None:
    text = '[grid]\nzone = "DE"\n[sweep]\npolicy.name = ["a", "b"]'
    experiment = Experiment.load(
        write(tmp_path, text), data=zones, settings={"grid.synthetic": "sunny"}
    )
    assert [run.parameters["grid"] for run in experiment.runs()] == [{"synthetic": "sunny"}] * 2
    swept = '[sweep]\ngrid.zone = ["DE", "FR"]'
    experiment = Experiment.load(
        write(tmp_path, swept), data=zones, settings={"grid.synthetic": "sunny"}
    )
    assert len(experiment) == 1


@pytest.mark.parametrize("zone", ["../../etc", "../carbon/DE", "XX", "", "de"])
def test_a_zone_is_a_name_of_the_folder_and_no_way_out_of_it(
    tmp_path: Path, zones: Path, zone: str
) -> None:
    experiment = Experiment.load(write(tmp_path, f'[grid]\nzone = "{zone}"\n'), data=zones)
    with pytest.raises(UnknownName, match=r"known are DE, "):
        next(experiment.runs())


def test_full_is_laid_over(tmp_path: Path) -> None:
    text = """
[sweep]
run.seed = [1, 2]
[full]
title = "All of it"
workload.wait = "48h"
[full.sweep]
run.seed = [1, 2, 3, 4]
"policy.name" = ["exact", "run_now"]
"""
    path = write(tmp_path, BASE + text)
    assert len(Experiment.load(path)) == 2
    full = Experiment.load(path, full=True)
    assert (len(full), full.title, full.full) == (8, "All of it", True)
    assert next(full.runs()).parameters["workload"]["wait"] == "48h"
    assert next(full.runs()).parameters["workload"]["lengths"]["length"] == "2h"
    with pytest.raises(FormatError, match="there is no \\[full\\]"):
        Experiment.load(write(tmp_path, BASE), full=True)


def test_without_data_is_laid_over_last(tmp_path: Path, zones: Path) -> None:
    text = """
[grid]
start = 2024-07-01T00:00:00Z
[sweep]
grid.zone = ["DE", "FR"]
[full.sweep]
grid.zone = ["DE", "FR", "PL"]
run.seed = [1, 2, 3]
[without_data.sweep]
grid.zone = false
grid.synthetic = ["windy", "sunny"]
"""
    path = write(tmp_path, text)
    real = Experiment.load(path, data=zones)
    assert list(real.varied) == ["grid.zone"]
    made_up = Experiment.load(path, full=True)
    assert made_up.varied == {"run.seed": [1, 2, 3], "grid.synthetic": ["windy", "sunny"]}
    run = next(real.runs())
    # A date without quotes is a text as well.
    assert run.shown["grid"] == {"start": "2024-07-01T00:00:00+00:00", "zone": "DE"}
    assert run.parameters["grid"]["file"] == str((zones / "carbon" / "DE.csv").resolve())


def test_false_takes_out_what_is_not_a_truth_value_itself(tmp_path: Path) -> None:
    text = '[grid]\nzone = "DE"\n[policy]\nknows_phases = true\n'
    text += '[without_data.grid]\nzone = false\nsynthetic = "coal"\n'
    text += "[without_data.policy]\nknows_phases = false\n"
    run = next(Experiment.load(write(tmp_path, text)).runs())
    assert run.parameters["grid"] == {"synthetic": "coal"}
    assert run.parameters["policy"] == {"knows_phases": False}


def test_ids_follow_parameters_and_content_not_places(tmp_path: Path, zones: Path) -> None:
    text = '[grid]\nzone = "DE"\n[workload]\ntrace = "jobs.csv"\n'
    ids = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "jobs.csv").write_text("arrival_time,length,cpus\n0,3600,1\n")
        ids.append(next(Experiment.load(write(folder, text), data=zones).runs()).id)
    assert ids[0] == ids[1]
    (tmp_path / "there" / "jobs.csv").write_text("arrival_time,length,cpus\n0,7200,1\n")
    changed = next(Experiment.load(tmp_path / "there" / "exp.toml", data=zones).runs())
    assert changed.id != ids[0]
    assert {path.name for path in input_files(changed.parameters)} == {"DE.csv", "jobs.csv"}
    other = Experiment.load(tmp_path / "here" / "exp.toml", data=zones, settings={"run.seed": 9})
    assert next(other.runs()).id != ids[0]


def test_ids_stay_from_release_to_release(tmp_path: Path) -> None:
    # Runs of an earlier version must be found again: a change here makes everybody start anew.
    assert next(Experiment.load(write(tmp_path, BASE)).runs()).id == "2388b548f228c33c"


def test_what_is_written_down_names_no_machine(tmp_path: Path) -> None:
    for name in ("jobs.csv", "lengths.csv"):
        (tmp_path / name).write_text("arrival_time,length,cpus\n0,3600,1\n")
    (tmp_path / "md.toml").write_text("")
    document = {
        "grid": {"file": str(tmp_path / "jobs.csv")},
        "workload": {
            "lengths": {"kind": "from_trace", "trace": str(tmp_path / "lengths.csv")},
            "jobs": {"kind": "profile", "profile": "md.toml"},
            "profiles": {"sample": "h200", "own": str(tmp_path / "md.toml")},
        },
    }
    run = next(Experiment.from_dict(document, folder=tmp_path).runs())
    assert str(tmp_path) not in json.dumps(run.shown)
    assert run.parameters["workload"]["profiles"]["sample"] == "h200"
    assert {path.name for path in run.inputs} == {"jobs.csv", "lengths.csv", "md.toml"}
    assert all(len(digest) == 64 for digest in run.inputs.values())


def test_a_report_takes_what_figures_are_made_of() -> None:
    figure = {"x": "policy", "color": "workload.lengths.kind", "where": {"run": {"seed": [1]}}}
    sweep = {"run.seed": [1, 2], "workload.lengths": [{"kind": "constant"}]}
    Experiment.from_dict({"sweep": sweep, "report": {"figures": [figure]}})
    for wrong in ({"where": {"run.sed": 1}}, {"facet": "workload.lengths"}):
        with pytest.raises(UnknownName, match="did you mean"):
            Experiment.from_dict({"sweep": sweep, "report": {"figures": [figure | wrong]}})


def test_jobs_of_several_kinds_name_files_as_well(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("arrival_time,length,cpus\n0,3600,1\n")
    (tmp_path / "md.toml").write_text("")
    jobs = [
        {"kind": "profile", "profile": "md.toml"},
        {"kind": "constant", "lengths": {"kind": "from_trace", "trace": "lengths.csv"}},
    ]
    run = next(Experiment.from_dict({"workload": {"jobs": jobs}}, folder=tmp_path).runs())
    assert {path.name for path in run.inputs} == {"md.toml", "lengths.csv"}


def test_flatten_names_every_leaf() -> None:
    assert flatten({"a": {"b": {"c": [1, 2]}, "d": None}, "e": {}}) == {
        "a.b.c": [1, 2],
        "a.d": None,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[grdi]\n", "unknown key of an experiment 'grdi' (did you mean 'grid'?)"),
        ('[grid]\nsyntetic = "windy"', "(did you mean 'synthetic'?)"),
        ("[run]\nseeds = 1", "unknown key of [run] 'seeds' (did you mean 'seed'?)"),
        ("[sweep]\nrun.sed = [1]", "did you mean 'seed'?"),
        ('[sweep]\n"polic.name" = ["a"]', "unknown section 'polic' (did you mean 'policy'?)"),
        ("[sweep]\nseed = [1]", "unknown section 'seed'"),
        ("[sweep]\npolicy = [1]", "named by section and key, such as policy.name, not 'policy'"),
        ("[sweep]\nrun.seed = 1", "a list of at least one value, not 1"),
        ("[sweep]\nrun.seed = []", "a list of at least one value, not []"),
        ("[sweep]\nrun.seed = [1, 2, 1]", "run.seed has a value twice"),
        ("[sweep]\nrun.seed = [1]\n[[cases]]\nrun.seed = 2", "both in [sweep] and in [[cases]]"),
        ("[[cases]]\nrun.sed = 2", "did you mean 'seed'?"),
        ("cases = 3", "[[cases]] are tables"),
        ("grid = 3", "[grid] is a table"),
        ("sweep = 3", "[sweep] is a table"),
        ("[full.swep]\nrun.seed = [1]", "unknown key of [full] 'swep' (did you mean 'sweep'?)"),
        ("[without_data.gird]\n", "unknown key of [without_data] 'gird' (did you mean 'grid'?)"),
        ("[grid\n", "not valid TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_told_why(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(FormatError) as caught:
        list(Experiment.load(path).runs())
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_what_comes_from_outside_is_not_the_files_fault(tmp_path: Path) -> None:
    path = write(tmp_path, BASE)
    with pytest.raises(UnknownName, match="did you mean 'seed'") as caught:
        Experiment.load(path, settings={"run.sed": 1})
    assert "exp.toml" not in str(caught.value)
    with pytest.raises(FileProblem, match="has no folder carbon"):
        Experiment.load(path, data=tmp_path)
    with pytest.raises(FileProblem, match="no such file"):
        Experiment.load(tmp_path / "nowhere.toml")


def test_runs_that_name_what_is_not_there(tmp_path: Path, zones: Path) -> None:
    def runs(text: str, **arguments: Any) -> None:
        list(Experiment.load(write(tmp_path, text), **arguments).runs())

    with pytest.raises(InvalidInput, match="--data DIR or LOWTIDE_DATA"):
        runs('[grid]\nzone = "DE"')
    with pytest.raises(UnknownName, match="known are DE, FR"):
        runs('[grid]\nzone = "D"', data=zones)
    with pytest.raises(InvalidInput, match=r"'no\.csv' is neither beside the experiment nor"):
        runs('[grid]\nfile = "no.csv"')
    with pytest.raises(InvalidInput, match=r"say one of grid\.zone and grid\.synthetic"):
        runs('[grid]\nzone = "DE"\nsynthetic = "coal"', data=zones)
    with pytest.raises(InvalidInput, match="wait is a value of its own, and has no long"):
        runs(BASE + '[sweep]\nworkload.wait.long = ["1h"]')


def test_the_folder_of_data_is_taken_from_the_environment(
    tmp_path: Path, zones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, '[grid]\nzone = "FR"')
    monkeypatch.setenv("LOWTIDE_DATA", str(zones))
    assert next(Experiment.load(path).runs()).parameters["grid"]["file"].endswith("FR.csv")
    # One that is not there is as good as none: the Makefile names one in any case.
    monkeypatch.setenv("LOWTIDE_DATA", str(tmp_path / "nowhere"))
    assert Experiment.load(path).data is None


def test_a_queue_may_be_called_as_simulate_calls_it() -> None:
    machines = {"cluster": {"nodes": 1, "cpus_per_node": 4}, "grid": {"synthetic": "windy"}}
    both = [
        Experiment.from_dict({**machines, **document}, settings=settings)
        for document, settings in (
            ({"queue": {"discipline": "easy"}}, None),
            ({"queue": {"name": "easy"}}, None),
            ({"queue": {"name": "fifo"}}, {"queue.discipline": "easy"}),
            ({"sweep": {"queue.discipline": ["easy"]}}, None),
            ({"sweep": {"queue": {"discipline": ["easy"]}}}, None),
            ({"cases": [{"queue": {"discipline": "easy"}}]}, None),
        )
    ]
    runs = [next(experiment.runs()) for experiment in both]
    assert all(run.shown["queue"] == {"name": "easy"} for run in runs)
    assert len({run.id for run in runs}) == 1


def test_a_sweep_without_sites_loads_nothing_of_the_market():
    code = "import lowtide.studies.run, sys; print([m for m in sys.modules if 'market' in m])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
