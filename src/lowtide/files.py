"""Reading and writing files so that nothing is half-written and errors teach."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import FileProblem, FormatError

_GZIP_MAGIC = b"\x1f\x8b"

# What was added to the environment.
_MADE_UP: dict[str, str] = {}


def read_bytes(path: Path | str) -> bytes:
    """Read a file whole, unpacking gzip by its content rather than its name."""
    path = Path(path)
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except FileNotFoundError:
        raise FileProblem(f"no such file: {path}", path=path) from None
    except IsADirectoryError:
        raise FileProblem(f"{path} is a folder: name a file in it", path=path) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileProblem(f"{path} is a damaged gzip file ({error})", path=path) from error
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}", path=path) from error


def read_text(path: Path | str) -> str:
    """Read a UTF-8 text file whole, gzip or plain, without a byte-order mark."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileProblem(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, e.g. with iconv", path=path
        ) from error


def ensure_home() -> None:
    """See to it that there is a home: libraries ask for one when they are imported."""
    if "HOME" not in os.environ:
        os.environ["HOME"] = _MADE_UP["HOME"] = str(expanded("~"))


def given_environment() -> dict[str, str]:
    """Return the environment as it was found, for programs that are none of lowtide's."""
    return {name: value for name, value in os.environ.items() if _MADE_UP.get(name) != value}


def expanded(path: Path | str) -> Path:
    """Return a path with the user's home for `~`.

    A user whom the system does not know, as in many a container, has the root folder for a home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path("/", *Path(path).parts[1:])


def user_folder(environment: Mapping[str, str] | None, variable: str, below: str) -> Path:
    """Return the folder of one user for files of a kind.

    Args:
        environment: The environment, by default this process's.
        below: Where it is else, below the user's home.

    >>> user_folder({"HOME": "/home/ada"}, "XDG_CACHE_HOME", ".cache").as_posix()
    '/home/ada/.cache'
    """
    environment = os.environ if environment is None else environment
    return expanded(environment.get(variable) or f"{environment.get('HOME', '~')}/{below}")


def data_folder(data: Path | str | None) -> Path | None:
    """Return the folder with the real data: the one that is given, else LOWTIDE_DATA."""
    said = os.environ.get("LOWTIDE_DATA") if data is None else data
    return Path(said) if said else None


def read_document(path: Path | str, form: str) -> Any:
    """Read a file of JSON or TOML.

    Args:
        form: `json` or `toml`.
    """
    return parse_document(read_text(path), path, form)


def parse_document(text: str, path: Path | str, form: str) -> Any:
    """Return what JSON or TOML says, or refuse it.

    Args:
        form: `json` or `toml`.
    """
    try:
        return json.loads(text) if form == "json" else _parse_toml(text)
    except (ValueError, RecursionError) as error:
        # Besides bad syntax: numbers of thousands of digits, and nesting as deep.
        raise FormatError(f"not valid {form.upper()}: {error}", path=path) from None


def _parse_toml(text: str) -> Any:
    # Most commands read none, and all of them wait for what is imported.
    import tomllib

    return tomllib.loads(text)


def read_or_empty(path: str) -> bytes:
    """Return the whole of a small file, empty where it cannot be read.

    Files of the kernel's come and go, and are read by the thousand: a Path, or a file object,
    would cost more than the reading.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while said := os.read(handle, 1 << 16):
            parts.append(said)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(handle)


def write_whole(path: Path | str, content: str | bytes, *, lasting: bool = True) -> None:
    """Write a file beside its place, then rename it there: never half-written.

    Args:
        path: Where the file shall stand; its folder is made if need be.
        content: The whole content; text is written as UTF-8.
        lasting: Whether to wait until it would outlast a power cut, which takes milliseconds.
            Without that it may be empty afterwards.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.parent / f".{path.name}.{os.urandom(4).hex()}"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}", path=path) from error


def write_table(path: Path | str, frame: Any, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a table of polars' as CSV or Parquet, by the file's name, whole or not at all."""
    is_csv = Path(path).suffix == ".csv"
    write_whole(path, frame.write_csv() if is_csv else parquet_of(frame, metadata=metadata))


def parquet_of(frame: Any, *, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a table of polars' as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=metadata)
    return buffer.getvalue()


def try_lock(file: int) -> bool | None:
    """Lock an open file unless another process has; None where the file system knows no locks.

    It is let go of as the file is closed, however the process ends.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Write a document as JSON or TOML, by the file's name; `parse_document` reads it back."""
    if path.suffix == ".json":
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    else:
        text = toml_text(document)
    write_whole(path, text)


def toml_text(document: Mapping[str, Any]) -> str:
    """Return a document as TOML, lists of tables with a line per table.

    Tables within tables, as of a block of phases that is repeated, are lists called `phases`.
    """
    lines: list[str] = []
    for key, value in document.items():
        if isinstance(value, list):
            lines += [f"{key} = [", *_toml_rows(value, "  "), "]"]
        elif isinstance(value, Mapping):
            lines.append(f"{key} = {_toml_table(value)}")
        elif isinstance(value, str) and "\n" in value:
            lines += [
                f'{key} = """',
                *(toml_value(line)[1:-1] for line in value.split("\n")),
                '"""',
            ]
        else:
            lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def _toml_rows(tables: Iterable[Mapping[str, Any]], indent: str) -> list[str]:
    rows = []
    for table in tables:
        if "phases" in table:
            own = {key: value for key, value in table.items() if key != "phases"}
            rows.append(f"{indent}{_toml_table(own)[:-2]}, phases = [")
            rows += [*_toml_rows(table["phases"], indent + "  "), f"{indent}] }},"]
        else:
            rows.append(f"{indent}{_toml_table(table)},")
    return rows


def _toml_table(table: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {toml_value(value)}" for key, value in table.items()) + " }"


def toml_value(value: str | float | bool | list[Any]) -> str:
    """Return a value as TOML writes it."""
    # JSON writes numbers, truth values and texts as TOML does, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
