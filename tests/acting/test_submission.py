"""What users type behind sbatch is read as sbatch reads it, and given on with little added."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.acting.journal import Journal
from lowtide.acting.site import Shares
from lowtide.acting.submission import LikeNodes, Submission
from lowtide.acting.tag import Tag, decode, encode
from lowtide.acting.wrapper import directives, wrap
from lowtide.cli.sbatch import parted
from lowtide.errors import FileProblem, InvalidInput
from lowtide.profile import Phase, PowerProfile, Spread

PATIENCE_S = 60.0
TAG = Tag(token="k3v9", deadline=9e9, arrival=1000.0, run_s=60.0, begin=1600.0)
SCRIPT = """#!/bin/bash
# A comment.
#SBATCH --time=2:00:00 --partition=long   # both at once
#SBATCH --comment="from the script"

#SBATCH -J inside
echo "$@"
#SBATCH --time=9:00:00
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text(SCRIPT)
    return "a.sh"


@pytest.mark.parametrize(
    ("words", "limit_s"),
    [
        ([], 7200.0),
        (["-t", "10"], 600.0),
        (["-t10"], 600.0),
        (["-t=10"], 600.0),
        (["--time", "1-0"], 86400.0),
        (["--time=0:30"], 30.0),
        (["-Ht", "5"], 300.0),
        (["--exclusive", "-n", "4", "--time=5"], 300.0),
        (["-t", "UNLIMITED"], None),
        (["-t", "0"], None),
    ],
)
def test_the_time_limit_is_the_one_that_counts(script, words, limit_s):
    read = Submission.read([*words, script, "-t", "99"], {})
    assert read.limit_s == limit_s
    assert read.script == script
    assert read.arguments == ("-t", "99")


def test_the_environment_counts_more_than_the_script_and_less_than_what_is_typed(script):
    said = {"SBATCH_TIMELIMIT": "7"}
    assert Submission.read([script], said).limit_s == 420.0
    assert Submission.read(["-t", "8", script], said).limit_s == 480.0


def test_one_sbatch_has_all_that_was_typed_and_the_users_own_comment(script):
    read = Submission.read(["-p", "fast", "--comment", "mine", "-n4", script, "x y"], {})
    command = read.command(TAG, now=1000.0)
    assert command[:2] == ["sbatch", "--parsable"]
    assert decode(command[2].removeprefix("--comment=")) == (TAG, "mine")
    assert command[3:] == ["--begin=now+600", "-p", "fast", "-n4", script, "x y"]


def test_the_scripts_own_comment_is_kept_and_a_copied_tag_is_not(script):
    assert Submission.read([script], {}).comment == "from the script"
    lines = Submission.read(["--comment", "two\nlines", script], {})
    assert lines.comment == "two lines"
    copied = encode(TAG, "mine")
    assert Submission.read([f"--comment={copied}", script], {}).comment == "mine"


def test_what_was_said_of_requeuing_logs_and_signals_is_not_said_otherwise(script, tmp_path):
    read = Submission.read(["--open-mode=truncate", "--signal=B:USR2@30", "-J", "n", script], {})
    command = read.command(TAG, now=1000.0, wrapped=tmp_path / "w.sh")
    assert [each for each in command if "open-mode" in each] == ["--open-mode=truncate"]
    assert [each for each in command if "signal" in each] == ["--signal=B:USR2@30"]
    assert "--requeue" in command
    assert "--job-name=a.sh" not in command
    assert command[-1] == str(tmp_path / "w.sh")


def test_a_line_of_shell_is_wrapped_as_well(tmp_path):
    read = Submission.read(["--wrap", "echo hello", "-t", "5"], {})
    assert read.script is None
    assert read.command(TAG, now=1000.0)[-4:] == ["--wrap", "echo hello", "-t", "5"]
    command = read.command(TAG, now=1000.0, wrapped=tmp_path / "w.sh")
    assert not any("wrap" in each for each in command if each.startswith("--wrap"))
    assert "echo hello" in read.wrapped()


@pytest.mark.parametrize(
    "words",
    [
        ["-b", "now+1hour"],
        ["--hold"],
        ["--test-only"],
        ["-H"],
        ["-d", "afterok:1"],
        ["--reservation=r"],
        ["--deadline", "now+1hour"],
        # As far as it is plain which is meant, the beginning of a name is one.
        ["--depend=afterok:1"],
        ["--dep", "afterok:1"],
        ["--reserv=r"],
        ["--beg=now"],
        ["-M", "other"],
        ["--wait"],
        ["-w", "n1"],
        ["-L", "matlab:1"],
    ],
)
def test_what_is_not_to_be_started_by_us_is_left_alone(script, words):
    assert Submission.read([*words, script], {}).left_alone
    assert not Submission.read([script], {}).left_alone


