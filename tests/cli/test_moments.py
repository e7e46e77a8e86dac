"""Times as sacct takes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lowtide.cli.moments import parse_moment
from lowtide.errors import InvalidTime

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2024, 7, 15, 14, 30, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("now-30days", NOW - timedelta(days=30)),
        ("now - 2 hours", NOW - timedelta(hours=2)),
        ("now+1week", NOW + timedelta(weeks=1)),
        ("now-90", NOW - timedelta(seconds=90)),
        ("now-5min", NOW - timedelta(minutes=5)),
        ("today", datetime(2024, 7, 15, tzinfo=ZONE)),
        ("yesterday", datetime(2024, 7, 14, tzinfo=ZONE)),
        ("midnight", datetime(2024, 7, 15, tzinfo=ZONE)),
        ("noon", datetime(2024, 7, 15, 12, tzinfo=ZONE)),
        ("06:00", datetime(2024, 7, 15, 6, tzinfo=ZONE)),
        ("6:30:15 pm", datetime(2024, 7, 15, 18, 30, 15, tzinfo=ZONE)),
        ("12:00 am", datetime(2024, 7, 15, tzinfo=ZONE)),
        ("10am", datetime(2024, 7, 15, 10, tzinfo=ZONE)),
        ("07/01 10am", datetime(2024, 7, 1, 10, tzinfo=ZONE)),
        ("07/01-10:00", datetime(2024, 7, 1, 10, tzinfo=ZONE)),
        ("2024-07-01 12 pm", datetime(2024, 7, 1, 12, tzinfo=ZONE)),
        ("07/01-noon", datetime(2024, 7, 1, 12, tzinfo=ZONE)),
        ("yesterday 10:30pm", datetime(2024, 7, 14, 22, 30, tzinfo=ZONE)),
        ("2024-07-01", datetime(2024, 7, 1, tzinfo=ZONE)),
        ("2024-07-01T06:00", datetime(2024, 7, 1, 6, tzinfo=ZONE)),
        ("2024-07-01 06:00:30", datetime(2024, 7, 1, 6, 0, 30, tzinfo=ZONE)),
        ("2024-07-01T06:00Z", datetime(2024, 7, 1, 8, tzinfo=ZONE)),
        ("2024-07-01T06:00+05:30", datetime(2024, 7, 1, 2, 30, tzinfo=ZONE)),
        ("0701", datetime(2024, 7, 1, tzinfo=ZONE)),
        ("070123", datetime(2023, 7, 1, tzinfo=ZONE)),
        ("07/01", datetime(2024, 7, 1, tzinfo=ZONE)),
        ("07/01/23-06:00", datetime(2023, 7, 1, 6, tzinfo=ZONE)),
        ("1700000000", datetime.fromtimestamp(1_700_000_000, ZONE)),
    ],
)
def test_every_form_is_read(text: str, moment: datetime) -> None:
    assert parse_moment(text, now=NOW.timestamp(), tz=ZONE) == moment.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "now-3moons",
        "25:00",
        "2024-13-01",
        "2024-07-01T",
        "07/32",
        "12:60",
        "13pm",
        "0am",
    ],
)
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(InvalidTime, match="cannot read"):
        parse_moment(text, now=NOW.timestamp(), tz=ZONE)


def test_local_time_is_this_machines() -> None:
    midnight = parse_moment("today", now=NOW.timestamp())
    assert datetime.fromtimestamp(midnight).hour == 0  # noqa: DTZ006
