"""One job is handed in once, whatever Slurm says of it afterwards."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import pytest

from lowtide.acting.site import SlurmSite
from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag
from lowtide.errors import Refused, Unreachable
from support.commands import run

NOW = time.time()
OURS = f"JobId=5 JobName=a.sh\\n   UserId=ada({os.getuid()}) GroupId=ada(5)\\n   Comment="
GONE = Refused("Invalid job id specified")


@pytest.fixture
def sbatch(monkeypatch):
    """The verb's own module, on a Slurm that says what a test wants it to."""
    module = sys.modules["lowtide.cli.sbatch"]
    said = {}

    def asked(backend, *command):
        answer = said[command[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("lowtide.acting.slurm.asked", asked)
    return SimpleNamespace(module=module, said=said)


def order(begin: float) -> SimpleNamespace:
    submission = Submission(before=(), script="a.sh", arguments=(), text="")
    tag = Tag(token="k3v9", deadline=NOW + 9e4, arrival=NOW, run_s=60.0)
    return SimpleNamespace(submission=submission, tag=tag, begin=begin, is_tagged=True)


@pytest.mark.parametrize(
    ("said", "begin_s", "kept_s", "has"),
    [
        (OURS + 'lt1:{"id":"k3v9"}', 900.0, 300.0, True),
        # The site has written something else beside it.
        (OURS + "(null)", 900.0, 300.0, True),
        # A stranger has its number.
        (OURS.replace("a.sh", "b.sh"), 900.0, 300.0, False),
        (OURS.replace(f"({os.getuid()})", "(4711)"), 900.0, 300.0, False),
        # It is not known: who was to wait is lost, who has begun may be over and forgotten.
        (GONE, 900.0, 300.0, False),
        (GONE, 900.0, 2.0, False),
        (GONE, 0.0, 300.0, False),
        (GONE, 0.0, 2.0, True),
        (Unreachable("did not answer"), 900.0, 300.0, True),
    ],
)
def test_in_doubt_a_job_is_not_submitted_again(sbatch, said, begin_s, kept_s, has):
    sbatch.said["scontrol"] = said.replace("\\n", "\n") if isinstance(said, str) else said
    backend = SimpleNamespace(site=SlurmSite(kept_s=kept_s))
    assert sbatch.module._has(backend, "5", order(NOW + begin_s)) == has


@pytest.mark.parametrize("answer", ["", "Submitted nothing\n", Unreachable("did not answer")])
def test_who_does_not_say_a_number_is_looked_for_and_never_a_traceback(
    tmp_path, capsys, monkeypatch, answer
):
    tools = tmp_path / "tools"
    tools.mkdir()
    silent = isinstance(answer, Unreachable)
    text = (
        'echo "Unable to contact slurm controller" >&2; exit 1' if silent else f"printf '{answer}'"
    )
    for name in ("sbatch", "squeue", "scontrol", "sinfo"):
        (tools / name).write_text(f"#!/bin/sh\n{text if name == 'sbatch' else 'exit 0'}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("LOWTIDE_ACTING", str(tmp_path / "acting"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH -t 10\ntrue\n")
    words = ("--finish-by", "+30h", "--grid", "windy", "--no-check", "a.sh")
    said = run(capsys, "sbatch", *words)
    assert said.code == 2
    assert "before you submit it again" in said.err