@pytest.mark.parametrize("name", ["SBATCH_RESERVATION", "SLURM_CLUSTERS", "SBATCH_WAIT"])
def test_what_is_set_for_every_job_counts_as_well(script, name):
    assert Submission.read([script], {name: "x"}).left_alone


def test_options_that_are_set_or_shortened_are_those_that_sbatch_takes(script):
    read = Submission.read(["--exclus", "-t", "5", "--ntasks-per-n=2", script], {})
    assert (read.limit_s, read.script) == (300.0, script)
    assert read.options["ntasks-per-node"] == "2"
    said = {"SBATCH_ARRAY_INX": "0-9", "SBATCH_NO_REQUEUE": "1", "SBATCH_JOB_NAME": "set"}
    read = Submission.read([script], said)
    assert (read.waves(1.0), read.may_be_stopped, read.name) == (10, False, "set")
    # What is not plain is sbatch's to refuse.
    assert Submission.read(["--gpus-per=2", script], {}).options["gpus-per"] == "2"


def test_who_is_to_be_quiet_still_tells_its_number(script):
    command = Submission.read(["-Q", "-n1", "--quiet", script], {}).command(TAG, now=1000.0)
    assert not {"-Q", "--quiet"} & set(command)
    assert "-n1" in command


def test_a_job_of_several_parts_is_left_alone(script):
    words = ["-n1", ":", "-n2", script]
    read = Submission.read(words, {})
    assert (read.left_alone, list(read.before)) == ("a job of several parts", words)
    Path("het.sh").write_text("#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\ntrue\n")
    assert Submission.read(["het.sh"], {}).left_alone


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], "long/1"),
        (["-p", "fast,slow", "-n", "8"], "fast/2-8"),
        (["-n", "4", "-c", "8"], "long/9-64"),
        (["--gres=gpu:a100:2"], "long/1/gpu"),
        (["-G", "1"], "long/1/gpu"),
        (["--gpus-per-node=4", "-N", "2"], "long/2-8/gpu"),
        (["--gres=tmpdisk:5"], "long/1"),
        (["--exclusive", "-n1"], "long/513+"),
        (["-N", "2", "--ntasks-per-node=64"], "long/65-512"),
        (["--gpus=4", "--cpus-per-gpu=8"], "long/9-64/gpu"),
    ],
)
def test_it_waits_with_its_like(script, words, kind):
    read = Submission.read([*words, script], {})
    assert read.kind("main") == kind
    # What Slurm says of it counts where that is more.
    assert read.kind("main", 9999.0).startswith(f"{kind.partition('/')[0]}/513+")


@pytest.mark.parametrize(
    ("words", "cpus", "waves"),
    [
        ([], None, 1),
        ([], 1.0, 1),
        (["-a", "0-9"], None, 1),
        (["-a", "0-9"], 10.0, 1),
        (["-a", "0-9"], 9.0, 2),
        (["-a", "0-9", "-c4"], 8.0, 5),
        (["-a", "0-9", "-c4"], 2.0, 10),
        (["--array=0-4999%50"], None, 100),
        (["--array=0-4999%50"], 25.0, 200),
        (["-a", "1,3,5-9:2,20"], 2.0, 3),
        (["-a", "nonsense"], 2.0, 1),
    ],
)
def test_an_array_takes_as_many_waves_as_there_is_room_for(script, words, cpus, waves):
    read = Submission.read([*words, script], {})
    nodes = [] if cpus is None else [LikeNodes(count=1, cpus=cpus)]
    assert read.waves(read.at_once(nodes)) == waves


# Four nodes of 64 CPUs, two of them with GPUs and more memory.
NODES = (
    LikeNodes(count=2, cpus=64, memory=256 * 2**30),
    LikeNodes(count=2, cpus=64, memory=512 * 2**30, gpus=8),
)


