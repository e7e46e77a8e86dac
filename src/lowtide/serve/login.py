"""Who comes in: by a seal of munge's, by a password that PAM knows, and not too often by guessing.

What each proves is the name of a user on the cluster, and nothing else: what they may see is said
by the centre's own tables.
"""

from __future__ import annotations

import json
import logging
import pwd
import re
import subprocess
import sys
from collections.abc import Sequence

import sqlalchemy as sa

from lowtide.centre.munge import SEALED_S, unsealed, words_for
from lowtide.errors import Refused, Unreachable
from lowtide.serve import pam_check
from lowtide.serve.schema import take_turns, tries
from lowtide.serve.settings import Settings
from lowtide.serve.tokens import READ_ALL, make_token, use_once
from lowtide.store.database import Database
from lowtide.store.tables import clean

_LOG = logging.getLogger("lowtide.serve")
CHALLENGE = "challenge"
TOKEN_S = 30 * 86400.0
# A credential of munge's with our few words is far shorter, and so are a name and a password.
MOST_BYTES = 5000
# So often may be guessed in so long a time, of one user's name and from one address; and so often
# may a login be begun from one address, behind which there may be many.
MOST_FAILED, MOST_BEGUN = 5, 300
WINDOW_S = 900.0
_PAM_S = 20.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}")


def challenge(database: Database, *, now: float) -> str:
    """Return a number that is good once, for a minute."""
    return make_token(database, owner="", scope=CHALLENGE, lasts_s=SEALED_S, now=now)


def prove(database: Database, settings: Settings, credential: str, *, now: float) -> str:
    """Return who has sealed what this centre asked them to.

    Args:
        credential: What `munge` printed.
    """
    if len(credential) > MOST_BYTES or not credential.startswith("MUNGE:"):
        raise Refused("that is no credential of munge's")
    uid, words = unsealed(credential, settings.munge_socket)
    lines = words.split("\n")
    if len(lines) != 4 or words != words_for(settings.url, lines[2]):
        raise Refused("that was sealed for something else than a login here")
    if use_once(database, lines[2], scope=CHALLENGE, now=now) is None:
        raise Refused("that login was used, or took too long: try again")
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Refused(f"nobody on this machine has the number {uid}") from None


def check_password(settings: Settings, name: str, password: str) -> str:
    """Return who has this name and password by PAM.

    PAM's modules are other people's code: they are loaded into a process of their own, which may
    crash or hang without the centre.
    """
    wrong = Refused("name and password do not go together")
    if not _NAME.fullmatch(name) or not password or "\0" in password:
        raise wrong
    asked = {"service": settings.pam, "folder": settings.pam_folder}
    try:
        done = subprocess.run(  # noqa: S603 - what is asked goes by its input
            [sys.executable, "-I", pam_check.__file__],
            input=json.dumps({**asked, "user": name, "password": password}),
            capture_output=True,
            text=True,
            timeout=_PAM_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise Unreachable("PAM does not answer: try again, or log in another way") from None
    if done.returncode == pam_check.REFUSED:
        _LOG.info("PAM refuses a password with its number %s", done.stderr.strip()[:20])
        raise wrong
    if done.returncode:
        _LOG.warning("PAM cannot be asked: %s", done.stderr.strip()[-500:])
        raise Unreachable("PAM cannot check passwords here; the server's log says why")
    return known_name(done.stdout.strip())


def known_name(name: str) -> str:
    """Return a user's name as the cluster has it, whatever else this machine takes for the same."""
    if not _NAME.fullmatch(name):
        raise Refused("that is no name of a user on a cluster")
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        return name


def make_reading_token(database: Database, user: str, *, now: float) -> str:
    """Return a token for programs, that is good for all that its owner may see."""
    note = "lowtide login"
    return make_token(database, owner=user, scope=READ_ALL, lasts_s=TOKEN_S, now=now, note=note)


def count_try(database: Database, whose: Sequence[str], *, now: float, most: int) -> bool:
    """Count a try of each of some, and return whether it may be made.

    It is counted before it is made, so that many at once do not come by together.

    Args:
        whose: What is counted apart, such as a user's name and an address.
        most: How many are allowed in `WINDOW_S`.
    """
    recent = tries.c.time > now - WINDOW_S
    whose = [clean(each) for each in whose]
    with database.writing() as connection:
        take_turns(connection, "tries")
        connection.execute(sa.delete(tries).where(sa.not_(recent)))
        count = sa.select(sa.func.count()).group_by(tries.c.whose)
        made = connection.execute(count.where(tries.c.whose.in_(whose), recent)).scalars()
        if any(number >= most for number in made):
            return False
        connection.execute(sa.insert(tries), [{"whose": each, "time": now} for each in whose])
    return True


def forget_tries(database: Database, whose: str) -> None:
    """Count anew, for who has proved who they are."""
    with database.writing() as connection:
        connection.execute(sa.delete(tries).where(tries.c.whose == clean(whose)))
