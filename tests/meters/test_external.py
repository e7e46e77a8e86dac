"""Meters elsewhere: files that grow, are cut and replaced; addresses."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from lowtide.errors import InvalidInput, MeterProblem
from lowtide.meters.external import External, look_up


class TestExternal:
    def test_a_file_that_grows(self, tmp_path: Path) -> None:
        path = tmp_path / "meter.csv"
        path.write_text("time,watts\n1,999\n")
        meter = External(source=str(path))
        meter.open()
        assert math.isnan(meter.sample().power_w[0])
        with path.open("a") as file:
            file.write(f"{time.time()},123.5\n{time.time()},1")
        assert meter.sample().power_w == (123.5,)
        with path.open("a") as file:
            file.write("24\n")
        assert meter.sample().power_w == (124.0,)
        with path.open("a") as file:
            file.write(f"{time.time() - 100},55\n")
        assert math.isnan(meter.sample().power_w[0]), "an old value is no reading of now"
        meter.close()

    def test_what_pinpoint_writes(self, tmp_path: Path) -> None:
        path = tmp_path / "measurements.csv"
        path.write_text("56430\n")
        meter = External(source=f"pinpoint:{path}")
        meter.open()
        assert math.isnan(meter.sample().power_w[0])
        with path.open("a") as file:
            file.write("57260\n")
        assert meter.sample().power_w == (57.26,)
        # At its end stand the times of its beginning and end, which are no readings.
        with path.open("a") as file:
            file.write("52360\n1720917123.31\n1720917200.5\n")
        assert meter.sample().power_w == (52.36,)
        meter.close()

    def test_json_and_prometheus(self, site) -> None:
        address, answers = site
        answers["/status"] = {"meters": [{"power": 77.0}]}
        meter = External(source=f"{address}/status#meters.0.power")
        meter.open()
        assert meter.sample().power_w == (77.0,)
        answers["/api/v1/query?query=node_watts"] = {
            "data": {"result": [{"metric": {}, "value": [1.0, "250.5"]}]}
        }
        prometheus = External(source=f"prometheus:{address}?query=node_watts")
        prometheus.open()
        assert prometheus.sample().power_w == (250.5,)

    def test_what_is_not_there(self, site, tmp_path: Path) -> None:
        with pytest.raises(MeterProblem, match="no 'b' on the way"):
            look_up({"a": {}}, "a.b")
        with pytest.raises(MeterProblem, match="no number"):
            look_up({"a": "n/a"}, "a")
        with pytest.raises(MeterProblem, match="cannot read"):
            External(source=str(tmp_path / "none.csv")).open()
        with pytest.raises(MeterProblem, match="does not answer"):
            External(source=f"{site[0]}/nothing").open()
        with pytest.raises(InvalidInput, match="say where"):
            External().open()

    def test_a_value_holds_as_long_as_lines_take(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]
        monkeypatch.setattr("lowtide.meters.external.time.monotonic", lambda: now[0])
        path = tmp_path / "meter.csv"
        path.write_text("")
        meter = External(source=str(path))
        meter.open()

        def grow(at_s: float, *watts: float) -> float:
            now[0] = at_s
            with path.open("a") as file:
                file.writelines(f"{each}\n" for each in watts)
            return meter.sample().power_w[0]

        assert [grow(0, 90), grow(1, 91), grow(2, 92), grow(3)] == [90, 91, 92, 92]
        assert math.isnan(grow(8)), "lines came every second: five without one are too many"
        # Those of a meter that writes every 8 s hold longer.
        assert [grow(16, 93), grow(24, 94), grow(46)] == [93, 94, 94]
        assert math.isnan(grow(55)), "but half a minute at most"
        meter.close()

    def test_a_file_that_is_cut_or_replaced_is_followed(self, tmp_path: Path) -> None:
        path = tmp_path / "meter.csv"
        path.write_text("50\n" * 20)
        meter = External(source=str(path))
        meter.open()
        path.write_text("")
        assert math.isnan(meter.sample().power_w[0])
        with path.open("a") as file:
            file.write("61\n")
        assert meter.sample().power_w == (61.0,)
        with path.open("a") as file:
            file.write("62\n63")
        path.rename(tmp_path / "meter.csv.1")
        assert meter.sample().power_w == (62.0,), "while there is no file, the old one counts"
        path.write_text("71\n72\n")
        assert meter.sample().power_w == (72.0,)
        meter.close()

    def test_a_query_may_have_spaces(self, site) -> None:
        address, answers = site
        wanted = {"data": {"result": [{"metric": {}, "value": [1.0, "250.5"]}]}}
        answers["/api/v1/query?query=sum%28x%29%20by%20%28h%29"] = wanted
        for query in ("sum(x) by (h)", "sum%28x%29%20by%20%28h%29"):
            meter = External(source=f"prometheus:{address}?query={query}")
            meter.open()
            assert meter.sample().power_w == (250.5,)
        answers["/my%20meter"] = 5
        assert External(source=f"{address}/my meter").sample().power_w == (5.0,)