@pytest.mark.parametrize(
    ("words", "said", "at_once"),
    [
        ([], None, 256),
        (["-c", "3"], None, 84),
        # GPUs, memory and whole nodes run out before CPUs do.
        (["--gpus=1"], None, 16),
        (["--gres=gpu:a100:4"], None, 4),
        (["-n", "2", "--gpus-per-task=a100:2"], None, 4),
        (["-G", "a100:1,v100:2"], None, 4),
        (["--gpus-per-node=3", "-N2"], None, 2),
        (["--gpus=2", "--cpus-per-gpu=32"], None, 2),
        (["--mem=200G"], None, 6),
        (["--mem=250000"], None, 6),
        (["--mem-per-cpu=32G", "-c4"], None, 12),
        (["--mem-per-gpu=128G", "--gpus=1"], None, 8),
        (["--mem=0"], None, 256),
        (["--exclusive"], None, 4),
        (["--exclusive", "-N2"], None, 2),
        (["-N2", "--ntasks-per-node=32"], None, 4),
        (["--mincpus=48"], None, 4),
        # Slurm knows more of it than its words tell, and what fits nowhere runs one by one.
        (["--hint=nomultithread"], 2.0, 128),
        (["--mem=9T"], None, 1),
    ],
)
def test_as_many_run_at_once_as_nodes_have_room_for(script, words, said, at_once):
    assert Submission.read([*words, script], {}).at_once(NODES, said) == at_once


GB = 2.0**30
BY_CPU = Shares(minds_memory=True, cpu_memory=2 * GB)
ALL_OF_IT = Shares(minds_memory=True, node_memory=math.inf)


@pytest.mark.parametrize(
    ("words", "shares", "at_once", "taken"),
    [
        (["-n2"], Shares(), 128, 2),
        # Each has its nodes for itself, whatever it asks for.
        (["-n2"], Shares(whole=True), 4, 64),
        (["-N2"], Shares(whole=True), 2, 128),
        (["--exclusive"], BY_CPU, 4, 64),
        (["--exclusive=user"], BY_CPU, 256, 1),
        # Memory runs out before CPUs do, also where it is nobody's word.
        (["--mem=64G"], BY_CPU, 24, 16),
        (["-c2"], replace(BY_CPU, cpu_memory=8 * GB), 96, 4),
        (["-c2"], replace(BY_CPU, cpu_memory=0.0, node_memory=128 * GB), 12, 32),
        # Without a word of the site's a job has all that is there, and so has --mem=0.
        ([], ALL_OF_IT, 4, 64),
        (["--mem=0"], BY_CPU, 4, 64),
        (["--mem=1G"], ALL_OF_IT, 256, 1),
        # Where memory is nobody's own it keeps nobody out.
        (["--mem=0"], Shares(node_memory=math.inf), 256, 1),
    ],
)
def test_what_a_job_keeps_from_others_is_more_than_it_asks_for(
    script, words, shares, at_once, taken
):
    read = Submission.read([*words, script], {})
    assert read.at_once(NODES, None, shares) == at_once
    assert read.taken_cpus(NODES, None, shares) == taken


def test_without_a_script_it_is_said_what_to_do(tmp_path):
    with pytest.raises(InvalidInput, match="name the batch script"):
        Submission.read(["-t", "5"], {})
    with pytest.raises(FileProblem, match="cannot be read"):
        Submission.read([str(tmp_path / "none.sh")], {})


@given(st.lists(st.sampled_from(["--finish-by", "8am", "--saves", "-t", "5", "x.sh", "--grid=gb"])))
def test_words_are_only_parted_and_never_changed(words):
    found = parted(words)
    assert [each for each in found if each != "--"] == words
    assert found.count("--") <= 1


def test_only_the_lines_that_sbatch_looks_at_are_copied():
    assert [line.split()[1] for line in directives(SCRIPT)] == [
        "--time=2:00:00",
        '--comment="from',
        "-J",
    ]


@pytest.mark.parametrize("script", ["", "echo hello\n", "#!\n", "#! \n"])
def test_what_nobody_would_run_is_refused(script):
    with pytest.raises(InvalidInput, match="begins with #!"):
        wrap(script)


def test_what_is_wrapped_is_not_wrapped_again():
    with pytest.raises(InvalidInput, match="wrapped already"):
        wrap(wrap("#!/bin/sh\ntrue\n"))


# Slurm's programs as far as the wrapper asks them: what they were told stands in a file.
SCONTROL = """#!/bin/bash
echo "scontrol $*" >> "$TOLD"
"""
SQUEUE = """#!/bin/bash
grep -q requeue "$TOLD" && printf %-20s PENDING || printf %-20s RUNNING
cat "$COMMENT"
"""
# Nobody has to wait here for what a controller might forget.
SLEEP = """#!/bin/bash
case "$1" in [1-4]) ;; *) exec /bin/sleep "$@" ;; esac
"""


