"""Which job, service or container a path speaks of."""

from __future__ import annotations

import pytest

from lowtide.monitor.cgroups import name_group
from support.trees import CONTAINER, POD

SHORT = CONTAINER[:12]
SYSTEMD_POD = POD.replace("-", "_")


@pytest.mark.parametrize(
    ("path", "source", "job_id", "uid"),
    [
        ("/slurm_n1/uid_1000/job_4711", "slurm", "4711", 1000),
        ("/slurm/uid_0/job_1", "slurm", "1", 0),
        ("/system.slice/slurmstepd.scope/job_4711", "slurm", "4711", None),
        ("/system.slice/n1_slurmstepd.scope/job_7", "slurm", "7", None),
        ("/system.slice/nginx.service", "systemd", "nginx.service", None),
        (
            "/system.slice/system-getty.slice/getty@tty1.service",
            "systemd",
            "getty@tty1.service",
            None,
        ),
        ("/user.slice/user-1000.slice/session-3.scope", "systemd", "session-3.scope", 1000),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/vi.scope",
            "systemd",
            "user@1000.service/vi.scope",
            1000,
        ),
        ("/init.scope", "systemd", "init.scope", None),
        (f"/docker/{CONTAINER}", "container", SHORT, None),
        (f"/system.slice/docker-{CONTAINER}.scope", "container", SHORT, None),
        (f"/machine.slice/libpod-{CONTAINER}.scope", "container", SHORT, None),
        (
            f"/user.slice/user-7.slice/user@7.service/user.slice/libpod-{CONTAINER}.scope",
            "container",
            SHORT,
            7,
        ),
        (f"/kubepods/burstable/pod{POD}/{CONTAINER}", "container", SHORT, None),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_POD}.slice"
            f"/cri-containerd-{CONTAINER}.scope",
            "container",
            SHORT,
            None,
        ),
        ("/lxc/web", "container", "web", None),
        ("/lxc.payload.web", "container", "web", None),
    ],
)
def test_what_a_path_says(path: str, source: str, job_id: str, uid: int | None) -> None:
    named = name_group(path)
    assert named is not None
    assert (named.source, named.job_id, named.uid) == (source, job_id, uid)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/system.slice",
        "/slurm_n1",
        "/slurm_n1/uid_1000",
        "/slurm_n1/system",
        "/system.slice/slurmstepd.scope",
        "/system.slice/slurmstepd.scope/system",
        "/home/job_7",
        "/kubepods.slice",
        f"/kubepods/pod{POD}",
        "/process_api/0123456789abcdef0123456789abcdef",
    ],
)
def test_what_only_holds_others_is_nothing(path: str) -> None:
    assert name_group(path) is None


def test_a_container_knows_its_pod() -> None:
    for path in (
        f"/kubepods/pod{POD}/{CONTAINER}",
        f"/kubepods.slice/kubepods-pod{SYSTEMD_POD}.slice/crio-{CONTAINER}.scope",
    ):
        named = name_group(path)
        assert named is not None
        assert named.name == f"pod {POD}"


@pytest.mark.parametrize(
    ("path", "job_id"),
    [
        (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope", "machine-qemu-1-web.scope"),
        (r"/system.slice/caf\xc3\xa9.service", "café.service"),
        (r"/system.slice/half\xc3.service", r"half\xc3.service"),
        (r"/system.slice/red\x1b[31m.service", r"red\x1b[31m.service"),
        (r"/system.slice/data\x20disk.service", "data disk.service"),
    ],
)
def test_names_are_shown_as_people_wrote_them(path: str, job_id: str) -> None:
    named = name_group(path)
    assert named is not None
    assert (named.source, named.job_id) == ("systemd", job_id)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"/system.slice/web.service/libpod-payload-{CONTAINER}", ""),
        (
            f"/system.slice/containerd.service/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
            f":cri-containerd:{CONTAINER}",
            f"pod {POD}",
        ),
        (f"/system.slice/containerd.service/system.slice:cri-containerd:{CONTAINER}", ""),
    ],
)
def test_containers_inside_of_services(path: str, name: str) -> None:
    named = name_group(path)
    assert named is not None
    assert (named.source, named.job_id, named.name) == ("container", CONTAINER[:12], name)
