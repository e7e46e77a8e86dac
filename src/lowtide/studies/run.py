"""One run of an experiment: from its parameters to a row of numbers.

Everything that crosses to another process or machine is plain: a mapping goes out, a mapping
comes back. Signals and workloads are kept for the next run that needs the same.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from lowtide.errors import FormatError, InvalidInput, LowtideError, UnknownName, require_known
from lowtide.forecast import ForecastModel, LeadScaled, Perfect, Persistence
from lowtide.forecasting import Auto
from lowtide.formats import read_signal
from lowtide.grid import DECIDING, Grid, deciding_signal
from lowtide.grids import GRID_NAMES
from lowtide.grids.resolve import resolve
from lowtide.job import TIME_TOLERANCE_S
from lowtide.policies.policy import POLICIES, Policy, Scheduled, make_policy, stops_jobs
from lowtide.policies.rolling import looking_again
from lowtide.policies.wrappers import Blind, Forecasted, Purchasing
from lowtide.signal import Signal
from lowtide.simulator import Cluster, Simulation, make_discipline, simulate
from lowtide.simulator.disciplines import Discipline, discipline_kind
from lowtide.simulator.outages import Failures
from lowtide.simulator.simulation import OVERSIZED, QueuePolicy, refuse_stops
from lowtide.studies.chance import block_sums
from lowtide.studies.experiment import Experiment, StudyRun, WorkloadSection
from lowtide.studies.folder import BLOCKS, QUEUE_USED
from lowtide.studies.settings import Parameters
from lowtide.units import parse_duration, parse_time
from lowtide.workload import Workload
from lowtide.workloads import generate, read_spec

if TYPE_CHECKING:
    from lowtide.market import Site

T = TypeVar("T")

_FORECASTS: dict[str, Callable[..., ForecastModel]] = {
    "perfect": Perfect,
    "lead_scaled": LeadScaled,
    "persistence": Persistence,
    "auto": Auto,
}
# What is said of a cluster and minded by plans alone.
_PLANNED = ("power_cap",)
_SYNTHETIC_ONLY = ("days", "step", "seed", "basis")


def simulate_run(
    parameters: Parameters,
    *,
    advance: Callable[[int], None] = lambda _: None,
    begin: Callable[[int], None] = lambda _: None,
) -> Simulation:
    """Simulate one run.

    Args:
        advance: Told how many jobs were decided, each time some were.
    """
    if parameters.get("sites", {}):
        raise InvalidInput(
            "[sites] are planned, by `lowtide plan-cluster`, and not simulated: leave them out, "
            "and say [cluster] and [grid]"
        )
    _refuse_planned(parameters["cluster"])
    jobs, signal, cluster = inputs_of(parameters)
    run = parameters["run"]
    return simulate(
        jobs,
        signal,
        policy=_policy(parameters),
        cluster=cluster,
        discipline=_discipline(parameters),
        baseline=_baseline(run),
        repeat_signal=_truth(run, "run.repeat_signal", default=False),
        oversized=run.get("oversized", "refuse"),
        decide=deciding(run),
        advance=advance,
        begin=begin,
    )


def inputs_of(parameters: Parameters) -> tuple[Workload, Signal | Grid, Cluster | None]:
    """Return the jobs of a run, the signal, and the machines where there are only so many."""
    signal = _signal(_text(parameters["grid"]))
    seed = parameters["run"].get("seed", 0)
    jobs = _workload(_text(_powered(parameters)), seed, _begin(parameters, signal))
    # What sites have in common need not be a whole cluster.
    return jobs, signal, None if parameters.get("sites", {}) else _cluster(parameters["cluster"])


def sites_of(parameters: Parameters) -> dict[str, Site]:
    """Return the sites of a run; what one does not say is as [cluster] and [grid] have it."""
    # Who sweeps without sites needs nothing of the market.
    from lowtide.market import Site

    own = ("speed", "power", "transfer_s", "transfer")
    made = {}
    for name, said in parameters.get("sites", {}).items():
        if not isinstance(said, dict):
            raise InvalidInput(f"[sites.{name}] is a table of keys and values, not {said!r}")
        given = _in_units(said)
        grid = given.pop("grid", parameters["grid"])
        mine = {key: given.pop(key) for key in own if key in given}
        known = (*inspect.signature(Cluster).parameters, *own, "grid", "reserved")
        require_known(given, known, f"key of [sites.{name}]")
        cluster = _made(Cluster, _machines(parameters["cluster"] | given), f"[sites.{name}]")
        signal = deciding_signal(_signal(_text(grid)))
        made[name] = Site(cluster=cluster, signal=signal, **mine)
    return made


def planned_with(parameters: Parameters) -> dict[str, Any]:
    """Return what a queue is planned with that the simulator knows nothing of: a cap over time."""
    said = parameters["cluster"]
    found: dict[str, Any] = {}
    if "power_cap" in said:
        if "power_cap_w" in said:
            raise InvalidInput("cluster.power_cap and cluster.power_cap_w both cap: leave one out")
        found["power_cap"] = read_signal(said["power_cap"], kind="power")
    return found


def _refuse_planned(said: Parameters) -> None:
    """Refuse to simulate what only plans mind."""
    for key in _PLANNED:
        if key in said:
            raise InvalidInput(
                f"cluster.{key} is minded by `lowtide plan-cluster`, and not simulated under "
                "policies: leave it out"
            )


def run_row(parameters: Parameters) -> dict[str, Any]:
    """Return the numbers of one run."""
    simulation = simulate_run(parameters)
    signal = simulation.signal.average if isinstance(simulation.signal, Grid) else simulation.signal
    return {
        "synthetic": signal.synthetic,
        **assumptions(parameters),
        **queue_use(parameters, simulation),
        **simulation.summary(),
        **_missed_by_the_baseline(simulation),
        BLOCKS: block_sums(simulation),
    }


def queue_use(parameters: Parameters, simulation: Simulation) -> dict[str, bool]:
    """Return whether the queue that a run describes played a part; nothing where it has none.

    Who buys machines as jobs need them has no queue, and who plans it whole is asked nothing else.

    Args:
        simulation: What it came to.
    """
    return {QUEUE_USED: simulation.discipline is not None} if parameters["queue"] else {}


def _missed_by_the_baseline(simulation: Simulation) -> dict[str, int]:
    """Return how many deadlines the baseline missed: more than that is the policy's own doing."""
    if simulation.baseline is None:
        return {}
    due = simulation.jobs.deadline + TIME_TOLERANCE_S
    return {"baseline_deadline_misses": int((simulation.baseline.end > due).sum())}


