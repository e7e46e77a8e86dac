"""Users are told once per job and kind, by mail or web, and never lose a turn over it."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from dataclasses import replace

import pytest

from lowtide.acting.backend import PENDING, RUNNING, Seen
from lowtide.acting.book import Begun, Book, BookPage
from lowtide.acting.judge import Situation, judge
from lowtide.acting.notices import Mail, Notice, Webhook, notices, send_new, sender_for
from lowtide.acting.tag import Tag, encode
from lowtide.errors import InvalidInput, ProviderProblem

NOW = 1_700_000_000.0
HOUR_S = 3600.0
TAG = Tag(token="t1", deadline=NOW + 9 * HOUR_S, arrival=NOW, run_s=HOUR_S, begin=NOW + 5 * HOUR_S)
PAGE = BookPage(token="t1", job_id="7", name="train", arrival=NOW, deadline=TAG.deadline)


def verdict(tag=TAG, **changes):
    seen = Seen(id="7", state=PENDING, submitted=NOW, begin=tag.begin, name="train", user="ada")
    seen = replace(seen, **{"comment": encode(tag), **changes})
    return judge(seen, Situation(now=NOW, signal=None, wait_s=lambda *_: 0.0))


def kinds(*, verdicts=(), settled=(), now=NOW):
    return [each.kind for each in notices(verdicts, settled, now=now)]


@pytest.mark.parametrize(
    ("changes", "tag", "told"),
    [
        ({}, TAG, ["deferred"]),
        ({"begin": NOW - 5.0}, TAG, []),
        ({"begin": NOW - 5.0}, replace(TAG, deadline=NOW + 600.0, begin=NOW - 5.0), ["at risk"]),
        ({"begin": NOW - 5.0}, replace(TAG, deadline=NOW + 600.0, users_own=True), []),
        (
            {"held": True, "stuck": True, "why": "launch failed requeued held"},
            TAG,
            ["deferred", "held"],
        ),
        ({"held": True, "why": "JobHeldUser"}, replace(TAG, begin=None), []),
        ({"state": RUNNING, "started": NOW - 60.0, "begin": None}, TAG, []),
        (
            {"state": RUNNING, "started": NOW - 60.0, "begin": None},
            replace(TAG, deadline=NOW + HOUR_S - 120.0),
            ["at risk"],
        ),
        # It has run for longer than it ever did.
        (
            {"state": RUNNING, "started": NOW - 9 * HOUR_S, "begin": None},
            replace(TAG, deadline=NOW - 1.0),
            ["at risk"],
        ),
    ],
)
def test_what_is_told_of_a_job_that_is_not_over(changes, tag, told):
    assert kinds(verdicts=[verdict(tag, **changes)]) == told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"outcome": "lost"}, ["lost"]),
        ({"outcome": "completed", "ended": PAGE.deadline + 9.0}, ["missed"]),
        ({"outcome": "timeout", "ended": NOW + 60.0}, ["missed"]),
        ({"outcome": "cancelled", "ended": NOW + 60.0}, []),
        # A saving is told once it was measured, or is not going to be.
        ({"outcome": "completed", "ended": NOW - 60.0}, []),
        ({"outcome": "completed", "ended": NOW - 900.0}, ["done"]),
        ({"outcome": "completed", "ended": NOW + 60.0, "measured": 80.0}, ["done"]),
    ],
)
def test_what_is_told_of_a_job_that_is_over(changes, told):
    assert kinds(settled=[replace(PAGE, **changes)]) == told


def test_the_saving_is_told_in_grams_and_as_a_share():
    page = replace(
        PAGE, outcome="completed", ended=NOW + 60.0, measured=90.0, replayed=100.0, at_once=200.0
    )
    (notice,) = notices([], [page], now=NOW)
    # The same watts at its submission would have come to twice as much.
    assert "saved 90 g (50.0 %)" in notice.text or "saved 90 g (50 %)" in notice.text


LATE = replace(PAGE, outcome="completed", ended=PAGE.deadline + 9.0, run_s=HOUR_S, wait_s=600.0)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"queued_s": 3 * HOUR_S}, "it waited 03:00:00 or more for its turn, and 00:10:00 were"),
        ({"begun": (Begun(task="7", start=PAGE.deadline - 2 * HOUR_S),)}, "it ran for 02:00:09"),
        ({"outcome": "node_fail"}, "its node failed"),
        ({"begun_anew": True}, "as when a node fails"),
        ({"held": True}, "it was held"),
        ({"outcome": "timeout"}, "it did not come to its end"),
        ({}, "why was not seen"),
    ],
)
def test_who_is_late_is_told_why(changes, cause):
    (notice,) = notices([], [replace(LATE, **changes)], now=NOW)
    assert notice.kind == "missed"
    assert cause in notice.text
    assert notice.text.count(";") == 1, "and of nothing else"


def test_the_book_sees_what_may_make_a_job_late(tmp_path):
    book = Book(tmp_path)
    tag = replace(TAG, wait_s=600.0, begin=NOW)
    due = Seen(id="7", state=PENDING, submitted=NOW, begin=NOW, name="train", user="ada")
    for now, changes in (
        (NOW + 700.0, {}),
        (NOW + 750.0, {"held": True, "why": "JobHeldUser"}),
        (NOW + 5000.0, {}),
        (NOW + 5100.0, {"state": RUNNING, "started": NOW + 5050.0, "restarts": 1}),
    ):
        book.see([replace(due, comment=encode(tag), **changes)], now=now)
    (page,) = Book(tmp_path).pages(now=NOW)
    assert (page.queued_s, page.held, page.begun_anew) == (5000.0, True, True)
    assert (page.wait_s, page.run_s) == (600.0, HOUR_S)
    # A stop that was asked for is no failure, and says how long it takes to save.
    asked = replace(tag, token="t2", asked=1, asked_at=NOW - 60.0)
    again = replace(due, id="8", comment=encode(asked), restarts=1, submitted=NOW - 25.0)
    book.see([again], now=NOW)
    page = Book(tmp_path).pages(now=NOW)[-1]
    assert (page.begun_anew, page.stop_s, page.deaf) == (False, 35.0, False)
    book.see([replace(again, comment=encode(replace(asked, deaf=True)))], now=NOW)
    assert Book(tmp_path).pages(now=NOW)[-1].deaf


class Sink:
    """Takes notices, or fails."""

    def __init__(self):
        self.got, self.fails = [], False

    def send(self, notice):
        if self.fails:
            raise ProviderProblem("nobody answers")
        self.got.append(notice.kind)


def test_each_kind_is_told_once_per_job_whoever_restarts(tmp_path):
    sink = Sink()
    Book(tmp_path).put(PAGE)
    for _ in range(3):
        found = notices([verdict()], [replace(PAGE, outcome="lost")], now=NOW)
        assert send_new(found, Book(tmp_path), [sink], now=NOW) == []
    assert sink.got == ["deferred", "lost"]


def test_what_could_not_be_sent_is_sent_later_and_by_whoever_can(tmp_path):
    book, sink, other = Book(tmp_path), Sink(), Sink()
    book.put(PAGE)
    sink.fails = True
    assert send_new(notices([verdict()], [], now=NOW), book, [sink], now=NOW)
    sink.fails = False
    assert not send_new(notices([verdict()], [], now=NOW), book, [sink], now=NOW)
    assert sink.got == ["deferred"]
    other.fails = True
    lost = [replace(PAGE, outcome="lost")]
    assert send_new(notices([], lost, now=NOW), book, [sink, other], now=NOW)
    other.fails = False
    assert not send_new(notices([], lost, now=NOW), book, [sink, other], now=NOW)
    assert sink.got == ["deferred", "lost"]


NOTICE = Notice(
    kind="held", job_id="7", name="a\nBcc: x@y", user="ada", text="Slurm holds it", token="t1"
)


def test_a_webhook_gets_it_as_json_and_its_address_is_in_no_message():
    got, answers = [], [200, 500]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/hook?secret=s3cret"
        sender = sender_for(address, {})
        assert isinstance(sender, Webhook)
        sender.send(NOTICE)
        with pytest.raises(ProviderProblem) as caught:
            sender.send(NOTICE)
        server.shutdown()
        thread.join()
    assert got[0]["kind"] == "held"
    assert got[0]["job_id"] == "7"
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ProviderProblem) as caught:
        sender.send(NOTICE)
    assert "s3cret" not in str(caught.value)


def mailed(address, *sent):
    """Return the sender and the lines that a mail server hears of what it sends, one after one."""
    said = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(b"220 here\r\n")
            body = False
            for raw in self.rfile:
                line = raw.decode().rstrip("\r\n")
                said.append(line)
                if body:
                    body = line != "."
                    if not body:
                        self.wfile.write(b"250 taken\r\n")
                elif line.upper() == "DATA":
                    body = True
                    self.wfile.write(b"354 go on\r\n")
                elif line.upper() == "QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                else:
                    self.wfile.write(b"250 yes\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        where = f"127.0.0.1:{server.server_address[1]}"
        sender = sender_for(address, {"LOWTIDE_SMTP": where})
        for each in sent:
            sender.send(each)
        server.shutdown()
        thread.join()
    return sender, said


def test_mail_is_handed_in_with_one_head_whatever_a_job_is_called():
    sender, said = mailed("mailto:ada@example.org", NOTICE)
    assert sender == Mail(to="ada@example.org", server=sender.server)
    assert "Subject: job 7 a Bcc: x@y: held" in said
    assert not any(line.startswith("Bcc") for line in said)
    with pytest.raises(ProviderProblem, match="takes no mail"):
        sender.send(NOTICE)


def test_each_user_is_told_at_an_address_of_their_own():
    users = ("ada", "bob", "eve@other", "x>\nBcc: y", "")
    _, said = mailed("mailto:{user}@example.org", *(replace(NOTICE, user=user) for user in users))
    told = [line.upper() for line in said if line.upper().startswith("RCPT")]
    assert told == ["RCPT TO:<ADA@EXAMPLE.ORG>", "RCPT TO:<BOB@EXAMPLE.ORG>"]
    assert said.count("From: lowtide@example.org") == 2


@pytest.mark.parametrize("address", ["", "ada", "mailto:", "mailto:a b@c", "ftp://x/y", "https://"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidInput, match="notices go to"):
        sender_for(address, {})
