"""Files for the host, on native Python. Cases of users' view are in tests/cases/files.toml."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandglass.runtime.files import FileError, Files, meant, shown

MOST = 1e9


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr("sandglass.runtime.files._TEMPORARY", str(tmp_path / "tmp"))
    files = Files()
    files.install()
    files.limit(10)
    return files


def text_of(files: Files, path: str) -> bytes:
    pieces = files.read(path, False, MOST)
    assert pieces is not None
    return b"".join(pieces)


def test_files_go_in_and_out(files: Files, tmp_path: Path) -> None:
    files.write("a/b.txt", [b"one ", b"two"])
    assert text_of(files, "a/b.txt") == b"one two"
    assert text_of(files, f"{tmp_path}/home/a/./../a/b.txt") == b"one two"
    assert files.read("a/nothing", False, MOST) is None
    assert files.remove("a/b.txt") and not files.remove("a/b.txt")
    files.write(f"{tmp_path}/tmp/x", [b"y"])
    assert files.list(f"{tmp_path}/tmp") == [
        {
            "path": f"{tmp_path}/tmp/x",
            "size": 1,
            "modified": os.stat(f"{tmp_path}/tmp/x").st_mtime_ns // 10**6,
            "type": "file",
        }
    ]


def test_a_large_file_comes_in_pieces(files: Files) -> None:
    files.write("x", [b"x" * 3_000_000])
    assert len(list(files.read("x", True, MOST) or [])) == 3


def test_the_working_folder_is_where_python_started(files: Files, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    files.write("x", [b"1"])
    assert (tmp_path / "home" / "x").read_bytes() == b"1"


@pytest.mark.parametrize(
    "path", ["..", "../x", "/", "/etc/passwd", "a/../../x", "link/x", "link", "deep/up/../x", "x\0y"]
)
def test_paths_that_lead_out(files: Files, path: str) -> None:
    os.symlink("/etc", "link")
    os.makedirs("deep")
    os.symlink("..", "deep/up")  # so `deep/up/..` is above the working folder
    for act in (
        lambda: files.write(path, [b""]),
        lambda: files.read(path, False, MOST),
        lambda: files.list(path),
        lambda: files.remove(f"{path}/x"),
    ):
        with pytest.raises(FileError):
            act()


def test_a_link_is_removed_and_not_what_it_leads_to(files: Files, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    os.symlink(outside, "link")
    os.makedirs("folder/inner")
    os.symlink(outside, "folder/inner/link")
    assert files.remove("link") and files.remove("folder")
    assert (outside / "kept").exists()
    assert os.listdir() == []


def test_a_write_that_fails_leaves_the_file_as_it_was(files: Files) -> None:
    files.write("x", [b"old"])

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileError, match="x: No space left on device; maxFileBytes"):
        files.write("x", pieces())
    assert text_of(files, "x") == b"old"
    assert os.listdir() == ["x"]


def test_folders_and_files_are_not_taken_for_each_other(files: Files) -> None:
    files.write("folder/x", [b""])
    for act in (lambda: files.write("folder", [b""]), lambda: files.read("folder", False, MOST)):
        with pytest.raises(FileError, match="is a folder"):
            act()
    with pytest.raises(FileError, match=r"Not a directory|File exists"):
        files.write("folder/x/y", [b""])
    for path in (".", "", "folder/.."):
        with pytest.raises(FileError, match="the folder itself"):
            files.remove(path)
    assert [row["path"] for row in files.list("folder/x") or []] == ["folder/x"]


def test_listings(files: Files) -> None:
    os.makedirs("a/b")
    files.write("a/c", [b"123"])
    os.symlink("c", "a/link")
    os.symlink("nowhere", "broken")
    os.symlink(".", "a/loop")
    rows: Any = files.list(".")
    assert [(row["path"], row["type"]) for row in rows] == [
        ("a", "directory"),
        ("a/b", "directory"),
        ("a/c", "file"),
        ("a/link", "file"),
        ("a/loop", "directory"),
        ("broken", "file"),
    ]
    for n in range(10):
        files.write(f"many{n}", [b""])
    with pytest.raises(FileError, match="more than 10 files"):
        files.list(".")


@pytest.mark.parametrize(
    "name", [b"\xff.bin", b"caf\xe9", b"\\udcff", b"\\x5c", b"a\\b", "é".encode(), b"\xed\xa0\x80"]
)
def test_names_that_are_not_utf8_lead_back(files: Files, name: bytes) -> None:
    os.mkdir(name)
    Path(os.fsdecode(name), "x").write_bytes(name)
    rows: Any = files.list("")
    folder, path = (row["path"] for row in rows)
    assert folder.encode() == (name if name in (b"a\\b", "é".encode()) else folder.encode())
    assert path == f"{folder}/x" and text_of(files, path) == name
    files.write(path, [b"new"])
    assert os.listdir(name) == [b"x"] and text_of(files, path) == b"new"
    assert files.list(folder) == files.list(path) and files.remove(folder) and not os.listdir(b".")


@given(
    st.binary(max_size=20) | st.lists(st.sampled_from([b"\\", b"u", b"dc", b"x5c", b"f", b"8", b"\xff"])).map(b"".join)
)
def test_each_name_has_its_own_text(name: bytes) -> None:
    text = shown(os.fsdecode(name))
    assert os.fsencode(meant(text.encode().decode())) == name


def test_pipes_are_not_read(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    with pytest.raises(FileError, match="is a pipe"):
        files.read("pipe", False, MOST)
    # A pipe that replaces a file while it is read must not block the reader.
    files.write("file", [b"x"])
    pieces = files.read("file", False, MOST)
    os.replace("pipe", "file")
    assert list(pieces or []) == []


def test_a_file_that_grows_ends(files: Files) -> None:
    files.write("x", [b"x" * 10])
    pieces = files.read("x", False, MOST)
    with open("x", "ab") as file:
        file.write(b"y" * 10)
    assert list(pieces or []) == [b"x" * 10]


def test_text_has_to_be_utf8(files: Files) -> None:
    files.write("x", ["é".encode() * 1_000_000])
    assert b"".join(files.read("x", True, MOST) or []).decode() == "é" * 1_000_000
    for bad in (b"\xff", b"x\xc3", b"\xed\xa0\x80"):
        files.write("x", [bad])
        with pytest.raises(FileError, match="not UTF-8"):
            list(files.read("x", True, MOST) or [])
        assert text_of(files, "x") == bad
    with pytest.raises(FileError, match="maxValueSize is 1;"):
        files.read("x", False, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40))
def test_no_path_does_more_than_fail(files: Files, path: str) -> None:
    for act in (
        lambda: list(files.read(path, True, MOST) or []),
        lambda: files.list(path),
        lambda: files.write(f"{path}/x", [b"x"]),
        lambda: files.remove(path),
    ):
        with suppress(FileError, ValueError):  # UnicodeEncodeError is fine, as the host sends well-formed names only
            act()
