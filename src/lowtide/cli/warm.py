"""`lowtide warm`: compile everything beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lowtide.cli.output import TABLE, Form, progress, say

if TYPE_CHECKING:
    from lowtide.job import Job
    from lowtide.signal import Signal
    from lowtide.workload import Workload

# Five days in hours, and jobs that are soon planned: only what is compiled for them matters.
_HOURS = 120
_STEP_S = 1800.0


def warm(form: Form = TABLE) -> None:
    """Compile beforehand what is compiled at first use.

    It is kept in the folder that LOWTIDE_CACHE names, else in the user's cache. A folder that is
    warmed once can serve a whole site, which need not be able to write to it.
    """
    from time import process_time

    from lowtide import compiled

    parts, clock = _parts(), process_time()
    # A bar says that it compiles, and everybody who asks for this knows.
    tell, compiled.tell = compiled.tell, _only_problems(compiled.tell)
    compiled.gather = True
    try:
        with progress("compiling", len(parts)) as bar:
            for name, part in parts.items():
                bar.say(name)
                part()
                bar.advance()
    finally:
        compiled.tell, compiled.gather = tell, False
    took_s = process_time() - clock
    folder = compiled.kept_in()
    told = {
        "compiled_s": round(compiled.compiling_s(), 3),
        "cpu_s": round(took_s, 3),
        "folder": None if folder is None else str(folder),
    }
    where = f"kept in {folder}" if folder else "kept nowhere, so that all is to be done again"
    words = f"Everything is compiled already, in {folder}."
    if told["compiled_s"]:
        words = f"Compiled everything in {told['compiled_s']:.1f} s, {where}."
    form.print([told], document=told, show=lambda: say(words), digits=None)


def _only_problems(tell: Callable[[str], object]) -> Callable[[str], object]:
    return lambda words: None if words.startswith("compiling") else tell(words)


def _parts() -> dict[str, Callable[[], object]]:
    """Return what is to be done once, by name: together it uses every kernel."""
    return {
        "planning a job": _plan,
        "planning many": _plan_many,
        "simulating policies": _simulate,
        "simulating clusters": _queues,
        "planning queues": _together,
        "reading traces": _read,
        "learning": _learn,
        "reproducing": _reproduce,
    }


def _curve() -> Signal:
    import numpy as np

    from lowtide.signal import Signal

    values = 300.0 + 100.0 * np.sin(np.arange(_HOURS) / 3.0)
    return Signal.from_values(values, start=0, step_s=3600)


def _job(interruptible: str, phases: int, **rules: Any) -> Job:
    import lowtide as lt

    work = [
        lt.Phase(name=str(number), duration_s=3600, power_w=100 + number, checkpoint=True)
        for number in range(phases)
    ]
    startup = [lt.Phase(name="startup", duration_s=600, power_w=50)] * (phases > 1)
    stop = [] if interruptible == "never" else startup
    profile = lt.PowerProfile(startup=startup, work=work, stop=stop)
    return lt.Job(
        id="warm", arrival=0, deadline="+24h", interruptible=interruptible, profile=profile, **rules
    )


def _jobs(interruptible: str) -> Workload:
    import numpy as np

    from lowtide.job import INTERRUPTIBLE
    from lowtide.workload import Workload

    arrival = 3600.0 * np.arange(4)
    return Workload(
        arrival=arrival,
        deadline=arrival + 24 * 3600,
        work_s=3600.0,
        power=100.0,
        waited_s=0.0,
        interruptible=INTERRUPTIBLE.index(interruptible),
    )


def _plan() -> None:
    import lowtide as lt
    from lowtide.policies.exact import Exact

    curve = _curve()
    wall = [(curve.start + 36e3, curve.start + 39.6e3)]
    for interruptible in ("never", "checkpoints", "anywhere"):
        for phases in (1, 4):
            for rules in ({}, {"max_starts": 2}, {"min_run_s": 3600.0}):
                if interruptible != "never" or not rules:
                    job = _job(interruptible, phases, **rules)
                    for policy in (Exact(step_s=_STEP_S), Exact(forbidden=wall), Exact(wait=0.01)):
                        lt.plan(job, curve, policy=policy)
            lt.tradeoff(_job(interruptible, phases), curve, step_s=_STEP_S)


def _together() -> None:
    import lowtide as lt

    jobs = [replace(_job("checkpoints", 2), id=str(number)) for number in range(6)]
    # Too few nodes for all, so that everything is tried.
    lt.plan_cluster(jobs, lt.Cluster(nodes=1, cpus_per_node=1), _curve(), effort=0.01)


def _plan_many() -> None:
    import lowtide as lt

    # So many that they are worth planning together.
    lt.plan_many([_job("anywhere", 1)] * 64, _curve(), workers=1)


def _simulate() -> None:
    from lowtide.policies.exact import Exact
    from lowtide.policies.policy import POLICIES
    from lowtide.simulator import simulate

    curve = _curve()
    for interruptible in ("never", "anywhere"):
        jobs = _jobs(interruptible)
        for name in POLICIES.names():
            if POLICIES.load(name).__module__.startswith("lowtide."):
                simulate(jobs, curve, policy=name, baseline=None)
        simulate(jobs, curve, policy=Exact(step_s=_STEP_S + 60.0), baseline=None)


def _queues() -> None:
    from lowtide.simulator import Cluster, simulate
    from lowtide.simulator.disciplines import DISCIPLINES

    machines = Cluster(nodes=1, cpus_per_node=2, reserved_cpus=1)
    for name in DISCIPLINES:
        simulate(_jobs("anywhere"), _curve(), cluster=machines, discipline=name, repeat_signal=True)
    simulate(
        _jobs("never"), _curve(), policy="reserved_first", cluster=machines, repeat_signal=True
    )


def _read() -> None:
    import numpy as np

    from lowtide.formats.swf_kernel import parse_columns

    line = np.frombuffer(b"1 2\n", dtype=np.uint8)
    parse_columns(line, 0, np.zeros(2, dtype=np.bool_), np.empty((2, 2)))


def _learn() -> None:
    from lowtide.formats.recordings import read_recordings
    from lowtide.learning import learn
    from lowtide.samples import sample_recording

    recordings = read_recordings(sample_recording("h200"))
    # By marks, and by power alone.
    for events in (True, False):
        learn(recordings, events=events, validated=False)


def _reproduce() -> None:
    import numpy as np

    from lowtide.reproductions.wait_awhile import autocorrelated, emit

    numbers, places = autocorrelated(np.ones(8), 0.5), np.zeros(1, dtype=np.int64)
    for stops in (False, True):
        emit(numbers, numbers, numbers, places, places + 4, places + 2, stops)
