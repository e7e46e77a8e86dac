"""On which nodes a job may run, as sinfo, squeue and sbatch tell it."""

from __future__ import annotations

import pytest

from lowtide.acting.places import Demand, Places, backlog_s, meetings
from lowtide.acting.submission import Submission

HOUR_S = 3600.0
# Two partitions over the same nodes, of which two are large and one has cards; and one apart.
SITE = """\
short 0/64/0/64 4 16 64000 (null) old n[1-4]
short 0/64/0/64 2 32 512000 (null) new,large n[5-6]
long 0/64/0/64 4 16 64000 (null) old n[1-4]
cards 0/32/0/32 2 16 64000 gpu:a100:4(S:0-1) new g[1-2]
cards 0/16/0/16 1 16 64000 gpu:h200:8(S:0) new g3
"""
SMALL, LARGE = frozenset(("n1", "n2", "n3", "n4")), frozenset(("n5", "n6"))


@pytest.mark.parametrize(
    ("demand", "place", "nodes"),
    [
        ({"partitions": "short"}, "short", SMALL | LARGE),
        ({"partitions": "long"}, "long", SMALL),
        ({"partitions": "short", "features": "large"}, "short:1", LARGE),
        ({"partitions": "short", "features": "old&new"}, "short", SMALL | LARGE),
        ({"partitions": "short", "features": "old|new"}, "short", SMALL | LARGE),
        ({"partitions": "short", "features": "[old|large]"}, "short", SMALL | LARGE),
        ({"partitions": "short", "memory": 100e9}, "short:1", LARGE),
        ({"partitions": "short", "cpus": 20.0}, "short:1", LARGE),
        ({"partitions": "cards", "gpus": 1.0, "gpu_kinds": ("h200",)}, "cards:1", {"g3"}),
        ({"partitions": "cards", "gpus": 6.0}, "cards:1", {"g3"}),
        # Of several the first counts, and what it may take besides.
        ({"partitions": "long,cards"}, "long,cards", SMALL),
        ({"partitions": "none,short"}, "", None),
        ({"partitions": ""}, "", None),
    ],
)
def test_a_job_may_have_the_nodes_that_it_fits(demand, place, nodes):
    places = Places.read(SITE)
    assert places.place_of(Demand(**demand)) == place
    assert nodes is None or places.rooms[place].nodes == nodes


def test_who_may_have_one_of_the_nodes_competes():
    places = Places.read(SITE)
    large = places.place_of(Demand(partitions="short", features="large"))
    either = places.place_of(Demand(partitions="long,cards"))
    met = {name: set(meetings(places.rooms, name)) for name in ("short", "long", large, either)}
    assert met["short"] == {"short", "long", large, either}
    assert met["long"] == {"long", "short", either}
    assert met[large] == {large, "short"}
    assert met[either] == {either, "long", "short", "cards"}


def test_who_stands_in_line_counts_where_it_may_run():
    places = Places.read(SITE)
    large = places.place_of(Demand(partitions="short", features="large"))
    # 64 CPUs for an hour: in the long partition that is four of the short one's six nodes.
    found = backlog_s([], [("long", 64.0, HOUR_S)], places.rooms)
    assert found == {"long": HOUR_S, "short": HOUR_S / 2}
    # Who wants large ones keeps nobody from the others, and all that runs in short a third of it.
    found = backlog_s([("short", 96.0, HOUR_S)], [(large, 64.0, HOUR_S)], places.rooms)
    assert found == {large: 1.5 * HOUR_S, "short": 1.25 * HOUR_S}


@pytest.mark.parametrize(
    ("words", "demand"),
    [
        (["-p", "short,long", "-N", "2", "-n", "8"], {"partitions": "short,long", "cpus": 4.0}),
        (["-C", "new&large", "--mem=8G"], {"features": "new&large", "memory": 8.0 * 2**30}),
        (["--gres=gpu:a100:2"], {"gpus": 2.0, "gpu_kinds": ("a100",)}),
        (["--gpus=h200:4", "-N", "2"], {"gpus": 2.0, "gpu_kinds": ("h200",)}),
    ],
)
def test_what_is_asked_of_sbatch_says_where_a_job_may_run(tmp_path, words, demand):
    script = tmp_path / "a.sh"
    script.write_text("#!/bin/sh\n")
    found = Submission.read([*words, str(script)], {}).demand("short")
    assert found == Demand(**{"partitions": "short", **demand})


def test_who_rules_out_many_nodes_by_name_is_not_promised_any(tmp_path):
    script = tmp_path / "a.sh"
    script.write_text("#!/bin/sh\n")
    room = Places.read("main 0/80/0/80 20 4 1 (null) (null) n[1-20]").rooms["main"]
    for excluded, many in (("n[1-2]", False), ("n[1-3]", True), ("m[1-9]", False)):
        submission = Submission.read([f"--exclude={excluded}", str(script)], {})
        assert submission.excludes_many(room) == many
    assert submission.excludes_many(None)
    assert not Submission.read([str(script)], {}).excludes_many(room)
