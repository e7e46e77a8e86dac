"""Files in and out: signals, job traces, recordings; each format in a file of its own."""

from lowtide.formats.jobs import read_jobs, write_jobs
from lowtide.formats.recording_writer import RecordingWriter, write_recording
from lowtide.formats.recordings import read_recordings
from lowtide.formats.signals import read_signal, write_signal

__all__ = [
    "RecordingWriter",
    "read_jobs",
    "read_recordings",
    "read_signal",
    "write_jobs",
    "write_recording",
    "write_signal",
]
