"""Writing to users of what their jobs wasted, with manners.

On workdays only, to nobody more often than every so many days, for nothing small, and never to
whoever asked not to be. What is sent is written down before it is sent: a mail that may have gone
out is never sent again.
"""

from __future__ import annotations

import re
import smtplib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from email.message import EmailMessage
from email.utils import format_datetime

import sqlalchemy as sa

from lowtide.certainty import marked
from lowtide.errors import InvalidInput, Unreachable
from lowtide.hindsight.waste import RULES
from lowtide.serve.overview import WasteBook, Wasted, most_wasted_j
from lowtide.serve.schema import mail_stops, mails, take_turns
from lowtide.serve.settings import MailSettings, Settings
from lowtide.serve.tokens import make_token, use_once
from lowtide.serve.viewer import Rights, Viewer
from lowtide.store.database import Database
from lowtide.units import format_energy, format_mass

STOP = "mail-stop"
_STOP_S = 90 * 86400.0
_DAY_S = 86400.0
_TIMEOUT_S = 30.0
# So many jobs are named for each rule; the page has them all.
_NAMED = 5
# A name that stands in an address as it is. Of another nobody knows whom a mail would reach.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A mail to a user, or why there is none.

    Attributes:
        energy_j: What the user's jobs drew for nothing.
        why_not: Why it is not sent; empty where it is.
    """

    user: str
    energy_j: float
    wasted: tuple[Wasted, ...]
    why_not: str = ""


def letters(
    database: Database, settings: Settings, *, now: float, tz: tzinfo = UTC
) -> list[Letter]:
    """Return whom there is something to write to, the most waste first, and whom not, and why.

    Args:
        tz: The zone whose workdays count.
    """
    # The site itself looks, not one of its staff: nobody reads what is sent to its owner.
    site = Viewer(database, "", Rights(role="owner"), now)
    start = now - settings.mail.every_days * _DAY_S
    groups: dict[str, list[Wasted]] = defaultdict(list)
    for each in WasteBook(settings.exempt).waste(site, start=start, end=now):
        groups[each.job.record.user or ""].append(each)
    with database.reading() as connection:
        stopped = set(connection.execute(sa.select(mail_stops.c.user)).scalars())
        lately = set(
            connection.execute(sa.select(mails.c.user).where(mails.c.time > start)).scalars()
        )
    free = _day_off(settings.mail, now, tz)
    found = []
    for user, wasted in groups.items():
        energy_j = most_wasted_j(wasted)
        reasons = (
            (not _USER.fullmatch(user), "it is no name that an address could have"),
            (user in stopped, "they asked for no more mails"),
            (user in lately, f"they got one within {settings.mail.every_days} days"),
            (
                energy_j < settings.mail.least_kwh * 3.6e6,
                f"it is less than {settings.mail.least_kwh:g} kWh",
            ),
            (bool(free), free),
        )
        why_not = next((words for holds, words in reasons if holds), "")
        found.append(Letter(user=user, energy_j=energy_j, wasted=tuple(wasted), why_not=why_not))
    return sorted(found, key=lambda each: (-each.energy_j, each.user))


def compose(letter: Letter, settings: Settings, *, now: float, stop_key: str) -> EmailMessage:
    """Return a mail; nothing that a user chose stands in its headers but a checked name.

    Args:
        stop_key: What lets its reader ask for no more.
    """
    mail = settings.mail
    for name in ("sender", "domain"):
        if not getattr(mail, name):
            raise InvalidInput(f'mails are sent from an address: write {name} = "…" into [mail]')
    message = EmailMessage()
    energy = marked(format_energy(letter.energy_j), estimated=True)
    message["Subject"] = f"{energy} that your jobs drew for nothing"
    message["From"] = mail.sender
    message["To"] = f"{letter.user}@{mail.domain}"
    if mail.copy_to:
        message["Cc"] = mail.copy_to
    message["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
    message["Auto-Submitted"] = "auto-generated"
    if settings.url:
        message["List-Unsubscribe"] = f"<{settings.url.rstrip('/')}/stop/{stop_key}>"
        message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    message.set_content(mail_text(letter.wasted, settings, stop_key=stop_key))
    return message


def mail_text(wasted: Sequence[Wasted], settings: Settings, *, stop_key: str = "") -> str:
    """Return what a user is told of jobs that wasted something."""
    groups: dict[str, list[Wasted]] = defaultdict(list)
    for each in wasted:
        groups[each.finding.rule].append(each)
    days = settings.mail.every_days
    where = f" on {settings.cluster}" if settings.cluster else ""
    lines = [
        f"These jobs of yours{where} held something in the last {days} days that they did not use.",
        "Energy and CO2e are estimates (~).",
    ]
    for rule, group in groups.items():
        lines += ["", f"{RULES[rule].title}: {RULES[rule].rule}"]
        for each in group[:_NAMED]:
            record, finding = each.job.record, each.finding
            name = f" ({_plain(record.name)})" if record.name else ""
            energy = marked(format_energy(finding.energy_j), estimated=True)
            drew = f"{energy}, {marked(format_mass(finding.carbon_g), estimated=True)} CO2e"
            lines.append(
                f"  job {_plain(record.shown_id)}{name}: {_plain(finding.evidence)}; {drew}"
            )
        if len(group) > _NAMED:
            lines.append(f"  and {len(group) - _NAMED} more")
        lines.append(f"  {RULES[rule].cure}")
    if settings.url:
        url = settings.url.rstrip("/")
        lines += ["", f"All of them, and what to write in the next job script: {url}/waste"]
        if stop_key:
            lines += [f"No more of these mails: {url}/stop/{stop_key}"]
    return "\n".join(lines) + "\n"


def send(
    database: Database, settings: Settings, found: Sequence[Letter], *, now: float
) -> list[str]:
    """Send the letters that are to be sent, and return to whom."""
    due = [each for each in found if not each.why_not]
    if not due:
        return []
    host, _, port = settings.mail.server.rpartition(":")
    sent = []
    try:
        with smtplib.SMTP(host.strip("[]"), int(port), timeout=_TIMEOUT_S) as server:
            for letter in due:
                key = make_token(database, owner=letter.user, scope=STOP, lasts_s=_STOP_S, now=now)
                message = compose(letter, settings, now=now, stop_key=key)
                subject = str(message["Subject"])
                since = now - settings.mail.every_days * _DAY_S
                number = _write_down(database, letter.user, subject, now=now, since=since)
                if number is None:
                    continue
                try:
                    server.send_message(message)
                except (smtplib.SMTPRecipientsRefused, smtplib.SMTPSenderRefused):
                    # It surely was not sent.
                    _strike_out(database, number)
                    continue
                sent.append(letter.user)
    except (OSError, smtplib.SMTPException) as error:
        raise Unreachable(
            f"the mail server {settings.mail.server} does not take mails: {error}; "
            f"{len(sent)} of {len(due)} were sent"
        ) from None
    return sent


def stop_mails(database: Database, key: str, *, now: float) -> bool:
    """Write to nobody any more who follows the link of a mail; return whether it was one."""
    user = use_once(database, key, scope=STOP, now=now)
    if user is None:
        return False
    set_mails(database, user, wanted=False, now=now)
    return True


def set_mails(database: Database, user: str, *, wanted: bool, now: float) -> None:
    """Note whether somebody wants mails."""
    with database.writing() as connection:
        connection.execute(sa.delete(mail_stops).where(mail_stops.c.user == user))
        if not wanted:
            connection.execute(sa.insert(mail_stops), {"user": user, "since": now})


def wants_mails(database: Database, user: str) -> bool:
    """Return whether somebody has not asked for no more mails."""
    question = sa.select(mail_stops.c.user).where(mail_stops.c.user == user)
    with database.reading() as connection:
        return connection.execute(question).first() is None


def _write_down(
    database: Database, user: str, subject: str, *, now: float, since: float
) -> int | None:
    """Note that somebody is written to; None where another did so since, or at the same time."""
    with database.writing() as connection:
        take_turns(connection, "mails")
        again = sa.select(mails.c.id).where(mails.c.user == user, mails.c.time > since)
        if connection.execute(again).first() is not None:
            return None
        row = {"user": user, "time": now, "subject": subject}
        made = connection.execute(sa.insert(mails), row).inserted_primary_key
        return None if made is None else int(made[0])


def _strike_out(database: Database, number: int) -> None:
    with database.writing() as connection:
        connection.execute(sa.delete(mails).where(mails.c.id == number))


def _day_off(mail: MailSettings, now: float, tz: tzinfo) -> str:
    """Return why nobody is written to today; empty on a workday."""
    today = datetime.fromtimestamp(now, tz)
    if today.weekday() >= 5:
        return "it is the weekend"
    return "it is a holiday" if today.date().isoformat() in mail.holidays else ""


def _plain(text: str) -> str:
    """Return text in one line, without what a terminal would act on."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    return plain[:500]
