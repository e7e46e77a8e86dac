"""Two of Slurm's clusters on one machine: equal numbers are two jobs, and what is one is said."""

from __future__ import annotations

import math
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lowtide.monitor.cgroups import name_group
from lowtide.monitor.metrics import Exposition
from lowtide.monitor.owners import Clusters, read_cluster
from lowtide.monitor.reader import NodeReader
from lowtide.monitor.snapshot import JobFacts, Snapshot, Unit
from lowtide.slurm.client import Answer, SlurmClient
from lowtide.store import Store
from lowtide.watching.slurm_facts import FactsSource
from lowtide.watching.watcher import Watcher
from support.nodes import Drawn
from support.trees import NODE, cpu, write, write_group, write_legacy, write_process, write_unified

# Where the groups of two slurmd are; the last has one tree for both, and nothing but the numbers.
UNIFIED = ("/system.slice/n1_slurmstepd.scope/job_7", "/system.slice/n2_slurmstepd.scope/job_7")
SLICES = ("/a.slice/slurmstepd.scope/job_7", "/b.slice/slurmstepd.scope/job_7")
LEGACY = ("/slurm_n1/uid_1000/job_7", "/slurm_n2/uid_1000/job_7")
SHARED = "/slurm_n1/uid_1000/job_7"


def told(cluster: str, job_id: str = "7") -> dict[str, str]:
    found = {"SLURM_JOB_ID": job_id, "SLURM_CPUS_ON_NODE": "1", "SLURMD_NODENAME": "n1"}
    return found | ({"SLURM_CLUSTER_NAME": cluster} if cluster else {})


def make(root: Path, paths: tuple[str, ...]) -> None:
    write(root, NODE)
    if "scope" in paths[0]:
        write_unified(root / "cgroup")


def put(root: Path, path: str, pids: list[int], used_s: float) -> None:
    """Write a group as it is after so many seconds of CPU time, begun a while ago."""
    procs = "\\n".join(map(str, pids))
    if "scope" in path:
        folder = write_group(root / f"cgroup{path}", cpu_stat=cpu(used_s))
        (folder / "cgroup.procs").write_text(procs.replace("\\n", "\n") + "\n")
        folders = [folder]
    else:
        write_legacy(root / "cgroup", path, usage_s=used_s, procs=procs)
        folders = [each for each in (root / "cgroup").glob(f"*{path}") if each.is_dir()]
    for each in folders:
        os.utime(each, (1_700_000_100, 1_700_000_100))


def daemon(root: Path, pid: int, *words: str, conf: str = "") -> None:
    folder = write_process(root / "proc", pid, name="slurmd", environment={"SLURM_CONF": conf})
    (folder / "comm").write_text("slurmd\n")
    (folder / "cmdline").write_text("\0".join(["slurmd", *words, ""]))


def reading(root: Path) -> NodeReader:
    return NodeReader(
        procfs=root / "proc", sysfs=root / "sys", cgroupfs=root / "cgroup", name=str, nodes=("n1",)
    )


def used(snapshot: Snapshot) -> dict[str, float]:
    """Return the CPU time of jobs 7 by cluster."""
    jobs = [(unit, at) for at, unit in enumerate(snapshot.units) if unit.job_id == "7"]
    assert len({unit.key for unit, _ in jobs}) == len(jobs)
    return {unit.cluster: float(snapshot.cpu_s[at]) for unit, at in jobs}


@pytest.mark.parametrize("paths", [UNIFIED, SLICES, LEGACY])
def test_equal_numbers_of_two_clusters_are_two_jobs(tmp_path: Path, paths: tuple[str, ...]) -> None:
    make(tmp_path, paths)
    for pid, path, cluster in zip((70, 71), paths, ("alpha", "beta"), strict=True):
        write_process(tmp_path / "proc", pid, environment=told(cluster), cgroup=f"0::{path}")
        put(tmp_path, path, [pid], float(pid))
    with reading(tmp_path) as node:
        assert used(node.read()) == {"alpha": 70.0, "beta": 71.0}
        put(tmp_path, paths[0], [70], 75.0)
        put(tmp_path, paths[1], [71], 79.0)
        snapshot = node.read()
        assert used(snapshot) == {"alpha": 75.0, "beta": 79.0}
        assert snapshot.problems == ()


