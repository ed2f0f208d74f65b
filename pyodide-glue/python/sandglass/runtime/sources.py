"""The sources of cells, for tracebacks and `inspect.getsource`."""

from __future__ import annotations

import linecache
from collections import deque
from typing import TYPE_CHECKING, Any

from sandglass.runtime.compiling import lines_of
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Unfinished(tuple[Any, ...]):
    """Linecache's entry for a cell that is being written. It has the text that `look` returns when somebody looks."""

    look: Callable[[], tuple[Any, ...]]

    def __getitem__(self, index: Any) -> Any:
        return self.look()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.look())


class Sources:
    """Keeps the newest sources, at most `limit` characters, in linecache for tracebacks and `inspect.getsource`."""

    def __init__(self) -> None:
        self.limit = 0
        self._kept: deque[tuple[str, str]] = deque()
        self._chars = 0
        self._cache: dict[str, Any] = {}  # linecache's cache at the time of `begin`

    def add(self, filename: str, source: str, cache: dict[str, Any] | None = None) -> None:
        size = len(source)
        if size > self.limit:
            return
        cache = linecache.cache if cache is None else cache
        cache[filename] = (size, None, lines_of(source), filename)
        self._kept.append((filename, source))
        self._chars += size
        while self._chars > self.limit:
            oldest, dropped = self._kept.popleft()
            self._chars -= len(dropped)
            cache.pop(oldest, None)

    def begin(self, filename: str, look: Callable[[], str]) -> None:
        """Adds a cell that is being written. `look` returns its text when code wants it.

        `finish` adds the final text.
        """

        def entry() -> tuple[Any, ...]:
            source = look()
            return len(source), None, lines_of(source), filename

        unfinished = _Unfinished((0, None, [], filename))
        unfinished.look = entry
        self._cache = linecache.cache
        self._cache[filename] = unfinished

    def finish(self, filename: str, source: str) -> None:
        """Adds the final text of the cell."""
        cache, self._cache = self._cache, {}
        known = cache.get(filename)
        self.add(filename, source, cache)
        if known is None or len(source) > self.limit:
            cache.pop(filename, None)  # the cell has emptied the cache, or the text is too long
        elif not isinstance(known, _Unfinished):
            cache[filename] = known  # the cell has put its own entry there

    def kept(self) -> list[tuple[str, str]]:
        """Returns file names and sources, oldest first."""
        return list(self._kept)

    def clear(self) -> None:
        """Forgets all sources."""
        for filename, _ in self._kept:
            linecache.cache.pop(filename, None)
        self._kept.clear()
        self._chars = 0
