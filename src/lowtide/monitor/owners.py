"""Whose a group or process is, since when it runs, and what its environment says of its job."""

from __future__ import annotations

import math
import os
import pwd
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from lowtide.files import read_or_empty
from lowtide.monitor.kernel_files import NONSENSE
from lowtide.monitor.processes import read_stat

# A directory server that does not answer must not stop the watching.
_PATIENCE_S = 1.0
# The kernel numbers no more than four million processes.
_PID_DIGITS = 7
# A group that is looked up long after it was made may look younger than it is, by more than this.
_YOUNGER_S = 5.0


@dataclass(slots=True)
class UserNames:
    """The names of users, each asked for once, and no longer than a second."""

    _names: dict[int, str] = field(default_factory=dict, init=False)

    def __call__(self, uid: int) -> str:
        """Return a user's name, the number where it has none."""
        if uid not in self._names:
            self._names[uid] = str(uid)
            asking = threading.Thread(target=self._ask, args=(uid,), daemon=True)
            asking.start()
            # Should the answer come later, it is used from then on.
            asking.join(_PATIENCE_S)
        return self._names[uid]

    def _ask(self, uid: int) -> None:
        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            return


def list_pids(folder: str) -> list[int]:
    """Return the processes of a group and of all below it."""
    pids: list[int] = []
    folders = [folder]
    while folders:
        at = folders.pop()
        said = read_or_empty(f"{at}/cgroup.procs").split()
        pids += [int(each) for each in said if each.isdigit() and len(each) <= _PID_DIGITS]
        # To walk with the standard library costs twice as much, and a node has a thousand groups.
        with suppress(OSError), os.scandir(at) as entries:
            folders += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
    return pids


def find_uid(folders: Iterable[str], pids: Iterable[int], procfs: str) -> int | None:
    """Return whose a group is, None where it cannot be told yet.

    Root starts the jobs of others, so that anyone else comes first.
    """
    owners = [uid for each in folders if (uid := _owner(each)) not in (None, 0)]
    # A group's folder is root's unless it was given away, so that root says nothing there.
    owners = owners or [uid for each in pids if (uid := _owner(f"{procfs}/{each}")) is not None]
    return next((uid for uid in owners if uid != 0), owners[0] if owners else None)


def find_start(folders: Iterable[str], pids: Iterable[int], procfs: str, boot: float) -> float:
    """Return when a group began, epoch seconds: the age of its folder or of its oldest process.

    Args:
        boot: When the node was started, epoch seconds.
    """
    made = math.inf
    for folder in folders:
        try:
            times = os.stat(folder)  # noqa: PTH116
        except OSError:
            continue
        # The kernel keeps no time of birth for these; the earliest of the others is the closest.
        made = min(made, times.st_mtime, times.st_ctime, times.st_atime)
    oldest = math.inf
    for pid in pids:
        said = read_or_empty(f"{procfs}/{pid}/stat")
        try:
            oldest = min(oldest, boot + read_stat(said.decode(errors="replace")).started_s)
        except NONSENSE:
            continue
    return oldest if oldest < made - _YOUNGER_S else made


def _owner(place: str) -> int | None:
    try:
        return os.stat(place).st_uid  # noqa: PTH116 - a Path would cost more
    except OSError:
        return None


# Which GPUs a job was given, by numbers of the node. The first that is set is believed.
_SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
# Which GPUs a program may see. Inside of a job these count from its own first one, so they are
# believed only where Slurm says nothing, or where they name GPUs by their identity.
_VISIBLE_GPUS = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
)
_WANTED = frozenset(
    [
        *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME"),
        *("SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"),
        *("SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_NODELIST", "SLURMD_NODENAME"),
        "SLURM_CLUSTER_NAME",
        *_SLURM_GPUS,
        *_VISIBLE_GPUS,
    ]
)
# What a program's driver goes by, each variable within what the one before it leaves. The first of
# several that mean the same is believed.
_SEEN_BY_NVIDIA = (("CUDA_VISIBLE_DEVICES",),)
_SEEN_BY_AMD = (
    ("ROCR_VISIBLE_DEVICES",),
    ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)
