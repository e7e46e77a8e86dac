"""Listening to what a program prints, while it is passed on.

Output is searched in large pieces: most lines of most programs match nothing, and to look at each
of them would take longer than the program needs to print it.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, TextIO

from lowtide.measuring import relay
from lowtide.measuring.relay import HEAD

# A line that goes on for longer is taken as ended.
_LONGEST = 65536
# More events than this are no marks of phases, and would only fill the disk.
_MOST_EVENTS = 100_000
# A pipe that holds more takes fewer turns.
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)
# A relay that somebody killed is replaced so often.
_REPLACED = 3


@dataclass(slots=True)
class _Pattern:
    """A regular expression, and how to find the few lines that it may match in a long text.

    Attributes:
        regex: The expression, which is asked about one line at a time.
        label: The label of its event.
        literal: What every line has that it matches; empty where that is not known. In small
            letters where the expression minds none.
        near: The same expression for many lines at once: where it finds nothing, no line matches,
            and where it does, no line before that does. None where that cannot be promised.
    """

    regex: re.Pattern[str]
    label: str
    literal: str = ""
    near: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        self.literal = _literal(self.regex)
        if (not self.literal or self._folds) and _is_local(self.regex):
            with contextlib.suppress(re.error):
                self.near = re.compile(self.regex.pattern, self.regex.flags | re.MULTILINE)

    @property
    def _folds(self) -> bool:
        return bool(self.regex.flags & re.IGNORECASE)

    def lines(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the lines that may match, each with its place."""
        at, literal, searched = 0, self.literal, text
        if literal and self._folds:
            # Beyond ASCII a letter may have another length in small, and other small letters.
            literal, searched = (literal, text.lower()) if text.isascii() else ("", text)
        while at < len(text):
            hit = at
            if literal:
                hit = searched.find(literal, at)
            elif self.near is not None:
                found = self.near.search(text, at)
                hit = found.start() if found else -1
            if not 0 <= hit < len(text):
                return
            begin, end = max(text.rfind("\n", at, hit) + 1, at), text.find("\n", hit) + 1
            at = end or len(text)
            yield begin, text[begin:at]

    def found(self, line: str) -> str | None:
        """Return the label that a line has, None where it does not match."""
        if not (match := self.regex.search(line)):
            return None
        group = (match.group(1) or "") if self.regex.groups else ""
        return self.label.replace("{}", group)


def _literal(regex: re.Pattern[str]) -> str:
    """Return the longest text that all matches hold; empty where none is known."""
    try:
        from re import _constants, _parser  # type: ignore[attr-defined]

        parsed = _parser.parse(regex.pattern, regex.flags & ~re.DEBUG)
        longest = max(_runs(parsed, _constants), key=len)
        if not regex.flags & re.IGNORECASE:
            return longest
        return longest.lower() if longest.isascii() else ""
    except (ImportError, AttributeError, TypeError, ValueError):
        # Python's own parser is nobody's promise: without it all lines are looked at.
        return ""


def _runs(parsed: Any, kinds: Any) -> list[str]:
    """Return the texts that every match of a parsed expression holds, each in one piece."""
    runs = [""]
    for kind, said in parsed:
        if kind is kinds.LITERAL:
            runs[-1] += chr(said)
            continue
        inner: list[str] = []
        if kind is kinds.SUBPATTERN and not said[1] & re.IGNORECASE:
            inner = _runs(said[3], kinds)
        elif kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT) and said[0] >= 1:
            inner = _runs(said[2], kinds)
        runs += [*inner, ""]
    return runs


def _is_local(regex: re.Pattern[str]) -> bool:
    """Return whether a match depends on itself alone; False where that is not understood."""
    if regex.flags & re.VERBOSE:
        return False
    text, at, local = regex.pattern, 0, True
    while at < len(text):
        char, then = text[at], text[at + 1 : at + 2]
        at += 1
        if char == "\\":
            at += 1
            local = local and then not in ("A", "Z", "B")
        elif char == "[":
            # A bracket that stands first in its class is one of its characters.
            first = re.compile(r"\^?\]?").match(text, at)
            at = first.end() if first else at
            while at < len(text) and text[at] != "]":
                at += 2 if text[at] == "\\" else 1
            at += 1
        elif char == "(" and then == "?":
            kind = re.compile(r"\?(?::|P<|P=|[aiLmsu]+[:)])").match(text, at)
            local = local and kind is not None
            # What a group is called, or the sign of its kind, is no part of the pattern.
            at = kind.end() if kind else at + 1
        elif char in "*+?{":
            if char == "{":
                at = (text.find("}", at) + 1) or len(text)
            # Possessive: what it takes it never gives back, be it of the next line.
            local = local and text[at : at + 1] != "+"
    return local


