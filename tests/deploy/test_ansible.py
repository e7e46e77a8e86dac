"""Nodes are set up by Ansible, and a second time without change.

`edge` and `central` are set up for real below folders of their own; `here` is this machine, and
only ever checked. Nothing is fetched: what lowtide needs is what these tests run with, except for
one package that is in the wheelhouse alone.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "deploy" / "ansible"
ROLES = sorted(path.name for path in (ANSIBLE / "roles").iterdir())
SECRET = "correct horse $HOME"
IN_WHEELHOUSE = "shellingham"

# Ansible packs what a module imports into an archive, and Python compiles what is in archives each
# time: two thirds of the time of a task.
KEEP_COMPILED = """
import hashlib, marshal, os, zipimport

compile_anew = zipimport._compile_source

def compile_once(path, source):
    where = os.path.join(__file__ + ".kept", hashlib.sha256(source).hexdigest())
    try:
        with open(where, "rb") as file:
            return marshal.load(file)
    except OSError:
        code = compile_anew(path, source)
    os.makedirs(os.path.dirname(where), exist_ok=True)
    with open(f"{where}.{os.getpid()}", "wb") as file:
        marshal.dump(code, file)
    os.replace(file.name, where)
    return code

zipimport._compile_source = compile_once
"""

REFUSED = {
    "no_scheme": (
        {"lowtide_scrape_remote_write_url": "metrics.example.org:9090/api/v1/write"},
        "Write lowtide_scrape_remote_write_url: https://metrics.example.org:9090/api/v1/write",
    ),
    "half_a_scheme": (
        {"lowtide_scrape_remote_write_url": "//metrics.example.org/api/v1/write"},
        "Write lowtide_scrape_remote_write_url: https://metrics.example.org/api/v1/write",
    ),
    "index": (
        {"lowtide_package_index_url": "packages.example.org/simple"},
        "Write lowtide_package_index_url: https://packages.example.org/simple",
    ),
    "listen": (
        {"lowtide_listen": "http://127.0.0.1:9470"},
        "Write lowtide_listen: 127.0.0.1:9470",
    ),
    "everywhere": (
        {"lowtide_listen": "0.0.0.0:9470"},
        "write lowtide_service_arguments: [--insecure]",
    ),
    "relative_store": (
        {"lowtide_service_store": "db.example.org/lowtide"},
        "a store is an absolute path or starts with sqlite:// or postgresql://",
    ),
    "password": (
        {"lowtide_service_store": "postgresql://lowtide:hunter2@db.example.org/lowtide"},
        "write lowtide_service_environment: {PGPASSWORD: ...}",
    ),
    "no_switch": ({"lowtide_manage_services": "soon"}, "not a valid boolean"),
    "nowhere": (
        {"lowtide_package_source": "./no-such-checkout"},
        "Give a wheel, a source archive or a checkout that is there",
    ),
    "old_python": (
        {"lowtide_package_python": "{root}/python"},
        "lowtide needs Python 3.11 or newer, and",
    ),
}

# The same for the centre.
REFUSED_CENTRES = {
    "nameless": ({"lowtide_centre_settings": {}}, "lowtide_centre_settings has no cluster"),
    "cannot_serve": (
        {"lowtide_package_extras": ["watch"]},
        "Write lowtide_package_extras: [serve]",
    ),
    "told_password": (
        {"lowtide_centre_store": "postgresql://lowtide:hunter2@db.example.org/lowtide"},
        "write lowtide_centre_environment: {PGPASSWORD: ...}",
    ),
    "in_the_clear": (
        {"lowtide_centre_listen": "0.0.0.0:8470"},
        "Write lowtide_centre_listen: 127.0.0.1:8470 and put a proxy",
    ),
    "no_certificate": (
        {"lowtide_centre_nginx_dir": "/etc/nginx/conf.d"},
        "Name lowtide_centre_certificate and lowtide_centre_key",
    ),
}


@dataclass(frozen=True, slots=True)
class Told:
    """What a run of a playbook said."""

    code: int
    text: str

    def recap(self, host: str) -> dict[str, int]:
        """How many tasks of a host were ok, changed, failed and so on."""
        line = re.search(rf"^{host} +: (.*)$", self.text, re.M)
        assert line is not None, self.text
        return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line[1])}

    def changed(self, host: str) -> list[str]:
        """The tasks that changed a host, in order."""
        tasks = re.split(r"^(?:TASK|RUNNING HANDLER) \[(.*?)\] \**$", self.text, flags=re.M)
        return [
            name
            for name, said in zip(tasks[1::2], tasks[2::2], strict=True)
            if re.search(rf"^changed: \[{host}\]", said, re.M)
        ]

    def failure(self, host: str) -> str:
        """Why a host failed: Ansible's line about it."""
        said = re.search(rf"^(?:fatal|failed): \[{host}\].*$", self.text, re.M)
        assert said is not None, self.text
        return said[0]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return "{}:{}".format(*free.getsockname())


