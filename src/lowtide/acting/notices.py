"""What users are told of their jobs, once per job and kind: by mail, or posted to an address.

That a notice was sent is written down before it is: whoever is killed between the two has told too
little, never twice. What could not be sent is taken back, and tried again at the next turn.
"""

from __future__ import annotations

import json
import re
import smtplib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from email.message import EmailMessage
from typing import Protocol
from urllib.parse import urlsplit

from lowtide.acting.backend import PENDING, RUNNING
from lowtide.acting.book import Book, BookPage
from lowtide.acting.judge import Judgement
from lowtide.errors import InvalidInput, LowtideError, ProviderProblem
from lowtide.units import format_duration, format_number, format_percent, format_time

KINDS = ("deferred", "at risk", "held", "lost", "missed", "done")
# Where mail is handed in, unless somebody says otherwise.
_MAIL = "localhost:25"
_PATIENCE_S = 5.0
# Who was not measured by so long after it has ended is not going to be.
_MEASURED_S = 600.0
# Stands for whose job it is in an address that notices go to.
_USER = "{user}"
# Names that may become part of an address.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a user is told.

    Attributes:
        kind: One of `KINDS`.
        job_id: The job's number.
        name: What it is called.
        user: Whose it is; empty for whoever runs this.
        text: What is told, in a sentence.
        token: Which job it is, whatever number it has.
    """

    kind: str
    job_id: str
    name: str
    user: str
    text: str
    token: str


class Sender(Protocol):
    """Whoever brings a notice to its user."""

    def send(self, notice: Notice) -> None:
        """Send it; raises a `LowtideError` where that fails."""
        ...


def notices(
    verdicts: Sequence[Judgement], settled: Sequence[BookPage], *, now: float
) -> Iterator[Notice]:
    """Yield all that could be told now, whether it was before or not.

    Args:
        settled: Jobs that are over, as far as is known what they came to.
    """
    for verdict in verdicts:
        seen, tag = verdict.seen, verdict.tag
        for kind, text in _of_live(verdict, now):
            yield Notice(
                kind=kind,
                job_id=seen.id,
                name=seen.name,
                user=seen.user,
                text=text,
                token=tag.token,
            )
    for page in settled:
        if found := _of_ended(page, now):
            yield Notice(
                kind=found[0],
                job_id=page.job_id,
                name=page.name,
                user=page.user,
                text=found[1],
                token=page.token,
            )


def send_new(
    found: Iterator[Notice], book: Book, senders: Sequence[Sender], *, now: float
) -> list[str]:
    """Send what was not sent before; return in words what could not be."""
    pages = {page.token: page for page in book.pages(now=now)}
    for notice in found:
        page = pages.get(notice.token)
        if page is None or notice.kind in page.told:
            continue
        pages[notice.token] = told = replace(page, told=(*page.told, notice.kind))
        book.put(told)
        problems = []
        for sender in senders:
            try:
                sender.send(notice)
            except LowtideError as error:
                problems.append(f"{error}: notices are kept for the next turn")
        if len(problems) == len(senders):
            book.put(page)
        if problems:
            # Who does not answer now would take as long for each of the others.
            return problems
    return []


def _of_live(verdict: Judgement, now: float) -> Iterator[tuple[str, str]]:
    seen, tag, promise = verdict.seen, verdict.tag, verdict.promise
    due = format_time(tag.deadline)
    if seen.state == PENDING and seen.begin is not None and seen.begin > now + 60.0:
        yield "deferred", f"it begins at {format_time(seen.begin)}, to be done by {due}"
    if seen.stuck:
        yield "held", f"Slurm holds it ({seen.why}), and its deadline is {due}"
    late = False
    if seen.state == PENDING and promise is not None:
        late = promise.latest < now and (seen.begin or now) <= now
    elif seen.state == RUNNING and seen.started is not None:
        left_s = max(tag.run_s - tag.progress_s, tag.startup_s)
        late = max(seen.started + left_s, now) > tag.deadline
    if late and not tag.users_own:
        yield "at risk", f"it may not be done by {due}: {verdict.why}"


def _of_ended(page: BookPage, now: float) -> tuple[str, str] | None:
    due = format_time(page.deadline)
    if page.outcome == "lost":
        return "lost", "nobody knows of it any more, and it was not seen to end: submit it again"
    if page.in_time is False:
        when = "" if page.ended is None else f" at {format_time(page.ended)}"
        words = f"it ended{when} ({page.outcome}), and was to be done by {due}"
        return "missed", "; ".join([words, *causes(page)])
    if page.in_time and page.measured is not None:
        known, worth = page.reckoning, "what that saved is not known"
        share, saved = known.saving, known.saved
        if share is not None and saved is not None:
            worth = f"which saved {format_number(saved)} {page.unit} ({format_percent(share)})"
        return "done", (f"it was done in time: {format_number(page.measured)} {page.unit}, {worth}")
    if page.in_time and (page.ended is None or now - page.ended > _MEASURED_S):
        return "done", "it was done in time; nobody has measured it, and so no saving is told"
    return None


def causes(page: BookPage) -> list[str]:
    """Return in words why a job was late, as far as was seen: a hold, the queue, a node, R."""
    found = []
    if "fail" in page.outcome and page.outcome != "failed":
        found.append("its node failed")
    elif page.outcome != "completed":
        found.append("it did not come to its end")
    elif page.begun_anew:
        found.append("it began again without having been asked to stop, as when a node fails")
    if page.held:
        found.append("it was held")
    if page.queued_s > (page.wait_s or 0.0):
        found.append(
            f"it waited {format_duration(page.queued_s)} or more for its turn, and "
            f"{format_duration(page.wait_s or 0.0)} were allowed for that"
        )
    ran_s = page.ran_s
    if page.run_s and ran_s is not None and ran_s > page.run_s:
        found.append(
            f"it ran for {format_duration(ran_s)}, and was to take {format_duration(page.run_s)} "
            "at most"
        )
    return found or ["why was not seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Sends notices by mail.

    Attributes:
        to: Who gets them; `{user}` in it stands for whose job it is.
        server: Where mail is handed in, as HOST or HOST:PORT.
    """

    to: str
    server: str = _MAIL

    def send(self, notice: Notice) -> None:
        """Hand it in."""
        if _USER in self.to and not _PLAIN.fullmatch(notice.user):
            # Whatever else it is, it is nobody's address; all others are told.
            return
        message = EmailMessage()
        message["To"] = to = self.to.replace(_USER, notice.user)
        # An operator's notices come from the service, and not from whom they go to.
        message["From"] = f"lowtide@{to.rpartition('@')[2]}" if _USER in self.to else to
        # Names are users' own, and may hold whatever would be a head of its own here.
        name = " ".join(notice.name.split())
        message["Subject"] = f"job {notice.job_id} {name}: {notice.kind}"
        message.set_content(f"Job {notice.job_id} ({name}): {notice.text}.\n")
        host, _, port = self.server.partition(":")
        try:
            with smtplib.SMTP(host, int(port or 25), timeout=_PATIENCE_S) as server:
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            raise ProviderProblem(f"{self.server} takes no mail ({error})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Posts notices as JSON.

    Attributes:
        address: Where to.
    """

    address: str

    def send(self, notice: Notice) -> None:
        """Post it."""
        import urllib.error
        import urllib.request

        data = json.dumps({**asdict(notice), "source": "lowtide"}).encode()
        request = urllib.request.Request(  # noqa: S310 - http and https alone
            self.address, data=data, headers={"Content-Type": "application/json"}
        )
        # Where it goes may hold a secret, which belongs into no message.
        host = urlsplit(self.address).hostname
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S):  # noqa: S310
                pass
        except (OSError, ValueError) as error:
            said = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else "silence"
            with suppress(Exception):
                error.close()  # type: ignore[union-attr]
            raise ProviderProblem(f"{host} does not take a notice ({said})") from None


def sender_for(address: str, environment: Mapping[str, str]) -> Sender:
    """Return who sends to an address: `mailto:ada@example.org` or one of the web.

    Args:
        environment: Where `LOWTIDE_SMTP` may say where mail is handed in.
    """
    parts = urlsplit(address)
    if parts.scheme == "mailto" and "@" in parts.path and not any(map(str.isspace, parts.path)):
        server = environment.get("LOWTIDE_SMTP") or _MAIL
        if not (server.partition(":")[2] or "25").isdigit():
            raise InvalidInput(f"LOWTIDE_SMTP is HOST or HOST:PORT, not {server!r}")
        return Mail(to=parts.path, server=server)
    if parts.scheme in ("http", "https") and parts.hostname:
        return Webhook(address=address)
    raise InvalidInput(
        "notices go to mailto:NAME@HOST or to an address that begins with https://, not to "
        f"{address.partition('?')[0]!r}"
    )