@dataclass(slots=True, kw_only=True)
class _Stream:
    """One stream of output, as far as it was searched.

    Attributes:
        patterns: What is searched for.
        tell: Told each label as it is found.
    """

    patterns: Sequence[_Pattern]
    tell: Callable[[str], None]
    _rest: bytes = b""
    # Whether the line goes back and is written anew, and what of it was told already.
    _goes_back: bool = False
    _told: set[str] = field(default_factory=set)
    _half_ended: bool = False

    def feed(self, data: bytes) -> None:
        """Search what was printed."""
        if self._half_ended and data.startswith(b"\n"):
            data = data[1:]
        data = self._rest + data
        self._half_ended = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
            last = max(data.rfind(b"\n"), data.rfind(b"\r"))
            goes_back = data[last : last + 1] == b"\r"
            data = data.replace(b"\r", b"\n")
        else:
            goes_back = self._goes_back and b"\n" not in data
        cut = data.rfind(b"\n") + 1
        if cut:
            self._search(data[:cut].decode(errors="replace"))
        self._rest, self._goes_back = data[cut:], goes_back
        # A progress bar goes back and writes anew: its line ends when the next is due.
        if goes_back or len(self._rest) > _LONGEST:
            self._search_rest()
        if len(self._rest) > _LONGEST:
            self._rest, self._goes_back, self._told = b"", False, set()

    def finish(self) -> None:
        """Search what came without an end of line."""
        self._search_rest()
        self._rest = b""

    def _search(self, text: str) -> None:
        """Tell what whole lines have, in their order; each label once of a line."""
        found = [
            (begin, number, label)
            for number, pattern in enumerate(self.patterns)
            for begin, line in pattern.lines(text)
            if (label := pattern.found(line)) is not None
        ]
        told, at = self._told, 0
        for begin, _, label in sorted(found):
            if begin != at:
                told, at = set(), begin
            if label not in told:
                told.add(label)
                self.tell(label)
        self._told = set()

    def _search_rest(self) -> None:
        if not self._rest:
            return
        line = self._rest.decode(errors="replace")
        for pattern in self.patterns:
            label = pattern.found(line)
            if label is not None and label not in self._told:
                self._told.add(label)
                self.tell(label)