@pytest.fixture
def pretended(tmp_path):
    """An environment with a Slurm that only remembers what it was told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("scontrol", SCONTROL), ("squeue", SQUEUE), ("sleep", SLEEP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "told").touch()
    return {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TOLD": str(tmp_path / "told"),
        "COMMENT": str(tmp_path / "comment"),
        "TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": "17",
    }


def started(script, environment, tmp_path, *arguments):
    path = tmp_path / "wrapped.sh"
    path.write_text(wrap(script))
    return subprocess.Popen(["bash", str(path), *arguments], env=environment, cwd=tmp_path)


@pytest.mark.parametrize(
    "first",
    ["#!/bin/bash -e", "#! /bin/bash", "#!/usr/bin/env -S bash -e -u", "#!/bin/echo it's 'so"],
)
def test_it_is_run_by_whom_the_kernel_would_have_run_it(pretended, tmp_path, first):
    script = tmp_path / "own.sh"
    script.write_text(f'{first}\necho "$-"\nfalse\necho on\n')
    script.chmod(0o755)
    itself = subprocess.run([str(script)], capture_output=True, text=True, check=False)
    (tmp_path / "wrapped.sh").write_text(wrap(script.read_text()))
    words = ["bash", "wrapped.sh"]
    wrapped = subprocess.run(
        words, env=pretended, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert wrapped.returncode == itself.returncode
    # Where it lies is its own affair.
    assert wrapped.stdout.split()[:2] == itself.stdout.split()[:2]


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert path.exists()


LISTENS = """#!/bin/bash
# Of three processes one listens; the others would be ended by the signal.
sleep 300 & other=$!
bash -c 'trap "kill %1; exit 75" USR1; sleep 300 & touch ready; wait' ; status=$?
kill -0 $other && touch unhurt
kill $other
exit $status
"""


@pytest.mark.parametrize("task", [None, "3"])
def test_who_listens_is_told_saves_and_is_requeued_with_its_begin(pretended, tmp_path, task):
    begin = int(time.time()) + 5000
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0, begin=begin, progress_s=100.0)
    Path(pretended["COMMENT"]).write_text(encode(tag, 'mine "p":5 {x}') + "   \n")
    if task:
        pretended |= {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": task}
    job = started(LISTENS, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    time.sleep(1.1)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert (tmp_path / "unhurt").exists()
    number = "12_3" if task else "17"
    noted, requeued, begun = Path(pretended["TOLD"]).read_text().splitlines()
    assert requeued == f"scontrol requeue {number}"
    left_s = int(re.fullmatch(rf"scontrol update JobId={number} StartTime=now\+(\d+)", begun)[1])
    assert abs(time.time() + left_s - begin) < PATIENCE_S
    kept, text = decode(noted.partition("Comment=")[2])
    assert text == 'mine "p":5 {x}'
    assert 100.0 < kept.progress_s < 100.0 + PATIENCE_S
    assert (kept.begin, kept.token) == (tag.begin, tag.token)
    # Nothing is left behind.
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("lowtide.")]


@pytest.mark.parametrize("status", [0, 1, 74, 143])
def test_any_other_end_is_the_end(pretended, tmp_path, status):
    job = started(f"#!/bin/sh\nexit {status}\n", pretended, tmp_path)
    assert job.wait(PATIENCE_S) == status
    assert Path(pretended["TOLD"]).read_text() == ""


def test_a_job_that_does_not_listen_goes_on(pretended, tmp_path):
    script = "#!/bin/sh\ntouch ready\nwhile [ ! -e enough ]; do sleep 0.05; done\nexit 4\n"
    job = started(script, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    # A shell that starts programs all the time keeps signals back for moments, and does not listen.
    for _ in range(8):
        job.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
        assert job.poll() is None
    (tmp_path / "enough").touch()
    assert job.wait(PATIENCE_S) == 4


# As srun does: it keeps the signal back, and one of its threads waits for it.
WAITS = """#!/usr/bin/env python3
import os, signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def take():
    open("ready", "w").close()
    signal.sigwait([signal.SIGUSR1])
    os._exit(75)
