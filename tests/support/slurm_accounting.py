"""The accounting of a real Slurm for a test: slurmdbd, and a MariaDB behind it.

The database has no port at all. slurmdbd listens on every address there is, and so belongs into a
network that has nothing but loopback.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
# Who MariaDB runs as where root starts it, which it refuses.
_USER = "nobody"
_SET_UP = """\
create database slurm_acct_db;
create user slurm@localhost identified by 'x';
grant all on slurm_acct_db.* to slurm@localhost;
"""
_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct_db
PidFile={folder}/slurmdbd.pid
"""


def settings(folder: Path, port: int) -> str:
    """Return the lines of slurm.conf by which the other daemons find it."""
    return (
        "AccountingStorageType=accounting_storage/slurmdbd\n"
        "AccountingStorageHost=localhost\n"
        f"AccountingStoragePort={port}\n"
        # Without it the clients look for the munge of the system.
        f"AccountingStoragePass={folder}/munge.sock\n"
        "AccountingStoreFlags=job_comment"
    )


@contextmanager
def running_accounting(
    folder: Path,
    *,
    port: int,
    user: str,
    path: str,
    daemon: Callable[..., AbstractContextManager[Any]],
    wait_for: Callable[[str, Callable[[], bool]], None],
) -> Iterator[Any]:
    """Start the database and slurmdbd, which is given, enter the cluster, and end them."""
    home = folder / "mariadb"
    home.mkdir()
    become = []
    if os.geteuid() == 0:
        # It has to come through to its own folder.
        folder.chmod(0o711)
        shutil.chown(home, _USER)
        become = [f"--user={_USER}"]
    data, socket = home / "data", home / "socket"
    subprocess.run(
        [
            *("mariadb-install-db", "--no-defaults", f"--datadir={data}", *become),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        ],
        env={"PATH": path},
        check=True,
        capture_output=True,
    )
    (home / "set_up.sql").write_text(_SET_UP)
    conf = folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(_CONF.format(folder=folder, port=port, user=user))
    database = [
        *("mariadbd", "--no-defaults", *become, f"--datadir={data}", f"--socket={socket}"),
        *("--skip-networking", f"--pid-file={home / 'pid'}", f"--init-file={home / 'set_up.sql'}"),
        # Else slurmdbd warns of the defaults, and a test's data need not survive a power cut.
        *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
        "--innodb-flush-log-at-trx-commit=0",
    ]
    with daemon(database):
        wait_for("MariaDB", socket.exists)
        with daemon(["slurmdbd", "-D"], MYSQL_UNIX_PORT=str(socket)) as slurmdbd:
            yield slurmdbd