def assumptions(parameters: Parameters) -> dict[str, float]:
    """Return what a run takes for granted that nobody said, by name.

    Where neither a trace nor a workload says what its jobs draw, they draw what nodes of the
    cluster draw more when they are busy: `assumed_power_w_per_cpu`.
    """
    cluster = parameters["cluster"]
    if cluster.get("peak_power_w") is None or WorkloadSection(parameters["workload"]).says_watts:
        return {}
    machines = _cluster({"nodes": 1, **cluster})
    return {} if machines is None else {"assumed_power_w_per_cpu": machines.power_w_per_cpu}


def check_runs(runs: Iterable[StudyRun], experiment: Experiment) -> None:
    """Refuse runs that could not even begin, before any is begun.

    Args:
        experiment: Whose they are: its file is named where it is at fault.
    """
    for run in runs:
        for section in _CHECKS:
            of = {name: run.parameters[name] for name in (section, *_TOGETHER.get(section, ()))}
            try:
                _check(section, _text(of))
            except (InvalidInput, UnknownName, TypeError) as error:
                wrong = isinstance(error, TypeError)
                said = f"a value is of the wrong kind: {error}" if wrong else str(error)
                where = "" if f"[{section}]" in said else f"[{section}]: "
                # What was set from outside is no fault of the file.
                outside = any(key.partition(".")[0] in of for key in experiment.settings)
                if experiment.path is None or outside:
                    raise InvalidInput(where + said) from error
                raise FormatError(where + said, path=experiment.path) from error