threading.Thread(target=take).start()
time.sleep(60)
"""


def test_who_keeps_the_signal_back_to_wait_for_it_is_told(pretended, tmp_path):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    job = started(WAITS, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert "requeue 17" in Path(pretended["TOLD"]).read_text()


def test_who_requeues_himself_gets_the_begin_too_and_all_else_is_scontrols(pretended, tmp_path):
    begin = int(time.time()) + 5000
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0, begin=begin)
    Path(pretended["COMMENT"]).write_text(encode(tag))
    # What it does once it is requeued would be done twice: it is ended there.
    script = "#!/bin/sh\nscontrol show job 17\nscontrol requeue $SLURM_JOB_ID\nsleep 50\n"
    assert started(script, pretended, tmp_path).wait(PATIENCE_S) == 75
    told = Path(pretended["TOLD"]).read_text().splitlines()
    assert [each.split()[1] for each in told] == ["show", "requeue", "update"]
    assert "StartTime=now+" in told[2]


def test_who_requeues_another_job_or_runs_in_one_submitted_from_here_is_scontrols(
    pretended, tmp_path
):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    # A program that looks after other jobs; and one of these, which has the path of this one.
    script = """#!/bin/bash
    scontrol requeue 99
    SLURM_JOB_ID=18 bash -c 'scontrol requeue 18'
    exit 4
    """
    assert started(script, pretended, tmp_path).wait(PATIENCE_S) == 4
    told = Path(pretended["TOLD"]).read_text().splitlines()
    assert told == ["scontrol requeue 99", "scontrol requeue 18"]


def test_a_wrapped_job_submitted_by_a_wrapped_one_is_its_own(pretended, tmp_path):
    begin = int(time.time()) + 5000
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0, begin=begin)
    Path(pretended["COMMENT"]).write_text(encode(tag))
    inner = "#!/bin/bash\ntrap 'exit 75' USR1\ntouch ready\nwhile :; do sleep 0.05; done\n"
    (tmp_path / "inner.sh").write_text(wrap(inner))
    # It starts while the one that submitted it still runs there, and goes on without that.
    outer = """#!/bin/bash
    export SLURM_JOB_ID=18
    setsid bash inner.sh & echo $! > pid
    while [ ! -e ready ]; do sleep 0.05; done
    exit 4
    """
    assert started(outer, pretended, tmp_path).wait(PATIENCE_S) == 4
    pid = int((tmp_path / "pid").read_text())
    try:
        os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + PATIENCE_S
        while "StartTime" not in Path(pretended["TOLD"]).read_text():
            assert time.monotonic() < until, Path(pretended["TOLD"]).read_text()
            time.sleep(0.05)
    finally:
        # It has a session of its own, with all that it has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    told = Path(pretended["TOLD"]).read_text().splitlines()
    assert told[-2] == "scontrol requeue 18"
    assert told[-1].startswith("scontrol update JobId=18 StartTime=now+")


def test_what_a_user_has_set_for_squeue_does_not_hide_the_job(pretended, tmp_path):
    begin = int(time.time()) + 5000
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0, begin=begin)
    Path(pretended["COMMENT"]).write_text(encode(tag))
    tool = Path(pretended["PATH"].partition(":")[0]) / "squeue"
    tool.write_text(SQUEUE.replace("grep -q", '[ -z "$SQUEUE_STATES" ] || exit 0\ngrep -q', 1))
    environment = {**pretended, "SQUEUE_STATES": "PENDING", "SQUEUE_USERS": "ada"}
    job = started(LISTENS, environment, tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert "StartTime=now+" in Path(pretended["TOLD"]).read_text()


def test_what_it_takes_to_save_is_no_work(pretended, tmp_path):
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0)
    Path(pretended["COMMENT"]).write_text(encode(tag))
    # It is asked again while it saves, which takes three seconds.
    saves = "trap '' USR1; date +%s > heard; /bin/sleep 3; exit 75"
    script = f'#!/bin/bash\ntrap "{saves}" USR1\ntouch ready\n'
    launched = int(time.time())
    job = started(script + "while :; do sleep 0.05; done\n", pretended, tmp_path)
    wait_for(tmp_path / "ready")
    time.sleep(1.1)
    job.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    noted = Path(pretended["TOLD"]).read_text().splitlines()[0]
    progress_s = decode(noted.partition("Comment=")[2])[0].progress_s
    assert 0 < progress_s <= int((tmp_path / "heard").read_text()) - launched


def test_arguments_and_the_interpreter_are_the_scripts_own(pretended, tmp_path):
    script = (
        "#!/usr/bin/env -S python3 -u\nimport sys\nopen('said', 'w').write(repr(sys.argv[1:]))\n"
    )
    job = started(script, pretended, tmp_path, "a b", "$HOME", "")
    assert job.wait(PATIENCE_S) == 0
    assert (tmp_path / "said").read_text() == "['a b', '$HOME', '']"


# Saves when it is asked to, and takes as long as a test wants it to.
SAVING = """#!/bin/bash
trap 'echo half > out.ck; while [ ! -e go ]; do sleep 0.05; done; echo whole > out.ck; exit 75' USR1
cat out.ck > resumed 2>/dev/null
touch ready
while :; do sleep 0.05; done
"""


def saving(environment, tmp_path):
    (tmp_path / "ready").unlink(missing_ok=True)
    path = tmp_path / "wrapped.sh"
    path.write_text(wrap(SAVING, "out.ck"))
    job = subprocess.Popen(["bash", str(path)], env=environment, cwd=tmp_path)
    wait_for(tmp_path / "ready")
    return job


def test_a_checkpoint_cut_off_in_the_midst_is_put_aside_for_the_one_before(pretended, tmp_path):
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0)
    Path(pretended["COMMENT"]).write_text(encode(tag))
    (tmp_path / "out.ck").write_text("first\n")
    job = saving(pretended, tmp_path)
    job.send_signal(signal.SIGUSR1)
    until = time.monotonic() + PATIENCE_S
    while (tmp_path / "out.ck").read_text() != "half\n" and time.monotonic() < until:
        time.sleep(0.02)
    # The node fails: wrapper and program are gone at once.
    below = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    for pid in (job.pid, *map(int, below)):
        os.kill(pid, signal.SIGKILL)
    job.wait()
    again = saving(pretended, tmp_path)
    assert (tmp_path / "resumed").read_text() == "first\n"
    assert (tmp_path / "out.ck.torn").read_text() == "half\n"
    # Asked once more it saves, and goes on from that.
    (tmp_path / "go").touch()
    again.send_signal(signal.SIGUSR1)
    assert again.wait(PATIENCE_S) == 75
    assert not (tmp_path / "out.ck.saving").exists()
    last = saving(pretended, tmp_path)
    assert (tmp_path / "resumed").read_text() == "whole\n"
    assert (tmp_path / "out.ck.kept").read_text() == "whole\n"
    last.send_signal(signal.SIGUSR1)
    last.wait(PATIENCE_S)


def test_who_says_75_and_has_written_nothing_has_saved_nothing(pretended, tmp_path):
    tag = Tag(token="k3", deadline=9e9, arrival=0.0, run_s=600.0, progress_s=7.0)
    Path(pretended["COMMENT"]).write_text(encode(tag))
    (tmp_path / "old.ck").write_text("of another day")
    os.utime(tmp_path / "old.ck", (1.0, 1.0))
    path = tmp_path / "wrapped.sh"
    for checkpoint, counted in (("old.ck", 0), ("", 1)):
        Path(pretended["TOLD"]).write_text("")
        script = "#!/bin/bash\ntrap 'exit 75' USR1\ntouch ready\nwhile :; do sleep 0.05; done\n"
        path.write_text(wrap(script, checkpoint))
        (tmp_path / "ready").unlink(missing_ok=True)
        job = subprocess.Popen(["bash", str(path)], env=pretended, cwd=tmp_path)
        wait_for(tmp_path / "ready")
        time.sleep(1.1)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(PATIENCE_S) == 75
        told = Path(pretended["TOLD"]).read_text()
        assert told.count("Comment=") == counted
        assert "requeue" in told


# Told to end, it takes half a second for that, and says what else it was told.
CLEANS_UP = """#!/bin/bash
trap 'sleep 0.5; touch cleaned; exit 3' TERM
trap 'echo usr2 >> heard' USR2
trap 'echo int >> heard' INT
cat > input
touch ready
while :; do sleep 0.05; done
"""


def test_input_signals_and_time_to_clean_up_are_as_without_a_wrapper(pretended, tmp_path):
    (tmp_path / "wrapped.sh").write_text(wrap(CLEANS_UP))
    words = ["bash", "wrapped.sh"]
    job = subprocess.Popen(words, env=pretended, cwd=tmp_path, stdin=subprocess.PIPE)
    job.stdin.write(b"given")
    job.stdin.close()
    wait_for(tmp_path / "ready")
    assert (tmp_path / "input").read_text() == "given"
    for number, word in ((signal.SIGUSR2, "usr2"), (signal.SIGINT, "int")):
        job.send_signal(number)
        until = time.monotonic() + PATIENCE_S
        while not (tmp_path / "heard").exists() or word not in (tmp_path / "heard").read_text():
            assert time.monotonic() < until, f"it has not heard {word}"
            time.sleep(0.02)
    # As slurmd does it: everybody is told, and what is left once the first is gone is killed.
    (script,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    for pid in (job.pid, int(script)):
        os.kill(pid, signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 3
    assert (tmp_path / "cleaned").exists()
    assert Path(pretended["TOLD"]).read_text() == ""


@pytest.mark.parametrize(
    ("said", "name", "comes"),
    [
        ("B:TERM@60", "TERM", signal.SIGTERM),
        ("USR2@90", "USR2", signal.SIGUSR1),
        ("B:SIGUSR2@90", "USR2", signal.SIGUSR2),
        ("12@90", "USR2", signal.SIGUSR1),
        ("R:B:USR1", "USR1", signal.SIGUSR1),
        ("nonsense", "USR1", signal.SIGUSR1),
    ],
)
def test_a_job_is_asked_by_the_signal_that_its_user_has_named(
    pretended, tmp_path, said, name, comes
):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    script = f"#!/bin/bash\ntrap 'exit 75' {name}\ntouch ready\nwhile :; do sleep 0.05; done\n"
    (tmp_path / "wrapped.sh").write_text(wrap(script, signal=said))
    job = subprocess.Popen(["bash", "wrapped.sh"], env=pretended, cwd=tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(comes)
    assert job.wait(PATIENCE_S) == 75
    assert "requeue 17" in Path(pretended["TOLD"]).read_text()


# A program whose workers are forks with its handlers, below a shell that passes USR1 on itself.
WORKERS = """
import os, signal, sys, time
def save(*_):
    with open("saves", "a") as file:
        print(os.getpid(), file=file)
    time.sleep(0.3)
    os._exit(75)
