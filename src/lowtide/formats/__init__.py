"""Files in and out: signals and job traces, each format in a file of its own."""

from lowtide.formats.jobs import read_jobs, write_jobs
from lowtide.formats.signals import read_signal, write_signal

__all__ = ["read_jobs", "read_signal", "write_jobs", "write_signal"]
