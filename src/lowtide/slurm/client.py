"""Asking Slurm about its jobs, without ever waiting long for an answer.

A dead slurmctld blocks those who ask it, so every question has a time limit, and after a question
that was not answered Slurm is left alone for a while. What goes wrong is said once.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.errors import InvalidInput, LowtideError, MeterProblem, SlurmProblem
from lowtide.meters.meter import run_tool
from lowtide.monitor.facts import JobFacts
from lowtide.slurm.records import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    facts_from_json,
    facts_from_lines,
    facts_from_sacct,
    facts_from_scontrol,
)

# Where Slurm's programs look for their configuration, or keep what a server handed them.
_CONFIGURED = (
    "/etc/slurm",
    "/etc/slurm-llnl",
    "/usr/local/etc",
    "/opt/slurm/etc",
    "/run/slurm/conf",
)
_NO_ACCOUNTING = "accounting storage is disabled"
_NO_NODE = "invalid node name"


@dataclass(slots=True, kw_only=True)
class SlurmClient:
    """Asks Slurm's own programs: squeue, scontrol, sacct.

    Attributes:
        node: Ask about the jobs of this node alone; of all where Slurm does not know it, or None.
        timeout_s: How long an answer may take.
        rest_s: How long Slurm is left alone after it has not answered.
    """

    node: str | None = None
    timeout_s: float = 5.0
    rest_s: float = 60.0
    _said: set[str] = field(default_factory=set, init=False)
    _again: float = field(default=0.0, init=False)
    _json: bool = field(default=True, init=False)
    _accounting: bool = field(default=True, init=False)
    _node: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._node = self.node

    @staticmethod
    def is_here() -> bool:
        """Return whether there is a Slurm to ask: its programs, and where they find it."""
        named = any(name in os.environ for name in ("SLURM_CONF", "SLURM_CONF_SERVER"))
        found = any(Path(folder, "slurm.conf").exists() for folder in _CONFIGURED)
        return shutil.which("squeue") is not None and (named or found)

    def facts(self, *, since: float | None = None) -> tuple[list[JobFacts], tuple[str, ...]]:
        """Return what is known of all jobs, and in words what went wrong for the first time.

        Jobs in the queue, those that ended within the last minutes included; where there is
        accounting, jobs that ended before that too.

        Args:
            since: From when on ended jobs are asked for, epoch seconds; None for the queue alone.
        """
        problems: list[str] = []
        if time.monotonic() < self._again:
            return [], ()
        found = self._tried(self.queue, problems)
        if since is not None and self._accounting and time.monotonic() >= self._again:
            queued = {(facts.job_id, facts.started) for facts in found}
            past = self._tried(lambda: self.accounting(since=since), problems)
            found = found + [each for each in past if (each.job_id, each.started) not in queued]
        return found, tuple(problems)

    def queue(self) -> list[JobFacts]:
        """Return the jobs that Slurm has in mind: waiting, running and lately ended."""
        while self._node is not None:
            try:
                return self._queue_text("-w", self._node)
            except SlurmProblem as error:
                if _NO_NODE not in str(error).lower():
                    raise
                # Slurm may know it by its short name, or by one that this machine does not have.
                short = self._node.partition(".")[0]
                self._node = short if short != self._node else None
        # With --json squeue prints every job of the cluster, whatever else it is told: for one
        # node that would be a lot to ask, from every node.
        if self._json:
            try:
                return facts_from_json(self._ask("squeue", "--json"))
            except SlurmProblem as error:
                if "did not answer" in str(error):
                    raise
                # Too old for JSON, or built without it.
                self._json = False
            except InvalidInput:
                self._json = False
        return self._queue_text()

    def job(self, job_id: str) -> list[JobFacts]:
        """Return what scontrol says of a job; of an array, one for every element.

        Args:
            job_id: Its number, or `4711_3`.
        """
        return facts_from_scontrol(self._ask("scontrol", "show", "job", job_id))

    def accounting(self, *, since: float, ids: Sequence[str] = ()) -> list[JobFacts]:
        """Return what the accounting kept, every start of a job that was requeued.

        Args:
            since: From when on, epoch seconds.
            ids: Of these jobs alone.
        """
        chosen = ("-j", ",".join(ids)) if ids else ("-a",)
        where = ("-N", self._node) if self._node is not None else ()
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))
        command = ("sacct", "-P", "-D", "-X", *chosen, *where, "-S", start)
        return facts_from_sacct(self._ask(*command, f"--format={ACCOUNTING_FIELDS}"))

    def _queue_text(self, *where: str) -> list[JobFacts]:
        fields = ",".join(f"{name}:{SEPARATOR}" for name in QUEUE_FIELDS)
        command = ("squeue", "--all", "-h", "-t", "all", *where, "-O", fields)
        return facts_from_lines(self._ask(*command))

    def _tried(self, ask: Callable[[], list[JobFacts]], problems: list[str]) -> list[JobFacts]:
        try:
            return ask()
        except LowtideError as error:
            message = str(error)
            if _NO_ACCOUNTING in message.lower():
                # This does not change while Slurm runs.
                self._accounting = False
                message = "sacct has nothing to say here: this Slurm keeps no accounting"
            else:
                self._again = time.monotonic() + self.rest_s
            if message not in self._said:
                self._said.add(message)
                problems.append(message)
            return []

    def _ask(self, *command: str) -> str:
        environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
        # What a user has set for squeue by hand would change what it prints.
        for name in ("SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SQUEUE_SORT"):
            environment.pop(name, None)
        try:
            return run_tool(command, timeout_s=self.timeout_s, environment=environment)
        except MeterProblem as error:
            raise SlurmProblem(str(error).replace(" ".join(command), command[0])) from None
