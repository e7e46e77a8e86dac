"""`lowtide report --mail`: users of a centre are told what their jobs held and did not use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.certainty import marks_for
from lowtide.cli.output import Column, Form, plain, print_rows, say

if TYPE_CHECKING:
    from lowtide.serve.mail import Letter


def tell_users(place: str | None, config: Path | None, *, dry_run: bool, form: Form) -> None:
    """Write to users, or show what would be written.

    Args:
        place: The store of the centre.
        config: How it is set up.
    """
    import time
    from datetime import UTC, datetime

    from lowtide.errors import InvalidInput
    from lowtide.serve.mail import compose, letters, send
    from lowtide.serve.schema import bring_centre_up_to_date
    from lowtide.serve.settings import find_settings
    from lowtide.store.database import Database
    from lowtide.store.tables import bring_up_to_date

    settings = find_settings(config)
    place = place or settings.store
    if not place:
        raise InvalidInput(
            "mails are sent by a centre: name its --store, or write it into its file"
        )
    now = time.time()
    database = Database(place)
    try:
        bring_up_to_date(database)
        bring_centre_up_to_date(database)
        zone = datetime.fromtimestamp(now, UTC).astimezone().tzinfo or UTC
        found = letters(database, settings, now=now, tz=zone)
        # What cannot be written is said before anything is sent.
        drafts = {
            each.user: compose(each, settings, now=now, stop_key="KEY")
            for each in found
            if not each.why_not
        }
        sent = [] if dry_run else send(database, settings, found, now=now)
    finally:
        database.close()
    rows = [_row(each, each.user in sent) for each in found]

    def show() -> None:
        if dry_run:
            for each in found:
                if not each.why_not:
                    say(f"To: {drafts[each.user]['To']}")
                    say(f"Subject: {drafts[each.user]['Subject']}")
                    print()
                    print(drafts[each.user].get_content())
        print_rows(_columns(), rows, none="No job was seen to hold what it did not use.")

    form.print(rows, columns=_columns(), document={"sent": len(sent), "users": rows}, show=show)


def _columns() -> list[Column]:
    return [
        Column("user", "user"),
        Column("jobs", "jobs"),
        Column("energy_j", "for nothing", marks=lambda _: marks_for(estimated=True)),
        Column("sent", "sent", plain),
        Column("why_not", "why not"),
    ]


def _row(letter: Letter, sent: bool) -> dict[str, Any]:
    return {
        "user": letter.user,
        "jobs": len({each.job.ref for each in letter.wasted}),
        "energy_j": letter.energy_j,
        "sent": sent,
        "why_not": letter.why_not,
    }