signal.signal(signal.SIGUSR1, save)
workers = [os.fork() for _ in range(2)]
if 0 in workers:
    time.sleep(60)
    os._exit(0)
open("ready", "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize(
    "shell",
    ["exec python3 workers.py", "python3 workers.py & trap 'kill -USR1 $!' USR1; wait; wait"],
)
def test_a_program_is_told_once_and_its_workers_are_not(pretended, tmp_path, shell):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    (tmp_path / "workers.py").write_text(WORKERS)
    job = started(f"#!/bin/bash\n{shell}\nexit 75\n", pretended, tmp_path)
    wait_for(tmp_path / "ready")
    below = children_of(job.pid)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert len((tmp_path / "saves").read_text().split()) == 1
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_of(pid):
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for each in map(int, path.read_text().split()):
            found += [each, *children_of(each)]
    return found


@pytest.mark.parametrize("restarts", ["", "0", "1"])
def test_who_goes_on_with_changed_programs_is_told_in_its_log_and_in_its_comment(
    pretended, tmp_path, restarts
):
    now = int(time.time())
    tag = Tag(token="k3", deadline=9e9, arrival=now - 3600.0, run_s=600.0)
    Path(pretended["COMMENT"]).write_text(encode(tag, "mine") + "   \n")
    (tmp_path / "src").mkdir()
    for name in ("src/old.py", "src/new.py", "results.csv"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "src/old.py", (now - 9000, now - 9000))
    job = {**pretended, "SLURM_RESTART_COUNT": restarts}
    (tmp_path / "job").write_text(wrap("#!/bin/bash\ntrue\n"))
    words = ["bash", "job"]
    done = subprocess.run(words, env=job, cwd=tmp_path, capture_output=True, text=True, check=True)
    told = Path(pretended["TOLD"]).read_text()
    if restarts != "1":
        assert (done.stderr, told) == ("", "")
        return
    assert "changed since it was submitted: ./src/new.py -" in done.stderr
    noted, text = decode(told.partition("Comment=")[2].strip())
    assert (noted.changed, noted.token, text) == (True, "k3", "mine")
    # What was said is not said to Slurm again.
    Path(pretended["COMMENT"]).write_text(encode(noted, "mine"))
    Path(pretended["TOLD"]).write_text("")
    subprocess.run(words, env=job, cwd=tmp_path, capture_output=True, check=True)
    assert Path(pretended["TOLD"]).read_text() == ""