class Control:
    """The machine that Ansible runs on: a folder with an inventory, a checkout and a wheelhouse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_HOME": str(folder / "home"),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull,
            # Few of the modules are imported here.
            "PIP_NO_COMPILE": "1",
            "PYTHONPATH": str(self.needs()),
        }
        self.address, self.centre_address = free_address(), free_address()
        self.checkout()
        self.wheel = self.build()
        self.wheelhouse()
        inventory = folder / "inventory.yml"
        inventory.write_text(yaml.safe_dump(self.inventory()), encoding="utf-8")

    def root(self, host: str) -> Path:
        return self.folder / "roots" / host

    def needs(self) -> Path:
        """Everything that these tests run with, but lowtide and what the wheelhouse has."""
        folder = self.folder / "needs"
        folder.mkdir()
        left_out = re.compile(rf"_*lowtide|{IN_WHEELHOUSE}|pip\b|setuptools\b|.*\.pth$")
        for name in {"purelib", "platlib"}:
            for path in Path(sysconfig.get_path(name)).iterdir():
                if not left_out.match(path.name) and not (folder / path.name).exists():
                    (folder / path.name).symlink_to(path)
        (folder / "sitecustomize.py").write_text(KEEP_COMPILED, encoding="utf-8")
        return folder

    def checkout(self) -> None:
        folder = self.folder / "checkout"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)

    def build(self) -> str:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
        subprocess.run(
            [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "./checkout"],
            cwd=self.folder,
            env=self.environment,
            check=True,
        )
        (wheel,) = self.folder.glob("dist/*.whl")
        return f"./dist/{wheel.name}"

    def wheelhouse(self) -> None:
        """Pack an installed package into a wheel again."""
        package = distribution(IN_WHEELHOUSE)
        folder = self.folder / "wheelhouse"
        folder.mkdir()
        path = folder / f"{IN_WHEELHOUSE}-{package.version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for file in package.files or ():
                if file.suffix != ".pyc" and ".." not in file.parts:
                    wheel.write(str(file.locate()), str(file))

    def inventory(self) -> dict[str, Any]:
        edge = {
            "lowtide_package_source": self.wheel,
            "lowtide_listen": self.address,
            "lowtide_package_wheelhouse": "./wheelhouse",
            "lowtide_service_interval": 0.5,
            "lowtide_service_store": f"{self.root('edge')}/var/lib/lowtide/100% of $STORE.sqlite",
            "lowtide_service_arguments": ["--pue", "1.25"],
            "lowtide_service_environment": {"PGPASSWORD": SECRET},
            "lowtide_scrape_on_node": True,
            "lowtide_scrape_labels": {"site": "field"},
            "lowtide_scrape_remote_write_url": "https://metrics.example.org/api/v1/write",
            "lowtide_scrape_remote_write_options": {"authorization": {"credentials": SECRET}},
            "lowtide_scrape_prometheus": str(self.program("prometheus", "version 3.1.0 (branch)")),
            "lowtide_drive_grid": "electricitymaps:DE",
            "lowtide_drive_arguments": ["--notify", "https://hooks.example.org/100%"],
            "lowtide_drive_environment": {"ELECTRICITYMAPS_TOKEN": SECRET},
            "lowtide_drive_slurm_dir": str(self.root("edge") / "etc/lowtide"),
        }
        here = {
            "lowtide_package_source": "./checkout",
            "lowtide_package_build_arguments": ["--no-build-isolation"],
            "lowtide_package_constraints": str(ROOT / "constraints.txt"),
            "lowtide_listen": "0.0.0.0:9470",
            "lowtide_service_arguments": ["--insecure"],
            "ansible_host": "192.0.2.7",
        }
        shared = {"lowtide_prefix": str(self.root("edge") / "opt/lowtide")}
        joined = {
            **shared,
            "lowtide_root": str(self.root("joined")),
            "lowtide_listen": free_address(),
            "lowtide_service_push": f"http://{self.centre_address}/alps",
            "lowtide_service_push_from": "centre",
            "lowtide_service_interval": 0.2,
        }
        centre = {
            **shared,
            "lowtide_package_extras": ["serve"],
            "lowtide_centre_listen": self.centre_address,
            "lowtide_centre_settings": {
                "cluster": "alps",
                "url": "https://energy.example.org",
                "admins": ["adam", 'o"brien'],
                "accounts": {"phys": {"leads": ["lea"]}, "phys.quark": {"parent": "phys"}},
                "mail": {"sender": "hpc@example.org", "every_days": 7, "least_kwh": 0.5},
            },
        }
        serving = {
            **centre,
            "lowtide_root": str(self.root("centre")),
            "lowtide_centre_store": str(self.root("centre") / "centre.sqlite"),
            "lowtide_centre_environment": {"PGPASSWORD": SECRET},
            "lowtide_centre_mail": True,
            "lowtide_centre_nginx_dir": str(self.root("centre") / "etc/lowtide"),
            "lowtide_centre_certificate": "/etc/ssl/energy.pem",
            "lowtide_centre_key": "/etc/ssl/energy.key",
        }
        refused_centres = {
            host: {**centre, "lowtide_root": str(self.root(host)), **settings}
            for host, (settings, _) in REFUSED_CENTRES.items()
        }
        self.program("roots/old_python/python", "3.8")
        refused = {
            host: {
                name: value.replace("{root}", str(self.root(host)))
                for name, value in settings.items()
            }
            for host, (settings, _) in REFUSED.items()
        }
        for host, settings in refused.items():
            settings["lowtide_root"] = str(self.root(host))
        return {
            "all": {
                "vars": {
                    "ansible_connection": "local",
                    "ansible_become": False,
                    "ansible_python_interpreter": sys.executable,
                    "lowtide_package_python": sys.executable,
                },
                "children": {
                    "lowtide_nodes": {
                        "hosts": {
                            "edge": {"lowtide_root": str(self.root("edge")), **edge},
                            "here": here,
                            "joined": joined,
                        },
                        "children": {"refused": {"hosts": refused}},
                    },
                    "lowtide_centre": {"hosts": {"centre": serving, **refused_centres}},
                    "lowtide_operators": {"hosts": {"edge": {}}},
                    "lowtide_prometheus": {
                        "hosts": {
                            "central": {
                                "lowtide_root": str(self.root("central")),
                                "lowtide_scrape_nodes": ["edge", "here"],
                            }
                        }
                    },
                },
            }
        }

    def program(self, name: str, says: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {shlex.quote(says)}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def start(self, *arguments: str, playbooks: str = "site.yml") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ansible", "playbook", "-i", "inventory.yml", *arguments]
        return subprocess.Popen(
            [*command, *(str(ANSIBLE / name) for name in playbooks.split())],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def end(process: subprocess.Popen[str]) -> Told:
    text, _ = process.communicate(timeout=300)
    return Told(process.returncode, text)


def traces() -> dict[str, object]:
    """What lowtide leaves on a machine, as it is on this one."""
    files = [
        Path("/opt/lowtide"),
        Path("/etc/lowtide"),
        Path("/etc/passwd"),
        Path("/etc/group"),
        Path("/etc/systemd/system/lowtide-watch.service"),
        Path("/etc/udev/rules.d/70-lowtide-rapl.rules"),
    ]
    # Whoever reads a file changes when it was read.
    return {
        str(path): (path.stat().st_mode, path.stat().st_mtime_ns) if path.exists() else None
        for path in files
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The same playbook, run again and again."""

    control: Control
    check: Told
    first: Told
    second: Told
    driving: Told
    joining: Told
    traces: tuple[dict[str, object], dict[str, object]]

    def every(self) -> list[Told]:
        return [self.check, self.first, self.second, self.driving, self.joining]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    control = Control(tmp_path_factory.mktemp("ansible"))
    before = traces()
    first = end(control.start("--limit", "edge,central"))
    # Several hosts in a run: to start another one takes longer than to look at another host.
    checking = control.start("--check", "--diff", "--limit", "here,edge")
    second = end(control.start("--limit", "edge,central,refused"))
    # The package is there by now.
    joining = control.start(
        *("--limit", "centre,joined", "--tags", "centre,service"), playbooks="centre.yml nodes.yml"
    )
    # Of a playbook in which a host failed, those after it are not run.
    limit = ",".join(("edge", *REFUSED_CENTRES))
    driving = end(
        control.start("--limit", limit, "--tags", "drive,centre", playbooks="drive.yml centre.yml")
    )
    check = end(checking)
    return Runs(
        control=control,
        check=check,
        first=first,
        second=second,
        driving=driving,
        joining=end(joining),
        traces=(before, traces()),
    )


