"""A batch job as it is handed to Slurm: the user's own words, and what is added to them.

Only what decides when the job may start is read from them; all else is Slurm's business.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.acting.places import Demand, Room, has_features
from lowtide.acting.site import Shares
from lowtide.acting.tag import Tag, decode, encode
from lowtide.acting.waits import class_of
from lowtide.acting.wrapper import directives, wrap
from lowtide.errors import FileProblem, InvalidInput
from lowtide.slurm.fields import expand_nodes, gpu_kinds, read_limit, requested_gpus
from lowtide.units import parse_size

# Options of sbatch without a value of their own; all others take the next word.
_FLAGS = frozenset(
    (
        *("contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "no-kill"),
        *("overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue"),
        *("no-requeue", "spread-job", "test-only", "usage", "use-min-nodes", "verbose"),
        *("version", "wait", "nice", "share"),
    )
)
# The others: as long as it is plain which one is meant, sbatch takes the beginning of a name.
_VALUED = frozenset(
    (
        *("account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "clusters"),
        *("cluster-constraint", "comment", "constraint", "container", "container-id", "core-spec"),
        *("cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline"),
        *("delay-boot", "dependency", "distribution", "error", "exclude", "export", "export-file"),
        *("extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node"),
        *("gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name"),
        *("kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem"),
        *("mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nodefile", "nodelist"),
        *("nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node"),
        *("ntasks-per-socket", "open-mode", "output", "partition", "power", "prefer", "priority"),
        *("profile", "qos", "reservation", "resv-ports", "segment", "signal", "sockets-per-node"),
        *("switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp"),
        *("tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey", "wrap"),
    )
)
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_AS_ASKED = Shares()
_SHORT = {
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "n": "ntasks",
    "N": "nodes",
    "O": "overcommit",
    "p": "partition",
    "Q": "quiet",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "V": "version",
    "w": "nodelist",
    "x": "exclude",
    "F": "nodefile",
    "h": "help",
    "W": "wait",
}
# What a user may have set for every sbatch, and which option that is.
_SET = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CLUSTERS": "clusters",
    "SLURM_CLUSTERS": "clusters",
    "SBATCH_COMMENT": "comment",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_PARTITION": "partition",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WAIT": "wait",
}
# Nothing is to be added to these: they are not submitted, or not to be started.
_LEFT_ALONE = (
    *("test-only", "hold", "help", "usage", "version", "begin", "deadline"),
    # When these start is not the queue's decision alone.
    *("dependency", "reservation", "nodelist", "nodefile", "licenses"),
    # Another Slurm has it, of which nothing is known here.
    "clusters",
    # Whoever waits for its end wants it to begin.
    "wait",
)


# Options of lowtide's that sbatch has not: behind its own they are a mistake.
_OURS = frozenset(
    ("finish-by", "grid", "seed", "how", "min-run", "saves", "dry-run", "check", "no-check", "json")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeNodes:
    """Nodes of a partition that are alike.

    Attributes:
        count: How many there are.
        cpus: CPUs of each.
        memory: Bytes of memory of each.
        gpus: GPUs of each.
        gpu_kinds: Of which kinds these are, where that is said.
        features: What they have.
    """

    count: float
    cpus: float
    memory: float = math.inf
    gpus: float = 0.0
    gpu_kinds: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a user would have typed behind `sbatch`.

    Attributes:
        before: The options, as they were given.
        script: The script's path; None for `--wrap` or what comes by stdin.
        arguments: What the script is given.
        text: The script.
        options: What options say, by their long names, those of the script included.
    """

    before: tuple[str, ...]
    script: str | None
    arguments: tuple[str, ...]
    text: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, words: Sequence[str], environment: Mapping[str, str] = os.environ) -> Submission:
        """Read the words behind `sbatch`.

        Args:
            environment: Where options of sbatch may stand, too.
        """
        if ":" in words:
            # A job of several parts, each with options of its own.
            return cls(before=tuple(words), script=None, arguments=(), text="")
        given, place = _parse(words)
        if ours := sorted(_OURS & given.keys()):
            raise InvalidInput(
                f"--{ours[0]} is an option of lowtide's, and those come before sbatch's: "
                f"lowtide sbatch --{ours[0]} ... {shlex.join(words[:1])} ..."
            )
        rest = list(words[place:])
        script = None if "wrap" in given else rest.pop(0) if rest else None
        if script is None and "wrap" not in given:
            raise InvalidInput("name the batch script: lowtide sbatch --finish-by 8am train.sh")
        text = f"#!/bin/sh\n{given['wrap']}\n" if script is None else _read_script(script)
        said: dict[str, str] = {}
        for line in directives(text):
            said |= _parse(_words(line.removeprefix("#SBATCH")))[0]
        said |= {option: environment[name] for name, option in _SET.items() if name in environment}
        return cls(
            before=tuple(words[:place]),
            script=script,
            arguments=tuple(rest),
            text=text,
            options=said | given,
        )

    @property
    def limit_s(self) -> float | None:
        """The time limit that the user has set; None where there is none."""
        said = self.options.get("time")
        return None if said is None or said.strip() == "0" else read_limit(said)

    @property
    def name(self) -> str:
        """What it is called in the queue."""
        usual = "wrap" if self.script is None else Path(self.script).name
        return self.options.get("job-name") or usual

    @property
    def left_alone(self) -> str:
        """Why it is handed on as it is; empty where it is not."""
        found = [f"--{name}" for name in _LEFT_ALONE if name in self.options]
        if ":" in self.before or re.search(r"^#SBATCH\s+hetjob", self.text, re.M):
            found.append("a job of several parts")
        return found[0] if found else ""

    @property
    def cpus(self) -> float:
        """How many CPUs one element of it asks for, as far as that is plain."""
        nodes = self._number("nodes")
        tasks = max(self._number("ntasks"), nodes * self._number("ntasks-per-node"))
        each = max(self._number("cpus-per-task"), self._number("mincpus") * nodes / tasks)
        return max(tasks * each, self.gpus * self._number("cpus-per-gpu", 0.0))

    @property
    def gpus(self) -> float:
        """How many GPUs one element of it asks for, as far as that is plain."""

        def count(name: str) -> float:
            return requested_gpus(",".join(f"gpu:{each}" for each in _listed(self.options, name)))

        nodes = self._number("nodes")
        per_node = max(requested_gpus(self.options.get("gres")), count("gpus-per-node"))
        tasks = max(self._number("ntasks"), nodes * self._number("ntasks-per-node"))
        return max(per_node * nodes, count("gpus-per-task") * tasks, count("gpus"))

    def at_once(
        self, nodes: Sequence[LikeNodes], cpus: float | None = None, shares: Shares = _AS_ASKED
    ) -> float | None:
        """Return how many elements run on some nodes at once; None where nobody says.

        Args:
            nodes: All that there are for it.
            cpus: CPUs that Slurm itself says it takes.
            shares: What it takes besides what it asks for.
        """
        parts = self._number("nodes")
        cpus = max(self.cpus, cpus or 1.0) / parts
        gpus = self.gpus / parts

        def fit(each: LikeNodes) -> float:
            if not self._may_have(each):
                return 0.0
            memory = self._memory(each, cpus, gpus, shares)
            if self._is_alone(shares):
                return each.count * (each.cpus >= self.cpus / parts and each.gpus >= gpus)
            wanted = ((each.cpus, cpus), (each.memory, memory), (each.gpus, gpus))
            return each.count * min(have // want for have, want in wanted if want)

        room = sum(map(fit, nodes)) // parts
        return max(room, 1.0) if nodes else None

    def _may_have(self, node: LikeNodes) -> bool:
        return has_features(node.features, self.features) and (
            not node.gpu_kinds or set(node.gpu_kinds) >= set(self.gpu_kinds)
        )

    @property
    def features(self) -> str:
        """What its nodes must have."""
        return self.options.get("constraint", "")

    @property
    def gpu_kinds(self) -> tuple[str, ...]:
        """What kinds of GPUs it asks for; none for any."""
        listed = ("gpus", "gpus-per-node", "gpus-per-task")
        said = (f"gpu:{each}" for name in listed for each in _listed(self.options, name))
        return gpu_kinds(self.options.get("gres"), *said)

    def demand(self, partition: str | None, cpus: float | None = None) -> Demand:
        """Return what decides on which nodes it may run.

        Args:
            partition: The one that it is for, where it names none.
            cpus: CPUs that Slurm itself says it takes.
        """
        parts = self.nodes
        cpus = max(self.cpus, cpus or 1.0) / parts
        gpus = self.gpus / parts
        sizes = {name: _bytes(self.options.get(name)) for name in _MEMORY}
        return Demand(
            partitions=self.options.get("partition") or partition or "",
            features=self.features,
            cpus=cpus,
            memory=max(sizes["mem"], sizes["mem-per-cpu"] * cpus, sizes["mem-per-gpu"] * gpus),
            gpus=gpus,
            gpu_kinds=self.gpu_kinds,
        )

    def excludes_many(self, room: Room | None) -> bool:
        """Return whether it rules out more than a tenth of its nodes by name.

        The queue does not tell that, so that a driver would count on all of them.
        """
        named: tuple[str, ...] = ()
        with suppress(InvalidInput):
            named = expand_nodes(self.options.get("exclude"))
        if room is None or not named:
            return bool(named)
        return 10 * len(room.nodes.intersection(named)) > len(room.nodes)

    def _memory(self, node: LikeNodes, cpus: float, gpus: float, shares: Shares) -> float:
        """Return the bytes that an element takes on a node."""
        sizes = {name: _bytes(self.options.get(name)) for name in _MEMORY}
        memory = max(sizes["mem"], sizes["mem-per-cpu"] * cpus, sizes["mem-per-gpu"] * gpus)
        if not memory and shares.minds_memory:
            # None at all (--mem=0) is all that a node has, as nothing said may be.
            said = any(name in self.options for name in _MEMORY)
            memory = math.inf if said else max(shares.cpu_memory * cpus, shares.node_memory)
        # What fits nowhere is Slurm's to refuse.
        return min(memory, node.memory) if math.isinf(memory) else memory

    def _is_alone(self, shares: Shares) -> bool:
        return shares.whole or self.options.get("exclusive", "user") not in ("user", "mcs")

    @property
    def nodes(self) -> float:
        """How many nodes one element of it asks for."""
        return self._number("nodes")

    def taken_cpus(
        self, nodes: Sequence[LikeNodes], cpus: float | None = None, shares: Shares = _AS_ASKED
    ) -> float:
        """Return how many CPUs an element keeps from others, by whole nodes or by its memory.

        Args:
            nodes: All that there are for it.
            cpus: CPUs that Slurm itself says it takes.
            shares: What it takes besides what it asks for.
        """
        parts = self._number("nodes")
        taken = cpus = max(self.cpus, cpus or 1.0)
        for each in nodes:
            alone = each.cpus if self._is_alone(shares) else 0.0
            memory = self._memory(each, cpus / parts, self.gpus / parts, shares)
            by_memory = each.cpus * memory / each.memory if shares.minds_memory else 0.0
            taken = max(taken, parts * max(alone, by_memory))
        return taken

    @property
    def tasks(self) -> int:
        """How many elements an array has."""
        spec = self.options.get("array", "").partition("%")[0]
        return sum(_count_tasks(each) for each in spec.split(",")) or 1

    def _number(self, name: str, usual: float = 1.0) -> float:
        """Return the number that an option begins with."""
        found = re.match(r"\d+", self.options.get(name, ""))
        return (float(found[0]) if found else 0.0) or usual

    def waves(self, room: float | None) -> int:
        """Return how many times as long as one element an array takes, at least.

        Args:
            room: How many elements run at once; None where nobody says.
        """
        at_once, tasks = self.options.get("array", "").partition("%")[2], self.tasks
        most = (float(at_once) if at_once.isdecimal() else 0.0) or math.inf
        most = min(most, room or math.inf)
        return math.ceil(tasks / most) if most < tasks else 1

    def kind(self, default_partition: str | None, cpus: float | None = None) -> str:
        """Return the class that it waits with.

        Args:
            cpus: CPUs that it keeps from others, where more is known than it says.
        """
        if cpus is None and self._is_alone(_AS_ASKED):
            # Whole nodes wait like the largest.
            cpus = math.inf
        # Of several partitions it waits for the first that is free.
        partition = (self.options.get("partition") or default_partition or "").partition(",")[0]
        return class_of(partition or None, max(self.cpus, cpus or 1.0), self.gpus)

    def command(self, tag: Tag, *, now: float, wrapped: Path | None = None) -> list[str]:
        """Return the one `sbatch` that submits it.

        Args:
            wrapped: Where the wrapped script lies, of a job that may be stopped.
        """
        words = ["sbatch", "--parsable", f"--comment={encode(tag, self.comment)}"]
        if tag.begin is not None and (left_s := math.floor(tag.begin - now)) > 0:
            words.append(f"--begin=now+{left_s}")
        if wrapped is None:
            ends = () if self.script is None else (self.script, *self.arguments)
            return [*words, *self._before("comment", "parsable", "quiet"), *ends]
        added = {"requeue": "", "open-mode": "append", "signal": "B:USR1@120"}
        for option, value in {**added, "job-name": self.name}.items():
            if option not in self.options:
                words.append(f"--{option}={value}" if value else f"--{option}")
        return [
            *words,
            *self._before("comment", "parsable", "quiet", "wrap"),
            str(wrapped),
            *self.arguments,
        ]

    @property
    def comment(self) -> str:
        """What the user has written beside it; a tag that was copied along is none of it.

        In one line: a wrapper reads no other.
        """
        return decode(re.sub(r"[\r\n]+", " ", self.options.get("comment", "")))[1]

    @property
    def may_be_stopped(self) -> bool:
        """Whether its user has not ruled out that it is started again."""
        return "no-requeue" not in self.options

    def wrapped(self, checkpoint: str = "") -> str:
        """Return the script that stops and comes back.

        Args:
            checkpoint: What it saves to; empty where nobody says.
        """
        return wrap(self.text, checkpoint, signal=self.options.get("signal", ""))

    def _before(self, *without: str) -> list[str]:
        kept: list[str] = []
        rest = list(self.before)
        while rest:
            options, used = _parse_one(rest)
            if not set(options) & set(without):
                kept += rest[:used]
            del rest[:used]
        return kept


def _listed(options: Mapping[str, str], name: str) -> list[str]:
    """Return the parts of what an option says, as in `a100:2,v100:1`."""
    return list(filter(None, options.get(name, "").split(",")))


def _bytes(said: str | None) -> float:
    """Return a size as sbatch takes it, in megabytes by itself; 0 where it is none."""
    try:
        return parse_size(f"{said}M" if said and said.isdecimal() else said or "0")
    except InvalidInput:
        return 0.0


def _words(line: str) -> list[str]:
    """Return the words of a line; one with an open quotation is Slurm's to refuse."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _count_tasks(words: str) -> int:
    """Return how many elements `0-15:4` names."""
    found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*", words)
    if found is None:
        return 0
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    return max(last - first, -1) // max(step, 1) + 1


def _read_script(path: str) -> str:
    try:
        return Path(path).read_text(errors="surrogateescape")
    except OSError as error:
        raise FileProblem(
            f"the batch script {path} cannot be read: {error.strerror}", path=path
        ) from None


def _parse(words: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return what options say by their long names, and where they end."""
    said: dict[str, str] = {}
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        if words[place] == "--":
            return said, place + 1
        found, used = _parse_one(words[place:])
        said |= found
        place += used
    return said, place


def _full(name: str) -> str:
    """Return the option that a name or the beginning of one stands for, as sbatch takes it."""
    known = _FLAGS | _VALUED
    meant = [each for each in known if each.startswith(name)] if name and name not in known else ()
    return meant[0] if len(meant) == 1 else name


def _parse_one(words: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return what the first option says, and how many words that takes."""
    word = words[0]
    following = words[1] if len(words) > 1 else ""
    if word.startswith("--"):
        given, equals, value = word[2:].partition("=")
        name = _full(given)
        if equals or name in _FLAGS or not name:
            return {name: value}, 1
        return {name: following}, min(2, len(words))
    said: dict[str, str] = {}
    for place, letter in enumerate(word[1:], start=1):
        name = _SHORT.get(letter, letter)
        if name not in _FLAGS:
            value = word[place + 1 :]
            if value:
                return said | {name: value.removeprefix("=")}, 1
            return said | {name: following}, min(2, len(words))
        said[name] = ""
    return said, 1
