"""One job is handed in once, whatever Slurm says of it afterwards."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.acting.book import BookPage
from lowtide.acting.experience import Habit, script_key
from lowtide.acting.journal import Journal
from lowtide.acting.site import SlurmSite
from lowtide.acting.submission import Submission
from lowtide.acting.tag import Tag, decode
from lowtide.acting.waits import UNKNOWN_WAIT_S
from lowtide.errors import Unreachable
from lowtide.slurm.client import slurm_problem
from lowtide.slurm.records import SEPARATOR
from support.commands import run

NOW = time.time()
OURS = f"JobId=5 JobName=a.sh\\n   UserId=ada({os.getuid()}) GroupId=ada(5)\\n   Comment="
GONE = slurm_problem("scontrol failed: slurm_load_jobs error: Invalid job id specified")


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
        # So has another of the user's own, of the same name, submitted a moment later.
        (OURS + 'lt1:{"id":"zzzz","dl":1}', 900.0, 300.0, False),
        # It is not known: who was to wait is lost, who has begun may be over and forgotten.
        (GONE, 900.0, 300.0, False),
        (GONE, 900.0, 2.0, False),
        (GONE, 0.0, 300.0, False),
        (GONE, 0.0, 2.0, True),
        (slurm_problem("scontrol did not answer within 15 s"), 900.0, 300.0, True),
        # It says no, and nothing of the job.
        (slurm_problem("scontrol failed: Protocol authentication error"), 900.0, 300.0, True),
        (slurm_problem("slurm_load_jobs error: Access/permission denied"), 900.0, 300.0, True),
        # An answer that tells of no job is none.
        ("", 900.0, 300.0, True),
    ],
)
def test_in_doubt_a_job_is_not_submitted_again(said, begin_s, kept_s, has):
    def tell(*command):
        if isinstance(said, Exception):
            raise said
        return said.replace("\\n", "\n")

    backend = SimpleNamespace(site=SlurmSite(kept_s=kept_s), client=SimpleNamespace(tell=tell))
    submitting = sys.modules["lowtide.cli.submitting"]
    assert submitting._has(backend, "5", order(NOW + begin_s)) == has


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Slurm's programs, each of which prints what a test has it print."""
    folder = tmp_path / "tools"
    folder.mkdir()

    def write(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    for name in ("sbatch", "squeue", "scontrol", "sinfo", "sacct"):
        write(name, "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LOWTIDE_ACTING", str(tmp_path / "acting"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH -t 10 -p main\ntrue\n")
    return write


WORDS = ("--finish-by", "+30h", "--grid", "windy", "--dry-run", "--json", "a.sh")


def handed_in(capsys) -> dict[str, object]:
    answer = run(capsys, "sbatch", *WORDS)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_nodes_that_are_reserved_for_others_are_seen_when_it_is_handed_in(tools, capsys):
    assert "reserved" not in handed_in(capsys)["why"]
    at = int(time.time()) + 9000
    course = f"ReservationName=x StartTime={at} EndTime={at + 60} Nodes=n[1-2] Flags=SPEC_NODES"
    tools("scontrol", f'[ "$3" != reservation ] || echo "{course}"')
    tools("sinfo", 'echo "main 0/16/0/16 2 8 4000 (null) (null) n[1-2]"')
    assert "nodes are reserved" in handed_in(capsys)["why"]


def wait_in(document) -> float:
    comment = next(word for word in document["command"] if word.startswith("--comment="))
    return decode(comment.partition("=")[2])[0].wait_s


def test_the_week_behind_counts_at_the_first_submission_and_is_asked_for_once(tools, capsys):
    assert wait_in(handed_in(capsys)) == UNKNOWN_WAIT_S
    now = int(time.time())
    cells = ["%d", f"{now - 200_000}", f"{now - 180_000}", "main", "1", "cpu=1,mem=1G"]
    row = SEPARATOR.join(cells) + "\\n"
    told = f"echo x >> asked\nfor k in $(seq 70); do printf '{row}' $k; done\nprintf 'odd\\n'"
    tools("sacct", told)
    # It was asked a moment ago.
    assert wait_in(handed_in(capsys)) == UNKNOWN_WAIT_S
    Path("acting/past.json").unlink()
    assert [wait_in(handed_in(capsys)) for _ in range(3)] == [20_000.0] * 3
    assert Path("asked").read_text().split() == ["x"]
    # Where it is down what it has told last counts, and it is not asked again at once.
    tools("sacct", "echo x >> asked; echo 'Unable to contact slurmdbd' >&2; exit 1")
    os.utime("acting/past.json", (now - 9000, now - 9000))
    assert [wait_in(handed_in(capsys)) for _ in range(2)] == [20_000.0] * 2
    assert Path("asked").read_text().split() == ["x", "x"]


def test_what_a_user_has_set_for_squeue_hides_nobody(tools, capsys, monkeypatch):
    told = "echo \"$(env | grep -c '^SQUEUE_\\|^SINFO_\\|^SACCT_')\" >> set"
    for name in ("squeue", "sinfo", "sacct"):
        tools(name, told)
    for name in ("SQUEUE_USERS", "SQUEUE_PARTITION", "SINFO_PARTITION", "SACCT_FORMAT"):
        monkeypatch.setenv(name, "x")
    run(capsys, "sbatch", *WORDS)
    assert set(Path("set").read_text().split()) == {"0"}


@pytest.mark.parametrize("answer", ["", "Submitted nothing\n", Unreachable("did not answer")])
def test_who_does_not_say_a_number_is_looked_for_and_never_a_traceback(tools, capsys, answer):
    silent = isinstance(answer, Unreachable)
    text = (
        'echo "Unable to contact slurm controller" >&2; exit 1' if silent else f"printf '{answer}'"
    )
    tools("sbatch", text)
    words = ("--finish-by", "+30h", "--grid", "windy", "--no-check", "a.sh")
    said = run(capsys, "sbatch", *words)
    assert said.code == 2
    assert "before you submit it again" in said.err


def test_who_was_seen_to_save_may_be_stopped_and_who_was_deaf_is_not_asked_again(tools, capsys):
    habits = Journal.of_user().habits
    script = script_key("a.sh", Path("a.sh").read_text())
    usual = tag_in(handed_in(capsys))
    assert (usual.interruptible, usual.deaf) == (False, False)
    seen = BookPage(token="1", job_id="1", arrival=NOW, deadline=NOW, script=script, stop_s=95.0)
    for _ in range(2):
        # Taken in once, however often it is settled.
        habits.learn(seen)
    answer = run(capsys, "sbatch", *WORDS)
    assert "it was seen to save" in answer.err
    saves = tag_in(json.loads(answer.out))
    assert (saves.interruptible, saves.deaf, saves.stop_s) == (True, False, 95.0)
    # Who has ruled out that it is started again is not wrapped.
    ruled_out = run(capsys, "sbatch", *WORDS[:-1], "--no-requeue", "a.sh")
    assert not tag_in(json.loads(ruled_out.out)).interruptible
    habits.learn(replace(seen, token="2", stop_s=None, deaf=True))
    answer = run(capsys, "sbatch", *WORDS[:-1], "--saves", "a.sh")
    assert "planned to run through" in answer.err
    assert tag_in(json.loads(answer.out)).deaf
    assert not tag_in(handed_in(capsys)).interruptible
    # Another script of that name is another, and a file that makes no sense says nothing.
    assert habits.of(script_key("a.sh", "#!/bin/sh\n")) == Habit()
    for text in ("", "[]", '{"x": 5}', json.dumps({script: [1, {"stop_s": "x"}]}), "\0"):
        habits.path.write_text(text)
        assert habits.of(script) == Habit()


def tag_in(document) -> Tag:
    comment = next(word for word in document["command"] if word.startswith("--comment="))
    return decode(comment.partition("=")[2])[0]


@pytest.mark.parametrize("option", ["--finish-by", "--grid", "--min-run", "--finish-by=+20h"])
def test_what_is_lowtides_own_behind_what_is_sbatchs_is_refused(tools, capsys, option):
    more = () if "=" in option else ("+20h",)
    answer = run(capsys, "sbatch", "-t", "10", option, *more, "a.sh")
    assert answer.code == 2
    assert "come before sbatch's" in answer.err
    # Behind the script it is the script's.
    tools("sbatch", "echo 7")
    assert run(capsys, "sbatch", "-t", "10", "a.sh", "--grid", "x").code == 0


def test_silence_is_no_queue_without_jobs(tools, capsys):
    tools("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for words in (("queue", "--grid", "windy"), ("drive", "--once", "--grid", "windy")):
        answer = run(capsys, *words)
        assert answer.code == 1
        assert "no job" not in answer.out
        assert "0 jobs" not in answer.out
        assert "ontact" in answer.err + answer.out
    document = json.loads(run(capsys, "queue", "--json").out)
    assert document["jobs"] is None


def test_how_sure_it_is_is_said_and_what_it_comes_to_in_grams(tools, capsys):
    document = handed_in(capsys)
    assert document["promise"] == "probability"
    assert document["sure"] == "unknown: 04:00:00 taken for the queue"
    assert (document["wait_s"], document["starts"], document["unit"]) == (14400.0, 0, None)
    words = (*WORDS[:4], "--profile", "h200", "--dry-run")
    known = json.loads(run(capsys, "sbatch", *words, "--json", "-t", "9:00:00", "a.sh").out)
    assert known["unit"] == "g"
    assert known["planned"] < known["at_once"]
    told = run(capsys, "sbatch", *words, "-t", "9:00:00", "a.sh").out
    assert "that is a probability: unknown" in told
    assert " g instead of " in told
    # Nobody promised anything to who is due at once.
    late = run(capsys, "sbatch", "--finish-by", "+1m", *WORDS[2:]).out
    assert json.loads(late)["promise"] is None


def test_who_waits_behind_a_job_without_end_is_told_that_nobody_foresees_a_start(tools, capsys):
    tools("sbatch", 'echo "sbatch: Job 5 to start at 2099-01-01T00:00:00 using 4 processors" >&2')
    assert "nobody foresees" in handed_in(capsys)["why"]


def test_what_stands_behind_the_script_is_the_scripts_and_that_is_said(tools, capsys):
    answer = run(capsys, "sbatch", "--dry-run", "a.sh", "--finish-by", "+3h")
    assert answer.out.splitlines()[0] == "sbatch --parsable a.sh --finish-by +3h"
    assert "stands behind the script" in answer.err
