"""What the whole node uses: CPU time, memory, storage, network, pressure.

Whoever measures, estimates or watches reads it here, so that "busy" has one answer.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.files import read_or_empty
from lowtide.monitor.cgroups import parse_cpus, parse_pressure
from lowtide.monitor.kernel_files import NONSENSE, KernelFile, OpenFiles, Problems, parse_count
from lowtide.monitor.processes import TICKS_PER_S
from lowtide.monitor.snapshot import PRESSURES, NodeCounts

_SECTOR_BYTES = 512
_KILOBYTE = 1024
# What the columns of the first line of /proc/stat are; guests, which follow, are users.
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_BUSY = ("user", "nice", "system", "irq", "softirq")


@dataclass(slots=True)
class NodeFiles:
    """The files of the kernel's that speak of the whole node.

    Attributes:
        procfs: Where /proc is.
        sysfs: Where /sys is.
        files: How many files may stay open.
        problems: Where to name what makes no sense.
        disks: The disks that stand for themselves, as major:minor.
        sockets: The socket of each CPU; empty where it is not known.
        threads_per_core: Hardware threads in a core, None where that is not known.
    """

    procfs: Path
    sysfs: Path
    files: OpenFiles
    problems: Problems = field(default_factory=Problems)
    disks: frozenset[bytes] = field(default=frozenset(), init=False)
    sockets: dict[int, int] = field(default_factory=dict, init=False)
    threads_per_core: int | None = field(default=None, init=False)
    _open: dict[str, KernelFile] = field(default_factory=dict, init=False)
    _cards: Cards = field(init=False)

    def __post_init__(self) -> None:
        self._cards = Cards(str(self.sysfs))
        self.disks = _find_disks(self.sysfs)
        self.sockets = _find_sockets(self.sysfs)
        self.threads_per_core = count_threads_per_core(self.sysfs)

    def read(self) -> NodeCounts:
        """Return what the node has used so far and holds now."""
        modes = self.modes()
        memory = self.memory()
        read, written = self.storage()
        received, sent = self._network()
        pressures = {}
        for each in PRESSURES:
            try:
                pressures[each] = parse_pressure(self._said(f"pressure/{each}"))
            except NONSENSE:
                continue
        return NodeCounts(
            cpus=count_cpus(self.procfs, self.sysfs),
            busy_s=busy_of(modes),
            memory_bytes=memory.get("MemTotal", math.nan),
            available_bytes=memory.get("MemAvailable", math.nan),
            read_bytes=read,
            written_bytes=written,
            received_bytes=received,
            sent_bytes=sent,
            pressure_s=pressures,
            mode_s=modes,
            threads_per_core=self.threads_per_core or math.nan,
        )

    def modes(self) -> dict[str, float]:
        """Return the CPU time since boot by what it went to, as `modes_of`."""
        return modes_of(self._said("stat"))

    def memory(self) -> dict[str, float]:
        """Return `MemTotal` and `MemAvailable` in bytes, as far as they are known."""
        return memory_of(self._said("meminfo"), lambda line: self._reject("meminfo", line))

    def storage(self) -> tuple[float, float]:
        """Return how many bytes disks have read and written, NaN where nobody says."""
        said = self._said("diskstats")
        if not said or not self.disks:
            return math.nan, math.nan
        read = written = 0
        for line in said.splitlines():
            fields = line.split()
            try:
                if b"%s:%s" % (fields[0], fields[1]) in self.disks:
                    read += parse_count(fields[5])
                    written += parse_count(fields[9])
            except NONSENSE:
                self._reject("diskstats", line)
        return float(read * _SECTOR_BYTES), float(written * _SECTOR_BYTES)

    @property
    def boot(self) -> float:
        """When the node was started, epoch seconds; 0 where it is not known."""
        for line in self._said("stat").splitlines():
            if line.startswith(b"btime "):
                with suppress(*NONSENSE):
                    return float(parse_count(line[6:]))
        return 0.0

    def close(self) -> None:
        """Let go of the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _said(self, name: str) -> bytes:
        try:
            if name not in self._open:
                self._open[name] = KernelFile(f"{self.procfs}/{name}", self.files)
            self._open[name].renew()
            return self._open[name].read_all()
        except OSError:
            # It may be there again, as another file.
            if name in self._open:
                self._open.pop(name).close()
            return b""

    def _reject(self, name: str, line: bytes) -> None:
        told = f"{self.procfs}/{name} makes no sense: {line[:80]!r}"
        self.problems.reject(f"broken {name}", told)

    def _network(self) -> tuple[float, float]:
        said = self._said("net/dev")
        if not said:
            return math.nan, math.nan
        moved = parse_traffic(said, self.problems)
        counted = [moved[name] for name in self._cards.choose(moved)]
        if not counted:
            return math.nan, math.nan
        received, sent = (sum(each) for each in zip(*counted, strict=True))
        return float(received), float(sent)


