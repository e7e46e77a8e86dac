"""Seals of munge's: whoever may run jobs on a cluster can prove who they are.

The centre gives a number that is good once and for a minute. Whoever asks has munge seal it with
the centre's address, and the centre's munge says whose seal that is. So a seal made for another
service, or for another centre, opens nothing here.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from lowtide.errors import InvalidInput, Refused, Unreachable

# How long a seal, and the number in it, is good.
SEALED_S = 60.0
_TIMEOUT_S = 10.0
_FIRST = "lowtide-login"


def words_for(url: str, challenge: str) -> str:
    r"""Return what munge is to seal.

    >>> words_for("https://centre.example.org/", "lt_1")
    'lowtide-login\nhttps://centre.example.org\nlt_1\n'
    """
    return f"{_FIRST}\n{url.rstrip('/')}\n{challenge}\n"


def sealed(words: str, socket: str = "") -> str:
    """Return words with the seal of whoever runs this.

    Args:
        socket: Where munge listens; empty for the usual place.
    """
    return _run(["munge", f"--ttl={SEALED_S:.0f}"], words, socket).strip()


def unsealed(credential: str, socket: str = "") -> tuple[int, str]:
    """Return the number of the user whose seal it is, and what was sealed.

    Args:
        credential: What `munge` printed.
        socket: Where munge listens; empty for the usual place.
    """
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