def test_a_check_of_this_machine_says_what_would_change_and_changes_nothing(runs: Runs) -> None:
    assert runs.check.code == 0, runs.check.text
    assert {
        "lowtide_package : Copy the file to the node",
        "lowtide_permissions : Make the user",
        "lowtide_service : Write the unit of the service",
    } <= set(runs.check.changed("here"))
    assert "+ExecStart=/opt/lowtide/venv/bin/lowtide watch --interval 10 " in runs.check.text
    wheel = runs.control.wheel.removeprefix("./dist/")
    assert f"+package: /opt/lowtide/{wheel}[watch]\n" in runs.check.text
    digest = hashlib.sha256((ROOT / "constraints.txt").read_bytes().rstrip()).hexdigest()
    assert f"+constraints: {digest}\n" in runs.check.text
    before, after = runs.traces
    assert before == after


def test_nodes_are_set_up_and_a_second_run_changes_nothing(runs: Runs) -> None:
    assert runs.first.code == 0, runs.first.text
    for host in ("edge", "central"):
        assert runs.first.recap(host)["changed"] > 0
        assert runs.second.recap(host)["changed"] == 0, runs.second.text
        assert runs.second.recap(host)["failed"] == 0


def test_a_check_of_a_node_that_is_set_up_finds_nothing_to_change(runs: Runs) -> None:
    assert runs.check.code == 0
    assert runs.check.recap("edge")["changed"] == 0, runs.check.text
    assert runs.check.recap("edge")["failed"] == 0


