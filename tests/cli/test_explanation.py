"""What `lowtide plan` says beyond the plan: why it is so, and what is proven of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.formats import write_signal
from support.commands import run

JOB = ("plan", "-t", "2:00:00", "--power", "500", "--deadline", "+24h", "--grid", "windy")


def test_an_explanation_has_no_columns(capsys: pytest.CaptureFixture[str]) -> None:
    refused = run(capsys, *JOB, "--explain", "-P")
    assert refused.code == 2
    assert "use --json" in refused.err
    answer = json.loads(run(capsys, *JOB, "--explain", "--json").out)
    assert answer["explanation"]["total"] == pytest.approx(
        min(plan["footprint"]["carbon_g"] for plan in answer["plans"])
    )


@pytest.mark.parametrize("policy", ["dtpr", "wait_awhile"])
def test_constant_power_has_no_phases_to_know(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*JOB, "--interruptible", "anywhere", "--policy", policy, "--explain")
    assert "Knowing the phases is worth 0 g (0.0 %)" in run(capsys, *words).out


def test_what_is_proven_is_told_in_money_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    price = lt.synthetic_grid("windy", start="2024-07-01T00:00Z", days=2, seed=1).price
    write_signal(price, tmp_path / "price.csv")
    profile = lt.PowerProfile(
        work=[
            lt.Phase(name="load", duration_s=1301.3, power_w=80),
            lt.Phase(name="run", duration_s=38_300.4, power_w=500),
        ],
    )
    profile.dump(tmp_path / "profile.toml")
    words = ("plan", "--profile", "profile.toml", "--interruptible", "anywhere")
    words = (*words, "--deadline", "+23:11:07.3", "--signal", "price.csv", "--now", "start")
    assert "no schedule at all costs less than" in run(capsys, *words).out
    plan = json.loads(run(capsys, *words, "--json").out)["plans"][-1]
    assert plan["lower_bound"] == pytest.approx(plan["footprint"]["cost"])
    assert plan["resolution_gap"] > 0
    assert plan["lower_bound_g"] is plan["resolution_gap_g"] is None


def test_an_unknown_gap_is_said_to_be_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = lt.PowerProfile(
        startup=[lt.Phase(name="import", duration_s="1h", power_w=80)],
        work=[lt.Phase(name="run", duration_s="2h", power_w=600)],
        suspended_power_w=120,
    )
    profile.dump(tmp_path / "job.toml")
    answer = run(
        capsys,
        *("plan", "--profile", str(tmp_path / "job.toml"), "--deadline", "+24h"),
        *("--grid", "windy", "--interruptible", "anywhere", "--now", "2024-07-02T18:00Z"),
    )
    assert "What other moments would gain is not known" in answer.out


def test_whoever_waits_for_a_plan_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    @contextmanager
    def waiting(what: str) -> Iterator[None]:
        told.append(what)
        yield

    for verb in ("plan", "when"):
        monkeypatch.setattr(import_module(f"lowtide.cli.{verb}"), "waiting", waiting)
    job = ("-t", "2:00:00", "--deadline", "+12h", "--grid", "windy")
    assert run(capsys, "plan", *job, "--power", "100", "--explain").code == 0
    assert run(capsys, "when", *job, "--tradeoff").code == 0
    assert told == ["planning", "planning for every finish"]