def modes_of(stat: bytes) -> dict[str, float]:
    r"""Return the CPU time since boot by what it went to; nothing where that makes no sense.

    >>> modes_of(b"cpu  300 0 100 500 100 0 0 50\n")["steal"] * TICKS_PER_S
    50.0
    """
    first = stat.partition(b"\n")[0].split()[1:]
    try:
        return {
            name: parse_count(each) / TICKS_PER_S for name, each in zip(_MODES, first, strict=False)
        }
    except NONSENSE:
        return {}


def busy_of(modes: Mapping[str, float]) -> float:
    """Return the CPU time in use, NaN where it is not known.

    Time that the hypervisor took away was used by others, and is no use of this machine.

    Args:
        modes: CPU time by what it went to; guests are users.
    """
    return sum(modes.get(name, math.nan) for name in _BUSY)


def memory_of(
    meminfo: bytes, reject: Callable[[bytes], object] = lambda _: None
) -> dict[str, float]:
    """Return `MemTotal` and `MemAvailable` in bytes, as far as they are known."""
    found = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        if name in (b"MemTotal", b"MemAvailable"):
            try:
                found[name.decode()] = float(parse_count(rest.split()[0])) * _KILOBYTE
            except NONSENSE:
                reject(line)
    return found


def count_cpus(procfs: Path, sysfs: Path) -> int:
    """Return how many CPUs are online, 0 where nobody says."""
    try:
        found = len(parse_cpus(read_or_empty(f"{sysfs}/devices/system/cpu/online").decode()))
    except NONSENSE:
        found = 0
    # The first line of the other file adds them up.
    return found or read_or_empty(f"{procfs}/stat").count(b"\ncpu")


def _find_disks(sysfs: Path) -> frozenset[bytes]:
    """Return the disks that have a device; others are made of those, and would count twice."""
    found = set()
    try:
        for each in (sysfs / "block").iterdir():
            if (each / "device").exists():
                found.add(read_or_empty(f"{each}/dev").strip())
    except OSError:
        return frozenset()
    return frozenset(found - {b""})


def _find_sockets(sysfs: Path) -> dict[int, int]:
    """Return the socket of each CPU, counted from 0 in the order of their numbers."""
    packages = {}
    try:
        for each in (sysfs / "devices/system/cpu").iterdir():
            number = os.fsencode(each.name).removeprefix(b"cpu")
            said = read_or_empty(f"{each}/topology/physical_package_id").strip()
            with suppress(*NONSENSE):
                packages[parse_count(number)] = parse_count(said)
    except OSError:
        return {}
    order = sorted(set(packages.values()))
    return {cpu: order.index(package) for cpu, package in packages.items()}


def count_threads_per_core(sysfs: Path) -> int | None:
    """Return how many hardware threads share a core at most, None where nobody says."""
    most = 0
    for core in (sysfs / "devices/system/cpu").glob("cpu[0-9]*/topology"):
        # The second is what older kernels call it.
        said = read_or_empty(f"{core}/core_cpus_list") or read_or_empty(
            f"{core}/thread_siblings_list"
        )
        with suppress(*NONSENSE):
            most = max(most, len(parse_cpus(said.decode())))
    return most or None


# What goes over the network: for the node, and for those that have a network of their own.
#
# A node counts the same bytes several times: at the card, at the bond of two cards, at the bridge
# on top of it and at each container. So only cards count for the node. Containers have a network of
# their own, whose interfaces count for nobody else.

_LOOPBACK = b"lo"
# What is made of other interfaces, or leads to them, by the names that it commonly has.
_VIRTUAL = re.compile(
    rb"(bond|team|docker|podman|cni|flannel|cali|cilium|lxc|lxd|virbr|vnet|veth|tap|tun|dummy|ifb"
    rb"|vxlan|geneve|macvlan|ipvlan|wg|sit|gre|ip6tnl|nodelocaldns|kube|ovs|vlan).*"
    rb"|br[0-9-].*|.*[.@].*"
)


