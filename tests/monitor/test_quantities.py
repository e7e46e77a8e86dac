"""One line per quantity: what has one is everywhere, and what stores hold stays as it is."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from lowtide.cli.job_columns import ALL
from lowtide.cli.node import document_of
from lowtide.monitor import quantities
from lowtide.monitor.quantities import JOB, Quantity
from lowtide.monitor.snapshot import Snapshot
from lowtide.monitor.tick import Tick
from lowtide.store import JobRecord
from lowtide.store.layout import LAYOUTS, PLACE, UNIT
from support.snapshots import render, tick, unit


@pytest.mark.parametrize("quantity", JOB, ids=lambda each: each.name)
def test_what_has_a_line_is_everywhere(quantity: Quantity) -> None:
    name = quantity.name
    at = tick([unit("1")], time=1000.0, reserved_gpus=1.0, gpus_unread=0)
    if quantity.origin in ("kernel", "held"):
        assert name in {each.name for each in fields(Snapshot)}
    if quantity.metric_name:
        column = at.column(name)
        column[:] = 7.0
        assert f"# TYPE {quantity.metric_name} ".encode() in render(at)
        if quantity.origin != "power":
            assert document_of(at)["jobs"][0][name] == 7.0
    if quantity.layout and quantity.grows:
        assert UNIT.quanta[UNIT.counters.index(name)] == quantity.finest
        assert name in PLACE
        assert name == "unwatched_cpu_s" or name in {each.name for each in fields(JobRecord)}
    if quantity.heading:
        [column] = [each for each in ALL if each.key == name]
        assert column.heading == quantity.heading


def test_a_column_that_nobody_gives_is_unknown() -> None:
    at = tick([unit("1"), unit("2")])
    assert np.isnan(at.major_faults).all()
    assert at.major_faults is not at.system_s
    with pytest.raises(TypeError, match="no_such_thing"):
        tick([unit("1")], no_such_thing=np.zeros(1))
    assert {each.name for each in fields(Tick)} >= set(quantities.TOLD)


# What stores out there hold. A line may be added here, none may change.
_GAUGES = "memory_bytes gpus_busy gpu_memory_bytes gpu_w reserved_cpus reserved_bytes reserved_gpus"
_FIRST = "cpu_s read_bytes written_bytes energy_j measured_j carbon_g marginal_g embodied_g"
_THIRD = (
    f"{_FIRST} received_bytes sent_bytes cpu_wait_s memory_wait_s io_wait_s unmetered_s unpriced_j "
    "unwatched_cpu_s"
)
_NODE_GAUGES = (
    "cpus cpus_busy cpus_reserved memory_bytes memory_used_bytes read_bytes_per_s "
    "written_bytes_per_s received_bytes_per_s sent_bytes_per_s cpu_pressure memory_pressure "
    "io_pressure gpus gpus_busy gpu_memory_bytes gpu_memory_total_bytes intensity_g_per_kwh jobs"
)
_NODE = "energy_j idle_j unattributed_j measured_j"
HELD = {
    1: (_FIRST, _GAUGES),
    2: (_NODE, _NODE_GAUGES),
    3: (_THIRD, _GAUGES),
    4: (
        f"{_NODE} carbon_g idle_g unattributed_g unmetered_s unpriced_j",
        f"{_NODE_GAUGES} marginal_g_per_kwh pue",
    ),
    5: (f"{_THIRD} major_faults", _GAUGES),
}


@pytest.mark.parametrize("number", LAYOUTS)
def test_layouts_never_change(number: int) -> None:
    layout, _ = LAYOUTS[number]
    assert (layout.counters, layout.gauges) == tuple(tuple(each.split()) for each in HELD[number])


def test_quanta_never_change() -> None:
    quanta = {"cpu_s": 1e-4, "unwatched_cpu_s": 1e-4}
    # What has no unit is counted, and whole.
    by_unit = {"s": 1e-3, "j": 1e-3, "g": 1e-6}
    for layout, _ in LAYOUTS.values():
        for name, quantum in zip(layout.counters, layout.quanta, strict=True):
            assert quantum == quanta.get(name) or quantum == by_unit.get(
                name.rpartition("_")[2], 1.0
            )
