"""A network of its own for the servers of a test, with loopback and nothing else in it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from support.needs import is_missing

# Names are looked up only on machines that have an address besides 127.0.0.1: this one leads
# nowhere.
_SET_UP = """\
ip link set lo up && ip addr add 10.255.255.1/32 dev lo && echo ready && exec sleep infinity
"""


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def own_network(path: str) -> Iterator[list[str]]:
    """Make one, yield what stands before a command that is to run in it, and end it.

    It lasts as long as the process that holds it, and needs the rights to make one.
    """
    programs = ("unshare", "nsenter", "ip")
    if missing := [name for name in programs if shutil.which(name, path=path) is None]:
        is_missing(f"needs a network of its own: {', '.join(missing)} not found")
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", _SET_UP],
        env={"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"ready\n":
            is_missing(f"needs the right to a network of its own: {holder.stderr.read().decode()}")
        yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    finally:
        holder.kill()
        holder.communicate()
