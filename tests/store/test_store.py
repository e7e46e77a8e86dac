"""What is appended is what is answered: totals, courses, restarts, and the same on a server."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import InvalidInput, StoreProblem, UnknownName
from lowtide.store import JobRecord, Question, Retention, Series, Store
from lowtide.store.layout import UNIT
from support.ticks import START, Watcher, facts, unit

A, B, C = unit(1), unit(2, user="bob"), unit(3, started=START + 33)


def only(store: Store, **question: object) -> JobRecord:
    [record] = store.jobs(**question)  # type: ignore[arg-type]
    return record


def same(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right


def check_same(left: JobRecord, right: JobRecord) -> None:
    for field in dataclasses.fields(JobRecord):
        one, other = getattr(left, field.name), getattr(right, field.name)
        assert same(one, other), (field.name, one, other)


def check_same_series(left: Series, right: Series) -> None:
    assert np.array_equal(left.times, right.times)
    assert np.array_equal(left.step_s, right.step_s)
    for name, column in left.columns.items():
        assert np.array_equal(column, right.columns[name], equal_nan=True), name


def test_totals_are_what_was_counted(place: str) -> None:
    watcher = Watcher()
    with Store.open(place) as store:
        for _ in range(30):
            store.append(watcher.tick([A, B], watts={"1": 250.0}, gpus=2.0))
        one, two = store.jobs(now=watcher.time)
    assert (one.job_id, one.user, one.state, one.hosts) == ("1", "ada", "running", ("n1",))
    assert one.energy_j == 250.0 * 300
    assert two.energy_j == 100.0 * 300
    assert one.measured_j == one.energy_j
    assert one.power == "measured"
    assert one.carbon_g == pytest.approx(one.energy_j / 3.6e6 * 360)
    assert math.isnan(one.marginal_g)
    assert (one.cpu_s, one.mean_cpus, one.peak_cpus) == (600.0, 2.0, 2.0)
    assert one.cpu_efficiency == 0.5
    assert one.memory_efficiency == 0.25
    assert one.gpu_efficiency == 0.5
    assert one.gpu_j == pytest.approx(0.3 * one.energy_j)
    assert one.mean_memory_bytes == one.peak_memory_bytes == 1e9
    assert (one.elapsed_s, one.seen_s, one.looks) == (300.0, 300.0, 30)
    assert (one.mean_power_w, one.peak_power_w) == (250.0, 250.0)


def test_a_kernel_counter_that_falls_alone_doubles_no_energy(file: str) -> None:
    # The last process of a job may be gone from the counters while its energy is added up on.
    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(5):
            store.append(watcher.tick([A]))
        for used_s in (0.0, 4.0):
            tick = watcher.tick([A])
            store.append(dataclasses.replace(tick, cpu_s=np.array([used_s])))
        record = only(store, now=watcher.time)
    assert record.energy_j == 100.0 * 70
    assert record.carbon_g == pytest.approx(100.0 * 70 / 3.6e6 * 360.0)
    assert record.cpu_s == 5 * 10 * 2.0 + 4.0


def test_answers_do_not_depend_on_what_was_consolidated(file: str, tmp_path: Path) -> None:
    watcher = Watcher()
    late = Store.open(file)
    for number in range(200):
        late.append(watcher.tick([A, B, C] if number > 5 else [A], watts={"1": 10.0 + number}))
    raw = [late.jobs(now=watcher.time), [late.series(each) for each in late.jobs()]]
    assert late.sizes()["ticks"] > 0
    assert late.sizes()["chunks"] > 0
    late.close()
    with Store.open(file, readonly=True) as store:
        assert store.sizes()["ticks"] == 0
        for before, after in zip(raw[0], store.jobs(now=watcher.time), strict=True):
            check_same(before, after)  # type: ignore[arg-type]
        for before, record in zip(raw[1], store.jobs(), strict=True):
            after = store.series(record)
            # Ticks are exact, chunks are rounded.
            assert np.allclose(before.columns["energy_j"], after.columns["energy_j"], atol=1.1e-3)
            assert np.allclose(before.times, after.times, atol=1.1e-3)


def test_a_server_answers_as_a_file_does(file: str, server: str) -> None:
    for place in (file, server):
        watchers = [Watcher(), Watcher(host="n2", time=START + 3)]
        with Store.open(place) as store:
            for number in range(75):
                for watcher in watchers:
                    store.append(watcher.tick([A, B] if number % 7 else [B, C], cpus=number % 3))
                if number == 40:
                    store.put_facts([facts(1, state="completed", started=START, ended=START + 900)])
        again = Watcher(time=watchers[0].time + 300)
        with Store.open(place) as store:
            for _ in range(7):
                store.append(again.tick([B]))
            store.put_facts([facts(9, state="pending", submitted=START)])
    with Store.open(file, readonly=True) as one, Store.open(server, readonly=True) as other:
        now = again.time
        assert len(one.jobs(now=now)) == 4
        for left, right in zip(one.jobs(now=now), other.jobs(now=now), strict=True):
            check_same(left, right)
            check_same_series(one.series(left), other.series(right))
        for host in ("n1", "n2"):
            check_same_series(one.node_series(host), other.node_series(host))
            assert one.gaps(host) == other.gaps(host)
        assert one.hosts() == other.hosts()
        for question in ({"users": ["ada"]}, {"ids": ["1", "9"]}, {"hosts": ["n2"]}):
            left, right = one.jobs(**question), other.jobs(**question)
            assert [each.number for each in left] == [each.number for each in right]
            assert 0 < len(left) < 4 or question == {"hosts": ["n2"]}


def test_a_job_on_several_hosts_is_one_job(place: str) -> None:
    first, second = Watcher(), Watcher(host="n2", power_w=50.0, time=START + 4)
    with Store.open(place) as store:
        for _ in range(65):
            store.append(first.tick([A]))
            store.append(second.tick([unit(1, started=START + 2)]))
        record = only(store, now=first.time)
        assert record.hosts == ("n1", "n2")
        assert record.energy_j == 150.0 * 650
        assert record.mean_power_w == 150.0
        course = store.series(record)
    assert np.nansum(course.columns["energy_j"]) == pytest.approx(record.energy_j)
    assert np.nanmax(course.columns["power_w"]) == pytest.approx(150.0)


def test_a_service_of_the_same_name_elsewhere_is_another(place: str) -> None:
    with Store.open(place) as store:
        for host in ("n1", "n2"):
            service = unit("nginx.service", source="systemd")
            store.append(Watcher(host=host).tick([service]))
        assert [each.hosts for each in store.jobs()] == [("n1",), ("n2",)]


def test_what_the_node_draws_adds_up_over_time(file: str) -> None:
    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(130):
            store.append(watcher.tick([A, B]))
        node = store.node_series("n1")
        jobs = [store.series(each) for each in store.jobs()]
    parts = node.columns["idle_w"] + node.columns["unattributed_w"]
    for course in jobs:
        parts = parts + course.columns["power_w"]
    assert np.allclose(parts, node.columns["power_w"], atol=1e-3)
    assert np.nanmean(node.columns["cpus_busy"]) == pytest.approx(4.0, rel=1e-3)
    assert np.nanmean(node.columns["cpu_pressure"]) == pytest.approx(0.04, rel=1e-3)
    assert (node.columns["intensity_g_per_kwh"] == 360.0).all()
    with Store.open(file, readonly=True) as store, pytest.raises(UnknownName, match="known are n1"):
        store.node_series("n7")


class TestBeginningAnew:
    """Watchers come and go; what was used only grows."""

    def test_a_new_watcher_counts_on(self, place: str) -> None:
        with Store.open(place) as store:
            watcher = Watcher()
            for _ in range(10):
                store.append(watcher.tick([A, B]))
        with Store.open(place) as store:
            later = Watcher(time=watcher.time + 600)
            for _ in range(5):
                store.append(later.tick([A]))
            one, two = store.jobs(now=later.time)
            assert one.energy_j == 100.0 * 150
            assert two.energy_j == 100.0 * 100
            assert one.seen_s == 150.0
            assert (one.state, two.state) == ("running", None)
            assert store.gaps("n1") == ((watcher.time, watcher.time + 600),)
            course = store.series(one)
        assert np.nansum(course.columns["energy_j"]) == pytest.approx(one.energy_j)
        assert np.isnan(course.columns["power_w"]).sum() == 1
        hole = np.flatnonzero(np.isnan(course.columns["power_w"]))[0]
        assert course.step_s[hole] == pytest.approx(600.0)
        assert np.nanmax(course.columns["power_w"]) == pytest.approx(100.0)

    def test_a_first_tick_that_already_counts_more_is_not_taken_for_the_same(
        self, file: str
    ) -> None:
        with Store.open(file) as store:
            store.append(Watcher().tick([A]))
        with Store.open(file) as store:
            later = Watcher(time=START + 60)
            store.append(later.tick([A], step_s=100.0))
            assert only(store).energy_j == 100.0 * 110

    def test_ticks_that_were_killed_are_counted(self, file: str) -> None:
        killed = Store.open(file)
        watcher = Watcher()
        for _ in range(10):
            killed.append(watcher.tick([A]))
        # It is never closed: that is what a kill does to it.
        later = Watcher(time=watcher.time + 5)
        with Store.open(file) as store:
            store.append(later.tick([A]))
            assert only(store).energy_j == 100.0 * 110
        del killed

    def test_a_watcher_that_starts_over_within_one_store_counts_on(self, file: str) -> None:
        with Store.open(file) as store:
            watcher = Watcher()
            for _ in range(10):
                store.append(watcher.tick([A]))
            again = Watcher(time=watcher.time)
            for _ in range(3):
                store.append(again.tick([A]))
            assert only(store).energy_j == 100.0 * 130

    def test_a_counter_that_wavers_never_falls(self, file: str) -> None:
        watcher = Watcher()
        with Store.open(file) as store:
            seen = []
            for number in range(20):
                tick = watcher.tick([A])
                if number % 3 == 2:
                    tick.energy_j[:] *= 0.97
                store.append(tick)
                seen.append(only(store).energy_j)
        assert seen == sorted(seen)
        assert seen[-1] <= watcher.counts[A.key][3]

    def test_a_lost_tick_leaves_nothing_out(self, file: str) -> None:
        watcher = Watcher()
        with Store.open(file) as store:
            store.append(watcher.tick([A]))
            watcher.tick([A])
            store.append(watcher.tick([A]))
            record = only(store)
            course = store.series(record)
        assert record.energy_j == 100.0 * 30
        assert record.seen_s == 30.0
        assert np.allclose(course.columns["power_w"], 100.0)

    def test_a_clock_that_was_set_back_breaks_nothing(self, file: str) -> None:
        with Store.open(file) as store:
            watcher = Watcher()
            for _ in range(10):
                store.append(watcher.tick([A]))
        with Store.open(file) as store:
            behind = Watcher(time=watcher.time - 3600)
            for _ in range(10):
                store.append(behind.tick([A]))
        with Store.open(file) as store:
            record = only(store)
            course = store.series(record)
            assert store.check().is_sound
            store.prune(now=START + 40 * 86400)
            rolled = store.series(record)
        assert record.energy_j == 100.0 * 200
        assert (np.diff(course.times) > 0).all()
        assert (course.step_s > 0).all()
        assert np.nansum(rolled.columns["energy_j"]) == pytest.approx(record.energy_j)


def test_a_job_that_began_between_two_ticks_is_not_charged_with_the_time_before(file: str) -> None:
    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(3):
            store.append(watcher.tick([A]))
        store.append(watcher.tick([A, C]))
        late = store.jobs()[1]
        assert late.seen_s == pytest.approx(7.0)
        assert math.isnan(late.elapsed_s), "seen once: who knows how long it ran"
        store.append(watcher.tick([A, C]))
        assert store.jobs()[1].elapsed_s == pytest.approx(17.0)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_changes_no_average(file: str, step_s: float) -> None:
    """Ten ticks before, ten after: forward leaves a gap, back has the same hour twice."""
    watcher = Watcher()
    with Store.open(file) as store:
        for number in range(20):
            set_now = number == 10
            watcher.time += step_s * set_now
            tick = watcher.tick([A])
            skipped_s = max(step_s * set_now, 0.0)
            store.append(dataclasses.replace(tick, skipped_s=skipped_s))
        record = only(store)
    assert record.seen_s == pytest.approx(200.0)
    assert record.energy_j == pytest.approx(100.0 * 200)
    assert record.mean_power_w == pytest.approx(100.0)


def test_a_short_list_says_what_the_long_one_says(file: str) -> None:
    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(70):
            store.append(watcher.tick([A, B]))
        store.put_facts([facts(1, state="completed", started=START, ended=START + 700, cpus=8)])
        short = store.table(Question(), now=watcher.time, whole=False)
        records = store.jobs(now=watcher.time)
    for name in ("elapsed_s", "cpu_efficiency", "memory_efficiency", "gpu_efficiency"):
        values = [getattr(record, name) for record in records]
        assert np.array_equal(getattr(short, name), values, equal_nan=True), name
    assert list(short.text("shown_id")) == [record.shown_id for record in records]
    assert list(short.states) == [record.state for record in records]


class TestRollingUp:
    """What is old becomes coarser, and stays as much."""

    def fill(self, place: str, **kept: float) -> tuple[Store, Watcher]:
        watcher = Watcher()
        store = Store.open(place, retention=Retention(**kept))
        rng = np.random.default_rng(1)
        for _ in range(300):
            store.append(watcher.tick([A, B], watts={"1": float(rng.uniform(10, 400))}))
        return store, watcher

    @pytest.mark.parametrize(
        ("days", "resolution", "step_s"), [(8, "points_60", 60.0), (200, "points_3600", 3600.0)]
    )
    def test_sums_are_those_of_every_look(
        self, place: str, days: int, resolution: str, step_s: float
    ) -> None:
        store, watcher = self.fill(place)
        with store:
            record = store.jobs()[0]
            before = store.series(record)
            done = store.prune(now=watcher.time + days * 86400)
            after = store.series(record)
            assert done.rolled_up > 0
            assert done.jobs == 0
            sizes = store.sizes()
            check_same(store.jobs(now=watcher.time)[0], store.jobs(now=watcher.time)[0])
        assert set(sizes) & {"points_0", "points_60", "points_3600"} == {resolution}
        assert len(after) < len(before) / 4
        assert after.step_s.max() <= step_s + 10
        for name in ("energy_j", "carbon_g", "cpu_s", "read_bytes"):
            total = getattr(record, name)
            assert after.columns[name].sum() == pytest.approx(total, rel=1e-6)
            assert after.columns[name].sum() == pytest.approx(before.columns[name].sum(), rel=1e-6)
        mean = np.average(before.columns["memory_bytes"], weights=before.step_s)
        assert np.average(after.columns["memory_bytes"], weights=after.step_s) == pytest.approx(
            mean, rel=2e-4
        )

    def test_a_watcher_rolls_up_as_it_goes(self, file: str) -> None:
        store, watcher = self.fill(file, looks_s=600.0)
        with store:
            watcher.time += 2 * 86400
            store.append(watcher.tick([A]))
            assert store.sizes()["points_60"] > 0

    def test_the_shortest_jobs_are_left_as_they_are(self, file: str) -> None:
        watcher = Watcher()
        with Store.open(file) as store:
            for number in range(5):
                store.append(watcher.tick([unit(10 + number, started=watcher.time)]))
            store.prune(now=watcher.time + 20 * 86400)
            for record in store.jobs():
                assert len(store.series(record)) == 1


class TestPruning:
    """Letting go of what is old."""

    def test_what_is_too_old_goes_and_the_rest_stays(self, place: str) -> None:
        watcher = Watcher()
        with Store.open(place) as store:
            for _ in range(20):
                store.append(watcher.tick([A]))
            store.put_phases(only(store), "[]")
            watcher.time += 20 * 86400
            for _ in range(20):
                store.append(watcher.tick([B]))
            done = store.prune(now=watcher.time, older_than_s=10 * 86400)
            assert (done.jobs, [each.job_id for each in store.jobs()]) == (1, ["2"])
            assert store.check().is_sound
            assert len(store.series(only(store))) == 20
            # The one that is left goes on.
            store.append(watcher.tick([B]))
            assert only(store).energy_j == 100.0 * 210

    def test_a_size_is_kept_to(self, place: str) -> None:
        watcher = Watcher()
        with Store.open(place, retention=Retention(looks_s=1e9)) as store:
            for day in range(12):
                jobs = [unit(1000 * day + each, started=watcher.time) for each in range(30)]
                store.append(watcher.tick(jobs))
                watcher.time += 86400
        with Store.open(place, retention=Retention(looks_s=1e9)) as store:
            before = store.sizes()["bytes"]
            limit = before // 2
            done = store.prune(now=watcher.time, most_bytes=limit)
            assert done.bytes_after <= limit < before
            left = [int(each.job_id) // 1000 for each in store.jobs()]
        assert left
        assert set(left) == set(range(min(left), 12)), "the oldest go first"

    def test_what_is_young_is_kept_whatever_is_asked(self, file: str) -> None:
        watcher = Watcher()
        with Store.open(file) as store:
            store.append(watcher.tick([A]))
            with pytest.raises(InvalidInput, match="younger than 2 days"):
                store.prune(now=watcher.time, older_than_s=3600.0)
            store.prune(now=watcher.time, most_bytes=1)
            assert only(store).job_id == "1"

    def test_ticks_of_a_host_that_is_gone_are_brought_into_chunks(self, place: str) -> None:
        gone = Store.open(place)
        watcher = Watcher()
        gone.append(watcher.tick([A]))
        with Store.open(place) as store:
            store.prune(now=watcher.time + 3 * 86400)
            assert store.sizes()["ticks"] == 0
            assert only(store).energy_j == 1000.0
        gone._database.close()


class TestOpening:
    """What can stand in the way."""

    def test_readers_read_while_a_writer_writes(self, file: str) -> None:
        watcher = Watcher()
        stop = threading.Event()
        seen: list[float] = []
        problems: list[BaseException] = []

        def read() -> None:
            try:
                with Store.open(file, readonly=True) as store:
                    while not stop.is_set():
                        seen.extend(each.energy_j for each in store.jobs(ids=["1"]))
            except Exception as error:  # noqa: BLE001 - it is looked at below
                problems.append(error)

        with Store.open(file) as store:
            store.append(watcher.tick([A]))
            reader = threading.Thread(target=read)
            reader.start()
            for _ in range(150):
                store.append(watcher.tick([A, B]))
            stop.set()
            reader.join()
        assert not problems
        assert len(seen) > 3
        assert seen == sorted(seen), "what a reader sees only grows"

    def test_reading_writes_nothing(self, file: str) -> None:
        with Store.open(file) as store:
            store.append(Watcher().tick([A]))
        with Store.open(file, readonly=True) as store:
            with pytest.raises(StoreProblem, match="reading only"):
                store.append(Watcher().tick([A]))
            with pytest.raises(StoreProblem, match="reading only"):
                store.put_facts([facts(1)])
            assert only(store).energy_j == 1000.0

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_somebody_else_may_read_what_may_not_be_written(self) -> None:
        folder = Path(tempfile.mkdtemp())
        folder.chmod(0o755)
        with Store.open(folder / "store.sqlite") as store:
            store.append(Watcher().tick([A]))
        code = (
            "import os, sys\n"
            "from lowtide.store import Store\n"
            "os.setuid(65534)\n"
            "with Store.open(sys.argv[1], readonly=True) as store:\n"
            "    print(store.jobs()[0].energy_j)\n"
            "try:\n"
            "    Store.open(sys.argv[1])\n"
            "except OSError as error:\n"
            "    print(error)\n"
        )
        words = [sys.executable, "-c", code, str(folder / "store.sqlite")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        shutil.rmtree(folder)
        assert done.stdout.startswith("1000.0\n"), done.stderr
        assert "may not be written by you" in done.stdout or "cannot be opened" in done.stdout

    def test_a_store_that_is_not_there_says_how_to_get_one(self, file: str) -> None:
        with pytest.raises(StoreProblem, match="lowtide watch"):
            Store.open(file, readonly=True)
        assert not Path(file).exists()

    def test_what_is_no_store_is_refused(self, tmp_path: Path) -> None:
        other = tmp_path / "notes.txt"
        other.write_text("these are no tables, and never were\n" * 100)
        for readonly in (True, False):
            with pytest.raises(StoreProblem, match="no store of lowtide's"):
                Store.open(other, readonly=readonly)
        assert other.read_text().startswith("these")

    def test_an_address_tells_no_password(self) -> None:
        with pytest.raises(StoreProblem) as caught:
            Store.open("postgresql://ada:sesame@127.0.0.1:1/none")
        assert "sesame" not in str(caught.value)
        assert caught.value.where == "postgresql://ada:***@127.0.0.1:1/none"
        for wrong, said in (
            ("mysql://ada@localhost/x", "PostgreSQL"),
            ("sqlite://", "in memory"),
            ("postgresql://ada:sesame@host:port/x", "cannot read the address"),
        ):
            with pytest.raises(InvalidInput, match=said) as refused:
                Store.open(wrong)
            assert "sesame" not in str(refused.value)

    def test_a_full_disk_loses_the_tick_and_nothing_else(self, file: str) -> None:
        watcher = Watcher()
        store = Store.open(file)
        jobs = [unit(each) for each in range(50)]
        for _ in range(3):
            store.append(watcher.tick(jobs))
        with store._database._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 4}")
        written = 3
        with pytest.raises(StoreProblem, match=r"no room left .*lowtide store prune"):
            while written < 1000:
                store.append(watcher.tick([*jobs, unit(1000 + written)]))
                written += 1
        assert store.check().is_sound
        assert store.jobs()[0].energy_j == 1000.0 * written
        with store._database._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=100000")
        store.append(watcher.tick(jobs))
        # The tick that was lost is in the next.
        assert store.jobs()[0].energy_j == 1000.0 * (written + 2)
        assert store.check().is_sound
        store.close()

    def test_a_tick_without_a_time_is_refused(self, file: str) -> None:
        tick = dataclasses.replace(Watcher().tick([A]), time=math.nan)
        with Store.open(file) as store, pytest.raises(InvalidInput, match="has a time"):
            store.append(tick)

    def test_a_unit_that_is_there_twice_is_refused(self, file: str) -> None:
        with Store.open(file) as store, pytest.raises(InvalidInput, match="twice"):
            store.append(Watcher().tick([A, A]))

    def test_names_that_no_text_can_hold_are_kept_as_well_as_can_be(self, place: str) -> None:
        odd = unit("job\udcff\0", name="a\udcffb", user="\0")
        watcher = Watcher()
        with Store.open(place) as store:
            for _ in range(2):
                store.append(watcher.tick([odd]))
            record = only(store)
        assert (record.job_id, record.name, record.user) == ("job?", "a?b", None)
        assert record.energy_j == 2000.0

    def test_a_node_without_any_job_is_watched_too(self, place: str) -> None:
        watcher = Watcher()
        with Store.open(place) as store:
            for _ in range(65):
                store.append(watcher.tick([]))
            assert store.jobs() == []
            assert np.allclose(store.node_series("n1").columns["power_w"], 51.0)


def test_exported_tables_say_the_same(file: str, tmp_path: Path) -> None:
    import polars as pl

    watcher = Watcher()
    with Store.open(file) as store:
        for _ in range(70):
            store.append(watcher.tick([A, B]))
        counts = store.export(tmp_path / "out")
        records = store.jobs()
    jobs = pl.read_parquet(tmp_path / "out" / "jobs.parquet")
    samples = pl.read_parquet(tmp_path / "out" / "samples" / "*.parquet")
    nodes = pl.read_parquet(tmp_path / "out" / "nodes" / "*.parquet")
    assert counts == {"jobs": 2, "samples": 140, "nodes": 70}
    assert (jobs.height, samples.height, nodes.height) == (2, 140, 70)
    assert jobs["energy_j"].to_list() == [each.energy_j for each in records]
    assert jobs["marginal_g"].to_list() == [None, None]
    assert jobs["hosts"].to_list() == [["n1"], ["n1"]]
    per_job = samples.group_by("job").agg(pl.col("energy_j").sum()).sort("job")
    assert per_job["energy_j"].to_list() == pytest.approx([each.energy_j for each in records])
    assert set(UNIT.counters) <= set(samples.columns)


def test_phases_are_kept_beside_a_job(place: str) -> None:
    with Store.open(place) as store:
        store.append(Watcher().tick([A]))
        record = only(store)
        assert store.phases(record) is None
        store.put_phases(record, '[{"name": "train"}]')
        store.put_phases(record, '[{"name": "warm-up"}]')
        assert store.phases(record) == '[{"name": "warm-up"}]'
        store.put_phases(record, None)
        assert store.phases(record) is None