@dataclass(slots=True, kw_only=True)
class Listener:
    """Says what patterns find in a program's output, which is passed on.

    It reads on whatever happens: a program whose output nobody takes stands still.

    Attributes:
        patterns: Regular expressions, each with the label of its event; where one has a group, that
            is put in place of `{}` in the label. They are asked about one line at a time; however a
            line ends, for them it ends with a newline.
        heard: Told each label as it is found.
        troubles: What went wrong, each thing once.
        at_s: When what is being searched was printed, by the steady clock.
    """

    patterns: Sequence[tuple[re.Pattern[str], str]]
    heard: Callable[[str], None]
    troubles: list[str] = field(default_factory=list)
    at_s: float = field(default=0.0, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _relay: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _sources: tuple[int, ...] = field(default=(), init=False)
    _sinks: tuple[int, ...] = field(default=(), init=False)
    _events: int = field(default=0, init=False)
    _lost: int = field(default=0, init=False)
    _active_s: float = field(default=0.0, init=False)

    def relay(self, sources: Sequence[int], sinks: Sequence[int]) -> None:
        """Listen to streams that a process of its own passes on.

        Args:
            sources: The ends of the pipes that the program writes to; they are closed at the end.
        """
        self._sources, self._sinks = tuple(sources), tuple(sinks)
        copies = self._start_relay()
        thread = threading.Thread(target=self._listen, args=(copies,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def follow(self, source: IO[bytes], sink: TextIO) -> None:
        """Listen to one stream and pass it on here, until it ends."""
        thread = threading.Thread(target=self._copy, args=(source, sink), daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait until all streams have ended, and let go of them.

        Args:
            timeout_s: How long to wait for each after the last that was heard of it.
        """
        for thread in self._threads:
            self._active_s = max(self._active_s, time.monotonic())
            while thread.is_alive() and time.monotonic() < self._active_s + timeout_s:
                thread.join(timeout=min(timeout_s, 0.1))
        if self._lost:
            self._add_trouble(
                f"{self._lost} bytes of output were not searched for events: the program printed "
                "faster than it could be searched"
            )

    def _start_relay(self) -> IO[bytes]:
        """Start a relay; return where its copies come."""
        reading, writing = os.pipe()
        try:
            for pipe in (writing, *self._sources):
                with contextlib.suppress(OSError):
                    fcntl.fcntl(pipe, _SET_PIPE_SIZE, _PIPE_BYTES)
            pairs = [f"{a}:{b}" for a, b in zip(self._sources, self._sinks, strict=True)]
            self._relay = subprocess.Popen(  # noqa: S603 - a script of this package
                [sys.executable, "-I", "-S", relay.__file__, str(writing), *pairs],
                stdin=subprocess.DEVNULL,
                pass_fds=(writing, *self._sources, *self._sinks),
                # What is sent to the program's group or terminal is not meant for it.
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return os.fdopen(reading, "rb", buffering=_PIPE_BYTES)

    def _listen(self, copies: IO[bytes]) -> None:
        streams = [self._stream() for _ in self._sources]
        for turn in range(_REPLACED + 1):
            with copies:
                self._take(copies, streams)
            if self._relay is None or self._relay.wait() == 0 or turn == _REPLACED:
                break
            try:
                copies = self._start_relay()
            except OSError:
                break
        for stream in streams:
            stream.finish()
        for source in self._sources:
            os.close(source)

    def _take(self, copies: IO[bytes], streams: Sequence[_Stream]) -> None:
        while len(head := copies.read(HEAD.size)) == HEAD.size:
            number, self.at_s, lost, length = HEAD.unpack(head)
            self._lost += lost
            data = copies.read(length)
            if self._events <= _MOST_EVENTS:
                streams[number].feed(data)
            self._active_s = time.monotonic()

    def _stream(self) -> _Stream:
        patterns = [_Pattern(regex, label) for regex, label in self.patterns]
        return _Stream(patterns=patterns, tell=self._tell)

    def _copy(self, source: IO[bytes], sink: TextIO) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        out: TextIO | None = sink
        stream = self._stream()
        while data := _some(source):
            self.at_s = self._active_s = time.monotonic()
            out = _passed_on(decoder.decode(data), out)
            if self._events <= _MOST_EVENTS:
                stream.feed(data)
        stream.finish()

    def _tell(self, label: str) -> None:
        self._events += 1
        self._active_s = time.monotonic()
        if self._events > _MOST_EVENTS:
            self._add_trouble(
                f"more than {_MOST_EVENTS} events were found in the output, and only these are "
                "kept: --event takes a pattern that few lines match"
            )
            return
        try:
            self.heard(label)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program must not notice
            self._add_trouble(f"an event {label!r} could not be kept: {error}")

    def _add_trouble(self, text: str) -> None:
        if text not in self.troubles:
            self.troubles.append(text)


def pipes_for(out: int, err: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return pipes for a program's stdout and stderr, and where what comes out of each goes.

    Streams that go to the same place share a pipe, so that what is printed keeps its order.
    """
    same = out == err
    with contextlib.suppress(OSError):
        same = same or os.path.samestat(os.fstat(out), os.fstat(err))
    made = os.pipe()
    return ([made, made], [out]) if same else ([made, os.pipe()], [out, err])


def _some(source: IO[bytes]) -> bytes:
    """Return what has been written by now, waiting for at least something; nothing at the end."""
    try:
        return source.read1(_LONGEST)  # type: ignore[attr-defined, no-any-return]
    except (OSError, ValueError):
        return b""


def _passed_on(text: str, sink: TextIO | None) -> TextIO | None:
    """Write a text; return where the next goes: nowhere, once nobody reads it."""
    if sink is not None:
        try:
            sink.write(text)
            sink.flush()
        except (OSError, ValueError):
            return None
    return sink