def parse_traffic(said: bytes, problems: Problems) -> dict[bytes, tuple[int, int]]:
    """Return the bytes that each interface received and sent."""
    found = {}
    for line in said.splitlines():
        name, colon, rest = line.partition(b":")
        if not colon:
            # The first two lines are a heading.
            continue
        fields = rest.split()
        try:
            received, sent = parse_count(fields[0]), parse_count(fields[8])
        except NONSENSE:
            problems.reject("broken network", f"net/dev makes no sense: {line[:80]!r}")
            continue
        found[name.strip()] = received, sent
    return found


@dataclass(slots=True)
class Cards:
    """Which interfaces of a node stand for themselves.

    Attributes:
        sysfs: Where /sys is.
    """

    sysfs: str
    _names: frozenset[bytes] = field(default=frozenset(), init=False)
    _chosen: frozenset[bytes] = field(default=frozenset(), init=False)

    def choose(self, names: Iterable[bytes]) -> frozenset[bytes]:
        """Return those of some interfaces that stand for themselves.

        They are those with a device. Where none has one, as in a container, they are those that are
        not made of others.
        """
        given = frozenset(names)
        if given != self._names:
            self._names = given
            self._chosen = self._find(given - {_LOOPBACK})
        return self._chosen

    def _find(self, names: frozenset[bytes]) -> frozenset[bytes]:
        real = {each for each in names if self._has(each, "device")}
        if real:
            # Clouds pair two cards, of which the upper one counts what the lower one does.
            return frozenset(each for each in real if self._master(each) not in real)
        return frozenset(
            each for each in names if not _VIRTUAL.fullmatch(each) and not self._is_made(each)
        )

    def _has(self, name: bytes, what: str) -> bool:
        return os.path.exists(f"{self._folder(name)}/{what}")  # noqa: PTH110

    def _master(self, name: bytes) -> bytes:
        try:
            link = os.readlink(f"{self._folder(name)}/master")  # noqa: PTH115
        except OSError:
            return b""
        return os.fsencode(link.rpartition("/")[2])

    def _is_made(self, name: bytes) -> bool:
        with suppress(OSError):
            entries = os.listdir(self._folder(name))  # noqa: PTH208
            return any(each.startswith("lower_") for each in entries)
        return False

    def _folder(self, name: bytes) -> str:
        return f"{self.sysfs}/class/net/{os.fsdecode(name)}"


@dataclass(slots=True, eq=False)
class Traffic:
    """What a unit received and sent over a network of its own; NaN where it has none.

    Attributes:
        received_bytes: Received so far.
        sent_bytes: Sent so far.
        space: Its network, empty where it uses the node's or nobody knows yet.
        pid: The process by which the network is read; 0 where there is none.
        settled: Whether it is known what it uses.
    """

    received_bytes: float = math.nan
    sent_bytes: float = math.nan
    space: str = ""
    pid: int = 0
    settled: bool = False


@dataclass(slots=True)
class Networks:
    """The networks of a node's units.

    Where several units share one, as the containers of a pod do, it counts for the first of them.

    Attributes:
        procfs: Where /proc is.
        problems: Where to count what makes no sense.
    """

    procfs: str
    problems: Problems
    _own: str = field(init=False)
    _owners: dict[str, Traffic] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Who may not look at the first process can still look at itself.
        self._own = self._space("1") or self._space("self")

    def find(self, traffic: Traffic, pids: Iterable[int], *, young: bool = False) -> None:
        """Find out whether a unit has a network of its own."""
        for pid in pids if self._own else ():
            space = self._space(str(pid))
            if space:
                is_own = space != self._own
                traffic.space, traffic.pid = (space, pid) if is_own else ("", 0)
                traffic.settled = is_own or not young
                return

    def read(self, traffic: Traffic) -> None:
        """Read what a unit received and sent, where it has a network of its own."""
        if not traffic.pid or self._owners.setdefault(traffic.space, traffic) is not traffic:
            return
        said = read_or_empty(f"{self.procfs}/{traffic.pid}/net/dev")
        # The process may have ended, and its number be another's.
        if not said or self._space(str(traffic.pid)) != traffic.space:
            traffic.pid, traffic.settled = 0, False
            return
        moved = parse_traffic(said, self.problems)
        moved.pop(_LOOPBACK, None)
        traffic.received_bytes = float(sum(received for received, _ in moved.values()))
        traffic.sent_bytes = float(sum(sent for _, sent in moved.values()))

    def end(self, traffic: Traffic) -> None:
        """Let others have the network of a unit that is no more."""
        if self._owners.get(traffic.space) is traffic:
            del self._owners[traffic.space]

    def _space(self, pid: str) -> str:
        try:
            return os.readlink(f"{self.procfs}/{pid}/ns/net")  # noqa: PTH115
        except OSError:
            return ""
