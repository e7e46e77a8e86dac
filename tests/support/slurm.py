"""A real Slurm for a test: its own key, sockets and ports, in a folder of its own, on loopback.

Nothing outside the folder is read or written, and every process is ended by its own id.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import slurm_accounting
from support.needs import is_missing
from support.networks import own_network

CLIENTS = (
    *("salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"),
    *("sacct", "sacctmgr"),
)
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue")
PATIENCE_S = 20
# Control groups v1 as Slurm uses them; a host with v2 alone tracks its jobs otherwise.
HAS_CGROUPS = all(
    Path(f"/sys/fs/cgroup/{name}/tasks").exists() for name in ("cpuacct", "freezer", "memory")
)

_NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
_CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
# Without these the daemons listen on every interface.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/{track}
TaskPlugin=task/{task}
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/{gather}
{accounting}
ReturnToService=2
KillWait=2
{nodes}
PartitionName=main Nodes=n[1-{count}] Default=YES MaxTime=INFINITE DefMemPerCPU=100 State=UP
"""


@dataclass(kw_only=True)
class Daemon:
    """A process that a test may kill and start again."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Let it end at once, as a machine does that loses its power."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """Let it end as it likes to, and then at once."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None


class RunningSlurm(dict[str, str]):
    """The environment in which commands find a Slurm, and its daemons by their names."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment)
        self.daemons: dict[str, Daemon] = {}
        # What stands before a command that somebody else is to run in its network.
        self.network: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a Slurm runs.

    Attributes:
        folder: All that it reads and writes.
        environment: What its programs need.
        network: What stands before a command that is to run in its network.
    """

    folder: Path
    environment: dict[str, str]
    network: Sequence[str] = ()

    @contextmanager
    def daemon(self, command: list[str], **environment: str) -> Iterator[Daemon]:
        """Run a daemon, and end it by its own process id."""
        daemon = Daemon(
            command=[*self.network, *command],
            environment={**os.environ, **self.environment, **environment},
            log=self.folder / "daemons.log",
        )
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.end()

    def wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        _wait_for(what, is_there, self.folder)


@contextmanager
def running_slurm(
    nodes: int = 2,
    cpus: int = 2,
    *,
    cgroups: bool = False,
    accounting: bool = False,
    more: str = "",
    files: Mapping[str, str] | None = None,
) -> Iterator[RunningSlurm]:
    """Start a Slurm, yield the environment its commands need, and end it.

    What is in `more` is set besides, with `{folder}` for where it lives, and `files` lie there.

    With `cgroups` its jobs live in control groups of their own, where the kernel has them (v1).
    With `accounting` sacct knows its jobs, all of it in a network of its own: the commands that
    the environment's PATH leads to go there by themselves.
    """
    path = _path()
    programs = (*PROGRAMS, *(slurm_accounting.PROGRAMS if accounting else ()))
    if missing := [name for name in programs if shutil.which(name, path=path) is None]:
        is_missing(f"needs a Slurm to start: {', '.join(missing)} not found")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    # The daemons look for these; the programs of the system are often outside a user's path.
    environment = RunningSlurm({"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path})
    # Other users come through to its sockets; its key is closed to them.
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        network = stack.enter_context(own_network(path)) if accounting else []
        environment.network = network
        place = _Place(folder=folder, environment=environment, network=network)
        ports = _free_ports(nodes + 2)
        kept = slurm_accounting.settings(folder, ports[-1]) if accounting else _NO_ACCOUNTING
        kept += "\n" + more.format(folder=folder)
        _write_files(folder, ports[: nodes + 1], cpus, cgroups=cgroups, accounting=kept)
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        stack.enter_context(place.daemon(_munged(folder)))
        place.wait_for("munged", (folder / "munge.sock").exists)
        if accounting:
            environment["PATH"] = _write_clients(folder / "bin", network, path)
            environment.daemons["slurmdbd"] = stack.enter_context(
                slurm_accounting.running_accounting(
                    folder,
                    port=ports[-1],
                    user=getpass.getuser(),
                    path=path,
                    daemon=place.daemon,
                    wait_for=place.wait_for,
                )
            )
            # It makes its tables first, and says nothing before that.
            add = ("sacctmgr", "-i", "add", "cluster", "test")
            place.wait_for("slurmdbd", lambda: "Adding" in ask(environment, *add))
        commands = {"slurmctld": ["slurmctld", "-D"]}
        commands |= {f"n{k}": ["slurmd", "-D", "-N", f"n{k}"] for k in range(1, nodes + 1)}
        for name, command in commands.items():
            environment.daemons[name] = stack.enter_context(place.daemon(command))
        place.wait_for("idle nodes", lambda: _idle_nodes(environment) == nodes)
        stack.callback(_cancel_all, environment)
        yield environment


def ask(environment: dict[str, str], *command: str) -> str:
    """Return what a command of Slurm answers; one whose server is gone would wait for ever."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout.strip()


def used_s(said: str) -> float:
    """Return the CPU time that a group has counted, or that the `times` of a shell tells."""
    if said.strip().isdecimal():
        return int(said) / 1e9
    parts = [each.rstrip("s").split("m") for each in said.split()]
    return sum(60 * float(minutes) + float(seconds) for minutes, seconds in parts)


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _write_clients(folder: Path, network: Sequence[str], path: str) -> str:
    """Write the commands of Slurm as ones that go into a network first; return the path to them."""
    folder.mkdir()
    for name in CLIENTS:
        program = folder / name
        command = shlex.join([*network, str(shutil.which(name, path=path))])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
    return os.pathsep.join([str(folder), path])


def _write_files(
    folder: Path, ports: Sequence[int], cpus: int, *, cgroups: bool, accounting: str
) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    first, *others = ports
    lines = [
        f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={cpus} RealMemory=4000 State=UNKNOWN"
        for number, port in enumerate(others, start=1)
    ]
    text = _CONF.format(
        port=first,
        user=getpass.getuser(),
        folder=folder,
        nodes="\n".join(lines),
        count=len(others),
        accounting=accounting,
        track="cgroup" if cgroups else "linuxproc",
        task="cgroup" if cgroups else "none",
        gather="cgroup" if cgroups else "linux" if "slurmdbd" in accounting else "none",
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainRAMSpace=yes\n")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


def _munged(folder: Path) -> list[str]:
    # --force: it dislikes folders below one that others may write to, such as /tmp.
    places = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid"}
    places |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    return [
        "munged",
        "--foreground",
        "--force",
        *(f"--{k}={folder / v}" for k, v in places.items()),
    ]


def _idle_nodes(environment: dict[str, str]) -> int:
    return int(ask(environment, "sinfo", "-h", "-t", "idle", "-o", "%D") or 0)


def _cancel_all(environment: dict[str, str]) -> None:
    """End what still runs, so that no step outlives its daemon."""
    for job in ask(environment, "squeue", "-h", "-o", "%i").split():
        ask(environment, "scancel", "--full", job)
    _wait_for("jobs to end", lambda: not ask(environment, "squeue", "-h"))


def _wait_for(what: str, is_there: Callable[[], bool], folder: Path | None = None) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > end:
            said = (folder / "daemons.log").read_text()[-3000:] if folder else ""
            raise TimeoutError(f"no {what} after {PATIENCE_S} s\n{said}")
        time.sleep(0.1)
