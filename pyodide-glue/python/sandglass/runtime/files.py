"""Files for the host: `writeFile`, `readFile`, `listFiles` and `removeFile`, through `os`.

A path is relative to the working folder, in which Python started, even after `os.chdir`. An absolute path lies in the
working folder or in `/tmp`. Links are followed first, so that none leads out. The backend bounds the files' sizes.

Names are bytes for the system and text for the host. A byte that is not UTF-8 becomes `\\udcff` in the text, as Python
escapes it in a str. A str literal of this text means the same file. A backslash that would be read as such an escape
becomes `\\x5c`. So each name has its own text, which leads back to the name.
"""

from __future__ import annotations

import errno
import re
from codecs import getincrementaldecoder
from contextlib import suppress
from os import O_NONBLOCK, O_RDONLY, getcwd, makedirs, remove, replace, rmdir, scandir, stat, walk
from os import open as open_fd
from os.path import basename, dirname, isdir, islink, join, lexists, realpath
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import stat_result

_CHUNK_BYTES = 1 << 20
_TEMPORARY = "/tmp"
_PART = ".sandglass-part"
#: A backslash that begins text which `meant` would read as an escape, and an escape.
_LOOKS_ESCAPED = re.compile(r"\\(?=udc[89a-f][0-9a-f]|x5c)")
_ESCAPED = re.compile(r"\\(?:u(dc[89a-f][0-9a-f])|x5c)")
_HINTS = {errno.ENOSPC: "; maxFileBytes bounds all files together, and their number is bounded, too"}


class FileError(Exception):
    """An operation on a file failed. The message is for the host."""


def shown(path: str) -> str:
    """Returns a path as text for the host, which UTF-8 can carry."""
    if "\\" in path:
        path = _LOOKS_ESCAPED.sub(r"\\x5c", path)
    return path.encode("utf-8", "backslashreplace").decode()


def meant(path: str) -> str:
    """Returns the path that `shown` turned into this text."""
    if "\\" not in path:
        return path
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "\\", path)


class Files:
    """The files of one guest."""

    def __init__(self) -> None:
        self._folder = ""
        self._roots: tuple[str, ...] = ()
        self._max_files = 0

    def install(self) -> None:
        """Makes the current folder the working folder."""
        self._folder = realpath(getcwd())
        self._roots = (self._folder, realpath(_TEMPORARY))

    def limit(self, max_files: int) -> None:
        """Sets the most files of a listing."""
        self._max_files = max_files

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Writes a file from `pieces`, completely or not at all. Makes missing folders."""
        with _explained(path):
            whole = self._resolve(path)
            if isdir(whole):
                raise FileError(f"{path}: is a folder")
            folder = dirname(whole)
            makedirs(folder, exist_ok=True)
            part = join(folder, _PART)
            try:
                with open(part, "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                replace(part, whole)
            except BaseException:
                with suppress(OSError):
                    remove(part)
                raise

    def read(self, path: str, text: bool, max_bytes: float) -> Iterator[bytes] | None:
        """Reads a file in pieces, optionally only if it is UTF-8. Returns None when it does not exist."""
        with _explained(path):
            whole = self._resolve(path)
            if not lexists(whole):
                return None
            if isdir(whole):
                raise FileError(f"{path}: is a folder; listFiles lists it")
            status = stat(whole)
            if not S_ISREG(status.st_mode):
                raise FileError(f"{path}: is a pipe, a socket or a device, of which nothing is read")
            size = status.st_size
            if size > max_bytes:
                raise FileError(
                    f"{path}: has {size} bytes, maxValueSize is {max_bytes:.0f}; read parts of it in Python"
                )
            return _pieces(path, whole, text, size)

    def list(self, path: str) -> list[dict[str, Any]] | None:
        """Lists a folder and all below, as `[{path, size, modified, type}]`. Returns None when it does not exist."""
        with _explained(path):
            whole = self._resolve(path)
            if not lexists(whole):
                return None
            rows: list[dict[str, Any]] = []
            for entry, status in _walk(whole):
                if len(rows) >= self._max_files:
                    raise FileError(f"{path}: holds more than {self._max_files} files; list a folder in it")
                rows.append(
                    {
                        "path": self._shown(entry),
                        "size": 0 if S_ISDIR(status.st_mode) else status.st_size,
                        "modified": status.st_mtime_ns // 1_000_000,
                        "type": "directory" if S_ISDIR(status.st_mode) else "file",
                    }
                )
            return sorted(rows, key=lambda row: str(row["path"]))

    def remove(self, path: str) -> bool:
        """Removes a file, a folder with its contents, or a link. Returns false when it does not exist."""
        with _explained(path):
            whole = self._resolve(path, follow=False)
            if not lexists(whole):
                return False
            if whole in self._roots:
                raise FileError(f"{path}: is the folder itself; remove what is in it")
            if islink(whole) or not isdir(whole):
                remove(whole)
                return True
            for folder, folders, files in walk(whole, topdown=False):
                for name in files:
                    remove(join(folder, name))
                for name in folders:
                    inner = join(folder, name)
                    (remove if islink(inner) else rmdir)(inner)
            rmdir(whole)
            return True

    def _resolve(self, path: str, *, follow: bool = True) -> str:
        if "\0" in path:
            raise FileError("a path cannot contain null characters")
        whole = join(self._folder, meant(path))
        name = basename(whole)
        follows = follow or name in ("", ".", "..")
        whole = realpath(whole) if follows else join(realpath(dirname(whole)), name)
        if not any(whole == root or whole.startswith(f"{root}/") for root in self._roots):
            raise FileError(f"{path}: lies outside of the working folder {self._folder} and of {_TEMPORARY}")
        return whole

    def _shown(self, path: str) -> str:
        inner = path.removeprefix(f"{self._folder}/")
        return shown(inner) if path != self._folder else "."


class _explained:
    """Turns an exception of `os` into a message for the host."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            hint = _HINTS.get(error.errno or 0, "")
            raise FileError(f"{self._path}: {error.strerror or 'cannot be used'}{hint}") from None


def _walk(path: str) -> Iterator[tuple[str, stat_result]]:
    """Yields a file itself, or the contents of a folder.

    Links count as their targets, but are not followed into folders.
    """
    todo = [path]
    if not isdir(path):
        yield path, stat(path)
        return
    while todo:
        with scandir(todo.pop()) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:  # the link leads nowhere
                    status = entry.stat(follow_symlinks=False)
                yield entry.path, status
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)


def _at_once(path: str, _flags: int) -> int:
    """Opens a file to read it. Never blocks, even if the file has become a pipe."""
    return open_fd(path, O_RDONLY | O_NONBLOCK)


def _pieces(path: str, whole: str, text: bool, left: int) -> Iterator[bytes]:
    """Yields the first `left` bytes of a file: reading a file that grows meanwhile would never end."""
    decoder = getincrementaldecoder("utf-8")()
    with _explained(path), open(whole, "rb", opener=_at_once) as file:
        try:
            while piece := file.read(min(_CHUNK_BYTES, left)):
                left -= len(piece)
                if text:
                    decoder.decode(piece)
                yield piece
            decoder.decode(b"", True)
        except UnicodeDecodeError:
            raise FileError(f"{path}: is not UTF-8 text; read it without an encoding") from None
