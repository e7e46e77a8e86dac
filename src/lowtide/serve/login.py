"""Login by munge: who may run jobs on the cluster has proved who they are already.

The centre gives a number that is good once and for a minute. Whoever asks has munge seal it with
the centre's address, and the centre's munge says whose seal that is. So a seal made for another
service, or for another centre, opens nothing here, and none opens anything twice.
"""

from __future__ import annotations

import pwd
import subprocess
from pathlib import Path

from lowtide.errors import InvalidInput, Refused, Unreachable
from lowtide.serve.settings import Settings
from lowtide.serve.tokens import LINK, READ_ALL, make_token, use_once
from lowtide.store.database import Database

CHALLENGE = "challenge"
CHALLENGE_S = 60.0
LINK_S = 60.0
TOKEN_S = 30 * 86400.0
_TIMEOUT_S = 10.0
# A credential of munge's with our few words is far shorter.
MOST_BYTES = 5000
_FIRST = "lowtide-login"


def words_for(url: str, challenge: str) -> str:
    """Return what munge is to seal."""
    return f"{_FIRST}\n{url.rstrip('/')}\n{challenge}\n"


def challenge(database: Database, *, now: float) -> str:
    """Return a number that is good once, for a minute."""
    return make_token(database, owner="", scope=CHALLENGE, lasts_s=CHALLENGE_S, now=now)


def prove(database: Database, settings: Settings, credential: str, *, now: float) -> str:
    """Return who has sealed what this centre asked them to.

    Args:
        credential: What `munge` printed.
        now: The present moment, epoch seconds.
    """
    if len(credential) > MOST_BYTES or not credential.startswith("MUNGE:"):
        raise Refused("that is no credential of munge's")
    uid, words = _unsealed(credential, settings.munge_socket)
    lines = words.split("\n")
    if len(lines) != 4 or words != words_for(settings.url, lines[2]):
        raise Refused("that was sealed for something else than a login here")
    if use_once(database, lines[2], scope=CHALLENGE, now=now) is None:
        raise Refused("that login was used, or took too long: try again")
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Refused(f"nobody on this machine has the number {uid}") from None


def make_link(database: Database, user: str, *, now: float) -> str:
    """Return what opens a session of a browser, once, within a minute."""
    return make_token(database, owner=user, scope=LINK, lasts_s=LINK_S, now=now)


def make_reading_token(database: Database, user: str, *, now: float) -> str:
    """Return a token for programs, that is good for all that its owner may see."""
    return make_token(database, owner=user, scope=READ_ALL, lasts_s=TOKEN_S, now=now, note="munge")


def sealed(words: str, socket: str = "") -> str:
    """Return words with the seal of whoever runs this.

    Args:
        socket: Where munge listens; empty for the usual place.
    """
    return _run(["munge", f"--ttl={CHALLENGE_S:.0f}"], words, socket).strip()


def _unsealed(credential: str, socket: str) -> tuple[int, str]:
    """Return whose seal it is, and what was sealed."""
    said = _run(["unmunge", "--numeric", "--keys=STATUS,UID"], credential, socket)
    head, _, words = said.partition("\n\n")
    found = dict(line.split(":", 1) for line in head.splitlines() if ":" in line)
    try:
        status, uid = found["STATUS"].strip(), int(found["UID"])
    except (KeyError, ValueError):
        raise Unreachable("unmunge said what nobody here can read") from None
    if status not in ("0", "Success (0)"):
        raise Refused(f"munge does not know this seal: {status}")
    return uid, words


def _run(command: list[str], words: str, socket: str) -> str:
    place = [f"--socket={Path(socket)}"] if socket else []
    try:
        done = subprocess.run(  # noqa: S603 - no word of it comes from whoever asks
            [*command, *place],
            input=words,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise InvalidInput(f"there is no {command[0]} here: install munge") from None
    except subprocess.TimeoutExpired:
        raise Unreachable("munge does not answer") from None
    if done.returncode and command[0] == "munge":
        raise Unreachable(f"munge does not seal: {done.stderr.strip()[:200]}")
    if done.returncode and "STATUS" not in done.stdout:
        raise Refused(f"munge does not know this seal: {done.stderr.strip()[:200]}")
    return done.stdout
