"""Runs on Dask whose workers are jobs of Slurm."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide import files, interruption
from lowtide.errors import InvalidInput, LowtideError
from lowtide.experiments.engines.engine import RETRIES, Outcomes, RunFunction, Task
from lowtide.experiments.engines.local import deaf_to_interrupts
from lowtide.experiments.engines.on_dask import LOOPBACK, require_dask, run_on

_PATIENCE_S = 30.0

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSlurm:
    """Dask workers in jobs of Slurm, on nodes that share this folder and this Python.

    Attributes:
        workers: How many runs at the same time.
        cores: Cores of a job; it runs as many runs at the same time.
        memory: Memory of a job.
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
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LowtideError(f"Slurm does not answer within {_PATIENCE_S:g} s") from None
    if done.returncode:
        said = "; ".join(done.stderr.strip().splitlines())
        raise InvalidInput(f"Slurm refuses such a job: {said}. See --slurm KEY=VALUE.")