@pytest.mark.parametrize("paths", [UNIFIED, LEGACY])
@pytest.mark.parametrize("beta", [1, 0])
def test_slurmd_tell_of_which_cluster_their_nodes_are(
    tmp_path: Path, paths: tuple[str, ...], beta: int
) -> None:
    """Nobody but root may read what processes were told; two slurmd of one cluster share jobs."""
    make(tmp_path, paths)
    for name in ("Alpha", "beta"):
        (tmp_path / f"{name}.conf").write_text(f"# of {name}\nclustername = {name} # that is it\n")
    daemon(tmp_path, 50, "-D", "-N", "n1", "-f", str(tmp_path / "Alpha.conf"))
    daemon(tmp_path, 51, "-Nn2", conf=str(tmp_path / f"{'beta' if beta else 'Alpha'}.conf"))
    for pid, path in zip((70, 71), paths, strict=True):
        put(tmp_path, path, [pid], float(pid))
    with reading(tmp_path) as node:
        node.read()
        snapshot = node.read()
    assert used(snapshot) == ({"alpha": 70.0, "beta": 71.0} if beta else {"alpha": 141.0})
    assert snapshot.problems == ()


def test_a_job_on_two_nodes_of_one_cluster_stays_one(tmp_path: Path) -> None:
    make(tmp_path, UNIFIED)
    for pid, path in zip((70, 71), UNIFIED, strict=True):
        write_process(tmp_path / "proc", pid, environment=told("alpha"), cgroup=f"0::{path}")
        put(tmp_path, path, [pid], float(pid))
    write_process(tmp_path / "proc", 72, environment=told("alpha"), cpu_s=1.0)
    with reading(tmp_path) as node:
        node.read()
        write_process(tmp_path / "proc", 72, environment=told("alpha"), cpu_s=3.0)
        assert used(node.read()) == pytest.approx({"alpha": 143.0})


def test_where_nobody_can_tell_one_job_is_shown_and_it_is_said_once(tmp_path: Path) -> None:
    make(tmp_path, UNIFIED)
    for pid, path in zip((70, 71), UNIFIED, strict=True):
        put(tmp_path, path, [], float(pid))
    with reading(tmp_path) as node:
        problems = [said for _ in range(4) for said in node.read().problems]
        assert used(node.read()) == {"": 141.0}
    assert len([said for said in problems if "nobody says whether" in said]) == 1
    assert "n1 and n2" in " ".join(problems)


def test_jobs_of_two_users_are_two_though_nobody_names_a_cluster(tmp_path: Path) -> None:
    paths = ("/slurm_n1/uid_1000/job_7", "/slurm_n2/uid_1001/job_7")
    make(tmp_path, paths)
    for pid, path in zip((70, 71), paths, strict=True):
        put(tmp_path, path, [], float(pid))
    with reading(tmp_path) as node:
        snapshot = node.read()
        found = {unit.user: float(snapshot.cpu_s[at]) for at, unit in enumerate(snapshot.units)}
        assert found == {"1000": 70.0, "1001": 71.0}
        assert len({unit.key for unit in snapshot.units}) == 2