def test_who_cannot_be_requeued_goes_on_where_it_is(pretended, tmp_path):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    tool = Path(pretended["PATH"].partition(":")[0]) / "scontrol"
    tool.write_text('#!/bin/bash\n[ "$1" != requeue ] || { echo denied >&2; exit 1; }\n')
    script = """#!/bin/bash
    trap 'touch saved; exit 75' USR1
    [ ! -e saved ] || exit 0
    touch ready
    while :; do sleep 0.05; done
    """
    job = started(script, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 0


def test_a_controller_that_is_silent_is_asked_until_it_answers(pretended, tmp_path):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    tool = Path(pretended["PATH"].partition(":")[0]) / "scontrol"
    silent = "slurm_requeue error: Unable to contact slurm controller (connect failure)"
    # Silent for longer than it would take to be refused.
    tool.write_text(
        "#!/bin/bash\necho x >> tries\n"
        f'[ $(wc -l < tries) -gt 3 ] || {{ echo "{silent}" >&2; exit 1; }}\n'
        + SCONTROL.split("\n", 1)[1]
    )
    script = "#!/bin/bash\ntrap 'exit 75' USR1\ntouch ready\nwhile :; do sleep 0.05; done\n"
    job = started(script, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert "requeue 17" in Path(pretended["TOLD"]).read_text()


def test_what_a_controller_forgets_of_a_requeue_is_asked_for_again(pretended, tmp_path):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    tool = Path(pretended["PATH"].partition(":")[0]) / "squeue"
    # It runs, as far as the controller knows, until it was requeued twice.
    tool.write_text(SQUEUE.replace('grep -q requeue "$TOLD"', '[ $(grep -c requeue "$TOLD") = 2 ]'))
    script = "#!/bin/bash\ntrap 'exit 75' USR1\ntouch ready\nwhile :; do sleep 0.05; done\n"
    job = started(script, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert Path(pretended["TOLD"]).read_text().count("requeue 17") == 2


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED"])
def test_who_is_being_cancelled_is_not_brought_back(pretended, tmp_path, state):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    tool = Path(pretended["PATH"].partition(":")[0]) / "squeue"
    tool.write_text(f'#!/bin/bash\nprintf %-20s {state}\ncat "$COMMENT"\n')
    job = started(SAVING.replace("[ ! -e go ]", "false"), pretended, tmp_path)
    wait_for(tmp_path / "ready")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(PATIENCE_S) == 75
    assert Path(pretended["TOLD"]).read_text() == ""


def test_who_saves_when_told_to_end_has_ended(pretended, tmp_path):
    Path(pretended["COMMENT"]).write_text(encode(TAG))
    script = "#!/bin/bash\ntrap 'exit 75' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n"
    job = started(script, pretended, tmp_path)
    wait_for(tmp_path / "ready")
    for pid in (job.pid, *children_of(job.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 75
    assert Path(pretended["TOLD"]).read_text() == ""


def test_who_ends_with_75_at_once_unasked_is_not_started_for_ever(pretended, tmp_path):
    assert started("#!/bin/sh\nexit 75\n", pretended, tmp_path).wait(PATIENCE_S) == 75
    assert Path(pretended["TOLD"]).read_text() == ""


def test_a_full_or_closed_folder_for_temporary_files_ends_no_job(pretended, tmp_path):
    # No file fits there, whoever asks.
    environment = {**pretended, "TMPDIR": "/proc/self", "HOME": str(tmp_path)}
    job = started("#!/bin/sh\nexit 5\n", environment, tmp_path)
    assert job.wait(PATIENCE_S) == 5


def test_a_driver_that_has_lived_of_late_is_known_by_what_it_leaves_behind(tmp_path):
    journal = Journal(folder=tmp_path)
    assert not journal.is_driven(time.time())
    journal.keep_waits([])
    assert journal.is_driven(time.time())
    assert not journal.is_driven(time.time() + 7200.0)


def test_profiles_that_differ_in_anything_are_kept_apart(tmp_path: Path) -> None:
    journal = Journal(folder=tmp_path)
    plain = PowerProfile.constant(300, "1h")
    load = Phase(name="load", duration_s=60, power_w=90)
    others = [
        replace(plain, restart=[load]),
        replace(plain, restart=[]),
        replace(plain, suspended_power_w=20),
        replace(plain, spread=Spread(level=0.9, runs=3, duration=(0.9, 1.1), energy=(0.9, 1.1))),
    ]
    names = [journal.keep_profile(each) for each in (plain, *others)]
    assert len(set(names)) == len(names)
    for name, profile in zip(names, (plain, *others), strict=True):
        assert PowerProfile.load(tmp_path / "profiles" / f"{name}.toml") == profile
