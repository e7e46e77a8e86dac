"""What goes over the network: for the node, and for those that have a network of their own.

A node counts the same bytes several times: at the card, at the bond of two cards, at the bridge on
top of it and at each container. So only cards count for the node. Containers have a network of
their own, whose interfaces count for nobody else.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from lowtide.files import read_or_empty
from lowtide.monitor.kernel_files import NONSENSE, Problems, parse_count

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
