from __future__ import annotations

import gzip
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from lowtide.errors import FileProblem, InvalidInput
from lowtide.monitor import exporter as module
from lowtide.monitor.exporter import Exporter, load_token
from lowtide.monitor.metrics import MetricsPage

pytestmark = pytest.mark.alone

NODE, JOBS = b"# HELP x An x.\n# TYPE x gauge\nx 1\n", b'y{job_id="7",user="ann"} 1\n'
PAGE = NODE + JOBS
TOKEN = "a-token-of-24-characters"


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with Exporter(address="127.0.0.1:0", open_to_all=True) as opened:
        yield opened


def page(plain: bytes = NODE, jobs: bytes = JOBS) -> MetricsPage:
    return MetricsPage(node=plain, pieces=(jobs[:9], jobs[9:]))


def ask(exporter: Exporter, path: str = "/metrics", **headers: str):
    host = exporter.url.removeprefix("http://").removesuffix("/metrics")
    connection = HTTPConnection(host, timeout=5)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def place(exporter: Exporter) -> tuple[str, int]:
    host, _, port = exporter.url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    return host, int(port)


class TestAnswers:
    def test_the_last_page_is_served(self, exporter: Exporter) -> None:
        exporter.publish(page(b"old"))
        exporter.publish(page())
        with urllib.request.urlopen(exporter.url) as answer:
            assert answer.read() == PAGE
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"

    def test_it_is_compressed_for_those_who_ask(self, exporter: Exporter) -> None:
        large = NODE * 1000
        exporter.publish(page(large, b""))
        status, headers, body = ask(exporter, **{"Accept-Encoding": "deflate, gzip"})
        assert status == 200
        assert headers["Content-Encoding"] == "gzip"
        assert len(body) < len(large) / 5
        assert gzip.decompress(body) == large
        assert "Content-Encoding" not in ask(exporter)[1]

    def test_a_page_is_laid_out_when_it_is_asked_for_and_once(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        laid_out, whole = [], MetricsPage.whole.fget
        monkeypatch.setattr(
            MetricsPage, "whole", property(lambda it: laid_out.append(it) or whole(it))
        )
        exporter.publish(page(b"old"))
        shown = page()
        exporter.publish(shown)
        assert laid_out == []
        assert [ask(exporter)[2] for _ in range(3)] == [PAGE] * 3
        assert laid_out == [shown]

    def test_before_the_first_tick_there_is_nothing(self, exporter: Exporter) -> None:
        assert ask(exporter)[0] == 503
        assert ask(exporter, "/health")[0] == 503

    def test_health_tells_of_a_sampler_that_hangs(self) -> None:
        with Exporter(address="127.0.0.1:0", stale_s=0.05) as exporter:
            exporter.publish(page())
            assert ask(exporter, "/health")[::2] == (200, b"ok\n")
            time.sleep(0.1)
            status, _, said = ask(exporter, "/health")
            assert status == 503
            assert b"stale" in said
            # The counters are still true, so they are still there.
            assert ask(exporter)[0] == 200

    def test_other_paths_and_methods(self, exporter: Exporter) -> None:
        exporter.publish(page())
        status, _, said = ask(exporter, "/")
        assert status == 404
        assert b"/metrics" in said
        assert ask(exporter, "/metrics?x=1")[2] == PAGE
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(exporter.url, data=b"x")

    def test_head_has_the_length_and_no_body(self, exporter: Exporter) -> None:
        exporter.publish(page())
        request = urllib.request.Request(exporter.url, method="HEAD")
        with urllib.request.urlopen(request) as answer:
            assert int(answer.headers["Content-Length"]) == len(PAGE)
            assert answer.read() == b""


class TestWhoIsToldOfJobs:
    def test_on_a_port_anybody_is_told_of_the_node_alone(self) -> None:
        with Exporter(address="127.0.0.1:0") as exporter:
            exporter.publish(page())
            status, _, body = ask(exporter)
            assert (status, NODE in body, b"ann" in body) == (200, True, False)
            assert b"--token-file" in body
            assert not exporter.tells_of_jobs
            _, _, small = ask(exporter, **{"Accept-Encoding": "gzip"})
            assert gzip.decompress(small) == body

    def test_the_token_shows_jobs_and_another_one_is_refused(self) -> None:
        with Exporter(address="127.0.0.1:0", token=TOKEN) as exporter:
            exporter.publish(page())
            for kind in ("Bearer", "bearer"):
                assert ask(exporter, Authorization=f"{kind} {TOKEN}")[2] == PAGE
            assert b"ann" not in ask(exporter)[2]
            for wrong in (
                f"Bearer {TOKEN}x",
                f"Bearer {TOKEN[:-1]}",
                f"Basic {TOKEN}",
                "Bearer ",
                "",
            ):
                status, headers, body = ask(exporter, Authorization=wrong)
                assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
                assert NODE not in body
            assert ask(exporter, "/health", Authorization="Bearer x")[0] == 200
            assert TOKEN not in repr(exporter)

    def test_an_empty_token_is_none(self) -> None:
        with Exporter(address="127.0.0.1:0") as exporter:
            exporter.publish(page())
            assert ask(exporter, Authorization="Bearer ")[0] == 401

    def test_a_socket_file_is_for_those_who_may_open_it(self, tmp_path: Path) -> None:
        file = tmp_path / "metrics.sock"
        with Exporter(address=f"unix:{file}") as exporter:
            exporter.publish(page())
            assert stat.S_IMODE(file.stat().st_mode) == 0o660
            assert exporter.url == f"unix:{file}"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(file))
                client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                said = b"".join(iter(lambda: client.recv(65536), b""))
            assert said.endswith(PAGE)
            with pytest.raises(InvalidInput, match="another program listens"):
                Exporter(address=f"unix:{file}").open()
        assert not file.exists()

    def test_the_socket_of_one_that_was_killed_is_taken_over(self, tmp_path: Path) -> None:
        file = tmp_path / "metrics.sock"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(file))
        with Exporter(address=f"unix:{file}"):
            assert file.is_socket()
        file.write_text("somebody's file")
        with pytest.raises(InvalidInput, match="cannot listen on unix:"):
            Exporter(address=f"unix:{file}").open()
        assert file.read_text() == "somebody's file"

    def test_a_token_is_made_once_and_kept(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        made = load_token(file)
        assert len(made) >= 32
        assert load_token(file) == made
        assert stat.S_IMODE(file.stat().st_mode) & 0o007 == 0
        assert load_token(tmp_path / "other") != made

    @pytest.mark.parametrize("said", ["", "short", "two words of enough letters", "x" * 20 + "é"])
    def test_what_is_no_token_is_refused(self, tmp_path: Path, said: str) -> None:
        file = tmp_path / "token"
        file.write_text(said)
        file.chmod(0o600)
        with pytest.raises(InvalidInput, match="Remove the file, and one is made up"):
            load_token(file)

    def test_a_token_that_everybody_may_read_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text(TOKEN)
        file.chmod(0o644)
        with pytest.raises(InvalidInput, match="chmod o= "):
            load_token(file)
        file.chmod(0o640)
        assert load_token(file) == TOKEN
        with pytest.raises(FileProblem, match="cannot keep a token"):
            load_token(tmp_path / "nowhere" / "token")


class TestOthers:
    def test_a_slow_client_keeps_nobody_waiting(self, exporter: Exporter) -> None:
        exporter.publish(page(b"x" * 20_000_000))
        with (
            socket.create_connection(place(exporter)) as slow,
            socket.create_connection(place(exporter)) as mute,
        ):
            # One asks for a page that no buffer holds and does not read it, one asks for nothing.
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert mute.fileno() > 0
            started = time.perf_counter()
            for _ in range(5):
                assert ask(exporter, "/health")[0] == 200
            assert time.perf_counter() - started < 2
            exporter.publish(page())
            assert ask(exporter)[2] == PAGE

    def test_one_that_takes_too_long_is_let_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module._Handler, "timeout", 0.2)
        with (
            Exporter(address="127.0.0.1:0") as exporter,
            socket.create_connection(place(exporter)) as mute,
        ):
            mute.settimeout(5)
            assert mute.recv(1) == b""

    def test_too_many_are_turned_away_and_come_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MOST_AT_ONCE", 2)
        with Exporter(address="127.0.0.1:0") as exporter:
            exporter.publish(page())
            held = [socket.create_connection(place(exporter)) for _ in range(2)]
            time.sleep(0.3)
            with socket.create_connection(place(exporter)) as third:
                third.settimeout(5)
                assert third.recv(1) == b""
            for each in held:
                each.close()
            time.sleep(0.3)
            assert ask(exporter)[0] == 200

    def test_hanging_up_is_no_news(
        self, exporter: Exporter, capfd: pytest.CaptureFixture[str]
    ) -> None:
        exporter.publish(page(b"x" * 20_000_000))
        with socket.create_connection(place(exporter)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)
        assert ask(exporter, "/health")[0] == 200
        assert capfd.readouterr() == ("", "")

    def test_scrapes_and_ticks_at_once(self, exporter: Exporter) -> None:
        pages = [bytes([65 + number]) * 100_000 for number in range(20)]
        exporter.publish(page(pages[0], b""))
        seen: list[bytes] = []
        ask_often = lambda: seen.extend(ask(exporter)[2] for _ in range(20))  # noqa: E731
        threads = [threading.Thread(target=ask_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for each in pages:
            exporter.publish(page(each, b""))
            time.sleep(0.005)
        for thread in threads:
            thread.join()
        # Nobody gets half of one page and half of another.
        assert len(seen) == 80
        assert set(seen) <= set(pages)


class TestAddresses:
    @pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
    def test_only_loopback_unless_told_so(self, address: str) -> None:
        with pytest.raises(InvalidInput, match="reverse proxy with TLS, or say --insecure"):
            Exporter(address=address).open()

    def test_told_so(self) -> None:
        # Never on a real interface in a test: one that is not this machine's fails behind the rule.
        with pytest.raises(InvalidInput, match="cannot listen on 192\\.0\\.2\\.1:9470"):
            Exporter(address="192.0.2.1:9470", insecure=True).open()

    def test_localhost_is_loopback(self) -> None:
        with Exporter(address="localhost:0", open_to_all=True) as exporter:
            exporter.publish(page())
            assert ask(exporter)[2] == PAGE

    @pytest.mark.parametrize(
        "address", ["9470", ":9470", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999"]
    )
    def test_an_address_is_a_host_and_a_port(self, address: str) -> None:
        with pytest.raises(InvalidInput, match=r"say 127\.0\.0\.1:9470"):
            Exporter(address=address).open()

    def test_an_unknown_host(self) -> None:
        with pytest.raises(InvalidInput, match="no address of this machine"):
            Exporter(address="nowhere.invalid:9470").open()

    def test_a_port_in_use_is_named(self, exporter: Exporter) -> None:
        _, port = place(exporter)
        with pytest.raises(InvalidInput, match=f"sport = :{port} names it"):
            Exporter(address=f"127.0.0.1:{port}").open()

    def test_the_port_is_free_again_afterwards(self) -> None:
        with Exporter(address="127.0.0.1:0") as first:
            _, port = place(first)
        with Exporter(address=f"127.0.0.1:{port}") as second:
            assert place(second)[1] == port
        with pytest.raises(InvalidInput, match="opened before"):
            _ = second.url
