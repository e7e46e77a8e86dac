"""A whole cluster: a real Slurm with its accounts, two nodes that push, and everyone who may look.

Slurm and slurmdbd, munge, PostgreSQL and Prometheus are the real ones. The users are those that
every Debian has; each logs in by munge, and asks the page, the API, the command line and PromQL.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from support.needs import is_missing
from support.networks import free_port
from support.prometheus import missing_programs, running_prometheus
from support.slurm import ask
from support.users import folder_for_all, open_to_all, run_as

pytestmark = [pytest.mark.alone, pytest.mark.slurm]
CLUSTER = "test"
PATIENCE_S = 100.0
# From its start on, a job is on its user's page within so many seconds, with what it drew.
SOON_S = 70.0
# Who runs jobs and by which account; the first account has a coordinator.
RUN = {"games": "phys", "man": "phys", "lp": "chem"}
LEAD, SUPPORT, ADMIN, STRANGER = "news", "uucp", "proxy", "mail"
PEOPLE = (*RUN, LEAD, SUPPORT, ADMIN, STRANGER)
# Whose jobs each sees, and which accounts' sums: their own, what they lead, or all.
SEES = {
    **{user: {user} for user in RUN},
    LEAD: {"games", "man"},
    SUPPORT: set(RUN),
    ADMIN: set(RUN),
    STRANGER: set(),
}
SUMS = {
    **{user: {account} for user, account in RUN.items()},
    LEAD: {"phys"},
    SUPPORT: set(RUN.values()),
    ADMIN: set(RUN.values()),
    STRANGER: set(),
}
# Metrics are each user's own, and those who lead see whoever can use none but accounts they lead.
SERIES = {**{user: {user} for user in RUN}, SUPPORT: set(RUN), ADMIN: set(RUN)}
SERIES[LEAD] = {"games", "man"}
SERIES[STRANGER] = set()
# Runs lines as if each was typed: to begin anew for each of them takes a second, seventy times.
TYPED = """
import contextlib, io, json, sys
from lowtide.__main__ import main
told = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["lowtide", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = 0
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
BURN = "i=0; while [ $i -lt {count} ]; do i=$((i+1)); done; {after}"


def until(is_so: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something that a busy machine may take long for; return what it came to."""
    end = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < end, f"it did not come to {what}"
        time.sleep(0.3)
    return found


@contextmanager
def beside(command: list[str], environment: Mapping[str, str], said: Path) -> Iterator[None]:
    """Run a program beside the test, and end it by its id."""
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Person:
    """Somebody who looks at the centre.

    Attributes:
        folder: Their home.
        url: Where the centre is.
        socket: Where munge is.
    """

    name: str
    folder: Path
    url: str
    socket: str
    token: str = field(default="", init=False)
    browser: urllib.request.OpenerDirector = field(init=False)

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb as this user."""
        environment = {"HOME": str(self.folder)}
        uid = pwd.getpwnam(self.name).pw_uid
        return run_as(uid, ["-m", "lowtide", *words], environment, self.folder)

    def types_all(self, lines: list[list[str]]) -> list[tuple[int, str, str]]:
        """Run verbs as this user, one after the other; return how each ended and what it said."""
        environment = {"HOME": str(self.folder)}
        uid = pwd.getpwnam(self.name).pw_uid
        done = run_as(uid, ["-c", TYPED, json.dumps(lines)], environment, self.folder)
        assert done.returncode == 0, done.stderr
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    def log_in(self) -> None:
        """Prove who they are to munge: for the command line, for programs and for a browser."""
        said = self.types("login", self.url, "--socket", self.socket)
        assert said.returncode == 0, said.stderr
        assert f"You are {self.name} at" in said.stdout
        kept = json.loads((self.folder / ".config/lowtide/centre.json").read_text())
        self.token = kept["token"]
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self.browser = urllib.request.build_opener(cookies)
        words = ["login", self.url, "--browser", "--json", "--socket", self.socket]
        become = ["setpriv", "--reuid", str(pwd.getpwnam(self.name).pw_uid), "--clear-groups"]
        with subprocess.Popen(
            [*become, sys.executable, "-m", "lowtide", *words],
            env={"PATH": os.environ["PATH"], "TMPDIR": str(self.folder), "HOME": str(self.folder)},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as typed:
            assert typed.stdin is not None and typed.stdout is not None
            said_so_far = ""
            while not said_so_far.endswith("}\n"):
                line = typed.stdout.readline()
                assert line, said_so_far
                said_so_far += line
            link = json.loads(said_so_far)["link"]
            # The page shows a code, which is typed in where the link was asked for.
            with self.browser.open(link, data=b"", timeout=30) as page:
                code = re.search(r"<b>(\d{6})</b>", page.read().decode())
            assert code is not None
            typed.communicate(code[1] + "\n", timeout=30)
        assert typed.returncode == 0
        with self.browser.open(link, data=b"", timeout=30) as answer:
            assert answer.status == 200

    def opens(self, path: str) -> tuple[int, str]:
        """Open a page."""
        try:
            with self.browser.open(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def asks(self, path: str) -> tuple[int, Any]:
        """Ask the API."""
        wanted = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(wanted, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def set_up(slurm: dict[str, str]) -> None:
    """Enter accounts, users, a coordinator and who helps."""
    words = [
        *(f"add account {account} cluster={CLUSTER}" for account in sorted(set(RUN.values()))),
        *(f"add user {user} account={account} cluster={CLUSTER}" for user, account in RUN.items()),
        f"add user {LEAD} account=phys cluster={CLUSTER}",
        f"add coordinator account=phys names={LEAD}",
        f"add user {SUPPORT} account=chem cluster={CLUSTER} adminlevel=Operator",
        f"add user {ADMIN} account=chem cluster={CLUSTER} adminlevel=Administrator",
    ]
    for each in words:
        ask(slurm, "sacctmgr", "-i", *each.split())
    told = ask(slurm, "sacctmgr", "-nP", "show", "account", "withcoord", "format=account,coord")
    assert f"phys|{LEAD}" in told.splitlines(), told


def submit(slurm: dict[str, str], user: str, node: str, name: str, run: str) -> str:
    given = ("--uid", user, "-A", RUN[user], "-w", node, "-J", name, "-D", "/", "--mem=50M")
    return ask(slurm, "sbatch", "--parsable", *given, "-o", "/dev/null", "--wrap", run)


@pytest.fixture
def cluster(
    accounted_slurm: dict[str, str], server: str, tmp_path: Path
) -> Iterator[tuple[dict[str, str], dict[str, Person]]]:
    """Everything there is: Slurm's accounts, a centre, two watchers, and people who logged in."""
    if os.geteuid() != 0 or missing_programs() or not shutil.which("unshare"):
        is_missing("needs root, Prometheus, and unshare of util-linux")
    slurm = accounted_slurm
    set_up(slurm)
    socket = str(Path(slurm["SLURM_CONF"]).parent / "munge.sock")
    port, *exports = (free_port() for _ in range(3))
    url = f"http://127.0.0.1:{port}"
    lowtide = [sys.executable, "-m", "lowtide"]
    with ExitStack() as stack:
        targets = [f"127.0.0.1:{each}" for each in exports]
        rules = tmp_path / "rules.yml"
        rules.write_text("groups: []\n")
        prometheus = stack.enter_context(
            running_prometheus(tmp_path, targets, rules=rules, every="1s")
        )
        config = tmp_path / "serve.toml"
        config.write_text(
            f'cluster = "{CLUSTER}"\nstore = "{server}"\nurl = "{url}"\naccounts_from = "slurm"\n'
            f'facts_from = "slurm"\nmunge = true\nmunge_socket = "{socket}"\n'
            f'prometheus = "{prometheus.url}"\n'
        )
        served = [*lowtide, "serve", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
        stack.enter_context(beside(served, slurm, tmp_path / "serve.log"))
        for node, export in zip(("n1", "n2"), exports, strict=True):
            made = subprocess.run(
                [*lowtide, "serve", "node-token", node, "--json", "--config", str(config)],
                check=True,
                capture_output=True,
            )
            token = tmp_path / f"{node}.token"
            token.touch(mode=0o600)
            token.write_text(json.loads(made.stdout)["token"])
            watch = [
                *(*lowtide, "watch", "--slurm-node", node, "--interval", "1", "--open"),
                *("--meter", "estimate", "--grid", "windy", "--listen", f"127.0.0.1:{export}"),
                *("--store", str(tmp_path / f"{node}.sqlite")),
                *("--push", f"{url}/{CLUSTER}", "--push-token-file", str(token), "--json"),
            ]
            # Each has a name of its own, as on machines of their own.
            named = ["unshare", "--uts", "sh", "-c", f'hostname {node} && exec "$@"', "sh", *watch]
            stack.enter_context(beside(named, slurm, tmp_path / f"{node}.log"))
        people = {}
        homes = stack.enter_context(folder_for_all())
        for name in PEOPLE:
            people[name] = Person(name, open_to_all(homes / name), url, socket)

        def is_there() -> bool:
            try:
                urllib.request.urlopen(url, timeout=5).close()
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False
            return True

        until(is_there, "a centre that answers")
        for each in people.values():
            each.log_in()
        yield slurm, people


def test_everyone_sees_exactly_what_is_theirs(
    cluster: tuple[dict[str, str], dict[str, Person]],
) -> None:
    slurm, people = cluster
    jobs: dict[str, tuple[str, str]] = {}
    for user, node in zip(RUN, ("n1", "n2", "n1"), strict=True):
        burn = BURN.format(count=300_000, after="true")
        jobs[f"{user}-over"] = (user, submit(slurm, user, node, f"{user}-over", burn))
    begun = time.monotonic()
    for user, node in zip(RUN, ("n2", "n1", "n2"), strict=True):
        burn = BURN.format(count=300_000, after="sleep 600")
        jobs[f"{user}-runs"] = (user, submit(slurm, user, node, f"{user}-runs", burn))
    assert all(number.isdecimal() for _, number in jobs.values()), jobs
    first = people["games"]

    def row_of(name: str) -> str:
        text = first.opens("/jobs")[1]
        return next((row for row in re.findall(r"(?s)<tr.*?</tr>", text) if name in row), "")

    # What runs is on its user's page, and the page says what it drew.
    until(
        lambda: re.search(r"[1-9][0-9.]*[\s\u00a0\u202f]*(Wh|kWh|mWh|J|kJ)", row_of("games-runs")),
        f"a running job on its page: {row_of('games-runs')[-1500:]}",
        patience_s=SOON_S,
    )
    print(f"a running job is on its page after {time.monotonic() - begun:.0f} s")
    staff = people[ADMIN]

    def listed(person: Person) -> dict[str, dict[str, Any]]:
        found = person.asks("/api/v1/jobs?most=500")[1]["jobs"]
        # Other users' programs may run on this machine, and another Slurm have left groups behind.
        return {each["name"]: each for each in found if each["name"] in jobs}

    def all_told() -> bool:
        found = listed(staff)
        return found.keys() == jobs.keys() and all(
            each["account"] == RUN[each["user"]]
            and each["energy_j"]
            and each["state"] == ("completed" if name.endswith("over") else "running")
            for name, each in found.items()
        )

    try:
        until(all_told, "all jobs with all that is known")
    except AssertionError:
        told = ("user", "account", "state", "energy_j")
        print({name: [each[key] for key in told] for name, each in listed(staff).items()})
        raise
    refs = {name: each["ref"] for name, each in listed(staff).items()}
    until(lambda: {"games", "man", "lp"} <= series(staff), "series of all")
    for name, person in people.items():
        theirs = {job for job, (user, _) in jobs.items() if user in SEES[name]}
        # The API, and the page: lists, and each job by itself.
        assert listed(person).keys() == theirs, name
        status, text = person.opens("/jobs")
        assert status == 200
        assert {job for job in jobs if job in text} <= theirs, name
        # A page has fifty, and what another Slurm left on this machine may be among the first.
        _, text = person.opens(f"/jobs?account={','.join(sorted(set(RUN.values())))}")
        assert {job for job in jobs if job in text} == theirs, name
        refused = {person.opens(path)[1] for path in ("/jobs/nothing",)}
        for job, ref in refs.items():
            status, text = person.opens(f"/jobs/{ref}")
            assert status == (200 if job in theirs else 404), (name, job)
            if job not in theirs:
                assert {text} == refused
            status, told = person.asks(f"/api/v1/jobs/{ref}")
            assert status == (200 if job in theirs else 404), (name, job)
            assert person.asks(f"/api/v1/jobs/{ref}/course")[0] == status
        # The command line.
        (code, rows, err), (ends, used, why), *shown = person.types_all(
            [
                ["jobs", "--source", "slurm", "--json"],
                ["usage", "--by", "user", "--source", "slurm", "--json"],
                *(["show", number, "--json"] for _, number in jobs.values()),
            ]
        )
        assert (code, ends) == (0, 0), (err, why)
        assert {row["name"] for row in json.loads(rows) if row["user"] in RUN} == theirs, name
        for job, (code, out, err) in zip(jobs, shown, strict=True):
            assert (code == 0) == (job in theirs), (name, job, err)
            assert job in theirs or job not in out + err
        assert {user for user in RUN if f'"{user}"' in used} == SEES[name], name
        # Sums: of the accounts that they are in, and of no other.
        told = {row["account"]: row for row in person.asks("/api/v1/usage?by=account")[1]["usage"]}
        assert told.keys() & set(RUN.values()) == SUMS[name], name
        # PromQL.
        assert series(person) == SERIES[name], name
    whole = {row["account"]: row for row in staff.asks("/api/v1/usage?by=account")[1]["usage"]}
    member = {row["account"]: row for row in first.asks("/api/v1/usage?by=account")[1]["usage"]}
    assert whole["phys"]["jobs"] == 4
    # Of fewer than five others a member is told nothing, not even by a sum: their own part alone.
    assert (member["phys"]["jobs"], member["phys"]["partial"]) == (2, True)
    assert 0 < member["phys"]["energy_j"] < whole["phys"]["energy_j"]
    # Who of the staff looked is told to those whose jobs it was, and to nobody else.
    looked = {each["viewer"] for each in first.asks("/api/v1/looks")[1]["looks"]}
    assert looked == {SUPPORT, ADMIN}
    assert not people[STRANGER].asks("/api/v1/looks")[1]["looks"]
    for node in ("n1", "n2"):
        assert node in staff.opens("/nodes")[1]
    assert staff.asks("/api/v1/health")[1]["set_aside"] == 0


def series(person: Person) -> set[str]:
    """Return whose series somebody is told of."""
    words = urllib.parse.urlencode({"query": '{__name__=~"lowtide_job_.*",user!=""}'})
    status, told = person.asks(f"/prometheus/api/v1/query?{words}")
    assert status == 200, told
    return {each["metric"]["user"] for each in told["data"]["result"]} & set(PEOPLE)
