"""What deploy/ says to a container and to services is what lowtide does, tried without either."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
PATIENCE_S = 60.0
# What others read.
NOT_OURS = {"PATH", "PYTHONUNBUFFERED", "LANG"}


def steps() -> list[tuple[str, str]]:
    """Return what a container is built by: the instruction, and what stands behind it."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, rest in (
        line.split(maxsplit=1) for line in whole.splitlines() if line.strip()
    )]  # fmt: skip


def known() -> set[str]:
    """Return the variables that lowtide reads."""
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    return {name for text in texts for name in re.findall(r'"(LOWTIDE_[A-Z_]+)"', text)}


def test_every_variable_is_one_that_lowtide_reads() -> None:
    """A name that nobody reads any more says nothing: compiled code was once kept nowhere."""
    named = {
        name
        for path in DEPLOY.rglob("*.service*")
        for line in path.read_text().splitlines()
        if line.startswith("Environment=")
        for name in re.findall(r"([A-Z_]+)=", line.removeprefix("Environment="))
    }
    named |= {
        name for word, rest in steps() if word == "ENV" for name in re.findall(r"(\w+)=", rest)
    }
    assert "LOWTIDE_CACHE" in named
    assert named <= known() | NOT_OURS


def test_what_a_container_is_built_of_is_there() -> None:
    words = [word for word, _ in steps()]
    assert set(words) <= {
        *("FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD")
    }
    assert words.count("ENTRYPOINT") == words.count("CMD") == 1
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made: set[str] = set()
    for word, rest in steps():
        if word == "COPY" and not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), name
        if word == "RUN":
            # No shell of another kind, and nothing that the shell does not understand.
            subprocess.run(["sh", "-n", "-c", rest], check=True)
            made |= set(re.findall(r"/opt/\w+", rest))
            for extra in re.findall(r"\.\[(\w+)\]", rest):
                assert extra in extras["optional-dependencies"]
            for file in re.findall(r"-c (\S+)", rest):
                assert any(w == "COPY" and file in r.split() for w, r in steps()), file
        if word == "COPY" and rest.startswith("--from"):
            assert rest.split()[1] in made
    # It does not run as root, and what it writes lies in the volume.
    user = next(rest for word, rest in steps() if word == "USER")
    assert any(word == "RUN" and "useradd --system" in rest and rest.endswith(user)
               for word, rest in steps())  # fmt: skip


@pytest.mark.alone
def test_what_a_container_starts_serves(tmp_path: Path) -> None:
    """Its command, in a folder of its own, with a certificate made for it."""
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with openssl")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    config = tmp_path / "serve.toml"
    config.write_text(
        f'cluster = "alps"\nurl = "https://localhost"\ncertificate = "{tmp_path / "cert.pem"}"\n'
        f'key = "{tmp_path / "key.pem"}"\n'
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    words = [word for name, rest in steps() if name in ("ENTRYPOINT", "CMD")
             for word in json.loads(rest)]  # fmt: skip
    assert words[:2] == ["lowtide", "serve"]
    put = {"/etc/lowtide/serve.toml": str(config), "0.0.0.0:8470": f"127.0.0.1:{port}"}
    assert set(put) < set(words)
    words = [put.get(word, word.replace("/var/lib/lowtide", str(tmp_path))) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                url = f"https://localhost:{port}/login"
                with urllib.request.urlopen(url, context=trusted, timeout=PATIENCE_S) as answer:
                    page = answer.read().decode()
                break
            except urllib.error.HTTPError:
                raise
            except OSError:
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < end
                time.sleep(0.2)
        assert "lowtide" in page
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