@lru_cache(maxsize=1024)
def _check(section: str, text: str) -> None:
    _CHECKS[section](json.loads(text))


def _policy(parameters: Parameters) -> Policy:
    said = _in_units(parameters["policy"])
    name = said.pop("name", None) or "run_now"
    blind = not _truth(said, "policy.knows_phases", default=True)
    said.pop("knows_phases", None)
    taken = inspect.signature(POLICIES.load(str(name))).parameters
    require_known(said, ("name", "knows_phases", *taken), f"key of [policy] for {name}")
    forecast = _in_units(parameters["forecast"])
    horizon_s = forecast.pop("horizon_s", None)
    models = _forecasts(forecast) if parameters["forecast"] else None
    if models is not None and (again := looking_again(str(name), models)) is not None:
        if horizon_s is not None:
            raise InvalidInput(f"forecast.horizon_s is not for {name}: say forecast.reach_s")
        said, models = again | said, None
    _, policy = make_policy(name, **said)

    if isinstance(policy, Scheduled | QueuePolicy):
        if blind or horizon_s is not None:
            key = "policy.knows_phases" if blind else "forecast.horizon_s"
            raise InvalidInput(f"{key} is not for {name}, which sees the queue: leave it out")
        if models is None:
            return policy
        if not hasattr(policy, "forecasts"):
            raise InvalidInput(f"{name} looks at no forecasts: leave [forecast] out")
        foreseeing: Policy = replace(policy, forecasts=models)
        return foreseeing

    def knowing_less(of: Policy) -> Policy:
        of = Blind(policy=of) if blind else of
        return of if models is None else Forecasted(of, models, horizon_s=horizon_s)

    if isinstance(policy, Purchasing) and (blind or models is not None):
        # Who buys machines leaves it to another to look at the grid.
        return replace(policy, start=knowing_less(policy.inner))
    return knowing_less(policy)


def _check_policy(parameters: Parameters) -> None:
    policy = _policy(parameters)
    if not parameters["cluster"]:
        if isinstance(policy, Scheduled):
            raise InvalidInput(
                f"{policy.label} decides who runs on which machines: add [cluster] with nodes and "
                "cpus_per_node"
            )
        return
    decider = policy.inner if isinstance(policy, Purchasing) else policy
    if stops_jobs(decider) and not isinstance(policy, QueuePolicy):
        # Which of them may be stopped hangs neither on the seed nor on when they come.
        jobs = _workload(_text(_powered(parameters)), 0, 0.0)
        refuse_stops(jobs, policy, _discipline(parameters))


def _check_cluster(sections: Parameters) -> None:
    planned_with(sections)
    if not sections.get("sites", {}):
        _cluster(sections["cluster"])


def _check_forecast(said: Parameters) -> None:
    given = _in_units(said)
    given.pop("horizon_s", None)
    if said:
        _forecasts(given)


def _forecasts(said: Parameters) -> ForecastModel:
    require_known(_misspelt(said, "kind"), ("kind",), "key of [forecast]")
    kind = said.pop("kind", "lead_scaled")
    if kind not in _FORECASTS:
        raise UnknownName("kind of forecast", str(kind), _FORECASTS)
    return _made(_FORECASTS[kind], said, f"[forecast] of kind {kind}")


def _cluster(said: Parameters) -> Cluster | None:
    said = {key: value for key, value in said.items() if key not in _PLANNED}
    return _made(Cluster, _machines(said), "[cluster]") if said else None


