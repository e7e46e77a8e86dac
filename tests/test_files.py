"""Reading and writing whole files."""

import gzip
import stat

import pytest

from lowtide import files
from lowtide.errors import FileProblem


def test_text_and_bytes_come_back_as_written(tmp_path):
    files.write_whole(tmp_path / "a.txt", "grün\n")
    assert files.read_text(tmp_path / "a.txt") == "grün\n"
    files.write_whole(tmp_path / "a.bin", b"\x00\xff")
    assert files.read_bytes(tmp_path / "a.bin") == b"\x00\xff"


def test_writing_makes_the_folder_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "deep" / "er" / "a.txt"
    files.write_whole(path, "one")
    files.write_whole(path, "two")
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]
    assert path.read_text() == "two"


@pytest.mark.parametrize("what_fails", ["fsync", "fdopen"])
def test_a_failure_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, what_fails):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, what_fails, full)
    with pytest.raises(FileProblem, match=r"cannot write .*a\.txt: No space left") as caught:
        files.write_whole(path, "new")
    assert caught.value.path == path
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_an_interrupt_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_in_the_way_is_a_file_problem(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(FileProblem, match="cannot write"):
        files.write_whole(tmp_path / "a.txt", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(FileProblem, match="is a folder: name a file in it"):
        files.read_bytes(tmp_path / "a.txt")


def test_a_written_file_has_the_mode_that_open_would_give(tmp_path):
    (tmp_path / "plain").write_text("x")
    files.write_whole(tmp_path / "ours", "x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours")}
    assert len(modes) == 1


def test_gzip_is_told_by_its_content(tmp_path):
    (tmp_path / "a.txt").write_bytes(gzip.compress("grün".encode()))
    assert files.read_text(tmp_path / "a.txt") == "grün"
    (tmp_path / "b.gz").write_bytes(b"plain")
    assert files.read_text(tmp_path / "b.gz") == "plain"


def test_a_gzip_file_of_several_members_is_read_whole(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert files.read_text(tmp_path / "a.gz") == "one two"


@pytest.mark.parametrize("damage", ["cut", "first block", "body", "checksum", "header"])
def test_a_damaged_gzip_file_says_so(tmp_path, damage):
    packed = bytearray(gzip.compress(b"some text that is packed" * 9, mtime=0))
    if damage == "cut":
        packed = packed[:-12]
    else:
        packed[{"first block": 10, "body": 12, "checksum": -5, "header": 2}[damage]] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(packed)
    with pytest.raises(FileProblem, match="damaged gzip") as caught:
        files.read_bytes(tmp_path / "a.gz")
    assert caught.value.path == tmp_path / "a.gz"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileProblem, match=r"no such file: .*nowhere\.csv") as caught:
        files.read_text(tmp_path / "nowhere.csv")
    assert caught.value.path == tmp_path / "nowhere.csv"
    assert isinstance(caught.value, OSError)


def test_a_byte_order_mark_is_dropped_and_other_encodings_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfa,b")
    assert files.read_text(tmp_path / "a.csv") == "a,b"
    (tmp_path / "b.csv").write_bytes("a,grün".encode("latin-1"))
    with pytest.raises(FileProblem, match=r"not UTF-8 text \(byte 4\): convert it"):
        files.read_text(tmp_path / "b.csv")


def test_a_small_file_is_read_whole_and_one_that_cannot_be_is_empty(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 200_000)
    assert files.read_or_empty(str(tmp_path / "long")) == b"x" * 200_000
    assert files.read_or_empty(str(tmp_path / "nothing")) == b""
    assert files.read_or_empty(str(tmp_path)) == b""