def test_the_package_is_installed_with_what_it_needs_from_the_wheelhouse(runs: Runs) -> None:
    folder = runs.control.root("edge") / "opt/lowtide"
    said = subprocess.run(
        [folder / "venv/bin/lowtide", "version", "--json"],
        env=runs.control.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(said.stdout)["lowtide"] == version("lowtide")
    (packages,) = folder.glob("venv/lib/python3*/site-packages")
    assert (packages / "lowtide/py.typed").is_file()
    assert (packages / IN_WHEELHOUSE).is_dir()
    assert not (packages / "numpy").exists()


@pytest.mark.parametrize(
    ("source", "file", "extras", "requirement"),
    [
        ("lowtide", "", [], "lowtide"),
        ("lowtide==0.1.0", "", ["watch", "nvidia"], "lowtide[watch,nvidia]==0.1.0"),
        ("lowtide >= 0.1, < 1", "", ["watch"], "lowtide[watch] >= 0.1, < 1"),
        ("./dist/lowtide-0.1.0.tar.gz", "/w/lowtide-0.1.0.tar.gz", [], "/p/lowtide-0.1.0.tar.gz"),
        ("./checkout", "/c/dist/lowtide-1-x.whl", ["watch"], "/p/lowtide-1-x.whl[watch]"),
    ],
)
def test_pip_is_given_the_source_with_its_extras(
    source: str, file: str, extras: list[str], requirement: str
) -> None:
    environment = jinja2.Environment()
    environment.filters["basename"] = os.path.basename
    environment.filters["regex_search"] = lambda text, pattern: re.search(pattern, text)[0]
    template = read(ANSIBLE / "roles/lowtide_package/vars/main.yml")["lowtide_package_requirement"]
    said = environment.from_string(template).render(
        lowtide_package_source=source,
        lowtide_package_file=file,
        lowtide_package_extras=extras,
        lowtide_prefix="/p",
    )
    assert said == requirement


def unit(runs: Runs, name: str, host: str = "edge") -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    path = runs.control.root(host) / "etc/systemd/system" / name
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def command(runs: Runs, name: str, host: str = "edge") -> list[str]:
    """What systemd would run."""
    words = shlex.split(unit(runs, name, host)["Service"]["ExecStart"])
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


def test_the_unit_runs_lowtide_watch(runs: Runs) -> None:
    root = runs.control.root("edge")
    service = unit(runs, "lowtide-watch.service")["Service"]
    assert "100%% of $$STORE.sqlite" in service["ExecStart"]
    assert command(runs, "lowtide-watch.service") == [
        str(root / "opt/lowtide/venv/bin/lowtide"),
        *("watch", "--interval", "0.5", "--listen", runs.control.address),
        *("--token-file", str(root / "var/lib/lowtide/token")),
        *("--store", str(root / "var/lib/lowtide/100% of $STORE.sqlite"), "--pue", "1.25"),
    ]
    assert service["User"] == service["Group"] == "lowtide"
    assert service["Restart"] == "always"
    assert service["StateDirectory"] == "lowtide"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert unit(runs, "lowtide-watch.service")["Install"]["WantedBy"] == "multi-user.target"


def test_the_command_of_the_unit_answers_prometheus_and_keeps_what_it_sees(runs: Runs) -> None:
    # systemd makes the folder of the state.
    state = runs.control.root("edge") / "var/lib/lowtide"
    state.mkdir(parents=True)
    watching = subprocess.Popen(
        command(runs, "lowtide-watch.service"),
        env=runs.control.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    page = ""
    try:
        deadline = time.monotonic() + 60
        while "lowtide_node_power_watts" not in page and watching.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                shown = {"Authorization": f"Bearer {(state / 'token').read_text().strip()}"}
                address = f"http://{runs.control.address}/metrics"
                asked = urllib.request.Request(address, headers=shown)
                page = urllib.request.urlopen(asked, timeout=5).read().decode()
    finally:
        watching.terminate()
        _, problems = watching.communicate(timeout=30)
    assert "lowtide_node_power_watts{" in page, problems
    assert "lowtide_jobs_shown{" in page
    assert (state / "100% of $STORE.sqlite").stat().st_size > 0


def test_the_driver_only_counts_until_it_is_told_to_act(runs: Runs) -> None:
    assert runs.driving.recap("edge")["failed"] == 0, runs.driving.text
    root = runs.control.root("edge")
    table = str(root / "var/lib/lowtide-drive/begins")
    words = command(runs, "lowtide-drive.service")
    assert words == [
        str(root / "opt/lowtide/venv/bin/lowtide"),
        *("drive", "--all-users", "--grid", "electricitymaps:DE", "--table", table),
        *("--dry-run", "--suppose", "24h", "--notify", "https://hooks.example.org/100%"),
    ]
    service = unit(runs, "lowtide-drive.service")["Service"]
    assert (service["User"], service["Restart"]) == ("lowtide", "always")
    # The script that the controller runs reads the table that the driver writes.
    lua = (root / "etc/lowtide/job_submit.lua").read_text("utf-8")
    ours = (ROOT / "deploy/slurm/job_submit.lua").read_text("utf-8")
    assert lua == ours.replace("/var/lib/lowtide/begins", table)
    environment = root / "etc/lowtide/drive.env"
    assert f'ELECTRICITYMAPS_TOKEN="{SECRET}"\n' in environment.read_text("utf-8")
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600


@contextlib.contextmanager
def running(runs: Runs, name: str, host: str) -> Iterator[subprocess.Popen[str]]:
    """Run what systemd would, until the block ends."""
    process = subprocess.Popen(
        command(runs, name, host),
        env=runs.control.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_node_joins_the_centre_and_tells_it_of_itself(runs: Runs) -> None:
    assert runs.joining.code == 0, runs.joining.text
    token = runs.control.root("joined") / "etc/lowtide/push-token"
    assert token.read_text("utf-8").startswith("lt_")
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text("utf-8").strip() not in runs.joining.text
    (runs.control.root("joined") / "var/lib/lowtide").mkdir(parents=True)
    store = runs.control.root("centre") / "centre.sqlite"
    heard: list[tuple[str]] = []
    with (
        running(runs, "lowtide-serve.service", "centre") as serving,
        running(runs, "lowtide-watch.service", "joined") as watching,
    ):
        deadline = time.monotonic() + 90
        while not heard and serving.poll() is None and watching.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.5)
            with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
                heard = database.execute("SELECT DISTINCT host FROM incarnations").fetchall()
    assert heard == [(os.uname().nodename,)]


def test_the_centre_is_set_up_as_its_settings_say(runs: Runs) -> None:
    from lowtide.serve.settings import Settings

    folder = runs.control.root("centre") / "etc/lowtide"
    settings = Settings.read(folder / "serve.toml")
    assert (settings.cluster, settings.admins) == ("alps", ("adam", 'o"brien'))
    assert settings.accounts["phys"].leads == ("lea",)
    assert settings.accounts["phys.quark"].parent == "phys"
    assert (settings.mail.every_days, settings.mail.least_kwh) == (7, 0.5)
    assert stat.S_IMODE((folder / "serve.env").stat().st_mode) == 0o600
    assert f'PGPASSWORD="{SECRET}"\n' in (folder / "serve.env").read_text("utf-8")
    mailing = command(runs, "lowtide-mail.service", "centre")
    assert mailing[1:3] == ["serve", "mail"]
    timer = unit(runs, "lowtide-mail.timer", "centre")
    assert timer["Timer"]["OnCalendar"] == "Mon..Fri 09:00"
    site = (folder / "lowtide.conf").read_text("utf-8")
    assert "server_name energy.example.org;" in site
    assert f"proxy_pass http://{runs.control.centre_address};" in site
    assert 'proxy_set_header X-Lowtide-Secret "";' in site
    # No log has the addresses that open something for whoever knows them.
    assert re.search(r"location ~ \^/\(shared\|enter\|stop\)/ \{\s+access_log off;", site)


@pytest.mark.parametrize("host", REFUSED_CENTRES)
def test_a_wrong_setting_of_a_centre_is_refused(runs: Runs, host: str) -> None:
    assert runs.driving.recap(host)["failed"] == 1
    assert REFUSED_CENTRES[host][1] in runs.driving.failure(host)
    assert not list(runs.control.root(host).rglob("*.toml"))


def test_the_agent_pushes_to_the_server(runs: Runs) -> None:
    settings = runs.control.root("edge") / "etc/lowtide"
    config = yaml.safe_load((settings / "prometheus.yml").read_text(encoding="utf-8"))
    (push,) = config["remote_write"]
    assert push["url"] == "https://metrics.example.org/api/v1/write"
    (scrape,) = config["scrape_configs"]
    token = runs.control.root("edge") / "var/lib/lowtide/token"
    assert scrape["authorization"] == {"credentials_file": str(token)}
    assert scrape["file_sd_configs"] == [{"files": [str(settings / "targets.yml")]}]
    assert yaml.safe_load((settings / "targets.yml").read_text(encoding="utf-8")) == [
        {"targets": [runs.control.address], "labels": {"instance": "edge", "site": "field"}}
    ]
    words = command(runs, "lowtide-prometheus.service")
    assert "--agent" in words
    assert f"--config.file={settings / 'prometheus.yml'}" in words


def test_systemd_takes_the_units(runs: Runs) -> None:
    # Parsing alone, where systemd is not installed.
    units = sorted((runs.control.root("edge") / "etc/systemd/system").glob("*.service"))
    names = ("drive", "prometheus", "watch")
    assert [path.name for path in units] == [f"lowtide-{name}.service" for name in names]
    known = {"Unit", "Service", "Install"}
    assert all(set(unit(runs, path.name).sections()) == known for path in units)
    if program := shutil.which("systemd-analyze"):
        done = subprocess.run(
            [program, "verify", "--man=no", *units], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_central_prometheus_gets_the_nodes_that_it_can_reach(runs: Runs) -> None:
    settings = runs.control.root("central") / "etc/lowtide"
    assert yaml.safe_load((settings / "targets.yml").read_text(encoding="utf-8")) == [
        {"targets": ["192.0.2.7:9470"], "labels": {"instance": "here"}}
    ]
    assert "edge: answer on loopback alone" in runs.first.text
    (scrape,) = yaml.safe_load((settings / "scrape.yml").read_text("utf-8"))["scrape_configs"]
    assert "authorization" not in scrape
    assert scrape["file_sd_configs"] == [{"files": [str(settings / "targets.yml")]}]


def test_the_group_alone_may_read_the_counters(runs: Runs) -> None:
    path = runs.control.root("edge") / "etc/udev/rules.d/70-lowtide-rapl.rules"
    (rule,) = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    parts = rule.split(", ")
    assert 'SUBSYSTEM=="powercap"' in parts
    assert 'RUN+="/bin/chgrp lowtide /sys%p/energy_uj"' in parts
    assert 'RUN+="/bin/chmod 0440 /sys%p/energy_uj"' in parts


def test_secrets_are_for_root_alone(runs: Runs) -> None:
    settings = runs.control.root("edge") / "etc/lowtide"
    assert f'PGPASSWORD="{SECRET}"\n' in (settings / "watch.env").read_text("utf-8")
    for name in ("watch.env", "prometheus.yml"):
        assert stat.S_IMODE((settings / name).stat().st_mode) == 0o600
    for told in runs.every():
        assert "correct horse" not in told.text
        assert "hunter2" not in told.text


@pytest.mark.parametrize("host", REFUSED)
def test_a_wrong_setting_is_refused_before_anything_is_installed(runs: Runs, host: str) -> None:
    assert runs.second.code != 0
    assert runs.second.recap(host)["failed"] == 1
    assert REFUSED[host][1] in runs.second.failure(host)
    root = runs.control.root(host)
    left = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert left <= {"python"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def variables(role: str) -> list[str]:
    return list(read(ANSIBLE / "roles" / role / "defaults/main.yml"))


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_is_explained(role: str) -> None:
    folder = ANSIBLE / "roles" / role
    specified = read(folder / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert list(specified) == variables(role)
    manual = (ANSIBLE / "README.md").read_text(encoding="utf-8")
    for name in variables(role):
        assert name.startswith(role)
        assert f"| `{name}` |" in manual, name
    # Variables stand below the comment that explains them.
    for part in (folder / "defaults/main.yml").read_text("utf-8").split("\n\n"):
        assert part.removeprefix("---\n").startswith("# "), part


def test_the_example_uses_variables_that_exist() -> None:
    text = (ANSIBLE / "inventory.example.yml").read_text(encoding="utf-8")
    known = {name for role in ROLES for name in variables(role)}
    used = set(re.findall(r"^\s*(lowtide_\w+):", text, re.M))
    groups = {"lowtide_centre", "lowtide_nodes", "lowtide_operators", "lowtide_prometheus"}
    assert used - groups <= known


def test_the_example_reaches_its_own_machine_whatever_pythons_lie_about(tmp_path: Path) -> None:
    # Ansible looks through the path for newer Pythons, and one that is broken ends the run.
    broken = tmp_path / "bin"
    broken.mkdir()
    for name in ("python3.14", "python3.13", "python3.12", "python3"):
        (broken / name).write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
        (broken / name).chmod(0o755)
    ansible = [sys.executable, "-m", "ansible", "adhoc", "-i", "inventory.example.yml"]
    done = subprocess.run(
        [*ansible, "localhost", "-m", "ansible.builtin.ping"],
        cwd=ANSIBLE,
        env=os.environ
        | {
            "ANSIBLE_HOME": str(tmp_path / "home"),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
            "PATH": f"{broken}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert '"ping": "pong"' in done.stdout, done.stdout + done.stderr


def tasks(part: Any) -> Iterator[dict[str, Any]]:
    for task in part:
        yield task
        yield from tasks(task.get("block", ()))


@pytest.mark.parametrize("role", ROLES)
def test_tasks_have_sentences_for_names_and_need_no_collection(role: str) -> None:
    folder = ANSIBLE / "roles" / role
    for path in [*folder.glob("tasks/*.yml"), *folder.glob("handlers/*.yml")]:
        for task in tasks(read(path)):
            assert re.match(r"[A-Z][^.]+\w$", task["name"]), path
            modules = [name for name in task if "." in name]
            assert "block" in task or len(modules) == 1, task["name"]
            assert all(name.startswith("ansible.builtin.") for name in modules), task["name"]
