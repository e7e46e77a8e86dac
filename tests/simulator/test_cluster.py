"""Machines, and jobs that never fit on them."""

import pytest

from lowtide.errors import InvalidInput, InvalidJob
from lowtide.simulator.cluster import Cluster
from lowtide.workload import Workload


def jobs(**columns):
    return Workload(arrival=[0, 0, 0], deadline=1e6, work_s=10, id=["a", "b", "c"], **columns)


def test_what_a_cpu_draws_comes_on_top_of_an_idle_node():
    cluster = Cluster(nodes=4, cpus_per_node=64, idle_power_w=120, peak_power_w=440)
    assert cluster.power_w_per_cpu == 5.0
    assert cluster.cpus == 256
    with pytest.raises(InvalidInput, match="give peak_power_w"):
        Cluster(nodes=4, cpus_per_node=64).power_w_per_cpu  # noqa: B018


def test_prices_are_those_of_gaia():
    cluster = Cluster(nodes=1, cpus_per_node=1)
    assert cluster.reserved_price == pytest.approx(0.4 * cluster.on_demand_price)
    assert cluster.spot_price == pytest.approx(0.2 * cluster.on_demand_price)


def test_booting_draws_its_energy_over_its_time():
    cluster = Cluster(
        nodes=1, cpus_per_node=1, idle_power_w=100, boot_s=60, boot_j=9000, shutdown_s=30
    )
    assert (cluster.boot_power_w, cluster.shutdown_power_w) == (150.0, 0.0)
    assert Cluster(nodes=1, cpus_per_node=1).boot_power_w == 0.0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 0}, "nodes is a whole number of at least 1, not 0"),
        ({"nodes": 2.5}, "nodes is a whole number"),
        ({"gpus_per_node": -1}, "gpus_per_node is a whole number of at least 0"),
        ({"memory_bytes_per_node": 0}, "memory_bytes_per_node is more than 0"),
        ({"idle_power_w": -1}, "idle_power_w is a number of at least 0, not -1"),
        ({"boot_s": float("nan")}, "boot_s is a number"),
        ({"pue": 0.9}, "pue is a number of at least 1"),
        ({"idle_power_w": 100, "peak_power_w": 90}, "raise peak_power_w"),
        ({"off_power_w": 5}, "lower off_power_w"),
        ({"boot_j": 5}, "give boot_s"),
        ({"shutdown_j": 5}, "give shutdown_s"),
        (
            {"idle_power_w": 1, "shutdown_s": 1, "shutdown_j": 9, "power_cap_w": 99},
            "lower shutdown_j or leave out power_cap_w",
        ),
    ],
)
def test_contradictions_are_refused(wrong, says):
    with pytest.raises(InvalidInput, match=says):
        Cluster(**({"nodes": 1, "cpus_per_node": 1} | wrong))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"cpus": [8, 9, 30]}, r"job b \(row 2\) asks for 9 CPUs on a node that has 8; so do 1 o"),
        ({"cpus": [8, 33, 8], "nodes": 4}, "8.25 CPUs on a node that has 8:"),
        ({"cpus": [1, -1, 1]}, "job b .* asks for -1 CPUs"),
        ({"gpus": [0, 0, 3]}, "job c .* asks for 3 GPUs on a node that has 2"),
        ({"memory_bytes": [1e9, 5e9, 1]}, r"5e\+09 bytes of memory on a node that has 4e\+09"),
        ({"nodes": [5, 1, 1]}, "job a .* asks for 5 nodes of 4"),
        ({"nodes": [1, 1.5, 1]}, "job b .* asks for 1.5 nodes:"),
        ({"power": [100, 700, 100]}, "to 1100 W, above its power cap of 1000 W"),
    ],
)
def test_jobs_that_never_fit_are_refused(columns, says):
    cluster = Cluster(
        nodes=4,
        cpus_per_node=8,
        gpus_per_node=2,
        memory_bytes_per_node=4e9,
        idle_power_w=100,
        power_cap_w=1000,
    )
    cluster.check_fits(jobs())
    with pytest.raises(InvalidJob, match=says):
        cluster.check_fits(jobs(**columns))


def test_nodes_that_can_be_off_leave_more_power():
    shared = {"nodes": 4, "cpus_per_node": 8, "idle_power_w": 100, "power_cap_w": 500}
    many = jobs(power=[100, 150, 100])
    with pytest.raises(InvalidJob, match="takes the cluster to 550 W"):
        Cluster(**shared).check_fits(many)
    Cluster(**shared, off_after_s=60).check_fits(many)
    # A node that boots needs more than one that is on.
    with pytest.raises(InvalidJob, match="takes the cluster to 550 W"):
        Cluster(**shared, off_after_s=60, boot_s=1, boot_j=400).check_fits(many)