# GPU- and MIG- alone name none.
_LEAST_IDENTITY = 4
_MEBIBYTE = 2**20
# More than any node has.
_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU that a driver shows.

    Attributes:
        name: The channel of its meter: `gpu-0`.
        minor: The number of its device file; -1 where it is not known.
        identities: Its own and those of its instances.
    """

    name: str
    minor: int = -1
    identities: tuple[str, ...] = ()


def read_environment(procfs: str, pid: int) -> dict[str, str]:
    """Return what matters of a process's environment as it was when its program began."""
    found = {}
    for each in read_or_empty(f"{procfs}/{pid}/environ").split(b"\0"):
        key, _, value = each.decode(errors="replace").partition("=")
        if key in _WANTED:
            found[key] = value
    return found


def find_job(environment: Mapping[str, str]) -> str:
    """Return the number of the Slurm job, empty where there is none."""
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID", "")
    return job if job.isdecimal() else ""


def find_reserved(environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the CPUs and the bytes of memory that Slurm keeps on this node, NaN if not known.

    >>> find_reserved({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "100"})
    (4.0, 419430400.0)
    """
    cpus = _number(
        environment.get("SLURM_CPUS_ON_NODE") or environment.get("SLURM_JOB_CPUS_PER_NODE", "")
    )
    whole = _number(environment.get("SLURM_MEM_PER_NODE", ""))
    each = _number(environment.get("SLURM_MEM_PER_CPU", ""))
    megabytes = whole if whole > 0 else each * cpus
    # Slurm writes 0 for all of the node's memory.
    return cpus, megabytes * _MEBIBYTE if megabytes > 0 else math.nan


def find_cluster(environment: Mapping[str, str]) -> str:
    """Return the cluster of the Slurm job, empty where nobody says; Slurm writes it small."""
    return environment.get("SLURM_CLUSTER_NAME", "").strip().lower()


# Where Slurm's programs look for their configuration, or keep what a server handed them.
SLURM_FOLDERS = (
    "/etc/slurm",
    "/etc/slurm-llnl",
    "/usr/local/etc",
    "/opt/slurm/etc",
    "/run/slurm/conf",
)
_CLUSTER = re.compile(
    rb"^[ \t]*ClusterName[ \t]*=[ \t]*\"?([^\s#\"]+)", re.IGNORECASE | re.MULTILINE
)
_DAEMON = "slurmd"


def read_cluster(places: Iterable[str]) -> str:
    """Return what the first configuration that says so calls the cluster, as Slurm writes it."""
    for place in places:
        if said := _CLUSTER.search(read_or_empty(place)):
            return said[1].decode(errors="replace").lower()
    return ""


def find_slurm_nodes(procfs: str) -> tuple[str, ...]:
    """Return what Slurm calls the node or nodes on this machine, where slurmd says so."""
    return tuple(sorted({node for node, _ in _find_daemons(procfs) if node}))


def _find_daemons(procfs: str) -> Iterator[tuple[str, str]]:
    try:
        pids = [each for each in os.listdir(procfs) if each.isdecimal()]  # noqa: PTH208
    except OSError:
        return
    for pid in pids:
        if read_or_empty(f"{procfs}/{pid}/comm").strip() == _DAEMON.encode():
            yield _read_daemon(procfs, pid)


def _read_daemon(procfs: str, pid: str) -> tuple[str, str]:
    """Return the node of a slurmd, empty where it goes by the machine's name, and its cluster."""
    words = read_or_empty(f"{procfs}/{pid}/cmdline").decode(errors="replace").split("\0")
    told = {"-N": "", "-f": ""}
    # One that is about to end has no words any more.
    for word, after in pairwise([*words[1:], ""]):
        if word[:2] in told:
            told[word[:2]] = word[2:] or after
    files = [told["-f"]] if told["-f"] else _configured(procfs, pid)
    # One in a container has files of its own; only root may look at them.
    inside = [f"{procfs}/{pid}/root{each}" for each in files if each.startswith("/")]
    return told["-N"], read_cluster([*inside, *files])


def _configured(procfs: str, pid: str) -> list[str]:
    """Return where a slurmd may have its configuration; nowhere where nobody may know."""
    said = read_or_empty(f"{procfs}/{pid}/environ").split(b"\0")
    named = [each.partition(b"=")[2] for each in said if each.startswith(b"SLURM_CONF=")]
    if named or said == [b""]:
        return [each.decode(errors="replace") for each in named]
    return [f"{folder}/slurm.conf" for folder in SLURM_FOLDERS]


@dataclass(slots=True)
class Clusters:
    """Which of Slurm's clusters have nodes on this machine, and where their jobs are.

    Attributes:
        procfs: Where /proc is.
        names: All clusters that were named so far.
    """

    procfs: str = "/proc"
    names: set[str] = field(default_factory=set, init=False)
    _by_node: dict[str, set[str]] = field(default_factory=dict, init=False)
    _by_tree: dict[str, set[str]] = field(default_factory=dict, init=False)
    _looked: bool = field(default=False, init=False)

    def learn(self, tree: str, cluster: str) -> None:
        """Be told by a job's processes whose the jobs in a tree of groups are.

        Args:
            tree: The group that holds them; empty for what is outside of all.
        """
        if cluster:
            self._by_tree.setdefault(tree, set()).add(cluster)
            self.names.add(cluster)

    def meet(self, pid: int, name: str) -> None:
        """Take note of a process that has come: it may be a slurmd."""
        if name == _DAEMON:
            self._keep(*_read_daemon(self.procfs, str(pid)))

    def find(self, tree: str, node: str) -> str:
        """Return the cluster of jobs in a tree of groups; empty where it may be one of several.

        Args:
            node: Which of Slurm's nodes the tree is of, empty where it does not say.
        """
        if not self._looked:
            # Those that come later are met.
            self._looked = True
            for each in _find_daemons(self.procfs):
                self._keep(*each)
        found = self._told(tree, node)
        return next(iter(found)) if len(found) == 1 else ""

    def _keep(self, node: str, cluster: str) -> None:
        if cluster:
            self._by_node.setdefault(node, set()).add(cluster)
            self.names.add(cluster)

    def _told(self, tree: str, node: str) -> set[str]:
        # A slurmd that was not built for several names no node, whatever it is called.
        every = {each for clusters in self._by_node.values() for each in clusters}
        found = (self._by_node.get(node) or self._by_node.get("", set())) if node else every
        return found if len(found) > 1 else self._by_tree.get(tree) or found


def holds_allocation(environment: Mapping[str, str], nodes: Collection[str]) -> bool:
    """Return whether a process is of the shell of an allocation of one node, and on that node.

    What Slurm starts itself is told the node that it is on; a shell of `salloc` is not, and lasts
    as long as the allocation does.

    Args:
        nodes: What Slurm calls this node, or nodes that are on this machine.
    """
    listed = environment.get("SLURM_JOB_NODELIST")
    return bool(find_job(environment)) and "SLURMD_NODENAME" not in environment and listed in nodes


def list_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that a job was given, by their numbers on the node or their identity.

    >>> list_gpus({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"})
    ('2', '3')
    >>> list_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8f6e,MIG-41ab", "SLURM_JOB_GPUS": "5,6"})
    ('GPU-8f6e', 'MIG-41ab')
    """
    for key in _VISIBLE_GPUS:
        # Slurm counts instances of divided GPUs as GPUs: an identity leaves no doubt.
        said = [each.strip() for each in environment.get(key, "").split(",")]
        if all(each.startswith(("GPU-", "MIG-")) for each in said):
            return tuple(said)
    for key in _SLURM_GPUS:
        if environment.get(key):
            return _spread(environment[key])
    for key in _VISIBLE_GPUS:
        said = [each.strip() for each in environment.get(key, "").split(",") if each.strip()]
        if find_job(environment):
            said = [each for each in said if not each.isdigit()]
        # -1 hides all that follow; `all` is set by images whether or not there are GPUs.
        listed: list[str] = []
        for each in said:
            if not (each.isdigit() or each.startswith(("GPU-", "MIG-"))):
                break
            listed.append(each)
        if listed:
            return tuple(listed)
    return ()


def visible_gpus(
    environment: Mapping[str, str], cards: Sequence[Card], *, amd: bool = False
) -> list[str] | None:
    """Return which GPUs a program will see that is started here, None where nothing is said.

    Slurm names the GPUs of a job by their numbers on the node. Where it also hides the others
    (`ConstrainDevices`), the driver shows those of the job alone, and everything counts from the
    first of them. A driver that shows more than the job has is one that is not hidden from, so
    numbers are the node's; only where that cannot be do they count from the job's first.

    Args:
        cards: The GPUs that the driver shows, in its order.
        amd: Whether they are AMD's, which go by other variables.
    """
    job: list[Card] | None = None
    for key in _SLURM_GPUS:
        if numbers := _spread(environment.get(key, "")):
            job = list(cards)
            if len(cards) > len(numbers):
                found = [_numbered(cards, each) for each in numbers]
                job = [card for card in found if card is not None]
            break
    seen = job
    for keys in _SEEN_BY_AMD if amd else _SEEN_BY_NVIDIA:
        # Each counts in what those before it leave.
        said = next((environment[key] for key in keys if key in environment), None)
        if said is not None:
            seen = pick_gpus(said, list(cards) if seen is None else seen, cards)[0]
    return None if seen is None else [card.name for card in seen]


def pick_gpus(
    said: str, among: Sequence[Card], cards: Sequence[Card]
) -> tuple[list[Card], list[str]]:
    """Return the GPUs of a list of numbers and identities, and what of it names none.

    As with the drivers, what names none ends the list: `-1` hides all that follow.

    Args:
        cards: All GPUs that there are.
    """
    entries = [each.strip() for each in said.split(",")] if said.strip() else []
    # A part of the node's GPUs may still be called by their numbers on the node.
    by_node = [_numbered(cards, each) for each in entries if each.isdecimal()]
    on_node = len(among) < len(cards) and all(card in among for card in by_node)
    found: list[Card] = []
    for place, each in enumerate(entries):
        card: Card | None = None
        if each.isdecimal():
            if on_node:
                card = _numbered(cards, each)
            elif int(each) < len(among):
                card = among[int(each)]
        else:
            # Instances were once called by their card: MIG-GPU-8f6e.../1/0.
            name = each.removeprefix("MIG-") if each.startswith("MIG-GPU-") else each
            name = name.partition("/")[0]
            known = [card for card in cards if any(one.startswith(name) for one in card.identities)]
            card = known[0] if len(known) == 1 and len(name) > _LEAST_IDENTITY else None
        if card is None:
            return found, entries[place:]
        if card not in found:
            found.append(card)
    return found, []


def _numbered(cards: Sequence[Card], number: str) -> Card | None:
    """Return the GPU of that number on the node: that of its device file, where it is known."""
    if not number.isdecimal():
        return None
    files = {card.minor: card for card in cards if card.minor >= 0}
    if len(files) == len(cards):
        return files.get(int(number))
    return cards[int(number)] if int(number) < len(cards) else None


def _spread(said: str) -> tuple[str, ...]:
    """Return the numbers of a list that may have ranges: 0-2,5."""
    found: list[str] = []
    for part in said.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            found += [str(each) for each in range(int(first), min(int(last), _MOST_GPUS) + 1)]
        elif part.strip():
            found.append(part.strip())
    return tuple(found)


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else math.nan
