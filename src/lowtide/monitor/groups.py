"""What a control group is: which job, service or container its path speaks of."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The deeper one wins where a process is in several: a container of a service is the container's.
RANKS = {"slurm": 3, "container": 2, "systemd": 1, "process": 0}

_SLURM_JOB = re.compile(r"job_(\d+)")
# From 26.05 on v2: a number in base 32 without I, L, O and U, as Slurm prints it.
_SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
# v1: /slurm/uid_1000/job_7 or /slurm_NODE/...; v2: .../slurmstepd.scope/job_7 or NODE_slurm....
_SLURM_SCOPE = re.compile(r"(?:(.+)_)?slurmstepd\.scope")
_SLURM_TREE = re.compile(r"slurm_(.+)")
_SLURM_USER = re.compile(r"uid_(\d+)")
# Docker, podman, containerd and CRI-O use 64 hexadecimal digits, bare or in a scope of systemd.
_CONTAINER = re.compile(
    r"(?:[0-9a-f]{64}"
    r"|(?:docker|libpod|libpod-payload|crio|cri-containerd|containerd|buildkit)-[0-9a-f]{12,64})"
    r"(?:\.scope)?"
)
# containerd without systemd puts the pod into the same name: kubepods-pod1234_....slice:NAME:ID.
_CONTAINER_OF = re.compile(r"(.+):(?:docker|crio|cri-containerd|containerd):([0-9a-f]{12,64})")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,64}")
# Kubernetes says which pod: pod1234-... by itself, or in a slice with _ for -.
_POD = re.compile(r"(?:.*-)?pod([0-9a-f][0-9a-f_-]{7,})(?:\.slice)?")
_LXC = re.compile(r"lxc\.payload\.(.+)")
_UNIT = re.compile(r".+\.(?:service|scope)")
_USER = re.compile(r"user-(\d+)\.slice|user@(\d+)\.service|uid_(\d+)")
_USER_MANAGER = re.compile(r"/(user@\d+\.service)/")
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")
_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a path says about its group.

    Attributes:
        source: One of `snapshot.SOURCES`.
        job_id: What its users call it.
        name: What it is called besides, such as its pod; empty where not known.
        uid: The user, by number; None where the path does not say.
        node: Which of Slurm's nodes it is on, where the path says so.
        sluid: What Slurm names the group by, where that is not the job's number; the path does not
            say the number then, and `job_id` is the same.
        whole: Whether all below belongs to it. A service may hold others that count by themselves.
    """

    source: str
    job_id: str
    name: str = ""
    uid: int | None = None
    node: str = ""
    sluid: str = ""
    whole: bool = True


def name_group(path: str) -> Named | None:
    """Return what a group is, None for one that only holds others.

    Args:
        path: Its path below the root of its hierarchy, with a slash in front.

    >>> name_group("/slurm_n1/uid_1000/job_4711").job_id
    '4711'
    >>> name_group("/system.slice/slurmstepd.scope/job_4711").source
    'slurm'
    >>> name_group("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00").sluid
    's5K1KKYAYG5D00'
    >>> name_group("/system.slice/nginx.service").job_id
    'nginx.service'
    >>> name_group("/system.slice") is None
    True
    """
    above, _, last = path.rpartition("/")
    parent = above.rpartition("/")[2]
    if job := _SLURM_JOB.fullmatch(last):
        if user := _SLURM_USER.fullmatch(parent):
            tree = _SLURM_TREE.fullmatch(path.split("/")[-3])
            node = tree[1] if tree else ""
            return Named(source="slurm", job_id=job[1], uid=int(user[1]), node=node)
        scope = _SLURM_SCOPE.fullmatch(parent)
        return Named(source="slurm", job_id=job[1], node=scope[1] or "") if scope else None
    if _SLUID.fullmatch(last) and (scope := _SLURM_SCOPE.fullmatch(parent)):
        return Named(source="slurm", job_id=last, sluid=last, node=scope[1] or "")
    if _CONTAINER.fullmatch(last):
        found = _CONTAINER_ID.search(last)
        pod = _POD.fullmatch(parent)
        return Named(
            source="container",
            job_id=found[0][:_SHOWN_DIGITS] if found else last,
            name=f"pod {pod[1].replace('_', '-')}" if pod else "",
            uid=_user(above),
        )
    if of := _CONTAINER_OF.fullmatch(last):
        pod = _POD.fullmatch(of[1])
        name = f"pod {pod[1].replace('_', '-')}" if pod else ""
        return Named(source="container", job_id=of[2][:_SHOWN_DIGITS], name=name)
    if payload := _LXC.fullmatch(last):
        return Named(source="container", job_id=payload[1])
    if parent == "lxc":
        return Named(source="container", job_id=last)
    # The scope of all jobs keeps counting those that ended, so that it is no unit itself.
    if _UNIT.fullmatch(last) and not _SLURM_SCOPE.fullmatch(last):
        # Every user may have a unit of this name, and so may the system.
        manager = _USER_MANAGER.search(path)
        called = _unescape(last)
        job_id = f"{manager[1]}/{called}" if manager else called
        return Named(source="systemd", job_id=job_id, uid=_user(path), whole=False)
    return None


def _unescape(name: str) -> str:
    r"""Return a name of systemd's as people wrote it: `\x2d` is a dash."""
    return _ESCAPED.sub(_plain, name)


def _plain(escaped: re.Match[str]) -> str:
    try:
        plain = bytes.fromhex(escaped[0].replace("\\x", "")).decode()
    except ValueError:
        return escaped[0]
    # What would do something to a terminal stays as it is.
    return plain if plain.isprintable() else escaped[0]


def _user(path: str) -> int | None:
    found = _USER.search(path)
    return int(next(each for each in found.groups() if each)) if found else None
