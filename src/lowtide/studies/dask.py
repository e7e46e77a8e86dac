"""Runs on Dask: on a cluster of processes here, or on one that is already there.

Small runs go out several at a time. If a worker dies, all that it had at hand is suspect; suspects
are then run one at a time with nothing else beside them, so that the guilty is found.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import files, interruption
from lowtide.errors import InvalidInput, LowtideError, MissingExtra
from lowtide.studies.engines import (
    RETRIES,
    Outcome,
    Outcomes,
    RunFunction,
    Task,
    attempt,
    count_cores,
    deaf_to_interrupts,
)
from lowtide.units import format_count

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

LOOPBACK = "127.0.0.1"

# A parcel of runs shall take about so long: handing it out costs a millisecond or two.
_PARCEL_S = 0.5
_LARGEST_PARCEL = 200
# Parcels at hand for each worker, so that none waits for us.
_AT_HAND = 2
_PATIENCE_S = 10
# How often to look whether there are more workers, while nothing ends.
_LOOK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDask:
    """Dask, on processes of this machine or on a cluster that is there.

    Attributes:
        workers: How many processes on this machine, None for one per core; nothing to a cluster
            that is there.
        address: Where the scheduler of a cluster is that is there, such as `tcp://node1:8786`.
        retries: How often a run is tried again whose worker died; a cluster that is there has a
            number of its own.
    """

    workers: int | None = None
    address: str | None = None
    retries: int = RETRIES
    name: str = field(default="dask", init=False)

    def __post_init__(self) -> None:
        require_dask("--engine dask")
        if self.workers is not None and self.workers < 1:
            raise InvalidInput(f"a sweep needs at least 1 worker, not {self.workers}")

    def run(self, function: RunFunction, tasks: Sequence[Task]) -> Outcomes:
        """Run every task, and yield how each ended, as it ends."""
        opened = self._there(self.address) if self.address else self._here()
        with opened as client:
            yield from run_on(client, function, tasks)

    @staticmethod
    @contextmanager
    def _there(address: str) -> Iterator[Client]:
        from distributed import Client

        try:
            client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"no Dask scheduler answers at {address} ({error}): start one with "
                "`dask scheduler`, or leave --address out for processes on this machine"
            ) from error
        # A scheduler that goes away is told in a line of ours, not in three tracebacks.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        with client:
            yield client

    @contextmanager
    def _here(self) -> Iterator[Client]:
        import dask
        from distributed import Client, LocalCluster

        settings = {"distributed.scheduler.allowed-failures": self.retries}
        with dask.config.set(settings), deaf_to_interrupts():
            cluster = LocalCluster(
                n_workers=self.workers or count_cores(),
                threads_per_worker=1,
                host=LOOPBACK,
                dashboard_address=f"{LOOPBACK}:0",
                # Others on this machine can reach the port, and could run anything in our name.
                security=True,
                silence_logs=logging.CRITICAL,
            )
        with cluster, Client(cluster, set_as_default=False) as client:
            yield client


def require_dask(what: str) -> None:
    """Say what to install where Dask is not."""
    for package in ("cryptography", "dask_jobqueue", "distributed"):
        if find_spec(package) is None:
            raise MissingExtra(what, extra="sweep")


def run_on(client: Client, function: RunFunction, tasks: Sequence[Task]) -> Outcomes:
    """Run every task on a Dask cluster, and yield how each ended, as it ends."""
    waiting, suspects, ready = deque(tasks), deque[Task](), deque[Outcome]()
    at_hand: dict[Future, list[Task]] = {}
    size, alone = 1, False
    try:
        while waiting or suspects or at_hand:
            # Workers come and go, above all on a cluster with a queue.
            room = 0 if alone else _AT_HAND * max(_at_once(client), 1)
            while waiting and len(at_hand) < room:
                parcel = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                at_hand[_submit(client, function, parcel)] = parcel
            if not at_hand:
                alone, parcel = True, [suspects.popleft()]
                at_hand[_submit(client, function, parcel)] = parcel
            for future in _ended(client, list(at_hand)):
                parcel = at_hand.pop(future)
                outcomes = _outcomes(future, parcel, alone=alone)
                if future.status == "lost":
                    # A worker died that had it finished and not yet handed over.
                    waiting.extend(parcel)
                elif outcomes is None:
                    suspects.extend(parcel)
                else:
                    size = _next_size(outcomes, size)
                    ready.extend(outcomes)
                alone = False
                while ready:
                    yield ready.popleft()
    except KeyboardInterrupt:
        # What has been finished is not lost.
        yield from ready
        for future, parcel in at_hand.items():
            if future.status == "finished":
                yield from _outcomes(future, parcel, alone=False) or []
        raise


def run_parcel(function: RunFunction, parcel: list[Task]) -> list[Outcome]:
    """Run several runs one after the other; this is what a worker does."""
    return [attempt(function, task) for task in parcel]


def _submit(client: Client, function: RunFunction, parcel: list[Task]) -> Future:
    future: Future = client.submit(run_parcel, function, parcel, pure=False)
    return future


def _at_once(client: Client) -> int:
    """Return how many runs the cluster runs at the same time."""
    with _there_still():
        return sum(client.nthreads().values())


def _ended(client: Client, futures: list[Future]) -> set[Any]:
    """Return those of some futures that end soon, none if it takes longer."""
    from distributed import wait

    with _there_still(), client.as_current():
        try:
            done: set[Any] = wait(futures, timeout=_LOOK_S, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return set()
        return done


@contextmanager
def _there_still() -> Iterator[None]:
    from asyncio import CancelledError

    try:
        yield
    except (OSError, CancelledError) as error:
        raise LowtideError("the Dask scheduler is gone") from error


def _outcomes(future: Future, parcel: list[Task], *, alone: bool) -> list[Outcome] | None:
    """Return how the runs of a parcel ended, None if that is not known of any."""
    from distributed import KilledWorker

    if future.status == "finished":
        with _there_still():
            outcomes: list[Outcome] = future.result()
        return outcomes
    if future.status != "error":
        return None
    error = future.exception()
    if isinstance(error, KilledWorker):
        if not alone:
            return None  # any of them may be to blame, or another that the worker had at hand
        deaths = error.allowed_failures + 1
        reason = f"its worker died {format_count(deaths, 'time')}: is there enough memory?"
        return [Outcome(id=parcel[0].id, reason=reason, attempts=deaths)]
    # The function could not be brought to the worker, or its numbers not back.
    reason = f"{type(error).__name__}: {error}"
    return [Outcome(id=task.id, reason=reason) for task in parcel]


def _next_size(outcomes: list[Outcome], size: int) -> int:
    """Return how many runs the next parcel has, at most twice as many as this one."""
    took_s = max((each.wall_s or 0.0) for each in outcomes)
    wanted = int(_PARCEL_S / max(took_s, 1e-6))
    return max(1, min(wanted, 2 * size, _LARGEST_PARCEL))


_SLURM_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSlurm:
    """Dask workers in jobs of Slurm, on nodes that share this folder and this Python.

    Attributes:
        workers: How many runs at the same time.
        cores: Cores of a job; it runs as many runs at the same time.
        walltime: Time limit of a job; one that ends is replaced.
        queue: Its partition; None for the cluster's default.
        account: Who is charged; None for the user's default.
        host: Name or address under which nodes reach this machine, by default its own name.
        folder: Where workers' logs and keys lie while the sweep runs; nodes see it too.
        retries: How often a run is tried again whose worker died.
    """

    workers: int
    cores: int = 1
    memory: str = "2GB"
    walltime: str = "01:00:00"
    queue: str | None = None
    account: str | None = None
    host: str | None = None
    folder: Path = Path()
    retries: int = RETRIES
    name: str = field(default="slurm", init=False)

    def __post_init__(self) -> None:
        require_dask("--engine slurm")
        if self.workers < 1 or self.cores < 1:
            raise InvalidInput(
                f"a sweep needs at least 1 worker and 1 core, not {self.workers} and {self.cores}"
            )
        if shutil.which("sbatch") is None:
            raise InvalidInput(
                "there is no Slurm here (no sbatch is found): run this where jobs are submitted, "
                "or use --engine local"
            )

    def run(self, function: RunFunction, tasks: Sequence[Task]) -> Outcomes:
        """Run every task, and yield how each ended, as it ends."""
        with self._client() as client:
            yield from run_on(client, function, tasks)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        import dask
        from distributed import Client

        with interruption.unchanged():
            # On import it makes Ctrl-C an exit, and runs that are finished would go untold.
            from dask_jobqueue import SLURMCluster

        host = self.host or socket.gethostname()
        settings = {"distributed.scheduler.allowed-failures": self.retries}
        # Workers that are still ending may write there to the last.
        folder = tempfile.TemporaryDirectory(
            prefix=".slurm-", dir=self.folder.resolve(), ignore_cleanup_errors=True
        )
        with folder as place:
            with dask.config.set(settings), deaf_to_interrupts():
                cluster = SLURMCluster(
                    cores=self.cores,
                    processes=self.cores,
                    memory=self.memory,
                    walltime=self.walltime,
                    queue=self.queue,
                    account=self.account,
                    job_name="lowtide-sweep",
                    log_directory=place,
                    local_directory=place,
                    # Others on this network can reach the port, and could run anything in our name.
                    security=_security(Path(place)),
                    scheduler_options={"host": host, "dashboard_address": f"{LOOPBACK}:0"},
                    worker_extra_args=["--no-dashboard", *_listening(host)],
                    silence_logs=logging.CRITICAL,
                )
            with cluster, Client(cluster, set_as_default=False) as client:
                _check_script(cluster.job_script())
                jobs = -(-self.workers // self.cores)
                # Not scale(): a job that reaches its time limit is to be replaced.
                cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs, interval="2s")
                yield client


def _security(folder: Path) -> Security:
    """Return keys for one sweep, in files that workers read; others may not."""
    from distributed.security import Security

    made = Security.temporary().get_tls_config_for_role("worker")
    paths = {}
    for part in ("ca_file", "cert", "key"):
        paths[part] = str(folder / part)
        files.write_whole(paths[part], made[part])
    roles = {
        f"tls_{role}_{part}": paths[part]
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=paths["ca_file"], require_encryption=True, **roles)


def _listening(host: str) -> list[str]:
    """Return what keeps workers on loopback where the scheduler is there."""
    return ["--host", LOOPBACK] if host in (LOOPBACK, "localhost") else []


def _check_script(script: str) -> None:
    """Refuse what Slurm would refuse; Dask would only write it to a log, and wait for ever."""
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],  # noqa: S607 - found where the user has it
            input=script,
            capture_output=True,
            text=True,
            timeout=_SLURM_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LowtideError(f"Slurm does not answer within {_PATIENCE_S:g} s") from None
    if done.returncode:
        said = "; ".join(done.stderr.strip().splitlines())
        raise InvalidInput(f"Slurm refuses such a job: {said}. See --slurm KEY=VALUE.")