def _machines(said: Parameters) -> Parameters:
    """Return what a cluster is made with: nodes that come and go as `Cluster` takes them."""
    given = _in_units(said)
    if "reserved" in given:
        rows = given.pop("reserved")
        good = isinstance(rows, list) and all(isinstance(x, list) and len(x) == 3 for x in rows)
        if not good or not all(isinstance(x[2], int) and not isinstance(x[2], bool) for x in rows):
            raise InvalidInput(
                "cluster.reserved is a list of [begin, end, nodes], such as "
                f"[['2024-07-02T06:00Z', '2024-07-02T18:00Z', 2]], not {rows!r}"
            )
        given["away"] = [*given.get("away", ()), *rows]
    if "capacity" in given:
        given["capacity"] = read_signal(given["capacity"], kind="nodes")
    if "failures" in given:
        failures = given["failures"]
        if not isinstance(failures, dict):
            raise InvalidInput(
                "cluster.failures is a table, such as { every_s = '30d', repair_s = '4h' }, not "
                f"{failures!r}"
            )
        given["failures"] = _made(Failures, failures, "cluster.failures")
    return given


def _discipline(sections: Parameters) -> Discipline | None:
    if not sections["queue"]:
        return None
    given = _in_units(sections["queue"])
    name = given.pop("name", "fifo")
    taken = inspect.signature(discipline_kind(str(name))).parameters
    require_known(given, ("name", *taken), f"key of [queue] for {name}")
    made = make_discipline(name, **given)
    if not sections["cluster"]:
        said = ", ".join(f"{key} = {value!r}" for key, value in sections["queue"].items())
        raise InvalidInput(
            f"[queue] says how machines are shared ({said}), but there is no [cluster], and "
            "without one no job queues: add [cluster] with nodes and cpus_per_node, or leave "
            "[queue] out"
        )
    return made


def _baseline(run: Parameters) -> str | None:
    said = run.get("baseline", "run_now")
    if said is False:
        return None
    make_policy(said)
    return str(said)


def deciding(run: Parameters) -> str | Mapping[str, float] | None:
    """Return what jobs are decided by: a signal by name, or weights."""
    by, weights = run.get("decide"), run.get("weights")
    if by is not None and weights is not None:
        raise InvalidInput("run.decide and run.weights say the same: leave one out")
    if weights is not None and not isinstance(weights, dict):
        raise InvalidInput(f"run.weights is a table of carbon and price, not {weights!r}")
    if by is not None and by not in DECIDING:
        raise UnknownName("value of run.decide", str(by), DECIDING)
    return by if weights is None else weights


def _check_run(said: Parameters) -> None:
    _baseline(said)
    deciding(said)
    _truth(said, "run.repeat_signal", default=False)
    seed, oversized = said.get("seed", 0), said.get("oversized", "refuse")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"run.seed is a whole number from 0 up, not {seed!r}")
    if oversized not in OVERSIZED:
        raise UnknownName("value of run.oversized", str(oversized), OVERSIZED)


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


def _check_workload(sections: Parameters) -> None:
    said = sections["workload"]
    if not said:
        raise InvalidInput("say which jobs: [workload] with arrivals and lengths, or a trace")
    for key, table in said.items():
        for each in table if isinstance(table, list) else [table]:
            if key in ("arrivals", "lengths", "jobs") and isinstance(each, dict):
                require_known(_misspelt(each, "kind"), ("kind",), f"key of workload.{key}")
    cpus, gpus = said.get("cpus", 1), said.get("gpus", 0)
    if sections["cluster"] and not isinstance(said.get("jobs"), list) and cpus == gpus == 0:
        raise InvalidInput(
            "workload.cpus is 0, and a job that holds nothing waits for no machine: say at least "
            "1, or give it gpus"
        )
    _reworded(lambda: read_spec(_powered(sections)), _workload_words(said))


def _powered(parameters: Parameters) -> Parameters:
    """Return what is said of the jobs, with the watts that are taken for granted."""
    said: Parameters = parameters["workload"]
    watts = assumptions(parameters).get("assumed_power_w_per_cpu")
    return said if watts is None else WorkloadSection(said).with_watts(watts)


_CHECKS: dict[str, Callable[[Parameters], object]] = {
    "grid": lambda sections: _check_grid(sections["grid"]),
    "cluster": lambda sections: _check_cluster(sections),
    "workload": _check_workload,
    "forecast": lambda sections: _check_forecast(sections["forecast"]),
    "policy": _check_policy,
    "queue": _discipline,
    "run": lambda sections: _check_run(sections["run"]),
    "sites": sites_of,
}
# Sections that cannot be judged by themselves.
_TOGETHER = {
    "policy": ("forecast", "cluster", "workload", "queue"),
    "workload": ("cluster",),
    "queue": ("cluster",),
    "sites": ("cluster", "grid"),
    "cluster": ("sites",),
}


