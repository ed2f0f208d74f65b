"""Finds the files of the working folder that an execution changed, by looking before and after."""

from __future__ import annotations

from os import lstat, scandir
from os.path import join, relpath
from stat import S_ISREG
from time import monotonic, time_ns
from typing import TYPE_CHECKING
from zlib import crc32

from sandglass.runtime.files import shown
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from os import DirEntry

    from sandglass.runtime.wire import Change, FileChange

    Stamp = tuple[int, int, int, int]

#: The most changed files that are reported, and the most characters of their paths.
MOST_CHANGES = 1000
MOST_CHARS = 100_000
#: With more files, nothing is reported, since looking takes too long. The next look comes only after a rest.
MOST_FILES = 20_000
_REST_SECONDS = 30.0
#: The folder in which Python caches the modules that it imports.
_IGNORED = "__pycache__"
#: A folder that takes longer to search is searched once per execution, after it.
_SLOW_SECONDS = 0.005
#: The resolution of file systems' clocks. A file that was changed so recently may change again and keep its time.
_COARSE_NS = 20_000_000
_MOST_SUM_BYTES = 1 << 20


class ChangedFiles:
    """Finds changes below one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before: dict[str, Stamp] | None = None
        self._sums: dict[str, int] = {}
        self._slow = False
        self._rest_until = 0.0

    def begin(self) -> None:
        """Begins to watch an execution."""
        if not self._slow or self._before is None:
            self._before = self._look()
        self._sums = {}
        if self._before is not None and not self._slow:
            recent = time_ns() - _COARSE_NS
            for path, stamp in self._before.items():
                if stamp[1] > recent and stamp[2] <= _MOST_SUM_BYTES:
                    self._sums[path] = self._sum(path)

    def end(self) -> tuple[list[FileChange], int]:
        """Ends the watch. Returns the changed files, and the number of those left out."""
        before, after = self._before, self._look()
        self._before = after
        if before is None or after is None or (before == after and not self._sums):
            return [], 0
        found: list[tuple[str, Change, int]] = []
        for path, stamp in after.items():
            known = before.get(path)
            if known is None:
                found.append((path, "created", stamp[2]))
            elif known != stamp or (path in self._sums and self._sums[path] != self._sum(path)):
                found.append((path, "modified", stamp[2]))
        found += [(path, "deleted", 0) for path in before.keys() - after.keys()]
        found = sorted((shown(path), change, size) for path, change, size in found)
        rows: list[FileChange] = []
        chars = 0
        for path, change, size in found[:MOST_CHANGES]:
            chars += len(path)
            if chars > MOST_CHARS:
                break
            rows.append({"path": path, "change": change, "size": size})
        return rows, len(found) - len(rows)

    def usage(self, besides: str) -> tuple[int, int]:
        """Returns the bytes and the number of all files except one."""
        found = self._look() or {}
        found.pop(relpath(join(self._folder, besides), self._folder), None)
        return sum(stamp[2] for stamp in found.values()), len(found)

    def _look(self) -> dict[str, Stamp] | None:
        begun = monotonic()
        if begun < self._rest_until:
            return None
        found: dict[str, Stamp] = {}
        todo = [("", self._folder)]
        seen = 0
        while todo:
            prefix, folder = todo.pop()
            try:
                with scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > MOST_FILES:
                            self._rest_until = monotonic() + _REST_SECONDS
                            return None
                        self._note(entry, prefix, found, todo)
            except OSError:
                continue  # the file is gone, or not readable for us
        self._slow = monotonic() - begun > _SLOW_SECONDS
        return found

    def _note(self, entry: DirEntry[str], prefix: str, found: dict[str, Stamp], todo: list[tuple[str, str]]) -> None:
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name != _IGNORED:
                todo.append((f"{path}/", entry.path))
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return
        found[path] = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)

    def _sum(self, path: str) -> int:
        whole = f"{self._folder}/{path}"
        try:
            if not S_ISREG(lstat(whole).st_mode):  # opening a pipe, for instance, would block
                return 0
            with open(whole, "rb") as file:
                return crc32(file.read(_MOST_SUM_BYTES))
        except OSError:
            return 0
