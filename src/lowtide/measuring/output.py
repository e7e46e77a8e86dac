"""Listening to what a program prints, while passing it on."""

from __future__ import annotations

import codecs
import re
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import IO, TextIO

from lowtide.errors import LowtideError

# A line that goes on for longer is taken as ended.
_LONGEST = 65536
# A line with what ends it, or what is there of one.
_PIECES = re.compile(r"[^\r\n]*[\r\n]|[^\r\n]+")


@dataclass(slots=True, kw_only=True)
class Listener:
    """Passes a program's output on, and says what patterns find in it.

    It reads on whatever happens: a program whose output nobody takes stands still.

    Attributes:
        patterns: Regular expressions, each with the label of its event; where one has a group, that
            is put in place of `{}` in the label.
        heard: Told each label as it is found.
        troubles: What went wrong, each thing once.
    """

    patterns: Sequence[tuple[re.Pattern[str], str]]
    heard: Callable[[str], None]
    troubles: list[str] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def follow(self, source: IO[bytes], sink: TextIO) -> None:
        """Listen to one stream, until it ends.

        Args:
            source: What the program writes to.
            sink: Where it goes.
        """
        thread = threading.Thread(target=self._copy, args=(source, sink), daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait until all streams have ended.

        Args:
            timeout_s: How long to wait for each.
        """
        for thread in self._threads:
            thread.join(timeout=timeout_s)

    def _copy(self, source: IO[bytes], sink: TextIO) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        out: TextIO | None = sink
        line, goes_back, told = "", False, set[str]()
        while data := _some(source):
            text = decoder.decode(data)
            out = _passed_on(text, out)
            for piece in _PIECES.findall(text):
                line += piece
                ended = piece[-1] in "\r\n" or len(line) > _LONGEST
                # A progress bar goes back and writes anew: its line ends when the next is due.
                if ended or goes_back:
                    told |= self._search(line, told)
                if ended:
                    line, goes_back, told = "", piece[-1] == "\r", set()
        self._search(line + decoder.decode(b"", final=True), told)

    def _search(self, line: str, told: Set[str]) -> set[str]:
        """Tell the labels that a line has and that were not told of it; return all it has."""
        found: dict[str, None] = {}
        for pattern, label in self.patterns:
            if match := pattern.search(line):
                group = (match.group(1) or "") if pattern.groups else ""
                found[label.replace("{}", group)] = None
        for label in [each for each in found if each not in told]:
            try:
                self.heard(label)
            except (LowtideError, OSError) as error:
                text = f"an event {label!r} could not be kept: {error}"
                if text not in self.troubles:
                    self.troubles.append(text)
        return set(found)


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
