"""What waits here is seen by others, and so is that it was killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.acting.local_jobs import LocalJob, LocalJobs, again

PATIENCE_S = 60.0
NOW = 1_700_000_000.0
JOB = LocalJob(
    token="t1",
    pid=7,
    name="train.py",
    arrival=NOW,
    deadline=NOW + 9e3,
    begin=NOW + 5e3,
    latest=NOW + 6e3,
    what="waits",
    why="planned",
    again="cd /x && lowtide run",
)


def wait_for(is_so):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := is_so():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come to that")


@pytest.fixture
def lowtide(tmp_path):
    """Run lowtide in a process of its own, on a machine without a Slurm."""
    env = {
        **os.environ,
        "PATH": str(tmp_path / "bin"),
        "LOWTIDE_ACTING": str(tmp_path / "acting"),
        "LOWTIDE_GRID": "windy",
    }
    (tmp_path / "bin").mkdir()
    for name in ("sleep", "true"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))

    def start(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "lowtide", *words],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def asked(lowtide):
    process = lowtide("queue", "--json")
    out, err = process.communicate()
    return process.returncode, json.loads(out), err


def test_what_waits_here_is_listed_and_who_was_killed_is_told_how_to_go_on(lowtide, tmp_path):
    code, document, err = asked(lowtide)
    # No Slurm, and nothing here: that is no list of no jobs.
    assert (code, document["jobs"]) == (1, None)
    assert "not installed" in err
    waits = lowtide("run", "--finish-by", "+90h", "-t", "1:00:00", "--", "sleep", "9")
    try:

        def listed():
            code, document, _ = asked(lowtide)
            return code == 0 and document["local"]

        (row,) = wait_for(listed)
        assert (row["what"], row["name"], row["job_id"]) == ("waits", "sleep", f"here:{waits.pid}")
        assert row["slack_s"] > 0
    finally:
        waits.kill()
        waits.communicate()
    (row,) = asked(lowtide)[1]["local"]
    assert row["what"] == "killed"
    assert row["again"].startswith(f"cd {tmp_path} && lowtide run --finish-by 20")
    assert "start it again" in row["why"]


def test_who_is_done_is_listed_no_more(lowtide, tmp_path):
    done = lowtide("run", "--", "true")
    done.communicate()
    assert done.returncode == 0
    assert list((tmp_path / "acting" / "local").iterdir()) == []


def test_a_job_is_seen_while_it_is_kept_and_one_left_over_for_a_week(tmp_path):
    jobs = LocalJobs(tmp_path)
    with jobs.kept(JOB):
        assert jobs.all(NOW) == [JOB]
        (tmp_path / "spoilt.json").write_text("{")
        (tmp_path / "other.json").write_text((tmp_path / "t1.json").read_text())
        assert jobs.all(NOW) == [JOB]
        left = (tmp_path / "t1.json").read_text()
    assert jobs.all(NOW) == []
    (tmp_path / "t1.json").write_text(left)
    (job,) = jobs.all(NOW)
    assert (job.what, job.lives) == ("killed", False)
    assert jobs.all(NOW + 8 * 86400.0) == []
    assert not (tmp_path / "t1.json").exists()


def test_where_nothing_can_be_written_it_runs_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")
    with LocalJobs(tmp_path / "file").kept(JOB):
        pass


def test_it_is_started_again_by_the_deadline_that_it_had():
    told = "2030-01-01T00:00Z"
    words = ["run", "--finish-by=+2h", "--", "a", "--finish-by", "b"]
    said = again(words, Path("/a b"), 1.0, told)
    assert said == f"cd '/a b' && lowtide run --finish-by={told} -- a --finish-by b"
    assert again(["run", "--", "x"], Path("/"), None, "") == "cd / && lowtide run -- x"