@pytest.mark.parametrize("late", [False, True])
def test_one_group_of_two_clusters_is_named(tmp_path: Path, late: bool) -> None:
    """Two slurmd of one name: the kernel counts both jobs together, whenever the second comes."""
    make(tmp_path, LEGACY)
    for pid, name in ((50, "alpha"), (51, "beta")):
        (tmp_path / f"{name}.conf").write_text(f"ClusterName={name}\n")
        if pid == 50 or not late:
            daemon(tmp_path, pid, "-N", "n1", "-f", str(tmp_path / f"{name}.conf"))
    for pid, cluster in ((70, "alpha"), (71, "beta")):
        write_process(tmp_path / "proc", pid, environment=told(cluster), cgroup=f"2:cpu:{SHARED}")
    # What was asked for within a job bears another's number and cluster, and is no riddle.
    write_process(tmp_path / "proc", 72, environment=told("gamma", "9"), cgroup=f"2:cpu:{SHARED}")
    put(tmp_path, SHARED, [70, 72] if late else [70, 72, 71], 5.0)
    with reading(tmp_path) as node:
        first = node.read()
        if late:
            assert first.problems == ()
            daemon(tmp_path, 51, "-N", "n1", "-f", str(tmp_path / "beta.conf"))
            node.read()
            put(tmp_path, SHARED, [70, 72, 71], 6.0)
            for group in node._groups._groups.values():
                group._slow_at = -math.inf
        problems = [*(() if late else first.problems)]
        problems += [said for _ in range(3) for said in node.read().problems]
        assert used(node.read()) == {"alpha": 6.0 if late else 5.0}
    (said,) = [each for each in problems if "control group" in each]
    assert "alpha and beta" in said and SHARED in said and "gamma" not in said


def test_processes_of_two_clusters_are_two_jobs_without_groups(tmp_path: Path) -> None:
    """Slurm need not use groups; both jobs began in the same second."""
    make(tmp_path, LEGACY)
    for pid, cluster, cpu_s in ((70, "alpha", 3.0), (71, "beta", 4.0)):
        write_process(tmp_path / "proc", pid, environment=told(cluster), cpu_s=cpu_s)
    with reading(tmp_path) as node:
        node.read()
        for pid, cluster, cpu_s in ((70, "alpha", 5.0), (71, "beta", 9.0)):
            write_process(tmp_path / "proc", pid, environment=told(cluster), cpu_s=cpu_s)
        assert used(node.read()) == pytest.approx({"alpha": 5.0, "beta": 9.0})


def test_parts_find_the_job_of_their_cluster() -> None:
    """Whatever comes and goes, what each cluster's job counts never falls, and is all there is."""
    from test_columns import Part

    from lowtide.monitor.columns import Columns, Jobs

    rng = np.random.default_rng(7)
    for _ in range(60):
        jobs, clock, before = Jobs(), 1_000.0, {}
        there: dict[tuple[str, str], Part] = {}
        seen: dict[str, float] = {"a": 0.0, "b": 0.0}
        Columns([], jobs)
        for _ in range(12):
            clock += 10.0
            for cluster, node in product("ab", ("n1", "n2")):
                name = (cluster, node)
                if name in there and rng.random() < 0.2:
                    there[name].gone = True
                elif name not in there and rng.random() < 0.5:
                    unit = Unit(
                        source="slurm",
                        job_id="7",
                        started=1_000.0 if seen[cluster] == 0 else clock,
                        cluster=cluster,
                        slurmd=f"{node}{cluster}",
                    )
                    there[name] = Part(unit, 0.0)
                if name in there and not there[name].gone:
                    added = float(rng.integers(1, 5))
                    there[name].cpu_s += added
                    seen[cluster] += added
            columns = Columns([*there.values()], jobs)  # type: ignore[arg-type]
            assert len({unit.key for unit in columns.units}) == len(columns.units)
            now = dict(zip((u.key for u in columns.units), columns.column("cpu_s"), strict=True))
            assert all(now[key] >= before[key] for key in now.keys() & before.keys())
            before = now
            for row, place in zip(columns.rows, columns.places, strict=True):
                assert columns.units[place].cluster == row.unit.cluster
            there = {name: part for name, part in there.items() if not part.gone}


