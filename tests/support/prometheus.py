"""A real Prometheus for a test: on a free port of loopback, in a folder of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PROGRAMS = ("prometheus", "promtool")
PATIENCE_S = 20


def missing_programs() -> list[str]:
    """Return what would have to be installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that runs."""

    url: str

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return what an expression is now: labels and values."""
        data = self._ask("query", {"query": expression})
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def label_values(self, label: str, series: str) -> list[str]:
        """Return the values that a label has."""
        values: list[str] = self._ask(f"label/{label}/values", {"match[]": series})
        return values

    def alerts(self) -> list[str]:
        """Return the names of alerts that are pending or firing."""
        return [each["labels"]["alertname"] for each in self._ask("alerts", {})["alerts"]]

    def rule_problems(self) -> list[str]:
        """Return what went wrong with the rules."""
        groups = self._ask("rules", {})["groups"]
        return [
            rule["lastError"]
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    def _ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from None


@contextmanager
def running_prometheus(
    folder: Path,
    targets: Sequence[str],
    *,
    rules: Path,
    every: str = "200ms",
    more: Sequence[tuple[Sequence[str], Mapping[str, Any]]] = (),
    keep: str = "15d",
) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes the targets, and more with settings of theirs, and end it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    config = {
        "global": {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "lowtide" if number == 0 else f"lowtide-{number}",
                "static_configs": [{"targets": list(where)}],
                **how,
            }
            for number, (where, how) in enumerate([(targets, {}), *more])
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.retention.time={keep}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/-/ready", folder)
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(address: str, folder: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError((folder / "prometheus.log").read_text()[-3000:])
