"""Keeping what was watched: a database of jobs, what each used over time, and what is known of it.

SQLite in a file by default, PostgreSQL by its address; the same code and the same answers.
"""

from lowtide.errors import MissingExtra

try:
    import sqlalchemy  # noqa: F401 - everything below needs it
except ImportError:
    raise MissingExtra("keeping and reading what was watched", extra="watch") from None

from lowtide.store.jobs import JobTable, Question
from lowtide.store.records import HostRecord, JobRecord, Retention, Series
from lowtide.store.store import Store

__all__ = ["HostRecord", "JobRecord", "JobTable", "Question", "Retention", "Series", "Store"]
