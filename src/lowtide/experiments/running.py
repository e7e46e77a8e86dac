"""One run of an experiment: from its parameters to a row of numbers.

Everything that crosses to another process or machine is plain: a mapping goes out, a mapping
comes back. Signals and workloads are kept for the next run that needs the same.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

from lowtide.errors import InvalidInput, UnknownName
from lowtide.experiments.experiment import Parameters
from lowtide.forecasting import ForecastModel, LeadScaled, Perfect, Persistence
from lowtide.formats import read_signal
from lowtide.grid import Grid
from lowtide.grids import GRID_NAMES, synthetic_grid
from lowtide.policies.blind import Blind
from lowtide.policies.forecasted import Forecasted
from lowtide.policies.policy import Policy, make_policy
from lowtide.policies.rolling import Rolling
from lowtide.signal import Signal
from lowtide.simulator import Cluster, Simulation, make_discipline, simulate
from lowtide.simulator.disciplines import Discipline
from lowtide.units import parse_duration, parse_time
from lowtide.workload import Workload
from lowtide.workloads import generate, read_spec

T = TypeVar("T")

_FORECASTS: dict[str, Callable[..., ForecastModel]] = {
    "perfect": Perfect,
    "lead_scaled": LeadScaled,
    "persistence": Persistence,
}
# These look at forecasts again and again, or at none: a single look at arrival is not theirs.
_LOOK_THEMSELVES = ("rolling", "advice", "dtpr")
_SYNTHETIC_ONLY = ("days", "step", "seed", "basis")


def simulate_run(
    parameters: Parameters, *, advance: Callable[[int], None] = lambda _: None
) -> Simulation:
    """Simulate one run.

    Args:
        parameters: The sections of the run, its files found.
        advance: Told how many jobs were decided, each time some were.
    """
    signal = _signal(_text(parameters["grid"]))
    run = parameters["run"]
    jobs = _workload(_text(parameters["workload"]), run.get("seed", 0), _begin(parameters, signal))
    return simulate(
        jobs,
        signal,
        policy=_policy(parameters),
        cluster=_cluster(parameters["cluster"]),
        discipline=_discipline(parameters["queue"]),
        baseline=_baseline(run),
        repeat_signal=bool(run.get("repeat_signal", False)),
        advance=advance,
    )


def run_row(parameters: Parameters) -> dict[str, Any]:
    """Return the numbers of one run.

    Args:
        parameters: The sections of the run, its files found.
    """
    simulation = simulate_run(parameters)
    signal = simulation.signal.average if isinstance(simulation.signal, Grid) else simulation.signal
    return {"synthetic": signal.synthetic, **simulation.summary()}


def check_runs(many: Iterable[Parameters]) -> None:
    """Refuse runs that could not even begin, before any is begun.

    Args:
        many: The sections of each run.
    """
    for parameters in many:
        for section in _CHECKS:
            of = ("policy", "forecast") if section == "policy" else (section,)
            _check(section, _text({name: parameters[name] for name in of}))


@lru_cache(maxsize=1024)
def _check(section: str, text: str) -> None:
    try:
        _CHECKS[section](json.loads(text))
    except TypeError as error:
        raise InvalidInput(f"[{section}] has a value of the wrong kind: {error}") from error


def _policy(parameters: Parameters) -> Policy:
    said = _in_units(parameters["policy"])
    name = said.pop("name", "run_now")
    blind = not said.pop("knows_phases", True)
    forecast = _in_units(parameters["forecast"])
    horizon_s = forecast.pop("horizon_s", None)
    models = _forecasts(forecast) if parameters["forecast"] else None
    if models is not None and name in _LOOK_THEMSELVES:
        if horizon_s is not None:
            raise InvalidInput(f"forecast.horizon_s is not for {name}: say forecast.reach_s")
        if name == "rolling":
            said.setdefault("forecasts", models)
        elif name == "advice":
            said.setdefault("rolling", Rolling(forecasts=models))
        models = None
    _, policy = make_policy(name, **said)
    if blind:
        policy = Blind(policy=policy)
    return policy if models is None else Forecasted(policy, models, horizon_s=horizon_s)


def _forecasts(said: Parameters) -> ForecastModel:
    kind = said.pop("kind", "lead_scaled")
    if kind not in _FORECASTS:
        raise UnknownName("kind of forecast", str(kind), _FORECASTS)
    return _made(_FORECASTS[kind], said, f"[forecast] of kind {kind}")


def _cluster(said: Parameters) -> Cluster | None:
    return _made(Cluster, _in_units(said), "[cluster]") if said else None


def _discipline(said: Parameters) -> Discipline:
    given = _in_units(said)
    return make_discipline(given.pop("name", "fifo"), **given)


def _baseline(run: Parameters) -> str | None:
    said = run.get("baseline", "run_now")
    if said is False:
        return None
    make_policy(said)
    return str(said)


def _check_grid(said: Parameters) -> None:
    synthetic = "synthetic" in said
    if not synthetic and "file" not in said:
        raise InvalidInput("say which grid: grid.synthetic, grid.zone or grid.file")
    if synthetic and said["synthetic"] not in GRID_NAMES:
        raise UnknownName("synthetic grid", str(said["synthetic"]), GRID_NAMES)
    for key in ("how",) if synthetic else _SYNTHETIC_ONLY:
        if key in said:
            raise InvalidInput(
                f"grid.{key} is for {'a file' if synthetic else 'synthetic grids'}: leave it out"
            )


def _check_workload(said: Parameters) -> None:
    if not said:
        raise InvalidInput("say which jobs: [workload] with arrivals and lengths, or a trace")
    read_spec(said)


_CHECKS: dict[str, Callable[[Parameters], object]] = {
    "grid": lambda sections: _check_grid(sections["grid"]),
    "workload": lambda sections: _check_workload(sections["workload"]),
    "policy": _policy,
    "cluster": lambda sections: _cluster(sections["cluster"]),
    "queue": lambda sections: _discipline(sections["queue"]),
    "run": lambda sections: _baseline(sections["run"]),
}


# Signals are small, and a sweep often changes the zone fastest; workloads may be large.
@lru_cache(maxsize=64)
def _signal(text: str) -> Signal | Grid:
    said = json.loads(text)
    _check_grid(said)
    if "file" in said:
        how = said.get("how", {})
        known = [name for name in inspect.signature(read_signal).parameters if name != "path"]
        for key in how:
            if key not in known:
                raise UnknownName("key of grid.how", key, known)
        return read_signal(said["file"], **how)
    return synthetic_grid(
        said["synthetic"],
        start=said.get("start", "2023-01-01T00:00Z"),
        days=said.get("days", 366),
        seed=said.get("seed", 0),
        step_s=said.get("step", "1h"),
        basis=said.get("basis", "lifecycle"),
    )


@lru_cache(maxsize=4)
def _workload(text: str, seed: int, begin: float) -> Workload:
    said = json.loads(text)
    _check_workload(said)
    return generate({"start": begin, **said}, seed=seed)


def _begin(parameters: Parameters, signal: Signal | Grid) -> float:
    """Return when the jobs begin: as the grid says, else with the signal."""
    start = parameters["grid"].get("start")
    known = signal.average if isinstance(signal, Grid) else signal
    return known.start if start is None else parse_time(start)


def _made(kind: Callable[..., T], said: Parameters, what: str) -> T:
    """Return what is made with parameters, each of which must be known and none missing."""
    known = inspect.signature(kind).parameters
    for key in said:
        if key not in known:
            raise UnknownName(f"key of {what}", key, known)
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in said:
            raise InvalidInput(f"{what} needs {key}")
    return kind(**said)


def _in_units(said: Parameters) -> Parameters:
    """Return parameters with durations given as texts in seconds."""
    return {
        key: parse_duration(value) if key.endswith("_s") and isinstance(value, str) else value
        for key, value in said.items()
    }


def _text(said: Parameters) -> str:
    return json.dumps(said, sort_keys=True)