# Signals are small, and a sweep often changes the zone fastest; workloads may be large.
@lru_cache(maxsize=64)
def _signal(text: str) -> Signal | Grid:
    said = json.loads(text)
    _check_grid(said)
    how = said.get("how", {})
    known = [name for name in inspect.signature(read_signal).parameters if name != "path"]
    require_known(how, known, "key of grid.how")
    found = _reworded(
        lambda: (
            resolve(
                said.get("file") or said["synthetic"],
                kind="file" if "file" in said else "synthetic",
                how=how,
                since=said.get("start", "2023-01-01T00:00Z"),
                days=said.get("days", 366),
                seed=said.get("seed", 0),
                step_s=said.get("step", "1h"),
                basis=said.get("basis", "lifecycle"),
            ).grid
        ),
        dict.fromkeys(known, "grid.how."),
    )
    if not isinstance(found, Grid) and found.zone is None and "zone" in said:
        found = replace(found, zone=said["zone"])
    others = {
        kind: _reworded(
            lambda kind=kind: read_signal(said[kind], kind=kind),  # type: ignore[misc]
            dict.fromkeys(known, f"grid.{kind} "),
        )
        for kind in ("marginal", "price")
        if kind in said
    }
    if not others:
        return found
    if isinstance(found, Grid) or found.kind != "average":
        what = "has one already" if isinstance(found, Grid) else f"is itself a {found.kind}"
        raise InvalidInput(
            f"grid.{next(iter(others))} goes beside a file of average intensity, and the grid "
            f"{what}: leave it out"
        )
    return Grid(average=found, **others)


@lru_cache(maxsize=4)
def _workload(text: str, seed: int, begin: float) -> Workload:
    said = json.loads(text)
    return _reworded(lambda: generate({"start": begin, **said}, seed=seed), _workload_words(said))


def _workload_words(said: Parameters) -> dict[str, str]:
    """Return where the file has what readers of traces take."""
    where = "workload." if WorkloadSection(said).traced else "workload.lengths."
    return {"time_unit": where, "format": where}


def _reworded(made: Callable[[], T], words: Mapping[str, str]) -> T:
    """Return what is made; an error names keys of the file where a reader names its arguments."""
    try:
        return made()
    except LowtideError as error:
        if not any(argument.name in words for argument in error.arguments):
            raise
        message = error.spelt(lambda argument: f"{words.get(argument.name, '')}{argument}")
        raise InvalidInput(message) from error


def _begin(parameters: Parameters, signal: Signal | Grid) -> float:
    """Return when the jobs begin: as the grid says, else with the signal."""
    start = parameters["grid"].get("start")
    known = signal.average if isinstance(signal, Grid) else signal
    return known.start if start is None else parse_time(start)


def _made(kind: Callable[..., T], said: Parameters, what: str) -> T:
    """Return what is made with parameters, each of which must be known and none missing."""
    known = inspect.signature(kind).parameters
    require_known(said, known, f"key of {what}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in said:
            raise InvalidInput(f"{what} needs {key}")
    return kind(**said)


def _misspelt(said: Parameters, key: str) -> list[str]:
    """Return the keys that were meant to be another, which is missing."""
    return [] if key in said else [each for each in said if get_close_matches(each, [key])]


def _truth(said: Parameters, key: str, *, default: bool) -> bool:
    value = said.get(key.rpartition(".")[2], default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{key} is true or false, not {value!r}")
    return value


def _in_units(said: Parameters) -> Parameters:
    """Return parameters with durations given as texts in seconds."""
    return {
        key: parse_duration(value) if key.endswith("_s") and isinstance(value, str) else value
        for key, value in said.items()
    }


def _text(said: Parameters) -> str:
    return json.dumps(said, sort_keys=True)
