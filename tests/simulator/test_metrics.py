"""Numbers of a run that the field asks for, each against a sum by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.errors import InvalidInput, NotCovered, UnknownName
from lowtide.grid import Grid
from lowtide.signal import Signal
from lowtide.simulator import Cluster, Simulation
from lowtide.studies.experiment import Experiment
from lowtide.studies.policies import tradeoffs_figure
from lowtide.studies.run import check_runs, run_row
from lowtide.studies.study import read_study
from support.commands import run
from support.nightly import drawn

HOUR = 3600.0


def curve(values: Any, kind: str = "average") -> Signal:
    unit = "EUR/kWh" if kind == "price" else "g/kWh"
    return Signal.from_values(values, start=0, step_s="1h", kind=kind, unit=unit)


def simulated(seed: int, **more: Any) -> Simulation:
    rng = np.random.default_rng(seed)
    count = 60
    arrival = np.sort(rng.uniform(0, 30 * HOUR, count))
    work_s = rng.choice([2.0, 900.0, 5000.0, 20_000.0], count)
    jobs = lt.Workload(
        arrival=arrival,
        deadline=arrival + work_s + rng.uniform(0, 6 * HOUR, count),
        work_s=work_s,
        power=rng.uniform(50, 500, count),
        cpus=rng.integers(1, 5, count),
        user=np.array([f"u{each}" for each in rng.integers(0, 5, count)], dtype=object),
    )
    grid = Grid(
        average=curve(rng.uniform(50, 500, 24 * 20)),
        marginal=curve(rng.uniform(50, 900, 24 * 20), "marginal"),
        price=curve(rng.uniform(0.01, 0.4, 24 * 20), "price"),
    )
    cluster = Cluster(nodes=3, cpus_per_node=4, idle_power_w=40, pue=1.3)
    return lt.simulate(jobs, grid, cluster=cluster, **({"policy": "oracle"} | more))


@pytest.mark.parametrize("seed", range(drawn(4, 100)))
def test_numbers_of_a_run(seed: int) -> None:
    done = simulated(seed)
    jobs, end = done.jobs, done.tally.end
    told = done.summary()
    waits, slowdowns, late = [], [], []
    for row in range(len(jobs)):
        waits.append(max(end[row] - jobs.arrival[row] - jobs.work_s[row], 0.0))
        slowdowns.append(max((end[row] - jobs.arrival[row]) / max(jobs.work_s[row], 10.0), 1.0))
        late.append(max(end[row] - jobs.deadline[row], 0.0))
    assert told["p99_wait_s"] == pytest.approx(np.percentile(waits, 99), abs=1e-5)
    assert told["mean_slowdown"] == pytest.approx(np.mean(slowdowns))
    assert told["deadline_misses"] == sum(each > 1e-6 for each in late)
    assert told["missed_share"] == pytest.approx(told["deadline_misses"] / len(jobs))
    assert told["max_late_s"] == pytest.approx(max(late))
    # Misses come first: before all that is saved.
    assert list(told).index("deadline_misses") < list(told).index("carbon_g")
    delay_s = np.mean(end - jobs.arrival)
    assert told["energy_delay_js"] == pytest.approx(told["total_energy_j"] * delay_s)
    users: dict[str, list[int]] = {}
    for row, name in enumerate(jobs.user):
        users.setdefault(name, []).append(row)
    means = [np.mean([slowdowns[row] for row in rows]) for rows in users.values()]
    assert told["users"] == len(users)
    assert told["fairness"] == pytest.approx(
        sum(means) ** 2 / len(means) / np.sum(np.square(means))
    )
    assert 1 / len(users) <= told["fairness"] <= 1
    for each in done.by_user():
        rows = users[each["user"]]
        assert each["jobs"] == len(rows)
        assert each["carbon_g"] == pytest.approx(done.tally.carbon_g[rows].sum())
        assert each["mean_slowdown"] == pytest.approx(np.mean([slowdowns[row] for row in rows]))
    worse = sum(
        done.tally.carbon_g[rows].sum() > done.baseline.carbon_g[rows].sum() * (1 + 1e-9)
        for rows in users.values()
    )
    assert told["users_worse_off"] == worse


@pytest.mark.parametrize("seed", range(drawn(3, 50)))
def test_the_timeline_adds_up(seed: int) -> None:
    done = simulated(seed)
    told, line = done.summary(), done.timeline()
    assert line["cumulative_carbon_g"][-1] == pytest.approx(told["total_carbon_g"])
    assert np.all(np.diff(line["cumulative_carbon_g"].to_numpy()) >= 0)
    hours = line.height
    assert line["power_w"].sum() * HOUR == pytest.approx(told["total_energy_j"])
    # CPUs, second by second.
    begin, end = done.runs
    first = line["time"][0].timestamp()
    for place in np.random.default_rng(seed).integers(0, hours, 12).tolist():
        since, until = first + HOUR * place, first + HOUR * (place + 1)
        overlap = np.clip(np.minimum(end, until) - np.maximum(begin, since), 0, None)
        cpus = (overlap * done.jobs.cpus[done.stretches.job]).sum() / HOUR
        assert line["cpus"][place] == pytest.approx(cpus)
        assert line["utilisation"][place] == pytest.approx(cpus / 12)


def test_users_that_nobody_knows() -> None:
    jobs = lt.Workload(arrival=[0, 0], deadline=1e5, work_s=60)
    told = lt.simulate(jobs, curve([1.0] * 40)).summary()
    assert (told["users"], told["fairness"], told["users_worse_off"]) == (None, None, None)


AVERAGE, MARGINAL, PRICE = [100, 200, 300, 400], [400, 100, 300, 200], [0.4, 0.3, 0.1, 0.2]


@pytest.mark.parametrize(
    ("decide", "hour"),
    [
        (None, 0),
        ("average", 0),
        ("marginal", 1),
        ("price", 2),
        ({"carbon": 1.0}, 0),
        ({"price": 1.0}, 2),
        # 100 + 0.4·w, 200 + 0.3·w, 300 + 0.1·w, 400 + 0.2·w: the third from w = 2000/3 on.
        ({"carbon": 1.0, "price": 660.0}, 0),
        ({"carbon": 1.0, "price": 670.0}, 2),
    ],
)
def test_decided_by_one_and_paid_in_all(decide: Any, hour: int) -> None:
    grid = Grid(
        average=curve(AVERAGE), marginal=curve(MARGINAL, "marginal"), price=curve(PRICE, "price")
    )
    jobs = lt.Workload(arrival=[0], deadline=4 * HOUR, work_s=HOUR, power=1000)
    told = lt.simulate(jobs, grid, policy="oracle", decide=decide).summary()
    assert told["carbon_g"] == pytest.approx(AVERAGE[hour])
    assert told["marginal_carbon_g"] == pytest.approx(MARGINAL[hour])
    assert told["cost"] == pytest.approx(PRICE[hour])
    assert told["saving"] == pytest.approx(1 - AVERAGE[hour] / AVERAGE[0])
    assert told["marginal_saving"] == pytest.approx(1 - MARGINAL[hour] / MARGINAL[0])
    assert told["cost_saving"] == pytest.approx(1 - PRICE[hour] / PRICE[0])
    assert ("decided_by" in told) == (decide is not None)


def test_what_cannot_be_decided_by() -> None:
    jobs = lt.Workload(arrival=[0], deadline=4 * HOUR, work_s=HOUR)
    with pytest.raises(InvalidInput, match="decided by price, and the grid says nothing of it"):
        lt.simulate(jobs, curve(AVERAGE), decide="price")
    with pytest.raises(UnknownName, match="did you mean 'price'"):
        lt.simulate(jobs, curve(AVERAGE), decide="prize")
    short = Grid(average=curve(AVERAGE), price=curve(PRICE[:2], "price"))
    with pytest.raises(NotCovered):
        lt.simulate(jobs, short, decide="price")


def experiment(folder: Path, **run: Any) -> Experiment:
    lines = ["datetime,{}"] + [f"2024-07-01T{hour:02}:00Z,{{}}" for hour in range(24)]
    for name, heading, values in (
        ("carbon.csv", "carbon_intensity_g_per_kwh", range(100, 124)),
        ("price.csv", "price_eur_per_mwh", range(60, 36, -1)),
    ):
        text = [line.format(each) for line, each in zip(lines, [heading, *values], strict=True)]
        (folder / name).write_text("\n".join(text) + "\n")
    return Experiment.from_dict(
        {
            "grid": {"file": "carbon.csv", "price": "price.csv"},
            "workload": {
                "duration": "1h",
                "wait": "10h",
                "lengths": "1h",
                "arrivals": {"kind": "periodic", "period": "1h"},
                "jobs": {"kind": "constant", "power_w": 1000},
            },
            "policy": {"name": "oracle"},
            "run": run,
        },
        folder=folder,
    )


def test_a_price_beside_the_carbon_of_a_file(tmp_path: Path) -> None:
    for said, carbon_g, cost in (({}, 100, 0.06), ({"decide": "price"}, 110, 0.05)):
        made = experiment(tmp_path, **said)
        runs = list(made.runs())
        check_runs(runs, made)
        row = run_row(runs[0].parameters)
        assert row["carbon_g"] == pytest.approx(carbon_g)
        assert row["cost"] == pytest.approx(cost)
        assert len(runs[0].inputs) == 2
    for said, message in (
        ({"decide": "prize"}, "did you mean 'price'"),
        ({"decide": "price", "weights": {"price": 1}}, "leave one out"),
        ({"weights": 3}, "run.weights is a table"),
    ):
        made = experiment(tmp_path, **said)
        with pytest.raises((InvalidInput, UnknownName), match=message):
            check_runs(made.runs(), made)


def test_the_verb_writes_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "exp.toml").write_text(
        '[grid]\nsynthetic = "windy"\ndays = 10\n[workload]\nscenario = "nightly"\n'
    )
    words = ["simulate", str(tmp_path / "exp.toml"), "--set", "run.decide=price"]
    table = tmp_path / "steps.csv"
    told = run(capsys, *words, "--time-table", str(table))
    assert (told.code, told.err) == (0, "")
    assert "missed deadlines" in told.out
    assert table.read_text().startswith("time,rate,cpus,queue,power_w,carbon_g,cumulative_carbon_g")
    document = json.loads(run(capsys, *words, "--json").out)
    assert document["decided_by"] == "price"
    assert document["by_user"][0]["user"] is None
    wrong = run(capsys, *words, "--time-table", "steps.txt")
    assert wrong.code == 2
    assert "a table is a .parquet or .csv file" in wrong.err


def test_the_front_by_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "exp.toml").write_text(
        '[grid]\nsynthetic = "windy"\ndays = 12\n[workload]\nscenario = "nightly"\n'
        '[policy]\nname = "oracle"\n[run]\nweights.carbon = 1\n'
        "[sweep]\nrun.weights.price = [0, 100, 1000, 10000, 1e6]\n"
    )
    told = run(capsys, "sweep", str(tmp_path / "exp.toml"), "-j", "1", "-o", str(tmp_path / "out"))
    assert told.code == 0
    study = read_study(tmp_path / "out")
    figure = tradeoffs_figure(study)
    assert figure is not None
    rows = figure.tables["rows"]
    assert len(rows) == 5
    kilos = {row["weight of price"]: row["carbon_g"] for row in rows}
    euros = {row["weight of price"]: row["cost"] for row in rows}
    # The more money counts, the less is paid, and the more emitted.
    order = sorted(kilos, key=float)
    assert all(kilos[a] <= kilos[b] + 1e-9 for a, b in pairwise(order))
    assert all(euros[a] >= euros[b] - 1e-9 for a, b in pairwise(order))
    assert kilos[order[0]] < kilos[order[-1]]
    keys = ("mean_wait_s", "carbon_g", "cost")
    slack = [1 / 60, *(0.005 * max(abs(row[key]) for row in rows) for key in keys[1:])]
    for one in rows:
        better = [[one[key] - other[key] for key in keys] for other in rows]
        beaten = any(
            any(gain > least for gain, least in zip(gains, slack, strict=True))
            and all(gain >= -least for gain, least in zip(gains, slack, strict=True))
            for gains in better
        )
        assert one["front"] == (not beaten)
