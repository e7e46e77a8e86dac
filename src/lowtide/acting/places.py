"""On which nodes a job may run, and who else may: those are whom it competes with.

Partitions share nodes, and within one a job that wants some feature, much memory or a kind of GPU
has few of them. So what counts is not a partition but a place: the nodes that some jobs may have.
Two places meet where they have a node in common. A place that is a whole partition has its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.errors import InvalidInput
from lowtide.slurm.fields import expand_nodes, gpu_kinds, read_text, requested_gpus

# What `sinfo --all -h -e -o` is asked for.
COLUMNS = "%R %C %D %c %m %G %f %N"
# How many CPUs are in use, free, of no use, and there at all.
_COUNTS = re.compile(r"\d+/\d+/\d+/\d+")
_FEATURE = re.compile(r"[\w.:=/-]+")


@dataclass(frozen=True, slots=True)
class Room:
    """What there is of a place.

    Attributes:
        cpus: CPUs that are in use or free.
        gpus: GPUs of it; 0 where nobody says.
        node_cpus: CPUs of its largest node; 0 where nobody says.
        cpu_memory: Bytes of memory for each CPU, where that is least; infinite where jobs may share
            it as they like.
        nodes: Their names; none where nobody says.
        reach: Where its jobs may run: those of each partition that they can have.
    """

    cpus: float
    gpus: float = 0.0
    node_cpus: float = 0.0
    cpu_memory: float = math.inf
    nodes: frozenset[str] = frozenset()
    reach: tuple[frozenset[str], ...] = ()

    def taken_cpus(
        self, cpus: float | None, *, nodes: float | None, memory: float, whole: bool
    ) -> float:
        """Return how many CPUs a job keeps from others: who has a node for itself keeps all of it.

        So does who has all of its memory, and half of that keeps half of the CPUs.

        Args:
            cpus: What it asks for, or has.
            memory: Bytes, over all nodes.
            whole: Whether it shares its nodes with nobody.

        >>> room = Room(128, node_cpus=32, cpu_memory=4e9)
        >>> room.taken_cpus(1, nodes=2, memory=0, whole=True)
        64
        >>> room.taken_cpus(1, nodes=1, memory=64e9, whole=False)
        16.0
        """
        alone = self.node_cpus * max(nodes or 1, 1) if whole else 0.0
        return max(cpus or 1.0, alone, memory / self.cpu_memory)

    def share_in(self, other: Room) -> float:
        """Return which share of its jobs' nodes is of another place as well."""
        if self is other:
            return 1.0
        return max((len(each & other.nodes) / len(each) for each in self.reach), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What decides where a job may run.

    Attributes:
        partitions: Their names, as sbatch takes them.
        features: What its nodes must have, as `--constraint` says it.
        cpus: CPUs on each node, at least.
        memory: Bytes on each node.
        gpus: GPUs on each node.
        gpu_kinds: What kinds of GPUs; none for any.
    """

    partitions: str
    features: str = ""
    cpus: float = 1.0
    memory: float = 0.0
    gpus: float = 0.0
    gpu_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Nodes of a partition that are alike."""

    partition: str
    names: frozenset[str]
    usable_cpus: float
    cpus: float
    memory: float
    gpus: float
    usable_gpus: float
    kinds: frozenset[str]
    features: frozenset[str]

    def suits(self, demand: Demand) -> bool:
        """Return whether a part of a job may run on one of them."""
        return (
            # What nobody says is no reason.
            (not self.cpus or demand.cpus <= self.cpus)
            and (not self.memory or demand.memory <= self.memory)
            and demand.gpus <= self.gpus
            and self.kinds.issuperset(demand.gpu_kinds)
            and has_features(self.features, demand.features)
        )


def read_features(text: str) -> frozenset[str]:
    """Return the features of nodes, as sinfo lists them.

    >>> sorted(read_features("fast,new")), sorted(read_features("(null)"))
    (['fast', 'new'], [])
    """
    return frozenset(_FEATURE.findall(read_text(text) or ""))


def has_features(features: frozenset[str], wanted: str) -> bool:
    """Return whether nodes have what a job wants; of what is counted or matched, any of it.

    >>> has_features(frozenset(("fast", "new")), "fast&new|old"), has_features(frozenset(), "[a|b]")
    (True, False)
    """
    if not wanted:
        return True
    if re.search(r"[\[\](){}*!]", wanted):
        named = {each for each in _FEATURE.findall(wanted) if not each.isdecimal()}
        return "!" in wanted or not named or bool(features & named)
    return all(features & set(each.split("|")) for each in re.split("[&,]", wanted))


@dataclass(slots=True)
class Places:
    """The nodes of a site by what may run there.

    Attributes:
        rooms: What there is of each place that was asked for, all partitions among them.
    """

    rooms: dict[str, Room] = field(default_factory=dict)
    _groups: Mapping[str, Sequence[_Alike]] = field(default_factory=dict)
    _minds_memory: bool = False
    _known: dict[Demand, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str, *, minds_memory: bool = False) -> Places:
        """Read what sinfo says that was asked for `COLUMNS`.

        Args:
            minds_memory: Whether jobs have memory of their own.

        >>> text = "gpu 8/20/4/32 2 16 64000 gpu:h200:4(S:0-1) new n[1-2]"
        >>> Places.read(text).rooms["gpu"].gpus
        7.0
        """
        groups: dict[str, list[_Alike]] = {}
        for number, line in enumerate(text.splitlines()):
            if (group := _read(line, number)) is not None:
                groups.setdefault(group.partition, []).append(group)
        places = cls(_groups=groups, _minds_memory=minds_memory)
        for name in groups:
            places.place_of(Demand(partitions=name))
        return places

    def place_of(self, demand: Demand) -> str:
        """Return the place of jobs that want something, by which `rooms` has it.

        Of several partitions that is the first; that of one that nobody knows is empty.
        """
        known = self._known.get(demand)
        if known is None:
            known = self._known[demand] = self._find(demand)
        return known

    def _find(self, demand: Demand) -> str:
        first, *others = demand.partitions.split(",")
        if first not in self._groups:
            return ""
        names = [first, *(name for name in others if name in self._groups)]
        parts = {name: self._suitable(name, demand) for name in names}
        own = parts[names[0]]
        is_all = len(own) == len(self._groups[names[0]])
        place = names[0] if is_all else f"{names[0]}:{','.join(map(str, own))}"
        if len(names) > 1:
            place = ",".join([place, *names[1:]])
        if place not in self.rooms:
            groups = [self._groups[names[0]][number] for number in own]
            reach = (_named(self._groups[name][k] for k in found) for name, found in parts.items())
            self.rooms[place] = self._room(groups, tuple(reach))
        return place

    def _suitable(self, partition: str, demand: Demand) -> list[int]:
        """Return which nodes of a partition suit; all where none does, which is Slurm's to say."""
        groups = self._groups[partition]
        found = [number for number, each in enumerate(groups) if each.suits(demand)]
        return found or list(range(len(groups)))

    def _room(self, groups: Sequence[_Alike], reach: tuple[frozenset[str], ...]) -> Room:
        least = [each.memory / each.cpus for each in groups if each.cpus and each.memory]
        return Room(
            sum(each.usable_cpus for each in groups),
            sum(each.usable_gpus for each in groups),
            node_cpus=max(each.cpus for each in groups),
            cpu_memory=min(least, default=math.inf) if self._minds_memory else math.inf,
            nodes=_named(groups),
            reach=reach,
        )


def _named(groups: Iterable[_Alike]) -> frozenset[str]:
    return frozenset(name for each in groups for name in each.names)


def _read(line: str, number: int) -> _Alike | None:
    """Read a line of sinfo; what it leaves out at its end is not known."""
    words = line.split()
    place = next((i for i, each in enumerate(words) if _COUNTS.fullmatch(each)), 0)
    if not place:
        return None
    used, free, _, total = map(float, words[place].split("/"))
    nodes, cpus, megabytes = (_count(words, place + 1 + k) for k in range(3))
    gres, features, names = ([*words[place + 4 :], "", "", ""])[:3]
    gpus = requested_gpus(re.sub(r"\([^)]*\)", "", gres))
    try:
        named = frozenset(expand_nodes(names))
    except InvalidInput:
        named = frozenset()
    return _Alike(
        partition=" ".join(words[:place]),
        # Nobody else has nodes of which nobody says the names.
        names=named or frozenset((f"{words[0]}/{number}",)),
        usable_cpus=used + free,
        cpus=cpus,
        memory=megabytes * 2**20,
        gpus=gpus,
        # Nodes that are down have their GPUs with them.
        usable_gpus=gpus * nodes * (used + free) / max(total, 1.0),
        kinds=frozenset(gpu_kinds(gres)),
        features=read_features(features),
    )


def _count(words: Sequence[str], place: int) -> float:
    """Return a number among words; 0 where there is none."""
    word = words[place].rstrip("+") if place < len(words) else ""
    return float(word) if word.isdecimal() else 0.0


def meetings(rooms: Mapping[str, Room], place: str) -> Iterator[str]:
    """Yield the places on whose nodes jobs of a place may run; that itself is the first."""
    yield place
    reach = rooms[place].reach
    for name, room in rooms.items():
        if name != place and any(not each.isdisjoint(room.nodes) for each in reach):
            yield name


def backlog_s(
    held: Iterable[tuple[str, float, float | None]],
    in_line: Iterable[tuple[str, float, float | None]],
    rooms: Mapping[str, Room],
) -> dict[str, float]:
    """Return how long each place with jobs in line takes for them and for what runs, by limits.

    This is what Slurm itself answers to `sbatch --test-only`, for all who wait and at no cost: it
    is pessimistic about lengths, and knows nothing of who comes later. Jobs that may run elsewhere
    count by the share of their nodes that are here.

    Args:
        held: The place of each that runs, its CPUs, and the seconds it has left; None for ever.
        in_line: The same of each that waits for its turn.
    """
    endless: dict[str, float] = {}
    sums: list[dict[str, float]] = []
    for jobs in (held, in_line):
        cpu_s: dict[str, float] = {}
        for place, cpus, left_s in jobs:
            if left_s is None:
                # Who may run for ever leaves the others fewer.
                endless[place] = endless.get(place, 0.0) + cpus
            cpu_s[place] = cpu_s.get(place, 0.0) + cpus * max(left_s or 0.0, 0.0)
        sums.append(cpu_s)
    held_s, line_s = sums
    found = {}
    for name, room in rooms.items():

        def here(amounts: Mapping[str, float], room: Room = room) -> float:
            shares = ((rooms[k].share_in(room), v) for k, v in amounts.items() if k in rooms)
            return sum(share * amount for share, amount in shares)

        if any(rooms[place].share_in(room) for place in line_s if place in rooms):
            works = max(room.cpus - here(endless), 1.0)
            found[name] = (here(line_s) + here(held_s)) / works
    return found
