"""A file that was read, before anyone knows what it holds, and places within it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.errors import Argument, FormatError

_HEAD_BYTES = 65_536
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET = b"PAR1"
# Where an archive says that it is one, and how other packed files begin and are unpacked.
_TAR = slice(257, 262)
_PACKED = {
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """The content of a file, unpacked.

    Attributes:
        path: Where it was read.
        data: All of it, without a byte-order mark.
    """

    path: Path
    data: bytes

    @classmethod
    def open(cls, path: Path | str) -> Source:
        """Read a file, or the only one of an archive; refuse what is neither text nor Parquet."""
        data = files.read_bytes(path)
        if data[_TAR] == b"ustar":
            data = _only_member(data, path)
        data = data.removeprefix(_BYTE_ORDER_MARK)
        if not data or data.isspace():
            raise FormatError("the file is empty: check how it was made", path=path)
        source = cls(path=Path(path), data=data)
        for begin, (packer, program) in _PACKED.items():
            if data.startswith(begin):
                name = source.path.name
                raise FormatError(
                    f"this is a binary file, packed with {packer}: unpack it first, with "
                    f"{program} {name}",
                    path=path,
                )
        if b"\0" in data[:_HEAD_BYTES] and not source.is_parquet:
            raise FormatError(
                "this is a binary file: lowtide reads text (CSV, JSON, SWF), plain or gzip, and "
                "Parquet",
                path=path,
            )
        return source

    @property
    def is_parquet(self) -> bool:
        """Whether this is a table as Parquet."""
        return self.data.startswith(_PARQUET)

    @cached_property
    def head(self) -> str:
        """The beginning of the file, enough to tell what it is."""
        return self.data[:_HEAD_BYTES].decode("utf-8", "replace")

    @cached_property
    def text(self) -> str:
        """The whole file as text."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(
                "this is not UTF-8 text: convert it, e.g. with iconv",
                path=self.path,
                line=self.data.count(b"\n", 0, error.start) + 1,
            ) from None

    @cached_property
    def document(self) -> Any:
        """The parsed JSON, or None where the file does not begin like JSON."""
        if self.head.lstrip()[:1] not in ("{", "["):
            return None
        try:
            return json.loads(self.text)
        except json.JSONDecodeError as error:
            raise FormatError(
                f"not valid JSON ({error.msg}): fetch the file again, it may be cut short",
                path=self.path,
                line=error.lineno,
            ) from None
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not usable JSON ({error})", path=self.path) from None


def _only_member(data: bytes, path: Path | str) -> bytes:
    """Return the file that an archive holds, or say which ones there are."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            # A Mac lays a file of its own beside each.
            found = [
                each
                for each in archive
                if each.isfile() and not Path(each.name).name.startswith("._")
            ]
            member = archive.extractfile(found[0]) if len(found) == 1 else None
            if member is not None:
                return member.read()
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        raise FormatError(f"a damaged archive ({error}): fetch it again", path=path) from None
    named = ", ".join(each.name for each in found[:5]) + ", …" * (len(found) > 5)
    raise FormatError(
        f"an archive of {len(found)} files ({named}): unpack it, with tar -xf {Path(path).name}, "
        "and name the table of jobs",
        path=path,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where values came from, so that an error can name the line.

    Attributes:
        path: The file.
        column: The heading or key the values stood under.
        line: Finds the line of a row; None where rows have no lines of their own, as in JSON.
    """

    path: Path
    column: str | None = None
    line: Callable[[int], int] | None = None

    def error(self, message: str, row: int | None = None, *arguments: Argument) -> FormatError:
        """Return the error that says what is wrong there.

        Args:
            row: The row it is about, counted from 0.
            arguments: Those of the reader that the message speaks of.
        """
        line = None
        if row is not None:
            if self.line is not None:
                line = self.line(row)
            else:
                message = f"record {row + 1}: {message}"
        return FormatError(
            message, path=self.path, line=line, column=self.column, arguments=arguments
        )


def is_number(text: str) -> bool:
    """Return whether a text is a number to Python."""
    try:
        float(text)
    except ValueError:
        return False
    return True
