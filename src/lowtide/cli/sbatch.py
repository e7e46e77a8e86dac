"""`lowtide sbatch`: hand a batch job to Slurm, to begin when the grid is clean and end in time."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.cli.deferring import (
    NO_FORECAST,
    FinishBy,
    forecaster,
    iso_or_none,
    read_finish,
    worth,
)
from lowtide.cli.options import Profile, UsualGridOptions
from lowtide.cli.output import TABLE, Column, Form, say, warn
from lowtide.cli.submitting import submit
from lowtide.errors import (
    FileProblem,
    InvalidInput,
    LowtideError,
    Refused,
    Unreachable,
)
from lowtide.units import (
    format_duration,
    format_iso,
    format_percent,
    format_time,
    parse_duration,
)

if TYPE_CHECKING:
    from lowtide.acting.book import BookPage
    from lowtide.acting.journal import Journal
    from lowtide.acting.judge import Judgement
    from lowtide.acting.promise import Promise
    from lowtide.acting.reckoning import Reckoning
    from lowtide.acting.site import Shares
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.submission import LikeNodes, Submission
    from lowtide.acting.tag import Tag
    from lowtide.acting.waits import Calibration
    from lowtide.profile import PowerProfile
    from lowtide.signal import Signal

_LONGEST_WAIT_S = 366 * 86_400.0
# Who waits behind a job without a limit is said to start within years.
_FOR_EVER_S = 90 * 86_400.0
# What saving, and starting again, may take where no profile says it.
_STOP_S, _STARTUP_S = 60.0, 300.0
_EXPECTED = re.compile(r"to start at (\S+)(?: using (\d+) processors)?")
# Nodes in states that begin so start nothing.
_OF_NO_USE = ("down", "drain", "drng", "fail", "maint", "inval", "unk", "futr")
_VALUED = (
    *("--finish-by", "--profile", "--signal", "--grid", "--seed", "--how"),
    *("--min-run", "--checkpoint"),
)
_FLAGS = ("--saves", "--dry-run", "--check", "--no-check", "--json", "-P", "-h", "--help")


def parted(words: list[str]) -> list[str]:
    """Return the words behind the verb with `--` where sbatch's own begin.

    >>> parted(["--finish-by", "8am", "--saves", "-t", "10", "-Jhello", "a.sh", "--grid"])
    ['--finish-by', '8am', '--saves', '--', '-t', '10', '-Jhello', 'a.sh', '--grid']
    """
    place = 0
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        if name in _VALUED:
            place += 1 if equals else 2
        elif words[place] in _FLAGS:
            place += 1
        else:
            break
    dashes = [] if words[place : place + 1] in ([], ["--"]) else ["--"]
    return [*words[:place], *dashes, *words[place:]]


def sbatch(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="What you would give sbatch: its options, the script, its arguments."),
    ] = None,
    finish_by: FinishBy = None,
    profile: Profile = None,
    where: UsualGridOptions,
    saves: Annotated[
        bool,
        typer.Option(
            "--saves",
            help="It saves when it gets USR1 and ends with 75, or requeues itself: it may be "
            "stopped in dirty hours, and goes on later.",
        ),
    ] = False,
    min_run: Annotated[
        str, typer.Option(help="How long it works at least before it is stopped.")
    ] = "30m",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="What it saves to, %j, %A and %a as in sbatch: the last two are kept, and what "
            "was cut off in the midst of saving is put aside.",
            metavar="PATH",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the sbatch command, and submit nothing.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Look again after 10 s whether Slurm still has it, and submit it anew if not.",
        ),
    ] = True,
    form: Form = TABLE,
) -> None:
    """Submit a batch job to begin when the grid is clean.

    Options of lowtide come first, then those of sbatch. One sbatch is run, with a begin no later
    than is safe for the deadline: nothing of lowtide has to go on running. Without --finish-by, a
    forecast, or a time limit or profile, and with any doubt, it begins now.
    """
    from lowtide.acting.journal import Journal
    from lowtide.acting.slurm import SlurmBackend
    from lowtide.acting.submission import Submission
    from lowtide.cli.inputs import named_profile

    now = time.time()
    submission = Submission.read(words or [])
    deadline = read_finish(finish_by, now)
    known = _in_library(submission.name) if profile is None else named_profile(profile)
    if finish_by is not None and submission.left_alone in ("--begin", "--deadline"):
        raise InvalidInput(
            f"--finish-by and {submission.left_alone} both say when it runs: leave one out"
        )
    if saves and not submission.may_be_stopped:
        raise InvalidInput("a job that saves is started again: leave out --no-requeue or --saves")
    if checkpoint and not saves:
        raise InvalidInput("--checkpoint names what a job saves to: say that it does, with --saves")
    if finish_by is None and "--finish-by" in {
        word.partition("=")[0] for word in submission.arguments
    }:
        warn("--finish-by stands behind the script, which gets it: say it before, to be deferred")
    backend, journal = SlurmBackend(), Journal.of_user()
    forecast = forecaster(where, until=deadline)(now)
    order = _Order(
        submission=submission,
        profile=known,
        is_named=profile is not None,
        journal=journal,
        deadline=deadline,
        saves=saves,
        min_run_s=parse_duration(min_run),
        checkpoint=checkpoint or "",
    )
    if order.tag.deaf:
        warn("it did not stop when it was asked the last time: it is planned to run through")
    elif order.tag.interruptible and not saves:
        warn("it was seen to save when it was asked: it may be stopped, as with --saves")
    verdict = order.judged(backend, journal, forecast, now)
    with _laying_down():
        order.lay_down(verdict, journal, dry=dry_run)
    row: dict[str, Any] = {
        "job_id": None,
        "begin": format_iso(order.begin),
        "latest": order.latest and iso_or_none(order.latest),
        "finish_by": None if deadline is None else format_iso(deadline),
        "why": order.why,
        "wait_s": order.promise and order.promise.wait_s,
        # A user alone can neither go first nor have nodes kept free.
        "promise": "probability" if order.is_kept(now) else None,
        "starts": order.calibration and order.calibration.said,
        "late": order.calibration and order.calibration.late,
        "sure": order.calibration and order.calibration.sure,
        "planned": order.grams(forecast, "planned"),
        "at_once": order.grams(forecast, "at_once"),
        "unit": order.grams(forecast, "unit"),
        "planned_saving": order.reckoning and order.reckoning.planned_saving,
        "token": None if verdict is None else order.tag.token,
        "command": order.command(time.time()),
        "synthetic": forecast is not None and forecast.synthetic,
    }
    if not dry_run:
        row["job_id"] = submit(backend, order, check=check)
        if verdict is not None:
            try:
                journal.book.put(order.page(row["job_id"], forecast))
            except FileProblem as error:
                warn(f"{error}; what was planned for it is not kept")
    columns = [Column(name) for name in row if name != "command"]
    form.print([row], columns=columns, document=row, show=lambda: _show(row, order, now))


class _Order:
    """A job that is to be submitted, and what is to become of it."""

    def __init__(
        self,
        *,
        submission: Submission,
        profile: PowerProfile | None,
        is_named: bool,
        journal: Journal,
        deadline: float | None,
        saves: bool,
        min_run_s: float,
        checkpoint: str,
    ) -> None:
        from lowtide.acting.experience import Experience, program_key, script_key
        from lowtide.acting.judge import Rules
        from lowtide.acting.tag import Tag, new_token

        self.submission, self.deadline = submission, deadline
        self.checkpoint = checkpoint
        self.script = script_key(submission.name, submission.text)
        self.habit = habit = journal.habits.of(self.script)
        # Seen to save once, it does so again, unless its user rules out that it is started again.
        saves = saves or (habit.saves and submission.may_be_stopped)
        self.program, self.experience = "", Experience()
        limit_s = submission.limit_s
        lengths = [] if limit_s is None else [limit_s]
        if profile is not None:
            partition = submission.options.get("partition")
            self.program = program_key(submission.name, submission.text, partition, profile)
            self.experience = journal.experiences.of(self.program)
            # What nobody has named is taken for what a job draws, not for how long it may take.
            if is_named or saves or limit_s is None:
                lengths.append(self.experience.most_s(profile))
            profile = self.experience.adjusted(profile)
        self.profile = profile
        # A job that saves before its limit goes on beyond it.
        self.run_s = (max if saves else min)(lengths, default=None)
        self.tag = Tag(
            token=new_token(),
            deadline=0.0 if deadline is None else deadline,
            arrival=time.time(),
            run_s=self.run_s or 0.0,
            # What a start takes is not work: it is done again after a stop.
            startup_s=(profile.startup_s if profile else 0.0)
            or (min(_STARTUP_S, min_run_s, 0.1 * (self.run_s or 0.0)) if saves else 0.0),
            # Nobody lets a job save that takes longer to than it has worked.
            stop_s=max(profile.stop_s if profile else 0.0, habit.stop_s or 0.0)
            or (min(_STOP_S, min_run_s) if saves else 0.0),
            interruptible=saves,
            # It would be asked in vain, and is planned in one piece.
            deaf=saves and habit.deaf,
            by_limit=not saves and limit_s is not None and self.run_s == limit_s,
            # What is usual is not said: the comment is short.
            min_run_s=None if min_run_s == Rules().least_run_s else min_run_s,
        )
        self.begin = self.tag.arrival
        self.is_tagged = False
        self.kind = ""
        self.wrapped: Path | None = None
        self.latest: float | None = None
        self.promise: Promise | None = None
        self.calibration: Calibration | None = None
        self.why = ""
        self.reckoning: Reckoning | None = None

    def judged(
        self, backend: SlurmBackend, journal: Journal, signal: Signal | None, now: float
    ) -> Judgement | None:
        """Decide when it begins; None where it is handed on as it is."""
        from lowtide.acting.backend import PENDING, Seen
        from lowtide.acting.herd import herd_of
        from lowtide.acting.judge import Situation, judge
        from lowtide.acting.promise import Loops
        from lowtide.acting.tag import encode
        from lowtide.acting.waits import WaitModel

        if self.submission.left_alone:
            self.why = f"{self.submission.left_alone} is its user's own: it is handed on as it is"
        elif self.deadline is None:
            self.why = "no --finish-by: it begins now"
        elif not self.experience.is_trusted:
            off = format_percent(abs(self.experience.runs[-1].gap))
            self.why = f"its last runs were off its profile, the last by {off}: it begins now"
        elif self.run_s is None:
            self.why = "neither a time limit nor --profile says how long it takes: it begins now"
        if self.submission.left_alone or self.deadline is None or self.run_s is None:
            return None
        try:
            look = backend.look()
        except (Refused, Unreachable) as error:
            self.why = f"Slurm does not tell its queue ({error}): it begins now"
            return None
        partition, nodes = _partition(backend, self.submission.options.get("partition"))
        model = WaitModel(looked=journal.looked)
        model.learn([*journal.waits(), *journal.past(backend.past_waits)])
        model.see(look.now, look.waits)
        expected_s, cpus = _expected(backend, self.submission, now)
        shares = _shares(backend, partition)
        taken_cpus = self.submission.taken_cpus(nodes, cpus, shares)
        place = backend.place_of(self.submission.demand(partition, cpus))
        if self.submission.excludes_many(look.rooms.get(place)):
            self.why = "--exclude leaves it too few of its nodes to be promised one: it begins now"
            return None
        kind = self.kind = self.submission.kind(partition, taken_cpus)
        wait_s = max(model.wait_s(kind, now), expected_s)
        # Of an array that does not run all at once the last has to begin in time as well, and each
        # has to wait for its turn.
        waves = self.submission.waves(self.submission.at_once(nodes, cpus, shares))
        waves_s = (waves - 1) * (self.run_s + wait_s)
        self.tag = replace(self.tag, deadline=self.tag.deadline - waves_s)
        self.calibration = replace(model.calibration(kind, now), wait_s=wait_s)
        trusted = self.calibration.is_trusted
        seen = Seen(
            id="new",
            state=PENDING,
            comment=encode(self.tag),
            limit_s=self.submission.limit_s,
            kind=kind,
            partition=partition or "",
            place=place,
            cpus=taken_cpus,
            gpus=self.submission.gpus,
            nodes=self.submission.nodes,
            tasks=self.submission.tasks,
        )
        loops = look.loops or Loops()

        def wait_of(job: Seen, tag: Tag) -> float:
            if job is seen:
                return wait_s
            return max(
                model.wait_s(job.kind, now, unknown_s=tag.wait_s),
                look.backlog_s.get(job.where, 0.0),
            )

        situation = Situation(
            now=now,
            signal=signal,
            wait_s=lambda *_: wait_s if trusted and self.experience.is_trusted else None,
            closed=look.closed,
            # Its own place among them, which nobody may have had before.
            taken=backend.taken(look.now),
            loops=loops,
            herd=herd_of(look, loops, wait_of),
            profile=lambda _: self.profile,
            # Without a driver nobody stops it: it begins where that is best.
            powers=frozenset(("stop",) if journal.is_driven(now) else ()),
        )
        verdict = judge(seen, situation)
        if verdict is None or verdict.promise is None:
            return None
        self.tag = replace(self.tag, wait_s=wait_s)
        self.promise = verdict.promise
        self.latest, self.why = verdict.promise.latest, self.why or verdict.why
        if signal is None:
            self.why = f"{NO_FORECAST}; it begins now"
        if self.latest < now:
            self.why = "its deadline is too early to be promised: it begins now"
            if wait_s >= _FOR_EVER_S:
                self.why = "nobody foresees when the queue lets it start: it begins now"
            elif math.isfinite(self.latest):
                late = format_duration(now - self.latest)
                self.why = f"its deadline is {late} too early to be promised: it begins now"
        begins = [move.at for move in verdict.moves if move.at is not None and move.at > now]
        self.begin = begins[0] if begins else now
        self._reckon(verdict, signal, now)
        return verdict

    def _reckon(self, verdict: Judgement, signal: Signal | None, now: float) -> None:
        from lowtide.acting.reckoning import Reckoning, amount
        from lowtide.profile import PowerProfile
        from lowtide.schedule import Stretch

        if signal is None or self.run_s is None:
            return
        profile = self.profile or PowerProfile.constant(1000.0, self.run_s)
        once = [Stretch(start=now, work_s=profile.work_s)]
        self.reckoning = Reckoning(
            planned=amount(profile, verdict.plan or once, signal),
            at_once=amount(profile, once, signal),
        )

    def is_kept(self, now: float) -> bool:
        """Return whether anything was promised."""
        return self.promise is not None and self.promise.latest >= now

    def grams(self, signal: Signal | None, what: str) -> Any:
        """Return an amount, or the unit of all; None where its power is not known."""
        if signal is None or self.profile is None or self.reckoning is None:
            return None
        unit = signal.currency if signal.kind == "price" else "g"
        return unit if what == "unit" else getattr(self.reckoning, what)

    def page(self, number: str, signal: Signal | None) -> BookPage:
        """Return what the book keeps of it."""
        from lowtide.acting.book import BookPage
        from lowtide.acting.reckoning import Reckoning

        # Without known watts only shares can be told.
        known = (self.reckoning if self.profile is not None else None) or Reckoning()
        energy, duration = self.experience.scales
        return BookPage(
            token=self.tag.token,
            job_id=number,
            name=self.submission.name,
            arrival=self.tag.arrival,
            deadline=self.deadline or self.tag.deadline,
            program=self.program,
            profile=self.tag.profile,
            unit="g" if signal is None or signal.kind != "price" else signal.currency or "",
            planned=known.planned,
            planned_at_once=known.at_once,
            energy_scale=energy,
            duration_scale=duration,
            kind=self.kind,
            script=self.script if self.tag.interruptible else "",
        )

    def lay_down(self, verdict: Judgement | None, journal: Journal, *, dry: bool) -> None:
        """Decide what it carries, and write what it needs; nothing where it is handed on."""
        self.is_tagged = verdict is not None
        if verdict is None:
            return
        self.tag = replace(self.tag, begin=self.begin)
        if self.profile is not None and not dry:
            try:
                self.tag = replace(self.tag, profile=journal.keep_profile(self.profile))
            except FileProblem as error:
                warn(f"{error}; a driver will take its power for constant")
        if self.tag.interruptible:
            self.wrapped = Path("WRAPPED.sh")
            if not dry:
                with tempfile.NamedTemporaryFile(
                    "w", suffix=".sh", delete=False, errors="surrogateescape"
                ) as file:
                    file.write(self.submission.wrapped(self.checkpoint))
                    self.wrapped = Path(file.name)

    def command(self, now: float) -> list[str]:
        """Return the sbatch that submits it.

        Args:
            now: When it is run: its begin is told as so many seconds from then.
        """
        submission = self.submission
        if self.is_tagged:
            return submission.command(self.tag, now=now, wrapped=self.wrapped)
        # There is nothing to look after.
        ends = () if submission.script is None else (submission.script, *submission.arguments)
        return ["sbatch", "--parsable", *submission.before, *ends]


@contextmanager
def _laying_down() -> Iterator[None]:
    """Say what to do where the script that is wrapped around another cannot be laid down."""
    try:
        yield
    except LowtideError:
        raise
    except OSError as error:
        folder = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - where it was to lie
        words = f"a job that saves is wrapped, and {folder} takes no script ({error.strerror})"
        cure = "name another folder by TMPDIR, or leave out --saves"
        raise FileProblem(f"{words}: {cure}", path=folder) from None


def _in_library(name: str) -> PowerProfile | None:
    """Return the profile of a job that was learned by its name; None where none, or several are."""
    from lowtide.cli.queue import who_asks
    from lowtide.library import Library

    try:
        found = Library().find(name)
    except LowtideError:
        return None
    return found.profile if found.program.user == who_asks() else None


def _partition(backend: SlurmBackend, named: str | None) -> tuple[str | None, list[LikeNodes]]:
    """Return the partition that a job is for, and its nodes; none where nobody says."""
    from lowtide.acting.places import read_features
    from lowtide.acting.slurm import asked
    from lowtide.acting.submission import LikeNodes
    from lowtide.slurm.fields import gpu_kinds, requested_gpus

    wanted = (named or "").partition(",")[0]
    found: list[LikeNodes] = []
    with suppress(OSError):
        told = asked(backend, "sinfo", "--all", "-h", "-e", "-o", "%P %t %D %c %m %G %f")
        for line in told.splitlines():
            name, state, *sizes = line.split()
            if name.rstrip("*") != wanted and (wanted or name[-1:] != "*"):
                continue
            wanted = name.rstrip("*")
            numbers = [float(each) for each in sizes[:3] if each.isdigit()]
            if len(numbers) == 3 and not state.startswith(_OF_NO_USE):
                count, cpus, memory = numbers
                gres, features = (*sizes[3:5], "", "")[:2]
                found.append(
                    LikeNodes(
                        count=count,
                        cpus=cpus,
                        memory=memory * 2**20,
                        gpus=requested_gpus(re.sub(r"\([^)]*\)", "", gres)),
                        gpu_kinds=gpu_kinds(gres),
                        features=read_features(features),
                    )
                )
    return wanted or None, found


def _shares(backend: SlurmBackend, partition: str | None) -> Shares:
    """Return what jobs of a partition take of its nodes besides what they ask for."""
    from lowtide.acting.site import Shares
    from lowtide.acting.slurm import asked

    shares = Shares() if backend.site is None else backend.site.shares
    with suppress(OSError):
        if partition is not None:
            said = asked(backend, "scontrol", "-o", "show", "partition", partition)
            shares = shares.in_partition(said)
    return shares


def _expected(
    backend: SlurmBackend, submission: Submission, now: float
) -> tuple[float, float | None]:
    """Return when Slurm itself expects it to start, seconds from now, and on how many CPUs.

    That is 0 and None where it does not say.
    """
    import subprocess

    from lowtide.units import parse_time

    ends = [] if submission.script is None else [submission.script, *submission.arguments]
    words = ["sbatch", "--test-only", *submission.before, *ends]
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 - the user's own words
            words,
            env={**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=backend.client.timeout_s,
            check=False,
        )
        found = _EXPECTED.search(done.stderr)
        if found:
            # Behind a job without a limit it is said to start in another age.
            wait_s = min(max(parse_time(f"{found[1]}Z") - now, 0.0), _LONGEST_WAIT_S)
            return wait_s, float(found[2]) if found[2] else None
    return 0.0, None


def _show(row: dict[str, Any], order: _Order, now: float) -> None:
    if row["job_id"] is None:
        import shlex

        say(shlex.join(row["command"]))
    else:
        say(f"Submitted batch job {row['job_id']}")
    is_later = order.begin > max(now, order.tag.arrival) + 1
    parts = [f"begins {format_time(order.begin)}"] if is_later else []
    parts.append(order.why)
    if order.promise is not None and order.promise.latest > now and order.deadline is not None:
        parts.append(
            f"to be done by {format_time(order.deadline)} it has to begin by "
            f"{format_time(order.promise.latest)}, with "
            f"{format_duration(order.promise.wait_s)} for the queue"
        )
    if order.is_kept(now) and order.calibration is not None and order.begin > now + 1:
        parts.append(f"that is a probability: {order.calibration.sure}")
    if order.reckoning is not None:
        parts.append(worth(order.reckoning, row["unit"], "now"))
    if row["synthetic"]:
        parts.append("on a synthetic grid")
    say("; ".join(filter(None, parts)))
