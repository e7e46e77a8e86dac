"""Asking Slurm about its jobs, without ever waiting long for an answer.

A dead slurmctld blocks those who ask it, so every question has a time limit, and after a question
that was not answered Slurm is left alone for a while. What goes wrong is said once.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from lowtide.errors import (
    InvalidInput,
    LowtideError,
    MeterProblem,
    NoAccounting,
    NoSuchJob,
    NoSuchNode,
    Once,
    SlurmProblem,
    SlurmSilent,
)
from lowtide.meters.meter import ToolFailed, run_tool
from lowtide.monitor.owners import SLURM_FOLDERS, read_cluster
from lowtide.monitor.snapshot import JobFacts
from lowtide.slurm.records import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    SLUID_FIELD,
    WAITING_FIELDS,
    QueuedJob,
    facts_from_json,
    facts_from_lines,
    facts_from_sacct,
    facts_from_scontrol,
    queue_from_lines,
)

# How Slurm's programs say that nobody is there; all else is an answer.
SILENCE = (
    r"did not answer|unable to contact|unexpected message|connection refused|timed? ?out|"
    r"zero bytes|communication (connection )?failure|try again|is not installed"
)
# Slurm tells what is wrong in words alone: this is the one place that reads them.
_WORDS = (
    (SILENCE, SlurmSilent),
    ("invalid job id", NoSuchJob),
    ("invalid node name", NoSuchNode),
    ("accounting storage is disabled", NoAccounting),
)
_UNREADABLE = "unreadable"
_BY_HAND = ("SQUEUE_", "SINFO_", "SACCT_")
# How long a time the accounting is asked about at once; less where it does not answer in time.
_LONGEST_S, _SHORTEST_S = 86400.0, 600.0
# How many such questions are asked in a row, so that catching up does not take for ever.
_MOST_QUESTIONS = 8
# What ended while the last question was on its way is asked for again.
_OVERLAP_S = 60.0
# Job numbers in one question: a command line is not endless.
MOST_IDS = 500


class Answer(NamedTuple):
    """What Slurm said.

    Attributes:
        facts: What is known of jobs.
        problems: What went wrong for the first time, in words.
        until: Up to when it is known which jobs ended, epoch seconds; None where nothing is new.
        is_whole: Whether all that was asked was answered.
    """

    facts: list[JobFacts]
    problems: tuple[str, ...]
    until: float | None
    is_whole: bool


class _Reader(Protocol):
    """Whatever reads what a program printed."""

    def __call__(self, text: str, *, unreadable: list[str] | None) -> list[JobFacts]: ...


@dataclass(slots=True, kw_only=True)
class SlurmClient:
    """Asks Slurm's own programs: squeue, scontrol, sacct.

    Attributes:
        node: Ask about the jobs of this node alone, or of several with commas between them; None
            for all of the cluster.
        is_guess: Whether that is no more than a guess: the machine's name.
        cluster: Which cluster it is, empty where not known.
        wants_sluid: Whether groups are named by SLUID, so that jobs are asked for theirs.
        timeout_s: How long an answer may take.
        rest_s: How long Slurm is left alone after it has not answered.
    """

    node: str | None = None
    is_guess: bool = False
    cluster: str = ""
    wants_sluid: bool = False
    timeout_s: float = 5.0
    rest_s: float = 60.0
    _said: Once = field(default_factory=Once, init=False)
    _again: float = field(default=0.0, init=False)
    _json: bool = field(default=True, init=False)
    _accounting: bool = field(default=True, init=False)
    _node: str | None = field(default=None, init=False)
    _window_s: float = field(default=_LONGEST_S, init=False)
    _unreadable: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._node = self.node

    @staticmethod
    def is_here() -> bool:
        """Return whether there is a Slurm to ask: its programs, and where they find it."""
        named = any(name in os.environ for name in ("SLURM_CONF", "SLURM_CONF_SERVER"))
        found = any(Path(folder, "slurm.conf").exists() for folder in SLURM_FOLDERS)
        return shutil.which("squeue") is not None and (named or found)

    @staticmethod
    def find_cluster() -> str:
        """Return what the cluster is called by its configuration here; empty where none says."""
        named = os.environ.get("SLURM_CONF")
        return read_cluster(
            [named] if named else [f"{folder}/slurm.conf" for folder in SLURM_FOLDERS]
        )

    def name_nodes(self, names: Iterable[str]) -> None:
        """Be told by control groups what Slurm calls the node, where nobody else knows better."""
        if self.node is not None and self.is_guess and (found := ",".join(sorted(set(names)))):
            self.node = self._node = found

    @property
    def asks_node(self) -> str | None:
        """The node that Slurm is asked about; None where it is asked about all."""
        return self._node

    @property
    def has_accounting(self) -> bool:
        """Whether there is accounting, as far as is known."""
        return self._accounting

    @property
    def is_resting(self) -> bool:
        """Whether Slurm is left alone for now, since it did not answer."""
        return time.monotonic() < self._again

    def facts(self, *, since: float | None = None, queue: bool = True) -> Answer:
        """Return what is known of all jobs, and in words what went wrong for the first time.

        Jobs in the queue, those that ended within the last minutes included; where there is
        accounting, jobs that ended before that too.

        Args:
            since: From when on ended jobs are asked for, epoch seconds; None for the queue alone.
            queue: Whether to ask for the queue; False for ended jobs alone.
        """
        problems: list[str] = []
        if self.is_resting:
            return Answer([], (), None, False)
        asked = time.time()
        found = self._tried(self.queue, problems) if queue else []
        until = None
        if found is not None and since is not None:
            if self._accounting:
                past, until = self._past(since, asked, problems)
                queued = {(facts.job_id, facts.started) for facts in found}
                # What waits the queue knows, and knows sooner.
                found += [
                    each
                    for each in past
                    if each.state != "pending" and (each.job_id, each.started) not in queued
                ]
            if not self._accounting:
                until = asked - _OVERLAP_S
        whole = found is not None and (since is None or until is not None)
        return Answer(found or [], self._problems(problems), until, whole)

    def waiting(self) -> Answer:
        """Return the jobs that wait, wherever they may run."""
        return self._answer(lambda: self._queue_text("-t", "PD"))

    def stand(self, ids: Sequence[str], *, since: float) -> Answer:
        """Return how jobs stand by now, wherever they run; what is not known is left out.

        Args:
            ids: The jobs, at most `MOST_IDS`.
            since: From when on the accounting is asked about them, epoch seconds.
        """
        wanted = set(ids)

        def ask() -> list[JobFacts]:
            try:
                found = self._queue_text("-t", "all", "-j", ",".join(ids))
            except NoSuchJob:
                found = []
            rest = wanted - {facts.job_id for facts in found}
            if rest and self._accounting:
                found += self.accounting(since=since, ids=sorted(rest))
            # Of an array all elements are told.
            return [facts for facts in found if facts.job_id in wanted]

        return self._answer(ask)

    def _knows(self, node: str) -> bool:
        """Return whether a node is of this Slurm."""
        try:
            self._queue_text("-t", "R", "-w", node)
        except NoSuchNode:
            return False
        return True

    def queue(self) -> list[JobFacts]:
        """Return the jobs that Slurm has in mind: waiting, running and lately ended."""
        while self._node is not None:
            try:
                return self._queue_text("-t", "all", "-w", self._node)
            except NoSuchNode:
                # Slurm may know it by its short name, or by one that this machine does not have.
                names = [each.partition(".")[0] for each in self._node.split(",")]
                if ",".join(names) == self._node:
                    # Another cluster may have nodes on this machine, too.
                    names = [each for each in names if len(names) > 1 and self._knows(each)]
                if not names:
                    # Every node would ask for all jobs of the cluster else.
                    raise SlurmProblem(
                        f"Slurm knows no node called {self._node}, so that nobody says what jobs "
                        "of this node are called and how they end: name it with --slurm-node"
                    ) from None
                self._node = ",".join(names)
        # With --json squeue prints every job of the cluster, whatever else it is told: for one
        # node that would be a lot to ask, from every node.
        if self._json:
            try:
                return self._read(facts_from_json, "squeue", "--json")
            except SlurmSilent:
                raise
            except (SlurmProblem, InvalidInput):
                # Too old for JSON, or built without it.
                self._json = False
        return self._queue_text("-t", "all")

    def job(self, job_id: str) -> list[JobFacts]:
        """Return what scontrol says of a job; of an array, one for every element.

        Args:
            job_id: Its number, or `4711_3`.
        """
        asked = time.time()
        return self._told(facts_from_scontrol(self._ask("scontrol", "show", "job", job_id)), asked)

    def accounting(
        self, *, since: float, until: float | None = None, ids: Sequence[str] = ()
    ) -> list[JobFacts]:
        """Return what the accounting kept, every start of a job that was requeued.

        Args:
            since: From when on, epoch seconds.
            until: Up to when; None for now.
        """
        chosen = ("-j", ",".join(ids)) if ids else ("-a",)
        where = ("-N", self._node) if self._node is not None and not ids else ()
        window = ("-S", _utc(since), *(() if until is None else ("-E", _utc(until))))
        fields = ACCOUNTING_FIELDS + f",{SLUID_FIELD}" * self.wants_sluid
        columns = (f"--delimiter={SEPARATOR}", f"--format={fields}")
        return self._read(
            facts_from_sacct, "sacct", "-p", "-D", "-X", *chosen, *where, *window, *columns
        )

    def waiting_line(self) -> list[QueuedJob]:
        """Return all jobs of the queue with what decides when they start, in one question.

        Elements of an array that wait are told one by one: squeue shows them as one even where
        they begin at different times. Those that still are one have its number.
        """
        fields = ",".join(f"{name}:{SEPARATOR}" for name in WAITING_FIELDS)
        unreadable: list[str] = []
        said = self.tell("squeue", "--all", "--array", "-h", "-O", fields)
        found = queue_from_lines(said, unreadable=unreadable)
        if unreadable and not found:
            raise InvalidInput(unreadable[0])
        return found

    def tell(self, *command: str) -> str:
        """Have one of Slurm's programs do something; return what it printed."""
        return self._ask(*command)

    def _queue_text(self, *which: str) -> list[JobFacts]:
        names = (*QUEUE_FIELDS, *([SLUID_FIELD] * self.wants_sluid))
        fields = ",".join(f"{name}:{SEPARATOR}" for name in names)
        read = partial(facts_from_lines, has_sluid=self.wants_sluid)
        return self._read(read, "squeue", "--all", "-h", *which, "-O", fields)

    def _read(self, read: _Reader, *command: str) -> list[JobFacts]:
        unreadable: list[str] = []
        asked = time.time()
        found = self._told(read(self._ask(*command), unreadable=unreadable), asked)
        if unreadable and not found:
            # Nothing at all can be read: that is no matter of one job.
            raise InvalidInput(unreadable[0])
        self._unreadable += [f"{command[0]}: a job is left out, for {each}" for each in unreadable]
        return found

    def _told(self, facts: list[JobFacts], asked: float) -> list[JobFacts]:
        """Return facts with when they were told, and of which cluster."""
        of = self.cluster or None
        return [replace(each, cluster=each.cluster or of, asked=asked) for each in facts]

    def _past(
        self, since: float, now: float, problems: list[str]
    ) -> tuple[list[JobFacts], float | None]:
        """Return what ended since then, and up to when that is known."""
        found: list[JobFacts] = []
        until = None
        for _ in range(_MOST_QUESTIONS):
            end = min(since + self._window_s, now)
            # What is the newest of all has no end yet.
            ask = partial(self.accounting, since=since, until=None if end == now else end)
            past = self._tried(ask, problems)
            if past is None:
                self._window_s = max(self._window_s / 2, _SHORTEST_S)
                break
            found += past
            since = until = end - _OVERLAP_S
            if end == now:
                self._window_s = min(2 * self._window_s, _LONGEST_S)
                break
        return found, until

    def _answer(self, ask: Callable[[], list[JobFacts]]) -> Answer:
        problems: list[str] = []
        found = None if self.is_resting else self._tried(ask, problems)
        return Answer(found or [], self._problems(problems), None, found is not None)

    def _tried(
        self, ask: Callable[[], list[JobFacts]], problems: list[str]
    ) -> list[JobFacts] | None:
        """Return the answer, None where there is none; Slurm is then left alone for a while."""
        try:
            return ask()
        except NoAccounting:
            # This does not change while Slurm runs.
            self._accounting = False
            problems.append("sacct has nothing to say here: this Slurm keeps no accounting")
        except LowtideError as error:
            self._again = time.monotonic() + self.rest_s
            problems.append(str(error))
        return None

    def _problems(self, problems: list[str]) -> tuple[str, ...]:
        """Return what was not said before; of many records that cannot be read, the first."""
        unreadable, self._unreadable = self._unreadable, []
        if unreadable and self._said.is_new(_UNREADABLE):
            problems.append(unreadable[0])
        return tuple(each for each in problems if self._said.is_new(each))

    def _ask(self, *command: str) -> str:
        # Times are given and taken without a word about zones and summers.
        # What a user has set for these by hand would change what they print, and of whom: asked
        # for one's own jobs alone, a queue looks empty.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_BY_HAND)}
        environment = {**kept, "SLURM_TIME_FORMAT": "%s", "TZ": "UTC"}
        try:
            return run_tool(command, timeout_s=self.timeout_s, environment=environment)
        except ToolFailed as error:
            raise slurm_problem(f"{error.tool} failed: {error.said or 'no message'}") from None
        except MeterProblem as error:
            raise slurm_problem(str(error)) from None


def slurm_problem(said: str) -> SlurmProblem:
    """Return what one of Slurm's programs complained of, as the error that it is."""
    for words, kind in _WORDS:
        if re.search(words, said, re.IGNORECASE):
            return kind(said)
    return SlurmProblem(said)


def _utc(time_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s))
