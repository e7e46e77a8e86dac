"""Folders of their own for measurements that begin at the same moment."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from lowtide.errors import FileProblem, LowtideError
from lowtide.formats.recording_folder import MANIFEST
from lowtide.formats.recording_parts import read_joint_manifest, write_joint_manifest
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.measuring.tasks import SlurmTask


def folder_name(environment: Mapping[str, str], *, host: str, pid: int, moment: float) -> str:
    """Return what a recording is called: when, on which machine, of which job and process.

    Args:
        environment: Where Slurm says which job, element of an array, step and task this is.
        moment: When, epoch seconds; it is written in local time.

    >>> tasks = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
    >>> folder_name(tasks, host="n1.cluster", pid=99, moment=0.0)[-12:]
    '-n1-7.0.3-99'
    """
    array = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job = "_".join(each for each in array if each) if all(array) else ""
    job = job or environment.get("SLURM_JOB_ID", "")
    steps = [environment.get(key, "") for key in ("SLURM_STEP_ID", "SLURM_PROCID")] if job else []
    words = [
        "recording",
        time.strftime("%Y%m%d-%H%M%S", time.localtime(moment)),
        host.partition(".")[0],
        ".".join(each for each in (job, *steps) if each),
        str(pid),
    ]
    return "-".join(re.sub(r"[^\w.-]", "_", each) for each in words if each)


def new_folder(parent: Path | str = ".") -> Path:
    """Return a new folder that nobody else has."""
    name = folder_name(os.environ, host=socket.gethostname(), pid=os.getpid(), moment=time.time())
    for turn in count(1):
        # Process ids are used again, and containers all have the same ones.
        folder = Path(parent) / (name if turn == 1 else f"{name}-{turn}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise FileProblem(
                f"cannot make {folder}: {error.strerror}; name a folder elsewhere with -o",
                path=folder,
            ) from error
        return folder
    raise AssertionError("numbers do not end")


def new_writer(*, tell: Callable[[str], None]) -> RecordingWriter:
    """Return a recording in a new folder: here, or where there is no room, elsewhere.

    Args:
        tell: Told where it is, if not here.
    """
    problems: list[FileProblem] = []
    for place in (".", *_places()):
        made: list[Path] = []
        try:
            made.append(new_folder(place))
            writer = RecordingWriter(made[0])
        except FileProblem as problem:
            problems.append(problem)
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)
            continue
        if problems:
            tell(f"{problems[0]}; this recording goes to {writer.folder}")
        return writer
    raise problems[0]


def part_writer(task: SlurmTask, out: Path | None) -> RecordingWriter:
    """Return this task's part of the recording that all tasks of its job make.

    Args:
        out: The folder of the recording; by default one that is called by the job, or, for a
            second measurement by the same task, by the job and a number.
    """
    for turn in count(1):
        folder = out or Path(task.folder if turn == 1 else f"{task.folder}-{turn}")
        part = folder / task.part(socket.gethostname())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            ours = _is_ours(folder, task)
            if ours:
                part.mkdir()
        except FileExistsError:
            ours = False
        except OSError as error:
            raise FileProblem(
                f"cannot make {part}: {error.strerror}; name a folder elsewhere with -o", path=part
            ) from error
        if ours:
            return RecordingWriter(part, part=task.about(socket.gethostname()))
        if out is not None:
            raise FileProblem(
                f"{folder} holds a recording already, by this task or of another job: name another "
                "folder; without -o each job has one of its own",
                path=folder,
            )
    raise AssertionError("numbers do not end")


def _is_ours(folder: Path, task: SlurmTask) -> bool:
    """Return whether a folder is that of this job, now where it was nobody's before."""
    if not (folder / MANIFEST).exists():
        write_joint_manifest(folder, task.shared)
    try:
        return read_joint_manifest(folder) == task.shared
    except LowtideError:
        return False


def kept_elsewhere(name: str, keep: Callable[[Path], None]) -> Path | None:
    """Return a folder elsewhere that has what is to be kept, None where there is no room either."""
    for place in _places():
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
            keep(folder)
        except (LowtideError, OSError):
            continue
        return folder
    return None


def _places() -> list[str]:
    """Return where else there may be room; the last lives in memory, and is there without disks."""
    places = ["/var/tmp", "/dev/shm"]  # noqa: S108
    with suppress(OSError):
        places.insert(0, tempfile.gettempdir())
    return list(dict.fromkeys(places))