def test_the_store_and_the_page_have_two_jobs(tmp_path: Path) -> None:
    make(tmp_path, UNIFIED)
    for pid, path, cluster in zip((70, 71), UNIFIED, ("alpha", "beta"), strict=True):
        write_process(tmp_path / "proc", pid, environment=told(cluster), cgroup=f"0::{path}")
        put(tmp_path, path, [pid], 10.0)
    place, page = str(tmp_path / "store.sqlite"), Exposition()
    # A watcher that is started again goes on with the same two.
    for round_ in range(2):
        with reading(tmp_path) as node, Store.open(place) as store:
            watcher = Watcher(reader=node, power=Drawn([100.0]), host="h", cluster="alpha")
            watcher.tick()
            for at, path in enumerate(UNIFIED):
                put(tmp_path, path, [70 + at], 10.0 + (at + 1) * (round_ + 1))
            tick = watcher.tick()
            assert tick is not None
            store.append(tick)
            store.put_facts(
                [JobFacts(source="slurm", job_id="7", cluster="alpha", account="physics")]
            )
    with Store.open(place, readonly=True) as store:
        jobs = {job.cluster: job for job in store.jobs(ids=["7"])}
        assert len(store.jobs(ids=["7"])) == 2
    assert (jobs["alpha"].account, jobs["beta"].account or "") == ("physics", "")
    assert jobs["alpha"].cpu_s == pytest.approx(12.0)
    assert jobs["beta"].cpu_s == pytest.approx(14.0)
    lines = page.render(tick).whole.decode().splitlines()
    mine = [line for line in lines if line.startswith("lowtide_job_cpu_seconds_total{")]
    assert len(mine) == 2
    assert sum('cluster="beta"' in line for line in mine) == 1
    assert not any('cluster="alpha"' in line for line in mine)


def test_slurm_is_not_asked_about_another_clusters_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    client = SlurmClient(node="h", is_guess=True, cluster="alpha")
    monkeypatch.setattr(SlurmClient, "facts", lambda *_, **__: Answer([], (), None, True))
    facts = FactsSource(client=client, say=said.append)
    units = [
        Unit(source="slurm", job_id="7", started=1.0, node_name=f"n{at}", cluster=name, slurmd=name)
        for at, name in enumerate(("alpha", "beta"))
    ]
    facts.see(units)
    facts.see(units)
    assert client.asks_node == "n0"
    assert len(said) == 1
    assert "beta" in said[0]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("ClusterName=Big\n", "big"),
        ("  clustername = \t x-1 # no more\n", "x-1"),
        ('ClusterName="quoted"\n', "quoted"),
        ("#ClusterName=old\nClusterName=new\n", "new"),
        ("SlurmctldHost=n1\n", ""),
    ],
)
def test_what_a_configuration_calls_the_cluster(tmp_path: Path, said: str, name: str) -> None:
    """Slurm itself writes all names of clusters small, and so do its processes' environments."""
    (tmp_path / "slurm.conf").write_text(said)
    assert read_cluster([str(tmp_path / "none.conf"), str(tmp_path / "slurm.conf")]) == name


def test_a_slurmd_of_which_nobody_knows_the_configuration_names_no_cluster(tmp_path: Path) -> None:
    folder = write_process(tmp_path, 50, name="slurmd")
    (folder / "comm").write_text("slurmd\n")
    (folder / "cmdline").write_text("slurmd\0-N\0n1\0")
    (folder / "environ").unlink()
    for procfs in (tmp_path, tmp_path / "none"):
        clusters = Clusters(str(procfs))
        assert clusters.find("/slurm_n1", "n1") == ""
        assert clusters.names == set()


def test_trees_of_groups_are_told_apart() -> None:
    for path in (*UNIFIED, *LEGACY):
        named = name_group(path)
        assert named is not None
        assert named.slurmd == ("n1" if "n1" in path else "n2")
    for path in SLICES:
        named = name_group(path)
        assert named is not None and named.slurmd == named.tree != ""
    for path in ("/slurm/uid_1/job_7", "/system.slice/slurmstepd.scope/job_7"):
        named = name_group(path)
        assert named is not None and named.slurmd == ""
