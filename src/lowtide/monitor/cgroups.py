"""Control groups, versions 1 and 2: where their files are, which job a path is, what files say."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from lowtide.files import read_or_empty
from lowtide.monitor.kernel_files import NONSENSE, parse_count
from lowtide.monitor.snapshot import PRESSURES

# More than any machine has.
_MOST_CPUS = 2**16
# Version 1 says this for "no limit": the largest number of whole pages.
_NO_LIMIT = 2**60
# These hierarchies of version 1 show which groups there are; every job is in at least one.
_CONTROLLERS = {"cpu", "cpuacct", "memory", "blkio", "pids", "cpuset", "devices", "freezer"}

# What the kernel writes, as far as a number goes that it can count: to look for it all at once
# costs a third of looking for each word.
_USAGE = re.compile(rb"usage_usec (\d{1,18})\nuser_usec \d+\nsystem_usec (\d{1,18})\n")
_DISK = re.compile(rb"^(\S+) rbytes=(\d{1,18}) wbytes=(\d{1,18})\b", re.MULTILINE)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """One tree of groups.

    Attributes:
        folder: Where it is.
        unified: Whether it is of version 2.
        controllers: What it counts, for version 1.
    """

    folder: str
    unified: bool
    controllers: frozenset[str]


def find_hierarchies(cgroupfs: Path) -> tuple[Hierarchy, ...]:
    """Return the trees of groups: one of version 2, some of version 1, or both."""
    if (cgroupfs / "cgroup.controllers").exists():
        return (Hierarchy(folder=str(cgroupfs), unified=True, controllers=frozenset()),)
    found: dict[str, Hierarchy] = {}
    try:
        folders = sorted(each for each in cgroupfs.iterdir() if each.is_dir())
    except OSError:
        return ()
    for folder in folders:
        # cpu and cpuacct are often links to one folder, cpu,cpuacct.
        real = str(folder.resolve())
        unified = (folder / "cgroup.controllers").exists()
        controllers = frozenset(folder.name.split(",")) & _CONTROLLERS
        if unified or controllers or folder.name == "systemd":
            before = found[real].controllers if real in found else frozenset()
            found[real] = Hierarchy(folder=real, unified=unified, controllers=controllers | before)
    return tuple(found.values())


def parse_number(said: bytes) -> float:
    """Return a number that stands alone.

    >>> parse_number(b"8192")
    8192.0
    """
    return float(parse_count(said))


def parse_nanoseconds(said: bytes) -> tuple[float, float]:
    """Return the CPU time in seconds, and NaN for the part that was spent in the kernel.

    Args:
        said: The file cpuacct.usage of version 1, which tells no parts apart.
    """
    return parse_count(said) / 1e9, math.nan


def parse_usage(said: bytes) -> tuple[float, float]:
    r"""Return the CPU time in seconds, and the part that was spent in the kernel, NaN if not known.

    Args:
        said: The file cpu.stat of version 2.

    >>> parse_usage(b"usage_usec 9000000\nuser_usec 5000000\nsystem_usec 4000000\n")
    (9.0, 4.0)
    >>> parse_usage(b"usage_usec 60491070351\nuser_usec 60375292848\n")
    (60491.070351, nan)
    """
    if usual := _USAGE.match(said):
        return int(usual[1]) / 1e6, int(usual[2]) / 1e6
    used_s = find_value(said, b"usage_usec") / 1e6
    try:
        return used_s, find_value(said, b"system_usec") / 1e6
    except ValueError:
        return used_s, math.nan


def find_value(said: bytes, key: bytes) -> float:
    r"""Return the number behind a key that begins a line.

    >>> find_value(b"usage_usec 5\nuser_usec 60375292848\n", b"user_usec") / 1e6
    60375.292848
    """
    if said.startswith(key + b" "):
        at = len(key)
    else:
        at = said.find(b"\n" + key + b" ") + 1 + len(key)
        if at == len(key):
            raise ValueError(f"no {key.decode()}")
    end = said.find(b"\n", at)
    if end < 0:
        # The last line was cut off, and so may its number be.
        raise ValueError(f"{key.decode()} is cut off")
    return float(parse_count(said[at:end]))


def parse_io(said: bytes, disks: frozenset[bytes]) -> tuple[float, float]:
    r"""Return the bytes that were read and written.

    Args:
        said: The file io.stat of version 2.
        disks: The disks that count, as major:minor; all where it is empty.

    >>> parse_io(b"8:0 rbytes=10 wbytes=20 rios=1\n253:0 rbytes=10 wbytes=20\n", {b"8:0"})
    (10.0, 20.0)
    """
    read = written = 0
    found = _DISK.findall(said)
    if len(found) < said.count(b" rbytes="):
        raise ValueError("no traffic of disks")
    for disk, from_it, to_it in found:
        if not disks or disk in disks:
            read += int(from_it)
            written += int(to_it)
    return float(read), float(written)


def parse_blkio(said: bytes, disks: frozenset[bytes]) -> tuple[float, float]:
    r"""Return the bytes that were read and written.

    Args:
        said: The file blkio.throttle.io_service_bytes of version 1.
        disks: The disks that count, as major:minor; all where it is empty.

    >>> parse_blkio(b"8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n", frozenset())
    (10.0, 20.0)
    """
    read = written = 0
    for line in said.splitlines():
        fields = line.split()
        if len(fields) != 3 or (disks and fields[0] not in disks):
            continue
        if fields[1] == b"Read":
            read += parse_count(fields[2])
        elif fields[1] == b"Write":
            written += parse_count(fields[2])
    return float(read), float(written)


def parse_pressure(said: bytes) -> float:
    r"""Return for how many seconds something waited.

    >>> parse_pressure(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n")
    1.5
    """
    first = said.partition(b"\n")[0]
    return parse_count(first.partition(b"total=")[2]) / 1e6


def parse_cpus(said: str) -> frozenset[int]:
    """Return the CPUs of a list of numbers and ranges.

    >>> sorted(parse_cpus("1,41")), sorted(parse_cpus("0-2,7"))
    ([1, 41], [0, 1, 2, 7])
    """
    cpus: set[int] = set()
    for part in said.strip().split(","):
        if part:
            # Rare files have a stride: 0-6:1/2 takes one of every two.
            span, _, stride = part.partition(":")
            first, _, last = span.partition("-")
            used, _, group = stride.partition("/")
            low, high = int(first), int(last or first)
            step = int(group) if stride else 1
            if not 0 <= low <= high < _MOST_CPUS or step < 1:
                raise ValueError(f"no CPUs are {part}")
            for cpu in range(low, high + 1):
                if not stride or (cpu - low) % step < int(used):
                    cpus.add(cpu)
    return frozenset(cpus)


def parse_limit(said: bytes) -> float:
    """Return a limit of memory in bytes, NaN where there is none."""
    limit = math.inf if said.startswith(b"max") else parse_number(said)
    return math.nan if limit >= _NO_LIMIT else limit


def parse_quota(said: bytes) -> float:
    """Return how many CPUs' time a group may use, NaN where there is no limit.

    >>> parse_quota(b"150000 100000")
    1.5
    """
    fields = said.split()
    if len(fields) != 2 or fields[0] == b"max" or int(fields[0]) < 0:
        return math.nan
    return int(fields[0]) / int(fields[1])


@dataclass(frozen=True, slots=True)
class Place(Generic[Value]):
    """Where one counter may be.

    Attributes:
        folder: The hierarchy.
        file: The file in a group's folder.
        parse: What reads it.
    """

    folder: str
    file: str
    parse: Callable[..., Value]


# The first counts what all groups below do, but is not there in old kernels.
_BLKIO = ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes")


class Layout:
    """Where the counters of all groups are.

    Attributes:
        hierarchies: The trees of groups.
        cpu_places: Where to look for CPU time, the best place first.
        memory_places: The same for memory.
        storage_places: The same for what was read from storage and written to it.
    """

    __slots__ = (
        "_by_controller",
        "cpu_places",
        "hierarchies",
        "memory_places",
        "storage_places",
    )

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        """Say where each counter is."""
        self.hierarchies = hierarchies
        self._by_controller = {
            name: each.folder for each in hierarchies for name in each.controllers
        }
        # Where both versions are mounted, the first has the controllers.
        unified = self.unified("")
        self.cpu_places = (
            *(Place(each, "cpuacct.usage", parse_nanoseconds) for each in self._legacy("cpuacct")),
            *(Place(each, "cpu.stat", parse_usage) for each in unified),
        )
        self.memory_places = (
            *(
                Place(each, "memory.usage_in_bytes", parse_number)
                for each in self._legacy("memory")
            ),
            *(Place(each, "memory.current", parse_number) for each in unified),
        )
        self.storage_places = (
            *(Place(each, file, parse_blkio) for each in self._legacy("blkio") for file in _BLKIO),
            *(Place(each, "io.stat", parse_io) for each in unified),
        )

    def folders(self, path: str, controller: str) -> list[str]:
        """Return where a group may have the files of a controller, the best place first.

        Args:
            controller: The controller of version 1.
        """
        return [*(folder + path for folder in self._legacy(controller)), *self.unified(path)]

    def unified(self, path: str) -> list[str]:
        """Return where a group may be in version 2."""
        return [each.folder + path for each in self.hierarchies if each.unified]

    def split(self, folder: str) -> tuple[Hierarchy, str] | None:
        """Return the hierarchy and the path of a group from its folder."""
        for each in self.hierarchies:
            if folder.startswith(each.folder + os.sep):
                return each, folder[len(each.folder) :]
        return None

    def _legacy(self, controller: str) -> list[str]:
        folder = self._by_controller.get(controller)
        return [] if folder is None else [folder]


# The deeper one wins where a process is in several: a container of a service is the container's.
RANKS = {"slurm": 3, "container": 2, "systemd": 1, "process": 0}

_SLURM_JOB = re.compile(r"job_(\d+)")
# From 26.05 on v2: a number in base 32 without I, L, O and U, as Slurm prints it.
_SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
# v1: /slurm/uid_1000/job_7 or /slurm_NODE/...; v2: .../slurmstepd.scope/job_7 or NODE_slurm....
_SLURM_SCOPE = re.compile(r"(?:(.+)_)?slurmstepd\.scope")
_SLURM_TREE = re.compile(r"slurm_(.+)")
# Where Slurm has its jobs unless it was built for several slurmd, or told otherwise.
_USUAL_TREES = ("/slurm", "/system.slice/slurmstepd.scope")
_SLURM_USER = re.compile(r"uid_(\d+)")
# Docker, podman, containerd and CRI-O use 64 hexadecimal digits, bare or in a scope of systemd.
_CONTAINER = re.compile(
    r"(?:[0-9a-f]{64}"
    r"|(?:docker|libpod|libpod-payload|crio|cri-containerd|containerd|buildkit)-[0-9a-f]{12,64})"
    r"(?:\.scope)?"
)
# containerd without systemd puts the pod into the same name: kubepods-pod1234_....slice:NAME:ID.
_CONTAINER_OF = re.compile(r"(.+):(?:docker|crio|cri-containerd|containerd):([0-9a-f]{12,64})")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,64}")
# Kubernetes says which pod: pod1234-... by itself, or in a slice with _ for -.
_POD = re.compile(r"(?:.*-)?pod([0-9a-f][0-9a-f_-]{7,})(?:\.slice)?")
_LXC = re.compile(r"lxc\.payload\.(.+)")
_UNIT = re.compile(r".+\.(?:service|scope)")
_USER = re.compile(r"user-(\d+)\.slice|user@(\d+)\.service|uid_(\d+)")
_USER_MANAGER = re.compile(r"/(user@\d+\.service)/")
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")
_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a path says about its group.

    Attributes:
        source: One of `snapshot.SOURCES`.
        job_id: What its users call it.
        name: What it is called besides, such as its pod; empty where not known.
        uid: The user, by number; None where the path does not say.
        node: Which of Slurm's nodes it is on, where the path says so.
        tree: The group that holds all jobs of a slurmd, for a job of Slurm.
        sluid: What Slurm names the group by, where that is not the job's number; the path does not
            say the number then, and `job_id` is the same.
        whole: Whether all below belongs to it. A service may hold others that count by themselves.
    """

    source: str
    job_id: str
    name: str = ""
    uid: int | None = None
    node: str = ""
    tree: str = ""
    sluid: str = ""
    whole: bool = True

    @property
    def slurmd(self) -> str:
        """Which slurmd's it is: by its node, or by a tree that is not where Slurm has it."""
        return self.node or ("" if self.tree in _USUAL_TREES else self.tree)


def name_group(path: str) -> Named | None:
    """Return what a group is, None for one that only holds others.

    Args:
        path: Its path below the root of its hierarchy, with a slash in front.

    >>> name_group("/slurm_n1/uid_1000/job_4711").job_id
    '4711'
    >>> name_group("/system.slice/slurmstepd.scope/job_4711").source
    'slurm'
    >>> name_group("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00").sluid
    's5K1KKYAYG5D00'
    >>> name_group("/system.slice/nginx.service").job_id
    'nginx.service'
    >>> name_group("/system.slice") is None
    True
    """
    above, _, last = path.rpartition("/")
    parent = above.rpartition("/")[2]
    if job := _SLURM_JOB.fullmatch(last):
        if user := _SLURM_USER.fullmatch(parent):
            tree = above.rpartition("/")[0]
            named = _SLURM_TREE.fullmatch(tree.rpartition("/")[2])
            node = named[1] if named else ""
            return Named(source="slurm", job_id=job[1], uid=int(user[1]), node=node, tree=tree)
        if scope := _SLURM_SCOPE.fullmatch(parent):
            return Named(source="slurm", job_id=job[1], node=scope[1] or "", tree=above)
        return None
    if _SLUID.fullmatch(last) and (scope := _SLURM_SCOPE.fullmatch(parent)):
        return Named(source="slurm", job_id=last, sluid=last, node=scope[1] or "", tree=above)
    if _CONTAINER.fullmatch(last):
        found = _CONTAINER_ID.search(last)
        pod = _POD.fullmatch(parent)
        return Named(
            source="container",
            job_id=found[0][:_SHOWN_DIGITS] if found else last,
            name=f"pod {pod[1].replace('_', '-')}" if pod else "",
            uid=_user(above),
        )
    if of := _CONTAINER_OF.fullmatch(last):
        pod = _POD.fullmatch(of[1])
        name = f"pod {pod[1].replace('_', '-')}" if pod else ""
        return Named(source="container", job_id=of[2][:_SHOWN_DIGITS], name=name)
    if payload := _LXC.fullmatch(last):
        return Named(source="container", job_id=payload[1])
    if parent == "lxc":
        return Named(source="container", job_id=last)
    # The scope of all jobs keeps counting those that ended, so that it is no unit itself.
    if _UNIT.fullmatch(last) and not _SLURM_SCOPE.fullmatch(last):
        # Every user may have a unit of this name, and so may the system.
        manager = _USER_MANAGER.search(path)
        called = _unescape(last)
        job_id = f"{manager[1]}/{called}" if manager else called
        return Named(source="systemd", job_id=job_id, uid=_user(path), whole=False)
    return None


def _unescape(name: str) -> str:
    r"""Return a name of systemd's as people wrote it: `\x2d` is a dash."""
    return _ESCAPED.sub(_plain, name)


def _plain(escaped: re.Match[str]) -> str:
    try:
        plain = bytes.fromhex(escaped[0].replace("\\x", "")).decode()
    except ValueError:
        return escaped[0]
    # What would do something to a terminal stays as it is.
    return plain if plain.isprintable() else escaped[0]


def _user(path: str) -> int | None:
    found = _USER.search(path)
    return int(next(each for each in found.groups() if each)) if found else None


# What a control group may use and what it waited for: read now and then, not at every tick.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a group is kept to, and what it waited for; NaN for what is not known.

    Attributes:
        cpus: Which CPUs; None where it may use all of them.
        reserved_cpus: How many CPUs, or how much of their time.
        reserved_bytes: How much memory.
        cpu_wait_s: For how long it waited for CPUs.
        memory_wait_s: The same for memory.
        io_wait_s: The same for storage.
    """

    cpus: frozenset[int] | None = None
    reserved_cpus: float = math.nan
    reserved_bytes: float = math.nan
    cpu_wait_s: float = math.nan
    memory_wait_s: float = math.nan
    io_wait_s: float = math.nan


def read_limits(layout: Layout, path: str, *, strict: bool, all_cpus: int) -> Limits:
    """Return the limits of a group.

    Args:
        strict: Whether a list of all CPUs is a reservation of the whole node, as Slurm makes it;
            to others it happens for want of a choice.
        all_cpus: How many CPUs the node has.
    """
    memory = layout.folders(path, "memory")
    said = _first(f"{each}/cpuset.cpus" for each in layout.folders(path, "cpuset"))
    try:
        cpus = parse_cpus(said.decode()) or None
    except NONSENSE:
        cpus = None
    if cpus is not None and not strict and len(cpus) >= all_cpus:
        cpus = None
    waits = {
        f"{each}_wait_s": _known(
            parse_pressure, _first(f"{folder}/{each}.pressure" for folder in layout.unified(path))
        )
        for each in PRESSURES
    }
    return Limits(
        cpus=cpus,
        reserved_cpus=float(len(cpus)) if cpus else _quota(layout, path),
        reserved_bytes=_known(
            parse_limit,
            _first(
                f"{folder}/{file}"
                for folder in memory
                for file in ("memory.max", "memory.limit_in_bytes")
            ),
        ),
        **waits,
    )


def read_cache(layout: Layout, path: str) -> tuple[float, float]:
    """Return the bytes of file cache that a group could do without, and its major page faults."""
    said = _first(f"{each}/memory.stat" for each in layout.folders(path, "memory"))
    cache_bytes = _in_all(said, b"inactive_file")
    return 0.0 if math.isnan(cache_bytes) else cache_bytes, _in_all(said, b"pgmajfault")


def _in_all(said: bytes, key: bytes) -> float:
    # Version 1 says first what the group alone has, then what all below it have together.
    for each in (b"total_" + key, key):
        try:
            return find_value(said, each)
        except NONSENSE:
            continue
    return math.nan


def read_count(layout: Layout, path: str) -> float:
    """Return how many processes and threads a group has, NaN where the kernel does not count."""
    said = _first(f"{each}/pids.current" for each in layout.folders(path, "pids"))
    return _known(parse_number, said)


def _quota(layout: Layout, path: str) -> float:
    for folder in layout.folders(path, "cpu"):
        said = read_or_empty(f"{folder}/cpu.max") or b" ".join(
            read_or_empty(f"{folder}/cpu.cfs_{each}_us").strip() for each in ("quota", "period")
        )
        if said.strip():
            return _known(parse_quota, said)
    return math.nan


def _first(paths: Iterable[str]) -> bytes:
    """Return the first file of some that says anything."""
    return next((said for path in paths if (said := read_or_empty(path)).strip()), b"")


def _known(parse: Callable[[bytes], float], said: bytes) -> float:
    try:
        return parse(said)
    except NONSENSE:
        return math.nan
