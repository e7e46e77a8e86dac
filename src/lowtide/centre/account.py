"""Who is logged in to which centre: one file of the user's own, that nobody else may read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.errors import FileProblem, InvalidInput, Refused, Unreachable

_NAME = "centre.json"


@dataclass(frozen=True, slots=True)
class CentreLogin:
    """A login at a centre.

    Attributes:
        url: Where the centre is.
        user: Who it is to the centre.
        token: What opens it.
    """

    url: str
    user: str
    token: str

    def ask(self, path: str, *, method: str | None = None) -> dict[str, Any]:
        """Return what the centre answers at a path.

        Args:
            path: What stands behind the centre's address.
        """
        # Here and below: who is not logged in, as most are not, waits for none of it.
        from lowtide.centre.asking import ask

        status, told = ask(
            self.url + path, method=method, headers={"Authorization": f"Bearer {self.token}"}
        )
        if status == 200:
            return told
        words = str(told.get("error", ""))[:500] or f"it answers {status}"
        if status == 401:
            raise Refused(
                f"the login at {self.url} has ended: lowtide login {self.url}, or name a store of "
                "this machine with --store"
            )
        if status == 400:
            raise InvalidInput(words)
        kind = Unreachable if status >= 500 else Refused
        raise kind(f"the centre {self.url}: {words}")

    def save(self, environment: Mapping[str, str] | None = None) -> Path:
        """Keep it for the commands that follow, and return where."""
        path = login_file(environment)
        text = json.dumps({"url": self.url, "user": self.user, "token": self.token}) + "\n"
        beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Nobody else may read it, from the first byte on.
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise FileProblem(f"cannot write {path}: {error.strerror}", path=path) from None
        return path


def login_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return where a login is kept.

    >>> login_file({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.config/lowtide/centre.json'
    """
    folder = files.user_folder(environment, "XDG_CONFIG_HOME", ".config")
    return folder / "lowtide" / _NAME


def read_login(environment: Mapping[str, str] | None = None) -> CentreLogin | None:
    """Return the login that was kept; None where there is none."""
    path = login_file(environment)
    try:
        if not path.exists():
            return None
        mode = path.stat().st_mode
    except OSError:
        return None
    if mode & 0o077:
        raise FileProblem(
            f"others may read the login in {path}: chmod 600 {path}, then lowtide login once more, "
            "for somebody may have it",
            path=path,
        )
    document = files.read_document(path, "json")
    known = document if isinstance(document, dict) else {}
    found = [known.get(name) for name in ("url", "user", "token")]
    if not all(isinstance(each, str) and each for each in found):
        raise FileProblem(f"{path} holds no login: remove it, and lowtide login anew", path=path)
    return CentreLogin(*map(str, found))


def checked_url(url: str) -> str:
    """Return the address of a centre, as far as it may be asked anything."""
    from lowtide.centre.asking import is_private

    if not is_private(url):
        raise InvalidInput(f"a centre is named as https://HOST, not {url}")
    return url.rstrip("/")


def prove_by_munge(url: str, *, wants_token: bool, socket: str = "") -> dict[str, Any]:
    """Log in by munge; return what the centre gives: the user, and a token or a link.

    With a link comes what `confirm_browser` takes.

    Args:
        socket: Where munge listens; empty for the usual place.
    """
    from lowtide.centre.asking import ask
    from lowtide.centre.munge import sealed, words_for

    base = checked_url(url)
    asked = _told(*ask(f"{base}/login/challenge", body=b""))
    its = str(asked.get("url", "")).rstrip("/")
    if its not in (base, ""):
        raise InvalidInput(f"this centre goes by another name: lowtide login {its}")
    seal = sealed(words_for(its, str(asked.get("challenge", ""))), socket)
    told = _told(*ask(f"{base}/login/munge" + "?token=1" * wants_token, body=seal.encode()))
    if not all(
        isinstance(told.get(n), str) for n in (("token",) if wants_token else ("link", "confirm"))
    ):
        raise Unreachable(f"{base} does not answer as a centre of lowtide's")
    return told


def confirm_browser(url: str, confirm: str, code: str) -> None:
    """Tell a centre the code that a browser shows.

    Args:
        confirm: What came with the link that the browser has opened.
    """
    from lowtide.centre.asking import ask

    _told(*ask(f"{checked_url(url)}/login/link", body=f"{confirm} {code.strip()}".encode()))


def _told(status: int, told: dict[str, Any]) -> dict[str, Any]:
    if status != 200:
        words = str(told.get("error", ""))[:500] or f"it answers {status}"
        if status == 404:
            words = "it takes no login by munge: make a token on its page, and give it --with-token"
        raise Refused(f"the centre does not let you in: {words}")
    return told
